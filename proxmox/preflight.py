"""What has to be true before anything is changed: read once, told all at once. Reads only.

`preflight_pet` and `preflight_cattle` read and then ask the pure `pet_faults` and `cattle_faults`. A fault that makes
other readings impossible (no answer, no such node) leaves those out rather than guessing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from proxmox.client import Node, Permissions, Proxmox, Storage, Version
from proxmox.connection import Connection
from proxmox.errors import (
    ApiError,
    AuthenticationFailed,
    Fault,
    NodeUnusable,
    ProxmoxError,
    Refusal,
    Subject,
    TlsUntrusted,
)
from proxmox.facts import Around, ClusterFacts, GuestFacts, VolumeFacts, read_cluster, side_by_side
from proxmox.host_mounts import HostMountSpec, commands_to_paste, root_needed, roots_work, storage_folder
from proxmox.hostshell import with_ids
from proxmox.mountpoint import MountPoint, format_size, parse_size, storage_of
from proxmox.neighbours import answer_of, resolved
from proxmox.network import plain_address
from proxmox.nodes import prove_node
from proxmox.ownership import describe_guest, describe_holder, how_to_free, is_claimed
from proxmox.planning import (
    GIB,
    AttachSpec,
    RemovalSpec,
    VolumeSpec,
    mount_of,
    plan_attach,
    plan_volume,
    plan_volume_removal,
)
from proxmox.rights import (
    Right,
    allocate_on,
    clone_from,
    faults_of_rights,
    manage_guest,
    mount_foreign,
    see_all_guests,
    use_bridge,
    use_template,
)

T = TypeVar("T")

OLDEST_MAJOR = 8
THIN = frozenset({"lvmthin", "zfspool", "rbd", "btrfs", "dir", "nfs", "cifs"})
"""Kinds of storage where a volume takes up what is written to it, not its size."""
NOT_FOR_CONTAINERS = frozenset({"cephfs", "iscsi", "iscsidirect", "zfs", "pbs", "esxi"})
"""Kinds that can't have the content rootdir at all (plugindata of their plugins); zfs is ZFS over iSCSI."""
THIN_ROOM = GIB
"""What has to be free on a thin storage: about what a template and the first packages fill."""


@dataclass(frozen=True)
class GuestCheck:
    """A container that is to be there.

    template: its volume name, for a container that may have to be made; golden: the number of the template that it is
    cloned from instead; root_gb in GiB; address: "10.0.0.5/24", or None
    for DHCP; claim: the mark of the stack's own guests; ours: whether the stack's state knows the guest; remade:
    whether a changed setting makes the one that is there anew, so that all that a new one needs has to be proved.
    """

    vmid: int
    node: str
    root_storage: str
    root_gb: float
    template: str | None = None
    bridge: str | None = None
    address: str | None = None
    address6: str | None = None
    claim: str | None = None
    ours: bool = False
    remade: bool = False
    golden: int | None = None


@dataclass(frozen=True)
class PetCheck:
    """A pet, its volumes, and those that shall be deleted.

    made: whether it was there before, so that one which is not there now is lost with its data.
    """

    guest: GuestCheck
    volumes: tuple[VolumeSpec, ...] = ()
    deletions: tuple[RemovalSpec, ...] = ()
    made: bool = False


@dataclass(frozen=True)
class CattleCheck:
    """A cattle, the volume that it mounts, and what root has to set.

    root_access: whether this program may do that; home: the folder of the node that the agent's home is on, or None.
    """

    guest: GuestCheck
    attach: AttachSpec | None = None
    host: HostMountSpec | None = None
    root_access: bool = False
    home: str | None = None


@dataclass(frozen=True)
class Occupants:
    """Who has what is to be the guest's alone.

    endpoint: the addresses of the API's host; leases: those on the cards of the containers that run, by number; answer:
    how a machine that has the guest's fixed address shows itself, or None. All three are looked for only while the
    guest itself does not have the address. twins: guests that run with the guest's hardware address.
    """

    endpoint: frozenset[str] = frozenset()
    leases: Mapping[int, frozenset[str]] = field(default_factory=dict)
    answer: str | None = None
    twins: tuple[GuestFacts, ...] = ()


