"""The pet: the guest that owns the volumes."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from settings.kinds import AbsolutePath, Cores, Hostname, StorageId, Tags, Vmid, Volid, VolumeName
from settings.section import Part, Section, refuse, setting


class VolumeSettings(Part):
    """One volume of the pet. `size` in GB (GiB, as Proxmox counts); `volid` takes over one that exists."""

    name: VolumeName
    storage: StorageId
    size: Annotated[int, Field(ge=1, le=65536)]
    path: AbsolutePath
    volid: Volid | None = None


def _differ(volumes: list[VolumeSettings]) -> list[VolumeSettings]:
    for field in ("name", "path", "volid"):
        values = [getattr(volume, field) for volume in volumes if getattr(volume, field) is not None]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise refuse(f"two volumes have the {field} {twice[0]}", f"give each volume a {field} of its own")
    return volumes


class PetSettings(Section):
    """Memory in MB, disk in GB."""

    vmid: Vmid = setting("petVmid", 999, "The VMID of the pet, the guest that owns the volumes.")
    hostname: Hostname = setting("petHostname", "pet-storage", "The pet's host name.")
    cores: Cores = setting("petCores", 1, "The pet's CPU cores.")
    memory: Annotated[int, Field(ge=16)] = setting("petMemory", 256, "The pet's memory in MB.")
    disk: Annotated[int, Field(ge=1)] = setting("petDisk", 2, "The pet's root file system in GB.")
    storage: StorageId = setting("petStorage", "local-lvm", "The storage of the pet's root file system.")
    started: bool = setting(
        "petStarted",
        False,
        "Whether the pet is started. It need not run: a stopped guest owns volumes just as well. "
        "Set back to false, it is stopped.",
    )
    tags: Tags = setting("petTags", ["pet", "pulumi"], "The pet's tags in Proxmox.")
    volumes: Annotated[list[VolumeSettings], AfterValidator(_differ)] = setting(
        "petVolumes",
        [{"name": "hermes", "storage": "local-lvm", "size": 10, "path": "/mnt/hermes"}],
        "The volumes: name, storage, size in GB, and path on the pet, which identifies the volume there; "
        "volid adopts an existing volume.",
    )
    start_empty: bool = setting(
        "petStartEmpty",
        False,
        "Whether a pet that was lost is made again, with new, empty volumes. false: pulumi up is refused until it is "
        "restored. Leave it out afterwards.",
    )
    delete_volumes: list[Volid] = setting(
        "petDeleteVolumes",
        [],
        "Volids to delete with all their data. They must be out of petVolumes, and no guest may refer to them.",
    )
