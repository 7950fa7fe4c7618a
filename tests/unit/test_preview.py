"""scripts/preview: what a reviewer reads of each kind of change, and which comment is updated."""

from __future__ import annotations

import http.client
import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from components.explanation import explain
from scripts.lib.preview import (
    DELETED,
    MARKER,
    REBOOT,
    SECONDS,
    UNTOUCHED,
    Change,
    Found,
    PreviewError,
    Row,
    comment,
    details,
    fenced,
    read_events,
    rows,
    write_comment,
)

UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"


def phase(name: str, old: dict[str, Any], new: dict[str, Any]) -> Found:
    """A phase that runs again, with the cause as the program tells it."""
    urn = f"urn:{name}"
    cause = explain(f"cattle-agent-{name}", {"digest": "old", "declared": old}, new, "new")
    assert cause is not None
    change = Change(
        "update",
        "Phase",
        f"cattle-agent-{name}",
        {"phase": name, "declared": old},
        {"phase": name, "declared": new},
        urn,
    )
    return Found("cattle", [change], {urn: cause})


def reads(gateway: str, dashboard: str = "1") -> dict[str, dict[str, str]]:
    return {"read_at_start": {"hermes-gateway.service": gateway, "hermes-dashboard.service": dashboard}}


CONFIGURE = "the agent's settings"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            phase(
                "configure",
                {"documents": {"SOUL.md": "a"}, **reads("1")},
                {"documents": {"SOUL.md": "b"}, **reads("1")},
            ),
            Row(CONFIGURE, "changed: documents.SOUL.md"),
        ),
        (
            phase("configure", {"model": {"name": "a"}, **reads("1")}, {"model": {"name": "b"}, **reads("2")}),
            Row(CONFIGURE, "changed: model.name", "hermes-gateway", SECONDS),
        ),
        (
            phase(
                "configure",
                {"agent_directory": "/opt/hermes/1", **reads("1")},
                {"agent_directory": "/opt/hermes/2", **reads("2", "2")},
            ),
            Row(
                CONFIGURE,
                "changed: agent_directory",
                "hermes-dashboard and hermes-gateway",
                SECONDS,
                "a backup first, then migrated",
            ),
        ),
        (
            phase(
                "configure",
                {"container": {"identity": "a", "image": "i@1"}},
                {"container": {"identity": "b", "image": "i@2"}},
            ),
            Row(
                CONFIGURE,
                "changed: container.identity, container.image",
                "the agent's container, made again",
                SECONDS,
                "a backup first, then migrated",
            ),
        ),
        (
            phase("agent", {"version": "0.19.0"}, {"version": "0.20.3"}),
            Row("the agent goes from 0.19.0 to 0.20.3", "changed: version"),
        ),
        (
            phase("baseline", {"extra_packages": []}, {"extra_packages": ["tree"]}),
            Row("packages and account in the cattle", "changed: extra_packages"),
        ),
        (
            phase("baseline", {"a": 1}, {"a": 1}),
            Row("packages and account in the cattle", "this program's own part of it has changed"),
        ),
    ],
)
def test_a_phase_says_why_it_runs_and_what_restarts(found: Found, expected: Row) -> None:
    assert rows(found) == [expected]


def test_verify_and_the_login_are_no_news() -> None:
    found = phase("verify", {"configuration": "a"}, {"configuration": "b"})
    found.changes.append(Change("update", "Command", "cattle-agent-login", {"create": "a"}, {"create": "b"}))
    assert rows(found) == []


VOLUME = {"name": "hermes", "size": 10, "volid": None}
GUEST = {"vmId": 105, "memory": {"dedicated": 1024}, "tags": ["a"]}


