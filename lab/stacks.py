"""Pulumi for a lab: a backend in its state folder, the two stacks, and one configuration file for both.

The passphrase provider writes a salt into ``Pulumi.<stack>.yaml`` when a stack is made, which
would turn the committed files dirty; so the stacks are made in a scratch folder, and in a lab
the CLI reads the lab's own file (PULUMI_OPTION_CONFIG_FILE). Keys of the two kinds of stacks
never meet, so one file serves both.
"""

from __future__ import annotations

import ipaddress
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.environment import environment
from lab.instance import CHECKOUT, Lab, LabError
from lab.services.releases import PINNED

PROJECT = "hermes-homelab"
STACKS = ("pet", "cattle")
CONFIG_FILE_VARIABLE = "PULUMI_OPTION_CONFIG_FILE"
MODEL_KEY = "agentModelKey"
DEADLINE = 60.0
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
        "agentApi": True,  # a prompt by the API takes a second, by the command line four: the demo sends several
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
        # As Pulumi.cattle.yaml has it: to build the web interface takes a minute each time that the cattle is made.
        values["agentDashboard"] = False
    if ready.node_ssh_port is not None and ready.node_ssh_host_key is not None:
        # The API's host is loopback, as is the node's SSH server; its root knows the lab's key.
        values["nodeSshPort"] = ready.node_ssh_port
        values["nodeSshHostKey"] = ready.node_ssh_host_key
        values["nodeSshKeyFile"] = str(lab.ssh_key_file)
    return values


def prepare_stacks(lab: Lab) -> None:
    """Make the stacks and their configuration file, or bring the file up to date.

    The lab's own keys are written anew, others that a person has set stay. LabError when the CLI fails.
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
    head = "# The lab's settings for both stacks; scripts/lab up writes its own keys anew.\n"
    making.write_text(head + yaml.safe_dump(content, sort_keys=False))
    making.replace(file)
    if f"{PROJECT}:{MODEL_KEY}" not in content["config"]:
        key = lab.model_key_file.read_text().strip()
        _pulumi(["config", "set", "--stack", "cattle", "--secret", MODEL_KEY], CHECKOUT, env, stdin=key)


def make_stack(lab: Lab, stack: str) -> None:
    """One more stack for the lab, a second cattle for one; nothing when it is there. LabError when the CLI fails."""
    _make_stacks({**os.environ, **environment(lab)}, [stack])


def _make_stacks(environment: Mapping[str, str], stacks: Sequence[str] = STACKS) -> str:
    """Make stacks in the backend; answers the salt (it only proves the passphrase, so one serves all)."""
    scratch_environment = {key: value for key, value in environment.items() if key != CONFIG_FILE_VARIABLE}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "Pulumi.yaml").write_text(f"name: {PROJECT}\nruntime: python\n")
        existing = _pulumi(["stack", "ls", "--json"], folder, scratch_environment)
        for stack in stacks:
            if f'"name": "{stack}"' not in existing:
                _pulumi(["stack", "init", "--no-select", stack], folder, scratch_environment)
        for stack in stacks:
            file = folder / f"Pulumi.{stack}.yaml"
            if file.exists():
                salt: str = yaml.safe_load(file.read_text())["encryptionsalt"]
                return salt
        # The stacks were there, their configuration file is gone: another salt for the same passphrase will do.
        _pulumi(["stack", "change-secrets-provider", "passphrase", "--stack", stacks[0]], folder, scratch_environment)
        return str(yaml.safe_load((folder / f"Pulumi.{stacks[0]}.yaml").read_text())["encryptionsalt"])


def _pulumi(argv: list[str], folder: Path, environment: Mapping[str, str], stdin: str | None = None) -> str:
    done = subprocess.run(
        ["pulumi", *argv, "--non-interactive"],
        cwd=folder,
        env=dict(environment),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    if done.returncode:
        raise LabError(f"pulumi {' '.join(argv)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
