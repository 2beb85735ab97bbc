"""Plain lookups: `ResourceGather`, as tf.nn.embedding_lookup, tf.gather on a
variable and Keras 2's Embedding write it."""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.graph import FORWARDING, GraphView, Node, Table

LOOKUP_OPS = ("ResourceGather",)
# Recognised to say so: Keras 3's Embedding gathers from the variable's value.
DENSE_LOOKUP_OPS = ("GatherV2",)
ROW_TYPES = (dtypes.half, dtypes.bfloat16, dtypes.float32, dtypes.float64)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """One lookup: rows of `table`, of type `dtype`, at `ids`."""

    node: Node
    table: Table
    dtype: dtypes.DType
    ids: Ids


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
