"""What a guest says is made visible before a terminal gets it: progress, errors, outputs, answers, scripts/agent."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applications.hermes import talk
from provisioning import errors
from provisioning.errors import PhaseFailed, ProvisioningError
from provisioning.ssh import CommandResult, HostKey, SshTarget
from provisioning.terminal import LINE_LIMIT, RAW_LIMIT, Lines, one_line, visible, visible_value
from scripts.lib.ending import READER_GONE

ROOT = Path(__file__).parents[2]
TITLE = "\x1b]0;MINE\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJmIC8K\x07"
HIDDEN = "\x1b[8mhidden\x1b[0m"
# One of each kind that a terminal, or the eye, obeys: C0, DEL, C1's CSI, the bidi controls, a zero width space, a line
# separator, half of a pair.
OBEYED = ["\r", "\b", "\x00", "\x7f", "\x9b", "\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\ud800", "\U000e0041"]
PATIENCE = 60


def safe(text: str, *also: str) -> bool:
    """By Unicode's own categories: no control, format, surrogate, private or unassigned character, no separator."""
    bad = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return all(character in also or unicodedata.category(character) not in bad for character in text)


@pytest.mark.parametrize("text", [TITLE, CLIPBOARD, HIDDEN, *OBEYED])
def test_what_a_terminal_obeys_becomes_text(text: str) -> None:
    shown = visible(f"a{text}b")
    assert safe(shown)
    assert shown.startswith("a\\")
    assert shown.endswith("b")


def test_what_is_to_be_read_stays() -> None:
    text = "Grüße, 你好　世界, 1\u00a0000\u202f€, 👍🏽 e\u0301\ttab\n  next line"
    assert visible(text) == text
    assert visible("\x1b[31m") == "\\x1b[31m"
    assert one_line("one\ntwo") == "one\\ntwo"
    assert one_line("\u202e") == "\\u202e"


@given(st.text(alphabet=st.characters(), max_size=400))
def test_whatever_it_says_is_fit_to_be_shown(text: str) -> None:
    shown = visible(text)
    assert safe(shown, "\t", "\n")
    assert shown.count("\n") == text.count("\n")
    assert safe(one_line(text), "\t")
    assert visible(shown) == shown
    shown.encode()


def test_a_line_is_cut_and_says_so() -> None:
    assert visible(f"{'x' * (LINE_LIMIT + 7)}\ny") == f"{'x' * LINE_LIMIT} [7 more characters]\ny"
    assert visible("x" * (LINE_LIMIT + 7), limit=None) == "x" * (LINE_LIMIT + 7)


def test_a_value_is_cleaned_through_and_through() -> None:
    value = {f"k{TITLE}": [f"a{CLIPBOARD}\nforged line", 1, None, True, {"x": "\u202e"}]}
    assert visible_value(value) == {
        "k\\x1b]0;MINE\\x07": ["a\\x1b]52;c;cm0gLXJmIC8K\\x07\\nforged line", 1, None, True, {"x": "\\u202e"}]
    }


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_are_the_same_however_the_bytes_come(chunks: list[bytes]) -> None:
    lines = Lines()
    found = [line for chunk in chunks for line in lines.feed(chunk)] + lines.end()
    *ended, rest = b"".join(chunks).split(b"\n")
    wanted = [line.decode("utf-8", "replace").rstrip("\r") for line in [*ended, *([rest] if rest else [])]]
    assert found == wanted


def test_of_an_endless_line_only_the_begin_is_kept() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * RAW_LIMIT) == []
    assert lines.feed(b"\nshort\n") == ["x" * RAW_LIMIT, "short"]


# ---- who shows something --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [item for item in vars(errors).values() if isinstance(item, type)])
def test_no_error_shows_a_guest_s_words_as_they_came(kind: type) -> None:
    if not issubclass(kind, ProvisioningError):
        return
    more: dict[str, Any] = {"phase": "agent", "log_tail": f"x{TITLE}"} if issubclass(kind, errors.PhaseError) else {}
    error = kind(f"first\nsecond{CLIPBOARD}", **more)
    assert str(error) == "first\nsecond\\x1b]52;c;cm0gLXJmIC8K\\x07"
    if isinstance(error, PhaseFailed):
        assert error.log_tail == "x\\x1b]0;MINE\\x07"


