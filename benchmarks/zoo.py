"""All of DeepCTR's models, with picasso_tf and without: losses, ops, packs."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.eager import context

import picasso_tf
from benchmarks import zoo_models

tf1 = tf.compat.v1
SEED = 1
BATCH = 40
STEPS = 5
STRICT = picasso_tf.Options(strict=True)
# What only names, holds or hands over a value, counted apart.
NO_WORK = ("VarHandleOp", "ReadVariableOp", "Const", "Placeholder", "_Arg")
LOOKUP_OPS = ("ResourceGather", "GatherV2")
WRITING = ("Assign", "ResourceScatter", "ResourceSparseApply", "ResourceApply")
OPTIMIZERS = {
    # What the names in DeepCTR's examples stand for in TensorFlow 2.15.
    "adam": tf.keras.optimizers.Adam,
    "adagrad": tf.keras.optimizers.Adagrad,
    "legacy adam": tf.keras.optimizers.legacy.Adam,
    "legacy adagrad": tf.keras.optimizers.legacy.Adagrad,
}


@dataclasses.dataclass
class Run:
    """One training.

    Attributes:
      losses: after each step.
      weights: all variables at the end, the optimizer's among them.
      graph: the training step as it is executed; empty if not asked for.
      report: of the rewritten training step; None: stock TensorFlow, or nothing
        was recognised.
    """

    losses: list[float]
    weights: list[np.ndarray]
    graph: graph_pb2.GraphDef
    report: picasso_tf.Report | None = None

    @property
    def ops(self) -> collections.Counter:
        return collections.Counter(node.op for node in self.graph.node)

    @property
    def work(self) -> int:
        """Executed ops without NO_WORK."""
        return sum(count for op, count in self.ops.items() if op not in NO_WORK)

    def members(self, kind: str) -> int:
        """Of the packs whose kind has this word in it."""
        packs = self.report.packs if self.report else []
        return sum(len(pack.members) for pack in packs if kind in pack.kind)

    def skipped(self, kind: str) -> list[picasso_tf.Skipped]:
        items = self.report.skipped if self.report else []
        return [item for item in items if (item.op in LOOKUP_OPS) == (kind == "lookup")]

    def tables(self) -> set[str]:
        """Variables that are looked up and updated, by stock's ops."""
        written = self._variables(lambda op: op.startswith(WRITING))
        return written & self._variables(lambda op: op in LOOKUP_OPS)

    def written(self) -> set[str]:
        """Variables that stock's ops update."""
        return self._variables(lambda op: op.startswith(WRITING))

    def _variables(self, chosen: Callable[[str], bool]) -> set[str]:
        """Names of the variables that are the first input of the chosen ops.

        Arguments of a function go by their position.
        """
        nodes = {node.name: node for node in self.graph.node}
        names = set()
        for node in self.graph.node:
            if not chosen(node.op):
                continue
            while node.input:
                node = nodes[node.input[0].split(":")[0].lstrip("^")]
            if node.op == "_Arg":
                names.add(f"argument {node.attr['index'].i}")
            elif node.op == "VarHandleOp":
                names.add(node.attr["shared_name"].s.decode() or node.name)
        return names


def same(a: Run, b: Run) -> bool:
    """Whether losses and all variables are equal, bit by bit."""
    return a.losses == b.losses and all(
        x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(a.weights, b.weights, strict=True)
    )


# -- running ------------------------------------------------------------------


