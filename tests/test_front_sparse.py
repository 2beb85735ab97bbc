"""Packs of the ops on sparse tensors that feature columns are made of, against stock
TensorFlow: SparseToDense, OneHot, SparseCross, SparseReshape."""

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, run, tf1
from hypothesis import given, settings
from hypothesis import strategies as st
from test_front import check_front, graph_of, kinds, placeholder, reasons

import picasso_tf


def sparse_of(rows, dtype=tf.int64):
    """(indices, values, shape) of a list of rows."""
    indices = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    return (
        np.array(indices, np.int64).reshape(-1, 2),
        np.array([v for row in rows for v in row], dtype.as_numpy_dtype),
        np.array([len(rows), max(map(len, rows), default=0)], np.int64),
    )


def sparse_inputs(dtype=tf.int64):
    return [
        placeholder(tf.int64, [None, 2]),
        placeholder(dtype, [None]),
        placeholder(tf.int64, [2]),
    ]


def assert_same_failure(build, text: str, packs: dict):
    """Both raise InvalidArgument with the text; with us, from packs."""
    graph, fetches, feed = graph_of(build)
    for options in (None, STRICT):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            run(graph, fetches, feed, options)
    assert kinds(picasso_tf.reports()[-1]) == packs


# -- sparse to dense -----------------------------------------------------------

DENSE = {"string": ["a", "", "b" * 40], "int32": [1, -1, 2**31 - 1],
         "int64": [1, -1, 2**40], "float32": [1.5, -0.0],
         "float64": [1.5, -0.0]}  # fmt: skip
ROWS = st.lists(st.integers(0, 3), max_size=4)


@pytest.mark.parametrize("dtype", DENSE)
@settings(max_examples=4)
@given(data=st.data())
def test_to_dense(dtype, data):
    pool, dtype = DENSE[dtype], tf.as_dtype(dtype)

    def build():
        fetches, feed = [], {}
        for _ in range(3):
            counts = data.draw(ROWS)
            rows = [[pool[(i + j) % len(pool)] for j in range(n)]
                    for i, n in enumerate(counts)]  # fmt: skip
            inputs = sparse_inputs(dtype)
            feed |= dict(zip(inputs, sparse_of(rows, dtype), strict=True))
            default = data.draw(st.sampled_from(pool))
            indices, values, shape = inputs
            fetches.append(
                tf.raw_ops.SparseToDense(
                    sparse_indices=indices,
                    output_shape=shape,
                    sparse_values=values,
                    default_value=tf.constant(default, dtype),
                )
            )
        return [tf.identity(f) for f in fetches], feed

    check_front(build, to_dense=[3])


def to_dense_of(indices, values, shape, validate=True):
    def build():
        fetches = []
        for _ in range(2):
            like = placeholder(tf.int64)
            fetches.append(
                tf.raw_ops.SparseToDense(
                    sparse_indices=tf.constant(indices, tf.int64) + like,
                    output_shape=tf.constant(shape, tf.int64),
                    sparse_values=tf.constant(values, tf.int64),
                    default_value=tf.constant(-1, tf.int64),
                    validate_indices=validate,
                )
            )
        feed = {f.op.inputs[0].op.inputs[1]: 0 for f in fetches}
        return [tf.identity(f) for f in fetches], feed

    return build


@pytest.mark.parametrize(
    ("indices", "values", "shape"),
    [
        ([1, 3], [5, 6], [4]),  # a vector
        ([[0], [3]], [5, 6], [4]),
        (2, 5, [4]),  # one element
        ([[0, 1], [1, 0]], 7, [2, 2]),  # one value for all
        ([[0, 1, 1], [1, 0, 1]], [7, 8], [2, 2, 2]),
    ],
)
def test_to_dense_of_other_ranks(indices, values, shape):
    check_front(to_dense_of(indices, values, shape), to_dense=[2])


@pytest.mark.parametrize(
    ("indices", "shape", "validate", "text"),
    [
        ([[0, 1], [0, 1]], [2, 2], True, r"indices\[1\] = \[0,1\] is repeated"),
        ([[1, 0], [0, 1]], [2, 2], True, r"indices\[1\] = \[0,1\] is out of order"),
        ([[0, 0], [0, 2]], [2, 2], True, r"\[0,2\] is out of bounds.*\[2,2\]"),
        ([[-1, 0], [0, 1]], [2, 2], True, r"\[-1,0\] is out of bounds"),
        ([[0, 0], [0, 2]], [2, 2], False, "out of bounds"),
        ([[0, 0], [0, 1]], [2, 2, 2], True, "incorrect number of elements: 3"),
        ([[0, 0]], [2, 2], True, "incorrect shape"),
    ],
)
def test_to_dense_fails(indices, shape, validate, text):
    build = to_dense_of(indices, [7, 8], shape, validate)
    assert_same_failure(build, text, {"to_dense": [2]})


