"""How tests are shared out where several run at a time."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_TOGETHER = ("tests/e2e/", "pvelab/tests/containers/", "pvelab/tests/test_command.py", "pvelab/tests/test_readme.py")


class _Sharing(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist tells no types
    """The tests of a file with one lab for all stay together in one worker. All others go where there is room."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.startswith(_TOGETHER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Sharing:
    return _Sharing(config, log)
