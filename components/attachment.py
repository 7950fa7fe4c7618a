"""A pet's volume in a container of another program: one writer, as for the cattle."""

from __future__ import annotations

import pulumi

from components.dynamic import Component, Owned
from components.parts import VolumeAttachment
from proxmox.client import Proxmox
from proxmox.connection import Connection
from proxmox.errors import GuestMissing
from proxmox.mountpoint import owner_of
from proxmox.operations import preview_attach
from proxmox.planning import AttachSpec
from settings.package import AttachmentSettings


def attach_spec(settings: AttachmentSettings, node: str, recorded: str | None) -> AttachSpec:
    """What is to be mounted. `recorded`: the volume that an earlier run has put into the slot."""
    return AttachSpec(
        settings.vmid,
        node,
        settings.volume,
        settings.path,
        owner_of(settings.volume) or 0,
        slot=settings.slot,
        recorded=recorded,
        takeover=settings.take_over,
    )


def prove_attachable(connection: Connection, spec: AttachSpec) -> None:
    """Raise the refusal that carrying it out would raise; of a container that is yet to be made nothing is known."""
    with Proxmox(connection) as client:
        try:
            preview_attach(client, spec)
        except GuestMissing:
            return


class Attachment(Component):
    """``later``: the volume, while it is yet to be made; ``after``: whose volume it is. Output: ``volume``."""

    volume: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        spec: AttachSpec,
        *,
        claim: str | None,
        later: pulumi.Output[str] | None,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Attachment", name, opts)
        made = VolumeAttachment(
            f"{name}-volume",
            spec,
            Owned(str(spec.vmid), claim, spec.node),
            pulumi.ResourceOptions(parent=self, depends_on=after, delete_before_replace=True),
            volid=later,
        )
        self.volume = made.volid
        self.register_outputs({"volume": self.volume, "path": spec.path})
