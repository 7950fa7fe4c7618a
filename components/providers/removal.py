"""Deleting a volume on purpose: the one way by which data is lost, so it has to be named twice.

Once by taking the volume out of ``petVolumes``, and once by its volid in ``petDeleteVolumes``.
Refused, in preview too, while any guest of the cluster refers to it, in its configuration, its
pending changes or a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable

from components.providers.base import Props, SpecProvider, say
from proxmox.client import Proxmox
from proxmox.operations import preview_removal, remove_volume
from proxmox.planning import RemovalSpec


class RemovalProvider(SpecProvider[RemovalSpec]):
    kind = RemovalSpec
    id_format = "removed {volid}"
    replaces = ("vmid", "volid")
    previews_creation = True

    def plan(self, client: Proxmox, spec: RemovalSpec) -> Iterable[str]:
        return (step.describe() for step in preview_removal(client, spec.vmid, spec.volid, spec.volid))

    def ensure(self, client: Proxmox, spec: RemovalSpec) -> Props:
        remove_volume(client, spec.vmid, spec.volid, spec.volid, report=say)
        return {}
