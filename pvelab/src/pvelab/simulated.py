"""A runtime without containers: power states in memory and on disk, volumes as small sparse files.

It decides nothing that Proxmox decides. It does know what a kernel would refuse: to mount what was never formatted, to
free what is mounted.
"""

# ruff: noqa: ARG002 - every method keeps the parameters of the protocol

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pvelab import hostkeys
from pvelab.archives import packing, unpacking
from pvelab.hostfolders import is_plain_folder
from pvelab.runtime import (
    Address,
    Completed,
    GuestInterface,
    GuestSpec,
    Log,
    Mount,
    RuntimeFault,
    Setup,
    Usage,
    device_of,
    failed_hot_mount,
    failed_start,
)

_MAGIC = b"ext4:"
_HEADER = 4096
CONTENT, CONTENT_OFFSET = "content", 2048
"""Where a test may leave what a guest would have written: a file in a folder, a place in an image."""
_BLOCK = 4096


@dataclass
class _Running:
    since: float
    pid: int
    mounts: tuple[Mount, ...]
    spec: GuestSpec


class SimulatedRuntime:
    """Guests that are on or off. ``state_file`` keeps who runs across a restart of the lab; None forgets it."""

    def __init__(self, state_file: Path | None = None) -> None:
        self._lock = threading.RLock()
        self._stopped = threading.Condition(self._lock)
        self._state_file = state_file
        self._running: dict[tuple[str, int], _Running] = {}
        self._was_running: set[tuple[str, int]] = set()
        self._next_pid = 100_000
        self.stubborn: set[int] = set()
        """VMIDs whose init ignores the request to power off."""
        self.broken: set[int] = set()
        """VMIDs whose init does not come up."""
        if state_file is not None and state_file.exists():
            self._was_running = {(node, vmid) for node, vmid in json.loads(state_file.read_text())}

    # --- volumes ---

    def format_volume(self, image: Path, size: int, *, root_owner: int, log: Log) -> None:
        log(f"Creating filesystem with {size // _BLOCK} 4k blocks and {max(16, size // 16384)} inodes")
        identity = uuid.uuid4()
        log(f"Filesystem UUID: {identity}")
        log("Superblock backups stored on blocks: ")
        with image.open("wb") as handle:
            handle.write(_MAGIC + f"{identity}:{root_owner}\n".encode())
            handle.truncate(size)

    def allocate_raw(self, image: Path, size: int) -> None:
        with image.open("wb") as handle:
            handle.truncate(size)

    def grow_volume(self, image: Path, size: int, *, mounted: bool, log: Log) -> None:
        os.truncate(image, size)

    def own_folder(self, folder: Path, root_owner: int) -> None:
        """Without root nobody can give a folder away."""

    def copy_volume(self, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            return
        with source.open("rb") as handle:
            header = handle.read(_HEADER)
        with target.open("wb") as handle:
            handle.write(header)
            handle.truncate(source.stat().st_size)

    def fill_volume(self, source: Path, target: Path) -> None:
        """What stands in an image behind the file system's head is the file :data:`CONTENT` of a folder."""
        if source.is_dir():
            content = source / CONTENT
            with target.open("r+b") as handle:
                handle.seek(CONTENT_OFFSET)
                handle.write(content.read_bytes() if content.exists() else b"")
            return
        with source.open("rb") as handle:
            handle.seek(CONTENT_OFFSET)
            (target / CONTENT).write_bytes(handle.read(_HEADER - CONTENT_OFFSET).rstrip(b"\0"))

    def archive(self, volumes: Sequence[tuple[str, Path]], notes: Mapping[str, bytes], target: Path, log: Log) -> None:
        files = {f"./{name}": text for name, text in notes.items()}
        for path, data in volumes:
            with tempfile.TemporaryDirectory() as scratch:
                folder = data if data.is_dir() else Path(scratch)
                if not data.is_dir():
                    self.fill_volume(data, folder)
                content = folder / CONTENT
                files[f".{path.rstrip('/')}/{CONTENT}"] = content.read_bytes() if content.exists() else b""
        with packing(target) as tar:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))

    def restore(self, spec: GuestSpec, archive: Path, log: Log) -> None:
        wanted = {f".{mount.path.rstrip('/')}/{CONTENT}": mount for mount in spec.mounts}
        with unpacking(archive) as tar, tempfile.TemporaryDirectory() as scratch:
            for entry in tar:
                mount, packed = wanted.get(entry.name), tar.extractfile(entry)
                if mount is None or packed is None:
                    continue
                folder = mount.host_folder or Path(scratch)
                (folder / CONTENT).write_bytes(packed.read())
                if mount.image is not None:
                    self.fill_volume(folder, mount.image)

    def check_volume(self, data: Path, *, force: bool) -> Completed:
        """Of a file system there is its head alone: it is there, or there is nothing to repair."""
        if _formatted(data):
            return Completed(0)
        return Completed(8, stderr=f"fsck.ext2: Bad magic number in super-block while trying to open {data}\n".encode())

    def remove_volume(self, data: Path, *, in_use: str | None) -> None:
        with self._lock:
            if in_use is not None and self._users(data):
                raise RuntimeFault(in_use)
            if data.is_dir():
                shutil.rmtree(data)
            else:
                data.unlink(missing_ok=True)

    # --- guests ---

    def unpack(self, spec: GuestSpec, template: Path, setup: Setup, log: Log) -> None:
        for mount in spec.mounts:
            _check_mount(spec.vmid, mount)
        log(f"Total bytes read: {template.stat().st_size}")
        # There is no file system to hold a key: of each only the fingerprint exists.
        for kind in ("ecdsa", "ed25519", "rsa"):
            found = base64.b64encode(os.urandom(32)).decode().rstrip("=")
            hostkeys.tell(log, kind, f"SHA256:{found}", spec.hostname)

    def new_identity(self, spec: GuestSpec, log: Log) -> None:
        for mount in spec.mounts:
            _check_mount(spec.vmid, mount)

    def start(self, spec: GuestSpec, log: Log) -> None:
        with self._lock:
            for mount in spec.mounts:
                _check_mount(spec.vmid, mount)
            if spec.vmid in self.broken:
                raise failed_start(spec.vmid, 1)
            self._next_pid += 1
            self._running[spec.node, spec.vmid] = _Running(time.time(), self._next_pid, spec.mounts, spec)
            self._save()

    def shutdown(self, spec: GuestSpec, timeout: float) -> bool:
        with self._lock:
            if spec.vmid in self.stubborn:
                return self._stopped.wait_for(lambda: (spec.node, spec.vmid) not in self._running, timeout)
            self._stop(spec.node, spec.vmid)
            return True

    def kill(self, spec: GuestSpec) -> None:
        self._stop(spec.node, spec.vmid)

    def power_off_from_inside(self, node: str, vmid: int) -> None:
        """What ``poweroff`` inside the guest does: nobody asked the API."""
        self._stop(node, vmid)

    def running(self, node: str) -> frozenset[int]:
        with self._lock:
            return frozenset(vmid for where, vmid in self._running if where == node)

    def usage(self, spec: GuestSpec) -> Usage | None:
        with self._lock:
            entry = self._running.get((spec.node, spec.vmid))
        if entry is None:
            return None
        return Usage(pid=entry.pid, uptime=int(time.time() - entry.since), mem=48 << 20, disk=512 << 20)

    def interfaces(self, spec: GuestSpec) -> tuple[GuestInterface, ...]:
        with self._lock:
            if (spec.node, spec.vmid) not in self._running:
                return ()
        found = [
            GuestInterface("lo", "00:00:00:00:00:00", (Address("127.0.0.1", 8, "inet"), Address("::1", 128, "inet6")))
        ]
        for interface in spec.interfaces:
            addresses = []
            if interface.ip and "/" in interface.ip:
                address, _, prefix = interface.ip.partition("/")
                addresses.append(Address(address, int(prefix), "inet"))
            elif interface.ip == "dhcp":
                addresses.append(Address(f"10.99.{spec.vmid // 250 % 250}.{spec.vmid % 250 + 2}", 16, "inet"))
            if interface.ip6 and "/" in interface.ip6:
                address, _, prefix = interface.ip6.partition("/")
                addresses.append(Address(address, int(prefix), "inet6"))
            found.append(GuestInterface(interface.name, interface.hwaddr.lower(), tuple(addresses)))
        return tuple(found)

    def hot_mount(self, spec: GuestSpec, mount: Mount, log: Log) -> None:
        with self._lock:
            entry = self._running[spec.node, spec.vmid]
            if mount.image is not None and not _formatted(mount.image):
                raise failed_hot_mount(mount)
            entry.mounts = (*entry.mounts, mount)

    def execute(self, spec: GuestSpec, argv: Sequence[str], stdin: bytes = b"") -> Completed:
        return Completed(1, stderr=b"this lab runs without containers: there is nothing to run a command in\n")

    def recover(self, specs: Sequence[GuestSpec]) -> None:
        with self._lock:
            for spec in specs:
                key = (spec.node, spec.vmid)
                if key in self._was_running and key not in self._running:
                    self._next_pid += 1
                    self._running[key] = _Running(time.time(), self._next_pid, spec.mounts, spec)
            self._was_running.clear()
            self._save()

    # --- inside ---

    def _stop(self, node: str, vmid: int) -> None:
        with self._lock:
            self._running.pop((node, vmid), None)
            self._stopped.notify_all()
            self._save()

    def _save(self) -> None:
        if self._state_file is not None:
            temporary = self._state_file.with_suffix(".tmp")
            temporary.write_text(json.dumps(sorted(self._running)))
            temporary.replace(self._state_file)

    def _users(self, data: Path) -> list[Mount]:
        mounts = [mount for entry in self._running.values() for mount in entry.mounts]
        return [mount for mount in mounts if data == mount.image or data.resolve() == mount.host_folder]


def _check_mount(vmid: int, mount: Mount) -> None:
    if mount.host_folder is not None and not is_plain_folder(mount.host_folder):
        raise failed_start(vmid, 2, f"directory '{mount.host_path}' does not exist")
    if mount.image is not None and not _formatted(mount.image):
        raise failed_start(vmid, 32, f"mount: {device_of(mount.image)}: wrong fs type, bad option, bad superblock")


def _formatted(image: Path) -> bool:
    with image.open("rb") as handle:
        return handle.read(len(_MAGIC)) == _MAGIC


def write_template(directory: Path, name: str = "debian-12-standard_12.7-1_amd64.tar.zst") -> Path:
    """A template that this runtime accepts: it never looks inside."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(b"not a real archive: the simulated runtime does not unpack\n")
    return path
