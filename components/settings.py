"""A stack's settings: read once, typed, every fault told in one go.

The keys, their types, defaults and descriptions stand in ``Pulumi.yaml``; here are
the rules. Nothing in this module talks to Pulumi's engine or to Proxmox, so every
rule is a table test. :func:`load` is the door.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from components import dashboard, declaration
from components.declaration import AgentDeclaration
from components.docker import DockerSettings, docker_faults, unmountable, within_reach
from components.host_settings import HostMountSettings, NodeSshSettings, host_key_of, mounts_differ, unpinned
from components.node_shell import NodeSsh
from components.rules import SettingsModel, absolute_path, keys_with, list_from_json, matches, refuse
from components.service import ServiceSettings, faults_of_place
from provisioning.models import UID
from provisioning.ssh import HostKey
from proxmox.addresses import can_be_reached
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import Fault, Faults
from proxmox.hostmounts import HostMount

SECRET_KEYS = frozenset({"apiToken", "agentModelKey", "agentApiKey"}) | dashboard.SECRET_KEYS | declaration.SECRETS
LONGEST_SHOWN = 80


class Role(StrEnum):
    """What a stack is."""

    PET = "pet"
    CATTLE = "cattle"


# --- the rules, one a type ----------------------------------------------------------------------


def _address(value: str) -> str:
    if value == "dhcp":
        return value
    try:
        interface = ipaddress.IPv4Interface(value)
    except ValueError:
        raise refuse("must be dhcp or an IPv4 address with its prefix", "write it like 192.168.1.205/24") from None
    if "/" not in value or interface.network.prefixlen == 32 or interface.ip == interface.network.network_address:
        raise refuse("must name a host and its network's prefix", "write it like 192.168.1.205/24")
    if not can_be_reached(str(interface.ip)):
        raise refuse("is an address that no other machine can reach", "choose one of the bridge's network")
    if interface.network.prefixlen < 31 and interface.ip == interface.network.broadcast_address:
        raise refuse(f"is the broadcast address of {interface.network}, no host's", "choose another")
    return value


def _optional_ip(value: str) -> str:
    if value:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise refuse("must be an IP address", "write it like 192.168.1.1, or leave it empty") from None
    return value


def _optional_url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
        raise refuse("must be an http or https URL", "write it like http://192.168.1.10:4000/v1")
    return value


def _source_that_is(value: object) -> object:
    if value == "installer":
        raise refuse(
            "upstream's install.sh is no source any more: with a current uv it leaves upstream's lock aside, and git "
            "ends in the same files",
            "set it to git; agentTag and agentCommit stay as they are",
        )
    return value


def _optional_address(value: str) -> str:
    if value and not re.fullmatch(r"(https?|file)://[^\s@]+", value):
        raise refuse(
            "must be an http, https or file URL without user or password",
            "write it like https://mirror.example.org/python-build-standalone, or leave it empty",
        )
    return value


def certificates_of(file: str) -> str:
    """The PEM certificates of a file and nothing else of it: a private key beside them stays where it is.

    Raises OSError (ssl.SSLError is one) or ValueError where there are none, or broken ones.
    """
    text = Path(file).expanduser().read_text(encoding="utf-8")
    found = re.findall(r"^-----BEGIN CERTIFICATE-----$.+?^-----END CERTIFICATE-----$", text, re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError("it holds none")
    certificates = "\n".join(found) + "\n"
    ssl.create_default_context(cadata=certificates)
    return certificates


def _ca_file(value: str) -> str:
    if value:
        try:
            certificates_of(value)
        except (OSError, ValueError) as error:
            raise refuse(
                f"must be a file with PEM certificates ({getattr(error, 'strerror', None) or error})",
                "name the CA's certificate, the text with -----BEGIN CERTIFICATE-----",
            ) from None
    return value


def _public_key(value: str) -> str:
    """Normalised, so that white space is never a difference (bpg: a changed key replaces the guest)."""
    fields = value.split()
    try:
        kind = HostKey.parse(value).type
    except ValueError:
        kind = ""
    if not re.fullmatch(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+", kind):
        # Proxmox would refuse it in the middle of a replacement, when the old container is gone already.
        raise refuse("must be a public key in one line", "paste the line of the .pub file: ssh-ed25519 AAAA... name")
    return " ".join(fields)


def _tags(value: list[str]) -> list[str]:
    """As Proxmox stores them: lower case, sorted, once (facts proxmox 2.3)."""
    for tag in value:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_+.-]*", tag):
            raise refuse("a tag has letters, digits and _ + . - only", f"change the tag {tag!r}")
    return sorted({tag.lower() for tag in value})


def prints_commit(repository: str, tag: str) -> str:
    """A command that prints the commit of a tag, and nothing else.

    An annotated tag is an object of its own: its commit has a line behind it, with ^{}, which a lightweight tag lacks.
    """
    names = shlex.join([repository, f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"])
    return f"git ls-remote {names} | tail -n 1 | cut -f 1"


def _apt_names(value: list[str]) -> list[str]:
    for name in value:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name):
            raise refuse("must be names of Debian packages", f"change {name!r}")
    return sorted(set(value))


Vmid = Annotated[int, Field(ge=100, le=999_999_999)]
Hostname = Annotated[
    str,
    AfterValidator(
        matches(
            r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*",
            "must be a DNS name",
            "use letters, digits and hyphens",
        )
    ),
]
StorageId = Annotated[
    str,
    AfterValidator(
        matches(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", "must be the name of a storage", "list them with: pvesm status")
    ),
]
VolumeName = Annotated[
    str,
    AfterValidator(
        matches(
            r"[a-z][a-z0-9-]{0,38}[a-z0-9]", "2 to 40 lower-case letters, digits and hyphens", "name it like hermes"
        )
    ),
]
Volid = Annotated[
    str,
    AfterValidator(
        matches(
            r"[A-Za-z][A-Za-z0-9._-]*:[^\s,:]+",
            "must be a volid, STORAGE:NAME",
            "write it like local-lvm:vm-999-disk-1",
        )
    ),
]
Template = Annotated[
    str,
    AfterValidator(
        matches(
            r"[A-Za-z][A-Za-z0-9._-]*:vztmpl/[^\s,]+\.tar\.(gz|xz|zst)",
            "must be the volid of a container template",
            "list them on the node with: pveam list local",
        )
    ),
]
AbsolutePath = Annotated[str, AfterValidator(absolute_path)]
Tags = Annotated[list[str], BeforeValidator(list_from_json), AfterValidator(_tags)]
Port = Annotated[int, Field(ge=1, le=65535)]
Filled = Annotated[str, Field(min_length=1)]


# --- the models ---------------------------------------------------------------------------------


class VolumeSettings(SettingsModel):
    """One volume of the pet. ``size`` in GB (GiB, as Proxmox counts); ``volid`` takes over one that exists."""

    name: VolumeName
    storage: StorageId
    size: Annotated[int, Field(ge=1, le=65536)]
    path: AbsolutePath
    volid: Volid | None = None


class PetSettings(SettingsModel):
    """The guest that owns the volumes. Memory in MB, disk in GB."""

    model_config = ConfigDict(alias_generator=keys_with("pet"))

    vmid: Vmid
    hostname: Hostname
    cores: Annotated[int, Field(ge=1, le=8192)]
    memory: Annotated[int, Field(ge=16)]
    disk: Annotated[int, Field(ge=1)]
    storage: StorageId
    started: bool
    tags: Tags
    volumes: Annotated[list[VolumeSettings], BeforeValidator(list_from_json)]
    delete_volumes: Annotated[list[Volid], BeforeValidator(list_from_json)]

    @field_validator("volumes")
    @classmethod
    def _volumes_differ(cls, volumes: list[VolumeSettings]) -> list[VolumeSettings]:
        for field in ("name", "path", "volid"):
            values = [getattr(volume, field) for volume in volumes if getattr(volume, field) is not None]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise refuse(f"two volumes have the {field} {twice[0]}", f"give each volume a {field} of its own")
        return volumes


class CattleSettings(SettingsModel):
    """The container that runs the agent. Memory and swap in MB, disk in GB."""

    model_config = ConfigDict(alias_generator=keys_with("cattle"))

    vmid: Vmid
    hostname: Hostname
    cores: Annotated[int, Field(ge=1, le=8192)]
    memory: Annotated[int, Field(ge=512)]
    swap: Annotated[int, Field(ge=0)]
    disk: Annotated[int, Field(ge=2)]
    storage: StorageId
    bridge: Annotated[
        str, AfterValidator(matches(r"[A-Za-z][A-Za-z0-9_]{0,14}", "must be a bridge's name", "write it like vmbr0"))
    ]
    address: Annotated[str, AfterValidator(_address)]
    gateway: Annotated[str, AfterValidator(_optional_ip)]
    nameserver: Annotated[str, AfterValidator(_optional_ip)]
    tags: Tags
    start_on_boot: bool
    ssh_host_key: Annotated[str, AfterValidator(host_key_of("the container"))]
    ssh_keys: Annotated[list[Annotated[str, AfterValidator(_public_key)]], BeforeValidator(list_from_json)]
    volume: Annotated[
        str,
        AfterValidator(
            matches(
                r"([a-z][a-z0-9-]{0,38}[a-z0-9])?",
                "2 to 40 lower-case letters, digits and hyphens, or empty",
                "name one of the pet's volumes",
            )
        ),
    ]
    mount_path: AbsolutePath
    take_over: Volid | Literal[""]
    host_mounts: Annotated[list[HostMountSettings], BeforeValidator(list_from_json)]
    keyctl: bool

    @property
    def home_on_root(self) -> bool:
        """Whether the home lies on the container's own root file system, and goes with it."""
        return not self.volume and self.home_folder is None

    @property
    def home_folder(self) -> str | None:
        """The folder of the node that is the home; None when it is on a volume or the root file system."""
        return next((mount.source for mount in self.host_mounts if mount.path == self.mount_path), None)

    @property
    def lent(self) -> list[HostMountSettings]:
        """The host mounts beside the home."""
        return [mount for mount in self.host_mounts if mount.path != self.mount_path]

    def mounts_for(self, agent_uid: int) -> tuple[HostMount, ...]:
        """The folders of the node; one without an owner is the agent's user's."""
        return tuple(mount.wish(agent_uid) for mount in self.host_mounts)

    @property
    def static_ip(self) -> str | None:
        """The address without its prefix; None with DHCP."""
        return None if self.address == "dhcp" else self.address.split("/")[0]

    # What depends on another field looks at those that were found right before it: so a fault elsewhere hides nothing.

    @field_validator("host_mounts")
    @classmethod
    def _host_mounts_differ(cls, mounts: list[HostMountSettings], info: ValidationInfo) -> list[HostMountSettings]:
        home = info.data.get("mount_path")
        return mounts_differ(mounts, home=home, volume_at=home if info.data.get("volume") else None)

    @field_validator("gateway")
    @classmethod
    def _gateway_fits(cls, gateway: str, info: ValidationInfo) -> str:
        address = info.data.get("address")
        if address == "dhcp" and gateway:
            raise refuse("a gateway goes with a static address only", "set cattleAddress, or leave cattleGateway empty")
        if address in (None, "dhcp"):
            return gateway
        if not gateway:
            raise refuse("a static address needs a gateway", "set cattleGateway")
        if ipaddress.ip_address(gateway) not in ipaddress.IPv4Interface(address).network:
            raise refuse(f"the gateway is outside the network of {address}", "correct cattleAddress or cattleGateway")
        if ipaddress.ip_address(gateway) == ipaddress.IPv4Interface(address).ip:
            raise refuse("is the cattle's own address", "set cattleGateway to the router's, or choose another address")
        return gateway

    @field_validator("nameserver")
    @classmethod
    def _nameserver_is_another(cls, nameserver: str, info: ValidationInfo) -> str:
        address = info.data.get("address")
        own = None if address in (None, "dhcp") else ipaddress.IPv4Interface(address).ip
        if nameserver and ipaddress.ip_address(nameserver) == own:
            raise refuse("is the cattle's own address", "set cattleNameserver to the server's, or choose another")
        return nameserver


