"""Variables in parts: lookups, bags and updates equal stock's, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, check, run, tf1

import picasso_tf

DIM = 4
OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "ftrl": lambda: tf1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
}
# Ops that only tell ids apart and bring rows together: none of them may stay.
GONE = (
    "DynamicPartition",
    "ParallelDynamicStitch",
    "ResourceGather",
    "SparseSegmentMean",
    "SparseSegmentSum",
    "FloorMod",
    "FloorDiv",
    "Unique",
)
SLICED = ("GatherV2", "UnsortedSegmentSum")


@pytest.fixture(autouse=True)
def clean_slate():
    """In place of the shared fixture, whose cleaning takes longer than most of
    these tests: they have graphs of their own and no Keras."""


def parted(name, rows=23, parts=3, dtype=tf.float32, dim=DIM):
    """A PartitionedVariable."""
    return tf1.get_variable(
        name,
        shape=[rows, dim],
        dtype=dtype,
        initializer=tf1.random_normal_initializer(seed=rows + len(name), dtype=dtype),
        use_resource=True,
        partitioner=tf1.fixed_size_partitioner(parts),
    )


def listed(name, sizes):
    """A list of variables, of which some may be empty."""
    values = np.random.RandomState(len(name)).randn(max(sizes), DIM)
    return [
        tf1.get_variable(
            f"{name}_{i}", initializer=values[:n].astype("f"), use_resource=True
        )
        for i, n in enumerate(sizes)
    ]


def few(name):
    """Five rows in seven parts, two of them empty."""
    return listed(name, (1, 1, 1, 1, 1, 0, 0))


def gone(report, but=()):
    return {op: report.ops_after.get(op, 0) for op in GONE if op not in but} == {
        op: 0 for op in GONE if op not in but
    }


def train(rows, optimizer):
    loss = tf.add_n([tf.reduce_sum(tf.sin(row) * row) for row in rows])
    return loss, OPTIMIZERS[optimizer]().minimize(loss)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("parts", "strategy", "rank", "id_type"),
    [
        (1, "div", 1, np.int64),
        (2, "mod", 2, np.int32),
        (2, "div", 1, np.int32),
        (3, "mod", 1, np.int64),
        (3, "div", 2, np.int64),
        (7, "div", 1, np.int64),
        ("few", "mod", 1, np.int64),
    ],
)
def test_lookups_and_updates(parts, strategy, rank, id_type, optimizer):
    """Three tables in one concat, one of them looked up twice."""
    rng = np.random.RandomState(0)
    with tf.Graph().as_default() as graph:
        rows = 5 if parts == "few" else 23
        tables = [
            few(f"t{i}") if parts == "few" else parted(f"t{i}", rows, parts)
            for i in range(3)
        ]
        feed, outputs = {}, []
        for table in (*tables, tables[1]):
            ids = tf1.placeholder(id_type, [None] * rank)
            feed[ids] = rng.randint(0, rows, (20, 3)[:rank]).astype(id_type)
            outputs.append(
                tf1.nn.embedding_lookup(table, ids, partition_strategy=strategy)
            )
        joined = tf.concat(outputs, -1)
        loss, step = train([joined], optimizer)
    report = check(graph, [joined, loss, step], feed, packs=2, steps=10)
    assert gone(report), report.ops_after
    assert not any(report.ops_after.get(op) for op in SLICED)
    assert not report.skipped


@pytest.mark.parametrize("ids", [[], [7], [3, 3, 3, 3], [22, 0, 22, 1]])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_no_ids_and_repeated_ones(ids, strategy):
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.int64, [None])
        outputs = [
            tf1.nn.embedding_lookup(
                parted(name), placeholder, partition_strategy=strategy
            )
            for name in ("a", "b")
        ]
        loss, step = train(outputs, "adagrad")
    feed = {placeholder: np.array(ids, np.int64)}
    check(graph, [outputs, loss, step], feed, packs=2, steps=3)


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64])
def test_other_types_beside_whole_tables(dtype):
    """Parts and whole tables share a pack; ids are columns of one matrix."""
    with tf.Graph().as_default() as graph:
        matrix = tf1.placeholder(tf.int32, [None, 3])
        whole = tf1.get_variable(
            "w", initializer=np.ones([23, DIM], dtype.as_numpy_dtype), use_resource=True
        )
        tables = [parted("a", dtype=dtype), whole, parted("b", dtype=dtype, parts=2)]
        joined = tf.concat(
            [
                tf.nn.embedding_lookup(table, matrix[:, i])
                for i, table in enumerate(tables)
            ],
            1,
        )
        loss, step = train([joined], "adagrad")
    feed = {matrix: np.random.RandomState(1).randint(0, 23, (30, 3))}
    report = check(graph, [joined, loss, step], feed, packs=2, steps=5)
    assert gone(report), report.ops_after


def sparse_ids(rng, low, rows, width=6):
    kept = np.argwhere(rng.rand(20, width) < 0.4)
    kept = np.concatenate([kept[kept[:, 0] < 19], [[19, 0]]])
    values = rng.randint(low, rows, len(kept))
    return tf1.SparseTensorValue(kept, values.astype(np.int64), [20, width])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("safe", "combiner", "strategy", "parts"),
    [
        (False, "sum", "div", 3),
        (False, "mean", "mod", "few"),
        (True, "mean", "mod", 3),
        (True, "sum", "div", 2),
        (True, "sqrtn", "div", 7),
    ],
)
def test_bags(safe, combiner, strategy, parts, optimizer):
    """Bags that repeat ids and, if safe, hold bad ones or none."""
    rng = np.random.RandomState(2)
    rows = 5 if parts == "few" else 23
    look_up = (
        tf1.nn.safe_embedding_lookup_sparse if safe else tf1.nn.embedding_lookup_sparse
    )
    with tf.Graph().as_default() as graph:
        feed, outputs = {}, []
        for i in range(3):
            table = few(f"t{i}") if parts == "few" else parted(f"t{i}", rows, parts)
            ids = tf1.sparse_placeholder(tf.int64, [None, None])
            feed[ids] = sparse_ids(rng, -1 if safe else 0, rows)
            outputs.append(
                look_up(
                    table, ids, None, combiner=combiner, partition_strategy=strategy
                )
            )
        joined = tf.concat(outputs, 1)
        loss, step = train([joined], optimizer)
    report = check(graph, [joined, loss, step], feed, packs=2, steps=10)
    # Which bags are empty is told by stock's ops in safe lookups alone.
    assert gone(report, but=("FloorMod",)), report.ops_after
    assert not report.skipped


@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.bfloat16])
def test_weighted_bags(dtype, combiner, strategy, safe):
    """Pooled within the pack, as without weights; so is their gradient."""
    rng = np.random.RandomState(3)
    with tf.Graph().as_default() as graph:
        feed, outputs = {}, []
        for i, parts in enumerate((3, 3, 1, 7)):
            ids = tf1.sparse_placeholder(tf.int64, [None, None])
            weights = tf1.sparse_placeholder(tf.float32, [None, None])
            feed[ids] = sparse_ids(rng, -1 if safe else 0, 23)
            feed[weights] = feed[ids]._replace(
                values=rng.rand(len(feed[ids].values)).astype("f")
            )
            cast = tf.SparseTensor(
                weights.indices, tf.cast(weights.values, dtype), weights.dense_shape
            )
            lookup = tf1.nn.embedding_lookup_sparse
            if safe:
                lookup = tf1.nn.safe_embedding_lookup_sparse
            outputs.append(
                lookup(
                    parted(f"t{i}", parts=parts, dtype=dtype),
                    ids,
                    cast,
                    combiner=combiner,
                    partition_strategy=strategy,
                )
            )
        loss, step = train([tf.cast(rows, tf.float32) for rows in outputs], "adagrad")
    report = check(graph, [outputs, loss, step], feed, packs=2, steps=3)
    for op in ("SegmentSum", "DivNoNan", "UnsortedSegmentSum", "DynamicPartition"):
        assert op not in report.ops_after, report.ops_after
    assert gone(report, but=("FloorMod",)), report.ops_after


def test_bags_of_all_kinds_in_one_pack():
    """Of parts, of whole tables, with weights, and of a table's value."""
    rng = np.random.RandomState(5)

    def whole(name):
        initializer = tf1.random_normal_initializer(seed=len(name))
        return tf1.get_variable(
            name, [23, DIM], initializer=initializer, use_resource=True
        )

    with tf.Graph().as_default() as graph:
        feed, outputs = {}, []
        for table, weighted in (
            (parted("a"), False),
            (whole("bb"), True),
            (parted("ccc", parts=2), False),
            (whole("dddd"), False),
            (whole("eeeee").read_value(), False),
        ):
            ids, weights = tf1.sparse_placeholder(tf.int64, [None, None]), None
            feed[ids] = sparse_ids(rng, 0, 23)
            if weighted:
                weights = tf1.sparse_placeholder(tf.float32, [None, None])
                values = rng.rand(len(feed[ids].values)).astype("f")
                feed[weights] = feed[ids]._replace(values=values)
            outputs.append(tf1.nn.safe_embedding_lookup_sparse(table, ids, weights))
        joined = tf.concat(outputs, 1)
        loss, step = train([joined], "adagrad")
    report = check(graph, [joined, loss, step], feed, packs=2, steps=10)
    sizes = {pack.kind: len(pack.members) for pack in report.packs}
    assert sizes == {"lookup": 5, "update": 8}
    assert gone(report, but=("FloorMod",)), report.ops_after
    assert "SegmentSum" not in report.ops_after
    assert not report.skipped


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_ids_that_wait_for_a_check(strategy, bags):
    """As tf.feature_column's identity columns give them."""

    def checked(values):
        with tf.control_dependencies([tf1.assert_less(values, np.int64(23))]):
            return tf.identity(values)

    rng = np.random.RandomState(4)
    with tf.Graph().as_default() as graph:
        feed, outputs = {}, []
        for name in "ab":
            if bags:
                ids = tf1.sparse_placeholder(tf.int64, [None, None])
                feed[ids] = sparse_ids(rng, -1, 23)
                held = tf.SparseTensor(ids.indices, checked(ids.values), [20, 6])
                look_up = tf1.nn.safe_embedding_lookup_sparse
                row = look_up(parted(name), held, None, partition_strategy=strategy)
            else:
                ids = tf1.placeholder(tf.int64, [None])
                feed[ids] = rng.randint(0, 23, 9)
                row = tf1.nn.embedding_lookup(parted(name), checked(ids), strategy)
            outputs.append(row)
        loss, step = train(outputs, "adagrad")
    # Of bags, what prepares ids is packed step by step, and the pooling's gradient.
    packs = 7 if bags else 2
    report = check(graph, [outputs, loss, step], feed, packs=packs, steps=3)
    assert gone(report, but=GONE[-3:] if bags else ()), report.ops_after


