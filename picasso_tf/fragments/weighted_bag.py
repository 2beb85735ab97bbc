"""Bags whose ids have weights, as tf.nn.embedding_lookup_sparse writes them:

    rows = Mul(GatherV2(unique rows, positions), Reshape(weights, [n, 1]))
    pooled = SegmentSum(rows, segments)                              "sum"
    DivNoNan(pooled, SegmentSum(weights, segments))                  "mean"
    DivNoNan(pooled, Sqrt(SegmentSum(weights ** 2, segments)))       "sqrtn"

Half types are cast to float in front of the product, and back at the end. A
quotient of another form stays as it is, behind a bag that is summed. The square is
written Pow(weights, 2), which TensorFlow's optimizers make a Square, to other bits.
"""

from __future__ import annotations

import dataclasses
import itertools

from tensorflow.python.framework import dtypes

from picasso_tf.columns import column_of, is_column, ones_of
from picasso_tf.fragments.bag import (
    COMBINERS,
    Bag,
    BagGrad,
    UnpooledRows,
    Weights,
    find_bag_ids,
    find_results,
    row_shapes,
    unpooled_rows,
    unshaped,
)
from picasso_tf.fragments.partition import STITCH_OPS, Stitched, match_stitched
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

# One in each weighted bag.
WEIGHTED_POOL_OPS = ("SegmentSum",)
_HALF_TYPES = (dtypes.half, dtypes.bfloat16)
_NOT_SQUARED = (
    "without TensorFlow's arithmetic optimizer its weights are not squared but "
    "raised to a power, and their divisor is left to TensorFlow"
)
_WEIGHT_TYPES = (*_HALF_TYPES, dtypes.float32, dtypes.float64)


@dataclasses.dataclass(frozen=True)
class _Product:
    """Rows times weights: `matrix` is [n, 1], of `weights` [n].

    `other` is the factor that is multiplied by the weights.
    """

    other: Tensor
    matrix: Tensor
    weights: Weights


# -- forward ---------------------------------------------------------------


def match_weighted_bag(view: GraphView, node: Node) -> Bag | str | None:
    """The bag around a SegmentSum; a reason why it is left alone; None if that
    sums no weighted rows of a variable."""
    device = node.device
    mul = view.movable(node.inputs[0], device)
    if mul is None or mul.op != "Mul":
        return None
    for product in products(view, mul, device):
        cast, gathered = None, view.movable(product.other, device)
        if gathered is not None and widens(gathered):
            cast, gathered = gathered, view.movable(gathered.inputs[0], device)
        if gathered is None or not _gathers_rows(view, gathered):
            continue
        looked_up = unpooled_rows(view, *gathered.inputs[:2], device)
        if looked_up is None:
            continue
        if isinstance(looked_up, str):
            return looked_up
        return _bag(view, node, mul, product, cast, gathered, looked_up)
    return None


def _bag(view, node, mul, product, cast, gathered, looked_up: UnpooledRows):
    """The Bag, or why there is none."""
    device = node.device
    positions, segments = gathered.inputs[1], node.inputs[1]
    gather, unique = looked_up.gather, looked_up.unique
    shapes = row_shapes(
        view, (gather.name, 0), gathered, (unique.name, 0), looked_up.reshape
    )
    chain = [gathered, *([] if cast is None else [cast]), mul, node]
    for inner, reader in itertools.pairwise(chain):
        if shapes is None:
            break
        more = row_shapes(view, (inner.name, 0), reader, positions)
        shapes = None if more is None else shapes + more
    if shapes is None:
        return (
            "its rows are read before they are pooled, perhaps by the gradient of "
            "the weights"
        )
    root, combiner, before, left = node, "sum", [], ""
    if node.name not in view.preserve:
        divided, kind = quotient(view, node, product.matrix, segments)
        if divided is not None:
            before.append((node.name, 0))
            root, combiner = divided, kind
        else:
            left = kind
    if cast is not None:
        narrow = narrowed(view, root, gathered.attr("Tparams"))
        if narrow is None or (before and not _one_reader(view, before[0])):
            return "its pooled rows are read before they are cast back"
        # They are float, so that no Shape of theirs could read the result.
        before, root = [], narrow
    bags = find_bag_ids(
        view,
        unique.inputs[0],
        segments,
        unique.attr("T"),
        device,
        product.weights,
    )
    results, interior, zero, full = find_results(view, root, bags, tuple(before))
    return Bag(
        root, gather, shapes, combiner, bags, zero, full, results, interior, left
    )


