"""Training steps of one contender, in a process of its own; benchmarks/race.py."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import picasso_tf
from benchmarks import counts
from benchmarks.cases import (
    DENSE,
    ESTIMATOR,
    KERAS,
    NO_META,
    OURS,
    SESSION,
    SPARSE,
    StepCase,
)
from benchmarks.data import step_batches
from benchmarks.first_step import watch
from benchmarks.gate import Gate
from benchmarks.inputs import iterate
from benchmarks.models import (
    arrays_of,
    dense_train_op,
    inputs_of,
    make_variables,
    to_sparse,
    train_op,
)

tf1 = tf.compat.v1
CHUNK_BYTES = 256 * 2**20
TRACED = tf1.RunOptions(
    trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True
)


def config_of(contender: str, threads: int, base=None) -> tf1.ConfigProto:
    config = tf1.ConfigProto()
    config.CopyFrom(base or tf1.ConfigProto())
    config.intra_op_parallelism_threads = threads
    config.inter_op_parallelism_threads = threads
    if contender == NO_META:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    if contender == OURS:
        # Strict: a pass that fails shall end the run, not slow it down.
        return picasso_tf.session_config(config, picasso_tf.Options(strict=True))
    return config


def traced(metadata) -> dict[str, int]:
    return {
        "ops_graph": counts.in_graph(metadata.partition_graphs),
        "ops_executed": counts.executed(metadata.step_stats),
    }


def run_session(gate: Gate, case: StepCase, contender: str) -> None:
    batches = step_batches(case)
    gate.imported()
    with tf1.Graph().as_default():
        if contender == DENSE:
            (labels,), start = iterate([[batch.labels] for batch in batches])
            fetches = dense_train_op(case.workload, labels)
        else:
            tensors, start = iterate([arrays_of(batch) for batch in batches])
            variables = make_variables(case.workload)
            fetches = train_op(contender, case, variables, *inputs_of(case, tensors))
        session = tf1.Session(config=config_of(contender, case.threads))
        _initialize(session, tf1.global_variables())
        session.run(start)
    step = session.make_callable(list(fetches))
    going = gate.ready()
    while going:
        going = gate.step(step()[0])
    metadata = tf1.RunMetadata()
    session.run(fetches, options=TRACED, run_metadata=metadata)
    gate.finish(**traced(metadata))


def _initialize(session: tf1.Session, variables: Sequence[tf.Variable]) -> None:
    """Not all at once: the drawn values would be the peak of memory."""
    chunk, size = [], 0
    for variable in variables:
        chunk.append(variable.initializer)
        size += variable.shape.num_elements() * variable.dtype.size
        if size > CHUNK_BYTES:
            session.run(chunk)
            chunk, size = [], 0
    session.run(chunk)


def run_estimator(gate: Gate, case: StepCase, contender: str) -> None:
    from tensorflow_estimator.python.estimator import run_config

    tf.get_logger().setLevel("ERROR")
    batches = step_batches(case)
    gate.imported()

    def input_fn():
        features = {
            f"ids_{i}": _stack(b.ids[i] for b in batches) for i in range(tables)
        }
        features["dense"] = _stack(batch.dense for batch in batches)
        data = (features, _stack(batch.labels for batch in batches))
        return tf.data.Dataset.from_tensor_slices(data).cache().repeat().prefetch(2)

    def model_fn(features, labels, mode):
        ids = [features[f"ids_{i}"] for i in range(tables)]
        if case.form == SPARSE:
            ids = [to_sparse(padded) for padded in ids]
        variables = make_variables(case.workload)
        loss, train = train_op(
            contender, case, variables, ids, features["dense"], labels
        )
        hooked["loss"] = loss
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)

    class Steps(tf1.train.SessionRunHook):
        stopped, figures = False, None

        def before_run(self, context):
            options = TRACED if self.stopped else None
            return tf1.train.SessionRunArgs(hooked["loss"], options=options)

        def after_run(self, context, values):
            if self.stopped:
                self.figures = traced(values.run_metadata)
                context.request_stop()
            elif not gate.step(float(values.results)):
                self.stopped = True

    tables = case.workload.tables
    hooked = {}
    hook = Steps()
    base = run_config.get_default_session_config()
    with tempfile.TemporaryDirectory() as folder:
        estimator = tf.estimator.Estimator(
            model_fn,
            folder,
            tf.estimator.RunConfig(
                save_checkpoints_steps=None,
                save_checkpoints_secs=None,
                save_summary_steps=None,
                log_step_count_steps=None,
                session_config=config_of(contender, case.threads, base),
            ),
        )
        gate.ready()
        estimator.train(input_fn, hooks=[hook])
    gate.finish(**hook.figures)


def _stack(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.stack(list(arrays))


def main() -> None:
    gate = Gate()
    case = StepCase.from_dict(gate.job["case"])
    if gate.job["contender"] == OURS:
        gate.at_end = watch(gate)
    if case.way == KERAS:
        from benchmarks.keras_steps import run_keras as run
    else:
        run = {SESSION: run_session, ESTIMATOR: run_estimator}[case.way]
    run(gate, case, gate.job["contender"])


if __name__ == "__main__":
    main()
