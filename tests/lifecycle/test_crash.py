"""kill -9 in the middle: the next run finds what is there, and goes on."""

from __future__ import annotations

import pytest

from tests.lifecycle.homesite import CATTLE, NODE, PET, Request, Site, Watch, When

VOLID = f"local-lvm:vm-{PET}-disk-1"
ALL = ""
PLUGIN = "pulumi-resource-proxmoxve"
DYNAMIC = "components.providers"


def at(method: str, path: str, when: When, **params: str) -> Watch:
    def watch(request: Request, moment: When) -> bool:
        return (
            moment == when
            and request.method == method
            and request.path == path
            and all(str(request.params.get(key, "")).startswith(value) for key, value in params.items())
        )

    return watch


CONFIG = f"/nodes/{NODE}/lxc/{CATTLE}/config"
START = f"/nodes/{NODE}/lxc/{CATTLE}/status/start"


def assert_up(site: Site) -> None:
    config = site.node.config(CATTLE)
    assert config["mp0"] == f"{VOLID},mp=/home/hermes,mountoptions=nodev;nosuid,size=2G"
    assert [key for key in config if key.startswith("unused")] == []
    assert site.node.running(CATTLE)
    assert site.node.volumes() == {
        f"local-lvm:vm-{CATTLE}-disk-0": 20,
        f"local-lvm:vm-{PET}-disk-0": 2,
        VOLID: 2,
    }
    assert site.node.config(PET)["protection"] == 1


@pytest.mark.parametrize(
    ("victims", "watch"),
    [
        pytest.param(ALL, at("POST", f"/nodes/{NODE}/lxc", "after"), id="all, after the creation"),
        pytest.param(PLUGIN, at("POST", f"/nodes/{NODE}/lxc", "after"), id="plugin, after the creation"),
        pytest.param(ALL, at("PUT", CONFIG, "before", mp0=VOLID), id="all, before the attach"),
        pytest.param(ALL, at("PUT", CONFIG, "after", mp0=VOLID), id="all, after the attach"),
        pytest.param(ALL, at("POST", START, "after"), id="all, after the start"),
        pytest.param(DYNAMIC, at("PUT", CONFIG, "after", mp0=VOLID), id="provider, after the attach"),
    ],
)
def test_up_is_killed_and_converges(with_pet: Site, victims: str, watch: Watch) -> None:
    before = with_pet.data(VOLID)
    assert with_pet.break_off("cattle", "up", watch, victims) > 0
    with_pet.cancel("cattle")
    with_pet.up("cattle")
    assert_up(with_pet)
    assert with_pet.data(VOLID) == before


def test_a_container_that_the_state_has_lost_is_taken_up_again(with_both: Site) -> None:
    """It carries this stack's claim, so it is no stranger; nothing about it is changed."""
    known = with_both.resources("cattle")
    for name in ("cattle-power", "cattle-volume", "cattle-container"):
        with_both.forget_resource("cattle", known[name]["urn"])
    before = with_both.node.config(CATTLE)
    with_both.up("cattle")
    assert_up(with_both)
    assert with_both.node.config(CATTLE) == before
    assert not [write for write in with_both.writes if write.startswith(("PUT", "DELETE"))]
    assert with_both.up("cattle").changed == {}


def test_pet_up_is_killed_after_its_volume_was_made(site: Site) -> None:
    site.configure(petVolumes=[{"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}])
    config = f"/nodes/{NODE}/lxc/{PET}/config"
    assert site.break_off("pet", "up", at("PUT", config, "after", mp0="local-lvm:2"), ALL) > 0
    site.cancel("pet")
    site.up("pet")
    assert site.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 2}
    assert site.node.config(PET)["protection"] == 1


@pytest.mark.parametrize("slot", ["mp0", "unused0"])
def test_destroy_is_killed_and_ends(with_both: Site, slot: str) -> None:
    before = with_both.data(VOLID)
    assert with_both.break_off("cattle", "destroy", at("PUT", CONFIG, "after", delete=slot), ALL) > 0
    with_both.cancel("cattle")
    with_both.destroy("cattle")
    assert with_both.node.vmids() == [PET]
    assert with_both.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 2}
    assert with_both.data(VOLID) == before
