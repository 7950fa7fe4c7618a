"""Pulumi.shared.yaml: what several stacks share. Each stack's own file wins; what can't be shared is refused."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes import drill
from applications.hermes.settings import AgentStack
from proxmox.errors import Faults
from scripts.lib import permissions
from settings.read import SETTINGS, read_stack
from settings.section import kind
from settings.shared import NAME, completed, correct_in, shared_config
from tests.repository import git
from tests.settings import ENVIRONMENT, MODEL
from tests.tables import cases

PROJECT = "hermes-homelab"
ROOT = Path(__file__).parents[2]


def from_engine(own: dict[str, Any]) -> dict[str, Any]:
    """What the engine hands over: every key, as text, with the project's default where the stack's file has none."""
    found = {}
    for key, setting in SETTINGS.items():
        value = own.get(key, setting.default)
        found[key] = value if isinstance(value, str) else json.dumps(value)
    return found


def with_files(folder: Path, shared: object, **own: Any) -> AgentStack:
    """A cattle as the program reads it."""
    (folder / NAME).write_text(shared if isinstance(shared, str) else yaml.safe_dump({"config": shared}))
    found = shared_config(folder / "Pulumi.cattle.yaml", PROJECT)
    given = completed(from_engine({**MODEL, **own}), own.keys(), found, PROJECT)
    stack = read_stack("cattle", given, ENVIRONMENT, remedy=correct_in("cattle"))
    assert isinstance(stack, AgentStack)
    return stack


def test_what_is_shared_holds_where_a_stack_says_nothing(tmp_path: Path) -> None:
    shared = {
        f"{PROJECT}:template": "",
        "node": "pve2",  # as the CLI takes it
        f"{PROJECT}:cattleMemory": 3000,
        f"{PROJECT}:cattleTags": ["shared"],
        f"{PROJECT}:cattleStartOnBoot": False,
        f"{PROJECT}:cattleCores": 7,
        "pulumi:tags": {"team": "home"},
    }
    found = with_files(tmp_path, shared, cattleCores=3)
    assert (found.template, found.connection.node) == ("", "pve2")
    assert (found.cattle.memory, found.cattle.tags, found.cattle.start_on_boot) == (3000, ["shared"], False)
    assert found.cattle.cores == 3, "the stack's own file wins"


@pytest.mark.parametrize("value", [20, "20"])
def test_a_stack_s_own_value_wins_where_it_is_the_default_too(tmp_path: Path, value: object) -> None:
    assert SETTINGS["cattleDisk"].default == 20
    assert with_files(tmp_path, {"cattleDisk": 50}, cattleDisk=value).cattle.disk == 20
    assert with_files(tmp_path, {"cattleDisk": 50}).cattle.disk == 50


@pytest.mark.parametrize("key", sorted(key for key, each in SETTINGS.items() if kind(each) != "string"))
def test_a_value_that_the_cli_was_given_another_way_wins(key: str) -> None:
    """By --config-file, whose file the program does not know: what is not the default was set."""
    shared = {f"{PROJECT}:{key}": "shared"}
    assert completed(from_engine({}), (), shared, PROJECT)[key] == "shared"
    other = {"integer": 77, "boolean": not SETTINGS[key].default, "array": ["x"], "object": {"x": 1}}[
        kind(SETTINGS[key])
    ]
    assert completed(from_engine({key: other}), (), shared, PROJECT)[key] == json.dumps(other)


def test_the_environment_wins_over_all(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("config: {node: shared}\n")
    given = completed(from_engine(MODEL), (), shared_config(tmp_path / "Pulumi.cattle.yaml", PROJECT), PROJECT)
    assert read_stack("cattle", given, {**ENVIRONMENT, "PROXMOX_VE_NODE": "mine"}).connection.node == "mine"


@pytest.mark.parametrize(("table", "case"), cases("settings.yaml", "shared", keys="given key rule remedy hidden"))
def test_what_can_not_be_shared_is_refused(table: str, case: dict[str, Any], tmp_path: Path) -> None:
    del table
    with pytest.raises(Faults) as refused:
        with_files(tmp_path, case["given"])
    [fault] = refused.value.faults
    assert fault.key == case["key"]
    assert case.get("rule", "") in fault.rule
    assert case.get("remedy", "") in fault.remedy
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("config:\n\tnode: canary\n", "(line 2)"),
        ("config: {a: b: c}", "(line 1)"),
        ("- canary\n", ""),
        ("config: canary\n", ""),
    ],
)
def test_a_file_that_can_not_be_read_is_a_fault_that_shows_nothing_of_it(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(Faults) as refused:
        with_files(tmp_path, text)
    assert f"can't be read as a stack's settings {line}".strip() in str(refused.value)
    assert str(tmp_path / NAME) in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "config:\n"])
def test_an_empty_file_shares_nothing(tmp_path: Path, text: str) -> None:
    assert with_files(tmp_path, text) == with_files(tmp_path, {})


def test_no_version_of_this_program_has_such_a_file() -> None:
    assert git(ROOT, "ls-files", "--", NAME) == ""


# ---- who else reads the settings ------------------------------------------------------------------------------------


def test_a_drill_takes_nothing_out_of_it_that_leads_out_of_the_cattle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = {**MODEL, "cattleHostMounts": [{"source": "/srv/x", "path": "/x"}], "cattleMemory": 3000}
    (tmp_path / NAME).write_text(yaml.safe_dump({"config": shared}))
    (tmp_path / "Pulumi.cattle.yaml").write_text("config:\n  hermes-homelab:cattleCores: 3\n")
    monkeypatch.setattr(drill, "ROOT", tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PULUMI_OPTION_CONFIG_FILE", raising=False)
    content, real = drill.real_settings("cattle")
    made = drill.settings_of(content, real, vmid=200, address=None, gigabytes=1)["config"]
    assert (made[f"{PROJECT}:cattleMemory"], made[f"{PROJECT}:cattleCores"]) == (3000, 3)
    assert made[f"{PROJECT}:agentModel"] == MODEL["agentModel"]
    assert f"{PROJECT}:cattleHostMounts" not in made


def test_the_permissions_are_those_of_what_is_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / NAME).write_text(yaml.safe_dump({"config": {"cattleBridge": "vmbr7"}}))
    (tmp_path / "Pulumi.cattle.yaml").write_text("config: {}\n")
    monkeypatch.setattr(permissions, "ROOT", tmp_path)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda _: argparse.Namespace(token="a@pve!bc"))
    assert permissions.main() == 0
    said = capsys.readouterr().out
    assert "for the stacks cattle;" in said
    assert "/sdn/zones/localnetwork/vmbr7" in said
