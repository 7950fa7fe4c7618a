"""What must be true around a stack before it changes anything: told all at once, in preview too."""

from __future__ import annotations

import os
from pathlib import Path

from components.settings import CattleSettings, PetSettings, Settings
from proxmox.client import Proxmox
from proxmox.connection import check_plugin_trust
from proxmox.errors import Fault, Faults
from proxmox.preflight import CattleCheck, PetCheck, preflight_cattle, preflight_pet


def pet_faults(settings: Settings, pet: PetSettings) -> list[Fault]:
    """What stands in the pet's way; reads only."""
    check = PetCheck.of(settings, pet)
    with Proxmox(settings.connection) as client:
        return [*check_plugin_trust(settings.connection, os.environ), *preflight_pet(client, check)]


def cattle_faults(settings: Settings, cattle: CattleSettings, *, owner: int, volid: str) -> list[Fault]:
    """What stands in the cattle's way; reads only."""
    check = CattleCheck.of(settings, cattle)
    with Proxmox(settings.connection) as client:
        return [*check_plugin_trust(settings.connection, os.environ), *preflight_cattle(client, check)]


def public_keys(settings: Settings) -> list[str]:
    """The keys that may log in to the cattle: that of the private key, and those of the settings.

    Raises Faults when the private key can't be used.
    """
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - the pet needs no key

    path: Path = settings.ssh_private_key_file
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise _key_fault(path, f"can't be read: {error.strerror}", f"ssh-keygen -t ed25519 -f {path}") from None
    except ValueError:
        key = _load_pem(path)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    others = settings.cattle.ssh_keys if settings.cattle else []
    return list(dict.fromkeys([line, *others]))