class AgentSettings(AgentDeclaration, dashboard.DashboardSettings, ServiceSettings):
    """The agent in the cattle: which, with what model, and how it is reached; and all that is declared about it."""

    model_config = ConfigDict(alias_generator=keys_with("agent"))

    source: Annotated[Literal["git", "pypi"], BeforeValidator(_source_that_is)]
    version: Annotated[
        str, AfterValidator(matches(r"\d+\.\d+\.\d+([a-z0-9.]*)", "must be a version", "write it like 0.20.3"))
    ]
    repository: Filled
    tag: Filled
    commit: str
    model_provider: Filled
    model_url: Annotated[str, AfterValidator(_optional_url)]
    model: Filled
    model_key: SecretStr
    ca_file: Annotated[str, AfterValidator(_ca_file)]
    web_ui: Literal["auto", "build", "prebuilt"]
    python_mirror: Annotated[str, AfterValidator(_optional_address)]
    api_port: Port
    extra_packages: Annotated[list[str], BeforeValidator(list_from_json), AfterValidator(_apt_names)]
    backups_kept: Annotated[int, Field(ge=1, le=1000)]

    @property
    def builds_web_ui(self) -> bool:
        """Whether a checkout's web interface is made: PyPI's package brings one."""
        return self.source == "git" and (self.web_ui == "build" or (self.web_ui == "auto" and self.dashboard))

    @field_validator("commit")
    @classmethod
    def _whole_commit(cls, commit: str, info: ValidationInfo) -> str:
        if not re.fullmatch(r"[0-9a-f]{40}", commit):
            place, tag = info.data.get("repository", "REPOSITORY"), info.data.get("tag", "TAG")
            raise refuse("must be a full commit", prints_commit(place, tag))
        return commit

    @field_validator("model_url")
    @classmethod
    def _model_has_one_address(cls, url: str, info: ValidationInfo) -> str:
        provider = info.data.get("model_provider")
        named = provider in (info.data.get("providers") or {})
        if provider == "custom" and not url:
            raise refuse("the provider custom needs a URL", "write it like http://192.168.1.10:4000/v1")
        if named and url:
            raise refuse(
                f"agentProviders.{provider} has the address of the model",
                "leave agentModelUrl empty, or change the provider",
            )
        return url

    @field_validator("model_key")
    @classmethod
    def _model_has_one_key(cls, key: SecretStr, info: ValidationInfo) -> SecretStr:
        provider = info.data.get("model_provider")
        if key.get_secret_value() and provider in (info.data.get("providers") or {}):
            raise refuse(
                f"agentProviders.{provider} takes its key from the variable in key_env",
                "leave agentModelKey empty, and set agentSecretEnvironment",
            )
        return key

    @field_validator("api_port")
    @classmethod
    def _ports_differ(cls, port: int, info: ValidationInfo) -> int:
        if port == info.data.get("dashboard_port"):
            raise refuse("agentDashboardPort and agentApiPort are the same", "change one of them")
        return port


