"""docs/performance.md and its plots: matplotlib."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.cases import SCALING
from benchmarks.report import Result

FOLDER = "performance"
UNITS = {"fields": "fields (tables)", "batch": "examples a step"}


def lines(results: Sequence[Result]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Of scaling results: points (value, steps a second) by axis and by line."""
    found: dict = collections.defaultdict(lambda: collections.defaultdict(list))
    for result in results:
        if result.labels["group"] != SCALING or not result.step_ms:
            continue
        settings = dict(part.split("=") for part in result.labels["case"].split(","))
        axis, threads = result.labels["axis"], settings["threads"]
        plural = "s" if threads != "1" else ""
        line = f"{result.contender}, {threads} thread{plural}"
        found[axis][line].append((float(settings[axis]), 1e3 / result.step_ms))
    return {axis: dict(by_line) for axis, by_line in found.items()}


def draw(results: Sequence[Result], folder: pathlib.Path) -> list[pathlib.Path]:
    """One PNG per axis."""
    paths = []
    for axis, by_line in lines(results).items():
        figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
        for name, points in by_line.items():
            style = "--" if "1 thread" in name else "-"
            color = "C1" if name.startswith("picasso_tf") else "C0"
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, style, color=color, marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=UNITS[axis], ylabel="steps/s")
        axes.grid(alpha=0.3)
        axes.legend()
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{axis}.png")
        figure.savefig(paths[-1], dpi=120, metadata={"Software": None})
        pyplot.close(figure)
    return paths


def page(about: dict, text: str, plots: Sequence[str], arguments: Sequence[str]) -> str:
    """docs/performance.md."""
    command = " ".join(["python -m benchmarks", *arguments])
    caches = ", ".join(f"{name} {size}" for name, size in about["caches"].items())
    parts = [
        "# Performance",
        f"Written by `{command}`.",
        f"TensorFlow {about['tensorflow']}; {about['cores']} cores of {about['cpu']} "
        f"({caches}); load {about['load']} at the start.",
        METHOD,
        *(f"![{pathlib.Path(plot).stem}]({plot})" for plot in plots),
        text,
    ]
    return "\n\n".join(parts).rstrip() + "\n"


METHOD = """\
Each contender is a process of its own. Blocks of steps alternate between them, so that
what else the machine does is shared. A time is the median over the rounds of a block's
median step, with quartiles; "x stock" is the median, with quartiles, of how many times
as fast as stock's block of the same round it was. Losses of picasso_tf equal stock's in
every step, bit by bit, or the run fails.

- Workloads: W26 is 26 tables of 10,000 x 16, batch 512; W200 200 of 2,000 x 16, 512;
  W1000 1,000 of 1,000 x 8, 256; BIG26 26 of 1,000,000 x 16, 2,048. Ids are Zipf 1.2,
  the optimizer is Adagrad, the MLP 64-32-1. DLRM has Criteo's 26 vocabularies, cut at
  a million rows, and 13 dense features. safe-sparse: none, one or two ids a field.
- First step: from the finished, initialized graph in a session; from the call of `fit`
  or `train`, tracing or building the graph included, in Keras and Estimators.
- Peak memory is that of the process, beyond what it held before the model was built.
- Ops in the graph: nodes that the executor is given. Ops a step: executed, without
  VarHandleOp, Const, Placeholder; Keras gives no trace of them.
- XLA compiles loss and gradients in sessions and Estimators, where it has no sparse
  Adagrad; in Keras the whole step.
- Kernels: a call of TensorFlow includes feeding 26 tensors of ids (78 for bags), of
  FBGEMM one of ids and one of offsets. Bytes to move: ids, distinct rows and pooled
  rows once each; for updates the gradient too, and distinct rows and slots once read
  and once written. The copy reads and writes as many in all, the same in each call.
- Scaling: 100 tables of 1,000 x 16, batch 512, but for what is varied."""


def write_page(
    docs: pathlib.Path,
    about: dict,
    results: Sequence[Result],
    text: str,
    arguments: Sequence[str],
) -> None:
    paths = draw(results, docs / FOLDER)
    plots = [str(path.relative_to(docs)) for path in paths]
    (docs / "performance.md").write_text(page(about, text, plots, arguments))
