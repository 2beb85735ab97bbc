"""Packed lookups give what stock lookups give, bit by bit."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import (
    DTYPES,
    assert_same,
    case_of,
    check,
    make_table,
    node_of,
    packed_config,
    packed_nodes,
    random,
    run,
    stock_config,
    without_grappler,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import picasso_tf

ROWS = 7
ROW_SHAPES = ((), (1,), (3,), (4,), (8,), (16,), (17,), (33,), (64,), (2, 3), (2, 1, 4))
IDS_SHAPES = ((), (5,), (3, 2), (2, 3, 2), (0,), (0, 3), (4, 0), (1,))
lookup = tf.nn.embedding_lookup


@pytest.fixture(autouse=True)
def clean_slate():
    """In place of the shared fixture, whose cleaning takes longer than most of
    these tests: they have graphs of their own and no Keras."""


def placeholder(shape, dtype=tf.int64):
    return tf.compat.v1.placeholder(dtype, shape)


def table(name, row, seed=0, rows=ROWS, dtype=tf.float32):
    row = (row,) if isinstance(row, int) else row
    return make_table(name, random(np.random.default_rng(seed), [rows, *row], dtype))


def packed_lookups(report) -> int:
    return sum(map(len, packed_nodes(report, "lookup")))


# -- plain lookups -------------------------------------------------------------


@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_types_and_shapes(dtype, ids_dtype):
    rng = np.random.default_rng(1)

    def build():
        fetches, feed = [], {}
        for i, row in enumerate(ROW_SHAPES):
            rows = table(f"t{i}", row, i, dtype=dtype)
            for j in range(3):
                shape = IDS_SHAPES[(i + 3 * j) % len(IDS_SHAPES)]
                unknown = (None, *shape[1:])[: len(shape)]
                ids = placeholder(shape if j == 0 else unknown, ids_dtype)
                feed[ids] = rng.integers(0, ROWS, size=shape)
                fetches.append((lookup, tf.gather)[j % 2](rows, ids))
        return fetches, [feed] * 2

    report = check(case_of(build))
    assert packed_lookups(report) == 3 * len(ROW_SHAPES)
    assert "ResourceGather" not in report.ops_after


def test_types_are_not_mixed():
    """Tables of every type in one graph, with ids of both types."""
    rng = np.random.default_rng(2)

    def build():
        fetches, feed = [], {}
        for i in range(12):
            ids = placeholder([None], (tf.int32, tf.int64)[i % 3 % 2])
            feed[ids] = rng.integers(0, ROWS, size=4)
            fetches.append(lookup(table(f"t{i}", 8, i, dtype=DTYPES[i % 4]), ids))
        return fetches, [feed]

    report = check(case_of(build))
    assert sorted(map(len, packed_nodes(report, "lookup"))) == [3] * 4


def test_ids_of_unknown_rank():
    def build():
        ids = placeholder(None)
        fetches = [lookup(table(f"t{i}", 8, i), ids) for i in range(3)]
        values = (3, [1, 2], [[0], [6]], np.zeros([2, 0, 3]), [[[1, 2]]])
        return fetches, [{ids: value} for value in values]

    assert packed_lookups(check(case_of(build))) == 3


def test_ids_of_unknown_dimensions():
    """The batch is assumed to have 1,024 ids, however many dimensions are not
    known: wide tables are packed all the same."""

    def build():
        ids = placeholder([None, None, None])
        fetches = [lookup(table(f"t{i}", 128, i), ids) for i in range(3)]
        return fetches, [{ids: [[[1, 2], [3, 4]]]}]

    assert packed_lookups(check(case_of(build))) == 3


def test_tables_without_rows_or_values():
    """Tables of shape [0, 8] and [7, 0]."""

    def build():
        none, some = placeholder([None]), placeholder([None, 2])
        empty = [
            make_table(f"empty_{i}", np.zeros([0, *row], np.float32))
            for i, row in enumerate(((), (8,), (2, 3)))
        ]
        narrow = [
            make_table(f"narrow_{i}", np.zeros([ROWS, *row], np.float32))
            for i, row in enumerate(((0,), (3, 0)))
        ]
        fetches = [lookup(rows, none) for rows in empty]
        fetches += [lookup(rows, some) for rows in narrow]
        fetches.append(tf.concat([fetches[1], fetches[1]], axis=1))
        fetches.append(tf.concat([fetches[3], lookup(table("t", 4), some)], axis=-1))
        return fetches, [{none: [], some: [[1, 6]]}, {none: [], some: np.zeros([0, 2])}]

    assert packed_lookups(check(case_of(build))) == 6


def test_variables_are_read_after_writes():
    """Lookups that wait for an assignment see it, and the other way round."""

    def build():
        ids = placeholder([None])
        value = placeholder([ROWS, 8], tf.float32)
        tables = [table(f"t{i}", 8, i) for i in range(3)]
        assigns = [rows.assign(value + i) for i, rows in enumerate(tables)]
        with tf.control_dependencies(assigns):
            after = [lookup(rows, ids) for rows in tables]
        with tf.control_dependencies(after):
            again = [rows.assign_add(value).op for rows in tables]
        feeds = [{ids: [3, 0, 3], value: np.full([ROWS, 8], step)} for step in range(3)]
        return [*after, tf.concat(after, axis=1), *again], feeds

    assert packed_lookups(check(case_of(build))) == 3


def test_two_handles_of_one_variable():
    """Found by no name: a second handle is a table of its own to the pass."""

    def build():
        ids = placeholder([None])
        first = table("t", 8)
        again = tf.raw_ops.VarHandleOp(
            shape=first.shape, dtype=tf.float32, shared_name=first.handle.op.name
        )
        found = [
            tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=tf.float32)
            for handle in (first.handle, again, first.handle)
        ]
        for rows in found:
            rows.set_shape([None, 8])
        return [tf.concat(found, 1), *found], [{ids: [1, 6, 2]}]

    assert packed_lookups(check(case_of(build))) == 3


def test_lookups_in_branches():
    """Only lookups of one branch are packed with each other."""

    def build():
        ids, choose = placeholder([None]), placeholder([], tf.bool)
        tables = [table(f"t{i}", 8, i) for i in range(4)]

        def branch(first):
            return lambda: tf.concat([lookup(t, ids) for t in tables[first:]], axis=1)

        chosen = tf.compat.v1.cond(
            choose, branch(0), lambda: tf.concat([branch(2)(), branch(2)()], axis=1)
        )
        outside = tf.concat([lookup(t, ids) for t in tables], axis=1)
        feed = {ids: [1, 2, 6]}
        return [chosen, outside], [feed | {choose: True}, feed | {choose: False}]

    expected_case = case_of(build)
    expected = run(expected_case, stock_config())
    previous = picasso_tf.last_report()
    got = run(expected_case, packed_config())
    report = picasso_tf.last_report()
    assert report is not previous and report.packs
    for a, b in zip(got.values, expected.values, strict=True):
        for fetch, x, y in zip(expected_case.fetches, a, b, strict=True):
            assert_same(x, y, fetch.name)
    # A pack in a branch runs in one of the two steps.
    assert {report.executions(pack)[1] for pack in report.packs} <= {1, 2}
    assert any(report.executions(pack)[1] == 2 for pack in report.packs)


def test_fed_rows():
    """Who feeds the rows of a lookup gets them back."""

    def build():
        ids = placeholder([None])
        rows = [lookup(table(f"t{i}", 4, i), ids) for i in range(4)]
        fed = np.full([2, 4], 9, np.float32)
        return [tf.concat(rows, axis=1), *rows], [{ids: [1, 2], rows[1]: fed}]

    assert packed_lookups(check(case_of(build))) == 3


def test_other_fetches():
    """Each set of fetches is a graph of its own."""

    def build():
        ids = placeholder([None])
        rows = [lookup(table(f"t{i}", 4, i), ids) for i in range(4)]
        return [*rows, tf.concat(rows, axis=1)], [{ids: [1, 6, 2]}]

    case = case_of(build)
    rows, joined = case.fetches[:4], case.fetches[4:]
    for fetches, packed in ((rows[:2], 2), (rows[1:], 3), (joined, 4)):
        case.fetches = fetches
        assert packed_lookups(check(case)) == packed


# -- ids -----------------------------------------------------------------------

FIELDS = 12
CUTS = {
    "x[:, i]": lambda x, i: x[:, i],
    "x[:, -i]": lambda x, i: x[:, -1 - i],
    "x[:, i:i+1]": lambda x, i: x[:, i : i + 1],
    "x[:, i:i+3]": lambda x, i: x[:, i : i + 3],
    "x[:, -2:]": lambda x, i: x[:, -2:],
    "x[:, :2]": lambda x, i: x[:, :2],
    "x[..., i]": lambda x, i: x[..., i],
    "x[:, ::5]": lambda x, i: x[:, ::5],
    "x[:, ::-1]": lambda x, i: x[:, ::-1],
    "x[1:, i]": lambda x, i: x[1:, i],
    "x[:-1, i]": lambda x, i: x[:-1, i],
    "x[0]": lambda x, i: x[0],
    "x[:, i, newaxis]": lambda x, i: x[:, i, tf.newaxis],
    "x[::2, i]": lambda x, i: x[::2, i],
    "slice": lambda x, i: tf.slice(x, [0, i], [-1, 1]),
    "slice of rows": lambda x, i: tf.slice(x, [1, i], [2, 2]),
    "slice, rest": lambda x, i: tf.slice(x, [0, FIELDS - 2], [-1, -1]),
    "split": lambda x, i: tf.split(x, FIELDS, axis=1)[i],
    "split in 4": lambda x, i: tf.split(x, 4, axis=1)[i],
    "split, axis -1": lambda x, i: tf.split(x, 6, axis=-1)[i],
    "split by sizes": lambda x, i: tf.split(x, [3, 2, FIELDS - 5], axis=1)[i],
    "unstack": lambda x, i: tf.unstack(x, FIELDS, axis=1)[i],
    "unstack, axis -1": lambda x, i: tf.unstack(x, FIELDS, axis=-1)[i],
    "whole": lambda x, i: x,
    "flat": lambda x, i: tf.reshape(x, [-1]),
    "column as [-1, 1]": lambda x, i: tf.reshape(x[:, i], [-1, 1]),
    "column, expanded": lambda x, i: tf.expand_dims(x[:, i], -1),
    "column, expanded in front": lambda x, i: tf.expand_dims(x[:, i], 0),
    "columns, reshaped": lambda x, i: tf.reshape(x[:, :4], [-1, 2, 2]),
    "split, squeezed": lambda x, i: tf.squeeze(tf.split(x, FIELDS, axis=1)[i], 1),
    "split, flat": lambda x, i: tf.reshape(tf.split(x, 6, axis=1)[i], [-1]),
    "transposed": lambda x, i: tf.transpose(x)[i],
    "identity": lambda x, i: tf.identity(x[:, i]),
    "cast and back": lambda x, i: tf.cast(
        tf.cast(x[:, i], tf.int32 if x.dtype == tf.int64 else tf.int64), x.dtype
    ),
    "cast to int32": lambda x, i: tf.cast(x[:, i], tf.int32),
    "cast to int64": lambda x, i: tf.cast(x[:, i], tf.int64),
    "matrix cast": lambda x, i: tf.cast(x, tf.int32)[:, i],
    "through float": lambda x, i: tf.cast(tf.cast(x[:, i], tf.float32), tf.int32),
    "cast, split, cast": lambda x, i: tf.cast(
        tf.squeeze(tf.split(tf.cast(x, tf.int32), FIELDS, axis=1)[i], axis=1), tf.int64
    ),
    "computed": lambda x, i: (x[:, i] + x[:, i + 1]) % ROWS,
}


@pytest.mark.parametrize("static", ["[None, F]", "[5, F]", "[None, None]", "unknown"])
@pytest.mark.parametrize("ids_dtype", [tf.int32, tf.int64], ids=lambda d: d.name)
def test_ids_cut_from_a_matrix(static, ids_dtype):
    """Every way of cutting columns, in one pack; the ids' own values too."""
    rng = np.random.default_rng(3)
    shape = {
        "[None, F]": [None, FIELDS],
        "[5, F]": [5, FIELDS],
        "[None, None]": [None, None],
        "unknown": None,
    }[static]

    def build():
        x = placeholder(shape, ids_dtype)
        fetches = []
        for k, cut in enumerate(CUTS.values()):
            ids = cut(x, k % 3)
            fetches.append(lookup(table(f"t{k}", (4, 3, 8)[k % 3], k), ids))
        feeds = [{x: rng.integers(0, ROWS, size=[5, FIELDS])} for _ in range(2)]
        if static != "[5, F]":
            feeds.append({x: rng.integers(0, ROWS, size=[3, FIELDS])})
        return fetches, feeds

    assert packed_lookups(check(case_of(build))) >= len(CUTS) - 1


