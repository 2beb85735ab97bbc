"""The gradients of packed ops.

Rewrites at run time see backward ops already, so this serves converted
SavedModels that are trained further.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from picasso_tf.fragments.ids import Mode
from picasso_tf.ops import load_ops

for _op in (
    *("HashBucket", "Bucketize", "RangeCheck", "TableFind", "OneHot"),
    *("SparseCross", "SparseReshape"),
):
    # Text and integers, or, as stock's Bucketize and OneHot, steps.
    ops.NotDifferentiable(f"PicassoPacked{_op}")


@ops.RegisterGradient("PicassoPackedDenseToSparse")
def _packed_dense_to_sparse_grad(op, *grads):
    """What was left out has no gradient; the rest has that of its value."""
    count = op.get_attr("N")
    results = []
    for i, dense in enumerate(op.inputs):
        grad = grads[count + i]
        if grad is not None and dense.dtype.is_floating:
            indices, shape = op.outputs[i], op.outputs[2 * count + i]
            spread = tf.scatter_nd(indices, grad, shape)
            results.append(tf.reshape(spread, tf.shape(dense)))
        else:
            results.append(None)
    return results


@ops.RegisterGradient("PicassoPackedSparseToDense")
def _packed_sparse_to_dense_grad(op, *grads):
    """Of the values, and of what is put where no index is."""
    count = op.get_attr("N")
    values: list = [None] * count
    missing: list = [None] * count
    for i, grad in enumerate(grads):
        if grad is None or not grad.dtype.is_floating:
            continue
        gathered = tf.gather_nd(grad, op.inputs[i])
        total = tf.reduce_sum(gathered)
        if op.inputs[2 * count + i].shape.rank == 0:
            gathered = total
        values[i] = gathered
        missing[i] = tf.reduce_sum(grad) - total
    return [*[None] * 2 * count, *values, *missing]


@ops.RegisterGradient("PicassoPackedLookup")
def _packed_lookup_grad(op, *grads):
    """IndexedSlices for the tables, as ResourceGather's gradient gives them,
    nothing for the ids, and parts of the outputs' gradients for dense inputs."""
    pack = _Pack(op)
    slices: list[list[tf.IndexedSlices]] = [[] for _ in range(pack.tables)]
    dense: list[list[tf.Tensor]] = [[] for _ in range(pack.dense)]
    first = 0
    for output, count in enumerate(op.get_attr("output_members")):
        if grads[output] is not None:
            parts = pack.split(grads[output], output, first, count)
            for member, part in enumerate(parts, start=first):
                table = pack.member_table[member]
                if table >= 0:
                    for which, rows in pack.slices(member, part):
                        slices[which].append(rows)
                else:
                    shape = tf.shape(pack.dense_input(member))
                    dense[-1 - table].append(tf.reshape(part, shape))
        first += count
    return [
        *(_joined(parts) for parts in slices),
        *[None] * pack.sources,
        *(tf.add_n(parts) if parts else None for parts in dense),
    ]


