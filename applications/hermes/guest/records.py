"""Which backups are ours: their names, and the SHA-256 of their manifests, where the agent can't write.

A backup lies in the home, so the agent can change it, or make one that looks like ours. What root gives back is held to
what is noted here when it was made. The record is kept twice: in the container, and in a file of root's at the top of
the home, which outlives the container. The agent may remove that file (the folder is its own), but can make none that
belongs to root: so it is believed by its owner. Without a record a backup is not ours; it can be asked for by name.

Root writes here by the open folder alone, which is a mount point: no path is walked that the agent could change.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from applications.hermes.guest.names import KEPT_FOLDER
from provisioning.guest.common import NO_JSON, STATE, Refusal

HERE = STATE / "backups.json"
ON_VOLUME = f"{KEPT_FOLDER}-backups.json"
OWNER = 0
LIMIT = 1 << 20
NAME = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9][A-Za-z0-9.+_-]{0,100}\Z")
"""As state.py names a backup: UTC and the version. It is plain in every shell."""
SUM = re.compile(r"[0-9a-f]{64}\Z")


@contextlib.contextmanager
def one_at_a_time(seconds: float) -> Iterator[None]:
    """Nobody else of ours works on the backups meanwhile: a backup on schedule must not refuse an update its own.

    Waits so long, then Refusal. The lock of state.py itself is in the home, where the agent can hold it.
    """
    with alone(HERE.with_suffix(".lock"), seconds, "another backup or restore"):
        yield


@contextlib.contextmanager
def alone(path: Path, seconds: float, who: str) -> Iterator[None]:
    """With the lock of that path, which is root's. Waits so long for `who` has it, then Refusal."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise Refusal(f"{who} is at work for {seconds:g} s. Wait for its end.") from None
            time.sleep(0.2)
        yield


def known(home: str) -> dict[str, str]:
    """The sums of our backups' manifests, by name."""
    return {**_read_on_volume(home), **_record_in(_bytes_of(HERE))}


def remember(home: str, name: str, total: str) -> None:
    """Note a backup down, before anything is done that it is made for."""
    _write(home, {**known(home), name: total})


def forget(home: str, names: Iterable[str]) -> None:
    gone = set(names)
    if gone:
        _write(home, {name: total for name, total in known(home).items() if name not in gone})


def _record_in(content: bytes | None) -> dict[str, str]:
    with contextlib.suppress(*NO_JSON):
        found = json.loads(content or b"{}")
        if isinstance(found, dict):
            pairs = ((name, total) for name, total in found.items() if isinstance(total, str))
            return {name: total for name, total in pairs if NAME.match(name) and SUM.match(total)}
    return {}


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _read_on_volume(home: str) -> dict[str, str]:
    """Nothing unless it is a plain file that belongs to root alone, by this one name."""
    with contextlib.suppress(OSError), _opened(home) as folder:
        how = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        with os.fdopen(os.open(ON_VOLUME, how, dir_fd=folder), "rb") as stream:
            found = os.fstat(stream.fileno())
            ours = (found.st_uid, found.st_nlink, stat.S_IMODE(found.st_mode) & 0o022) == (OWNER, 1, 0)
            if stat.S_ISREG(found.st_mode) and ours and found.st_size <= LIMIT:
                return _record_in(stream.read(LIMIT))
    return {}


def _write(home: str, record: Mapping[str, str]) -> None:
    content = json.dumps(dict(sorted(record.items())), indent=0).encode()
    HERE.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = HERE.with_name(f".{HERE.name}.part")
    aside.write_bytes(content)
    aside.replace(HERE)
    try:
        with _opened(home) as folder:
            _replace_in(folder, content)
    except OSError as error:
        raise Refusal(
            f"{home}/{ON_VOLUME}, the stack's record of its backups, can't be written: {error.strerror}.\n"
            "Something else may lie in its place: look at it, and remove it."
        ) from None


def _replace_in(folder: int, content: bytes) -> None:
    part = f"{ON_VOLUME}.part"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    how = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(part, how, 0o644, dir_fd=folder), "wb") as stream:
        os.fchmod(stream.fileno(), 0o644)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    # A rename replaces a link and follows none.
    os.rename(part, ON_VOLUME, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _opened(home: str) -> Iterator[int]:
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)