@dataclass(frozen=True)
class NodeFacts:
    """Everything that the checks decide on.

    quorate: whether the cluster has its quorum, None where the token may not know; taken: whether any guest has the
    number, also one that the token may not see; templates, volumes, bridges (name and
    type): what is there, or None where it could not be read; occupants: who has the guest's fixed address, or its card.
    """

    version: Version
    nodes: tuple[Node, ...]
    permissions: Permissions
    token_id: str
    taken: bool = False
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    storages: tuple[Storage, ...] = ()
    templates: frozenset[str] | None = None
    volumes: Mapping[str, VolumeFacts] | None = None
    bridges: Mapping[str, str] | None = None
    occupants: Occupants = field(default_factory=Occupants)
    quorate: bool | None = None


def needed_pet(check: PetCheck) -> tuple[Right, ...]:
    """The rights that the pet's stack needs."""
    storages = dict.fromkeys([check.guest.root_storage, *(spec.storage for spec in check.volumes)])
    return (*_needed_guest(check.guest), *(allocate_on(storage) for storage in storages))


def needed_cattle(check: CattleCheck) -> tuple[Right, ...]:
    """The rights that a cattle's stack needs."""
    rights = [*_needed_guest(check.guest), allocate_on(check.guest.root_storage)]
    if check.attach is not None and storage_of(check.attach.volid):
        rights.extend(mount_foreign(storage_of(check.attach.volid), check.attach.owner))
    return tuple(rights)


def _needed_guest(guest: GuestCheck) -> list[Right]:
    rights = [manage_guest(guest.vmid), see_all_guests()]
    if guest.template:
        rights.append(use_template(storage_of(guest.template)))
    if guest.golden is not None:
        rights.append(clone_from(guest.golden))
    if guest.bridge:
        rights.append(use_bridge(guest.bridge))
    return rights


# Pure checks.


def pet_faults(check: PetCheck, seen: NodeFacts) -> list[Fault]:
    """All faults that stand in the pet's way."""
    new = [spec for spec in check.volumes if not _is_there(check, spec, seen)]
    sizes: dict[str, int] = {}
    for spec in new:
        sizes[spec.storage] = sizes.get(spec.storage, 0) + spec.size
    faults = _guest_faults(check.guest, seen, needed_pet(check), sizes)
    if not _has_node(check.guest, seen):
        return faults
    faults += _root_faults(check.guest, seen.cluster.guest(check.guest.vmid), protected=True)
    faults += _deletion_faults(check, seen.cluster)
    pet = seen.cluster.guest(check.guest.vmid)
    if pet is not None and pet.node != check.guest.node:
        return faults  # the volumes that were read are the other node's
    if pet is not None and _is_ours(check.guest, pet):
        # Of volumes that nobody could read it can't be said that they do not exist.
        for spec in check.volumes if seen.volumes is not None else ():
            faults += _refused(Subject.VOLUME, partial(_plan_of, pet, spec, seen))
    elif pet is None:
        if check.made and not seen.taken:
            rule = "is gone, and its volumes with it; it would be made again with new, empty ones"
            faults.append(Fault(Subject.LOST, str(check.guest.vmid), rule, "restore it from a backup"))
        faults += [
            Fault(Subject.VOLUME, spec.volid, "a pet that is to be made cannot have a volume yet", "remove volid")
            for spec in check.volumes
            if spec.volid is not None and not seen.taken
        ]
    return faults


def _deletion_faults(check: PetCheck, cluster: ClusterFacts) -> list[Fault]:
    """Why a volume can't be deleted: it is declared, or referred to."""
    pet = cluster.guest(check.guest.vmid)
    if pet is not None and not _is_ours(check.guest, pet):
        return []
    declared: dict[str | None, str] = {spec.existing: spec.name for spec in check.volumes}
    if pet is not None:
        declared |= {found[1].volume: spec.name for spec in check.volumes if (found := mount_of(pet, spec))}
    faults = []
    for spec in check.deletions:
        name = declared.get(spec.volid)
        if name is not None:
            rule = f"is the volume {name}: a declared volume is not deleted"
            faults.append(Fault(Subject.DELETION, spec.volid, rule, f"take out the volume {name}, or its deletion"))
            continue
        try:
            plan_volume_removal(pet, cluster, spec.vmid, spec.volid, spec.volid)
        except Refusal as refusal:
            rule = f"{refusal.what}: {refusal.why}"
            faults.append(Fault(Subject.DELETION, spec.volid, rule, refusal.remedy))
    return faults