def test_to_dense_in_any_order():
    build = to_dense_of([[1, 0], [0, 1], [1, 0]], [7, 8, 9], [2, 2], validate=False)
    check_front(build, to_dense=[2])


# -- one hot -------------------------------------------------------------------

HOT_IDS = [-(2**31), -1, 0, 1, 1, 4, 5, 2**31 - 1]


@pytest.mark.parametrize("ids", [tf.int32, tf.int64])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@settings(max_examples=4)
@given(data=st.data())
def test_one_hot(ids, dtype, data):
    shapes = [data.draw(st.lists(st.integers(0, 3), max_size=3)) for _ in range(3)]

    def build():
        fetches, feed = [], {}
        for shape in shapes:
            x = placeholder(ids)
            picked = data.draw(
                st.lists(
                    st.sampled_from(HOT_IDS),
                    min_size=int(np.prod(shape)),
                    max_size=int(np.prod(shape)),
                )
            )
            feed[x] = np.array(picked, ids.as_numpy_dtype).reshape(shape)
            hot = tf.one_hot(x, data.draw(st.integers(0, 6)), dtype=dtype)
            if shape and data.draw(st.booleans()):
                hot = tf.reduce_sum(hot, axis=data.draw(st.sampled_from([-2, [-2]])))
            fetches.append(tf.identity(hot))
        return fetches, feed

    check_front(build, one_hot=[3])


def test_one_hot_of_narrow_ids():
    """The Cast in front of a bucketized column's OneHot goes along."""

    def build():
        xs = [placeholder(tf.float32, [None, 1]) for _ in range(2)]
        buckets = [tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 1.0]) for x in xs]
        hot = [tf.one_hot(tf.cast(b, tf.int64), 3 + i) for i, b in enumerate(buckets)]
        feed = {x: [[-1.0], [0.5], [3.0]] for x in xs}
        return [tf.identity(h) for h in hot], feed

    report = check_front(build, bucketize=[2], one_hot=[2])
    assert "Cast" not in report.ops_after


def test_one_hot_of_other_values_is_left_alone():
    def build():
        x, y = (placeholder(tf.int64, [None, 2]) for _ in range(2))
        hot = [
            tf.one_hot(x, 3, on_value=2.0),
            tf.one_hot(x, 3, off_value=-1.0),
            tf.one_hot(x, 3, axis=0),
            tf.one_hot(y, 3, dtype=tf.float16),
            tf.one_hot(y, placeholder(tf.int32, [])),
        ]
        feed = {x: [[1, 2]], y: [[0, -1]], hot[-1].op.inputs[1]: 2}
        return [tf.identity(h) for h in hot], feed

    report = check_front(build)
    assert reasons(report) == {
        "type int64 to float16 is not packed",
        "its depth is no constant",
    }


def test_one_hot_with_other_readers_is_not_summed():
    def build():
        xs = [placeholder(tf.int64, [None, 2]) for _ in range(3)]
        hot = [tf.one_hot(x, 4) for x in xs]
        sums = [tf.reduce_sum(hot[0], -2), tf.reduce_sum(hot[1], -2, keepdims=True),
                tf.reduce_sum(hot[2], 0)]  # fmt: skip
        feed = {x: [[0, 0], [3, 7]] for x in xs}
        return [tf.identity(t) for t in (*sums, hot[0])], feed

    report = check_front(build, one_hot=[3])
    assert report.ops_after["Sum"] == 3


def test_static_shapes():
    """The packs' static shapes are those of the ops in their place."""
    graph = tf.Graph()
    with graph.as_default():
        outputs = []
        for shape in ([None, 3], [5, None], None):
            x = placeholder(tf.int64, shape)
            hot = tf.one_hot(x, 4)
            outputs += [hot, tf.reduce_sum(tf.one_hot(x, 5), -2)]
            indices, values, _ = sparse_inputs()
            for size in (tf.constant([3, 4], tf.int64), placeholder(tf.int64, [2]),
                         tf.stack([7, placeholder(tf.int64, [])])):  # fmt: skip
                sparse = tf.SparseTensor(indices, values, size)
                outputs.append(tf.sparse.to_dense(sparse))
        stock = [tf.identity(output) for output in outputs]
    after, report = picasso_tf.rewrite(graph.as_graph_def(), options=STRICT)
    assert kinds(report) == {"one_hot": [6], "to_dense": [9]}
    with tf.Graph().as_default() as packed:
        tf.import_graph_def(after, name="")
        for output in stock:
            ours = packed.get_tensor_by_name(output.name)
            assert str(ours.shape) == str(output.shape), (output, ours)


# -- crosses -------------------------------------------------------------------

