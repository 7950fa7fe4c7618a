"""Whether the node that is declared can be worked on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from proxmox.errors import NodeUnusable

if TYPE_CHECKING:
    from proxmox.client import Node


def prove_node(name: str, nodes: Sequence[Node]) -> None:
    """Return where the node is one of the cluster's, and not offline. Raises NodeUnusable."""
    known = {node.name: node for node in nodes}
    what = f"Node {name} can't be used"
    if name not in known:
        names = ", ".join(sorted(known)) or "none that the token may see"
        remedy = "correct it in the settings, or in PROXMOX_VE_NODE, which wins"
        raise NodeUnusable(what, f"must be a node of the cluster: {names}", remedy)
    if known[name].offline:
        raise NodeUnusable(what, "must be online", "start the node, or choose another")
