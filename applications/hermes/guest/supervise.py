"""The service that keeps the agent's container running: checks what it is given, starts it, waits for its end.

The engine's own restart policy is off, for it would look the sources of the mounts up again with nobody to check them.
Run by systemd as root, with the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

from applications.hermes.guest.backend import BACKENDS, Backend
from applications.hermes.guest.inputs import ContainerRecord
from applications.hermes.guest.names import CONTAINER, CONTAINER_RECORD, STOP_S
from applications.hermes.guest.walls import bind_state, refuse_unsafe, sources_of
from provisioning.guest.common import LIBRARY, Refusal, execute, run
from provisioning.guest.typed import record
from provisioning.guest.words import told

PROGRAM = LIBRARY / "supervise"
MEMORY = Path("/proc/meminfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
REFUSED = 78
"""Exit status (EX_CONFIG) after which systemd does not try again: what is wrong does not go away by itself."""


def unit_text(backend: Backend) -> str:
    """The unit. An engine with a daemon takes the container down with it, and up again."""
    needs = f"Requires={' '.join(backend.daemon)}\n" if backend.daemon else ""
    return f"""# Written by the stack; changes by hand are overwritten.
[Unit]
Description=Hermes Agent in a container of {backend.title}
{needs}Wants=network-online.target
After={" ".join((*backend.daemon, "network-online.target"))}
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={PROGRAM}
Restart=always
RestartSec=3
RestartPreventExitStatus={REFUSED}
KillMode=mixed
TimeoutStartSec={STOP_S + 90}
TimeoutStopSec={STOP_S + 60}

[Install]
WantedBy=multi-user.target
"""


def prepare() -> None:
    """Check all that the container is given, and mount the state directory where the engine looks for it."""
    sources = sources_of(container_record())
    refuse_unsafe(sources)
    bind_state(sources)


def container_record() -> ContainerRecord:
    """What the configure phase has noted down of the container. Refusal when it has not."""
    if found := record(ContainerRecord, CONTAINER_RECORD):
        return found
    raise Refusal(f"{CONTAINER_RECORD} tells of no container: the configure phase has to run.")


def memory_limit(total: int) -> int:
    """Bytes for the container of a guest that has `total`: what is over keeps the engine and the logins alive."""
    return max(total // 2, total - max(256 << 20, total // 10))


def memory_of_guest() -> int:
    """Bytes, by the lowest of what the guest's system and its control group tell."""
    [total] = re.findall(r"^MemTotal: +(\d+) kB$", MEMORY.read_text(), re.MULTILINE)
    found = [int(total) << 10]
    for path in LIMITS:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            found.append(int(path.read_text()))
    return min(found)


def limit_memory(backend: Backend) -> None:
    """As the guest is now, so that another size of it needs no other container."""
    limit = f"--memory={memory_limit(memory_of_guest())}"
    done = execute(*backend.command, "update", limit, "--memory-swap=-1", CONTAINER, timeout_s=30)
    if done.returncode != 0:
        print(f"note: the container's memory has no limit of its own: {told(done.stderr, 300)}")


def notify(state: str) -> None:
    """Tell systemd (sd_notify(3)); nothing where it has not asked."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


def supervise() -> int:
    """Until the container ends: 1, for systemd to start it again. A signal to end stops it first: 0."""
    backend = BACKENDS[container_record().backend]
    signal.signal(signal.SIGTERM, _end)
    try:
        try:
            prepare()
        except Refusal as refusal:
            # Somebody may have started it by hand.
            _stop(backend)
            print(f"error: {refusal}", file=sys.stderr)
            return REFUSED
        run(*backend.command, "start", CONTAINER, timeout_s=STOP_S)
        if container_record().limit_memory:
            limit_memory(backend)
        notify(f"READY=1\nSTATUS={backend.title} runs the container {CONTAINER}")
        waited = subprocess.run([*backend.command, "wait", CONTAINER], stdout=subprocess.PIPE, check=False)
        said = waited.stdout.decode(errors="replace").strip()
        print(f"the container has ended: {said or 'its engine is gone'}")
    except _Ended:
        _stop(backend)
        return 0
    return 1


class _Ended(BaseException):
    """systemd wants the service to end."""


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _stop(backend: Backend) -> None:
    with contextlib.suppress(Refusal):
        execute(*backend.command, "stop", "--time", str(STOP_S), CONTAINER, timeout_s=STOP_S + 30)


def main() -> int:
    # runuser and what the engines call are in sbin.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        return supervise()
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