@pytest.mark.parametrize(
    ("op", "kind", "old", "new", "expected"),
    [
        (
            "update",
            "Volume",
            VOLUME,
            {**VOLUME, "size": 20},
            Row("volume hermes grows from 10 to 20 GB", "changed: size", data="kept"),
        ),
        (
            "delete",
            "Volume",
            VOLUME,
            {},
            Row("volume hermes leaves the stack", "it left petVolumes", data="kept on the pet"),
        ),
        (
            "create",
            "Volume",
            {},
            {**VOLUME, "volid": "a:vm-999-disk-3"},
            Row("volume hermes: a:vm-999-disk-3 is adopted", "it is new in petVolumes", data="kept"),
        ),
        (
            "create",
            "VolumeRemoval",
            {},
            {"volid": "a:vm-999-disk-3"},
            Row("a:vm-999-disk-3 is deleted", "it is named in petDeleteVolumes", data=DELETED),
        ),
        (
            "update",
            "VolumeAttachment",
            {"vmid": 105, "volid": "a:1"},
            {"vmid": 105, "volid": "a:2"},
            Row("a:2 is mounted in the place of a:1", "changed: volid", "CT 105", REBOOT, "kept"),
        ),
        ("update", "ContainerLegacy", GUEST, {**GUEST, "tags": ["b"]}, Row("CT 105 changes", "changed: tags")),
        (
            "update",
            "ContainerLegacy",
            {**GUEST, "description": "mine\nold"},
            {**GUEST, "description": "mine\nnew"},
            Row("the stack's lines in the notes of CT 105 change", "changed: description"),
        ),
        (
            "update",
            "ContainerLegacy",
            {**GUEST, "description": "old"},
            {**GUEST, "description": "new", "tags": ["b"]},
            Row("CT 105 changes", "changed: tags"),
        ),
        (
            "update",
            "ContainerLegacy",
            GUEST,
            {**GUEST, "memory": {"dedicated": 2048}},
            Row("CT 105 changes", "changed: memory.dedicated", "CT 105", REBOOT),
        ),
        (
            "delete",
            "ContainerLegacy",
            GUEST,
            {},
            Row("CT 105 is destroyed", "it left the settings", offline="from then on"),
        ),
        (
            "delete",
            "Power",
            {"vmid": 105.0},
            {},
            Row("CT 105 is stopped", "it left the settings", "CT 105", "from then on"),
        ),
        (
            "update",
            "HostMounts",
            {"vmid": 105, "mounts": []},
            {"vmid": 105, "mounts": [{"path": "/data"}]},
            Row("folders of the node in CT 105", "changed: mounts", "CT 105", REBOOT),
        ),
    ],
)
def test_a_part_says_what_it_costs(op: str, kind: str, old: dict[str, Any], new: dict[str, Any], expected: Row) -> None:
    assert rows(Found("x", [Change(op, kind, "x", old, new)])) == [expected]


def test_a_new_container_is_one_line_with_all_that_is_in_it() -> None:
    changes = [Change(op, "ContainerLegacy", "c", GUEST, GUEST, keys=("operatingSystem",)) for op in ("replace",)]
    changes += [
        Change("replace", kind, kind, {}, {"phase": "configure"}) for kind in ("Phase", "Power", "VolumeAttachment")
    ]
    [row] = rows(Found("cattle", changes))
    assert (row.what, row.restarts) == ("CT 105 is destroyed and made again", "everything")


def test_a_look_at_the_agent_is_no_difference() -> None:
    assert list(details(Change("update", "Command", "login", {"create": "a # 1"}, {"create": "a # 2"}))) == []
    assert list(details(Change("create", "Command", "login", {}, {"create": "a # 1"}))) == ["+ login"]


def test_of_the_notes_only_the_lines_that_differ_are_shown() -> None:
    """What somebody has written beside the stack's own is his."""
    old, new = (f"private canary\n\n{text}\n\nclaim" for text in ("Version 1", "Version 2"))
    change = Change("update", "ContainerLegacy", "c", {**GUEST, "description": old}, {**GUEST, "description": new})
    assert list(details(change)) == ["~ c", "-   description: Version 1", "+   description: Version 2"]


def test_what_differs_in_each_run_or_is_a_secret_is_not_shown() -> None:
    old = {
        "phase": "configure",
        "digest": "aa",
        "private_key_file": "/runner/1",
        "declared": {"model": {"name": "a"}, **reads("1")},
    }
    new = {
        "phase": "configure",
        "digest": "bb",
        "private_key_file": "/runner/2",
        "declared": {"model": {"name": "b"}, **reads("2")},
    }
    text, good = comment([Found("cattle", [Change("update", "Phase", "cattle-agent-configure", old, new, "u")])])
    assert good
    folded = text.partition("<details>")[2]
    assert folded.count("\n-   ") == folded.count("\n+   ") == 1
    assert "declared.model.name: b" in folded
    unknown = {**old, "declared": UNKNOWN}
    assert "04da6b54" not in comment([Found("cattle", [Change("update", "Phase", "c", old, unknown)])])[0]


