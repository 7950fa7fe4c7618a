"""What a phase is given: types alone, for every value has passed the rules in settings/."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, SecretStr

from settings.agent.declaration import MEMORIES
from settings.agent.docker import Backend, BindMount
from settings.agent.service import ServiceSettings
from settings.agent.source import SourceSettings
from settings.cattle import CattleSettings
from settings.kinds import is_loopback
from settings.section import default_of

UPSTREAM_GIT_URL = default_of(SourceSettings, "repository")
UPSTREAM_TAG = default_of(SourceSettings, "tag")
UPSTREAM_COMMIT = default_of(SourceSettings, "commit")
PYPI_VERSION = "0.19.0"
"""The last one that there is."""

HOME = default_of(CattleSettings, "mount_path")
UID = default_of(ServiceSettings, "uid")


class _Inputs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _AccountInputs(_Inputs):
    """The account, and where its data lies: both folders are below `home`.

    `home` has to be a mount point of its own, unless `home_on_root` says so.
    """

    home: str = HOME
    home_on_root: bool = False
    """The home lies on the root file system, on purpose; else the services start on a volume only."""
    user: str = "hermes"
    group: str = "hermes"
    uid: int = UID
    gid: int = UID
    state_directory: str | None = None
    """HERMES_HOME; None: .hermes in the home."""
    working_directory: str | None = None
    """Where tools work unless they are told otherwise; None: workspace in the home."""

    @property
    def hermes_home(self) -> str:
        return self.state_directory or f"{self.home}/.hermes"

    @property
    def workspace(self) -> str:
        return self.working_directory or f"{self.home}/workspace"


class BaselineInputs(_AccountInputs):
    """Packages, the account, its home and the folders in it."""

    extra_packages: tuple[str, ...] = ()
    """Debian packages beside the needed ones, e.g. ffmpeg (which alone costs half a minute)."""


class AgentInputs(_Inputs):
    """Which agent, and from where. Ends in /opt/hermes/<directory>, root-owned; the configure phase switches to it."""

    source: Literal["git", "pypi"] = "git"
    """git: upstream's checkout with the packages that it has locked; pypi: the package, which upstream has given up."""
    version: str | None = None
    """pypi: the release (default 0.19.0). Else: what the checkout has to call itself, or None to take its word."""
    git_url: str = UPSTREAM_GIT_URL
    git_tag: str = UPSTREAM_TAG
    git_commit: str = UPSTREAM_COMMIT
    extras: tuple[str, ...] = ("all", "messaging")
    extra_python_packages: tuple[str, ...] = ()
    web_ui: Literal["prebuilt", "build"] = "prebuilt"
    """build: a checkout's web and terminal interfaces are made from upstream's lock file; prebuilt: it has none."""
    python_mirror: str = ""
    """Where uv's Python builds are fetched, if the guest's own does not fit; empty: where uv looks. No part of the
    build: uv knows the hashes."""
    user: str = "hermes"
    """Who starts the new installation to prove it; it owns nothing of it."""
    uv_binary: str | None = None
    """A uv executable on this machine, lent to the container; None: uv from PyPI. No part of the digest."""

    @property
    def release(self) -> str | None:
        """The version that the installed agent has to report; None when the commit alone decides."""
        return self.version or (PYPI_VERSION if self.source == "pypi" else None)


class DockerInputs(_Inputs):
    """The agent phase of Docker mode: the engine, its compose plugin, a first container as proof, the agent's image."""

    backend: Backend = "docker"
    image: str
    """REPOSITORY:TAG@sha256:DIGEST. The digest decides; the tag is for people."""
    version: str | None = None
    """What the agent in the image has to call itself, or None to take its word."""
    insecure_registries: tuple[str, ...] = ()
    """HOST:PORT of registries that speak HTTP, or TLS that nobody vouches for. The digest is checked all the same."""
    registry_ca: str | None = None
    """PEM text of the CA that the image's registry is trusted by, besides the guest's own."""
    uid: int = UID
    gid: int = UID


class ContainerInputs(_Inputs):
    """The container of Docker mode. A change of anything here, and of nothing else, makes another container."""

    backend: Backend = "docker"
    image: str
    volumes: tuple[BindMount, ...] = ()
    options: dict[str, Any] = {}
    """More keys of the compose service: those of CONTAINER_OPTIONS. `ports` and `environment` add to ours."""
    published_ip: str = "127.0.0.1"
    """The address of the guest on which the API's port, and the dashboard's where it runs, are published."""


class ModelEndpoint(_Inputs):
    """The main model: an endpoint of its own (facts hermes 1, form A), or of a provider that is named (form B)."""

    base_url: str | None = None
    """None: the provider knows its address."""
    name: str
    provider: str = "custom"
    api_key: SecretStr | None = None


