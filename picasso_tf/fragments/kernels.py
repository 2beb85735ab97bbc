"""Small kernels that prepare ids, each an op or a short chain of ops.

All of them move integers and strings, or count; none computes with floats that
are rounded, so what they give does not depend on what TensorFlow's optimizers make
of the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from tensorflow.python.framework import dtypes

from picasso_tf.graph import GraphView
from picasso_tf.node import FORWARDING, Node, Tensor

# Beyond these, the packed op has no kernel.
_SPARSE_TYPES = ("string", "int32", "int64", "float32", "float64")
_BUCKET_TYPES = ("int32", "int64", "float32", "float64")
_ID_TYPES = ("int32", "int64")
# Of which sums of ones are exact, up to 2**24.
_ONE_TYPES = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One small kernel.

    Attributes:
      node: stands for it: device, guard, frame, and the name in reports.
      replaced: the nodes that a pack does the work of; `node` is one of them.
      inputs: what the pack reads, a tensor per input list.
      outputs: per output list of the pack, the tensors that it provides.
      agree: attributes of the pack in which members agree, and their values.
      each: attributes of which each member has its own.
      controls: what the replaced nodes, and those between them, wait for.
      absorbed: further nodes that nobody needs once the kernel is packed.
    """

    node: Node
    replaced: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[tuple[Tensor, ...], ...]
    agree: tuple[tuple[str, Any], ...]
    each: tuple[Any, ...]
    controls: frozenset[str]
    absorbed: tuple[str, ...] = ()


class _Chain:
    """Walks from a node against its edges; gathers what is waited for."""

    def __init__(self, view: GraphView, node: Node):
        self._view = view
        self._device = node.device
        self.controls: set[str] = set(node.controls)

    def op(self, tensor: Tensor, *op_types: str) -> Node | None:
        """The node behind a tensor, if it is of a type, on the same device, and
        nobody may fetch or feed it."""
        node = self._view.producer(tensor)
        if (
            node is None
            or node.op not in op_types
            or node.device != self._device
            or node.name in self._view.preserve
        ):
            return None
        self.controls.update(node.controls)
        return node

    def producer(self, tensor: Tensor) -> Node | None:
        return self._view.producer(tensor)

    def constant(self, tensor: Tensor) -> np.ndarray | None:
        """The value of a constant, perhaps of another type at first."""
        casts = []
        while True:
            node = self._view.producer(tensor)
            if node is None or node.name in self._view.preserve:
                return None
            self.controls.update(node.controls)
            if node.op == "Const":
                value = self._view.constant(tensor)
                for dtype in reversed(casts):
                    value = value.astype(dtype.as_numpy_dtype)
                return value
            if node.op == "Cast":
                source, target = node.attr("SrcT"), node.attr("DstT")
                if source.is_bool or (source.is_floating and not target.is_floating):
                    return None
                casts.append(target)
            elif node.op not in FORWARDING:
                return None
            tensor = node.inputs[0]

    def integer(self, tensor: Tensor) -> int | None:
        """The value of an integer scalar."""
        value = self.constant(tensor)
        if value is None or value.shape != () or value.dtype.kind != "i":
            return None
        return int(value)


