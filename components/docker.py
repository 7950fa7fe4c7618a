"""The settings of agentMode docker: the image, and what its container gets besides."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict

from components.rules import SettingsModel, keys_with, list_from_json, matches, object_from_json, refuse
from components.service import is_loopback
from provisioning.compose import DATA
from provisioning.models import (
    ConfigureInputs,
    ContainerBackend,
    ContainerInputs,
    DockerInputs,
    Volume,
    container_option_problem,
    pinned_image,
)
from proxmox.errors import Fault

if TYPE_CHECKING:
    from components.host_settings import HostMountSettings
    from components.settings import AgentSettings  # which reads this module's settings

EVERYWHERE = "0.0.0.0"  # noqa: S104 - inside the container; the published ports say who gets there


def _image(value: str) -> str:
    try:
        return pinned_image(value)
    except ValueError as error:
        tag = value.partition("@")[0] or "nousresearch/hermes-agent:v2026.8.16.2"
        raise refuse(
            "must be REPOSITORY:TAG@sha256:DIGEST, as a tag alone can be moved",
            f"docker buildx imagetools inspect {tag} prints the digest",
        ) from error


def _volumes(value: list[str]) -> list[str]:
    targets = []
    for text in value:
        try:
            targets.append(Volume.parse(text).target)
        except ValueError as error:
            raise refuse(str(error), "write it like /data:/data or /media/films:/films:ro") from None
    twice = sorted({target for target in targets if targets.count(target) > 1})
    if twice:
        raise refuse(f"two volumes are mounted at {twice[0]}", "give each a folder of its own in the container")
    return value


def _options(value: dict[str, Any]) -> dict[str, Any]:
    for problem in map(container_option_problem, value.items()):
        if problem:
            raise refuse(problem, "correct or leave out this key of agentExtraOptions")
    return value


def _address(value: str) -> str:
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        raise refuse("must be an IPv4 address of the guest", "127.0.0.1 keeps the ports inside the guest") from None
    return value


class DockerSettings(SettingsModel):
    """What only Docker mode reads."""

    model_config = ConfigDict(alias_generator=keys_with("agent"))

    backend: ContainerBackend
    image: Annotated[str, AfterValidator(_image)]
    extra_volumes: Annotated[list[str], BeforeValidator(list_from_json), AfterValidator(_volumes)]
    extra_options: Annotated[dict[str, Any], BeforeValidator(object_from_json), AfterValidator(_options)]
    published_bind_ip: Annotated[str, AfterValidator(_address)]
    insecure_registries: Annotated[
        list[
            Annotated[
                str,
                AfterValidator(
                    matches(
                        r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,5})?",
                        "must be a registry's HOST or HOST:PORT",
                        "write it like 192.168.1.10:5000",
                    )
                ),
            ]
        ],
        BeforeValidator(list_from_json),
    ]

    @property
    def is_local(self) -> bool:
        """Whether the published ports can be reached from the guest only."""
        return ipaddress.IPv4Address(self.published_bind_ip).is_loopback


def docker_faults(agent: AgentSettings) -> list[Fault]:
    """Settings that do not go together in Docker mode."""
    faults = []
    if agent.dashboard and not agent.dashboard_asks:
        faults.append(
            Fault(
                "agentDashboardPassword",
                "(empty)",
                "in a container the dashboard listens beyond loopback, and then it needs a password",
                "pulumi config set --secret agentDashboardPassword (or agentDashboardPasswordHash, or set "
                "agentDashboardOidcIssuer), or agentDashboard false",
            )
        )
    if not agent.dashboard_is_local:
        faults.append(
            Fault(
                "agentDashboardHost",
                agent.dashboard_host,
                "is for bare-metal mode: in Docker mode the ports are published on agentPublishedBindIp",
                f"agentPublishedBindIp {agent.dashboard_host}, and leave agentDashboardHost out",
            )
        )
    if agent.extra_args:
        faults.append(
            Fault(
                "agentExtraArgs",
                " ".join(agent.extra_args),
                "is for bare-metal mode: in Docker mode the image starts the gateway",
                "leave it out",
            )
        )
    if not is_loopback(agent.api_host):
        faults.append(
            Fault(
                "agentApiHost",
                agent.api_host,
                "is for bare-metal mode: in Docker mode the ports are published on agentPublishedBindIp",
                f"agentPublishedBindIp {agent.api_host}, and leave agentApiHost out",
            )
        )
    host = urlsplit(agent.model_url).hostname or ""
    if host in ("localhost", "127.0.0.1", "::1"):
        faults.append(
            Fault(
                "agentModelUrl",
                agent.model_url,
                "loopback is the container's own there: the guest's is out of its reach",
                "use an address of the machine that the model runs on",
            )
        )
    return faults


def _volume(mount: HostMountSettings) -> Volume:
    return Volume.parse(f"{mount.path}:{mount.path}{':ro' if mount.read_only else ''}")


def _problem(mount: HostMountSettings) -> str:
    """Why a host mount can't be the container's, too; empty when it can."""
    try:
        _volume(mount)
    except ValueError as error:
        return str(error)
    return ""


def unmountable(host_mounts: Sequence[HostMountSettings]) -> Sequence[Fault]:
    """Host mounts at paths that are the image's own."""
    return [
        Fault("cattleHostMounts", mount.path, problem, "choose another path")
        for mount in host_mounts
        if (problem := _problem(mount))
    ]


