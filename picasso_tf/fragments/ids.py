"""Where the ids of a lookup or an update come from.

Models cut one [batch, fields] matrix into columns and reshape and cast each of
them: thousands of tiny ops that a packed op replaces by reading in place.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.graph import (
    FORWARDING,
    GraphView,
    Node,
    Shape,
    Tensor,
    column_slice,
    keeps_order,
)

_INT_TYPES = (dtypes.int32, dtypes.int64)


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
    """

    source: Tensor
    dtype: dtypes.DType
    begin: int
    width: int
    narrow: bool
    natural: bool
    shape: Shape | None


def find_ids(
    view: GraphView, tensor: Tensor, dtype: dtypes.DType, device: str, flat: bool
) -> Ids:
    """The ids behind `tensor`, which has type `dtype`.

    Walks up through what only moves or retypes ids. Ops on another device, with
    control inputs of their own or fed by the user end the walk, and so does,
    unless the ids are wanted `flat`, a shape that cannot be told beforehand.
    """
    shape = view.shape(tensor)
    shape_known = shape is not None and shape.count(None) <= 1
    source, begin, width = tensor, 0, -1
    narrow, natural = False, True
    while True:
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
    return Ids(source, dtype, begin, width, narrow, natural, shape)


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
