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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pvelab.config import LabConfig, StorageConfig
from pvelab.errors import ApiError, bad_param, die
from pvelab.guestfile import mount_type
from pvelab.runtime import Log, Runtime
from pvelab.storages import RAW, SUBVOL, Volume, type_of

MAX_DISK_NUMBER = 1024
TEMPLATE_FORMATS = {".tar.zst": "tzst", ".tar.gz": "tgz", ".tar.xz": "txz"}


@dataclass(frozen=True)
class VolumeInfo:
    volume: Volume
    size: int
    ctime: int
    format: str
    path: Path
    row: Mapping[str, object]
    """What the storage's type adds to its row in the list."""


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
        """The image, or the folder of a subvol."""
        return type_of(volume.storage).file(self.directory(node, volume.storage), volume)

    def _home(self, node: str, volume: Volume) -> Path:
        return type_of(volume.storage).home(self.directory(node, volume.storage), volume)

    def find(self, node: str, volid: str) -> Path:
        """The data of an existing volume; otherwise the text a failed activation gives (facts proxmox 7 A)."""
        volume = self.parse(volid)
        self.usable(volume.storage.name, node)
        path = self.path(node, volume)
        if not path.exists():
            raise type_of(volume.storage).missing(volume)
        return path

    def size(self, node: str, volid: str) -> int:
        """Bytes; the die of a failed ``lvs`` and the like when there is no such volume (facts proxmox 11)."""
        volume = self.parse(volid)
        kind = type_of(volume.storage)
        if not self.path(node, volume).exists():
            raise kind.without_size(volume)
        return kind.size(self._home(node, volume), volume)

    def has_feature(self, volid: str, feature: str, *, of_snapshot: bool = False) -> bool:
        """As PVE::Storage::volume_has_feature, for a container; a folder that is bound can nothing."""
        if mount_type(volid) != "volume":
            return False
        volume = self.parse(volid)
        return type_of(volume.storage).has_feature(feature, volume, of_snapshot=of_snapshot)

    def next_name(self, node: str, storage: StorageConfig, vmid: int, form: str = RAW) -> str:
        """The lowest free disk number over everything that carries the number, snapshots too (facts 2.3)."""
        kind = type_of(storage)
        numbered = re.compile(kind.number_format.format(vmid=vmid))
        names = kind.numbers(self.directory(node, storage), vmid)
        taken = {int(match.group(1)) for name in names if (match := numbered.search(name))}
        number = next((n for n in range(MAX_DISK_NUMBER) if n not in taken), None)
        if number is None:
            raise die(f"unable to allocate an image name for VM {vmid} in storage '{storage.name}'")
        return kind.disk(vmid, f"vm-{vmid}-disk-{number}", form)

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
        form: str | None = None,
        name: str | None = None,
    ) -> str:
        """Make a volume and return its volid. An image is formatted unless ``root_owner`` is None.

        ``form`` None: what the type makes for a container.
        """
        storage = self.usable(storage_name, node)
        kind = type_of(storage)
        form = form or kind.container_format(size)
        size = kind.rounded(size, form)
        if not size and form == RAW:
            raise ApiError(501, f"an image of size 0 on {storage.type} is not modelled by this lab")
        with self._numbering:
            chosen = name or self.next_name(node, storage, vmid, form)
            volume = self.parse(f"{storage.name}:{chosen}")
            home, path = self._home(node, volume), self.path(node, volume)
            if home.exists():
                raise kind.exists(volume)
            if self.is_full(storage.name) or not kind.has_room(storage, self.directory(node, storage), size):
                raise kind.full(storage, chosen, size)
            path.parent.mkdir(parents=True, exist_ok=True)
            if form == SUBVOL:
                path.mkdir(mode=0o755)
            else:
                path.touch()
        try:
            if form == SUBVOL:
                kind.limit(home, size)
            for line in kind.created(volume, size):
                log(line)
            if form == SUBVOL:
                self._runtime.own_folder(path, root_owner or 0)
            elif root_owner is None:
                self._runtime.allocate_raw(path, size)
            else:
                self._runtime.format_volume(path, size, root_owner=root_owner, log=log)
        except BaseException:
            _remove(home)
            raise
        _stamp(home)
        return volume.volid

    def free(self, node: str, volid: str, log: Log) -> None:
        """Free a volume and its snapshots; whether a missing one is an error, the type says (facts proxmox 5)."""
        volume = self.parse(volid)
        home, path = self._home(node, volume), self.path(node, volume)
        if volume.content != "images":
            path.unlink(missing_ok=True)
            return
        kind = type_of(volume.storage)
        if volume.is_base and any(entry.volume.parent == volume.own_name for entry in self.list(node, volume.storage)):
            raise die(f"base volume '{volume.name}' is still in use by linked clones")
        if home.exists():
            self._runtime.remove_volume(path, in_use=kind.in_use(volume))
            _remove(home)
            lines = kind.freed(volume)
        else:
            lines = kind.was_absent(volume)
        for line in lines:
            log(line)
        for snapshot in kind.snapshots(home):
            _remove(snapshot)
        if home.parent.name.isdigit():
            # Sub free_image: the folder of a guest goes with its last volume.
            with contextlib.suppress(OSError):
                home.parent.rmdir()

    def grow(self, node: str, volid: str, size: int, *, mounted: bool, log: Log) -> None:
        volume = self.parse(volid)
        kind = type_of(volume.storage)
        home = self._home(node, volume)
        before = kind.size(home, volume)
        if (refusal := kind.cannot_grow(volume)) is not None:
            raise refusal
        size = kind.rounded(size, volume.format)
        if self.is_full(volume.storage.name) or not kind.has_room(
            volume.storage, self.directory(node, volume.storage), size - before
        ):
            raise kind.no_room_to_grow(volume)
        if volume.format == SUBVOL:
            kind.limit(home, size)
        else:
            self._runtime.grow_volume(kind.data(home, volume), size, mounted=mounted, log=log)
        for line in kind.grown(volume, before, size):
            log(line)

    def rename(self, node: str, volid: str, vmid: int) -> str:
        """Give a volume to another guest: the next free name of that guest (facts proxmox 9)."""
        volume = self.parse(volid)
        self.find(node, volid)
        with self._numbering:
            name = self.next_name(node, volume.storage, vmid, volume.format)
            renamed = self.parse(f"{volume.storage.name}:{f'{volume.parent}/' if volume.parent else ''}{name}")
            self._move_home(node, volume, renamed)
        return renamed.volid

    def make_base(self, node: str, volid: str) -> str:
        """``vm-105-disk-0`` becomes ``base-105-disk-0``, the form that templates have."""
        volume = self.parse(volid)
        self.find(node, volid)
        base = self.parse(f"{volume.storage.name}:{type_of(volume.storage).base_name(volume)}")
        self._move_home(node, volume, base)
        return base.volid

    def _move_home(self, node: str, old: Volume, new: Volume) -> None:
        target = self._home(node, new)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._home(node, old).rename(target)

    def clone(self, node: str, volid: str, vmid: int) -> str:
        """A linked clone of a base. Here it is a copy; its name tells the base where the type's does."""
        base = self.parse(volid)
        kind = type_of(base.storage)
        self.find(node, volid)
        with self._numbering:
            name = kind.clone_name(base, self.next_name(node, base.storage, vmid, base.format))
            volume = self.parse(f"{base.storage.name}:{name}")
            self._copy_home(self._home(node, base), self._home(node, volume), volume)
            if volume.parent:
                (self._home(node, volume) / "origin").write_text(volume.parent)
        return volume.volid

    def copy(self, node: str, volid: str, storage_name: str, vmid: int, log: Log, *, root_owner: int) -> str:
        """A full copy as a new volume of ``vmid`` on ``storage_name``, in that type's form (PVE::LXC, copy_volume)."""
        return self._filled(
            node, storage_name, vmid, self.size(node, volid), log, source=self.find(node, volid), root_owner=root_owner
        )

    def _filled(
        self, node: str, storage_name: str, vmid: int, size: int, log: Log, *, source: Path, root_owner: int
    ) -> str:
        form = type_of(self.usable(storage_name, node)).container_format(size)
        as_it_is = (form == SUBVOL) == source.is_dir()
        owner = None if as_it_is and form == RAW else root_owner
        volid = self.allocate(node, storage_name, vmid, size, log, root_owner=owner, form=form)
        volume = self.parse(volid)
        target = self.path(node, volume)
        try:
            if as_it_is:
                made = target.stat().st_size
                self._runtime.copy_volume(source, target)
                if form == RAW and target.stat().st_size < made:
                    os.truncate(target, made)
            else:
                self._runtime.fill_volume(source, target)
        except BaseException:
            _remove(self._home(node, volume))
            raise
        _stamp(self._home(node, volume))
        return volid

    def _copy_home(self, home: Path, target: Path, volume: Volume) -> None:
        """The whole of a volume; ``volume`` says what is in both homes."""
        kind = type_of(volume.storage)
        data = kind.data(target, volume)
        data.parent.mkdir(parents=True, exist_ok=True)
        for file in [] if data == target else home.iterdir():
            if file.is_file() and file.name != data.name:
                shutil.copy2(file, target / file.name)
        self._runtime.copy_volume(kind.data(home, volume), data)
        _stamp(target)

    # --- snapshots of volumes ---

    def _snapshot_path(self, node: str, volid: str, name: str) -> Path:
        volume = self.parse(volid)
        self.find(node, volid)
        return type_of(volume.storage).snapshot_home(self._home(node, volume), name)

    def snapshot(self, node: str, volid: str, name: str) -> list[str]:
        """Lines for the task's log, as of the two below."""
        volume = self.parse(volid)
        kind = type_of(volume.storage)
        target = self._snapshot_path(node, volid, name)
        if target.exists():
            raise kind.snapshot_exists(volume, name)
        self._copy_home(self._home(node, volume), target, volume)
        return kind.snapshot_made(volume, name)

    def check_rollback(self, node: str, volid: str, name: str) -> None:
        """500 where a volume can't go back to a snapshot (volume_rollback_is_possible)."""
        volume = self.parse(volid)
        self.find(node, volid)
        refusal = type_of(volume.storage).cannot_roll_back(volume, self._home(node, volume), name)
        if refusal is not None:
            raise refusal

    def rollback(self, node: str, volid: str, name: str) -> list[str]:
        volume = self.parse(volid)
        kind = type_of(volume.storage)
        home = self._home(node, volume)
        if not self._snapshot_path(node, volid, name).exists():
            raise die(f"snapshot '{name}' of volume '{volid}' does not exist")
        # As lvremove and a new thin snapshot: the volume that is in use elsewhere refuses to go.
        self._runtime.remove_volume(kind.data(home, volume), in_use=kind.in_use(volume))
        self._copy_home(kind.snapshot_home(home, name), home, volume)
        return kind.rolled_back(volume)

    def drop_snapshot(self, node: str, volid: str, name: str) -> list[str]:
        volume = self.parse(volid)
        with contextlib.suppress(ApiError):
            _remove(self._snapshot_path(node, volid, name))
        return type_of(volume.storage).snapshot_freed(volume, name)

    def clear(self) -> None:
        """Free every volume, backup and ISO image of every node; templates stay. RuntimeFault for one in use."""
        for node in self._config.nodes:
            for storage in self.storages(node):
                directory, kept = self.directory(node, storage), self._config.template_dir(node, storage.name)
                for entry in list(self.list(node, storage)):
                    if entry.volume.content == "images":
                        self._runtime.remove_volume(entry.path, in_use=f"{entry.volume.volid} is in use")
                for path in [*directory.iterdir(), *directory.glob("template/*")]:
                    if path not in (kept.parent, kept):
                        _remove(path)

    # --- listing ---

    def list(self, node: str, storage: StorageConfig) -> Iterator[VolumeInfo]:
        """Everything on a storage, by volid."""
        kind, directory = type_of(storage), self.directory(node, storage)
        entries: list[VolumeInfo] = []
        for name in kind.files(directory):
            try:
                volume = self.parse(f"{storage.name}:{name}")
                home = kind.home(directory, volume)
                path = kind.data(home, volume)
                size, ctime = kind.size(home, volume), _ctime(home, home.stat())
            except (ApiError, OSError, ValueError):
                continue
            form = volume.format if volume.content == "images" else _format(name)
            entries.append(VolumeInfo(volume, size, ctime, form, path, kind.row(volume, home)))
        yield from sorted(entries, key=lambda entry: entry.volume.volid)

    def owned(self, node: str, vmid: int) -> Iterator[VolumeInfo]:
        """Every volume of a guest on every enabled storage that holds containers."""
        for storage in self.storages(node):
            if storage.enabled and "rootdir" in storage.content:
                yield from (
                    e for e in self.list(node, storage) if e.volume.owner == vmid and e.volume.content == "images"
                )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
