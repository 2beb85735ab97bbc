"""Keras 3 models train to the same bits, with all their lookups packed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from helpers_models import assert_all_same, needs_keras_3, strict, table_values, watch

import picasso_tf
from picasso_tf import xla

keras = tf.keras
pytestmark = needs_keras_3

ROWS = (7, 50, 20, 50)
DIMS = (4, 4, 8, 4)
FIELDS = len(ROWS)
BATCH = 16


@dataclasses.dataclass(frozen=True)
class Training:
    """One way to train. `updates`: packed updates of a step; None: not checked."""

    optimizer: str
    updates: int | None = None
    ids: str = "int32"
    policy: str = "float32"
    arguments: tuple = ()

    def __str__(self):
        return "-".join(
            [self.optimizer, self.ids, self.policy, *map(str, self.arguments)]
        )

    def make(self):
        return getattr(keras.optimizers, self.optimizer)(0.05, **dict(self.arguments))


TRAININGS = [
    Training("SGD", FIELDS, "int64"),
    Training("SGD", FIELDS, policy="mixed_float16"),
    Training("Adagrad", 2 * FIELDS, "int64", "mixed_bfloat16"),
    Training("RMSprop", FIELDS),
    Training("Adadelta", FIELDS, "int64"),
    Training("Ftrl"),
    Training("Adam", None, "int64", "mixed_float16"),
    Training("AdamW"),
]
MORE_TRAININGS = [
    Training("SGD", FIELDS),
    Training("SGD", FIELDS, policy="mixed_bfloat16"),
    Training("SGD", arguments=(("momentum", 0.9),)),
    Training("Adagrad", 2 * FIELDS),
    Training("RMSprop", FIELDS, "int64", "mixed_float16"),
    Training("Adam"),
    Training("AdamW", None, "int64"),
    *(
        Training("Adagrad", arguments=((name, value),))
        for name, value in {
            "clipnorm": 0.01,
            "global_clipnorm": 0.01,
            "weight_decay": 0.01,
            "use_ema": True,
            "gradient_accumulation_steps": 2,
        }.items()
    ),
]


def make_model(training: Training, **compile_arguments):
    layers = keras.layers
    inputs = [keras.Input([1], dtype=training.ids) for _ in range(FIELDS)]
    numbers = keras.Input([3])
    with_policy = {"dtype": training.policy}
    rows = [
        layers.Flatten(**with_policy)(layers.Embedding(size, dim, **with_policy)(ids))
        for size, dim, ids in zip(ROWS, DIMS, inputs, strict=True)
    ]
    x = layers.Concatenate(**with_policy)([*rows, numbers])
    x = layers.Dense(8, activation="relu", **with_policy)(x)
    out = layers.Dense(1, activation="sigmoid", dtype="float32")(x)
    model = keras.Model([*inputs, numbers], out)
    set_weights(model)
    model.compile(
        compile_arguments.pop("optimizer", None) or training.make(),
        "binary_crossentropy",
        jit_compile=False,
        **compile_arguments,
    )
    return model


def set_weights(model) -> None:
    model.set_weights(
        [
            np.zeros(w.shape, np.float32)
            if len(w.shape) == 1
            else table_values(*w.shape, seed=i)
            for i, w in enumerate(model.get_weights())
        ]
    )


def data(steps: int, ids: str = "int32"):
    """Ids that repeat, and some that count from the table's end."""
    rng = np.random.default_rng(3)
    size = [steps * BATCH, 1]
    fields = [rng.integers(-rows, rows, size).astype(ids) for rows in ROWS]
    numbers = rng.normal(size=[size[0], 3]).astype(np.float32)
    return [*fields, numbers], rng.integers(0, 2, size).astype(np.float32)


def state(model) -> list[np.ndarray]:
    """Weights and slots."""
    return [
        *(np.asarray(v) for v in model.get_weights()),
        *(np.asarray(v.value) for v in model.optimizer.variables),
    ]


