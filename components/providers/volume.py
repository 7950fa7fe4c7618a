"""A volume that the pet owns, as a resource of its own.

Made by the pet's own mount point, so that Proxmox formats it; taken over when it is
there already; grown in place; never shrunk, never freed: removing the resource leaves
the volume where it is (facts proxmox 18, field reports A1, A6).
"""

from __future__ import annotations

from collections.abc import Iterable

from components.providers.base import PartProvider, Props, say
from proxmox.client import Proxmox
from proxmox.facts import read_guest, read_volume
from proxmox.operations import VolumeState, ensure_volume, preview_volume, read_volume_state
from proxmox.planning import VolumeSpec


class VolumeProvider(PartProvider[VolumeSpec]):
    kind = VolumeSpec
    id_format = "{ref}"
    updates = VolumeSpec.names()
    replaces = ()
    previews_creation = True

    def plan(self, client: Proxmox, spec: VolumeSpec) -> Iterable[str]:
        return (f"volume {spec.name}: {step.describe()}" for step in preview_volume(client, spec).steps)

    def ensure(self, client: Proxmox, spec: VolumeSpec) -> Props:
        return _outputs(ensure_volume(client, spec, report=say))

    def find(self, client: Proxmox, props: Props) -> Props | None:
        """One that the pet does not mount is not gone but has no path: mounted again, never made a second time."""
        vmid, volid = int(props["vmid"]), props["ref"]
        state = read_volume_state(client, vmid, volid)
        if state is not None:
            return _outputs(state)
        pet = read_guest(client, vmid)
        return {"path": None} if pet is not None and read_volume(client, pet.node, volid) is not None else None

    def delete(self, _id: str, props: Props) -> None:
        say(f"volume {props['name']}: {props['ref']} is kept on guest {int(props['vmid'])}; nothing was freed")


def _outputs(state: VolumeState) -> Props:
    return {"size": state.size_gb, "path": state.path, "ref": state.volid}
