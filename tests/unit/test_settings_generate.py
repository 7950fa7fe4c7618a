"""What is made of the settings' models: Pulumi reads it as the models mean it, and editors know each key."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes.settings.declaration import DeclarationSettings
from settings import generate
from settings.package import COMPONENTS
from settings.read import GROUPS, SECRETS, SETTINGS
from settings.section import Section, own_settings

ROOT = Path(__file__).resolve().parents[2]
CONFIG: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "stack.schema.json").read_text())
PROPERTIES: dict[str, dict[str, Any]] = SCHEMA["properties"]["config"]["properties"]
TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}
ENCRYPTED = {"$ref": "#/definitions/encrypted"}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_default_is_what_the_model_has_and_of_the_type_that_is_declared(key: str) -> None:
    entry = CONFIG[key]
    assert entry["default"] == SETTINGS[key].default
    assert type(entry["default"]) is TYPES[entry["type"]]
    assert entry["description"].endswith(".")
    assert entry["description"].startswith("Secret. ") is (key in SECRETS)
    # The engine wants to know what a list is of.
    assert (entry["type"] == "array") is ("items" in entry)


def test_each_section_is_documented() -> None:
    """A section that no group names would be read, and be in no document."""

    def below(model: type[Section]) -> set[type[Section]]:
        return {model, *(each for one in model.__subclasses__() for each in below(one))}

    listed = {section for group in GROUPS for section in group.sections}
    listed |= {section for one in COMPONENTS.values() for section in one.sections}
    ours = {model for model in below(Section) if not model.__module__.startswith("tests.")}
    assert {model for model in ours if model is not Section and own_settings(model)} == listed


def test_a_secret_is_taken_encrypted_only() -> None:
    for key in SECRETS:
        schema = PROPERTIES[f"hermes-homelab:{key}"]
        plain = [each for each in schema["anyOf"] if each.get("type") == "string" or each.get("items")]
        assert plain == [], key
    tree = PROPERTIES["hermes-homelab:agentSecretEnvironment"]["anyOf"]
    assert tree == [{"type": "object", "additionalProperties": ENCRYPTED}]


def test_the_schema_knows_rules_and_keys_inside_of_a_setting() -> None:
    port, text, encrypted = PROPERTIES["hermes-homelab:agentApiPort"]["anyOf"]
    assert (port["type"], port["minimum"], port["maximum"], encrypted) == ("integer", 1, 65535, ENCRYPTED)
    assert re.fullmatch(text["pattern"], "8642")
    assert PROPERTIES["hermes-homelab:agentMode"]["anyOf"][0]["enum"] == ["bare-metal", "docker", "none"]
    mount = SCHEMA["definitions"]["HostMountSettings"]
    assert set(mount["properties"]) == {"source", "path", "readOnly", "owner"}
    assert mount["additionalProperties"] is False
    # A file is named by its path, whatever it holds.
    assert PROPERTIES["hermes-homelab:agentAuthFile"]["anyOf"][0] == {"type": "string"}
    assert PROPERTIES["hermes-homelab:agentEnvironmentFiles"]["anyOf"][0]["items"] == {"type": "string"}


def test_a_misspelt_key_is_marked_and_a_foreign_one_is_not() -> None:
    config = SCHEMA["properties"]["config"]
    (foreign,) = config["patternProperties"]
    assert config["additionalProperties"] is False
    assert re.search(foreign, "pulumi:tags")
    assert not re.search(foreign, "hermes-homelab:cattleVmdi")


def test_every_definition_that_is_named_is_there() -> None:
    named = set(re.findall(r'"#/definitions/(\w+)"', json.dumps(SCHEMA)))
    assert named == set(SCHEMA["definitions"])


def test_an_editor_finds_the_schema() -> None:
    found = json.loads((ROOT / ".vscode" / "settings.json").read_text())["yaml.schemas"]
    assert found == {"docs/stack.schema.json": "Pulumi.*.yaml"}
    for stack in ("pet", "cattle"):
        first = (ROOT / f"Pulumi.{stack}.yaml").read_text().splitlines()[0]
        assert first == "# yaml-language-server: $schema=docs/stack.schema.json"


def test_what_is_made_is_the_same_when_it_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = DeclarationSettings.model_fields["documents"]
    monkeypatch.setattr(found, "description", "Another text.")
    assert sum(text != file.read_text() for file, text in generate.made().items()) == 4
