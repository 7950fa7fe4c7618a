"""What the operator declares about the agent: settings, environment, documents, models, messengers.

Keys inside of objects (``agentSettings``, a provider, an MCP server) are called as Hermes calls them. Files are read
here, on the operator's machine, a relative path from the project's folder; what they hold is checked like all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from dotenv.parser import parse_stream
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from components.rules import SettingsModel, keys_with, list_from_json, matches, object_from_json, refuse
from provisioning.models import (
    LONGEST_DRAIN,
    RESERVED_ENVIRONMENT,
    check_document_name,
    check_env_name,
    check_env_value,
    check_requirement,
)

LONGEST_FILE = 1 << 20
"""Bytes. Hermes itself cuts a document at some ten thousand characters; beyond this it is the wrong file."""

SECRETS = frozenset(
    {
        "agentSecretEnvironment",
        "agentTelegramToken",
        "agentDiscordToken",
        "agentSlackBotToken",
        "agentSlackAppToken",
    }
)
"""Keys whose values must be stored with --secret."""

SHOWN = frozenset(
    {
        "agentSettings",
        "agentEnvironment",
        "agentDocuments",
        "agentMcpServers",
        "agentProviders",
        "agentFallbackModels",
        "agentAuxiliaryModels",
    }
)
"""Objects that reach the preview and the state in clear: a secret among them would, too."""

SECRET_LIKE = re.compile(r"KEY|TOKEN|SECRET|PASSW|AUTHORIZATION|CREDENTIAL", re.IGNORECASE)
WITHOUT_EFFECT = {
    "skills.disabled": "the agent reads it in the home's config.yaml alone",
    "skills.external_dirs": "the agent reads it in the home's config.yaml alone",
    "security.website_blocklist": "the agent reads it in the home's config.yaml alone, so it protects nobody",
    "secrets": "the agent reads it in the home's config.yaml alone",
}
"""What a managed configuration can't pin, in any release up to 0.20.3 (facts hermes 0.20, 5), and why."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


# --- reading files ------------------------------------------------------------------------------


def read_text(name: str) -> str:
    """The text of a file on this machine; a refusal that names it when it can't be had."""
    path = Path(name).expanduser()
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise refuse(f"the file {name} is larger than 1 MiB", "name the right file")
        # Some editors put a mark before the text (UTF-8's byte order mark), which is no part of it.
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise refuse(
            f"the file {name} can't be read: {error.strerror}", "correct the path or the file's mode"
        ) from None
    except UnicodeDecodeError:
        raise refuse(f"the file {name} is no text in UTF-8", "name the right file") from None


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
    """The variables of a file in the form of a .env, without any expansion. ``name`` is for the refusal."""
    found: dict[str, str] = {}
    for binding in parse_stream(StringIO(text)):
        line = f"{name}, line {binding.original.line}"
        if binding.error or (binding.key is not None and binding.value is None):
            raise refuse(f"{line}: is no KEY=value", "correct the file")
        if binding.key is not None and binding.value is not None:
            found[_checked(check_env_name, binding.key)] = binding.value
    return found


def _environment_of_files(value: object) -> object:
    names = list_from_json(value)
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


def _documents(value: object) -> object:
    entries = object_from_json(value)
    if not isinstance(entries, dict):
        return entries
    found: dict[str, str] = {}
    for name, entry in entries.items():
        _checked(check_document_name, name)
        if isinstance(entry, str):
            found[name] = entry
        elif isinstance(entry, dict) and entry.keys() == {"file"} and isinstance(entry["file"], str):
            found[name] = read_text(entry["file"])
        else:
            raise refuse(f"{name} must be a text, or file: with a path", "write {file: documents/SOUL.md}")
    return found


# --- rules --------------------------------------------------------------------------------------

_Value = TypeVar("_Value")


def _checked(check: Callable[[_Value], _Value], value: _Value) -> _Value:
    try:
        return check(value)
    except ValueError as error:
        raise refuse(str(error), "correct it") from None


