"""The workloads as TF1 graphs, for sessions and Estimators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from benchmarks.cases import SPARSE, XLA, StepCase, Workload
from benchmarks.data import Batch
from benchmarks.inputs import sparse_of

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Variables:
    """Of a workload, each with its initial value drawn from its number."""

    tables: list[tf.Variable]
    bottom: list[tuple[tf.Variable, tf.Variable]]  # (kernel, bias) of each layer
    top: list[tuple[tf.Variable, tf.Variable]]

    @property
    def all(self) -> list[tf.Variable]:
        layers = [*self.bottom, *self.top]
        return [*self.tables, *(variable for layer in layers for variable in layer)]


def make_variables(workload: Workload) -> Variables:
    count = 0

    def variable(name, *shape, scale=0.05):
        nonlocal count
        count += 1
        value = tf.random.stateless_normal(shape, [count, 0], stddev=scale)
        return tf1.get_variable(name, initializer=value, use_resource=True)

    def layers(name, width, units):
        made = []
        for i, unit in enumerate(units):
            kernel = variable(f"{name}_kernel_{i}", width, unit)
            bias = variable(f"{name}_bias_{i}", unit, scale=0.01)
            made.append((kernel, bias))
            width = unit
        return made

    tables = [
        variable(f"table_{i}", rows, workload.dim)
        for i, rows in enumerate(workload.sizes)
    ]
    bottom = layers("bottom", workload.dense, workload.bottom)
    width = workload.tables * workload.dim
    if workload.model == "dlrm":
        vectors = workload.tables + 1
        width = workload.dim + vectors * (vectors - 1) // 2
    return Variables(tables, bottom, layers("top", width, (*workload.hidden, 1)))


def loss_of(case: StepCase, variables: Variables, ids, dense, labels) -> tf.Tensor:
    """The loss of one batch; `ids` are tensors [batch], or SparseTensors."""
    look_up = tf.nn.embedding_lookup
    if case.form == SPARSE:
        look_up = _look_up_bags
    rows = [look_up(t, i) for t, i in zip(variables.tables, ids, strict=True)]
    if case.workload.model == "dlrm":
        hidden = _interact(rows, _dense_layers(dense, variables.bottom, True))
    else:
        hidden = tf.concat(rows, 1)
    return _loss_of_top(hidden, variables, labels)


def _loss_of_top(hidden, variables: Variables, labels) -> tf.Tensor:
    logits = _dense_layers(hidden, variables.top, False)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def _look_up_bags(table: tf.Variable, ids: tf.SparseTensor) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(table, ids, combiner="mean")


def _dense_layers(hidden, layers, relu_at_end: bool):
    for i, (kernel, bias) in enumerate(layers):
        hidden = tf.matmul(hidden, kernel) + bias
        if relu_at_end or i + 1 < len(layers):
            hidden = tf.nn.relu(hidden)
    return hidden


def _interact(rows, bottom):
    """The dense vector beside the dot products of all pairs of vectors."""
    vectors = tf.stack([bottom, *rows], 1)
    products = tf.matmul(vectors, vectors, transpose_b=True)
    count = len(rows) + 1
    first, second = np.tril_indices(count, -1)
    flat = tf.reshape(products, [-1, count * count])
    pairs = tf.gather(flat, (first * count + second).astype(np.int32), axis=1)
    return tf.concat([bottom, pairs], 1)


def train_op(contender: str, case: StepCase, variables: Variables, ids, dense, labels):
    """(loss, op that trains with Adagrad). XLA compiles the loss and the gradients;
    it has no sparse Adagrad, so the updates are stock's."""

    def loss_fn(ids, dense, labels):
        return loss_of(case, variables, ids, dense, labels)

    optimizer = tf1.train.AdagradOptimizer(0.05)
    step = tf1.train.get_or_create_global_step()
    if contender != XLA:
        loss = loss_fn(ids, dense, labels)
        return loss, optimizer.minimize(loss, step)

    @tf.function(jit_compile=True)
    def loss_and_gradients(ids, dense, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(ids, dense, labels)
        return loss, tape.gradient(loss, variables.all)

    loss, gradients = loss_and_gradients(ids, dense, labels)
    pairs = list(zip(gradients, variables.all, strict=True))
    return loss, optimizer.apply_gradients(pairs, step)


def dense_train_op(workload: Workload, labels):
    """(loss, op that trains) of the layers behind the tables of an "mlp" workload.

    Their input [batch, tables * dim] is a variable that is not trained; its gradient,
    from which the tables would be updated, is computed.
    """
    width = workload.tables * workload.dim
    given = dataclasses.replace(workload, tables=1, rows=workload.batch, dim=width)
    variables = make_variables(given)
    rows = variables.tables[0].read_value()
    loss = _loss_of_top(rows, variables, labels)
    layers = [variable for layer in variables.top for variable in layer]
    optimizer = tf1.train.AdagradOptimizer(0.05)
    train = optimizer.minimize(loss, var_list=layers)
    return loss, tf.group(train, tf1.gradients(loss, rows))


# -- inputs -----------------------------------------------------------------------


def to_sparse(ids: tf.Tensor) -> tf.SparseTensor:
    """Of ids [batch, longest], those that are not MISSING."""
    where = tf.where(ids >= 0)
    shape = tf.shape(ids, out_type=tf.int64)
    return tf.SparseTensor(where, tf.gather_nd(ids, where), shape)


def arrays_of(batch: Batch) -> list[np.ndarray]:
    """A batch's arrays, for `inputs_of`."""
    arrays = []
    for ids in batch.ids:
        if ids.ndim == 1:
            arrays.append(ids)
            continue
        where = np.argwhere(ids >= 0)
        arrays += [where, ids[tuple(where.T)], np.array(ids.shape, np.int64)]
    return [*arrays, batch.dense, batch.labels]


def inputs_of(case: StepCase, tensors: Sequence[tf.Tensor]):
    """(ids, dense, labels) of the tensors of `arrays_of`."""
    *ids, dense, labels = tensors
    if case.form == SPARSE:
        ids = [sparse_of(*ids[i : i + 3]) for i in range(0, len(ids), 3)]
    return ids, dense, labels
