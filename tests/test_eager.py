"""The flag for tf.function and Keras: every thread, every trace, and off again."""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import assert_same
from helpers_models import (
    BATCH,
    DIMS,
    ROWS,
    ClickGraph,
    ClickModule,
    assert_all_same,
    checked,
    fit_module,
    id_batches,
    keras_2,
    label_batches,
    needs_keras_2,
    needs_keras_3,
    packed_config,
    run_python,
    stock_module,
    strict,
    table_values,
    tree_bytes,
    v1,
    watch,
)
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

import picasso_tf
from picasso_tf.passes import PackLookups, PackUpdates, PassResult

STEPS = 20
FIELDS = len(ROWS)
OFF = rewriter_config_pb2.RewriterConfig.OFF
keras = tf.keras


@pytest.fixture(autouse=True)
def flag_off():
    """No test leaves the flag on, whatever it does."""
    yield
    with contextlib.suppress(picasso_tf.RewriteDropped):  # what a test dropped
        picasso_tf.disable()


def current_config() -> bytes:
    """The configuration that a function called here and now would get."""
    return context.context().function_call_options.config_proto_serialized


def switched_on() -> bool:
    return b"picasso" in current_config()


def lookup_function():
    """A function of ids, and the tables that it looks up."""
    module = ClickModule()

    @tf.function
    def rows(ids):
        return tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(module.tables)],
            axis=1,
        )

    return rows, module


def expected_rows(module, ids) -> np.ndarray:
    return np.concatenate(
        [table.numpy()[ids[:, i]] for i, table in enumerate(module.tables)], axis=1
    )


# -- functions ----------------------------------------------------------------


def test_function_traced_under_the_flag():
    expected = stock_module(STEPS)
    module = ClickModule()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit_module(tf.function(module.step), module, STEPS)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    seen.assert_executed(STEPS)
    assert_all_same(got, expected)


def test_function_traced_before_and_used_afterwards():
    """Off, on, off: one trace, and packs run in the middle only."""
    module, reference = ClickModule(), ClickModule()
    step, stock = tf.function(module.step), tf.function(reference.step)
    fit_module(step, module, 5, seed=1)
    with watch() as seen:
        picasso_tf.enable(strict())
        fit_module(step, module, 5, seed=2)
        picasso_tf.disable()
        seen.assert_packed(lookups=FIELDS, updates=FIELDS)
        got = fit_module(step, module, 5, seed=3)
    seen.assert_executed(5)
    assert step.experimental_get_tracing_count() == 1
    for seed in (1, 2):
        fit_module(stock, reference, 5, seed=seed)
    assert_all_same(got, fit_module(stock, reference, 5, seed=3))


def test_concrete_function_made_before():
    rows, module = lookup_function()
    concrete = rows.get_concrete_function(tf.TensorSpec([None, FIELDS], tf.int64))
    ids = id_batches(1)[0]
    with watch() as seen, picasso_tf.enabled(strict()):
        got = concrete(tf.constant(ids)).numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, expected_rows(module, ids), "rows")


def test_retracing():
    """Each trace is a graph of its own."""
    rows, module = lookup_function()
    with watch() as seen, picasso_tf.enabled(strict()):
        for dtype in (tf.int32, tf.int64):
            for batch in (3, 5):
                ids = id_batches(1, batch=batch)[0]
                got = rows(tf.constant(ids, dtype)).numpy()
                assert_same(got, expected_rows(module, ids), "rows")
    assert seen.members("lookup") == [FIELDS] * rows.experimental_get_tracing_count()
    seen.assert_packed()


def test_empty_batch():
    rows, _ = lookup_function()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = rows(tf.zeros([0, FIELDS], tf.int64)).numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, np.zeros([0, sum(DIMS)], np.float32), "rows")


def test_gradient_taken_outside():
    """A tape around a function: TensorFlow runs a forward and a backward one."""
    rows, module = lookup_function()
    ids = tf.constant(id_batches(1)[0])

    def slices():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(rows(ids)))
        parts = tape.gradient(loss, module.tables)
        return [
            array.numpy() for part in parts for array in (part.values, part.indices)
        ]

    expected = slices()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = slices()
    seen.assert_packed(lookups=FIELDS)
    assert_all_same(got, expected)


def test_function_in_a_function():
    """Functions called by functions are packed with them."""
    module = ClickModule()

    @tf.function
    def field(i, ids):
        return tf.nn.embedding_lookup(module.tables[i], ids)

    @tf.function
    def rows(ids):
        return tf.concat([field(i, ids[:, i]) for i in range(FIELDS)], axis=1)

    ids = id_batches(1)[0]
    with watch() as seen, picasso_tf.enabled(strict()):
        got = rows(tf.constant(ids)).numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, expected_rows(module, ids), "rows")


