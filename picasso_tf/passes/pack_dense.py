"""D-Packing of dense updates: what an optimizer does to many variables, in one op."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.fragments.dense_update import (
    UPDATE_OPS,
    DenseUpdate,
    LeftAlone,
    match_updates,
)
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import (
    InputList,
    Pass,
    PassResult,
    add_pack,
    cut,
    group,
)
from picasso_tf.report import Pack


@dataclasses.dataclass(frozen=True)
class PackDense(Pass):
    """Replaces chains of elementwise ops that end in updates of variables.

    It runs behind TensorFlow's own optimizers, which regroup such arithmetic: so it
    sees the very operations that TensorFlow would run. Members agree in level,
    device, frame, guard, type and program. Each keeps its own hyperparameters.
    """

    name: ClassVar[str] = "pack_dense"
    triggers: ClassVar[tuple[str, ...]] = UPDATE_OPS

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        updates: list[DenseUpdate] = []
        for found in match_updates(view):
            if isinstance(found, LeftAlone):
                result.skip(found.node, found.reason)
            elif self.options.excludes(found.table.name):
                result.skip(found.anchor, "excluded by Options.exclude")
            else:
                updates.append(found)
        if len(updates) < 2:
            return result
        chain_of = {
            name: update.anchor.name for update in updates for name in update.nodes
        }
        levels, cyclic = view.group_levels(chain_of)
        ordered = []
        for update in updates:
            if update.anchor.name in cyclic:
                result.skip(update.anchor, "others work on it in between")
            else:
                ordered.append(update)
        edits = Edits(view)
        groups = group(
            view,
            levels,
            ordered,
            lambda update: update.anchor,
            lambda update: (update.dtype, update.program),
        )
        for _, members in groups:
            for run in cut(members, _volume, self.options.max_pack_volume):
                if len(run) == 1:
                    result.skip(
                        run[0].anchor,
                        "no other dense update of its form, type, device and level",
                    )
                else:
                    result.packs.append(_pack(edits, run))
        result.apply(edits)
        return result


def _volume(update: DenseUpdate) -> int:
    """Bytes of the variables."""
    return update.elements * update.dtype.size * len(update.variables)


def _pack(edits: Edits, members: list[DenseUpdate]) -> Pack:
    first = members[0]
    lists = {}
    index = {}
    for kind in ("variables", "counts", "tensors", "integers"):
        inputs = lists[kind] = InputList()
        index[kind] = [
            inputs.position(tensor)
            for member in members
            for tensor in getattr(member, kind)
        ]
    # Constants that waited for a part of the chain, without that.
    replaced = {name for member in members for name in member.nodes}
    tensors = [
        (edits.add_constant(tensor[0], first.variables[0]), 0)
        if tensor[0] in replaced
        else tensor
        for tensor in lists["tensors"]
    ]
    name = add_pack(
        edits,
        "picasso_packed_apply",
        "PicassoPackedApply",
        [*lists["variables"], *lists["counts"], *tensors, *lists["integers"]],
        device=first.anchor.device,
        controls={name for member in members for name in member.controls},
        T=first.dtype,
        N=len(lists["variables"]),
        C=len(lists["counts"]),
        G=len(lists["tensors"]),
        I=len(lists["integers"]),
        members=len(members),
        program=list(first.program),
        var_index=index["variables"],
        count_index=index["counts"],
        tensor_index=index["tensors"],
        integer_index=index["integers"],
        member_name=[member.table.name for member in members],
    )
    for member in members:
        for node in member.nodes:
            edits.remove(node, waits_for=name)
    return Pack(
        name,
        "dense update",
        tuple(member.anchor.name for member in members),
        len({member.table.root for member in members}),
        sum(_volume(member) for member in members),
        f"{len(first.program)} steps",
    )
