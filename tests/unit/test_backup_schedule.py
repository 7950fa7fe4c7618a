"""When a backup is due, and what is said of it. Times of day are the container's own; all else is UTC."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import schedule, services
from applications.hermes.guest.schedule import FAILED, MADE, OFF, OVERDUE, WAITING, Standing
from provisioning.guest.common import LIBRARY

NOON = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
EARLIER = datetime(2026, 11, 20, tzinfo=UTC)
TONIGHT = "20261128T033107Z-0.20.3"
LAST_NIGHT = "20261127T033107Z-0.20.3"


@pytest.mark.parametrize(
    ("times", "now", "due"),
    [
        (["03:30"], NOON, datetime(2026, 11, 28, 3, 30, tzinfo=UTC)),
        (["12:00"], NOON, NOON),
        (["12:01"], NOON, datetime(2026, 11, 27, 12, 1, tzinfo=UTC)),
        (["01:00", "09:00", "17:00"], NOON, datetime(2026, 11, 28, 9, 0, tzinfo=UTC)),
        (["23:59"], datetime(2026, 3, 1, 0, 0, tzinfo=UTC), datetime(2026, 2, 28, 23, 59, tzinfo=UTC)),
    ],
)
def test_the_last_that_was_due(times: list[str], now: datetime, due: datetime) -> None:
    assert schedule.last_due(times, now) == due


@pytest.mark.parametrize(
    ("newest", "due"),
    [(None, True), (LAST_NIGHT, True), (TONIGHT, False), ("20261128T032959Z-0.20.3", True)],
)
def test_one_is_due_once_a_time(newest: str | None, due: bool) -> None:
    assert schedule.is_due(["03:30"], newest, NOON) is due


def test_the_times_of_day_are_the_containers_own() -> None:
    # 03:30 there is 01:30 UTC: the one of 03:31 UTC is of this night there, that of 01:29 UTC is not.
    there = NOON.astimezone(timezone(timedelta(hours=2)))
    assert not schedule.is_due(["03:30"], TONIGHT, there)
    assert schedule.is_due(["03:30"], "20261128T012900Z-0.20.3", there)


def failed(hours: int, fault: str = "no room") -> dict[str, str]:
    return {"time": (NOON - timedelta(hours=hours)).isoformat(), "fault": fault}


@pytest.mark.parametrize(
    ("given", "word", "text"),
    [
        ({"times": []}, OFF, "none on schedule; the last one is of 2026-11-28 03:31 UTC"),
        ({}, MADE, f"the last one is of 2026-11-28 03:31 UTC ({TONIGHT}); each day at 03:30"),
        ({"newest": LAST_NIGHT}, OVERDUE, "one was due at 2026-11-28 03:30 UTC. Look: journalctl -u agent-backup"),
        ({"newest": None}, OVERDUE, "there is none yet; one was due"),
        # Just started: what was missed is made up in a while.
        ({"newest": LAST_NIGHT, "since": NOON - timedelta(minutes=20)}, MADE, "of 2026-11-27"),
        ({"newest": None, "since": NOON - timedelta(minutes=20)}, WAITING, "the first within 15 minutes"),
        ({"newest": LAST_NIGHT, "times": ["11:00"]}, MADE, "of 2026-11-27"),
        ({"since": None}, FAILED, "the timer does not run; the last one is of 2026-11-28"),
        ({"newest": LAST_NIGHT, "last": failed(8)}, FAILED, "the one of 2026-11-28 04:00 UTC was not made: no room"),
        # Made up by hand since.
        ({"last": failed(9)}, MADE, "of 2026-11-28"),
        ({"last": failed(1, "")}, MADE, "of 2026-11-28"),
        ({"last": {"time": "yesterday", "fault": "x"}}, MADE, "of 2026-11-28"),
        ({"last": {"time": 1, "fault": ["x"]}}, MADE, "of 2026-11-28"),
    ],
)
def test_how_it_stands(given: dict[str, Any], word: str, text: str) -> None:
    known: dict[str, Any] = {"times": ["03:30"], "newest": TONIGHT, "since": EARLIER, "last": {}, "now": NOON, **given}
    found = schedule.standing(known.pop("times"), known.pop("newest"), **known)
    assert found.word == word, found
    assert text in found.text
    assert found.is_bad is (word in (OVERDUE, FAILED))
    assert str(found).startswith(word.upper()) is found.is_bad


class Systemd:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, units: Path) -> None:
        self.called: list[str] = []
        self.shown = "ActiveState=active\nActiveEnterTimestamp=@1795867200\n"
        monkeypatch.setattr(schedule, "UNITS", units)
        for module in (schedule, services):
            monkeypatch.setattr(module, "run", lambda *command: self.called.append(" ".join(command[1:])))
        monkeypatch.setattr(
            schedule, "execute", lambda *command, **_: subprocess.CompletedProcess(command, 0, self.shown)
        )
        monkeypatch.setattr(schedule, "install_file", written)


def written(path: Path, text: str, **_: Any) -> bool:
    same = path.exists() and path.read_text() == text
    path.write_text(text)
    return not same


def test_the_timer_is_made_once_changed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(monkeypatch, tmp_path)
    schedule.install(["03:30", "15:30"])
    assert systemd.called == [
        "daemon-reload", "enable agent-backup.timer --quiet --no-reload", "restart agent-backup.timer",
    ]  # fmt: skip
    schedule.install(["03:30", "15:30"])
    assert systemd.called[3:] == ["enable agent-backup.timer --quiet --no-reload", "start agent-backup.timer"]
    schedule.install([])
    assert list(tmp_path.iterdir()) == []
    assert systemd.called[5:] == ["disable --now --quiet agent-backup.timer", "daemon-reload"]
    schedule.install([])
    assert len(systemd.called) == 7


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """systemd-analyze verify, where there is one; it also refuses an OnCalendar= that it can't read."""
    (tmp_path / schedule.TIMER).write_text(schedule.timer_text(["03:30", "23:59"]))
    (tmp_path / schedule.SERVICE).write_text(schedule.SERVICE_TEXT.replace(f"{LIBRARY}/backups", "/bin/true"))
    done = subprocess.run(
        ["/usr/bin/systemd-analyze", "verify", str(tmp_path / schedule.TIMER)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shown", "since"),
    [
        ("ActiveState=active\nActiveEnterTimestamp=@1795867200\n", datetime(2026, 11, 28, 12, 0, tzinfo=UTC)),
        ("ActiveState=inactive\nActiveEnterTimestamp=@1795867200\n", None),
        ("ActiveState=active\nActiveEnterTimestamp=\n", None),
        ("", None),
    ],
)
def test_since_when_the_timer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, since: datetime | None
) -> None:
    systemd = Systemd(monkeypatch, tmp_path)
    systemd.shown = shown
    assert schedule.running_since(schedule.TIMER) == since


@pytest.mark.parametrize(("times", "word"), [([], OFF), (["03:30"], FAILED)])
def test_a_container_without_a_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: list[str], word: str
) -> None:
    Systemd(monkeypatch, tmp_path).shown = ""
    monkeypatch.setattr(schedule, "_record", lambda: tmp_path / "none.json")
    standing: Callable[..., Standing] = schedule.standing_now
    assert standing(times, TONIGHT).word == word
