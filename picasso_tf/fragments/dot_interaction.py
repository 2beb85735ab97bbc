"""The dot interaction of DLRM: products of all pairs of fields, of which a mask or an
index keeps the lower triangle; and its gradient."""

from __future__ import annotations

import dataclasses

import numpy as np
from tensorflow.python.framework import dtypes

from picasso_tf.fragments.dead_nodes import dead_with
from picasso_tf.fragments.pair_mask import find_mask
from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

_TYPES = frozenset({dtypes.float32, dtypes.float64})
_SELECTS = frozenset({"Select", "SelectV2"})
_UNKNOWN = "the number of its fields, or their size, is not known beforehand"
_SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank", "OnesLike", "ZerosLike"})


@dataclasses.dataclass(frozen=True)
class DotGrad:
    """The gradient of the fields.

    Attributes:
      grad: of the kept products; read flat.
      last: the node whose output holds the gradient of all fields.
      flat: that is [batch, fields * dim]; else [batch, fields, dim].
      controls: names of nodes to wait for.
    """

    grad: Tensor
    last: Node
    flat: bool
    controls: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DotInteraction:
    """One dot interaction.

    Attributes:
      node: the matrix product.
      last: the node whose output holds the kept products of each example in a row.
      source: holds the fields: [batch, fields * dim] or [batch, fields, dim].
      fields, dim: their number and size.
      self_interaction: the products of fields with themselves are kept too.
      full: a row holds fields * fields elements, zero where nothing is kept.
      controls: names of nodes to wait for.
      grad: if there is one.
    """

    node: Node
    last: Node
    dtype: dtypes.DType
    source: Tensor
    fields: int
    dim: int
    self_interaction: bool
    full: bool
    controls: tuple[str, ...]
    grad: DotGrad | None


@dataclasses.dataclass(frozen=True)
class _Kept:
    """What is kept of the products: by which tensor, and in which node."""

    last: Node
    chosen: Tensor  # the indices, or the condition
    mask: np.ndarray
    full: bool
    place: int = 1  # of the products among a Select's inputs


def match_dot_interaction(view: GraphView, node: Node) -> DotInteraction | str | None:
    """The interaction at a matrix product; the reason why it is left alone; None:
    another product."""
    if node.name in view.feeds:
        return None
    joined = view.skip(node.inputs[0], FORWARDING)
    if joined != view.skip(node.inputs[1], FORWARDING) or not node.attr("adj_y", False):
        return None
    if node.attr("adj_x", False):
        return None
    found = _find_fields(view, joined)
    if isinstance(found, str):
        return found if _is_masked(view, node) else None
    source, fields, dim = found
    kept = _find_kept(view, node, fields)
    if isinstance(kept, str):
        return kept if _is_masked(view, node) else None
    if node.attr("T") not in _TYPES:
        return "a dot interaction of another type, which stock sums in its own way"
    if "GPU" in node.device.upper():
        return "the interaction is on a GPU, and it has no GPU kernel yet"
    lower = np.tril(np.ones([fields] * 2, bool))
    self_interaction = bool(kept.mask.diagonal().all())
    if not self_interaction:
        lower &= ~np.eye(fields, dtype=bool)
    if (kept.mask != lower).any():
        return "it keeps other products than those below the diagonal"
    if kept.last.device != node.device:
        return "it is spread over devices"
    grad = _find_grad(view, node, joined, kept, fields * dim)
    replaced = [kept.last, *([grad.last] if grad else [])]
    dead = dead_with(view, replaced)
    if node.name not in dead and grad:
        # Perhaps there is another reader of the products and their gradient.
        return "its products are read by others, too"
    if node.name not in dead:
        return "its products, or their shape, are read by others, too"
    controls = _controls(view, dead, kept.last)
    if grad:
        grad = dataclasses.replace(grad, controls=_controls(view, dead, grad.last))
    return DotInteraction(
        *(node, kept.last, node.attr("T"), source, fields, dim),
        *(self_interaction, kept.full, controls, grad),
    )