def test_a_command_s_streams_are_fit_to_be_shown() -> None:
    done = CommandResult(3, f"out{TITLE}\xff".encode("latin-1"), f"err{TITLE}\n".encode())
    assert done.text == "out\\x1b]0;MINE\\x07\ufffd"
    assert done.words == "err\\x1b]0;MINE\\x07"
    assert CommandResult(3, b"", b"").words == "exit status 3"


@pytest.mark.parametrize("status", [0, 1])
def test_an_answer_of_the_agent_s_is_fit_to_be_shown(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Guest:
        def run(self, *_: Any, **__: Any) -> CommandResult:
            return CommandResult(status, json.dumps({"answer": f"hello {TITLE}\nmore"}).encode(), TITLE.encode())

        def close(self) -> None:
            """Nothing to close."""

    monkeypatch.setattr(talk, "connect", lambda _: Guest())
    target = SshTarget("192.0.2.7", HostKey("t", "b", "f"), private_key_file="/k")
    if status == 0:
        assert talk.ask(target, "hi") == "hello \\x1b]0;MINE\\x07\nmore"
    else:
        with pytest.raises(talk.AgentSilentError) as told:
            talk.ask(target, "hi")
        assert str(told.value) == "\\x1b]0;MINE\\x07"


def decoders(path: Path) -> set[str]:
    """The functions of a module that turn what a command has printed into text, by name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
            decoded = [call.value for call in calls if isinstance(call, ast.Attribute) and call.attr == "decode"]
            if re.search(r"\bstd(out|err)\b|\b_command\(", " ".join(map(ast.unparse, decoded))):
                found.add(f"{path.stem}.{node.name}")
    return found


def test_bytes_of_a_guest_become_text_in_few_places_only() -> None:
    """Another one would be a way around: these make visible, or compare with words and never show."""
    folders = ("provisioning", "applications/hermes", "components", "scripts/lib")
    found: set[str] = set().union(*(decoders(path) for folder in folders for path in (ROOT / folder).glob("*.py")))
    shown, compared = {"ssh.text", "ssh.words"}, {"job._probe", "job._ask_disks"}
    # Shows what has the form of a hardware address; makes each name visible once the JSON is read.
    matched = {"ssh.require_card", "held.look"}
    assert found == shown | compared | matched


LOGS = """
import pathlib, sys
from provisioning import console
from provisioning.ssh import HostKey, SshTarget
from scripts.lib.ending import end_with
console.ROOT = pathlib.Path(sys.argv[1])
target = SshTarget("192.0.2.7", HostKey.parse(sys.argv[2]), private_key_file="/keys/id")
end_with(lambda: console.show(target, "journalctl", "-f"))
"""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"


def logs(folder: Path, script: str) -> subprocess.Popen[str]:
    """`scripts/agent logs -f` with a program in ssh's place."""
    (folder / ".cache").mkdir()
    ssh = folder / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.Popen(
        [sys.executable, "-c", LOGS, str(folder), KEY], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )


def test_the_log_is_fit_to_be_shown_and_its_status_is_ssh_s(tmp_path: Path) -> None:
    script = r"""printf 'one\033]0;MINE\007\n'; printf 'two\r' >&2; printf '\nthree'; exit 7"""
    with logs(tmp_path, script) as child:
        said, _ = child.communicate(timeout=PATIENCE)
    assert said == "one\\x1b]0;MINE\\x07\ntwo\nthree\n"
    assert child.returncode == 7


def test_a_reader_that_ends_first_ends_ssh(tmp_path: Path) -> None:
    """`scripts/agent logs -f | head -1`."""
    child = logs(tmp_path, "echo $$; while :; do echo more; sleep 0.05; done")
    assert child.stdout is not None
    try:
        ssh = int(child.stdout.readline())
        child.stdout.close()
        assert child.wait(timeout=PATIENCE) == READER_GONE
    finally:
        child.kill()
        child.wait(timeout=PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(ssh, 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_log_ends_ssh(number: signal.Signals, tmp_path: Path) -> None:
    child = logs(tmp_path, "echo $$; exec sleep 600")
    assert child.stdout is not None
    with contextlib.closing(child.stdout) as said:
        try:
            ssh = int(said.readline())
            child.send_signal(number)
            assert child.wait(timeout=PATIENCE) == 128 + number
        finally:
            child.kill()
            child.wait(timeout=PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(ssh, 0)
