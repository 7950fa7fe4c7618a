"""What is done on purpose only: handing a volume over, taking it away from its holder, deleting it."""

from __future__ import annotations

from lab.stacks import make_stack
from tests.lifecycle.homesite import CATTLE, PET, Site, assert_plain
from tests.lifecycle.test_refusals import refused

VOLID = f"local-lvm:vm-{PET}-disk-1"
OTHER_VOLID = f"local-lvm:vm-{PET}-disk-2"
ALICE = 106
HERMES = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}
OTHER = {"name": "other", "storage": "local-lvm", "size": 1, "path": "/mnt/other"}
MOUNT = f"PUT {ALICE}/config mp0={VOLID},mp=/home/hermes,mountoptions=nodev;nosuid"
START = f"POST {ALICE}/status/start"


def second_cattle(site: Site) -> None:
    """The settings of a second cattle, which wants the first one's volume. One file serves all stacks of a site."""
    make_stack(site.lab, "cattle-alice")
    site.configure(cattleVmid=ALICE, cattleHostname="alice")


def test_a_volume_is_handed_over_without_a_copy(with_both: Site) -> None:
    """Refused while it is held; once the holder is gone, the same bytes are at the new one."""
    with_both.write_data(VOLID, "alice's inheritance")
    before, volumes = with_both.data(VOLID), with_both.node.volumes()
    second_cattle(with_both)
    refused(with_both, "cattle-alice", "preview", VOLID, f"guest {CATTLE}", "held by")

    with_both.configure(cattleVmid=CATTLE, cattleHostname="hermes")
    with_both.destroy("cattle")
    with_both.configure(cattleVmid=ALICE, cattleHostname="alice")
    with_both.up("cattle-alice")
    assert with_both.node.config(ALICE)["mp0"].startswith(f"{VOLID},mp=/home/hermes")
    assert with_both.node.running(ALICE)
    assert with_both.data(VOLID) == before
    owned = {volid: size for volid, size in with_both.node.volumes().items() if f"vm-{PET}-" in volid}
    assert owned == {volid: size for volid, size in volumes.items() if f"vm-{PET}-" in volid}


def test_a_volume_is_taken_away_only_when_it_is_named_and_that_is_told(with_both: Site) -> None:
    with_both.write_data(VOLID, "what the first one wrote")
    before = with_both.data(VOLID)
    second_cattle(with_both)
    # Naming another one is no leave for this one.
    with_both.configure(cattleTakeOver=OTHER_VOLID)
    refused(with_both, "cattle-alice", "preview", VOLID, f"guest {CATTLE}")

    with_both.configure(cattleTakeOver=VOLID)
    run = with_both.up("cattle-alice")
    holder = [write for write in with_both.writes if f" {CATTLE}/" in write]
    assert holder == [
        f"POST {CATTLE}/status/shutdown forceStop=1 timeout=60",
        f"PUT {CATTLE}/config delete=mp0",
        f"PUT {CATTLE}/config delete=unused0",
    ]
    assert [write for write in with_both.writes if write in (MOUNT, START)] == [MOUNT, START]
    told = "\n".join(run.messages)
    assert f"CT {CATTLE}: shut down" in told
    assert f"CT {CATTLE}: detach {VOLID}" in told
    assert with_both.data(VOLID) == before
    assert "mp0" not in with_both.node.config(CATTLE)

    # The first one does not take it back by itself.
    with_both.configure(cattleVmid=CATTLE, cattleHostname="hermes", cattleTakeOver=None)
    refused(with_both, "cattle", "preview", VOLID, f"guest {ALICE}")


def test_a_volume_is_deleted_only_when_it_is_named_twice(with_pet: Site) -> None:
    with_pet.write_data(VOLID, "what stays")
    before = with_pet.data(VOLID)
    with_pet.configure(petVolumes=[HERMES, OTHER])
    with_pet.up("pet")

    # Wished for and deleted at once.
    with_pet.configure(petDeleteVolumes=[OTHER_VOLID])
    refused(with_pet, "pet", "preview", OTHER_VOLID, "is the volume other: a declared volume")

    # Somebody refers to it.
    with_pet.configure(petVolumes=[HERMES])
    with_pet.node.make_stranger(200)
    with_pet.node.set(200, mp0=f"{OTHER_VOLID},mp=/data")
    refused(with_pet, "pet", "preview", OTHER_VOLID, "guest 200|CT 200")
    with_pet.node.set(200, delete="mp0")
    with_pet.node.set(200, delete="unused0")

    run = with_pet.preview("pet")
    assert run.span(f"pet-delete-{OTHER_VOLID}").op == "create"
    assert with_pet.writes == []
    with_pet.up("pet")
    assert OTHER_VOLID not in with_pet.node.volumes()
    assert with_pet.data(VOLID) == before
    assert with_pet.node.config(PET)["protection"] == 1
    assert [key for key in with_pet.node.config(PET) if key.startswith("unused")] == []

    # Out of the settings again, it is over; and a second run of any of this does nothing.
    with_pet.configure(petDeleteVolumes=None)
    run = with_pet.up("pet")
    assert with_pet.writes == []
    assert_plain(run)


def test_what_the_pet_does_not_own_is_not_deleted(with_pet: Site) -> None:
    with_pet.node.make_stranger(200)
    theirs = with_pet.node.config(200)["rootfs"].split(",")[0]
    with_pet.configure(petDeleteVolumes=[theirs])
    refused(with_pet, "pet", "preview", theirs)
