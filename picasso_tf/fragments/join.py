"""How several tensors become one, and how its gradient is cut up again."""

from __future__ import annotations

import dataclasses

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Shape, Tensor
from picasso_tf.shapes import shape_value


@dataclasses.dataclass(frozen=True)
class Join:
    """A ConcatV2 (tf.concat) or Pack (tf.stack) along a constant axis.

    Attributes:
      inputs: the joined tensors.
      chunk_dims: dimensions of each input at and behind the axis. Counted from
        the end, since the number of leading dimensions is often unknown.
    """

    node: Node
    inputs: tuple[Tensor, ...]
    chunk_dims: int
    stack: bool


def match_join(view: GraphView, node: Node) -> Join | None:
    """The join at a node; None if its axis cannot be told beforehand."""
    if node.op == "Pack":
        axis = node.attr("axis", 0)
        inputs = node.inputs
        rank = _rank(view, inputs)
        if axis < 0:
            chunk_dims = -axis - 1  # the new axis counts among the output's
        elif rank is not None:
            chunk_dims = rank - axis
        else:
            return None
        return Join(node, inputs, chunk_dims, stack=True)
    if node.op == "ConcatV2":
        axis = view.constant_int(node.inputs[-1])
        inputs = node.inputs[:-1]
        if axis is None or not view.waits_for_nobody(node.inputs[-1]):
            return None
        chunk_dims = _dims_behind(view, axis, inputs)
        return None if chunk_dims is None else Join(node, inputs, chunk_dims, False)
    return None


def _rank(view: GraphView, tensors: tuple[Tensor, ...]) -> int | None:
    for tensor in tensors:
        shape = view.shape(tensor)
        if shape is not None:
            return len(shape)
    return None


def _dims_behind(view: GraphView, axis: int, tensors) -> int | None:
    if axis < 0:
        return -axis
    rank = _rank(view, tensors)
    return None if rank is None else rank - axis


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a joined tensor: for each index of the dimensions in front of
    the last `chunk_dims`, the `size` elements at `begin` (negative: counted
    from the end, where what precedes has an unknown size)."""

    source: Tensor
    chunk_dims: int
    begin: int
    size: int


def match_slice(view: GraphView, tensor: Tensor) -> Slice | None:
    """The slice behind a tensor that a gradient of tf.concat or tf.stack cut."""
    node = view.producer(tensor)
    if node is None:
        return None
    if node.op == "SplitV":
        parts = view.once(_parts_of_split, node)
        return parts and _slice(node.inputs[0], parts, tensor[1])
    if node.op == "Slice":
        offset = view.producer(node.inputs[1])
        if offset is None or offset.op != "ConcatOffset":
            return None
        part = node.inputs[1][1]
        if node.inputs[2] != offset.inputs[1 + part]:
            return None
        parts = view.once(_parts_of_offsets, offset)
        return parts and _slice(node.inputs[0], parts, part)
    if node.op == "Unpack":
        shape = view.shape(tensor)
        axis = node.attr("axis", 0)
        if shape is None:
            return None
        chunk_dims = -axis - 1 if axis < 0 else len(shape) - axis
        size = _elements(shape, chunk_dims)
        # The source has the stacked axis at the chunk's front.
        return size and Slice(node.inputs[0], chunk_dims + 1, tensor[1] * size, size)
    return None


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Where each of some joined tensors lies: its `sizes` (None: not known), and the
    sum of those in front of it and behind it."""

    chunk_dims: int
    sizes: list[int | None]
    before: list[int | None]
    behind: list[int | None]


def _parts_of_split(view: GraphView, split: Node) -> _Parts | None:
    shapes = _shapes_behind_sizes(view, split.inputs[1], split.inputs[2])
    if shapes is None or len(shapes) != split.attr("num_split"):
        return None
    return _parts(view, split.inputs[2], shapes)


def _parts_of_offsets(view: GraphView, offset: Node) -> _Parts | None:
    return _parts(view, offset.inputs[0], offset.inputs[1:])


def _parts(view: GraphView, axis: Tensor, shapes) -> _Parts | None:
    """Of what was joined from tensors of these shapes."""
    known = [shape_value(view, shape) for shape in shapes]
    chunk_dims = _axis_from_end(view, axis, known)
    if chunk_dims is None:
        return None
    sizes = [_elements(shape, chunk_dims) for shape in known]
    behind = _sums_before(sizes[::-1])[::-1]
    return _Parts(chunk_dims, sizes, _sums_before(sizes), behind)


def _sums_before(sizes: list[int | None]) -> list[int | None]:
    sums: list[int | None] = [0]
    for size in sizes[:-1]:
        sums.append(None if None in (size, sums[-1]) else sums[-1] + size)
    return sums


def _slice(source: Tensor, parts: _Parts, part: int) -> Slice | None:
    size, before, behind = parts.sizes[part], parts.before[part], parts.behind[part]
    if not size:
        return None
    if before is not None:
        return Slice(source, parts.chunk_dims, before, size)
    if behind is not None:
        return Slice(source, parts.chunk_dims, -behind - size, size)
    return None


def _axis_from_end(view: GraphView, axis: Tensor, shapes) -> int | None:
    """Dimensions at and behind an axis, which gradients write `axis % rank`."""
    node = view.producer(view.skip(axis, FORWARDING))
    value = view.constant_int(axis)
    if node is not None and node.op == "FloorMod":
        value = view.constant_int(node.inputs[0])
    if value is None:
        return None
    if value < 0:
        return -value
    for shape in shapes:
        if shape is not None:
            return len(shape) - value
    return None


def _elements(shape: Shape | None, chunk_dims: int) -> int | None:
    """Elements of the last `chunk_dims` dimensions, if known."""
    if shape is None or len(shape) < chunk_dims:
        return None
    elements = 1
    for size in shape[len(shape) - chunk_dims :]:
        if size is None:
            return None
        elements *= size
    return elements


def _shapes_behind_sizes(
    view: GraphView, sizes: Tensor, axis: Tensor
) -> tuple[Tensor, ...] | None:
    """The shape tensors behind a list of sizes along `axis`, which the gradient
    of tf.concat writes as squeeze(slice(stack(shapes, 1), [axis, 0], [1, -1])).
    """
    squeeze = view.producer(sizes)
    if squeeze is None or squeeze.op != "Squeeze":
        return None
    cut = view.producer(squeeze.inputs[0])
    if cut is None or cut.op != "Slice":
        return None
    begin = view.producer(cut.inputs[1])
    if begin is None or begin.op != "Pack" or begin.inputs[0] != axis:
        return None
    stack = view.producer(cut.inputs[0])
    if stack is None or stack.op != "Pack" or stack.attr("axis", 0) != 1:
        return None
    return stack.inputs