class ApiServer(_Inputs):
    """The gateway's OpenAI-compatible server. Without it no port is open, and prompts go by the command line."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: int = 8642
    key: SecretStr | None = None
    """32 characters or more. None: generated once in the container and kept on the volume."""


class OidcClient(_Inputs):
    """A login by OpenID Connect, in place of a password or beside it: code flow with PKCE, ID token verified."""

    issuer: str
    client_id: str
    client_secret: SecretStr | None = None
    """None: the provider knows the dashboard as a public client."""
    scopes: str = "openid profile email"


class Dashboard(_Inputs):
    """The web dashboard. On loopback anybody who reaches the port is admin; elsewhere it asks who they are."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 9119
    username: str = "admin"
    password: SecretStr | None = None
    password_hash: SecretStr | None = None
    oidc: OidcClient | None = None
    public_url: str = ""
    """The address that browsers use, where a proxy leads to the dashboard: scheme, host name, port if any."""
    trusted_proxies: tuple[str, ...] = ()
    """Whose X-Forwarded-Proto and X-Forwarded-For are believed: addresses, or networks with a prefix."""

    @property
    def has_password(self) -> bool:
        return self.password is not None or self.password_hash is not None

    @property
    def providers(self) -> tuple[str, ...]:
        """The ways to log in, as the agent's /api/status names them."""
        return (*(("basic",) if self.has_password else ()), *(("self-hosted",) if self.oidc else ()))

    @property
    def authenticated(self) -> bool:
        return bool(self.providers)

    @property
    def auth_required(self) -> bool:
        """What its /api/status has to say: on loopback it never asks, password or not."""
        return self.enabled and self.authenticated and not is_loopback(self.host)


class Service(_Inputs):
    """How systemd runs the gateway: `args` follow `gateway run`, `restart` is systemd's Restart=."""

    args: tuple[str, ...] = ()
    restart: Literal["always", "on-failure", "on-abnormal", "on-abort", "on-watchdog", "on-success", "no"] = "always"
    restart_seconds: int = 5


class ConfigureInputs(_AccountInputs):
    """What the operator pins, and the services. Everything of it lives outside the volume."""

    model: ModelEndpoint
    agent_directory: str | None = None
    """The agent phase's output `directory`, which the services run from; None: the one that it has made last."""
    container: ContainerInputs | None = None
    """Docker mode: what the container is. None: bare-metal, under systemd."""
    api_server: ApiServer = ApiServer()
    dashboard: Dashboard = Dashboard()
    ca_certificates: str = ""
    """PEM text: authorities that the container trusts beside Debian's, and the agent with it."""
    settings: dict[str, Any] = {}
    """More keys for the managed config.yaml, merged at every depth; ours win where the product depends on them."""
    managed: dict[str, Any] = {}
    """What options of their own put into the managed config.yaml: it wins over `settings`."""
    environment: dict[str, str] = {}
    secret_environment: dict[str, SecretStr] = {}
    documents: dict[str, str] = {}
    """Texts by name. Where each is read: `document_place`."""
    auth_file: SecretStr | None = None
    """The content of auth.json, put there once."""
    auth_file_overwrite: bool = False
    """Whether it also replaces one that is there: once for this content."""
    backups_kept: int = 5
    """So many backups of the data stay on the volume; an update makes one."""
    unfinished_update: str | None = None
    """The agent phase's output of this name: a mark of an update that was ended in the middle, so that it is cleared
    up also when the version is set back and nothing else differs."""
    writable: tuple[str, ...] = ()
    """Folders beside the home that the agent may write to: host mounts."""
    service: Service = Service()
    stack: str = "cattle"
    """The Pulumi stack that declares all this, for the texts that tell people where to change it."""

    @property
    def serves_api(self) -> bool:
        """In Docker mode always, inside the container: its health check is there, and so is the way in."""
        return self.api_server.enabled or self.container is not None

    @property
    def ca_digest(self) -> str:
        """Changes with `ca_certificates`, for what reads them at its start only; empty without any."""
        return hashlib.sha256(self.ca_certificates.encode()).hexdigest()[:16] if self.ca_certificates else ""


def document_place(name: str) -> tuple[Literal["hermes", "working"], str]:
    """Where a document lies: in HERMES_HOME or in the working directory, and its path there.

    Hermes (0.19.0, 0.20.3) reads SOUL.md from HERMES_HOME alone (agent/prompt_builder.py, load_soul_md) and the two
    memories from HERMES_HOME/memories (tools/memory_tool.py); AGENTS.md and whatever else from the working directory.
    """
    if name == "SOUL.md":
        return "hermes", name
    if name in MEMORIES:
        return "hermes", f"memories/{name}"
    return "working", name


class NodeFolder(_Inputs):
    """A folder of the node that is mounted in the guest, for the user of that number inside."""

    path: str
    owner: int
    read_only: bool = False


class VerifyInputs(_Inputs):
    """What has to be true at the end. `prompt` has to make the model answer with `expect` in it."""

    configuration: str = ""
    """The configure phase's digest: what was configured anew is verified anew."""
    version: str | None
    """The release that has to answer; None when a git commit alone was pinned: then the installed one has to."""
    api_server: bool = False
    api_server_host: str = "127.0.0.1"
    api_server_port: int = 8642
    dashboard: bool = True
    dashboard_port: int = 9119
    dashboard_host: str = "127.0.0.1"
    auth_required: bool = False
    auth_providers: tuple[str, ...] = ()
    """The ways to log in that the dashboard has to offer, where it asks."""
    public_url: str = ""
    prompt: str = "Reply with the word HERMES-OK and nothing else."
    expect: str = "HERMES-OK"
    home: str = HOME
    hermes_home: str = f"{HOME}/.hermes"
    user: str = "hermes"
    uid: int = UID
    container: bool = False
    """Docker mode: the gateway and the dashboard are in the container, and that has to be healthy."""
    folders: tuple[NodeFolder, ...] = ()
    services_timeout_s: float = 180.0
    prompt_timeout_s: float = 120.0
