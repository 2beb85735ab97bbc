"""Dot interactions and their gradients."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from graphs import ops_of, spell, tf1
from helpers_interactions import (
    STRICT,
    assert_close,
    dot_interaction,
    numpy_dot,
    rows_of,
    run_both,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import picasso_tf
from picasso_tf import ops

GOLDEN = pathlib.Path(__file__).parent / "golden"
KINDS = ["dot interaction", "dot interaction gradient"]
SPELLINGS = [
    {"spelling": spelling, "self_interaction": own, "full": full, "mask": mask}
    for spelling, own, full, mask in itertools.product(
        ("reshape", "stack", "concat"), (False, True), (False, True), ("ones_like",)
    )
]
SPELLINGS += [{"full": True, "mask": "matrix", "self_interaction": True}]


def build(fields, dim, batch=None, dtype=tf.float32, gradient=True, **spelling):
    """(graph, fetches, placeholders) of an interaction, and of its gradient."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf1.placeholder(dtype, [batch, dim]) for _ in range(fields)]
        # As where they come from: fed tensors would be a case of its own.
        values = [tf.identity(x) * 1 for x in inputs]
        kept = dot_interaction(values, **spelling)
        fetches = [kept]
        if gradient:
            weights = tf.constant(np.linspace(-1, 1, kept.shape[1] or 1), dtype)
            loss = tf.reduce_sum(tf.sin(kept) * weights)
            fetches += tf1.gradients(loss, inputs)
    return graph, fetches, inputs


def feed(inputs, batch, seed=0):
    random = np.random.default_rng(seed)
    return {
        x: random.normal(size=[batch, *x.shape[1:]]).astype(x.dtype.as_numpy_dtype)
        for x in inputs
    }


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
@pytest.mark.parametrize("batch", [None, 3])
def test_spellings(spelling, batch):
    graph, fetches, inputs = build(5, 8, batch, **spelling)
    fed = feed(inputs, 3)
    ours, stock, packs = run_both(graph, fetches, fed)
    assert_close(ours, stock)
    assert [pack.kind for pack in packs] == KINDS, str(picasso_tf.last_report())
    left = picasso_tf.last_report().ops_after
    assert not left.keys() & {"BatchMatMulV2", "MatrixBandPart", "Where", "ConcatV2"}
    x = np.stack(list(fed.values()), 1)
    wanted = numpy_dot(x, spelling["self_interaction"], spelling["full"])
    assert np.abs(ours[0][0] - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("batch", [0, 1, 7, 130])
def test_batches_and_types(batch, dtype):
    graph, fetches, inputs = build(27, 16, dtype=dtype)
    ours, stock, packs = run_both(graph, fetches, feed(inputs, batch))
    assert_close(ours, stock)
    assert [pack.kind for pack in packs] == KINDS


def test_finite_differences():
    graph, (kept, *grads), inputs = build(4, 3, dtype=tf.float64, self_interaction=True)
    with graph.as_default():
        weights = tf.constant(np.linspace(-1, 1, kept.shape[1]), tf.float64)
        loss = tf.reduce_sum(tf.sin(kept) * weights)
    fed = feed(inputs, 2)
    config = picasso_tf.session_config(options=STRICT)
    with tf1.Session(graph=graph, config=config) as session:
        exact = session.run(grads, fed)
        assert picasso_tf.last_report().changed
        for x, grad in zip(inputs, exact, strict=True):
            for at in np.ndindex(grad.shape):
                sides = []
                for step in (1e-5, -1e-5):
                    moved = dict(fed)
                    moved[x] = fed[x].copy()
                    moved[x][at] += step
                    sides.append(session.run(loss, moved))
                assert abs((sides[0] - sides[1]) / 2e-5 - grad[at]) < 1e-8


def test_inference_has_no_gradient_op():
    graph, fetches, inputs = build(5, 8, gradient=False)
    ours, stock, packs = run_both(graph, fetches, feed(inputs, 4))
    assert_close(ours, stock)
    assert [pack.kind for pack in packs] == KINDS[:1]


def dlrm(optimizer, dim=4, count=6, batch=9):
    """A small DLRM: (graph, fetches)."""
    graph = tf.Graph()
    random = np.random.default_rng(1)
    with graph.as_default():

        def weights(name, *shape):
            value = random.normal(size=shape).astype(np.float32)
            return tf1.get_variable(name, initializer=value, use_resource=True)

        dense = tf.constant(random.normal(size=[batch, 5]).astype(np.float32))
        bottom = tf.nn.relu(tf.matmul(dense, weights("bottom", 5, dim)))
        fields = [bottom]
        for i in range(count):
            ids = tf.constant(random.integers(0, 10, batch))
            fields.append(tf.nn.embedding_lookup(weights(f"t{i}", 10, dim), ids))
        kept = dot_interaction(fields)
        top = tf.concat([bottom, kept], 1)
        logits = tf.matmul(top, weights("top", top.shape[1], 1))
        loss = tf.reduce_mean(tf.nn.sigmoid(logits))
        return graph, [kept, loss, optimizer().minimize(loss)]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: tf1.train.AdagradOptimizer(0.1),
        lambda: tf1.train.GradientDescentOptimizer(0.1),
    ],
)
def test_dlrm(optimizer):
    graph, fetches = dlrm(optimizer)
    # Not the operation, which returns None.
    ours, stock, packs = run_both(graph, fetches, steps=3)
    assert_close((ours[0][:2], ours[1]), (stock[0][:2], stock[1]), 1e-5)
    kinds = [pack.kind for pack in packs]
    assert {"lookup", "update", *KINDS} <= set(kinds), kinds
    left = picasso_tf.last_report().ops_after
    assert not left.keys() & {"BatchMatMulV2", "Where", "UnsortedSegmentSum"}


