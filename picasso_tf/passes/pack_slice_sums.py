"""K-Packing of the gradients of tensors that models cut up, field by field."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.fragments.slice_sum import SUMS, SliceSum, match_slice_sum
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import Pass, PassResult, add_pack, keeps_guard
from picasso_tf.report import Pack


@dataclasses.dataclass(frozen=True)
class PackSliceSums(Pass):
    """Replaces sums, and the StridedSliceGrads they add: each of these is a tensor of
    the size of all fields, and a loop over pairs of fields makes hundreds.

    It runs behind TensorFlow's own optimizers, which sort what AddN adds.
    """

    name: ClassVar[str] = "pack_slice_sums"
    triggers: ClassVar[tuple[str, ...]] = ("StridedSliceGrad",)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        for node in view.of_types(SUMS):
            if not view.serves(node.name):
                continue
            matched = match_slice_sum(view, node)
            if matched is None:
                continue
            if isinstance(matched, str):
                result.skip(node, matched)
                continue
            inputs = [matched.shape, *(part.tensor for part in matched.parts)]
            if not keeps_guard(view, node, inputs, matched.controls):
                result.skip(node, "its slices come from another branch")
                continue
            result.packs.append(_pack(view, edits, matched))
        result.apply(edits)
        return result


def _pack(view: GraphView, edits: Edits, matched: SliceSum) -> Pack:
    node, parts = matched.node, matched.parts
    name = add_pack(
        edits,
        "picasso_packed_slice_sum",
        "PicassoPackedSliceSum",
        [matched.shape, *(part.tensor for part in parts)],
        device=node.device,
        controls=matched.controls,
        T=matched.dtype,
        Tshape=view.dtype(matched.shape),
        N=len(parts),
        axis=matched.axis,
        begin=[part.begin for part in parts],
        length=[part.length for part in parts],
    )
    edits.replace_tensor((node.name, 0), (name, 0))
    for replaced in matched.replaced:
        edits.remove(replaced, waits_for=name)
    return Pack(
        name, "slice sum", (node.name,), 0, 0, f"{len(parts)} slices of a tensor"
    )
