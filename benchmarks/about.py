"""What a run's figures are of: its command, date, versions and CPU."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import platform
import re
from importlib import metadata

from benchmarks.race import ROOT


def about(arguments: argparse.Namespace) -> dict:
    """As plain values, for JSON. Nothing in it names the machine or its folders."""
    info = pathlib.Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    return {
        "command": command(arguments),
        "date": datetime.date.today().isoformat(),
        "picasso_tf": _package_version(),
        "tensorflow": _tensorflow_version(),
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "caches": _caches(),
    }


def command(arguments: argparse.Namespace) -> str:
    """As it was called, but for the paths, which change no figure."""
    parts = ["python -m benchmarks", *arguments.words]
    for flag in ("quick", "cross"):
        parts += [f"--{flag}"] * getattr(arguments, flag)
    for option in ("rounds", "limit"):
        value = getattr(arguments, option)
        parts += [f"--{option} {value:g}"] if value else []
    return " ".join(parts + ["--no-fbgemm"] * arguments.no_fbgemm)


def _package_version() -> str:
    # Not by import, which would load TensorFlow.
    text = (ROOT / "picasso_tf" / "__init__.py").read_text()
    return re.search('^__version__ = "(.*)"', text, re.MULTILINE)[1]


def _tensorflow_version() -> str:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise SystemExit("TensorFlow is not installed here.")


def _caches() -> dict[str, str]:
    found = {}
    for index in sorted(pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("i*")):
        kind = (index / "type").read_text().strip()
        if kind != "Instruction":
            level = (index / "level").read_text().strip()
            found[f"L{level}"] = (index / "size").read_text().strip()
    return found
