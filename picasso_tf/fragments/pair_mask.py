"""Masks over pairs of fields: tensors that are computed from shapes and constants
alone, equal for all examples of a batch."""

from __future__ import annotations

import dataclasses

import numpy as np

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

_PAIRWISE = {
    "Sub": np.subtract,
    "Add": np.add,
    "AddV2": np.add,
    "Mul": np.multiply,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}


@dataclasses.dataclass(frozen=True)
class Mask:
    """What each example has: an array of [fields, fields], or a scalar. `batched`:
    the tensor has a dimension of examples in front."""

    value: np.ndarray
    batched: bool


def find_mask(view: GraphView, tensor: Tensor, product: Tensor, fields: int):
    """The `Mask` that a tensor is; None if it depends on anything but the shape of
    `product`, which is [batch, fields, fields]."""
    tensor = view.skip(tensor, FORWARDING)
    node = view.producer(tensor)
    if node is None:
        return None
    op, inputs = node.op, node.inputs
    if op == "Const":
        return _constant(view, tensor, fields)
    if op in ("OnesLike", "ZerosLike"):
        if view.skip(inputs[0], FORWARDING) == product:
            return Mask(np.full([fields] * 2, float(op == "OnesLike")), True)
        of = find_mask(view, inputs[0], product, fields)
        filled = np.ones_like if op == "OnesLike" else np.zeros_like
        return of and Mask(filled(of.value), of.batched)
    if op == "Fill":
        return _filled(view, node, product, fields)
    if op not in _PAIRWISE and op not in ("MatrixBandPart", "Cast", "LogicalNot"):
        return None  # not to walk on through all that a model computes
    found = [find_mask(view, each, product, fields) for each in inputs]
    if any(mask is None for mask in found):
        return None
    if op == "MatrixBandPart":
        matrix, lower, upper = (mask.value for mask in found)
        if matrix.shape != (fields, fields):
            return None
        return Mask(_band(matrix, int(lower), int(upper)), found[0].batched)
    if op == "Cast":
        dtype = node.attr("DstT")
        return Mask(found[0].value.astype(dtype.as_numpy_dtype), found[0].batched)
    if op == "LogicalNot":
        return Mask(np.logical_not(found[0].value), found[0].batched)
    if op in _PAIRWISE:
        value = _PAIRWISE[op](found[0].value, found[1].value)
        return Mask(value, found[0].batched or found[1].batched)
    return None


def _constant(view: GraphView, tensor: Tensor, fields: int) -> Mask | None:
    value = view.constant(tensor)
    if value.dtype.kind not in "bif":
        return None
    if value.ndim == 0 or value.shape == (fields, fields):
        return Mask(value, False)
    if value.ndim != 3 or value.shape[1:] != (fields, fields) or not len(value):
        return None
    # A mask for the one example of a batch of any size is not that of each.
    same = (value == value[:1]).all()
    return Mask(value[0], len(value) > 1) if same else None


def _filled(view: GraphView, node: Node, product: Tensor, fields: int) -> Mask | None:
    value = view.constant(node.inputs[1])
    if value is None or value.ndim or value.dtype.kind not in "bif":
        return None
    matrix = np.full([fields] * 2, value)
    sizes = view.constant_ints(node.inputs[0])
    if sizes is not None:
        if sizes[-2:] != [fields, fields] or len(sizes) > 3:
            return None
        return Mask(matrix, len(sizes) == 3 and sizes[0] != 1)
    shape = view.producer(node.inputs[0])
    if shape is None or shape.op != "Shape":
        return None
    same = view.skip(shape.inputs[0], FORWARDING) == product
    return Mask(matrix, True) if same else None


def _band(matrix: np.ndarray, lower: int, upper: int) -> np.ndarray:
    row, column = np.indices(matrix.shape)
    kept = (lower < 0) | (row - column <= lower)
    kept &= (upper < 0) | (column - row <= upper)
    return np.where(kept, matrix, np.zeros_like(matrix))
