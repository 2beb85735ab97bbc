"""DeepCTR's models, small but with default settings: one loss curve, both ways."""

from __future__ import annotations

import dataclasses
import importlib.util

import numpy as np
import pytest
from helpers_models import KERAS_2, assert_all_same, strict, watch

import picasso_tf

if not KERAS_2 or importlib.util.find_spec("deepctr") is None:
    pytest.skip("needs Keras 2 and DeepCTR", allow_module_level=True)

from benchmarks import zoo, zoo_models

# Of each model, at least this share is packed: of its lookups, and of the tables
# that are updated.
PACKED = 0.9

FIELDS, NUMBERS = 6, 2
# Its pooling needs more fields.
MORE_FIELDS = {"FGCNN": 16}
FAILING = {
    "DIEN": "module 'tensorflow.python.ops.array_ops' has no attribute 'stack'",
}
KERAS = [name for name in zoo_models.KERAS if name not in FAILING]
# One of each kind; the others are marked zoo.
FAST = {"DeepFM", "DCN", "FwFM", "PNN", "FLEN", "DIN", "MMOE"}
FAST |= {"DeepFMEstimator", "PNNEstimator"}


def case(name: str, *more: str):
    return pytest.param(name, *more, marks=() if name in FAST else pytest.mark.zoo)


# "adam" is what DeepCTR's examples compile most models with.
RUNS = [
    *(case(name, "adam") for name in KERAS),
    *(case(name, "adagrad") for name in ("DeepFM", "BST", "AutoInt")),
    case("DeepFM", "legacy adagrad"),
    case("WDL", "legacy adam"),
]


def clicks(name: str) -> zoo_models.Clicks:
    """A narrow click log."""
    sample = zoo_models.AVAZU if name == "FLEN" else zoo_models.CRITEO
    log = zoo_models.read_clicks(zoo_models.DATA, sample)
    fields = list(log.ids)
    # FLEN wants some of each group.
    step = max(1, len(fields) // MORE_FIELDS.get(name, FIELDS))
    dense = {key: log.dense[key] for key in list(log.dense)[:NUMBERS]}
    return dataclasses.replace(log.with_fields(fields[::step]), dense=dense)


def assert_equal_and_packed(
    stock: zoo.Run, packed: zoo.Run, tables: float = PACKED
) -> None:
    assert len(stock.losses) > 2  # the sample of Avazu has three batches
    assert np.all(np.isfinite(np.concatenate([np.ravel(x) for x in stock.losses])))
    assert_all_same(packed.losses, stock.losses, "loss")
    assert_all_same(packed.weights, stock.weights, "variable")
    row = zoo.compare("", stock, packed)
    text = str(packed.report)
    assert packed.report and not packed.report.failures, text
    assert row.lookups[1] > 0 and row.tables[1] > 0, text
    assert row.lookups[0] >= PACKED * row.lookups[1], text
    assert row.tables[0] >= tables * row.tables[1], text
    assert row.ops[1] < row.ops[0]


@pytest.mark.parametrize(("name", "optimizer"), RUNS)
def test_keras(name, optimizer):
    log = clicks(name)
    stock = zoo.run_keras(name, log, optimizer)
    packed = zoo.run_keras(name, log, optimizer, zoo.STRICT)
    assert_equal_and_packed(stock, packed)


@pytest.mark.parametrize("name", map(case, zoo_models.ESTIMATORS))
def test_estimator(name):
    log = clicks(name)
    stock = zoo.run_estimator(name, log)
    packed = zoo.run_estimator(name, log, zoo.STRICT)
    assert_equal_and_packed(stock, packed)


@pytest.mark.parametrize("name", FAILING)
def test_fails_on_stock(name):
    """When this fails, the model runs: let the other tests have it."""
    with pytest.raises(Exception, match=FAILING[name]):
        zoo.run_keras(name, clicks(name), "adam")


@pytest.mark.parametrize("name", ["DCN", case("WDL")])
def test_without_l2(name, monkeypatch):
    """Gradients stay sparse: all lookups and all updates of tables are packed.

    A strength of 0 would leave the term in the loss, and gradients dense.
    """
    for module in ("inputs", "layers.utils", "layers.core", "layers.interaction"):
        monkeypatch.setattr(f"deepctr.{module}.l2", lambda strength: None)
    log = clicks(name)
    tables = 2 * len(log.ids)  # of the deep part and of the linear one
    stock = zoo.run_keras(name, log, "legacy adagrad")
    with watch() as seen:
        packed = zoo.run_keras(name, log, "legacy adagrad", zoo.STRICT)
    seen.assert_packed(lookups=tables, updates=tables)
    assert_equal_and_packed(stock, packed, tables=1.0)


def test_predictions():
    """Inference is packed too, and a model trained with packs is as stock's."""
    log = clicks("DeepFM")
    feeding = zoo_models.click_model("DeepFM", log)
    expected = feeding.model.predict(feeding.features, verbose=0)
    feeding.model.predict_function = None  # traced anew
    with watch() as seen, picasso_tf.enabled(strict()):
        got = feeding.model.predict(feeding.features, verbose=0)
    seen.assert_packed(lookups=2 * len(log.ids))
    assert_all_same([got], [expected])
