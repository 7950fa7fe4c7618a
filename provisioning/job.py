"""Durable jobs: a phase's script runs as a systemd unit in the container, whatever happens to our connection.

Protocol (all of it over plain SSH commands, nothing installed in the container beforehand):

1. probe: is a job of this digest running, finished, or absent? Do others run, and which large files are missing?
2. upload: large files go to a store by their SHA-256, once. Those of a later job go there while this one runs.
3. start: the payload is unpacked beside and renamed into place, the secrets come into a 0600 file on tmpfs, both by
   stdin; then `systemd-run` under a name made of phase and digest. systemd refuses a name that is in use, so the same
   job can't run twice, even when our connection broke right after the request.
4. follow: the log is read from an offset; a broken connection is made again until the deadline. The last answer has the
   result.
5. acknowledge: when the result is in our hands the job's folder is removed.

A run that was killed between 3 and 5 leaves a job that the next run of the same digest picks up while it runs, and when
it has ended well, unless another job was started since (what that has done is newer), or its answer is about its own
time alone (`Job.fresh`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shlex
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from provisioning.errors import (
    ConnectionCut,
    PhaseFailed,
    PhaseLost,
    PhaseTimeout,
    ProvisioningError,
    SshUnreachable,
)
from provisioning.guest.common import STATE
from provisioning.guest.words import redact
from provisioning.ssh import Connection, OnLine
from provisioning.terminal import Lines, one_line, visible_value

STATE_DIR = str(STATE)
# tmpfs: secrets never reach a disk or a backup, and a full disk takes away neither a job's words nor its end.
RUN_DIR = "/run/hermes-provision"
SIGN_OF_LIFE_S = 4.0
# The container answers within two seconds whether it has news or not: who says nothing for so long is gone.
SILENCE_S = 20.0
LOG_TAIL_LINES = 15
LOST_AFTER_S = 5.0
# So long a job may go on after its controller's deadline: time for the next run to pick it up.
JOB_GRACE_S = 300.0
_LOG_CHUNK = 64 * 1024
_NOT_STARTED = 75
"""How the verb `start` ends where systemd refuses."""
RESULT_LIMIT = 4 << 20
"""Bytes of a result that are read: a list of a thousand backups has a quarter of a megabyte."""
# As libc, Rust, Python, apt and SQLite say it. The kernel's keys have a quota too, and are told of in the same words.
_NO_ROOM = re.compile(
    r"No space left on device|\bos error 28\b|\bErrno 28\b|ENOSPC|disk is full|enough free space"
    r"|^(?!.*\bkey).*quota exceeded",
    re.IGNORECASE,
)

Connect = Callable[[], Connection]
State = Literal["absent", "running", "finished", "lost"]


@dataclass(frozen=True)
class PayloadFile:
    """A small file of the payload, at `path` below the job's folder. `origin`: its path in the checkout."""

    path: str
    content: bytes
    mode: int = 0o600
    origin: str = ""


@dataclass(frozen=True)
class LargeFile:
    """A file of this machine that the container keeps by its SHA-256, at `store_path(sha256)`."""

    local: Path
    sha256: str
    mode: int = 0o755


@dataclass(frozen=True)
class Job:
    """What runs: the payload's `main` is executed with HP_JOB (its folder) and HP_SECRETS (a JSON file) set.

    `name` is unique to phase and digest. `secrets` never appear in an argument, the environment or a log.
    """

    phase: str
    digest: str
    files: tuple[PayloadFile, ...]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    large_files: tuple[LargeFile, ...] = ()
    fresh: bool = False
    """What it answers holds when it ends and not later, as a proof does: the end of an earlier run is no answer."""
    ahead: tuple[LargeFile, ...] = ()
    """What a later job needs. It is sent while this one runs, and this one does not fail by it."""

    @property
    def name(self) -> str:
        return f"{self.phase}-{self.digest[:16]}"

    @property
    def directory(self) -> str:
        return f"{STATE_DIR}/jobs/{self.name}"

    @property
    def secrets_file(self) -> str:
        return f"{RUN_DIR}/{self.name}.json"

    @property
    def log(self) -> str:
        return f"{RUN_DIR}/{self.name}.log"

    @property
    def end(self) -> str:
        """Where systemd's three words about the unit's end are written, when it has come."""
        return f"{RUN_DIR}/{self.name}.exit"

    @property
    def unit(self) -> str:
        return f"hermes-provision-{self.name}.service"


@dataclass(frozen=True)
class JobResult:
    """`outputs` is what the script wrote to result.json, its texts fit to be shown (provisioning.terminal).

    `picked_up` when an earlier run had started the job.
    """

    outputs: dict[str, Any]
    picked_up: bool