def match_to_sparse(view: GraphView, where: Node) -> Kernel | str | None:
    """A dense tensor without the elements of one value, as a sparse one.

    Where(NotEqual(x, value)), GatherNd(x, that), and Shape(x) as int64; an
    ExpandDims in front goes along.

    Returns:
      The kernel; a reason why it cannot be packed; None: something else.
    """
    chain = _Chain(view, where)
    differs = view.producer(where.inputs[0])
    if differs is None or differs.op != "NotEqual":
        return None
    x, ignored = differs.inputs
    gathers = _readers(view, (where.name, 0), 1, "GatherNd", where)
    gathers = [node for node in gathers if node.inputs[0] == x]
    if not gathers:
        return None
    if where.name in view.preserve or chain.op((differs.name, 0), "NotEqual") is None:
        return "it is fetched, or on another device in part"
    ignore = chain.constant(ignored)
    if ignore is None or ignore.shape != ():
        return "the value that it leaves out is no constant"
    dtype = differs.attr("T")
    if dtype.name not in _SPARSE_TYPES:
        return f"type {dtype.name} is not packed"
    shapes = []
    known = view.shape(x)
    if known is None or None in known:  # else it becomes a constant anyway
        shapes = [
            node
            for node in _readers(view, x, 0, "Shape", where)
            if node.attr("out_type") == dtypes.int64
        ]
    source, expand = _before_expansion(chain, x)
    replaced = (where, *gathers, *shapes)
    for node in replaced:
        chain.controls.update(node.controls)
    return Kernel(
        node=where,
        replaced=replaced,
        inputs=(source,),
        outputs=(
            ((where.name, 0),),
            tuple((node.name, 0) for node in gathers),
            tuple((node.name, 0) for node in shapes),
        ),
        agree=(("T", dtype),),
        each=(ignore.item(), expand or 0, expand is not None),
        controls=_outside(chain, replaced),
    )


def match_hash(view: GraphView, node: Node) -> Kernel | str | None:
    """StringToHashBucketFast or ...Strong of text, or of integers as text."""
    chain = _Chain(view, node)
    source, dtype = _before_text(chain, node.inputs[0])
    strong = node.op == "StringToHashBucketStrong"
    key = tuple(node.attr("key", [])) if strong else ()
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=(source,),
        outputs=(((node.name, 0),),),
        agree=(("T", dtype), ("strong", strong)),
        each=(node.attr("num_buckets"), key),
        controls=_outside(chain, (node,)),
    )


def match_bucketize(view: GraphView, node: Node) -> Kernel | str | None:
    """Bucketize, each member with its own boundaries."""
    dtype = node.attr("T")
    if dtype.name not in _BUCKET_TYPES:
        return f"type {dtype.name} is not packed"
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=(node.inputs[0],),
        outputs=(((node.name, 0),),),
        agree=(("T", dtype),),
        each=(tuple(node.attr("boundaries", [])),),
        controls=frozenset(node.controls),
    )


def match_range_check(view: GraphView, select: Node) -> Kernel | str | None:
    """Ids outside of a range exchanged for another: an identity column's default.

    SelectV2(LogicalOr(Less(x, low), GreaterEqual(x, high)), Fill(Shape(x), other),
    x); a Cast from int32 to int64 in front goes along.
    """
    chain = _Chain(view, select)
    condition, other, x = select.inputs
    either = chain.op(condition, "LogicalOr")
    if either is None:
        return None
    below = chain.op(either.inputs[0], "Less")
    above = chain.op(either.inputs[1], "GreaterEqual")
    fill = chain.op(other, "Fill")
    if below is None or above is None or fill is None:
        return None
    shape = chain.op(fill.inputs[0], "Shape")
    if shape is None or not below.inputs[0] == above.inputs[0] == shape.inputs[0] == x:
        return None
    values = tuple(
        chain.integer(tensor)
        for tensor in (below.inputs[1], above.inputs[1], fill.inputs[1])
    )
    if None in values:
        return "a bound or the default is no constant"
    dtype = select.attr("T")
    if dtype.name not in _ID_TYPES:
        return f"type {dtype.name} is not packed"
    source, narrow = _before_widening(chain, x, dtype)
    return Kernel(
        node=select,
        replaced=(select,),
        inputs=(source,),
        outputs=(((select.name, 0),),),
        agree=(("Tin", narrow), ("Tout", dtype)),
        each=values,
        controls=_outside(chain, (select,)),
    )


def match_find(view: GraphView, find: Node) -> Kernel | str | None:
    """LookupTableFindV2, and the hash buckets for keys that the table lacks.

    The latter: SelectV2(NotEqual(found, default), found, AddV2(
    StringToHashBucketFast(keys), LookupTableSizeV2)).
    """
    table, keys, default = find.inputs
    agree = (("Tin", find.attr("Tin")), ("Tout", find.attr("Tout")))
    with_buckets = _find_with_buckets(view, find)
    if with_buckets is not None:
        return dataclasses.replace(with_buckets, agree=agree)
    return Kernel(
        node=find,
        replaced=(find,),
        inputs=(table, keys, default),
        outputs=(((find.name, 0),),),
        agree=agree,
        each=(0,),
        controls=frozenset(find.controls),
    )


