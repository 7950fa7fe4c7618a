"""What the operator declares about the agent: its configuration, environment, documents, models, MCP servers.

Keys inside of objects (`agentSettings`, a provider, an MCP server) are called as Hermes calls them. Files are read
here, on the operator's machine, a relative path from the project's folder; what they hold is checked like all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from dotenv.parser import parse_stream
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from proxmox.errors import Fault
from settings.kinds import VariableName, matches, read_text, unfit_for_env, url, variable_name
from settings.section import OfFile, OrFile, Part, Section, refuse, rule, setting

LONGEST_DRAIN = 60
"""Seconds that the gateway may be told to wait for its work at a stop: upstream wants 30 more before it is killed
(hermes_cli/gateway.py, generate_systemd_unit), and the unit and the container give it 90."""
MODEL_API_KEY_VARIABLE = "HOMELAB_MODEL_API_KEY"
OIDC_SECRET_VARIABLE = "HERMES_DASHBOARD_OIDC_CLIENT_SECRET"  # noqa: S105 - its name
RESERVED_ENVIRONMENT = {
    "API_SERVER_ENABLED": "agentApi sets it",
    "API_SERVER_KEY": "agentApiKey sets it",
    "API_SERVER_HOST": "agentApiHost sets it",
    "API_SERVER_PORT": "agentApiPort sets it",
    "HERMES_HOME": "agentStateDirectory sets it",
    "HERMES_MANAGED": "it would lock every key, the user's too",
    "HERMES_MANAGED_DIR": "it is always /etc/hermes",
    MODEL_API_KEY_VARIABLE: "agentModelKey sets it",
    "HERMES_DASHBOARD_BASIC_AUTH_USERNAME": "agentDashboardUser sets it",
    "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD": "agentDashboardPassword sets it",
    "HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH": "agentDashboardPasswordHash sets it",
    "HERMES_DASHBOARD_BASIC_AUTH_SECRET": "it is made once and kept",
    "HERMES_DASHBOARD_OIDC_ISSUER": "agentDashboardOidcIssuer sets it",
    "HERMES_DASHBOARD_OIDC_CLIENT_ID": "agentDashboardOidcClientId sets it",
    OIDC_SECRET_VARIABLE: "agentDashboardOidcClientSecret sets it",
    "HERMES_DASHBOARD_OIDC_SCOPES": "agentDashboardOidcScopes sets it",
    "HERMES_DASHBOARD_PUBLIC_URL": "agentDashboardPublicUrl sets it",
    "FORWARDED_ALLOW_IPS": "agentDashboardTrustedProxies sets it",
    # wins over the declared base_url (facts hermes 1, "Trap")
    "CUSTOM_BASE_URL": "agentModelUrl sets it",
}
MEMORIES = ("USER.md", "MEMORY.md")
"""Documents that the agent itself goes on writing."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DOCUMENT = re.compile(r"[A-Za-z0-9._-][A-Za-z0-9 ._-]*(/[A-Za-z0-9._-][A-Za-z0-9 ._-]*)*")


# --- reading files ------------------------------------------------------------------------------


def _config_of_file(name: object) -> object:
    if not isinstance(name, str):
        return name
    if not name:
        return {}
    text = read_text(name)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise refuse(f"the file {name} is no YAML{line}", "correct it there") from None
    if not isinstance(found, dict):
        raise refuse(f"the file {name} holds no keys and values", "name a config.yaml as Hermes has it")
    return found


def environment_of(text: str, name: str) -> dict[str, str]:
    """The variables of a file in the form of a .env, without any expansion. `name` is for the refusal."""
    found: dict[str, str] = {}
    for binding in parse_stream(StringIO(text)):
        line = f"{name}, line {binding.original.line}"
        if binding.error or (binding.key is not None and binding.value is None):
            raise refuse(f"{line}: is no KEY=value", "correct the file")
        if binding.key is not None and binding.value is not None:
            found[variable_name(binding.key)] = binding.value
    return found


def _environment_of_files(names: object) -> object:
    if not isinstance(names, list):
        return names
    found: dict[str, str] = {}
    for name in names:
        if not isinstance(name, str):
            raise refuse("must be a list of paths", "write one path a line")
        found |= environment_of(read_text(name), name)
    return found


