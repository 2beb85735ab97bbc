"""Reads a variable once instead of many times, and computes alike things once."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Hashable
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Tensor, has_effect
from picasso_tf.passes.base import Pass, PassResult

_CONTROL_FLOW = frozenset(
    {"Switch", "RefSwitch", "_SwitchN", "Merge", "RefMerge", "Enter", "RefEnter"}
    | {"Exit", "RefExit", "NextIteration", "RefNextIteration", "LoopCond"}
)


@dataclasses.dataclass(frozen=True)
class MergeReads(Pass):
    """Merges equal reads of scalar variables, and what is computed from them alike.

    Optimizers read the step and the learning rate once per variable, or compute
    the same few scalars again and again from what they read once. Two reads of a
    variable that wait for the same nodes may run at the same time, so one may do for
    both: each schedule of the new graph is one of the old graph. Ops without effects
    that get the same inputs then give the same outputs.

    Larger variables are left alone: a tensor that lives on for other readers makes
    an update copy the variable. It runs behind TensorFlow's own optimizers, which
    regroup float arithmetic by who else reads a value: there, equal bits are sure.

    It has no triggers: it runs where another pass has something to do.
    """

    name: ClassVar[str] = "merge_reads"
    triggers: ClassVar[tuple[str, ...]] = ()

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        reads = self._reads(view)
        if not _any_repeated(view, reads):
            return result
        classes = _Classes(view).find(reads)
        if not classes:
            return result
        edits = Edits(view)
        survivor_of: dict[str, str] = {}
        for names in classes:
            # What has to run stays under its name, if any of them has to.
            survivor = min(
                names, key=lambda n: (n not in view.keep, view.nodes[n].index)
            )
            survivor_of.update((n, survivor) for n in names if n != survivor)
        for node in view.nodes.values():
            for name, port in node.inputs:
                if name in survivor_of:
                    edits.replace_tensor((name, port), (survivor_of[name], port))
            if node.name in survivor_of:
                edits.remove(node.name, waits_for=survivor_of[node.name])
        result.apply(edits)
        result.merged = len(survivor_of)
        return result

    def _reads(self, view: GraphView) -> list[Node]:
        """Reads of scalar variables, in graph order."""
        return [
            node
            for node in view.of_types(("ReadVariableOp",))
            if node.name not in view.feeds
            and node.name not in view.preserve
            and (table := view.table(node.inputs[0])).shape == ()
            and not self.options.excludes(table.name)
        ]


def _any_repeated(view: GraphView, reads: list[Node]) -> bool:
    """Whether a variable is read, or what was read is, more than once."""
    handles = {_handle(view, read) for read in reads}
    return len(handles) < len(reads) or any(
        len(view.consumers((read.name, 0))) > 1 for read in reads
    )


def _handle(view: GraphView, read: Node) -> Tensor:
    """The read's resource edge, before Identities that wait for nobody."""
    tensor = read.inputs[0]
    while True:
        node = view.producer(tensor)
        if node is None or node.op != "Identity" or node.controls:
            return tensor
        tensor = node.inputs[0]


class _Classes:
    """Classes of nodes that are sure to have the same outputs.

    Two nodes are in one class if they agree in op, device and attributes, and
    their inputs and control inputs come from the same classes. Frame, guard and
    what they wait for are then equal as well. Starts from some reads and looks
    only at what is computed from these.
    """

    def __init__(self, view: GraphView):
        self._view = view
        self._parent: dict[str, str] = {}
        self._members: dict[str, list[str]] = {}
        self._known: dict[Hashable, str] = {}
        self._constants: dict[str, str] = {}
        self._pending: collections.deque[Node] = collections.deque()

    def find(self, reads: list[Node]) -> list[list[str]]:
        """The classes of two or more nodes."""
        self._reads = frozenset(read.name for read in reads)
        self._pending.extend(reads)
        for read in reads:  # of one read, equal things may be computed again
            self._pending.extend(self._view.followers(read.name))
        while self._pending:
            node = self._pending.popleft()
            if not self._may_merge(node):
                continue
            root = self._root(node.name)
            other = self._root(self._known.setdefault(self._key(node), node.name))
            if other != root:
                self._join(root, other)
        return [names for names in self._members.values() if len(names) > 1]

    def _may_merge(self, node: Node) -> bool:
        view = self._view
        if node.name in view.feeds or node.name in view.preserve:
            return False
        if node.name in self._reads:
            return True
        return node.op not in _CONTROL_FLOW and not has_effect(node.op)

    def _root(self, name: str) -> str:
        while name in self._parent:
            name = self._parent[name]
        return name

    def _join(self, a: str, b: str) -> None:
        names = self._members.setdefault(b, [b])
        moving = self._members.pop(a, [a])
        for name in (*moving, *(names if len(names) == 1 else ())):
            self._pending.extend(self._view.followers(name))
        names.extend(moving)
        self._parent[a] = b

    def _key(self, node: Node) -> Hashable:
        if node.name in self._reads:
            inputs = (_handle(self._view, node),)
        else:
            inputs = node.inputs
        return (
            node.kind(),
            tuple((self._same(name), port) for name, port in inputs),
            frozenset(self._root(name) for name in node.controls),
        )

    def _same(self, name: str) -> str:
        """The class that a node is in, by one name; equal constants count as one."""
        node = self._view.producer((name, 0))
        if (
            node is None
            or node.op != "Const"
            or node.controls
            or name in self._view.preserve
        ):
            return self._root(name)
        if name not in self._constants:
            self._constants[name] = self._known.setdefault(node.kind(), name)
        return self._constants[name]
