"""Backups on schedule: a timer of the container's systemd, when one is due, and how it stands with them.

The timer starts `backups scheduled` at each of the times and a while after a start of the container. What is not due
is not made: so a container that was off at the time makes it up, and one that is new does not make another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from applications.hermes.guest import records
from applications.hermes.guest.services import enabling
from provisioning.guest.common import LIBRARY, execute, install_file, read_json, run, write_json
from provisioning.guest.words import command

# Not hermes-*: who stops the agent's services by that pattern does not stop its backups.
SERVICE = "agent-backup.service"
TIMER = "agent-backup.timer"
UNITS = Path("/etc/systemd/system")
AFTER_START = timedelta(minutes=15)
GRACE = timedelta(hours=2)
"""How late one may be: a container starts, another one is at work, the volume is slow."""
FAULT_LIMIT = 600
"""Characters that are noted of a fault: enough for what is full, and what to do."""
OFF, WAITING, MADE, OVERDUE, FAILED = "off", "waiting", "made", "overdue", "failed"

SERVICE_TEXT = f"""\
# Written by the stack; changes by hand are overwritten.
[Unit]
Description=Backup of the agent's data on schedule

[Service]
Type=oneshot
ExecStart={LIBRARY}/backups scheduled
# The agent comes first.
Nice=10
IOSchedulingClass=idle
NoNewPrivileges=yes
PrivateTmp=yes
"""


def timer_text(times: Sequence[str]) -> str:
    calendar = "".join(f"OnCalendar=*-*-* {time}:00\n" for time in times)
    return (
        "# Written by the stack; changes by hand are overwritten.\n"
        "[Unit]\nDescription=When the agent's data are backed up\n\n"
        f"[Timer]\n{calendar}OnActiveSec={AFTER_START.seconds}\n\n[Install]\nWantedBy=timers.target\n"
    )


def install(times: Sequence[str]) -> None:
    """Have the timer run at these times, or none. Safe to repeat; what is there with the same content stays."""
    if not times:
        if remove_timer(TIMER, SERVICE):
            print("backups: none on schedule any more")
    elif install_timer(TIMER, {SERVICE: SERVICE_TEXT, TIMER: timer_text(times)}):
        print(f"backups: on schedule at {', '.join(times)}")


def install_timer(timer: str, texts: Mapping[str, str]) -> bool:
    """Have a timer run that is among these units, by name; whether any of them was another before."""
    written = [unit for unit, text in texts.items() if install_file(UNITS / unit, text, mode=0o644, gid=0)]
    if written:
        run("systemctl", "daemon-reload")
    run(*enabling(timer))
    run("systemctl", "restart" if timer in written else "start", timer)
    return bool(written)


def remove_timer(timer: str, service: str) -> bool:
    """Whether it was there."""
    if not (UNITS / timer).exists():
        return False
    run("systemctl", "disable", "--now", "--quiet", timer)
    for unit in (timer, service):
        (UNITS / unit).unlink(missing_ok=True)
    run("systemctl", "daemon-reload")
    return True


def last_due(times: Sequence[str], now: datetime) -> datetime:
    """The last of the times of day before `now`, which has a time zone. `times` is not empty."""
    days = (now - timedelta(days=days) for days in (0, 1, 2))
    moments = (
        day.replace(hour=int(time[:2]), minute=int(time[3:]), second=0, microsecond=0) for day in days for time in times
    )
    return max(moment for moment in moments if moment <= now)


def time_of(name: str) -> datetime:
    """When a backup of this name was made."""
    return datetime.strptime(name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)


def is_due(times: Sequence[str], newest: str | None, now: datetime) -> bool:
    """Whether one has to be made. `newest`: the name of the newest that is ours."""
    return newest is None or time_of(newest) < last_due(times, now)


@dataclass(frozen=True)
class Standing:
    """How it stands with the backups. `word`: one of OFF, WAITING, MADE, OVERDUE, FAILED; `text`: for people."""

    word: str
    text: str

    @property
    def is_bad(self) -> bool:
        return self.word in (OVERDUE, FAILED)

    def __str__(self) -> str:
        return f"{self.word.upper()}: {self.text}" if self.is_bad else self.text


def standing(
    times: Sequence[str],
    newest: str | None,
    *,
    since: datetime | None,
    last: Mapping[str, Any],
    now: datetime,
) -> Standing:
    """`newest`: see `is_due`. `since`: when the timer was started; None: it does not run. `last`: see `note`."""
    made = f"the last one is of {time_of(newest):%Y-%m-%d %H:%M} UTC ({newest})" if newest else "there is none yet"
    if not times:
        return Standing(OFF, f"none on schedule; {made}")
    when = f"each day at {', '.join(times)}"
    if since is None:
        return Standing(FAILED, f"the timer does not run; {made}. Start it: {command('systemctl', 'start', TIMER)}")
    fault, at = last.get("fault"), last.get("time")
    if isinstance(fault, str) and isinstance(at, str) and fault and (newest is None or time_of(newest) < when_was(at)):
        return Standing(FAILED, f"{made}; the one of {when_was(at):%Y-%m-%d %H:%M} UTC was not made: {fault}")
    due = last_due(times, now)
    if is_due(times, newest, now) and now - max(due, since) > GRACE:
        return Standing(OVERDUE, f"{made}; one was due at {due:%Y-%m-%d %H:%M %Z}. Look: journalctl -u {SERVICE}")
    if newest is None:
        return Standing(WAITING, f"{made}; {when}, the first within {AFTER_START.seconds // 60} minutes")
    return Standing(MADE, f"{made}; {when}")


def when_was(noted: str) -> datetime:
    """A time that `note` has written; the epoch for anything else."""
    try:
        found = datetime.fromisoformat(noted)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def now_text() -> str:
    """The present time, as `when_was` reads it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def note(fault: str) -> None:
    """Root's own record of how the last run on schedule ended. Empty: well."""
    line = " ".join(fault.split())[:FAULT_LIMIT]
    write_json(_record(), {"time": now_text(), "fault": line})


def _record() -> Path:
    return records.HERE.with_name("scheduled-backup.json")


def standing_now(times: Sequence[str], newest: str | None) -> Standing:
    """As it is in this container."""
    since = running_since(TIMER) if times else None
    return standing(times, newest, since=since, last=read_json(_record()), now=datetime.now().astimezone())


def running_since(timer: str) -> datetime | None:
    """When systemd has started a timer; None where it does not run."""
    names = ("--property=ActiveState", "--property=ActiveEnterTimestamp", "--timestamp=unix")
    text = execute("systemctl", "show", *names, timer, timeout_s=20).stdout
    found = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    entered = found.get("ActiveEnterTimestamp", "").removeprefix("@")
    if found.get("ActiveState") != "active" or not entered.isdigit():
        return None
    return datetime.fromtimestamp(int(entered), UTC)
