"""Folders of the node in a container, and `keyctl`: what only root@pam may set, and what has to be done for it.

Proxmox grants bind mounts and every feature but nesting to root@pam alone, to no token (facts proxmox 1, 2.2). So these
steps are commands for a root shell on the node: this program runs them where it has one, and prints them where it has
none. Pure functions: facts and a spec in, steps, commands or a refusal out. Nothing here frees, empties or re-owns a
folder that holds anything, and none of the steps removes one.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated, ClassVar

from pydantic import Field

from proxmox.errors import HostFolderForeign, HostFolderUnusable, PathTaken, Refusal, RootNeeded, Subject
from proxmox.facts import GuestFacts
from proxmox.idmap import STANDARD, IdMap
from proxmox.mountpoint import MountPoint, normal_path
from proxmox.planning import VOLUME_SLOT, Shutdown, Start, Step, free_slot, usable
from proxmox.spec import Spec

STORAGES = PurePosixPath("/mnt/pve")
"""Where Proxmox mounts storages that are folders, one below it for each."""


# Specs and facts.


@dataclass(frozen=True)
class HostMount:
    """A folder of the node, `source`, at `path` in the container.

    owner: the number, inside the container, of the user that the folder belongs to. Of one that is mounted read-only
    the owner is the node's business.
    """

    source: str
    path: str
    owner: int = 0
    read_only: Annotated[bool, Field(alias="readOnly")] = False

    @property
    def mount(self) -> MountPoint:
        """The mount point as it shall be."""
        return MountPoint(self.source, self.path, {"ro": "1"} if self.read_only else {})


@dataclass(frozen=True)
class Placed:
    """A host mount as it is: what the slot says."""

    slot: str
    source: str
    path: str
    read_only: Annotated[bool, Field(alias="readOnly")] = False


@dataclass(frozen=True)
class HostMountSpec(Spec):
    """The host mounts that a container shall have, all of this stack's, and whether it shall have keyctl.

    recorded: what an earlier run has put there, which may be changed and removed; reserved: slots that are another
    one's; ids: the container's users on the node.
    """

    RECORDED_AS: ClassVar = ("placed",)

    vmid: int
    node: str
    mounts: tuple[HostMount, ...] = ()
    keyctl: bool = False
    recorded: tuple[Placed, ...] = ()
    reserved: Annotated[frozenset[str], Field(exclude=True)] = frozenset({VOLUME_SLOT})
    ids: Annotated[IdMap, Field(exclude=True)] = STANDARD

    def owner_of(self, mount: HostMount) -> tuple[int, int]:
        """User and group on the node that the folder belongs to. Raises HostFolderUnusable for one not mapped."""
        found = self.ids.on_node(mount.owner)
        if found is None:
            raise HostFolderUnusable(
                f"user {mount.owner} of CT {self.vmid} has no number on node {self.node}",
                "the container's user namespace does not have it, so it can own nothing there",
                f"declare another owner, or correct the lxc.idmap lines: /etc/pve/lxc/{self.vmid}.conf",
            )
        return found


@dataclass(frozen=True)
class FolderFacts:
    """A path on the node. mode: as stat tells it, or None where there is nothing; empty: of a folder.

    real: the path without symbolic links; mounted_at: where the file system is mounted that it lies on, or would;
    above: of what is missing, the nearest folder that is there; fstab: where the node is told to mount its disks.
    """

    path: str
    real: str
    mode: int | None = None
    uid: int = 0
    gid: int = 0
    empty: bool = True
    mounted_at: str = "/"
    above: str = ""
    fstab: tuple[str, ...] = ()


# Steps.


@dataclass(frozen=True)
class MakeFolder(Step):
    """Make a folder of the node, and those above it that are missing."""

    path: str
    mounted_at: str = "/"

    @property
    def command(self) -> str:
        """What root runs."""
        return f"mkdir -p -- {shlex.quote(self.path)}"

    def describe(self) -> str:
        """One line."""
        place = "its root file system: is the disk mounted?" if self.mounted_at == "/" else f"disk {self.mounted_at}"
        return f"node {self.node}: make the folder {self.path} (on {place})"


@dataclass(frozen=True)
class OwnFolder(Step):
    """Give a folder, which is new or empty, to the container's user: the folder alone, nothing below it."""

    path: str
    owner: tuple[int, int]
    inside: int

    @property
    def command(self) -> str:
        """What root runs."""
        user, group = self.owner
        return f"chown -h {user}:{group} -- {shlex.quote(self.path)}"

    def describe(self) -> str:
        """One line."""
        return f"node {self.node}: give {self.path} to {self.owner[0]} ({self.inside} in CT {self.vmid})"


