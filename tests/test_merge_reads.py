"""Equal reads of scalar variables become one, and what is computed from them too."""

import numpy as np
import pytest
import tensorflow as tf
from graphs import assert_same, run, tf1
from helpers_models import watch
from test_passes import golden

import picasso_tf
from picasso_tf.graph import GraphView
from picasso_tf.options import Options
from picasso_tf.passes import PASSES_AFTER
from picasso_tf.passes.merge_reads import MergeReads
from picasso_tf.rewrite import rewrite_nodes

STRICT = Options(strict=True)


def scalar(name, value=0.5, dtype=tf.float32):
    return tf1.get_variable(
        name, initializer=tf.constant(value, dtype), use_resource=True
    )


def nodes_of(graph):
    nodes = graph.as_graph_def().node
    for node in nodes:
        for key in ("_class", "debug_name"):
            node.attr.pop(key, None)
    return list(nodes)


def merge(graph, options=STRICT, **view_args):
    """The pass alone: the new nodes, the number merged. Twice is once."""
    nodes = nodes_of(graph)
    done = MergeReads(options).run(GraphView(nodes, **view_args))
    if done.nodes is None:
        assert done.merged == 0
        return nodes, 0
    again = MergeReads(options).run(GraphView(done.nodes, **view_args))
    assert again.nodes is None and again.merged == 0
    return [node.node_def for node in done.nodes], done.merged


def reads(nodes):
    return [node.name for node in nodes if node.op == "ReadVariableOp"]


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


# -- the pass alone -----------------------------------------------------------


def test_golden(graph):
    """A schedule per variable becomes one; where it ends, nothing is merged."""
    step, rate = scalar("step", 3, tf.int64), scalar("rate")
    x = tf1.placeholder(tf.float32, [None], name="x")
    outs = []
    for i in range(3):
        t = tf.cast(step.read_value() + 1, tf.float32)
        outs.append(x * (rate.read_value() / tf.pow(0.9, t)) * float(i))
    tf.stack(outs, name="out")
    done, _ = merge(graph, preserve=["out"])
    golden("merge_reads", tf1.GraphDef(node=done))


def test_larger_variables_are_left_alone(graph):
    """A read that lives on would make updates copy the variable."""
    v = tf1.get_variable("v", initializer=np.ones(3, np.float32), use_resource=True)
    tf.add(v.read_value(), v.read_value(), name="out")
    assert merge(graph)[1] == 0


def test_excluded(graph):
    v = scalar("rate")
    tf.add(v.read_value(), v.read_value(), name="out")
    assert merge(graph, Options(exclude=["^rate$"]))[1] == 0


@pytest.mark.parametrize("what", ["preserve", "feeds"])
def test_fetched_and_fed_reads_stay(graph, what):
    v = scalar("v")
    read, *others = [v.read_value().op.inputs[0] for _ in range(3)]
    tf.add_n([tf.negative(x) for x in (read, *others)], name="out")
    done, _ = merge(graph, **{what: [read.op.name]})
    # That of the variable itself stands for the others.
    assert reads(done) == ["v/Read/ReadVariableOp", read.op.name]
    by_name = {node.name: node for node in done}
    assert list(by_name["Neg"].input) == [read.op.name]
    assert by_name["Neg_1"].input[0] == "v/Read/ReadVariableOp"
    assert list(by_name["out"].input) == ["Neg", "Neg_1", "Neg_1"]


def test_control_inputs_tell_reads_apart(graph):
    v, w = scalar("v"), scalar("w")
    write = v.assign(1.0, read_value=False)
    with tf.control_dependencies([write]):
        after = [v.read_value() for _ in range(2)]
    before = v.read_value()
    # These wait for equal reads, and so are equal.
    waiting = []
    for _ in range(2):
        with tf.control_dependencies([w.read_value().op.inputs[0].op]):
            waiting.append(v.read_value())
    tf.stack([*after, before, *waiting], name="out")
    done, _ = merge(graph, preserve=["out"])
    controls = [
        [edge for edge in node.input if edge[0] == "^"]
        for node in done
        if node.op == "ReadVariableOp"
    ]
    assert controls == [[], [], ["^" + write.name], ["^w/Read/ReadVariableOp"]]


