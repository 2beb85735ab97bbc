"""Bags: several ids of a SparseTensor, looked up and pooled by a combiner, as
tf.nn.embedding_lookup_sparse and safe_embedding_lookup_sparse write them.

Only the ops that carry ids, rows and values are matched; what merely computes
shapes is taken as it is, or looked at where the result depends on it.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.partition import STITCH_OPS, Stitched, match_stitched
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

# The pooling ops, and the combiner of each.
POOL_OPS = {
    "SparseSegmentSum": "sum",
    "SparseSegmentMean": "mean",
    "SparseSegmentSqrtN": "sqrtn",
}
COMBINERS = tuple(POOL_OPS.values())
POOL_GRAD_OPS = {f"{op}Grad": combiner for op, combiner in POOL_OPS.items()}
# The same, which tell ids apart by themselves.
_UNIQUE_GRAD_OPS = {f"{op}GradV2": combiner for op, combiner in POOL_OPS.items()}


@dataclasses.dataclass(frozen=True)
class Weights:
    """Weights of the ids.

    Attributes:
      tensor: holds one for each id of the source.
      ones: [1], by which TensorFlow learns that rows times weights are a matrix;
        None: it knows.
    """

    tensor: Tensor
    dtype: dtypes.DType
    ones: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class BagIds:
    """Which ids are in which bag.

    Attributes:
      ids: the ids, in place.
      rows: the SparseTensor's indices, or a vector of segment ids.
      rows_dtype: int32 or int64.
      shape: its dense shape, if each of its rows has a bag; None: bags end with
        the last id.
      rank: rank of the SparseTensor where known.
      prune: ids below zero do not count.
      prune_weights: nor do those with a weight that is not above zero.
      default_id: the id of a bag without ids, where there is a shape.
      weights: None: none.
      empty: the op output that tells which bags had no ids, if any does.
    """

    ids: Ids
    rows: Tensor
    rows_dtype: dtypes.DType
    shape: Tensor | None = None
    rank: int | None = None
    prune: bool = False
    prune_weights: bool = False
    default_id: int = 0
    weights: Weights | None = None
    empty: Tensor | None = None

    def tensors(self):
        """What a pack reads."""
        yield self.ids.source
        yield self.rows
        if self.shape is not None:
            yield self.shape
        if self.weights is not None:
            yield self.weights.tensor
            if self.weights.ones is not None:
                yield self.weights.ones


def find_bag_ids(
    view: GraphView,
    ids: Tensor,
    segments: Tensor,
    index_type: dtypes.DType,
    device: str,
    weights: Weights | None = None,
) -> BagIds:
    """The bags behind ids and their segment ids, as far up as they show.

    `weights` are those of `ids`, as they come to the pooling.
    """
    indices = indices_of(view, segments, device)
    if indices is None:
        rows_type = view.dtype(segments) or dtypes.int64
        found = find_ids(view, ids, index_type, device, flat=True)
        return BagIds(found, segments, rows_type, weights=weights)
    filled = _match_filled(view, ids, indices, device, weights)
    if filled is None:
        found = find_ids(view, ids, index_type, device, flat=True)
        return BagIds(found, indices, dtypes.int64, weights=weights)
    ids, fields = filled
    found = find_ids(view, ids, index_type, device, flat=True)
    return BagIds(found, rows_dtype=dtypes.int64, **fields)


def indices_of(view: GraphView, segments: Tensor, device: str) -> Tensor | None:
    """The matrix whose first column the segment ids are: indices[:, 0]."""
    node = view.movable(segments, device)
    while node is not None and (node.op in FORWARDING or _narrows(node)):
        segments = node.inputs[0]
        node = view.movable(segments, device)
    if node is None or node.op != "StridedSlice":
        return None
    begin, end, strides = (view.constant_ints(edge) for edge in node.inputs[1:4])
    masks = [
        node.attr(f"{name}_mask", 0)
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    ]
    if masks[0] | 2 != 3 or masks[1] | 2 != 3 or masks[2:] != [0, 0, 2]:
        return None
    if begin is None or end is None or strides != [1, 1]:
        return None
    if begin[1] != 0 and not masks[0] & 2:
        return None
    return node.inputs[0]


def _narrows(node: Node) -> bool:
    return (
        node.op == "Cast"
        and node.attr("SrcT") == dtypes.int64
        and node.attr("DstT") == dtypes.int32
    )


def _match_filled(
    view: GraphView, ids: Tensor, indices: Tensor, device: str, weighted
) -> tuple[Tensor, dict] | None:
    """(ids, fields of BagIds) before safe_embedding_lookup_sparse pruned ids and
    filled empty bags."""
    fill = _fill(view, ids, indices, device)
    if fill is None:
        return None
    default = view.constant_int(fill.inputs[3])
    if default is None:
        return None
    indices, ids, shape = fill.inputs[:3]
    empty = (fill.name, 2)
    weights = None
    if weighted is not None:
        weights = _match_filled_weights(view, weighted.tensor, fill, device)
        if weights is None:
            return None
    prune_weights = False
    if weights is not None:
        by_weight = _match_filter(view, indices, ids, device)
        if by_weight is not None and by_weight.op == "Greater":
            weights_before = _gathered(view, weights, by_weight.keep, device)
            if by_weight.values != weights_before:
                return None
            indices, ids, weights = by_weight.indices, by_weight.ids, weights_before
            prune_weights = True
    kept = _match_filter(view, indices, ids, device)
    prune = kept is not None and kept.op == "GreaterEqual" and kept.values == kept.ids
    if prune:
        indices, ids = kept.indices, kept.ids
        if weights is not None:
            weights = _gathered(view, weights, kept.keep, device)
            if weights is None:
                return None
    fields = {
        "rows": indices,
        "shape": view.skip(shape, FORWARDING),
        "prune": prune,
        "prune_weights": prune_weights,
        "default_id": default,
        "empty": empty,
        "weights": weights and dataclasses.replace(weighted, tensor=weights),
        "rank": 2,
    }
    reshape = view.movable(indices, device)
    if reshape is not None and reshape.op == "SparseReshape":
        if fields["shape"] != (reshape.name, 1):
            return None
        rank = _rank_before_flattening(view, reshape)
        if rank is None:
            return None
        fields |= {
            "rows": reshape.inputs[0],
            "shape": view.skip(reshape.inputs[1], FORWARDING),
            "rank": rank or None,
        }
    return ids, fields


def _fill(view: GraphView, ids: Tensor, indices: Tensor, device: str) -> Node | None:
    node = view.movable(indices, device)
    if node is None or node.op != "SparseFillEmptyRows":
        return None
    return node if indices[1] == 0 and ids == (node.name, 1) else None


def _match_filled_weights(view, weights: Tensor, fill: Node, device) -> Tensor | None:
    """The weights before a SparseFillEmptyRows that fills with ones and goes the
    way of `fill`, which fills the ids."""
    node = view.movable(weights, device)
    while node is not None and node.op in ("Cast", "Reshape", *FORWARDING):
        weights = node.inputs[0]
        node = view.movable(weights, device)
    if node is None or node.op != "SparseFillEmptyRows" or weights[1] != 1:
        return None
    default = view.constant(node.inputs[3])
    if default is None or default.size != 1 or float(default.reshape(-1)[0]) != 1.0:
        return None
    if not _same(view, node.inputs[0], fill.inputs[0]):
        return None
    return node.inputs[1]


@dataclasses.dataclass(frozen=True)
class _Filter:
    """indices and ids, of which those were kept where values >= 0 (or > 0)."""

    op: str
    values: Tensor
    keep: Tensor
    indices: Tensor
    ids: Tensor


def _match_filter(view, indices: Tensor, ids: Tensor, device: str) -> _Filter | None:
    gathers = [view.movable(tensor, device) for tensor in (indices, ids)]
    for node in gathers:
        if node is None or node.op != "GatherV2" or node.attr("batch_dims", 0):
            return None
        if view.constant_int(node.inputs[2]) != 0:
            return None
    keep = gathers[0].inputs[1]
    if keep != gathers[1].inputs[1]:
        return None
    compare = _comparison(view, keep, device)
    if compare is None:
        return None
    return _Filter(
        compare.op,
        view.skip(compare.inputs[0], FORWARDING),
        keep,
        gathers[0].inputs[0],
        view.skip(gathers[1].inputs[0], FORWARDING),
    )


def _comparison(view: GraphView, keep: Tensor, device: str) -> Node | None:
    """The comparison with zero behind reshape(where(comparison), [-1])."""
    reshape = view.movable(keep, device)
    if reshape is None or reshape.op != "Reshape":
        return None
    where = view.movable(reshape.inputs[0], device)
    if where is None or where.op != "Where":
        return None
    compare = view.movable(where.inputs[0], device)
    if compare is not None and compare.op == "LogicalAnd":
        if not _all_true(view, compare.inputs[1]):
            return None
        compare = view.movable(compare.inputs[0], device)
    if compare is None or compare.op not in ("GreaterEqual", "Greater"):
        return None
    zero = view.constant(compare.inputs[1])
    return compare if zero is not None and zero.size == 1 and not zero.any() else None


def _all_true(view: GraphView, tensor: Tensor) -> bool:
    node = view.producer(tensor)
    if node is None:
        return False
    value = view.constant(node.inputs[1] if node.op == "Fill" else tensor)
    return value is not None and bool(value.all())


def _gathered(view, weights: Tensor, keep: Tensor, device: str) -> Tensor | None:
    """The weights before the filter `keep`, or an equal one, kept some of them."""
    node = view.movable(weights, device)
    if node is None or node.op != "GatherV2" or view.constant_int(node.inputs[2]) != 0:
        return None
    if not _same(view, node.inputs[1], keep):
        return None
    return view.skip(node.inputs[0], FORWARDING)


def _same(view: GraphView, a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are computed alike from the same tensors: TensorFlow
    writes the filter of a weighted lookup twice."""
    pending = [(a, b)]
    for left, right in pending:  # grows while it is walked
        left, right = (view.skip(tensor, FORWARDING) for tensor in (left, right))
        if left == right:
            continue
        one, other = view.producer(left), view.producer(right)
        if one is None or other is None or left[1] != right[1]:
            return False
        if one.op == "Const" and other.op == "Const":
            value, same = view.constant(left), view.constant(right)
            if value.dtype != same.dtype or value.tolist() != same.tolist():
                return False
            continue
        if one.op != other.op or one.op not in ("GatherV2", "Reshape", "Where"):
            return False
        if one.controls or other.controls:
            return False
        pending.extend(zip(one.inputs, other.inputs, strict=True))
    return True


