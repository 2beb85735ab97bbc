"""Ids, labels and tables, drawn the same way for all contenders. NumPy alone."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from benchmarks.cases import SPARSE, KernelCase, StepCase

BATCHES = 8
LINE = 64  # bytes of a cache line
MISSING = -1


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step's input.

    Attributes:
      ids: per table [batch] int64; of bags [batch, longest], filled up with MISSING.
      dense: [batch, features] float32.
      labels: [batch, 1] float32, 0 or 1.
    """

    ids: list[np.ndarray]
    dense: np.ndarray
    labels: np.ndarray


@functools.cache
def _cumulated(rows: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return np.cumsum(weights / weights.sum())


def draw_ids(random, rows: int, exponent: float, count: int) -> np.ndarray:
    """[count] int64 of 0 to rows - 1: P(rank k) ~ k ** -exponent; 0: uniform.

    Ranks are spread over the table, as hashed ids are, the same way each time.
    """
    if not exponent:
        return random.integers(0, rows, count)
    ranks = np.searchsorted(_cumulated(rows, exponent), random.random(count))
    return _spread(rows)[np.minimum(ranks, rows - 1)]


@functools.cache
def _spread(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).permutation(rows)


def padded(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[bags, longest]: the ids of each bag in turn, then MISSING."""
    there = np.arange(max(1, lengths.max(initial=0))) < lengths[:, None]
    result = np.full(there.shape, MISSING, np.int64)
    result[there] = ids
    return result


def step_batches(case: StepCase) -> list[Batch]:
    workload = case.workload
    random = np.random.default_rng(1)
    batches = []
    for _ in range(BATCHES):
        ids = []
        for rows in workload.sizes:
            drawn = draw_ids(random, rows, workload.zipf, workload.batch)
            if case.form == SPARSE:
                # Of each length equally many: shapes are the same in all batches.
                lengths = random.permutation(np.arange(workload.batch) % 3)
                count = lengths.sum()
                drawn = padded(np.resize(drawn, count), lengths)
            ids.append(drawn)
        dense = random.random((workload.batch, workload.dense), np.float32)
        labels = (random.random((workload.batch, 1)) > 0.5).astype(np.float32)
        batches.append(Batch(ids, dense, labels))
    return batches


@dataclasses.dataclass(frozen=True)
class Bags:
    """One step's bags: per table, the ids [n] int64 and lengths [batch] int64."""

    ids: list[np.ndarray]
    lengths: list[np.ndarray]


def bag_batches(case: KernelCase) -> list[Bags]:
    random = np.random.default_rng(1)
    batches = []
    for _ in range(BATCHES):
        lengths = [_lengths(random, case) for _ in range(case.tables)]
        ids = [draw_ids(random, case.rows, case.zipf, n.sum()) for n in lengths]
        batches.append(Bags(ids, lengths))
    return batches


def _lengths(random, case: KernelCase) -> np.ndarray:
    if case.lengths == "fixed":
        return np.full(case.batch, case.mean)
    drawn = np.minimum(random.zipf(2.0, case.batch), 100).astype(np.float64)
    return np.floor(drawn * case.mean / drawn.mean() + random.random()).astype(int)


def table(case: KernelCase, index: int) -> np.ndarray:
    """[rows, dim] float32, from -0.05 to 0.05."""
    random = np.random.default_rng([2, index])
    return random.random((case.rows, case.dim), np.float32) * 0.1 - 0.05


def output_gradient(case: KernelCase) -> np.ndarray:
    """[batch, tables * dim] float32."""
    random = np.random.default_rng(3)
    return random.random((case.batch, case.tables * case.dim), np.float32) - 0.5


@dataclasses.dataclass(frozen=True)
class Moved:
    """What a kernel cannot do without, on average over the batches.

    Rows count in whole cache lines: nothing less is ever moved.
    """

    ids: float
    unique_rows: float
    bytes: float


def moved(case: KernelCase) -> Moved:
    """Ids and distinct rows read, pooled rows written; for updates also their
    gradient read, and each distinct row and its slot read and written."""
    batches = bag_batches(case)
    ids = np.mean([sum(map(len, batch.ids)) for batch in batches])
    unique = np.mean([sum(len(np.unique(i)) for i in b.ids) for b in batches])
    row, pooled = 4 * case.dim, case.batch * case.tables
    lines = -(-row // LINE) * LINE
    total = 8 * ids + unique * lines + pooled * row
    if case.kind == "update":
        total += pooled * row + 4 * unique * lines
    return Moved(float(ids), float(unique), float(total))
