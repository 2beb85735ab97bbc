"""DeepCTR's models with their default settings, and data to train them on."""

from __future__ import annotations

import csv
import dataclasses
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from unittest import mock

import numpy as np
import tensorflow as tf

# Its import asks the network for its latest version, in a thread.
with mock.patch.object(threading.Thread, "start"):
    import deepctr.estimator
    import deepctr.models
    from deepctr.feature_column import DenseFeat, SparseFeat, VarLenSparseFeat

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
CRITEO = "criteo_sample.txt"
AVAZU = "avazu_sample.txt"
DIM = 4  # DeepCTR's default
ROWS = 200

# Groups of fields, as DeepCTR's example for FLEN has them.
AVAZU_GROUPS = {
    "user": "device_id device_ip device_model device_type device_conn_type",
    "context": "banner_pos C1 C14 C15 C16 C17 C18 C19 C20 C21 day_of_week",
    "item": "site_id site_domain site_category app_id app_domain app_category",
}


# -- data ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Clicks:
    """A click log.

    Attributes:
      ids: by field, [rows] int64.
      sizes: of each field's vocabulary.
      dense: by feature, [rows] float64 from 0 to 1.
      labels: [rows] int64, 0 or 1.
      groups: of each field, for the models that know groups.
      dim: of the fields' rows.
    """

    ids: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    dense: Mapping[str, np.ndarray]
    labels: np.ndarray
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dim: int = DIM

    @property
    def features(self) -> dict[str, np.ndarray]:
        return {**self.ids, **self.dense}

    def with_fields(self, kept: Sequence[str]) -> Clicks:
        """Without the other fields."""
        return dataclasses.replace(
            self,
            ids={key: self.ids[key] for key in kept},
            sizes={key: self.sizes[key] for key in kept},
        )


def read_clicks(folder: pathlib.Path, sample: str) -> Clicks:
    """DeepCTR's sample of Criteo's or Avazu's click log, CRITEO or AVAZU.

    Ids are the ranks of the sorted values, numbers are scaled to 0..1, as in
    DeepCTR's examples. Without the file, values of the same fields are drawn.
    """
    if sample == CRITEO:
        fields = [f"C{i}" for i in range(1, 27)]
        numbers, label, groups = [f"I{i}" for i in range(1, 14)], "label", {}
    else:
        groups = {
            name: group
            for group, names in AVAZU_GROUPS.items()
            for name in names.split()
        }
        fields, numbers, label = list(groups), [], "click"
    columns = _columns(folder / sample, fields, numbers, label)
    ids = {name: _ranks(columns[name]) for name in fields}
    return Clicks(
        ids=ids,
        sizes={name: int(ranks.max()) + 1 for name, ranks in ids.items()},
        dense={name: _scaled(columns[name]) for name in numbers},
        labels=np.array([int(value) for value in columns[label]]),
        groups=groups,
    )


def draw_clicks(
    fields: int, rows: int, dim: int, examples: int, numbers: int = 13
) -> Clicks:
    """Of uniform ids, `rows` for each field, the fields in FLEN's three groups."""
    random = np.random.default_rng(0)
    names = [f"C{i}" for i in range(1, fields + 1)]
    return Clicks(
        ids={name: random.integers(0, rows, examples) for name in names},
        sizes=dict.fromkeys(names, rows),
        dense={f"I{i}": random.random(examples) for i in range(1, numbers + 1)},
        labels=random.integers(0, 2, examples),
        groups={name: list(AVAZU_GROUPS)[i % 3] for i, name in enumerate(names)},
        dim=dim,
    )


def _columns(path, fields, numbers, label) -> dict[str, list[str]]:
    if not path.exists():
        random = np.random.default_rng(0)
        drawn = {name: random.zipf(1.3, ROWS) % 150 for name in fields}
        drawn |= {name: random.integers(0, 1000, ROWS) for name in numbers}
        drawn[label] = random.integers(0, 2, ROWS)
        return {name: [str(value) for value in drawn[name]] for name in drawn}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    # "hour" is YYMMDDHH; all of the sample is of a few days.
    for row in rows:
        row["day_of_week"] = row.get("hour", "")[:6]
    return {name: [row[name] for row in rows] for name in (*fields, *numbers, label)}


def _ranks(values: Sequence[str]) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _scaled(values: Sequence[str]) -> np.ndarray:
    numbers = np.array([float(value or 0) for value in values])
    spread = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / (spread or 1.0)


@dataclasses.dataclass(frozen=True)
class Feeding:
    """A Keras model, not compiled, and what it is trained on."""

    model: tf.keras.Model
    features: dict[str, np.ndarray]
    labels: list[np.ndarray]


# -- models for one click log -------------------------------------------------


def columns(clicks: Clicks) -> list:
    grouped = [
        {"group_name": clicks.groups[name]} if clicks.groups else {}
        for name in clicks.ids
    ]
    sparse = [
        SparseFeat(name, clicks.sizes[name], embedding_dim=clicks.dim, **group)
        for name, group in zip(clicks.ids, grouped, strict=True)
    ]
    return sparse + [DenseFeat(name, 1) for name in clicks.dense]


