# ruff: noqa: N818 - these are read by people, in a report: "VolumeHeld" says more than "VolumeHeldError"
"""Everything this package raises, and how it reads.

    ProxmoxError                what happened, why, what to do
    ├── Faults                  settings or surroundings that cannot work, all of them at once
    ├── Refusal                 a planner said no; nothing was changed
    │   ├── GuestMissing        no guest of that number
    │   ├── NodeUnusable        the node is offline, or none of the cluster's
    │   ├── GuestElsewhere      the guest is on another node
    │   ├── LeftBehind          a guest of ours is there after its stack was destroyed
    │   ├── GuestLocked         an operation holds the guest, or a broken one left its lock
    │   ├── GuestIsTemplate     a template cannot be started or given a volume
    │   ├── NotOurs             the guest does not carry this stack's claim
    │   ├── TemplateMissing     a golden template is not there, or is none
    │   ├── TemplateInUse       disks of other guests depend on a golden template
    │   ├── VolumeMissing       no volume of that name on the storage
    │   ├── VolumeElsewhere     the volume is on another storage, or node, than the one asked for
    │   ├── VolumeUnusable      a volume of that kind can't be used as asked for
    │   ├── OwnerMismatch       the number in the volume's name is not the declared owner's
    │   ├── VolumeHeld          another guest names the volume
    │   ├── HolderUnknown       a guest could not be read, so one writer cannot be proved
    │   ├── VolumeBusy          a running guest has the volume mounted
    │   ├── PetRunning          the owner runs with the volume mounted
    │   ├── SlotTaken           the mount point key holds something else
    │   ├── PathTaken           another mount point of the guest has the path
    │   ├── AllocateSyntax      "<storage>:<number>" where an existing volume is meant
    │   ├── ShrinkRefused       a volume is never made smaller
    │   ├── NoFreeSlot          all mount point keys of the guest are used
    │   ├── DeletionNotConfirmed  a volume is freed only when it is named a second time
    │   ├── HostFolderForeign   a folder of the node holds something of somebody else's
    │   ├── HostFolderUnusable  a path of the node can't be mounted
    │   └── RootNeeded          only root on the node may set it, and there is no access to root
    ├── Unreachable             no answer: refused, dropped, or too late
    │   └── TlsUntrusted        an answer from a server whose identity is not proved
    ├── ApiError                Proxmox answered with a status of 400 or more
    │   ├── ParametersRejected  400
    │   ├── AuthenticationFailed  401
    │   ├── PermissionDenied    403
    │   ├── NotImplementedByServer  501
    │   ├── NoSuchGuest         500, the configuration file does not exist
    │   ├── LockTimeout         500, the guest stayed locked for longer than we wait
    │   ├── ProtectionOn        500, protection mode forbids the change
    │   ├── NoQuorum            500, the cluster has lost its quorum and writes nothing
    │   └── ConfigChanged       500, the configuration was changed by somebody else meanwhile
    ├── TaskFailed              a task ended with something else than OK or WARNINGS
    ├── TaskTimeout             a task did not end before its deadline
    ├── NodeShellFailed         the node can't be worked on by SSH, or a command of root's ended badly
    └── NotAsPlanned            after a step the guest is not as the step should have left it

No error carries a secret: texts go through `mask`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

_TOKEN_VALUE = re.compile(r"(![A-Za-z][A-Za-z0-9.\-_]*=)[^\s,;'\"]+")


def mask(text: str, *secrets: str) -> str:
    """`text` with the value of every API token (`USER@REALM!NAME=VALUE`) and all `secrets` replaced by stars."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "********")
    return _TOKEN_VALUE.sub(r"\1********", text)