@pytest.mark.parametrize("taken", [True, False])
def test_branches(taken):
    """A branch that is not taken takes nothing with it."""
    module = ClickModule()

    @tf.function
    def rows(ids, which):
        outside = [
            tf.nn.embedding_lookup(t, ids[:, i])
            for i, t in enumerate(module.tables[:2])
        ]
        if which:
            inside = [
                tf.nn.embedding_lookup(t, ids[:, 2 + i])
                for i, t in enumerate(module.tables[2:])
            ]
        else:
            inside = [
                -tf.nn.embedding_lookup(t, ids[:, 2 + i])
                for i, t in enumerate(module.tables[2:])
            ]
        return tf.concat(outside + inside, axis=1)

    ids = id_batches(1)[0]
    expected = expected_rows(module, ids)
    sign = np.array([1] * sum(DIMS[:2]) + [1 if taken else -1] * sum(DIMS[2:]))
    with watch() as seen, picasso_tf.enabled(strict()):
        got = rows(tf.constant(ids), tf.constant(taken)).numpy()
    assert sorted(seen.members("lookup")) == [2, 2, 2]
    assert_same(got, (expected * sign).astype(np.float32), "rows")
    runs = sorted(r.executions(p)[1] for r in seen.changed() for p in r.packs)
    assert runs == [0, 1, 1]


def test_a_branch_that_trains():
    """Updates within a tf.cond, and others outside of it."""

    def build():
        module = ClickModule()

        @tf.function
        def step(ids, labels):
            loss = module.loss(ids, labels)
            if loss > 0.7:
                module.step(ids, labels)
            return loss

        return step, module

    expected = fit_module(*build(), STEPS)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit_module(*build(), STEPS)
    assert seen.changed()
    assert_all_same(got, expected)


def test_training_loop_inside_of_a_function():
    """Many steps per call: a while loop around lookups and updates."""

    def build():
        module = ClickModule()

        @tf.function
        def steps(ids, labels):
            loss = tf.constant(0.0)
            for i in tf.range(tf.shape(ids)[0]):
                loss = module.step(ids[i], labels[i])
            return loss

        return steps, module

    ids, labels = np.stack(id_batches(12)), np.stack(label_batches(12))

    def run(steps, module):
        losses = [steps(tf.constant(ids[i::3]), labels[i::3]).numpy() for i in range(3)]
        return losses + module.values()

    expected = run(*build())
    with watch() as seen, picasso_tf.enabled(strict()):
        got = run(*build())
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    seen.assert_executed(12)
    assert_all_same(got, expected)


TF1_OPTIMIZERS = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.1),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(0.1),
}


@pytest.mark.parametrize("name", TF1_OPTIMIZERS)
def test_custom_training_loop(name):
    """tf.Variable, tf.nn.embedding_lookup, a tape and a TF1 optimizer."""

    def build():
        module = ClickModule()
        optimizer = TF1_OPTIMIZERS[name]()
        variables = [*module.tables, module.kernel]

        @tf.function
        def step(ids, labels):
            with tf.GradientTape() as tape:
                loss = module.loss(ids, labels)
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        return step, module

    expected = fit_module(*build(), STEPS)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = fit_module(*build(), STEPS)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    # The first call traces twice: once with the slots' creation.
    assert_all_same(got, expected)


def test_reads_and_writes_keep_their_order():
    """In a function, automatic control edges order them."""
    module = ClickModule()

    def lookup(ids):
        return tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(module.tables)],
            axis=1,
        )

    @tf.function
    def step(ids):
        before = lookup(ids)
        for table in module.tables:
            table.assign_add(tf.ones_like(table))
        between = lookup(ids)
        for i, table in enumerate(module.tables):
            table.scatter_sub(tf.IndexedSlices(tf.ones([BATCH, DIMS[i]]), ids[:, i]))
        return before, between, lookup(ids)

    batches = [tf.constant(ids) for ids in id_batches(5)]
    initial = [table.numpy() for table in module.tables]

    def run():
        for table, value in zip(module.tables, initial, strict=True):
            table.assign(value)
        got = [rows.numpy() for ids in batches for rows in step(ids)]
        return got + [table.numpy() for table in module.tables]

    expected = run()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = run()
    assert seen.members("lookup") == [FIELDS] * 3, seen.text()
    assert seen.members("update") == [FIELDS]
    seen.assert_packed()
    seen.assert_executed(5)
    assert_all_same(got, expected)


def test_bad_ids_raise_as_stock_does():
    rows, module = lookup_function()
    good = id_batches(1)[0]
    for column, bad in ((0, 7), (1, -1), (3, 2**40)):
        ids = good.copy()
        ids[5, column] = bad
        with pytest.raises(tf.errors.InvalidArgumentError) as stock:
            rows(tf.constant(ids))
        with (
            watch() as seen,
            picasso_tf.enabled(strict()),
            pytest.raises(tf.errors.InvalidArgumentError) as packed,
        ):
            rows(tf.constant(ids))
        message = f"indices[5] = {bad} is not in [0, {ROWS[column]})"
        assert message in str(stock.value)
        assert message in str(packed.value)
        assert seen.changed() or column > 0
    # What raised is still usable.
    with picasso_tf.enabled(strict()):
        assert_same(rows(tf.constant(good)), expected_rows(module, good), "rows")


def test_bad_ids_change_nothing():
    """The step that fails is as if it had not been."""
    module = ClickModule()
    step = tf.function(module.step)
    ids, labels = id_batches(1)[0], label_batches(1)[0]
    before = module.values()
    ids[3, 2] = ROWS[2]
    with (
        watch() as seen,
        picasso_tf.enabled(strict()),
        pytest.raises(tf.errors.InvalidArgumentError),
    ):
        step(tf.constant(ids), tf.constant(labels))
    assert seen.changed()
    assert_all_same(module.values(), before)


