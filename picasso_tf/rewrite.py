"""The one entry to the passes, used by sessions, tf.function and offline."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import time
from collections.abc import Iterable, Iterator

from absl import logging
from tensorflow.core.framework import graph_pb2, node_def_pb2

from picasso_tf import ops
from picasso_tf.edits import graph_def_of
from picasso_tf.functions import FunctionBody
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, prune
from picasso_tf.options import Options
from picasso_tf.passes import (
    OPS_OF_THE_RUN,
    PASSES,
    PASSES_OFFLINE,
    Pass,
    triggers_of,
)
from picasso_tf.report import Report, merge

_warned: set[str] = set()


def rewrite(
    graph_def: graph_pb2.GraphDef,
    preserve: Iterable[str] = (),
    options: Options | None = None,
) -> tuple[graph_pb2.GraphDef, Report]:
    """Packs the lookups and updates of a graph and of its library functions.

    Packs of float sums and products (L2 losses, dense gradients and updates: training
    graphs) are not made here: TensorFlow's own optimizers run later, when the graph
    does, and regroup such arithmetic, so that results would round differently. A
    session or function with picasso_tf makes them then, and the report notes it.

    Args:
      graph_def: a GraphDef; it is not changed.
      preserve: names of nodes or tensors that will be fetched, run or fed. They
        keep their names, and each may be run without the others: nothing is
        packed that is not needed by the same of them. What none of them needs is
        dropped. Empty: all nodes stay, and all of the graph runs at once.
      options: see `Options`.

    Returns:
      The new GraphDef (equal to `graph_def` if there was nothing to do) and a
      `Report`. The same graph gives the same bytes, and a second rewrite changes
      nothing.

    Raises:
      ValueError: a name in `preserve` is not in the graph.
      Exception: with `options.strict`, whatever a pass raised.
    """
    options = options or Options()
    names = list(dict.fromkeys(name.split(":")[0].lstrip("^") for name in preserve))
    known = {node.name for node in graph_def.node}
    missing = [name for name in names if name not in known]
    if missing:
        raise ValueError(
            f"preserve names nodes that are not in the graph: {missing[:5]}. "
            f"It has {len(known)} nodes."
        )
    nodes = prune(graph_def.node, names) if names else graph_def.node
    roots = [{name} for name in names] if names else None
    view_args = {"preserve": names, "roots": roots}
    outcome = rewrite_offline(nodes, options, "graph", view_args)
    reports = [outcome.report]
    result = graph_def_of(outcome.nodes or graph_def.node, like=graph_def)
    reports.extend(rewrite_library(result.library, options))
    return result, merge("graph", reports)


def rewrite_library(library, options: Options) -> list[Report]:
    """Rewrites the functions of a FunctionDefLibrary in place.

    A function keeps its name, signature and attributes; its body is a graph of
    its own, and nothing is packed across functions. What XLA compiles as a whole
    is left alone.
    """
    reports = []
    for function in library.function:
        name = function.signature.name
        if (
            function.attr["_XlaMustCompile"].b
            if "_XlaMustCompile" in function.attr
            else 0
        ):
            continue
        body = FunctionBody(function, library)
        triggers = triggers_of(PASSES_OFFLINE) | OPS_OF_THE_RUN
        if not any(node.op in triggers for node in function.node_def):
            continue
        outcome = rewrite_offline(
            body.nodes,
            options,
            f"function {name}",
            {
                "preserve": body.preserve,
                "keep": body.keep,
                "arg_tables": body.arg_tables,
            },
        )
        reports.append(outcome.report)
        if outcome.nodes is not None:
            body.write(outcome.nodes, outcome.moved)
    return reports


def rewrite_offline(nodes, options: Options, title: str, view_args: dict) -> Outcome:
    """`rewrite_nodes` for a graph that is run later, elsewhere."""
    outcome = rewrite_nodes(nodes, options, title, view_args, PASSES_OFFLINE)
    _note_left(outcome.report, outcome.nodes or nodes)
    return outcome


def _note_left(report: Report, nodes) -> None:
    """Says what only passes behind TensorFlow's own optimizers may pack."""
    left = collections.Counter(n.op for n in nodes if n.op in OPS_OF_THE_RUN)
    if left:
        kinds = ", ".join(f"{count} {op}" for op, count in sorted(left.items()))
        report.notes.append(
            f"left to the run: {kinds}. TensorFlow's own optimizers run there first "
            "and regroup float arithmetic: packed before, it would round differently"
        )


@dataclasses.dataclass
class Outcome:
    """Of all passes over one graph: its new nodes, and `moved` of `PassResult`."""

    report: Report
    nodes: list[node_def_pb2.NodeDef] | None = None
    moved: dict[str, str] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def collecting_paused() -> Iterator[None]:
    """Lets no garbage be collected. The objects of a rewrite are many, and go without
    that: searching them for cycles would only cost."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@collecting_paused()
def rewrite_nodes(
    nodes: Iterable[node_def_pb2.NodeDef | Node],
    options: Options,
    title: str,
    view_args: dict,
    passes: tuple[type[Pass], ...] = PASSES,
) -> Outcome:
    """Runs passes over the nodes of one graph.

    A pass that fails leaves the graph as it was: it is in the report, and a
    warning names the pass once per process; with `options.strict` it raises.
    `view_args` are those of `GraphView`.
    """
    started = time.perf_counter()
    before = [node if isinstance(node, Node) else Node(node) for node in nodes]
    report = Report(title, ops_before=_count(before))
    result = Outcome(report)
    after = before
    if not triggers_of(passes).isdisjoint(report.ops_before):
        after = _run(passes, before, options, view_args, result)
    if after is not before:
        result.nodes = [node.node_def for node in after]
    report.ops_after = _count(after)
    for pack in report.packs:
        report._counts_before[pack.name] = ops.pack_counts(pack.name)
    report.seconds = time.perf_counter() - started
    return result


def _run(passes, nodes: list[Node], options, view_args, result: Outcome) -> list[Node]:
    """The nodes behind the passes; `result` is filled in."""
    report = result.report
    view = None
    present = frozenset(report.ops_before)
    for pass_type in passes:
        if pass_type.triggers and present.isdisjoint(pass_type.triggers):
            continue
        try:
            # What one pass found out about a graph that it left alone, the next
            # need not find again.
            view = view or GraphView(nodes, **view_args)
            done = pass_type(options).run(view)
        except Exception as error:
            if options.strict:
                raise
            _warn_once(pass_type.name, error)
            report.failures.append(f"{pass_type.name}: {error!r}")
            view = None
            continue
        report.packs.extend(done.packs)
        report.skipped.extend(done.skipped)
        report.merged += done.merged
        report.handles += done.handles
        if done.nodes is None:
            continue
        nodes, view = done.nodes, None
        present = frozenset(node.op for node in nodes)
        moved = {n: done.moved.get(to, to) for n, to in result.moved.items()}
        result.moved = moved | done.moved
    return nodes


def _count(nodes) -> dict[str, int]:
    return dict(collections.Counter(node.op for node in nodes))


def _warn_once(name: str, error: Exception) -> None:
    if name not in _warned:
        _warned.add(name)
        logging.warning(
            "picasso_tf: pass %s failed and left the graph as it was: %r. "
            "Options(strict=True) raises instead. Said once per process.",
            name,
            error,
        )
