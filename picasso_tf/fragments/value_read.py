"""Where a gather gets a variable's value from, and what a later read has to be
waited for.

A packed lookup reads rows while it runs, not when the ReadVariableOp ran. So it
has to run between what the ReadVariableOp waited for and whatever may write the
variable afterwards.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Table, Tensor

_REF_VARIABLES = frozenset({"VariableV2", "Variable", "TemporaryVariable"})
_CONTROL_FLOW = frozenset(
    {"Enter", "RefEnter", "Switch", "RefSwitch", "Merge", "RefMerge", "Exit"}
)
_SUMS = frozenset({"Add", "AddV2", "AddN"})
# Ops that take a variable's handle and leave the variable as it is.
_READERS = frozenset(
    {
        *("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape"),
        *("VarIsInitializedOp", "PicassoPackedLookup", "Identity", "Shape"),
        *("Switch", "Enter", "StopGradient", "DisableCopyOnRead", "_Retval"),
    }
)


@dataclasses.dataclass(frozen=True)
class ValueRead:
    """A ReadVariableOp in front of a gather.

    Attributes:
      nodes: the ReadVariableOp, and what forwards its value to the gather.
      handle: the variable's.
      controls: what the read waited for.
      waiting: names of the nodes that must not run before the gather: what waited
        for the read, and what may write the variable.
      cast: the half type that the whole table is cast to on the way.
    """

    nodes: tuple[Node, ...]
    handle: Tensor
    controls: tuple[str, ...]
    waiting: tuple[str, ...]
    cast: dtypes.DType | None


def match_read(view: GraphView, gather: Node) -> ValueRead | str | None:
    """The read at a GatherV2's first input, the reason why the rows cannot be
    gathered from the variable itself, or None: they do not come from one."""
    nodes: list[Node] = []
    cast = None
    tensor = gather.inputs[0]
    while True:
        node = view.producer(tensor)
        if node is None or not node.inputs:
            return None
        if node.op == "ReadVariableOp":
            break
        reason = _why_not_through(view, node)
        if reason is not None or node.op not in FORWARDING | {"Cast"}:
            return reason
        if node.op == "Cast":
            if cast is not None or not _halves(node):
                return None
            cast = node.attr("DstT")
        nodes.append(node)
        tensor = node.inputs[0]
    if gather.name in view.feeds:
        return None
    for between in nodes:
        if view.movable((between.name, 0), gather.device) is None:
            return "its table's value is fetched, or held back, on the way to it"
    if node.device != gather.device:
        return "its table is read on another device"
    nodes = [node, *reversed(nodes)]
    waiting = _waiting(view, nodes, gather)
    reason = _why_not_later(view, node, waiting, gather)
    if reason is not None:
        return reason
    return ValueRead(tuple(nodes), node.inputs[0], node.controls, waiting, cast)


def _halves(cast: Node) -> bool:
    return (
        cast.attr("SrcT") == dtypes.float32
        and cast.attr("DstT") in (dtypes.half, dtypes.bfloat16)
        and not cast.attr("Truncate", False)
    )


def _why_not_through(view: GraphView, node: Node) -> str | None:
    """The reason, if a table's value comes through this node."""
    if node.op in _CONTROL_FLOW:
        source = view.producer(view.skip(node.inputs[0], FORWARDING | _CONTROL_FLOW))
        if source is not None and source.op == "ReadVariableOp":
            return "its table's value was read outside of the branch or loop"
        return None
    if node.op in FORWARDING:
        source = view.producer(node.inputs[0])
        if source is not None and source.op in _REF_VARIABLES:
            return "its table is a reference variable, not a resource variable"
        return None
    if node.op in _SUMS:
        for operand in node.inputs:
            source = view.producer(view.skip(operand, FORWARDING | {"Cast"}))
            if source is not None and source.op == "ReadVariableOp":
                return (
                    "it gathers from a sum that a variable is part of, as LoRA "
                    "writes it, not from the variable"
                )
    return None


def _waiting(view: GraphView, nodes: list[Node], gather: Node) -> tuple[str, ...]:
    """What must not run before the gather; in graph order."""
    chain = {node.name for node in nodes} | {gather.name}
    found = {
        waiting
        for node in nodes
        for waiting in view.control_consumers(node.name)
        if waiting.name not in chain
    }
    # Who reads the value otherwise may come before the gather, and lead to a
    # write that no control edge orders.
    others = [
        reader
        for node in nodes
        for reader, _ in view.consumers((node.name, 0))
        if reader.name not in chain
    ]
    if others:
        table = view.table(nodes[0].inputs[0])
        found |= {node for node in view.behind(others) if _may_write(view, node, table)}
    return tuple(node.name for node in sorted(found, key=lambda node: node.index))


def _may_write(view: GraphView, node: Node, table: Table) -> bool:
    return node.op not in _READERS and any(
        _may_be(view, view.table(tensor), table) for tensor in node.inputs
    )


def _may_be(view: GraphView, other: Table, table: Table) -> bool:
    """Whether two resources may be one variable: two arguments may."""
    if other.root == table.root:
        return True
    nodes = [view.nodes.get(each.root[0]) for each in (other, table)]
    if None in nodes or other.dtype is None:
        return False
    if all(node.op == "VarHandleOp" for node in nodes):
        return other.name == table.name
    return other.dtype == table.dtype and other.shape == table.shape


def _why_not_later(
    view: GraphView, read: Node, waiting: tuple[str, ...], gather: Node
) -> str | None:
    guard, frame = view.guard(gather.name), view.frame(gather.name)
    if view.guard(read.name) != guard or view.frame(read.name) != frame:
        return "its table's value was read outside of the branch or loop"
    serves = view.serves(gather.name)
    for name in waiting:
        if not guard <= view.guard(name) or view.frame(name) != frame:
            return "what waits for the read of its table is in another branch or loop"
        if view.serves(name) & ~serves:
            return "what waits for the read of its table also runs without it"
    if waiting and gather.name in view.preserve:
        return "it may be fed, while other nodes wait for the read of its table"
    return None
