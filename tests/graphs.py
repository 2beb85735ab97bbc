"""Small graphs, and what tests do with them."""

from __future__ import annotations

import collections

import numpy as np
import tensorflow as tf

import picasso_tf
from picasso_tf.node import Node, tensor_name

tf1 = tf.compat.v1
STRICT = picasso_tf.Options(strict=True)


def table(name: str, rows: int = 10, dim: int = 4, dtype=np.float32) -> tf.Variable:
    """A resource variable with values that tell rows apart."""
    values = np.arange(rows * dim).reshape(rows, dim) / 8 + len(name)
    return tf1.get_variable(
        name, initializer=values.astype(dtype), use_resource=True, dtype=dtype
    )


def run(graph, fetches, feed=None, options=None, steps=1, config=None):
    """The fetches of the last step, by a session with (options) or without."""
    base = config or tf1.ConfigProto()
    if options is not None:
        base = picasso_tf.session_config(base, options)
    with graph.as_default(), tf1.Session(graph=graph, config=base) as session:
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        for _ in range(steps):
            values = session.run(fetches, feed)
        variables = session.run(tf1.global_variables())
    return values, variables


def assert_same(ours, stock) -> None:
    """Equal to the bit, shapes and types included."""
    flat_ours, flat_stock = tf.nest.flatten(ours), tf.nest.flatten(stock)
    assert len(flat_ours) == len(flat_stock)
    for a, b in zip(flat_ours, flat_stock, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == object:  # strings, held by pointers
            assert a.tolist() == b.tolist()
            continue
        assert a.tobytes() == b.tobytes(), np.abs(
            a.astype(np.float64) - b.astype(np.float64)
        ).max()


def check(
    graph, fetches, feed=None, packs: int = 1, steps=1, options=STRICT, kind=None
):
    """Runs with and without picasso_tf; results are equal and packs ran.

    Returns the report. `packs` counts those of one `kind`; None: of any.
    """
    before = {id(report) for report in picasso_tf.reports()}
    ours = run(graph, fetches, feed, options, steps)
    stock = run(graph, fetches, feed, None, steps)
    assert_same(ours, stock)
    made = [r for r in picasso_tf.reports() if id(r) not in before and r.packs]
    counted = [p for r in made for p in r.packs if kind in (None, p.kind)]
    assert len(counted) == packs, [(p.kind, len(p.members)) for p in counted]
    for report in made:
        for pack in report.packs:
            assert report.executions(pack)[0] > 0, f"{pack.name} was never created"
    return made[-1] if made else picasso_tf.last_report()


def ops_of(graph_def) -> collections.Counter:
    return collections.Counter(node.op for node in graph_def.node)


def spell(graph_def, attrs=()) -> str:
    """A graph as text, a line a node in graph order, for golden files."""
    lines = []
    for node in map(Node, graph_def.node):
        edges = [tensor_name(tensor) for tensor in node.inputs]
        edges += ["^" + name for name in sorted(node.controls)]
        chosen = [
            f"{key}={node.attr(key)}"
            for key in attrs
            if node.attr(key) not in (None, [])
        ]
        suffix = f" {{{', '.join(chosen)}}}" if chosen else ""
        lines.append(f"{node.name} = {node.op}({', '.join(edges)}){suffix}")
    return "\n".join(lines) + "\n"
