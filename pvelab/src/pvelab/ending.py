"""How a command ends: with its exit status, also where nobody reads its output to the end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, cast

READER_GONE = 128 + 13
"""What a shell says of a program that SIGPIPE has ended."""


class Output(io.TextIOWrapper):
    """Standard output that raises SystemExit when its reader has ended, as `head` does after its lines.

    A BrokenPipeError would not do: it is an OSError, so code that expects one of a file or a connection would take
    it for its own. SIGPIPE stays ignored, because it would end the program for a connection, too.
    """

    gone = False

    def write(self, text: str) -> int:
        with self._told():
            return super().write(text)

    def flush(self) -> None:
        with self._told():
            super().flush()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # What is still to be said, by a clean-up or by Python when it ends, goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            self.gone = True
            raise SystemExit(READER_GONE) from None


def end_with(main: Callable[[], int]) -> NoReturn:
    """Run a command's `main`, and exit with what it answers; READER_GONE when its output's reader has ended first."""
    before = cast("io.TextIOWrapper", sys.stdout)
    sys.stdout = output = Output(
        before.buffer, before.encoding, before.errors,
        line_buffering=before.line_buffering, write_through=before.write_through,
    )  # fmt: skip
    try:
        status = main()
    finally:
        output.flush()
    sys.exit(READER_GONE if output.gone else status)
