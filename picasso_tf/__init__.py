"""picasso_tf packs the many small embedding ops of recommender models.

tf.compat.v1.Session(config=picasso_tf.session_config())
picasso_tf.enable()                 # tf.function and Keras
print(picasso_tf.last_report())
"""

from picasso_tf.ops import load_ops

load_ops()

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

__version__ = "0.1.0"

__all__ = [
    "Options",
    "Pack",
    "Report",
    "RewriteDropped",
    "Skipped",
    "disable",
    "enable",
    "enabled",
    "estimator_config",
    "last_report",
    "load_ops",
    "reports",
    "rewrite",
    "session_config",
]