@dataclass(frozen=True)
class _Ended:
    """The unit's end as systemd tells it: SERVICE_RESULT, EXIT_CODE, EXIT_STATUS."""

    result: str
    code: str
    status: str

    @property
    def ok(self) -> bool:
        return self.result == "success"

    def words(self) -> str:
        if self.result == "timeout":
            return "it ran longer than its deadline and was ended"
        if self.result == "oom-kill":
            return "it was killed because the container ran out of memory"
        if self.code in ("killed", "dumped"):
            return f"it was ended by signal {self.status}"
        return f"exit status {self.status}"


@dataclass(frozen=True)
class _Found:
    """What the container has told of a job.

    `newest`: no other job was started after it. `others`: the units of jobs that run beside it.
    """

    state: State
    ended: _Ended | None
    newest: bool
    others: tuple[str, ...]


def store_path(sha256: str) -> str:
    """Where the container keeps a large file."""
    return f"{STATE_DIR}/store/{sha256}"


def sha256_of(path: Path) -> str:
    """SHA-256 of a local file, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pack(files: Iterable[PayloadFile]) -> bytes:
    """The payload as a tar: root-owned, no times, the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted(files, key=lambda item: item.path):
            info = tarfile.TarInfo(file.path)
            info.size, info.mode, info.uid, info.gid = len(file.content), file.mode, 0, 0
            archive.addfile(info, io.BytesIO(file.content))
    return buffer.getvalue()


def run_job(connect: Connect, job: Job, *, on_line: OnLine, timeout_s: float) -> JobResult:
    """Run `job` to its end, or take over the one that an earlier run started. See the module's text.

    PhaseFailed, PhaseLost, PhaseTimeout; SshAuthError and HostKeyMismatch at once, other connection troubles only when
    the deadline has passed.
    """
    return _Run(connect, job, on_line, timeout_s).run()


