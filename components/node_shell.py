"""Root's shell on the node by SSH, held to a pinned host key: for what no token may do (host mounts)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from provisioning.errors import HostKeyMismatch, PrivateKeyError, ProvisioningError, SshAuthError
from provisioning.ssh import HostKey, SshConnection, SshTarget, connect
from proxmox.errors import NodeShellFailed
from proxmox.host_mounts import HostMountSpec
from proxmox.hostshell import COMMAND_SECONDS, Answer, HostShell

CONNECT_SECONDS = 20.0


@dataclass(frozen=True)
class NodeSsh:
    """Where root of the node is reached. ``host_key``: one line, TYPE BASE64; ``key_file``: the private key's.

    None of it is a secret: a resource keeps it.
    """

    host: str
    host_key: Annotated[str, Field(alias="hostKey")]
    key_file: Annotated[str, Field(alias="keyFile")]
    port: int = 22
    user: str = "root"


@dataclass(frozen=True)
class NodeSpec(HostMountSpec):
    """Host mounts, and the way to root on the node; ``ssh`` None: nobody here is root there.

    ``folders``: what is to be done to the folders themselves, as preflight has found them; none once it is done.
    """

    folders: tuple[str, ...] = ()
    ssh: NodeSsh | None = None


class _Shell:
    """A connection whose errors speak of the node."""

    def __init__(self, connection: SshConnection, where: NodeSsh) -> None:
        self._connection = connection
        self._where = where

    def run(self, command: str, *, timeout_s: float = COMMAND_SECONDS) -> Answer:
        try:
            return self._connection.run(command, timeout_s=timeout_s)
        except ProvisioningError as error:
            raise unreachable(self._where, error) from None


@contextlib.contextmanager
def node_shell(where: NodeSsh | None) -> Iterator[HostShell | None]:
    """A root shell on the node; None where the settings name no way to it. Raises NodeShellFailed."""
    if where is None:
        yield None
        return
    target = SshTarget(
        host=where.host,
        host_key=HostKey.parse(where.host_key),
        port=where.port,
        user=where.user,
        private_key_file=where.key_file,
    )
    try:
        connection = connect(target, timeout_s=CONNECT_SECONDS)
    except ProvisioningError as error:
        raise unreachable(where, error) from None
    with contextlib.closing(connection):
        yield _Shell(connection, where)


def unreachable(where: NodeSsh, error: ProvisioningError) -> NodeShellFailed:
    """The error of a connection, in words for the node: its own texts speak of containers."""
    remedies: dict[type[ProvisioningError], str] = {
        HostKeyMismatch: "find out who answers there; if the node was reinstalled, set nodeSshHostKey to the line "
        "that its console shows: cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub",
        SshAuthError: "add the public half of nodeSshKeyFile to /root/.ssh/authorized_keys of the node",
        PrivateKeyError: "name the private key of root on the node in nodeSshKeyFile",
    }
    return NodeShellFailed(
        f"root can't be reached by SSH at {where.user}@{where.host}:{where.port}",
        str(error).splitlines()[0],
        remedies.get(type(error), "correct nodeSshHost and nodeSshPort, or see why the node does not answer"),
    )