def quotient(view, total: Node, matrix: Tensor, segments: Tensor):
    """(DivNoNan, combiner) behind the sum of weighted rows; (None, "") if it is
    not all that reads the sum, apart from its shape; (None, why it is left)."""
    readers = [
        (reader, position)
        for reader, position in view.consumers((total.name, 0))
        if reader.op != "Shape"
    ]
    if len(readers) != 1 or view.control_consumers(total.name):
        return None, ""
    reader, position = readers[0]
    if reader.op != "DivNoNan" or position != 0 or reader.device != total.device:
        return None, ""
    if reader.controls or reader.name in view.feeds:
        return None, ""
    kind = _divisor(view, reader.inputs[1], matrix, segments, total.device)
    return (reader, kind) if kind in COMBINERS else (None, kind)


def _divisor(
    view: GraphView, divisor: Tensor, matrix: Tensor, segments: Tensor, device: str
) -> str:
    """The combiner that divides by this; "" if none does; _NOT_SQUARED."""
    node = view.movable(divisor, device)
    combiner = "mean"
    if node is not None and node.op == "Sqrt":
        combiner = "sqrtn"
        node = view.movable(node.inputs[0], device)
    if node is None or node.op != "SegmentSum" or node.inputs[1] != segments:
        return ""
    if combiner == "mean":
        return combiner if node.inputs[0] == matrix else ""
    square = view.movable(node.inputs[0], device)
    if square is None or square.inputs[:1] != (matrix,):
        return ""
    if square.op == "Pow":
        if not view.squares_powers:
            return _NOT_SQUARED
        exponent = view.constant(square.inputs[1])
        squared = exponent is not None and exponent.size == 1 and exponent == 2
    else:
        squared = square.op == "Square"
    return combiner if squared else ""


def narrowed(view: GraphView, node: Node, dtype: dtypes.DType) -> Node | None:
    """The Cast back to a half type that alone reads a node."""
    if node.name in view.preserve or node.name in view.feeds:
        return None
    if not _one_reader(view, (node.name, 0)):
        return None
    (cast, _), *_ = view.consumers((node.name, 0))
    if cast.op != "Cast" or cast.attr("DstT") != dtype or cast.device != node.device:
        return None
    if cast.controls or cast.name in view.feeds or cast.attr("Truncate", False):
        return None
    return cast


def _one_reader(view: GraphView, tensor: Tensor) -> bool:
    readers = view.consumers(tensor)
    return len(readers) == 1 and not view.control_consumers(tensor[0])


# -- backward --------------------------------------------------------------


def match_weighted_bag_grad(
    view: GraphView, values: Tensor, ids: Tensor, index_type, device: str
) -> BagGrad | None:
    """The pooled gradient behind the rows `values` of unique `ids`, where weighted
    gradient rows were summed per id."""
    total = view.movable(unshaped(view, values, device), device)
    unique_ids = unshaped(view, ids, device)
    unique = view.movable(unique_ids, device)
    if total is None or total.op != "UnsortedSegmentSum":
        return None
    if unique is None or unique.op != "Unique" or unique_ids[1] != 0:
        return None
    if unshaped(view, total.inputs[1], device) != (unique.name, 1):
        return None
    if not _counts_rows(view, total.inputs[2], unique_ids):
        return None
    barriers: list[str] = []
    # Rows of gradient times weights, one for each id.
    rows = unreduced(view, total.inputs[0], device, barriers)
    mul = view.movable(rows, device)
    half = mul is not None and narrows(mul)
    if half:
        rows = unreduced(view, mul.inputs[0], device, barriers)
        mul = view.movable(rows, device)
    if mul is None or mul.op != "Mul":
        return None
    for product in products(view, mul, device):
        spread = view.movable(product.other, device)
        if spread is None or spread.op != "GatherV2" or not on_axis_0(view, spread):
            continue
        grad, segments = spread.inputs[:2]
        grad, combiner = undivided(
            view, grad, product.matrix, segments, device, barriers
        )
        if half:
            grad = unreduced(view, grad, device, barriers)
            widened = view.movable(grad, device)
            if widened is None or not widens(widened):
                return None
            grad = widened.inputs[0]
        bags = find_bag_ids(
            view,
            unique.inputs[0],
            segments,
            index_type,
            device,
            product.weights,
        )
        return BagGrad(combiner, bags, grad, tuple(barriers))
    return None


def undivided(view, grad, matrix, segments, device, barriers) -> tuple[Tensor, str]:
    """(gradient, combiner) before DivNoNan(gradient, divisor)."""
    passed: list[str] = []
    node = view.movable(unreduced(view, grad, device, passed), device)
    if node is None or node.op != "DivNoNan":
        return grad, "sum"
    combiner = _divisor(view, node.inputs[1], matrix, segments, device)
    if combiner not in COMBINERS:
        return grad, "sum"
    barriers.extend(passed)
    return node.inputs[0], combiner


