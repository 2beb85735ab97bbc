"""What the passes make of graphs: golden texts, and what must not be packed."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf
from graphs import assert_same, check, ops_of, run, spell, table, tf1

import picasso_tf
from picasso_tf.graph import GraphView
from picasso_tf.options import Options

GOLDEN = pathlib.Path(__file__).parent / "golden"
ATTRS = (
    "member_table", "ids_source", "ids_begin", "ids_width", "ids_narrow",
    "ids_mode", "cast_rows",
    "output_members", "output_chunk_dims", "output_stack", "shape_members",
    "rule", "sum_duplicates", "hyper_index", "scale_index", "negate",
    "member_parts", "grad_source", "grad_chunk_dims", "grad_begin", "grad_size",
    "bag_combiner", "bag_rows", "bag_shape", "bag_weights", "bag_prune",
    "bag_prune_weights", "bag_zero_filled", "bag_full_shape", "bag_ones",
)  # fmt: skip


def golden(name: str, graph_def) -> None:
    """Compares with tests/golden/NAME.txt; a missing file is written."""
    path = GOLDEN / f"{name}.txt"
    text = spell(graph_def, ATTRS)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and has been written: read it")
    assert text == path.read_text()


def rewrite(graph, preserve, options=None):
    """The rewritten GraphDef and the report; also: twice is once, same bytes."""
    before = graph.as_graph_def()
    # Attributes that only describe the origin differ between versions.
    for node in before.node:
        for key in ("_class", "debug_name"):
            node.attr.pop(key, None)
    options = options or Options(strict=True)
    after, report = picasso_tf.rewrite(before, preserve, options)
    again, _ = picasso_tf.rewrite(before, preserve, options)
    assert after.SerializeToString(deterministic=True) == again.SerializeToString(
        deterministic=True
    )
    twice, second = picasso_tf.rewrite(after, preserve, options)
    assert not second.packs
    assert twice.SerializeToString(deterministic=True) == after.SerializeToString(
        deterministic=True
    )
    return after, report


# -- golden ------------------------------------------------------------------


def test_golden_concat():
    """Two lookups of different dim and a dense tensor become one op."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None, 2], name="ids")
        dense = tf1.placeholder(tf.float32, [None, 3], name="dense")
        a = tf.nn.embedding_lookup(table("a", dim=4), ids[:, 0], name="lookup_a")
        b = tf.nn.embedding_lookup(table("b", dim=2), ids[:, 1], name="lookup_b")
        tf.identity(tf.concat([a, dense, b], 1, name="joined"), name="out")
    after, _ = rewrite(graph, ["out"])
    golden("concat", after)


def test_golden_stack_and_single_reader():
    """Stacked rows are written in place; a row that is read alone too."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int32, [None], name="ids")
        a = tf.nn.embedding_lookup(table("a"), ids, name="lookup_a")
        b = tf.nn.embedding_lookup(table("b"), ids, name="lookup_b")
        stacked = tf.stack([a, b], axis=1, name="stacked")
        tf.identity(tf.reduce_sum(stacked) + tf.reduce_sum(b), name="out")
    after, _ = rewrite(graph, ["out"])
    golden("stack", after)


def test_golden_updates():
    """Adagrad on two tables behind tf.concat: gradients are read in place."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None, 2], name="ids")
        a = tf.nn.embedding_lookup(table("a"), ids[:, 0], name="lookup_a")
        b = tf.nn.embedding_lookup(table("b"), ids[:, 1], name="lookup_b")
        loss = tf.reduce_sum(tf.concat([a, b], 1, name="joined") ** 2, name="loss")
        tf1.train.AdagradOptimizer(0.1).minimize(loss, name="train")
    after, _ = rewrite(graph, ["loss", "train"])
    counts = ops_of(after)
    assert counts["PicassoPackedUpdate"] == counts["PicassoPackedLookup"] == 1
    for gone in ("ResourceGather", "Unique", "UnsortedSegmentSum", "ConcatV2", "Slice"):
        assert counts[gone] == 0, gone
    golden("updates", after)


# -- what the ids' and rows' surroundings look like ---------------------------


