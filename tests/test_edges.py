"""What a view knows of edges: orders, levels, readers, loops, what is needed."""

import gc
import weakref

import pytest
from tensorflow.core.framework import node_def_pb2, types_pb2

from picasso_tf import rewrite as rewrite_graph_def
from picasso_tf.edits import Edits, graph_def_of
from picasso_tf.graph import GraphView
from picasso_tf.options import Options
from picasso_tf.rewrite import rewrite_nodes


def node(name: str, op: str, *inputs: str) -> node_def_pb2.NodeDef:
    return node_def_pb2.NodeDef(name=name, op=op, input=inputs)


LOOP = (
    node("start", "Enter", "x"),
    node("head", "Merge", "start", "next"),
    node("body", "Neg", "head"),
    node("next", "NextIteration", "body"),
    node("x", "Placeholder"),
)


def names(nodes) -> list[str]:
    return [each.name for each in nodes]


def test_order_is_graph_order_among_those_ready():
    view = GraphView([node("b", "Neg", "a"), node("c", "Const"), node("a", "Const")])
    assert names(view.order()) == ["c", "a", "b"]


def test_loops_close_no_cycle():
    view = GraphView(LOOP)
    assert names(view.order()) == ["x", "start", "head", "body", "next"]
    assert names(view.followers("next")) == []
    assert [(n.name, at) for n, at in view.consumers(("next", 0))] == [("head", 1)]


def test_a_loop_needs_what_its_next_round_needs():
    view = GraphView([*LOOP, node("unused", "Neg", "x")], roots=[["head"], ["x"]])
    assert view.serves("next") == view.serves("body") == 1
    assert view.serves("x") == 3
    assert view.serves("unused") == 0


def test_what_is_before_a_feed_does_not_run():
    nodes = [node("a", "Const"), node("b", "Neg", "a"), node("c", "Neg", "b")]
    view = GraphView(nodes, feeds=["b"], roots=[["c"]])
    assert [view.serves(name) for name in "abc"] == [0, 0, 1]
    assert view.producer(("b", 0)) is None


def test_cycles_are_told():
    view = GraphView([node("a", "Neg", "b"), node("b", "Neg", "a"), node("c", "Const")])
    for ask in (view.order, lambda: view.levels(["a"])):
        with pytest.raises(ValueError, match="cycle"):
            ask()


def test_readers_of_each_output_with_repetitions():
    nodes = [
        node("pair", "Unique", "x"),
        node("both", "Sub", "pair:1", "pair:1", "^pair"),
        node("one", "Neg", "pair"),
        node("x", "Placeholder"),
        node("last", "NoOp", "^pair", "^pair"),
    ]
    view = GraphView(nodes)
    assert [(n.name, at) for n, at in view.consumers(("pair", 0))] == [("one", 0)]
    found = [(n.name, at) for n, at in view.consumers(("pair", 1))]
    assert found == [("both", 0), ("both", 1)]
    assert names(view.control_consumers("pair")) == ["both", "last", "last"]


def test_readers_with_many_inputs():
    nodes = [node(f"x{i}", "Const") for i in range(40)]
    inputs = [f"x{i % 40}" for i in range(60)]
    view = GraphView([*nodes, node("sum", "AddN", *inputs, "^x3")])
    assert [at for _, at in view.consumers(("x3", 0))] == [3, 43]
    assert [at for _, at in view.consumers(("x30", 0))] == [30]
    assert names(view.control_consumers("x3")) == ["sum"]


def test_sources_that_are_not_in_the_graph():
    view = GraphView([node("b", "Sub", "gone", "a"), node("a", "Const")])
    assert view.sources(view.nodes["b"]) == ["a"]
    assert [(n.name, at) for n, at in view.consumers(("a", 0))] == [("b", 1)]


def test_levels_count_anchors_and_later_edges():
    nodes = [
        node("a", "Const"),
        node("b", "Neg", "a"),
        node("c", "Neg", "b"),
        node("d", "Const"),
    ]
    view = GraphView(nodes)
    levels = view.levels(["a", "c", "d"])
    assert [levels[name] for name in "abcd"] == [1, 1, 2, 1]
    assert levels.get("not there", 7) == 7
    levels = view.levels(["a", "c", "d"], {"d": ["c"]})
    assert levels["d"] == 3
    assert view.stuck({"a": ["c"]}) == {"a", "b", "c"}
    assert view.comes_before(["d"], "c", {"b": ["d"]})
    assert not view.comes_before(["d"], "c", {})


def test_levels_around_look_at_other_sources():
    nodes = [node("a", "Const"), node("b", "Neg", "a"), node("c", "Neg", "b")]
    view = GraphView(nodes)
    levels = view.levels_around({"a": [], "c": ["a"], "b": []})
    assert [levels[name] for name in "abc"] == [1, 1, 2]
    with pytest.raises(ValueError, match="cycle"):
        view.levels_around({"a": ["c"]})


def test_groups_on_a_cycle_have_no_level():
    nodes = [
        node("a", "Const"),
        node("b", "Neg", "a"),
        node("c", "Neg", "b"),
        node("d", "Neg", "c"),
    ]
    levels, stuck = GraphView(nodes).group_levels({"a": 1, "c": 1, "d": 2})
    assert (levels, stuck) == ({2: 1}, {1})


def test_what_only_removed_nodes_read_goes():
    nodes = [
        node("x", "Placeholder"),
        node("shared", "Neg", "x"),
        node("alone", "Neg", "shared"),
        node("old", "Neg", "alone"),
        node("reader", "Neg", "old"),
        node("other", "Neg", "shared"),
    ]
    edits = Edits(GraphView(nodes))
    new = edits.add("new", "Neg", [("x", 0)], device="")
    unread = edits.add("unread", "Neg", [("alone", 0)], device="")
    edits.replace_tensor(("old", 0), (new, 0))
    edits.remove("old", waits_for=new)
    kept = edits.apply()
    assert names(kept) == ["x", "shared", "alone", "reader", "other", "new", unread]
    edits = Edits(GraphView(nodes))
    edits.replace_tensor(("old", 0), ("x", 0))
    edits.remove("old", waits_for="x")
    assert names(edits.apply()) == ["x", "shared", "reader", "other"]


def test_views_go_without_the_collector(monkeypatch):
    """Of large graphs they hold much; and cycles would have to be searched for."""
    views = []
    made = GraphView.__init__

    def remember(self, *args, **kwargs):
        made(self, *args, **kwargs)
        views.append(weakref.ref(self))

    monkeypatch.setattr(GraphView, "__init__", remember)
    nodes = [node(f"t{i}", "VarHandleOp") for i in range(2)]
    nodes += [node(f"g{i}", "ResourceGather", f"t{i}", "ids") for i in range(2)]
    nodes.append(node("ids", "Placeholder"))
    for each in nodes:
        each.attr["dtype"].type = types_pb2.DT_FLOAT
        if each.op == "ResourceGather":
            each.attr["Tindices"].type = types_pb2.DT_INT32
    gc.disable()
    try:
        outcome = rewrite_nodes(nodes, Options(strict=True), "graph", {})
        assert outcome.report.packs
        assert not any(view() for view in views)
    finally:
        gc.enable()


def test_the_collector_is_left_as_it_was():
    graph_def = graph_def_of([node("x", "Placeholder")])
    assert gc.isenabled()
    rewrite_graph_def(graph_def)
    assert gc.isenabled()
    gc.disable()
    try:
        rewrite_graph_def(graph_def)
        assert not gc.isenabled()
    finally:
        gc.enable()