def test_who_waited_for_a_read_waits_for_the_other(graph):
    v = scalar("v")
    first, second = (v.read_value().op.inputs[0].op for _ in range(2))
    with tf.control_dependencies([first, second]):
        tf.constant(1.0, name="constant")
    done, _ = merge(graph)
    node = next(node for node in done if node.name == "constant")
    assert [edge for edge in node.input if edge[0] == "^"] == ["^v/Read/ReadVariableOp"]


def test_what_has_to_run_runs(graph):
    """Of equal reads one that has to run stays, and stands for the others."""
    v = scalar("v")
    first, second, third = (v.read_value().op.inputs[0].op.name for _ in range(3))
    nodes = nodes_of(graph)
    done = MergeReads(STRICT).run(GraphView(nodes, keep=[second, third]))
    assert reads(done.nodes) == [second]
    assert done.moved == {third: second}
    assert done.merged > 2
    assert first not in {node.name for node in done.nodes}


def test_devices_and_types_tell_ops_apart(graph):
    v = scalar("v")
    with tf.device("/cpu:0"):
        a = v.read_value()
    with tf.device("/cpu:1"):
        b = v.read_value()
    tf.stack([a, b, v.read_value()], name="out")
    done, _ = merge(graph, preserve=["out"])
    assert len(reads(done)) == 3


def test_effects_and_unequal_constants_stay(graph):
    v = scalar("v")
    noise = [tf.random.uniform([2]) * v.read_value() for _ in range(2)]
    other = [v.read_value() * c for c in (1.0, 2.0, 2.0)]
    tf.concat([*noise, [tf.reduce_sum(other)]], 0, name="out")
    tf.stack(other, name="scaled")
    done, _ = merge(graph, preserve=["out", "scaled"])
    assert len(reads(done)) == 1
    by_name = {node.name: node for node in done}
    assert len({*by_name["out"].input}) == 4
    scaled = list(by_name["scaled"].input)
    assert scaled[0] != scaled[1] == scaled[2]


def test_it_runs_only_with_others(graph):
    """Graphs that hold nothing to pack are left to TensorFlow."""
    v = scalar("v")
    tf.add(v.read_value(), v.read_value(), name="out")
    nodes = nodes_of(graph)
    kept = [node for node in nodes if node.op != "AssignVariableOp"]
    outcome = rewrite_nodes(kept, STRICT, "graph", {}, PASSES_AFTER)
    assert outcome.nodes is None
    outcome = rewrite_nodes(nodes, STRICT, "graph", {}, PASSES_AFTER)
    report = outcome.report
    assert report.merged > 0 and not report.changed and not report.was_dropped()
    assert "merged" in str(report)
    assert report.to_dict()["merged"] == report.merged


# -- in TensorFlow ------------------------------------------------------------


def both(function, *args):
    """Results of two calls with and without picasso_tf; and the merged nodes."""
    results, merged = [], 0
    for flag in (False, True):
        made = function()
        with watch() as seen:
            if flag:
                with picasso_tf.enabled(STRICT):
                    got = [made(*args) for _ in range(2)]
            else:
                got = [made(*args) for _ in range(2)]
        merged = sum(report.merged for report in seen.reports())
        results.append(got)
    assert_same(results[1], results[0])
    return merged


def test_assigns_around_reads():
    def make():
        v, w = tf.Variable(2.0), tf.Variable(1.0)

        @tf.function
        def step(x):
            out = [v * x, v * x + 1.0]
            v.assign_add(0.25)
            out += [v * x, tf.square(v), tf.square(v)]
            w.assign(v + w)
            v.assign(w * 2.0)
            return out, v * x, w.read_value(), v.read_value() + v.read_value()

        return step

    assert both(make, tf.constant(3.0)) > 0


def test_cond_and_while():
    def make():
        v, w = tf.Variable(2.0), tf.Variable(1.0)

        @tf.function
        def step(x):
            w.assign_add(tf.square(v) + tf.square(v))
            if x > 1.0:
                y = v * 2.0 + v * 2.0
                v.assign_add(1.0)
                y += v * 2.0
            else:
                y = v - 1.0
            for _ in tf.range(tf.cast(x, tf.int32)):
                y += v * x + v * x
                v.assign_sub(0.5)
                y += v * x
                w.assign_add(y)
            return y, v.read_value(), w.read_value(), v * 2.0

        return step

    for x in (0.5, 3.0):
        assert both(make, tf.constant(x)) > 0


