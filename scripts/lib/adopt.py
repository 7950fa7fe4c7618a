"""Stacks whose state is lost get their guests back: each is known by the claim in its notes.

The claim goes into the stack's settings, and `pulumi up` adopts the guest that has it. Nothing is written to a guest
that is as declared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from components.state import own_state_of
from provisioning.console import PROJECT, AgentError, init_stack, known_stacks, pulumi_environment, said
from proxmox.client import Proxmox
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import ProxmoxError
from proxmox.facts import GuestFacts, read_guest
from proxmox.ownership import describe_guest, parse_claim
from scripts.lib.ending import end_with
from settings.read import CONFIG_FILE_VARIABLE, SETTINGS, stack_file
from settings.shared import shared_config
from settings.stack import Role, role_of

ROOT = Path(__file__).resolve().parents[2]
SECURE = "secure"


class AdoptError(Exception):
    """The command can't go on. The text says what to do."""


@dataclass(frozen=True)
class Lost:
    """A stack without a state, and the guest that is its own."""

    stack: str
    made: bool
    """Whether the backend knows the stack."""
    guest: GuestFacts
    claim: str

    def lines(self) -> Iterator[str]:
        """What there is of it."""
        yield f"{self.stack}: {describe_guest(self.guest)}, claim {self.claim}"
        for slot, mount in self.guest.mounts().items():
            yield f"  {slot}: {mount.volume} at {mount.path}"


# ---- the settings ---------------------------------------------------------------------------------------------------


def file_of(stack: str) -> Path:
    """A stack's file, as the CLI finds it."""
    return stack_file(stack, os.environ, ROOT)


def settings_of(text: str) -> dict[str, Any]:
    """The settings in a stack's file that are in clear, by their keys."""
    config = (yaml.safe_load(text) or {}).get("config") or {}
    return {key.removeprefix(f"{PROJECT}:"): value for key, value in config.items() if not secrets_in(value)}


def secrets_in(value: Any, path: str = "") -> list[str]:
    """The paths of what is stored encrypted in a value of a stack's file, `path` before each."""
    if not isinstance(value, dict):
        return []
    if value.keys() == {SECURE}:
        return [path]
    return [found for key, part in value.items() for found in secrets_in(part, f"{path}.{key}" if path else str(key))]


def without_secrets(text: str) -> tuple[str, list[str]]:
    """A stack's file without what another passphrase can't read, and the settings that are lost with it."""
    content = yaml.safe_load(text) or {}
    content.pop("encryptionsalt", None)
    config = content.get("config") or {}
    lost = [path.removeprefix(f"{PROJECT}:") for key, value in config.items() for path in secrets_in(value, key)]
    content["config"] = {key: kept for key, value in config.items() if (kept := _in_clear(value)) is not None}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True), lost


def _in_clear(value: Any) -> Any:
    """A value without its encrypted parts; None where nothing is left of it."""
    if not isinstance(value, dict) or not secrets_in(value):
        return value
    if value.keys() == {SECURE}:
        return None
    return {key: kept for key, part in value.items() if (kept := _in_clear(part)) is not None} or None


def how_to_set(stack: str, path: str) -> str:
    """A command that asks for a secret."""
    return f"pulumi config set --stack {stack} --secret {'--path ' if '.' in path else ''}{path}"


# ---- Pulumi and Proxmox ---------------------------------------------------------------------------------------------


def make(stack: str) -> None:
    """Have the backend know a stack, encrypted with the passphrase that its file has been, or with a new one."""
    text = file_of(stack).read_text(encoding="utf-8")
    salt = (yaml.safe_load(init_stack(stack, text, [CONFIG_FILE_VARIABLE])) or {}).get("encryptionsalt")
    if salt and "encryptionsalt" not in (yaml.safe_load(text) or {}):
        with file_of(stack).open("a", encoding="utf-8") as stream:
            stream.write(f"{'' if text.endswith(chr(10)) else chr(10)}encryptionsalt: {salt}\n")


def up(stack: str) -> None:
    """Run `pulumi up` in this terminal."""
    done = subprocess.run(
        ["pulumi", "up", "--stack", stack, "--yes"], cwd=ROOT, env=pulumi_environment(ROOT), check=False
    )
    if done.returncode:
        raise AdoptError(f"pulumi up --stack {stack} failed. Mend what it says, then run scripts/adopt again.")


def has_a_state(stack: str) -> bool:
    """Whether the state knows a guest."""
    exported = json.loads(said("stack", "export", "--stack", stack))
    resources = (exported.get("deployment") or {}).get("resources") or ()
    return own_state_of({row["urn"]: {"outputs": {}, **row} for row in resources}).vmid is not None


