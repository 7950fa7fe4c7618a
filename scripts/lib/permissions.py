"""Prints the commands that give a token exactly the rights that the stacks' settings need."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from components.preflight import cattle_check, pet_check
from components.state import OwnState
from proxmox.connection import TOKEN_ID
from proxmox.errors import Fault, Faults
from proxmox.preflight import needed_cattle, needed_pet
from proxmox.rights import Right, grant_commands
from scripts.lib.ending import end_with
from settings.pet import PetSettings
from settings.read import OF_APPLICATIONS, SECRETS, read_stack
from settings.shared import NAME, config_of, shared_config, with_shared
from settings.stack import NO_APPLICATION, CattleStack, PetStack

PREFIX = "hermes-homelab:"
ROOT = Path(__file__).resolve().parents[2]
# No token is needed to say what a token needs; the settings' reader wants a well-formed one.
NOBODY = {
    "PROXMOX_VE_ENDPOINT": "https://proxmox.invalid:8006",
    "PROXMOX_VE_API_TOKEN": "nobody@pve!none=00000000-0000-0000-0000-000000000000",
}


def stack_of(file: Path, environment: dict[str, str]) -> PetStack | CattleStack:
    """The settings of a stack's file, without its application's: no right depends on those. Raises Faults."""
    config = with_shared(config_of(file), shared_config(file, PREFIX.removesuffix(":")), PREFIX.removesuffix(":"))
    given = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    ours = {key: value for key, value in given.items() if key not in (OF_APPLICATIONS | SECRETS)}
    encrypted = [key for key, value in ours.items() if isinstance(value, dict) and value.keys() == {"secure"}]
    if encrypted:
        remedy = "store it in clear, without --secret: it is no secret"
        rule = "is stored encrypted, and this command reads no secrets"
        raise Faults([Fault(key, "(hidden)", rule, remedy) for key in encrypted], what=f"{file.name} can't be read")
    # An empty one is looked for on all storages; the right is asked for the default's.
    ours = {key: value for key, value in ours.items() if key != "template" or value}
    name = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
    return read_stack(name, {**ours, "application": NO_APPLICATION}, {**environment, **NOBODY})


def rights_of(stacks: list[PetStack | CattleStack]) -> list[Right]:
    """What all of these stacks need. A cattle's volume is looked up among the pets'."""
    nothing = OwnState()
    rights: list[Right] = []
    pets = {stack.name: stack.pet for stack in stacks if isinstance(stack, PetStack)}
    for stack in stacks:
        if isinstance(stack, PetStack):
            rights += needed_pet(pet_check(stack, nothing))
            continue
        owner, volid = None, None
        if stack.cattle.volume and not stack.makes_image:
            owner, storage = _source(pets.get(stack.cattle.pet_stack.split("/")[-1]), stack.cattle.volume)
            volid = f"{storage}:vm-{owner}-disk-0"
        # Which number a template has does not matter: the right is granted for all guests.
        golden = stack.image.vmid if stack.cattle.golden_template and not stack.makes_image else None
        rights += needed_cattle(cattle_check(stack, nothing, owner=owner, volid=volid, golden=golden))
    return rights


def _source(pet: PetSettings | None, volume: str) -> tuple[int, str]:
    """The owner and the storage of a volume; the defaults where the pet's file is not here."""
    pet = PetSettings() if pet is None else pet
    found = next((one for one in pet.volumes if one.name == volume), None)
    return pet.vmid, pet.storage if found is None else found.storage


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/permissions", description="Commands for a role, a user and a token.")
    parser.add_argument(
        "token", nargs="?", default="pulumi@pve!hermes", help="USER@REALM!TOKENNAME (pulumi@pve!hermes)"
    )
    token = parser.parse_args().token
    if not TOKEN_ID.fullmatch(token):
        parser.error(f"{token} is not of the form USER@REALM!TOKENNAME")
    try:
        files = sorted(file for file in ROOT.glob("Pulumi.*.yaml") if file.name != NAME)
        stacks = [stack_of(file, dict(os.environ)) for file in files]
    except Faults as error:
        print(error, file=sys.stderr)
        return 1
    print(f"# for the stacks {', '.join(stack.name for stack in stacks)}; on a node, as root:")
    print("\n".join(grant_commands(rights_of(stacks), token)))
    return 0


if __name__ == "__main__":
    end_with(main)
