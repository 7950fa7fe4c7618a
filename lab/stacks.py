"""Pulumi for a lab: a backend in its state folder, the two stacks, and one configuration file for both.

`pulumi stack init` writes a salt into ``Pulumi.<stack>.yaml``. So the stacks are made in a scratch folder:
the committed files stay clean. The CLI reads the lab's own file (PULUMI_OPTION_CONFIG_FILE).
Pet and cattle stacks share no key, so one file serves both.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.engine import command
from lab.environment import CONFIG_FILE_VARIABLE, environment
from lab.instance import CHECKOUT, Lab
from lab.services.releases import PINNED
from pvelab.pct import Node

PROJECT = "hermes-homelab"
STACKS = ("pet", "cattle")
MODEL_KEY = "agentModelKey"
CATTLE_HOST = 105  # its number in the lab's network, below the DHCP range


def stack_values(lab: Lab) -> dict[str, object]:
    """The settings that a lab prescribes: its template, network, model and source."""
    ready = lab.ready()
    values: dict[str, object] = {
        "node": ready.node,
        "template": ready.template,
        "agentModelUrl": ready.model_url,
        "agentModel": ready.model,
        "agentSource": "git",
        "agentApi": True,  # a prompt takes 1 s by the API and 4 s by the command line, and the demo sends several
        "agentVersion": ready.source_version or PINNED[0].version,
    }
    if ready.subnet is not None:
        network = ipaddress.IPv4Network(ready.subnet)
        values["cattleAddress"] = f"{network.network_address + CATTLE_HOST}/{network.prefixlen}"
        values["cattleGateway"] = ready.gateway
        values["cattleNameserver"] = ready.gateway
    if ready.source_url is not None:
        values["agentRepository"] = ready.source_url
        values["agentTag"] = ready.source_tag
        values["agentCommit"] = ready.source_commit
        # As in Pulumi.cattle.yaml: each new cattle would build the web interface for a minute.
        values["agentDashboard"] = False
    if ready.node_ssh_port is not None and ready.node_ssh_host_key is not None:
        # The node's SSH server is on loopback, as the API is. Its root accepts the lab's key.
        values["nodeSshPort"] = ready.node_ssh_port
        values["nodeSshHostKey"] = ready.node_ssh_host_key
        values["nodeSshKeyFile"] = str(lab.ssh_key_file)
    return values


def prepare_stacks(lab: Lab) -> None:
    """Make the stacks and their configuration file, or update the file.

    It rewrites the lab's own keys and keeps all others. Raises LabError if the CLI fails.
    """
    values = environment(lab)
    env = {**os.environ, **values}
    file = lab.stack_config_file
    content: dict[str, Any] = (yaml.safe_load(file.read_text()) if file.exists() else None) or {}
    if "encryptionsalt" not in content:
        content["encryptionsalt"] = _make_stacks(env)
    own = {f"{PROJECT}:{key}": value for key, value in stack_values(lab).items()}
    content["config"] = {**(content.get("config") or {}), **own}
    making = file.with_suffix(".new")
    head = "# The lab's settings for both stacks. scripts/lab up rewrites the lab's own keys.\n"
    making.write_text(head + yaml.safe_dump(content, sort_keys=False))
    making.replace(file)
    if f"{PROJECT}:{MODEL_KEY}" not in content["config"]:
        key = lab.model_key_file.read_text().strip()
        command("config", "set", "--stack", "cattle", "--secret", MODEL_KEY, cwd=CHECKOUT, env=env, stdin=key)


def make_stack(lab: Lab, stack: str) -> None:
    """Make one more stack, for a second cattle, if it does not exist. Raises LabError if the CLI fails."""
    _make_stacks({**os.environ, **environment(lab)}, [stack])


def allow_clones(lab: Lab) -> None:
    """Give the stacks' token VM.Clone, as root on a node does for golden templates."""
    Node(lab.state_dir).call("PUT", "/access/roles/LabGuests", privs="VM.Clone", append="1")


def _make_stacks(environment: Mapping[str, str], stacks: Sequence[str] = STACKS) -> str:
    """Make stacks in the backend. Returns the salt: it belongs to the passphrase, so all stacks can share it."""
    without_file = {key: value for key, value in environment.items() if key != CONFIG_FILE_VARIABLE}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "Pulumi.yaml").write_text(f"name: {PROJECT}\nruntime: python\n")
        existing = command("stack", "ls", "--json", cwd=folder, env=without_file)
        for stack in stacks:
            if f'"name": "{stack}"' not in existing:
                command("stack", "init", "--no-select", stack, cwd=folder, env=without_file)
        for stack in stacks:
            file = folder / f"Pulumi.{stack}.yaml"
            if file.exists():
                salt: str = yaml.safe_load(file.read_text())["encryptionsalt"]
                return salt
        # The stacks exist and their configuration file does not: any salt of the same passphrase works.
        command("stack", "change-secrets-provider", "passphrase", "--stack", stacks[0], cwd=folder, env=without_file)
        return str(yaml.safe_load((folder / f"Pulumi.{stacks[0]}.yaml").read_text())["encryptionsalt"])
