"""Dense updates of many variables run as one op, with the bits of stock TensorFlow."""

from __future__ import annotations

import pathlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from graphs import STRICT, assert_same, check, run, spell, table, tf1
from helpers_models import KERAS_2, keras_2, needs_keras_2

import picasso_tf
from picasso_tf.edits import graph_def_of
from picasso_tf.node import prune
from picasso_tf.passes import PASSES_AFTER
from picasso_tf.rewrite import rewrite_nodes

SHAPES = [(), (1,), (3,), (8,), (40,), (7, 5), (33, 16), (1000, 16)]
GOLDEN_ATTRS = ("members", "program", "var_index", "tensor_index")
DTYPES = ["float32", "float64", "float16", "bfloat16"]


def values(shape, seed: int, dtype: str = "float32"):
    rng = np.random.default_rng([seed, len(shape), *shape])
    return np.asarray(rng.normal(size=shape)).astype(tf.as_dtype(dtype).as_numpy_dtype)


def dense_packs(reports=None):
    reports = picasso_tf.reports() if reports is None else reports
    return [
        (report, pack)
        for report in reports
        for pack in report.packs
        if pack.kind == "dense update"
    ]


def new_packs(before, members=None):
    """Packs of dense updates made since `before`; they ran, and hold so many."""
    known = {id(report) for report in before}
    packs = dense_packs([r for r in picasso_tf.reports() if id(r) not in known])
    assert packs, str(picasso_tf.last_report())
    assert any(report.executions(pack)[1] > 0 for report, pack in packs)
    if members is not None:
        assert sum(len(pack.members) for _, pack in packs) == members, [
            str(report) for report, _ in packs
        ]
    return packs


# -- TF1: one op per variable --------------------------------------------------

TF1_OPTIMIZERS = {
    "sgd": lambda: tf1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf1.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda: tf1.train.AdagradOptimizer(0.1),
    "adam": lambda: tf1.train.AdamOptimizer(0.01, epsilon=1e-3),
    "rmsprop": lambda: tf1.train.RMSPropOptimizer(0.01, momentum=0.9),
    "centered": lambda: tf1.train.RMSPropOptimizer(0.01, centered=True),
    "ftrl": lambda: tf1.train.FtrlOptimizer(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
    ),
    "ftrl_shrinkage": lambda: tf1.train.FtrlOptimizer(
        0.1, l2_shrinkage_regularization_strength=0.1
    ),
    "adadelta": lambda: tf1.train.AdadeltaOptimizer(1.0),
}


def tf1_graph(optimizer, dtype: str, shapes=SHAPES):
    graph = tf1.Graph()
    with graph.as_default():
        loss = 0.0
        for i, shape in enumerate(shapes):
            var = tf1.get_variable(
                f"v{i}", initializer=values(shape, i, dtype), use_resource=True
            )
            target = tf.constant(values(shape, 100 + i, dtype))
            loss += tf.reduce_sum(tf.cast(tf.sin(var - target) * var, tf.float64))
        train = optimizer().minimize(loss)
    return graph, train


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TF1_OPTIMIZERS)
def test_training_ops(name, dtype):
    if dtype == "bfloat16" and name in ("adadelta", "ftrl", "ftrl_shrinkage"):
        pytest.skip("the optimizer has no bfloat16")
    graph, train = tf1_graph(TF1_OPTIMIZERS[name], dtype)
    before = picasso_tf.reports()
    ours = run(graph, train, options=STRICT, steps=5)
    stock = run(graph, train, steps=5)
    assert_same(ours[1], stock[1])
    new_packs(before)


# -- Keras: chains of ops -------------------------------------------------------

KERAS_OPTIMIZERS = {
    "SGD": {},
    "SGD momentum": {"momentum": 0.9},
    "SGD nesterov": {"momentum": 0.9, "nesterov": True},
    "Adagrad": {},
    "Adam": {},
    "Adam amsgrad": {"amsgrad": True},
    "AdamW": {"weight_decay": 0.01},
    "RMSprop": {},
    "RMSprop centered": {"centered": True, "momentum": 0.9},
    "Ftrl": {"l1_regularization_strength": 0.01},
    "Adadelta": {},
    "Adamax": {},
    "Nadam": {},
    "Adam ema": {"use_ema": True},
    "Adam decay": {"weight_decay": 0.01},
    "Adam clipnorm": {"clipnorm": 0.5},
    "Adam clipvalue": {"clipvalue": 0.05},
    "Adagrad global_clipnorm": {"global_clipnorm": 0.5},
}


