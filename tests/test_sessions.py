"""The flag in TF1-style sessions: the same numbers, whatever is run how."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import assert_same
from helpers_models import (
    DIMS,
    ROWS,
    ClickGraph,
    RandomGraph,
    assert_all_same,
    click_loss,
    id_batches,
    make_tables,
    needs_estimator,
    packed_config,
    strict,
    v1,
    watch,
)
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2

import picasso_tf

train = v1.train
STEPS = 20
OFF = rewriter_config_pb2.RewriterConfig.OFF
FIELDS = len(ROWS)


# -- training -----------------------------------------------------------------

# The optimizer, and the members that its packed updates have all together.
OPTIMIZERS = {
    "sgd": (functools.partial(train.GradientDescentOptimizer, 0.1), FIELDS),
    "adagrad": (functools.partial(train.AdagradOptimizer, 0.1), FIELDS),
    "momentum": (functools.partial(train.MomentumOptimizer, 0.1, 0.9), FIELDS),
    "nesterov": (
        functools.partial(train.MomentumOptimizer, 0.1, 0.9, use_nesterov=True),
        FIELDS,
    ),
    "ftrl": (
        functools.partial(
            train.FtrlOptimizer,
            0.1,
            l1_regularization_strength=0.01,
            l2_regularization_strength=0.02,
        ),
        FIELDS,
    ),
    "ftrl_shrinkage": (
        functools.partial(
            train.FtrlOptimizer, 0.1, l2_shrinkage_regularization_strength=0.01
        ),
        FIELDS,
    ),
    "rmsprop": (functools.partial(train.RMSPropOptimizer, 0.1, momentum=0.9), FIELDS),
    "adadelta": (functools.partial(train.AdadeltaOptimizer, 0.1), FIELDS),
    "proximal_adagrad": (
        functools.partial(
            train.ProximalAdagradOptimizer, 0.1, l1_regularization_strength=0.01
        ),
        FIELDS,
    ),
    # Its rule is not packed, nor are Adam's dense updates.
    "proximal_sgd": (
        functools.partial(train.ProximalGradientDescentOptimizer, 0.1),
        0,
    ),
    "adam": (functools.partial(train.AdamOptimizer, 0.1), None),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_equals_stock(name):
    optimizer, updates = OPTIMIZERS[name]
    model = ClickGraph(optimizer)
    expected = model.run(None, STEPS)
    with watch() as seen:
        got = model.run(packed_config(), STEPS)
    seen.assert_packed(lookups=FIELDS, updates=updates)
    seen.assert_executed(STEPS)
    assert_all_same(got, expected, name)


def test_adagrad_da_equals_stock():
    def optimizer():
        return train.AdagradDAOptimizer(0.1, train.get_or_create_global_step())

    model = ClickGraph(optimizer)
    expected = model.run(None, STEPS)
    with watch() as seen:
        got = model.run(packed_config(), STEPS)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_gradients_that_are_clipped_and_applied_by_hand(name):
    """compute_gradients, a norm over all of them, apply_gradients."""
    graph = tf.Graph()
    with graph.as_default():
        model_ids = v1.placeholder(tf.int32, [None, FIELDS])
        labels = v1.placeholder(tf.float32, [None])
        tables = make_tables()
        rows = [
            tf.nn.embedding_lookup(t, model_ids[:, i]) for i, t in enumerate(tables)
        ]
        loss = click_loss(rows, labels)
        optimizer = OPTIMIZERS[name][0]()
        pairs = optimizer.compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 0.01)
        apply = optimizer.apply_gradients(
            zip(clipped, [v for _, v in pairs], strict=True)
        )
        init = v1.global_variables_initializer()
        reads = [v.read_value() for v in v1.global_variables()]

    def run(config):
        got = []
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            for ids in id_batches(STEPS):
                feed = {model_ids: ids, labels: np.ones(len(ids))}
                got.extend(session.run([loss, norm, apply], feed)[:2])
            return got + session.run(reads)

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    seen.assert_packed(lookups=FIELDS)
    assert_all_same(got, expected)


def test_table_that_is_also_read_densely():
    """An l2 loss on a table makes its gradient dense; the others stay sparse."""

    def loss(rows, tables, labels):
        return click_loss(rows, labels) + 0.01 * tf.nn.l2_loss(tables[1])

    model = ClickGraph(loss=loss)
    expected = model.run(None, STEPS)
    with watch() as seen:
        got = model.run(packed_config(), STEPS)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS - 1)
    assert_all_same(got, expected)


def test_two_lookups_of_one_table():
    """In one pack, and their gradients are summed before the update."""

    def loss(rows, tables, labels):
        table = tables[0]
        again = tf.nn.embedding_lookup(table, tf.constant([1, 1, 3, 0]))
        return click_loss(rows, labels) + tf.reduce_sum(tf.square(again))

    model = ClickGraph(loss=loss)
    expected = model.run(None, STEPS)
    with watch() as seen:
        got = model.run(packed_config(), STEPS)
    seen.assert_packed(lookups=FIELDS + 1, updates=FIELDS)
    assert_all_same(got, expected)


def test_one_table_in_two_packs():
    """Lookups whose ids come from other lookups are a level behind them."""
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        tables = make_tables()
        first = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        later_ids = tf.cast(tf.abs(first[0][:, 0]) > 0.5, tf.int64)
        second = [tf.nn.embedding_lookup(t, later_ids) for t in tables]
        loss = tf.reduce_sum(tf.square(tf.concat(first + second, axis=1)))
        step = train.GradientDescentOptimizer(0.01).minimize(loss)
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]

    def run(config):
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            losses = [session.run([loss, step], {ids: i})[0] for i in id_batches(STEPS)]
            return losses + session.run(reads)

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    seen.assert_packed(lookups=2 * FIELDS)
    assert sorted(seen.members("lookup")) == [FIELDS, FIELDS]
    assert_all_same(got, expected)


def test_reference_variables_are_left_alone():
    with tf.Graph().as_default():
        tables = [
            v1.get_variable(f"t{i}", [9, 4], use_resource=False) for i in range(3)
        ]
        rows = [tf.nn.embedding_lookup(t, tf.constant([0, 3, 3])) for t in tables]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, axis=1)))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        with watch() as seen, v1.Session(config=packed_config()) as session:
            session.run(v1.global_variables_initializer())
            first = session.run([loss, step])[0]
            assert session.run(loss) < first
    assert not seen.changed()


def test_gradients_colocated_with_their_ops():
    """Nodes that name packed ones in their `_class`."""

    class Colocating(train.AdagradOptimizer):
        def minimize(self, loss):
            return super().minimize(loss, colocate_gradients_with_ops=True)

    model = ClickGraph(lambda: Colocating(0.1))
    expected = model.run(None, 5)
    with watch() as seen:
        got = model.run(packed_config(), 5)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_partitioned_variables(strategy):
    """One lookup of all parts, and an update of each; often of no ids."""
    with tf.Graph().as_default() as graph:
        ids = v1.placeholder(tf.int64, [None, 2])
        rows = []
        for i in range(2):
            table = v1.get_variable(
                f"table_{i}",
                shape=[11, 4],
                initializer=v1.random_normal_initializer(seed=i),
                partitioner=v1.fixed_size_partitioner(3),
                use_resource=True,
            )
            rows.append(
                v1.nn.embedding_lookup(table, ids[:, i], partition_strategy=strategy)
            )
        loss = tf.reduce_sum(tf.square(tf.concat(rows, axis=1)))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
        with tf.control_dependencies([step]):
            reads = [v.read_value() for v in v1.global_variables()]
    feeds = [{ids: batch} for batch in id_batches(4, rows=(11, 11))]
    feeds.append({ids: [[0, 10]]})
    seen = run_both(graph, [loss, *rows, *reads], feeds, init, lookups=2)
    seen.assert_packed(updates=6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_bags(combiner):
    """Lookups of unique ids within safe_embedding_lookup_sparse, with empty rows;
    and one with max_norm, whose rows have several readers."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        bags = [v1.sparse_placeholder(tf.int64, [None, None]) for _ in tables]
        pooled = [
            tf.nn.safe_embedding_lookup_sparse(t, bag, combiner=combiner)
            for t, bag in zip(tables, bags, strict=True)
        ]
        clipped = tf.nn.embedding_lookup(tables[0], tf.constant([1, 5]), max_norm=0.5)
        loss = tf.reduce_sum(tf.square(tf.concat(pooled, axis=1)))
        loss += tf.reduce_sum(tf.square(clipped))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
        with tf.control_dependencies([step]):
            reads = [t.read_value() for t in tables]
    feeds = []
    for batch in id_batches(3, batch=6):
        # The third of five rows is empty.
        where = [[0, 0], [0, 1], [1, 0], [3, 0], [4, 0], [4, 1]]
        feeds.append(
            {
                bag: v1.SparseTensorValue(where, batch[:, i], [5, 2])
                for i, bag in enumerate(bags)
            }
        )
    seen = run_both(graph, [loss, *pooled, clipped, *reads], feeds, init)
    seen.assert_packed()


