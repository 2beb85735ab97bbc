"""TensorFlow's own graph optimizers run as if ours were not there.

Which ones ran is told by the files that TensorFlow dumps behind each of them.
Dumping is switched on by the environment of a process, so all runs take place
in one process of their own.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re

import pytest
import tensorflow as tf
from helpers_models import (
    ClickModule,
    checked,
    dense_layer,
    id_batches,
    make_tables,
    run_python,
    strict,
    v1,
)
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context

import picasso_tf

Rewriter = rewriter_config_pb2.RewriterConfig
ON, OFF = Rewriter.ON, Rewriter.OFF
FIELDS = 4

# Fields of RewriterConfig that a user may set, by case.
CASES = {
    "default": {},
    "no_remapping": {"remapping": OFF},
    "no_constant_folding": {"constant_folding": OFF},
    "no_layout": {"layout_optimizer": OFF},
    "no_functions": {"function_optimization": OFF},
    "no_memory": {"memory_optimization": Rewriter.NO_MEM_OPT},
    "few": {
        "shape_optimization": OFF,
        "arithmetic_optimization": OFF,
        "dependency_optimization": OFF,
        "loop_optimization": OFF,
        "implementation_selector": OFF,
        "common_subgraph_elimination": OFF,
    },
    "more": {
        "debug_stripper": ON,
        "pin_to_host_optimization": ON,
        "scoped_allocator_optimization": ON,
        "auto_mixed_precision": ON,
    },
    "no_pruning": {"disable_model_pruning": True},
    "no_tfg": {"disable_tfg_optimizer": True},
    "nothing": {"disable_meta_optimizer": True},
    "one_iteration": {"meta_optimizer_iterations": Rewriter.ONE},
    "two_iterations": {"meta_optimizer_iterations": Rewriter.TWO},
    "own_list": {"optimizers": ["constfold", "pruning", "remap"]},
    "own_list_and_custom": {
        "optimizers": ["constfold"],
        "custom_optimizers": [{"name": "debug_stripper"}],
    },
    "own_custom": {"custom_optimizers": [{"name": "debug_stripper"}]},
}


def config_of(case: str) -> config_pb2.ConfigProto:
    rewriter = Rewriter(
        **{
            key: [Rewriter.CustomGraphOptimizer(**entry) for entry in value]
            if key == "custom_optimizers"
            else value
            for key, value in CASES[case].items()
        }
    )
    return config_pb2.ConfigProto(
        graph_options=config_pb2.GraphOptions(rewrite_options=rewriter)
    )


# -- in the process that dumps ------------------------------------------------


def session_graph():
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int64, [None, FIELDS])
        rows = [
            tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(make_tables())
        ]
        score = tf.nn.relu(dense_layer(tf.concat(rows, axis=1), 2, "dense"))
        init = v1.global_variables_initializer()
    return graph, ids, score, init


def run_session(config) -> None:
    graph, ids, score, init = session_graph()
    with v1.Session(graph=graph, config=config) as session:
        session.run(init)
        session.run(score, {ids: id_batches(1)[0]})


def run_function(module: ClickModule) -> None:
    function = tf.function(lambda ids: tf.nn.relu(module.logits(ids)))
    function(tf.constant(id_batches(1)[0]))


def dump_all(directory: str) -> None:
    """Runs all cases, each with a folder of its own to dump to."""
    module = ClickModule()
    for case in CASES:
        for side in ("stock", "packed"):
            for kind in ("session", "function"):
                folder = os.path.join(directory, case, kind, side)
                os.makedirs(folder)
                os.environ["TF_DUMP_GRAPH_PREFIX"] = folder
                base = config_of(case)
                if kind == "session":
                    packed = picasso_tf.session_config(base, strict())
                    run_session(packed if side == "packed" else base)
                    continue
                context.context().function_call_options = context.FunctionCallOptions(
                    config_proto=base
                )
                if side == "packed":
                    with picasso_tf.enabled(strict()):
                        run_function(module)
                else:
                    run_function(module)
    packed = [[len(p.members) for p in r.packs] for r in picasso_tf.reports()]
    runs = [r.executions(p)[1] for r in picasso_tf.reports() for p in r.packs]
    print(json.dumps({"packed": packed, "runs": runs}))


# -- the tests ----------------------------------------------------------------


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """The folder with all dumps."""
    directory = tmp_path_factory.mktemp("dumps")
    output = checked(
        run_python(
            "import sys, test_optimizers_run as t; t.dump_all(sys.argv[1])",
            directory,
            env={
                "TF_CPP_VMODULE": "meta_optimizer=4",
                "TF_DUMP_GRAPH_PREFIX": str(directory),
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
        )
    )
    # Both kinds were packed in every case, and ran: else nothing is compared.
    told = json.loads(output.splitlines()[-1])
    assert told["packed"] == [[FIELDS]] * (2 * len(CASES))
    assert min(told["runs"]) > 0
    return directory


def optimizers_in(folder: pathlib.Path) -> collections.Counter:
    """How often each optimizer ran, by iteration and name."""
    ran = collections.Counter()
    pattern = re.compile(r"after_MetaOptimizer_iteration_(\d+)_(.+?)_\d+(_\d+)?\.pbtxt")
    for path in folder.iterdir():
        match = pattern.fullmatch(path.name)
        if match and not match[2].isdigit():
            ran[int(match[1]), match[2]] += 1
    return ran


@pytest.mark.parametrize("kind", ["session", "function"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_optimizers_run(dumps, case, kind):
    stock = optimizers_in(dumps / case / kind / "stock")
    packed = optimizers_in(dumps / case / kind / "packed")
    ours = {key for key in packed if key[1] == "picasso"}
    assert ours == {(0, "picasso")}
    for key in ours:
        del packed[key]
    assert not any(name == "picasso" for _, name in stock)
    assert packed == stock


def names(folder: pathlib.Path) -> set[str]:
    return {name for _, name in optimizers_in(folder)}


@pytest.mark.parametrize("kind", ["session", "function"])
def test_toggles_count(dumps, kind):
    """The cases do differ: the dumps tell what ran."""

    def ran(case):
        return names(dumps / case / kind / "packed")

    assert {"remapper", "constant_folding", "layout"} <= ran("default")
    assert "remapper" not in ran("no_remapping")
    assert "constant_folding" not in ran("no_constant_folding")
    assert "layout" not in ran("no_layout")
    assert "debug_stripper" in ran("more") - ran("default")
    assert "model_pruner" in ran("default") - ran("no_pruning")
    assert ran("nothing") == {"picasso"}
    assert ran("own_list") == {
        "picasso",
        "constant_folding",
        "model_pruner",
        "remapper",
    }
    assert ran("own_list_and_custom") == {
        "picasso",
        "constant_folding",
        "debug_stripper",
    }
    assert ran("own_custom") - ran("default") == {"debug_stripper"}
    iterations = {
        case: {i for i, _ in optimizers_in(dumps / case / kind / "packed")}
        for case in ("one_iteration", "two_iterations")
    }
    assert iterations == {"one_iteration": {0}, "two_iterations": {0, 1}}
