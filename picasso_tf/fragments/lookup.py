"""Lookups: rows of a variable at some ids, by themselves or pooled to bags.

`ResourceGather`, as tf.nn.embedding_lookup, tf.gather on a variable and Keras 2's
Embedding write it, also of each part of a variable in parts; and `GatherV2` on the
value that a ReadVariableOp gives, as Keras 3's Embedding does.
"""

from __future__ import annotations

import dataclasses

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.bag import (
    POOL_OPS,
    Bag,
    find_bag_ids,
    find_results,
    match_bag,
)
from picasso_tf.fragments.ids import Ids, find_ids
from picasso_tf.fragments.partition import STITCH_OPS, Stitched, match_stitched
from picasso_tf.fragments.value_read import ValueRead, match_read
from picasso_tf.fragments.weighted_bag import WEIGHTED_POOL_OPS, match_weighted_bag
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Table, Tensor

LOOKUP_OPS = ("ResourceGather", "GatherV2")
POOLED_OPS = (*POOL_OPS, *WEIGHTED_POOL_OPS)
ROW_TYPES = (dtypes.half, dtypes.bfloat16, dtypes.float32, dtypes.float64)
LOOKUP_ALONE = "its lookup alone may be packed: "
_NO_VECTORS = "the shape of the variable's rows is not known, or not a vector"
_HALF_TYPES = (dtypes.half, dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """One lookup: rows of `table`, as `dtype`, at `ids`.

    Attributes:
      gather: the op that looks up; of a variable in parts, the one that stitches
        together what was looked up.
      node: the node whose output holds the rows: the gather, or the one reader
        of its rows, which casts or pools them.
      handle: the resource that names the table; of parts, that of the first.
      table: of parts, the first with the rows of all.
      cast: the rows are float32 in the table, and half or bfloat16 behind it.
      read: what read the table, if the rows are gathered from its value.
      controls: names of what had to run before the rows were gathered.
      bag: how the rows are pooled, if they are.
      stitched, part_tables: of a variable in parts, the lookups in these, and
        their tables.
    """

    gather: Node
    node: Node
    handle: Tensor
    table: Table
    dtype: dtypes.DType
    cast: bool
    ids: Ids
    read: ValueRead | None
    controls: tuple[str, ...]
    bag: Bag | None = None
    stitched: Stitched | None = None
    part_tables: tuple[Table, ...] = ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """The variables: one, or all parts."""
        return self.part_tables or (self.table,)

    @property
    def handles(self) -> tuple[Tensor, ...]:
        """The variables' resources, in the order of `tables`."""
        if self.stitched is None:
            return (self.handle,)
        return tuple(gather.inputs[0] for gather in self.stitched.gathers)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What a pack runs in place of, `node` the last: who waits for these waits
        for the pack."""
        gathers = () if self.stitched is None else self.stitched.gathers
        lookup = () if self.gather is self.node else (self.gather,)
        return (*gathers, *lookup, self.node)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that a pack reads for this lookup."""
        pooled = () if self.bag is None else tuple(self.bag.bags.tensors())
        return (*self.handles, self.ids.source, *pooled)


def match_pooled(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup whose rows a pooling op pools, or why the two are not packed as
    one; None: it pools no variable's rows."""
    read = match_read(view, node) if node.op in POOL_OPS else None
    if isinstance(read, str):
        return read
    if read is not None:
        return _match_pooled_value(view, node, read)
    match = match_bag if node.op in POOL_OPS else match_weighted_bag
    found = match(view, node)
    if found is None:
        return None
    if isinstance(found, str):
        return LOOKUP_ALONE + found
    matches = match_parts if found.gather.op in STITCH_OPS else match_lookup
    lookup = matches(view, found.gather)
    if lookup is None or isinstance(lookup, str):
        return lookup
    if not _has_vectors(lookup.table):
        return LOOKUP_ALONE + _NO_VECTORS
    return dataclasses.replace(
        lookup,
        node=found.node,
        ids=found.bags.ids,
        bag=found,
        controls=(*lookup.controls, *node.controls, *found.node.controls),
    )


def _match_pooled_value(view: GraphView, node: Node, read: ValueRead) -> Lookup | str:
    """The lookup of a pooling op that reads a variable's value itself, at ids that
    may come repeatedly."""
    dtype = node.attr("T")
    if dtype not in ROW_TYPES:
        return f"rows are {dtype.name}, not of a floating-point type"
    if "GPU" in node.device.upper():
        return "the lookup is on a GPU, and packed lookups have no GPU kernel yet"
    table = view.table(read.handle)
    if not _has_vectors(table):
        return _NO_VECTORS
    ids, segments = node.inputs[1:3]
    index_type = node.attr("Tidx", dtypes.int32)
    bags = find_bag_ids(view, ids, segments, index_type, node.device)
    results, interior, zero, full = find_results(view, node, bags)
    bag = Bag(node, node, (), POOL_OPS[node.op], bags, zero, full, results, interior)
    cast = read.cast is not None
    controls = (*node.controls, *read.controls)
    return Lookup(
        node, node, read.handle, table, dtype, cast, bags.ids, read, controls, bag
    )


def _has_vectors(table: Table) -> bool:
    shape = table.shape
    return shape is not None and len(shape) == 2 and shape[1] is not None


def match_lookup(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup at one of LOOKUP_OPS, or the reason why it is left alone; None:
    it gathers from something that is no variable."""
    read = None
    if node.op == "GatherV2":
        read = match_read(view, node)
        if read is None or isinstance(read, str):
            return read
    if node.attr("batch_dims", 0) != 0:
        return f"batch_dims is {node.attr('batch_dims')}, not 0"
    controls = node.controls
    if read is not None:
        axis = view.producer(node.inputs[2])
        if axis is None or axis.op != "Const" or view.constant_int((axis.name, 0)) != 0:
            return "it does not gather along the first axis"
        # TensorFlow lets constants wait in place of the ops that read them.
        controls += axis.controls + read.controls
    handle = node.inputs[0] if read is None else read.handle
    dtype = node.attr("dtype") if read is None else node.attr("Tparams")
    if dtype not in ROW_TYPES:
        return f"rows are {dtype.name}, not of a floating-point type"
    if "GPU" in node.device.upper():
        return "the lookup is on a GPU, and packed lookups have no GPU kernel yet"
    table = view.table(handle)
    if table.shape is not None and len(table.shape) == 0:
        return "the variable is a scalar"
    ids = find_ids(
        view, node.inputs[1], node.attr("Tindices"), node.device, False, table
    )
    last, cast = node, read is not None and read.cast is not None
    if not cast and dtype == dtypes.float32:
        behind = _cast_of_rows(view, node)
        if behind is not None:
            last, cast, dtype = behind, True, behind.attr("DstT")
    return Lookup(node, last, handle, table, dtype, cast, ids, read, controls)


def match_parts(view: GraphView, node: Node) -> Lookup | str | None:
    """The lookup in a variable in parts at a stitch, or why it is not packed as
    one; None: it stitches no variables' rows."""
    stitched = match_stitched(view, node)
    if stitched is None or isinstance(stitched, str):
        return stitched
    lookups = [match_lookup(view, gather) for gather in stitched.gathers]
    for lookup in lookups:
        if lookup is None or isinstance(lookup, str):
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
    ids = find_ids(view, stitched.ids, stitched.index_type, node.device, flat=True)
    return dataclasses.replace(
        first,
        gather=node,
        node=node,
        table=first.table._replace(shape=(rows, *row)),
        # The stitch has a row per id, whatever the shape of the ids' source.
        ids=dataclasses.replace(ids, natural=False, shape=ids.shape or (None,)),
        controls=sum((lookup.controls for lookup in lookups), node.controls),
        stitched=stitched,
        part_tables=tables,
    )


def _cast_of_rows(view: GraphView, node: Node) -> Node | None:
    """The Cast to a half type that alone reads the rows, as Keras 3 writes it
    under mixed precision."""
    readers = view.consumers((node.name, 0))
    if len(readers) != 1 or view.control_consumers(node.name):
        return None
    if node.name in view.preserve or node.name in view.feeds:
        return None
    cast = view.movable((readers[0][0].name, 0), node.device)
    if cast is None or cast.op != "Cast" or cast.attr("Truncate", False):
        return None
    return cast if cast.attr("DstT") in _HALF_TYPES else None