# -- fetching, feeding and calling --------------------------------------------


class Fields:
    """Lookups with a placeholder each, by tf.nn.embedding_lookup and tf.gather."""

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            tables = make_tables()
            self.ids = [v1.placeholder(tf.int64, [None], f"ids_{i}") for i in range(4)]
            self.columns = [tf.abs(ids) for ids in self.ids]
            self.rows = [
                lookup(table, ids)
                for lookup, table, ids in zip(
                    (tf.nn.embedding_lookup, tf.gather) * 2,
                    tables,
                    self.columns,
                    strict=True,
                )
            ]
            self.joined = tf.concat(self.rows, axis=-1)
            self.loss = tf.reduce_sum(tf.square(self.joined), axis=1)
            self.train = train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(self.loss))
            self.init = v1.global_variables_initializer()
            self.reads = [v.read_value() for v in v1.global_variables()]
        batch = id_batches(1)[0]
        self.feed = {ids: batch[:, i] for i, ids in enumerate(self.ids)}

    def both(self, fetches, feed=None, lookups: int = FIELDS, runs: int = 3):
        """Runs the same with and without the flag, and compares. With -1 lookups
        they may be packed or not."""
        feed = self.feed if feed is None else feed

        def run(config):
            got = []
            with v1.Session(graph=self.graph, config=config) as session:
                session.run(self.init)
                for _ in range(runs):
                    got.extend(session.run(fetches, feed))
                return got + session.run(self.reads)

        fetches = [*fetches]
        expected = run(None)
        with watch() as seen:
            got = run(packed_config())
        if lookups > 0:
            seen.assert_packed(lookups=lookups)
            seen.assert_executed(runs)
        elif lookups == 0:
            assert not seen.packs("lookup"), seen.text()
        kept = [(a, b) for a, b in zip(got, expected, strict=True) if b is not None]
        assert_all_same([a for a, _ in kept], [b for _, b in kept])
        return seen


@pytest.fixture(scope="module")
def fields():
    return Fields()


def gather_of(rows: tf.Tensor) -> tf.Tensor:
    """The ResourceGather's own output."""
    op = rows.op
    while op.type == "Identity":
        op = op.inputs[0].op
    assert op.type == "ResourceGather"
    return op.outputs[0]


def test_a_fetched_lookup(fields):
    """The gather itself, and the Identity behind the gather."""
    assert fields.rows[0].op.type == "Identity"
    assert fields.rows[1].op.type == "ResourceGather"
    fields.both([fields.rows[0], fields.rows[1], fields.loss])
    fields.both([gather_of(fields.rows[0]), fields.loss, fields.train])


def test_all_that_is_there_fetched(fields):
    gathers = [gather_of(rows) for rows in fields.rows]
    fields.both([*gathers, *fields.rows, fields.joined, fields.loss, fields.train])


def test_a_fetched_join(fields):
    fields.both([fields.joined])
    fields.both([fields.joined, fields.train])


def test_an_op_fetched_for_its_effect(fields):
    """session.run(op) returns None; a gather runs for its check of ids."""
    fields.both([fields.rows[1].op, fields.loss])
    fields.both([fields.joined.op, fields.train])


def test_fetched_update_ops(fields):
    """All ops of one kind are fetched by name, and two of them alone."""
    updates = [
        op
        for op in fields.graph.get_operations()
        if op.type == "ResourceSparseApplyAdagrad"
    ]
    assert len(updates) == FIELDS
    seen = fields.both(updates)
    assert seen.members("update") == [FIELDS]
    seen = fields.both(updates[1:3])
    assert seen.members("update") == [2]


def test_one_field_needs_only_its_own_placeholder(fields):
    one = {fields.ids[2]: fields.feed[fields.ids[2]]}
    fields.both([fields.rows[2]], one, lookups=0)
    fields.both([fields.rows[2], gather_of(fields.rows[2])], one, lookups=0)


def test_two_fields_need_only_their_placeholders(fields):
    two = {ids: fields.feed[ids] for ids in fields.ids[1:3]}
    fields.both([fields.rows[1], fields.rows[2]], two, lookups=2)


def test_fed_ids(fields):
    """What is before a fed tensor does not run, nor need its placeholder."""
    batch = id_batches(1, seed=5)[0]
    feed = {column: batch[:, i] for i, column in enumerate(fields.columns)}
    fields.both([fields.loss, fields.train], feed)


def test_fed_placeholder_with_default():
    """A keep probability, a training flag, the shape of a sparse placeholder."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        scale = v1.placeholder_with_default(tf.constant(1.0), [])
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        loss = tf.reduce_sum(tf.square(scale * tf.concat(rows, axis=1)))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
    batch = id_batches(1)[0]
    for feed in ({ids: batch}, {ids: batch, scale: 0.5}):
        seen = run_both(graph, [loss, step], [feed] * 3, init, lookups=FIELDS)
        seen.assert_packed(updates=FIELDS)
        seen.assert_executed(3)


def test_fed_rows(fields):
    """A lookup that is fed is none; the others are packed all the same."""
    values = np.full([16, 4], 0.5, np.float32)
    for tensor in (gather_of(fields.rows[0]), fields.rows[0], fields.rows[1]):
        feed = fields.feed | {tensor: values}
        fields.both([fields.loss, fields.joined], feed, lookups=3)
    # Its placeholder is not needed either.
    feed = fields.feed | {fields.rows[1]: values}
    del feed[fields.ids[1]]
    fields.both([fields.loss], feed, lookups=3)


def test_fed_and_fetched(fields):
    values = np.full([16, 4], 0.5, np.float32)
    feed = fields.feed | {fields.rows[1]: values}
    fields.both([fields.rows[1], fields.rows[0], fields.loss], feed, lookups=3)


def test_fed_join(fields):
    feed = {fields.joined: np.full([3, 20], 0.25, np.float32)}
    fields.both([fields.loss], feed, lookups=0)


def test_fed_join_that_is_fetched(fields):
    feed = fields.feed | {fields.joined: np.full([16, 20], 0.25, np.float32)}
    fields.both([fields.joined, fields.loss, *fields.rows[:2]], feed, lookups=2)
    fields.both([fields.joined, fields.loss, *fields.rows], feed)
    # A gradient asks for the shapes of the rows, which TensorFlow may find without.
    seen = fields.both([fields.joined, fields.loss, fields.train], feed, lookups=-1)
    assert seen.members("update") == [FIELDS]


def test_fed_join_between_lookups():
    """What is fed depends on lookups by edges that TensorFlow has not cut yet:
    in one pack, those before and those behind would make a cycle."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        before = [tf.gather(t, ids[:, i]) for i, t in enumerate(tables)]
        joined = tf.concat(before, axis=1)
        later = tf.cast(tf.abs(joined[:, 0]), tf.int64) % 7
        behind = [tf.gather(t, later) for t in tables]
        init = v1.global_variables_initializer()
    batch = id_batches(1)[0]
    feed = {ids: batch, joined: np.full([16, 20], 3.0, np.float32)}
    seen = run_both(graph, [*before, *behind], [feed] * 2, init, lookups=2 * FIELDS)
    seen.assert_packed()