def test_jit_compiled_functions_are_left_alone():
    module = ClickModule()

    @tf.function(jit_compile=True)
    def compiled(ids):
        return tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(module.tables)],
            axis=1,
        )

    ids = id_batches(1)[0]
    with watch() as seen, picasso_tf.enabled(strict()):
        got = compiled(tf.constant(ids)).numpy()
    assert not seen.changed()
    assert_same(got, expected_rows(module, ids), "rows")

    @tf.function
    def outer(ids):
        return compiled(ids), tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(module.tables)],
            axis=1,
        )

    with watch() as seen, picasso_tf.enabled(strict()):
        got = outer(tf.constant(ids))
    seen.assert_packed(lookups=FIELDS)
    for rows in got:
        assert_same(rows.numpy(), expected_rows(module, ids), "rows")


def test_wrapped_v1_functions():
    """v1.wrap_function, which TF1-style SavedModels are loaded as."""
    tables = ClickModule().tables

    def rows(ids):
        return tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)], axis=1
        )

    function = v1.wrap_function(rows, [tf.TensorSpec([None, FIELDS], tf.int64)])
    ids = tf.constant(id_batches(1)[0])
    expected = function(ids).numpy()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = function(ids).numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, expected, "rows")


def test_options_reach_the_rewrite():
    """A function knows no names of variables; nodes are excluded by theirs."""
    rows, module = lookup_function()
    ids = id_batches(1)[0]
    with watch() as seen, picasso_tf.enabled(strict(max_pack_volume=1)):
        got = rows(tf.constant(ids)).numpy()
    assert not seen.changed()
    assert seen.reasons()
    assert_same(got, expected_rows(module, ids), "rows")
    with watch() as seen, picasso_tf.enabled(strict(exclude=[".*"])):
        got = rows(tf.constant(ids)).numpy()
    assert not seen.changed()
    assert seen.reasons() == {"excluded by Options.exclude"}
    assert_same(got, expected_rows(module, ids), "rows")


def test_dataset_functions():
    """Lookups in a tf.data pipeline give what they gave."""
    module = ClickModule()
    ids = np.stack(id_batches(4))

    def make():
        return tf.data.Dataset.from_tensor_slices(ids).map(
            lambda batch: [
                tf.nn.embedding_lookup(t, batch[:, i])
                for i, t in enumerate(module.tables)
            ]
        )

    with picasso_tf.enabled(strict()):
        got = [np.concatenate([r.numpy() for r in rows], 1) for rows in make()]
    assert_all_same(got, [expected_rows(module, batch) for batch in ids])


def test_sessions_are_not_touched():
    """enable() is for functions; a session has a configuration of its own."""
    model = ClickGraph()
    with picasso_tf.enabled(strict()), watch() as seen:
        model.run(None, 2)
    assert not seen.reports()
    with picasso_tf.enabled(strict()), watch() as seen:
        model.run(packed_config(), 2)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)


# -- threads ------------------------------------------------------------------


class Worker:
    """A thread that does what it is told, one thing after the other."""

    def __init__(self):
        self._tasks: queue.Queue = queue.Queue()
        self._results: queue.Queue = queue.Queue()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self):
        while (task := self._tasks.get()) is not None:
            try:
                self._results.put((task(), None))
            except BaseException as error:
                self._results.put((None, error))

    def __call__(self, task):
        self._tasks.put(task)
        result, error = self._results.get(timeout=120)
        if error is not None:
            raise error
        return result

    def stop(self):
        self._tasks.put(None)
        self._thread.join(timeout=120)


@pytest.fixture
def workers():
    made = [Worker(), Worker()]
    yield made
    for worker in made:
        worker.stop()


def test_threads_that_called_functions_before(workers):
    """TensorFlow keeps a function's configuration per thread."""
    rows, module = lookup_function()
    ids = id_batches(1)[0]

    def call():
        return rows(tf.constant(ids)).numpy()

    expected = expected_rows(module, ids)
    old, new = workers
    assert_same(old(call), expected, "rows")  # has its configuration now
    with watch() as seen, picasso_tf.enabled(strict()):
        assert_same(old(call), expected, "rows")
        seen.assert_packed(lookups=FIELDS)
        seen.assert_executed(1)
        assert_same(new(call), expected, "rows")
        assert_same(call(), expected, "rows")
        seen.assert_executed(3)
    for caller in (old, new, lambda task: task()):
        assert_same(caller(call), expected, "rows")
        assert not caller(switched_on)
    seen.assert_executed(3)


def test_enabled_in_another_thread(workers):
    """It is a switch of the process."""
    one, two = workers
    one(lambda: picasso_tf.enable(strict()))
    assert switched_on() and two(switched_on)
    two(picasso_tf.disable)
    assert not switched_on() and not one(switched_on)