def click_model(name: str, clicks: Clicks) -> Feeding:
    """A model with a linear and a deep part, over the same columns."""
    constructor = getattr(deepctr.models, name)
    given = columns(clicks)
    if name == "FLEN":
        model = constructor(given, given)
    else:
        wide = deep = columns(dataclasses.replace(clicks, groups={}))
        if name in ("AFM", "CCPM", "EDCN"):  # they take no dense features there
            deep = [column for column in deep if isinstance(column, SparseFeat)]
        if name == "EDCN":
            wide = deep
        one_part = name in ("MLR", "PNN")
        model = constructor(*([deep] if one_part else [wide, deep]))
    return Feeding(model, clicks.features, [clicks.labels])


def multi_task_model(name: str, clicks: Clicks, tasks: int = 2, **more) -> Feeding:
    """A model of several tasks; labels other than the first are drawn among the
    clicks."""
    given = columns(dataclasses.replace(clicks, groups={}))
    if tasks != 2:
        more |= {"task_types": ["binary"] * tasks}
        more |= {"task_names": [f"task{i}" for i in range(tasks)]}
    model = getattr(deepctr.models, name)(given, **more)
    random = np.random.default_rng(1)
    others = [
        clicks.labels * random.integers(0, 2, len(clicks.labels))
        for _ in range(tasks - 1)
    ]
    return Feeding(model, clicks.features, [clicks.labels, *others])


# -- models of sequences, on generated histories -------------------------------

USERS, GENDERS, ITEMS, CATEGORIES = 50, 3, 100, 10
HISTORY = 4  # as in DeepCTR's examples
SESSIONS = 5  # DSIN's default


def sequence_model(name: str, clicks: Clicks) -> Feeding:
    """DIN, DIEN, BST or DSIN; of `clicks`, only the labels are used."""
    random = np.random.default_rng(2)
    rows = len(clicks.labels)

    def ids(limit: int, *shape: int) -> np.ndarray:
        return random.integers(1, limit, size=(rows, *shape))

    sizes = {"item_id": ITEMS, "cate_id": CATEGORIES}
    given = [
        SparseFeat("user", USERS, embedding_dim=DIM),
        SparseFeat("gender", GENDERS, embedding_dim=DIM),
        *(SparseFeat(key, size, embedding_dim=DIM) for key, size in sizes.items()),
        DenseFeat("pay_score", 1),
    ]
    features = {"user": ids(USERS), "gender": ids(GENDERS)}
    features |= {key: ids(size) for key, size in sizes.items()}
    features["pay_score"] = random.random(rows)

    def add(key: str, table: str, **length) -> None:
        feature = SparseFeat(key, sizes[table], DIM, embedding_name=table)
        given.append(VarLenSparseFeat(feature, maxlen=HISTORY, **length))
        padding = np.arange(HISTORY) < random.integers(1, HISTORY + 1, size=(rows, 1))
        features[key] = ids(sizes[table], HISTORY) * padding

    if name == "DSIN":
        for session in range(SESSIONS):
            for table in sizes:
                add(f"sess_{session}_{table}", table)
        features["sess_length"] = random.integers(1, SESSIONS + 1, size=rows)
    else:
        for table in sizes:
            add(f"hist_{table}", table, length_name="seq_length")
        # All histories of an example are of one length.
        length = random.integers(1, HISTORY + 1, size=rows)
        features["seq_length"] = length
        for table in sizes:
            kept = np.arange(HISTORY) < length[:, None]
            features[f"hist_{table}"] = ids(sizes[table], HISTORY) * kept
    model = getattr(deepctr.models, name)(given, list(sizes))
    return Feeding(model, features, [clicks.labels])


# -- Estimators ---------------------------------------------------------------


def estimator(name: str, clicks: Clicks, config) -> tf.estimator.Estimator:
    """An Estimator on the columns of DeepCTR's example."""
    fc = tf.feature_column
    dense = [fc.numeric_column(key) for key in clicks.dense]
    ids = [
        fc.categorical_column_with_identity(key, size)
        for key, size in clicks.sizes.items()
    ]
    wide = [*ids, *dense]
    deep = [fc.embedding_column(column, DIM) for column in ids]
    if name not in ("AFMEstimator", "CCPMEstimator"):
        deep += dense
    parts = [deep] if name == "PNNEstimator" else [wide, deep]
    return getattr(deepctr.estimator, name)(*parts, config=config)


# -- all of them --------------------------------------------------------------

SEQUENCE = ("DIN", "DIEN", "DSIN", "BST")
MULTI_TASK = ("SharedBottom", "ESMM", "MMOE", "PLE")
KERAS: dict[str, Callable[[str, Clicks], Feeding]] = {
    name: sequence_model
    if name in SEQUENCE
    else multi_task_model
    if name in MULTI_TASK
    else click_model
    for name in dict.fromkeys(deepctr.models.__all__)
}
ESTIMATORS = tuple(
    name for name in dir(deepctr.estimator) if name.endswith("Estimator")
)
