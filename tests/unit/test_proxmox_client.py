"""The client: answers read, errors told, attempts repeated, nothing done twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proxmox import client as client_module
from proxmox import errors
from proxmox.client import Address, Permissions, Proxmox, Timings
from tests.unit.proxmox_http import CONNECTION, LOCKED, LOST, SECRET, UPID, Answer, Request, Server, data, die


@pytest.fixture(autouse=True)
def _nobody_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on those before it."""
    monkeypatch.setattr(client_module, "_ANSWERED", set())


CONFIG = "/nodes/pve/lxc/105/config"
STATUS = "/nodes/pve/lxc/105/status"
TASK = f"/nodes/pve/tasks/{UPID}"
NO_GUEST = "Configuration file 'nodes/pve/lxc/105.conf' does not exist"


def status(running: bool) -> Answer:
    return data({"status": "running" if running else "stopped", "vmid": 105})


def ended(how: str) -> Answer:
    return data({"status": "stopped", "exitstatus": how})


# Reading.


def test_the_token_goes_into_the_header_and_nowhere_else() -> None:
    server = Server({"GET /version": data({"version": "9.2.11", "release": "9.2"})})
    client = server.client()
    assert client.version().major == 9
    assert server.headers[0]["Authorization"] == f"PVEAPIToken=pulumi@pve!ci={SECRET}"
    assert SECRET not in repr(client) + repr(client.connection)


def test_the_configuration_is_read_as_texts() -> None:
    server = Server(
        {
            f"GET {CONFIG}": data(
                {"cores": 2, "onboot": True, "cpulimit": "1", "lxc": [["lxc.a", "b"], ["lxc.c", "d"]], "digest": "f7"}
            )
        }
    )
    assert server.client().guest_config("pve", 105) == {
        "cores": "2",
        "onboot": "1",
        "cpulimit": "1",
        "lxc": "lxc.a: b\nlxc.c: d",
        "digest": "f7",
    }
    assert server.asked[0].values == {"current": "1"}


def test_what_waits_is_read_beside_what_is_in_effect() -> None:
    rows = [
        {"key": "mp0", "value": "a", "delete": 1},
        {"key": "cores", "value": 2},
        {"key": "mp1", "value": "b", "pending": "c"},
    ]
    found = Server({"GET /nodes/pve/lxc/105/pending": data(rows)}).client().guest_pending("pve", 105)
    assert [(entry.key, entry.value, entry.pending, entry.delete) for entry in found] == [
        ("cores", "2", None, False),
        ("mp0", "a", None, True),
        ("mp1", "b", "c", False),
    ]


def test_a_number_is_taken_when_nextid_says_so() -> None:
    # facts proxmox 12: 400 errors.vmid.
    taken = die("Parameter verification failed.", 400, {"vmid": "VM 105 already exists"})
    assert Server({"GET /cluster/nextid": taken}).client().vmid_taken(105)
    assert not Server({"GET /cluster/nextid": data("105")}).client().vmid_taken(105)
    wrong = die("Parameter verification failed.", 400, {"vmid": "invalid format"})
    with pytest.raises(errors.ParametersRejected, match="nextid"):
        Server({"GET /cluster/nextid": wrong}).client().vmid_taken(99)


def test_interfaces_tell_addresses_and_a_stopped_guest_has_none() -> None:
    path = "GET /nodes/pve/lxc/105/interfaces"
    listed = [
        {
            "name": "eth0",
            "hardware-address": "bc:24:11:00:00:01",
            "ip-addresses": [{"ip-address": "10.0.0.5", "ip-address-type": "inet", "prefix": 24}],
        }
    ]
    found = Server({path: data(listed)}).client().interfaces("pve", 105)
    assert found[0].hwaddr == "bc:24:11:00:00:01"
    assert found[0].addresses == (Address("inet", "10.0.0.5", 24),)
    older = [{"name": "eth0", "hwaddr": "x", "inet": "10.0.0.5/24", "inet6": "fe80::1/64"}]
    addresses = Server({path: data(older)}).client().interfaces("pve", 105)[0].addresses
    assert addresses == (Address("inet", "10.0.0.5", 24), Address("inet6", "fe80::1", 64))
    assert Server({path: data(None)}).client().interfaces("pve", 105) == ()


