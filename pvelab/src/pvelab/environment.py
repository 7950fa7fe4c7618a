"""What a shell needs to point a Proxmox client at a lab: ``eval "$(pvelab env)"``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from pvelab.extension import Extension
from pvelab.instance import FOLDER_VARIABLE, Lab


def environment(lab: Lab, extension: Extension[Any]) -> dict[str, str]:
    """The variables; LabError when the lab was never up."""
    ready = lab.ready()
    values: dict[str, str | None] = {
        # The names that the usual Proxmox providers read.
        "PROXMOX_VE_ENDPOINT": ready.endpoint,
        "PROXMOX_VE_API_TOKEN": lab.token_file.read_text().strip(),
        "PROXMOX_VE_CA_FILE": ready.ca_file,
        "PROXMOX_VE_NODE": ready.node,
        FOLDER_VARIABLE: str(lab.state_dir),
        "PVELAB_TEMPLATE": ready.template,
        "PVELAB_TEMPLATE_13": ready.template_newer,
        "PVELAB_GATEWAY": ready.gateway,
        "PVELAB_SUBNET": ready.subnet,
        "PVELAB_SSH_KEY_FILE": str(lab.ssh_key_file),
        "PVELAB_SSH_PORT": str(ready.node_ssh_port) if ready.node_ssh_port else None,
        **extension.environment(lab),
    }
    return {name: value for name, value in values.items() if value is not None}


def export_lines(values: Mapping[str, str]) -> str:
    """The variables as lines that a POSIX shell can evaluate."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
