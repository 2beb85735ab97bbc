"""What is computed from looked-up rows, element by element and by sums of a row, as
straight-line programs: clipping to a norm, and its gradient."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Iterator

from tensorflow.python.framework import dtypes

from picasso_tf.fragments.addition import add_in_order, order_of_addition
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Tensor

_UNARY = {"Square": "square", "Neg": "neg", "Sqrt": "sqrt"}
_BINARY = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "SqrtGrad": "sqrt_grad",
}
_COMPARISONS = {
    "Greater": "greater",
    "GreaterEqual": "greater_equal",
    "Less": "less",
    "LessEqual": "less_equal",
}
_SELECTS = ("Select", "SelectV2")
# Each program that reads these works them out by itself.
_FREE = frozenset({*_COMPARISONS, "ZerosLike", "Fill"})
_OPS = frozenset({*_UNARY, *_BINARY, *_SELECTS, "AddN", "Sum", "BroadcastTo"}) | _FREE
# Reshape(Sum(x, BroadcastGradientArgs), shape), where TensorFlow's optimizers could not
# tell what was broadcast.
_UNBROADCAST = "Reshape"
_TYPES = frozenset({dtypes.float32, dtypes.float64, dtypes.half, dtypes.bfloat16})
# Gradients of pooled rows, which have the shape of the rows.
_ROW_GRADIENTS = frozenset(
    {"SparseSegmentSumGrad", "SparseSegmentMeanGrad", "SparseSegmentSqrtNGrad"}
    | {"UnsortedSegmentSum"}
)
# Where the shape of the result is among the inputs.
_GIVEN_A_SHAPE = {"Slice": 2, "Reshape": 1}
_MAX_NODES = 256

# (rows that it is computed from, how many programs on these come before).
Key = tuple[Tensor, int]


@dataclasses.dataclass(frozen=True)
class RowProgram:
    """All that may be computed at once from one matrix of rows.

    Attributes:
      key: tells it from others.
      rows: the matrix, [..., dim].
      nodes: names of the nodes that the program stands for, in graph order.
      anchor: the node that names it.
      dtype: of all floats.
      shape: of the rows.
      lines: as kernels/core/row_program.h explains them.
      tensors: what they read, `rows` first.
      results: the tensors that others read, and the line of each.
      controls: names of nodes that any node waits for.
    """

    key: Key
    rows: Tensor
    nodes: tuple[str, ...]
    anchor: Node
    dtype: dtypes.DType
    shape: Shape
    lines: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    results: tuple[tuple[Tensor, int], ...]
    controls: tuple[str, ...]


class RowPrograms:
    """Finds the programs of a graph.

    Elementwise nodes that follow from one matrix of rows belong to one program, as
    far as nothing else comes between them; what later programs alone need, goes to
    these. A program has at least one sum over rows: without, it would be anything.
    Of rows of one column, one of the programs has.
    """

    def __init__(self, view: GraphView):
        self._view = view
        self._bases: dict[Tensor, Shape] = {}
        # Per node: the rows it is computed from, and whether it is a matrix.
        self._kinds: dict[str, tuple[Tensor, bool]] = {}
        self._operands: dict[str, tuple[Tensor, ...]] = {}
        self._ranks: dict[str, int] = {}
        self._hashes: dict[str, str] = {}
        self._sums: set[str] = set()  # nodes that sum over rows
        self._before: dict[str, Node] = {}  # by the Sum, the Reshape behind it
        self._members: dict[Key, list[Node]] | None = None  # not known so far
        if self._find_bases():
            self._find_candidates()
            self._sink()
        self._divide()

    @property
    def keys(self) -> tuple[Key, ...]:
        """Of all programs, in graph order."""
        return tuple(self._members)

    def drop(self, key: Key) -> None:
        """The nodes of this one stay as they are."""
        del self._members[key]

    def build(self, key: Key) -> RowProgram | str:
        """The program, or why it is left alone."""
        return _Builder(self, self._view, key).build()

    def units(self) -> dict[str, Key]:
        """The program of each node that is part of one, or is read by it alone."""
        units = {}
        for name, (rows, _) in self._kinds.items():
            key = (rows, self._ranks[name])
            if key in self._members:
                units[name] = key
                node = self._view.nodes[name]
                for inner in (self._shape_behind(node), self._sum_of(node)):
                    if inner is not None:
                        units.setdefault(inner.name, key)
        return units

    # -- what may be part of a program ----------------------------------------

    def _find_bases(self) -> bool:
        view = self._view
        for node in view.of_types(("PicassoPackedLookup",)):
            if node.attr("dtype") not in _TYPES or "GPU" in node.device.upper():
                continue
            for port in range(node.attr("K")):
                rows = node.name, port
                # Most rows go elsewhere, and most graphs need no further look.
                if all(reader.op not in _OPS for reader, _ in view.consumers(rows)):
                    continue
                shape = view.shape(rows)
                if shape is not None and len(shape) >= 2 and shape[-1]:
                    self._bases[rows] = shape
        return bool(self._bases)

    def _find_candidates(self) -> None:
        view = self._view
        for node in view.order():
            operands = self._may_join(node)
            sources = list(view.sources(node))
            if operands is not None:
                sources = [*(name for name, _ in operands), *self.controls(node)]
            rank = 0
            for source in sources:
                before = self._ranks.get(source, 0)
                leaves = source in self._kinds and operands is None
                rank = max(rank, before + leaves)
            self._ranks[node.name] = rank
            if operands is not None:
                self._operands[node.name] = operands
                parts = [node.op, *(self._hash(tensor) for tensor in operands)]
                digest = hashlib.sha1(repr(parts).encode()).hexdigest()
                self._hashes[node.name] = digest

    def _hash(self, tensor: Tensor) -> str:
        if tensor in self._bases:
            return "rows"
        known = self._hashes.get(tensor[0])
        if known is not None:
            return known
        return "scalar" if self._is_scalar(tensor) else "matrix"

    def _may_join(self, node: Node) -> tuple[Tensor, ...] | None:
        """What a node computes with, if it may be part of a program."""
        view, op = self._view, node.op
        if op not in _OPS and op != _UNBROADCAST:
            return None
        if node.attr("T") not in _TYPES:
            return None
        if node.name in view.feeds or node.name in view.preserve:
            return None
        if node.name in view.keep:
            return None
        operands = tuple(node.inputs)
        if op == "AddN":
            operands = order_of_addition(view, node)
            if operands is None:
                return None
        if op == "Sum":
            return self._sum(node)
        if op == _UNBROADCAST:
            return self._unbroadcast(node)
        if op in ("Fill", "BroadcastTo"):
            return self._of_a_shape(node)
        known, matrix = None, False
        for tensor in operands:
            kind = self.kind(tensor)
            if kind is not None:
                if known not in (None, kind[0]):
                    return None
                known = kind[0]
                matrix = matrix or kind[1]
        if known is None:
            return None
        kinds = set()
        for position, tensor in enumerate(operands):
            kind = self.kind(tensor)
            if kind is not None:
                kinds.add(kind[1])
            elif self._is_scalar(tensor):
                kinds.add(None)
            elif self._is_row_gradient(tensor, known):
                kinds.add(True)
                matrix = True
            else:
                return None
            producer = view.producer(tensor)
            compares = producer is not None and producer.op in _COMPARISONS
            if compares != (op in _SELECTS and position == 0):
                return None
        if self._bases[known][-1] == 1:
            # Rows look like sums of rows; TensorFlow then leaves out the sums.
            kinds = {kind is not None for kind in kinds}
        # These do not broadcast.
        if op in ("AddN", "Select", "SqrtGrad") and len(kinds) != 1:
            return None
        self._kinds[node.name] = known, matrix
        return operands

    def _sum(self, node: Node) -> tuple[Tensor, ...] | None:
        kind = self.kind(node.inputs[0])
        if kind is None or not kind[1] or not node.attr("keep_dims", False):
            return None
        rank = len(self._bases[kind[0]])
        axes = self._view.constant(node.inputs[1])
        if axes is None or axes.size != 1:
            return None
        if int(axes.reshape(-1)[0]) not in (-1, rank - 1):
            return None
        self._kinds[node.name] = kind[0], False
        self._sums.add(node.name)
        return node.inputs[:1]

    def _unbroadcast(self, node: Node) -> tuple[Tensor, ...] | None:
        """Of Reshape(Sum(x, axes), shape) the x, where the axes are those along which
        a tensor of this shape was broadcast."""
        view = self._view
        total, shape = map(view.producer, node.inputs)
        if total is None or shape is None or shape.op != "Shape":
            return None
        known = self.kind(node.inputs[0])
        if known is not None and known == self.kind(shape.inputs[0]):
            self._kinds[node.name] = known  # it has that shape
            return node.inputs[:1]
        if total.op != "Sum":
            return None
        alone = len(view.consumers((total.name, 0))) == 1
        if not alone or view.control_consumers(total.name):
            return None
        if total.name in view.preserve:
            return None
        if total.device != node.device or total.name in view.feeds | view.keep:
            return None
        axes = view.producer(total.inputs[1])
        if axes is None or axes.op != "BroadcastGradientArgs":
            return None
        shapes = [view.producer(tensor) for tensor in axes.inputs]
        if any(each is None or each.op != "Shape" for each in shapes):
            return None
        kinds = [self.kind(each.inputs[0]) for each in shapes]
        x, wanted = self.kind(total.inputs[0]), self.kind(shape.inputs[0])
        if None in (x, wanted, *kinds) or len({k[0] for k in (x, wanted, *kinds)}) > 1:
            return None
        own, other = kinds[total.inputs[1][1]], kinds[1 - total.inputs[1][1]]
        if wanted != own or x[1] != (own[1] or other[1]):
            return None
        self._kinds[node.name] = own
        self._before[total.name] = node
        if x[1] and not own[1]:
            self._sums.add(node.name)
        return total.inputs[:1]

    def _sum_of(self, node: Node) -> Node | None:
        return self.sum_behind(node.name) if node.op == _UNBROADCAST else None

    def sum_behind(self, name: str) -> Node | None:
        """The Sum that a Reshape is taken together with."""
        source = self._view.producer(self._view.nodes[name].inputs[0])
        if source is None or self._before.get(source.name) is None:
            return None
        return source if self._before[source.name].name == name else None

    def is_sum(self, name: str) -> bool:
        return name in self._sums

    def _of_a_shape(self, node: Node) -> tuple[Tensor, ...] | None:
        """Of Fill(shape, value) and BroadcastTo(value, shape), the value and the
        tensor that has this shape."""
        shape = self._shape_behind(node)
        kind = None if shape is None else self.kind(shape.inputs[0])
        if kind is None:
            return None
        value = node.inputs[node.op == "Fill"]
        if node.op == "Fill":
            if not self._is_scalar(value):
                return None
        else:
            of = self.kind(value)
            if of is None or of[0] != kind[0] or not kind[1]:
                return None
        self._kinds[node.name] = kind
        return value, shape.inputs[0]

    def _shape_behind(self, node: Node) -> Node | None:
        if node.op not in ("Fill", "BroadcastTo"):
            return None
        shape = self._view.producer(node.inputs[node.op != "Fill"])
        return shape if shape is not None and shape.op == "Shape" else None

    def kind(self, tensor: Tensor) -> tuple[Tensor, bool] | None:
        """(rows that it is computed from, whether it is a matrix)."""
        if tensor in self._bases:
            return tensor, True
        return self._kinds.get(tensor[0]) if tensor[1] == 0 else None

    def _is_scalar(self, tensor: Tensor) -> bool:
        return self._view.shape(tensor) in ((), (1,), (1, 1))

    def _is_row_gradient(self, tensor: Tensor, rows: Tensor) -> bool:
        node = self._view.producer(tensor)
        if node is None:
            return False
        if node.op in _ROW_GRADIENTS:
            return len(self._bases[rows]) == 2
        if node.op in _GIVEN_A_SHAPE:
            shape = node.inputs[_GIVEN_A_SHAPE[node.op]]
            told = self._view.producer(shape)
            if told is not None and told.op in ("Shape", "ShapeN"):
                return self.kind(told.inputs[shape[1]]) == (rows, True)
        shape, wanted = self._view.shape(tensor), self._bases[rows]
        if shape is None or len(shape) != len(wanted) or shape[-1] != wanted[-1]:
            return False
        return self._ranks.get(node.name, 0) > 0

    # -- which program it is part of ------------------------------------------

    def is_free(self, name: str) -> bool:
        return self._view.nodes[name].op in _FREE

    def readers(self, name: str) -> Iterator[Node | None]:
        """The nodes of programs that read a node, perhaps through free ones; None:
        others do."""
        view = self._view
        for reader, position in view.consumers((name, 0)):
            if reader.op == "Shape" and reader.name not in view.preserve:
                if view.control_consumers(reader.name):
                    yield None
                # Programs know shapes by themselves.
                if not all(
                    self._is_packed(behind)
                    for behind, _ in view.consumers((reader.name, 0))
                ):
                    yield None
                continue
            reader = self._before.get(reader.name, reader)
            if reader.name not in self._kinds:
                yield None
            elif self.is_free(reader.name):
                yield from self.readers(reader.name)
            elif reader.op == "BroadcastTo" and position == 1:
                yield None
            else:
                yield reader

    def controls(self, node: Node) -> tuple[str, ...]:
        """What a node of a program waits for."""
        total = self._sum_of(node)
        return node.controls if total is None else (*node.controls, *total.controls)

    def _is_packed(self, node: Node | None) -> bool:
        """Whether a program does a node's work, in all that becomes of it."""
        if node is not None and node.op == "BroadcastGradientArgs":
            return not self._view.control_consumers(node.name) and all(
                self._is_packed(self._before.get(reader.name))
                for port in (0, 1)
                for reader, _ in self._view.consumers((node.name, port))
            )
        if node is None or node.name not in self._kinds:
            return False
        if self.is_free(node.name):
            return all(map(self._is_packed, self.readers(node.name)))
        return self._members is None or self.key(node.name) is not None

    def _sink(self) -> None:
        """What one later program alone reads, goes there."""
        view = self._view
        for node in reversed(view.order()):
            name = node.name
            if name not in self._kinds or self.is_free(name):
                continue
            if view.control_consumers(name):
                continue
            readers = list(self.readers(name))
            if readers and None not in readers:
                rank = min(self._ranks[reader.name] for reader in readers)
                self._ranks[name] = max(rank, self._ranks[name])
        for node in view.order():
            if node.name in self._kinds and self.is_free(node.name):
                sources = [name for name, _ in self._operands[node.name]]
                sources += node.controls
                self._ranks[node.name] = max(
                    (self._ranks.get(source, 0) for source in sources), default=0
                )

    def _divide(self) -> None:
        members: dict[Key, list[Node]] = {}
        for node in self._view.order():
            kind = self._kinds.get(node.name)
            if kind is not None and not self.is_free(node.name):
                key = kind[0], self._ranks[node.name]
                members.setdefault(key, []).append(node)
        summed = {self._kinds[name][0] for name in self._sums}
        self._members = {
            key: nodes
            for key, nodes in members.items()
            if any(node.name in self._sums for node in nodes)
            or (key[0] in summed and self._bases[key[0]][-1] == 1)
        }

    def members(self, key: Key) -> list[Node]:
        return self._members[key]

    def key(self, name: str) -> Key | None:
        """The program that a node is a member of."""
        kind = self._kinds.get(name)
        if kind is None or self.is_free(name):
            return None
        key = kind[0], self._ranks[name]
        return key if key in self._members else None

    def operands(self, name: str) -> tuple[Tensor, ...]:
        return self._operands[name]

    def shape(self, rows: Tensor) -> Shape:
        return self._bases[rows]

    def hash(self, name: str) -> str:
        return self._hashes[name]


