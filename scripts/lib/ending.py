"""How a script ends: with its exit status, also where nobody reads its output to the end."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

READER_GONE = 128 + 13
"""What a shell says of a program that SIGPIPE has ended."""


def end_with(main: Callable[[], int]) -> NoReturn:
    """Run a script's `main`, and exit with what it answers; READER_GONE when its output's reader has ended, as `head`
    does after its lines.

    A broken pipe of anything else, such as a connection, is raised. SIGPIPE stays ignored: it would end the program
    for that, too.
    """
    try:
        try:
            status = main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not reader_gone():
            raise
        # Python flushes once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = READER_GONE
    sys.exit(status)


def reader_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
