"""Tasks: work beside the request, followed by UPID (facts proxmox 13).

A task's log is a file; its last line says how it ended, and a log without such a line belongs to a worker that was
killed. So the truth survives the lab's process.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pvelab.errors import ApiError, TaskAbortedError, bad_param
from pvelab.runtime import RuntimeFault

_UPID = re.compile(
    r"UPID:(?P<node>[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9})"
    r":(?P<starttime>[0-9A-Fa-f]{8}):(?P<type>[^:\s/]+):(?P<id>[^:\s/]*):(?P<authid>[^:\s/]+):"
)


@dataclass(frozen=True)
class Upid:
    node: str
    pid: int
    pstart: int
    starttime: int
    type: str
    id: str
    authid: str

    def __str__(self) -> str:
        head = f"UPID:{self.node}:{self.pid:08X}:{self.pstart:08X}:{self.starttime:08X}"
        return f"{head}:{self.type}:{self.id}:{self.authid}:"

    @property
    def user(self) -> str:
        return self.authid.split("!", 1)[0]

    @property
    def token(self) -> str | None:
        return self.authid.split("!", 1)[1] if "!" in self.authid else None

    @classmethod
    def parse(cls, text: str) -> Upid:
        match = _UPID.fullmatch(text)
        if not match:
            raise bad_param("upid", "unable to parse worker upid")
        numbers = {name: int(match[name], 16) for name in ("pid", "pstart", "starttime")}
        return cls(match["node"], **numbers, type=match["type"], id=match["id"], authid=match["authid"])


@dataclass
class Task:
    """A running or ended task. Workers write through it; ``line`` and ``checkpoint`` end an aborted one."""

    upid: Upid
    path: Path
    warnings: int = 0
    exit_text: str | None = None
    aborted: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    children: list[Callable[[], None]] = field(default_factory=list)

    def checkpoint(self) -> None:
        if self.aborted.is_set():
            raise TaskAbortedError

    def line(self, text: str) -> None:
        self.checkpoint()
        self._write(text)

    def warn(self, text: str) -> None:
        """A warning that counts; plain chatter goes through :meth:`line`."""
        self.warnings += 1
        self.line(f"WARN: {text}")

    def after(self, start: Callable[[], None]) -> None:
        """Begin something (another task) once this one has ended well."""
        self.children.append(start)

    def _write(self, text: str) -> None:
        with self.path.open("a") as handle:
            handle.write("".join(f"{part}\n" for part in text.rstrip("\n").split("\n")))

    def finish(self, text: str) -> None:
        ok = text == "OK" or re.fullmatch(r"WARNINGS: \d+", text)
        self._write(f"TASK {text}" if ok else f"TASK ERROR: {on_one_line(text)}")
        self.exit_text = text
        self.done.set()


def on_one_line(text: str) -> str:
    """An error as the last line of a log: line ends become spaces, runs of spaces stay (facts proxmox-9.2, row 5)."""
    return text.rstrip("\n").replace("\n", " ")


Worker = Callable[[Task], None]


@dataclass(frozen=True)
class Interception:
    """Something to run before and after a task's own work (faults on demand)."""

    before: Worker
    after: Worker


Intercept = Callable[[Upid], Interception | None]


