"""Volumes and guests that change place: move_volume, clone, template, migrate (facts proxmox 9, 10)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping

from pvelab import guestconfig, guestlife
from pvelab.access import Identity
from pvelab.cluster import Cluster, check_config_lock, check_digest, check_protection, root_owner, volume_of
from pvelab.errors import ApiError, bad_params, denied, die
from pvelab.guestfile import GuestConfig, Section, is_mount, is_unused, mount_points, mount_type, parse_mount
from pvelab.rights import check_bridge
from pvelab.runtime import RuntimeFault
from pvelab.schema import NETWORK, format_size, parse_property_string
from pvelab.tasks import Task

# --- move_volume ------------------------------------------------------------------------------------------------------


def move_volume(cluster: Cluster, who: Identity, node: str, vmid: int, params: Mapping[str, str]) -> str:
    """To another storage, or to another guest: exactly one of the two."""
    storage, target = params.get("storage"), params.get("target-vmid")
    if storage and target:
        raise die("either set storage or target-vmid, but not both")
    if target:
        return _move_to_guest(cluster, who, node, vmid, target=int(target), params=params)
    if storage:
        return _move_to_storage(cluster, who, node, vmid, storage=storage, params=params)
    text = "both 'storage' and 'target-vmid' missing, either needs to be set"
    raise bad_params({"storage": text, "target-vmid": text})


def _move_to_storage(
    cluster: Cluster, who: Identity, node: str, vmid: int, *, storage: str, params: Mapping[str, str]
) -> str:
    key, delete = params["volume"], params.get("delete") == "1"
    cluster.access.check(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])

    def check() -> tuple[GuestConfig, str]:
        config = cluster.load(node, vmid)
        check_config_lock(config)
        if cluster.is_running(node, vmid):
            raise die("cannot move volumes of a running container")
        if is_unused(key):
            raise die(f"cannot move volume '{key}', only configured volumes can be moved to another storage")
        value = config.get(key)
        if value is None:
            raise guestconfig.no_such_mount(key)
        volid = volume_of(key, value)
        if volid is None:
            raise die("not a volume")
        if delete and any(volume_of(k, v) == volid for s in config.snapshots.values() for k, v in _slots(s.options)):
            raise die("you can't move a volume with snapshots and delete the source")
        check_digest(config, params.get("digest"))
        cluster.volumes.for_containers(storage, node)
        return config, volid

    with cluster.locked(vmid):
        config, _ = check()
        config.options["lock"] = "disk"
        cluster.store(node, vmid, config)

    def worker(task: Task) -> None:
        new: str | None = None
        try:
            with cluster.locked(vmid):
                config = cluster.load(node, vmid)
                old = volume_of(key, config.options[key])
                if old is None:
                    raise die(f"volume '{key}' for container '{vmid}' does not exist")
                new = cluster.volumes.copy(node, old, storage, vmid, task.line, root_owner=root_owner(config))
                task.line(f"copied '{old}' to '{new}'")
                size = format_size(cluster.volumes.size(node, new))
                mount = {**parse_mount(key, config.options[key]), "volume": new, "size": size}
                config.options[key] = guestconfig.print_mount(key, mount)
                if not delete:
                    guestconfig.add_unused(config, old)
                del config.options["lock"]
                cluster.store(node, vmid, config)
                if delete:
                    _free_moved(cluster, node, vmid, old, task)
        except (ApiError, RuntimeFault):
            if new is not None:
                cluster.volumes.free(node, new, task.line)
            with cluster.locked(vmid):
                config = cluster.load(node, vmid)
                config.options.pop("lock", None)
                cluster.store(node, vmid, config)
            raise

    return cluster.start_task(node, "move_volume", vmid, who, worker)


def _free_moved(cluster: Cluster, node: str, vmid: int, volid: str, task: Task) -> None:
    """The source, whoever owns it; what can't be freed is listed as unused (API2/LXC.pm, move_volume)."""
    try:
        cluster.volumes.free(node, volid, task.line)
    except (ApiError, RuntimeFault) as error:
        task.line(str(error))
        config = cluster.load(node, vmid)
        guestconfig.add_unused(config, volid)
        cluster.store(node, vmid, config)


