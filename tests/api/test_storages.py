"""The pet's volumes on each type of storage that pvelab models: made, found again, mounted, grown, adopted, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pytest

from lab.instance import ACCOUNT
from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection
from proxmox.errors import NoQuorum, VolumeBusy, VolumeUnusable
from proxmox.operations import (
    attach,
    detach,
    ensure_power,
    ensure_volume,
    preview_attach,
    preview_volume,
    read_attachment,
    remove_volume,
)
from proxmox.planning import AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from proxmox.preflight import CattleCheck, GuestCheck, PetCheck, preflight_cattle, preflight_pet
from pvelab.config import LabConfig, StorageConfig, storages_for
from pvelab.faults import Rule
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime

TEMPLATE = "local:vztmpl/debian-12.tar.zst"
QUICK = Timings(connect=5, read=20, retry=0.1, first_poll=0.01)
# The first volume of guest 999 on each type (the plugins of pve-storage, alloc_image; PVE::LXC, alloc_disk).
FIRST = {
    "lvmthin": "vm-999-disk-0",
    "lvm": "vm-999-disk-0",
    "dir": "999/vm-999-disk-0.raw",
    "nfs": "999/vm-999-disk-0.raw",
    "cifs": "999/vm-999-disk-0.raw",
    "btrfs": "999/vm-999-disk-0.raw",
    "zfspool": "subvol-999-disk-0",
    "rbd": "vm-999-disk-0",
}
MORE = {f"on-{kind}": kind for kind in FIRST}
NO_CONTAINERS = StorageConfig("isos", "dir", frozenset({"iso"}))
AWAY = StorageConfig("away", "zfspool", frozenset({"rootdir", "images"}), nodes=frozenset({"pve2"}))


@pytest.fixture(scope="module", name="lab")
def run_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    config = LabConfig(
        state_dir=tmp_path_factory.mktemp("lab"),
        runtime=SimulatedRuntime(),
        nodes=("pve", "pve2"),
        storages=(*storages_for(("pve",), MORE), NO_CONTAINERS, AWAY),
        auth_delay=0,
        account=ACCOUNT.on_storages([*MORE, "isos", "away"]),
    )
    config.template_dir("pve").mkdir(parents=True, exist_ok=True)
    (config.template_dir("pve") / "debian-12.tar.zst").write_bytes(b"template")
    with LabServer(config) as server:
        yield server


@pytest.fixture(scope="module", name="client")
def make_client(lab: LabServer) -> Iterator[Proxmox]:
    """Of the stacks' token; with a pet and a cattle, both stopped."""
    env = {
        "PROXMOX_VE_ENDPOINT": lab.endpoint,
        "PROXMOX_VE_API_TOKEN": lab.seed_access().api_token,
        "PROXMOX_VE_CA_FILE": str(lab.ca_file),
        "PROXMOX_VE_NODE": "pve",
    }
    with Proxmox(Connection.from_sources(env, {}), QUICK) as client:
        for vmid in (999, 105):
            values = {"vmid": vmid, "ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "unprivileged": 1}
            client.wait_task(client._send("POST", ("nodes", "pve", "lxc"), values))
        yield client


@pytest.mark.parametrize("kind", FIRST)
def test_a_volume_lives_on_each_type_of_storage(client: Proxmox, kind: str) -> None:
    storage = f"on-{kind}"
    volid = f"{storage}:{FIRST[kind]}"
    spec = VolumeSpec("data", 999, storage, 1, f"/volumes/{kind}")
    pet = PetCheck(GuestCheck(999, "pve", "local-lvm", 1, TEMPLATE, "vmbr0", ours=True), (spec,))
    assert preflight_pet(client, pet) == []

    # Made, and found again: by its path, and by its name.
    made = ensure_volume(client, spec)
    assert (made.volid, made.size_gb, made.protected) == (volid, 1, True)
    for known in (spec, replace(spec, recorded=volid), replace(spec, volid=volid)):
        assert preview_volume(client, known).steps == ()

    # Mounted by the cattle, started with it, and left alone by the next run.
    mount = AttachSpec(105, "pve", volid, "/home/agent", 999)
    cattle = CattleCheck(GuestCheck(105, "pve", "local-lvm", 1, TEMPLATE, "vmbr0", ours=True), mount)
    assert preflight_cattle(client, cattle) == []
    attach(client, mount)
    ensure_power(client, PowerSpec(105))
    assert preview_attach(client, mount) == ()
    assert preflight_cattle(client, cattle) == []

    # It grows: on ZFS in use, elsewhere not.
    larger = replace(spec, size_gb=2, recorded=volid)
    if kind != "zfspool":
        with pytest.raises(VolumeBusy, match="its file system could not be grown"):
            ensure_volume(client, larger)
        ensure_power(client, PowerSpec(105, running=False))
    assert ensure_volume(client, larger).size_gb == 2
    assert preview_volume(client, larger).steps == ()

    # Out of the cattle, and gone when it is named twice; nobody else's went with it.
    ensure_power(client, PowerSpec(105, running=False))
    detach(client, DetachSpec(105, volid))
    assert read_attachment(client, 105, "mp0") is None
    remove_volume(client, 999, volid, volid)
    assert client.storage_content("pve", storage) == ()


@pytest.mark.parametrize("kind", ["dir", "btrfs"])
def test_a_folder_that_nothing_limits_is_no_volume_of_the_pets(client: Proxmox, kind: str) -> None:
    """Size 0 makes a subvol there (alloc_disk); it can't grow (Plugin.pm and BTRFSPlugin.pm, volume_resize)."""
    storage = f"on-{kind}"
    volid = client._send(
        "POST",
        ("nodes", "pve", "storage", storage, "content"),
        {"vmid": 999, "filename": "subvol-999-data.subvol", "format": "subvol", "size": "0"},
    )
    spec = VolumeSpec("data", 999, storage, 1, f"/volumes/{kind}", volid=volid)
    with pytest.raises(VolumeUnusable, match="has no size"):
        preview_volume(client, spec)
    [fault] = preflight_pet(
        client, PetCheck(GuestCheck(999, "pve", "local-lvm", 1, TEMPLATE, "vmbr0", ours=True), (spec,))
    )
    assert "can't limit or grow" in fault.rule


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ("isos", "must take container volumes (content rootdir), and takes iso"),
        ("away", "must exist on node pve and be visible to the token"),
        ("nowhere", "must exist on node pve and be visible to the token"),
    ],
)
def test_a_storage_that_can_not_have_it_is_told_before(client: Proxmox, storage: str, told: str) -> None:
    spec = VolumeSpec("data", 999, storage, 1, "/volumes/data")
    pet = PetCheck(GuestCheck(999, "pve", "local-lvm", 1, TEMPLATE, "vmbr0", ours=True), (spec,))
    assert [told in fault.rule for fault in preflight_pet(client, pet)] == [True]


@pytest.mark.parametrize("kind", ["inquorate", "offline"])
def test_a_node_that_is_down_and_a_lost_quorum_are_told(
    lab: LabServer, client: Proxmox, kind: Literal["inquorate", "offline"]
) -> None:
    """Reads go on without a quorum. Of what writes, some calls ask for it first, and others fail as they write."""
    lab.faults.add(Rule(kind, node="pve2"))
    check = GuestCheck(999, "pve2" if kind == "offline" else "pve", "local-lvm", 1, TEMPLATE, "vmbr0", ours=True)
    told: list[str] = []
    try:
        faults = preflight_pet(client, PetCheck(check), warn=told.extend)
        if kind == "offline":
            assert {fault.key: fault.rule for fault in faults}["node"] == "must be online"
            assert "1 of 2 nodes are offline (pve2)" in told[0]
            return
        assert (faults, told) == ([], [])
        for write in (
            lambda: ensure_power(client, PowerSpec(105)),
            lambda: ensure_volume(client, VolumeSpec("data", 999, "local-lvm", 1, "/volumes/without")),
        ):
            with pytest.raises(NoQuorum, match=r"refused P(OS|U)T"):
                write()
    finally:
        lab.faults.clear()