def _plan_of(pet: GuestFacts, spec: VolumeSpec, seen: NodeFacts) -> object:
    found = mount_of(pet, spec)
    volid = found[1].volume if found else spec.existing
    return plan_volume(pet, (seen.volumes or {}).get(volid or ""), seen.cluster, spec)


def _is_there(check: PetCheck, spec: VolumeSpec, seen: NodeFacts) -> bool:
    pet = seen.cluster.guest(check.guest.vmid)
    return spec.existing is not None or (pet is not None and mount_of(pet, spec) is not None)


def cattle_faults(check: CattleCheck, seen: NodeFacts) -> list[Fault]:
    """All faults that stand in a cattle's way."""
    faults = _guest_faults(check.guest, seen, needed_cattle(check), {})
    if not _has_node(check.guest, seen):
        return faults
    faults += _root_faults(check.guest, seen.cluster.guest(check.guest.vmid), protected=False)
    if check.host is not None:
        faults += _host_faults(check, check.host, seen.cluster.guest(check.guest.vmid))
        faults += _host_storage_faults(check.host, seen.storages)
    if check.home is not None:
        faults += _home_faults(check, check.home, seen.cluster)
    spec = check.attach
    if spec is None:
        return faults
    guest = seen.cluster.guest(spec.vmid)
    usable = guest is not None and _is_ours(check.guest, guest)
    # One that is to be made, or is a stranger's, is judged as the empty and stopped container that create will leave.
    judged = guest if usable else GuestFacts(spec.vmid, spec.node)
    # Of volumes that nobody could read it can't be said that they do not exist.
    if seen.volumes is not None:
        volume = seen.volumes.get(spec.volid)
        # That of the root file system is judged already.
        elsewhere = storage_of(spec.volid) not in ("", check.guest.root_storage)
        lacking = _volume_storage_faults(spec, seen.storages) if elsewhere else []
        faults += lacking or _refused(Subject.VOLUME, lambda: plan_attach(judged, volume, seen.cluster, spec))
    if usable and guest is not None:
        faults += [
            Fault(
                Subject.VOLUME,
                spec.volid,
                f"{describe_holder(guest, reference)}; going back to that snapshot would set the data back with it",
                f"on node {guest.node}: {how_to_free(reference)}",
            )
            for reference in guest.references(spec.volid)
            if reference.where.startswith("snapshot ")
        ]
    return faults


def _host_faults(check: CattleCheck, spec: HostMountSpec, guest: GuestFacts | None) -> list[Fault]:
    """A container that is to be made is no fault: it is made first, and the commands are told then."""
    if guest is None or not _is_ours(check.guest, guest):
        return []
    try:
        commands = commands_to_paste(guest, spec)
    except Refusal as refusal:
        return [Fault(Subject.HOST_MOUNT, refusal.what, refusal.why, refusal.remedy)]
    if check.root_access or not commands:
        return []
    error = root_needed(spec, commands)
    return [Fault(" and ".join(roots_work(spec, commands)), error.what, error.why, error.remedy)]


def _home_faults(check: CattleCheck, home: str, cluster: ClusterFacts) -> list[Fault]:
    """Other guests that have the home's folder: two agents with one home ruin its databases (field reports H4)."""
    storage = storage_folder(home)
    everywhere = storage is not None and storage.name in cluster.shared_storages
    return [
        Fault(
            Subject.HOST_MOUNT,
            home,
            f"{describe_holder(guest, reference)}; two agents must not have one home",
            f"on node {guest.node}: {how_to_free(reference)}; or choose another folder",
        )
        for guest, reference in cluster.holders(home, besides=[check.guest.vmid])
        if (everywhere or guest.node == check.guest.node) and not reference.where.startswith("snapshot ")
    ]


def _host_storage_faults(spec: HostMountSpec, storages: Sequence[Storage]) -> list[Fault]:
    """Storages that a host mount lies on, by their folder below /mnt/pve, and that are not there: no need of root.

    Of one that the token may not see nothing is known.
    """
    sources = {folder.name: mount.source for mount in spec.mounts if (folder := storage_folder(mount.source))}
    return [
        Fault(
            Subject.HOST_MOUNT,
            sources[storage.name],
            f"storage {storage.name} is not active on node {spec.node}: the data would land on the node's own disk",
            "see why: pvesm status; or choose another source",
        )
        for storage in storages
        if storage.name in sources and storage.enabled and not storage.active
    ]


