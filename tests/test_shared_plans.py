"""What a lookup found out about its bags, the update of the same step uses."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf
from helpers_kernels import case_of, check, make_table, packed_config
from test_bags import (
    Form,
    feeds_of,
    make_bag,
    make_bags,
    make_rows,
    some_lengths,
    train,
)

from picasso_tf import ops

tf1 = tf.compat.v1


def plans_found() -> int:
    return ops.native().PicassoPlansFound()


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("safe", [False, True], ids=["as it is", "safe"])
def test_each_plan_is_made_once(safe, weighted):
    forms = [Form(combiner=c, safe=safe, weighted=weighted) for c in ("sum", "mean")]
    with tf1.Graph().as_default():
        bags = make_bags(forms)
        fetches = train(bags)
        session = tf1.Session(config=packed_config())
        session.run(tf1.global_variables_initializer())
        (feed,) = feeds_of(bags, some_lengths(safe, 1))
    before = plans_found()
    session.run(fetches, feed)
    assert plans_found() == before + len(forms)
    session.run(fetches[0], feed)  # nothing is trained
    assert plans_found() == before + len(forms)


def test_ids_that_are_read_in_several_ways():
    """One tensor of ids, of which each lookup makes other bags."""

    def build():
        forms = [
            Form(safe=True, combiner=combiner, default_id=default)
            for combiner in ("sum", "mean")
            for default in (None, 0, 3)
        ]
        first = make_bag(forms[0], make_rows(forms[0], "t0"))
        bags = [first]
        for k, form in enumerate(forms[1:], 1):
            rows = tf.nn.safe_embedding_lookup_sparse(
                make_rows(form, f"t{k}", k),
                first.ids,
                None,
                form.combiner,
                form.default_id,
            )
            bags.append(type(first)(form, first.ids, None, rows))
        return train(bags), feeds_of(bags[:1], some_lengths(True))

    before = plans_found()
    check(case_of(build))
    assert plans_found() > before


def test_steps_at_the_same_time():
    """Each step uses its own: with integers, and the table locked, the sum of all
    steps is exact in any order."""
    rows, dim, steps = 50, 4, 40
    rng = np.random.default_rng(5)
    feeds = []
    for _ in range(4):
        lengths = rng.integers(0, 4, 30)
        at = np.repeat(np.arange(30), lengths)
        within = np.concatenate([np.arange(n) for n in lengths])
        ids = rng.integers(0, rows, len(at))
        feeds.append((np.stack([at, within], 1), ids, [30, 4]))
    expected = np.zeros([rows, dim], np.float32)
    for _, ids, _ in feeds:
        np.subtract.at(expected, ids, np.float32(steps))
    with tf1.Graph().as_default():
        table = make_table("t", np.zeros([rows, dim], np.float32))
        ids = tf1.sparse_placeholder(tf.int64, [None, None])
        pooled = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="sum")
        optimizer = tf1.train.GradientDescentOptimizer(1.0, use_locking=True)
        call = optimizer.minimize(tf.reduce_sum(pooled))
        session = tf1.Session(config=packed_config())
        session.run(tf1.global_variables_initializer())

        def work(feed):
            for _ in range(steps):
                session.run(call, {ids: tf1.SparseTensorValue(*feed)})

        before = plans_found()
        threads = [threading.Thread(target=work, args=(feed,)) for feed in feeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        np.testing.assert_array_equal(session.run(table), expected)
    assert plans_found() == before + steps * len(feeds)
