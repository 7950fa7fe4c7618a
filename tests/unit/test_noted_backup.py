"""The time of the last backup in the guest's notes: out of an enemy's words a time and nothing else, written once."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from applications.hermes import noted
from applications.hermes.guest import schedule
from applications.hermes.noted import note_backup, time_in, told_in
from provisioning.console import Guest
from provisioning.ssh import HostKey, SshTarget
from proxmox.client import Timings
from proxmox.notes import BACKUP_MARK, LONGEST, merged_notes, notes_block, with_last_backup
from proxmox.ownership import parse_claim
from tests.unit.proxmox_http import CONNECTION, Request, Server, data, die

CLAIM = "0b8f6a1e-58c3-4a6e-9d0b-0f6b1a2c3d4e"
KEY = HostKey.parse("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f")
BLOCK = notes_block("Runs it.\n\nVersion 0.1.0", [], CLAIM)
MADE = datetime(2026, 11, 28, 3, 31, 7, tzinfo=UTC)
NOW = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
NAME = "20261128T033107Z-0.20.3"
FORGED = f"the last one is of 2026-11-28 03:31 UTC ({NAME})"
LINE = "Last backup of the data: 2026-11-28 03:31 UTC, seen 2026-11-28 12:00 UTC by `scripts/agent`."


# ---- what the guest says --------------------------------------------------------------------------------------------


def status_of(times: list[str], newest: str | None, **known: Any) -> str:
    """As the guest's status program has it."""
    given: dict[str, Any] = {"since": NOW - timedelta(days=9), "last": {}, "now": NOW, **known}
    return f"hermes-gateway  active\nbackup          {schedule.standing(times, newest, **given)}\ncopy            off\n"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (status_of(["03:30"], NAME), (True, MADE)),
        (status_of([], NAME), (True, MADE)),
        (status_of(["03:30"], NAME, since=None), (True, MADE)),
        (status_of(["03:30"], "20261126T033107Z-1.0"), (True, MADE - timedelta(days=2))),
        (status_of(["03:30"], None), (True, None)),
        (status_of([], None), (True, None)),
        # The fault's words are the agent's, perhaps: what the stack says comes before them.
        (status_of(["03:30"], None, last={"time": NOW.isoformat(), "fault": FORGED}), (True, None)),
        # Of an earlier release, of a broken one, of an enemy: nothing is noted.
        ("hermes-gateway  active\n", (False, None)),
        ("", (False, None)),
        ("backup  those that are there can't be listed: the last one is of 2026 UTC (x)\n", (False, None)),
        ("backup  the last one is of 2026-99-28 03:31 UTC (20269928T033107Z-1)\n", (False, None)),
        ("x  the last one is of 2026-11-28 03:31 UTC (20261128T033107Z-1)\n", (False, None)),
    ],
)  # fmt: skip
def test_a_time_is_taken_from_the_status(status: str, told: tuple[bool, datetime | None]) -> None:
    assert told_in(status) == told


@pytest.mark.parametrize(
    ("name", "time"),
    [
        (NAME, MADE),
        ("20261128T033107Z", None),
        ("20261328T033107Z-x", None),
        ("x" + NAME, None),
        (None, None),
        (7, None),
    ],
)
def test_a_time_is_taken_from_a_backup_s_name(name: object, time: datetime | None) -> None:
    assert time_in(name) == time


# ---- what becomes of the notes --------------------------------------------------------------------------------------


def test_the_line_stands_beside_the_block_and_is_no_difference_to_the_stack() -> None:
    there = with_last_backup(f"Mine.\n\n{BLOCK}Also mine.\n", MADE, NOW)
    assert there == f"Mine.\n\n{BLOCK}\n{BACKUP_MARK}\n{LINE}\nAlso mine.\n"
    assert merged_notes(there, BLOCK, "Runs it.") == there
    newer = notes_block("Runs it.\n\nVersion 0.2.0", [], CLAIM)
    assert merged_notes(there, newer, "Runs it.") == there.replace(BLOCK, newer)
    assert parse_claim(there) == CLAIM


@pytest.mark.parametrize(
    ("made", "after", "changes"),
    [
        (MADE, timedelta(hours=1), False),
        (MADE, timedelta(days=2), True),
        (MADE + timedelta(hours=12), timedelta(hours=13), True),
        (None, timedelta(hours=1), True),
        # From the future: no backup that anybody can have made.
        (NOW + timedelta(days=30), timedelta(hours=1), False),
        (NOW + timedelta(minutes=65), timedelta(hours=1), True),  # two clocks
    ],
)
def test_only_news_are_written(made: datetime | None, after: timedelta, changes: bool) -> None:
    there = with_last_backup(BLOCK, MADE, NOW)
    again = with_last_backup(there, made, NOW + after)
    assert (again != there) is changes
    assert again.count("Last backup") == 1
    assert with_last_backup(again, made, NOW + after) == again


