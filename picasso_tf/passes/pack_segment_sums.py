"""D-Packing of the sums that make sparse gradients dense."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from picasso_tf.edits import Edits, ShapeAttr
from picasso_tf.fragments.segment_sum import SegmentSum, match_segment_sum
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import (
    BagAttrs,
    IdsAttrs,
    InputList,
    Pass,
    PassResult,
    add_pack,
    cut,
    group,
    keeps_guard,
)
from picasso_tf.report import Pack


@dataclasses.dataclass(frozen=True)
class PackSegmentSums(Pass):
    """Replaces UnsortedSegmentSums, with Reshapes and AddNs in front of them, or
    with what hands the gradient of bags to their ids.

    It runs behind TensorFlow's own optimizers, since it takes over sums.
    """

    name: ClassVar[str] = "pack_segment_sums"
    triggers: ClassVar[tuple[str, ...]] = ("UnsortedSegmentSum",)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        sums = []
        for node in view.of_types(self.triggers):
            if node.name in view.feeds:
                continue
            matched = match_segment_sum(view, node)
            if matched == "":
                continue
            if isinstance(matched, str):
                result.skip(node, matched)
            elif not keeps_guard(view, node, matched.inputs, matched.controls):
                result.skip(node, "its rows or ids come from another branch")
            else:
                sums.append(matched)
        levels = view.levels(matched.node.name for matched in sums)
        edits = Edits(view)
        groups = group(
            view, levels, sums, lambda matched: matched.node, lambda m: m.dtype
        )
        for _, members in groups:
            for run in cut(members, _volume, self.options.max_pack_volume):
                if len(run) > 1 or run[0].bags is not None:
                    result.packs.append(_pack(edits, run))
                else:
                    result.skip(
                        run[0].node, "no other segment sum of its type and level"
                    )
        result.apply(edits)
        return result


def _volume(matched: SegmentSum) -> int:
    return math.prod(matched.shape) * matched.dtype.size


def _pack(edits: Edits, members: list[SegmentSum]) -> Pack:
    data, ids, bags = InputList(), IdsAttrs(), BagAttrs()
    for member in members:
        ids.append(member.ids)
        if member.bags is None:
            bags.append_none()
        else:
            bags.append(member.bags, member.combiner, member.zero_filled)
    data_index = [data.position(part) for member in members for part in member.parts]
    first = members[0]
    name = add_pack(
        edits,
        "picasso_packed_segment_sum",
        "PicassoPackedSegmentSum",
        [*data, *ids.tensors, *bags.tensors],
        device=first.node.device,
        controls={name for member in members for name in member.controls},
        T=first.dtype,
        D=len(data),
        M=len(members),
        member_shape=[ShapeAttr(member.shape) for member in members],
        member_parts=[len(member.parts) for member in members],
        data_index=data_index,
        **ids.attrs(),
        **bags.attrs(),
    )
    for port, member in enumerate(members):
        edits.replace_tensor((member.node.name, 0), (name, port))
        edits.remove(member.node.name, waits_for=name)
    return Pack(
        name,
        "segment sum",
        tuple(member.node.name for member in members),
        len(members),
        sum(_volume(member) for member in members),
    )
