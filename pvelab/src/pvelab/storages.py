"""Types of storages: how volumes are called, where they lie, what each can do, and what Proxmox says of one.

One class for each type, as in PVE::Storage: a class says in its docstring which plugin of pve-storage 9.1.7 it follows,
and a method which sub, where that is not the one of the same name. To add a type, derive from :class:`StorageType` (or
from the type that is nearest), and :func:`register` an object of it.

A volume is an image (``raw``: a sparse file whose apparent size is the volume's size), or a folder (``subvol``). What
belongs to a volume is in one place, its :meth:`~StorageType.home`, and moves, is copied and goes as a whole.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pvelab.config import StorageConfig
from pvelab.errors import ApiError, die

_EXTENT = 4 << 20  # LVM's extent size
RAW, SUBVOL = "raw", "subvol"
_BLOCK_CONTENT = frozenset({"images", "rootdir"})
_FILE_CONTENT = frozenset({*_BLOCK_CONTENT, "vztmpl", "iso", "backup", "snippets", "import"})

Features = Mapping[str, Mapping[str, Iterable[str]]]
"""Feature -> "current", "base" or "snap" -> the formats that have it, as in the plugins' volume_has_feature."""


@dataclass(frozen=True)
class Volume:
    """A parsed volid. ``owner`` is the guest whose number is in the name, None for templates and ISO images.

    ``parent``: the base that a linked clone's name begins with.
    """

    volid: str
    storage: StorageConfig
    name: str
    content: str
    owner: int | None
    format: str = RAW
    is_base: bool = False
    parent: str | None = None

    @property
    def own_name(self) -> str:
        """The name without that of the base."""
        return self.name.removeprefix(f"{self.parent}/") if self.parent else self.name


