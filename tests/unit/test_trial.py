"""A release tried before it is trusted: what is taken of the settings, what is asked, and what is concluded."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from applications.hermes.guest import look
from applications.hermes.held import Database, Held, held_of, lost
from applications.hermes.phases import render_configure
from applications.hermes.settings.agent import BareMetalAgent
from provisioning.errors import ProvisioningError
from settings.read import PLACEHOLDER, usable_settings
from tests.repository import a_release, pasted
from tests.settings import MODEL, cattle
from trial import __main__ as command
from trial import decisions, unpack

LAB = ("http://10.64.0.1:8100/v1", "lab-model", "key")
BEFORE = Held(
    sessions=frozenset({"a", "b"}),
    messages=8,
    memories={"SOUL.md": "1", "memories/MEMORY.md": "2"},
    cron=frozenset({"job"}),
    skills=frozenset({"skills/mine"}),
    databases={"state.db": Database("22", "wal", True)},
    config_version=33,
    unknown_keys=frozenset(),
)
OLD = decisions.Running("0.19.0", "3.11.2", frozenset({"127.0.0.1:8642"}), 300, 33, frozenset(), True, 0)


# ---- the settings ---------------------------------------------------------------------------------------------------


def test_no_secret_of_a_stack_file_gets_into_a_trial() -> None:
    given = {
        "hermes-homelab:agentModel": "m",
        "hermes-homelab:agentModelKey": {"secure": "v1:abc"},
        "hermes-homelab:agentTelegramToken": {"secure": "v1:abc"},
        "hermes-homelab:agentSecretEnvironment": {"LITELLM_KEY": {"secure": "v1:abc"}, "PLAIN": "sk-in-clear"},
        "hermes-homelab:apiToken": "in-clear",
    }
    found = usable_settings(given, "hermes-homelab")
    assert found == {
        "agentModel": "m",
        "agentSecretEnvironment": {"LITELLM_KEY": PLACEHOLDER, "PLAIN": PLACEHOLDER},
    }


FULL: dict[str, Any] = {
    "agentModelUrl": "",
    "agentModelProvider": "litellm",
    "agentProviders": {"litellm": {"base_url": "http://192.0.2.1:4000/v1", "key_env": "LITELLM_KEY"}},
    "agentSecretEnvironment": {"LITELLM_KEY": "sk-true-secret", "TELEGRAM_BOT_TOKEN": "123456789:" + "A" * 35},
    "agentEnvironment": {"TELEGRAM_ALLOWED_USERS": "1", "MINE": "x"},
    "agentMcpServers": {"house": {"url": "https://house.example.org/mcp"}},
    "agentFallbackModels": [{"provider": "litellm", "model": "small"}],
    "agentSettings": {"agent": {"max_turns": 9}},
}


def test_nothing_of_a_detached_configuration_leads_out_of_the_lab() -> None:
    plan = render_configure(decisions.detached(cattle(**FULL), *LAB))
    text = "\n".join(file.content.decode() for file in plan.files if file.path == "inputs.json")
    parameters = json.loads(text)
    assert parameters["config"]["model"]["base_url"] == "http://10.64.0.1:8100/v1"
    assert parameters["config"]["mcp_servers"]["house"]["enabled"] is False
    assert parameters["config"]["agent"] == {"max_turns": 9}
    assert parameters["environment"]["MINE"] == "x"
    assert "TELEGRAM" not in text
    assert set(plan.secrets.values()) <= {PLACEHOLDER, "key"}
    assert "fallback_providers" not in parameters["config"]


def test_what_could_not_be_tried_is_told() -> None:
    told = "\n".join(decisions.left_out(cattle(**FULL)))
    for what in ("model endpoint", "network", "house", "messengers", "fallback"):
        assert what in told
    assert "messengers" not in "\n".join(decisions.left_out(cattle()))


@pytest.mark.parametrize(
    ("tag", "commit", "over", "count"),
    [
        ("v2026.8.16.2", "7" * 40, None, 0),
        ("v2026.8.16.2", "7" * 40, ("v2026.7.20", "3" * 40), 0),
        ("v2026.8.16.2", "7" * 12, None, 1),
        ("--upload-pack=x", "main", ("v1", "x"), 3),
    ],
)
def test_a_tag_and_a_full_commit_are_asked_for(tag: str, commit: str, over: Any, count: int) -> None:
    assert len(decisions.faults_of_arguments(tag, commit, over, "https://example.org/x.git")) == count


@pytest.mark.parametrize("annotated", [True, False])
def test_the_remedy_for_a_commit_prints_it(tmp_path: Path, annotated: bool) -> None:
    commit = a_release(tmp_path, "v1", annotated=annotated)
    (fault,) = decisions.faults_of_arguments("v1", "v1", None, tmp_path.as_uri())
    _, _, remedy = fault.partition("is no full commit: ")
    assert pasted(remedy) == commit


def options(**given: Any) -> Any:
    argv = [given.pop("tag", "v-new"), given.pop("commit", "b" * 40)]
    for name, value in given.items():
        argv += [f"--{name}", *(value if isinstance(value, tuple) else [value])]
    return command.parser().parse_args(argv)


GIT = {**MODEL, "agentSource": "git", "agentTag": "v-old", "agentCommit": "a" * 40, "agentVersion": "0.19.0"}


def test_the_releases_are_the_stacks_and_the_one_that_is_tried() -> None:
    old, new = command.releases_of(cattle(**GIT), options(version="0.20.3"), "git://10.64.0.1:9418/x.git")
    assert (old.install.tag, old.version, new.install.tag, new.version) == ("v-old", "0.19.0", "v-new", "0.20.3")
    assert {old.install.repository, new.install.repository} == {"git://10.64.0.1:9418/x.git"}
    old, new = command.releases_of(cattle(**{**GIT, "agentSource": "pypi"}), options(), None)
    assert (old.install.source, new.install.source, new.version) == ("pypi", "git", "")
    old, _ = command.releases_of(cattle(**GIT), options(**{"from": ("v-older", "c" * 40)}), None)
    assert (old.install.tag, old.install.commit, old.version) == ("v-older", "c" * 40, "")


def test_the_release_that_runs_is_refused() -> None:
    with pytest.raises(command.TrialError, match="runs already"):
        command.releases_of(cattle(**GIT), options(commit="a" * 40), None)


def test_a_stack_in_docker_mode_names_what_its_image_runs(tmp_path: Path) -> None:
    commit = a_release(tmp_path, "v1", annotated=False)
    image: dict[str, Any] = {"agentMode": "docker", "agentImage": f"example.org:5000/hermes:v1@sha256:{'0' * 64}"}
    given = {**MODEL, **image, "agentDashboard": "false"}
    with pytest.raises(command.TrialError, match="does not say what commit it is made of") as refused:
        command.releases_of(cattle(**given), options(), None)
    # The remedy, followed: its command prints what --from wants.
    text, _, remedy = str(refused.value).partition("The commit: ")
    assert "--from v1 COMMIT" in text
    remedy = remedy.replace(command.UPSTREAM, tmp_path.as_uri())
    old, new = command.releases_of(cattle(**given), options(**{"from": ("v1", pasted(remedy))}), None)
    assert (old.install.tag, old.install.commit, old.install.source, new.install.tag) == ("v1", commit, "git", "v-new")


def test_of_a_stack_in_docker_mode_the_image_is_not_tried() -> None:
    image = f"example.org/hermes:v1@sha256:{'0' * 64}"
    given: dict[str, Any] = {**MODEL, "agentMode": "docker", "agentImage": image, "agentDashboard": "false"}
    stack = cattle(**given, agentExtraVolumes=["/data:/data"], agentSettings={"timezone": "Europe/Berlin"})
    told = "\n".join(decisions.left_out(stack))
    assert "the image: the release's code was tried on the home without a container" in told
    assert "agentExtraVolumes" in told
    assert "image" not in "\n".join(decisions.left_out(cattle()))
    # What is tried: the same settings, without a container.
    bare = decisions.detached(stack, *LAB)
    assert isinstance(bare.agent, BareMetalAgent)
    assert render_configure(bare).declared["settings"] == {"timezone": "Europe/Berlin"}


# ---- what is concluded ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (replace(BEFORE, sessions=frozenset({"a"})), "1 of 2 sessions are gone"),
        (replace(BEFORE, messages=7), "1 of 8 messages are gone"),
        (replace(BEFORE, cron=frozenset()), "1 of 1 cron jobs are gone"),
        (replace(BEFORE, memories={"SOUL.md": "1", "memories/MEMORY.md": "3"}), "memories/MEMORY.md"),
        (replace(BEFORE, memories={"SOUL.md": "1"}), "memories/MEMORY.md"),
        (replace(BEFORE, databases={}), "databases are gone: state.db"),
        (replace(BEFORE, databases={"state.db": Database("26", "wal", False)}), "state.db is damaged"),
    ],
)
def test_what_is_lost_is_a_reason_to_say_no(after: Held, reason: str) -> None:
    (told,) = lost(BEFORE, after)
    assert reason in told


def test_what_comes_on_top_is_no_loss() -> None:
    more = replace(BEFORE, sessions=BEFORE.sessions | {"c"}, messages=11, skills=frozenset())
    assert lost(BEFORE, more) == []
    assert lost(BEFORE, BEFORE) == []


def test_each_change_is_reported() -> None:
    new = decisions.Running(
        "0.20.3", "3.14.0", frozenset({"127.0.0.1:8642", "0.0.0.0:9999"}), 264, 37, frozenset({"agent.x"}), False, 82
    )
    after = replace(
        BEFORE,
        databases={
            "state.db": Database("26", "delete", True),
            "new.db": Database("1", "delete", True),
        },
        unknown_keys=frozenset({"mine"}),
        skills=frozenset({"skills/mine", "skills/theirs"}),
    )
    text = "\n".join(decisions.changes(OLD, new, BEFORE, after))
    for words in (
        "Python 3.11.2 -> 3.14.0",
        "config.yaml 33 -> 37",
        "listens on 0.0.0.0:9999",
        "unknown keys of agentSettings: agent.x",
        "unknown keys of the home's config.yaml: mine",
        "no web interface",
        "1 more skills",
        "bundled skills 0 -> 82",
        "state.db: schema 22 -> 26",
        "state.db: journal mode wal -> delete",
        "new.db is new",
    ):
        assert words in text
    assert decisions.changes(OLD, OLD, BEFORE, BEFORE) == []


def test_a_verdict_in_words_and_as_a_status() -> None:
    verdict = decisions.Verdict(
        "0.20.3 (v1, 7339f5f1)", "0.19.0", "on a copy of x", True, proved=["one"], figures={"MB": 264.0}
    )
    assert verdict.status == 0
    assert verdict.text().splitlines()[0] == "YES: 0.20.3 (v1, 7339f5f1) over 0.19.0, on a copy of x"
    verdict.answer, verdict.reasons = False, ["it says no\nand more"]
    assert verdict.status == 1
    assert "    - it says no\n      and more" in verdict.text()
    verdict.answer = None
    assert verdict.status == 2
    assert json.loads(verdict.as_json())["status"] == 2


def test_of_a_log_the_lines_about_the_users_settings_are_notes() -> None:
    log = [
        "managed scope: /etc/hermes/config.yaml written",
        "config.yaml: schema 33 to 37",
        "config.yaml: delegation.max_iterations: 50 -> 250",
        "home: config.yaml: what was there is kept in /x",
        "warning: the agent 0.20.3 knows no setting x",
    ]
    assert decisions.agent_notes(log) == [log[1], log[2], log[4]]


# ---- the copy of a home ---------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A home as a user may have copied it."""
    home = tmp_path / "theirs"
    (home / "memories").mkdir(parents=True)
    (home / "memories" / "MEMORY.md").write_text("the cat is called Miez")
    (home / "config.yaml").write_text("_config_version: 33\nmine: 1\n")
    (home / "cron").mkdir()
    (home / "cron" / "jobs.json").write_text('{"jobs": [{"id": "abc", "next": {"id": 7}}]}')
    with closing(sqlite3.connect(home / "state.db")) as database, database:
        database.execute("PRAGMA journal_mode=WAL")
        for statement in (
            "CREATE TABLE schema_version (version)",
            "INSERT INTO schema_version VALUES (22)",
            "CREATE TABLE sessions (id)",
            "INSERT INTO sessions VALUES ('s1'), ('s2')",
            "CREATE TABLE messages (id)",
            "INSERT INTO messages VALUES (1), (2), (3)",
        ):
            database.execute(statement)
    return home


