"""Loops for wider vectors: equal bits, and run only where the CPU has them."""

import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf

import picasso_tf
from picasso_tf import ops

tf1 = tf.compat.v1
KINDS = ("avx", "avx512")


@pytest.fixture
def use():
    library = ops.native()
    used = []

    def choose(kind: str) -> None:
        if not library.PicassoUseRowKernels(kind.encode()):
            pytest.skip(f"this CPU has no {kind}")
        used.append(kind)

    yield choose
    widest = [k for k in KINDS if library.PicassoUseRowKernels(k.encode())][-1]
    assert library.PicassoUseRowKernels(widest.encode())


def _step(dim: int, combiner: str | None):
    """Rows, pooled or not, and tables after a step of Adagrad; as bytes."""
    random = np.random.default_rng(dim)
    with tf1.Graph().as_default():
        tables, outputs = [], []
        for i in range(3):
            value = random.normal(size=(50, dim)).astype(np.float32)
            value[random.random(value.shape) < 0.1] = -0.0
            table = tf1.get_variable(f"t{i}", initializer=value, use_resource=True)
            ids = tf.constant(random.integers(0, 50, 40))
            tables.append(table)
            if combiner is None:
                outputs.append(tf.nn.embedding_lookup(table, ids))
                continue
            bags = tf.constant(np.sort(random.integers(0, 20, 40)))
            where = tf.stack([bags, tf.range(40, dtype=tf.int64)], 1)
            sparse = tf.SparseTensor(where, ids, [20, 40])
            outputs.append(
                tf.nn.safe_embedding_lookup_sparse(table, sparse, combiner=combiner)
            )
        joined = tf.concat(outputs, 1)
        loss = tf.reduce_sum(tf.square(joined) * 0.3)
        train = tf1.train.AdagradOptimizer(0.1).minimize(loss)
        options = picasso_tf.Options(strict=True)
        with tf1.Session(config=picasso_tf.session_config(options=options)) as session:
            session.run(tf1.global_variables_initializer())
            rows, _ = session.run([joined, train])
            session.run(train)
            report = picasso_tf.last_report()
            assert {pack.kind for pack in report.packs} >= {"lookup", "update"}
            return [rows.tobytes(), *(v.tobytes() for v in session.run(tables))]


@pytest.mark.parametrize("combiner", [None, "sum", "mean"])
@pytest.mark.parametrize("dim", [1, 2, 4, 7, 8, 15, 16, 24, 32, 33, 64, 100, 128])
def test_bits_are_the_same(use, dim, combiner):
    results = []
    for kind in KINDS:
        use(kind)
        results.append(_step(dim, combiner))
    assert results[0] == results[1]


def _many_tables(dims, batch: int, bad=()):
    """(joined rows, what NumPy says) of one table per dim; `bad`: (table, example)
    pairs whose id is outside."""
    random = np.random.default_rng(len(dims))
    graph = tf1.Graph()
    with graph.as_default():
        rows, expected, feeds = [], [], {}
        for i, dim in enumerate(dims):
            value = random.normal(size=(5 + i, dim)).astype(np.float32)
            ids = random.integers(0, 5 + i, batch)
            table = tf1.get_variable(f"t{i}", initializer=value, use_resource=True)
            feed = tf1.placeholder(tf.int64, [None], name=f"ids{i}")
            rows.append(tf.nn.embedding_lookup(table, feed))
            expected.append(value[ids])
            feeds[feed] = ids
            for member, example in bad:
                if member == i:
                    ids[example] = 5 + i
        joined = tf.concat(rows, 1)
        options = picasso_tf.Options(strict=True)
        with tf1.Session(config=picasso_tf.session_config(options=options)) as session:
            session.run(tf1.global_variables_initializer())
            return session.run(joined, feeds), np.concatenate(expected, 1)


@pytest.mark.parametrize(
    "dims",
    [[16] * 40, [8] * 17 + [16] * 3 + [8], [4, 4, 3, 4, 4], [1, 2, 128, 128, 64]],
    ids=str,
)
@pytest.mark.parametrize("batch", [0, 1, 7, 3_000])
def test_neighbours_are_filled_together(dims, batch):
    rows, expected = _many_tables(dims, batch)
    np.testing.assert_array_equal(rows, expected)


def test_the_first_bad_id_of_neighbours_is_named():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[2900\] = 8 .*"):
        _many_tables([16] * 40, 3_000, bad=[(20, 5), (3, 2_950), (3, 2_900)])


def test_unknown_kernels_are_refused():
    assert not ops.native().PicassoUseRowKernels(b"avx1024")


def test_wide_registers_stay_in_the_functions_that_are_chosen():
    """An older CPU must meet no instruction that it does not have."""
    if shutil.which("objdump") is None:
        pytest.skip("no objdump")
    listing = subprocess.run(
        [
            "objdump",
            "-d",
            "-C",
            "--no-show-raw-insn",
            str(ops.find_library(ops.NATIVE_DIR, tf.__version__)),
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    function, wide = "", set()
    for line in listing.splitlines():
        if line.endswith(">:"):
            function = line
        elif "%zmm" in line or "%k1" in line or "%ymm16" in line:
            wide.add(function)
    assert wide, "there is no code for AVX-512 at all"
    chosen = ("rows_avx512::", "dot_avx512::")
    assert all(any(c in name for c in chosen) for name in wide), sorted(wide)[:3]
