"""What the lab's API needs from whatever runs guests and holds volumes.

Two implementations: :mod:`pvelab.lxc` (real systemd containers, ext4 images) and
:mod:`pvelab.simulated` (power states only, volumes as small files). The API core
is the same for both and decides everything that Proxmox decides; a runtime only
carries out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Log = Callable[[str], None]
"""Receives one line of a task's log."""


class RuntimeFault(Exception):  # noqa: N818 - a fault of the machine, not of a program
    """A guest or a volume could not be handled.

    ``str(fault)`` is the task's exit text as Proxmox words it; ``log`` holds the
    lines that Proxmox would have written to the task log before it.
    """

    def __init__(self, exit_text: str, log: Sequence[str] = ()) -> None:
        super().__init__(exit_text)
        self.log = tuple(log)


def failed_start(vmid: int, status: int, *log: str) -> RuntimeFault:
    """A start that ended in the pre-start hook with ``status``, mount(8)'s or an errno (facts proxmox 7, B)."""
    return RuntimeFault(
        f"startup for container '{vmid}' failed",
        [
            *log,
            f"run_buffer: 571 Script exited with status {status}",
            f'lxc_init: 845 Failed to run lxc.hook.pre-start for container "{vmid}"',
            f'__lxc_start: 2034 Failed to initialize container "{vmid}"',
        ],
    )


def device_of(image: Path) -> str:
    """The device that mount(8) is given for a volume: a canonical name, never the one in /dev/pve."""
    return f"/dev/dm-{zlib.crc32(image.stem.encode()) % 200}"


def failed_hot_mount(mount: Mount) -> RuntimeFault:
    """A mount into a running guest that mount(8) refused (facts proxmox-9.2, row 30)."""
    device = device_of(mount.image) if mount.image is not None else mount.host_path
    options = "-o ro " if mount.read_only else ""
    staged = f"/var/lib/lxc/.pve-staged-mounts/{mount.key}"
    return RuntimeFault(f"command 'mount {options}{device} {staged}' failed: exit code 32")


@dataclass(frozen=True)
class Interface:
    """One ``netN`` of a guest. ``ip`` and ``ip6`` as in the config: CIDR, ``dhcp``, ``auto``, ``manual`` or None.

    ``mtu`` None: that of the bridge.
    """

    name: str
    bridge: str
    hwaddr: str
    ip: str | None = None
    gateway: str | None = None
    ip6: str | None = None
    gateway6: str | None = None
    mtu: int | None = None


@dataclass(frozen=True)
class Mount:
    """One ``rootfs`` or ``mpN`` of a guest: an image file, or a folder of the node that is bound, as a subvol is.

    ``host_path`` is the folder as the node calls it; ``options`` are mount(8)'s. A folder has those of a mount alone
    (nodev, noatime ...): what is a file system's (discard) has no effect there, as on a node.
    """

    key: str
    path: str
    image: Path | None = None
    host_folder: Path | None = None
    host_path: str = ""
    read_only: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class GuestSpec:
    """A guest as a runtime must run it. Sizes in MiB; ``mounts[0]`` is the root file system."""

    node: str
    vmid: int
    hostname: str
    memory: int
    swap: int
    mounts: tuple[Mount, ...]
    interfaces: tuple[Interface, ...] = ()
    cores: int | None = None
    unprivileged: bool = True
    nesting: bool = False
    keyctl: bool = False
    nameserver: str | None = None
    searchdomain: str | None = None
    raw_lxc: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Usage:
    """What a running guest uses now: bytes, seconds, cpu as a share of all cores."""

    pid: int
    uptime: int
    cpu: float = 0.0
    mem: int = 0
    swap: int = 0
    disk: int = 0
    netin: int = 0
    netout: int = 0
    diskread: int = 0
    diskwrite: int = 0


@dataclass(frozen=True)
class Address:
    """One address of a running guest's interface, the prefix length apart."""

    address: str
    prefix: int
    family: str  # "inet" or "inet6"


