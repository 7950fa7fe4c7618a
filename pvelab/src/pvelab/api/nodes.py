"""/nodes: the nodes themselves, their tasks, their bridges."""

from __future__ import annotations

import os
import time

from pvelab import backup, startall
from pvelab.api.cluster import version
from pvelab.api.shapes import node_row
from pvelab.routing import Call, Router, anybody, in_method, on_path
from pvelab.schema import Prop, split_list, storage_id, vmid, vmid_list
from pvelab.tasks import Upid, check_own_task

_STARTED = time.time()
CARD = "eno1"
"""The node's own network card, a port of its bridge."""


def register(router: Router) -> None:
    router.add("GET", "/nodes", check=anybody)(nodes)
    router.add("GET", "/nodes/{node}/version", check=anybody)(version)
    router.add("GET", "/nodes/{node}/qemu", check=anybody, params={"full": Prop("boolean")})(machines)
    router.add("GET", "/nodes/{node}/status", check=on_path("/nodes/{node}", "Sys.Audit"))(status)
    router.add(
        "GET",
        "/nodes/{node}/network",
        check=anybody,
        params={"type": Prop(enum=("bridge", "any_bridge", "any_local_bridge"))},
    )(networks)
    router.add(
        "GET",
        "/nodes/{node}/tasks",
        check=anybody,
        params={
            "start": Prop("integer", minimum=0),
            "limit": Prop("integer", minimum=0),
            "vmid": Prop("integer"),
            "typefilter": Prop(),
            "source": Prop(enum=("archive", "active", "all")),
            "errors": Prop("boolean"),
        },
    )(tasks)
    router.add(
        "POST",
        "/nodes/{node}/vzdump",
        check=in_method,
        params={
            "vmid": Prop("integer", required=True, format=vmid),
            "storage": Prop(format=storage_id),
            "mode": Prop(enum=("snapshot", "suspend", "stop")),
            "compress": Prop(enum=("0", "1", "gzip", "lzo", "zstd")),
        },
    )(vzdump)
    some = {"vms": Prop(format=vmid_list)}
    start_fields = {**some, "force": Prop("boolean")}
    router.add("POST", "/nodes/{node}/startall", check=in_method, params=start_fields)(start_all)
    stop_fields = {**some, "force-stop": Prop("boolean"), "timeout": Prop("integer", minimum=0, maximum=7200)}
    router.add("POST", "/nodes/{node}/stopall", check=in_method, params=stop_fields)(stop_all)
    router.add("GET", "/nodes/{node}/tasks/{upid}/status", check=in_method)(task_status)
    router.add(
        "GET",
        "/nodes/{node}/tasks/{upid}/log",
        check=in_method,
        params={"start": Prop("integer", minimum=0), "limit": Prop("integer", minimum=0), "download": Prop("boolean")},
    )(task_log)
    router.add("DELETE", "/nodes/{node}/tasks/{upid}", check=in_method)(task_abort)


def nodes(call: Call) -> object:
    cluster = call.cluster
    found: list[dict[str, object]] = []
    for node in cluster.config.nodes:
        entry = {**node_row(cluster, node), "ssl_fingerprint": cluster.fingerprint}
        if entry["status"] == "online" and cluster.access.allows(call.who, f"/nodes/{node}", ["Sys.Audit"]):
            entry.update(_load())
        found.append(entry)
    return found


def _load() -> dict[str, object]:
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    free = os.sysconf("SC_AVPHYS_PAGES") * page
    return {
        "maxcpu": os.cpu_count() or 1,
        "cpu": min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)),
        "maxmem": total,
        "mem": total - free,
        "uptime": int(time.time() - _STARTED),
    }


def machines(call: Call) -> object:
    """The virtual machines: names only, and none ever runs here."""
    return [
        {"vmid": place.vmid, "status": "stopped", "name": f"VM{place.vmid}"}
        for place in sorted(call.cluster.guests().values(), key=lambda entry: entry.vmid)
        if place.kind == "qemu"
        and place.node == call.node
        and call.cluster.access.allows(call.who, f"/vms/{place.vmid}", ["VM.Audit"])
    ]


