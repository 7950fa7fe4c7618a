"""Whether an answer, and what is there after it, is what a case says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; the names of ``headers`` are in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        """The JSON of the body; an empty object where there is none."""
        return json.loads(self.text) if self.text else {}


class State(Protocol):
    """What is looked at after the call. Values of options are texts, as in a guest's file."""

    def task(self, upid: str) -> str:
        """The exit text of a task, which is waited for."""

    def log(self, upid: str) -> list[str]:
        """The lines of a task's log."""

    def options(self, vmid: int) -> Mapping[str, str] | None:
        """The guest's options as they are in force; ``#`` is its description. None: there is no such guest."""

    def pending(self, vmid: int) -> Mapping[str, str]:
        """What waits for the guest's stop; ``delete``: the keys that go."""

    def snapshot(self, vmid: int, name: str) -> Mapping[str, str] | None:
        """The options of a snapshot; None: there is no such snapshot."""

    def has_volume(self, volid: str) -> bool | None:
        """None: it can't be seen from here."""

    def is_up(self, vmid: int) -> bool:
        """Whether the guest runs."""


def differences(case: Mapping[str, Any], answer: Answer, state: State) -> list[str]:
    """Each thing that is otherwise than the case says, as one line; none: all is as it says."""
    found = list(_of_answer(case, answer))
    if not found:
        found += _of_data(case, answer.body.get("data"))
        found += _of_task(case, answer.body.get("data"), state)
        found += _of_state(case, state)
    return found


def _expected(what: str, wanted: object, seen: object) -> str:
    return f"{what}: expected {wanted!r}, got {seen!r}"


def _of_answer(case: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    if answer.status != case.get("status", 200):
        yield _expected("status", case.get("status", 200), f"{answer.status} {answer.reason}")
        return
    if "reason" in case and answer.reason != case["reason"]:
        yield _expected("reason", case["reason"], answer.reason)
    if "reason_like" in case and not re.fullmatch(case["reason_like"], answer.reason):
        yield _expected("reason", case["reason_like"], answer.reason)
    if answer.status < 400:
        return
    # Facts 0: a 401 has no body but at a login, and the connection is closed on any error.
    if answer.headers.get("connection", "").lower() != "close":
        yield _expected("header Connection", "close", answer.headers.get("connection"))
    # One that a node made up for another, which is down, has none either (pve-http-server, proxy_request).
    if answer.status in (401, 595):
        seen = answer.body if answer.text else None
        if seen != case.get("body"):
            yield _expected("body", case.get("body", ""), answer.text)
        return
    body = answer.body
    if body.get("data") is not None:
        yield _expected("data", None, body["data"])
    if (first := body.get("message", "").split("\n")[0]) != answer.reason:
        yield _expected("message", answer.reason, first)
    if not _errors_fit(case, body.get("errors")):
        yield _expected("errors", case.get("errors_like", case.get("errors")), body.get("errors"))


def _errors_fit(case: Mapping[str, Any], errors: Any) -> bool:
    patterns = case.get("errors_like")
    if patterns is None:
        return bool(errors == case.get("errors"))
    return set(errors or {}) == set(patterns) and all(
        re.fullmatch(pattern, errors[name], re.DOTALL) for name, pattern in patterns.items()
    )


def _of_data(case: Mapping[str, Any], data: Any) -> Iterator[str]:
    if "data" in case and _plain(data) != _plain(case["data"]):
        yield _expected("data", case["data"], data)
    wanted, rows = case.get("has"), data if isinstance(data, list) else [data]
    if isinstance(wanted, dict):
        if not _holds(data, wanted):
            seen = {key: data.get(key) for key in wanted} if isinstance(data, dict) else data
            yield _expected("data has", wanted, seen)
    elif isinstance(wanted, list):
        for entry in wanted:
            if not any(_holds(row, entry) for row in rows):
                yield _expected("data has a row", entry, data)
    elif wanted is not None and not re.fullmatch(wanted, str(data)):
        yield _expected("data", wanted, data)
    pool = rows[0] if rows else None
    for entry in case.get("members", []):
        members = pool["members"] if isinstance(pool, dict) else []
        if not any(_holds(row, entry) for row in members):
            yield _expected("members has a row", entry, data)
    for entry in case.get("lacks", []):
        if any(_holds(row, entry) for row in rows):
            yield f"data: a row with {entry!r} is not expected"


def _holds(row: Any, wanted: Mapping[str, Any]) -> bool:
    """None in ``wanted`` is a key that is absent."""
    if not isinstance(row, dict):
        return False
    row = _plain(row)
    return all(row.get(key) == value for key, value in _plain(wanted).items())


def _plain(data: Any) -> Any:
    """The order of what a storage may hold is another one each time (a Perl hash's)."""
    if isinstance(data, list):
        return [_plain(entry) for entry in data]
    if isinstance(data, Mapping):
        return {
            key: sorted(value.split(",")) if key == "content" and isinstance(value, str) else _plain(value)
            for key, value in data.items()
        }
    return data


def _of_task(case: Mapping[str, Any], upid: Any, state: State) -> Iterator[str]:
    if "task" not in case:
        return
    if not (isinstance(upid, str) and upid.startswith("UPID:")):
        yield _expected("data", "a task", upid)
        return
    if (end := state.task(upid)) != case["task"]:
        yield _expected("end of the task", case["task"], end)
    lines = state.log(upid) if case.get("log") else []
    for line in case.get("log", []):
        if line not in lines:
            yield _expected("log of the task has", line, lines)


def _of_state(case: Mapping[str, Any], state: State) -> Iterator[str]:
    for vmid, wanted in case.get("after", {}).items():
        yield from _options(f"guest {vmid}", wanted, state.options(vmid))
    for vmid, wanted in case.get("pending", {}).items():
        if (waiting := dict(state.pending(vmid))) != wanted:
            yield _expected(f"pending of guest {vmid}", wanted, waiting)
    for vmid, sections in case.get("sections", {}).items():
        for name, wanted in sections.items():
            found = state.snapshot(vmid, name)
            if wanted is not None:
                yield from _options(f"snapshot {name} of guest {vmid}", wanted, found)
            elif found is not None:
                yield f"snapshot {name} of guest {vmid}: is not expected"
    checks: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
        ("gone", "guest {}: is still there", lambda vmid: state.options(vmid) is not None),
        ("kept", "volume {}: was freed", lambda volid: state.has_volume(volid) is False),
        ("freed", "volume {}: is still there", lambda volid: state.has_volume(volid) is True),
        ("up", "guest {}: does not run", lambda vmid: not state.is_up(vmid)),
        ("down", "guest {}: runs", state.is_up),
    )
    for key, text, differs in checks:
        yield from (text.format(thing) for thing in case.get(key, []) if differs(thing))


def _options(what: str, wanted: Mapping[str, Any], found: Mapping[str, str] | None) -> Iterator[str]:
    if found is None:
        yield f"{what}: is not there"
        return
    for key, value in wanted.items():
        if found.get(key) != value:
            yield _expected(f"{what}, {key}", value, found.get(key))
