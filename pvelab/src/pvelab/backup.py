"""Backups of stopped containers and their restore (facts proxmox 10).

What is faithful: which volumes are in a backup, names, rights, refusals, and that a restore makes new volumes of the
restored guest. What is the lab's own: the inside of an archive. It is a small JSON file, and the volumes lie beside it
as images or folders; a real node cannot read it. A container that runs is only backed up in mode ``stop``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from pvelab import guestconfig, guestfile, guestlife
from pvelab.access import Identity
from pvelab.cluster import Cluster, check_config_lock, check_protection, root_owner
from pvelab.errors import ApiError, denied, die
from pvelab.guestfile import GuestConfig, mount_points, mount_type
from pvelab.rights import check_volume_access
from pvelab.runtime import RuntimeFault
from pvelab.schema import format_size, parse_size
from pvelab.tasks import Task


def images_of(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.images")


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
        task.line(f"INFO: backup mode: {mode}")
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config)
            # In the other modes the volumes are copied beside the running guest, each as it is at one moment.
            was_running = mode == "stop" and cluster.is_running(node, vmid)
            if was_running:
                guestlife.power_down(cluster, node, vmid, config, task, timeout=600, force_stop=True)
                config = cluster.load(node, vmid)
            images = images_of(archive)
            try:
                images.mkdir(parents=True)
                kept = _copy_out(cluster, node, config, images, task)
                archive.write_text(json.dumps({"config": config.main.render(), "volumes": kept}))
            except BaseException:
                shutil.rmtree(images, ignore_errors=True)
                archive.unlink(missing_ok=True)
                raise
            if was_running:
                guestlife.boot(cluster, node, vmid, task)
        task.line(f"INFO: creating vzdump archive '{archive}'")
        task.line(f"INFO: Finished Backup of VM {vmid}")

    return cluster.start_task(node, "vzdump", vmid, who, worker)


def _copy_out(cluster: Cluster, node: str, config: GuestConfig, images: Path, task: Task) -> list[str]:
    """The root file system always, a mount point only with ``backup=1``, a bind mount never."""
    kept: list[str] = []
    for key, mount in mount_points(config.options):
        kind = mount_type(mount["volume"])
        if kind != "volume":
            task.line(f"INFO: excluding {kind} mount point {key} ('{mount['mp']}') from backup (not a volume)")
        elif key != "rootfs" and mount.get("backup") != "1":
            task.line(f"INFO: excluding volume mount point {key} ('{mount['mp']}') from backup (disabled)")
        else:
            if key != "rootfs":
                task.line(f"INFO: including mount point {key} ('{mount['mp']}') in backup")
            cluster.runtime.copy_volume(cluster.volumes.find(node, mount["volume"]), images / key)
            kept.append(key)
    return kept


def restore(cluster: Cluster, who: Identity, node: str, params: Mapping[str, str]) -> str:
    """POST lxc with ``restore=1``: task ``vzrestore``; every volume of the backup becomes a new one of the guest."""
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
    """The backed-up guest with new volumes, each added to ``made``; what was not in the backup is left out."""
    manifest = json.loads(archive.read_text())
    config = guestfile.parse(manifest["config"])
    for key in [k for k in config.options if k in ("lock", "parent") or k.startswith("unused")]:
        del config.options[key]
    for key, mount in list(mount_points(config.options)):
        if key not in manifest["volumes"]:
            del config.options[key]
            continue
        size = parse_size(mount["size"]) if "size" in mount else 0
        new = cluster.volumes.import_image(
            *(node, storage, vmid, images_of(archive) / key), size=size, log=task.line, root_owner=root_owner(config)
        )
        made.append(new)
        shown = format_size(cluster.volumes.size(node, new))
        config.options[key] = guestconfig.print_mount(key, {**mount, "volume": new, "size": shown})
    return config
