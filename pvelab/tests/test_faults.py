"""Faults on demand: each kind does what it says, once, and is in the log."""

from __future__ import annotations

import random
import time
from typing import Any
from urllib.parse import quote

import pytest
import requests
from lab_harness import TEMPLATE, Lab

from pvelab.control import ControlError
from pvelab.faults import FaultControl, Faults, Rule

CONFIG = "/nodes/pve/lxc/105/config"


def test_error_before_the_effect(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("error", method="PUT", path="/config$", status=596, text="Connection timed out"))
    answer = lab.call("PUT", CONFIG, {"cores": 7})
    assert (answer.status_code, answer.reason) == (596, "Connection timed out")
    assert lab.sections(105)[""]["cores"] == "2"
    assert lab.call("PUT", CONFIG, {"cores": 7}).status_code == 200, "a fault fires once unless told otherwise"


def test_error_after_the_effect(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(
        Rule("error", method="PUT", path="/config$", status=599, text="Too many redirections", when="after")
    )
    assert lab.call("PUT", CONFIG, {"cores": 7}).status_code == 599
    assert lab.sections(105)[""]["cores"] == "7"


@pytest.mark.parametrize(("when", "cores"), [("before", "2"), ("after", "7")])
def test_dropped_connection(lab: Lab, when: Any, cores: str) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("drop", method="PUT", path="/config$", when=when))
    with pytest.raises(requests.ConnectionError):
        lab.call("PUT", CONFIG, {"cores": 7})
    assert lab.sections(105)[""]["cores"] == cores


def test_delay(lab: Lab) -> None:
    lab.server.faults.add(Rule("delay", path="^/version", seconds=0.3))
    began = time.monotonic()
    assert lab.call("GET", "/version").status_code == 200
    assert time.monotonic() - began >= 0.3


def test_lock_held_makes_the_call_time_out(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("lock", method="PUT", path="/config$", seconds=5))
    answer = lab.call("PUT", CONFIG, {"cores": 7})
    assert answer.status_code == 500
    assert answer.reason == "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout"


def test_lock_held_for_less_than_the_wait(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("lock", method="PUT", path="/config$", seconds=0.1))
    assert lab.call("PUT", CONFIG, {"cores": 7}).status_code == 200


def test_task_that_fails_before_its_work(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("task", task="vzdestroy", text="got signal 9"))
    upid = lab.call("DELETE", "/nodes/pve/lxc/105").json()["data"]
    assert lab.wait(upid) == "got signal 9"
    assert lab.exists(105)


def test_task_that_fails_after_its_work(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("task", task="vzdestroy", text="got signal 9", when="after"))
    upid = lab.call("DELETE", "/nodes/pve/lxc/105").json()["data"]
    assert lab.wait(upid) == "got signal 9"
    assert not lab.exists(105)


def test_task_that_warns(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("task", method="POST", path="/status/start$", result="warn", text="a bit odd"))
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/start").json()["data"]
    assert lab.wait(upid) == "WARNINGS: 1"
    assert "WARN: a bit odd" in lab.log(upid)
    assert 105 in lab.runtime.running("pve")


def test_task_without_end_and_its_abort(lab: Lab) -> None:
    lab.guest(105)
    lab.server.faults.add(Rule("task", task="vzstart", result="endless"))
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/start").json()["data"]
    path = f"/nodes/pve/tasks/{quote(upid, safe='')}"
    assert lab.call("GET", path + "/status").json()["data"]["status"] == "running"
    assert lab.call("DELETE", path).status_code == 200
    assert lab.wait(upid) == "received interrupt"
    assert 105 not in lab.runtime.running("pve")


def test_the_start_that_follows_a_create_may_fail(lab: Lab) -> None:
    lab.server.faults.add(Rule("task", task="vzstart", text="startup for container '105' failed"))
    upid = lab.call(
        "POST",
        "/nodes/pve/lxc",
        {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4", "start": 1, "features": "nesting=1"},
    ).json()["data"]
    assert lab.wait(upid) == "OK"
    assert lab.exists(105)
    assert 105 not in lab.runtime.running("pve")


def test_storage_full(lab: Lab) -> None:
    lab.server.faults.add(Rule("full", storage="local-lvm"))
    upid = lab.call("POST", "/nodes/pve/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"}).json()[
        "data"
    ]
    assert lab.wait(upid).startswith("unable to create CT 105 - lvcreate 'pve/vm-105-disk-0' error:")
    assert not lab.exists(105)
    assert not lab.has_volume("local-lvm:vm-105-disk-0")


def test_count_and_skip(lab: Lab) -> None:
    lab.server.faults.add(Rule("error", path="^/version", count=2, skip=1))
    assert [lab.call("GET", "/version").status_code for _ in range(5)] == [200, 500, 500, 200, 200]


