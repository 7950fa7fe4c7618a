"""What is, read from the API into values that do not change. Planners decide on these alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from proxmox.client import Guest, Node, PendingEntry, Permissions, Proxmox, Storage
from proxmox.errors import ApiError, GuestMissing, NoSuchGuest, NotImplementedByServer, SlotTaken
from proxmox.mountpoint import (
    MountPoint,
    MountPointSyntaxError,
    is_slot,
    is_unused,
    owner_in_name,
    owner_of,
    parts_of_path,
    path_means,
    paths_in,
    slot_number,
    storage_of,
)

S = TypeVar("S")
T = TypeVar("T")

READERS = 8
"""How many guests are read at the same time."""


@dataclass(frozen=True)
class Reference:
    """A place where a guest names a volume.

    where: "config", "pending" or "snapshot NAME"; key: mp0, rootfs, unused1, scsi0, lxc.mount.entry ...; path: a mount
    point's, or None; source: the path of the node that it is named by, None for its volid. Only root sets the former.
    """

    vmid: int
    kind: str
    node: str
    where: str
    key: str
    path: str | None
    source: str | None = None


@dataclass(frozen=True)
class GuestFacts:
    """A guest. `config` is what is in effect; `pending` what will be (None: the key will be deleted).

    running: None when it was not read. snapshots: name -> the configuration that it keeps.
    """

    vmid: int
    node: str
    kind: str = "lxc"
    running: bool | None = False
    config: Mapping[str, str] = field(default_factory=dict)
    pending: Mapping[str, str | None] = field(default_factory=dict)
    digest: str | None = None
    snapshots: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Host name of a container, name of a virtual machine."""
        return self.config.get("hostname") or self.config.get("name") or ""

    @property
    def lock(self) -> str | None:
        """What operation holds the guest, or None."""
        return self.config.get("lock") or None

    @property
    def protected(self) -> bool:
        """Whether protection mode is on."""
        return self.config.get("protection", "0") == "1"

    @property
    def template(self) -> bool:
        """Whether the guest is a template."""
        return self.config.get("template", "0") == "1"

    def mounts(self) -> dict[str, MountPoint]:
        """The mount points in effect, by key, in the order of their numbers. Raises SlotTaken for a broken one."""
        slots = sorted(filter(is_slot, self.config), key=slot_number)
        return {slot: self._mount(slot, self.config[slot]) for slot in slots}

    def _mount(self, slot: str, text: str) -> MountPoint:
        try:
            return MountPoint.parse(text)
        except MountPointSyntaxError as error:
            raise SlotTaken(
                f"{slot} of CT {self.vmid} cannot be read",
                f"it was edited by hand, or by a newer Proxmox: {error}",
                f"see: pct config {self.vmid}; correct it on the node: pct set {self.vmid} --{slot} VOLUME,mp=PATH",
            ) from None

    def pending_mounts(self) -> dict[str, MountPoint | None]:
        """The mount points that wait to be applied; None for one that will be removed."""
        return {
            key: self._mount(key, value) if value is not None else None
            for key, value in self.pending.items()
            if is_slot(key)
        }

    def unused(self) -> dict[str, str]:
        """unusedN -> the volume that it names."""
        return {key: value.split(",")[0] for key, value in self.config.items() if is_unused(key)}

    def names_volume_of(self, owner: int | None) -> bool:
        """Whether this guest names any volume that belongs to guest `owner`, in effect or pending."""
        if owner is None:
            return False
        layers = (self.config, {key: value for key, value in self.pending.items() if value is not None})
        return any(
            owner_of(part) == owner for config in layers for _, text in _lines(config) for part in _parts(text)
        ) or any(
            owner_in_name(name) == owner
            for config in layers
            for key, text in _lines(config)
            for path in _sources(key, text)
            for name in parts_of_path(path)
        )

    def references(self, volid: str) -> tuple[Reference, ...]:
        """Every place where this guest names the volume: in effect, pending, and in snapshots.

        By its volid; or by a path of the node, as in a mount of a device's file or a raw `lxc.` line. A folder of the
        node, as one that is mounted, may be asked for in the volid's place.
        """
        layers: list[tuple[str, Mapping[str, str]]] = [
            ("config", self.config),
            ("pending", {key: value for key, value in self.pending.items() if value is not None}),
            *((f"snapshot {name}", config) for name, config in sorted(self.snapshots.items())),
        ]
        return tuple(
            Reference(self.vmid, self.kind, self.node, where, key, _path(key, value), source)
            for where, config in layers
            for key, value in _lines(config)
            for source in _named_by(key, value, volid)
        )


