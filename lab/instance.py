"""The lab of this checkout on disk: what its services add to pvelab's, and the state of the stacks."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from pvelab import instance
from pvelab.config import Account
from pvelab.instance import LabError, write_secret

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache"
TEMPLATE_CACHE = CACHE / "lab-template"
IMAGE_CACHE = CACHE / "lab-images"

# What the stacks' token may do, and where (facts proxmox 14): one role per kind of path, nothing on "/".
ACCOUNT = Account(
    "pulumi@pve",
    "lab",
    {
        "LabGuests": (
            *("VM.Allocate", "VM.Audit", "VM.Config.CPU", "VM.Config.Disk", "VM.Config.Memory", "VM.Config.Network"),
            *("VM.Config.Options", "VM.PowerMgmt"),
        ),
        "LabVolumes": ("Datastore.AllocateSpace", "Datastore.Audit"),
        "LabTemplates": ("Datastore.Audit",),
        "LabBridge": ("SDN.Use",),
    },
    (
        ("/vms", "LabGuests"),
        ("/storage/local-lvm", "LabVolumes"),
        ("/storage/local", "LabTemplates"),
        ("/sdn/zones/localnetwork/vmbr0", "LabBridge"),
        ("/sdn/zones/intra/intra01", "LabBridge"),
    ),
    "the lab's stacks",
)


@dataclass(frozen=True, kw_only=True)
class Ready(instance.Ready):
    """What the daemon says about the services. ``None``: not there without containers."""

    model_url: str
    model: str
    source_kind: str | None = None
    """What the git repository is: ``upstream``, or a ``stand-in`` (lab/services/source.py)."""
    source_url: str | None = None
    source_version: str | None = None
    """Of the newest release there, as are tag and commit."""
    source_tag: str | None = None
    source_commit: str | None = None
    source_previous_version: str | None = None
    """Of the release to update from; None where there is one only, as are tag and commit."""
    source_previous_tag: str | None = None
    source_previous_commit: str | None = None
    registry: str | None = None
    """``host:port`` of the registry, as an image's reference begins; TLS by the CA in ``registry_ca_file``."""
    registry_ca_file: str | None = None
    image: str | None = None
    """The agent's image, pinned: ``registry/repository:tag@sha256:...``; the next ones likewise."""
    image_next: str | None = None
    image_previous: str | None = None
    image_base: str | None = None


@dataclass(frozen=True)
class Lab(instance.Lab):
    """A lab's state folder, and what the services and the stacks keep in it."""

    ready_type: ClassVar[type[instance.Ready]] = Ready
    command: ClassVar[str] = "scripts/lab"
    variable: ClassVar[str] = "HERMES_LAB_DIR"

    @classmethod
    def default(cls) -> Lab:
        """The lab that ``HERMES_LAB_DIR`` names, or the checkout's own."""
        named = os.environ.get(cls.variable)
        return cls(Path(named).expanduser().absolute() if named else CACHE / "lab")

    @property
    def template_cache(self) -> Path:
        return TEMPLATE_CACHE

    @property
    def model_key_file(self) -> Path:
        return self.state_dir / "model-key"

    @property
    def model_log(self) -> Path:
        return self.state_dir / "model-requests.jsonl"

    @property
    def pulumi_state(self) -> Path:
        """The backend: the state of the stacks."""
        return self.state_dir / "pulumi"

    @property
    def passphrase_file(self) -> Path:
        return self.state_dir / "passphrase"

    @property
    def stack_config_file(self) -> Path:
        """The settings of both stacks, see lab/stacks.py."""
        return self.state_dir / "Pulumi.lab.yaml"

    def prepare(self) -> None:
        """Make the state folder with the secrets that belong to it, each one only once; LabError as pvelab's."""
        super().prepare()
        for file in (self.model_key_file, self.passphrase_file):
            if not file.exists():
                write_secret(file, secrets.token_urlsafe(32) + "\n")
        self.pulumi_state.mkdir(mode=0o700, exist_ok=True)

    def ready(self) -> Ready:
        """What the daemon last said; LabError when it never came up."""
        return cast("Ready", super().ready())


__all__ = ["CACHE", "CHECKOUT", "TEMPLATE_CACHE", "Lab", "LabError", "Ready", "write_secret"]