class StackSettings(SettingsModel):
    """What both kinds of stacks read."""

    model_config = ConfigDict(alias_generator=keys_with(""))

    template: Template
    ssh_private_key_file: Filled
    pet_stack: Annotated[
        str,
        AfterValidator(
            matches(
                r"([\w.-]+/[\w.-]+/)?[\w.-]+",
                "must be a stack's name",
                "write it like pet or organization/hermes-homelab/pet",
            )
        ),
    ]


@dataclass(frozen=True)
class Settings:
    """All of a stack's settings; ``pet``, or ``cattle`` and (unless agentMode is none) ``agent``, as the role says;
    ``docker`` with agentMode docker only."""

    stack: str
    role: Role
    connection: Connection
    template: str
    ssh_private_key_file: Path
    pet_stack: str
    pet: PetSettings | None = None
    cattle: CattleSettings | None = None
    agent: AgentSettings | None = None
    docker: DockerSettings | None = None
    node_ssh: NodeSsh | None = None
    """The way to root on the node, for what no token may set; None: there is none."""

    @property
    def keyctl(self) -> bool:
        """Whether the cattle has keyctl; with Docker always (field reports H2)."""
        asked = self.cattle is not None and self.cattle.keyctl
        return asked or (self.agent is not None and self.agent.mode == DOCKER)

    @property
    def host_mounts(self) -> tuple[HostMount, ...]:
        """The cattle's folders of the node; without an agent, those of its usual user."""
        return () if self.cattle is None else self.cattle.mounts_for(UID if self.agent is None else self.agent.uid)


