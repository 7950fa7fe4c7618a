"""/storage and /nodes/{node}/storage: what is there, how full, and volumes without a guest (facts proxmox 11)."""

from __future__ import annotations

import hashlib
import re

from pvelab.api.shapes import content_text
from pvelab.config import StorageConfig
from pvelab.errors import ApiError, bad_param, die
from pvelab.rights import check_volume_access
from pvelab.routing import Call, Router, anybody, on_storage
from pvelab.schema import Prop, content_list, storage_id, vmid
from pvelab.storages import RAW, SUBVOL, Volume, type_of
from pvelab.tasks import Task, Upid
from pvelab.volumes import VolumeInfo

CONTENT = Prop(format=content_list)
_SEE = ("Datastore.Audit", "Datastore.AllocateSpace")


def register(router: Router) -> None:
    router.add("GET", "/storage", check=anybody, params={"type": Prop()})(configured)
    # The list takes less than Datastore.Allocate, one entry does not.
    router.add("GET", "/storage/{storage}", check=on_storage("Datastore.Allocate"))(configured_one)
    router.add(
        "GET",
        "/nodes/{node}/storage",
        check=anybody,
        params={
            "content": CONTENT,
            "storage": Prop(format=storage_id),
            "enabled": Prop("boolean"),
            "format": Prop("boolean"),
        },
    )(listing)
    router.add("GET", "/nodes/{node}/storage/{storage}/status", check=on_storage(*_SEE))(status)
    router.add(
        "GET",
        "/nodes/{node}/storage/{storage}/content",
        check=on_storage(*_SEE),
        params={"content": CONTENT, "vmid": Prop("integer", format=vmid)},
    )(content)
    router.add(
        "POST",
        "/nodes/{node}/storage/{storage}/content",
        check=on_storage("Datastore.AllocateSpace"),
        params={
            "vmid": Prop("integer", required=True, format=vmid),
            "filename": Prop(required=True),
            "size": Prop(required=True, pattern=r"\d+[MG]?"),
            "format": Prop(enum=("raw", "qcow2", "subvol", "vmdk"), requires="size"),
        },
    )(allocate)
    router.add("GET", "/nodes/{node}/storage/{storage}/content/{volume}", check=anybody)(volume_info)
    router.add(
        "DELETE",
        "/nodes/{node}/storage/{storage}/content/{volume}",
        check=anybody,
        params={"delay": Prop("integer", minimum=1, maximum=30)},
    )(free)


def _describe(call: Call, storage: StorageConfig) -> dict[str, object]:
    total, used = call.cluster.volumes.space(call.node, storage)
    return {
        "type": storage.type,
        "content": content_text(storage),
        "enabled": int(storage.enabled),
        "active": int(storage.enabled),
        "shared": int(storage.shared),
        "total": total,
        "used": used,
        "avail": max(0, total - used),
    }


def _visible(call: Call, storage: StorageConfig) -> bool:
    return call.cluster.access.allows(call.who, f"/storage/{storage.name}", _SEE, any_of=True)


def configured(call: Call) -> object:
    return [
        _configuration(call, storage)
        for storage in call.cluster.config.storages
        if _visible(call, storage) and call.get("type") in (None, storage.type)
    ]


def configured_one(call: Call) -> object:
    return _configuration(call, call.cluster.volumes.storage(call.params["storage"]))


def _configuration(call: Call, storage: StorageConfig) -> dict[str, object]:
    """The storage's entry in storage.cfg, and the digest of that file."""
    entry: dict[str, object] = {"storage": storage.name, "type": storage.type, "content": content_text(storage)}
    if storage.shared:
        entry["shared"] = 1
    if storage.nodes is not None:
        entry["nodes"] = ",".join(sorted(storage.nodes))
    if not storage.enabled:
        entry["disable"] = 1
    entry["digest"] = hashlib.sha1(repr(call.cluster.config.storages).encode(), usedforsecurity=False).hexdigest()
    return entry | type_of(storage).settings(storage)


def listing(call: Call) -> object:
    wanted = set((call.get("content") or "").split(",")) - {""}
    found: list[dict[str, object]] = []
    for storage in call.cluster.volumes.storages(call.node):
        if not _visible(call, storage) or call.get("storage") not in (None, storage.name):
            continue
        if (wanted and not wanted & storage.content) or (call.flag("enabled") and not storage.enabled):
            continue
        entry = {"storage": storage.name, **_describe(call, storage)}
        total, used = call.cluster.volumes.space(call.node, storage)
        entry["used_fraction"] = used / total if total else 0
        found.append(entry)
    return found


