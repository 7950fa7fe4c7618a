"""The key that logs in to the cattle: what is wrong with it is told before a container is made with it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from components.surroundings import public_keys


def make_key(path: Path, passphrase: str = "") -> str:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", path], check=True, timeout=60)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def settings(path: Path) -> Any:
    return SimpleNamespace(ssh_private_key_file=path, cattle=SimpleNamespace(ssh_keys=["ssh-ed25519 AAAA"]))


@pytest.mark.parametrize("prove", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_the_public_half_comes_before_the_others(tmp_path: Path, prove: bool, beside: bool) -> None:
    public = make_key(tmp_path / "key")
    if not beside:
        (tmp_path / "key.pub").unlink()
    assert public_keys(settings(tmp_path / "key"), prove=prove) == ([public, "ssh-ed25519 AAAA"], [])


@pytest.mark.parametrize(
    ("spoil", "rule", "remedy"),
    [
        ("missing", "does not exist", "ssh-keygen -t ed25519 -N ''"),
        ("encrypted", "is encrypted", "without a passphrase"),
        ("another's", "is not its public half", "ssh-keygen -y -f"),
    ],
)
def test_a_key_that_can_t_log_in_is_a_fault_of_its_setting(tmp_path: Path, spoil: str, rule: str, remedy: str) -> None:
    key = tmp_path / "key"
    if spoil != "missing":
        make_key(key, "correct horse" if spoil == "encrypted" else "")
    if spoil == "another's":
        make_key(tmp_path / "other")
        (tmp_path / "other.pub").replace(tmp_path / "key.pub")
    keys, faults = public_keys(settings(key), prove=True)
    assert keys == []
    assert [(fault.key, fault.value) for fault in faults] == [("sshPrivateKeyFile", str(key))]
    assert rule in faults[0].rule
    assert remedy in faults[0].remedy
