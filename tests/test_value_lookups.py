"""Lookups in a variable's value: ReadVariableOp and GatherV2, as tf.gather on a
tensor and Keras 3's Embedding write them."""

from __future__ import annotations

import functools
import threading
import time

import graphs
import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, ops_of, table, tf1
from helpers_models import watch
from test_passes import golden, rewrite

import picasso_tf

check = functools.partial(graphs.check, kind="lookup")


def read(variable) -> tf.Tensor:
    """A ReadVariableOp, without the Identity that read_value() puts behind it."""
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    value.set_shape(variable.shape)
    return value


def wrapped(ids, rows):
    """As Keras 3.3 and later prepare ids."""
    return tf.where(ids < 0, ids + tf.cast(rows, ids.dtype), ids)


def late(value, seconds: float = 0.2) -> tf.Tensor:
    """The value, but late: what does not wait for it is sure to be earlier."""

    def sleep(x):
        time.sleep(seconds)
        return x

    result = tf1.py_func(sleep, [value], value.dtype)
    result.set_shape(value.shape)
    return result


def late_ids(count: int = 3) -> tf.Tensor:
    return late(tf.constant(np.arange(count) + 1))


def reasons(graph, fetches, feed=None, packs=0, steps=3) -> str:
    with watch() as seen:
        check(graph, fetches, feed, packs=packs, steps=steps)
    return " / ".join(sorted(seen.reasons()))


# -- forms ---------------------------------------------------------------------

FORMS = {
    "read": lambda t, ids: tf.gather(read(t), ids),
    "read_value": lambda t, ids: tf.gather(t.read_value(), ids),
    "convert": lambda t, ids: tf.gather(tf.convert_to_tensor(t), ids),
    "value": lambda t, ids: tf.gather(t.value(), ids),
    "wrap": lambda t, ids: tf.gather(read(t), wrapped(ids, tf.shape(read(t))[0])),
    "wrap, constant": lambda t, ids: tf.gather(read(t), wrapped(ids, t.shape[0])),
    "wrap, swapped": lambda t, ids: tf.gather(
        read(t), tf.where(ids < 0, tf.cast(10, ids.dtype) + ids, ids)
    ),
    "wrap, variable's shape": lambda t, ids: tf.gather(
        read(t), wrapped(ids, tf.raw_ops.VariableShape(input=t.handle)[0])
    ),
    "wrap of a resource gather": lambda t, ids: tf.gather(t, wrapped(ids, 10)),
    "clip": lambda t, ids: tf.gather(read(t), tf.clip_by_value(ids, 0, 9)),
    "clip, upwards first": lambda t, ids: tf.gather(
        read(t), tf.minimum(tf.maximum(ids, 0), 9)
    ),
    "clip, numpy": lambda t, ids: tf.experimental.numpy.take(
        read(t), ids, axis=0, mode="clip"
    ),
}


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form, dtype):
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(dtype, [None, 3])
        rows = [FORMS[form](table(f"t{i}", dim=2 + i), x[:, i]) for i in range(3)]
        out = tf.concat(rows, 1)
    ids = np.arange(12).reshape(4, 3) % 10
    if "wrap" in form:
        ids = ids - 10 * (ids % 2)
    if "clip" in form:
        ids = 5 * ids - 20
    report = check(graph, out, {x: ids})
    assert "GatherV2" not in report.ops_after
    assert "ConcatV2" not in report.ops_after
    for op in ("SelectV2", "Less", "Minimum", "Maximum", "StridedSlice"):
        assert op not in report.ops_after, "ids are not read in place"
    if "shape" not in form and form != "wrap":
        assert "ReadVariableOp" not in report.ops_after
    assert len(report.packs[0].members) == 3


