"""Durable jobs against a stand-in container: the real helper scripts, run by the local shell.

`systemctl` and `systemd-run` are small programs that keep the promises the protocol builds on: a unit's name is
refused while it is in use, the stop command runs after every end and before the unit is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pytest

from provisioning import job as jobs
from provisioning.errors import ConnectionCut, PhaseFailed, PhaseLost, PhaseTimeout, ProvisioningError
from provisioning.guest.words import redact
from provisioning.job import Job, JobResult, LargeFile, PayloadFile, pack, parse_probe, run_job
from provisioning.ssh import CommandResult

SECRET = "canary-7c1f"

SYSTEMCTL = """#!/bin/sh
case "$1" in
show) for unit; do :; done; [ -e "$UNITS/$unit" ] && echo active || echo inactive;;
list-units) ls "$UNITS" | sed 's/$/ loaded active running/';;
esac
"""

SYSTEMD_RUN = """#!/bin/sh
directory= stop= log= limit=
while [ $# -gt 0 ]; do
  case "$1" in
  --unit=*) unit=${1#--unit=};;
  --property=StandardOutput=append:*) log=${1#--property=StandardOutput=append:};;
  --property=WorkingDirectory=*) directory=${1#--property=WorkingDirectory=};;
  --property=ExecStopPost=*) stop=${1#--property=ExecStopPost=};;
  --property=RuntimeMaxSec=*) limit=${1#--property=RuntimeMaxSec=};;
  --setenv=*) export "${1#--setenv=}";;
  --*) ;;
  *) break;;
  esac
  shift
