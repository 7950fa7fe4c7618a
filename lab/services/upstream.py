"""Upstream's repository of the Hermes Agent: where it is found, and the lab's own copy of its pinned releases.

It is looked for in the place that ``HERMES_LAB_UPSTREAM`` names, in the user's cache, and at its official
address, from which it gets into that cache. What the lab serves is a copy: it shares no file with the place
that it came from, which may change or go afterwards. Git computes the id of each object that it receives, and
refuses a commit of which something is missing; so a copy that has a pinned commit has upstream's tree.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from lab.services.releases import ADDRESS, PINNED, PROJECT, Release, SourceError, git, git_folder, serve_by_commit

Log = Callable[[str], None]

VARIABLE = "HERMES_LAB_UPSTREAM"
NONE = "none"
"""The variable's value that forces the stand-in."""
ASK_DEADLINE = 20.0
FETCH_DEADLINE = 600.0
ASK_AGAIN = 3600.0
"""Seconds before an address that did not answer is asked again."""
FAILURE = "no-upstream"
"""The file beside the copies that says why, and by its age since when."""


def user_cache() -> Path:
    """The bare clone in the user's cache, whether it is there or not."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return folder / "hermes-homelab" / f"{PROJECT}.git"


def named_by_variable() -> Path | None:
    """What HERMES_LAB_UPSTREAM names; None when it is unset. SourceError for a value that can't be meant."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return None
    named = Path(value).expanduser().absolute()
    if not named.is_dir():
        raise SourceError(f"{VARIABLE} names {named}, which is no folder: name a clone of {ADDRESS}, or {NONE}")
    return named


def missing(clone: Path, releases: Sequence[Release]) -> list[Release]:
    """Those of the releases whose commit and tree the clone does not have."""
    folder = git_folder(clone)

    def has(release: Release) -> bool:
        try:
            git([f"--git-dir={folder}", "cat-file", "-e", f"{release.commit}^{{tree}}"], trusted=folder)
        except SourceError:
            return False
        return True

    return [release for release in releases if not has(release)]


def find_clone(log: Log, failures: Path, releases: Sequence[Release] = PINNED, address: str = ADDRESS) -> Path | None:
    """A clone on this machine that has the releases; None, and a line in the log, when there is none to be had.

    SourceError when the variable names one that lacks a commit. ``failures``: a folder to note in that the address
    did not answer, so that it is asked once an hour.
    """
    named = named_by_variable()
    if named is not None:
        if lacking := missing(named, releases):
            raise SourceError(
                f"{VARIABLE} names {named}, which lacks {_list(lacking)}.\n"
                f"Fetch there: git fetch --depth=1 {address} {' '.join(r.commit for r in lacking)}"
            )
        return named
    clone = user_cache()
    if not missing(clone, releases):
        return clone
    try:
        _fetch_into_cache(clone, releases, address, failures, log)
    except (SourceError, OSError) as error:
        log(f"upstream's repository is not to be had: {error}")
        return None
    return clone


def copy_releases(origin: Path, repository: Path, releases: Sequence[Release] = PINNED) -> None:
    """Make ``repository``: bare, with the releases of the clone ``origin``, their tags, and the newest as ``main``."""
    git(["init", "-q", "--bare", "-b", "main", str(repository)])
    _fetch(repository, str(git_folder(origin)), releases, trusted=git_folder(origin))
    if lacking := missing(repository, releases):
        raise SourceError(f"the copy of {origin} lacks {_list(lacking)}")
    git([f"--git-dir={repository}", "update-ref", "refs/heads/main", releases[0].commit])
    serve_by_commit(repository)


def _fetch(
    repository: Path,
    origin: str,
    releases: Sequence[Release],
    *,
    own_settings: bool = True,
    trusted: Path | None = None,
) -> None:
    """Fetch the releases alone, without history, and tag them. Their ids are asked for, never their names."""
    refs = [f"+{release.commit}:refs/tags/{release.tag}" for release in releases]
    git(
        [
            f"--git-dir={repository}", "-c", "fetch.fsckObjects=true", "-c", "gc.auto=0",
            "-c", "http.lowSpeedLimit=1000", "-c", "http.lowSpeedTime=30",
            "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--depth=1", origin, *refs,
        ],
        own_settings=own_settings, trusted=trusted, deadline=FETCH_DEADLINE,
    )  # fmt: skip


def _fetch_into_cache(clone: Path, releases: Sequence[Release], address: str, failures: Path, log: Log) -> None:
    """Fetch what the cache lacks from the official address; it appears whole. SourceError when it can't be had."""
    _recall_failure(failures)
    clone.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(clone.parent / ".lock"):
        lacking = missing(clone, releases)
        if not lacking:
            return
        try:
            # Short: nothing waits for a network that drops what is sent.
            git(["ls-remote", address, "HEAD"], own_settings=False, deadline=ASK_DEADLINE)
        except SourceError as error:
            failures.mkdir(parents=True, exist_ok=True)
            (failures / FAILURE).write_text(f"{error}\n")
            raise
        log(f"fetching {_list(lacking)} from {address} into {clone}; this is done once")
        if clone.exists():
            _fetch(clone, address, lacking, own_settings=False)
            return
        for leftover in clone.parent.glob(".making-*"):
            shutil.rmtree(leftover)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=clone.parent))
        try:
            git(["init", "-q", "--bare", "-b", "main", str(making / clone.name)])
            _fetch(making / clone.name, address, lacking, own_settings=False)
            (making / clone.name).rename(clone)
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _recall_failure(failures: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - (failures / FAILURE).stat().st_mtime
        if 0 <= age < ASK_AGAIN:
            told = (failures / FAILURE).read_text().strip()
            raise SourceError(f"{told}\n(asked {age / 60:.0f} min ago; at once again without {failures / FAILURE})")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _list(releases: Sequence[Release]) -> str:
    return " and ".join(f"{release.tag} ({release.commit})" for release in releases)
