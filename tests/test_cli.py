"""The command line: what it prints, and its exit status."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers_models import (
    ROWS,
    ClickGraph,
    ClickModule,
    id_batches,
    run_python,
    tree_bytes,
)

import picasso_tf
from picasso_tf import cli

FIELDS = len(ROWS)


@pytest.fixture(scope="module")
def graph_files(tmp_path_factory):
    """One GraphDef as .pb and as .pbtxt."""
    directory = tmp_path_factory.mktemp("graphs")
    graph_def = ClickGraph().graph.as_graph_def()
    (directory / "graph.pb").write_bytes(graph_def.SerializeToString())
    (directory / "graph.pbtxt").write_text(text_format.MessageToString(graph_def))
    return directory


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved") / "model"
    module = ClickModule()

    @tf.function(input_signature=[tf.TensorSpec([None, FIELDS], tf.int64)])
    def score(ids):
        return {"logits": module.logits(ids)}

    module.score = score
    tf.saved_model.save(module, str(directory), signatures=score)
    return directory


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def run(capsys, *arguments) -> tuple[int, str, str]:
    """(exit status, output, errors)."""
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_explain_a_graph(graph_files, capsys, name):
    status, out, err = run(capsys, "explain", graph_files / name)
    assert (status, err) == (0, "")
    assert name in out
    for word in ("Packed", "lookup", "update", "Ops whose number changes"):
        assert word in out
    lines = [line for line in out.splitlines() if "ResourceGather" in line]
    assert len(lines) == 1
    assert str(FIELDS) in lines[0] and "0" in lines[0]


@pytest.mark.parametrize("name", ["graph.pb", "graph.pbtxt"])
def test_explain_a_graph_as_json(graph_files, capsys, name):
    status, out, err = run(capsys, "explain", graph_files / name, "--json")
    assert (status, err) == (0, "")
    values = json.loads(out)
    assert values["graph"].endswith(name)
    sizes = {pack["kind"]: len(pack["members"]) for pack in values["packs"]}
    assert sizes == {"lookup": FIELDS, "update": FIELDS}
    assert values["ops_before"]["ResourceGather"] == FIELDS
    assert "ResourceGather" not in values["ops_after"]
    assert values["ops_after"]["PicassoPackedLookup"] == 1
    assert values["failures"] == []
    assert all(pack["executed"] == 0 for pack in values["packs"])


def test_explain_a_saved_model(saved_model, capsys):
    before = tree_bytes(saved_model.parent)
    status, out, _ = run(capsys, "explain", saved_model)
    assert status == 0
    assert "Packed" in out and "lookup" in out
    status, out, _ = run(capsys, "explain", saved_model, "--json")
    assert status == 0
    values = json.loads(out)
    assert [len(pack["members"]) for pack in values["packs"]] == [FIELDS]
    assert tree_bytes(saved_model.parent) == before  # nothing is written


def test_explain_says_why_not(graph_files, capsys):
    arguments = ["--exclude", "table_0", "--exclude", "^table_1$"]
    status, out, _ = run(capsys, "explain", graph_files / "graph.pb", *arguments)
    assert status == 0
    assert "Left alone" in out
    assert "excluded by Options.exclude" in out
    status, out, _ = run(
        capsys, "explain", graph_files / "graph.pb", "--json", *arguments
    )
    values = json.loads(out)
    assert {len(pack["members"]) for pack in values["packs"]} == {FIELDS - 2}
    skipped = [s for s in values["skipped"] if "exclude" in s["reason"]]
    assert len(skipped) == 5
    assert all(set(s) == {"node", "op", "reason"} for s in skipped)


def test_explain_a_graph_with_nothing_to_pack(tmp_path, capsys):
    with tf.Graph().as_default() as graph:
        tf.constant(1.0) + tf.constant(2.0)
    path = tmp_path / "plain.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    status, out, _ = run(capsys, "explain", path)
    assert status == 0
    assert "Nothing to pack" in out
    status, out, _ = run(capsys, "explain", path, "--json")
    assert status == 0
    assert json.loads(out)["packs"] == []


def test_convert(saved_model, tmp_path, capsys):
    dst = tmp_path / "packed"
    status, out, err = run(capsys, "convert", saved_model, dst)
    assert (status, err) == (0, "")
    assert "Packed" in out
    ids = tf.constant(id_batches(1)[0])
    got, expected = (
        tf.saved_model.load(str(path)).signatures["serving_default"](ids)["logits"]
        for path in (dst, saved_model)
    )
    assert got.numpy().tobytes() == expected.numpy().tobytes()
    # It is what the function writes.
    picasso_tf.convert_saved_model(saved_model, tmp_path / "by_function")
    assert tree_bytes(dst) == tree_bytes(tmp_path / "by_function")


def test_convert_as_json(saved_model, tmp_path, capsys):
    arguments = ("convert", saved_model, tmp_path / "packed", "--json")
    status, out, _ = run(capsys, *arguments, "--tags", "serve")
    assert status == 0
    assert [len(pack["members"]) for pack in json.loads(out)["packs"]] == [FIELDS]


def test_convert_with_exclusions(saved_model, tmp_path, capsys):
    arguments = ("convert", saved_model, tmp_path / "packed", "--exclude", ".*")
    status, out, _ = run(capsys, *arguments, "--json")
    assert status == 0
    assert json.loads(out)["packs"] == []


def assert_fails(capsys, message: str, *arguments):
    """One line, status 2."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("picasso-tf: ")
    assert message in err
    assert err.count("\n") == 1


def test_users_errors(saved_model, graph_files, tmp_path, capsys):
    graph = graph_files / "graph.pb"
    dst = tmp_path / "packed"
    assert_fails(capsys, "does not exist", "explain", tmp_path / "nowhere.pb")
    assert_fails(capsys, "does not exist", "convert", tmp_path / "nowhere", dst)
    assert_fails(capsys, "is no SavedModel", "explain", tmp_path)
    assert_fails(capsys, "is no SavedModel", "convert", graph, dst)
    assert_fails(
        capsys, "no MetaGraph", "convert", saved_model, dst, "--tags", "train,gpu"
    )
    assert_fails(capsys, "exists", "convert", saved_model, saved_model)
    assert_fails(capsys, "does not exist", "convert", saved_model, dst / "a" / "b")
    assert_fails(capsys, "regular expression", "explain", graph, "--exclude", "(")
    assert list(tmp_path.iterdir()) == []


def test_files_that_hold_no_graph(tmp_path, capsys):
    (tmp_path / "bad.pb").write_bytes(b"\xff\xff\xff\xff")
    assert_fails(capsys, "holds no GraphDef", "explain", tmp_path / "bad.pb")
    (tmp_path / "bad.pbtxt").write_text("node { nam: 'x' }")
    status, out, err = run(capsys, "explain", tmp_path / "bad.pbtxt")
    assert (status, out) == (2, "")
    assert "holds no GraphDef" in err


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["convert", "only-one"]])
def test_usage_errors(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: picasso-tf" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "convert" in out and "explain" in out


def test_in_a_process_of_its_own(graph_files):
    """As a person runs it: JSON on the output, and nothing else there."""
    process = run_python(
        "import runpy; runpy.run_module('picasso_tf.cli', run_name='__main__')",
        "explain",
        graph_files / "graph.pb",
        "--json",
    )
    assert process.returncode == 0, process.stderr
    assert len(json.loads(process.stdout)["packs"]) == 2
