"""All of DeepCTR's models, with picasso_tf and without: losses, ops, packs."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2, node_def_pb2
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
# Written as a subgraph per pair of fields: 325 of them, with all 26 fields.
OF_PAIRS = ("FiBiNET", "ONN", "FwFM", "DeepFEFM")
FEWER_FIELDS = 10
JOBS_OF_A_PROCESS = 6  # roughly
# What `--check` asks for.
LEAST_PACKED, MOST_OPS = 0.9, 0.2
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
        """Variables that stock's ops look up and update, but for slots."""
        nodes = {node.name: node for node in self.graph.node}

        def is_lookup(node) -> bool:
            # The new Adagrad gathers from the slot that it has just updated.
            waits = (nodes[i[1:]].op for i in node.input if i.startswith("^"))
            return node.op in LOOKUP_OPS and not any(map(_writes, waits))

        return self.written() & self._variables(is_lookup)

    def written(self) -> set[str]:
        """Variables that stock's ops update."""
        return self._variables(lambda node: _writes(node.op))

    def _variables(self, chosen: Callable[[node_def_pb2.NodeDef], bool]) -> set[str]:
        """Names of the variables that are the first input of the chosen nodes.

        Arguments of a function go by their position.
        """
        nodes = {node.name: node for node in self.graph.node}
        names = set()
        for node in filter(chosen, self.graph.node):
            while node.input:
                node = nodes[node.input[0].split(":")[0].lstrip("^")]
            if node.op == "_Arg":
                names.add(f"argument {node.attr['index'].i}")
            elif node.op == "VarHandleOp":
                names.add(node.attr["shared_name"].s.decode() or node.name)
        return names


def _writes(op: str) -> bool:
    return op.startswith(WRITING)


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
    _create_variables(model, feeding.labels)
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


def _create_variables(model: tf.keras.Model, labels: list[np.ndarray]) -> None:
    """Those that the first step would create: it would be traced a second time."""
    if hasattr(model.optimizer, "build"):  # not the legacy ones
        model.optimizer.build(model.trainable_variables)
    outputs = model.output if len(labels) > 1 else [model.output]
    truths = [tf.keras.Input(label.shape[1:], dtype=label.dtype) for label in labels]
    if len(labels) == 1:
        (outputs,), (truths,) = outputs, truths
    model.compiled_loss.build(outputs)
    model.compiled_metrics.build(outputs, truths)


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
    """Losses of all steps, the graph of the first, and all variables at the end."""

    def __init__(self, ops: bool):
        self.losses = []
        self.weights = []
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

    def end(self, session):
        with session.graph.as_default():
            variables = sorted(tf1.global_variables(), key=lambda v: v.name)
        self.weights = session.run(variables)