FEATURES = {"string": ["a", "", "ü", "b" * 50], "int64": [0, -1, 7, 2**62]}


@pytest.mark.parametrize(
    "types",
    [
        ("string", "string"),
        ("int64", "string"),
        ("int64", "int64", "int64"),
        ("string",),
    ],
)
@pytest.mark.parametrize("dense", [(), ("string",), ("int64", "string")])
@settings(max_examples=2)
@given(data=st.data())
def test_cross(types, dense, data):
    def build():
        fetches, feed = [], {}
        for m in range(3):
            batch = data.draw(st.integers(0, 4))
            inputs = []
            for i, dtype in enumerate(map(tf.as_dtype, types)):
                pool = FEATURES[dtype.name]
                rows = [[pool[(b + i + j + m) % len(pool)]
                         for j in range(data.draw(st.integers(0, 3)))]
                        for b in range(batch)]  # fmt: skip
                parts = sparse_inputs(dtype)
                feed |= dict(zip(parts, sparse_of(rows, dtype), strict=True))
                inputs.append(tf.SparseTensor(*parts))
            for dtype in map(tf.as_dtype, dense):
                x = placeholder(dtype, [None, 2])
                pool = FEATURES[dtype.name]
                feed[x] = np.array(
                    [pool[(b + m) % len(pool)] for b in range(2 * batch)],
                    dtype.as_numpy_dtype,
                ).reshape(batch, 2)
                inputs.append(x)
            crossed = tf.sparse.cross_hashed(
                inputs, num_buckets=[0, 7, 10**9][m], hash_key=[None, 3, -5][m]
            )
            fetches += [crossed.indices, crossed.values, crossed.dense_shape]
        return [tf.identity(f) for f in fetches], feed

    check_front(build, cross=[3])


def test_cross_to_text_is_left_alone():
    def build():
        parts = [sparse_inputs(tf.string) for _ in range(2)]
        crossed = [tf.sparse.cross([tf.SparseTensor(*p)] * 2) for p in parts]
        feed = {}
        for p in parts:
            feed |= dict(zip(p, sparse_of([["a"], ["b", "c"]], tf.string), strict=True))
        return [tf.identity(c.values) for c in crossed], feed

    graph, fetches, feed = graph_of(build)
    assert_same(run(graph, fetches, feed, STRICT), run(graph, fetches, feed))


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, [[0, 0, 0]], "Expected D2 of index to be 2 got 3"),
        (0, [0, 0], "should be a matrix"),
        (1, [1, 2, 3, 4], "Expected size of values to be 3 got 4"),
        (2, [2, 2, 2], "should imply a 2D tensor"),
        (2, [9, 2], "Expected batch size 9 got 2 at position 1"),
    ],
)
def test_cross_fails(at, value, text):
    def build():
        fetches, feed = [], {}
        for _ in range(2):
            columns = [[placeholder(tf.int64) for _ in range(3)] for _ in range(2)]
            for parts in columns:
                feed |= dict(zip(parts, sparse_of([[1], [2, 3]]), strict=True))
            feed[columns[0][at]] = value
            crossed = tf.raw_ops.SparseCross(
                indices=[c[0] for c in columns],
                values=[c[1] for c in columns],
                shapes=[c[2] for c in columns],
                dense_inputs=[],
                hashed_output=True,
                num_buckets=5,
                hash_key=1,
                out_type=tf.int64,
                internal_type=tf.int64,
            )
            fetches.append(tf.identity(crossed.output_values))
        return fetches, feed

    assert_same_failure(build, text, {"cross": [2]})


# -- reshapes ------------------------------------------------------------------


def reshape_of(cases):
    def build():
        fetches, feed = [], {}
        for indices, shape, target in cases:
            parts = [placeholder(tf.int64) for _ in range(3)]
            feed |= dict(zip(parts, (indices, shape, target), strict=True))
            out = tf.raw_ops.SparseReshape(
                input_indices=parts[0], input_shape=parts[1], new_shape=parts[2]
            )
            fetches += [tf.identity(out.output_indices), tf.identity(out.output_shape)]
        return fetches, feed

    return build


def test_reshape():
    none = np.zeros([0, 2], np.int64)
    cases = [
        ([[0, 1], [2, 3]], [3, 4], [3, -1]),  # to itself
        ([[0, 1], [2, 3]], [3, 4], [12]),
        ([[0, 1], [2, 3]], [3, 4], [2, -1, 3]),
        ([[0, 0, 1], [1, 2, 3]], [2, 3, 4], [-1, 4]),
        (none, [3, 4], [4, -1]),
        (none, [0, 4], [0, 9]),
        (none, [0, 4], [-1, 4]),
        (np.zeros([2, 0]), [], [1, -1]),
        ([[0]], [1], []),
    ]
    check_front(reshape_of(cases), sparse_reshape=[len(cases)])


