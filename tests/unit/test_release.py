"""A version: in one place, with its changelog, its tag, and the files of a user that it leaves alone."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from settings.outputs import OUTPUTS
from tests.repository import git

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
THE_USERS = {
    "Pulumi.pet.yaml": "bd8e170601dcd69cdfa1cfeee5b65c2426b7d4c2ef10014d5ae8880daea92cd8",
    "Pulumi.cattle.yaml": "c9bebe29235fd995e5fd564932e883bbfe4e322d770680f6e5bc920db6b15b76",
}
"""The files that a new user edits first, as they are since 0.2.0. A change would meet the user's own in `git pull`."""


def test_no_version_changes_the_files_that_are_the_users() -> None:
    found = {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in THE_USERS}
    assert found == THE_USERS, "give the setting a default in settings/ instead"


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_changelog_begins_with_this_version_and_says_what_an_up_does() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\d+\.\d+\.\d+) - (?:\d{4}-\d\d-\d\d|unreleased)$", text, re.MULTILINE)
    assert versions == sorted(versions, key=numbers, reverse=True)
    assert versions[0] == VERSION
    assert len(versions) == len(re.findall("^## ", text, re.MULTILINE))
    assert "**What `pulumi up` does:**" in text.partition(f"## {VERSION}")[2].partition("\n## ")[0]


def test_no_output_is_promised_since_a_version_to_come() -> None:
    since = {output.since for outputs in OUTPUTS.values() for output in outputs.values()}
    assert max(map(numbers, since)) <= numbers(VERSION)


@pytest.fixture(name="checkout")
def make_checkout(tmp_path: Path) -> Path:
    """A repository with what scripts/release reads."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.3 - 2026-12-01\n\n# not a comment\nNew: a\n\n## 1.2.2 - 2026-11-01\n\nold\n")  # fmt: skip  # noqa: E501
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "x")
    return tmp_path


def release(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    who = {f"GIT_{role}_{what}": "x@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", **who}
    command = [str(checkout / "scripts" / "release"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_tag_has_the_changelog_of_its_version_as_its_text(checkout: Path) -> None:
    assert release(checkout, "--check").returncode == 0
    assert git(checkout, "tag") == ""
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    text = git(checkout, "tag", "-l", "--format=%(contents)", "v1.2.3")
    assert text == "hermes-homelab 1.2.3\n\n# not a comment\nNew: a"
    again = release(checkout)
    assert again.returncode == 1
    assert "v1.2.3 is there already" in again.stderr


def test_no_tag_is_made_of_what_is_not_ready(checkout: Path) -> None:
    (checkout / "more").touch()
    assert "not committed" in release(checkout).stderr
    (checkout / "more").unlink()
    changelog = checkout / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("2026-12-01", "unreleased"))
    assert "it has to be '## 1.2.3 - " in release(checkout).stderr
    assert git(checkout, "tag") == ""


def test_the_configurations_of_editors_and_bots_name_what_is_there() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {hook["language"] for hook in hooks} == {"system"}
    renovate = json.loads((ROOT / "renovate.json").read_text())
    toolchain = (ROOT / "toolchain.toml").read_text()
    found = [
        match["currentValue"]
        for manager in renovate["customManagers"]
        for match in re.finditer(manager["matchStrings"][0].replace("(?<", "(?P<"), toolchain)
    ]
    pins = tomllib.loads(toolchain)
    assert sorted(found) == sorted(pin["version"] for pin in (pins["pulumi"], *pins["plugins"].values()))
    editor = json.loads((ROOT / ".vscode" / "settings.json").read_text())
    assert all((ROOT / schema).exists() for schema in editor["yaml.schemas"])
    container = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    command = json.loads(re.sub(r"^\s*//.*$", "", container, flags=re.MULTILINE))["postCreateCommand"]
    assert (ROOT / command.split()[0]).exists()
