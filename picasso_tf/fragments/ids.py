"""Where the ids of a lookup or an update come from.

Models cut one [batch, fields] matrix into columns and reshape and cast each of
them: thousands of tiny ops that a packed op replaces by reading in place.
"""

from __future__ import annotations

import dataclasses
import enum

from tensorflow.python.framework import dtypes

from picasso_tf.columns import column_slice, keeps_order
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Shape, Table, Tensor

_INT_TYPES = (dtypes.int32, dtypes.int64)


class Mode(enum.IntEnum):
    """What the graph did with ids outside of the table; see kernels/core."""

    PLAIN = 0
    WRAP = 1  # where(ids < 0, ids + rows, ids), as Keras 3.3 and later write it
    CLIP = 2  # clip_by_value(ids, 0, rows - 1), as Keras 3.0 to 3.2 do


@dataclasses.dataclass(frozen=True)
class Ids:
    """Ids read in place.

    Attributes:
      source: the tensor that holds them.
      dtype: its type, int32 or int64.
      begin, width: columns of a rank-2 source; width -1: the whole source.
      narrow: the graph casts int64 to int32 on the way.
      natural: the ids have the source's own shape.
      shape: the shape of the ids as the graph sees them, where known.
      mode: what happens behind `narrow`.
    """

    source: Tensor
    dtype: dtypes.DType
    begin: int
    width: int
    narrow: bool
    natural: bool
    shape: Shape | None
    mode: Mode = Mode.PLAIN


def find_ids(
    view: GraphView,
    tensor: Tensor,
    dtype: dtypes.DType,
    device: str,
    flat: bool,
    table: Table | None = None,
) -> Ids:
    """The ids behind `tensor`, which has type `dtype`.

    Walks up through what only moves or retypes ids, and through what brings ids
    outside of `table`, if it is given, into it. Ops on another device, with
    control inputs of their own or fed by the user end the walk, and so does,
    unless the ids are wanted `flat`, a shape that cannot be told beforehand.
    """
    shape = view.shape(tensor)
    shape_known = shape is not None and shape.count(None) <= 1
    source, begin, width = tensor, 0, -1
    narrow, natural, mode = False, True, Mode.PLAIN
    while True:
        if mode is Mode.PLAIN and not narrow and table is not None:
            inside = _brought_inside(view, source, table, device)
            if inside is not None:
                source, mode = inside
                continue
        node = view.movable(source, device)
        if node is None:
            break
        if node.op in FORWARDING:
            source = node.inputs[0]
            continue
        if node.op == "Cast":
            from_type, to_type = node.attr("SrcT"), node.attr("DstT")
            if from_type not in _INT_TYPES or to_type not in _INT_TYPES:
                break
            narrow = narrow or (from_type, to_type) == (dtypes.int64, dtypes.int32)
            dtype = from_type
            source = node.inputs[0]
            continue
        if width >= 0 or not (flat or shape_known):
            break
        if keeps_order(view, node):
            source = node.inputs[0]
            natural = False
            continue
        columns = _columns(view, node, source[1])
        if columns is None:
            break
        source, begin, width = columns
        natural = False
    return Ids(source, dtype, begin, width, narrow, natural, shape, mode)


def _brought_inside(
    view: GraphView, tensor: Tensor, table: Table, device: str
) -> tuple[Tensor, Mode] | None:
    """(ids, mode) where `tensor` is ids brought into the table."""
    node = view.producer(tensor)
    if node is None or not _plain(node, device) or node.name in view.preserve:
        return None
    if node.op == "SelectV2":
        return _wrapped(view, node, table, device)
    if node.op in ("Minimum", "Maximum"):
        return _clipped(view, node, table, device)
    return None


def _plain(node: Node | None, device: str) -> bool:
    return node is not None and not node.controls and node.device == device


def _wrapped(view: GraphView, node: Node, table: Table, device: str):
    below, shifted, ids = node.inputs
    less, plus = view.producer(below), view.producer(shifted)
    if not _plain(less, device) or not _plain(plus, device):
        return None
    if less.op != "Less" or less.inputs[0] != ids or not _is(view, less.inputs[1], 0):
        return None
    rows = _other(plus, ids) if plus.op == "AddV2" else None
    if rows is None or not _is_rows(view, rows, table):
        return None
    return ids, Mode.WRAP


