"""What a change of each of the agent's settings causes, as the preview tells it: which phases run, what starts anew.

The rule: packages are baseline's; another build is an update; all else is configure's, which restarts what reads it. A
setting that both services read at their start needs a row only where its value has a form of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import trustme

from applications.hermes.settings.dashboard import SCRYPT_HASH
from components.explanation import explain
from provisioning.plans import PhasePlan
from settings.read import SETTINGS
from tests.settings import DOCKER, MODEL, cattle, foreseen

GATEWAY, DASHBOARD = "hermes-gateway.service", "hermes-dashboard.service"
BOTH = {GATEWAY, DASHBOARD}
CONFIGURE = {"configure", "verify"}
UPDATE = {"agent", *CONFIGURE}
COPIES = {"baseline", *CONFIGURE}
"""restic is installed."""

PROVIDERS = {"agentProviders": {"p": {"base_url": "http://192.0.2.21:4000/v1"}}}
OPEN = {"agentDashboardHost": "0.0.0.0", "agentDashboardPassword": "correct horse battery"}  # noqa: S104
HASH = "scrypt$16384$8$1$" + "A" * 22 + "==$" + "B" * 43 + "="
OIDC = {
    "agentDashboardHost": "0.0.0.0",  # noqa: S104
    "agentDashboardOidcIssuer": "https://id.example.org",
    "agentDashboardOidcClientId": "hermes",
    "agentDashboardOidcClientSecret": "one-secret",
    "agentDashboardPublicUrl": "https://hermes.example.org",
    "agentDashboardTrustedProxies": ["192.0.2.5"],
}
API = {"agentApi": True, "agentApiKey": "a" * 32}
AUTH = {"agentAuthFile": "FILE:one.json"}
REST = {
    "agentCopyRepository": "rest:https://192.0.2.30:8000/hermes",
    "agentCopyPassword": "p" * 24,
    "agentCopyAccessKey": "hermes",
    "agentCopySecretKey": "one-secret",
}
SSH_KEYS = [
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{letter * 70}\n-----END OPENSSH PRIVATE KEY-----\n" for letter in "ab"
]
HOST_KEYS = [
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPipyGqJq1bYpFWrD5vcH8y7uYVdC2gq3IzKqB5fZbCe",
]
SFTP = {
    "agentCopyRepository": "sftp:backup@192.0.2.30:/srv/hermes",
    "agentCopyPassword": "p" * 24,
    "agentCopySshKey": SSH_KEYS[0],
    "agentCopySshHostKey": HOST_KEYS[0],
}
SLACK = {"agentSlackBotToken": "xoxb-1", "agentSlackAppToken": "xapp-1"}
OTHER_IMAGE = "nousresearch/hermes-agent:v2026.8.16.2@sha256:" + "fedcba9876543210" * 4
FILES = {
    "one.json": json.dumps({"providers": {}}),
    "two.json": json.dumps({"providers": {"x": {}}}),
    "some.env": "A_NAME=value\n",
    "config.yaml": "timezone: Europe/Berlin\n",
}


class Row(NamedTuple):
    """A setting's other value (a dict with FILE:NAME in it for a file), and what it causes."""

    value: Any
    phases: set[str]
    restarts: set[str]
    base: Mapping[str, Any] = {}
    beside: Mapping[str, Any] = {}
    """What has to change with it, to be allowed."""


