"""Generated recommender workloads, as TF1 graphs."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


@dataclasses.dataclass(frozen=True)
class Workload:
    """Plain lookups of many tables, concatenated, in front of an MLP.

    Attributes:
      tables, rows, dim: the embedding tables, float32.
      batch: examples a step.
      zipf: exponent of the ids' distribution.
      hidden: widths of the MLP's hidden layers.
    """

    name: str
    tables: int
    rows: int
    dim: int
    batch: int
    zipf: float = 1.2
    hidden: tuple[int, ...] = (64, 32)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W26", tables=26, rows=10_000, dim=16, batch=512),
        Workload("W200", tables=200, rows=2_000, dim=16, batch=512),
        Workload("W1000", tables=1_000, rows=1_000, dim=8, batch=256),
    )
}


@dataclasses.dataclass
class Model:
    """A training graph: one placeholder of ids per table, Adagrad."""

    graph: tf1.Graph
    feeds: list[tf.Tensor]  # ids [batch] int64 per table, then labels [batch, 1]
    loss: tf.Tensor
    train: tf.Operation
    init: tf.Operation


def build(workload: Workload) -> Model:
    graph = tf1.Graph()
    random = np.random.RandomState(0)
    with graph.as_default():

        def variable(name, *shape, scale=0.05):
            value = (random.randn(*shape) * scale).astype(np.float32)
            return tf1.get_variable(name, initializer=value, use_resource=True)

        ids = [
            tf1.placeholder(tf.int64, [None], name=f"ids_{i}")
            for i in range(workload.tables)
        ]
        rows = [
            tf.nn.embedding_lookup(
                variable(f"table_{i}", workload.rows, workload.dim), ids[i]
            )
            for i in range(workload.tables)
        ]
        hidden = tf.concat(rows, 1)
        width = workload.tables * workload.dim
        for layer, units in enumerate((*workload.hidden, 1)):
            kernel = variable(f"kernel_{layer}", width, units)
            bias = variable(f"bias_{layer}", units, scale=0)
            hidden = tf.matmul(hidden, kernel) + bias
            if layer < len(workload.hidden):
                hidden = tf.nn.relu(hidden)
            width = units
        labels = tf1.placeholder(tf.float32, [None, 1], name="labels")
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=hidden)
        loss = tf.reduce_mean(losses)
        train = tf1.train.AdagradOptimizer(0.05).minimize(loss)
        init = tf1.global_variables_initializer()
    return Model(graph, [*ids, labels], loss, train, init)


def batches(workload: Workload, count: int) -> list[list[np.ndarray]]:
    """`count` batches, in the order of Model.feeds."""
    random = np.random.RandomState(1)
    result = []
    for _ in range(count):
        ids = [
            (random.zipf(workload.zipf, workload.batch) % workload.rows).astype(
                np.int64
            )
            for _ in range(workload.tables)
        ]
        labels = (random.rand(workload.batch, 1) > 0.5).astype(np.float32)
        result.append([*ids, labels])
    return result
