"""The SSH host keys that Proxmox made for a container, from the log of the task that created it.

Proxmox makes them before the first start (PVE::LXC::Setup, rewrite_ssh_host_keys) and prints a line for each:
`done: SHA256:... root@HOSTNAME`. Told over the API's verified TLS, so nobody on the guest's network can put another key
in the place of one.

A clone of a golden template makes its key itself, at its first boot, and no log tells it. It shows the key's SHA-256
in three addresses of its loopback (provisioning/scripts/host-key.sh), which only its root can set. Proxmox reads them
in the container's own network (PVE::LXC, get_interfaces) and tells them over the same TLS.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable

from proxmox.client import Interface, PastTask, Proxmox

_DONE = re.compile(r"done: (SHA256:[A-Za-z0-9+/]{43})\s+root@\S+")
_CREATE = "vzcreate"
_KINDS = (_CREATE, "vzrestore", "vzdestroy")


def fingerprints(log: Iterable[str]) -> frozenset[str]:
    """The keys that the lines of a log tell, as `SHA256:` and base64; empty where they tell none."""
    return frozenset(match.group(1) for line in log if (match := _DONE.fullmatch(line.strip())))


def birth(tasks: Iterable[PastTask]) -> PastTask | None:
    """The task that made the container that is there now; None when what is known ends otherwise.

    A container that was restored, or made by somebody whose tasks the token may not see, has keys of another origin:
    the creation of the one that had the number before says nothing of it.
    """
    done = sorted((task for task in tasks if task.ok), key=lambda task: task.began)
    return done[-1] if done and done[-1].kind == _CREATE else None


def made_host_keys(client: Proxmox, node: str, vmid: int) -> frozenset[str]:
    """The fingerprints of the container's host keys; empty where no log that the token may read tells them.

    A token sees the tasks that it started itself, without a right of its own (facts proxmox 13).
    """
    task = birth(task for kind in _KINDS for task in client.guest_tasks(node, vmid, kind))
    return frozenset() if task is None else fingerprints(client.task_lines(task.upid))


MARK = b"hp-hostkey"
"""What follows the 32 bytes of the digest."""
_PARTS = (1, 2, 3)


def shown_host_key(interfaces: Iterable[Interface]) -> str | None:
    """The fingerprint that a container shows on its loopback, as `SHA256:` and base64; None where it shows none."""
    parts: dict[int, bytes] = {}
    for interface in interfaces:
        for address in interface.addresses if interface.name == "lo" else ():
            if address.family == "inet6":
                packed = ipaddress.IPv6Address(address.address).packed
                if packed[0] == 0xFD and packed[1] in _PARTS:
                    parts[packed[1]] = packed[2:]
    told = b"".join(parts.get(part, b"") for part in _PARTS)
    if len(parts) != len(_PARTS) or told[32:] != MARK:
        return None
    return f"SHA256:{base64.b64encode(told[:32]).decode().rstrip('=')}"
