"""How the scripts end: their exit status, and a reader of their output who ends first, such as `head`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
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
EXPECTS_ONE = """
    try:
        print("a line", flush=True)
    except OSError as error:  # of a file
        print(error, file=sys.stderr)
    return 1"""
IN_A_THREAD = """
    import threading
    thread = threading.Thread(target=print, args=("a line",), kwargs={"flush": True})
    thread.start()
    thread.join()
    return 0"""
# Files that a Python runs, and why a reader of what they print can't end first.
NO_READER = {
    "applications/hermes/guest/": "in a guest, as units and jobs",
    "components/": "by the engine",
    "docker/build.py": "in an image that is built",
    "lab/image.py": "by ensure_images, which reads all",
    "lab/services/source.py": "by scripts/test, which reads all",
    "pvelab/src/pvelab/hotmount.py": "by the lab",
    "pvelab/src/pvelab/letgo.py": "by the lab",
    "pvelab/src/pvelab/template.py": "by ensure_template, which reads all",
    "scripts/lib/setup.py": "before there is anything to import; says all on standard error",
    "settings/generate.py": "says all on standard error",
    "trial/unpack.py": "in a guest, as a job",
}


def ended(command: Sequence[str], output: int) -> subprocess.CompletedProcess[str]:
    """Run to its end. `output`: the file descriptor that it prints to."""
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=output, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True, check=False, timeout=60,
    )  # fmt: skip


def without_a_reader(*command: str) -> tuple[int, str]:
    """Status and words of a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = ended(command, writer)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


def script(body: str) -> tuple[str, ...]:
    """A script whose `main` has this body."""
    return sys.executable, "-c", PROGRAM.format(body=body)


@pytest.mark.parametrize(
    "body",
    [
        "print('one line'); return 0",
        "print('x' * 1_000_000); return 0",
        "print('of --help'); sys.exit(0)",
        EXPECTS_ONE,
        IN_A_THREAD,
        "from rich.console import Console; Console().print('a table'); return 0",
    ],
    ids=["less than a buffer", "more than a pipe holds", "argparse ends it", "expects OSError", "a thread", "rich"],
)
def test_a_reader_that_has_gone_is_no_fault(body: str) -> None:
    assert without_a_reader(*script(body)) == (READER_GONE, "")


@pytest.mark.parametrize(
    "words",
    [
        ("lab.cli", "--help"),
        ("lab.cli", "doctor"),
        ("lab.cli", "--dir", "/nonexistent/lab", "status"),
        ("lab.pct", "--help"),
        ("pvelab", "doctor"),
        ("pvelab.benchmark", "--help"),
        ("pvelab.conformance", "--help"),
        ("pvelab.pct", "--help"),
        ("trial", "--help"),
        ("benchmarks", "--help"),
    ],
    ids=" ".join,
)
def test_a_command_of_which_nobody_reads_all_says_nothing_of_it(words: tuple[str, ...]) -> None:
    assert without_a_reader(sys.executable, "-m", *words) == (READER_GONE, "")


@pytest.mark.parametrize(("body", "status"), [("return 0", 0), ("return 1", 1), ("sys.exit(2)", 2)])
def test_a_status_is_that_of_the_script(body: str, status: int) -> None:
    assert ended(script(body), subprocess.DEVNULL).returncode == status


def test_another_broken_pipe_is_raised() -> None:
    done = ended(script("raise BrokenPipeError('of a connection')"), subprocess.DEVNULL)
    assert done.returncode == 1
    assert "BrokenPipeError: of a connection" in done.stderr


def test_each_command_ends_so() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    outside = ("examples/", "pvelab/tests/", "tests/graph/")
    programs = {
        name: text
        for name in tracked.stdout.splitlines()
        if not name.startswith(outside) and '\nif __name__ == "__main__":' in (text := (ROOT / name).read_text())
    }
    assert len(programs) > 20
    others = {name for name, text in programs.items() if not any(end in text for end in ("    end_with(", "command()"))}
    assert {name for name in others if not name.startswith(tuple(NO_READER))} == set()
    assert {place for place in NO_READER if not any(name.startswith(place) for name in others)} == set()


def test_the_distribution_of_the_lab_ends_as_the_scripts_do() -> None:
    """It imports none of them, and they run where it is not installed."""
    own, of_scripts = (ROOT / place / "ending.py" for place in ("pvelab/src/pvelab", "scripts/lib"))
    assert own.read_text() == of_scripts.read_text()