def _refused(key: str, plan: Callable[[], object]) -> list[Fault]:
    try:
        plan()
    except Refusal as refusal:
        return [Fault(key, refusal.what, refusal.why, refusal.remedy)]
    return []


def _is_ours(check: GuestCheck, guest: GuestFacts) -> bool:
    return check.ours or (check.claim is not None and is_claimed(guest, check.claim))


def _guest_faults(
    check: GuestCheck, seen: NodeFacts, rights: Sequence[Right], new_volumes: Mapping[str, int]
) -> list[Fault]:
    """Without the node that is declared, nothing else can be said of what would be on it."""
    guest = seen.cluster.guest(check.vmid)
    faults: list[Fault] = []
    if seen.version.major < OLDEST_MAJOR:
        rule = f"Proxmox VE {OLDEST_MAJOR} or newer is needed"
        faults.append(Fault("version", seen.version.version, rule, "upgrade the node"))
    if check.bridge and (seen.bridges or {}).get(check.bridge) == "vnet":
        # Its rights go by its zone, which Proxmox does not name; and it lists a vnet to those only who have them.
        rights = [right for right in rights if right != use_bridge(check.bridge)]
    lacking = {fault.key: fault for fault in faults_of_rights(rights, seen.permissions, seen.token_id)}
    unusable = node_fault(seen.nodes, check.node)
    node = [unusable] if unusable else []
    faults += _quorum_faults(seen)
    if not _has_node(check, seen):
        return [*faults, *lacking.values(), *node]
    faults += _vmid_faults(check, guest, seen.taken)
    if not node:
        sizes = dict(new_volumes)
        # One that is made anew on its own storage gets the room of the one that goes first.
        if guest is None or (check.remade and storage_of(guest.config.get("rootfs", "")) != check.root_storage):
            sizes[check.root_storage] = sizes.get(check.root_storage, 0) + int(check.root_gb * GIB)
        for name in dict.fromkeys([check.root_storage, *sizes]):
            subjects = [Subject.STORAGE] * (name == check.root_storage) + [Subject.VOLUME] * (name in new_volumes)
            key = " and ".join(subjects)
            storage = next((storage for storage in seen.storages if storage.name == name), None)
            if storage is None:
                # A mistyped name has no rights either: one fault, with both remedies.
                grant = lacking.pop(f"/storage/{name}", None)
                faults.append(_no_storage(key, name, check.node, seen.storages, grant))
            else:
                faults += _storage_faults(key, storage, sizes.get(name, 0), seen.storages)
        faults += _template_faults(check, guest, seen.templates)
        right = use_bridge(check.bridge or "").path
        listed = not seen.bridges or check.bridge in seen.bridges
        faults += _bridge_faults(check, seen.bridges, None if listed else lacking.pop(right, None))
    faults += _address_faults(check, seen)
    faults += _twin_faults(check, guest, seen.occupants)
    return [*lacking.values(), *node, *faults]


def _has_node(check: GuestCheck, seen: NodeFacts) -> bool:
    return any(node.name == check.node for node in seen.nodes)


def node_fault(nodes: Sequence[Node], name: str) -> Fault | None:
    """Why a node can't be worked on; None where it can."""
    try:
        prove_node(name, nodes)
    except NodeUnusable as refusal:
        return Fault(Subject.NODE, name, refusal.why, refusal.remedy)
    return None


def _quorum_faults(seen: NodeFacts) -> list[Fault]:
    if seen.quorate is not False:
        return []
    rule = "must have its quorum: without it Proxmox changes no guest and starts none, also one that it has stopped"
    return [Fault("the cluster", "", rule, "bring the other nodes back; see on a node: pvecm status")]


def quorum_warnings(nodes: Sequence[Node], quorate: bool | None) -> list[str]:
    """What has to be known where the token may not know whether there is a quorum, and half of the nodes are away.

    There may be one all the same: by a device that votes, by votes that are not one for each, or by a hand.
    """
    away = [node.name for node in nodes if node.offline]
    if quorate is not None or 2 * len(away) < len(nodes) or not away:
        return []
    told = (
        f"{len(away)} of {len(nodes)} nodes are offline ({', '.join(away)}). If the cluster has lost its quorum by that"
    )
    then = "Proxmox changes no guest and starts none, also one that this run has stopped for a change"
    return [f"{told}, {then}. See on a node: pvecm status"]


