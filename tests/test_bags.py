"""Bags: what embedding_lookup_sparse and its safe form give, bit by bit."""

from __future__ import annotations

import dataclasses
import re
import threading

import numpy as np
import pytest
import tensorflow as tf
from graphs import table as small_table
from helpers_kernels import (
    DTYPES,
    assert_same_trace,
    case_of,
    check,
    make_table,
    packed_config,
    packed_nodes,
    random,
    run,
    stock_config,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.core.protobuf import rewriter_config_pb2
from test_passes import golden, rewrite

import picasso_tf

tf1 = tf.compat.v1
ROWS = 20
COMBINERS = ("sum", "mean", "sqrtn")
# TensorFlow pools rows in chunks of 8, and bags of 10 and more another way.
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 10, 16, 17, 25)
WEIGHTS = (-0.5, 0.0, 0.3, 1.0, 2.2, 0.7131, 1e-30)


@pytest.fixture(autouse=True)
def clean_slate():
    """In place of the shared fixture, whose cleaning takes longer than most of
    these tests."""
    yield
    picasso_tf.disable()


@dataclasses.dataclass(frozen=True)
class Form:
    """How a bag is looked up."""

    combiner: str = "mean"
    dim: int = 8
    safe: bool = True
    weighted: bool = False
    default_id: int | None = None
    rank: int = 2
    dtype: tf.DType = tf.float32
    ids: tf.DType = tf.int64
    weights: tf.DType | None = None  # None: that of the rows

    def values(self, rng, lengths, shuffled=False):
        """(indices, ids, weights, dense_shape) of bags with such lengths."""
        inner = 3 if self.rank == 3 else 1
        indices = [
            (*((b // inner, b % inner) if self.rank == 3 else (b,)), j)
            for b, length in enumerate(lengths)
            for j in range(length)
        ]
        low = -2 if self.safe else 0
        count = len(indices)
        ids = rng.integers(low, ROWS, count).astype(self.ids.as_numpy_dtype)
        weights = rng.choice(WEIGHTS, count)
        weights = np.where(rng.random(count) < 0.5, weights, rng.normal(size=count))
        order = rng.permutation(count) if shuffled else np.arange(count)
        indices = np.array(indices, np.int64).reshape(-1, self.rank)[order]
        shape = [len(lengths) // inner, *([3] if self.rank == 3 else []), 25]
        dtype = (self.weights or self.dtype).as_numpy_dtype
        return indices, ids, weights.astype(dtype), shape

    def feed(self, bag: Bag, rng, lengths, shuffled=False) -> dict:
        indices, ids, weights, shape = self.values(rng, lengths, shuffled)
        feed = {bag.ids: tf1.SparseTensorValue(indices, ids, shape)}
        if bag.weights is not None:
            feed[bag.weights] = tf1.SparseTensorValue(indices, weights, shape)
        return feed


@dataclasses.dataclass
class Bag:
    """Placeholders of a form's inputs, and its result."""

    form: Form
    ids: tf.SparseTensor
    weights: tf.SparseTensor | None
    rows: tf.Tensor


def look_up(form: Form, table, ids, weights):
    if not form.safe:
        return tf.nn.embedding_lookup_sparse(table, ids, weights, form.combiner)
    return tf.nn.safe_embedding_lookup_sparse(
        table, ids, weights, form.combiner, form.default_id
    )


def make_bag(form: Form, table) -> Bag:
    shape = [None] * form.rank
    ids = tf1.sparse_placeholder(form.ids, shape)
    weights = None
    if form.weighted:
        weights = tf1.sparse_placeholder(form.weights or form.dtype, shape)
    return Bag(form, ids, weights, look_up(form, table, ids, weights))


def make_rows(form: Form, name: str, seed: int = 0):
    rng = np.random.default_rng(seed)
    return make_table(name, random(rng, [ROWS, form.dim], form.dtype))


def make_bags(forms, shared: bool = False) -> list[Bag]:
    """A bag for each form; `shared`: with a second one on the first one's table."""
    bags = []
    for k, form in enumerate(forms):
        table = make_rows(form, f"t{k}", k)
        bags.append(make_bag(form, table))
        if shared and k == 0:
            bags.append(make_bag(form, table))
    return bags


def feeds_of(bags, lengths_of_steps, seed=0) -> list[dict]:
    """A feed per step; each bag's ids are its own, and so is their order."""
    rng = np.random.default_rng(seed)
    feeds = []
    for lengths in lengths_of_steps:
        feed = {}
        for bag in bags:
            lengths = [lengths[-1], *lengths[:-1]] if lengths else []
            feed |= bag.form.feed(bag, rng, lengths)
        feeds.append(feed)
    return feeds


def some_lengths(safe: bool, steps: int = 3) -> list[list[int]]:
    """Every length of LENGTHS; then, where that may be, no bags; then one."""
    long = list(LENGTHS[1:]) if not safe else [*LENGTHS, 0]
    short = [[], [3] * 3] if safe else [[3] * 3, [17] * 3]
    return [long + [1] * (-len(long) % 3), *short][:steps]


def loss_of(tensors) -> tf.Tensor:
    return tf.add_n(
        [tf.reduce_sum(tf.cast(tf.sin(x * 3) * x, tf.float32)) for x in tensors]
    )


def train(bags, optimizer=None, joined: bool = True) -> list:
    """Fetches of a training step: what was looked up, the loss, the update."""
    rows = [tf.reshape(bag.rows, [-1, bag.form.dim]) for bag in bags]
    if joined:
        rows = [tf.concat(rows, 1)]
    loss = loss_of(rows)
    optimizer = optimizer or tf1.train.AdagradOptimizer(0.1)
    return [*rows, loss, optimizer.minimize(loss)]


def check_training(forms, optimizer=None, shared=False, joined=True):
    safe = all(form.safe for form in forms)

    def build():
        bags = make_bags(forms, shared)
        fetches = train(bags, optimizer and optimizer(), joined)
        return fetches, feeds_of(bags, some_lengths(safe))

    report = check(case_of(build))
    assert_all_packed(report, len(forms), len(forms) + shared)
    return report


def assert_all_packed(report, updates: int, lookups: int) -> None:
    assert sum(map(len, packed_nodes(report, "update"))) == updates, str(report)
    assert sum(map(len, packed_nodes(report, "lookup"))) == lookups, str(report)
    for gone in (
        "ResourceGather", "Unique", "Where", "SparseFillEmptyRows", "SparseReshape",
        "SegmentSum", "DivNoNan", "UnsortedSegmentSum", "SparseSegmentMean",
        "SparseSegmentMeanGrad",
    ):  # fmt: skip
        assert gone not in report.ops_after, str(report)


def forms_of(**fields) -> list[Form]:
    """One for each combiner, of various dims."""
    return [
        Form(combiner=combiner, dim=dim, **fields)
        for combiner, dim in zip((*COMBINERS, "mean"), (4, 33, 8, 1), strict=True)
    ]


# -- forms ---------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "kind",
    [
        {"safe": False},
        {"safe": True},
        {"default_id": 3},
        {"rank": 3},
        {"ids": tf.int32},
    ],
    ids=lambda kind: "-".join(map(str, kind)),
)
def test_training(kind, weighted):
    check_training(forms_of(weighted=weighted, **kind), shared="safe" in kind)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf1.train.GradientDescentOptimizer(0.1),
        lambda: tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
        lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    ],
    ids=["sgd", "ftrl", "momentum"],
)
def test_optimizers(optimizer, weighted):
    check_training(forms_of(weighted=weighted), optimizer, shared=True, joined=False)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda d: d.name)
