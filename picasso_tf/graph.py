"""A read view over the nodes of a graph.

Everything that touches protobuf lives here, in `edits.py` and in `functions.py`:
passes and fragments see `Node`s, tensors as `(name, port)` pairs, and plain values.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

Tensor = tuple[str, int]  # node name, output port
Shape = tuple[int | None, ...]  # None: a dimension that is not known
# Edges that a rewrite will add: what a node is to wait for, by its name.
Waits = Mapping[str, Collection[str]]


class Node:
    """One node. `inputs` are tensors, `controls` names of nodes."""

    __slots__ = ("_def", "controls", "device", "index", "inputs", "name", "op")

    def __init__(self, node_def: node_def_pb2.NodeDef):
        self._def = node_def
        self.index = -1  # in its view
        self.name = node_def.name
        self.op = node_def.op
        self.device = node_def.device
        inputs = []
        controls = []
        for edge in node_def.input:
            if edge[0] == "^":
                controls.append(edge[1:])
            else:
                name, colon, port = edge.partition(":")
                inputs.append((name, int(port) if colon else 0))
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
        return _attr_value(attrs[key])

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


def _attr_value(value: attr_value_pb2.AttrValue) -> Any:
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


# Ops whose output is their first input, as far as values go.
FORWARDING = frozenset({"Identity", "StopGradient", "PreventGradient", "Snapshot"})
_SAME_SHAPE = FORWARDING | {
    *("Cast", "Neg", "ZerosLike", "OnesLike", "Relu", "Enter", "Switch"),
    *("Sqrt", "Rsqrt", "Square", "Exp", "Log", "Abs", "Sign", "LogicalNot"),
}
_ELEMENTWISE = frozenset(
    {
        *("Mul", "RealDiv", "DivNoNan", "AddV2", "Sub", "Pow", "Minimum", "Maximum"),
        *("Less", "Greater", "SelectV2", "LogicalOr", "LogicalAnd"),
    }
)
_POOLED_GRADIENTS = frozenset(
    f"SparseSegment{combiner}Grad{version}"
    for combiner in ("Sum", "Mean", "SqrtN")
    for version in ("", "V2")
)
_REDUCTIONS = frozenset({"Sum", "Mean", "Prod", "Max", "Min", "Any", "All"})
_RESOURCE_PATH = FORWARDING | {"Enter", "Switch", "RefEnter"}


# Nodes looked at before a barrier is taken as it is.
_EFFECTS_LIMIT = 20_000
# Stateful or not, these only name what comes from outside.
_SOURCES = frozenset(
    {"Placeholder", "PlaceholderWithDefault", "_Arg", "_Retval", "VarHandleOp"}
)


_JOINS_CONTROL_FLOW = frozenset(
    {"Merge", "RefMerge", "Exit", "RefExit", "Enter", "RefEnter"}
)


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
        self.nodes: dict[str, Node] = {node.name: node for node in self._list}
        self.feeds = frozenset(feeds)
        self.preserve = frozenset(preserve)
        self.keep = frozenset(keep)
        self._arg_tables = arg_tables or {}
        self._shapes: dict[Tensor, Shape | None] = {}
        self._consumers: dict[Tensor, list[tuple[Node, int]]] = {}
        self._control_consumers: dict[str, list[Node]] = {}
        consumers, waiting = self._consumers, self._control_consumers
        for index, node in enumerate(self._list):
            node.index = index
            for position, tensor in enumerate(node.inputs):
                if tensor in consumers:
                    consumers[tensor].append((node, position))
                else:
                    consumers[tensor] = [(node, position)]
            for name in node.controls:
                waiting.setdefault(name, []).append(node)
        self._roots = None if roots is None else [frozenset(root) for root in roots]
        self._serves: list[int] | None = None
        self._order: list[Node] | None = None
        self._before: list[list[int]] | None = None
        self._behind: list[list[int]] = []
        self._held: set[str] | None = None
        self._constants: dict[str, Any] = {}
        self._effects: dict[tuple[str, str], frozenset[str] | None] = {}
        self._guards: dict[str, frozenset] | None = None
        self._frames: dict[str, tuple[str, ...]] = {}

    # -- structure ---------------------------------------------------------

    def producer(self, tensor: Tensor) -> Node | None:
        """The node behind a tensor; None if it is fed or not in the graph."""
        return None if tensor[0] in self.feeds else self.nodes.get(tensor[0])

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
        if bookkeeping and not all(map(self.waits_for_nobody, _bookkeeping(node))):
            return None
        return node

    def waits_for_nobody(self, tensor: Tensor) -> bool:
        """Whether no control edge holds back a tensor of bookkeeping: an axis, a
        shape, a size. Looks at what computes it, up to nodes with effects."""
        if self._held is None:
            self._held = self._find_held()
        return tensor[0] not in self._held

    def _find_held(self) -> set[str]:
        held: set[str] = set()
        pending = [node for node in self._list if node.controls]
        while pending:
            node = pending.pop()
            if node.name in held or node.name in self.feeds or has_effect(node.op):
                continue
            held.add(node.name)
            readers = [self._list[index] for index in self.edges()[1][node.index]]
            if node.op in ("NextIteration", "RefNextIteration"):
                readers += [reader for reader, _ in self.consumers((node.name, 0))]
            pending.extend(
                reader
                for reader in readers
                if reader.op not in ("Shape", "ShapeN", "Size", "Rank")
            )
        return held

    def consumers(self, tensor: Tensor) -> Sequence[tuple[Node, int]]:
        """Nodes that read the tensor, with the input's position."""
        return self._consumers.get(tensor, ())

    def control_consumers(self, name: str) -> Sequence[Node]:
        return self._control_consumers.get(name, ())

    def readers(self, name: str) -> int:
        """How many edges come from a node, those that close loops included."""
        node = self.nodes.get(name)
        if node is None:
            return 0
        if node.op in ("NextIteration", "RefNextIteration"):
            return len(self.consumers((name, 0))) + len(self.control_consumers(name))
        return len(self.edges()[1][node.index])

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
                for index in self._needed_by(root):
                    self._serves[index] |= 1 << bit
        return self._serves[self.nodes[name].index]

    def _needed_by(self, names: Iterable[str]) -> set[int]:
        """What these need, by index; fed nodes and what is before them do not run."""
        nodes, (before, _) = self.nodes, self.edges()
        fed = {nodes[name].index for name in self.feeds if name in nodes}
        needed = {nodes[name].index for name in names if name in nodes} - fed
        pending = list(needed)
        while pending:
            index = pending.pop()
            sources = before[index]
            if self._list[index].op in ("Merge", "RefMerge"):
                sources = [nodes[n].index for n in sources_of(self._list[index])]
            for source in sources:
                if source not in needed and source not in fed:
                    needed.add(source)
                    pending.append(source)
        return needed

    def order(self) -> list[Node]:
        """All nodes in an order in which inputs come first.

        Edges from NextIteration to Merge close loops and are left out; those into
        fed nodes count, as TensorFlow's optimizers count them. Among
        nodes that are ready, graph order decides, so the order is repeatable.
        """
        if self._order is None:
            self._order = self.order_with({})
        return self._order

    def order_with(self, waits: Waits) -> list[Node]:
        """As `order`, with additional edges: per node, names that come before it.

        Raises:
          ValueError: there is no such order.
        """
        order, _, stuck = self._sorted(waits)
        if stuck:
            raise ValueError(
                "The graph has a cycle that no loop explains, through "
                f"{sorted(stuck)[:5]}."
            )
        return order

    def stuck(self, waits: Waits) -> set[str]:
        """Names of the nodes that would never run with additional edges: those on
        cycles, and what comes behind them."""
        return self._sorted(waits)[2] if waits else set()

    def edges(self) -> tuple[list[list[int]], list[list[int]]]:
        """By a node's index, the indices of the nodes that it needs, and of those
        that need it, with repetitions; without the edges that close loops."""
        if self._before is None:
            nodes, before = self.nodes, []
            behind: list[list[int]] = [[] for _ in self._list]
            for index, node in enumerate(self._list):
                sources = [
                    nodes[name].index for name, _ in node.inputs if name in nodes
                ]
                if node.op in ("Merge", "RefMerge"):
                    closing = ("NextIteration", "RefNextIteration")
                    sources = [i for i in sources if self._list[i].op not in closing]
                sources += [
                    nodes[name].index for name in node.controls if name in nodes
                ]
                before.append(sources)
                for source in sources:
                    behind[source].append(index)
            self._before, self._behind = before, behind
        return self._before, self._behind

    def _sorted(
        self, waits: Waits, anchors: frozenset[str] = frozenset()
    ) -> tuple[list[Node], list[int], set[str]]:
        """Nodes in order, by index the most anchors on a path that ends with each,
        and the names of those on or behind a cycle."""
        before, behind = self.edges()
        waiting = [len(sources) for sources in before]
        more: dict[int, list[int]] = {}
        for name, sources in waits.items():
            index = self.nodes[name].index
            for source in sources:
                more.setdefault(self.nodes[source].index, []).append(index)
                waiting[index] += 1
        counts = [0] * len(waiting)
        ready = [index for index, edges in enumerate(waiting) if not edges]
        for index in ready:  # grows on the way
            count = counts[index]
            if anchors and self._list[index].name in anchors:
                count += 1
                counts[index] = count
            followers = behind[index]
            if index in more:
                followers = followers + more[index]
            for follower in followers:
                if counts[follower] < count:
                    counts[follower] = count
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        stuck = set()
        if len(ready) < len(waiting):
            stuck = {self._list[i].name for i, edges in enumerate(waiting) if edges > 0}
        return [self._list[index] for index in ready], counts, stuck

    def comes_before(self, names: Iterable[str], last: str, waits: Waits) -> bool:
        """Whether node `last` depends on one of the nodes, itself included."""
        wanted = frozenset(names)
        seen: set[str] = set()
        pending = [last]
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            if name in wanted:
                return True
            seen.add(name)
            pending.extend(self.sources(self.nodes[name]))
            pending.extend(waits.get(name, ()))
        return False

    def behind(self, nodes: Iterable[Node]) -> Iterable[Node]:
        """The nodes, and all that depend on them."""
        pending = [node.index for node in nodes]
        seen = set(pending)
        while pending:
            index = pending.pop()
            yield self._list[index]
            for follower in self.edges()[1][index]:
                if follower not in seen:
                    seen.add(follower)
                    pending.append(follower)

    def sources(self, node: Node) -> Iterable[str]:
        """Names of nodes that must run before `node`, with repetitions."""
        return [self._list[index].name for index in self.edges()[0][node.index]]

    def levels(self, anchors: Iterable[str], waits: Waits | None = None):
        """Per node, the most anchors on a path that ends with it.

        `waits` are edges that the rewrite will add: they must close no cycle.

        Two anchors of one level cannot depend on each other, and any number of
        groups of anchors, each of one level, can be contracted at once without
        a cycle: every edge into a group rises by a level, and none falls.
        """
        _, counts, stuck = self._sorted(waits or {}, frozenset(anchors))
        if stuck:
            raise ValueError(f"No level has {sorted(stuck)[:5]}: there is a cycle.")
        return {
            node.name: count for node, count in zip(self._list, counts, strict=True)
        }

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
        stuck: set[Hashable] = set()
        while True:
            wanted = {n: g for n, g in groups.items() if g not in stuck}
            levels, cyclic = self._contract(wanted)
            if not cyclic:
                return levels, stuck
            stuck |= cyclic

    def _contract(self, groups: Mapping[str, Hashable]):
        """(levels, groups on cycles), with levels only if there are no such."""
        # Units are numbered: nodes by their index, groups behind them.
        before, _ = self.edges()
        numbers: dict[Hashable, int] = {}
        unit_of = list(range(len(self._list)))
        for name, group in groups.items():
            number = numbers.setdefault(group, len(unit_of) + len(numbers))
            unit_of[self.nodes[name].index] = number
        size = len(unit_of) + len(numbers)
        waiting = [0] * size
        followers: list[list[int]] = [[] for _ in range(size)]
        for index, sources in enumerate(before):
            unit = unit_of[index]
            for source in sources:
                from_unit = unit_of[source]
                if from_unit != unit:
                    followers[from_unit].append(unit)
                    waiting[unit] += 1
        depth = [0] * size
        ready = [unit for unit, edges in enumerate(waiting) if not edges]
        for unit in ready:  # grows on the way
            if unit >= len(unit_of):
                depth[unit] += 1
            level = depth[unit]
            for follower in followers[unit]:
                if depth[follower] < level:
                    depth[follower] = level
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        if len(ready) == size:
            return {group: depth[number] for group, number in numbers.items()}, set()
        left = {unit for unit, edges in enumerate(waiting) if edges > 0}
        cyclic = _on_cycles(left, followers)
        return {}, {group for group, number in numbers.items() if number in cyclic}

    def effects_before(self, name: str, known: str) -> frozenset[str] | None:
        """The nodes with effects that node `name` waits for, other than through
        node `known`: whoever reads `known` and waits for these may stop waiting
        for `name`, if it has no effect itself. None: too many to tell.

        tf.gradients holds back the gradients of an op until all of them are
        computed, by a NoOp in front of an Identity each. Inherited as it is,
        such an edge would keep alive what a pack replaces.
        """
        key = (name, known)
        if key not in self._effects:
            self._effects[key] = self._find_effects(name, known)
        return self._effects[key]

    def _find_effects(self, name: str, known: str) -> frozenset[str] | None:
        effects = set()
        seen = {known}
        pending = [name]
        while pending:
            node = self.nodes.get(pending.pop())
            if node is None or node.name in seen:
                continue
            seen.add(node.name)
            if len(seen) > _EFFECTS_LIMIT:
                return None
            if node.op in _SOURCES:
                continue
            # Behind these there are branches and other frames, whose nodes may not
            # be waited for from here: wait for these themselves.
            if has_effect(node.op) or node.op in _JOINS_CONTROL_FLOW:
                effects.add(node.name)
                continue
            pending.extend(tensor[0] for tensor in node.inputs)
            pending.extend(node.controls)
        return frozenset(effects)

    # -- control flow ------------------------------------------------------

    def guard(self, name: str) -> frozenset:
        """Switch outputs under which the node is dead if they are not taken.

        Ops in one pack need equal guards: a pack with one dead input is dead as
        a whole, and consumers of its other outputs would silently get empty
        tensors. Elements are (predicate tensor, output port).
        """
        self._find_guards()
        return self._guards.get(name, frozenset())

    def frame(self, name: str) -> tuple[str, ...]:
        """Names of the while frames around the node, outermost first."""
        self._find_guards()
        return self._frames.get(name, ())

    def _find_guards(self) -> None:
        if self._guards is not None:
            return
        self._guards = {}
        starts = self.of_types(("Switch", "RefSwitch", "_SwitchN", "Enter", "RefEnter"))
        if not starts:
            return
        # What is not behind one of these has no guard and no frame.
        behind = {node.index for node in self.behind(starts)}
        # What an edge carries on: of Switch it depends on the port, Exit leaves
        # a frame and with it the guards that were set inside.
        outgoing: dict[str, tuple[frozenset, tuple[str, ...]]] = {}
        frame_guards: dict[tuple[str, ...], frozenset] = {(): frozenset()}
        nothing: tuple[frozenset, tuple[str, ...]] = (frozenset(), ())
        for node in self.order():
            if node.index not in behind:
                continue
            guards = []
            frame: tuple[str, ...] = ()
            for tensor in node.inputs:
                source = self.nodes.get(tensor[0])
                if source is None or (
                    source.index in behind and source.name not in outgoing
                ):
                    continue  # this edge closes a loop
                guard, source_frame = outgoing.get(source.name, nothing)
                guards.append(guard | self._switch_guard(source, tensor[1]))
                if len(source_frame) > len(frame):
                    frame = source_frame
            for name in node.controls:
                guard, source_frame = outgoing.get(name, nothing)
                if node.op not in ("Merge", "RefMerge"):
                    guards.append(guard)
                if len(source_frame) > len(frame):
                    frame = source_frame
            if node.op in ("Merge", "RefMerge"):
                guard = frozenset.intersection(*guards) if guards else frozenset()
            else:
                guard = frozenset().union(*guards)
            self._guards[node.name] = guard
            self._frames[node.name] = frame
            if node.op in ("Enter", "RefEnter"):
                inner = (*frame, node.attr("frame_name", ""))
                known = frame_guards.get(inner)
                frame_guards[inner] = guard if known is None else known & guard
                outgoing[node.name] = (guard, inner)
            elif node.op in ("Exit", "RefExit"):
                outgoing[node.name] = (frame_guards.get(frame, frozenset()), frame[:-1])
            else:
                outgoing[node.name] = (guard, frame)

    def edge_guard(self, tensor: Tensor) -> frozenset:
        """The guard that a reader of the tensor inherits."""
        node = self.producer(tensor)
        if node is None:
            return frozenset()
        return self.guard(node.name) | self._switch_guard(node, tensor[1])

    def _switch_guard(self, node: Node, port: int) -> frozenset:
        if node.op not in ("Switch", "RefSwitch", "_SwitchN"):
            return frozenset()
        return frozenset({(self.skip(node.inputs[1], FORWARDING), port)})

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
        node = self.nodes.get(root[0])
        shape = dtype = None
        name = root[0]
        if node is not None:
            if node.op == "VarHandleOp":
                shape = node.attr("shape")
                dtype = node.attr("dtype")
                name = node.attr("shared_name", "") or node.name
            elif "_handle_shapes" in node._def.attr:
                shapes = node.attr("_handle_shapes")
                types = node.attr("_handle_dtypes", [])
                shape = shapes[0] if shapes else None
                dtype = types[0] if types else None
            elif root[0] in self._arg_tables:
                shape, dtype = self._arg_tables[root[0]]
        return Table(root, name, shape, dtype)

    def dtype(self, tensor: Tensor) -> dtypes.DType | None:
        """The type of a tensor, as its op declares it; None: not known."""
        node = self.nodes.get(tensor[0])
        op_def = node and op_def_registry.get(node.op)
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
                one = node.attr(output.type_attr, _attr_value(default.default_value))
            count = node.attr(output.number_attr, 0) if output.number_attr else 1
            types.extend([one] * count)
        return types[tensor[1]] if tensor[1] < len(types) else None

    def constant(self, tensor: Tensor):
        """The value of a constant as a NumPy array, not to be changed; else None."""
        node = self.producer(self.skip(tensor, FORWARDING))
        if node is None or node.op != "Const":
            return None
        if node.name not in self._constants:
            value = tensor_util.MakeNdarray(node._def.attr["value"].tensor)
            self._constants[node.name] = value
        return self._constants[node.name]

    def constant_int(self, tensor: Tensor) -> int | None:
        """The value of a constant with one element, as an int."""
        value = self.constant(tensor)
        return None if value is None or value.size != 1 else int(value.reshape(-1)[0])

    def constant_ints(self, tensor: Tensor) -> list[int] | None:
        value = self.constant(tensor)
        return None if value is None else [int(item) for item in value.reshape(-1)]

    def shape(self, tensor: Tensor) -> Shape | None:
        """What is known of a tensor's shape without running anything."""
        if tensor in self._shapes:
            return self._shapes[tensor]
        self._shapes[tensor] = None  # a loop finds this
        shape = self._infer_shape(tensor)
        self._shapes[tensor] = shape
        return shape

    def _infer_shape(self, tensor: Tensor) -> Shape | None:
        node = self.nodes.get(tensor[0])
        if node is None:
            return None
        port = tensor[1]
        for key in ("_output_shapes", "output_shapes"):
            shapes = node.attr(key)
            if shapes is not None:
                return shapes[port] if port < len(shapes) else None
        op = node.op
        if op in ("Placeholder", "PlaceholderWithDefault"):
            return node.attr("shape")
        if node.name in self.feeds or not node.inputs:
            if op == "Const":
                dims = node._def.attr["value"].tensor.tensor_shape.dim
                return tuple(dim.size for dim in dims)
            return None
        first = node.inputs[0]
        if op in _SAME_SHAPE:
            return self.shape(first)
        if op == "ReadVariableOp":
            return self.table(first).shape
        if op == "ResourceGather":
            ids, table = self.shape(node.inputs[1]), self.table(first).shape
            if ids is None or table is None or node.attr("batch_dims", 0) != 0:
                return None
            return ids + table[1:]
        if op in (
            "SparseSegmentSum",
            "SparseSegmentMean",
            "SparseSegmentSqrtN",
            "SegmentSum",
        ):
            rows = self.shape(first)
            return None if rows is None else (None, *rows[1:])
        if op == "UnsortedSegmentSum":
            rows, ids = self.shape(first), self.shape(node.inputs[1])
            if rows is None or ids is None:
                return None
            return (self.constant_int(node.inputs[2]), *rows[len(ids) :])
        if op in _POOLED_GRADIENTS:
            rows = self.shape(first)
            if port == 1:
                return (None,)
            return None if rows is None else (None, *rows[1:])
        if op in ("Size", "Rank"):
            return ()
        if op == "Unique":
            return (None,)
        if op == "Select":  # both have its shape
            known = map(self.shape, node.inputs[:0:-1])
            return next((shape for shape in known if shape is not None), None)
        if op in _REDUCTIONS:
            return self._reduced(node)
        if op == "Merge" and tensor[1] == 0:
            return _common([self.shape(each) for each in node.inputs])
        if op == "Where":
            of = self.shape(first)
            return None if of is None else (None, len(of))
        if op in ("Fill", "ScatterNd"):
            return self._shape_value(first if op == "Fill" else node.inputs[2])
        if op in ("Pack", "ConcatV2"):
            return self._joined(node)
        if op in ("Shape", "VariableShape"):
            of = self.shape(first) if op == "Shape" else self.table(first).shape
            return None if of is None else (len(of),)
        if op == "GatherV2":
            ids, table = self.shape(node.inputs[1]), self.shape(first)
            if ids is None or table is None or node.attr("batch_dims", 0) != 0:
                return None
            return ids + table[1:] if self.constant_int(node.inputs[2]) == 0 else None
        if op == "PicassoPackedLookup":
            return self._of_packed_lookup(node, port)
        if op == "Reshape":
            return self._reshaped(first, node.inputs[1])
        if op in ("ExpandDims", "Squeeze", "Split", "Unpack", "StridedSlice"):
            shape = self.shape(first if op != "Split" else node.inputs[1])
            return None if shape is None else self._resized(node, shape)
        if op in _ELEMENTWISE:
            shape = _broadcast([self.shape(operand) for operand in node.inputs])
            return self._times_column(node) if shape is None else shape
        return None

    def _reduced(self, node: Node) -> Shape | None:
        """Of a sum and its like over axes that are known."""
        shape, axes = self.shape(node.inputs[0]), self.constant_ints(node.inputs[1])
        if not shape or axes is None:
            return shape if shape == () else None
        gone = {axis % len(shape) for axis in axes}
        if node.attr("keep_dims", False):
            return tuple(1 if i in gone else size for i, size in enumerate(shape))
        return tuple(size for i, size in enumerate(shape) if i not in gone)

    def _times_column(self, node: Node) -> Shape | None:
        """Of a matrix times or by a column, if all else is not known."""
        if node.op in ("Mul", "DivNoNan"):
            for rows, column in (node.inputs, node.inputs[::-1]):
                shape = self.shape(rows)
                if shape is not None and len(shape) == 2 and is_column(self, column):
                    return (None, shape[1])
        return None

    def _of_packed_lookup(self, node: Node, port: int) -> Shape | None:
        """Of an output that one lookup has for itself."""
        members = node.attr("output_members")
        if (
            port >= len(members)
            or members[port] != 1
            or node.attr("output_stack")[port]
        ):
            return None
        member = sum(members[:port])
        declared = node.attr("member_shape")[member]
        table = node.attr("member_table")[member]
        bags = node.attr("bag_rows", [])
        if declared is not None or table < 0 or (bags and bags[member] >= 0):
            return declared
        ids = self.shape(node.inputs[node.attr("N") + node.attr("ids_source")[member]])
        rows = self.table(node.inputs[table]).shape
        return None if ids is None or rows is None else ids + rows[1:]

    def _reshaped(self, data: Tensor, shape: Tensor) -> Shape | None:
        dims = self.constant_ints(shape)
        if dims is None:
            return self._shape_value(shape)
        if -1 in dims:
            known = self.shape(data)
            if known is not None and None not in known:
                elements = 1
                for size in known:
                    elements *= size
                for size in dims:
                    elements = elements // size if size > 0 else elements
                dims = [elements if size == -1 else size for size in dims]
        return tuple(size if size >= 0 else None for size in dims)

    def _shape_value(self, tensor: Tensor) -> Shape | None:
        """What is known of the shape that a vector holds, such as that of
        tf.stack([batch, 8]) or tf.concat([shape[:1], [8]], 0)."""
        node = self.producer(self.skip(tensor, FORWARDING | {"Cast"}))
        if node is None:
            return None
        if node.op == "Const":
            return _sizes(self.constant_ints((node.name, 0)))
        if node.op == "Shape":
            return self.shape(node.inputs[0])
        if node.op == "Pack":
            return _sizes([self.constant_int(item) for item in node.inputs])
        if node.op == "ConcatV2":
            parts = [self._shape_value(part) for part in node.inputs[:-1]]
            return None if None in parts else sum(parts, ())
        if node.op == "Slice":
            begin, size = (self.constant_ints(edge) for edge in node.inputs[1:])
            if begin is None or size is None or len(begin) != 1:
                return None
            known = self._shape_value(node.inputs[0])
            if known is None:
                return (None,) * size[0] if size[0] >= 0 else None
            return known[begin[0] :][: size[0] if size[0] >= 0 else None]
        rank = self.shape(tensor)
        known = rank is not None and len(rank) == 1 and rank[0] is not None
        return (None,) * rank[0] if known else None

    def _joined(self, node: Node) -> Shape | None:
        """Of scalars that are stacked, and of tensors that are concatenated."""
        if node.op == "Pack":
            scalars = all(self.shape(part) == () for part in node.inputs)
            return (len(node.inputs),) if scalars else None
        shapes = [self.shape(part) for part in node.inputs[:-1]]
        axis, common = self.constant_int(node.inputs[-1]), _common(shapes)
        if axis is None or common is None or not -len(common) <= axis < len(common):
            return None
        axis %= len(common)
        sizes = [shape[axis] for shape in shapes]
        joined = None if None in sizes else sum(sizes)
        return (*common[:axis], joined, *common[axis + 1 :])

    def _cut_vector(self, node: Node, size: int | None) -> Shape | None:
        """Of x[a:b:c] of a vector, or of x[a]."""
        if node.attr("shrink_axis_mask", 0) == 1:
            return ()
        edges = [self.constant_int(edge) for edge in node.inputs[1:]]
        if node.attr("new_axis_mask", 0) or node.attr("ellipsis_mask", 0):
            return None
        if None in (size, *edges) or edges[2] == 0:
            return (None,)
        begin = None if node.attr("begin_mask", 0) & 1 else edges[0]
        end = None if node.attr("end_mask", 0) & 1 else edges[1]
        return (len(range(size)[begin : end : edges[2]]),)

    def _resized(self, node: Node, shape: Shape) -> Shape | None:
        if node.op == "ExpandDims":
            axis = self.constant_int(node.inputs[1])
            if axis is None:
                return None
            axis = axis if axis >= 0 else axis + len(shape) + 1
            return (*shape[:axis], 1, *shape[axis:])
        if node.op == "Squeeze":
            axes = node.attr("squeeze_dims") or []
            if not axes:
                if None in shape:
                    return None
                return tuple(size for size in shape if size != 1)
            drop = {axis % len(shape) for axis in axes}
            return tuple(size for axis, size in enumerate(shape) if axis not in drop)
        if node.op == "Unpack":
            axis = node.attr("axis", 0) % len(shape)
            return shape[:axis] + shape[axis + 1 :]
        if node.op == "Split":
            axis = self.constant_int(node.inputs[0])
            if axis is None:
                return None
            axis %= len(shape)
            size = shape[axis]
            part = None if size is None else size // node.attr("num_split", 1)
            return (*shape[:axis], part, *shape[axis + 1 :])
        if len(shape) == 1:
            return self._cut_vector(node, shape[0])
        columns = column_slice(self, node)
        if columns is None:
            return None
        _, width, squeezed = columns
        return shape[:1] if squeezed else (shape[0], width)

    def is_scalar(self, tensor: Tensor) -> bool:
        return self.shape(tensor) == ()