class Subject(StrEnum):
    """What a fault or a refusal is about. Which setting that is, and what to do with it, is its caller's to know."""

    NODE = "node"
    VMID = "vmid"
    TEMPLATE = "template"
    STORAGE = "storage"
    DISK = "disk"
    BRIDGE = "bridge"
    ADDRESS = "address"
    ADDRESS6 = "address6"
    VOLUME = "volume"
    DELETION = "deletion"
    HOST_MOUNT = "host mount"
    ROOT = "root on the node"
    """Something is left to root@pam, and there is no access to it."""
    KEYCTL = "keyctl"
    """The same, of a container that has a container engine in it."""
    NODE_SSH = "SSH of the node"
    OWNER_RUNS = "the owner runs"
    STRANGER = "stranger"
    """A guest of another owner has the number."""
    SUCCESSOR = "successor"
    """A guest of another owner has the number of one that the state knows."""
    MOVED = "moved"
    LEFT_BEHIND = "left behind"
    LOST = "lost"
    """A guest with data that was there before is gone."""
    HALF_MADE = "half made"
    """The creation of a guest was cut off."""
    GOLDEN = "golden template"
    """The template that a guest is to be cloned from."""


@dataclass(frozen=True)
class Fault:
    """One thing that cannot work.

    key: the subject, setting or thing concerned ("endpoint", "/storage/local-lvm"); value: what it is now, secrets
    masked; rule: what it would have to be, and why; remedy: what to do, where possible a line to paste.
    """

    key: str
    value: str
    rule: str
    remedy: str

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value else ""
        return f"{self.key}{shown}\n  rule: {self.rule}\n  do:   {self.remedy}"