def test_golden_wrap():
    """Ids that wrap are read in place; who waited for a read waits for the pack."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None, 2], name="ids")
        tables = [table("a"), table("b", dim=2)]
        rows = []
        for i, t in enumerate(tables):
            value = read(t)
            rows.append(tf.gather(value, wrapped(ids[:, i], 10), name=f"gather_{i}"))
            more = tf.ones(t.shape, name=f"more_{i}")
            with tf.control_dependencies([value]):
                t.assign_add(more, name=f"write_{i}")
        out = tf.identity(tf.concat(rows, 1), name="out")
        tf.group(
            *(o for o in graph.get_operations() if o.type == "AssignAddVariableOp"),
            name="train",
        )
        tf.group(out, graph.get_operation_by_name("train"), name="step")
    after, _ = rewrite(graph, ["step"])
    golden("wrap", after)


@pytest.mark.parametrize("half", [tf.half, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("where", ["table", "rows", "rows of a resource gather"])
def test_casts(where, half):
    """Only the rows are cast, also where the graph casts the whole table."""

    def rows_of(t, ids):
        if where == "table":
            return tf.gather(tf.cast(read(t), half), ids)
        return tf.cast(tf.gather(read(t) if where == "rows" else t, ids), half)

    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        values = np.random.default_rng(0).normal(size=[10, 21]).astype(np.float32)
        values[3, :6] = [np.nan, np.inf, -np.inf, 1e30, 1e-30, -0.0]
        tables = [
            tf1.get_variable(f"t{i}", initializer=values * 3**i, use_resource=True)
            for i in range(3)
        ]
        dense = tf1.placeholder(half, [None, 2])
        rows = [rows_of(t, ids) for t in tables]
        out = [tf.concat([rows[0], dense, rows[1]], 1), tf.stack(rows, 1), rows[2]]
        out = [tf.identity(each) for each in out]
    feed = {ids: [1, 3, 3, 0], dense: np.ones([4, 2])}
    report = check(graph, out, feed)
    assert "Cast" not in report.ops_after
    assert "ConcatV2" not in report.ops_after and "Pack" not in report.ops_after


def test_cast_that_is_not_alone():
    """Rows that are also read as they are keep their type."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(read(table(f"t{i}")), ids) for i in range(2)]
        out = [tf.cast(rows[0], tf.half), rows[0] + 1, tf.cast(rows[1], tf.double)]
    report = check(graph, out, {ids: [1, 3]})
    assert report.ops_after["Cast"] == 2


def test_one_lookup_is_packed_by_itself():
    """It spares the copy of a whole table that is also updated by rows."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        t = table("t")
        out = tf.nn.relu(tf.gather(read(t), ids) + 1.0)
    report = check(graph, out, {ids: [1, 3]})
    assert report.packs[0].tables == 1


@pytest.mark.parametrize("bad", [10, -11, 2**31 - 1])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
def test_bad_ids(dtype, bad):
    """The same words, position and value (behind the wrap) as stock's."""
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(dtype, [None, 2])
        rows = [
            tf.gather(read(table(f"t{i}")), wrapped(x[:, i : i + 1], 10))
            for i in range(2)
        ]
        out = tf.concat(rows, 1)
        init = tf1.global_variables_initializer()
    texts = []
    for config in (None, picasso_tf.session_config(options=STRICT)):
        with tf1.Session(graph=graph, config=config) as session:
            session.run(init)
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                session.run(out, {x: [[0, -10], [0, bad], [1, 1]]})
            texts.append(str(caught.value))
    value = bad + 10 if bad < 0 else bad
    wanted = f"indices[1,0] = {value} is not in [0, 10)"
    assert wanted in texts[0] and wanted in texts[1]


def test_no_ids():
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.int32, [None, 2])
        rows = [tf.gather(read(table(f"t{i}")), wrapped(x[:, i], 10)) for i in range(2)]
        out = tf.concat(rows, 1)
    check(graph, out, {x: np.zeros([0, 2])})


