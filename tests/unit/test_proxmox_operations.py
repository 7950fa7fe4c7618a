"""Operations on a server that is written down: waiting for locks, and results that somebody else spoils."""

from __future__ import annotations

from typing import Any

import pytest

from proxmox import errors
from proxmox.operations import (
    attach,
    detach,
    ensure_power,
    ensure_volume,
    preview_removal,
    preview_volume,
    read_attachment,
    read_volume_state,
)
from proxmox.planning import AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from tests.unit.proxmox_http import UPID, Answer, Server, containers, data, entries, power

DISK = "local-lvm:vm-999-disk-1"
ON_PET = {"protection": 1, "mp0": f"{DISK},mp=/v,backup=1,size=1G"}
WISH = VolumeSpec("hermes", 999, "local-lvm", 1, "/v")
ATTACH = AttachSpec(105, "pve", DISK, "/home/hermes", 999, options="")
IN_CATTLE = f"{DISK},mp=/home/hermes"


def server(**routes: Any) -> Server:
    """A pet with a volume and a stopped cattle; `routes` replaces by "VERB_vmid_last-part-of-the-path"."""
    replaced = {}
    for name, answer in routes.items():
        verb, vmid, last = name.split("_", 2)
        replaced[f"{verb} /nodes/pve/lxc/{vmid}/{last.replace('_', '/')}"] = answer
    return Server(
        {
            "GET /cluster/nextid": data("300"),
            "GET /nodes": data([{"node": "pve", "status": "online"}]),
            "GET /nodes/pve/storage": data([]),
            "GET /nodes/pve/storage/local-lvm/content": data([{"volid": DISK, "size": 1 << 30}]),
            "GET /access/permissions": data({"/vms": {"VM.Audit": 1}}),
            f"GET /nodes/pve/tasks/{UPID}/status": data({"status": "stopped", "exitstatus": "OK"}),
            **containers({999: ON_PET, 105: {"mp0": IN_CATTLE}}, running={105}),
            "PUT /nodes/pve/lxc/999/config": data(None),
            "PUT /nodes/pve/lxc/105/config": data(None),
            "POST /nodes/pve/lxc/105/status/start": data(UPID),
            **replaced,
        }
    )


def test_a_lock_that_goes_away_is_waited_for() -> None:
    locked, free = entries(**ON_PET, lock="backup"), entries(**ON_PET)
    there = server(GET_999_pending=[locked, free], GET_999_status_current=[power(False, "backup")] * 3 + [power(False)])
    lines: list[str] = []
    assert ensure_volume(there.client(), WISH, lines.append).volid == DISK
    assert lines == ["CT 999 is locked (backup): waiting"]
    assert 0 < sum(there.slept) < 10


def test_a_lock_that_stays_is_told_after_the_deadline() -> None:
    there = server(GET_999_pending=entries(**ON_PET, lock="create"), GET_999_status_current=power(False, "create"))
    with pytest.raises(errors.GuestLocked, match="create"):
        ensure_volume(there.client(), WISH)
    assert 100 < sum(there.slept) <= 120


def test_preview_waits_for_nothing() -> None:
    there = server(GET_999_pending=entries(**ON_PET, lock="create"))
    with pytest.raises(errors.GuestLocked):
        preview_volume(there.client(), WISH)
    assert there.slept == []


def test_a_locked_guest_that_is_gone_before_it_is_waited_for_is_refused() -> None:
    there = server(GET_999_pending=entries(**ON_PET, lock="destroyed"))
    listed = data([{"vmid": 999, "type": "lxc", "node": "pve"}])
    there.routes["GET /cluster/resources"] = iter([listed, listed, data([])])
    with pytest.raises(errors.GuestLocked):
        ensure_volume(there.client(), WISH)


def test_without_a_pet_there_is_nothing_to_make_a_volume_on() -> None:
    there = server()
    there.routes["GET /cluster/resources"] = lambda _request: data([])
    client = there.client()
    with pytest.raises(errors.GuestMissing):
        ensure_volume(client, WISH)
    assert read_volume_state(client, 999, DISK) is None
    assert read_attachment(client, 105, "mp0") is None
    detach(client, DetachSpec(105, DISK))
    assert preview_removal(client, 999, DISK, None) == ()
    with pytest.raises(errors.GuestMissing):
        ensure_power(client, PowerSpec(105))
    assert there.count("PUT") + there.count("POST") == 0


def test_a_volume_that_the_pet_does_not_mount_or_the_storage_does_not_list_has_no_state() -> None:
    assert read_volume_state(server().client(), 999, "local-lvm:vm-999-disk-7") is None
    there = server()
    there.routes["GET /nodes/pve/storage/local-lvm/content"] = lambda _request: data([])
    assert read_volume_state(there.client(), 999, DISK) is None


@pytest.mark.parametrize("volid", ["local-lvm:8", "/mnt/data", "local-lvm:data", "nonsense"])
def test_what_is_no_volume_is_refused_before_a_storage_is_asked(volid: str) -> None:
    there = server()
    with pytest.raises((errors.AllocateSyntax, errors.OwnerMismatch)):
        ensure_volume(there.client(), VolumeSpec("x", 999, "local-lvm", 1, "/x", volid))
    assert not any("content" in asked.path for asked in there.asked)


def test_a_volume_that_vanishes_at_the_end_is_told() -> None:
    there = server(GET_999_pending=[entries(**ON_PET), entries(**ON_PET), entries(protection=1)])
    with pytest.raises(errors.NotAsPlanned, match="is not on CT 999 after the run"):
        ensure_volume(there.client(), WISH)


@pytest.mark.parametrize("last", [entries(), entries(mp0=f"{DISK},mp=/elsewhere")])
def test_an_attachment_that_is_spoiled_at_the_end_is_told(last: Answer) -> None:
    there = server(GET_105_pending=[entries(mp0=IN_CATTLE), last])
    with pytest.raises(errors.NotAsPlanned, match="as declared after the run"):
        attach(there.client(), ATTACH)


def test_an_attachment_is_told_as_it_is() -> None:
    waiting = data([{"key": "mp0", "value": f"{IN_CATTLE},ro=1", "delete": 1}])
    state = read_attachment(server(GET_105_pending=waiting).client(), 105, "mp0")
    assert state is not None
    assert (state.options, state.running, state.pending) == ({"ro": "1"}, True, True)
    assert read_attachment(server().client(), 105, "mp1") is None


def test_a_pet_is_not_started_beside_its_running_cattle() -> None:
    there = server()
    with pytest.raises(errors.VolumeBusy, match="CT 999 cannot start now"):
        ensure_power(there.client(), PowerSpec(999))
    assert there.count("POST") == 0


def test_a_guest_without_volumes_is_started_without_reading_the_others() -> None:
    there = server(GET_105_pending=entries(), GET_105_status_current=[power(False), power(False), power(True)])
    ensure_power(there.client(), PowerSpec(105))
    assert there.count("POST") == 1
    assert not any("999" in asked.path for asked in there.asked)
