"""The inputs of the phases: typed, frozen, checked when they are made.

Every model is a pydantic model that refuses unknown fields. Defaults are the product's defaults.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

UPSTREAM_GIT_URL = "https://github.com/NousResearch/hermes-agent.git"
UPSTREAM_TAG = "v2026.8.16.2"
UPSTREAM_COMMIT = "7339f5f160db5c96657a3bab60151227cc61f66c"
PYPI_VERSION = "0.19.0"

HOME = "/home/hermes"
UID = 10000
MODEL_API_KEY_VARIABLE = "HOMELAB_MODEL_API_KEY"
OIDC_SECRET_VARIABLE = "HERMES_DASHBOARD_OIDC_CLIENT_SECRET"  # noqa: S105 - its name
LONGEST_DRAIN = 60
"""Seconds that the gateway may be told to wait for its work at a stop: upstream wants 30 more before it is killed
(hermes_cli/gateway.py, generate_systemd_unit), and the unit and the container give it 90."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?\s*(==|>=|~=)\s*[A-Za-z0-9.*+!_-]+\Z")
_ABSOLUTE = re.compile(r"(/[A-Za-z0-9._-]+)+\Z")
_REGISTRY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?\Z")
_IMAGE = re.compile(
    r"([a-zA-Z0-9][a-zA-Z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
    r"@sha256:[0-9a-f]{64}\Z"
)
_DOCUMENT = re.compile(r"[A-Za-z0-9._-][A-Za-z0-9 ._-]*(/[A-Za-z0-9._-][A-Za-z0-9 ._-]*)*\Z")
_ACCOUNT = r"^[a-z_][a-z0-9_-]{0,30}$"
SCRYPT_HASH = re.compile(r"scrypt\$16384\$8\$1\$(?:[A-Za-z0-9+/]{4}){4,}[A-Za-z0-9+/=]{0,4}\$[A-Za-z0-9+/]{43}=\Z")
"""A password as the dashboard keeps it: scrypt$N$r$p$salt$key, 16 bytes of salt or more, 32 of key, both in base64.

The agent would take other parameters too, but none that cost more memory than OpenSSL allows by default.
"""


def _absolute(value: str) -> str:
    if not _ABSOLUTE.match(value) or ".." in value.split("/"):
        raise ValueError("must be an absolute path of letters, digits, '.', '_', '-'")
    return value


def check_env_name(value: str) -> str:
    """The name of an environment variable; ValueError when it is none."""
    if not _ENV_NAME.match(value):
        raise ValueError(f"{value!r} is no environment variable name: letters, digits and _, no digit first")
    return value


def check_requirement(value: str) -> str:
    """A Python package with its version; ValueError when it is none."""
    if not _REQUIREMENT.match(value):
        raise ValueError(f"{value!r} must name a package with a version, e.g. 'httpx==0.28.1'")
    return value


def check_document_name(value: str) -> str:
    """A document's name: a file, or a path below the working directory. ValueError when it can't be one."""
    parts = value.split("/")
    if not _DOCUMENT.match(value) or {".", ".."} & set(parts) or len(value) > 200:
        raise ValueError(f"{value!r} must be a file's name, or a path below the working directory, without ..")
    if parts[0] in (".hermes", ".hermes-stack"):
        raise ValueError(f"{value!r} is in a folder of the agent's or the stack's own")
    return value


AbsolutePath = Annotated[str, AfterValidator(_absolute)]
DocumentName = Annotated[str, AfterValidator(check_document_name)]
EnvName = Annotated[str, AfterValidator(check_env_name)]
Port = Annotated[int, Field(ge=1, le=65535)]


def unfit_for_env(value: str) -> str | None:
    """Why the agent would read a value of its managed .env otherwise than written, or None.

    It reads the file twice, by python-dotenv and by a reader of its own: one expands ${...} and knows escapes, the
    other strips quotes.
    """
    if "\n" in value or "\r" in value or "\0" in value:
        return "a value can't hold a line break"
    if value != value.strip() or value != value.strip('"'):
        return "a value can't begin or end with a blank or a quote; the agent would drop it"
    found = next((bad for bad in ("'", "\\", "${") if bad in value), None)
    return None if found is None else f"a value can't hold {found}; the agent would read it in two ways"