class Tasks:
    """All tasks of a cluster."""

    def __init__(self, task_dir: Callable[[str], Path]) -> None:
        self._task_dir = task_dir
        self._lock = threading.Lock()
        self._active: dict[str, Task] = {}
        # Worker ids look like the process ids of a node and never repeat within one lab process.
        self._pids = itertools.count(os.getpid() + 1)
        self._boot = time.monotonic()
        self.intercept: Intercept | None = None

    def start(self, node: str, kind: str, subject: str, authid: str, worker: Worker) -> str:
        """Run ``worker`` beside the request; returns the UPID at once."""
        upid = Upid(
            node=node,
            pid=next(self._pids) & 0xFFFFFFFF,
            pstart=int(time.monotonic() * 100),
            starttime=int(time.time()),
            type=kind,
            id=subject,
            authid=authid,
        )
        directory = self._task_dir(node)
        directory.mkdir(parents=True, exist_ok=True)
        task = Task(upid, directory / str(upid))
        task.path.touch()
        with self._lock:
            self._active[str(upid)] = task
        around = self.intercept(upid) if self.intercept else None
        threading.Thread(target=self._run, args=(task, worker, around), name=f"{kind}:{subject}", daemon=True).start()
        return str(upid)

    def _run(self, task: Task, worker: Worker, around: Interception | None) -> None:
        try:
            if around is not None:
                around.before(task)
            worker(task)
            if around is not None:
                around.after(task)
        except TaskAbortedError as abort:
            text = str(abort)
        except ApiError as error:
            text = error.exit_text()
        except RuntimeFault as fault:
            for line in fault.log:
                task._write(line)
            text = str(fault)
        except Exception as error:  # a bug of the lab must end the task, not hang its follower
            text = f"internal error: {type(error).__name__}: {error}"
        else:
            text = f"WARNINGS: {task.warnings}" if task.warnings else "OK"
            for child in task.children:
                child()
        task.finish(text)
        with self._lock:
            self._active.pop(str(task.upid), None)

    def active(self) -> list[Task]:
        with self._lock:
            return list(self._active.values())

    def wait_idle(self, timeout: float) -> bool:
        """True when no task runs any more within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        return all(task.done.wait(max(0.0, deadline - time.monotonic())) for task in self.active())

    def check_exists(self, upid: Upid) -> None:
        """400 when no node has such a task."""
        self._path(upid)

    def _path(self, upid: Upid) -> Path:
        path = self._task_dir(upid.node) / str(upid)
        if not path.is_file():
            raise bad_param("upid", "no such task")

        return path

    def status(self, upid: Upid) -> dict[str, object]:
        path = self._path(upid)
        entry: dict[str, object] = {
            "upid": str(upid),
            "node": upid.node,
            "pid": upid.pid,
            "pstart": upid.pstart,
            "starttime": upid.starttime,
            "type": upid.type,
            "id": upid.id,
            "user": upid.user,
        }
        if upid.token is not None:
            entry["tokenid"] = upid.token
        with self._lock:
            running = str(upid) in self._active
        if running:
            return {**entry, "status": "running"}
        return {**entry, "status": "stopped", "exitstatus": _exit_status(path)}

    def log(self, upid: Upid, start: int, limit: int) -> tuple[list[dict[str, object]], int]:
        """The lines ``start`` .. ``start + limit`` and the total; an empty log is one line ``no content``."""
        lines = self._path(upid).read_text().splitlines() or ["no content"]
        shown = lines[start : start + limit] if limit else lines[start:]
        return [{"n": start + n, "t": text} for n, text in enumerate(shown, 1)], len(lines)

    def abort(self, upid: Upid) -> None:
        self._path(upid)
        with self._lock:
            task = self._active.get(str(upid))
        if task is not None:
            task.aborted.set()

    def history(self, node: str) -> list[Upid]:
        """Every task of a node that has a log, newest first."""
        directory = self._task_dir(node)
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        upids = [Upid.parse(name) for name in names if _UPID.fullmatch(name)]
        return sorted(upids, key=lambda upid: (upid.starttime, upid.pid), reverse=True)

    def end_time(self, upid: Upid) -> int | None:
        with self._lock:
            if str(upid) in self._active:
                return None
        return int(self._path(upid).stat().st_mtime)


def _exit_status(path: Path) -> str:
    with path.open("rb") as handle:
        handle.seek(0, os.SEEK_END)
        handle.seek(max(0, handle.tell() - 8192))
        lines = handle.read().decode(errors="replace").splitlines()
    last = lines[-1] if lines else ""
    if last == "TASK OK":
        return "OK"
    if match := re.fullmatch(r"TASK (WARNINGS: \d+)", last):
        return match.group(1)
    if last.startswith("TASK ERROR: "):
        return last.removeprefix("TASK ERROR: ")
    return "unexpected status"


def check_own_task(upid: Upid, authid: str) -> bool:
    """A token sees what it started; a user sees that and what any of the own tokens started (facts 13)."""
    return upid.authid == authid or ("!" not in authid and upid.user == authid)
