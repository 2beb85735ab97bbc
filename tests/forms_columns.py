"""Models written with tf.feature_column, in TensorFlow 1's graphs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from forms_data import STEPS, Batch, flat, sparse

v1 = tf.compat.v1
fc = v1.feature_column

WORDS = pathlib.Path(__file__).with_name("words.txt")  # word0 to word29
ROWS = 20


@dataclasses.dataclass(frozen=True)
class Columns:
    """An input layer, or a linear model.

    Attributes:
      make: the columns.
      needs: what they are fed: "id_0" to "id_2" and "word_0" to "word_2" (sparse),
        "matrix_0" (ids in a matrix, -1 where there is none), "weight_0" (of id_0),
        "number_0".
    """

    make: Callable[[], list]
    needs: tuple[str, ...]
    linear: bool = False
    tables: tuple = ()

    def features(self, batch: Batch) -> dict[str, Any]:
        return {name: feature(batch, name) for name in self.needs}

    def rows(self, tables, features):
        if self.linear:
            return [fc.linear_model(features, self.make())]
        return [fc.input_layer(features, self.make())]


def feature(batch: Batch, name: str):
    kind, _, field = name.partition("_")
    i = int(field)
    numbers = "int64" if batch.ids == "string" else batch.ids
    if kind == "number":
        return batch.rng(i).uniform(0, 10, size=[batch.rows, 1]).astype(np.float32)
    if kind == "matrix":
        plain = batch.kind in ("negative_ids", "bad")
        batch = dataclasses.replace(batch, kind="plain" if plain else batch.kind)
        ids = dataclasses.replace(batch, ids=numbers).column(i, ROWS, 3)
        ids[:, 1:][ids[:, 1:] % 3 == 0] = -1
        return ids
    bags = batch.bags(i, ROWS)
    if kind == "weight":
        return sparse(bags, batch.weights(i, bags))
    ids = "string" if kind == "word" else numbers
    return sparse(bags, dataclasses.replace(batch, ids=ids).typed(flat(bags)))


def embedded(columns, combiner="mean", **options) -> list:
    return [
        fc.embedding_column(
            column,
            (4, 4, 8)[i % 3],
            combiner,
            initializer=v1.random_normal_initializer(seed=i),
            **options,
        )
        for i, column in enumerate(columns)
    ]


def identity(count=3, **options) -> list:
    return [
        fc.categorical_column_with_identity(f"id_{i}", ROWS, **options)
        for i in range(count)
    ]


def hashed(count=3) -> list:
    return [
        fc.categorical_column_with_hash_bucket(f"word_{i}", ROWS - i)
        for i in range(count)
    ]


def listed() -> list:
    words = [f"word{i}" for i in range(15)]
    column = fc.categorical_column_with_vocabulary_list
    return [
        column("word_0", words),
        column("word_1", words, num_oov_buckets=3),
        column("word_2", words, default_value=2),
    ]


def filed() -> list:
    column = fc.categorical_column_with_vocabulary_file
    return [
        column("word_0", str(WORDS), 10),
        column("word_1", str(WORDS), 15, num_oov_buckets=3),
        column("word_2", str(WORDS)),
    ]


def bucketized() -> list:
    return [
        fc.bucketized_column(fc.numeric_column(f"number_{i}"), [1.0, 3.0, 6.0 + i])
        for i in range(3)
    ]


def crossed() -> list:
    bucket = bucketized()[0]
    return [
        fc.crossed_column([bucket, "word_0"], 30),
        fc.crossed_column(["word_0", "word_1"], 40),
        fc.crossed_column([bucket, "word_1"], 50),
    ]


def weighted() -> list:
    return [fc.weighted_categorical_column(identity(1)[0], "weight_0")]


def shared() -> list:
    return [
        *fc.shared_embedding_columns(
            identity(3), 4, initializer=v1.random_normal_initializer(seed=1)
        ),
    ]


IDS = ("id_0", "id_1", "id_2")
BAG_WORDS = ("word_0", "word_1", "word_2")
NUMBERS = ("number_0", "number_1", "number_2")
CROSSED = ("number_0", "word_0", "word_1")

# Of no rows, stock's linear model cannot tell the width.
SOME_ROWS = tuple(step for step in STEPS if step != "no_rows")


def deep_and_indicator() -> list:
    return [*embedded(identity(2)), *map(fc.indicator_column, identity(3)[2:])]


def matrix() -> list:
    column = fc.categorical_column_with_identity
    return embedded(
        [
            column("matrix_0", ROWS),
            column("matrix_1", ROWS, default_value=0),
            column("matrix_2", ROWS),
        ]
    )


def wide() -> list:
    return [*identity(2), *hashed(2), *crossed()[:1], *weighted()]


def everything() -> list:
    return [
        *embedded([*identity(2), *hashed(1), *filed()[1:2], *crossed()[:1]], "sqrtn"),
        *map(fc.indicator_column, listed()[2:]),
        *bucketized()[:1],
        fc.numeric_column("number_0"),
    ]
