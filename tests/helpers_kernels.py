"""Runs one graph in a stock session and in a packed one, and compares bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import text_format

import picasso_tf

DTYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)


@dataclasses.dataclass
class Case:
    """A graph, what is fetched from it in every step, and what is fed.

    Attributes:
      fetches: a list of tensors and operations.
      feeds: one dictionary per step.
      variables: read after the first step, the last and every fourth.
    """

    graph: tf.Graph
    fetches: list
    feeds: list[dict]
    variables: list

    def __post_init__(self):
        with self.graph.as_default():
            self.init = tf.compat.v1.variables_initializer(
                tf.compat.v1.global_variables()
            )
            self.reads = [
                tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype)
                for v in self.variables
            ]


@dataclasses.dataclass
class Trace:
    """What a session returned: the fetches of each step, the variables by step."""

    values: list[list]
    variables: dict[int, list]

    @property
    def last(self) -> list:
        """The variables in the end."""
        return self.variables[len(self.values) - 1]


def case_of(build: Callable[[], tuple[list, list[dict]]]) -> Case:
    """A case from a function that builds the graph it is called in, and returns
    the fetches and the feeds."""
    graph = tf.Graph()
    with graph.as_default():
        fetches, feeds = build()
        variables = tf.compat.v1.global_variables()
    return Case(graph, fetches, feeds, variables)


def stock_config(one_thread: bool = False) -> tf.compat.v1.ConfigProto:
    """A plain configuration; `one_thread` where stock is not repeatable."""
    return tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1 if one_thread else 0)


def packed_config(**options) -> tf.compat.v1.ConfigProto:
    return picasso_tf.session_config(options=picasso_tf.Options(strict=True, **options))


def run(case: Case, config) -> Trace:
    trace = Trace([], {})
    with tf.compat.v1.Session(graph=case.graph, config=config) as session:
        session.run(case.init)
        for step, feed in enumerate(case.feeds):
            trace.values.append(session.run(case.fetches, feed))
            if step % 4 == 0 or step == len(case.feeds) - 1:
                trace.variables[step] = session.run(case.reads)
    return trace


def run_packed(case: Case, **options) -> tuple[Trace, picasso_tf.Report]:
    """The trace, and the report of the rewrite that it must have caused: every
    pack has run in every step."""
    previous = picasso_tf.last_report()
    trace = run(case, packed_config(**options))
    report = picasso_tf.last_report()
    assert report is not None and report is not previous, "nothing was rewritten"
    assert report.packs, str(report)
    assert not report.failures, str(report)
    assert_executed(report, len(case.feeds))
    return trace, report


def assert_executed(report: picasso_tf.Report, steps: int) -> None:
    for pack in report.packs:
        created, executed = report.executions(pack)
        assert created > 0 and executed == steps, str(report)


def check(
    case: Case, one_thread: bool = False, stock=None, **options
) -> picasso_tf.Report:
    """Runs the case both ways and compares what was fetched, and variables.

    Args:
      one_thread: stock runs with one intra-op thread, because it races with
        more. The packed side never needs it: its results are not to depend on
        the number of threads.
      stock: another configuration for stock.
      options: of picasso_tf.Options.
    """
    expected = run(case, stock or stock_config(one_thread))
    got, report = run_packed(case, **options)
    assert_same_trace(case, got, expected)
    return report


def assert_same_trace(case: Case, got: Trace, expected: Trace) -> None:
    for step in range(len(case.feeds)):
        for fetch, a, b in zip(
            case.fetches, got.values[step], expected.values[step], strict=True
        ):
            assert_same(a, b, f"step {step}, {fetch.name}")
    for step, values in expected.variables.items():
        for variable, a, b in zip(
            case.variables, got.variables[step], values, strict=True
        ):
            assert_same(a, b, f"after step {step}, {variable.name}")


def assert_same(got: Any, expected: Any, what: str) -> None:
    """Equal type, shape and bits.

    Any NaN equals any other: of two NaNs, an addition keeps the first, and which
    one is first is the compiler's choice, in stock's kernels as in ours.
    """
    if got is None and expected is None:
        return
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype, f"{what}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape}, not {expected.shape}"
    if got.tobytes() == expected.tobytes():
        return
    width = f"u{got.dtype.itemsize}"
    differs = got.reshape(-1).view(width) != expected.reshape(-1).view(width)
    if np.issubdtype(expected.dtype, np.inexact) or expected.dtype.kind == "V":
        differs &= ~(_is_nan(got) & _is_nan(expected))
    if not differs.any():
        return
    first = np.unravel_index(np.flatnonzero(differs)[0], got.shape)
    raise AssertionError(
        f"{what}: {differs.sum()} of {differs.size} values differ; the first at "
        f"{tuple(int(i) for i in first)}: {got[first]!r} "
        f"(0x{got[first].tobytes()[::-1].hex()}), stock has {expected[first]!r} "
        f"(0x{expected[first].tobytes()[::-1].hex()})"
    )


def _is_nan(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1)
    return flat != flat


def random(rng: np.random.Generator, shape: Sequence[int], dtype: tf.DType):
    """Normal values, rounded to `dtype`."""
    return rng.normal(size=shape).astype(dtype.as_numpy_dtype)


def make_table(name: str, value: np.ndarray):
    """A resource variable, in the current graph."""
    return tf.Variable(value, name=name)


def without_grappler() -> tf.compat.v1.ConfigProto:
    """Stock without its graph optimizers, which need quadratic time for some large
    graphs."""
    config = stock_config()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def node_of(text: str, inputs: dict[str, tf.Tensor], outputs: list[str]) -> list:
    """Adds one node, written as text, whose inputs are tensors by name."""
    graph_def = tf.compat.v1.GraphDef()
    text_format.Parse(text, graph_def.node.add())
    for name, tensor in inputs.items():
        node = graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = tensor.dtype.as_datatype_enum
    return tf.import_graph_def(
        graph_def,
        input_map={f"{k}:0": v for k, v in inputs.items()},
        return_elements=outputs,
        name="",
    )


def packed_nodes(report: picasso_tf.Report, kind: str) -> list[set[str]]:
    """Names of the members of each pack of a kind."""
    return [set(pack.members) for pack in report.packs if pack.kind == kind]
