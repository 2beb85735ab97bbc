"""The environment of FBGEMM, which needs PyTorch: apart from TensorFlow's."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from benchmarks.race import ROOT

FOLDER = ROOT / ".venv" / "fbgemm"
PACKAGES = ("torch==2.13.0", "fbgemm-gpu-cpu==1.8.0", "numpy")
HOW = (
    "Without FBGEMM: `python -m benchmarks kernels` makes .venv/fbgemm; or give "
    "--fbgemm a Python that has " + ", ".join(PACKAGES)
)


def python(given: pathlib.Path | None, make: bool) -> pathlib.Path | None:
    """A Python that has FBGEMM: `given`, or that of FOLDER, made by pip if it is
    not there and `make`; None: there is none."""
    if given:
        return given
    found = FOLDER / "bin" / "python"
    ready = FOLDER / ".ready"
    if ready.exists():
        return found
    if not make:
        return None
    print(f"installing {', '.join(PACKAGES)} into {FOLDER}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
    pip = [found, "-m", "pip", "install", "-q", *PACKAGES]
    done = subprocess.run(pip, stdout=sys.stderr)
    if done.returncode != 0:
        return None
    ready.touch()
    return found