done
set -C
{ : >"$UNITS/$unit"; } 2>/dev/null || { echo "Unit $unit was already loaded" >&2; exit 1; }
set +C
echo "$unit" >>"$UNITS.started"
cd "$directory" || exit 1
(
  timeout "$limit" "$@" >>"$log" 2>&1
  status=$?
  SERVICE_RESULT=success; [ $status -eq 0 ] || SERVICE_RESULT=exit-code; [ $status -ne 124 ] || SERVICE_RESULT=timeout
  export SERVICE_RESULT EXIT_CODE=exited EXIT_STATUS=$status
  [ ! -x "$stop" ] || "$stop"
  rm -f "$UNITS/$unit"
) </dev/null >/dev/null 2>&1 &
"""


def verb_of(command: str) -> str:
    """What job.sh is asked to do."""
    return shlex.split(command)[7]


@dataclass
class Container:
    """The stand-in: its folders, what was asked of it, and where it breaks."""

    root: Path
    commands: list[str] = field(default_factory=list)
    # Called with the number of the command; before or after its effect.
    before: Callable[[int], None] = lambda _: None
    after: Callable[[int], None] = lambda _: None
    # Plays the connection itself.
    connections: int = 0

    def connect(self) -> Container:
        self.connections += 1
        return self

    def run(self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0) -> CommandResult:
        number = len(self.commands)
        self.commands.append(command)
        self.before(number)
        data = stdin if isinstance(stdin, bytes) or stdin is None else stdin.read()
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            input=data or b"",
            capture_output=True,
            env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "UNITS": f"{self.root}/units"},
            timeout=timeout_s,
            check=False,
        )
        self.after(number)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def verb(self, number: int) -> str:
        return verb_of(self.commands[number])

    def close(self) -> None:
        """Nothing to close."""

    @property
    def starts(self) -> list[str]:
        file = self.root / "units.started"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Container]:
    for folder in ("bin", "units", "run"):
        (tmp_path / folder).mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN)):
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setattr(jobs, "STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(jobs, "RUN_DIR", str(tmp_path / "run" / "secrets"))
    monkeypatch.setattr(jobs, "LOST_AFTER_S", 0.5)
    monkeypatch.setattr(jobs, "JOB_GRACE_S", 0.0)
    made = Container(tmp_path)
    yield made
    deadline = time.monotonic() + 20
    while any((tmp_path / "units").iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)


def job(script: str, *, digest: str = "d" * 64, large: tuple[LargeFile, ...] = ()) -> Job:
    main = PayloadFile("main", f"#!/bin/sh\n{script}\n".encode(), 0o700)
    return Job("agent", digest, (main,), {"key": SECRET}, large)


def go(container: Container, wanted: Job, *, timeout_s: float = 30.0, lines: list[str] | None = None) -> JobResult:
    said = lines if lines is not None else []
    return run_job(container.connect, wanted, on_line=said.append, timeout_s=timeout_s)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


WORK = """
echo one; echo two >&2; printf '{"version": "1"}' >"$HP_JOB/result.json"
grep -q canary "$HP_SECRETS" && echo "the secret is there"; printf 'no newline at the end'
"""
CLEAN_LINES = ["one", "two", "the secret is there", "no newline at the end"]


def test_a_job_runs_once_and_hands_back_lines_and_outputs(container: Container) -> None:
    lines: list[str] = []
    result = go(container, job(WORK), lines=lines)
    assert result == JobResult({"version": "1"}, picked_up=False)
    assert lines == CLEAN_LINES
    assert len(container.starts) == 1


def test_a_job_costs_four_commands_and_one_for_each_look_at_it(container: Container) -> None:
    """Each is a channel, a shell and an answer to wait for: what can be told at once is told at once."""
    tool = container.root / "tool"
    tool.write_text("a tool")
    large = LargeFile(tool, hashlib.sha256(tool.read_bytes()).hexdigest())
    for digest, uploads in (("1" * 64, ["put_large"]), ("2" * 64, [])):
        container.commands.clear()
        go(container, job(WORK, digest=digest, large=(large,)))
        verbs = [container.verb(number) for number in range(len(container.commands))]
        looks = verbs.count("follow")
        assert verbs == ["probe", *uploads, "start", *["follow"] * looks, "discard"]


def test_a_request_to_start_that_outlived_its_connection_does_no_harm(container: Container) -> None:
    """Its answer was lost while it was still at work, so the same was asked for again: at the same time, and later."""
    gate = container.root / "gate"
    wanted = job(f'while [ ! -e {gate} ]; do sleep 0.05; done; test -x "$HP_JOB/main" && cat "$HP_SECRETS"')
    given: dict[str, bytes] = {}

    class Twice:
        """A connection that carries out each request to start a second time, at the same time."""

        def run(
            self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0
        ) -> CommandResult:
            if verb_of(command) == "start" and isinstance(stdin, bytes):
                given[command] = stdin
                with ThreadPoolExecutor(2) as pool:
                    one, other = (pool.submit(container.run, command, stdin=stdin) for _ in range(2))
                assert one.result().status == other.result().status == 0
                return one.result()
            if verb_of(command) == "follow" and not gate.exists():
                for start, payload in given.items():
                    assert container.run(start, stdin=payload).status == 0
                gate.touch()
            return container.run(command, stdin=stdin, timeout_s=timeout_s)

        def close(self) -> None:
            """Nothing to close."""

    lines: list[str] = []
    run_job(Twice, wanted, on_line=lines.append, timeout_s=60)
    assert lines == ['{"key": "[secret]"}']
    assert len(container.starts) == 1


def test_nothing_is_left_in_the_container(container: Container) -> None:
    go(container, job(WORK))
    assert list((container.root / "state" / "jobs").iterdir()) == []
    assert [path.name for path in (container.root / "run" / "secrets").iterdir()] == ["last-started"]


def test_no_command_holds_a_secret_and_its_file_is_private(container: Container) -> None:
    lines: list[str] = []
    go(container, job('stat -c %a "$HP_SECRETS" "$HP_JOB"; cat "$HP_SECRETS"'), lines=lines)
    assert not [command for command in container.commands if SECRET in command]
    assert lines == ["600", "700", '{"key": "[secret]"}']


@pytest.mark.parametrize("effect", ["before", "after"])
def test_a_cut_at_any_command_changes_nothing(container: Container, effect: str) -> None:
    go(container, job(WORK))
    commands = len(container.commands)
    for number in range(commands):
        fired: list[int] = []

        def cut(now: int, number: int = number, fired: list[int] = fired) -> None:
            if now == number:
                fired.append(now)
                raise ConnectionCut("the cable was pulled")

        container.commands.clear()
        setattr(container, effect, cut)
        lines: list[str] = []
        result = go(container, job(WORK, digest=f"{number:02}" * 32), lines=lines)
        assert result == JobResult({"version": "1"}, picked_up=False), number
        assert [line for line in lines if "connecting again" not in line] == CLEAN_LINES, number
        assert len(container.starts) == number + 2, number
        # How often the job is looked at is not the same each time: only a run that was shorter may go uncut.
        assert fired or len(container.commands) <= number, number


def test_a_cut_after_a_job_that_ended_at_once_does_not_start_it_again(container: Container) -> None:
    def cut(number: int) -> None:
        if container.verb(number) == "start" and len(container.starts) == 1 and container.connections == 1:
            wait_until(lambda: not any((container.root / "units").iterdir()))
            raise ConnectionCut("the answer got lost")

    container.after = cut
    assert go(container, job(WORK)).outputs == {"version": "1"}
    assert len(container.starts) == 1


def test_a_failing_script_is_told_with_its_last_lines(container: Container) -> None:
    with pytest.raises(PhaseFailed) as failed:
        go(container, job(f"for i in $(seq 40); do echo line $i; done; echo password is {SECRET}; exit 7"))
    text = str(failed.value)
    assert "agent failed in the container: exit status 7" in text
    assert "line 40" in text
    assert "line 20\n" not in text
    assert "password is [secret]" in text
    assert SECRET not in failed.value.log_tail
    assert list((container.root / "state" / "jobs").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "cp: error writing 'x': No space left on device",
        "error: failed to write `x`: No space left on device (os error 28)",
        "OSError: [Errno 28] No space left on device: 'x'",
        "E: You don't have enough free space in /var/cache/apt/archives/.",
        "sqlite3.OperationalError: database or disk is full",
        "cp: error writing 'x': Disk quota exceeded",
    ],
)
def test_a_full_disk_is_told_with_what_is_free_where(container: Container, words: str) -> None:
    listing = container.root / "bin" / "df"
    listing.write_text("#!/bin/sh\necho head\necho '   3 20000 500 600 /'\necho '3700  4000 0 9 /home/hermes'\n")
    listing.chmod(0o755)
    with pytest.raises(PhaseFailed) as failed:
        # The words may be long gone from what is shown of the log.
        go(container, job(f'echo "{words}"; seq 40; exit 1'))
    assert "/ has 3 of 20000 MB free; /home/hermes has 3700 of 4000 MB free, and can't take one file more" in str(
        failed.value
    )


@pytest.mark.parametrize(
    "words",
    [
        "no way to the index",
        "unable to create session key: disk quota exceeded: unknown",
        "crun: create keyring 4691b4: Disk quota exceeded",
    ],
)
def test_other_failures_say_nothing_about_disks(container: Container, words: str) -> None:
    with pytest.raises(PhaseFailed) as failed:
        go(container, job(f"echo error: {words}; exit 1"))
    assert "A disk of the container ran full" not in str(failed.value)


def test_a_payload_that_finds_no_room_is_told(container: Container) -> None:
    tar = container.root / "bin" / "tar"
    tar.write_text("#!/bin/sh\necho 'tar: main: Cannot write: No space left on device' >&2\nexit 2\n")
    tar.chmod(0o755)
    with pytest.raises(
        ProvisioningError, match=r"(?s)preparing the job .*No space left.*A disk of the container ran full"
    ):
        go(container, job("true"))


def test_a_failed_job_is_done_again_by_the_next_run(container: Container) -> None:
    marker = container.root / "second"
    wanted = job(f"[ -e {marker} ] || {{ touch {marker}; exit 3; }}; echo done")
    with pytest.raises(PhaseFailed):
        go(container, wanted)
    assert not go(container, wanted).picked_up
    assert len(container.starts) == 2


class Killed(BaseException):
    """The controller ends here."""


def _kill_at(container: Container, word: str) -> Callable[[int], None]:
    def after(number: int) -> None:
        if container.verb(number) == word:
            raise Killed

    return after


def test_a_running_job_of_a_killed_controller_is_picked_up(container: Container) -> None:
    gate = container.root / "gate"
    wanted = job(f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done; echo ended")
    container.after = _kill_at(container, "start")
    with pytest.raises(Killed):
        go(container, wanted)
    container.after = lambda _: None
    threading.Timer(0.3, gate.touch).start()
    lines: list[str] = []
    assert go(container, wanted, lines=lines).picked_up
    assert lines[1:] == ["begun", "ended"]
    assert len(container.starts) == 1


def test_a_finished_job_of_a_killed_controller_is_picked_up(container: Container) -> None:
    container.after = _kill_at(container, "start")
    with pytest.raises(Killed):
        go(container, job(WORK))
    container.after = lambda _: None
    wait_until(lambda: not any((container.root / "units").iterdir()))
    assert go(container, job(WORK)) == JobResult({"version": "1"}, picked_up=True)
    assert len(container.starts) == 1


def left_behind(container: Container, wanted: Job) -> None:
    """A controller that starts the job and is killed; the job ends."""
    container.after = _kill_at(container, "start")
    with pytest.raises(Killed):
        go(container, wanted)
    container.after = lambda _: None
    wait_until(lambda: not any((container.root / "units").iterdir()))


def test_what_was_done_before_another_job_is_done_again(container: Container) -> None:
    """One configuration, another, and the first again: its old end is not taken for the third's."""
    place = container.root / "configured"
    one, two = (job(f"echo {word} >{place}", digest=word * 32) for word in ("aa", "bb"))
    left_behind(container, one)
    go(container, two)
    assert place.read_text() == "bb\n"
    assert not go(container, one).picked_up
    assert place.read_text() == "aa\n"


