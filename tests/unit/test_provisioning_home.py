"""What is declared in the agent's home: what is written, what stays, and that nothing of anybody's is lost."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes.guest import home as program

SOUL = {"place": "hermes", "path": "SOUL.md", "ours": True}
USER = {"place": "hermes", "path": "memories/USER.md", "ours": False}
PLAN = {"place": "working", "path": "notes/plan.md", "ours": True}


class Home:
    """A home in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hermes = folder / ".hermes"
        self.hermes.mkdir(mode=0o700)

    def put(
        self,
        *documents: dict[str, Any],
        auth: str | None = None,
        overwrite: bool = False,
        config: dict[str, Any] | None = None,
        schema: int | None = None,
        migration: dict[str, str] | None = None,
    ) -> list[str]:
        given = {
            "home": str(self.folder),
            "hermes": str(self.hermes),
            "working": str(self.folder / "workspace"),
            "documents": list(documents),
            "auth": {"text": auth, "overwrite": overwrite},
            "schema": schema,
            "migration": migration,
            "config": config or {},
        }
        lines: list[str] = program.put(program.inputs_from(given))["lines"]
        return lines

    def kept(self) -> list[str]:
        folder = self.folder / ".hermes-stack" / "replaced"
        return sorted(file.read_text() for file in folder.iterdir()) if folder.exists() else []

    @property
    def soul(self) -> Path:
        return self.hermes / "SOUL.md"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_documents_lie_where_they_are_read_for_their_owner_only(home: Home) -> None:
    before = os.umask(0o077)
    try:
        home.put({**SOUL, "text": "s"}, {**USER, "text": "u"}, {**PLAN, "text": "p"})
    finally:
        os.umask(before)
    assert home.soul.read_text() == "s"
    assert (home.hermes / "memories" / "USER.md").read_text() == "u"
    plan = home.folder / "workspace" / "notes" / "plan.md"
    assert plan.read_text() == "p"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home.soul, plan, plan.parent)] == [0o600, 0o600, 0o700]


def test_a_second_run_writes_nothing(home: Home) -> None:
    home.put({**SOUL, "text": "s"}, {**USER, "text": "u"}, auth="{}", config={"a": [1]})
    times = {path: path.stat().st_mtime_ns for path in home.folder.rglob("*")}
    assert home.put({**SOUL, "text": "s"}, {**USER, "text": "u"}, auth="{}", config={"a": [1]}) == []
    assert {path: path.stat().st_mtime_ns for path in home.folder.rglob("*")} == times


def test_where_nothing_is_declared_nothing_is_made(home: Home) -> None:
    assert home.put() == []
    assert list(home.folder.rglob("*")) == [home.hermes]


def test_a_text_of_somebody_else_is_kept_before_it_is_replaced_once(home: Home) -> None:
    home.soul.write_text("theirs")
    home.put({**SOUL, "text": "ours"})
    assert (home.soul.read_text(), home.kept()) == ("ours", ["theirs"])
    # As after a run that was cut off between the two: the same text is not kept twice.
    home.soul.write_text("theirs")
    home.put({**SOUL, "text": "ours"})
    assert (home.soul.read_text(), home.kept()) == ("ours", ["theirs"])


def test_our_own_older_text_is_replaced_without_a_copy(home: Home) -> None:
    home.put({**SOUL, "text": "one"})
    home.put({**SOUL, "text": "two"})
    assert (home.soul.read_text(), home.kept()) == ("two", [])


def test_a_memory_that_the_agent_went_on_with_stays_until_another_text_is_declared(home: Home) -> None:
    user = home.hermes / "memories" / "USER.md"
    home.put({**USER, "text": "likes tea"})
    user.write_text("likes tea\n§\nlikes rain")
    lines = home.put({**USER, "text": "likes tea"})
    assert user.read_text() == "likes tea\n§\nlikes rain"
    assert any("stays" in line for line in lines)
    home.put({**USER, "text": "likes coffee"})
    assert (user.read_text(), home.kept()) == ("likes coffee", ["likes tea\n§\nlikes rain"])


def test_a_memory_that_went_missing_comes_back(home: Home) -> None:
    user = home.hermes / "memories" / "USER.md"
    home.put({**USER, "text": "likes tea"})
    user.unlink()
    home.put({**USER, "text": "likes tea"})
    assert user.read_text() == "likes tea"


