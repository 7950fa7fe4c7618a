"""Root's shell on the node: reading folders, doing the steps that only root may do, and proving the mounts from inside.

Whoever calls brings the shell (`HostShell`), so nothing here knows how it was opened. Each command is one program with
plain arguments, and its output is read by number, never by words that a locale would translate.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Protocol

from proxmox.client import Proxmox
from proxmox.errors import NodeShellFailed, NoSuchGuest, NotAsPlanned, Subject
from proxmox.execution import ATTEMPTS, Report, execute, silent
from proxmox.facts import GuestFacts, locate, read_guest
from proxmox.host_mounts import (
    FolderFacts,
    HostMount,
    HostMountSpec,
    MakeFolder,
    OwnFolder,
    Placed,
    SetHost,
    change_of,
    commands_to_paste,
    find_placed,
    has_feature,
    plan_host_mounts,
    root_needed,
)
from proxmox.idmap import id_map_of
from proxmox.operations import patiently
from proxmox.planning import RemoveMount, Shutdown, Start, Step, usable

COMMAND_SECONDS = 60.0
CHANGED_MEANWHILE = "detected modified configuration"

# As the folder's user: make a file, and take it away again. $1 is the path in the container.
_WRITE = 'set -e; findmnt --mountpoint "$1" >/dev/null; file=$(mktemp -p "$1" .write-test-XXXXXXXX); rm -- "$file"'
_READ = 'set -e; findmnt --mountpoint "$1" >/dev/null; ls -A -- "$1" >/dev/null'


class Answer(Protocol):
    """What a command left."""

    @property
    def status(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...


class HostShell(Protocol):
    """A root shell on the node. `run` raises NodeShellFailed when the connection breaks."""

    def run(self, command: str, *, timeout_s: float = COMMAND_SECONDS) -> Answer: ...


@dataclass(frozen=True)
class HostState:
    """What a container has of a spec. pending: whether a change of it waits for a restart."""

    placed: Mapping[HostMount, Placed]
    nesting: bool
    keyctl: bool
    pending: bool


def _output(shell: HostShell, command: str) -> str:
    """The output of a command that has to succeed."""
    answer = shell.run(command)
    if answer.status != 0:
        raise _failed(command, answer)
    return answer.stdout.decode("utf-8", "replace").rstrip("\n")


def _failed(command: str, answer: Answer) -> NodeShellFailed:
    told = " ".join((answer.stderr or answer.stdout).decode("utf-8", "replace").split())
    return NodeShellFailed(
        f"a command on the node ended with status {answer.status}: {command}",
        told,
        "see what the node says to it, then run again: every step begins with what is there",
    )


def require_node(shell: HostShell, node: str) -> None:
    """NodeShellFailed unless this is root's shell on that node: folders made on another one would be no use."""
    name = _output(shell, "hostname").partition(".")[0]
    if name != node:
        raise NodeShellFailed(
            f"the SSH server is that of node {name}, not of {node}",
            "pct works on the guests of its own node only, and their folders lie there",
            f"declare the address of {node}, and its host key",
            Subject.NODE_SSH,
        )
    uid = _output(shell, "id -u")
    if uid != "0":
        raise NodeShellFailed(
            f"the user that logs in to node {node} has number {uid}",
            "only root may set bind mounts and keyctl",
            "log in as root",
            Subject.NODE_SSH,
        )


def read_fstab(shell: HostShell) -> tuple[str, ...]:
    """Where the node's fstab mounts disks. findmnt ends with 1 when there is nothing; blanks are written as \\x20."""
    command = "findmnt --fstab --noheadings --raw --output TARGET"
    answer = shell.run(command)
    if answer.status > 1:
        raise _failed(command, answer)
    lines = answer.stdout.decode("utf-8", "replace").splitlines()
    targets = [re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), line.strip()) for line in lines]
    return tuple(target for target in targets if target.startswith("/"))


