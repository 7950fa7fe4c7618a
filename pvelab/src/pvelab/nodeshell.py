"""SSH into a node of the lab as root, for what Proxmox allows to root@pam only.

A real node gives a shell. This one knows ``pct`` (:mod:`pvelab.pct`), the programs for the node's own folders
(:mod:`pvelab.hostfolders`), ``pveversion``, ``hostname`` and ``true``, one program at a time or one after the other
with ``&&``, and says of everything else that there is no such command: whoever logs in is root to the lab, not to the
machine.
"""

from __future__ import annotations

import contextlib
import itertools
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

from pvelab import pct
from pvelab.control import ControlError
from pvelab.hostfolders import PROGRAMS, HostFolders
from pvelab.instance import write_secret

NOT_FOUND = 127
_STDIN_LIMIT = 64 << 20


class NodeShell:
    """An SSH server on loopback. ``authorized_keys`` is read at each login, so that keys may change."""

    def __init__(self, state_dir: Path, authorized_keys: Path, *, node: str = "pve", version: str = "9.2.11") -> None:
        self._state_dir = state_dir
        self._authorized_keys = authorized_keys
        self._facts = {"hostname": node, "pveversion": f"pve-manager/{version}/0c5b1d0a7f6e2b41"}
        self._node = node
        self._folders = HostFolders(state_dir / "nodes" / node / "host")
        self._folders.prepare()
        # Each node is a machine with a key of its own.
        self._key = _host_key(state_dir / f"node_ssh_host_ed25519_key{'' if node == 'pve' else f'_{node}'}")
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._transports: set[paramiko.Transport] = set()
        self.port = 0

    @property
    def host_key(self) -> str:
        """``ssh-ed25519 AAAA...``, for a known-hosts line."""
        return f"{self._key.get_name()} {self._key.get_base64()}"

    def start(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), name="node-ssh", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._listener is not None:
            # A blocked accept() ends only with a shutdown of the socket, not with its close.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._thread is not None:
            self._thread.join(5)
        for transport in list(self._transports):
            transport.close()
            transport.join(5)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="node-ssh-login", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        self._transports.add(transport)
        try:
            transport.add_server_key(self._key)
            transport.start_server(server=_Login(self._authorized_keys, self._run))
            transport.join()
        except (paramiko.SSHException, EOFError, OSError):
            pass  # whoever it was has gone, or spoke something else
        finally:
            transport.close()
            self._transports.discard(transport)

    def _run(self, channel: paramiko.Channel, command: str) -> None:
        # This thread may be quicker than the word that the command was accepted; a closed channel would overtake it.
        # Whoever answers this question has been told: both go through the thread that reads.
        with contextlib.suppress(paramiko.SSHException, EOFError):
            channel.get_transport().global_request("keepalive@openssh.com", wait=True)
        try:
            status, output, errors = self.execute(command, lambda: _read_all(channel))
        except Exception as error:  # the client gets an answer whatever happens
            status, output, errors = pct.FAILED, "", f"internal error of the lab: {error}\n"
        with contextlib.suppress(OSError):
            channel.sendall(output.encode())
            channel.sendall_stderr(errors.encode())
            channel.send_exit_status(status)
            channel.shutdown_write()
            channel.close()

    def execute(self, command: str, read_stdin: pct.Stdin) -> tuple[int, str, str]:
        """Exit status, output and error output of one command line, or of several that are joined by ``&&``."""
        try:
            words = list(_words(command))
        except ValueError as error:
            return 2, "", f"bash: {error}\n"
        output = errors = ""
        for joined, group in itertools.groupby(words, lambda word: word == "&&"):
            if not joined:
                status, told, complaint = self._program(list(group), read_stdin)
                output, errors = output + told, errors + complaint
                if status != 0:
                    return status, output, errors
        return 0, output, errors

    def _program(self, words: Sequence[str], read_stdin: pct.Stdin) -> tuple[int, str, str]:
        name = Path(words[0]).name if words else "true"
        if name == "true":
            return 0, "", ""
        if name in self._facts:
            return 0, f"{self._facts[name]}\n", ""
        if name in PROGRAMS:
            return self._folders.run(name, words[1:])
        if name != "pct":
            return NOT_FOUND, "", f"bash: {words[0]}: command not found (this node knows few: pvelab/nodeshell.py)\n"
        return self._pct(words[1:], read_stdin)

    def _pct(self, words: Sequence[str], read_stdin: pct.Stdin) -> tuple[int, str, str]:
        verb, vmid, *rest = (*words, "", "")[: max(2, len(words))]
        if verb not in pct.VERBS or (verb != "list" and not vmid.isdigit()):
            return pct.FAILED, "", f"ERROR: unknown command 'pct {' '.join(words)}'\n"
        try:
            return pct.run(self._state_dir, verb, vmid, rest, read_stdin, node=self._node)
        except (pct.PctError, ControlError, FileNotFoundError) as error:
            return pct.FAILED, "", f"{error}\n"


def _words(command: str) -> Iterator[str]:
    """The words of a line as a shell splits it, ``&&`` among them."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&")
    lexer.commenters = ""
    lexer.whitespace_split = True
    return iter(lexer)


def _read_all(channel: paramiko.Channel) -> bytes:
    """What the client sends until it has no more."""
    parts: list[bytes] = []
    while (part := channel.recv(1 << 16)) and sum(map(len, parts)) < _STDIN_LIMIT:
        parts.append(part)
    return b"".join(parts)


class _Login(paramiko.ServerInterface):
    """Root by public key, one command per session."""

    def __init__(self, authorized_keys: Path, run: Callable[[paramiko.Channel, str], None]) -> None:
        self._authorized_keys = authorized_keys
        self._run = run

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002 - the interface has it
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        known = self._authorized_keys.read_text().split() if self._authorized_keys.exists() else []
        good = username == "root" and key.get_base64() in known
        return AUTH_SUCCESSFUL if good else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002 - the interface has it
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        arguments = (channel, command.decode(errors="replace"))
        threading.Thread(target=self._run, args=arguments, name="node-ssh-command", daemon=True).start()
        return True


def _host_key(path: Path) -> paramiko.Ed25519Key:
    """The node's key, made once; it stays the node's identity as long as the lab lives."""
    if not path.exists():
        private = Ed25519PrivateKey.generate()
        write_secret(path, private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode())
    return paramiko.Ed25519Key.from_private_key_file(str(path))