def test_what_is_no_longer_declared_goes_with_a_copy_and_stays_where_it_was_changed(home: Home) -> None:
    plan = home.folder / "workspace" / "notes" / "plan.md"
    home.put({**SOUL, "text": "s"}, {**PLAN, "text": "p"})
    plan.write_text("p, and what I thought of it")
    lines = home.put()
    assert not home.soul.exists()
    assert home.kept() == ["s"]
    assert plan.read_text() == "p, and what I thought of it"
    assert any("left at" in line for line in lines)
    assert home.put() == []


def test_a_link_is_replaced_not_followed(home: Home) -> None:
    target = home.folder / "target"
    target.write_text("theirs")
    home.soul.symlink_to(target)
    home.put({**SOUL, "text": "ours"})
    assert not home.soul.is_symlink()
    assert target.read_text() == "theirs"


def test_auth_is_seeded_once_and_then_the_agents(home: Home) -> None:
    auth = home.hermes / "auth.json"
    home.put(auth='{"token": 1}')
    assert stat.S_IMODE(auth.stat().st_mode) == 0o600
    auth.write_text('{"token": "renewed"}')
    home.put(auth='{"token": 1}')
    home.put(auth='{"token": 2}')
    assert auth.read_text() == '{"token": "renewed"}'
    assert home.kept() == []


def test_auth_is_overwritten_on_purpose_once_for_each_content(home: Home) -> None:
    auth = home.hermes / "auth.json"
    auth.write_text("old")
    home.put(auth="new", overwrite=True)
    assert (auth.read_text(), home.kept()) == ("new", ["old"])
    # The switch was left on: what the agent has renewed since stays.
    auth.write_text("renewed")
    home.put(auth="new", overwrite=True)
    assert auth.read_text() == "renewed"
    home.put(auth="newer", overwrite=True)
    assert (auth.read_text(), home.kept()) == ("newer", ["old", "renewed"])
    auth.write_text("renewed again")
    home.put(auth="newer", overwrite=False)
    assert auth.read_text() == "renewed again"
    home.put(auth="newer", overwrite=True)
    assert auth.read_text() == "newer"


CONFIG = """\
# my own
timezone: "Europe/Berlin"   # where I live
display:
  skin: mono
"""


def test_a_key_joins_the_users_config_and_leaves_it_again(home: Home) -> None:
    file = home.hermes / "config.yaml"
    file.write_text(CONFIG)
    chain = [{"provider": "spare", "model": "m"}]
    home.put(config={"fallback_providers": chain})
    text = file.read_text()
    assert text.startswith(CONFIG)
    assert yaml.safe_load(text) == {**yaml.safe_load(CONFIG), "fallback_providers": chain}
    home.put()
    assert file.read_text() == CONFIG
    assert home.kept() == []


def test_a_value_of_the_users_own_is_kept_before_it_is_replaced(home: Home) -> None:
    file = home.hermes / "config.yaml"
    mine = "fallback_providers:\n- provider: mine\n  model: m\n"
    file.write_text(mine)
    home.put(config={"fallback_providers": []})
    assert home.kept() == [mine]
    # One that the user has set since is not ours to take away.
    file.write_text(mine)
    home.put()
    assert file.read_text() == mine


@pytest.mark.parametrize("text", ["- a\n- list\n", "a: [1\n"])
def test_a_config_that_is_none_is_refused_and_left_alone(home: Home, text: str) -> None:
    file = home.hermes / "config.yaml"
    file.write_text(text)
    with pytest.raises(TypeError, match="correct or remove it"):
        home.put(config={"fallback_providers": []})
    assert file.read_text() == text


def test_a_broken_memory_of_ours_is_no_obstacle(home: Home) -> None:
    home.put({**SOUL, "text": "s"})
    (home.folder / ".hermes-stack" / "declared.json").write_text("[1, 2")
    home.put({**SOUL, "text": "t"})
    # It can't be told any more whose text it was: so it is kept.
    assert (home.soul.read_text(), home.kept()) == ("t", ["s"])


