"""Functions that a session's graph calls: TensorFlow inlines them, and then their
lookups are packed like others."""

import numpy as np
import pytest
import tensorflow as tf
from helpers_models import DIMS, ROWS, id_batches, make_tables, v1
from test_sessions import run_both

import picasso_tf

FIELDS = len(ROWS)


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def tables(graph):
    return make_tables()


@pytest.fixture
def ids(graph):
    return v1.placeholder(tf.int64, [None, FIELDS])


def lookup_of(tables, **options):
    @tf.function(**options)
    def lookup(matrix):
        rows = [tf.nn.embedding_lookup(t, matrix[:, i]) for i, t in enumerate(tables)]
        return tf.concat(rows, axis=1)

    return lookup


def feeds_of(ids, count=2):
    return [{ids: batch % 7} for batch in id_batches(count)]


def check(graph, fetches, ids, lookups, updates=0, count=2):
    init = v1.global_variables_initializer()
    with tf.control_dependencies(fetches):
        reads = [variable.read_value() for variable in v1.global_variables()]
    for more in (fetches, reads if updates else []):
        fetched = [*fetches, *more] if more is not fetches else fetches
        seen = run_both(graph, fetched, feeds_of(ids, count), init)
        seen.assert_packed(lookups=lookups, updates=updates or None)
    return seen


def test_called_once(graph, tables, ids):
    seen = check(graph, [lookup_of(tables)(ids)], ids, FIELDS)
    assert len(seen.packs("lookup")) == 1


def test_called_twice(graph, tables, ids):
    """One pack for both calls."""
    lookup = lookup_of(tables)
    seen = check(graph, [lookup(ids), lookup(ids[1:])], ids, 2 * FIELDS)
    assert len(seen.packs("lookup")) == 1


def test_nested(graph, tables, ids):
    lookup = lookup_of(tables)
    outer = tf.function(lambda matrix: lookup(matrix) * 2.0)
    outermost = tf.function(lambda matrix: outer(matrix) + lookup(matrix))
    check(graph, [outermost(ids)], ids, 2 * FIELDS)


def test_control_edges(graph, tables, ids):
    """The call waits for an assignment, and another one for the call."""
    before = [t.assign_add(tf.ones_like(t), read_value=False) for t in tables]
    with tf.control_dependencies(before):
        rows = lookup_of(tables)(ids)
    with tf.control_dependencies([rows]):
        after = [t.assign_add(tf.ones_like(t), read_value=False) for t in tables]
    with tf.control_dependencies(after):
        again = lookup_of(tables)(ids)
    check(graph, [rows, again], ids, 2 * FIELDS, count=4)


def test_effects_inside(graph, tables, ids):
    """The function looks rows up, changes the tables, and looks up again."""

    @tf.function
    def step(matrix):
        columns = tf.unstack(matrix, axis=1)
        first = [
            tf.nn.embedding_lookup(t, c) for t, c in zip(tables, columns, strict=True)
        ]
        for table in tables:
            table.assign_add(tf.ones_like(table))
        second = [
            tf.nn.embedding_lookup(t, c) for t, c in zip(tables, columns, strict=True)
        ]
        return tf.concat(first, 1), tf.concat(second, 1)

    ids.set_shape([None, FIELDS])
    check(graph, list(step(ids)), ids, 2 * FIELDS, count=4)


@pytest.mark.parametrize("optimizer", ["GradientDescent", "Adagrad", "Adam"])
def test_gradient_through_the_function(graph, tables, ids, optimizer):
    """TensorFlow does not inline the forward function, since nothing waits for
    its call; it is optimized apart, and so it stays. The updates are packed."""
    rows = lookup_of(tables)(ids)
    loss = tf.reduce_sum(tf.square(rows))
    step = getattr(v1.train, f"{optimizer}Optimizer")(0.1).minimize(loss)
    init = v1.global_variables_initializer()
    with tf.control_dependencies([loss, step]):
        reads = [variable.read_value() for variable in v1.global_variables()]
    for fetches in ([loss, step], [loss, step, *reads]):
        seen = run_both(graph, fetches, feeds_of(ids, 5), init)
        seen.assert_packed(updates=None if optimizer == "Adam" else FIELDS)
        assert seen.packs("lookup") or seen.reasons()