@pytest.mark.parametrize("near_miss", [
    lambda ids: tf.where(ids < 0, ids + 9, ids),
    lambda ids: tf.where(ids < 0, ids + 20, ids + 2),
    lambda ids: tf.where(ids < 1, ids + 10, ids),
    lambda ids: tf.where(ids > 0, ids, ids + 10),
    lambda ids: tf.clip_by_value(ids, 1, 19),
    lambda ids: tf.clip_by_value(ids, 0, 2),
    lambda ids: tf.minimum(tf.minimum(ids, 19), 0),
    lambda ids: tf.cast(wrapped(tf.cast(ids, tf.int64) + 2**32, 20), tf.int32),
    lambda ids: wrapped(wrapped(ids - 30, 20), 20),
    lambda ids: wrapped(ids, 20)[::-1],
])  # fmt: skip
def test_what_is_no_wrap(near_miss):
    """Computed as it stands, and the rows looked up behind it."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int32, [None])
        out = tf.concat(
            [
                tf.gather(read(table(f"t{i}", rows=20)), near_miss(ids))
                for i in range(2)
            ],
            1,
        )
    check(graph, out, {ids: [0, 1, 2, 0]})


def test_updates_read_ids_past_the_wrap():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        tables = [table(f"t{i}") for i in range(3)]
        values = [read(t) for t in tables]
        rows = [tf.gather(value, wrapped(ids, 10)) for value in values]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, 1)))
        grads = tf.gradients(loss, values)
        loss = tf.identity(loss)
        updates = [
            tf.raw_ops.ResourceScatterSub(
                resource=t.handle, indices=grad.indices, updates=grad.values * 0.1
            )
            for t, grad in zip(tables, grads, strict=True)
        ]
    report = graphs.check(
        graph, [loss, *updates], {ids: [1, -9, -1, 1]}, packs=2, steps=5
    )
    assert "SelectV2" not in report.ops_after


# -- when the rows are read ------------------------------------------------------


def test_a_write_that_waits_for_the_read():
    """It waits for the later gather as well."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        values = [read(t), read(u)]
        with tf.control_dependencies(values):
            writes = [tf1.assign_add(v, tf.ones([10, 4])) for v in (t, u)]
        ids = late_ids()
        out = tf.concat([tf.gather(value, ids) for value in values], 1)
        fetches = [out, *(write.op for write in writes)]
    report = check(graph, fetches, steps=3)
    assert "ReadVariableOp" not in {
        op for op, _, after in report.changed_ops() if after
    }


@pytest.mark.parametrize("between", ["identity", "noop", "read"])
def test_a_write_that_waits_indirectly(between):
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        value, other = read(t), read(u)
        with tf.control_dependencies([value]):
            first = {
                "identity": lambda: tf.identity(2.0),
                "noop": lambda: tf.no_op(),
                "read": lambda: read(u),
            }[between]()
        with tf.control_dependencies([first]):
            write = tf1.assign_add(t, tf.ones([10, 4])).op
        ids = late_ids()
        out = tf.concat([tf.gather(value, ids), tf.gather(other, ids)], 1)
    check(graph, [out, write], steps=3)


def test_a_write_of_what_was_read():
    """No control edge orders it, only its value: it waits all the same."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        value = read(t)
        write = tf.raw_ops.AssignVariableOp(resource=t.handle, value=value * 2)
        ids = late_ids()
        out = [tf.gather(value, ids), tf.gather(read(u), ids)]
        out = [tf.identity(rows) for rows in out]
    report = check(graph, [*out, write], steps=3)
    assert report.ops_after["ReadVariableOp"] == 1


def test_a_write_through_a_second_handle():
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        again = tf.raw_ops.VarHandleOp(
            shape=t.shape,
            dtype=t.dtype,
            shared_name=t.handle.op.get_attr("shared_name"),
        )
        value = read(t)
        write = tf.raw_ops.AssignVariableOp(resource=again, value=value * 2)
        ids = late_ids()
        out = [tf.gather(value, ids), tf.gather(read(u), ids)]
        out = [tf.identity(rows) for rows in out]
    check(graph, [*out, write], steps=3)


def test_a_read_behind_a_write():
    """The pack waits for what the read waited for."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        ids = tf.constant([3, 1])
        with tf.control_dependencies([tf1.assign_add(t, late(tf.ones([10, 4]))).op]):
            value = read(t)
        out = [tf.gather(value, ids), tf.gather(read(u), ids)]
        out = [tf.identity(rows) for rows in out]
    check(graph, out, steps=3)


