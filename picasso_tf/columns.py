"""Columns of matrices: tensors that are one, and slices that cut them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picasso_tf.node import FORWARDING, Node, Tensor

if TYPE_CHECKING:
    from picasso_tf.graph import GraphView


def keeps_order(view: GraphView, node: Node) -> bool:
    """Whether a node renames dimensions and is sure to succeed in that."""
    if node.op != "Squeeze":
        return node.op in ("Reshape", "ExpandDims")
    shape = view.shape(node.inputs[0])
    axes = node.attr("squeeze_dims") or []
    return shape is not None and all(
        -len(shape) <= axis < len(shape) and shape[axis] == 1 for axis in axes
    )


def column_of(view: GraphView, reshape: Node) -> Tensor | None:
    """The vector of which a Reshape makes a column, [n, 1]."""
    if reshape.op != "Reshape":
        return None
    shape = view.constant_ints(reshape.inputs[1])
    if shape is not None:
        return reshape.inputs[0] if len(shape) == 2 and shape[1] == 1 else None
    concat = view.producer(reshape.inputs[1])
    if concat is None or concat.op != "ConcatV2" or len(concat.inputs) != 3:
        return None
    length = view.producer(concat.inputs[0])
    if length is None or length.op != "Shape":
        return None
    same_shape = FORWARDING | {"Cast"}
    vector = view.skip(reshape.inputs[0], same_shape)
    if view.skip(length.inputs[0], same_shape) != vector:
        return None
    return reshape.inputs[0] if _is_a_one(view, concat.inputs[1]) else None


def ones_of(view: GraphView, reshape: Node) -> Tensor | None:
    """What makes the result of such a Reshape a column, unless it is constant."""
    concat = view.producer(reshape.inputs[1])
    if concat is None or concat.op != "ConcatV2":
        return None
    return None if view.constant(concat.inputs[1]) is not None else concat.inputs[1]


def is_column(view: GraphView, tensor: Tensor) -> bool:
    """Whether a tensor is such a column, or sums or powers of its elements."""
    node = view.producer(view.skip(tensor, FORWARDING))
    steps = ("Sqrt", "SegmentSum", "Pow", "Square", "Cast")
    while node is not None and node.op in steps:
        node = view.producer(view.skip(node.inputs[0], FORWARDING))
    return node is not None and column_of(view, node) is not None


def _is_a_one(view: GraphView, tensor: Tensor) -> bool:
    """Whether a tensor is [1], be it by way of ones([rank of a matrix - 1])."""
    known = view.constant_ints(tensor)
    if known is not None:
        return known == [1]
    fill = view.producer(tensor)
    if fill is None or fill.op != "Fill" or view.constant_int(fill.inputs[1]) != 1:
        return False
    known = view.constant_ints(fill.inputs[0])
    if known is not None:
        return known == [1]
    length = view.producer(fill.inputs[0])
    if length is None or length.op != "ExpandDims":
        return False
    known = view.constant_int(length.inputs[0])
    if known is not None:
        return known == 1
    sub = view.producer(length.inputs[0])
    if sub is None or sub.op != "Sub":
        return False
    rank, one = (view.constant_int(edge) for edge in sub.inputs)
    return rank == 2 and one == 1


def column_slice(view: GraphView, node: Node) -> tuple[int, int, bool] | None:
    """(first column, columns, whether the axis is dropped) of x[:, a:b].

    For a StridedSlice of a tensor whose static rank is 2; None for all others.
    """
    shape = view.shape(node.inputs[0])
    if shape is None or len(shape) != 2:
        return None
    begin, end, strides = (view.constant_ints(edge) for edge in node.inputs[1:4])
    if begin is None or end is None or strides is None or len(begin) != 2:
        return None
    rows_whole = (
        node.attr("begin_mask", 0) & 1 and node.attr("end_mask", 0) & 1
    ) or node.attr("ellipsis_mask", 0) == 1
    if (
        not rows_whole
        or strides != [1, 1]
        or node.attr("new_axis_mask", 0)
        or node.attr("ellipsis_mask", 0) not in (0, 1)
        or node.attr("shrink_axis_mask", 0) not in (0, 2)
    ):
        return None
    squeezed = node.attr("shrink_axis_mask", 0) == 2
    columns = shape[1]
    first = 0 if node.attr("begin_mask", 0) & 2 else begin[1]
    if first < 0:
        if columns is None:
            return None
        first += columns
    if squeezed:
        return (first, 1, True) if first >= 0 else None
    last = columns if node.attr("end_mask", 0) & 2 else end[1]
    if last is None:
        return None
    if last < 0:
        if columns is None:
            return None
        last += columns
    if columns is None:
        return None  # fewer columns would not be an error, but a shorter slice
    last = min(last, columns)
    return (first, last - first, False) if 0 <= first < last else None
