"""Packed sparse updates change variables and slots as stock ops do, bit by bit."""

from __future__ import annotations

import dataclasses

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
    run_packed,
    stock_config,
    without_grappler,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import kernels

import picasso_tf

DIMS = (1, 3, 4, 8, 16, 17, 33)
STEPS = 20


@pytest.fixture(autouse=True)
def clean_slate():
    """In place of the shared fixture, whose cleaning takes longer than most of
    these tests: they have graphs of their own and no Keras."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One rule as a stock op writes it.

    Attributes:
      slots: the op's arguments for slot variables, with their initial values.
      scalars: its scalar arguments; `lr` is scaled in every step.
      flags: its attributes.
      step: whether it takes the global step.
    """

    name: str
    op: str
    slots: tuple[tuple[str, float], ...] = ()
    scalars: tuple[tuple[str, float], ...] = ()
    flags: tuple[tuple[str, bool], ...] = ()
    step: bool = False

    def dtypes(self) -> list[tf.DType]:
        """The types for which TensorFlow has the op on the CPU."""
        found = set()
        for kernel in kernels.get_registered_kernels_for_op(self.op).kernel:
            if kernel.device_type == "CPU":
                for constraint in kernel.constraint:
                    if constraint.name in ("T", "dtype"):
                        found.update(constraint.allowed_values.list.type)
        return [d for d in DTYPES if d.as_datatype_enum in found]


def _variants() -> list[Variant]:
    def flags(key):
        return [(f"{key}={value}", ((key, value),)) for value in (True, False)]

    all_variants = [
        Variant("scatter_add", "ResourceScatterAdd"),
        Variant("scatter_sub", "ResourceScatterSub"),
    ]
    for text, flag in flags("update_slots"):
        all_variants += [
            Variant(
                f"adagrad-{text}",
                "ResourceSparseApplyAdagrad",
                (("accum", 0.1),),
                (("lr", 0.3),),
                flag,
            ),
            Variant(
                f"adagrad_v2-{text}",
                "ResourceSparseApplyAdagradV2",
                (("accum", 0.1),),
                (("lr", 0.3), ("epsilon", 1e-3)),
                flag,
            ),
        ]
    for text, flag in flags("use_nesterov"):
        all_variants += [
            Variant(
                f"{rule}-{text}",
                op,
                (("accum", 0.0),),
                (("lr", 0.3), ("momentum", 0.9)),
                flag,
            )
            for rule, op in (
                ("momentum", "ResourceSparseApplyMomentum"),
                ("keras_momentum", "ResourceSparseApplyKerasMomentum"),
            )
        ]
    for text, flag in flags("multiply_linear_by_lr"):
        for power in (-0.5, -0.7):
            scalars = (("lr", 0.3), ("l1", 0.05), ("l2", 0.02))
            all_variants += [
                Variant(
                    f"ftrl-{text}-{power}",
                    "ResourceSparseApplyFtrl",
                    (("accum", 0.1), ("linear", 0.0)),
                    (*scalars, ("lr_power", power)),
                    flag,
                ),
                Variant(
                    f"ftrl_v2-{text}-{power}",
                    "ResourceSparseApplyFtrlV2",
                    (("accum", 0.1), ("linear", 0.0)),
                    (*scalars, ("l2_shrinkage", 0.01), ("lr_power", power)),
                    flag,
                ),
            ]
    all_variants += [
        Variant(
            "rms_prop",
            "ResourceSparseApplyRMSProp",
            (("ms", 1.0), ("mom", 0.0)),
            (("lr", 0.1), ("rho", 0.9), ("momentum", 0.5), ("epsilon", 1e-3)),
        ),
        Variant(
            "adadelta",
            "ResourceSparseApplyAdadelta",
            (("accum", 0.0), ("accum_update", 0.0)),
            (("lr", 0.7), ("rho", 0.95), ("epsilon", 1e-3)),
        ),
    ]
    for l1 in (0.0, 0.05):
        all_variants += [
            Variant(
                f"proximal_adagrad-l1={l1}",
                "ResourceSparseApplyProximalAdagrad",
                (("accum", 0.1),),
                (("lr", 0.3), ("l1", l1), ("l2", 0.02)),
            ),
            Variant(
                f"adagrad_da-l1={l1}",
                "ResourceSparseApplyAdagradDA",
                (("gradient_accumulator", 0.0), ("gradient_squared_accumulator", 0.1)),
                (("lr", 0.3), ("l1", l1), ("l2", 0.02)),
                step=True,
            ),
        ]
    return all_variants