def test_fed_join_beside_fetched_rows(fields):
    """The rows are wanted, but not through the concatenation."""
    feed = fields.feed | {fields.joined: np.full([3, 20], 0.25, np.float32)}
    fields.both([fields.loss, *fields.rows], feed)


def test_many_sets_of_fetches_in_one_session(fields):
    """Each is a graph of its own, with packs of its own."""
    wanted = [
        [fields.loss],
        [fields.loss, fields.rows[0]],
        [fields.rows[1], fields.rows[3]],
        [fields.train, fields.loss],
        [fields.loss],
    ]

    def run(config):
        got = []
        with v1.Session(graph=fields.graph, config=config) as session:
            session.run(fields.init)
            for fetches in wanted * 2:
                got.extend(session.run(fetches, fields.feed))
        return [value for value in got if value is not None]

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    seen.assert_packed()
    assert sorted(seen.members("lookup")) == [2, 4, 4, 4]
    assert_all_same(got, expected)


def test_make_callable():
    model = ClickGraph()
    feeds = model.feeds(STEPS)

    def run(config):
        with v1.Session(graph=model.graph, config=config) as session:
            session.run(model.init)
            step = session.make_callable(
                [model.loss, model.train], feed_list=[model.ids, model.labels]
            )
            losses = [step(feed[model.ids], feed[model.labels])[0] for feed in feeds]
            return losses + session.run(model.reads)

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    seen.assert_executed(STEPS)
    assert_all_same(got, expected)


def test_make_callable_from_options():
    model = ClickGraph()
    options = config_pb2.CallableOptions(
        feed=[model.ids.name, model.labels.name],
        fetch=[model.loss.name],
        target=[model.train.name],
    )

    def run(config):
        with v1.Session(graph=model.graph, config=config) as session:
            session.run(model.init)
            step = session._make_callable_from_options(options)
            losses = [
                step(feed[model.ids], feed[model.labels])[0] for feed in model.feeds(5)
            ]
            return losses + session.run(model.reads)

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


def test_the_graph_that_runs_has_a_tenth_of_the_ops():
    """What TensorFlow itself says it ran, in the run's metadata."""
    model = ClickGraph()
    options = v1.RunOptions(output_partition_graphs=True)
    ops = {}
    for name, config in (("stock", None), ("packed", packed_config())):
        with v1.Session(graph=model.graph, config=config) as session:
            session.run(model.init)
            metadata = v1.RunMetadata()
            session.run([model.loss, model.train], model.feeds(1)[0], options, metadata)
        ops[name] = [n.op for g in metadata.partition_graphs for n in g.node]
    assert ops["stock"].count("ResourceGather") == FIELDS
    assert ops["stock"].count("ResourceSparseApplyAdagrad") == FIELDS
    assert "ResourceGather" not in ops["packed"]
    assert "ResourceSparseApplyAdagrad" not in ops["packed"]
    assert ops["packed"].count("PicassoPackedLookup") == 1
    assert ops["packed"].count("PicassoPackedUpdate") == 1
    assert len(ops["packed"]) < len(ops["stock"])


def test_bad_ids_raise_as_stock_does(fields):
    feed = fields.feed | {fields.ids[1]: np.array([0, 50])}
    for config in (None, packed_config()):
        with v1.Session(graph=fields.graph, config=config) as session:
            session.run(fields.init)
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"indices\[1\] = 50 is not in \[0, 50\)",
            ):
                session.run(fields.rows, feed)
            # The session lives on.
            session.run(fields.rows, fields.feed)


def test_uninitialized_variables_raise_as_stock_does(fields):
    raised = []
    for config in (None, packed_config()):
        with (
            v1.Session(graph=fields.graph, config=config) as session,
            pytest.raises(tf.errors.OpError, match="table_") as caught,
        ):
            session.run(fields.loss, fields.feed)
        raised.append(type(caught.value))
    assert raised[0] is raised[1]


# -- several sessions, graphs and devices -------------------------------------


def test_two_sessions_on_one_graph():
    """With and without the flag at once, taking turns."""
    model = ClickGraph()
    expected = model.run(None, 6)
    feeds = model.feeds(6)
    with (
        watch() as seen,
        v1.Session(graph=model.graph) as stock,
        v1.Session(graph=model.graph, config=packed_config()) as one,
        v1.Session(graph=model.graph, config=packed_config()) as two,
    ):
        sessions = {"stock": stock, "one": one, "two": two}
        losses = {name: [] for name in sessions}
        for session in sessions.values():
            session.run(model.init)
        for feed in feeds:
            for name, session in sessions.items():
                losses[name].append(session.run([model.loss, model.train], feed)[0])
        for name, session in sessions.items():
            got = losses[name] + session.run(model.reads)
            assert_all_same(got, expected, name)
    assert len(seen.changed()) == 2
    seen.assert_packed()


def test_two_graphs():
    """Equal graphs, equal names: their variables stay apart."""
    models = [ClickGraph(), ClickGraph()]
    expected = [models[0].run(None, 4), models[1].run(None, 4)]
    with watch() as seen:
        sessions = [v1.Session(graph=m.graph, config=packed_config()) for m in models]
        losses = [[], []]
        for model, session in zip(models, sessions, strict=True):
            session.run(model.init)
        for step in range(4):
            for i, model in enumerate(models):
                feed = model.feeds(4)[step]
                losses[i].append(sessions[i].run([model.loss, model.train], feed)[0])
        got = [
            losses[i] + sessions[i].run(model.reads) for i, model in enumerate(models)
        ]
        for session in sessions:
            session.close()
    assert len(seen.changed()) == 2
    seen.assert_packed()
    for i in range(2):
        assert_all_same(got[i], expected[i], f"graph {i}")


def test_devices_are_not_mixed():
    with tf.Graph().as_default():
        rows = []
        for device in ("/cpu:0", "/cpu:1"):
            with tf.device(device):
                rows.extend(
                    tf.nn.embedding_lookup(table, tf.constant([1, 2, 0]))
                    for table in make_tables(prefix=device[1:4] + device[-1])
                )
        base = v1.ConfigProto(device_count={"CPU": 2})

        def run(config):
            with v1.Session(config=config) as session:
                session.run(v1.global_variables_initializer())
                return session.run(rows)

        expected = run(base)
        with watch() as seen:
            got = run(packed_config(base))
    assert seen.members("lookup") == [FIELDS, FIELDS]
    seen.assert_packed()
    assert_all_same(got, expected)