@pytest.mark.parametrize("width", [FIELDS, None])
def test_slices_end_with_the_matrix(width):
    """Columns that a slice names and the matrix lacks are left out."""

    def build():
        x = placeholder([None, width])
        ids = [x[:, 10:99], x[:, 10:14], x[:, 11:13], x[:, 20:30], x[:, :99], x[:, 99:]]
        fetches = [lookup(table(f"t{k}", 4, k), i) for k, i in enumerate(ids)]
        return fetches, [{x: np.arange(24).reshape(2, 12) % ROWS}]

    assert packed_lookups(check(case_of(build))) == 6


def test_narrowing_casts():
    """int64 ids beyond 32 bits, cast to int32: the cast wraps, and so do we."""

    def build():
        x = placeholder([None, 3])
        narrow = tf.cast(x, tf.int32)
        ids = [
            narrow[:, 0],
            tf.cast(x[:, 1], tf.int32),
            tf.cast(tf.cast(x[:, 2:3], tf.int32), tf.int64),
            tf.reshape(tf.cast(x, tf.int32), [-1]),
        ]
        fetches = [lookup(table(f"t{k}", 4, k), i) for k, i in enumerate(ids)]
        value = np.array([[2**32 + 1, 2, 3 - 2**32], [-(2**32), 2**40 + 6, 5]])
        return fetches, [{x: value}]

    report = check(case_of(build))
    assert packed_lookups(report) == 4


