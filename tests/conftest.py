"""How tests are shared out where several run at a time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from lab.engine import take_interrupts

# Neither the speed of a machine nor chance decides a test: hypothesis has limits of its own, and other cases each time.
settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None, derandomize=True
)
settings.load_profile("any-machine")

_TOGETHER = ("tests/e2e/", "pvelab/tests/containers/", "pvelab/tests/test_command.py", "pvelab/tests/test_readme.py")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


class _Sharing(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist tells no types
    """The tests of a file with one lab for all stay together in one worker. All others go where there is room."""

    def _split_scope(self, nodeid: str) -> str:
        return _file(nodeid) if nodeid.startswith(_TOGETHER) else nodeid


def pytest_configure() -> None:
    """In the background of a shell, too, no run of the engine waits for its plugins to end."""
    take_interrupts()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Sharing:
    return _Sharing(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes begins first; what any worker can take fills the gaps at the end, and of it seconds come last.

    A file with a single test is a story from end to end: the longest of all. Then the other files with a lab, by the
    number of their tests. Of the lifecycle's files those with few tests have the long ones; the most have those that
    need no engine. The scheduler keeps this order (--no-loadscope-reorder).
    """
    tests = Counter(_file(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        count = tests[_file(item.nodeid)]
        if item.nodeid.startswith(_TOGETHER):
            return (False, count > 1, -count)
        return (True, False, count if item.nodeid.startswith("tests/lifecycle/") else 0)

    items.sort(key=place)
