"""Offline: converting SavedModels, and explaining what would be packed."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable

from google.protobuf import message, text_format
from tensorflow.core.framework import graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.framework import meta_graph

from picasso_tf.edits import graph_def_of
from picasso_tf.options import Options
from picasso_tf.report import Report, merge
from picasso_tf.rewrite import rewrite, rewrite_library, rewrite_offline


def convert_saved_model(
    src: str | os.PathLike,
    dst: str | os.PathLike,
    options: Options | None = None,
    tags: Iterable[str] | None = None,
) -> Report:
    """Writes a copy of a SavedModel whose lookups are packed.

    TF1-style (Estimator exports) and TF2-style models (`tf.saved_model.save`,
    Keras `export`) both work. Variables, assets, signatures and other tags stay
    as they are. The copy loads wherever picasso_tf was imported first, and gives
    equal outputs.

    Args:
      src: a SavedModel's directory.
      dst: the directory to make; its parent has to exist.
      options: see `Options`.
      tags: convert only the MetaGraph with just these tags; None: all of them.

    Returns:
      A `Report`, of all converted graphs and functions together.

    Raises:
      FileNotFoundError: `src` is no SavedModel, or dst's parent does not exist.
      FileExistsError: `dst` exists.
      ValueError: no MetaGraph has the tags, or the model cannot be read.
    """
    src, dst = pathlib.Path(src), pathlib.Path(dst)
    model, name = _read(src)
    chosen = _with_tags(src, model, tags)
    if dst.exists():
        raise FileExistsError(
            f"{dst} exists. Choose another destination, or remove it first."
        )
    if not dst.parent.is_dir():
        raise FileNotFoundError(f"The directory {dst.parent} does not exist.")
    options = options or Options()
    report = merge(str(src), [_convert(meta, options) for meta in chosen])
    _write(src, dst, name, model)
    return report


def explain(path: str | os.PathLike, options: Options | None = None) -> Report:
    """What would be packed in a SavedModel or in a GraphDef (.pb, .pbtxt).

    Raises:
      FileNotFoundError: there is no such file, or the directory is no SavedModel.
      ValueError: the file holds no GraphDef.
    """
    path = pathlib.Path(path)
    options = options or Options()
    if path.is_dir():
        model, _ = _read(path)
        return merge(str(path), [_convert(m, options) for m in model.meta_graphs])
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    graph_def = _parse(path, graph_pb2.GraphDef, "GraphDef")
    _, report = rewrite(graph_def, (), options)
    report.graph = str(path)
    return report


def _read(directory: pathlib.Path) -> tuple[saved_model_pb2.SavedModel, str]:
    """The SavedModel in a directory, and its file's name."""
    for name in ("saved_model.pb", "saved_model.pbtxt"):
        path = directory / name
        if path.is_file():
            return _parse(path, saved_model_pb2.SavedModel, "SavedModel"), name
    if (directory / "saved_model.cpb").is_file():
        raise ValueError(
            f"{directory} holds a chunked SavedModel (saved_model.cpb), which is not "
            "supported. Save it without experimental_image_format."
        )
    what = "does not exist" if not directory.exists() else "is no SavedModel"
    raise FileNotFoundError(f"{directory} {what}: it has no saved_model.pb.")


def _parse(path: pathlib.Path, message_type, what: str):
    try:
        if path.suffix == ".pbtxt":
            return text_format.Parse(path.read_text(), message_type())
        return message_type.FromString(path.read_bytes())
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} holds no {what}: {error}.") from error


def _with_tags(src, model, tags: Iterable[str] | None):
    if tags is None:
        return list(model.meta_graphs)
    wanted = {tags} if isinstance(tags, str) else set(tags)
    chosen = [m for m in model.meta_graphs if set(m.meta_info_def.tags) == wanted]
    if not chosen:
        known = [sorted(m.meta_info_def.tags) for m in model.meta_graphs]
        raise ValueError(
            f"{src} has no MetaGraph with the tags {sorted(wanted)}. It has: {known}."
        )
    return chosen


def _convert(meta: meta_graph_pb2.MetaGraphDef, options: Options) -> Report:
    """Rewrites a MetaGraph in place: its graph and its functions."""
    graph_def = meta.graph_def
    preserve, roots = _names_in_use(meta)
    outcome = rewrite_offline(
        list(graph_def.node),
        options,
        f"graph of tags {sorted(meta.meta_info_def.tags)}",
        {"preserve": preserve, "roots": roots},
    )
    reports = [outcome.report]
    if outcome.nodes is not None:
        new_graph = graph_def_of(outcome.nodes, like=graph_def)
        graph_def.CopyFrom(new_graph)
    reports.extend(rewrite_library(graph_def.library, options))
    if any(report.changed for report in reports):
        meta.meta_info_def.stripped_op_list.CopyFrom(
            meta_graph.stripped_op_list_for_graph(graph_def)
        )
    return merge("MetaGraph", reports)


def _names_in_use(meta: meta_graph_pb2.MetaGraphDef):
    """Nodes that somebody may ask for by name, and what is run apart.

    Each signature is a unit: no pack may need inputs of another signature.
    """
    preserve: set[str] = set()
    roots: list[set[str]] = []
    for signature in meta.signature_def.values():
        inputs = {name for info in signature.inputs.values() for name in _names(info)}
        outputs = {name for info in signature.outputs.values() for name in _names(info)}
        preserve |= inputs | outputs
        roots.append(outputs)
    others = [
        meta.saver_def.filename_tensor_name,
        meta.saver_def.save_tensor_name,
        meta.saver_def.restore_op_name,
    ]
    for collection in meta.collection_def.values():
        others.extend(collection.node_list.value)
    for asset in meta.asset_file_def:
        others.append(asset.tensor_info.name)
    for name in filter(None, (_node(other) for other in others)):
        preserve.add(name)
        roots.append({name})
    return preserve, roots


def _names(info: meta_graph_pb2.TensorInfo) -> list[str]:
    kind = info.WhichOneof("encoding")
    if kind == "coo_sparse":
        coo = info.coo_sparse
        tensors = [
            coo.values_tensor_name,
            coo.indices_tensor_name,
            coo.dense_shape_tensor_name,
        ]
    elif kind == "composite_tensor":
        parts = info.composite_tensor.components
        tensors = [name for part in parts for name in _names(part)]
    else:
        tensors = [info.name]
    return [_node(tensor) for tensor in tensors if tensor]


def _node(tensor: str) -> str:
    return tensor.lstrip("^").split(":")[0]


def _write(src: pathlib.Path, dst: pathlib.Path, name: str, model) -> None:
    """Copies `src` with another model file; `dst` appears at once and whole."""
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{dst.name}.", dir=dst.parent))
    try:
        copy = work / "model"
        # The fingerprint is one of the old graph.
        shutil.copytree(
            src, copy, ignore=shutil.ignore_patterns(name, "fingerprint.pb")
        )
        if name.endswith(".pbtxt"):
            (copy / name).write_text(text_format.MessageToString(model))
        else:
            (copy / name).write_bytes(model.SerializeToString(deterministic=True))
        copy.rename(dst)
    finally:
        shutil.rmtree(work, ignore_errors=True)
