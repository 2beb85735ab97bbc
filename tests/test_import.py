"""Finding and loading the native library."""

from __future__ import annotations

import pathlib
import shutil
import sys
import threading

import pytest
import tensorflow as tf
from helpers_models import ROOT, run_python
from tensorflow.python.framework import op_def_registry

import picasso_tf
from picasso_tf import ops

MINOR = ops.minor_version(tf.__version__)


def native_dir(directory: pathlib.Path, *versions: str) -> pathlib.Path:
    """A folder with (empty) libraries for some versions."""
    for version in versions:
        (directory / f"picasso_tf-tf{version}.so").touch()
    return directory


@pytest.mark.parametrize(
    ("version", "minor"),
    [("2.15.1", "2.15"), ("2.21.0", "2.21"), ("2.21.0-rc1", "2.21"), ("3.0", "3.0")],
)
def test_minor_version(version, minor):
    assert ops.minor_version(version) == minor


def test_library_of_the_minor_version(tmp_path):
    """Whatever the patch is, among libraries for others."""
    directory = native_dir(tmp_path, "2.15", "2.21")
    for version in ("2.15.0", "2.15.1"):
        found = ops.find_library(directory, version)
        assert found == directory / "picasso_tf-tf2.15.so"
    assert ops.find_library(directory, "2.21.0").name == "picasso_tf-tf2.21.so"


def test_library_of_another_version(tmp_path):
    """Both versions, and the command that cures it."""
    directory = native_dir(tmp_path, "2.15")
    with pytest.raises(ImportError) as raised:
        ops.find_library(directory, "2.21.0")
    message = str(raised.value)
    assert "was built for TensorFlow 2.15, but TensorFlow 2.21.0 is" in message
    assert "Rebuild it against TensorFlow 2.21" in message
    assert f"\n    {ops.REBUILD_COMMAND}" in message
    assert "pip install --no-build-isolation" in ops.REBUILD_COMMAND
    # 2.1 is no 2.15.
    with pytest.raises(
        ImportError, match=r"for TensorFlow 2\.15, but TensorFlow 2\.1\.5"
    ):
        ops.find_library(directory, "2.1.5")


def test_libraries_of_other_versions(tmp_path):
    directory = native_dir(tmp_path, "2.21", "2.15")
    with pytest.raises(ImportError, match=r"was built for TensorFlow 2\.15, 2\.21, "):
        ops.find_library(directory, "2.18.0")


@pytest.mark.parametrize("missing", [False, True])
def test_library_not_built(tmp_path, missing):
    directory = tmp_path / "nowhere" if missing else tmp_path
    with pytest.raises(ImportError) as raised:
        ops.find_library(directory, "2.15.1")
    message = str(raised.value)
    assert "is not built, but TensorFlow 2.15.1 is installed" in message
    assert ops.REBUILD_COMMAND in message


def test_import_under_another_version(tmp_path):
    """The same error from `import picasso_tf`, and no other in front of it."""
    package = tmp_path / "picasso_tf"
    shutil.copytree(
        pathlib.Path(picasso_tf.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("_native", "__pycache__"),
    )
    (package / "_native").mkdir()
    native_dir(package / "_native", "2.99")
    process = run_python(
        "import sys; sys.path.insert(0, sys.argv[1]); import picasso_tf",
        tmp_path,
        env={"PYTHONPATH": ""},
        importable=False,
    )
    assert process.returncode == 1
    assert (
        f"ImportError: picasso_tf was built for TensorFlow 2.99, but TensorFlow "
        f"{tf.__version__} is installed" in process.stderr
    )
    assert ops.REBUILD_COMMAND in process.stderr
    assert "During handling of the above exception" not in process.stderr


def test_load_ops_twice():
    first, second = picasso_tf.load_ops(), picasso_tf.load_ops()
    assert first is second
    assert callable(first.picasso_packed_lookup)
    assert callable(first.picasso_packed_update)


def test_load_ops_from_many_threads():
    loaded = []
    threads = [
        threading.Thread(target=lambda: loaded.append(picasso_tf.load_ops()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {id(module) for module in loaded} == {id(picasso_tf.load_ops())}


def test_ops_are_registered():
    for name in ("PicassoPackedLookup", "PicassoPackedUpdate"):
        assert op_def_registry.get(name) is not None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_library_is_loaded_once():
    """TensorFlow and ctypes share one copy, so that they share its state."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    paths = {line.split()[-1] for line in maps.splitlines() if "picasso_tf-tf" in line}
    expected = ops.find_library(ops.NATIVE_DIR, tf.__version__).resolve()
    assert paths == {str(expected)}
    assert ops.native()._name == str(expected)
    assert expected.name == f"picasso_tf-tf{MINOR}.so"


def test_pack_counts_of_an_unknown_pack():
    assert ops.pack_counts("no such pack") == (0, 0)


def test_public_names():
    for name in picasso_tf.__all__:
        assert getattr(picasso_tf, name) is not None
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{picasso_tf.__version__}"' in pyproject


def test_nothing_to_report_at_first():
    """In a fresh process: no report, and the flag is off."""
    code = (
        "import picasso_tf\n"
        "from tensorflow.python.eager import context\n"
        "assert picasso_tf.last_report() is None and picasso_tf.reports() == []\n"
        "options = context.context().function_call_options\n"
        "assert b'picasso' not in options.config_proto_serialized\n"
    )
    process = run_python(code)
    assert process.returncode == 0, process.stderr
