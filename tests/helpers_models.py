"""Small recommender models, and what the end-to-end tests ask of them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import assert_same

import picasso_tf

v1 = tf.compat.v1
ROOT = pathlib.Path(__file__).resolve().parent.parent
TF_MINOR = tuple(int(part) for part in tf.__version__.split(".")[:2])
KERAS_2 = TF_MINOR < (2, 16)  # as tf.keras
ESTIMATOR = getattr(tf, "estimator", None)


def _find_keras_2():
    """Keras 2: TensorFlow's own up to 2.15, then the package tf_keras; or None."""
    if KERAS_2:
        return tf.keras
    found = importlib.util.find_spec("tf_keras") is not None
    return importlib.import_module("tf_keras") if found else None


keras_2 = _find_keras_2()
needs_keras_2 = pytest.mark.skipif(
    keras_2 is None, reason="needs Keras 2: tf_keras for this TensorFlow"
)
needs_keras_3 = pytest.mark.skipif(KERAS_2, reason="needs Keras 3")
needs_estimator = pytest.mark.skipif(
    ESTIMATOR is None, reason="this TensorFlow has no Estimator"
)

ROWS = (7, 50, 20, 50)
DIMS = (4, 4, 8, 4)
BATCH = 16


# -- data ---------------------------------------------------------------------


def id_batches(
    steps: int, rows: Sequence[int] = ROWS, batch: int = BATCH, seed: int = 0
) -> list[np.ndarray]:
    """Matrices [batch, fields] of ids, skewed, so that many are equal."""
    rng = np.random.default_rng(seed)
    skew = rng.random(size=(steps, batch, len(rows))) ** 3
    return list((skew * np.asarray(rows)).astype(np.int64))


def label_batches(steps: int, batch: int = BATCH, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return list((rng.random(size=(steps, batch)) < 0.3).astype(np.float32))


def table_values(rows: int, dim: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, rows, dim])
    return rng.normal(size=(rows, dim)).astype(np.float32)


# -- graphs for sessions ------------------------------------------------------


def make_tables(
    rows: Sequence[int] = ROWS, dims: Sequence[int] = DIMS, prefix: str = "table"
) -> list[tf.Variable]:
    """Resource variables in the current graph, with the same values each time."""
    return [
        v1.get_variable(
            f"{prefix}_{i}",
            initializer=tf.constant(table_values(size, dim, i)),
            use_resource=True,
        )
        for i, (size, dim) in enumerate(zip(rows, dims, strict=True))
    ]


def dense_layer(x: tf.Tensor, units: int, name: str) -> tf.Tensor:
    with v1.variable_scope(name):
        inputs = int(x.shape[-1])
        kernel = v1.get_variable(
            "kernel",
            initializer=tf.constant(table_values(inputs, units, 99)),
            use_resource=True,
        )
        bias = v1.get_variable("bias", initializer=tf.zeros([units]), use_resource=True)
        return tf.linalg.matmul(x, kernel) + bias