@pytest.mark.parametrize(
    "cut",
    [
        lambda x, i: x[:, i],
        lambda x, i: x[..., i],
        lambda x, i: tf.squeeze(x[:, i : i + 1], [1]),
        lambda x, i: tf.unstack(x, num=3, axis=1)[i],
        lambda x, i: tf.squeeze(tf.split(x, 3, axis=1)[i], 1),
        lambda x, i: tf.reshape(tf.split(x, [1, 1, 1], axis=-1)[i], [-1]),
        lambda x, i: tf.cast(tf.cast(x, tf.int32)[:, i], tf.int64),
        lambda x, i: tf.reshape(tf.slice(x, [0, i], [-1, 1]), [-1]),
        lambda x, i: x[:, i - 3],
    ],
)
def test_columns_are_read_in_place(cut):
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.int64, [None, 3], name="x")
        rows = [tf.nn.embedding_lookup(table(f"t{i}"), cut(x, i)) for i in range(3)]
        out = tf.concat(rows, 1)
    report = check(graph, out, {x: np.arange(12).reshape(4, 3) % 10})
    for op in ("StridedSlice", "Unpack", "Split", "SplitV", "Cast", "Squeeze", "Slice"):
        assert report.ops_after.get(op, 0) == 0, op


def test_narrowing_cast_wraps_as_stock():
    """2**32 + 3 cast to int32 is row 3; read as int64 it would be no row."""
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.int64, [None, 2])
        narrow = tf.cast(x, tf.int32)
        out = [tf.gather(table(f"t{i}"), narrow[:, i]) for i in range(2)]
    check(graph, out, {x: np.array([[2**32 + 3, 1], [-(2**32) + 2, 2]])})


def test_flatten_between_lookup_and_concat():
    """Keras writes [batch, 1] ids, [batch, 1, dim] rows, and flattens them."""
    graph = tf1.Graph()
    with graph.as_default():
        rows = []
        feed = {}
        for i in range(3):
            ids = tf1.placeholder(tf.int64, [None, 2 if i else 1])
            feed[ids] = np.ones([5, 2 if i else 1], int) * i
            row = tf.nn.embedding_lookup(table(f"t{i}"), ids)
            rows.append(tf.reshape(row, [-1, 8 if i else 4]))
        out = tf.concat(rows, -1)
    report = check(graph, out, feed)
    assert (
        report.ops_after.get("ConcatV2", 0) == report.ops_after.get("Reshape", 0) == 0
    )


def test_rows_that_a_join_would_cut_stay_apart():
    """Each join input has half a row per index in front of the axis."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [4])
        halves = [tf.reshape(tf.gather(table(f"t{i}"), ids), [8, 2]) for i in range(2)]
        out = tf.concat(halves, 1)
    report = check(graph, out, {ids: [1, 2, 3, 4]})
    assert report.ops_after["ConcatV2"] == 1


def test_partly_packed_concat_keeps_the_rest():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.nn.embedding_lookup(table(f"t{i}"), ids) for i in range(4)]
        late = tf.gather(table("late"), tf.cast(rows[0][:, 0], tf.int64) % 10)
        out = tf.concat([*rows[:2], late, *rows[2:]], 1)
    report = check(graph, out, {ids: [0, 2, 1]})
    assert report.ops_after["ConcatV2"] == 1
    assert "no other lookup" in report.reasons().popitem()[0]


def test_shapes_of_rows_do_not_keep_the_rows():
    """Adam's gradient reads the shape of each lookup; so do many models."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        dense = tf1.placeholder(tf.float32, [None, 2])
        rows = [tf.nn.embedding_lookup(table(f"t{i}"), ids) for i in range(3)]
        joined = tf.concat([*rows, dense], 1)
        shapes = tf.shape_n([*rows, dense])
        out = [joined, tf.add_n([shapes[1], shapes[3]]), tf.shape(rows[2])]
    report = check(graph, out, {ids: [3, 1], dense: np.ones([2, 2])})
    pack = report.packs[0]
    assert "1 joins folded" in pack.detail


