"""Fixtures that all tests share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf
from helpers_models import keras_2
from hypothesis import settings

import picasso_tf

# Each example builds and runs a graph: no deadline, no health check of speed.
settings.register_profile("graphs", deadline=None, max_examples=20)
settings.load_profile("graphs")


@pytest.fixture(autouse=True)
def clean_slate():
    """No test sees another's graph, Keras names or switched-on rewrite."""
    tf.compat.v1.reset_default_graph()
    yield
    picasso_tf.disable()
    for keras in (tf.keras, keras_2):
        if keras is not None:
            keras.backend.clear_session()


def pytest_addoption(parser):
    parser.addoption(
        "--all-forms",
        action="store_true",
        help="test_forms.py: all combinations of form, types and optimizer",
    )
