"""Which command of the CLI the engine carries out. It tells no provider; its process has started this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

DESTROY = frozenset({"destroy", "down", "dn"})
"""What the CLI calls it (`pulumi destroy --help`)."""
SPARING = "--exclude-protected"
"""Its option that leaves what is protected, and all that this depends on."""
_VALUES = frozenset({"-C", "--cwd", "--color", "--profiling", "--tracing", "--memprofilerate", "-v", "--verbose"})
"""The options of all commands that take a value: it may stand before the command, as a word of its own."""
_SECONDS = 5


def verb_in(argv: Sequence[str]) -> str:
    """The command in a CLI's arguments, its own name first; empty where there is none."""
    words = iter(argv[1:])
    for word in words:
        if word in _VALUES:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return ""


def engine_words() -> list[str]:
    """The command line that this run is of; empty where that can't be told."""
    parent = os.getppid()
    try:
        return Path(f"/proc/{parent}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        pass
    # macOS has no /proc.
    ask = ["ps", "-o", "args=", "-p", str(parent)]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()
