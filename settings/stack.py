"""The kinds of stacks, as their settings are read (settings/read.py)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, WithJsonSchema

from applications import NAMES
from proxmox.connection import Connection
from proxmox.errors import Fault
from settings.cattle import CattleSettings, HostMountSettings
from settings.connection import NodeSshSettings
from settings.image import ImageSettings
from settings.kinds import USUAL_UID, Claim, LinkUrl, LocalFile, Template
from settings.pet import PetSettings
from settings.section import Section, refuse, rule, setting

NO_APPLICATION = "none"


def _application(value: str) -> str:
    if value not in (*NAMES, NO_APPLICATION):
        raise refuse(f"must be one of {', '.join((*NAMES, NO_APPLICATION))}", "correct it, or leave the key out")
    return value


class Role(StrEnum):
    """What a stack is."""

    PET = "pet"
    CATTLE = "cattle"
    IMAGE = "image"


def role_of(stack: str, declared: str | None) -> Role | None:
    """The role that a stack declares or has by its name; None when neither tells."""
    if declared:
        return Role(declared) if declared in set(Role) else None
    return next((role for role in Role if stack == role or stack.startswith(f"{role}-")), None)


class Stack(Section):
    """What both kinds of stacks have. `name`: the stack's."""

    name: str
    connection: Connection
    role: Literal["", "pet", "cattle", "image"] = setting(
        "role",
        "",
        "The kind of this stack: pet, cattle, or image, which makes golden templates. Empty: from its name (pet, "
        "pet-*, cattle, cattle-*, image, image-*).",
    )
    template: Template = setting(
        "template",
        "local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst",
        "The volid of the container template, Debian 12 or 13. Empty: the newest of them on the node, for a new guest.",
    )
    claim: Claim = setting(
        "claim",
        "",
        "The claim in the notes of a guest that this stack has made and its state has forgotten: pulumi up adopts that "
        "guest. scripts/adopt sets it. Empty: a new stack.",
    )
    docs_url: LinkUrl = setting(
        "docsUrl",
        "",
        "Where this program's repository or documents can be read, for a link in the guests' notes. Empty: the notes "
        "name the file in the checkout.",
    )
    ssh_private_key_file: LocalFile = setting(
        "sshPrivateKeyFile",
        "~/.ssh/id_ed25519",
        "The private key that logs in to the cattle as root. HERMES_SSH_KEY_FILE in the environment wins.",
    )

    @rule
    def _has_a_key_file(self) -> Iterator[Fault]:
        if not self.ssh_private_key_file:
            yield self.fault("ssh_private_key_file", "must not be empty", "leave the key out: ~/.ssh/id_ed25519")


class PetStack(Stack):
    """A pet: the guest that owns the volumes."""

    pet: PetSettings


class CattleStack(Stack):
    """A cattle, and nothing in it."""

    application: Annotated[
        str,
        AfterValidator(_application),
        WithJsonSchema({"type": "string", "enum": [*NAMES, NO_APPLICATION]}),
    ] = setting("application", "hermes", f"What runs in the cattle: {', '.join((*NAMES, NO_APPLICATION))}.")
    cattle: CattleSettings
    node_ssh: NodeSshSettings
    image: ImageSettings
    runs: ClassVar[str] = ""
    """What the guest is for, by its name for people; in its notes."""

    @property
    def makes_image(self) -> bool:
        """Whether the stack makes golden templates: of the cattle that its settings describe."""
        return role_of(self.name, self.role) is Role.IMAGE

    @property
    def keyctl(self) -> bool:
        """Whether the cattle has keyctl."""
        return self.cattle.keyctl

    @property
    def keyctl_key(self) -> str:
        """The setting by which it has keyctl."""
        return "cattleKeyctl"

    @property
    def outputs(self) -> dict[str, str]:
        """The stack's outputs that follow from its settings alone."""
        return {}

    @property
    def uid(self) -> int:
        """Whose the folders of the node are: the application's account; without one, the usual one."""
        return USUAL_UID

    def owner_of(self, mount: HostMountSettings) -> int:
        """Whose a folder of the node is in the cattle."""
        return self.uid if mount.owner is None else mount.owner


class ApplicationStack(CattleStack):
    """A cattle with an application in it: each has its own kind."""