def test_snapshots_leave_out_the_present() -> None:
    rows = [{"name": "current"}, {"name": "b"}, {"name": "a"}]
    assert Server({"GET /nodes/pve/lxc/105/snapshot": data(rows)}).client().guest_snapshots("pve", 105) == ("a", "b")


def test_bridges_that_may_not_be_listed_are_unknown() -> None:
    denied = die("Permission check failed", 403)
    assert Server({"GET /nodes/pve/network": denied}).client().networks("pve") is None
    rows = [{"iface": "vmbr0", "type": "bridge"}, {"iface": "intra01", "type": "vnet"}]
    found = Server({"GET /nodes/pve/network": data(rows)}).client().networks("pve")
    assert found == {"vmbr0": "bridge", "intra01": "vnet"}


PERMISSIONS = Permissions({"/vms": {"VM.Audit": True, "VM.Allocate": False}, "/vms/105": {"VM.Config.Disk": True}})


@pytest.mark.parametrize(
    ("path", "held"),
    [
        ("/vms", {"VM.Audit", "VM.Allocate"}),
        ("/vms/105", {"VM.Config.Disk"}),  # the deepest entry replaces what is above
        ("/vms/106", {"VM.Audit"}),  # 0 is granted, and does not propagate
        ("/storage/local", set()),
    ],
)
def test_the_deepest_entry_decides_what_is_permitted(path: str, held: set[str]) -> None:
    assert PERMISSIONS.at(path) == held


def test_what_holds_below_a_path_is_what_propagates() -> None:
    assert PERMISSIONS.inherited("/vms") == {"VM.Audit"}
    assert Permissions({"/": {"VM.Audit": True}}).inherited("/vms") == {"VM.Audit"}


# Errors.

