"""What every program in the guest does alike: commands that hang, fail or babble end in words, and so does a phase."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest

from provisioning.guest import common
from provisioning.guest.common import Refusal

ROOT = Path(__file__).resolve().parents[2]


def test_a_command_that_hangs_is_named_with_what_to_do() -> None:
    with pytest.raises(Refusal, match=r"`sleep 600` did not end within 0.1 s. Log in and look what hangs"):
        common.run("sleep", "600", timeout_s=0.1)
    with pytest.raises(Refusal, match=r"^the nap did not end"):
        common.run("sleep", "600", timeout_s=0.1, told_as="the nap")


MOUNTED = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 21 254:0 /tank/images/999/subvol-999-disk-1.subvol /home/hermes rw,nosuid,nodev - ext4 /dev/vda rw
31 21 0:55 / /srv/with\\040space rw - zfs rpool/data/subvol-999-disk-2 rw
"""


@pytest.mark.parametrize(
    ("path", "there"),
    [("/home/hermes", True), ("/home/hermes/", True), ("/srv/with space", True), ("/home", False), ("/srv", False)],
)
def test_a_bound_folder_of_the_same_disk_is_a_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, there: bool
) -> None:
    """proc(5), mountinfo. os.path.ismount sees another device only."""
    monkeypatch.setattr(common, "MOUNTS", tmp_path / "mountinfo")
    common.MOUNTS.write_text(MOUNTED)
    assert common.is_mounted(path) is there


@pytest.mark.parametrize("stdin", [None, ""])
def test_a_command_has_no_terminal_of_ours(stdin: str | None) -> None:
    """Run by somebody on a terminal: no process of the agent's account shares it."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from provisioning.guest.common import execute
look = "import os\\ntry: os.open('/dev/tty', os.O_RDWR)\\nexcept OSError: print('none', os.isatty(0))"
print(execute(sys.executable, "-c", look, stdin={stdin!r}).stdout.strip(), "here" if open("/dev/tty").isatty() else "")
"""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", program])  # noqa: S606 - a terminal with one program on it
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as said:
        text = b""
        while chunk := said.read(1000):
            text += chunk
    os.waitpid(child, 0)
    assert text.decode().strip() == "none False here"


def test_a_command_that_fails_tells_its_own_words() -> None:
    with pytest.raises(Refusal, match=r"`sh -c echo no luck >&2; exit 3` failed with 3: no luck$"):
        common.run("sh", "-c", "echo no luck >&2; exit 3")
    assert common.run("sh", "-c", "echo so far; exit 3", check=False) == "so far\n"
    assert common.execute("sh", "-c", "exit 3").returncode == 3


def test_what_is_no_text_is_shown_as_far_as_it_is() -> None:
    assert common.run("printf", r"caf\351 \377") == "caf\ufffd \ufffd"
    assert common.run("cat", stdin=b"\xff") == "\ufffd"


@pytest.mark.parametrize("text", ['{"a": 1}', '{\n  "a": 1\n}\n', 'a library has to say something\n{"a": 1}\n'])
def test_an_answer_is_found_behind_the_noise(text: str) -> None:
    assert common.answer_in(text, "it") == {"a": 1}


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\n", "[" * 100_000])
def test_no_answer_is_told(text: str) -> None:
    with pytest.raises(Refusal, match=r"^it answered with something that is no JSON"):
        common.answer_in(text, "it")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": ', "\udcff", "[" * 100_000])
def test_a_record_that_is_none_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text, errors="surrogateescape")
    assert common.read_json(tmp_path / "record.json") == {}
    assert common.read_json(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Refusal("not today"), "error: not today\n"),
        (OSError(5, "Input/output error"), "error: [Errno 5] Input/output error\nMend what is named here"),
    ],
)
def test_a_phase_ends_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, error: Exception, words: str
) -> None:
    monkeypatch.setenv("HP_JOB", str(tmp_path))
    monkeypatch.setattr(sys, "stdout", open(tmp_path / "log", "w"))  # noqa: SIM115, PTH123 - as under systemd

    def failing(_: Path) -> dict[str, Any]:
        raise error

    assert common.phase_main(failing) == 1
    assert words in capfd.readouterr().err
    assert common.phase_main(lambda job: {"job": str(job)}) == 0
    assert json.loads((tmp_path / "result.json").read_text()) == {"job": str(tmp_path)}
    sys.stdout.close()