def _controls(view: GraphView, dead: set[str], last: Node):
    """What `last`, and what is needed for it alone, wait for, other than each other."""
    controls: set[str] = set()
    seen: set[str] = set()
    pending = [last.name]
    while pending:
        name = pending.pop()
        if name in seen or name not in dead:
            continue
        seen.add(name)
        node = view.nodes[name]
        controls.update(c for c in node.controls if c not in dead)
        pending.extend(source for source, _ in node.inputs)
        pending.extend(c for c in node.controls if c in dead)
    return tuple(sorted(controls))


def _is_masked(view: GraphView, node: Node) -> bool:
    """Whether a band of the products is looked at: else they are no interaction, but
    attention, or a Gram matrix."""
    pending, seen = [(node.name, 0)], set()
    while pending:
        tensor = pending.pop()
        for reader, _ in view.consumers(tensor):
            if reader.op == "MatrixBandPart":
                return True
            if reader.op in ("OnesLike", "Shape", "Fill") and reader.name not in seen:
                seen.add(reader.name)
                pending.append((reader.name, 0))
    return False


# -- the fields -------------------------------------------------------------


def _find_fields(view: GraphView, joined: Tensor):
    """(tensor, number, size) of the fields in [batch, fields, dim]; or a reason."""
    shape = view.shape(joined)
    node = view.producer(joined)
    whole = _whole(joined, shape)
    if node is None or whole:
        if node is not None and node.op == "Reshape":
            return _reshaped(view, node) or whole
        return whole or _UNKNOWN
    if node.op == "Reshape":
        return _reshaped(view, node) or _UNKNOWN
    if node.op == "Pack" and node.attr("axis", 0) in (1, -2):
        known = {view.shape(each) for each in node.inputs} - {None}
        dims = {each[1] for each in known if len(each) == 2} - {None}
        if len(dims) == 1 and all(len(each) == 2 for each in known):
            return joined, len(node.inputs), dims.pop()
    return _UNKNOWN


