"""/nodes/{node}/lxc."""

from __future__ import annotations

from pvelab import backup, guestconfig, guestcopy, guestlife, guestsnapshot
from pvelab.api.shapes import guest_status, json_options
from pvelab.cluster import check_config_lock, check_digest
from pvelab.errors import ApiError, bad_param, die
from pvelab.guestfile import GuestConfig, Section, mount_points
from pvelab.rights import CONFIG_PRIVILEGES, check_deletions, check_options
from pvelab.routing import Call, Router, anybody, guest, in_method
from pvelab.schema import (
    GUEST_OPTIONS,
    MAX_MOUNT_POINTS,
    Prop,
    config_id,
    config_id_list,
    dns_name,
    node_name,
    pool_id,
    split_list,
    storage_id,
    vmid,
)

DIGEST = Prop(max_length=40)

CREATE: dict[str, Prop] = {
    **GUEST_OPTIONS,
    "vmid": Prop("integer", required=True, format=vmid),
    "ostemplate": Prop(required=True, max_length=255),
    "password": Prop(min_length=5),
    "ssh-public-keys": Prop(),
    "storage": Prop(format=storage_id),
    "start": Prop("boolean"),
    "pool": Prop(format=pool_id),
    "force": Prop("boolean"),
    "restore": Prop("boolean"),
    "unique": Prop("boolean", requires="restore"),
    "bwlimit": Prop("number", minimum=0),
    "ignore-unpack-errors": Prop("boolean"),
    "ha-managed": Prop("boolean"),
}
UPDATE: dict[str, Prop] = {
    **GUEST_OPTIONS,
    "delete": Prop(format=config_id_list),
    "revert": Prop(format=config_id_list),
    "digest": DIGEST,
}
_SLOTS = (
    "rootfs",
    *(f"mp{n}" for n in range(MAX_MOUNT_POINTS)),
    *(f"unused{n}" for n in range(MAX_MOUNT_POINTS)),
)
MOVE: dict[str, Prop] = {
    "volume": Prop(required=True, enum=_SLOTS),
    "storage": Prop(format=storage_id),
    "delete": Prop("boolean"),
    "digest": DIGEST,
    "bwlimit": Prop("number", minimum=0),
    "target-vmid": Prop("integer", format=vmid),
    "target-volume": Prop(enum=_SLOTS),
    "target-digest": DIGEST,
}
CLONE: dict[str, Prop] = {
    "newid": Prop("integer", required=True, format=vmid),
    "hostname": Prop(format=dns_name),
    "description": Prop(),
    "pool": Prop(format=pool_id),
    "snapname": Prop(format=config_id, max_length=40),
    "storage": Prop(format=storage_id),
    "full": Prop("boolean"),
    "target": Prop(format=node_name),
    "bwlimit": Prop("number", minimum=0),
}
_SUBDIRS = (
    *("config", "pending", "status", "vncproxy", "termproxy", "vncwebsocket", "spiceproxy", "migrate", "clone"),
    *("rrd", "rrddata", "firewall", "snapshot", "resize", "interfaces"),
)
_NOT_OPTIONS = ("node", "vmid", "digest", "delete", "revert")