def _auth_of_file(name: object) -> object:
    if not isinstance(name, str) or not name:
        return name
    text = read_text(name)
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    # What hermes_cli/auth.py, _load_auth_store, takes; anything else it drops without a word.
    if not isinstance(found, dict) or not {"providers", "credential_pool"} & found.keys():
        raise refuse(
            f"the file {name} is no auth.json of Hermes: it has neither providers nor credential_pool",
            "copy ~/.hermes/auth.json of a machine where you have logged in",
        )
    return text


def _document_name(name: str) -> None:
    parts = name.split("/")
    if not _DOCUMENT.fullmatch(name) or {".", ".."} & set(parts) or len(name) > 200:
        raise refuse(f"{name!r} must be a file's name, or a path below the working directory, without ..", "correct it")
    if parts[0] in (".hermes", ".hermes-stack"):
        raise refuse(f"{name!r} is in a folder of the agent's or the stack's own", "choose another")


def _documents(entries: object) -> object:
    if not isinstance(entries, dict):
        return entries
    found: dict[str, str] = {}
    for name, entry in entries.items():
        _document_name(name)
        if isinstance(entry, str):
            found[name] = entry
        elif isinstance(entry, dict) and entry.keys() == {"file"} and isinstance(entry["file"], str):
            found[name] = read_text(entry["file"])
        else:
            raise refuse(f"{name} must be a text, or file: with a path", "write {file: documents/SOUL.md}")
    return found


# --- rules --------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


def _plain_texts(found: object) -> object:
    """Numbers and truth values are meant as texts: YAML made them of `PORT: 1`."""
    return {key: _as_text(item) for key, item in found.items()} if isinstance(found, dict) else found


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _variables(value: dict[str, _Value]) -> dict[str, _Value]:
    for name, item in value.items():
        variable_name(name)
        if name in RESERVED_ENVIRONMENT:
            raise refuse(f"{name} is set by this program", f"leave it out: {RESERVED_ENVIRONMENT[name]}")
        if unfit := unfit_for_env(item.get_secret_value() if isinstance(item, SecretStr) else str(item)):
            raise refuse(f"{name}: {unfit}", "change the value, or have the agent read it from a file of its own")
    return value


def _settings(value: dict[str, Any]) -> dict[str, Any]:
    """What YAML and JSON both can say: no dates, no numbers as keys.

    What the gateway waits for at a stop has to fit in what it is given before it is killed.
    """
    for path, item in leaves(value):
        if not isinstance(item, str | int | float | bool | None):
            raise refuse(f"{path} is a {type(item).__name__}, which the agent may read otherwise", "put it in quotes")
    for name in ("restart_drain_timeout", "cron_drain_timeout"):
        found = at(value, f"agent.{name}")
        try:
            seconds = float(str(found)) if found is not None else 0.0
        except ValueError:
            continue  # the agent takes its default then, and says so
        if not seconds <= LONGEST_DRAIN:
            raise refuse(
                f"agent.{name} is {found}: a gateway that still waits is killed, and leaves locks and half a job",
                f"write {LONGEST_DRAIN} seconds or less",
            )
    return value


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; `high` wins, lists and scalars are replaced whole."""
    result = dict(low)
    for key, value in high.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Each scalar with its dotted key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise refuse(f"{path}{key} is no text, and a key has to be one", "put it in quotes")
            yield from leaves(item, f"{path}{key}.")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{path}{number}.")
    else:
        yield path.removesuffix("."), value


def at(tree: Mapping[str, Any], path: str) -> object:
    """What stands at a dotted key; None where nothing does."""
    found: object = tree
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def references(value: object) -> Iterator[tuple[str, str]]:
    """Every `${NAME}` in a tree: the dotted key, and the name."""
    for path, item in leaves(value):
        if isinstance(item, str):
            for found in REFERENCE.finditer(item):
                yield path, found[1]


def _url(value: str) -> str:
    return value if REFERENCE.search(value) and not re.search(r"\s", value) else url(value)


Name = Annotated[
    str,
    matches(
        r"[a-z0-9][a-z0-9_-]{0,39}", "must be a name of lower-case letters, digits, - and _", "name it like litellm"
    ),
]
ServerName = Annotated[
    str,
    matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", "must be a name of letters, digits, - and _", "name it like files"),
]
Url = Annotated[str, AfterValidator(_url)]
"""A URL, or a text with a reference to a variable."""
Seconds = Annotated[float, Field(gt=0, le=3600)]
Filled = Annotated[str, Field(min_length=1)]
Texts = Annotated[dict[str, str], BeforeValidator(_plain_texts)]
Variables = Annotated[dict[str, str], BeforeValidator(_plain_texts), AfterValidator(_variables)]
SecretVariables = Annotated[dict[str, SecretStr], BeforeValidator(_plain_texts), AfterValidator(_variables)]


# --- the models ---------------------------------------------------------------------------------


class Provider(Part):
    """A named model endpoint: `providers.NAME` of Hermes's config.yaml. Its key comes from a variable."""

    base_url: Url
    key_env: VariableName | None = None
    name: str | None = None
    api_mode: Literal["chat_completions", "anthropic_messages", "codex_responses", "bedrock_converse"] | None = None
    default_model: str | None = None
    context_length: Annotated[int, Field(gt=0)] | None = None
    extra_headers: dict[str, str] | None = None
    extra_body: dict[str, Any] | None = None
    request_timeout_seconds: Seconds | None = None


