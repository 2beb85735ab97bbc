"""Every form of tests/forms.py: as stock, to the bit.

Of all combinations of form, types and optimizer, a cover is run; all of them by
`pytest tests/test_forms.py --all-forms`.
"""

import pytest
import tensorflow as tf
from forms import FORMS
from forms_keras import KERAS_FORMS, KERAS_OPTIMIZERS, KerasModel
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
from helpers_models import KERAS_2, assert_all_same

import picasso_tf

IN_FUNCTIONS = [form for form in FORMS if not form.graph_only]
SIZES = (0, 1, 7, 512)


def pytest_generate_tests(metafunc):
    """Cases of a test; of all combinations if --all-forms is given."""
    if "graph_case" in metafunc.fixturenames:
        cases = chosen(metafunc.config, FORMS, list(V1_OPTIMIZERS))
        metafunc.parametrize("graph_case", marked("session", cases))
    if "function_case" in metafunc.fixturenames:
        cases = chosen(metafunc.config, IN_FUNCTIONS, list(V1_OPTIMIZERS), count=1)
        metafunc.parametrize("function_case", marked("function", cases))
    if "keras_case" in metafunc.fixturenames:
        cases = chosen(metafunc.config, KERAS_FORMS, list(KERAS_OPTIMIZERS))
        metafunc.parametrize("keras_case", marked("keras", cases))


# What picasso_tf does wrong, by (test, form): the reason, and whether it is so for
# a case.
SHARED = "KeyError in PackLookups: lookups of one table by columns, reshaped, joined"
BROKEN = {
    ("session", "plain_shared"): (SHARED, lambda case: True),
    ("function", "plain_shared"): (SHARED, lambda case: True),
    ("converted function", "plain_shared"): (SHARED, lambda case: True),
    ("keras", "keras_shared"): (
        SHARED,
        lambda case: KERAS_2 and not case.dtype.startswith("mixed"),
    ),
}


def marked(test: str, cases) -> list:
    """The cases, those that are broken marked."""
    marks = []
    for case in cases:
        reason, holds = BROKEN.get((test, case.form.name), ("", lambda case: False))
        xfail = [pytest.mark.xfail(reason=reason, strict=True)] if holds(case) else []
        marks.append(pytest.param(case, marks=xfail, id=str(case)))
    return marks


def chosen(config, forms, optimizers, count=None):
    if config.getoption("--all-forms"):
        return whole_product(forms, optimizers)
    return cover(forms, optimizers, count)


def sizes(case):
    """Sizes of batches to serve."""
    return SIZES if "no_rows" in case.form.steps else SIZES[1:]


def test_training_in_a_session(graph_case, tmp_path):
    train_in_sessions(graph_case, tmp_path)


def test_training_in_a_function(function_case, tmp_path):
    model = FunctionModel(function_case)
    updates = V1_OPTIMIZERS[function_case.optimizer].updates
    train_in_functions(model, function_case, updates, tmp_path)


def test_training_with_keras(keras_case, tmp_path):
    updates = KERAS_OPTIMIZERS[keras_case.optimizer].updates
    train_in_functions(KerasModel(keras_case), keras_case, updates, tmp_path)


@pytest.mark.parametrize("case", marked("converted graph", cover(FORMS, ["sgd"])))
def test_converted_graph(case, tmp_path):
    export_graph(case, tmp_path / "model")
    picasso_tf.convert_saved_model(
        tmp_path / "model", tmp_path / "packed", picasso_tf.Options(strict=True)
    )
    batches = [case.batch_of(size) for size in sizes(case)]
    got = serve_graph(tmp_path / "packed", batches)
    assert_all_same(got, serve_graph(tmp_path / "model", batches))


@pytest.mark.parametrize(
    "case", marked("converted function", cover(IN_FUNCTIONS, ["sgd"]))
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
