"""Pulumi for a lab: a backend in its state folder, the two stacks, and one configuration file for both.

The passphrase provider writes a salt into ``Pulumi.<stack>.yaml`` when a stack is made, which
would turn the committed files dirty; so the stacks are made in a scratch folder, and in a lab
the CLI reads the lab's own file (PULUMI_OPTION_CONFIG_FILE). Keys of the two kinds of stacks
never meet, so one file serves both.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

PROJECT = "hermes-homelab"
STACKS = ("pet", "cattle")
CONFIG_FILE_VARIABLE = "PULUMI_OPTION_CONFIG_FILE"
DEADLINE = 60.0


class StacksError(Exception):
    """The CLI did not do what was asked; the text is its own."""


def pulumi_environment(checkout: Path, state_dir: Path) -> dict[str, str]:
    """What the CLI and its plugins need, apart from the address of the Proxmox. Makes the passphrase and the backend."""
    backend = state_dir / "pulumi"
    backend.mkdir(mode=0o700, parents=True, exist_ok=True)
    passphrase = state_dir / "passphrase"
    if not passphrase.exists():
        handle = os.open(passphrase, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(24))
    cache = checkout / ".cache"
    return {
        "PULUMI_HOME": str(cache / "pulumi-home"),
        "PULUMI_BACKEND_URL": backend.as_uri(),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        CONFIG_FILE_VARIABLE: str(state_dir / "Pulumi.lab.yaml"),
        "PATH": os.pathsep.join([str(cache / "pulumi-cli" / "bin"), str(cache / "venv" / "bin"), os.environ.get("PATH", "")]),
    }


def prepare_stacks(
    checkout: Path, state_dir: Path, values: Mapping[str, object], secret_values: Mapping[str, str]
) -> Path:
    """Make the stacks and their configuration file, or bring the file up to date; answers its path.

    ``values`` are written by key, over what is there; keys that a person has set beside them stay.
    ``secret_values`` are encrypted, and only written when the file does not have them yet.
    """
    environment = {**os.environ, **pulumi_environment(checkout, state_dir)}
    file = Path(environment[CONFIG_FILE_VARIABLE])
    content = yaml.safe_load(file.read_text()) if file.exists() else {}
    content = content or {}
    if "encryptionsalt" not in content:
        content["encryptionsalt"] = _make_stacks(environment)
    config = {**(content.get("config") or {}), **{f"{PROJECT}:{key}": value for key, value in values.items()}}
    missing = {key: value for key, value in secret_values.items() if f"{PROJECT}:{key}" not in config}
    content["config"] = config
    making = file.with_suffix(".new")
    making.write_text("# The lab's settings for both stacks. scripts/lab up writes its own keys anew.\n" + yaml.safe_dump(content, sort_keys=False))
    making.replace(file)
    for key, value in missing.items():
        _pulumi(["config", "set", "--stack", "cattle", "--secret", key], checkout, environment, stdin=value)
    return file


def _make_stacks(environment: Mapping[str, str]) -> str:
    """The stacks in the backend; answers the salt of the passphrase (one serves both: it only proves the passphrase)."""
    scratch_environment = {key: value for key, value in environment.items() if key != CONFIG_FILE_VARIABLE}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "Pulumi.yaml").write_text(f"name: {PROJECT}\nruntime: python\n")
        for stack in STACKS:
            existing = _pulumi(["stack", "ls", "--json"], folder, scratch_environment)
            if f'"name": "{stack}"' not in existing:
                _pulumi(["stack", "init", "--no-select", stack], folder, scratch_environment)
        for stack in STACKS:
            file = folder / f"Pulumi.{stack}.yaml"
            if file.exists():
                salt: str = yaml.safe_load(file.read_text())["encryptionsalt"]
                return salt
        # The stacks were there, their configuration file is gone: another salt for the same passphrase will do.
        _pulumi(["stack", "change-secrets-provider", "passphrase", "--stack", STACKS[0]], folder, scratch_environment)
        salt = yaml.safe_load((folder / f"Pulumi.{STACKS[0]}.yaml").read_text())["encryptionsalt"]
        return salt


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
        raise StacksError(f"pulumi {' '.join(argv)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
