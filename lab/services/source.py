"""A git repository of the Hermes Agent, made from its PyPI source archive, served on the bridge.

The lab may have no way to the upstream repository. The archive on PyPI holds the
same tree (less tests and packaging helpers), so the repository made from it lets the path
"fetch a pinned commit" run for real. The commit depends on nothing but the
archive: author, date and message are fixed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from lab.network import GIT_PORT, recorded_process, stop_recorded
from lab.place import LabError, Place

Log = Callable[[str], None]

PROJECT = "hermes-agent"
VERSION = "0.19.0"
TAG = "v2026.7.20"
ARCHIVE_SHA256 = "ac986bede64a2785436676c0ea084ec586574f8cb00a9d047e095b435d3e21c0"
"""Of hermes_agent-0.19.0.tar.gz, as the package index states it."""
COMMIT_DATE = "2026-07-20T00:00:00+0000"
DOWNLOAD_DEADLINE = 120.0
START_DEADLINE = 10.0


class SourceError(LabError):
    """The repository can't be made or served; the text says why and what to do."""


@dataclass(frozen=True)
class Source:
    """The repository: a bare folder, and what a client pins."""

    repository: Path
    version: str
    tag: str
    commit: str


def package_index() -> str:
    """The package index of this machine: uv's or pip's variable, else pip's default."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if address := os.environ.get(name):
            return address.rstrip("/")
    from pip._internal.models.index import PyPI  # noqa: PLC0415 - pip is slow to load, and pinned

    return str(PyPI.simple_url)


def ensure_source(cache: Path, log: Log) -> Source:
    """The repository in ``cache``, made when it is not there yet; atomic, and one maker at a time."""
    folder = cache / f"{PROJECT}-{VERSION}"
    if not (folder / "source.json").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "source.json").exists():
                for leftover in cache.glob(".making-*"):
                    shutil.rmtree(leftover)
                log(f"making the git repository of {PROJECT} {VERSION} from its source archive; this is done once")
                making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
                try:
                    _make(making)
                    making.rename(folder)
                finally:
                    shutil.rmtree(making, ignore_errors=True)
    found = json.loads((folder / "source.json").read_text())
    return Source(folder / f"{PROJECT}.git", found["version"], found["tag"], found["commit"])


def _make(making: Path) -> None:
    archive = making / "archive.tar.gz"
    _download(archive)
    tree = making / "tree"
    with tarfile.open(archive) as opened:
        # Debian 12's Python 3.11.2 knows no filters yet.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        opened.extractall(tree, **safely)  # noqa: S202 - see above
    (top,) = tree.iterdir()
    commit = build_repository(top, making / f"{PROJECT}.git")
    shutil.rmtree(tree)
    archive.unlink()
    (making / "source.json").write_text(json.dumps({"version": VERSION, "tag": TAG, "commit": commit}) + "\n")
    making.chmod(0o755)


def build_repository(tree: Path, repository: Path) -> str:
    """A bare repository with one commit of ``tree``, tagged; returns the commit, which the tree alone decides."""
    who = {"NAME": "Hermes lab", "EMAIL": "lab@localhost", "DATE": COMMIT_DATE}
    environment = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    _git(["init", "-q", "--bare", "-b", "main", str(repository)])
    at = ["--git-dir", str(repository), "--work-tree", str(tree)]
    settings = ["-c", "core.autocrlf=false", "-c", "core.safecrlf=false"]
    _git([*settings, *at, "add", "--all", "--force", "."])
    _git([*at, "commit", "-q", "-m", f"{PROJECT} {VERSION}, from its source archive"], environment)
    _git([*at, "tag", TAG])
    # A client asks for the pinned commit by its id, as it would ask the large hosts.
    _git(["--git-dir", str(repository), "config", "uploadpack.allowAnySHA1InWant", "true"])
    return _git(["--git-dir", str(repository), "rev-parse", "HEAD"]).strip()


def _download(target: Path) -> None:
    name = f"{PROJECT.replace('-', '_')}-{VERSION}.tar.gz"
    index = f"{package_index()}/{PROJECT}/"
    try:
        page = requests.get(index, headers={"Accept": "application/vnd.pypi.simple.v1+json"}, timeout=30)
        page.raise_for_status()
        address = next(f["url"] for f in page.json()["files"] if f["filename"] == name)
        answer = requests.get(urllib.parse.urljoin(index, address), timeout=DOWNLOAD_DEADLINE)
        answer.raise_for_status()
    except (requests.RequestException, ValueError, KeyError, StopIteration) as error:
        raise SourceError(
            f"{name} can't be had from {index}: {type(error).__name__}.\n"
            "The lab needs the package index once; set UV_DEFAULT_INDEX when yours is elsewhere."
        ) from error
    digest = hashlib.sha256(answer.content).hexdigest()
    if digest != ARCHIVE_SHA256:
        raise SourceError(f"{name} from {index} is not the pinned archive: sha256 {digest}, not {ARCHIVE_SHA256}")
    target.write_bytes(answer.content)


def _git(arguments: Sequence[str], environment: dict[str, str] | None = None) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    clean |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **(environment or {})}
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, env=clean, timeout=120, check=False)
    if done.returncode:
        raise SourceError(f"git {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


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
        if recorded_process(self._pid_file, self._mark) is not None:
            return
        self._need_port()
        command = [
            "git", "daemon", "--detach", "--reuseaddr", "--export-all", "--timeout=60", "--max-connections=32",
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