def test_many_threads_call_one_function():
    """With inputs of their own; nothing is shared between calls."""
    rows, module = lookup_function()
    batches = id_batches(8)
    wrong = []
    start = threading.Barrier(len(batches))

    def call(ids):
        expected = expected_rows(module, ids)
        start.wait()
        for _ in range(25):
            if not np.array_equal(rows(tf.constant(ids)).numpy(), expected):
                wrong.append(ids)

    with watch() as seen, picasso_tf.enabled(strict()):
        threads = [threading.Thread(target=call, args=[ids]) for ids in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    seen.assert_packed()
    # A report per thread that came first, of one and the same pack.
    first = seen.changed()[0]
    assert first.executions(first.packs[0])[1] == 200


def test_threads_call_while_the_flag_is_switched():
    """On and off, on and off: the results do not tell."""
    rows, module = lookup_function()
    batches = id_batches(4)
    wrong = []
    done = threading.Event()

    def call(ids):
        expected = expected_rows(module, ids)
        while not done.is_set():
            if not np.array_equal(rows(tf.constant(ids)).numpy(), expected):
                wrong.append(ids)

    threads = [threading.Thread(target=call, args=[ids]) for ids in batches]
    with watch() as seen:
        for thread in threads:
            thread.start()
        for _ in range(20):
            with picasso_tf.enabled(strict()):
                rows(tf.constant(batches[0]))
            rows(tf.constant(batches[0]))
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong
    seen.assert_packed()


def test_many_threads_update_one_table():
    """Sums of whole numbers: the same in any order, and none may be lost."""
    tables = [tf.Variable(tf.zeros([5, 3])) for _ in range(FIELDS)]

    @tf.function
    def step(ids):
        for table in tables:
            table.scatter_add(tf.IndexedSlices(tf.ones([4, 3]), ids))

    def call():
        for _ in range(25):
            step(tf.constant([0, 1, 1, 4]))

    with watch() as seen, picasso_tf.enabled(strict()):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seen.assert_packed()
    assert set(seen.members("update")) == {FIELDS}
    expected = np.repeat([[100.0], [200.0], [0.0], [0.0], [100.0]], 3, 1)
    for table in tables:
        assert_same(table.numpy(), expected.astype(np.float32), "table")


# -- the switch ---------------------------------------------------------------


@pytest.fixture
def restored_tf_config():
    """Puts tf.config back as it was."""
    soft = tf.config.get_soft_device_placement()
    yield
    tf.config.set_soft_device_placement(soft)
    context.context()._optimizer_experimental_options.clear()
    context.context().function_call_options = None


def test_disable_restores_exactly():
    before = current_config()
    stock = context.Context.__dict__["function_call_options"]
    picasso_tf.enable(strict())
    assert context.Context.__dict__["function_call_options"] is not stock
    assert switched_on()
    picasso_tf.enable(strict(exclude=["x"]))  # replaces the first
    assert switched_on()
    picasso_tf.disable()
    assert context.Context.__dict__["function_call_options"] is stock
    assert current_config() == before
    picasso_tf.disable()  # nothing to do
    assert context.Context.__dict__["function_call_options"] is stock
    with picasso_tf.enabled():
        assert switched_on()
    assert context.Context.__dict__["function_call_options"] is stock
    assert current_config() == before


def test_what_was_set_by_hand_is_restored(restored_tf_config):
    """A configuration that the user put there, with optimizers of their own."""
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.remapping = OFF
    config.graph_options.rewrite_options.custom_optimizers.add(name="debug_stripper")
    by_hand = context.FunctionCallOptions(config_proto=config)
    context.context().function_call_options = by_hand
    before = current_config()
    rows, module = lookup_function()
    ids = id_batches(1)[0]
    with watch() as seen, picasso_tf.enabled(strict()):
        seen_config = config_pb2.ConfigProto.FromString(current_config())
        assert seen_config.graph_options.rewrite_options.remapping == OFF
        got = rows(tf.constant(ids)).numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, expected_rows(module, ids), "rows")
    assert context.context().function_call_options is by_hand
    assert current_config() == before


def test_what_is_set_meanwhile_stays(restored_tf_config):
    """function_call_options that are set while the flag is on count, now and
    afterwards."""
    config = config_pb2.ConfigProto(intra_op_parallelism_threads=3)
    with picasso_tf.enabled(strict()):
        context.context().function_call_options = context.FunctionCallOptions(
            config_proto=config
        )
        now = config_pb2.ConfigProto.FromString(current_config())
        assert now.intra_op_parallelism_threads == 3
        assert switched_on()
    assert config_pb2.ConfigProto.FromString(current_config()) == config


def test_config_setters_in_between(restored_tf_config):
    """They reset what TensorFlow keeps per thread; the flag stays, and what they
    set counts."""
    rows, module = lookup_function()
    ids = id_batches(1)[0]
    with watch() as seen:
        picasso_tf.enable(strict())
        tf.config.set_soft_device_placement(not tf.config.get_soft_device_placement())
        soft = tf.config.get_soft_device_placement()
        assert switched_on()
        rows(tf.constant(ids))
        tf.config.optimizer.set_experimental_options(
            {"remapping": False, "constant_folding": False}
        )
        config = config_pb2.ConfigProto.FromString(current_config())
        assert config.allow_soft_placement == soft
        rewriter = config.graph_options.rewrite_options
        assert rewriter.remapping == OFF
        assert rewriter.constant_folding == OFF
        assert switched_on()
        got = rows(tf.constant(ids)).numpy()
        picasso_tf.disable()
    seen.assert_packed()
    assert len(seen.changed()) == 2  # the setter makes TensorFlow optimize anew
    assert_same(got, expected_rows(module, ids), "rows")
    # The setter's word stays when the flag goes.
    after = config_pb2.ConfigProto.FromString(current_config())
    assert after.graph_options.rewrite_options.remapping == OFF
    assert not after.graph_options.rewrite_options.custom_optimizers


