"""A golden template of the real agent, what is in it, and a cattle that is cloned from it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.stacks import allow_clones, make_stack
from tests.e2e.test_stacks import lab_with_stacks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")


def looked_into(image: Path, at: Path) -> None:
    """The template's disk holds what is built, and nothing of one machine's."""
    at.mkdir()
    subprocess.run(["mount", "-o", "loop,ro,noload", str(image), str(at)], check=True, timeout=60)
    try:
        assert list((at / "opt" / "hermes").glob("*/install.json"))
        assert list((at / "opt" / "hermes").glob("*/venv/lib/python3*/site-packages/**/*.pyc"))
        assert [file for file in (at / "var" / "log").rglob("*") if file.is_file()] == []
        assert list((at / "etc" / "ssh").glob("ssh_host_*")) == []
        assert (at / "etc" / "machine-id").read_text() == ""
        assert list((at / "home").iterdir()) == []
        assert list((at / "var" / "lib" / "apt" / "lists").iterdir()) == []
    finally:
        subprocess.run(["umount", str(at)], check=True, timeout=60)
    # Also where no file is any more: a clone gets each block.
    found = subprocess.run(
        ["grep", "-c", "-a", "-e", "^-----BEGIN OPENSSH PRIVATE KEY-----$", str(image)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert found.stdout.strip() == "0"


@pytest.mark.timeout(900)
def test_a_golden_template_and_a_cattle_that_is_cloned_from_it(tmp_path: Path) -> None:
    with lab_with_stacks(tmp_path / "a lab") as stacks:
        make_stack(stacks.lab, "image")
        own = {key: stacks.setting(key) for key in ("cattleAddress", "cattleGateway")}
        stacks.configure(cattleAddress="dhcp", cattleGateway=None)
        stacks.up("image")
        assert stacks.run("preview", "image").changed == {}
        found = stacks.outputs("image")
        assert found["vmid"] == 9000
        (image,) = stacks.lab.state_dir.rglob("base-9000-disk-0.raw")
        looked_into(image, tmp_path / "disk")
        key = stacks.lab.model_key_file.read_bytes().strip()
        assert subprocess.run(["grep", "-q", "-a", "-F", key, image], check=False, timeout=300).returncode == 1

        allow_clones(stacks.lab)
        stacks.configure(goldenTemplate="image", **own)
        stacks.up("pet")
        up = stacks.up("cattle")
        assert [told for told in up.messages if "linked clone of CT 9000" in told]
        assert not [told for told in up.messages if "is taken as it is" in told]
        assert stacks.outputs("cattle")["agentState"] == "active"
        assert stacks.run("preview", "cattle").changed == {}
        # Its key and its machine id are its own, and were made in it.
        shown = stacks.shell("cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
        assert " ".join(shown) == stacks.outputs("cattle")["sshHostKey"]
        assert len(stacks.shell("cat /etc/machine-id").strip()) == 32
        assert stacks.shell("systemctl is-active hermes-stack-announce").strip() == "active"
        stacks.run("destroy", "cattle", "--yes", "--skip-preview")
        stacks.run("destroy", "image", "--yes", "--skip-preview")
