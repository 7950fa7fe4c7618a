"""A guest's power, which is this resource's alone: it starts last, and stops before anything else is taken away.

Attachment and host mounts leave it as they find it.
"""

from __future__ import annotations

from collections.abc import Iterable

from components.providers.base import PartProvider, Props, say
from proxmox.client import Proxmox
from proxmox.facts import read_guest
from proxmox.operations import ensure_power, preview_power
from proxmox.planning import PowerSpec


class PowerProvider(PartProvider[PowerSpec]):
    kind = PowerSpec
    id_format = "{vmid}/power"
    updates = ("running",)

    def plan(self, client: Proxmox, spec: PowerSpec) -> Iterable[str]:
        return (f"guest {spec.vmid}: {step.describe()}" for step in preview_power(client, spec))

    def ensure(self, client: Proxmox, spec: PowerSpec) -> Props:
        ensure_power(client, spec, report=say)
        return {"running": spec.running}

    def find(self, client: Proxmox, props: Props) -> Props | None:
        guest = read_guest(client, int(props["vmid"]))
        return None if guest is None else {"running": guest.running}

    def remove(self, client: Proxmox, props: Props) -> None:
        vmid = int(props["vmid"])
        if read_guest(client, vmid) is not None:
            ensure_power(client, PowerSpec(vmid, running=False), report=say)
