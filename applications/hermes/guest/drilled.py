"""How the last drill went: root's own note in the real cattle, and one line about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from applications.hermes.guest.records import HERE
from applications.hermes.guest.schedule import FAULT_LIMIT, when_was
from provisioning.guest.common import read_json

NONE_YET = "none yet: scripts/agent drill"


def noted_path() -> Path:
    """The note. It goes with the cattle: another one has had no drill."""
    return HERE.with_name("drill.json")


def note_line(now: datetime, backup: str, fault: str) -> str:
    """What is noted down. `fault`: empty, if the drill passed."""
    return json.dumps(
        {
            "time": now.astimezone(UTC).isoformat(timespec="seconds"),
            "backup": backup,
            "fault": " ".join(fault.split())[:FAULT_LIMIT],
        }
    )


def last_drill() -> str:
    """In words, from the note."""
    found = read_json(noted_path())
    time, backup, fault = (found.get(name) for name in ("time", "backup", "fault"))
    if not isinstance(time, str) or not isinstance(backup, str) or not isinstance(fault, str):
        return NONE_YET
    when = f"{when_was(time):%Y-%m-%d %H:%M} UTC, {backup}"
    return f"FAILED: {when}: {fault}" if fault else f"passed: {when}"
