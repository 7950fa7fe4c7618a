"""What scripts/adopt takes out of a stack's file when the passphrase is lost."""

from __future__ import annotations

import pytest
import yaml

from scripts.lib.adopt import how_to_set, in_order, settings_of, without_secrets
from settings.stack import Role

FILE = """\
config:
  hermes-homelab:node: pve
  hermes-homelab:agentModelKey:
    secure: v1:AAAA
  hermes-homelab:agentSecretEnvironment:
    TOKEN:
      secure: v1:BBBB
    OTHER:
      secure: v1:CCCC
  hermes-homelab:petVolumes:
    - {name: hermes, size: 10}
encryptionsalt: v1:DDDD
"""


def test_the_secrets_go_and_all_else_stays() -> None:
    text, lost = without_secrets(FILE)
    assert yaml.safe_load(text) == {
        "config": {"hermes-homelab:node": "pve", "hermes-homelab:petVolumes": [{"name": "hermes", "size": 10}]}
    }
    assert lost == ["agentModelKey", "agentSecretEnvironment.TOKEN", "agentSecretEnvironment.OTHER"]
    assert without_secrets(text) == (text, [])


def test_what_is_in_clear_beside_a_secret_stays() -> None:
    part = "config: {hermes-homelab:a: {one: 1, two: {secure: x}}}"
    assert yaml.safe_load(without_secrets(part)[0]) == {"config": {"hermes-homelab:a": {"one": 1}}}
    assert settings_of(FILE) == {"node": "pve", "petVolumes": [{"name": "hermes", "size": 10}]}


@pytest.mark.parametrize(
    ("path", "options"),
    [("agentModelKey", "--secret agentModelKey"), ("a.B", "--secret --path a.B")],
)
def test_each_secret_has_the_command_that_asks_for_it(path: str, options: str) -> None:
    assert how_to_set("cattle", path) == f"pulumi config set --stack cattle {options}"


def test_a_pet_comes_before_the_cattle_that_mount_its_volumes() -> None:
    assert [(stack, role) for stack, role, _ in in_order(["cattle", "pet"])] == [
        ("pet", Role.PET),
        ("cattle", Role.CATTLE),
    ]
