"""Unmount a device in the mount namespace of another process: ``python -m pvelab.letgo PID MAJOR:MINOR``.

A program of its own, because joining a mount namespace wants a process with one thread. The process itself is not
touched. Its own list of mounts would not do: where it lives in another root (chroot), that list leaves out what lies
outside, and the namespace holds it all the same. Who joins a namespace has the namespace's own root, and sees all.
Exit code 0 with one line for each mount that is gone, or 1 with one line on standard error.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CLONE_NEWNS = 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mounted(mountinfo: str, device: str) -> list[str]:
    """Where a device is mounted, the newest first, of the text of a ``mountinfo`` (proc(5))."""
    lines = [line.split() for line in mountinfo.splitlines()]
    places = [fields[4] for fields in reversed(lines) if fields[2] == device]
    return [re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), at) for at in places]


def let_go(pid: int, device: str) -> list[str]:
    """Detach every mount of the device there; answers where they were. OSError when the namespace can't be joined."""
    # By a descriptor: there may be no /proc in that namespace.
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    _checked(_libc.setns(namespace, CLONE_NEWNS), "setns")
    with os.fdopen(os.open("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=own)) as file:
        places = mounted(file.read(), device)
    # One that another mount covers is refused, and stays.
    return [at for at in places if _libc.umount2(os.fsencode(at), MNT_DETACH | UMOUNT_NOFOLLOW) == 0]


def main() -> int:
    pid, device = sys.argv[1:]
    try:
        places = let_go(int(pid), device)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    sys.stdout.write("".join(f"{at}\n" for at in places))
    return 0


if __name__ == "__main__":
    sys.exit(main())
