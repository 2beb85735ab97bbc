"""What is known of shapes without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from picasso_tf.columns import column_slice, is_column
from picasso_tf.node import FORWARDING, Node, Shape, Tensor

if TYPE_CHECKING:
    from picasso_tf.graph import GraphView

_SAME_SHAPE = FORWARDING | {
    *("Cast", "Neg", "ZerosLike", "OnesLike", "Relu", "Enter", "Switch"),
    *("Sqrt", "Rsqrt", "Square", "Exp", "Log", "Abs", "Sign", "LogicalNot"),
    *("BiasAdd", "Tanh", "Sigmoid", "Relu6", "Elu", "Selu", "LeakyRelu", "Softplus"),
}
# What passes on the sizes that a vector holds.
_MOVED_SIZES = FORWARDING | {"Cast"}
_ELEMENTWISE = frozenset(
    {
        *("Mul", "RealDiv", "DivNoNan", "AddV2", "Sub", "Pow", "Minimum", "Maximum"),
        *("Less", "Greater", "SelectV2", "LogicalOr", "LogicalAnd"),
    }
)
_POOLED_GRADIENTS = frozenset(
    f"SparseSegment{combiner}Grad{version}"
    for combiner in ("Sum", "Mean", "SqrtN")
    for version in ("", "V2")
)
_REDUCTIONS = frozenset({"Sum", "Mean", "Prod", "Max", "Min", "Any", "All"})
# Its shape; else (table's number >= 0) the inputs that are its table and its ids.
_Output = tuple[Shape | None, int, int]
_UNKNOWN: _Output = (None, -1, -1)


def infer_shape(view: GraphView, tensor: Tensor) -> Shape | None:
    """What is known of a tensor's shape without running anything. Asks the view for
    other shapes, which infers each once: see `GraphView.shape`."""
    node = view.nodes.get(tensor[0])
    if node is None:
        return None
    port = tensor[1]
    shapes = view.once(_declared_shapes, node)
    if shapes is not None:
        return shapes[port] if port < len(shapes) else None
    op = node.op
    if op in ("Placeholder", "PlaceholderWithDefault"):
        return node.attr("shape")
    if node.name in view.feeds or not node.inputs:
        if op == "Const":
            dims = node._def.attr["value"].tensor.tensor_shape.dim
            return tuple(dim.size for dim in dims)
        return None
    first = node.inputs[0]
    if op in _SAME_SHAPE:
        return view.shape(first)
    if op == "ReadVariableOp":
        return view.table(first).shape
    if op == "ResourceGather":
        ids, table = view.shape(node.inputs[1]), view.table(first).shape
        if ids is None or table is None or node.attr("batch_dims", 0) != 0:
            return None
        return ids + table[1:]
    if op in (
        "SparseSegmentSum",
        "SparseSegmentMean",
        "SparseSegmentSqrtN",
        "SegmentSum",
    ):
        rows = view.shape(first)
        return None if rows is None else (None, *rows[1:])
    if op == "UnsortedSegmentSum":
        rows, ids = view.shape(first), view.shape(node.inputs[1])
        if rows is None or ids is None:
            return None
        return (view.constant_int(node.inputs[2]), *rows[len(ids) :])
    if op in _POOLED_GRADIENTS:
        rows = view.shape(first)
        if port == 1:
            return (None,)
        return None if rows is None else (None, *rows[1:])
    if op in ("Size", "Rank"):
        return ()
    if op == "Unique":
        return (None,)
    if op == "Select":  # both have its shape
        known = map(view.shape, node.inputs[:0:-1])
        return next((shape for shape in known if shape is not None), None)
    if op in _REDUCTIONS:
        return _reduced(view, node)
    if op == "Merge" and tensor[1] == 0:
        return _common([view.shape(each) for each in node.inputs])
    if op == "Where":
        of = view.shape(first)
        return None if of is None else (None, len(of))
    if op in ("Fill", "ScatterNd"):
        return shape_value(view, first if op == "Fill" else node.inputs[2])
    if op in ("Pack", "ConcatV2"):
        return _joined(view, node)
    if op == "MatMul":
        return _product(view, node)
    if op in ("Shape", "VariableShape"):
        of = view.shape(first) if op == "Shape" else view.table(first).shape
        return None if of is None else (len(of),)
    if op == "GatherV2":
        ids, table = view.shape(node.inputs[1]), view.shape(first)
        if ids is None or table is None or node.attr("batch_dims", 0) != 0:
            return None
        return ids + table[1:] if view.constant_int(node.inputs[2]) == 0 else None
    if op == "PicassoPackedLookup":
        return _of_packed_lookup(view, node, port)
    if op == "Reshape":
        return _reshaped(view, first, node.inputs[1])
    if op in ("ExpandDims", "Squeeze", "Split", "Unpack", "StridedSlice"):
        shape = view.shape(first if op != "Split" else node.inputs[1])
        return None if shape is None else _resized(view, node, shape)
    if op in _ELEMENTWISE:
        shape = _broadcast([view.shape(operand) for operand in node.inputs])
        return _times_column(view, node) if shape is None else shape
    return None


def _reduced(view: GraphView, node: Node) -> Shape | None:
    """Of a sum and its like over axes that are known."""
    shape, axes = view.shape(node.inputs[0]), view.constant_ints(node.inputs[1])
    if not shape or axes is None:
        return shape if shape == () else None
    gone = {axis % len(shape) for axis in axes}
    if node.attr("keep_dims", False):
        return tuple(1 if i in gone else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in gone)


def _product(view: GraphView, node: Node) -> Shape | None:
    """Of the product of two matrices."""
    rows, columns = map(view.shape, node.inputs[:2])
    if rows is None or columns is None or len(rows) != 2 or len(columns) != 2:
        return None
    return (
        rows[int(node.attr("transpose_a", False))],
        columns[int(not node.attr("transpose_b", False))],
    )


def _times_column(view: GraphView, node: Node) -> Shape | None:
    """Of a matrix times or by a column, if all else is not known."""
    if node.op in ("Mul", "DivNoNan"):
        for rows, column in (node.inputs, node.inputs[::-1]):
            shape = view.shape(rows)
            if shape is not None and len(shape) == 2 and is_column(view, column):
                return (None, shape[1])
    return None


def _of_packed_lookup(view: GraphView, node: Node, port: int) -> Shape | None:
    """Of an output that one lookup has for itself."""
    outputs = view.once(_outputs_of_lookups, node)
    declared, table, ids = outputs[port] if port < len(outputs) else _UNKNOWN
    if table < 0:
        return declared
    ids = view.shape(node.inputs[ids])
    rows = view.table(node.inputs[table]).shape
    return None if ids is None or rows is None else ids + rows[1:]


def _reshaped(view: GraphView, data: Tensor, shape: Tensor) -> Shape | None:
    dims = view.constant_ints(shape)
    if dims is None:
        return shape_value(view, shape)
    if -1 in dims:
        known = view.shape(data)
        if known is not None and None not in known:
            elements = 1
            for size in known:
                elements *= size
            for size in dims:
                elements = elements // size if size > 0 else elements
            dims = [elements if size == -1 else size for size in dims]
    return tuple(size if size >= 0 else None for size in dims)


def shape_value(view: GraphView, tensor: Tensor) -> Shape | None:
    """What is known of the shape that a vector holds, such as that of
    tf.stack([batch, 8]) or tf.concat([shape[:1], [8]], 0)."""
    source = view.skip(tensor, _MOVED_SIZES)
    node = view.producer(source)
    if node is None:
        return None
    if node.op == "Const":
        return _sizes(view.constant_ints(source))
    if node.op in ("Shape", "ShapeN"):
        return view.shape(node.inputs[source[1]])
    if node.op == "Pack":
        return _sizes([view.constant_int(item) for item in node.inputs])
    if node.op == "ConcatV2":
        parts = [shape_value(view, part) for part in node.inputs[:-1]]
        return None if None in parts else sum(parts, ())
    if node.op == "Slice":
        begin, size = (view.constant_ints(edge) for edge in node.inputs[1:])
        if begin is None or size is None or len(begin) != 1:
            return None
        known = shape_value(view, node.inputs[0])
        if known is None:
            return (None,) * size[0] if size[0] >= 0 else None
        return known[begin[0] :][: size[0] if size[0] >= 0 else None]
    rank = view.shape(tensor)
    known = rank is not None and len(rank) == 1 and rank[0] is not None
    return (None,) * rank[0] if known else None


def _joined(view: GraphView, node: Node) -> Shape | None:
    """Of scalars that are stacked, and of tensors that are concatenated."""
    if node.op == "Pack":
        scalars = all(view.shape(part) == () for part in node.inputs)
        return (len(node.inputs),) if scalars else None
    shapes = [view.shape(part) for part in node.inputs[:-1]]
    axis, common = view.constant_int(node.inputs[-1]), _common(shapes)
    if axis is None or common is None or not -len(common) <= axis < len(common):
        return None
    axis %= len(common)
    sizes = [shape[axis] for shape in shapes]
    joined = None if None in sizes else sum(sizes)
    return (*common[:axis], joined, *common[axis + 1 :])


def _cut_vector(view: GraphView, node: Node, size: int | None) -> Shape | None:
    """Of x[a:b:c] of a vector, or of x[a]."""
    if node.attr("shrink_axis_mask", 0) == 1:
        return ()
    edges = [view.constant_int(edge) for edge in node.inputs[1:]]
    if node.attr("new_axis_mask", 0) or node.attr("ellipsis_mask", 0):
        return None
    if None in (size, *edges) or edges[2] == 0:
        return (None,)
    begin = None if node.attr("begin_mask", 0) & 1 else edges[0]
    end = None if node.attr("end_mask", 0) & 1 else edges[1]
    return (len(range(size)[begin : end : edges[2]]),)


def _resized(view: GraphView, node: Node, shape: Shape) -> Shape | None:
    if node.op == "ExpandDims":
        axis = view.constant_int(node.inputs[1])
        if axis is None:
            return None
        axis = axis if axis >= 0 else axis + len(shape) + 1
        return (*shape[:axis], 1, *shape[axis:])
    if node.op == "Squeeze":
        axes = node.attr("squeeze_dims") or []
        if not axes:
            if None in shape:
                return None
            return tuple(size for size in shape if size != 1)
        drop = {axis % len(shape) for axis in axes}
        return tuple(size for axis, size in enumerate(shape) if axis not in drop)
    if node.op == "Unpack":
        axis = node.attr("axis", 0) % len(shape)
        return shape[:axis] + shape[axis + 1 :]
    if node.op == "Split":
        axis = view.constant_int(node.inputs[0])
        if axis is None:
            return None
        axis %= len(shape)
        size = shape[axis]
        part = None if size is None else size // node.attr("num_split", 1)
        return (*shape[:axis], part, *shape[axis + 1 :])
    if len(shape) == 1:
        return _cut_vector(view, node, shape[0])
    columns = column_slice(view, node)
    if columns is None:
        return None
    _, width, squeezed = columns
    return shape[:1] if squeezed else (shape[0], width)


def _declared_shapes(_: GraphView, node: Node) -> list[Shape | None] | None:
    """Of all outputs, if the node says them: an iterator may have thousands."""
    for key in ("_output_shapes", "output_shapes"):
        shapes = node.attr(key)
        if shapes is not None:
            return shapes
    return None


def _outputs_of_lookups(_: GraphView, node: Node) -> list[_Output]:
    """Of each output of a packed lookup."""
    shapes, tables = node.attr("member_shape"), node.attr("member_table")
    sources, bags = node.attr("ids_source"), node.attr("bag_rows", [])
    count, stacked = node.attr("N"), node.attr("output_stack")
    outputs, member = [], 0
    for members, stack in zip(node.attr("output_members"), stacked, strict=True):
        output = _UNKNOWN
        if members == 1 and not stack:
            declared, table = shapes[member], tables[member]
            pooled = bool(bags) and bags[member] >= 0
            if declared is not None or table < 0 or pooled:
                output = (declared, -1, -1)
            else:
                output = (None, table, count + sources[member])
        outputs.append(output)
        member += members
    return outputs


def _sizes(values: Sequence[int | None]) -> Shape:
    return tuple(size if size is None or size >= 0 else None for size in values)


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Of an elementwise op on operands of these shapes."""
    if None in shapes:
        return None
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        known = wide - {None}
        # A size that is not known is one, or that of the others.
        result.append(next(iter(known)) if known else None if wide else 1)
    return tuple(result)


def _common(shapes: Sequence[Shape | None]) -> Shape | None:
    """What is known of a tensor that has one of these shapes."""
    if None in shapes or len(set(map(len, shapes))) != 1:
        return None
    return tuple(
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*shapes, strict=True)
    )
