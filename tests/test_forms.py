"""Every form of tests/forms.py: as stock, to the bit.

Of all combinations of form, types and optimizer, a cover is run: each form meets
all of its types, and optimizers take turns. All combinations, for hours, by
`pytest tests/test_forms.py --all-forms`.
"""

import pytest
import tensorflow as tf
from forms import FORMS
from forms_columns import feature
from forms_data import STEPS, Batch, tensor
from forms_keras import (
    KERAS_2_FORMS,
    KERAS_2_OPTIMIZERS,
    KERAS_3_FORMS,
    KERAS_3_OPTIMIZERS,
    KERAS_3_OPTIONS,
    KerasModel,
    optimizer_of,
)
from forms_run import (
    V1_OPTIMIZERS,
    FunctionModel,
    cover,
    export_graph,
    serve_function,
    serve_graph,
    train_in_functions,
    train_in_sessions,
    whole_product,
)
from helpers_models import Watched, assert_all_same, needs_estimator

import picasso_tf

IN_FUNCTIONS = [form for form in FORMS if not form.graph_only]
# SavedModels in turns: of TensorFlow 1 or 2.
CONVERTED_GRAPHS = [form for form in FORMS if form.graph_only] + IN_FUNCTIONS[1::2]
CONVERTED_FUNCTIONS = IN_FUNCTIONS[::2]
SIZES = (0, 1, 7, 512)


def pytest_generate_tests(metafunc):
    """Cases of a test; of all combinations if --all-forms is given."""
    if "graph_case" in metafunc.fixturenames:
        cases = chosen(metafunc.config, FORMS, list(V1_OPTIMIZERS), count=3)
        metafunc.parametrize("graph_case", marked("session", cases))
    if "function_case" in metafunc.fixturenames:
        cases = chosen(metafunc.config, IN_FUNCTIONS, list(V1_OPTIMIZERS), count=1)
        metafunc.parametrize("function_case", marked("function", cases))
    if "keras_case" in metafunc.fixturenames:
        cases = [
            *chosen(metafunc.config, KERAS_2_FORMS, list(KERAS_2_OPTIMIZERS), count=5),
            *chosen(metafunc.config, KERAS_3_FORMS, list(KERAS_3_OPTIMIZERS), count=5),
            *chosen(metafunc.config, KERAS_3_FORMS, list(KERAS_3_OPTIONS), count=2),
        ]
        metafunc.parametrize("keras_case", marked("keras", cases))


# What picasso_tf does wrong so far.
SHAPES = (
    "PackLookups raises KeyError: rows of ids [batch, n] are reshaped and joined, and "
    "the shape before the reshape is asked for as well"
)
SCATTER = (
    "another bit in tables: PackUpdates takes ResourceScatterAdd away, and "
    "TensorFlow's arithmetic optimizer orders lr * grad * rsqrt(...) otherwise"
)


def broken(test: str, case) -> str | None:
    """The reason why a case is known to fail."""
    return None


def marked(test: str, cases) -> list:
    """The cases, those that are broken marked."""
    params = []
    for case in cases:
        reason = broken(test, case)
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        params.append(pytest.param(case, marks=marks, id=str(case)))
    return params


def chosen(config, forms, optimizers, count):
    if config.getoption("--all-forms"):
        return whole_product(forms, optimizers)
    return cover(forms, optimizers, count)


def sizes(case):
    """Sizes of batches to serve."""
    return SIZES if "no_rows" in case.form.steps else SIZES[1:]


def test_the_cover_meets_all_pairs():
    """Of types and optimizers; and each form meets all of its types."""
    cases = cover(FORMS, list(V1_OPTIMIZERS), 3)
    for form in FORMS:
        mine = [case for case in cases if case.form is form]
        assert {case.dtype for case in mine} == set(form.dtypes)
        assert {case.ids for case in mine} == set(form.ids)
    pairs = {(case.dtype, case.optimizer) for case in cases}
    pairs |= {(case.ids, case.optimizer) for case in cases}
    wanted = {
        (kind, optimizer)
        for kind in ("float32", "bfloat16", "float16", "int32", "int64")
        for optimizer in V1_OPTIMIZERS
    }
    assert wanted - {("bfloat16", "rmsprop")} <= pairs


def test_training_in_a_session(graph_case, tmp_path):
    train_in_sessions(graph_case, tmp_path)


def test_training_in_a_function(function_case, tmp_path):
    model = FunctionModel(function_case)
    updates = V1_OPTIMIZERS[function_case.optimizer].updates
    train_in_functions(model, function_case, updates, tmp_path)


def test_training_with_keras(keras_case, tmp_path):
    updates = optimizer_of(keras_case).updates
    train_in_functions(KerasModel(keras_case), keras_case, updates, tmp_path)