def test_an_old_end_is_no_answer_where_it_holds_for_its_own_time_only(container: Container) -> None:
    wanted = replace(job(WORK), fresh=True)
    left_behind(container, wanted)
    assert go(container, wanted) == JobResult({"version": "1"}, picked_up=False)
    assert len(container.starts) == 2


def test_a_backup_s_running_job_is_picked_up(container: Container) -> None:
    gate = container.root / "gate"
    wanted = replace(job(f"while [ ! -e {gate} ]; do sleep 0.05; done"), fresh=True)
    container.after = _kill_at(container, "start")
    with pytest.raises(Killed):
        go(container, wanted)
    container.after = lambda _: None
    threading.Timer(0.3, gate.touch).start()
    assert go(container, wanted).picked_up
    assert len(container.starts) == 1


def test_what_nobody_has_come_for_within_a_day_is_removed(container: Container) -> None:
    old, new = (container.root / "state" / "jobs" / name for name in ("backups-old", "backups-new"))
    for folder in (old, new):
        folder.mkdir(parents=True)
    a_day_ago = time.time() - 25 * 3600
    os.utime(old, (a_day_ago, a_day_ago))
    go(container, job(WORK))
    assert list(old.parent.iterdir()) == [new]


def test_a_failed_job_of_a_killed_controller_is_started_again(container: Container) -> None:
    container.after = _kill_at(container, "start")
    wanted = job("exit 1")
    with pytest.raises(Killed):
        go(container, wanted)
    container.after = lambda _: None
    wait_until(lambda: not any((container.root / "units").iterdir()))
    with pytest.raises(PhaseFailed):
        go(container, wanted)
    assert len(container.starts) == 2


