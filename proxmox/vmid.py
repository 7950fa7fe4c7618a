"""Is a VMID ours to use? Asked before every create, since the provider plugin would not ask.

The plugin takes a guest that is already there for the success of its own create (facts proxmox 15, HAZARD).
"""

from __future__ import annotations

import tenacity

from proxmox.client import Guest, Proxmox
from proxmox.errors import GuestElsewhere, GuestLocked, LeftBehind, NoSuchGuest, NotOurs, PermissionDenied, Subject
from proxmox.facts import locate
from proxmox.ownership import parse_claim

MAKING_SECONDS = 120.0
LOOK_SECONDS = 1.0


def prove_vmid_usable(client: Proxmox, vmid: int, *, node: str, claim: str | None, planning: bool) -> None:
    """Return when a guest with that VMID may be created on the node now, or is there and ours to take over.

    NotOurs, GuestElsewhere when not. Reads only.
    claim: the mark that this stack writes into its guests' notes; None when it has none yet.
    planning: True in preview, where a guest of ours is still there when it is about to be replaced.
    """
    if not client.vmid_taken(vmid):
        return
    guest = next((guest for guest in client.guests() if guest.vmid == vmid), None)
    found = _claim_of(client, guest)
    if guest is not None and claim is not None and found == claim:
        _refuse_elsewhere(guest, node)
        if not planning:
            _wait_until_made(client, guest)
        return
    raise NotOurs(
        f"{_named(vmid, guest)} exists already and is not this stack's.",
        "VMIDs are unique in a cluster; going on would take the guest over, and a later destroy would delete it",
        f"choose another VMID, or remove the guest yourself: pct destroy {vmid}, on its node",
        Subject.STRANGER,
    )


def prove_still_ours(client: Proxmox, vmid: int, claim: str | None, node: str | None) -> None:
    """Return when the guest with that VMID carries the claim and is on the node, or is gone from the whole cluster.

    NotOurs, GuestElsewhere when not; GuestMissing when the token may not see it. Reads only. Somebody may have removed
    our guest and given its number to one of his own, which the engine would then change or delete in our name. The
    plugin looks on one node only: a guest that was moved counts as gone there, and would be left behind. A state of
    before claim or node were kept has none to compare.
    """
    guest = locate(client, vmid)
    if guest is None:
        return
    if claim is None or _claim_of(client, guest) == claim:
        _refuse_elsewhere(guest, node)
        return
    raise NotOurs(
        f"{_named(vmid, guest)} does not carry this stack's claim any more.",
        "another guest has been made with the number of ours, or its notes were edited; it is left as it is",
        f'if it is ours, add the line "claim: {claim}" to its notes; if not, let the state forget ours',
        Subject.SUCCESSOR,
    )


def prove_none_left(client: Proxmox, vmid: int, claim: str) -> None:
    """Return when no guest carries the claim, which is about to be forgotten; LeftBehind when one does. Reads only.

    Last of all in a destroy. A container that the state has lost (moved to another node and back, say) is one that the
    engine does not delete.
    """
    guest = locate(client, vmid)
    if _claim_of(client, guest) == claim:
        raise LeftBehind(
            f"{_named(vmid, guest)} is still there, and this stack's.",
            "the state did not know it any more, so it was not deleted: it was moved to another node and back, or the "
            "state was edited",
            "have the state know it again, then destroy it",
        )


def _refuse_elsewhere(guest: Guest, node: str | None) -> None:
    if node is None or guest.node == node:
        return
    raise GuestElsewhere(
        f"CT {guest.vmid} is on node {guest.node}, not on {node}",
        f"it was moved since this stack made it; a run would take it for gone, and leave it behind on {guest.node}",
        f"move it back, on node {guest.node}: pct migrate {guest.vmid} {node} --restart. "
        f"Or, if it is to go, there: pct stop {guest.vmid}; pct destroy {guest.vmid}",
        Subject.MOVED,
    )


def _wait_until_made(client: Proxmox, guest: Guest) -> None:
    """A run was ended while our guest was being made: wait until it is whole, and let the plugin take it over.

    A creation that fails leaves no guest, one whose worker died leaves a lock that only root can remove
    (facts proxmox 2.3). Raises GuestLocked for the latter.
    """
    look = tenacity.Retrying(
        stop=tenacity.stop_after_delay(MAKING_SECONDS),
        wait=tenacity.wait_fixed(LOOK_SECONDS),
        retry=tenacity.retry_if_result(lambda lock: lock is not None),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    try:
        lock: str | None = look(lambda: client.guest_status(guest.node, guest.vmid).lock)
    except NoSuchGuest:
        return
    if lock is not None:
        raise GuestLocked(
            f"CT {guest.vmid} on node {guest.node} was left half made by an earlier run: it is locked ({lock}).",
            f"its creation has not ended for {MAKING_SECONDS:.0f} seconds; nothing of the pet's is in it yet",
            f"if no task works on it any more, on node {guest.node}: "
            f"pct unlock {guest.vmid} && pct destroy {guest.vmid}",
            Subject.HALF_MADE,
        )


def _claim_of(client: Proxmox, guest: Guest | None) -> str | None:
    if guest is None or guest.kind != "lxc":
        return None
    try:
        return parse_claim(client.guest_config(guest.node, guest.vmid).get("description", ""))
    except (NoSuchGuest, PermissionDenied):
        return None


def _named(vmid: int, guest: Guest | None) -> str:
    if guest is None:
        return f"A guest with VMID {vmid}, which the token may not see,"
    kind = "CT" if guest.kind == "lxc" else "VM"
    name = f" ({guest.name})" if guest.name else ""
    return f"{kind} {vmid}{name} on node {guest.node}"
