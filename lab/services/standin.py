"""The stand-in for upstream's repository: made from PyPI's source archive of 0.19.0, where upstream's is not to be had.

The archive holds the same tree, less tests and packaging helpers. The commit depends on nothing but the archive:
author, date and message are fixed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.parse
from pathlib import Path
from typing import Any

import requests

from lab.services.releases import PROJECT, Release, SourceError, git, serve_by_commit

VERSION = "0.19.0"
TAG = "v2026.7.20"
ARCHIVE_SHA256 = "ac986bede64a2785436676c0ea084ec586574f8cb00a9d047e095b435d3e21c0"
"""Of hermes_agent-0.19.0.tar.gz, as the package index states it."""
COMMIT_DATE = "2026-07-20T00:00:00+0000"
DOWNLOAD_DEADLINE = 120.0


def package_index() -> str:
    """The package index of this machine: uv's or pip's variable, else pip's default."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
        if address := os.environ.get(name):
            return address.rstrip("/")
    from pip._internal.models.index import PyPI  # noqa: PLC0415 - pip is slow to load, and pinned

    return str(PyPI.simple_url)


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
    commit = build_repository(top, repository)
    shutil.rmtree(tree)
    archive.unlink()
    return Release(VERSION, TAG, commit)


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