CAUSES: dict[str, Row] = {
    "agentExtraPackages": Row(["ffmpeg"], {"baseline"}, set()),
    # The account, and where its data lies.
    "agentUser": Row("other", {"baseline", *UPDATE}, BOTH),
    "agentGroup": Row("other", {"baseline", *CONFIGURE}, BOTH),
    "agentUid": Row(10001, {"baseline", *CONFIGURE}, set()),
    "agentGid": Row(10001, {"baseline", *CONFIGURE}, set()),
    "agentStateDirectory": Row("/home/hermes/state", {"baseline", *CONFIGURE}, BOTH),
    "agentWorkingDirectory": Row("/home/hermes/work", {"baseline", *CONFIGURE}, BOTH),
    # Another build.
    "agentSource": Row("pypi", UPDATE, BOTH),
    "agentVersion": Row("0.21.6", UPDATE, BOTH),
    "agentRepository": Row("https://git.example.org/hermes.git", UPDATE, BOTH),
    "agentTag": Row("v2026.9.25", UPDATE, BOTH),
    "agentCommit": Row("0123456789" * 4, UPDATE, BOTH),
    "agentWebUi": Row("prebuilt", UPDATE, BOTH),
    # Where the same files are fetched: no other build.
    "agentPythonMirror": Row("https://mirror.example.org/python", {"agent"}, set()),
    "agentExtraPythonPackages": Row(["httpx==0.28.1"], UPDATE, BOTH),
    # What both services read at their start: the managed files, and the container's certificates.
    "agentModelProvider": Row("p", CONFIGURE, BOTH, PROVIDERS, {"agentModelUrl": ""}),
    "agentModelUrl": Row("http://192.0.2.22:4000/v1", CONFIGURE, BOTH),
    "agentModelKey": Row("sk-other", CONFIGURE, BOTH),
    "agentCaFile": Row("FILE:ca.pem", CONFIGURE, BOTH),
    "agentApiHost": Row("0.0.0.0", CONFIGURE, BOTH, API),  # noqa: S104
    "agentApiKey": Row("b" * 32, CONFIGURE, BOTH, API),
    "agentApiPort": Row(8700, CONFIGURE, BOTH, API),
    "agentSettings": Row({"timezone": "Europe/Berlin"}, CONFIGURE, BOTH),
    "agentConfigFile": Row("FILE:config.yaml", CONFIGURE, BOTH),
    "agentTimezone": Row("Europe/Berlin", CONFIGURE, BOTH),
    "agentEnvironment": Row({"A_NAME": "value"}, CONFIGURE, BOTH),
    "agentSecretEnvironment": Row({"A_NAME": "value"}, CONFIGURE, BOTH),
    "agentEnvironmentFiles": Row(["FILE:some.env"], CONFIGURE, BOTH),
    "agentMcpServers": Row({"files": {"command": "npx"}}, CONFIGURE, BOTH),
    "agentProviders": Row(PROVIDERS["agentProviders"], CONFIGURE, BOTH),
    "agentFallbackModels": Row([{"provider": "p", "model": "m"}], CONFIGURE, BOTH, PROVIDERS),
    "agentAuxiliaryModels": Row({"vision": {"provider": "p", "model": "m"}}, CONFIGURE, BOTH, PROVIDERS),
    "agentTelegramToken": Row("123456789:" + "A" * 35, CONFIGURE, BOTH),
    "agentTelegramAllowedUsers": Row(["1"], CONFIGURE, BOTH),
    "agentDiscordToken": Row("M" * 60, CONFIGURE, BOTH),
    "agentDiscordAllowedUsers": Row(["1"], CONFIGURE, BOTH),
    "agentSlackBotToken": Row("xoxb-2", CONFIGURE, BOTH, SLACK),
    "agentSlackAppToken": Row("xapp-2", CONFIGURE, BOTH, SLACK),
    "agentSlackAllowedUsers": Row(["U0123ABC"], CONFIGURE, BOTH),
    # Whether auth.json is really replaced, only the guest can know.
    "agentAuthFileOverwrite": Row(True, CONFIGURE, BOTH, AUTH),
    # What one of them reads.
    "agentExtraArgs": Row(["-v"], CONFIGURE, {GATEWAY}),
    "agentRestart": Row("on-failure", CONFIGURE, {GATEWAY}),
    "agentRestartSeconds": Row(9, CONFIGURE, {GATEWAY}),
    "agentDashboardHost": Row("0.0.0.0", CONFIGURE, {DASHBOARD}, {**OPEN, "agentDashboardHost": "127.0.0.1"}),  # noqa: S104
    "agentDashboardPort": Row(9200, CONFIGURE, {DASHBOARD}),
    "agentDashboardUser": Row("other", CONFIGURE, {DASHBOARD}, OPEN),
    "agentDashboardPassword": Row("another horse battery", CONFIGURE, {DASHBOARD}, OPEN),
    "agentDashboardPasswordHash": Row(HASH, CONFIGURE, {DASHBOARD}, OPEN, {"agentDashboardPassword": ""}),
    "agentDashboardOidcIssuer": Row("https://id.example.net", CONFIGURE, {DASHBOARD}, OIDC),
    "agentDashboardOidcClientId": Row("other", CONFIGURE, {DASHBOARD}, OIDC),
    "agentDashboardOidcClientSecret": Row("another-secret", CONFIGURE, {DASHBOARD}, OIDC),
    "agentDashboardOidcScopes": Row("openid email", CONFIGURE, {DASHBOARD}, OIDC),
    "agentDashboardPublicUrl": Row("https://agent.example.org", CONFIGURE, {DASHBOARD}, OIDC),
    # Versions after 0.19.0 read it from config.yaml, in its dashboard part.
    "agentDashboardTrustedProxies": Row(["192.0.2.6"], CONFIGURE, {DASHBOARD}, OIDC),
    # What none reads at its start; the dashboard ends, the gateway does not notice.
    "agentDashboard": Row(False, CONFIGURE, set(), {"agentWebUi": "build"}),
    "agentDocuments": Row({"SOUL.md": "Be kind."}, CONFIGURE, set()),
    "agentAuthFile": Row("FILE:two.json", CONFIGURE, set(), AUTH),
    "agentBackupTimes": Row(["04:00"], CONFIGURE, set()),
    "agentScheduledBackupsKept": Row(9, CONFIGURE, set()),
    "agentBackupsKept": Row(9, CONFIGURE, set()),
    "agentBackupHome": Row(False, CONFIGURE, set()),
    # The second copy: root's own service, which nothing restarts for. Without a copy the rest has no effect.
    "agentCopyRepository": Row(REST["agentCopyRepository"], COPIES, set(), {}, {"agentCopyPassword": "p" * 24}),
    "agentCopyPassword": Row("q" * 24, CONFIGURE, set(), REST),
    "agentCopyAccessKey": Row("other", CONFIGURE, set(), REST),
    "agentCopySecretKey": Row("other", CONFIGURE, set(), REST),
    "agentCopyRegion": Row("eu-central-1", CONFIGURE, set(), REST),
    "agentCopySshKey": Row(SSH_KEYS[1], CONFIGURE, set(), SFTP),
    "agentCopySshHostKey": Row(HOST_KEYS[1], CONFIGURE, set(), SFTP),
    "agentCopyKeptLast": Row(9, CONFIGURE, set(), REST),
    "agentCopyKeptDays": Row(9, CONFIGURE, set(), REST),
    "agentCopyKeptWeeks": Row(9, CONFIGURE, set(), REST),
    "agentCopyKeptMonths": Row(9, CONFIGURE, set(), REST),
    "agentCopyCheckDays": Row(9, CONFIGURE, set(), REST),
    # In Docker mode: another container, or not even a restart.
    "agentImage": Row(OTHER_IMAGE, UPDATE, {"another container"}, DOCKER),
    "agentBackend": Row("podman", UPDATE, {"another container"}, DOCKER),
    "agentExtraVolumes": Row(["/srv/films:/films:ro"], CONFIGURE, {"another container"}, DOCKER),
    "agentExtraOptions": Row({"cpus": 2}, CONFIGURE, {"another container"}, DOCKER),
    "agentPublishedBindIp": Row("192.0.2.7", CONFIGURE, {"another container"}, DOCKER),
    "agentInsecureRegistries": Row(["192.0.2.8:5000"], {"agent"}, set(), DOCKER),
}