def test_a_change_s_text_ends_no_table_no_fence_and_no_tag() -> None:
    """Who opens a pull request writes what stands in it."""
    evil = "x | y <img src=a>\n```\n</details>"
    assert fenced("a\n````\nb").startswith("`````\n")
    change = Change("update", "Volume", "v", {**VOLUME, "name": evil}, {**VOLUME, "name": evil, "size": 20})
    text, _ = comment([Found("pet", [change], warnings=[evil])])
    [line] = [line for line in text.splitlines() if line.startswith("| pet")]
    assert line.count(" | ") == 5
    assert "<img" not in without_fences(text)


def without_fences(text: str) -> str:
    """What Markdown reads as such."""
    return re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_a_warning_is_no_markdown() -> None:
    """It may name what another token has named: no link, no picture that tells who reads it, no mention."""
    evil = "a guest at [/data](http://evil.example) ![p](http://evil.example/p.png) @org/team\n\n```\n# [x](http://y)"
    text, good = comment([Found("cattle", warnings=[evil])])
    assert good
    assert evil in text
    read = without_fences(text)
    assert "evil.example" not in read
    assert "http" not in read
    assert "@org" not in read


FAULT = "Stack pet can't be brought up on https://x: {}\n{}"
GROWS = (
    "petVolumes = Volume 'hermes' (l:vm-999-disk-1) cannot grow now\n"
    "  rule: CT 105 'hermes' on node pve (running) names it\n  do:   stop that guest"
)
OTHER = "petBridge = vmbr9\n  rule: must be a bridge\n  do:   correct it"


def test_two_steps_are_no_failure_and_anything_beside_them_is() -> None:
    grows = Found("pet", errors=[FAULT.format("1 fault", GROWS)])
    text, good = comment([grows])
    assert good
    assert "pct shutdown 105" in text
    text, good = comment([Found("pet", errors=[FAULT.format("2 faults", f"{GROWS}\n{OTHER}")])])
    assert not good
    assert "the preview failed" in text
    text, good = comment([Found("pet", errors=[FAULT.format("1 fault", GROWS), "the token expired"])])
    assert not good
    wanted = (
        "cattleVolume = alice\n  rule: must be a volume of stack pet, which has: hermes\n  do:   correct cattleVolume"
    )
    cattle = Found("cattle", errors=[FAULT.format("1 fault", wanted)])
    assert not comment([Found("pet"), cattle])[1], "nobody makes it"
    assert comment([Found("pet", [Change("create", "Volume", "v", {}, {"name": "alice", "size": 1})]), cattle])[1]
    assert comment([grows, cattle])[1], "what the pet makes is seen after its own first step"


def test_a_long_difference_is_cut_to_what_a_comment_can_hold() -> None:
    change = Change("update", "Volume", "v", {"name": "v", "path": "a"}, {"name": "v", "path": "words\n" * 20_000})
    text, _ = comment([Found("pet", [change]), Found("cattle")])
    assert len(text) < 65_536
    assert "... cut here" in text


def test_the_engine_s_stream_is_read_once_for_each_step() -> None:
    def step(op: str) -> str:
        inputs = {"inputs": {"name": "a", "size": 1}}
        return json.dumps(
            {
                "resourcePreEvent": {
                    "metadata": {"op": op, "type": "t:dynamic/proxmox:Volume", "urn": "u::v", "new": inputs}
                }
            }
        )

    told = json.dumps({"diagnosticEvent": {"severity": "error", "message": "no\x1b[2J way\n"}})
    found = read_events(
        "pet", ["warning: not JSON", step("refresh"), step("same"), step("create"), step("create"), told]
    )
    assert [(change.op, change.kind, change.name) for change in found.changes] == [("create", "Volume", "v")]
    assert found.errors == ["no\\x1b[2J way"]
    assert rows(found)[0].data != UNTOUCHED