def keras_run(
    make_optimizer, options, dtype="float32", shapes=SHAPES, steps=5, keras=tf.keras
):
    """Variables and slots after some steps."""
    variables = [
        tf.Variable(values(shape, i, dtype), name=f"v{i}")
        for i, shape in enumerate(shapes)
    ]
    plain = KERAS_2 or keras is keras_2  # variables are of TensorFlow
    if not plain:
        variables = [
            keras.Variable(var, dtype=dtype, name=f"k{i}")
            for i, var in enumerate(variables)
        ]
    targets = [
        tf.constant(values(shape, 100 + i, dtype)) for i, shape in enumerate(shapes)
    ]
    optimizer = make_optimizer()
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = 0.0
            for var, target in zip(variables, targets, strict=True):
                value = tf.convert_to_tensor(var)
                loss += tf.reduce_sum(
                    tf.cast(tf.sin(value - target) * value, tf.float64)
                )
        handles = variables if plain else [var.value for var in variables]
        gradients = tape.gradient(loss, handles)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    losses = []
    if options is None:
        losses = [step() for _ in range(steps)]
    else:
        with picasso_tf.enabled(options):
            losses = [step() for _ in range(steps)]
    state = optimizer.variables
    state = state() if callable(state) else state
    return [np.asarray(x) for x in [*losses, *variables, *state]]


@pytest.mark.parametrize("name", KERAS_OPTIMIZERS)
def test_keras(name):
    arguments = KERAS_OPTIMIZERS[name]
    kind = name.split()[0]

    def make():
        return getattr(tf.keras.optimizers, kind)(**arguments)

    stock = keras_run(make, None)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT)
    assert_same(ours, stock)
    new_packs(before)


@needs_keras_2
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop", "Ftrl"])
def test_legacy_keras(name):
    def make():
        optimizer = getattr(keras_2.optimizers.legacy, name)()
        optimizer.build = lambda variables: None
        return optimizer

    stock = keras_run(make, None, keras=keras_2)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT, keras=keras_2)
    assert_same(ours, stock)
    if name != "Ftrl":  # its hyperparameters are variables
        new_packs(before)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam", "RMSprop"])
def test_keras_types(name, dtype):
    def make():
        return getattr(tf.keras.optimizers, name)(0.01)

    stock = keras_run(make, None, dtype)
    before = picasso_tf.reports()
    ours = keras_run(make, STRICT, dtype)
    assert_same(ours, stock)
    new_packs(before)


# -- shapes, memory and order ----------------------------------------------------


def by_hand(count: int, body, options, steps=3, shape=(5, 3)):
    """`body(i, v, m, g)` per pair of variables in one tf.function; their values."""
    pairs = [
        (tf.Variable(values(shape, i)), tf.Variable(values(shape, 50 + i)))
        for i in range(count)
    ]

    @tf.function
    def step(g):
        return [body(i, v, m, g * float(i + 2)) for i, (v, m) in enumerate(pairs)]

    def all_steps():
        return [step(tf.constant(values(shape, 90 + s))) for s in range(steps)]

    if options is None:
        results = all_steps()
    else:
        with picasso_tf.enabled(options):
            results = all_steps()
    results = [x for x in tf.nest.flatten(results) if x is not None]
    return [np.asarray(x) for x in [*results, *(x for pair in pairs for x in pair)]]


def momentum(i, v, m, g):
    m.assign_add(0.5 * (g - m))
    v.assign_sub(0.1 * m / (tf.sqrt(tf.abs(m)) + 1.0))


def reads_between(i, v, m, g):
    m.assign_add(g)
    before = v + 0.0  # the old value, used behind the update
    v.assign_sub(m * m)
    m.assign(before * v)


