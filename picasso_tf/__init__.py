"""picasso_tf packs the many small embedding ops of recommender models.

tf.compat.v1.Session(config=picasso_tf.session_config())
picasso_tf.enable()                 # tf.function and Keras
print(picasso_tf.last_report())
"""

from picasso_tf.ops import load_ops

load_ops()

import picasso_tf.gradients  # noqa: E402, F401  (registers them)
from picasso_tf.eager import RewriteDropped, disable, enable, enabled  # noqa: E402
from picasso_tf.grappler import (  # noqa: E402
    estimator_config,
    last_report,
    reports,
    session_config,
)
from picasso_tf.options import Options  # noqa: E402
from picasso_tf.report import Pack, Report, Skipped  # noqa: E402
from picasso_tf.rewrite import rewrite  # noqa: E402
from picasso_tf.saved_model import convert_saved_model, explain  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "Options",
    "Pack",
    "Report",
    "RewriteDropped",
    "Skipped",
    "convert_saved_model",
    "disable",
    "enable",
    "enabled",
    "estimator_config",
    "explain",
    "last_report",
    "load_ops",
    "reports",
    "rewrite",
    "session_config",
]
