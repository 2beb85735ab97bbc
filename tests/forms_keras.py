"""Models written with Keras, 2 and 3."""

from __future__ import annotations

import dataclasses
from typing import Any

import forms_columns
import tensorflow as tf
from forms import THREE, Form, Shapes
from forms_data import STEPS, Batch, flat, ragged, sparse, spec
from forms_run import Case, Optimizer, loss_of
from helpers_models import KERAS_2, table_values

keras = tf.keras
layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """An Embedding layer for each table, rows side by side.

    Attributes:
      layout: of the ids: "column" [batch, 1], "matrix" [batch, 3], "sparse" or
        "ragged".
      mask_zero, input_length: of the layers.
      shared: one layer for all inputs.
    """

    layout: str = "column"
    mask_zero: bool = False
    input_length: int | None = None
    shared: bool = False
    tables: Shapes = THREE

    def features(self, batch: Batch) -> dict[str, Any]:
        return {
            f"ids_{i}": self._ids(batch, i, self.tables[0 if self.shared else i][0])
            for i in range(len(self.tables))
        }

    def _ids(self, batch: Batch, field: int, rows: int):
        if self.layout in ("column", "matrix"):
            return batch.column(field, rows, 1 if self.layout == "column" else 3)
        bags = batch.bags(field, rows)
        layout = sparse if self.layout == "sparse" else ragged
        return layout(bags, batch.typed(flat(bags)))

    def model(self, dtype: str, ids: str) -> keras.Model:
        width = {"column": 1, "matrix": 3}.get(self.layout)
        options = {self.layout: True} if width is None else {}
        inputs = [
            keras.Input([width], dtype=ids, name=f"ids_{i}", **options)
            for i in range(len(self.tables))
        ]
        made = [self._layer(*shape, dtype) for shape in self.tables[: self._layers]]
        rows = [
            self._pooled(made[i % len(made)], ids_i, dtype)
            for i, ids_i in enumerate(inputs)
        ]
        joined = layers.Concatenate(dtype=dtype)(rows)
        return keras.Model({i.name.split(":")[0]: i for i in inputs}, joined)

    @property
    def _layers(self) -> int:
        return 1 if self.shared else len(self.tables)

    def _layer(self, rows: int, dim: int, dtype: str):
        options = {"mask_zero": self.mask_zero, "dtype": dtype}
        if self.input_length:
            options["input_length"] = self.input_length
        return layers.Embedding(rows, dim, **options)

    def _pooled(self, layer, ids, dtype: str):
        rows = layer(ids)
        if self.mask_zero:
            return layers.GlobalAveragePooling1D(dtype=dtype)(rows)
        if self.layout == "ragged":
            mean = layers.Lambda(lambda x: tf.reduce_sum(x, axis=1), dtype=dtype)
            return mean(rows)
        if self.layout == "sparse":
            total = layers.Lambda(
                lambda x: tf.reduce_sum(x, axis=1),
                dtype=dtype,
                **({} if KERAS_2 else {"output_shape": (layer.output_dim,)}),
            )
            return total(rows)
        return layers.Flatten(dtype=dtype)(rows)


@dataclasses.dataclass(frozen=True)
class DenseFeatures:
    """Keras 2's layer of feature columns."""

    tables: Shapes = ((20, 4), (20, 4), (20, 8))

    def features(self, batch: Batch) -> dict[str, Any]:
        return {f"id_{i}": forms_columns.feature(batch, f"id_{i}") for i in range(3)}

    def model(self, dtype: str, ids: str) -> keras.Model:
        columns = [
            tf.feature_column.embedding_column(
                tf.feature_column.categorical_column_with_identity(f"id_{i}", rows),
                dim,
            )
            for i, (rows, dim) in enumerate(self.tables)
        ]
        inputs = {
            f"id_{i}": keras.Input([None], dtype=ids, name=f"id_{i}", sparse=True)
            for i in range(3)
        }
        return keras.Model(inputs, layers.DenseFeatures(columns)(inputs))