VARIANTS = _variants()
CASES = [(variant, dtype) for variant in VARIANTS for dtype in variant.dtypes()]


def by_name(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def summed(grad, ids):
    """The rows of each id summed, as TF1 optimizers write it."""
    unique, positions = tf.unique(ids)
    rows = tf.math.unsorted_segment_sum(grad, positions, tf.shape(unique)[0])
    return rows, unique


class Updates:
    """Builds updates of one rule in the current graph."""

    def __init__(self, variant: Variant, dtype: tf.DType):
        self.variant = variant
        self.dtype = dtype
        self.rate = tf.compat.v1.placeholder(dtype, [])
        self.step = tf.compat.v1.placeholder(tf.int64, [])
        self._scalars = {
            name: tf.constant(value, dtype) for name, value in variant.scalars
        }
        if "lr" in self._scalars:
            self._scalars["lr"] *= self.rate

    def feed(self, step: int) -> dict:
        return {self.rate: 1.0 - step / 64, self.step: step + 1}

    def add(self, name: str, value: np.ndarray, grad, ids, **flags):
        """The op that updates a new table, with slots beside it."""
        table = make_table(name, value)
        slots = {
            slot: make_table(f"{name}_{slot}", np.full_like(value, start))
            for slot, start in self.variant.slots
        }
        return self.apply(table, slots, grad, ids, **flags)

    def apply(self, table, slots, grad, ids, **flags):
        if not self.variant.op.startswith("ResourceSparseApply"):
            return getattr(tf.raw_ops, self.variant.op)(
                resource=table.handle, indices=ids, updates=grad
            )
        args = {slot: variable.handle for slot, variable in slots.items()}
        args |= self._scalars | dict(self.variant.flags) | flags
        if self.variant.step:
            args["global_step"] = self.step
        return getattr(tf.raw_ops, self.variant.op)(
            var=table.handle, grad=grad, indices=ids, **args
        )


def placeholders(dtype: tf.DType, row: tuple[int, ...], ids_dtype: tf.DType):
    return (
        tf.compat.v1.placeholder(dtype, [None, *row]),
        tf.compat.v1.placeholder(ids_dtype, [None]),
    )


@pytest.mark.parametrize(
    ("variant", "dtype"), CASES, ids=[f"{v.name}-{d.name}" for v, d in CASES]
)
def test_rule(variant, dtype):
    """All dims, with sums of duplicate ids in front (s) and without (d); one
    step without any ids, one with a single id many times."""
    rng = np.random.default_rng(1)
    rows = 9

    def build():
        updates = Updates(variant, dtype)
        ops, inputs = [], []
        for i, dim in enumerate(DIMS):
            value = random(rng, [rows, dim], dtype)
            grad, ids = placeholders(dtype, (dim,), (tf.int32, tf.int64)[i % 2])
            inputs.append((grad, ids, dim))
            ops.append(updates.add(f"s{dim}", value, *summed(grad, ids)))
            ops.append(updates.add(f"d{dim}", value, grad, ids))
        feeds = []
        for step in range(STEPS):
            feed = updates.feed(step)
            for grad, ids, dim in inputs:
                count = 0 if step == 3 else rng.integers(0, 24)
                feed[grad] = random(rng, [count, dim], dtype)
                top = 1 if step == 5 else rows
                feed[ids] = rng.integers(0, top, size=count)
            feeds.append(feed)
        return ops, feeds

    # Without the sums, stock's kernels race on duplicate ids if they shard.
    report = check(case_of(build), one_thread=True)
    packs = packed_nodes(report, "update")
    assert sorted(map(len, packs)) == [len(DIMS)] * 2
    assert variant.op not in report.ops_after


@pytest.mark.parametrize(
    "name",
    [
        "scatter_add",
        "adagrad-update_slots=True",
        "ftrl-multiply_linear_by_lr=False--0.5",
    ],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.float16])
