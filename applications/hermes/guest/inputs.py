"""The inputs of the phases, and what the programs in the guest note down (provisioning/guest/typed.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from applications.hermes.guest.home import Document
from provisioning.guest.common import bracket


@dataclass(frozen=True)
class Build:
    """The agent phase: which agent to build below /opt/hermes, and from where.

    `version`: what it has to call itself; empty: its word is taken. `directory`: the name of its folder. `build_id`:
    another one means another build. `uv_sha256`: of a uv that the host has brought; empty: PyPI's.
    """

    source: str
    version: str
    directory: str
    build_id: str
    extras: tuple[str, ...]
    extra_python_packages: tuple[str, ...]
    git_url: str
    git_tag: str
    git_commit: str
    web_ui: str
    python_mirror: str
    user: str
    uv_sha256: str = ""


@dataclass(frozen=True)
class Engine:
    """The agent phase of Docker mode: the engine, and the image that has to be there.

    `uid` and `gid`: the agent's, by which the image is asked what it holds.
    """

    backend: str
    image: str
    version: str | None
    insecure_registries: tuple[str, ...]
    registry_ca: str | None
    uid: int
    gid: int


@dataclass(frozen=True)
class ApiServer:
    """Where the gateway's API listens in the guest."""

    enabled: bool
    host: str
    port: int

    @property
    def url(self) -> str | None:
        """None where it is off."""
        return f"http://{bracket(self.host)}:{self.port}/v1" if self.enabled else None


@dataclass(frozen=True)
class Dashboard:
    """Where the dashboard listens, and whether it asks who comes."""

    enabled: bool
    host: str
    port: int
    username: str
    has_password: bool
    auth_required: bool

    @property
    def url(self) -> str | None:
        """None where it is off."""
        return f"http://{bracket(self.host)}:{self.port}/" if self.enabled else None


@dataclass(frozen=True)
class Port:
    """A port that the engine publishes in the guest, and what answers there."""

    host: str
    port: int
    what: str


@dataclass(frozen=True)
class Container:
    """What the guest has to know of Docker mode's container beside compose.yaml.

    `identity`: the hash of its service. `reach`: where its published ports answer. `sources`: folders that it mounts.
    """

    identity: str
    backend: str
    reach: str
    ports: tuple[Port, ...]
    sources: tuple[str, ...]
    limit_memory: bool


@dataclass(frozen=True)
class ContainerRecord:
    """CONTAINER_RECORD: what the service that starts the container has to know."""

    uid: int
    gid: int
    home: str
    hermes_home: str
    backend: str
    limit_memory: bool
    folders: tuple[str, ...]


@dataclass(frozen=True)
class Folder:
    """A folder of the node that is mounted in the guest, for the user of that number."""

    path: str
    owner: int
    read_only: bool


@dataclass(frozen=True)
class Sftp:
    """Where ssh goes for a copy, and the one host key that it takes, TYPE BASE64."""

    user: str
    host: str
    port: int
    host_key: str


@dataclass(frozen=True)
class Copy:
    """The second copy of the backups, without its secrets: only root reads it.

    `repository`: as restic has it, without a login. `access_key`: of S3, or a rest-server's user. `mount`: what has to
    be mounted there; empty: nothing. `kept`: how many stay, by restic's name for the kind. `check_days`: 0: never.
    """

    repository: str
    access_key: str
    region: str
    sftp: Sftp | None
    mount: str
    kept: dict[str, int]
    check_days: int


@dataclass(frozen=True)
class Probe:
    """What has to be true of an agent that works: the verify phase, and an update's proof.

    `configuration`: the digest of the configure phase, so that what was configured again is verified again. `version`:
    None: the installed one has to answer. `expect`: has to be in the answer to `prompt`.
    """

    configuration: str = ""
    version: str | None = None
    api_server: bool = False
    api_server_host: str = "127.0.0.1"
    api_server_port: int = 8642
    dashboard: bool = False
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = 9119
    auth_required: bool = False
    auth_providers: tuple[str, ...] = ()
    public_url: str = ""
    prompt: str = ""
    expect: str = ""
    home: str = ""
    hermes_home: str = ""
    user: str = ""
    uid: int = 0
    container: bool = False
    folders: tuple[Folder, ...] = ()
    services_timeout_s: float = 180.0
    prompt_timeout_s: float = 120.0

    @property
    def by_api(self) -> bool:
        """In Docker mode the API is always on."""
        return self.container or self.api_server


