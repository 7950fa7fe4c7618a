"""What has to be done: pure functions from facts and a spec to a list of steps, or to a refusal that names the reason.

Nothing here reads or writes. Preview prints the plan that update runs. A plan made on the state that another plan has
left is empty. No plan frees or formats a volume of another owner, and only `plan_volume_removal` frees one at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from proxmox.errors import (
    DeletionNotConfirmed,
    GuestElsewhere,
    GuestIsTemplate,
    GuestLocked,
    GuestMissing,
    HolderUnknown,
    NoFreeSlot,
    OwnerMismatch,
    PathTaken,
    PetRunning,
    ShrinkRefused,
    SlotTaken,
    VolumeBusy,
    VolumeElsewhere,
    VolumeHeld,
    VolumeMissing,
    VolumeUnusable,
)
from proxmox.facts import ClusterFacts, GuestFacts, Reference, VolumeFacts
from proxmox.mountpoint import (
    MAX_SLOTS,
    MountPoint,
    VolumeName,
    format_size,
    normal_path,
    owner_of,
    require_existing,
    slot_number,
    storage_of,
)
from proxmox.ownership import describe_guest, describe_holder, how_to_free
from proxmox.spec import Spec

GIB = 1 << 30
UNMOUNTABLE = frozenset({"qcow2", "vmdk", "invalid"})
"""Formats of volumes that no container mounts; "invalid": the file is not what its name says."""


# Steps.


@dataclass(frozen=True)
class Step:
    """One thing to do to one container."""

    vmid: int
    node: str

    def describe(self) -> str:
        """One line for preview and progress."""
        raise NotImplementedError


@dataclass(frozen=True)
class Shutdown(Step):
    """Shut down; killed after `timeout_s`."""

    timeout_s: int = 60

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: shut down (killed after {self.timeout_s} s)"


@dataclass(frozen=True)
class Start(Step):
    """Start and see it running."""

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: start"


@dataclass(frozen=True)
class SetMount(Step):
    """Mount an existing volume. `replaces`: the volume that may be in the slot now; None for an empty slot."""

    slot: str
    mount: MountPoint
    replaces: str | None = None

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: set {self.slot} to {self.mount.property_string()}"


@dataclass(frozen=True)
class ProveSole(Step):
    """See once more, now that the mount is written, that nobody else names the volume.

    Two stacks that attach one volume at the same moment both found it free. Each writes first and looks then, so at
    least one of them sees the other; it takes its own mount back.
    """

    slot: str
    volid: str
    owner: int

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: see that nobody else uses {self.volid}"


@dataclass(frozen=True)
class RemoveMount(Step):
    """Take a mount point away, if it still names `volid`. Proxmox keeps the volume's name as an unused entry."""

    slot: str
    volid: str

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: detach {self.volid} from {self.slot}"


@dataclass(frozen=True)
class DropUnused(Step):
    """Remove the unused entry of a foreign volume. The volume stays (facts proxmox 3.1)."""

    volid: str

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: forget {self.volid} (the volume stays with CT {owner_of(self.volid)})"


@dataclass(frozen=True)
class Allocate(Step):
    """Let Proxmox make and format a new volume. size in bytes."""

    slot: str
    storage: str
    size: int
    path: str

    @property
    def value(self) -> str:
        """What is sent: `STORE:GiB,mp=path,backup=1` (facts field-reports A15)."""
        gib = f"{self.size / GIB:.6f}".rstrip("0").rstrip(".")
        return f"{self.storage}:{gib},mp={self.path},backup=1"

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: allocate {format_size(self.size)} on {self.storage} as {self.slot} at {self.path}"


@dataclass(frozen=True)
class Grow(Step):
    """Grow a volume and its file system. Sizes in bytes."""

    slot: str
    volid: str
    old: int
    new: int

    def describe(self) -> str:
        """One line."""
        old = format_size(self.old) if self.old else "no limit"
        return f"CT {self.vmid}: grow {self.volid} from {old} to {format_size(self.new)}"


@dataclass(frozen=True)
class FreeVolume(Step):
    """Free a volume of the guest's own, which is detached already. All data on it is lost."""

    volid: str

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: DELETE {self.volid} with all data on it"


@dataclass(frozen=True)
class Protect(Step):
    """Switch protection on."""

    def describe(self) -> str:
        """One line."""
        return f"CT {self.vmid}: switch protection on"


