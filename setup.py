"""Builds the native library with CMake and Ninja, incrementally."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def tensorflow_build_flags():
    """Version and flags of the installed TensorFlow, asked in a process of its own."""
    code = (
        "import tensorflow as tf, json; "
        "print(json.dumps([tf.__version__, tf.sysconfig.get_compile_flags(), "
        "tf.sysconfig.get_link_flags()]))"
    )
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env
    )
    if run.returncode != 0:
        raise SystemExit(
            "picasso_tf is compiled against the TensorFlow that it will run with, "
            f"and {sys.executable} cannot import one:\n{run.stderr[-500:]}\n"
            "Install TensorFlow first, then run\n"
            "    pip install --no-build-isolation ."
        )
    return json.loads(run.stdout.strip().splitlines()[-1])


class BuildNative(build_ext):
    """Runs CMake in build/tf-<minor>, which is kept between calls."""

    def run(self):
        version, compile_flags, link_flags = tensorflow_build_flags()
        minor = ".".join(version.split(".")[:2])
        name = f"picasso_tf-tf{minor}"
        build_dir = ROOT / "build" / f"tf-{minor}"
        build_dir.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake", "-G", "Ninja", str(ROOT),
            f"-DPICASSO_LIBRARY_NAME={name}",
            f"-DTF_COMPILE_FLAGS={shlex.join(compile_flags)}",
            f"-DTF_LINK_FLAGS={shlex.join(link_flags)}",
            f"-DPICASSO_CUDA={os.environ.get('PICASSO_CUDA', '')}",
        ]  # fmt: skip
        subprocess.run(configure, cwd=build_dir, check=True)
        subprocess.run(["cmake", "--build", "."], cwd=build_dir, check=True)
        if self.inplace or self.editable_mode:
            target = ROOT / "picasso_tf" / "_native"
        else:
            target = Path(self.build_lib) / "picasso_tf" / "_native"
        target.mkdir(parents=True, exist_ok=True)
        # A new file, not new content: a process may have the old one mapped.
        fresh = target / f"{name}.so.tmp"
        shutil.copy2(build_dir / f"{name}.so", fresh)
        fresh.replace(target / f"{name}.so")

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


setup(
    ext_modules=[Extension("picasso_tf._native.library", sources=[])],
    cmdclass={"build_ext": BuildNative},
)
