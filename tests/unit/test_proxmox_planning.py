"""The planners: every decision and every refusal, on facts that are written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from proxmox import errors
from proxmox.client import Guest as Listed
from proxmox.facts import GuestFacts
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
    VolumePlan,
    VolumeSpec,
    mount_of,
    plan_attach,
    plan_detach,
    plan_power,
    plan_protection,
    plan_volume,
    plan_volume_removal,
    prove_sole,
)
from tests.unit.proxmox_model import EIGHT, Guest, Model, cattle_with, pet_with

DISK = "local-lvm:vm-999-disk-1"
OTHER = "local-lvm:vm-999-disk-2"
ON_PET = f"{DISK},mp=/volumes/hermes,backup=1,size=8G"
IN_CATTLE = f"{DISK},mp=/home/hermes,backup=0,size=8G"
WISH = VolumeSpec("hermes", 999, "local-lvm", 8, "/volumes/hermes")
ATTACH = AttachSpec(105, "pve", DISK, "/home/hermes", 999, options="backup=0")
SET = SetMount(105, "pve", "mp0", MountPoint(DISK, "/home/hermes", {"backup": "0"}))
SOLE = ProveSole(105, "pve", "mp0", DISK, 999)
START = Start(105, "pve")
STOP = Shutdown(105, "pve", 60)


def model(pet: Guest | None, **guests: Guest) -> Model:
    """A cluster with a pet, and guests by the names ct105, vm200, ..."""
    found = {int(name[2:]): guest for name, guest in guests.items()}
    return Model(
        {**({999: pet} if pet else {}), **found}, {DISK: EIGHT, OTHER: EIGHT, "local-lvm:vm-105-disk-1": EIGHT}
    )


def volume_plan(state: Model, wish: VolumeSpec = WISH) -> VolumePlan:
    pet = state.guest(wish.vmid)
    found = mount_of(pet, wish) if pet else None
    return plan_volume(pet, state.volume(found[1].volume if found else wish.existing), state.cluster(), wish)


def attach_plan(state: Model, wish: AttachSpec = ATTACH) -> tuple[Step, ...]:
    return plan_attach(state.guest(wish.vmid), state.volume(wish.volid), state.cluster(), wish)


def guarded(*steps: Step) -> tuple[Step, ...]:
    return (Unprotected(999, "pve", steps),)


# Volumes of the pet.


def test_a_new_volume_is_allocated_in_the_lowest_free_slot_with_protection_off_for_that_only() -> None:
    plan = volume_plan(model(pet_with()))
    assert plan == VolumePlan(
        guarded(Allocate(999, "pve", "mp0", "local-lvm", EIGHT, "/volumes/hermes")), "mp0", None, None
    )
    assert not plan.adopted


def test_what_is_sent_to_allocate_asks_for_backup() -> None:
    # field-reports A15: Proxmox leaves mount points out of backups unless told otherwise.
    assert Allocate(999, "pve", "mp0", "local-lvm", EIGHT, "/data").value == "local-lvm:8,mp=/data,backup=1"
    assert Allocate(999, "pve", "mp0", "local-lvm", GIB // 2, "/data").value == "local-lvm:0.5,mp=/data,backup=1"


def test_a_second_volume_takes_the_gap_that_neither_config_nor_pending_uses() -> None:
    pet = pet_with(ON_PET, mp2=f"{OTHER},mp=/volumes/two", running=True)
    pet.pending["mp1"] = "local-lvm:vm-999-disk-7,mp=/volumes/seven"
    plan = volume_plan(model(pet), replace(WISH, name="more", path="/volumes/more"))
    assert plan.slot == "mp3"


def test_a_volume_at_the_path_is_adopted_without_a_step() -> None:
    plan = volume_plan(model(pet_with(ON_PET)))
    assert plan == VolumePlan((), "mp0", DISK, EIGHT)
    assert plan.adopted


def test_protection_found_off_is_on_after_every_plan() -> None:
    assert volume_plan(model(pet_with(ON_PET, protection="0"))).steps == (Protect(999, "pve"),)


def test_an_explicit_volume_is_adopted_where_the_pet_has_it() -> None:
    assert volume_plan(model(pet_with(ON_PET)), replace(WISH, volid=DISK)).steps == ()


def test_an_explicit_volume_that_the_pet_does_not_mount_is_mounted_and_not_formatted() -> None:
    state = model(pet_with(unused0=DISK))
    plan = volume_plan(state, replace(WISH, volid=DISK))
    mount = MountPoint(DISK, "/volumes/hermes", {"backup": "1"})
    assert plan.steps == guarded(SetMount(999, "pve", "mp0", mount))
    state.run(plan.steps)
    assert state.formatted == []
    assert state.guests[999].config["mp0"] == ON_PET


def test_a_changed_path_moves_the_mount_point_and_keeps_volume_and_options() -> None:
    pet = pet_with(f"{DISK},mp=/volumes/hermes,backup=1,ro=1,size=8G")
    plan = volume_plan(model(pet), replace(WISH, volid=DISK, path="/volumes/new"))
    mount = MountPoint(DISK, "/volumes/new", {"backup": "1", "ro": "1"})
    assert plan.steps == guarded(SetMount(999, "pve", "mp0", mount, DISK))


def test_what_waits_in_the_slot_is_set_right_on_the_stopped_pet() -> None:
    pet = pet_with(ON_PET)
    pet.pending["mp0"] = None
    assert volume_plan(model(pet)).steps == guarded(
        SetMount(999, "pve", "mp0", MountPoint(DISK, "/volumes/hermes", {"backup": "1"}), DISK)
    )


def test_a_larger_size_grows_without_touching_protection() -> None:
    # facts proxmox 6: resize is not blocked by protection.
    plan = volume_plan(model(pet_with(ON_PET)), replace(WISH, size_gb=10))
    assert plan.steps == (Grow(999, "pve", "mp0", DISK, EIGHT, 10 * GIB),)


def test_growing_and_moving_go_into_one_plan() -> None:
    plan = volume_plan(model(pet_with(ON_PET)), replace(WISH, volid=DISK, path="/volumes/x", size_gb=9))
    assert [type(step) for step in plan.steps] == [Unprotected, Grow]


def test_a_stopped_cattle_does_not_stand_in_the_way_of_growing() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(IN_CATTLE))
    assert [type(step) for step in volume_plan(state, replace(WISH, size_gb=9)).steps] == [Grow]


def test_a_running_guest_that_only_remembers_the_volume_does_not_stand_in_the_way_of_growing() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(unused0=DISK, running=True))
    assert [type(step) for step in volume_plan(state, replace(WISH, size_gb=9)).steps] == [Grow]


VOLUME_REFUSALS: dict[str, tuple[type[errors.Refusal], Model, VolumeSpec, str]] = {
    "no pet": (errors.GuestMissing, model(None), WISH, "There is no guest 999"),
    "the number is a virtual machine's": (
        errors.GuestMissing,
        Model({999: Guest({"name": "win"}, kind="qemu")}),
        WISH,
        "VM 999 'win' on node pve",
    ),
    "template": (errors.GuestIsTemplate, model(pet_with(template="1")), WISH, "CT 999 is a template"),
    "locked": (errors.GuestLocked, model(pet_with(lock="backup")), WISH, "pct unlock 999"),
    "smaller": (errors.ShrinkRefused, model(pet_with(ON_PET)), replace(WISH, size_gb=4), "set its size to 8 GB"),
    "explicit volume of another guest": (
        errors.OwnerMismatch,
        model(pet_with()),
        replace(WISH, volid="local-lvm:vm-998-disk-1"),
        "belongs to guest 998",
    ),
    "volume without an owner in its name": (
        errors.OwnerMismatch,
        model(pet_with()),
        replace(WISH, volid="local-lvm:data"),
        "belongs to guest None",
    ),
    "order to allocate where a volume is meant": (
        errors.AllocateSyntax,
        model(pet_with()),
        replace(WISH, volid="local-lvm:8"),
        "pvesm list",
    ),
    "other storage": (
        errors.VolumeElsewhere,
        model(pet_with(ON_PET)),
        replace(WISH, storage="fast"),
        "set its storage to local-lvm",
    ),
    "explicit volume that is gone": (
        errors.VolumeMissing,
        model(pet_with()),
        replace(WISH, volid="local-lvm:vm-999-disk-9"),
        "pvesm list local-lvm --vmid 999",
    ),
    "mounted volume that is gone": (
        errors.VolumeMissing,
        model(pet_with("local-lvm:vm-999-disk-9,mp=/volumes/hermes")),
        WISH,
        "does not exist",
    ),
    "a folder of the node at the path": (
        errors.AllocateSyntax,
        model(pet_with("/mnt/data,mp=/volumes/hermes")),
        WISH,
        "bind mount",
    ),
    "a stranger's volume at the path": (
        errors.OwnerMismatch,
        model(pet_with("local-lvm:vm-105-disk-1,mp=/volumes/hermes")),
        WISH,
        "belongs to guest 105",
    ),
    "path taken by another volume": (
        errors.PathTaken,
        model(pet_with(f"{OTHER},mp=/volumes/hermes/")),
        replace(WISH, volid=DISK),
        "mp0 mounts local-lvm:vm-999-disk-2",
    ),
    "the pet's root file system": (
        errors.SlotTaken,
        Model({999: pet_with()}, {"local-lvm:vm-999-disk-0": EIGHT}),
        replace(WISH, volid="local-lvm:vm-999-disk-0"),
        "root file system",
    ),
    "another path while the pet runs": (
        errors.PetRunning,
        model(pet_with(ON_PET, running=True)),
        replace(WISH, volid=DISK, path="/volumes/x"),
        "pct shutdown 999",
    ),
    "a running pet would mount what a cattle has": (
        errors.PetRunning,
        model(pet_with(running=True), ct105=cattle_with(IN_CATTLE, running=True)),
        replace(WISH, volid=DISK),
        "pct shutdown 999",
    ),
    "growing under a running cattle": (
        errors.VolumeBusy,
        model(pet_with(ON_PET), ct105=cattle_with(IN_CATTLE, running=True)),
        replace(WISH, size_gb=9),
        "pct shutdown 105",
    ),
}


@pytest.mark.parametrize("case", VOLUME_REFUSALS)
def test_a_volume_that_cannot_be_is_refused(case: str) -> None:
    kind, state, wish, text = VOLUME_REFUSALS[case]
    with pytest.raises(kind) as refused:
        volume_plan(state, wish)
    assert text in str(refused.value)
    assert refused.value.why
    assert refused.value.remedy


def test_a_path_that_waits_in_another_slot_is_taken() -> None:
    pet = pet_with(running=True)
    pet.pending["mp4"] = "local-lvm:vm-999-disk-9,mp=/volumes/hermes"
    with pytest.raises(errors.PathTaken):
        volume_plan(model(pet))


def test_without_a_free_slot_nothing_is_allocated() -> None:
    full = {f"mp{number}": f"local-lvm:vm-999-disk-{number + 5},mp=/volumes/{number}" for number in range(256)}
    with pytest.raises(errors.NoFreeSlot):
        volume_plan(model(Guest(full)))


def test_a_second_holder_does_not_hinder_mounting_again_on_a_stopped_pet() -> None:
    state = model(pet_with(), ct105=cattle_with(IN_CATTLE, running=True))
    assert [type(step) for step in volume_plan(state, replace(WISH, volid=DISK)).steps] == [Unprotected]


# Attachments.

ATTACH_PLANS: dict[str, tuple[Guest, AttachSpec, tuple[Step, ...]]] = {
    "fresh container, whose power is another's": (cattle_with(), ATTACH, (SET, SOLE)),
    "as declared and running": (cattle_with(IN_CATTLE, running=True), ATTACH, ()),
    "as declared, spelled otherwise": (
        cattle_with(f"volume={DISK},size=8G,replicate=1,mp=/home/hermes/", running=True),
        ATTACH,
        (),
    ),
    "as declared and stopped": (cattle_with(IN_CATTLE), ATTACH, ()),
    "detached by hand while it runs": (cattle_with(running=True, unused0=DISK), ATTACH, (STOP, SET, SOLE, START)),
    "other path": (
        cattle_with(f"{DISK},mp=/data,size=8G", running=True),
        ATTACH,
        (STOP, replace(SET, replaces=DISK), SOLE, START),
    ),
    "other options, stopped": (
        cattle_with(f"{DISK},mp=/home/hermes,ro=1"),
        ATTACH,
        (replace(SET, replaces=DISK), SOLE),
    ),
    "another volume of ours before": (
        cattle_with(f"{OTHER},mp=/home/hermes", running=True),
        replace(ATTACH, recorded=OTHER),
        (STOP, replace(SET, replaces=OTHER), SOLE, DropUnused(105, "pve", OTHER), START),
    ),
}
ATTACH_PLANS |= {
    "cut off before the old volume was forgotten": (
        cattle_with(IN_CATTLE, running=True, unused0=OTHER),
        replace(ATTACH, recorded=OTHER),
        (DropUnused(105, "pve", OTHER),),
    ),
    "cut off in an update, then detached by hand": (
        cattle_with(unused0=OTHER),
        replace(ATTACH, recorded=OTHER),
        (SET, SOLE, DropUnused(105, "pve", OTHER)),
    ),
    "an own volume before, which stays": (
        cattle_with("local-lvm:vm-105-disk-1,mp=/home/hermes"),
        replace(ATTACH, recorded="local-lvm:vm-105-disk-1"),
        (replace(SET, replaces="local-lvm:vm-105-disk-1"), SOLE),
    ),
}


def test_a_volume_is_attached_without_what_a_root_of_before_could_have_left_on_it() -> None:
    """pct.conf(5): nodev, nosuid; neither backup= nor size= for a volume that exists (facts proxmox 3.1)."""
    text = AttachSpec(105, "pve", DISK, "/home/hermes", 999).mount.property_string()
    assert text == f"{DISK},mp=/home/hermes,mountoptions=nodev;nosuid"


@pytest.mark.parametrize("case", ATTACH_PLANS)
def test_an_attachment_is_planned(case: str) -> None:
    cattle, wish, steps = ATTACH_PLANS[case]
    state = model(pet_with(ON_PET), ct105=cattle)
    assert attach_plan(state, wish) == steps
    state.run(steps)
    assert attach_plan(state, wish) == ()
    assert state.freed == []


def test_a_removal_that_waits_is_undone_by_stop_set_start() -> None:
    cattle = cattle_with(IN_CATTLE, running=True)
    cattle.pending["mp0"] = None
    assert attach_plan(model(pet_with(ON_PET), ct105=cattle)) == (STOP, replace(SET, replaces=DISK), SOLE, START)


def test_an_attachment_that_waits_is_applied_by_stop_set_start() -> None:
    cattle = cattle_with(running=True)
    cattle.pending["mp0"] = f"{DISK},mp=/data"
    assert attach_plan(model(pet_with(ON_PET), ct105=cattle)) == (STOP, replace(SET, replaces=DISK), SOLE, START)


def test_the_owner_may_name_the_volume_and_remember_it_while_it_runs() -> None:
    assert attach_plan(model(pet_with(ON_PET), ct105=cattle_with())) == (SET, SOLE)
    assert attach_plan(model(pet_with(unused0=DISK, running=True), ct105=cattle_with())) == (SET, SOLE)
    assert attach_plan(model(None, ct105=cattle_with())) == (SET, SOLE)


def snapshot(guest: Guest) -> Guest:
    guest.snapshots["before"] = {"mp0": IN_CATTLE}
    return guest


def waiting(guest: Guest) -> Guest:
    guest.pending["mp0"] = IN_CATTLE
    return guest


HOLDERS: dict[str, tuple[Guest, str, str]] = {
    "stopped": (cattle_with(IN_CATTLE, vmid=106), "(stopped) names it in mp0 at /home/hermes", "pct shutdown 106"),
    "running": (
        cattle_with(IN_CATTLE, vmid=106, running=True),
        "(running) names it in mp0",
        "pct set 106 --delete mp0",
    ),
    "on another node": (
        replace(cattle_with(IN_CATTLE, vmid=106), node="pve2"),
        "on node pve2",
        "on node pve2: pct shutdown 106",
    ),
    "pending": (waiting(cattle_with(vmid=106, running=True)), "in pending, mp0", "applies what is pending"),
    "snapshot": (snapshot(cattle_with(vmid=106)), "in snapshot before, mp0", "pct delsnapshot 106 before"),
    "unused": (cattle_with(unused0=DISK, vmid=106), "in unused0", "pct set 106 --delete unused0"),
    "root file system": (Guest({"rootfs": f"{DISK},size=8G"}), "in rootfs", "pct set 106 --delete rootfs"),
    "virtual machine": (
        Guest({"scsi0": f"{DISK},iothread=1", "name": "win"}, kind="qemu"),
        "VM 106 'win'",
        "qm set 106 --delete scsi0",
    ),
}


BY_PATH: dict[str, dict[str, str]] = {
    "raw line": {"lxc": "lxc.mount.entry: /dev/pve/vm-999-disk-1 data ext4 defaults 0 0"},
    "mount of the device": {"mp3": "/dev/mapper/pve-vm--999--disk--1,mp=/data"},
    "device passed on": {"dev0": "/dev/pve/vm-999-disk-1"},
}


@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("case", BY_PATH)
def test_a_volume_that_another_guest_has_by_a_path_is_held(case: str, takeover: bool) -> None:
    """Two writers, and a takeover could not end it: only root sets these."""
    [(key, value)] = BY_PATH[case].items()
    state = model(pet_with(ON_PET), ct105=cattle_with(), ct106=cattle_with(vmid=106, running=True, **BY_PATH[case]))
    with pytest.raises(errors.VolumeHeld) as refused:
        attach_plan(state, replace(ATTACH, takeover=takeover))
    assert refused.value.holders == (106,)
    assert value.split(",")[0].split()[-1 if key != "lxc" else 1] in refused.value.why
    assert ("/etc/pve/lxc/106.conf" if key == "lxc" else f"pct set 106 --delete {key}") in refused.value.remedy


@pytest.mark.parametrize("case", BY_PATH)
def test_what_holds_a_volume_by_a_path_keeps_it_from_being_deleted_or_started_beside(case: str) -> None:
    by_path = cattle_with(vmid=106, running=True, **BY_PATH[case])
    with pytest.raises(errors.VolumeHeld):
        removal(model(pet_with(ON_PET), ct106=by_path))
    with pytest.raises(errors.VolumeHeld):
        removal(model(Guest({**pet_with(ON_PET).config, **BY_PATH[case]})))
    state = model(pet_with(ON_PET), ct106=by_path)
    with pytest.raises(errors.VolumeBusy):
        plan_power(state.guest(999), PowerSpec(999), state.cluster())
    with pytest.raises(errors.VolumeBusy):
        volume_plan(state, replace(WISH, size_gb=9))


@pytest.mark.parametrize("case", HOLDERS)
def test_a_volume_that_another_guest_names_is_refused_with_the_holder_and_the_way_out(case: str) -> None:
    holder, named, remedy = HOLDERS[case]
    with pytest.raises(errors.VolumeHeld) as refused:
        attach_plan(model(pet_with(ON_PET), ct105=cattle_with(), ct106=holder))
    assert refused.value.holders == (106,)
    assert named in refused.value.why
    assert remedy in refused.value.remedy


def test_several_holders_are_counted() -> None:
    state = model(
        pet_with(ON_PET),
        ct105=cattle_with(),
        ct106=cattle_with(IN_CATTLE, vmid=106),
        ct107=cattle_with(IN_CATTLE, vmid=107),
    )
    with pytest.raises(errors.VolumeHeld, match="held by guest 106, 107") as refused:
        attach_plan(state)
    assert "(and 1 more)" in refused.value.why


def test_a_takeover_stops_and_detaches_the_holder_first() -> None:
    holder = cattle_with(IN_CATTLE, vmid=106, running=True)
    state = model(pet_with(ON_PET), ct105=cattle_with(), ct106=holder, ct107=cattle_with(unused3=DISK, vmid=107))
    wish = replace(ATTACH, takeover=True)
    steps = attach_plan(state, wish)
    assert steps == (
        Shutdown(106, "pve", 60),
        RemoveMount(106, "pve", "mp0", DISK),
        DropUnused(106, "pve", DISK),
        DropUnused(107, "pve", DISK),
        SET,
        SOLE,
    )
    state.run(steps)
    assert state.freed == []
    assert not any(DISK in value for value in state.guests[106].config.values())
    assert attach_plan(state, wish) == ()


@pytest.mark.parametrize("case", ["snapshot", "virtual machine"])
def test_a_takeover_does_not_break_what_cannot_be_undone(case: str) -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(), ct106=HOLDERS[case][0])
    with pytest.raises(errors.VolumeHeld):
        attach_plan(state, replace(ATTACH, takeover=True))


@pytest.mark.parametrize("more", [{"lock": "backup"}, {"template": "1"}])
def test_a_takeover_leaves_a_locked_holder_and_a_template_alone(more: dict[str, str]) -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(), ct106=Guest({"mp0": IN_CATTLE, **more}))
    with pytest.raises(errors.VolumeHeld):
        attach_plan(state, replace(ATTACH, takeover=True))


ATTACH_REFUSALS: dict[str, tuple[type[errors.Refusal], Model, AttachSpec, str]] = {
    "no such guest": (errors.GuestMissing, model(pet_with(ON_PET)), ATTACH, "There is no guest 105"),
    "other node": (
        errors.GuestElsewhere,
        model(pet_with(ON_PET), ct105=replace(cattle_with(), node="pve2")),
        ATTACH,
        "set the node to pve2",
    ),
    "locked": (errors.GuestLocked, model(pet_with(ON_PET), ct105=cattle_with(lock="create")), ATTACH, "(create)"),
    "volume missing": (
        errors.VolumeMissing,
        model(pet_with(ON_PET), ct105=cattle_with()),
        replace(ATTACH, volid="local-lvm:vm-999-disk-77"),
        "storage local-lvm does not list it",
    ),
    "declared owner is another": (
        errors.OwnerMismatch,
        model(pet_with(ON_PET), ct105=cattle_with()),
        replace(ATTACH, owner=998),
        "does not belong to guest 998",
    ),
    "order to allocate": (
        errors.AllocateSyntax,
        model(pet_with(ON_PET), ct105=cattle_with()),
        replace(ATTACH, volid="local-lvm:8"),
        "is not the name of an existing volume",
    ),
    "pet runs with it": (
        errors.PetRunning,
        model(pet_with(ON_PET, running=True), ct105=cattle_with()),
        ATTACH,
        "pct shutdown 999",
    ),
    "slot taken": (
        errors.SlotTaken,
        model(pet_with(ON_PET), ct105=cattle_with("local-lvm:vm-105-disk-1,mp=/data")),
        ATTACH,
        "mp0 of CT 105 holds local-lvm:vm-105-disk-1",
    ),
    "in another slot already": (
        errors.SlotTaken,
        model(pet_with(ON_PET), ct105=cattle_with(mp3=IN_CATTLE)),
        ATTACH,
        "as mp3",
    ),
    "in another slot after the next stop": (
        errors.SlotTaken,
        model(pet_with(ON_PET), ct105=Guest({"mp3": f"{OTHER},mp=/data"}, {"mp3": IN_CATTLE}, running=True)),
        ATTACH,
        "as mp3",
    ),
    "path taken": (
        errors.PathTaken,
        model(pet_with(ON_PET), ct105=cattle_with(mp3=f"{OTHER},mp=/home/hermes")),
        ATTACH,
        "mp3 mounts local-lvm:vm-999-disk-2",
    ),
    "slot taken by what waits": (
        errors.SlotTaken,
        model(pet_with(ON_PET), ct105=Guest({"hostname": "hermes"}, {"mp0": f"{OTHER},mp=/data"}, running=True)),
        ATTACH,
        "holds local-lvm:vm-999-disk-2",
    ),
}


@pytest.mark.parametrize("case", ATTACH_REFUSALS)
def test_an_attachment_that_cannot_be_is_refused(case: str) -> None:
    kind, state, wish, text = ATTACH_REFUSALS[case]
    with pytest.raises(kind) as refused:
        attach_plan(state, wish)
    assert text in str(refused.value)
    assert refused.value.why
    assert refused.value.remedy


def test_a_slot_that_is_no_slot_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no mount point key"):
        attach_plan(model(pet_with(ON_PET), ct105=cattle_with()), replace(ATTACH, slot="rootfs"))


def test_one_writer_cannot_be_proved_when_the_token_does_not_see_all() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with())
    cluster = replace(state.cluster(), sees_all=False)
    with pytest.raises(errors.HolderUnknown, match="who else uses"):
        plan_attach(state.guest(105), state.volume(DISK), cluster, ATTACH)


@pytest.mark.parametrize(("shared", "vmid", "refused"), [(True, 300, True), (False, 300, False), (False, 999, True)])
def test_a_guest_that_cannot_be_read_counts_where_it_could_reach_the_volume(
    shared: bool, vmid: int, refused: bool
) -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with())
    lost = (Listed(vmid, "lxc", "pve2", "", template=False, lock=None), "node pve2 is offline")
    storages = frozenset({"local-lvm"}) if shared else frozenset[str]()
    cluster = replace(state.cluster(), unreadable=(lost,), shared_storages=storages)
    if refused:
        with pytest.raises(errors.HolderUnknown, match=f"guest {vmid}"):
            plan_attach(state.guest(105), state.volume(DISK), cluster, ATTACH)
    else:
        assert plan_attach(state.guest(105), state.volume(DISK), cluster, ATTACH) == (SET, SOLE)


def test_an_unknown_power_state_counts_as_running() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with())
    guest = replace(known(state.guest(105)), running=None)
    assert plan_attach(guest, state.volume(DISK), state.cluster(), ATTACH) == (STOP, SET, SOLE, START)


def known(guest: GuestFacts | None) -> GuestFacts:
    assert guest is not None
    return guest


# Detachments.

DETACH = DetachSpec(105, DISK)
DETACH_PLANS: dict[str, tuple[Guest, DetachSpec, tuple[Step, ...]]] = {
    "running": (
        cattle_with(IN_CATTLE, running=True),
        DETACH,
        (STOP, RemoveMount(105, "pve", "mp0", DISK), DropUnused(105, "pve", DISK)),
    ),
    "stopped": (
        cattle_with(IN_CATTLE),
        DETACH,
        (RemoveMount(105, "pve", "mp0", DISK), DropUnused(105, "pve", DISK)),
    ),
    "cut off after the removal": (cattle_with(unused0=DISK, running=True), DETACH, (DropUnused(105, "pve", DISK),)),
    "nothing left": (cattle_with(), DETACH, ()),
    "the slot holds another volume now": (cattle_with(f"{OTHER},mp=/home/hermes", running=True), DETACH, ()),
    "the volume is in another slot": (cattle_with(mp1=IN_CATTLE), DETACH, ()),
}


@pytest.mark.parametrize("case", DETACH_PLANS)
def test_a_detachment_is_planned(case: str) -> None:
    cattle, wish, steps = DETACH_PLANS[case]
    state = model(pet_with(ON_PET), ct105=cattle)
    assert plan_detach(state.guest(105), wish) == steps
    state.run(steps)
    assert plan_detach(state.guest(105), wish) == ()
    assert state.freed == []
    assert DISK in state.volumes


def test_what_waits_to_be_attached_is_detached_too() -> None:
    state = model(pet_with(ON_PET), ct105=waiting(cattle_with(running=True)))
    steps = plan_detach(state.guest(105), DETACH)
    assert steps == (STOP, RemoveMount(105, "pve", "mp0", DISK), DropUnused(105, "pve", DISK))


def test_detaching_from_a_guest_that_is_gone_is_done() -> None:
    assert plan_detach(None, DETACH) == ()


def test_an_own_volume_is_never_detached_and_forgotten() -> None:
    # facts proxmox 3.1: deleting unusedN of an own volume frees it.
    with pytest.raises(errors.OwnerMismatch, match="belongs to CT 999 itself"):
        plan_detach(model(pet_with(ON_PET)).guest(999), DetachSpec(999, DISK))


def test_a_locked_guest_is_not_detached_from() -> None:
    with pytest.raises(errors.GuestLocked):
        plan_detach(model(None, ct105=cattle_with(IN_CATTLE, lock="backup")).guest(105), DETACH)


# Power and protection.


@pytest.mark.parametrize(
    ("now", "wanted", "steps"),
    [(True, True, ()), (False, False, ()), (False, True, (START,)), (True, False, (STOP,)), (None, True, (START,))],
)
def test_power(now: bool | None, wanted: bool, steps: tuple[Step, ...]) -> None:
    guest = replace(known(model(None, ct105=cattle_with()).guest(105)), running=now)
    assert plan_power(guest, PowerSpec(105, wanted)) == steps


def test_power_of_a_guest_that_is_gone() -> None:
    with pytest.raises(errors.GuestMissing, match="guest 105"):
        plan_power(None, PowerSpec(105))


def test_a_pet_does_not_start_beside_the_cattle_that_works_on_its_volume() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(IN_CATTLE, running=True))
    with pytest.raises(errors.VolumeBusy, match="CT 999 cannot start now") as refused:
        plan_power(state.guest(999), PowerSpec(999), state.cluster())
    assert "pct shutdown 105" in refused.value.remedy
    state.guests[105].running = False
    assert plan_power(state.guest(999), PowerSpec(999), state.cluster()) == (Start(999, "pve"),)


def test_two_that_attached_at_the_same_moment_see_each_other() -> None:
    state = model(pet_with(ON_PET), ct105=cattle_with(IN_CATTLE), ct106=cattle_with(IN_CATTLE, vmid=106))
    for vmid, other in ((105, 106), (106, 105)):
        with pytest.raises(errors.VolumeHeld) as refused:
            prove_sole(state.cluster(), DISK, vmid, 999)
        assert refused.value.holders == (other,)


def test_protection() -> None:
    assert plan_protection(known(model(pet_with()).guest(999))) == ()
    assert plan_protection(known(model(pet_with(protection="0")).guest(999))) == (Protect(999, "pve"),)


# Deleting a volume.


def removal(state: Model, confirmed: str | None = DISK, volid: str = DISK) -> tuple[Step, ...]:
    return plan_volume_removal(state.guest(999), state.cluster(), 999, volid, confirmed)


def test_a_volume_that_is_named_twice_is_detached_and_freed_with_protection_off_for_that_only() -> None:
    state = model(pet_with(ON_PET))
    steps = removal(state)
    assert steps == guarded(RemoveMount(999, "pve", "mp0", DISK), FreeVolume(999, "pve", DISK))
    state.run(steps)
    assert state.freed == [DISK]
    assert removal(state) == ()


def test_a_removal_that_was_cut_off_is_finished() -> None:
    assert removal(model(pet_with(unused0=DISK))) == guarded(FreeVolume(999, "pve", DISK))
    assert removal(model(pet_with(protection="0"))) == (Protect(999, "pve"),)
    assert removal(model(None)) == ()


REMOVAL_REFUSALS: dict[str, tuple[type[errors.Refusal], Model, str | None, str]] = {
    "not confirmed": (errors.DeletionNotConfirmed, model(pet_with(ON_PET)), None, "confirm exactly"),
    "another one confirmed": (errors.DeletionNotConfirmed, model(pet_with(ON_PET)), OTHER, "confirm exactly"),
    "held": (
        errors.VolumeHeld,
        model(pet_with(ON_PET), ct105=cattle_with(IN_CATTLE)),
        DISK,
        "CT 105 'hermes' on node pve (stopped) names it in mp0",
    ),
    "in the pet's own snapshot": (errors.VolumeHeld, model(snapshot(pet_with(ON_PET))), DISK, "delsnapshot 999 before"),
    "the pet runs": (errors.PetRunning, model(pet_with(ON_PET, running=True)), DISK, "pct shutdown 999"),
    "locked": (errors.GuestLocked, model(pet_with(ON_PET, lock="snapshot")), DISK, "(snapshot)"),
    "root file system": (errors.SlotTaken, model(Guest({"rootfs": DISK})), DISK, "root file system"),
}


@pytest.mark.parametrize("case", REMOVAL_REFUSALS)
def test_a_removal_that_must_not_be_is_refused(case: str) -> None:
    kind, state, confirmed, text = REMOVAL_REFUSALS[case]
    with pytest.raises(kind) as refused:
        removal(state, confirmed)
    assert text in str(refused.value)


def test_a_volume_of_another_guest_is_never_removed() -> None:
    with pytest.raises(errors.OwnerMismatch):
        removal(model(pet_with(ON_PET)), volid="local-lvm:vm-105-disk-0")


# Texts.

TEXTS: dict[str, tuple[Step, str]] = {
    "shutdown": (STOP, "CT 105: shut down (killed after 60 s)"),
    "start": (START, "CT 105: start"),
    "set": (SET, f"CT 105: set mp0 to {DISK},mp=/home/hermes,backup=0"),
    "prove": (SOLE, f"CT 105: see that nobody else uses {DISK}"),
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