@pytest.mark.parametrize(
    ("indices", "shape", "target", "text"),
    [
        ([[0, 1]], [3, 4], [-1, -1], "only one output dimension may be -1"),
        ([[0, 1]], [3, 4], [-2, 6], "size 0 must be non-negative, not -2"),
        ([[0, 1]], [3, 4], [5, -1], "requires a multiple of 5"),
        ([[0, 1]], [3, 4], [5, 2], "the requested shape has 10"),
        ([[0, 1]], [0, 4], [0, -1], "cannot infer the missing"),
        ([[0, 1]], [0, 4], [0, 5], "is empty"),
        ([0, 1], [3, 4], [12], "must be a matrix"),
        ([[0, 1]], [[3, 4]], [12], "shape must be a vector"),
        ([[0, 1]], [3, 4], 12, "shape should be a vector"),
    ],
)
def test_reshape_fails(indices, shape, target, text):
    build = reshape_of([(indices, shape, target)] * 2)
    assert_same_failure(build, text, {"sparse_reshape": [2]})


def test_reshape_before_lookups_of_two_columns():
    """A linear model reshapes what its lookups reshape once more."""

    def build():
        fc = tf1.feature_column
        names = ["a", "b", "c"]
        features = {n: placeholder(tf.string, [None]) for n in names}
        columns = [fc.categorical_column_with_hash_bucket(n, 9) for n in names]
        out = fc.linear_model(features, columns)
        feed = {x: ["x", "", "y"] for x in features.values()}
        return [tf.identity(out)], feed

    graph, fetches, feed = graph_of(build)
    assert_same(run(graph, fetches, feed, STRICT), run(graph, fetches, feed))
    report = picasso_tf.reports()[-1]
    assert kinds(report)["sparse_reshape"] == [3], str(report)
    assert kinds(report)["lookup"] == [3]
    assert "SparseReshape" not in report.ops_after


# -- the ops by themselves -------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2000])
def test_ops_by_themselves(count):
    ops = picasso_tf.load_ops()
    pack = f"test_front_sparse_{count}"

    @tf.function
    def all_of_them():
        indices = [tf.constant([[0, 0], [1, 1]], tf.int64)] * count
        values = [tf.constant([i, i + 1], tf.int64) for i in range(count)]
        shapes = [tf.constant([2, 2], tf.int64)] * count
        crossed = ops.picasso_packed_sparse_cross(
            indices=indices,
            values=values,
            shapes=shapes,
            dense=[],
            N=count,
            sparse_columns=1,
            dense_columns=0,
            num_buckets=[3] * count,
            hash_key=[1] * count,
            pack=pack,
        )
        dense = ops.picasso_packed_sparse_to_dense(
            indices=crossed.crossed_indices,
            shapes=crossed.crossed_shapes,
            values=crossed.crossed_values,
            missing=[tf.constant(-1, tf.int64)] * count,
            pack=pack,
        )
        reshaped = ops.picasso_packed_sparse_reshape(
            indices=indices,
            shapes=shapes,
            new_shapes=[tf.constant([-1], tf.int64)] * count,
            pack=pack,
        )
        hot = ops.picasso_packed_one_hot(
            ids=dense, T=tf.float32, depth=[3] * count, summed=[True] * count, pack=pack
        )
        return hot, reshaped.reshaped_indices

    hot, indices = all_of_them()
    for i in (0, count - 1):
        value = tf.SparseTensor([[0, 0], [1, 1]], [i, i + 1], [2, 2])
        crossed = tf.sparse.cross_hashed([value], num_buckets=3, hash_key=1)
        assert_same(hot[i], tf.reduce_sum(tf.one_hot(tf.sparse.to_dense(
            crossed, default_value=-1), 3), -2))  # fmt: skip
        assert indices[i].numpy().tolist() == [[0], [3]]
    assert picasso_tf.ops.pack_counts(pack)[1] >= 4


def test_gradient_of_to_dense():
    ops = picasso_tf.load_ops()
    values, missing = tf.constant([2.0, 3.0]), tf.constant(0.5)

    @tf.function
    def gradients(values, missing):
        with tf.GradientTape() as tape:
            tape.watch([values, missing])
            dense = ops.picasso_packed_sparse_to_dense(
                indices=[tf.constant([[0, 1], [1, 0]], tf.int64)],
                shapes=[tf.constant([2, 2], tf.int64)],
                values=[values],
                missing=[missing],
                pack="test_gradient_of_to_dense",
            )
            loss = tf.reduce_sum(dense[0] ** 2)
        return tape.gradient(loss, [values, missing])

    assert_same(gradients(values, missing), [2 * values, tf.constant(2.0)])
