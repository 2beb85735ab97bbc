"""One op gives the handles of the variables of a packed graph."""

import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, check, run, table, tf1
from helpers_models import watch

import picasso_tf
from picasso_tf.edits import graph_def_of
from picasso_tf.options import Options
from picasso_tf.passes.pack_handles import PackHandles
from picasso_tf.passes.pack_lookups import PackLookups
from picasso_tf.rewrite import rewrite_nodes


def lookups(count=3, name="out"):
    ids = tf1.placeholder(tf.int32, [None], name="ids")
    rows = [tf.gather(table(f"t{i}", 10 + i), ids) for i in range(count)]
    return tf.concat(rows, 1, name=name), ids


def rewritten(nodes, options=STRICT, **view_args):
    """Lookups packed, then the handles."""
    outcome = rewrite_nodes(nodes, options, "g", view_args, (PackLookups, PackHandles))
    return graph_def_of(outcome.nodes), outcome.report


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_all_handles_of_a_session(graph):
    out, ids = lookups()
    report = check(graph, [out], {ids: [3, 1, 3]})
    assert report.handles == 3
    assert report.ops_after.get("VarHandleOp") is None
    assert report.ops_after["PicassoVarHandles"] == 1
    assert "one op gives the handles of 3 variables" in str(report)


def test_every_attribute_arrives(graph):
    lookups(2)
    done, _ = rewritten(graph.as_graph_def().node, preserve=["out"], roots=[["out"]])
    (node,) = [n for n in done.node if n.op == "PicassoVarHandles"]
    assert list(node.attr["shared_names"].list.s) == [b"t0", b"t1"]
    assert list(node.attr["containers"].list.s) == [b"", b""]
    assert list(node.attr["dtypes"].list.type) == [tf.float32.as_datatype_enum] * 2
    sizes = [[d.size for d in s.dim] for s in node.attr["shapes"].list.shape]
    assert sizes == [[10, 4], [11, 4]]
    alone = tf1.GraphDef(node=[node])
    with tf.Graph().as_default() as again:
        tf1.import_graph_def(alone, name="")
        handle = again.get_tensor_by_name(node.name + ":1")
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    assert read.shape == (11, 4)


def test_same_bytes_and_nothing_the_second_time(graph):
    lookups()
    wanted = {"preserve": ["out"], "roots": [["out"]]}
    first, _ = rewritten(graph.as_graph_def().node, **wanted)
    second, _ = rewritten(graph.as_graph_def().node, **wanted)
    bytes_of = [g.SerializeToString(deterministic=True) for g in (first, second)]
    assert bytes_of[0] == bytes_of[1]
    again = rewrite_nodes(first.node, STRICT, "g", wanted, (PackHandles,))
    assert again.nodes is None and again.report.handles == 0


def test_a_graph_without_packs_is_left_alone(graph):
    sum_ = tf.add(table("a").read_value(), table("b").read_value(), name="out")
    with watch() as watched:
        run(graph, [sum_], options=STRICT)
    assert all(report.handles == 0 for report in watched.reports())


@pytest.mark.parametrize("how", ["preserve", "feeds", "keep"])
def test_handles_that_somebody_names_stay(graph, how):
    lookups()
    wanted = {"preserve": ["out"], "roots": None}
    wanted[how] = [*wanted.get(how, []), "t1"]
    done, report = rewritten(graph.as_graph_def().node, **wanted)
    assert report.handles == 2
    assert [n.name for n in done.node if n.op == "VarHandleOp"] == ["t1"]


def test_excluded_waiting_and_nameless_handles_stay(graph):
    lookups(5)
    nodes = list(graph.as_graph_def().node)
    by_name = {node.name: node for node in nodes}
    by_name["t1"].input.append("^ids")
    by_name["t2"].attr["shared_name"].s = b""
    options = Options(strict=True, exclude=["t4"])
    done, report = rewritten(nodes, options, preserve=["out"])
    assert report.handles == 2
    assert {n.name for n in done.node if n.op == "VarHandleOp"} == {"t1", "t2", "t4"}


def test_devices_are_not_mixed(graph):
    ids = tf1.placeholder(tf.int32, [None], name="ids")
    rows = []
    for device in ("/cpu:0", "/cpu:1"):
        with tf.device(device):
            for i in range(2):
                rows.append(tf.gather(table(f"t{device[-1]}{i}"), ids))
    tf.concat(rows, 1, name="out")
    done, report = rewritten(graph.as_graph_def().node, preserve=["out"])
    assert report.handles == 4
    made = [n.device for n in done.node if n.op == "PicassoVarHandles"]
    assert sorted(made) == ["/device:CPU:0", "/device:CPU:1"]


def test_who_waited_for_a_handle_waits_for_the_op(graph):
    out, ids = lookups()
    with tf.control_dependencies([graph.get_operation_by_name("t0")]):
        late = tf.identity(out[:, 0], name="late")
    check(graph, [out, late], {ids: [1]})


def test_other_fetches_of_one_session_have_other_handles(graph):
    """A session keeps stateful kernels by name: another op needs another one."""
    ids = tf1.placeholder(tf.int32, [None])
    rows = [tf.gather(table(f"t{i}", 10 + i), ids) for i in range(6)]
    first, second = tf.concat(rows[:3], 1), tf.concat(rows[3:], 1)
    config = picasso_tf.session_config(options=STRICT)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(tf1.global_variables_initializer())
        got = [session.run(x, {ids: [5]}) for x in (first, second, first)]
    with tf1.Session(graph=graph) as session:
        session.run(tf1.global_variables_initializer())
        expected = [session.run(x, {ids: [5]}) for x in (first, second, first)]
    assert_same(got, expected)


def test_containers_keep_variables_apart(graph):
    ids = tf1.placeholder(tf.int32, [None])
    rows = []
    for container in ("one", "two"):
        with graph.container(container), tf1.variable_scope(container):
            rows.append(tf.gather(table("t"), ids))
    out = tf.concat(rows, 1)
    for number, variable in enumerate(tf1.global_variables()):
        out = tf1.tuple([out], control_inputs=[variable.op])[0] + number
    check(graph, [out], {ids: [2, 4]})


def test_training_steps_write_the_same_variables(graph):
    out, ids = lookups()
    loss = tf.reduce_sum(out * out)
    train = tf1.train.AdagradOptimizer(0.1).minimize(loss)
    report = check(graph, [loss, train], {ids: [3, 1, 3]}, packs=2, steps=3)
    assert report.handles == 6
