"""What differs between releases of the agent, in one place.

Each entry holds from its release on, until the next. What is the same in all of them stands where it is used. A release
that is newer than the last entry is taken to be like it; what that is worth, the update's proof decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A release and what is true from it on."""

    since: tuple[int, int]
    config_schema: int
    """The `_config_version` that it begins with. Which one an installed agent has, it says itself."""
    read_from_home: frozenset[str]
    """Keys that its gateway takes from the user's config.yaml alone, and not from the managed scope."""


RELEASES = (
    Release(
        since=(0, 19),
        config_schema=33,
        # gateway/run.py, _load_fallback_model
        read_from_home=frozenset({"fallback_providers"}),
    ),
    Release(
        since=(0, 20),
        config_schema=37,
        # gateway/run.py, _load_fallback_model: by load_config, which has the managed scope
        read_from_home=frozenset(),
        # Also new, and met in a way that suits both: API_SERVER_ENABLED counts for nothing, a key alone opens the API,
        # and one that is too short leaves it closed without a word (gateway/config.py): ours have 32 characters, and
        # an empty one is pinned where the API is off. With Debian's SQLite new databases are in the mode `delete`
        # (hermes_cli/sqlite_runtime.py), old ones stay as they are: backups take both.
    ),
)
"""Oldest first. Read in upstream's tree at v2026.7.20 (0.19.0) and v2026.8.16.2 (0.20.3)."""

OLDEST = RELEASES[0]

# Options before the command that take a value (hermes --help of all of them), so that `hermes -z update` is a prompt.
VALUE_OPTIONS = frozenset(
    {"-z", "--oneshot", "--usage-file", "-m", "--model", "--provider", "-t", "--toolsets", "-r", "--resume"}
    | {"-c", "--continue", "-s", "--skills", "-p", "--profile", "--source", "--max-turns"}
    # since 0.20
    | {"--reasoning", "--in"}
)


def release_of(version: str) -> Release:
    """The entry for a version like 0.20.3; the oldest for what is older, or no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else OLDEST.since
    return next((entry for entry in reversed(RELEASES) if entry.since <= number), OLDEST)


def ever_read_from_home() -> frozenset[str]:
    """The keys that the gateway of some release takes from the user's config.yaml alone."""
    return frozenset().union(*(entry.read_from_home for entry in RELEASES))
