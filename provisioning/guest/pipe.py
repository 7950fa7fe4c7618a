"""One program that reads what another one prints, where the two run as different accounts, and a part is no whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from provisioning.guest.common import Refusal, captured, how_it_failed

_CHUNK = 1 << 18


@dataclass(frozen=True)
class End:
    """One end of the pipe. `name`: what it is called in a refusal. `env`: None is our own."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] | None = None


def piped(source: End, target: End, *, limit: int, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The target as it ended well, fed with what the source prints.

    Where the source fails, does not end in time or prints more than `limit` bytes, the target is killed before it sees
    the end of its input: it can't take a part for the whole. Refusal then, and where the target fails.
    """
    (from_source, source_end), (target_end, to_target) = os.pipe(), os.pipe()
    with contextlib.ExitStack() as open_ends:
        open_ends.callback(os.close, from_source)
        feeding = open_ends.enter_context(os.fdopen(to_target, "wb", buffering=0))
        try:
            reader = _begun(source, subprocess.DEVNULL, source_end)
            try:
                writer = _begun(target, target_end, subprocess.PIPE)
            except BaseException:
                _kill(reader)
                reader.communicate()
                raise
        finally:
            os.close(source_end)
            os.close(target_end)
        with ThreadPoolExecutor(2) as pool:
            read = pool.submit(captured, reader, None, timeout_s)
            written = pool.submit(captured, writer, None, timeout_s)
            try:
                taken = _fed(from_source, to_target, limit)
                if taken is not True:
                    _kill(reader)
                _refuse_a_part(source, _ended(source, reader, read), taken, limit)
            except BaseException:
                _kill(reader)
                _kill(writer)
                raise
            feeding.close()
            done = _ended(target, writer, written)
    if done.returncode != 0:
        raise how_it_failed(target.name, done)
    if not taken:
        raise Refusal(f"{target.name} ended before it had taken all of what {source.name} gave.")
    return done


def _begun(end: End, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(end.command, stdin=stdin, stdout=stdout, stderr=pipe, env=end.env, start_new_session=True)


def _fed(source: int, target: int, limit: int) -> bool | None:
    """True: all was passed on. False: nobody reads any more. None: there was more than the limit."""
    passed = 0
    while chunk := os.read(source, _CHUNK):
        passed += len(chunk)
        if passed > limit:
            return None
        left = memoryview(chunk)
        while left:
            try:
                left = left[os.write(target, left) :]
            except BrokenPipeError:
                return False
    return True


def _refuse_a_part(source: End, done: subprocess.CompletedProcess[str], taken: bool | None, limit: int) -> None:
    """Where the target has gone, the source was killed, and the target says why."""
    if taken is None:
        raise Refusal(f"{source.name} gave more than {limit >> 20} MB and was ended.")
    if taken and done.returncode != 0:
        raise how_it_failed(source.name, done)


def _ended(
    end: End, child: subprocess.Popen[bytes], streams: Future[tuple[bytes, bytes]]
) -> subprocess.CompletedProcess[str]:
    try:
        out, err = (stream.decode("utf-8", "replace") for stream in streams.result())
    except subprocess.TimeoutExpired:
        raise Refusal(f"{end.name} did not end in time.") from None
    except OverflowError:
        raise Refusal(f"{end.name} printed too much and was ended.") from None
    return subprocess.CompletedProcess(list(end.command), child.returncode, out, err)


def _kill(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