def test_a_gather_behind_a_write_of_what_it_reads():
    """Rows of the value from before the write, for ids that come after it."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        value = read(t)
        with tf.control_dependencies([value]):
            write = tf1.assign_add(t, tf.ones([10, 4])).op
        with tf.control_dependencies([write]):
            ids = tf.identity(tf.constant([3, 1]))
        out = [tf.gather(value, ids), tf.gather(read(u), ids)]
        out = [tf.identity(rows) for rows in out]
    text = reasons(graph, out, packs=1)
    assert "gathered from the older value" in text


def test_a_gather_whose_ids_wait_for_the_read():
    """No write is there, but that the pass cannot know of every op."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        value = read(t)
        with tf.control_dependencies([value]):
            ids = tf.identity(tf.constant([3, 1]))
        out = [tf.gather(value, ids), tf.gather(read(u), ids)]
        out = [tf.identity(rows) for rows in out]
    assert "gathered from the older value" in reasons(graph, out, packs=1)


def test_two_gathers_that_cannot_both_be_later():
    """Each one's ids come behind the write of the other's table."""
    graph = tf1.Graph()
    with graph.as_default():
        tables = [table("t"), table("u")]
        values = [read(t) for t in tables]
        ids = []
        for t, value in zip(tables, values, strict=True):
            with tf.control_dependencies([value]):
                write = tf1.assign_add(t, tf.ones([10, 4])).op
            with tf.control_dependencies([write]):
                ids.append(tf.identity(tf.constant([3, 1])))
        out = [tf.gather(values[0], ids[1]), tf.gather(values[1], ids[0])]
        out = [tf.identity(rows) for rows in out]
    report = check(graph, out, packs=1, steps=3)
    assert len(report.packs[0].members) == 1
    assert "gathered from the older value" in " ".join(report.reasons())


def test_levels_count_the_new_edges():
    """b's ids come behind a write that waits for the read of a."""
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        value = read(t)
        with tf.control_dependencies([value]):
            write = tf1.assign_add(t, tf.ones([10, 4])).op
        with tf.control_dependencies([write]):
            ids = tf.identity(tf.constant([3, 1]))
        out = tf.concat([tf.gather(value, late_ids(2)), tf.gather(read(u), ids)], 1)
    report = check(graph, out, packs=2, steps=3)
    assert [len(pack.members) for pack in report.packs] == [1, 1]


@pytest.mark.parametrize("fetched", [False, True])
def test_a_read_with_other_readers_stays(fetched):
    graph = tf1.Graph()
    with graph.as_default():
        t, u = table("t"), table("u")
        values = [read(t), read(u)]
        with tf.control_dependencies([values[0]]):
            write = tf1.assign_add(t, tf.ones([10, 4])).op
        ids = late_ids()
        out = tf.concat([tf.gather(value, ids) for value in values], 1)
        other = values[0] if fetched else tf.reduce_sum(values[0])
    report = check(graph, [out, other, write], steps=3)
    assert report.ops_before["ReadVariableOp"] == report.ops_after["ReadVariableOp"] + 1


def test_many_gathers_of_one_read():
    graph = tf1.Graph()
    with graph.as_default():
        t = table("t")
        value = read(t)
        with tf.control_dependencies([value]):
            write = tf1.assign_add(t, tf.ones([10, 4])).op
        rows = [tf.gather(value, late_ids(n)) for n in (1, 2, 3)]
        deep = tf.gather(value, tf.cast(rows[0][:, 0], tf.int64) % 10)
        out = [tf.identity(each) for each in (*rows, deep)]
    report = check(graph, [*out, write], packs=2, steps=3)
    assert [len(pack.members) for pack in report.packs] == [3, 1]


def test_packs_keep_the_order_of_reads_and_writes():
    """Read, write, read, write: two packs, and each write between them."""
    graph = tf1.Graph()
    with graph.as_default():
        tables = [table(f"t{i}") for i in range(3)]
        before: list = []
        out = []
        for _ in range(3):
            with tf.control_dependencies(before):
                values = [read(t) for t in tables]
            out += [tf.gather(value, late_ids()) for value in values]
            with tf.control_dependencies(values):
                before = [tf1.assign_add(t, tf.ones([10, 4])).op for t in tables]
        out = [tf.identity(rows) for rows in out]
    check(graph, [*out, *before], packs=3, steps=3)


