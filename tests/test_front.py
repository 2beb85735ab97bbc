"""Packs of the small kernels that prepare ids, against stock TensorFlow."""

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, check, ops_of, run, spell, tf1
from helpers_models import keras_2, needs_estimator, needs_keras_2, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_passes import GOLDEN, rewrite

import picasso_tf

WORDS = ["", "a", "b", "value 17", "ü", "日本語", "x" * 40, "-1", "\0", "a"]
IDS = [-1, 0, 1, 7, 7, -(2**31), 2**31 - 1]
FLOATS = [0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), 2.0]


def placeholder(dtype, shape=None):
    return tf1.placeholder(dtype, shape)


def to_sparse(x, ignore=None):
    """As tf.feature_column does it."""
    if ignore is None:
        ignore = "" if x.dtype == tf.string else -1 if x.dtype.is_integer else 0
    indices = tf.where(tf.not_equal(x, tf.cast(ignore, x.dtype)))
    return [indices, tf.gather_nd(x, indices), tf.shape(x, out_type=tf.int64)]


def kinds(report) -> dict[str, list[tuple[int, int]]]:
    """Per kind, (members, outputs of its op in use) of each pack."""
    sizes: dict[str, list[int]] = {}
    for pack in report.packs:
        sizes.setdefault(pack.kind, []).append(len(pack.members))
    return sizes


def reasons(report) -> set[str]:
    return {item.reason for item in report.skipped}


def graph_of(build):
    """(graph, fetches, feed) of what `build` returns."""
    graph = tf.Graph()
    with graph.as_default():
        tf1.set_random_seed(1)
        fetches, feed = build()
    return graph, fetches, feed


def check_front(build, **expected):
    """Equal results with and without; `expected` are the sizes of packs by kind."""
    graph, fetches, feed = graph_of(build)
    feeds = feed if isinstance(feed, list) else [feed]
    for each in feeds:
        check(graph, fetches, each, packs=sum(len(v) for v in expected.values()))
        report = picasso_tf.reports()[-1]
        assert kinds(report) == expected, str(report)
    return report


# -- dense to sparse -----------------------------------------------------------

POOLS = {"string": WORDS, "int32": IDS, "int64": [*IDS, 2**40], "float32": FLOATS,
         "float64": FLOATS}  # fmt: skip


@pytest.mark.parametrize("dtype", POOLS)
@settings(max_examples=8)
@given(data=st.data())
def test_to_sparse(dtype, data):
    pool, dtype = POOLS[dtype], tf.as_dtype(dtype)
    count = data.draw(st.integers(2, 4))
    shapes = [data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
              for _ in range(count)]  # fmt: skip

    def build():
        fetches, feed = [], {}
        for shape in shapes:
            known = data.draw(st.sampled_from(["no rank", "rank", "all"]))
            static = {"no rank": None, "rank": [None] * len(shape), "all": shape}
            x = placeholder(dtype, static[known])
            picked = data.draw(
                st.lists(
                    st.sampled_from(pool),
                    min_size=int(np.prod(shape)),
                    max_size=int(np.prod(shape)),
                )
            )
            feed[x] = np.array(picked, dtype.as_numpy_dtype).reshape(shape)
            axis = data.draw(st.sampled_from([None, 0, -1, -1 - len(shape)]))
            expanded = x if axis is None else tf.expand_dims(x, axis)
            fetches.append(to_sparse(expanded, data.draw(st.sampled_from(pool))))
            if data.draw(st.booleans()):  # a second tower
                again = x if axis is None else tf.expand_dims(x, axis)
                fetches.append(to_sparse(again))
        return tf.nest.map_structure(tf.identity, fetches), feed

    graph, fetches, feed = graph_of(build)
    report = check(graph, fetches, feed, packs=1)
    assert set(kinds(report)) == {"to_sparse"}
    assert "Where" not in report.ops_after
    assert "GatherNd" not in report.ops_after


