"""Volumes of all storages: owners, numbers, sizes, content (facts proxmox 2.3, 4, 11).

What differs between the types of storages: :mod:`pvelab.storages`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pvelab.config import LabConfig, StorageConfig
from pvelab.errors import ApiError, bad_param, die
from pvelab.runtime import Log, Runtime
from pvelab.storages import Volume, type_of

MAX_DISK_NUMBER = 1024
TEMPLATE_FORMATS = {".tar.zst": "tzst", ".tar.gz": "tgz", ".tar.xz": "txz"}


@dataclass(frozen=True)
class VolumeInfo:
    volume: Volume
    size: int
    ctime: int
    format: str


def parse_volid(volid: str) -> tuple[str, str]:
    storage, separator, name = volid.partition(":")
    if not separator or not name or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_.-]*[a-zA-Z0-9]", storage):
        raise die(f"unable to parse volume ID '{volid}'")
    return storage, name


class Volumes:
    """The storages of the cluster as seen from any of its nodes."""

    def __init__(self, config: LabConfig, runtime: Runtime) -> None:
        self._config = config
        self._runtime = runtime
        self._storages = {entry.name: entry for entry in config.storages}
        for entry in config.storages:
            type_of(entry)  # an unknown one is told now
        self._numbering = threading.Lock()
        self.is_full: Callable[[str], bool] = lambda _storage: False
        """Whether a storage refuses to allocate now: set by faults on demand."""

    # --- storages ---

    def storages(self, node: str) -> list[StorageConfig]:
        return [entry for entry in self._storages.values() if entry.on_node(node)]

    def storage(self, name: str) -> StorageConfig:
        entry = self._storages.get(name)
        if entry is None:
            raise die(f"storage '{name}' does not exist")
        return entry

    def usable(self, name: str, node: str) -> StorageConfig:
        """The storage when it is enabled and on the node (facts proxmox 2.1, step 11)."""
        entry = self.storage(name)
        if not entry.enabled:
            raise die(f"storage '{name}' is disabled")
        if not entry.on_node(node):
            raise die(f"storage '{name}' is not available on node '{node}'")
        return entry

    def for_containers(self, name: str, node: str) -> StorageConfig:
        entry = self.usable(name, node)
        if "rootdir" not in entry.content:
            raise bad_param("storage", f"storage '{name}' does not support container directories")
        return entry

    def directory(self, node: str, storage: StorageConfig) -> Path:
        return self._config.storage_dir(node, storage.name)

    def space(self, node: str, storage: StorageConfig) -> tuple[int, int]:
        """Total and used bytes."""
        return type_of(storage).space(storage, self.directory(node, storage))

    # --- names ---

    def parse(self, volid: str) -> Volume:
        """500 for an unknown storage or a name that the storage type does not know."""
        storage_name, name = parse_volid(volid)
        storage = self.storage(storage_name)
        return type_of(storage).parse(storage, volid, name)

    def path(self, node: str, volume: Volume) -> Path:
        return type_of(volume.storage).file(self.directory(node, volume.storage), volume)

    def find(self, node: str, volid: str) -> Path:
        """The image of an existing volume; otherwise the text a failed activation gives (facts proxmox 7 A)."""
        volume = self.parse(volid)
        self.usable(volume.storage.name, node)
        path = self.path(node, volume)
        if not path.is_file():
            raise type_of(volume.storage).missing(volume)
        return path

    def size(self, node: str, volid: str) -> int:
        """Bytes; the die of a failed ``lvs`` when there is no such volume (facts proxmox 11)."""
        volume = self.parse(volid)
        path = self.path(node, volume)
        if not path.is_file():
            raise type_of(volume.storage).without_size(volume)
        return path.stat().st_size

    def next_name(self, node: str, storage: StorageConfig, vmid: int, kind: str = "vm") -> str:
        """The lowest free disk number over everything that carries the number, snapshots too (facts 2.3)."""
        numbered = re.compile(rf"(?:vm|base)-{vmid}-disk-(\d+)(?=\.raw|_|$)")
        files = type_of(storage).disks(self.directory(node, storage), vmid)
        taken = {int(match.group(1)) for file in files if (match := numbered.search(file.name))}
        number = next((n for n in range(MAX_DISK_NUMBER) if n not in taken), None)
        if number is None:
            raise die(f"unable to allocate an image name for VM {vmid} in storage '{storage.name}'")
        return type_of(storage).disk(vmid, f"{kind}-{vmid}-disk-{number}")

    # --- allocation ---

    def allocate(
        self,
        node: str,
        storage_name: str,
        vmid: int,
        size: int,
        log: Log,
        *,
        root_owner: int | None,
        name: str | None = None,
    ) -> str:
        """Make a volume and return its volid; formatted unless ``root_owner`` is None."""
        storage = self.usable(storage_name, node)
        kind = type_of(storage)
        with self._numbering:
            chosen = name or self.next_name(node, storage, vmid)
            volume = self.parse(f"{storage.name}:{chosen}")
            path = self.path(node, volume)
            if path.exists():
                raise kind.exists(volume, path)
            if self.is_full(storage.name):
                raise kind.full(storage, chosen)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for line in kind.created(volume):
            log(line)
        try:
            if root_owner is None:
                self._runtime.allocate_raw(path, size)
            else:
                self._runtime.format_volume(path, size, root_owner=root_owner, log=log)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        _stamp(path)
        return volume.volid

    def free(self, node: str, volid: str, log: Log) -> None:
        """Free a volume and, on LVM-thin, its snapshots; a missing one is no error there (facts proxmox 5)."""
        volume = self.parse(volid)
        path = self.path(node, volume)
        if volume.content != "images":
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_name(f".{path.name}.images"), ignore_errors=True)
            return
        kind = type_of(volume.storage)
        if path.exists():
            self._runtime.remove_volume(path)
            lines = kind.freed(volume)
        else:
            lines = kind.was_absent(path)
        for line in lines:
            log(line)
        for snapshot in path.parent.glob(f"snap_{path.name.removesuffix('.raw')}_*.raw"):
            self._runtime.remove_volume(snapshot)

    def grow(self, node: str, volid: str, size: int, *, mounted: bool, log: Log) -> None:
        volume = self.parse(volid)
        path = self.path(node, volume)
        before = path.stat().st_size
        if self.is_full(volume.storage.name):
            raise type_of(volume.storage).no_room_to_grow(volume)
        self._runtime.grow_volume(path, size, mounted=mounted, log=log)
        for line in type_of(volume.storage).grown(volume, before, size):
            log(line)

    def rename(self, node: str, volid: str, vmid: int) -> str:
        """Give a volume to another guest: the next free name of that guest (facts proxmox 9)."""
        volume = self.parse(volid)
        source = self.find(node, volid)
        with self._numbering:
            name = self.next_name(node, volume.storage, vmid)
            renamed = self.parse(f"{volume.storage.name}:{name}")
            target = self.path(node, renamed)
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
        return renamed.volid

    def make_base(self, node: str, volid: str) -> str:
        """``vm-105-disk-0`` becomes ``base-105-disk-0``, the form that templates have."""
        volume = self.parse(volid)
        source = self.find(node, volid)
        if volume.name.startswith("base-") or "/base-" in volume.name:
            return volid
        if not re.search(r"(?:^|/)vm-", volume.name):
            raise die(f"volume '{volid}' has a name that no template can have")
        name = re.sub(r"(^|/)vm-", r"\1base-", volume.name, count=1)
        renamed = self.parse(f"{volume.storage.name}:{name}")
        source.rename(self.path(node, renamed))
        return renamed.volid

    def copy(self, node: str, volid: str, storage_name: str, vmid: int) -> str:
        """A full copy as a new volume of ``vmid`` on ``storage_name``."""
        source = self.find(node, volid)
        storage = self.usable(storage_name, node)
        if self.is_full(storage.name):
            raise type_of(storage).full(storage, f"vm-{vmid}-disk-0")
        with self._numbering:
            volume = self.parse(f"{storage.name}:{self.next_name(node, storage, vmid)}")
            target = self.path(node, volume)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        self._runtime.copy_volume(source, target)
        _stamp(target)
        return volume.volid

    def import_image(self, node: str, storage_name: str, vmid: int, image: Path, *, size: int, log: Log) -> str:
        """A new volume of ``vmid`` with the content of a backup's image; at least ``size`` bytes."""
        volid = self.allocate(node, storage_name, vmid, max(size, image.stat().st_size), log, root_owner=None)
        target = self.path(node, self.parse(volid))
        self._runtime.copy_volume(image, target)
        _stamp(target)
        return volid

    # --- snapshots of volumes ---

    def _snapshot_path(self, node: str, volid: str, name: str) -> Path:
        path = self.find(node, volid)
        return path.with_name(f"snap_{path.name.removesuffix('.raw')}_{name}.raw")

    def snapshot(self, node: str, volid: str, name: str) -> None:
        target = self._snapshot_path(node, volid, name)
        if target.exists():
            volume = self.parse(volid)
            raise type_of(volume.storage).snapshot_exists(volume, name)
        self._runtime.copy_volume(self.find(node, volid), target)

    def rollback(self, node: str, volid: str, name: str) -> None:
        source = self._snapshot_path(node, volid, name)
        if not source.exists():
            raise die(f"snapshot '{name}' of volume '{volid}' does not exist")
        path = self.find(node, volid)
        # As lvremove and a new thin snapshot: the volume that is in use elsewhere refuses to go.
        self._runtime.remove_volume(path)
        self._runtime.copy_volume(source, path)
        _stamp(path)

    def drop_snapshot(self, node: str, volid: str, name: str) -> None:
        with contextlib.suppress(ApiError):
            path = self._snapshot_path(node, volid, name)
            if path.exists():
                self._runtime.remove_volume(path)

    def clear(self) -> None:
        """Free every volume, backup and ISO image of every node; templates stay. RuntimeFault for one in use."""
        for node in self._config.nodes:
            for storage in self.storages(node):
                directory = self.directory(node, storage)
                for file in [file for file in directory.rglob("*") if file.is_file()]:
                    if file.parent != self._config.template_dir(node, storage.name):
                        self._runtime.remove_volume(file)
                for folder in [folder for folder in directory.iterdir() if folder.is_dir()]:
                    if folder.name != "template":
                        shutil.rmtree(folder)

    # --- listing ---

    def list(self, node: str, storage: StorageConfig) -> Iterator[VolumeInfo]:
        """Everything on a storage, by volid."""
        entries: list[VolumeInfo] = []
        for name, path in type_of(storage).files(self.directory(node, storage)):
            try:
                volume = self.parse(f"{storage.name}:{name}")
                status = path.stat()
            except (ApiError, OSError):
                continue
            entries.append(VolumeInfo(volume, status.st_size, _ctime(path, status), _format(name)))
        yield from sorted(entries, key=lambda entry: entry.volume.volid)

    def owned(self, node: str, vmid: int) -> Iterator[VolumeInfo]:
        """Every volume of a guest on every enabled storage that holds containers."""
        for storage in self.storages(node):
            if storage.enabled and "rootdir" in storage.content:
                yield from (
                    e for e in self.list(node, storage) if e.volume.owner == vmid and e.volume.content == "images"
                )


def _format(name: str) -> str:
    return next((short for suffix, short in TEMPLATE_FORMATS.items() if name.endswith(suffix)), "raw")


_CTIME_ATTRIBUTE = "user.lab.ctime"


def _stamp(path: Path) -> None:
    # A write into the volume must not change when it was created: kept as an attribute of the file where possible.
    with contextlib.suppress(OSError):
        os.setxattr(path, _CTIME_ATTRIBUTE, str(int(time.time())).encode())


def _ctime(path: Path, status: os.stat_result) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(os.getxattr(path, _CTIME_ATTRIBUTE))
    return int(status.st_mtime)
