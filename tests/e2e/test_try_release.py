"""scripts/try-release as a user runs it, on a copy of a home: its verdict, and that nothing is left of it.

Needs root on a machine where the lab can run containers (scripts/lab).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.instance import CHECKOUT
from lab.services.source import SOURCE_CACHE, Source, ensure_source
from pvelab.place import Place
from tests.e2e.phase_guest import needs_root
from trial.__main__ import STATE

pytestmark = needs_root

SETTINGS = {
    "node": "pve",
    "agentDashboard": "false",
    "agentModelUrl": "http://192.0.2.1:4000/v1",
    "agentModel": "mine",
    "agentModelKey": {"secure": "v1:not-to-be-opened"},
    "agentTelegramToken": {"secure": "v1:not-to-be-opened"},
    "agentTelegramAllowedUsers": ["1"],
    "agentSettings": {"timezone": "Europe/Berlin", "no_such_key": {"a": 1}},
}
# Of a stack in Docker mode what is tried is the release, as its home has it; the rest of the course is the same.
IN_DOCKER = {"agentMode": "docker", "agentImage": f"example.org/hermes-agent:v1@sha256:{'0' * 64}"}
THEIRS = "# mine\ndelegation: {max_iterations: 50}\nmy_own: 1\n"


@pytest.fixture(scope="module")
def source() -> Source:
    return ensure_source(SOURCE_CACHE, lambda _: None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A backup of the stack's, as `scripts/agent ssh tar` brings it."""
    backup = tmp_path / "20260101T000000Z-old"
    (backup / "data" / "memories").mkdir(parents=True)
    (backup / "manifest.json").write_text("{}")
    (backup / "data" / "config.yaml").write_text(THEIRS)
    (backup / "data" / "memories" / "MEMORY.md").write_text("the cat is called Miez\n")
    return backup


def begun(source: Source, folder: Path, *more: str) -> subprocess.Popen[str]:
    """The command; its output goes to `folder`/said."""
    settings, over = SETTINGS | IN_DOCKER, ["--from", source.releases[-1].tag, source.releases[-1].commit]
    if source.previous is None:
        settings = SETTINGS | {"agentSource": "pypi", "agentVersion": "0.18.2"}
        over = []
    file = folder / "Pulumi.yaml"
    file.write_text(yaml.safe_dump({"config": {f"hermes-homelab:{key}": value for key, value in settings.items()}}))
    argv = [sys.executable, "-m", "trial", source.newest.tag, source.newest.commit, "--repository", "lab", *over, *more]
    said = (folder / "said").open("w")
    environment = {**os.environ, "PULUMI_OPTION_CONFIG_FILE": str(file), "PYTHONPATH": str(CHECKOUT)}
    with said:
        return subprocess.Popen(argv, cwd=CHECKOUT, env=environment, stdout=said, stderr=said, text=True)


def until_it_says(child: subprocess.Popen[str], folder: Path, words: str) -> None:
    while words not in (folder / "said").read_text():
        with pytest.raises(subprocess.TimeoutExpired):  # it has not ended
            child.wait(timeout=0.2)


def test_a_release_is_tried_on_a_copy_of_a_home_after_a_trial_that_was_killed(
    source: Source, home: Path, tmp_path: Path
) -> None:
    killed = begun(source, tmp_path)
    until_it_says(killed, tmp_path, "packages and account")
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=60)
    assert STATE.exists()

    verdict = tmp_path / "verdict.json"
    child = begun(source, tmp_path, "--backup", str(home), "--json", str(verdict))
    status = child.wait(timeout=900)
    said = (tmp_path / "said").read_text()
    assert status == 0, said[-5000:]
    found: dict[str, Any] = json.loads(verdict.read_text())
    assert found["answer"] is True
    assert f"YES: {source.newest.version} ({source.newest.tag}" in said
    assert found["figures"]["seconds offline"] > 0
    proved, changed = "\n".join(found["proved"]), "\n".join(found["changes"])
    assert "1 memories" in proved
    assert "by the backup from before the update" in proved
    assert "messengers" in "\n".join(found["left_out"])
    assert ("the image: " in "\n".join(found["left_out"])) == (source.previous is not None)
    assert "no_such_key" in said
    if source.kind == "upstream":
        # facts hermes 0.20, 5 and 6
        assert "config.yaml: delegation.max_iterations: 50 -> 250" in changed
        assert "state.db: schema 22 -> 26" in changed
    # The home that was given is what it was, and nothing is left of the trial.
    assert (home / "data" / "config.yaml").read_text() == THEIRS
    assert not STATE.exists()
    place = Place.of(STATE)
    assert not Path("/sys/class/net", place.bridge).exists()
    assert not place.run_dir.exists()