def test_to_sparse_twice_is_one_member():
    """As in a linear and a deep tower, each with its own ExpandDims."""

    def build():
        xs = [placeholder(tf.string, [None]) for _ in range(3)]
        fetches = [to_sparse(tf.expand_dims(x, -1)) for x in xs for _ in range(2)]
        feed = {x: ["a", "", "b"] for x in xs}
        return tf.nest.map_structure(tf.identity, fetches), feed

    report = check_front(build, to_sparse=[6])
    assert report.packs[0].detail == "3 of them distinct"
    assert not {"Where", "GatherNd", "NotEqual", "ExpandDims", "Shape"} & set(
        report.ops_after
    )


def test_to_sparse_without_readers_of_some_outputs():
    """Weights are read without their shape, and indices alone."""

    def build():
        xs = [placeholder(tf.float32, [None, 2]) for _ in range(4)]
        parts = [to_sparse(x) for x in xs]
        fetches = [parts[0][0], parts[1][1], parts[2][2], *parts[3][:2]]
        feed = {x: [[0.0, 1.0], [2.0, 0.0]] for x in xs}
        return [tf.identity(fetch) for fetch in fetches], feed

    # One reads the shape alone and one the indices alone: they are no pairs.
    check_front(build, to_sparse=[2])


def test_static_shapes():
    """The packs' static shapes are those of the ops in their place."""
    graph = tf.Graph()
    with graph.as_default():
        outputs = []
        for shape in ([None], [3, None], None):
            parts = to_sparse(placeholder(tf.string, shape))
            outputs += [*parts, tf.strings.to_hash_bucket_fast(parts[1], 3)]
        stock = [tf.identity(output) for output in outputs]
    after, report = picasso_tf.rewrite(graph.as_graph_def(), options=STRICT)
    assert kinds(report) == {"to_sparse": [3], "hash": [3]}
    with tf.Graph().as_default() as packed:
        tf.import_graph_def(after, name="")
        for output in stock:
            ours = packed.get_tensor_by_name(output.name)
            merged = ours.shape.merge_with(output.shape)
            assert str(merged) == str(ours.shape), (output, ours)


def test_no_pairs_of_rank_0_or_8():
    """Stock refuses them, and so do we."""
    for rank in (0, 8, 9):

        def build():
            xs = [placeholder(tf.int64) for _ in range(2)]
            fetches = [to_sparse(x)[1] for x in xs]
            return fetches, dict.fromkeys(xs, np.zeros([1] * rank))  # noqa: B023

        graph, fetches, feed = graph_of(build)
        with graph.as_default():
            fetches = [tf.identity(f) for f in fetches]
        for options in (None, STRICT):
            with pytest.raises(tf.errors.InvalidArgumentError):
                run(graph, fetches, feed, options)


# -- hashes ----------------------------------------------------------------------


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(st.lists(st.text(max_size=60), max_size=5), st.integers(1, 10**12)),
        min_size=2,
        max_size=5,
    ),
    st.booleans(),
)
def test_hash(members, strong):
    def build():
        fetches, feed = [], {}
        for texts, buckets in members:
            x = placeholder(tf.string)
            feed[x] = np.array([t.encode() for t in texts], object)
            if strong:
                key = [buckets, 3]
                hashed = tf.strings.to_hash_bucket_strong(x, buckets, key)
            else:
                hashed = tf.strings.to_hash_bucket_fast(x, buckets)
            fetches.append(tf.identity(hashed))
        return fetches, feed

    check_front(build, hash=[len(members)])


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_hash_of_integers(dtype):
    """The decimal text in between is not made."""

    def build():
        xs = [placeholder(dtype) for _ in range(3)]
        texts = [tf.strings.as_string(x) for x in xs]
        fetches = [tf.strings.to_hash_bucket_fast(t, 97 + i)
                   for i, t in enumerate(texts)]  # fmt: skip
        fetches.append(tf.strings.to_hash_bucket_strong(texts[0], 7, [1, -(2**62)]))
        fetches.append(tf.strings.to_hash_bucket_strong(texts[1], 7, [2, 4]))
        limits = np.iinfo(dtype.as_numpy_dtype)
        feed = {x: [[0, -1, limits.min], [limits.max, 10**9, 12]] for x in xs}
        return [tf.identity(f) for f in fetches], feed

    report = check_front(build, hash=[3, 2])
    assert "AsString" not in report.ops_after


