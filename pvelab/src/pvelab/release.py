"""What differs between the releases of Proxmox VE that a lab can be, as far as a client sees it.

Each field names the package and file that was compared: ``master`` (9.2) with ``stable-bookworm`` or ``stable-8``
(8.4). What is not here was found the same, or is not modelled at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT = "9"


@dataclass(frozen=True)
class Release:
    """``version``: pve-manager's, as the API shows it. The defaults are those of 9."""

    version: str
    unknown: frozenset[str] = frozenset()
    """Options of guests, and keys in them, that are refused (pve-container: LXC/Config.pm, API2/LXC.pm create_vm)."""
    unprivileged: bool = True
    """Whether a container is unprivileged by default, and a privileged one needs Sys.Modify (pve-container 6.0.6)."""
    warns_of_nesting: bool = True
    """Tasks warn of systemd without nesting (pve-container 6.0.19: LXC/Setup.pm, check_systemd_nesting)."""
    hotplugs_devices: bool = True
    """A new devN of a running guest takes effect at once (pve-container 6.0.4: LXC/Config.pm)."""
    pressure: bool = True
    """A running guest's status has pressure figures (pve-container 6.0.7: LXC.pm, vmstatus)."""
    host_memory: bool = True
    """The cluster's resources have memhost (pve-manager: API2Tools.pm, extract_vm_stats)."""
    names_clone: bool = True
    """A clone's log begins with the new number (pve-container 6.1.3: API2/LXC.pm, clone_vm)."""
    clone_of_running: str = "Full clone of a running container is only possible from a snapshot"
    """The refusal of one (pve-container 6.0.19: API2/LXC.pm, clone_vm)."""
    pool_letter: bool = True
    """A pool's name must start with a letter (pve-manager: API2/Pool.pm, create_pool)."""
    unmet: str = "missing property required by '{}'"
    """What is said of a parameter that another one requires (pve-common 9.0.8: JSONSchema.pm, check_object)."""
    resize_line: int = 2386
    """The line of API2/LXC.pm in a refusal (pve-container: resize_vm)."""
    vm_admin: tuple[str, ...] = ("VM.GuestAgent.Unrestricted", "VM.Replicate")
    vm_user: tuple[str, ...] = ("VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt", "VM.GuestAgent.FileWrite")
    vm_audit: tuple[str, ...] = ("VM.GuestAgent.Audit",)
    """Privileges over guests that the other release has not (pve-access-control: AccessControl.pm, privgroups)."""

    @property
    def name(self) -> str:
        """``9.2`` of ``9.2.11``."""
        return self.version.rpartition(".")[0]


RELEASES: Mapping[str, Release] = {
    "8": Release(
        # pve-container 5.3.5, libpve-access-control 8.2.3.
        "8.4.21",
        unknown=frozenset(("entrypoint", "env", "ha-managed", "host-managed", "idmap", "keepattrs")),
        unprivileged=False,
        warns_of_nesting=False,
        hotplugs_devices=False,
        pressure=False,
        host_memory=False,
        names_clone=False,
        clone_of_running="Cannot do full clones on a running container without snapshots",
        pool_letter=False,
        unmet="missing property - '{}' requires this property",
        resize_line=2205,
        vm_admin=("VM.Monitor",),
        vm_user=(),
        vm_audit=(),
    ),
    # pve-container 6.1.10, libpve-access-control 9.1.1.
    DEFAULT: Release("9.2.11"),
}
"""By what ``up --pve`` takes."""
