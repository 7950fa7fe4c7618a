"""The commands that give a token what the stacks need, and no more, from the stacks' own settings."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from components.settings import SECRET_KEYS, PetSettings, Settings, load
from components.state import OwnState
from components.surroundings import cattle_check, pet_check
from proxmox.errors import Faults
from proxmox.preflight import needed_cattle, needed_pet
from proxmox.rights import Right, grant_commands

ROOT = Path(__file__).resolve().parents[2]
# No token is needed to say what a token needs; the settings' reader wants a well-formed one.
NOBODY = {
    "PROXMOX_VE_ENDPOINT": "https://proxmox.invalid:8006",
    "PROXMOX_VE_API_TOKEN": "nobody@pve!none=00000000-0000-0000-0000-000000000000",
}


def read_stack(file: Path, declared: dict[str, Any], environment: dict[str, str]) -> Settings:
    """The settings of a stack file, over the project's defaults. Raises Faults."""
    given = yaml.safe_load(file.read_text())["config"] or {}
    config = {key: entry["default"] for key, entry in declared.items()}
    config |= {key.split(":", 1)[1]: value for key, value in given.items() if not _is_secret(key)}
    return load(
        stack=file.name.removeprefix("Pulumi.").removesuffix(".yaml"),
        config={key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()},
        in_clear=frozenset(),
        environment={**environment, **NOBODY},
        known=frozenset(declared),
    )


def _is_secret(key: str) -> bool:
    return key.split(":", 1)[1] in SECRET_KEYS


def rights_of(stacks: list[Settings]) -> list[Right]:
    """What all of these stacks need. A cattle's volume is looked up among the pets'."""
    nothing = OwnState()
    rights: list[Right] = []
    pets = {settings.stack: settings.pet for settings in stacks if settings.pet is not None}
    for settings in stacks:
        if settings.pet is not None:
            rights += needed_pet(pet_check(settings, settings.pet, nothing))
        if settings.cattle is not None:
            owner, volid = None, None
            if settings.cattle.volume:
                owner, storage = _source(pets.get(settings.pet_stack.split("/")[-1]), settings.cattle.volume)
                volid = f"{storage}:vm-{owner}-disk-0"
            rights += needed_cattle(cattle_check(settings, settings.cattle, nothing, owner=owner, volid=volid))
    return rights


def _source(pet: PetSettings | None, volume: str) -> tuple[int, str]:
    """The owner and the storage of a volume; the defaults where the pet's file is not here."""
    if pet is None:
        return 999, "local-lvm"
    found = next((one for one in pet.volumes if one.name == volume), None)
    return pet.vmid, pet.storage if found is None else found.storage


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/permissions", description="Commands for a role, a user and a token.")
    parser.add_argument(
        "token", nargs="?", default="pulumi@pve!hermes", help="USER@REALM!TOKENNAME (pulumi@pve!hermes)"
    )
    token = parser.parse_args().token
    if not re.fullmatch(r"[^\s:/@!=]+@[A-Za-z][\w.-]+![A-Za-z][\w.-]+", token):
        parser.error(f"{token} is not of the form USER@REALM!TOKENNAME")
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    try:
        stacks = [read_stack(file, declared, dict(os.environ)) for file in sorted(ROOT.glob("Pulumi.*.yaml"))]
    except Faults as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# for the stacks {', '.join(settings.stack for settings in stacks)}; on a node, as root:")
    print("\n".join(grant_commands(rights_of(stacks), token)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
