"""Prints the content of a home as JSON. Runs in the guest, as the agent's user, with the agent's Python. So it imports
nothing of this package. Argument: the home (HERMES_HOME), or a copy of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BESIDE = {"backups", "state-snapshots", "checkpoints", "hermes-agent", "node_modules", ".venv", "venv"}


def files(home: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(home):
        folders[:] = sorted(name for name in folders if name not in BESIDE)
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?mode=ro", uri=True, timeout=60))


def rows(path: Path, query: str) -> list[Any]:
    """The first column; empty if there is no such table, or the database is damaged."""
    with contextlib.suppress(sqlite3.DatabaseError), opened(path) as database:
        return [row[0] for row in database.execute(query)]
    return []


def database(path: Path) -> dict[str, Any]:
    version = rows(path, "SELECT version FROM schema_version") or rows(path, "PRAGMA user_version")
    return {
        "schema": str(version[0]) if version else "",
        "mode": str((rows(path, "PRAGMA journal_mode") or [""])[0]),
        "sound": rows(path, "PRAGMA integrity_check(1)") == ["ok"],
    }


def identities(value: Any) -> Iterator[str]:
    """Every `id` in a tree."""
    if isinstance(value, dict):
        if isinstance(value.get("id"), str | int):
            yield str(value["id"])
        for item in value.values():
            yield from identities(item)
    elif isinstance(value, list):
        for item in value:
            yield from identities(item)


def config(home: Path) -> tuple[int | None, list[str]]:
    """The schema number of the user's config.yaml, and its top-level keys that this agent does not know."""
    import yaml  # noqa: PLC0415 - the agent brings it

    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
        found = yaml.safe_load((home / "config.yaml").read_text(encoding="utf-8"))
        if isinstance(found, dict):
            known = known_keys()
            unknown = sorted(str(key) for key in found if key not in known and not str(key).startswith("_"))
            number = found.get("_config_version")
            return (number if isinstance(number, int) else None), unknown
    return None, []


def known_keys() -> set[str]:
    """The top-level keys that this agent knows, from its own check of a configuration."""
    from hermes_cli import config as own  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415

    beside = ("_KNOWN_ROOT_KEYS", "_EXTRA_KNOWN_ROOT_KEYS")
    return set(own.DEFAULT_CONFIG).union(*(getattr(own, name, ()) for name in beside))


def look(home: Path) -> dict[str, Any]:
    databases, state = {}, home / "state.db"
    for path in files(home):
        with contextlib.suppress(OSError), path.open("rb") as stream:
            if stream.read(16) == b"SQLite format 3\0":
                databases[path.relative_to(home).as_posix()] = database(path)
    memories = {
        path.relative_to(home).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in [home / "SOUL.md", *sorted((home / "memories").glob("*.md"))]
        if path.is_file()
    }
    jobs: Any = []
    with contextlib.suppress(OSError, ValueError, RecursionError):
        jobs = json.loads((home / "cron" / "jobs.json").read_text(encoding="utf-8"))
    number, unknown = config(home)
    return {
        "sessions": rows(state, "SELECT id FROM sessions"),
        "messages": (rows(state, "SELECT count(*) FROM messages") or [0])[0],
        "memories": memories,
        "cron": sorted(set(identities(jobs))),
        "skills": sorted(path.parent.relative_to(home).as_posix() for path in (home / "skills").rglob("SKILL.md")),
        "databases": databases,
        "config_version": number,
        "unknown_keys": unknown,
    }


if __name__ == "__main__":
    json.dump(look(Path(sys.argv[1])), sys.stdout)
