"""Golden templates: what there is of them, what is to be made and what may go, and a container that is cloned from one.

A template carries its stack's claim, like any guest, and a line with its number and the digest over all that went into
it. Notes on a guest that is no template yet mean that a run was cut off while it made one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from proxmox.client import Proxmox
from proxmox.errors import NoSuchGuest, Refusal, Subject, TemplateInUse, TemplateMissing
from proxmox.execution import Report, silent
from proxmox.facts import ClusterFacts, GuestFacts, read_cluster
from proxmox.mountpoint import format_size, parse_size, storage_of
from proxmox.network import CARD, NetworkSpec, card_of, card_text
from proxmox.ownership import is_claimed, render_notes
from proxmox.planning import GIB
from proxmox.spec import Spec

T = TypeVar("T")
_LINE = re.compile(r"^golden template (?P<number>\d+): (?P<digest>[0-9a-f]{64})[ \t\r]*$", re.MULTILINE)
_BASE = re.compile(r"(?:^|[:/=])base(?:vol)?-(?P<vmid>\d+)-[^/,\s]+/")
NUMBERS = 1000
"""So many VMIDs from the lowest one are looked at for a free one."""


@dataclass(frozen=True)
class ImageSpec(Spec):
    """A golden template that is to be there. first: the lowest VMID; kept: how many older ones stay beside it."""

    node: str
    digest: str
    first: int
    kept: int


@dataclass(frozen=True)
class Golden:
    """A golden template that is there, or was begun. number: counts a stack's templates."""

    vmid: int
    node: str
    number: int
    digest: str
    finished: bool


@dataclass(frozen=True)
class ImagePlan:
    """What has to be done.

    current: the template that is as declared, or None: one has to be made, with the next `number`. discard: what an
    earlier run has begun; prune: older templates that go; held: older ones that would go, with the guests whose disks
    depend on them.
    """

    current: Golden | None
    number: int
    discard: tuple[Golden, ...] = ()
    prune: tuple[Golden, ...] = ()
    held: tuple[tuple[Golden, tuple[int, ...]], ...] = ()

    def describe(self, spec: ImageSpec) -> list[str]:
        """One line for each thing that is done, for preview and progress."""
        lines = [f"golden template: destroys CT {one.vmid}, which an earlier run has begun" for one in self.discard]
        if self.current is None:
            lines.append(f"golden template: makes number {self.number} ({spec.digest[:12]}) on node {spec.node}")
        lines += [f"golden template: destroys CT {one.vmid}, number {one.number}" for one in self.prune]
        lines += [
            f"golden template: keeps CT {one.vmid}, number {one.number}: disks of {_listed(users)} depend on it"
            for one, users in self.held
        ]
        return lines


def golden_notes(text: str, number: int, digest: str, claim: str) -> str:
    """The notes of a golden template."""
    return render_notes(f"{text.strip()}\n\ngolden template {number}: {digest}", claim)


def golden_of(guest: GuestFacts) -> Golden | None:
    """What a guest's notes say; None where it is no golden template."""
    found = _LINE.search(guest.config.get("description", ""))
    if found is None or guest.kind != "lxc":
        return None
    return Golden(guest.vmid, guest.node, int(found["number"]), found["digest"], guest.template)


def goldens(cluster: ClusterFacts, claim: str) -> tuple[Golden, ...]:
    """A stack's golden templates, the newest first."""
    found = (golden_of(guest) for guest in cluster.guests if is_claimed(guest, claim))
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.number, reverse=True))


def bases_in(guest: GuestFacts) -> frozenset[int]:
    """The templates that the guest's disks depend on: a linked clone's volume names its base, on ZFS, Ceph and others.

    One on LVM-thin names none, and needs none: its base may go (facts proxmox-9.2; pve-storage, volume_is_base_and_used
    is asked of the names alone).
    """
    layers = [guest.config, *guest.snapshots.values()]
    texts = [value for layer in layers for key, value in layer.items() if key != "description"]
    texts += [value for value in guest.pending.values() if value is not None]
    parts = [part for text in texts for part in text.split(",") if not part.startswith("mp=")]
    return frozenset(int(found["vmid"]) for part in parts for found in _BASE.finditer(part)) - {guest.vmid}


