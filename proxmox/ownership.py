"""By what a guest is proved to be ours, and how a holder of a volume is named.

A guest's description ("Notes" in the web interface) carries a text for people and one line `claim: <uuid>`. The uuid
is made once per resource and kept in the stack's state: a guest that carries it was made by this stack, also when the
run that made it was killed before it could write that down.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxmox.facts import GuestFacts, Reference

CLAIM = re.compile(r"^[ \t]*claim:[ \t]*(?P<claim>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[ \t\r]*$", re.MULTILINE)


def render_notes(text: str, claim: str) -> str:
    """A description: `text`, an empty line, the claim. ValueError when `claim` is not a uuid in lower case."""
    mark = f"claim: {claim}"
    if CLAIM.fullmatch(mark) is None:
        raise ValueError(f"{claim!r} is not a uuid in lower case")
    if CLAIM.search(text):
        raise ValueError("the text for people has a claim line of its own")
    return f"{text.strip()}\n\n{mark}\n" if text.strip() else f"{mark}\n"


def parse_claim(description: str) -> str | None:
    """The claim in a description; None when there is none, or more than one: then it proves nothing."""
    found = {match["claim"] for match in CLAIM.finditer(description)}
    return found.pop() if len(found) == 1 else None


def is_claimed(guest: GuestFacts, claim: str) -> bool:
    """Whether the guest carries this claim."""
    return parse_claim(guest.config.get("description", "")) == claim


def describe_guest(guest: GuestFacts) -> str:
    """ "CT 105 'hermes' on node pve (running)"."""
    kind = "CT" if guest.kind == "lxc" else "VM"
    name = f" '{guest.name}'" if guest.name else ""
    power = "" if guest.running is None else " (running)" if guest.running else " (stopped)"
    return f"{kind} {guest.vmid}{name} on node {guest.node}{power}"


def describe_holder(guest: GuestFacts, reference: Reference) -> str:
    """ "CT 106 'other' on node pve (running) names it in mp0 at /data"."""
    place = reference.key if reference.where == "config" else f"{reference.where}, {reference.key}"
    path = f" at {reference.path}" if reference.path else ""
    source = f" as {reference.source}" if reference.source else ""
    return f"{describe_guest(guest)} names it in {place}{path}{source}"


def how_to_free(reference: Reference) -> str:
    """The command that takes the reference away, to run on the node of the guest."""
    tool = "pct" if reference.kind == "lxc" else "qm"
    if reference.where.startswith("snapshot "):
        return f"{tool} delsnapshot {reference.vmid} {reference.where.removeprefix('snapshot ')}"
    if reference.key.startswith("lxc."):
        file = f"/etc/pve/lxc/{reference.vmid}.conf"
        return f"{tool} shutdown {reference.vmid}, then take the line {reference.key} out of {file}"
    command = f"{tool} set {reference.vmid} --delete {reference.key}"
    if reference.key.startswith("unused"):
        return command
    if reference.where == "pending":
        return f"{tool} shutdown {reference.vmid}   (applies what is pending), then {command}"
    return f"{tool} shutdown {reference.vmid}, then {command}, then remove the unused entry that this leaves"
