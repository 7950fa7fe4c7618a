"""A cluster for tests: made of data, planned for, and changed as Proxmox would change it (facts proxmox 3, 5, 6, 9)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from proxmox.facts import ClusterFacts, GuestFacts, VolumeFacts
from proxmox.mountpoint import MountPoint, format_size, owner_of
from proxmox.planning import (
    GIB,
    Allocate,
    AttachSpec,
    DropUnused,
    FreeVolume,
    Grow,
    Protect,
    ProveSole,
    RemoveMount,
    SetMount,
    Shutdown,
    Start,
    Step,
    Unprotected,
    VolumePlan,
    VolumeSpec,
    mount_of,
    plan_attach,
    plan_volume,
    prove_sole,
)

EIGHT = 8 * GIB
PET = {"hostname": "pet-storage", "rootfs": "local-lvm:vm-999-disk-0,size=2G", "protection": "1"}
VOLUMES = ("local-lvm:vm-999-disk-1", "local-lvm:vm-999-disk-2", "local-lvm:vm-105-disk-1")


@dataclass
class Guest:
    """A container: configuration in effect, what is pending (None: to be deleted), power."""

    config: dict[str, str] = field(default_factory=dict)
    pending: dict[str, str | None] = field(default_factory=dict)
    running: bool | None = False
    snapshots: dict[str, dict[str, str]] = field(default_factory=dict)
    node: str = "pve"
    kind: str = "lxc"


@dataclass
class Model:
    """A cluster. `freed` and `formatted` keep what happened to volumes."""

    guests: dict[int, Guest] = field(default_factory=dict)
    volumes: dict[str, int] = field(default_factory=dict)
    freed: list[str] = field(default_factory=list)
    formatted: list[str] = field(default_factory=list)
    shared_storages: frozenset[str] = frozenset()

    def guest(self, vmid: int) -> GuestFacts | None:
        guest = self.guests.get(vmid)
        if guest is None:
            return None
        return GuestFacts(
            vmid,
            guest.node,
            guest.kind,
            guest.running,
            dict(guest.config),
            dict(guest.pending),
            snapshots={name: dict(config) for name, config in guest.snapshots.items()},
        )

    def cluster(self) -> ClusterFacts:
        found = (self.guest(vmid) for vmid in sorted(self.guests))
        return ClusterFacts(tuple(guest for guest in found if guest is not None), shared_storages=self.shared_storages)

    def volume(self, volid: str | None) -> VolumeFacts | None:
        if volid is None or volid not in self.volumes:
            return None
        return VolumeFacts(volid, self.volumes[volid], format_of(volid))

    def run_until_cut(self, steps: tuple[Step, ...], count: int) -> None:
        """Run the first `count` changes of a plan, protection off and on counted as changes, then stop dead."""
        changes: list[tuple[int, Step | str]] = []
        for step in steps:
            if isinstance(step, Unprotected):
                changes += [(step.vmid, "0"), *((inner.vmid, inner) for inner in step.steps), (step.vmid, "1")]
            else:
                changes.append((step.vmid, step))
        for vmid, change in changes[:count]:
            if isinstance(change, str):
                self.guests[vmid].config["protection"] = change
            else:
                self.apply(change)

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            self.apply(step)

    def apply(self, step: Step) -> None:  # noqa: PLR0912 - one case for each kind of step
        guest = self.guests[step.vmid]
        match step:
            case Shutdown():
                guest.running = False
                for key, value in guest.pending.items():
                    self._set(step.vmid, key, value)
                guest.pending.clear()
            case Start():
                assert not guest.running
                for volume in (MountPoint.parse(text).volume for key, text in guest.config.items() if key[:2] == "mp"):
                    assert volume in self.volumes, f"start fails: no such volume {volume}"
                guest.running = True
            case Unprotected(steps=steps):
                guest.config["protection"] = "0"
                self.run(steps)
                guest.config["protection"] = "1"
            case ProveSole(volid=volid, owner=owner):
                prove_sole(self.cluster(), volid, step.vmid, step.node, owner)
            case Protect():
                guest.config["protection"] = "1"
            case SetMount(slot=slot, mount=mount):
                self._drive(step.vmid, slot, mount.property_string())
            case RemoveMount(slot=slot, volid=volid):
                if volid in guest.config.get(slot, ""):
                    self._drive(step.vmid, slot, None)
            case DropUnused(volid=volid) | FreeVolume(volid=volid):
                for key in [key for key, value in guest.config.items() if key.startswith("unused") and value == volid]:
                    assert guest.config.get("protection", "0") == "0", "protected"
                    del guest.config[key]
                    if owner_of(volid) == step.vmid:
                        self.freed.append(volid)
                        del self.volumes[volid]
            case Allocate(slot=slot, storage=storage, size=size, path=path):
                names = (made_name(storage, step.vmid, number) for number in range(99))
                volid = next(name for name in names if name not in self.volumes)
                self.volumes[volid] = size
                self.formatted.append(volid)
                self._drive(step.vmid, slot, f"{volid},mp={path},backup=1")
            case Grow(slot=slot, volid=volid, new=new):
                assert owner_of(volid) == step.vmid
                assert new > self.volumes[volid]
                assert MountPoint.parse(guest.config[slot]).volume == volid
                self.volumes[volid] = new
            case _:
                raise AssertionError(step)

    def _drive(self, vmid: int, slot: str, value: str | None) -> None:
        guest = self.guests[vmid]
        assert guest.config.get("protection", "0") == "0", f"can't update CT {vmid} drive '{slot}' - protection mode"
        if guest.running and slot in guest.config:
            guest.pending[slot] = value  # stays until the next stop
            return
        guest.pending.pop(slot, None)
        self._set(vmid, slot, value)

    def _set(self, vmid: int, slot: str, value: str | None) -> None:
        config = self.guests[vmid].config
        old = config.pop(slot, None)
        if value is not None:
            mount = MountPoint.parse(value)
            size = f",size={format_size(self.volumes[mount.volume])}" if mount.volume in self.volumes else ""
            config[slot] = mount.property_string() + size
            for key in [key for key, name in config.items() if key.startswith("unused") and name == mount.volume]:
                del config[key]
        if old is not None:
            volume = MountPoint.parse(old).volume
            still = any(key[:2] == "mp" and MountPoint.parse(text).volume == volume for key, text in config.items())
            if not still and volume not in config.values():
                config[next(f"unused{n}" for n in range(99) if f"unused{n}" not in config)] = volume


def made_name(storage: str, vmid: int, number: int) -> str:
    """The volume that Proxmox makes for a container (alloc_disk of PVE::LXC), by the storages' usual names."""
    names = {
        "local-zfs": f"local-zfs:subvol-{vmid}-disk-{number}",
        "local": f"local:{vmid}/vm-{vmid}-disk-{number}.raw",
    }
    return names.get(storage, f"{storage}:vm-{vmid}-disk-{number}")