def active_exclude() -> str:
    """Options.exclude of the configuration that counts now."""
    config = config_pb2.ConfigProto.FromString(current_config())
    ours = config.graph_options.rewrite_options.custom_optimizers
    if not ours:
        return ""
    options = picasso_tf.Options.from_json(ours[0].parameter_map["options"].s.decode())
    return ",".join(options.exclude)


def test_nested_blocks():
    """The innermost counts; each end brings back the one around it."""
    with picasso_tf.enabled(strict(exclude=["a"])):
        assert active_exclude() == "a"
        with picasso_tf.enabled(strict(exclude=["b"])):
            assert active_exclude() == "b"
            with picasso_tf.enabled(strict(exclude=["a"])):
                assert active_exclude() == "a"
            assert active_exclude() == "b"
        assert active_exclude() == "a"
    assert not switched_on()
    picasso_tf.enable(strict(exclude=["a"]))
    with picasso_tf.enabled(strict(exclude=["b"])):
        assert active_exclude() == "b"
    assert active_exclude() == "a"
    picasso_tf.disable()
    assert not switched_on()


def test_blocks_that_end_out_of_order(workers):
    """Two threads with a block each, the first of which ends first."""
    one, two = workers
    blocks = [picasso_tf.enabled(strict(exclude=[name])) for name in "ab"]
    one(blocks[0].__enter__)
    two(blocks[1].__enter__)
    assert active_exclude() == "b"
    one(lambda: blocks[0].__exit__(None, None, None))
    assert active_exclude() == "b"
    two(lambda: blocks[1].__exit__(None, None, None))
    assert not switched_on()


def test_block_left_by_an_exception():
    before = current_config()
    with pytest.raises(ZeroDivisionError), picasso_tf.enabled(strict()):
        assert switched_on()
        raise ZeroDivisionError
    assert current_config() == before


def test_block_as_a_decorator():
    @picasso_tf.enabled(strict())
    def inside():
        return switched_on()

    assert inside() and inside()
    assert not switched_on()


def test_disable_within_a_block():
    with picasso_tf.enabled():
        picasso_tf.disable()
        assert not switched_on()
    assert not switched_on()


def test_functions_run_eagerly():
    module = ClickModule()
    tf.config.run_functions_eagerly(True)
    try:
        with watch() as seen, picasso_tf.enabled(strict()):
            got = fit_module(tf.function(module.step), module, 3)
    finally:
        tf.config.run_functions_eagerly(False)
    assert not seen.reports()
    expected = stock_module(3)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# -- Keras --------------------------------------------------------------------


def keras_model(optimizer, keras=tf.keras, **compile_arguments):
    """Embedding, Flatten, Concatenate with dense inputs, two dense layers."""
    layers = keras.layers
    inputs = [keras.Input([1], dtype="int32", name=f"field_{i}") for i in range(4)]
    numbers = keras.Input([3], name="numbers")
    rows = [
        layers.Flatten()(layers.Embedding(size, dim, name=f"embedding_{i}")(ids))
        for i, (size, dim, ids) in enumerate(zip(ROWS, DIMS, inputs, strict=True))
    ]
    x = layers.Concatenate()([*rows, numbers])
    x = layers.Dense(8, activation="relu")(x)
    out = layers.Dense(1, activation="sigmoid")(x)
    model = keras.Model([*inputs, numbers], out)
    model.set_weights(
        [
            np.zeros(w.shape, np.float32)
            if len(w.shape) == 1
            else table_values(*w.shape, seed=i)
            for i, w in enumerate(model.get_weights())
        ]
    )
    model.compile(
        optimizer, loss="binary_crossentropy", jit_compile=False, **compile_arguments
    )
    return model


def keras_data(batches: int):
    ids = np.concatenate(id_batches(batches))
    numbers = np.random.default_rng(7).normal(size=[len(ids), 3]).astype(np.float32)
    labels = np.concatenate(label_batches(batches))
    return [*(ids[:, i : i + 1].astype(np.int32) for i in range(4)), numbers], labels


def keras_fit(optimizer, batches=10, **compile_arguments):
    """Losses and weights of a fresh model, after two epochs."""
    model = keras_model(optimizer, **compile_arguments)
    x, y = keras_data(batches)
    fit = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return [np.array(fit.history["loss"]), *model.get_weights()]


def legacy(name, **arguments):
    return getattr(keras_2.optimizers.legacy, name)(0.1, **arguments)


keras_2_model = functools.partial(keras_model, keras=keras_2)
keras_2_fit = functools.partial(keras_fit, keras=keras_2)


