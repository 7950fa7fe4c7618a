"""The objects that several listings share (facts proxmox 12)."""

from __future__ import annotations

import contextlib
import random

from pvelab.cluster import DEFAULT_MEMORY, Cluster, GuestPlace, States
from pvelab.config import StorageConfig
from pvelab.errors import ApiError
from pvelab.guestconfig import max_disk
from pvelab.guestfile import GuestConfig
from pvelab.runtime import Usage
from pvelab.schema import INTEGER_OPTIONS

MIB = 1 << 20
_BROADCAST = (
    *("status", "name", "cpu", "maxmem", "mem", "maxdisk", "disk", "netin", "netout", "diskread", "diskwrite"),
    "uptime",
)
_PRESSURE = ("pressurecpufull", "pressurecpusome", "pressureiofull", "pressureiosome")
_PRESSURE_MEMORY = ("pressurememoryfull", "pressurememorysome")


def json_options(options: dict[str, str]) -> dict[str, object]:
    """Integers and booleans as JSON numbers, everything else as written."""
    return {
        key: int(value) if key in INTEGER_OPTIONS and value.lstrip("-").isdigit() else value
        for key, value in options.items()
    }


def content_text(storage: StorageConfig) -> str:
    """The kinds of content in the order of a Perl hash: another one each time (facts proxmox-9.2, row 26)."""
    kinds = sorted(storage.content)
    return ",".join(random.sample(kinds, len(kinds)))


def told(cluster: Cluster, node: str) -> States | None:
    """What a node told last of its guests; None while its statistics are missing."""
    return cluster.broadcast.states(node, lambda: _states(cluster, node))


def node_row(cluster: Cluster, node: str) -> dict[str, object]:
    """One node: ``unknown`` while its statistics are missing (PVE::API2Tools, extract_node_stats)."""
    entry: dict[str, object] = {"id": f"node/{node}", "type": "node", "node": node, "status": "unknown"}
    if cluster.is_offline(node):
        return {**entry, "status": "offline"}
    return entry if told(cluster, node) is None else {**entry, "status": "online", "level": ""}


def guest_row(cluster: Cluster, place: GuestPlace) -> dict[str, object]:
    """One guest as last broadcast, ``unknown`` before the first time (PVE::API2Tools, extract_vm_stats)."""
    entry = {"id": f"{place.kind}/{place.vmid}", "type": place.kind, "vmid": place.vmid, "node": place.node}
    state = (told(cluster, place.node) or {}).get(place.vmid)
    return {**entry, "status": "unknown", **(state or {})}


def _states(cluster: Cluster, node: str) -> States:
    states: States = {}
    running = cluster.running(node)
    for number in cluster.guest_ids(node):
        with contextlib.suppress(ApiError):  # it was removed meanwhile
            config = cluster.load(node, number)
            status = guest_status(cluster, node, number, config, running=number in running)
            state = {key: status[key] for key in _BROADCAST}
            states[number] = {
                **state,
                "template": 1 if config.flag("template") else 0,
                "maxcpu": status["cpus"],
            }
            if cluster.config.release.host_memory:
                states[number]["memhost"] = status["mem"]
    return states


def storage_row(cluster: Cluster, node: str, storage: StorageConfig) -> dict[str, object]:
    """One storage of a node as last broadcast (PVE::API2Tools, extract_storage_stats)."""
    entry = {
        "id": f"storage/{node}/{storage.name}",
        "type": "storage",
        "storage": storage.name,
        "node": node,
        "status": "unknown",
        "plugintype": storage.type,
        "content": content_text(storage),
        "shared": int(storage.shared),
    }
    if told(cluster, node) is None:
        return entry
    total, used = cluster.volumes.space(node, storage)
    return {**entry, "status": "available", "maxdisk": total, "disk": used}


def guest_usage(cluster: Cluster, node: str, vmid: int, config: GuestConfig) -> Usage | None:
    with contextlib.suppress(ApiError, ValueError):
        return cluster.runtime.usage(cluster.spec(node, vmid, config))
    return None


def guest_status(cluster: Cluster, node: str, vmid: int, config: GuestConfig, *, running: bool) -> dict[str, object]:
    """One guest as ``status/current`` and the node's list show it: bytes, seconds, cores."""
    usage = guest_usage(cluster, node, vmid, config) if running else None
    options = config.options
    entry: dict[str, object] = {
        "vmid": vmid,
        "status": "running" if running else "stopped",
        "name": options.get("hostname", f"CT{vmid}"),
        "type": "lxc",
        "cpus": float(options["cpulimit"]) if float(options.get("cpulimit", 0)) else int(options.get("cores", 0)) or 2,
        "cpu": usage.cpu if usage else 0,
        "mem": usage.mem if usage else 0,
        "maxmem": int(options.get("memory", DEFAULT_MEMORY)) * MIB,
        "swap": usage.swap if usage else 0,
        "maxswap": int(options.get("swap", DEFAULT_MEMORY)) * MIB,
        "disk": usage.disk if usage else 0,
        "maxdisk": max_disk(config),
        "netin": usage.netin if usage else 0,
        "netout": usage.netout if usage else 0,
        "diskread": usage.diskread if usage else 0,
        "diskwrite": usage.diskwrite if usage else 0,
        "uptime": usage.uptime if usage else 0,
    }
    for key in ("tags", "lock"):
        if key in options:
            entry[key] = options[key]
    if config.flag("template"):
        entry["template"] = 1
    if usage is not None:
        entry["pid"] = usage.pid
        if cluster.config.release.pressure:
            entry.update(dict.fromkeys((*_PRESSURE, *_PRESSURE_MEMORY), 0))
    return entry
