"""The key that logs in to the cattle: what is wrong with it is told before a container is made with it.

Another list of keys is another container: nothing but another key may make one.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from components.preflight import cattle_check, public_keys
from components.state import OwnState
from provisioning.ssh import private_key_text
from settings.stack import CattleStack
from tests.settings import cattle

OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"


def make_key(path: Path, passphrase: str = "", form: str = "RFC4716") -> str:
    kind = "ed25519" if form == "RFC4716" else "rsa"
    command = ["ssh-keygen", "-q", "-t", kind, "-m", form, "-N", passphrase, "-C", "me@workstation", "-f", str(path)]
    subprocess.run(command, check=True, timeout=60)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


def settings(path: Path, *others: str) -> CattleStack:
    return cattle(sshPrivateKeyFile=str(path), cattleSshKeys=list(others))


def made_with(*keys: str) -> OwnState:
    """The state of a stack whose container was made with these lines."""
    return OwnState("claim", 105, container={"initialization": {"userAccount": {"keys": list(keys)}}})


@pytest.mark.parametrize("state", [OwnState(), made_with(OTHER)], ids=["to be made", "of another key"])
@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_the_public_half_comes_before_the_others(tmp_path: Path, state: OwnState, form: str) -> None:
    public = make_key(tmp_path / "key", form=form)
    (tmp_path / "key.pub").unlink()
    assert public_keys(settings(tmp_path / "key", f"{OTHER} her"), state) == ([public, f"{OTHER} her"], [])


COPIES: dict[str, bytes] = {
    "comment line": b"# made on the workstation\nKEY me@workstation\n",
    "comment alone": b"# made on the workstation\n",
    "other program's header": b'---- BEGIN SSH2 PUBLIC KEY ----\nComment: "x"\nAAAA\n---- END SSH2 PUBLIC KEY ----\n',
    "UTF-8 mark": b"\xef\xbb\xbfKEY\n",
    "UTF-16": "ssh-ed25519 AAAA me\n".encode("utf-16"),
    "Windows line ends": b"KEY me@workstation\r\n",
    "options in front": b'from="192.0.2.0/24" KEY\n',
    "cut off": b"ssh-ed25519 AAAAC3Nza",
    "empty": b"",
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_beside_the_private_key_never_makes_another_container(tmp_path: Path, copy: str) -> None:
    key = tmp_path / "key"
    public = make_key(key)
    key.with_name("key.pub").write_bytes(COPIES[copy].replace(b"KEY", public.encode()))
    state = made_with(public)
    assert public_keys(settings(key), state) == ([public], [])
    keys, _ = public_keys(settings(key), state)
    assert not cattle_check(settings(key), state, owner=None, volid=None, keys=keys).guest.remade


@pytest.mark.parametrize(
    "recorded",
    [
        ["{own} me@workstation", OTHER],
        ["{own}", f"{OTHER} somebody else"],
        [f"{OTHER}", "{own}"],
        ["{own}", "{own} twice", OTHER],
    ],
    ids=["a comment of ours", "a comment of theirs", "another order", "twice"],
)
def test_what_the_state_holds_stays_while_the_keys_are_the_same(tmp_path: Path, recorded: list[str]) -> None:
    own = make_key(tmp_path / "key")
    lines = [line.replace("{own}", own) for line in recorded]
    assert public_keys(settings(tmp_path / "key", f"{OTHER} her"), made_with(*lines)) == (lines, [])


def test_a_key_less_or_more_is_another_container(tmp_path: Path) -> None:
    own = make_key(tmp_path / "key")
    assert public_keys(settings(tmp_path / "key"), made_with(own, OTHER)) == ([own], [])
    assert public_keys(settings(tmp_path / "key", OTHER), made_with(own)) == ([own, OTHER], [])


@pytest.mark.parametrize(
    ("spoil", "rule", "remedy"),
    [
        ("missing", "does not exist", "ssh-keygen -t ed25519 -N ''"),
        ("encrypted", "is encrypted", "without a passphrase"),
        ("another's", "is not its public half", "ssh-keygen -y -f"),
        ("another's after a comment", "is not its public half", "ssh-keygen -y -f"),
    ],
)
@pytest.mark.parametrize("there", [False, True])
def test_a_key_that_can_t_log_in_is_a_fault_of_its_setting(
    tmp_path: Path, spoil: str, rule: str, remedy: str, there: bool
) -> None:
    key = tmp_path / "key"
    if spoil != "missing":
        make_key(key, "correct horse" if spoil == "encrypted" else "")
    if spoil.startswith("another's"):
        copy = make_key(tmp_path / "other")
        (tmp_path / "key.pub").write_text(f"# mine\n{copy}\n" if "comment" in spoil else f"{copy}\n")
    keys, faults = public_keys(settings(key), made_with(OTHER) if there else OwnState())
    assert keys == []
    assert [(fault.key, fault.value) for fault in faults] == [("sshPrivateKeyFile", str(key))]
    assert rule in faults[0].rule
    assert remedy in faults[0].remedy


SPOILT: dict[str, tuple[bytes, bytes, str]] = {
    "UTF-8 mark": (b"-----BEGIN", b"\xef\xbb\xbf-----BEGIN", "UTF-8 mark"),
    "Windows line ends": (b"\n", b"\r\n", "Windows line ends"),
    "Mac line ends": (b"\n", b"\r", "Windows line ends"),
    "no last line end": (b"KEY-----\n", b"KEY-----", "no line end"),
    "a comment before": (b"-----BEGIN", b"# mine\n-----BEGIN", "something before"),
    "a blank before": (b"-----BEGIN", b"\n-----BEGIN", "something before"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_file_that_ssh_refuses_is_refused_before_all(tmp_path: Path, spoilt: str) -> None:
    """Each passed the check of one library and failed in another; `ssh-keygen` reads as `ssh` does."""
    key = tmp_path / "key"
    own = make_key(key)
    old, new, told = SPOILT[spoilt]
    begin, separator, end = key.read_bytes().rpartition(old) if old == b"KEY-----\n" else (b"", b"", key.read_bytes())
    key.write_bytes(begin + new + end if separator else end.replace(old, new, 1 if b"BEGIN" in old else -1))
    derive = ["ssh-keygen", "-y", "-P", "", "-f", str(key)]
    assert subprocess.run(derive, capture_output=True, check=False, timeout=60).returncode
    keys, [fault] = public_keys(settings(key), made_with(own))
    assert keys == []
    assert told in fault.rule
    if spoilt in ("UTF-8 mark", "Windows line ends", "no last line end"):
        command = fault.remedy.partition("With GNU sed: ")[2]
        subprocess.run(shlex.split(command), check=True, timeout=60)
        assert public_keys(settings(key), made_with(own)) == ([own], [])
        assert subprocess.run(derive, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_text_that_others_are_given_is_the_text_that_was_checked(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    assert private_key_text(str(tmp_path / "key")).encode() == (tmp_path / "key").read_bytes()
