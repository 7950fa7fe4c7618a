"""Upstream's installer, lines that fall silent, leftovers and full disks: the phases in a real container.

The tests tell one story, in this order: each finds the container as the one before has left it.
"""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
from pathlib import Path

import pytest

from provisioning import BaselineInputs, PhaseFailed, phases, render_baseline
from provisioning.ssh import connect
from tests.e2e.phase_guest import Guest, needs_root

pytestmark = needs_root


# ---- upstream's own installer ----------------------------------------------------------------------------------------


def test_upstreams_installer_ends_like_every_other_source(guest: Guest) -> None:
    guest.run(render_baseline(BaselineInputs()))
    outputs = guest.run(guest.agent("installer"))
    directory = f"/opt/hermes/{guest.agent_git_name}-installer"
    assert outputs["directory"] == directory
    assert (outputs["version"], outputs["commit"]) == ("0.19.0", guest.source.commit)
    script = subprocess.run(
        [
            "git",
            "--git-dir",
            str(guest.source.repository),
            "show",
            f"{guest.source.commit}:hermes_cli/scripts/install.sh",
        ],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    assert outputs["installer_sha256"] == hashlib.sha256(script).hexdigest()
    # Root's, for everyone to read, with a Python that is not in anybody's home.
    assert guest.shell(f"find {directory}/ ! -user root -o -perm /022 ! -type l | head").strip() == ""
    assert guest.shell(f"find {directory}/ ! -perm -o=r ! -type l | head").strip() == ""
    assert guest.shell(f"readlink -f {directory}/venv/bin/python").startswith("/usr/bin/python3")
    assert guest.shell(f"find {directory}/ -type l -lname '*/.building/*' | head").strip() == ""
    # Nothing of it went anywhere else: no home, no launcher, no scratch folder.
    assert guest.shell("ls -A /home/hermes").split() == [".hermes", "lost+found"]
    assert guest.shell("ls -Ad /var/tmp/hermes-build.* /usr/local/bin/* /root/.hermes 2>/dev/null || true") == ""
    guest.run(guest.configure())
    status, _, err = guest.verify()
    assert status == 0, err


HANGING_INSTALLER = """#!/bin/bash
case "$*" in
*--manifest*) echo '{"stages":[{"name":"repository"},{"name":"venv"},{"name":"python-deps"}]}'; exit;;
esac
(: </dev/tty) 2>/dev/null && echo "there is a terminal"
read -r answer && echo "there is an answer: $answer"
echo "asked in vain as $(id -un) for $HERMES_HOME"
sleep 1000 &
wait
"""


def repository_with_installer(guest: Guest, folder: Path, script: str) -> dict[str, str]:
    """A repository in the container, with nothing in it but an installer; answers what the agent phase wants of it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "install.sh").write_text(script)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "installer")
    git("tag", "v-installer")
    packed = subprocess.run(
        ["tar", "-c", "-C", str(folder), ".git"], check=True, capture_output=True, timeout=60
    ).stdout
    with contextlib.closing(connect(guest.target())) as connection:
        unpack = "rm -rf /root/repository && mkdir /root/repository && tar -x --no-same-owner -C /root/repository"
        assert connection.run(unpack, stdin=packed, timeout_s=60).status == 0
    return {"git_url": "file:///root/repository", "git_tag": "v-installer", "git_commit": git("rev-parse", "HEAD")}


def test_an_installer_that_asks_or_hangs_is_ended_by_its_own_deadline(
    guest: Guest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases, "INSTALLER_SECONDS", 3)
    before = guest.shell("readlink /opt/hermes/current")
    with pytest.raises(PhaseFailed) as late:
        guest.run(guest.agent("installer", **repository_with_installer(guest, tmp_path / "hanging", HANGING_INSTALLER)))
    assert "install.sh did not end within 3 s; it was ended in its stage repository" in str(late.value)
    assert "asked in vain as nobody for /var/tmp/hermes-build." in late.value.log_tail
    assert "there is" not in late.value.log_tail
    assert guest.shell("pgrep --euid nobody || true") == ""
    assert guest.shell("readlink /opt/hermes/current") == before
    assert guest.shell("ls -d /var/tmp/hermes-build.* 2>/dev/null || true") == ""