@dataclass(frozen=True)
class Unprotected(Step):
    """Run `steps` with protection off; afterwards it is on, whatever happened."""

    steps: tuple[Step, ...]

    def describe(self) -> str:
        """One line."""
        return f"{'; '.join(step.describe() for step in self.steps)} (protection off for this only)"


# Specs: desired states.

VOLUME_SLOT = "mp0"
"""Where a cattle mounts the pet's volume."""
VOLUME_OPTIONS = "mountoptions=nodev;nosuid"
"""How. What the root of one container leaves on the volume with a set-user-ID bit means nothing in the next one.

Neither size= nor backup=, as for every volume that exists already (facts proxmox 3.1).
"""


@dataclass(frozen=True)
class VolumeSpec(Spec):
    """A volume that the pet shall own.

    size_gb in GiB; path: where the pet mounts it; volid: an existing volume to adopt; recorded: the one of an earlier
    run, which `volid` overrules.
    """

    RECORDED_AS: ClassVar = ("ref",)

    name: str
    vmid: int
    storage: str
    size_gb: Annotated[float, Field(alias="size")]
    path: str
    volid: str | None = None
    recorded: str | None = None

    @property
    def size(self) -> int:
        """The size in bytes."""
        return int(self.size_gb * GIB)

    @property
    def existing(self) -> str | None:
        """The volume that has to be there already; None: found by its path, or made."""
        return self.volid or self.recorded


@dataclass(frozen=True)
class AttachSpec(Spec):
    """A volume of another guest's that a container shall mount.

    owner: the number that owns the volume; options: as a mount point's property string; recorded: the volume that an
    earlier run put into the slot, which may be replaced; takeover: detach the volume from whoever holds it, stopping
    that guest.
    """

    # `volid` tells what is in the slot now, which a hand may have put there; a state of before knows nothing else.
    RECORDED_AS: ClassVar = ("attached", "volid")

    vmid: int
    node: str
    volid: str
    path: str
    owner: int
    slot: str = VOLUME_SLOT
    options: str = VOLUME_OPTIONS
    recorded: str | None = None
    takeover: bool = False

    @property
    def mount(self) -> MountPoint:
        """The mount point as it shall be."""
        options = dict(option.partition("=")[::2] for option in self.options.split(",") if option)
        return MountPoint(self.volid, self.path, options)


@dataclass(frozen=True)
class DetachSpec(Spec):
    """A volume that a container shall no longer mount."""

    vmid: int
    volid: str
    slot: str = VOLUME_SLOT


@dataclass(frozen=True)
class RemovalSpec(Spec):
    """A volume of the pet's that shall be deleted, with all data on it."""

    vmid: int
    volid: str


@dataclass(frozen=True)
class PowerSpec(Spec):
    """Whether a container shall run."""

    vmid: int
    running: bool = True


@dataclass(frozen=True)
class VolumePlan:
    """Steps, and where the volume is or will be. volid: None when it is yet to be made. size: in bytes, as it is."""

    steps: tuple[Step, ...]
    slot: str
    volid: str | None
    size: int | None

    @property
    def adopted(self) -> bool:
        """Whether the volume exists already."""
        return self.volid is not None


# Planners.


def usable(guest: GuestFacts | None, vmid: int, node: str | None = None) -> GuestFacts:
    """The guest, when it is a container that can be worked on."""
    if guest is None:
        raise GuestMissing(
            f"There is no guest {vmid}", "no node of the cluster has it", "deploy the stack that makes it first"
        )
    if guest.kind != "lxc":
        raise GuestMissing(
            f"Guest {vmid} is not a container",
            f"{describe_guest(guest)} has the number",
            "choose another number in the settings",
        )
    if node is not None and guest.node != node:
        raise GuestElsewhere(
            f"CT {vmid} is on node {guest.node}, not on {node}",
            "the settings name the other node, and a local volume can be used on one node only",
            f"set the node to {guest.node}, or migrate it: pct migrate {vmid} {node}",
        )
    if guest.template:
        raise GuestIsTemplate(
            f"CT {vmid} is a template",
            "a template cannot be started or changed",
            "choose another number in the settings",
        )
    if guest.lock:
        raise GuestLocked(
            f"CT {vmid} is locked ({guest.lock})",
            f"an operation ({guest.lock}) is at work on it, or was broken off and left its lock",
            f"wait for it to end; if nothing runs (pct status {vmid}): pct unlock {vmid}, on node {guest.node}",
        )
    return guest


