"""What differs between releases of the agent: which entry a version gets, and what follows from it."""

from __future__ import annotations

import pytest

from applications.hermes.guest.cli import command_of
from applications.hermes.guest.configure import user_keys
from applications.hermes.guest.releases import OLDEST, RELEASES, release_of


@pytest.mark.parametrize(
    ("version", "since"),
    [
        ("0.19.0", (0, 19)),
        ("0.19.9", (0, 19)),
        ("0.20.0", (0, 20)),
        ("0.20.3", (0, 20)),
        # Newer than what is known: like the newest that is.
        ("0.21.5", (0, 20)),
        ("1.0.0rc1", (0, 20)),
        # Older, or no version at all.
        ("0.18.2", (0, 19)),
        ("dev", (0, 19)),
    ],
)
def test_a_version_gets_the_entry_of_the_release_before_it(version: str, since: tuple[int, int]) -> None:
    assert release_of(version).since == since


def test_the_entries_are_in_order_and_begin_with_the_oldest() -> None:
    assert [entry.since for entry in RELEASES] == sorted({entry.since for entry in RELEASES})
    assert RELEASES[0] is OLDEST


def test_a_key_is_put_into_the_users_file_only_where_it_is_read_nowhere_else() -> None:
    declared = {"fallback_providers": [{"provider": "p", "model": "m"}]}
    # upstream's gateway/run.py, _load_fallback_model: at v2026.7.20 by the home's file, at v2026.8.16.2 by load_config
    assert user_keys(declared, "0.19.0") == declared
    assert user_keys(declared, "0.20.3") == {}


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["-z", "update"], ()),
        (["--reasoning", "high", "update"], ("update",)),
        (["--in", "/srv", "gateway", "stop"], ("gateway", "stop")),
        (["--yolo", "setup"], ("setup",)),
    ],
)
def test_an_option_with_a_value_hides_no_command(arguments: list[str], command: tuple[str, ...]) -> None:
    assert command_of(arguments) == command
