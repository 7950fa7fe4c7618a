"""Whatever a setting takes, each phase can be made of it: no inner layer refuses a value after the settings have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from components.agent import foreseen
from components.phase import inputs_as_json, plan_of
from proxmox.errors import Faults
from settings.agent import DockerAgent
from settings.section import kind
from settings.stack import SECRETS, SETTINGS, AgentStack
from tests.settings import ENVIRONMENT, MODEL, cattle, faults, read
from tests.unit.test_causes import CAUSES, FILES

NASTY: list[Any] = [
    "",
    " ",
    "x",
    "X",
    "x y",
    "x/y",
    "/x",
    "/x/y",
    "/home/hermes/x y",
    "/home/hermes/ü",
    "~",
    "~nobody-there/x",
    "-x",
    "it's",
    'a"b',
    "a${b}",
    "a\\b",
    "a\nb",
    "a\0b",
    "ü",
    "*",
    "..",
    "a..b",
    "0",
    "1",
    "-1",
    "65536",
    "1e9",
    "true",
    "git@github.com:me/x.git",
    "https://me:token@example.org/x.git",
    "ssh://git@example.org/x.git",
    "file:///srv/x.git",
    "http://me:pw@192.0.2.1/v1",
    "http://192.0.2.1/v1/",
    "https://[2001:db8::1]/v1",
    "release/v1",
    "v1.lock",
    "z.ai",
    "custom:mine",
    "1.2.3+local",
    "v1",
    "::1",
    "0.0.0.0",  # noqa: S104
    "192.0.2.1",
    "192.0.2.1/24",
    "localhost",
    "a" * 300,
    "a" * 32,
    "sk-'x'-0123456789012345678901234567",
]
NASTY_TREES: list[Any] = [
    [],
    {},
    [""],
    ["x y"],
    ["a\nb"],
    [1],
    [None],
    [[]],
    [{}],
    {"x": 1},
    {"X": "it's"},
    {"x y": "z"},
    {"": ""},
    {"x": None},
    {"x": {}},
    {"x": [1, {"y": "z"}]},
    {"x": "a\nb"},
    {"A_NAME": "${B}"},
    {"A_NAME": "plain"},
    ["/srv/a b:/x"],
    ["/srv/x:/etc/x"],
    ["/srv/x:/home/hermes"],
]
DOCKER: dict[str, Any] = {
    "agentMode": "docker",
    "agentDashboard": False,
    "agentImage": "nousresearch/hermes-agent:v1@sha256:" + "0" * 64,
}
READ_BY_CATTLE = [key for key in SETTINGS if not key.startswith("pet") and key != "role"]


def planned(stack: AgentStack) -> dict[str, str]:
    """Every phase's plan, made as the engine has it made: through JSON."""
    phases = foreseen(stack, {})
    return {name: plan_of(phase, inputs_as_json(inputs)).digest for name, (phase, inputs) in phases.items()}


@pytest.mark.parametrize("key", READ_BY_CATTLE)
@pytest.mark.parametrize("base", [{}, DOCKER], ids=["bare-metal", "docker"])
def test_a_value_is_a_fault_of_the_settings_or_no_fault_at_all(key: str, base: dict[str, Any]) -> None:
    trees = kind(SETTINGS[key]) in ("array", "object")
    taken = []
    for value in NASTY_TREES if trees else NASTY:
        try:
            taken.append(read("cattle", **{**MODEL, **base, key: value}))
        except Faults as error:
            without = [(fault, value) for fault in error.faults if not fault.rule or not fault.remedy]
            shown = [
                fault for fault in error.faults if key in SECRETS and len(str(value)) > 4 and str(value) in str(fault)
            ]
            if without or shown:
                raise AssertionError(without or shown) from None
    for stack in taken[-2:]:
        assert not isinstance(stack, AgentStack) or len(planned(stack)) == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("agentRepository", "git@github.com:me/x.git"),
        ("agentRepository", "https://me:token@example.org/x.git"),
        ("agentTag", "release//v1"),
        ("agentTag", "--upload-pack=x"),
        ("agentModelUrl", "http://me:pw@192.0.2.1/v1"),
        ("agentModelKey", "it's"),
        ("agentModelKey", "a${b}"),
        ("cattleMountPath", "/home/hermes data"),
        ("cattleMountPath", "/home/hérmes"),
        ("agentDashboardHost", "x --insecure"),
        ("sshPrivateKeyFile", "~nobody-of-that-name/id"),
        ("nodeSshKeyFile", "~nobody-of-that-name/id"),
        ("agentCaFile", "~nobody-of-that-name/ca.pem"),
        ("agentConfigFile", "~nobody-of-that-name/config.yaml"),
        ("agentAuthFile", "~nobody-of-that-name/auth.json"),
        ("agentEnvironmentFiles", ["~nobody-of-that-name/.env"]),
        ("agentDocuments", {"SOUL.md": {"file": "~nobody-of-that-name/x"}}),
        ("sshPrivateKeyFile", ""),
    ],
)
def test_what_an_inner_layer_would_refuse_is_a_fault_of_its_key(key: str, value: Any) -> None:
    given = {"nodeSshHostKey": ""} if key != "nodeSshKeyFile" else {"nodeSshHostKey": HOST_KEY}
    assert list(faults("cattle", **{**MODEL, **given, key: value})) == [key]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("agentUid", 0, "greater than or equal to 1000"),
        ("agentExtraPackages", ["ffmpeg; reboot"], "names of Debian packages"),
        ("agentExtraPackages", ["--allow-downgrades"], "names of Debian packages"),
        ("agentRepository", "ext::sh -c reboot", "without user or password"),
        ("agentExtraPythonPackages", ["httpx"], "package with a version"),
        ("agentExtraPythonPackages", ["--index-url==1"], "package with a version"),
        ("agentModelUrl", "ftp://x", "http or https"),
        ("agentEnvironment", {"1A": "x"}, "environment variable name"),
        ("agentEnvironment", {"A": "x\ny"}, "line break"),
        ("agentEnvironment", {"A": " x"}, "blank or a quote"),
        ("agentEnvironment", {"A": "it's"}, "read it in two ways"),
        ("agentEnvironment", {"A": "${B}"}, "read it in two ways"),
        ("agentEnvironment", {"API_SERVER_KEY": "x"}, "set by this program"),
        ("agentEnvironment", {"CUSTOM_BASE_URL": "x"}, "set by this program"),
    ],
)
def test_what_the_agent_or_the_guest_would_read_otherwise_is_refused(key: str, value: Any, words: str) -> None:
    ((_, rule, remedy),) = faults("cattle", **{**MODEL, key: value}).values()
    assert words in rule
    assert remedy


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "image",
    [
        "hermes-agent",
        "nousresearch/hermes-agent:latest",
        f"nousresearch/hermes-agent@{DIGEST}",
        f"nousresearch/hermes-agent:v1@{DIGEST[:-1]}",
        f"nousresearch/hermes-agent:v1@{DIGEST.replace('sha256', 'sha512')}",
        f"nousresearch/Hermes:v1@{DIGEST}",
        f"-x:v1@{DIGEST}",
    ],
)
def test_an_image_without_tag_and_digest_is_refused(image: str) -> None:
    ((_, rule, _),) = faults("cattle", **MODEL, **{**DOCKER, "agentImage": image}).values()
    assert "REPOSITORY:TAG@sha256:DIGEST" in rule