class _Run:
    """One controller-side run: holds the connection, which comes and goes, and the place in the log."""

    def __init__(self, connect: Connect, job: Job, on_line: OnLine, timeout_s: float) -> None:
        self._connect = connect
        self._job = job
        self._say = on_line
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._connection: Connection | None = None
        self._offset = 0
        self._lines = Lines()
        self._tail: list[str] = []
        self._last_sign = self._began
        self._last_cut = ""
        self._no_room = False
        self._missing = frozenset[str]()  # the SHA-256 of large files that the container does not have
        self._ahead = self._job.ahead

    def run(self) -> JobResult:
        try:
            picked_up = self._ensure_started()
            ended, raw = self._follow()
            return self._conclude(ended, raw, picked_up)
        finally:
            self._drop()

    # -- connection ------------------------------------------------------------------------------------------------

    def _persist(self, action: Callable[[Connection], Any]) -> Any:
        """Do `action`, on a new connection whenever the old one breaks, until the deadline. It must be repeatable."""
        pause = 0.2
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return action(self._connection)
            except (ConnectionCut, SshUnreachable) as error:
                self._drop()
                self._last_cut = str(error).splitlines()[0]
                self._say(f"connection lost, the work in the container goes on; connecting again ({self._last_cut})")
            self._check_deadline()
            time.sleep(min(pause, max(0.0, self._deadline - time.monotonic())))
            pause = min(pause * 2, 3.0)

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
            self._connection = None

    def _command(self, verb: str, *arguments: object, timeout_s: float = 30.0) -> bytes:
        """Carry out a verb of scripts/job.sh in the container; its failure is ours, not the phase's."""
        command = _in_guest(verb, *arguments, job=self._job.name)

        def action(connection: Connection) -> bytes:
            result = connection.run(command, timeout_s=timeout_s)
            if result.status != 0:
                raise self._not_prepared(connection, result.words)
            return result.stdout

        answer: bytes = self._persist(action)
        return answer

    def _not_prepared(self, connection: Connection, words: str) -> ProvisioningError:
        full = full_disks(_ask_disks(connection)) if _NO_ROOM.search(words) else ""
        return ProvisioningError(
            f"{self._job.phase}: preparing the job in the container failed: {self._clean(words)}\n"
            + (full or "Check that it is a systemd container, then run again.")
        )

    # -- start -----------------------------------------------------------------------------------------------------

    def _ensure_started(self) -> bool:
        """Have the job running or finished; True when an earlier run had started it."""
        for attempt in range(2):
            found = self._probe()
            if found.state == "running":
                self._say("picking up the job that an earlier run started")
                return True
            ended_well = found.state == "finished" and found.ended is not None and found.ended.ok
            if ended_well and found.newest and not self._job.fresh:
                self._say("picking up the result of an earlier run")
                return True
            # A failed or vanished job of an earlier run is no news any more: do it again.
            if found.state != "absent":
                self._command("discard")
            self._wait_for_others(found)
            self._upload(self._job.large_files)
            if self._start():
                return attempt > 0
        raise PhaseLost(
            f"{self._job.phase}: the job could not be started: {self._job.unit} is neither running nor finished.\n"
            f"Look at it in the container: systemctl status {self._job.unit}",
            phase=self._job.phase,
        )

    def _probe(self) -> _Found:
        wanted = (large.sha256 for large in (*self._job.large_files, *self._job.ahead))
        told = self._command("probe", *wanted).decode("utf-8", "replace")
        state, last, others, missing, *_ = (*told.split("\n"), "", "", "", "")
        self._missing = frozenset(missing.split())
        return _Found(*parse_probe(state), last.strip() == self._job.name, tuple(others.split()))

    def _wait_for_others(self, found: _Found) -> None:
        """One job at a time in a container: two of them would fight for apt's lock or the services."""
        while found.others:
            self._check_deadline()
            self._sign(f"waiting for another job in the container to end: {found.others[0]}")
            time.sleep(0.5)
            found = self._probe()

    def _send_ahead(self) -> None:
        """Once. That the job goes on after its first words comes first: what it refuses at once is told at once."""
        files, self._ahead = self._ahead, ()
        try:
            self._upload(files)
        except (ProvisioningError, OSError) as error:
            self._say(f"not sent ahead: {self._clean(str(error).splitlines()[0])}")

    def _upload(self, files: Iterable[LargeFile]) -> None:
        for large in files:
            if large.sha256 not in self._missing:
                continue
            size = large.local.stat().st_size
            self._say(f"uploading {large.local.name} ({size / 1e6:.0f} MB)")

            def send(connection: Connection, large: LargeFile = large) -> None:
                put = _in_guest("put_large", large.sha256, f"{large.mode:o}")
                with large.local.open("rb") as stream:
                    result = connection.run(put, stdin=stream, timeout_s=max(60.0, self._remaining()))
                if result.status != 0:
                    raise ProvisioningError(f"{self._job.phase}: uploading {large.local} failed: {result.words}")

            self._persist(send)

    def _start(self) -> bool:
        """True when it is running or done, also when the answer to our request got lost."""
        finish = PayloadFile("finish", _script("finish.sh").encode(), 0o700)
        secrets = json.dumps(dict(self._job.secrets)).encode()
        payload = secrets + pack((*self._job.files, finish))

        def action(connection: Connection) -> str:
            start = _in_guest("start", f"{self._remaining() + JOB_GRACE_S:.0f}", len(secrets), job=self._job.name)
            result = connection.run(start, stdin=payload, timeout_s=120.0)
            if result.status not in (0, _NOT_STARTED):
                raise self._not_prepared(connection, result.words)
            return "" if result.status == 0 else result.words

        words: str = self._persist(action)
        if not words or self._probe().state in ("running", "finished"):
            return True
        self._say(f"start refused: {self._clean(words)}")
        return False

    # -- follow ----------------------------------------------------------------------------------------------------

    def _follow(self) -> tuple[_Ended, bytes]:
        """Pass on its lines until it has ended. Returns how, and its result: JSON, or nothing."""
        # A request to start that outlived its connection may still be on its way: gone is who stays gone.
        gone_since: float | None = None
        while True:
            answer = self._command("follow", self._offset, _LOG_CHUNK, RESULT_LIMIT, timeout_s=SILENCE_S)
            head, size, rest = (*answer.split(b"\n", 2), b"", b"")[:3]
            state, ended = parse_probe(head.decode("utf-8", "replace"))
            # Without a size there is more to come.
            end = int(size) if size else 0
            raw, chunk = rest[:end], rest[end:]
            self._take(chunk)
            if ended is not None and size:
                self._flush()
                return ended, raw
            if state == "running" and chunk:
                self._send_ahead()
            if state not in ("absent", "lost") or chunk:
                gone_since = None
            elif gone_since is None:
                gone_since = time.monotonic()
            elif time.monotonic() - gone_since > LOST_AFTER_S:
                self._flush()
                raise PhaseLost(
                    f"{self._job.phase}: the job vanished without an exit status: the container was restarted, "
                    f"or somebody ended {self._job.unit}.\nRun again: the phase is safe to repeat.",
                    phase=self._job.phase,
                    log_tail="\n".join(self._tail),
                )
            if not chunk:
                self._sign(f"still running, {time.monotonic() - self._began:.0f} s")
            if gone_since is not None:
                time.sleep(0.2)
            self._check_deadline()

    def _take(self, chunk: bytes) -> None:
        self._offset += len(chunk)
        for line in self._lines.feed(chunk):
            self._emit(line)

    def _flush(self) -> None:
        for line in self._lines.end():
            self._emit(line)

    def _emit(self, raw: str) -> None:
        # Secrets first: a cut through one would hide it from the fence and show its begin.
        line = one_line(self._clean(raw))
        if not line.strip():
            return
        self._no_room = self._no_room or bool(_NO_ROOM.search(line))
        if line not in self._tail[-1:]:
            self._tail = [*self._tail[-(LOG_TAIL_LINES - 1) :], line]
        self._last_sign = time.monotonic()
        self._say(line)

    def _sign(self, words: str) -> None:
        """A sign of life when nothing has been said for a while."""
        if time.monotonic() - self._last_sign >= SIGN_OF_LIFE_S:
            self._last_sign = time.monotonic()
            self._say(words)

    def _conclude(self, ended: _Ended, raw: bytes, picked_up: bool) -> JobResult:
        tail = "\n".join(self._tail)
        if not ended.ok:
            self._command("discard")
            shown = "\n".join(f"  {line}" for line in self._tail) or "  (it printed nothing)"
            full = f"\n{full_disks(self._persist(_ask_disks))}" if self._no_room else ""
            raise PhaseFailed(
                f"{self._job.phase} failed in the container: {ended.words()}. Its last lines:\n{shown}{full}",
                phase=self._job.phase,
                log_tail=tail,
            )
        if len(raw) > RESULT_LIMIT:
            raise ProvisioningError(
                f"{self._job.phase}: its result is larger than {RESULT_LIMIT >> 20} MB, which no result of ours is.\n"
                f"Look at it in the container: {self._job.directory}/result.json"
            )
        outputs = visible_value(json.loads(raw or b"{}"))
        self._command("discard")
        return JobResult(outputs, picked_up)

    # -- small things ----------------------------------------------------------------------------------------------

    def _remaining(self) -> float:
        return max(1.0, self._deadline - time.monotonic())

    def _check_deadline(self) -> None:
        if time.monotonic() < self._deadline:
            return
        cut = f"\nThe connection was down at the end: {self._last_cut}" if self._connection is None else ""
        raise PhaseTimeout(
            f"{self._job.phase} did not end within {self._timeout_s:g} s.{cut}\n"
            f"The job may still be running in the container (systemctl status {self._job.unit}); "
            "the next run of the same phase picks it up.",
            phase=self._job.phase,
            log_tail="\n".join(self._tail),
        )

    def _clean(self, text: str) -> str:
        """A second fence: scripts print no secrets, and if one does it stops here."""
        return redact(text, self._job.secrets.values())


