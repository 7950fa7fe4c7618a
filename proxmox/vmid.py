"""Is a VMID ours to use? Asked before every create, since the provider plugin would not ask.

The plugin takes a guest that is already there for the success of its own create (facts proxmox 15, HAZARD).
"""

from __future__ import annotations

from proxmox.client import Guest, Proxmox
from proxmox.errors import NoSuchGuest, NotOurs, PermissionDenied
from proxmox.ownership import parse_claim


def prove_vmid_usable(client: Proxmox, vmid: int, *, claim: str | None, planning: bool) -> None:
    """Return when a guest with that VMID may be created now; raise NotOurs when not. Reads only.

    claim: the mark that this stack writes into its guests' notes; None when it has none yet.
    planning: True in preview, where a guest of ours is still there when it is about to be replaced.
    """
    if not client.vmid_taken(vmid):
        return
    guest = next((guest for guest in client.guests() if guest.vmid == vmid), None)
    found = _claim_of(client, guest)
    if claim is not None and found == claim:
        if planning:
            return
        raise NotOurs(
            f"{_named(vmid, guest)} was made by this stack, but the stack's state does not know it.",
            "a run was ended between the creation of the guest and the writing of the state",
            f"look at it, and when nothing in it is wanted: pct stop {vmid}; pct set {vmid} --delete mp0; "
            f"pct destroy {vmid}; then run pulumi up again. Volumes of the pet are not freed by that.",
        )
    raise NotOurs(
        f"{_named(vmid, guest)} exists already and is not this stack's.",
        "VMIDs are unique in a cluster; going on would take the guest over, and a later destroy would delete it",
        f"set another VMID, or remove the guest yourself (pct destroy {vmid} on its node), "
        'or import it if it is this stack\'s: README, "Take over a guest"',
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
