"""The settings of agentMode docker: the image, and what its container gets besides."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator

from applications.hermes.settings.declaration import FOR_SECRETS
from settings.kinds import matches, once, plain_path
from settings.section import Section, refuse, setting

DATA = "/opt/data"
"""HERMES_HOME in upstream's image (facts hermes 2, "Docker image")."""
Backend = Literal["docker", "podman"]
"""The engine: Docker, or Podman with the same compose project."""

_IMAGE = re.compile(
    r"([a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
    r"@sha256:[0-9a-f]{64}"
)
# Read by the image before the agent starts (facts hermes 2, "Docker image").
_OWN_VARIABLES = re.compile(
    r"(HERMES_(HOME|UID|GID|MANAGED\w*|DASHBOARD|DASHBOARD_HOST|DASHBOARD_PORT|GATEWAY_NO_SUPERVISE|SKIP_CONFIG_MIGRATION)"
    r"|P[UG]ID|PATH)"
)
# compose's service keys that do no harm to the image's contract, with the types of their values.
OPTIONS: dict[str, tuple[type, ...]] = {
    "cap_add": (list,),
    "cap_drop": (list,),
    "cpus": (int, float, str),
    "devices": (list,),
    "dns": (list, str),
    "dns_search": (list, str),
    "environment": (dict,),
    "extra_hosts": (list, dict),
    "gpus": (list, str),
    "hostname": (str,),
    "mem_limit": (int, str),
    "memswap_limit": (int, str),
    "pids_limit": (int,),
    "ports": (list,),
    "security_opt": (list,),
    "shm_size": (int, str),
    "sysctls": (list, dict),
    "tmpfs": (list, str),
    "ulimits": (dict,),
}
REFUSED_OPTIONS = {
    # facts hermes 3, issues 38349, 36208: s6-overlay has to be process 1, and to begin as root
    "entrypoint": "the image's init system has to be process 1",
    "init": "the image's init system has to be process 1",
    "user": "the image has to start as root; it runs the agent as the uid of the home",
    "image": "it is agentImage",
    "volumes": "they are agentExtraVolumes",
    "command": "the container runs the gateway",
    "container_name": "the stack knows the container by it",
    "labels": "the stack knows the container by them",
    "restart": "the container has to come back after a reboot, and to stay stopped when it was stopped",
    "network_mode": "the ports are published on agentPublishedBindIp",
    "privileged": "the container would own the guest; name single devices or capabilities",
    "env_file": "secrets belong into the managed scope",
}
# Folders of the image and of the stack; below them nothing can be mounted without breaking one of the two.
_RESERVED_TARGETS = ("/opt/hermes", "/etc", "/usr", "/bin", "/lib", "/proc", "/sys", "/dev", "/run", "/command")


