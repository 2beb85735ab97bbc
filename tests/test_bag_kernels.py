"""Packs of what is left of bags whose rows are not those of a table: the pooling, its
gradient, and what prepares the ids, against stock TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, run, tf1
from helpers_kernels import DTYPES, case_of, check, packed_nodes
from test_front import check_front, graph_of, placeholder, reasons
from test_front_sparse import assert_same_failure
from test_rows import bag, merged, tables, train

import picasso_tf

POOLS = {
    "sum": (tf.raw_ops.SparseSegmentSum, tf.raw_ops.SparseSegmentSumGrad),
    "mean": (tf.raw_ops.SparseSegmentMean, tf.raw_ops.SparseSegmentMeanGrad),
    "sqrtn": (tf.raw_ops.SparseSegmentSqrtN, tf.raw_ops.SparseSegmentSqrtNGrad),
}


def fed(feed, value, dtype, shape=None):
    """A placeholder that is fed a value."""
    value = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype)
    tensor = placeholder(dtype, shape)
    feed[tensor] = value
    return tensor


# -- pooling -------------------------------------------------------------------


@pytest.mark.parametrize("index_types", [(tf.int32, tf.int64), (tf.int64, tf.int32)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_pooling(dtype, index_types):
    """Bags of 0 to 40 rows, all combiners in one op, rows of any rank; and back. In
    gradients, a first summand of -0.0 stays one on 2.15 alone."""

    def build():
        rng, feed, fetches = np.random.default_rng(0), {}, []
        shapes = [(30, 1), (30, 33), (1, 8), (30, 2, 3), (30,), (30, 0), (0, 4)]
        for i, shape in enumerate(shapes):
            sizes = rng.permutation([0, 1, 2, 7, 8, 9, 10, 16, 40]) * (shape[0] > 0)
            segments = np.repeat(np.arange(sizes.size), sizes)
            positions = rng.integers(0, max(shape[0], 1), segments.size)
            pool, back = POOLS[list(POOLS)[i % 3]]
            at = fed(feed, positions, index_types[0], [None])
            of = fed(feed, segments, index_types[1], [None])
            rows = fed(feed, rng.normal(size=shape), dtype, [None, *shape[1:]])
            fetches.append(pool(data=rows, indices=at, segment_ids=of))
            bags = max(sizes.size if segments.size else 0, 1)
            grad = rng.choice([-1.1, -0.0, 2.3], size=(bags, *shape[1:]))
            grad = fed(feed, grad, dtype, [None, *shape[1:]])
            count = tf.shape(rows)[0] if i % 2 else fed(feed, shape[0], tf.int32, [])
            fetches.append(
                back(grad=grad, indices=at, segment_ids=of, output_dim0=count)
            )
        return fetches, feed

    check_front(build, pooling=[7], pooling_gradient=[4, 3])


@pytest.mark.parametrize(
    ("positions", "segments", "text"),
    [
        ([0, 5], [0, 0], r"Bad: indices\[1\] == 5 out of range \[0, 3\)"),
        ([0, -1], [0, 0], r"Bad: indices\[1\] == -1 out of range \[0, 3\)"),
        ([0, 1], [0, -1], "segment ids must be >= 0"),
        ([0, 1], [-1, 0], r"Segment id -1 out of range \[0, 1\), possibly"),
        ([0, 1], [3, 1], "segment ids are not increasing"),
        ([0, 1, 2], [3, 1], "segment_ids and indices should have same size"),
        ([[0]], [3], "indices should be a vector"),
    ],
)
def test_pooling_fails(positions, segments, text):
    def build():
        feed, fetches = {}, []
        for _ in range(2):
            rows = fed(feed, np.ones([3, 2]), tf.float32)
            at, of = (fed(feed, x, tf.int32) for x in (positions, segments))
            fetches.append(POOLS["mean"][0](data=rows, indices=at, segment_ids=of))
        return fetches, feed

    assert_same_failure(build, text, {"pooling": [2]})


@pytest.mark.parametrize(
    ("positions", "segments", "count", "text"),
    [
        ([0, 5], [0, 0], 4, r"Index 5 out of range \[0, 4\)"),
        ([0, 1], [0, 7], 4, "Invalid number of segments"),
        ([0, 1], [7, 1], 4, r"Segment id 7 out of range \[0, 3\)"),
        ([0, 1], [-1, 1], 4, r"Segment id -1 out of range \[0, 3\)"),
        ([0, 1, 2], [0, 1], 4, "segment_ids and indices should have same size"),
        ([0, 1], [0, 1], -4, "non-negative"),
        ([0, 1], [0, 1], [4], "output_dim0 should be a scalar"),
    ],
)
@pytest.mark.parametrize("combiner", ["sum", "sqrtn"])
def test_gradient_fails(positions, segments, count, text, combiner):
    def build():
        feed, fetches = {}, []
        for _ in range(2):
            grad = fed(feed, np.ones([3, 2]), tf.float32)
            at, of = (fed(feed, x, tf.int32) for x in (positions, segments))
            count_ = fed(feed, count, tf.int32)
            back = POOLS[combiner][1]
            fetches.append(
                back(grad=grad, indices=at, segment_ids=of, output_dim0=count_)
            )
        return fetches, feed

    assert_same_failure(build, text, {"pooling_gradient": [2]})


# -- ids -----------------------------------------------------------------------


@pytest.mark.parametrize("index", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_unique(dtype, index):
    def build():
        rng, feed, fetches = np.random.default_rng(0), {}, []
        info = np.iinfo(dtype.as_numpy_dtype)
        values = [[], [3], [7, 7, -7], [info.min, info.max, 0, info.min]]
        values += [rng.integers(-50, 50, 3000), rng.integers(0, 2**30, 5000)]
        values += [np.arange(4096) << 16]
        for value in values:
            x = fed(feed, value, dtype, [None])
            fetches.extend(map(tf.identity, tf.unique(x, index)))
        return fetches, feed

    check_front(build, unique=[7])


def test_unique_of_text_is_left_alone():
    def build():
        feed = {}
        xs = [placeholder(tf.string, [None]) for _ in range(2)]
        feed = {x: ["a", "b", "a"] for x in xs}
        return [y for x in xs for y in tf.unique(x)], feed

    graph, fetches, feed = graph_of(build)
    assert_same(run(graph, fetches, feed, STRICT), run(graph, fetches, feed))


FILLED = [
    ([[0, 0], [0, 1], [2, 0]], [4, 2]),
    ([[0, 0], [1, 3]], [2, 4]),  # full, and in order
    ([[1, 0], [0, 3]], [2, 4]),  # full, in another order
    ([[3, 1], [0, 0], [3, 0], [0, 2]], [5, 4]),
    (np.zeros([0, 2]), [3, 4]),
    (np.zeros([0, 2]), [0, 4]),
    ([[0], [2]], [3]),
    ([[0, 1, 2], [2, 0, 0]], [3, 4, 5]),
]
FILLED_TYPES = ["string", "int32", "int64", *(dtype.name for dtype in DTYPES)]


def fill(feed, indices, shape, dtype="int64", otherwise=1, size=None):
    size = len(indices) if size is None else size
    values = np.arange(size) + 5
    if dtype == "string":
        values, otherwise = [f"value {v}" * 9 for v in values], "none"
    return tf.raw_ops.SparseFillEmptyRows(
        indices=fed(feed, indices, tf.int64),
        values=fed(feed, np.array(values, object if dtype == "string" else None),
                   dtype),
        dense_shape=fed(feed, shape, tf.int64),
        default_value=tf.constant(otherwise, dtype),
    )  # fmt: skip


@pytest.mark.parametrize("ports", [[0, 1, 2, 3], [1]], ids=["all", "values"])
@pytest.mark.parametrize("dtype", FILLED_TYPES)
def test_filling_rows(dtype, ports):
    def build():
        feed, fetches = {}, []
        for indices, shape in FILLED:
            filled = fill(feed, indices, shape, dtype)
            fetches.extend(tf.identity(filled[port]) for port in ports)
        return fetches, feed

    check_front(build, row_fill=[len(FILLED)])


@pytest.mark.parametrize(
    ("indices", "shape", "size", "text"),
    [
        ([[0, 0], [1, 1]], [3, 2], 1, r"The length of `values` \(1\) must match the"),
        ([[0, 0], [5, 1]], [3, 2], 2, r"indices\(1, 0\) is invalid: 5 >= 3"),
        ([[0, 0], [-5, 1]], [3, 2], 2, r"indices\(1, 0\) is invalid: -5 >= 3"),
        ([[0, 0]], [0, 2], 1, r"dense_shape\[0\] = 0 but indices.shape\[0\] = 1"),
        ([[0, 0]], [3, 2, 1], 1, r"The length of `dense_shape` \(3\) must match the"),
        (np.zeros([1, 0]), [], 1, "Dense shape cannot be empty"),
        ([0, 0], [3, 2], 1, "indices must be a matrix"),
        ([[0, 0]], 3, 1, "dense_shape must be a vector"),
    ],
)
def test_filling_rows_fails(indices, shape, size, text):
    def build():
        feed = {}
        fetches = [
            tf.identity(fill(feed, indices, shape, size=size).output_values)
            for _ in range(2)
        ]
        return fetches, feed

    assert_same_failure(build, text, {"row_fill": [2]})


def keep(mask, *tensors):
    places = tf.reshape(tf.where(mask), [-1])
    return [tf.gather(x, places) for x in tensors]


@pytest.mark.parametrize("test", ["mask", ">", ">="])
@pytest.mark.parametrize("dtype", ["int64", *(dtype.name for dtype in DTYPES)])
def test_filters(dtype, test):
    """All, some and none are kept; what is tested may be empty, and not a number."""

    def build():
        feed, fetches = {}, []
        for value in ([1, 2, 3, 4], [0, -1, 2, 0, -7], [-1, -2], [], [0]):
            tested = np.array(value, float)
            if dtype != "int64" and tested.size > 2:
                tested[1] = np.nan
            x = fed(feed, tested, dtype, [None])
            y = fed(feed, np.arange(2 * tested.size).reshape(-1, 2), tf.int64)
            zero = tf.constant(0, dtype)
            mask = x >= zero if test == ">=" else x > zero
            if test == "mask":
                mask = tf.logical_or(mask, x < zero - 5)
            fetches.extend(keep(mask, x, y))
        return fetches, feed

    report = check_front(build, filter=[5])
    assert "Where" not in report.ops_after


def test_filters_by_more_dimensions():
    """Where then gives the indices of each dimension."""

    def build():
        feed, fetches = {}, []
        for mask in ([[True, False], [False, True]], [[False, False]]):
            x = fed(feed, [10, 11, 12], tf.int64, [None])
            fetches.extend(keep(fed(feed, mask, tf.bool), x, -x))
        return fetches, feed

    check_front(build, filter=[2])


def test_filters_fail():
    def build():
        feed, fetches = {}, []
        for _ in range(2):
            x = fed(feed, [1, -1, 1, 1], tf.int64, [None])
            short = fed(feed, [[1], [2], [3]], tf.int64, [None, 1])
            fetches.extend(keep(x > 0, x, short))
        return fetches, feed

    text = r"indices\[2\] = 3 is not in \[0, 3\)"
    assert_same_failure(build, text, {"filter": [2]})


def test_filters_whose_places_others_read():
    def build():
        feed, fetches = {}, []
        for _ in range(2):
            x = fed(feed, [1, -1, 1, 1], tf.int64, [None])
            places = tf.reshape(tf.where(x > 0), [-1])
            fetches.extend([tf.gather(x, places), places * 2])
            fetches.append(tf.identity(tf.unique(x).y))
        return fetches, feed

    report = check_front(build, unique=[2])
    assert "others read the places that it keeps" in reasons(report)


# -- all of it -----------------------------------------------------------------

STOCK = ("Where", "SparseFillEmptyRows", "Unique", "SegmentSum", "UnsortedSegmentSum")
STOCK += tuple(f"SparseSegment{n}{g}" for n in ("Sum", "Mean", "SqrtN")
               for g in ("", "Grad"))  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
def test_clipped_bags(safe, weighted, combiner, dtype):
    def build():
        rng = np.random.default_rng(1)
        bags = [
            bag(table, rng, weighted, safe, combiner)
            for table in tables((4, 33, 1, 8, 1), dtype)
        ]
        fetches = train([rows for rows, _ in bags])
        return fetches, merged([feeds for _, feeds in bags]) * 2

    report = check(case_of(build))
    for op in STOCK:
        assert op not in report.ops_after, str(report)
    kind = "weighted_pooling" if weighted else "pooling"
    assert [len(m) for m in packed_nodes(report, kind)] == [5]
    assert [len(m) for m in packed_nodes(report, f"{kind}_gradient")] == [5]
    assert [len(m) for m in packed_nodes(report, "unique")] == [5]


def test_trained_weights():
    """Their gradient reads the rows before they are pooled: that stays."""

    def build():
        rng = np.random.default_rng(1)
        where = np.stack([np.arange(9) // 3, np.arange(9) % 3], 1)
        rows = []
        for i, table in enumerate(tables((4, 8))):
            values = tf.Variable(np.linspace(0.5, 1.5, 9).astype("f"), name=f"w{i}")
            ids = tf.SparseTensor(where, rng.integers(0, 20, 9), [3, 3])
            weights = tf.SparseTensor(where, values, [3, 3])
            rows.append(
                tf.nn.embedding_lookup_sparse(table, ids, weights, max_norm=0.5)
            )
        return train(rows), [{}] * 3

    report = check(case_of(build))
    assert not packed_nodes(report, "weighted_pooling")
    assert any("gradient of the weights" in reason for reason in report.reasons())


@pytest.mark.parametrize("op", STOCK)
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_fetches_in_the_middle(op, weighted):
    def build():
        rng = np.random.default_rng(5)
        bags = [bag(table, rng, weighted) for table in tables((4, 8, 4))]
        fetches = train([rows for rows, _ in bags])
        nodes = tf1.get_default_graph().get_operations()
        inner = [node.outputs for node in nodes if node.type == op]
        if not inner:
            pytest.skip("there is none")
        fetches = [*inner[0], *inner[-1][:1], *fetches]
        return fetches, merged([feeds for _, feeds in bags])

    check(case_of(build))


def test_sums_of_bags():
    """AddN of clipped bags, whose bits hang on who has read their shapes."""

    def build():
        rng = np.random.default_rng(6)
        bags = [bag(t, rng, safe=False, combiner="sum") for t in tables((4,) * 5)]
        rows = [rows for rows, _ in bags]
        feeds = [feeds for _, feeds in bags]
        return train([tf.add_n(rows) * tf.cast(tf.shape(rows[0])[0], tf.float32)]), [
            {k: v for feed in step for k, v in feed.items()}
            for step in zip(*feeds, strict=True)
        ] * 2

    check(case_of(build))


# -- the ops by themselves -------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2000])
def test_ops_by_themselves(count):
    ops = picasso_tf.load_ops()
    pack = f"test_bag_kernels_{count}"

    @tf.function
    def all_of_them():
        tested = [tf.constant([i, -1, 7, i], tf.int64) for i in range(count)]
        at = tf.constant([[0, 0], [0, 1], [2, 0], [2, 1]], tf.int64)
        kept = ops.picasso_packed_keep(
            tested=tested,
            bounds=[tf.constant(0, tf.int64)] * count,
            tensors=[*tested, *[at] * count],
            comparison=">=",
            pack=pack,
        )
        filled = ops.picasso_packed_fill_empty_rows(
            indices=kept[count:],
            values=kept[:count],
            shapes=[tf.constant([3, 2], tf.int64)] * count,
            defaults=[tf.constant(3, tf.int64)] * count,
            pack=pack,
        )
        unique = ops.picasso_packed_unique(
            values=filled.filled_values, out_idx=tf.int32, pack=pack
        )
        rows = [tf.gather(tf.range(9000.0)[:, None], ids) for ids in unique.unique]
        bags = {
            "positions": unique.index,
            "segments": filled.filled_indices,
            "combiner": ["sum"] * count,
            "pack": pack,
        }
        pooled = ops.picasso_packed_pool(rows=rows, weights=[], **bags)
        grads = ops.picasso_packed_pool_grad(
            grads=pooled, counts=rows, weights=[], by_shape=True, **bags
        )
        return pooled, grads, unique.unique

    pooled, grads, unique = all_of_them()
    for i in (0, count - 1):
        assert pooled[i].numpy().tolist() == [[i], [3], [7 + i]]
        expected = {i: 7 + 2 * i, 3: 3, 7: 7 + i}
        got = dict(zip(unique[i].numpy().tolist(), grads[i].numpy()[:, 0], strict=True))
        assert got == expected if len(expected) == 3 else got[3]
    assert picasso_tf.ops.pack_counts(pack)[1] >= 5
