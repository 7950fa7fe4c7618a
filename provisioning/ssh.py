"""SSH with a pinned host key: learn the key once, refuse any other afterwards.

Only this module knows paramiko, and imports it when the first connection is made (0.6 s of start-up time,
facts pulumi, "Cost of the engine").
"""

# ruff: noqa: PLC0415 - paramiko is imported where a connection is made

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from provisioning.errors import (
    ConnectionCut,
    HostKeyMismatch,
    PrivateKeyError,
    SshAuthError,
    SshUnreachable,
    WrongMachine,
)
from provisioning.terminal import one_line, visible

if TYPE_CHECKING:
    import paramiko
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

OnLine = Callable[[str], None]

SSH_PORT = 22
CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 5
SIGN_OF_LIFE_S = 5
_CHUNK = 32 * 1024
_HARDWARE_ADDRESS = re.compile(r"\b[0-9a-f]{2}(?::[0-9a-f]{2}){5}\b")
_NO_CARD = "00:00:00:00:00:00"  # loopback's
_CARDS_TOLD = 6


@dataclass(frozen=True)
class HostKey:
    """A server's public key: `type` as in `ssh-ed25519`, `base64` the blob, `fingerprint` as ssh prints it."""

    type: str
    base64: str
    fingerprint: str

    @classmethod
    def from_blob(cls, key_type: str, blob: bytes) -> HostKey:
        digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
        return cls(key_type, base64.b64encode(blob).decode(), f"SHA256:{digest}")

    @classmethod
    def of(cls, key: paramiko.PKey) -> HostKey:
        return cls.from_blob(key.get_name(), key.asbytes())

    @classmethod
    def parse(cls, line: str) -> HostKey:
        """Read `TYPE BASE64 [comment]`, the form of a .pub file. ValueError when it is none."""
        parts = line.split()
        if len(parts) < 2:
            raise ValueError(f"not a public key line: {line!r}; expected 'TYPE BASE64'")
        try:
            blob = base64.b64decode(parts[1], validate=True)
        except binascii.Error as error:
            raise ValueError(f"not a public key line: {line!r}; the second word is not base64") from error
        # The blob begins with its own type name, length first: a line whose two halves disagree is a mistake.
        inner = blob[4 : 4 + int.from_bytes(blob[:4], "big")].decode("ascii", "replace")
        if inner != parts[0]:
            raise ValueError(f"not a public key line: it says {parts[0]}, its blob says {inner or 'nothing'}")
        return cls.from_blob(parts[0], blob)

    @property
    def line(self) -> str:
        """`TYPE BASE64`, as known_hosts, authorized_keys and pulumi-command write it."""
        return f"{self.type} {self.base64}"


@dataclass(frozen=True)
class Card:
    """The network card that tells a container from every other machine.

    guest: what people call the container, "CT 105"; hardware_address: that of its net0, as Proxmox has it.
    """

    guest: str
    hardware_address: str


