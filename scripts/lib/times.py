"""Prints the seconds of each run of tests, and the slowest tests, from JUnit files."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from scripts.lib.ending import end_with

SLOWEST = 10


def lines_of(files: list[Path]) -> list[str]:
    """The lines to print, with the runs in the order in which they ended; empty if none ended."""
    lines: list[str] = []
    tests: list[tuple[float, str]] = []
    for file in sorted(files, key=lambda file: file.stat().st_mtime):
        (suite,) = ET.parse(file).getroot()  # noqa: S314 - pytest wrote it just now
        lines.append(f"{float(suite.attrib['time']):7.0f} s  {file.stem}: {suite.attrib['tests']} tests")
        for case in suite.iter("testcase"):
            tests.append((float(case.attrib["time"]), f"{case.attrib['classname']}::{case.attrib['name']}"))
    slowest = [f"{seconds:7.1f} s  {name}" for seconds, name in sorted(tests, reverse=True)[:SLOWEST]]
    return [*lines, "the slowest:", *slowest] if tests else lines


def main() -> int:
    # The shell passes a pattern without a match as it is.
    for line in lines_of([Path(name) for name in sys.argv[1:] if Path(name).exists()]):
        print(line)
    return 0


if __name__ == "__main__":
    end_with(main)