def test_large_batches(name, dtype):
    """Tables whose update is cut into tasks for several threads, on both sides."""
    rng = np.random.default_rng(2)
    sizes = ((5000, 33), (20_000, 1), (3000, 64))

    def build():
        updates = Updates(by_name(name), dtype)
        ops, inputs = [], []
        for count, dim in sizes:
            grad, ids = placeholders(dtype, (dim,), tf.int64)
            value = random(rng, [1000, dim], dtype)
            ops.append(updates.add(f"t{dim}", value, *summed(grad, ids)))
            inputs.append((grad, ids, count, dim))
        feeds = []
        for step in range(2):
            feed = updates.feed(step)
            for grad, ids, count, dim in inputs:
                feed[grad] = random(rng, [count, dim], dtype)
                feed[ids] = np.minimum(rng.zipf(1.2, size=count) - 1, 999)
            feeds.append(feed)
        return ops, feeds

    check(case_of(build))


@pytest.mark.parametrize(
    "name",
    [
        "scatter_sub",
        "adagrad-update_slots=True",
        "momentum-use_nesterov=True",
        "ftrl_v2-multiply_linear_by_lr=True--0.5",
        "adagrad_da-l1=0.05",
    ],
)
def test_rows_of_any_rank(name):
    """Variables of rank 1 (a row is a scalar), 3 and 4."""
    rng = np.random.default_rng(3)

    def build():
        updates = Updates(by_name(name), tf.float32)
        ops, inputs = [], []
        for form in range(2):
            for row in ((), (2, 3), (2, 2, 4), (1, 1)):
                grad, ids = placeholders(tf.float32, row, tf.int64)
                pair = summed(grad, ids) if form == 0 else (grad, ids)
                value = random(rng, [7, *row], tf.float32)
                ops.append(updates.add(f"t{len(ops)}", value, *pair))
                inputs.append((grad, ids, row))
        feeds = []
        for step in range(3):
            feed = updates.feed(step)
            for grad, ids, row in inputs:
                feed[grad] = random(rng, [12, *row], tf.float32)
                feed[ids] = rng.integers(0, 7, size=12)
            feeds.append(feed)
        return ops, feeds

    # As in test_rule: duplicates without sums.
    report = check(case_of(build), one_thread=True)
    assert sorted(map(len, packed_nodes(report, "update"))) == [4, 4]