def test_many_threads_in_one_session(fields):
    """Each with a batch of its own."""
    batches = id_batches(8)
    wrong = []
    with (
        watch() as seen,
        v1.Session(graph=fields.graph, config=packed_config()) as session,
    ):
        session.run(fields.init)
        tables = session.run(fields.reads)[:FIELDS]

        def call(batch):
            feed = {ids: batch[:, i] for i, ids in enumerate(fields.ids)}
            rows = [table[batch[:, i]] for i, table in enumerate(tables)]
            for _ in range(10):
                got = session.run(fields.joined, feed)
                if not np.array_equal(got, np.concatenate(rows, axis=1)):
                    wrong.append(batch)

        threads = [threading.Thread(target=call, args=[batch]) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    seen.assert_packed()


def test_session_of_a_server():
    """Through gRPC to a server in this process, as parameter servers have it."""
    server = tf.distribute.Server.create_local_server()
    model = ClickGraph()
    expected = model.run(None, 5)
    with (
        watch() as seen,
        v1.Session(server.target, model.graph, packed_config()) as session,
    ):
        session.run(model.init)
        got = model.fit(session, 5) + session.run(model.reads)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


# -- the configuration --------------------------------------------------------


def user_config() -> v1.ConfigProto:
    """A configuration with a bit of everything."""
    base = v1.ConfigProto(
        allow_soft_placement=True,
        intra_op_parallelism_threads=1,
        device_count={"CPU": 2},
    )
    base.experimental.executor_type = "DEFAULT"
    base.graph_options.optimizer_options.global_jit_level = -1
    rewriter = base.graph_options.rewrite_options
    rewriter.remapping = OFF
    rewriter.min_graph_nodes = 7
    rewriter.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    return base


def test_config_keeps_what_the_user_set():
    base = user_config()
    before = base.SerializeToString(deterministic=True)
    config = picasso_tf.session_config(base)
    assert base.SerializeToString(deterministic=True) == before
    assert config.allow_soft_placement
    assert config.intra_op_parallelism_threads == 1
    assert dict(config.device_count) == {"CPU": 2}
    assert config.experimental.executor_type == "DEFAULT"
    assert config.graph_options.optimizer_options.global_jit_level == -1
    rewriter = config.graph_options.rewrite_options
    assert rewriter.remapping == OFF
    assert rewriter.min_graph_nodes == 7


def test_config_of_a_config_is_the_same():
    for base in (None, v1.ConfigProto(), user_config()):
        once = picasso_tf.session_config(base)
        twice = picasso_tf.session_config(once)
        assert twice == once
        other = picasso_tf.session_config(once, strict(exclude=["table_0"]))
        assert other == picasso_tf.session_config(base, strict(exclude=["table_0"]))


def test_config_keeps_the_users_own_optimizers():
    """They run behind ours, as they would without us."""
    base = v1.ConfigProto()
    rewriter = base.graph_options.rewrite_options
    rewriter.optimizers.extend(["pruning", "constfold"])
    rewriter.custom_optimizers.add(name="debug_stripper")
    before = base.SerializeToString(deterministic=True)
    model = ClickGraph()
    with model.graph.as_default():
        assertion = v1.assert_greater(model.loss, 1e9)
    with model.graph.as_default(), tf.control_dependencies([assertion]):
        checked = tf.identity(model.loss, name="checked")
    feed = model.feeds(1)[0]
    with watch() as seen:
        for config in (base, packed_config(base)):
            with v1.Session(graph=model.graph, config=config) as session:
                session.run(model.init)
                # The assertion fails, unless it was stripped.
                session.run(checked, feed)
    seen.assert_packed(lookups=FIELDS)
    assert base.SerializeToString(deterministic=True) == before


def test_config_with_the_meta_optimizer_off():
    base = v1.ConfigProto()
    base.graph_options.rewrite_options.disable_meta_optimizer = True
    model = ClickGraph()
    expected = model.run(base, 3)
    with watch() as seen:
        got = model.run(packed_config(base), 3)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


def test_config_works_for_small_graphs():
    """Two lookups and nothing else are few nodes for Grappler."""
    with tf.Graph().as_default():
        tables = make_tables()[:2]
        rows = [tf.gather(t, [0, 1]) for t in tables]
        with watch() as seen, v1.Session(config=packed_config()) as session:
            session.run(v1.global_variables_initializer())
            got = session.run(rows)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            expected = session.run(rows)
    seen.assert_packed(lookups=2)
    assert_all_same(got, expected)


def test_config_needs_no_strict():
    """As users have it: the default options."""
    model = ClickGraph()
    expected = model.run(None, 3)
    with watch() as seen:
        got = model.run(picasso_tf.session_config(), 3)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    assert_all_same(got, expected)


def test_excluded_variables():
    model = ClickGraph()
    expected = model.run(None, 5)
    with watch() as seen:
        got = model.run(packed_config(exclude=["^table_[01]$"]), 5)
    seen.assert_packed(lookups=2, updates=2)
    assert_all_same(got, expected)
    assert "excluded by Options.exclude" in seen.reasons()
    skipped = [s for r in seen.changed() for s in r.skipped]
    assert {s.op for s in skipped} == {
        "ResourceGather",
        "ResourceSparseApplyAdagrad",
    }
    assert len(skipped) == 4


def test_everything_excluded():
    model = ClickGraph()
    expected = model.run(None, 5)
    with watch() as seen:
        got = model.run(packed_config(exclude=["."]), 5)
    assert not seen.changed()
    assert seen.reasons() == {"excluded by Options.exclude"}
    assert_all_same(got, expected)


def test_heavy_packs_are_cut():
    """Each id is one row of 4 floats, or 8 in the third field."""
    model = ClickGraph()
    expected = model.run(None, 5)
    rows = 1024  # assumed, where the batch size is not known
    with watch() as seen:
        got = model.run(packed_config(max_pack_volume=2 * rows * 4 * 4), 5)
    seen.assert_packed()
    assert seen.members("lookup") == [2]  # then one of 8 floats, then one alone
    assert seen.members("update") == [2, 1, 1]  # sums and update: worth a pack
    assert_all_same(got, expected)
    with watch() as seen:
        got = model.run(packed_config(max_pack_volume=3 * rows * 4 * 4), 5)
    assert seen.members("lookup") == [2, 2]
    assert seen.members("update") == [2, 2]
    assert all(p.volume <= 3 * rows * 4 * 4 for p in seen.packs())
    assert_all_same(got, expected)


# -- control flow -------------------------------------------------------------


def run_both(graph, fetches, feeds, init, lookups=None, **options):
    """Runs the fetches for each feed, both ways; returns what was seen."""

    def run(config):
        got = []
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            for feed in feeds:
                got.extend(session.run(fetches, feed))
        return [value for value in got if value is not None]

    expected = run(None)
    with watch() as seen:
        got = run(packed_config(**options))
    assert_all_same(got, expected)
    if lookups is not None:
        assert sum(seen.members("lookup")) == lookups, seen.text()
    return seen


@pytest.fixture(params=["v1", "v2"])
def control_flow(request):
    """Control flow as TF1 builds it (Switch, Enter) or TF2 (If, While)."""
    switch = {"v1": v1.disable_control_flow_v2, "v2": v1.enable_control_flow_v2}
    before = "v2" if v1.control_flow_v2_enabled() else "v1"
    switch[request.param]()
    yield request.param
    switch[before]()


def test_cond_with_lookups_in_both_branches(control_flow):
    """Lookups of a branch that is not taken do not run, nor stop the others.

    The branch's ids are out of range where it is not taken.
    """
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        which = v1.placeholder(tf.bool, [])
        ids = v1.placeholder(tf.int64, [None])
        outside = [tf.nn.embedding_lookup(t, ids) for t in tables[:2]]
        branch = tf.cond(
            which,
            lambda: tf.concat(
                [tf.nn.embedding_lookup(t, ids + 1) for t in tables[:2]], 1
            ),
            lambda: tf.concat(
                [tf.nn.embedding_lookup(t, ids * 2) for t in tables[:2]], 1
            ),
        )
        total = tf.concat([*outside, branch], axis=1)
        loss = tf.reduce_sum(tf.square(total))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]
    # 3 * 2 = 6 is in range, 6 + 1 = 7 is not.
    feeds = [
        {which: False, ids: [0, 1, 2, 3]},
        {which: True, ids: [5, 5, 1, 0]},
        {which: False, ids: [3, 3, 0, 0]},
    ]
    seen = run_both(graph, [total, loss, step], feeds, init)
    outer = seen.members("lookup")
    assert 2 in outer and all(size == 2 for size in outer), seen.text()
    seen = run_both(graph, [total, *reads], feeds, init)
    # A bad id in the taken branch is an error, in the other it is not.
    with v1.Session(graph=graph, config=packed_config()) as session:
        session.run(init)
        session.run(total, {which: False, ids: [3]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="= 7 is not in"):
            session.run(total, {which: True, ids: [6]})


@pytest.mark.parametrize("taken", [True, False])
def test_cond_whose_ids_come_from_outside(control_flow, taken):
    """All lookups read one placeholder, but lookups of a cond are not joined
    with those outside: with a dead member, a pack would be dead as a whole."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        which = v1.placeholder(tf.bool, [])
        ids = v1.placeholder(tf.int64, [None])
        outside = [tf.nn.embedding_lookup(t, ids) for t in tables[:2]]
        inside = tf.cond(
            which,
            lambda: (
                tf.nn.embedding_lookup(tables[2], ids)
                + tf.concat([tf.nn.embedding_lookup(tables[3], ids)] * 2, 1)
            ),
            lambda: tf.zeros([tf.shape(ids)[0], 8]),
        )
        loss = tf.reduce_sum(tf.concat([*outside, inside], axis=1) ** 2)
        step = train.GradientDescentOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]
    feeds = [{which: taken, ids: [0, 4, 4]}, {which: not taken, ids: [1, 1, 2]}]
    feeds += feeds
    seen = run_both(graph, [*outside, inside, loss, step], feeds, init)
    assert seen.changed()
    assert all(
        len({"cond" in member for member in pack.members}) == 1
        for pack in seen.packs("lookup")
    ), seen.text()
    run_both(graph, [loss, *reads], feeds, init)


def test_cond_first_branch_not_taken_is_packed(control_flow):
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        which = v1.placeholder(tf.bool, [])
        ids = v1.placeholder(tf.int64, [None])
        rows = tf.cond(
            which,
            lambda: [tf.nn.embedding_lookup(t, ids) for t in tables],
            lambda: [tf.nn.embedding_lookup(t, ids + 1) for t in tables],
        )
        init = v1.global_variables_initializer()
    feeds = [{which: False, ids: [0, 5]}, {which: True, ids: [6, 6]}]
    seen = run_both(graph, rows, feeds, init)
    assert seen.members("lookup") == [FIELDS, FIELDS], seen.text()
    seen.assert_packed()
    seen.assert_executed(1)


def test_lookups_in_a_while_loop(control_flow):
    """Packed within the loop; executed once per turn."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None])
        turns = v1.placeholder(tf.int32, [])

        def body(i, total):
            now = (ids + tf.cast(i, tf.int64)) % 7
            rows = [tf.nn.embedding_lookup(t, now) for t in tables]
            return i + 1, total + tf.concat(rows, axis=1)

        _, total = tf.while_loop(
            lambda i, _: i < turns,
            body,
            [0, tf.zeros([tf.shape(ids)[0], 20])],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 20])],
        )
        outside = [tf.nn.embedding_lookup(t, ids) for t in tables]
        init = v1.global_variables_initializer()
    feeds = [{ids: [0, 6, 3], turns: 5}, {ids: [1], turns: 0}]
    seen = run_both(graph, [total, *outside], feeds, init, lookups=2 * FIELDS)
    assert seen.members("lookup") == [FIELDS, FIELDS]
    seen.assert_packed()
    runs = sorted(r.executions(p)[1] for r in seen.changed() for p in r.packs)
    assert runs == [2, 5]


