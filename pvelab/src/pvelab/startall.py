"""The guests of a node that starts or stops: which, in which order.

As in pve-manager, PVE/API2/Nodes.pm, ``startall`` and ``stopall``: one guest after the other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection
from functools import partial

from pvelab import guestlife
from pvelab.access import ROOT, Identity
from pvelab.cluster import Cluster
from pvelab.errors import ApiError, denied
from pvelab.schema import FormatError
from pvelab.tasks import Task, Upid

STOP_SECONDS = 180
_LAST = 1 << 62
"""Guests without an order come after all that have one."""


def start_at_boot(cluster: Cluster, node: str) -> str:
    """What a node's service pve-guests does once the node is up; the task's UPID."""
    return start_all(cluster, Identity(ROOT), node, force=False, vmids=None)


def start_all(cluster: Cluster, who: Identity, node: str, *, force: bool, vmids: Collection[int] | None) -> str:
    """Start the guests with ``onboot``, or all with ``force``, one after the other; of ``vmids`` where given."""
    _check(cluster, who, vmids)

    def worker(task: Task) -> None:
        for vmid in cluster.guest_ids(node):
            _free_from_backup(cluster, node, vmid, task)
        for vmid, startup in _ordered(cluster, node, vmids, only_onboot=not force):
            if cluster.is_running(node, vmid):
                continue
            task.line(f"Starting CT {vmid}")
            end = _follow(cluster, task, partial(guestlife.start, cluster, who, node, vmid))
            if end != "OK" and not end.startswith("WARNINGS"):
                task.line(f"Starting CT {vmid} failed: {end}")
            elif delay := startup.get("up", 0):
                task.line(f"Waiting for {delay} seconds (startup delay)")
                task.aborted.wait(delay)
                task.checkpoint()

    return cluster.start_task(node, "startall", "", who, worker)


def stop_all(
    cluster: Cluster,
    who: Identity,
    node: str,
    *,
    force_stop: bool = True,
    timeout: int = STOP_SECONDS,
    vmids: Collection[int] | None = None,
) -> str:
    """Shut the guests down in the opposite order; with ``force_stop`` those that do not end in time are killed."""
    _check(cluster, who, vmids)

    def worker(task: Task) -> None:
        for vmid, startup in reversed(_ordered(cluster, node, vmids, only_onboot=False)):
            if not cluster.is_running(node, vmid):
                continue
            seconds = startup.get("down", timeout)
            task.line(f"Stopping CT {vmid} (timeout = {seconds} seconds)")
            stop = partial(guestlife.shutdown, cluster, who, node, vmid, timeout=seconds, force_stop=force_stop)
            _follow(cluster, task, stop)

    return cluster.start_task(node, "stopall", "", who, worker)


def _check(cluster: Cluster, who: Identity, vmids: Collection[int] | None) -> None:
    """VM.PowerMgmt on ``/``, or on each guest that is named."""
    if cluster.access.allows(who, "/", ["VM.PowerMgmt"]):
        return
    if not vmids:
        raise denied("/, VM.PowerMgmt")
    for vmid in vmids:
        cluster.access.check(who, f"/vms/{vmid}", ["VM.PowerMgmt"])


def _ordered(
    cluster: Cluster, node: str, vmids: Collection[int] | None, *, only_onboot: bool
) -> list[tuple[int, dict[str, int]]]:
    """Guests that are no templates with their ``startup`` (order, up, down), by order, then by number."""
    found = []
    for vmid in cluster.guest_ids(node):
        if vmids is not None and vmid not in vmids:
            continue
        with contextlib.suppress(ApiError, FormatError, ValueError):
            config = cluster.load(node, vmid)
            if not config.flag("template") and (config.flag("onboot") or not only_onboot):
                found.append((vmid, parse_startup(config.get("startup") or "")))
    return sorted(found, key=lambda entry: (entry[1].get("order", _LAST), entry[0]))


def parse_startup(text: str) -> dict[str, int]:
    """``order``, ``up`` and ``down`` of a guest's option ``startup``; the order may stand without its name."""
    return {name or "order": int(value) for name, value in re.findall(r"(?:(order|up|down)=)?(\d+)", text)}


def _free_from_backup(cluster: Cluster, node: str, vmid: int, task: Task) -> None:
    """A backup that ran as the node went down holds no lock any more."""
    with contextlib.suppress(ApiError, FormatError, ValueError), cluster.locked(vmid):
        config = cluster.load(node, vmid)
        if config.get("lock") == "backup":
            del config.options["lock"]
            cluster.store(node, vmid, config)
            task.line(f"removed left over backup lock from '{vmid}'!")


def _follow(cluster: Cluster, task: Task, start: Callable[[], str]) -> str:
    """Start another task and wait for its end; its exit text, or the refusal of the start."""
    try:
        upid = start()
    except ApiError as error:
        return str(error).splitlines()[0]
    running = next((other for other in cluster.tasks.active() if str(other.upid) == upid), None)
    if running is None:
        return str(cluster.tasks.status(Upid.parse(upid))["exitstatus"])
    while not running.done.wait(0.1):
        task.checkpoint()
    return running.exit_text or ""