def read_folder(shell: HostShell, path: str, fstab: tuple[str, ...] = ()) -> FolderFacts:
    """What is at a path on the node."""
    quoted = shlex.quote(path)
    real = _output(shell, f"realpath -m -- {quoted}")
    place = PurePosixPath(path)
    found = _stat(shell, place)
    if found is None:
        # The file system that it would be made on is that of the nearest folder above it.
        for parent in place.parents:
            above = _stat(shell, parent)
            if above is not None:
                return FolderFacts(path, real, mounted_at=above[-1], above=str(parent), fstab=fstab)
        return FolderFacts(path, real, fstab=fstab)
    mode, uid, gid, mounted_at = found
    listed = stat.S_ISDIR(int(mode, 16)) and _output(shell, f"find {quoted} -mindepth 1 -maxdepth 1 -print -quit")
    return FolderFacts(path, real, int(mode, 16), int(uid), int(gid), not listed, mounted_at, fstab=fstab)


def _stat(shell: HostShell, path: PurePosixPath) -> tuple[str, str, str, str] | None:
    """Mode in hexadecimal digits, owner, group, mount point; None when there is nothing."""
    answer = shell.run(f"stat -c '%f %u %g %m' -- {shlex.quote(str(path))}")
    if answer.status != 0:
        return None
    mode, uid, gid, mounted_at = answer.stdout.decode("utf-8", "replace").rstrip("\n").split(" ", 3)
    return mode, uid, gid, mounted_at


def read_folders(shell: HostShell, spec: HostMountSpec) -> dict[str, FolderFacts]:
    """The folders of all mounts, by path."""
    fstab = read_fstab(shell) if spec.mounts else ()
    return {mount.source: read_folder(shell, mount.source, fstab) for mount in spec.mounts}


def with_ids(client: Proxmox, spec: HostMountSpec) -> HostMountSpec:
    """The spec with the numbers on the node that its container's users have now."""
    place = locate(client, spec.vmid)
    if place is None or place.kind != "lxc":
        return spec
    try:
        return replace(spec, ids=id_map_of(client.guest_config(place.node, spec.vmid)))
    except NoSuchGuest:
        return spec  # removed meanwhile: the next one has the standard map


def state_of(guest: GuestFacts, spec: HostMountSpec) -> HostState:
    """What the container has of the spec."""
    placed = find_placed(guest, spec.mounts, spec.recorded)
    features = guest.config.get("features", "")
    waits = {*(found.slot for found in placed.values()), "features"} & set(guest.pending)
    return HostState(placed, has_feature(features, "nesting"), has_feature(features, "keyctl"), bool(waits))


def read_host_mounts(client: Proxmox, spec: HostMountSpec) -> HostState | None:
    """What the container has of the spec, as the API tells it; None when it is gone."""
    guest = read_guest(client, spec.vmid)
    return None if guest is None else state_of(guest, spec)


def preview_host_mounts(client: Proxmox, shell: HostShell | None, spec: HostMountSpec) -> tuple[str, ...]:
    """What `ensure_host_mounts` would do, a line each. Reads only; raises the same Refusals."""
    guest, spec = read_guest(client, spec.vmid), with_ids(client, spec)
    if shell is None:
        return commands_to_paste(guest, spec)
    require_node(shell, spec.node)
    return tuple(step.describe() for step in plan_host_mounts(guest, read_folders(shell, spec), spec))


def ensure_host_mounts(
    client: Proxmox, shell: HostShell | None, spec: HostMountSpec, report: Report = silent
) -> HostState:
    """Have folders, mounts and features as declared; a container that runs is restarted once. Safe to repeat.

    Without a shell nothing is done: RootNeeded tells the commands, unless somebody has run them already.
    """
    with client.guard(spec.vmid):
        spec = with_ids(client, spec)
        if shell is None:
            commands = commands_to_paste(read_guest(client, spec.vmid), spec)
            if commands:
                raise root_needed(spec, commands)
        else:
            require_node(shell, spec.node)
            folders = read_folders(shell, spec)
            steps = patiently(
                client, spec.vmid, lambda: plan_host_mounts(read_guest(client, spec.vmid), folders, spec), report
            )
            for step in steps:
                _do(client, shell, step, report)
        guest = read_guest(client, spec.vmid)
        if guest is None or change_of(guest, spec) is not None:
            raise NotAsPlanned(
                f"CT {spec.vmid} does not have the host mounts and features as declared after the run",
                f"found: {dict(guest.config) if guest is not None else 'no such guest'}",
                f"somebody else works on this guest: see pct config {spec.vmid}, then run again",
            )
        return state_of(guest, spec)


