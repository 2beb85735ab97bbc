"""Small kernels of bags that no packed lookup took over, as those with clipped rows:
what prepares their ids, and their pooling.

The latter sums floats: it is packed where nothing rearranges the graph any more.
"""

from __future__ import annotations

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.bag import POOL_GRAD_OPS, POOL_OPS, indices_of, unshaped
from picasso_tf.fragments.kernels import Kernel
from picasso_tf.fragments.weighted_bag import (
    narrowed,
    narrows,
    on_axis_0,
    products,
    quotient,
    undivided,
    unreduced,
    widens,
)
from picasso_tf.graph import GraphView, Node, Tensor

# Beyond these, the packed ops have no kernel.
FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")
_NUMBERS = ("int32", "int64", *FLOAT_TYPES)
_FILLED = ("string", *_NUMBERS)
_COMPARISONS = {"Greater": ">", "GreaterEqual": ">="}


def _alone(node: Node, inputs, outputs: int, agree, each=()) -> Kernel:
    """A kernel that is one op."""
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=tuple(inputs),
        outputs=tuple(((node.name, port),) for port in range(outputs)),
        agree=tuple(agree),
        each=tuple(each),
        controls=frozenset(node.controls),
    )


def match_unique(view: GraphView, node: Node) -> Kernel | str | None:
    """Unique of integers."""
    dtype = node.attr("T")
    if dtype.name not in ("int32", "int64"):
        return f"type {dtype.name} is not packed"
    agree = (("T", dtype), ("out_idx", node.attr("out_idx", dtypes.int32)))
    return _alone(node, node.inputs, 2, agree)