def test_text_that_is_padded_is_no_plain_text():
    def build():
        xs = [placeholder(tf.int64) for _ in range(2)]
        texts = [tf.strings.as_string(x, width=5, fill="0") for x in xs]
        hashes = [tf.strings.to_hash_bucket_fast(t, 1000) for t in texts]
        return [tf.identity(h) for h in hashes], {key: [1, 22, -3] for key in xs}

    report = check_front(build, hash=[2])
    assert report.ops_after["AsString"] == 2


# -- buckets and ranges ------------------------------------------------------------


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float32, tf.float64])
def test_bucketize(dtype):
    pool = POOLS[dtype.name]

    def build():
        xs = [placeholder(dtype) for _ in range(4)]
        boundaries = [[0.0], [-1.5, 0.0, 0.1, 2.0], [], [7.0, 2.0**31]]
        fetches = [tf.raw_ops.Bucketize(input=x, boundaries=b)
                   for x, b in zip(xs, boundaries, strict=True)]  # fmt: skip
        value = np.array(pool, dtype.as_numpy_dtype)
        feed = dict.fromkeys(xs, value) | {xs[3]: value[:0].reshape(0, 2)}
        return [tf.identity(f) for f in fetches], feed

    check_front(build, bucketize=[4])


def range_check(x, buckets: int, default: int):
    """As an identity column with a default does it."""
    x = tf.cast(x, tf.int64)
    low, high = tf.cast(0, tf.int64), tf.cast(buckets, tf.int64)
    other = tf.fill(tf.shape(x), tf.cast(default, tf.int64))
    return tf.where(tf.logical_or(x < low, x >= high), other, x)


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_range_check(dtype):
    def build():
        xs = [placeholder(dtype) for _ in range(3)]
        checked = [range_check(x, 5 + i, i) for i, x in enumerate(xs)]
        return [tf.identity(c) for c in checked], {key: [IDS, IDS] for key in xs}

    report = check_front(build, range_check=[3])
    assert not {"SelectV2", "Fill", "Less", "Cast"} & set(report.ops_after)


def test_bounds_from_outside_are_left_alone():
    def build():
        xs, bound = [placeholder(tf.int64) for _ in range(2)], placeholder(tf.int64)
        checked = []
        for x in xs:
            other = tf.fill(tf.shape(x), tf.constant(0, tf.int64))
            outside = tf.logical_or(x < tf.constant(0, tf.int64), x >= bound)
            checked.append(tf.where(outside, other, x))
        feed = {key: [1, 3, 9] for key in xs} | {bound: 4}
        return [tf.identity(c) for c in checked], feed

    assert "a bound or the default is no constant" in reasons(check_front(build))


# -- tables ------------------------------------------------------------------------


def string_table(words, default=-1):
    initializer = tf.lookup.KeyValueTensorInitializer(
        tf.constant(words), tf.range(len(words), dtype=tf.int64)
    )
    return tf.lookup.StaticHashTable(initializer, default)


def test_find():
    def build():
        xs = [placeholder(tf.string) for _ in range(3)]
        tables = [string_table(["a", "b"]), string_table(["", "ü", "b"], 9)]
        found = [tables[0].lookup(xs[0]), tables[1].lookup(xs[1]),
                 tables[1].lookup(xs[2])]  # fmt: skip
        feed = {xs[0]: ["a", "", "b"], xs[1]: [["ü"], ["a"]], xs[2]: []}
        return [tf.identity(f) for f in found], feed

    check_front(build, table_find=[3])


