"""What each test of this level begins with."""

from __future__ import annotations

import itertools

import pytest

from applications.hermes.guest import state


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where each command is a process of its own: what one may say is counted."""
    monkeypatch.setattr(state, "_said", itertools.count(1))
