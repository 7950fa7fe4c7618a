"""SSH into the node as root: ``pct`` for what no token may do, and nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from lab_harness import Lab

from pvelab.nodeshell import NodeShell
from pvelab.runtime import Completed


def new_key() -> paramiko.Ed25519Key:
    private = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return paramiko.Ed25519Key.from_private_key(io.StringIO(private.decode()))


@pytest.fixture
def key() -> paramiko.Ed25519Key:
    return new_key()


@pytest.fixture
def shell(lab: Lab, key: paramiko.Ed25519Key, tmp_path: Path) -> Iterator[NodeShell]:
    authorized = tmp_path / "authorized_keys"
    authorized.write_text(f"ssh-ed25519 {key.get_base64()} someone\n")
    running = NodeShell(lab.config.state_dir, authorized)
    running.start()
    yield running
    running.stop()


def connect(shell: NodeShell, key: paramiko.PKey, user: str = "root") -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    kind, _, blob = shell.host_key.partition(" ")
    pinned = paramiko.Ed25519Key(data=base64.b64decode(blob))
    client.get_host_keys().add(f"[127.0.0.1]:{shell.port}", kind, pinned)
    client.connect(
        "127.0.0.1", shell.port, user, pkey=key, timeout=10, allow_agent=False, look_for_keys=False, banner_timeout=10
    )
    return client


def run(client: paramiko.SSHClient, command: str, stdin: bytes = b"") -> tuple[int, str, str]:
    given, output, errors = client.exec_command(command, timeout=20)
    given.write(stdin)
    given.channel.shutdown_write()
    found = output.read().decode(), errors.read().decode()
    return output.channel.recv_exit_status(), *found


def test_pct_over_ssh(lab: Lab, shell: NodeShell, key: paramiko.Ed25519Key) -> None:
    lab.guest(105)
    with connect(shell, key) as client:
        assert run(client, "pct set 105 -mp1 '/srv/my films,mp=/films,ro=1'") == (0, "", "")
        assert lab.sections(105)[""]["mp1"] == "/srv/my films,mp=/films,ro=1"
        assert run(client, "/usr/sbin/pct set 105 --delete mp1 --features keyctl=1,nesting=1") == (0, "", "")
        assert lab.sections(105)[""]["features"] == "keyctl=1,nesting=1"
        assert run(client, "pct status 105") == (0, "status: stopped\n", "")
        missing = "Configuration file 'nodes/pve/lxc/107.conf' does not exist\n"
        assert run(client, "pct config 107") == (255, "", missing)


def test_lines_that_are_joined_stop_at_the_first_that_fails(
    lab: Lab, shell: NodeShell, key: paramiko.Ed25519Key
) -> None:
    lab.guest(105)
    with connect(shell, key) as client:
        pasted = "mkdir -p -- '/srv/a && b' &&\n  pct set 105 --features keyctl=1,nesting=1&&pct status 105"
        assert run(client, pasted) == (0, "status: stopped\n", "")
        assert lab.sections(105)[""]["features"] == "keyctl=1,nesting=1"
        assert run(client, "stat -c '%f %u %g %m' -- '/srv/a && b'")[0] == 0
        assert run(client, "mountpoint /srv && pct set 105 --features nesting=1")[0] == 32
        assert lab.sections(105)[""]["features"] == "keyctl=1,nesting=1"


def test_exec_passes_input_and_status(
    lab: Lab, shell: NodeShell, key: paramiko.Ed25519Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.guest(105)
    lab.boot(105)
    monkeypatch.setattr(lab.runtime, "execute", lambda _spec, argv, stdin: Completed(3, " ".join(argv).encode(), stdin))
    with connect(shell, key) as client:
        assert run(client, "pct exec 105 -- tee '/a b'", b"given") == (3, "tee /a b", "given")


def test_only_pct(shell: NodeShell, key: paramiko.Ed25519Key) -> None:
    with connect(shell, key) as client:
        assert run(client, "true") == (0, "", "")
        assert run(client, "hostname") == (0, "pve\n", "")
        assert run(client, "cat /etc/shadow")[0] == 127
        assert run(client, "pct status 105; cat /etc/shadow")[0] == 255
        assert run(client, "pct create 105")[0] == 255
        assert run(client, "pct 'unclosed")[0] == 2


def test_only_root_with_a_known_key(shell: NodeShell, key: paramiko.Ed25519Key) -> None:
    with pytest.raises(paramiko.AuthenticationException):
        connect(shell, new_key())
    with pytest.raises(paramiko.AuthenticationException):
        connect(shell, key, "guest1")


def test_the_node_keeps_its_key(lab: Lab, tmp_path: Path) -> None:
    first = NodeShell(lab.config.state_dir, tmp_path / "none").host_key
    assert NodeShell(lab.config.state_dir, tmp_path / "none").host_key == first
    assert (lab.config.state_dir / "node_ssh_host_ed25519_key").stat().st_mode & 0o777 == 0o600
