"""Interactions of fields: each, and its gradient, becomes one op."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from picasso_tf.edits import Edits
from picasso_tf.fragments.dot_interaction import DotInteraction, match_dot_interaction
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import Pass, PassResult, add_pack, keeps_guard
from picasso_tf.report import Pack

_EXACT = "its sums would be rounded in another order; Options(exact=False) packs it"


@dataclasses.dataclass(frozen=True)
class PackInteractions(Pass):
    """Replaces dot interactions, with the mask or the index that keeps the lower
    triangle, by an op that computes nothing else; and their gradients.

    Results are not those of TensorFlow to the bit: see kernels/core/dot_interaction.h.
    The gradient is replaced only if the interaction is.
    """

    name: ClassVar[str] = "pack_interactions"
    triggers: ClassVar[tuple[str, ...]] = ("BatchMatMulV2", "BatchMatMul")

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        for node in view.of_types(self.triggers):
            if not view.serves(node.name):
                continue
            matched = match_dot_interaction(view, node)
            if matched is None:
                continue
            if isinstance(matched, DotInteraction) and self.options.exact:
                matched = _EXACT
            if isinstance(matched, DotInteraction):
                matched = _without_guards(view, matched)
            if isinstance(matched, DotInteraction) and _is_taken(edits, matched):
                matched = "another interaction has the same gradient"
            if isinstance(matched, str):
                result.skip(node, matched)
            else:
                result.packs.extend(_pack(edits, matched))
        result.apply(edits)
        return result


def _is_taken(edits: Edits, dot: DotInteraction) -> bool:
    return dot.grad is not None and edits.is_replaced((dot.grad.last.name, 0))


def _without_guards(view: GraphView, dot: DotInteraction) -> DotInteraction | str:
    """The interaction, or the reason why branches keep it from being one op."""
    grad = dot.grad
    if not keeps_guard(view, dot.last, [dot.source], dot.controls) or (
        grad
        and not keeps_guard(view, grad.last, (grad.grad, dot.source), grad.controls)
    ):
        return "its fields come from another branch"
    return dot


def _pack(edits: Edits, dot: DotInteraction) -> list[Pack]:
    attrs: dict[str, Any] = {
        "T": dot.dtype,
        "N": 1,
        "fields": dot.fields,
        "dim": dot.dim,
        "self_interaction": dot.self_interaction,
        "full": dot.full,
    }
    name = add_pack(
        edits,
        "picasso_dot_interaction",
        "PicassoDotInteraction",
        [dot.source],
        device=dot.node.device,
        controls=dot.controls,
        **attrs,
    )
    edits.replace_tensor((dot.last.name, 0), (name, 0))
    edits.remove(dot.last.name, waits_for=name)
    detail = f"{dot.fields} fields of {dot.dim}, not to the bit"
    packs = [Pack(name, "dot interaction", (dot.node.name,), 0, 0, detail)]
    if dot.grad is None:
        return packs
    name = add_pack(
        edits,
        "picasso_dot_interaction_grad",
        "PicassoDotInteractionGrad",
        [dot.grad.grad, dot.source],
        device=dot.grad.last.device,
        controls=dot.grad.controls,
        flat=dot.grad.flat,
        **attrs,
    )
    edits.replace_tensor((dot.grad.last.name, 0), (name, 0))
    edits.remove(dot.grad.last.name, waits_for=name)
    members = (dot.grad.last.name,)
    packs.append(Pack(name, "dot interaction gradient", members, 0, 0, detail))
    return packs