def test_training_through_a_while_loop(control_flow):
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [3])

        def body(i, total):
            now = (ids + tf.cast(i, tf.int64)) % 7
            rows = [tf.nn.embedding_lookup(t, now) for t in tables]
            return i + 1, total + tf.concat(rows, axis=1)

        _, total = tf.while_loop(
            lambda i, _: i < 3, body, (0, tf.zeros([3, 20])), maximum_iterations=3
        )
        loss = tf.reduce_sum(tf.square(total))
        step = train.GradientDescentOptimizer(0.01).minimize(loss)
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]
    feeds = [{ids: [0, 6, 3]}, {ids: [1, 1, 1]}, {ids: [2, 3, 4]}]
    seen = run_both(graph, [loss, step], feeds, init)
    assert seen.packs("lookup"), seen.text()
    run_both(graph, [loss, *reads], feeds, init)


def test_training_beside_a_while_loop(control_flow):
    """Updates outside of a loop whose gradients depend on lookups inside."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None])
        outside = [tf.nn.embedding_lookup(t, ids) for t in tables]

        def body(i, total):
            return i + 1, total + tf.nn.embedding_lookup(tables[0], ids)

        _, total = tf.while_loop(
            lambda i, _: i < 3,
            body,
            (0, tf.zeros([tf.shape(ids)[0], 4])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 4])),
        )
        total = tf.stop_gradient(total)
        loss = tf.reduce_sum(tf.concat([*outside, total], axis=1) ** 2)
        loss *= tf.reduce_mean(total)
        step = train.AdagradOptimizer(0.01).minimize(loss)
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]
    feeds = [{ids: [0, 6, 3]}, {ids: [1, 1]}, {ids: [2, 3, 4]}]
    seen = run_both(graph, [loss, *outside, step], feeds, init)
    seen.assert_packed(updates=FIELDS)
    run_both(graph, [loss, *reads], feeds, init)


def adagrad_writes(tables, slots, grads, ids) -> list[tf.Operation]:
    """Stock's sparse updates, without an optimizer around them."""
    return [
        tf.raw_ops.ResourceSparseApplyAdagrad(
            var=table.handle, accum=slot.handle, lr=0.1, grad=grad, indices=ids[:, i]
        )
        for i, (table, slot, grad) in enumerate(zip(tables, slots, grads, strict=True))
    ]


def make_slots() -> list[tf.Variable]:
    return [
        v1.get_variable(
            f"slot_{i}", initializer=tf.fill([rows, dim], 0.1), use_resource=True
        )
        for i, (rows, dim) in enumerate(zip(ROWS, DIMS, strict=True))
    ]


