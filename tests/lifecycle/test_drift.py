"""What was changed behind the stacks' back: seen by a refresh as one difference, repaired the safe way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lifecycle.homesite import CATTLE, NODE, PET, Site

VOLID = f"local-lvm:vm-{PET}-disk-1"
SET_MOUNT = f"PUT {CATTLE}/config mp0={VOLID},mp=/home/hermes,mountoptions=nodev;nosuid"
SHUTDOWN = f"POST {CATTLE}/status/shutdown forceStop=1 timeout=60"
START = f"POST {CATTLE}/status/start"
HERMES = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}


def _stopped(site: Site) -> None:
    site.node.stop(CATTLE)


def _detached(site: Site) -> None:
    site.node.stop(CATTLE)
    site.node.set(CATTLE, delete="mp0")


def _elsewhere(site: Site) -> None:
    site.node.stop(CATTLE)
    site.node.set(CATTLE, mp0=f"{VOLID},mp=/srv")


def _read_only(site: Site) -> None:
    site.node.stop(CATTLE)
    site.node.set(CATTLE, mp0=f"{VOLID},mp=/home/hermes,ro=1")


def _waiting(site: Site) -> None:
    """A change on a running container waits for its next stop (facts proxmox 3.2)."""
    site.node.set(CATTLE, mp0=f"{VOLID},mp=/srv")


def _powered_off_from_inside(site: Site) -> None:
    site.runtime.power_off_from_inside(NODE, CATTLE)


@pytest.mark.parametrize(
    ("change", "parts", "repair"),
    [
        pytest.param(_stopped, ["power"], [START], id="stopped"),
        pytest.param(_detached, ["volume", "power"], [SET_MOUNT, START], id="detached"),
        pytest.param(_read_only, ["volume", "power"], [SET_MOUNT, START], id="read-only"),
        pytest.param(_waiting, ["volume"], [SHUTDOWN, SET_MOUNT, START], id="a change that waits"),
        pytest.param(_elsewhere, ["volume", "power"], [SET_MOUNT, START], id="mounted elsewhere"),
    ],
)
def test_the_cattles_volume_and_power(
    with_both: Site, change: Callable[[Site], None], parts: list[str], repair: list[str]
) -> None:
    before = with_both.data(VOLID)
    change(with_both)
    run = with_both.preview("cattle", "--refresh")
    assert run.changed == {"update": len(parts)}
    for part in parts:
        run.span(f"cattle-{part}", "update")
    assert with_both.writes == []
    with_both.up("cattle", "--refresh")
    assert with_both.writes == repair
    config = with_both.node.config(CATTLE)
    assert config["mp0"] == f"{VOLID},mp=/home/hermes,mountoptions=nodev;nosuid,size=2G"
    assert [key for key in config if key.startswith("unused")] == []
    assert with_both.node.running(CATTLE)
    assert with_both.data(VOLID) == before


def test_another_volume_in_the_slot_is_not_thrown_out(with_both: Site) -> None:
    """It is not ours to judge what that volume is for: the run says so and leaves it."""
    with_both.node.make_stranger(200)
    with_both.node.set(200, mp0="local-lvm:1,mp=/data")
    foreign = with_both.node.config(200)["mp0"].split(",")[0]
    with_both.node.stop(CATTLE)
    with_both.node.set(CATTLE, mp0=f"{foreign},mp=/home/hermes")
    run = with_both.pulumi("cattle", "up", "--yes", "--skip-preview", "--refresh")
    assert not run.ok
    assert foreign in run.explain()
    assert with_both.writes == []
    assert with_both.node.config(CATTLE)["mp0"].startswith(foreign)


def test_the_pets_protection_and_its_volumes_size(with_pet: Site) -> None:
    with_pet.node.set(PET, protection=0)
    run = with_pet.preview("pet", "--refresh")
    assert run.changed == {"update": 1}
    assert run.span("pet-container", "update").details == ("protection",)
    with_pet.up("pet", "--refresh")
    assert with_pet.node.config(PET)["protection"] == 1
    assert not [write for write in with_pet.writes if write.startswith("PUT") and "protection=1" not in write]

    # Grown by hand: to shrink it is refused, with the size to declare; declared, there is nothing left to do.
    with_pet.node.call("PUT", with_pet.node.guest(PET, "/resize"), disk="mp0", size="4G")
    run = with_pet.pulumi("pet", "preview", "--refresh")
    assert not run.ok
    assert "set its size to 4 GB" in run.explain()
    assert with_pet.writes == []
    with_pet.configure(petVolumes=[{**HERMES, "size": 4}])
    with_pet.up("pet", "--refresh")
    assert with_pet.writes == []
    assert with_pet.outputs("pet")["volumes"]["hermes"]["size"] == 4


def test_the_pets_volume_unmounted_by_hand_is_mounted_again(with_pet: Site) -> None:
    before = with_pet.data(VOLID)
    with_pet.node.set(PET, protection=0)
    with_pet.node.set(PET, delete="mp0")
    with_pet.up("pet", "--refresh")
    config = with_pet.node.config(PET)
    assert with_pet.data(VOLID) == before
    assert list(with_pet.node.volumes()) == [f"local-lvm:vm-{PET}-disk-0", VOLID]
    assert config["mp0"] == f"{VOLID},mp=/mnt/hermes,backup=1,size=2G"
    assert config["protection"] == 1
