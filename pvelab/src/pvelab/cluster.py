"""The state that all requests share: guests, their locks, storages, rights, tasks."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pvelab import guestfile
from pvelab.access import Access, Identity
from pvelab.config import LabConfig
from pvelab.errors import ApiError, die
from pvelab.guestfile import GuestConfig, mount_points, mount_type, parse_mount
from pvelab.hostfolders import HostFolders
from pvelab.runtime import GuestSpec, Interface, Mount, Runtime
from pvelab.schema import FEATURES, NETWORK, FormatError, parse_property_string
from pvelab.storages import SUBVOL, type_of
from pvelab.tasks import Task, Tasks
from pvelab.volumes import Volumes

DEFAULT_MEMORY = 512
RESET_DEADLINE = 60.0
MAPPED_ROOT = 100_000
"""The host's number of root in an unprivileged guest (facts proxmox 8)."""


@dataclass(frozen=True)
class GuestPlace:
    vmid: int
    node: str
    kind: str  # "lxc" or "qemu"


class GuestLocks:
    """One lock per guest, waited for like Proxmox's flock on ``/run/lock/lxc`` (facts proxmox 13)."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}
        self._seized: list[threading.Event] = []

    def _lock(self, vmid: int) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(vmid, threading.Lock())

    @contextlib.contextmanager
    def hold(self, vmid: int, timeout: float) -> Iterator[None]:
        lock = self._lock(vmid)
        if not lock.acquire(timeout=timeout):
            raise die(f"can't lock file '/run/lock/lxc/pve-config-{vmid}.lock' - got timeout")
        try:
            yield
        finally:
            lock.release()

    def seize(self, vmid: int, seconds: float) -> None:
        """Hold a guest's lock for a while without doing anything (faults on demand)."""
        lock = self._lock(vmid)
        if lock.acquire(timeout=seconds):
            given_back = threading.Event()
            self._seized.append(given_back)

            def wait() -> None:
                given_back.wait(seconds)
                lock.release()

            threading.Thread(target=wait, daemon=True).start()

    def give_back(self) -> None:
        """End every :meth:`seize` at once."""
        for event in self._seized:
            event.set()
        self._seized.clear()

    @contextlib.contextmanager
    def hold_if_free(self, vmid: int) -> Iterator[bool]:
        lock = self._lock(vmid)
        taken = lock.acquire(blocking=False)
        try:
            yield taken
        finally:
            if taken:
                lock.release()


States = dict[int, dict[str, object]]
"""What a node tells of its guests, by their numbers."""


class Broadcast:
    """What pvestatd of each node tells the others every ten seconds or so: between two times it is old (facts 12).

    A node that has told nothing yet, or nothing for :data:`EXPIRY`, has no statistics, and its status is ``unknown``.
    """

    EXPIRY = 300.0
    """Seconds for which pmxcfs keeps what it was told (pve-cluster: pmxcfs/status.c, rrd_entry_is_old)."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._lock = threading.Lock()
        self._told: dict[str, tuple[float, States]] = {}
        self._quiet: dict[str, float] = {}
        self.disturbance: Callable[[str], tuple[str, float] | None] = lambda _node: None
        """What is the matter with a node's pvestatd, and for how many seconds: set by faults on demand."""

    def states(self, node: str, take: Callable[[], States]) -> States | None:
        """The states that a node told last; told again when they are older than the interval. None: no statistics."""
        matter, seconds = self.disturbance(node) or ("", 0.0)
        with self._lock:
            now = time.monotonic()
            if matter == "started":
                self._told.pop(node, None)
                self._quiet[node] = now + (seconds or self._interval)
            told = self._told.get(node)
            if matter == "hung":
                expired = told is None or now - told[0] >= (seconds or self.EXPIRY)
                return None if told is None or expired else told[1]
            if matter == "unknown" or now < self._quiet.get(node, 0.0):
                return None
            if told is None or now - told[0] >= self._interval:
                told = self._told[node] = (now, take())
            return told[1]

    def forget(self) -> None:
        """Have each node tell at the next look."""
        with self._lock:
            self._told.clear()
            self._quiet.clear()


