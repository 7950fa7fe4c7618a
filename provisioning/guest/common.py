"""What every program in the guest does alike: refuse in words, run a command, replace a file.

The programs of this package run in the container as root, with the standard library only (Python 3.11).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioning.guest.words import TOLD_LINES, told
from provisioning.guest.words import command as to_paste

# ---- names that the host and the programs in the guest share ---------------------------------------------------------

LIBRARY = Path("/usr/local/lib/hermes-stack")
"""What stays in the guest: programs, and what they have to know of the application."""
STATE = Path("/var/lib/hermes-provision")
"""Root's own: jobs, tools that were brought, and what the phases note down for each other."""
OUTPUT_LIMIT = 64 << 20
"""Bytes that are taken of what a program prints: it may be the agent's, and endless."""
APT_S = 900.0
_CHUNK = 64 * 1024


NO_JSON = (ValueError, RecursionError)
"""What json.loads raises: the second for what nests too deep, which only an enemy writes."""
REPEAT = "Mend what is named here, then run again: the phase can be repeated."


class Refusal(Exception):  # noqa: N818 - a reason to stop, no fault of the program
    """A reason to stop, in words for the operator."""


class CommandFailed(Refusal):
    """A command that should not fail has: its own words are the reason, and there is no remedy but to mend that."""


MOUNTS = Path("/proc/self/mountinfo")


def is_mounted(path: str) -> bool:
    """Whether something is mounted at a path without links.

    A folder of the root file system's own disk that is bound there counts, as a volume in a folder of the node may be:
    os.path.ismount compares devices and does not see it (proc(5), mountinfo: the fifth field, spaces as \\040).
    """
    return path.rstrip("/").encode() in {
        re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4])
        for line in MOUNTS.read_bytes().splitlines()
    }


