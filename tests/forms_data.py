"""Batches of ids for the forms of tests/forms.py: small, and all sorts of odd."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

# What a training run is fed, step by step.
STEPS = (
    "plain",
    "repeated",
    "empty_rows",
    "trailing_empty",
    "all_empty",
    "large",
    "no_rows",
    "odd_weights",
    "negative_ids",
    "one_row",
)
SIZES = {"large": 40, "no_rows": 0, "one_row": 1}
BAD_ID = 12345  # more than any table has rows
NUMBERS = {"int32": np.int32, "int64": np.int64}


@dataclasses.dataclass(frozen=True)
class Batch:
    """One batch, the same whenever it is asked for.

    Attributes:
      kind: one of STEPS, or "bad", with one id, of field 0, that no table has.
      step: seed.
      ids: type of ids, "int32", "int64" or "string".
      dtype: type of weights.
      size: rows; None: what suits the kind.
    """

    kind: str
    step: int = 0
    ids: str = "int64"
    dtype: str = "float32"
    size: int | None = None

    @property
    def rows(self) -> int:
        return SIZES.get(self.kind, 7) if self.size is None else self.size

    def rng(self, field: int) -> np.random.Generator:
        return np.random.default_rng([self.step, field, self.rows])

    def column(self, field: int, rows: int, width: int = 1) -> np.ndarray:
        """Ids [batch, width] into a table of `rows` rows."""
        rng = self.rng(field)
        high = 2 if self.kind == "repeated" else rows
        low = -rows if self.kind == "negative_ids" else 0
        column = rng.integers(low, high, size=[self.rows, width])
        if self.kind == "bad" and field == 0:
            column[self.rows // 2, 0] = BAD_ID
        return self.typed(column)

    def bags(self, field: int, rows: int) -> list[list[int]]:
        """Some ids for each row of the batch."""
        rng = self.rng(field)
        counts = rng.integers(1, 5, size=self.rows)
        if self.kind in ("empty_rows", "trailing_empty"):
            counts[1:-1:2] = 0
        if self.kind == "trailing_empty":
            counts[-2:] = 0
        if self.kind == "all_empty":
            counts[:] = 0
        high = 2 if self.kind == "repeated" else rows
        bags = [list(map(int, rng.integers(0, high, size=count))) for count in counts]
        if self.kind == "negative_ids":
            bags = [[-1, *bag] if i % 3 == 0 else bag for i, bag in enumerate(bags)]
            bags[0] = [-1]
        if self.kind == "bad" and field == 0:
            bags[len(bags) // 2][0] = BAD_ID
        return bags

    def weights(self, field: int, bags: list[list[int]]) -> np.ndarray:
        """One for each id; some zero and below if they are to be odd."""
        rng = self.rng(field + 100)
        choices = [0.0, -0.5, 0.25, 0.0, 2.0] if self.kind == "odd_weights" else None
        count = len(flat(bags))
        weights = rng.choice(choices, count) if choices else rng.uniform(0.1, 2, count)
        return weights.astype(tf.as_dtype(self.dtype).as_numpy_dtype)

    def typed(self, values: Any) -> np.ndarray:
        if self.ids != "string":
            return np.asarray(values, NUMBERS[self.ids])
        values = np.asarray(values)
        words = [b"word%d" % value if value >= 0 else b"" for value in values.flat]
        return np.array(words, object).reshape(values.shape)


def flat(bags: list[list]) -> list:
    return [item for bag in bags for item in bag]


def sparse(bags: list[list], values: np.ndarray) -> v1.SparseTensorValue:
    """Bags as the rows of a sparse matrix."""
    where = [[i, j] for i, bag in enumerate(bags) for j in range(len(bag))]
    width = max(map(len, bags), default=0)
    return v1.SparseTensorValue(
        np.asarray(where, np.int64).reshape(-1, 2),
        values,
        np.asarray([len(bags), width], np.int64),
    )


def sparse_cube(bags: list[list], values: np.ndarray) -> v1.SparseTensorValue:
    """Bags as the rows of a sparse cube [batch, 2, width]; odd ids in the second."""
    flat_rows = sparse(bags, values)
    rows, columns = flat_rows.indices.T
    where = np.stack([rows, columns % 2, columns // 2], axis=1)
    order = np.lexsort(where.T[::-1])
    width = (int(flat_rows.dense_shape[1]) + 1) // 2
    return v1.SparseTensorValue(
        where[order],
        values[order],
        np.asarray([len(bags), 2, width], np.int64),
    )


def ragged(bags: list[list], values: np.ndarray) -> v1.ragged.RaggedTensorValue:
    splits = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])])
    return v1.ragged.RaggedTensorValue(values, splits.astype(np.int64))


# -- values as arguments ------------------------------------------------------


def placeholder(name: str, value: Any):
    """A placeholder, of unknown sizes, that takes values like this one."""
    if isinstance(value, v1.SparseTensorValue):
        rank = len(value.dense_shape)
        return v1.sparse_placeholder(type_of(value.values), [None] * rank, name)
    if isinstance(value, v1.ragged.RaggedTensorValue):
        return v1.ragged.placeholder(type_of(value.values), 1, (), name)
    shape = [None, *value.shape[1:]] if value.ndim else []
    return v1.placeholder(type_of(value), shape, name)


def spec(value: Any) -> tf.TypeSpec:
    """The same as a signature of tf.function."""
    if isinstance(value, v1.SparseTensorValue):
        rank = len(value.dense_shape)
        return tf.SparseTensorSpec([None] * rank, type_of(value.values))
    if isinstance(value, v1.ragged.RaggedTensorValue):
        return tf.RaggedTensorSpec([None, None], type_of(value.values), 1)
    shape = [None, *value.shape[1:]] if value.ndim else []
    return tf.TensorSpec(shape, type_of(value))


def tensor(value: Any):
    """The value for an eager call."""
    if isinstance(value, v1.SparseTensorValue):
        return tf.SparseTensor(value.indices, tensor(value.values), value.dense_shape)
    if isinstance(value, v1.ragged.RaggedTensorValue):
        return tf.RaggedTensor.from_row_splits(tensor(value.values), value.row_splits)
    return tf.constant(value, type_of(value))


def type_of(value: np.ndarray) -> tf.DType:
    return tf.string if value.dtype == object else tf.as_dtype(value.dtype)
