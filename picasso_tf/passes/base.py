"""What passes share: their form, grouping, and the description of ids."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

from tensorflow.python.framework import dtypes

from picasso_tf.edits import Edits
from picasso_tf.fragments.bag import BagIds
from picasso_tf.fragments.ids import Ids
from picasso_tf.fragments.partition import Partition
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Shape, Tensor
from picasso_tf.options import Options
from picasso_tf.report import Pack, Skipped

# Ids per step of one lookup where no static shape tells.
ASSUMED_IDS = 1024

Fragment = TypeVar("Fragment")


@dataclasses.dataclass
class PassResult:
    """What a pass did.

    Attributes:
      nodes: the new nodes; None: unchanged.
      moved: nodes that had to run, and what runs in their place.
      packs: the packed ops.
      skipped: what was left alone, and why.
      merged: number of nodes of which an equal one does the work.
      handles: number of VarHandleOps of which one op does the work.
    """

    nodes: list[Node] | None = None
    moved: dict[str, str] = dataclasses.field(default_factory=dict)
    packs: list[Pack] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    merged: int = 0
    handles: int = 0

    def apply(self, edits: Edits) -> None:
        if edits:
            self.nodes = edits.apply()
            self.moved = edits.moved

    def skip(self, node: Node, reason: str) -> None:
        self.skipped.append(Skipped(node.name, node.op, reason))


@dataclasses.dataclass(frozen=True)
class Pass:
    """One rewrite of a graph.

    Attributes:
      options: what the user chose.
      name: used in warnings and reports.
      triggers: op types without which the pass has nothing to do; none: it runs
        where another pass has something to do.
    """

    options: Options
    name: ClassVar[str]
    triggers: ClassVar[tuple[str, ...]]

    def run(self, view: GraphView) -> PassResult:
        raise NotImplementedError


def group(
    view: GraphView,
    levels: dict[str, int],
    fragments: Sequence[Fragment],
    node_of: Callable[[Fragment], Node],
    key_of: Callable[[Fragment], Hashable],
) -> list[tuple[int, list[Fragment]]]:
    """Fragments that one op may run, with their level.

    Besides what `key_of` says, members agree in level, device, frame, guard and
    the roots that they serve; what serves none is passed over.
    Groups and their members come in graph order.
    """
    groups: dict[Hashable, list[Fragment]] = {}
    for fragment in fragments:
        node = node_of(fragment)
        if not view.serves(node.name):
            continue
        level = levels[node.name]
        key = (
            level,
            node.device,
            view.frame(node.name),
            view.guard(node.name),
            view.serves(node.name),
            key_of(fragment),
        )
        groups.setdefault(key, []).append(fragment)
    return [(key[0], members) for key, members in groups.items()]


def keeps_guard(
    view: GraphView,
    node: Node,
    inputs: Iterable[Tensor],
    controls: Iterable[str] | None = None,
) -> bool:
    """Whether reading `inputs` and waiting for `controls` (None: for what the node
    waits for) instead leaves the node as dead as it was."""
    guard = frozenset().union(*(view.edge_guard(tensor) for tensor in inputs))
    for name in node.controls if controls is None else controls:
        guard |= view.guard(name)
    return guard == view.guard(node.name)


def cut(
    members: Sequence[Fragment], volume_of: Callable[[Fragment], int], limit: int
) -> list[list[Fragment]]:
    """Consecutive runs of members, each of at most `limit` bytes or one member."""
    runs: list[list[Fragment]] = []
    volume = 0
    for member in members:
        size = volume_of(member)
        if not runs or volume + size > limit:
            runs.append([])
            volume = 0
        runs[-1].append(member)
        volume += size
    return runs


def volume(ids: Shape | None, table: Shape | None, item_size: int) -> int:
    """Bytes of the rows looked up per step: rows x dim x item size."""
    rows = ASSUMED_IDS
    if ids is not None:
        # However many dimensions are unknown, together they are one batch.
        rows = math.prod(size for size in ids if size is not None)
        rows *= ASSUMED_IDS if None in ids else 1
    dim = math.prod(size for size in (table or ())[1:] if size is not None)
    return rows * dim * item_size


class InputList:
    """Distinct tensors of one input list, and where each came in."""

    def __init__(self):
        self._positions: dict[Tensor, int] = {}

    def position(self, tensor: Tensor) -> int:
        return self._positions.setdefault(tensor, len(self._positions))

    def __iter__(self):
        return iter(self._positions)

    def __len__(self):
        return len(self._positions)


class IdsAttrs:
    """The ids inputs of a packed op and the ids_* attributes that explain them."""

    def __init__(self):
        self._sources = InputList()
        self._types: list[Any] = []
        self._rows: list[tuple[int, int, int, bool]] = []
        self._modes: list[int] = []

    def append(self, ids: Ids) -> None:
        position = self._sources.position(ids.source)
        if position == len(self._types):
            self._types.append(ids.dtype)
        self._rows.append((position, ids.begin, ids.width, ids.narrow))
        self._modes.append(int(ids.mode))

    def append_none(self) -> None:
        """For a member without ids."""
        self._rows.append((-1, 0, -1, False))
        self._modes.append(0)

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._sources)

    def attrs(self) -> dict[str, Any]:
        columns = list(zip(*self._rows, strict=True))
        names = ("ids_source", "ids_begin", "ids_width", "ids_narrow")
        attrs = {"Tids": self._types} | dict(
            zip(names, map(list, columns), strict=True)
        )
        if any(self._modes):
            attrs["ids_mode"] = self._modes
        return attrs


class BagAttrs:
    """The "sparse" inputs of a packed op and the bag_* attributes that explain
    them; nothing at all if no member pools."""

    def __init__(self):
        self._sources = InputList()
        self._types: list[Any] = []
        self._rows: list[tuple] = []
        self._ones: Tensor | None = None

    def append(
        self,
        bags: BagIds,
        combiner: str,
        zero_filled: bool,
        full_shape: bool = False,
        ones: Tensor | None = None,
    ) -> None:
        """`ones`: what TensorFlow learns the bags' shape by, if it matters."""
        shape = weights = -1
        rows = self._position(bags.rows, bags.rows_dtype)
        if bags.shape is not None:
            shape = self._position(bags.shape, dtypes.int64)
        if bags.weights is not None:
            weights = self._position(bags.weights.tensor, bags.weights.dtype)
        flags = (bags.prune, bags.prune_weights, bags.default_id)
        # They are all alike: one for all.
        self._ones = self._ones or ones
        known_by = -1 if ones is None else self._position(self._ones, dtypes.int32)
        self._rows.append(
            (combiner, rows, shape, weights, *flags, zero_filled, full_shape, known_by)
        )

    def append_none(self) -> None:
        """For a member that does not pool."""
        self._rows.append(("", -1, -1, -1, False, False, 0, False, False, -1))

    def _position(self, tensor: Tensor, dtype) -> int:
        position = self._sources.position(tensor)
        if position == len(self._types):
            self._types.append(dtype)
        return position

    @property
    def tensors(self) -> list[Tensor]:
        return list(self._sources)

    def attrs(self) -> dict[str, Any]:
        if not self._types:
            return {}
        names = ("combiner", "rows", "shape", "weights", "prune", "prune_weights")
        names += ("default_id", "zero_filled", "full_shape", "ones")
        columns = list(map(list, zip(*self._rows, strict=True)))
        if self._ones is None:
            names, columns = names[:-1], columns[:-1]
        return {"Tsparse": self._types} | {
            f"bag_{name}": column for name, column in zip(names, columns, strict=True)
        }


