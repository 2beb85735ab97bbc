"""Ops of a graph, and ops that a step executed."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

# What only names or holds a value is no work; the rest is.
NO_WORK = frozenset({"VarHandleOp", "Const", "Placeholder", "_Arg", "_SOURCE"})


def in_graph(graph_defs: Iterable) -> int:
    """Nodes that the executor is given, after all graph optimizers."""
    return sum(len(graph_def.node) for graph_def in graph_defs)


def in_largest_function(run: Callable[[], object]) -> int:
    """Nodes of the largest function that `run` traces, as `in_graph` counts them."""
    from tensorflow.python.eager import context

    context.enable_graph_collection()
    try:
        run()
        functions = context.export_run_metadata().function_graphs
    finally:
        context.disable_graph_collection()
    return max(in_graph(function.partition_graphs) for function in functions)


def executed(step_stats) -> int:
    """Executed ops of a traced step, without NO_WORK."""
    counts: collections.Counter[str] = collections.Counter()
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            # "name = Op(inputs)"; sources have their bare name.
            label = node.timeline_label.rpartition(" = ")[2] or node.node_name
            counts[label.partition("(")[0]] += 1
    return sum(count for op, count in counts.items() if op not in NO_WORK)