class FallbackModel(Part):
    """One of `fallback_providers`: tried when those before it have failed."""

    provider: Filled
    model: Filled
    base_url: Url | None = None
    key_env: VariableName | None = None


class AuxiliaryModel(Part):
    """`auxiliary.TASK`: the model of a side task (vision, compression, approval ...)."""

    provider: Filled | None = None
    model: Filled | None = None
    base_url: Url | None = None
    key_env: VariableName | None = None
    timeout: Seconds | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] | None = None


class McpServer(Part):
    """`mcp_servers.NAME`: a program that the agent starts (command) or one that it reaches (url)."""

    command: Filled | None = None
    args: list[str] | None = None
    env: Texts | None = None
    url: Url | None = None
    headers: Texts | None = None
    timeout: Seconds | None = None
    connect_timeout: Seconds | None = None
    enabled: bool | None = None

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise refuse("needs either command or url", "command starts a program, url reaches a server")
        wrong = ("headers",) if self.command is not None else ("args", "env")
        for key in wrong:
            if getattr(self, key) is not None:
                way, other = ("command", "url") if self.command is not None else ("url", "command")
                raise refuse(f"has {key}, which goes with {other}, not with {way}", f"remove {key}")
        return self


FOR_SECRETS = "set agentSecretEnvironment.NAME with --secret --path, and write ${NAME} here"