ANSWERS: dict[str, tuple[Answer, type[errors.ProxmoxError], str]] = {
    "parameters": (
        die("Parameter verification failed.", 400, {"mp0": "unable to hotplug mp0: no such logical volume\n"}),
        errors.ParametersRejected,
        "mp0: unable to hotplug mp0: no such logical volume",
    ),
    "token": (Answer(401, "Authentication failed!", ""), errors.AuthenticationFailed, "Authentication failed!"),
    "rights": (
        die("Permission check failed (/vms/105, VM.Allocate)", 403),
        errors.PermissionDenied,
        "/vms/105, VM.Allocate",
    ),
    "unknown call": (die("Method 'GET /x' not implemented", 501), errors.NotImplementedByServer, "not implemented"),
    "no guest": (die(NO_GUEST), errors.NoSuchGuest, "does not exist"),
    "protection": (
        die("can't update CT 105 drive 'mp0' - protection mode enabled"),
        errors.ProtectionOn,
        "protection mode enabled",
    ),
    # PVE::Cluster, check_cfs_quorum and cfs_lock; PVE::Tools, file_set_contents.
    "no quorum": (die("cluster not ready - no quorum?"), errors.NoQuorum, "pvecm status"),
    "no quorum, found as it writes": (
        die("unable to open file '/etc/pve/nodes/pve/lxc/105.conf.tmp.2045' - Permission denied"),
        errors.NoQuorum,
        "bring the other nodes back",
    ),
    "no quorum for a lock": (
        die("error during cfs-locked 'file-user_cfg' operation: no quorum!"),
        errors.NoQuorum,
        "pvecm status",
    ),
    "another file that can't be written": (
        die("unable to open file '/var/lib/lxc/105/config.tmp.1' - Permission denied"),
        errors.ApiError,
        "Permission denied",
    ),
    "another 500": (die("storage 'x' does not exist"), errors.ApiError, "storage 'x' does not exist"),
    "reason only, as before 2025": (Answer(500, "CT is broken", '{"data":null}'), errors.ApiError, "CT is broken"),
    "message only, behind a proxy": (
        Answer(500, "", '{"data":null,"message":"first\\nsecond\\n"}'),
        errors.ApiError,
        "first second",
    ),
    "no JSON": (Answer(500, "oops", "<html>"), errors.ApiError, "oops"),
    "JSON that is no object": (Answer(500, "oops", "[1]"), errors.ApiError, "oops"),
    "a page of something else": (Answer(200, "OK", "<html>"), errors.Unreachable, "not Proxmox's"),
    "an object without data": (Answer(200, "OK", "{}"), errors.Unreachable, "not Proxmox's"),
    "another address": (
        Answer(301, "Moved", "", headers={"location": "https://192.0.2.9/"}),
        errors.Unreachable,
        "redirects",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_becomes_the_error_that_it_means(case: str) -> None:
    answer, kind, text = ANSWERS[case]
    server = Server({f"GET {CONFIG}": answer})
    with pytest.raises(kind) as told:
        server.client().guest_config("pve", 105)
    assert type(told.value) is kind
    assert text in str(told.value)
    assert len(str(told.value).splitlines()) <= 4
    assert len(server.asked) == 1


def test_no_secret_is_in_an_error() -> None:
    server = Server({f"GET {CONFIG}": die(f"bad token pulumi@pve!ci={SECRET}")})
    with pytest.raises(errors.ApiError) as told:
        server.client().guest_config("pve", 105)
    assert SECRET not in f"{told.value} {told.value!r} {told.value.reason} {told.value.__cause__}"
    assert told.value.__suppress_context__


# Repetition.


@pytest.mark.parametrize("bad", [die(LOCKED), die("CT is locked (backup)"), die("x", 595), die("x", 596), LOST])
def test_a_read_is_repeated_until_the_way_is_clear(bad: Answer) -> None:
    server = Server({f"GET {CONFIG}": [bad, bad, data({"cores": 1})]})
    assert server.client().guest_config("pve", 105) == {"cores": "1"}
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("bad", "kind", "limit"),
    [
        (die(LOCKED), errors.LockTimeout, 120.0),
        (die("x", 599), errors.ApiError, 30.0),
        (LOST, errors.Unreachable, 30.0),
    ],
)
def test_what_never_ends_ends_at_its_deadline(
    bad: Answer, kind: type[errors.ProxmoxError], limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that has answered before: the time for another one is shorter."""
    monkeypatch.setattr(client_module, "_ANSWERED", {CONNECTION.endpoint})
    server = Server({f"GET {CONFIG}": bad})
    with pytest.raises(kind):
        server.client().guest_config("pve", 105)
    assert limit / 2 < sum(server.slept) <= limit


class Guest:
    """A container's `cores`, written by PUT; answers as told before or after the effect."""

    def __init__(self, *answers: Answer, before: bool) -> None:
        self.value: str | None = None
        self.writes = 0
        self._answers = list(answers)
        self._before = before
        self.server = Server({f"PUT {CONFIG}": self.put})

    def put(self, request: Request) -> Answer:
        answer = self._answers.pop(0) if self._answers else data(None)
        if answer.status == 200 and not (answer.lost and self._before):
            self.value = request.values["cores"]
            self.writes += 1
        return answer

    def write(self, digest: str | None = None) -> None:
        self.server.client().set_config(
            "pve", 105, {"cores": "2"}, done=lambda: self.value == "2", digest=digest, delete=["swap", "tags"]
        )


def test_a_server_that_has_never_answered_is_given_up_soon() -> None:
    """A mistyped port is told at once. A node that reboots after it has answered is waited for."""
    timings = Timings(retry=30.0, first=1.5)
    silent = Server({"GET /version": LOST})
    with pytest.raises(errors.Unreachable):
        silent.client(timings).version()
    assert silent.asked
    assert sum(silent.slept) <= 1.5
    reboots = Server({"GET /version": [data({"version": "9.2.11", "release": "9.2"}), LOST]})
    client = reboots.client(timings)
    answered = [client.answered]
    client.version()
    answered.append(client.answered)
    assert answered == [False, True]
    with pytest.raises(errors.Unreachable):
        client.version()
    assert 25 < sum(reboots.slept) <= 30


def test_a_write_that_is_lost_before_its_effect_is_sent_again() -> None:
    guest = Guest(LOST, LOST, before=True)
    guest.write()
    assert (guest.writes, len(guest.server.asked)) == (1, 3)
    assert guest.server.asked[0].values == {"cores": "2", "delete": "swap,tags"}


def test_a_write_that_is_lost_after_its_effect_is_not_sent_again() -> None:
    guest = Guest(LOST, before=False)
    guest.write()
    assert (guest.writes, len(guest.server.asked)) == (1, 1)


def test_a_write_waits_for_a_lock() -> None:
    guest = Guest(die(LOCKED), die("CT is locked (snapshot)"), before=True)
    guest.write()
    assert (guest.writes, len(guest.server.asked)) == (1, 3)


CHANGED = die("detected modified configuration - file changed by other user? Try again.")


def test_a_changed_configuration_is_success_when_the_change_is_there() -> None:
    guest = Guest(CHANGED, before=True)
    guest.value = "2"
    guest.write(digest="f7")
    assert guest.server.asked[0].values["digest"] == "f7"


def test_a_changed_configuration_is_an_error_when_it_is_not() -> None:
    with pytest.raises(errors.ConfigChanged):
        Guest(CHANGED, before=True).write(digest="f7")


# Tasks.


@pytest.mark.parametrize(
    ("how", "log", "warnings"),
    [
        ("OK", [], ()),
        ("WARNINGS: 1", ["x", "WARN: Systemd 252 detected."], ("WARN: Systemd 252 detected.",)),
        ("WARNINGS: 2", ["no content"], ("WARNINGS: 2",)),
    ],
)
def test_a_task_that_ends_well(how: str, log: list[str], warnings: tuple[str, ...]) -> None:
    lines = data([{"n": number, "t": text} for number, text in enumerate(log)])
    server = Server({f"GET {TASK}/status": [data({"status": "running"}), ended(how)], f"GET {TASK}/log": lines})
    assert server.client().wait_task(UPID).warnings == warnings


def test_a_task_that_fails_tells_its_last_lines() -> None:
    log = data([{"n": number, "t": f"line {number}"} for number in range(30)])
    server = Server({f"GET {TASK}/status": ended("startup for container '105' failed"), f"GET {TASK}/log": log})
    with pytest.raises(errors.TaskFailed, match="vzstart of 105 on pve") as told:
        server.client().wait_task(UPID)
    assert told.value.exit_status == "startup for container '105' failed"
    assert told.value.log[-1] == "line 29"
    assert len(told.value.log) == 12
    assert "| line 29" in str(told.value)


def test_a_task_that_could_not_write_for_want_of_a_quorum_says_what_to_do() -> None:
    end = "unable to open file '/etc/pve/nodes/pve/lxc/105.conf.tmp.2045' - Permission denied"
    server = Server({f"GET {TASK}/status": ended(end), f"GET {TASK}/log": data([])})
    with pytest.raises(errors.TaskFailed) as told:
        server.client().wait_task(UPID)
    assert "pvecm status" in told.value.remedy


@pytest.mark.parametrize(
    ("rows", "there"),
    [
        ([{"type": "cluster", "quorate": 1}, {"type": "node", "online": 1}], True),
        ([{"type": "cluster", "quorate": 0}, {"type": "node", "online": 1}], False),
        ([{"type": "node", "online": 1}], True),
    ],
    ids=["quorate", "not quorate", "no cluster"],
)
def test_the_quorum_is_told_by_the_row_of_the_cluster(rows: list[dict[str, Any]], *, there: bool) -> None:
    assert Server({"GET /cluster/status": data(rows)}).client().quorate() is there


def test_a_failed_task_is_told_even_when_its_log_cannot_be_read() -> None:
    server = Server(
        {f"GET {TASK}/status": ended("unexpected status"), f"GET {TASK}/log": die("Permission check failed", 403)}
    )
    with pytest.raises(errors.TaskFailed) as told:
        server.client().wait_task(UPID)
    assert told.value.log == ()


def test_a_task_that_never_ends_is_given_up_at_its_deadline() -> None:
    server = Server(
        {f"GET {TASK}/status": data({"status": "running"}), f"GET {TASK}/log": data([{"n": 1, "t": "busy"}])}
    )
    with pytest.raises(errors.TaskTimeout, match="within 70 s") as told:
        server.client().wait_task(UPID, 70)
    assert "busy" in str(told.value)
    assert 65 < sum(server.slept) <= 70


def test_what_is_no_task_is_not_waited_for() -> None:
    with pytest.raises(errors.ProxmoxError, match="is not a task"):
        Server({}).client().wait_task("UPID:")


# Power.

Power = Callable[[Proxmox], object]
START: Power = lambda client: client.start("pve", 105)  # noqa: E731
STOP: Power = lambda client: client.stop("pve", 105)  # noqa: E731


def test_a_start_is_one_call_and_its_task() -> None:
    server = Server({f"POST {STATUS}/start": data(UPID), f"GET {TASK}/status": ended("OK")})
    START(server.client())
    assert server.count("POST") == 1


@pytest.mark.parametrize(
    ("act", "verb", "text", "running"),
    [(START, "start", "CT 105 already running", True), (STOP, "stop", "CT 105 not running", False)],
)
def test_a_guest_that_is_so_already_is_success(act: Power, verb: str, text: str, running: bool) -> None:
    server = Server({f"POST {STATUS}/{verb}": die(text), f"GET {STATUS}/current": status(running)})
    act(server.client())
    assert server.count("POST") == 1


def test_a_contradiction_is_not_success() -> None:
    server = Server({f"POST {STATUS}/start": die("CT 105 already running"), f"GET {STATUS}/current": status(False)})
    with pytest.raises(errors.ApiError):
        START(server.client())


def test_a_start_that_was_lost_after_its_effect_is_not_made_again() -> None:
    server = Server({f"POST {STATUS}/start": LOST, f"GET {STATUS}/current": status(True)})
    START(server.client())
    assert server.count("POST") == 1


def test_a_start_that_was_lost_before_its_effect_is_made_again() -> None:
    server = Server(
        {
            f"POST {STATUS}/start": [LOST, data(UPID)],
            f"GET {STATUS}/current": status(False),
            f"GET {TASK}/status": ended("OK"),
        }
    )
    START(server.client())
    assert server.count("POST") == 2


def test_a_start_whose_task_met_a_lock_is_made_again() -> None:
    server = Server(
        {
            f"POST {STATUS}/start": data(UPID),
            f"GET {STATUS}/current": status(False),
            f"GET {TASK}/status": [ended("CT is locked (backup)"), ended("OK")],
            f"GET {TASK}/log": data([]),
        }
    )
    START(server.client())
    assert server.count("POST") == 2


def test_a_shutdown_kills_in_the_end_and_is_waited_for_that_long() -> None:
    server = Server(
        {
            f"POST {STATUS}/shutdown": data(UPID),
            f"GET {TASK}/status": data({"status": "running"}),
            f"GET {TASK}/log": LOST,
        }
    )
    with pytest.raises(errors.TaskTimeout):
        server.client(Timings(lock=20)).shutdown("pve", 105, 40)
    assert server.asked[0].values == {"forceStop": "1", "timeout": "40"}
    waiting = sum(server.slept) - 30  # the log is asked for in vain for 30 s
    assert 55 < waiting <= 60


# Growing.


@pytest.mark.parametrize("answer", [data(UPID), data(None), die("disk is already at specified size")])
def test_growing_sends_an_absolute_size_and_may_be_repeated(answer: Answer) -> None:
    server = Server({"PUT /nodes/pve/lxc/999/resize": answer, f"GET {TASK}/status": ended("OK")})
    server.client().resize("pve", 999, "mp0", 10 << 30)
    assert server.asked[0].values == {"disk": "mp0", "size": "10G"}


def test_shrinking_is_refused_by_the_server() -> None:
    server = Server({"PUT /nodes/pve/lxc/999/resize": die("unable to shrink disk size")})
    with pytest.raises(errors.ApiError, match="resize"):
        server.client().resize("pve", 999, "mp0", 1 << 30)


def test_the_import_brings_neither_paramiko_nor_pulumi() -> None:
    code = "import sys, proxmox.operations, proxmox.preflight; print(sorted({'paramiko', 'pulumi'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
