"""D-Packing of lookups: many gathers, and the concat behind them, become one op.

Which members make a pack is decided by `base.group`; this file decides what the
pack writes. A lookup's rows go straight into the tensors that were concatenated
from them; they also get an output of their own where somebody else reads them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
from tensorflow.python.framework import dtypes

from picasso_tf.columns import keeps_order
from picasso_tf.edits import Edits, ShapeAttr
from picasso_tf.fragments.join import Join, match_join
from picasso_tf.fragments.lookup import (
    LOOKUP_ALONE,
    LOOKUP_OPS,
    POOLED_OPS,
    Lookup,
    match_lookup,
    match_parts,
    match_pooled,
)
from picasso_tf.fragments.partition import STITCH_OPS
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Shape, Tensor
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
class _Result:
    """A tensor that holds a lookup's rows: the gather's output, or the same
    rows behind ops that only forward them or rename their dimensions.

    `shape` is what the packed op has to be told; None: the natural shape.
    """

    lookup: Lookup
    tensor: Tensor
    shape: Shape | None
    renamed: bool  # behind a Reshape or the like, which stays if it is read


@dataclasses.dataclass(frozen=True)
class _Member:
    """One entry of a packed op: a lookup's rows, or a dense tensor."""

    name: str
    lookup: Lookup | None
    dense: Tensor | None
    shape: Shape | None
    renamed: bool = False  # see _Result


@dataclasses.dataclass(frozen=True)
class _Output:
    """One output: members joined. In place of the join `replaces`, or of a run
    (join, first input, end) of a join that stays, or of one lookup."""

    members: list[_Member]
    chunk_dims: int
    stack: bool
    replaces: Node | None = None
    run: tuple[Join, int, int] | None = None


@dataclasses.dataclass(frozen=True)
class PackLookups(Pass):
    """Replaces lookups and the concatenations behind them.

    Members agree in level, device, frame, guard and types. They may differ in
    dim and in the type of their ids: rows are moved, not merged, and fields of
    different dim share one concatenated tensor in most models.

    A lookup that gathers from a variable's value is packed even by itself: the
    value of a table that is also updated by rows is a copy of all of it.
    """

    name: ClassVar[str] = "pack_lookups"
    triggers: ClassVar[tuple[str, ...]] = LOOKUP_OPS + POOLED_OPS

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        lookups, waits = _without_cycles(view, self._find(view, result), result)
        edits = Edits(view)
        lookups, levels = _without_early_waiters(view, lookups, waits, result)
        runs: list[tuple[int, list[Lookup]]] = []
        for level, members in group(
            view, levels, lookups, lambda x: x.node, lambda x: (x.dtype, x.cast)
        ):
            ordered = sorted(members, key=lambda x: _join_order(view, x))
            for run in cut(ordered, _volume, self.options.max_pack_volume):
                if len(run) == 1 and run[0].read is None and run[0].bag is None:
                    result.skip(
                        run[0].gather, "no other lookup of its type, device and level"
                    )
                else:
                    runs.append((level, run))
        all_rows = {
            rows.tensor
            for _, run in runs
            for lookup in run
            for rows in _results(view, lookup)
        }
        joined: dict[str, dict[int, Tensor | None]] = {}
        for level, run in runs:
            packer = _Packer(view, edits, run, level, levels, all_rows, joined)
            result.packs.append(packer.pack())
        _shorten_joins(view, edits, joined)
        _drop_reads(view, edits, runs, result.packs)
        result.apply(edits)
        return result

    def _find(self, view: GraphView, result: PassResult) -> list[Lookup]:
        """Lookups that may be packed; why others may not is added to `result`.
        Where pooling cannot be packed, the lookup of the unique ids still may."""
        lookups = []
        packed: set[str] = set()
        for node in view.of_types(POOLED_OPS):
            matched = match_pooled(view, node)
            if matched is None:
                continue
            if not isinstance(matched, str):
                reason = self._reason_against(view, matched)
                if reason is not None:
                    matched = reason if matched.read else LOOKUP_ALONE + reason
            if isinstance(matched, str):
                result.skip(node, matched)
            else:
                if matched.bag.left:
                    result.skip(node, matched.bag.left)
                lookups.append(matched)
                packed.update(x.name for x in matched.nodes)
        for op_types, match, why in (
            (STITCH_OPS, match_parts, "its parts alone may be packed: "),
            (LOOKUP_OPS, match_lookup, ""),
        ):
            for node in view.of_types(op_types):
                matched = None if node.name in packed else match(view, node)
                if matched is None:
                    continue
                if not isinstance(matched, str):
                    matched = self._reason_against(view, matched) or matched
                if isinstance(matched, str):
                    result.skip(node, why + matched)
                else:
                    lookups.append(matched)
                    packed.update(x.name for x in matched.nodes)
        lookups.sort(key=lambda lookup: lookup.node.index)
        return lookups

    def _reason_against(self, view: GraphView, lookup: Lookup) -> str | None:
        if any(self.options.excludes(table.name) for table in lookup.tables):
            return "excluded by Options.exclude"
        if lookup.bag is None:
            if not lookup.ids.natural and _result_shape(lookup) is None:
                return "the shape of the variable's rows is not known"
        elif view.guard(lookup.gather.name) != view.guard(lookup.node.name):
            return "its rows come from another branch"
        if not keeps_guard(view, lookup.node, lookup.inputs, lookup.controls):
            return "its ids come from another branch"
        return None