class StorageType(ABC):
    """``directory`` is the storage's folder on this machine; ``storage`` its entry in the configuration."""

    name: str
    contents: ClassVar[frozenset[str]] = _BLOCK_CONTENT
    """What Proxmox lets a storage of the type hold (plugindata)."""
    features: ClassVar[Features] = {}

    def has_feature(self, feature: str, volume: Volume, *, of_snapshot: bool = False) -> bool:
        """Whether ``snapshot``, ``clone`` (a linked one), ``template``, ``copy`` or ``rename`` can be done to it."""
        state = "snap" if of_snapshot else "base" if volume.is_base else "current"
        return volume.format in self.features.get(feature, {}).get(state, ())

    # --- names and places ---

    @abstractmethod
    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        """The volume of that name, whether it exists or not; 500 for a name that the type does not know."""

    @abstractmethod
    def home(self, directory: Path, volume: Volume) -> Path:
        """The file or folder with all that belongs to the volume."""

    def data(self, home: Path, volume: Volume) -> Path:  # noqa: ARG002 - of a type that keeps more in the home
        """The image or the folder that guests mount, in a home."""
        return home

    def file(self, directory: Path, volume: Volume) -> Path:
        """The same of the volume itself."""
        return self.data(self.home(directory, volume), volume)

    def snapshot_home(self, home: Path, snapshot: str) -> Path:
        """The home of a volume's snapshot."""
        return home.with_name(f"{home.name}@{snapshot}")

    def snapshots(self, home: Path) -> list[Path]:
        """The homes of all snapshots of a volume, oldest first."""
        mark = self.snapshot_home(home, "").name
        found = [path for path in home.parent.glob("*") if path.name.startswith(mark)]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)

    @abstractmethod
    def shown_path(self, volume: Volume) -> str:
        """The path that the API shows."""

    def container_format(self, size: int) -> str:  # noqa: ARG002 - of a type where it matters
        """What a new container's volume is (PVE::LXC, alloc_disk)."""
        return RAW

    def disk(self, vmid: int, disk: str, form: str = RAW) -> str:  # noqa: ARG002 - of a type where they are in the name
        """The name of a guest's volume on this type, from ``vm-105-disk-0``."""
        return disk

    @abstractmethod
    def requested(self, vmid: int, filename: str, form: str) -> str:
        """The name for the filename that a caller asks for; 500 for one that does not fit guest and format."""

    @abstractmethod
    def numbers(self, directory: Path, vmid: int) -> Iterable[str]:
        """The names among which a guest's disk numbers are taken; those of others may be among them."""

    number_format: ClassVar[str] = r"(?:vm|base)-{vmid}-disk-(\d+)"
    """How a name tells its number (PVE::Storage::Plugin, get_vm_disk_number)."""

    @abstractmethod
    def files(self, directory: Path) -> Iterator[str]:
        """The names of all that the storage may list. What :meth:`parse` refuses is left out."""

    def base_name(self, volume: Volume) -> str:
        """The name that a template's volume gets (create_base)."""
        return re.sub(r"(^|/)vm-(?=[^/]*$)", r"\1base-", volume.name)

    def clone_name(self, base: Volume, name: str) -> str:  # noqa: ARG002 - of a type that names the base
        """The name of a linked clone (clone_image)."""
        return name

    # --- sizes ---

    def rounded(self, size: int, form: str) -> int:  # noqa: ARG002
        """The size that a volume gets when ``size`` bytes are asked for."""
        return size

    def size(self, home: Path, volume: Volume) -> int:
        """Bytes; 0 for a folder without a limit."""
        data = self.data(home, volume)
        return 0 if volume.format == SUBVOL else data.stat().st_size

    def limit(self, home: Path, size: int) -> None:  # noqa: ARG002 - of a type where folders have one
        """Note a folder's size; 500 where folders have none."""
        if size:
            raise die("storage does not support subvol quotas")

    def has_room(self, storage: StorageConfig, directory: Path, size: int) -> bool:  # noqa: ARG002
        """Whether the storage would make a volume of that size."""
        return True

    # --- what it says ---

    @abstractmethod
    def settings(self, storage: StorageConfig) -> dict[str, object]:
        """What ``/storage`` shows of this type alone."""

    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:  # noqa: ARG002 - of one with a size
        """Total and used bytes."""
        usage = shutil.disk_usage(directory)
        return usage.total, usage.used

    def row(self, volume: Volume, home: Path) -> dict[str, object]:  # noqa: ARG002
        """What a row of the content list has on this type alone; ``ctime: None``: no time."""
        return {}

    def missing(self, volume: Volume) -> ApiError:
        """A volume is to be activated and is not there (facts proxmox 7 A)."""
        return die(f"volume '{volume.volid}' does not exist")

    def without_size(self, volume: Volume) -> ApiError:
        """A volume's size is asked for, and it is not there (facts proxmox 11)."""
        return self.missing(volume)

    @abstractmethod
    def exists(self, volume: Volume) -> ApiError:
        """A volume of that name is there already."""

    @abstractmethod
    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:
        """There is no room for a new volume."""

    def in_use(self, volume: Volume) -> str | None:  # noqa: ARG002
        """Why a volume that is mounted can't be freed; None: it goes all the same, with what is on it."""
        return None

    def snapshot_exists(self, volume: Volume, snapshot: str) -> ApiError:
        return die(f"snapshot '{snapshot}' of volume '{volume.volid}' exists already")

    def cannot_roll_back(self, volume: Volume, home: Path, snapshot: str) -> ApiError | None:  # noqa: ARG002
        """Why a volume can't go back to a snapshot; None also where the attempt tells."""
        return None

    def cannot_grow(self, volume: Volume) -> ApiError | None:
        """Why a volume can't grow at all (volume_resize)."""
        return die("can't resize this image format") if volume.format == SUBVOL else None

    def no_room_to_grow(self, volume: Volume) -> ApiError:
        return self.full(volume.storage, volume.name)

    def shown_ctime(self, ctime: int) -> object:
        """When a volume was made, as the list of the storage shows it."""
        return ctime

    # Lines of a task's log.

    def created(self, _volume: Volume, _size: int) -> list[str]:
        return []

    def freed(self, _volume: Volume) -> list[str]:
        return []

    def was_absent(self, _volume: Volume) -> list[str]:
        """A volume that is to be freed is not there."""
        return []

    def grown(self, _volume: Volume, _before: int, _after: int) -> list[str]:
        return []

    def snapshot_made(self, _volume: Volume, _snapshot: str) -> list[str]:
        return []

    def snapshot_freed(self, _volume: Volume, _snapshot: str) -> list[str]:
        return []

    def rolled_back(self, _volume: Volume) -> list[str]:
        return []