def _plain_texts(value: object) -> object:
    """Numbers and truth values are meant as texts: YAML made them of ``PORT: 1``."""
    found = object_from_json(value)
    if not isinstance(found, dict):
        return found
    return {key: _as_text(item) for key, item in found.items()}


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _texts_of_list(value: object) -> object:
    found = list_from_json(value)
    return [_as_text(item) for item in found] if isinstance(found, list) else found


def _variables(value: dict[str, _Value]) -> dict[str, _Value]:
    for name, item in value.items():
        _checked(check_env_name, name)
        if name in RESERVED_ENVIRONMENT:
            raise refuse(f"{name} is set by this program", f"leave it out ({RESERVED_ENVIRONMENT[name]})")
        text = item.get_secret_value() if isinstance(item, SecretStr) else str(item)
        try:
            check_env_value(name, text)
        except ValueError as error:
            raise refuse(str(error), "change the value, or have the agent read it from a file of its own") from None
    return value


def _tree(value: dict[str, Any]) -> dict[str, Any]:
    """What YAML and JSON both can say: no dates, no numbers as keys."""
    for path, item in _leaves(value):
        if not isinstance(item, str | int | float | bool | None):
            raise refuse(f"{path} is a {type(item).__name__}, which the agent may read otherwise", "put it in quotes")
    return value


def _settings(value: dict[str, Any]) -> dict[str, Any]:
    """A tree in which what the gateway waits for at a stop fits in what it is given before it is killed."""
    _tree(value)
    for name in ("restart_drain_timeout", "cron_drain_timeout"):
        found = _at(value, f"agent.{name}")
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


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Each scalar with its dotted key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise refuse(f"{path}{key} is no text, and a key has to be one", "put it in quotes")
            yield from _leaves(item, f"{path}{key}.")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}{number}.")
    else:
        yield path.removesuffix("."), value


def _at(tree: Mapping[str, Any], path: str) -> object:
    """What stands at a dotted key; None where nothing does."""
    found: object = tree
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def references(value: object) -> Iterator[tuple[str, str]]:
    """Every ``${NAME}`` in a tree: the dotted key, and the name."""
    for path, item in _leaves(value):
        if isinstance(item, str):
            for found in REFERENCE.finditer(item):
                yield path, found[1]


def _url(value: str) -> str:
    if not re.fullmatch(r"(https?://[^\s/@]+(/\S*)?|\S*\$\{[A-Za-z_][A-Za-z0-9_]*\}\S*)", value):
        raise refuse("must be an http or https URL without user or password", "write it like https://example.org/v1")
    return value


