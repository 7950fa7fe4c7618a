"""A pipe between two programs: what the one has given the other takes whole, or not at all."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from provisioning.guest.common import Refusal
from provisioning.guest.pipe import End, piped


def shell(name: str, text: str) -> End:
    return End(name, ("/bin/sh", "-c", text), {"PATH": "/usr/bin:/bin"})


def whole(path: Path) -> End:
    """Writes what it has read at the end of its input only, as restic writes a snapshot."""
    return shell("the target", f"cat >{path}.part && mv {path}.part {path}; echo said")


def test_all_of_it_arrives_and_the_targets_word_comes_back(tmp_path: Path) -> None:
    source = shell("the source", "head -c 3000000 /dev/zero; printf end; echo a word >&2")
    done = piped(source, whole(tmp_path / "x"), limit=1 << 30, timeout_s=60)
    assert done.stdout == "said\n"
    content = (tmp_path / "x").read_bytes()
    assert (len(content), content[-3:]) == (3_000_003, b"end")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("head -c 300000 /dev/zero; echo broken >&2; exit 2", "the source failed with 2: broken"),
        ("exit 1", "the source failed with 1"),
        ("head -c 300000 /dev/zero; kill -9 $$", "the source was ended by signal 9"),
        # Without an end, as the agent may give it.
        ("exec cat /dev/zero", "the source gave more than 16 MB and was ended"),
        ("yes >&2 & exec cat /dev/zero", "the source gave more than 16 MB and was ended"),
    ],
)
def test_a_part_is_never_taken_for_the_whole(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Refusal) as refused:
        piped(shell("the source", text), whole(tmp_path / "x"), limit=16 << 20, timeout_s=60)
    assert told in str(refused.value)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo no room >&2; exit 1", "the target failed with 1: no room"),
        ("head -c 10 >/dev/null; echo no room >&2; exit 1", "the target failed with 1: no room"),
        ("head -c 10 >/dev/null", "the target ended before it had taken all of what the source gave"),
    ],
)
def test_a_target_that_fails_says_why_and_the_source_ends(text: str, told: str) -> None:
    began = time.monotonic()
    with pytest.raises(Refusal) as refused:
        piped(shell("the source", "exec cat /dev/zero"), shell("the target", text), limit=1 << 40, timeout_s=60)
    assert told in str(refused.value)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("source", "target"), [("exec sleep 600", "exec cat"), ("exec cat /dev/zero", "exec sleep 600")]
)
def test_neither_is_waited_for_without_an_end(source: str, target: str) -> None:
    with pytest.raises(Refusal, match="did not end in time"):
        piped(shell("the source", source), shell("the target", target), limit=1 << 40, timeout_s=1)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_program_that_is_not_there_leaves_nothing_behind(missing: int) -> None:
    ends = [shell("the source", "exec sleep 600"), shell("the target", "exec cat")]
    ends[missing] = End("none", ("/nowhere/program",))
    with pytest.raises(FileNotFoundError):
        piped(*ends, limit=1, timeout_s=60)
