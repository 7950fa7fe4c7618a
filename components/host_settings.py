"""The settings around what only root on the node may set: host mounts, and the way to root."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field

from components.node_shell import NodeSsh
from components.rules import SettingsModel, absolute_path, keys_with, matches, refuse
from provisioning.ssh import HostKey
from proxmox.errors import Fault
from proxmox.hostmounts import HostMount
from proxmox.idmap import MAPPED_IDS

# The node's own: given away or written to from a container, they would be the end of it.
_SYSTEM = frozenset({"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "root", "run", "sbin", "sys", "usr"})
_KEY_COMMAND = "cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub"
_SHOWS_THE_KEY = f"on the node's console: {_KEY_COMMAND}"


def _host_folder(value: str) -> str:
    path = PurePosixPath(absolute_path(value))
    if not value.isprintable():
        # The commands for it are printed, and pasted.
        raise refuse("must hold no line break or other control character", "rename the folder")
    if path.parts[1] in _SYSTEM or len(path.parts) < 3 or str(path) in ("/mnt/pve", "/var/lib", "/etc/pve"):
        raise refuse(
            "must be a folder of its own, two levels below / or more, and none of the node's system",
            "write it like /mnt/pve/STORAGE/hermes or /srv/hermes",
        )
    return value


def _guest_path(value: str) -> str:
    if not re.fullmatch(r"(/[A-Za-z0-9._-]+)+", absolute_path(value)):
        raise refuse("must be a path of letters, digits, '.', '_' and '-'", "write it like /data")
    return value


def host_key_of(whose: str) -> Callable[[str], str]:
    """A validator for the public host key of a machine, "the node"; it may be empty."""

    def check(value: str) -> str:
        if not value:
            return value
        try:
            return HostKey.parse(value).line
        except ValueError:
            rule = f"must be {whose}'s public host key in one line, TYPE BASE64"
            raise refuse(rule, f"on {whose}'s console: {_KEY_COMMAND}") from None

    return check


class HostMountSettings(SettingsModel):
    """A folder of the node, ``source``, at ``path`` in the cattle.

    ``owner``: a user's number in the cattle; None for the agent's.
    """

    model_config = ConfigDict(alias_generator=keys_with(""))

    source: Annotated[str, AfterValidator(_host_folder)]
    path: Annotated[str, AfterValidator(_guest_path)]
    read_only: bool = False
    owner: Annotated[int, Field(ge=0, lt=MAPPED_IDS)] | None = None

    def wish(self, agent_uid: int) -> HostMount:
        return HostMount(self.source, self.path, agent_uid if self.owner is None else self.owner, self.read_only)


def mounts_differ(
    mounts: list[HostMountSettings], *, home: str | None, volume_at: str | None
) -> list[HostMountSettings]:
    """A validator: no path twice, none where the volume is, no home that can't be written, no folder inside another.

    The container's users rule over a folder that they have: one below it could be made a link to anywhere.
    """
    paths = [mount.path for mount in mounts]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise refuse(f"two host mounts have the path {twice[0]}", "give each a path of its own")
    if volume_at is not None and any(PurePosixPath(volume_at).is_relative_to(path) for path in paths):
        raise refuse(f"a host mount would cover the volume at {volume_at}", "choose another path")
    if any(mount.path == home and mount.read_only for mount in mounts):
        raise refuse(f"the agent's home, {home}, can't be read-only", "leave readOnly out")
    for one in mounts:
        for other in mounts:
            if one is not other and PurePosixPath(one.source).is_relative_to(other.source):
                raise refuse(
                    f"the source {one.source} lies in the source {other.source}",
                    "mount the outer one only, or folders beside each other",
                )
    return mounts


class NodeSshSettings(SettingsModel):
    """The way to root on the node; there is none while ``host_key`` is empty."""

    model_config = ConfigDict(alias_generator=keys_with("nodeSsh"))

    host: Annotated[
        str,
        AfterValidator(matches(r"[A-Za-z0-9.:_-]*", "must be a host name or an address", "write it like 192.168.1.10")),
    ]
    port: Annotated[int, Field(ge=1, le=65535)]
    user: Annotated[str, AfterValidator(matches(r"[a-z_][a-z0-9_-]*", "must be a user's name", "set it to root"))]
    host_key: Annotated[str, AfterValidator(host_key_of("the node"))]
    key_file: str

    def target(self, *, endpoint: str, key_file: Path) -> NodeSsh | None:
        """Where root is reached: by default the endpoint's host, with the key that logs in to the cattle."""
        if not self.host_key:
            return None
        return NodeSsh(
            host=self.host or urlsplit(endpoint).hostname or "",
            host_key=self.host_key,
            key_file=str(Path(self.key_file).expanduser() if self.key_file else key_file),
            port=self.port,
            user=self.user,
        )


def unpinned(config: Mapping[str, str]) -> Sequence[Fault]:
    """A way to root whose host key is not pinned: whoever answers there would be given root's commands."""
    given = [key for key in ("nodeSshHost", "nodeSshKeyFile") if config.get(key)]
    if config.get("nodeSshHostKey") or not given:
        return ()
    rule = f"must be set where {given[0]} is: the node's key is pinned, never learnt"
    return (Fault("nodeSshHostKey", "(empty)", rule, re.sub("^on", "it is shown on", _SHOWS_THE_KEY)),)