@dataclass(frozen=True)
class GuestInterface:
    name: str
    hwaddr: str
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True)
class Completed:
    """The outcome of a command run in a guest."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class Setup:
    """What Proxmox writes into a fresh root file system after it has unpacked the template."""

    password: str | None = field(default=None, repr=False)
    ssh_public_keys: tuple[str, ...] = ()
    timezone: str | None = None


class Runtime(Protocol):
    """Every call may be repeated; none of them knows about ownership, locks or rights."""

    def format_volume(self, image: Path, size: int, *, root_owner: int, log: Log) -> None:
        """Make ``image`` a volume of ``size`` bytes with an empty file system whose root belongs to ``root_owner``."""

    def allocate_raw(self, image: Path, size: int) -> None:
        """Make ``image`` a volume of ``size`` bytes without a file system."""

    def grow_volume(self, image: Path, size: int, *, mounted: bool, log: Log) -> None:
        """Grow the block device to ``size`` bytes and the file system in it, online when its guest runs.

        ``mounted`` says that *another* guest mounts it: then only the device grows, with a warning (facts proxmox 9).
        """

    def own_folder(self, folder: Path, root_owner: int) -> None:
        """Give the empty folder of a subvol to ``root_owner``."""

    def copy_volume(self, source: Path, target: Path) -> None:
        """Copy a volume as it is at one moment, mounted or not (snapshots, clones, moves).

        An image to an image, or a folder to a folder; the target is replaced.
        """

    def fill_volume(self, source: Path, target: Path) -> None:
        """Copy the content of an image into a folder, or of a folder into a formatted image; the target is empty."""

    def archive(self, volumes: Sequence[tuple[str, Path]], notes: Mapping[str, bytes], target: Path, log: Log) -> None:
        """Write what is in volumes into a tar, compressed by zstd: each below its path in the guest, ``/`` first.

        ``notes``: files that come before all else, by name. Users are numbered as in the guest.
        """

    def restore(self, spec: GuestSpec, archive: Path, log: Log) -> None:
        """Fill the guest's empty volumes from such an archive."""

    def check_volume(self, data: Path, *, force: bool) -> Completed:
        """``fsck -a -l`` of the file system in an image, as root on a node; ``force``: also of one that is clean."""

    def remove_volume(self, data: Path, *, in_use: str | None) -> None:
        """Free a volume's image or folder. RuntimeFault(in_use) when it is mounted; ``in_use`` None: it goes."""

    def unpack(self, spec: GuestSpec, template: Path, setup: Setup, log: Log) -> None:
        """Mount all of the guest's volumes, unpack the template into them, apply ``setup``, unmount."""

    def new_identity(self, spec: GuestSpec, log: Log) -> None:
        """Mount all of a clone's volumes and empty its machine id; its host keys stay (PVE::LXC::Setup, clone)."""

    def start(self, spec: GuestSpec, log: Log) -> None:
        """Boot the guest and return once its init runs; RuntimeFault when a mount or the start fails."""

    def shutdown(self, spec: GuestSpec, timeout: float) -> bool:
        """Ask init to power off; True when the guest is down within ``timeout`` seconds."""

    def kill(self, spec: GuestSpec) -> None:
        """End the guest at once and release its mounts."""

    def running(self, node: str) -> frozenset[int]:
        """The VMIDs on ``node`` that run now, as the kernel sees it (a guest may power itself off)."""

    def usage(self, spec: GuestSpec) -> Usage | None:
        """None when the guest is stopped."""

    def interfaces(self, spec: GuestSpec) -> tuple[GuestInterface, ...]:
        """The interfaces of a running guest, ``lo`` included; empty when it is stopped."""

    def hot_mount(self, spec: GuestSpec, mount: Mount, log: Log) -> None:
        """Mount a volume into a running guest; ``spec`` is the guest with that mount."""

    def execute(self, spec: GuestSpec, argv: Sequence[str], stdin: bytes = b"") -> Completed:
        """Run a command in a running guest as its root (``pct exec``)."""

    def recover(self, specs: Sequence[GuestSpec]) -> None:
        """After a crash: release what stopped guests still hold (mounts, loop devices), keep running ones."""