def _clipped(view: GraphView, node: Node, table: Table, device: str):
    """maximum(minimum(ids, rows - 1), 0), or the other way round."""
    for inner, bound in (node.inputs, node.inputs[::-1]):
        first = view.producer(inner)
        if not _plain(first, device) or {first.op, node.op} != {"Minimum", "Maximum"}:
            continue
        for ids, inner_bound in (first.inputs, first.inputs[::-1]):
            low, high = (
                (inner_bound, bound) if node.op == "Minimum" else (bound, inner_bound)
            )
            if _is(view, low, 0) and _is_last(view, high, table):
                return ids, Mode.CLIP
    return None


def _is_last(view: GraphView, tensor: Tensor, table: Table) -> bool:
    """Whether a scalar is the number of the table's last row. An empty table has
    none, and clips ids to 0 or -1, which is an error either way."""
    if not table.shape or not table.shape[0]:
        return False
    if _is(view, tensor, table.shape[0] - 1):
        return True
    node = view.producer(view.skip(tensor, FORWARDING | {"Cast"}))
    if node is None or node.op != "Sub":
        return False
    return _is_rows(view, node.inputs[0], table) and _is(view, node.inputs[1], 1)


def _other(node: Node, operand: Tensor) -> Tensor | None:
    """The other operand of a binary op."""
    if operand not in node.inputs:
        return None
    return node.inputs[1 - node.inputs.index(operand)]


def _is(view: GraphView, tensor: Tensor, value: int) -> bool:
    """Whether the tensor is a scalar that is sure to have this value."""
    tensor = view.skip(tensor, FORWARDING | {"Cast"})
    return (
        view.shape(tensor) == ()
        and view.constant_int(tensor) == value
        and view.waits_for_nobody(tensor)
    )


def _is_rows(view: GraphView, tensor: Tensor, table: Table) -> bool:
    """Whether a scalar is the number of the table's rows."""
    rows = table.shape[0] if table.shape else None
    if rows is not None and _is(view, tensor, rows):
        return True
    node = view.producer(view.skip(tensor, FORWARDING | {"Cast"}))
    if node is None or node.op != "StridedSlice" or not view.waits_for_nobody(tensor):
        return False
    begin, strides = (view.constant_ints(node.inputs[i]) for i in (1, 3))
    if begin != [0] or strides != [1] or node.attr("shrink_axis_mask", 0) != 1:
        return False
    sizes = view.constant_ints(node.inputs[0])
    if sizes is not None:
        return rows is not None and sizes[:1] == [rows]
    shape = view.producer(view.skip(node.inputs[0], FORWARDING | {"Cast"}))
    if shape is None or shape.op not in ("Shape", "VariableShape"):
        return False
    handle = shape.inputs[0]
    if shape.op == "Shape":
        read = view.producer(view.skip(handle, FORWARDING | {"Cast"}))
        if read is None or read.op != "ReadVariableOp":
            return False
        handle = read.inputs[0]
    return view.table(handle).root == table.root


def _columns(view: GraphView, node: Node, port: int) -> tuple[Tensor, int, int] | None:
    """(matrix, first column, columns) where the node cuts columns out of one."""
    if node.op == "StridedSlice":
        columns = column_slice(view, node)
        return columns and (node.inputs[0], columns[0], columns[1])
    if node.op == "Slice":
        begin, size = (view.constant_ints(edge) for edge in node.inputs[1:])
        shape = view.shape(node.inputs[0])
        if begin is None or size is None or len(begin) != 2 or begin[0] != 0:
            return None
        if size[0] != -1 and (shape is None or shape[0] != size[0]):
            return None
        return (node.inputs[0], begin[1], size[1]) if size[1] > 0 else None
    if node.op == "Unpack":
        shape = view.shape(node.inputs[0])
        if shape is None or len(shape) != 2 or node.attr("axis", 0) not in (1, -1):
            return None
        if shape[1] != node.attr("num"):
            return None  # an error at run time, perhaps
        return node.inputs[0], port, 1
    if node.op in ("Split", "SplitV"):
        matrix, axis = (
            (node.inputs[1], node.inputs[0])
            if node.op == "Split"
            else (node.inputs[0], node.inputs[2])
        )
        shape = view.shape(matrix)
        if shape is None or len(shape) != 2 or view.constant_int(axis) not in (1, -1):
            return None
        if node.op == "Split":
            parts = node.attr("num_split", 1)
            if shape[1] is None or shape[1] % parts != 0:
                return None
            sizes = [shape[1] // parts] * parts
        else:
            sizes = view.constant_ints(node.inputs[1])
            if sizes is None or sum(sizes) != shape[1] or -1 in sizes:
                return None
        return (matrix, sum(sizes[:port]), sizes[port]) if sizes[port] > 0 else None
    return None