def test_types(dtype, safe, weighted):
    # As it is, weights may be of another type than the rows.
    weights = None if safe else tf.float32
    forms = forms_of(safe=safe, weighted=weighted, dtype=dtype, weights=weights)
    check_training(forms, shared=True)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_denormals(combiner):
    """TensorFlow copies the row of a bag of one, and its threads take denormals for
    zero where they compute."""

    def build():
        values = np.full([ROWS, 11], 1e-40, np.float32)
        values[::2] = 1.5
        table = make_table("t", values)
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        rows = tf.nn.safe_embedding_lookup_sparse(table, ids, None, combiner)
        lengths = [1] * 8 + [2] * 8 + [0, 1, 3, 12]
        bag, rng = Bag(Form(), ids, None, rows), np.random.default_rng(4)
        return [rows], [bag.form.feed(bag, rng, lengths)]

    check(case_of(build))


def test_ten_steps():
    """Long enough for a wrong order of sums to show."""

    def build():
        bags = make_bags(forms_of(weighted=True), shared=True)
        return train(bags), feeds_of(bags, some_lengths(True, 1) * 10)

    assert_all_packed(check(case_of(build)), 4, 5)


@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
@pytest.mark.parametrize(
    "switch",
    [
        {"arithmetic_optimization": rewriter_config_pb2.RewriterConfig.OFF},
        {"disable_meta_optimizer": True},
        {"optimizers": ["constfold", "dependency"]},
    ],
    ids=lambda switch: next(iter(switch)),
)
def test_weights_that_are_not_squared(switch, safe):
    """Without TensorFlow's arithmetic optimizer, weights ** 2 stays a Pow, of other
    bits than a Square: that divisor and the quotient are left to stock."""
    base = stock_config()
    options = rewriter_config_pb2.RewriterConfig(**switch)
    base.graph_options.rewrite_options.CopyFrom(options)

    def build():
        bags = make_bags(forms_of(weighted=True, safe=safe))
        return train(bags, joined=False), feeds_of(bags, some_lengths(safe) * 2)

    case = case_of(build)
    expected = run(case, base)
    strict = picasso_tf.Options(strict=True)
    got = run(case, picasso_tf.session_config(base, strict))
    assert_same_trace(case, got, expected)
    report = picasso_tf.last_report()
    assert sum(map(len, packed_nodes(report, "lookup"))) == 4, str(report)
    assert sum(map(len, packed_nodes(report, "update"))) == 4, str(report)
    assert report.ops_after["Pow"] == 1 and report.ops_after["DivNoNan"] == 2
    assert any("squared" in reason for reason in report.reasons())