def register(router: Router) -> None:
    base = "/nodes/{node}/lxc"
    one = base + "/{vmid}"
    skiplock = {"skiplock": Prop("boolean")}
    router.add("GET", base, check=anybody)(listing)
    router.add("POST", base, check=in_method, params=CREATE)(create)
    router.add("GET", one, check=anybody)(index)
    router.add(
        "GET",
        one + "/feature",
        check=guest("VM.Audit"),
        params={
            "feature": Prop(required=True, enum=("snapshot", "clone", "copy")),
            "snapname": Prop(format=config_id, max_length=40),
        },
    )(feature)
    router.add(
        "DELETE",
        one,
        check=guest("VM.Allocate"),
        params={key: Prop("boolean") for key in ("force", "purge", "destroy-unreferenced-disks")},
    )(destroy)
    router.add(
        "GET",
        one + "/config",
        check=guest("VM.Audit"),
        params={"current": Prop("boolean"), "snapshot": Prop(format=config_id, max_length=40)},
    )(config)
    router.add("PUT", one + "/config", check=guest(*CONFIG_PRIVILEGES, any_of=True), params=UPDATE)(update)
    router.add("GET", one + "/pending", check=guest("VM.Audit"))(pending)
    router.add("GET", one + "/status/current", check=guest("VM.Audit"))(status)
    router.add("GET", one + "/interfaces", check=guest("VM.Audit"))(interfaces)
    router.add(
        "POST",
        one + "/status/start",
        check=guest("VM.PowerMgmt"),
        params={**skiplock, "debug": Prop("boolean")},
    )(start)
    router.add(
        "POST",
        one + "/status/stop",
        check=guest("VM.PowerMgmt"),
        params={**skiplock, "overrule-shutdown": Prop("boolean")},
    )(stop)
    router.add(
        "POST",
        one + "/status/shutdown",
        check=guest("VM.PowerMgmt"),
        params={"timeout": Prop("integer", minimum=0), "forceStop": Prop("boolean")},
    )(shutdown)
    router.add(
        "POST", one + "/status/reboot", check=guest("VM.PowerMgmt"), params={"timeout": Prop("integer", minimum=0)}
    )(reboot)
    register_snapshots(router, one)
    router.add("POST", one + "/template", check=guest("VM.Allocate"))(template)
    router.add("POST", one + "/move_volume", check=guest("VM.Config.Disk"), params=MOVE)(move_volume)
    router.add("POST", one + "/clone", check=guest("VM.Clone"), params=CLONE)(clone)
    router.add(
        "POST",
        one + "/migrate",
        check=guest("VM.Migrate"),
        params={
            "target": Prop(required=True, format=node_name),
            "restart": Prop("boolean"),
            "online": Prop("boolean"),
            "timeout": Prop("integer"),
        },
    )(migrate)
    router.add(
        "PUT",
        one + "/resize",
        check=guest("VM.Config.Disk"),
        params={
            "disk": Prop(required=True, enum=("rootfs", *(f"mp{n}" for n in range(256)))),
            "size": Prop(required=True, pattern=r"\+?\d+(\.\d+)?[KMGT]?"),
            "digest": DIGEST,
        },
    )(resize)


def register_snapshots(router: Router, one: str) -> None:
    name = {"snapname": Prop(required=True, format=config_id, max_length=40)}
    both = ("VM.Snapshot", "VM.Snapshot.Rollback")
    router.add("GET", one + "/snapshot", check=guest("VM.Audit"))(snapshots)
    router.add("POST", one + "/snapshot", check=guest("VM.Snapshot"), params={**name, "description": Prop()})(
        snapshot_create
    )
    router.add("DELETE", one + "/snapshot/{snapname}", check=guest("VM.Snapshot"), params={"force": Prop("boolean")})(
        snapshot_delete
    )
    router.add(
        "POST",
        one + "/snapshot/{snapname}/rollback",
        check=guest(*both, any_of=True),
        params={"start": Prop("boolean")},
    )(snapshot_rollback)
    router.add(
        "GET",
        one + "/snapshot/{snapname}/config",
        check=guest("VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit", any_of=True),
    )(snapshot_config)


def listing(call: Call) -> object:
    cluster, node = call.cluster, call.node
    running = cluster.running(node)
    return [
        guest_status(cluster, node, number, cluster.load(node, number), running=number in running)
        for number in cluster.guest_ids(node)
        if cluster.access.allows(call.who, f"/vms/{number}", ["VM.Audit"])
    ]