# -- bad ids ---------------------------------------------------------------


def message_of(graph, fetches, feed, options):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        run(graph, fetches, feed, options)
    return caught.value.message


@pytest.mark.parametrize(
    ("strategy", "ids", "words"),
    [
        ("mod", [3, 0, -3], "indices[2] = -1 is not in [0, 8)"),
        ("mod", [24, 0, 25], "indices[0] = 8 is not in [0, 8)"),
        ("div", [3, -1, 5], "partitions[1] = -1 is not in [0, 3)"),
        ("div", [3, 23, -1], "partitions[1] = 3 is not in [0, 3)"),
        ("div", [4, 2, 1 << 40], "partitions[2] = "),
        ("div", [2, -(1 << 40) - 16], "partitions[1] = "),
    ],
)
def test_bad_ids(strategy, ids, words):
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.int64, [None])
        outputs = [
            tf1.nn.embedding_lookup(
                parted(name), placeholder, partition_strategy=strategy
            )
            for name in ("a", "b")
        ]
    feed = {placeholder: ids}
    stock = message_of(graph, outputs, feed, None)
    ours = message_of(graph, outputs, feed, STRICT)
    assert words in stock
    found = stock[stock.index(words) :].splitlines()[0]
    assert found in ours and "field 'embedding_lookup'" in ours


