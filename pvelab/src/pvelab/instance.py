"""One lab on disk: where its files are, what it last said about itself, whether its daemon lives."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypedDict

from pvelab.place import LabError, Place
from pvelab.release import DEFAULT

MARKER = "THIS-IS-A-LAB"
TOKEN_FILE = "token"  # noqa: S105 - the name of a file
FOLDER_VARIABLE = "PVELAB_DIR"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def default_folder() -> Path:
    """The folder that ``PVELAB_DIR`` names, or the user's own lab."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named).expanduser().absolute()
    return _base("XDG_STATE_HOME", ".local/state") / "pvelab"


def template_cache() -> Path:
    """Where templates are kept for all labs: the folder that ``PVELAB_TEMPLATES`` names, or one in the user's cache."""
    if named := os.environ.get("PVELAB_TEMPLATES"):
        return Path(named).expanduser().absolute()
    return _base("XDG_CACHE_HOME", ".cache") / "pvelab" / "templates"


def _base(variable: str, below_home: str) -> Path:
    named = Path(os.environ.get(variable, ""))
    return named if named.is_absolute() else Path.home() / below_home


class NodeDoor(TypedDict):
    """A node's SSH server, on loopback."""

    port: int
    host_key: str


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What a lab's daemon says about itself once all of it answers. ``None``: not there without containers."""

    containers: bool
    endpoint: str
    port: int
    ca_file: str
    node: str
    template: str
    node_ssh_port: int | None = None
    node_ssh_host_key: str | None = None
    node_ssh: dict[str, NodeDoor] | None = None
    """The way to root on each node; that of ``node`` stands above as well."""
    template_newer: str | None = None
    """The volid of Debian 13; None until `up --debian-13` has built it."""
    bridge: str | None = None
    gateway: str | None = None
    subnet: str | None = None


@dataclass(frozen=True)
class Lab:
    """A lab's state folder and what lies in it."""

    state_dir: Path
    ready_type: ClassVar[type[Ready]] = Ready
    command: ClassVar[str] = "pvelab"
    """How texts call the command that is made for it."""
    variable: ClassVar[str] = FOLDER_VARIABLE
    """What names the folder."""

    @property
    def template_cache(self) -> Path:
        """Where templates are built, once for all labs that share the folder."""
        return template_cache()

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
                raise LabError(f"node {node} has guests: it can't be left out ({self.command} destroy removes them)")
        (self.state_dir / "node-count").write_text(f"{count}\n")

    @property
    def pve(self) -> str:
        """The release that it is a lab of, one of :data:`pvelab.release.RELEASES`."""
        file = self.state_dir / "release"
        return file.read_text().strip() if file.exists() else DEFAULT

    def set_release(self, pve: str) -> None:
        """Be of a release from the first start on; LabError when it was made as another."""
        if (self.state_dir / "access.json").exists() and pve != self.pve:
            raise LabError(f"the lab was made as Proxmox VE {self.pve} ({self.command} destroy removes it)")
        (self.state_dir / "release").write_text(f"{pve}\n")

    @property
    def more_storages(self) -> dict[str, str]:
        """The storages that it has beside the standard ones: type by name."""
        file = self.state_dir / "storages.json"
        found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def add_storages(self, given: Iterable[tuple[str, str]]) -> None:
        """Have these from the next start on; LabError for a name that is another type's already."""
        storages = self.more_storages
        for name, kind in given:
            if storages.setdefault(name, kind) != kind:
                raise LabError(f"storage {name} is of type {storages[name]} ({self.command} destroy removes it)")
        (self.state_dir / "storages.json").write_text(json.dumps(storages) + "\n")

    @property
    def power_file(self) -> Path:
        """Which guests run, in a lab without containers."""
        return self.state_dir / "simulated.json"

    def was_up(self) -> bool:
        """Whether the nodes are up since an earlier daemon's time: neither ``down`` nor a boot of the machine since."""
        file = self.state_dir / "up-since"
        return file.exists() and file.read_text() == _BOOT_ID.read_text()

    def note_up(self) -> None:
        """The nodes are up from now on."""
        (self.state_dir / "up-since").write_text(_BOOT_ID.read_text())

    def note_down(self) -> None:
        """The nodes are off, and so are the guests."""
        for file in (self.state_dir / "up-since", self.power_file):
            file.unlink(missing_ok=True)

    @property
    def place(self) -> Place:
        return Place.of(self.state_dir)

    @property
    def log_file(self) -> Path:
        return self.state_dir / "daemon.log"

    @property
    def ssh_key_file(self) -> Path:
        return self.state_dir / "ssh" / "id_ed25519"

    @property
    def token_file(self) -> Path:
        """The account's API token, as ``USER@REALM!NAME=UUID``; the daemon writes it."""
        return self.state_dir / TOKEN_FILE

    def prepare(self) -> None:
        """Make the state folder with the secrets that belong to it, each one only once.

        LabError when the folder holds something else: ``destroy`` deletes it whole.
        """
        if self.state_dir.exists() and any(self.state_dir.iterdir()) and not (self.state_dir / MARKER).exists():
            raise LabError(f"{self.state_dir} is not empty and no lab's: name another folder in {self.variable}")
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.state_dir.chmod(0o700)
        (self.state_dir / MARKER).touch()
        if not self.ssh_key_file.exists():
            self.ssh_key_file.parent.mkdir(mode=0o700, exist_ok=True)
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(self.ssh_key_file)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=30)

    def exists(self) -> bool:
        return (self.state_dir / MARKER).exists()

    def ready(self) -> Ready:
        """What the daemon last said; LabError when it never came up."""
        try:
            return self.ready_type(**json.loads((self.state_dir / "ready.json").read_text()))
        except FileNotFoundError:
            raise LabError(f"the lab is not up: {self.command} up") from None
        except (ValueError, TypeError):
            raise LabError(
                f"the lab was made by another version: {self.command} down, then {self.command} up"
            ) from None

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
    """A file that no other user can read, at no moment; replaced at once."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    temporary.replace(file)


__all__ = ["Lab", "LabError", "Ready", "default_folder", "template_cache", "write_secret"]
