"""The outputs of the stacks: what another program may rely on. docs/outputs.md is made of it.

Each output is always there. Where there is nothing to tell it is empty: the text "", the object {}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from settings.section import Kind

Role = Literal["pet", "cattle"]


@dataclass(frozen=True)
class Output:
    """One output. since: the first version that has it; stable: no later version changes its meaning or its type."""

    kind: Kind
    description: str
    since: str = "0.1.0"
    stable: bool = True
    secret: bool = False

    @property
    def empty(self) -> Any:
        """What is told where there is nothing to tell."""
        return {} if self.kind == "object" else ""


OUTPUTS: dict[Role, dict[str, Output]] = {
    "pet": {
        "vmid": Output("integer", "The VMID of the pet."),
        "node": Output("string", "The Proxmox node of the pet."),
        "volumes": Output("object", "Each volume by its name: `volid`, `size` in GB, `storage`, `path` on the pet."),
    },
    "cattle": {
        "vmid": Output("integer", "The VMID of the cattle."),
        "node": Output("string", "The Proxmox node of the cattle."),
        "hostname": Output("string", "The cattle's host name."),
        "volume": Output("string", "The volid of the volume with the agent's data. Empty without one."),
        "hostMounts": Output("object", "The node's folders in the cattle: path in the cattle to path on the node."),
        "agentMode": Output("string", "`bare-metal`, `docker` or `none`. With `none` all outputs below are empty."),
        "address": Output("string", "The cattle's IP address. With DHCP it may be another after a new lease."),
        "hardwareAddress": Output("string", "The hardware address of the cattle's first network card."),
        "ssh": Output("string", "A command line that logs in as root, from the machine that ran `up`.", stable=False),
        "sshKeyFile": Output("string", "The private key that logs in, a path on the machine that ran `up`."),
        "sshHostKey": Output("string", "The cattle's public SSH host key, TYPE BASE64."),
        "sshHostKeyFingerprint": Output("string", "Its fingerprint, SHA256:..."),
        "api": Output(
            "string",
            "The base URL of the agent's API, which other machines can reach. Empty while it is off or on loopback.",
        ),
        "apiInGuest": Output("string", "The base URL inside the cattle, for a tunnel.", since="0.2.0"),
        "apiKey": Output("string", "The API's key. Empty while `agentApi` is false.", since="0.2.0", secret=True),
        "dashboard": Output(
            "string",
            "The dashboard's URL, which other machines can reach. Empty while it is off or on loopback.",
        ),
        "dashboardInGuest": Output("string", "The dashboard's URL inside the cattle, for a tunnel.", since="0.2.0"),
        "agentVersion": Output("string", "The version that the agent reports."),
        "agentIdentity": Output("string", "Docker mode: a digest of all that the container is made of."),
        "agentState": Output(
            "string",
            "What the last `up` found: `active` of systemd, `running` of an engine.",
            stable=False,
        ),
        "backup": Output("string", "The newest backup that the stack has made: its name on the volume.", stable=False),
        "backupState": Output(
            "string",
            "How the last verification found the backups on schedule: `made`, `waiting`, `overdue`, `failed`, `off`.",
            "0.2.0",
        ),
    },
}
"""By the role of the stack."""
