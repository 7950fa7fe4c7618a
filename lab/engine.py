"""Runs the Pulumi CLI for the demo and the tests, and records what its engine does.

It reads the engine's event stream (``--json``). ``pulumi.automation`` does not fit: each ``up`` calls the CLI several
times more (0.8 s here), its events carry whole seconds only, and it has neither a deadline nor a way to kill a run with
all of its plugins.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pvelab.place import LabError

KILL_AFTER = 1800.0  # seconds
COMMAND_TIMEOUT = 60.0


@dataclass(frozen=True)
class Span:
    """One operation on one resource.

    ``op`` is the engine's word: create, update, same, delete, replace ...; times in seconds since the run began.
    """

    name: str
    type: str
    op: str
    began: float
    ended: float | None
    details: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return (self.ended if self.ended is not None else self.began) - self.began


@dataclass
class Run:
    """One run of the engine."""

    returncode: int = -1
    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of both kinds, of the engine and of all that it waited for."""
    changes: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stderr: str = ""

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def changed(self) -> dict[str, int]:
        """The number of operations by kind, without ``same``."""
        return {op: count for op, count in self.changes.items() if op != "same" and count}

    def span(self, name: str, *ops: str) -> Span:
        """The operation on the resource of that name; KeyError when there was none."""
        for span in self.spans:
            if span.name == name and (not ops or span.op in ops):
                return span
        raise KeyError(f"{name} {ops}")

    def explain(self) -> str:
        """The engine's errors, as one text."""
        return "\n".join([*self.errors, self.stderr.strip()]).strip() or f"pulumi ended with {self.returncode}"


def take_interrupts() -> None:
    """Have SIGINT end this process and what it starts, also where a shell began it in the background, which ignores it.

    The CLI ends its plugins by SIGINT, and waits five seconds for one that ignores it: in each run of a program. To be
    called in the main thread, before anything is started.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


OnEvent = Callable[[dict[str, Any]], None]


def pulumi(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    on_event: OnEvent | None = None,
    log: Path | None = None,
    timeout: float = KILL_AFTER,
    before: Sequence[str] = (),
) -> Run:
    """Run ``pulumi ARGV --json`` to its end. A failed run raises nothing: see :class:`Run`.

    ``log``: a file that the raw events and the error output are appended to. ``timeout``: seconds until it is killed.
    ``before``: a command that runs the command after it, such as lab.counting.traced.
    """
    run = Run()
    begin = time.monotonic()
    open_spans: dict[str, tuple[dict[str, Any], float]] = {}
    process = subprocess.Popen(
        [*before, "pulumi", *argv, "--json", "--non-interactive", "--color", "never"],
        cwd=cwd,
        # Otherwise a preview prints one document and no events.
        env={**env, "PULUMI_ENABLE_STREAMING_JSON_PREVIEW": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A session of its own, so that kill_session finds what a run leaves behind.
        start_new_session=True,
    )
    killer = threading.Timer(timeout, process.kill)
    killer.start()
    errors: list[str] = []
    stdout, stderr = process.stdout, process.stderr
    if stdout is None or stderr is None:
        raise RuntimeError("both streams were asked for")
    drain = threading.Thread(target=errors.extend, args=(stderr,), daemon=True)
    drain.start()
    lines: list[str] = []
    try:
        for line in stdout:
            lines.append(line)
            if line.startswith("{"):
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                _take(run, event, open_spans, time.monotonic() - begin)
                if on_event is not None:
                    on_event(event)
    except BaseException:
        # SIGINT lets the engine end its operations and write its state.
        process.send_signal(signal.SIGINT)
        raise
    finally:
        killer.cancel()
        # As Popen.wait, which does not tell what was used.
        _, status, usage = os.wait4(process.pid, 0)
        run.returncode = process.returncode = os.waitstatus_to_exitcode(status)
        run.cpu = usage.ru_utime + usage.ru_stime
        kill_session(process.pid)
        drain.join()
        stdout.close()
        stderr.close()
    run.seconds = time.monotonic() - begin
    run.stderr = "".join(errors)
    if log is not None:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"$ pulumi {' '.join(argv)}\n{''.join(lines)}{run.stderr}\n")
    return run


def command(*argv: str, cwd: Path, env: Mapping[str, str], stdin: str = "") -> str:
    """Run a command of the CLI that does not run the engine. Returns its output; raises LabError if it fails."""
    done = subprocess.run(
        ["pulumi", *argv, "--non-interactive"],
        cwd=cwd,
        env=env,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    if done.returncode:
        raise LabError(f"pulumi {' '.join(argv)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def outputs(stack: str, *, cwd: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """The outputs of a stack."""
    found: dict[str, Any] = json.loads(command("stack", "output", "--json", "--stack", stack, cwd=cwd, env=env))
    return found


def kill_session(session: int, pattern: str = "") -> int:
    """Kill (-9) all processes of a session, or those whose command line matches. Returns how many.

    A process group is not enough: each plugin of the engine has its own.
    """
    killed = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if int(stat[3]) == session and re.search(pattern, command):
                    os.kill(int(entry.name), signal.SIGKILL)
                    killed += 1
    return killed


def _take(run: Run, event: dict[str, Any], open_spans: dict[str, tuple[dict[str, Any], float]], now: float) -> None:
    if "resourcePreEvent" in event:
        metadata = event["resourcePreEvent"]["metadata"]
        open_spans[f"{metadata['urn']} {metadata['op']}"] = (metadata, now)
    elif "resOutputsEvent" in event:
        metadata = event["resOutputsEvent"]["metadata"]
        _, began = open_spans.pop(f"{metadata['urn']} {metadata['op']}", (metadata, now))
        run.spans.append(_span(metadata, began, now))
    elif "resOpFailedEvent" in event:
        metadata = event["resOpFailedEvent"]["metadata"]
        _, began = open_spans.pop(f"{metadata['urn']} {metadata['op']}", (metadata, now))
        run.spans.append(_span(metadata, began, None))
    elif "diagnosticEvent" in event:
        diagnostic = event["diagnosticEvent"]
        text = str(diagnostic.get("message", "")).strip()
        if text and diagnostic.get("severity") == "error":
            run.errors.append(text)
        elif text and diagnostic.get("severity") != "debug":
            run.messages.append(text)
    elif "summaryEvent" in event:
        run.changes = dict(event["summaryEvent"].get("resourceChanges") or {})


def _span(metadata: dict[str, Any], began: float, ended: float | None) -> Span:
    urn = str(metadata["urn"])
    details = metadata.get("detailedDiff") or {}
    return Span(
        name=urn.rsplit("::", 1)[1],
        type=str(metadata["type"]),
        op=str(metadata["op"]),
        began=began,
        ended=ended,
        details=tuple(sorted(details)),
    )
