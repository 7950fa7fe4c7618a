"""Room on the disks: asked before something is begun that would end half-made on a full one."""

from __future__ import annotations

import os

from provisioning.guest.common import Refusal

# So much is free where a service may start: its databases write ahead before they give room back.
VOLUME_MB = 16
VOLUME_FILES = 64


def lacking(path: str, *, megabytes: int, files: int) -> str | None:
    """In words what the file system of `path` lacks of the room wished for; None when it has it."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize // 2**20
    if free < megabytes:
        return f"{free} of {found.f_blocks * found.f_frsize // 2**20} MB are free, {megabytes} are needed at least"
    # File systems that make inodes as they go count none.
    if found.f_files and found.f_favail < files:
        return f"it can take {found.f_favail} more files, {files} are needed at least"
    return None


def refuse_full_volume(home: str) -> None:
    """The agent would start, fail at its databases, and be restarted for ever."""
    if lack := lacking(home, megabytes=VOLUME_MB, files=VOLUME_FILES):
        raise Refusal(
            f"the disk at {home} is full: {lack}.\n"
            "Remove what the agent does not need, or give the volume more room: docs/operations.md, A full disk. "
            "Nothing was changed."
        )