SPECIAL = (0.0, -0.0, 1e-40, -1e-40, 1e-30, 1e30, 3e38, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_special_values(variant):
    """Zeros of both signs, denormals, overflow, infinities and NaN."""
    rng = np.random.default_rng(4)

    def build():
        updates = Updates(variant, tf.float32)
        ops, inputs = [], []
        for dim in DIMS:
            grad, ids = placeholders(tf.float32, (dim,), tf.int64)
            value = random(rng, [40, dim], tf.float32)
            ops.append(updates.add(f"t{dim}", value, *summed(grad, ids)))
            inputs.append((grad, ids, dim))
        feeds = []
        for step in range(3):
            feed = updates.feed(step)
            for grad, ids, dim in inputs:
                feed[grad] = rng.choice(SPECIAL, size=[30, dim]).astype(np.float32)
                feed[ids] = rng.permutation(40)[:30]
            feeds.append(feed)
        return ops, feeds

    check(case_of(build))


@st.composite
def _tables(draw):
    return {
        "rows": draw(st.integers(1, 40)),
        "dim": draw(st.integers(1, 40)),
        "ids": draw(st.sampled_from(["int32", "int64"])),
        "batch": draw(st.integers(0, 40)),
        "spread": draw(st.sampled_from(["uniform", "one", "zipf"])),
        "summed": draw(st.booleans()),
    }


@given(
    case=st.sampled_from(CASES),
    tables=st.lists(_tables(), min_size=2, max_size=9),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=20)
def test_any_tables(case, tables, seed):
    variant, dtype = case
    rng = np.random.default_rng(seed)
    # One update of a kind stays alone: give it company.
    tables = [*tables, dict(tables[0])]

    def build():
        updates = Updates(variant, dtype)
        ops, inputs = [], []
        for i, table in enumerate(tables):
            grad, ids = placeholders(dtype, (table["dim"],), tf.as_dtype(table["ids"]))
            pair = summed(grad, ids) if table["summed"] else (grad, ids)
            value = random(rng, [table["rows"], table["dim"]], dtype)
            ops.append(updates.add(f"t{i}", value, *pair))
            inputs.append((grad, ids))
        feeds = []
        for step in range(3):
            feed = updates.feed(step)
            for table, (grad, ids) in zip(tables, inputs, strict=True):
                feed[grad] = random(rng, [table["batch"], table["dim"]], dtype)
                feed[ids] = _draw_ids(rng, table)
            feeds.append(feed)
        return ops, feeds

    # As in test_rule: duplicates without sums.
    report = check(case_of(build), one_thread=True)
    assert len(report.packs) <= 2


def _draw_ids(rng, table):
    rows, batch = table["rows"], table["batch"]
    if table["spread"] == "one":
        return np.full(batch, rng.integers(rows))
    if table["spread"] == "zipf":
        return np.minimum(rng.zipf(1.3, size=batch) - 1, rows - 1)
    return rng.integers(0, rows, size=batch)


@pytest.mark.parametrize("op", ["ResourceScatterAdd", "ResourceScatterSub"])
def test_scatter_of_other_forms(op):
    """A scalar for all rows and ids that are no vector: left alone or packed,
    but with stock's result."""

    def build():
        ops = []
        for i in range(2):
            table = make_table(f"t{i}", np.ones([5, 4], np.float32))
            scatter = getattr(tf.raw_ops, op)
            ids = tf.constant([[0, 1], [3, 3]], tf.int32)
            vector = tf.constant([4, 2, 4], tf.int64)
            ones = tf.ones([2, 2, 4])
            with tf.control_dependencies(ops[-1:]):
                first = scatter(resource=table.handle, indices=ids, updates=ones * 3)
            with tf.control_dependencies([first]):
                second = scatter(resource=table.handle, indices=vector, updates=0.5)
            with tf.control_dependencies([second]):
                third = scatter(
                    resource=table.handle,
                    indices=tf.constant(2),
                    updates=tf.range(4.0),
                )
            ops.append(third)
        # Something that is packed in any case.
        more = [
            getattr(tf.raw_ops, op)(
                resource=make_table(f"u{i}", np.ones([5, 4], np.float32)).handle,
                indices=tf.constant([1, 1]),
                updates=tf.ones([2, 4]),
            )
            for i in range(2)
        ]
        return [*ops, *more], [{}]

    check(case_of(build))


# Shapes of ids and of what is added, and what stock has against them.
PREFIX, WHOLE = "must be a prefix of the shape of updates", "Must have updates.shape ="
FED_SHAPES = {
    "vector": ([3], [3, 4], None),
    "matrix": ([2, 3], [2, 3, 4], None),
    "one id": ([], [4], None),
    "scalar": ([2, 3], [], None),
    "no ids": ([0], [0, 4], None),
    "no ids, scalar": ([0], [], None),
    "no ids, rows": ([0], [6, 4], None),
    "too few rows": ([3], [2, 4], PREFIX),
    "too many rows": ([2], [3, 4], PREFIX),
    "other order": ([2, 3], [3, 2, 4], PREFIX),
    "flat rows": ([2, 3], [6, 4], WHOLE),
    "no ids, a vector": ([0], [6], WHOLE),
    "bad id": ([2, 3], [2, 3, 4], "indices[1,0] = 9 is not in [0, 5)"),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
@pytest.mark.parametrize("name", FED_SHAPES)
def test_shapes_that_only_a_step_knows(name, dtype):
    """Packed all the same, with stock's result or stock's error."""
    ids_shape, shape, error = FED_SHAPES[name]
    rng = np.random.default_rng(3)

    def build():
        ops, feed = [], {}
        for i in range(2):
            table = make_table(f"t{i}", random(rng, [5, 4], dtype))
            ids = tf.compat.v1.placeholder(tf.int64, None)
            rows = tf.compat.v1.placeholder(dtype, None)
            feed[ids] = rng.integers(0, 5, ids_shape)
            feed[rows] = random(rng, shape, dtype)
            if name == "bad id":
                feed[ids][1, 0] = 9
            scatter = tf.raw_ops.ResourceScatterSub
            ops.append(scatter(resource=table.handle, indices=ids, updates=-rows))
        return ops, [feed] * 2

    case = case_of(build)
    if error is None:
        report = check(case)
        assert [len(pack.members) for pack in report.packs] == [2], str(report)
        return
    before = picasso_tf.last_report()
    for config in (stock_config(), packed_config()):
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            run(case, config)
        assert error in raised.value.message
    report = picasso_tf.last_report()
    assert report is not before and len(report.packs) == 1, str(report)


# Updates of ResourceScatterAdd made from rows g and a rate.
SCALED = {
    "-g * rate": lambda g, rate: -g * rate,
    "rate * -g": lambda g, rate: rate * -g,
    "g * rate": lambda g, rate: g * rate,
    "-g": lambda g, rate: -g,
    "-(g * rate)": lambda g, rate: -(g * rate),
    "-g * 0.1": lambda g, rate: -g * 0.1,
    "-(g * 0.3) * 0.1": lambda g, rate: -(g * 0.3) * 0.1,
    "(g * 0.3) * 0.1": lambda g, rate: (g * 0.3) * 0.1,
    "(g * rate) * 0.1": lambda g, rate: (g * rate) * 0.1,
    "(g * 0.3) * rate": lambda g, rate: (g * 0.3) * rate,
    "(g / 0.3) * 0.1": lambda g, rate: (g / 0.3) * 0.1,
    "(g * g) * 0.1": lambda g, rate: (g * g) * 0.1,
    "(g * g) * rate": lambda g, rate: (g * g) * rate,
    "(g * row) * 0.1": lambda g, rate: (g * tf.linspace(0.1, 0.9, 8)) * 0.1,
    "(g + 0.3) * 0.1": lambda g, rate: (g + 0.3) * 0.1,
    "g * [[0.1]]": lambda g, rate: g * tf.constant([[0.1]]),
    "g * row": lambda g, rate: g * tf.linspace(0.1, 0.9, 8),
    "-g / 0.3": lambda g, rate: -g / 0.3,
    "reduced": lambda g, rate: -tf.reduce_sum(g, 0, keepdims=True) * rate + g * 0.0,
}


@pytest.mark.parametrize("form", SCALED)
def test_scaled_rows(form):
    """Rows that are negated and multiplied, as stock does it after its own graph
    optimizers had their way."""
    rng = np.random.default_rng(10)

    def build():
        rate = tf.compat.v1.placeholder(tf.float32, [])
        ops, feed = [], {rate: 0.3}
        for i in range(3):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            table = make_table(f"t{i}", random(rng, [6, 8], tf.float32))
            ops.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=table.handle,
                    indices=tf.reshape(ids, [-1]),  # as gradients have them
                    updates=SCALED[form](grad, rate),
                )
            )
            feed[grad] = random(rng, [50, 8], tf.float32)
            feed[ids] = rng.integers(0, 6, size=50)
        return ops, [feed] * 2

    # As in test_rule: duplicates without sums.
    report = check(case_of(build), one_thread=True)
    assert list(map(len, packed_nodes(report, "update"))) == [3]