def test_function():
    table = tf.Variable(np.random.default_rng(0).normal(size=[20, 8]), dtype=tf.float32)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, ids)
            fields = tf.unstack(rows, axis=1)
            loss = tf.reduce_sum(tf.sin(dot_interaction(fields, spelling="stack")))
        return loss, tf.convert_to_tensor(tape.gradient(loss, table))

    ids = tf.constant(np.arange(15).reshape(3, 5) % 20)
    stock = [x.numpy() for x in step(ids)]
    with picasso_tf.enabled(STRICT):
        ours = [x.numpy() for x in step(ids)]
        kinds = [pack.kind for pack in picasso_tf.last_report().packs]
    assert_close(ours, stock)
    assert kinds[-2:] == KINDS


def rewritten(graph, fetches):
    names = [x.name for x in fetches]
    return picasso_tf.rewrite(graph.as_graph_def(), names, STRICT)


@pytest.mark.parametrize("spelling", ["reshape", "stack"])
def test_fields_are_read_in_place(spelling):
    graph, fetches, _ = build(5, 8, spelling=spelling)
    graph_def, _ = rewritten(graph, fetches)
    counts = ops_of(graph_def)
    assert counts["PicassoDotInteraction"] == counts["PicassoDotInteractionGrad"] == 1
    assert counts["ConcatV2"] == counts["Pack"] == 0
    dot = next(n for n in graph_def.node if n.op == "PicassoDotInteraction")
    assert len(dot.input) == 5


def test_golden():
    graph, fetches, _ = build(3, 4)
    graph_def, _ = rewritten(graph, fetches[:1])
    text = spell(graph_def, ("fields", "dim", "self_interaction", "full", "flat"))
    path = GOLDEN / "dot_interaction.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and has been written: read it")
    assert text == path.read_text()


def test_a_second_rewrite_changes_nothing():
    graph, fetches, _ = build(5, 8)
    once, _ = rewritten(graph, fetches)
    twice, report = picasso_tf.rewrite(once, [x.name for x in fetches], STRICT)
    assert once == twice and not report.changed


def reason(build_more):
    """Why an interaction is left alone; results must not change."""
    graph = tf.Graph()
    with graph.as_default():
        inputs = [tf1.placeholder(tf.float32, [None, 4]) for _ in range(3)]
        fetches = build_more([tf.identity(x) * 1 for x in inputs])
    before = picasso_tf.reports()[-1:]
    ours, stock, packs = run_both(graph, fetches, feed(inputs, 2))
    assert_close(ours, stock, 0)
    assert not packs
    report = picasso_tf.reports()[-1]
    assert [report] != before
    return list(report.reasons())


def _upper(fields):
    rows = rows_of(fields, "reshape")
    products = tf.matmul(rows, rows, transpose_b=True)
    upper = tf.linalg.band_part(tf.ones_like(products), 0, -1)
    return [tf.reshape(tf.boolean_mask(products, upper), [tf.shape(rows)[0], 6])]


def _products_too(fields):
    kept = dot_interaction(fields)
    (products,) = (
        op.outputs[0]
        for op in kept.graph.get_operations()
        if op.type == "BatchMatMulV2"
    )
    return [kept, products * 2]


