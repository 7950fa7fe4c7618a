"""The contract: cases as data, each naming the section of the facts it comes from.

A case (``cases/*.yaml``)::

    id: destroy-protected            # unique
    facts: "5"                       # section of facts/proxmox.md
    guests: {105: {protection: "1"}} # written before; null removes an option of the standard guest
    running: [105]
    volumes: {"local-lvm:vm-9105-disk-0": 8}    # GiB, formatted;  raw: the same without a file system
    acl: [{path: /vms, privs: [VM.Audit]}]      # for the user and token "custom"
    before: ["PUT /nodes/pve/lxc/105/config delete=mp0"]   # calls of root that must succeed
    as: demo                         # nothing, nobody, custom, demo, root-token, root; demo when not given
    call: DELETE /nodes/pve/lxc/105
    with: {force: 1}                 # json: for a JSON body
    status: 500
    reason: can't remove CT 105 - protection mode enabled
    errors: {…}                      # the whole errors object
    data: …                          # the whole data;  has: {…}  a part of it
    task: OK                         # exit text of the task that the call returned;  log: [lines it has]
    after: {105: {mp0: null}}        # options in the file; null is absent
    pending: {105: {…}}              # the whole pending section;  sections: {105: {s1: {…}}} for snapshots
    gone: [105]    kept: [volids]    freed: [volids]    up: [105]    down: [105]
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import yaml
from lab_harness import GIB, TEMPLATE, Lab

# The one in C reads the cases ten times as fast; it is not in every build of the library.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CASES: list[dict[str, Any]] = [
    case
    for file in sorted((Path(__file__).parent / "cases").glob("*.yaml"))
    for case in yaml.load(file.read_text().replace("$TEMPLATE", TEMPLATE), Loader=LOADER)  # noqa: S506 - a safe one
]
KNOWN = frozenset(
    (
        *("id", "facts", "guests", "running", "volumes", "raw", "acl", "before", "as", "call", "with", "json"),
        *("headers", "status", "reason", "errors", "data", "has", "lacks", "task", "log", "after", "pending"),
        *("sections", "gone", "kept", "freed", "up", "down", "pools", "nodes"),
    )
)


def test_the_suite_is_whole() -> None:
    ids = [case["id"] for case in CASES]
    assert len(ids) == len(set(ids)), sorted(i for i in ids if ids.count(i) > 1)
    assert len(CASES) >= 200
    for case in CASES:
        assert case.get("facts"), case["id"]
        assert not set(case) - KNOWN, case["id"]


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