Name = Annotated[
    str,
    AfterValidator(
        matches(
            r"[a-z0-9][a-z0-9_-]{0,39}",
            "must be a name of lower-case letters, digits, - and _",
            "name it like litellm",
        )
    ),
]
ServerName = Annotated[
    str,
    AfterValidator(
        matches(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", "must be a name of letters, digits, - and _", "name it like files")
    ),
]
Url = Annotated[str, AfterValidator(_url)]
Variable = Annotated[str, AfterValidator(lambda value: _checked(check_env_name, value))]
Seconds = Annotated[float, Field(gt=0, le=3600)]
Texts = Annotated[dict[str, str], BeforeValidator(_plain_texts)]
Variables = Annotated[dict[str, str], BeforeValidator(_plain_texts), AfterValidator(_variables)]
SecretVariables = Annotated[dict[str, SecretStr], BeforeValidator(_plain_texts), AfterValidator(_variables)]
Requirements = Annotated[
    list[Annotated[str, AfterValidator(lambda value: _checked(check_requirement, value))]],
    BeforeValidator(list_from_json),
]


def _user_id(pattern: str, rule: str) -> Callable[[str], str]:
    return matches(pattern, rule, "the messenger shows it in a user's profile")


def _token(pattern: str, rule: str, remedy: str) -> Callable[[SecretStr], SecretStr]:
    """A validator for a token that may be left empty; its text never reaches the refusal."""

    def check(value: SecretStr) -> SecretStr:
        text = value.get_secret_value()
        if text and not re.fullmatch(pattern, text):
            raise refuse(rule, remedy)
        return value

    return check


# The forms: hermes_cli/web_server.py of 0.19.0 and 0.20.3 asks for the same.
TelegramToken = Annotated[
    SecretStr,
    AfterValidator(
        _token(
            r"\d+:[A-Za-z0-9_-]{30,}",
            "must be a whole token of a Telegram bot",
            "BotFather prints it: 123456789:ABC...",
        )
    ),
]
DiscordToken = Annotated[
    SecretStr,
    AfterValidator(
        _token(
            r"[A-Za-z0-9_.-]{50,}",
            "must be a whole token of a Discord bot",
            "the Developer Portal shows it once: Bot, Reset Token",
        )
    ),
]
SlackBotToken = Annotated[
    SecretStr,
    AfterValidator(
        _token(r"xoxb-\S+", "must be a bot token of Slack, xoxb-...", "OAuth & Permissions of the app shows it")
    ),
]
SlackAppToken = Annotated[
    SecretStr,
    AfterValidator(
        _token(r"xapp-\S+", "must be an app-level token of Slack, xapp-...", "Basic Information of the app makes one")
    ),
]
NumericUsers = Annotated[
    list[Annotated[str, AfterValidator(_user_id(r"\d+", "must be the numeric ids of users"))]],
    BeforeValidator(_texts_of_list),
]
SlackUsers = Annotated[
    list[Annotated[str, AfterValidator(_user_id(r"[UW][A-Z0-9]{2,}", "must be the member ids of users, U..."))]],
    BeforeValidator(_texts_of_list),
]


# --- the models ---------------------------------------------------------------------------------


class Provider(SettingsModel):
    """A named model endpoint: ``providers.NAME`` of Hermes's config.yaml. Its key comes from a variable."""

    base_url: Url
    key_env: Variable | None = None
    name: str | None = None
    api_mode: Literal["chat_completions", "anthropic_messages", "codex_responses", "bedrock_converse"] | None = None
    default_model: str | None = None
    context_length: Annotated[int, Field(gt=0)] | None = None
    extra_headers: dict[str, str] | None = None
    extra_body: dict[str, Any] | None = None
    request_timeout_seconds: Seconds | None = None


class FallbackModel(SettingsModel):
    """One of ``fallback_providers``: tried when those before it have failed."""

    provider: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    base_url: Url | None = None
    key_env: Variable | None = None


class AuxiliaryModel(SettingsModel):
    """``auxiliary.TASK``: the model of a side task (vision, compression, approval ...)."""

    provider: Annotated[str, Field(min_length=1)] | None = None
    model: Annotated[str, Field(min_length=1)] | None = None
    base_url: Url | None = None
    key_env: Variable | None = None
    timeout: Seconds | None = None
    reasoning_effort: str | None = None
    extra_body: dict[str, Any] | None = None


class McpServer(SettingsModel):
    """``mcp_servers.NAME``: a program that the agent starts (command) or one that it reaches (url)."""

    command: Annotated[str, Field(min_length=1)] | None = None
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


_VARIABLES = {"environment", "secret_environment", "environment_files"}
# What gateway/config.py and gateway/authz_mixin.py of 0.19.0 and 0.20.3 read.
_MESSENGER_VARIABLES = {
    "telegram_token": "TELEGRAM_BOT_TOKEN",
    "telegram_allowed_users": "TELEGRAM_ALLOWED_USERS",
    "discord_token": "DISCORD_BOT_TOKEN",
    "discord_allowed_users": "DISCORD_ALLOWED_USERS",
    "slack_bot_token": "SLACK_BOT_TOKEN",
    "slack_app_token": "SLACK_APP_TOKEN",
    "slack_allowed_users": "SLACK_ALLOWED_USERS",
}


class AgentDeclaration(SettingsModel):
    """The agent's data, all of it optional. ``config_file``, ``environment_files``, ``auth_file``: what they hold."""

    model_config = ConfigDict(alias_generator=keys_with("agent"))

    settings: Annotated[dict[str, Any], BeforeValidator(object_from_json), AfterValidator(_settings)]
    config_file: Annotated[dict[str, Any], BeforeValidator(_config_of_file), AfterValidator(_settings)]
    environment: Variables
    secret_environment: SecretVariables
    environment_files: Annotated[
        dict[str, SecretStr], BeforeValidator(_environment_of_files), AfterValidator(_variables)
    ]
    auth_file: Annotated[SecretStr, BeforeValidator(_auth_of_file)]
    auth_file_overwrite: bool
    documents: Annotated[dict[str, str], BeforeValidator(_documents)]
    mcp_servers: Annotated[dict[ServerName, McpServer], BeforeValidator(object_from_json)]
    extra_python_packages: Requirements
    providers: Annotated[dict[Name, Provider], BeforeValidator(object_from_json)]
    fallback_models: Annotated[list[FallbackModel], BeforeValidator(list_from_json)]
    auxiliary_models: Annotated[dict[Name, AuxiliaryModel], BeforeValidator(object_from_json)]
    telegram_token: TelegramToken
    telegram_allowed_users: NumericUsers
    discord_token: DiscordToken
    discord_allowed_users: NumericUsers
    slack_bot_token: SlackBotToken
    slack_app_token: SlackAppToken
    slack_allowed_users: SlackUsers

    @field_validator("config_file")
    @classmethod
    def _one_source(cls, found: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if found and info.data.get("settings"):
            raise refuse("takes the place of agentSettings, and both are given", "keep one of the two")
        return found

    @field_validator("environment_files")
    @classmethod
    def _each_once(cls, found: dict[str, SecretStr], info: ValidationInfo) -> dict[str, SecretStr]:
        for other, key in (("environment", "agentEnvironment"), ("secret_environment", "agentSecretEnvironment")):
            twice = sorted(found.keys() & (info.data.get(other) or {}).keys())
            if twice:
                raise refuse(f"{', '.join(twice)}: in a file and in {key}", "keep it in one place")
        both = sorted((info.data.get("environment") or {}).keys() & (info.data.get("secret_environment") or {}).keys())
        if both:
            raise refuse(
                f"{', '.join(both)}: in agentEnvironment and in agentSecretEnvironment", "keep it in one place"
            )
        return found

    @field_validator("slack_app_token")
    @classmethod
    def _slack_needs_both(cls, token: SecretStr, info: ValidationInfo) -> SecretStr:
        # Socket mode, which needs no open port, takes both (plugins/platforms/slack).
        bot = info.data.get("slack_bot_token")
        if bot is not None and bool(bot.get_secret_value()) != bool(token.get_secret_value()):
            raise refuse("Slack needs agentSlackBotToken and agentSlackAppToken", "set both, or none")
        return token

    @field_validator("providers", "fallback_models", "auxiliary_models")
    @classmethod
    def _keys_are_declared(cls, models: _Value, info: ValidationInfo) -> _Value:
        if not info.data.keys() >= _VARIABLES:
            return models
        names = {name for field in _VARIABLES for name in info.data[field]}
        each = models.values() if isinstance(models, dict) else models if isinstance(models, list) else ()
        missing = sorted({model.key_env for model in each if model.key_env and model.key_env not in names})
        if missing:
            raise refuse(
                f"a key is to come from {', '.join(missing)}, which is declared nowhere",
                f"pulumi config set --secret --path agentSecretEnvironment.{missing[0]}",
            )
        return models

    @field_validator(
        "telegram_token",
        "discord_token",
        "slack_bot_token",
        "slack_app_token",
        "telegram_allowed_users",
        "discord_allowed_users",
        "slack_allowed_users",
    )
    @classmethod
    def _given_once(cls, value: _Value, info: ValidationInfo) -> _Value:
        name = _MESSENGER_VARIABLES[str(info.field_name)]
        empty = not (value.get_secret_value() if isinstance(value, SecretStr) else value)
        if not empty and any(name in (info.data.get(field) or {}) for field in _VARIABLES):
            raise refuse(f"{name} is in the agent's environment, too", "keep it in one place")
        return value

    # --- what follows of it ---

    @property
    def declared_config(self) -> dict[str, Any]:
        """agentSettings, or what stands in agentConfigFile; a version in the file is that of another agent."""
        source = self.settings or self.config_file
        return {key: value for key, value in source.items() if key != "_config_version"}

    @property
    def all_secrets(self) -> dict[str, SecretStr]:
        """agentSecretEnvironment and the files."""
        return {**self.environment_files, **self.secret_environment}

    @property
    def messenger_secrets(self) -> dict[str, SecretStr]:
        """The tokens that are set, as variables."""
        return {
            name: token
            for field, name in _MESSENGER_VARIABLES.items()
            if isinstance(token := getattr(self, field), SecretStr) and token.get_secret_value()
        }

    @property
    def messenger_environment(self) -> dict[str, str]:
        """The allow-lists that are set, as variables."""
        return {
            name: ",".join(users)
            for field, name in _MESSENGER_VARIABLES.items()
            if isinstance(users := getattr(self, field), list) and users
        }

    @property
    def variable_names(self) -> set[str]:
        """Every variable that the agent's environment is going to have by these options."""
        return {*self.environment, *self.all_secrets, *self.messenger_secrets, *self.messenger_environment}

    def warnings(self) -> list[str]:
        """What is allowed and may not be meant."""
        names = self.variable_names
        found = []
        for which in ("Telegram", "Discord", "Slack"):
            token, users = (f"{which.upper()}_{what}" in names for what in ("BOT_TOKEN", "ALLOWED_USERS"))
            if token and not users:
                # gateway/run.py denies unknown senders by default; a pairing code is all that they get.
                found.append(
                    f"{which} has a token and no agent{which}AllowedUsers: the agent answers nobody there "
                    "until it knows who may talk to it"
                )
            elif users and not token:
                found.append(f"agent{which}AllowedUsers is set, and there is no token for {which}")
        servers = {name: {"env": server.env, "headers": server.headers} for name, server in self.mcp_servers.items()}
        for key, tree in {"agentEnvironment": self.environment, "agentMcpServers": servers}.items():
            for path, item in _leaves(tree):
                if item and SECRET_LIKE.search(path.rpartition(".")[2]) and not REFERENCE.search(str(item)):
                    found.append(
                        f"{key}.{path} looks like a secret, and is shown in the preview and stored in clear: "
                        "agentSecretEnvironment keeps one, and ${NAME} refers to it"
                    )
        found += self._without_effect()
        trees = {
            "agentSettings" if self.settings else "agentConfigFile": self.declared_config,
            "agentMcpServers": {name: server.model_dump() for name, server in self.mcp_servers.items()},
            "agentProviders": {name: provider.model_dump() for name, provider in self.providers.items()},
        }
        for key, tree in trees.items():
            for path, name in references(tree):
                if name not in names:
                    found.append(
                        f"{key}.{path} refers to ${{{name}}}, which no option declares: unless the home's own "
                        ".env has it, the agent takes it as it is written"
                    )
        return found

    def _without_effect(self) -> list[str]:
        source = "agentSettings" if self.settings else "agentConfigFile"
        found = [
            f"{source}.{key} has no effect: {why}. There it can be set: scripts/agent ssh hermes config set {key} VALUE"
            for key, why in WITHOUT_EFFECT.items()
            if _at(self.declared_config, key) is not None
        ]
        if "_config_version" in self.settings:
            found.append(
                "agentSettings._config_version is left out: it is the number of the user's own config.yaml, which "
                "would lose it and never be migrated again"
            )
        if _at(self.declared_config, "database.journal_mode") == "wal":
            found.append(
                f"{source}.database.journal_mode: wal has no effect on new databases before SQLite 3.51.3, which "
                "Debian 12 and 13 have not: the agent makes them in the mode delete"
            )
        return found