@settings(max_examples=25)
@given(data=st.data())
def test_any_bags(data):
    """Forward alone: any lengths, any order of the ids where that is allowed."""
    draw = data.draw
    safe = draw(st.booleans())
    rank = draw(st.sampled_from([2, 2, 3]))
    forms = [
        Form(
            combiner=draw(st.sampled_from(COMBINERS)),
            dim=draw(st.sampled_from([1, 3, 4, 8, 16, 33])),
            safe=safe,
            weighted=draw(st.booleans()),
            default_id=draw(st.sampled_from([None, 0, 5])) if safe else None,
            rank=rank,
            ids=draw(st.sampled_from([tf.int32, tf.int64])),
        )
        for _ in range(2)
    ]
    count = draw(st.integers(0 if safe else 1, 4)) * 3
    lengths = draw(
        st.lists(
            st.integers(0 if safe else 1, 25) | st.sampled_from(LENGTHS[1:]),
            min_size=count,
            max_size=count,
        )
    )
    shuffled = safe and draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 99)))

    def build():
        bags = make_bags(forms)
        feed = {}
        for bag in bags:
            feed |= bag.form.feed(bag, rng, lengths, shuffled)
        return [bag.rows for bag in bags], [feed]

    report = check(case_of(build))
    assert sum(map(len, packed_nodes(report, "lookup"))) == 2


# -- in models -----------------------------------------------------------------


