"""Golden templates: which one is as declared, which have to go, and what a clone is still to be given."""

from __future__ import annotations

from typing import Any

import pytest

from proxmox.facts import ClusterFacts, GuestFacts
from proxmox.golden import (
    CloneSpec,
    ImageSpec,
    bases_in,
    clone_changes,
    golden_notes,
    golden_of,
    plan_image,
)
from proxmox.network import NetworkSpec
from proxmox.ownership import parse_claim
from tests import tables

CLAIM = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"


def template(vmid: int, text: str) -> GuestFacts:
    """ "2 a begun": the second one, of digest aaa..., which is no template yet."""
    count, letter, *words = text.split()
    notes = golden_notes("For tests.", int(count), letter * 64, OTHER if "of" in words else CLAIM)
    config = {"description": notes, "rootfs": f"tank:base-{vmid}-disk-0"}
    return GuestFacts(vmid, "pve", config=config if "begun" in words else {**config, "template": "1"})


@pytest.mark.parametrize(
    ("table", "case"),
    tables.cases("golden.yaml", "image", keys="templates spec guests current number discard prune held"),
)
def test_plan(table: str, case: dict[str, Any]) -> None:
    del table
    guests = [template(vmid, text) for vmid, text in case.get("templates", {}).items()]
    guests += [GuestFacts(vmid, "pve", config=config) for vmid, config in case.get("guests", {}).items()]
    spec = ImageSpec(**{"node": "pve", "digest": "a" * 64, "first": 9000, "kept": 1, **case.get("spec", {})})
    plan = plan_image(ClusterFacts(tuple(guests)), spec, CLAIM)
    assert (plan.current.vmid if plan.current else None, plan.number) == (case["current"], case["number"])
    assert [one.vmid for one in plan.discard] == case.get("discard", [])
    assert [one.vmid for one in plan.prune] == case.get("prune", [])
    assert {one.vmid: list(users) for one, users in plan.held} == case.get("held", {})
    # What the preview says is what is going to be done, and nothing where nothing is.
    lines = plan.describe(spec)
    assert len(lines) == len(plan.discard) + (plan.current is None) + len(plan.prune) + len(plan.held)


@pytest.mark.parametrize(("table", "case"), tables.cases("golden.yaml", "bases", keys="config snapshots pending bases"))
def test_bases(table: str, case: dict[str, Any]) -> None:
    del table
    more = {key: case[key] for key in ("snapshots", "pending") if key in case}
    assert sorted(bases_in(GuestFacts(105, "pve", config=case["config"], **more))) == case["bases"]


def test_notes_say_what_it_is_and_whose() -> None:
    notes = golden_notes("For people.", 7, "0123456789abcdef" * 4, CLAIM)
    assert parse_claim(notes) == CLAIM
    found = golden_of(GuestFacts(9000, "pve", config={"description": notes}))
    assert found is not None
    assert (found.number, found.digest, found.finished) == (7, "0123456789abcdef" * 4, False)
    assert golden_of(GuestFacts(9000, "pve", kind="qemu", config={"description": notes})) is None
    assert golden_of(GuestFacts(105, "pve", config={"description": "golden template: none"})) is None


CARD = NetworkSpec(bridge="vmbr0", ip="dhcp")
MINE = "BC:24:11:00:00:01"
CLONED = {"hostname": "hermes", "cores": "2", "net0": f"name=eth0,bridge=vmbr0,hwaddr={MINE},ip=dhcp,type=veth"}


@pytest.mark.parametrize(
    ("config", "card", "changes"),
    [
        (CLONED, CARD, ({}, ())),
        ({**CLONED, "cores": "1"}, CARD, ({"cores": "2"}, ())),
        # What the template has of its own does not stay.
        (
            {**CLONED, "tags": "image", "nameserver": "10.0.0.1", "onboot": "1"},
            CARD,
            ({}, ("nameserver", "onboot", "tags")),
        ),
        ({**CLONED, "mp7": "tank:vm-105-disk-9,mp=/x"}, CARD, ({}, ())),
        # The card is declared as a whole, and keeps the hardware address that Proxmox has given to the clone.
        (
            {**CLONED, "net0": f"name=eth0,bridge=vmbr1,hwaddr={MINE},ip=dhcp,mtu=1400,tag=7,type=veth"},
            CARD,
            ({"net0": f"name=eth0,bridge=vmbr0,hwaddr={MINE},ip=dhcp"}, ()),
        ),
        (
            CLONED,
            NetworkSpec("vmbr0", "dhcp", hardware_address="BC:24:11:00:00:02"),
            ({"net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:02,ip=dhcp"}, ()),
        ),
    ],
)
def test_a_clone_gets_what_it_lacks(
    config: dict[str, str], card: NetworkSpec, changes: tuple[dict[str, str], tuple[str, ...]]
) -> None:
    spec = CloneSpec(9000, 105, "pve", "local-lvm", 20, {"hostname": "hermes", "cores": "2"}, card)
    assert clone_changes(spec, config) == changes
