"""Sums of gradient rows by id, by which TensorFlow makes gradients dense."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.addition import order_of_addition
from picasso_tf.fragments.apply_ops import APPLY_OPS
from picasso_tf.fragments.bag import BagIds, match_bag_grad
from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.sparse_update import find_grad
from picasso_tf.fragments.weighted_bag import match_weighted_bag_grad
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Tensor

_TYPES = frozenset({dtypes.float32, dtypes.float64, dtypes.half, dtypes.bfloat16})
_ID_TYPES = frozenset({dtypes.int32, dtypes.int64})


@dataclasses.dataclass(frozen=True)
class SegmentSum:
    """One UnsortedSegmentSum and what is in front of it.

    Attributes:
      node: the op.
      dtype: of the rows.
      shape: of the result.
      parts: tensors whose sum, from the left, holds the rows; read flat.
      ids: one id per row, or those of bags.
      controls: names of nodes that it waits for.
      bags: where the rows are the gradients of bags, which ids these hold; their
        combiner; whether the gradient of bags that were filled is zero.
    """

    node: Node
    dtype: dtypes.DType
    shape: Shape
    parts: tuple[Tensor, ...]
    ids: Ids
    controls: tuple[str, ...]
    bags: BagIds | None = None
    combiner: str = ""
    zero_filled: bool = False

    @property
    def inputs(self) -> Iterable[Tensor]:
        """What a pack reads."""
        yield from self.parts
        yield self.ids.source
        if self.bags is not None:
            yield from self.bags.tensors()


def match_segment_sum(view: GraphView, node: Node) -> SegmentSum | str:
    """The sum, or the reason why it is left alone; "": it makes nothing dense, as
    the sums that optimizers put in front of sparse updates."""
    dtype, ids_dtype = node.attr("T"), node.attr("Tindices")
    if dtype not in _TYPES or ids_dtype not in _ID_TYPES:
        return "a segment sum of another type"
    if "GPU" in node.device.upper():
        return "the sum is on a GPU, and packed sums have no GPU kernel yet"
    rows = view.constant_int(node.inputs[2])
    if rows is None:
        return ""
    shape = _shape(view, node, rows)
    if shape is None:
        return "a segment sum of unknown shape"
    of_bags = _match_bags(view, node, dtype, shape)
    if of_bags is not None:
        return of_bags
    controls = list(node.controls)
    data = _before_reshapes(view, node, node.inputs[0], controls)
    ids = find_ids(view, node.inputs[1], ids_dtype, node.device, flat=True)
    parts: tuple[Tensor, ...] = (data,)
    added = view.producer(data)
    if (
        added is not None
        and added.op == "AddN"
        and not added.controls
        and _alone(view, node, added)
    ):
        parts = order_of_addition(view, added) or parts
    return SegmentSum(node, dtype, shape, parts, ids, tuple(controls))


def _match_bags(
    view: GraphView, node: Node, dtype: dtypes.DType, shape: Shape
) -> SegmentSum | None:
    """The sum of the gradient that the pooling of a lookup hands to its ids."""
    device, ids_dtype = node.device, node.attr("Tindices")
    held = functools.partial(match_bag_grad, held=True)
    for match in (held, match_weighted_bag_grad):
        bag = match(view, *node.inputs[:2], ids_dtype, device)
        found = bag and find_grad(view, bag.grad, device, bag, whole=True)
        if found:
            grad, waits, zeroed = found
            controls = tuple(sorted({*node.controls, *waits}))
            return SegmentSum(
                *(node, dtype, shape, (grad,), bag.bags.ids, controls),
                *(bag.bags, bag.combiner, zeroed),
            )
    return None


def _alone(view: GraphView, reader: Node, node: Node) -> bool:
    """Whether one tensor of a node is read once, and nothing else is made of it."""
    return (
        node.device == reader.device
        and node.name not in view.preserve
        and len(view.consumers((node.name, 0))) == 1
        and not view.control_consumers(node.name)
    )


def _before_reshapes(
    view: GraphView, reader: Node, tensor: Tensor, controls: list[str]
) -> Tensor:
    """The tensor before Reshapes. What these wait for goes to `controls`, if they
    are there for the reader alone; else such a Reshape stays."""
    while True:
        node = view.producer(tensor)
        if node is None or node.op != "Reshape":
            return tensor
        if view.movable(tensor, reader.device) is None:
            if not _alone(view, reader, node):
                return tensor
            controls.extend(node.controls)
        tensor = node.inputs[0]


def _shape(view: GraphView, node: Node, rows: int) -> Shape | None:
    """The shape of the result, where it is known."""
    data, ids = _data_shape(view, node.inputs[0]), _data_shape(view, node.inputs[1])
    added = view.producer(node.inputs[0])
    if added is not None and added.op == "AddN":
        # All its inputs have one shape.
        shapes = (_data_shape(view, tensor) for tensor in added.inputs)
        data = next((s for s in shapes if s is not None), None)
    if data is not None and ids is not None and None not in data[len(ids) :]:
        return (rows, *data[len(ids) :])
    for reader, _ in view.consumers((node.name, 0)):
        shape = None
        if reader.op == "AddN":
            known = [view.shape(tensor) for tensor in reader.inputs]
            shape = next((s for s in known if s is not None and None not in s), None)
        elif reader.op in APPLY_OPS:
            shape = view.table(reader.inputs[0]).shape
        if shape is not None and None not in shape and shape[:1] == (rows,):
            return shape
    return None


def _data_shape(view: GraphView, tensor: Tensor) -> Shape | None:
    """The shape of rows or ids, also where a loop's history hides what the gradient
    of a lookup reshapes them to: [ids] and [ids, dim]. A vector that an ExpandDims
    makes has one element, and shapes are vectors."""
    shape = view.shape(tensor)
    node = view.producer(tensor)
    if shape is not None or node is None or node.op != "Reshape":
        return shape
    target = view.producer(node.inputs[1])
    if target is None:
        return None
    if target.op == "ExpandDims":
        return (None,)
    if target.op != "ConcatV2" or len(target.inputs) != 3:
        return None
    count, dims = view.producer(target.inputs[0]), view.constant_ints(target.inputs[1])
    if count is None or count.op != "ExpandDims" or dims is None or min(dims) < 0:
        return None
    return (None, *dims)