def test_one_concat_of_everything():
    """Bags, a plain lookup and a dense tensor are written into one tensor."""
    rng = np.random.default_rng(3)

    def build():
        bags = make_bags([Form(weighted=True), Form("sqrtn", dim=3)])
        ids = tf1.placeholder(tf.int64, [None])
        dense = tf1.placeholder(tf.float32, [None, 5])
        plain = tf.nn.embedding_lookup(make_rows(Form(dim=4), "plain"), ids)
        x = tf.concat([bags[0].rows, plain, dense, bags[1].rows], 1)
        loss = loss_of([x])
        update = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        feeds = feeds_of(bags, [[2, 0, 9, 25], [0], [1, 1]])
        for feed, count in zip(feeds, (4, 1, 2), strict=True):
            feed[ids] = rng.integers(0, ROWS, count)
            feed[dense] = rng.normal(size=[count, 5])
        return [x, loss, update], feeds

    report = check(case_of(build))
    assert_all_packed(report, 3, 3)
    assert "ConcatV2" not in report.ops_after
    assert any("1 joins folded" in pack.detail for pack in report.packs)


def test_golden_safe_bags():
    """Two safe bags, one with weights, trained: two ops read the SparseTensors."""
    graph = tf1.Graph()
    with graph.as_default():
        rows = []
        for name, weighted in (("a", False), ("b", True)):
            ids = tf1.sparse_placeholder(tf.int64, [None, None], name=f"{name}_ids")
            weights = None
            if weighted:
                weights = tf1.sparse_placeholder(
                    tf.float32, [None, None], name=f"{name}_weights"
                )
            rows.append(
                tf.nn.safe_embedding_lookup_sparse(small_table(name), ids, weights)
            )
        loss = tf.reduce_sum(tf.concat(rows, 1) ** 2, name="loss")
        tf1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
    after, _ = rewrite(graph, ["loss", "train"])
    golden("bags", after)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_in_a_function(weighted):
    """tf.function, with the gradient by a tape and a legacy Keras optimizer's
    sparse update."""
    form = Form(weighted=weighted, dim=4)
    rng = np.random.default_rng(5)
    inputs = [form.values(rng, [3, 0, 9, 17]) for _ in range(2)]

    def train_step(tables, accumulators, values):
        with tf.GradientTape() as tape:
            rows = []
            for table, (indices, ids, weights, shape) in zip(
                tables, values, strict=True
            ):
                sparse = tf.SparseTensor(indices, ids, shape)
                weights = tf.SparseTensor(indices, weights, shape)
                rows.append(look_up(form, table, sparse, weights if weighted else None))
            loss = loss_of([tf.concat(rows, 1)])
        gradients = tape.gradient(loss, tables)
        for table, slot, gradient in zip(tables, accumulators, gradients, strict=True):
            unique, positions = tf.unique(gradient.indices)
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slot.handle,
                lr=0.1,
                epsilon=1e-7,
                grad=tf.math.unsorted_segment_sum(
                    gradient.values, positions, tf.shape(unique)[0]
                ),
                indices=unique,
            )
        return loss

    def outcome():
        tables = [make_rows(form, f"t{k}", k) for k in range(2)]
        slots = [tf.Variable(tf.ones_like(table)) for table in tables]
        step = tf.function(lambda values: train_step(tables, slots, values))
        values = tf.nest.map_structure(tf.convert_to_tensor, inputs)
        losses = [step(values).numpy() for _ in range(3)]
        return [*losses, *(variable.numpy() for variable in (*tables, *slots))]

    stock = outcome()
    with picasso_tf.enabled(picasso_tf.Options(strict=True)):
        ours = outcome()
    for a, b in zip(ours, stock, strict=True):
        assert a.tobytes() == b.tobytes()
    report = [r for r in picasso_tf.reports() if r.packs][-1]
    assert {pack.kind for pack in report.packs} == {"lookup", "update"}
    assert "SparseFillEmptyRows" not in report.ops_after


# -- what stays ----------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "op", ["ResourceGather", "Select", "Unique", "SparseFillEmptyRows"]
)
def test_fetches_in_the_middle(op, weighted):
    def build():
        bags = make_bags([Form(weighted=weighted), Form()])
        fetches = train(bags)
        graph = tf1.get_default_graph()
        inner = [n.outputs[0] for n in graph.get_operations() if n.type == op]
        return [*inner[:2], *fetches], feeds_of(bags, some_lengths(True))

    check(case_of(build))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("port", ["rows", "pooled"])