def _find_with_buckets(view: GraphView, find: Node) -> Kernel | None:
    found = (find.name, 0)
    table, keys, default = find.inputs
    readers = view.consumers(found)
    select = next((node for node, _ in readers if node.op == "SelectV2"), None)
    if find.name in view.preserve or select is None or len(readers) != 2:
        return None
    chain = _Chain(view, find)
    chain.controls.update(select.controls)
    differs = chain.op(select.inputs[0], "NotEqual")
    total = chain.op(select.inputs[2], "AddV2")
    if differs is None or total is None or select.name in view.feeds:
        return None
    hashed = chain.op(total.inputs[0], "StringToHashBucketFast")
    size = chain.op(total.inputs[1], "LookupTableSizeV2")
    if (
        hashed is None
        or size is None
        or size.inputs[0] != table
        or select.inputs[1] != found
        or differs.inputs != (found, default)
        or select.device != find.device
        or find.attr("Tout") != dtypes.int64
        or not all(_read_once(view, node) for node in (differs, total))
        or len(view.consumers((size.name, 0))) != 1
    ):
        return None
    text, dtype = _before_text(chain, hashed.inputs[0])
    if text != keys or dtype != find.attr("Tin"):
        return None
    replaced = (select, find, size)
    return Kernel(
        node=select,
        replaced=replaced,
        inputs=(table, keys, default),
        outputs=(((select.name, 0),),),
        agree=(),
        each=(hashed.attr("num_buckets"),),
        controls=_outside(chain, replaced),
        absorbed=(hashed.name,) if _read_once(view, hashed) else (),
    )


def match_one_hot(view: GraphView, hot: Node) -> Kernel | str | None:
    """Ids as rows of zeros with a one; an indicator column's sum of them goes along.

    OneHot of depth, 1 and 0 that are constants, along a new last axis; a Cast from
    int32 in front. Behind it, if nobody else reads it, Sum over the axis before.
    """
    chain = _Chain(view, hot)
    ids_dtype, dtype = hot.attr("TI"), hot.attr("T")
    depth = chain.integer(hot.inputs[1])
    values = [chain.constant(tensor) for tensor in hot.inputs[2:]]
    if hot.attr("axis", -1) != -1 or any(v is None or v.shape != () for v in values):
        return None
    if [value.item() for value in values] != [1.0, 0.0]:
        return None
    if ids_dtype.name not in _ID_TYPES or dtype.name not in _ONE_TYPES:
        return f"type {ids_dtype.name} to {dtype.name} is not packed"
    if depth is None or depth < 0:
        return "its depth is no constant"
    source, narrow = _before_widening(chain, hot.inputs[0], ids_dtype)
    replaced = (hot,)
    total = _sum_of_rows(view, hot) if _read_once(view, hot) else None
    if total is not None:
        replaced = (total, hot)
        chain.controls.update(total.controls)
    return Kernel(
        node=replaced[0],
        replaced=replaced,
        inputs=(source,),
        outputs=(((replaced[0].name, 0),),),
        agree=(("Tids", narrow), ("T", dtype)),
        each=(depth, total is not None),
        controls=_outside(chain, replaced),
    )


def _sum_of_rows(view: GraphView, hot: Node) -> Node | None:
    """The Sum that is the one reader of a OneHot, over the ids of each row."""
    sums = _readers(view, (hot.name, 0), 0, "Sum", hot)
    if not sums or sums[0].attr("keep_dims", False):
        return None
    axes = view.constant(sums[0].inputs[1])
    if axes is None or axes.size != 1 or axes.reshape(-1)[0] != -2:
        return None
    return sums[0]


