"""D-Packing of updates: many sparse updates of one rule become one op."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.fragments.join import Slice
from picasso_tf.fragments.sparse_update import (
    ROW_PER_ID,
    UPDATE_OPS,
    SparseUpdate,
    match_update,
)
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import (
    BagAttrs,
    IdsAttrs,
    InputList,
    PartitionAttrs,
    Pass,
    PassResult,
    add_pack,
    cut,
    group,
    keeps_guard,
    volume,
)
from picasso_tf.report import Pack


@dataclasses.dataclass(frozen=True)
class PackUpdates(Pass):
    """Replaces sparse updates, with the sums of duplicate ids in front of them.

    Members agree in level, device, frame, guard, type, rule and flags. Each
    keeps its own hyperparameters. What was in front of an update goes if nobody
    else reads it. Updates that add rows which an optimizer's arithmetic computes are
    left to PackLateUpdates.
    """

    name: ClassVar[str] = "pack_updates"
    triggers: ClassVar[tuple[str, ...]] = UPDATE_OPS
    behind_optimizers: ClassVar[bool] = False

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        updates = []
        for node in view.of_types(UPDATE_OPS):
            matched = match_update(view, node)
            if isinstance(matched, str):
                result.skip(node, matched)
            elif matched.computed and not self.behind_optimizers:
                # PackLateUpdates sees to the rest.
                if not matched.checked and not node.attr(ROW_PER_ID):
                    edits.set_inputs(node.name, node.inputs, **{ROW_PER_ID: True})
            elif self.options.excludes(matched.table.name):
                result.skip(node, "excluded by Options.exclude")
            elif not keeps_guard(view, node, _inputs(matched)):
                reason = "its ids or gradient come from another branch"
                result.skip(node, reason)
            else:
                updates.append(matched)
        levels = view.levels(update.node.name for update in updates)
        groups = group(view, levels, updates, lambda update: update.node, _key)
        for _, members in groups:
            for run in cut(members, _volume, self.options.max_pack_volume):
                if len(run) == 1 and not _has_more_ops(run[0]):
                    reason = "no other update of its rule, type, device and level"
                    result.skip(run[0].node, reason)
                else:
                    result.packs.append(_pack(edits, run))
        result.apply(edits)
        return result


def _key(update: SparseUpdate):
    return (
        update.dtype,
        update.rule.name,
        update.flags,
        update.sum_duplicates,
        update.step,
    )


@dataclasses.dataclass(frozen=True)
class PackLateUpdates(PackUpdates):
    """Replaces the updates that add rows which others compute, behind TensorFlow's
    own optimizers: what these make of that arithmetic hangs on the stock ops."""

    name: ClassVar[str] = "pack_late_updates"
    behind_optimizers: ClassVar[bool] = True


def _has_more_ops(update: SparseUpdate) -> bool:
    """Whether an update has more than one op, so that it is worth to be packed
    by itself: sums of duplicates, or pooled gradients."""
    return update.sum_duplicates or any(part.bags for part in update.parts)


def _inputs(update: SparseUpdate):
    """The tensors that a pack reads for this member."""
    node, rule = update.node, update.rule
    yield from node.inputs[: 1 + rule.slots]
    yield from update.hyper
    if update.step is not None:
        yield update.step
    if update.scale is not None:
        yield update.scale
    for part in update.parts:
        yield part.ids.source
        yield part.grad.source if isinstance(part.grad, Slice) else part.grad
        if part.bags is not None:
            yield from part.bags.tensors()


def _volume(update: SparseUpdate) -> int:
    return sum(
        volume(part.ids.shape, update.table.shape, update.dtype.size)
        // (part.of.partition.parts if part.of else 1)
        for part in update.parts
    )


def _pack(edits: Edits, members: list[SparseUpdate]) -> Pack:
    first = members[0]
    rule = first.rule
    hyper, grads, ids, bags = InputList(), InputList(), IdsAttrs(), BagAttrs()
    partitions = PartitionAttrs()
    hyper_index, scale_index, slices, index_of_part, checked = [], [], [], [], []
    for member in members:
        hyper_index.extend(hyper.position(tensor) for tensor in member.hyper)
        scale_index.append(-1 if member.scale is None else hyper.position(member.scale))
        for part in member.parts:
            ids.append(part.ids)
            if part.bags is None:
                bags.append_none()
            else:
                bags.append(part.bags, part.combiner, part.zero_filled)
            partitions.append(part.of and part.of.partition)
            index_of_part.append(part.of.index if part.of else -1)
            checked.append(part.checked)
            whole = not isinstance(part.grad, Slice)
            cut_ = Slice(part.grad, -1, 0, 0) if whole else part.grad
            slices.append((grads.position(cut_.source), *dataclasses.astuple(cut_)[1:]))
    slots = [
        tensor
        for member in members
        for tensor in member.node.inputs[1 : 1 + rule.slots]
    ]
    steps = [] if first.step is None else [first.step]
    grad_source, grad_chunk_dims, grad_begin, grad_size = map(
        list, zip(*slices, strict=True)
    )
    name = add_pack(
        edits,
        "picasso_packed_update",
        "PicassoPackedUpdate",
        [
            *(member.node.inputs[0] for member in members),
            *slots,
            *hyper,
            *steps,
            *grads,
            *ids.tensors,
            *bags.tensors,
        ],
        device=first.node.device,
        controls={
            name
            for member in members
            for waits in (member.node.controls, *(part.waits for part in member.parts))
            for name in waits
        },
        T=first.dtype,
        N=len(members),
        S=len(slots),
        H=len(hyper),
        Z=len(steps),
        G=len(grads),
        rule=rule.name,
        sum_duplicates=first.sum_duplicates,
        hyper_index=hyper_index,
        scale_index=scale_index,
        negate=[member.negate for member in members],
        member_name=[member.table.name for member in members],
        member_parts=[len(member.parts) for member in members],
        grad_source=grad_source,
        grad_chunk_dims=grad_chunk_dims,
        grad_begin=grad_begin,
        grad_size=grad_size,
        **({"grad_checked": checked} if any(checked) else {}),
        **dict(first.flags),
        **ids.attrs(),
        **bags.attrs(),
        **partitions.attrs(index=index_of_part),
    )
    for member in members:
        edits.remove(member.node.name, waits_for=name)
    return Pack(
        name,
        "update",
        tuple(member.node.name for member in members),
        len({member.table.root for member in members}),
        sum(_volume(member) for member in members),
        rule.name,
    )