# Ids that stock refuses to cut from a matrix of 3 x 4.
REFUSED = {
    "column": lambda x: x[:, 4],
    "slice": lambda x: tf.slice(x, [0, 3], [-1, 2]),
    "split": lambda x: tf.split(x, 3, axis=1)[0],
    "split by sizes": lambda x: tf.split(x, [1, 2], axis=1)[0],
    "unstack": lambda x: tf.unstack(x, 3, axis=1)[0],
    "unstack rows": lambda x: tf.unstack(x, 4)[0],
    "squeeze": lambda x: tf.squeeze(x, axis=1),
    "squeezed columns": lambda x: tf.squeeze(x[:, :2], axis=1),
    "reshape": lambda x: tf.reshape(x[:, 0], [4, 1]),
    "reshape in part": lambda x: tf.reshape(x[:, 0], [-1, 2]),
}


@pytest.mark.parametrize("form", REFUSED)
def test_matrix_of_another_width(form):
    """What is only known when it runs is checked when it runs."""

    def build():
        x = placeholder([None, None])
        rows = [lookup(table(f"t{i}", 4, i), REFUSED[form](x)) for i in range(2)]
        return [tf.concat(rows, -1)], [{x: np.zeros([3, 4])}]

    case = case_of(build)
    for config in (stock_config(), packed_config()):
        with tf.compat.v1.Session(graph=case.graph, config=config) as session:
            session.run(case.init)
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(case.fetches, case.feeds[0])