def broadcasts(i, v, m, g):
    m.assign_add(g[:1] * g[:, :1])
    v.assign_sub(m * g[0] + g[:, 1:2])


def result_is_used(i, v, m, g):
    m.assign_add(g)
    v.assign_sub(m * 0.1)
    return tf.reduce_sum(v) + tf.reduce_sum(m)


def scalars(i, v, m, g):
    scale = tf.pow(tf.reduce_mean(g) * 0.0 + 0.9, tf.constant(3.0))
    m.assign(m * scale + g)
    v.assign_sub(tf.maximum(m, -0.5) * tf.math.rsqrt(scale + 1.0))


@pytest.mark.parametrize(
    "body", [momentum, reads_between, broadcasts, result_is_used, scalars]
)
def test_forms(body):
    stock = by_hand(3, body, None)
    before = picasso_tf.reports()
    ours = by_hand(3, body, STRICT)
    assert_same(ours, stock)
    new_packs(before)


def test_operands_in_any_order():
    """TensorFlow sorts those of sums and products by their names."""

    def body(i, v, m, g):
        with tf.name_scope("az"[i % 2]):
            rate = tf.exp(tf.reduce_mean(g) * 0.01)
        with tf.name_scope("k"):
            m.assign_add(rate * g + v)
            v.assign_sub(m * rate)

    stock = by_hand(4, body, None)
    before = picasso_tf.reports()
    ours = by_hand(4, body, STRICT)
    assert_same(ours, stock)
    ((_, pack),) = new_packs(before)
    assert len(pack.members) == 4


def test_others_work_on_it_in_between():
    """A path leaves the chain and comes back: it stays as it is, with a reason."""

    def body(i, v, m, g):
        m.assign_add(g)
        v.assign_sub(tf.cumsum(m) * 0.1 + m.read_value())

    stock = by_hand(2, body, None)
    before = {id(report) for report in picasso_tf.reports()}
    ours = by_hand(2, body, STRICT)
    assert_same(ours, stock)
    assert [r for r in picasso_tf.reports() if id(r) not in before]


def test_one_variable_twice():
    """Two handles of one variable: its members run one after the other."""
    shape = (4, 3)

    def run_with(options):
        a, b = tf.Variable(values(shape, 1)), tf.Variable(values(shape, 2))
        assign_add = tf.raw_ops.AssignAddVariableOp

        @tf.function
        def step(x, y):
            for handle in (x, y):
                assign_add(resource=handle, value=tf.ones(shape) * 3.0)
            return tf.constant(0)

        with picasso_tf.enabled(options) if options else tf.init_scope():
            step(a.handle, b.handle)
            step(a.handle, a.handle)
        return [a.numpy(), b.numpy()]

    assert_same(run_with(STRICT), run_with(None))


def test_copy_on_read():
    """Variables that somebody gathers from, and whose old value somebody holds."""

    def body(i, v, m, g):
        rows = tf.gather(v, [0, 2])
        old = v.read_value()
        m.assign_add(g)
        v.assign_sub(m * 0.1)
        return tf.reduce_sum(rows), old

    stock = by_hand(2, body, None)
    before = picasso_tf.reports()
    ours = by_hand(2, body, STRICT)
    assert_same(ours, stock)
    new_packs(before)


def test_gradient_accumulation():
    """Updates within tf.cond are packed within their branch."""

    def run_with(options):
        pairs = [
            (tf.Variable(values((7,), i)), tf.Variable(tf.zeros(7))) for i in range(3)
        ]
        count = tf.Variable(0)

        @tf.function
        def step(x):
            count.assign_add(1)
            for v, total in pairs:
                total.assign_add(tf.sin(v * x))
            if count % 2 == 0:
                for v, total in pairs:
                    v.assign_sub(0.1 * total)
                    total.assign(total * 0.0)

        with picasso_tf.enabled(options) if options else tf.init_scope():
            for s in range(5):
                step(tf.constant(float(s)))
        return [x.numpy() for pair in pairs for x in pair]

    stock = run_with(None)
    before = picasso_tf.reports()
    ours = run_with(STRICT)
    assert_same(ours, stock)
    runs = {r.executions(pack)[1] for r, pack in new_packs(before)}
    assert runs == {5, 2}