def run_estimator(name, clicks, options=None, steps=STEPS, ops=True) -> Run:
    """Trains an Estimator of zoo_models.ESTIMATORS, with its own optimizers."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(SEED)  # for the initializers without a seed
    record = _Record(ops)

    def batches():
        features = {key: value.astype(np.int32) for key, value in clicks.ids.items()}
        features |= {k: v.astype(np.float32) for k, v in clicks.dense.items()}
        data = tf.data.Dataset.from_tensor_slices((features, clicks.labels))
        return data.batch(BATCH).take(steps)

    seen = picasso_tf.reports()
    with tempfile.TemporaryDirectory() as folder:
        session = picasso_tf.estimator_config(options=options) if options else None
        config = tf.estimator.RunConfig(
            model_dir=folder,
            tf_random_seed=SEED,
            session_config=session,
            # Else the graph is written as text, which takes longer than training.
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
        )
        with _quiet():
            estimator = zoo_models.estimator(name, clicks, config)
            estimator.train(batches, hooks=[record])
    return Run(record.losses, record.weights, record.graph, _report(seen))


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


@dataclasses.dataclass(frozen=True)
class Row:
    """A model, trained with and without; or why stock TensorFlow cannot.

    Attributes:
      ops, apart: executed ops a step without NO_WORK, and those of NO_WORK, of
        stock TensorFlow and with picasso_tf.
      lookups, updates: (packed, found), as the report has it.
      tables: (updated by packs alone, all that are looked up and updated).
      same: losses and variables are equal, bit by bit.
      reasons: how many nodes were left alone, and why.
      error: of stock TensorFlow.
    """

    model: str
    ops: tuple[int, int] = (0, 0)
    apart: tuple[int, int] = (0, 0)
    lookups: tuple[int, int] = (0, 0)
    updates: tuple[int, int] = (0, 0)
    tables: tuple[int, int] = (0, 0)
    same: bool = True
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def ratio(self) -> float:
        return self.ops[1] / self.ops[0]

    def cells(self) -> list[str]:
        shares = (self.lookups, self.updates, self.tables)
        return [
            self.model,
            *(f"{count:,}" for count in self.ops),
            f"{self.ratio:.2f}",
            "{:,} → {:,}".format(*self.apart),
            *("{} of {}".format(*share) for share in shares),
            "equal" if self.same else "**different**",
        ]


def compare(model: str, stock: Run, packed: Run) -> Row:
    tables = stock.tables()
    shares = {}
    for kind in ("lookup", "update"):
        count = packed.members(kind)
        shares[kind] = count, count + len(packed.skipped(kind))
    reasons = packed.report.reasons() if packed.report else {}
    return Row(
        model,
        ops=(stock.work, packed.work),
        apart=(stock.ops.total() - stock.work, packed.ops.total() - packed.work),
        lookups=shares["lookup"],
        updates=shares["update"],
        tables=(len(tables - packed.written()), len(tables)),
        same=same(stock, packed),
        reasons={reason: len(nodes) for reason, nodes in reasons.items()},
    )


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


def measure(model: str, optimizer: str, data: pathlib.Path, quick: bool) -> Row:
    """Trains with stock TensorFlow, then with picasso_tf."""
    tf1.logging.set_verbosity(tf1.logging.ERROR)
    # FLEN is made for groups of fields, which DeepCTR has for this sample.
    sample = zoo_models.AVAZU if model == "FLEN" else zoo_models.CRITEO
    clicks = zoo_models.read_clicks(data, sample)
    if quick and model.removesuffix("Estimator") in OF_PAIRS:
        clicks = clicks.with_fields(list(clicks.ids)[:FEWER_FIELDS])
    if model in zoo_models.ESTIMATORS:
        run = functools.partial(run_estimator, model, clicks)
    else:
        run = functools.partial(run_keras, model, clicks, optimizer)
    try:
        stock = run()
    except Exception as error:  # whatever it is, it is the model's own
        lines = [line.strip() for line in str(error).splitlines()]
        # Keras puts the place in front and the arguments behind.
        said = [line for line in lines if line.startswith(type(error).__name__)]
        return Row(model, error=(said or [f"{type(error).__name__}: {lines[0]}"])[0])
    return compare(model, stock, run(STRICT))


def markdown(rows: list[Row]) -> str:
    """The table of one optimizer, its medians, and the reasons."""
    ran = [row for row in rows if not row.error]
    lines = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in ran]
    if ran:
        stock, packed = np.median([row.ops for row in ran], axis=0)
        ratio = np.median([row.ratio for row in ran])
        shares = [
            "{} {} of {}".format(name, *np.sum([getattr(r, name) for r in ran], 0))
            for name in ("lookups", "updates", "tables")
        ]
        lines += [
            "",
            f"Medians: {stock:,.0f} ops with stock TensorFlow, {packed:,.0f} with "
            f"picasso_tf, ratio {ratio:.2f}. Packed, all together: "
            f"{', '.join(shares)}.",
        ]
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for row in ran:
        for reason, count in row.reasons.items():
            reasons[reason].append(f"{row.model} {count}")
    if reasons:
        lines += ["", "Left alone:", ""]
        lines += [f"- {why}: {', '.join(of)}" for why, of in sorted(reasons.items())]
    failed = [row for row in rows if row.error]
    if failed:
        lines += ["", "Stock TensorFlow cannot train:", ""]
        lines += [f"- {row.model}: `{row.error}`" for row in failed]
    return "\n".join(lines) + "\n"


def shortfalls(rows: list[Row]) -> list[str]:
    """In what the models of one table fall short."""
    ran = [row for row in rows if not row.error]
    if not ran:
        return []
    found = [f"{row.model} trains differently" for row in ran if not row.same]
    for name in ("lookups", "updates", "tables"):
        packed, known = np.sum([getattr(row, name) for row in ran], 0)
        if packed < LEAST_PACKED * known:
            found.append(f"{packed} of {known} {name} are packed")
    ratio = np.median([row.ratio for row in ran])
    if ratio > MOST_OPS:
        found.append(f"the median ratio of ops is {ratio:.2f}")
    return found


INTRODUCTION = """\
# DeepCTR's models

Written by `{command}`: DeepCTR {deepctr}, TensorFlow {tensorflow}.