def test_2000_members():
    """2,000 updates of 50 tables; integers, as below."""
    rng = np.random.default_rng(11)
    count = 2000

    def build():
        ids = tf.compat.v1.placeholder(tf.int64, [None, count])
        grads = tf.compat.v1.placeholder(tf.float32, [None, count, 4])
        tables = [make_table(f"t{i}", np.zeros([5, 4], np.float32)) for i in range(50)]
        rows = tf.unstack(grads, axis=1)
        columns = tf.unstack(ids, axis=1)
        ops = [
            tf.raw_ops.ResourceScatterSub(
                resource=tables[i % 50].handle, indices=columns[i], updates=rows[i]
            )
            for i in range(count)
        ]
        feed = {
            ids: rng.integers(0, 5, size=[3, count]),
            grads: rng.integers(-9, 9, size=[3, count, 4]),
        }
        return [tf.group(*ops)], [feed]

    case = case_of(build)
    expected = run(case, one_thread_without_grappler())
    got, report = run_packed(case)
    assert list(map(len, packed_nodes(report, "update"))) == [count]
    for a, b in zip(got.last, expected.last, strict=True):
        assert_same(a, b, "a table")


def one_thread_without_grappler() -> tf.compat.v1.ConfigProto:
    """For updates of one table in one step: stock runs them at once and loses
    some, unless it has one thread. It has one only in pools of its own: else a
    process's sessions share the pool that the first of them made."""
    config = without_grappler()
    config.use_per_session_threads = True
    config.intra_op_parallelism_threads = 1
    config.inter_op_parallelism_threads = 1
    return config