def test_what_waits_for_a_call_may_not_run(graph, tables, ids):
    """The one that waits for the call is not fetched: then TensorFlow does not
    inline the call, whose other reader would be regrouped with its body."""
    rate = v1.get_variable("rate", initializer=np.float32(0.0123))

    @tf.function
    def lookup(matrix):
        rows = [tf.nn.embedding_lookup(t, matrix[:, i]) for i, t in enumerate(tables)]
        return tf.concat(rows, axis=1) * rate * 0.1

    rows = lookup(ids)
    call = next(op for op in graph.get_operations() if "PartitionedCall" in op.type)
    bare = call.outputs[0] * 0.83
    init = v1.global_variables_initializer()
    for fetches in ([bare], [rows], [bare, rows], [bare * 0.3, rows * 0.3]):
        run_both(graph, fetches, feeds_of(ids), init)


def test_whole_step_in_a_function(graph, tables, ids):
    slots = [
        v1.get_variable(f"slot{i}", initializer=tf.fill(t.shape, 0.1))
        for i, t in enumerate(tables)
    ]
    lookup = lookup_of(tables)

    @tf.function
    def step(matrix):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(lookup(matrix) - 1.0))
        for table, slot, gradient in zip(
            tables, slots, tape.gradient(loss, tables), strict=True
        ):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slot.handle,
                lr=0.1,
                epsilon=1e-7,
                grad=gradient.values,
                indices=gradient.indices,
            )
        return loss

    check(graph, [step(ids)], ids, FIELDS, FIELDS, count=5)


def test_several_fetches_of_one_session(graph, tables, ids):
    """Each set of fetches is a graph of its own; so are feeds of what is called."""
    first, second = lookup_of(tables), lookup_of(tables[:2])
    rows = first(ids)
    few = second(ids) * 2.0
    total = tf.reduce_sum(rows) + tf.reduce_sum(few)
    init = v1.global_variables_initializer()
    batch = id_batches(1)[0] % 7
    runs = [
        ([rows], {ids: batch}),
        ([few, total], {ids: batch}),
        ([rows, few], {ids: batch}),
        ([total], {ids: batch, rows: np.ones([3, sum(DIMS)], np.float32)}),
        ([rows], {ids: batch[:0]}),
    ]

    def run(config):
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            return [session.run(*args) for args in runs + runs[::-1]]

    options = picasso_tf.Options(strict=True)
    expected, got = run(None), run(picasso_tf.session_config(options=options))
    for ours, stock in zip(got, expected, strict=True):
        for a, b in zip(ours, stock, strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_control_flow_inside(graph, tables, ids):
    @tf.function
    def step(matrix):
        rows = [tf.nn.embedding_lookup(t, matrix[:, i]) for i, t in enumerate(tables)]
        total = tf.reduce_sum(tf.concat(rows, axis=1))
        if total > 0.0:
            more = [tf.nn.embedding_lookup(t, matrix[:, 0]) for t in tables]
            total += tf.reduce_sum(tf.concat(more, 1))
        for i in tf.range(tf.constant(3, tf.int64)):
            column = matrix[:, 1] // (i + 1)
            total += tf.reduce_sum(
                tf.concat([tf.nn.embedding_lookup(t, column) for t in tables], 1)
            )
        return total

    init = v1.global_variables_initializer()
    seen = run_both(graph, [step(ids)], feeds_of(ids), init)
    assert seen.packs("lookup")
    for report in seen.reports():
        assert not report.failures


def test_errors_are_stock(graph, tables, ids):
    rows = lookup_of(tables)(ids)
    init = v1.global_variables_initializer()
    options = picasso_tf.Options(strict=True)
    for config in (None, picasso_tf.session_config(options=options)):
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(rows, {ids: np.full([2, FIELDS], 10**6)})


def test_what_tensorflow_does_not_inline(graph, tables, ids):
    """With the function optimizer off the call stays, and so do the numbers."""
    rows = lookup_of(tables)(ids)
    init = v1.global_variables_initializer()
    base = v1.ConfigProto()
    base.graph_options.rewrite_options.function_optimization = 2  # OFF
    options = picasso_tf.Options(strict=True)
    results = []
    for config in (base, picasso_tf.session_config(base, options)):
        with v1.Session(graph=graph, config=config) as session:
            session.run(init)
            results.append(session.run(rows, feeds_of(ids)[0]))
    assert results[0].tobytes() == results[1].tobytes()


def test_function_that_is_kept(graph, tables, ids):
    kept = lookup_of(tables, experimental_attributes={"_noinline": True})
    inlined = lookup_of(tables)
    rows = [kept(ids), inlined(ids)]
    init = v1.global_variables_initializer()
    run_both(graph, rows, feeds_of(ids), init).assert_packed(lookups=FIELDS)
