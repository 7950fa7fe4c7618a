"""What every program in the guest does alike: refuse in words, run a command, replace a file.

The programs of this package run in the container as root, with the standard library only (Python 3.11).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What stays in the guest: programs, and what they have to know of the agent.
LIBRARY = Path("/usr/local/lib/hermes-stack")
FACTS = LIBRARY / "agent.json"
MANAGED = Path("/etc/hermes")
CURRENT = Path("/opt/hermes/current")
"""The link to the build that runs."""
IMAGE_RECORD = Path("/etc/hermes-stack/image.json")
"""What the agent phase has found out about Docker mode's image."""
KEPT_FOLDER = ".hermes-stack"
"""On the volume, so that it outlives the container: backups, notes, what clients and browsers hold against us."""
GATEWAY = "hermes-gateway.service"
DASHBOARD = "hermes-dashboard.service"
CONTAINER = "hermes"


class Refusal(Exception):  # noqa: N818 - a reason to stop, no fault of the program
    """A reason to stop, in words for the operator."""


def run(*command: str, stdin: str | None = None, check: bool = True, timeout_s: float = 120, told_as: str = "") -> str:
    """Run a command; its error text becomes ours. `told_as`: what it is called there, instead of its first words."""
    name = told_as or f"`{' '.join(command[:4])}`"
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"{name} did not end within {timeout_s:g} s. Log in and look what hangs, then run again."
        ) from None
    if check and done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise Refusal(f"{name} failed with {done.returncode}: {words}")
    return done.stdout


def as_user(user: str, *command: str, stdin: str | None = None, check: bool = True, told_as: str = "") -> str:
    """Run a command as the agent's user; its home is touched this way only: root would follow planted links."""
    return run("runuser", "--user", user, "--", *command, stdin=stdin, check=check, told_as=told_as)


def install_file(path: Path, text: str, *, mode: int, gid: int) -> bool:
    """Atomic replace; False when it was there already with this content, owner and mode."""
    with contextlib.suppress(FileNotFoundError):
        state = path.lstat()
        same = (state.st_mode & 0o7777, state.st_uid, state.st_gid) == (mode, 0, gid)
        if same and not path.is_symlink() and path.read_text(encoding="utf-8") == text:
            return False
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), mode)
            os.fchown(stream.fileno(), 0, gid)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).rename(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    return True


def phase_main(work: Callable[[Path], dict[str, Any]]) -> int:
    """The program of a phase: `work` gets the job's folder, and answers what result.json is to hold."""
    job = Path(os.environ["HP_JOB"])
    # /etc/environment may have narrowed it; runuser is in sbin.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    # A log, read while it grows; and an error has to come after what led to it.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        outputs = work(job)
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    (job / "result.json").write_text(json.dumps(outputs))
    return 0


def read_json(path: Path) -> dict[str, Any]:
    """A record that this program keeps; empty where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found
    return {}


def bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def bundled_skills(directory: str) -> dict[str, str]:
    """The variables that lead a build from a checkout to its skills; a wheel brings none."""
    names = (("HERMES_BUNDLED_SKILLS", "skills"), ("HERMES_OPTIONAL_SKILLS", "optional-skills"))
    return {name: f"{directory}/src/{folder}" for name, folder in names if Path(directory, "src", folder).is_dir()}
