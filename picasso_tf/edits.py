"""The edits that a pass makes: collected, then applied at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2
from tensorflow.python.framework import dtypes, tensor_util

from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Tensor, has_effect, sources_of, tensor_name


class Edits:
    """Changes to a graph, collected by a pass and applied at once."""

    def __init__(self, view: GraphView):
        self._view = view
        self._added: dict[str, node_def_pb2.NodeDef] = {}
        self._removed: set[str] = set()
        # Removed nodes that had to run: what does so in their place.
        self.moved: dict[str, str] = {}
        self._tensors: dict[Tensor, Tensor] = {}
        self._stand_ins: dict[str, Tensor] = {}
        self._named: dict[str, Tensor] = {}
        self._controls: dict[str, str] = {}
        self._waits: dict[str, list[str]] = {}
        self._inputs: dict[str, tuple[tuple[Tensor, ...], dict[str, Any]]] = {}

    def __bool__(self) -> bool:
        return bool(self._added or self._removed or self._inputs or self._waits)

    def unique(self, name: str) -> str:
        """`name`, with a number behind it if a node has it already."""
        unique, count = name, 0
        while unique in self._view.nodes or unique in self._added:
            count += 1
            unique = f"{name}_{count}"
        return unique

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        *,
        device: str,
        controls: Iterable[str] = (),
        **attrs: Any,
    ) -> str:
        """Adds a node; returns its name, made unique. Values may be plain."""
        unique = self.unique(name)
        node = node_def_pb2.NodeDef(name=unique, op=op, device=device)
        node.input.extend(tensor_name(tensor) for tensor in inputs)
        node.input.extend("^" + control for control in sorted(set(controls)))
        for key, value in attrs.items():
            node.attr[key].CopyFrom(_to_attr(value))
        self._added[unique] = node
        return unique

    def add_constant(self, like: str, holds: Tensor) -> str:
        """Adds a copy of a Const that waits for nobody, or in a loop for `holds`,
        which is of that loop; returns its name."""
        node = self._view.nodes[like]
        return self.add(
            like,
            "Const",
            [],
            device=node.device,
            controls=[holds[0]] if self._view.frame(like) else [],
            dtype=node.attr("dtype"),
            value=node.copy_attr("value"),
        )

    def replace_tensor(self, old: Tensor, new: Tensor) -> None:
        """Everyone who read `old` reads `new`."""
        if old[0] in self._view.preserve:
            self._stand_ins[old[0]] = new
        else:
            self._tensors[old] = new

    def replace_under_name(self, old: Tensor, new: Tensor) -> None:
        """Everyone who read `old`, the one output of a node that is removed, reads
        `new` through a PicassoResult of that node's name."""
        self._named[old[0]] = new

    def is_replaced(self, tensor: Tensor) -> bool:
        return tensor in self._tensors or tensor[0] in self._stand_ins

    def remove(self, name: str, waits_for: str) -> None:
        """Removes a node; who waited for it waits for node `waits_for`.

        What fed only removed nodes and has no effect of its own goes too. A
        preserved name stays, as an Identity or NoOp behind the replacement, and
        its readers keep reading it: it may be fed.
        """
        self._removed.add(name)
        self._controls[name] = waits_for
        if name in self._view.keep:
            self.moved[name] = waits_for

    def wait(self, name: str, waits_for: str) -> None:
        """Lets a node, or what was added in its place, wait for an added node."""
        self._waits.setdefault(name, []).append(waits_for)

    def set_inputs(self, name: str, inputs: Sequence[Tensor], **attrs: Any) -> None:
        """Gives a node other inputs (its control inputs stay) and attributes."""
        self._inputs[name] = (tuple(inputs), attrs)

    def apply(self) -> list[Node]:
        """The edited graph: nodes in their old order, new ones at the end."""
        view = self._view
        waits: dict[str, list[str]] = {}
        for name, waits_for in self._waits.items():
            late = self._controls.get(name, name)
            waits.setdefault(late, []).extend(waits_for)
        changed = {*self._inputs, *waits}
        for tensor in self._tensors:
            changed.update(reader.name for reader, _ in view.consumers(tensor))
        for name in self._controls:
            changed.update(reader.name for reader in view.control_consumers(name))
        kept: list[Node] = []
        gone: list[Node] = []
        new: list[Node] = []
        for name, node in view.nodes.items():
            if name in self._removed:
                gone.append(node)
                if name in view.preserve:
                    new.append(Node(self._stand_in(node), node.index))
                    kept.append(new[-1])
                elif name in self._named:
                    new.append(Node(self._named_result(node), node.index))
                    kept.append(new[-1])
                continue
            if name in changed:
                edited = _waiting(
                    self._rewired(self._with_inputs(node)), waits.get(name)
                )
                if edited is not node.node_def:
                    gone.append(node)
                    node = Node(edited, node.index)
                    new.append(node)
            kept.append(node)
        # Their numbers count on, for the moment.
        for number, (name, added) in enumerate(self._added.items(), len(view.nodes)):
            edited = _waiting(self._rewired(added), waits.get(name))
            new.append(Node(edited, number))
            kept.append(new[-1])
        return self._without_orphans(kept, gone, new)

    def _with_inputs(self, node: Node) -> node_def_pb2.NodeDef:
        if node.name not in self._inputs:
            return node._def
        inputs, attrs = self._inputs[node.name]
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node._def)
        del copy.input[:]
        copy.input.extend(tensor_name(tensor) for tensor in inputs)
        copy.input.extend("^" + name for name in node.controls)
        for key, value in attrs.items():
            copy.attr[key].CopyFrom(_to_attr(value))
        return copy

    def _stand_in(self, node: Node) -> node_def_pb2.NodeDef:
        replacement = self._stand_ins.get(node.name)
        stand_in = node_def_pb2.NodeDef(name=node.name, device=node.device)
        if replacement is None:
            stand_in.op = "NoOp"
            stand_in.input.append("^" + self._controls[node.name])
        else:
            stand_in.op = "Identity"
            stand_in.input.append(tensor_name(replacement))
            stand_in.attr["T"].CopyFrom(_to_attr(self._view.dtype((node.name, 0))))
        return stand_in

    def _named_result(self, node: Node) -> node_def_pb2.NodeDef:
        result = node_def_pb2.NodeDef(
            name=node.name, op="PicassoResult", device=node.device
        )
        result.input.append(tensor_name(self._named[node.name]))
        result.attr["T"].CopyFrom(_to_attr(self._view.dtype((node.name, 0))))
        return result

    def _rewired(self, node: node_def_pb2.NodeDef) -> node_def_pb2.NodeDef:
        edges = []
        changed = False
        seen = set()
        for edge in node.input:
            new = edge
            if edge[0] == "^":
                target = self._controls.get(edge[1:])
                if target is not None and target != node.name:
                    new = "^" + target
            else:
                name, colon, port = edge.partition(":")
                target = self._tensors.get((name, int(port) if colon else 0))
                if target is not None and target[0] != node.name:
                    new = tensor_name(target)
            changed = changed or new != edge
            if new[0] == "^":
                if new in seen:
                    continue
                seen.add(new)
            edges.append(new)
        if not changed:
            return node
        copy = node_def_pb2.NodeDef()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(edges)
        return copy

    def _without_orphans(
        self, nodes: list[Node], gone: list[Node], new: list[Node]
    ) -> list[Node]:
        """Drops nodes without effect whose every consumer was taken away."""
        view, edges = self._view, self._view.edges
        # Nodes are numbers here; those that were added count on behind the others.
        numbers = {name: n for n, name in enumerate(self._added, len(view.nodes))}
        current = {node.index: node for node in new}
        readers = edges.readers() + [0] * len(self._added)
        before: dict[int, list[int]] = {}
        for node in new:
            before[node.index] = sources = []
            for name in sources_of(node):
                source = view.nodes.get(name)
                number = numbers.get(name) if source is None else source.index
                if number is not None:
                    sources.append(number)
                    readers[number] += 1
        # What goes anyway, or stays whoever reads it.
        settled = bytearray(len(readers))
        lost = [view.nodes[name].index for name, _ in self._tensors]
        for node in gone:
            settled[node.index] = node.index not in current
            for source in edges.all_before(node.index):
                readers[source] -= 1
                lost.append(source)
        for name in (*view.preserve, *view.feeds, *view.keep):
            if name in view.nodes:
                settled[view.nodes[name].index] = 1
        dropped = bytearray(len(readers))
        while lost:
            number = lost.pop()
            if readers[number] > 0 or settled[number]:
                continue
            settled[number] = 1
            node = current.get(number) or view.at(number)
            if has_effect(node.op):
                continue
            dropped[number] = 1
            sources = before.get(number)
            for source in edges.all_before(number) if sources is None else sources:
                readers[source] -= 1
                lost.append(source)
        return [node for node in nodes if not dropped[node.index]]


