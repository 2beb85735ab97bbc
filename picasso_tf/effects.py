"""What a node waits for: nodes with effects, and what control edges hold back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from picasso_tf.edges import NEXT_ITERATIONS, Edges
from picasso_tf.node import SOURCES, Node, has_effect

# Effects in front of a node before a barrier is taken as it is.
_LIMIT = 4_096
_NONE: frozenset[int] = frozenset()
_JOINS_CONTROL_FLOW = frozenset(
    {"Merge", "RefMerge", "Exit", "RefExit", "Enter", "RefEnter"}
)
_ASKS_FOR_SHAPES = frozenset({"Shape", "ShapeN", "Size", "Rank"})


class Effects:
    """Searches effects in front of nodes, which are numbers as in Edges."""

    def __init__(self, nodes: Sequence[Node], edges: Edges):
        self._nodes = nodes
        self._before = edges.before
        self._found = bytearray(len(nodes))
        self._known: list[frozenset[int] | None] = [None] * len(nodes)

    def of(self, node: int) -> frozenset[int] | None:
        """The node, if it has an effect; else the nearest nodes with effects that it
        waits for. None: too many. Found once for each node, inputs first."""
        found, known, before = self._found, self._known, self._before
        opened: set[int] = set()
        pending = [node]
        while pending:
            current = pending[-1]
            if current in opened:
                sources = before[current]
                if len(sources) == 1:
                    known[current] = known[sources[0]]
                else:
                    known[current] = _union([known[n] for n in sources])
                opened.remove(current)
            elif not found[current]:
                found[current] = 1
                known[current] = own = self._own(current)
                if own is None:
                    # A cycle, which no graph should have, finds None.
                    opened.add(current)
                    pending += [n for n in before[current] if not found[n]]
                    continue
            pending.pop()
        return known[node]

    def _own(self, node: int) -> frozenset[int] | None:
        """What there is to wait for if it hangs on the node alone; else None."""
        op = self._nodes[node].op
        if op in SOURCES:
            return _NONE
        # Behind these there are branches and other frames, whose nodes may not be
        # waited for from here: wait for these themselves.
        if has_effect(op) or op in _JOINS_CONTROL_FLOW:
            return frozenset((node,))
        return None if self._before[node] else _NONE


def _union(sets: Sequence[frozenset[int] | None]) -> frozenset[int] | None:
    """Of sets that are mostly empty or one and the same; None: too large."""
    union = _NONE
    for members in sets:
        if members is None:
            return None
        if members and members is not union:
            union = members if members >= union else union | members
    return union if len(union) <= _LIMIT else None


def find_held(nodes: Sequence[Node], edges: Edges, fed: Iterable[int]) -> set[str]:
    """Names of the nodes that control edges hold back: those that wait for others, and
    what is computed from these. Ends at nodes with effects, and at shapes, which are
    known before what has them."""
    seen = bytearray(len(nodes))
    for number in fed:
        seen[number] = 1
    pending = [node.index for node in nodes if node.controls]
    held = set()
    while pending:
        number = pending.pop()
        node = nodes[number]
        if seen[number] or has_effect(node.op):
            continue
        seen[number] = 1
        held.add(node.name)
        readers = edges.behind[number]
        if node.op in NEXT_ITERATIONS:
            readers = readers + edges.loops.get(number, [])
        for reader in readers:
            if not seen[reader] and nodes[reader].op not in _ASKS_FOR_SHAPES:
                pending.append(reader)
    return held