def fit(training: Training, steps: int = 10, **arguments) -> list[np.ndarray]:
    model = make_model(training, **arguments)
    x, y = data(steps, training.ids)
    run = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    return [np.array(run.history["loss"]), *state(model)]


def both(function, *args, lookups: int = FIELDS, updates=None, **kwargs):
    """The function's results agree; all lookups of its first graph were packed."""
    expected = function(*args, **kwargs)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = function(*args, **kwargs)
    assert_all_same(got, expected)
    seen.assert_packed()
    for report in seen.changed():
        packed = [p for p in report.packs if p.kind == "lookup"]
        assert sum(len(p.members) for p in packed) == lookups, seen.text()
        # The tables are read by packs alone.
        assert "GatherV2" not in {item.op for item in report.skipped}, seen.text()
    if updates is not None:
        assert sum(seen.members("update")) == updates * len(seen.changed()), seen.text()
    return seen


@pytest.mark.parametrize("training", TRAININGS, ids=str)
def test_fit(training):
    both(fit, training, updates=training.updates)


@pytest.mark.slow
@pytest.mark.parametrize("training", MORE_TRAININGS, ids=str)
def test_fit_more(training):
    both(fit, training, updates=training.updates)


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_train_on_batch(optimizer):
    def train():
        model = make_model(Training(optimizer))
        x, y = data(10)
        losses = []
        for start in range(0, len(y), BATCH):
            part = slice(start, start + BATCH)
            losses.append(model.train_on_batch([each[part] for each in x], y[part]))
        return [np.array(losses), *state(model)]

    both(train)


def test_steps_per_execution():
    both(fit, Training("Adagrad"), steps=8, steps_per_execution=4)


def test_evaluate_and_predict():
    model = make_model(Training("SGD"))
    x, y = data(3)

    def run():
        return [
            np.array(model.evaluate(x, y, batch_size=BATCH, verbose=0)),
            model.predict(x, batch_size=BATCH, verbose=0),
            model.predict(x, batch_size=20, verbose=0),
            np.asarray(model(x)),
        ]

    def run_anew():
        model.make_test_function(force=True)
        model.make_predict_function(force=True)
        return run()

    both(run_anew)


def test_empty_batch():
    def run():
        model = make_model(Training("SGD"))
        x, _ = data(1)
        return [tf.function(model)([each[:0] for each in x]).numpy()]

    both(run)


@pytest.mark.parametrize("bad", [20, -21])
def test_bad_ids(bad):
    texts = []
    for flag in (False, True):
        model = make_model(Training("SGD"))
        x, y = data(1)
        x[2][5] = bad
        if flag:
            picasso_tf.enable(strict())
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        texts.append(str(caught.value))
    wanted = f"indices[5,0] = {bad + 20 if bad < 0 else bad} is not in [0, 20)"
    assert wanted in texts[0] and wanted in texts[1]


def test_a_shared_embedding():
    """Two lookups of one table: the updates add up in stock's order."""

    def train():
        shared = keras.layers.Embedding(50, 4)
        alone = keras.layers.Embedding(20, 4)
        inputs = [keras.Input([n], dtype="int32") for n in (1, 3, 1)]
        rows = [shared(inputs[0]), shared(inputs[1]), alone(inputs[2])]
        x = keras.layers.Concatenate()([keras.layers.Flatten()(r) for r in rows])
        model = keras.Model(inputs, keras.layers.Dense(1)(x))
        set_weights(model)
        model.compile(keras.optimizers.Adagrad(0.1), "mse", jit_compile=False)
        rng = np.random.default_rng(0)
        ids = [rng.integers(-9, 9, [160, n]).astype("int32") for n in (1, 3, 1)]
        model.fit(ids, np.ones([160, 1]), batch_size=16, shuffle=False, verbose=0)
        return state(model)

    both(train, lookups=3)


