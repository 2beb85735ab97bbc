"""Dense updates of many variables run as one op, with the bits of stock TensorFlow."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, run, tf1
from helpers_models import KERAS_2, needs_keras_2, needs_keras_3

import picasso_tf

SHAPES = [(), (1,), (3,), (8,), (40,), (7, 5), (33, 16), (1000, 16)]
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def values(shape, seed: int, dtype: str = "float32"):
    rng = np.random.default_rng([seed, len(shape), *shape])
    return np.asarray(rng.normal(size=shape)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def dense_packs(reports=None):
    reports = picasso_tf.reports() if reports is None else reports
    return [
        (report, pack)
        for report in reports
        for pack in report.packs
        if pack.kind == "dense update"
    ]


def new_packs(before, members=None):
    """Packs of dense updates made since `before`; they ran, and hold so many."""
    known = {id(report) for report in before}
    packs = dense_packs([r for r in picasso_tf.reports() if id(r) not in known])
    assert packs, str(picasso_tf.last_report())
    assert any(report.executions(pack)[1] > 0 for report, pack in packs)
    if members is not None:
        assert sum(len(pack.members) for _, pack in packs) == members, [
            str(report) for report, _ in packs
        ]
    return packs


# -- TF1: one op per variable --------------------------------------------------

TF1_OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01, epsilon=1e-3),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, momentum=0.9),
    "centered": lambda: tf1.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: tf1.train.FtrlOptimizer(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
    ),
    "ftrl_shrinkage": lambda: tf1.train.FtrlOptimizer(
        0.1, l2_shrinkage_regularization_strength=0.1
    ),
    "adadelta": lambda: tf1.train.AdadeltaOptimizer(1.0),
}


def tf1_graph(optimizer, dtype: str, shapes=SHAPES):
    graph = tf1.Graph()
    with graph.as_default():
        loss = 0.0
        for i, shape in enumerate(shapes):
            var = tf1.get_variable(
                f"v{i}", initializer=values(shape, i, dtype), use_resource=True
            )
            target = tf.constant(values(shape, 100 + i, dtype))
            loss += tf.reduce_sum(tf.cast(tf.sin(var - target) * var, tf.float64))
        train = optimizer().minimize(loss)
    return graph, train


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TF1_OPTIMIZERS)
def test_training_ops(name, dtype):
    if dtype == "bfloat16" and name in ("adadelta", "ftrl", "ftrl_shrinkage"):
        pytest.skip("the optimizer has no bfloat16")
    graph, train = tf1_graph(TF1_OPTIMIZERS[name], dtype)
    before = picasso_tf.reports()
    ours = run(graph, train, options=STRICT, steps=5)
    stock = run(graph, train, steps=5)
    assert_same(ours[1], stock[1])
    new_packs(before)


# -- Keras: chains of ops -------------------------------------------------------

KERAS_OPTIMIZERS = {
    "SGD": {},
    "SGD momentum": {"momentum": 0.9},
    "SGD nesterov": {"momentum": 0.9, "nesterov": True},
    "Adagrad": {},
    "Adam": {},
    "Adam amsgrad": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.01},
    "RMSprop": {},
    "RMSprop centered": {"centered": True, "momentum": 0.9},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Adadelta": {},
    "Adamax": {},
    "Nadam": {},
    "Adam ema": {"use_ema": True},
    "Adam decay": {"weight_decay": 0.01},
    "Adam clipnorm": {"clipnorm": 0.5},
    "Adam clipvalue": {"clipvalue": 0.05},
    "Adagrad global_clipnorm": {"global_clipnorm": 0.5},
}


def keras_run(make_optimizer, options, dtype="float32", shapes=SHAPES, steps=5):
    """Variables and slots after some steps."""
    variables = [
        tf.Variable(values(shape, i, dtype), name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]
    if not KERAS_2:
        variables = [
            tf.keras.Variable(var, dtype=dtype, name=f"k{i}")
            for i, var in enumerate(variables)
        ]
    targets = [
        tf.constant(values(shape, 100 + i, dtype)) for i, shape in enumerate(shapes)
    ]
    optimizer = make_optimizer()
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = 0.0
            for var, target in zip(variables, targets, strict=True):
                value = tf.convert_to_tensor(var)
                loss += tf.reduce_sum(
                    tf.cast(tf.sin(value - target) * value, tf.float64)
                )
        handles = variables if KERAS_2 else [var.value for var in variables]
        gradients = tape.gradient(loss, handles)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = []
    if options is None:
        losses = [step() for _ in range(steps)]
    else:
        with picasso_tf.enabled(options):
            losses = [step() for _ in range(steps)]
    state = optimizer.variables
    state = state() if callable(state) else state
    return [np.asarray(x) for x in [*losses, *variables, *state]]


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_keras(name):
    arguments = KERAS_OPTIMIZERS[name]
    kind = name.split()[0]

    def make():
        return getattr(tf.keras.optimizers, kind)(**arguments)

    stock = keras_run(make, None)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT)
    assert_same(ours, stock)
    new_packs(before)


@needs_keras_2
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop", "Ftrl"])
def test_legacy_keras(name):
    def make():
        optimizer = getattr(tf.keras.optimizers.legacy, name)()
        optimizer.build = lambda variables: None
        return optimizer

    stock = keras_run(make, None)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT)
    assert_same(ours, stock)
    if name != "Ftrl":  # its hyperparameters are variables
        new_packs(before)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop"])
def test_keras_types(name, dtype):
    def make():
        return getattr(tf.keras.optimizers, name)(0.01)

    stock = keras_run(make, None, dtype)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT, dtype)
    assert_same(ours, stock)
    new_packs(before)


_ = needs_keras_3