def test_empty_batches_of_columns():
    def build():
        x = placeholder([None, 4])
        rows = [lookup(table(f"t{i}", 3 + i, i), x[:, i]) for i in range(4)]
        return [tf.concat(rows, axis=1)], [{x: np.zeros([0, 4])}, {x: np.ones([1, 4])}]

    assert packed_lookups(check(case_of(build))) == 4


# -- joins ---------------------------------------------------------------------

MIXED = (4, 1, 8, 3, 16, 17)


class Fields:
    """Lookups for the joins below: one table per call, ids from one matrix."""

    def __init__(self, batch=None):
        self.x = placeholder([batch, FIELDS])
        self.dense = placeholder([batch, 5], tf.float32)
        self.cube = placeholder([batch, 1, 5], tf.float32)
        self._made = 0

    def ids(self, i=None):
        return self.x[:, (self._made if i is None else i) % FIELDS]

    def rows(self, row, ids=None):
        """A new table's rows: [batch] + row for the default ids."""
        self._made += 1
        ids = self.ids() if ids is None else ids
        return lookup(table(f"t{self._made}", row, self._made), ids)

    def flat(self, dims=MIXED):
        return [self.rows(dim) for dim in dims]

    def deep(self, dims=MIXED):
        """Rows of shape [batch, 1, dim]."""
        return [self.rows(dim, self.x[:, i : i + 1]) for i, dim in enumerate(dims)]

    def feeds(self):
        rng = np.random.default_rng(4)
        return [
            {
                self.x: rng.integers(0, ROWS, size=[batch, FIELDS]),
                self.dense: rng.normal(size=[batch, 5]),
                self.cube: rng.normal(size=[batch, 1, 5]),
            }
            for batch in (6, 0, 1)
        ]


def _same_lookup_twice(f):
    rows = f.rows(8)
    return tf.concat([rows, f.rows(4), rows], 1)


def _same_lookup_in_two(f):
    a, b, c = f.flat((8, 4, 3))
    return [tf.concat([a, b], 1), tf.concat([c, b, a], 1), tf.concat([b, b], 0)]


def _same_table_twice(f):
    rows = table("shared", 8)
    first, second, third = (lookup(rows, f.ids(i)) for i in (0, 1, 0))
    return tf.concat([first, f.rows(4), second, third], 1)


def _read_elsewhere(f):
    a, b, c = f.flat((8, 4, 3))
    return [tf.concat([a, b, c], 1), b, tf.reduce_sum(c, 0), tf.shape(a), tf.shape(b)]


def _depends_on_rows(f):
    a, b, c = f.flat((8, 8, 3))
    return tf.concat([a, tf.square(a), b, a * b, c], 1)


def _dense_in_between(f):
    a, b, c, d = f.flat((8, 4, 3, 8))
    return tf.concat([f.dense, a, b, f.dense * 2.0, c, tf.nn.relu(f.dense), d], 1)


