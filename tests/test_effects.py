"""What a barrier waits for: GraphView.effects_before."""

from tensorflow.core.framework import node_def_pb2

from picasso_tf.graph import GraphView


def node(name: str, op: str, *inputs: str) -> node_def_pb2.NodeDef:
    return node_def_pb2.NodeDef(name=name, op=op, input=inputs)


def test_a_barrier_behind_a_whole_model_is_seen_through():
    # Wide models were packed worse than narrow ones while the search had a limit.
    nodes = [node("x", "Placeholder"), node("write", "AssignVariableOp", "x", "x")]
    before = "x"
    for i in range(30_000):
        nodes.append(node(f"n{i}", "Neg", before))
        before = f"n{i}"
    nodes.append(node("known", "Neg", before))
    nodes.append(node("barrier", "NoOp", "^known", f"^{before}", "^write"))
    view = GraphView(nodes)
    assert view.effects_before("barrier", "known") == {"write"}


def test_what_the_reader_waits_for_anyway_is_left_out():
    view = GraphView(
        [
            node("x", "Placeholder"),
            node("early", "AssignVariableOp", "x", "x"),
            node("late", "AssignVariableOp", "x", "x"),
            node("known", "Neg", "x", "^early"),
            node("barrier", "NoOp", "^known", "^early", "^late"),
        ]
    )
    assert view.effects_before("barrier", "known") == {"late"}
    # Behind an effect nothing more has to be waited for.
    assert view.effects_before("known", "x") == {"early"}


def test_other_frames_are_not_waited_for():
    view = GraphView(
        [
            node("x", "Placeholder"),
            node("inside", "AssignVariableOp", "x", "x"),
            node("inner", "Neg", "x", "^inside"),
            node("exit", "Exit", "inner"),
            node("known", "Neg", "x"),
            node("barrier", "NoOp", "^exit", "^known"),
        ]
    )
    assert view.effects_before("barrier", "known") == {"exit"}


def test_too_many_effects_are_told_as_such():
    writes = [node(f"w{i}", "AssignVariableOp", "x", "x") for i in range(5_000)]
    barrier = node("barrier", "NoOp", *(f"^w{i}" for i in range(5_000)))
    view = GraphView([node("x", "Placeholder"), *writes, barrier])
    assert view.effects_before("barrier", "x") is None


def test_a_cycle_is_no_endless_search():
    view = GraphView([node("a", "Neg", "b"), node("b", "Neg", "a"), node("x", "Const")])
    assert view.effects_before("a", "x") is None
