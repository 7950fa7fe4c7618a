"""How long a step took, in seconds rounded to a tenth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    """Yields a function that tells the seconds since the block began."""
    begin = time.monotonic()
    yield lambda: round(time.monotonic() - begin, 1)