# --- reading ------------------------------------------------------------------------------------


def role_of(stack: str, declared: str | None) -> Role | None:
    """The role that a stack declares or has by its name; None when neither tells."""
    if declared:
        return Role(declared) if declared in set(Role) else None
    return next((role for role in Role if stack == role or stack.startswith(f"{role}-")), None)


_Model = TypeVar("_Model", bound=SettingsModel)


def load(
    *,
    stack: str,
    config: Mapping[str, str],
    in_clear: frozenset[str],
    environment: Mapping[str, str],
    known: frozenset[str],
    with_secrets: frozenset[str] = frozenset(),
) -> Settings:
    """Read a stack's settings.

    ``config`` holds the project's keys without its name and their raw texts, defaults of
    ``Pulumi.yaml`` included; ``in_clear`` the keys that are stored unencrypted, for a part of an object with
    its path (agentSecretEnvironment.NAME); ``known`` the keys that ``Pulumi.yaml`` declares;
    ``with_secrets`` the keys that hold something stored encrypted.

    Raises proxmox.errors.Faults with every fault that there is.
    """
    faults: list[Fault] = []
    faults += _unknown_keys(config, known)
    faults += _in_clear(config, in_clear, stack)
    faults += [
        Fault(
            key,
            "(hidden)",
            "is shown in the preview and stored in clear, so it can't hold a secret",
            "set agentSecretEnvironment.NAME with --secret --path, and write ${NAME} here",
        )
        for key in sorted(declaration.SHOWN & with_secrets)
    ]
    role = role_of(stack, config.get("role"))
    if role is None:
        faults.append(
            Fault(
                "role",
                config.get("role") or f"(empty, and the stack is called {stack})",
                "must be pet or cattle, or the stack be called pet, pet-NAME, cattle or cattle-NAME",
                f"pulumi config set --stack {stack} role cattle",
            )
        )
    connection: Connection | None = None
    try:
        connection = Connection.from_sources(environment, {key: config.get(key) or None for key in ENVIRONMENT})
    except Faults as error:
        faults += error.faults

    def read(model: type[_Model]) -> _Model | None:
        try:
            return model.model_validate({key: config[key] for key in _aliases(model) if key in config})
        except ValidationError as error:
            faults.extend(_faults_of(error, stack))
            return None

    shared = read(StackSettings)
    pet = read(PetSettings) if role is Role.PET else None
    cattle = read(CattleSettings) if role is Role.CATTLE else None
    node_ssh = read(NodeSshSettings) if role is Role.CATTLE else None
    faults += unpinned(config) if role is Role.CATTLE else ()
    agent = read(AgentSettings) if role is Role.CATTLE and config.get("agentMode") != NO_AGENT else None
    docker = read(DockerSettings) if role is Role.CATTLE and config.get("agentMode") == DOCKER else None
    if agent and agent.mode == DOCKER:
        faults += docker_faults(agent)
        faults += unmountable(cattle.lent) if cattle else ()
    if docker and cattle:
        faults += within_reach(docker, cattle.lent, cattle.mount_path)
    if agent and cattle:
        faults += faults_of_place(agent, cattle.mount_path)
    if faults or role is None or shared is None or connection is None:
        raise Faults(faults, what=f"The settings of stack {stack} can't be used")
    key_file = Path(environment.get("HERMES_SSH_KEY_FILE") or shared.ssh_private_key_file).expanduser()
    return Settings(
        stack=stack,
        role=role,
        connection=connection,
        template=shared.template,
        ssh_private_key_file=key_file,
        pet_stack=shared.pet_stack,
        pet=pet,
        cattle=cattle,
        agent=agent,
        docker=docker,
        node_ssh=node_ssh.target(endpoint=connection.endpoint, key_file=key_file) if node_ssh else None,
    )