def archived(form: str, theirs: Path, above: str, target: Path) -> Path:
    if form == "zip":
        with zipfile.ZipFile(target, "w") as opened:
            for path in theirs.rglob("*"):
                opened.write(path, f"{above}{path.relative_to(theirs)}")
        return target
    with tarfile.open(target, "w:gz" if form == "gz" else "w:") as tar:
        tar.add(theirs, arcname=above.rstrip("/") or ".")
    return target


@pytest.mark.parametrize("form", ["", "gz", "zip"])
@pytest.mark.parametrize("above", ["", "home/hermes/.hermes/"])
def test_a_home_is_found_in_each_form_of_archive(tmp_path: Path, theirs: Path, form: str, above: str) -> None:
    home = tmp_path / "guest" / ".hermes"
    (home / "memories").mkdir(parents=True)  # as baseline has made it
    with archived(form, theirs, above, tmp_path / "archive").open("rb") as archive:
        assert unpack.put(archive, home) == 4
    assert (home / "memories" / "MEMORY.md").read_text() == "the cat is called Miez"
    assert list(home.parent.iterdir()) == [home]


def test_a_backup_of_the_stacks_is_taken_as_it_lies(
    tmp_path: Path, theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "known_keys", lambda: {"agent"})
    backup = tmp_path / "20260101T000000Z-0.19.0"
    backup.mkdir()
    theirs.rename(backup / "data")
    (backup / "manifest.json").write_text("{}")
    (backup / "data" / "link").symlink_to("config.yaml")
    archive, home = command.archive_of(backup, tmp_path), tmp_path / "guest" / ".hermes"
    home.mkdir(parents=True)
    with archive.open("rb") as stream:
        unpack.put(stream, home)
    assert (home / "link").readlink() == Path("config.yaml")
    found = held_of(json.dumps(look.look(home)))
    assert found.sessions == {"s1", "s2"}
    assert found.messages == 3
    assert found.cron == {"abc", "7"}
    assert found.config_version == 33
    assert found.databases == {"state.db": Database("22", "wal", True)}
    assert set(found.memories) == {"memories/MEMORY.md"}
    assert found.unknown_keys == {"mine"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"messages": "many"}', "\x1b]0;gone\x07"])
