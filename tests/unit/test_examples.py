"""The examples that are files to copy: what they call is there, and what they print is what a reader needs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from proxmox.connection import ENVIRONMENT

ROOT = Path(__file__).parents[2]
PULL_REQUEST = ROOT / "examples" / "pull-request"
WORKFLOW = PULL_REQUEST / "preview.yml"
Comment = Callable[..., tuple[int, str]]
GOOD = """Previewing update (pet):
~ thing
  ~ size: 10 => 20

Resources:
    ~ 1 to update
    6 unchanged
"""
PULUMI = """#!/bin/sh
for word; do [ "$last" = --stack ] && stack=$word; last=$word; done
cat "$(dirname "$0")/$stack"
[ "$stack" != broken ]
"""


@pytest.fixture(name="comment")
def fixture_comment(tmp_path: Path) -> Comment:
    (tmp_path / "pulumi").write_text(PULUMI)
    (tmp_path / "pulumi").chmod(0o755)

    def comment(*stacks: str, **texts: str) -> tuple[int, str]:
        for stack, text in texts.items():
            (tmp_path / stack).write_text(text)
        environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        command = [str(PULL_REQUEST / "preview.sh"), *stacks]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr == ""
        return done.returncode, done.stdout

    return comment


def test_a_comment_says_how_much_changes_and_holds_the_preview(comment: Comment) -> None:
    status, text = comment(pet=GOOD, cattle="Resources:\n    13 unchanged\n")
    assert status == 0
    assert re.findall(r"^### .*$", text, re.MULTILINE) == [
        "### pet: ~ 1 to update, 6 unchanged",
        "### cattle: 13 unchanged",
    ]
    assert "  ~ size: 10 => 20\n" in text


def test_a_preview_that_fails_is_told_and_the_others_are_still_made(comment: Comment) -> None:
    status, text = comment("broken", "pet", broken="error: the token lacks VM.Audit\n", pet=GOOD)
    assert status == 1
    assert "### broken: **the preview failed**" in text
    assert "the token lacks VM.Audit" in text
    assert "### pet: ~ 1 to update" in text


def test_a_long_preview_is_cut_to_what_a_comment_can_hold(comment: Comment) -> None:
    status, text = comment("pet", pet=f"{'x' * 99999}\n{GOOD}")
    assert status == 0
    assert len(text) < 65536
    assert "... cut here" in text
    assert "### pet: ~ 1 to update" in text


def test_the_workflow_calls_what_is_there_and_never_runs_a_fork() -> None:
    workflow = yaml.safe_load(WORKFLOW.read_text())
    job = workflow["jobs"]["preview"]
    assert job["if"] == "github.event.pull_request.head.repo.full_name == github.repository"
    assert "self-hosted" in job["runs-on"]
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "read", "pull-requests": "write"}
    called = re.findall(r"(?:scripts|examples)/[\w./-]+", "\n".join(step.get("run", "") for step in job["steps"]))
    assert len(called) == 2
    assert all(os.access(ROOT / path, os.X_OK) for path in called)
    [preview] = [step for step in job["steps"] if step.get("name") == "preview"]
    proxmox = {name for name in {**job["env"], **preview["env"]} if name.startswith("PROXMOX_VE_")}
    assert proxmox <= set(ENVIRONMENT.values())


def test_no_code_of_a_branch_has_secrets_before_a_reviewer_or_leaves_something_for_the_next() -> None:
    """A collaborator's branch that prints the token, or leaves another venv in .cache for the next job to run."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["preview"]
    assert job["environment"] == "preview"
    steps = {step.get("name", step.get("uses", step.get("run"))): step for step in job["steps"]}
    with_secrets = [name for name, step in steps.items() if "secrets." in str(step)]
    assert with_secrets == ["preview"]
    assert "secrets." not in str(job["env"])
    assert ["GH_TOKEN" in step.get("env", {}) for step in job["steps"]] == [False, False, False, True]
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
        # What an event holds is no part of a script.
        assert "${{" not in step.get("run", "")
    checkout = job["steps"][0]["with"]
    assert checkout == {"persist-credentials": False, "clean": True}
    assert "cache" not in {step.get("uses", "").partition("@")[0].rpartition("/")[2] for step in job["steps"]}