Each model is built with its default settings, l2 included, and trained for {steps}
steps of {batch} examples, first by stock TensorFlow, then with
`picasso_tf.enabled(Options(strict=True))`, from one seed. Losses and all variables at
the end, those of the optimizer too, must be equal bit by bit.

- ops: nodes of the training step as it is executed, after all of TensorFlow's own
  optimizers. Those that only name, hold or read a value are counted apart:
  {apart}.
- lookups packed, updates packed: out of those that the report knows, packed or left
  alone with a reason.
- tables updated by packs: out of all variables that are looked up and trained; no op of
  stock TensorFlow writes to those any more.

DeepCTR's examples compile with "adam" or "adagrad", which TensorFlow 2.15 takes for its
new optimizers, `tf.keras.optimizers.Adam` and `Adagrad`. Models of sequences get
generated histories, FLEN gets the sample of Avazu, all others that of Criteo. With
`--quick`, {pairs}, which have a subgraph for each pair of fields, get
{fewer} of its 26 fields.
"""


def document(rows: dict[str, list[Row]], command: str) -> str:
    """Markdown; `rows` by title."""
    parts = [
        INTRODUCTION.format(
            command=command,
            deepctr=zoo_models.deepctr.__version__,
            tensorflow=tf.__version__,
            steps=STEPS,
            batch=BATCH,
            apart=", ".join(NO_WORK),
            pairs=", ".join(OF_PAIRS),
            fewer=FEWER_FIELDS,
        )
    ]
    parts += [f"## {title}\n\n{markdown(of)}" for title, of in rows.items()]
    return "\n".join(parts)


def results_of(jobs, arguments) -> Iterator[tuple[str, str, Row]]:
    """(title, model, row) of all jobs, in their order.

    In new processes now and then, since TensorFlow keeps the functions of all models.
    (An executor's own max_tasks_per_child can wait for ever in Python 3.11.)
    """
    a_pool = JOBS_OF_A_PROCESS * arguments.jobs
    for begin in range(0, len(jobs), a_pool):
        some = jobs[begin : begin + a_pool]
        with futures.ProcessPoolExecutor(
            arguments.jobs, multiprocessing.get_context("spawn")
        ) as pool:
            running = [
                pool.submit(measure, model, optimizer, arguments.data, arguments.quick)
                for _, model, optimizer in some
            ]
            for (title, model, _), job in zip(some, running, strict=True):
                yield title, model, job.result()


def main() -> int:
    """Returns 1 if any model trained differently, or, with --check, if too little
    was packed."""
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
    parser.add_argument("--jobs", type=int, default=2, help="models at a time")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{FEWER_FIELDS} fields for {', '.join(OF_PAIRS)}",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail if less than nine of ten lookups, updates or tables are packed, or "
        f"the median ratio of ops is above {MOST_OPS}",
    )
    arguments = parser.parse_args()
    models = arguments.models.split(",") if arguments.models else every
    optimizers = arguments.optimizers.split(",")
    for chosen, known in ((models, every), (optimizers, OPTIMIZERS)):
        unknown = [name for name in chosen if name not in known]
        if unknown:
            parser.error(f"unknown: {', '.join(unknown)}; there are {list(known)}")
    jobs = [
        (f"Keras, {optimizer}", model, optimizer)
        for optimizer in optimizers
        for model in models
        if model in zoo_models.KERAS
    ]
    jobs += [
        ("Estimators, Ftrl and Adagrad", model, "")
        for model in models
        if model in zoo_models.ESTIMATORS
    ]
    command = "python -m benchmarks.zoo"
    if arguments.models:
        command += f" --models {arguments.models}"
    if arguments.optimizers != parser.get_default("optimizers"):
        command += f" --optimizers {arguments.optimizers}"
    if arguments.quick:
        command += " --quick"
    rows: dict[str, list[Row]] = collections.defaultdict(list)
    for number, (title, model, row) in enumerate(results_of(jobs, arguments), 1):
        rows[title].append(row)
        said = row.error or " | ".join(row.cells())
        print(f"{number} of {len(jobs)}: {model}, {title}: {said}", file=sys.stderr)
        if arguments.write:  # after each: all of them take long
            arguments.write.parent.mkdir(parents=True, exist_ok=True)
            arguments.write.write_text(document(rows, command))
    print(document(rows, command))
    if not arguments.check:
        return int(not all(row.same for of in rows.values() for row in of))
    found = [f"{title}: {what}" for title in rows for what in shortfalls(rows[title])]
    print("\n".join(found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
