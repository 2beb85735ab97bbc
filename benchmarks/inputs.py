"""Batches that wait in memory, for graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def sparse_of(indices: tf.Tensor, values: tf.Tensor, shape: tf.Tensor):
    """The SparseTensor [batch, longest] of three tensors of `iterate`."""
    shape.set_shape([2])
    return tf.SparseTensor(indices, values, shape)


def iterate(
    batches: Sequence[Sequence[np.ndarray]],
) -> tuple[list[tf.Tensor], tf.Operation]:
    """The next batch's tensors, over and over, and the op to run before the first.

    A session that is fed converts each array in Python, which takes as long as many
    a model's step: so that steps are measured and not this, the batches lie in a
    cached `tf.data.Dataset`, which hands them out without a copy.

    Sizes are not in the static shapes, apart from those of inner dimensions.
    """
    first = batches[0]
    dtypes = tuple(tf.as_dtype(array.dtype) for array in first)
    shapes = tuple(tf.TensorShape([None, *array.shape[1:]]) for array in first)
    datasets = [tf.data.Dataset.from_tensors(tuple(batch)) for batch in batches]
    dataset = datasets[0]
    for other in datasets[1:]:
        dataset = dataset.concatenate(other)
    iterator = tf1.data.Iterator.from_structure(dtypes, shapes)
    start = iterator.make_initializer(dataset.cache().repeat())
    return list(iterator.get_next()), start
