"""The planners: every decision and every refusal, on facts that are written out in tests/cases/planning.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxmox import errors
from proxmox.client import Guest as Listed
from proxmox.facts import ClusterFacts
from proxmox.mountpoint import MountPoint
from proxmox.planning import (
    GIB,
    Allocate,
    AttachSpec,
    DetachSpec,
    DropUnused,
    FreeVolume,
    Grow,
    PowerSpec,
    Protect,
    ProveSole,
    RemoveMount,
    SetMount,
    Shutdown,
    Start,
    Step,
    Unprotected,
    VolumeSpec,
    plan_attach,
    plan_detach,
    plan_power,
    plan_volume_removal,
    prove_sole,
)
from tests.tables import cases, is_refused
from tests.unit.proxmox_model import EIGHT, Model, model_of, volume_plan, words

DISK = "local-lvm:vm-999-disk-1"
ATTACH = AttachSpec(105, "pve", DISK, "/home/hermes", 999, options="backup=0")
VOLUME = VolumeSpec("hermes", 999, "local-lvm", 8, "/volumes/hermes")


def cluster_of(state: Model, given: dict[str, Any]) -> ClusterFacts:
    """The cluster, with what a case says of what cannot be seen of it."""
    unreadable = given.get("unreadable")
    lost = Listed(unreadable, "lxc", "pve2", "", template=False, lock=None) if unreadable else None
    return replace(
        state.cluster(),
        sees_all=given.get("sees_all", True),
        unreadable=((lost, "node pve2 is offline"),) if lost else (),
    )


def attach(state: Model, cluster: dict[str, Any], **given: Any) -> tuple[Step, ...]:
    spec = replace(ATTACH, **given)
    return plan_attach(state.guest(spec.vmid), state.volume(spec.volid), cluster_of(state, cluster), spec)


def detach(state: Model, _cluster: dict[str, Any], vmid: int = 105) -> tuple[Step, ...]:
    return plan_detach(state.guest(vmid), DetachSpec(vmid, DISK))


def power(state: Model, _cluster: dict[str, Any], **given: Any) -> tuple[Step, ...]:
    spec = PowerSpec(**{"vmid": 105, **given})
    return plan_power(state.guest(spec.vmid), spec, state.cluster() if len(state.guests) > 1 else None)


def removal(
    state: Model, _cluster: dict[str, Any], volid: str = DISK, confirmed: str | None = DISK
) -> tuple[Step, ...]:
    return plan_volume_removal(state.guest(999), state.cluster(), 999, volid, confirmed)


PLANNERS: dict[str, Callable[..., tuple[Step, ...]]] = {
    "volume": lambda state, _, **given: volume_plan(state, replace(VOLUME, **given)).steps,
    "attach": attach,
    "detach": detach,
    "power": power,
    "removal": removal,
}
KEYS = "guests volumes cluster spec steps volume then formatted freed refused says why remedy holders"


@pytest.mark.parametrize(("table", "case"), cases("planning.yaml", *PLANNERS, keys=KEYS))
def test_a_plan(table: str, case: dict[str, Any]) -> None:
    """Its steps, all of them; after them nothing is left to do, and nothing but what the case says is freed or made."""
    state = model_of(case.get("guests", {}), case.get("volumes"))
    given = case.get("cluster", {}), case.get("spec", {})
    state.shared_storages = frozenset(given[0].get("shared_storages", ()))

    def planned() -> tuple[Step, ...]:
        return PLANNERS[table](state, given[0], **given[1])

    if is_refused(case, planned):
        return
    if "volume" in case:
        plan = volume_plan(state, replace(VOLUME, **given[1]))
        told = {"slot": plan.slot, "volid": plan.volid, "size": plan.size, "adopted": plan.adopted}
        assert told == case["volume"]
    steps = planned()
    assert [words(step) for step in steps] == case["steps"]
    state.run(steps)
    assert planned() == ()
    assert state.freed == case.get("freed", [])
    assert state.formatted == case.get("formatted", [])
    for vmid, config in case.get("then", {}).items():
        assert {key: state.guests[vmid].config.get(key) for key in config} == config


def test_what_is_sent_to_allocate_asks_for_backup() -> None:
    # field-reports A15: Proxmox leaves mount points out of backups unless told otherwise.
    assert Allocate(999, "pve", "mp0", "local-lvm", EIGHT, "/data").value == "local-lvm:8,mp=/data,backup=1"
    assert Allocate(999, "pve", "mp0", "local-lvm", GIB // 2, "/data").value == "local-lvm:0.5,mp=/data,backup=1"


def test_without_a_free_slot_nothing_is_allocated() -> None:
    full = {f"mp{number}": f"local-lvm:vm-999-disk-{number + 5},mp=/volumes/{number}" for number in range(256)}
    with pytest.raises(errors.NoFreeSlot):
        volume_plan(model_of({999: full}), VOLUME)


def test_a_volume_is_attached_without_what_a_root_of_before_could_have_left_on_it() -> None:
    """pct.conf(5): nodev, nosuid; neither backup= nor size= for a volume that exists (facts proxmox 3.1)."""
    text = AttachSpec(105, "pve", DISK, "/home/hermes", 999).mount.property_string()
    assert text == f"{DISK},mp=/home/hermes,mountoptions=nodev;nosuid"


def test_a_slot_that_is_no_slot_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not a mount point key"):
        attach(model_of({999: {}, 105: {}}), {}, slot="rootfs")


def test_two_that_attached_at_the_same_moment_see_each_other() -> None:
    mount = {"mp0": f"{DISK},mp=/home/hermes"}
    state = model_of({999: {"mp0": f"{DISK},mp=/volumes/hermes"}, 105: mount, 106: mount})
    for vmid, other in ((105, 106), (106, 105)):
        with pytest.raises(errors.VolumeHeld) as refused:
            prove_sole(state.cluster(), DISK, vmid, "pve", 999)
        assert refused.value.holders == (other,)


def test_an_owner_that_was_migrated_meanwhile_is_seen_after_the_write() -> None:
    state = model_of({999: {"node": "pve2", "mp0": f"{DISK},mp=/volumes/hermes"}, 105: {}})
    with pytest.raises(errors.VolumeElsewhere):
        prove_sole(state.cluster(), DISK, 105, "pve", 999)


MOUNT = MountPoint(DISK, "/home/hermes", {"backup": "0"})
TEXTS: dict[str, tuple[Step, str]] = {
    "shutdown": (Shutdown(105, "pve", 60), "CT 105: shut down (killed after 60 s)"),
    "start": (Start(105, "pve"), "CT 105: start"),
    "set": (SetMount(105, "pve", "mp0", MOUNT), f"CT 105: set mp0 to {DISK},mp=/home/hermes,backup=0"),
    "prove": (ProveSole(105, "pve", "mp0", DISK, 999), f"CT 105: see that nobody else uses {DISK}"),
    "remove": (RemoveMount(105, "pve", "mp0", DISK), f"CT 105: detach {DISK} from mp0"),
    "drop": (DropUnused(105, "pve", DISK), f"CT 105: forget {DISK} (the volume stays with CT 999)"),
    "allocate": (
        Allocate(999, "pve", "mp0", "local-lvm", EIGHT, "/v"),
        "CT 999: allocate 8G on local-lvm as mp0 at /v",
    ),
    "grow": (Grow(999, "pve", "mp0", DISK, EIGHT, 10 * GIB), f"CT 999: grow {DISK} from 8G to 10G"),
    "free": (FreeVolume(999, "pve", DISK), f"CT 999: DELETE {DISK} with all data on it"),
    "protect": (Protect(999, "pve"), "CT 999: switch protection on"),
    "unprotected": (
        Unprotected(999, "pve", (FreeVolume(999, "pve", DISK),)),
        f"CT 999: DELETE {DISK} with all data on it (protection off for this only)",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_each_step_says_in_one_line_what_it_does(case: str) -> None:
    step, text = TEXTS[case]
    assert step.describe() == text


def test_a_step_without_words_is_no_step() -> None:
    step: Any = Step(105, "pve")
    with pytest.raises(NotImplementedError):
        step.describe()
