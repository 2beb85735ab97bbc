"""Models written with Keras 2, 3, or both, whatever is there."""

from __future__ import annotations

import dataclasses
from typing import Any

import forms_columns
import tensorflow as tf
from forms import THREE, Form, Shapes
from forms_data import STEPS, Batch, flat, ragged, sparse, spec
from forms_run import Case, Optimizer, loss_of
from helpers_models import KERAS_2, keras_2, table_values

keras_3 = None if KERAS_2 else tf.keras


@dataclasses.dataclass(frozen=True)
class Embeddings:
    """An Embedding layer for each table, rows side by side.

    Attributes:
      keras: the module.
      layout: of the ids: "column" [batch, 1], "matrix" [batch, 3], "sparse" or
        "ragged".
      mask_zero, input_length: of the layers.
      shared: one layer for all inputs.
    """

    keras: Any
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

    def model(self, dtype: str, ids: str):
        keras = self.keras
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
        joined = keras.layers.Concatenate(dtype=dtype)(rows)
        return keras.Model({i.name.split(":")[0]: i for i in inputs}, joined)

    @property
    def _layers(self) -> int:
        return 1 if self.shared else len(self.tables)

    def _layer(self, rows: int, dim: int, dtype: str):
        options = {"mask_zero": self.mask_zero, "dtype": dtype}
        if self.input_length:
            options["input_length"] = self.input_length
        return self.keras.layers.Embedding(rows, dim, **options)

    def _pooled(self, layer, ids, dtype: str):
        layers = self.keras.layers
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
                output_shape=(layer.output_dim,),
            )
            return total(rows)
        return layers.Flatten(dtype=dtype)(rows)


@dataclasses.dataclass(frozen=True)
class DenseFeatures:
    """Keras 2's layer of feature columns."""

    keras: Any
    tables: Shapes = ((20, 4), (20, 4), (20, 8))

    def features(self, batch: Batch) -> dict[str, Any]:
        return {f"id_{i}": forms_columns.feature(batch, f"id_{i}") for i in range(3)}

    def model(self, dtype: str, ids: str):
        keras = self.keras
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
        return keras.Model(inputs, keras.layers.DenseFeatures(columns)(inputs))


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
        self._optimizer = optimizer_of(case).make()
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


def _make(keras, name: str, *arguments, **options) -> Optimizer:
    return Optimizer(lambda: getattr(keras.optimizers, name)(*arguments, **options))


def _legacy(name: str, *arguments, **options) -> Optimizer:
    legacy = keras_2 and keras_2.optimizers.legacy
    return Optimizer(lambda: getattr(legacy, name)(*arguments, **options))


def _common(keras, **more) -> dict[str, Optimizer]:
    """Those that both have."""
    return {
        "sgd": _make(keras, "SGD", 0.1, **more),
        "adagrad": _make(keras, "Adagrad", 0.1, **more),
        "rmsprop": _make(keras, "RMSprop", 0.01, **more),
        "adadelta": _make(keras, "Adadelta", 0.5, **more),
        "ftrl": _make(keras, "Ftrl", 0.1, l1_regularization_strength=0.01, **more),
        "adam": _make(keras, "Adam", 0.01, **more),
        "adamw": _make(keras, "AdamW", 0.01, weight_decay=0.01, **more),
    }


KERAS_2_OPTIMIZERS = _common(keras_2, jit_compile=False) | {
    "legacy_sgd": _legacy("SGD", 0.1),
    "legacy_momentum": _legacy("SGD", 0.05, momentum=0.9),
    "legacy_adagrad": _legacy("Adagrad", 0.1),
    "legacy_rmsprop": _legacy("RMSprop", 0.01, momentum=0.5),
    "legacy_adadelta": _legacy("Adadelta", 0.5),
    "legacy_ftrl": _legacy("Ftrl", 0.1, l1_regularization_strength=0.01),
    "legacy_adam": _legacy("Adam", 0.01),
}
KERAS_3_OPTIMIZERS = _common(keras_3) | {
    "accumulated_sgd": _make(keras_3, "SGD", 0.1, gradient_accumulation_steps=2),
    "accumulated_adagrad": _make(
        keras_3, "Adagrad", 0.1, gradient_accumulation_steps=2
    ),
}
# What any of Keras 3's may be given, in turns.
KERAS_3_OPTIONS = {
    f"{name.lower()}_{option}": _make(keras_3, name, 0.05, **arguments)
    for option, arguments, names in (
        ("clipnorm", {"clipnorm": 0.1}, ("SGD", "Adam")),
        ("clipvalue", {"clipvalue": 0.05}, ("Adagrad", "AdamW")),
        ("global_clipnorm", {"global_clipnorm": 0.1}, ("SGD", "Adagrad")),
        ("weight_decay", {"weight_decay": 0.01}, ("Adagrad", "RMSprop")),
        ("ema", {"use_ema": True, "ema_momentum": 0.9}, ("SGD", "Adam")),
        ("overwritten", {"use_ema": True, "ema_overwrite_frequency": 3}, ("Adagrad",)),
        ("momentum", {"momentum": 0.9}, ("SGD",)),
        ("centered", {"momentum": 0.9, "centered": True}, ("RMSprop",)),
    )
    for name in names
}


def optimizer_of(case: Case) -> Optimizer:
    if case.form.structure.keras is keras_2:
        return KERAS_2_OPTIMIZERS[case.optimizer]
    return (KERAS_3_OPTIMIZERS | KERAS_3_OPTIONS)[case.optimizer]


# -- the tables ---------------------------------------------------------------

POLICIES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
NO_NEGATIVE = tuple(s for s in STEPS if s != "negative_ids")


def keras_form(name, structure, updates=3, **options) -> Form:
    version = 2 if structure.keras is keras_2 else 3
    # Keras 3 counts negative ids from the end.
    steps = STEPS if version == 3 else NO_NEGATIVE
    options = {"dtypes": POLICIES, "steps": steps} | options
    return Form(f"keras_{version}_{name}", structure, 3, updates, **options)


def _forms(keras, *more: Form) -> tuple[Form, ...]:
    """The forms that both have, and more; none of a Keras that is not there."""
    if keras is None:
        return ()

    def of(*arguments, **options):
        return Embeddings(keras, *arguments, **options)

    return (
        keras_form("embedding", of()),
        keras_form("matrix", of("matrix")),
        # One update of one op may be alone.
        keras_form("shared", of(shared=True), 0),
        keras_form("mask_zero", of("matrix", mask_zero=True)),
        keras_form("ragged", of("ragged"), steps=NO_NEGATIVE),
        keras_form("sparse", of("sparse"), steps=NO_NEGATIVE),
        *more,
    )


KERAS_2_FORMS = _forms(
    keras_2,
    keras_form("input_length", Embeddings(keras_2, "matrix", input_length=3)),
    keras_form(
        "dense_features", DenseFeatures(keras_2), dtypes=("float32",), steps=STEPS
    ),
)
KERAS_3_FORMS = _forms(keras_3)
