"""Every form in which models write lookups, as a table: `FORMS`.

A form is a structure (which tables, what is fed, which rows come out) and what
the rewrite has to make of it. To ask for packs of a form that was left alone so
far, take away its `not_yet`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import forms_columns as columns
import tensorflow as tf
from forms_columns import BAG_WORDS, CROSSED, IDS, NUMBERS, Columns
from forms_data import BAD_ID, STEPS, Batch, flat, ragged, sparse, sparse_cube

v1 = tf.compat.v1

Shapes = tuple[tuple[int, int], ...]
THREE: Shapes = ((11, 4), (50, 4), (20, 8))
WITHOUT_NEGATIVE = tuple(step for step in STEPS if step != "negative_ids")


class Structure(Protocol):
    """How a model is written.

    Attributes:
      tables: (rows, dim) of the variables that `rows` is given.
    """

    tables: Shapes

    def features(self, batch: Batch) -> dict[str, Any]:
        """What is fed, by name: arrays, or values of sparse or ragged tensors."""

    def rows(self, tables: list, features: dict[str, Any]) -> list[tf.Tensor]:
        """What the model makes of it: tensors whose squares are the loss."""


@dataclasses.dataclass(frozen=True)
class Form:
    """One form.

    Attributes:
      name: of the test.
      structure: how it is written.
      lookups: members of the packs that a training step needs, other than
        updates.
      updates: members of the packed updates, for optimizers with one sparse
        update a table.
      not_yet: results are compared all the same, packs are not asked for.
      ids, dtypes: types of ids and of rows to try.
      steps: the batches that stock can digest.
      bad_id: what the error names when an id is not in the table; None: it is
        no error.
      graph_only: TensorFlow has it in version 1's graphs alone.
    """

    name: str
    structure: Structure
    lookups: int
    updates: int
    not_yet: bool = False
    ids: tuple[str, ...] = ("int64", "int32")
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    steps: tuple[str, ...] = WITHOUT_NEGATIVE
    bad_id: str | None = str(BAD_ID)
    graph_only: bool = False

    def batch(self, step: int, ids: str, dtype: str) -> Batch:
        """What is fed in a step: a kind that this form can digest."""
        kind = STEPS[step % len(STEPS)]
        return Batch(kind if kind in self.steps else "plain", step, ids, dtype)


# -- plain lookups ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plain:
    """A column of ids for each table; rows side by side."""

    tables: Shapes = THREE
    twice: bool = False  # each table looked up by two columns
    max_norm: float | None = None

    def features(self, batch):
        width = 2 if self.twice else 1
        return {
            f"ids_{i}": batch.column(i, rows, width)
            for i, (rows, _) in enumerate(self.tables)
        }

    def rows(self, tables, features):
        return [
            tf.concat(
                [
                    tf.nn.embedding_lookup(
                        table, features[f"ids_{i}"][:, j], max_norm=self.max_norm
                    )
                    for i, table in enumerate(tables)
                    for j in range(2 if self.twice else 1)
                ],
                axis=1,
            )
        ]


@dataclasses.dataclass(frozen=True)
class Shared:
    """One table, looked up by three columns [batch, 1]; rows side by side."""

    tables: Shapes = ((11, 4),)

    def features(self, batch):
        return {f"ids_{i}": batch.column(i, self.tables[0][0]) for i in range(3)}

    def rows(self, tables, features):
        dim = self.tables[0][1]
        rows = [
            tf.reshape(tf.nn.embedding_lookup(tables[0], ids), [-1, dim])
            for ids in features.values()
        ]
        return [tf.concat(rows, axis=1)]


# -- bags ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Bags:
    """One bag for each table.

    Attributes:
      lookup: "sparse" or "safe", with "_v1" for TensorFlow 1's function.
      layout: "sparse", "cube" (sparse ids of rank 3) or "ragged".
      params: "variable", or a plain tensor: "read_value" or "tensor".
      fast: allow_fast_lookup.
      join: rows side by side, as safe lookups allow.
    """

    lookup: str
    combiner: str
    weights: bool = False
    default_id: int | None = None
    max_norm: float | None = None
    layout: str = "sparse"
    params: str = "variable"
    fast: bool = False
    join: bool = False
    tables: Shapes = THREE

    def features(self, batch):
        layout = {"sparse": sparse, "cube": sparse_cube, "ragged": ragged}[self.layout]
        features = {}
        for i, (rows, _) in enumerate(self.tables):
            bags = batch.bags(i, rows)
            features[f"ids_{i}"] = layout(bags, batch.typed(flat(bags)))
            if self.weights:
                features[f"weights_{i}"] = layout(bags, batch.weights(i, bags))
        return features

    def rows(self, tables, features):
        rows = [
            self.bag(table, features[f"ids_{i}"], features.get(f"weights_{i}"))
            for i, table in enumerate(tables)
        ]
        return [tf.concat(rows, axis=1)] if self.join else rows

    def bag(self, table, ids, weights=None) -> tf.Tensor:
        params = {
            "variable": lambda: table,
            "read_value": lambda: table.read_value(),
            "tensor": lambda: tf.convert_to_tensor(table),
        }[self.params]()
        options = {"combiner": self.combiner, "max_norm": self.max_norm}
        if self.fast:
            options["allow_fast_lookup"] = True
        if self.lookup.startswith("safe"):
            options["default_id"] = self.default_id
        lookup = {
            "sparse": tf.nn.embedding_lookup_sparse,
            "safe": tf.nn.safe_embedding_lookup_sparse,
            "sparse_v1": v1.nn.embedding_lookup_sparse,
            "safe_v1": v1.nn.safe_embedding_lookup_sparse,
        }[self.lookup]
        return lookup(params, ids, weights, **options)


@dataclasses.dataclass(frozen=True)
class SharedBags:
    """A bag by mean and a bag by sum of each table, with the same ids in both
    for the first one."""

    tables: Shapes = THREE

    def features(self, batch):
        features = {}
        for i, (rows, _) in enumerate(self.tables):
            for j in range(2):
                bags = batch.bags(i + 10 * j * (i > 0), rows)
                features[f"ids_{i}_{j}"] = sparse(bags, batch.typed(flat(bags)))
        return features

    def rows(self, tables, features):
        return [
            tf.nn.safe_embedding_lookup_sparse(
                table, features[f"ids_{i}_{j}"], combiner=combiner
            )
            for i, table in enumerate(tables)
            for j, combiner in enumerate(("mean", "sum"))
        ]


@dataclasses.dataclass(frozen=True)
class BagsBesidePlain:
    """Bags of three tables and plain lookups of two, in turn, in one concat.

    With `shared`, the plain lookups are of the bags' tables.
    """

    tables: Shapes = (*THREE, (7, 4), (30, 2))
    shared: bool = False

    def features(self, batch):
        features = {}
        for i, (rows, _) in enumerate(self.tables[:3]):
            bags = batch.bags(i, rows)
            features[f"bag_{i}"] = sparse(bags, batch.typed(flat(bags)))
        for i, (rows, _) in enumerate(self._plain(self.tables)):
            column = dataclasses.replace(batch, kind=plain_kind(batch.kind))
            features[f"ids_{i}"] = column.column(i + 5, rows)
        return features

    def _plain(self, tables):
        return tables[:2] if self.shared else tables[3:5]

    def rows(self, tables, features):
        bags = [
            tf.nn.safe_embedding_lookup_sparse(table, features[f"bag_{i}"])
            for i, table in enumerate(tables[:3])
        ]
        plain = [
            tf.nn.embedding_lookup(table, features[f"ids_{i}"][:, 0])
            for i, table in enumerate(self._plain(tables))
        ]
        return [tf.concat([bags[0], plain[0], bags[1], bags[2], plain[1]], axis=1)]


def plain_kind(kind: str) -> str:
    """The kind for columns beside bags; -1 is for bags alone."""
    return "plain" if kind == "negative_ids" else kind


# -- partitioned variables ----------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Parts:
    """Two tables in `parts` variables each, plain or as bags.

    Attributes:
      shapes: of the tables as a whole.
      strategy: "mod" or "div".
    """

    parts: int
    strategy: str
    bags: str | None = None  # a combiner
    shapes: Shapes = ((11, 4), (20, 8))

    @property
    def tables(self) -> Shapes:
        """The parts, a table after the other; the first ones get what is over."""
        return tuple(
            (rows // self.parts + (part < rows % self.parts), dim)
            for rows, dim in self.shapes
            for part in range(self.parts)
        )

    def features(self, batch):
        features = {}
        for i, (rows, _) in enumerate(self.shapes):
            if self.bags:
                bags = batch.bags(i, rows)
                features[f"ids_{i}"] = sparse(bags, batch.typed(flat(bags)))
            else:
                features[f"ids_{i}"] = batch.column(i, rows)
        return features

    def rows(self, tables, features):
        rows = []
        for i in range(len(self.shapes)):
            parts = tables[i * self.parts : (i + 1) * self.parts]
            ids = features[f"ids_{i}"]
            if self.bags is None:
                rows.append(v1.nn.embedding_lookup(parts, ids[:, 0], self.strategy))
            else:
                rows.append(
                    v1.nn.safe_embedding_lookup_sparse(
                        parts,
                        ids,
                        combiner=self.bags,
                        partition_strategy=self.strategy,
                    )
                )
        return [tf.concat(rows, axis=1)]


# -- control flow -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Loop:
    """What is inside, three times in a tf.while_loop, for ids that move on."""

    inner: Plain = Plain()

    @property
    def tables(self) -> Shapes:
        return self.inner.tables

    def features(self, batch):
        return self.inner.features(batch)

    def rows(self, tables, features):
        sizes = [rows for rows, _ in self.tables]

        def body(i, total):
            moved = {
                f"ids_{k}": (ids + tf.cast(i, ids.dtype)) % sizes[k]
                for k, ids in enumerate(features.values())
            }
            rows = self.inner.rows(tables, moved)[0]
            return i + 1, total + tf.cast(rows, tf.float32)

        count = tf.shape(features["ids_0"])[0]
        width = sum(dim for _, dim in self.tables)
        start = tf.zeros(tf.stack([count, width]))
        _, total = tf.while_loop(
            lambda i, _: i < 3,
            body,
            (0, start),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, width])),
        )
        return [total]


@dataclasses.dataclass(frozen=True)
class Branch:
    """Looked up one way or another, by how many rows there are; and once beside."""

    inner: Plain = Plain()

    @property
    def tables(self) -> Shapes:
        return self.inner.tables

    def features(self, batch):
        return self.inner.features(batch)

    def rows(self, tables, features):
        def both_ways():
            turned = {name: ids[::-1] for name, ids in features.items()}
            first, second = (
                self.inner.rows(tables, ids)[0] for ids in (turned, features)
            )
            return first + second

        rows = tf.cond(
            tf.shape(features["ids_0"])[0] > 6,
            both_ways,
            lambda: self.inner.rows(tables, features)[0],
        )
        return [rows, *self.inner.rows(tables, features)]


@dataclasses.dataclass(frozen=True)
class Nested:
    """What is inside, in a tf.function that is called in another."""

    inner: Any

    @property
    def tables(self) -> Shapes:
        return self.inner.tables

    def features(self, batch):
        return self.inner.features(batch)

    def rows(self, tables, features):
        @tf.function(autograph=False)
        def innermost(features):
            return self.inner.rows(tables, features)

        @tf.function(autograph=False)
        def outer(features):
            return innermost(features)

        return outer(features)


def column_form(name, structure, lookups, updates, **options) -> Form:
    """Feature columns are of TensorFlow 1, and of one type."""
    options = {"steps": STEPS, "bad_id": None} | options
    return Form(
        name,
        structure,
        lookups,
        updates,
        dtypes=("float32",),
        graph_only=True,
        **options,
    )


# -- the table ----------------------------------------------------------------

SAFE = STEPS

FORMS: tuple[Form, ...] = (
    Form("plain", Plain(), 3, 3),
    Form("plain_twice", Plain(twice=True), 6, 3),
    Form("plain_max_norm", Plain(max_norm=1.0), 3, 3),
    Form("plain_shared", Shared(), 3, 1),
    # embedding_lookup_sparse
    Form("sparse_sum", Bags("sparse", "sum"), 3, 3),
    Form("sparse_mean", Bags("sparse", "mean"), 3, 3),
    Form("sparse_sqrtn", Bags("sparse", "sqrtn"), 3, 3),
    Form("weighted_sum", Bags("sparse", "sum", True), 3, 3),
    Form("weighted_mean", Bags("sparse", "mean", True), 3, 3),
    Form("weighted_sqrtn", Bags("sparse", "sqrtn", True), 3, 3),
    Form("sparse_v1", Bags("sparse_v1", "mean"), 3, 3),
    Form("sparse_max_norm", Bags("sparse", "mean", max_norm=1.0), 3, 3),
    Form(
        "weighted_max_norm",
        Bags("sparse", "sum", True, max_norm=1.0),
        3,
        3,
    ),
    # safe_embedding_lookup_sparse
    Form("safe_sum", Bags("safe", "sum"), 3, 3, steps=SAFE),
    Form("safe_mean", Bags("safe", "mean"), 3, 3, steps=SAFE),
    Form("safe_sqrtn", Bags("safe", "sqrtn"), 3, 3, steps=SAFE),
    Form("safe_weighted_sum", Bags("safe", "sum", True), 3, 3, steps=SAFE),
    Form(
        "safe_weighted_mean",
        Bags("safe", "mean", True),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "safe_weighted_sqrtn",
        Bags("safe", "sqrtn", True),
        3,
        3,
        steps=SAFE,
    ),
    Form("safe_v1", Bags("safe_v1", "mean", True), 3, 3, steps=SAFE),
    Form(
        "safe_default_id",
        Bags("safe", "mean", default_id=3),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "safe_weighted_default_id",
        Bags("safe", "sum", True, default_id=0),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "safe_max_norm",
        Bags("safe", "sqrtn", max_norm=1.0),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "safe_cube",
        Bags("safe", "mean", layout="cube"),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "safe_weighted_cube",
        Bags("safe", "sum", True, layout="cube"),
        3,
        3,
        steps=SAFE,
    ),
    Form("safe_joined", Bags("safe", "mean", join=True), 3, 3, steps=SAFE),
    Form("shared_bags", SharedBags(), 6, 3, steps=SAFE),
    Form("bags_beside_plain", BagsBesidePlain(), 5, 5, steps=SAFE),
    Form(
        "bags_and_plain_of_a_table",
        BagsBesidePlain(THREE, shared=True),
        5,
        3,
        steps=SAFE,
    ),
    # Ragged ids.
    Form("ragged_sum", Bags("sparse", "sum", layout="ragged"), 3, 3),
    Form("ragged_mean", Bags("sparse", "mean", layout="ragged"), 3, 3),
    Form(
        "ragged_weighted",
        Bags("sparse", "mean", True, layout="ragged"),
        3,
        3,
    ),
    # Stock fails when there are no rows.
    Form(
        "safe_ragged",
        Bags("safe", "sum", layout="ragged"),
        3,
        3,
        steps=tuple(step for step in STEPS if step != "no_rows"),
    ),
    # The table as a plain tensor.
    Form("fast_sum", Bags("sparse", "sum", params="read_value"), 3, 3),
    Form("fast_mean", Bags("sparse", "mean", params="tensor"), 3, 3),
    Form(
        "fast_sqrtn",
        Bags("safe", "sqrtn", params="read_value"),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "fast_weighted",
        Bags("safe", "mean", True, params="read_value"),
        3,
        3,
        steps=SAFE,
    ),
    Form(
        "fast_allowed",
        Bags("sparse", "sum", True, params="tensor", fast=True),
        3,
        3,
    ),
    # Partitioned variables.
    Form("parts_mod", Parts(3, "mod"), 2, 6, bad_id="4115"),
    Form("parts_div", Parts(3, "div"), 2, 6, bad_id="4114"),
    Form("parts_one", Parts(1, "div"), 2, 2),
    # With "div", stock divides by zero here.
    Form(
        "parts_few_rows",
        Parts(3, "mod", shapes=((2, 4), (20, 8))),
        2,
        6,
        bad_id="4115",
    ),
    Form(
        "parts_bags_mod",
        Parts(3, "mod", "mean"),
        2,
        6,
        steps=SAFE,
        bad_id="4115",
    ),
    Form(
        "parts_bags_div",
        Parts(3, "div", "sum"),
        2,
        6,
        steps=SAFE,
        bad_id="4114",
    ),
    Form("parts_bags_one", Parts(1, "mod", "sqrtn"), 2, 2, steps=SAFE),
    # Control flow.
    # Gradients of a loop are dense sums: few updates of rows.
    Form("while_loop", Loop(), 3, 1, bad_id=None),
    Form("branch", Branch(), 3, 3),
    Form("nested_function", Nested(Plain()), 3, 3),
    Form("nested_bags", Nested(Bags("safe", "mean")), 3, 3, steps=SAFE),
    # Feature columns.
    column_form(
        "columns_identity",
        Columns(lambda: columns.embedded(columns.identity()), IDS),
        3,
        3,
        bad_id=str(BAD_ID),
    ),
    column_form(
        "columns_default",
        Columns(lambda: columns.embedded(columns.identity(default_value=1)), IDS),
        3,
        3,
    ),
    column_form(
        "columns_max_norm",
        Columns(lambda: columns.embedded(columns.identity(), "sum", max_norm=1.0), IDS),
        3,
        3,
    ),
    column_form(
        "columns_matrix",
        Columns(columns.matrix, ("matrix_0", "matrix_1", "matrix_2")),
        3,
        3,
    ),
    column_form(
        "columns_hashed",
        Columns(lambda: columns.embedded(columns.hashed(), "sqrtn"), BAG_WORDS),
        3,
        3,
        ids=("string",),
    ),
    column_form(
        "columns_listed",
        Columns(lambda: columns.embedded(columns.listed()), BAG_WORDS),
        3,
        3,
        ids=("string",),
    ),
    column_form(
        "columns_filed",
        Columns(lambda: columns.embedded(columns.filed(), "sum"), BAG_WORDS),
        3,
        3,
        ids=("string",),
    ),
    column_form(
        "columns_bucketized",
        Columns(lambda: columns.embedded(columns.bucketized()), NUMBERS),
        3,
        3,
    ),
    column_form(
        "columns_crossed",
        Columns(lambda: columns.embedded(columns.crossed()), CROSSED),
        3,
        3,
        ids=("string",),
    ),
    column_form(
        "columns_weighted",
        Columns(
            lambda: columns.embedded(columns.weighted() + columns.identity()[1:]),
            (*IDS, "weight_0"),
        ),
        3,
        3,
    ),
    column_form("columns_shared", Columns(columns.shared, IDS), 3, 1),
    column_form(
        "columns_indicator",
        Columns(columns.deep_and_indicator, IDS),
        2,
        2,
    ),
    column_form(
        "columns_linear",
        Columns(columns.wide, (*IDS[:2], *CROSSED, "weight_0"), linear=True),
        6,
        6,
        steps=columns.SOME_ROWS,
    ),
    column_form(
        "columns_everything",
        Columns(columns.everything, (*IDS[:2], *BAG_WORDS, "number_0")),
        5,
        5,
    ),
)
