"""A home that somebody has used, and what becomes of it with another release: the same in each mode."""

from __future__ import annotations

import shlex
import time
from typing import Any

import yaml

from lab.services.source import Source
from tests.e2e.phase_guest import Guest, backups_plan

HOME = "/home/hermes"
BACKUPS = f"{HOME}/.hermes-stack/backups"
THEIRS = """\
# My own words about this agent
agent:
  max_turns: 7   # enough
display:
  background_process_notifications: all
delegation: {max_iterations: 50, max_concurrent_children: 4}   # the first was the default
mine: "kept"
"""
WORDS = ("# My own words about this agent\n", "7   # enough\n", "# the first was the default", 'mine: "kept"')
MIGRATED = {
    "_config_version": 37,
    "display": {"background_process_notifications": "concise"},
    "delegation": {"max_iterations": 250, "max_concurrent_children": 4},
}
"""What 0.20.3 makes of THEIRS: facts hermes 0.20, 5, the migrations 34 to 37."""
SCHEMAS = (22, 26)
"""Of state.db, in 0.19.0 and in 0.20.3: facts hermes 0.20, 6."""


def begin(guest: Guest) -> None:
    """A config.yaml with words of its own, and a cron job."""
    guest.shell(f"runuser -u hermes -- sh -c 'cat >{HOME}/.hermes/config.yaml'", stdin=THEIRS.encode())
    guest.shell("cd / && hermes cron create 'every 30d' 'say hello' --name greeting --deliver local")


def assert_as_begun(guest: Guest) -> None:
    """The config.yaml to the letter, and the cron job."""
    assert theirs(guest) == THEIRS
    assert "greeting" in cron_jobs(guest)


def assert_taken_along(guest: Guest, migrated: dict[str, Any]) -> None:
    """The config.yaml with the values of ``migrated`` and all words that were a person's, and the cron job."""
    now = theirs(guest)
    if migrated:
        assert yaml.safe_load(now) == {**yaml.safe_load(THEIRS), **migrated}
        assert THEIRS in guest.shell(f"cat {HOME}/.hermes-stack/replaced/config.yaml.*")
    for words in WORDS:
        assert words in now
    assert "greeting" in cron_jobs(guest)


def schemas_of(source: Source) -> tuple[int, int]:
    """Of state.db before and after; the same where the lab has images of 0.19.0 only."""
    return SCHEMAS if source.kind == "upstream" else (SCHEMAS[0], SCHEMAS[0])


def theirs(guest: Guest) -> str:
    return guest.shell(f"cat {HOME}/.hermes/config.yaml")


def cron_jobs(guest: Guest) -> str:
    return guest.shell("cd / && hermes cron list --all")


def schema(guest: Guest, database: str = f"{HOME}/.hermes/state.db") -> int:
    program = (
        "import sqlite3, sys\n"
        "database = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "print(database.execute('SELECT version FROM schema_version').fetchone()[0])"
    )
    return int(guest.shell(f"runuser -u hermes -- python3 -c {shlex.quote(program)} {database}"))


def sound(guest: Guest) -> bool:
    """Whether SQLite finds no fault in state.db."""
    check = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('PRAGMA integrity_check').fetchone()[0])"
    said = guest.shell(f"runuser -u hermes -- python3 -c {shlex.quote(check)} {HOME}/.hermes/state.db")
    return said.strip() == "ok"


def journal_mode(guest: Guest) -> str:
    """By the header of the file: bytes 18 and 19 are 2 in WAL, 1 in any other mode (SQLite's file format, 1.3.3)."""
    return guest.shell(f"head -c 20 {HOME}/.hermes/state.db | tail -c 2 | od -An -tu1").split()[0]


def backups(guest: Guest) -> list[dict[str, Any]]:
    """Newest first."""
    found = guest.run(backups_plan("list"))["backups"]
    assert isinstance(found, list)
    return found


def backup_line(guest: Guest) -> str:
    """What the status says of the backups."""
    text = guest.shell("python3 -IB /usr/local/lib/hermes-stack/status.py")
    return next(line for line in text.splitlines() if line.startswith("backup"))


def on_schedule(guest: Guest) -> list[str]:
    """Names of the backups that the timer made, newest first."""
    return [each["name"] for each in backups(guest) if each["reason"] == "on schedule"]


def minute_without_backup(guest: Guest) -> str:
    """The present minute, HH:MM, once it is a later one than that of the last backup."""
    newest = backups(guest)[0]["name"][: len("20261128T2359")]
    end = time.monotonic() + 90
    while (now := guest.shell("date --utc +%Y%m%dT%H%M").strip()) <= newest:
        assert time.monotonic() < end
        time.sleep(0.5)
    return f"{now[-4:-2]}:{now[-2:]}"
