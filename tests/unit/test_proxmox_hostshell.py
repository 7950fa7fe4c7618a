"""Root's shell on the node: what is asked, how it is read, and what a node that does not do it is told as."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from proxmox import hostshell
from proxmox.client import Guest
from proxmox.errors import NodeShellFailed, NotAsPlanned, RootNeeded
from proxmox.facts import GuestFacts
from proxmox.host_mounts import FolderFacts, HostMount, HostMountSpec
from proxmox.hostshell import ensure_host_mounts, prove_host_mounts, read_folder, read_fstab, require_node

DATA = HostMount("/mnt/pve/hdd/hermes", "/data", owner=10000)
WISH = HostMountSpec(118, "pve2", (DATA,), keyctl=True)
DONE = {"features": "keyctl=1,nesting=1", "mp1": "/mnt/pve/hdd/hermes,mp=/data"}


@dataclass(frozen=True)
class Answer:
    status: int = 0
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass
class Shell:
    """Answers by the program's name, or by the whole command."""

    answers: dict[str, Answer | Callable[[str], Answer]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)

    def run(self, command: str, *, timeout_s: float = 60.0) -> Answer:
        assert timeout_s <= 60.0
        self.commands.append(command)
        found = self.answers.get(command) or self.answers.get(command.split(maxsplit=1)[0])
        if found is None:
            raise AssertionError(f"nobody expects {command}")
        return found if isinstance(found, Answer) else found(command)


NODE: dict[str, Answer | Callable[[str], Answer]] = {
    "hostname": Answer(stdout=b"pve2.example.org\n"),
    "id": Answer(stdout=b"0\n"),
}


class Guarded:
    """Stands for the client where only its lock is needed."""

    def guard(self, _vmid: int) -> Any:
        import contextlib  # noqa: PLC0415

        return contextlib.nullcontext()

    def guests(self) -> tuple[Guest, ...]:
        return (Guest(118, "lxc", "pve2", "hermes", template=False, lock=None),)

    def guest_config(self, *_: Any) -> dict[str, str]:
        return {"unprivileged": "1"}


def test_the_node_is_the_one_and_the_user_is_root() -> None:
    require_node(Shell(NODE), "pve2")
    with pytest.raises(NodeShellFailed, match="is that of node pve2, not of pve"):
        require_node(Shell(NODE), "pve")
    with pytest.raises(NodeShellFailed, match="has number 1000"):
        require_node(Shell({**NODE, "id": Answer(stdout=b"1000\n")}), "pve2")
    with pytest.raises(NodeShellFailed) as caught:
        require_node(Shell({"hostname": Answer(127, b"", b"sh: hostname: not\n found")}), "pve2")
    assert "sh: hostname: not found" in str(caught.value)


@pytest.mark.parametrize(
    ("there", "listed", "expected"),
    [
        (
            {"/mnt/pve/hdd/hermes": "41ed 110000 110000 /mnt/pve/hdd"},
            b"/mnt/pve/hdd/hermes/x\n",
            FolderFacts(DATA.source, DATA.source, 0o040755, 110000, 110000, empty=False, mounted_at="/mnt/pve/hdd"),
        ),
        (
            {"/mnt/pve/hdd/hermes": "41ed 0 0 /mnt/my disks"},
            b"",
            FolderFacts(DATA.source, DATA.source, 0o040755, 0, 0, empty=True, mounted_at="/mnt/my disks"),
        ),
        # Of what is missing, the nearest folder that exists tells the disk.
        (
            {"/mnt/pve": "41ed 0 0 /", "/": "41ed 0 0 /"},
            b"",
            FolderFacts(DATA.source, DATA.source, mounted_at="/", above="/mnt/pve"),
        ),
    ],
)
def test_a_folder_is_read_by_numbers(there: dict[str, str], listed: bytes, expected: FolderFacts) -> None:
    def look(command: str) -> Answer:
        found = there.get(shlex.split(command)[-1])
        return Answer(stdout=f"{found}\n".encode()) if found else Answer(1, b"", b"stat: no such file, in any language")

    shell = Shell({"realpath": Answer(stdout=f"{DATA.source}\n".encode()), "stat": look, "find": Answer(stdout=listed)})
    assert read_folder(shell, DATA.source) == expected