# -- branches, loops, functions ---------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken):
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        flag = tf1.placeholder(tf.bool, [])
        tables = [table(f"t{i}") for i in range(6)]
        outside = [tf.gather(read(t), wrapped(ids, 10)) for t in tables[:2]]
        value = read(tables[0])

        def branch(chosen, factor):
            return lambda: (
                factor
                * tf.concat([tf.gather(read(t), wrapped(ids, 10)) for t in chosen], 1)
                + tf.reduce_sum(tf.gather(value, ids % 10))
            )

        inside = tf.cond(flag, branch(tables[2:4], 1), branch(tables[4:], 2))
        out = [*outside, inside]
    report = check(graph, out, {ids: [1, 2, -3], flag: taken}, packs=3)
    assert "read outside of the branch or loop" in " ".join(report.reasons())


def test_loops():
    """A table is read and written in each round."""
    graph = tf1.Graph()
    with graph.as_default():
        tables = [table(f"t{i}") for i in range(2)]
        outer = read(tables[0])

        def body(i, total):
            values = [read(t) for t in tables]
            ids = late(tf.stack([i, i + 1]), 0.05)
            rows = tf.concat([tf.gather(v, ids) for v in values], 1)
            with tf.control_dependencies(values):
                writes = [tf1.assign_add(t, tf.ones([10, 4])).op for t in tables]
            total += rows + tf.reduce_sum(tf.gather(outer, [i]))
            with tf.control_dependencies(writes):
                return i + 1, tf.identity(total)

        _, out = tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([2, 8])])
        out = tf.identity(out)
    report = check(graph, out, packs=1, steps=3)
    assert "read outside of the branch or loop" in " ".join(report.reasons())


def test_tf_function():
    """Automatic control dependencies order reads and writes."""
    tables = [tf.Variable(tf.random.normal([20, 4], seed=i)) for i in range(4)]
    start = [t.numpy() for t in tables]

    def step(ids):
        rows = [tf.gather(t.value(), wrapped(ids, 20)) for t in tables]
        for t in tables:
            t.assign_sub(0.5 * t)
        again = [tf.gather(t.value(), wrapped(ids, 20)) for t in tables]
        return tf.concat(rows, 1), tf.concat(again, 1)

    results = []
    for flag in (False, True):
        for t, value in zip(tables, start, strict=True):
            t.assign(value)
        function = tf.function(step)
        with watch() as seen:
            if flag:
                picasso_tf.enable(STRICT)
            for ids in ([1, -1, 3], [0, 19, -20]):
                out = function(tf.constant(ids))
        results.append([*(x.numpy() for x in out), *(t.numpy() for t in tables)])
    seen.assert_packed(lookups=8)
    for ours, stock in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, stock)


# -- left alone ----------------------------------------------------------------------


def test_reference_variables():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        t = tf1.get_variable("ref", [10, 4], use_resource=False)
        out = tf.nn.relu(tf.gather(t, ids) + 1.0)
        after, report = rewrite(graph, [out.op.name])
    assert ops_of(after)["PicassoPackedLookup"] == 0
    assert "reference variable" in " ".join(report.reasons())


def test_a_sum_with_a_variable():
    """LoRA's effective table."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        low, high = table("low", dim=2), table("high", rows=2, dim=4)
        rows = [
            tf.gather(read(table(f"t{i}")) + 0.5 * tf.matmul(low, high), ids)
            for i in range(2)
        ]
        out = tf.concat(rows, 1)
    assert "LoRA" in reasons(graph, out, {ids: [1]})


def test_other_axes_and_batches():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [10, 2])
        t = table("t")
        out = [
            tf.gather(read(t), ids[0], axis=1),
            tf.gather(read(t), ids, batch_dims=1, axis=1),
        ]
    text = reasons(graph, out, {ids: np.zeros([10, 2])})
    assert "first axis" in text and "batch_dims is 1" in text


def test_gathers_from_tensors_are_not_mentioned():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        x = tf1.placeholder(tf.float32, [10, 4])
        tf.identity(tf.gather(x, ids) + tf.gather(x * 2, ids), name="out")
    _, report = rewrite(graph, ["out"])
    assert not report.skipped and not report.packs


def test_roots_that_run_apart():
    """The write must not come to need the gather's ids."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None], name="ids")
        t = table("t")
        value = read(t)
        with tf.control_dependencies([value]):
            tf.raw_ops.AssignAddVariableOp(
                resource=t.handle, value=tf.ones([10, 4]), name="write"
            )
        tf.identity(tf.gather(value, ids), name="out")
    _, report = rewrite(graph, ["out", "write"])
    assert "also runs without it" in " ".join(report.reasons())


