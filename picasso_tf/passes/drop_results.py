"""Takes the names away that packed outputs had while TensorFlow optimized."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from picasso_tf.edits import Edits
from picasso_tf.graph import GraphView
from picasso_tf.passes.base import Pass, PassResult


@dataclasses.dataclass(frozen=True)
class DropResults(Pass):
    """Removes PicassoResults, which held the names by which the inputs of AddN were
    sorted (kernels/ops/result_op.cc): their readers read the packed op."""

    name: ClassVar[str] = "drop_results"
    triggers: ClassVar[tuple[str, ...]] = ("PicassoResult",)

    def run(self, view: GraphView) -> PassResult:
        result = PassResult()
        edits = Edits(view)
        for node in view.of_types(self.triggers):
            if node.controls or node.name in view.preserve or node.name in view.feeds:
                continue
            source = view.skip(node.inputs[0], frozenset(self.triggers))
            edits.replace_tensor((node.name, 0), source)
            edits.remove(node.name, waits_for=source[0])
        result.apply(edits)
        return result
