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
from benchmarks.inputs import iterate, sparse_of
from benchmarks.steps import config_of

tf1 = tf.compat.v1


def arrays_of(case: KernelCase, bags: Bags) -> list[np.ndarray]:
    """What `_look_up` reads, table by table; for an update, also the gradient."""
    if case.kind == "update":
        return [*bags.ids, output_gradient(case)]
    if case.kind == "lookup":
        return bags.ids
    values = []
    for ids, lengths in zip(bags.ids, bags.lengths, strict=True):
        bag = np.repeat(np.arange(case.batch), lengths)
        within = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        shape = np.array([case.batch, max(1, lengths.max())], np.int64)
        values += [np.stack([bag, within], 1), ids, shape]
    return values


def _look_up(case: KernelCase, variables, tensors) -> tf.Tensor:
    """The pooled rows of all tables side by side."""
    if case.kind != "bags":
        ids = tensors[: case.tables]
        rows = map(tf.nn.embedding_lookup, variables, ids)
        return tf.concat(list(rows), 1)
    rows = []
    for i, variable in enumerate(variables):
        ids = sparse_of(*tensors[3 * i : 3 * i + 3])
        rows.append(tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum"))
    return tf.concat(rows, 1)


def _variable(case: KernelCase, index: int) -> tf.Variable:
    """Its value is computed while it is initialized: all of them in one run."""

    def initial() -> tf.Tensor:
        (value,) = tf1.py_func(lambda: table(case, index), [], [tf.float32])
        return tf.ensure_shape(value, [case.rows, case.dim])

    return tf1.Variable(initial, name=f"table_{index}", use_resource=True)


def main() -> None:
    gate = Gate()
    case = KernelCase.from_dict(gate.job["case"])
    batches = [arrays_of(case, bags) for bags in bag_batches(case)]
    gate.imported()
    with tf1.Graph().as_default():
        variables = [_variable(case, i) for i in range(case.tables)]
        tensors, start = iterate(batches)
        pooled = _look_up(case, variables, tensors)
        call = pooled.op
        if case.kind == "update":
            gradients = tf1.gradients(pooled, variables, tensors[-1])
            optimizer = tf1.train.AdagradOptimizer(0.01, 0.1)
            pairs = zip(gradients, variables, strict=True)
            call = optimizer.apply_gradients(pairs)
        config = config_of(gate.job["contender"], case.threads)
        session = tf1.Session(config=config)
        session.run(tf1.global_variables_initializer())
        session.run(start)
    step = session.make_callable(call)
    going = gate.ready()
    while going:
        step()
        going = gate.step()
    if case.kind == "update":
        result = session.run(variables[0])
    else:
        session.run(start)
        result = session.run(pooled)
    gate.finish(
        digest=hashlib.sha256(result.tobytes()).hexdigest(),
        checksum=float(np.abs(result).sum(dtype=np.float64)),
    )


if __name__ == "__main__":
    main()