def node_warnings(nodes: Sequence[Node], name: str) -> list[str]:
    """What has to be known of the node that is asked for, and is no fault."""
    if not any(node.name == name and node.status == "unknown" for node in nodes):
        return []
    why = "it has just started, or its pvestatd hangs. That hinders nothing"
    remedy = f"on node {name}: systemctl restart pvestatd"
    return [f"Proxmox tells no statistics of node {name} (status unknown): {why}. If it stays so, {remedy}"]


def _vmid_faults(check: GuestCheck, guest: GuestFacts | None, taken: bool) -> list[Fault]:
    key, value = Subject.VMID, str(check.vmid)
    if guest is None:
        if not taken:
            return []
        rule = "is taken by a guest that the token may not see; VMIDs are unique in a cluster"
        return [Fault(key, value, rule, "choose another number, or grant VM.Audit on /vms to the token and its user")]
    if not _is_ours(check, guest) or guest.kind != "lxc":
        rule = f"must be free or this stack's own, and {describe_guest(guest)} has it without this stack's claim"
        remedy = "choose another number, or import the guest into the stack if it is yours"
        if check.claim is not None:
            remedy = f'if it is yours, add the line "claim: {check.claim}" to its notes; if not, choose another number'
        return [Fault(key, value, rule, remedy)]
    if guest.node != check.node:
        rule = f"must be on node {check.node}, and is on {guest.node}"
        return [Fault(key, value, rule, f"set the node to {guest.node}, or: pct migrate {check.vmid} {check.node}")]
    if guest.lock:
        rule = f"must not be locked ({guest.lock}): an operation is at work on it, or left its lock"
        return [Fault(key, value, rule, f"wait; if nothing runs, on node {guest.node}: pct unlock {check.vmid}")]
    return []


def _no_storage(key: str, name: str, node: str, seen: Sequence[Storage], grant: Fault | None) -> Fault:
    names = ", ".join(storage.name for storage in seen) or "none"
    rule = f"must exist on node {node} and be visible to the token, which sees: {names}"
    remedy = "correct the name" + (f"; if it is right, {grant.remedy}" if grant else "")
    return Fault(key, name, rule, remedy)


def _storage_faults(key: str, storage: Storage, size: int, seen: Sequence[Storage]) -> list[Fault]:
    name, faults = storage.name, []
    if not (storage.enabled and storage.active):
        rule = f"must be enabled and active, and is {'not active' if storage.enabled else 'disabled'}"
        faults.append(Fault(key, name, rule, f"on the node: pvesm set {name} --disable 0; pvesm status"))
    if "rootdir" not in storage.content:
        rule = f"must take container volumes (content rootdir), and takes {','.join(sorted(storage.content))}"
        contents = ",".join(sorted({*storage.content, "rootdir"}))
        remedy = f"on the node: pvesm set {name} --content {contents}"
        if storage.kind in NOT_FOR_CONTAINERS:
            rule = f"must take container volumes (content rootdir), and a storage of type {storage.kind} never does"
            remedy = f"choose another: {_for_containers(seen)}"
        faults.append(Fault(key, name, rule, remedy))
    thin = storage.kind in THIN
    needed = min(size, THIN_ROOM) if thin else size
    if storage.active and (storage.available < needed or (size > storage.total > 0)):
        room = f"{_about(storage.available)} of {_about(storage.total)} are free"
        faults.append(Fault(key, name, f"{format_size(size)} are asked for, and {room}", "free room, or ask for less"))
    return faults


def _about(size: int) -> str:
    """A size as people say it; a storage tells bytes."""
    return f"{size / GIB:.1f}".removesuffix(".0") + "G"


def _for_containers(seen: Sequence[Storage]) -> str:
    names = [storage.name for storage in seen if "rootdir" in storage.content and storage.enabled and storage.active]
    return ", ".join(names) or "there is none that the token may see"


def _volume_storage_faults(spec: AttachSpec, seen: Sequence[Storage]) -> list[Fault]:
    """The storage of a volume that is to be mounted: Proxmox asks for it at the start, or with the order."""
    name = storage_of(spec.volid)
    storage = next((storage for storage in seen if storage.name == name), None)
    if storage is not None:
        return _storage_faults(Subject.VOLUME, storage, 0, seen)
    names = ", ".join(storage.name for storage in seen) or "none"
    rule = f"its storage must exist on node {spec.node} and be visible to the token, which sees: {names}"
    return [Fault(Subject.VOLUME, spec.volid, rule, "set the node to one that has it, or grant the token the storage")]


