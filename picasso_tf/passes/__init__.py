"""The passes, in the order in which they run."""

from picasso_tf.passes.base import Pass, PassResult
from picasso_tf.passes.pack_lookups import PackLookups
from picasso_tf.passes.pack_updates import PackUpdates

# Updates first: they stop reading the shapes of single lookups, which the
# lookups' pass would otherwise have to provide.
PASSES: tuple[type[Pass], ...] = (PackUpdates, PackLookups)

__all__ = ["PASSES", "Pass", "PassResult"]