def test_feeds_in_the_middle(port, weighted):
    """What is fed is read, whatever is fed."""

    def build():
        bags = make_bags([Form(weighted=weighted), Form(), Form()])
        fetches = train(bags)
        feeds = feeds_of(bags, [[3, 2, 1]] * 2)
        fed = bags[0].rows
        if port == "pooled":
            pools = ("DivNoNan",) if weighted else ("SparseSegmentMean",)
            graph = tf1.get_default_graph()
            fed = next(n for n in graph.get_operations() if n.type in pools).outputs[0]
        for feed in feeds:
            feed[fed] = np.full([3, 8], 0.25)
        return fetches, feeds

    check(case_of(build))


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_a_gradient_that_stays(weighted, rank, joined):
    """Of one table, the gradient is made dense: it goes on reading what it read."""

    def build():
        forms = [Form(weighted=weighted, combiner=c, rank=rank) for c in COMBINERS]
        bags = make_bags(forms)
        *rows, loss, _ = train(bags, joined=joined)
        table = tf1.global_variables()[0]
        update = table.assign_sub(tf.convert_to_tensor(tf.gradients(loss, table)[0]))
        return [*rows, loss, update.op], feeds_of(bags, some_lengths(True))

    report = check(case_of(build))
    assert "AssignSubVariableOp" in report.ops_after
    assert sum(map(len, packed_nodes(report, "lookup"))) == 3


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize(
    "kind",
    [
        {"safe": False},
        {"default_id": 3},
        {"rank": 3, "ids": tf.int32},
        {"dtype": tf.float64},
        {"dtype": tf.half},
        {"dtype": tf.bfloat16},
    ],
    ids=lambda kind: "-".join(map(str, kind.values())),
)
def test_gradients_that_l2_makes_dense(kind, weighted):
    """They are summed per id as ever, into a tensor of the table's shape."""
    forms = forms_of(weighted=weighted, **kind)

    def build():
        bags = make_bags(forms)
        rows = [tf.reshape(bag.rows, [-1, bag.form.dim]) for bag in bags]
        loss = loss_of([tf.concat(rows[:2], 1), *rows[2:]])
        tables = tf1.trainable_variables()
        l2 = [tf.cast(tf.nn.l2_loss(table), tf.float32) for table in tables]
        train = tf1.train.AdagradOptimizer(0.1).minimize(loss + 0.01 * tf.add_n(l2))
        return [*rows, loss, train], feeds_of(bags, some_lengths(forms[0].safe))

    report = check(case_of(build))
    assert sum(map(len, packed_nodes(report, "segment sum"))) == 4, str(report)
    if weighted:  # their products are left to TensorFlow's optimizers
        return
    for gone in ("SparseFillEmptyRows", "Unique", "SparseSegmentMeanGrad"):
        assert gone not in report.ops_after, str(report)


def test_weights_with_a_gradient():
    """Weights that are trained keep the rows that their gradient reads."""

    def build():
        form = Form(weighted=True)
        factor = tf.Variable(1.5, name="factor")
        bags, rows = [], []
        for k in range(2):
            bag = make_bag(form, make_rows(form, f"t{k}", k))
            weights = bag.weights.with_values(bag.weights.values * factor)
            rows.append(look_up(form, tf1.global_variables()[-1], bag.ids, weights))
            bags.append(bag)
        loss = loss_of(rows)
        update = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        return [loss, update], feeds_of(bags, some_lengths(True))

    report = check(case_of(build))
    assert any("gradient of the weights" in reason for reason in report.reasons())


def test_products_that_are_no_weights():
    """Rows times a matrix of factors are not weighted: one factor for each id."""

    def build():
        fetches, feed = [], {}
        for k in range(2):
            ids = tf1.placeholder(tf.int64, [None])
            factors = tf1.placeholder(tf.float32, [None, 4])
            segments = tf1.placeholder(tf.int32, [None])
            unique, positions = tf.unique(ids)
            rows = tf.nn.embedding_lookup(make_rows(Form(dim=4), f"t{k}", k), unique)
            product = tf.gather(rows, positions) * factors
            fetches.append(tf.math.segment_sum(product, segments))
            feed |= {ids: [1, 2, 2], segments: [0, 0, 1]}
            feed[factors] = np.arange(12).reshape(3, 4)
        return fetches, [feed]

    report = check(case_of(build))
    assert "SegmentSum" in report.ops_after