def _do(client: Proxmox, shell: HostShell, step: Step, report: Report) -> None:
    if isinstance(step, MakeFolder | OwnFolder):
        report(step.describe())
        _output(shell, step.command)
    elif isinstance(step, SetHost):
        report(step.describe())
        _set_host(client, shell, step)
    else:
        execute(client, (step,), report)


def _set_host(client: Proxmox, shell: HostShell, step: SetHost) -> None:
    """Set what is still to be set, by the digest of what was read: nobody's change in between is overwritten."""
    for attempt in range(ATTEMPTS):
        guest = read_guest(client, step.vmid)
        change = change_of(guest, step.spec) if guest is not None else None
        if guest is None or change is None:
            return
        command = change.command(step.vmid, digest=guest.digest)
        answer = shell.run(command)
        if answer.status == 0:
            return
        if CHANGED_MEANWHILE not in answer.stderr.decode("utf-8", "replace") or attempt == ATTEMPTS - 1:
            raise _failed(command, answer)


def prove_host_mounts(client: Proxmox, shell: HostShell, spec: HostMountSpec, report: Report = silent) -> None:
    """Write to each folder from inside the running container, as the user that it belongs to; read one that is ro.

    Raises NotAsPlanned.
    """
    require_node(shell, spec.node)
    spec = with_ids(client, spec)
    for mount in spec.mounts:
        script = _READ if mount.read_only else _WRITE
        user = ["setpriv", "--reuid", str(mount.owner), "--regid", str(mount.owner), "--clear-groups"]
        argv = ["pct", "exec", str(spec.vmid), "--", *user, "sh", "-c", script, "sh", mount.path]
        answer = shell.run(shlex.join(argv))
        if answer.status != 0:
            told = " ".join((answer.stderr or answer.stdout).decode("utf-8", "replace").split())
            raise NotAsPlanned(
                f"user {mount.owner} of CT {spec.vmid} can't {'read' if mount.read_only else 'write to'} {mount.path}",
                f"{mount.source} is mounted there; the container says: {told}",
                f"see on node {spec.node}: ls -ldn {shlex.quote(mount.source)} "
                f"(expected owner {spec.owner_of(mount)[0]}); "
                f"pct exec {spec.vmid} -- findmnt {shlex.quote(mount.path)}",
            )
        report(f"CT {spec.vmid}: {mount.path} is {'readable' if mount.read_only else 'writable'} from inside")


def remove_host_mounts(client: Proxmox, spec: HostMountSpec, report: Report = silent) -> bool:
    """Take the recorded host mounts out of the container, by the API alone; the folders stay as they are.

    `delete=mpN` is no privilege of root's (facts proxmox 3). A container that runs is restarted, for Proxmox takes a
    mount point away only while it is stopped (facts proxmox 3.2). Whether there is a container that goes on running.
    """
    with client.guard(spec.vmid):
        guest = read_guest(client, spec.vmid)
        if guest is None:
            return False
        gone = HostMountSpec(spec.vmid, guest.node, (), recorded=spec.recorded, reserved=spec.reserved)
        change = change_of(guest, gone)
        slots = change.delete if change is not None else ()
        if not slots:
            return guest.running is True
        patiently(client, spec.vmid, lambda: usable(read_guest(client, spec.vmid), spec.vmid), report)
        mounts = guest.mounts()
        steps: list[Step] = [RemoveMount(spec.vmid, guest.node, slot, mounts[slot].volume) for slot in slots]
        if guest.running is not False:
            shutdown = Shutdown(spec.vmid, guest.node)
            steps = [shutdown, *steps, Start(spec.vmid, guest.node)]
        execute(client, steps, report)
        return guest.running is not False