class _Pack:
    """The op's inputs and attributes, member by member."""

    def __init__(self, op):
        self._op = op
        self.tables = op.get_attr("N")
        self.dense = op.get_attr("D")
        self.sources = len(op.get_attr("Tids"))
        self.member_table = op.get_attr("member_table")
        self._shapes = [tf.TensorShape(s) for s in op.get_attr("member_shape")]

    def dense_input(self, member: int) -> tf.Tensor:
        position = self.tables + self.sources - 1 - self.member_table[member]
        return self._op.inputs[position]

    def split(self, grad, output: int, first: int, count: int):
        """The gradient of each member of an output."""
        chunk_dims = self._op.get_attr("output_chunk_dims")[output]
        if self._op.get_attr("output_stack")[output]:
            axis = tf.rank(grad) - 1 - chunk_dims
            parts = tf.split(grad, count, axis=axis)
            return parts
        if count == 1:
            return [grad]
        members = range(first, first + count)
        sizes = [self._shape(member)[-chunk_dims] for member in members]
        return tf.split(grad, tf.stack(sizes), axis=tf.rank(grad) - chunk_dims)

    def slices(self, member: int, grad):
        """(table, its gradient), one per part where the table is in parts."""
        whole = self.rows(member, grad)
        counts = self._op.get_attr("partition_parts")
        if not counts or counts[member] == 0:
            return [(self.member_table[member], whole)]
        count = counts[member]
        first = sum(counts[:member])
        tables = self._op.get_attr("partition_tables")[first : first + count]
        parts, rows = self._places(member, whole.indices)
        rows = tf.dynamic_partition(rows, parts, count)
        values = tf.dynamic_partition(whole.values, parts, count)
        return [
            (table, tf.IndexedSlices(values[i], rows[i], self._shape_of(table)))
            for i, table in enumerate(tables)
        ]

    def _places(self, member: int, ids):
        """The part of each id, and the row in it, as tf.nn.embedding_lookup
        computes them."""
        count = self._op.get_attr("partition_parts")[member]
        if self._op.get_attr("partition_strategy")[member] == b"mod":
            return tf.cast(ids % count, tf.int32), ids // count
        size, extras = divmod(self._op.get_attr("partition_rows")[member], count)
        parts = tf.maximum(ids // (size + 1), (ids - extras) // size)
        rows = tf.where(parts < extras, ids % (size + 1), (ids - extras) % size)
        return tf.cast(parts, tf.int32), rows

    def rows(self, member: int, grad) -> tf.IndexedSlices:
        shape = self._table_shape(member)
        ids = self._ids(member)
        values_shape = tf.concat([[tf.size(ids)], shape[1:]], 0)
        if self._op.get_attr("cast_rows"):
            grad = tf.cast(grad, tf.float32)
        return tf.IndexedSlices(tf.reshape(grad, values_shape), ids, shape)

    def _table_shape(self, member: int):
        return self._shape_of(self.member_table[member])

    def _shape_of(self, table: int):
        return resource_variable_ops.variable_shape(self._op.inputs[table])

    def _source(self, member: int) -> tf.Tensor:
        source = self._op.get_attr("ids_source")[member]
        return self._op.inputs[self.tables + source]

    def _ids(self, member: int) -> tf.Tensor:
        """The member's ids, flat."""
        ids = self._source(member)
        width = self._op.get_attr("ids_width")[member]
        if width >= 0:
            begin = self._op.get_attr("ids_begin")[member]
            ids = ids[:, begin : begin + width]
        if self._op.get_attr("ids_narrow")[member]:
            ids = tf.cast(ids, tf.int32)
        modes = self._op.get_attr("ids_mode")
        mode = modes[member] if modes else Mode.PLAIN
        if mode != Mode.PLAIN:
            rows = tf.cast(self._table_shape(member)[0], ids.dtype)
            if mode == Mode.WRAP:
                ids = tf.where(ids < 0, ids + rows, ids)
            else:
                ids = tf.clip_by_value(ids, 0, rows - 1)
        return tf.reshape(ids, [-1])

    def _shape(self, member: int) -> tf.Tensor:
        """The member's shape as the output's join sees it."""
        if self.member_table[member] < 0:
            return tf.shape(self.dense_input(member))
        row = self._table_shape(member)[1:]
        declared = self._shapes[member]
        if declared.rank is None:
            return tf.concat([tf.shape(self._source(member)), row], 0)
        elements = tf.size(self._ids(member)) * tf.reduce_prod(row)
        sizes = [-1 if size is None else size for size in declared.as_list()]
        known = 1
        for size in sizes:
            known *= size if size >= 0 else 1
        return tf.stack([elements // known if size < 0 else size for size in sizes])


def _joined(parts: list[tf.IndexedSlices]) -> tf.IndexedSlices | None:
    """The slices of one table; ids of two types become int64."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return tf.IndexedSlices(
        tf.concat([part.values for part in parts], 0),
        tf.concat([tf.cast(part.indices, tf.int64) for part in parts], 0),
        parts[0].dense_shape,
    )


@ops.RegisterGradient("PicassoDotInteraction")
def _dot_interaction_grad(op, grad):
    """Of each input, in its shape."""
    names = ("fields", "dim", "self_interaction", "full", "pack")
    attrs = {name: op.get_attr(name) for name in names}
    total = load_ops().picasso_dot_interaction_grad(
        grad, list(op.inputs), flat=True, **attrs
    )
    widths = [tf.reduce_prod(tf.shape(x)[1:]) for x in op.inputs]
    parts = tf.split(total, tf.stack(widths), axis=1, num=len(widths))
    return [tf.reshape(p, tf.shape(x)) for p, x in zip(parts, op.inputs, strict=True)]