def mount_of(pet: GuestFacts, spec: VolumeSpec) -> tuple[str, MountPoint] | None:
    """The pet's mount point that the spec means: by volume name when it has one, else by path."""
    for slot, mount in pet.mounts().items():
        if spec.existing is not None:
            if mount.volume == spec.existing:
                return slot, mount
        elif normal_path(mount.path) == normal_path(spec.path):
            return slot, mount
    return None


def plan_volume(
    pet: GuestFacts | None, volume: VolumeFacts | None, cluster: ClusterFacts, spec: VolumeSpec
) -> VolumePlan:
    """Adopt, allocate, re-mount or grow the volume of a spec.

    volume: the facts of the volume that the spec names or, by `mount_of`, of the one that the pet has at its path.
    Protection is on at the end of every plan. Raises a Refusal.
    """
    pet = usable(pet, spec.vmid)
    found = mount_of(pet, spec)
    if found is None and spec.existing is None:
        return _plan_allocation(pet, spec)
    volid = found[1].volume if found else str(spec.existing)
    known = _own_volume(volid, volume, spec)
    steps: list[Step] = []
    if found is None:
        _refuse_two(pet, spec, volid)
        slot = free_slot(pet)
        mount = MountPoint(volid, spec.path, {"backup": "1"})
        steps.append(_remount(pet, cluster, slot, mount, replaces=None))
    else:
        slot, mount = found
        if normal_path(mount.path) != normal_path(spec.path) or slot in pet.pending:
            wanted = MountPoint(volid, spec.path, mount.options)
            steps.append(_remount(pet, cluster, slot, wanted, replaces=volid))
    if spec.size < known.size:
        raise ShrinkRefused(
            f"Volume '{spec.name}' ({volid}) has {format_size(known.size)}, the settings say {format_size(spec.size)}",
            "a volume is never made smaller: the data at its end would be lost",
            f"set its size to {known.size / GIB:g} GB in the settings",
        )
    if spec.size > known.size:
        # A data set of ZFS grows by a property, in use or not (ZFSPoolPlugin.pm, volume_resize).
        if not known.is_folder:
            _refuse_running_users(cluster, spec, volid)
        steps.append(Grow(pet.vmid, pet.node, slot, volid, known.size, spec.size))
    return VolumePlan(_protected(pet, steps), slot, volid, known.size)


def _refuse_two(pet: GuestFacts, spec: VolumeSpec, volid: str) -> None:
    """Refuse to choose between a recorded volume and one that lies at its path since, as after a restored backup."""
    for slot, mount in pet.mounts().items():
        at_path = slot != "rootfs" and normal_path(mount.path) == normal_path(spec.path)
        if spec.volid is None and at_path and owner_of(mount.volume) == pet.vmid:
            raise PathTaken(
                f"CT {pet.vmid} has two volumes for '{spec.name}'",
                f"{slot} mounts {mount.volume} at {spec.path}, as after a backup was restored, and {volid}, which was "
                "there before, is there still",
                f"name the one that has the data in the settings, as the volume's volid: {mount.volume} or {volid}",
            )


def _protected(pet: GuestFacts, steps: Sequence[Step]) -> tuple[Step, ...]:
    """`steps`, and protection on at the end if none of them sees to it."""
    if pet.protected or any(isinstance(step, Unprotected) for step in steps):
        return tuple(steps)
    return (*steps, Protect(pet.vmid, pet.node))


def _plan_allocation(pet: GuestFacts, spec: VolumeSpec) -> VolumePlan:
    slot = free_slot(pet)
    _refuse_path(pet, slot, spec.path)
    step = Allocate(pet.vmid, pet.node, slot, spec.storage, spec.size, spec.path)
    return VolumePlan((Unprotected(pet.vmid, pet.node, (step,)),), slot, None, None)


def _own_volume(volid: str, volume: VolumeFacts | None, spec: VolumeSpec) -> VolumeFacts:
    require_existing(volid)
    _refuse_owner(volid, spec.vmid)
    if storage_of(volid) != spec.storage:
        raise VolumeElsewhere(
            f"Volume '{spec.name}' is {volid}; the settings ask for storage {spec.storage}",
            "moving a volume to another storage is not something this program does",
            f"set its storage to {storage_of(volid)}, or move it: pct move-volume {spec.vmid} mpN {spec.storage}",
        )
    if volume is None:
        raise _missing(volid)
    _refuse_kind(volume)
    name = VolumeName.of(volid)
    if volume.is_folder and name is not None and name.in_folder:
        raise VolumeUnusable(
            f"Volume '{spec.name}' ({volid}) has no size",
            "it is a folder on a storage that can't limit or grow one",
            "declare another path and no volid, so that a volume with a size is made; then copy the data over",
        )
    return volume


