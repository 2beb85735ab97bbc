"""What nobody needs once some nodes are replaced."""

from __future__ import annotations

from collections.abc import Iterable

from picasso_tf.graph import GraphView
from picasso_tf.node import Node, has_effect, sources_of


def dead_with(view: GraphView, replaced: Iterable[Node]) -> set[str]:
    """Names of the nodes whose only readers, in the end, are the replaced ones
    (included), whatever they are read for."""
    dead = {node.name for node in replaced}
    pending = [source for name in dead for source in sources_of(view.nodes[name])]
    while pending:
        name = pending.pop()
        node = view.nodes.get(name)
        if node is None or name in dead or name in view.feeds or has_effect(node.op):
            continue
        if name in view.preserve or name in view.keep:
            continue
        readers = (reader.name for reader in view.followers(name))
        if all(reader in dead or not view.serves(reader) for reader in readers):
            dead.add(name)
            pending.extend(sources_of(node))
    return dead
