"""Lookups: `ResourceGather`, as tf.nn.embedding_lookup, tf.gather on a variable
and Keras 2's Embedding write it, by itself, per part of a variable in parts, or
pooled to bags."""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.bag import POOL_OPS, Bag, match_bag
from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.partition import STITCH_OPS, Stitched, match_stitched
from picasso_tf.graph import FORWARDING, GraphView, Node, Table, Tensor

LOOKUP_OPS = ("ResourceGather",)
POOLED_OPS = tuple(POOL_OPS)
# Recognised to say so: Keras 3's Embedding gathers from the variable's value.
DENSE_LOOKUP_OPS = ("GatherV2",)
ROW_TYPES = (dtypes.half, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """One lookup: rows of `table`, of type `dtype`, at `ids`.

    `node` is the ResourceGather, the op that stitches the rows of several or, with
    a `bag`, the op that pools rows. Of a variable in parts, `table` stands for
    all of them, by the name of the first.
    """

    node: Node
    table: Table
    dtype: dtypes.DType
    ids: Ids
    bag: Bag | None = None
    stitched: Stitched | None = None
    part_tables: tuple[Table, ...] = ()

    @property
    def gather(self) -> Node:
        return self.node if self.bag is None else self.bag.gather

    @property
    def tables(self) -> tuple[Table, ...]:
        """The variables: one, or all parts."""
        return self.part_tables or (self.table,)

    @property
    def handles(self) -> tuple[Tensor, ...]:
        """The variables' resources, in the order of `tables`."""
        gathers = (self.gather,) if self.stitched is None else self.stitched.gathers
        return tuple(gather.inputs[0] for gather in gathers)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a pack runs in place of: who waits for these waits for the pack."""
        gathers = () if self.stitched is None else self.stitched.gathers
        pooled = (self.node,) if self.bag is None else (self.bag.gather, self.node)
        return gathers + pooled

    def inputs(self):
        """The tensors that a pack reads for this lookup."""
        yield from self.handles
        yield self.ids.source
        if self.bag is not None:
            yield from self.bag.bags.tensors()


def match_pooled(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup whose rows a pooling op pools, or why the two are not packed as
    one; None: it pools no variable's rows."""
    found = match_bag(view, node)
    if found is None or isinstance(found, str):
        return found
    matches = match_parts if found.gather.op in STITCH_OPS else match_lookup
    lookup = matches(view, found.gather)
    if lookup is None or isinstance(lookup, str):
        return lookup
    table = lookup.table.shape
    if table is None or len(table) != 2 or table[1] is None:
        return "the shape of the variable's rows is not known, or not a vector"
    return dataclasses.replace(lookup, node=node, ids=found.bags.ids, bag=found)


def match_lookup(view: GraphView, node: Node) -> Lookup | str:
    """The lookup at a ResourceGather, or the reason why it is left alone."""
    if node.attr("batch_dims", 0) != 0:
        return f"batch_dims is {node.attr('batch_dims')}, not 0"
    dtype = node.attr("dtype")
    if dtype not in ROW_TYPES:
        return f"rows are {dtype.name}, not of a floating-point type"
    if "GPU" in node.device.upper():
        return "the lookup is on a GPU, and packed lookups have no GPU kernel yet"
    table = view.table(node.inputs[0])
    if table.shape is not None and len(table.shape) == 0:
        return "the variable is a scalar"
    ids = find_ids(view, node.inputs[1], node.attr("Tindices"), node.device, flat=False)
    return Lookup(node, table, dtype, ids)


def match_parts(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup in a variable in parts at a stitch, or why it is not packed as
    one; None: it stitches no variables' rows."""
    stitched = match_stitched(view, node)
    if stitched is None or isinstance(stitched, str):
        return stitched
    lookups = [match_lookup(view, gather) for gather in stitched.gathers]
    for lookup in lookups:
        if isinstance(lookup, str):
            return lookup
    first = lookups[0]
    tables = tuple(lookup.table for lookup in lookups)
    row = None if first.table.shape is None else first.table.shape[1:]
    if row is None or None in row:
        return "the shape of the variable's rows is not known"
    for lookup in lookups:
        if lookup.table.shape is None or lookup.table.shape[1:] != row:
            return "the rows of its parts differ in shape"
        if lookup.dtype != first.dtype:
            return "the rows of its parts differ in type"
    sizes = [table.shape[0] for table in tables]
    rows = None if None in sizes else sum(sizes)
    table = first.table._replace(shape=(rows, *row))
    ids = find_ids(view, stitched.ids, stitched.index_type, node.device, flat=True)
    # The stitch has a row per id, whatever the shape of the ids' source.
    ids = dataclasses.replace(ids, natural=False, shape=ids.shape or (None,))
    return Lookup(node, table, first.dtype, ids, None, stitched, tables)


def why_dense_is_left(view: GraphView, node: Node) -> str | None:
    """Why a gather from a variable's value is left alone; None: it is none."""
    read = view.producer(view.skip(node.inputs[0], FORWARDING | {"Cast"}))
    if read is None or read.op != "ReadVariableOp":
        return None
    table = view.table(read.inputs[0])
    if table.dtype not in ROW_TYPES or table.shape is None or len(table.shape) < 2:
        return None
    return (
        "it gathers from the variable's value (ReadVariableOp and GatherV2, as Keras "
        "3's Embedding does), which is not packed yet"
    )
