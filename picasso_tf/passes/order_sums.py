"""Keeps the order in which AddN adds: it begins with an input that it can overwrite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor
from picasso_tf.passes.base import Pass, PassResult

# What gives out the memory that it was given.
_ALIASES = FORWARDING | {"Reshape", "Squeeze", "ExpandDims", "PicassoResult"}
# What asks for nothing but a shape.
_OF_SHAPE = frozenset({"Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"})


@dataclasses.dataclass(frozen=True)
class OrderSums(Pass):
    """Lets AddN wait for those who ask for the shapes of the packed rows it adds.

    AddN exchanges its first input for the first one whose memory nobody else holds,
    so with three or more inputs its bits hang on who has read them already. Rows of
    a stock lookup are read for their shape long before the last lookup is done. A
    pack gives all its outputs at once: AddN and a Shape would race.

    Readers that wait for anything else are left alone, so no cycle is closed.
    """

    name: ClassVar[str] = "order_sums"
    triggers: ClassVar[tuple[str, ...]] = (
        "PicassoPackedLookup",
        "PicassoPackedSegmentSum",
        "PicassoPackedPool",
        "PicassoPackedPoolGrad",
    )

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        for node in view.of_types(("AddN",)):
            if len(node.inputs) < 3 or not node.attr("T").is_floating:
                continue
            roots = dict.fromkeys(_memory_of(view, tensor) for tensor in node.inputs)
            for root in roots:
                producer = view.producer(root)
                if producer is None or producer.op not in self.triggers:
                    continue
                for reader in _shape_readers(view, root):
                    if reader.name not in node.controls:
                        edits.wait(node.name, waits_for=reader.name)
        result.apply(edits)
        return result


def _memory_of(view: GraphView, tensor: Tensor) -> Tensor:
    """The tensor whose memory a tensor is, if that shows."""
    while True:
        node = view.producer(tensor)
        if node is None or node.op not in _ALIASES:
            return tensor
        tensor = node.inputs[0]


def _shape_readers(view: GraphView, root: Tensor) -> Iterable[Node]:
    """Those that run as soon as `root` is there, and only ask for its shape."""
    pending = [root]
    for tensor in pending:  # grows while it is walked
        for reader, position in view.consumers(tensor):
            if reader.controls or reader.name in view.feeds:
                continue
            others = (t for i, t in enumerate(reader.inputs) if i != position)
            if not all(_is_at_hand(view, other, root) for other in others):
                continue
            if reader.op in _OF_SHAPE:
                yield reader
            elif reader.op in _ALIASES:
                pending.append((reader.name, 0))


def _is_at_hand(view: GraphView, tensor: Tensor, root: Tensor) -> bool:
    """Whether a tensor is there when `root` is: a constant, or of the same op."""
    node = view.producer(_memory_of(view, tensor))
    return node is not None and (node.op == "Const" or node.name == root[0])
