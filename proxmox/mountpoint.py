"""Mount point strings of containers, and volume names.

Proxmox writes a mount point as a comma-separated list of `key=value`, the volume first and without its key:
`local-lvm:vm-999-disk-1,mp=/data,backup=1,size=8G`. On the way in it also takes `volume=` and any order. What it gives
back is rewritten: order, booleans as 0 or 1, and a `size=` of its own (facts proxmox 2.3, 3.1; field-reports A4). So
mount points are compared parsed, never as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from proxmox.errors import AllocateSyntax

MAX_SLOTS = 256
"""mp0 to mp255 (facts proxmox 2.3)."""

_SLOT = re.compile(r"^mp(0|[1-9][0-9]{0,2})$")
_UNUSED = re.compile(r"^unused(0|[1-9][0-9]*)$")
# What Proxmox takes as an order to allocate: a storage, then a size in GiB, fractions allowed.
_ALLOCATE = re.compile(r"^([^/:\s]+):([0-9]+(?:\.[0-9]+)?)$")
_VOLUME_NAME = re.compile(r"^(?P<kind>vm|base|subvol|basevol)-(?P<owner>[1-9][0-9]*)-[^/\s]+$")
# In a folder the number of the folder counts, whatever the file is called (PVE::Storage::Plugin, parse_volname).
_IN_FOLDER = re.compile(r"^(?P<owner>[1-9][0-9]*)/(?P<file>[^/\s]+)\.(?P<format>raw|qcow2|subvol|vmdk)$")
# In front of a linked clone's name stands its base's: a folder's file, or a name.
_BASE = re.compile(r"^(?:[0-9]+/)?(?:base|basevol)-[0-9]+-[^/\s]+/")
# `pve-vm--999--disk--1`: single hyphens separate, doubled ones belong to a name.
_LVM_SEPARATOR = re.compile(r"(?<!-)-(?!-)")
_PARTITION = re.compile(r"-part[0-9]+$")
_FORMAT = re.compile(r"\.(?:raw|qcow2|subvol|vmdk)$")
_SIZE = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([KMGT]?)$")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# Options whose absence means the same as this value. Not `acl`: absent is the file system's own default.
_DEFAULTS = {"backup": "0", "quota": "0", "ro": "0", "shared": "0", "replicate": "1"}
_BOOLEANS = frozenset({*_DEFAULTS, "acl", "keepattrs"})
_TRUE = frozenset({"1", "on", "yes", "true"})
_FALSE = frozenset({"0", "off", "no", "false"})


class MountPointSyntaxError(ValueError):
    """A text that is no mount point."""


def is_slot(key: str) -> bool:
    """Whether a configuration key is a mount point's: mp0 to mp255."""
    match = _SLOT.match(key)
    return match is not None and int(match.group(1)) < MAX_SLOTS


def slot_number(key: str) -> int:
    """3 for "mp3". ValueError for anything that is not a mount point key."""
    if not is_slot(key):
        raise ValueError(f"{key!r} is not a mount point key (mp0 to mp{MAX_SLOTS - 1})")
    return int(key[2:])


def is_unused(key: str) -> bool:
    """Whether a configuration key is one of the `unusedN` that keep a detached volume's name."""
    return _UNUSED.match(key) is not None


def is_allocation(volume: str) -> bool:
    """Whether Proxmox would take this as an order to make a new volume: `<storage>:<GiB>`."""
    return _ALLOCATE.match(volume) is not None


def require_existing(volume: str) -> str:
    """`volume`, when it is a volume's full name. Raises AllocateSyntax for `<storage>:<number>`, a path, no name."""
    storage, colon, name = volume.partition(":")
    if is_allocation(volume) or volume.startswith("/") or not (storage and colon and name):
        raise AllocateSyntax(
            f"{volume!r} is not the name of an existing volume",
            "Proxmox would allocate a new volume for <storage>:<number>, and takes a path for a bind mount",
            "give the full name, as `pvesm list <storage>` shows it, for example local-lvm:vm-999-disk-1",
        )
    return volume


def storage_of(volid: str) -> str:
    """ "local-lvm" for "local-lvm:vm-999-disk-1"; empty for a path."""
    storage, colon, _ = volid.partition(":")
    return storage if colon and not volid.startswith("/") else ""


@dataclass(frozen=True)
class VolumeName:
    """What a volume's name says, on each type of storage (the plugins' parse_volname; facts proxmox 5, 18).

    owner: the guest that owns it; in_folder: whether it is a file or a folder of a storage that is a folder itself
    (dir, btrfs, NFS, CIFS); is_base: whether it is a template's, which is read-only.
    """

    owner: int
    in_folder: bool = False
    is_base: bool = False

    @classmethod
    def of(cls, volid: str) -> VolumeName | None:
        """`local-lvm:vm-999-disk-1`, `tank:subvol-999-disk-1`, `local:999/vm-999-disk-1.raw`; None for what is none."""
        _, colon, name = volid.partition(":")
        own = _BASE.sub("", name) if colon else ""
        if match := _IN_FOLDER.match(own):
            return cls(int(match["owner"]), True, match["file"].startswith("base-"))
        if match := _VOLUME_NAME.match(own):
            return cls(int(match["owner"]), is_base=match["kind"].startswith("base"))
        return None