def check_env_value(name: str, value: str) -> None:
    """ValueError when the agent would not read this value as it is. The text never holds the value."""
    if (unfit := unfit_for_env(value)) is not None:
        raise ValueError(f"{name}: {unfit}")


class _Inputs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class _AccountInputs(_Inputs):
    """The account, and where its data lies: both folders are below `home`.

    `home` has to be a mount point of its own, unless `home_on_root` says so.
    """

    home: AbsolutePath = HOME
    home_on_root: bool = False
    """The home lies on the root file system, on purpose; else the services start on a volume only."""
    user: str = Field(default="hermes", pattern=_ACCOUNT)
    group: str = Field(default="hermes", pattern=_ACCOUNT)
    uid: int = Field(default=UID, ge=1000, le=60000)
    gid: int = Field(default=UID, ge=1000, le=60000)
    state_directory: AbsolutePath | None = None
    """HERMES_HOME; None: .hermes in the home."""
    working_directory: AbsolutePath | None = None
    """Where tools work unless they are told otherwise; None: workspace in the home."""

    @property
    def hermes_home(self) -> str:
        return self.state_directory or f"{self.home}/.hermes"

    @property
    def workspace(self) -> str:
        return self.working_directory or f"{self.home}/workspace"

    @model_validator(mode="after")
    def _on_the_volume(self) -> _AccountInputs:
        if not self.hermes_home.startswith(f"{self.home}/"):
            raise ValueError(f"state_directory must be below {self.home}")
        if self.workspace != self.home and not self.workspace.startswith(f"{self.home}/"):
            raise ValueError(f"working_directory must be {self.home} or below it")
        return self