def test_mask_zero_and_sequences():
    def train():
        inputs = [keras.Input([5], dtype="int32") for _ in range(2)]
        rows = [keras.layers.Embedding(30, 8, mask_zero=True)(i) for i in inputs]
        pooled = [keras.layers.GlobalAveragePooling1D()(row) for row in rows]
        out = keras.layers.Dense(1)(keras.layers.Concatenate()(pooled))
        model = keras.Model(inputs, out)
        set_weights(model)
        model.compile("rmsprop", "mse", jit_compile=False)
        ids = [np.random.default_rng(i).integers(0, 30, [64, 5]) for i in range(2)]
        model.fit(ids, np.ones([64, 1]), batch_size=16, shuffle=False, verbose=0)
        return state(model)

    both(train, lookups=2)


def test_ragged_ids():
    tables = [keras.layers.Embedding(30, 8) for _ in range(2)]
    for layer in tables:
        layer.build()

    def run():
        @tf.function
        def look_up(ragged):
            return [tf.reduce_sum(layer(ragged), 1) for layer in tables]

        ragged = tf.ragged.constant([[1, -2], [], [3, 3, 29]])
        return [rows.numpy() for rows in look_up(ragged)]

    both(run, lookups=2)


def test_sparse_ids():
    """A sum over ids, through SparseSegmentSum: another form, which stays."""
    layers = [keras.layers.Embedding(30, 8) for _ in range(2)]
    for layer in layers:
        layer.build()

    @tf.function
    def look_up(sparse):
        return [layer(sparse) for layer in layers]

    sparse = tf.sparse.from_dense(np.array([[1, 0, 2], [0, 0, 0], [3, 0, 29]]))
    expected = [x.numpy() for x in look_up(sparse)]
    with picasso_tf.enabled(strict()):
        got = [x.numpy() for x in look_up(sparse)]
    assert_all_same(got, expected)


def test_lora_is_left_alone():
    layers = [keras.layers.Embedding(30, 8, lora_rank=2) for _ in range(2)]
    for layer in layers:
        layer.build()
    look_up = tf.function(lambda ids: [layer(ids) for layer in layers])
    ids = tf.constant([1, 2, -3])
    expected = [x.numpy() for x in look_up(ids)]
    with watch() as seen, picasso_tf.enabled(strict()):
        got = [x.numpy() for x in look_up(ids)]
    assert_all_same(got, expected)
    assert not seen.packs()
    assert "LoRA" in " ".join(seen.reasons()), seen.text()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_export(tmp_path, policy):
    model = make_model(Training("SGD", policy=policy))
    x, _ = data(1)
    model.export(str(tmp_path / "src"), verbose=False)
    report = picasso_tf.convert_saved_model(tmp_path / "src", tmp_path / "packed")
    lookups = [pack for pack in report.packs if pack.kind == "lookup"]
    assert {len(pack.members) for pack in lookups} == {FIELDS}
    results = []
    for name in ("src", "packed"):
        loaded = tf.saved_model.load(str(tmp_path / name))
        with tf.GradientTape() as tape:
            out = loaded.serve([tf.constant(each) for each in x])
        results.append(out.numpy())
        tables = [v for v in loaded.variables if v.shape[0] in (7, 20, 50)]
        grads = tape.gradient(out, tables)
        results.append([tf.convert_to_tensor(grad).numpy() for grad in grads])
    assert_all_same([results[2]], [results[0]])
    for ours, stock in zip(results[3], results[1], strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-3, atol=1e-5)


def test_xla_is_warned_about_once(monkeypatch):
    monkeypatch.setattr(xla, "_warned", False)
    monkeypatch.setattr(xla, "_looked_at", set())
    warnings = []
    monkeypatch.setattr(
        xla.logging, "warning", lambda text, *args: warnings.append(text % args)
    )
    x, y = data(2)
    picasso_tf.enable(strict())
    model = make_model(Training("SGD"))
    for jit_compile in (False, True, True):
        model.compile("sgd", "mse", jit_compile=jit_compile)
        model.fit(x, y, batch_size=BATCH, verbose=0)
        assert len(warnings) == int(jit_compile)
    assert "jit_compile=False" in warnings[0]
