"""Git repositories that tests make, whatever the user's own git is set to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder; it has to succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def a_release(folder: Path, tag: str, *, annotated: bool) -> str:
    """A repository with one commit and its tag; answers the commit. An annotated tag is an object of its own."""
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a release")
    git(folder, "tag", *(["-a", "-m", "a release"] if annotated else []), tag)
    return git(folder, "rev-parse", "HEAD")


def pasted(command: str) -> str:
    """What a command of a remedy prints, pasted into a shell."""
    done = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()
