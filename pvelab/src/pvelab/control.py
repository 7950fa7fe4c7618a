"""The lab's back door for whoever is root on its machine: a Unix socket, one JSON object per line in, one out.

``<state_dir>/control.sock`` is open to its owner only and speaks no HTTP, so that no Proxmox client reaches it by
accident. It carries faults on demand (:mod:`pvelab.faults`) and what ``pct`` on a node does beside the API
(:mod:`pvelab.pct`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pvelab.errors import ApiError
from pvelab.runtime import RuntimeFault

SOCKET = "control.sock"
_LINE_LIMIT = 64 << 20  # the input and output of a command in a guest travel in one line

Order = dict[str, Any]
Operation = Callable[[Order], Order]
"""Carries out one order; what it raises is the answer's ``error``."""


class ControlError(Exception):
    """The lab refused an order, or does not run."""


@contextlib.contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """A socket's path has at most 107 bytes: go through the folder's descriptor, however deep it lies."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


async def serve_control(operations: Mapping[str, Operation], state_dir: Path) -> asyncio.Server:
    """Listen; each order runs in a thread of its own, so that a long one holds up nobody."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                answer = await asyncio.to_thread(_obey, operations, line)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    (state_dir / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        with _short_path(state_dir) as path:
            listener.bind(path)
    finally:
        os.umask(before)
    return await asyncio.start_unix_server(talk, sock=listener, limit=_LINE_LIMIT)


def _obey(operations: Mapping[str, Operation], line: bytes) -> Order:
    try:
        order: Order = json.loads(line)
        name = order.pop("op")
        if name not in operations:
            return {"error": f"unknown operation {name!r}: {', '.join(sorted(operations))}"}
        return operations[name](order)
    except (ApiError, RuntimeFault) as error:
        return {"error": str(error)}
    except (ValueError, TypeError, KeyError, AttributeError, re.error) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def send(state_dir: Path, operation: str, timeout: float = 5.0, **order: Any) -> Order:
    """Send one order to a lab that runs, in this process or another; ControlError with its refusal."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        try:
            with _short_path(state_dir) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"op": operation, **order}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            raise ControlError(f"the lab in {state_dir} does not answer: {error}") from None
    if not line:
        raise ControlError(f"the lab in {state_dir} closed the connection")
    answer: Order = json.loads(line)
    if "error" in answer:
        raise ControlError(answer["error"])
    return answer