def _refuse_kind(volume: VolumeFacts) -> None:
    """What no container mounts, or mounts read-only (PVE::LXC, __mountpoint_mount)."""
    name = VolumeName.of(volume.volid)
    if name is not None and name.is_base:
        raise VolumeUnusable(
            f"The volume {volume.volid} is a template's",
            "Proxmox mounts a base image read-only, because clones stand on it",
            "name a volume of a container",
        )
    if volume.format in UNMOUNTABLE:
        raise VolumeUnusable(
            f"The volume {volume.volid} is an image of format {volume.format}",
            "a container mounts raw images and folders only",
            "name another volume; the data in this one are a virtual machine's, or have to be copied out on the node",
        )


def _missing(volid: str) -> VolumeMissing:
    return VolumeMissing(
        f"The volume {volid} does not exist",
        f"storage {storage_of(volid)} does not list it; or the token may not see it, which needs Datastore.Audit on "
        f"/storage/{storage_of(volid)} and VM.Config.Disk on /vms/{owner_of(volid)}",
        f"look with: pvesm list {storage_of(volid)} --vmid {owner_of(volid)}",
    )


def _refuse_owner(volid: str, owner: int) -> None:
    if owner_of(volid) != owner:
        raise OwnerMismatch(
            f"The volume {volid} does not belong to guest {owner}",
            f"its name says that it belongs to guest {owner_of(volid)}, and with that guest Proxmox frees it",
            "name a volume of the declared owner, or declare the other owner",
        )


def _remount(pet: GuestFacts, cluster: ClusterFacts, slot: str, mount: MountPoint, *, replaces: str | None) -> Step:
    """Mount an own volume again, or elsewhere. If the pet runs nobody may use it: the mount could be live at once."""
    _refuse_path(pet, slot, mount.path)
    if "rootfs" in {reference.key for reference in pet.references(mount.volume)}:
        raise SlotTaken(
            f"{mount.volume} is the root file system of CT {pet.vmid}",
            "a data volume has to be one of its own",
            "name another volume in the settings",
        )
    if pet.running is not False and (replaces is not None or cluster.holders(mount.volume, besides=[pet.vmid])):
        raise PetRunning(
            f"CT {pet.vmid} runs, and {slot} has to change",
            "the change would wait for the next stop, or mount a volume that another guest uses",
            f"stop it first: pct shutdown {pet.vmid}",
        )
    return Unprotected(pet.vmid, pet.node, (SetMount(pet.vmid, pet.node, slot, mount, replaces),))


def _refuse_running_users(cluster: ClusterFacts, spec: VolumeSpec, volid: str) -> None:
    """A volume that another running guest has mounted would grow as a block device only (facts proxmox 9)."""
    user = _running_user(cluster, volid, spec.vmid)
    if user is not None:
        raise VolumeBusy(
            f"Volume '{spec.name}' ({volid}) cannot grow now",
            f"{describe_holder(*user)}; its file system could not be grown",
            f"stop that guest, run this again, then start it: pct shutdown {user[0].vmid}",
        )


def _running_user(cluster: ClusterFacts | None, volid: str, besides: int) -> tuple[GuestFacts, Reference] | None:
    """The first other guest that is not known to be stopped and has the volume in a mount point, or will have."""
    for guest, reference in cluster.holders(volid, besides=[besides]) if cluster is not None else ():
        if guest.running is not False and reference.where in ("config", "pending") and not _unused(reference):
            return guest, reference
    return None


def _unused(reference: Reference) -> bool:
    return reference.key.startswith("unused")


def free_slot(guest: GuestFacts, besides: Iterable[str] = ()) -> str:
    """The lowest mount point key that the container does not use, in effect or pending. Raises NoFreeSlot."""
    taken = {*guest.config, *guest.pending, *besides}
    for number in range(MAX_SLOTS):
        slot = f"mp{number}"
        if slot not in taken:
            return slot
    raise NoFreeSlot(
        f"CT {guest.vmid} has no free mount point key", f"all {MAX_SLOTS} are used", "remove one, or use another guest"
    )


