"""The two settings files are the user's: an update of this program changes neither, and so makes no conflict."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from settings.read import nearest_setting
from tests.repository import git

ROOT = Path(__file__).parents[2]
AS_RELEASED = {
    "Pulumi.pet.yaml": "bd8e170601dcd69cdfa1cfeee5b65c2426b7d4c2ef10014d5ae8880daea92cd8",
    "Pulumi.cattle.yaml": "c9bebe29235fd995e5fd564932e883bbfe4e322d770680f6e5bc920db6b15b76",
}
"""SHA-256 of what version 0.2.0 has: docs/operations.md, "Update this program". Users have edited it since."""


@pytest.mark.parametrize("name", AS_RELEASED)
def test_no_version_changes_a_settings_file(name: str) -> None:
    head = subprocess.run(
        ["git", "show", f"HEAD:{name}"], cwd=ROOT, capture_output=True, check=False, timeout=60
    )  # a checkout that runs the tests may have settings of its own
    content = head.stdout if head.returncode == 0 else (ROOT / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == AS_RELEASED[name]


def test_an_update_makes_no_conflict_with_a_users_settings(tmp_path: Path) -> None:
    """Upstream changes each tracked file of the top level but the two; the user has edited them, and not committed."""
    upstream, user = tmp_path / "upstream", tmp_path / "user"
    upstream.mkdir()
    # Whose the checkout is may be the machine's to say: so with its own configuration of git.
    listed = subprocess.run(
        ["git", "ls-files", "--", ":(glob)*"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    names = [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    assert AS_RELEASED.keys() < set(names)
    for name in names:
        shutil.copyfile(ROOT / name, upstream / name)
    git(upstream, "init", "-q", "-b", "main")
    git(upstream, "add", "--all")
    git(upstream, "commit", "-q", "-m", "a version")
    git(tmp_path, "clone", "-q", str(upstream), str(user))

    edited = {name: f"{(user / name).read_text()}  # edited\n" for name in AS_RELEASED}
    for name, text in edited.items():
        (user / name).write_text(text)
    for name in set(names) - AS_RELEASED.keys():
        with (upstream / name).open("a") as file:
            file.write("\n# the next version\n")
    git(upstream, "commit", "-q", "--all", "-m", "the next version")

    git(user, "pull", "-q", "--ff-only")
    assert git(user, "rev-parse", "HEAD") == git(upstream, "rev-parse", "HEAD")
    assert {name: (user / name).read_text() for name in AS_RELEASED} == edited
    assert git(user, "status", "--short").split() == ["M", "Pulumi.cattle.yaml", "M", "Pulumi.pet.yaml"]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("agentModle", "agentModel"),  # not agentMode, which is as near
        ("cattleVmdi", "cattleVmid"),
        ("agentmodel", "agentModel"),
        ("petVolume", "petVolumes"),
        ("xyzzy", None),
    ],
)
def test_a_misspelt_key_is_told_the_one_that_is_meant(key: str, meant: str | None) -> None:
    assert nearest_setting(key) == meant
