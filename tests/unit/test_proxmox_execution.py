"""The executors against a server that does not do what it said: what was not done is not taken for done."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from proxmox import errors
from proxmox.execution import execute
from proxmox.mountpoint import MountPoint
from proxmox.planning import (
    GIB,
    Allocate,
    DropUnused,
    FreeVolume,
    Grow,
    Protect,
    ProveSole,
    RemoveMount,
    SetMount,
    Shutdown,
    Start,
    Step,
    Unprotected,
)
from tests.unit.proxmox_http import UPID, Answer, Request, Server, data, die

DISK = "local-lvm:vm-999-disk-1"
SET = SetMount(105, "pve", "mp0", MountPoint(DISK, "/home/hermes", {"backup": "0"}))
IN_CATTLE = f"{DISK},mp=/home/hermes,backup=0,size=8G"


class Cluster:
    """Containers as dictionaries, behind HTTP. `on_put` may spoil a write: it gets the guest and the request."""

    def __init__(self, guests: dict[int, dict[str, str]], running: frozenset[int] = frozenset()) -> None:
        self.guests = guests
        self.pending: dict[int, dict[str, str]] = {vmid: {} for vmid in guests}
        self.running = set(running)
        self.sizes = {DISK: 8 * GIB}
        self.log: list[str] = []
        self.on_put: Callable[[int, Request], Answer | None] = lambda _vmid, _request: None
        self.on_power: Callable[[int, str], None] = lambda _vmid, _verb: None
        routes: dict[str, Any] = {
            "GET /cluster/resources": lambda _: data([{"vmid": v, "type": "lxc", "node": "pve"} for v in self.guests]),
            "GET /nodes": data([{"node": "pve", "status": "online"}]),
            "GET /nodes/pve/storage": data([{"storage": "local-lvm"}]),
            "GET /access/permissions": data({"/vms": {"VM.Audit": 1}}),
            f"GET /nodes/pve/tasks/{UPID}/status": data({"status": "stopped", "exitstatus": "OK"}),
            f"GET /nodes/pve/tasks/{UPID}/log": lambda _: data([{"n": 1, "t": text} for text in self.log]),
            "GET /nodes/pve/storage/local-lvm/content": lambda _: data(
                [{"volid": volid, "size": size} for volid, size in self.sizes.items()]
            ),
        }
        for vmid in guests:
            base = f"/nodes/pve/lxc/{vmid}"
            routes[f"GET {base}/pending"] = self._guarded(vmid, self._entries)
            routes[f"GET {base}/snapshot"] = data([])
            routes[f"GET {base}/status/current"] = self._guarded(vmid, self._status)
            routes[f"PUT {base}/config"] = self._guarded(vmid, self._put)
            routes[f"PUT {base}/resize"] = data(UPID)
            for verb in ("start", "shutdown"):
                routes[f"POST {base}/status/{verb}"] = self._power(vmid, verb)
        self.server = Server(routes)

    def run(self, *steps: Step) -> list[str]:
        lines: list[str] = []
        execute(self.server.client(), steps, lines.append)
        return lines

    def _guarded(self, vmid: int, what: Callable[[int, Request], Answer]) -> Callable[[Request], Answer]:
        gone = die(f"Configuration file 'nodes/pve/lxc/{vmid}.conf' does not exist")
        return lambda request: what(vmid, request) if vmid in self.guests else gone

    def _entries(self, vmid: int, _request: Request) -> Answer:
        config, pending = self.guests[vmid], self.pending[vmid]
        rows: dict[str, dict[str, Any]] = {key: {"key": key, "value": value} for key, value in config.items()}
        for key, value in pending.items():
            rows.setdefault(key, {"key": key})["pending"] = value
        return data([*rows.values(), {"key": "digest", "value": self._digest(vmid)}])

    def _digest(self, vmid: int) -> str:
        return str(abs(hash(tuple(sorted(self.guests[vmid].items())))))

    def _status(self, vmid: int, _request: Request) -> Answer:
        return data({"status": "running" if vmid in self.running else "stopped"})

    def _put(self, vmid: int, request: Request) -> Answer:
        spoiled = self.on_put(vmid, request)
        if spoiled is not None:
            return spoiled
        values = dict(request.values)
        config = self.guests[vmid]
        if values.pop("digest", self._digest(vmid)) != self._digest(vmid):
            return die("detected modified configuration - file changed by other user? Try again.")
        drive = any(re.match("mp|unused", key) for key in [*values, *values.get("delete", "").split(",")])
        if drive and config.get("protection") == "1":
            return die(f"can't update CT {vmid} drive 'mp0' - protection mode enabled")
        for key in filter(None, values.pop("delete", "").split(",")):
            old = config.pop(key, None)
            if old is not None and key.startswith("mp"):
                config["unused0"] = MountPoint.parse(old).volume
        for key, value in values.items():
            made = re.sub(r"^local-lvm:[\d.]+,", f"local-lvm:vm-{vmid}-disk-7,", value)
            config[key] = made
        return data(None)

    def _power(self, vmid: int, verb: str) -> Callable[[Request], Answer]:
        def act(_request: Request) -> Answer:
            (self.running.add if verb == "start" else self.running.discard)(vmid)
            self.on_power(vmid, verb)
            return data(UPID)

        return act

    def writes(self) -> list[dict[str, str]]:
        """What was sent to change configurations, digests left out."""
        return [
            {key: value for key, value in asked.values.items() if key != "digest"}
            for asked in self.server.asked
            if asked.method == "PUT"
        ]


def pet(**more: str) -> Cluster:
    return Cluster({999: {"protection": "1", **more}})


def cattle(running: bool = False, **more: str) -> Cluster:
    return Cluster({105: {"hostname": "hermes", **more}}, frozenset({105}) if running else frozenset())


# A step that is done is not done again.

DONE: dict[str, tuple[Callable[[], Cluster], Step]] = {
    "mount": (lambda: cattle(mp0=IN_CATTLE), SET),
    "removal": (cattle, RemoveMount(105, "pve", "mp0", DISK)),
    "removal of what is another volume now": (
        lambda: cattle(mp0="local-lvm:vm-999-disk-2,mp=/d"),
        RemoveMount(105, "pve", "mp0", DISK),
    ),
    "forgetting": (lambda: cattle(unused0="local-lvm:vm-999-disk-2"), DropUnused(105, "pve", DISK)),
    "freeing": (pet, FreeVolume(999, "pve", DISK)),
    "protection": (pet, Protect(999, "pve")),
    "allocation": (
        lambda: pet(mp0=f"{DISK},mp=/v,backup=1,size=8G"),
        Allocate(999, "pve", "mp0", "local-lvm", 8 * GIB, "/v"),
    ),
    "shutdown": (cattle, Shutdown(105, "pve")),
    "start": (lambda: cattle(running=True), Start(105, "pve")),
}


@pytest.mark.parametrize("case", DONE)
def test_what_is_done_already_sends_nothing(case: str) -> None:
    make, step = DONE[case]
    cluster = make()
    cluster.run(step)
    assert cluster.server.count("PUT") + cluster.server.count("POST") == 0


# A step that no longer fits is not done.

CHANGED: dict[str, tuple[Callable[[], Cluster], Step, str]] = {
    "another volume in the slot": (lambda: cattle(mp0="local-lvm:vm-999-disk-2,mp=/d"), SET, "vm-999-disk-2"),
    "another volume where one is to be allocated": (
        lambda: pet(mp0=f"{DISK},mp=/other"),
        Allocate(999, "pve", "mp0", "local-lvm", GIB, "/v"),
        DISK,
    ),
    "a stranger's volume where one is to be allocated": (
        lambda: pet(mp0="local-lvm:vm-998-disk-1,mp=/v"),
        Allocate(999, "pve", "mp0", "local-lvm", GIB, "/v"),
        "vm-998-disk-1",
    ),
    "another volume to be grown": (
        lambda: pet(mp0="local-lvm:vm-999-disk-2,mp=/v"),
        Grow(999, "pve", "mp0", DISK, GIB, 2 * GIB),
        "vm-999-disk-2",
    ),
    "nothing to be grown": (pet, Grow(999, "pve", "mp0", DISK, GIB, 2 * GIB), "nothing"),
    "an own volume to be forgotten": (lambda: pet(unused0=DISK), DropUnused(999, "pve", DISK), "not proved"),
    "a volume of nobody's to be forgotten": (
        lambda: cattle(unused0="local-lvm:data"),
        DropUnused(105, "pve", "local-lvm:data"),
        "not proved",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_no_longer_fits_is_refused_before_a_write(case: str) -> None:
    make, step, text = CHANGED[case]
    cluster = make()
    with pytest.raises(errors.NotAsPlanned, match=re.escape(text)):
        cluster.run(step)
    assert cluster.server.count("PUT") + cluster.server.count("POST") == 0


def test_a_slot_with_a_change_that_waits_is_not_allocated_in() -> None:
    cluster = pet()
    cluster.pending[999]["mp0"] = f"{DISK},mp=/x"
    with pytest.raises(errors.NotAsPlanned, match="pending"):
        cluster.run(Allocate(999, "pve", "mp0", "local-lvm", GIB, "/v"))


def test_a_guest_that_goes_away_is_told_as_such() -> None:
    cluster = cattle()
    cluster.guests.clear()
    with pytest.raises(errors.GuestMissing, match="has gone away"):
        cluster.run(SET)


# Reading back.


def test_a_change_that_waits_is_a_failure() -> None:
    # field-reports A12: PUT on a running container answers 200 and changes nothing until the next stop.
    cluster = cattle(running=True)

    def keep_waiting(vmid: int, request: Request) -> Answer:
        cluster.pending[vmid]["mp0"] = request.values["mp0"]
        return data(None)

    cluster.on_put = keep_waiting
    with pytest.raises(errors.NotAsPlanned, match="is not as it should be"):
        cluster.run(SET)


def test_a_mount_that_is_there_and_waits_to_be_removed_is_not_done() -> None:
    cluster = cattle(mp0=IN_CATTLE)
    cluster.pending[105]["mp0"] = f"{DISK},mp=/elsewhere"
    cluster.on_put = lambda _vmid, _request: data(None)
    with pytest.raises(errors.NotAsPlanned):
        cluster.run(SET)


def test_what_is_sent_for_an_existing_volume_has_no_size() -> None:
    cluster = cattle()
    cluster.run(SET)
    assert cluster.writes() == [{"mp0": f"{DISK},mp=/home/hermes,backup=0"}]


def test_somebody_elses_change_between_reading_and_writing_is_seen() -> None:
    cluster = cattle()
    others = [{"cores": "2"}, {"cores": "3"}]

    def meddle(vmid: int, _request: Request) -> Answer | None:
        if others:
            cluster.guests[vmid].update(others.pop())
        return None

    cluster.on_put = meddle
    cluster.run(SET)
    assert MountPoint.parse(cluster.guests[105]["mp0"]).volume == DISK
    assert cluster.server.count("PUT") == 3


def test_somebody_who_never_stops_meddling_ends_it() -> None:
    cluster = cattle()

    def meddle(vmid: int, _request: Request) -> None:
        cluster.guests[vmid]["cores"] = cluster.guests[vmid].get("cores", "") + "1"

    cluster.on_put = meddle
    with pytest.raises(errors.ConfigChanged, match="refused PUT"):
        cluster.run(SET)
    assert "mp0" not in cluster.guests[105]


def test_somebody_who_took_the_slot_meanwhile_keeps_it() -> None:
    cluster = cattle()

    def take(vmid: int, _request: Request) -> None:
        cluster.guests[vmid]["mp0"] = "local-lvm:vm-105-disk-1,mp=/mine"

    cluster.on_put = take
    with pytest.raises(errors.NotAsPlanned, match="vm-105-disk-1"):
        cluster.run(SET)
    assert cluster.guests[105]["mp0"] == "local-lvm:vm-105-disk-1,mp=/mine"


# Power.


@pytest.mark.parametrize(("step", "running"), [(Start(105, "pve"), False), (Shutdown(105, "pve"), True)])
def test_a_power_state_that_does_not_stay_is_a_failure(step: Step, running: bool) -> None:
    cluster = cattle(running=running)
    undo = cluster.running.add if running else cluster.running.discard
    cluster.on_power = lambda vmid, _verb: undo(vmid)
    with pytest.raises(errors.NotAsPlanned, match="although its task ended well"):
        cluster.run(step)


def test_progress_has_a_line_for_each_step() -> None:
    cluster = cattle(running=True)
    lines = cluster.run(Shutdown(105, "pve"), SET, Start(105, "pve"))
    assert lines == [
        "CT 105: shut down (killed after 60 s)",
        f"CT 105: set mp0 to {DISK},mp=/home/hermes,backup=0",
        "CT 105: start",
    ]


# Protection.

ALLOCATE = Allocate(999, "pve", "mp0", "local-lvm", 8 * GIB, "/v")


def test_protection_comes_off_for_the_one_call_only() -> None:
    cluster = pet()
    lines = cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert cluster.writes() == [
        {"protection": "0"},
        {"mp0": "local-lvm:8,mp=/v,backup=1"},
        {"protection": "1"},
    ]
    assert lines == [
        "CT 999: allocate 8G on local-lvm as mp0 at /v",
        "CT 999: mp0 is local-lvm:vm-999-disk-7",
    ]


def test_protection_is_back_on_after_a_failure_and_the_failure_is_the_one_that_is_told() -> None:
    cluster = pet()
    cluster.on_put = lambda _vmid, request: die("lvcreate failed") if "mp0" in request.values else None
    with pytest.raises(errors.ApiError, match="lvcreate failed"):
        cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert cluster.guests[999]["protection"] == "1"


def test_when_protection_cannot_be_restored_both_failures_are_told() -> None:
    cluster = pet()
    cluster.on_put = lambda _vmid, request: (
        None if request.values.get("protection") == "0" else die("cluster not ready - no quorum?")
    )
    with pytest.raises(errors.ApiError, match="PUT") as told:
        cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert "could not be switched on again" in str(told.value)


def test_another_run_that_switches_protection_on_meanwhile_does_not_end_ours() -> None:
    cluster = pet()
    others = ["on", "on"]

    def switch_on(vmid: int, request: Request) -> None:
        if "mp0" in request.values and others:
            cluster.guests[vmid]["protection"] = others.pop() and "1"
            request.values.pop("digest")  # type: ignore[attr-defined]

    cluster.on_put = switch_on
    cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert MountPoint.parse(cluster.guests[999]["mp0"]).path == "/v"
    assert cluster.guests[999]["protection"] == "1"


def test_protection_that_does_not_stay_off_ends_it() -> None:
    cluster = pet()
    cluster.on_put = lambda _vmid, request: die("- protection mode enabled") if "mp0" in request.values else None
    with pytest.raises(errors.ProtectionOn):
        cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert cluster.guests[999]["protection"] == "1"


def test_an_interrupted_run_switches_protection_on() -> None:
    cluster = pet()

    def interrupt(_vmid: int, request: Request) -> None:
        if "mp0" in request.values:
            raise KeyboardInterrupt

    cluster.on_put = interrupt
    with pytest.raises(KeyboardInterrupt):
        cluster.run(Unprotected(999, "pve", (ALLOCATE,)))
    assert cluster.guests[999]["protection"] == "1"


# Growing.

GROW = Grow(999, "pve", "mp0", DISK, 8 * GIB, 10 * GIB)


def grown(size: int) -> Cluster:
    cluster = pet(mp0=f"{DISK},mp=/v,size=8G")
    cluster.sizes[DISK] = size
    return cluster


def test_a_volume_that_grew_is_seen_to_have_grown() -> None:
    cluster = grown(10 * GIB)
    cluster.run(GROW)
    assert cluster.writes() == [{"disk": "mp0", "size": "10G"}]


def test_a_volume_that_did_not_grow_is_a_failure() -> None:
    with pytest.raises(errors.NotAsPlanned, match="8G"):
        grown(8 * GIB).run(GROW)
    cluster = grown(8 * GIB)
    cluster.sizes.clear()
    with pytest.raises(errors.NotAsPlanned, match="lists nothing"):
        cluster.run(GROW)


def test_a_device_that_grew_without_its_file_system_is_a_failure() -> None:
    # facts proxmox 9: the file system's failure is a line in the log of a task that ends with OK.
    cluster = grown(10 * GIB)
    cluster.log = ["Failed to update the container's filesystem: command 'e2fsck -f -y /dev/x' failed: exit code 8"]
    with pytest.raises(errors.NotAsPlanned, match="e2fsck -f PATH") as told:
        cluster.run(GROW)
    assert "exit code 8" in told.value.why


# Two at once.


def both() -> Cluster:
    return Cluster({999: {"mp0": f"{DISK},mp=/v"}, 105: {"mp0": IN_CATTLE}, 106: {"mp0": IN_CATTLE}})


SOLE = ProveSole(105, "pve", "mp0", DISK, 999)


def test_who_sees_another_takes_its_own_mount_back_and_leaves_the_other_alone() -> None:
    cluster = both()
    with pytest.raises(errors.VolumeHeld, match="held by guest 106"):
        cluster.run(SOLE)
    assert cluster.guests[105] == {}
    assert cluster.guests[106] == {"mp0": IN_CATTLE}


def test_who_cannot_take_it_back_says_so() -> None:
    cluster = both()
    cluster.on_put = lambda _vmid, _request: die("cluster not ready - no quorum?")
    with pytest.raises(errors.VolumeHeld) as told:
        cluster.run(SOLE)
    assert any("still names it" in note for note in told.value.__notes__)


def test_who_is_alone_goes_on() -> None:
    cluster = both()
    del cluster.guests[106]
    cluster.run(SOLE)
    assert cluster.guests[105] == {"mp0": IN_CATTLE}


def test_a_step_that_nobody_can_do_is_a_mistake_of_the_programmer() -> None:
    class Dance(Start):
        """A kind of start; Step itself has no executor."""

    cluster = cattle()
    cluster.run(Dance(105, "pve"))
    assert 105 in cluster.running

    class Unknown(Step):
        def describe(self) -> str:
            return "?"

    with pytest.raises(NotImplementedError, match="no executor for Unknown"):
        cluster.run(Unknown(105, "pve"))
