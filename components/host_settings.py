"""What the settings of a cattle mean for its node: the way to root, and the folders that it has of the node."""

from __future__ import annotations

from components.node_shell import NodeSsh
from proxmox.host_mounts import HostMount
from settings.stack import CattleStack


def node_ssh_of(stack: CattleStack) -> NodeSsh | None:
    """Where root is reached: by default the endpoint's host, with the key that logs in to the cattle; None: nowhere."""
    ssh = stack.node_ssh
    if not ssh.host_key:
        return None
    return NodeSsh(
        host=ssh.host or stack.connection.host,
        host_key=ssh.host_key,
        key_file=ssh.key_file or stack.ssh_private_key_file,
        port=ssh.port,
        user=ssh.user,
    )


def host_mounts_of(stack: CattleStack) -> tuple[HostMount, ...]:
    """The cattle's folders of the node; one without an owner is the agent's user's."""
    return tuple(
        HostMount(mount.source, mount.path, stack.owner_of(mount), mount.read_only)
        for mount in stack.cattle.host_mounts
    )
