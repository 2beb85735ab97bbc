"""Plots of scaling: matplotlib."""

from __future__ import annotations

import collections
import pathlib
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

from benchmarks.cases import SCALING
from benchmarks.report import Result

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


def draw(
    results: Sequence[Result], folder: pathlib.Path, ending: str
) -> list[pathlib.Path]:
    """One PNG per axis; `ending` is that of its name."""
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
        paths.append(folder / f"{axis}{ending}.png")
        figure.savefig(paths[-1], dpi=120, metadata={"Software": None})
        pyplot.close(figure)
    return paths