def test_a_forged_content_of_a_home_is_refused(text: str) -> None:
    """The agent's own Python prints it."""
    with pytest.raises(ValidationError):
        held_of(text)


def test_a_file_name_of_the_agent_s_reaches_no_terminal_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "memories").mkdir()
    (tmp_path / "memories" / "\x1b]0;mine\x07.md").write_text("x")
    [name] = held_of(json.dumps(look.look(tmp_path))).memories
    assert name == "memories/\\x1b]0;mine\\x07.md"


def hostile() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, kind, linked in (
            ("../../escaped", tarfile.REGTYPE, ""),
            ("/var/escaped", tarfile.REGTYPE, ""),
            ("up", tarfile.SYMTYPE, "../.."),
            ("root", tarfile.SYMTYPE, "/"),
            ("root/escaped", tarfile.REGTYPE, ""),
            ("device", tarfile.CHRTYPE, ""),
            ("config.yaml", tarfile.REGTYPE, ""),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, linked, 0o4777
            tar.addfile(member)
    return made.getvalue()


def test_an_archive_leads_nowhere_else(tmp_path: Path) -> None:
    home = tmp_path / "guest" / ".hermes"
    home.mkdir(parents=True)
    unpack.put(io.BytesIO(hostile()), home)
    assert sorted(path.name for path in home.iterdir()) == ["config.yaml", "root"]
    assert (home / "root").is_dir()
    assert not (home / "root").is_symlink()
    assert (home / "config.yaml").stat().st_mode & 0o7777 == 0o700
    assert not list(tmp_path.rglob("escaped*")) or [home / "root" / "escaped"] == list(tmp_path.rglob("escaped*"))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b broken"])
def test_what_is_no_archive_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    home = tmp_path / ".hermes"
    argv = [sys.executable, "-IB", str(Path(unpack.__file__)), str(home)]
    done = subprocess.run(argv, input=content, capture_output=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.decode().startswith("error: the copy of the home can't be used")
    assert done.stderr.count(b"\n") == 1


def test_an_archive_without_a_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "other").write_text("")
    with pytest.raises(ValueError, match="holds no home"):
        unpack.home_in(tmp_path)


def test_a_backup_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(command.TrialError, match="there is no backup"):
        command.archive_of(tmp_path / "none", tmp_path)


# ---- its course -----------------------------------------------------------------------------------------------------


class Course(command.Trial):
    """A trial whose guest is a table: which step fails, and what the home holds at each look."""

    def __init__(self, fails: str = "", after: Held = BEFORE, back: Held = BEFORE) -> None:
        self.stack = cattle()
        self.verdict = decisions.Verdict("new", "old", "on a home")
        self.fails, self.after, self.back, self.steps = fails, after, back, list[str]()
        self.heard: list[str] = ["config.yaml: schema 33 to 37"]

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails:
            raise ProvisioningError(f"{name} broke")

    def switch_to(self, directory: str) -> dict[str, Any]:
        self._step(f"switch to {directory}")
        return {"backup": "B", "offline_seconds": 5.5}

    def verify(self, build: command.Build, **_: Any) -> None:
        self._step(f"verify {build.version}")

    def run(self, plan: Any, timeout_s: float = 0) -> dict[str, Any]:  # noqa: ARG002 - as the real one
        self._step(plan.name)
        return {}

    def look(self, directory: str) -> Held:
        return self.after if directory == "/new" else self.back

    def running(self, build: command.Build, configured: dict[str, Any]) -> decisions.Running:  # noqa: ARG002 - as the real one
        return replace(OLD, version=build.version)


FIRST, SECOND = command.Build("/old", "0.19.0"), command.Build("/new", "0.20.3")


def course(**given: Any) -> Course:
    made = Course(**given)
    backup = made._update(FIRST, SECOND, OLD, BEFORE)
    if backup is not None:
        made._go_back(FIRST, BEFORE, backup)
    return made


def test_a_release_that_proves_itself_and_lets_go_back_is_a_yes() -> None:
    made = course()
    assert made.verdict.answer is True
    assert made.steps == ["switch to /new", "verify 0.20.3", "switch to /old", "backups", "verify 0.19.0"]
    assert made.verdict.changes == ["config.yaml: schema 33 to 37"]
    assert made.verdict.figures["seconds offline"] == 5.5


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"fails": "switch to /new"}, "switch to /new broke"),
        ({"fails": "verify 0.20.3"}, "a check fails"),
        ({"fails": "switch to /old"}, "going back fails"),
        ({"fails": "backups"}, "going back fails"),
        ({"fails": "verify 0.19.0"}, "going back fails"),
        ({"after": replace(BEFORE, messages=1)}, "messages are gone"),
        ({"back": replace(BEFORE, messages=1)}, "after going back"),
    ],
)
def test_whatever_breaks_is_a_no_with_its_reason(given: dict[str, Any], reason: str) -> None:
    made = course(**given)
    assert made.verdict.answer is False
    assert reason in "\n".join(made.verdict.reasons)


def test_an_update_that_was_taken_back_is_looked_at() -> None:
    taken_back = course(fails="switch to /new")
    assert "the update was taken back: 0.19.0 serves with all its data" in taken_back.verdict.proved
    lossy = course(fails="switch to /new", back=replace(BEFORE, cron=frozenset()))
    assert any("after the update was taken back" in reason for reason in lossy.verdict.reasons)