def run_keras(name, clicks, optimizer, options=None, steps=STEPS, ops=True) -> Run:
    """Builds, compiles and fits a model of zoo_models.KERAS from SEED."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(SEED)
    with _quiet():
        feeding = zoo_models.KERAS[name](name, clicks)
    model = feeding.model
    model.compile(
        OPTIMIZERS[optimizer](),
        ["binary_crossentropy"] * len(feeding.labels),
        metrics=["binary_crossentropy"],
        jit_compile=False,
    )
    losses = []
    record = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: losses.append(logs["loss"])
    )
    rows = steps * BATCH
    seen = picasso_tf.reports()
    if ops:
        context.enable_graph_collection()
    try:
        with picasso_tf.enabled(options) if options else contextlib.nullcontext():
            model.fit(
                {key: value[:rows] for key, value in feeding.features.items()},
                [labels[:rows] for labels in feeding.labels],
                batch_size=BATCH,
                shuffle=False,
                verbose=0,
                callbacks=[record],
            )
        graph = _largest(context.export_run_metadata()) if ops else None
    finally:
        if ops:
            context.disable_graph_collection()
    variables = [*model.variables, *model.optimizer.variables()]
    weights = [variable.numpy() for variable in variables]
    return Run(losses, weights, graph or graph_pb2.GraphDef(), _report(seen))


def _largest(metadata) -> graph_pb2.GraphDef:
    """The largest function, which is the training step, as it is executed."""
    graphs = [_joined(function) for function in metadata.function_graphs]
    return max(graphs, key=lambda graph: len(graph.node))


def _joined(graphs) -> graph_pb2.GraphDef:
    joined = graph_pb2.GraphDef()
    for part in graphs.partition_graphs:
        joined.node.extend(part.node)
    return joined


class _Record(tf1.train.SessionRunHook):
    """Losses of all steps, and the graph of the first."""

    def __init__(self, ops: bool):
        self.losses = []
        self.graph = graph_pb2.GraphDef()
        self._ops = ops

    def before_run(self, run_context):
        # What the Estimator fetches as well has to be in the first step, too.
        options = None
        if self._ops and not self.losses:
            options = tf1.RunOptions(output_partition_graphs=True)
        losses = run_context.session.graph.get_collection(tf1.GraphKeys.LOSSES)
        return tf1.train.SessionRunArgs(losses, options=options)

    def after_run(self, run_context, run_values):
        if not self.losses:
            self.graph = _joined(run_values.run_metadata)
        self.losses.append(
            [float(x) for loss in run_values.results for x in np.ravel(loss)]
        )


def run_estimator(name, clicks, options=None, steps=STEPS, ops=True) -> Run:
    """Trains an Estimator of zoo_models.ESTIMATORS, with its own optimizers."""
    tf.keras.backend.clear_session()
    record = _Record(ops)

    def batches():
        features = {key: value.astype(np.int32) for key, value in clicks.ids.items()}
        features |= {k: v.astype(np.float32) for k, v in clicks.dense.items()}
        data = tf.data.Dataset.from_tensor_slices((features, clicks.labels))
        return data.batch(BATCH).take(steps)

    seen = picasso_tf.reports()
    with tempfile.TemporaryDirectory() as folder:
        session = picasso_tf.estimator_config(options) if options else None
        config = tf.estimator.RunConfig(
            model_dir=folder, tf_random_seed=SEED, session_config=session
        )
        with _quiet():
            estimator = zoo_models.estimator(name, clicks, config)
            estimator.train(batches, hooks=[record])
        names = sorted(estimator.get_variable_names())
        weights = [estimator.get_variable_value(key) for key in names]
    return Run(record.losses, weights, record.graph, _report(seen))


def _report(seen) -> picasso_tf.Report | None:
    """Of the largest graph that was rewritten since, which is the training."""
    known = {id(report) for report in seen}
    new = [report for report in picasso_tf.reports() if id(report) not in known]
    return max(new, key=lambda r: sum(r.ops_before.values()), default=None)


@contextlib.contextmanager
def _quiet():
    """Some models print while they are built."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


# -- the table ----------------------------------------------------------------


@dataclasses.dataclass
class Row:
    """A model, trained with and without; or why stock TensorFlow cannot."""

    model: str
    optimizer: str
    stock: Run | None = None
    packed: Run | None = None
    error: str = ""

    @property
    def ratio(self) -> float:
        return self.packed.work / self.stock.work

    def cells(self) -> list[str]:
        tables = self.stock.tables()
        left = tables & self.packed.written()
        lookups = self.packed.members("lookup")
        updates = self.packed.members("update")
        return [
            self.model,
            f"{self.stock.work:,}",
            f"{self.packed.work:,}",
            f"{self.ratio:.2f}",
            f"{_apart(self.stock):,} → {_apart(self.packed):,}",
            f"{lookups} of {lookups + len(self.packed.skipped('lookup'))}",
            f"{updates} of {updates + len(self.packed.skipped('update'))}",
            f"{len(tables) - len(left)} of {len(tables)}",
            "equal" if same(self.stock, self.packed) else "**different**",
        ]


HEADER = (
    "model",
    "ops, stock",
    "ops, picasso_tf",
    "ratio",
    "apart",
    "lookups packed",
    "updates packed",
    "tables updated by packs",
    "losses and variables",
)


def _apart(run: Run) -> int:
    return run.ops.total() - run.work


def measure(model: str, optimizer: str, data: pathlib.Path) -> Row:
    """Trains with stock TensorFlow, then with picasso_tf."""
    # FLEN is made for groups of fields, which DeepCTR has for this sample.
    sample = zoo_models.AVAZU if model == "FLEN" else zoo_models.CRITEO
    clicks = zoo_models.read_clicks(data, sample)
    if model in zoo_models.ESTIMATORS:
        run = functools.partial(run_estimator, model, clicks)
    else:
        run = functools.partial(run_keras, model, clicks, optimizer)
    row = Row(model, optimizer)
    try:
        row.stock = run()
    except Exception as error:  # whatever it is, it is the model's own
        row.error = f"{type(error).__name__}: {error}".splitlines()[0]
        return row
    row.packed = run(STRICT)
    return row