def create(call: Call) -> object:
    """From a template, or with ``restore`` from a backup."""
    params = call.without_path("node")
    if call.flag("restore"):
        for name in sorted(
            set(params) - {"vmid", "ostemplate", "restore", "force", "storage", "start", "unprivileged"}
        ):
            raise ApiError(501, f"parameter '{name}' of restore is not modelled by this lab")
        return backup.restore(call.cluster, call.who, call.node, params)
    for name in ("unique", "bwlimit", "ignore-unpack-errors"):
        if call.get(name) not in (None, "0"):
            raise ApiError(501, f"parameter '{name}' of create is not modelled by this lab")
    return guestlife.create(call.cluster, call.who, call.node, params)


def destroy(call: Call) -> object:
    return guestlife.destroy(
        call.cluster,
        call.who,
        call.node,
        call.vmid,
        force=call.flag("force"),
        unreferenced=call.flag("destroy-unreferenced-disks"),
    )


def config(call: Call) -> object:
    loaded = call.cluster.load(call.node, call.vmid)
    snapshot = call.get("snapshot")
    if snapshot is not None:
        section = _snapshot(loaded, snapshot)
        options, raw = dict(section.options), section.raw
    else:
        options, raw = guestconfig.shown_options(loaded, current=call.flag("current")), loaded.main.raw
    shown = json_options(options)
    if raw:
        shown["lxc"] = [[key, value] for key, value in raw]
    return {**shown, "digest": loaded.digest}


def update(call: Call) -> object:
    """PUT config, in the order of facts proxmox 3."""
    cluster, node, number = call.cluster, call.node, call.vmid
    options = guestconfig.normal_options(call.without_path(*_NOT_OPTIONS))
    delete = split_list(call.get("delete") or "")
    revert = split_list(call.get("revert") or "")
    if not options and not delete and not revert:
        raise die("no options specified")
    with cluster.locked(number):
        loaded = cluster.load(node, number)
        check_config_lock(loaded)
        check_digest(loaded, call.get("digest"))
        unprivileged = loaded.flag("unprivileged")
        check_deletions(
            cluster, call.who, number, [*delete, *revert], current=loaded.options, unprivileged=unprivileged
        )
        known = set(GUEST_OPTIONS) - cluster.config.release.unknown
        for key in delete:
            if key in options:
                raise bad_param("delete", f"you can't use '-{key}' and -delete {key}' at the same time")
            if key not in known:
                raise bad_param("delete", f"unknown option '{key}'")
        for key in revert:
            if key not in known:
                raise bad_param("revert", f"unknown option '{key}'")
        check_options(cluster, call.who, number, options, current=loaded.options, unprivileged=unprivileged)
        guestconfig.update(cluster, node, number, loaded, options=options, delete=delete, revert=revert)
    return None


def pending(call: Call) -> object:
    loaded = call.cluster.load(call.node, call.vmid)
    current, waiting = json_options(loaded.options), json_options(loaded.pending.options)
    found: list[dict[str, object]] = []
    for key in sorted({*current, *waiting}):
        entry: dict[str, object] = {"key": key}
        if key in current:
            entry["value"] = current[key]
        if key in waiting:
            entry["pending"] = waiting[key]
        if key in loaded.delete:
            entry["delete"] = 1
        found.append(entry)
    return [*found, {"key": "digest", "value": loaded.digest}]


def status(call: Call) -> object:
    cluster, node, number = call.cluster, call.node, call.vmid
    loaded = cluster.load(node, number)
    shown = guest_status(cluster, node, number, loaded, running=cluster.is_running(node, number))
    return {**shown, "ha": {"managed": 0}}


def interfaces(call: Call) -> object:
    cluster, node, number = call.cluster, call.node, call.vmid
    loaded = cluster.load(node, number)
    if not cluster.is_running(node, number):
        return None
    found: list[dict[str, object]] = []
    for interface in cluster.runtime.interfaces(cluster.spec(node, number, loaded)):
        entry: dict[str, object] = {
            "name": interface.name,
            "hwaddr": interface.hwaddr,
            "hardware-address": interface.hwaddr,
            "ip-addresses": [
                {"ip-address": a.address, "ip-address-type": a.family, "prefix": str(a.prefix)}
                for a in interface.addresses
            ],
        }
        for address in interface.addresses:
            entry.setdefault(address.family, f"{address.address}/{address.prefix}")
        found.append(entry)
    return found


