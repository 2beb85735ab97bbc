"""Guards and frames: when the nodes of branches and loops run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picasso_tf.edges import MERGES
from picasso_tf.node import FORWARDING, Node, Tensor

if TYPE_CHECKING:
    from picasso_tf.graph import GraphView

SWITCHES = frozenset({"Switch", "RefSwitch", "_SwitchN"})
_ENTERS = frozenset({"Enter", "RefEnter"})

# Elements are (predicate tensor, output port).
Guard = frozenset
Frame = tuple[str, ...]
_NOTHING: tuple[Guard, Frame] = (frozenset(), ())


def switch_guard(view: GraphView, node: Node, port: int) -> Guard:
    """What a reader of an output is guarded by besides the node's own guard."""
    if node.op not in SWITCHES:
        return frozenset()
    return frozenset({(view.skip(node.inputs[1], FORWARDING), port)})


def find_guards(view: GraphView) -> tuple[dict[str, Guard], dict[str, Frame]]:
    """The guard and the frame of each node that may have one, by name."""
    guards: dict[str, Guard] = {}
    frames: dict[str, Frame] = {}
    starts = view.of_types(SWITCHES | _ENTERS)
    if not starts:
        return guards, frames
    # What is not behind one of these has no guard and no frame.
    behind = {node.index for node in view.behind(starts)}
    # What an edge carries on: of Switch it depends on the port, Exit leaves a frame
    # and with it the guards that were set inside.
    outgoing: dict[str, tuple[Guard, Frame]] = {}
    frame_guards: dict[Frame, Guard] = {(): frozenset()}
    for node in view.order():
        if node.index not in behind:
            continue
        incoming: list[Guard] = []
        frame: Frame = ()
        for name, port in node.inputs:
            source = view.nodes.get(name)
            if source is None or (source.index in behind and name not in outgoing):
                continue  # this edge closes a loop
            guard, source_frame = outgoing.get(name, _NOTHING)
            incoming.append(guard | switch_guard(view, source, port))
            if len(source_frame) > len(frame):
                frame = source_frame
        for name in node.controls:
            guard, source_frame = outgoing.get(name, _NOTHING)
            if node.op not in MERGES:
                incoming.append(guard)
            if len(source_frame) > len(frame):
                frame = source_frame
        if node.op in MERGES:
            guard = frozenset.intersection(*incoming) if incoming else frozenset()
        else:
            guard = frozenset().union(*incoming)
        guards[node.name] = guard
        frames[node.name] = frame
        if node.op in _ENTERS:
            inner = (*frame, node.attr("frame_name", ""))
            known = frame_guards.get(inner)
            frame_guards[inner] = guard if known is None else known & guard
            outgoing[node.name] = (guard, inner)
        elif node.op in ("Exit", "RefExit"):
            outgoing[node.name] = (frame_guards.get(frame, frozenset()), frame[:-1])
        else:
            outgoing[node.name] = (guard, frame)
    return guards, frames


def reader_guard(view: GraphView, tensor: Tensor) -> Guard:
    """The guard that a reader of the tensor inherits."""
    node = view.producer(tensor)
    if node is None:
        return frozenset()
    return view.guard(node.name) | switch_guard(view, node, tensor[1])
