"""Laws of the planners, on any cluster: plans converge, free nothing, format nothing old, give one writer."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from proxmox.errors import Refusal
from proxmox.mountpoint import MountPoint, is_slot, owner_of
from proxmox.planning import (
    GIB,
    AttachSpec,
    DetachSpec,
    FreeVolume,
    Step,
    Unprotected,
    VolumeSpec,
    plan_detach,
)
from tests.unit.proxmox_model import Guest, Model, attach_plan, volume_plan

# The same cases each time, so that whoever changes something else is not stopped by a rare find; others, and more of
# them, by LAW_EXAMPLES=20000. No deadline and no health check: how fast the machine is says nothing about a law.
LAW = settings(
    max_examples=int(os.environ.get("LAW_EXAMPLES", "200")),
    derandomize="LAW_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
VMIDS = (999, 105, 106)
VOLUMES = tuple(f"local-lvm:vm-{vmid}-disk-{number}" for vmid in VMIDS for number in (1, 2))
TO_ATTACH = (*VOLUMES[:2], *VOLUMES[:3])
"""Mostly the pet's."""
PATHS = ("/data", "/home/hermes", "/volumes/a", "/volumes/b")
SLOTS = ("mp0", "mp1", "mp2")


@st.composite
def mounts(draw: st.DrawFn) -> str:
    options = draw(st.sampled_from(["", ",backup=1", ",backup=0", ",ro=1", ",size=8G"]))
    return f"{draw(st.sampled_from(VOLUMES))},mp={draw(st.sampled_from(PATHS))}{options}"


@st.composite
def guests(draw: st.DrawFn) -> Guest:
    config = draw(st.dictionaries(st.sampled_from(SLOTS), mounts(), max_size=2))
    paths = [MountPoint.parse(text).path for text in config.values()]
    volumes = [MountPoint.parse(text).volume for text in config.values()]
    assume(len(set(paths)) == len(paths) and len(set(volumes)) == len(volumes))
    unused = draw(st.sampled_from([None, *VOLUMES]))
    if unused is not None and unused not in volumes:
        config["unused0"] = unused
    config["protection"] = draw(st.sampled_from(["0", "0", "1"]))
    running = draw(st.booleans())
    pending = draw(st.dictionaries(st.sampled_from(SLOTS), st.none() | mounts(), max_size=1)) if running else {}
    pending = {slot: value for slot, value in pending.items() if slot in config}
    snapshots = {"s": {"mp0": draw(mounts())}} if draw(st.integers(0, 9)) == 0 else {}
    return Guest(config, pending, running, snapshots)


@st.composite
def models(draw: st.DrawFn) -> Model:
    found = {vmid: draw(guests()) for vmid in VMIDS}
    for vmid in VMIDS[1:]:
        found[vmid].config["protection"] = "0"  # protection is the pet's
    sizes = {volid: draw(st.sampled_from([4, 8])) * GIB for volid in VOLUMES if draw(st.integers(0, 9))}
    return Model(found, sizes)


def flat(steps: tuple[Step, ...]) -> list[Step]:
    return [inner for step in steps for inner in (flat(step.steps) if isinstance(step, Unprotected) else [step])]


def live_writers(state: Model, volid: str) -> list[int]:
    return [
        vmid
        for vmid, guest in state.guests.items()
        if guest.running
        and any(MountPoint.parse(text).volume == volid for key, text in guest.config.items() if is_slot(key))
    ]


@LAW
@given(models(), st.sampled_from(PATHS), st.sampled_from([4.0, 8.0, 9.0]), st.sampled_from([None, *VOLUMES]))
def test_a_volume_plan_converges_frees_nothing_and_formats_only_what_it_makes(
    state: Model, path: str, size: float, volid: str | None
) -> None:
    wish = VolumeSpec("v", 999, "local-lvm", size, path, volid)
    before = dict(state.volumes)
    try:
        plan = volume_plan(state, wish)
    except Refusal:
        return
    state.run(plan.steps)
    assert state.freed == []
    assert all(made not in before and owner_of(made) == 999 for made in state.formatted)
    assert len(state.formatted) <= 1
    assert all(state.volumes[name] >= size for name, size in before.items())
    assert state.guests[999].config["protection"] == "1"
    again = volume_plan(state, wish)
    assert again.steps == ()
    assert again.volid is not None
    for known in (replace(wish, volid=again.volid), replace(wish, recorded=again.volid)):
        assert volume_plan(state, known).steps == ()


