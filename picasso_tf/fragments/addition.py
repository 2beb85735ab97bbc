"""In which order AddN adds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

# Give out memory that nobody else holds: new, or that of an input that is theirs.
_FRESH = frozenset(
    {
        *("Add", "AddN", "AddV2", "Sub", "Mul", "RealDiv", "DivNoNan", "Neg"),
        *("Abs", "Square", "Sqrt", "Rsqrt", "Exp", "Log", "Maximum", "Minimum", "Pow"),
        *("Select", "SelectV2", "Sum", "Mean", "Tile", "BiasAddGrad", "Sigmoid"),
        *("StridedSliceGrad", "PicassoPackedSliceSum"),
        *("ReluGrad", "SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad"),
        *("MatMul", "BatchMatMulV2", "_FusedMatMul", "_MklMatMul"),
        *("_MklNativeFusedMatMul", "_MklBatchMatMulV2"),
        *("UnsortedSegmentSum", "SparseSegmentSumGrad", "SparseSegmentMeanGrad"),
        *("SparseSegmentSqrtNGrad", "PicassoPackedSegmentSum", "PicassoPackedRows"),
    }
)
# Give out the memory that they were given.
_ALIASES = FORWARDING | {"Reshape", "Squeeze", "ExpandDims", "PicassoResult"}


def order_of_addition(view: GraphView, node: Node) -> tuple[Tensor, ...] | None:
    """The operands of an AddN in the order in which TensorFlow's CPU kernel adds
    them; None: chance decides.

    The kernel writes over the first operand whose memory nobody else holds, and lets
    it change places with the first one. Who else reads a tensor may or may not be
    done by then.
    """
    operands = list(node.inputs)
    if len(operands) < 3:
        return tuple(operands)
    for index, tensor in enumerate(operands):
        if operands.count(tensor) > 1 or view.constant(tensor) is not None:
            continue  # held twice, or by the op that gives it
        if not _is_for_the_reader_alone(view, tensor):
            return None
        operands[0], operands[index] = operands[index], operands[0]
        break
    return tuple(operands)


def add_in_order(operands: Sequence[str], add: Callable[[str, str], str]) -> str:
    """The sum of operands as the kernel computes it: n mod 8 of them (8 for 0, 9 for
    1) from the left, then the sum of eight more at a time."""
    rest = len(operands) % 8
    first = rest + 8 if rest < 2 else rest
    result = functools.reduce(add, operands[:first])
    for start in range(first, len(operands), 8):
        result = add(result, functools.reduce(add, operands[start : start + 8]))
    return result


def _is_for_the_reader_alone(view: GraphView, tensor: Tensor) -> bool:
    while True:
        node = view.producer(tensor)
        if (
            node is None
            or node.name in view.preserve
            or len(view.consumers(tensor)) != 1
        ):
            return False
        if node.op not in _ALIASES:
            return node.op in _FRESH
        tensor = node.inputs[0]
