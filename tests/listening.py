"""Servers that a test makes of a bare socket."""

from __future__ import annotations

import contextlib
import socket
import threading


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