@dataclass(frozen=True)
class SetHost(Step):
    """Set mounts and features of the stopped container, all in one command."""

    spec: HostMountSpec
    change: HostChange

    def describe(self) -> str:
        """One line."""
        return f"node {self.node}: {self.change.command(self.vmid)}"


@dataclass(frozen=True)
class HostChange:
    """Options to set and keys to delete."""

    options: Mapping[str, str]
    delete: tuple[str, ...] = ()

    def command(self, vmid: int, *, digest: str | None = None) -> str:
        """What root runs."""
        words = ["pct", "set", str(vmid)]
        for key, value in sorted(self.options.items()):
            words += [f"--{key}", value]
        if self.delete:
            words += ["--delete", ",".join(self.delete)]
        if digest is not None:
            words += ["--digest", digest]
        return shlex.join(words)


# Planners.


def features_with(text: str, *, keyctl: bool) -> str:
    """A `features` value with nesting and, or without, keyctl; the others stay as they are."""
    found = dict(part.partition("=")[::2] for part in text.split(",") if part)
    found.pop("keyctl", None)
    found |= {"nesting": "1"} | ({"keyctl": "1"} if keyctl else {})
    return ",".join(f"{key}={found[key]}" for key in sorted(found))


def has_feature(text: str, name: str) -> bool:
    """Whether a `features` value switches a feature on."""
    return f"{name}=1" in text.split(",")


def find_placed(guest: GuestFacts, mounts: Sequence[HostMount], recorded: Sequence[Placed]) -> dict[HostMount, Placed]:
    """For each host mount the one that stands for it now: the same folder at the same path, else what was recorded.

    A slot that was recorded counts as ours as long as it holds a folder of the node: somebody has changed it.
    """
    now = {
        slot: Placed(slot, normal_path(mount.volume), normal_path(mount.path), _read_only(mount))
        for slot, mount in guest.mounts().items()
        if mount.volume.startswith("/")
    }
    found: dict[HostMount, Placed] = {}
    for mount in mounts:
        for placed in now.values():
            if _same_place(placed, mount):
                found[mount] = placed
    taken = {placed.slot for placed in found.values()}
    for alike in (_at_its_path, _of_its_source):
        for mount in (mount for mount in mounts if mount not in found):
            for old in recorded:
                if alike(old, mount) and old.slot in now and old.slot not in taken:
                    found[mount] = now[old.slot]
                    taken.add(old.slot)
                    break
    return found


def _at_its_path(old: Placed, mount: HostMount) -> bool:
    return _same_path(old.path, mount.path)


def _of_its_source(old: Placed, mount: HostMount) -> bool:
    return _same_path(old.source, mount.source)


def _same_path(one: str, other: str) -> bool:
    return normal_path(one) == normal_path(other)


def _same_place(placed: Placed, mount: HostMount) -> bool:
    return _same_path(placed.source, mount.source) and _same_path(placed.path, mount.path)


def _same_mount(current: MountPoint, mount: HostMount) -> bool:
    return replace(current, volume=normal_path(current.volume)).same_mount(mount.mount)


def _read_only(mount: MountPoint) -> bool:
    return ("ro", "1") in mount.meaning()[2]


def change_of(guest: GuestFacts, spec: HostMountSpec) -> HostChange | None:
    """What has to be set in the container's configuration; None when it is as declared. Raises PathTaken, NoFreeSlot.

    Mount points that are not this stack's are left alone.
    """
    found = find_placed(guest, spec.mounts, spec.recorded)
    options: dict[str, str] = {}
    used = {placed.slot for placed in found.values()}
    for mount in spec.mounts:
        placed = found.get(mount)
        slot = placed.slot if placed is not None else free_slot(guest, {*spec.reserved, *used})
        used.add(slot)
        current = guest.mounts().get(slot)
        if current is None or slot in guest.pending or not _same_mount(current, mount):
            options[slot] = mount.mount.property_string()
    delete = tuple(
        slot
        for slot, current in guest.mounts().items()
        if slot not in used and any(_stands_for(current, old) for old in spec.recorded)
    )
    _refuse_paths(guest, spec, {*used, *delete})
    features = guest.config.get("features", "")
    wanted = features_with(features, keyctl=spec.keyctl)
    if "features" in guest.pending or set(features.split(",")) != set(wanted.split(",")):
        options["features"] = wanted
    return HostChange(options, delete) if options or delete else None


def _stands_for(current: MountPoint, old: Placed) -> bool:
    """Whether a mount point is one that was recorded, in whatever slot it is now."""
    return _same_path(current.volume, old.source) and _same_path(current.path, old.path)


