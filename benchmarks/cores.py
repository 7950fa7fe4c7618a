"""What all cores of the machine have worked: whatever did the work, the guests and the lab among them."""

from __future__ import annotations

import os
from pathlib import Path

STAT = Path("/proc/stat")
_IDLE = {3, 4, 7}
"""Columns of a line of /proc/stat that are no work of this machine: idle, iowait, steal (proc_stat(5))."""
_TOLD_TWICE = {8, 9}
"""guest and guest_nice are in user and nice as well."""


def worked(stat: str) -> float:
    """CPU seconds since the machine started, from the text of /proc/stat."""
    ticks = [int(word) for word in stat.splitlines()[0].split()[1:]]
    return sum(ticks[at] for at in range(len(ticks)) if at not in _IDLE | _TOLD_TWICE) / os.sysconf("SC_CLK_TCK")


class Cores:
    """Counts from when it was last asked."""

    def __init__(self) -> None:
        self._last = worked(STAT.read_text())

    def since(self) -> float:
        """CPU seconds of the machine since this was asked before."""
        before, self._last = self._last, worked(STAT.read_text())
        return self._last - before
