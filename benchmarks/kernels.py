"""Embedding ops alone, stock's and ours, in a process of its own; race.py."""

from __future__ import annotations

import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.cases import KernelCase
from benchmarks.data import Bags, bag_batches, output_gradient, table
from benchmarks.gate import Gate
from benchmarks.steps import config_of

tf1 = tf.compat.v1


def feed_values(case: KernelCase, bags: Bags) -> list[np.ndarray]:
    """Of the placeholders of `_look_up`, table by table."""
    if case.kind != "bags":
        return bags.ids
    values = []
    for ids, lengths in zip(bags.ids, bags.lengths, strict=True):
        bag = np.repeat(np.arange(case.batch), lengths)
        within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        shape = np.array([case.batch, max(1, lengths.max())], np.int64)
        values += [np.stack([bag, within], 1), ids, shape]
    return values


def _look_up(case: KernelCase, variables) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The pooled rows of all tables side by side, and the placeholders."""
    rows, feeds = [], []
    for variable in variables:
        if case.kind != "bags":
            feeds.append(tf1.placeholder(tf.int64, [None]))
            rows.append(tf.nn.embedding_lookup(variable, feeds[-1]))
            continue
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        feeds += [ids.indices, ids.values, ids.dense_shape]
        rows.append(tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum"))
    return tf.concat(rows, 1), feeds


def main() -> None:
    gate = Gate()
    case = KernelCase.from_dict(gate.job["case"])
    batches = [feed_values(case, bags) for bags in bag_batches(case)]
    gate.imported()
    with tf1.Graph().as_default():
        value = tf1.placeholder(tf.float32, [case.rows, case.dim])
        variables = [
            tf1.get_variable(
                f"table_{i}", [case.rows, case.dim], initializer=tf1.zeros_initializer()
            )
            for i in range(case.tables)
        ]
        assigns = [tf1.assign(variable, value).op for variable in variables]
        pooled, feeds = _look_up(case, variables)
        call = pooled.op
        if case.kind == "update":
            feeds.append(tf1.placeholder(tf.float32, pooled.shape))
            gradients = tf1.gradients(pooled, variables, feeds[-1])
            optimizer = tf1.train.AdagradOptimizer(0.01, 0.1)
            pairs = zip(gradients, variables, strict=True)
            call = optimizer.apply_gradients(pairs)
            for batch in batches:
                batch.append(output_gradient(case))
        config = config_of(gate.job["contender"], case.threads)
        session = tf1.Session(config=config)
        session.run(tf1.global_variables_initializer())
        for i, assign in enumerate(assigns):
            session.run(assign, {value: table(case, i)})
    step = session.make_callable(call, feeds)
    going = gate.ready()
    while going:
        step(*batches[gate.count % len(batches)])
        going = gate.step()
    if case.kind == "update":
        result = session.run(variables[0])
    else:
        result = session.run(pooled, dict(zip(feeds, batches[0], strict=True)))
    gate.finish(
        digest=hashlib.sha256(result.tobytes()).hexdigest(),
        checksum=float(np.abs(result).sum(dtype=np.float64)),
    )


if __name__ == "__main__":
    main()