@pytest.mark.parametrize("dtype", [tf.string, tf.int64])
def test_find_with_buckets(dtype):
    """Keys that a table lacks are hashed; the chain behind the find goes."""
    keys = ["a", "b", "c"] if dtype == tf.string else [3, -4, 5]
    feed = ["b", "", "ü", "b"] if dtype == tf.string else [5, 0, -1, 3]

    def build():
        xs = [placeholder(dtype) for _ in range(3)]
        found = []
        for i, x in enumerate(xs):
            initializer = tf.lookup.KeyValueTensorInitializer(
                tf.constant(keys[: i + 1], dtype), tf.range(i + 1, dtype=tf.int64)
            )
            table = tf.lookup.StaticVocabularyTable(initializer, 3 + i)
            found.append(tf.identity(table.lookup(x)))
        return found, dict.fromkeys(xs, feed)

    check_front(build, **_buckets_of_vocabulary_tables(dtype))

    def columns():
        names = ("x", "y", "z")
        features = {name: placeholder(dtype, [None, 2]) for name in names}
        make = tf.feature_column.categorical_column_with_vocabulary_list
        made = [tf.feature_column.indicator_column(
            make(name, keys[: i + 1], dtype=dtype, num_oov_buckets=1 + i)
        ) for i, name in enumerate(names)]  # fmt: skip
        layer = tf1.feature_column.input_layer(features, made)
        value = np.reshape(feed, (2, 2))
        return [layer], {features[name]: value for name in names}

    packs = {"to_sparse": [3], "table_find": [3], "to_dense": [3], "one_hot": [3]}
    report = check_front(columns, **packs)
    gone = {"SelectV2", "AddV2", "LookupTableSizeV2", "StringToHashBucketFast"}
    assert not gone & set(report.ops_after)


def _buckets_of_vocabulary_tables(dtype) -> dict:
    # StaticVocabularyTable compares with its own default: another chain.
    return {"table_find": [3]}


def test_find_in_a_table_that_is_not_initialized():
    graph = tf.Graph()
    with graph.as_default():
        xs = [placeholder(tf.string) for _ in range(2)]
        found = [tf.identity(string_table(["a"]).lookup(x)) for x in xs]
    for options in (None, STRICT):
        config = picasso_tf.session_config(options=options) if options else None
        failing = pytest.raises(tf.errors.FailedPreconditionError, match="initialized")
        with tf1.Session(graph=graph, config=config) as session, failing:
            session.run(found, {key: ["a"] for key in xs})


# -- feature columns -----------------------------------------------------------------


def columns_of(tmp_path):
    """(feature columns, features' types, a batch) of every kind."""
    fc = tf.feature_column
    vocabulary = tmp_path / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\nblue\n")
    random = np.random.default_rng(0)
    types, batch, made = {}, {}, []

    def feature(name, dtype, pool):
        types[name] = dtype
        kept = np.array(pool, object if dtype == tf.string else dtype.as_numpy_dtype)
        batch[name] = random.choice(kept, 12)
        return name

    colors = ["red", "green", "", "pink", "blue"]
    for i in range(3):
        text = feature(f"text{i}", tf.string, colors)
        ids = feature(f"ids{i}", tf.int64, [-1, 0, 1, 2, 3])
        short = feature(f"short{i}", tf.int32, [-1, 0, 1, 7])
        number = feature(f"number{i}", tf.float32, [0.0, -1.0, 0.5, 3.0])
        color = feature(f"color{i}", tf.string, colors)
        weight = feature(f"weight{i}", tf.float32, [0.5, 1.0, 2.0])
        more = feature(f"more{i}", tf.string, colors)
        weighed = feature(f"weighed{i}", tf.int64, [0, 1, 2, 3])
        buckets = fc.bucketized_column(fc.numeric_column(number), [0.0, 0.5 + i])
        made += [
            fc.categorical_column_with_hash_bucket(text, 5 + i),
            fc.categorical_column_with_hash_bucket(ids, 4, tf.int64),
            fc.categorical_column_with_identity(short, 4, default_value=i),
            buckets,
            fc.categorical_column_with_vocabulary_list(color, colors[:2]),
            fc.categorical_column_with_vocabulary_file(
                more, str(vocabulary), 2 + (i > 0), num_oov_buckets=1 + i
            ),
            fc.crossed_column([buckets, text], 7),
            fc.weighted_categorical_column(
                fc.categorical_column_with_identity(weighed, 4 + i), weight
            ),
        ]
    return made, types, batch