def _half(fields):
    return [dot_interaction([tf.cast(x, tf.float16) for x in fields], full=True)]


@pytest.mark.parametrize(
    ("build_more", "expected"),
    [
        (_upper, "it keeps other products than those below the diagonal"),
        (_products_too, "its products, or their shape, are read by others, too"),
        (_half, "a dot interaction of another type, which stock sums in its own way"),
    ],
)
def test_left_alone(build_more, expected):
    assert expected in reason(build_more)


def _kept_of(rows, count):
    products = tf.matmul(rows, rows, transpose_b=True)
    ones = tf.ones_like(products)
    lower = ones - tf.linalg.band_part(ones, 0, -1)
    kept = tf.boolean_mask(products, lower)
    return tf.reshape(kept, [tf.shape(rows)[0], count * (count - 1) // 2])


@pytest.mark.parametrize("made", ["rows", "stack"])
def test_fields_that_were_of_another_shape(made):
    """The gradient of the Reshape in front is then more than one of the fields."""
    graph = tf.Graph()
    with graph.as_default():
        if made == "rows":  # [batch * fields, dim]
            inputs = [tf1.placeholder(tf.float32, [None, 4])]
            hidden = tf.tanh(inputs[0])
        else:
            inputs = [tf1.placeholder(tf.float32, [None, 4]) for _ in range(3)]
            hidden = tf.stack([tf.tanh(x) for x in inputs], 1)
        kept = _kept_of(tf.reshape(hidden, [-1, 3, 4]), 3)
        fetches = [kept, *tf1.gradients(tf.reduce_sum(tf.sin(kept)), inputs)]
    ours, stock, packs = run_both(graph, fetches, feed(inputs, 6))
    assert_close(ours, stock)
    assert packs


def test_a_mask_that_is_computed_from_the_model():
    """Whoever looks for masks must not walk through all that a model computes."""
    graph = tf.Graph()
    with graph.as_default():
        x = first = tf1.placeholder(tf.float32, [None, 3, 4])
        for _ in range(40):
            x = x + tf.tanh(x)  # each layer reads the one before twice
        products = tf.matmul(x, x, transpose_b=True)
        kept = tf.where(products > 0.5, products, tf.zeros_like(products))
        kept = tf.reshape(kept, [-1, 9])
    ours, stock, packs = run_both(graph, [kept], {first: np.ones([2, 3, 4])})
    assert_close(ours, stock, 0)
    assert not packs


def test_exact_leaves_them_alone():
    graph, fetches, _ = build(5, 8)
    options = picasso_tf.Options(strict=True)
    graph_def = graph.as_graph_def()
    _, report = picasso_tf.rewrite(graph_def, [fetches[0].name], options)
    assert not report.changed
    (found,) = report.reasons()
    assert found == (
        "its sums would be rounded in another order; Options(exact=False) packs it"
    )


def test_attention_is_none():
    """Nothing to report: scores of a sequence with itself."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [None, 5, 4])
        scores = tf.nn.softmax(tf.matmul(x, x, transpose_b=True))
        result = tf.matmul(scores, x)
    graph_def = graph.as_graph_def()
    _, report = picasso_tf.rewrite(graph_def, [result.name], STRICT)
    assert not report.changed and not report.skipped


def test_excess_reader_of_the_shape_keeps_it():
    """A node that reads the shape of the products after all."""
    graph, fetches, inputs = build(3, 4)
    with graph.as_default():
        (product,) = (
            op.outputs[0]
            for op in graph.get_operations()
            if op.type == "BatchMatMulV2" and "grad" not in op.name
        )
        fetches.append(tf.shape(product) * 2)
    ours, stock, packs = run_both(graph, fetches, feed(inputs, 2))
    assert_close(ours, stock, 0)
    assert not packs


# -- the ops themselves -------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    count=st.integers(1, 40),
    dim=st.integers(1, 40),
    batch=st.sampled_from([0, 1, 2, 5]),
    flags=st.tuples(*[st.booleans()] * 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    cut=st.integers(0, 40),
)
def test_kernels_of_all_vectors(count, dim, batch, flags, dtype, cut):
    module, own, full, flat = ops.load_ops(), *flags
    random = np.random.default_rng(count * 41 + dim)
    x = random.normal(size=[batch, count, dim]).astype(dtype)
    cut = min(cut, count - 1)
    inputs = [x] if cut == 0 else [x[:, :cut].reshape(batch, cut * dim), x[:, cut:]]
    attrs = {
        "fields": count,
        "dim": dim,
        "self_interaction": own,
        "full": full,
        "pack": "test",
    }
    wanted = numpy_dot(x, own, full)
    grad = random.normal(size=wanted.shape).astype(dtype)
    square = np.zeros([batch, count, count])
    lower = np.tril(np.ones([count] * 2, bool), 0 if own else -1)
    if full:
        square = np.where(lower, grad.reshape(square.shape), 0).astype(np.float64)
    else:
        square[:, lower] = grad
    wanted_grad = np.einsum("bij,bjk->bik", square + square.transpose(0, 2, 1), x)
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    scale = max(np.abs(x).max(initial=0) ** 2 * dim, 1) * tolerance
    library = ops.native()
    for kind in (b"avx", b"avx2", b"avx512"):
        if not library.PicassoUseDotKernels(kind):
            continue
        out = module.picasso_dot_interaction(inputs, **attrs).numpy()
        assert out.shape == wanted.shape and out.dtype == dtype
        assert np.abs(out - wanted).max(initial=0) <= scale
        out = module.picasso_dot_interaction_grad(grad, inputs, flat=flat, **attrs)
        shape = (batch, count * dim) if flat else (batch, count, dim)
        assert out.shape == shape
        wrong = np.abs(out.numpy().reshape(wanted_grad.shape) - wanted_grad)
        assert wrong.max(initial=0) <= scale * count


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([[2, 5]], "Fields of 4 elements in a tensor of shape"),
        ([[2, 4]], "There are 1 fields, expected 3"),
        ([[2, 8], [3, 4]], "Fields of unequal batches"),
    ],
)
def test_wrong_inputs(shapes, message):
    module = ops.load_ops()
    inputs = [np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        module.picasso_dot_interaction(inputs, fields=3, dim=4, pack="test")
    with pytest.raises(tf.errors.InvalidArgumentError, match="The gradient of"):
        module.picasso_dot_interaction_grad(
            np.zeros([2, 4], np.float32),
            [np.zeros([2, 12], np.float32)],
            fields=3,
            dim=4,
            pack="test",
        )


def test_the_op_has_a_gradient():
    """Converted SavedModels are trained further."""
    module = ops.load_ops()
    x = tf.constant(np.random.default_rng(0).normal(size=[3, 5, 4]))

    def dot(x):
        attrs = {"fields": 5, "dim": 4, "self_interaction": True, "pack": "test"}
        return module.picasso_dot_interaction([x[:, :2], x[:, 2:]], **attrs)

    theory, numeric = tf.test.compute_gradient(dot, [x])
    np.testing.assert_allclose(theory[0], numeric[0], atol=1e-8)


class Layer(tf.keras.layers.Layer):
    """As in TensorFlow Recommenders: a list of fields in, their products out."""

    def __init__(self, full):
        super().__init__()
        self.full = full

    def call(self, fields):
        return dot_interaction(fields, full=self.full)

    def compute_output_shape(self, shapes):
        count = len(shapes)
        width = count * count if self.full else count * (count - 1) // 2
        return (shapes[0][0], width)


def keras_losses(full: bool):
    """Of a few epochs of a small DLRM, by fit."""
    tf.keras.utils.set_random_seed(5)
    dense = tf.keras.Input([3])
    bottom = tf.keras.layers.Dense(4, "relu")(dense)
    inputs, fields = [dense], [bottom]
    for _ in range(5):
        inputs.append(tf.keras.Input([1], dtype="int32"))
        rows = tf.keras.layers.Embedding(10, 4)(inputs[-1])
        fields.append(tf.keras.layers.Flatten()(rows))
    kept = Layer(full)(fields)
    top = tf.keras.layers.Concatenate()([bottom, kept])
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(top))
    model.compile("adam", "mse", jit_compile=False)
    random = np.random.default_rng(0)
    x = [random.normal(size=[40, 3]).astype(np.float32)]
    x += [random.integers(0, 10, [40, 1]) for _ in range(5)]
    y = random.normal(size=[40, 1]).astype(np.float32)
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


@pytest.mark.parametrize("full", [False, True])
def test_keras(full):
    stock = keras_losses(full)
    with picasso_tf.enabled(STRICT):
        ours = keras_losses(full)
        kinds = [pack.kind for pack in picasso_tf.last_report().packs]
    assert set(KINDS) <= set(kinds), str(picasso_tf.last_report())
    np.testing.assert_allclose(ours, stock, rtol=1e-5)
