"""The folders of a lab's node, below its state folder, and the few programs that root uses on them.

A node's ``/mnt/pve/hdd/x`` is ``<state_dir>/nodes/<node>/host/mnt/pve/hdd/x`` on this machine: nothing outside of the
state folder is read or written, and links are never followed, for guests rule over what is mounted in them. The
programs know the options that they are given here and refuse all others; their answers are those of GNU coreutils and
findutils.

Two disks are mounted on each node, :data:`DISKS`, until ``umount``: then their mount points are empty folders of the
root file system, on which everything else lies. Without root on this machine nobody can give a folder away: then a file
remembers who would own it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

DISKS = ("/mnt/pve/hdd", "/media/2tb")
"""Where a disk of the node's is mounted."""
IN_FSTAB = ("/media/2tb",)
"""The disks that the node's fstab knows; what is below /mnt/pve is mounted by Proxmox."""
OWN = ("/home", "/opt", "/srv", "/var")
"""What a node has without anybody's doing, as far as it may be shared."""
OWNERS = "host-owners.json"
UNMOUNTED = "host-unmounted"
"""Beside the node's file system: the disks that are not mounted."""
PROGRAMS = frozenset(
    {*("chown", "find", "findmnt", "id", "mkdir", "mount", "mountpoint", "realpath", "stat", "umount")}
)

Answer = tuple[int, str, str]
"""Exit status, output, error output."""


class UsageError(Exception):
    """A program was given something that it does not do here."""


