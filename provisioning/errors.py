"""What can go wrong inside the container, as one tree.

    ProvisioningError
    ├── SshError
    │   ├── SshUnreachable      nothing answers, or what answers is no SSH server
    │   ├── SshAuthError        the server answers and refuses our key or user
    │   ├── HostKeyMismatch     another machine answers than the one that was pinned
    │   ├── WrongMachine        the machine that answers has another network card than the container
    │   ├── PrivateKeyError     the key file on this side can't be used
    │   └── ConnectionCut       an established connection ended (handled by jobs, seldom seen outside)
    └── PhaseError
        ├── PhaseFailed         the script in the container ended with an error
        ├── PhaseLost           the job vanished (container restarted, job killed from outside)
        └── PhaseTimeout        the deadline passed; the job may still be running in the container

The text of each says what happened, why, and what to do, in a few lines, and holds no secret. Much of it may be a
guest's words, so none of it reaches a terminal as it came: see provisioning.terminal.
"""

# ruff: noqa: N818 - the names say what happened, the base class says that it is an error

from __future__ import annotations

from provisioning.terminal import visible


class ProvisioningError(Exception):
    """Base of every error of this package."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


class SshError(ProvisioningError):
    """The SSH connection can't be made or kept."""


class SshUnreachable(SshError):
    """No SSH server answered before the deadline."""


class SshAuthError(SshError):
    """The server refused the key or the user, or the user is not root."""


class HostKeyMismatch(SshError):
    """The server showed another key than the pinned one."""


class WrongMachine(SshError):
    """The machine that answers is not the container, or nothing tells whether it is."""


class PrivateKeyError(SshError):
    """The private key file is missing, encrypted, or no key."""


class ConnectionCut(SshError):
    """An established connection broke; the work in the container goes on."""


class PhaseError(ProvisioningError):
    """A phase did not reach its end."""

    def __init__(self, message: str, *, phase: str, log_tail: str = "") -> None:
        super().__init__(message)
        self.phase = phase
        self.log_tail = visible(log_tail)


class PhaseFailed(PhaseError):
    """The script ended with a non-zero exit status; `log_tail` holds its last lines."""


class PhaseLost(PhaseError):
    """The job is gone and left no exit status."""


class PhaseTimeout(PhaseError):
    """The deadline passed while the job was still running."""
