"""The cattle's life: container, volume, one start; thrown away and made again, the volume untouched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pvelab.config import storages_for
from settings.outputs import outputs_of
from tests.lifecycle.homesite import CATTLE, NODE, PET, Request, Site, assert_plain, copied, good, opened

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Deployed

VOLID = f"local-lvm:vm-{PET}-disk-1"
ROOT = f"local-lvm:vm-{CATTLE}-disk-0"
CREATE = f"POST /nodes/{NODE}/lxc"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB6x0gfmEAqjEXN2qMzeYjUdMBhDRDgOTpQ0Lh4xmVLk"
PLACE = f"/nodes/{NODE}/lxc/{CATTLE}"


def verbs(requests: list[Request]) -> list[str]:
    """The writes in order, as METHOD place, with what a PUT says."""
    return [
        re.sub(r" (?=vmid|arch|timeout|forceStop).*", "", str(request))
        if request.method == "PUT"
        else f"{request.method} {request.path}"
        for request in requests
        if request.write
    ]


def test_up_attaches_before_the_only_start(both_seed: Deployed, with_both: Site) -> None:
    sent = list(both_seed.sent)
    assert verbs(sent) == [
        CREATE,
        f"PUT {CATTLE}/config mp0={VOLID},mp=/home/hermes,mountoptions=nodev;nosuid",
        f"POST {PLACE}/status/start",
    ]
    create = next(request for request in sent if request.write)
    asked = {key: create.params[key] for key in ("vmid", "unprivileged", "start", "features", "hostname", "protection")}
    assert asked == {
        "vmid": str(CATTLE),
        "unprivileged": "1",
        "start": "0",
        "features": "nesting=1",
        "hostname": "hermes",
        "protection": "0",
    }
    assert not [key for key in create.params if re.fullmatch(r"mp\d+", key)]
    # The number is proved free right before (facts proxmox 15, HAZARD).
    before = sent[: sent.index(create)]
    assert any(request.path == "/cluster/nextid" and request.params["vmid"] == str(CATTLE) for request in before)

    config = with_both.node.config(CATTLE)
    assert config["mp0"] == f"{VOLID},mp=/home/hermes,mountoptions=nodev;nosuid,size=2G"
    assert config["rootfs"] == f"{ROOT},size=20G"
    assert config["tags"] == "agent;ai;pulumi"
    assert config["onboot"] == 1
    assert with_both.node.running(CATTLE)
    assert not with_both.node.running(PET)
    outputs = with_both.outputs("cattle")
    assert outputs.keys() == outputs_of("hermes").keys()
    names = list(outputs_of("hermes"))
    assert {outputs[name] for name in names[names.index("address") :] if name != "agentMode"} == {""}
    assert {key: outputs[key] for key in ("vmid", "node", "hostname", "volume", "agentMode")} == {
        "vmid": CATTLE,
        "node": NODE,
        "hostname": "hermes",
        "volume": VOLID,
        "agentMode": "none",
    }


def test_the_life_of_both_on_proxmox_8(seed: Path, tmp_path: Path) -> None:
    with opened(copied(seed, tmp_path / "lab"), pve="8") as site:
        assert site.node.call("GET", "/version")["release"] == "8.4"
        site.configure(petVolumes=[{"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}])
        good(site.up("pet"))
        good(site.up("cattle"))
        # There the default is a privileged container, of which no token may set a feature (facts proxmox 2.1, 2.2).
        assert [site.node.config(vmid)["unprivileged"] for vmid in (PET, CATTLE)] == [1, 1]
        assert site.node.config(CATTLE)["features"] == "nesting=1"
        assert site.preview("pet").changed == site.preview("cattle").changed == {}
        site.write_data(VOLID, "what the agent wrote")
        before = site.data(VOLID)
        good(site.destroy("cattle"))
        assert site.node.vmids() == [PET]
        good(site.up("cattle"))
        assert site.data(VOLID) == before
        assert site.node.running(CATTLE)


def test_nothing_to_do_is_nothing_done(with_both: Site) -> None:
    """Proxmox has written size= into the mount point, and runs what was made stopped: neither is a difference."""
    assert with_both.up("cattle").changed == {}
    assert with_both.writes == []
    assert with_both.refresh("cattle").changed == {}
    assert with_both.writes == []
    # A copy of the key is no key: the plugin would make another container of a line that it begins with.
    copy = with_both.lab.ssh_key_file.with_suffix(".pub")
    copy.write_text(f"# written by another program\n{copy.read_text()}")
    assert with_both.preview("cattle").changed == {}
    assert with_both.writes == []


def test_destroy_leaves_the_volume(with_both: Site) -> None:
    with_both.write_data(VOLID, "what the agent wrote")
    before = with_both.data(VOLID)
    with_both.destroy("cattle")
    assert verbs(with_both.sent) == [
        f"POST {PLACE}/status/shutdown",
        f"PUT {CATTLE}/config delete=mp0",
        f"PUT {CATTLE}/config delete=unused0",
        f"DELETE {PLACE}",
    ]
    assert with_both.node.vmids() == [PET]
    assert with_both.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 2}
    assert with_both.data(VOLID) == before
    assert with_both.node.config(PET)["protection"] == 1

    # And again, as if nothing had been.
    with_both.up("cattle")
    assert with_both.node.config(CATTLE)["mp0"].startswith(f"{VOLID},mp=/home/hermes")
    assert with_both.node.running(CATTLE)
    assert with_both.data(VOLID) == before


@dataclass(frozen=True)
class Life:
    """Where a pet's root file system, its volumes and a cattle are, and what they are called there.

    grows_in_use: whether a volume grows while the cattle runs (its storage does it by a property).
    """

    types: dict[str, str]
    pet: str
    volume: str
    cattle: str
    volids: tuple[str, str, str, str]
    grows_in_use: bool = False


LIVES = {
    "dir": Life(
        {"tank": "dir"}, "tank", "tank", "tank",
        ("tank:999/vm-999-disk-0.raw", "tank:999/vm-999-disk-1.raw", "tank:999/vm-999-disk-2.raw",
         "tank:105/vm-105-disk-0.raw"),
    ),
    "each on its own": Life(
        {"local-zfs": "zfspool", "tank": "dir"}, "local-lvm", "local-zfs", "tank",
        ("local-lvm:vm-999-disk-0", "local-zfs:subvol-999-disk-0", "local-zfs:subvol-999-disk-1",
         "tank:105/vm-105-disk-0.raw"),
        grows_in_use=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES.keys())
def test_a_whole_life_on_other_storages(seed: Path, tmp_path: Path, life: Life) -> None:
    """Names of volumes: the plugins of pve-storage (alloc_image) and alloc_disk of PVE::LXC."""
    root, volid, second, cattle_root = life.volids
    hermes = {"name": "hermes", "storage": life.volume, "size": 2, "path": "/mnt/hermes"}
    other = {"name": "other", "storage": life.volume, "size": 1, "path": "/mnt/other"}
    with opened(copied(seed, tmp_path / "lab"), storages=storages_for((NODE,), life.types)) as site:
        site.configure(petStorage=life.pet, petVolumes=[hermes], cattleStorage=life.cattle)
        site.up("pet")
        assert site.node.config(PET)["rootfs"] == f"{root},size=2G"
        assert site.node.config(PET)["mp0"] == f"{volid},mp=/mnt/hermes,backup=1,size=2G"
        site.up("cattle")
        mounted = f"{volid},mp=/home/hermes,mountoptions=nodev;nosuid,size=2G"
        assert site.node.config(CATTLE)["mp0"] == mounted
        assert site.node.config(CATTLE)["rootfs"] == f"{cattle_root},size=20G"
        assert site.node.running(CATTLE)
        for stack in ("pet", "cattle"):
            assert site.preview(stack).changed == {}

        # A hand takes the volume away: the next run attaches it again.
        site.write_data(volid, "what the agent wrote")
        before = site.data(volid)
        site.node.stop(CATTLE)
        site.node.set(CATTLE, delete="mp0")
        site.up("cattle")
        assert site.node.config(CATTLE)["mp0"] == mounted

        site.destroy("cattle")
        assert site.node.vmids() == [PET]
        assert cattle_root not in site.node.volumes(life.cattle)
        site.up("cattle")
        assert site.node.config(CATTLE)["mp0"] == mounted
        assert site.data(volid) == before

        # It grows, and another one is made.
        site.configure(petVolumes=[{**hermes, "size": 3}, other])
        if not life.grows_in_use:
            run = site.pulumi("pet", "preview")
            assert not run.ok
            assert f"({volid}) cannot grow now" in run.explain()
            assert site.writes == []
            site.node.stop(CATTLE)
        site.up("pet")
        assert {name: site.node.volumes(life.volume)[name] for name in (volid, second)} == {volid: 3, second: 1}
        assert site.outputs("pet")["volumes"]["other"]["volid"] == second
        assert site.data(volid) == before

        # The other one goes when it is named twice.
        site.configure(petVolumes=[{**hermes, "size": 3}], petDeleteVolumes=[second])
        site.up("pet")
        assert second not in site.node.volumes(life.volume)
        assert site.preview("cattle").changed == ({} if life.grows_in_use else {"update": 1})
        assert site.data(volid) == before


def test_replace_goes_through_detach_delete_create_attach(with_both: Site) -> None:
    with_both.write_data(VOLID, "what the agent wrote")
    before = with_both.data(VOLID)
    container = with_both.resources("cattle")["cattle-container"]["urn"]
    with_both.up("cattle", "--replace", container)
    assert verbs(with_both.sent) == [
        f"POST {PLACE}/status/shutdown",
        f"PUT {CATTLE}/config delete=mp0",
        f"PUT {CATTLE}/config delete=unused0",
        f"DELETE {PLACE}",
        CREATE,
        f"PUT {CATTLE}/config mp0={VOLID},mp=/home/hermes,mountoptions=nodev;nosuid",
        f"POST {PLACE}/status/start",
    ]
    assert with_both.data(VOLID) == before
    assert with_both.node.running(CATTLE)
    assert with_both.up("cattle").changed == {}

    # Proxmox takes keys at creation only (field reports B6): another key is another container, and preview says so.
    with_both.configure(cattleSshKeys=[KEY])
    run = with_both.preview("cattle")
    assert run.changed == {"replace": 3}
    for name in ("container", "volume", "power"):
        run.span(f"cattle-{name}", "replace")
    assert with_both.writes == []


@pytest.mark.parametrize("gone", ["container", "mount"])
def test_what_is_gone_already_is_no_obstacle(with_both: Site, gone: str) -> None:
    """Somebody has removed the container, or detached the volume, by hand.

    The plugin can't delete a container that is not there; that each run refreshes first is what it takes.
    """
    before = with_both.data(VOLID)
    with_both.node.stop(CATTLE)
    if gone == "container":
        with_both.node.destroy(CATTLE)
    else:
        with_both.node.set(CATTLE, delete="mp0")
    run = with_both.destroy("cattle")
    assert_plain(run)
    assert with_both.node.vmids() == [PET]
    assert with_both.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 2}
    assert with_both.data(VOLID) == before
    assert [name for name in with_both.resources("cattle") if name.startswith("cattle")] == []


def test_a_stranger_that_got_our_number_survives(with_both: Site) -> None:
    """Ours was removed by hand, another was made with its number: the plugin alone would change or delete it."""
    with_both.node.stop(CATTLE)
    with_both.node.destroy(CATTLE)
    with_both.node.make_stranger(CATTLE)
    before = with_both.node.config(CATTLE)
    with_both.configure(cattleMemory=1024)
    for verb in ("up", "destroy"):
        for refresh in ([], ["--refresh=false"]):
            run = with_both.pulumi("cattle", verb, "--yes", "--skip-preview", *refresh)
            assert not run.ok
            assert "claim" in run.explain()
            assert_plain(run)
            assert with_both.writes == []
    assert with_both.node.config(CATTLE) == before


def test_a_container_removed_by_hand_comes_back(with_both: Site) -> None:
    before = with_both.data(VOLID)
    with_both.node.stop(CATTLE)
    with_both.node.destroy(CATTLE)
    with_both.up("cattle")
    assert with_both.node.running(CATTLE)
    assert with_both.node.config(CATTLE)["mp0"].startswith(f"{VOLID},mp=/home/hermes")
    assert with_both.data(VOLID) == before