def _rank_before_flattening(view: GraphView, reshape: Node) -> int | None:
    """The rank of a SparseTensor that is reshaped to [product of the leading
    dimensions, last dimension]; 0: not known; None: to something else."""
    shape = reshape.inputs[1]
    target = view.producer(view.skip(reshape.inputs[2], FORWARDING | {"Cast"}))
    if target is None or target.op != "Pack" or len(target.inputs) != 2:
        return None
    product = view.producer(view.skip(target.inputs[0], FORWARDING | {"Cast"}))
    last = view.producer(view.skip(target.inputs[1], FORWARDING | {"Cast"}))
    if product is None or product.op != "Prod" or last is None:
        return None
    leading = view.producer(product.inputs[0])
    if leading is None or leading.op != "Slice" or last.op != "GatherV2":
        return None
    if not _same(view, leading.inputs[0], shape) or not _same(
        view, last.inputs[0], shape
    ):
        return None
    if view.constant_ints(leading.inputs[1]) != [0]:
        return None
    size = view.constant_ints(leading.inputs[2])
    index = view.constant_int(last.inputs[1])
    if size is not None and index is not None:
        return index + 1 if size == [index] and index > 0 else None
    # Computed from the shape: rank - 1 in both places.
    sizes = view.producer(leading.inputs[2])
    if sizes is None or sizes.op != "Pack" or len(sizes.inputs) != 1:
        return None
    return 0 if sizes.inputs[0] == last.inputs[1] else None