def _refuse_path(guest: GuestFacts, slot: str, path: str) -> None:
    """Another mount point of the guest, in effect or pending, must not have the path."""
    mounts: dict[str, MountPoint | None] = {**guest.pending_mounts()}
    for key, mount in [*guest.mounts().items(), *mounts.items()]:
        if mount is not None and key != slot and normal_path(mount.path) == normal_path(path):
            raise PathTaken(
                f"CT {guest.vmid} has something else at {path}",
                f"{key} mounts {mount.volume} there",
                "choose another path in the settings, or remove that mount point",
            )


def _one_writer(cluster: ClusterFacts, volid: str, vmid: int, owner: int) -> list[tuple[GuestFacts, Reference]]:
    """All others that name the volume. Raises HolderUnknown when that cannot be known, PetRunning for the owner."""
    if not cluster.sees_all:
        raise HolderUnknown(
            f"Nobody can say who else uses {volid}",
            "the token may not see all guests: VM.Audit on /vms, propagated, is missing",
            "grant it to the token and to its user: pveum acl modify /vms --roles ROLE --tokens TOKEN",
        )
    for guest, reason in cluster.unreadable:
        # What is on another node's own storage is another volume, whatever its name.
        if storage_of(volid) in cluster.shared_storages or guest.vmid in (vmid, owner):
            raise HolderUnknown(
                f"Nobody can say whether guest {guest.vmid} uses {volid}",
                f"its configuration on node {guest.node} cannot be read: {reason}",
                "bring the node back, then run this again",
            )
    pet = cluster.guest(owner)
    if pet is not None and pet.running is not False and vmid != owner:
        live = [reference for reference in pet.references(volid) if reference.where in ("config", "pending")]
        mounted = [reference for reference in live if not _unused(reference)]
        if mounted:
            raise PetRunning(
                f"CT {owner} runs with {volid} mounted",
                f"{describe_holder(pet, mounted[0])}; two systems would write to one file system",
                f"stop it: pct shutdown {owner}",
            )
    return list(cluster.holders(volid, besides=[vmid, owner]))


def plan_attach(
    guest: GuestFacts | None, volume: VolumeFacts | None, cluster: ClusterFacts, spec: AttachSpec
) -> tuple[Step, ...]:
    """Mount a volume in a stopped container; one that runs is stopped for it, and started again.

    Nothing to do when it is attached as declared. A container that was just made is stopped, and stays so: its power is
    another spec's. Raises a Refusal.
    """
    slot_number(spec.slot)
    require_existing(spec.volid)
    guest = usable(guest, spec.vmid, spec.node)
    _refuse_owner(spec.volid, spec.owner)
    _refuse_other_node(cluster, spec.volid, spec.vmid, spec.node, spec.owner)
    if volume is None:
        raise _missing(spec.volid)
    _refuse_kind(volume)
    others = _one_writer(cluster, spec.volid, spec.vmid, spec.owner)
    freeing = _plan_takeover(others, spec) if others else ()
    # A change that waits for the next stop counts: it would be in effect once this plan has stopped the guest.
    named = [*guest.mounts().items(), *guest.pending_mounts().items()]
    elsewhere = [key for key, mount in named if mount is not None and mount.volume == spec.volid and key != spec.slot]
    if elsewhere:
        raise SlotTaken(
            f"{spec.volid} is mounted in CT {spec.vmid} already, as {elsewhere[0]}",
            f"it belongs in {spec.slot}, and in no other",
            f"detach it: pct set {spec.vmid} --delete {elsewhere[0]}",
        )
    _refuse_path(guest, spec.slot, spec.path)
    current = guest.mounts().get(spec.slot)
    if current is not None and spec.slot not in guest.pending and current.same_mount(spec.mount):
        # A run that was cut off between replacing a volume and forgetting it has left the entry.
        left = spec.recorded if spec.recorded in guest.unused().values() else None
        return (*freeing, *_forget(spec, left))
    replaces = _replaceable(guest, spec)
    stop: tuple[Step, ...] = () if guest.running is False else (Shutdown(spec.vmid, spec.node),)
    start: tuple[Step, ...] = () if guest.running is False else (Start(spec.vmid, spec.node),)
    left = spec.recorded if spec.recorded in (replaces, *guest.unused().values()) else None
    set_mount = SetMount(spec.vmid, spec.node, spec.slot, spec.mount, replaces)
    sole = ProveSole(spec.vmid, spec.node, spec.slot, spec.volid, spec.owner)
    return (*freeing, *stop, set_mount, sole, *_forget(spec, left), *start)


