"""Types of storages: how volumes are called, where they lie, and what Proxmox says of one (facts proxmox 2.3, 4, 11).

One class for each type, as in PVE::Storage. A volume is a sparse file whose apparent size is the volume's size. To add
a type, derive from :class:`StorageType` (or from the type that is nearest), and :func:`register` an object of it.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pvelab.config import StorageConfig
from pvelab.errors import ApiError, die

_EXTENT = 4 << 20  # LVM's extent size


@dataclass(frozen=True)
class Volume:
    """A parsed volid. ``owner`` is the guest whose number is in the name, None for templates and ISO images."""

    volid: str
    storage: StorageConfig
    name: str
    content: str
    owner: int | None


class StorageType(ABC):
    """``directory`` is the storage's folder on this machine; ``storage`` its entry in the configuration."""

    name: str
    can_snapshot = False
    """Whether a container's volume can be part of a snapshot (the image format decides, too: all are raw here)."""
    can_rename = False
    """Whether a volume can be given to another guest."""

    # --- names and places ---

    @abstractmethod
    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        """The volume of that name, whether it exists or not; 500 for a name that the type does not know."""

    @abstractmethod
    def file(self, directory: Path, volume: Volume) -> Path:
        """Where the volume lies on this machine."""

    @abstractmethod
    def shown_path(self, volume: Volume, file: Path) -> str:
        """The path that the API shows."""

    @abstractmethod
    def disk(self, vmid: int, disk: str) -> str:
        """The name of a guest's volume on this type, from ``vm-105-disk-0``."""

    @abstractmethod
    def requested(self, vmid: int, filename: str) -> str:
        """The name for the filename that a caller asks for; 500 for one that does not carry the guest's number."""

    @abstractmethod
    def disks(self, directory: Path, vmid: int) -> Iterable[Path]:
        """The files among which a guest's disk numbers are taken; those of others may be among them."""

    @abstractmethod
    def files(self, directory: Path) -> Iterator[tuple[str, Path]]:
        """All that the storage may list: name and file. What :meth:`parse` refuses is left out."""

    # --- what it says ---

    @abstractmethod
    def settings(self, storage: StorageConfig) -> dict[str, object]:
        """What ``/storage`` shows of this type alone."""

    @abstractmethod
    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:
        """Total and used bytes."""

    def missing(self, volume: Volume) -> ApiError:
        """A volume is to be activated and is not there (facts proxmox 7 A)."""
        return die(f"volume '{volume.volid}' does not exist")

    def without_size(self, volume: Volume) -> ApiError:
        """A volume's size is asked for, and it is not there (facts proxmox 11)."""
        return self.missing(volume)

    @abstractmethod
    def exists(self, volume: Volume, file: Path) -> ApiError:
        """A volume of that name is there already."""

    @abstractmethod
    def full(self, storage: StorageConfig, name: str) -> ApiError:
        """There is no room for a new volume."""

    def snapshot_exists(self, volume: Volume, snapshot: str) -> ApiError:
        return die(f"snapshot '{snapshot}' of volume '{volume.volid}' exists already")

    def no_room_to_grow(self, volume: Volume) -> ApiError:
        return self.full(volume.storage, volume.name)

    # Lines of a task's log.

    def created(self, _volume: Volume) -> list[str]:
        return []

    def freed(self, _volume: Volume) -> list[str]:
        return []

    def was_absent(self, _file: Path) -> list[str]:
        """A volume that is to be freed is not there."""
        return []

    def grown(self, _volume: Volume, _before: int, _after: int) -> list[str]:
        return []


