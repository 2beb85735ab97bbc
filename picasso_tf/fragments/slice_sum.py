"""The gradient of a tensor that is cut into slices: a sum of tensors that are zero but
for one slice each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.addition import order_of_addition
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Tensor

_TYPES = frozenset({dtypes.float32, dtypes.float64, dtypes.half, dtypes.bfloat16})
_LONGEST = 4096
SUMS = ("AddN", "DestroyTemporaryVariable")
WHOLE = -1  # length: all of the axis
FLAT = -1  # axis: of the flat tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """A summand: `tensor` at [begin, begin + length) along an axis, zero elsewhere."""

    tensor: Tensor
    begin: int = 0
    length: int = WHOLE


@dataclasses.dataclass(frozen=True)
class SliceSum:
    """A sum of slices.

    Attributes:
      node: the AddN, or what TensorFlow's memory optimizer made of it.
      shape: tensor that holds the shape of the sum.
      axis: along which all parts are cut.
      parts: in the order in which AddN adds them.
      controls: names of nodes to wait for.
      replaced: names of all nodes whose work it is, `node` among them.
    """

    node: Node
    dtype: dtypes.DType
    shape: Tensor
    axis: int
    parts: tuple[Part, ...]
    controls: tuple[str, ...]
    replaced: tuple[str, ...]


def match_slice_sum(view: GraphView, node: Node) -> SliceSum | str | None:
    """The sum, or the reason why it is left alone; None: it sums no slices.

    Of `node`, an op of SUMS.
    """
    if node.op == "AddN":
        summed: _Summed | None = _Summed(node.inputs, node.controls)
    else:
        summed = _find_accumulated(view, node)
    if summed is None:
        return None
    slices = [
        view.producer(tensor)
        for tensor in summed.operands
        if _is_own(view, node, tensor, summed.made)
    ]
    if len(slices) < 2 or node.name in view.feeds:
        return None
    if node.attr("T") not in _TYPES:
        return "a sum of slices of another type"
    if "GPU" in node.device.upper():
        return "the sum is on a GPU, and packed sums have no GPU kernel yet"
    operands: Sequence[Tensor] | None = summed.operands
    if node.op == "AddN":
        operands = order_of_addition(view, node)
    if operands is None:
        return "chance decides in which order AddN adds these"
    found = [_match_part(view, node, tensor, summed.made) for tensor in operands]
    axes = {axis for axis, _ in found if axis is not None}
    if len(axes) != 1:
        return "it sums slices along several axes, or of unknown size"
    if not _is_short(view, slices[0], *axes):
        return "it sums slices along an axis that is long, or of unknown size"
    controls = {*summed.controls, *(c for grad in slices for c in grad.controls)}
    return SliceSum(
        *(node, node.attr("T"), slices[0].inputs[0], axes.pop()),
        tuple(part for _, part in found),
        tuple(sorted(controls)),
        (*summed.made, node.name),
    )


class _Summed(NamedTuple):
    """What is added, what to wait for, and the nodes that help the sum's own."""

    operands: Sequence[Tensor]
    controls: Sequence[str]
    made: tuple[str, ...] = ()


def _find_accumulated(view: GraphView, node: Node) -> _Summed | None:
    """The sum that TensorFlow's memory optimizer makes of an AddN of large tensors:
    zeros in a TemporaryVariable, to which each summand is added as soon as it is there.

    Chance decides there in which order: any is as good, and we keep to one.
    """
    start = view.producer(node.inputs[0])
    if start is None or start.op != "Assign" or start.controls:
        return None
    variable, zeros = map(view.producer, start.inputs)
    if variable is None or variable.op != "TemporaryVariable":
        return None
    if zeros is None or zeros.op != "Const" or zeros.constant().any():
        return None
    if any(len(view.consumers(tensor)) != 1 for tensor in start.inputs):
        return None
    readers = [reader for reader, _ in view.consumers((start.name, 0))]
    steps = [reader for reader in readers if reader.op == "AssignAdd"]
    if len(steps) + 1 != len(readers) or node not in readers:
        return None
    if any(step.inputs[0] != (start.name, 0) for step in steps):
        return None
    waiting = {step.name for step in steps}
    if not waiting.issubset(node.controls):
        return None
    made = (zeros.name, variable.name, start.name, *(step.name for step in steps))
    for name in made:
        if name in view.preserve or name in view.feeds:
            return None
        if any(reader is not node for reader in view.control_consumers(name)):
            return None
    # For which summand the variable waits is a matter of memory alone.
    controls = {*node.controls, *(c for step in steps for c in step.controls)} - waiting
    steps.sort(key=lambda step: step.index)
    operands = [step.inputs[1] for step in steps]
    return _Summed(operands, tuple(controls), made)


