"""Doing the steps of a plan: one thin executor per kind, each safe to run again after it was cut off at any point.

Every executor reads the guest afresh, does nothing when the step is done already, refuses when the guest is no longer
as the plan assumed, sends one change with the digest of what it read, and reads back. A change that waits in `pending`
is a failure, not a success (facts field-reports A12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch

from proxmox.client import Proxmox
from proxmox.errors import ConfigChanged, GuestMissing, NoSuchGuest, NotAsPlanned, ProtectionOn, ProxmoxError, Refusal
from proxmox.facts import GuestFacts, guest_from_entries, read_cluster, read_volume
from proxmox.mountpoint import format_size, normal_path, owner_of, storage_of
from proxmox.planning import (
    Allocate,
    DropUnused,
    FreeVolume,
    Grow,
    Protect,
    ProveSole,
    RemoveMount,
    SetMount,
    Shutdown,
    Start,
    Step,
    Unprotected,
    prove_sole,
)

Report = Callable[[str], None]
Change = tuple[dict[str, str], tuple[str, ...]]
"""Options to set, keys to delete."""

FILE_SYSTEM_FAILED = "Failed to update the container's filesystem"

ATTEMPTS = 5
"""How often a change gets a new plan while somebody else keeps changing the configuration."""


def silent(line: str) -> None:
    """A report that nobody reads."""


def execute(client: Proxmox, steps: Sequence[Step], report: Report = silent) -> None:
    """Do the steps in order; `report` gets one line before each, and one for each warning of a task.

    Raises what the client raises, and NotAsPlanned. What was done stays done: plan again and go on.
    """
    for step in steps:
        with client.guard(step.vmid):
            if not isinstance(step, Unprotected):
                report(step.describe())
            run_step(step, client, report)


@singledispatch
def run_step(step: Step, client: Proxmox, report: Report) -> None:
    """Do one step."""
    raise NotImplementedError(f"no executor for {type(step).__name__}")


def _now(client: Proxmox, step: Step) -> GuestFacts:
    """The guest as it is now, power state left out."""
    try:
        entries = client.guest_pending(step.node, step.vmid)
    except NoSuchGuest:
        raise GuestMissing(
            f"CT {step.vmid} has gone away from node {step.node}",
            f"it was to be done: {step.describe()}",
            "run again: it makes a new plan",
        ) from None
    return guest_from_entries(step.vmid, step.node, "lxc", entries, None)


def _apply(client: Proxmox, step: Step, decide: Callable[[GuestFacts], Change | None]) -> None:
    """Send what `decide` asks for, until it asks for nothing; it raises NotAsPlanned when the step no longer fits."""
    for attempt in range(ATTEMPTS):
        facts = _now(client, step)
        change = decide(facts)
        if change is None:
            return
        options, delete = change
        try:
            client.set_config(
                step.node,
                step.vmid,
                options,
                delete,
                digest=facts.digest,
                done=lambda: decide(_now(client, step)) is None,
            )
            break
        except ConfigChanged:
            # Also after waiting for a lock: the lock is part of the configuration that the digest is of.
            if attempt == ATTEMPTS - 1:
                raise
    if decide(_now(client, step)) is not None:
        raise NotAsPlanned(
            f"CT {step.vmid} is not as it should be after: {step.describe()}",
            "Proxmox accepted the change and does not show it; on a running container it can wait for the next stop",
            f"see: pct config {step.vmid}; pct pending {step.vmid}",
        )


def _differs(step: Step, found: str) -> NotAsPlanned:
    return NotAsPlanned(
        f"CT {step.vmid} was changed by somebody else meanwhile",
        f"it was to be done: {step.describe()}; found: {found}",
        "see who works on this guest, then run again",
    )


@run_step.register
def _do_shutdown(step: Shutdown, client: Proxmox, report: Report) -> None:
    if client.guest_status(step.node, step.vmid).running:
        _tell(client.shutdown(step.node, step.vmid, step.timeout_s).warnings, step, report)
    _require_power(client, step, running=False)


@run_step.register
def _do_start(step: Start, client: Proxmox, report: Report) -> None:
    if not client.guest_status(step.node, step.vmid).running:
        _tell(client.start(step.node, step.vmid).warnings, step, report)
    _require_power(client, step, running=True)


def _require_power(client: Proxmox, step: Step, *, running: bool) -> None:
    if client.guest_status(step.node, step.vmid).running is not running:
        raise NotAsPlanned(
            f"CT {step.vmid} is {'stopped' if running else 'running'} although its task ended well",
            "it stopped by itself, or somebody else uses it",
            f"see: pct status {step.vmid}; on the node: journalctl -u pve-container@{step.vmid}",
        )


def _tell(warnings: Sequence[str], step: Step, report: Report) -> None:
    for warning in warnings:
        report(f"CT {step.vmid}: warning of Proxmox: {warning}")


@run_step.register
def _do_set_mount(step: SetMount, client: Proxmox, report: Report) -> None:
    del report

    def decide(facts: GuestFacts) -> Change | None:
        current = facts.mounts().get(step.slot)
        if current is not None and step.slot not in facts.pending and current.same_mount(step.mount):
            return None
        if current is not None and current.volume not in (step.mount.volume, step.replaces):
            raise _differs(step, f"{step.slot} holds {current.volume}")
        return {step.slot: step.mount.property_string()}, ()

    _apply(client, step, decide)


@run_step.register
def _do_prove_sole(step: ProveSole, client: Proxmox, report: Report) -> None:
    try:
        cluster = read_cluster(client, step.owner, power_of=[step.owner])
        prove_sole(cluster, step.volid, step.vmid, step.node, step.owner)
    except Refusal as refusal:
        undo = (
            RemoveMount(step.vmid, step.node, step.slot, step.volid),
            DropUnused(step.vmid, step.node, step.volid),
        )
        try:
            execute(client, undo, report)
        except ProxmoxError as second:
            refusal.add_note(f"and CT {step.vmid} still names it: {second}")
        raise


@run_step.register
def _do_remove_mount(step: RemoveMount, client: Proxmox, report: Report) -> None:
    del report

    def decide(facts: GuestFacts) -> Change | None:
        current = facts.mounts().get(step.slot)
        waiting = facts.pending_mounts().get(step.slot)
        if step.volid in {mount.volume for mount in (current, waiting) if mount is not None}:
            return {}, (step.slot,)
        return None

    _apply(client, step, decide)


@run_step.register
def _do_drop_unused(step: DropUnused, client: Proxmox, report: Report) -> None:
    del report
    if owner_of(step.volid) in (None, step.vmid):
        # Proxmox would free it.
        raise _differs(step, f"{step.volid} is not proved to be another guest's")
    _delete_unused(client, step, step.volid)


@run_step.register
def _do_free_volume(step: FreeVolume, client: Proxmox, report: Report) -> None:
    del report
    _delete_unused(client, step, step.volid)


def _delete_unused(client: Proxmox, step: Step, volid: str) -> None:
    def decide(facts: GuestFacts) -> Change | None:
        keys = tuple(sorted(key for key, volume in facts.unused().items() if volume == volid))
        return ({}, keys) if keys else None

    _apply(client, step, decide)


@run_step.register
def _do_allocate(step: Allocate, client: Proxmox, report: Report) -> None:
    def decide(facts: GuestFacts) -> Change | None:
        current = facts.mounts().get(step.slot)
        if current is None and step.slot not in facts.pending:
            return {step.slot: step.value}, ()
        if (
            current is not None
            and normal_path(current.path) == normal_path(step.path)
            and owner_of(current.volume) == step.vmid
            and storage_of(current.volume) == step.storage
        ):
            return None
        raise _differs(step, f"{step.slot} holds {current.volume if current else 'a change that is pending'}")

    _apply(client, step, decide)
    made = _now(client, step).mounts()[step.slot].volume
    report(f"CT {step.vmid}: {step.slot} is {made}")


@run_step.register
def _do_grow(step: Grow, client: Proxmox, report: Report) -> None:
    mount = _now(client, step).mounts().get(step.slot)
    if mount is None or mount.volume != step.volid:
        raise _differs(step, f"{step.slot} holds {mount.volume if mount else 'nothing'}")
    end = client.resize(step.node, step.vmid, step.slot, step.new)
    _tell(end.warnings, step, report)
    # Proxmox grows the device, then the file system, and tells a failure of the latter in the log alone.
    failed = [line for line in (client.task_log(end.upid) if end.upid else ()) if FILE_SYSTEM_FAILED in line]
    if failed:
        raise NotAsPlanned(
            f"{step.volid} has grown to {format_size(step.new)}, its file system has not",
            failed[0],
            f"with every guest that mounts it stopped, on node {step.node}: pvesm path {step.volid}; "
            "then e2fsck -f PATH && resize2fs PATH",
        )
    volume = read_volume(client, step.node, step.volid)
    if volume is None or volume.size < step.new:
        found = format_size(volume.size) if volume else "nothing"
        raise NotAsPlanned(
            f"{step.volid} is not {format_size(step.new)} after it was grown",
            f"its storage lists {found}",
            "see the resize task in the node's task list",
        )


@run_step.register
def _do_protect(step: Protect, client: Proxmox, report: Report) -> None:
    del report
    _set_protection(client, step, on=True)


def _set_protection(client: Proxmox, step: Step, *, on: bool) -> None:
    def decide(facts: GuestFacts) -> Change | None:
        return None if facts.protected is on else ({"protection": "1" if on else "0"}, ())

    _apply(client, step, decide)


@run_step.register
def _do_unprotected(step: Unprotected, client: Proxmox, report: Report) -> None:
    """Protection off, the steps, protection on. An error of the steps is the one that is raised."""
    try:
        _run_unprotected(step, client, report)
    except BaseException as error:
        try:
            _set_protection(client, step, on=True)
        except ProxmoxError as second:
            error.add_note(f"and protection of CT {step.vmid} could not be switched on again: {second}")
        raise
    _set_protection(client, step, on=True)


def _run_unprotected(step: Unprotected, client: Proxmox, report: Report) -> None:
    for attempt in range(ATTEMPTS):
        _set_protection(client, step, on=False)
        try:
            execute(client, step.steps, report)
        except ProtectionOn:
            # Another run, of another process, has ended on the same guest and switched it on as it should.
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return