class LvmThin(StorageType):
    """A thin pool. A volume is named after its logical volume, and holds no other content."""

    name = "lvmthin"
    can_snapshot = True
    can_rename = True
    _NAME = re.compile(r"(?:vm|base)-(?P<owner>\d+)-[^\s/]+")

    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        match = self._NAME.fullmatch(name)
        if not match:
            raise die(f"unable to parse lvm volume name '{name}'")
        return Volume(volid, storage, name, "images", int(match["owner"]))

    def file(self, directory: Path, volume: Volume) -> Path:
        return directory / f"{volume.name}.raw"

    def shown_path(self, volume: Volume, file: Path) -> str:  # noqa: ARG002 - there is no such file on a node
        return f"/dev/{self._full_name(volume)}"

    def disk(self, vmid: int, disk: str) -> str:  # noqa: ARG002 - the number is in the name
        return disk

    def requested(self, vmid: int, filename: str) -> str:
        if not re.fullmatch(rf"vm-{vmid}-\S+", filename):
            raise die(f"illegal name '{filename}' - should be 'vm-{vmid}-*'")
        return filename

    def disks(self, directory: Path, vmid: int) -> Iterable[Path]:  # noqa: ARG002 - snapshots carry it elsewhere
        return directory.glob("*.raw")

    def files(self, directory: Path) -> Iterator[tuple[str, Path]]:
        for path in directory.glob("*.raw"):
            yield path.name.removesuffix(".raw"), path

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"vgname": storage.volume_group, "thinpool": "data"}

    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:
        used = sum(path.stat().st_blocks * 512 for path in directory.glob("*.raw"))
        return storage.capacity, min(used, storage.capacity)

    @staticmethod
    def _full_name(volume: Volume) -> str:
        return f"{volume.storage.volume_group}/{volume.name}"

    def missing(self, volume: Volume) -> ApiError:
        return die(f"no such logical volume {self._full_name(volume)}")

    def without_size(self, volume: Volume) -> ApiError:
        name = self._full_name(volume)
        return die(f"can't get size of '/dev/{name}':   Failed to find logical volume \"{name}\"")

    def exists(self, volume: Volume, file: Path) -> ApiError:  # noqa: ARG002
        return self._already_exists("lvcreate", volume, volume.name)

    def snapshot_exists(self, volume: Volume, snapshot: str) -> ApiError:
        return self._already_exists("lvcreate snapshot", volume, f"snap_{volume.name}_{snapshot}")

    @staticmethod
    def _already_exists(command: str, volume: Volume, name: str) -> ApiError:
        group = volume.storage.volume_group
        return die(
            f'{command} \'{group}/{name}\' error:   Logical Volume "{name}" already exists in volume group "{group}"'
        )

    def full(self, storage: StorageConfig, name: str) -> ApiError:
        group = storage.volume_group
        return die(
            f"lvcreate '{group}/{name}' error:   Cannot create new thin volume, free space in thin "
            f"pool {group}/data reached threshold."
        )

    def no_room_to_grow(self, volume: Volume) -> ApiError:
        return die(f"lvextend '{self._full_name(volume)}' error: insufficient free space")

    def created(self, volume: Volume) -> list[str]:
        return [f'  Logical volume "{volume.name}" created.']

    def freed(self, volume: Volume) -> list[str]:
        return [f'  Logical volume "{volume.name}" successfully removed.']

    def grown(self, volume: Volume, before: int, after: int) -> list[str]:
        name = self._full_name(volume)
        return [
            f"  Size of logical volume {name} changed from {_lvm_size(before)} to {_lvm_size(after)}.",
            f"  Logical volume {name} successfully resized.",
        ]


class Directory(StorageType):
    """A folder: templates, ISO images and backups, and ``images/<vmid>/vm-<vmid>-disk-<n>.raw``."""

    name = "dir"
    _FOLDERS = (("vztmpl", "template/cache"), ("iso", "template/iso"), ("backup", "dump"))
    _NAMES = (
        (re.compile(r"vztmpl/[^/]+\.tar\.(?:gz|xz|zst)"), "vztmpl"),
        (re.compile(r"iso/[^/]+\.(?:iso|img)"), "iso"),
        (re.compile(r"backup/vzdump-lxc-(?P<owner>\d+)-[^/]+\.tar(?:\.(?:gz|zst|lzo))?"), "backup"),
        (re.compile(r"(?P<owner>\d+)/[^/\s]+\.raw"), "images"),
    )

    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        for pattern, content in self._NAMES:
            if match := pattern.fullmatch(name):
                owner = match.groupdict().get("owner")
                return Volume(volid, storage, name, content, int(owner) if owner is not None else None)
        raise die(f"unable to parse directory volume name '{name}'")

    def file(self, directory: Path, volume: Volume) -> Path:
        kind, _, rest = volume.name.partition("/")
        folder = dict(self._FOLDERS).get(kind)
        return directory / folder / rest if folder else directory / "images" / volume.name

    def shown_path(self, volume: Volume, file: Path) -> str:  # noqa: ARG002
        return str(file)

    def disk(self, vmid: int, disk: str) -> str:
        return f"{vmid}/{disk}.raw"

    def requested(self, vmid: int, filename: str) -> str:
        return f"{vmid}/{filename if filename.endswith('.raw') else filename + '.raw'}"

    def disks(self, directory: Path, vmid: int) -> Iterable[Path]:
        return (directory / "images" / str(vmid)).glob("*.raw")

    def files(self, directory: Path) -> Iterator[tuple[str, Path]]:
        for prefix, folder in self._FOLDERS:
            for path in (directory / folder).glob("*"):
                if path.is_file():
                    yield f"{prefix}/{path.name}", path
        for path in directory.glob("images/*/*.raw"):
            yield f"{path.parent.name}/{path.name}", path

    def settings(self, storage: StorageConfig) -> dict[str, object]:  # noqa: ARG002
        return {"path": "/var/lib/vz"}

    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:  # noqa: ARG002 - it has no size of its own
        usage = shutil.disk_usage(directory)
        return usage.total, usage.used

    def exists(self, volume: Volume, file: Path) -> ApiError:  # noqa: ARG002
        return die(f"disk image '{file}' already exists")

    def full(self, storage: StorageConfig, name: str) -> ApiError:  # noqa: ARG002
        return die(f"unable to create image: No space left on device ({storage.name})")

    def was_absent(self, file: Path) -> list[str]:
        return [f"disk image '{file}' does not exist"]


def _lvm_size(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB ({-(-size // _EXTENT)} extents)"


_types: dict[str, StorageType] = {}


def register(kind: StorageType) -> None:
    """Make a type known to every lab of this process, by its name; it takes the place of one of the same name."""
    _types[kind.name] = kind


def type_of(storage: StorageConfig) -> StorageType:
    """The type of a storage; ValueError for one that nobody registered."""
    try:
        return _types[storage.type]
    except KeyError:
        known = ", ".join(sorted(_types))
        raise ValueError(f"storage {storage.name} has the unknown type {storage.type!r}; known: {known}") from None


register(LvmThin())
register(Directory())
