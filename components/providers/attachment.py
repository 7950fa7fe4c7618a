"""A volume of the pet's, mounted in a cattle.

Set on the stopped guest and read back; one that runs is stopped for it, and started again. On the way down its power
goes first (power.py): then detach, and remove the ``unused`` entry that Proxmox leaves; the volume stays
with its owner (facts proxmox 18).
"""

from __future__ import annotations

from collections.abc import Iterable

from components.providers.base import PartProvider, Props, say
from proxmox.client import Proxmox
from proxmox.facts import locate
from proxmox.mountpoint import MountPoint
from proxmox.operations import AttachmentState, attach, detach, preview_attach, read_attachment
from proxmox.planning import AttachSpec, DetachSpec


class AttachmentProvider(PartProvider[AttachSpec]):
    kind = AttachSpec
    id_format = "{vmid}/{slot}"
    updates = ("volid", "path", "options", "pending", "owner")
    replaces = ("vmid", "node", "slot", "guest")

    def plan(self, client: Proxmox, spec: AttachSpec) -> Iterable[str]:
        return (f"guest {spec.vmid}: {step.describe()}" for step in preview_attach(client, spec))

    def ensure(self, client: Proxmox, spec: AttachSpec) -> Props:
        return {**_outputs(attach(client, spec, report=say)), "attached": spec.volid}

    def find(self, client: Proxmox, props: Props) -> Props | None:
        """A guest without the mount is one to mount it in again: the attachment tells where its home is."""
        vmid = int(props["vmid"])
        state = read_attachment(client, vmid, props["slot"])
        ours = AttachSpec.recorded_in(props)
        if state is None:
            return {"path": None, "pending": False, "attached": ours} if locate(client, vmid) else None
        return {**_outputs(state), "attached": ours}

    def remove(self, client: Proxmox, props: Props) -> None:
        spec = DetachSpec(vmid=int(props["vmid"]), volid=AttachSpec.recorded_in(props), slot=props["slot"])
        detach(client, spec, report=say)


def _outputs(state: AttachmentState) -> Props:
    """What Proxmox adds to a mount point by itself counts as nothing."""
    _, _, options = MountPoint(state.volid, state.path, state.options).meaning()
    return {
        "volid": state.volid,
        "path": state.path,
        "options": ",".join(f"{key}={value}" for key, value in options),
        "pending": state.pending,
    }
