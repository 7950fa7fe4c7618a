"""The two engines of Docker mode, and the one place that says how they and compose are called.

Both are run by root in an unprivileged guest and carry out the same compose project.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioning.guest.common import LIBRARY, install_file

ENGINE = f"{LIBRARY}/engine"
"""Calls the engine that is in use, or compose, with what follows: for who does not know which one that is."""
PLUGIN = Path("/usr/local/lib/docker/cli-plugins/docker-compose")
PODMAN_SOCKET = "unix:///run/podman/podman.sock"
# Root's Podman in a user namespace keeps its network namespaces in XDG_RUNTIME_DIR. That of an SSH session goes with
# the session, and the containers' networks with it: so each call names one that stays.
PODMAN_RUNTIME = "/run/hermes-podman"

PODMAN_NETWORK = "hermes-stack"
"""Made by the agent phase, with the uplink's MTU: Podman has no setting for that of its own network."""


@dataclass(frozen=True)
class Backend:
    """One engine. `name`: as agentBackend has it. `units`: what brings it, and containers after a reboot, up."""

    name: str
    title: str
    program: str
    command: tuple[str, ...]
    compose: tuple[str, ...]
    units: tuple[str, ...]
    daemon: tuple[str, ...]
    """Units without which the command has no answer."""
    certificates: Path
    version_template: str
    driver_template: str
    network: str
    """The container's: a bridge of the engine's, and none of compose's. Its MTU follows that of the guest's card."""
    bridge_template: str
    """Of `network inspect`: what the network's interface is called in the guest."""

    @property
    def script(self) -> str:
        """The program at ENGINE."""
        return (
            "#!/bin/sh\n# Written by the stack; changes by hand are overwritten.\n"
            f'if [ "${{1-}}" = compose ]; then shift; exec {shlex.join(self.compose)} "$@"; fi\n'
            f'exec {shlex.join(self.command)} "$@"\n'
        )


DOCKER = Backend(
    "docker",
    "Docker",
    program="docker",
    command=("docker",),
    compose=("docker", "compose"),
    units=("docker.socket", "docker.service"),
    daemon=("docker.service",),
    certificates=Path("/etc/docker/certs.d"),
    version_template="{{.Server.Version}}",
    driver_template="{{.Driver}}",
    network="bridge",
    bridge_template='{{index .Options "com.docker.network.bridge.name"}}',
)
PODMAN = Backend(
    "podman",
    "Podman",
    program="podman",
    command=("env", f"XDG_RUNTIME_DIR={PODMAN_RUNTIME}", "podman"),
    compose=("env", f"DOCKER_HOST={PODMAN_SOCKET}", str(PLUGIN)),
    units=("podman.socket", "podman-restart.service"),
    daemon=(),
    certificates=Path("/etc/containers/certs.d"),
    version_template="{{.Client.Version}}",
    driver_template="{{.Store.GraphDriverName}}",
    network=PODMAN_NETWORK,
    bridge_template="{{.NetworkInterface}}",
)
BACKENDS = {backend.name: backend for backend in (DOCKER, PODMAN)}


def choose(backend: Backend) -> None:
    """Have ENGINE call this one."""
    Path(ENGINE).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(Path(ENGINE), backend.script, mode=0o755, gid=0)


def health_of(container: dict[str, Any]) -> dict[str, Any]:
    """The result of the health check, as `inspect` of either engine shows it (Podman before 4: Healthcheck)."""
    state = container.get("State") or {}
    found: dict[str, Any] = state.get("Health") or state.get("Healthcheck") or {}
    return found
