"""The comment of a pull request, made by scripts/preview from real previews, beside its text in tests/golden."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from lab.instance import CHECKOUT

GOLDEN = Path(__file__).parent / "golden"
VARYING = {
    r"https://127\.0\.0\.1:\d+": "ENDPOINT",
    r"(?:[0-9A-F]{2}:){5}[0-9A-F]{2}": "MAC",
    r"claim: [0-9a-f-]{36}": "claim: CLAIM",
    r"ssh-ed25519 AAAA[A-Za-z0-9+/=]+": "KEY",
}
"""What differs from lab to lab."""


def as_comment(environment: Mapping[str, str], *stacks: str, good: bool = True) -> str:
    """What a pull request would be told."""
    command = [str(CHECKOUT / "scripts" / "preview"), *stacks]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    return done.stdout


def is_as_in(file: str, text: str, varying: Mapping[str, str] | None = None) -> None:
    """The text is the one of tests/golden; WRITE_GOLDEN=1 writes it, for a look with git diff.

    `varying`: what differs in this test from run to run besides, patterns and names.
    """
    for pattern, name in {**(varying or {}), **VARYING}.items():
        text = re.sub(pattern, name, text)
    golden = GOLDEN / file
    if os.environ.get("WRITE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()