# --- LVM --------------------------------------------------------------------------------------------------------------


class Lvm(StorageType):
    """A volume group (LVMPlugin.pm), thick. A volume is named after its logical volume; no snapshot, no template."""

    name = "lvm"
    features: ClassVar[Features] = {"copy": {"base": [RAW], "current": [RAW]}, "rename": {"current": [RAW]}}
    _NAME = re.compile(r"vm-(?P<owner>\d+)-[^\s/]+")

    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        match = self._NAME.fullmatch(name)
        if not match:
            raise die(f"unable to parse lvm volume name '{name}'")
        return Volume(volid, storage, name, "images", int(match["owner"]), is_base=name.startswith("base-"))

    def home(self, directory: Path, volume: Volume) -> Path:
        return directory / f"{volume.name}.raw"

    def shown_path(self, volume: Volume) -> str:
        return f"/dev/{self._full_name(volume)}"

    def requested(self, vmid: int, filename: str, form: str) -> str:
        if form != RAW:
            raise die(f"unsupported format '{form}'")
        if not re.fullmatch(rf"vm-{vmid}-\S+", filename):
            raise die(f"illegal name '{filename}' - should be 'vm-{vmid}-*'")
        return filename

    def numbers(self, directory: Path, vmid: int) -> Iterable[str]:  # noqa: ARG002 - all of the volume group
        return (path.name for path in directory.glob("*.raw"))

    def files(self, directory: Path) -> Iterator[str]:
        for path in directory.glob("*.raw"):
            yield path.name.removesuffix(".raw")

    def rounded(self, size: int, form: str) -> int:  # noqa: ARG002
        return -(-size // _EXTENT) * _EXTENT

    def has_room(self, storage: StorageConfig, directory: Path, size: int) -> bool:
        total, used = self.space(storage, directory)
        return used + size <= total

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"vgname": storage.volume_group}

    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:
        return storage.capacity, min(storage.capacity, sum(path.stat().st_size for path in directory.glob("*.raw")))

    @staticmethod
    def _full_name(volume: Volume) -> str:
        return f"{volume.storage.volume_group}/{volume.name}"

    def missing(self, volume: Volume) -> ApiError:
        name = self._full_name(volume)
        return die(f"can't activate LV '/dev/{name}':   Failed to find logical volume \"{name}\"")

    def without_size(self, volume: Volume) -> ApiError:
        name = self._full_name(volume)
        return die(f"can't get size of '/dev/{name}':   Failed to find logical volume \"{name}\"")

    def exists(self, volume: Volume) -> ApiError:
        return self._already_exists("lvcreate", volume, volume.name)

    @staticmethod
    def _already_exists(command: str, volume: Volume, name: str) -> ApiError:
        group = volume.storage.volume_group
        return die(
            f'{command} \'{group}/{name}\' error:   Logical Volume "{name}" already exists in volume group "{group}"'
        )

    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:
        group = storage.volume_group
        return die(
            f"lvcreate '{group}/{name}' error:   Volume group \"{group}\" has insufficient free space "
            f"(0 extents): {-(-size // _EXTENT)} required."
        )

    def in_use(self, volume: Volume) -> str | None:
        name = self._full_name(volume)
        return f"lvremove '{name}' error:   Logical volume {name} contains a filesystem in use."

    def no_room_to_grow(self, volume: Volume) -> ApiError:
        return die(f"error resizing volume '/dev/{self._full_name(volume)}':   Insufficient free space")

    def shown_ctime(self, ctime: int) -> object:
        return str(ctime)  # as lvs printed it (facts proxmox-9.2, row 6)

    def created(self, volume: Volume, size: int) -> list[str]:  # noqa: ARG002
        return [f'  Logical volume "{volume.name}" created.']

    def freed(self, volume: Volume) -> list[str]:
        return [f'  Logical volume "{volume.name}" successfully removed.']

    def grown(self, volume: Volume, before: int, after: int) -> list[str]:
        name = self._full_name(volume)
        return [
            f"  Size of logical volume {name} changed from {_lvm_size(before)} to {_lvm_size(after)}.",
            f"  Logical volume {name} successfully resized.",
        ]