def _waiting(
    node: node_def_pb2.NodeDef, waits_for: Sequence[str] | None
) -> node_def_pb2.NodeDef:
    """The node, with control edges from all of these but itself."""
    if not waits_for:
        return node
    known = {_edge_node(edge) for edge in node.input if edge[0] == "^"}
    new = [name for name in waits_for if name != node.name and name not in known]
    if not new:
        return node
    copy = node_def_pb2.NodeDef()
    copy.CopyFrom(node)
    copy.input.extend("^" + name for name in dict.fromkeys(new))
    return copy


def _edge_node(edge: str) -> str:
    return edge.lstrip("^").partition(":")[0]


def _to_attr(value: Any) -> attr_value_pb2.AttrValue:
    attr = attr_value_pb2.AttrValue()
    if isinstance(value, attr_value_pb2.AttrValue):
        attr.CopyFrom(value)
    elif isinstance(value, bool):
        attr.b = value
    elif isinstance(value, int):
        attr.i = value
    elif isinstance(value, str):
        attr.s = value.encode()
    elif isinstance(value, dtypes.DType):
        attr.type = value.as_datatype_enum
    elif isinstance(value, np.ndarray):
        attr.tensor.CopyFrom(tensor_util.make_tensor_proto(value))
    elif isinstance(value, Sequence):
        _fill_list(attr.list, value)
    else:
        raise TypeError(f"No attribute can hold {value!r}.")
    return attr