class KerasModel(tf.Module):
    """A Keras model in tf.functions, as train_in_functions takes it."""

    def __init__(self, case: Case):
        super().__init__()
        structure = case.form.structure
        self.model = structure.model(case.dtype, case.ids)
        self.model.set_weights(
            [
                table_values(*weight.shape, seed=i).astype(weight.dtype)
                for i, weight in enumerate(self.model.get_weights())
            ]
        )
        self._optimizer = KERAS_OPTIMIZERS[case.optimizer].make()
        variables = self.model.trainable_variables
        if hasattr(self._optimizer, "build"):
            self._optimizer.build(variables)
        else:
            self._optimizer._create_all_weights(variables)
        signature = {name: spec(value) for name, value in case.batch_of(2).items()}
        self.score = tf.function(self._rows, [signature], autograph=False)
        self.step = tf.function(self._step, [signature], autograph=False)

    def _rows(self, features):
        return [self.model(features, training=True)]

    def _step(self, features):
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            rows = self._rows(features)
            loss = loss_of(rows)
        gradients = tape.gradient(loss, values_of(variables))
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return [loss, *rows]

    def state(self) -> list[tf.Variable]:
        slots = self._optimizer.variables
        slots = slots() if callable(slots) else slots
        return values_of([*self.model.variables, *slots])


def values_of(variables) -> list[tf.Variable]:
    """The variables of TensorFlow behind those of Keras 3."""
    return [v if isinstance(v, tf.Variable) else v.value for v in variables]


# -- optimizers ---------------------------------------------------------------


def _new(name: str, *arguments, **options) -> Optimizer:
    if KERAS_2:
        options["jit_compile"] = False
    return Optimizer(lambda: getattr(keras.optimizers, name)(*arguments, **options))


def _legacy(name: str, *arguments, **options) -> Optimizer:
    return Optimizer(
        lambda: getattr(keras.optimizers.legacy, name)(*arguments, **options)
    )


KERAS_OPTIMIZERS = {
    "sgd": _new("SGD", 0.1),
    "adagrad": _new("Adagrad", 0.1),
    "rmsprop": _new("RMSprop", 0.01),
    "adadelta": _new("Adadelta", 0.5),
    "ftrl": _new("Ftrl", 0.1, l1_regularization_strength=0.01),
    "adam": _new("Adam", 0.01),
    "adamw": _new("AdamW", 0.01, weight_decay=0.01),
}
if KERAS_2:
    KERAS_OPTIMIZERS |= {
        "legacy_sgd": _legacy("SGD", 0.1),
        "legacy_momentum": _legacy("SGD", 0.05, momentum=0.9),
        "legacy_adagrad": _legacy("Adagrad", 0.1),
        "legacy_rmsprop": _legacy("RMSprop", 0.01, momentum=0.5),
        "legacy_adadelta": _legacy("Adadelta", 0.5),
        "legacy_ftrl": _legacy("Ftrl", 0.1, l1_regularization_strength=0.01),
        "legacy_adam": _legacy("Adam", 0.01),
    }
else:
    KERAS_OPTIMIZERS |= {
        "accumulated_sgd": _new("SGD", 0.1, gradient_accumulation_steps=2),
        "accumulated_adagrad": _new("Adagrad", 0.1, gradient_accumulation_steps=2),
    }


# -- the table ----------------------------------------------------------------

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
# Keras 3 counts negative ids from the end.
COLUMN_STEPS = tuple(s for s in STEPS if not KERAS_2 or s != "negative_ids")
NO_NEGATIVE = tuple(s for s in STEPS if s != "negative_ids")


def keras_form(name, structure, lookups, updates, **options) -> Form:
    # Not all updates of rows that Keras 3 computes are packed.
    more = {"dtypes": POLICIES, "steps": COLUMN_STEPS, "not_yet": not KERAS_2}
    options = more | options
    return Form("keras_" + name, structure, lookups, updates, **options)


KERAS_FORMS: tuple[Form, ...] = (
    keras_form("embedding", Embeddings(), 3, 3),
    keras_form("matrix", Embeddings("matrix"), 3, 3),
    # One update of one op may be alone.
    keras_form("shared", Embeddings(shared=True), 3, 0),
    keras_form("mask_zero", Embeddings("matrix", mask_zero=True), 3, 3),
    keras_form("ragged", Embeddings("ragged"), 3, 3, steps=NO_NEGATIVE),
    # AdamW waits for the lookup alone, not for the pooling: left alone.
    keras_form("sparse", Embeddings("sparse"), 0, 3, steps=NO_NEGATIVE),
)
if KERAS_2:
    KERAS_FORMS += (
        keras_form("input_length", Embeddings("matrix", input_length=3), 3, 3),
        keras_form(
            "dense_features", DenseFeatures(), 3, 3, dtypes=("float32",), steps=STEPS
        ),
    )