def _without_early_waiters(
    view: GraphView,
    lookups: list[Lookup],
    waits: dict[str, list[str]],
    result: PassResult,
) -> tuple[list[Lookup], dict[str, int]]:
    """Lookups, and all nodes' levels.

    Who waits for a part of a lookup's work alone, as weight decay waits for the rows
    and not for what pools them, will wait for all of it. Lookups of which that is
    not possible are reported: they depend on who waits, or do not always run then.
    """
    while True:
        levels = view.levels((lookup.node.name for lookup in lookups), waits)
        early = [
            (waiter.name, lookup.node.name)
            for lookup in lookups
            for node in lookup.nodes[:-1]
            for waiter in view.control_consumers(node.name)
            if levels[waiter.name] < levels[lookup.node.name]
        ]
        if not early:
            return lookups, levels
        later = {name: list(names) for name, names in waits.items()}
        for waiter, name in early:
            later.setdefault(waiter, []).append(name)
        stuck = view.stuck(later)
        kept = {
            name
            for waiter, name in early
            if view.serves(waiter) & ~view.serves(name)
            or (name in stuck and view.comes_before([waiter], name, later))
        }
        if not kept:
            waits = later
            continue
        for lookup in lookups:
            if lookup.node.name in kept:
                result.skip(lookup.gather, "others wait for a part of its work alone")
        lookups = [x for x in lookups if x.node.name not in kept]


def _without_cycles(
    view: GraphView, lookups: list[Lookup], result: PassResult
) -> tuple[list[Lookup], dict[str, list[str]]]:
    """Lookups that may read their tables later than the graph did, and what will
    wait for them then. The others are reported."""
    while True:
        waits: dict[str, list[str]] = {}
        for lookup in lookups:
            for name in lookup.read.waiting if lookup.read else ():
                waits.setdefault(name, []).append(lookup.node.name)
        stuck = view.stuck(waits)
        cyclic = {
            lookup.node.name
            for lookup in lookups
            if lookup.node.name in stuck
            and lookup.read is not None
            and view.comes_before(lookup.read.waiting, lookup.node.name, waits)
        }
        if not cyclic:
            return lookups, waits
        # Alone, if some of them can stay.
        alone = {
            lookup.node.name
            for lookup in lookups
            if lookup.node.name in cyclic
            and view.comes_before(lookup.read.waiting, lookup.node.name, {})
        }
        dropped = alone or {min(cyclic, key=lambda name: view.nodes[name].index)}
        for lookup in lookups:
            if lookup.node.name in dropped:
                result.skip(
                    lookup.gather,
                    "it depends on what waits for the read of its table, perhaps on "
                    "a write: the rows have to be gathered from the older value",
                )
        lookups = [x for x in lookups if x.node.name not in dropped]


def _drop_reads(view: GraphView, edits: Edits, runs, packs: list[Pack]) -> None:
    """Lets the packs stand for the reads whose values nobody reads any more."""
    pack_of = {
        lookup.gather.name: pack.name
        for (_, run), pack in zip(runs, packs, strict=True)
        for lookup in run
    }
    gone = set(pack_of)
    for _, run in runs:
        for lookup in run:
            for node in reversed(lookup.read.nodes if lookup.read else ()):
                readers = {reader.name for reader, _ in view.consumers((node.name, 0))}
                if node.name in view.preserve or not readers <= gone:
                    break
                gone.add(node.name)
                edits.remove(node.name, waits_for=pack_of[lookup.gather.name])