def _template_faults(check: GuestCheck, guest: GuestFacts | None, templates: frozenset[str] | None) -> list[Fault]:
    there = guest is not None and not check.remade
    if there or not check.template or templates is None or check.template in templates:
        return []
    storage, _, name = check.template.partition(":vztmpl/")
    rule = f"must be on the storage; there: {', '.join(sorted(templates)) or 'none'}"
    remedy = f"on the node: pveam update; pveam download {storage} {name}"
    return [
        Fault(Subject.TEMPLATE, check.template, rule, f"name one that is there, or {remedy}" if templates else remedy)
    ]


def _root_faults(check: GuestCheck, guest: GuestFacts | None, *, protected: bool) -> list[Fault]:
    """A root file system grows in place and never shrinks (facts proxmox 9, resize).

    The plugin sends a changed size by resize and again as an option of rootfs, which a protected guest refuses.
    """
    root = guest.config.get("rootfs", "") if guest is not None and _is_ours(check, guest) else ""
    size = MountPoint.parse(f"{root},mp=/").size if root else None
    if size is None or parse_size(size) == check.root_gb * GIB:
        return []
    if parse_size(size) > check.root_gb * GIB:
        rule = f"can't be made smaller: CT {check.vmid} has a root file system of {size}"
        return [
            Fault(
                Subject.DISK,
                f"{check.root_gb:g}G",
                rule,
                "raise it to that size" + ("" if protected else ", or have the guest made again"),
            )
        ]
    if protected:
        rule = f"CT {check.vmid} has a root file system of {size}, which the plugin can't grow while it is protected"
        remedy = f"on node {check.node}: pct resize {check.vmid} rootfs {check.root_gb:g}G; then run this again"
        return [Fault(Subject.DISK, f"{check.root_gb:g}G", rule, remedy)]
    return []


def _bridge_faults(check: GuestCheck, bridges: Collection[str] | None, grant: Fault | None) -> list[Fault]:
    # An empty list says that the token may see none, not that there is none.
    if not check.bridge or not bridges or check.bridge in bridges:
        return []
    rule = (
        f"must be a bridge of node {check.node}, or a vnet, and one for the token to use: {', '.join(sorted(bridges))}"
    )
    remedy = "correct it in the settings"
    if grant is not None:
        remedy += f"; or grant it, for a vnet with its zone in place of localnetwork: {grant.remedy}"
    return [Fault(Subject.BRIDGE, check.bridge, rule, remedy)]


def _address_faults(check: GuestCheck, seen: NodeFacts) -> list[Fault]:
    """Whatever machine has the address and takes the SSH key, it would be provisioned in the container's place."""
    declared = ((Subject.ADDRESS, check.address), (Subject.ADDRESS6, check.address6))
    return [
        fault
        for subject, value in declared
        if value and "/" in value
        for fault in _taken_faults(check, seen, subject, value)
    ]


def _taken_faults(check: GuestCheck, seen: NodeFacts, subject: Subject, value: str) -> list[Fault]:
    wanted = plain_address(value)
    # A template never runs.
    others = [guest for guest in seen.cluster.guests if guest.vmid != check.vmid and not guest.template]
    found = seen.occupants
    declared = [guest for guest in others if wanted in static_addresses(guest.config)]
    leased = [guest for guest in others if guest not in declared and wanted in found.leases.get(guest.vmid, ())]
    rules = [
        *(f"must be free, and {describe_guest(guest)} has it" for guest in declared),
        *(f"must be free, and {describe_guest(guest)}, which runs, has it now" for guest in leased),
    ]
    if wanted in found.endpoint:
        rules.append("must be free, and is the address at which Proxmox itself is asked")
    if not rules and found.answer and subject is Subject.ADDRESS:
        rules.append(f"must be free, and the machine that has it {found.answer}")
    return [Fault(subject, value, rule, "choose another") for rule in rules]


def fixed_address(check: GuestCheck) -> str | None:
    """The IPv4 address without its prefix; None where it is not fixed."""
    return plain_address(check.address) if check.address and "/" in check.address else None


