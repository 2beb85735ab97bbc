"""Bodies of library functions as nodes of a graph, and back.

A FunctionDef names tensors by output argument ("gather:output:0"), a GraphDef
by port ("gather:0"); arguments become `_Arg` nodes, as TensorFlow makes them.
"""

from __future__ import annotations

from tensorflow.core.framework import function_pb2, node_def_pb2, op_def_pb2
from tensorflow.python.framework import dtypes, op_def_registry

from picasso_tf.node import Shape


class FunctionBody:
    """The body of one function.

    Attributes:
      nodes: its nodes, and an `_Arg` for each argument.
      preserve: names of nodes that the function returns.
      keep: names of nodes that it has to run, whatever they return.
      arg_tables: shape and dtype of the variables behind resource arguments.
    """

    def __init__(self, function: function_pb2.FunctionDef, library):
        self._function = function
        self._signatures = {f.signature.name: f.signature for f in library.function}
        self._op_of = {node.name: node for node in function.node_def}
        self._ports: dict[str, list[tuple[str, int]]] = {}
        self.arg_tables: dict[str, tuple[Shape | None, dtypes.DType | None]] = {}
        self.nodes: list[node_def_pb2.NodeDef] = []
        self._args = [arg.name for arg in function.signature.input_arg]
        for index, arg in enumerate(function.signature.input_arg):
            self._add_arg(index, arg)
        for node in function.node_def:
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(self._to_graph(edge) for edge in node.input)
            self.nodes.append(copy)
        self.preserve = {edge.split(":")[0] for edge in function.ret.values()}
        self.keep = set(function.control_ret.values()) - self.preserve

    def write(self, nodes: list[node_def_pb2.NodeDef], moved: dict[str, str]) -> None:
        """Replaces the function's body by the nodes, `_Arg`s left out.

        `moved` names what runs in place of nodes that the function has to run.
        """
        self._move_control_outputs(moved)
        self._op_of = {node.name: node for node in nodes}
        self._ports = {}
        arguments = set(self._args)
        body = []
        for node in nodes:
            if node.name in arguments:
                continue
            copy = node_def_pb2.NodeDef()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(self._to_function(edge) for edge in node.input)
            body.append(copy)
        returned = {
            key: self._returned(edge) for key, edge in self._function.ret.items()
        }
        del self._function.node_def[:]
        self._function.node_def.extend(body)
        for key, edge in returned.items():
            self._function.ret[key] = edge

    def _move_control_outputs(self, moved: dict[str, str]) -> None:
        """Lets packs stand for what had to run. A node may be a function's control
        output but once, so only one of a pack's names stays."""
        function = self._function
        taken: set[str] = set()
        dropped = set()
        for key, name in list(function.control_ret.items()):
            pack = moved.get(name)
            if pack is None:
                continue
            if pack in taken:
                dropped.add(key)
                del function.control_ret[key]
            else:
                taken.add(pack)
                function.control_ret[key] = pack
        names = [n for n in function.signature.control_output if n not in dropped]
        del function.signature.control_output[:]
        function.signature.control_output.extend(names)

    def _returned(self, edge: str) -> str:
        """A returned tensor; the stand-in of a replaced node has one output."""
        name = edge.split(":")[0]
        if name in self._args:
            return edge
        node = self._op_of[name]
        return f"{name}:output:0" if node.op == "Identity" else edge

    def _add_arg(self, index: int, arg: op_def_pb2.OpDef.ArgDef) -> None:
        node = node_def_pb2.NodeDef(name=arg.name, op="_Arg")
        node.attr["T"].type = arg.type
        node.attr["index"].i = index
        if index in self._function.arg_attr:
            for key, value in self._function.arg_attr[index].attr.items():
                node.attr[key].CopyFrom(value)
        self.nodes.append(node)
        if len(arg.handle_data) == 1:
            data = arg.handle_data[0]
            shape = (
                None
                if data.shape.unknown_rank
                else tuple(d.size if d.size >= 0 else None for d in data.shape.dim)
            )
            self.arg_tables[arg.name] = (shape, dtypes.as_dtype(data.dtype))

    def _ports_of(self, name: str) -> list[tuple[str, int]]:
        """(output argument, index) of each port of a node."""
        if name not in self._ports:
            node = self._op_of[name]
            signature = self._signatures.get(node.op) or op_def_registry.get(node.op)
            if signature is None:
                raise ValueError(f"Op {node.op!r} of node {name!r} is not registered.")
            self._ports[name] = [
                (arg.name, k)
                for arg in signature.output_arg
                for k in range(_length(arg, node))
            ]
        return self._ports[name]

    def _to_graph(self, edge: str) -> str:
        if edge[0] == "^" or edge in self._args:
            return edge
        name, arg, index = edge.split(":")
        port = self._ports_of(name).index((arg, int(index)))
        return f"{name}:{port}" if port else name

    def _to_function(self, edge: str) -> str:
        if edge[0] == "^" or edge in self._args:
            return edge
        name, _, port = edge.partition(":")
        arg, index = self._ports_of(name)[int(port or 0)]
        return f"{name}:{arg}:{index}"


def _length(arg: op_def_pb2.OpDef.ArgDef, node: node_def_pb2.NodeDef) -> int:
    if arg.number_attr:
        return node.attr[arg.number_attr].i if arg.number_attr in node.attr else 0
    if arg.type_list_attr:
        types = arg.type_list_attr
        return len(node.attr[types].list.type) if types in node.attr else 0
    return 1