# -- forward ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bag:
    """The pooling behind a lookup.

    Attributes:
      node: the op whose output is the pooled rows.
      gather: the ResourceGather of the unique ids, or, of a variable in parts,
        the stitch of what its parts gather.
      row_shapes: Shapes of rows that are not pooled yet, each with a vector of
        as many elements as there are such rows.
      combiner: "sum", "mean" or "sqrtn".
      bags: which ids are pooled.
      zero_filled: filled bags become zero.
      full_shape: the result has the leading dimensions of the SparseTensor.
      results: tensors that hold the pooled rows, the last one being what is left
        to read; others are read for their shape alone.
      interior: nodes that only lead from one result to the next.
      left: why a part of it is left alone; "": nothing is.
    """

    node: Node
    gather: Node
    row_shapes: tuple[tuple[Node, Tensor], ...]
    combiner: str
    bags: BagIds
    zero_filled: bool
    full_shape: bool
    results: tuple[Tensor, ...]
    interior: frozenset[str]
    left: str = ""


def match_bag(view: GraphView, node: Node) -> Bag | str | None:
    """The bag of a pooling op; a reason why it is left alone; None if it pools no
    rows of a variable."""
    device = node.device
    rows, positions, segments = node.inputs[:3]
    looked_up = unpooled_rows(view, rows, positions, device)
    if not isinstance(looked_up, UnpooledRows):
        return looked_up
    gather, unique = looked_up.gather, looked_up.unique
    shapes = row_shapes(
        view, (gather.name, 0), node, (unique.name, 0), looked_up.reshape
    )
    if shapes is None:
        return "the rows that it pools are read by others too"
    index_type = unique.attr("T")
    bags = find_bag_ids(view, unique.inputs[0], segments, index_type, device)
    results, interior, zero, full = find_results(view, node, bags)
    combiner = POOL_OPS[node.op]
    return Bag(node, gather, shapes, combiner, bags, zero, full, results, interior)


