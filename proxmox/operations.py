"""Read, plan, execute, read back: what a resource or a script calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from proxmox.client import Proxmox
from proxmox.errors import GuestLocked, NotAsPlanned
from proxmox.execution import Report, execute, silent
from proxmox.facts import ClusterFacts, GuestFacts, VolumeFacts, locate, read_cluster, read_guest, read_volume
from proxmox.mountpoint import MountPoint, is_allocation, owner_of, storage_of
from proxmox.planning import (
    GIB,
    AttachSpec,
    DetachSpec,
    PowerSpec,
    Step,
    VolumePlan,
    VolumeSpec,
    mount_of,
    plan_attach,
    plan_detach,
    plan_power,
    plan_volume,
    plan_volume_removal,
)

T = TypeVar("T")


@dataclass(frozen=True)
class VolumeState:
    """A volume as the pet has it. size_gb in GiB; protected: whether the pet's protection is on."""

    vmid: int
    node: str
    slot: str
    volid: str
    storage: str
    size_gb: float
    path: str
    protected: bool


@dataclass(frozen=True)
class AttachmentState:
    """A mount point of a container as it is. options: without volume, mp and size; pending: whether a change waits."""

    vmid: int
    node: str
    slot: str
    volid: str
    path: str
    options: Mapping[str, str]
    running: bool
    pending: bool


def patiently(client: Proxmox, vmid: int, plan: Callable[[], T], report: Report) -> T:
    """The plan; when the guest is locked, once more after the lock has gone: a backup ends by itself."""
    try:
        return plan()
    except GuestLocked as refusal:
        place = locate(client, vmid)
        if place is None:
            raise
        report(f"{refusal.what}: waiting")
        client.wait_unlocked(place.node, vmid)
    return plan()


# Volumes of the pet.


def preview_volume(client: Proxmox, spec: VolumeSpec) -> VolumePlan:
    """What `ensure_volume` would do. Reads only; raises the same Refusals."""
    pet = read_guest(client, spec.vmid)
    volume, cluster = None, ClusterFacts()
    if pet is not None:
        found = mount_of(pet, spec)
        volid = found[1].volume if found else spec.existing
        if volid is not None:
            volume = _stored(client, pet.node, volid)
            cluster = read_cluster(client, spec.vmid, power_of=[spec.vmid])
    return plan_volume(pet, volume, cluster, spec)


def ensure_volume(client: Proxmox, spec: VolumeSpec, report: Report = silent) -> VolumeState:
    """Have the volume as declared: adopted, allocated, mounted again or grown; protection on. Safe to repeat."""
    with client.guard(spec.vmid):
        plan = patiently(client, spec.vmid, lambda: preview_volume(client, spec), report)
        execute(client, plan.steps, report)
        pet = read_guest(client, spec.vmid)
        found = mount_of(pet, spec) if pet is not None else None
        state = _volume_state(client, pet, found[1].volume) if found is not None else None
        if state is None:
            raise NotAsPlanned(
                f"Volume '{spec.name}' is not on CT {spec.vmid} after the run",
                "it was there a moment ago: somebody else works on this guest",
                "run again",
            )
        return state


def read_volume_state(client: Proxmox, vmid: int, volid: str) -> VolumeState | None:
    """The volume as it is; None when the pet does not mount it, or either of them is gone."""
    return _volume_state(client, read_guest(client, vmid), volid)


def _volume_state(client: Proxmox, pet: GuestFacts | None, volid: str) -> VolumeState | None:
    if pet is None:
        return None
    mounts = {mount.volume: (slot, mount) for slot, mount in pet.mounts().items()}
    volume = _stored(client, pet.node, volid) if volid in mounts else None
    if volume is None:
        return None
    slot, mount = mounts[volid]
    size_gb = volume.size / GIB
    return VolumeState(pet.vmid, pet.node, slot, volid, storage_of(volid), size_gb, mount.path, pet.protected)