class LvmThin(Lvm):
    """A thin pool (LvmThinPlugin.pm). A snapshot is a logical volume of its own; a linked clone names no base."""

    name = "lvmthin"
    features: ClassVar[Features] = {
        "snapshot": {"current": [RAW]},
        "clone": {"base": [RAW], "snap": [RAW]},
        "template": {"current": [RAW]},
        "copy": {"base": [RAW], "current": [RAW], "snap": [RAW]},
        "rename": {"current": [RAW]},
    }
    _NAME = re.compile(r"(?:vm|base)-(?P<owner>\d+)-[^\s/]+")

    def snapshot_home(self, home: Path, snapshot: str) -> Path:
        return home.with_name(f"snap_{home.name.removesuffix('.raw')}_{snapshot}.raw")

    def snapshots(self, home: Path) -> list[Path]:
        return sorted(home.parent.glob(f"snap_{home.name.removesuffix('.raw')}_*.raw"))

    def has_room(self, storage: StorageConfig, directory: Path, size: int) -> bool:  # noqa: ARG002 - thin
        return True

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"vgname": storage.volume_group, "thinpool": "data"}

    def space(self, storage: StorageConfig, directory: Path) -> tuple[int, int]:
        used = sum(path.stat().st_blocks * 512 for path in directory.glob("*.raw"))
        return storage.capacity, min(used, storage.capacity)

    def missing(self, volume: Volume) -> ApiError:
        return die(f"no such logical volume {self._full_name(volume)}")

    def snapshot_exists(self, volume: Volume, snapshot: str) -> ApiError:
        return self._already_exists("lvcreate snapshot", volume, f"snap_{volume.name}_{snapshot}")

    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:  # noqa: ARG002
        group = storage.volume_group
        return die(
            f"lvcreate '{group}/{name}' error:   Cannot create new thin volume, free space in thin "
            f"pool {group}/data reached threshold."
        )

    def snapshot_made(self, volume: Volume, snapshot: str) -> list[str]:
        return [f'  Logical volume "snap_{volume.name}_{snapshot}" created.']

    def snapshot_freed(self, volume: Volume, snapshot: str) -> list[str]:
        return [f'  Logical volume "snap_{volume.name}_{snapshot}" successfully removed.']

    def rolled_back(self, volume: Volume) -> list[str]:
        return [f'  Logical volume "{volume.name}" successfully removed.']