@pytest.mark.parametrize("control_flow", [True, False])
def test_v1_control_flow(control_flow):
    switch = tf1.enable_control_flow_v2 if control_flow else tf1.disable_control_flow_v2
    before = tf1.control_flow_v2_enabled()
    switch()
    try:
        with tf.Graph().as_default() as graph:
            v, w = scalar("v"), scalar("w", 2.0)
            x = tf1.placeholder(tf.float32, [])
            picked = tf.cond(
                x > 0.0,
                lambda: v.read_value() * 2.0 + v.read_value() * 2.0,
                lambda: v.read_value() - 1.0,
            )
            looped = tf.while_loop(
                lambda i, y: i < 3,
                lambda i, y: (i + 1, y + v.read_value() * x + v.read_value() * x),
                [0, picked],
            )[1]
            outs = [picked, looped, v.read_value() * 2.0, v.read_value() * 2.0]
            with tf.control_dependencies(outs):
                outs.append(w.assign_sub(v.read_value() * looped))
    finally:
        (tf1.enable_control_flow_v2 if before else tf1.disable_control_flow_v2)()
    for value in (-1.0, 1.0):
        assert_same(*(run(graph, outs, {x: value}, o, 3) for o in (STRICT, None)))


def test_sessions_fetch_and_feed_reads():
    with tf.Graph().as_default() as graph:
        v, w = scalar("v"), scalar("w")
        held = [v.read_value().op.inputs[0] for _ in range(4)]
        outs = [tf.square(read) for read in held]
        outs.append(w.assign_add(tf.add_n(outs)))
    for feed in (None, {held[1]: 7.0}, {held[0]: 7.0, held[3]: 8.0}):
        for fetches in (outs, [*outs, held[1]], [*held, *outs]):
            with watch() as seen:
                ours = run(graph, fetches, feed, STRICT)
            assert_same(ours, run(graph, fetches, feed))
            if fetches is outs:
                assert sum(report.merged for report in seen.reports()) > 0


def test_constants_are_not_regrouped():
    """TensorFlow multiplies the constants of rate * 0.1 * c first, if nobody else
    reads rate * 0.1: merged before its optimizers, the bits would differ."""
    with tf.Graph().as_default() as graph:
        rate = scalar("rate", 0.0123)
        x = tf1.placeholder(tf.float32, [None])
        outs = [rate.read_value() * 0.1 * (0.7 + i * 0.13) * x for i in range(4)]
        outs.append(scalar("w").assign_add(tf.reduce_sum(tf.add_n(outs))))
    feed = {x: np.linspace(0.1, 3, 1000).astype(np.float32)}
    with watch() as seen:
        ours = run(graph, outs, feed, STRICT)
    assert_same(ours, run(graph, outs, feed))
    assert sum(report.merged for report in seen.reports()) > 0


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "Nadam", "Ftrl"])
def test_keras_fit(name):
    def fit():
        tf.keras.utils.set_random_seed(1)
        inputs = [tf.keras.Input((1,), dtype="int64") for _ in range(4)]
        rows = [
            tf.keras.layers.Flatten()(tf.keras.layers.Embedding(20, 4)(i))
            for i in inputs
        ]
        hidden = tf.keras.layers.Dense(8, "relu")(tf.keras.layers.concatenate(rows))
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
        optimizer = getattr(tf.keras.optimizers, name)()
        model.compile(optimizer, "mse", jit_compile=False)
        random = np.random.RandomState(0)
        ids = random.randint(0, 20, (64, 4))
        columns = [ids[:, i : i + 1] for i in range(4)]
        target = random.rand(64, 1).astype(np.float32)
        history = model.fit(
            columns, target, 16, epochs=3, verbose=0, shuffle=False
        ).history
        return history["loss"], [np.asarray(v) for v in model.weights]

    stock = fit()
    with watch() as seen, picasso_tf.enabled(STRICT):
        ours = fit()
    assert_same(ours, stock)
    seen.assert_packed()
    # Of the others, each chain is packed with its own schedule.
    if name == "Adagrad":
        assert sum(report.merged for report in seen.reports()) > 0, seen.text()