def _two_levels(f):
    a, b = f.flat((5, 5))
    next_ids = tf.argmax(tf.concat([a, b], 1), 1) % ROWS
    c, d = f.rows(4, next_ids), f.rows(3, next_ids)
    return [tf.concat([a, c, b, d], 1), tf.concat([c, d], 1), tf.concat([a, b], 1)]


def _nested(f):
    a, b, c, d = f.flat((8, 4, 3, 8))
    return tf.concat([tf.concat([a, b], 1), tf.concat([c, d], 1), a], 1)


def _reshaped(f):
    """[batch, 3, dim] as [batch, 3 * dim]."""
    rows = [f.rows(dim, f.x[:, i : i + 3]) for i, dim in enumerate((4, 8, 1))]
    flat = [tf.reshape(r, [-1, 3 * r.shape[-1]]) for r in rows]
    return tf.concat([*flat, f.dense], 1)


def _cut_rows(f):
    """Halves of rows: nothing that a pack could place."""
    a, b = f.flat((4, 4))
    return [
        tf.concat([tf.reshape(a, [-1, 2]), tf.reshape(b, [-1, 2])], 1),
        tf.concat([a, b], 1),
    ]


def _pooled(f):
    rows = [f.rows(dim, f.x[:, i : i + 4]) for i, dim in enumerate((4, 8, 3))]
    return tf.concat([tf.reduce_mean(r, 1) for r in rows], 1)


JOINS = {
    "concat axis 1": lambda f: tf.concat(f.flat(), 1),
    "concat axis -1": lambda f: tf.concat(f.flat(), -1),
    "concat axis 0": lambda f: tf.concat(f.flat((8,) * 4), 0),
    "concat axis 0, other lengths": lambda f: tf.concat(
        [f.rows(4, f.x[:, 0]), f.rows(4, tf.reshape(f.x, [-1])), f.rows(4)], 0
    ),
    "concat axis -2": lambda f: tf.concat(f.flat((8,) * 4), -2),
    "cubes, axis 2": lambda f: tf.concat(f.deep(), 2),
    "cubes, axis -1": lambda f: tf.concat(f.deep(), -1),
    "cubes, axis 1": lambda f: tf.concat(f.deep((8,) * 4), 1),
    "cubes, axis 1, other lengths": lambda f: tf.concat(
        [f.rows(4, f.x[:, :2]), f.rows(4, f.x[:, 2:3]), f.rows(4, f.x[:, 3:8])], 1
    ),
    "cubes, axis 0": lambda f: tf.concat(f.deep((8,) * 4), 0),
    "cubes with dense": lambda f: tf.concat(
        [*f.deep((8, 3)), f.cube, *f.deep((4,))], 2
    ),
    "rows of rank 2, axis 1": lambda f: tf.concat([f.rows((2, 3)), f.rows((4, 3))], 1),
    "rows of rank 2, axis 2": lambda f: tf.concat([f.rows((2, 3)), f.rows((2, 4))], 2),
    "scalar rows, axis 0": lambda f: tf.concat([f.rows(()), f.rows(())], 0),
    "scalar rows, stacked": lambda f: tf.stack([f.rows(()) for _ in range(3)], 1),
    "stack axis 0": lambda f: tf.stack(f.flat((8,) * 4), 0),
    "stack axis 1": lambda f: tf.stack(f.flat((8,) * 4), 1),
    "stack axis 2": lambda f: tf.stack(f.flat((8,) * 4), 2),
    "stack axis -1": lambda f: tf.stack(f.flat((8,) * 4), -1),
    "stack axis -2": lambda f: tf.stack(f.flat((8,) * 4), -2),
    "stack with dense": lambda f: tf.stack([*f.flat((5, 5)), f.dense, f.rows(5)], 1),
    "stacked cubes": lambda f: [tf.stack(f.deep((4,) * 3), i) for i in (0, 1, 2, -2)],
    "expanded": lambda f: tf.concat([tf.expand_dims(r, 1) for r in f.flat((4, 4))], 1),
    "squeezed": lambda f: tf.concat([tf.squeeze(r, 1) for r in f.deep()], 1),
    "dense in between": _dense_in_between,
    "same lookup twice": _same_lookup_twice,
    "same lookup in two joins": _same_lookup_in_two,
    "same table twice": _same_table_twice,
    "read elsewhere": _read_elsewhere,
    "input depends on rows": _depends_on_rows,
    "two levels": _two_levels,
    "nested": _nested,
    "reshaped": _reshaped,
    "cut rows": _cut_rows,
    "pooled": _pooled,
    "identities": lambda f: tf.concat([tf.identity(r) for r in f.flat((4, 4))], 1),
}