def _refuse_paths(guest: GuestFacts, spec: HostMountSpec, ours: set[str]) -> None:
    wanted = {normal_path(mount.path): mount for mount in spec.mounts}
    for slot, current in guest.mounts().items():
        if slot not in ours and normal_path(current.path) in wanted:
            raise PathTaken(
                f"CT {guest.vmid} has something else at {current.path}",
                f"{slot} mounts {current.volume} there",
                f"choose another path, or remove that mount point: pct set {guest.vmid} --delete {slot}",
                Subject.HOST_MOUNT,
            )


def _settled(guest: GuestFacts) -> GuestFacts:
    """The container as it will be after a restart: what waits is applied by then (facts proxmox 3.2)."""
    config = {key: value for key, value in guest.config.items() if key not in guest.pending}
    config |= {key: value for key, value in guest.pending.items() if value is not None}
    return replace(guest, config=config, pending={})


def plan_host_mounts(
    guest: GuestFacts | None, folders: Mapping[str, FolderFacts], spec: HostMountSpec
) -> tuple[Step, ...]:
    """Steps to the spec: folders first, then one `pct set` on the stopped container, which then runs as it did before.

    A container that was just made is stopped, and stays so: its power is another spec's. folders: by path; those
    that are mounted already are judged as well: one that was removed meanwhile is made, and a container that runs still
    has the removed one, so it is restarted. Raises a Refusal.
    """
    guest = usable(guest, spec.vmid, spec.node)
    steps = [step for mount in spec.mounts for step in plan_folder(folders[mount.source], mount, spec)]
    change = change_of(guest, spec)
    setting = () if change is None else (SetHost(spec.vmid, spec.node, spec, change),)
    if guest.running is False or not (setting or any(isinstance(step, MakeFolder) for step in steps)):
        return (*steps, *setting)
    return (*steps, Shutdown(spec.vmid, spec.node), *setting, Start(spec.vmid, spec.node))


def plan_folder(facts: FolderFacts, mount: HostMount, spec: HostMountSpec) -> tuple[Step, ...]:
    """Make the folder, or give it to the container's user when it is empty.

    Raises HostFolderForeign for one of another owner's that holds something, HostFolderUnusable for what can't be
    mounted.
    """
    if not _same_path(facts.real, facts.path):
        raise HostFolderUnusable(
            f"{facts.path} on node {spec.node} is reached through a symbolic link",
            "Proxmox follows none to a folder that it mounts",
            f"declare its real path: {facts.real}",
        )
    if facts.mode is not None and not stat.S_ISDIR(facts.mode):
        raise HostFolderUnusable(
            f"{facts.path} on node {spec.node} is not a folder",
            "only a folder can be mounted",
            "choose another source",
        )
    if facts.mode is None and mount.read_only:
        raise HostFolderUnusable(
            f"{facts.path} does not exist on node {spec.node}",
            "a folder that is mounted read-only is not made: it would stay empty",
            "correct the source, or make the folder",
        )
    disk = _unmounted(facts)
    if disk is not None:
        raise HostFolderUnusable(
            f"{facts.path}: nothing is mounted at {disk} on node {spec.node}",
            "the data would land on the node's own disk, and be hidden once the disk is back",
            f"see why it is not mounted: {_how_to_see(disk)}; or choose another source",
        )
    if mount.read_only:
        return ()
    user, group = spec.owner_of(mount)
    own = OwnFolder(spec.vmid, spec.node, facts.path, (user, group), mount.owner)
    if facts.mode is None and facts.above == "/":
        top = PurePosixPath(*PurePosixPath(facts.path).parts[:2])
        raise HostFolderUnusable(
            f"{facts.path}: there is no {top} on node {spec.node}",
            "a disk or a pool that is not there yet would be hidden by folders made in its place",
            f"see why it is missing: findmnt; zpool import; or, for a folder of the node's own disk: mkdir {top}",
        )
    if facts.mode is None:
        return (MakeFolder(spec.vmid, spec.node, facts.path, facts.mounted_at), own)
    if facts.uid == user:
        return ()
    if facts.empty:
        return (own,)
    raise HostFolderForeign(
        f"{facts.path} on node {spec.node} belongs to {_named(facts.uid, spec.ids)} and is not empty",
        f"it was to belong to {_named(user, spec.ids)}; what is in it is somebody's, and is not given away silently",
        f"if it is meant for this container: {own.command} (the folder alone){_declare(facts.uid, spec.ids)}; "
        "if not, choose another source",
    )


