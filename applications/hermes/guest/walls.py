"""What the container sees of the guest, and that the agent can't make a path of it lead elsewhere.

An engine looks a mount's source up at each start of a container, as root and through links. So no part of a path that
it is given may lie in a folder that the agent can write: with a link in its place the image's init would give the
agent whatever it points to. The state directory is such a part, as it lies in the agent's home. It is opened part by
part without following a link, and what was opened, not its name, is mounted below /run, where only root writes.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from applications.hermes.guest.inputs import ContainerRecord
from provisioning.guest.common import Refusal, is_mounted

DATA_MOUNT = "/run/hermes-stack/data"
"""Where the engine finds the state directory. In no volume, and below root's folders only."""
ROOT = "/"
_OPENING = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Of linux/mount.h and fs.h.
_MS_BIND, _MS_REC, _MNT_DETACH = 4096, 16384, 2


class Unsafe(Exception):  # noqa: N818 - a finding
    """Why a path is not given to an engine, in words that begin with it."""


@dataclass(frozen=True)
class Account:
    """The agent's, as numbers: who must not be able to rename anything."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Sources:
    """What the container has of the guest. `hermes_home` is `home` or below it; `folders` may be files, too."""

    account: Account
    home: str
    hermes_home: str
    folders: tuple[str, ...] = ()


def refuse_unsafe(sources: Sources) -> None:
    """Refusal that names every path which the agent can change, or which is not there."""
    found: dict[str, None] = {}
    looks = [partial(open_owned, path, sources.account) for path in (sources.home, *sources.folders)]
    for look in (*looks, partial(_state_directory, sources)):
        try:
            os.close(look())
        except Unsafe as unsafe:
            found[str(unsafe)] = None
    if found:
        raise Refusal("the container can't be given what it is to see:\n" + "\n".join(f"  {line}" for line in found))


def bind_state(sources: Sources) -> None:
    """Have DATA_MOUNT be the state directory. What is mounted there already, and still is it, stays."""
    try:
        handle = _state_directory(sources)
    except Unsafe as unsafe:
        raise Refusal(f"the container can't be given what it is to see:\n  {unsafe}") from None
    try:
        Path(DATA_MOUNT).mkdir(mode=0o755, parents=True, exist_ok=True)
        if is_mounted(DATA_MOUNT):
            if os.path.samestat(Path(DATA_MOUNT).stat(), os.fstat(handle)):
                return
            unbind_state()
        # By the descriptor: mount(8) would look the name up again.
        _called("mount", f"/proc/self/fd/{handle}".encode(), DATA_MOUNT.encode(), None, _MS_BIND | _MS_REC, None)
    finally:
        os.close(handle)


def unbind_state() -> None:
    """Take away every mount at DATA_MOUNT; what is in the state directory stays."""
    while is_mounted(DATA_MOUNT):
        _called("umount2", DATA_MOUNT.encode(), _MNT_DETACH)


def _called(name: str, *arguments: bytes | int | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), DATA_MOUNT)


def open_owned(path: str, account: Account) -> int:
    """A descriptor (O_PATH) of what is at an absolute path, for the caller to close.

    Raises Unsafe where a part is missing or a link, or lies in a folder that the account can write.
    """
    parts = PurePosixPath(path).parts[1:]
    return _walk(os.open(ROOT, _OPENING), "/", parts, account, trusted=False)


def _state_directory(sources: Sources) -> int:
    """A descriptor of the state directory: folders of the agent's all the way down from its home, and no link."""
    home = open_owned(sources.home, sources.account)
    below = PurePosixPath(sources.hermes_home).relative_to(sources.home).parts
    return _walk(home, sources.home, below, sources.account, trusted=True)


def _walk(handle: int, at: str, parts: Sequence[str], account: Account, *, trusted: bool) -> int:
    """Open one part after the other, from `handle` on, which this closes.

    `trusted`: the account may write the folders that are passed, but then each part has to be a folder of its own: only
    what is opened counts, for the caller does not use the name.
    """
    for part in parts:
        try:
            if not trusted:
                _refuse_writable(handle, at, part, account)
            at = f"{at.rstrip('/')}/{part}"
            following = _open_part(handle, part, at)
        finally:
            os.close(handle)
        handle = following
        if trusted:
            _refuse_foreign(handle, at, account)
    return handle


def _open_part(handle: int, part: str, at: str) -> int:
    try:
        found = os.open(part, _OPENING, dir_fd=handle)
    except (FileNotFoundError, NotADirectoryError):
        raise Unsafe(f"{at}: there is no such folder in the guest") from None
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise Unsafe(f"{at} is a symbolic link, and root follows none here")
    return found


def _refuse_writable(folder: int, at: str, part: str, account: Account) -> None:
    """Unsafe when the account can rename what is in a folder."""
    found = os.fstat(folder)
    writes = (
        found.st_uid == account.uid
        or found.st_mode & stat.S_IWOTH
        or (found.st_gid == account.gid and found.st_mode & stat.S_IWGRP)
    )
    if writes and not os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        raise Unsafe(f"{at} can be written by the agent, which could make a link of {part} in it")


def _refuse_foreign(folder: int, at: str, account: Account) -> None:
    """Unsafe, and the descriptor closed, when this is no folder of the account's."""
    found = os.fstat(folder)
    if stat.S_ISDIR(found.st_mode) and found.st_uid == account.uid:
        return
    os.close(folder)
    raise Unsafe(f"{at} has to be a folder of user {account.uid}; it belongs to user {found.st_uid}")


def sources_of(container: ContainerRecord) -> Sources:
    """From the record of the container."""
    account = Account(container.uid, container.gid)
    return Sources(account, container.home, container.hermes_home, container.folders)
