"""Dense updates: what an optimizer does to a variable and its slots, written as a
chain of elementwise ops or as one op, as a straight-line program."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Sequence

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.addition import add_in_order, order_of_addition
from picasso_tf.fragments.apply_ops import APPLY_OPS, ApplyOp
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Table, Tensor

ASSIGN_OPS = {
    "AssignVariableOp": "assign",
    "AssignAddVariableOp": "assign_add",
    "AssignSubVariableOp": "assign_sub",
}
UPDATE_OPS = (*ASSIGN_OPS, *APPLY_OPS)

_UNARY = {
    "Square": "square",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Neg": "neg",
    "Abs": "abs",
    "Sign": "sign",
}
_BINARY = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "DivNoNan": "div_no_nan",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "Pow": "pow",
    "SquaredDifference": "squared_difference",
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Less": "less",
    "LessEqual": "less_equal",
}
# Grappler's name for some unary ops in a row, and what it calls them.
_COMPOSITION = "_UnaryOpsComposition"
_COMPARISONS = frozenset({"Greater", "GreaterEqual", "Less", "LessEqual"})
# TensorFlow's optimizers sort the operands of these by their names.
_COMMUTATIVE = frozenset({"Add", "AddV2", "Mul"})
# Their bits depend on whether an element is handled in a packet, and so on the
# shape of the tensor that the op is given.
_PACKETS_DIFFER = frozenset({"Rsqrt", "Pow"})
_TYPES = frozenset({dtypes.float32, dtypes.float64, dtypes.half, dtypes.bfloat16})

# A chain that is longer than any optimizer's would not find its like.
MAX_NODES = 256
_MAX_SINKS = 12


@dataclasses.dataclass(frozen=True)
class DenseUpdate:
    """One chain.

    Attributes:
      nodes: names of all nodes that the program stands for, in graph order. A
        Const may be among them; it is one of the tensors too.
      anchor: the node that names the chain, an update.
      table: the variable that the anchor updates.
      dtype: of all floats.
      shape: of all variables that are written.
      program: lines as kernels/core/program.h explains them.
      variables, counts, tensors, integers: what the program's names stand for.
      controls: names of nodes that any node of the chain waits for.
    """

    nodes: tuple[str, ...]
    anchor: Node
    table: Table
    dtype: dtypes.DType
    shape: Shape
    program: tuple[str, ...]
    variables: tuple[Tensor, ...]
    counts: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]
    integers: tuple[Tensor, ...]
    controls: tuple[str, ...]

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclasses.dataclass(frozen=True)
class LeftAlone:
    """An update that is not recognised, and why."""

    node: Node
    reason: str


def match_updates(view: GraphView) -> list[DenseUpdate | LeftAlone]:
    """All dense updates of a graph, in graph order of their first update."""
    return _Finder(view).run()


class _Finder:
    def __init__(self, view: GraphView):
        self._view = view
        self._tables: dict[Tensor, Table] = {}
        self._chain: dict[str, str] = {}  # update -> a name for its chain
        self._inside: dict[str, str] = {}  # node -> the name for its chain
        self._sinks: dict[str, frozenset[str] | None] = {}
        self._candidate: dict[str, bool] = {}

    def run(self) -> list[DenseUpdate | LeftAlone]:
        view = self._view
        updates, left = [], []
        for node in view.of_types(UPDATE_OPS):
            reason = self._declines(node)
            if reason is None:
                updates.append(node)
                self._chain[node.name] = node.name
            elif reason:
                left.append(LeftAlone(node, reason))
        if not updates:
            return left
        self._join_chains(updates)
        self._absorb()
        chains: dict[str, list[Node]] = {}
        for name, chain in self._inside.items():
            chains.setdefault(self._root(chain), []).append(view.nodes[name])
        found: list[DenseUpdate | LeftAlone] = list(left)
        for nodes in chains.values():
            nodes.sort(key=lambda node: node.index)
            built = _Builder(view, self, nodes).build()
            if built is not None:
                found.append(built)
        found.sort(key=_index)
        return found

    def table(self, handle: Tensor) -> Table:
        if handle not in self._tables:
            self._tables[handle] = self._view.table(handle)
        return self._tables[handle]

    # -- what may be part of a chain -----------------------------------------

    def _declines(self, node: Node) -> str | None:
        """Why an update is left alone; "": it is none; None: it may be packed."""
        view = self._view
        if node.op in APPLY_OPS:
            dtype = node.attr("T")
            handles = node.inputs[: APPLY_OPS[node.op].variables]
        else:
            dtype = node.attr("dtype")
            handles = node.inputs[:1]
        if dtype not in _TYPES:
            return ""
        if node.name in view.feeds or not view.serves(node.name):
            return ""
        if "GPU" in node.device.upper():
            return "the update is on a GPU, and packed updates have no GPU kernel yet"
        shapes = {self.table(handle).shape for handle in handles}
        shape = next(iter(shapes))
        if len(shapes) > 1 or shape is None or None in shape:
            return (
                "" if node.op == "AssignVariableOp" else "unknown shape of a variable"
            )
        if node.op in APPLY_OPS:
            return APPLY_OPS[node.op].declines(view, node)
        return None

    def is_candidate(self, node: Node) -> bool:
        """Whether a node could be part of a chain, if its readers are."""
        known = self._candidate.get(node.name)
        if known is None:
            known = self._candidate[node.name] = self._may_join(node)
        return known

    def _may_join(self, node: Node) -> bool:
        view = self._view
        if node.name in view.feeds or node.name in view.preserve:
            return False
        op = node.op
        if op == "ReadVariableOp":
            dtype = node.attr("dtype")
            if dtype in _TYPES:
                shape = self.table(node.inputs[0]).shape
                return shape is not None and None not in shape
            return dtype == dtypes.int64 and self.table(node.inputs[0]).shape == ()
        if op == "Const":
            # Without control inputs it is as good outside.
            return bool(node.controls) and node.attr("dtype") in _TYPES
        if op == "Cast":
            return (
                node.attr("SrcT") == dtypes.int64
                and node.attr("DstT") in _TYPES
                and self._is_counter(node.inputs[0])
            )
        dtype = node.attr("T")
        if dtype == dtypes.int64:
            return op in ("Add", "AddV2") and all(map(self._is_counter, node.inputs))
        if dtype not in _TYPES or node.name in view.keep:
            return False
        if op in _PACKETS_DIFFER:
            return self.surely(node.inputs) is not None
        if op == "SelectV2":
            condition = view.producer(node.inputs[0])
            return condition is not None and condition.op in _COMPARISONS
        if op == _COMPOSITION:
            return _is_exact(node)
        if op == "AddN":
            return order_of_addition(view, node) is not None
        return op in _UNARY or op in _BINARY or op == "Identity"

    def _is_counter(self, tensor: Tensor) -> bool:
        """Whether an int64 tensor is sure to be a scalar that programs know."""
        node = self._view.producer(tensor)
        if node is None:
            return False
        if node.op == "Const":
            return self._view.shape(tensor) == ()
        return self.is_candidate(node) and (
            node.op == "ReadVariableOp" or node.attr("T") == dtypes.int64
        )

    def surely(self, tensors: Iterable[Tensor]) -> Shape | None:
        """The shape of what broadcasts `tensors`, where it is known to be that of
        one of them or a scalar's."""
        shapes = [self._shape(tensor) for tensor in tensors]
        whole = [shape for shape in shapes if shape is None or len(shape) > 0]
        if not whole:
            return ()
        if None in whole:
            return None
        return whole[0] if len(set(whole)) == 1 else None

    def _shape(self, tensor: Tensor) -> Shape | None:
        node = self._view.producer(tensor)
        if node is not None and (
            node.op in _UNARY
            or node.op in _BINARY
            or node.op in ("SelectV2", "Identity", _COMPOSITION)
        ):
            return self.surely(node.inputs)
        if node is not None and node.op == "Cast" and self.is_candidate(node):
            return ()
        if node is not None and node.op == "AddN":
            return self._shape(node.inputs[0])
        shape = self._view.shape(tensor)
        return None if shape is None or None in shape else shape

    # -- which updates belong together ---------------------------------------

    def _root(self, name: str) -> str:
        while self._chain[name] != name:
            self._chain[name] = self._chain[self._chain[name]]
            name = self._chain[name]
        return name

    def _union(self, a: str, b: str) -> None:
        a, b = self._root(a), self._root(b)
        if a != b:
            # The name of the first update, whatever the order of the unions.
            first, second = sorted((a, b), key=lambda n: self._view.nodes[n].index)
            self._chain[second] = first

    def _join_chains(self, updates: list[Node]) -> None:
        """Joins updates whose variable is read again for another update, or is
        updated again."""
        view = self._view
        for update in updates:
            for handle in self.written(update):
                root = self.table(handle).root
                for node in view.control_consumers(update.name):
                    if node.name in self._chain:
                        if root in [
                            self.table(h).root for h in self.written(node)
                        ] and self._alike(update, node):
                            self._union(update.name, node.name)
                    elif (
                        node.op == "ReadVariableOp"
                        and self.table(node.inputs[0]).root == root
                        and self.is_candidate(node)
                    ):
                        for sink in self._sinks_of(node) or ():
                            if self._alike(update, view.nodes[sink]):
                                self._union(update.name, sink)

    def written(self, update: Node) -> tuple[Tensor, ...]:
        if update.op in APPLY_OPS:
            return update.inputs[: APPLY_OPS[update.op].variables]
        return update.inputs[:1]

    def _alike(self, a: Node, b: Node) -> bool:
        """Whether two updates may be part of one chain."""
        return (
            a.device == b.device
            and self.table(a.inputs[0]).shape == self.table(b.inputs[0]).shape
            and self.dtype(a) == self.dtype(b)
            and self._view.guard(a.name) == self._view.guard(b.name)
            and self._view.frame(a.name) == self._view.frame(b.name)
            and self._view.serves(a.name) == self._view.serves(b.name)
        )

    @staticmethod
    def dtype(update: Node) -> dtypes.DType:
        return update.attr("T") if update.op in APPLY_OPS else update.attr("dtype")

    def _sinks_of(self, node: Node) -> frozenset[str] | None:
        """The updates that a candidate's value flows into; None: too many, or it
        flows elsewhere too."""
        if node.name in self._sinks:
            return self._sinks[node.name]
        # Without recursion: chains may be as long as the graph.
        pending = [(node, False)]
        while pending:
            current, expanded = pending.pop()
            if current.name in self._sinks and not expanded:
                continue
            readers = [reader for reader, _ in self._view.consumers((current.name, 0))]
            if not expanded:
                self._sinks[current.name] = None  # a loop finds this
                pending.append((current, True))
                pending.extend(
                    (reader, False)
                    for reader in readers
                    if reader.name not in self._chain and self.is_candidate(reader)
                )
                continue
            sinks: set[str] | None = set()
            for reader in readers:
                if reader.name in self._chain:
                    sinks.add(reader.name)
                    continue
                more = (
                    self._sinks.get(reader.name) if self.is_candidate(reader) else None
                )
                if more is None:
                    sinks = None
                    break
                sinks |= more
                if len(sinks) > _MAX_SINKS:
                    sinks = None
                    break
            self._sinks[current.name] = frozenset(sinks) if sinks else None
        return self._sinks[node.name]

    # -- what else belongs to a chain ----------------------------------------

    def _absorb(self) -> None:
        """Gives each candidate to the chain that alone reads it."""
        view = self._view
        for name in self._chain:
            self._inside[name] = self._root(name)
        for node in reversed(view.order()):
            if node.name in self._chain or not self._read_by_chain(node):
                continue
            if not self.is_candidate(node):
                continue
            chains = set()
            for reader, _ in view.consumers((node.name, 0)):
                chains.add(self._inside.get(reader.name))
            if len(chains) != 1 or None in chains:
                continue
            chain = chains.pop()
            update = view.nodes[chain]
            if (
                node.device != update.device
                or view.guard(node.name) != view.guard(chain)
                or view.frame(node.name) != view.frame(chain)
                or view.serves(node.name) != view.serves(chain)
            ):
                continue
            dtype = node.attr("dtype") or node.attr("DstT") or node.attr("T")
            if dtype not in (self.dtype(update), dtypes.int64):
                continue
            if node.op != "ReadVariableOp" and any(
                self._inside.get(waiting.name) != chain
                for waiting in view.control_consumers(node.name)
            ):
                continue
            if node.op == "ReadVariableOp" and dtype != dtypes.int64:
                shape = self.table(node.inputs[0]).shape
                if shape not in ((), self.table(update.inputs[0]).shape):
                    continue
            self._inside[node.name] = chain

    def _read_by_chain(self, node: Node) -> bool:
        readers = self._view.consumers((node.name, 0))
        return bool(readers) and readers[0][0].name in self._inside


