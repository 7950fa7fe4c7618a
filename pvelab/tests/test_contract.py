"""Each case of the contract, against a lab without containers, from within."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from lab_harness import GIB, TEMPLATE, Lab

from pvelab.conformance import contract
from pvelab.conformance.judge import Answer, differences
from pvelab.faults import Rule

CASES = contract.cases(TEMPLATE)
CASES_8 = contract.cases(TEMPLATE, "8")


def test_the_suite_is_whole() -> None:
    ids = [case["id"] for case in CASES + [case for case in CASES_8 if case.get("pve") == "8"]]
    assert len(ids) == len(set(ids)), sorted(i for i in ids if ids.count(i) > 1)
    assert len(CASES) >= 200
    for case in CASES + CASES_8:
        assert case.get("facts"), case["id"]
        assert not set(case) - contract.KNOWN, case["id"]


def prepare(lab: Lab, case: dict[str, Any]) -> str:
    """Set up what the case starts from; returns the last task of its ``before``, as a path wants it."""
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
    last = ""
    for text in case.get("before", []):
        method, path, *rest = text.split(" ", 2)
        last = lab.do(method, path, dict(parse_qsl(rest[0], keep_blank_values=True)) if rest else None)
    return quote(str(last), safe="")


def found_in(lab: Lab, case: dict[str, Any]) -> list[str]:
    """What is otherwise than the case says."""
    upid = prepare(lab, case)
    method, path = case["call"].replace("$UPID", upid).split(" ", 1)
    for fault in case.get("faults", []):
        lab.server.faults.add(Rule(**fault))
    sent = dict(case.get("headers", {}))
    if "raw_body" in case:
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    given = case.get("raw_body", case.get("with"))
    answer = lab.call(method, path, given, who=case.get("as", "demo"), json=case.get("json"), headers=sent)
    assert lab.cluster.tasks.wait_idle(20), "some work is a task that nobody is told of"
    headers = {name.lower(): value for name, value in answer.headers.items()}
    return differences(case, Answer(answer.status_code, answer.reason, headers, answer.text), lab)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_contract(lab: Lab, case: dict[str, Any]) -> None:
    assert found_in(lab, case) == []


@pytest.mark.parametrize("case", CASES_8, ids=[case["id"] for case in CASES_8])
def test_contract_of_8(lab_8: Lab, case: dict[str, Any]) -> None:
    assert found_in(lab_8, case) == []


def test_what_is_otherwise_with_8_differs(lab: Lab) -> None:
    """Each case that says so is one that a lab of 9 answers otherwise."""
    otherwise = [case for case in CASES_8 if "in8" in case or case.get("pve") == "8"]
    assert len(otherwise) >= 10
    same = []
    for case in otherwise:
        lab.reset()
        if not found_in(lab, case):
            same.append(case["id"])
    assert same == []