@pytest.mark.parametrize(
    "case", marked("converted graph", cover(CONVERTED_GRAPHS, ["sgd"], 1))
)
def test_converted_graph(case, tmp_path):
    export_graph(case, tmp_path / "model")
    picasso_tf.convert_saved_model(
        tmp_path / "model", tmp_path / "packed", picasso_tf.Options(strict=True)
    )
    batches = [case.batch_of(size) for size in sizes(case)]
    got = serve_graph(tmp_path / "packed", batches)
    assert_all_same(got, serve_graph(tmp_path / "model", batches))


@pytest.mark.parametrize(
    "case", marked("converted function", cover(CONVERTED_FUNCTIONS, ["sgd"], 1))
)
def test_converted_function(case, tmp_path):
    model = FunctionModel(case)
    tf.saved_model.save(model, str(tmp_path / "model"))
    picasso_tf.convert_saved_model(
        tmp_path / "model", tmp_path / "packed", picasso_tf.Options(strict=True)
    )
    batches = [case.batch_of(size) for size in sizes(case)]
    got = serve_function(tmp_path / "packed", batches)
    assert_all_same(got, serve_function(tmp_path / "model", batches))


# -- canned Estimators --------------------------------------------------------


def v1_optimizer(name: str):
    train = tf.compat.v1.train
    return {
        "adagrad": lambda: train.AdagradOptimizer(0.1),
        "ftrl": lambda: train.FtrlOptimizer(0.1, l1_regularization_strength=0.01),
        "sgd": lambda: train.GradientDescentOptimizer(0.05),
    }[name]


def canned(kind: str, optimizer, **options):
    """A canned Estimator over hashed strings, ids and weighted ids."""
    column = tf.feature_column
    categories = [
        column.categorical_column_with_hash_bucket("word_0", 15),
        column.categorical_column_with_identity("id_1", 20),
        column.weighted_categorical_column(
            column.categorical_column_with_identity("id_0", 20), "weight_0"
        ),
    ]
    deep = [column.embedding_column(c, 4) for c in categories]
    crossed = column.crossed_column(["word_0", "word_1"], 30)
    wide = {"linear_feature_columns": [*categories, crossed]}
    if kind == "DNNLinearCombinedClassifier":
        wide["linear_optimizer"] = optimizer
        options |= wide | {"dnn_optimizer": optimizer}
        options |= {"dnn_feature_columns": deep, "dnn_hidden_units": [8]}
    elif kind == "DNNClassifier":
        options |= {"feature_columns": deep, "hidden_units": [8]}
        options["optimizer"] = optimizer
    else:
        options |= {"feature_columns": wide["linear_feature_columns"]}
        options["optimizer"] = optimizer
    return getattr(tf.compat.v1.estimator, kind)(**options)


CANNED_FEATURES = ("word_0", "word_1", "id_0", "id_1", "weight_0")


def canned_input_fn():
    """Batches as constants of the graph, one after the other."""
    kinds = [step for step in STEPS if step != "no_rows"]
    datasets = []
    for step in range(10):
        batch = Batch(kinds[step % len(kinds)], step)
        features = {name: tensor(feature(batch, name)) for name in CANNED_FEATURES}
        labels = batch.rng(9).integers(0, 2, size=[batch.rows, 1])
        whole = tf.data.Dataset.from_tensors((features, tf.constant(labels)))
        datasets.append(whole)
    joined = datasets[0]
    for dataset in datasets[1:]:
        joined = joined.concatenate(dataset)
    return joined


@needs_estimator
@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, optimizer",
    [
        ("DNNClassifier", "adagrad"),
        ("LinearClassifier", "ftrl"),
        ("DNNLinearCombinedClassifier", "sgd"),
    ],
)
def test_canned_estimators(kind, optimizer, tmp_path):
    """Trains, and trains on from a checkpoint of the other side."""

    def make(directory, config):
        return canned(
            kind,
            v1_optimizer(optimizer)(),
            model_dir=str(tmp_path / directory),
            config=tf.estimator.RunConfig(session_config=config, tf_random_seed=1),
        )

    config = picasso_tf.estimator_config(options=picasso_tf.Options(strict=True))
    stock, ours = make("stock", None), make("ours", config)
    seen = Watched()
    for estimator in (stock, ours):
        estimator.train(canned_input_fn)
    assert_same_variables(stock, ours)
    # The other way round.
    for estimator in (make("ours", None), make("stock", config)):
        estimator.train(canned_input_fn)
    assert_same_variables(stock, ours)
    for report in seen.reports():
        assert not report.failures and not report.was_dropped(), seen.text()


def assert_same_variables(stock, ours):
    names = stock.get_variable_names()
    assert names == ours.get_variable_names()
    assert_all_same(
        [ours.get_variable_value(name) for name in names],
        [stock.get_variable_value(name) for name in names],
    )
