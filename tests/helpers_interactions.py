"""Interactions as models write them, and how they are run."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from graphs import run

import picasso_tf

STRICT = picasso_tf.Options(strict=True, exact=False)

tf1 = tf.compat.v1


def rows_of(fields, spelling: str):
    """[batch, fields, dim] of a list of [batch, dim]."""
    if spelling == "stack":
        return tf.stack(fields, axis=1)
    if spelling == "concat":
        return tf.concat([tf.expand_dims(field, 1) for field in fields], 1)
    batch, dim = tf.shape(fields[0])[0], tf.shape(fields[0])[1]
    return tf.reshape(tf.concat(fields, axis=-1), [batch, -1, dim])


def dot_interaction(
    fields, self_interaction=False, full=False, spelling="reshape", mask="ones_like"
):
    """The products of all pairs of `fields`, a list of [batch, dim].

    `mask`: how the triangle is told: by ones of the products' own shape, as in
    TensorFlow Recommenders, or by one matrix for all examples.
    """
    count, batch = len(fields), tf.shape(fields[0])[0]
    rows = rows_of(fields, spelling)
    products = tf.matmul(rows, rows, transpose_b=True)
    ones = tf.ones_like(products) if mask == "ones_like" else tf.ones([count, count])
    ones = tf.cast(ones, products.dtype)
    if self_interaction:
        lower = tf.linalg.band_part(ones, -1, 0)
        upper = ones - lower
        width = count * (count + 1) // 2
    else:
        upper = tf.linalg.band_part(ones, 0, -1)
        lower = ones - upper
        width = count * (count - 1) // 2
    if full:
        width = count * count
        upper = tf.cast(upper, tf.bool)
        kept = tf.where(upper, tf.zeros_like(products), products)
    elif mask == "ones_like":
        kept = tf.boolean_mask(products, lower)
    else:
        kept = tf.boolean_mask(products, tf.cast(lower, tf.bool), axis=1)
    return tf.reshape(kept, [batch, width])


def numpy_dot(x, self_interaction=False, full=False):
    """The same of an array [batch, fields, dim], in float64."""
    x = x.astype(np.float64)
    lower = np.tril(np.ones([x.shape[1]] * 2, bool), 0 if self_interaction else -1)
    products = np.einsum("bik,bjk->bij", x, x)
    if full:
        return np.where(lower, products, 0).reshape(len(x), lower.size)
    return products[:, lower]


def assert_close(ours, stock, rtol=1e-6) -> None:
    """Equal but for rounding: max |a - b| <= rtol max |b| per tensor."""
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(stock), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == np.float64:
            rtol = min(rtol, 1e-14)
        if a.size:
            difference = np.abs(a.astype(np.float64) - b.astype(np.float64)).max()
            assert difference <= rtol * np.abs(b).max(), (difference, np.abs(b).max())


def run_both(graph, fetches, feed=None, steps=1):
    """(ours, stock, packs): the fetches and variables of the last step, and the
    kinds of the packs that were made, and created."""
    before = {id(report) for report in picasso_tf.reports()}
    ours = run(graph, fetches, feed, STRICT, steps)
    stock = run(graph, fetches, feed, None, steps)
    reports = [r for r in picasso_tf.reports() if id(r) not in before]
    packs = [pack for report in reports for pack in report.packs]
    for report in reports:
        for pack in report.packs:
            assert report.executions(pack)[0] > 0, f"{pack.name} was never created"
    return ours, stock, packs
