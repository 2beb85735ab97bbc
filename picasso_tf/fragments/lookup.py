"""Lookups: `ResourceGather`, as tf.nn.embedding_lookup, tf.gather on a variable
and Keras 2's Embedding write it, by itself or pooled to bags."""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.bag import POOL_OPS, Bag, match_bag
from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.weighted_bag import WEIGHTED_POOL_OPS, match_weighted_bag
from picasso_tf.graph import FORWARDING, GraphView, Node, Table

LOOKUP_OPS = ("ResourceGather",)
POOLED_OPS = (*POOL_OPS, *WEIGHTED_POOL_OPS)
# Recognised to say so: Keras 3's Embedding gathers from the variable's value.
DENSE_LOOKUP_OPS = ("GatherV2",)
ROW_TYPES = (dtypes.half, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """One lookup: rows of `table`, of type `dtype`, at `ids`.

    `node` is the ResourceGather or, with a `bag`, the op that pools its rows.
    """

    node: Node
    table: Table
    dtype: dtypes.DType
    ids: Ids
    bag: Bag | None = None

    @property
    def gather(self) -> Node:
        return self.node if self.bag is None else self.bag.gather

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a pack runs in place of: who waits for these waits for the pack."""
        return (self.node,) if self.bag is None else (self.bag.gather, self.node)

    def inputs(self):
        """The tensors that a pack reads for this lookup."""
        yield self.gather.inputs[0]
        yield self.ids.source
        if self.bag is not None:
            yield from self.bag.bags.tensors()


def match_pooled(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup whose rows a pooling op pools, or why the two are not packed as
    one; None: it pools no variable's rows."""
    match = match_bag if node.op in POOL_OPS else match_weighted_bag
    found = match(view, node)
    if found is None or isinstance(found, str):
        return found
    lookup = match_lookup(view, found.gather)
    if isinstance(lookup, str):
        return lookup
    table = lookup.table.shape
    if table is None or len(table) != 2 or table[1] is None:
        return "the shape of the variable's rows is not known, or not a vector"
    return dataclasses.replace(lookup, node=found.node, ids=found.bags.ids, bag=found)


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
