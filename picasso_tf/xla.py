"""Notices functions that XLA compiles: their graphs never reach the rewrite."""

from __future__ import annotations

from absl import logging
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context

from picasso_tf.fragments.lookup import LOOKUP_OPS
from picasso_tf.fragments.sparse_update import UPDATE_OPS

_WORTH_PACKING = frozenset((*LOOKUP_OPS, *UPDATE_OPS))
_looked_at: set[str] = set()
_warned = False


def look_at(ctx: context.Context, name: str) -> None:
    """Warns, once per process, if XLA compiles lookups or updates in function
    `name` or in what it calls. Each function is looked at once."""
    if name in _looked_at or _warned:
        return
    _looked_at.add(name)
    function = _find(ctx, name)
    if function is None:
        return
    if not _is_compiled(function):
        for called in _calls(function):
            look_at(ctx, called)
        return
    if _has_work(ctx, function, set()):
        _warn(name)


def _find(ctx: context.Context, name: str) -> function_pb2.FunctionDef | None:
    return ctx.get_function_def(name) if ctx.has_function(name) else None


def _is_compiled(function: function_pb2.FunctionDef) -> bool:
    return "_XlaMustCompile" in function.attr and function.attr["_XlaMustCompile"].b


def _has_work(ctx, function: function_pb2.FunctionDef, seen: set[str]) -> bool:
    if any(node.op in _WORTH_PACKING for node in function.node_def):
        return True
    for name in _calls(function):
        if name not in seen:
            seen.add(name)
            called = _find(ctx, name)
            if called is not None and _has_work(ctx, called, seen):
                return True
    return False


def _calls(function: function_pb2.FunctionDef):
    """Names of the functions that nodes of this one call."""
    for node in function.node_def:
        for value in node.attr.values():
            if value.HasField("func"):
                yield value.func.name
            for called in value.list.func:
                yield called.name


def _warn(name: str) -> None:
    global _warned
    _warned = True
    logging.warning(
        "picasso_tf: XLA compiles %s (jit_compile), so nothing in it is packed. "
        "Compile Keras models with jit_compile=False: Keras 3's default, 'auto', "
        "turns XLA on where there is a GPU. Said once per process.",
        name,
    )