def _move_to_guest(
    cluster: Cluster, who: Identity, node: str, vmid: int, *, target: int, params: Mapping[str, str]
) -> str:
    key = params["volume"]
    target_key = params.get("target-volume", key)
    cluster.access.check(who, f"/vms/{target}", ["VM.Config.Disk"])

    def check() -> tuple[GuestConfig, GuestConfig, str]:
        if "rootfs" in (key, target_key):
            raise die("Cannot move to/from 'rootfs'")
        if is_unused(key) and not is_unused(target_key):
            raise die("Moving an unused volume to a used one is not possible")
        source_config, target_config = _both(cluster, node, vmid, target, params)
        value = source_config.get(key)
        if value is None:
            raise die(f"volume '{key}' for container '{vmid}' does not exist")
        if target_key in target_config.options:
            raise die(f"Target volume key '{target_key}' is already in use for container '{target}'")
        volid = volume_of(key, value)
        if volid is None:
            # A folder has no storage that could rename it: the words for bind mounts are never reached.
            raise die("Storage does not support moving of this disk to another container")
        storage = cluster.volumes.parse(volid).storage
        if any(volume_of(k, v) == volid for s in source_config.snapshots.values() for k, v in _slots(s.options)):
            raise die("Cannot move volume used by a snapshot to another container")
        if not cluster.volumes.has_feature(volid, "rename"):
            raise die("Storage does not support moving of this disk to another container")
        if not is_unused(key) and cluster.is_running(node, vmid):
            raise die("Cannot move in-use volume while the source CT is running - detach or shutdown first")
        cluster.access.check(who, f"/storage/{storage.name}", ["Datastore.AllocateSpace"])
        return source_config, target_config, volid

    check()

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            _, _, volid = check()
            if target == vmid:
                _reassign(cluster, node, vmid, key, target, target_key, volid, task)
            else:
                with cluster.locked(target):
                    _reassign(cluster, node, vmid, key, target, target_key, volid, task)

    return cluster.start_task(node, "move_volume", f"{vmid}-{key}>{target}-{target_key}", who, worker)


def _both(
    cluster: Cluster, node: str, vmid: int, target: int, params: Mapping[str, str]
) -> tuple[GuestConfig, GuestConfig]:
    """The configurations of source and target, where nothing is in the way of a change."""
    place = cluster.guests().get(target)
    if place is None:
        raise die(f"could not find CT {target}")
    if place.node != node:
        raise die(f"Both containers need to be on the same node ({node} != {place.node})")
    source_config, target_config = cluster.load(node, vmid), cluster.load(node, target)
    for config in (source_config, target_config):
        check_config_lock(config)
    if source_config.flag("template") or target_config.flag("template"):
        raise die("Can't move volumes from or to template CT")
    for number, config, digest in (
        (vmid, source_config, params.get("digest")),
        (target, target_config, params.get("target-digest")),
    ):
        try:
            check_digest(config, digest)
        except ApiError as error:
            raise die(f"Container {number}: {error.message}") from None
    return source_config, target_config


def _slots(options: dict[str, str]) -> list[tuple[str, str]]:
    return [(key, value) for key, value in options.items() if is_mount(key) or is_unused(key)]


def _reassign(  # noqa: PLR0917 - source and target, each a guest and a slot
    cluster: Cluster, node: str, vmid: int, key: str, target: int, target_key: str, volid: str, task: Task
) -> None:
    """Rename, take out of the source, put into the target: in this order, whatever the target then says (facts 9)."""
    task.line(f"moving volume '{key}' from container '{vmid}' to '{target}'")
    new = cluster.volumes.rename(node, volid, target)
    task.line(f"renamed volume '{volid}' to '{new}'")
    source_config = cluster.load(node, vmid)
    value = source_config.options.pop(key)
    cluster.store(node, vmid, source_config)
    target_config = cluster.load(node, target)
    if is_unused(target_key):
        target_config.options[target_key] = new
        cluster.store(node, target, target_config)
    else:
        check_protection(target_config, f"can't update CT {target} drive '{target_key}'")
        mount = {**parse_mount(key, value), "volume": new}
        text = guestconfig.print_mount(target_key, mount)
        try:
            guestconfig.update(cluster, node, target, target_config, options={target_key: text}, delete=(), revert=())
        except ApiError as error:
            task.warn(error.exit_text())


# --- clone and template -----------------------------------------------------------------------------------------------


_WORDS = {True: "full clone of mountpoint", False: "linked clone of mount point"}


