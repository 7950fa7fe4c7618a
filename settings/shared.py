"""What several stacks share: Pulumi.shared.yaml, beside their own files.

Pulumi has a file for each stack, and the project's own, which is this program's and not its user's. So there may be one
more, which no version of this program has, and whose keys hold where a stack's own file does not set them. The CLI does
not know of it: what it says of a stack's configuration has nothing of it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from proxmox.connection import ENVIRONMENT
from proxmox.errors import Fault, Faults
from settings.read import SECRETS, SETTINGS
from settings.section import HIDDEN

NAME = "Pulumi.shared.yaml"
OF_ONE_STACK = frozenset({"role", "claim"})
OF_THE_SHELL = ENVIRONMENT.keys() - {"node"}
"""These reach the plugin and the dynamic resources by the engine, or by the environment."""


def full(key: str, project: str) -> str:
    """A key as it stands in a stack's file, with its namespace; the CLI takes one without as the project's."""
    return key if ":" in key else f"{project}:{key}"


def config_of(file: Path) -> dict[str, Any]:
    """The `config` block of a stack's file, or of the one beside it. Raises Faults; FileNotFoundError if it is gone."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        return {str(key): value for key, value in (content.get("config") or {}).items()}
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
        # The parser's words show the line, which may hold anything.
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        fault = Fault(str(file), "", f"can't be read as a stack's settings{where}", _LIKE)
        raise _refused([fault], file.name) from None


def shared_config(stack_file: Path, project: str) -> dict[str, Any]:
    """The `config` block of the file beside a stack's file; empty where there is none. Raises Faults."""
    try:
        content = config_of(stack_file.with_name(NAME))
    except FileNotFoundError:
        return {}
    found = {full(key, project): value for key, value in content.items()}
    own = {key.removeprefix(f"{project}:"): value for key, value in found.items() if key.startswith(f"{project}:")}
    faults = [_fault(key, value) for key, value in own.items() if key in OF_ONE_STACK | OF_THE_SHELL | SECRETS]
    if faults:
        raise _refused(faults)
    return {f"{project}:{key}": value for key, value in own.items()}


_LIKE = "write it like Pulumi.cattle.yaml: config, and below it one key a line"


def _fault(key: str, value: object) -> Fault:
    if key in SECRETS:
        rule, remedy = f"is a secret, and {NAME} is stored in clear", f"pulumi config set --stack STACK --secret {key}"
        return Fault(key, HIDDEN, rule, f"take it out there, then: {remedy}")
    if key in OF_ONE_STACK:
        return Fault(key, str(value), f"is one stack's own, and {NAME} is for all", "set it in Pulumi.STACK.yaml")
    remedy = "set it by scripts/env, or in each Pulumi.STACK.yaml"
    return Fault(key, str(value), f"is not read from {NAME}: the provider plugin would not have it", remedy)


def _refused(faults: list[Fault], file: str = NAME) -> Faults:
    return Faults(faults, what=f"The settings in {file} can't be used")


def correct_in(stack: str) -> str:
    """The remedy for a value that is wrong and may come from either file."""
    return f"correct it in Pulumi.{stack}.yaml or {NAME}; docs/options.md describes the key"


def with_shared(config: Mapping[str, Any], shared: Mapping[str, Any], project: str) -> dict[str, Any]:
    """A stack file's `config` block with what all stacks share below it: the stack's own keys win."""
    return {**shared, **{full(key, project): value for key, value in config.items()}}


def completed(
    given: Mapping[str, Any], own: Collection[str], shared: Mapping[str, Any], project: str
) -> dict[str, Any]:
    """What the engine hands over, by key, with what all stacks share in the place of the project's defaults.

    `own`: the keys in the stack's file. The engine does not tell a default from a value that was set.
    """
    theirs = {key.removeprefix(f"{project}:"): value for key, value in shared.items()}
    return {**given, **{key: value for key, value in theirs.items() if key not in own and _is_default(key, given)}}


def _is_default(key: str, given: Mapping[str, Any]) -> bool:
    """False for what --config-file of the CLI has set: that file is not known here."""
    value = given.get(key)
    if value is None or key not in SETTINGS:
        return True
    default = SETTINGS[key].default
    if isinstance(default, bool | list | dict) or (isinstance(value, str) and isinstance(default, int)):
        try:
            value = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return False
    return bool(value == default)
