"""Each case of the contract, against a lab without containers, from within."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import pytest
from lab_harness import GIB, TEMPLATE, Lab

from pvelab.conformance import contract
from pvelab.conformance.judge import Answer, differences

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
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert differences(case, Answer(answer.status_code, answer.reason, headers, answer.text), lab) == []