@LAW
@given(
    models(),
    st.sampled_from(TO_ATTACH),
    st.sampled_from(PATHS),
    st.booleans(),
    st.sampled_from([None, *VOLUMES]),
)
def test_an_attach_plan_converges_frees_nothing_and_leaves_one_writer(
    state: Model, volid: str, path: str, takeover: bool, previous: str | None
) -> None:
    assume(previous is None or owner_of(previous) == 999)
    wish = AttachSpec(105, "pve", volid, path, 999, recorded=previous, takeover=takeover)
    running = state.guests[105].running
    before = dict(state.volumes)
    try:
        steps = attach_plan(state, wish)
    except Refusal:
        return
    # Start fails, as it should, when the guest mounts something else that does not exist.
    others = [MountPoint.parse(text) for key, text in state.guests[105].config.items() if is_slot(key)]
    others += [MountPoint.parse(text) for text in state.guests[105].pending.values() if text]
    assume(all(mount.volume in before for mount in others))
    state.run(steps)
    assert state.volumes == before
    assert state.formatted == []
    assert live_writers(state, volid) in ([105] if running else [], [])
    assert attach_plan(state, wish) == ()
    assert state.guests[105].running is running


@LAW
@given(models(), st.sampled_from(VOLUMES), st.sampled_from(SLOTS))
def test_a_detach_plan_converges_and_keeps_every_volume(state: Model, volid: str, slot: str) -> None:
    before = dict(state.volumes)
    wish = DetachSpec(105, volid, slot)
    try:
        steps = plan_detach(state.guest(105), wish)
    except Refusal:
        assert owner_of(volid) == 105
        return
    state.run(steps)
    assert state.volumes == before
    assert plan_detach(state.guest(105), wish) == ()
    assert volid not in state.guests[105].config.get(slot, "")


@LAW
@given(models(), st.sampled_from(VOLUMES), st.sampled_from(SLOTS), st.sampled_from(PATHS))
def test_no_plan_but_a_removal_contains_a_step_that_frees(state: Model, volid: str, slot: str, path: str) -> None:
    plans: list[tuple[Step, ...]] = []
    makers: tuple[Callable[[], tuple[Step, ...]], ...] = (
        lambda: volume_plan(state, VolumeSpec("v", 999, "local-lvm", 8, path, volid)).steps,
        lambda: attach_plan(state, AttachSpec(105, "pve", volid, path, 999, slot, takeover=True)),
        lambda: plan_detach(state.guest(105), DetachSpec(105, volid, slot)),
    )
    for make in makers:
        try:
            plans.append(make())
        except Refusal:
            continue
    assert not any(isinstance(step, FreeVolume) for plan in plans for step in flat(plan))


# Cut off at any change, the next run ends where the first would have ended.


@LAW
@given(models(), st.sampled_from(PATHS), st.sampled_from([None, *VOLUMES]), st.integers(0, 5))
def test_a_volume_plan_that_was_cut_off_is_finished_by_the_next(
    state: Model, path: str, volid: str | None, cut: int
) -> None:
    wish = VolumeSpec("v", 999, "local-lvm", 9, path, volid)
    try:
        steps = volume_plan(state, wish).steps
    except Refusal:
        return
    state.run_until_cut(steps, cut)
    state.run(volume_plan(state, wish).steps)
    assert volume_plan(state, wish).steps == ()
    assert len(state.formatted) <= 1
    assert state.freed == []
    assert state.guests[999].config["protection"] == "1"


@LAW
@given(models(), st.sampled_from(TO_ATTACH), st.sampled_from([None, *VOLUMES[:2]]), st.booleans(), st.integers(0, 7))
def test_an_attach_plan_that_was_cut_off_is_finished_by_the_next(
    state: Model, volid: str, previous: str | None, takeover: bool, cut: int
) -> None:
    wish = AttachSpec(105, "pve", volid, "/data", 999, recorded=previous, takeover=takeover)
    before = dict(state.volumes)
    config = dict(state.guests[105].config)
    mounted = [MountPoint.parse(text).volume for key, text in config.items() if is_slot(key)]
    mounted += [MountPoint.parse(text).volume for text in state.guests[105].pending.values() if text]
    assume(all(volume in before for volume in mounted))
    try:
        steps = attach_plan(state, wish)
    except Refusal:
        return
    state.run_until_cut(steps, cut)
    state.run(attach_plan(state, wish))
    assert attach_plan(state, wish) == ()
    assert state.volumes == before
    if previous not in (None, volid):
        assert previous not in [value for key, value in state.guests[105].config.items() if key.startswith("unused")]


@LAW
@given(models(), st.sampled_from(VOLUMES), st.sampled_from(SLOTS), st.integers(0, 3))
def test_a_detach_plan_that_was_cut_off_is_finished_by_the_next(state: Model, volid: str, slot: str, cut: int) -> None:
    wish = DetachSpec(105, volid, slot)
    assume(owner_of(volid) != 105)
    before = dict(state.volumes)
    steps = plan_detach(state.guest(105), wish)
    state.run_until_cut(steps, cut)
    state.run(plan_detach(state.guest(105), wish))
    assert plan_detach(state.guest(105), wish) == ()
    assert state.volumes == before