def _refuse_other_node(cluster: ClusterFacts, volid: str, vmid: int, node: str, owner: int) -> None:
    """A storage of the same name on another node is another storage, unless it is shared.

    So a volume of the same name there is another volume, as a migration leaves it that was broken off or forced.
    """
    home = cluster.node_of(owner)
    if home in (None, node) or storage_of(volid) in cluster.shared_storages:
        return
    raise VolumeElsewhere(
        f"The volume {volid} is on node {home}, with CT {owner}, and CT {vmid} is on {node}",
        f"storage {storage_of(volid)} is each node's own: what has that name on {node} is not the volume of CT {owner}",
        f"have both containers on one node: set the node to {home}, or bring the other one back, on node {home}: "
        f"pct migrate {owner} {node}; or have the volume on a shared storage. Delete none of that name before you know "
        "which one has the newest data",
    )


def prove_sole(cluster: ClusterFacts, volid: str, vmid: int, node: str, owner: int) -> None:
    """Return when nobody but the guest, on its node, and the owner names the volume, and it is the owner's.

    Else VolumeElsewhere, VolumeHeld, PetRunning or HolderUnknown.
    """
    _refuse_other_node(cluster, volid, vmid, node, owner)
    others = _one_writer(cluster, volid, vmid, owner)
    if others:
        raise _held(others, volid)


def _forget(spec: AttachSpec, volid: str | None) -> tuple[Step, ...]:
    """Drop the entry that a replaced volume leaves; not for one of the container's own, which Proxmox would free."""
    if volid is None or volid == spec.volid or owner_of(volid) in (None, spec.vmid):
        return ()
    return (DropUnused(spec.vmid, spec.node, volid),)


def _replaceable(guest: GuestFacts, spec: AttachSpec) -> str | None:
    """The volume in the slot, when it is one that may be replaced. Raises SlotTaken."""
    current = guest.mounts().get(spec.slot)
    waiting = guest.pending_mounts().get(spec.slot)
    allowed = (spec.volid, spec.recorded)
    for mount in (current, waiting):
        if mount is not None and mount.volume not in allowed:
            raise SlotTaken(
                f"{spec.slot} of CT {spec.vmid} holds {mount.volume}",
                f"it is not the volume that the settings ask for, {spec.volid}, and not one that this stack put there",
                f"detach it if it is not needed: pct set {spec.vmid} --delete {spec.slot}",
            )
    if current is None:
        return waiting.volume if waiting is not None else None
    return current.volume


def _plan_takeover(others: Sequence[tuple[GuestFacts, Reference]], spec: AttachSpec) -> tuple[Step, ...]:
    """Steps that detach the volume from its holders, if that is wanted and possible. Raises VolumeHeld."""
    stubborn = [
        (guest, reference)
        for guest, reference in others
        # What is named by a path of the node is not the token's to take away (facts proxmox 2.2).
        if guest.kind != "lxc"
        or guest.template
        or guest.lock
        or reference.where.startswith("snapshot ")
        or reference.source is not None
    ]
    if not spec.takeover or stubborn:
        raise _held([*stubborn, *(other for other in others if other not in stubborn)], spec.volid)
    steps: list[Step] = []
    for guest in {guest.vmid: guest for guest, _ in others}.values():
        steps.extend(_release(guest, spec.volid))
    return tuple(steps)


def _held(others: Sequence[tuple[GuestFacts, Reference]], volid: str) -> VolumeHeld:
    """Names all holders, and the first in full."""
    guest, reference = others[0]
    holders = sorted({guest.vmid for guest, _ in others})
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    return VolumeHeld(
        f"The volume {volid} is held by guest {', '.join(map(str, holders))}",
        f"{describe_holder(guest, reference)}{more}; two guests must not write to one volume",
        f"on node {guest.node}: {how_to_free(reference)}",
        holders,
    )