def _twin_faults(check: GuestCheck, guest: GuestFacts | None, occupants: Occupants) -> list[Fault]:
    """Copies of the container that run: they have its host key and its address, too, and either may answer."""
    if guest is None or not _is_ours(check, guest):
        return []
    return [
        Fault(
            Subject.VMID,
            str(check.vmid),
            f"{describe_guest(twin)} runs with the same hardware address: a copy, as a restored backup is",
            f"stop it; or give it a card of its own: {set_with} {twin.vmid} --net0 ..., without the address",
        )
        for twin in occupants.twins
        for set_with in ("pct set" if twin.kind == "lxc" else "qm set",)
    ]


def static_addresses(config: Mapping[str, str]) -> frozenset[str]:
    """The addresses that a guest's configuration gives to it: net0's ip and ip6, a virtual machine's ipconfig0."""
    return frozenset(
        plain_address(value)
        for key, text in config.items()
        if key.startswith(("net", "ipconfig"))
        for name, _, value in (part.partition("=") for part in text.split(","))
        if name in ("ip", "ip6") and value not in ("dhcp", "manual", "auto")
    )


def cards_of(config: Mapping[str, str]) -> frozenset[str]:
    """The hardware addresses that a guest's configuration gives to it: a container's hwaddr, a VM's virtio=..."""
    return frozenset(
        found.lower()
        for key, text in config.items()
        if re.fullmatch(r"net\d+", key)
        for found in re.findall(r"\b[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}\b", text)
    )


# Reading.


Warn = Callable[[Iterable[str]], object]
"""Takes what has to be known and is no fault."""


def preflight_pet(
    client: Proxmox,
    check: PetCheck,
    others: Callable[[], Collection[Fault]] = tuple,
    *,
    warn: Warn = tuple,
    reached: Callable[[], object] = tuple,
) -> list[Fault]:
    """All faults that stand in the pet's way. Reads only; raises nothing: what cannot be read is a fault.

    ``others``: asked for more of them once the API has answered; without an answer they would say the same again.
    ``reached``: called once the node is known to answer, before most is asked.
    """
    storages, owner = [spec.storage for spec in check.volumes], check.guest.vmid

    def judge(seen: NodeFacts) -> list[Fault]:
        return pet_faults(check, seen)

    return _preflight(client, check.guest, storages, owner, judge=judge, others=others, warn=warn, reached=reached)


def preflight_cattle(
    client: Proxmox,
    check: CattleCheck,
    others: Callable[[], Collection[Fault]] = tuple,
    answer: Callable[[str], str | None] = answer_of,
    *,
    warn: Warn = tuple,
    reached: Callable[[], object] = tuple,
) -> list[Fault]:
    """All faults that stand in a cattle's way, as with `preflight_pet`.

    ``answer``: how a machine that has an address shows itself, None where there is none.
    """
    spec = check.attach
    storages = [storage_of(spec.volid)] if spec is not None else []
    owner = spec.owner if spec is not None else check.guest.vmid

    def judge(seen: NodeFacts) -> list[Fault]:
        host = check.host
        if host is None or seen.cluster.guest(host.vmid) is None:
            return cattle_faults(check, seen)
        try:
            return cattle_faults(replace(check, host=with_ids(client, host)), seen)
        except ProxmoxError as error:
            return [_unread(Subject.HOST_MOUNT, error), *cattle_faults(check, seen)]

    return _preflight(
        client, check.guest, storages, owner, judge=judge, others=others, warn=warn, reached=reached, answer=answer
    )


