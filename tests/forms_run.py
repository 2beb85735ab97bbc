"""Training the forms of tests/forms.py with and without the flag, side by side.

The graph is built or traced once for both sides. After half of the steps each
side writes a checkpoint, forgets everything, and goes on from the other's.
"""

from __future__ import annotations

import collections
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from forms import Form
from forms_data import Batch, placeholder, spec, tensor
from graphs import STRICT
from helpers_kernels import assert_same
from helpers_models import Watched, assert_all_same, table_values

import picasso_tf

v1 = tf.compat.v1
STEPS = 10


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How to make one, and how many sparse updates it has for a table."""

    make: Callable[[], Any]
    updates: int = 1


V1_OPTIMIZERS = {
    "sgd": Optimizer(lambda: v1.train.GradientDescentOptimizer(0.1)),
    "adagrad": Optimizer(lambda: v1.train.AdagradOptimizer(0.1)),
    "ftrl": Optimizer(
        lambda: v1.train.FtrlOptimizer(
            0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01
        )
    ),
    "momentum": Optimizer(lambda: v1.train.MomentumOptimizer(0.05, 0.9)),
    "rmsprop": Optimizer(lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.5)),
    "adam": Optimizer(lambda: v1.train.AdamOptimizer(0.01), 2),
    "adadelta": Optimizer(lambda: v1.train.AdadeltaOptimizer(0.5)),
}


@dataclasses.dataclass(frozen=True)
class Case:
    form: Form
    dtype: str
    ids: str
    optimizer: str

    def __str__(self) -> str:
        return f"{self.form.name}-{self.dtype}-{self.ids}-{self.optimizer}"

    def batches(self) -> list[dict]:
        return [
            self.form.structure.features(self.form.batch(step, self.ids, self.dtype))
            for step in range(STEPS)
        ]

    def bad_batch(self) -> dict:
        return self.form.structure.features(Batch("bad", 0, self.ids, self.dtype))

    def batch_of(self, size: int) -> dict:
        return self.form.structure.features(
            Batch("plain", 0, self.ids, self.dtype, size)
        )


# What stock has no kernel for.
LACKING = (("rmsprop", "bfloat16"), ("legacy_rmsprop", "bfloat16"))


def whole_product(forms: Sequence[Form], optimizers: Sequence[str]) -> list[Case]:
    return [
        Case(form, dtype, ids, optimizer)
        for form in forms
        for dtype in form.dtypes
        for ids in form.ids
        for optimizer in optimizers
        if (optimizer, dtype) not in LACKING
    ]


def cover(forms: Sequence[Form], optimizers: Sequence[str], count: int) -> list[Case]:
    """Cases in which each form meets all of its types, and optimizers take turns.

    Args:
      count: cases for each form; as many as there are optimizers, and each form
        meets each of them.
    """
    cases = []
    for f, form in enumerate(forms):
        for k in range(count):
            dtype = form.dtypes[(f + k) % len(form.dtypes)]
            usable = [o for o in optimizers if (o, dtype) not in LACKING]
            optimizer = usable[(f * count + k) % len(usable)]
            ids = form.ids[(f // 3 + k) % len(form.ids)]
            cases.append(Case(form, dtype, ids, optimizer))
    return cases


def initial(structure, dtype: str) -> list[np.ndarray]:
    """Values of the tables."""
    as_type = tf.as_dtype(dtype).as_numpy_dtype
    return [
        table_values(rows, dim, i).astype(as_type)
        for i, (rows, dim) in enumerate(structure.tables)
    ]


def loss_of(outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Another gradient for each element."""
    total = tf.constant(0.0)
    for rows in outputs:
        size = tf.cast(tf.size(rows), tf.float32)
        target = tf.reshape(tf.cos(tf.range(size)), tf.shape(rows))
        total += tf.reduce_sum(tf.square(tf.cast(rows, tf.float32) - target))
    return total


def assert_same_error(ours: Callable, stock: Callable, text: str) -> None:
    """Both raise the same type, with the text in the message."""
    with pytest.raises(tf.errors.OpError) as expected:
        stock()
    with pytest.raises(tf.errors.OpError) as got:
        ours()
    assert got.type is expected.type, f"{got.value}\nnot\n{expected.value}"
    assert text in expected.value.message
    assert text in got.value.message


# Why something may be left alone in forms that are packed.
LEFT_ALONE = (
    "no other",  # one dense update of its kind, one row of numbers
    "max_norm",
    "LoRA",  # an optimizer's slot, to which something is added
    "its lookup alone may be packed",  # the gradient of weights, where it is made
)


