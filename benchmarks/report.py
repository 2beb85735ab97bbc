"""Results of a race as rows, Markdown and JSON. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.cases import (
    COPY,
    FBGEMM,
    FBGEMM_1,
    NO_META,
    OURS,
    SCALING,
    STEPS,
    STOCK,
    XLA,
    ZOO,
    Case,
    ZooCase,
)
from benchmarks.race import Run

ALL = "all"  # contenders, of a case that did not run
OTHERS = (STOCK, NO_META, XLA)
# What a contender says of itself.
FIGURES = (
    "peak_mib", "ops_graph", "ops_executed", "first_before_s", "first_passes_s",
)  # fmt: skip


@dataclasses.dataclass
class Result:
    """One contender of one case.

    Attributes:
      labels: of the case.
      step_ms, quartiles_ms: of the medians of the rounds.
      to_stock: how many times as fast as stock, the median over the rounds of the
        ratio of the two blocks of a round; to_stock_quartiles: its quartiles.
      to_best, to_best_quartiles: of picasso_tf, the same with the fastest block that
        one of OTHERS had in the round, instead of stock's.
      first_s: time to the first step's result.
      first_before_s, first_passes_s: of picasso_tf, what of that passed until it was
        first called, and in its passes.
      peak_mib: most memory held, beyond what was held before the model was built.
      ops_graph, ops_executed: of the optimized graph, and of a step; None: unknown.
      failure: why there are no figures; empty: there are.
    """

    labels: dict[str, str]
    contender: str
    step_ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    to_stock: float | None = None
    to_stock_quartiles: tuple[float, float] | None = None
    to_best: float | None = None
    to_best_quartiles: tuple[float, float] | None = None
    first_s: float | None = None
    first_before_s: float | None = None
    first_passes_s: float | None = None
    peak_mib: float | None = None
    ops_graph: int | None = None
    ops_executed: int | None = None
    failure: str = ""
    more: dict = dataclasses.field(default_factory=dict)


def results_of(case: Case, runs: Mapping[str, Run], more: dict) -> list[Result]:
    """One Result per contender. `more` goes into each."""
    stock = _medians(runs[STOCK])
    others = [runs[name] for name in OTHERS if name in runs]
    times = [_medians(run) for run in others if not run.failure]
    best = [min(of_a_round) for of_a_round in zip(*times, strict=True)]
    results = []
    for run in runs.values():
        result = Result(case.labels, run.contender, failure=run.failure, more=more)
        results.append(result)
        medians = _medians(run)
        if run.failure or not medians:
            continue
        result.step_ms = statistics.median(medians) * 1e3
        result.quartiles_ms = _quartiles([seconds * 1e3 for seconds in medians])
        result.to_stock, result.to_stock_quartiles = _ratio(stock, medians)
        if run.contender == OURS:
            result.to_best, result.to_best_quartiles = _ratio(best, medians)
        result.first_s = run.first_s
        for name in FIGURES:
            setattr(result, name, run.figures.get(name))
    return results


def _ratio(others: Sequence[float], own: Sequence[float]):
    """Median and quartiles of how many times as long the others' rounds took."""
    ratios = [other / mine for other, mine in zip(others, own, strict=True)]
    return statistics.median(ratios), _quartiles(ratios)


def _medians(run: Run) -> list[float]:
    return [statistics.median(block) for block in run.blocks]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (low, high)


def problems(case: Case, runs: Mapping[str, Run]) -> list[str]:
    """What makes a run worthless: ours failed, or computed something else."""
    name = " ".join(case.labels.values())
    ours, stock = runs[OURS], runs[STOCK]
    if ours.failure:
        return [f"{name}: {OURS} failed: {ours.failure}"]
    if isinstance(case, ZooCase) and not case.is_repeatable:
        near = [
            math.isclose(mine, other, rel_tol=1e-3)
            for mine, other in zip(ours.losses, stock.losses, strict=True)
        ]
        return [] if all(near) else [f"{name}: losses are far from stock's"]
    found = []
    if ours.losses != stock.losses:
        found.append(f"{name}: losses differ from stock's")
    if ours.figures.get("digest") != stock.figures.get("digest"):
        found.append(f"{name}: results differ from stock's")
    for other in (runs[key] for key in (FBGEMM, FBGEMM_1) if key in runs):
        there, here = other.figures.get("checksum"), stock.figures["checksum"]
        if there is not None and abs(there - here) > 1e-4 * abs(here):
            found.append(f"{name}: {other.contender} computes {there}, stock {here}")
    return found


# -- Markdown ---------------------------------------------------------------------


def number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def spread(value: float | None, ends: tuple[float, float] | None) -> str:
    """'1.23 (1.20-1.30)'."""
    if value is None:
        return "–"
    return f"{number(value)} ({number(ends[0])}-{number(ends[1])})"


def _parts(before: float | None, within: float | None) -> str:
    return "–" if before is None else f"{number(before)} / {number(within)}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown(results: Sequence[Result]) -> str:
    """All tables; a group that has no result has none."""
    parts = []
    for group, text in sections(results).items():
        parts += [f"## {group.capitalize()}", text]
    return "\n\n".join(parts) + "\n"


