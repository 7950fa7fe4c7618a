"""Put a mount of the host into a running guest: ``python -m pvelab.hotmount PID SOURCE TARGET rw|ro OWNER``.

A program of its own, because joining a mount namespace wants a process with one
thread. The target's folders are made one by one and links are refused: the guest
rules over that tree, and it must not lead the host anywhere else. Exit code 0, or
1 with one line on standard error.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys

# Numbers that all architectures share, from the kernel's asm-generic/unistd.h, and flags from linux/mount.h.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH, MOVE_MOUNT_T_EMPTY_PATH = 0x4, 0x40
MOUNT_ATTR_RDONLY = 1
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
CLONE_NEWNS = 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def attach(pid: int, source: str, target: str, *, read_only: bool, owner: int) -> None:
    """Mount what is mounted at ``source`` here at ``target`` in the namespace of ``pid``; OSError when refused."""
    tree = _checked(
        _libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC), "open_tree"
    )
    if read_only:
        attributes = _MountAttr(attr_set=MOUNT_ATTR_RDONLY)
        size = ctypes.sizeof(attributes)
        _checked(
            _libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size), "mount_setattr"
        )
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _checked(_libc.setns(namespace, CLONE_NEWNS), "setns")
    place = walk(target, owner)
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _checked(_libc.syscall(SYS_MOVE_MOUNT, tree, b"", place, b"", flags), "move_mount")


def walk(path: str, owner: int, root: str = "/") -> int:
    """A descriptor of ``path`` below ``root``; missing folders are made and given to ``owner``."""
    here = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    seen = ""
    for part in (p for p in path.split("/") if p):
        if part == "..":
            raise OSError(f"'..' in {path}")
        seen = f"{seen}/{part}"
        try:
            os.mkdir(part, 0o755, dir_fd=here)
            os.chown(part, owner, owner, dir_fd=here, follow_symlinks=False)
        except FileExistsError:
            pass
        try:
            following = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        except NotADirectoryError:
            kind = "symlink" if stat.S_ISLNK(os.stat(part, dir_fd=here, follow_symlinks=False).st_mode) else "file"
            raise OSError(f"{kind} encountered at: {seen}") from None
        os.close(here)
        here = following
    return here


def main() -> int:
    pid, source, target, mode, owner = sys.argv[1:]
    try:
        attach(int(pid), source, target, read_only=mode == "ro", owner=int(owner))
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