def test_a_job_that_a_restart_of_the_container_ended_is_started_again(container: Container) -> None:
    folder = container.root / "state" / "jobs" / job(WORK).name
    folder.mkdir(parents=True)
    (folder / "log").write_text("half\n")
    lines: list[str] = []
    assert not go(container, job(WORK), lines=lines).picked_up
    assert "half" not in lines


def test_a_job_that_vanishes_is_told(container: Container) -> None:
    def restart(number: int) -> None:
        if container.verb(number) == "start":
            (container.root / "state" / "jobs" / wanted.name / "finish").unlink()
            gate.touch()

    gate = container.root / "gate"
    wanted = job(f"echo begun; while [ ! -e {gate} ]; do sleep 0.05; done")
    container.after = restart
    with pytest.raises(PhaseLost, match="restarted, or somebody ended"):
        go(container, wanted)


def test_the_deadline_leaves_the_job_for_the_next_run(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "JOB_GRACE_S", 30.0)
    gate = container.root / "gate"
    wanted = job(f"while [ ! -e {gate} ]; do sleep 0.05; done")

    def offline(_: int) -> None:
        if container.starts:
            raise ConnectionCut("no route to host")

    container.before = offline
    with pytest.raises(PhaseTimeout) as late:
        go(container, wanted, timeout_s=2.5)
    assert "did not end within 2.5 s" in str(late.value)
    assert "no route to host" in str(late.value)
    gate.touch()
    container.before = lambda _: None
    assert go(container, wanted).picked_up
    assert len(container.starts) == 1


