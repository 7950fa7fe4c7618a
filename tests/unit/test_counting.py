"""What strace and the API's log tell of a run, as they write it; and what the bench makes of its figures."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from applications.hermes.phases import BASE_PACKAGES, EXPECTED, EXTRAS, PROMPT
from benchmarks import __main__ as command
from benchmarks.cores import worked
from benchmarks.offline import Watch, watched
from benchmarks.peer import FILES, why_no_peer
from benchmarks.report import KINDS, Figures, Report, Target, Together, ratio, row, table, targets
from benchmarks.rounds import PARTS
from lab.counting import Cost, connections_of, processes_of, requests_of

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


def report_of(**seconds: list[float]) -> Report:
    """A report of some kinds of runs; CPU seconds of all kinds are as the seconds."""
    report = Report({})
    for kind, values in seconds.items():
        report.runs[kind.replace("_", "-")] = Figures(list(values), list(values), list(values))
    return report


def measured(report: Report) -> dict[str, Target]:
    return {target.title: target for target in targets(report)}


def test_a_ratio_is_of_two_runs_of_the_same_round() -> None:
    """What else the machine does changes from round to round, and meets both."""
    assert ratio([3.0, 20.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert ratio([3.0], []) is None


def test_a_target_says_what_was_not_measured() -> None:
    found = measured(report_of(preview=[3.0], empty_preview=[2.0], peer_up=[30.0]))
    assert found["preview / empty program's"].measured == 1.5
    assert found["preview / empty program's"].words.endswith("| at most 1.5 | 1.50 | yes |")
    assert "not measured" in found["peer's / up from a golden template"].words


def test_a_target_is_missed_on_the_side_that_it_has() -> None:
    found = measured(report_of(golden=[10.0], peer_up=[30.0], cold_destroy=[3.0], peer_destroy=[2.0]))
    assert found["peer's / up from a golden template"].words.endswith("| at least 4 | 3.00 | no |")
    assert found["destroy / peer's"].words.endswith("| at most 1 | 1.50 | no |")
    assert found["up from a golden template, seconds to a verified prompt"].words.endswith("| 10.00 | yes |")


def test_the_table_has_what_was_measured_and_nothing_else() -> None:
    where = {"date": "2026-01-02", "commit": "abc", "cores": 2, "load": [0.5, 0, 0], "python": "3.11"}
    where |= {"language_host": "a host", "agent": "upstream, 1.2", "pip_list": {"packages": 3, "cpu": 0.1}}
    report = report_of(golden_replace=[9.0, 11.0])
    report.machine = where
    report.runs["golden-replace"].offline = [8.0, 8.5]
    report.runs["golden-replace"].cost = Cost(4, 3, 2, 1)
    lines = table(report).splitlines()
    assert row(KINDS["golden-replace"], *["10.0 (9.0 to 11.0)"] * 3, "8.2 (8.0 to 8.5)", "4", "3", "2", "1") in lines
    assert not [line for line in lines if line.startswith(f"| {KINDS['cold']}")]
    json.dumps(report.as_json())


def test_all_cores_work_is_neither_idling_nor_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """By proc_stat(5): user nice system idle iowait irq softirq steal guest guest_nice, in ticks."""
    monkeypatch.setattr("os.sysconf", lambda _name: 100)
    stat = "cpu  100 20 300 9000 8000 5 7 6000 100 20\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert worked(stat) == 4.32


def test_of_several_at_once_the_part_is_told_that_only_less_work_makes_shorter() -> None:
    assert Together(10, 50.0, 5.0, 90.0).words(2) == "50.0 s, 5.0 times one. The cores worked for 90% of it."


def test_each_kind_of_run_is_in_the_rounds_or_the_peers_or_once() -> None:
    steps = {step.kind for steps in PARTS.values() for step in steps}
    peers = {kind for kind in KINDS if kind.startswith("peer-")}
    assert steps | peers | {"image"} == KINDS.keys()


@contextmanager
def agent_that_answers(*answers: int | None) -> Iterator[int]:
    """A port where each request gets the next status; None: the connection is cut. The last one goes on."""
    left = list(answers)

    class Agent(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = left.pop(0) if len(left) > 1 else left[0]
            if status is not None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b'{"status": "ok"}')

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Agent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_offline_is_from_the_last_good_answer_to_the_next() -> None:
    """By a clock that goes on by one second a question: good, four bad ones of two kinds, good."""
    with agent_that_answers(200, 503, None, 503, None, 200) as port:
        watch = Watch("127.0.0.1", port)
        answers = [(second, watch.answers()) for second in range(6)]
    assert [good for _, good in answers] == [True, False, False, False, False, True]
    for moment, good in answers:
        watch.note(float(moment), good)
    assert watch.longest == 5.0


def test_the_watch_sees_nothing_where_nobody_listens() -> None:
    with agent_that_answers(200) as port:
        pass
    with watched("127.0.0.1", port) as watch:
        assert not watch.answers()
    assert watch.longest == 0.0


def test_the_table_is_put_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    monkeypatch.setattr(command, "DOCUMENT", document)
    command.write_document("new")
    assert document.read_text() == f"before\n{command.BEGIN}\n\nnew\n\n{command.END}\nafter\n"


def test_the_peer_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "tofu is not on PATH" in str(why_no_peer())
    for name in ("tofu", "ansible-playbook"):
        (tmp_path / name).touch(0o755)
    assert why_no_peer() is None


def test_the_peer_has_the_packages_and_the_lock_of_the_stacks() -> None:
    """Else it would be compared with something else."""
    playbook = (FILES / "playbook.yml").read_text()
    assert f"install {' '.join(BASE_PACKAGES)}\n" in playbook
    extras = " ".join(f"--extra {extra}" for extra in EXTRAS)
    assert f"uv sync --locked --no-install-project --no-default-groups {extras} " in playbook
    assert PROMPT in playbook
    assert EXPECTED in playbook
