"""Nodes of a graph, and tensors as `(name, port)` pairs."""

from __future__ import annotations

import array
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework import attr_value_pb2, node_def_pb2, types_pb2
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

Tensor = tuple[str, int]  # node name, output port
Shape = tuple[int | None, ...]  # None: a dimension that is not known


class Node:
    """One node. `inputs` are tensors, `controls` names of nodes. It never changes, and
    goes from view to view: what is read from the NodeDef is read once."""

    __slots__ = (
        *("_constant", "_def", "_ints"),
        *("controls", "device", "index", "inputs", "name", "op"),
    )

    def __init__(self, node_def: node_def_pb2.NodeDef, index: int = -1):
        self._def = node_def
        self._constant: np.ndarray | None = None
        self._ints: list[int] | None = None
        self.index = index  # in its view
        self.name = node_def.name
        self.op = node_def.op
        self.device = node_def.device
        inputs = []
        controls = []
        for edge in node_def.input:
            if edge[0] == "^":
                controls.append(edge[1:])
            elif ":" in edge:
                name, port = edge.split(":")
                inputs.append((name, int(port)))
            else:
                inputs.append((edge, 0))
        self.inputs: tuple[Tensor, ...] = tuple(inputs)
        self.controls: tuple[str, ...] = tuple(controls)

    @property
    def node_def(self) -> node_def_pb2.NodeDef:
        """Not to be changed."""
        return self._def

    def attr(self, key: str, default: Any = None) -> Any:
        """The attribute's value, or `default`.

        Types come as `tf.DType`, shapes as `Shape` (None: unknown rank), tensors
        as TensorProto. A plain read of `node.attr[key]` would add the attribute.
        """
        attrs = self._def.attr
        if key not in attrs:
            return default
        return attr_value(attrs[key])

    def constant(self) -> np.ndarray:
        """The value of a Const, not to be changed."""
        if self._constant is None:
            self._constant = tensor_util.MakeNdarray(self._def.attr["value"].tensor)
        return self._constant

    def constant_ints(self) -> list[int]:
        """The elements of a Const, as ints; not to be changed."""
        if self._ints is None:
            self._ints = _written_out(self._def.attr["value"].tensor)
        if self._ints is None:
            self._ints = [int(value) for value in self.constant().reshape(-1)]
        return self._ints

    def copy_attr(self, key: str) -> attr_value_pb2.AttrValue | None:
        return self._def.attr.get(key)

    def kind(self) -> tuple:
        """Op, device and attributes, without what guides placing and tracing. Nodes
        of equal kind, if without effects, give the same for the same tensors."""
        attrs = self._def.attr.items()
        return (
            self.op,
            self.device,
            tuple(
                (key, value.SerializeToString(deterministic=True))
                for key, value in sorted(attrs)
                if key not in ("_class", "_has_manual_control_dependencies")
            ),
        )

    def __repr__(self):
        return f"Node({self.op} {self.name!r})"


def output_type(node: Node, port: int) -> dtypes.DType | None:
    """The type of an output, as the op declares it; None: not known."""
    op_def = op_def_registry.get(node.op)
    if op_def is None:
        return None
    types: list[dtypes.DType] = []
    for output in op_def.output_arg:
        if output.type_list_attr:
            types.extend(node.attr(output.type_list_attr, []))
            continue
        one = dtypes.as_dtype(output.type or dtypes.float32)
        if output.type_attr:
            default = next(a for a in op_def.attr if a.name == output.type_attr)
            # Library functions leave out what has its default value.
            one = node.attr(output.type_attr, attr_value(default.default_value))
        count = node.attr(output.number_attr, 0) if output.number_attr else 1
        types.extend([one] * count)
    return types[port] if port < len(types) else None


def _written_out(tensor) -> list[int] | None:
    """The elements of a TensorProto of int32 or int64, if they are written out one by
    one: most constants, much faster than as an array."""
    if tensor.dtype == types_pb2.DT_INT32:
        values, code = tensor.int_val, "i"
    elif tensor.dtype == types_pb2.DT_INT64:
        values, code = tensor.int64_val, "q"
    else:
        return None
    if tensor.tensor_content:
        return array.array(code, tensor.tensor_content).tolist()
    size = 1
    for dim in tensor.tensor_shape.dim:
        size *= dim.size
    return list(values) if len(values) == size else None


def attr_value(value: attr_value_pb2.AttrValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        items = value.list
        for field in ("s", "i", "f", "b", "type", "shape", "tensor"):
            values = getattr(items, field)
            if len(values) > 0:
                return [_plain(field, item) for item in values]
        return []
    return None if kind is None else _plain(kind, getattr(value, kind))


def _plain(kind: str, value: Any) -> Any:
    if kind == "s":
        return value.decode("utf-8", "replace")
    if kind == "type":
        return dtypes.as_dtype(value)
    if kind == "shape":
        if value.unknown_rank:
            return None
        return tuple(dim.size if dim.size >= 0 else None for dim in value.dim)
    return value


def tensor_name(tensor: Tensor) -> str:
    """The spelling of a tensor in a NodeDef's inputs."""
    name, port = tensor
    return f"{name}:{port}" if port else name


class Table(NamedTuple):
    """The variable behind a resource edge."""

    root: Tensor  # where the resource edge comes from: the table's identity
    name: str  # shared name of the variable; else the root's node
    shape: Shape | None
    dtype: dtypes.DType | None


def sources_of(node: Node) -> list[str]:
    """Names of the nodes that a node reads or waits for, with repetitions."""
    return [*(name for name, _ in node.inputs), *node.controls]


# Ops whose output is their first input, as far as values go.
FORWARDING = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})
# Stateful or not, these only name what comes from outside.
SOURCES = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "_Arg", "_Retval", "VarHandleOp"}
)
_effects: dict[str, bool] = dict.fromkeys(SOURCES, True)


def has_effect(op: str) -> bool:
    """Whether a node may not vanish although nobody reads it."""
    known = _effects.get(op)
    if known is None:
        op_def = op_def_registry.get(op)
        if op_def is None:
            return True  # a call of a library function, or an op to be registered yet
        known = _effects[op] = op_def.is_stateful
    return known


def prune(node_defs, roots: Iterable[str]) -> list[Node]:
    """The nodes that the roots depend on, in their order."""
    nodes = {node.name: node for node in map(Node, node_defs)}
    reached: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            pending.extend(sources_of(nodes[name]))
    return [node for node in nodes.values() if node.name in reached]


def with_effects(node_defs) -> list[str]:
    """Names of the nodes that have an effect besides their outputs."""
    return [node_def.name for node_def in node_defs if has_effect(node_def.op)]