def _preflight(
    client: Proxmox,
    guest: GuestCheck,
    storages: Sequence[str],
    owner: int,
    *,
    judge: Callable[[NodeFacts], list[Fault]],
    others: Callable[[], Collection[Fault]],
    warn: Warn,
    reached: Callable[[], object],
    answer: Callable[[str], str | None] = answer_of,
) -> list[Fault]:
    try:
        version = client.version()
    except ProxmoxError as error:
        return [_no_way(client.connection, error)]
    unread = [*others()]

    def read(key: str, what: Callable[[], T]) -> T | None:
        try:
            return what()
        except ProxmoxError as error:
            unread.append(_unread(key, error))
            return None

    nodes = read("nodes", client.nodes) or ()
    permissions = read("permissions", client.permissions)
    in_cluster = len(nodes) > 1 and permissions is not None and "Sys.Audit" in permissions.at("/")
    quorate = read("cluster", client.quorate) if in_cluster else None
    warn([*node_warnings(nodes, guest.node), *quorum_warnings(nodes, quorate)])
    seen = NodeFacts(version, nodes, permissions or Permissions({}), client.connection.token_id, quorate=quorate)
    around: Around | None = None
    if not _has_node(guest, seen):
        return unread + judge(seen)
    if node_fault(nodes, guest.node) and permissions is not None:
        around = Around(nodes, (), permissions)
    if any(node.name == guest.node and not node.offline for node in nodes):
        if guest.node == client.connection.node:
            reached()
        listed = read("storages", lambda: client.storages(guest.node)) or ()
        if listed and permissions is not None and guest.node == client.connection.node:
            around = Around(nodes, listed, permissions)
        names = {storage.name for storage in listed}
        volumes: dict[str, VolumeFacts] = {}
        for name in dict.fromkeys(storages):
            if name in names:
                rows = read(f"storage {name}", partial(client.storage_content, guest.node, name, vmid=owner)) or ()
                volumes |= {row.volid: VolumeFacts(row.volid, row.size, row.format) for row in rows}
        seen = replace(
            seen,
            storages=listed,
            volumes=volumes,
            templates=read("template", lambda: _templates(client, guest, names)),
            bridges=read("bridge", lambda: client.networks(guest.node)) if guest.bridge else None,
        )
    cluster = read("guests", lambda: read_cluster(client, owner, power_of=[guest.vmid, owner], around=around))
    if cluster is None:
        return unread + judge(seen)
    taken = read("vmid", lambda: client.vmid_taken(guest.vmid)) or False
    occupants = read("guests", lambda: _occupants(client, guest, cluster, answer)) or Occupants()
    return unread + judge(replace(seen, cluster=cluster, taken=taken, occupants=occupants))


def _occupants(
    client: Proxmox, check: GuestCheck, cluster: ClusterFacts, answer: Callable[[str], str | None]
) -> Occupants:
    """Who has the card of the guest that is there, and the address of one that is not there yet."""
    own = cluster.guest(check.vmid)
    cards = cards_of(own.config) if own is not None else frozenset[str]()
    same = [guest for guest in cluster.guests if guest.vmid != check.vmid and cards & cards_of(guest.config)]
    twins = tuple(twin for twin in same if client.guest_status(twin.node, twin.vmid, twin.kind).running)
    wanted = fixed_address(check)
    if wanted is None or (own is not None and own.running and _has(client, own, wanted)):
        return Occupants(twins=twins)
    others = [
        guest for guest in cluster.guests if guest.kind == "lxc" and guest.vmid != check.vmid and cards_of(guest.config)
    ]
    leases = dict(side_by_side(lambda guest: (guest.vmid, _leases(client, guest)), others))
    return Occupants(resolved(client.connection.host), leases, answer(wanted), twins)


def _has(client: Proxmox, guest: GuestFacts, address: str) -> bool:
    return address in static_addresses(guest.config) or address in _leases(client, guest)


def _leases(client: Proxmox, guest: GuestFacts) -> frozenset[str]:
    """The addresses on a container's cards; none of one that is stopped, gone, or does not tell."""
    try:
        interfaces = client.interfaces(guest.node, guest.vmid)
    except ApiError:
        return frozenset()
    return frozenset(address.address for interface in interfaces for address in interface.addresses)


def _no_way(connection: Connection, error: ProxmoxError) -> Fault:
    """Why the API can't be asked at all, with the setting that decides it."""
    key, value = "endpoint", connection.endpoint
    if isinstance(error, AuthenticationFailed):
        key, value = "apiToken", connection.token_id
    elif isinstance(error, TlsUntrusted):
        key, value = (
            ("fingerprint", connection.fingerprint) if connection.fingerprint else ("caFile", connection.ca_file or "")
        )
    return Fault(connection.names[key], value, f"{error.what}: {error.why}", error.remedy)


def _unread(key: str, error: ProxmoxError) -> Fault:
    return Fault(key, error.what, error.why or "it has to be readable", error.remedy or "see the node's log")


def _templates(client: Proxmox, guest: GuestCheck, storages: Collection[str]) -> frozenset[str] | None:
    if not guest.template or storage_of(guest.template) not in storages:
        return None
    rows = client.storage_content(guest.node, storage_of(guest.template), content="vztmpl")
    return frozenset(row.volid for row in rows)
