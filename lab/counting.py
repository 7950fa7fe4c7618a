"""What a run of the engine costs besides time: processes and connections by strace, requests by the API's log."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

SSH_PORT = 22
_STARTED = re.compile(r"(?:execve\(.*\)|<\.\.\. execve resumed>.*\)) += 0$")
_CONNECTED = re.compile(r"connect\(\d+, \{sa_family=AF_INET6?, sin6?_port=htons\((\d+)\)")


@dataclass(frozen=True)
class Cost:
    """``processes`` counts the programs that were started; ``requests`` those to the API, ``writes`` included."""

    processes: int = 0
    connections: int = 0
    """Attempts on the SSH port: of one that waits for a guest to answer there may be more than it needs."""
    requests: int = 0
    writes: int = 0


def traced(record: Path) -> tuple[str, ...]:
    """What to put before a command, so that strace writes down what it and its children start and connect to."""
    return ("strace", "-f", "-qq", "-e", "trace=execve,connect", "-e", "signal=none", "-o", str(record))


def processes_of(record: str) -> int:
    """The programs that were started, by strace's record."""
    return sum(_STARTED.search(line) is not None for line in record.splitlines())


def connections_of(record: str, port: int = SSH_PORT) -> int:
    """The connections to a port that were tried, by strace's record."""
    return sum(int(found.group(1)) == port for found in _CONNECTED.finditer(record))


def requests_of(access_log: str, user: str) -> tuple[int, int]:
    """Requests and writes of a user's tokens, by the API's access log: one JSON object a line."""
    entries = [json.loads(line) for line in access_log.splitlines()]
    ours = [entry["write"] for entry in entries if str(entry.get("authid") or "").startswith(f"{user}!")]
    return len(ours), sum(ours)