@dataclasses.dataclass(frozen=True)
class UnpooledRows:
    """The lookup of unique ids, whose rows are pooled.

    Attributes:
      gather: the ResourceGather, or, of a variable in parts, the stitch.
      unique: the Unique whose ids are looked up.
      reshape: name of the Reshape that gives stitched rows the shape of the ids.
    """

    gather: Node
    unique: Node
    reshape: str | None


def unpooled_rows(
    view: GraphView, rows: Tensor, positions: Tensor, device: str
) -> UnpooledRows | str | None:
    """The lookup of `rows`, of which those at `positions` are pooled; a reason why
    it is left alone; None: they are no variable's."""
    gather = view.movable(
        view.skip(rows, FORWARDING), device, held=True, bookkeeping=False
    )
    stitched = reshape = None
    if gather is not None and gather.op == "Reshape":
        stitched, reshape = _stitched_behind(view, gather, device), gather.name
        if stitched is None or isinstance(stitched, str):
            return stitched
        gather = stitched.node
    elif gather is None or gather.op != "ResourceGather":
        return MAX_NORM if are_clipped(view, rows) else None
    unique = view.movable(positions, device)
    if unique is None or unique.op != "Unique" or positions[1] != 1:
        return "the rows that it pools are not those of unique ids"
    looked_up = (
        gather.inputs[1]
        if stitched is None
        else view.skip(stitched.ids, FORWARDING | {"Reshape"})
    )
    if looked_up != (unique.name, 0):
        return "the ids that it pools are not those that are looked up"
    return UnpooledRows(gather, unique, reshape)


def _stitched_behind(
    view: GraphView, reshape: Node, device: str
) -> Stitched | str | None:
    """The lookup of a variable in parts behind the Reshape that gives it the
    shape of the ids; a reason why it is left alone; None: there is none."""
    stitch = view.movable(reshape.inputs[0], device, held=True, bookkeeping=False)
    if stitch is None or stitch.op not in STITCH_OPS or reshape.controls:
        return None
    if not view.waits_for_nobody(reshape.inputs[1]):
        return None
    stitched = match_stitched(view, stitch)
    if stitched is None or isinstance(stitched, str):
        return stitched
    shape = view.shape((reshape.name, 0))
    table = view.table(stitched.gathers[0].inputs[0]).shape
    if shape is None or table is None or len(shape) != 2 or shape[1:] != table[1:]:
        return "the shape of the rows that it pools is not known"
    return stitched


MAX_NORM = (
    "max_norm clips its rows before they are pooled, by arithmetic that TensorFlow's "
    "optimizers may reorder, and that is packed behind them"
)