@dataclass(frozen=True)
class SshTarget:
    """Where to log in, and the file of the private key that does.

    card: what the machine has to prove after each login, before anything else; None for one that is no container.
    """

    host: str
    host_key: HostKey
    port: int = SSH_PORT
    user: str = "root"
    private_key_file: str = field(kw_only=True)
    card: Card | None = field(default=None, kw_only=True)

    @property
    def address(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


@dataclass(frozen=True)
class CommandResult:
    """What a remote command left: exit status and its two streams."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """The standard output, fit to be shown."""
        return visible(self.stdout.decode("utf-8", "replace"))

    @property
    def words(self) -> str:
        """What it has to say of a failure: its standard error, or its exit status; fit to be shown."""
        return visible(self.stderr.decode("utf-8", "replace").strip()) or f"exit status {self.status}"


class Connection(Protocol):
    """What jobs need of a connection; tests put a local one in its place."""

    def run(self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0) -> CommandResult:
        """Run `command` in the remote login shell. ConnectionCut when the connection breaks or stalls."""

    def close(self) -> None:
        """End the connection; never raises."""


@dataclass
class _Attempt:
    """The last reason why a server could not be reached, in words."""

    reason: str = "no attempt was made"
    hint: str = ""
    seen: set[str] = field(default_factory=set)

    def note(self, error: BaseException, host: str, port: int) -> None:
        if isinstance(error, ConnectionRefusedError):
            self.reason = f"connection refused: the machine is up, but no SSH server listens on port {port}"
            self.hint = (
                "Check in the container that sshd is installed and started (on its console: systemctl status ssh)."
            )
        elif isinstance(error, TimeoutError):
            self.reason = "no answer within the connect timeout: packets to it are lost"
            self.hint = (
                f"Check that {host} is the container's address, and the route, bridge and firewall in between. Where "
                "another container had it before: this machine or its router may still send to that one's network card "
                f"(`ip neigh show {host}`)."
            )
        elif isinstance(error, socket.gaierror):
            self.reason = f"the name {host} can't be resolved"
            self.hint = "Use the address, or correct the name."
        elif isinstance(error, OSError) and not isinstance(error, EOFError) and error.errno is not None:
            self.reason = f"{error.strerror or error}"
            self.hint = f"Check that {host} is the container's address and that this machine has a route to it."
        else:
            self.reason = f"port {port} is open, but no SSH handshake came about ({type(error).__name__}: {error})"
            self.hint = "Check that it is sshd that listens there, and its log (journalctl -u ssh)."


def _poll(deadline: float) -> Iterator[float]:
    """Yield the remaining seconds, quickly at first and once a second later, until the deadline."""
    pause = 0.1
    while (left := deadline - time.monotonic()) > 0:
        yield left
        time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
        pause = min(pause * 1.5, 1.0)


def learn_host_key(host: str, *, port: int = SSH_PORT, timeout_s: float = 120.0, on_line: OnLine = print) -> HostKey:
    """Wait until an SSH server answers at `host` and return the key that it shows.

    Polls for `timeout_s` seconds. SshUnreachable tells refused, lost and not-SSH apart (facts field-reports B17).
    """
    deadline = time.monotonic() + timeout_s
    attempt = _Attempt()
    last_sign = time.monotonic()
    for left in _poll(deadline):
        try:
            return _show_key(host, port, min(CONNECT_TIMEOUT_S, left))
        except (OSError, EOFError, _ssh_exception()) as error:
            attempt.note(error, host, port)
        if time.monotonic() - last_sign >= SIGN_OF_LIFE_S:
            last_sign = time.monotonic()
            on_line(f"waiting for SSH at {host}:{port}: {attempt.reason}")
    raise SshUnreachable(
        f"no SSH server at {host}:{port} within {timeout_s:g} s.\n"
        f"Last attempt: {attempt.reason}.\n{attempt.hint}".rstrip()
    )


def wait_for_ssh(
    host: str,
    *,
    port: int = SSH_PORT,
    user: str = "root",
    private_key_file: str,
    card: Card | None = None,
    key: HostKey | None = None,
    made: Collection[str] = (),
    timeout_s: float = 120.0,
    on_line: OnLine = print,
    opened: Callable[..., Connection] | None = None,
) -> HostKey:
    """Wait for the host key, then prove that we can log in, that it is the container, and that we are root there.

    key: the machine's, where it is known; made: else the fingerprints of those that it was made with; empty: the key is
    taken as it is shown; opened: opens a connection in the place of `connect`. Returns the key to pin. SshUnreachable,
    SshAuthError, HostKeyMismatch, WrongMachine, PrivateKeyError.
    """
    deadline = time.monotonic() + timeout_s
    load_private_key(private_key_file)  # a bad key file is told before the wait, not after it
    if key is None:
        key = learn_host_key(host, port=port, timeout_s=timeout_s, on_line=on_line)
        if made and key.fingerprint not in made:
            raise _not_made(f"{host}:{port}", key, made, card)
    target = SshTarget(host, key, port, user, private_key_file=private_key_file, card=card)
    last: Exception | None = None
    last_sign = time.monotonic()
    for left in _poll(deadline):
        try:
            with contextlib.closing((opened or connect)(target, timeout_s=min(20.0, left))) as connection:
                require_root(connection, target)
                return key
        except (SshUnreachable, ConnectionCut) as error:
            last = error
        if time.monotonic() - last_sign >= SIGN_OF_LIFE_S:
            last_sign = time.monotonic()
            on_line(f"waiting for SSH: {str(last).splitlines()[0]}")
    raise SshUnreachable(f"no session came about at {target.address} within {timeout_s:g} s.\n{last}")


def require_root(connection: Connection, target: SshTarget) -> None:
    """SshAuthError unless the session is root's: the phases install packages and write units."""
    result = connection.run("id -u", timeout_s=20)
    if result.stdout.strip() != b"0":
        uid = one_line(result.text.strip()) or "unknown"
        raise SshAuthError(
            f"logged in at {target.host} as {target.user} (uid {uid}), but the phases need root.\n"
            "Give the SSH key to root in the container and use root as the user."
        )


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        home = path.split("/", maxsplit=1)[0]
        raise PrivateKeyError(
            f"This machine knows no home folder for {home}, where the SSH key file {path} is to be.\n"
            "Write the whole path."
        ) from None


def private_key_text(path: str) -> str:
    """The text of an SSH private key file, in the one form that every reader takes. PrivateKeyError for any other.

    This program, the command plugin and `ssh` read the same file with three libraries. `ssh` wants an OpenSSH key to
    begin with the first byte, without carriage returns, and its last line to be ended (tried with OpenSSH 9.2).
    """
    file = _expanded(path)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise PrivateKeyError(
            f"SSH key file {file} does not exist.\n"
            f"Correct the path (sshPrivateKeyFile), or make one: ssh-keygen -t ed25519 -N '' -f {file}"
        ) from None
    except PermissionError:
        raise PrivateKeyError(f"SSH key file {file} can't be read by this user.\nCorrect its owner or mode.") from None
    except OSError as error:
        raise _no_key(file, type(error).__name__) from None
    if b"PRIVATE KEY" not in data.replace(b"\0", b""):
        raise _no_key(file, "no PRIVATE KEY in it")
    faults = {
        "bytes that are no ASCII, a UTF-8 mark for one": not data.isascii() or b"\0" in data,
        "Windows line ends": b"\r" in data,
        "something before -----BEGIN": not data.lstrip(b"\xef\xbb\xbf").startswith(b"-----BEGIN "),
        "no line end after -----END": re.search(rb"^-----END [A-Z ]+-----\r?\n", data, re.MULTILINE) is None,
    }
    found = [name for name, there in faults.items() if there]
    if found:
        raise PrivateKeyError(
            f"SSH key file {file} is not written as `ssh` reads it: it has {', '.join(found)}.\n"
            "Write it as plain text with Unix line ends, from -----BEGIN to the end of the -----END line. "
            f"With GNU sed: sed -i -e '1s/^\\xef\\xbb\\xbf//' -e 's/\\r$//' -e '$a\\' {shlex.quote(str(file))}"
        )
    return data.decode("ascii")


def _read_private_key(path: str) -> ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
    """An ed25519, ecdsa or rsa key by content: OpenSSH, PEM or PKCS#8. PrivateKeyError when it can't be used."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    file = _expanded(path)
    data = private_key_text(path).encode()
    # Told by its header: the library says ValueError both for a foreign form and for a damaged key.
    openssh = data.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
    try:
        loaded = load(data, password=None)
    except TypeError:  # so the library reports a missing passphrase
        raise PrivateKeyError(
            f"SSH key file {file} is encrypted, and there is nobody here to type its passphrase.\n"
            "Name a key without a passphrase (sshPrivateKeyFile); to make one: ssh-keygen -t ed25519 -N '' -f FILE"
        ) from None
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_key(file, type(error).__name__) from None
    if isinstance(loaded, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        return loaded
    raise _no_key(file, "another kind of key")


def public_half(path: str) -> str:
    """`TYPE BASE64` of a private key file, derived from it: a copy beside it is never believed. PrivateKeyError."""
    from cryptography.hazmat.primitives import serialization

    public = _read_private_key(path).public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def load_private_key(path: str) -> paramiko.PKey:
    """A private key file as paramiko has it. PrivateKeyError when it can't be used."""
    import paramiko
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    loaded = _read_private_key(path)
    if isinstance(loaded, ed25519.Ed25519PrivateKey):
        kind: type[paramiko.PKey] = paramiko.Ed25519Key
    elif isinstance(loaded, ec.EllipticCurvePrivateKey):
        kind = paramiko.ECDSAKey
    else:
        kind = paramiko.RSAKey
    plain = serialization.NoEncryption()
    text = loaded.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain).decode()
    return kind.from_private_key(io.StringIO(text))