def test_training_inside_of_a_while_loop(control_flow):
    """Gradients within the body, of what was read inside and outside of it."""
    with tf.Graph().as_default() as graph:
        tables, slots = make_tables(), make_slots()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        kernel = v1.get_variable(
            "kernel", initializer=tf.ones([24, 1]) * 0.1, use_resource=True
        )
        outside = tf.nn.embedding_lookup(tables[0], ids[:, 0])
        weights = kernel.read_value() + tf.reduce_mean(outside)

        def body(i, total):
            rows = [tf.nn.embedding_lookup(t, ids[:, j]) for j, t in enumerate(tables)]
            joined = tf.concat([*rows, outside], axis=1)
            score = tf.linalg.matmul(joined, weights)
            score = tf.cond(total < 50.0, lambda: score, lambda: 0.5 * score)
            loss = tf.reduce_sum(tf.square(score))
            grads = v1.gradients(loss, rows, gate_gradients=True)
            writes = adagrad_writes(tables, slots, grads, ids)
            with tf.control_dependencies(writes):
                return i + 1, total + loss

        _, total = tf.while_loop(
            lambda i, _: i < 4, body, (0, tf.constant(0.0)), parallel_iterations=1
        )
        with tf.control_dependencies([total]):
            reads = [t.read_value() for t in (*tables, *slots)]
        init = v1.global_variables_initializer()
    feeds = [{ids: batch} for batch in id_batches(3)]
    seen = run_both(graph, [total, *reads], feeds, init)
    assert seen.packs("lookup") and seen.packs("update"), seen.text()
    seen.assert_packed()


def test_training_inside_of_a_branch(control_flow):
    """An optimizer's step within a cond, with lookups outside of it."""
    with tf.Graph().as_default() as graph:
        tables, slots = make_tables(), make_slots()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        which = v1.placeholder(tf.bool, [])
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, axis=1)))
        grads = v1.gradients(loss, rows, gate_gradients=True)

        def update():
            writes = adagrad_writes(tables, slots, grads, ids)
            with tf.control_dependencies(writes):
                return tf.constant(1)

        updated = tf.cond(which, update, lambda: tf.constant(0))
        with tf.control_dependencies([updated]):
            reads = [t.read_value() for t in (*tables, *slots)]
        init = v1.global_variables_initializer()
    batches = zip(id_batches(4), (True, False) * 2, strict=True)
    feeds = [{ids: batch, which: flag} for batch, flag in batches]
    seen = run_both(graph, [loss, updated, *reads], feeds, init, lookups=FIELDS)
    assert seen.packs("update"), seen.text()


def test_updates_in_a_while_loop(control_flow):
    """Each turn looks up what the turn before has written."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None])

        def body(i, total):
            rows = [tf.nn.embedding_lookup(t, ids) for t in tables]
            with tf.control_dependencies(rows):
                writes = [
                    tf.raw_ops.ResourceScatterSub(
                        resource=t.handle, indices=ids, updates=0.1 * row
                    )
                    for t, row in zip(tables, rows, strict=True)
                ]
            with tf.control_dependencies(writes):
                return i + 1, total + tf.concat(rows, axis=1)

        _, total = tf.while_loop(
            lambda i, _: i < 4,
            body,
            [0, tf.zeros([2, 20])],
            parallel_iterations=1,
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 20])],
        )
        with tf.control_dependencies([total]):
            reads = [t.read_value() for t in tables]
        init = v1.global_variables_initializer()
    seen = run_both(graph, [total, *reads], [{ids: [0, 3]}, {ids: [5, 1]}], init)
    assert seen.changed(), seen.text()


# -- order --------------------------------------------------------------------


def test_lookups_before_and_behind_an_assignment():
    """By control edges; the values are those before and those behind."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = tf.constant([0, 1, 1])
        before = [tf.nn.embedding_lookup(t, ids) for t in tables]
        with tf.control_dependencies(before):
            writes = [t.assign(t * 2.0 + 1.0).op for t in tables]
        with tf.control_dependencies(writes):
            behind = [tf.nn.embedding_lookup(t, ids) for t in tables]
        init = v1.global_variables_initializer()
    seen = run_both(graph, [*before, *behind], [None] * 5, init, lookups=2 * FIELDS)
    assert seen.members("lookup") == [FIELDS, FIELDS]
    seen.assert_packed()


def test_lookups_behind_one_tables_assignment():
    """One lookup waits; the lookups that do not are not held back by it, nor is
    it run with them."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = tf.constant([0, 1, 1])
        before = [tf.nn.embedding_lookup(t, ids) for t in tables]
        with tf.control_dependencies([before[0]]):
            write = tables[0].assign(tables[0] + 1.0).op
        with tf.control_dependencies([write]):
            behind = tf.nn.embedding_lookup(tables[0], ids)
        total = tf.concat([*before, behind], axis=1)
        init = v1.global_variables_initializer()
    seen = run_both(graph, [total], [None] * 5, init, lookups=FIELDS)
    assert seen.members("lookup") == [FIELDS]


def test_write_between_two_lookups_of_a_table_and_updates():
    """scatter_add, lookup, scatter_add, lookup: one chain per table."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = tf.constant([0, 1, 1])
        out = []
        waits = []
        for turn in range(3):
            with tf.control_dependencies(waits):
                rows = [tf.nn.embedding_lookup(t, ids) for t in tables]
            with tf.control_dependencies(rows):
                waits = [
                    tf.raw_ops.ResourceScatterAdd(
                        resource=t.handle, indices=ids, updates=row * (turn + 1.0)
                    )
                    for t, row in zip(tables, rows, strict=True)
                ]
            out.extend(rows)
        with tf.control_dependencies(waits):
            out.extend(t.read_value() for t in tables)
        init = v1.global_variables_initializer()
    seen = run_both(graph, out, [None] * 5, init, lookups=3 * FIELDS)
    assert seen.members("lookup") == [FIELDS] * 3
    assert seen.members("update") == [FIELDS] * 3
    seen.assert_packed()


def test_update_that_a_later_lookup_waits_for():
    """Train, then look up the new rows in the same step."""
    model = ClickGraph()
    with model.graph.as_default(), tf.control_dependencies([model.train]):
        fresh = [
            tf.nn.embedding_lookup(t, model.ids[:, i])
            for i, t in enumerate(model.tables)
        ]
        fresh = tf.concat(fresh, axis=1)
    feeds = model.feeds(5)
    seen = run_both(model.graph, [model.loss, fresh], feeds, model.init)
    assert seen.members("lookup") == [FIELDS, FIELDS]
    assert seen.members("update") == [FIELDS]
    seen.assert_packed()
    seen.assert_executed(5)


def slow_one(wait: float = 0.2) -> tf.Tensor:
    """1.0, but late: who does not wait for it is sure to be earlier."""

    def sleep():
        time.sleep(wait)
        return np.float32(1.0)

    return v1.py_func(sleep, [], tf.float32)


