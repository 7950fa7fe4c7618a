"""The account that the agent runs as, where its data lies, how its service behaves."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import AfterValidator, Field

from applications.hermes.settings.passed_on import ConfigKey
from settings.kinds import (
    USUAL_UID,
    Account,
    AccountId,
    DebianPackages,
    OptionalPlainPath,
    PythonPackage,
    once,
    or_empty,
)
from settings.section import Section, refuse, setting


def _arguments(value: list[str]) -> list[str]:
    for argument in value:
        if argument == "--replace" or argument.startswith("--replace="):
            # Two processes that end each other for ever (facts hermes 3, issue 23272).
            raise refuse("--replace would make the gateway and its service end each other", "leave it out")
        if not argument or not argument.isprintable():
            raise refuse("an argument must be a text in one line", "write one argument an item, like: -v")
    return value


def _timezone(value: str) -> str:
    """As the agent reads it (hermes_time.py of 0.19.0 and 0.20.3); one that it does not know, it takes for UTC."""
    try:
        known = bool(ZoneInfo(value))
    except (ValueError, ZoneInfoNotFoundError, OSError):
        # A machine may have no list of zones: then the form alone is looked at. The list is long, so it comes last.
        known = not available_timezones()
    if not known or not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", value):
        raise refuse("must be a time zone by its IANA name", "write it like Europe/Berlin; empty: UTC")
    return value


class ServiceSettings(Section):
    """An empty directory means: below the home, in its usual place."""

    user: Account = setting("agentUser", "hermes", "The account of the agent in the cattle.")
    group: Account = setting("agentGroup", "hermes", "The group of that account.")
    uid: AccountId = setting(
        "agentUid",
        USUAL_UID,
        "The uid of that account. It owns the data on the volume: change it only for a new volume.",
    )
    gid: AccountId = setting("agentGid", 10000, "The gid of that group.")
    state_directory: OptionalPlainPath = setting(
        "agentStateDirectory",
        "",
        "The folder of the agent's state (HERMES_HOME), on the volume. Empty: .hermes in cattleMountPath.",
    )
    working_directory: OptionalPlainPath = setting(
        "agentWorkingDirectory",
        "",
        "The working directory of the agent's tools, on the volume. Empty: workspace in cattleMountPath.",
    )
    extra_args: Annotated[list[str], AfterValidator(_arguments)] = setting(
        "agentExtraArgs",
        [],
        "More arguments of hermes gateway run, one an item, for example -v. Everybody in the cattle can see them.",
    )
    restart: Literal["always", "on-failure", "on-abnormal", "on-abort", "on-watchdog", "on-success", "no"] = setting(
        "agentRestart",
        "always",
        "When systemd starts the gateway again: always, on-failure, on-abnormal, on-abort, on-watchdog, on-success "
        "or no.",
    )
    restart_seconds: Annotated[int, Field(ge=0, le=3600)] = setting(
        "agentRestartSeconds", 5, "The seconds that systemd waits before it does so."
    )
    timezone: Annotated[str, or_empty(_timezone), ConfigKey("timezone")] = setting(
        "agentTimezone",
        "",
        "The time zone that the agent tells the time in, and runs its cron jobs by: Europe/Berlin for one. Empty: the "
        "cattle's, which is UTC unless it was set there.",
    )
    extra_packages: DebianPackages = setting(
        "agentExtraPackages", [], "Debian packages for the agent, for example ffmpeg for voice messages."
    )
    extra_python_packages: Annotated[list[PythonPackage], AfterValidator(once)] = setting(
        "agentExtraPythonPackages",
        [],
        "Python packages for the agent's own environment, with their version: httpx==0.28.1.",
    )
