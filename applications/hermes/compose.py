"""The compose project of Docker mode, as pure functions: what the container is, and when it has to be another one.

Everything that only a new container can change is in the service's definition, and the identity is a hash over the
whole of it. So the hash needs no list of what matters: what is not in it (settings, documents, environment, keys)
reaches the container through mounted files and a restart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import yaml

from applications.hermes.guest.backend import BACKENDS
from applications.hermes.guest.inputs import Container, Port
from applications.hermes.guest.names import API_SERVER, DASHBOARD_SERVER, IDENTITY_LABEL, STOP_S
from applications.hermes.guest.walls import DATA_MOUNT
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from applications.hermes.settings.docker import DATA

PROJECT = "hermes"
PATH = ":".join(
    (
        *("/opt/hermes/bin", "/opt/hermes/.venv/bin", "/usr/local/sbin", "/usr/local/bin"),
        *("/usr/sbin", "/usr/bin", "/sbin", "/bin", f"{DATA}/.local/bin"),
    )
)
"""Upstream's has the agent's own folder before the system's (Dockerfile at 0.20.3): what the image runs as root, its
hooks and `docker exec`, would be the agent's programs."""
ADDED = ("cap_add", "cap_drop", "security_opt")
"""Lists to which what is declared adds."""
LOOPBACK = "127.0.0.1"
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
MANAGED_FILES = ("config.yaml", ".env")
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What the image's init needs as root (docs/docker-image.md, "The container's walls"); the agent itself has none."""
PROCESSES = 4096


def service(stack: AgentStack, agent: DockerAgent) -> dict[str, Any]:
    """The one service of the project, in compose's own keys, without its identity label. Holds no secret."""
    container, volumes, dashboard = agent.container, stack.bind_mounts, agent.dashboard
    writable = [volume.target for volume in volumes if not volume.read_only]
    environment = {
        # Read by the image before Python starts, so they have no effect in the managed .env (facts hermes 1).
        "PATH": PATH,
        "HERMES_UID": str(agent.service.uid),
        "HERMES_GID": str(agent.service.gid),
        "HERMES_MANAGED": "pulumi",
        # As bare-metal: the file in the home is the user's, and migrating it drops their comments.
        "HERMES_SKIP_CONFIG_MIGRATION": "1",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        # The image allows the file tools its data folder only; what was mounted for the agent's use is for its use.
        "HERMES_WRITE_SAFE_ROOT": ":".join([DATA, stack.home, *writable]),
    }
    published = container.published_ip
    # On loopback always: `verify` and `scripts/agent` find the API where it is in bare-metal mode.
    addresses = [published] if reach(published) == LOOPBACK else [LOOPBACK, published]
    ports = [_port(address, agent.api.port) for address in addresses]
    if dashboard.enabled:
        environment |= {
            "HERMES_DASHBOARD": "1",
            "HERMES_DASHBOARD_HOST": agent.dashboard_listens_on,
            "HERMES_DASHBOARD_PORT": str(dashboard.port),
        }
        ports.append(_port(published, dashboard.port))
    authorities: list[Any] = []
    if agent.model.authorities:
        authorities.append(_bind(CA_BUNDLE, CA_BUNDLE, read_only=True))
        environment |= {
            "SSL_CERT_FILE": CA_BUNDLE,
            "REQUESTS_CA_BUNDLE": CA_BUNDLE,
            # The bundle is replaced, not rewritten, when it changes: only a new container would see that.
            "HERMES_STACK_AUTHORITIES": ca_digest(agent.model.authorities),
        }
    ours: dict[str, Any] = {
        "image": container.image,
        "container_name": PROJECT,
        "hostname": PROJECT,
        "command": ["gateway", "run"],
        # Never by the engine: it would look up the mounts' sources again with nobody to check them.
        "restart": "no",
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": PROCESSES,
        "stop_grace_period": f"{STOP_S}s",
        "network_mode": BACKENDS[container.backend].network,
        "ports": ports,
        "environment": environment,
        "volumes": [
            # A part of its path is the agent's to rename: the guest mounts it where nothing is.
            _bind(DATA_MOUNT, DATA),
            # The same path as outside, so that what the settings name exists in both modes.
            _bind(stack.home, stack.home),
            # Files, not the folder: newer images own files in /etc/hermes (facts hermes 2).
            *(_bind(f"/etc/hermes/{name}", f"/etc/hermes/{name}", read_only=True) for name in MANAGED_FILES),
            *authorities,
            *(_bind(volume.source, volume.target, read_only=volume.read_only) for volume in volumes),
        ],
        # The main process is a heartbeat that lives on when the gateway is down: without this it would look well.
        "healthcheck": {
            "test": ["CMD", "python3", "-I", "-c", _probe(agent.api.port)],
            "interval": "10s",
            "timeout": "8s",
            "retries": 3,
            "start_period": "90s",
        },
        "logging": {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}},
        "shm_size": "1gb",
    }
    extra = dict(container.extra_options)
    ours["ports"] += extra.pop("ports", [])
    ours["environment"] |= extra.pop("environment", {})
    for name in ADDED:
        ours[name] += [each for each in extra.pop(name, []) if each not in ours[name]]
    return {**ours, **extra}


def identity(definition: Mapping[str, Any]) -> str:
    """64 hex digits over a service's definition; another one means another container."""
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()


def compose_file(definition: Mapping[str, Any]) -> str:
    """compose.yaml with the identity as a label. `$` is doubled, or compose would take it for a variable."""
    labelled = {**definition, "labels": {IDENTITY_LABEL: identity(definition)}}
    document = {"name": PROJECT, "services": {PROJECT: _escaped(labelled)}}
    body = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return f"# Written by the stack; changes by hand are overwritten.\n{body}"


def ca_digest(certificates: str) -> str:
    """Changes with agentCaFile, for what reads it at its start only; empty without any."""
    return hashlib.sha256(certificates.encode()).hexdigest()[:16] if certificates else ""


def container_parameters(stack: AgentStack, agent: DockerAgent, definition: Mapping[str, Any]) -> Container:
    """What the guest has to know besides compose.yaml: ports to prove free, folders to prove there."""
    container = agent.container
    names = {agent.api.port: API_SERVER, agent.dashboard.port: DASHBOARD_SERVER}
    return Container(
        identity=identity(definition),
        backend=container.backend,
        reach=reach(container.published_ip),
        ports=tuple(
            Port(port["host_ip"], port["target"], names[port["target"]])
            for port in definition["ports"]
            if isinstance(port, Mapping) and port.get("target") in names and "host_ip" in port
        ),
        sources=tuple(volume.source for volume in stack.bind_mounts),
        limit_memory=not {"mem_limit", "memswap_limit"} & set(container.extra_options),
    )


def _probe(port: int) -> str:
    # Without a blank: the API of Podman 4.3 joins the words of the check, and parts them again at each blank.
    return f"__import__('urllib.request').request.urlopen('http://127.0.0.1:{port}/health',timeout=5)"


def _port(address: str, port: int) -> dict[str, Any]:
    return {"target": port, "published": str(port), "host_ip": address, "protocol": "tcp"}


def _bind(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    # A missing source is an error: without the volume there is no home, and Docker must not invent an empty one.
    return {
        "type": "bind",
        "source": source,
        "target": target,
        **({"read_only": True} if read_only else {}),
        "bind": {"create_host_path": False},
    }


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value


def reach(address: str) -> str:
    """Where a port that is published on `address` answers inside the guest."""
    return LOOPBACK if address in ("0.0.0.0", LOOPBACK) else address  # noqa: S104 - where to knock
