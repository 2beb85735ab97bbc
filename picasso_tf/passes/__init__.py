"""The passes, in the order in which they run."""

from picasso_tf.passes.base import Pass, PassResult
from picasso_tf.passes.pack_kernels import PackKernels
from picasso_tf.passes.pack_lookups import PackLookups
from picasso_tf.passes.pack_updates import PackUpdates

# Updates first: they stop reading the shapes of single lookups, which the
# lookups' pass would otherwise have to provide. What prepares ids before lookups,
# which then find the same ids in the same tensor.
PASSES: tuple[type[Pass], ...] = (PackUpdates, PackKernels, PackLookups)

__all__ = ["PASSES", "Pass", "PassResult"]