# -- guards, frames, devices, order ------------------------------------------


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("taken", [True, False])
def test_branches_are_not_mixed(version, taken):
    """A pack over both sides of a cond would be dead as a whole, and give
    consumers empty tensors without an error."""
    enable = (
        tf1.enable_control_flow_v2 if version == "v2" else tf1.disable_control_flow_v2
    )
    was_v2 = tf1.control_flow_v2_enabled()
    enable()
    try:
        graph = tf1.Graph()
        with graph.as_default():
            ids = tf1.placeholder(tf.int64, [None])
            flag = tf1.placeholder(tf.bool, [])
            tables = [table(f"t{i}") for i in range(6)]
            outside = [tf.gather(t, ids) for t in tables[:2]]
            inside = tf.cond(
                flag,
                lambda: tf.concat([tf.gather(t, ids) for t in tables[2:4]], 1),
                lambda: tf.concat([tf.gather(t, ids) for t in tables[4:]], 1) * 2,
            )
            out = [*outside, inside]
        check(graph, out, {ids: [1, 2, 3], flag: taken}, packs=3)
    finally:
        (tf1.enable_control_flow_v2 if was_v2 else tf1.disable_control_flow_v2)()


@pytest.mark.parametrize("taken", [True, False])
def test_one_lookup_per_branch_is_left_alone(taken):
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        flag = tf1.placeholder(tf.bool, [])
        a, b = table("a"), table("b")
        out = tf.cond(flag, lambda: tf.gather(a, ids), lambda: tf.gather(b, ids))
        # Enough nodes for Grappler to look at the graph.
        out = tf.identity(tf.nn.relu(out) + 1.0)
    check(graph, out, {ids: [1], flag: taken}, packs=0)


def test_lookups_in_a_loop_are_packed_there():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        tables = [table(f"t{i}") for i in range(4)]
        before = tf.concat([tf.gather(t, ids) for t in tables[:2]], 1)

        def body(i, total):
            rows = [tf.gather(t, (ids + i) % 10) for t in tables[2:]]
            return i + 1, total + tf.concat(rows, 1)

        _, total = tf.while_loop(
            lambda i, _: i < 3, body, [tf.constant(0, tf.int64), before]
        )
        out = tf.identity(total)
    check(graph, out, {ids: [1, 2]}, packs=2)


def test_devices_are_not_mixed():
    graph = tf1.Graph()
    config = tf1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = []
        for device in (0, 1):
            with tf.device(f"/cpu:{device}"):
                tables = [table(f"t{device}{i}") for i in range(2)]
                rows += [tf.nn.embedding_lookup(t, ids) for t in tables]
        out = tf.concat(rows, 1)
    ours = run(graph, out, {ids: [3, 1]}, Options(strict=True), config=config)
    report = picasso_tf.last_report()
    assert_same(ours, run(graph, out, {ids: [3, 1]}, config=config))
    assert [len(pack.members) for pack in report.packs] == [2, 2]


def test_new_nodes_copy_the_device():
    graph = tf1.Graph()
    with graph.as_default(), tf.device("/cpu:0"):
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(table(f"t{i}"), ids) for i in range(2)]
        tf.add_n(rows, name="out")
    after, _ = rewrite(graph, ["out"])
    pack = next(node for node in after.node if node.op == "PicassoPackedLookup")
    gather = next(n for n in graph.as_graph_def().node if n.op == "ResourceGather")
    assert pack.device == gather.device != ""


def test_reads_stay_on_their_side_of_a_write():
    """t is read, overwritten, and read again, in control order."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        t, u = table("t"), table("u")
        before = [tf.gather(t, ids), tf.gather(u, ids)]
        with tf.control_dependencies(before):
            write = tf1.assign(t, tf.ones([10, 4]))
        with tf.control_dependencies([write]):
            behind = [tf.gather(t, ids), tf.gather(u, ids)]
        out = [*before, *behind]
    check(graph, out, {ids: [3, 1]}, packs=2)


def test_lookup_between_two_lookups_makes_no_cycle():
    """c depends on a; a, b and c agree in all else. b may go with either."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        a = tf.gather(table("a"), ids)
        b = tf.gather(table("b"), ids)
        c = tf.gather(table("c"), tf.cast(a[:, 0], tf.int64) % 10)
        out = [tf.concat([b, c], 1), tf.concat([a, c], 1)]
    check(graph, out, {ids: [3, 1]})


# -- what else must not change ------------------------------------------------


def test_exclude_by_variable_name():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(table(name), ids) for name in ("a", "b", "secret")]
        tf.add_n(rows, name="out")
    _, report = rewrite(graph, ["out"], Options(strict=True, exclude=["^sec"]))
    assert list(report.reasons()) == ["excluded by Options.exclude"]
    assert len(report.packs[0].members) == 2


