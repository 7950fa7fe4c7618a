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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# What stays in the guest: programs, and what they have to know of the agent.
LIBRARY = Path("/usr/local/lib/hermes-stack")
FACTS = LIBRARY / "agent.json"
MANAGED = Path("/etc/hermes")
CURRENT = Path("/opt/hermes/current")
"""The link to the build that runs."""
IMAGE_RECORD = Path("/etc/hermes-stack/image.json")
"""What the agent phase has found out about Docker mode's image: what the configure phase is to run."""
IMAGE_CURRENT = Path("/etc/hermes-stack/current.json")
"""The image that runs, with its version and engine; there in Docker mode only."""
UPDATE_COPIES = Path("/var/lib/hermes-provision/update")
"""There while the configure phase switches versions, and after that was ended in the middle."""
KEPT_FOLDER = ".hermes-stack"
"""On the volume, so that it outlives the container: backups, notes, what clients and browsers hold against us."""
GATEWAY = "hermes-gateway.service"
DASHBOARD = "hermes-dashboard.service"
CONTAINER = "hermes"


class Refusal(Exception):  # noqa: N818 - a reason to stop, no fault of the program
    """A reason to stop, in words for the operator."""


def ended(
    *command: str,
    stdin: str | bytes | None = None,
    timeout_s: float = 120,
    told_as: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its status; Refusal when that does not come in time.

    `told_as`: what it is called in the refusal, instead of its first words. FileNotFoundError: no such program.
    """
    given = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"{told_as or _first(command)} did not end within {timeout_s:g} s. Log in and look what hangs, "
            "then run again."
        ) from None
    # What it prints need not be text: a log line of somebody else's must not end us.
    out, err = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def run(
    *command: str, stdin: str | bytes | None = None, check: bool = True, timeout_s: float = 120, told_as: str = ""
) -> str:
    """What a command prints; its error text becomes ours. `told_as`: see `ended`."""
    done = ended(*command, stdin=stdin, timeout_s=timeout_s, told_as=told_as)
    if check and done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise Refusal(f"{told_as or _first(command)} failed with {done.returncode}: {words}")
    return done.stdout


def _first(command: Sequence[str]) -> str:
    return f"`{' '.join(command[:4])}`"


def answer_in(text: str, who: str) -> Any:
    """The JSON that a program has printed, behind whatever its libraries had to say; Refusal when there is none."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        with contextlib.suppress(ValueError):
            return json.loads(candidate)
    raise Refusal(f"{who} answered with something that is no JSON: {text.strip()[-300:]!r}")


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
    except OSError as error:
        print(f"error: {error}\nMend what is named here, then run again: the phase can be repeated.", file=sys.stderr)
        return 1
    (job / "result.json").write_text(json.dumps(outputs))
    return 0


def read_json(path: Path) -> dict[str, Any]:
    """A record that this program keeps; empty where there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