def test_the_program_runs_by_itself_and_says_in_one_line_what_stopped_it(home: Home) -> None:
    source = Path(program.__file__).read_text()
    home.soul.mkdir()
    wish = {
        "home": str(home.folder),
        "hermes": str(home.hermes),
        "working": str(home.folder),
        "documents": [{**SOUL, "text": "s"}],
        "auth": {"text": None, "overwrite": False},
        "schema": None,
        "migration": None,
        "config": {},
    }
    run = [sys.executable, "-IB", "-c", source]
    done = subprocess.run(run, input=json.dumps(wish), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "SOUL.md" in done.stderr
    home.soul.rmdir()
    done = subprocess.run(run, input=json.dumps(wish), capture_output=True, text=True, check=True, timeout=60)
    assert json.load(io.StringIO(done.stdout))["lines"] == [f"SOUL.md: written to {home.soul}"]


@pytest.mark.parametrize("there", [None, "", "\n", "_config_version: 31\n"])
def test_a_new_home_gets_a_config_of_the_installed_agents_schema(home: Home, there: str | None) -> None:
    config = home.hermes / "config.yaml"
    if there is not None:
        config.write_text(there)
    home.put(schema=33)
    assert yaml.safe_load(config.read_text()) == {"_config_version": 33}
    assert home.put(schema=33) == []
    # With another key beside it, it goes on from there.
    home.put(schema=33, config={"fallback_providers": [{"provider": "p"}]})
    assert yaml.safe_load(config.read_text()) == {"_config_version": 33, "fallback_providers": [{"provider": "p"}]}


@pytest.mark.parametrize("theirs", ["# mine", "# mine\n\n  # and more\n"])
def test_a_config_of_comments_alone_keeps_them_and_gets_its_first_key(home: Home, theirs: str) -> None:
    config = home.hermes / "config.yaml"
    config.write_text(theirs)
    home.put(schema=37)
    assert yaml.safe_load(config.read_text()) == {"_config_version": 37}
    assert config.read_text().startswith(theirs.rstrip())
    assert home.put(schema=37) == []


@pytest.mark.parametrize("theirs", ["# mine\nx: 1\n", "_config_version: 31\nagent: {}\n", "agent: {}\n"])
def test_a_config_that_says_anything_is_the_users(home: Home, theirs: str) -> None:
    (home.hermes / "config.yaml").write_text(theirs)
    assert home.put(schema=33) == []
    assert (home.hermes / "config.yaml").read_text() == theirs


def test_in_docker_mode_the_image_brings_the_config(home: Home) -> None:
    assert home.put(schema=None) == []
    assert not (home.hermes / "config.yaml").exists()


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_migrated_config_takes_the_place_of_the_users_which_is_kept(home: Home) -> None:
    config, theirs = home.hermes / "config.yaml", "_config_version: 33\na: 1 # mine\n"
    config.write_text(theirs)
    home.put(migration={"of": sha256(theirs), "text": "_config_version: 37\na: 2 # mine\n"}, schema=37)
    assert config.read_text() == "_config_version: 37\na: 2 # mine\n"
    assert home.kept() == [theirs]


@pytest.mark.parametrize("now", ["_config_version: 33\na: 5\n", None])
def test_a_config_that_changed_since_it_was_migrated_stays(home: Home, now: str | None) -> None:
    if now is not None:
        (home.hermes / "config.yaml").write_text(now)
    lines = home.put(migration={"of": sha256("a: 1\n"), "text": "a: 2\n"})
    assert lines == ["config.yaml: changed a moment ago and left as it is; the next run migrates it"]
    assert program.read(home.hermes / "config.yaml") == (now.encode() if now is not None else None)


# ---- what the agent may have put there -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SOUL.md", ".hermes-stack/declared.json"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_file_is_told_at_once_and_by_name(tmp_path: Path, name: str, kind: str) -> None:
    home = Home(tmp_path)
    path = home.folder / name if name.startswith(".hermes-stack") else home.hermes / name
    path.parent.mkdir(exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(TypeError, match=f"{path} is no plain file"):
        home.put({**SOUL, "text": "mine"})


@pytest.mark.parametrize(
    "documents",
    [
        {"nowhere:SOUL.md": "x"},
        {"SOUL.md": "x"},
        {"hermes:../../victim": "x"},
        {"hermes:": "x"},
        {"hermes:a\0b": "x"},
        {"hermes:SOUL.md": 1},
        {"hermes:SOUL.md": None},
    ],
)
def test_a_forged_list_of_what_was_declared_removes_nothing_and_ends_in_no_traceback(
    tmp_path: Path, documents: dict[str, Any]
) -> None:
    (tmp_path / "home").mkdir()
    home = Home(tmp_path / "home")
    victim = tmp_path / "victim"
    victim.write_text("here")
    (home.hermes / "SOUL.md").write_text("the agent's own")
    (home.folder / ".hermes-stack").mkdir()
    forged = {name: hashlib.sha256(b"here").hexdigest() if value == "x" else value for name, value in documents.items()}
    (home.folder / ".hermes-stack" / "declared.json").write_text(json.dumps({"documents": forged}))
    home.put()
    assert victim.read_text() == "here"
    assert (home.hermes / "SOUL.md").read_text() == "the agent's own"