@dataclass(frozen=True)
class Facts:
    """FACTS: what the programs that stay in the guest have to know of the agent. Everybody may read it."""

    stack: str
    user: str
    uid: int
    home: str
    hermes_home: str
    working_directory: str
    users_group: str
    api_server: ApiServer
    backups_kept: int
    probe: Probe
    container: bool = False
    home_on_root: bool = False
    backup_times: tuple[str, ...] = ()
    scheduled_backups_kept: int = 7
    backup_home: bool = True


@dataclass(frozen=True)
class Question:
    """How the model endpoint is asked before anything is changed (guest/model.py).

    `skipped`: why it can't be asked so; empty: it can. `key_variable`: where its key is among the secrets and
    variables; empty: it needs none. `environment`, `headers`: what the agent asks with, too. `*_setting`: what to
    correct. `falls_back`: other models are there when this one is not.
    """

    stack: str
    skipped: str = ""
    url: str = ""
    model: str = ""
    key_variable: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    ca_certificates: str = ""
    url_setting: str = "agentModelUrl"
    key_setting: str = "agentModelKey"
    name_setting: str = "agentModel"
    falls_back: bool = False


@dataclass(frozen=True)
class Configure:
    """The configure phase. `config` and `environment`: the managed scope, without what is secret.

    `secret_environment`: names; their values come with the secrets. `user_config`: keys that some release reads from
    the user's config.yaml alone. `agent_directory`: None: what the agent phase has built last. `unfinished_update`: a
    mark; another one makes the phase run.
    """

    facts: Facts
    gid: int
    agent_directory: str | None
    container: Container | None
    config: dict[str, Any]
    environment: dict[str, str]
    secret_environment: tuple[str, ...]
    ca_certificates: str
    dashboard: Dashboard
    documents: tuple[Document, ...]
    overwrite_auth_file: bool
    user_config: dict[str, Any]
    unfinished_update: str | None
    model: Question
    copy: Copy | None = None


@dataclass(frozen=True)
class Place:
    """Where something listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{bracket(self.host)}:{self.port}"


@dataclass(frozen=True)
class DrillContainer:
    """What a drill has to know of Docker mode. `image`: REPOSITORY:TAG@DIGEST; `port`: of the API, in and outside."""

    backend: str
    image: str
    gid: int
    port: int


@dataclass(frozen=True)
class Drill:
    """A drill: a backup in an empty home, behind walls (drill.py).

    `backup`: its name. `total`: the SHA-256 of its manifest, empty where nobody knows it. `archive`: the file in the
    guest that has it. `model`: what the agent may reach. `elsewhere`: what it must not reach, to try. `container`:
    of Docker mode.
    """

    facts: Facts
    backup: str
    total: str
    archive: str
    model: tuple[Place, ...]
    elsewhere: tuple[Place, ...]
    container: DrillContainer | None = None


@dataclass(frozen=True)
class Installed:
    """A build of the agent, by what it has said of itself: install.json, IMAGE_RECORD, IMAGE_CURRENT.

    `directory`: a folder of /opt/hermes, or an image. `backend`, `engine`, `image`, `compose`: of an image, the engine
    and its version, its name, and the version of compose. `config_version`: the schema of its config.yaml; 0: it has
    not said. `shipped`: how many skills and the like it brings, None where it is asked in another way. `build_id`,
    `source` and `commit`: what it was made from.
    """

    version: str
    directory: str = ""
    backend: str | None = None
    config_version: int = 0
    dashboard_available: bool = False
    terminal_available: bool = False
    python: str = ""
    shipped: dict[str, int | None] = field(default_factory=dict)
    build_id: str = ""
    source: str = ""
    commit: str = ""
    engine: str | None = None
    image: str = ""
    compose: str | None = None