def clone(cluster: Cluster, who: Identity, node: str, vmid: int, params: Mapping[str, str]) -> str:
    """Task ``vzclone``: every volume is copied into one of the new guest's own, foreign ones too.

    For as long as it takes the source is locked (``disk``), so a second clone of it is refused, and the new guest is
    (``create``). What is refused leaves neither (pve-container: API2/LXC.pm, clone_vm).
    """
    new, pool, storage = int(params["newid"]), params.get("pool"), params.get("storage")
    access = cluster.access
    access.check_guest(who, new, ["VM.Allocate"], pool=pool)
    if pool is not None and pool not in access.pools:
        raise denied(f"pool '{pool}' does not exist")
    if storage is not None:
        cluster.volumes.usable(storage, node)
    cluster.check_quorum()
    with cluster.locked(vmid):
        source = cluster.load(node, vmid)
        check_config_lock(source)
        source.options["lock"] = "disk"
        cluster.store(node, vmid, source)
    with _undone(lambda: _unlock(cluster, node, vmid)):
        guestlife.reserve(cluster, node, new, "create")
        with _undone(lambda: cluster.conf_path(node, new).unlink(missing_ok=True)):
            full, target = _judged_clone(cluster, who, source, params, running=cluster.is_running(node, vmid))
            with cluster.locked(new):
                cluster.store(node, new, target)

    def worker(task: Task) -> None:
        made: list[str] = []
        if cluster.config.release.names_clone:
            task.line(f"creating a clone of container {vmid} with ID {new}")
        try:
            with cluster.locked(new):
                for key, mount in list(mount_points(target.options)):
                    task.checkpoint()
                    task.line(f"create {_WORDS[full]} {key} ({mount['volume']})")
                    where = (storage or mount["volume"].partition(":")[0]) if full else None
                    copied = _copied(cluster, node, target, mount["volume"], new, where=where, task=task)
                    made.append(copied)
                    size = format_size(cluster.volumes.size(node, copied))
                    target.options[key] = guestconfig.print_mount(key, {**mount, "volume": copied, "size": size})
                    cluster.store(node, new, target)
                if pool is not None:
                    cluster.access.add_to_pool(pool, new)
                cluster.activate(node, target)  # every volume is mounted for this
                cluster.runtime.new_identity(cluster.spec(node, new, target), task.line)
                guestlife.warn_of_nesting(cluster, target, task)
                _unlock(cluster, node, vmid)
                del target.options["lock"]
                cluster.store(node, new, target)
        except (ApiError, RuntimeFault) as error:
            _unlock(cluster, node, vmid)
            guestlife.undo_creation(cluster, node, new, made, task)
            raise RuntimeFault(f"clone failed: {error}") from error

    return cluster.start_task(node, "vzclone", vmid, who, worker)


@contextlib.contextmanager
def _undone(undo: Callable[[], object]) -> Iterator[None]:
    """What was done before is taken back where the body fails."""
    try:
        yield
    except BaseException:
        undo()
        raise


def _judged_clone(
    cluster: Cluster, who: Identity, source: GuestConfig, params: Mapping[str, str], *, running: bool
) -> tuple[bool, GuestConfig]:
    """Whether it is a full clone, and the new guest's configuration, whose volumes are the source's still."""
    snapshot, storage = params.get("snapname"), params.get("storage")
    full = params["full"] == "1" if "full" in params else not source.flag("template")
    if not full and storage is not None:
        raise die("parameter 'storage' not allowed for linked clones")
    if snapshot is not None:
        if snapshot not in source.snapshots:
            raise die(f"snapshot '{snapshot}' does not exist")
        raise ApiError(501, "clone from a snapshot is not modelled by this lab")
    target = _cloned_options(source, params)
    for key in sorted(target.options):
        if is_mount(key):
            volume = parse_mount(key, target.options[key])["volume"]
            if mount_type(volume) != "volume":
                raise die(f"unable to clone mountpoint '{key}' (type {mount_type(volume)})")
            cluster.access.check(who, f"/storage/{storage or volume.partition(':')[0]}", ["Datastore.AllocateSpace"])
            if full and running:
                raise die(cluster.config.release.clone_of_running)
            if not full and not cluster.volumes.has_feature(volume, "clone"):
                raise die(f"Linked clone feature for '{volume}' is not available")
        elif re.fullmatch(r"net\d+", key):
            check_bridge(cluster, who, target.options[key])
    return full, target