_PROSE = frozenset({"description", "digest"})


def _parts(value: str) -> list[str]:
    """The parts of a property string, without the key that a volume may be given with."""
    return [part.strip().removeprefix("volume=").removeprefix("file=") for part in value.split(",")]


def _lines(config: Mapping[str, str]) -> list[tuple[str, str]]:
    """What a configuration may name a volume in, by key; each raw line (`Proxmox.guest_config`) by its own."""
    found = sorted((key, value) for key, value in config.items() if key not in _PROSE and key != "lxc")
    raw = (line.partition(":") for line in config.get("lxc", "").splitlines())
    return [*found, *((key.strip(), value.strip()) for key, _, value in raw)]


def _sources(key: str, value: str) -> tuple[str, ...]:
    """The paths of the node in a value; where it is mounted in the guest is none of them."""
    parts = [part for part in value.split(",") if not (is_slot(key) and part.strip().startswith("mp="))]
    return paths_in(",".join(parts))


def _named_by(key: str, value: str, volid: str) -> list[str | None]:
    """How a value names the volume, once at most: [None] by its volid, else [the path]."""
    if volid in _parts(value):
        return [None]
    means = [path for path in _sources(key, value) if path_means(path, volid) or path.rstrip("/") == volid]
    return [*means[:1]]


def _path(key: str, value: str) -> str | None:
    if not is_slot(key):
        return None
    try:
        return MountPoint.parse(value).path
    except MountPointSyntaxError:
        return None


@dataclass(frozen=True)
class VolumeFacts:
    """A volume that its storage lists. size in bytes, 0: nothing limits it; owner: the number in its name, or None.

    format: "raw" is an image with a file system, "subvol" a folder: ZFS's with a limit, of any other storage without.
    """

    volid: str
    size: int
    format: str = "raw"

    @property
    def owner(self) -> int | None:
        """The number of the guest that owns it."""
        return owner_of(self.volid)

    @property
    def storage(self) -> str:
        """The storage it lies on."""
        return storage_of(self.volid)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the node, not a file system of its own."""
        return self.format == "subvol"


@dataclass(frozen=True)
class ClusterFacts:
    """All guests of the cluster that could be read.

    unreadable: guests that exist and could not be read, with the reason. sees_all: whether the token may see every
    guest. shared_storages: storages that more than one node uses.
    """

    guests: tuple[GuestFacts, ...] = ()
    unreadable: tuple[tuple[Guest, str], ...] = ()
    sees_all: bool = True
    shared_storages: frozenset[str] = frozenset()

    def guest(self, vmid: int) -> GuestFacts | None:
        """The guest of that number, if it was read."""
        return next((guest for guest in self.guests if guest.vmid == vmid), None)

    def node_of(self, vmid: int) -> str | None:
        """The node that the guest is on, also of one that could not be read; None when there is none of that number."""
        found = self.guest(vmid) or next((guest for guest, _ in self.unreadable if guest.vmid == vmid), None)
        return found.node if found is not None else None

    def holders(self, volid: str, *, besides: Iterable[int] = ()) -> tuple[tuple[GuestFacts, Reference], ...]:
        """Every guest, but for the numbers in `besides`, and every place in it where it names the volume."""
        left_out = frozenset(besides)
        return tuple(
            (guest, reference)
            for guest in self.guests
            if guest.vmid not in left_out
            for reference in guest.references(volid)
        )


def guest_from_entries(
    vmid: int, node: str, kind: str, entries: Iterable[PendingEntry], running: bool | None
) -> GuestFacts:
    """A guest from the rows of its `pending` call, which tells both what is in effect and what will be."""
    config: dict[str, str] = {}
    pending: dict[str, str | None] = {}
    for entry in entries:
        if entry.value is not None:
            config[entry.key] = entry.value
        if entry.delete:
            pending[entry.key] = None
        elif entry.pending is not None:
            pending[entry.key] = entry.pending
    digest = config.pop("digest", None)
    return GuestFacts(vmid, node, kind, running, config, pending, digest)


def locate(client: Proxmox, vmid: int) -> Guest | None:
    """Where the guest is, or None when the number is free.

    Raises GuestMissing when the number is taken by a guest that the token may not see: it is not ours to work on.
    """
    found = next((guest for guest in client.guests() if guest.vmid == vmid), None)
    if found is None and client.vmid_taken(vmid):
        raise GuestMissing(
            f"Guest {vmid} exists, but the token may not see it",
            f"VM.Audit on /vms/{vmid} is missing, or the guest is another's",
            f"grant VM.Audit on /vms to the token and its user, or choose another number than {vmid}",
        )
    return found


def read_guest(client: Proxmox, vmid: int, *, snapshots: bool = False) -> GuestFacts | None:
    """A guest with its power state; None when there is none of that number on any node."""
    place = locate(client, vmid)
    if place is None:
        return None
    try:
        return _read(client, place, power=True, snapshots=snapshots)
    except NoSuchGuest:
        return None  # removed meanwhile


class Around(NamedTuple):
    """What is around the guests: the cluster's nodes, the storages of the connection's node, the token's rights."""

    nodes: Sequence[Node]
    storages: Sequence[Storage]
    permissions: Permissions