def _release(guest: GuestFacts, volid: str, slots: Sequence[str] | None = None) -> list[Step]:
    """Detach a foreign volume from a container: stop, remove its mount points, forget it."""
    named = {key for key, mount in guest.mounts().items() if mount.volume == volid}
    named |= {key for key, mount in guest.pending_mounts().items() if mount is not None and mount.volume == volid}
    found = [key for key in sorted(named, key=slot_number) if slots is None or key in slots]
    steps: list[Step] = []
    if found and guest.running is not False:
        steps.append(Shutdown(guest.vmid, guest.node))
    steps.extend(RemoveMount(guest.vmid, guest.node, slot, volid) for slot in found)
    if found or volid in guest.unused().values():
        steps.append(DropUnused(guest.vmid, guest.node, volid))
    return steps


def plan_detach(guest: GuestFacts | None, spec: DetachSpec) -> tuple[Step, ...]:
    """Take a foreign volume out of a container.

    Nothing to do when the guest is gone or names the volume no more. A slot that holds another volume is left alone.
    Raises OwnerMismatch when the volume is the container's own: forgetting it would free it (facts proxmox 3.1).
    """
    if guest is None:
        return ()
    if owner_of(spec.volid) == spec.vmid:
        raise OwnerMismatch(
            f"The volume {spec.volid} belongs to CT {spec.vmid} itself",
            "detaching it and removing what is left would delete the data",
            "detach volumes of other guests only",
        )
    steps = _release(guest, spec.volid, [spec.slot])
    if not steps:
        return ()
    usable(guest, spec.vmid)
    return tuple(steps)


def plan_power(guest: GuestFacts | None, spec: PowerSpec, cluster: ClusterFacts | None = None) -> tuple[Step, ...]:
    """Start or shut down, if the container is not already so.

    With `cluster`, a start is refused (VolumeBusy) while another running guest has one of the container's volumes
    mounted: a pet must not start beside the cattle that works on it.
    """
    if guest is not None and guest.running is spec.running:
        return ()
    guest = usable(guest, spec.vmid)
    if not spec.running:
        return (Shutdown(guest.vmid, guest.node),)
    for mount in guest.mounts().values() if cluster is not None else ():
        user = _running_user(cluster, mount.volume, guest.vmid)
        if user is not None:
            raise VolumeBusy(
                f"CT {guest.vmid} cannot start now",
                f"it would mount {mount.volume}, and {describe_holder(*user)}; both would write to one file system",
                f"stop that guest first (pct shutdown {user[0].vmid}), or leave CT {guest.vmid} stopped",
            )
    return (Start(guest.vmid, guest.node),)


def plan_volume_removal(
    pet: GuestFacts | None, cluster: ClusterFacts, vmid: int, volid: str, confirmed_volid: str | None
) -> tuple[Step, ...]:
    """Delete a volume of the pet's with all its data: only when it is named twice, and nobody else names it.

    Nothing to do when the guest is gone or names it no more. Raises a Refusal.
    """
    require_existing(volid)
    _refuse_owner(volid, vmid)
    if pet is None:
        return ()
    references = pet.references(volid)
    if not references:
        return () if pet.protected else (Protect(pet.vmid, pet.node),)
    if confirmed_volid != volid:
        raise DeletionNotConfirmed(
            f"The volume {volid} is not deleted",
            "deleting it needs the settings to name it a second time",
            f"to keep it, leave it in the settings; to delete it with all data, confirm exactly {volid}",
        )
    usable(pet, vmid)
    others = _one_writer(cluster, volid, vmid, vmid)
    own = (ref for ref in references if ref.where.startswith("snapshot ") or ref.source is not None)
    blocking = [*others, *((pet, reference) for reference in own)]
    if blocking:
        guest, reference = blocking[0]
        raise VolumeHeld(
            f"The volume {volid} cannot be deleted",
            f"{describe_holder(guest, reference)}",
            f"on node {guest.node}: {how_to_free(reference)}",
            sorted({guest.vmid for guest, _ in blocking}),
        )
    if any(reference.key == "rootfs" for reference in references):
        raise SlotTaken(f"{volid} is the root file system of CT {vmid}", "it goes with the guest only", "name another")
    slots = [key for key, mount in pet.mounts().items() if mount.volume == volid]
    if slots and pet.running is not False:
        raise PetRunning(
            f"CT {vmid} runs with {volid} mounted", "the change would wait for the next stop", f"pct shutdown {vmid}"
        )
    steps: list[Step] = [RemoveMount(vmid, pet.node, slot, volid) for slot in slots]
    return (Unprotected(vmid, pet.node, (*steps, FreeVolume(vmid, pet.node, volid))),)