# Another mode is another agent: all of it runs.
KEYS = [key for key in SETTINGS if key.startswith("agent") and key != "agentMode"]


def usual_row(key: str) -> Row:
    """The rule for a setting that has no row: it is in the managed files, which both services read at their start."""
    default = SETTINGS[key].default
    others: dict[type, Any] = {bool: not default, int: default + 1 if type(default) is int else 1, str: "other"}
    annotation = SETTINGS[key].annotation
    choices = [each for each in get_args(annotation) if each != default] if get_origin(annotation) is Literal else []
    return Row(choices[0] if choices else others[type(default)], CONFIGURE, BOTH)


def test_each_row_is_a_settings() -> None:
    assert set(KEYS) >= CAUSES.keys()
    assert SCRYPT_HASH.match(HASH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("declared")
    for name, text in FILES.items():
        (made / name).write_text(text)
    trustme.CA().cert_pem.write_to_path(str(made / "ca.pem"))
    return made


def plans(folder: Path, given: Mapping[str, Any], installed: Mapping[str, Any]) -> dict[str, PhasePlan]:
    text = json.dumps({**MODEL, **given}).replace("FILE:", f"{folder}/")
    return foreseen(cattle(**json.loads(text)), installed)


def carried_out(folder: Path, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the state has of each phase after an `up` with these settings."""
    results = {"directory": "/opt/hermes/v2026.8.16.2-7339f5f1"}
    agent = {"declared": plans(folder, given, {})["agent"].declared, "results": results}
    # As the engine keeps it: through JSON.
    return {
        name: json.loads(json.dumps({"declared": plan.declared, "digest": plan.digest, "results": results}))
        for name, plan in plans(folder, given, agent).items()
    }


@pytest.mark.parametrize("key", KEYS)
def test_what_a_change_causes(key: str, folder: Path) -> None:
    row = CAUSES.get(key) or usual_row(key)
    before = carried_out(folder, row.base)
    told = {
        name: text
        for name, plan in plans(folder, {**row.base, key: row.value, **row.beside}, before["agent"]).items()
        if (text := explain(name, before[name], plan.declared, plan.digest)) is not None
    }
    assert set(told) == row.phases, told
    restarts = "".join(text.partition("; ")[2] for text in told.values()).partition("ends ")[0]
    assert {unit for unit in (*BOTH, "another container") if unit in restarts} == row.restarts, told


@pytest.mark.parametrize("base", [{}, OPEN, OIDC, API, AUTH, REST, DOCKER], ids=str)
def test_without_a_change_nothing_runs(base: Mapping[str, Any], folder: Path) -> None:
    before = carried_out(folder, base)
    for name, plan in plans(folder, base, before["agent"]).items():
        assert explain(name, before[name], plan.declared, plan.digest) is None
