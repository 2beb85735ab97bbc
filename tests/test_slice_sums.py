"""Gradients of tensors that are cut up: sums of slices, bit by bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, tf1
from helpers_interactions import run_both
from hypothesis import given, settings
from hypothesis import strategies as st

import picasso_tf
from picasso_tf import ops

KIND = "slice sum"


def kinds(packs):
    return [pack.kind for pack in packs if pack.kind == KIND]


def fwfm(fields, dim, dtype=tf.float32, batch=None):
    """Weighted products of all pairs, as DeepCTR writes them; and the gradients."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(dtype, [batch, fields, dim])
        random = np.random.default_rng(3)
        strengths = tf1.get_variable(
            "strengths",
            initializer=tf.constant(random.normal(size=[fields] * 2), dtype),
            use_resource=True,
        )
        values = strengths.read_value()
        products = []
        for i, j in itertools.combinations(range(fields), 2):
            left = tf.squeeze(x[0:, i : i + 1, 0:], axis=1)
            right = tf.squeeze(x[0:, j : j + 1, 0:], axis=1)
            product = tf.reduce_sum(left * right, 1, keepdims=True)
            products.append(tf.scalar_mul(values[i, j], product))
        total = tf.add_n(products)
        grads = tf1.gradients(tf.sin(total), [x, values])
    return graph, [total, *grads], x


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16, tf.bfloat16])
@pytest.mark.parametrize(("fields", "batch"), [(3, 5), (6, 1), (9, 33), (6, 0)])
def test_pairs_of_fields(fields, batch, dtype):
    graph, fetches, x = fwfm(fields, 8, dtype)
    random = np.random.default_rng(0)
    value = random.normal(size=[batch, fields, 8]).astype(dtype.as_numpy_dtype)
    value[random.random(value.shape) < 0.2] = -0.0
    ours, stock, packs = run_both(graph, fetches, {x: value})
    assert_same(ours, stock)
    assert kinds(packs) == [KIND] * 2, str(picasso_tf.last_report())
    left = picasso_tf.last_report().ops_after
    assert "StridedSliceGrad" not in left


def large_sums(fields, batch):
    """The gradient of products of pairs, large enough for TensorFlow's memory optimizer
    to add it up in a TemporaryVariable. All values are whole numbers: chance, which
    decides there in which order, makes no difference."""
    graph = tf.Graph()
    with graph.as_default():
        random = np.random.default_rng(3)
        value = random.integers(-3, 4, [batch, fields, 8]).astype(np.float32)
        x = tf1.get_variable("x", initializer=value, use_resource=True)
        rows = x.read_value() * 1
        products = [
            tf.squeeze(rows[:, i : i + 1], 1) * tf.squeeze(rows[:, j : j + 1], 1)
            for i, j in itertools.combinations(range(fields), 2)
        ]
        (grad,) = tf1.gradients(tf.add_n(products), [rows])
        fetches = [tf.reduce_sum(grad, 0)]  # a sum that is fetched stays an AddN
    return graph, fetches


def executed_ops(graph, fetches, config=None):
    options = tf1.RunOptions(output_partition_graphs=True)
    metadata = tf1.RunMetadata()
    with tf1.Session(graph=graph, config=config) as session, graph.as_default():
        session.run(tf1.global_variables_initializer())
        session.run(fetches, options=options, run_metadata=metadata)
    return {node.op for part in metadata.partition_graphs for node in part.node}


def test_sums_of_the_memory_optimizer():
    graph, fetches = large_sums(26, 512)
    assert "TemporaryVariable" in executed_ops(graph, fetches)
    ours, stock, packs = run_both(graph, fetches)
    assert_same(ours, stock)
    assert kinds(packs) == [KIND], str(picasso_tf.last_report())
    left = executed_ops(graph, fetches, picasso_tf.session_config(options=STRICT))
    assert not left & {"TemporaryVariable", "Assign", "AssignAdd", "StridedSliceGrad"}


