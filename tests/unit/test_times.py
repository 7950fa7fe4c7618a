"""What scripts/test tells at its end."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

TIMES = Path(__file__).parents[2] / "scripts" / "lib" / "times.py"
# As pytest writes it.
JUNIT = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0"
failures="1" skipped="0" tests="2" time="{total}" timestamp="2026-07-20T00:00:00+00:00" hostname="ci">
<testcase classname="tests.e2e.test_{name}" name="test_waits[0]" time="0.004">
<failure>x</failure></testcase>
<testcase classname="tests.e2e.test_{name}" name="test_waits[1]" time="{longest}" /></testsuite></testsuites>"""


def test_the_seconds_of_each_run_and_the_slowest_of_all_tests(tmp_path: Path) -> None:
    files = []
    for number, (name, total, longest) in enumerate((("graph", 6.4, 0.5), ("e2e", 900.2, 89.04))):
        files.append(tmp_path / f"{name}.xml")
        files[-1].write_text(JUNIT.format(name=name, total=total, longest=longest))
        os.utime(files[-1], (number, number))
    lines = runpy.run_path(str(TIMES))["lines_of"](files[::-1])
    assert [line.split(maxsplit=2) for line in lines[:2]] == [
        ["6", "s", "graph: 2 tests"],
        ["900", "s", "e2e: 2 tests"],
    ]
    assert lines[2] == "the slowest:"
    assert [line.split() for line in lines[3:5]] == [
        ["89.0", "s", "tests.e2e.test_e2e::test_waits[1]"],
        ["0.5", "s", "tests.e2e.test_graph::test_waits[1]"],
    ]
    assert len(lines) == 7


def test_tests_that_never_ran_have_no_line() -> None:
    assert runpy.run_path(str(TIMES))["lines_of"]([]) == []