def _sizes(values: Sequence[int | None]) -> Shape:
    return tuple(size if size is None or size >= 0 else None for size in values)


def _bookkeeping(node: Node) -> Sequence[Tensor]:
    """The inputs that say how a node moves its data: axes, shapes, sizes."""
    if node.op == "Pack":
        return ()
    return node.inputs[-1:] if node.op == "ConcatV2" else node.inputs[1:]


def _broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Of an elementwise op on operands of these shapes."""
    if None in shapes:
        return None
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        known = wide - {None}
        # A size that is not known is one, or that of the others.
        result.append(next(iter(known)) if known else None if wide else 1)
    return tuple(result)


def _common(shapes: Sequence[Shape | None]) -> Shape | None:
    """What is known of a tensor that has one of these shapes."""
    if None in shapes or len(set(map(len, shapes))) != 1:
        return None
    return tuple(
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*shapes, strict=True)
    )


def keeps_order(view: GraphView, node: Node) -> bool:
    """Whether a node renames dimensions and is sure to succeed in that."""
    if node.op != "Squeeze":
        return node.op in ("Reshape", "ExpandDims")
    shape = view.shape(node.inputs[0])
    axes = node.attr("squeeze_dims") or []
    return shape is not None and all(
        -len(shape) <= axis < len(shape) and shape[axis] == 1 for axis in axes
    )


def column_of(view: GraphView, reshape: Node) -> Tensor | None:
    """The vector of which a Reshape makes a column, [n, 1]."""
    if reshape.op != "Reshape":
        return None
    shape = view.constant_ints(reshape.inputs[1])
    if shape is not None:
        return reshape.inputs[0] if len(shape) == 2 and shape[1] == 1 else None
    concat = view.producer(reshape.inputs[1])
    if concat is None or concat.op != "ConcatV2" or len(concat.inputs) != 3:
        return None
    length = view.producer(concat.inputs[0])
    if length is None or length.op != "Shape":
        return None
    same_shape = FORWARDING | {"Cast"}
    vector = view.skip(reshape.inputs[0], same_shape)
    if view.skip(length.inputs[0], same_shape) != vector:
        return None
    return reshape.inputs[0] if _is_a_one(view, concat.inputs[1]) else None


def ones_of(view: GraphView, reshape: Node) -> Tensor | None:
    """What makes the result of such a Reshape a column, unless it is constant."""
    concat = view.producer(reshape.inputs[1])
    if concat is None or concat.op != "ConcatV2":
        return None
    return None if view.constant(concat.inputs[1]) is not None else concat.inputs[1]


def is_column(view: GraphView, tensor: Tensor) -> bool:
    """Whether a tensor is such a column, or sums or powers of its elements."""
    node = view.producer(view.skip(tensor, FORWARDING))
    steps = ("Sqrt", "SegmentSum", "Pow", "Square", "Cast")
    while node is not None and node.op in steps:
        node = view.producer(view.skip(node.inputs[0], FORWARDING))
    return node is not None and column_of(view, node) is not None


def _is_a_one(view: GraphView, tensor: Tensor) -> bool:
    """Whether a tensor is [1], be it by way of ones([rank of a matrix - 1])."""
    known = view.constant_ints(tensor)
    if known is not None:
        return known == [1]
    fill = view.producer(tensor)
    if fill is None or fill.op != "Fill" or view.constant_int(fill.inputs[1]) != 1:
        return False
    known = view.constant_ints(fill.inputs[0])
    if known is not None:
        return known == [1]
    length = view.producer(fill.inputs[0])
    if length is None or length.op != "ExpandDims":
        return False
    known = view.constant_int(length.inputs[0])
    if known is not None:
        return known == 1
    sub = view.producer(length.inputs[0])
    if sub is None or sub.op != "Sub":
        return False
    rank, one = (view.constant_int(edge) for edge in sub.inputs)
    return rank == 2 and one == 1


def column_slice(view: GraphView, node: Node) -> tuple[int, int, bool] | None:
    """(first column, columns, whether the axis is dropped) of x[:, a:b].

    For a StridedSlice of a tensor whose static rank is 2; None for all others.
    """
    shape = view.shape(node.inputs[0])
    if shape is None or len(shape) != 2:
        return None
    begin, end, strides = (view.constant_ints(edge) for edge in node.inputs[1:4])
    if begin is None or end is None or strides is None or len(begin) != 2:
        return None
    rows_whole = (
        node.attr("begin_mask", 0) & 1 and node.attr("end_mask", 0) & 1
    ) or node.attr("ellipsis_mask", 0) == 1
    if (
        not rows_whole
        or strides != [1, 1]
        or node.attr("new_axis_mask", 0)
        or node.attr("ellipsis_mask", 0) not in (0, 1)
        or node.attr("shrink_axis_mask", 0) not in (0, 2)
    ):
        return None
    squeezed = node.attr("shrink_axis_mask", 0) == 2
    columns = shape[1]
    first = 0 if node.attr("begin_mask", 0) & 2 else begin[1]
    if first < 0:
        if columns is None:
            return None
        first += columns
    if squeezed:
        return (first, 1, True) if first >= 0 else None
    last = columns if node.attr("end_mask", 0) & 2 else end[1]
    if last is None:
        return None
    if last < 0:
        if columns is None:
            return None
        last += columns
    if columns is None:
        return None  # fewer columns would not be an error, but a shorter slice
    last = min(last, columns)
    return (first, last - first, False) if 0 <= first < last else None


def sources_of(node: Node) -> list[str]:
    """Names of the nodes that a node reads or waits for, with repetitions."""
    return [*(name for name, _ in node.inputs), *node.controls]


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


def _on_cycles(units: set[int], followers: Sequence[list[int]]) -> set[int]:
    """Those of `units` that lie on a cycle within them (Tarjan)."""
    found: set[int] = set()
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for start in units:
        if start in number:
            continue
        calls = [(start, iter(followers[start]))]
        number[start] = low[start] = len(number)
        stack.append(start)
        on_stack.add(start)
        while calls:
            unit, edges = calls[-1]
            for follower in edges:
                if follower not in units:
                    continue
                if follower not in number:
                    number[follower] = low[follower] = len(number)
                    stack.append(follower)
                    on_stack.add(follower)
                    calls.append((follower, iter(followers[follower])))
                    break
                if follower in on_stack:
                    low[unit] = min(low[unit], number[follower])
            else:
                calls.pop()
                if calls:
                    caller = calls[-1][0]
                    low[caller] = min(low[caller], low[unit])
                if low[unit] == number[unit]:
                    component = []
                    while True:
                        top = stack.pop()
                        on_stack.discard(top)
                        component.append(top)
                        if top == unit:
                            break
                    if len(component) > 1:
                        found.update(component)
    return found


_effects: dict[str, bool] = dict.fromkeys(_SOURCES, True)


def has_effect(op: str) -> bool:
    """Whether a node may not vanish although nobody reads it."""
    known = _effects.get(op)
    if known is None:
        op_def = op_def_registry.get(op)
        if op_def is None:
            return True  # a call of a library function, or an op to be registered yet
        known = _effects[op] = op_def.is_stateful
    return known
