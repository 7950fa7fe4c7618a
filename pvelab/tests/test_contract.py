"""Each case of the contract, against a lab without containers, from within."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

import pytest
from lab_harness import GIB, TEMPLATE, Lab

from pvelab.conformance import contract

CASES = contract.cases(TEMPLATE)


def test_the_suite_is_whole() -> None:
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids)), sorted(i for i in ids if ids.count(i) > 1)
    assert len(CASES) >= 200
    for case in CASES:
        assert case.get("facts"), case["id"]
        assert not set(case) - contract.KNOWN, case["id"]


def prepare(lab: Lab, case: dict[str, Any]) -> None:
    for volid, size in case.get("volumes", {}).items():
        lab.volume(volid, int(size * GIB))
    for volid, size in case.get("raw", {}).items():
        lab.volume(volid, int(size * GIB), formatted=False)
    for vmid, changes in case.get("guests", {}).items():
        lab.guest(vmid, changes, node=case.get("nodes", {}).get(vmid, "pve"))
    for name, members in case.get("pools", {}).items():
        lab.do("POST", "/pools", {"poolid": name})
        for vmid in members:
            lab.do("PUT", "/pools", {"poolid": name, "vms": str(vmid)})
    if "acl" in case:
        lab.allow(case["acl"])
    for vmid in case.get("running", []):
        lab.boot(vmid)
    for text in case.get("before", []):
        method, path, *rest = text.split(" ", 2)
        lab.do(method, path, dict(parse_qsl(rest[0], keep_blank_values=True)) if rest else None)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_contract(lab: Lab, case: dict[str, Any]) -> None:
    prepare(lab, case)
    method, path = case["call"].split(" ", 1)
    answer = lab.call(
        method, path, case.get("with"), who=case.get("as", "demo"), json=case.get("json"), headers=case.get("headers")
    )
    seen = f"{answer.status_code} {answer.reason}: {answer.text[:500]}"
    assert answer.status_code == case.get("status", 200), seen
    if answer.status_code == 401:
        assert answer.content == b"", "facts 0: a 401 has no body"
    if "reason" in case:
        assert answer.reason == case["reason"], seen
    if answer.status_code >= 400:
        assert answer.headers["Connection"].lower() == "close", "facts 0: closed on any error"
    body = answer.json() if answer.content else {}
    if answer.status_code >= 400 and answer.status_code != 401:
        assert body["data"] is None
        assert body["message"].split("\n")[0] == answer.reason
        assert body.get("errors") == case.get("errors"), seen
    check_data(case, body.get("data"))
    if "task" in case:
        assert isinstance(body["data"], str), seen
        assert lab.wait(body["data"]) == case["task"], lab.log(body["data"])
        lines = lab.log(body["data"])
        for line in case.get("log", []):
            assert line in lines
    check_state(lab, case)


def check_data(case: dict[str, Any], data: Any) -> None:
    if "data" in case:
        assert data == case["data"]
    wanted = case.get("has")
    if isinstance(wanted, dict):
        assert {key: data.get(key) for key in wanted} == wanted
    elif isinstance(wanted, list):
        for entry in wanted:
            assert any(entry.items() <= row.items() for row in data), (entry, data)
    elif wanted is not None:
        assert re.fullmatch(wanted, str(data)), data
    for entry in case.get("lacks", []):
        rows = data if isinstance(data, list) else [data]
        assert not any(entry.items() <= row.items() for row in rows), (entry, data)


def check_state(lab: Lab, case: dict[str, Any]) -> None:
    for vmid, wanted in case.get("after", {}).items():
        main = lab.sections(vmid)[""]
        assert {key: main.get(key) for key in wanted} == wanted
    for vmid, wanted in case.get("pending", {}).items():
        assert lab.sections(vmid).get("pve:pending", {}) == wanted
    for vmid, wanted in case.get("sections", {}).items():
        for name, options in wanted.items():
            found = lab.sections(vmid).get(name)
            if options is None:
                assert found is None
            else:
                assert found is not None
                assert {key: found.get(key) for key in options} == options
    for vmid in case.get("gone", []):
        assert not lab.exists(vmid)
    for volid in case.get("kept", []):
        assert lab.has_volume(volid), f"{volid} was freed"
    for volid in case.get("freed", []):
        assert not lab.has_volume(volid), f"{volid} is still there"
    for vmid in case.get("up", []):
        assert vmid in lab.runtime.running("pve")
    for vmid in case.get("down", []):
        assert vmid not in lab.runtime.running("pve")
