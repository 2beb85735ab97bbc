"""Functions that functions call, in loops and branches: packed as if their bodies
stood there, within one frame and one branch."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from helpers_models import (
    ROWS,
    TF_MINOR,
    assert_all_same,
    id_batches,
    label_batches,
    strict,
    table_values,
    watch,
)

import picasso_tf

FIELDS, DIM, STEPS = len(ROWS), 4, 4
KERAS_2 = TF_MINOR < (2, 16)


class Model(tf.Module):
    """Bags of two ids a field; `rows` is a function within a function."""

    def __init__(self):
        self.tables = [
            tf.Variable(table_values(size, DIM, i), name=f"table_{i}")
            for i, size in enumerate(ROWS)
        ]
        self.slots = [tf.Variable(tf.fill(t.shape, 0.1)) for t in self.tables]
        self.rows = tf.function(self._rows)
        self.loss = tf.function(self._loss)

    def _rows(self, ids):
        return tf.concat(
            [
                tf.nn.safe_embedding_lookup_sparse(
                    table, tf.sparse.from_dense(ids[:, i : i + 1] + 1), combiner="mean"
                )
                for i, table in enumerate(self.tables)
            ],
            axis=1,
        )

    def _loss(self, ids, labels):
        return tf.reduce_mean(tf.square(tf.reduce_sum(self.rows(ids), 1) - labels))

    def apply(self, gradients):
        for table, slot, gradient in zip(
            self.tables, self.slots, gradients, strict=True
        ):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=table.handle,
                accum=slot.handle,
                lr=0.1,
                epsilon=1e-7,
                grad=gradient.values,
                indices=gradient.indices,
            )


def clipped(ids):
    """Ids that have a row after one is added to them."""
    return ids % (np.asarray(ROWS) - 1)


def plain(model, ids, labels):
    with tf.GradientTape() as tape:
        loss = model.loss(ids, labels)
    model.apply(tape.gradient(loss, model.tables))
    return loss


def twice(model, ids, labels):
    with tf.GradientTape() as tape:
        loss = model.loss(ids, labels) + model.loss(ids[::2], labels[::2])
    model.apply(tape.gradient(loss, model.tables))
    return loss


def looped(model, ids, labels):
    total = tf.constant(0.0)
    for i in tf.range(3):
        total += plain(model, ids[i:], labels[i:])
    return total


def stateless_loop(model, ids, labels):
    return tf.while_loop(
        lambda i, total: i < 3,
        lambda i, total: (i + 1, total + model.loss(ids[i:], labels[i:])),
        (0, tf.constant(0.0)),
    )[1]


def branched(model, ids, labels):
    if tf.reduce_sum(labels) > 4.0:
        return plain(model, ids, labels)
    return model.loss(ids[1:], labels[1:]) * 0.5 + model.loss(ids, labels)


def accumulated(model, ids, labels):
    """Gradients of micro-batches side by side, one update."""
    parts = []
    total = tf.constant(0.0)
    for i in range(3):
        with tf.GradientTape() as tape:
            loss = model.loss(ids[i::3], labels[i::3])
        parts.append(tape.gradient(loss, model.tables))
        total += loss
    model.apply(
        tf.IndexedSlices(
            tf.concat([g.values for g in field], 0),
            tf.concat([g.indices for g in field], 0),
        )
        for field in zip(*parts, strict=True)
    )
    return total


def data():
    batches = zip(id_batches(STEPS), label_batches(STEPS), strict=True)
    return [(tf.constant(clipped(ids)), tf.constant(y)) for ids, y in batches]


def train(step):
    model = Model()
    ids, labels = data()[0]
    run = tf.function(functools.partial(step, model), autograph=True)
    run = run.get_concrete_function(spec(ids), spec(labels))
    losses = [run(ids, labels).numpy() for ids, labels in data()]
    return losses + [v.numpy() for v in (*model.tables, *model.slots)]


def spec(tensor):
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


@pytest.mark.parametrize(
    ("step", "packs"),
    [
        (plain, [FIELDS]),
        (twice, [2 * FIELDS]),
        (looped, [FIELDS]),
        (stateless_loop, [FIELDS]),
        (branched, [FIELDS, 2 * FIELDS]),
        (accumulated, [3 * FIELDS]),
    ],
)
def test_in_a_function(step, packs):
    expected = train(step)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = train(step)
    seen.assert_packed()
    assert sorted(seen.members("lookup")) == packs, seen.text()
    assert_all_same(got, expected)


@pytest.mark.parametrize("step", [plain, twice, stateless_loop, accumulated])
def test_in_a_session(step):
    """The same steps in a graph of TensorFlow 1."""

    def run(packed):
        with tf.Graph().as_default() as graph:
            model = Model()
            ids = tf.compat.v1.placeholder(tf.int64, [None, FIELDS])
            labels = tf.compat.v1.placeholder(tf.float32, [None])
            variables = [*model.tables, *model.slots]
            loss = tf.function(lambda x, y: step(model, x, y))(ids, labels)
            init = tf.group(*(v.initializer for v in variables))
            reads = [v.read_value() for v in variables]
        config = picasso_tf.session_config(options=strict()) if packed else None
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            session.run(init)
            losses = [
                session.run(loss, {ids: clipped(x), labels: y})
                for x, y in zip(id_batches(STEPS), label_batches(STEPS), strict=True)
            ]
            return losses + session.run(reads)

    expected = run(False)
    with watch() as seen:
        got = run(True)
    seen.assert_packed()
    assert sum(seen.members("lookup")) >= FIELDS, seen.text()
    assert_all_same(got, expected)


@pytest.mark.parametrize("steps", [1, 3])
def test_in_keras(steps):
    """A layer that calls a function; several steps per execution are a loop."""

    class Layer(tf.keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embeddings = [tf.keras.layers.Embedding(size, DIM) for size in ROWS]
            self.joined = tf.function(self._joined)

        def build(self, shape):
            for embedding in self.embeddings:
                embedding.build((None,))
            self.built = True

        def _joined(self, ids):
            rows = [e(ids[:, i]) for i, e in enumerate(self.embeddings)]
            return tf.concat(rows, axis=1)

        def call(self, ids):
            return self.joined(ids)

    def fit():
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential([Layer(), tf.keras.layers.Dense(1)])
        keras = tf.keras.optimizers
        make = keras.legacy.Adagrad if KERAS_2 else keras.Adagrad
        model.compile(make(0.1), "mse", steps_per_execution=steps, jit_compile=False)
        x = np.concatenate(id_batches(6))
        y = np.concatenate(label_batches(6))[:, None]
        history = model.fit(x, y, batch_size=16, shuffle=False, verbose=0, epochs=2)
        return [*map(np.float32, history.history["loss"]), *model.get_weights()]

    expected = fit()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit()
    seen.assert_packed()
    assert FIELDS in seen.members("lookup"), seen.text()
    assert_all_same(got, expected)
