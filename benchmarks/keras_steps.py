"""Keras `fit` of one contender; benchmarks/steps.py."""

from __future__ import annotations

import contextlib
import threading
from unittest import mock

import numpy as np
import tensorflow as tf

import picasso_tf
from benchmarks import counts
from benchmarks.cases import NO_META, OURS, SPARSE, XLA, StepCase, Workload
from benchmarks.data import Batch, step_batches
from benchmarks.gate import Gate

keras = tf.keras


class _Stop(Exception):
    """Ends `fit` in the middle of an epoch."""


def run_keras(gate: Gate, case: StepCase, contender: str) -> None:
    batches = step_batches(case)
    gate.imported()
    if case.threads:
        tf.config.threading.set_intra_op_parallelism_threads(case.threads)
        tf.config.threading.set_inter_op_parallelism_threads(case.threads)
    if contender == NO_META:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    if contender == OURS:
        picasso_tf.enable(picasso_tf.Options(strict=True))
    keras.utils.set_random_seed(1)
    if case.workload.model == "deepfm":
        model, features = _deepfm(case.workload, batches)
    else:
        model, features = _model(case), _matrix(batches)
    model.compile(
        keras.optimizers.Adagrad(0.05),
        "binary_crossentropy",
        jit_compile=contender == XLA,
    )
    labels = np.stack([batch.labels for batch in batches])
    data = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().prefetch(2)

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not gate.step(logs["loss"]):
                raise _Stop

    gate.ready()
    with contextlib.suppress(_Stop):
        model.fit(data, steps_per_epoch=10**9, verbose=0, callbacks=[Steps()])
    gate.finish(ops_graph=_ops(model, data))


def _matrix(batches: list[Batch]) -> dict[str, np.ndarray]:
    """[batches, batch, tables], and [..., longest] for bags; dense features."""
    ids = np.stack([np.stack(batch.ids, 1) for batch in batches])
    features = {"ids": ids}
    if batches[0].dense.shape[1]:
        features["dense"] = np.stack([batch.dense for batch in batches])
    return features


def _ops(model, data) -> int:
    """Ops of the training step, traced once more: the largest function."""

    def step():
        model.make_train_function(force=True)
        model.fit(data, steps_per_epoch=1, verbose=0)

    return counts.in_largest_function(step)


class _Bags(keras.layers.Layer):
    """Means of the rows of ids [batch, longest]; ids below 0 are none."""

    def __init__(self, rows: int, dim: int, seed: int):
        super().__init__()
        self._shape = (rows, dim)
        self._seed = seed

    def build(self, input_shape):
        initializer = keras.initializers.RandomUniform(seed=self._seed)
        self.table = self.add_weight(
            shape=self._shape, initializer=initializer, name="table"
        )

    def call(self, ids):
        from benchmarks.models import to_sparse

        # Keras 3 wraps TensorFlow's variable.
        table = getattr(self.table, "value", self.table)
        table = self.table if callable(table) else table
        return tf.nn.safe_embedding_lookup_sparse(
            table, to_sparse(ids), combiner="mean"
        )

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self._shape[1])


class _Interact(keras.layers.Layer):
    """The first vector beside the dot products of all pairs of vectors."""

    def call(self, vectors):
        count = len(vectors)
        stacked = tf.stack(vectors, 1)
        products = tf.matmul(stacked, stacked, transpose_b=True)
        first, second = np.tril_indices(count, -1)
        flat = tf.reshape(products, [-1, count * count])
        pairs = tf.gather(flat, (first * count + second).astype(np.int32), axis=1)
        return tf.concat([vectors[0], pairs], 1)

    def compute_output_shape(self, shapes):
        count = len(shapes)
        return (shapes[0][0], shapes[0][1] + count * (count - 1) // 2)


def _model(case: StepCase):
    """All ids are one input, a matrix, whose columns are looked up."""
    workload, layers = case.workload, keras.layers
    bags = case.form == SPARSE
    shape = [workload.tables, 2] if bags else [workload.tables]
    inputs = {"ids": keras.Input(shape, dtype="int64", name="ids")}
    rows = []
    for i, size in enumerate(workload.sizes):
        if bags:
            layer = _Bags(size, workload.dim, i)
        else:
            uniform = keras.initializers.RandomUniform(seed=i)
            layer = layers.Embedding(size, workload.dim, uniform)
        rows.append(layer(inputs["ids"][:, i]))
    if workload.dense:
        hidden = inputs["dense"] = keras.Input([workload.dense], name="dense")
        for i, units in enumerate(workload.bottom):
            hidden = _dense(units, "relu", 1000 + i)(hidden)
        hidden = _Interact()([hidden, *rows])
    else:
        hidden = layers.Concatenate()(rows)
    for i, units in enumerate(workload.hidden):
        hidden = _dense(units, "relu", 2000 + i)(hidden)
    return keras.Model(inputs, _dense(1, "sigmoid", 3000)(hidden))


def _dense(units: int, activation: str, seed: int):
    uniform = keras.initializers.RandomUniform(seed=seed)
    return keras.layers.Dense(
        units, activation, kernel_initializer=uniform, name=f"layer_{seed}"
    )


def _deepfm(workload: Workload, batches: list[Batch]):
    """DeepCTR's model, and its features by name."""
    # Its import asks the network for its latest version, in a thread.
    with mock.patch.object(threading.Thread, "start"):
        from deepctr.feature_column import DenseFeat, SparseFeat
        from deepctr.models import DeepFM
    names = [f"C{i}" for i in range(workload.tables)]
    numbers = [f"I{i}" for i in range(workload.dense)]
    columns = [
        SparseFeat(name, vocabulary_size=rows, embedding_dim=workload.dim)
        for name, rows in zip(names, workload.sizes, strict=True)
    ] + [DenseFeat(name, 1) for name in numbers]
    features = {
        name: np.stack([batch.ids[i] for batch in batches])[..., None]
        for i, name in enumerate(names)
    }
    for i, name in enumerate(numbers):
        features[name] = np.stack([batch.dense[:, i : i + 1] for batch in batches])
    return DeepFM(columns, columns, dnn_hidden_units=workload.hidden), features