CUTS = {
    "columns": lambda x: [x[:, i] for i in range(4)],
    "from the end": lambda x: [x[:, -1], x[:, -3:-1], x[:, 1:]],
    "runs": lambda x: [x[:, :2], x[:, 1:4], x[:, 2:100]],
    "first": lambda x: [x[0], x[1:3], x[2]],
    "last": lambda x: [x[:, :, 1:], x[:, :, :2], x[:, :, 2]],
    "with the whole": lambda x: [x[:, 1], x[:, 2], x[:], x],
    "elements": lambda x: [x[0, 1, 2], x[2, 1, 0], x[2, 2, 2]],
}


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("times", [1, 4])
def test_cuts(cut, times):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.Variable(np.random.default_rng(1).normal(size=[3, 4, 5]), name="x")
        value = x.read_value() * 1
        parts = [part for _ in range(times) for part in CUTS[cut](value)]
        loss = tf.add_n(
            [tf.reduce_sum(tf.sin(p) * (i + 1)) for i, p in enumerate(parts)]
        )
        grads = tf1.gradients(loss, [value])
    ours, stock, packs = run_both(graph, grads)
    assert_same(ours, stock)
    assert kinds(packs) == [KIND], str(picasso_tf.last_report())


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (lambda x: [x[:, 0], x[0]], "it sums slices along several axes, or of unknown"),
        (lambda x: [x[:, ::2], x[:, ::3]], "it sums slices along several axes"),
        (lambda x: [x[..., 1], x[..., 2]], "it sums slices along several axes"),
    ],
)
def test_left_alone(cut, reason):
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None, 4, 5])
        loss = tf.add_n([tf.reduce_sum(tf.sin(part)) for part in cut(x)])
        grads = tf1.gradients(loss, [x])
    before = picasso_tf.reports()[-1:]
    value = np.random.default_rng(1).normal(size=[3, 4, 5])
    ours, stock, packs = run_both(graph, grads, {x: value})
    assert_same(ours, stock)
    assert not packs
    report = picasso_tf.reports()[-1]
    assert [report] != before
    assert any(reason in found for found in report.reasons()), str(report)


def test_function():
    table = tf.Variable(np.random.default_rng(0).normal(size=[6, 5, 4]))

    @tf.function
    def grad():
        with tf.GradientTape() as tape:
            x = table * 2
            products = [
                x[:, i] * x[:, j] for i, j in itertools.combinations(range(5), 2)
            ]
            loss = tf.reduce_sum(tf.sin(tf.concat(products, 1)))
        return tape.gradient(loss, table)

    stock = grad().numpy()
    with picasso_tf.enabled(STRICT):
        ours = grad().numpy()
        assert KIND in [pack.kind for pack in picasso_tf.last_report().packs]
    assert_same(ours, stock)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 40),
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 70)),
    dtype=st.sampled_from([tf.float32, tf.float64, tf.float16, tf.bfloat16]),
    seed=st.integers(0, 1_000),
)
def test_adds_as_add_n(count, sizes, dtype, seed):
    """Zeros of both signs, and what is taken as a whole, included."""
    random = np.random.default_rng(seed)
    outer, axis, inner = sizes
    begin, length, slices, padded = [], [], [], []
    for _ in range(count):
        first = int(random.integers(0, axis))
        size = int(random.integers(1, axis - first + 1))
        whole = random.random() < 0.1
        if whole:
            first, size = 0, axis
        value = random.normal(size=[outer, size, inner])
        value[random.random(value.shape) < 0.3] = -0.0
        value = value.astype(dtype.as_numpy_dtype)
        full = np.zeros([outer, axis, inner], dtype.as_numpy_dtype)
        full[:, first : first + size] = value
        begin.append(first)
        length.append(-1 if whole else size)
        slices.append(value)
        padded.append(full)
    module = ops.load_ops()
    ours = module.picasso_packed_slice_sum(
        [outer, axis, inner], slices, axis=1, begin=begin, length=length, pack="test"
    )
    wanted = tf.add_n([tf.constant(full) for full in padded])
    assert ours.shape == wanted.shape
    assert ours.numpy().tobytes() == wanted.numpy().tobytes()


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"axis": 2, "begin": [0], "length": [1]}, "There is no axis 2 in"),
        ({"axis": 1, "begin": [3], "length": [1]}, "A slice of 1 at 3 in"),
        ({"axis": 1, "begin": [0], "length": [2]}, "A slice of 2 at 0 in"),
        ({"axis": 1, "begin": [0, 1], "length": [1]}, "entries, expected 1"),
    ],
)
def test_wrong_slices(attrs, message):
    part = np.zeros([2, 1], np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.load_ops().picasso_packed_slice_sum([2, 3], [part], pack="test", **attrs)