def look(stack: str, settings: Mapping[str, Any], role: Role, *, made: bool) -> Lost:
    """The guest of a stack. AdoptError when there is none that can be adopted."""
    sources = {key: _text(settings.get(key, SETTINGS[key].default)) for key in ENVIRONMENT}
    connection = Connection.from_sources(os.environ, sources)
    key = "petVmid" if role is Role.PET else "cattleVmid"
    given = str(settings.get(key, SETTINGS[key].default))
    if not given.isdecimal():
        raise AdoptError(f"{stack}: {key} is {given!r}, and must be a whole number: correct it")
    vmid = int(given)
    with Proxmox(connection) as client:
        guest = read_guest(client, vmid)
    if guest is None:
        remedy = "restore it first: docs/recovery.md" if role is Role.PET else f"pulumi up --stack {stack} makes it"
        raise AdoptError(f"{stack}: there is no guest {vmid}: {remedy}")
    if guest.node != connection.node:
        raise AdoptError(f"{stack}: {describe_guest(guest)}; the settings say node {connection.node}: correct it")
    claim = parse_claim(guest.config.get("description", ""))
    if claim is None:
        where = 'docs/operations.md, "Take over a guest"'
        raise AdoptError(f"{stack}: {describe_guest(guest)} has no claim in its notes, or more than one: {where}")
    return Lost(stack, made, guest, claim)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- the command ----------------------------------------------------------------------------------------------------


def in_order(stacks: Sequence[str]) -> list[tuple[str, Role, dict[str, Any]]]:
    """Each stack with its kind and its settings, the pets first."""
    found = []
    for stack in stacks:
        if not file_of(stack).is_file():
            raise AdoptError(f"there is no {file_of(stack).name}: bring back the settings first, or write them")
        try:
            shared = {
                key.removeprefix(f"{PROJECT}:"): value for key, value in shared_config(file_of(stack), PROJECT).items()
            }
            settings = {**shared, **settings_of(file_of(stack).read_text(encoding="utf-8"))}
        except (OSError, ValueError, AttributeError, yaml.YAMLError) as error:
            raise AdoptError(f"{file_of(stack)} can't be read as a stack's settings: {error}") from None
        role = role_of(stack, settings.get("role"))
        if role is None:
            raise AdoptError(f"the stack {stack} is neither a pet nor a cattle: set role in {file_of(stack).name}")
        if role is Role.IMAGE:
            raise AdoptError(f"{stack} makes golden templates, which are not adopted: pulumi up makes another one")
        found.append((stack, role, settings))
    return sorted(found, key=lambda each: each[1] is not Role.PET)


def adopt(stacks: Sequence[str], *, yes: bool) -> int:
    known = known_stacks()
    lost: list[Lost] = []
    missing: dict[str, str] = {}
    for stack, role, settings in in_order(stacks):
        made = stack in known
        if made and has_a_state(stack):
            print(f"{stack}: its state knows its guest; nothing to adopt")
            continue
        try:
            lost.append(look(stack, settings, role, made=made))
        except AdoptError as error:
            if role is Role.PET:
                raise
            missing[stack] = str(error)
    for each in lost:
        print("\n".join(each.lines()))
    for text in missing.values():
        print(text)
    if not lost:
        return 0
    if not yes and input(f"Adopt {len(lost)} guests? What is as declared is not written to. [yes/no] ") != "yes":
        print("Nothing was changed.")
        return 1
    for stack in missing.keys() - known:
        make(stack)
    for each in lost:
        if not each.made:
            make(each.stack)
        said("config", "set", "--stack", each.stack, "claim", each.claim)
        up(each.stack)
    return 0


def take_out_secrets(file: Path) -> list[str]:
    """Rewrite a stack's file without them, with a copy beside it; the settings that are lost."""
    text = file.read_text(encoding="utf-8")
    kept, lost = without_secrets(text)
    old = file.with_name(f"{file.name}.old")
    if old.exists():
        raise AdoptError(f"{old.name} is there already: move it away")
    old.write_text(text, encoding="utf-8")
    file.write_text(kept, encoding="utf-8")
    return lost


def new_passphrase(stacks: Sequence[str]) -> int:
    """Take out what the lost passphrase has encrypted. The files as they were stay beside, with `.old`."""
    known = known_stacks()
    done: dict[Path, list[str]] = {}
    for stack, _, _ in in_order(stacks):
        file = file_of(stack)
        if stack in known:
            raise AdoptError(
                f"the backend has a stack {stack}, encrypted with the lost passphrase: use an empty folder, as in\n"
                "  mkdir -m 700 ~/.local/state/hermes-homelab-new\n"
                '  export PULUMI_BACKEND_URL="file://$HOME/.local/state/hermes-homelab-new"'
            )
        if file not in done:
            done[file] = take_out_secrets(file)
        make(stack)
        print(f"{stack}: {len(done[file])} secrets to set again; {file.name} as it was is {file.name}.old")
        for path in done[file]:
            print(f"  {how_to_set(stack, path)}")
    print("Then: scripts/adopt")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/adopt", description="Adopt the guests of stacks without a state.")
    parser.add_argument("stacks", nargs="*", default=["pet", "cattle"], metavar="STACK", help="pet and cattle")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--new-passphrase", action="store_true", help="first, where the passphrase is lost")
    options = parser.parse_args()
    try:
        if options.new_passphrase:
            return new_passphrase(options.stacks)
        return adopt(options.stacks, yes=options.yes)
    except (AdoptError, AgentError, ProxmoxError, OSError) as error:
        print(f"adopt: {error}", file=sys.stderr)
    except EOFError:
        words = "nobody has answered, and nothing was changed. Without a question: scripts/adopt --yes"
        print(f"\nadopt: {words}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nadopt: stopped. The same command goes on", file=sys.stderr)
    return 1


if __name__ == "__main__":
    end_with(main)
