"""Sparse updates of one table, as TF1 optimizers and Keras 2's legacy ones
write them: one op per table, behind the ops that sum duplicate ids."""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.columns import keeps_order
from picasso_tf.fragments.bag import BagGrad, BagIds, is_tiled, match_bag_grad
from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.join import Slice, match_slice
from picasso_tf.fragments.partition import IdsOfPart, PartGrad, match_part_grad
from picasso_tf.fragments.weighted_bag import match_weighted_bag_grad
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Table, Tensor


@dataclasses.dataclass(frozen=True)
class Rule:
    """How a stock op maps to a rule of PicassoPackedUpdate: input positions.

    Attributes:
      name: the op's `rule`.
      slots: number of slot variables, which follow the variable.
      hyper: positions of the scalars, in the order that kernels/core expects.
      grad, ids: positions of the gradient rows and their ids.
      step: position of the global step, if there is one.
    """

    name: str
    slots: int
    hyper: tuple[int, ...]
    grad: int
    ids: int
    step: int | None = None
    float_only: bool = False


RULES = {
    "ResourceScatterAdd": Rule("scatter_add", 0, (), 2, 1),
    "ResourceScatterSub": Rule("scatter_sub", 0, (), 2, 1),
    "ResourceSparseApplyAdagrad": Rule("adagrad", 1, (2,), 3, 4),
    "ResourceSparseApplyAdagradV2": Rule("adagrad_v2", 1, (2, 3), 4, 5),
    "ResourceSparseApplyMomentum": Rule("momentum", 1, (2, 5), 3, 4),
    "ResourceSparseApplyKerasMomentum": Rule("keras_momentum", 1, (2, 5), 3, 4),
    "ResourceSparseApplyFtrl": Rule("ftrl", 2, (5, 6, 7, 8), 3, 4),
    "ResourceSparseApplyFtrlV2": Rule("ftrl_v2", 2, (5, 6, 7, 8, 9), 3, 4),
    "ResourceSparseApplyRMSProp": Rule("rms_prop", 2, (3, 4, 5, 6), 7, 8),
    "ResourceSparseApplyAdadelta": Rule("adadelta", 2, (3, 4, 5), 6, 7),
    "ResourceSparseApplyProximalAdagrad": Rule(
        "proximal_adagrad", 1, (2, 3, 4), 5, 6, float_only=True
    ),
    "ResourceSparseApplyAdagradDA": Rule(
        "adagrad_da", 2, (5, 6, 7), 3, 4, step=8, float_only=True
    ),
}
UPDATE_OPS = tuple(RULES)
# What gives IndexedSlices their ids; those that pool rows of a table's value have a
# gradient that does.
_VECTORS_OF_IDS = (
    *("Reshape", "Unique", "ConcatV2", "SparseSegmentSumGradV2"),
    *("SparseSegmentMeanGradV2", "SparseSegmentSqrtNGradV2"),
)
FLAGS = ("update_slots", "use_nesterov", "multiply_linear_by_lr", "use_locking")
_TYPES = (dtypes.half, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@dataclasses.dataclass(frozen=True)
class Part:
    """Gradient rows for some ids.

    Attributes:
      grad: a whole tensor, or a slice of one.
      waits: names of nodes with effects that had to run before the rows were
        there.
      bags: where the rows are those of bags, which ids these hold; their combiner;
        whether the gradient of bags that were filled is zero.
      of: where the variable is one part of several: which part, whose ids alone
        count. (Its own `ids` repeat in front of what picks them.)
      checked: it is not known that there is one row for each id; the kernel sees.
    """

    ids: Ids
    grad: Tensor | Slice
    waits: frozenset[str]
    bags: BagIds | None = None
    combiner: str = ""
    zero_filled: bool = False
    of: IdsOfPart | None = None
    checked: bool = False


@dataclasses.dataclass(frozen=True)
class SparseUpdate:
    """One update of `table`.

    Attributes:
      node: the stock op.
      rule: how its inputs are laid out.
      dtype: type of variable, slots and gradient.
      flags: those of FLAGS that the op has.
      sum_duplicates: rows of one id are summed before the rule is applied.
      parts: gradient rows, in order; several where the table has several
        lookups.
      negate, scale: the rows are negated, then multiplied by a scalar.
      hyper: the rule's scalars.
      step: the global step, if the rule needs it.
      computed: float arithmetic of an optimizer is in front, which TensorFlow's
        optimizers regroup; from the update they learn what shapes it has.
      checked: it is not known that there is one row of updates per id.
    """

    node: Node
    rule: Rule
    table: Table
    dtype: dtypes.DType
    flags: tuple[tuple[str, bool], ...]
    sum_duplicates: bool
    parts: tuple[Part, ...]
    negate: bool
    scale: Tensor | None
    hyper: tuple[Tensor, ...]
    step: Tensor | None
    computed: bool = False

    @property
    def checked(self) -> bool:
        return any(part.checked for part in self.parts)


# Set on an update that is left for later, when less may be known of shapes: that
# there is one row of updates per id.
ROW_PER_ID = "_picasso_row_per_id"

# Float arithmetic on rows, as optimizers write it that have no op of their own.
_ARITHMETIC = frozenset(
    {"Mul", "RealDiv", "Div", "DivNoNan", "Square", "Neg", "Sub", "Add", "AddV2"}
    | {"Sqrt", "Rsqrt", "Pow", "Maximum", "Minimum", "Select", "SelectV2"}
)


def match_update(view: GraphView, node: Node) -> SparseUpdate | str:
    """The update at one of UPDATE_OPS, or the reason why it is left alone."""
    rule = RULES[node.op]
    dtype = node.attr("T") or node.attr("dtype")
    if dtype not in _TYPES:
        return f"the variable is {dtype.name}, not of a floating-point type"
    if rule.float_only and dtype not in (dtypes.float32, dtypes.float64):
        return f"the rule has no {dtype.name} kernel"
    if "GPU" in node.device.upper():
        return "the update is on a GPU, and packed updates have no GPU kernel yet"
    values, ids = node.inputs[rule.grad], node.inputs[rule.ids]
    index_type = node.attr("Tindices")
    known = (
        rule.slots > 0
        or bool(node.attr(ROW_PER_ID))
        or _is_vector_of_ids(view, node, values, ids)
    )
    summed = _match_sum(view, values, ids, node.device) if known else None
    if summed is not None:
        values, ids = summed
    negate, scale, computed = False, None, False
    if summed is None and rule.slots == 0:
        values, negate, scale = _match_scale(view, values, node.device)
        rows = view.producer(view.skip(values, FORWARDING))
        computed = not known or (rows is not None and rows.op in _ARITHMETIC)
    table = view.table(node.inputs[0])
    if known:
        parts = tuple(
            _part(view, part_values, part_ids, index_type, node.device, table)
            for part_values, part_ids in _split_parts(view, values, ids, node.device)
        )
    else:
        parts = (_checked_part(view, values, ids, index_type, node.device),)
    flags = tuple(
        (name, node.attr(name)) for name in FLAGS if node.attr(name) is not None
    )
    return SparseUpdate(
        node,
        rule,
        table,
        dtype,
        flags,
        summed is not None,
        parts,
        negate,
        scale,
        tuple(
            _forwarded(view, node.inputs[position], node.device)
            for position in rule.hyper
        ),
        None
        if rule.step is None
        else _forwarded(view, node.inputs[rule.step], node.device),
        computed,
    )


def _part(
    view: GraphView,
    values: Tensor,
    ids: Tensor,
    index_type,
    device: str,
    table: Table | None,
) -> Part:
    of_one = match_part_grad(view, values, ids, device)
    if isinstance(of_one, PartGrad):
        part = _part_behind(view, of_one, index_type, device)
        if part is not None:
            return part
    for match in (match_bag_grad, match_weighted_bag_grad):
        bag = match(view, values, ids, index_type, device)
        found = bag and find_grad(view, bag.grad, device, bag)
        if found:
            grad, waits, zeroed = found
            return Part(bag.bags.ids, grad, waits, bag.bags, bag.combiner, zeroed)
    grad, waits, _ = find_grad(view, values, device) or (values, frozenset(), False)
    ids = find_ids(view, ids, index_type, device, flat=True, table=table)
    return Part(ids, grad, waits)


def _checked_part(
    view: GraphView, values: Tensor, ids: Tensor, index_type, device: str
) -> Part:
    """The tensors as they are: what lies before them may have other shapes."""
    source = _forwarded(view, ids, device)
    whole = Ids(source, index_type, 0, -1, False, True, view.shape(ids))
    return Part(whole, _forwarded(view, values, device), frozenset(), checked=True)


def _part_behind(
    view: GraphView, found: PartGrad, index_type, device: str
) -> Part | None:
    """The gradient of all parts behind that of one; None: something holds back
    what lies in between for longer than can be told."""
    part = _part(view, found.values, found.part.ids, index_type, device, None)
    if part.of is not None:
        return None  # parts of parts
    grad = part.grad.source if isinstance(part.grad, Slice) else part.grad
    waits = set(part.waits)
    for barrier in found.barriers:
        effects = view.effects_before(barrier, grad[0])
        if effects is None:
            return None
        waits |= effects
    return dataclasses.replace(part, waits=frozenset(waits), of=found.part)


def _forwarded(view: GraphView, tensor: Tensor, device: str) -> Tensor:
    """The tensor before Identities, of which optimizers write one per variable."""
    while True:
        node = view.movable(tensor, device)
        if node is None or node.op not in FORWARDING:
            return tensor
        tensor = node.inputs[0]


def _is_vector_of_ids(view, node, values, ids) -> bool:
    """Whether there is a row of updates for each id, in whatever shape. (Stock's
    ResourceScatter* broadcast scalars and compare shapes.) Where shapes are unknown,
    it is known of the form that IndexedSlices have."""
    values_shape, ids_shape = view.shape(values), view.shape(ids)
    if values_shape is not None and ids_shape is not None:
        table = view.table(node.inputs[0]).shape
        if table is not None and len(values_shape) != len(ids_shape) + len(table) - 1:
            return False
        return len(values_shape) > 0
    # If and its like pass on what they are given through Switch.
    producer = view.producer(view.skip(ids, FORWARDING | {"Switch"}))
    return producer is not None and producer.op in _VECTORS_OF_IDS


def _match_sum(
    view: GraphView, values: Tensor, ids: Tensor, device: str
) -> tuple[Tensor, Tensor] | None:
    """(rows, ids) before UnsortedSegmentSum(rows, Unique(ids)) made ids unique."""
    total = view.movable(values, device, bookkeeping=False)
    unique = view.movable(ids, device)
    if total is None or total.op != "UnsortedSegmentSum":
        return None
    if unique is None or unique.op != "Unique" or ids[1] != 0:
        return None
    rows, segments, count = total.inputs
    if segments != (unique.name, 1) or not _counts(view, count, ids):
        return None
    if not view.waits_for_nobody(count):
        return None
    return rows, unique.inputs[0]


def _counts(view: GraphView, count: Tensor, vector: Tensor) -> bool:
    """Whether `count` is the length of `vector`: shape(vector)[0]."""
    node = view.producer(view.skip(count, FORWARDING))
    if node is None:
        return False
    if node.op == "Size":
        return node.inputs[0] == vector
    if node.op != "StridedSlice" or view.constant_ints(node.inputs[1]) != [0]:
        return False
    shape = view.producer(node.inputs[0])
    return shape is not None and shape.op == "Shape" and shape.inputs[0] == vector


def _match_scale(
    view: GraphView, values: Tensor, device: str
) -> tuple[Tensor, bool, Tensor | None]:
    """(rows, negated, scale) of -rows * scale, as gradient descent writes it.

    The scale of a product or quotient is left to TensorFlow's own optimizers:
    they move factors through such chains, to other bits.
    """
    scale = None
    node = view.movable(values, device)
    if node is not None and node.op == "Mul":
        for row_input in (0, 1):
            rows, factor = node.inputs[row_input], node.inputs[1 - row_input]
            if view.is_scalar(factor) and not view.is_scalar(rows):
                inner = view.producer(view.skip(rows, FORWARDING))
                if inner is not None and inner.op in ("Mul", "RealDiv", "Div"):
                    break
                values, scale = rows, factor
                break
        node = view.movable(values, device)
    if node is not None and node.op == "Neg":
        return node.inputs[0], True, scale
    return values, False, scale


def _split_parts(view: GraphView, values: Tensor, ids: Tensor, device: str):
    """Pairs of (rows, ids) that tf.gradients concatenated for one table.

    The n-th rows must belong to the n-th ids, which is told by the shape that
    the gradient of a gather gives its rows: concat([size(ids)], row shape).
    """
    values_node, ids_node = view.movable(values, device), view.movable(ids, device)
    whole = [(values, ids)]
    if values_node is None or ids_node is None:
        return whole
    if values_node.op != "ConcatV2" or ids_node.op != "ConcatV2":
        return whole
    if len(values_node.inputs) != len(ids_node.inputs):
        return whole
    for node in (values_node, ids_node):
        if view.constant_int(node.inputs[-1]) != 0:
            return whole
    pairs = list(zip(values_node.inputs[:-1], ids_node.inputs[:-1], strict=True))
    return pairs if all(_belong(view, *pair) for pair in pairs) else whole


def _belong(view: GraphView, values: Tensor, ids: Tensor) -> bool:
    reshape = view.producer(values)
    flatten = view.producer(ids)
    if reshape is None or reshape.op != "Reshape":
        return False
    if flatten is None or flatten.op != "Reshape":
        return False
    # Both shapes are built from one node, size(ids).
    sizes = _size_of(view, reshape.inputs[1]), _size_of(view, flatten.inputs[1])
    return sizes[0] is not None and sizes[0] == sizes[1]


def _size_of(view: GraphView, shape: Tensor) -> Tensor | None:
    """The tensor whose size is the first entry of a shape, if it shows."""
    node = view.producer(shape)
    if node is not None and node.op == "ConcatV2":
        node = view.producer(node.inputs[0])
    if node is not None and node.op == "ExpandDims":
        node = view.producer(node.inputs[0])
    return node.inputs[0] if node is not None and node.op == "Size" else None


def find_grad(
    view: GraphView,
    values: Tensor,
    device: str,
    bag: BagGrad | None = None,
    whole: bool = False,
) -> tuple[Tensor | Slice, frozenset[str], bool] | None:
    """The rows' source, past what only renames their dimensions or holds them
    back; what to wait for instead of what held them back; whether what sets the
    rows of bags without ids to zero was passed, too. None: what to wait for is
    too much to tell. `whole`: no slice of a tensor, and as TensorFlow's optimizers
    leave it, which let the next op wait in place of an Identity."""
    barriers: list[str] = [] if bag is None else list(bag.barriers)
    zeroed = False
    while True:
        node = view.producer(values)
        if node is None or node.device != device or node.name in view.preserve:
            break
        if node.op in FORWARDING:
            barriers.extend(node.controls)
            values = node.inputs[0]
        elif node.controls and not whole:
            break
        elif bag is not None and not zeroed and _zeroes_empty(view, node, bag):
            zeroed = True
            barriers.extend(node.controls)
            values = node.inputs[2]
        elif keeps_order(view, node):
            barriers.extend(node.controls)
            values = node.inputs[0]
        else:
            break
    grad: Tensor | Slice = values
    if not whole and view.movable(values, device) is not None:
        grad = match_slice(view, values) or values
    source = grad.source if isinstance(grad, Slice) else grad
    waits: set[str] = set()
    for barrier in barriers:
        effects = view.effects_before(barrier, source[0])
        if effects is None:
            return None
        waits |= effects
    return grad, frozenset(waits), zeroed


def _zeroes_empty(view: GraphView, node: Node, bag: BagGrad) -> bool:
    """Whether a node is select(tile(bags without ids), zeros, gradient)."""
    if node.op != "Select" or bag.bags.empty is None:
        return False
    zeros = view.producer(node.inputs[1])
    return (
        zeros is not None
        and zeros.op == "ZerosLike"
        and is_tiled(view, node.inputs[0], bag.bags.empty)
    )
