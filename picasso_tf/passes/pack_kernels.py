"""K-Packing: equal small kernels that prepare ids become one op.

What is packed is data: `KINDS`, and `LATE_KINDS` once lookups are packed. Each kind
says how one member is found (fragments/kernels.py) and how the members' own
attributes are written down.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import tensor_util

from picasso_tf.edges import Levels
from picasso_tf.edits import Edits
from picasso_tf.fragments import bag_kernels, kernels
from picasso_tf.fragments.bag import POOL_GRAD_OPS, POOL_OPS
from picasso_tf.fragments.kernels import Kernel
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Tensor
from picasso_tf.passes.base import Pass, PassResult, add_pack, group
from picasso_tf.report import Pack

# Levels are found again so often at most, once members without equals are known.
_ROUNDS = 8


@dataclasses.dataclass(frozen=True)
class Kind:
    """Small kernels that one op can do.

    Attributes:
      name: in reports and in the names of packs.
      anchors: op types at which a member is looked for.
      match: a member; a reason why it is left alone; None: something else.
      op: the packed op. It has attributes N, `pack`, what members agree in, and
        what `attrs` gives; N inputs and outputs for each list of the members'.
      attrs: the attributes that hold each member's own values.
    """

    name: str
    anchors: tuple[str, ...]
    match: Callable[[GraphView, Node], Kernel | str | None]
    op: str
    attrs: Callable[[Sequence[Kernel]], dict[str, Any]]


def _lists(*names: str):
    """One list attribute per value that members have."""

    def attrs(members: Sequence[Kernel]) -> dict[str, Any]:
        columns = zip(*(member.each for member in members), strict=True)
        return dict(zip(names, map(list, columns), strict=True))

    return attrs


def _sparse_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    ignore, expand, expanded = map(list, zip(*(m.each for m in members), strict=True))
    dtype = dict(members[0].agree)["T"]
    tensor = tensor_util.make_tensor_proto(ignore, dtype, [len(ignore)])
    return {
        "ignore": attr_value_pb2.AttrValue(tensor=tensor),
        "expand": expand,
        "expanded": expanded,
    }


def _hash_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    return {
        "num_buckets": [member.each[0] for member in members],
        "key": [word for member in members for word in member.each[1]],
    }


def _bucketize_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    return {
        "boundaries": [value for member in members for value in member.each[0]],
        "lengths": [len(member.each[0]) for member in members],
    }


def _cross_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    agreed = dict(members[0].agree)
    types = {
        name: [dtype for dtype in agreed[name] for _ in members]
        for name in ("Tvalues", "Tdense")
    }
    values = _lists("num_buckets", "hash_key")(members)
    return types | values | {"K": len(members) * agreed["sparse_columns"]}


def _keep_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    agreed = dict(members[0].agree)
    compares = bool(agreed["comparison"])
    return {
        "T": [dtype for dtype in agreed["T"] for _ in members],
        "B": len(members) if compares else 0,
    }


def _pool_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    weighted = "Tweights" in dict(members[0].agree)
    return {
        "combiner": [member.each[0] for member in members],
        "W": len(members) if weighted else 0,
    }


def _no_attrs(members: Sequence[Kernel]) -> dict[str, Any]:
    return {}


KINDS: tuple[Kind, ...] = (
    Kind(
        "to_sparse",
        ("Where",),
        kernels.match_to_sparse,
        "PicassoPackedDenseToSparse",
        _sparse_attrs,
    ),
    Kind(
        "hash",
        ("StringToHashBucketFast", "StringToHashBucketStrong"),
        kernels.match_hash,
        "PicassoPackedHashBucket",
        _hash_attrs,
    ),
    Kind(
        "bucketize",
        ("Bucketize",),
        kernels.match_bucketize,
        "PicassoPackedBucketize",
        _bucketize_attrs,
    ),
    Kind(
        "range_check",
        ("SelectV2",),
        kernels.match_range_check,
        "PicassoPackedRangeCheck",
        _lists("low", "high", "otherwise"),
    ),
    Kind(
        "table_find",
        ("LookupTableFindV2",),
        kernels.match_find,
        "PicassoPackedTableFind",
        _lists("oov_buckets"),
    ),
    Kind(
        "cross",
        ("SparseCross",),
        kernels.match_cross,
        "PicassoPackedSparseCross",
        _cross_attrs,
    ),
    Kind(
        "to_dense",
        ("SparseToDense",),
        kernels.match_to_dense,
        "PicassoPackedSparseToDense",
        _no_attrs,
    ),
    Kind(
        "one_hot",
        ("OneHot",),
        kernels.match_one_hot,
        "PicassoPackedOneHot",
        _lists("depth", "summed"),
    ),
)

# A packed lookup prepares its own ids, where it pools.
LATE_KINDS: tuple[Kind, ...] = (
    Kind(
        "sparse_reshape",
        ("SparseReshape",),
        kernels.match_sparse_reshape,
        "PicassoPackedSparseReshape",
        _no_attrs,
    ),
    Kind(
        "filter",
        ("Where",),
        bag_kernels.match_keep,
        "PicassoPackedKeep",
        _keep_attrs,
    ),
    Kind(
        "row_fill",
        ("SparseFillEmptyRows",),
        bag_kernels.match_fill_empty_rows,
        "PicassoPackedFillEmptyRows",
        _no_attrs,
    ),
    Kind(
        "unique",
        ("Unique",),
        bag_kernels.match_unique,
        "PicassoPackedUnique",
        _no_attrs,
    ),
)

# These sum floats, and so come behind TensorFlow's optimizers.
POOL_KINDS: tuple[Kind, ...] = (
    Kind(
        "pooling",
        tuple(POOL_OPS),
        bag_kernels.match_pool,
        "PicassoPackedPool",
        _pool_attrs,
    ),
    Kind(
        "pooling_gradient",
        tuple(POOL_GRAD_OPS),
        bag_kernels.match_pool_grad,
        "PicassoPackedPoolGrad",
        _pool_attrs,
    ),
    Kind(
        "weighted_pooling",
        ("SegmentSum",),
        bag_kernels.match_weighted_pool,
        "PicassoPackedPool",
        _pool_attrs,
    ),
    Kind(
        "weighted_pooling_gradient",
        ("UnsortedSegmentSum",),
        bag_kernels.match_weighted_pool_grad,
        "PicassoPackedPoolGrad",
        _pool_attrs,
    ),
)


def _anchors(kinds: tuple[Kind, ...]) -> tuple[str, ...]:
    return tuple(op for kind in kinds for op in kind.anchors)


@dataclasses.dataclass(frozen=True)
class PackKernels(Pass):
    """Replaces small kernels by one op per kind.

    Members agree in level, device, frame, guard, and in what their kind asks
    for. Kernels that do the same to the same tensor are one member.
    """

    name: ClassVar[str] = "pack_kernels"
    kinds: ClassVar[tuple[Kind, ...]] = KINDS
    triggers: ClassVar[tuple[str, ...]] = _anchors(KINDS)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        found = self._find(view, result)
        groups = _grouped(view, found, self.kinds, result)
        packer = _Packer(view)
        for _, members in sorted(groups, key=lambda item: item[0]):
            kind = members[0][0]
            pack = packer.pack(kind, [kernel for _, kernel in members])
            if pack is not None:
                result.packs.append(pack)
                continue
            for entry in members:
                _skip_lone(entry, result)
        result.apply(packer.edits)
        return result

    def _find(self, view: GraphView, result: PassResult) -> list[tuple[Kind, Kernel]]:
        kind_of = {op: kind for kind in self.kinds for op in kind.anchors}
        found = []
        for node in view.nodes.values():
            kind = kind_of.get(node.op)
            if kind is None or node.name in view.feeds or not view.serves(node.name):
                continue
            kernel = kind.match(view, node)
            if kernel is None:
                continue
            if isinstance(kernel, str):
                result.skip(node, kernel)
            elif self.options.excludes(node.name):
                result.skip(node, "excluded by Options.exclude")
            elif "GPU" in node.device.upper():
                result.skip(node, "on a GPU")
            elif _is_fetched_in_part(view, kernel):
                result.skip(node, "it is fetched or fed, and has several outputs")
            elif not _keeps_guard(view, kernel):
                result.skip(node, "its input comes from another branch")
            else:
                found.append((kind, kernel))
        absorbed = {name for _, kernel in found for name in kernel.absorbed}
        return [entry for entry in found if entry[1].node.name not in absorbed]


@dataclasses.dataclass(frozen=True)
class PackLateKernels(PackKernels):
    """The same for what packed lookups have left."""

    name: ClassVar[str] = "pack_late_kernels"
    kinds: ClassVar[tuple[Kind, ...]] = LATE_KINDS
    triggers: ClassVar[tuple[str, ...]] = _anchors(LATE_KINDS)


@dataclasses.dataclass(frozen=True)
class PackPools(PackKernels):
    """The same for the pooling of rows that no packed lookup pools, as clipped ones."""

    name: ClassVar[str] = "pack_pools"
    kinds: ClassVar[tuple[Kind, ...]] = POOL_KINDS
    triggers: ClassVar[tuple[str, ...]] = _anchors(POOL_KINDS)


def _skip_lone(entry: tuple[Kind, Kernel], result: PassResult) -> None:
    kind, kernel = entry
    result.skip(kernel.node, f"no other {kind.name} of its type, device and level")


def _grouped(
    view: GraphView,
    found: list[tuple[Kind, Kernel]],
    kinds: tuple[Kind, ...],
    result: PassResult,
):
    """Members by what they agree in, with their level; see `group`."""
    for round_ in itertools.count():
        try:
            levels = _levels(view, [kernel for _, kernel in found])
        except ValueError:
            # Control edges can forbid to compute at once what is not one node.
            for _, kernel in found:
                if len(kernel.replaced) > 1:
                    result.skip(kernel.node, "packed as a whole, it closes a cycle")
            found = [entry for entry in found if len(entry[1].replaced) == 1]
            continue
        groups = group(
            view,
            levels,
            found,
            lambda entry: entry[1].node,
            lambda entry: (entry[0].name, entry[1].agree),
        )
        lone = {}
        for level, members in groups:
            if len(members) == 1:
                kind = kinds.index(members[0][0])
                lone.setdefault((level, kind), []).append(members[0])
        if not lone or round_ == _ROUNDS:
            return groups
        # The first stay as they are, and no longer keep apart what reads them.
        lone = lone[min(lone)]
        for entry in lone:
            _skip_lone(entry, result)
        alone = {kernel.node.name for _, kernel in lone}
        found = [entry for entry in found if entry[1].node.name not in alone]


def _is_fetched_in_part(view: GraphView, kernel: Kernel) -> bool:
    """Whether an Identity would stand for more than one output of a node."""
    ports = [name for tensors in kernel.outputs for name, port in tensors if port]
    return any(name in view.preserve for name in ports)


def _keeps_guard(view: GraphView, kernel: Kernel) -> bool:
    """Whether the pack is dead just when the replaced nodes were."""
    guards = [view.edge_guard(tensor) for tensor in kernel.inputs]
    guards += [view.guard(name) for name in kernel.controls]
    guard = frozenset().union(*guards)
    return all(view.guard(node.name) == guard for node in kernel.replaced)


def _levels(view: GraphView, members: Sequence[Kernel]) -> Levels:
    """As `GraphView.levels`, with all that a member replaces as one anchor.

    Each node that a member replaces is put behind all that the member reads and
    waits for; if that leaves the graph without a cycle, so does the packing.

    Raises:
      ValueError: it does not.
    """
    before: dict[str, list[str]] = {}
    for member in members:
        names = [tensor[0] for tensor in member.inputs if tensor[0] in view.nodes]
        names += sorted(name for name in member.controls if name in view.nodes)
        before.update({node.name: names for node in member.replaced})
    return view.levels_around(before)


class _Packer:
    """Makes packs, lowest level first, so that equal members are seen as equal
    although they read what a pack before them has merged."""

    def __init__(self, view: GraphView):
        self.edits = Edits(view)
        self._view = view
        self._provided: dict[Tensor, Tensor] = {}

    def pack(self, kind: Kind, found: Sequence[Kernel]) -> Pack | None:
        """None: fewer than two that differ."""
        distinct: dict[Any, list[Kernel]] = {}
        for kernel in found:
            key = (tuple(map(self._identity, kernel.inputs)), kernel.each)
            distinct.setdefault(key, []).append(kernel)
        if len(distinct) < 2:
            return None
        members = [equal[0] for equal in distinct.values()]
        inputs = [
            self._provided.get(tensor, tensor)
            for tensors in zip(*(m.inputs for m in members), strict=True)
            for tensor in tensors
        ]
        replaced = {node.name for kernel in found for node in kernel.replaced}
        name = add_pack(
            self.edits,
            f"picasso_packed_{kind.name}",
            kind.op,
            inputs,
            device=found[0].node.device,
            controls=frozenset().union(*(k.controls for k in found)) - replaced,
            N=len(members),
            **dict(members[0].agree) | kind.attrs(members),
        )
        for position, equal in enumerate(distinct.values()):
            for kernel in equal:
                for index, tensors in enumerate(kernel.outputs):
                    for tensor in tensors:
                        self._provide(tensor, (name, index * len(members) + position))
        for node_name in sorted(replaced, key=lambda n: self._view.nodes[n].index):
            self.edits.remove(node_name, waits_for=name)
        return Pack(
            name,
            kind.name,
            tuple(kernel.node.name for kernel in found),
            0,
            0,
            f"{len(members)} of them distinct" if len(members) < len(found) else "",
        )

    def _provide(self, tensor: Tensor, by: Tensor) -> None:
        # The shape of one tensor may belong to several members: they are equal.
        if tensor not in self._provided:
            self._provided[tensor] = by
            self.edits.replace_tensor(tensor, by)

    def _identity(self, tensor: Tensor):
        """Equal for tensors that hold the same: a constant is its value."""
        tensor = self._provided.get(tensor, tensor)
        node = self._view.producer(tensor)
        if node is None or node.op != "Const" or node.name in self._view.preserve:
            return tensor
        value = self._view.constant(tensor)
        return (value.dtype.str, value.shape, repr(value.tolist()))
