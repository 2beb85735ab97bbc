"""What is computed from looked-up rows before they are pooled: clipping to a norm, and
its gradient, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import DTYPES, case_of, check, make_table, packed_nodes, random

import picasso_tf

tf1 = tf.compat.v1
ROWS = 20
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01),
}
# Of clip_by_norm and its gradient, and of nothing else here.
CLIPPING = ("RealDiv", "Maximum", "SqrtGrad", "BroadcastTo")


@pytest.fixture(autouse=True)
def clean_slate():
    """In place of the shared fixture, whose cleaning takes longer than most of
    these tests."""
    yield
    picasso_tf.disable()


def tables(dims, dtype=tf.float32):
    rng = np.random.default_rng(0)
    return [
        make_table(f"t{i}", random(rng, [ROWS, dim], dtype))
        for i, dim in enumerate(dims)
    ]


def bag(table, rng, weighted=False, safe=True, combiner="mean", norm=0.5):
    """(pooled rows of clipped rows, feeds of three steps)."""
    ids = tf1.sparse_placeholder(tf.int64, [None, None])
    weights = tf1.sparse_placeholder(table.dtype, [None, None]) if weighted else None
    look_up = tf.nn.safe_embedding_lookup_sparse
    if not safe:
        look_up = tf.nn.embedding_lookup_sparse
    rows = look_up(table, ids, weights, combiner, max_norm=norm)
    feeds = []
    for count in (9, 1, 40):
        where = np.stack([np.arange(count) // 3, np.arange(count) % 3], 1)
        shape = [(count + 2) // 3, 3]
        feed = {ids: (where, rng.integers(0, ROWS, count), shape)}
        if weighted:
            values = rng.random(count).astype(table.dtype.as_numpy_dtype)
            feed[weights] = (where, values, shape)
        feeds.append(
            {key: tf1.SparseTensorValue(*value) for key, value in feed.items()}
        )
    return rows, feeds


def merged(feeds):
    """Feeds of each step, of those of each bag."""
    return [
        {k: v for feed in step for k, v in feed.items()}
        for step in zip(*feeds, strict=True)
    ]


def train(rows, optimizer="adagrad"):
    loss = tf.add_n(
        [tf.reduce_sum(tf.cast(tf.sin(x * 3) * x, tf.float32)) for x in rows]
    )
    return [*rows, loss, OPTIMIZERS[optimizer]().minimize(loss)]


def assert_packed(report, programs: int, members: int) -> None:
    """Both ways are packed, and nothing of them stays."""
    assert [len(m) for m in packed_nodes(report, "row program")] == [members] * programs
    for op in CLIPPING:
        assert op not in report.ops_after, str(report)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bags(weighted, combiner, optimizer):
    def build():
        rng = np.random.default_rng(1)
        bags = [bag(t, rng, weighted, True, combiner) for t in tables((4, 33, 8))]
        fetches = train([rows for rows, _ in bags], optimizer)
        return fetches, merged([feeds for _, feeds in bags]) * 2

    report = check(case_of(build))
    assert_packed(report, 2, 3)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_one_column(weighted, combiner, optimizer):
    """There, TensorFlow leaves out the sums over a row that gradients have."""

    def build():
        rng = np.random.default_rng(1)
        bags = [bag(t, rng, weighted, True, combiner) for t in tables((1, 1, 1))]
        fetches = train([rows for rows, _ in bags], optimizer)
        return fetches, merged([feeds for _, feeds in bags]) * 2

    report = check(case_of(build))
    # Of weighted bags, the gradient is in two steps.
    assert_packed(report, 3 if weighted else 2, 3)


@pytest.mark.parametrize("norm", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_types_and_norms(dtype, norm):
    """Some rows are of zeros alone."""

    def build():
        rng = np.random.default_rng(2)
        made = tables((8, 16), dtype)
        zero = tf1.get_variable("zero", initializer=np.zeros([ROWS, 8], "f"))
        made.append(tf.Variable(tf.cast(zero.initial_value, dtype), name="zeros"))
        bags = [bag(table, rng, safe=False, norm=norm) for table in made]
        fetches = train([rows for rows, _ in bags], "sgd")
        return fetches, merged([feeds for _, feeds in bags]) * 2

    assert_packed(check(case_of(build)), 2, 3)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plain_lookups(optimizer, rank):
    """Rows side by side, whose gradient is cut out of that of all."""

    def build():
        rng = np.random.default_rng(3)
        rows, feeds = [], []
        for i, table in enumerate(tables((4, 8, 4))):
            ids = tf1.placeholder(tf.int64, [None, *[2] * (rank - 1)])
            rows.append(tf.nn.embedding_lookup(table, ids, max_norm=0.3 + i))
            shapes = [(5, 2)[:rank], (1, 2)[:rank], (0, 2)[:rank], (70, 2)[:rank]]
            feeds.append([{ids: rng.integers(0, ROWS, shape)} for shape in shapes])
        return train([tf.concat(rows, -1)], optimizer), merged(feeds)

    report = check(case_of(build))
    assert_packed(report, 2, 3)


def test_forward_alone():
    def build():
        rng = np.random.default_rng(4)
        bags = [bag(table, rng) for table in tables((4, 8))]
        return [rows for rows, _ in bags], merged([feeds for _, feeds in bags])

    assert_packed(check(case_of(build)), 1, 2)


@pytest.mark.parametrize("op", ["Maximum", "RealDiv", "Sum", "SqrtGrad", "Greater"])
def test_fetches_in_the_middle(op):
    """What is fetched stays, and everything is the same."""

    def build():
        rng = np.random.default_rng(5)
        bags = [bag(table, rng) for table in tables((4, 8, 4))]
        fetches = train([rows for rows, _ in bags])
        nodes = tf1.get_default_graph().get_operations()
        inner = [node.outputs[0] for node in nodes if node.type == op]
        return [*inner[:2], *fetches], merged([feeds for _, feeds in bags])

    check(case_of(build))


def test_another_program_of_one_table():
    """One table's rows are clipped in another way: it stays, the others do not."""

    def build():
        rng = np.random.default_rng(6)
        made = tables((4, 8, 4))
        bags = [bag(table, rng) for table in made[:2]]
        ids = tf1.placeholder(tf.int64, [None])
        rows = tf.nn.embedding_lookup(made[2], ids)
        norm = tf.reduce_sum(rows * rows, -1, keepdims=True)
        rows = rows / (1 + norm)
        feeds = [feeds for _, feeds in bags]
        feeds.append([{ids: rng.integers(0, ROWS, 6)}] * 3)
        return train([*[rows for rows, _ in bags], rows]), merged(feeds)

    report = check(case_of(build))
    assert sum(map(len, packed_nodes(report, "row program"))) == 4, str(report)
    assert any("no other rows" in reason for reason in report.reasons())
    assert "RealDiv" in report.ops_after


def test_a_second_rewrite_changes_nothing():
    """A session that runs what a rewritten one ran makes the same packs."""

    def build():
        rng = np.random.default_rng(7)
        bags = [bag(table, rng) for table in tables((4, 8))]
        fetches = train([rows for rows, _ in bags])
        return fetches, merged([feeds for _, feeds in bags])

    case = case_of(build)
    names = [
        [pack.name for pack in check(case).packs if pack.kind == "row program"]
        for _ in range(2)
    ]
    assert names[0] == names[1] and len(names[0]) == 2