def _volume(lookup: Lookup) -> int:
    return volume(lookup.ids.shape, lookup.table.shape, lookup.dtype.size)


def _result_shape(lookup: Lookup) -> Shape | None:
    """The shape of the gathered rows with at most one unknown, else None."""
    ids, table = lookup.ids.shape, lookup.table.shape
    if ids is None or table is None:
        return None
    shape = ids + table[1:]
    return shape if shape.count(None) <= 1 and None not in table[1:] else None


def _join_order(view: GraphView, lookup: Lookup):
    """Neighbours in a concatenation are neighbours in the pack."""
    for result in _results(view, lookup):
        for reader, position in view.consumers(result.tensor):
            if reader.op in ("ConcatV2", "Pack"):
                return (reader.index, position, lookup.node.index)
    return (lookup.node.index, 0, 0)


def _results(view: GraphView, lookup: Lookup) -> list[_Result]:
    """All tensors that hold the lookup's rows and that a pack may provide."""
    shape = None if lookup.ids.natural else _result_shape(lookup)
    tensors = ((lookup.node.name, 0),)
    interior: frozenset[str] = frozenset()
    if lookup.bag is not None:
        full = lookup.bag.full_shape
        shape = None if full else (None, *lookup.table.shape[1:])
        tensors, interior = lookup.bag.results, lookup.bag.interior
    results = [_Result(lookup, tensor, shape, renamed=False) for tensor in tensors]
    if lookup.node.name in view.preserve:
        return results  # it may be fed: the rest follows from what is fed
    for result in results:  # grows while it is walked
        for reader, position in view.consumers(result.tensor):
            tensor = (reader.name, 0)
            if reader.name in interior:
                continue
            if position != 0 or view.movable(tensor, lookup.node.device) is None:
                continue
            if reader.op in FORWARDING:
                results.append(dataclasses.replace(result, tensor=tensor))
            elif keeps_order(view, reader) and not view.control_consumers(reader.name):
                renamed = view.shape(tensor)
                if renamed is not None and renamed.count(None) <= 1:
                    results.append(_Result(lookup, tensor, renamed, renamed=True))
    return results