def test_bad_ids_of_bags():
    with tf.Graph().as_default() as graph:
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        outputs = [
            tf.nn.embedding_lookup_sparse(parted(name), ids, None)
            for name in ("a", "b")
        ]
    bad = tf1.SparseTensorValue([[0, 0], [0, 1], [1, 0]], [3, 3, 40], [2, 2])
    for options in (None, STRICT):
        message = message_of(graph, outputs, {ids: bad}, options)
        assert "partitions[1] = 5 is not in [0, 3)" in message


def test_wrapped_parts_are_those_of_stock():
    """A part's number is cast to int32: 2**32 * size rows further is a row."""
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.int64, [None])
        outputs = [
            tf.nn.embedding_lookup(parted(name, 21), placeholder) for name in "ab"
        ]
    check(graph, outputs, {placeholder: [3, (1 << 32) * 7 + 8, -(1 << 40)]})


# -- what stays -------------------------------------------------------------


def simple(strategy="div", parts=3):
    graph = tf.Graph()
    with graph.as_default():
        placeholder = tf1.placeholder(tf.int64, [None], name="ids")
        outputs = [
            tf1.nn.embedding_lookup(
                parted(name, parts=parts), placeholder, partition_strategy=strategy
            )
            for name in "ab"
        ]
        loss, step = train(outputs, "adagrad")
    return graph, {placeholder: [5, 1, 22, 5]}, outputs, loss, step