def test_op_with_one_member():
    """The op itself takes one member, whatever the pass does with it."""
    rng = np.random.default_rng(12)
    node = """
        name: "pack" op: "PicassoPackedUpdate"
        input: "table" input: "accum" input: "lr" input: "grad" input: "ids"
        attr { key: "T" value { type: DT_FLOAT } }
        attr { key: "Tids" value { list { type: DT_INT32 } } }
        attr { key: "N" value { i: 1 } }
        attr { key: "S" value { i: 1 } }
        attr { key: "H" value { i: 1 } }
        attr { key: "Z" value { i: 0 } }
        attr { key: "G" value { i: 1 } }
        attr { key: "rule" value { s: "adagrad" } }
        attr { key: "sum_duplicates" value { b: false } }
        attr { key: "hyper_index" value { list { i: 0 } } }
        attr { key: "scale_index" value { list { i: -1 } } }
        attr { key: "negate" value { list { b: false } } }
        attr { key: "member_name" value { list { s: "only" } } }
        attr { key: "member_parts" value { list { i: 1 } } }
        attr { key: "ids_source" value { list { i: 0 } } }
        attr { key: "ids_begin" value { list { i: 0 } } }
        attr { key: "ids_width" value { list { i: -1 } } }
        attr { key: "ids_narrow" value { list { b: false } } }
        attr { key: "grad_source" value { list { i: 0 } } }
        attr { key: "grad_chunk_dims" value { list { i: -1 } } }
        attr { key: "grad_begin" value { list { i: 0 } } }
        attr { key: "grad_size" value { list { i: 0 } } }
        attr { key: "pack" value { s: "test_op_with_one_update" } }
    """

    def build():
        grad, ids = placeholders(tf.float32, (4,), tf.int32)
        lr = tf.constant(0.3)
        value = random(rng, [5, 4], tf.float32)
        inputs = {"lr": lr, "grad": grad, "ids": ids}
        ops = []
        for side in ("packed", "stock"):
            table = make_table(f"{side}_table", value)
            accum = make_table(f"{side}_accum", np.full_like(value, 0.1))
            if side == "packed":
                inputs |= {"table": table.handle, "accum": accum.handle}
                ops += node_of(node, inputs, ["pack"])
            else:
                ops.append(
                    tf.raw_ops.ResourceSparseApplyAdagrad(
                        var=table.handle,
                        accum=accum.handle,
                        lr=lr,
                        grad=grad,
                        indices=ids,
                    )
                )
        feeds = [
            {grad: random(rng, [count, 4], tf.float32), ids: np.arange(count) % 5}
            for count in (3, 0, 5)
        ]
        return ops, feeds

    table, accum, stock_table, stock_accum = run(case_of(build), stock_config()).last
    assert_same(table, stock_table, "the table")
    assert_same(accum, stock_accum, "its slot")


def test_two_updates_of_one_table():
    """Members of a pack that share a variable; integers, since stock has no
    order among them either."""
    rng = np.random.default_rng(5)

    def build():
        tables = [make_table(f"t{i}", np.zeros([6, 8], np.float32)) for i in range(2)]
        ops, feed = [], {}
        for table in (*tables, *tables[::-1], tables[0]):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            ops.append(
                tf.raw_ops.ResourceScatterAdd(
                    resource=table.handle, indices=ids, updates=grad
                )
            )
            feed[grad] = rng.integers(-9, 9, size=[20, 8])
            feed[ids] = rng.integers(0, 6, size=20)
        return ops, [feed] * 3

    case = case_of(build)
    expected = run(case, one_thread_without_grappler())
    got, report = run_packed(case)
    assert list(map(len, packed_nodes(report, "update"))) == [5]
    for a, b in zip(got.last, expected.last, strict=True):
        assert_same(a, b, "the table")


