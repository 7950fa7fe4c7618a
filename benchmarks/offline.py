"""How long an agent is away, seen from outside: from its last good answer to the next one."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PAUSE = 0.05
PATIENCE = 0.3
"""Seconds that an answer may take. What is measured can be wrong by so much at most, at each end."""


class Watch:
    """Asks the agent's API for its health, again and again, over the network that a person's computer is on."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.longest = 0.0
        self.last: float | None = None
        self._end = threading.Event()

    def answers(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/health")
            answer = connection.getresponse()
            return answer.status == 200 and b'"ok"' in answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def look(self) -> None:
        while not self._end.is_set():
            good = self.answers()
            self.note(time.monotonic(), good)
            self._end.wait(PAUSE)

    def note(self, now: float, good: bool) -> None:
        """An answer came, good or not, in this moment."""
        if good:
            self.longest = max(self.longest, now - (now if self.last is None else self.last))
            self.last = now

    def end(self) -> None:
        self._end.set()


@contextmanager
def watched(host: str, port: int) -> Iterator[Watch]:
    """A watch beside the block. Afterwards ``longest`` is the longest time between two good answers, in seconds."""
    watch = Watch(host, port)
    thread = threading.Thread(target=watch.look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.end()
        thread.join()