@pytest.mark.parametrize(
    "op", ["ParallelDynamicStitch", "DynamicPartition", "ResourceGather", "GatherV2"]
)
def test_what_is_fetched_in_the_middle_stays(op):
    graph, feed, outputs, loss, step = simple()
    fetched = next(x for x in graph.get_operations() if x.type == op)
    check(graph, [list(fetched.outputs), loss, step], feed, packs=2, steps=3)
    check(graph, [list(fetched.outputs), outputs], feed, packs=1)


def test_what_is_fed_in_the_middle_is_read():
    graph, feed, outputs, loss, step = simple()
    cast = next(x for x in graph.get_operations() if x.type == "Cast")
    fed = {cast.outputs[0]: np.array([1, 1, 0, 2], np.int32)}
    check(graph, [outputs, loss, step], feed | fed, packs=2, steps=3)


def test_an_excluded_part_is_left_alone():
    graph, feed, outputs, _, _ = simple()
    options = picasso_tf.Options(strict=True, exclude=["a/part_1"])
    report = check(graph, outputs, feed, options=options)
    reasons = [skipped.reason for skipped in report.skipped]
    assert "excluded by Options.exclude" in reasons
    assert any("its parts alone may be packed" in reason for reason in reasons)


def test_rows_of_a_part_that_others_read():
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        outputs = [tf.nn.embedding_lookup(parted(name), ids) for name in "ab"]
        gather = next(x for x in graph.get_operations() if x.type == "ResourceGather")
        outputs.append(tf.reduce_sum(gather.outputs[0]))
    report = check(graph, outputs, {ids: [4, 5, 22]})
    assert any("read by others" in skipped.reason for skipped in report.skipped)


def test_fewer_rows_than_parts_by_div():
    """Stock divides by zero, and goes on doing so."""
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        outputs = [tf.nn.embedding_lookup(few(name), ids) for name in "ab"]
    for options in (None, STRICT):
        assert "division by zero" in message_of(graph, outputs, {ids: [0]}, options)
    reasons = [skipped.reason for skipped in picasso_tf.last_report().skipped]
    assert any("fewer rows than parts" in reason for reason in reasons)


def test_one_variable_as_two_parts():
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        outputs = []
        for name in "ab":
            one, other = listed(name, (5, 4))
            outputs.append(
                tf1.nn.embedding_lookup([one, other, one, other], ids, "mod")
            )
        loss, step = train(outputs, "adagrad")
    check(graph, [outputs, loss, step], {ids: [3, 1, 3, 6, 0, 2]}, packs=2, steps=5)


def test_who_waits_for_one_part_and_leads_to_another_lookup():
    """The second lookup waits for a part of the first: one op cannot do both, but
    the second may wait for the one that does the first and the third."""
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        first = tf.nn.embedding_lookup(parted("a"), ids)
        gather = next(x for x in graph.get_operations() if x.type == "ResourceGather")
        with tf1.control_dependencies([gather]):
            later = ids + 0
        second = tf.nn.embedding_lookup(parted("b"), later)
        third = tf.nn.embedding_lookup(parted("c"), ids)
    outputs = [first, second, third]
    report = check(graph, outputs, {ids: [1, 22, 7]})
    assert [len(pack.members) for pack in report.packs] == [2]
    reasons = [skipped.reason for skipped in report.skipped]
    assert reasons == ["no other lookup of its type, device and level"]