def test_two_handles_of_one_variable():
    """As above, through handles that only have a name in common."""
    rng = np.random.default_rng(13)

    def build():
        table = make_table("t", np.zeros([6, 8], np.float32))
        again = tf.raw_ops.VarHandleOp(
            shape=table.shape, dtype=tf.float32, shared_name=table.handle.op.name
        )
        ops, feed = [], {}
        for handle in (table.handle, again, table.handle, again):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            ops.append(
                tf.raw_ops.ResourceScatterSub(
                    resource=handle, indices=ids, updates=grad
                )
            )
            feed[grad] = rng.integers(-9, 9, size=[20, 8])
            feed[ids] = rng.integers(0, 6, size=20)
        return ops, [feed] * 3

    case = case_of(build)
    expected = run(case, one_thread_without_grappler())
    got, report = run_packed(case)
    assert list(map(len, packed_nodes(report, "update"))) == [4]
    assert_same(got.last[0], expected.last[0], "the table")


def test_packs_cut_by_volume():
    rng = np.random.default_rng(14)

    def build():
        updates = Updates(by_name("adagrad-update_slots=True"), tf.float32)
        ops, feed = [], updates.feed(0)
        for i in range(7):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            value = random(rng, [6, 8], tf.float32)
            ops.append(updates.add(f"t{i}", value, *summed(grad, ids)))
            feed[grad] = random(rng, [5, 8], tf.float32)
            feed[ids] = rng.integers(0, 6, size=5)
        return ops, [feed] * 2

    # Volumes assume 1,024 ids: three tables make a pack, the last has one alone.
    report = check(case_of(build), max_pack_volume=3 * 1024 * 4 * 8)
    assert list(map(len, packed_nodes(report, "update"))) == [3, 3, 1]


def test_updates_fetched_one_by_one():
    """The ops themselves are fetched, not a group."""
    rng = np.random.default_rng(6)

    def build():
        updates = Updates(by_name("adagrad-update_slots=True"), tf.float32)
        ops, feed = [], updates.feed(0)
        for i in range(3):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            value = random(rng, [6, 8], tf.float32)
            ops.append(updates.add(f"t{i}", value, *summed(grad, ids)))
            feed[grad] = random(rng, [5, 8], tf.float32)
            feed[ids] = rng.integers(0, 6, size=5)
        return [*ops, tf.group(*ops)], [feed] * 2

    report = check(case_of(build))
    assert list(map(len, packed_nodes(report, "update"))) == [3]


def test_use_locking():
    rng = np.random.default_rng(7)

    def build():
        updates = Updates(by_name("momentum-use_nesterov=False"), tf.float32)
        ops, feed = [], updates.feed(0)
        for i in range(4):
            grad, ids = placeholders(tf.float32, (8,), tf.int64)
            value = random(rng, [6, 8], tf.float32)
            locking = i % 2 == 0
            ops.append(
                updates.add(f"t{i}", value, *summed(grad, ids), use_locking=locking)
            )
            feed[grad] = random(rng, [5, 8], tf.float32)
            feed[ids] = rng.integers(0, 6, size=5)
        return ops, [feed] * 2

    report = check(case_of(build))
    assert sorted(map(len, packed_nodes(report, "update"))) == [2, 2]


@pytest.mark.parametrize("form", ["summed", "direct"])
@pytest.mark.parametrize("bad", [-1, 5])
def test_bad_id_changes_nothing(form, bad):
    """A bad id in the last member: no member's variable or slot has changed,
    and the next step works."""
    rng = np.random.default_rng(8)

    def build():
        updates = Updates(by_name("adagrad-update_slots=True"), tf.float32)
        ops, good = [], updates.feed(0)
        for i in range(3):
            grad, ids = placeholders(tf.float32, (4,), tf.int64)
            pair = summed(grad, ids) if form == "summed" else (grad, ids)
            value = random(rng, [5, 4], tf.float32)
            ops.append(updates.add(f"table_{i}", value, *pair))
            good[grad] = random(rng, [3, 4], tf.float32)
            good[ids] = np.array([1, 4, 2])
        return ops, [good, good | {ids: np.array([1, 4, bad])}]

    case = case_of(build)
    good, wrong = case.feeds
    with tf.compat.v1.Session(graph=case.graph, config=stock_config()) as session:
        session.run(case.init)
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(case.fetches, wrong)
    previous = picasso_tf.last_report()
    with tf.compat.v1.Session(graph=case.graph, config=packed_config()) as session:
        session.run(case.init)
        session.run(case.fetches, good)
        before = session.run(case.reads)
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            session.run(case.fetches, wrong)
        assert f"indices[2] = {bad} is not in [0, 5)" in str(error.value)
        assert "table_2" in str(error.value)
        after = session.run(case.reads)
        for variable, a, b in zip(case.variables, after, before, strict=True):
            assert_same(a, b, f"{variable.name} after a bad id")
        session.run(case.fetches, good)
        got = session.run(case.reads)
    report = picasso_tf.last_report()
    assert report is not previous and len(report.packs) == 1
    assert report.executions(report.packs[0])[1] == 2
    case.feeds = [good, good]
    expected = run(case, stock_config()).last
    for variable, a, b in zip(case.variables, got, expected, strict=True):
        assert_same(a, b, f"{variable.name} after a good step")


