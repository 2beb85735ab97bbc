"""K-Packing of L2 losses, which regularizers put on every table."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from tensorflow.python.framework import dtypes

from picasso_tf.edits import Edits
from picasso_tf.graph import GraphView
from picasso_tf.node import Node, Tensor
from picasso_tf.passes.base import InputList, Pass, PassResult, add_pack, cut, group
from picasso_tf.report import Pack

_TYPES = frozenset({dtypes.float32, dtypes.float64, dtypes.half})


@dataclasses.dataclass(frozen=True)
class _Loss:
    node: Node
    last: Node  # the node that gives the result: `node`, or a Mul with the scale
    scale: Tensor | None
    elements: int


@dataclasses.dataclass(frozen=True)
class PackL2Losses(Pass):
    """Replaces L2Losses, each with the multiplication by a constant behind it, and
    the AddNs of nothing but these.

    It runs behind TensorFlow's own optimizers, since it takes over products and
    sums, whose inputs these sort by name.
    """

    name: ClassVar[str] = "pack_l2_losses"
    triggers: ClassVar[tuple[str, ...]] = ("L2Loss",)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        losses = []
        for node in view.of_types(self.triggers):
            if node.name in view.feeds or node.attr("T") not in _TYPES:
                continue
            if "GPU" in node.device.upper():
                result.skip(node, "the loss is on a GPU, and packs have no GPU kernel")
                continue
            losses.append(_match(view, node))
        members = {n.name: loss.node.name for loss in losses for n in _nodes(loss)}
        levels, cyclic = view.group_levels(members)
        losses = [loss for loss in losses if loss.node.name not in cyclic]
        edits = Edits(view)
        groups = group(
            view, levels, losses, lambda loss: loss.node, lambda m: m.node.attr("T")
        )
        for _, members in groups:
            for run in cut(members, _volume, self.options.max_pack_volume):
                if len(run) > 1:
                    result.packs.append(_pack(view, edits, run))
                else:
                    result.skip(run[0].node, "no other L2 loss of its type and level")
        result.apply(edits)
        return result


def _match(view: GraphView, node: Node) -> _Loss:
    shape = view.shape(node.inputs[0])
    known = shape is not None and None not in shape
    elements = math.prod(shape) if known else 1024
    alone = _Loss(node, node, None, elements)
    readers = view.consumers((node.name, 0))
    if len(readers) != 1 or node.name in view.preserve:
        return alone
    reader, position = readers[0]
    if (
        reader.op != "Mul"
        or reader.controls
        or reader.device != node.device
        or reader.name in view.feeds
        or view.serves(reader.name) != view.serves(node.name)
        or view.guard(reader.name) != view.guard(node.name)
        or view.frame(reader.name) != view.frame(node.name)
    ):
        return alone
    scale = reader.inputs[1 - position]
    constant = view.producer(scale)
    if constant is None or constant.op != "Const" or view.shape(scale) != ():
        return alone
    return _Loss(node, reader, scale, elements)


def _nodes(loss: _Loss) -> list[Node]:
    return [loss.node] if loss.last is loss.node else [loss.node, loss.last]


def _volume(loss: _Loss) -> int:
    return loss.elements * loss.node.attr("T").size


def _totals(view: GraphView, losses: list[_Loss]) -> list[Node]:
    """The AddNs of nothing but these losses, each read by nobody else: AddN begins
    with an input whose buffer it may take over, which is the first one then. Else it
    is a matter of time, and its order of summation, too."""
    own = {
        (loss.last.name, 0)
        for loss in losses
        if loss.last.name not in view.preserve
        and len(view.consumers((loss.last.name, 0))) == 1
    }
    first = losses[0].node
    found: dict[str, Node] = {}
    for tensor in sorted(own):
        for reader, _ in view.consumers(tensor):
            if (
                reader.op == "AddN"
                and own.issuperset(reader.inputs)
                and not reader.controls
                and reader.device == first.device
                and reader.name not in view.feeds
                and view.guard(reader.name) == view.guard(first.name)
                and view.frame(reader.name) == view.frame(first.name)
            ):
                found[reader.name] = reader
    return sorted(found.values(), key=lambda node: node.index)


def _pack(view: GraphView, edits: Edits, losses: list[_Loss]) -> Pack:
    scales = InputList()
    index = [
        -1 if loss.scale is None else scales.position(loss.scale) for loss in losses
    ]
    first = losses[0].node
    port_of = {(loss.last.name, 0): port for port, loss in enumerate(losses)}
    totals = _totals(view, losses)
    name = add_pack(
        edits,
        "picasso_packed_l2_loss",
        "PicassoPackedL2Loss",
        [*(loss.node.inputs[0] for loss in losses), *scales],
        device=first.device,
        controls={name for loss in losses for name in loss.node.controls},
        T=first.attr("T"),
        M=len(losses),
        S=len(scales),
        K=len(totals),
        scale_index=index,
        total_lengths=[len(total.inputs) for total in totals],
        total_members=[port_of[x] for total in totals for x in total.inputs],
    )
    for position, total in enumerate(totals):
        edits.replace_tensor((total.name, 0), (name, len(losses) + position))
        edits.remove(total.name, waits_for=name)
    for port, loss in enumerate(losses):
        edits.replace_tensor((loss.last.name, 0), (name, port))
        for node in _nodes(loss):
            edits.remove(node.name, waits_for=name)
    return Pack(
        name,
        "L2 term",
        tuple(loss.node.name for loss in losses),
        len({loss.node.inputs[0] for loss in losses}),
        sum(_volume(loss) for loss in losses),
        f"{len(totals)} sums of them" if totals else "",
    )
