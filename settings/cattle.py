"""The cattle: the container that runs the agent, without the agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from proxmox.errors import Fault
from proxmox.idmap import MAPPED_IDS
from settings.kinds import (
    VOLUME_NAME,
    AbsolutePath,
    Cores,
    Hostname,
    PlainPath,
    PublicKey,
    StorageId,
    Tags,
    Vmid,
    Volid,
    absolute_path,
    host_key_of,
    matches,
)
from settings.network import NetworkSettings
from settings.section import Part, Section, refuse, rule, setting

# The node's own: given away or written to from a container, they would be the end of it.
_SYSTEM = frozenset({"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "root", "run", "sbin", "sys", "usr"})


def _host_folder(value: str) -> str:
    path = PurePosixPath(absolute_path(value))
    if path.parts[1] in _SYSTEM or len(path.parts) < 3 or str(path) in ("/mnt/pve", "/var/lib"):
        raise refuse(
            "must be a folder of its own, two levels below / or more, and none of the node's system",
            "write it like /mnt/pve/STORAGE/hermes or /srv/hermes",
        )
    return value


class HostMountSettings(Part):
    """A folder of the node, `source`, at `path` in the cattle. `owner`: a user's number in there; None: the agent's."""

    model_config = ConfigDict(populate_by_name=False)

    source: Annotated[str, AfterValidator(_host_folder)]
    path: PlainPath
    read_only: bool = Field(default=False, alias="readOnly")
    owner: Annotated[int, Field(ge=0, lt=MAPPED_IDS)] | None = None


_STACK = r"([\w.-]+/[\w.-]+/)?[\w.-]+"


class CattleSettings(Section):
    """Memory and swap in MB, disk in GB."""

    pet_stack: Annotated[
        str, matches(_STACK, "must be a stack's name", "write it like pet or organization/hermes-homelab/pet")
    ] = setting("petStack", "pet", "The stack that owns the volume: its name, or organization/project/name.")
    vmid: Vmid = setting("cattleVmid", 105, "The VMID of the cattle.")
    hostname: Hostname = setting("cattleHostname", "hermes", "The cattle's host name.")
    cores: Cores = setting("cattleCores", 2, "The cattle's CPU cores.")
    memory: Annotated[int, Field(ge=512)] = setting("cattleMemory", 4096, "The cattle's memory in MB.")
    swap: Annotated[int, Field(ge=0)] = setting("cattleSwap", 512, "The cattle's swap in MB.")
    disk: Annotated[int, Field(ge=2)] = setting("cattleDisk", 20, "The cattle's root file system in GB.")
    golden_template: Annotated[
        str, matches(f"({_STACK})?", "must be a stack's name, or empty", "write it like image")
    ] = setting(
        "goldenTemplate",
        "",
        "The image stack whose golden template a new cattle is cloned from. Empty: none; it is made from template. One "
        "that is there stays as it is.",
    )
    storage: StorageId = setting("cattleStorage", "local-lvm", "The storage of the cattle's root file system.")
    network: NetworkSettings
    tags: Tags = setting("cattleTags", ["agent", "ai", "pulumi"], "The cattle's tags in Proxmox.")
    start_on_boot: bool = setting("cattleStartOnBoot", True, "Whether the node starts the cattle when it boots.")
    ssh_host_key: Annotated[str, host_key_of("the container")] = setting(
        "cattleSshHostKey",
        "",
        "The container's public SSH host key, TYPE BASE64. Empty: the one in the log of Proxmox's task. "
        "Needed only after somebody changed the keys in the container.",
    )
    ssh_keys: list[PublicKey] = setting(
        "cattleSshKeys", [], "Further public keys that may log in as root, besides that of sshPrivateKeyFile."
    )
    volume: Annotated[
        str,
        matches(
            f"({VOLUME_NAME})?",
            "2 to 40 lower-case letters, digits and hyphens, or empty",
            "name one of the pet's volumes",
        ),
    ] = setting(
        "cattleVolume",
        "hermes",
        "The name of the pet's volume that the cattle mounts. Empty: none; the agent's data are on the "
        "cattle's root file system, and lost with it.",
    )
    mount_path: AbsolutePath = setting(
        "cattleMountPath", "/home/hermes", "Where the volume is mounted: the home of the agent's user."
    )
    take_over: Volid | Literal[""] = setting(
        "cattleTakeOver",
        "",
        "The volid of a volume to take from its holder. The program stops that guest. Empty: a volume in use "
        "is refused.",
    )
    host_mounts: list[HostMountSettings] = setting(
        "cattleHostMounts",
        [],
        "Folders of the node in the cattle: source on the node, path in the cattle; readOnly (false); owner, "
        "a uid in the cattle (agentUid). Needs root on the node.",
    )
    keyctl: bool = setting(
        "cattleKeyctl",
        False,
        "Whether the cattle has the feature keyctl. With agentMode docker it always has it. Needs root on the node.",
    )

    @property
    def home_on_root(self) -> bool:
        """Whether the home lies on the container's own root file system, and goes with it."""
        return not self.volume and self.home_folder is None

    @property
    def home_folder(self) -> str | None:
        """The folder of the node that is the home; None when it is on a volume or the root file system."""
        return next((mount.source for mount in self.host_mounts if mount.path == self.mount_path), None)

    @property
    def extra_host_mounts(self) -> list[HostMountSettings]:
        """The host mounts beside the home."""
        return [mount for mount in self.host_mounts if mount.path != self.mount_path]

    @rule
    def _host_mounts_differ(self) -> Iterator[Fault]:
        """The container's users rule over a folder that they have: one below it could be made a link to anywhere."""
        paths = [mount.path for mount in self.host_mounts]
        for path in sorted({path for path in paths if paths.count(path) > 1}):
            yield self.fault(
                "host_mounts", f"two host mounts have the path {path}", "give each a path of its own", path
            )
        for one in self.host_mounts:
            for other in self.host_mounts:
                if one is not other and PurePosixPath(one.source).is_relative_to(other.source):
                    rule = f"the source {one.source} lies in the source {other.source}"
                    remedy = "mount the outer one only, or folders beside each other"
                    yield self.fault("host_mounts", rule, remedy, one.source)
                    return

    @rule
    def _host_mounts_leave_the_home(self) -> Iterator[Fault]:
        home = self.mount_path
        if self.volume and any(PurePosixPath(home).is_relative_to(mount.path) for mount in self.host_mounts):
            rule = f"a host mount would cover the volume at {home}"
            yield self.fault("host_mounts", rule, "choose another path", home)
        elif any(mount.path == home and mount.read_only for mount in self.host_mounts):
            rule = f"the agent's home, {home}, can't be read-only"
            yield self.fault("host_mounts", rule, "leave readOnly out", home)