def test_a_script_that_hangs_is_ended_by_its_deadline(container: Container) -> None:
    with pytest.raises((PhaseFailed, PhaseTimeout)):
        go(container, job("sleep 60"), timeout_s=1.5)
    wait_until(lambda: not any((container.root / "units").iterdir()))


def test_a_silent_job_gives_signs_of_life(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "SIGN_OF_LIFE_S", 0.2)
    gate = container.root / "gate"
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        gate.touch()

    wanted = job(f"while [ ! -e {gate} ]; do sleep 0.05; done")
    run_job(container.connect, wanted, on_line=hear, timeout_s=60)
    assert lines[0].startswith("still running, ")


def test_jobs_of_one_container_run_one_after_the_other(container: Container) -> None:
    log = container.root / "order"
    first = job(f"echo a1 >>{log}; sleep 0.6; echo a2 >>{log}", digest="1" * 64)
    container.after = _kill_at(container, "start")
    with pytest.raises(Killed):
        go(container, first)
    container.after = lambda _: None
    go(container, job(f"echo b >>{log}", digest="2" * 64))
    assert log.read_text().split() == ["a1", "a2", "b"]


def test_a_large_log_arrives_whole(container: Container) -> None:
    lines: list[str] = []
    go(container, job("seq 1 40000; printf '\\303\\244\\n'"), lines=lines)
    assert [line for line in lines if not line.startswith("still")] == [*map(str, range(1, 40001)), "ä"]


def test_a_large_file_is_sent_once_and_checked(container: Container) -> None:
    local = container.root / "tool"
    local.write_bytes(b"#!/bin/sh\necho tool\n")
    large = LargeFile(local, hashlib.sha256(local.read_bytes()).hexdigest())
    with_tool = job(f"{jobs.store_path(large.sha256)}", large=(large,))
    for digest in ("1" * 64, "2" * 64):
        lines: list[str] = []
        go(container, Job(with_tool.phase, digest, with_tool.files, {}, (large,)), lines=lines)
        assert lines[-1] == "tool"
    assert len([line for line in container.commands if verb_of(line) == "put_large"]) == 1

    local.write_bytes(b"#!/bin/sh\necho other\n")
    wrong = LargeFile(local, "0" * 64)
    with pytest.raises(ProvisioningError, match="uploading"):
        go(container, job("true", digest="3" * 64, large=(wrong,)))
    assert not Path(jobs.store_path(wrong.sha256)).exists()


def test_what_a_later_job_needs_is_sent_while_this_one_runs(container: Container) -> None:
    local = container.root / "tool"
    local.write_bytes(b"#!/bin/sh\necho tool\n")
    large = LargeFile(local, hashlib.sha256(local.read_bytes()).hexdigest())
    waits = f"""
echo begun; i=0
until [ -x {jobs.store_path(large.sha256)} ]; do i=$((i + 1)); [ $i -lt 200 ] || exit 9; sleep 0.05; done
echo it came
"""
    lines: list[str] = []
    go(container, replace(job(waits), ahead=(large,)), lines=lines)
    assert lines == ["begun", "uploading tool (0 MB)", "it came"]
    # The later job finds it.
    go(container, job("true", digest="2" * 64, large=(large,)))
    assert [verb_of(line) for line in container.commands].count("put_large") == 1