def within_reach(docker: DockerSettings, host_mounts: Sequence[HostMountSettings], home: str) -> list[Fault]:
    """Volumes whose path has a part that the agent can rename, on either side.

    The engine looks it up as root, at each start of the container: a link in its place would lead it elsewhere.
    """
    own = [(text, Volume.parse(text)) for text in docker.extra_volumes]
    lent = [(mount.path, _volume(mount)) for mount in host_mounts if not _problem(mount)]
    every = [("agentExtraVolumes", *each) for each in own] + [("cattleHostMounts", *each) for each in lent]
    outside = {home, *(each.source for _, _, each in every if not each.read_only)}
    inside = {home, DATA, *(each.target for _, _, each in every if not each.read_only)}
    faults = []
    for key, shown, volume in every:
        for path, writable in ((volume.source, outside), (volume.target, inside)):
            above = sorted(folder for folder in writable if path.startswith(f"{folder}/"))
            if above:
                rule = f"{path} lies in {above[0]}, where the agent can put a link in its place"
                remedy = "name a folder beside it (/data:/data), or the outer one alone, or that read-only"
                faults.append(Fault(key, shown, rule, remedy))
                break
    return faults


def docker_warnings(agent: AgentSettings) -> list[str]:
    """Settings that reach the guest or nothing, while the agent is in its image."""
    warnings = []
    if agent.extra_packages:
        warnings.append("agentExtraPackages are installed in the guest: the agent in its container does not see them")
    if agent.extra_python_packages:
        warnings.append("agentExtraPythonPackages have no effect with agentMode docker: the image is as it is")
    return warnings


def docker_inputs(agent: AgentSettings, docker: DockerSettings, authorities: str) -> DockerInputs:
    """``authorities``: the certificates of agentCaFile, by which the image's registry is trusted as well."""
    return DockerInputs(
        backend=docker.backend,
        image=docker.image,
        version=agent.version,
        insecure_registries=tuple(docker.insecure_registries),
        registry_ca=authorities or None,
    )


def in_docker(
    configure: ConfigureInputs, docker: DockerSettings, host_mounts: Sequence[HostMountSettings] = ()
) -> ConfigureInputs:
    """The same configuration, carried out in a container, which has the host mounts where the guest has them."""
    own = tuple(Volume.parse(text) for text in docker.extra_volumes)
    lent = map(_volume, host_mounts)
    taken = {volume.target for volume in own}
    container = ContainerInputs(
        backend=docker.backend,
        image=docker.image,
        volumes=(*own, *(volume for volume in lent if volume.target not in taken)),
        options=docker.extra_options,
        published_ip=docker.published_bind_ip,
    )
    dashboard = configure.dashboard.model_copy(update={"host": EVERYWHERE})
    return configure.model_copy(update={"container": container, "dashboard": dashboard})