def _reshaped(view: GraphView, node: Node):
    """Of what is [batch, fields * dim] in front of a Reshape."""
    source = node.inputs[0]
    sizes = _sizes(view, node.inputs[1])
    of = view.shape(source)
    if sizes is None or len(sizes) != 3 or of is None or len(of) != 2:
        return None
    dim, width = sizes[2], of[1]
    if dim is None and sizes[1] and width:
        dim = width // sizes[1]
    if not dim or not width or width % dim or sizes[1] not in (None, width // dim):
        return None
    return source, width // dim, dim


def _whole(joined: Tensor, shape):
    if shape is None or len(shape) != 3 or not shape[1] or not shape[2]:
        return None
    return joined, shape[1], shape[2]


def _sizes(view: GraphView, tensor: Tensor) -> list[int | None] | None:
    """The elements of a shape, as far as they are known."""
    constant = view.constant_ints(tensor)
    if constant is not None:
        return [None if size < 0 else size for size in constant]
    node = view.producer(view.skip(tensor, FORWARDING))
    if node is None or node.op != "Pack":
        return None
    sizes = [_size(view, each) for each in node.inputs]
    return [None if size is None or size < 0 else size for size in sizes]


def _size(view: GraphView, tensor: Tensor) -> int | None:
    """The value of a scalar: a constant, or a dimension that is known."""
    known = view.constant_int(tensor)
    node = view.producer(view.skip(tensor, FORWARDING))
    if known is not None or node is None or node.op != "StridedSlice":
        return known
    at = view.constant_int(node.inputs[1])
    shape = view.producer(node.inputs[0])
    if at is None or node.attr("shrink_axis_mask", 0) != 1 or shape is None:
        return None
    if shape.op == "Const":
        return view.constant_ints(node.inputs[0])[at]
    of = view.shape(shape.inputs[0]) if shape.op == "Shape" else None
    return of[at] if of is not None and -len(of) <= at < len(of) else None


# -- what is kept -----------------------------------------------------------


def _find_kept(view: GraphView, node: Node, fields: int) -> _Kept | str:
    product = (node.name, 0)
    for reader, position in view.consumers(product):
        if reader.name in view.feeds:
            continue
        if reader.op == "Reshape" and position == 0:
            kept = _find_gathered(view, reader, product, fields)
        elif reader.op in _SELECTS and position:
            kept = _find_selected(view, reader, position, product, fields)
        else:
            continue
        if kept is not None:
            return kept
    return "how it keeps a part of the products is not known"


def _find_gathered(view: GraphView, flat: Node, product: Tensor, fields: int):
    """Flattened products, of which the indices of a mask are gathered."""
    gather = _only_reader(view, flat, "GatherV2")
    if gather is None or gather.inputs[0] != (flat.name, 0):
        return None
    axis = view.constant_int(gather.inputs[2])
    if axis not in (0, 1) or gather.attr("batch_dims", 0):
        return None
    indices = view.skip(gather.inputs[1], FORWARDING)
    node = view.producer(indices)
    while node is not None and node.op in ("Squeeze", "Reshape"):
        node = view.producer(view.skip(node.inputs[0], FORWARDING))
    if node is None or node.op != "Where":
        return None
    of = view.producer(view.skip(node.inputs[0], FORWARDING))
    if of is None or of.op != "Reshape" or view.constant_ints(of.inputs[1]) != [-1]:
        return None
    mask = find_mask(view, of.inputs[0], product, fields)
    if mask is None or mask.value.ndim != 2 or mask.batched != (axis == 0):
        return None
    kept = mask.value != 0
    last = gather
    if axis == 0 or _only_reader(view, gather, "Reshape"):
        last = _rows(view, gather, int(kept.sum()))
    return last and _Kept(last, indices, kept, False)


def _find_selected(
    view: GraphView, select: Node, position: int, product: Tensor, fields: int
):
    """Products, or zeros, as a mask says."""
    mask = find_mask(view, select.inputs[0], product, fields)
    zeros = find_mask(view, select.inputs[3 - position], product, fields)
    if mask is None or zeros is None or zeros.value.any() or mask.value.ndim != 2:
        return None
    kept = mask.value != 0 if position == 1 else mask.value == 0
    last = _rows(view, select, fields * fields)
    condition = view.skip(select.inputs[0], FORWARDING)
    return last and _Kept(last, condition, kept, True, position)


def _only_reader(view: GraphView, node: Node, op: str) -> Node | None:
    """The one node of a type that reads a node's values; None if there are others."""
    readers = [
        reader
        for reader, _ in view.consumers((node.name, 0))
        if reader.op not in _SHAPE_ONLY
    ]
    if len(readers) != 1 or readers[0].op != op or readers[0].name in view.feeds:
        return None
    return readers[0]


def _rows(view: GraphView, node: Node, width: int) -> Node | None:
    """The Reshape of a node's values to rows, one an example."""
    rows = _only_reader(view, node, "Reshape")
    if rows is None or rows.inputs[0] != (node.name, 0):
        return None
    sizes = _sizes(view, rows.inputs[1])
    return rows if sizes is not None and sizes[1:] == [width] else None


# -- the gradient -----------------------------------------------------------


def _find_grad(view: GraphView, node: Node, joined: Tensor, kept: _Kept, width: int):
    """The gradient of the fields; None if there is none, or it is not known."""
    pairs: dict[Tensor, dict[bool, Node]] = {}
    for name in _aliases(view, joined):
        for reader, position in view.consumers(name):
            if reader.op != node.op or reader.name == node.name or position != 1:
                continue
            if reader.attr("adj_y", False) or reader.device != node.device:
                continue
            grad = view.skip(reader.inputs[0], FORWARDING)
            pairs.setdefault(grad, {})[reader.attr("adj_x", False)] = reader
    for grad, products in pairs.items():
        if len(products) != 2:
            continue
        source = _of_kept(view, node, grad, kept)
        total = _sum_of(view, joined, products[False], products[True])
        if source is None or total is None:
            continue
        flat = _only_reader(view, total, "Reshape")
        if (
            flat is not None
            and flat.device == node.device
            and _makes_rows(view, flat, joined, width)
        ):
            return DotGrad(source, flat, True, ())
        return DotGrad(source, total, False, ())
    return None


def _aliases(view: GraphView, tensor: Tensor) -> list[Tensor]:
    """The tensor, and those that pass it on."""
    found = [tensor]
    for each in found:  # grows on the way
        for reader, position in view.consumers(each):
            if reader.op in FORWARDING and position == 0:
                found.append((reader.name, 0))
    return found


def _of_kept(view: GraphView, node: Node, grad: Tensor, kept: _Kept) -> Tensor | None:
    """What is handed back to the kept products, in their order."""
    if kept.full:
        made = _before(view, grad, ("Reshape", "Sum"))
        select = view.producer(made)
        if select is None or select.op not in _SELECTS:
            return None
        if view.skip(select.inputs[0], FORWARDING) != kept.chosen:
            return None
        own, other = select.inputs[kept.place], select.inputs[3 - kept.place]
        return _before(view, own, ("Reshape",)) if _is_zero(view, other) else None
    made = _before(view, grad, ("Reshape",))
    spread = view.producer(made)
    if spread is None or spread.op != "UnsortedSegmentSum":
        return None
    indices = _before(view, spread.inputs[1], ("Reshape", "Squeeze"))
    if indices != _before(view, kept.chosen, ("Reshape", "Squeeze")):
        return None
    return _before(view, spread.inputs[0], ("Reshape",))


def _before(view: GraphView, tensor: Tensor, ops) -> Tensor:
    """The tensor before ops that leave its values as they are. A Sum is one, if its
    axes are those along which equal shapes are broadcast: none."""
    while True:
        node = view.producer(tensor)
        if node is None or node.op not in (*ops, *FORWARDING):
            return tensor
        if node.op == "Sum" and not _sums_nothing(view, node):
            return tensor
        tensor = node.inputs[0]


def _sums_nothing(view: GraphView, node: Node) -> bool:
    axes = view.producer(node.inputs[1])
    return axes is not None and axes.op == "BroadcastGradientArgs"


def _is_zero(view: GraphView, tensor: Tensor) -> bool:
    value = view.constant(tensor)
    if value is not None:
        return not value.any()
    node = view.producer(view.skip(tensor, FORWARDING))
    return node is not None and node.op == "ZerosLike"


def _sum_of(view: GraphView, joined: Tensor, first: Node, second: Node) -> Node | None:
    """The sum of nothing but both products."""
    total = _added(view, first)
    if total is None or total is not _added(view, second):
        return None
    if len(total.inputs) != 2 or total.device != first.device:
        return None
    return total


def _added(view: GraphView, node: Node) -> Node | None:
    while True:
        readers = [
            reader
            for reader, _ in view.consumers((node.name, 0))
            if reader.op not in _SHAPE_ONLY
        ]
        if len(readers) != 1 or readers[0].name in view.feeds:
            return None
        reader = readers[0]
        if reader.op in ("AddN", "AddV2"):
            return reader
        if reader.op == "Sum" and not _sums_nothing(view, reader):
            return None
        if reader.op not in ("Sum", "Reshape", *FORWARDING):
            return None
        node = reader


def _makes_rows(view: GraphView, reshape: Node, joined: Tensor, width: int) -> bool:
    """Whether it gives the gradient the shape that the fields had before they were
    a Reshape: [batch, width]."""
    source = view.producer(joined)
    if source is None or source.op != "Reshape":
        return False
    of = view.shape(source.inputs[0])
    if of is None or len(of) != 2 or of[1] != width:
        return False
    sizes = _sizes(view, reshape.inputs[1])
    if sizes is not None:
        return len(sizes) == 2 and sizes[1] == of[1]
    shape = view.producer(reshape.inputs[1])
    return (
        shape is not None
        and shape.op == "Shape"
        and (shape.inputs[0] == source.inputs[0])
    )