def test_heavy_packs_are_cut_and_still_one_concat():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [8])
        rows = [tf.nn.embedding_lookup(table(f"t{i}"), ids) for i in range(6)]
        out = tf.concat(rows, 1)
    # A lookup moves 8 x 4 x 4 = 128 bytes.
    options = Options(strict=True, max_pack_volume=256)
    report = check(graph, out, {ids: range(8)}, packs=3, options=options)
    assert {pack.volume for pack in report.packs} == {256}
    assert report.ops_after["ConcatV2"] == 1


def test_preserved_names_are_not_packed_across():
    """Two names that may be fetched apart must not need each other's feeds."""
    graph = tf1.Graph()
    with graph.as_default():
        for side in ("x", "y"):
            ids = tf1.placeholder(tf.int64, [None], name=f"ids_{side}")
            rows = [tf.gather(table(f"{side}{i}"), ids) for i in range(2)]
            tf.concat(rows, 1, name=side)
        tf1.group(tf1.global_variables_initializer(), name="init")
    after, report = rewrite(graph, ["x", "y", "init"])
    assert [pack.tables for pack in report.packs] == [2, 2]
    with tf1.Graph().as_default():
        tf1.import_graph_def(after, name="")
        with tf1.Session() as session:
            session.run("init")
            assert session.run("x:0", {"ids_x:0": [1]}).shape == (1, 8)


def test_preserve_must_be_in_the_graph():
    with pytest.raises(ValueError, match=r"preserve.*'loss'"):
        picasso_tf.rewrite(tf1.GraphDef(), ["loss:0"])


def test_batch_dims_is_named_as_the_reason():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [10, 2])
        rows = [
            tf.raw_ops.ResourceGather(
                resource=table(f"t{i}").handle, indices=ids, batch_dims=1, dtype="float"
            )
            for i in range(2)
        ]
        tf.add_n(rows, name="out")
    _, report = rewrite(graph, ["out"])
    assert list(report.reasons()) == ["batch_dims is 1, not 0"]


def test_integer_tables_are_named_as_the_reason():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(table(f"t{i}", dtype=np.int32), ids) for i in range(2)]
        tf.add_n(rows, name="out")
    _, report = rewrite(graph, ["out"])
    assert list(report.reasons()) == ["rows are int32, not of a floating-point type"]


def test_interior_values_may_be_fetched():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        gathers = [tf.gather(table(f"t{i}"), ids) for i in range(3)]
        forwarded = [tf.identity(row) for row in gathers]
        joined = tf.concat(forwarded, 1)
        out = tf.reduce_sum(joined)
    for fetch in (gathers[1], forwarded[1], joined):
        check(graph, [out, fetch], {ids: [1, 2]})