def click_loss(rows: Sequence[tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
    """Concatenates the fields' rows and ends in a scalar, through an MLP."""
    hidden = tf.nn.relu(dense_layer(tf.concat(rows, axis=1), 8, "hidden"))
    logits = dense_layer(hidden, 1, "logits")[:, 0]
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
    )


class ClickGraph:
    """A model in a graph of its own: one matrix of ids, labels, a loss.

    Attributes:
      ids, labels: placeholders.
      tables: the variables that are looked up.
      rows: the lookups' results.
      loss, train: what a training step fetches.
    """

    def __init__(
        self,
        optimizer: Callable[[], v1.train.Optimizer] | None = None,
        loss: Callable[[list[tf.Tensor], list[tf.Variable], tf.Tensor], tf.Tensor]
        | None = None,
    ):
        make_optimizer = optimizer or (lambda: v1.train.AdagradOptimizer(0.1))
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = v1.placeholder(tf.int64, [None, len(ROWS)], "ids")
            self.labels = v1.placeholder(tf.float32, [None], "labels")
            self.tables = make_tables()
            self.rows = [
                tf.nn.embedding_lookup(table, self.ids[:, i])
                for i, table in enumerate(self.tables)
            ]
            if loss is None:
                self.loss = click_loss(self.rows, self.labels)
            else:
                self.loss = loss(self.rows, self.tables, self.labels)
            self.train = make_optimizer().minimize(self.loss)
            self.init = v1.global_variables_initializer()
            self.variables = v1.global_variables()
            self.reads = [variable.read_value() for variable in self.variables]

    def feeds(self, steps: int, seed: int = 0) -> list[dict]:
        batches = zip(
            id_batches(steps, seed=seed), label_batches(steps, seed=seed), strict=True
        )
        return [{self.ids: ids, self.labels: labels} for ids, labels in batches]

    def fit(self, session: v1.Session, steps: int, seed: int = 0) -> list[np.ndarray]:
        """Trains; returns the losses."""
        return [
            session.run([self.loss, self.train], feed)[0]
            for feed in self.feeds(steps, seed)
        ]

    def run(self, config, steps: int = 20) -> list[np.ndarray]:
        """All losses, then the variables, of a fresh session."""
        with v1.Session(graph=self.graph, config=config) as session:
            session.run(self.init)
            losses = self.fit(session, steps)
            return losses + session.run(self.reads)


# -- the flag, and what it did ------------------------------------------------


def strict(**options) -> picasso_tf.Options:
    return picasso_tf.Options(strict=True, **options)


def packed_config(base=None, **options) -> v1.ConfigProto:
    return picasso_tf.session_config(base, strict(**options))


class Watched:
    """The reports that came since `watch()` began."""

    def __init__(self):
        self._before = picasso_tf.reports()  # held: ids of objects stay unique

    def reports(self) -> list[picasso_tf.Report]:
        """A function that became a part of another is told of there, unless its own
        packs did."""
        before = {id(report) for report in self._before}
        new = [r for r in picasso_tf.reports() if id(r) not in before]
        return [r for r in new if not r.inlined_into or r.was_used()]

    def changed(self) -> list[picasso_tf.Report]:
        return [report for report in self.reports() if report.changed]

    def packs(self, kind: str | None = None) -> list[picasso_tf.Pack]:
        return [
            pack
            for report in self.reports()
            for pack in report.packs
            if kind in (None, pack.kind)
        ]

    def members(self, kind: str) -> list[int]:
        """Sizes of the packs of a kind."""
        return [len(pack.members) for pack in self.packs(kind)]

    def text(self) -> str:
        return "\n".join(map(str, self.reports())) or "no report"

    def assert_packed(self, lookups: int | None = None, updates: int | None = None):
        """Something was packed, all of it was run, and nothing failed.

        Args:
          lookups, updates: members of the packs of that kind, all together.
        """
        assert self.changed(), f"nothing was packed\n{self.text()}"
        for report in self.reports():
            assert not report.failures, self.text()
        for report in self.changed():
            for pack in report.packs:
                created, executed = report.executions(pack)
                assert created > 0 and executed > 0, self.text()
        for kind, expected in (("lookup", lookups), ("update", updates)):
            if expected is not None:
                assert sum(self.members(kind)) == expected, self.text()

    def assert_executed(self, times: int, kind: str | None = None) -> None:
        """Every pack ran `times` times."""
        assert self.changed(), f"nothing was packed\n{self.text()}"
        for report in self.changed():
            for pack in report.packs:
                if kind in (None, pack.kind):
                    assert report.executions(pack)[1] == times, self.text()

    def reasons(self) -> set[str]:
        return {item.reason for report in self.reports() for item in report.skipped}


@contextlib.contextmanager
def watch() -> Iterator[Watched]:
    yield Watched()


def assert_all_same(got: Sequence, expected: Sequence, what: str = "value") -> None:
    """Equal types, shapes and bits, one by one."""
    assert len(got) == len(expected)
    for index, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert_same(a, b, f"{what} {index}")


# -- functions ----------------------------------------------------------------


class ClickModule(tf.Module):
    """The same model for tf.function, with stock sparse updates.

    Made without Keras, so that it is one and the same on every version.
    """

    def __init__(self, learning_rate: float = 0.1, rows=ROWS, dims=DIMS):
        super().__init__()
        self.learning_rate = learning_rate
        self.tables = [
            tf.Variable(table_values(size, dim, i), name=f"table_{i}")
            for i, (size, dim) in enumerate(zip(rows, dims, strict=True))
        ]
        self.slots = [
            tf.Variable(tf.fill(table.shape, 0.1), name=f"slot_{i}")
            for i, table in enumerate(self.tables)
        ]
        self.kernel = tf.Variable(table_values(sum(dims), 1, 99), name="kernel")

    def logits(self, ids: tf.Tensor) -> tf.Tensor:
        rows = [
            tf.nn.embedding_lookup(table, ids[:, i])
            for i, table in enumerate(self.tables)
        ]
        return tf.linalg.matmul(tf.concat(rows, axis=1), self.kernel)[:, 0]

    def loss(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(
                labels=labels, logits=self.logits(ids)
            )
        )

    def step(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One step of Adagrad on the tables, by TensorFlow's sparse op."""
        with tf.GradientTape() as tape:
            loss = self.loss(ids, labels)
        *slices, dense = tape.gradient(loss, [*self.tables, self.kernel])
        for table, slot, part in zip(self.tables, self.slots, slices, strict=True):
            unique, index = tf.unique(part.indices)
            summed = tf.math.unsorted_segment_sum(
                part.values, index, tf.shape(unique)[0]
            )
            tf.raw_ops.ResourceSparseApplyAdagrad(
                var=table.handle,
                accum=slot.handle,
                lr=self.learning_rate,
                grad=summed,
                indices=unique,
            )
        self.kernel.assign_sub(self.learning_rate * dense)
        return loss

    def values(self) -> list[np.ndarray]:
        return [v.numpy() for v in (*self.tables, *self.slots, self.kernel)]


def fit_module(step, module: ClickModule, steps: int, seed: int = 0) -> list:
    """Losses, then variables, after `steps` calls of `step`."""
    batches = zip(
        id_batches(steps, seed=seed), label_batches(steps, seed=seed), strict=True
    )
    losses = [
        step(tf.constant(ids), tf.constant(labels)).numpy() for ids, labels in batches
    ]
    return losses + module.values()


def stock_module(steps: int, seed: int = 0) -> list:
    """What `fit_module` gives without the flag."""
    module = ClickModule()
    return fit_module(tf.function(module.step), module, steps, seed)


# -- other processes ----------------------------------------------------------


def run_python(
    code: str, *arguments, env: dict | None = None, importable: bool = True
) -> subprocess.CompletedProcess:
    """Runs a script in a process of its own, and returns when it is done.

    Args:
      importable: whether picasso_tf can be imported in it.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    environment = os.environ | environment | (env or {})
    if importable:
        installed = pathlib.Path(picasso_tf.__file__).parent.parent
        paths = [str(installed), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    else:
        environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=os.path.dirname(__file__),
        check=False,
    )


def checked(process: subprocess.CompletedProcess) -> str:
    """The standard output of a process that must have ended well."""
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


def tree_bytes(directory: pathlib.Path) -> dict[str, bytes]:
    """The files of a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


# -- graphs at random ---------------------------------------------------------


class RandomGraph:
    """A graph of lookups, joins, writes, branches and loops, at random.

    All values are whole numbers, and sums of them exact, so no rewrite of
    TensorFlow's own can change a bit: what differs differs by a mistake. All
    reads and writes of variables are ordered by edges, so nothing is a race.

    Attributes:
      fetches, feeds, init: what to run.
    """

    ROWS = 7

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self._build()

    def _chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def _any(self, items):
        return items[int(self._rng.integers(len(items)))]

    def _build(self) -> None:
        rng = self._rng
        fields = 4
        self._ids = v1.placeholder(tf.int64, [None, fields], "ids")
        self._flags = [v1.placeholder(tf.bool, [], f"flag_{i}") for i in range(2)]
        self._tables = [
            v1.get_variable(
                f"table_{i}",
                initializer=tf.constant(
                    rng.integers(-4, 5, size=[self.ROWS, self._any([1, 2, 3])]),
                    tf.float32,
                ),
                use_resource=True,
            )
            for i in range(fields)
        ]
        self._values = [self._lookup()]
        self._gate: list = []  # what everything that comes later waits for
        steps = [self._lookup] * 6 + [
            self._lookup_of_values,
            self._sum,
            self._concat,
            self._concat,
            self._stack,
            self._dense_read,
            self._branch,
            self._loop,
            self._write,
            self._write,
        ]
        for _ in range(int(rng.integers(6, 15))):
            with tf.control_dependencies(self._gate):
                value = self._any(steps)()
            if value is not None:
                self._values.append(value)
        self._finish()

    def _column(self, ids) -> tf.Tensor:
        i = int(self._rng.integers(4))
        column = self._any(
            [
                lambda: ids[:, i],
                lambda: tf.reshape(ids[:, i : i + 1], [-1]),
                lambda: tf.split(ids, 4, axis=1)[i][:, 0],
                lambda: tf.squeeze(ids[:, i : i + 1], [1]),
                lambda: tf.unstack(ids, axis=1)[i],
            ]
        )()
        return tf.cast(column, tf.int32) if self._chance(0.3) else column

    def _lookup(self, ids=None) -> tf.Tensor:
        table = self._any(self._tables)
        lookup = self._any([tf.gather, tf.nn.embedding_lookup])
        return lookup(table, self._column(self._ids if ids is None else ids))

    def _lookup_of_values(self) -> tf.Tensor:
        ids = tf.cast(tf.abs(self._any(self._values)[:, 0]), tf.int64) % self.ROWS
        return tf.gather(self._any(self._tables), ids)

    def _sum(self) -> tf.Tensor:
        return self._any(self._values)[:, :1] - self._any(self._values)

    def _concat(self) -> tf.Tensor:
        # Neighbours, as in models; fresh lookups often among them.
        parts = [self._lookup() for _ in range(int(self._rng.integers(4)))]
        parts += [self._any(self._values) for _ in range(int(self._rng.integers(1, 3)))]
        if self._chance(0.5):
            parts.reverse()
        return tf.concat(parts, axis=self._any([1, -1]))

    def _stack(self) -> tf.Tensor:
        table = self._any(self._tables)
        rows = [tf.gather(table, self._column(self._ids)) for _ in range(3)]
        return tf.reduce_sum(tf.stack(rows, axis=self._any([1, 2])), axis=[2])

    def _dense_read(self) -> tf.Tensor:
        total = tf.reduce_sum(self._any(self._tables).read_value())
        return total + tf.zeros_like(self._any(self._values))

    def _total(self, lookups: int, ids=None) -> tf.Tensor:
        """Some lookups, summed to one column."""
        rows = [self._lookup(ids) for _ in range(lookups)]
        return tf.reduce_sum(tf.concat(rows, axis=1), axis=1, keepdims=True)

    def _branch(self) -> tf.Tensor:
        outside = self._any(self._values)[:, :1]
        counts = self._rng.integers(1, 4, size=2)
        # What waits, waits before the branch: within, TensorFlow forgets it.
        return tf.cond(
            tf.identity(self._any(self._flags)),
            lambda: self._total(int(counts[0])) + outside,
            lambda: self._total(int(counts[1])),
        )

    def _loop(self) -> tf.Tensor:
        lookups, turns = int(self._rng.integers(1, 4)), int(self._rng.integers(4))

        def body(i, total):
            ids = (self._ids + tf.cast(i, tf.int64)) % self.ROWS
            return i + 1, total + self._total(lookups, ids)

        start = tf.zeros_like(self._any(self._values)[:, :1])
        _, total = tf.while_loop(
            lambda i, _: i < turns,
            body,
            (0, start),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 1])),
        )
        return total if self._chance(0.5) else tf.stop_gradient(total)

    def _write(self) -> None:
        """Behind all that was read, before all that is to come."""
        count = int(self._rng.integers(1, 4))
        chosen = self._rng.permutation(len(self._tables))[:count]
        dense = self._chance(0.3)
        with tf.control_dependencies(self._values):
            writes = []
            for i in chosen:
                table = self._tables[int(i)]
                if dense:
                    writes.append(table.assign(1.0 - table).op)
                    continue
                ids = self._rng.integers(self.ROWS, size=3)
                rows = self._rng.integers(-2, 3, size=[3, int(table.shape[1])])
                writes.append(
                    tf.raw_ops.ResourceScatterAdd(
                        resource=table.handle,
                        indices=tf.constant(ids),
                        updates=tf.constant(rows, tf.float32),
                    )
                )
        self._gate = writes

    def _finish(self) -> None:
        with tf.control_dependencies(self._gate):
            weight = tf.cast(self._ids[:, :1] % 3, tf.float32)
            loss = tf.add_n([tf.reduce_sum(weight * v) for v in self._values])
            # By this, no gradient is there before all values are.
            loss *= tf.stop_gradient(loss) % 3.0 + 1.0
            self.fetches = [loss]
            before_reads = [loss]
            if self._chance(0.7):
                optimizer = self._any(
                    [
                        lambda: v1.train.GradientDescentOptimizer(1.0),
                        lambda: v1.train.AdagradOptimizer(1.0),
                        lambda: v1.train.MomentumOptimizer(1.0, 0.5),
                    ]
                )()
                step = optimizer.minimize(loss)
                self.fetches.append(step)
                before_reads.append(step)
        for value in self._values:
            if self._chance(0.3):
                op = value.op if self._chance(0.3) else value
                self.fetches.append(op)
        variables = v1.global_variables()
        with tf.control_dependencies(before_reads):
            reads = [variable.read_value() for variable in variables]
        self.fetches.extend(reads)
        self.init = v1.global_variables_initializer()
        fed = self._any(self._values) if self._chance(0.3) else None
        self.feeds = [self._feed(fed) for _ in range(3)]

    def _feed(self, fed: tf.Tensor | None) -> dict:
        """Placeholders, and what is fed in the middle."""
        count = int(self._rng.integers(1, 5))
        feed = {flag: self._chance(0.5) for flag in self._flags}
        feed[self._ids] = self._rng.integers(self.ROWS, size=[count, 4])
        if fed is not None:
            feed[fed] = self._rng.integers(-3, 4, size=[count, int(fed.shape[1])])
        return feed