def are_clipped(view: GraphView, rows: Tensor) -> bool:
    """Whether rows of a variable were clipped to a norm: rows * norm / max(l2, norm),
    as the lookups' max_norm has it."""
    clip = view.producer(view.skip(rows, FORWARDING))
    if clip is None or clip.op != "RealDiv":
        return False
    scaled, norm = (view.producer(edge) for edge in clip.inputs)
    if scaled is None or norm is None or (scaled.op, norm.op) != ("Mul", "Maximum"):
        return False
    gather = view.producer(view.skip(scaled.inputs[0], FORWARDING))
    return gather is not None and gather.op == "ResourceGather"


def row_shapes(
    view: GraphView,
    rows: Tensor,
    pool: Node,
    counted: Tensor,
    reshape: str | None = None,
) -> tuple[tuple[Node, Tensor], ...] | None:
    """The Shapes that read rows besides `pool`, each with `counted`, which has as
    many elements as there are rows; None if others read them, too. `reshape` names
    a node that is passed: it changes nothing."""
    if rows[0] in view.preserve:
        return None
    shapes: list[tuple[Node, Tensor]] = []
    for reader, _ in view.consumers(rows):
        if reader.name == pool.name:
            continue
        if reader.op == "Shape":
            shapes.append((reader, counted))
        elif reader.op in FORWARDING or reader.name == reshape:
            inner = row_shapes(view, (reader.name, 0), pool, counted, reshape)
            if inner is None:
                return None
            shapes.extend(inner)
        else:
            return None
    return tuple(shapes)


def find_results(
    view: GraphView, node: Node, bags: BagIds, before: tuple[Tensor, ...] = ()
):
    """(results, interior nodes, zero_filled, full_shape): what follows a pooling
    op in safe_embedding_lookup_sparse. `before` are results that lead to it."""
    pooled = (node.name, 0)
    first = frozenset({node.name}) if before else frozenset()
    nothing = (*before, pooled), first, False, False
    if bags.empty is None or node.name in view.preserve:
        return nothing
    zeroed = _find_zeroed(view, pooled, bags.empty, node.device)
    if zeroed is None:
        results, interior, zero = [*before, pooled], first, False
    else:
        select, interior = zeroed
        interior |= first
        results, zero = [*before, pooled, (select.name, 0)], True
    if bags.rank != 2 and not all(
        _read_inside(view, tensor, interior) for tensor in results[:-1]
    ):
        return tuple(results), interior, zero, False
    final = _find_final(view, results[-1], bags, node.device)
    if final is None:
        return tuple(results), interior, zero, False
    reshape, shape_nodes = final
    interior |= shape_nodes
    if bags.rank != 2 and not _read_inside(
        view, results[-1], interior | {reshape.name}
    ):
        return tuple(results), interior - shape_nodes, zero, False
    results.append((reshape.name, 0))
    return tuple(results), interior, zero, bags.rank != 2


def _read_inside(view: GraphView, tensor: Tensor, interior) -> bool:
    return all(reader.name in interior for reader, _ in view.consumers(tensor))


def _find_zeroed(view, pooled: Tensor, empty: Tensor, device: str):
    """(Select, interior nodes) of select(tile(empty), zeros, pooled)."""
    for select, position in view.consumers(pooled):
        if select.op != "Select" or position != 2 or select.device != device:
            continue
        zeros = view.movable(select.inputs[1], device)
        if select.controls or zeros is None or zeros.op != "ZerosLike":
            continue
        if zeros.inputs[0] != pooled or not is_tiled(view, select.inputs[0], empty):
            continue
        interior = {select.name}
        # A gradient that stays goes on reading the zeros and the condition.
        for reader, _ in view.consumers(pooled):
            if reader.op in ("Shape", "ZerosLike") and _leads_to(view, reader, select):
                interior.add(reader.name)
        # Others may read what leads there, but then for its shape alone.
        allowed = {"Shape", "ZerosLike", "Select"}
        if all(reader.op in allowed for reader, _ in view.consumers(pooled)):
            return select, frozenset(interior)
    return None


