"""/version and /cluster."""

from __future__ import annotations

import contextlib

from pvelab.api.shapes import guest_row, node_row, storage_row
from pvelab.cluster import Cluster, GuestPlace
from pvelab.errors import ApiError, bad_param
from pvelab.routing import Call, Router, anybody, on_path
from pvelab.schema import Prop, vmid
from pvelab.tasks import Upid

MAX_TASKS = 25
_SEE = ("Datastore.Audit", "Datastore.AllocateSpace")


def register(router: Router) -> None:
    router.add("GET", "/version", check=anybody)(version)
    router.add("GET", "/cluster/nextid", check=anybody, params={"vmid": Prop("integer", format=vmid)})(next_id)
    router.add(
        "GET",
        "/cluster/resources",
        check=anybody,
        params={"type": Prop(enum=("vm", "storage", "node", "sdn"))},
    )(resources)
    router.add("GET", "/cluster/tasks", check=anybody)(tasks)
    router.add("GET", "/cluster/status", check=on_path("/", "Sys.Audit"))(status)


def version(call: Call) -> object:
    release = call.cluster.config.release
    return {"version": release.version, "release": release.name, "repoid": "0c5b1d0a7f6e2b41"}


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
        for place in sorted(cluster.guests().values(), key=lambda entry: entry.vmid):
            if place.kind == "lxc" and cluster.access.allows(call.who, f"/vms/{place.vmid}", ["VM.Audit"]):
                found.append(_guest(call, place))
    if kind in (None, "node"):
        found += [node_row(cluster, node) for node in cluster.config.nodes]
    if kind in (None, "storage"):
        found += [
            storage_row(cluster, node, storage)
            for node in cluster.config.nodes
            for storage in cluster.volumes.storages(node)
            if cluster.access.allows(call.who, f"/storage/{storage.name}", _SEE, any_of=True)
        ]
    return found


def _guest(call: Call, place: GuestPlace) -> dict[str, object]:
    """One guest: its state as last broadcast; tags and lock are live."""
    cluster = call.cluster
    entry = guest_row(cluster, place)
    with contextlib.suppress(ApiError):
        options = cluster.load(place.node, place.vmid).options
        entry.update({key: options[key] for key in ("tags", "lock") if key in options})
    pool = cluster.access.pool_of_guest(place.vmid)
    if pool is not None and cluster.access.allows(call.who, f"/pool/{pool}", ["Pool.Audit"]):
        entry["pool"] = pool
    return entry


def tasks(call: Call) -> object:
    """What each node tells of its tasks: those that run, and the last ended ones, 25 in all (PVE::RESTEnvironment).

    With Sys.Audit on / all of them, else those of the user who asks. A token is never such a user.
    """
    cluster = call.cluster
    auditor = cluster.access.allows(call.who, "/", ["Sys.Audit"])
    found: list[dict[str, object]] = []
    for node in cluster.config.nodes:
        states = [cluster.tasks.status(upid) for upid in cluster.tasks.history(node)]
        running = [state for state in states if state["status"] == "running"]
        ended = [state for state in states if state["status"] == "stopped"]
        for state in [*running, *ended[: max(0, MAX_TASKS - len(running))]]:
            if auditor or state["user"] == call.who.authid:
                found.append(_task(cluster, state))
    return found


def _task(cluster: Cluster, state: dict[str, object]) -> dict[str, object]:
    keys = ("upid", "node", "starttime", "type", "id", "user", "tokenid")
    shown: dict[str, object] = {key: state[key] for key in keys if key in state}
    if state["status"] == "running":
        return {**shown, "pid": state["pid"], "saved": "0"}
    upid = Upid.parse(str(state["upid"]))
    return {**shown, "endtime": cluster.tasks.end_time(upid), "status": state["exitstatus"], "saved": "1"}


def status(call: Call) -> object:
    nodes = call.cluster.config.nodes
    found: list[dict[str, object]] = []
    if len(nodes) > 1:
        quorate = int(not call.cluster.is_inquorate())
        found.append(
            {"id": "cluster", "type": "cluster", "name": "lab", "version": 1, "nodes": len(nodes), "quorate": quorate}
        )
    for number, node in enumerate(nodes, 1):
        found.append(
            {
                "id": f"node/{node}",
                "type": "node",
                "name": node,
                "nodeid": number if len(nodes) > 1 else 0,
                "online": int(not call.cluster.is_offline(node)),
                "local": int(node == (call.local_node or nodes[0])),
                "ip": call.cluster.config.host,
                "level": "",
            }
        )
    return found
