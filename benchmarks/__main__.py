"""Speed of picasso_tf beside stock TensorFlow, all in one run.

Words choose cases by their labels: `steps W26 W200 session`, `kernels lookup`,
`scaling`. No word: all of them, which takes hours; `--quick`: a few, under a minute.

docs/performance.md joins several runs, of several versions of TensorFlow, say, each
of which was given a folder of its own:

    python -m benchmarks steps session --out build/sessions
    python -m benchmarks scaling --out build/scaling
    python -m benchmarks --page build/sessions/results.json build/scaling/results.json
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console

from benchmarks import about, cases, data, fbgemm_env, page, report
from benchmarks.cases import DENSE, Case, KernelCase, StepCase, ZooCase
from benchmarks.race import QUICK, ROOT, Failed, Job, Pace, race

DOCS = ROOT / "docs"


def reason_to_skip(case: Case, version: str) -> str:
    """Why this case cannot run here; empty: it can."""
    if isinstance(case, KernelCase):
        return ""
    if case.needs and not version.startswith("2.15."):
        return f"needs {case.needs}"
    with_deepctr = case.needs == cases.NEEDS_DEEPCTR
    if with_deepctr and not importlib.util.find_spec("deepctr"):
        return f"needs {case.needs}"
    if isinstance(case, ZooCase):
        return ""
    # An Estimator initializes all variables at once: their values are there twice.
    times = 2.2 if case.way == cases.ESTIMATOR else 1.2
    with_tables = [name for name in case.contenders if name != DENSE]
    need = case.workload.table_bytes * len(with_tables) * times
    if need > _available():
        return f"needs {need / 2**30:.0f} GiB of free memory"
    return ""


def _available() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def jobs_of(case: Case, fbgemm: pathlib.Path | None) -> list[Job]:
    jobs = []
    for contender in case.contenders:
        message = {"case": dataclasses.asdict(case), "contender": contender}
        if isinstance(case, StepCase):
            jobs.append(Job(contender, "benchmarks.steps", message))
        elif isinstance(case, ZooCase):
            jobs.append(Job(contender, "benchmarks.zoo_steps", message))
        elif contender in (cases.FBGEMM, cases.FBGEMM_1):
            if fbgemm:
                job = Job(contender, "benchmarks.fbgemm", message, str(fbgemm))
                jobs.append(job)
        elif contender == cases.COPY:
            jobs.append(Job(contender, "benchmarks.copies", message))
        else:
            jobs.append(Job(contender, "benchmarks.kernels", message))
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="labels of cases")
    parser.add_argument("--quick", action="store_true", help="few cases, few rounds")
    parser.add_argument("--list", action="store_true", help="name the cases, and end")
    parser.add_argument(
        "--cross", action="store_true", help="kernels: all combinations of properties"
    )
    parser.add_argument("--rounds", type=int, help="blocks of each contender")
    parser.add_argument(
        "--limit", type=float, metavar="S", help="seconds to a contender's first step"
    )
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=ROOT / "build" / "benchmarks",
        help="folder for results.md and results.json (build/benchmarks)",
    )
    parser.add_argument(
        "--page",
        type=pathlib.Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: write docs/performance.md and its plots from the "
        "results.json of these runs",
    )
    parser.add_argument(
        "--fbgemm",
        type=pathlib.Path,
        metavar="PYTHON",
        help="a Python that has FBGEMM; without, .venv/fbgemm is made at first use",
    )
    parser.add_argument("--no-fbgemm", action="store_true", help="kernels without it")
    arguments = parser.parse_args()
    if arguments.page:
        try:
            _write_page(arguments.page)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        return
    known = cases.all_cases(arguments.cross)
    if arguments.quick and not arguments.words:
        known = cases.quick_cases()
    try:
        chosen = cases.select(known, arguments.words)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        for case in chosen:
            needs = f"  ({case.needs})" if case.needs else ""
            print(" ".join(case.labels.values()) + needs)
        return
    pace = QUICK if arguments.quick else Pace()
    if arguments.rounds:
        pace = dataclasses.replace(pace, rounds=arguments.rounds)
    if arguments.limit:
        pace = dataclasses.replace(pace, limit_s=arguments.limit)
    run = report.Recorded(about.about(arguments))
    _measure(chosen, pace, arguments, run)
    print(report.markdown(run.results))
    if run.problems:
        sys.exit("\n".join(run.problems))


def _write_page(files: Sequence[pathlib.Path]) -> None:
    runs = []
    for file in files:
        try:
            run = report.Recorded.from_json(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        if run.problems:
            raise ValueError(f"{file} is worthless: {'; '.join(run.problems)}")
        runs.append(run)
    try:
        page.write(DOCS, runs)
    except ImportError as error:
        raise ValueError(f"{error}: --page needs pip install '.[bench]'") from error


def _save(run: report.Recorded, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(report.markdown(run.results))
    (folder / "results.json").write_text(run.to_json())


def _measure(chosen, pace: Pace, arguments, run: report.Recorded) -> None:
    """Adds to the run, and saves it after each case: all of them take long."""
    console = Console(stderr=True)
    fbgemm = None
    if any(isinstance(case, KernelCase) for case in chosen) and not arguments.no_fbgemm:
        fbgemm = fbgemm_env.python(arguments.fbgemm, make=not arguments.quick)
        if not fbgemm:
            console.print(fbgemm_env.HOW)
    for number, case in enumerate(chosen, 1):
        name = " ".join(case.labels.values())
        reason = reason_to_skip(case, run.about["tensorflow"])
        if reason:
            run.results.append(report.Result(case.labels, report.ALL, failure=reason))
            _save(run, arguments.out)
            continue
        with console.status(f"{number}/{len(chosen)}: {name}"):
            try:
                runs = race(jobs_of(case, fbgemm), pace)
            except Failed as error:
                run.problems.append(f"{name}: {cases.STOCK} failed: {error}")
                _save(run, arguments.out)
                continue
        more = {}
        if isinstance(case, KernelCase):
            more = dataclasses.asdict(data.moved(case))
        run.problems += report.problems(case, runs)
        run.results += report.results_of(case, runs, more)
        _save(run, arguments.out)


if __name__ == "__main__":
    main()