def sections(results: Sequence[Result]) -> dict[str, str]:
    """By group, its table, and what has no figures."""
    found = {}
    tables = {STEPS: _steps, SCALING: _scaling, ZOO: _zoo}
    for group in dict.fromkeys(result.labels["group"] for result in results):
        chosen = [r for r in results if r.labels["group"] == group]
        measured = [r for r in chosen if r.step_ms or r.contender != ALL]
        parts = [tables.get(group, _kernels)(measured)] if measured else []
        failed = [r for r in chosen if r.failure]
        if failed:
            notes = [
                f"- {' '.join(r.labels.values())}, {r.contender}: {r.failure}"
                for r in failed
            ]
            parts.append("Without figures:\n\n" + "\n".join(notes))
        found[group] = "\n\n".join(parts)
    return found


def _steps(results: Sequence[Result]) -> str:
    head = (
        "case", "form", "way", "contender", "step ms", "steps/s", "x stock",
        "x best other", "first step s", "before / in our passes s", "peak MiB",
        "ops in graph", "ops a step",
    )  # fmt: skip
    return table(
        head,
        [
            (
                result.labels["case"],
                result.labels["form"],
                result.labels["way"],
                result.contender,
                spread(result.step_ms, result.quartiles_ms),
                number(1e3 / result.step_ms if result.step_ms else None, 0),
                spread(result.to_stock, result.to_stock_quartiles),
                spread(result.to_best, result.to_best_quartiles),
                number(result.first_s),
                _parts(result.first_before_s, result.first_passes_s),
                number(result.peak_mib, 0),
                number(result.ops_graph, 0),
                number(result.ops_executed, 0),
            )
            for result in results
        ],
    )


def _scaling(results: Sequence[Result]) -> str:
    head = ("case", "contender", "step ms", "steps/s", "x stock")
    return table(
        head,
        [
            (
                result.labels["case"],
                result.contender,
                spread(result.step_ms, result.quartiles_ms),
                number(1e3 / result.step_ms if result.step_ms else None, 0),
                spread(result.to_stock, result.to_stock_quartiles),
            )
            for result in results
        ],
    )


def _zoo(results: Sequence[Result]) -> str:
    head = (
        "model", "stock ms", "picasso_tf ms", "x stock",
        "first step s, stock", "picasso_tf", "x stock", "ops in graph, stock",
        "picasso_tf",
    )  # fmt: skip
    rows, steps, firsts = [], [], []
    of_stock = {r.labels["case"]: r for r in results if r.contender == STOCK}
    for own in results:
        stock = of_stock.get(own.labels["case"])
        if own.contender != OURS or not own.step_ms or not stock:
            continue
        first = stock.first_s / own.first_s
        steps.append(own.to_stock)
        firsts.append(first)
        rows.append(
            (
                own.labels["case"],
                spread(stock.step_ms, stock.quartiles_ms),
                spread(own.step_ms, own.quartiles_ms),
                spread(own.to_stock, own.to_stock_quartiles),
                number(stock.first_s),
                number(own.first_s),
                number(first),
                number(stock.ops_graph, 0),
                number(own.ops_graph, 0),
            )
        )
    text = table(head, rows)
    if rows:
        mean, median = statistics.geometric_mean(steps), statistics.median(steps)
        text += (
            f"\n\nTimes stock, of {len(rows)} models: geometric mean {mean:.2f}, "
            f"median {median:.2f}, least {min(steps):.2f}; of the first step: "
            f"geometric mean {statistics.geometric_mean(firsts):.2f}."
        )
    return text


def _kernels(results: Sequence[Result]) -> str:
    head = (
        "case", "contender", "call ms", "x stock", "x the copy's time",
        "ids", "unique rows", "MiB to move",
    )  # fmt: skip
    limits = {r.labels["case"]: r.step_ms for r in results if r.contender == COPY}
    rows = []
    for result in results:
        limit = limits.get(result.labels["case"])
        to_limit = result.step_ms / limit if limit and result.step_ms else None
        rows.append(
            (
                result.labels["case"],
                result.contender,
                spread(result.step_ms, result.quartiles_ms),
                spread(result.to_stock, result.to_stock_quartiles),
                number(to_limit),
                number(result.more.get("ids"), 0),
                number(result.more.get("unique_rows"), 0),
                number(result.more.get("bytes", 0) / 2**20, 1),
            )
        )
    return table(head, rows)


# -- files ------------------------------------------------------------------------


@dataclasses.dataclass
class Recorded:
    """One run of the runner.

    Attributes:
      about: its command, date, versions and CPU (about.py).
      problems: what makes it worthless.
    """

    about: dict
    results: list[Result] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Recorded:
        """The inverse of `to_json`, but for tuples, which are lists then.

        Raises:
          ValueError: the text is something else.
        """
        try:
            values = json.loads(text)
            results = [Result(**result) for result in values.pop("results")]
            return cls(results=results, **values)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no results of this version: {error}") from error