def markdown(rows: list[Row]) -> str:
    """The table of one optimizer, its medians, and the reasons."""
    ran = [row for row in rows if row.packed]
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in ran]
    if ran:
        lines += [
            "",
            "Medians: "
            f"{np.median([row.stock.work for row in ran]):,.0f} ops in stock, "
            f"{np.median([row.packed.work for row in ran]):,.0f} with picasso_tf, "
            f"ratio {np.median([row.ratio for row in ran]):.2f}.",
        ]
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for row in ran:
        if row.packed.report:
            for reason, nodes in row.packed.report.reasons().items():
                reasons[reason].append(f"{row.model} {len(nodes)}")
    lines += ["", "Left alone:" if reasons else "Nothing recognised was left alone."]
    lines += [f"- {why}: {', '.join(where)}" for why, where in sorted(reasons.items())]
    failed = [row for row in rows if row.error]
    lines += ["", *(["Fail on stock TensorFlow:"] if failed else [])]
    lines += [f"- {row.model}: `{row.error}`" for row in failed]
    return "\n".join(lines).strip() + "\n"


INTRODUCTION = """\
# DeepCTR's models

Written by `{command}`: DeepCTR {deepctr}, TensorFlow {tensorflow}.

Each model is built with its default settings, l2 included, and trained for {steps}
steps of {batch} examples, first by stock TensorFlow, then with
`picasso_tf.enabled(Options(strict=True))`, from one seed. Losses and all variables at
the end, those of the optimizer too, must be equal bit by bit. "ops" are the nodes of
the training step as it is executed, after all of TensorFlow's own optimizers; {apart}
are counted apart. "lookups" and "updates packed" are out of those that the report
knows, packed or left alone with a reason. "tables updated by packs" are out of all
variables that are looked up and trained: no op of stock TensorFlow writes to those.

DeepCTR's examples compile with "adam" or "adagrad", which TensorFlow 2.15 takes for its
new optimizers, `tf.keras.optimizers.Adam` and `Adagrad`. Models of sequences get
generated histories, FLEN gets the sample of Avazu, all others that of Criteo.
"""


def document(rows: list[Row], command: str) -> str:
    parts = [
        INTRODUCTION.format(
            command=command,
            deepctr=zoo_models.deepctr.__version__,
            tensorflow=tf.__version__,
            steps=STEPS,
            batch=BATCH,
            apart=", ".join(NO_WORK),
        )
    ]
    for title in dict.fromkeys(row.optimizer for row in rows):
        some = [row for row in rows if row.optimizer == title]
        parts.append(f"## {title}\n\n{markdown(some)}")
    return "\n".join(parts)


def main() -> int:
    """Returns 1 if any model trained differently."""
    every = [*zoo_models.KERAS, *zoo_models.ESTIMATORS]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__
    )
    parser.add_argument("--models", help="some of " + ",".join(every))
    parser.add_argument(
        "--optimizers",
        default="adam,adagrad",
        help="of the Keras models: some of " + ", ".join(OPTIMIZERS),
    )
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        default=zoo_models.DATA,
        help="folder of DeepCTR's samples; without them, values are drawn",
    )
    parser.add_argument("--write", type=pathlib.Path, help="a Markdown file")
    arguments = parser.parse_args()
    models = arguments.models.split(",") if arguments.models else every
    optimizers = arguments.optimizers.split(",")
    for chosen, known in ((models, every), (optimizers, OPTIMIZERS)):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; there are {list(known)}")
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    jobs = [
        (model, f"Keras, {optimizer}")
        for optimizer in optimizers
        for model in models
        if model in zoo_models.KERAS
    ]
    own = "Estimators, Ftrl and Adagrad"
    jobs += [(model, own) for model in models if model in zoo_models.ESTIMATORS]
    rows = []
    for number, (model, title) in enumerate(jobs, 1):
        print(f"{number} of {len(jobs)}: {model}, {title}", file=sys.stderr)
        row = measure(model, title.removeprefix("Keras, "), arguments.data)
        rows.append(dataclasses.replace(row, optimizer=title))
    command = "python -m benchmarks.zoo"
    if arguments.models:
        command += f" --models {arguments.models}"
    if arguments.optimizers != parser.get_default("optimizers"):
        command += f" --optimizers {arguments.optimizers}"
    text = document(rows, command)
    print(text)
    if arguments.write:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)
    return int(any(row.packed and not same(row.stock, row.packed) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