def test_of_a_replacement_the_step_that_knows_both_counts() -> None:
    """The engine deletes first, and tells nothing of what comes (a preview in the lab: tests/golden)."""
    old, new = {"inputs": {"vmId": 105, "tags": ["a"]}}, {"inputs": {"vmId": 105, "tags": ["b"]}}
    usual = {"type": "t:ContainerLegacy", "urn": "u::c"}
    steps = [
        {"op": "delete-replaced", "old": old, **usual},
        {"op": "replace", "old": old, "new": new, "keys": ["tags"], **usual},
        {"op": "create-replacement", "old": old, "new": new, **usual},
    ]
    found = read_events("cattle", [json.dumps({"resourcePreEvent": {"metadata": step}}) for step in steps])
    [change] = found.changes
    assert (change.op, change.keys, change.differing) == ("replace", ("tags",), ["tags"])
    assert rows(found)[0].why == "changed: tags"


@pytest.mark.parametrize(("level", "good"), [("mandatory", False), ("advisory", True)])
def test_a_broken_policy_is_told_by_its_name(level: str, good: bool) -> None:
    broken = {"policyName": "no-root-token", "message": "No\x1b root.\n", "enforcementLevel": level}
    end = {"severity": "error", "message": "preview failed"}
    told: list[dict[str, Any]] = [{"policyEvent": broken}, *([] if good else [{"diagnosticEvent": end}])]
    found = read_events("cattle", map(json.dumps, told))
    assert (found.warnings if good else found.errors) == ["policy no-root-token: No\\x1b root."]
    assert not (found.errors if good else found.warnings)


# --- the comment --------------------------------------------------------------------------------


@contextmanager
def forge(comments: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str, Any]]]:
    """An API with these comments, of which those without `mine` can't be changed. Yields the requests that write."""
    wrote: list[tuple[str, str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def reply(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            page = int(self.path.rpartition("=")[2])
            self.reply(200, comments[(page - 1) * 2 : page * 2])

        def written(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            identity = self.path.rpartition("/")[2]
            mine = self.command == "POST" or any(str(one["id"]) == identity and one.get("mine") for one in comments)
            assert self.headers["Authorization"] == "token T"
            if mine:
                wrote.append((self.command, self.path, body))
            self.reply(200 if mine else 403, {"id": 1})

        do_PATCH = do_POST = written  # noqa: N815 - http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in (
        ("GITHUB_API_URL", f"http://127.0.0.1:{server.server_port}/api/v1"),
        ("GITHUB_REPOSITORY", "me/home"),
        ("GITHUB_TOKEN", "T"),
    ):
        monkeypatch.setenv(name, value)
    try:
        yield wrote
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


OTHERS = [{"id": 1, "body": "LGTM", "mine": True}, {"id": 2, "body": f"> {MARKER}", "mine": True}]


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        (OTHERS, ("POST", "/api/v1/repos/me/home/issues/7/comments")),
        (
            [*OTHERS, {"id": 3, "body": f"{MARKER}\nold", "mine": True}],
            ("PATCH", "/api/v1/repos/me/home/issues/comments/3"),
        ),
        # Somebody copied ours: it is not ours to change.
        (
            [{"id": 3, "body": f"{MARKER}\nold", "mine": True}, {"id": 4, "body": f"{MARKER}\ncopy"}],
            ("PATCH", "/api/v1/repos/me/home/issues/comments/3"),
        ),
        ([{"id": 4, "body": f"{MARKER}\ncopy"}], ("POST", "/api/v1/repos/me/home/issues/7/comments")),
    ],
)
def test_only_our_own_comment_is_updated(
    comments: list[dict[str, Any]], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with forge(comments, monkeypatch) as wrote:
        write_comment(7, f"{MARKER}\nnew")
    assert wrote == [(*expected, {"body": f"{MARKER}\nnew"})]


def test_an_answer_that_is_cut_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any, **__: Any) -> None:
        raise http.client.IncompleteRead(b"abc", 97)

    with forge([], monkeypatch):
        monkeypatch.setattr(urllib.request, "urlopen", cut)
        with pytest.raises(PreviewError, match="3 bytes read, 97 more expected"):
            write_comment(7, f"{MARKER}\nnew")