@pytest.mark.parametrize("image", [f"hermes:1@{DIGEST}", f"10.0.0.1:5000/h:x_1@{DIGEST}"])
def test_an_image_with_both_is_taken(image: str) -> None:
    agent = cattle(**{**DOCKER, "agentImage": image}).agent
    assert isinstance(agent, DockerAgent)
    assert agent.container.image == image


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/data", "HOST:CONTAINER"),
        ("/data:/data:rx", "HOST:CONTAINER"),
        ("data:/data", "absolute path"),
        ("/a:/../etc", "absolute path"),
        ("/a:/opt/hermes/x", "belongs to the image"),
        ("/a:/etc/hermes", "belongs to the image"),
        ("/a:/opt/data", "home is mounted"),
        ("/a:/home/hermes", "home is mounted"),
    ],
)
def test_a_bad_volume_is_refused(text: str, words: str) -> None:
    ((_, rule, _),) = faults("cattle", **MODEL, **DOCKER, agentExtraVolumes=[text]).values()
    assert words in rule


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": "1000"}, "start as root"),
        ({"init": True}, "process 1"),
        ({"entrypoint": "sh"}, "process 1"),
        ({"privileged": True}, "own the guest"),
        ({"volumes": []}, "agentExtraVolumes"),
        ({"cpu": 1}, "none of the supported keys"),
        ({"cpus": True}, "wrong type"),
        ({"devices": "/dev/dri"}, "wrong type"),
        ({"environment": {"API_KEY": "x"}}, "looks like a secret"),
        ({"environment": {"A B": "x"}}, "names of variables"),
        ({"environment": {"HERMES_UID": "0"}}, "stack's own"),
        ({"environment": {"PUID": "0"}}, "stack's own"),
        ({"environment": {"PATH": "/opt/data/bin:/usr/bin"}}, "stack's own"),
        ({"environment": {"HERMES_HOME": "/data"}}, "stack's own"),
        ({"environment": {"HERMES_DASHBOARD_HOST": "x"}}, "stack's own"),
    ],
)
def test_an_option_that_would_break_something_is_refused(options: dict[str, Any], words: str) -> None:
    ((_, rule, _),) = faults("cattle", **MODEL, **DOCKER, agentExtraOptions=options).values()
    assert words in rule


HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"agentTag": "release/v1"}, "release/v1"),
        ({"agentModelProvider": "OpenRouter", "agentModelUrl": ""}, "openrouter"),
        ({"agentModelProvider": "z.ai", "agentModelUrl": ""}, "z.ai"),
        ({"agentVersion": "1.2.3+local"}, "1.2.3+local"),
    ],
)
def test_what_git_and_hermes_take_is_taken(given: dict[str, Any], words: str) -> None:
    phases = foreseen(cattle(**given), {})
    shown = json.dumps([inputs_as_json(inputs) for _, inputs in phases.values()])
    assert words in shown
    assert len(planned(cattle(**given))) == 4


def test_a_home_folder_that_the_environment_names_and_nobody_has_is_a_fault() -> None:
    found = faults("cattle", **MODEL, environment={**ENVIRONMENT, "HERMES_SSH_KEY_FILE": "~nobody-of-that-name/id"})
    assert list(found) == ["sshPrivateKeyFile"]


def test_the_order_in_which_faults_stand_decides_nothing(tmp_path: Path) -> None:
    """Each setting's usual other value is still taken, or a fault of another setting, while one setting is wrong."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    for key, row in CAUSES.items():
        given = {**MODEL, **row.base, key: row.value, **row.beside}
        found = json.loads(json.dumps(given).replace("FILE:", f"{tmp_path}/"))
        assert list(faults("cattle", **found, cattleVmid=1)) == ["cattleVmid"], key