class _Packer:
    """Builds one packed lookup.

    Args:
      level, levels: the pack's level and those of all nodes.
      all_rows: tensors that some pack may provide.
      joined: per ConcatV2 that stays, the new tensor by input position (None: an
        earlier position's tensor contains it); filled in here.
    """

    def __init__(self, view, edits, lookups, level, levels, all_rows, joined):
        self._view: GraphView = view
        self._edits: Edits = edits
        self._lookups: list[Lookup] = lookups
        self._level: int = level
        self._levels: dict[str, int] = levels
        self._all_rows: set[Tensor] = all_rows
        self._joined: dict[str, dict[int, Tensor | None]] = joined
        self._results: dict[Tensor, _Result] = {
            result.tensor: result
            for lookup in lookups
            for result in _results(view, lookup)
        }
        self._absorbed: set[tuple[str, int]] = set()  # (reader, input position)
        # Nodes that only lead from one result of a bag to the next.
        self._interior: frozenset[str] = frozenset().union(
            *(lookup.bag.interior for lookup in lookups if lookup.bag is not None)
        )

    def pack(self) -> Pack:
        outputs = [
            output for join in self._joins() for output in self._outputs_of(join)
        ]
        folded = sum(output.replaces is not None for output in outputs)
        own_outputs = self._outputs_of_their_own(outputs)
        outputs.extend(own_outputs)
        shape_edges = self._shape_edges(
            {output.members[0].name for output in own_outputs}
        )
        shapes = list(dict.fromkeys(result for _, _, result in shape_edges))
        name = self._add(outputs, shapes)
        for index, output in enumerate(outputs):
            if output.run is not None:
                join, start, stop = output.run
                places = self._joined.setdefault(join.node.name, {})
                places[start] = (name, index)
                places.update(dict.fromkeys(range(start + 1, stop)))
            elif output.replaces is not None:
                self._edits.replace_tensor((output.replaces.name, 0), (name, index))
                self._edits.remove(output.replaces.name, waits_for=name)
        own = {
            output.members[0].lookup.node.name: index
            for index, output in enumerate(outputs)
            if output.run is None and output.replaces is None
        }
        for result in self._results.values():
            if result.renamed:
                continue
            index = own.get(result.lookup.node.name)
            if index is not None:
                self._replace(result.tensor, (name, index))
            self._edits.remove(result.tensor[0], waits_for=name)
        for lookup in self._lookups:
            for node in lookup.nodes:
                self._edits.remove(node.name, waits_for=name)
            for shape, counted in lookup.bag.row_shapes if lookup.bag else ():
                self._replace_row_shape(lookup, shape, counted)
            for waiting in lookup.read.waiting if lookup.read else ():
                self._edits.wait(waiting, waits_for=name)
        self._replace_shapes(name, len(outputs), shape_edges, shapes)
        return Pack(
            name,
            "lookup",
            tuple(lookup.gather.name for lookup in self._lookups),
            len({table.root for lookup in self._lookups for table in lookup.tables}),
            sum(_volume(lookup) for lookup in self._lookups),
            f"{folded} joins folded" if folded else "",
        )

    def _replace(self, tensor: Tensor, new: Tensor) -> None:
        view = self._view
        # The order in which TensorFlow's optimizers add hangs on names.
        summed = any(
            reader.op == "AddN" and len(reader.inputs) > 2
            for reader, _ in view.consumers(tensor)
        )
        if summed and tensor[0] not in view.preserve:
            self._edits.replace_under_name(tensor, new)
        else:
            self._edits.replace_tensor(tensor, new)

    # -- joins -------------------------------------------------------------

    def _joins(self) -> list[Join]:
        """Joins that read the pack's rows and that it may do, in graph order."""
        first = self._lookups[0]
        nodes = {
            reader.name: reader
            for tensor in self._results
            for reader, _ in self._view.consumers(tensor)
            if reader.op in ("ConcatV2", "Pack")
        }
        joins = []
        for node in sorted(nodes.values(), key=lambda node: node.index):
            if (
                node.controls
                or node.name in self._view.feeds
                or node.device != first.node.device
                or node.attr("T") != first.dtype
                or self._view.guard(node.name) != self._view.guard(first.node.name)
                or self._view.frame(node.name) != self._view.frame(first.node.name)
            ):
                continue
            join = match_join(self._view, node)
            if join is not None:
                joins.append(join)
        return joins

    def _outputs_of(self, join: Join) -> list[_Output]:
        """One output in place of the join; else one per stretch of its inputs."""
        members = [self._entry(join, tensor) for tensor in join.inputs]
        lookups = sum(m is not None and m.lookup is not None for m in members)
        if None not in members and lookups > 1:
            self._absorb(join, 0, len(members))
            return [_Output(members, join.chunk_dims, join.stack, replaces=join.node)]
        outputs = []
        if join.stack:
            return outputs
        start = 0
        for stop in range(len(members) + 1):
            if stop < len(members) and members[stop] and members[stop].lookup:
                continue
            if stop - start > 1:
                self._absorb(join, start, stop)
                run = (join, start, stop)
                outputs.append(
                    _Output(members[start:stop], join.chunk_dims, False, run=run)
                )
            start = stop + 1
        return outputs

    def _absorb(self, join: Join, start: int, stop: int) -> None:
        self._absorbed.update((join.node.name, at) for at in range(start, stop))

    def _entry(self, join: Join, tensor: Tensor) -> _Member | None:
        """The member that provides an input of the join; None: impossible."""
        result = self._results.get(tensor)
        if result is None:
            if tensor in self._all_rows:
                return None  # its own pack writes it, to this join if it can
            # Another tensor is copied into its place if it is known before any
            # lookup of this level: reading it then closes no cycle.
            level = self._levels.get(tensor[0], self._level)
            return (
                _Member(tensor[0], None, tensor, None) if level < self._level else None
            )
        if result.lookup.node.name in self._view.preserve:
            return None
        return self._member(result) if _keeps_rows_whole(result, join) else None

    def _member(self, result: _Result) -> _Member:
        renamed = result.renamed
        name = result.lookup.node.name
        return _Member(name, result.lookup, None, result.shape, renamed)

    # -- outputs of single lookups, and shapes -------------------------------

    def _outputs_of_their_own(self, outputs: list[_Output]) -> list[_Output]:
        """Outputs for lookups whose rows somebody reads outside of joins, or
        nobody reads (their ids are checked all the same)."""
        placed = {
            member.lookup.node.name
            for output in outputs
            for member in output.members
            if member.lookup is not None
        }
        own = []
        for lookup in self._lookups:
            tensors = (
                [(lookup.node.name, 0)] if lookup.bag is None else lookup.bag.results
            )
            tensor = tensors[0]
            if lookup.node.name not in placed or any(map(self._is_read, tensors)):
                own.append(_Output([self._member(self._results[tensor])], 0, False))
        return own

    def _is_read(self, tensor: Tensor) -> bool:
        """Whether rows are still read once joins and shapes are provided."""
        if tensor[0] in self._view.preserve:
            return True
        for reader, position in self._view.consumers(tensor):
            if (reader.name, position) in self._absorbed or _reads_shape(
                self._view, reader
            ):
                continue
            if reader.name in self._interior:
                continue
            inner = (reader.name, 0)
            if inner in self._results and not self._is_read(inner):
                continue
            return True
        return False

    def _shape_edges(self, own: set[str]) -> list[tuple[Node, int, _Result]]:
        """(reader, its output, whose shape) of Shape and ShapeN that read rows.

        Those of lookups with an output of their own go on reading that: from a
        Shape, TensorFlow's optimizers tell which tensors have equal shapes, and
        what they may then simplify. A ShapeN is taken apart, since it would hold
        on to others that are not packed into outputs of their own.
        """
        edges = []
        for result in self._results.values():
            has_own = result.lookup.node.name in own
            for reader, position in self._view.consumers(result.tensor):
                if reader.name in self._interior:
                    continue
                if not _reads_shape(self._view, reader):
                    continue
                if not has_own:
                    edges.append((reader, position, result))
                elif reader.op == "ShapeN":
                    self._add_shape(reader, position)
        return edges

    def _replace_shapes(self, name, first_output, edges, shapes) -> None:
        for reader, position, result in edges:
            port = (reader.name, position)
            index = first_output + shapes.index(result)
            self._edits.replace_tensor(port, (name, index))
        # The other shapes of a ShapeN: one Shape each, so that ShapeN and with
        # it its hold on the packed rows goes.
        for reader in {edge[0].name: edge[0] for edge in edges}.values():
            for position, tensor in enumerate(reader.inputs):
                port = (reader.name, position)
                if self._edits.is_replaced(port) or not self._view.consumers(port):
                    continue
                if tensor not in self._all_rows:  # else its own pack provides it
                    self._add_shape(reader, position)

    def _add_shape(self, reader: Node, position: int) -> None:
        """A Shape for one output of a ShapeN."""
        shape = self._edits.add(
            f"{reader.name}/shape",
            "Shape",
            [reader.inputs[position]],
            device=reader.device,
            T=reader.attr("T"),
            out_type=dtypes.int32,
        )
        self._edits.replace_tensor((reader.name, position), (shape, 0))

    def _replace_row_shape(self, lookup: Lookup, shape: Node, counted: Tensor):
        """[ids, dim] without the rows, for a gradient that stays."""
        add = functools.partial(self._edits.add, device=shape.device)
        dtype = self._view.dtype(counted)
        out_type = shape.attr("out_type", dtypes.int32)
        count = add(f"{shape.name}/ids", "Shape", [counted], T=dtype, out_type=out_type)
        # In a loop, a constant has to wait for something of the loop.
        holds = [count] if self._view.frame(shape.name) else []
        dim, axis = (
            add(
                f"{shape.name}/{name}",
                "Const",
                [],
                controls=holds,
                dtype=dtype,
                value=np.array(value, dtype.as_numpy_dtype),
            )
            for name, value, dtype in (
                ("dim", [lookup.table.shape[1]], out_type),
                ("axis", 0, dtypes.int32),
            )
        )
        joined = add(
            f"{shape.name}/rows",
            "ConcatV2",
            [(count, 0), (dim, 0), (axis, 0)],
            T=out_type,
            N=2,
            Tidx=dtypes.int32,
        )
        self._edits.replace_tensor((shape.name, 0), (joined, 0))

    # -- the op --------------------------------------------------------------

    def _add(self, outputs: list[_Output], shapes: list[_Result]):
        tables, dense, ids, bags = InputList(), InputList(), IdsAttrs(), BagAttrs()
        partitions, part_tables = PartitionAttrs(), []
        member_table, member_shape, member_name, ids_shape = [], [], [], []
        members = [member for output in outputs for member in output.members]
        entry_of: dict[tuple[str, Shape | None], int] = {}
        some_entry_of: dict[str, int] = {}
        for position, member in enumerate(members):
            entry_of.setdefault((member.name, member.shape), position)
            some_entry_of.setdefault(member.name, position)
            lookup = member.lookup
            shape = None
            if lookup is None:
                member_table.append(-1 - dense.position(member.dense))
                partitions.append(None)
                ids.append_none()
                bags.append_none()
            else:
                positions = [tables.position(handle) for handle in lookup.handles]
                member_table.append(positions[0])
                partitions.append(lookup.stitched and lookup.stitched.partition)
                part_tables.extend(positions if lookup.stitched else ())
                ids.append(lookup.ids)
                if lookup.bag is None:
                    shape = None if lookup.ids.natural else lookup.ids.shape
                    bags.append_none()
                else:
                    bag = lookup.bag
                    flags = (bag.zero_filled, bag.full_shape)
                    weights = None if member.renamed else bag.bags.weights
                    ones = weights and weights.ones
                    bags.append(bag.bags, bag.combiner, *flags, ones)
            ids_shape.append(ShapeAttr(shape))
            member_shape.append(ShapeAttr(member.shape))
            member_name.append(member.name)
        # The rows may be written in another shape than the one that is asked for.
        wanted = [(r.lookup.node.name, r.shape) for r in shapes]
        shape_members = [entry_of.get(key, some_entry_of[key[0]]) for key in wanted]
        others = any(key not in entry_of for key in wanted)
        shape_as = [ShapeAttr(r.shape) for r in shapes] if others else None
        first = self._lookups[0].node
        return add_pack(
            self._edits,
            "picasso_packed_lookup",
            "PicassoPackedLookup",
            [*tables, *ids.tensors, *bags.tensors, *dense],
            device=first.device,
            controls={name for lookup in self._lookups for name in lookup.controls},
            dtype=self._lookups[0].dtype,
            N=len(tables),
            D=len(dense),
            K=len(outputs),
            S=len(shapes),
            shape_type=dtypes.int32,
            member_table=member_table,
            member_shape=member_shape,
            member_name=member_name,
            ids_shape=ids_shape,
            output_members=[len(output.members) for output in outputs],
            output_chunk_dims=[output.chunk_dims for output in outputs],
            output_stack=[output.stack for output in outputs],
            shape_members=shape_members,
            **({} if shape_as is None else {"shape_as": shape_as}),
            **({"cast_rows": True} if self._lookups[0].cast else {}),
            **ids.attrs(),
            **bags.attrs(),
            **partitions.attrs(tables=part_tables),
        )