def _unlock(cluster: Cluster, node: str, vmid: int) -> None:
    """Take a clone's lock from its source."""
    with cluster.locked(vmid):
        config = cluster.load(node, vmid)
        config.options.pop("lock", None)
        cluster.store(node, vmid, config)


def _copied(
    cluster: Cluster, node: str, target: GuestConfig, volid: str, new: int, *, where: str | None, task: Task
) -> str:
    """A volume of the new guest: a full copy on the storage ``where``, or linked to its base where that is None."""
    if where is None:
        return cluster.volumes.clone(node, volid, new)
    return cluster.volumes.copy(node, volid, where, new, task.line, root_owner=root_owner(target))


def _cloned_options(source: GuestConfig, params: Mapping[str, str]) -> GuestConfig:
    dropped = ("lock", "parent", "template")
    options = {k: v for k, v in source.options.items() if k not in dropped and not is_unused(k)}
    options["lock"] = "create"
    if "hostname" in params:
        options["hostname"] = params["hostname"]
    if "description" in params:
        options["description"] = params["description"].rstrip("\n") + "\n"
    for key in [k for k in options if re.fullmatch(r"net\d+", k)]:
        net = parse_property_string(NETWORK, options[key], key)
        net.pop("hwaddr", None)
        options[key] = guestconfig.normal_network(",".join(f"{k}={v}" for k, v in net.items()), key)
    return GuestConfig(Section(options, list(source.main.raw)))


def make_template(cluster: Cluster, who: Identity, node: str, vmid: int) -> None:
    """Turn a stopped guest into a template: its volumes are renamed to ``base-`` and it never starts again.

    The work is a task ``vztemplate``, and the caller is not told of it (facts proxmox-9.2, row 23).
    """

    def check() -> GuestConfig:
        config = cluster.load(node, vmid)
        check_config_lock(config)
        if config.snapshots:
            raise die("unable to create template, because CT contains snapshots")
        if config.flag("template"):
            raise die("you can't convert a template to a template")
        if cluster.is_running(node, vmid):
            raise die("you can't convert a CT to template if the CT is running")
        return config

    with cluster.locked(vmid):
        check()

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = check()
            for _, mount in mount_points(config.options):
                if not cluster.volumes.has_feature(mount["volume"], "template"):
                    raise die(f"Template feature is not available for '{mount['volume']}'")
            for key, mount in list(mount_points(config.options)):
                task.checkpoint()
                base = cluster.volumes.make_base(node, mount["volume"])
                config.options[key] = guestconfig.print_mount(key, {**mount, "volume": base})
            config.options["template"] = "1"
            cluster.store(node, vmid, config)

    cluster.start_task(node, "vztemplate", vmid, who, worker)


# --- migrate ----------------------------------------------------------------------------------------------------------


def migrate(cluster: Cluster, who: Identity, node: str, vmid: int, params: Mapping[str, str]) -> str:
    """Only the refusals, and the move of a stopped guest whose volumes are all shared (facts proxmox 10)."""
    target = params["target"]
    if target == node:
        raise bad_params({"target": "target is local node."})
    cluster.check_quorum()
    if target not in cluster.config.nodes:
        raise die(f"no such cluster node '{target}'")
    config = cluster.load(node, vmid)
    if cluster.is_running(node, vmid) and params.get("restart") != "1":
        raise die("can't migrate running container without --online or --restart")
    check_config_lock(config)

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            for key, mount in mount_points(config.options):
                if mount_type(mount["volume"]) != "volume":
                    raise die(f"cannot migrate local {mount_type(mount['volume'])} mount point '{key}'")
                volume = cluster.volumes.parse(mount["volume"])
                if volume.storage.shared:
                    continue
                if volume.owner != vmid:
                    raise die(
                        f"can't migrate local volume '{volume.volid}': owned by other guest (owner = {volume.owner})"
                    )
                raise die(f"migration of the local volume '{volume.volid}' is not modelled by this lab")
            if cluster.is_running(node, vmid):
                raise die("restart migration is not modelled by this lab")
            task.line(f"starting migration of CT {vmid} to node '{target}'")
            cluster.conf_path(node, vmid).rename(cluster.conf_path(target, vmid))

    return cluster.start_task(node, "vzmigrate", vmid, who, worker)
