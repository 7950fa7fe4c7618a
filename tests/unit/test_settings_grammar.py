"""Whatever a setting takes, each phase can be made of it: no inner layer refuses a value after the settings have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from provisioning.plans import PhasePlan
from proxmox.errors import Faults
from settings.read import SECRETS, SETTINGS
from settings.section import kind
from tests.settings import DOCKER, ENVIRONMENT, MODEL, cattle, faults, foreseen, read
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
READ_BY_CATTLE = [key for key in SETTINGS if not key.startswith("pet") and key != "role"]


def planned(stack: AgentStack) -> dict[str, str]:
    """Every phase's plan, as its resource gets it: through JSON."""
    return {name: PhasePlan.from_json(plan.as_json()).digest for name, plan in foreseen(stack).items()}


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
    ((_, rule, _),) = faults("cattle", **{**DOCKER, "agentImage": image}).values()
    assert "REPOSITORY:TAG@sha256:DIGEST" in rule


@pytest.mark.parametrize("image", [f"hermes:1@{DIGEST}", f"10.0.0.1:5000/h:x_1@{DIGEST}"])
def test_an_image_with_both_is_taken(image: str) -> None:
    agent = cattle(**{**DOCKER, "agentImage": image}).agent
    assert isinstance(agent, DockerAgent)
    assert agent.container.image == image


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
    shown = json.dumps([plan.as_json() for plan in foreseen(cattle(**given)).values()])
    assert words in shown
    assert len(planned(cattle(**given))) == 4


def test_a_home_folder_that_the_environment_names_and_nobody_has_is_a_fault() -> None:
    found = faults("cattle", environment={**ENVIRONMENT, "HERMES_SSH_KEY_FILE": "~nobody-of-that-name/id"})
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