def format_of(volid: str) -> str:
    """As its storage lists it: by the extension in a folder, by the name's beginning on ZFS."""
    if "/" in volid:
        return volid.rpartition(".")[2]
    return "subvol" if ":subvol-" in volid or ":basevol-" in volid else "raw"


def volume_plan(state: Model, spec: VolumeSpec) -> VolumePlan:
    pet = state.guest(spec.vmid)
    found = mount_of(pet, spec) if pet else None
    return plan_volume(pet, state.volume(found[1].volume if found else spec.existing), state.cluster(), spec)


def attach_plan(state: Model, spec: AttachSpec) -> tuple[Step, ...]:
    return plan_attach(state.guest(spec.vmid), state.volume(spec.volid), state.cluster(), spec)


def guest_of(vmid: int, given: Mapping[str, Any]) -> Guest:
    """A guest by what differs: its configuration, and beside it running, pending, snapshots, node and kind.

    999 is a protected pet, each other number a container, and a virtual machine has nothing but what is given.
    """
    rest: Any = {key: given[key] for key in ("running", "pending", "snapshots", "node", "kind") if key in given}
    base = PET if vmid == 999 else {"hostname": "hermes", "rootfs": f"local-lvm:vm-{vmid}-disk-0,size=20G"}
    config = {key: str(value) for key, value in given.items() if key not in rest}
    return Guest({**({} if "kind" in given else base), **config}, **copy.deepcopy(rest))


def model_of(guests: Mapping[int, Mapping[str, Any] | None], volumes: Mapping[str, int] | None = None) -> Model:
    """A cluster of these guests, where a number without one has none; with three volumes of 8 GiB, or those given."""
    sizes = dict.fromkeys(VOLUMES, EIGHT) if volumes is None else dict(volumes)
    return Model({vmid: guest_of(vmid, given) for vmid, given in guests.items() if given is not None}, sizes)


def words(value: object) -> str:
    """A step in the words of the cases: its class and all its fields."""
    match value:
        case Step():
            return " ".join([type(value).__name__, *(words(getattr(value, each.name)) for each in fields(value))])
        case MountPoint():
            assert value.size is None, "what is sent has no size of a volume that exists"
            return ",".join([value.volume, f"mp={value.path}", *(f"{k}={v}" for k, v in sorted(value.options.items()))])
        case tuple():
            return f"[{'; '.join(map(words, value))}]"
    return "-" if value is None else str(value)