class Cluster:
    """Everything behind the API of one lab."""

    def __init__(self, config: LabConfig) -> None:
        self.config = config
        self.runtime: Runtime = config.runtime
        config.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for node in config.nodes:
            for directory in (config.guest_dir(node), config.task_dir(node)):
                directory.mkdir(parents=True, exist_ok=True)
            for storage in config.storages:
                if storage.on_node(node):
                    config.storage_dir(node, storage.name).mkdir(parents=True, exist_ok=True)
                    if "vztmpl" in storage.content:
                        config.template_dir(node, storage.name).mkdir(parents=True, exist_ok=True)
        self.access = Access(config.state_dir / "access.json", config.release)
        self.tasks = Tasks(config.task_dir)
        self.volumes = Volumes(config, self.runtime)
        self.locks = GuestLocks()
        self.broadcast = Broadcast(config.broadcast_interval)
        self.fingerprint = ""
        """SHA-256 of the server's certificate, as ``/nodes`` shows it."""
        self.creation = threading.Lock()
        """Makes "is the number free" and "write the file" one step, as the cluster file system does."""
        self._power_guard = threading.Lock()
        self._seen_running: dict[str, set[int]] = {node: set() for node in config.nodes}
        self.is_offline: Callable[[str], bool] = lambda _node: False
        self.is_inquorate: Callable[[], bool] = lambda: False
        """Set by faults on demand, both."""
        self.apply_pending: Callable[[str, int], None] = lambda _node, _vmid: None
        """Set by :mod:`pvelab.guestconfig`: applies what waits for a stop; the caller holds the guest's lock."""

    # --- guests on disk ---

    def conf_path(self, node: str, vmid: int) -> Path:
        return self.config.guest_dir(node) / f"{vmid}.conf"

    def guests(self) -> dict[int, GuestPlace]:
        """Every guest of the cluster; virtual machines count as names only."""
        found: dict[int, GuestPlace] = {}
        for node in self.config.nodes:
            for folder, kind in (("lxc", "lxc"), ("qemu-server", "qemu")):
                with contextlib.suppress(FileNotFoundError):
                    # This runs on every create and listing, and a Path per entry costs ten times as much.
                    for name in os.listdir(self.config.node_dir(node) / folder):  # noqa: PTH208
                        stem, _, suffix = name.partition(".")
                        if suffix == "conf" and stem.isdigit():
                            found[int(stem)] = GuestPlace(int(stem), node, kind)
        return found

    def guest_ids(self, node: str) -> list[int]:
        return sorted(place.vmid for place in self.guests().values() if place.node == node and place.kind == "lxc")

    def check_free(self, vmid: int) -> None:
        """500 when any guest of the cluster has the number (facts proxmox 2.1, step 4)."""
        place = self.guests().get(vmid)
        if place is not None:
            word = "CT" if place.kind == "lxc" else "VM"
            raise die(f"{word} {vmid} already exists on node '{place.node}'")

    def load(self, node: str, vmid: int) -> GuestConfig:
        try:
            return guestfile.parse(self.conf_path(node, vmid).read_text())
        except FileNotFoundError:
            raise die(f"Configuration file 'nodes/{node}/lxc/{vmid}.conf' does not exist") from None

    def check_quorum(self) -> None:
        """What some calls ask before all else (PVE::Cluster, check_cfs_quorum)."""
        if self.is_inquorate():
            raise die("cluster not ready - no quorum?")

    def store(self, node: str, vmid: int, config: GuestConfig) -> None:
        """Write a guest's file; 500 without a quorum: /etc/pve is read-only then (PVE::Tools, file_set_contents)."""
        if self.is_inquorate():
            file = f"/etc/pve/nodes/{node}/lxc/{vmid}.conf.tmp.{os.getpid()}"
            raise die(f"unable to open file '{file}' - Permission denied")
        guestfile.write_atomically(self.conf_path(node, vmid), config.render())

    @contextlib.contextmanager
    def locked(self, vmid: int, timeout: float | None = None) -> Iterator[None]:
        with self.locks.hold(vmid, self.config.lock_timeout if timeout is None else timeout):
            yield

    # --- power ---

    def running(self, node: str) -> frozenset[int]:
        """Who runs now. A guest that went down on its own gets what its post-stop hook does (facts proxmox 3.2)."""
        now = self.runtime.running(node)
        with self._power_guard:
            gone = self._seen_running[node] - now
            self._seen_running[node] |= now
        for vmid in gone:
            with self.locks.hold_if_free(vmid) as free:
                if free:
                    with contextlib.suppress(ApiError):
                        self.apply_pending(node, vmid)
                    self.forget_running(node, vmid)
        return now

    def is_running(self, node: str, vmid: int) -> bool:
        return vmid in self.running(node)

    def forget_running(self, node: str, vmid: int) -> None:
        with self._power_guard:
            self._seen_running[node].discard(vmid)

    def start_task(
        self, node: str, kind: str, subject: int | str, who: Identity, worker: Callable[[Task], None]
    ) -> str:
        return self.tasks.start(node, kind, str(subject), who.authid, worker)

    # --- what a runtime gets ---

    def spec(self, node: str, vmid: int, config: GuestConfig) -> GuestSpec:
        """The guest as its config says, whether or not its volumes exist."""
        options = config.options
        features = parse_property_string(FEATURES, options.get("features", ""))
        return GuestSpec(
            node=node,
            vmid=vmid,
            hostname=options.get("hostname", f"CT{vmid}"),
            memory=int(options.get("memory", DEFAULT_MEMORY)),
            swap=int(options.get("swap", DEFAULT_MEMORY)),
            mounts=tuple(self.mount(node, key, mount) for key, mount in mount_points(options)),
            interfaces=tuple(self._interfaces(options)),
            cores=int(options["cores"]) if "cores" in options else None,
            unprivileged=config.flag("unprivileged"),
            nesting=features.get("nesting") == "1",
            keyctl=features.get("keyctl") == "1",
            nameserver=options.get("nameserver"),
            searchdomain=options.get("searchdomain"),
            raw_lxc=tuple(config.main.raw),
        )

    def mount(self, node: str, key: str, mount: dict[str, str]) -> Mount:
        volume, read_only = mount["volume"], mount.get("ro") == "1"
        if mount_type(volume) != "volume":
            folder = self.config.host_dir(node).joinpath(*PurePosixPath(volume).parts[1:])
            return Mount(key, mount["mp"], host_folder=folder, host_path=volume, read_only=read_only)
        parsed = self.volumes.parse(volume)
        data = self.volumes.path(node, parsed)
        options = tuple(filter(None, mount.get("mountoptions", "").split(";")))
        if parsed.format != SUBVOL:
            return Mount(key, mount["mp"], image=data, read_only=read_only, options=options)
        shown = type_of(parsed.storage).shown_path(parsed)
        return Mount(
            key, mount["mp"], host_folder=data.resolve(), host_path=shown, read_only=read_only, options=options
        )

    @staticmethod
    def _interfaces(options: dict[str, str]) -> Iterator[Interface]:
        keys = sorted((k for k in options if k.startswith("net") and k[3:].isdigit()), key=lambda k: int(k[3:]))
        for key in keys:
            try:
                net = parse_property_string(NETWORK, options[key], key)
            except FormatError:
                continue
            if net.get("link_down") != "1":
                yield Interface(
                    name=net["name"],
                    bridge=net.get("bridge", ""),
                    hwaddr=net.get("hwaddr", ""),
                    ip=net.get("ip"),
                    gateway=net.get("gw"),
                    ip6=net.get("ip6"),
                    gateway6=net.get("gw6"),
                    mtu=int(net["mtu"]) if "mtu" in net else None,
                )

    def activate(self, node: str, config: GuestConfig) -> None:
        """The check before anything boots: every volume is there, or the storage's text (facts proxmox 7 A)."""
        for _, mount in mount_points(config.options):
            if mount_type(mount["volume"]) == "volume":
                self.volumes.find(node, mount["volume"])

    def mounts_elsewhere(self, node: str, vmid: int, volid: str) -> Iterator[dict[str, str]]:
        """How the other guests that run on the node mount the volume."""
        for other in self.running(node) - {vmid}:
            with contextlib.suppress(ApiError):
                found = mount_points(self.load(node, other).options)
                yield from (mount for _, mount in found if mount["volume"] == volid)

    def mode_is_taken(self, node: str, vmid: int, mount: dict[str, str]) -> bool:
        """Whether another guest mounts the volume in the other mode, ro or rw.

        Each guest's mounts are in a namespace of its own, so mount(8) sees none that it could fall back to, and the
        kernel refuses a device's second mode in either order (facts proxmox-9.2, row 1). A subvol is no device: each
        guest has a bind mount of its own (PVE::LXC, bindmount).
        """
        if mount_type(mount["volume"]) != "volume" or self.volumes.parse(mount["volume"]).format == SUBVOL:
            return False
        wanted = mount.get("ro") == "1"
        return any((other.get("ro") == "1") != wanted for other in self.mounts_elsewhere(node, vmid, mount["volume"]))

    def recover(self) -> None:
        """After a start of the lab: let the runtime release what stopped guests hold."""
        specs: list[GuestSpec] = []
        for place in self.guests().values():
            if place.kind == "lxc":
                with contextlib.suppress(ApiError, FormatError, ValueError):
                    specs.append(self.spec(place.node, place.vmid, self.load(place.node, place.vmid)))
        self.runtime.recover(specs)

    def reset(self) -> None:
        """Remove guests, volumes, backups, tasks, rights and the nodes' own folders; nodes and templates stay.

        Tasks that run are aborted. 500 when one does not end.
        """
        self.locks.give_back()
        for task in self.tasks.active():
            task.aborted.set()
        if not self.tasks.wait_idle(RESET_DEADLINE):
            raise die(f"these tasks do not end: {', '.join(str(task.upid) for task in self.tasks.active())}")
        for place in self.guests().values():
            if place.kind == "lxc" and self.is_running(place.node, place.vmid):
                self.runtime.kill(self.spec(place.node, place.vmid, self.load(place.node, place.vmid)))
                self.forget_running(place.node, place.vmid)
        self.volumes.clear()
        for node in self.config.nodes:
            for folder in (self.config.guest_dir(node), self.config.task_dir(node)):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self.config.node_dir(node) / "qemu-server", ignore_errors=True)
            HostFolders(self.config.host_dir(node)).clear()
        self.access.clear()
        self.broadcast.forget()


def root_owner(config: GuestConfig) -> int:
    """Who a guest's root is on the node."""
    return MAPPED_ROOT if config.flag("unprivileged") else 0


def check_config_lock(config: GuestConfig, *, tolerate: tuple[str, ...] = ()) -> None:
    lock = config.get("lock")
    if lock is not None and lock not in tolerate:
        raise die(f"CT is locked ({lock})")


def check_digest(config: GuestConfig, digest: str | None) -> None:
    if digest is not None and digest != config.digest:
        raise die("detected modified configuration - file changed by other user? Try again.")


def check_protection(config: GuestConfig, prefix: str) -> None:
    if config.flag("protection"):
        raise die(f"{prefix} - protection mode enabled")


def volume_of(key: str, value: str) -> str | None:
    """The volid behind a slot, or None for bind and device mounts and what does not parse."""
    if guestfile.is_unused(key):
        return value
    try:
        volume = parse_mount(key, value)["volume"]
    except FormatError:
        return None
    return volume if mount_type(volume) == "volume" else None