class BaselineInputs(_AccountInputs):
    """Packages, the account, its home and the folders in it."""

    extra_packages: tuple[str, ...] = ()
    """Debian packages beside the needed ones, e.g. ffmpeg (which alone costs half a minute)."""

    @field_validator("extra_packages")
    @classmethod
    def _packages(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _PACKAGE.match(name):
                raise ValueError(f"{name!r} is no Debian package name")
        return tuple(sorted(set(value)))


class AgentInputs(_Inputs):
    """Which agent, and from where. Ends in /opt/hermes/<directory>, root-owned; the configure phase switches to it."""

    source: Literal["git", "pypi"] = "git"
    """git: upstream's checkout with the packages that it has locked; pypi: the package, which upstream has given up."""
    version: str | None = Field(default=None, pattern=r"^[0-9][0-9A-Za-z.+]*$")
    """pypi: the release (default 0.19.0). Else: what the checkout has to call itself, or None to take its word."""
    git_url: str = UPSTREAM_GIT_URL
    git_tag: str = Field(default=UPSTREAM_TAG, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    git_commit: str = Field(default=UPSTREAM_COMMIT, pattern=r"^[0-9a-f]{40}$")
    extras: tuple[str, ...] = ("all", "messaging")
    extra_python_packages: tuple[str, ...] = ()
    web_ui: Literal["prebuilt", "build"] = "prebuilt"
    """build: a checkout's web and terminal interfaces are made from upstream's lock file; prebuilt: it has none."""
    python_mirror: str = ""
    """Where uv's Python builds are fetched, if the guest's own does not fit; empty: where uv looks. No part of the
    build: uv knows the hashes."""
    user: str = Field(default="hermes", pattern=_ACCOUNT)
    """Who starts the new installation to prove it; it owns nothing of it."""
    uv_binary: str | None = None
    """A uv executable on this machine, lent to the container; None: uv from PyPI. No part of the digest."""

    @field_validator("git_url")
    @classmethod
    def _url(cls, value: str) -> str:
        if not re.match(r"(https?|git|ssh|file)://[^\s@:/]+[^\s@]*\Z|file:///[^\s]+\Z", value):
            raise ValueError("must be an https://, http://, git://, ssh:// or file:// address without user or password")
        return value

    @field_validator("extras")
    @classmethod
    def _extras(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.match(r"[A-Za-z0-9._-]+\Z", name):
                raise ValueError(f"{name!r} is no extra's name")
        return tuple(sorted(set(value)))

    @field_validator("extra_python_packages")
    @classmethod
    def _requirements(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for requirement in value:
            check_requirement(requirement)
        return tuple(sorted(set(value)))

    @property
    def release(self) -> str | None:
        """The version that the installed agent has to report; None when the commit alone decides."""
        return self.version or (PYPI_VERSION if self.source == "pypi" else None)


ContainerBackend = Literal["docker", "podman"]
"""The engine: Docker, or Podman with the same compose project."""


class DockerInputs(_Inputs):
    """The agent phase of Docker mode: the engine, its compose plugin, a first container as proof, the agent's image."""

    backend: ContainerBackend = "docker"
    image: str
    """REPOSITORY:TAG@sha256:DIGEST. The digest decides; the tag is for people."""
    version: str | None = Field(default=None, pattern=r"^[0-9][0-9A-Za-z.+]*$")
    """What the agent in the image has to call itself, or None to take its word."""
    insecure_registries: tuple[str, ...] = ()
    """HOST:PORT of registries that speak HTTP, or TLS that nobody vouches for. The digest is checked all the same."""
    registry_ca: str | None = None
    """PEM text of the CA that the image's registry is trusted by, besides the guest's own."""
    uid: int = UID
    gid: int = UID

    @field_validator("image")
    @classmethod
    def _image(cls, value: str) -> str:
        return pinned_image(value)

    @field_validator("insecure_registries")
    @classmethod
    def _registries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for registry in value:
            if not _REGISTRY.match(registry):
                raise ValueError(f"{registry!r} must be HOST or HOST:PORT, e.g. 192.168.1.10:5000")
        return tuple(sorted(set(value)))

    @field_validator("registry_ca")
    @classmethod
    def _ca(cls, value: str | None) -> str | None:
        if value is not None and "-----BEGIN CERTIFICATE-----" not in value:
            raise ValueError("must be certificates in PEM form")
        return value


class Volume(_Inputs):
    """A folder of the guest that the container sees, too."""

    source: str
    target: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Volume:
        """From HOST:CONTAINER, HOST:CONTAINER:ro or :rw. Raises ValueError in words."""
        parts = text.split(":")
        if len(parts) not in (2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
            raise ValueError(f"{text!r} must be HOST:CONTAINER, with :ro behind it for read-only")
        source, target = _absolute(parts[0]), _absolute(parts[1])
        for taken in RESERVED_TARGETS:
            if target == taken or target.startswith(f"{taken}/"):
                raise ValueError(f"{target} is in {taken}, which belongs to the image or the stack")
        if target in RESERVED_MOUNTS:
            raise ValueError(f"{target} is where the agent's home is mounted")
        return cls(source=source, target=target, read_only=parts[2:] == ["ro"])


class ContainerInputs(_Inputs):
    """The container of Docker mode. A change of anything here, and of nothing else, makes another container."""

    backend: ContainerBackend = "docker"
    image: str
    volumes: tuple[Volume, ...] = ()
    options: dict[str, Any] = {}
    """More keys of the compose service: those of CONTAINER_OPTIONS. `ports` and `environment` add to ours."""
    published_ip: str = "127.0.0.1"
    """The address of the guest on which the API's port, and the dashboard's where it runs, are published."""

    @field_validator("image")
    @classmethod
    def _image(cls, value: str) -> str:
        return pinned_image(value)

    @field_validator("volumes")
    @classmethod
    def _volumes(cls, value: tuple[Volume, ...]) -> tuple[Volume, ...]:
        targets = [volume.target for volume in value]
        twice = sorted({target for target in targets if targets.count(target) > 1})
        if twice:
            raise ValueError(f"two volumes are mounted at {twice[0]}")
        return value

    @field_validator("options")
    @classmethod
    def _options(cls, value: dict[str, Any]) -> dict[str, Any]:
        for problem in map(container_option_problem, value.items()):
            if problem:
                raise ValueError(problem)
        return value


def pinned_image(value: str) -> str:
    """An image by tag and digest, or ValueError: a tag alone can be moved, a digest alone tells people nothing."""
    if not _IMAGE.match(value):
        raise ValueError(
            "must be REPOSITORY:TAG@sha256:DIGEST (64 hex digits); `docker buildx imagetools inspect REPOSITORY:TAG` "
            "prints the digest"
        )
    return value


def container_option_problem(option: tuple[str, Any]) -> str | None:
    """Why a key may not be among a container's extra options, and what to do instead; None when it may."""
    name, value = option
    if name in REFUSED_CONTAINER_OPTIONS:
        return f"{name} can't be set: {REFUSED_CONTAINER_OPTIONS[name]}"
    if name not in CONTAINER_OPTIONS:
        return f"{name} is none of the supported keys: {', '.join(sorted(CONTAINER_OPTIONS))}"
    if not isinstance(value, CONTAINER_OPTIONS[name]) or isinstance(value, bool):
        return f"{name} has the wrong type"
    return _container_environment_problem(value) if name == "environment" else None


# Read by the image before the agent starts (facts hermes 2, "Docker image").
_OWN_VARIABLES = re.compile(
    r"(HERMES_(HOME|UID|GID|MANAGED\w*|DASHBOARD|DASHBOARD_HOST|DASHBOARD_PORT|GATEWAY_NO_SUPERVISE|SKIP_CONFIG_MIGRATION)"
    r"|P[UG]ID|PATH)$"
)


def _container_environment_problem(environment: Any) -> str | None:
    for name, text in environment.items():
        if not _ENV_NAME.match(str(name)) or not isinstance(text, str):
            return f"environment must map names of variables to texts: {name}"
        if _OWN_VARIABLES.match(name):
            return f"environment.{name} is the stack's own: home, owner, dashboard or root's programs depend on it"
        if re.search(r"KEY|TOKEN|SECRET|PASSW|HASH", name, re.IGNORECASE):
            return (
                f"environment.{name} looks like a secret, and `docker inspect` would show it: "
                "secrets belong into the managed scope"
            )
    return None


# compose's service keys that do no harm to the image's contract, with the types of their values.
CONTAINER_OPTIONS: dict[str, tuple[type, ...]] = {
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
REFUSED_CONTAINER_OPTIONS = {
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
RESERVED_TARGETS = ("/opt/hermes", "/etc", "/usr", "/bin", "/lib", "/proc", "/sys", "/dev", "/run", "/command")
RESERVED_MOUNTS = ("/opt/data", HOME)


class ModelEndpoint(_Inputs):
    """The main model: an endpoint of its own (facts hermes 1, form A), or of a provider that is named (form B)."""

    base_url: str | None = None
    """None: the provider knows its address."""
    name: str = Field(min_length=1)
    provider: str = Field(default="custom", pattern=r"^[a-z0-9][a-z0-9:_-]*$")
    api_key: SecretStr | None = None

    @field_validator("base_url")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not re.match(r"https?://[^\s@]+\Z", value):
            raise ValueError("must be an http:// or https:// address without user or password")
        return value.rstrip("/")


class ApiServer(_Inputs):
    """The gateway's OpenAI-compatible server. Without it no port is open, and prompts go by the command line."""

    enabled: bool = False
    host: str = "127.0.0.1"
    port: Port = 8642
    key: SecretStr | None = None
    """32 characters or more. None: generated once in the container and kept on the volume."""

    @field_validator("key")
    @classmethod
    def _key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not re.match(r"[A-Za-z0-9_-]{32,}\Z", value.get_secret_value()):
            raise ValueError("must be 32 or more letters, digits, '-', '_': openssl rand -hex 32 makes one")
        return value


class OidcClient(_Inputs):
    """A login by OpenID Connect, in place of a password or beside it: code flow with PKCE, ID token verified."""

    issuer: str = Field(pattern=r"^https://[^\s]+$")
    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = None
    """None: the provider knows the dashboard as a public client."""
    scopes: str = "openid profile email"


class Dashboard(_Inputs):
    """The web dashboard. On loopback anybody who reaches the port is admin; elsewhere it asks who they are."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 9119
    username: str = Field(default="admin", pattern=r"^[A-Za-z0-9._@-]+$")
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
        return self.enabled and self.authenticated and self.host not in LOOPBACK

    @model_validator(mode="after")
    def _password(self) -> Dashboard:
        if self.password is not None and self.password_hash is not None:
            raise ValueError("give password or password_hash, not both")
        if self.password is not None and len(self.password.get_secret_value()) < 12:
            raise ValueError("password must have 12 characters or more")
        if self.password_hash is not None and not SCRYPT_HASH.match(self.password_hash.get_secret_value()):
            raise ValueError("password_hash must look like scrypt$16384$8$1$<salt>$<key>, salt and key in base64")
        if self.enabled and self.host not in LOOPBACK and not self.authenticated:
            raise ValueError(
                f"host {self.host} is open to the network, so password, password_hash or oidc is needed; "
                "or leave host at 127.0.0.1 and use an SSH tunnel"
            )
        return self


class Service(_Inputs):
    """How systemd runs the gateway: `args` follow `gateway run`, `restart` is systemd's Restart=."""

    args: tuple[str, ...] = ()
    restart: Literal["always", "on-failure", "on-abnormal", "on-abort", "on-watchdog", "on-success", "no"] = "always"
    restart_seconds: int = Field(default=5, ge=0, le=3600)

    @field_validator("args")
    @classmethod
    def _args(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for argument in value:
            if not argument or not argument.isprintable():
                raise ValueError(f"{argument!r} is no argument: a text in one line")
            if argument.startswith("--replace"):
                raise ValueError("--replace would make the gateway and its service end each other")
        return value


class ConfigureInputs(_AccountInputs):
    """What the operator pins, and the services. Everything of it lives outside the volume."""

    model: ModelEndpoint
    agent_directory: AbsolutePath | None = None
    """The agent phase's output `directory`, which the services run from; None: the one that it has made last."""
    container: ContainerInputs | None = None
    """Docker mode: what the container is. None: bare-metal, under systemd."""
    api_server: ApiServer = ApiServer()
    dashboard: Dashboard = Dashboard()
    ca_certificates: str = ""
    """PEM text: authorities that the container trusts beside Debian's, and the agent with it."""
    settings: dict[str, Any] = {}
    """More keys for the managed config.yaml, merged at every depth; ours win where the product depends on them."""
    providers: dict[str, dict[str, Any]] = {}
    """Named model endpoints, as Hermes's `providers` has them; keys by `key_env` only."""
    fallback_models: tuple[dict[str, Any], ...] = ()
    """`fallback_providers`: tried in this order when the main model fails."""
    auxiliary_models: dict[str, dict[str, Any]] = {}
    """`auxiliary`: the model of a side task, by the task's name."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    environment: dict[EnvName, str] = {}
    secret_environment: dict[EnvName, SecretStr] = {}
    documents: dict[DocumentName, str] = {}
    """Texts by name. Where each is read: `document_place`."""
    auth_file: SecretStr | None = None
    """The content of auth.json, put there once."""
    auth_file_overwrite: bool = False
    """Whether it also replaces one that is there: once for this content."""
    backups_kept: int = Field(default=5, ge=1, le=1000)
    """So many backups of the data stay on the volume; an update makes one."""
    unfinished_update: str | None = None
    """The agent phase's output of this name: a mark of an update that was ended in the middle, so that it is cleared
    up also when the version is set back and nothing else differs."""
    writable: tuple[AbsolutePath, ...] = ()
    """Folders beside the home that the agent may write to: host mounts."""
    service: Service = Service()
    stack: str = Field(default="cattle", pattern=r"^[\w.-]+$")
    """The Pulumi stack that declares all this, for the texts that tell people where to change it."""

    @property
    def serves_api(self) -> bool:
        """In Docker mode always, inside the container: its health check is there, and so is the way in."""
        return self.api_server.enabled or self.container is not None

    @property
    def ca_digest(self) -> str:
        """Changes with `ca_certificates`, for what reads them at its start only; empty without any."""
        return hashlib.sha256(self.ca_certificates.encode()).hexdigest()[:16] if self.ca_certificates else ""

    @model_validator(mode="after")
    def _environment(self) -> ConfigureInputs:
        both = sorted(set(self.environment) & set(self.secret_environment))
        if both:
            raise ValueError(f"{', '.join(both)}: given in environment and in secret_environment")
        for name in (*self.environment, *self.secret_environment):
            if name in RESERVED_ENVIRONMENT:
                raise ValueError(f"{name} is set by this program: use the option for it ({RESERVED_ENVIRONMENT[name]})")
        for name, value in self.environment.items():
            check_env_value(name, value)
        for name, secret in self.secret_environment.items():
            check_env_value(name, secret.get_secret_value())
        if self.model.api_key is not None:
            check_env_value("model.api_key", self.model.api_key.get_secret_value())
        if self.dashboard.oidc is not None and self.dashboard.oidc.client_secret is not None:
            check_env_value("dashboard.oidc.client_secret", self.dashboard.oidc.client_secret.get_secret_value())
        return self


RESERVED_ENVIRONMENT = {
    "API_SERVER_ENABLED": "api_server",
    "API_SERVER_KEY": "api_server.key",
    "API_SERVER_HOST": "api_server.host",
    "API_SERVER_PORT": "api_server.port",
    "HERMES_HOME": "home",
    "HERMES_MANAGED": "none: it would lock every key, the user's too",
    "HERMES_MANAGED_DIR": "none: always /etc/hermes",
    MODEL_API_KEY_VARIABLE: "model.api_key",
    "HERMES_DASHBOARD_BASIC_AUTH_USERNAME": "dashboard.username",
    "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD": "dashboard.password",
    "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH": "dashboard.password_hash",
    "HERMES_DASHBOARD_BASIC_AUTH_SECRET": "none: made once and kept",
    "HERMES_DASHBOARD_OIDC_ISSUER": "dashboard.oidc.issuer",
    "HERMES_DASHBOARD_OIDC_CLIENT_ID": "dashboard.oidc.client_id",
    OIDC_SECRET_VARIABLE: "dashboard.oidc.client_secret",
    "HERMES_DASHBOARD_OIDC_SCOPES": "dashboard.oidc.scopes",
    "HERMES_DASHBOARD_PUBLIC_URL": "dashboard.public_url",
    "FORWARDED_ALLOW_IPS": "dashboard.trusted_proxies",
    # wins over the declared base_url (facts hermes 1, "Trap")
    "CUSTOM_BASE_URL": "model.base_url",
}


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


MEMORIES = ("USER.md", "MEMORY.md")
"""Documents that the agent itself goes on writing."""


class NodeFolder(_Inputs):
    """A folder of the node that is mounted in the guest, for the user of that number inside."""

    path: AbsolutePath
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
    api_server_port: Port = 8642
    dashboard: bool = True
    dashboard_port: Port = 9119
    dashboard_host: str = "127.0.0.1"
    auth_required: bool = False
    auth_providers: tuple[str, ...] = ()
    """The ways to log in that the dashboard has to offer, where it asks."""
    public_url: str = ""
    prompt: str = "Reply with the word HERMES-OK and nothing else."
    expect: str = "HERMES-OK"
    home: AbsolutePath = HOME
    hermes_home: AbsolutePath = f"{HOME}/.hermes"
    user: str = "hermes"
    uid: int = UID
    container: bool = False
    """Docker mode: the gateway and the dashboard are in the container, and that has to be healthy."""
    folders: tuple[NodeFolder, ...] = ()
    services_timeout_s: float = Field(default=180.0, gt=0)
    prompt_timeout_s: float = Field(default=120.0, gt=0)
