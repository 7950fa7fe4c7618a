"""The examples that are files to copy: what they call is there, and what they may do is as little as can be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxmox.connection import ENVIRONMENT
from tests.repository import git

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / "examples" / "pull-request" / "preview.yml"
FORGEJO = GITHUB.with_name("preview.forgejo.yml")


def job_of(file: Path) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]["preview"]
    return job


@pytest.mark.parametrize("file", [GITHUB, FORGEJO], ids=lambda file: file.name)
def test_a_workflow_calls_what_is_there_and_never_runs_a_fork(file: Path) -> None:
    workflow, job = yaml.safe_load(file.read_text()), job_of(file)
    assert job["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    assert "homelab" in job["runs-on"]
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
    called = re.findall(r"(?:scripts|examples)/[\w./-]+", "\n".join(step.get("run", "") for step in job["steps"]))
    assert called == ["scripts/setup", "scripts/preview", "scripts/preview"]
    assert all(os.access(ROOT / path, os.X_OK) for path in called)
    [preview] = [step for step in job["steps"] if step.get("name") == "preview"]
    proxmox = {name for name in {**job["env"], **preview["env"]} if name.startswith("PROXMOX_VE_")}
    assert proxmox <= set(ENVIRONMENT.values())


def found_by(*argv: str, cwd: Path) -> str:
    """What a checker says of the workflows, none of which it may find fault with."""
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_zizmor_finds_nothing_and_would_find_something(tmp_path: Path) -> None:
    argv = [str(Path(sys.executable).with_name("zizmor")), "--offline", "--persona", "pedantic", "--no-config"]
    assert "No findings to report" in found_by(*argv, str(GITHUB), str(FORGEJO), cwd=tmp_path)
    bad = tmp_path / "bad.yml"
    bad.write_text(
        GITHUB.read_text().replace('cat "$RUNNER_TEMP', 'echo ${{ github.event.pull_request.title }} "$RUNNER')
    )
    with pytest.raises(AssertionError, match="template-injection"):
        found_by(*argv, str(bad), cwd=tmp_path)


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="PyPI has no actionlint that brings its program along")
def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    shutil.copy(GITHUB.with_name("actionlint.yaml"), folder.parent)
    for file in (GITHUB, FORGEJO):
        shutil.copy(file, folder)
    git(tmp_path, "init", "-q")
    found_by("actionlint", "-no-color", cwd=tmp_path)


def test_on_github_no_code_of_a_branch_has_secrets_before_a_reviewer() -> None:
    """A collaborator's branch that prints the token."""
    assert job_of(GITHUB)["environment"] == "preview"


@pytest.mark.parametrize("file", [GITHUB, FORGEJO], ids=lambda file: file.name)
def test_one_step_has_the_secrets_and_no_branch_leaves_something_for_the_next(file: Path) -> None:
    """A collaborator's branch that leaves another venv in .cache for the next job to run."""
    job = job_of(file)
    steps = {step.get("name", step.get("uses", step.get("run"))): step for step in job["steps"]}
    with_secrets = [name for name, step in steps.items() if "secrets." in str(step)]
    assert with_secrets == ["preview"]
    assert "secrets." not in str(job["env"])
    assert ["GITHUB_TOKEN" in step.get("env", {}) for step in job["steps"]] == [False, False, False, True]
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        # What an event holds is no part of a script.
        assert "${{" not in step.get("run", "")
    checkout = job["steps"][0]["with"]
    assert checkout == {"persist-credentials": False, "clean": True}
    assert "cache" not in {step.get("uses", "").partition("@")[0].rpartition("/")[2] for step in job["steps"]}
