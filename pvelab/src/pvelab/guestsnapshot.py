"""Snapshots: made, deleted, rolled back over every volume a guest mounts, whoever owns it (facts proxmox 10)."""

from __future__ import annotations

import contextlib
import time

from pvelab import guestconfig, guestlife
from pvelab.access import Identity
from pvelab.cluster import Cluster, check_config_lock
from pvelab.errors import ApiError, die
from pvelab.guestfile import GuestConfig, Section, is_unused, mount_points, mount_type
from pvelab.tasks import Task

_NOT_SAVED = frozenset(("lock", "parent", "template"))


def _volumes(options: dict[str, str]) -> list[str]:
    return [mount["volume"] for _, mount in mount_points(options)]


def _check_supported(cluster: Cluster, config: GuestConfig) -> None:
    for volume in _volumes(config.options):
        # A bind mount never can.
        if mount_type(volume) != "volume" or not cluster.volumes.has_feature(volume, "snapshot"):
            raise die("snapshot feature is not available")


def _section(config: GuestConfig, name: str) -> Section:
    section = config.snapshots.get(name)
    if section is None:
        raise die(f"snapshot '{name}' does not exist")
    return section


def create(cluster: Cluster, who: Identity, node: str, vmid: int, *, name: str, description: str | None) -> str:
    """Task ``vzsnapshot``."""
    if name in ("current", "vzdump"):
        raise die(f"unable to use snapshot name '{name}' (reserved name)")

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config)
            if config.flag("template"):
                raise die("you can't take a snapshot if it's a template")
            if name in config.snapshots:
                raise die(f"snapshot name '{name}' already used")
            _check_supported(cluster, config)
            made: list[str] = []
            try:
                for volume in _volumes(config.options):
                    for line in cluster.volumes.snapshot(node, volume, name):
                        task.line(line)
                    made.append(volume)
            except ApiError:
                for volume in made:
                    cluster.volumes.drop_snapshot(node, volume, name)
                raise
            saved = {k: v for k, v in config.options.items() if k not in _NOT_SAVED and not is_unused(k)}
            saved.pop("description", None)
            if description:
                saved["description"] = description.rstrip("\n") + "\n"
            if parent := config.get("parent"):
                saved["parent"] = parent
            saved["snaptime"] = str(int(time.time()))
            config.snapshots[name] = Section(saved, list(config.main.raw))
            config.options["parent"] = name
            cluster.store(node, vmid, config)

    return cluster.start_task(node, "vzsnapshot", vmid, who, worker)


def delete(cluster: Cluster, who: Identity, node: str, vmid: int, name: str, *, force: bool) -> str:
    """Task ``vzdelsnapshot``: own volumes that only the snapshot still held become ``unusedK``.

    A foreign one whose unused entry was removed does not come back (facts proxmox-9.2, row 22).
    """

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config)
            section = _section(config, name)
            if config.flag("template"):
                raise die("you can't delete a snapshot if vm is a template")
            for volume in _volumes(section.options):
                try:
                    for line in cluster.volumes.drop_snapshot(node, volume, name):
                        task.line(line)
                except ApiError:
                    if not force:
                        raise
            del config.snapshots[name]
            parent = section.options.get("parent")
            for options in (config.options, *(other.options for other in config.snapshots.values())):
                if options.get("parent") == name:
                    if parent is None:
                        del options["parent"]
                    else:
                        options["parent"] = parent
            for volume in _volumes(section.options):
                own = cluster.volumes.parse(volume).owner == vmid
                if own and not guestconfig.volume_in_use(config, volume):
                    guestconfig.add_unused(config, volume)
            cluster.store(node, vmid, config)

    return cluster.start_task(node, "vzdelsnapshot", vmid, who, worker)


def rollback(cluster: Cluster, who: Identity, node: str, vmid: int, name: str, *, start: bool) -> str:
    """Task ``vzrollback``: stops the guest, reverts every volume, then the config; protection does not matter."""

    def worker(task: Task) -> None:
        with cluster.locked(vmid):
            config = cluster.load(node, vmid)
            check_config_lock(config)
            if config.flag("template"):
                raise die("you can't rollback if vm is a template")
            section = _section(config, name)
            for volume in _volumes(section.options):
                cluster.volumes.check_rollback(node, volume, name)
            config.options["lock"] = "rollback"
            cluster.store(node, vmid, config)
            if cluster.is_running(node, vmid):
                guestlife.kill(cluster, node, vmid, config, task)
                config = cluster.load(node, vmid)
            for volume in _volumes(section.options):
                # A failure here leaves "lock: rollback", as on a node.
                for line in cluster.volumes.rollback(node, volume, name):
                    task.line(line)
            before = _volumes(config.options)
            unused = {key: value for key, value in config.options.items() if is_unused(key)}
            restored = {k: v for k, v in section.options.items() if k not in ("snaptime", "parent", "description")}
            restored |= unused
            for key in ("description", "template"):
                if key in config.options:
                    restored[key] = config.options[key]
            restored["parent"] = name
            config.main = Section(restored, list(section.raw))
            config.pending, config.delete = Section(), []
            for volume in before:
                if not guestconfig.volume_in_use(config, volume):
                    guestconfig.add_unused(config, volume)
            cluster.store(node, vmid, config)
            if start:
                with contextlib.suppress(ApiError):
                    guestlife.boot(cluster, node, vmid, task)

    return cluster.start_task(node, "vzrollback", vmid, who, worker)


def listing(config: GuestConfig, *, running: bool) -> list[dict[str, object]]:
    """Every snapshot and, last, the state of now under the name ``current``."""
    found: list[dict[str, object]] = []
    for name, section in sorted(config.snapshots.items()):
        entry: dict[str, object] = {
            "name": name,
            "description": section.options.get("description", ""),
            "snaptime": int(section.options.get("snaptime", 0)),
        }
        if parent := section.options.get("parent"):
            entry["parent"] = parent
        found.append(entry)
    current: dict[str, object] = {"name": "current", "description": "You are here!", "digest": config.digest}
    current["running"] = int(running)
    if parent := config.get("parent"):
        current["parent"] = parent
    return [*found, current]