# The optimizer, and the members of packed updates in a step.
KERAS_2_OPTIMIZERS = {
    "sgd": (lambda: legacy("SGD"), FIELDS),
    "momentum": (lambda: legacy("SGD", momentum=0.9), FIELDS),
    "nesterov": (lambda: legacy("SGD", momentum=0.9, nesterov=True), FIELDS),
    "adagrad": (lambda: legacy("Adagrad"), FIELDS),
    "ftrl": (lambda: legacy("Ftrl", l1_regularization_strength=0.01), FIELDS),
    "ftrl_shrinkage": (
        lambda: legacy("Ftrl", l2_shrinkage_regularization_strength=0.01),
        FIELDS,
    ),
    "rmsprop_momentum": (lambda: legacy("RMSprop", momentum=0.9), FIELDS),
    "rmsprop": (lambda: legacy("RMSprop"), None),
    "adadelta": (lambda: legacy("Adadelta"), FIELDS),
    "adam": (lambda: legacy("Adam"), None),
}


SLOW = ("momentum", "ftrl_shrinkage", "rmsprop_momentum")


@needs_keras_2
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
        for name in KERAS_2_OPTIMIZERS
    ],
)
def test_keras_2_fit(name):
    optimizer, updates = KERAS_2_OPTIMIZERS[name]
    expected = keras_2_fit(optimizer())
    with watch() as seen, picasso_tf.enabled(strict()):
        got = keras_2_fit(optimizer())
    seen.assert_packed()
    assert FIELDS in seen.members("lookup")
    if updates is not None:
        assert sum(seen.members("update")) == updates, seen.text()
        seen.assert_executed(20)
    assert_all_same(got, expected)


@needs_keras_2
def test_keras_2_evaluate_and_predict():
    model = keras_2_model(legacy("Adagrad"))
    x, y = keras_data(3)

    def run():
        score = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        return [score, model.predict(x, batch_size=BATCH, verbose=0), model(x).numpy()]

    expected = run()
    with watch() as seen, picasso_tf.enabled(strict()):
        got = run()
    # A function each; what is called eagerly is no graph.
    assert seen.members("lookup") == [FIELDS, FIELDS]
    seen.assert_executed(3)
    assert_all_same(got, expected)


@needs_keras_2
@pytest.mark.slow
def test_keras_2_new_adagrad():
    """Keras 2.11's own optimizers write updates in many ops."""
    expected = keras_2_fit(keras_2.optimizers.Adagrad(0.1))
    with watch() as seen, picasso_tf.enabled(strict()):
        got = keras_2_fit(keras_2.optimizers.Adagrad(0.1))
    seen.assert_packed()
    assert_all_same(got, expected)


@needs_keras_2
def test_keras_2_steps_per_execution():
    """Three steps per call, 10 steps in each epoch: the last call has one."""
    expected = keras_2_fit(legacy("Adagrad"), steps_per_execution=3)
    with watch() as seen, picasso_tf.enabled(strict()):
        got = keras_2_fit(legacy("Adagrad"), steps_per_execution=3)
    seen.assert_packed()
    runs = [
        r.executions(p)[1]
        for r in seen.changed()
        for p in r.packs
        if p.kind == "update"
    ]
    assert sum(runs) == 20, seen.text()
    assert_all_same(got, expected)


@needs_keras_2
def test_keras_2_enabled_between_epochs():
    """The train function exists already; it is packed from then on."""
    x, y = keras_data(5)

    def run(switch):
        model = keras_2_model(legacy("Adagrad"))
        for epoch in range(3):
            if switch and epoch == 1:
                picasso_tf.enable(strict())
            model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
            if switch and epoch == 1:
                picasso_tf.disable()
        return model.get_weights()

    expected = run(False)
    with watch() as seen:
        got = run(True)
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    seen.assert_executed(5)
    assert_all_same(got, expected)


@needs_keras_2
def test_keras_2_checkpoint_goes_on_with_the_flag_off(tmp_path):
    """Files written under the flag are stock's, and load without it."""
    x, y = keras_data(5)

    def fit(model):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)

    stock, packed = keras_2_model(legacy("Adagrad")), keras_2_model(legacy("Adagrad"))
    fit(stock)
    stock.save_weights(str(tmp_path / "stock"))
    with watch() as seen, picasso_tf.enabled(strict()):
        fit(packed)
        packed.save_weights(str(tmp_path / "packed"))
    seen.assert_packed(lookups=FIELDS, updates=FIELDS)
    fresh = keras_2_model(legacy("Adagrad"))
    fresh.load_weights(str(tmp_path / "packed"))
    fit(fresh)
    fit(stock)
    assert_all_same(fresh.get_weights(), stock.get_weights())


@needs_keras_3
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_keras_3_fit_gives_equal_numbers(name):
    """Its lookups have a form of their own, which may be packed or not."""
    make = getattr(keras.optimizers, name)
    expected = keras_fit(make(0.1), batches=5)
    with picasso_tf.enabled(strict()):
        got = keras_fit(make(0.1), batches=5)
    assert_all_same(got, expected)


@needs_keras_3
def test_keras_3_steps_per_execution():
    make = keras.optimizers.Adagrad
    expected = keras_fit(make(0.1), batches=5, steps_per_execution=3)
    with picasso_tf.enabled(strict()):
        got = keras_fit(make(0.1), batches=5, steps_per_execution=3)
    assert_all_same(got, expected)


