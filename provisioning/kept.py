"""Connections that one process uses again: the phases of a run come one after another, and each had a login of its own.

A connection that broke is never used again. One that is taken again proves first that it works and that its machine is
still the one that is meant, as each new one does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import IO

from provisioning.errors import ProvisioningError
from provisioning.ssh import CommandResult, Connection, SshTarget, connect, require_card

PROOF_SECONDS = 10.0
"""So long a connection may take to prove itself; then another one is opened."""


class Kept:
    """The connections of a process that nobody uses now. ``connect``: opens one, with seconds as its limit."""

    def __init__(self, connect: Callable[..., Connection] = connect) -> None:
        self._connect = connect
        self._free: dict[SshTarget, Connection] = {}
        self._lock = threading.Lock()

    def connect(self, target: SshTarget, *, timeout_s: float = 20.0) -> Connection:
        """A connection for its caller alone; closed, it is kept. Errors: see provisioning.ssh.connect."""
        with self._lock:
            found = self._free.pop(target, None)
        if found is not None:
            try:
                require_card(found, target, PROOF_SECONDS)
            except ProvisioningError:
                found.close()
            else:
                return _Used(found, target, self)
        return _Used(self._connect(target, timeout_s=timeout_s), target, self)

    def keep(self, target: SshTarget, connection: Connection) -> None:
        """Take a connection that works. One to a machine that has nothing to prove is closed."""
        if target.card is None:
            connection.close()
            return
        with self._lock:
            older, self._free[target] = self._free.get(target), connection
        if older is not None:
            older.close()


class _Used:
    """A connection in use."""

    def __init__(self, connection: Connection, target: SshTarget, kept: Kept) -> None:
        self._connection = connection
        self._target = target
        self._kept = kept
        self._broken = False

    def run(self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0) -> CommandResult:
        try:
            return self._connection.run(command, stdin=stdin, timeout_s=timeout_s)
        except BaseException:
            self._broken = True
            raise

    def close(self) -> None:
        if self._broken:
            with contextlib.suppress(Exception):
                self._connection.close()
        else:
            self._kept.keep(self._target, self._connection)


KEPT = Kept()
"""Those of this process."""
