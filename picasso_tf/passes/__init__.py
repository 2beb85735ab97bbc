"""The passes, in the order in which they run."""

from collections.abc import Iterable

from picasso_tf.passes.base import Pass, PassResult
from picasso_tf.passes.drop_results import DropResults
from picasso_tf.passes.merge_reads import MergeReads
from picasso_tf.passes.order_sums import OrderSums
from picasso_tf.passes.pack_dense import PackDense
from picasso_tf.passes.pack_handles import PackHandles
from picasso_tf.passes.pack_interactions import PackInteractions
from picasso_tf.passes.pack_kernels import PackKernels, PackLateKernels, PackPools
from picasso_tf.passes.pack_l2_losses import PackL2Losses
from picasso_tf.passes.pack_lookups import PackLookups
from picasso_tf.passes.pack_rows import PackRows
from picasso_tf.passes.pack_segment_sums import PackSegmentSums
from picasso_tf.passes.pack_slice_sums import PackSliceSums
from picasso_tf.passes.pack_updates import PackLateUpdates, PackUpdates
from picasso_tf.passes.split_fields import SplitFields

# Updates first: they stop reading the shapes of single lookups, which the
# lookups' pass would otherwise have to provide. What prepares ids before lookups,
# which then find the same ids in the same tensor.
# Interactions before lookups, which may then join their rows for them, and hide how
# many there are.
PASSES: tuple[type[Pass], ...] = (
    PackUpdates,
    PackKernels,
    PackInteractions,
    PackLookups,
    SplitFields,
)

# Those that run behind TensorFlow's own optimizers, which regroup arithmetic: what
# takes over float operations has to see those that TensorFlow would run.
# What looks for the single ops of ids, and of pooling, comes before those are packed.
# Merging behind them: what only one chain of an update reads, its pack computes by
# itself.
PASSES_AFTER: tuple[type[Pass], ...] = (
    DropResults,
    PackLateUpdates,
    PackSegmentSums,
    PackSliceSums,
    PackL2Losses,
    PackDense,
    PackRows,
    PackPools,
    PackLateKernels,
    OrderSums,
    MergeReads,
    PackHandles,
)

# What a graph may go through that is run later, elsewhere: TensorFlow's optimizers
# then come behind all of it. They move factors through products, and sort the inputs
# of AddN by name: packs that take over float sums and products would round otherwise.
PASSES_OFFLINE: tuple[type[Pass], ...] = (*PASSES, PackLateKernels, OrderSums)


def triggers_of(passes: Iterable[type[Pass]]) -> frozenset[str]:
    """Op types without which none of the passes has anything to do."""
    return frozenset(op for pass_type in passes for op in pass_type.triggers)


# Ops that the other passes pack. Checkpoints are restored by AssignVariableOp, too,
# and what is packed already is only tidied up.
OPS_OF_THE_RUN = frozenset(
    op
    for op in triggers_of(set(PASSES_AFTER) - set(PASSES_OFFLINE))
    if op != "AssignVariableOp" and not op.startswith("Picasso")
)

__all__ = [
    "OPS_OF_THE_RUN",
    "PASSES",
    "PASSES_AFTER",
    "PASSES_OFFLINE",
    "Pass",
    "PassResult",
    "triggers_of",
]