def _keeps_rows_whole(result: _Result, join: Join) -> bool:
    """Whether each chunk that the join takes of a result is made of rows."""
    table = result.lookup.table.shape
    if table is None or None in table[1:] or 0 in table[1:]:
        return False
    if result.shape is None:
        return join.chunk_dims >= len(table) - 1
    if join.chunk_dims > len(result.shape):
        return False
    chunk = result.shape[len(result.shape) - join.chunk_dims :]
    if None in chunk:
        return len(chunk) == len(result.shape)
    return math.prod(chunk) % math.prod(table[1:]) == 0


def _reads_shape(view: GraphView, reader: Node) -> bool:
    return (
        reader.op in ("Shape", "ShapeN")
        and not reader.controls
        and not view.control_consumers(reader.name)
        and reader.name not in view.preserve
        and reader.name not in view.feeds
        and reader.attr("out_type", dtypes.int32) == dtypes.int32
    )


def _shorten_joins(view: GraphView, edits: Edits, joined) -> None:
    """Concats of which packs provide stretches read these instead."""
    for name, places in joined.items():
        node = view.nodes[name]
        inputs = [
            places.get(position, tensor)
            for position, tensor in enumerate(node.inputs[:-1])
        ]
        kept = [tensor for tensor in inputs if tensor is not None]
        edits.set_inputs(name, [*kept, node.inputs[-1]], N=len(kept))