def assert_packs(case: Case, updates: int, seen: Watched) -> None:
    """What was packed ran; and it was all that the form asks for."""
    for report in seen.reports():
        assert not report.failures, seen.text()
        assert case.form.not_yet or not report.was_dropped(), seen.text()
    if case.form.not_yet:
        return
    members = collections.Counter()
    for pack in seen.packs():
        members[pack.kind] += len(pack.members)
    # A table that is updated as a whole has no update of rows.
    updated = members["update"] + members["dense update"]
    assert members["lookup"] >= case.form.lookups, seen.text()
    assert updated >= case.form.updates * updates, seen.text()
    for reason in seen.reasons():
        assert any(text in reason for text in LEFT_ALONE), seen.text()
    seen.assert_packed()


# -- sessions -----------------------------------------------------------------


class GraphModel:
    """A form in a TF1 graph."""

    def __init__(self, case: Case, train: bool = True):
        structure = case.form.structure
        self.graph = tf.Graph()
        with self.graph.as_default():
            v1.set_random_seed(1)
            self.inputs = {
                name: placeholder(name, value)
                for name, value in case.batch_of(2).items()
            }
            tables = [
                v1.get_variable(
                    f"table_{i}", initializer=tf.constant(value), use_resource=True
                )
                for i, value in enumerate(initial(structure, case.dtype))
            ]
            # What is fetched is no part of the model: fetches are never packed.
            self.rows = structure.rows(tables, self.inputs)
            self.outputs = [tf.identity(rows) for rows in self.rows]
            if train:
                self.loss = loss_of(self.rows)
                optimizer = V1_OPTIMIZERS[case.optimizer].make()
                self.train = optimizer.minimize(self.loss)
            self.init = [
                v1.global_variables_initializer(),
                v1.tables_initializer(),
            ]
            self.variables = v1.global_variables()
            self.reads = [variable.read_value() for variable in self.variables]
            self.saver = v1.train.Saver(save_relative_paths=True)

    def feed(self, features: dict) -> dict:
        return {self.inputs[name]: value for name, value in features.items()}

    def session(self, packed: bool) -> v1.Session:
        config = v1.ConfigProto()
        if packed:
            config = picasso_tf.session_config(config, STRICT)
        session = v1.Session(graph=self.graph, config=config)
        session.run(self.init)
        return session


def train_in_sessions(case: Case, directory: pathlib.Path) -> None:
    """Trains with and without the flag; compares everything."""
    model = GraphModel(case)
    feeds = [model.feed(batch) for batch in case.batches()]
    fetches = [model.loss, *model.outputs, model.train]
    with model.session(False) as stock, model.session(True) as ours:
        seen = Watched()

        def steps(part: slice):
            for step in range(STEPS)[part]:
                expected = stock.run(fetches, feeds[step])[:-1]
                got = ours.run(fetches, feeds[step])[:-1]
                assert_all_same(got, expected, f"step {step}, output")
            return compare()

        def compare():
            expected = stock.run(model.reads)
            got = ours.run(model.reads)
            for a, b, variable in zip(got, expected, model.variables, strict=True):
                assert_same(a, b, variable.name)
            return expected

        values = steps(slice(0, 5))
        paths = {
            name: model.saver.save(
                session, str(directory / name), write_meta_graph=False
            )
            for name, session in (("stock", stock), ("ours", ours))
        }
        for session, path in ((stock, paths["ours"]), (ours, paths["stock"])):
            session.run(model.init)
            model.saver.restore(session, path)
        assert_all_same(compare(), values, "restored variable")
        steps(slice(5, STEPS))
        assert_packs(case, V1_OPTIMIZERS[case.optimizer].updates, seen)
        if case.form.bad_id:
            bad = model.feed(case.bad_batch())
            assert_same_error(
                lambda: ours.run(model.outputs, bad),
                lambda: stock.run(model.outputs, bad),
                case.form.bad_id,
            )


def export_graph(case: Case, directory: pathlib.Path) -> None:
    """A SavedModel as TensorFlow 1 writes it."""
    model = GraphModel(case, train=False)
    with model.session(False) as session:
        v1.saved_model.simple_save(
            session,
            str(directory),
            model.inputs,
            {f"rows_{i}": rows for i, rows in enumerate(model.outputs)},
            v1.tables_initializer(),
        )