def test_a_job_that_refuses_at_once_waits_for_no_file_of_a_later_one(container: Container) -> None:
    local = container.root / "tool"
    local.write_bytes(b"a tool")
    large = LargeFile(local, hashlib.sha256(local.read_bytes()).hexdigest())
    with pytest.raises(PhaseFailed):
        go(container, replace(job("exit 3"), ahead=(large,)))
    assert "put_large" not in [verb_of(line) for line in container.commands]


@pytest.mark.parametrize("there", [True, False], ids=["damaged on its way", "gone"])
def test_a_file_that_can_not_be_sent_ahead_fails_nothing(container: Container, *, there: bool) -> None:
    local = container.root / "tool"
    if there:
        local.write_bytes(b"another tool")
    lines: list[str] = []
    ahead = replace(job("echo begun; sleep 0.5; echo done"), ahead=(LargeFile(local, "0" * 64),))
    go(container, ahead, lines=lines)
    assert lines[-1] == "done"
    assert [line for line in lines if line.startswith("not sent ahead: ")]
    assert not Path(jobs.store_path("0" * 64)).exists()


def test_the_payload_keeps_modes_and_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    files = (PayloadFile("b", b"2"), PayloadFile("main", b"1", 0o700))
    assert pack(files) == pack(tuple(reversed(files)))
    subprocess.run(["tar", "-x", "-C", str(tmp_path), "-f", "-"], input=pack(files), check=True)
    assert stat.S_IMODE((tmp_path / "main").stat().st_mode) == 0o700
    assert (tmp_path / "b").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("running\n", "running"),
        ("lost", "lost"),
        ("absent", "absent"),
        ("", "absent"),
        ("finished success exited 0", "finished"),
    ],
)
def test_the_probe_is_read(text: str, state: str) -> None:
    assert parse_probe(text)[0] == state


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("finished exit-code exited 4", "exit status 4"),
        ("finished signal killed KILL", "ended by signal KILL"),
        ("finished oom-kill killed KILL", "ran out of memory"),
        ("finished timeout killed TERM", "longer than its deadline"),
    ],
)
def test_the_end_is_told_in_words(text: str, words: str) -> None:
    _, ended = parse_probe(text)
    assert ended is not None
    assert not ended.ok
    assert words in ended.words()


def test_longer_secrets_are_hidden_first() -> None:
    assert redact("key abcdef-tail and abcd", ["abcd", "abcdef-tail", "x"]) == "key [secret] and [secret]"


def test_a_job_does_not_show_its_secrets() -> None:
    assert SECRET not in repr(job("true"))
    assert json.dumps({"key": SECRET}) not in repr(job("true"))


# ---- what the guest says is shown as text ----------------------------------------------------------------------------


def test_control_characters_of_a_job_reach_neither_progress_nor_error_nor_outputs(container: Container) -> None:
    script = r"""printf 'a\033]0;MINE\007\n'; printf '{"x": "\\u001b]0;MINE\\u0007"}' >"$HP_JOB/result.json" """
    lines: list[str] = []
    assert go(container, job(script), lines=lines).outputs == {"x": "\\x1b]0;MINE\\x07"}
    assert "a\\x1b]0;MINE\\x07" in lines
    with pytest.raises(PhaseFailed) as failed:
        go(container, job(f"{script}; exit 1", digest="e" * 64), lines=lines)
    assert str(failed.value).isascii()
    assert "\x1b" not in str(failed.value) + failed.value.log_tail + "".join(lines)


def test_an_endless_line_is_cut_and_a_secret_in_it_stays_hidden(container: Container) -> None:
    lines: list[str] = []
    flood = "head -c {} /dev/zero | tr '\\0' x".format
    go(container, job(f"{flood(3990)}; printf {SECRET}; {flood(300000)}; echo; echo end"), lines=lines)
    assert lines[-1] == "end"
    assert all(len(line) < 4100 for line in lines)
    assert not any("canary" in line for line in lines)


def test_a_result_that_is_too_large_is_refused(container: Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "RESULT_LIMIT", 1 << 20)
    with pytest.raises(ProvisioningError, match="its result is larger than 1 MB"):
        go(container, job('head -c 2000000 /dev/zero >"$HP_JOB/result.json"'))
    assert max(map(len, container.commands)) < 8000