def test_same_seed_same_faults(lab: Lab) -> None:
    def run() -> list[int]:
        lab.server.faults.clear()
        lab.server.faults.reseed(4711)
        lab.server.faults.add(Rule("error", path="^/version", count=None, probability=0.5))
        return [lab.call("GET", "/version").status_code for _ in range(12)]

    first = run()
    chance = random.Random(4711)  # noqa: S311 - the same seed as the lab
    assert first == [500 if chance.random() < 0.5 else 200 for _ in range(12)]
    assert run() == first


def test_control_socket(lab: Lab) -> None:
    control = FaultControl(lab.config.state_dir)
    number = control.add(kind="error", path="^/version", status=595, text="No route to host")
    assert [rule["id"] for rule in control.rules()] == [number]
    assert lab.call("GET", "/version").status_code == 595
    fired = control.fired()
    assert [(entry["rule"], entry["subject"]) for entry in fired] == [(number, "GET /version")]
    control.clear()
    assert control.rules() == []


def test_control_socket_is_private_and_says_what_is_wrong(lab: Lab) -> None:
    assert (lab.config.state_dir / "control.sock").stat().st_mode & 0o777 == 0o600
    control = FaultControl(lab.config.state_dir)
    with pytest.raises(ControlError, match="unknown kind"):
        control.add(kind="earthquake")
    with pytest.raises(ValueError, match="unknown fields of a fault: colour"):
        control.add(kind="error", colour="red")


def test_rules_without_a_match_cost_nothing(tmp_path: Any) -> None:
    faults = Faults(tmp_path / "faults.log")
    faults.add(Rule("error", path="^/never"))
    assert faults.for_request("GET", "/version") == []
    assert faults.fired() == []


STOPPED = {"status": "stopped", "name": "guest1"}


def shown(lab: Lab, who: str = "root") -> tuple[str, dict[str, Any], set[str]]:
    """What the cluster tells of node pve, of its guest 105, and of its storages."""
    node = {row["node"]: row for row in lab.call("GET", "/nodes", who=who).json()["data"]}["pve"]
    rows = lab.call("GET", "/cluster/resources", who=who).json()["data"]
    [guest] = [row for row in rows if row["id"] == "lxc/105"]
    storages = {row["status"] for row in rows if row["type"] == "storage" and row["node"] == "pve"}
    assert {row["status"] for row in rows if row["id"] == "node/pve"} == {node["status"]}
    assert ("level" in node) == (node["status"] == "online")
    return node["status"], {key: guest[key] for key in ("status", "name") if key in guest}, storages


def test_statistics_that_are_missing(lab: Lab) -> None:
    """Facts proxmox-9.2: all is unknown, and the API does all else; the other node is as it was."""
    lab.guest(105)
    lab.server.faults.add(Rule("unknown", node="pve"))
    assert shown(lab) == shown(lab) == ("unknown", {"status": "unknown"}, {"unknown"})
    other = {row["node"]: row["status"] for row in lab.call("GET", "/nodes").json()["data"]}
    assert other == {"pve": "unknown", "pve2": "online"}
    lab.do("POST", "/nodes/pve/lxc/105/status/start")
    assert lab.call("GET", "/nodes/pve/lxc/105/status/current").json()["data"]["status"] == "running"
    assert [entry["kind"] for entry in lab.server.faults.fired()] == ["unknown"]
    lab.server.faults.clear()
    assert shown(lab) == ("online", {"status": "running", "name": "guest1"}, {"available"})


def test_pvestatd_that_hangs(lab: Lab) -> None:
    """What it told last stays for five minutes (pve-cluster: pmxcfs/status.c, rrd_entry_is_old), then is missing."""
    lab.guest(105)
    assert shown(lab) == ("online", STOPPED, {"available"})
    lab.server.faults.add(Rule("hung"))
    lab.boot(105)
    assert shown(lab) == ("online", STOPPED, {"available"}), "it tells what was"
    lab.server.faults.clear()
    lab.server.faults.add(Rule("hung", seconds=1e-9))
    assert shown(lab) == ("unknown", {"status": "unknown"}, {"unknown"})


def test_node_that_has_just_started(lab: Lab) -> None:
    lab.guest(105)
    assert shown(lab)[0] == "online"
    lab.server.faults.add(Rule("started", node="pve", seconds=3600))
    assert shown(lab) == shown(lab) == ("unknown", {"status": "unknown"}, {"unknown"})
    lab.cluster.broadcast.forget()
    assert shown(lab) == ("online", STOPPED, {"available"}), "its pvestatd has told"