def execute(
    *command: str,
    stdin: str | bytes | None = None,
    timeout_s: float = 120,
    told_as: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, whatever its status; Refusal when that does not come in time.

    `told_as`: what it is called in the refusal, instead of its first words. `merged`: its standard error comes with its
    standard output, in the order in which it was printed. FileNotFoundError: no such program.
    """
    given = stdin.encode() if isinstance(stdin, str) else stdin
    how = subprocess.DEVNULL if given is None else subprocess.PIPE
    pipe = subprocess.PIPE
    stderr = subprocess.STDOUT if merged else pipe
    # A session of its own: what runs as another account has no hold of a terminal, and ends as a whole.
    child = subprocess.Popen(command, stdin=how, stdout=pipe, stderr=stderr, env=env, cwd=cwd, start_new_session=True)
    try:
        # What it prints need not be text: a log line of somebody else's must not end us.
        out, err = (stream.decode("utf-8", "replace") for stream in captured(child, given, timeout_s))
    except subprocess.TimeoutExpired:
        raise Refusal(
            f"{told_as or _first(command)} did not end within {timeout_s:g} s. Log in and look what hangs, "
            "then run again."
        ) from None
    except OverflowError:
        raise Refusal(
            f"{told_as or _first(command)} printed more than {OUTPUT_LIMIT >> 20} MB and was ended."
        ) from None
    return subprocess.CompletedProcess(list(command), child.returncode, out, err)


def captured(child: subprocess.Popen[bytes], given: bytes | None, timeout_s: float) -> tuple[bytes, bytes]:
    """What a child prints until its end, up to OUTPUT_LIMIT; `given` is its input. It has a session of its own.

    TimeoutExpired, OverflowError: then it was ended with all that it had started.
    """
    deadline = time.monotonic() + timeout_s
    exchange = _Exchange(child, given or b"")
    try:
        while exchange.step(deadline - time.monotonic()):
            pass
        child.wait(max(0.0, deadline - time.monotonic()))
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    finally:
        exchange.close()
    return bytes(exchange.out), bytes(exchange.err)


class _Exchange:
    """A child's three streams, served in turn."""

    def __init__(self, child: subprocess.Popen[bytes], given: bytes) -> None:
        self.out, self.err = bytearray(), bytearray()
        self._child = child
        self._left = memoryview(given)
        self._selector = selectors.DefaultSelector()
        for stream, kept in ((child.stdout, self.out), (child.stderr, self.err)):
            if stream is not None:
                self._selector.register(stream, selectors.EVENT_READ, kept)
        if child.stdin is not None:
            os.set_blocking(child.stdin.fileno(), False)
            self._selector.register(child.stdin, selectors.EVENT_WRITE)

    def step(self, seconds: float) -> bool:
        """Serve what is ready; False when all streams have ended."""
        if not self._selector.get_map():
            return False
        if seconds <= 0:
            raise subprocess.TimeoutExpired(self._child.args, 0)
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._write(key)
            else:
                self._read(key)
        return True

    def _read(self, key: selectors.SelectorKey) -> None:
        chunk = os.read(key.fd, _CHUNK)
        key.data.extend(chunk)
        if not chunk:
            self._selector.unregister(key.fileobj)
        if len(key.data) > OUTPUT_LIMIT:
            raise OverflowError

    def _write(self, key: selectors.SelectorKey) -> None:
        try:
            self._left = self._left[os.write(key.fd, self._left[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # nobody reads any more
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(key.fileobj)
            if self._child.stdin is not None:
                self._child.stdin.close()

    def close(self) -> None:
        self._selector.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()


def run(
    *command: str, stdin: str | bytes | None = None, check: bool = True, timeout_s: float = 120, told_as: str = ""
) -> str:
    """What a command prints; its error text becomes ours. `told_as`: see `execute`."""
    done = execute(*command, stdin=stdin, timeout_s=timeout_s, told_as=told_as)
    if check and done.returncode != 0:
        raise how_it_failed(told_as or _first(command), done)
    return done.stdout


def failed(what: str, words: str, remedy: str) -> Refusal:
    """A step that failed: its tool's own last lines, whole, between what was tried and what to do."""
    return Refusal(f"{what}: {told(words, most=TOLD_LINES + 1 - len(remedy.splitlines()))}\n{remedy}")


def words_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a tool said that has failed; some give their reason on standard output."""
    return f"{done.stdout}\n{done.stderr}".strip() or f"(it ended with {done.returncode} and said nothing)"


def apt(*arguments: str) -> None:
    """apt-get without questions, by the script that all phases have for it; Refusal with its last lines and advice."""
    command = ("bash", f"{os.environ['HP_JOB']}/apt.sh", *arguments)
    done = execute(*command, timeout_s=APT_S, told_as=f"apt-get {arguments[0]}")
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        said, _, advice = done.stderr.strip().rpartition("error: ")
        raise failed(f"apt-get {arguments[0]} failed", said.rpartition("error: ")[0], advice)


def how_it_failed(what: str, done: subprocess.CompletedProcess[str], most: int = TOLD_LINES) -> CommandFailed:
    """A command's own last lines, at most so many. Some give their reason on the standard output."""
    status = done.returncode
    how = f"failed with {status}" if status >= 0 else f"was ended by signal {-status}"
    return CommandFailed(f"{what} {how}: {told(done.stderr.strip() or done.stdout, most=most)}")


def _first(command: Sequence[str]) -> str:
    return f"`{' '.join(command[:4])}`"


def answer_in(text: str, who: str) -> Any:
    """The JSON that a program has printed, behind whatever its libraries had to say; Refusal when there is none."""
    for candidate in (text, text.strip().rpartition("\n")[2]):
        with contextlib.suppress(*NO_JSON):
            return json.loads(candidate)
    raise Refusal(f"{who} answered with something that is no JSON: {text.strip()[-300:]!r}")


def as_user(user: str, *command: str, stdin: str | None = None, check: bool = True, told_as: str = "") -> str:
    """Run a command as the agent's user; its home is touched this way only: root would follow planted links."""
    what = told_as or f"{_first(command)} as {user}"
    return run("runuser", "--user", user, "--", *command, stdin=stdin, check=check, told_as=what)


def write_home(user: str, path: str, text: str) -> None:
    """Replace a file in a folder of the stack's in the home, for its owner's eyes only, as the agent's user."""
    script = 'set -eu; umask 077; mkdir -p "$1"; chmod 700 "$1"; cat >"$2.part"; sync "$2.part"; mv -T "$2.part" "$2"'
    as_user(user, "sh", "-c", script, "sh", str(Path(path).parent), path, stdin=text, told_as=f"writing {path}")


def account_of(user: str) -> pwd.struct_passwd:
    """The agent's account; Refusal when the container has none of that name."""
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise Refusal(f"the container has no account {user}: the baseline phase has to run first") from None


# Arguments: the file and how many bytes it may have. A link is not followed, a pipe not waited for.
_READER = """
import os, stat, sys
try:
    handle = os.open(sys.argv[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
except (FileNotFoundError, NotADirectoryError):
    sys.exit(4)
except OSError as error:
    sys.exit(str(error.strerror))
if not stat.S_ISREG(os.fstat(handle).st_mode):
    sys.exit("Not a plain file")
with open(handle, "rb") as stream:
    content = stream.read(int(sys.argv[2]) + 1)
if len(content) > int(sys.argv[2]):
    sys.exit("Too large")
sys.stdout.buffer.write(content)
"""


def read_home(user: str, path: str, *, limit: int = 64 * 1024) -> str | None:
    """A file that the agent may have written, as its user; None where there is none.

    Refusal for anything but a plain file of at most `limit` bytes, with what to do.
    """
    reader = ("/usr/bin/python3", "-I", "-c", _READER, path, str(limit))
    done = execute("runuser", "--user", user, "--", *reader, told_as=f"reading {path}")
    if done.returncode == 0:
        return done.stdout
    if done.returncode == 4:
        return None
    raise Refusal(
        f"{path} can't be read as a plain file of at most {limit >> 10} KB: {told(done.stderr)}\n"
        "The agent can write there. Look what it is, and remove it, as its account:\n"
        f"  {to_paste('runuser', '-u', user, '--', 'rm', '-r', '--', path)}"
    )


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
    except (CommandFailed, OSError) as error:
        print(f"error: {error}\n{REPEAT}", file=sys.stderr)
        return 1
    except Refusal as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    (job / "result.json").write_text(json.dumps(outputs))
    return 0


def read_json(path: Path) -> dict[str, Any]:
    """A record that this program keeps; empty where there is none, or none that can be read."""
    with contextlib.suppress(OSError, *NO_JSON):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write such a record, in a folder of root's: the new one as a whole, or the old one."""
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(content))
    aside.replace(path)


def bracket(host: str) -> str:
    """A host as a URL has it."""
    return f"[{host}]" if ":" in host else host