@pytest.mark.slow
def test_mirrored_strategy_on_one_device():
    """A distribution strategy of one: the same numbers, packed or not."""

    def build():
        strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
        with strategy.scope():
            module = ClickModule()

        @tf.function
        def step(ids, labels):
            per_replica = strategy.run(module.loss, args=(ids, labels))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

        return step, module

    expected = fit_module(*build(), 5)
    with picasso_tf.enabled(strict()):
        got = fit_module(*build(), 5)
    assert_all_same(got, expected)


# -- saving -------------------------------------------------------------------


def saveable_module() -> ClickModule:
    module = ClickModule()

    @tf.function
    def inner(i, ids):
        return tf.nn.embedding_lookup(module.tables[i], ids)

    @tf.function(input_signature=[tf.TensorSpec([None, FIELDS], tf.int64)])
    def score(ids):
        rows = [inner(i, ids[:, i]) for i in range(FIELDS)]
        return {"score": tf.linalg.matmul(tf.concat(rows, axis=1), module.kernel)}

    module.score = score
    return module


LOAD = """
import sys
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
ids = tf.constant(np.load(sys.argv[2]))
np.save(sys.argv[3], model.signatures["serving_default"](ids)["score"].numpy())
assert not [name for name in sys.modules if name.startswith("picasso")]
"""


def test_saved_model_holds_no_trace(tmp_path):
    """Traced, called and saved while the flag is on; loaded where picasso_tf was
    never imported."""
    ids = id_batches(1)[0]
    np.save(tmp_path / "ids.npy", ids)
    with watch() as seen, picasso_tf.enabled(strict()):
        module = saveable_module()
        expected = module.score(tf.constant(ids))["score"].numpy()
        tf.saved_model.save(
            module,
            str(tmp_path / "model"),
            signatures={"serving_default": module.score},
        )
    seen.assert_packed(lookups=FIELDS)
    for name, content in tree_bytes(tmp_path / "model").items():
        assert b"icasso" not in content, name
    checked(
        run_python(
            LOAD,
            tmp_path / "model",
            tmp_path / "ids.npy",
            tmp_path / "score.npy",
            importable=False,
        )
    )
    assert_same(np.load(tmp_path / "score.npy"), expected, "score")


def test_saved_model_is_packed_where_it_is_loaded(tmp_path):
    """The other way round: saved by stock, loaded and called under the flag."""
    module = saveable_module()
    ids = tf.constant(id_batches(1)[0])
    expected = module.score(ids)["score"].numpy()
    tf.saved_model.save(
        module, str(tmp_path / "model"), signatures={"serving_default": module.score}
    )
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    with watch() as seen, picasso_tf.enabled(strict()):
        got = loaded.signatures["serving_default"](ids)["score"].numpy()
    seen.assert_packed(lookups=FIELDS)
    assert_same(got, expected, "score")


@needs_keras_2
def test_keras_2_saved_model_holds_no_trace(tmp_path):
    x, y = keras_data(2)
    with watch() as seen, picasso_tf.enabled(strict()):
        model = keras_2_model(legacy("Adagrad"))
        model.fit(x, y, batch_size=BATCH, verbose=0)
        model.save(str(tmp_path / "model"), save_format="tf")
        expected = model.predict(x, batch_size=BATCH, verbose=0)
    seen.assert_packed()
    for name, content in tree_bytes(tmp_path / "model").items():
        assert b"icasso" not in content, name
    loaded = keras_2.models.load_model(str(tmp_path / "model"))
    got = loaded.predict(x, batch_size=BATCH, verbose=0)
    assert_same(got, expected, "predictions")


def test_graph_built_under_the_flag_holds_no_trace():
    """Neither the concrete function's graph, nor a v1 graph that calls it."""
    with picasso_tf.enabled(strict()):
        module = saveable_module()
        module.score(tf.constant(id_batches(1)[0]))
        traced = module.score.get_concrete_function().graph.as_graph_def()
        with tf.Graph().as_default() as graph:
            tables = ClickModule().tables

            @tf.function
            def lookup(ids):
                return [tf.nn.embedding_lookup(t, ids) for t in tables]

            lookup(tf.constant([0, 1]))
    assert b"icasso" not in traced.SerializeToString()
    assert b"icasso" not in graph.as_graph_def().SerializeToString()


# -- failures -----------------------------------------------------------------


@pytest.fixture(params=[PackLookups, PackUpdates], ids=lambda pass_type: pass_type.name)
def broken_pass(request, monkeypatch):
    """A pass that fails; nothing has warned so far."""

    def run(self, view):
        if type(self) is not request.param:
            return PassResult()  # the updates' pass has a second one behind it
        raise ValueError("no luck today")

    monkeypatch.setattr(request.param, "run", run)
    # picasso_tf.rewrite itself is the function.
    monkeypatch.setattr(sys.modules["picasso_tf.rewrite"], "_warned", set())
    return request.param


def warnings_of(caplog, name: str) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and name in record.getMessage()
    ]