class _Builder:
    """Writes the lines of one program."""

    def __init__(self, programs: RowPrograms, view: GraphView, key: Key):
        self._programs = programs
        self._view = view
        self._key = key
        self._tensors: dict[Tensor, int] = {key[0]: 0}
        self._lines: list[str] = []
        self._values: dict[str, str] = {}
        self._controls: set[str] = set()

    def build(self) -> RowProgram | str:
        view, programs = self._view, self._programs
        nodes = programs.members(self._key)
        if len(nodes) > _MAX_NODES:
            return f"a chain of more than {_MAX_NODES} nodes"
        first = nodes[0]
        where = [
            (n.device, view.guard(n.name), view.frame(n.name), view.serves(n.name))
            for n in nodes
        ]
        if any(place != where[0] for place in where):
            return "its nodes are on several devices, or in several branches"
        ends = [node for node in nodes if self._is_result(node)]
        ends.sort(key=lambda node: (programs.hash(node.name), node.index))
        for node in ends:
            self._value((node.name, 0))
        results = []
        for node in ends:
            line = self._values[node.name]
            if line[0] != "%" or any(int(line[1:]) == other for _, other in results):
                line = self._line("copy", programs.kind((node.name, 0))[1], line)
            results.append(((node.name, 0), int(line[1:])))
        names = {node.name for node in nodes}
        controls = self._controls.union(*map(programs.controls, nodes)) - names
        return RowProgram(
            self._key,
            self._key[0],
            tuple(sorted(names, key=lambda name: view.nodes[name].index)),
            min(nodes, key=lambda node: node.index),
            first.attr("T"),
            programs.shape(self._key[0]),
            tuple(self._lines),
            tuple(self._tensors),
            tuple(results),
            tuple(sorted(controls, key=lambda name: view.nodes[name].index)),
        )

    def _is_result(self, node: Node) -> bool:
        """Whether others read it: nodes that stay, or other programs."""
        for reader in self._programs.readers(node.name):
            if reader is None or self._programs.key(reader.name) != self._key:
                return True
        return False

    def _value(self, tensor: Tensor) -> str:
        """The name of a tensor within the program; its lines are written."""
        programs = self._programs
        name = tensor[0]
        computed = tensor not in self._tensors and programs.kind(tensor) is not None
        if computed and (programs.key(name) == self._key or programs.is_free(name)):
            if name not in self._values:
                self._values[name] = self._emit(self._view.nodes[name])
            return self._values[name]
        return f"t{self._tensors.setdefault(tensor, len(self._tensors))}"

    def _line(self, word: str, matrix: bool, *operands: str) -> str:
        self._lines.append(" ".join((word, "m" if matrix else "c", *operands)))
        return f"%{len(self._lines) - 1}"

    def _emit(self, node: Node) -> str:
        op = node.op
        _, matrix = self._programs.kind((node.name, 0))
        operands = self._programs.operands(node.name)
        if self._programs.is_free(node.name):
            self._controls.update(node.controls)
        if op == "ZerosLike":
            return "#0"
        if op == "Fill":
            return self._value(operands[0])
        if op == "BroadcastTo":
            return self._line("copy", True, self._value(operands[0]))
        values = [self._value(tensor) for tensor in operands]
        if self._programs.is_sum(node.name):
            return self._line("sum", False, *values)
        if op == _UNBROADCAST:
            return values[0]
        if op == "AddN":
            return self._added(values, matrix)
        if op in _SELECTS:
            return self._line("select", matrix, *values)
        word = _UNARY.get(op) or _BINARY.get(op) or _COMPARISONS[op]
        return self._line(word, matrix, *values)

    def _added(self, operands: list[str], matrix: bool) -> str:
        if len(operands) == 1:
            return self._line("copy", matrix, *operands)
        return add_in_order(operands, functools.partial(self._line, "add", matrix))