def match_fill_empty_rows(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseFillEmptyRows."""
    dtype = node.attr("T")
    if dtype.name not in _FILLED:
        return f"type {dtype.name} is not packed"
    return _alone(node, node.inputs, 4, (("T", dtype),))


def match_keep(view: GraphView, where: Node) -> Kernel | str | None:
    """Those elements of tensors at whose place a test holds: a filter of ids.

    GatherV2(x, Reshape(Where(test), [-1])) of any number of tensors; the test may
    compare a vector with a scalar.

    Returns:
      The kernel; a reason why it cannot be packed; None: something else.
    """
    readers = [reader for reader, _ in view.consumers((where.name, 0))]
    if not readers or any(
        reader.op != "Reshape" or view.constant_ints(reader.inputs[1]) != [-1]
        for reader in readers
    ):
        return None
    gathers = [
        (gather, position)
        for reader in readers
        for gather, position in view.consumers((reader.name, 0))
    ]
    if not any(_takes_rows(view, *each) for each in gathers):
        return None
    if not all(_takes_rows(view, *each) for each in gathers):
        return "others read the places that it keeps"
    nodes = sorted((gather for gather, _ in gathers), key=lambda node: node.index)
    between = (where, *readers)
    for node in (*between, *nodes):
        if node.device != where.device or node.name in view.feeds:
            return "a part of it is fed, or on another device"
        if view.serves(node.name) != view.serves(where.name):
            return "a part of it is not always run"
        if view.guard(node.name) != view.guard(where.name):
            return "a part of it is in another branch"
        if view.frame(node.name) != view.frame(where.name):
            return "a part of it is in another loop"
    if any(node.name in view.preserve for node in between):
        return "a part of it is fetched"
    types = {node.attr("Tparams") for node in nodes}
    if any(dtype.name not in _NUMBERS for dtype in types):
        return "it is of a type that is not packed"
    tested, bounds, comparison, waits = _test(view, where)
    tensors: dict[Tensor, list[Node]] = {}
    for node in nodes:
        tensors.setdefault(node.inputs[0], []).append(node)
    controls = {name for node in (*between, *nodes) for name in node.controls} | waits
    replaced = {node.name for node in nodes}
    return Kernel(
        node=nodes[0],
        replaced=tuple(nodes),
        inputs=(tested, *bounds, *tensors),
        outputs=tuple(
            tuple((node.name, 0) for node in same) for same in tensors.values()
        ),
        agree=(
            ("Ttested", view.dtype(tested)),
            ("T", tuple(same[0].attr("Tparams") for same in tensors.values())),
            ("comparison", comparison),
        ),
        each=(),
        controls=frozenset(controls - replaced),
    )


def _takes_rows(view: GraphView, node: Node, position: int) -> bool:
    """Whether a node takes those rows of a tensor that its input number `position`
    names."""
    return (
        node.op == "GatherV2"
        and position == 1
        and view.constant_int(node.inputs[2]) == 0
        and node.attr("batch_dims", 0) == 0
    )


def _test(view: GraphView, where: Node):
    """(what is tested, bounds, comparison, what is waited for)."""
    mask = where.inputs[0]
    node = view.producer(mask)
    if (
        node is not None
        and node.op in _COMPARISONS
        and node.device == where.device
        and node.name not in view.preserve
        and node.attr("T").name in _NUMBERS
        and view.shape(node.inputs[1]) == ()
    ):
        tested, bound = node.inputs
        return tested, (bound,), _COMPARISONS[node.op], set(node.controls)
    return mask, (), "", set()


def _segments(view: GraphView, segments: Tensor, device: str):
    """(where the bags of rows are, its type): a vector, or the indices whose first
    column it is."""
    indices = indices_of(view, segments, device)
    if indices is not None and view.dtype(indices) in (dtypes.int32, dtypes.int64):
        return indices, view.dtype(indices)
    return segments, view.dtype(segments)


def match_pool(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseSegmentSum, ...Mean or ...SqrtN."""
    dtype = node.attr("T")
    if dtype.name not in FLOAT_TYPES:
        return f"type {dtype.name} is not packed"
    segments, segments_type = _segments(view, node.inputs[2], node.device)
    agree = (
        ("T", dtype),
        ("Tidx", node.attr("Tidx", dtypes.int32)),
        ("Tsegmentids", segments_type),
    )
    inputs = (*node.inputs[:2], segments)
    return _alone(node, inputs, 1, agree, (POOL_OPS[node.op],))


def match_pool_grad(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseSegmentSumGrad, ...MeanGrad or ...SqrtNGrad."""
    dtype = node.attr("T")
    if dtype.name not in FLOAT_TYPES:
        return f"type {dtype.name} is not packed"
    segments, segments_type = _segments(view, node.inputs[2], node.device)
    rows = _counted(view, node.inputs[3], node.device)
    counts = node.inputs[3] if rows is None else rows
    agree = (
        ("T", dtype),
        ("Tidx", node.attr("Tidx", dtypes.int32)),
        ("Tsegmentids", segments_type),
        ("Tcounts", view.dtype(counts)),
        ("by_shape", rows is not None),
    )
    inputs = (*node.inputs[:2], segments, counts)
    return _alone(node, inputs, 1, agree, (POOL_GRAD_OPS[node.op],))


def _counted(view: GraphView, count: Tensor, device: str) -> Tensor | None:
    """The tensor whose rows are counted: Shape(x)[0], perhaps cast in between; None:
    something else."""
    node = view.movable(count, device)
    if node is None or node.op != "StridedSlice":
        return None
    bounds = [view.constant_ints(edge) for edge in node.inputs[1:4]]
    masks = [
        node.attr(f"{name}_mask", 0)
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    ]
    if bounds != [[0], [1], [1]] or masks[1:] != [0, 0, 0, 1]:
        return None
    shape = view.movable(node.inputs[0], device)
    if shape is not None and shape.op == "Cast":
        shape = view.movable(shape.inputs[0], device)
    if shape is None or shape.op != "Shape":
        return None
    rows = shape.inputs[0]
    return None if view.dtype(rows) is None else rows


def match_weighted_pool(view: GraphView, total: Node) -> Kernel | str | None:
    """The weighted sum of rows by bag, and its quotient; see weighted_bag.py."""
    device = total.device
    mul = view.movable(total.inputs[0], device, bookkeeping=False)
    if mul is None or mul.op != "Mul":
        return None
    for product in products(view, mul, device):
        chain, gathered = [mul, total], view.movable(product.other, device)
        cast = gathered is not None and widens(gathered)
        if cast:
            chain.insert(0, gathered)
            gathered = view.movable(gathered.inputs[0], device)
        if gathered is None or gathered.op != "GatherV2":
            continue
        dtype = gathered.attr("Tparams")
        if not on_axis_0(view, gathered) or dtype.name not in FLOAT_TYPES:
            continue
        root, combiner = total, "sum"
        divided, kind = None, ""
        if total.name not in view.preserve:
            divided, kind = quotient(view, total, product.matrix, total.inputs[1])
        if divided is not None:
            root, combiner = divided, kind
            chain.append(divided)
        if cast:
            root = narrowed(view, root, dtype)
            if root is None:
                return "its pooled rows are read before they are cast back"
            chain.append(root)
        inner = gathered
        for reader in chain:
            if not _read_by(view, inner, reader):
                return (
                    "its rows are read before they are pooled, perhaps by the "
                    "gradient of the weights"
                )
            inner = reader
        segments, segments_type = _segments(view, total.inputs[1], device)
        return Kernel(
            node=root,
            replaced=(root,),
            inputs=(*gathered.inputs[:2], segments, product.weights.tensor),
            outputs=(((root.name, 0),),),
            agree=(
                ("T", dtype),
                ("Tidx", gathered.attr("Tindices")),
                ("Tsegmentids", segments_type),
                ("Tweights", product.weights.dtype),
            ),
            each=(combiner,),
            controls=frozenset((*root.controls, *total.controls)),
        )
    return None


def _read_by(view: GraphView, node: Node, reader: Node) -> bool:
    """Whether it alone reads a node, apart from its shape."""
    return node.name not in view.preserve and all(
        other is reader or other.op == "Shape"
        for other, _ in view.consumers((node.name, 0))
    )


def match_weighted_pool_grad(view: GraphView, total: Node) -> Kernel | str | None:
    """The gradient of weighted bags, summed by row; see weighted_bag.py."""
    device, dtype = total.device, total.attr("T")
    if dtype.name not in FLOAT_TYPES:
        return None
    barriers: list[str] = []
    rows = unreduced(view, total.inputs[0], device, barriers)
    # Either factor may be the gradient, and that may be held back.
    mul = view.movable(rows, device, bookkeeping=False)
    half = mul is not None and narrows(mul)
    if half:
        rows = unreduced(view, mul.inputs[0], device, barriers)
        mul = view.movable(rows, device, bookkeeping=False)
    if mul is None or mul.op != "Mul":
        return None
    for product in products(view, mul, device):
        spread = view.movable(product.other, device)
        if spread is None or spread.op != "GatherV2" or not on_axis_0(view, spread):
            continue
        grad, combiner = undivided(
            view, spread.inputs[0], product.matrix, spread.inputs[1], device, barriers
        )
        if half:
            grad = unreduced(view, grad, device, barriers)
            widened = view.movable(grad, device)
            if widened is None or not widens(widened):
                return "its gradient is not of the type of its rows"
            grad = widened.inputs[0]
        positions = unshaped(view, total.inputs[1], device)
        segments, segments_type = _segments(view, spread.inputs[1], device)
        counted = _counted(view, total.inputs[2], device)
        counts = total.inputs[2] if counted is None else counted
        if counted is None and view.dtype(counts) != dtypes.int32:
            return "the number of its rows is of another type"
        return Kernel(
            node=total,
            replaced=(total,),
            inputs=(grad, positions, segments, counts, product.weights.tensor),
            outputs=(((total.name, 0),),),
            agree=(
                ("T", dtype),
                ("Tidx", view.dtype(positions)),
                ("Tsegmentids", segments_type),
                ("Tweights", product.weights.dtype),
                ("Tcounts", view.dtype(counts)),
                ("by_shape", counted is not None),
            ),
            each=(combiner,),
            controls=frozenset((*total.controls, *barriers)),
        )
    return None