class PartitionAttrs:
    """The partition_* attributes of a packed op; nothing at all if no member is
    of a variable in parts."""

    def __init__(self):
        self._rows: list[tuple[str, int, int]] = []

    def append(self, partition: Partition | None) -> None:
        none = ("", 0, 0)
        self._rows.append(dataclasses.astuple(partition) if partition else none)

    def attrs(self, **more: list[int]) -> dict[str, Any]:
        if not any(parts for _, parts, _ in self._rows):
            return {}
        names = ("strategy", "parts", "rows", *more)
        columns = (*map(list, zip(*self._rows, strict=True)), *more.values())
        return {
            f"partition_{name}": column
            for name, column in zip(names, columns, strict=True)
        }


def add_pack(edits: Edits, name: str, op: str, inputs, *, device, controls, **attrs):
    """Adds a packed op; returns its node's name, by which its counters go too.

    The name ends with a digest of all that the op does. Equal graphs so give equal
    bytes. And a session keeps the kernels of stateful ops by name: graphs that it
    rewrites for other fetches must not find a kernel of other attributes there.
    """
    described = repr((op, list(inputs), device, sorted(attrs.items())))
    digest = hashlib.sha1(described.encode()).hexdigest()[:12]
    unique = edits.unique(f"{name}_{digest}")
    return edits.add(
        unique, op, inputs, device=device, controls=controls, pack=unique, **attrs
    )
