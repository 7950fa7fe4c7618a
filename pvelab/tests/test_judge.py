"""A difference of each kind is found, and named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pvelab.conformance.judge import Answer, differences

UPID = "UPID:pve:00000001:00000001:68B0C1D2:vzdestroy:105:root@pam:"


class Node:
    """What is there after the call: guest 105 runs, with one volume."""

    def task(self, upid: str) -> str:
        assert upid == UPID
        return "OK"

    def log(self, upid: str) -> list[str]:
        assert upid == UPID
        return ["TASK OK"]

    def options(self, vmid: int) -> dict[str, str] | None:
        return {"cores": "2"} if vmid == 105 else None

    def pending(self, _vmid: int) -> dict[str, str]:
        return {"delete": "mp0"}

    def snapshot(self, _vmid: int, name: str) -> dict[str, str] | None:
        return {"cores": "1"} if name == "s1" else None

    def has_volume(self, volid: str) -> bool | None:
        return None if "snap_" in volid else volid == "local-lvm:vm-105-disk-0"

    def is_up(self, vmid: int) -> bool:
        return vmid == 105


def answer(data: Any = None, status: int = 200, reason: str = "OK", **body: Any) -> Answer:
    headers = {} if status == 200 else {"connection": "close"}
    return Answer(status, reason, headers, json.dumps({"data": data, **body}))


REFUSED = answer(status=500, reason="CT 105 not running", message="CT 105 not running\n")


@pytest.mark.parametrize(
    ("case", "given"),
    [
        ({"data": None}, answer()),
        ({"data": {"content": "a,b"}}, answer({"content": "b,a"})),
        ({"has": {"cores": 2, "lock": None}}, answer({"cores": 2, "memory": 1})),
        ({"has": [{"vmid": 105}], "lacks": [{"vmid": 106}]}, answer([{"vmid": 105, "name": "a"}])),
        ({"status": 500, "reason": "CT 105 not running"}, REFUSED),
        ({"status": 401}, Answer(401, "No ticket", {"connection": "close"}, "")),
        ({"status": 401, "body": {"data": None}}, Answer(401, "No", {"connection": "close"}, '{"data": null}')),
        (
            {"status": 400, "errors_like": {"a": "b.+"}},
            answer(status=400, reason="x", message="x", errors={"a": "bcd"}),
        ),
        ({"members": [{"vmid": 1}]}, answer([{"poolid": "a", "members": [{"vmid": 1, "node": "pve"}]}])),
        ({"task": "OK", "log": ["TASK OK"]}, answer(UPID)),
        ({"after": {105: {"cores": "2", "lock": None}}, "up": [105], "down": [106], "gone": [106]}, answer()),
        ({"kept": ["local-lvm:vm-105-disk-0", "local-lvm:snap_vm-105-disk-0_s1"]}, answer()),
        ({"sections": {105: {"s1": {"cores": "1"}, "s2": None}}, "pending": {105: {"delete": "mp0"}}}, answer()),
    ],
)
def test_no_difference(case: dict[str, Any], given: Answer) -> None:
    assert differences(case, given, Node()) == []


@pytest.mark.parametrize(
    ("case", "given", "found"),
    [
        ({"status": 403}, REFUSED, "status: expected 403, got '500 CT 105 not running'"),
        ({"status": 500, "reason": "no"}, REFUSED, "reason: expected 'no', got 'CT 105 not running'"),
        ({"status": 500, "errors": {"a": "b"}}, REFUSED, "errors: expected {'a': 'b'}, got None"),
        ({"status": 401}, Answer(401, "No", {"connection": "close"}, "{}"), "body: expected '', got '{}'"),
        ({"status": 401}, Answer(401, "No", {}, ""), "header Connection: expected 'close', got None"),
        (
            {"status": 401, "body": {"data": None}},
            Answer(401, "No", {"connection": "close"}, ""),
            "body: expected {'data': None}, got ''",
        ),
        ({"status": 500, "errors_like": {"a": "b"}}, REFUSED, "errors: expected {'a': 'b'}, got None"),
        (
            {"members": [{"vmid": 1}]},
            answer({"members": []}),
            "members has a row: expected {'vmid': 1}, got {'members': []}",
        ),
        ({"data": []}, answer([1]), "data: expected [], got [1]"),
        ({"has": {"cores": 2}}, answer({"cores": "2"}), "data has: expected {'cores': 2}, got {'cores': '2'}"),
        ({"has": {"lock": None}}, answer({"lock": "x"}), "data has: expected {'lock': None}, got {'lock': 'x'}"),
        ({"has": [{"vmid": 1}]}, answer([]), "data has a row: expected {'vmid': 1}, got []"),
        ({"has": "UPID:.*"}, answer("x"), "data: expected 'UPID:.*', got 'x'"),
        ({"lacks": [{"vmid": 1}]}, answer([{"vmid": 1}]), "data: a row with {'vmid': 1} is not expected"),
        ({"task": "OK"}, answer(), "data: expected 'a task', got None"),
        ({"task": "no"}, answer(UPID), "end of the task: expected 'no', got 'OK'"),
        ({"task": "OK", "log": ["x"]}, answer(UPID), "log of the task has: expected 'x', got ['TASK OK']"),
        ({"after": {105: {"cores": "3"}}}, answer(), "guest 105, cores: expected '3', got '2'"),
        ({"after": {106: {"cores": "3"}}}, answer(), "guest 106: is not there"),
        ({"pending": {105: {}}}, answer(), "pending of guest 105: expected {}, got {'delete': 'mp0'}"),
        ({"sections": {105: {"s1": None}}}, answer(), "snapshot s1 of guest 105: is not expected"),
        ({"sections": {105: {"s2": {}}}}, answer(), "snapshot s2 of guest 105: is not there"),
        ({"gone": [105]}, answer(), "guest 105: is still there"),
        ({"kept": ["local-lvm:vm-1-disk-0"]}, answer(), "volume local-lvm:vm-1-disk-0: was freed"),
        ({"freed": ["local-lvm:vm-105-disk-0"]}, answer(), "volume local-lvm:vm-105-disk-0: is still there"),
        ({"up": [106]}, answer(), "guest 106: does not run"),
        ({"down": [105]}, answer(), "guest 105: runs"),
    ],
)
def test_each_difference_is_named(case: dict[str, Any], given: Answer, found: str) -> None:
    assert differences(case, given, Node()) == [found]