class ProxmoxError(Exception):
    """Base of all errors here. `what` is a full sentence; `why` and `remedy` may be empty; `subject`: None for most."""

    subject: Subject | None = None

    def __init__(self, what: str, why: str = "", remedy: str = "", subject: Subject | None = None) -> None:
        if subject is not None:
            self.subject = subject
        self.what = mask(what)
        self.why = mask(why)
        self.remedy = mask(remedy)
        super().__init__(self.what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.remedy:
            lines.append(f"  do:  {self.remedy}")
        lines.extend(f"  and: {note}" for note in getattr(self, "__notes__", ()))
        return "\n".join(lines)


class Faults(ProxmoxError):
    """Several faults, told together."""

    def __init__(self, faults: Sequence[Fault], what: str = "The settings cannot be used") -> None:
        super().__init__(what)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        count = len(self.faults)
        return "\n".join([f"{self.what}: {count} fault{'' if count == 1 else 's'}", *map(str, self.faults)])


class Refusal(ProxmoxError):
    """A planner's no. Nothing was changed."""


class GuestMissing(Refusal):
    """No guest of that number."""


class NodeUnusable(Refusal):
    """The node that is declared is offline, or none of the cluster's."""

    subject = Subject.NODE


class GuestElsewhere(Refusal):
    """The guest is on another node than declared."""


class LeftBehind(Refusal):
    """A guest of ours is there after its stack was destroyed."""

    subject = Subject.LEFT_BEHIND


class GuestLocked(Refusal):
    """The guest carries a lock."""


class GuestIsTemplate(Refusal):
    """The guest is a template."""


class NotOurs(Refusal):
    """The guest does not carry this stack's claim."""


class TemplateMissing(Refusal):
    """A golden template is not there, or is none."""


class TemplateInUse(Refusal):
    """Disks of other guests depend on a golden template."""


class VolumeMissing(Refusal):
    """The storage does not list the volume. Proxmox would take the mount, and fail at the start (facts proxmox 3.1)."""


class VolumeElsewhere(Refusal):
    """The volume lies on another storage than the one asked for, or on another node's own."""


class VolumeUnusable(Refusal):
    """The volume is of a kind that no container mounts for writing, or that has no size where one is declared."""


class OwnerMismatch(Refusal):
    """The number in the volume's name is not the declared owner's."""


class VolumeHeld(Refusal):
    """Another guest names the volume. `holders` are the numbers of these guests."""

    def __init__(self, what: str, why: str = "", remedy: str = "", holders: Sequence[int] = ()) -> None:
        super().__init__(what, why, remedy)
        self.holders = tuple(holders)


class HolderUnknown(Refusal):
    """A guest could not be read, so nobody can say whether it names the volume."""


class VolumeBusy(Refusal):
    """A running guest has the volume mounted, and what is wanted is safe only when it has not."""


class PetRunning(Refusal):
    """The owner runs with the volume mounted."""

    subject = Subject.OWNER_RUNS


class SlotTaken(Refusal):
    """The mount point key holds something else."""


class PathTaken(Refusal):
    """Another mount point of the guest uses the path."""


class AllocateSyntax(Refusal):
    """`<storage>:<number>` would allocate a new volume where an existing one is meant (facts field-reports A6)."""


class ShrinkRefused(Refusal):
    """A volume is never made smaller."""


class NoFreeSlot(Refusal):
    """All 256 mount point keys are used."""


class DeletionNotConfirmed(Refusal):
    """A volume is freed only when the settings name it a second time."""


class HostFolderForeign(Refusal):
    """A folder of the node belongs to another user than the container's, and is not empty."""

    subject = Subject.HOST_MOUNT


class HostFolderUnusable(Refusal):
    """A path of the node is no folder, lies behind a symbolic link, or on a disk that is not mounted."""

    subject = Subject.HOST_MOUNT


class RootNeeded(Refusal):
    """What is declared is left to root@pam (facts proxmox 2.2). The remedy has the commands to paste."""

    subject = Subject.ROOT


class Unreachable(ProxmoxError):
    """No usable answer: connection refused, dropped, or not in time."""


class TlsUntrusted(Unreachable):
    """The server's certificate is not one that the settings trust."""


class ApiError(ProxmoxError):
    """Proxmox answered with an error.

    status: HTTP status; reason: its text, without the final newline; errors: per-parameter texts of a 400.
    """

    def __init__(
        self,
        request: str,
        status: int,
        reason: str,
        errors: Mapping[str, str] | None = None,
        remedy: str = "",
    ) -> None:
        self.request = request
        self.status = status
        self.reason = mask(reason.strip())
        self.errors = {key: mask(str(text).strip()) for key, text in (errors or {}).items()}
        details = "; ".join(f"{key}: {' '.join(text.split())}" for key, text in self.errors.items())
        why = " ".join(self.reason.split())
        if details:
            why = f"{why} ({details})"
        super().__init__(f"Proxmox refused {request} with status {status}", why, remedy)


class ParametersRejected(ApiError):
    """400: a parameter is wrong, or a change could not be applied (facts proxmox 3)."""


class AuthenticationFailed(ApiError):
    """401: the token is unknown, expired or mistyped; Proxmox does not say which (facts proxmox 1)."""


class PermissionDenied(ApiError):
    """403: a privilege is missing."""


class NotImplementedByServer(ApiError):
    """501: the server does not know the call."""


class NoSuchGuest(ApiError):
    """500: the guest's configuration file does not exist."""


class LockTimeout(ApiError):
    """500: the guest stayed locked for as long as we wait."""


class ProtectionOn(ApiError):
    """500: protection mode forbids the change."""


class NoQuorum(ApiError):
    """500: most of the cluster's votes are missing, so all of /etc/pve is read-only."""


class ConfigChanged(ApiError):
    """500: the digest sent is no longer that of the configuration."""


class TaskFailed(ProxmoxError):
    """A task ended badly. `exit_status` is Proxmox's text, `log` the last lines of the task's log."""

    def __init__(self, task: str, exit_status: str, log: Sequence[str], remedy: str = "") -> None:
        self.exit_status = mask(exit_status)
        self.log = tuple(mask(line) for line in log)
        tail = "".join(f"\n       | {line}" for line in self.log)
        super().__init__(f"The task {task} failed", f"{self.exit_status}{tail}", remedy)


class TaskTimeout(ProxmoxError):
    """A task was still running at its deadline. It goes on: we do not stop what we did not finish reading."""

    def __init__(self, task: str, seconds: float, log: Sequence[str]) -> None:
        self.log = tuple(mask(line) for line in log)
        tail = "".join(f"\n       | {line}" for line in self.log)
        super().__init__(
            f"The task {task} did not end within {seconds:g} s",
            f"it is still running on the node{tail}",
            "look at it in the node's task list; when it has ended, run the same command again",
        )


class NodeShellFailed(ProxmoxError):
    """The node can't be reached by SSH as root, is another one than declared, or a command there ended badly."""


class NotAsPlanned(ProxmoxError):
    """After a step the guest is not as the step should have left it."""
