"""Lets one op give the handles of all variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import ClassVar

from picasso_tf.edits import Edits, ShapeAttr
from picasso_tf.graph import GraphView
from picasso_tf.node import Node
from picasso_tf.passes.base import Pass, PassResult, add_pack


@dataclasses.dataclass(frozen=True)
class PackHandles(Pass):
    """Gives the variables of a graph with packs their handles by one op.

    A VarHandleOp does nothing but hand out what it knows since it was made, but
    TensorFlow schedules each of them in every step of a session: of a packed graph
    they are most of what is left. Behind all other passes, which find variables by
    these ops.
    """

    name: ClassVar[str] = "pack_handles"
    triggers: ClassVar[tuple[str, ...]] = (
        "PicassoPackedLookup",
        "PicassoPackedUpdate",
        "PicassoPackedApply",
    )

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        groups: dict[Hashable, list[Node]] = {}
        for node in view.of_types(("VarHandleOp",)):
            if self._may_go(view, node):
                key = (node.device, view.serves(node.name))
                groups.setdefault(key, []).append(node)
        edits = Edits(view)
        for (device, _), nodes in groups.items():
            if len(nodes) < 2:
                continue
            pack = add_pack(
                edits,
                "picasso_handles",
                "PicassoVarHandles",
                [],
                device=device,
                controls=(),
                N=len(nodes),
                containers=[node.attr("container", "") for node in nodes],
                shared_names=[node.attr("shared_name") for node in nodes],
                dtypes=[node.attr("dtype") for node in nodes],
                shapes=[ShapeAttr(node.attr("shape")) for node in nodes],
            )
            for port, node in enumerate(nodes):
                edits.replace_tensor((node.name, 0), (pack, port))
                edits.remove(node.name, waits_for=pack)
            result.handles += len(nodes)
        result.apply(edits)
        return result

    def _may_go(self, view: GraphView, node: Node) -> bool:
        if node.controls or "GPU" in node.device.upper():
            return False
        if any(node.name in names for names in (view.feeds, view.preserve, view.keep)):
            return False
        # Not what some device of a cluster may name, nor what is new at each run.
        name = node.attr("shared_name", "")
        if name in ("", _ANONYMOUS) or node.attr("allowed_devices", []):
            return False
        return bool(view.serves(node.name)) and not self.options.excludes(name)


# What TensorFlow calls variables without a name (ResourceHandle::ANONYMOUS_NAME).
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
