"""Variables in parts: tf.nn.embedding_lookup over a PartitionedVariable or a list
of variables.

The ids are told apart by DynamicPartition, each part gathers its own, and
ParallelDynamicStitch puts the rows back in the order of the ids. The gradient
takes the same ways back.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

STITCH_OPS = ("ParallelDynamicStitch", "DynamicStitch")
_SELECT_OPS = ("Select", "SelectV2")


@dataclasses.dataclass(frozen=True)
class Partition:
    """Which part holds an id, and in which row.

    Attributes:
      strategy: "mod" (id % parts, id // parts) or "div" (consecutive ids; the
        first `rows % parts` parts hold one more).
      parts: number of parts.
      rows: of all parts together, for "div"; else 0.
    """

    strategy: str
    parts: int
    rows: int


@dataclasses.dataclass(frozen=True)
class Stitched:
    """Rows of a variable in parts, in the order of `ids`.

    Attributes:
      node: the stitch.
      gathers: the ResourceGather of each part.
      ids: the ids, a vector.
      index_type: their type.
    """

    node: Node
    gathers: tuple[Node, ...]
    partition: Partition
    ids: Tensor
    index_type: dtypes.DType


def match_stitched(view: GraphView, node: Node) -> Stitched | str | None:
    """The lookup at one of STITCH_OPS; a reason why it is left alone; None if it
    does not stitch the rows of variables."""
    count = node.attr("N")
    positions, rows = node.inputs[:count], node.inputs[count:]
    sources = [view.nodes.get(tensor[0]) for tensor in rows]
    if any(source is None or source.op != "ResourceGather" for source in sources):
        return None
    if any(len(view.consumers(tensor)) != 1 for tensor in rows):
        return "the rows of a part are read by others too"
    gathers = [_node(view, tensor, node.device, held=True) for tensor in rows]
    if None in gathers:
        return "its parts are on several devices, fetched or fed"
    if any(view.guard(gather.name) != view.guard(node.name) for gather in gathers):
        return "its parts come from another branch"
    found = None
    for index, (position, gather) in enumerate(zip(positions, gathers, strict=True)):
        part = match_part(view, gather.inputs[1], position, node.device)
        if isinstance(part, str):
            return part
        if part is None or part.index != index or part.partition.parts != count:
            return "its parts are not those that tf.nn.embedding_lookup writes"
        if found is not None and (part.partition, part.ids) != found:
            return "its parts take different ids"
        found = part.partition, part.ids
    index_type = gathers[0].attr("Tindices")
    return Stitched(node, tuple(gathers), *found, index_type)


def _node(
    view: GraphView, tensor: Tensor, device: str, held: bool = False
) -> Node | None:
    """The producer, if it is movable: all of its inputs are looked at here."""
    return view.movable(tensor, device, held=held, bookkeeping=False)


@dataclasses.dataclass(frozen=True)
class IdsOfPart:
    """The ids of part number `index`, out of the vector `ids`."""

    partition: Partition
    index: int
    ids: Tensor


def match_part(
    view: GraphView, rows: Tensor, positions: Tensor, device: str
) -> IdsOfPart | str | None:
    """The part behind the rows to look up in it and the positions of these among
    all ids; None: there is none; a reason why it is left alone."""
    by_row, by_position = (_node(view, x, device) for x in (rows, positions))
    for node in (by_row, by_position):
        if node is None or node.op != "DynamicPartition":
            return None
    if rows[1] != positions[1] or by_row.inputs[1] != by_position.inputs[1]:
        return None
    parts = by_row.attr("num_partitions")
    matched = _match_ids(view, *by_row.inputs, parts, device)
    if matched is None or isinstance(matched, str):
        return matched
    partition, ids = matched
    if not _numbers(view, by_position.inputs[0], ids, device):
        return None
    return IdsOfPart(partition, rows[1], ids)


def _match_ids(
    view: GraphView, rows: Tensor, parts: Tensor, count: int, device: str
) -> tuple[Partition, Tensor] | str | None:
    """(partition, ids) where `rows` and `parts` are computed from ids."""
    row = _node(view, rows, device)
    part = _node(view, parts, device)
    if part is not None and part.op == "Cast":
        if part.attr("DstT") != dtypes.int32:
            return None
        part = _node(view, part.inputs[0], device)
    if row is None or part is None:
        return None
    if part.op == "FloorMod" and row.op == "FloorDiv":
        if part.inputs[0] != row.inputs[0]:
            return None
        sizes = {_int(view, node.inputs[1]) for node in (part, row)}
        return (Partition("mod", count, 0), row.inputs[0]) if sizes == {count} else None
    if part.op == "Maximum" and row.op in _SELECT_OPS:
        return _match_div(view, row, part, count, device)
    return None


def _match_div(view: GraphView, row: Node, part: Node, count: int, device: str):
    """part = max(ids // (size + 1), (ids - extras) // size) and
    row = ids % (size + 1) if part < extras else (ids - extras) % size."""
    nodes = [_node(view, tensor, device) for tensor in (*part.inputs, *row.inputs)]
    if None in nodes:
        return None
    ops = tuple(node.op for node in nodes)
    if ops != ("FloorDiv", "FloorDiv", "Less", "FloorMod", "FloorMod"):
        return None
    div, div_rest, less, mod, mod_rest = nodes
    rests = [_node(view, x.inputs[0], device) for x in (div_rest, mod_rest)]
    if any(node is None or node.op != "Sub" for node in rests):
        return None
    ids = div.inputs[0]
    if any(node.inputs[0] != ids for node in (mod, *rests)):
        return None
    if less.inputs[0] != (part.name, 0):
        return None
    sizes = {_int(view, node.inputs[1]) for node in (div_rest, mod_rest)}
    larger = {_int(view, node.inputs[1]) for node in (div, mod)}
    extras = {_int(view, node.inputs[1]) for node in (less, *rests)}
    if None in sizes | larger | extras:
        return "the number of rows of all parts is not a constant"
    if len(sizes) > 1 or len(extras) > 1 or larger != {next(iter(sizes)) + 1}:
        return None
    size, extra = sizes.pop(), extras.pop()
    if size == 0:
        return "there are fewer rows than parts, by which 'div' divides by zero"
    if size < 0 or not 0 <= extra < count:
        return None
    return Partition("div", count, size * count + extra), ids


_ARITHMETIC = {
    "FloorDiv": lambda a, b: a // b if b else None,
    "FloorMod": lambda a, b: a % b if b else None,
    "AddV2": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
}


def _int(view: GraphView, tensor: Tensor, depth: int = 4) -> int | None:
    """An integer computed from constants; None: something else."""
    node = view.producer(view.skip(tensor, FORWARDING))
    if node is None or depth == 0 or not view.waits_for_nobody(tensor):
        return None
    if node.op == "Const":
        return view.constant_int(tensor)
    if node.op not in _ARITHMETIC:
        return None
    a, b = (_int(view, edge, depth - 1) for edge in node.inputs)
    return None if a is None or b is None else _ARITHMETIC[node.op](a, b)


def _numbers(view: GraphView, tensor: Tensor, ids: Tensor, device: str) -> bool:
    """Whether a tensor is range(size(ids))."""
    node = _node(view, tensor, device)
    if node is None or node.op != "Range":
        return False
    if _int(view, node.inputs[0]) != 0 or _int(view, node.inputs[2]) != 1:
        return False
    if not view.waits_for_nobody(node.inputs[1]):
        return False
    size = view.producer(view.skip(node.inputs[1], FORWARDING | {"Cast"}))
    if size is not None and size.op == "Size":
        return size.inputs[0] == ids
    count = view.constant_int(node.inputs[1])
    return count is not None and view.shape(ids) == (count,)


@dataclasses.dataclass(frozen=True)
class PartGrad:
    """The gradient of one part, before its rows were told apart: `values` hold
    one row per id. `barriers` held back what lies in between."""

    part: IdsOfPart
    values: Tensor
    barriers: tuple[str, ...]


def match_part_grad(
    view: GraphView, values: Tensor, rows: Tensor, device: str
) -> PartGrad | str | None:
    """The gradient of a variable in parts behind that of one part, `values` at
    `rows`; None: there is none; a reason why it is left alone."""
    barriers: list[str] = []
    while True:
        node = _node(view, values, device, held=True)
        if node is None:
            return None
        if node.op == "GatherV2":
            break
        if node.op not in FORWARDING and view.movable(values, device) is None:
            return None
        if node.op not in ("Reshape", *FORWARDING):
            return None
        barriers.extend(node.controls)
        values = node.inputs[0]
    if node.controls or node.attr("batch_dims", 0) != 0:
        return None
    if _int(view, node.inputs[2]) != 0:
        return None
    while True:
        reshape = view.movable(rows, device)
        if reshape is None or reshape.op not in ("Reshape", *FORWARDING):
            break
        rows = reshape.inputs[0]
    part = match_part(view, rows, node.inputs[1], device)
    if part is None or isinstance(part, str):
        return part
    return PartGrad(part, node.inputs[0], tuple(barriers))
