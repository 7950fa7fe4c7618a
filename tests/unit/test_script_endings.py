"""How the scripts end: their exit status, and a reader of their output who ends first, such as `head`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lib.ending import READER_GONE

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from scripts.lib.ending import end_with

def main():
    {body}

end_with(main)
"""
WITHOUT_PACKAGES = {"setup.py"}
"""It runs before there is anything to import, and prints a few lines only."""


def ended(body: str, output: int) -> subprocess.CompletedProcess[str]:
    """A script whose `main` has this body. `output`: the file descriptor that it prints to."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=output, stderr=subprocess.PIPE, text=True,
        check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize(
    "body",
    ["print('one line'); return 0", "print('x' * 1_000_000); return 0", "print('of --help'); sys.exit(0)"],
    ids=["less than a buffer", "more than a pipe holds", "argparse ends it"],
)
def test_a_reader_that_has_gone_is_no_fault(body: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = ended(body, writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, "")


@pytest.mark.parametrize(("body", "status"), [("return 0", 0), ("return 1", 1), ("sys.exit(2)", 2)])
def test_a_status_is_that_of_the_script(body: str, status: int) -> None:
    assert ended(body, subprocess.DEVNULL).returncode == status


def test_another_broken_pipe_is_raised() -> None:
    done = ended("raise BrokenPipeError('of a connection')", subprocess.DEVNULL)
    assert done.returncode == 1
    assert "BrokenPipeError: of a connection" in done.stderr


def test_each_script_ends_so() -> None:
    programs = [
        file
        for file in sorted((ROOT / "scripts" / "lib").glob("*.py"))
        if "sys.exit(main())" in (text := file.read_text()) or "end_with(main)" in text
    ]
    others = {file.name for file in programs if "end_with(main)" not in file.read_text()}
    assert len(programs) > 5
    assert others == WITHOUT_PACKAGES