# -- optimizers ----------------------------------------------------------------

_train = tf.compat.v1.train
OPTIMIZERS = {
    "GradientDescent": lambda step: _train.GradientDescentOptimizer(0.1),
    "Adagrad": lambda step: _train.AdagradOptimizer(0.1),
    "Momentum": lambda step: _train.MomentumOptimizer(0.1, 0.9),
    "Nesterov": lambda step: _train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Ftrl": lambda step: _train.FtrlOptimizer(0.1),
    "Ftrl-l1": lambda step: _train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01
    ),
    "Ftrl-shrinkage": lambda step: _train.FtrlOptimizer(
        0.1,
        learning_rate_power=-0.6,
        l2_shrinkage_regularization_strength=0.01,
    ),
    "RMSProp": lambda step: _train.RMSPropOptimizer(0.01, momentum=0.9),
    "Adadelta": lambda step: _train.AdadeltaOptimizer(0.5),
    "ProximalAdagrad": lambda step: _train.ProximalAdagradOptimizer(0.1),
    "ProximalAdagrad-l1": lambda step: _train.ProximalAdagradOptimizer(
        0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001
    ),
    "AdagradDA": lambda step: _train.AdagradDAOptimizer(0.1, step),
    "AdagradDA-l1": lambda step: _train.AdagradDAOptimizer(
        0.1, step, l1_regularization_strength=0.001
    ),
    "Adam": lambda step: _train.AdamOptimizer(0.01),
}
BATCH = 32


def _model(make_optimizer, dtype=tf.float32):
    """Four fields of three tables, one with several ids, and two dense layers."""
    rng = np.random.default_rng(9)
    ids = tf.compat.v1.placeholder(tf.int64, [None, 3])
    many = tf.compat.v1.placeholder(tf.int32, [None, 4])
    labels = tf.compat.v1.placeholder(dtype, [None, 1])
    tables = [
        make_table(f"table_{i}", random(rng, [20, dim], dtype))
        for i, dim in enumerate((8, 5, 16))
    ]
    lookup = tf.nn.embedding_lookup
    fields = [lookup(tables[i], ids[:, i]) for i in range(3)]
    fields.append(tf.reduce_sum(lookup(tables[0], many), axis=1))
    x = tf.concat(fields, axis=1)
    for i, width in enumerate((8, 1)):
        kernel = make_table(f"kernel_{i}", random(rng, [x.shape[1], width], dtype) / 4)
        x = tf.matmul(x, kernel)
        x = tf.nn.relu(x) if i == 0 else x
    loss = tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=x)
    )
    step = tf.compat.v1.train.get_or_create_global_step()
    train = make_optimizer(step).minimize(loss, global_step=step)
    feeds = [
        {
            ids: np.minimum(rng.zipf(1.3, size=[BATCH, 3]) - 1, 19),
            many: rng.integers(0, 20, size=[BATCH, 4]),
            labels: rng.integers(0, 2, size=[BATCH, 1]),
        }
        for _ in range(STEPS)
    ]
    return [loss, train], feeds


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    report = check(case_of(lambda: _model(OPTIMIZERS[name])))
    assert [len(p) for p in packed_nodes(report, "lookup")] == [4]
    if name == "Adam":  # it scatters m and v, and updates the tables densely
        assert packed_nodes(report, "update")
    else:
        assert [len(p) for p in packed_nodes(report, "update")] == [3]
