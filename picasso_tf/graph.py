"""A read view over the nodes of a graph.

Everything that touches protobuf lives here, in `node.py`, `shapes.py`, `edits.py` and
`functions.py`: passes and fragments see `Node`s, tensors as `(name, port)` pairs, and
plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from tensorflow.core.framework import node_def_pb2
from tensorflow.python.framework import dtypes, op_def_registry, tensor_util

from picasso_tf.node import (
    FORWARDING,
    SOURCES,
    Node,
    Shape,
    Table,
    Tensor,
    attr_value,
    has_effect,
    sources_of,
)
from picasso_tf.shapes import Shapes

# Edges that a rewrite will add: what a node is to wait for, by its name.
Waits = Mapping[str, Collection[str]]

_RESOURCE_PATH = FORWARDING | {"Enter", "Switch", "RefEnter"}
# Effects in front of a node before a barrier is taken as it is.
_EFFECTS_LIMIT = 4_096
_NONE: frozenset[str] = frozenset()
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
        self._shapes = Shapes(self)
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
        self._constant_ints: dict[str, list[int]] = {}
        self._effects: dict[str, frozenset[str] | None] = {}
        self._once: dict[tuple[Callable, str], Any] = {}
        self._guards: dict[str, frozenset] | None = None
        self._frames: dict[str, tuple[str, ...]] = {}

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
            readers = self.followers(node.name)
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

    def followers(self, name: str) -> list[Node]:
        """Who reads a node or waits for it, with repetitions; no edge closes a loop."""
        return [self._list[index] for index in self.edges()[1][self.nodes[name].index]]

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
        before, behind = self._effects_of(name), self._effects_of(known)
        if before is None or behind is None:
            return None
        # Whoever reads `known` waits for all that it waits for.
        return before - behind - {known}

    def _effects_of(self, name: str) -> frozenset[str] | None:
        """The node, if it has an effect; else the nearest nodes with effects that it
        waits for. None: too many. Found once for each node, inputs first."""
        known = self._effects
        pending, opened = [name], set()
        while pending:
            current = pending[-1]
            if current in known and current not in opened:
                pending.pop()
                continue
            node = self.nodes.get(current)
            if node is None or node.op in SOURCES:
                known[current] = _NONE
                continue
            # Behind these there are branches and other frames, whose nodes may not
            # be waited for from here: wait for these themselves.
            if has_effect(node.op) or node.op in _JOINS_CONTROL_FLOW:
                known[current] = frozenset((current,))
                continue
            sources = sources_of(node)
            if current in opened:
                known[current] = _union(known[source] for source in sources)
                opened.remove(current)
            else:
                opened.add(current)
                known[current] = None  # a cycle, which no graph should have, finds this
                pending.extend(source for source in sources if source not in known)
        return known[name]

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
                one = node.attr(output.type_attr, attr_value(default.default_value))
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
        values = self.constant_ints(tensor)
        return None if values is None or len(values) != 1 else values[0]

    def constant_ints(self, tensor: Tensor) -> list[int] | None:
        """The elements of a constant, as ints; not to be changed."""
        node = self.producer(self.skip(tensor, FORWARDING))
        if node is None or node.op != "Const":
            return None
        if node.name not in self._constant_ints:
            values = node.small_ints("value")
            if values is None:
                values = [int(v) for v in self.constant((node.name, 0)).reshape(-1)]
            self._constant_ints[node.name] = values
        return self._constant_ints[node.name]

    def shape(self, tensor: Tensor) -> Shape | None:
        """What is known of a tensor's shape without running anything."""
        return self._shapes.of(tensor)

    def is_scalar(self, tensor: Tensor) -> bool:
        return self.shape(tensor) == ()


def _bookkeeping(node: Node) -> Sequence[Tensor]:
    """The inputs that say how a node moves its data: axes, shapes, sizes."""
    if node.op == "Pack":
        return ()
    return node.inputs[-1:] if node.op == "ConcatV2" else node.inputs[1:]


def _union(sets: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    """Of sets that are mostly empty or one and the same; None: too large."""
    union = _NONE
    for members in sets:
        if members is None:
            return None
        if members and members is not union:
            union = members if members >= union else union | members
    return union if len(union) <= _EFFECTS_LIMIT else None


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
