"""The pet: the guest that owns the volumes, and is never destroyed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from components.claim import Claim
from components.container import ContainerSpec, container, proxmox_provider
from components.dynamic import Component, Owned
from components.naming import GUARD_SAYS
from components.notes import pet_notes
from components.parts import Guard, Power, Volume, VolumeRemoval
from proxmox.planning import PowerSpec, RemovalSpec, VolumeSpec
from settings.stack import PetStack

WHY_GUARDED = "the volumes of the cattle belong to this guest"
PURPOSE = "Owns the volumes of the cattle. Do not destroy: the volumes would go with it."


class PetStorage(Component):
    """A protected guest and its volumes, each a resource of its own.

    ``among_others``: whether the stack has other components, each with a provider of the plugin. ``there``: the
    configuration of the guest that is there. Outputs: ``vmid``, ``node``, and ``volumes`` by name: volid, size in GB,
    storage, path on the pet.
    """

    vmid: int
    node: str
    volumes: dict[str, dict[str, Any]]

    def __init__(
        self,
        name: str,
        stack: PetStack,
        volumes: Sequence[VolumeSpec],
        *,
        among_others: bool = False,
        there: Mapping[str, str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("PetStorage", name, opts)
        connection, pet = stack.connection, stack.pet
        provider = proxmox_provider(connection, dict(os.environ), among_others=self if among_others else None)
        # From the first run on: the engine goes by the flags that are in the state already (pulumi#13428).
        kept = pulumi.ResourceOptions(parent=self, protect=True, retain_on_delete=True)
        claim = Claim(f"{name}-claim", vmid=pet.vmid, adopted=stack.claim, opts=kept)
        guest = container(
            f"{name}-container",
            ContainerSpec(
                vmid=pet.vmid,
                node=connection.node,
                hostname=pet.hostname,
                purpose=PURPOSE,
                notes=pet_notes(stack),
                there=there,
                template=stack.template,
                storage=pet.storage,
                cores=pet.cores,
                memory=pet.memory,
                swap=0,
                disk=pet.disk,
                tags=pet.tags,
                protection=True,
            ),
            claim,
            connection=connection,
            # None of these can be read back or changed in place, and none is worth a pet (field reports B7). Features:
            # the plugin would send them all, and any but nesting is refused for a token (facts proxmox 15).
            also_ignore=["operatingSystem", "initialization", "unprivileged", "features"],
            opts=pulumi.ResourceOptions.merge(kept, pulumi.ResourceOptions(provider=provider)),
        )
        self.vmid = pet.vmid
        self.node = connection.node
        self.volumes = {}
        guarded: list[pulumi.Resource] = [guest]
        owned = Owned(guest.id, claim.claim, connection.node)
        for spec in volumes:
            # Retained, and not protected: a name that leaves the list leaves its volume behind, without an error.
            # One at a time: they change the same guest (field reports B1).
            opts = pulumi.ResourceOptions(parent=self, retain_on_delete=True, depends_on=[guarded[-1]])
            volume = Volume(f"{name}-volume-{spec.name}", spec, owned, opts)
            guarded.append(volume)
            self.volumes[spec.name] = {
                "volid": volume.ref,
                "size": volume.size,
                "storage": volume.storage,
                "path": volume.path,
            }
        for volid in pet.delete_volumes:
            opts = pulumi.ResourceOptions(parent=self, depends_on=[guarded[-1]])
            guarded.append(VolumeRemoval(f"{name}-delete-{volid}", RemovalSpec(pet.vmid, volid), owned, opts))
        if pet.started:
            opts = pulumi.ResourceOptions(parent=self, depends_on=[guarded[-1]])
            guarded.append(Power(f"{name}-power", PowerSpec(pet.vmid), owned, opts))
        Guard(
            f"{name}-{GUARD_SAYS}",
            reason=WHY_GUARDED,
            parent=self,
            guarded=guarded,
            before=f"{name}-is-never-destroyed",
        )
        self.register_outputs({"vmid": self.vmid, "node": self.node, "volumes": self.volumes})
