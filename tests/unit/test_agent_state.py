"""What the last step of `up` asks the guest, as a shell there carries it out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from applications.hermes.application import STATE_OF_CONTAINER, STATE_OF_SERVICE, warnings_of
from applications.hermes.guest.backend import ENGINE
from tests.settings import cattle


def ask(command: str, tmp_path: Path, state: str) -> subprocess.CompletedProcess[str]:
    """With a systemctl and an engine that know this state only; systemctl ends with 3 where it is not active."""
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho {state}\n[ {state} = active ] || exit 3\n")
    tool.chmod(0o755)
    asked = command.replace("$(systemctl", f"$({tool}").replace(ENGINE, str(tool), 1)
    return subprocess.run(["sh", "-c", asked], capture_output=True, text=True, timeout=60, check=False)


def test_a_running_agent_is_told_by_its_state(tmp_path: Path) -> None:
    done = ask(STATE_OF_SERVICE, tmp_path, "active")
    assert (done.returncode, done.stdout, done.stderr) == (0, "active\n", "")
    done = ask(STATE_OF_CONTAINER, tmp_path, "running")
    assert (done.returncode, done.stdout, done.stderr) == (0, "running\n", "")


@pytest.mark.parametrize(
    ("command", "state", "remedy"),
    [
        (STATE_OF_SERVICE, "inactive", "scripts/agent ssh systemctl start hermes-gateway"),
        (STATE_OF_SERVICE, "failed", "scripts/agent logs"),
        (STATE_OF_CONTAINER, "exited", "scripts/agent ssh systemctl start hermes-container"),
    ],
)
def test_a_stopped_agent_is_told_with_what_to_do(tmp_path: Path, command: str, state: str, remedy: str) -> None:
    done = ask(command, tmp_path, state)
    assert done.returncode == 1
    assert f"it is {state}" in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize(("source", "warned"), [("pypi", True), ("git", False)])
def test_what_upstream_gave_up_is_warned_of(source: str, warned: bool) -> None:
    assert any("it ends at 0.19.0" in text for text in warnings_of(cattle(agentSource=source))) is warned
