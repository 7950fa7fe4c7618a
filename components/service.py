"""The account that the agent runs as, where its data lies, how its service behaves: settings and their rules."""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from components.rules import SettingsModel, keys_with, list_from_json, matches, refuse
from proxmox.errors import Fault

RESTARTS = Literal["always", "on-failure", "on-abnormal", "on-abort", "on-watchdog", "on-success", "no"]
KEPT_FOLDER = ".hermes-stack"  # what this program keeps on the volume
USERS_GROUP = "hermes-users"  # who may use the agent's command line
# The sandbox makes all of a system read-only or hides it; a home can lie where none of it is.
HOMES = ("/home", "/srv", "/mnt", "/data", "/var/lib/hermes")

_Account = matches(
    r"[a-z_][a-z0-9_-]{0,30}", "must be the name of an account", "use lower-case letters, digits, - and _"
)


def _no_system_account(value: str) -> str:
    if value in ("root", USERS_GROUP):
        raise refuse(f"the agent can't run as {value}", "choose a name of its own, hermes for one")
    return value


def _optional_path(value: str) -> str:
    path = PurePosixPath(value)
    if value and (not path.is_absolute() or ".." in path.parts or str(path) != value or not _PLAIN.fullmatch(value)):
        raise refuse(
            "must be an absolute path of letters, digits, '.', '_', '-', without .. or a slash at its end",
            "write it like /home/hermes/workspace, or leave it empty",
        )
    return value


def _arguments(value: list[str]) -> list[str]:
    for argument in value:
        if argument == "--replace" or argument.startswith("--replace="):
            # Two processes that end each other for ever (facts hermes 3, issue 23272).
            raise refuse("--replace would make the gateway and its service end each other", "leave it out")
        if not argument or not argument.isprintable():
            raise refuse("an argument must be a text in one line", "write one argument an item, like: -v")
    return value


def _api_host(value: str) -> str:
    if value != "localhost":
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise refuse("must be an IP address of the cattle's, or localhost", "leave it at 127.0.0.1") from None
    return value


_PLAIN = re.compile(r"(/[A-Za-z0-9._-]+)+")
AccountName = Annotated[str, AfterValidator(_Account), AfterValidator(_no_system_account)]
AccountId = Annotated[int, Field(ge=1000, le=60000)]
API_KEY_LENGTH = 32


class ServiceSettings(SettingsModel):
    """What the agent runs as. An empty directory means: below the volume, in its usual place."""

    model_config = ConfigDict(alias_generator=keys_with("agent"))

    user: AccountName
    group: AccountName
    uid: AccountId
    gid: AccountId
    state_directory: Annotated[str, AfterValidator(_optional_path)]
    working_directory: Annotated[str, AfterValidator(_optional_path)]
    extra_args: Annotated[list[str], BeforeValidator(list_from_json), AfterValidator(_arguments)]
    restart: RESTARTS
    restart_seconds: Annotated[int, Field(ge=0, le=3600)]
    api: bool
    api_host: Annotated[str, AfterValidator(_api_host)]
    api_key: SecretStr

    @field_validator("api_key")
    @classmethod
    def _api_key(cls, key: SecretStr) -> SecretStr:
        value = key.get_secret_value()
        if value and (len(value) < API_KEY_LENGTH or not re.fullmatch(r"[A-Za-z0-9_-]+", value)):
            raise refuse(
                f"the API's key must be {API_KEY_LENGTH} or more letters, digits, - and _",
                "openssl rand -hex 32 makes one; empty: one is made in the cattle and kept on the volume",
            )
        return key


def state_directory_of(service: ServiceSettings, mount: str) -> str:
    """HERMES_HOME."""
    return service.state_directory or f"{mount}/.hermes"


def working_directory_of(service: ServiceSettings, mount: str) -> str:
    """Where the agent's tools work unless they are told otherwise."""
    return service.working_directory or f"{mount}/workspace"


def faults_of_place(service: ServiceSettings, mount: str) -> list[Fault]:
    """What is wrong with the directories, given where the volume is mounted."""
    faults = []
    if not any(mount == home or mount.startswith(f"{home}/") for home in HOMES) or mount == "/home":
        faults.append(
            Fault(
                "cattleMountPath",
                mount,
                f"with an agent the volume is mounted in /home or below one of {', '.join(HOMES[1:])}",
                "leave the key out: /home/hermes",
            )
        )
    state, working = state_directory_of(service, mount), working_directory_of(service, mount)
    kept = f"{mount}/{KEPT_FOLDER}"
    if not _below(state, mount) or state == kept or _below(state, kept):
        faults.append(
            Fault(
                "agentStateDirectory",
                state,
                f"must be below the volume's mount point {mount} (and not {kept}), or the data is lost with the cattle",
                f"leave the key out: {mount}/.hermes",
            )
        )
    if not (working == mount or _below(working, mount)) or working == kept or _below(working, kept):
        faults.append(
            Fault(
                "agentWorkingDirectory",
                working,
                f"must be the volume's mount point {mount} or below it (and not {kept})",
                f"leave the key out: {mount}/workspace",
            )
        )
    if working == state or _below(working, state):
        faults.append(
            Fault(
                "agentWorkingDirectory",
                working,
                f"must not be in the state directory {state}",
                f"leave the key out: {mount}/workspace",
            )
        )
    return faults


def _below(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


def warnings_of(service: ServiceSettings) -> list[str]:
    """What is allowed and seldom meant, in words for the preview."""
    warnings = []
    if service.restart not in ("always", "on-success"):
        # facts hermes 3, issue 11258
        warnings.append(
            f"agentRestart is {service.restart}: the agent ends itself with success when it wants to be started anew "
            "(after /restart, say), and then stays down. always is what upstream runs it with."
        )
    if service.api and not is_loopback(service.api_host):
        warnings.append(
            f"agentApiHost is {service.api_host}: the API speaks plain HTTP, so its key and all prompts can be read on "
            "the way. On 127.0.0.1 it is reached through SSH."
        )
    return warnings


def is_loopback(host: str) -> bool:
    """Whether an address (or localhost) is reached from the same machine only."""
    return host == "localhost" or ipaddress.ip_address(host).is_loopback