def test_another_quotient_stays():
    """Of sums over sums that TensorFlow did not write, the sum is packed alone."""

    def build():
        fetches, feed = [], {}
        for k in range(2):
            bag = make_bag(
                Form("sum", dim=4, safe=False, weighted=True),
                make_rows(Form(dim=4), f"t{k}", k),
            )
            fetches.append(tf.math.divide_no_nan(bag.rows, [[3.0]]))
            fetches.append(bag.rows / 3)
            feed |= bag.form.feed(bag, np.random.default_rng(k), [3, 1])
        return fetches, [feed]

    report = check(case_of(build))
    assert report.ops_after["DivNoNan"] == 2
    assert "SegmentSum" not in report.ops_after


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_max_norm(weighted):
    """Clipped rows are pooled by TensorFlow; they are looked up together, and clipped
    together."""

    def build():
        rows, feed = [], {}
        form = Form(weighted=weighted, safe=False, dim=4)
        for k in range(2):
            table = make_rows(form, f"t{k}", k)
            bag = make_bag(form, table)
            rows.append(
                tf.nn.safe_embedding_lookup_sparse(
                    table, bag.ids, bag.weights, max_norm=0.5
                )
            )
            feed |= form.feed(bag, np.random.default_rng(k), [3, 1, 9])
        loss = loss_of(rows)
        update = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        return [*rows, loss, update], [feed] * 2

    report = check(case_of(build))
    assert "ResourceGather" not in report.ops_after
    assert "Unique" not in report.ops_after, str(report)
    assert [len(members) for members in packed_nodes(report, "row program")] == [2, 2]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("trained", [False, True], ids=["forward", "trained"])
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
def test_values_of_tables(safe, trained, dtype):
    """Pooled from a table's value: ids are not made unique, nor is it read whole."""

    def build():
        bags = []
        for k, combiner in enumerate(COMBINERS):
            form = Form(combiner, dim=(4, 33, 1)[k], safe=safe, dtype=dtype)
            bags.append(make_bag(form, make_rows(form, f"t{k}", k).read_value()))
        feeds = feeds_of(bags, some_lengths(safe))
        if trained:
            return train(bags, tf1.train.GradientDescentOptimizer(0.1)), feeds
        return [bag.rows for bag in bags], feeds

    report = check(case_of(build))
    assert sum(map(len, packed_nodes(report, "lookup"))) == 3
    for pooling in ("Sum", "Mean", "SqrtN"):
        for suffix in ("", "Grad", "GradV2"):
            assert f"SparseSegment{pooling}{suffix}" not in report.ops_after
    if trained:
        assert sum(map(len, packed_nodes(report, "update"))) == 3
    else:
        assert "ReadVariableOp" not in report.ops_after


# -- errors --------------------------------------------------------------------


def errors_of(build) -> tuple[str, str]:
    """What stock says, and what we say."""
    case = case_of(build)
    texts = []
    for config in (stock_config(), packed_config()):
        with pytest.raises(tf.errors.OpError) as error:
            run(case, config)
        assert isinstance(error.value, tf.errors.InvalidArgumentError)
        texts.append(error.value.message)
    report = picasso_tf.last_report()
    assert report.packs
    return tuple(texts)


