"""What would cost a guest's data, told by its stack's own state before the engine plans anything."""

from __future__ import annotations

from typing import Any

import pytest

from components.preflight import home_faults, known_without_claim, number_faults, pet_place_faults, warnings_of
from components.state import OwnState
from proxmox.errors import Fault
from proxmox.planning import AttachSpec
from proxmox.preflight import CattleCheck, GuestCheck
from tests.settings import cattle, pet

HOME = "/home/hermes"
TEMPLATE = "local:vztmpl/debian-12.tar.zst"
KEYS = ["ssh-ed25519 AAAA"]
CONTAINER = {
    "nodeName": "pve",
    "operatingSystem": {"templateFileId": TEMPLATE},
    "disk": {"datastoreId": "local-lvm"},
    "initialization": {"userAccount": {"keys": KEYS}},
}


def told(
    home: str, placed: tuple[dict[str, Any], ...] = (), container: dict[str, Any] = CONTAINER, **changes: Any
) -> list[str]:
    """The keys of the faults for a cattle that is there and the settings that it is to have now."""
    values: dict[str, Any] = {
        "volume": "",
        "mounts": (),
        "node": "pve",
        "template": TEMPLATE,
        "storage": "local-lvm",
        "keys": KEYS,
    }
    values |= changes
    stack = cattle(
        cattleVolume=values["volume"],
        cattleHostMounts=[{"source": source, "path": path} for source, path in values["mounts"]],
        cattleStorage=values["storage"],
        node=values["node"],
        template=values["template"],
    )
    state = OwnState("claim", 105, home=home, container=container, placed=placed)
    return [fault.key for fault in home_faults(stack, values["keys"], state)]


ON_DISK = ({"slot": "mp1", "source": "/mnt/pve/hdd/home", "path": f"{HOME}/", "readOnly": False},)
BESIDE = ({"slot": "mp1", "source": "/mnt/pve/hdd/x", "path": "/data", "readOnly": False},)


@pytest.mark.parametrize(
    ("home", "placed", "changes", "keys"),
    [
        ("root", (), {}, []),
        ("root", BESIDE, {"mounts": [("/mnt/pve/hdd/x", "/data")]}, []),
        ("volume", (), {"volume": "hermes"}, []),
        ("root", ON_DISK, {"mounts": [("/mnt/pve/hdd/home", HOME)]}, []),
        # Hidden by a volume or a folder, left without one, or another folder in its place.
        ("root", (), {"volume": "hermes"}, ["cattleVolume"]),
        ("root", (), {"mounts": [("/mnt/pve/hdd/home", HOME)]}, ["cattleVolume"]),
        ("volume", (), {}, ["cattleVolume"]),
        ("root", ON_DISK, {}, ["cattleHostMounts"]),
        ("root", ON_DISK, {"volume": "hermes"}, ["cattleHostMounts"]),
        ("root", ON_DISK, {"mounts": [("/media/2tb/home", HOME)]}, ["cattleHostMounts"]),
        # A new container is a new root file system.
        ("root", (), {"template": "local:vztmpl/debian-13.tar.zst"}, ["template"]),
        ("root", (), {"keys": ["ssh-ed25519 BBBB"], "node": "pve2"}, ["node", "cattleSshKeys"]),
        ("root", (), {"storage": "ssd"}, ["cattleStorage"]),
        # Elsewhere the container may go.
        (
            "volume",
            (),
            {"volume": "hermes", "template": "local:vztmpl/other.tar.zst", "keys": [], "storage": "ssd"},
            [],
        ),
        ("root", ON_DISK, {"mounts": [("/mnt/pve/hdd/home", HOME)], "template": "local:vztmpl/other.tar.zst"}, []),
    ],
)
def test_a_home_is_not_lost_by_a_setting(
    home: str, placed: tuple[dict[str, Any], ...], changes: dict[str, Any], keys: list[str]
) -> None:
    assert told(home, placed, **changes) == keys


def test_what_the_plugin_does_not_tell_is_not_taken_for_a_change() -> None:
    assert told("root", container={"operatingSystem": None, "initialization": {"userAccount": {"keys": None}}}) == []


@pytest.mark.parametrize("key", ["petVmid", "cattleVmid"])
def test_a_guests_number_is_not_changed_under_it(key: str) -> None:
    assert number_faults(key, 105, OwnState()) == []
    assert number_faults(key, 105, OwnState("claim", 105)) == []
    [fault] = number_faults(key, 106, OwnState("claim", 105))
    assert (fault.key, fault.value) == (key, "106")
    assert "105" in fault.remedy
    # Nobody is told to destroy a pet.
    assert ("destroy" in fault.remedy) == (key == "cattleVmid")


def test_another_volume_is_another_home() -> None:
    """As after a volume's name was changed and with it its path, which makes a new and empty one."""
    wish = AttachSpec(105, "pve", "local-lvm:vm-999-disk-2", HOME, 999)
    check = CattleCheck(GuestCheck(105, "pve", "local-lvm", 20), attach=wish)
    settings = cattle().cattle
    [warning] = warnings_of(check, settings, OwnState("claim", 105, home="volume", volid="local-lvm:vm-999-disk-1"))
    assert "moves from volume local-lvm:vm-999-disk-1 to local-lvm:vm-999-disk-2" in warning
    assert warnings_of(check, settings, OwnState("claim", 105, home="volume", volid=wish.volid)) == []
    assert warnings_of(check, settings, OwnState()) == []


def test_what_would_make_the_pet_anew_is_refused_without_a_word_of_its_protection() -> None:
    def told(vmid: int = 999, node: str = "pve", storage: str = "local-lvm") -> list[Fault]:
        stack = pet(petVmid=vmid, node=node, petStorage=storage)
        return pet_place_faults(stack, OwnState("claim", 999, container=CONTAINER))

    assert told() == []
    found = told(998, "pve2", "ssd")
    assert [fault.key for fault in found] == ["petVmid", "node", "petStorage"]
    assert not any("protect" in f"{fault.rule} {fault.remedy}" for fault in found)
    assert "pct move-volume 999 rootfs ssd" in told(storage="ssd")[0].remedy


def test_a_number_alone_says_whose_a_guest_is_only_where_there_is_no_claim_yet() -> None:
    """One that was imported, or made before there were claims, is known by the state; later the claim decides."""
    assert known_without_claim(OwnState(None, 999), 999)
    assert not known_without_claim(OwnState("claim", 999), 999)
    assert not known_without_claim(OwnState(None, 998), 999)
    assert not known_without_claim(OwnState(), 999)
