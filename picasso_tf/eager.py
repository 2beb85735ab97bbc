"""Switching the rewrite on for tf.function and Keras, in the whole process."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Sequence

from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from picasso_tf import grappler, xla
from picasso_tf.options import Options
from picasso_tf.report import Report

_lock = threading.Lock()
_stock_property = context.Context.function_call_options
_stock_call = context.Context.call_function
# Options of enable() and of the blocks around; the last entry counts. The key
# tells blocks with equal options apart.
_stack: list[tuple[object, Options]] = []
_seen: list[Report] = []  # when enable() was called


class RewriteDropped(RuntimeError):
    """A graph was rewritten, but TensorFlow ran the original."""


def enable(options: Options | None = None) -> None:
    """Packs the graphs of tf.function and Keras from now on.

    Acts on every thread of the process and on functions traced before. A second
    call replaces the options. Compile Keras models with jit_compile=False: what
    XLA compiles is never rewritten, and the first call of such a function with
    lookups is warned about.

    Functions that are called while another function is traced keep TensorFlow's
    own configuration, so nothing of this reaches a SavedModel.
    """
    grappler.install()
    with _lock:
        _seen[:] = grappler.reports()
        _stack[:] = [(object(), options or Options())]
        _apply()


def disable() -> None:
    """Restores what was before `enable`. Does nothing if nothing is enabled.

    Raises:
      RewriteDropped: under `Options(strict=True)`, when a graph was rewritten and
        TensorFlow did not use it.
    """
    with _lock:
        strict = any(options.strict for _, options in _stack)
        _stack.clear()
        _apply()
    if strict:
        check_used(_seen)


@contextlib.contextmanager
def enabled(options: Options | None = None):
    """`enable` for the time of a `with` block; may be nested.

    Raises:
      RewriteDropped: as `disable`, at the end of the block.
    """
    grappler.install()
    chosen = options or Options()
    seen = grappler.reports()
    entry = (object(), chosen)
    with _lock:
        _stack.append(entry)
        _apply()
    try:
        yield
    finally:
        with _lock:
            _stack[:] = [other for other in _stack if other is not entry]
            _apply()
    if chosen.strict:
        check_used(seen)


def check_used(seen: Sequence[Report]) -> None:
    """Raises RewriteDropped if a rewrite, other than those seen, was dropped."""
    known = {id(report) for report in seen}
    for report in grappler.reports():
        if id(report) not in known and report.was_dropped():
            raise RewriteDropped(
                f"picasso_tf rewrote {report.graph}, but TensorFlow created none of "
                f"its {len(report.packs)} packed ops. It ran the original graph "
                "instead, or has not run this one."
            )


def _apply() -> None:
    """Installs or removes the property that adds our optimizer.

    TensorFlow keeps these options per thread and resets them in several setters,
    so a value set once would miss threads and get lost. Reading through a
    property misses none, and leaves TensorFlow's own state untouched. The options
    do not know whose call they are for; the call itself does.
    """
    if _stack:
        _, options = _stack[-1]
        context.Context.function_call_options = property(
            functools.partial(_wrapped_options, options),
            _stock_property.fset,
            doc=_stock_property.__doc__,
        )
        context.Context.call_function = _call_function
    else:
        context.Context.function_call_options = _stock_property
        context.Context.call_function = _stock_call


@functools.wraps(_stock_call)
def _call_function(ctx, name, *args, **kwargs):
    xla.look_at(ctx, name.decode() if isinstance(name, bytes) else name)
    return _stock_call(ctx, name, *args, **kwargs)


def _wrapped_options(options: Options, ctx):
    stock = _stock_property.fget(ctx)
    # While a graph is being built, the configuration would be written into it.
    if not ctx.executing_eagerly():
        return stock
    return context.FunctionCallOptions(
        executor_type=stock.executor_type,
        config_proto=_wrapped_config(stock.config_proto_serialized, options),
    )


@functools.lru_cache(maxsize=64)
def _wrapped_config(serialized: bytes, options: Options) -> config_pb2.ConfigProto:
    config = config_pb2.ConfigProto.FromString(serialized)
    return grappler.with_picasso(config, options)