def build_with(form: Form, indices, ids, shape):
    """Two bags, of which the second has these ids."""

    def build():
        bags = make_bags([form, form])
        feed = form.feed(bags[0], np.random.default_rng(0), [1, 2])
        for sparse, values in ((bags[1].ids, ids), (bags[1].weights, [1.0] * len(ids))):
            if sparse is not None:
                feed[sparse] = tf1.SparseTensorValue(indices, values, shape)
        return [bag.rows for bag in bags], [feed]

    return build


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
@pytest.mark.parametrize("bad", [ROWS, 10**6])
def test_bad_ids(bad, safe, weighted):
    form = Form(safe=safe, weighted=weighted)
    ids = [4, 4, bad, 1]
    stock, ours = errors_of(
        build_with(form, [[0, 0], [0, 1], [1, 0], [1, 1]], ids, [2, 2])
    )
    text = f"= {bad} is not in [0, {ROWS})"
    found = re.search(rf"indices\[\d+\] {re.escape(text)}", ours)
    assert found, ours
    # TensorFlow's optimizers may have a pooling op read the table itself.
    assert found.group() in stock or f"== {bad} out of range [0, {ROWS})" in stock


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_negative_ids_where_they_count(weighted):
    form = Form(safe=False, weighted=weighted)
    stock, ours = errors_of(build_with(form, [[0, 0], [1, 0]], [3, -1], [2, 1]))
    text = re.search(r"indices\[\d+\] = -1 is not in \[0, \d+\)", stock).group()
    assert text in ours


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_segments_that_fall(weighted):
    form = Form(safe=False, weighted=weighted)
    stock, ours = errors_of(build_with(form, [[1, 0], [0, 0]], [3, 4], [2, 1]))
    assert "segment ids are not increasing" in stock
    assert "segment ids are not increasing" in ours


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_rows_outside_of_the_dense_shape(weighted):
    form = Form(weighted=weighted)
    stock, ours = errors_of(build_with(form, [[0, 0], [5, 0]], [3, 4], [2, 1]))
    assert "indices(1, 0) is invalid" in stock
    assert "indices(1, 0) is invalid" in ours


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
@pytest.mark.parametrize(
    ("ids", "count"),
    [
        ([1, 2, 3, 2, 4], 1),
        ([1, -1, -2], 1),
        ([-1, 1], 1),
        ([1, 2, 3], 4),
        ([2], 2),
        ([-2], 2),
        ([2], 0),
        ([], 1),
        ([-1, -1], 0),
    ],
    ids=str,
)
def test_another_number_of_weights(ids, count, safe, combiner):
    """A single weight is one for all ids where stock broadcasts it; where stock
    fails, so do we."""
    if not safe and min(ids, default=0) < 0:
        pytest.skip("an error by itself")
    form = Form(combiner, dim=4, safe=safe, weighted=True)

    def build():
        bags = make_bags([form, form])
        feed = {}
        for bag in bags:
            for sparse, values in ((bag.ids, ids), (bag.weights, [2.5] * count)):
                where = [[i // 2, i] for i in range(len(values))]
                where = np.array(where, np.int64).reshape(-1, 2)
                feed[sparse] = tf1.SparseTensorValue(where, values, [3, 6])
        return train(bags, joined=False), [feed]

    case = case_of(build)
    try:
        expected = run(case, stock_config())
    except tf.errors.InvalidArgumentError:
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(case, packed_config())
        return
    assert_same_trace(case, run(case, packed_config()), expected)
    assert_all_packed(picasso_tf.last_report(), 2, 2)


# -- threads -------------------------------------------------------------------


def test_threads():
    """Many threads run one graph, each with other bags, and get their own."""

    def build():
        bags = make_bags(forms_of(weighted=True) + forms_of())
        lengths = [[i % 26, (7 * i) % 26, 3, 0] for i in range(8)]
        return [bag.rows for bag in bags], feeds_of(bags, lengths)

    case = case_of(build)
    expected = run(case, stock_config()).values
    wrong = []
    with tf1.Session(graph=case.graph, config=packed_config()) as session:
        session.run(case.init)

        def loop(number):
            for _ in range(10):
                got = session.run(case.fetches, case.feeds[number])
                if any(
                    a.tobytes() != b.tobytes()
                    for a, b in zip(got, expected[number], strict=True)
                ):
                    wrong.append(number)

        threads = [threading.Thread(target=loop, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert picasso_tf.last_report().packs