def test_failing_pass_in_a_session(broken_pass, caplog):
    """Stock's numbers, one warning with the pass's name, and a line in each
    report; the other pass does its work."""
    model = ClickGraph()
    expected = model.run(None, 3)
    with watch() as seen:
        got = model.run(picasso_tf.session_config(), 3)
        got_again = model.run(picasso_tf.session_config(), 3)
    assert_all_same(got, expected)
    assert_all_same(got_again, expected)
    assert len(warnings_of(caplog, broken_pass.name)) == 1
    assert len(seen.reports()) == 2
    for report in seen.reports():
        assert report.failures == [f"{broken_pass.name}: ValueError('no luck today')"]
        assert "failed: " + report.failures[0] in str(report)
        kinds = [p.kind for p in report.packs if p.kind != "dense update"]
        # Of an update that stays, the sum of duplicates is a pack by itself.
    assert kinds == (["update"] if broken_pass is PackLookups else ["lookup", "unique"])


def test_failing_pass_in_a_function(broken_pass, caplog):
    expected = stock_module(3)
    module = ClickModule()
    with watch() as seen, picasso_tf.enabled():
        got = fit_module(tf.function(module.step), module, 3)
    assert_all_same(got, expected)
    assert len(warnings_of(caplog, broken_pass.name)) == 1
    assert len(seen.reports()) == 1
    assert seen.reports()[0].failures == [
        f"{broken_pass.name}: ValueError('no luck today')"
    ]


def test_failing_pass_offline(broken_pass, caplog):
    model = ClickGraph()
    graph_def = model.graph.as_graph_def()
    preserve = [model.loss.name, model.train.name]
    _, report = picasso_tf.rewrite(graph_def, preserve)
    assert report.failures == [f"{broken_pass.name}: ValueError('no luck today')"]
    with pytest.raises(ValueError, match="no luck today"):
        picasso_tf.rewrite(graph_def, preserve, strict())


def test_failing_pass_is_loud_in_a_strict_session(broken_pass):
    model = ClickGraph()
    with pytest.raises(Exception, match="no luck today"):
        model.run(packed_config(), 1)


def test_failing_pass_is_loud_in_a_strict_block(broken_pass):
    """By an exception in the call, or at the block's end."""
    module = ClickModule()
    with pytest.raises(Exception, match="no luck today"), picasso_tf.enabled(strict()):
        fit_module(tf.function(module.step), module, 1)


def test_failing_pass_is_loud_when_strict_is_disabled(broken_pass):
    module = ClickModule()
    with pytest.raises(Exception, match="no luck today"):
        picasso_tf.enable(strict())
        fit_module(tf.function(module.step), module, 1)
    picasso_tf.disable()
    assert not switched_on()


def unplaced(monkeypatch):
    """Makes rewritten graphs that TensorFlow drops: nodes without a device."""
    real = picasso_tf.grappler._rewrite_item

    def rewrite_item(*arguments):
        nodes = real(*arguments)
        for node in nodes or ():
            if node.op.startswith("Picasso"):
                node.device = ""
        return nodes

    monkeypatch.setattr("picasso_tf.grappler._rewrite_item", rewrite_item)


def test_dropped_graph_is_told(monkeypatch):
    """TensorFlow runs the original without a word; strict has one, and the
    report says so."""
    unplaced(monkeypatch)
    module = ClickModule()
    with watch() as seen, picasso_tf.enabled():
        got = fit_module(tf.function(module.step), module, 3)
    # What ran is not optimized by TensorFlow either, so the last bits may differ.
    for a, b in zip(got, stock_module(3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    (report,) = seen.changed()
    assert report.was_dropped()
    assert "not created so far" in str(report)
    module = ClickModule()
    with (
        pytest.raises(picasso_tf.RewriteDropped, match="TensorFlow created none"),
        picasso_tf.enabled(strict()),
    ):
        fit_module(tf.function(module.step), module, 1)
    assert not switched_on()


def test_dropped_graph_is_told_after_many_reports(monkeypatch):
    """However many graphs were rewritten before: reports are kept for the
    latest 256 only."""
    kept = picasso_tf.grappler._reports
    kept.extend(picasso_tf.Report("filler") for _ in range(kept.maxlen))
    assert len(picasso_tf.reports()) == 256
    unplaced(monkeypatch)
    module = ClickModule()
    with pytest.raises(picasso_tf.RewriteDropped), picasso_tf.enabled(strict()):
        fit_module(tf.function(module.step), module, 1)


def test_dropped_graph_is_told_in_a_session(monkeypatch):
    unplaced(monkeypatch)
    model = ClickGraph()
    with pytest.raises(tf.errors.OpError):
        model.run(packed_config(), 1)


def test_dropped_graph_is_told_although_its_packs_ran_before(monkeypatch):
    """A function that is optimized again, for other options, has equal packs;
    that they ran before says nothing of this graph."""
    module = ClickModule()
    step = tf.function(module.step)
    with picasso_tf.enabled(strict()):
        fit_module(step, module, 1)
    unplaced(monkeypatch)
    other = strict(exclude=["nothing has this name"])
    with (
        watch() as seen,
        pytest.raises(picasso_tf.RewriteDropped),
        picasso_tf.enabled(other),
    ):
        fit_module(step, module, 1)
    assert seen.changed()[0].was_dropped()