def test_who_waits_for_rows_and_leads_to_their_pool():
    """What pools the rows would wait for itself."""
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int64, [None])
        segments = tf1.placeholder(tf.int64, [None])
        outputs = []
        for name in "ab":
            values = tf.reshape(tf.sin(tf.range(36.0)), [9, 4])
            table = tf1.get_variable(name, initializer=values, use_resource=True)
            unique, index = tf.unique(ids)
            rows = tf.nn.embedding_lookup(table, unique)
            with tf1.control_dependencies([rows.op.inputs[0].op]):
                later = segments + 0
            outputs.append(tf.sparse.segment_sum(rows, index, later))
    feed = {ids: [3, 1, 3], segments: [0, 0, 1]}
    check(graph, outputs, feed, packs=0, kind="lookup")
    reasons = {skipped.reason for skipped in picasso_tf.reports()[-1].skipped}
    assert "others wait for a part of its work alone" in reasons


# -- checkpoints, functions ------------------------------------------------


def test_checkpoints_go_over_to_other_numbers_of_parts(tmp_path):
    """Flag on with three parts, then off with two, then on with five: as stock."""

    def trained(path, flags):
        values = None
        for parts, flag in zip((3, 2, 5), flags, strict=True):
            graph, feed, outputs, _, step = simple(parts=parts)
            config = picasso_tf.session_config(options=STRICT) if flag else None
            with graph.as_default(), tf1.Session(graph=graph, config=config) as session:
                saver = tf1.train.Saver()
                if values is None:
                    session.run(tf1.global_variables_initializer())
                else:
                    saver.restore(session, str(path))
                for _ in range(3):
                    session.run(step, feed)
                values = session.run(outputs, feed)
                saver.save(session, str(path))
        return values

    ours = trained(tmp_path / "ours", (True, False, True))
    assert_same(ours, trained(tmp_path / "stock", (False, False, False)))


def test_functions():
    """tf.nn.embedding_lookup over lists of variables in a tf.function."""
    lists = [
        [
            tf.Variable(np.random.RandomState(i).randn(n, DIM).astype("f"))
            for n in (4, 3)
        ]
        for i in range(2)
    ]

    @tf.function
    def forward(ids):
        rows = [tf.nn.embedding_lookup(parts, ids) for parts in lists]
        return tf.concat(rows, -1)

    ids = tf.constant([[0, 6], [3, 4]], tf.int64)
    with picasso_tf.enabled(STRICT):
        ours = forward(ids).numpy()
    report = picasso_tf.last_report()
    assert [pack.kind for pack in report.packs] == ["lookup"]
    assert gone(report), report.ops_after
    stock = [np.concatenate([p.numpy() for p in parts])[ids] for parts in lists]
    assert_same(ours, np.concatenate(stock, -1))


def test_a_second_rewrite_changes_nothing():
    graph, _, outputs, _, step = simple()
    preserve = [step.name, *(x.op.name for x in outputs)]
    once, report = picasso_tf.rewrite(graph.as_graph_def(), preserve, STRICT)
    twice, _ = picasso_tf.rewrite(once, preserve, STRICT)
    assert report.packs
    assert once == twice


@pytest.mark.parametrize("strategy", ["mod", "div"])
def test_gradient_of_a_rewritten_forward_graph(strategy):
    """As of a converted model that is trained further: the gradient of parts."""

    def results(rewritten):
        graph, _, _, loss, _ = simple(strategy)
        if rewritten:
            made = [x.initializer for x in graph.get_collection("variables")]
            names = [loss.op.name, *(op.name for op in made)]
            forward, report = picasso_tf.rewrite(graph.as_graph_def(), names, STRICT)
            assert report.packs
            graph = tf.Graph()
            with graph.as_default():
                tf1.import_graph_def(forward, name="")
        with graph.as_default():
            handles = [
                graph.get_tensor_by_name(f"{name}/part_{i}:0")
                for name in "ab"
                for i in range(3)
            ]
            grads = tf1.gradients(graph.get_tensor_by_name(loss.name), handles)
            dense = [tf.convert_to_tensor(grad) for grad in grads]
            made = [x for x in graph.get_operations() if x.type == "AssignVariableOp"]
        feed = {graph.get_tensor_by_name("ids:0"): [5, 1, 22, 5]}
        with tf1.Session(graph=graph) as session:
            session.run(made)
            return session.run(dense, feed)

    assert_same(results(True), results(False))
