"""/version and /cluster."""

from __future__ import annotations

import contextlib

from pvelab.api.shapes import guest_status
from pvelab.cluster import Cluster
from pvelab.errors import ApiError, bad_param
from pvelab.routing import Call, Router, anybody, on_path
from pvelab.schema import Prop, vmid

_BROADCAST = (
    *("status", "name", "cpu", "maxmem", "mem", "maxdisk", "disk", "netin", "netout", "diskread", "diskwrite"),
    "uptime",
)


def register(router: Router) -> None:
    router.add("GET", "/version", check=anybody)(version)
    router.add("GET", "/cluster/nextid", check=anybody, params={"vmid": Prop("integer", format=vmid)})(next_id)
    router.add(
        "GET",
        "/cluster/resources",
        check=anybody,
        params={"type": Prop(enum=("vm", "storage", "node", "sdn"))},
    )(resources)
    router.add("GET", "/cluster/status", check=on_path("/", "Sys.Audit"))(status)


def version(call: Call) -> object:
    release = call.cluster.config.version
    return {"version": release, "release": release.rpartition(".")[0], "repoid": "0c5b1d0a7f6e2b41"}


def next_id(call: Call) -> object:
    taken = call.cluster.guests()
    asked = call.get("vmid")
    if asked is not None:
        if int(asked) in taken:
            raise bad_param("vmid", f"VM {asked} already exists")
        return asked
    return str(next(number for number in range(100, 1_000_000_000) if number not in taken))


def resources(call: Call) -> object:
    """Everything of the cluster that the caller may see (facts proxmox 12)."""
    cluster, kind = call.cluster, call.get("type")
    found: list[dict[str, object]] = []
    if kind in (None, "vm"):
        states = cluster.broadcast.states(lambda: _states(cluster))
        for place in sorted(cluster.guests().values(), key=lambda entry: entry.vmid):
            if place.kind == "lxc" and cluster.access.allows(call.who, f"/vms/{place.vmid}", ["VM.Audit"]):
                found.append(_guest(call, place.node, place.vmid, states.get(place.vmid)))
    if kind in (None, "node"):
        may = {n: cluster.access.allows(call.who, f"/nodes/{n}", ["Sys.Audit"]) for n in cluster.config.nodes}
        for node in cluster.config.nodes:
            entry: dict[str, object] = {"id": f"node/{node}", "type": "node", "node": node, "status": "online"}
            found.append({**entry, "level": ""} if may[node] else entry)
    if kind in (None, "storage"):
        found += _storages(call)
    return found


def _states(cluster: Cluster) -> dict[int, dict[str, object]]:
    """What each node tells the others now and then about its guests."""
    states: dict[int, dict[str, object]] = {}
    for node in cluster.config.nodes:
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
                    "memhost": status["mem"],
                }
    return states


def _guest(call: Call, node: str, vmid: int, state: dict[str, object] | None) -> dict[str, object]:
    """One guest: its state as last broadcast, ``unknown`` before the first time; tags and lock are live."""
    cluster = call.cluster
    entry: dict[str, object] = {"id": f"lxc/{vmid}", "type": "lxc", "vmid": vmid, "node": node, "status": "unknown"}
    entry.update(state or {})
    with contextlib.suppress(ApiError):
        options = cluster.load(node, vmid).options
        entry.update({key: options[key] for key in ("tags", "lock") if key in options})
    pool = cluster.access.pool_of_guest(vmid)
    if pool is not None and cluster.access.allows(call.who, f"/pool/{pool}", ["Pool.Audit"]):
        entry["pool"] = pool
    return entry


def _storages(call: Call) -> list[dict[str, object]]:
    cluster = call.cluster
    found: list[dict[str, object]] = []
    for node in cluster.config.nodes:
        for storage in cluster.volumes.storages(node):
            path = f"/storage/{storage.name}"
            if not cluster.access.allows(call.who, path, ["Datastore.Audit", "Datastore.AllocateSpace"], any_of=True):
                continue
            total, used = cluster.volumes.space(node, storage)
            found.append(
                {
                    "id": f"storage/{node}/{storage.name}",
                    "type": "storage",
                    "storage": storage.name,
                    "node": node,
                    "status": "available",
                    "plugintype": storage.type,
                    "content": ",".join(sorted(storage.content)),
                    "shared": int(storage.shared),
                    "maxdisk": total,
                    "disk": used,
                }
            )
    return found


def status(call: Call) -> object:
    nodes = call.cluster.config.nodes
    found: list[dict[str, object]] = []
    if len(nodes) > 1:
        found.append(
            {"id": "cluster", "type": "cluster", "name": "lab", "version": 1, "nodes": len(nodes), "quorate": 1}
        )
    for number, node in enumerate(nodes, 1):
        found.append(
            {
                "id": f"node/{node}",
                "type": "node",
                "name": node,
                "nodeid": number,
                "online": 1,
                "local": int(node == (call.local_node or nodes[0])),
                "ip": call.cluster.config.host,
                "level": "",
            }
        )
    return found