def test_two_lookups_of_one_table_add_up():
    """Their gradients are concatenated for one update; both parts count."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = [tf1.placeholder(tf.int64, [None]) for _ in range(2)]
        shared, other = table("shared"), table("other")
        rows = [tf.nn.embedding_lookup(shared, i) for i in ids]
        rows.append(tf.nn.embedding_lookup(other, ids[0]))
        loss = tf.reduce_mean(tf.concat(rows, 1) ** 2)
        train = tf1.train.AdagradOptimizer(0.5).minimize(loss)
    feed = {ids[0]: [1, 1, 2], ids[1]: [2, 3, 1]}
    report = check(graph, [loss, train], feed, packs=2, steps=20)
    update = next(pack for pack in report.packs if pack.kind == "update")
    assert update.tables == 2


def test_unregistered_ops_do_not_disturb():
    """Functions and ops that are not known here are somebody else's."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(table(f"t{i}"), ids) for i in range(2)]
        tf.add_n(rows, name="out")
    graph_def = graph.as_graph_def()
    graph_def.node.add(name="stranger", op="NobodyKnowsThis", input=["ids"])
    after, report = picasso_tf.rewrite(graph_def, (), Options(strict=True))
    assert report.packs and any(node.name == "stranger" for node in after.node)


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0)])
def test_one_session_many_fetches(order):
    """A session keeps stateful kernels by the node's name, across the graphs that
    it makes for different fetches: packs of other members need other names."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        rows = [tf.gather(table(f"t{i}", dim=2 + i // 2), ids) for i in range(4)]
        fetches = [
            tf.concat(rows[:2], 1),
            tf.stack(rows[:2], 1),
            rows[:2],
            tf.concat(rows, 1),
            tf.concat(rows[1:3], 1),
        ]
        fetches = [tf.nest.map_structure(tf.identity, fetch) for fetch in fetches]
        init = tf1.global_variables_initializer()
    results = []
    for config in (None, picasso_tf.session_config(options=Options(strict=True))):
        with tf1.Session(graph=graph, config=config) as session:
            session.run(init)
            results.append(
                [session.run(fetches[i], {ids: [3, 1, 1]}) for i in (*order, *order)]
            )
    assert_same(results[1], results[0])
    assert not picasso_tf.last_report().was_dropped()


def test_float_sums_are_left_to_the_run():
    """Offline, only what TensorFlow's optimizers cannot round otherwise is packed: a
    rewritten training graph trains as the original does, and as one that is packed
    when it runs."""
    graph = tf.Graph()
    with graph.as_default():
        tf1.set_random_seed(1)
        ids = tf1.placeholder(tf.int64, [None, 3], name="ids")
        tables = [table(f"t{i}", 50, 4) for i in range(3)]
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        loss = tf.reduce_mean(tf.tanh(tf.concat(rows, 1)) ** 2)
        loss += tf.add_n([0.01 * tf.nn.l2_loss(t) for t in tables])
        loss = tf.identity(loss, name="loss")
        train = tf1.train.AdamOptimizer(0.1).minimize(loss, name="train")
        init = tf1.global_variables_initializer()
        # What is read again is another graph.
        values = tf.identity_n([t.read_value() for t in tables], name="values")
    names = ["loss", "train", "values", init.name]
    after, report = picasso_tf.rewrite(
        graph.as_graph_def(), names, Options(strict=True)
    )
    del train, values
    note = [note for note in report.notes if note.startswith("left to the run: ")]
    assert len(note) == 1 and "3 L2Loss" in note[0] and "regroup" in note[0]
    assert note[0] in str(report) and "UnsortedSegmentSum" in note[0]
    assert {pack.kind for pack in report.packs} == {"lookup"}
    feed = {"ids:0": np.random.default_rng(1).integers(0, 50, (64, 3))}

    def trained(graph_def, options):
        config = options and picasso_tf.session_config(options=options)
        with tf.Graph().as_default() as imported:
            tf.import_graph_def(graph_def, name="")
        with tf1.Session(graph=imported, config=config) as session:
            session.run(init.name)
            losses = [session.run(["loss:0", "train"], feed)[0] for _ in range(5)]
            outputs = [f"values:{i}" for i in range(3)]
            return losses, session.run(outputs)

    stock = trained(graph.as_graph_def(), None)
    assert_same(trained(after, None), stock)
    assert_same(trained(after, Options(strict=True)), stock)
    kinds = {p.kind for r in picasso_tf.reports()[-3:] for p in r.packs}
    assert {"L2 term", "segment sum", "dense update"} <= kinds


def test_serving_graphs_have_nothing_left_to_the_run():
    graph = tf.Graph()
    with graph.as_default():
        fc = tf1.feature_column
        names = ["a", "b", "c"]
        features = {n: tf1.placeholder(tf.string, [None], name=n) for n in names}
        columns = [fc.categorical_column_with_hash_bucket(n, 9) for n in names]
        out = tf.identity(fc.linear_model(features, columns), name="out")
    after, report = rewrite(graph, [out.op.name])
    assert not report.notes
    assert ops_of(after)["PicassoPackedSparseReshape"] == 1
    assert ops_of(after)["SparseReshape"] == 0


def test_guard_behind_a_merge_with_what_always_runs():
    """One input of the Merge is behind a Switch, the other behind none."""
    with tf.Graph().as_default() as graph:
        value, chosen = tf.constant(1.0), tf1.placeholder(tf.bool, [], name="chosen")
        taken = tf.raw_ops.Switch(data=value, pred=chosen).output_true
        inside = tf.negative(taken, name="inside")
        always = tf.constant(2.0)
        merged = tf.raw_ops.Merge(inputs=[inside, always]).output
        tf.negative(merged, name="behind")
    view = GraphView(graph.as_graph_def().node)
    assert view.guard("inside") == {(("chosen", 0), 1)}
    assert view.guard("behind") == frozenset()
