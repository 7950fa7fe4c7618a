"""The stand-in for upstream's repository, where that is not to be had: PyPI's source archive of 0.19.0, made as strict.

The archive holds the sources of a wheel, and upstream supports no wheel from 0.20 on. So files of the lab's own
(``standin_tree``) go over it, and it is laid out as a checkout is: no wheel can be built of it, uv's lock holds with
the project's own settings only, and the interfaces are there when npm has built them. docs/lab.md says what differs
from upstream still.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.parse
from pathlib import Path
from typing import Any

import requests

from lab.instance import CACHE
from lab.services.releases import PROJECT, Release, SourceError, git, serve_by_commit

VERSION = "0.19.0"
TAG = "v2026.7.20"
ARCHIVE_SHA256 = "ac986bede64a2785436676c0ea084ec586574f8cb00a9d047e095b435d3e21c0"
"""Of hermes_agent-0.19.0.tar.gz, as the package index states it."""
OWN_FILES = Path(__file__).parent / "standin_tree"
ARCHIVE_ONLY = ("PKG-INFO", "MANIFEST.in", "setup.cfg", "hermes_agent.egg-info")
"""What the archive has and a checkout does not."""
BUILT = {"hermes_cli/web_dist": "web/src", "hermes_cli/tui_dist": "ui-tui/src"}
"""What the archive brings built, and where the lab's own npm workspaces take it from."""
BACKEND = "setuptools==83.0.0"
UV_SETTINGS = """
[tool.uv]
exclude-newer = "14 days"
exclude-newer-package = { setuptools = false }
"""
"""As upstream's from 0.20 on: a lock made with them is outdated for a uv that does not read them."""
REVISION = 2
"""Counted up when the code below makes something else of the same parts."""
COMMIT_DATE = "2026-07-20T00:00:00+0000"
DOWNLOAD_DEADLINE = 120.0
LOCK_DEADLINE = 300.0
UV = CACHE / "uv" / "bin" / "uv"
UV_CACHE = CACHE / "uv-cache"


def package_index() -> str:
    """The package index of this machine: uv's or pip's variable, else pip's default."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if address := os.environ.get(name):
            return address.rstrip("/")
    from pip._internal.models.index import PyPI  # noqa: PLC0415 - pip is slow to load, and pinned

    return str(PyPI.simple_url)


def recipe() -> str:
    """A digest of all that decides what the stand-in is, but for what the package index has today."""
    parts = [str(REVISION), ARCHIVE_SHA256, BACKEND, UV_SETTINGS, repr(ARCHIVE_ONLY), repr(BUILT)]
    for file in sorted(path for path in OWN_FILES.rglob("*") if path.is_file()):
        parts += [str(file.relative_to(OWN_FILES)), file.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def make_standin(making: Path, repository: Path) -> Release:
    """Make the bare ``repository``; ``making`` is a folder to work in."""
    archive = making / "archive.tar.gz"
    _download(archive)
    tree = making / "tree"
    with tarfile.open(archive) as opened:
        # Debian 12's Python 3.11.2 knows no filters yet.
        safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        opened.extractall(tree, **safely)  # noqa: S202 - see above
    (top,) = tree.iterdir()
    make_strict(top)
    commit = build_repository(top, repository)
    shutil.rmtree(tree)
    archive.unlink()
    return Release(VERSION, TAG, commit)


def make_strict(tree: Path) -> None:
    """Lay the archive's tree out as upstream's checkout is. SourceError when the lock can't be made."""
    for name in ARCHIVE_ONLY:
        leftover = tree / name
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)
    for built, sources in BUILT.items():
        (tree / sources).parent.mkdir(parents=True)
        (tree / built).rename(tree / sources)
    shutil.copytree(OWN_FILES, tree, dirs_exist_ok=True)
    project = tree / "pyproject.toml"
    text, found = re.subn(r"^requires = .*$", f'requires = ["{BACKEND}"]', project.read_text(), flags=re.MULTILINE)
    if found != 1 or "[tool.uv]" in text:
        raise SourceError(f"the archive of {PROJECT} {VERSION} has another pyproject.toml than was expected")
    project.write_text(text + UV_SETTINGS)
    _lock(tree)


def _lock(tree: Path) -> None:
    """Let uv write ``uv.lock``, which has the hash of each file that an installation may use."""
    uv = str(UV) if UV.exists() else shutil.which("uv")
    if uv is None:
        raise SourceError("the stand-in for upstream's repository needs uv; scripts/setup installs it")
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("UV_") and key != "VIRTUAL_ENV"
    }
    environment |= {"UV_CACHE_DIR": str(UV_CACHE), "UV_DEFAULT_INDEX": package_index(), "UV_NO_PROGRESS": "1"}
    command = [uv, "lock", "--quiet", "--no-python-downloads", "--python", sys.executable, "--project", str(tree)]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LOCK_DEADLINE, check=False
        )
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"uv lock did not end within {LOCK_DEADLINE:.0f} s; is the package index reachable?"
        ) from None
    if done.returncode:
        raise SourceError(f"uv lock failed for the stand-in:\n{done.stderr.strip()}")


def build_repository(tree: Path, repository: Path) -> str:
    """A bare repository with one commit of ``tree``, tagged; returns the commit, which the tree alone decides."""
    who = {"NAME": "Hermes lab", "EMAIL": "lab@localhost", "DATE": COMMIT_DATE}
    environment = {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in who.items()}
    git(["init", "-q", "--bare", "-b", "main", str(repository)])
    at = ["--git-dir", str(repository), "--work-tree", str(tree)]
    settings = ["-c", "core.autocrlf=false", "-c", "core.safecrlf=false"]
    git([*settings, *at, "add", "--all", "--force", "."])
    git([*at, "commit", "-q", "-m", f"{PROJECT} {VERSION}, from its source archive"], environment)
    git([*at, "tag", TAG])
    # Each client is sent packed objects; single ones would be packed anew for each.
    git(["--git-dir", str(repository), "repack", "-a", "-d", "-q"])
    serve_by_commit(repository)
    return git(["--git-dir", str(repository), "rev-parse", "HEAD"]).strip()


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