def test_steps_per_execution():
    def fit(options):
        tf.keras.utils.set_random_seed(3)
        model = tf.keras.Sequential(
            [tf.keras.Input((4,)), tf.keras.layers.Dense(5), tf.keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", steps_per_execution=4, jit_compile=False)
        x, y = values((64, 4), 1), values((64, 1), 2)
        if options is None:
            model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        else:
            with picasso_tf.enabled(options):
                model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    stock = fit(None)
    before = picasso_tf.reports()
    ours = fit(STRICT)
    assert_same(ours, stock)
    new_packs(before)


def test_fetches_in_the_middle():
    graph = tf1.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [4])
        fetches = []
        for i in range(3):
            v = tf1.get_variable(
                f"v{i}", initializer=values((4,), i), use_resource=True
            )
            squared = tf.square(x - v)
            assigned = v.assign_sub(tf.sqrt(squared) * 0.1, read_value=False)
            fetches.append((squared if i == 1 else x, assigned))
    feed = {x: values((4,), 9)}
    before = picasso_tf.reports()
    ours = run(graph, fetches, feed, STRICT, steps=3)
    stock = run(graph, fetches, feed, steps=3)
    assert_same(ours[1], stock[1])
    assert_same([a for a, _ in ours[0]], [a for a, _ in stock[0]])
    new_packs(before)


def test_threads():
    """Threads share variables; integers add up to the same in any order."""
    variables = [tf.Variable(tf.zeros(1000)) for _ in range(4)]

    @tf.function
    def step(x):
        for v in variables:
            v.assign_add(x + x)

    with picasso_tf.enabled(STRICT):
        step(tf.ones(1000))
        threads = [
            threading.Thread(target=lambda: [step(tf.ones(1000)) for _ in range(50)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for v in variables:
        assert (v.numpy() == 402.0).all()


def test_uninitialized_variable_is_an_error():
    graph = tf1.Graph()
    with graph.as_default():
        updates = [
            v.assign_sub(v * 0.5, read_value=False)
            for v in (table(f"t{i}") for i in range(3))
        ]
        config = picasso_tf.session_config(options=STRICT)
        with (
            tf1.Session(config=config) as session,
            pytest.raises(tf.errors.FailedPreconditionError, match="nitialized"),
        ):
            session.run(updates)


def test_exclude():
    graph, train = tf1_graph(TF1_OPTIMIZERS["adagrad"], "float32", [(3,)] * 4)
    before = {id(report) for report in picasso_tf.reports()}
    run(graph, train, options=picasso_tf.Options(strict=True, exclude=["v[01]$"]))
    reports = [r for r in picasso_tf.reports() if id(r) not in before]
    packs = dense_packs(reports)
    assert [len(pack.members) for _, pack in packs] == [2]
    reasons = {reason for report in reports for reason in report.reasons()}
    assert "excluded by Options.exclude" in reasons


# -- sums of gradient rows and L2 losses -------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_dtype", ["int32", "int64"])
def test_segment_sums(dtype, ids_dtype):
    """Negative ids drop their row; sums in front are taken over, in the order in
    which AddN adds: from more than nine on, that is by eights."""
    graph = tf1.Graph()
    rng = np.random.default_rng(0)
    with graph.as_default():
        out, feed = [], {}
        for i, (rows, dim) in enumerate([(7, 3), (5000, 16), (1, 1), (40, 8)]):
            data = [
                tf1.placeholder(dtype, [None, dim]) for _ in range((1, 2, 9, 26)[i])
            ]
            ids = tf1.placeholder(ids_dtype, [None, 2])
            for k, part in enumerate(data):
                feed[part] = values((60, dim), 100 * i + k, dtype)
            feed[ids] = rng.integers(-1, rows, (30, 2))
            total = tf.add_n(list(map(tf.abs, data))) if len(data) > 1 else data[0]
            summed = tf.math.unsorted_segment_sum(total, tf.reshape(ids, [-1]), rows)
            out.append(tf.identity(summed + summed))
    report = check(graph, out, feed)
    assert report.ops_after.get("AddN", 0) == 0
    assert [pack.kind for pack in report.packs] == ["segment sum"]


def addends(kind: str, made: list[tf.Tensor]) -> list[tf.Tensor]:
    """What is added, of three tensors."""
    a, b, c = made
    return {
        "as it stands": [a, b, c],
        "one of them twice": [a, a, c],
        "last is free": [a, a, b, b, c],
        "a constant first": [tf.constant(values((5, 3), 9)), b, c],
    }[kind]


@pytest.mark.parametrize(
    "kind", ["as it stands", "one of them twice", "last is free", "a constant first"]
)
def test_order_of_sums(kind):
    """AddN lets its first operand change places with the first one whose memory
    nobody else holds, which it writes over."""

    def body(i, v, m, g):
        made = [tf.exp(g * s) for s in (0.3, 0.7, 1.1)]
        v.assign_sub(0.1 * tf.add_n(addends(kind, made)))

    stock = by_hand(3, body, None)
    ours = by_hand(3, body, STRICT)
    assert_same(ours, stock)


def test_sums_whose_order_is_left_to_chance_stay():
    graph = tf1.Graph()
    with graph.as_default():
        out, feed = [], {}
        for i in range(2):
            data = [tf1.placeholder(tf.float32, [None, 3]) for _ in range(3)]
            feed |= {x: values((4, 3), 10 * i + k) for k, x in enumerate(data)}
            made = [tf.exp(x) for x in data]
            ids = tf.constant([0, 2, 0, 1])
            total = tf.math.unsorted_segment_sum(tf.add_n(made), ids, 3)
            out += [total, tf.nn.softmax(made[0])]
    report = check(graph, out, feed)
    assert report.ops_after["AddN"] == 2


def test_segment_sum_with_a_bad_id():
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None])
        data = tf1.placeholder(tf.float32, [None, 2])
        out = [tf.math.unsorted_segment_sum(data * s, ids, 5) for s in (1.0, 2.0)]
        config = picasso_tf.session_config(options=STRICT)
        with (
            tf1.Session(config=config) as session,
            pytest.raises(tf.errors.InvalidArgumentError, match="= 5 is out of range"),
        ):
            session.run(out, {ids: [0, 5], data: np.ones((2, 2))})


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_l2_losses(dtype):
    """Bits depend on the number of threads for large tensors, as in TensorFlow."""
    graph = tf1.Graph()
    sizes = [1, 7, 100, 8_000, 60_000, 300_000, 1_500_000]
    with graph.as_default():
        feed, out = {}, []
        for i, size in enumerate(sizes):
            x = tf1.placeholder(dtype, [None])
            feed[x] = values((size,), i, dtype) / np.asarray(8, dtype)
            loss = tf.nn.l2_loss(x)
            out.append(loss * 0.01 if i % 2 else loss)
    report = check(graph, out, feed)
    assert [pack.kind for pack in report.packs] == ["L2 term"]
    assert report.ops_after.get("Mul", 0) == 0


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("scaled", [False, True])
def test_sums_of_l2_losses(dtype, scaled):
    """AddNs of 2 to 20 losses, in TensorFlow's order. One with other inputs stays, and
    so does one whose losses have other readers, as stock's order is not sure then."""
    graph = tf1.Graph()
    with graph.as_default():
        feed, out = {}, []

        def losses(count):
            made = []
            for i in range(count):
                x = tf1.placeholder(dtype, [None])
                seed = len(feed)
                feed[x] = values((30 + i,), seed, dtype) / np.asarray(8, dtype)
                loss = tf.nn.l2_loss(x)
                made.append(loss * (0.01 + i) if scaled else loss)
            return made

        out += [tf.add_n(losses(n)) for n in (*range(2, 12), 16, 17, 18, 20)]
        other = tf1.placeholder(dtype, [])
        feed[other] = np.asarray(0.3, dtype)
        shared = losses(2)
        out += [tf.add_n([*losses(2), other]), tf.add_n(shared), shared[1]]
        out = [tf.identity(o) for o in out]
    report = check(graph, out, feed)
    assert [pack.kind for pack in report.packs] == ["L2 term"]
    assert report.packs[0].detail == "14 sums of them"
    assert report.ops_after["AddN"] == 2, report.ops_after


@pytest.mark.parametrize("fetched", [0, 1, 2])
def test_sums_of_l2_losses_that_are_fetched(fetched):
    graph = tf1.Graph()
    with graph.as_default():
        xs = [tf1.placeholder(tf.float32, [None]) for _ in range(12)]
        feed = {x: np.linspace(-1, i, 9) for i, x in enumerate(xs)}
        losses = [0.1 * tf.nn.l2_loss(x) for x in xs]
        total = tf.add_n(losses)
        with tf.control_dependencies([total]):
            after = tf.constant(2.0) * losses[1]
        out = [[total], [total, after], [total, losses[0]]][fetched]
    report = check(graph, out, feed)
    assert report.packs[0].detail == ("" if fetched else "1 sums of them")
    # What is fed is not computed.
    ours = run(graph, after, feed | {total: 5.0}, STRICT)
    assert_same(ours, run(graph, after, feed | {total: 5.0}))


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_tables_with_l2(name):
    """Lookups in dense-gradient tables, as DeepCTR's regularizers make them."""
    graph = tf1.Graph()
    with graph.as_default():
        ids = tf1.placeholder(tf.int64, [None, 3])
        tables = [table(f"t{i}", 50, 4) for i in range(3)]
        rows = tf.concat(
            [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)], 1
        )
        loss = tf.reduce_mean(tf.tanh(rows) ** 2)
        loss += tf.add_n([0.01 * tf.nn.l2_loss(t) for t in tables])
        train = TF1_OPTIMIZERS[name]().minimize(loss)
    feed = {ids: np.random.default_rng(1).integers(0, 50, (64, 3))}
    before = picasso_tf.reports()
    ours = run(graph, [loss, train], feed, STRICT, steps=5)
    stock = run(graph, [loss, train], feed, steps=5)
    assert_same([ours[0][0], ours[1]], [stock[0][0], stock[1]])
    new_packs(before)
    kinds = [pack.kind for pack in picasso_tf.last_report().packs]
    assert {"lookup", "segment sum", "L2 term", "dense update"} <= set(kinds)
    details = [p.detail for p in picasso_tf.last_report().packs if p.kind == "L2 term"]
    assert details == ["1 sums of them"]


# -- the packed graph ------------------------------------------------------------


def test_golden():
    """What the passes behind TensorFlow's optimizers make of two momentum updates;
    a second run changes nothing, and the same graph gives the same bytes."""
    graph = tf1.Graph()
    with graph.as_default():
        gradient = tf1.placeholder(tf.float32, [4], name="gradient")
        done = []
        for name in "ab":
            with tf.name_scope(name):
                v = tf1.get_variable(f"v{name}", [4], use_resource=True)
                m = tf1.get_variable(f"m{name}", [4], use_resource=True)
                step = m.assign_add((gradient - m) * 0.1, read_value=False)
                with tf.control_dependencies([step]):
                    update = 0.5 * m.read_value() / (tf.sqrt(tf.abs(m)) + 1e-3)
                    done.append(v.assign_sub(update, read_value=False))
        tf.group(*done, name="train")
    nodes = graph.as_graph_def().node
    wanted = {"preserve": ["train"], "roots": [{"train"}]}

    def packed(before):
        before = [node.node_def for node in prune(before, ["train"])]
        for node in before:
            for key in ("_class", "debug_name"):
                node.attr.pop(key, None)
        return rewrite_nodes(before, STRICT, "graph", wanted, PASSES_AFTER)

    outcome = packed(nodes)
    text = spell(graph_def_of(outcome.nodes), GOLDEN_ATTRS)
    assert text == spell(graph_def_of(packed(nodes).nodes), GOLDEN_ATTRS)
    assert packed(outcome.nodes).nodes is None
    path = pathlib.Path(__file__).parent / "golden" / "dense_updates.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and has been written: read it")
    assert text == path.read_text()