@pytest.mark.parametrize("batch", [None, 6], ids=["batch unknown", "batch 6"])
@pytest.mark.parametrize("join", JOINS)
def test_join(join, batch):
    def build():
        fields = Fields(batch)
        joined = JOINS[join](fields)
        joined = joined if isinstance(joined, list) else [joined]
        # Once as fetched, once with a reader.
        return [*joined, *(tf.cast(j, tf.float64) for j in joined)], (
            fields.feeds()[: 1 if batch else None]
        )

    report = check(case_of(build))
    assert "ResourceGather" not in report.ops_after


def test_joined_in_place():
    """The joins themselves are gone: the rows are written where they belong."""

    def build():
        fields = Fields()
        joins = [
            tf.concat([*fields.flat(), fields.dense, *fields.flat()], 1),
            tf.stack(fields.flat((8,) * 3), 1),
            tf.concat(fields.deep((4, 4)), 1),
        ]
        return [tf.square(join) for join in joins], fields.feeds()

    report = check(case_of(build))
    assert not {"ConcatV2", "Pack", "ResourceGather"} & set(report.ops_after)
    assert len(report.packs) == 1


def test_several_packs_for_one_join():
    """Packs that are cut because of their volume each give a stretch of it."""

    def build():
        fields = Fields()
        joined = tf.concat(
            [*fields.flat(), fields.dense, *fields.flat(), *fields.flat()], 1
        )
        return [joined, tf.concat(fields.deep(), -1)], fields.feeds()

    # Volumes assume 1,024 ids: some 26 values of each.
    report = check(case_of(build), max_pack_volume=1024 * 4 * 26)
    assert len(report.packs) > 3


def test_axis_from_outside():
    """An axis that is fed cannot be told beforehand."""

    def build():
        fields, axis = Fields(), placeholder([], tf.int32)
        joined = tf.concat(fields.flat((8, 8)), axis)
        first, second = fields.feeds()[:1] * 2
        return [joined], [first | {axis: 1}, second | {axis: 0}]

    assert packed_lookups(check(case_of(build))) == 2


# -- numbers of members --------------------------------------------------------


def test_2000_members():
    rng = np.random.default_rng(5)
    count = 2000

    def build():
        x = placeholder([None, count])
        tables = [table(f"t{i}", 4, i) for i in range(50)]
        rows = [lookup(tables[i % 50], c) for i, c in enumerate(tf.unstack(x, axis=1))]
        return [tf.concat(rows, 1)], [{x: rng.integers(0, ROWS, size=[3, count])}]

    report = check(case_of(build), stock=without_grappler())
    assert packed_lookups(report) == count
    assert len(report.packs) == 1


def test_one_lookup_is_left_alone():
    def build():
        fields = Fields()
        return [tf.concat([fields.rows(8), fields.dense], 1)], fields.feeds()

    case = case_of(build)
    expected, got = run(case, stock_config()), run(case, packed_config())
    for a, b in zip(got.values, expected.values, strict=True):
        assert_same(a[0], b[0], "the concat")
    report = picasso_tf.reports()[-1]
    assert not report.packs
    assert [item.op for item in report.skipped] == ["ResourceGather"]
    assert "no other lookup" in report.skipped[0].reason


def test_op_with_one_member():
    """The op itself takes one member, whatever the pass does with it."""

    node = """
        name: "pack" op: "PicassoPackedLookup" input: "table" input: "ids"
        attr { key: "dtype" value { type: DT_FLOAT } }
        attr { key: "Tids" value { list { type: DT_INT64 } } }
        attr { key: "N" value { i: 1 } }
        attr { key: "D" value { i: 0 } }
        attr { key: "K" value { i: 1 } }
        attr { key: "S" value { i: 1 } }
        attr { key: "member_table" value { list { i: 0 } } }
        attr { key: "member_shape" value { list { shape { unknown_rank: true } } } }
        attr { key: "member_name" value { list { s: "only" } } }
        attr { key: "ids_source" value { list { i: 0 } } }
        attr { key: "ids_begin" value { list { i: 0 } } }
        attr { key: "ids_width" value { list { i: -1 } } }
        attr { key: "ids_narrow" value { list { b: false } } }
        attr { key: "ids_shape" value { list { shape { unknown_rank: true } } } }
        attr { key: "output_members" value { list { i: 1 } } }
        attr { key: "output_chunk_dims" value { list { i: 1 } } }
        attr { key: "output_stack" value { list { b: false } } }
        attr { key: "shape_members" value { list { i: 0 } } }
        attr { key: "pack" value { s: "test_op_with_one_member" } }
    """

    def build():
        ids, rows = placeholder([None]), table("t", 8)
        got = node_of(node, {"table": rows.handle, "ids": ids}, ["pack:0", "pack:1"])
        assert got[0].shape.as_list() == [None, 8]
        expected = lookup(rows, ids)
        feeds = [{ids: value} for value in ([1, 6, 1], [], [0])]
        return [*got, expected, tf.shape(expected)], feeds

    for values in run(case_of(build), stock_config()).values:
        assert_same(values[0], values[2], "the rows")
        assert_same(values[1], values[3], "their shape")


