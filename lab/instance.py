"""One lab on disk: where its files are, what it last said about itself, whether its daemon lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from pvelab.place import LabError, Place

CHECKOUT = Path(__file__).resolve().parent.parent
CACHE = CHECKOUT / ".cache"
MARKER = "THIS-IS-A-LAB"


class NodeDoor(TypedDict):
    """A node's SSH server, on loopback."""

    port: int
    host_key: str


@dataclass(frozen=True)
class Ready:
    """What a lab's daemon says about itself once all of it answers. ``None``: not there without containers."""

    containers: bool
    endpoint: str
    port: int
    ca_file: str
    node: str
    template: str
    model_url: str
    model: str
    node_ssh_port: int | None = None
    node_ssh_host_key: str | None = None
    node_ssh: dict[str, NodeDoor] | None = None
    """The way to root on each node; that of ``node`` stands above as well."""
    template_newer: str | None = None
    """The volid of Debian 13; None until `lab up --debian-13` has built it."""
    bridge: str | None = None
    gateway: str | None = None
    subnet: str | None = None
    source_kind: str | None = None
    """What the git repository is: ``upstream``, or a ``stand-in`` (lab/services/source.py)."""
    source_url: str | None = None
    source_version: str | None = None
    """Of the newest release there, as are tag and commit."""
    source_tag: str | None = None
    source_commit: str | None = None
    source_previous_version: str | None = None
    """Of the release to update from; None where there is one only, as are tag and commit."""
    source_previous_tag: str | None = None
    source_previous_commit: str | None = None
    registry: str | None = None
    """``host:port`` of the registry, as an image's reference begins; TLS by the CA in ``registry_ca_file``."""
    registry_ca_file: str | None = None
    image: str | None = None
    """The agent's image, pinned: ``registry/repository:tag@sha256:...``; the next ones likewise."""
    image_next: str | None = None
    image_previous: str | None = None
    image_base: str | None = None


@dataclass(frozen=True)
class Lab:
    """A lab's state folder and what lies in it."""

    state_dir: Path

    @classmethod
    def default(cls) -> Lab:
        """The lab that ``HERMES_LAB_DIR`` names, or the checkout's own."""
        named = os.environ.get("HERMES_LAB_DIR")
        return cls(Path(named).expanduser().absolute() if named else CACHE / "lab")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes: one, ``pve``, unless it was made with more."""
        file = self.state_dir / "node-count"
        count = int(file.read_text()) if file.exists() else 1
        return ("pve", *(f"pve{number}" for number in range(2, count + 1)))

    def set_node_count(self, count: int) -> None:
        """Have ``count`` nodes from the next start on; LabError when a node that would go has guests."""
        for node in self.nodes[count:]:
            if any((self.state_dir / "nodes" / node / "lxc").glob("[0-9]*.conf")):
                raise LabError(f"node {node} has guests: it can't be left out (scripts/lab destroy removes them)")
        (self.state_dir / "node-count").write_text(f"{count}\n")

    @property
    def place(self) -> Place:
        return Place.of(self.state_dir)

    @property
    def log_file(self) -> Path:
        return self.state_dir / "daemon.log"

    @property
    def model_key_file(self) -> Path:
        return self.state_dir / "model-key"

    @property
    def pulumi_state(self) -> Path:
        """The backend: the state of the stacks."""
        return self.state_dir / "pulumi"

    @property
    def passphrase_file(self) -> Path:
        return self.state_dir / "passphrase"

    @property
    def stack_config_file(self) -> Path:
        """The settings of both stacks, see lab/stacks.py."""
        return self.state_dir / "Pulumi.lab.yaml"

    @property
    def model_log(self) -> Path:
        return self.state_dir / "model-requests.jsonl"

    @property
    def ssh_key_file(self) -> Path:
        return self.state_dir / "ssh" / "id_ed25519"

    @property
    def token_file(self) -> Path:
        """The API token for the stacks, as ``USER@REALM!NAME=UUID``; the daemon writes it."""
        return self.state_dir / "demo-token"

    def prepare(self) -> None:
        """Make the state folder with the secrets that belong to it, each one only once.

        LabError when the folder holds something else: ``destroy`` deletes it whole.
        """
        if self.state_dir.exists() and any(self.state_dir.iterdir()) and not (self.state_dir / MARKER).exists():
            raise LabError(f"{self.state_dir} is not empty and no lab's: name another folder in HERMES_LAB_DIR")
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state_dir.chmod(0o700)
        (self.state_dir / MARKER).touch()
        if not self.model_key_file.exists():
            write_secret(self.model_key_file, secrets.token_urlsafe(32) + "\n")
        if not self.passphrase_file.exists():
            write_secret(self.passphrase_file, secrets.token_urlsafe(32) + "\n")
        self.pulumi_state.mkdir(mode=0o700, exist_ok=True)
        if not self.ssh_key_file.exists():
            self.ssh_key_file.parent.mkdir(mode=0o700, exist_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(self.ssh_key_file)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=30)

    def exists(self) -> bool:
        return (self.state_dir / MARKER).exists()

    def ready(self) -> Ready:
        """What the daemon last said; LabError when it never came up."""
        try:
            return Ready(**json.loads((self.state_dir / "ready.json").read_text()))
        except FileNotFoundError:
            raise LabError("the lab is not up: scripts/lab up") from None
        except (ValueError, TypeError):
            raise LabError("the lab was made by another version: scripts/lab down, then scripts/lab up") from None

    def say_ready(self, ready: Ready) -> None:
        temporary = self.state_dir / "ready.json.new"
        temporary.write_text(json.dumps(asdict(ready), indent=2) + "\n")
        temporary.replace(self.state_dir / "ready.json")

    def last_port(self) -> int:
        """The port that the API had last, so that what points to it stays right; 0 for a new lab."""
        try:
            return int(json.loads((self.state_dir / "ready.json").read_text())["port"])
        except (OSError, ValueError, KeyError):
            return 0

    def last_ssh_port(self, node: str) -> int:
        """The port that a node's SSH server had last; 0 for a new lab."""
        try:
            return int(json.loads((self.state_dir / "ready.json").read_text())["node_ssh"][node]["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def daemon_pid(self) -> int | None:
        """The pid of the living daemon. It holds a lock as long as it lives, so a re-used pid can't mislead."""
        try:
            with (self.state_dir / "daemon.pid").open("r") as handle:
                try:
                    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return int(handle.read() or 0) or None
        except (FileNotFoundError, ValueError):
            pass
        return None

    @contextlib.contextmanager
    def being_the_daemon(self) -> Iterator[None]:
        """Hold the daemon's lock and name this process in it; LabError when another one does."""
        with (self.state_dir / "daemon.pid").open("a+") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LabError("the lab's daemon runs already") from None
            handle.seek(0)
            handle.truncate()
            handle.write(f"{os.getpid()}\n")
            handle.flush()
            yield

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Held by ``up``, ``down`` and ``destroy``, one at a time."""
        with (self.state_dir / "change.lock").open("a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def guests(self) -> list[dict[str, Any]]:
        """Each guest's ``node``, ``vmid`` and ``config`` text, from the files the API keeps."""
        return [
            {"node": file.parent.parent.name, "vmid": int(file.stem), "config": file.read_text()}
            for file in sorted(self.state_dir.glob("nodes/*/lxc/*.conf"))
            if file.stem.isdigit()
        ]


def write_secret(file: Path, text: str) -> None:
    """Write a file that no other user can read, at no moment."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)


__all__ = ["CACHE", "CHECKOUT", "Lab", "LabError", "Ready", "write_secret"]
