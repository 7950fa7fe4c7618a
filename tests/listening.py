"""Servers of the tests' own, and ports for those of others."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from pathlib import Path


def end_listening(listener: socket.socket, thread: threading.Thread) -> None:
    """Close a listener and see its thread end.

    A blocked accept() outlives the close of its socket; taken up again it would accept on whatever has got the number
    of its descriptor meanwhile, and answer another test's client. A shutdown ends it.
    """
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)
    assert not thread.is_alive()
    listener.close()


def free_port() -> int:
    """A TCP port on loopback that nobody has.

    Not out of the range from which the kernel takes one for whoever asks for any, and for each connection: such a one
    may be gone before it is used. Drawn by lot, so that two tests at a time seldom meet.
    """
    range_file = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(range_file.read_text().split()[0]) if range_file.exists() else 32768
    for port in random.SystemRandom().sample(range(10_000, max(end, 11_000)), 1000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")
