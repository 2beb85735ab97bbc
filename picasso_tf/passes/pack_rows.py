"""K-Packing of what is computed from looked-up rows before they are pooled or read:
clipping to a norm, and its gradient, of many tables in one op."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.fragments.row_program import RowProgram, RowPrograms
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import (
    InputList,
    Pass,
    PassResult,
    add_pack,
    cut,
    group,
    volume,
)
from picasso_tf.report import Pack


@dataclasses.dataclass(frozen=True)
class PackRows(Pass):
    """Replaces elementwise ops and sums over rows behind packed lookups.

    It runs behind TensorFlow's own optimizers, which regroup such arithmetic: so it
    sees the very operations that TensorFlow would run. Members agree in level,
    device, frame, guard, type and program.
    """

    name: ClassVar[str] = "pack_rows"
    triggers: ClassVar[tuple[str, ...]] = ("Sum",)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        programs = RowPrograms(view)
        while True:
            built: list[RowProgram] = []
            dropped = []
            for key in programs.keys:
                program = programs.build(key)
                if isinstance(program, str):
                    result.skip(programs.members(key)[0], program)
                    dropped.append(key)
                else:
                    built.append(program)
            if not dropped:
                dropped = self._without_equals(view, programs, built, result)
            if not dropped:
                break
            for key in dropped:
                programs.drop(key)
        if not built:
            return result
        edits = Edits(view)
        for members in self._groups(view, programs, built)[0]:
            result.packs.append(_pack(edits, members))
        result.apply(edits)
        return result

    def _without_equals(self, view, programs, built, result: PassResult) -> list:
        groups, cyclic = self._groups(view, programs, built)
        dropped = list(cyclic)
        for program in built:
            if program.key in cyclic:
                result.skip(program.anchor, "others work on it in between")
        for members in groups:
            if len(members) == 1:
                result.skip(
                    members[0].anchor,
                    "no other rows with which the same is done, of its type, device "
                    "and level",
                )
                dropped.append(members[0].key)
        return dropped

    def _groups(self, view, programs, built: list[RowProgram]):
        """(groups that one op runs, programs that are in none)."""
        levels, cyclic = view.group_levels(programs.units())
        ordered = [program for program in built if program.key not in cyclic]
        ordered.sort(key=lambda program: program.anchor.index)
        by_node = {program.anchor.name: levels[program.key] for program in ordered}
        groups = group(
            view,
            by_node,
            ordered,
            lambda program: program.anchor,
            lambda program: (
                program.dtype,
                program.lines,
                tuple(line for _, line in program.results),
            ),
        )
        found = []
        for _, members in groups:
            found.extend(cut(members, _volume, self.options.max_pack_volume))
        return found, cyclic


def _volume(program: RowProgram) -> int:
    return volume(program.shape[:-1], (None, program.shape[-1]), program.dtype.size)


def _pack(edits: Edits, members: list[RowProgram]) -> Pack:
    first = members[0]
    tensors = InputList()
    index = [tensors.position(t) for member in members for t in member.tensors]
    name = add_pack(
        edits,
        "picasso_packed_rows",
        "PicassoPackedRows",
        list(tensors),
        device=first.anchor.device,
        controls={name for member in members for name in member.controls},
        T=first.dtype,
        G=len(tensors),
        K=len(members) * len(first.results),
        members=len(members),
        program=list(first.lines),
        results=[line for _, line in first.results],
        tensor_index=index,
    )
    port = 0
    for member in members:
        for tensor, _ in member.results:
            edits.replace_tensor(tensor, (name, port))
            port += 1
        for node in member.nodes:
            edits.remove(node, waits_for=name)
    return Pack(
        name,
        "row program",
        tuple(member.anchor.name for member in members),
        len(members),
        sum(map(_volume, members)),
        f"{len(first.lines)} steps",
    )