@pytest.mark.parametrize("ids_are", ["columns", "reshaped", "expanded", "constant"])
def test_lookup_whose_constants_wait(ids_are):
    """tf.gather(t, tf.constant(...)) behind an assignment: TensorFlow gives the
    control edge to the constants, for the others depend on them anyway."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        late = slow_one()
        writes = [t.assign(t + late).op for t in tables]
        with tf.control_dependencies(writes):
            of_field = {
                "columns": lambda i: ids[:, i],
                "reshaped": lambda i: tf.reshape(ids, [-1]),
                "expanded": lambda i: tf.expand_dims(ids, 1),
                "constant": lambda i: tf.constant([1, 0]),
            }[ids_are]
            rows = [tf.gather(t, of_field(i)) for i, t in enumerate(tables)]
        init = v1.global_variables_initializer()
    feeds = [{ids: batch % 7} for batch in id_batches(2)]
    run_both(graph, rows, feeds, init)


def test_join_whose_constant_waits():
    """A concatenation behind an assignment, and a read behind it: what is packed
    in place of the concatenation still waits, or the read does."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        rows = [tf.gather(t, ids[:, i]) for i, t in enumerate(tables)]
        counter = v1.get_variable(
            "counter", initializer=tf.constant(0.0), use_resource=True
        )
        write = counter.assign(slow_one()).op
        with tf.control_dependencies([write]):
            joined = tf.concat(rows, axis=1)
        with tf.control_dependencies([joined]):
            read = counter.read_value()
        init = v1.global_variables_initializer()
    feeds = [{ids: batch} for batch in id_batches(2)]
    for config in (None, packed_config()):
        with v1.Session(graph=graph, config=config) as session:
            for feed in feeds:
                session.run(init)
                assert session.run([joined, read], feed)[1] == 1.0


def test_two_train_ops_one_behind_the_other():
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        losses = []
        waits = []
        optimizer = train.AdagradOptimizer(0.1)
        for _ in range(2):
            with tf.control_dependencies(waits):
                columns = tf.identity(ids)
                rows = [
                    tf.nn.embedding_lookup(t, columns[:, i])
                    for i, t in enumerate(tables)
                ]
                loss = tf.reduce_sum(tf.square(tf.concat(rows, 1)))
                waits = [optimizer.minimize(loss)]
            losses.append(loss)
        init = v1.global_variables_initializer()
        with tf.control_dependencies(waits):
            losses.extend(t.read_value() for t in tables)
    feeds = [{ids: batch} for batch in id_batches(5)]
    seen = run_both(graph, losses, feeds, init)
    assert sorted(seen.members("lookup")) == [FIELDS, FIELDS]
    assert sorted(seen.members("update")) == [FIELDS, FIELDS]
    seen.assert_packed()


@pytest.mark.parametrize(
    "seed",
    [*range(8), *(pytest.param(s, marks=pytest.mark.slow) for s in range(8, 50))],
)
def test_random_graphs(control_flow, seed):
    """Whatever is found in them, the numbers are stock's."""
    case = RandomGraph(seed)

    def run(config):
        got = []
        with v1.Session(graph=case.graph, config=config) as session:
            session.run(case.init)
            try:
                for feed in case.feeds:
                    got.extend(session.run(case.fetches, feed))
            except tf.errors.OpError as error:
                return type(error)  # what is fed may not fit a gradient
        return [value for value in got if value is not None]

    expected = run(None)
    with watch() as seen:
        got = run(packed_config())
    if isinstance(expected, type):
        assert got is expected
        return
    assert not isinstance(got, type), got
    assert_all_same(got, expected)
    for report in seen.reports():
        assert not report.failures
        assert not report.was_dropped(), str(report)


# -- functions in sessions ----------------------------------------------------


def function_graph(train_it: bool):
    """A v1 graph that looks rows up in a tf.function, called twice."""
    graph = tf.Graph()
    with graph.as_default():
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])

        @tf.function
        def lookup(matrix):
            rows = [
                tf.nn.embedding_lookup(t, matrix[:, i]) for i, t in enumerate(tables)
            ]
            return tf.concat(rows, axis=1)

        rows = [lookup(ids), lookup(ids[1:])]
        fetches = [*rows, tf.reduce_sum(tf.square(tf.concat(rows, axis=0)))]
        if train_it:
            fetches.append(train.AdagradOptimizer(0.1).minimize(fetches[-1]))
        init = v1.global_variables_initializer()
        reads = [t.read_value() for t in tables]
    return graph, fetches, [{ids: batch} for batch in id_batches(5)], init, reads


def test_function_called_in_a_graph():
    """A session's graph holds a call of a library function."""
    graph, fetches, feeds, init, _ = function_graph(False)
    seen = run_both(graph, fetches, feeds, init)
    # Packed, or left alone with a reason: never silently.
    assert seen.packs("lookup") or seen.reasons()


@pytest.mark.parametrize("columns", [True, False])
def test_function_that_nothing_else_uses(columns):
    """TensorFlow puts the function's body in place of the call, and only then
    are there any lookups in the graph."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])

        @tf.function
        def lookup(matrix):
            rows = [
                tf.nn.embedding_lookup(t, matrix[:, i] if columns else matrix)
                for i, t in enumerate(tables)
            ]
            return tf.concat(rows, axis=-1)

        rows = lookup(ids)
        init = v1.global_variables_initializer()
    feeds = [{ids: batch % 7} for batch in id_batches(2)]
    seen = run_both(graph, [rows], feeds, init)
    assert seen.packs("lookup") or seen.reasons()


def test_function_trained_in_a_graph():
    graph, fetches, feeds, init, reads = function_graph(True)
    seen = run_both(graph, fetches, feeds, init)
    seen.assert_packed(updates=FIELDS)
    assert seen.packs("lookup") or seen.reasons()
    run_both(graph, [fetches[-2], *reads], feeds, init)


def test_function_that_is_not_inlined():
    """A function that stays one: the pass sees its body on its own."""
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS])

        @tf.function(experimental_attributes={"_noinline": True})
        def lookup(matrix):
            rows = [
                tf.nn.embedding_lookup(t, matrix[:, i]) for i, t in enumerate(tables)
            ]
            return tf.concat(rows, axis=1)

        rows = lookup(ids)
        outside = [tf.nn.embedding_lookup(t, ids[:, 0] % 7) for t in tables]
        init = v1.global_variables_initializer()
    feeds = [{ids: batch} for batch in id_batches(3)]
    seen = run_both(graph, [rows, *outside], feeds, init)
    seen.assert_packed()


def test_dataset_in_a_graph():
    """A v1 iterator feeds the model, and looks rows up in its map function."""
    batches = np.stack(id_batches(6))
    with tf.Graph().as_default() as graph:
        tables = make_tables()
        dataset = tf.data.Dataset.from_tensor_slices(batches)
        iterator = v1.data.make_one_shot_iterator(dataset.repeat())
        ids = iterator.get_next()
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, axis=1)))
        step = train.AdagradOptimizer(0.1).minimize(loss)
        init = v1.global_variables_initializer()
    seen = run_both(graph, [loss, step], [None] * 6, init, lookups=FIELDS)
    seen.assert_packed(updates=FIELDS)


# -- training loops of TF1 ----------------------------------------------------


def monitored(model: ClickGraph, directory, config, steps: int, seed: int):
    """Losses of a MonitoredTrainingSession that saves at its end."""
    with (
        model.graph.as_default(),
        train.MonitoredTrainingSession(
            checkpoint_dir=str(directory),
            config=config,
            save_checkpoint_steps=steps,
            save_summaries_steps=None,
            save_summaries_secs=None,
            log_step_count_steps=None,
        ) as session,
    ):
        return [
            session.run([model.loss, model.train], feed)[0]
            for feed in model.feeds(steps, seed)
        ]


def counted_graph() -> ClickGraph:
    """A model that counts its steps, as monitored sessions ask."""

    class CountingAdagrad(train.AdagradOptimizer):
        def minimize(self, loss):
            return super().minimize(loss, train.get_or_create_global_step())

    return ClickGraph(lambda: CountingAdagrad(0.1))


def checkpoint_values(directory) -> dict[str, np.ndarray]:
    path = tf.train.latest_checkpoint(str(directory))
    return {
        name: tf.train.load_variable(path, name)
        for name, _ in tf.train.list_variables(path)
    }


def assert_same_checkpoints(got, expected):
    got, expected = checkpoint_values(got), checkpoint_values(expected)
    assert sorted(got) == sorted(expected)
    for name in expected:
        assert_same(got[name], expected[name], name)


def test_monitored_training_session(tmp_path):
    """Trains, saves, and goes on from the checkpoint with the flag off."""
    stock = monitored(counted_graph(), tmp_path / "stock", None, 10, seed=1)
    with watch() as seen:
        packed = monitored(
            counted_graph(), tmp_path / "packed", packed_config(), 10, seed=1
        )
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    seen.assert_executed(10)
    assert_all_same(packed, stock)
    assert_same_checkpoints(tmp_path / "packed", tmp_path / "stock")
    # On from there: off after on, on after off, off after off.
    with watch() as seen:
        off_after_on = monitored(counted_graph(), tmp_path / "packed", None, 5, seed=2)
    assert not seen.reports()
    off_after_off = monitored(counted_graph(), tmp_path / "stock", None, 5, seed=2)
    assert_all_same(off_after_on, off_after_off)
    assert_same_checkpoints(tmp_path / "packed", tmp_path / "stock")
    with watch() as seen:
        on = monitored(counted_graph(), tmp_path / "packed", packed_config(), 5, seed=3)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    off = monitored(counted_graph(), tmp_path / "stock", None, 5, seed=3)
    assert_all_same(on, off)


def test_checkpoint_and_graph_are_stock(tmp_path):
    """A saver's files do not differ by a byte, its graph names none of our ops."""
    model = ClickGraph()
    with model.graph.as_default():
        saver = train.Saver()
    for name, config in (("stock", None), ("packed", packed_config())):
        with v1.Session(graph=model.graph, config=config) as session:
            session.run(model.init)
            model.fit(session, 3)
            saver.save(session, str(tmp_path / name))
    for suffix in (".data-00000-of-00001", ".index", ".meta"):
        files = [(tmp_path / f"{n}{suffix}").read_bytes() for n in ("stock", "packed")]
        assert files[0] == files[1], suffix
    assert b"icasso" not in (tmp_path / "packed.meta").read_bytes()