@pytest.mark.parametrize(
    "line", ["", "Mine.", LINE.replace("2026-11-28 12:00", "0000-99-99 99:99"), LINE.replace("12:00", "12:00, says me")]
)
def test_what_somebody_made_of_the_line_is_no_error(line: str) -> None:
    """His words stay, if they are no line of ours; the mark is found again."""
    there = f"{BLOCK}\n{BACKUP_MARK}\n{line}\n"
    text = with_last_backup(there, MADE, NOW)
    assert text.count(BACKUP_MARK) == 1
    assert LINE in text
    assert "Mine." in text or line != "Mine."


@pytest.mark.parametrize("there", ["", "Mine.", f"claim: {CLAIM}\n", BLOCK + "x" * LONGEST])
def test_without_the_stack_s_own_lines_or_room_the_notes_stay(there: str) -> None:
    assert with_last_backup(there, MADE, NOW) == there


# ---- the write ------------------------------------------------------------------------------------------------------

OUTPUTS = {"vmid": 105.0, "node": "pve", "hardwareAddress": "bc:24:11:00:00:05"}
CARD = "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:00:00:05,ip=dhcp,type=veth"
TOKEN = "pulumi@pve!ci=12345678-aaaa-bbbb-cccc-1234567890ab"
SHELL = {"PROXMOX_VE_ENDPOINT": CONNECTION.endpoint, "PROXMOX_VE_API_TOKEN": TOKEN, "PROXMOX_VE_INSECURE": "true"}
CONFIG = "/nodes/pve/lxc/105/config"


class Node:
    """A guest's notes, as Proxmox keeps them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, notes: str = BLOCK, card: str = CARD) -> None:
        self.notes, self.card = notes, card
        self.fault = False
        self.server = Server({f"GET {CONFIG}": self.get, f"PUT {CONFIG}": self.put})

        def client(_connection: object, timings: Timings) -> object:
            assert timings.lock <= 5, "somebody waits for the command"
            return self.server.client(timings)

        monkeypatch.setattr("proxmox.client.Proxmox", client)
        monkeypatch.setattr(noted, "datetime", Clock)

    def get(self, _asked: Request) -> Any:
        return data({"description": self.notes, "net0": self.card, "digest": "d1"})

    def put(self, asked: Request) -> Any:
        if self.fault:
            return die("Permission check failed", 403)
        self.notes = asked.values["description"]
        return data(None)

    @property
    def writes(self) -> list[Request]:
        return [each for each in self.server.asked if each.method == "PUT"]


class Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        del tz
        return NOW


def guest(**outputs: Any) -> Guest:
    return Guest("cattle", "", {**OUTPUTS, **outputs}, SshTarget("192.0.2.7", KEY, private_key_file="/k"))


def test_the_time_is_written_once_and_with_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch)
    for _ in range(2):
        note_backup(guest(), MADE, SHELL)
    assert LINE in node.notes
    [write] = node.writes
    assert write.values["digest"] == "d1"
    assert set(write.values) == {"description", "digest"}


@pytest.mark.parametrize(
    ("shell", "outputs", "card"),
    [
        ({}, {}, CARD),
        ({**SHELL, "PROXMOX_VE_API_TOKEN": ""}, {}, CARD),
        (SHELL, {}, CARD.replace(":05", ":06")),  # another guest has the number by now
        (SHELL, {"hardwareAddress": ""}, "name=eth0,bridge=vmbr0"),
        (SHELL, {"node": ""}, CARD),
    ],
)
def test_nothing_is_written_without_the_way_or_to_another_guest(
    shell: dict[str, str], outputs: dict[str, Any], card: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(monkeypatch, card=card)
    note_backup(guest(**outputs), MADE, shell)
    assert node.writes == []


def broken_token(node: Node) -> dict[str, str]:
    del node
    return {**SHELL, "PROXMOX_VE_API_TOKEN": "secret-canary"}


def no_right(node: Node) -> dict[str, str]:
    node.fault = True
    return SHELL


@pytest.mark.parametrize("why", [broken_token, no_right])
def test_what_fails_is_one_line_and_fails_nothing(
    why: Callable[[Node], dict[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(monkeypatch)
    note_backup(guest(), MADE, why(node))
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert line.startswith("agent: the guest's notes don't tell of the last backup: ")
    assert "canary" not in json.dumps([said.out, said.err])
    assert node.notes == BLOCK