def status(call: Call) -> object:
    load = _load()
    return {
        "uptime": load["uptime"],
        "cpu": load["cpu"],
        "loadavg": [f"{value:.2f}" for value in os.getloadavg()],
        "memory": {"total": load["maxmem"], "used": load["mem"]},
        "cpuinfo": {"cpus": load["maxcpu"], "cores": load["maxcpu"], "sockets": 1},
        "kversion": f"{os.uname().sysname} {os.uname().release}",
        "pveversion": f"pve-manager/{call.cluster.config.release.version}/0c5b1d0a7f6e2b41",
    }


def networks(call: Call) -> object:
    """All cards, and the bridges that the caller may use or see (SDN.Use, SDN.Audit); with ``any_bridge`` the vnets."""
    cluster = call.cluster

    def may_see(bridge: str, zone: str) -> bool:
        return cluster.access.allows(call.who, f"/sdn/zones/{zone}/{bridge}", ["SDN.Audit", "SDN.Use"], any_of=True)

    bridges = [bridge for bridge in cluster.config.bridges if may_see(bridge, "localnetwork")]
    rows = [{"iface": bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static"} for bridge in bridges]
    if call.get("type") is None:
        # Only bridges are kept from those without rights (facts proxmox-9.2, row 25).
        rows.insert(0, {"iface": CARD, "type": "eth", "active": 1, "exists": 1, "method": "manual"})
    if call.get("type") == "any_bridge":
        vnets = [vnet for vnet, zone in cluster.config.vnets if may_see(vnet, zone)]
        # Without its zone (pve-network, get_local_vnets).
        rows += [{"iface": vnet, "type": "vnet", "active": "1", "ipam": 0, "vlanaware": 0} for vnet in vnets]
    return rows


def tasks(call: Call) -> object:
    """Ended and running tasks, newest first: all with Sys.Audit, else the own ones."""
    cluster = call.cluster
    auditor = cluster.access.allows(call.who, f"/nodes/{call.node}", ["Sys.Audit"])
    vmid, kind = call.get("vmid"), call.get("typefilter")
    source = call.get("source") or "archive"
    found: list[dict[str, object]] = []
    for upid in cluster.tasks.history(call.node):
        if not (auditor or check_own_task(upid, call.who.authid)):
            continue
        if (vmid is not None and upid.id != vmid) or (kind is not None and upid.type != kind):
            continue
        state = cluster.tasks.status(upid)
        ended = state["status"] == "stopped"
        if (source == "archive" and not ended) or (source == "active" and ended):
            continue
        if call.flag("errors") and state.get("exitstatus") == "OK":
            continue
        entry = {key: state[key] for key in ("upid", "node", "pid", "pstart", "starttime", "type", "id", "user")}
        if "tokenid" in state:
            entry["tokenid"] = state["tokenid"]
        if ended:
            entry["endtime"] = cluster.tasks.end_time(upid)
            entry["status"] = state["exitstatus"]
        found.append(entry)
    call.extra["total"] = len(found)
    first = call.number("start", 0)
    return found[first : first + call.number("limit", 50)]


def _readable(call: Call) -> Upid:
    """The task of the path when the caller may read it (facts proxmox 13)."""
    return _task(call, "Sys.Audit")


def _task(call: Call, privilege: str) -> Upid:
    """That there is none is said before who may see it (facts proxmox-9.2, row 19)."""
    upid = Upid.parse(call.params["upid"])
    call.cluster.tasks.check_exists(upid)
    if not check_own_task(upid, call.who.authid):
        call.cluster.access.check(call.who, f"/nodes/{call.node}", [privilege])
    return upid


def task_status(call: Call) -> object:
    return call.cluster.tasks.status(_readable(call))


def task_log(call: Call) -> object:
    lines, total = call.cluster.tasks.log(_readable(call), call.number("start", 0), call.number("limit", 50))
    call.extra["total"] = total
    return lines


def task_abort(call: Call) -> object:
    call.cluster.tasks.abort(_task(call, "Sys.Modify"))
    return None


def vzdump(call: Call) -> object:
    return backup.backup(call.cluster, call.who, call.node, call.params)


def _named(call: Call) -> list[int] | None:
    vms = call.get("vms")
    return None if vms is None else [int(vmid) for vmid in split_list(vms)]


def start_all(call: Call) -> object:
    return startall.start_all(call.cluster, call.who, call.node, force=call.flag("force"), vmids=_named(call))


def stop_all(call: Call) -> object:
    return startall.stop_all(
        call.cluster,
        call.who,
        call.node,
        force_stop=call.get("force-stop") != "0",
        timeout=call.number("timeout", startall.STOP_SECONDS),
        vmids=_named(call),
    )
