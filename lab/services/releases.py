"""The releases of the Hermes Agent that the lab pins, and git as the lab calls it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pvelab.place import LabError

PROJECT = "hermes-agent"
ADDRESS = "https://github.com/NousResearch/hermes-agent.git"
DEADLINE = 300.0


class SourceError(LabError):
    """The repository can't be made or served; the text says why and what to do."""


@dataclass(frozen=True)
class Release:
    """A version, and what a client pins to get it."""

    version: str
    tag: str
    commit: str


PINNED = (
    Release("0.20.3", "v2026.8.16.2", "7339f5f160db5c96657a3bab60151227cc61f66c"),
    Release("0.19.0", "v2026.7.20", "3ef6bbd201263d354fd83ec55b3c306ded2eb72a"),
)
"""Upstream's own, newest first. A commit's id is the digest of its tree: nobody can hand out another one for it."""


def git(
    arguments: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    own_settings: bool = True,
    trusted: Path | None = None,
    deadline: float = DEADLINE,
) -> str:
    """What git prints; SourceError with its words when it fails or takes more than ``deadline`` seconds.

    ``own_settings``: as on any machine. Without, this user's configuration holds: a proxy, or a mirror of the address.
    ``trusted``: a repository that may be another user's, where git would refuse to read.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # A clone from which objects were left out is not asked to fetch them: it could name any program for that.
    clean |= {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    verb = next(a for before, a in zip(["", *arguments], arguments, strict=False) if before != "-c" and a[0] != "-")
    with tempfile.NamedTemporaryFile("w", prefix="hermes-lab-git-") as settings:
        if trusted is not None:
            # In a file, because git hands variables of this kind to no second git; "fetch" starts one.
            quoted = str(trusted).replace("\\", "\\\\").replace('"', '\\"')
            settings.write(f'[safe]\n\tdirectory = "{quoted}"\n')
            settings.flush()
        if own_settings:
            clean |= {"GIT_CONFIG_GLOBAL": settings.name, "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env={**clean, **(environment or {})}, timeout=deadline,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SourceError(f"git {verb} did not end within {deadline:.0f} s") from None
    if done.returncode:
        raise SourceError(f"git {verb} failed: {done.stderr.strip()}")
    return done.stdout


def git_folder(clone: Path) -> Path:
    """Where git keeps a clone's objects: inside of it, unless it is bare."""
    inner = clone / ".git"
    return (inner if inner.is_dir() else clone).resolve()


def serve_by_commit(repository: Path) -> None:
    """Let clients ask for a commit by its id, as the large hosts do."""
    git([f"--git-dir={repository}", "config", "uploadpack.allowAnySHA1InWant", "true"])
