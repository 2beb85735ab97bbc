"""Loads the native library, once, and gives access to what it holds."""

from __future__ import annotations

import ctypes
import functools
import pathlib

import tensorflow as tf
from tensorflow.python.framework import load_library

NATIVE_DIR = pathlib.Path(__file__).parent / "_native"
REBUILD_COMMAND = "pip install --no-build-isolation --force-reinstall --no-deps ."


def minor_version(version: str) -> str:
    """'2.15' of '2.15.1'."""
    return ".".join(version.split(".")[:2])


def find_library(native_dir: pathlib.Path, version: str) -> pathlib.Path:
    """The library for a TensorFlow version.

    A library serves one minor version: TensorFlow has no stable C++ interface.

    Raises:
      ImportError: there is none; says which versions there are, and the command
        that builds the missing one.
    """
    wanted = minor_version(version)
    path = native_dir / f"picasso_tf-tf{wanted}.so"
    if path.exists():
        return path
    built = sorted(
        found.stem.removeprefix("picasso_tf-tf")
        for found in native_dir.glob("picasso_tf-tf*.so")
    )
    have = f"was built for TensorFlow {', '.join(built)}" if built else "is not built"
    raise ImportError(
        f"picasso_tf {have}, but TensorFlow {version} is installed here. Rebuild it "
        f"against TensorFlow {wanted} in picasso_tf's source directory:\n"
        f"    {REBUILD_COMMAND}"
    )


@functools.cache
def _load():
    # A canonical path: loading one library under two paths registers ops twice.
    path = str(find_library(NATIVE_DIR, tf.__version__).resolve())
    module = load_library.load_op_library(path)
    library = ctypes.CDLL(path)
    library.PicassoPackCounts.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int64),
    ]
    library.PicassoPackCounts.restype = None
    return module, library


def load_ops():
    """Registers the packed ops in this process. Importing picasso_tf does this.

    Returns:
      The module with the ops' Python wrappers.
    Raises:
      ImportError: the library is not built for this TensorFlow.
    """
    return _load()[0]


def native() -> ctypes.CDLL:
    """The native library, for its C functions."""
    return _load()[1]


def pack_counts(pack: str) -> tuple[int, int]:
    """(kernels created, executions) of a pack in this process."""
    created, executed = ctypes.c_int64(), ctypes.c_int64()
    native().PicassoPackCounts(
        pack.encode(), ctypes.byref(created), ctypes.byref(executed)
    )
    return created.value, executed.value