def test_the_fstab_is_read_as_it_is_written() -> None:
    told = b"/\nnone\n/media/my\\x20disk\n"
    assert read_fstab(Shell({"findmnt": Answer(stdout=told)})) == ("/", "/media/my disk")
    assert read_fstab(Shell({"findmnt": Answer(1)})) == ()
    with pytest.raises(NodeShellFailed, match="status 127"):
        read_fstab(Shell({"findmnt": Answer(127)}))


def test_without_a_shell_the_commands_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostshell, "read_guest", lambda *_: GuestFacts(118, "pve2", running=False))
    with pytest.raises(RootNeeded, match="needs what only root on node pve2 may set") as caught:
        ensure_host_mounts(Guarded(), None, WISH)  # type: ignore[arg-type]
    assert "pct set 118 --features keyctl=1,nesting=1 --mp1 /mnt/pve/hdd/hermes,mp=/data" in str(caught.value)
    # Pasted.
    monkeypatch.setattr(hostshell, "read_guest", lambda *_: GuestFacts(118, "pve2", running=True, config=DONE))
    state = ensure_host_mounts(Guarded(), None, WISH)  # type: ignore[arg-type]
    assert (state.keyctl, state.pending, state.placed[DATA].slot) == (True, False, "mp1")


def settings(**answers: Any) -> Shell:
    folder = {
        "realpath": Answer(stdout=f"{DATA.source}\n".encode()),
        "stat": Answer(stdout=b"41ed 110000 110000 /mnt/pve/hdd\n"),
        "find": Answer(),
        "findmnt": Answer(stdout=b"/\nnone\n"),
    }
    return Shell({**NODE, **folder, **answers})


def test_a_change_of_somebody_elses_in_between_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    guests = [
        GuestFacts(118, "pve2", running=False, digest="one"),
        GuestFacts(118, "pve2", running=False, digest="two"),
    ]
    after = GuestFacts(118, "pve2", running=False, config=DONE)
    told: list[str] = []

    def pct(command: str) -> Answer:
        told.append(command.rpartition("--digest ")[2])
        if told == ["one"]:
            return Answer(255, b"", b"detected modified configuration - file changed by other user? Try again.\n")
        guests.append(after)
        return Answer()

    def read(*_: Any) -> GuestFacts:
        return guests[-1] if len(guests) > 2 else guests[1 if told else 0]

    monkeypatch.setattr(hostshell, "read_guest", read)
    ensure_host_mounts(Guarded(), settings(pct=pct), WISH)  # type: ignore[arg-type]
    assert told == ["one", "two"]


def test_a_node_that_refuses_or_does_not_do_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostshell, "read_guest", lambda *_: GuestFacts(118, "pve2", running=False))
    with pytest.raises(NodeShellFailed, match="ended with status 255") as caught:
        ensure_host_mounts(Guarded(), settings(pct=Answer(255, b"", b"CT is locked (backup)\n")), WISH)  # type: ignore[arg-type]
    assert "CT is locked (backup)" in str(caught.value)
    with pytest.raises(NotAsPlanned):
        ensure_host_mounts(Guarded(), settings(pct=Answer()), WISH)  # type: ignore[arg-type]


def test_the_proof_is_a_write_by_the_owner_and_for_a_read_only_mount_a_look() -> None:
    films = HostMount("/srv/films", "/films", owner=0, read_only=True)
    shell = Shell({**NODE, "pct": Answer()})
    client: Any = Guarded()
    prove_host_mounts(client, shell, HostMountSpec(118, "pve2", (DATA, films)))
    write, look = (shlex.split(command) for command in shell.commands if command.startswith("pct"))
    head = ["pct", "exec", "118", "--", "setpriv", "--reuid"]
    assert (write[:6], write[6], write[-1]) == (head, "10000", "/data")
    assert (look[:6], look[6], look[-1]) == (head, "0", "/films")
    assert "mktemp" in write[-3]
    assert "mktemp" not in look[-3]
    refused = Shell({**NODE, "pct": Answer(1, b"", b"mktemp: Permission denied\n")})
    with pytest.raises(NotAsPlanned, match="user 10000 of CT 118 can't write to /data") as caught:
        prove_host_mounts(client, refused, WISH)
    assert "expected owner 110000" in str(caught.value)


def test_the_scripts_of_the_proof_are_valid_shell(tmp_path: Any) -> None:
    import subprocess  # noqa: PLC0415

    for script in (hostshell._WRITE, hostshell._READ):
        subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=10)
        # What is no mount point of its own is refused: the write would land in the container.
        done = subprocess.run(["sh", "-c", script, "sh", str(tmp_path)], check=False, timeout=10)
        assert done.returncode != 0