@pytest.mark.parametrize("layer", ["linear", "embedding", "indicator"])
def test_feature_columns(layer, tmp_path):
    columns, types, batch = columns_of(tmp_path)
    fc = tf.feature_column

    def build():
        features = {name: placeholder(dtype, [None]) for name, dtype in types.items()}
        if layer == "linear":
            out = tf1.feature_column.linear_model(features, columns)
        else:
            wrap = fc.indicator_column
            if layer == "embedding":
                wrap = lambda c: fc.embedding_column(c, 3)  # noqa: E731
            out = tf1.feature_column.input_layer(features, [wrap(c) for c in columns])
        return [out], {features[name]: value for name, value in batch.items()}

    graph, fetches, feed = graph_of(build)
    empty = {x: value[:0] for x, value in feed.items()}
    # linear_model does not take empty batches, with stock neither.
    for each in (feed,) if layer == "linear" else (feed, empty):
        ours = run(graph, fetches, each, STRICT)
        assert_same(ours, run(graph, fetches, each))
    found = kinds(picasso_tf.last_report())
    assert found["bucketize"] == [3] and found["range_check"] == [3]
    assert sorted(found["table_find"]) == [6]
    assert sum(found["hash"]) == 6


@needs_estimator
def test_estimator(tmp_path):
    """Losses of a canned model with columns of every kind."""
    columns, _types, batch = columns_of(tmp_path)
    fc = tf.feature_column
    labels = np.arange(12) % 2

    def input_fn():
        return tf.data.Dataset.from_tensors((batch, labels)).repeat(5)

    def losses(session_config):
        seen = []

        class Hook(tf1.train.SessionRunHook):
            def before_run(self, context):
                loss = tf1.get_collection(tf1.GraphKeys.LOSSES)[0]
                return tf1.train.SessionRunArgs(loss)

            def after_run(self, context, values):
                seen.append(values.results)

        config = tf.estimator.RunConfig(tf_random_seed=1, session_config=session_config)
        tf.estimator.DNNLinearCombinedClassifier(
            model_dir=str(tmp_path / f"model_{session_config is None}"),
            linear_feature_columns=columns,
            dnn_feature_columns=[fc.embedding_column(c, 4) for c in columns],
            dnn_hidden_units=[8],
            config=config,
        ).train(input_fn, hooks=[Hook()])
        return seen

    with watch() as watched:
        ours = losses(picasso_tf.estimator_config(options=STRICT))
    watched.assert_packed()
    assert len(ours) == 5
    assert_same(ours, losses(None))
    assert {"to_sparse", "hash", "bucketize", "range_check", "table_find"} <= {
        pack.kind for pack in watched.packs()
    }


@needs_keras_2
def test_dense_features_in_a_function():
    fc = tf.feature_column
    names = [f"c{i}" for i in range(4)]
    columns = [fc.embedding_column(fc.categorical_column_with_hash_bucket(n, 9), 4)
               for n in names]  # fmt: skip
    layer = keras_2.layers.DenseFeatures(columns)
    features = {n: tf.constant(["a", "", "b", n]) for n in names}
    expected = tf.function(layer)(features).numpy()
    with watch() as watched, picasso_tf.enabled(STRICT):
        got = tf.function(layer)(features).numpy()
    assert_same(got, expected)
    assert watched.members("to_sparse") == [4] and watched.members("hash") == [4]
    watched.assert_executed(1, "hash")


# -- what stays as it was --------------------------------------------------------------


def two_hashes():
    xs = [placeholder(tf.string, [None]) for _ in range(2)]
    parts = [to_sparse(tf.expand_dims(x, -1)) for x in xs]
    hashes = [tf.strings.to_hash_bucket_fast(part[1], 10) for part in parts]
    return xs, parts, hashes


def test_fetches_in_the_middle():
    graph = tf.Graph()
    with graph.as_default():
        xs, parts, hashes = two_hashes()
        out = [tf.identity(h) for h in hashes]
        feed = {x: ["a", "", "b"] for x in xs}
        differs = parts[0][0].op.inputs[0]
        check(graph, [parts[0][1], *out], feed, packs=2)
        check(graph, [*parts[0], hashes[1], *out], feed, packs=1)
        check(graph, [differs, *out], feed, packs=1)
        check(graph, [differs.op.inputs[0], *out], feed, packs=2)
        check(graph, [parts[1][2], hashes[0]], feed, packs=0)


