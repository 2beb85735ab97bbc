"""What TensorFlow's optimizers decide by the names of nodes, and by shapes that
they can tell: rewritten graphs have to look alike to them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, check, table, tf1

import picasso_tf


@pytest.mark.parametrize("seed", range(3))
def test_sums_keep_their_order(seed):
    """The inputs of AddN are sorted by name, and the order decides the bits."""
    random = np.random.default_rng(seed)
    names = [f"{'zyxabc'[i % 6]}{i}" for i in random.permutation(14)]
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        tables = [
            tf1.get_variable(
                f"t{i}",
                initializer=random.normal(size=[50, 8]).astype(np.float32),
                use_resource=True,
            )
            for i in range(len(names))
        ]
        parts = []
        for name, variable in zip(names, tables, strict=True):
            with tf1.name_scope(name):
                parts.append(tf.nn.embedding_lookup(variable, ids))
        out = tf.add_n(parts) * 1.0
    report = check(graph, out, {ids: random.integers(0, 50, 300)})
    assert report.ops_before.get("ResourceGather") == len(names)


def test_names_are_taken_away_again():
    """Behind the optimizers nothing but the packed op is left."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        variables = [table(f"t{i}") for i in range(4)]
        out = tf.add_n([tf.nn.embedding_lookup(v, ids) for v in variables])
        init = tf1.global_variables_initializer()
    config = picasso_tf.session_config(options=STRICT)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(init)
        options = tf1.RunOptions(output_partition_graphs=True)
        run = tf1.RunMetadata()
        session.run(out, {ids: [1, 2]}, options=options, run_metadata=run)
    ops = {node.op for part in run.partition_graphs for node in part.node}
    assert "PicassoPackedLookup" in ops
    assert "PicassoResult" not in ops


@pytest.mark.parametrize("bags", [False, True])
def test_arithmetic_behind_lookups_keeps_its_bits(bags):
    """The optimizers regroup factors where they can tell that shapes are equal."""
    graph = tf1.Graph()
    with graph.as_default():
        tables = [table(f"t{i}", rows=20, dim=8) for i in range(3)]
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        rows = [
            tf1.nn.safe_embedding_lookup_sparse(t, ids, combiner="mean")
            if bags
            else tf.nn.embedding_lookup(t, ids.values)
            for t in tables
        ]
        loss = tf.add_n([tf.reduce_sum(tf.sin(x * 3) * x) for x in rows])
        train = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        init = tf1.global_variables_initializer()
        wanted = [loss, *rows]
    random = np.random.default_rng(1)
    value = tf1.SparseTensorValue(
        [[i // 3, i % 3] for i in range(60)], random.integers(0, 20, 60), [20, 3]
    )

    def run(config):
        with tf1.Session(graph=graph, config=config) as session:
            session.run(init)
            for _ in range(6):
                session.run(train, {ids: value})
            return session.run(wanted, {ids: value})

    tf1.set_random_seed(1)
    stock = run(None)
    assert_same(run(picasso_tf.session_config(options=STRICT)), stock)


@pytest.mark.parametrize("count", [2, 5])
def test_sums_wait_for_those_who_ask_for_shapes(count):
    """AddN begins with an input that nobody else holds any more. All outputs of a
    pack are there at once, so who asks for their shape has to come first."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [
            tf.nn.embedding_lookup(table(f"t{i}", rows=50, dim=8), ids)
            for i in range(count)
        ]
        # One of them behind what hands its memory on.
        shapes = [tf.shape(rows[0])[:1], tf.shape(tf.expand_dims(rows[1], 0))[1:2]]
        total = tf.add_n(rows)
        asked = tf.concat(shapes, 0)
        init = tf1.global_variables_initializer()
    config = picasso_tf.session_config(options=STRICT)
    run = tf1.RunMetadata()
    with tf1.Session(graph=graph, config=config) as session:
        session.run(init)
        options = tf1.RunOptions(output_partition_graphs=True)
        feeds = {ids: np.arange(40)}
        session.run([total, asked], feeds, options=options, run_metadata=run)
    nodes = [node for part in run.partition_graphs for node in part.node]
    of_shape = {node.name for node in nodes if node.op == "Shape"}
    (sum_,) = (node for node in nodes if node.op == "AddN")
    assert len(of_shape) == 2
    waits = {edge[1:] for edge in sum_.input if edge[0] == "^"}
    assert waits == (of_shape if count > 2 else set())
    check(graph, [total, asked], {ids: np.arange(40)})
