"""What a lab consists of: nodes, storages, bridges, and where its state lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pvelab.release import DEFAULT, RELEASES, Release

if TYPE_CHECKING:
    from pvelab.runtime import Runtime

GIB = 1 << 30
ALWAYS_SHARED = frozenset({"nfs", "cifs", "rbd"})
"""Types that Proxmox takes for shared without being told (PVE::Storage::Plugin, SHARED_STORAGE)."""


@dataclass(frozen=True)
class StorageConfig:
    """One entry of Proxmox's ``storage.cfg``; ``type`` is one that :mod:`pvelab.storages` knows.

    ``content`` uses Proxmox's content names (``rootdir``, ``images``, ``vztmpl``, ``iso``, ``backup``).
    ``nodes`` limits where the storage exists; None is everywhere. ``capacity`` is the total shown for a
    thin pool, in bytes; a ``dir`` storage shows the file system below it. ``volume_group`` is LVM's, ``pool`` that of
    ZFS (a pool or a data set of one) and of Ceph.
    """

    name: str
    type: str
    content: frozenset[str]
    shared: bool = False
    nodes: frozenset[str] | None = None
    enabled: bool = True
    capacity: int = 512 * GIB
    volume_group: str = "pve"
    pool: str = "rpool/data"

    def __post_init__(self) -> None:
        if self.type in ALWAYS_SHARED:
            object.__setattr__(self, "shared", True)

    def on_node(self, node: str) -> bool:
        return self.nodes is None or node in self.nodes


LOCAL = StorageConfig("local", "dir", frozenset({"vztmpl", "iso", "backup"}))
LOCAL_LVM = StorageConfig("local-lvm", "lvmthin", frozenset({"rootdir", "images"}))
SHARED = StorageConfig("shared", "dir", frozenset({"rootdir", "images", "vztmpl", "iso", "backup"}), shared=True)

DEFAULT_STORAGES = (LOCAL, LOCAL_LVM)


def storages_for(nodes: Sequence[str], more: Mapping[str, str] | None = None) -> tuple[StorageConfig, ...]:
    """``local`` and ``local-lvm`` on each node, a shared one where there are several, and ``more``: type by name."""
    standard = DEFAULT_STORAGES if len(nodes) == 1 else (*DEFAULT_STORAGES, SHARED)
    added = (StorageConfig(name, kind, frozenset({"rootdir", "images"})) for name, kind in (more or {}).items())
    return (*standard, *added)


@dataclass(frozen=True)
class Account:
    """A user that a lab has from the start, with an API token of separated privileges; both have the same rights.

    ``roles``: those that are made for it, and their privileges. ``acl``: pairs of path and role.
    """

    user: str = "tester@pve"
    token: str = "lab"  # noqa: S105 - its name, not its secret
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    acl: Sequence[tuple[str, str]] = (("/", "Administrator"),)
    comment: str = "of the lab"

    @property
    def token_id(self) -> str:
        return f"{self.user}!{self.token}"

    def on_storages(self, names: Iterable[str]) -> Account:
        """The same account, which may do on these storages what it may on ``local-lvm``."""
        roles = [role for path, role in self.acl if path == f"/storage/{LOCAL_LVM.name}"]
        return replace(self, acl=(*self.acl, *((f"/storage/{name}", role) for name in names for role in roles)))


@dataclass(frozen=True)
class LabConfig:
    """A lab. Everything it keeps lies below ``state_dir``; it listens on ``host`` only, which is loopback.

    ``port`` 0 takes any free one. ``auth_delay`` is how long a 401 is held back, in seconds (facts proxmox 0).
    ``lock_timeout`` and ``create_lock_timeout`` are how long a call waits for a guest's lock (facts proxmox 13).
    ``broadcast_interval`` is how old, in seconds, the states in ``/cluster/resources`` may be (facts proxmox 12).
    ``pve`` is the release, one of :data:`pvelab.release.RELEASES`. ``control`` opens the fault socket
    ``<state_dir>/control.sock``. ``vnets``: each with its zone of a software-defined network; here a guest on one is
    on the same wire as those on a bridge.
    """

    state_dir: Path
    runtime: Runtime
    nodes: tuple[str, ...] = ("pve",)
    storages: tuple[StorageConfig, ...] = DEFAULT_STORAGES
    bridges: tuple[str, ...] = ("vmbr0",)
    vnets: tuple[tuple[str, str], ...] = (("intra01", "intra"),)
    bridge_mtu: int = 1500
    host: str = "127.0.0.1"
    port: int = 0
    auth_delay: float = 3.0
    lock_timeout: float = 10.0
    create_lock_timeout: float = 5.0
    broadcast_interval: float = 10.0
    control: bool = True
    account: Account = field(default_factory=Account)
    pve: str = DEFAULT

    @property
    def release(self) -> Release:
        """What it is a lab of; KeyError for one that it can't be."""
        return RELEASES[self.pve]

    @property
    def zones(self) -> dict[str, str]:
        """Everything that a guest's card may be plugged into, and the zone that its rights go by."""
        return {**dict.fromkeys(self.bridges, "localnetwork"), **dict(self.vnets)}

    def node_dir(self, node: str) -> Path:
        return self.state_dir / "nodes" / node

    def guest_dir(self, node: str) -> Path:
        return self.node_dir(node) / "lxc"

    def host_dir(self, node: str) -> Path:
        """The node's own file system: what is /srv/x there is <host_dir>/srv/x here (hostfolders.py)."""
        return (self.node_dir(node) / "host").resolve()

    def storage_dir(self, node: str, storage: str) -> Path:
        """Where a storage keeps its files: below the node, or once for all nodes when it is shared."""
        for entry in self.storages:
            if entry.name == storage and entry.shared:
                return self.state_dir / "shared" / storage
        return self.node_dir(node) / "storage" / storage

    def template_dir(self, node: str, storage: str = "local") -> Path:
        return self.storage_dir(node, storage) / "template" / "cache"

    def task_dir(self, node: str) -> Path:
        return self.node_dir(node) / "tasks"