def test_feeds_in_the_middle():
    graph = tf.Graph()
    with graph.as_default():
        xs, parts, hashes = two_hashes()
        out = [tf.identity(t) for t in (*hashes, *parts[0], *parts[1])]
        feed = {x: ["a", "", "b"] for x in xs}
        check(graph, out, feed | {parts[0][1]: ["z", "zz"]}, packs=1)
        check(graph, out, feed | {parts[0][0]: [[0, 0]]}, packs=1)
        check(graph, out, feed | {hashes[0]: [3]}, packs=1)
        check(graph, out, feed | {parts[1][2]: [8, 8]}, packs=2)


@pytest.mark.parametrize("v2", [False, True])
def test_branches_are_not_mixed(v2):
    """Nothing is packed across the branches of a conditional."""
    graph = tf.Graph()
    with graph.as_default():
        if v2:
            tf1.enable_control_flow_v2()
        try:
            xs = [placeholder(tf.string, [None]) for _ in range(4)]
            which = placeholder(tf.bool, [])

            def branch(pair, buckets):
                def run_branch():
                    return [
                        tf.strings.to_hash_bucket_fast(
                            to_sparse(tf.expand_dims(x, -1))[1], buckets
                        )
                        for x in pair
                    ]

                return run_branch

            hashes = tf1.cond(which, branch(xs[:2], 7), branch(xs[2:], 11))
            out = [tf.identity(h) for h in hashes]
        finally:
            tf1.disable_control_flow_v2()
    feed = {x: ["a", "", f"b{i}"] for i, x in enumerate(xs)}
    for value in (True, False):
        ours = run(graph, out, feed | {which: value}, STRICT)
        assert_same(ours, run(graph, out, feed | {which: value}))
        report = picasso_tf.last_report()
        assert all(size == 2 for sizes in kinds(report).values() for size in sizes)
        assert len(kinds(report)["hash"]) == 2


def test_one_reads_what_another_made():
    """Hashes of hashes: two levels, two packs."""

    def build():
        xs = [placeholder(tf.string) for _ in range(2)]
        first = [tf.strings.to_hash_bucket_fast(x, 10**6) for x in xs]
        again = [tf.strings.to_hash_bucket_fast(tf.strings.as_string(h), 10)
                 for h in first]  # fmt: skip
        return [tf.identity(t) for t in (*first, *again)], {
            key: ["a", "b"] for key in xs
        }

    check_front(build, hash=[2, 2])


def test_control_edges_that_forbid_it():
    """The second Where waits for a reader of the first one's shape."""

    def build():
        xs = [placeholder(tf.int64, [None]) for _ in range(2)]
        differ = [tf.not_equal(x, tf.constant(-1, tf.int64)) for x in xs]
        first, second = (tf.shape(x, out_type=tf.int64) for x in xs)
        with tf.control_dependencies([tf.reduce_sum(first).op]):
            where = tf.where(differ[0])
        rest = tf.where(differ[1])
        out = [where, tf.gather_nd(xs[0], where), rest, tf.gather_nd(xs[1], rest)]
        feed = {x: [3, -1, 4] for x in xs}
        return [tf.identity(t) for t in (*out, first, second)], feed

    report = check_front(build)
    assert "packed as a whole, it closes a cycle" in reasons(report)


def test_reasons():
    def build():
        xs = [placeholder(tf.int64, [None]) for _ in range(2)]
        ignored = placeholder(tf.int64, [])
        parts = [to_sparse(xs[0], ignored), to_sparse(xs[1])]
        small = to_sparse(placeholder(tf.uint8, [None]))
        lone = tf.strings.to_hash_bucket_fast(placeholder(tf.string, [None]), 3)
        feed = {x: [3, -1] for x in xs} | {ignored: 3}
        feed[small[2].op.inputs[0]] = [0, 3]
        feed[lone.op.inputs[0]] = ["a"]
        parts = [*parts[0], *parts[1], *small, lone]
        return [tf.identity(part) for part in parts], feed

    report = check_front(build)
    assert reasons(report) == {
        "the value that it leaves out is no constant",
        "type uint8 is not packed",
        "no other to_sparse of its type, device and level",
        "no other hash of its type, device and level",
    }