def _no_key(file: Path, reason: str) -> PrivateKeyError:
    return PrivateKeyError(
        f"SSH key file {file} is not a private key that can be used ({reason}).\n"
        "Name the private half (not the .pub file) of an ed25519, ecdsa or rsa key."
    )


def connect(target: SshTarget, *, timeout_s: float = 20.0) -> SshConnection:
    """Open a session; the server has to show exactly the pinned key, and be the container that is meant.

    SshUnreachable, SshAuthError, HostKeyMismatch, WrongMachine, ConnectionCut, PrivateKeyError.
    """
    import paramiko

    key = load_private_key(target.private_key_file)
    try:
        client = _client(target.host, target.port, timeout_s, user=target.user, login=key, pinned=target.host_key)
    except paramiko.AuthenticationException:
        raise _refused_login(target, key) from None
    except paramiko.BadHostKeyException as other:
        raise _mismatch(target, HostKey.of(other.key).fingerprint) from None
    except (OSError, EOFError, paramiko.SSHException) as error:
        attempt = _Attempt()
        attempt.note(error, target.host, target.port)
        raise SshUnreachable(f"can't reach {target.address}: {attempt.reason}.\n{attempt.hint}".rstrip()) from None
    transport = client.get_transport()
    if transport is None:
        raise ConnectionCut(f"the connection to {target.address} broke")
    transport.set_keepalive(KEEPALIVE_S)
    connection = SshConnection(client, transport, target)
    try:
        require_card(connection, target, timeout_s)
    except BaseException:
        connection.close()
        raise
    return connection