def unreduced(
    view: GraphView, tensor: Tensor, device: str, barriers: list[str]
) -> Tensor:
    """The tensor before Reshapes, what held it back, and sums over the dimensions
    along which it was broadcast, of which a matrix of rows has none."""
    while True:
        node = view.producer(tensor)
        if node is None or node.device != device or node.name in view.preserve:
            return tensor
        if node.op in FORWARDING:
            barriers.extend(node.controls)
        elif node.controls:
            return tensor
        elif node.op == "Sum":
            if not _sums_nothing(view, node):
                return tensor
        elif node.op != "Reshape":
            return tensor
        tensor = node.inputs[0]


def _sums_nothing(view: GraphView, node: Node) -> bool:
    """Whether a Sum is over the dimensions in which the first of two operands was
    broadcast, the other one being a column: none then."""
    axes = view.producer(node.inputs[1])
    if axes is None or axes.op != "BroadcastGradientArgs" or axes.controls:
        return False
    own = view.producer(axes.inputs[node.inputs[1][1]])
    other = view.producer(axes.inputs[1 - node.inputs[1][1]])
    if own is None or other is None or own.op != "Shape" or other.op != "Shape":
        return False
    return is_column(view, other.inputs[0]) and _is_rows(view, own.inputs[0])


def _is_rows(view: GraphView, tensor: Tensor) -> bool:
    """Whether a tensor is a matrix of weighted rows, or of sums of such."""
    node = view.producer(view.skip(tensor, FORWARDING))
    if node is not None and node.op == "SegmentSum":
        node = view.producer(node.inputs[0])
        if node is None or node.op != "Mul":
            return False
        inner = [view.producer(edge) for edge in node.inputs]
    else:
        inner = [node]
    inner = [
        view.producer(item.inputs[0])
        if item is not None and item.op == "Cast"
        else item
        for item in inner
    ]
    return any(item is not None and _gathers_rows(view, item) for item in inner)


def _counts_rows(view: GraphView, count: Tensor, ids: Tensor) -> bool:
    """Whether `count` is the number of rows looked up at `ids`."""
    node = view.producer(view.skip(count, FORWARDING))
    if node is None or node.op != "StridedSlice":
        return False
    if view.constant_ints(node.inputs[1]) != [0]:
        return False
    shape = view.producer(view.skip(node.inputs[0], FORWARDING | {"Cast"}))
    if shape is None or shape.op != "Shape":
        return False
    rows = view.producer(view.skip(shape.inputs[0], FORWARDING))
    if rows is not None and rows.op == "Reshape":
        rows = view.producer(rows.inputs[0])
    if rows is not None and rows.op in STITCH_OPS:
        stitched = match_stitched(view, rows)
        return (
            isinstance(stitched, Stitched)
            and unshaped(view, stitched.ids, rows.device) == ids
        )
    return rows is not None and rows.op == "ResourceGather" and rows.inputs[1] == ids


# -- both ------------------------------------------------------------------


def products(view: GraphView, mul: Node, device: str):
    """The ways in which a Mul is one by weights."""
    for position in (0, 1):
        matrix = mul.inputs[1 - position]
        reshape = view.movable(matrix, device)
        outer = None
        if reshape is not None and _casts_weights(reshape):
            # TensorFlow's optimizers may have changed their order.
            outer, reshape = reshape, view.movable(reshape.inputs[0], device)
        if reshape is None:
            continue
        weights = column_of(view, reshape)
        if weights is None:
            continue
        dtype = reshape.attr("T")
        weights = view.skip(weights, FORWARDING)
        cast = view.movable(weights, device)
        if outer is None and cast is not None and _casts_weights(cast):
            weights, dtype = cast.inputs[0], cast.attr("SrcT")
        if dtype in _WEIGHT_TYPES:
            found = Weights(weights, dtype, ones_of(view, reshape))
            yield _Product(mul.inputs[position], matrix, found)


def _casts_weights(node: Node) -> bool:
    return (
        node.op == "Cast"
        and node.attr("SrcT") in _WEIGHT_TYPES
        and not node.attr("Truncate", False)
    )


def _gathers_rows(view: GraphView, node: Node) -> bool:
    """Whether a node gathers rows at the positions that a Unique gives."""
    if node.op != "GatherV2" or not on_axis_0(view, node):
        return False
    positions = view.producer(node.inputs[1])
    return positions is not None and positions.op == "Unique" and node.inputs[1][1] == 1


def on_axis_0(view: GraphView, gather: Node) -> bool:
    return (
        gather.attr("batch_dims", 0) == 0 and view.constant_int(gather.inputs[2]) == 0
    )


def widens(node: Node) -> bool:
    return (
        node.op == "Cast"
        and node.attr("SrcT") in _HALF_TYPES
        and node.attr("DstT") == dtypes.float32
    )


def narrows(node: Node) -> bool:
    return (
        node.op == "Cast"
        and node.attr("SrcT") == dtypes.float32
        and node.attr("DstT") in _HALF_TYPES
        and not node.attr("Truncate", False)
    )