def match_to_dense(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseToDense, with indices as tf.SparseTensor has them."""
    dtype = node.attr("T")
    if dtype.name not in _SPARSE_TYPES or node.attr("Tindices") != dtypes.int64:
        return f"type {dtype.name} is not packed"
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=node.inputs,
        outputs=(((node.name, 0),),),
        agree=(
            ("T", dtype),
            ("validate_indices", bool(node.attr("validate_indices", True))),
        ),
        each=(),
        controls=frozenset(node.controls),
    )


def match_cross(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseCross with hashes as its values: a crossed column."""
    if not node.attr("hashed_output") or node.attr("out_type") != dtypes.int64:
        return "it crosses to text"
    sparse = tuple(node.attr("sparse_types", []))
    dense = tuple(node.attr("dense_types", []))
    if not sparse and not dense:
        return None
    if node.attr("internal_type") != dtypes.int64 and dtypes.int64 in (*sparse, *dense):
        return "stock refuses its types"
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=node.inputs,
        outputs=tuple(((node.name, port),) for port in range(3)),
        agree=(
            ("sparse_columns", len(sparse)),
            ("dense_columns", len(dense)),
            ("Tvalues", sparse),
            ("Tdense", dense),
        ),
        each=(node.attr("num_buckets"), node.attr("hash_key")),
        controls=frozenset(node.controls),
    )


def match_sparse_reshape(view: GraphView, node: Node) -> Kernel | str | None:
    """SparseReshape that no lookup does by itself."""
    return Kernel(
        node=node,
        replaced=(node,),
        inputs=node.inputs,
        outputs=(((node.name, 0),), ((node.name, 1),)),
        agree=(),
        each=(),
        controls=frozenset(node.controls),
    )


def _readers(view: GraphView, tensor: Tensor, position: int, op: str, like: Node):
    """Nodes of a type that read the tensor there and run whenever `like` does."""
    return [
        node
        for node, at in view.consumers(tensor)
        if node.op == op
        and at == position
        and node.device == like.device
        and node.name not in view.feeds
        and view.guard(node.name) == view.guard(like.name)
        and view.frame(node.name) == view.frame(like.name)
        and view.serves(node.name) | view.serves(like.name) == view.serves(like.name)
    ]


def _read_once(view: GraphView, node: Node) -> bool:
    """Whether one node reads it and none waits for it."""
    return (
        len(view.consumers((node.name, 0))) == 1
        and not view.control_consumers(node.name)
        and node.name not in view.preserve
        and node.name not in view.keep
    )


def _before_expansion(chain: _Chain, x: Tensor) -> tuple[Tensor, int | None]:
    """What an ExpandDims expands and where; else the tensor itself."""
    expansion = chain.op(x, "ExpandDims")
    axis = None if expansion is None else chain.integer(expansion.inputs[1])
    return (x, None) if axis is None else (expansion.inputs[0], axis)


def _before_widening(
    chain: _Chain, x: Tensor, dtype: dtypes.DType
) -> tuple[Tensor, dtypes.DType]:
    """The int32 that is made int64 of, with its type; else the tensor itself."""
    cast = chain.producer(x)
    if (
        dtype == dtypes.int64
        and cast is not None
        and cast.attr("SrcT") == dtypes.int32
        and chain.op(x, "Cast") is not None
    ):
        return cast.inputs[0], dtypes.int32
    return x, dtype


def _before_text(chain: _Chain, text: Tensor) -> tuple[Tensor, dtypes.DType]:
    """The integers that are made text of, with their type; else the text."""
    node = chain.op(text, "AsString")
    if node is not None and node.attr("T").name in _ID_TYPES and _is_plain(node):
        return node.inputs[0], node.attr("T")
    return text, dtypes.string


def _is_plain(as_string: Node) -> bool:
    return (
        as_string.attr("width", -1) == -1
        and as_string.attr("precision", -1) == -1
        and as_string.attr("fill", "") == ""
        and not as_string.attr("scientific", False)
        and not as_string.attr("shortest", False)
    )


def _outside(chain: _Chain, replaced: Iterable[Node]) -> frozenset[str]:
    return frozenset(chain.controls) - {node.name for node in replaced}
