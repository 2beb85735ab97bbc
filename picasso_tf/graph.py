"""A read view over the nodes of a graph.

Everything that touches protobuf lives here, in `node.py`, `shapes.py`, `edits.py` and
`functions.py`: passes and fragments see `Node`s, tensors as `(name, port)` pairs, and
plain values. What hangs on edges alone is in `edges.py`, `effects.py` and
`control_flow.py`, which number the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes

from picasso_tf.control_flow import Frame, Guard, find_guards, reader_guard
from picasso_tf.edges import Edges, Levels
from picasso_tf.effects import Effects, find_held
from picasso_tf.node import (
    FORWARDING,
    Node,
    Shape,
    Table,
    Tensor,
    output_type,
)
from picasso_tf.shapes import infer_shape

# Edges that a rewrite will add: what a node is to wait for, by its name.
Waits = Mapping[str, Collection[str]]

_MANY = 16  # inputs of one node
_RESOURCE_PATH = FORWARDING | {"Enter", "Switch", "RefEnter"}


class GraphView:
    """An immutable view over nodes.

    Args:
      nodes: NodeDefs, not copied, or Nodes of an earlier view, which is not to be
        used any more.
      feeds: names of nodes whose outputs are fed: what is before them does not
        run.
      preserve: names of nodes that must keep their name and their outputs, which
        somebody may fetch or feed.
      keep: names of nodes that have to run, for their effect alone.
      roots: sets of nodes that are run apart from each other, such as the
        outputs of several signatures; what none of them needs does not run.
        None: all of the graph runs, together.
      arg_tables: shape and dtype of variables behind function arguments, by
        node name, where the nodes themselves do not say.
      squares_powers: TensorFlow's optimizers will make x ** 2 a Square, to other
        bits.
    """

    def __init__(
        self,
        nodes: Iterable[node_def_pb2.NodeDef | Node],
        *,
        feeds: Iterable[str] = (),
        preserve: Iterable[str] = (),
        keep: Iterable[str] = (),
        roots: Sequence[Iterable[str]] | None = None,
        arg_tables: dict[str, tuple[Shape | None, dtypes.DType | None]] | None = None,
        squares_powers: bool = True,
    ):
        self.squares_powers = squares_powers
        self._list = [n if isinstance(n, Node) else Node(n) for n in nodes]
        for index, node in enumerate(self._list):
            node.index = index
        self.nodes: dict[str, Node] = {node.name: node for node in self._list}
        self.feeds = frozenset(feeds)
        self.preserve = frozenset(preserve)
        self.keep = frozenset(keep)
        # Those that compute what they give.
        self._running = self.nodes
        if self.feeds:
            self._running = {
                name: node
                for name, node in self.nodes.items()
                if name not in self.feeds
            }
        self._arg_tables = arg_tables or {}
        self._roots = None if roots is None else [frozenset(root) for root in roots]
        self._edges: Edges | None = None
        self._effects: Effects | None = None
        self._consumers: dict[str, dict[int, list[tuple[Node, int]]]] = {}
        self._control_consumers: dict[str, list[Node]] = {}
        self._serves: list[int] | None = None
        self._order: list[Node] | None = None
        self._held: set[str] | None = None
        self._tables: dict[Tensor, Table] = {}
        self._shapes: dict[Tensor, Shape | None] = {}
        self._once: dict[tuple[Callable, str], Any] = {}
        self._guards: tuple[dict[str, Guard], dict[str, Frame]] | None = None

    def once(self, function: Callable[[GraphView, Node], Any], node: Node) -> Any:
        """`function(view, node)`, computed at its first use: for what is asked of
        one node for each of its many outputs."""
        key = (function, node.name)
        if key not in self._once:
            self._once[key] = function(self, node)
        return self._once[key]

    # -- structure ---------------------------------------------------------

    def producer(self, tensor: Tensor) -> Node | None:
        """The node behind a tensor; None if it is fed or not in the graph."""
        return self._running.get(tensor[0])

    def movable(
        self,
        tensor: Tensor,
        device: str,
        *,
        held: bool = False,
        bookkeeping: bool = True,
    ) -> Node | None:
        """The producer, if a packed op on `device` may do its work: it is not fed
        or fetched, waits for nobody, and lies on that device. With `held`, the
        caller sees to its control inputs; without `bookkeeping`, to those of
        what says how it moves its data."""
        node = self.producer(tensor)
        if (
            node is None
            or (node.controls and not held)
            or node.device != device
            or node.name in self.preserve
        ):
            return None
        if bookkeeping and len(node.inputs) > 1:
            held = self._held_back()
            for name, _ in _bookkeeping(node):
                if name in held:
                    return None
        return node

    def waits_for_nobody(self, tensor: Tensor) -> bool:
        """Whether no control edge holds back a tensor of bookkeeping: an axis, a
        shape, a size. Looks at what computes it, up to nodes with effects."""
        return tensor[0] not in self._held_back()

    def _held_back(self) -> set[str]:
        if self._held is None:
            self._held = find_held(self._list, self.edges, self._fed())
        return self._held

    @property
    def edges(self) -> Edges:
        """Who needs whom, by `Node.index`."""
        if self._edges is None:
            self._edges = Edges(self._list)
        return self._edges

    def at(self, index: int) -> Node:
        """The node with that `Node.index`."""
        return self._list[index]

    def _fed(self) -> list[int]:
        return self._numbers(name for name in self.feeds if name in self.nodes)

    def _numbers(self, names: Iterable[str]) -> list[int]:
        return [self.nodes[name].index for name in names]

    def _numbered(self, waits: Waits) -> dict[int, list[int]]:
        return {
            self.nodes[name].index: self._numbers(sources)
            for name, sources in waits.items()
        }

    def consumers(self, tensor: Tensor) -> Sequence[tuple[Node, int]]:
        """Nodes that read the tensor, with the input's position."""
        name, port = tensor
        if name not in self._consumers:
            self._find_consumers(name)
        return self._consumers[name].get(port, ())

    def control_consumers(self, name: str) -> Sequence[Node]:
        """Nodes that wait for a node, without reading it for that."""
        if name not in self._consumers:
            self._find_consumers(name)
        return self._control_consumers[name]

    def _find_consumers(self, name: str) -> None:
        ports: dict[int, list[tuple[Node, int]]] = {}
        waiting: list[Node] = []
        if name in self.nodes:
            number = self.nodes[name].index
            readers = self.edges.behind[number]
            if number in self.edges.loops:
                readers = sorted(readers + self.edges.loops[number])
            edges: dict[int, int] = {}
            for number in readers:
                edges[number] = edges.get(number, 0) + 1
            for number, count in edges.items():
                reader = self._list[number]
                positions = self._reading(reader, name)
                for position in positions:
                    port = reader.inputs[position][1]
                    ports.setdefault(port, []).append((reader, position))
                waiting += [reader] * (count - len(positions))
        self._consumers[name], self._control_consumers[name] = ports, waiting

    def _reading(self, reader: Node, name: str) -> Sequence[int]:
        """The inputs by which a node reads another."""
        if len(reader.inputs) < _MANY:
            return [i for i, (source, _) in enumerate(reader.inputs) if source == name]
        # Asked for each of the many, so that looking at them all must be done once.
        return self.once(_positions, reader).get(name, ())

    def of_types(self, op_types: Iterable[str]) -> list[Node]:
        """The nodes of some op types, in graph order."""
        wanted = frozenset(op_types)
        return [node for node in self.nodes.values() if node.op in wanted]

    def serves(self, name: str) -> int:
        """Which of the sets of roots need the node, as a bit mask.

        Nodes with different masks are not always run together, so no op may do
        the work of both. Where all runs together, the mask is 1.
        """
        if self._roots is None:
            return 1
        if self._serves is None:
            self._serves = [0] * len(self._list)
            for bit, root in enumerate(self._roots):
                names = self._numbers(name for name in root if name in self.nodes)
                for index in self.edges.needed_by(names, self._fed()):
                    self._serves[index] |= 1 << bit
        return self._serves[self.nodes[name].index]

    def order(self) -> list[Node]:
        """All nodes in an order in which inputs come first.

        Edges from NextIteration to Merge close loops and are left out; those into
        fed nodes count, as TensorFlow's optimizers count them. Among
        nodes that are ready, graph order decides, so the order is repeatable.

        Raises:
          ValueError: there is no such order.
        """
        if self._order is None:
            found = self.edges.sort({})
            if found.stuck:
                raise ValueError(
                    "The graph has a cycle that no loop explains, through "
                    f"{self._names(found.stuck)[:5]}."
                )
            self._order = [self._list[index] for index in found.order]
        return self._order

    def stuck(self, waits: Waits) -> set[str]:
        """Names of the nodes that would never run with additional edges: those on
        cycles, and what comes behind them."""
        if not waits:
            return set()
        return set(self._names(self.edges.sort(self._numbered(waits)).stuck))

    def _names(self, numbers: Iterable[int]) -> list[str]:
        return sorted(self._list[index].name for index in numbers)

    def comes_before(self, names: Iterable[str], last: str, waits: Waits) -> bool:
        """Whether node `last` depends on one of the nodes, itself included."""
        return self.edges.comes_before(
            self._numbers(names), self.nodes[last].index, self._numbered(waits)
        )

    def behind(self, nodes: Iterable[Node]) -> Iterable[Node]:
        """The nodes, and all that depend on them."""
        numbers = self.edges.reachable(node.index for node in nodes)
        return [self._list[index] for index in numbers]

    def followers(self, name: str) -> list[Node]:
        """Who reads a node or waits for it, with repetitions; no edge closes a loop."""
        index = self.nodes[name].index
        return [self._list[reader] for reader in self.edges.behind[index]]

    def sources(self, node: Node) -> Iterable[str]:
        """Names of nodes that must run before `node`, with repetitions."""
        return [self._list[index].name for index in self.edges.before[node.index]]

    def levels(self, anchors: Iterable[str], waits: Waits | None = None) -> Levels:
        """Per node, the most anchors on a path that ends with it.

        `waits` are edges that the rewrite will add: they must close no cycle.

        Two anchors of one level cannot depend on each other, and any number of
        groups of anchors, each of one level, can be contracted at once without
        a cycle: every edge into a group rises by a level, and none falls.
        """
        marks = bytearray(len(self._list))
        for name in anchors:
            marks[self.nodes[name].index] = 1
        found = self.edges.sort(self._numbered(waits or {}), marks)
        if found.stuck:
            names = self._names(found.stuck)
            raise ValueError(f"No level has {names[:5]}: there is a cycle.")
        return Levels(self.nodes, found.counts)

    def levels_around(self, anchored: Waits) -> Levels:
        """As `levels`, of anchors that are put behind other nodes than those that
        they read: `anchored` has these for each.

        Raises:
          ValueError: that closes a cycle.
        """
        levels = self.edges.levels_around(self._numbered(anchored))
        if levels is None:
            raise ValueError("There is a cycle.")
        return Levels(self.nodes, levels)

    def group_levels(
        self, groups: Mapping[str, Hashable]
    ) -> tuple[dict[Hashable, int], set[Hashable]]:
        """Levels of groups of nodes, each contracted to one node.

        Args:
          groups: the group of each node that is in one.

        Returns:
          Per group, the most groups on a path that ends with it: as for `levels`,
          all groups of a level may be contracted further. And the groups that have
          no level, since a path leaves one and comes back to it, perhaps through
          others.
        """
        return self.edges.group_levels(
            {self.nodes[name].index: group for name, group in groups.items()}
        )

    def effects_before(self, name: str, known: str) -> frozenset[str] | None:
        """The nodes with effects that node `name` waits for, other than through
        node `known`: whoever reads `known` and waits for these may stop waiting
        for `name`, if it has no effect itself. None: too many to tell.

        tf.gradients holds back the gradients of an op until all of them are
        computed, by a NoOp in front of an Identity each. Inherited as it is,
        such an edge would keep alive what a pack replaces.
        """
        if name not in self.nodes:
            return frozenset()
        if self._effects is None:
            self._effects = Effects(self._list, self.edges)
        first = self._effects.of(self.nodes[name].index)
        if known not in self.nodes:
            second: frozenset[int] | None = frozenset()
        else:
            second = self._effects.of(self.nodes[known].index)
        if first is None or second is None:
            return None
        # Whoever reads `known` waits for all that it waits for.
        names = {self._list[index].name for index in first - second}
        return frozenset(names - {known})

    # -- control flow ------------------------------------------------------

    def guard(self, name: str) -> Guard:
        """Switch outputs under which the node is dead if they are not taken.

        Ops in one pack need equal guards: a pack with one dead input is dead as
        a whole, and consumers of its other outputs would silently get empty
        tensors. Elements are (predicate tensor, output port).
        """
        return self._guards_and_frames()[0].get(name, frozenset())

    def frame(self, name: str) -> Frame:
        """Names of the while frames around the node, outermost first."""
        return self._guards_and_frames()[1].get(name, ())

    def _guards_and_frames(self) -> tuple[dict[str, Guard], dict[str, Frame]]:
        if self._guards is None:
            self._guards = find_guards(self)
        return self._guards

    def edge_guard(self, tensor: Tensor) -> Guard:
        """The guard that a reader of the tensor inherits."""
        return reader_guard(self, tensor)

    # -- values ------------------------------------------------------------

    def skip(self, tensor: Tensor, ops: frozenset) -> Tensor:
        """The tensor before a chain of ops that pass on their first input."""
        while True:
            node = self.producer(tensor)
            if node is None or node.op not in ops or not node.inputs:
                return tensor
            tensor = node.inputs[0]

    def table(self, handle: Tensor) -> Table:
        """The variable behind a resource tensor, found along its edges."""
        root = self.skip(handle, _RESOURCE_PATH)
        if root not in self._tables:
            self._tables[root] = self._table_at(root)
        return self._tables[root]

    def _table_at(self, root: Tensor) -> Table:
        node = self.nodes.get(root[0])
        if node is None:
            return Table(root, root[0], None, None)
        if node.op == "VarHandleOp":
            name = node.attr("shared_name", "") or node.name
            return Table(root, name, node.attr("shape"), node.attr("dtype"))
        shape = dtype = None
        if "_handle_shapes" in node._def.attr:
            shapes = node.attr("_handle_shapes")
            types = node.attr("_handle_dtypes", [])
            shape = shapes[0] if shapes else None
            dtype = types[0] if types else None
        elif root[0] in self._arg_tables:
            shape, dtype = self._arg_tables[root[0]]
        return Table(root, node.name, shape, dtype)

    def dtype(self, tensor: Tensor) -> dtypes.DType | None:
        """The type of a tensor, as its op declares it; None: not known."""
        node = self.nodes.get(tensor[0])
        return node and output_type(node, tensor[1])

    def constant(self, tensor: Tensor):
        """The value of a constant as a NumPy array, not to be changed; else None."""
        node = self.producer(self.skip(tensor, FORWARDING))
        if node is None or node.op != "Const":
            return None
        return node.constant()

    def constant_int(self, tensor: Tensor) -> int | None:
        """The value of a constant with one element, as an int."""
        values = self.constant_ints(tensor)
        return None if values is None or len(values) != 1 else values[0]

    def constant_ints(self, tensor: Tensor) -> list[int] | None:
        """The elements of a constant, as ints; not to be changed."""
        node = self.producer(self.skip(tensor, FORWARDING))
        if node is None or node.op != "Const":
            return None
        return node.constant_ints()

    def shape(self, tensor: Tensor) -> Shape | None:
        """What is known of a tensor's shape without running anything."""
        if tensor not in self._shapes:
            self._shapes[tensor] = None  # a loop finds this
            self._shapes[tensor] = infer_shape(self, tensor)
        return self._shapes[tensor]

    def is_scalar(self, tensor: Tensor) -> bool:
        return self.shape(tensor) == ()


def _positions(_: GraphView, reader: Node) -> dict[str, list[int]]:
    """At which inputs a node reads which others."""
    found: dict[str, list[int]] = {}
    for position, (name, _port) in enumerate(reader.inputs):
        found.setdefault(name, []).append(position)
    return found


def _bookkeeping(node: Node) -> Sequence[Tensor]:
    """The inputs that say how a node moves its data: axes, shapes, sizes."""
    if node.op == "Pack":
        return ()
    return node.inputs[-1:] if node.op == "ConcatV2" else node.inputs[1:]
