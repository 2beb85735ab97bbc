"""The bridge to Grappler: the callback, and the configurations that switch
the optimizer on."""

from __future__ import annotations

import collections
import ctypes
import threading

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.framework import tensor_util

from picasso_tf import ops
from picasso_tf.edits import graph_def_of
from picasso_tf.node import with_effects
from picasso_tf.options import Options
from picasso_tf.passes import PASSES, PASSES_AFTER, triggers_of
from picasso_tf.report import Report
from picasso_tf.rewrite import collecting_paused, rewrite_nodes

OPTIMIZER = "picasso"
_KEPT_REPORTS = 256
_KEPT_NAMES = 4096

_UNCHANGED, _REWRITTEN, _FAILED = range(3)
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_char_p,  # feeds
    ctypes.c_char_p,  # preserve
    ctypes.c_char_p,  # keep
    ctypes.c_int,  # may_prune
    ctypes.c_int,  # squares_powers
    ctypes.c_int,  # phase
    ctypes.c_int64,  # run
    ctypes.c_char_p,  # item
    ctypes.c_char_p,  # inlined
    ctypes.c_char_p,  # options
    ctypes.c_void_p,
)

# By the number of the phase: before TensorFlow's own optimizers, and behind them.
_PHASES = (PASSES, PASSES_AFTER)
_FAILURE = "picasso_failure"  # a node that raises

_lock = threading.Lock()
# The report that a thread made in the first phase, and of which run.
_first_phase = threading.local()
_reports: collections.deque[Report] = collections.deque(maxlen=_KEPT_REPORTS)
# Functions whose calls were replaced by their body, and in which graph; the latest.
_inlined_into: dict[str, str] = {}
_callback = None  # ctypes needs it kept alive


def reports() -> list[Report]:
    """Reports of the latest 256 rewrites in this process, oldest first.

    Only graphs in which something was recognised are in it. A graph may be there
    more than once: TensorFlow optimizes a function per instance, a session per
    set of fetches.
    """
    with _lock:
        return list(_reports)


def last_report() -> Report | None:
    """The latest report, preferably of a graph that was changed; None: no graph
    with anything to pack has run so far."""
    kept = reports()
    kept = [r for r in kept if not r.inlined_into or r.was_used()] or kept
    changed = [report for report in kept if report.changed]
    return (changed or kept or [None])[-1]


def install() -> None:
    """Hands the pipeline to the native library, once per process."""
    global _callback
    with _lock:
        if _callback is not None:
            return
        _callback = _CALLBACK(_rewrite)
    library = ops.native()
    library.PicassoInstall.argtypes = [_CALLBACK, ctypes.c_char_p, ctypes.c_char_p]
    library.PicassoReply.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64]
    triggers = ("\n".join(sorted(triggers_of(passes))) for passes in _PHASES)
    library.PicassoInstall(_callback, *(ops_.encode() for ops_ in triggers))


@collecting_paused()
def _rewrite(
    graph,
    size,
    feeds,
    preserve,
    keep,
    may_prune,
    squares_powers,
    phase,
    run,
    item,
    inlined,
    options,
    reply,
) -> int:
    """Called by the optimizer; nothing may escape into C++."""

    def answer(data: bytes) -> None:
        ops.native().PicassoReply(reply, data, len(data))

    try:
        chosen = Options.from_json(options.decode() or "{}")
        graph_def = graph_pb2.GraphDef.FromString(ctypes.string_at(graph, size))
        names = [_names(joined) for joined in (feeds, preserve, keep)]
        title = item.decode()
        _note_inlined(_names(inlined), title)
        try:
            new_nodes = _rewrite_item(
                graph_def,
                *names,
                bool(may_prune),
                bool(squares_powers),
                phase,
                run,
                title,
                chosen,
            )
        except Exception as error:
            if not chosen.strict:
                raise
            if any(node.name == _FAILURE for node in graph_def.node):
                return _UNCHANGED  # whoever runs it gets the first phase's error
            new_nodes = _failing(graph_def, names[1] + names[2], title, error)
        if new_nodes is None:
            return _UNCHANGED
        answer(graph_def_of(new_nodes).SerializeToString())
        return _REWRITTEN
    except Exception as error:
        logging.exception("picasso_tf: rewriting %s failed.", item.decode())
        answer(f"{type(error).__name__}: {error}".encode())
        return _FAILED


def _failing(graph_def, wanted: list[str], item: str, error: Exception):
    """The graph, but whoever runs it gets the error.

    TensorFlow keeps an optimizer's errors to itself and runs the original graph;
    Options(strict=True) promises to be loud.
    """
    text = f"picasso_tf: rewriting {item} failed: {type(error).__name__}: {error}"
    logging.error("%s", text)
    devices = [node.device for node in graph_def.node if node.name in wanted]
    device = next((d for d in devices if "GPU" not in d.upper()), "")
    new = []
    for name, value in (("condition", False), ("message", text)):
        tensor = tensor_util.make_tensor_proto(value)
        node = node_def_pb2.NodeDef(name=f"picasso_{name}", op="Const", device=device)
        node.attr["value"].tensor.CopyFrom(tensor)
        node.attr["dtype"].type = tensor.dtype
        new.append(node)
    failure = node_def_pb2.NodeDef(name=_FAILURE, op="Assert", device=device)
    failure.input.extend(node.name for node in new)
    failure.attr["T"].list.type.append(types_pb2.DT_STRING)
    failure.attr["summarize"].i = 3
    nodes = list(graph_def.node)
    for node in nodes:
        if node.name in wanted:
            node.input.append("^" + _FAILURE)
    return [*nodes, *new, failure]


def _names(joined: bytes) -> list[str]:
    return joined.decode().split("\n") if joined else []


