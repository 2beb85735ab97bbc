"""Steps a second of a canned Estimator, with picasso_tf and without, in one run."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CONTENDERS = ("stock", "picasso_tf")
DIM = 8
HIDDEN = (64, 32)


@dataclasses.dataclass
class Result:
    """One contender.

    Attributes:
      step_ms: median over the steps, of all rounds.
      first_step_s: from `train` to the result of the first step, the building of
        the graph and the initialisation of its variables included; median over the
        rounds, each a process of its own.
      first_run_s: the first step's run alone, in which the graph is optimised.
      executed: executed ops of one step, by type.
      losses: of all steps, a list a round.
    """

    contender: str
    step_ms: float
    first_step_s: float
    first_run_s: float
    executed: dict[str, int]
    losses: list[list[float]]


# -- one contender, in a process of its own -------------------------------------


def train(contender: str, columns: int, rows: int, batch: int, steps: int) -> dict:
    """Trains a fresh Estimator; step times, first step, executed ops, losses."""
    import numpy as np
    import tensorflow as tf

    import picasso_tf

    tf.get_logger().setLevel("ERROR")
    column = tf.feature_column
    random = np.random.default_rng(0)
    categorical, values = [], {}
    for i in range(columns):
        name = f"c{i}"
        ids = (random.random((16, batch)) ** 3 * rows).astype(np.int64)
        if i % 2 == 0:
            categorical.append(column.categorical_column_with_hash_bucket(name, rows))
            values[name] = np.char.add("value", ids.astype(str)).astype(object)
        else:
            categorical.append(column.categorical_column_with_identity(name, rows))
            values[name] = ids
    labels = (random.random((16, batch)) < 0.3).astype(np.int64)

    def input_fn():
        features = tf.data.Dataset.from_tensor_slices((values, labels))
        return features.cache().repeat().prefetch(2)

    probe = _probe(steps)
    run_config = {"tf_random_seed": 1, "save_checkpoints_steps": None}
    run_config |= {"save_checkpoints_secs": None, "save_summary_steps": None}
    run_config |= {"log_step_count_steps": None}
    if contender == "picasso_tf":
        run_config["session_config"] = picasso_tf.estimator_config()
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = tf.estimator.DNNLinearCombinedClassifier(
            model_dir=model_dir,
            linear_feature_columns=categorical,
            dnn_feature_columns=[column.embedding_column(c, DIM) for c in categorical],
            dnn_hidden_units=HIDDEN,
            config=tf.estimator.RunConfig(**run_config),
        )
        probe.started = time.perf_counter()
        estimator.train(input_fn, hooks=[probe], steps=steps + 2)
    report = picasso_tf.last_report()
    return {
        "times": probe.times[1:steps],
        "first": probe.first,
        "first_run": probe.times[0],
        "executed": probe.executed,
        "losses": probe.losses,
        "report": str(report) if report else "",
        "rewrite": report.seconds if report else 0.0,
    }


def _probe(steps: int):
    """A hook that takes times, losses, and a trace of the last step."""
    import tensorflow as tf

    tf1 = tf.compat.v1

    class Probe(tf1.train.SessionRunHook):
        def __init__(self):
            self.started = self.first = 0.0
            self.times, self.losses, self.executed = [], [], {}
            self._count = 0

        def begin(self):
            self._loss = tf1.get_collection(tf1.GraphKeys.LOSSES)[0]

        def before_run(self, run_context):
            self._count += 1
            options = None
            if self._count > steps:
                options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            self._before = time.perf_counter()
            return tf1.train.SessionRunArgs(self._loss, options=options)

        def after_run(self, run_context, run_values):
            now = time.perf_counter()
            self.losses.append(float(run_values.results))
            if self._count == 1:
                self.first = now - self.started
            self.times.append(now - self._before)
            stats = run_values.run_metadata.step_stats.dev_stats
            if self._count > steps and stats:
                self.executed = dict(_executed(stats))

    return Probe()


def _executed(dev_stats) -> collections.Counter:
    counts: collections.Counter[str] = collections.Counter()
    for device in dev_stats:
        for node in device.node_stats:
            # "name = Op(inputs)"; sources have their bare name.
            label = node.timeline_label.rpartition(" = ")[2] or node.node_name
            counts[label.partition("(")[0]] += 1
    return counts


# -- all contenders --------------------------------------------------------------


def measure(arguments) -> tuple[list[Result], dict[str, dict]]:
    """Rounds of one process per contender, alternating, so that noise is shared."""
    runs: dict[str, list[dict]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name in CONTENDERS:
            runs[name].append(_in_a_process(name, arguments))
    results = []
    for name, rounds in runs.items():
        times = sorted(t for run in rounds for t in run["times"])
        firsts = sorted(run["first"] for run in rounds)
        first_runs = sorted(run["first_run"] for run in rounds)
        results.append(
            Result(
                name,
                times[len(times) // 2] * 1e3,
                firsts[len(firsts) // 2],
                first_runs[len(first_runs) // 2],
                rounds[-1]["executed"],
                [run["losses"] for run in rounds],
            )
        )
    return results, {name: rounds[-1] for name, rounds in runs.items()}


def _in_a_process(contender: str, arguments) -> dict:
    command = [sys.executable, "-m", "benchmarks.estimator", "--one", contender]
    for name in ("columns", "rows", "batch", "steps"):
        command += [f"--{name}", str(getattr(arguments, name))]
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        done = subprocess.run(
            [*command, "--json", file.name], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(f"{contender} failed:\n{done.stderr[-4000:]}")
        return json.loads(pathlib.Path(file.name).read_text())


def table(results: list[Result], arguments) -> list[str]:
    """The figures as lines of Markdown."""
    stock = results[0]
    lines = [
        f"DNNLinearCombinedClassifier, {arguments.columns} categorical columns, dim "
        f"{DIM}, batch {arguments.batch}, Ftrl and Adagrad:",
        "",
        "| | step ms | steps/s | to stock | first step s | to stock "
        "| its run alone s | to stock | ops a step |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines.append(
            f"| {result.contender} | {result.step_ms:.2f} "
            f"| {1e3 / result.step_ms:.0f} | {stock.step_ms / result.step_ms:.2f}x "
            f"| {result.first_step_s:.2f} "
            f"| {stock.first_step_s / result.first_step_s:.2f}x "
            f"| {result.first_run_s:.2f} "
            f"| {stock.first_run_s / result.first_run_s:.2f}x "
            f"| {sum(result.executed.values()):,} |"
        )
    return lines


def compared(stock: list[list[float]], ours: list[list[float]]) -> str:
    """What the losses of all rounds say. Stock TensorFlow does not always repeat its
    own: some sums depend on threads."""
    steps = len(ours[0])
    if all(losses in stock for losses in ours):
        return f"losses of {steps} steps: equal"
    if any(losses != stock[0] for losses in stock):
        return f"losses of {steps} steps: stock's own rounds differ"
    return f"losses of {steps} steps: DIFFERENT"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimator", description=__doc__
    )
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000, help="ids of a column")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100, help="a round and contender")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ops", action="store_true", help="list executed ops")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures there")
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        figures = train(
            arguments.one,
            arguments.columns,
            arguments.rows,
            arguments.batch,
            arguments.steps,
        )
        arguments.json.write_text(json.dumps(figures))
        return
    results, last = measure(arguments)
    print("\n".join(table(results, arguments)))
    print("\n" + compared(*(result.losses for result in results)))
    if arguments.ops:
        print("\n| op | stock | picasso_tf |\n|---|---|---|")
        counts = [collections.Counter(result.executed) for result in results]
        for op, _ in (counts[0] + counts[1]).most_common():
            print(f"| {op} | {counts[0][op]} | {counts[1][op]} |")
        print("\n" + last["picasso_tf"]["report"])
    if arguments.json:
        figures = [dataclasses.asdict(result) for result in results]
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
