"""What strace and the API's log tell of a run, as they write it; and what the bench makes of its figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lab.counting import connections_of, processes_of, requests_of

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "lib" / "bench.py"

# As strace 6 writes it with -f: two threads of a process take turns, and PATH is searched.
TRACE = """\
100   execve("/usr/bin/pulumi", ["pulumi", "preview"], 0x7ffd /* 73 vars */) = 0
101   execve("/opt/no/git", ["git", "status"], 0x7ffd /* 73 vars */) = -1 ENOENT (No such file or directory)
101   execve("/usr/bin/git", ["git", "status"], 0x7ffd /* 73 vars */ <unfinished ...>
100   connect(6, {sa_family=AF_INET, sin_port=htons(8006), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
101   <... execve resumed>)              = 0
102   connect(7, {sa_family=AF_INET, sin_port=htons(22), sin_addr=inet_addr("10.0.0.5")}, 16) = -1 ECONNREFUSED
102   connect(7, {sa_family=AF_INET6, sin6_port=htons(22), sin6_flowinfo=htonl(0)}, 28 <unfinished ...>
102   <... connect resumed>)             = 0
102   connect(8, {sa_family=AF_UNIX, sun_path="/run/22"}, 110) = 0
103   execve("/usr/bin/python", ["python", "-c", "x) = 0"], 0x7ffd /* 9 vars */) = 0
"""


def test_a_program_counts_once_and_one_that_is_not_there_not_at_all() -> None:
    assert processes_of(TRACE) == 3


def test_each_attempt_on_the_port_counts() -> None:
    assert connections_of(TRACE) == 2
    assert connections_of(TRACE, 8006) == 1


def test_only_the_users_own_requests_count() -> None:
    entries = [
        {"authid": "pulumi@pve!lab", "write": False},
        {"authid": "pulumi@pve!lab", "write": True},
        {"authid": "root@pam!hands", "write": True},
        {"authid": None, "write": False},
    ]
    assert requests_of("".join(f"{json.dumps(entry)}\n" for entry in entries), "pulumi@pve") == (2, 1)


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_script", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_ratio_is_of_two_runs_of_the_same_round(bench: ModuleType) -> None:
    """What else the machine does changes from round to round, and meets both."""
    figures = {kind: bench.Figures([1.0], [1.0]) for kind in bench.KINDS}
    figures["empty-preview"] = bench.Figures([1.0, 10.0, 2.0], [1.0, 1.0, 1.0])
    figures["preview"] = bench.Figures([3.0, 20.0, 8.0], [2.0, 2.0, 2.5])
    assert bench.ratios(figures)["preview"] == {"seconds": 3.0, "cpu": 2.0}
    assert bench.ratios(figures)["nothing"] == {"seconds": 1.0, "cpu": 1.0}


def test_the_table_is_put_between_its_marks(bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{bench.BEGIN}\nold\n{bench.END}\nafter\n")
    monkeypatch.setattr(bench, "DOCUMENT", document)
    bench.write_document("new")
    assert document.read_text() == f"before\n{bench.BEGIN}\n\nnew\n\n{bench.END}\nafter\n"