def users_of(cluster: ClusterFacts, vmid: int) -> tuple[int, ...]:
    """The guests whose disks depend on a template's."""
    return tuple(sorted(guest.vmid for guest in cluster.guests if vmid in bases_in(guest)))


def plan_image(cluster: ClusterFacts, spec: ImageSpec, claim: str) -> ImagePlan:
    """Have a template with the declared digest, and no more older ones than are wanted."""
    ours = goldens(cluster, claim)
    finished = [one for one in ours if one.finished]
    current = next((one for one in finished if one.digest == spec.digest and one.node == spec.node), None)
    older = [one for one in finished if one is not current]
    users = {one: users_of(cluster, one.vmid) for one in older[spec.kept :]}
    number = current.number if current is not None else max((one.number for one in ours), default=0) + 1
    return ImagePlan(
        current,
        number,
        tuple(one for one in ours if not one.finished),
        tuple(one for one, found in users.items() if not found),
        tuple((one, found) for one, found in users.items() if found),
    )


def ensure_image(
    client: Proxmox,
    spec: ImageSpec,
    claim: str,
    bake: Callable[[int, Callable[[str], str]], T],
    report: Report = silent,
) -> tuple[Golden, T | None]:
    """Have the template. Safe to repeat: what an earlier run has begun is destroyed, and made from nothing.

    `bake`: makes a container of that number, prepares it and leaves it stopped; its second argument makes the notes of
    a text for people. What it answers is answered, None where the template was there. Older ones go last: where making
    one fails, nothing is lost.
    """
    plan = plan_image(read_cluster(client), spec, claim)
    for one in plan.discard:
        report(f"golden template: destroying CT {one.vmid}, which an earlier run has begun")
        if client.guest_status(one.node, one.vmid).running:
            client.stop(one.node, one.vmid)
        client.destroy(one.node, one.vmid)
    made = None
    current = plan.current
    if current is None:
        vmid = free_number(client, spec.first)
        report(f"golden template: making number {plan.number} ({spec.digest[:12]}) as CT {vmid}")
        made = bake(vmid, lambda text: golden_notes(text, plan.number, spec.digest, claim))
        client.make_template(spec.node, vmid)
        current = Golden(vmid, spec.node, plan.number, spec.digest, finished=True)
        report(f"golden template: CT {vmid} is one")
    # Read again: one that was not in use a minute ago may be by now. What Proxmox then still refuses, it refuses.
    later = plan_image(read_cluster(client), spec, claim)
    for one in later.prune:
        report(f"golden template: destroying CT {one.vmid}, number {one.number}")
        client.destroy(one.node, one.vmid)
    for one, users in later.held:
        report(f"golden template: CT {one.vmid}, number {one.number}, stays: disks of {_listed(users)} depend on it")
    return current, made


def free_number(client: Proxmox, first: int) -> int:
    """The lowest VMID from `first` on that no guest of the cluster has."""
    known = {guest.vmid for guest in client.guests()}
    for vmid in range(first, first + NUMBERS):
        if vmid not in known and not client.vmid_taken(vmid):
            return vmid
    raise Refusal(
        f"No VMID from {first} to {first + NUMBERS - 1} is free",
        "a golden template needs a number of its own",
        "choose another lowest number",
        Subject.VMID,
    )