def input_fn(seed: int, steps: int):
    def make():
        ids = np.stack(id_batches(steps, seed=seed))
        labels = (ids.sum(axis=2) % 2).astype(np.float32)
        return tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels))

    return make


def model_fn(features, labels, mode):
    """A custom model function, as for Estimator."""
    tables = make_tables()
    rows = [
        tf.nn.embedding_lookup(t, features["ids"][:, i]) for i, t in enumerate(tables)
    ]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"rows": tf.concat(rows, 1)})
    loss = click_loss(rows, labels)
    op = train.AdagradOptimizer(0.1).minimize(loss, train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=op)


def estimator(directory, session_config):
    return tf.estimator.Estimator(
        model_fn,
        str(directory),
        tf.estimator.RunConfig(
            session_config=session_config, tf_random_seed=1, save_summary_steps=10**9
        ),
    )


@needs_estimator
def test_estimator(tmp_path):
    """Trains, saves; evaluates, predicts and trains on with the flag off."""
    stock = estimator(tmp_path / "stock", None)
    stock.train(input_fn(1, 10))
    with watch() as seen:
        packed = estimator(
            tmp_path / "packed", picasso_tf.estimator_config(options=strict())
        )
        packed.train(input_fn(1, 10))
    # Hooks fetch more in some of the steps: two graphs.
    assert set(seen.members("lookup")) == set(seen.members("update")) == {FIELDS}
    seen.assert_packed()
    assert_same_checkpoints(tmp_path / "packed", tmp_path / "stock")
    with watch() as seen:
        scores = packed.evaluate(input_fn(2, 4)), stock.evaluate(input_fn(2, 4))
    assert scores[0] == scores[1]
    seen.assert_packed(lookups=FIELDS)
    with watch() as seen:
        rows = [
            np.stack([p["rows"] for p in e.predict(input_fn(3, 2))])
            for e in (packed, stock)
        ]
    assert_same(rows[0], rows[1], "predictions")
    seen.assert_packed(lookups=FIELDS)
    # From the checkpoint, with the flag off.
    with watch() as seen:
        off = estimator(tmp_path / "packed", None)
        off.train(input_fn(4, 5))
    assert not seen.reports()
    stock.train(input_fn(4, 5))
    assert_same_checkpoints(tmp_path / "packed", tmp_path / "stock")


@needs_estimator
@pytest.mark.slow
def test_canned_estimator(tmp_path):
    """Wide and deep, over feature columns; its own optimizers."""
    column = tf.feature_column
    categories = [
        column.categorical_column_with_identity(f"field_{i}", rows)
        for i, rows in enumerate(ROWS)
    ]
    numbers = column.numeric_column("number")

    def make_input(seed):
        def input_fn():
            ids = np.concatenate(id_batches(8, seed=seed))
            features = {f"field_{i}": ids[:, i] for i in range(FIELDS)}
            features["number"] = (ids.sum(axis=1) % 3).astype(np.float32)
            labels = (ids.sum(axis=1) % 2).astype(np.int64)
            dataset = tf.data.Dataset.from_tensor_slices((features, labels))
            return dataset.batch(16)

        return input_fn

    def make(directory, session_config):
        return tf.estimator.DNNLinearCombinedClassifier(
            model_dir=str(tmp_path / directory),
            linear_feature_columns=[*categories, numbers],
            dnn_feature_columns=[
                *(column.embedding_column(c, 4) for c in categories),
                numbers,
            ],
            dnn_hidden_units=[8],
            config=tf.estimator.RunConfig(
                session_config=session_config, tf_random_seed=1
            ),
        )

    stock = make("stock", None)
    stock.train(make_input(1))
    with watch() as seen:
        packed = make("packed", picasso_tf.estimator_config(options=strict()))
        packed.train(make_input(1))
    seen.assert_packed()
    assert set(seen.members("lookup")) == {2 * FIELDS}, seen.text()
    assert_same_checkpoints(tmp_path / "packed", tmp_path / "stock")
    assert packed.evaluate(make_input(2)) == stock.evaluate(make_input(2))


@needs_estimator
def test_estimator_config_keeps_estimators_defaults(tmp_path):
    # What an Estimator without any configuration gives to its sessions.
    default = tf.estimator.Estimator(model_fn, str(tmp_path)).config.session_config
    assert default.allow_soft_placement
    config = picasso_tf.estimator_config()
    assert config.allow_soft_placement
    assert config == picasso_tf.session_config(default)
    assert config != picasso_tf.session_config()
    base = user_config()
    assert picasso_tf.estimator_config(base) == picasso_tf.session_config(base)


@pytest.mark.skipif(
    getattr(tf, "estimator", None) is not None, reason="this one has Estimator"
)
def test_estimator_config_without_estimator():
    with pytest.raises(RuntimeError, match=r"no Estimator; 2\.15 was the last"):
        picasso_tf.estimator_config()
    base = user_config()
    assert picasso_tf.estimator_config(base) == picasso_tf.session_config(base)


def test_the_graph_itself_is_not_touched():
    """A session's rewrite never reaches tf.Graph."""
    model = ClickGraph()
    before = model.graph.as_graph_def().SerializeToString(deterministic=True)
    model.run(packed_config(), 2)
    after = model.graph.as_graph_def().SerializeToString(deterministic=True)
    assert before == after
    assert isinstance(model.graph.as_graph_def(), graph_pb2.GraphDef)