def _refuse_skiplock(call: Call) -> None:
    if call.flag("skiplock") and not call.who.is_root:
        raise bad_param("skiplock", "Only root may use this option.")


def start(call: Call) -> object:
    _refuse_skiplock(call)
    return guestlife.start(call.cluster, call.who, call.node, call.vmid)


def stop(call: Call) -> object:
    _refuse_skiplock(call)
    return guestlife.stop(
        call.cluster, call.who, call.node, call.vmid, overrule_shutdown=call.flag("overrule-shutdown")
    )


def shutdown(call: Call) -> object:
    return guestlife.shutdown(
        call.cluster,
        call.who,
        call.node,
        call.vmid,
        timeout=call.number("timeout", 60),
        force_stop=call.flag("forceStop"),
    )


def reboot(call: Call) -> object:
    return guestlife.reboot(call.cluster, call.who, call.node, call.vmid, timeout=call.number("timeout", 60))


def resize(call: Call) -> object:
    return guestlife.resize(call.cluster, call.who, call.node, call.vmid, call.params)


def snapshots(call: Call) -> object:
    loaded = call.cluster.load(call.node, call.vmid)
    return guestsnapshot.listing(loaded, running=call.cluster.is_running(call.node, call.vmid))


def snapshot_create(call: Call) -> object:
    name, text = call.params["snapname"], call.get("description")
    return guestsnapshot.create(call.cluster, call.who, call.node, call.vmid, name=name, description=text)


def snapshot_delete(call: Call) -> object:
    name = call.params["snapname"]
    return guestsnapshot.delete(call.cluster, call.who, call.node, call.vmid, name, force=call.flag("force"))


def snapshot_rollback(call: Call) -> object:
    name = call.params["snapname"]
    return guestsnapshot.rollback(call.cluster, call.who, call.node, call.vmid, name, start=call.flag("start"))


def snapshot_config(call: Call) -> object:
    loaded = call.cluster.load(call.node, call.vmid)
    return json_options(_snapshot(loaded, call.params["snapname"]).options)


def template(call: Call) -> object:
    guestcopy.make_template(call.cluster, call.who, call.node, call.vmid)
    return None


def index(call: Call) -> object:
    """What is below a guest, as pve-container lists it: more than this lab knows."""
    call.cluster.load(call.node, call.vmid)
    return [{"subdir": name} for name in _SUBDIRS]


def feature(call: Call) -> object:
    """Whether every volume of the guest, or of a snapshot of it, can be cloned, copied or part of a snapshot."""
    loaded = call.cluster.load(call.node, call.vmid)
    snapshot = call.get("snapname")
    options = _snapshot(loaded, snapshot).options if snapshot is not None else loaded.options
    wanted = call.params["feature"]
    able = all(
        call.cluster.volumes.has_feature(mount["volume"], wanted, of_snapshot=snapshot is not None)
        for _, mount in mount_points(options)
    )
    return {"hasFeature": int(able)}


def _snapshot(loaded: GuestConfig, name: str) -> Section:
    if name not in loaded.snapshots:
        raise die(f"snapshot '{name}' does not exist")
    return loaded.snapshots[name]


def move_volume(call: Call) -> object:
    return guestcopy.move_volume(call.cluster, call.who, call.node, call.vmid, call.params)


def clone(call: Call) -> object:
    target = call.get("target")
    if target is not None and target != call.node:
        raise ApiError(501, "clone to another node is not modelled by this lab")
    return guestcopy.clone(call.cluster, call.who, call.node, call.vmid, call.params)


def migrate(call: Call) -> object:
    return guestcopy.migrate(call.cluster, call.who, call.node, call.vmid, call.params)
