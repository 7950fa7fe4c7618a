"""/pools (facts proxmox 1, 12)."""

from __future__ import annotations

from collections.abc import Mapping

from pvelab.access import Pool
from pvelab.errors import die
from pvelab.routing import Call, Router, anybody, on_path
from pvelab.schema import Prop, pool_id, split_list

_POOL = Prop(required=True, format=pool_id)
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
        params={"poolid": Prop(format=pool_id), "type": Prop(enum=("qemu", "lxc", "storage"), requires="poolid")},
    )(listing)
    router.add("POST", "/pools", check=_by_parameter, params={"poolid": _POOL, "comment": Prop()})(create)
    router.add("PUT", "/pools", check=_by_parameter, params={"poolid": _POOL, **_EDIT})(update)
    router.add("DELETE", "/pools", check=_by_parameter, params={"poolid": _POOL})(delete)
    router.add("GET", "/pools/{poolid}", check=on_path("/pool/{poolid}", "Pool.Audit"))(one)
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
    guests = call.cluster.guests()
    found: list[dict[str, object]] = []
    for number in sorted(pool.vms):
        if number in guests:
            place = guests[number]
            found.append({"id": f"{place.kind}/{number}", "type": place.kind, "vmid": number, "node": place.node})
    for node in call.cluster.config.nodes:
        found += [
            {"id": f"storage/{node}/{name}", "type": "storage", "storage": name, "node": node}
            for name in sorted(pool.storages)
        ]
    return found


def listing(call: Call) -> object:
    access = call.cluster.access
    asked = call.get("poolid")
    if asked is not None:
        pool = _find(call, asked)
        access.check(call.who, f"/pool/{asked}", ["Pool.Audit"])
        members = [entry for entry in _members(call, pool) if call.get("type") in (None, entry["type"])]
        return [{**_shown(asked, pool), "members": members}]
    return [
        _shown(name, pool)
        for name, pool in sorted(access.pools.items())
        if access.allows(call.who, f"/pool/{name}", ["Pool.Audit"])
    ]


def one(call: Call) -> object:
    pool = _find(call, call.params["poolid"])
    return {
        **({"comment": pool.comment} if pool.comment is not None else {}),
        "members": _members(call, pool),
    }


def create(call: Call) -> None:
    access, name = call.cluster.access, call.params["poolid"]
    if name in access.pools:
        raise die(f"create pool failed: pool '{name}' already exists")
    access.pools[name] = Pool(comment=call.get("comment"))
    access.save()


def update(call: Call) -> None:
    access = call.cluster.access
    pool = _find(call, call.params["poolid"])
    guests = [int(part) for part in split_list(call.get("vms") or "")]
    storages = split_list(call.get("storage") or "")
    for number in guests:
        access.check(call.who, f"/vms/{number}", ["VM.Allocate"])
    for name in storages:
        access.check(call.who, f"/storage/{name}", ["Datastore.Allocate"])
    for number in guests:
        _edit_guest(call, pool, number)
    for name in storages:
        _edit_storage(call, pool, name)
    if call.get("comment") is not None:
        pool.comment = call.params["comment"]
    access.save()


def _edit_guest(call: Call, pool: Pool, number: int) -> None:
    access = call.cluster.access
    if call.flag("delete"):
        if number not in pool.vms:
            raise die(f"update pools failed: VM {number} is not a pool member")
        pool.vms.remove(number)
    elif number in pool.vms:
        raise die(f"update pools failed: VM {number} is already a pool member")
    else:
        other = access.pool_of_guest(number)
        if other is not None:
            if not call.flag("allow-move"):
                text = f"VM {number} belongs already to pool '{other}' and 'allow-move' is not set"
                raise die(f"update pools failed: {text}")
            access.pools[other].vms.remove(number)
        pool.vms.append(number)


def _edit_storage(call: Call, pool: Pool, name: str) -> None:
    if call.flag("delete"):
        if name not in pool.storages:
            raise die(f"update pools failed: Storage '{name}' is not a pool member")
        pool.storages.remove(name)
    elif name in pool.storages:
        raise die(f"update pools failed: Storage '{name}' is already a pool member")
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