NO_AGENT = "none"
DOCKER = "docker"


def _in_clear(config: Mapping[str, str], in_clear: frozenset[str], stack: str) -> list[Fault]:
    """Secrets, or parts of them, that are stored unencrypted."""
    found = [key for key in sorted(in_clear) if key in SECRET_KEYS and config.get(key) not in (None, "", "{}")]
    found += [path for path in sorted(in_clear) if path.partition(".")[0] in SECRET_KEYS and "." in path]
    return [
        Fault(
            key,
            "(hidden)",
            "a secret must not be stored in clear",
            f"pulumi config set --stack {stack} --secret {'--path ' if '.' in key else ''}{key}",
        )
        for key in found
        # Its parts are told one by one.
        if not any(other.startswith(f"{key}.") for other in found)
    ]


def _aliases(model: type[SettingsModel]) -> list[str]:
    return [str(field.alias) for field in model.model_fields.values()]


def _unknown_keys(config: Mapping[str, str], known: frozenset[str]) -> list[Fault]:
    faults = []
    for key in sorted(set(config) - known):
        near = difflib.get_close_matches(key, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else "Pulumi.yaml lists every key"
        faults.append(Fault(key, str(config[key]), "is no key of this project", remedy))
    return faults


def _faults_of(error: ValidationError, stack: str) -> list[Fault]:
    """Pydantic's findings in this project's words, without the value of a secret."""
    faults = []
    for found in error.errors(include_url=False):
        place = [str(part) for part in found["loc"]]
        key = place[0] + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in place[1:])
        context: dict[str, Any] = found.get("ctx", {})
        value = "(hidden)" if place[0] in SECRET_KEYS else _shown(found["input"])
        rule = found["msg"] if found["type"] == "rule" else _plain(found["msg"])
        remedy = context.get("remedy") or f"correct it in Pulumi.{stack}.yaml; Pulumi.yaml describes the key"
        faults.append(Fault(key, value, rule, str(remedy)))
    return faults


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "(several keys)"
    text = "(empty)" if value in ("", None) else str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _plain(message: str) -> str:
    return (
        message.replace("Input should be", "must be")
        .replace("Field required", "is missing")
        .replace("String should have at least 1 character", "must not be empty")
    )