def _is_exact(composition: Node) -> bool:
    """Whether an element has the same bits, handled in a packet or not."""
    names = composition.attr("op_names", [])
    return all(name in _UNARY and name not in _PACKETS_DIFFER for name in names)


def _index(item: DenseUpdate | LeftAlone) -> int:
    return (item.anchor if isinstance(item, DenseUpdate) else item.node).index


class _Builder:
    """Writes the program of one chain."""

    def __init__(self, view: GraphView, finder: _Finder, nodes: list[Node]):
        self._view = view
        self._finder = finder
        self._nodes = nodes
        self._names = {node.name for node in nodes}
        self._lines: list[str] = []
        self._values: dict[str, str] = {}  # node -> "%i"
        self._lists: dict[str, dict] = {"v": {}, "c": {}, "t": {}, "n": {}}
        self._hashes: dict[str, str] = {}

    def build(self) -> DenseUpdate | LeftAlone | None:
        view, finder = self._view, self._finder
        updates = [node for node in self._nodes if node.op in UPDATE_OPS]
        anchor = updates[0]
        if len(self._nodes) > MAX_NODES:
            return LeftAlone(anchor, f"a chain of more than {MAX_NODES} nodes")
        written = {finder.table(h).root for u in updates for h in finder.written(u)}
        if all(update.op == "AssignVariableOp" for update in updates) and not any(
            node.op == "ReadVariableOp" and finder.table(node.inputs[0]).root in written
            for node in self._nodes
        ):
            return None  # gives variables a value, as initializers do
        if any(
            node.op == "SelectV2" and node.inputs[0][0] not in self._names
            for node in self._nodes
        ):
            return LeftAlone(anchor, "others read a condition of the update")
        for node in self._topological():
            self._emit(node)
        controls = {
            name
            for node in self._nodes
            for name in node.controls
            if name not in self._names
        }
        lists = {mark: tuple(known.values()) for mark, known in self._lists.items()}
        table = finder.table(anchor.inputs[0])
        return DenseUpdate(
            tuple(node.name for node in self._nodes),
            anchor,
            table,
            finder.dtype(anchor),
            table.shape,
            tuple(self._lines),
            lists["v"],
            lists["c"],
            lists["t"],
            lists["n"],
            tuple(sorted(controls, key=lambda n: view.nodes[n].index)),
        )

    # -- the order of the lines ----------------------------------------------

    def _before(self, node: Node) -> list[Node]:
        """Nodes of the chain that have to run before, operands in order, then
        those of control edges in an order that names do not decide."""
        nodes = self._view.nodes
        inputs = self._inputs(node)
        operands = [nodes[name] for name, _ in inputs if name in self._names]
        waits = [nodes[name] for name in node.controls if name in self._names]
        waits.sort(key=lambda n: (self._hashes.get(n.name, ""), n.index))
        return operands + waits

    def _topological(self) -> list[Node]:
        """Equal chains give equal orders, wherever their nodes are in the graph."""
        followed = {s.name for node in self._nodes for s in self._before(node)}
        in_order = [n for n in self._view.order() if n.name in self._names]
        for node in in_order:
            self._hashes[node.name] = self._hash(node)
        ends = [node for node in in_order if node.name not in followed]
        ends.sort(key=lambda n: (self._hashes[n.name], n.index))
        order: list[Node] = []
        seen: set[str] = set()
        for end in ends:
            pending = [(end, False)]
            while pending:
                node, expanded = pending.pop()
                if expanded:
                    order.append(node)
                    continue
                if node.name in seen:
                    continue
                seen.add(node.name)
                pending.append((node, True))
                pending.extend((s, False) for s in reversed(self._before(node)))
        return order

    def _hash(self, node: Node) -> str:
        """Tells apart what nodes compute; names and places do not count."""
        parts = [node.op, *(node.attr("op_names") or ())]
        if node.op == "ReadVariableOp":
            shape = self._finder.table(node.inputs[0]).shape
            parts.append("scalar" if shape == () else "tensor")
        else:
            parts.extend(map(self._kind, self._inputs(node)))
        parts.extend(
            sorted(self._hashes[n] for n in node.controls if n in self._hashes)
        )
        return hashlib.sha1(repr(parts).encode()).hexdigest()

    def _kind(self, tensor: Tensor) -> str:
        """What is computed, or of what shape it is, where it comes from elsewhere."""
        if tensor[0] in self._hashes:
            return self._hashes[tensor[0]]
        return "scalar" if self._view.shape(tensor) == () else "tensor"

    def _inputs(self, node: Node) -> Sequence[Tensor]:
        """The node's inputs, in an order that names do not decide."""
        if node.op in _COMMUTATIVE:
            return sorted(node.inputs, key=self._kind)
        return node.inputs

    # -- the lines -----------------------------------------------------------

    def _name(self, mark: str, key, tensor: Tensor) -> str:
        """'t0' for the first tensor that the program reads, and so on."""
        known = self._lists[mark]
        if key not in known:
            known[key] = tensor
        return f"{mark}{list(known).index(key)}"

    def _variable(self, handle: Tensor) -> str:
        return self._name("v", self._finder.table(handle).root, handle)

    def _operand(self, tensor: Tensor) -> str:
        if tensor[0] in self._values:
            return self._values[tensor[0]]
        return self._name("t", tensor, tensor)

    def _integer(self, tensor: Tensor) -> str:
        if tensor[0] in self._values:
            return self._values[tensor[0]]
        return self._name("n", tensor, tensor)

    def _line(self, *words: str) -> str:
        self._lines.append(" ".join(words))
        return f"%{len(self._lines) - 1}"

    def _emit(self, node: Node) -> None:
        op = node.op
        if op in APPLY_OPS:
            self._expand(node, APPLY_OPS[op])
            return
        if op in ASSIGN_OPS:
            value = self._operand(node.inputs[1])
            self._line(ASSIGN_OPS[op], self._variable(node.inputs[0]), value)
            return
        if op == "ReadVariableOp":
            handle = node.inputs[0]
            if node.attr("dtype") == dtypes.int64:
                root = self._finder.table(handle).root
                result = self._line("read_count", self._name("c", root, handle))
            else:
                result = self._line("read", self._variable(handle))
        elif op == "Cast":
            result = self._line("cast_count", self._integer(node.inputs[0]))
        elif node.attr("T") == dtypes.int64:
            result = self._line("add_count", *map(self._integer, self._inputs(node)))
        elif op == "AddN":
            operands = order_of_addition(self._view, node)
            values = [self._operand(tensor) for tensor in operands]
            result = add_in_order(values, functools.partial(self._line, "add"))
        elif op == "Const":
            result = self._name("t", (node.name, 0), (node.name, 0))
        elif op == "Identity":
            result = self._operand(node.inputs[0])
        elif op == _COMPOSITION:
            result = self._operand(node.inputs[0])
            for name in node.attr("op_names"):
                result = self._line(_UNARY[name], result)
        elif op == "SelectV2":
            result = self._line("select", *map(self._operand, node.inputs))
        else:
            name = _UNARY.get(op) or _BINARY[op]
            result = self._line(name, *map(self._operand, self._inputs(node)))
        self._values[node.name] = result

    def _expand(self, node: Node, apply: ApplyOp) -> None:
        slots = [self._variable(handle) for handle in node.inputs[: apply.variables]]
        inputs = node.inputs[apply.variables : len(node.inputs) - apply.unused]
        rest = [self._operand(tensor) for tensor in inputs]
        apply.write(self._line, slots, rest, node)
