"""What goes into the guest, and what its programs write down for each other: the same types on both sides.

The host makes them and sends `as_json` of them; a program in the guest reads them back with `read` (its inputs, where
each fault is an error) or `record` (a file of an earlier run, perhaps of another version of this program, where what
is missing has its default and what is not known is left out). Standard library only, as all of this package.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from provisioning.guest.common import Refusal, bracket
from provisioning.guest.home import Document

T = TypeVar("T")


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
    """The agent phase of Docker mode: the engine, and the image that has to be there."""

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


def as_json(value: Any) -> str:
    """The JSON text that `read` and `record` take."""
    return json.dumps(asdict(value), indent=1, sort_keys=True)


def read(kind: type[T], text: str, where: str = "inputs.json") -> T:
    """What `as_json` has written. Refusal for anything else: it names the field, and never a value."""
    try:
        data = json.loads(text)
    except ValueError:
        raise Refusal(f"{where} is no JSON") from None
    return of(kind, data, where)


def record(kind: type[T], path: Path) -> T | None:
    """A record that this program keeps; None where there is none, or none that can be read."""
    try:
        return of(kind, json.loads(path.read_text(encoding="utf-8")), str(path), strict=False)
    except (OSError, ValueError, Refusal):
        return None


def of(kind: type[T], data: object, where: str, *, strict: bool = True) -> T:
    """A dataclass from what JSON makes of it. Refusal for another form, and where it is `strict` for unknown fields."""
    if not isinstance(data, Mapping):
        raise Refusal(f"{where} is {type(data).__name__}, expected the fields of {kind.__name__}")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    if strict and (more := sorted(map(str, data.keys() - known.keys()))):
        raise Refusal(f"{where} has no field {', '.join(more)}")
    needed = [name for name, each in known.items() if each.default is MISSING and each.default_factory is MISSING]
    if missing := [name for name in needed if name not in data]:
        raise Refusal(f"{where} lacks {', '.join(missing)}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], data[name], f"{where}.{name}", strict) for name in known if name in data})


def _value(kind: Any, data: object, where: str, strict: bool) -> Any:
    if get_origin(kind) is types.UnionType:
        if data is None and types.NoneType in get_args(kind):
            return None
        kind = next(each for each in get_args(kind) if each is not types.NoneType)
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return of(kind, data, where, strict=strict)
    if origin is tuple and isinstance(data, list | tuple):
        return tuple(_value(arguments[0], each, f"{where}[{at}]", strict) for at, each in enumerate(data))
    if origin is dict and isinstance(data, dict):
        return {str(key): _value(arguments[1], each, f"{where}.{key}", strict) for key, each in data.items()}
    if kind is Any or type(data) is kind or (kind is float and type(data) is int):
        return data
    raise Refusal(f"{where} is {type(data).__name__}, expected {getattr(kind, '__name__', kind)}")
