"""Backups of containers and their restore (facts proxmox 10; pve-container 6.1.10, pve-manager 9.2.11).

An archive is what a node makes: a tar compressed by zstd, with ``./etc/vzdump/pct.conf`` first and each volume's files
below its path in the guest (VZDump/LXC.pm archive). A restore reads nothing else. In a lab without containers the files
of a volume are the one file that stands for them. What is the lab's own: it takes each volume as it is at one moment. A
node does so in mode ``snapshot`` only. In mode ``stop``, which a guest that does not run always has, it reads file by
file what may be mounted in another guest: files that change meanwhile are torn, and tar ends with an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pvelab import guestconfig, guestfile, guestlife
from pvelab.access import Identity
from pvelab.archives import CONFIG, FIREWALL, config_in
from pvelab.cluster import Cluster, check_config_lock, check_protection, root_owner
from pvelab.errors import ApiError, denied, die
from pvelab.guestfile import GuestConfig, mount_points, mount_type
from pvelab.rights import check_volume_access
from pvelab.runtime import RuntimeFault
from pvelab.schema import format_size, parse_size
from pvelab.tasks import Task


def backup(cluster: Cluster, who: Identity, node: str, params: Mapping[str, str]) -> str:
    """POST /nodes/{node}/vzdump for one container: task ``vzdump``."""
    vmid, storage_name = int(params["vmid"]), params.get("storage", "local")
    mode = params.get("mode", "snapshot")
    cluster.access.check(who, f"/storage/{storage_name}", ["Datastore.AllocateSpace"])
    cluster.load(node, vmid)

    def worker(task: Task) -> None:
        try:
            storage = cluster.volumes.usable(storage_name, node)
            if "backup" not in storage.content:
                raise die(f"can't use storage '{storage_name}' for backups - wrong content type")
        except ApiError as error:
            raise die(f"could not get storage information for '{storage_name}': {error.message}") from None
        cluster.access.check(who, f"/vms/{vmid}", ["VM.Backup"])
        stamp = time.strftime("%Y_%m_%d-%H_%M_%S")
        name = f"vzdump-lxc-{vmid}-{stamp}.tar.zst"
        archive = cluster.volumes.directory(node, storage) / "dump" / name
        task.line(f"INFO: starting new backup job: vzdump {vmid}")
        task.line(f"INFO: Starting Backup of VM {vmid} (lxc)")
        running = cluster.is_running(node, vmid)
        task.line(f"INFO: status = {'running' if running else 'stopped'}")
        with _locked_for_backup(cluster, node, vmid):
            # Whatever was asked for: a guest that does not run is not frozen, and has no snapshot made.
            used = mode if running else "stop"
            task.line(f"INFO: backup mode: {used}")
            config = cluster.load(node, vmid)
            if "hostname" in config.options:
                task.line(f"INFO: CT Name: {config.options['hostname']}")
            stopped = running and used == "stop"
            if stopped:
                task.line("INFO: stopping virtual guest")
                guestlife.power_down(cluster, node, vmid, config, task, timeout=600, force_stop=True)
            volumes = _included(cluster, node, config, task)
            task.line(f"INFO: creating vzdump archive '{archive}'")
            archive.parent.mkdir(parents=True, exist_ok=True)
            making = archive.with_suffix(".dat")
            try:
                notes = {CONFIG: _told(config).encode(), FIREWALL: b""}
                cluster.runtime.archive(volumes, notes, making, task.line)
                making.rename(archive)
            finally:
                making.unlink(missing_ok=True)
        if stopped:
            task.line("INFO: restarting vm")
            guestlife.boot(cluster, node, vmid, task)
        task.line(f"INFO: Finished Backup of VM {vmid}")

    return cluster.start_task(node, "vzdump", vmid, who, worker)


@contextlib.contextmanager
def _locked_for_backup(cluster: Cluster, node: str, vmid: int) -> Iterator[None]:
    """The configuration has ``lock: backup`` meanwhile (VZDump/LXC.pm lock_vm): it is read, and not changed."""
    with cluster.locked(vmid):
        config = cluster.load(node, vmid)
        check_config_lock(config)
        config.options["lock"] = "backup"
        cluster.store(node, vmid, config)
    try:
        yield
    finally:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            config.options.pop("lock", None)
            cluster.store(node, vmid, config)


def _told(config: GuestConfig) -> str:
    """The configuration as the archive has it (VZDump/LXC.pm assemble)."""
    kept = guestfile.parse(config.main.render())
    for key in ("lock", "parent"):
        kept.options.pop(key, None)
    return kept.main.render()


def _included(cluster: Cluster, node: str, config: GuestConfig, task: Task) -> list[tuple[str, Path]]:
    """Path in the guest, and data. The root file system always, a mount point with ``backup=1``, a bind mount never."""
    kept: list[tuple[str, Path]] = []
    for key, mount in mount_points(config.options):
        kind = mount_type(mount["volume"])
        if kind != "volume":
            task.line(f"INFO: excluding {kind} mount point {key} ('{mount['mp']}') from backup (not a volume)")
        elif key != "rootfs" and mount.get("backup") != "1":
            task.line(f"INFO: excluding volume mount point {key} ('{mount['mp']}') from backup (disabled)")
        else:
            task.line(f"INFO: including mount point {key} ('{mount.get('mp', '/')}') in backup")
            kept.append((mount.get("mp", "/"), cluster.volumes.find(node, mount["volume"])))
    return kept


def restore(cluster: Cluster, who: Identity, node: str, params: Mapping[str, str]) -> str:
    """POST lxc with ``restore=1``: task ``vzrestore``; every volume of the backup becomes a new one of the guest."""
    cluster.check_quorum()
    vmid, storage, force = int(params["vmid"]), params.get("storage", "local"), params.get("force") == "1"
    volid = params["ostemplate"]
    exists = vmid in cluster.guests()
    if exists and not force:
        cluster.check_free(vmid)
    allowed = cluster.access.allows(who, f"/vms/{vmid}", ["VM.Allocate"]) or (
        exists and cluster.access.allows(who, f"/vms/{vmid}", ["VM.Backup"])
    )
    if not allowed:
        raise denied()
    check_volume_access(cluster, who, vmid, volid)
    if cluster.volumes.parse(volid).content != "backup":
        raise die(f"unable to use volume {volid} - content type needs to be 'backup'")
    cluster.volumes.for_containers(storage, node)
    cluster.access.check(who, f"/storage/{storage}", ["Datastore.AllocateSpace"])
    archive = cluster.volumes.find(node, volid)
    if exists:
        config = cluster.load(node, vmid)
        check_protection(config, f"unable to restore CT {vmid}")
        check_config_lock(config)
        if cluster.is_running(node, vmid):
            raise die("can't overwrite running container")
    else:
        guestlife.reserve(cluster, node, vmid, "create")

    def worker(task: Task) -> None:
        made: list[str] = []
        try:
            with cluster.locked(vmid):
                old = cluster.load(node, vmid)
                task.line(f"recovering backed-up configuration from '{volid}'")
                config = _recover(cluster, node, vmid, archive, storage=storage, made=made, task=task)
                if exists:
                    guestlife.free_volumes(cluster, node, vmid, old, task)
                cluster.store(node, vmid, config)
        except (ApiError, RuntimeFault, ValueError, KeyError, OSError) as error:
            if exists:
                for new in made:
                    cluster.volumes.free(node, new, task.line)
            else:
                guestlife.undo_creation(cluster, node, vmid, made, task)
            raise RuntimeFault(f"unable to restore CT {vmid} - {error}") from error
        if params.get("start") == "1":
            task.after(lambda: guestlife.start_after_create(cluster, who, node, vmid))

    return cluster.start_task(node, "vzrestore", vmid, who, worker)


def _recover(
    cluster: Cluster, node: str, vmid: int, archive: Path, *, storage: str, made: list[str], task: Task
) -> GuestConfig:
    """The backed-up guest with new volumes, each added to ``made``.

    A volume that was not in the backup comes back empty, as a new one of the guest's own (API2/LXC.pm create_vm: all
    mount points of the backed-up configuration are made).
    """
    config = guestfile.parse(config_in(archive))
    for key in [k for k in config.options if k in ("lock", "parent") or k.startswith("unused")]:
        del config.options[key]
    for key, mount in list(mount_points(config.options)):
        if mount_type(mount["volume"]) != "volume":
            raise die(f"restoring '{key}' to {mount_type(mount['volume'])} mount is only possible for root")
        if "size" not in mount:
            raise die(f"unable to detect disk size - please specify {key} (size)")
        size, owner = parse_size(mount["size"]), root_owner(config)
        new = cluster.volumes.allocate(node, storage, vmid, size, task.line, root_owner=owner)
        made.append(new)
        shown = format_size(cluster.volumes.size(node, new))
        config.options[key] = guestconfig.print_mount(key, {**mount, "volume": new, "size": shown})
    cluster.runtime.restore(cluster.spec(node, vmid, config), archive, task.line)
    return config
