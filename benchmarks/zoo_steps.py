"""Training steps of a DeepCTR model, one contender; benchmarks/race.py."""

from __future__ import annotations

import contextlib
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import picasso_tf
from benchmarks import counts, zoo_models
from benchmarks.cases import OURS, ZooCase
from benchmarks.first_step import watch
from benchmarks.gate import Gate

keras = tf.keras


def build(case: ZooCase) -> zoo_models.Feeding:
    """The model, with variables of a seed, and its one batch."""
    clicks = zoo_models.draw_clicks(case.fields, case.rows, case.dim, case.batch)
    if case.experts:
        return zoo_models.multi_task_model(
            case.model, clicks, case.tasks, num_experts=case.experts
        )
    return zoo_models.KERAS[case.model](case.model, clicks)


def step_of(feeding: zoo_models.Feeding):
    """A tf.function that trains on the batch, and returns the loss."""
    model = feeding.model
    optimizer = keras.optimizers.Adagrad(0.01)
    optimizer.build(model.trainable_variables)
    features = {
        tensor.name: tf.constant(_column(feeding.features[tensor.name], tensor))
        for tensor in model.inputs
    }
    labels = [tf.constant(of[:, None], tf.float32) for of in feeding.labels]

    @tf.function(jit_compile=False)
    def step():
        with tf.GradientTape() as tape:
            outputs = model(features, training=True)
            outputs = outputs if isinstance(outputs, list) else [outputs]
            losses = [
                tf.reduce_mean(keras.losses.binary_crossentropy(label, output))
                for label, output in zip(labels, outputs, strict=True)
            ]
            loss = tf.add_n(losses + model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    return step


def _column(values: np.ndarray, tensor) -> np.ndarray:
    """In the shape and the type that the model's input has."""
    shape = [-1, *tensor.shape[1:]]
    return values.reshape(shape).astype(tensor.dtype.as_numpy_dtype)


def main() -> None:
    gate = Gate()
    case = ZooCase.from_dict(gate.job["case"])
    ours = gate.job["contender"] == OURS
    gate.imported()
    keras.utils.set_random_seed(1)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        feeding = build(case)
    step = step_of(feeding)
    if ours:
        gate.at_end = watch(gate)
        picasso_tf.enable(picasso_tf.Options(strict=True))
    go = gate.ready()
    while go:
        go = gate.step(step().numpy())
    digest = hashlib.sha1()
    for variable in feeding.model.variables:
        digest.update(variable.numpy().tobytes())
    again = tf.function(step.python_function, jit_compile=False)
    ops = counts.in_largest_function(again)
    gate.finish(ops_graph=ops, digest=digest.hexdigest())


if __name__ == "__main__":
    main()
