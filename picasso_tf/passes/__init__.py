"""The passes, in the order in which they run."""

from picasso_tf.passes.base import Pass, PassResult
from picasso_tf.passes.pack_dense import PackDense
from picasso_tf.passes.pack_kernels import PackKernels
from picasso_tf.passes.pack_l2_losses import PackL2Losses
from picasso_tf.passes.pack_lookups import PackLookups
from picasso_tf.passes.pack_segment_sums import PackSegmentSums
from picasso_tf.passes.pack_updates import PackUpdates

# Updates first: they stop reading the shapes of single lookups, which the
# lookups' pass would otherwise have to provide. What prepares ids before lookups,
# which then find the same ids in the same tensor.
PASSES: tuple[type[Pass], ...] = (PackUpdates, PackKernels, PackLookups)

# Those that run behind TensorFlow's own optimizers, which regroup arithmetic: what
# takes over float operations has to see those that TensorFlow would run.
PASSES_AFTER: tuple[type[Pass], ...] = (PackSegmentSums, PackL2Losses, PackDense)

__all__ = ["PASSES", "PASSES_AFTER", "Pass", "PassResult"]