# -- copy-on-read mode -----------------------------------------------------------------


def address(variable) -> tuple[int, object]:
    """Where a read of the variable finds its value, and what keeps it there."""
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    return value._numpy().ctypes.data, value


def is_copied(variable) -> bool:
    """Whether each read copies the variable."""
    (first, _keep), (second, _also) = address(variable), address(variable)
    return first != second


@pytest.mark.parametrize("form", ["value", "resource"])
def test_tables_stay_out_of_copy_on_read_mode(form):
    def rows(t, ids):
        return tf.gather(t.value() if form == "value" else t, ids)

    tables = [tf.Variable(tf.random.normal([20, 4])) for _ in range(3)]
    function = tf.function(lambda ids: tf.concat([rows(t, ids) for t in tables], 1))
    with watch() as seen:
        picasso_tf.enable(STRICT)
        for _ in range(2):
            function(tf.constant([1, 2]))
    seen.assert_packed(lookups=3)
    assert not any(is_copied(t) for t in tables)
    # Stock's lookup switches the mode on: the observation tells.
    picasso_tf.disable()
    tf.nn.embedding_lookup(tables[0], [1])
    assert is_copied(tables[0])


def test_threads():
    """Dense writes beside packed lookups are seen whole or not at all; sparse
    writes lose nothing."""
    rows, dim, steps = 64, 64, 150
    tables = [tf.Variable(tf.zeros([rows, dim])) for _ in range(3)]
    sparse = tf.Variable(tf.zeros([rows, dim]))
    ones, all_ids = tf.ones([rows, dim]), tf.range(rows)

    @tf.function
    def look_up():
        return tf.concat([tf.gather(t.value(), all_ids) for t in [*tables, sparse]], 1)

    @tf.function
    def write():
        for t in tables:
            t.assign_add(3 * ones)
            t.assign_sub(2 * ones)

    @tf.function
    def scatter():
        sparse.scatter_add(tf.IndexedSlices(ones, all_ids))

    errors = []
    writing = threading.Event()
    writing.set()

    def reader():
        before = np.zeros([rows, 4 * dim], np.float32)
        try:
            while writing.is_set():
                found = look_up().numpy()
                for k in range(3):
                    part = found[:, k * dim : (k + 1) * dim]
                    assert (part == part[0, 0]).all(), "half a dense write was seen"
                part = found[:, 3 * dim :]
                assert (part == np.rint(part)).all()
                assert (part >= before[:, 3 * dim :]).all()
                before = found
        except BaseException as error:
            errors.append(error)

    def writer(function):
        try:
            for _ in range(steps):
                function()
        except BaseException as error:
            errors.append(error)

    with watch() as seen:
        picasso_tf.enable(STRICT)
        look_up()
        readers = [threading.Thread(target=reader) for _ in range(2)]
        writers = [threading.Thread(target=writer, args=[f]) for f in (write, write)]
        writers.append(threading.Thread(target=writer, args=[scatter]))
        for thread in [*readers, *writers]:
            thread.start()
        for thread in writers:
            thread.join()
        writing.clear()
        for thread in readers:
            thread.join()
    if errors:
        raise errors[0]
    seen.assert_packed(lookups=4)
    for t in tables:
        np.testing.assert_array_equal(t.numpy(), 2 * steps * np.ones([rows, dim]))
    np.testing.assert_array_equal(sparse.numpy(), steps * np.ones([rows, dim]))
    # Dense writes after dense reads still copy nothing.
    assert not any(is_copied(t) for t in tables)