class ShapeAttr(NamedTuple):
    """Marks a shape among attribute values; None: unknown rank."""

    shape: Shape | None


def _fill_list(items, values: Sequence[Any]) -> None:
    items.SetInParent()
    for value in values:
        if isinstance(value, ShapeAttr):
            shape = items.shape.add()
            if value.shape is None:
                shape.unknown_rank = True
            else:
                for size in value.shape:
                    shape.dim.add().size = -1 if size is None else size
        elif isinstance(value, bool):
            items.b.append(value)
        elif isinstance(value, int):
            items.i.append(value)
        elif isinstance(value, float):
            items.f.append(value)
        elif isinstance(value, str):
            items.s.append(value.encode())
        elif isinstance(value, dtypes.DType):
            items.type.append(value.as_datatype_enum)
        else:
            raise TypeError(f"No list attribute can hold {value!r}.")


def graph_def_of(
    nodes: Iterable[node_def_pb2.NodeDef], like=None
) -> graph_pb2.GraphDef:
    """A GraphDef of nodes; library and versions are those of `like`."""
    graph_def = graph_pb2.GraphDef()
    graph_def.node.extend(nodes)
    if like is not None:
        graph_def.library.CopyFrom(like.library)
        graph_def.versions.CopyFrom(like.versions)
    return graph_def