def full_disks(listed: str) -> str:
    """What to do when there was no room left. `listed`: free and whole MB, free and all inodes, mount point, by line.

    Whatever failed has often removed its own half-made files, so the fullest disk is not blamed: all are told.
    """
    told = []
    for line in listed.splitlines():
        words = line.split(maxsplit=4)
        if len(words) == 5:
            free, size, inodes, of, place = words
            # Some file systems count none.
            files = ", and can't take one file more" if inodes == "0" != of else ""
            told.append(f"{place} has {free} of {size} MB free{files}")
    return (
        f"A disk of the container ran full. Now {'; '.join(told) or 'none can be listed'}.\n"
        "Make room there and run again: docs/operations.md, A full disk."
    )


def parse_probe(text: str) -> tuple[State, _Ended | None]:
    """Read the line that the probe prints: a state, and for `finished` systemd's three words."""
    words = text.split()
    if not words:
        return "absent", None
    if words[0] == "finished":
        result, code, status = (*words[1:], "", "", "")[:3]
        return "finished", _Ended(result, code, status)
    if words[0] in ("running", "lost"):
        return ("running" if words[0] == "running" else "lost"), None
    return "absent", None


# -- what runs in the container: scripts/job.sh -----------------------------------------------------------------------


@cache
def _script(name: str) -> str:
    return (files("provisioning") / "scripts" / name).read_text(encoding="utf-8")


def _in_guest(verb: str, *arguments: object, job: str = "") -> str:
    """The command that carries out a verb of scripts/job.sh."""
    return shlex.join(["sh", "-c", _script("job.sh"), "job.sh", STATE_DIR, RUN_DIR, job, verb, *map(str, arguments)])


def _ask_disks(connection: Connection) -> str:
    return connection.run(_in_guest("disks"), timeout_s=30.0).stdout.decode("utf-8", "replace")