class HostFolders:
    """The node's own file system, ``root`` on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._owners = root.parent / OWNERS
        self._unmounted = root.parent / UNMOUNTED

    def prepare(self) -> None:
        """Make the disks' mount points, and the folders that every node has."""
        for folder in (*DISKS, *OWN):
            self.on_machine(folder).mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Be as after :meth:`prepare` on a new node, where the node was prepared."""
        if self._root.exists():
            for folder in (self._root, self._unmounted):
                shutil.rmtree(folder, ignore_errors=True)
            self._owners.unlink(missing_ok=True)
            self.prepare()

    def on_machine(self, path: str) -> Path:
        """Where a path of the node is on this machine; UsageError for one that would lead out."""
        pure = PurePosixPath(path)
        if not pure.is_absolute() or ".." in pure.parts:
            raise UsageError(f"only absolute paths without .. are known here: {path}")
        return self._root.joinpath(*pure.parts[1:])

    def run(self, program: str, words: Sequence[str]) -> Answer:
        """One of :data:`PROGRAMS`."""
        programs = {
            "chown": self._chown,
            "find": self._find,
            "findmnt": self._findmnt,
            "id": self._id,
            "mkdir": self._mkdir,
            "mount": self._mount,
            "mountpoint": self._mountpoint,
            "realpath": self._realpath,
            "stat": self._stat,
            "umount": self._umount,
        }
        try:
            return programs[program](list(words))
        except UsageError as error:
            return 1, "", f"{program}: {error}\n"

    # --- programs ---

    def _id(self, words: list[str]) -> Answer:
        _expect(words, ["-u"])
        return 0, "0\n", ""

    def _realpath(self, words: list[str]) -> Answer:
        path = _operand(words, ["-m", "--"])
        return 0, f"{self._real(path)}\n", ""

    def _real(self, path: str, depth: int = 0) -> PurePosixPath:
        """The path without links, as seen on the node."""
        if depth > 40:
            raise UsageError(f"{path}: Too many levels of symbolic links")
        here = PurePosixPath("/")
        parts = list(PurePosixPath(path).parts[1:])
        while parts:
            here = here / parts.pop(0)
            if here.name == "..":
                here = here.parent.parent
                continue
            found = self.on_machine(str(here))
            if found.is_symlink():
                target = here.parent / found.readlink()
                return self._real(str(target.joinpath(*parts)), depth + 1)
        return here

    def _stat(self, words: list[str]) -> Answer:
        path = _operand(words, ["-c", "%f %u %g %m", "--"])
        found = self._look(path)
        if found is None:
            return 1, "", f"stat: cannot statx '{path}': No such file or directory\n"
        uid, gid = self._owner(path, found)
        real = self._real(path)
        disk = next((disk for disk in DISKS if real.is_relative_to(disk) and self._is_mounted(disk)), "/")
        return 0, f"{found.st_mode:x} {uid} {gid} {disk}\n", ""

    def _find(self, words: list[str]) -> Answer:
        if words[1:] != ["-mindepth", "1", "-maxdepth", "1", "-print", "-quit"]:
            raise UsageError("only PATH -mindepth 1 -maxdepth 1 -print -quit is known here")
        if self._look(words[0]) is None:
            return 1, "", f"find: '{words[0]}': No such file or directory\n"
        with os.scandir(self._plain(words[0])) as entries:
            first = next(entries, None)
        return 0, f"{words[0]}/{first.name}\n" if first else "", ""

    def _findmnt(self, words: list[str]) -> Answer:
        _expect(words, ["--fstab", "--noheadings", "--raw", "--output", "TARGET"])
        return 0, "".join(f"{target}\n" for target in ("/", "none", *IN_FSTAB)), ""

    def _mountpoint(self, words: list[str]) -> Answer:
        path = _operand(words, [])
        if path in DISKS and self._is_mounted(path):
            return 0, f"{path} is a mountpoint\n", ""
        return 32, f"{path} is not a mountpoint\n", ""

    def _umount(self, words: list[str]) -> Answer:
        """Whoever has a folder of the disk mounted keeps it, as after ``umount --lazy``."""
        disk = _operand(words, [])
        if disk not in DISKS or not self._is_mounted(disk):
            return 32, "", f"umount: {disk}: not mounted.\n"
        self._aside(disk).parent.mkdir(exist_ok=True)
        self.on_machine(disk).rename(self._aside(disk))
        self.on_machine(disk).mkdir()
        return 0, "", ""

    def _mount(self, words: list[str]) -> Answer:
        """What was written to the mount point meanwhile would be hidden; here it is in the way, so that it is seen."""
        disk = _operand(words, [])
        if disk not in DISKS or self._is_mounted(disk):
            return 32, "", f"mount: {disk}: already mounted, or not in fstab.\n"
        self.on_machine(disk).rmdir()
        self._aside(disk).rename(self.on_machine(disk))
        return 0, "", ""

    def _is_mounted(self, disk: str) -> bool:
        return not self._aside(disk).exists()

    def _aside(self, disk: str) -> Path:
        return self._unmounted / disk.strip("/").replace("/", "-")

    def _mkdir(self, words: list[str]) -> Answer:
        path = _operand(words, ["-p", "--"])
        self._plain(path).mkdir(parents=True, exist_ok=True)
        return 0, "", ""

    def _chown(self, words: list[str]) -> Answer:
        if len(words) != 4 or words[0] != "-h" or words[2] != "--":
            raise UsageError("only -h UID:GID -- PATH is known here")
        uid, _, gid = words[1].partition(":")
        path = words[3]
        if not (uid.isdigit() and gid.isdigit()):
            raise UsageError(f"invalid user: '{words[1]}'")
        if self._look(path) is None:
            return 1, "", f"chown: cannot access '{path}': No such file or directory\n"
        if os.geteuid() == 0:
            os.chown(self._plain(path), int(uid), int(gid), follow_symlinks=False)
        else:
            self._remember(path, (int(uid), int(gid)))
        return 0, "", ""

    # --- inside ---

    def _plain(self, path: str) -> Path:
        """The path on this machine when no link is on the way to it."""
        if self._real(path) != PurePosixPath(path):
            raise UsageError(f"{path}: a symbolic link is on the way, which this lab does not follow")
        return self.on_machine(path)

    def _look(self, path: str) -> os.stat_result | None:
        try:
            return (
                self.on_machine(str(self._real(str(PurePosixPath(path).parent))))
                .joinpath(*PurePosixPath(path).parts[-1:] if path != "/" else ())
                .lstat()
            )
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _owner(self, path: str, found: os.stat_result) -> tuple[int, int]:
        if os.geteuid() == 0:
            return found.st_uid, found.st_gid
        uid, gid = self._remembered().get(path, (0, 0))
        return uid, gid

    def _remembered(self) -> dict[str, tuple[int, int]]:
        try:
            return {path: (uid, gid) for path, (uid, gid) in json.loads(self._owners.read_text()).items()}
        except FileNotFoundError:
            return {}

    def _remember(self, path: str, owner: tuple[int, int]) -> None:
        self._owners.write_text(json.dumps({**self._remembered(), path: owner}, indent=1) + "\n")


def is_plain_folder(folder: Path) -> bool:
    """Whether a folder can be mounted: it is there, and no link is on the way to it."""
    try:
        return stat.S_ISDIR(folder.lstat().st_mode) and folder.resolve() == folder
    except OSError:
        return False


def _expect(words: list[str], known: list[str]) -> None:
    if words != known:
        raise UsageError(f"only {' '.join(known)} is known here")


def _operand(words: list[str], options: list[str]) -> str:
    if words[:-1] != options:
        raise UsageError(f"only {' '.join(options)} PATH is known here")
    return words[-1]
