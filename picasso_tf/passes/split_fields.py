"""Fields that are joined for an interaction alone are read where they are."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Tensor
from picasso_tf.passes.base import Pass, PassResult, keeps_guard

_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank"})
# Inputs in front of the fields.
_FIRST = {"PicassoDotInteraction": 0, "PicassoDotInteractionGrad": 1}


@dataclasses.dataclass(frozen=True)
class SplitFields(Pass):
    """Lets packed interactions read what a ConcatV2 or Pack joins for nobody else.

    It runs once lookups are packed, which may have joined their rows themselves.
    """

    name: ClassVar[str] = "split_fields"
    triggers: ClassVar[tuple[str, ...]] = tuple(_FIRST)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        for node in view.of_types(self.triggers):
            first = _FIRST[node.op]
            parts = _parts(view, node, node.inputs[first:])
            if parts is not None and keeps_guard(
                view, node, [*node.inputs[:first], *parts]
            ):
                inputs = [*node.inputs[:first], *parts]
                edits.set_inputs(node.name, inputs, N=len(parts))
        result.apply(edits)
        return result


def _parts(view: GraphView, node: Node, inputs) -> tuple[Tensor, ...] | None:
    """The tensors that the one input joins; None: it has to stay as it is."""
    joined = view.producer(inputs[0])
    if len(inputs) != 1 or joined is None or joined.controls:
        return None
    if joined.device != node.device or joined.name in view.preserve:
        return None
    for reader, _ in view.consumers((joined.name, 0)):
        if reader.op not in _FIRST and reader.op not in _SHAPE_ONLY:
            return None
    if joined.op == "Pack":
        # All have one shape, so one that is known tells.
        shapes = [shape for shape in map(view.shape, joined.inputs) if shape]
        if not shapes or len(shapes[0]) != 2 or shapes[0][1] != node.attr("dim"):
            return None
        return joined.inputs if joined.attr("axis", 0) in (1, -2) else None
    if joined.op != "ConcatV2":
        return None
    parts = joined.inputs[:-1]
    shapes = [view.shape(part) for part in parts]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    rank = len(shapes[0])
    if view.constant_int(joined.inputs[-1]) not in (1, 1 - rank):
        return None
    for shape in shapes:
        if None in shape[1:] or math.prod(shape[1:]) % node.attr("dim"):
            return None
    return parts