def _lvm_size(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB ({-(-size // _EXTENT)} extents)"


# --- folders ----------------------------------------------------------------------------------------------------------


class Directory(StorageType):
    """A folder (DirPlugin.pm on Plugin.pm): templates, ISO images, backups, ``images/<vmid>/vm-<vmid>-disk-<n>.raw``.

    A container's volume is an image; one of size 0 is a folder without a limit, which can't grow. There is no snapshot,
    and a linked clone would be qcow2, which no container mounts. A volume that is mounted can be freed.
    """

    name = "dir"
    contents = _FILE_CONTENT
    features: ClassVar[Features] = {
        "template": {"current": [RAW, SUBVOL]},
        "copy": {"base": [RAW], "current": [RAW]},
        "rename": {"current": [RAW]},
    }
    number_format = r"(?:vm|base|subvol|basevol)-{vmid}-disk-(\d+)"
    _FOLDERS = (("vztmpl", "template/cache"), ("iso", "template/iso"), ("backup", "dump"))
    _NAMES = (
        (re.compile(r"vztmpl/[^/]+\.tar\.(?:gz|xz|zst)"), "vztmpl"),
        (re.compile(r"iso/[^/]+\.(?:iso|img)"), "iso"),
        (re.compile(r"backup/vzdump-lxc-(?P<owner>\d+)-[^/]+\.tar(?:\.(?:gz|zst|lzo))?"), "backup"),
    )
    # The owner is the folder's number, whatever the file is called (Plugin.pm, parse_volname, parse_name_dir).
    _IMAGE = re.compile(
        r"(?:(?P<parent>\d+/[^\s/]+)/)?(?P<owner>\d+)/(?P<file>[^/\s]+\.(?P<format>raw|qcow2|vmdk|subvol))"
    )

    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        for pattern, content in self._NAMES:
            if match := pattern.fullmatch(name):
                owner = match.groupdict().get("owner")
                return Volume(volid, storage, name, content, int(owner) if owner is not None else None)
        match = self._IMAGE.fullmatch(name)
        if not match:
            if re.fullmatch(r"\d+/\S+", name):
                raise die(f"unable to parse volume filename '{name.partition('/')[2]}'")
            raise die(f"unable to parse directory volume name '{name}'")
        is_base = match["file"].startswith("base-")
        return Volume(volid, storage, name, "images", int(match["owner"]), match["format"], is_base, match["parent"])

    def home(self, directory: Path, volume: Volume) -> Path:
        kind, _, rest = volume.name.partition("/")
        folder = dict(self._FOLDERS).get(kind)
        return directory / folder / rest if folder else directory / "images" / volume.own_name

    def shown_path(self, volume: Volume) -> str:
        return str(self.data(self._shown_home(volume), volume))

    def _shown_home(self, volume: Volume) -> Path:
        return self.home(Path(self.mounted_at(volume.storage)), volume)

    def mounted_at(self, storage: StorageConfig) -> str:
        """The folder on a node."""
        return "/var/lib/vz" if storage.name == "local" else f"/srv/{storage.name}"

    def container_format(self, size: int) -> str:
        return RAW if size else SUBVOL

    def disk(self, vmid: int, disk: str, form: str = RAW) -> str:
        return f"{vmid}/{re.sub('^vm-', 'subvol-', disk) if form == SUBVOL else disk}.{form}"

    def requested(self, vmid: int, filename: str, form: str) -> str:
        match = re.fullmatch(r"[^/\s]+\.(raw|qcow2|vmdk|subvol)", filename)
        if not match:
            raise die(f"unable to parse volume filename '{filename}'")
        if match[1] != form:
            raise die(f"illegal name '{filename}' - wrong extension for format ('{match[1]} != '{form}')")
        return f"{vmid}/{filename}"

    def numbers(self, directory: Path, vmid: int) -> Iterable[str]:
        return (name for name in self.files(directory) if name.startswith(f"{vmid}/"))

    def files(self, directory: Path) -> Iterator[str]:
        for prefix, folder in self._FOLDERS:
            for path in (directory / folder).glob("*"):
                if path.is_file():
                    yield f"{prefix}/{path.name}"
        for path in directory.glob("images/*/*"):
            yield f"{path.parent.name}/{path.name}"

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"path": self.mounted_at(storage)}

    def row(self, volume: Volume, home: Path) -> dict[str, object]:
        if volume.content != "images":
            return {}
        data = self.data(home, volume)
        return {"used": 0 if volume.format == SUBVOL else data.stat().st_blocks * 512, "parent": None}

    def exists(self, volume: Volume) -> ApiError:
        return die(f"disk image '{self._shown_home(volume)}' already exists")

    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:  # noqa: ARG002
        return die(f"unable to create image: No space left on device ({storage.name})")

    def created(self, volume: Volume, size: int) -> list[str]:
        if volume.format == SUBVOL:
            return []
        return [f"Formatting '{self.shown_path(volume)}', fmt={volume.format} size={size} preallocation=off"]

    def was_absent(self, volume: Volume) -> list[str]:
        return [f"disk image '{self.shown_path(volume)}' does not exist"]


class Nfs(Directory):
    """A folder of an NFS server (NFSPlugin.pm). A volume of size 0 is made as in a folder, but not listed."""

    name = "nfs"
    number_format = r"(?:vm|base)-{vmid}-disk-(\d+).raw"

    def files(self, directory: Path) -> Iterator[str]:
        return (name for name in super().files(directory) if not name.endswith(f".{SUBVOL}"))

    def mounted_at(self, storage: StorageConfig) -> str:
        return f"/mnt/pve/{storage.name}"

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"path": self.mounted_at(storage), "server": "nas.example", "export": f"/export/{storage.name}"}


class Cifs(Nfs):
    """A share of a Windows or Samba server (CIFSPlugin.pm): as with NFS."""

    name = "cifs"

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"path": self.mounted_at(storage), "server": "nas.example", "share": storage.name}


class Btrfs(Directory):
    """A folder on btrfs (BTRFSPlugin.pm): each volume, image or folder, is a subvolume, so it has snapshots.

    An image is ``vm-<vmid>-disk-<n>/disk.raw``. A folder has no limit: quotas are not supported there.
    """

    name = "btrfs"
    features: ClassVar[Features] = {
        "snapshot": {"current": [RAW, SUBVOL], "snap": [RAW, SUBVOL]},
        "clone": {"base": [RAW, SUBVOL], "current": [RAW], "snap": [RAW]},
        "template": {"current": [RAW, SUBVOL]},
        "copy": {"base": [RAW, SUBVOL], "current": [RAW, SUBVOL], "snap": [RAW, SUBVOL]},
        "rename": {"current": [RAW]},
    }

    def home(self, directory: Path, volume: Volume) -> Path:
        home = super().home(directory, volume)
        return home.with_suffix("") if volume.content == "images" and volume.format == RAW else home

    def data(self, home: Path, volume: Volume) -> Path:
        return home / "disk.raw" if volume.content == "images" and volume.format == RAW else home

    def files(self, directory: Path) -> Iterator[str]:
        for name in super().files(directory):
            # list_images: a folder without an extension is an image, and what has @ in its name a snapshot.
            folder, _, last = name.rpartition("/")
            if folder.isdigit():
                if "@" in last:
                    continue
                if "." not in last:
                    yield f"{name}.raw"
                    continue
            yield name

    def limit(self, home: Path, size: int) -> None:  # noqa: ARG002
        if size:
            raise die("btrfs quotas are currently not supported, use an unsized subvolume or a raw file")

    def cannot_grow(self, volume: Volume) -> ApiError | None:
        if volume.format == SUBVOL:
            return die("cannot resize subvolume - btrfs quotas are currently not supported")
        return None

    def was_absent(self, volume: Volume) -> list[str]:
        raise die(f"command 'btrfs subvolume delete -- {self._shown_home(volume)}' failed: exit code 1")

    def created(self, volume: Volume, size: int) -> list[str]:  # noqa: ARG002
        return []


# --- pools ------------------------------------------------------------------------------------------------------------


class _Pool(StorageType):
    """What ZFS and Ceph have in common: flat names, and a linked clone that names its base."""

    _WHAT: ClassVar[str]
    _NAME: ClassVar[re.Pattern[str]]

    def parse(self, storage: StorageConfig, volid: str, name: str) -> Volume:
        match = self._NAME.fullmatch(name)
        if not match:
            raise die(f"unable to parse {self._WHAT} volume name '{name}'")
        form = SUBVOL if match["kind"].endswith("vol") else RAW
        is_base = match["kind"].startswith("base")
        return Volume(volid, storage, name, "images", int(match["owner"]), form, is_base, match["parent"])

    def home(self, directory: Path, volume: Volume) -> Path:
        return directory / volume.own_name

    def data(self, home: Path, volume: Volume) -> Path:
        return home / ("tree" if volume.format == SUBVOL else "volume.raw")

    def numbers(self, directory: Path, vmid: int) -> Iterable[str]:  # noqa: ARG002
        return (path.name for path in directory.glob("*") if "@" not in path.name)

    def files(self, directory: Path) -> Iterator[str]:
        for home in directory.glob("*"):
            if "@" not in home.name:
                origin = home / "origin"
                yield f"{origin.read_text()}/{home.name}" if origin.exists() else home.name

    def clone_name(self, base: Volume, name: str) -> str:
        return f"{base.own_name}/{name}"

    def rounded(self, size: int, form: str) -> int:
        return size if form == SUBVOL else -(-size // (1 << 20)) << 20

    def row(self, volume: Volume, home: Path) -> dict[str, object]:  # noqa: ARG002
        parent = f"{volume.parent}@__base__" if volume.parent else None
        return {"ctime": None, "name": volume.own_name, "parent": parent}


class ZfsPool(_Pool):
    """A ZFS pool or a data set of one (ZFSPoolPlugin.pm). A container's volume is a data set with a ``refquota``.

    So it is a folder of the node, grows by a property, in use or not, and never has a file system of its own. It goes
    back to its newest snapshot only.
    """

    name = "zfspool"
    features: ClassVar[Features] = {
        "snapshot": {"current": [RAW, SUBVOL], "snap": [RAW, SUBVOL]},
        "clone": {"base": [RAW, SUBVOL]},
        "template": {"current": [RAW, SUBVOL]},
        "copy": {"base": [RAW, SUBVOL], "current": [RAW, SUBVOL]},
        "rename": {"current": [RAW, SUBVOL]},
    }
    number_format = r"(?:vm|base|subvol|basevol)-{vmid}-disk-(\d+)"
    _WHAT = "zfs"
    _NAME = re.compile(
        r"(?:(?P<parent>(?:base|basevol)-\d+-[^\s/]+)/)?(?P<kind>base|basevol|vm|subvol)-(?P<owner>\d+)-[^\s/]+"
    )

    def shown_path(self, volume: Volume) -> str:
        root = "" if volume.format == SUBVOL else "/dev/zvol"
        return f"{root}/{self._data_set(volume)}"

    @staticmethod
    def _data_set(volume: Volume) -> str:
        return f"{volume.storage.pool}/{volume.own_name}"

    def container_format(self, size: int) -> str:  # noqa: ARG002
        return SUBVOL

    def disk(self, vmid: int, disk: str, form: str = RAW) -> str:  # noqa: ARG002
        return re.sub("^vm-", "subvol-", disk) if form == SUBVOL else disk

    def requested(self, vmid: int, filename: str, form: str) -> str:
        prefix = {RAW: "vm", SUBVOL: "subvol"}.get(form)
        if prefix is None:
            raise die(f"unsupported format '{form}'")
        if not re.fullmatch(rf"{prefix}-{vmid}-[^\s/]+", filename):
            raise die(f"illegal name '{filename}' - should be '{prefix}-{vmid}-*'")
        return filename

    def base_name(self, volume: Volume) -> str:
        return re.sub(r"(^|/)subvol-(?=[^/]*$)", r"\1basevol-", super().base_name(volume))

    def size(self, home: Path, volume: Volume) -> int:
        return int((home / "refquota").read_text()) if volume.format == SUBVOL else super().size(home, volume)

    def limit(self, home: Path, size: int) -> None:
        (home / "refquota").write_text(str(size))

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"pool": storage.pool, "mountpoint": f"/{storage.pool}", "sparse": 1}

    def _absent(self, volume: Volume) -> ApiError:
        return die(f"zfs error: cannot open '{self._data_set(volume)}': dataset does not exist")

    def missing(self, volume: Volume) -> ApiError:
        return self._absent(volume)

    def exists(self, volume: Volume) -> ApiError:
        return die(f"zfs error: cannot create '{self._data_set(volume)}': dataset already exists")

    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:  # noqa: ARG002
        return die(f"zfs error: cannot create '{storage.pool}/{name}': out of space")

    def in_use(self, volume: Volume) -> str | None:
        return f"zfs error: cannot destroy '{self._data_set(volume)}': dataset is busy"

    def cannot_grow(self, volume: Volume) -> ApiError | None:  # noqa: ARG002
        return None

    def no_room_to_grow(self, volume: Volume) -> ApiError:
        what = "refquota" if volume.format == SUBVOL else "volsize"
        return die(f"zfs error: cannot set property for '{self._data_set(volume)}': {what}: out of space")

    def snapshot_exists(self, volume: Volume, snapshot: str) -> ApiError:
        return die(f"zfs error: cannot create snapshot '{self._data_set(volume)}@{snapshot}': dataset already exists")

    def cannot_roll_back(self, volume: Volume, home: Path, snapshot: str) -> ApiError | None:
        """Sub volume_rollback_is_possible."""
        found = self.snapshots(home)
        if self.snapshot_home(home, snapshot) not in found:
            return die(f"can't rollback, snapshot '{snapshot}' does not exist on '{volume.volid}'")
        if found[-1] != self.snapshot_home(home, snapshot):
            return die(f"can't rollback, '{snapshot}' is not most recent snapshot on '{volume.volid}'")
        return None


class Rbd(_Pool):
    """A pool of Ceph's block devices (RBDPlugin.pm). The texts of the program ``rbd`` are not Ceph's own."""

    name = "rbd"
    features: ClassVar[Features] = {**LvmThin.features, "snapshot": {"current": [RAW], "snap": [RAW]}}
    _WHAT = "rbd"
    _NAME = re.compile(r"(?:(?P<parent>base-\d+-[^\s/]+)/)?(?P<kind>base|vm)-(?P<owner>\d+)-[^\s/]+")

    def shown_path(self, volume: Volume) -> str:
        return f"/dev/rbd/{volume.storage.pool}/{volume.own_name}"

    def requested(self, vmid: int, filename: str, form: str) -> str:
        if form != RAW or not re.fullmatch(rf"vm-{vmid}-[^\s/]+", filename):
            raise die(f"illegal name '{filename}' - should be 'vm-{vmid}-*'")
        return filename

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"pool": storage.pool, "krbd": 1}

    def missing(self, volume: Volume) -> ApiError:
        return die(f"can't map rbd volume {volume.own_name}: rbd: sysfs write failed")

    def exists(self, volume: Volume) -> ApiError:
        return die(f"rbd create '{volume.own_name}' error: rbd: create error: (17) File exists")

    def full(self, storage: StorageConfig, name: str, size: int = 0) -> ApiError:  # noqa: ARG002
        return die(f"rbd create '{name}' error: rbd: create error: (28) No space left on device")

    def in_use(self, volume: Volume) -> str | None:
        return f"can't unmap rbd device {self.shown_path(volume)}: rbd: sysfs write failed"

    def was_absent(self, volume: Volume) -> list[str]:
        raise die(f"rbd error: error opening image {volume.own_name}: (2) No such file or directory")


# --- the registry -----------------------------------------------------------------------------------------------------

_types: dict[str, StorageType] = {}


def register(kind: StorageType) -> None:
    """Make a type known to every lab of this process, by its name; it takes the place of one of the same name."""
    _types[kind.name] = kind


def type_of(storage: StorageConfig) -> StorageType:
    """The type of a storage; ValueError for one that nobody registered, or that can't hold what it is to hold."""
    try:
        kind = _types[storage.type]
    except KeyError:
        known = ", ".join(sorted(_types))
        raise ValueError(f"storage {storage.name} has the unknown type {storage.type!r}; known: {known}") from None
    if more := storage.content - kind.contents:
        raise ValueError(
            f"storage {storage.name}: a storage of type {storage.type} can't hold {', '.join(sorted(more))}"
        )
    return kind


for _kind in (Lvm(), LvmThin(), Directory(), Nfs(), Cifs(), Btrfs(), ZfsPool(), Rbd()):
    register(_kind)