# -- tf.gather -----------------------------------------------------------------


def test_gather():
    """Every form of tf.gather on a variable; some are no lookups."""

    def build():
        ids, pairs = placeholder([None]), placeholder([ROWS, 2], tf.int32)
        tables = [table(f"t{i}", (4, 3), i) for i in range(8)]
        fetches = [
            tf.gather(tables[0], ids),
            tf.gather(tables[1], ids, axis=0),
            tf.gather(tables[2], tf.cast(ids, tf.int32)),
            tables[3].sparse_read(ids),
            tf.gather(tables[4], ids, axis=1),
            tf.gather(tables[5], pairs, batch_dims=1),
            tf.raw_ops.ResourceGather(
                resource=tables[6].handle, indices=pairs, dtype=tf.float32, batch_dims=1
            ),
            tf.gather(tables[7], 3),
            tf.gather(tables[7], [[3, 0]]),
        ]
        rng = np.random.default_rng(6)
        feed = {ids: [3, 1, 0], pairs: rng.integers(0, 4, size=[ROWS, 2])}
        return fetches, [feed]

    report = check(case_of(build))
    assert packed_lookups(report) == 6
    assert any("batch_dims" in item.reason for item in report.skipped)


def test_integer_tables():
    """Not packed, but next to what is."""

    def build():
        ids = placeholder([None])
        counts = [make_table(f"c{i}", np.arange(14).reshape(7, 2)) for i in range(2)]
        rows = [lookup(table(f"t{i}", 4, i), ids) for i in range(2)]
        return [*(lookup(c, ids) for c in counts), *rows], [{ids: [1, 6]}]

    report = check(case_of(build))
    assert packed_lookups(report) == 2
    assert len(report.skipped) == 2


# -- bad ids -------------------------------------------------------------------

_WORDS = re.compile(r"indices\S* = -?\d+ is not in \[0, \d+\)")
# Ids cut from a matrix whose element [2, 1] is bad.
BAD_IDS = {
    "vector": lambda x: tf.unstack(tf.transpose(x))[1],
    "matrix": lambda x: x,
    "cube": lambda x: tf.reshape(x, [2, 2, 2]),
    "column": lambda x: x[:, 1],
    "column of rank 2": lambda x: x[:, 1:2],
    "columns": lambda x: x[:, :2],
    "flat": lambda x: tf.reshape(x, [-1]),
    "column, expanded": lambda x: tf.expand_dims(x[:, 1], 1),
    "scalar": lambda x: x[2, 1],
    "cast": lambda x: tf.cast(x[:, 1], tf.int32),
}


@pytest.mark.parametrize("form", BAD_IDS)
@pytest.mark.parametrize("joined", [False, True], ids=["plain", "joined"])
def test_bad_id(form, joined):
    """Stock's words about a bad id in the last of three lookups, with the field's
    name; the next step works."""

    def build():
        x = placeholder([4, 2])
        good = x % 5  # the other fields' ids
        rows = [
            lookup(table(f"t{i}", 4, i, 5), BAD_IDS[form](ids), name=f"field_{i}")
            for i, ids in enumerate((good, good, x))
        ]
        return [tf.concat(rows, -1)] if joined else rows, [{x: np.zeros([4, 2])}]

    case = case_of(build)
    feed = case.feeds[0]
    (x,) = feed
    bad_ids = (-1, 5, 2**31 - 1, -(2**31))
    words = {}
    for name, config in (("stock", stock_config()), ("packed", packed_config())):
        with tf.compat.v1.Session(graph=case.graph, config=config) as session:
            session.run(case.init)
            first = session.run(case.fetches, feed)
            for bad in bad_ids:
                wrong = np.zeros([4, 2], np.int64)
                wrong[2, 1] = bad
                with pytest.raises(tf.errors.InvalidArgumentError) as error:
                    session.run(case.fetches, {x: wrong})
                message = error.value.message
                words[name, bad] = _WORDS.findall(message)
                assert "field_2" in message and "field_1" not in message
            second = session.run(case.fetches, feed)
        for a, b in zip(first, second, strict=True):
            assert_same(a, b, f"{name}, after a bad id")
    report = picasso_tf.last_report()
    assert [report.executions(pack)[1] for pack in report.packs] == [2]
    for bad in bad_ids:
        assert words["stock", bad], "stock has other words"
        assert words["packed", bad] == words["stock", bad][:1]


