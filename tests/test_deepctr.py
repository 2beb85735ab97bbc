"""DeepCTR's models on a sample of Criteo's click log: one loss curve, both ways."""

from __future__ import annotations

import csv
import threading
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from helpers_models import ROOT, assert_all_same, needs_keras_2, strict, watch

import picasso_tf

DATA = ROOT.parent / "shared" / "data" / "criteo_sample.txt"
SPARSE = [f"C{i}" for i in range(1, 27)]
DENSE = [f"I{i}" for i in range(1, 14)]
MODELS = ["WDL", "DeepFM", "DCN"]
TABLES = 2 * len(SPARSE)  # of the deep part and of the linear one

pytestmark = [
    needs_keras_2,
    pytest.mark.skipif(not DATA.exists(), reason="the data is not there"),
]


@pytest.fixture(scope="module")
def deepctr():
    # On import, it asks the network for its latest version.
    with mock.patch.object(threading.Thread, "start"):
        pytest.importorskip("deepctr")
        return pytest.importorskip("deepctr.models")


@pytest.fixture(scope="module")
def criteo():
    """(features by name, labels, size of each vocabulary): ids are the ranks of
    the sorted values, numbers are scaled to 0..1."""
    with DATA.open() as file:
        rows = list(csv.DictReader(file))
    features, sizes = {}, {}
    for name in SPARSE:
        words = sorted({row[name] for row in rows})
        ranks = {word: rank for rank, word in enumerate(words)}
        features[name] = np.array([ranks[row[name]] for row in rows])
        sizes[name] = len(words)
    for name in DENSE:
        values = np.array([float(row[name] or 0) for row in rows], np.float32)
        spread = values.max() - values.min()
        features[name] = (values - values.min()) / max(spread, 1.0)
    labels = np.array([float(row["label"]) for row in rows], np.float32)
    return features, labels, sizes


def fit(deepctr, name: str, criteo) -> list[np.ndarray]:
    """Loss curve, weights and predictions after three epochs."""
    from deepctr.feature_column import DenseFeat, SparseFeat

    features, labels, sizes = criteo
    columns = [
        SparseFeat(field, vocabulary_size=sizes[field], embedding_dim=4)
        for field in SPARSE
    ]
    columns += [DenseFeat(field, 1) for field in DENSE]
    zeros = {"l2_reg_linear": 0, "l2_reg_embedding": 0, "l2_reg_dnn": 0}
    if name == "DCN":
        zeros["l2_reg_cross"] = 0
    tf.keras.utils.set_random_seed(1)
    model = getattr(deepctr, name)(
        columns, columns, dnn_hidden_units=(16, 8), seed=1, **zeros
    )
    model.compile(
        tf.keras.optimizers.legacy.Adagrad(0.05),
        "binary_crossentropy",
        jit_compile=False,
    )
    history = model.fit(
        features, labels, batch_size=32, epochs=3, shuffle=False, verbose=0
    )
    losses = np.array(history.history["loss"])
    assert losses[-1] < losses[0]
    return [losses, *model.get_weights(), model.predict(features, verbose=0)]


@pytest.mark.parametrize(
    "name", ["WDL", *(pytest.param(n, marks=pytest.mark.slow) for n in MODELS[1:])]
)
def test_without_l2(deepctr, criteo, name, monkeypatch):
    """All lookups and all updates of both parts are packed.

    A strength of 0 would leave the term in the loss, and gradients dense.
    """
    for module in ("inputs", "layers.utils", "layers.core", "layers.interaction"):
        monkeypatch.setattr(f"deepctr.{module}.l2", lambda strength: None)
    expected = fit(deepctr, name, criteo)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit(deepctr, name, criteo)
    seen.assert_packed(updates=TABLES)
    training, prediction = seen.changed()
    for report in (training, prediction):
        lookups = [p for p in report.packs if p.kind == "lookup"]
        assert sum(len(p.members) for p in lookups) == TABLES, seen.text()
    assert_all_same(got, expected)


@pytest.mark.slow
def test_with_l2_of_strength_0(deepctr, criteo):
    """Tables are read whole by the loss, and updated whole; lookups are packed."""
    expected = fit(deepctr, "WDL", criteo)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit(deepctr, "WDL", criteo)
    seen.assert_packed(updates=0)
    assert TABLES in seen.members("lookup")
    assert_all_same(got, expected)
