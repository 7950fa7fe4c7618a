"""The outputs of the stacks: what another program may rely on. docs/outputs.md is made of it.

Each output is always there. Where there is nothing to tell it is empty: the text "", the object {}.
"""

from __future__ import annotations

from applications import NAMES, declared
from settings.section import Output

PET = {
    "vmid": Output("integer", "The VMID of the pet."),
    "node": Output("string", "The Proxmox node of the pet."),
    "volumes": Output("object", "Each volume by its name: `volid`, `size` in GB, `storage`, `path` on the pet."),
}
CATTLE = {
    "vmid": Output("integer", "The VMID of the cattle."),
    "node": Output("string", "The Proxmox node of the cattle."),
    "hostname": Output("string", "The cattle's host name."),
    "volume": Output("string", "The volid of the volume with the agent's data. Empty without one."),
    "hostMounts": Output("object", "The node's folders in the cattle: path in the cattle to path on the node."),
    "address": Output("string", "The cattle's IP address. With DHCP it may be another after a new lease."),
    "hardwareAddress": Output("string", "The hardware address of the cattle's first network card."),
    "ssh": Output("string", "A command line that logs in as root, from the machine that ran `up`.", stable=False),
    "sshKeyFile": Output("string", "The private key that logs in, a path on the machine that ran `up`."),
    "sshHostKey": Output("string", "The cattle's public SSH host key, TYPE BASE64."),
    "sshHostKeyFingerprint": Output("string", "Its fingerprint, SHA256:..."),
}

IMAGE = {
    "vmid": Output("integer", "The VMID of the newest golden template.", since="0.2.0"),
    "node": Output("string", "Its node.", since="0.2.0"),
    "storage": Output("string", "The storage of its disk.", since="0.2.0"),
    "digest": Output("string", "The digest of all that went into it.", since="0.2.0"),
    "keys": Output(
        "array", "The public keys that log in to a clone before its own stack has set others.", since="0.2.0"
    ),
}


def outputs_of(application: str) -> dict[str, Output]:
    """All outputs of a cattle with that application, or with none."""
    return {**CATTLE, **(declared(application).outputs if application in NAMES else {})}


OUTPUTS: dict[str, dict[str, Output]] = {
    "Stack pet": PET,
    "Stack cattle": CATTLE,
    "Stack image": IMAGE,
    **{f"Stack cattle, with {name}": dict(declared(name).outputs) for name in NAMES},
}
"""By the heading of docs/outputs.md."""