def owner_of(volid: str) -> int | None:
    """The number of the guest that owns a volume: the one in its name. None: it has none."""
    name = VolumeName.of(volid)
    return name.owner if name is not None else None


def owner_in_name(name: str) -> int | None:
    """999 for "vm-999-disk-1"; None for what is no volume's name."""
    match = _VOLUME_NAME.match(name)
    return int(match["owner"]) if match else None


def parts_of_path(path: str) -> tuple[str, ...]:
    """The names along a path of a node, each that may be a volume's as Proxmox writes it.

    `/dev/mapper/pve-vm--999--disk--1` and `/dev/disk/by-id/dm-name-...` are spelled by LVM: a hyphen of a name is
    doubled, one between volume group and volume is not. A suffix of a partition, or of an image's format, is left out.
    """
    found = []
    for part in filter(None, path.split("/")):
        mapped = part.removeprefix("dm-name-")
        names = _LVM_SEPARATOR.split(mapped) if "--" in mapped else [mapped]
        found += [_PARTITION.sub("", name.replace("--", "-") if len(names) > 1 else name) for name in names]
    return tuple(_FORMAT.sub("", name) for name in found)


def path_means(path: str, volid: str) -> bool:
    """Whether a path of a node leads to a volume or into it, as far as its names tell.

    The volume's own name has to be one of the path's: a device of LVM or ZFS, an image, a ZFS mount point, or a folder
    in one. Below /mnt/pve the storage's name stands in the path and has to be the volume's. What no name tells
    (/dev/dm-3, a number, a folder above) is not seen.
    """
    storage = storage_of(volid)
    if not storage or not path.startswith("/"):
        return False
    names = [name for name in path.split("/") if name]
    if names[:2] == ["mnt", "pve"] and names[2:3] != [storage]:
        return False
    return _FORMAT.sub("", volid.partition(":")[2].rsplit("/", 1)[-1]) in parts_of_path(path)


def paths_in(text: str) -> tuple[str, ...]:
    """The absolute paths in a property string or a raw line; `\\040` is a space there (fstab)."""
    words = re.split(r"[\s,;:=\"']+", text)
    return tuple(word.replace("\\040", " ") for word in words if word.startswith("/"))


def parse_size(text: str) -> int:
    """Bytes of "8G", "512M", "1T" or a bare number of bytes. ValueError for anything else."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size (a number, then K, M, G, T or nothing)")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def format_size(size: int) -> str:
    """Bytes in the largest unit that divides them, as Proxmox prints sizes: 20G, 1T, 1536M (facts proxmox 2.3)."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _UNITS[unit] == 0:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def _canonical(key: str, value: str) -> str:
    if key in _BOOLEANS:
        lowered = value.lower()
        return "1" if lowered in _TRUE else "0" if lowered in _FALSE else value
    if key == "mountoptions":
        return ";".join(sorted(set(filter(None, re.split(r"[;\s]+", value)))))
    return value


@dataclass(frozen=True)
class MountPoint:
    """One mount point.

    volume: a volume name, or a path for a bind or device mount; path: where it is mounted in the container;
    options: all others but size, in Proxmox's spelling; size: as printed by Proxmox, or None. Proxmox sets the size
    itself for a volume that exists, so it is not part of a comparison and not sent.
    """

    volume: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)
    size: str | None = None

    def __hash__(self) -> int:
        return hash((self.volume, self.path, tuple(sorted(self.options.items())), self.size))

    @classmethod
    def parse(cls, text: str) -> MountPoint:
        """From a property string in any accepted spelling. Raises MountPointSyntaxError."""
        values: dict[str, str] = {}
        for part in filter(None, map(str.strip, text.split(","))):
            key, equals, value = part.partition("=")
            if not equals:
                key, value = "volume", part
            if key in values:
                raise MountPointSyntaxError(f"{text!r} has {key!r} twice")
            values[key] = value
        volume = values.pop("volume", "")
        path = values.pop("mp", "")
        size = values.pop("size", None)
        if not volume or not path:
            raise MountPointSyntaxError(f"{text!r} has no {'volume' if not volume else 'mp='}")
        return cls(volume, path, values, size)

    def property_string(self) -> str:
        """What is sent for a volume that exists: volume, mp, then the options in alphabetical order; no size."""
        return ",".join(
            [self.volume, f"mp={self.path}", *(f"{key}={self.options[key]}" for key in sorted(self.options))]
        )

    def meaning(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What the mount point does, free of spelling: equal for two that Proxmox treats alike."""
        options = {key: _canonical(key, value) for key, value in self.options.items()}
        told = tuple(sorted((key, value) for key, value in options.items() if _DEFAULTS.get(key) != value))
        return self.volume, normal_path(self.path), told

    def same_mount(self, other: MountPoint) -> bool:
        """Whether both mount the same volume at the same path in the same way; size, order, defaults do not count."""
        return self.meaning() == other.meaning()


def normal_path(path: str) -> str:
    """A mount path without doubled or trailing slashes, as Proxmox compares and mounts it."""
    return "/" + "/".join(part for part in path.split("/") if part)