def is_tiled(view: GraphView, condition: Tensor, empty: Tensor) -> bool:
    """Whether a condition is `empty` [bags], repeated over the columns."""
    tile = view.producer(condition)
    if tile is None or tile.op != "Tile":
        return False
    column = view.producer(tile.inputs[0])
    return (
        column is not None
        and column.op == "Reshape"
        and column.inputs[0] == empty
        and view.constant_ints(column.inputs[1]) == [-1, 1]
    )


def _leads_to(view: GraphView, shape: Node, target: Node | None) -> bool:
    """Whether a Shape, or the like, is read on the way to `target` alone."""
    pending = [shape]
    for node in pending:  # grows while it is walked
        readers = view.consumers((node.name, 0))
        if len(pending) > 8 or not readers:
            return False
        if node.name in view.preserve or view.control_consumers(node.name):
            return False
        pending.extend(r for r, _ in readers if r is not target)
    return True


def _find_final(view, pooled: Tensor, bags: BagIds, device: str):
    """(Reshape, interior nodes) that gives pooled rows the leading dimensions of
    the SparseTensor: concat(dense_shape[:rank - 1], shape(pooled)[1:])."""
    for reshape, position in view.consumers(pooled):
        if reshape.op != "Reshape" or position != 0 or reshape.controls:
            continue
        concat = view.movable(reshape.inputs[1], device)
        if concat is None or concat.op != "ConcatV2" or len(concat.inputs) != 3:
            continue
        leading, trailing = (view.producer(edge) for edge in concat.inputs[:2])
        if leading is None or trailing is None or leading.op != "Slice":
            continue
        if trailing.op != "Slice" or reshape.device != device:
            continue
        if view.constant_ints(trailing.inputs[1]) != [1]:
            continue
        source = view.skip(leading.inputs[0], FORWARDING | {"Cast"})
        shape = view.producer(trailing.inputs[0])
        if shape is None or shape.op != "Shape" or shape.inputs[0] != pooled:
            continue
        if bags.shape is None or not _same(view, source, bags.shape):
            continue
        count = view.constant_ints(leading.inputs[2])
        if bags.rank and count is not None and count != [bags.rank - 1]:
            continue
        interior = {reshape.name, concat.name, trailing.name}
        if _leads_to(view, shape, reshape):
            interior.add(shape.name)
        return reshape, frozenset(interior)
    return None


# -- backward --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class BagGrad:
    """The gradient of pooled rows.

    Attributes:
      combiner, bags: see Bag.
      grad: the gradient of the pooled rows.
      barriers: names of nodes that held back what led from there to the rows.
    """

    combiner: str
    bags: BagIds
    grad: Tensor
    barriers: tuple[str, ...] = ()


def match_bag_grad(
    view: GraphView,
    values: Tensor,
    ids: Tensor,
    index_type,
    device: str,
    held: bool = False,
) -> BagGrad | None:
    """The pooled gradient behind the rows `values` of unique `ids`; `held`: it may
    have been held back by others."""
    values = rows = unshaped(view, values, device)
    node = view.movable(rows, device, held=held, bookkeeping=not held)
    unique_ids = unshaped(view, ids, device)
    unique = view.movable(unique_ids, device)
    if node is not None and node.op in _UNIQUE_GRAD_OPS:
        if rows[1] != 0 or unique_ids != (node.name, 1):
            return None
        grad, looked_up, segments = node.inputs[:3]
        bags = find_bag_ids(view, looked_up, segments, index_type, device)
        return BagGrad(_UNIQUE_GRAD_OPS[node.op], bags, grad, node.controls)
    if node is None or node.op not in POOL_GRAD_OPS:
        return None
    if unique is None or unique.op != "Unique" or unique_ids[1] != 0:
        return None
    grad, positions, segments = node.inputs[:3]
    if positions != (unique.name, 1):
        return None
    bags = find_bag_ids(view, unique.inputs[0], segments, index_type, device)
    return BagGrad(POOL_GRAD_OPS[node.op], bags, grad, node.controls)


def unshaped(view: GraphView, tensor: Tensor, device: str) -> Tensor:
    """The tensor before what only renames its dimensions."""
    while True:
        node = view.movable(tensor, device)
        if node is None or node.op not in ("Reshape", *FORWARDING):
            return tensor
        tensor = node.inputs[0]
