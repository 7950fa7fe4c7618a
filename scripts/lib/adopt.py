"""Stacks whose state is lost get their guests back: each is known by the claim in its notes.

The claim goes into the stack's settings, and `pulumi up` adopts the guest that has it. Nothing is written to a guest
that is as declared.

A state that is there follows a guest that was moved to another node, or whose node was renamed, in the same way: by the
claim. What the state says of the node is all that changes; host keys, volumes and phases stay as they are known.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from components.state import OwnState, own_state_of
from provisioning.console import PROJECT, AgentError, init_stack, known_stacks, pulumi_environment, said
from provisioning.terminal import one_line, visible
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
NODE_KEYS = frozenset(("node", "nodeName"))
"""In which properties of a resource its node is: of this program's, and of the plugin's."""


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


def exported(stack: str) -> dict[str, Any]:
    """The state as the CLI exports it; secrets stay encrypted."""
    found: dict[str, Any] = json.loads(said("stack", "export", "--stack", stack))
    return found


def resources_of(state: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    return (state.get("deployment") or {}).get("resources") or ()


def known_to(state: Mapping[str, Any]) -> OwnState:
    """What an exported state knows of its guest."""
    return own_state_of({row["urn"]: {"outputs": {}, **row} for row in resources_of(state)})


def follow(state: Mapping[str, Any], node: str) -> set[str]:
    """Have a state say that all of it is on the node. Changes it; answers the nodes that it has said before."""
    before: set[str] = set()
    for row in resources_of(state):
        for props in (row.get("inputs") or {}, row.get("outputs") or {}):
            for key in NODE_KEYS & props.keys():
                before.add(props[key])
                props[key] = node
    return before - {node}


def replace_state(stack: str, state: Mapping[str, Any]) -> None:
    """Put a state in the place of a stack's; Pulumi keeps the one before among its backups."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        said("stack", "import", "--stack", stack, "--file", file.name)


def find(stack: str, settings: Mapping[str, Any], role: Role) -> tuple[str, int, GuestFacts | None]:
    """The node of the settings, the number, and the guest that has it, on whatever node."""
    sources = {key: _text(settings.get(key, SETTINGS[key].default)) for key in ENVIRONMENT}
    connection = Connection.from_sources(os.environ, sources)
    key = "petVmid" if role is Role.PET else "cattleVmid"
    given = str(settings.get(key, SETTINGS[key].default))
    if not given.isdecimal():
        raise AdoptError(f"{stack}: {key} is {given!r}, and must be a whole number: correct it")
    vmid = int(given)
    with Proxmox(connection) as client:
        return connection.node, vmid, read_guest(client, vmid)


def look(stack: str, settings: Mapping[str, Any], role: Role, *, made: bool) -> Lost:
    """The guest of a stack. AdoptError when there is none that can be adopted."""
    node, vmid, guest = find(stack, settings, role)
    if guest is None:
        remedy = "restore it first: docs/recovery.md" if role is Role.PET else f"pulumi up --stack {stack} makes it"
        raise AdoptError(f"{stack}: there is no guest {vmid}: {remedy}")
    if guest.node != node:
        raise AdoptError(f"{stack}: {describe_guest(guest)}; the settings say node {node}: correct it")
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
        if made and known_to(exported(stack)).vmid is not None:
            print(f"{stack}: its state knows its guest; nothing to adopt")
            continue
        try:
            lost.append(look(stack, settings, role, made=made))
        except AdoptError as error:
            if role is Role.PET:
                raise
            missing[stack] = str(error)
    for each in lost:
        print("\n".join(map(one_line, each.lines())))
    for text in missing.values():
        print(visible(text))
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


def where_now(stack: str, settings: Mapping[str, Any], role: Role, claim: str) -> tuple[str, str]:
    """The node of a guest that a state knows by its claim, and what is to be said of it.

    AdoptError where the settings say another node, or another guest has the number. A cattle that is gone from the
    whole cluster, with the node that it was on, is looked for on the node of the settings, and so made there.
    """
    node, vmid, guest = find(stack, settings, role)
    if guest is None and role is not Role.PET:
        return node, f"there is no guest {vmid} any more; pulumi up makes it on node {node}"
    found = look(stack, settings, role, made=True)
    if found.claim != claim:
        raise AdoptError(f"{stack}: {describe_guest(found.guest)} has the claim {found.claim}, and the state {claim}")
    return node, describe_guest(found.guest)


def moved(stacks: Sequence[str], *, yes: bool) -> int:
    """Have the states follow guests that are on another node than they say; no guest is written to."""
    known = known_stacks()
    ready: list[tuple[str, dict[str, Any]]] = []
    for stack, role, settings in in_order(stacks):
        state = exported(stack) if stack in known else {}
        claim = known_to(state).claim
        if claim is None:
            raise AdoptError(f"{stack}: no state knows a guest of it. Without --moved, scripts/adopt finds it")
        node, words = where_now(stack, settings, role, claim)
        before = follow(state, node)
        print(f"{stack}: {one_line(words)}; its state says node {', '.join(sorted(before or {node}))}")
        if before:
            ready.append((stack, state))
    if not ready:
        return 0
    if not yes and input(f"Have {len(ready)} states follow? No guest that is there is written to. [yes/no] ") != "yes":
        print("Nothing was changed.")
        return 1
    for stack, state in ready:
        replace_state(stack, state)
        up(stack)
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
    parser.add_argument("--moved", action="store_true", help="of stacks that have one: the guest is on another node")
    parser.add_argument("--new-passphrase", action="store_true", help="first, where the passphrase is lost")
    options = parser.parse_args()
    try:
        if options.new_passphrase:
            return new_passphrase(options.stacks)
        return (moved if options.moved else adopt)(options.stacks, yes=options.yes)
    except (AdoptError, AgentError, ProxmoxError, OSError) as error:
        print(f"adopt: {visible(str(error))}", file=sys.stderr)
    except EOFError:
        words = "nobody has answered, and nothing was changed. Without a question: scripts/adopt --yes"
        print(f"\nadopt: {words}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nadopt: stopped. The same command goes on", file=sys.stderr)
    return 1


if __name__ == "__main__":
    end_with(main)
