"""The edges of a graph, by the numbers of its nodes: orders, levels, reachability.

Names are looked up once, when the edges are found; all else is arithmetic on lists of
small integers, which a graph of 100,000 nodes needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from picasso_tf.node import Node, sources_of

MERGES = frozenset({"Merge", "RefMerge"})
NEXT_ITERATIONS = frozenset({"NextIteration", "RefNextIteration"})

# Edges that a rewrite will add: what a node is to wait for.
Waits = Mapping[int, Sequence[int]]


class Edges:
    """Who needs whom. A node is the number of its place in the graph.

    Edges from NextIteration to Merge close loops and are kept apart; those into fed
    nodes count, as TensorFlow's optimizers count them.

    Attributes:
      before: per node, those that it needs, with repetitions: what it reads, then
        what it waits for.
      behind: per node, those that need it, with repetitions, in ascending order.
      closing: per Merge that closes loops, the NextIterations that it reads.
      loops: per NextIteration, the Merges that read it.
    """

    def __init__(self, nodes: Sequence[Node]):
        number_of = {node.name: number for number, node in enumerate(nodes)}
        self.before: list[list[int]] = []
        self.behind: list[list[int]] = [[] for _ in nodes]
        self.closing: dict[int, list[int]] = {}
        self.loops: dict[int, list[int]] = {}
        before, behind = self.before, self.behind
        for number, node in enumerate(nodes):
            try:
                sources = [number_of[name] for name, _ in node.inputs]
                if node.controls:
                    sources += [number_of[name] for name in node.controls]
            except KeyError:  # some are not in the graph
                names = sources_of(node)
                sources = [number_of[name] for name in names if name in number_of]
            if node.op in MERGES:
                sources = self._without_loops(number, sources, nodes)
            before.append(sources)
            for source in sources:
                behind[source].append(number)

    def _without_loops(self, merge: int, sources: list[int], nodes: Sequence[Node]):
        kept = []
        for source in sources:
            if nodes[source].op in NEXT_ITERATIONS:
                self.closing.setdefault(merge, []).append(source)
                self.loops.setdefault(source, []).append(merge)
            else:
                kept.append(source)
        return kept

    def readers(self) -> list[int]:
        """Per node, how many edges come from it, those that close loops included."""
        counts = list(map(len, self.behind))
        for node, readers in self.loops.items():
            counts[node] += len(readers)
        return counts

    def all_before(self, node: int) -> list[int]:
        """What a node needs, also of the round before."""
        if node not in self.closing:
            return self.before[node]
        return self.before[node] + self.closing[node]

    # -- order -------------------------------------------------------------

    def sort(self, waits: Waits, marks: bytes | bytearray = b"") -> Sorted:
        """The nodes in an order in which those come first that others need: among
        nodes that are ready, graph order decides.

        `marks` has a 1 for each node that is to be counted, if any is.
        """
        before, behind = self.before, self.behind
        waiting = list(map(len, before))
        more: dict[int, list[int]] = {}
        for node, sources in waits.items():
            waiting[node] += len(sources)
            for source in sources:
                more.setdefault(source, []).append(node)
        counts = list(marks) if marks else [0] * len(waiting)
        ready = [node for node, edges in enumerate(waiting) if not edges]
        for node in ready:  # grows on the way
            count = counts[node]
            followers = behind[node]
            if node in more:
                followers = followers + more[node]
            for follower in followers:
                if count:
                    reached = count + marks[follower]
                    if counts[follower] < reached:
                        counts[follower] = reached
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.append(follower)
        stuck = []
        if len(ready) < len(waiting):
            stuck = [node for node, edges in enumerate(waiting) if edges > 0]
        return Sorted(ready, counts, stuck)

    def levels_around(self, anchored: Waits) -> list[int] | None:
        """Per node, the most anchors on a path that ends with it; None: a cycle.

        An anchor is put behind other nodes than those that it reads: `anchored` has
        these for each.
        """
        order, levels, stuck = self.sort(anchored)
        if stuck:
            return None
        for node in order:
            sources = anchored.get(node)
            anchor = sources is not None
            level = 0
            for source in sources if anchor else self.before[node]:
                if levels[source] > level:
                    level = levels[source]
            levels[node] = level + anchor
        return levels

    def group_levels(
        self, groups: Mapping[int, Hashable]
    ) -> tuple[dict[Hashable, int], set[Hashable]]:
        """See GraphView.group_levels."""
        stuck: set[Hashable] = set()
        while True:
            wanted = {n: g for n, g in groups.items() if g not in stuck}
            levels, cyclic = self._contract(wanted)
            if not cyclic:
                return levels, stuck
            stuck |= cyclic

    def _contract(self, groups: Mapping[int, Hashable]):
        """(levels, groups on cycles), with levels only if there are no such."""
        # Units are numbered: nodes by their number, groups behind them.
        nodes = len(self.before)
        numbers: dict[Hashable, int] = {}
        unit_of = list(range(nodes))
        for node, group in groups.items():
            unit_of[node] = numbers.setdefault(group, nodes + len(numbers))
        size = nodes + len(numbers)
        waiting = [0] * size
        followers: list[list[int]] = [[] for _ in range(size)]
        for node, sources in enumerate(self.before):
            unit = unit_of[node]
            for source in sources:
                from_unit = unit_of[source]
                if from_unit != unit:
                    followers[from_unit].append(unit)
                    waiting[unit] += 1
        depth = [0] * size
        ready = [unit for unit, edges in enumerate(waiting) if not edges]
        for unit in ready:  # grows on the way
            if unit >= nodes:
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

    # -- reachability ------------------------------------------------------

    def needed_by(self, nodes: Iterable[int], fed: Iterable[int]) -> list[int]:
        """These and what they need; fed nodes and what is before them do not run."""
        seen = bytearray(len(self.before))
        for node in fed:
            seen[node] = 1
        needed = []
        for node in nodes:
            if not seen[node]:
                seen[node] = 1
                needed.append(node)
        closing = self.closing
        for node in needed:  # grows on the way
            sources = self.all_before(node) if closing else self.before[node]
            for source in sources:
                if not seen[source]:
                    seen[source] = 1
                    needed.append(source)
        return needed

    def reachable(self, nodes: Iterable[int]) -> Iterable[int]:
        """The nodes, and all that depend on them."""
        pending = list(nodes)
        seen = set(pending)
        while pending:
            node = pending.pop()
            yield node
            for follower in self.behind[node]:
                if follower not in seen:
                    seen.add(follower)
                    pending.append(follower)

    def comes_before(self, nodes: Iterable[int], last: int, waits: Waits) -> bool:
        """Whether node `last` depends on one of the nodes, itself included."""
        wanted = frozenset(nodes)
        seen = {last}
        pending = [last]
        while pending:
            node = pending.pop()
            if node in wanted:
                return True
            for source in (*self.before[node], *waits.get(node, ())):
                if source not in seen:
                    seen.add(source)
                    pending.append(source)
        return False


class Levels:
    """Levels of nodes, for who knows them by name."""

    def __init__(self, nodes: Mapping[str, Node], levels: Sequence[int]):
        self._nodes = nodes
        self._levels = levels

    def __getitem__(self, name: str) -> int:
        return self._levels[self._nodes[name].index]

    def get(self, name: str, default: int) -> int:
        return self[name] if name in self._nodes else default


class Sorted(NamedTuple):
    """Of `Edges.sort`.

    Attributes:
      order: all nodes that are on or behind no cycle.
      counts: per node, the most marked nodes on a path that ends with it.
      stuck: the nodes on or behind a cycle.
    """

    order: list[int]
    counts: list[int]
    stuck: list[int]


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
