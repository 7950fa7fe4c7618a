"""Which setting a fault or a refusal of `proxmox` is about, and what to do with it: the one place that knows both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from proxmox.errors import Fault, Faults, ProxmoxError, Subject

KEYS: Mapping[Subject, tuple[str, str]] = {
    Subject.NODE: ("node", "node"),
    Subject.VMID: ("petVmid", "cattleVmid"),
    Subject.TEMPLATE: ("template", "template"),
    Subject.STORAGE: ("petStorage", "cattleStorage"),
    Subject.DISK: ("petDisk", "cattleDisk"),
    Subject.BRIDGE: ("", "cattleBridge"),
    Subject.ADDRESS: ("", "cattleAddress"),
    Subject.ADDRESS6: ("", "cattleAddress6"),
    Subject.VOLUME: ("petVolumes", "cattleVolume"),
    Subject.DELETION: ("petDeleteVolumes", ""),
    Subject.HOST_MOUNT: ("", "cattleHostMounts"),
    Subject.ROOT: ("", "cattleHostMounts"),
    Subject.KEYCTL: ("", "cattleKeyctl"),
    Subject.NODE_SSH: ("", "nodeSshHost"),
    Subject.LOST: ("petVmid", ""),
    Subject.GOLDEN: ("", "goldenTemplate"),
}
"""The settings of a pet and of a cattle; empty: there is none."""

REMEDIES: Mapping[Subject, str] = {
    Subject.NODE: "docs/cluster.md: what to do with a node that is down, was renamed, or was drained",
    Subject.HOST_MOUNT: "the host mounts are in cattleHostMounts",
    Subject.ROOT: "or let this program do it: set nodeSshHostKey",
    Subject.KEYCTL: "or let this program do it: set nodeSshHostKey",
    Subject.NODE_SSH: "see nodeSshHost, nodeSshPort, nodeSshUser, nodeSshHostKey and nodeSshKeyFile",
    Subject.OWNER_RUNS: "where its stack has started it, set petStarted back to false and run pulumi up there",
    Subject.STRANGER: 'or, if it is this stack\'s, scripts/adopt, or docs/operations.md, "Take over a guest"',
    Subject.SUCCESSOR: "pulumi state delete, first the power, then the volume attachment, then the container",
    Subject.MOVED: "then pulumi up, which knows it by its claim; or, if it is to stay there, name that node in the "
    "settings (node), then: scripts/adopt --moved",
    Subject.LEFT_BEHIND: "pulumi up takes it over again; then pulumi destroy",
    Subject.LOST: "docs/recovery.md says how; if the data are lost for good: petStartEmpty true, for one pulumi up",
    Subject.HALF_MADE: "then pulumi up",
    Subject.GOLDEN: "pulumi up of the image stack makes it; goldenTemplate names that stack",
}
"""What Pulumi and the settings add to a remedy, as a line of its own: what stands before it may be pasted."""


def of_stack(fault: Fault, role: Literal["pet", "cattle"], own: Mapping[Subject, str] | None = None) -> Fault:
    """The fault with the setting's name, and what there is to do with that.

    `own`: the settings by which this stack asks for what others ask for by those in KEYS.
    """
    parts = fault.key.split(" and ")
    index = ("pet", "cattle").index(role)
    keys = {**{subject: both[index] for subject, both in KEYS.items()}, **(own or {})}
    named = {str(subject): key for subject, key in keys.items()}
    subject = next((one for one in REMEDIES if str(one) in parts and one is not Subject.HOST_MOUNT), None)
    remedy = fault.remedy if subject is None else f"{fault.remedy}\n       {REMEDIES[subject]}"
    return replace(fault, key=" and ".join(named.get(part) or part for part in parts), remedy=remedy)


def explained(error: BaseException) -> str:
    """An error for people: its text, and what the settings or Pulumi add to its remedy."""
    remedy = REMEDIES.get(error.subject) if isinstance(error, ProxmoxError) and error.subject else None
    if remedy is None or isinstance(error, Faults):
        return str(error)
    return f"{error}\n       {remedy}"