def _node_storage(call: Call) -> StorageConfig:
    return call.cluster.volumes.usable(call.params["storage"], call.node)


def status(call: Call) -> object:
    try:
        storage = _node_storage(call)
    except ApiError:
        raise bad_param("storage", "No such storage.") from None
    return _describe(call, storage)


def _content_type(volume: Volume, guests: set[int]) -> str:
    """A volume counts as ``rootdir`` only while its owner is a container that exists."""
    if volume.content != "images":
        return volume.content
    return "rootdir" if volume.owner in guests else "images"


def content(call: Call) -> object:
    cluster = call.cluster
    storage = _node_storage(call)
    wanted, owner = call.get("content"), call.get("vmid")
    guests = {number for number, place in cluster.guests().items() if place.kind == "lxc"}
    found: list[dict[str, object]] = []
    for entry in cluster.volumes.list(call.node, storage):
        kind = _content_type(entry.volume, guests)
        if (wanted is not None and kind != wanted) or (owner is not None and entry.volume.owner != int(owner)):
            continue
        try:
            check_volume_access(cluster, call.who, None, entry.volume.volid)
        except ApiError:
            continue
        found.append(_entry(entry, kind))
    return found


def _entry(entry: VolumeInfo, kind: str) -> dict[str, object]:
    shown: dict[str, object] = {
        "volid": entry.volume.volid,
        "content": kind,
        "format": entry.format,
        "size": entry.size,
        "ctime": type_of(entry.volume.storage).shown_ctime(entry.ctime),
    }
    if entry.volume.owner is not None:
        shown["vmid"] = entry.volume.owner
    shown |= entry.row
    if shown["ctime"] is None:
        del shown["ctime"]
    return shown


def allocate(call: Call) -> object:
    """A volume without a file system (facts proxmox 11); returns its volid."""
    storage = _node_storage(call)
    owner = call.vmid
    filename, form = call.params["filename"], call.get("format")
    if match := re.search(r"\.(raw|qcow2|vmdk)$", filename):
        if form not in (None, match[1]):
            raise bad_param("format", f"different storage formats ({form} != {match[1]})")
        form = match[1]
    form = form or RAW
    name = type_of(storage).requested(owner, filename, form)
    if form not in (RAW, SUBVOL):
        raise ApiError(501, f"a volume of format {form} is not modelled by this lab")
    number, unit = re.findall(r"(\d+)([MG]?)", call.params["size"])[0]
    size = int(number) * {"": 1 << 10, "M": 1 << 20, "G": 1 << 30}[unit]
    return call.cluster.volumes.allocate(
        call.node, storage.name, owner, size, lambda _text: None, root_owner=None, form=form, name=name
    )


def _volume(call: Call) -> Volume:
    given = call.params["volume"]
    storage = call.params["storage"]
    volid = given if ":" in given else f"{storage}:{given}"
    if volid.partition(":")[0] != storage:
        raise die(f"volume ID '{volid}' does not belong to storage '{storage}'")
    return call.cluster.volumes.parse(volid)


def volume_info(call: Call) -> object:
    volume = _volume(call)
    check_volume_access(call.cluster, call.who, None, volume.volid)
    size = call.cluster.volumes.size(call.node, volume.volid)
    if not size and volume.format != SUBVOL:
        raise die(f"volume '{volume.volid}' has size zero")
    path = call.cluster.volumes.path(call.node, volume)
    return {
        "path": type_of(volume.storage).shown_path(volume),
        "size": size,
        "used": min(size, path.stat().st_blocks * 512),
        "format": volume.format,
    }


def free(call: Call) -> object:
    """No look at any guest's config: only the kernel refuses, while it is mounted (facts proxmox 11)."""
    volume = _volume(call)
    cluster, node = call.cluster, call.node
    cluster.access.check(call.who, f"/storage/{volume.storage.name}", ["Datastore.Allocate"])
    cluster.volumes.usable(volume.storage.name, node)

    def worker(task: Task) -> None:
        cluster.volumes.free(node, volume.volid, task.line)
        task.line(f"Removed volume '{volume.volid}'")

    subject = f"{volume.owner}@{volume.storage.name}" if volume.owner is not None else volume.storage.name
    upid = cluster.start_task(node, "imgdel", subject, call.who, worker)
    if call.get("delay") is not None:
        for task in cluster.tasks.active():
            if str(task.upid) == upid:
                task.done.wait(call.number("delay", 1))
        state = cluster.tasks.status(Upid.parse(upid))
        if state["status"] == "stopped":
            if state["exitstatus"] != "OK":
                raise die(str(state["exitstatus"]))
            return None
    return upid