def storage_folder(path: str) -> PurePosixPath | None:
    """The folder below /mnt/pve where Proxmox mounts the storage that a path is on; None for any other path."""
    parts = PurePosixPath(path)
    return STORAGES / parts.parts[3] if parts.is_relative_to(STORAGES) and parts != STORAGES else None


def _unmounted(facts: FolderFacts) -> PurePosixPath | None:
    """The disk that a path is meant to lie on while nothing is mounted there; the innermost one."""
    path, mounted_at = PurePosixPath(facts.path), PurePosixPath(facts.mounted_at)
    storage = storage_folder(facts.path)
    disks = [*map(PurePosixPath, facts.fstab), *([storage] if storage else [])]
    meant = max((disk for disk in disks if path.is_relative_to(disk)), key=lambda disk: len(disk.parts), default=None)
    return meant if meant is not None and mounted_at in meant.parents else None


def _how_to_see(disk: PurePosixPath) -> str:
    return "pvesm status" if disk.parent == STORAGES else f"mount {shlex.quote(str(disk))}"


def _named(uid: int, ids: IdMap) -> str:
    inside = ids.inside(uid)
    return f"{uid} (a user of the node)" if inside is None else f"{uid} ({inside} in the container)"


def _declare(uid: int, ids: IdMap) -> str:
    inside = ids.inside(uid)
    return "" if inside is None else f", or declare its owner: {inside}"


def commands_to_paste(guest: GuestFacts | None, spec: HostMountSpec) -> tuple[str, ...]:
    """What root has to run on the node, in order, where this program has no root shell; nothing when it is all done.

    None for a container that is yet to be made: then it is stopped. Raises the Refusals of `change_of`.
    """
    guest = guest if guest is not None else GuestFacts(spec.vmid, spec.node, config={"features": "nesting=1"})
    running = guest.running is not False
    change = change_of(_settled(guest) if running else guest, spec)
    commands: list[str] = []
    if change is not None:
        texts = set(change.options.values())
        new = [mount for mount in spec.mounts if not mount.read_only and mount.mount.property_string() in texts]
        # Nobody looks at the folders here: so nothing is made in the place of a storage that is not mounted.
        storages = dict.fromkeys(filter(None, (storage_folder(mount.source) for mount in new)))
        commands += [f"mountpoint {shlex.quote(str(storage))}" for storage in storages]
        for mount in new:
            commands.append(MakeFolder(spec.vmid, spec.node, mount.source).command)
            commands.append(OwnFolder(spec.vmid, spec.node, mount.source, spec.owner_of(mount), mount.owner).command)
        commands.append(change.command(spec.vmid))
    if running and (change is not None or change_of(guest, spec) is not None):
        commands.append(f"pct reboot {spec.vmid}")
    return tuple(commands)


def roots_work(spec: HostMountSpec, commands: Sequence[str]) -> tuple[Subject, ...]:
    """What the commands are for: one or both of ROOT, for folders of the node, and KEYCTL."""
    engine = spec.keyctl and any(" --features " in command for command in commands)
    folders = not engine or any(" --mp" in command for command in commands)
    return (*((Subject.ROOT,) if folders else ()), *((Subject.KEYCTL,) if engine else ()))


def root_needed(spec: HostMountSpec, commands: Sequence[str]) -> RootNeeded:
    """The refusal that tells the commands, and for what they are."""
    words = {Subject.ROOT: "bind mounts", Subject.KEYCTL: "keyctl, which a container engine needs,"}
    asked = " and ".join(words[subject] for subject in roots_work(spec, commands))
    return RootNeeded(
        f"CT {spec.vmid} needs what only root on node {spec.node} may set, and there is no access to it",
        f"Proxmox grants {asked} to root@pam alone, to no token",
        paste_remedy(spec.node, commands),
    )


def paste(commands: Sequence[str], *, indent: int) -> str:
    """The commands as they are pasted, each on a line of its own, and each only when the one before has worked."""
    return " &&".join(f"\n{' ' * indent}{command}" for command in commands)


def paste_remedy(node: str, commands: Sequence[str]) -> str:
    """The commands, and what comes after them."""
    return f"paste this on node {node} as root, then run this again:{paste(commands, indent=9)}"


def judge_folders(folders: Mapping[str, FolderFacts], spec: HostMountSpec) -> tuple[list[Refusal], list[Step]]:
    """Everything that speaks against the folders, and everything that is to be done to them, all at once."""
    refusals: list[Refusal] = []
    steps: list[Step] = []
    for mount in spec.mounts:
        try:
            steps += plan_folder(folders[mount.source], mount, spec)
        except Refusal as refusal:
            refusals.append(refusal)
    return refusals, steps
