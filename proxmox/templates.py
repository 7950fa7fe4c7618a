"""Which container template to take, where none is named."""

from __future__ import annotations

import re
from collections.abc import Iterable

from proxmox.client import Proxmox
from proxmox.errors import Fault, Faults, Subject

_DEBIAN = re.compile(r"[^:]+:vztmpl/debian-(1[23])-standard_(\d+(?:\.\d+)*)-(\d+)_amd64\.tar\.(?:zst|gz|xz)")
"""A template of Proxmox's own list (`pveam available`): release, version of Debian, revision of the template."""


def newest_debian(volids: Iterable[str]) -> str | None:
    """The newest template of Debian 12 or 13; None where there is none. Of two that are the same, the first by name."""
    found = [
        ((int(match[1]), tuple(map(int, match[2].split("."))), int(match[3])), volid)
        for volid in sorted(volids)
        if (match := _DEBIAN.fullmatch(volid))
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def newest_on(client: Proxmox, node: str) -> str:
    """The newest template of Debian 12 or 13 on the storages of a node that the token sees. Raises Faults."""
    storages = [one.name for one in client.storages(node) if "vztmpl" in one.content and one.enabled and one.active]
    volids = [volume.volid for name in storages for volume in client.storage_content(node, name, content="vztmpl")]
    found = newest_debian(volids)
    if found is None:
        rule = f"is empty, and node {node} has no template of Debian 12 or 13 that the token sees"
        seen = f"; there: {', '.join(sorted(volids))}" if volids else ""
        remedy = "on the node: pveam update && pveam available --section system, then pveam download STORAGE TEMPLATE"
        raise Faults([Fault(Subject.TEMPLATE, "", f"{rule}{seen}", remedy)])
    return found