class DeclarationSettings(Section):
    """The agent's data, all of it optional. `config_file`, `environment_files`, `auth_file`: what they hold."""

    for_secrets: ClassVar[str] = FOR_SECRETS

    settings: Annotated[dict[str, Any], AfterValidator(_settings)] = setting(
        "agentSettings",
        {},
        "Keys of Hermes's config.yaml, at any depth. They are pinned. What this program sets itself wins; all"
        " other keys stay the user's.",
    )
    config_file: Annotated[dict[str, Any], BeforeValidator(_config_of_file), AfterValidator(_settings), OfFile()] = (
        setting("agentConfigFile", "", "Instead of agentSettings: a YAML file on this machine with such keys.")
    )
    environment: Variables = setting(
        "agentEnvironment", {}, "Environment variables of the agent, NAME: value. Shown in clear."
    )
    secret_environment: SecretVariables = setting(
        "agentSecretEnvironment",
        {},
        "Environment variables, each set with pulumi config set --secret --path agentSecretEnvironment.NAME VALUE.",
    )
    environment_files: Annotated[
        dict[str, SecretStr], BeforeValidator(_environment_of_files), AfterValidator(_variables), OfFile("array")
    ] = setting(
        "agentEnvironmentFiles",
        [],
        "Files on this machine with lines KEY=value. All of their content is kept secret. A later file wins "
        "over an earlier one.",
    )
    auth_file: Annotated[SecretStr, BeforeValidator(_auth_of_file), OfFile()] = setting(
        "agentAuthFile",
        "",
        "A file on this machine that becomes the agent's auth.json if it has none. Kept secret.",
    )
    auth_file_overwrite: bool = setting(
        "agentAuthFileOverwrite",
        False,
        "True: agentAuthFile also replaces an existing auth.json, once for each content of the file.",
    )
    documents: Annotated[dict[str, str], BeforeValidator(_documents), OrFile()] = setting(
        "agentDocuments", {}, "Documents by name, for example SOUL.md: a text, or {file: path on this machine}."
    )
    mcp_servers: dict[ServerName, McpServer] = setting(
        "agentMcpServers",
        {},
        "MCP servers by name: command, args and env, or url and headers; timeout and connect_timeout in seconds; "
        "enabled.",
    )
    providers: dict[Name, Provider] = setting(
        "agentProviders",
        {},
        "Named model endpoints: base_url, key_env (the variable with the key), api_mode, default_model and more.",
    )
    fallback_models: list[FallbackModel] = setting(
        "agentFallbackModels",
        [],
        "Models to try if the main one fails, in this order: provider, model; base_url and key_env if needed.",
    )
    auxiliary_models: dict[Name, AuxiliaryModel] = setting(
        "agentAuxiliaryModels",
        {},
        "Models of side tasks by the task's name (vision, compression, approval): provider, model, base_url, key_env, "
        "timeout.",
    )

    @rule
    def _one_source(self) -> Iterator[Fault]:
        if self.config_file and self.settings:
            text = "takes the place of agentSettings, and both are given"
            yield self.fault("config_file", text, "keep one of the two")

    @rule
    def _each_variable_once(self) -> Iterator[Fault]:
        where: dict[str, str] = {}
        for field in ("environment", "secret_environment", "environment_files"):
            key = str(type(self).model_fields[field].alias)
            twice = [name for name in getattr(self, field) if where.setdefault(name, key) != key]
            for name in sorted(twice):
                yield self.fault(field, f"{name} is in {where[name]}, too", "keep it in one place", name)

    @rule
    def _keys_are_declared(self) -> Iterator[Fault]:
        names = {*self.environment, *self.all_secrets}
        for field in ("providers", "fallback_models", "auxiliary_models"):
            models = getattr(self, field)
            each = models.values() if isinstance(models, dict) else models
            for missing in sorted({model.key_env for model in each if model.key_env and model.key_env not in names}):
                yield self.fault(
                    field,
                    f"a key is to come from {missing}, which is declared nowhere",
                    f"pulumi config set --secret --path agentSecretEnvironment.{missing}",
                    missing,
                )

    @property
    def config(self) -> dict[str, Any]:
        """agentSettings, or what stands in agentConfigFile; a version in the file is that of another agent."""
        source = self.settings or self.config_file
        return {key: value for key, value in source.items() if key != "_config_version"}

    @property
    def config_key(self) -> str:
        """The key that `config` comes from."""
        return "agentSettings" if self.settings else "agentConfigFile"

    @property
    def all_secrets(self) -> dict[str, SecretStr]:
        """agentSecretEnvironment and the files."""
        return {**self.environment_files, **self.secret_environment}

    @property
    def managed(self) -> dict[str, Any]:
        """What the models and servers are in the managed config.yaml: what the operator has written, no defaults."""
        found = {
            "providers": _given(self.providers),
            "fallback_providers": _given(self.fallback_models),
            "auxiliary": {task: _auxiliary(model) for task, model in self.auxiliary_models.items()},
            "mcp_servers": _given(self.mcp_servers),
        }
        return {key: value for key, value in found.items() if value}


def _given(models: Any) -> Any:
    if isinstance(models, dict):
        return {name: model.model_dump(exclude_none=True) for name, model in models.items()}
    return [model.model_dump(exclude_none=True) for model in models]


def _auxiliary(model: AuxiliaryModel) -> dict[str, Any]:
    """`auxiliary` knows no key_env, only a key that may be a reference (facts hermes 1, "config.yaml keys")."""
    given = model.model_dump(exclude_none=True)
    if name := given.pop("key_env", None):
        given["api_key"] = f"${{{name}}}"
    return given