def _is_short(view: GraphView, grad: Node, axis: int) -> bool:
    """The kernel plans anew what goes to each place of the axis."""
    shape = _shape_of(view, grad)
    if shape is None or (None in shape if axis == FLAT else shape[axis] is None):
        return False
    return (math.prod(shape) if axis == FLAT else shape[axis]) <= _LONGEST


def _is_own(view: GraphView, node: Node, tensor: Tensor, made: Sequence[str]) -> bool:
    """Whether it is the gradient of a slice, made for this sum alone: nobody else
    reads it, or waits for it but for the nodes `made`."""
    grad = view.producer(tensor)
    return (
        grad is not None
        and grad.op == "StridedSliceGrad"
        and grad.device == node.device
        and grad.name not in view.preserve
        and len(view.consumers(tensor)) == 1
        and all(reader.name in made for reader in view.control_consumers(grad.name))
    )


def _match_part(
    view: GraphView, node: Node, tensor: Tensor, made: Sequence[str]
) -> tuple[int | None, Part]:
    """(axis, part); the axis is None for a summand that is taken as a whole."""
    whole = (None, Part(tensor))
    if not _is_own(view, node, tensor, made):
        return whole
    grad = view.producer(tensor)
    ranges = _ranges(view, grad)
    if ranges is None or not all(map(view.waits_for_nobody, grad.inputs[1:4])):
        return whole
    cut = [d for d, span in enumerate(ranges) if span is not None]
    slice_grad = grad.inputs[4]
    if not cut:
        return None, Part(slice_grad)
    begin, length = ranges[cut[0]]
    if len(cut) == 1:
        return cut[0], Part(slice_grad, begin, length)
    shape = _shape_of(view, grad)
    if shape is None or None in shape or len(ranges) != len(shape):
        return whole
    if any(span is None or span[1] != 1 for span in ranges):
        return whole
    begin = 0
    for size, (at, _) in zip(shape, ranges, strict=True):
        begin = begin * size + at
    return FLAT, Part(slice_grad, begin, 1)


def _ranges(view: GraphView, grad: Node) -> list[tuple[int, int] | None] | None:
    """Per dimension (begin, length), None for all of it; None: not known. Dimensions
    behind these are there as a whole."""
    begins, ends, strides = map(view.constant_ints, grad.inputs[1:4])
    if begins is None or ends is None or strides is None or set(strides) - {1}:
        return None
    if grad.attr("ellipsis_mask", 0) or grad.attr("new_axis_mask", 0):
        return None
    shape = _shape_of(view, grad)
    ranges = []
    for d, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        bit = 1 << d
        size = shape[d] if shape is not None and d < len(shape) else None
        single = bool(grad.attr("shrink_axis_mask", 0) & bit)
        if not single and grad.attr("begin_mask", 0) & bit:
            begin = 0
        if begin < 0:
            if size is None:
                return None
            begin += size
        if single:
            ranges.append((begin, 1))
            continue
        to_end = bool(grad.attr("end_mask", 0) & bit)
        if to_end and begin == 0:
            ranges.append(None)
            continue
        if size is None:
            return None
        end = size if to_end else min(end + size if end < 0 else end, size)
        if not 0 <= begin <= end:
            return None
        ranges.append(None if (begin, end) == (0, size) else (begin, end - begin))
    return ranges


def _shape_of(view: GraphView, grad: Node) -> Shape | None:
    """What is known of the shape of the tensor that was cut."""
    known = view.constant_ints(grad.inputs[0])
    if known is not None:
        return tuple(known)
    shape = view.producer(grad.inputs[0])
    if shape is None or shape.op not in ("Shape", "ShapeN"):
        return None
    return view.shape(shape.inputs[grad.inputs[0][1]])