def test_exclude():
    graph = tf.Graph()
    with graph.as_default():
        names = ("keep_a", "keep_b", "leave")
        xs = [placeholder(tf.string) for _ in names]
        hashes = [tf.raw_ops.StringToHashBucketFast(input=x, num_buckets=5, name=n)
                  for x, n in zip(xs, names, strict=True)]  # fmt: skip
        out = [tf.identity(h) for h in hashes]
    options = picasso_tf.Options(strict=True, exclude=["^leave"])
    report = check(graph, out, {key: ["a"] for key in xs}, options=options)
    assert report.packs[0].members == names[:2]
    assert reasons(report) == {"excluded by Options.exclude"}


# -- the graph that comes out ---------------------------------------------------------


def test_golden():
    graph = tf.Graph()
    with graph.as_default():
        for name in ("a", "b"):
            x = tf1.placeholder(tf.string, [None], name=name)
            for tower in ("linear", "deep"):
                with tf.name_scope(f"{name}_{tower}"):
                    indices, values, shape = to_sparse(tf.expand_dims(x, -1))
                    ids = tf.strings.to_hash_bucket_fast(values, 10)
                    tf.SparseTensor(indices, ids, shape)
                    tf.identity_n([indices, ids, shape], name="out")
    outs = [f"{name}_{tower}/out" for name in "ab" for tower in ("linear", "deep")]
    with graph.as_default():
        tf.group(*outs and [graph.get_operation_by_name(o) for o in outs], name="all")
    after, _ = rewrite(graph, ["all"])
    text = spell(after, ("N", "T", "expand", "expanded", "num_buckets", "strong"))
    path = GOLDEN / "front.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and has been written: read it")
    assert text == path.read_text()


def test_gradient():
    """Of the values of float members, as of the ops that they replace."""
    ops = picasso_tf.load_ops()
    x, y = (tf.constant(v) for v in ([[0.0, 2.0], [3.0, 0.0]], [1.0, 0.0, 4.0]))

    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            packed = ops.picasso_packed_dense_to_sparse(
                dense=[x, y],
                ignore=tf.make_tensor_proto([0.0, 0.0]),
                expand=[0, -1],
                expanded=[False, True],
                pack="test_gradient",
            )
            loss = tf.reduce_sum(packed.values[0] ** 2)
            loss += tf.reduce_sum(packed.values[1] ** 3)
        return tape.gradient(loss, [x, y])

    got = gradients(x, y)
    assert_same(got, [2 * x, 3 * y**2])


@pytest.mark.parametrize("count", [1, 2000])
def test_ops_by_themselves(count):
    """The ops take one member and 2,000, whatever the pass does with them."""
    ops = picasso_tf.load_ops()
    texts = [["a", "", str(i)] for i in range(count)]

    @tf.function
    def both():
        sparse = ops.picasso_packed_dense_to_sparse(
            dense=[tf.constant(text) for text in texts],
            ignore=tf.make_tensor_proto([""] * count),
            expand=[0] * count,
            expanded=[False] * count,
            pack=f"test_front_{count}",
        )
        hashed = ops.picasso_packed_hash_bucket(
            inputs=sparse.values,
            num_buckets=[7] * count,
            pack=f"test_front_{count}",
        )
        return sparse.indices, hashed

    for text, indices, ids in zip(texts, *both(), strict=True):
        assert indices.numpy().tolist() == [[0], [2]]
        assert_same(ids, tf.strings.to_hash_bucket_fast([text[0], text[2]], 7))
    assert picasso_tf.ops.pack_counts(f"test_front_{count}")[1] == 2


def test_ops_after():
    """How many ops are left of the fronts of 20 columns in two towers."""
    graph = tf.Graph()
    with graph.as_default():
        outs = []
        for _ in range(20):
            x = placeholder(tf.string, [None])
            for _ in range(2):
                part = to_sparse(tf.expand_dims(x, -1))
                outs += [part[0], tf.strings.to_hash_bucket_fast(part[1], 9), part[2]]
        total = tf.identity_n(outs)[0]
    after, _ = rewrite(graph, [total.op.name])
    assert ops_of(after) == {
        "Placeholder": 20,
        "PicassoPackedDenseToSparse": 1,
        "PicassoPackedHashBucket": 1,
        "IdentityN": 1,
    }