def _stored(client: Proxmox, node: str, volid: str) -> VolumeFacts | None:
    """The volume on its storage; nothing for what is no volume's name: the planner says that better."""
    if is_allocation(volid) or not storage_of(volid) or owner_of(volid) is None:
        return None
    return read_volume(client, node, volid)


def preview_removal(client: Proxmox, vmid: int, volid: str, confirmed_volid: str | None) -> tuple[Step, ...]:
    """What `remove_volume` would do. Reads only."""
    cluster = read_cluster(client, vmid, power_of=[vmid])
    return plan_volume_removal(cluster.guest(vmid), cluster, vmid, volid, confirmed_volid)


def remove_volume(client: Proxmox, vmid: int, volid: str, confirmed_volid: str | None, report: Report = silent) -> None:
    """Delete a volume with all its data. Refused unless it is named twice and nobody else names it."""
    with client.guard(vmid):
        plan = partial(preview_removal, client, vmid, volid, confirmed_volid)
        execute(client, patiently(client, vmid, plan, report), report)


# Attachments.


def preview_attach(client: Proxmox, spec: AttachSpec) -> tuple[Step, ...]:
    """What `attach` would do. Reads only; raises the same Refusals."""
    cluster = read_cluster(client, spec.owner, power_of=[spec.vmid, spec.owner])
    return plan_attach(cluster.guest(spec.vmid), _stored(client, spec.node, spec.volid), cluster, spec)


def attach(client: Proxmox, spec: AttachSpec, report: Report = silent) -> AttachmentState:
    """Have the volume attached; the power is left as it was. Safe to repeat."""
    with client.guard(spec.vmid):
        execute(client, patiently(client, spec.vmid, lambda: preview_attach(client, spec), report), report)
        state = read_attachment(client, spec.vmid, spec.slot)
        if (
            state is None
            or state.pending
            or not MountPoint(state.volid, state.path, state.options).same_mount(spec.mount)
        ):
            raise NotAsPlanned(
                f"CT {spec.vmid} does not have {spec.volid} as declared after the run",
                f"found: {state}",
                "somebody else works on this guest: see who, then run again",
            )
        return state


def read_attachment(client: Proxmox, vmid: int, slot: str) -> AttachmentState | None:
    """The mount point in a slot as it is; None when the guest is gone or the slot is empty."""
    guest = read_guest(client, vmid)
    mount = guest.mounts().get(slot) if guest is not None else None
    if guest is None or mount is None:
        return None
    waits = slot in guest.pending
    options = dict(mount.options)
    return AttachmentState(vmid, guest.node, slot, mount.volume, mount.path, options, guest.running is True, waits)


def preview_detach(client: Proxmox, spec: DetachSpec) -> tuple[Step, ...]:
    """What `detach` would do. Reads only."""
    return plan_detach(read_guest(client, spec.vmid), spec)


def detach(client: Proxmox, spec: DetachSpec, report: Report = silent) -> None:
    """Have the volume detached and forgotten by the container; the volume stays. Safe to repeat."""
    with client.guard(spec.vmid):
        execute(client, patiently(client, spec.vmid, lambda: preview_detach(client, spec), report), report)


def preview_power(client: Proxmox, spec: PowerSpec) -> tuple[Step, ...]:
    """What `ensure_power` would do. Reads only."""
    guest = read_guest(client, spec.vmid)
    owners: set[int | None] = set()
    if guest is not None and spec.running and guest.running is not True:
        # The volumes are the guest's own, or its pet's: the power of everybody who mounts one of those has to be known.
        owners = {owner_of(mount.volume) for mount in guest.mounts().values()}
    return plan_power(guest, spec, read_cluster(client, *owners) if owners else None)


def ensure_power(client: Proxmox, spec: PowerSpec, report: Report = silent) -> None:
    """Have the container started or stopped. Safe to repeat."""
    with client.guard(spec.vmid):
        execute(client, patiently(client, spec.vmid, lambda: preview_power(client, spec), report), report)