@dataclass(frozen=True)
class BindMount:
    """A folder of the guest, `source`, that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


def image_path(target: str) -> str:
    """A path where the container may have a folder of the guest."""
    for taken in _RESERVED_TARGETS:
        if target == taken or target.startswith(f"{taken}/"):
            raise refuse(f"{target} is in {taken}, which belongs to the image or the stack", "choose another path")
    if target == DATA:
        raise refuse(f"{target} is where the agent's home is mounted", "choose another path")
    return target


def _bind_mount(text: str) -> BindMount:
    """From HOST:CONTAINER, HOST:CONTAINER:ro or :rw."""
    parts = text.split(":")
    if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise refuse(
            f"{text!r} must be HOST:CONTAINER, with :ro behind it for read-only",
            "write it like /data:/data or /media/films:/films:ro",
        )
    return BindMount(plain_path(parts[0]), image_path(plain_path(parts[1])), parts[2:] == ["ro"])


def _volumes(value: list[str]) -> list[str]:
    targets = [_bind_mount(text).target for text in value]
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise refuse(f"two volumes are mounted at {twice[0]}", "give each a folder of its own in the container")
    return value


def _image(value: str) -> str:
    """By tag and digest: a tag alone can be moved, a digest alone tells people nothing."""
    if not _IMAGE.fullmatch(value):
        tag = value.partition("@")[0] or "nousresearch/hermes-agent:v2026.8.16.2"
        raise refuse(
            "must be REPOSITORY:TAG@sha256:DIGEST, as a tag alone can be moved",
            f"docker buildx imagetools inspect {tag} prints the digest",
        )
    return value


def _options(value: dict[str, Any]) -> dict[str, Any]:
    for name, option in value.items():
        if problem := _option_problem(name, option):
            raise refuse(problem, "correct or leave out this key of agentExtraOptions")
    return value


def _option_problem(name: str, value: Any) -> str | None:
    if name in REFUSED_OPTIONS:
        return f"{name} can't be set: {REFUSED_OPTIONS[name]}"
    if name not in OPTIONS:
        return f"{name} is none of the supported keys: {', '.join(sorted(OPTIONS))}"
    if not isinstance(value, OPTIONS[name]) or isinstance(value, bool):
        return f"{name} has the wrong type"
    return _environment_problem(value) if isinstance(value, dict) and name == "environment" else None


def _environment_problem(environment: dict[str, Any]) -> str | None:
    for name, text in environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or not isinstance(text, str):
            return f"environment must map names of variables to texts: {name}"
        if _OWN_VARIABLES.fullmatch(name):
            return f"environment.{name} is the stack's own: home, owner, dashboard or root's programs depend on it"
        if re.search(r"KEY|TOKEN|SECRET|PASSW|HASH", name, re.IGNORECASE):
            return (
                f"environment.{name} looks like a secret, and `docker inspect` would show it: "
                "secrets belong into the managed scope"
            )
    return None


def _ipv4(value: str) -> str:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        raise refuse("must be an IPv4 address of the guest", "127.0.0.1 keeps the ports inside the guest") from None
    return value


class ContainerSettings(Section):
    """What only Docker mode reads."""

    for_secrets: ClassVar[str] = FOR_SECRETS
    image: Annotated[str, AfterValidator(_image)] = setting(
        "agentImage",
        "",
        "With agentMode docker: the image, REPOSITORY:TAG@sha256:DIGEST. The digest decides. Its agent must "
        "report agentVersion.",
    )
    backend: Backend = setting("agentBackend", "docker", "With agentMode docker: the engine, docker or podman.")
    extra_volumes: Annotated[list[str], AfterValidator(_volumes)] = setting(
        "agentExtraVolumes",
        [],
        "With agentMode docker: more folders of the guest for the container, GUEST:CONTAINER, or "
        "GUEST:CONTAINER:ro for read-only.",
    )
    extra_options: Annotated[dict[str, Any], AfterValidator(_options)] = setting(
        "agentExtraOptions",
        {},
        "With agentMode docker: more keys of the compose service: cpus, mem_limit, devices, cap_add, "
        "extra_hosts, ports and others that the image allows.",
    )
    published_ip: Annotated[str, AfterValidator(_ipv4)] = setting(
        "agentPublishedBindIp",
        "127.0.0.1",
        "With agentMode docker: the guest's address for the published ports of the API and the dashboard. "
        "127.0.0.1: inside the guest only; 0.0.0.0: everywhere.",
    )
    insecure_registries: Annotated[
        list[
            Annotated[
                str,
                matches(
                    r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?",
                    "must be a registry's HOST or HOST:PORT",
                    "write it like 192.168.1.10:5000",
                ),
            ]
        ],
        AfterValidator(once),
    ] = setting(
        "agentInsecureRegistries",
        [],
        "With agentMode docker: registries without TLS, HOST:PORT. Images from there must still have their digest.",
    )

    @property
    def bind_mounts(self) -> tuple[BindMount, ...]:
        """What agentExtraVolumes names."""
        return tuple(map(_bind_mount, self.extra_volumes))