def read_around(client: Proxmox) -> Around:
    """Of a node that is offline no storages: another one can't ask it, and tries for half a minute."""
    nodes, name = client.nodes(), client.connection.node
    offline = any(node.name == name and node.offline for node in nodes)
    return Around(nodes, () if offline else client.storages(name), client.permissions())


def read_cluster(
    client: Proxmox, *owners: int | None, power_of: Iterable[int] = (), around: Around | None = None
) -> ClusterFacts:
    """All guests of all nodes, snapshots included. `around`: as it was read right before; None: it is read.

    The power state is read for the numbers in `power_of` and for the containers that name a volume of one of `owners`.
    Raw `lxc.` lines count, too. What a hook script or a fstab file of a container mounts is not seen.
    """
    listed = client.guests()
    nodes, storages, permissions = around or read_around(client)
    offline = {node.name for node in nodes if node.offline}
    wanted = frozenset(power_of)
    readable = [guest for guest in listed if guest.node not in offline]
    unreadable = [(guest, f"node {guest.node} is offline") for guest in listed if guest.node in offline]
    guests: list[GuestFacts] = []

    def read(place: Guest) -> GuestFacts | tuple[Guest, str] | None:
        try:
            facts = _read(client, place, power=place.vmid in wanted, snapshots=True)
            if facts.running is None and place.kind == "lxc" and any(map(facts.names_volume_of, owners)):
                facts = replace(facts, running=client.guest_status(place.node, place.vmid).running)
        except NoSuchGuest:
            return None
        except ApiError as error:
            return place, error.reason
        return facts

    for result in side_by_side(read, readable):
        if isinstance(result, GuestFacts):
            guests.append(result)
        elif result is not None:
            unreadable.append(result)
    shared = frozenset(storage.name for storage in storages if storage.shared)
    sees_all = "VM.Audit" in permissions.inherited("/vms")
    return ClusterFacts(tuple(guests), tuple(unreadable), sees_all, shared)


def side_by_side(function: Callable[[S], T], values: Sequence[S]) -> list[T]:
    """`function` of each value; side by side when there are enough to be worth more connections."""
    if len(values) <= READERS // 2:
        return [function(value) for value in values]
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        return list(pool.map(function, values))


def _read(client: Proxmox, place: Guest, *, power: bool, snapshots: bool) -> GuestFacts:
    """`snapshots`: with all that may name a volume, raw lines included."""
    entries = client.guest_pending(place.node, place.vmid, place.kind)
    running = client.guest_status(place.node, place.vmid).running if power and place.kind == "lxc" else None
    facts = guest_from_entries(place.vmid, place.node, place.kind, entries, running)
    if not snapshots:
        return facts
    raw = client.guest_config(place.node, place.vmid).get("lxc") if place.kind == "lxc" else None
    # The rows leave raw lines out: config_with_pending_array of PVE::GuestHelpers passes over what is a list.
    config = {**facts.config, "lxc": raw} if raw else facts.config
    return replace(facts, config=config, snapshots=_snapshots(client, place))


def _snapshots(client: Proxmox, place: Guest) -> dict[str, dict[str, str]]:
    try:
        names = client.guest_snapshots(place.node, place.vmid, place.kind)
    except NotImplementedByServer:
        return {}  # a server without snapshots has none
    return {name: client.snapshot_config(place.node, place.vmid, name, place.kind) for name in names}


def read_volume(client: Proxmox, node: str, volid: str) -> VolumeFacts | None:
    """A volume from its storage's list; None when it is not listed.

    A token without the rights of facts proxmox 4 does not see it either: preflight tells the two apart.
    """
    found = client.storage_content(node, storage_of(volid), vmid=owner_of(volid))
    return next((VolumeFacts(row.volid, row.size, row.format) for row in found if row.volid == volid), None)