def require_card(connection: Connection, target: SshTarget, timeout_s: float) -> None:
    """WrongMachine unless a network card of the machine has the container's hardware address. Only reads there."""
    card = target.card
    if card is None:
        return
    told = connection.run("cat /sys/class/net/*/address", timeout_s=timeout_s).stdout.decode("ascii", "replace")
    found = sorted(set(_HARDWARE_ADDRESS.findall(told.lower())) - {_NO_CARD})
    if card.hardware_address.lower() in found:
        return
    shown = ", ".join(found[:_CARDS_TOLD]) or "none that it tells"
    raise WrongMachine(
        f"the machine that answers at {target.address} is not {card.guest}. Nothing was written to it.\n"
        f"net0 of {card.guest} has the hardware address {card.hardware_address.lower()}; that machine has {shown}.\n"
        f"Find out which machine it is; then give {card.guest} an address that is free (cattleAddress), or that one "
        "another."
    )


class SshConnection:
    """One authenticated connection; every command gets a channel of its own."""

    def __init__(self, client: paramiko.SSHClient, transport: paramiko.Transport, target: SshTarget) -> None:
        self._client = client
        self._transport = transport
        self._target = target

    def run(self, command: str, *, stdin: IO[bytes] | bytes | None = None, timeout_s: float = 30.0) -> CommandResult:
        deadline = time.monotonic() + timeout_s
        try:
            return self._run(command, stdin, deadline)
        except (OSError, EOFError, _ssh_exception()) as error:
            reason = (
                "it fell silent" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}".rstrip(": ")
            )
            raise ConnectionCut(f"the connection to {self._target.address} broke ({reason})") from None

    def _run(self, command: str, stdin: IO[bytes] | bytes | None, deadline: float) -> CommandResult:
        channel = self._transport.open_session(timeout=_left(deadline))
        try:
            _ask(channel, command, deadline)
            if stdin is not None:
                stream = io.BytesIO(stdin) if isinstance(stdin, bytes) else stdin
                while chunk := stream.read(_CHUNK):
                    channel.settimeout(_left(deadline))
                    channel.sendall(chunk)
            channel.shutdown_write()
            streams = {"out": bytearray(), "err": bytearray()}
            # Both streams are drained in turn, or a full window on one would block the other for ever.
            while not (channel.exit_status_ready() and not channel.recv_ready() and not channel.recv_stderr_ready()):
                if channel.recv_stderr_ready():
                    streams["err"] += channel.recv_stderr(_CHUNK)
                elif channel.recv_ready():
                    streams["out"] += channel.recv(_CHUNK)
                else:
                    _left(deadline)
                    if channel.closed and not channel.exit_status_ready():
                        raise EOFError("the channel closed without an exit status")
                    channel.status_event.wait(0.02)
            for reader, name in ((channel.recv, "out"), (channel.recv_stderr, "err")):
                channel.settimeout(_left(deadline))
                while chunk := reader(_CHUNK):
                    streams[name] += chunk
            status = channel.recv_exit_status()
            if status == -1:
                raise EOFError("the session ended without an exit status")
            return CommandResult(status, bytes(streams["out"]), bytes(streams["err"]))
        finally:
            channel.close()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._client.close()


