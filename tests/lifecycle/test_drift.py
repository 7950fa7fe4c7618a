"""What was changed behind the stacks' back: seen by a refresh as one difference, repaired the safe way."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from proxmox.network import card_of
from proxmox.notes import with_last_backup
from tests.lifecycle.homesite import CATTLE, NODE, PET, Site, assert_plain

VOLID = f"local-lvm:vm-{PET}-disk-1"
SET_MOUNT = f"PUT {CATTLE}/config mp0={VOLID},mp=/home/hermes,mountoptions=nodev;nosuid"
SHUTDOWN = f"POST {CATTLE}/status/shutdown forceStop=1 timeout=60"
START = f"POST {CATTLE}/status/start"
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
OWN_FILE = "documentation: `docs/operations.md`"
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


def _card(site: Site, vmid: int = CATTLE) -> dict[str, str]:
    return card_of(site.node.config(vmid))


def test_what_was_set_by_hand_on_the_card_is_named_and_stays(with_both: Site) -> None:
    """Nothing of net0, the notes or the tags is planned away: neither by itself nor with a change of a setting."""
    told_by_hand = {}
    for vmid in (CATTLE, PET):
        config = with_both.node.config(vmid)
        # scripts/agent has noted the last backup, too.
        noted = with_last_backup(config["description"], NOW, NOW)
        assert noted != config["description"]
        told_by_hand[vmid] = f"# Mine\n\nWith *words*: \u00fc 100%\n\n{noted}\nAlso mine.\n"
        with_both.node.set(vmid, description=told_by_hand[vmid], tags=f"{config['tags']};zz-mine")
    hardware = _card(with_both)["hwaddr"]
    by_hand = {"firewall": "1", "mtu": "1400", "rate": "5", "tag": "20", "ip6": "auto"}
    card = ",".join(f"{name}={value}" for name, value in (_card(with_both) | by_hand).items())
    with_both.node.set(CATTLE, net0=card, nameserver="192.0.2.53 192.0.2.54", searchdomain="home.example.org")
    with_both.node.set(PET, net0="name=eth0,bridge=vmbr0,ip=dhcp")
    for stack in ("cattle", "pet"):
        run = with_both.up(stack)
        assert run.changed == {}, run.explain()
        assert with_both.writes == []
        told = "\n".join(run.messages)
        assert "no setting declares" in told
        if stack == "cattle":
            for part in (*(f"{name}={value}" for name, value in by_hand.items()), "cattleMtu", "nameserver=192.0.2.53"):
                assert part in told, (part, told)

    # A change sends the card as a whole, and reboots the guest; the preview says both.
    with_both.configure(cattleMtu=1300, cattleNameserver="192.0.2.55", cattleHardwareAddress=hardware.lower())
    told = "\n".join(with_both.preview("cattle").messages)
    for part in ("mtu from 1400 to 1300", "nameserver from 192.0.2.53 192.0.2.54 to 192.0.2.55", "reboots"):
        assert part in told, (part, told)
    assert with_both.writes == []
    run = with_both.up("cattle")
    assert run.changed == {"update": 1}
    assert [write.split(" ")[1].rpartition("/")[2] for write in with_both.writes] == ["config", "reboot"]
    assert {name: _card(with_both)[name] for name in by_hand} == {**by_hand, "mtu": "1300", "rate": "5.00"}
    assert _card(with_both)["hwaddr"] == hardware
    config = with_both.node.config(CATTLE)
    assert (config["nameserver"], config["searchdomain"]) == ("192.0.2.55", "home.example.org")
    assert with_both.up("cattle").changed == {}
    assert with_both.writes == []

    # No setting of a setting: what it had declared stays, and is named from now on.
    with_both.configure(cattleMtu=None, cattleNameserver=None)
    assert with_both.up("cattle").changed == {}
    assert _card(with_both)["mtu"] == "1300"

    for vmid, text in told_by_hand.items():
        config = with_both.node.config(vmid)
        assert config["description"] == text
        assert "zz-mine" in config["tags"].split(";")
    # Other words in the stack's own lines, as a new version has them: one change, which restarts nothing.
    with_both.configure(docsUrl="https://example.org/docs")
    for stack, vmid in (("cattle", CATTLE), ("pet", PET)):
        run = with_both.up(stack)
        assert run.changed == {"update": 1}, run.explain()
        assert run.span(f"{stack}-container", "update").details == ("description",)
        [sent] = [request for request in with_both.sent if request.write]
        assert list(sent.params) == ["description"]
        link = "[documentation](https://example.org/docs)"
        assert with_both.node.config(vmid)["description"] == told_by_hand[vmid].replace(OWN_FILE, link)
        assert with_both.up(stack).changed == {}


def test_what_the_plugin_can_t_keep_is_refused_with_the_line_to_paste(with_both: Site) -> None:
    with_both.node.set(CATTLE, net0=",".join(f"{k}={v}" for k, v in _card(with_both).items()) + ",trunks=2;3")
    assert with_both.up("cattle").changed == {}
    with_both.configure(cattleVlan=20)
    run = with_both.pulumi("cattle", "up", "--yes", "--skip-preview")
    told = run.explain()
    for part in ("cattleVlan", "trunks=2;3", "take away", f"pct set {CATTLE} --net0"):
        assert part in told, (part, told)
    assert_plain(run)
    assert with_both.writes == []
    found = re.search(r"--net0 '([^']+)'", " ".join(told.split()))
    assert found
    with_both.node.set(CATTLE, net0=found.group(1))
    assert with_both.up("cattle").changed == {}
    assert with_both.writes == []
    assert {name: _card(with_both)[name] for name in ("tag", "trunks")} == {"tag": "20", "trunks": "2;3"}


def test_all_of_the_card_can_be_declared(with_pet: Site) -> None:
    """As on a dedicated server: one address, a gateway elsewhere, IPv6, and what else a provider asks for."""
    declared = {
        "ip": ("cattleAddress", "203.0.113.5/32"),
        "gw": ("cattleGateway", "198.51.100.1"),
        "ip6": ("cattleAddress6", "2001:db8::5/64"),
        "gw6": ("cattleGateway6", "fe80::1"),
        "tag": ("cattleVlan", "20"),
        "mtu": ("cattleMtu", "1400"),
        "firewall": ("cattleFirewall", "1"),
        "hwaddr": ("cattleHardwareAddress", "BC:24:11:00:00:01"),
    }
    settings: dict[str, Any] = dict(declared.values())
    settings |= {"cattleVlan": 20, "cattleMtu": 1400, "cattleFirewall": True}
    with_pet.configure(
        **settings, cattleNameserver="192.0.2.53 2001:db8::53", cattleSearchDomain="home.example.org example.org"
    )
    with_pet.up("cattle")
    assert {name: _card(with_pet)[name] for name in declared} == {name: value for name, (_, value) in declared.items()}
    config = with_pet.node.config(CATTLE)
    assert config["nameserver"] == "192.0.2.53 2001:db8::53"
    assert config["searchdomain"] == "home.example.org example.org"
    run = with_pet.up("cattle")
    assert run.changed == {}
    assert "no setting declares" not in "\n".join(run.messages)
    with_pet.configure(cattleAddress="dhcp", cattleGateway=None, cattleFirewall=False)
    with_pet.up("cattle")
    card = _card(with_pet)
    assert (card["ip"], card.get("gw"), card["firewall"], card["ip6"]) == ("dhcp", None, "0", "2001:db8::5/64")
    assert with_pet.up("cattle").changed == {}
