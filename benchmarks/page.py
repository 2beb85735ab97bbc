"""docs/performance.md, from the results of one run or several."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from benchmarks import report
from benchmarks.cases import SCALING
from benchmarks.report import Recorded

FOLDER = "performance"


def write(docs: pathlib.Path, runs: Sequence[Recorded]) -> None:
    """The page and its plots; those of an earlier page go.

    Raises:
      ImportError: there is no matplotlib.
    """
    from benchmarks import plots

    folder = docs / FOLDER
    for old in folder.glob("*.png"):
        old.unlink()
    drawn = []
    for number, run in enumerate(runs, 1):
        paths = plots.draw(run.results, folder, f"-{number}" if number > 1 else "")
        drawn.append([str(path.relative_to(docs)) for path in paths])
    (docs / "performance.md").write_text(page(runs, drawn))


def page(runs: Sequence[Recorded], drawn: Sequence[Sequence[str]]) -> str:
    """Markdown; `drawn` are the plots of each run, relative to the page."""
    parts = ["# Performance", INTRODUCTION, METHOD]
    for run, paths in zip(runs, drawn, strict=True):
        for group, text in report.sections(run.results).items():
            version = run.about["tensorflow"]
            parts += [f"## {group.capitalize()}, TensorFlow {version}", _said(run)]
            if group == SCALING:
                parts += [f"![{pathlib.Path(path).stem}]({path})" for path in paths]
            parts.append(text)
    return "\n\n".join(parts).rstrip() + "\n"


def _said(run: Recorded) -> str:
    about = run.about
    caches = ", ".join(f"{name} {size}" for name, size in about["caches"].items())
    return (
        f"By `{about['command']}`, {about['date']}: picasso_tf {about['picasso_tf']}, "
        f"TensorFlow {about['tensorflow']}; {about['cores']} cores of {about['cpu']} "
        f"({caches}); load {about['load']} at the start."
    )


INTRODUCTION = """\
Written by `python -m benchmarks --page`, from the results of the runs whose commands
stand above the tables."""

METHOD = """\
Each contender is a process of its own. Blocks of steps alternate between them, so that
what else the machine does is shared. A time is the median over the rounds of a block's
median step, with quartiles; "x stock" is the median, with quartiles, of how many times
as fast as stock's block of the same round it was; "x best other", in the row of
picasso_tf, the same of the fastest block that stock, stock without the meta optimizer
or XLA had in the round. Losses of picasso_tf equal stock's in every step, bit by bit,
or the run fails. Figures of different runs are not to be compared: the machine changes.

- Workloads: W26 is 26 tables of 10,000 x 16, batch 512; W200 200 of 2,000 x 16, 512;
  W1000 1,000 of 1,000 x 8, 256; BIG26 26 of 1,000,000 x 16, 2,048. Ids are Zipf 1.2,
  the optimizer is Adagrad, the MLP 64-32-1. DLRM has Criteo's 26 vocabularies, cut at
  a million rows, and 13 dense features. safe-sparse: none, one or two ids a field.
- First step: from the finished, initialized graph in a session; from the call of `fit`
  or `train`, tracing or building the graph included, in Keras and Estimators. "Before /
  in our passes": of that, what passed until TensorFlow first called picasso_tf
  (building, importing and placing the graph), and what its passes took, in Python. The
  rest are TensorFlow's own optimizers, the making of kernels, and the step.
- Dense layers alone: the same layers, loss and Adagrad behind a variable in place of
  the rows, the gradient of which is computed; no ids, no tables. No packing of the
  tables can make a step shorter than that by stock's own layers.
- Peak memory is that of the process, beyond what it held before the model was built.
- Ops in the graph: nodes that the executor is given. Ops a step: executed, without
  VarHandleOp, Const, Placeholder; Keras gives no trace of them.
- XLA compiles loss and gradients in sessions and Estimators, where it has no sparse
  Adagrad; in Keras the whole step.
- Batches wait in memory, for TensorFlow in a dataset. A kernel's call of TensorFlow is
  a step of a session, which takes a tensor of ids per table from it (three for bags);
  FBGEMM is given one of ids and one of offsets. lookup-W26 and the like are the
  embedding ops of a workload, without its layers. An update is lookup, backward and
  Adagrad.
- Bytes to move: ids, distinct rows and pooled rows once each; for updates the gradient
  too, and distinct rows and slots once read and once written; rows in whole cache lines
  of 64 bytes. The copy reads and writes as many in all, from as many places in turn as
  there are batches (8).
- Scaling: 100 tables of 1,000 x 16, batch 512, but for what is varied."""
