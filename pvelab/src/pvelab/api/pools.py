"""/pools (facts proxmox 1, 12)."""

from __future__ import annotations

from collections.abc import Mapping

from pvelab.access import Pool
from pvelab.api.shapes import guest_row, storage_row
from pvelab.errors import ApiError, die
from pvelab.routing import Call, Router, anybody, on_path
from pvelab.schema import Prop, pool_id, split_list

_POOL = Prop(required=True, format=pool_id)
_KINDS = ("qemu", "lxc", "storage")
_EDIT: Mapping[str, Prop] = {
    "comment": Prop(),
    "vms": Prop(),
    "storage": Prop(),
    "delete": Prop("boolean"),
    "allow-move": Prop("boolean"),
}


def register(router: Router) -> None:
    allocate = on_path("/pool/{poolid}", "Pool.Allocate")
    router.add(
        "GET",
        "/pools",
        check=anybody,
        params={"poolid": Prop(format=pool_id), "type": Prop(enum=_KINDS, requires="poolid")},
    )(listing)
    router.add("POST", "/pools", check=_by_parameter, params={"poolid": _POOL, "comment": Prop()})(create)
    router.add("PUT", "/pools", check=_by_parameter, params={"poolid": _POOL, **_EDIT})(update)
    router.add("DELETE", "/pools", check=_by_parameter, params={"poolid": _POOL})(delete)
    router.add(
        "GET", "/pools/{poolid}", check=on_path("/pool/{poolid}", "Pool.Audit"), params={"type": Prop(enum=_KINDS)}
    )(one)
    router.add("PUT", "/pools/{poolid}", check=allocate, params=_EDIT)(update)
    router.add("DELETE", "/pools/{poolid}", check=allocate)(delete)


def _by_parameter(call: Call) -> None:
    if "poolid" in call.params:
        call.cluster.access.check(call.who, f"/pool/{call.params['poolid']}", ["Pool.Allocate"])


def _find(call: Call, name: str) -> Pool:
    pool = call.cluster.access.pools.get(name)
    if pool is None:
        raise die(f"pool '{name}' does not exist")
    return pool


def _shown(name: str, pool: Pool) -> dict[str, object]:
    return {"poolid": name, **({"comment": pool.comment} if pool.comment is not None else {})}


def _members(call: Call, pool: Pool) -> list[dict[str, object]]:
    """Guests, then storages, each as a row of the cluster's resources; a storage on the node that was asked."""
    cluster = call.cluster
    guests = cluster.guests()
    found = [guest_row(cluster, guests[number]) for number in sorted(pool.vms) if number in guests]
    asked = call.local_node or cluster.config.nodes[0]
    for name in sorted(pool.storages):
        storage = cluster.volumes.storage(name)
        node = asked if storage.on_node(asked) else min(storage.nodes or (asked,))
        found.append(storage_row(cluster, node, storage))
    return found


def listing(call: Call) -> object:
    access = call.cluster.access
    if call.get("poolid") is not None:
        return [one(call)]
    return [
        _shown(name, pool)
        for name, pool in sorted(access.pools.items())
        if access.allows(call.who, f"/pool/{name}", ["Pool.Audit"])
    ]


def one(call: Call) -> dict[str, object]:
    name = call.params["poolid"]
    pool = _find(call, name)
    call.cluster.access.check(call.who, f"/pool/{name}", ["Pool.Audit"])
    members = [entry for entry in _members(call, pool) if call.get("type") in (None, entry["type"])]
    return {**_shown(name, pool), "members": members}


def create(call: Call) -> None:
    access, name = call.cluster.access, call.params["poolid"]
    if name in access.pools:
        raise die(f"create pool failed: pool '{name}' already exists")
    parent, _, leaf = name.rpartition("/")
    if parent and parent not in access.pools:
        raise die(f"create pool failed: parent '{parent}' of pool '{name}' does not exist")
    if call.cluster.config.release.pool_letter and not leaf[0].isalpha():
        raise die("create pool failed: pool name must start with a letter")
    access.pools[name] = Pool(comment=call.get("comment"))
    access.save()


def update(call: Call) -> None:
    access = call.cluster.access
    pool = _find(call, call.params["poolid"])
    guests = [int(part) for part in split_list(call.get("vms") or "")]
    storages = split_list(call.get("storage") or "")
    try:
        for path in (*(f"/vms/{number}" for number in guests), *(f"/storage/{name}" for name in storages)):
            access.check_perm_modify(call.who, path)
        for number in guests:
            _edit_guest(call, pool, number)
        for name in storages:
            _edit_storage(call, pool, name)
    except ApiError as error:
        raise die(f"update pools failed: {error.exit_text()}") from None
    if call.get("comment") is not None:
        pool.comment = call.params["comment"]
    access.save()


def _edit_guest(call: Call, pool: Pool, number: int) -> None:
    access = call.cluster.access
    if call.flag("delete"):
        if number not in pool.vms:
            raise die(f"VM {number} is not a pool member")
        pool.vms.remove(number)
    elif number in pool.vms:
        raise die(f"VM {number} is already a pool member")
    else:
        other = access.pool_of_guest(number)
        if other is not None:
            if not call.flag("allow-move"):
                raise die(f"VM {number} belongs already to pool '{other}' and 'allow-move' is not set")
            access.check(call.who, f"/pool/{other}", ["Pool.Allocate"])
            access.pools[other].vms.remove(number)
        pool.vms.append(number)


def _edit_storage(call: Call, pool: Pool, name: str) -> None:
    if call.flag("delete"):
        if name not in pool.storages:
            raise die(f"Storage '{name}' is not a pool member")
        pool.storages.remove(name)
    elif name in pool.storages:
        raise die(f"Storage '{name}' is already a pool member")
    else:
        pool.storages.append(name)


def delete(call: Call) -> None:
    access, name = call.cluster.access, call.params["poolid"]
    pool = _find(call, name)
    guests = call.cluster.guests()
    for number in pool.vms:
        if number in guests:
            raise die(f"delete pool failed: pool '{name}' is not empty (contains VM {number})")
    for storage in pool.storages:
        raise die(f"delete pool failed: pool '{name}' is not empty (contains storage '{storage}')")
    del access.pools[name]
    access.save()
