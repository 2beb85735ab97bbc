"""The dot interaction of DLRM with its gradient, beside stock TensorFlow and PyTorch.

    python -m benchmarks.interactions [--torch PYTHON] [--rounds N]

27 fields, batch 2,048, two threads; forward and the gradient of the fields. Stock and
ours alternate in one process; PyTorch, if a Python that has it is given or is in
.venv/fbgemm, runs behind them in its own. Medians.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import time
from collections.abc import Callable

from benchmarks import fbgemm_env

FIELDS, BATCH, THREADS = 27, 2_048, 2
DIMS = (16, 32, 64, 128)

_TORCH = f"""
import json, statistics, sys, time
import torch
torch.set_num_threads({THREADS})
medians = {{}}
for dim in {DIMS}:
    x = torch.randn({BATCH}, {FIELDS}, dim, requires_grad=True)
    row, column = torch.tril_indices({FIELDS}, {FIELDS}, -1)
    g = torch.randn({BATCH}, len(row))
    times = []
    for _ in range(int(sys.argv[1]) + 3):
        start = time.perf_counter()
        kept = torch.bmm(x, x.transpose(1, 2))[:, row, column]
        torch.autograd.grad(kept, x, g)
        times.append(time.perf_counter() - start)
    medians[dim] = statistics.median(times[3:])
print(json.dumps(medians))
"""


def _sessions(dim: int) -> list[Callable[[], None]]:
    """Steps of stock and of ours."""
    import numpy as np
    import tensorflow as tf

    import picasso_tf

    tf1 = tf.compat.v1
    random = np.random.default_rng(dim)
    steps = []
    for ours in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            value = random.normal(size=[BATCH, FIELDS * dim]).astype(np.float32)
            joined = tf1.get_variable("x", initializer=value, use_resource=True)
            rows = tf.reshape(joined.read_value(), [-1, FIELDS, dim])
            products = tf.matmul(rows, rows, transpose_b=True)
            ones = tf.ones_like(products)
            lower = ones - tf.linalg.band_part(ones, 0, -1)
            width = FIELDS * (FIELDS - 1) // 2
            kept = tf.reshape(tf.boolean_mask(products, lower), [-1, width])
            g = random.normal(size=[BATCH, width]).astype(np.float32)
            upstream = tf1.get_variable("g", initializer=g, use_resource=True)
            (grad,) = tf1.gradients(kept, rows, upstream.read_value())
            run = [kept, grad]  # a group of them would be optimized away
            init = tf1.global_variables_initializer()
        config = tf1.ConfigProto(intra_op_parallelism_threads=THREADS)
        config.inter_op_parallelism_threads = THREADS
        if ours:
            options = picasso_tf.Options(strict=True, exact=False)
            config = picasso_tf.session_config(config, options)
        session = tf1.Session(graph=graph, config=config)
        session.run(init)
        steps.append(session.make_callable(run))
        steps[-1]()
    report = picasso_tf.last_report()
    kinds = {pack.kind for pack in report.packs} if report else set()
    if "dot interaction gradient" not in kinds:
        raise SystemExit(f"nothing was packed:\n{report}")
    return steps


def _medians(dim: int, rounds: int) -> list[float]:
    steps = _sessions(dim)
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(rounds + 3):
        for step, own in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if turn >= 3:
                own.append(time.perf_counter() - start)
    return [statistics.median(own) for own in times]


def _torch(python: pathlib.Path | None, rounds: int) -> dict[str, float]:
    if python is None:
        return {}
    done = subprocess.run(
        [python, "-c", _TORCH, str(rounds)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", type=pathlib.Path, help="a Python that has PyTorch")
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    ours = {dim: _medians(dim, args.rounds) for dim in DIMS}
    torch = _torch(fbgemm_env.python(args.torch, make=False), args.rounds)
    print("| dim | stock ms | ours ms | times | PyTorch ms | times |")
    print("|---|---|---|---|---|---|")
    for dim, (stock, mine) in ours.items():
        cells = [f"{stock * 1e3:.2f}", f"{mine * 1e3:.2f}", f"{stock / mine:.1f}"]
        other = torch.get(str(dim))
        cells += [f"{other * 1e3:.2f}", f"{other / mine:.1f}"] if other else ["", ""]
        print(f"| {dim} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