def test_id_of_an_empty_table():
    def build():
        ids = placeholder([None])
        empty = [make_table(f"t{i}", np.zeros([0, 4], np.float32)) for i in range(2)]
        rows = [lookup(t, ids, name=f"field_{i}") for i, t in enumerate(empty)]
        return [tf.concat(rows, 1)], [{ids: []}]

    case = case_of(build)
    check(case)
    (ids,) = case.feeds[0]
    for config in (stock_config(), packed_config()):
        with tf.compat.v1.Session(graph=case.graph, config=config) as session:
            session.run(case.init)
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"not in \[0, 0\)"
            ):
                session.run(case.fetches, {ids: [0]})


def test_bad_id_trains_nothing():
    """A step that fails in a lookup leaves every variable as it was."""

    def build():
        x = placeholder([None, 3])
        rows = [
            lookup(table(f"t{i}", 4, i), x[:, i], name=f"field_{i}") for i in range(3)
        ]
        loss = tf.reduce_sum(tf.square(tf.concat(rows, 1)))
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.1)
        good = np.array([[1, 2, 3], [6, 1, 3]])
        wrong = np.array([[1, 2, 3], [6, 1, 7]])
        return [loss, optimizer.minimize(loss)], [{x: good}, {x: wrong}]

    case = case_of(build)
    good, wrong = case.feeds
    with tf.compat.v1.Session(graph=case.graph, config=packed_config()) as session:
        session.run(case.init)
        session.run(case.fetches, good)
        before = session.run(case.reads)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"indices\[1\] = 7 is not in \[0, 7\)"
        ) as error:
            session.run(case.fetches, wrong)
        assert "field_2" in error.value.message
        for variable, a, b in zip(
            case.variables, session.run(case.reads), before, strict=True
        ):
            assert_same(a, b, variable.name)
    report = picasso_tf.last_report()
    assert sorted(pack.kind for pack in report.packs) == ["lookup", "update"]
    assert [report.executions(pack)[1] for pack in report.packs] == [1, 1]


# -- hypothesis ----------------------------------------------------------------


@st.composite
def _fields(draw):
    return {
        "dtype": draw(st.sampled_from(["float32", "float32", "float16", "float64"])),
        "ids": draw(st.sampled_from(["int32", "int64"])),
        "rows": draw(st.integers(1, 30)),
        "dim": draw(st.integers(1, 40)),
        "kind": draw(st.sampled_from(["column", "column2", "own", "bag", "shared"])),
        "spread": draw(st.sampled_from(["uniform", "one"])),
    }


@given(
    fields=st.lists(_fields(), min_size=1, max_size=9),
    batch=st.integers(0, 12),
    axis=st.sampled_from([1, -1]),
    dense_at=st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=20)
def test_any_fields(fields, batch, axis, dense_at, seed):
    rng = np.random.default_rng(seed)
    fields = [*fields, dict(fields[0]), dict(fields[0], kind="column")]

    def draw_ids(field, shape):
        if field["spread"] == "one":
            return np.full(shape, rng.integers(field["rows"]))
        return rng.integers(0, field["rows"], size=shape)

    def build():
        feed, joins, fetches = {}, {}, []
        matrices = {
            d: placeholder([None, 2 * len(fields)], d) for d in ("int32", "int64")
        }
        values = {d: np.zeros([batch, 2 * len(fields)], d) for d in matrices}
        for i, field in enumerate(fields):
            rows = table(
                f"t{i}", field["dim"], i, field["rows"], tf.as_dtype(field["dtype"])
            )
            x, value = matrices[field["ids"]], values[field["ids"]]
            value[:, 2 * i : 2 * i + 2] = draw_ids(field, [batch, 2])
            if field["kind"] in ("column", "shared"):
                found = lookup(rows, x[:, 2 * i])
                if field["kind"] == "shared":
                    fetches.append(lookup(rows, x[:, 2 * i + 1]))
            elif field["kind"] == "column2":
                found = lookup(rows, x[:, 2 * i : 2 * i + 2])
                found = tf.reshape(found, [-1, 2 * field["dim"]])
            elif field["kind"] == "bag":
                found = tf.reduce_sum(lookup(rows, x[:, 2 * i : 2 * i + 2]), 1)
            else:
                ids = placeholder([None], field["ids"])
                feed[ids] = draw_ids(field, [batch])
                found = lookup(rows, ids)
            joins.setdefault(field["dtype"], []).append(found)
        for dtype, inputs in joins.items():
            dense = placeholder([None, 3], dtype)
            feed[dense] = rng.normal(size=[batch, 3])
            inputs.insert(dense_at, dense)
            fetches.append(tf.concat(inputs, axis))
        feed |= {matrices[d]: values[d] for d in matrices}
        return fetches, [feed]

    assert packed_lookups(check(case_of(build))) >= 2