def remove_images(client: Proxmox, claim: str, report: Report = silent) -> None:
    """Destroy all golden templates of a stack; none while a guest's disk depends on one. Raises TemplateInUse."""
    cluster = read_cluster(client)
    ours = goldens(cluster, claim)
    users = {one.vmid: found for one in ours if (found := users_of(cluster, one.vmid))}
    if users:
        told = "; ".join(f"on CT {vmid}: {_listed(found)}" for vmid, found in users.items())
        raise TemplateInUse(
            "The golden templates are not destroyed",
            f"disks of other guests are linked clones, which depend {told}",
            "destroy those guests first; or give them disks of their own, on the node: "
            "pct move-volume NUMBER rootfs STORAGE, to another storage",
        )
    for one in ours:
        report(f"golden template: destroying CT {one.vmid}, number {one.number}")
        if not one.finished and client.guest_status(one.node, one.vmid).running:
            client.stop(one.node, one.vmid)
        client.destroy(one.node, one.vmid)


def _listed(vmids: tuple[int, ...]) -> str:
    return ", ".join(f"guest {vmid}" for vmid in vmids)


# A container that is cloned from one.


@dataclass(frozen=True)
class CloneSpec:
    """A container as it is to be once it is cloned. options: by Proxmox's names, without the card; root_gb in GiB."""

    source: int
    vmid: int
    node: str
    storage: str
    root_gb: float
    options: Mapping[str, str]
    card: NetworkSpec | None = None


OWN = frozenset({"nameserver", "searchdomain", "onboot", "protection", "tags", "features"})
"""Options that a clone takes over from its template, and that go where they are not declared."""


def clone_changes(spec: CloneSpec, config: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What to set and what to delete, so that a clone is as declared; its card keeps the address that it was given."""
    wanted = dict(spec.options)
    if spec.card is not None:
        own = spec.card.hardware_address or card_of(config).get("hwaddr")
        card = card_text(replace(spec.card, hardware_address=own), {})
        if card_of({CARD: card}) != {name: value for name, value in card_of(config).items() if name != "type"}:
            wanted[CARD] = card
    changed = {key: value for key, value in wanted.items() if config.get(key, "").strip() != value.strip()}
    return changed, tuple(sorted(OWN & config.keys() - wanted.keys()))


def prove_golden(client: Proxmox, node: str, vmid: int) -> Mapping[str, str]:
    """The configuration of a golden template; TemplateMissing where there is none. Reads only."""
    try:
        config = client.guest_config(node, vmid)
    except NoSuchGuest:
        config = {}
    if config.get("template") != "1":
        raise TemplateMissing(
            f"CT {vmid} on node {node} is no template",
            "a golden template of that number was made, and it is gone",
            "make it again, or make the container without one",
            Subject.GOLDEN,
        )
    return config


def clone_golden(client: Proxmox, spec: CloneSpec, notes: str, report: Report = silent) -> None:
    """Have the container, stopped, as it is declared. Safe to repeat: one that carries the notes is gone on with."""
    source = prove_golden(client, spec.node, spec.source)
    with client.guard(spec.vmid):
        if not client.vmid_taken(spec.vmid):
            here = storage_of(source["rootfs"].split(",")[0]) == spec.storage
            linked = here and client.has_feature(spec.node, spec.source, "clone")
            report(f"CT {spec.vmid}: {'linked' if linked else 'full'} clone of CT {spec.source}")
            hostname = spec.options["hostname"]
            storage = None if linked else spec.storage
            client.clone(spec.node, spec.source, spec.vmid, hostname=hostname, notes=notes, storage=storage)
        config = client.guest_config(spec.node, spec.vmid)
        options, delete = clone_changes(spec, config)
        if options or delete:

            def done() -> bool:
                return clone_changes(spec, client.guest_config(spec.node, spec.vmid)) == ({}, ())

            client.set_config(spec.node, spec.vmid, options, delete, done=done)
        size = next((part[5:] for part in config["rootfs"].split(",") if part.startswith("size=")), "0")
        if parse_size(size) < spec.root_gb * GIB:
            report(f"CT {spec.vmid}: root file system from {size} to {format_size(int(spec.root_gb * GIB))}")
            client.resize(spec.node, spec.vmid, "rootfs", int(spec.root_gb * GIB))