def _rewrite_item(
    graph_def,
    feeds,
    preserve,
    keep,
    may_prune: bool,
    squares_powers: bool,
    phase: int,
    run: int,
    item: str,
    options: Options,
):
    nodes = list(graph_def.node)
    roots = None
    if preserve or keep:
        # Nothing may be packed that waits for what is before a feed.
        roots = [[*preserve, *keep, *([] if may_prune else with_effects(nodes))]]
    view_args = {"feeds": feeds, "preserve": preserve, "keep": keep, "roots": roots}
    view_args["squares_powers"] = squares_powers
    outcome = rewrite_nodes(nodes, options, item, view_args, _PHASES[phase])
    _keep_report(outcome.report, phase, run)
    if outcome.nodes is None:
        return None
    # TensorFlow runs what it knows by name: one name per target has to stay.
    stand_ins = {}
    for name, target in outcome.moved.items():
        if target not in keep:
            stand_ins.setdefault(target, name)
    for target, name in stand_ins.items():
        device = next(node.device for node in outcome.nodes if node.name == target)
        outcome.nodes.append(
            node_def_pb2.NodeDef(
                name=name, op="NoOp", input=["^" + target], device=device
            )
        )
    return outcome.nodes


def _note_inlined(functions: list[str], item: str) -> None:
    """TensorFlow optimizes a function by itself too, before or after it has put its
    body in place of its calls. The report of that then says so."""
    if not functions:
        return
    with _lock:
        for name in functions:
            _inlined_into.pop(name, None)
            _inlined_into[name] = item
        for name in list(_inlined_into)[:-_KEPT_NAMES]:
            del _inlined_into[name]
        for report in _reports:
            if report.graph in functions:
                report.inlined_into = item


def _keep_report(report: Report, phase: int, run: int) -> None:
    """One report for both phases of a run of the optimizer."""
    started, first = getattr(_first_phase, "value", (None, None))
    if phase == 0:
        _first_phase.value = (run, report)
    elif started == run:
        first.extend(report)
        report = first
    with _lock:
        report.inlined_into = _inlined_into.get(report.graph, "")
        if any(known is report for known in _reports):
            return
        if report.packs or report.skipped or report.failures or report.merged:
            _reports.append(report)


def with_picasso(
    base: config_pb2.ConfigProto, options: Options | None
) -> config_pb2.ConfigProto:
    """A copy of `base` under which graphs are rewritten.

    The optimizer runs alone and first, and runs TensorFlow's own afterwards; the
    fields that are overwritten for this travel along (kernels/grappler).
    """
    config = config_pb2.ConfigProto()
    config.CopyFrom(without_picasso(base))
    rewriter = config.graph_options.rewrite_options
    user = rewriter_config_pb2.RewriterConfig(
        optimizers=rewriter.optimizers,
        custom_optimizers=rewriter.custom_optimizers,
        meta_optimizer_iterations=rewriter.meta_optimizer_iterations,
        fail_on_optimizer_errors=rewriter.fail_on_optimizer_errors,
        disable_meta_optimizer=rewriter.disable_meta_optimizer,
    )
    options = options or Options()
    del rewriter.optimizers[:]
    rewriter.optimizers.append(OPTIMIZER)
    del rewriter.custom_optimizers[:]
    custom = rewriter.custom_optimizers.add(name=OPTIMIZER)
    custom.parameter_map["options"].s = options.to_json().encode()
    custom.parameter_map["user_rewriter_config"].s = user.SerializeToString(
        deterministic=True
    )
    rewriter.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewriter.disable_meta_optimizer = False
    if options.strict:
        rewriter.fail_on_optimizer_errors = True
    return config


def without_picasso(config: config_pb2.ConfigProto) -> config_pb2.ConfigProto:
    """`config` as it was before `with_picasso`; itself if it never was."""
    rewriter = config.graph_options.rewrite_options
    ours = [c for c in rewriter.custom_optimizers if c.name == OPTIMIZER]
    if not ours:
        return config
    user = rewriter_config_pb2.RewriterConfig.FromString(
        ours[0].parameter_map["user_rewriter_config"].s
    )
    restored = config_pb2.ConfigProto()
    restored.CopyFrom(config)
    rewriter = restored.graph_options.rewrite_options
    for field in (
        "optimizers",
        "custom_optimizers",
        "meta_optimizer_iterations",
        "fail_on_optimizer_errors",
        "disable_meta_optimizer",
    ):
        rewriter.ClearField(field)
    rewriter.MergeFrom(user)
    return restored


def session_config(
    base: config_pb2.ConfigProto | None = None, options: Options | None = None
) -> config_pb2.ConfigProto:
    """A ConfigProto that makes a `tf.compat.v1.Session` pack its graphs.

    Args:
      base: the configuration to start from; it is not changed. Its own graph
        optimizers run as before, behind ours.
      options: see `Options`.
    """
    install()
    return with_picasso(base or config_pb2.ConfigProto(), options)


def estimator_config(
    base: config_pb2.ConfigProto | None = None, options: Options | None = None
) -> config_pb2.ConfigProto:
    """A ConfigProto for Estimator: `tf.estimator.RunConfig(session_config=...)`.

    Starts from what Estimator would use itself (soft placement among it), which
    a fresh ConfigProto would silently switch off.

    Args:
      base: instead of Estimator's default configuration.
      options: see `Options`.
    Raises:
      RuntimeError: this TensorFlow has no Estimator (2.16 and later).
    """
    if base is None:
        try:
            from tensorflow_estimator.python.estimator import run_config
        except ImportError as error:
            raise RuntimeError(
                f"TensorFlow {tf.__version__} has no Estimator; 2.15 was the last "
                "that had. Use session_config() or enable()."
            ) from error
        base = run_config.get_default_session_config()
    return session_config(base, options)
