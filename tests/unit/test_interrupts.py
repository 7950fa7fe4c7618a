"""SIGINT, which a shell's background ignores, and the engine needs to end its plugins at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import subprocess, sys
from lab.engine import take_interrupts
{call}
said = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
print(int(said.split()[1], 16))
"""
IGNORED = 1 << (signal.SIGINT - 1)


def ignored_by_a_child(call: str) -> int:
    """The signals that a child ignores, as bits, of a process that was started as `command &` of a script is."""
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", PROGRAM.format(call=call)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return int(done.stdout)


def test_what_is_started_takes_interrupts_again() -> None:
    assert ignored_by_a_child("") & IGNORED
    assert not ignored_by_a_child("take_interrupts()") & IGNORED
