"""Speed of picasso_tf beside stock TensorFlow, all in one run.

Words choose cases by their labels: `steps W26 W200 session`, `kernels lookup`,
`scaling`. No word: all of them, which takes hours; `--quick`: a few, under a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import sys
from importlib import metadata

from rich.console import Console

from benchmarks import cases, data, fbgemm_env, report
from benchmarks.cases import Case, KernelCase, StepCase
from benchmarks.race import QUICK, ROOT, Failed, Job, Pace, race

DOCS = ROOT / "docs"


def tensorflow_version() -> str:
    """Of the package that is installed; TensorFlow itself is not imported here."""
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise SystemExit("TensorFlow is not installed here.")


def machine() -> dict:
    info = pathlib.Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "tensorflow": tensorflow_version(),
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "caches": _caches(),
    }


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("i*")):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            level = (index / "level").read_text().strip()
            found[f"L{level}"] = (index / "size").read_text().strip()
    return found


def reason_to_skip(case: Case, version: str) -> str:
    """Why this case cannot run here; empty: it can."""
    if isinstance(case, KernelCase):
        return ""
    old = version.startswith("2.15.")
    if case.way == cases.ESTIMATOR and not old:
        return "TensorFlow 2.15 was the last with Estimator"
    if case.workload.model == "deepfm" and not old:
        return "DeepCTR needs Keras 2: TensorFlow 2.15"
    # An Estimator initializes all variables at once: their values are there twice.
    times = 2.2 if case.way == cases.ESTIMATOR else 1.2
    need = case.workload.table_bytes * len(case.contenders) * times
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
        "--write", action="store_true", help="write docs/performance.md and its plots"
    )
    parser.add_argument(
        "--fbgemm",
        type=pathlib.Path,
        metavar="PYTHON",
        help="a Python that has FBGEMM; without, .venv/fbgemm is made at first use",
    )
    parser.add_argument("--no-fbgemm", action="store_true", help="kernels without it")
    arguments = parser.parse_args()
    known = cases.all_cases(arguments.cross)
    if arguments.quick and not arguments.words:
        known = cases.quick_cases()
    try:
        chosen = cases.select(known, arguments.words)
    except ValueError as error:
        parser.error(str(error))
    if arguments.list:
        print("\n".join(" ".join(case.labels.values()) for case in chosen))
        return
    pace = QUICK if arguments.quick else Pace()
    if arguments.rounds:
        pace = dataclasses.replace(pace, rounds=arguments.rounds)
    if arguments.limit:
        pace = dataclasses.replace(pace, limit_s=arguments.limit)
    about = machine()
    if arguments.write:
        try:  # before hours of measuring
            from benchmarks import plots
        except ImportError as error:
            parser.error(f"--write needs matplotlib (pip install '.[bench]'): {error}")
    results, bad = _measure(chosen, pace, arguments, about["tensorflow"])
    text = report.markdown(results)
    print(text)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "results.md").write_text(text)
    (arguments.out / "results.json").write_text(report.to_json(about, results, bad))
    if bad:
        sys.exit("\n".join(bad))
    if arguments.write:
        plots.write_page(DOCS, about, results, text, sys.argv[1:])


def _measure(chosen, pace: Pace, arguments, version: str):
    results, bad = [], []
    console = Console(stderr=True)
    fbgemm = None
    if any(isinstance(case, KernelCase) for case in chosen) and not arguments.no_fbgemm:
        fbgemm = fbgemm_env.python(arguments.fbgemm, make=not arguments.quick)
        if not fbgemm:
            console.print(fbgemm_env.HOW)
    for number, case in enumerate(chosen, 1):
        name = " ".join(case.labels.values())
        reason = reason_to_skip(case, version)
        if reason:
            results.append(report.Result(case.labels, "all", failure=reason))
            continue
        with console.status(f"{number}/{len(chosen)}: {name}"):
            try:
                runs = race(jobs_of(case, fbgemm), pace)
            except Failed as error:
                bad.append(f"{name}: {cases.STOCK} failed: {error}")
                continue
        more = {}
        if isinstance(case, KernelCase):
            more = dataclasses.asdict(data.moved(case))
        bad += report.problems(case, runs)
        results += report.results_of(case, runs, more)
    return results, bad


if __name__ == "__main__":
    main()
