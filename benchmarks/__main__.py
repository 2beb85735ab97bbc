"""Step times and executed ops, with picasso_tf and without, in one run."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import platform
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import picasso_tf
from benchmarks.workloads import WORKLOADS, Model, Workload, batches, build

tf1 = tf.compat.v1
# What only names or holds a value is no work; the rest is.
NOT_COUNTED = frozenset({"VarHandleOp", "Const", "Placeholder", "_Arg", "_SOURCE"})


@dataclasses.dataclass
class Result:
    """One contender on one workload.

    Attributes:
      step_ms: median over all steps.
      spread_ms: quartiles of the same.
      ratio: step_ms over that of stock, in the same run.
      first_step_s: time to the first step's result.
      ops: executed ops a step, without NOT_COUNTED.
      ops_total: all executed ops a step.
    """

    workload: str
    contender: str
    step_ms: float
    spread_ms: tuple[float, float]
    ratio: float
    first_step_s: float
    ops: int
    ops_total: int


def configs() -> dict[str, tf1.ConfigProto]:
    no_grappler = tf1.ConfigProto()
    no_grappler.graph_options.rewrite_options.disable_meta_optimizer = True
    return {
        "stock": tf1.ConfigProto(),
        "stock, no meta optimizer": no_grappler,
        "picasso_tf": picasso_tf.session_config(),
    }


class Contender:
    """A session of its own on the workload's graph."""

    def __init__(self, name: str, config: tf1.ConfigProto, model: Model):
        self.name = name
        self._model = model
        self._session = tf1.Session(graph=model.graph, config=config)
        self._session.run(model.init)
        fetches = [model.loss, model.train]
        self._call = self._session.make_callable(fetches, feed_list=model.feeds)
        self.times: list[float] = []
        self.losses: list[float] = []
        self.first_step = 0.0

    def step(self, batch) -> None:
        started = time.perf_counter()
        loss, _ = self._call(*batch)
        self.times.append(time.perf_counter() - started)
        self.losses.append(loss)

    def executed_ops(self, batch) -> collections.Counter:
        """Ops of one traced step, by type."""
        metadata = tf1.RunMetadata()
        self._session.run(
            [self._model.loss, self._model.train],
            dict(zip(self._model.feeds, batch, strict=True)),
            options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE),
            run_metadata=metadata,
        )
        counts: collections.Counter[str] = collections.Counter()
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                # "name = Op(inputs)"; sources have their bare name.
                label = node.timeline_label.rpartition(" = ")[2] or node.node_name
                counts[label.partition("(")[0]] += 1
        return counts


def measure(workload: Workload, rounds: int, steps: int) -> list[Result]:
    """Interleaves blocks of steps of all contenders, so that noise is shared."""
    data = batches(workload, 8)
    contenders = []
    for name, config in configs().items():
        contender = Contender(name, config, build(workload))
        contender.step(data[0])
        contender.first_step = contender.times.pop()
        contenders.append(contender)
    for round_ in range(rounds):
        for contender in contenders:
            for step in range(steps):
                contender.step(data[(round_ * steps + step) % len(data)])
    # Without the meta optimizer, MatMul and BiasAdd are not fused: other bits.
    stock, ours = contenders[0], contenders[-1]
    if ours.losses != stock.losses:
        raise AssertionError(f"{workload.name}: losses differ from stock's.")
    results = []
    for contender in contenders:
        low, median, high = np.percentile(contender.times, (25, 50, 75)) * 1e3
        counts = contender.executed_ops(data[0])
        work = sum(n for op, n in counts.items() if op not in NOT_COUNTED)
        results.append(
            Result(
                workload.name,
                contender.name,
                float(median),
                (float(low), float(high)),
                float(median / (np.median(stock.times) * 1e3)),
                contender.first_step,
                work,
                sum(counts.values()),
            )
        )
    return results


def show(console: Console, results: list[Result]) -> None:
    table = Table(
        "workload", "contender", "step ms", "quartiles", "to stock", "first step s",
        "ops a step", "of all", title=f"TensorFlow {tf.__version__}",
    )  # fmt: skip
    for result in results:
        table.add_row(
            result.workload,
            result.contender,
            f"{result.step_ms:.2f}",
            f"{result.spread_ms[0]:.2f}-{result.spread_ms[1]:.2f}",
            f"{result.ratio:.2f}",
            f"{result.first_step_s:.2f}",
            f"{result.ops:,}",
            f"{result.ops_total:,}",
        )
    console.print(table)
    console.print(
        "ops a step: executed ops, without "
        + ", ".join(sorted(NOT_COUNTED - {"_SOURCE"}))
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help="of " + ", ".join(WORKLOADS)
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=8, help="a round and contender")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there")
    arguments = parser.parse_args()
    unknown = set(arguments.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(
            f"unknown workloads {sorted(unknown)}; there are {list(WORKLOADS)}"
        )
    console = Console()
    results = []
    for name in arguments.workloads or ["W200"]:
        with console.status(f"measuring {name}"):
            results += measure(WORKLOADS[name], arguments.rounds, arguments.steps)
    show(console, results)
    if arguments.json:
        figures = {
            "tensorflow": tf.__version__,
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "results": [dataclasses.asdict(result) for result in results],
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
