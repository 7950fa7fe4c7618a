"""The git repository of the Hermes Agent that the lab serves on the bridge: upstream's, or a stand-in for it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from lab.instance import CACHE
from lab.ports import GIT_PORT
from lab.services.releases import PINNED, PROJECT, Release, SourceError
from lab.services.standin import VERSION, make_standin, recipe
from lab.services.upstream import NONE, VARIABLE, copy_releases, find_clone, named_by_variable
from pvelab.network import recorded_process, stop_recorded
from pvelab.place import Place

Log = Callable[[str], None]
Kind = Literal["upstream", "stand-in"]

START_DEADLINE = 10.0
SOURCE_CACHE = CACHE / "lab-sources"
"""The copies that this checkout's labs serve."""


@dataclass(frozen=True)
class Source:
    """The repository: a bare folder, what it is, and the releases that a client can pin, newest first."""

    repository: Path
    kind: Kind
    releases: tuple[Release, ...]

    @property
    def newest(self) -> Release:
        """The release that the lab installs."""
        return self.releases[0]

    @property
    def previous(self) -> Release | None:
        """The one to update from; None where there is one only."""
        return self.releases[1] if len(self.releases) > 1 else None

    def about(self) -> str:
        """What the agent of this lab is made of, in one line."""
        if self.kind == "upstream":
            return f"upstream's tree, {self.newest.version} at {self.newest.commit[:8]}"
        why = f"{VARIABLE} says so" if os.environ.get(VARIABLE) == NONE else "upstream's tree was not to be had"
        return f"STAND-IN made of PyPI's {self.newest.version}: {why}"


def ensure_source(cache: Path, log: Log) -> Source:
    """The repository in ``cache``, made when it is not there yet; atomic, and one maker at a time.

    Upstream's (:mod:`lab.services.upstream`) where it can be had; the stand-in else, and where HERMES_LAB_UPSTREAM
    says ``none``.
    """
    forced = os.environ.get(VARIABLE) == NONE
    upstream = cache / f"upstream-{_digest(PINNED)}"
    if not forced:
        named = named_by_variable() is not None
        # A copy is complete and lasts; what the variable names is looked at nevertheless, to tell of a wrong one.
        clone = find_clone(log, cache, PINNED) if named or not _is_made(upstream) else None
        if clone is not None or _is_made(upstream):
            return _ensure(upstream, "upstream", lambda _, target: _copied(clone, target, log))
        log(f"serving a stand-in made of PyPI's {VERSION} instead; {VARIABLE} can name a clone")
    return ensure_standin(cache, log)


def ensure_standin(cache: Path, log: Log) -> Source:
    """The stand-in, also where upstream's repository is there."""
    return _ensure(cache / f"stand-in-{recipe()}", "stand-in", lambda folder, target: _standin(folder, target, log))


def _copied(clone: Path | None, target: Path, log: Log) -> tuple[Release, ...]:
    if clone is None:
        raise SourceError(f"{target.parent} has gone; try again")
    log(f"copying upstream's repository from {clone}; this is done once")
    copy_releases(clone, target, PINNED)
    return PINNED


def _standin(folder: Path, target: Path, log: Log) -> tuple[Release, ...]:
    log(f"making the git repository of {PROJECT} {VERSION} from its source archive; this is done once")
    return (make_standin(folder, target),)


def _ensure(folder: Path, kind: Kind, make: Callable[[Path, Path], tuple[Release, ...]]) -> Source:
    """The source in ``folder``; made there by ``make`` (a folder to work in, the repository) unless it is finished."""
    if not _is_made(folder):
        cache = folder.parent
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_made(folder):
                for leftover in cache.glob(".making-*"):
                    shutil.rmtree(leftover)
                making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
                try:
                    releases = make(making, making / f"{PROJECT}.git")
                    (making / "source.json").write_text(json.dumps([asdict(release) for release in releases]) + "\n")
                    making.chmod(0o755)
                    if folder.exists():  # made by another version of this program
                        shutil.rmtree(folder)
                    making.rename(folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
    found = json.loads((folder / "source.json").read_text())
    return Source(folder / f"{PROJECT}.git", kind, tuple(Release(**release) for release in found))


def _is_made(folder: Path) -> bool:
    try:
        return isinstance(json.loads((folder / "source.json").read_text()), list)
    except (OSError, ValueError):
        return False


def _digest(releases: Sequence[Release]) -> str:
    return hashlib.sha256(repr([asdict(release) for release in releases]).encode()).hexdigest()[:16]


class GitDaemon:
    """Serves the repositories of one folder, read-only, on the bridge's address; outlives this process."""

    def __init__(self, place: Place, host: str, folder: Path, port: int = GIT_PORT) -> None:
        self.host, self.port, self.folder = host, port, folder
        self._pid_file = place.run_dir / "git.pid"
        self._mark = str(self._pid_file)

    def url(self, source: Source) -> str:
        """The address that a guest clones from."""
        return f"git://{self.host}:{self.port}/{source.repository.name}"

    def start(self) -> None:
        """Start serving unless it already does; returns when it answers."""
        if recorded_process(self._pid_file, f"--base-path={self.folder}\0") is not None:
            return
        self.stop()  # it may be left from a lab that served another folder
        self._need_port()
        # As GitHub's server: a client may leave out the content of files, and ask for single ones. No similar objects
        # are looked for: that takes seconds of processor time for each client, and saves nothing on a bridge.
        command = [
            "git", "-c", "uploadpack.allowFilter=true", "-c", "pack.window=0", "daemon",
            "--detach", "--reuseaddr", "--export-all", "--timeout=60", "--max-connections=32",
            f"--base-path={self.folder}", f"--listen={self.host}", f"--port={self.port}",
            f"--pid-file={self._pid_file}", str(self.folder),
        ]  # fmt: skip
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=environment)
        # In the background it says no more why it ended.
        deadline = time.monotonic() + START_DEADLINE
        while done.returncode == 0 and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), timeout=1):
                return
            time.sleep(0.02)
        raise SourceError(f"git daemon does not answer on {self.host} port {self.port}: {done.stderr.strip()}")

    def _need_port(self) -> None:
        """SourceError when somebody else listens there; an answer would otherwise be taken for ours."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
                probe.listen()
            except OSError as error:
                raise SourceError(
                    f"git daemon can't listen on {self.host} port {self.port}: {error.strerror}"
                ) from error

    def stop(self) -> None:
        """End it."""
        stop_recorded(self._pid_file, self._mark)


if __name__ == "__main__":

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    # For scripts/test, which ends with this line.
    sys.stdout.write(f"agent: {ensure_source(SOURCE_CACHE, say).about()}\n")