def serve_graph(directory: pathlib.Path, batches: Sequence[dict]) -> list[np.ndarray]:
    """Outputs of a SavedModel in a stock session."""
    outputs = []
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        meta = v1.saved_model.load(session, ["serve"], str(directory))
        signature = meta.signature_def["serving_default"]
        fetches = [info.name for _, info in sorted(signature.outputs.items())]
        for features in batches:
            feed = {}
            for name, info in signature.inputs.items():
                feed |= feed_of(info, features[name])
            outputs.extend(session.run(fetches, feed))
    return outputs


def feed_of(info, value) -> dict:
    """What to feed for an input of a signature."""
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        coo = info.coo_sparse
        return {
            coo.indices_tensor_name: value.indices,
            coo.values_tensor_name: value.values,
            coo.dense_shape_tensor_name: value.dense_shape,
        }
    if kind == "composite_tensor":
        values, splits = info.composite_tensor.components
        return {values.name: value.values, splits.name: value.row_splits}
    return {info.name: value}


# -- functions ----------------------------------------------------------------


class FunctionModel(tf.Module):
    """A form in tf.functions, trained by an optimizer of TensorFlow 1, which is
    one and the same in all versions."""

    def __init__(self, case: Case):
        super().__init__()
        structure = case.form.structure
        self.tables = [
            tf.Variable(value, name=f"table_{i}")
            for i, value in enumerate(initial(structure, case.dtype))
        ]
        self._optimizer = V1_OPTIMIZERS[case.optimizer].make()
        # Makes the slots, which a function could not do twice.
        self._optimizer.apply_gradients(
            [(tf.zeros_like(table), table) for table in self.tables]
        )
        self.slots = self._optimizer.variables()
        signature = {name: spec(value) for name, value in case.batch_of(2).items()}
        self._structure = structure
        self.score = tf.function(self._rows, [signature], autograph=False)
        self.step = tf.function(self._step, [signature], autograph=False)

    def _rows(self, features):
        return self._structure.rows(list(self.tables), features)

    def _step(self, features):
        with tf.GradientTape() as tape:
            rows = self._rows(features)
            loss = loss_of(rows)
        gradients = tape.gradient(loss, self.tables)
        self._optimizer.apply_gradients(zip(gradients, self.tables, strict=True))
        return [loss, *rows]

    def state(self) -> list[tf.Variable]:
        return [*self.tables, *self.slots]


def train_in_functions(model, case: Case, updates: int, directory) -> None:
    """Trains with and without the flag; compares everything.

    Args:
      model: has `step`, `score` (functions of features) and `state`.
      updates: sparse updates that the optimizer has for a table.
    """
    batches = [
        {name: tensor(value) for name, value in batch.items()}
        for batch in case.batches()
    ]
    start = [variable.numpy() for variable in model.state()]
    checkpoint = tf.train.Checkpoint(variables=list(model.state()))

    def reset():
        for variable, value in zip(model.state(), start, strict=True):
            variable.assign(value)

    def steps(part: slice) -> list[np.ndarray]:
        outputs = [model.step(batches[step]) for step in range(STEPS)[part]]
        values = [value.numpy() for value in tf.nest.flatten(outputs)]
        return values + [variable.numpy() for variable in model.state()]

    def restored(path) -> list[np.ndarray]:
        reset()
        checkpoint.read(path).assert_consumed()
        return [variable.numpy() for variable in model.state()]

    first = steps(slice(0, 5))
    stock_path = checkpoint.write(str(directory / "stock"))
    second = steps(slice(5, STEPS))
    reset()
    seen = Watched()
    with picasso_tf.enabled(STRICT):
        assert_all_same(steps(slice(0, 5)), first, "half of the steps, value")
        ours_path = checkpoint.write(str(directory / "ours"))
        count = len(model.state())
        assert_all_same(restored(stock_path), first[-count:], "restored variable")
        assert_all_same(steps(slice(5, STEPS)), second, "all steps, value")
    assert_packs(case, updates, seen)
    assert_all_same(restored(ours_path), first[-count:], "restored variable")
    assert_all_same(steps(slice(5, STEPS)), second, "steps with the flag off, value")
    if case.form.bad_id:
        bad = {name: tensor(value) for name, value in case.bad_batch().items()}

        def ours():
            with picasso_tf.enabled():
                return model.score(bad)

        assert_same_error(ours, lambda: model.score(bad), case.form.bad_id)


def serve_function(directory: pathlib.Path, batches: Sequence[dict]) -> list:
    """Outputs of a SavedModel's function, without the flag."""
    model = tf.saved_model.load(str(directory))
    outputs = [
        model.score({name: tensor(value) for name, value in batch.items()})
        for batch in batches
    ]
    return [value.numpy() for value in tf.nest.flatten(outputs)]