def _ask(channel: paramiko.Channel, command: str, deadline: float) -> None:
    """Have the server begin the command. paramiko waits for its answer without an end, unless the channel is closed."""
    end = threading.Timer(_left(deadline), channel.close)
    end.daemon = True
    end.start()
    try:
        channel.exec_command(command)
    except _ssh_exception():
        _left(deadline)
        raise
    finally:
        end.cancel()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _ssh_exception() -> type[Exception]:
    import paramiko

    return paramiko.SSHException


class _ShownError(Exception):
    """A server has shown its key to somebody who knows none."""

    def __init__(self, key: paramiko.PKey) -> None:
        self.key = HostKey.of(key)


def _client(
    host: str, port: int, timeout_s: float, *, user: str, login: paramiko.PKey | None, pinned: HostKey | None
) -> paramiko.SSHClient:
    """A session within `timeout_s` at a server that shows the key `pinned`; with none, _ShownError before the login."""
    import paramiko

    class Ask(paramiko.MissingHostKeyPolicy):
        def missing_host_key(self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey) -> None:
            raise _ShownError(key)

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(Ask())
    if pinned is not None:
        # The client asks for a key of this type, which makes a server with several show this one.
        name = host if port == SSH_PORT else f"[{host}]:{port}"
        key = paramiko.PKey.from_type_string(pinned.type, base64.b64decode(pinned.base64))
        client.get_host_keys().add(name, pinned.type, key)
    sock = socket.create_connection((host, port), timeout=min(CONNECT_TIMEOUT_S, timeout_s))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.connect(
            host,
            port,
            user,
            pkey=login,
            sock=sock,
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            allow_agent=False,
            look_for_keys=False,
        )
    except BaseException:
        client.close()
        sock.close()
        raise
    return client


def _show_key(host: str, port: int, timeout_s: float) -> HostKey:
    try:
        _client(host, port, timeout_s, user="root", login=None, pinned=None)
    except _ShownError as shown:
        return shown.key
    raise EOFError("the server has shown no key")


def _refused_login(target: SshTarget, key: paramiko.PKey) -> SshAuthError:
    return SshAuthError(
        f"{target.host}:{target.port} answers, but refuses the login of {target.user}. "
        f"The key tried: {key.get_name()} {HostKey.of(key).fingerprint}.\n"
        "The container's root must have the public half: Proxmox sets it only when the container is created.\n"
        "Name the right private key, or add the public one to /root/.ssh/authorized_keys on its console."
    )


_OTHER_KEYS = (
    "If it is the container, and was given other keys since: set cattleSshHostKey\n"
    "to what its console shows: cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub"
)


def _not_made(place: str, shown: HostKey, made: Collection[str], card: Card | None) -> HostKeyMismatch:
    guest = card.guest if card else "the machine"
    return HostKeyMismatch(
        f"the machine that answers at {place} is not {guest}: it shows the host key {shown.type} {shown.fingerprint},\n"
        f"and {guest} was made with {', '.join(sorted(made))}. Nothing was sent to it.\n"
        f"Find out which machine has that address. {_OTHER_KEYS}"
    )


def _mismatch(target: SshTarget, shown: str) -> HostKeyMismatch:
    return HostKeyMismatch(
        f"the machine at {target.host}:{target.port} is not the one that was pinned: it shows a host key {shown},\n"
        f"expected {target.host_key.type} {target.host_key.fingerprint}. Nothing was sent to it.\n"
        f"Find out which machine has taken the address. {_OTHER_KEYS}"
    )
