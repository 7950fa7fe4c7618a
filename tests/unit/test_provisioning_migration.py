"""The user's config.yaml in a newer schema: what is migrated, what stays of the user's words, what is told of it.

The agent is a stand-in for the functions of hermes_cli/config.py that the program calls (read in 0.19.0 and 0.20.3):
its migrations are like upstream's, and like upstream's its writing drops comments and quotes. The true one: e2e.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes.guest import home as home_program
from applications.hermes.guest import migration
from applications.hermes.guest.managed import Reader
from applications.hermes.guest.migration import PROGRAM, Migrated, is_due, migration_of, shown, told
from provisioning.guest.common import how_it_failed
from provisioning.guest.words import BAR

AGENT = """
import os
from pathlib import Path
import yaml
LATEST = 37
def _path():
    assert not list(Path(os.environ["HERMES_MANAGED_DIR"]).iterdir()), "nothing may be pinned here"
    return Path(os.environ["HERMES_HOME"], "config.yaml")
def check_config_version():
    return int(yaml.safe_load(_path().read_text()).get("_config_version", 0)), LATEST
def migrate_config(interactive, quiet):
    assert interactive is False
    print("words on the standard output that are no answer")
    config = yaml.safe_load(_path().read_text())
    version = config.get("_config_version", 0)
    if "_config_version" in config and version < 12:
        return {"warnings": ["This config predates version 12\\x1b[31m and more"]}
    if version < 33:
        config["plugins"] = {"enabled": []}
    if version < 35 and config.get("display", {}).get("background") == "all":
        config["display"]["background"] = "concise"
    if version < 37 and config.get("delegation", {}).get("children") == 3:
        config["delegation"]["children"] = 10
    config.pop("dead", None)
    config["_config_version"] = LATEST
    _path().write_text("# boilerplate\\n" + yaml.safe_dump(config))
    return {"warnings": []}
"""
THEIRS = """\
# My own words
_config_version: 33
display:
  background: all   # as it was
  theme: "plain"
delegation: {children: 3, depth: 1}
switch: on
mine: 'quoted'  # and why
"""


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    package = tmp_path / "code" / "hermes_cli"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "config.py").write_text(AGENT)

    def read(program: str, folder: Path) -> str:
        environment = {**os.environ, "PYTHONPATH": str(package.parent), "HERMES_MANAGED": "pulumi"}
        argv = [sys.executable, "-c", program, str(folder)]
        done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False, timeout=60)
        if done.returncode:
            raise how_it_failed("the agent's own code", done)
        return done.stdout

    return read


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reader: Reader) -> Any:
    """Migrate a text: the new text (None: it stays), and the lines that were said."""
    monkeypatch.setattr(migration, "MANAGED", tmp_path)

    def migrate(present: str, before: int = 33, schema: int = 37) -> tuple[str | None, list[str]]:
        monkeypatch.setattr(migration, "as_user", lambda *_, **__: present)
        found = migration_of("hermes", "/home", reader, gid=os.getgid(), schema=schema, before=before)
        if found is not None:
            assert found.of == home_program.digest(present.encode())
        return None if found is None else found.text, capsys.readouterr().out.splitlines()

    return migrate


def test_values_are_migrated_and_the_users_words_stay(made: Any) -> None:
    text, lines = made(THEIRS)
    now = yaml.safe_load(text)
    assert now == {
        **yaml.safe_load(THEIRS),
        "_config_version": 37,
        "display": {"background": "concise", "theme": "plain"},
        "delegation": {"children": 10, "depth": 1},
    }
    for words in (
        "# My own words",
        "# as it was",
        '"plain"',
        "{children: 10, depth: 1}",
        "switch: on",
        "'quoted'  # and why",
    ):
        assert words in text
    assert "boilerplate" not in text
    assert lines == [
        "config.yaml: schema 33 to 37",
        "config.yaml: display.background: all -> concise",
        "config.yaml: delegation.children: 3 -> 10",
    ]


def test_a_file_without_a_number_is_of_the_agent_that_has_read_it(made: Any) -> None:
    text, lines = made("# short\ndelegation: {children: 3}\n", before=33)
    assert yaml.safe_load(text) == {"delegation": {"children": 10}, "_config_version": 37}
    assert text.startswith("# short\n")
    assert lines[0] == "config.yaml: schema 33 to 37"


def test_what_is_removed_goes(made: Any) -> None:
    text, lines = made("dead: 1\nalive: 2\n_config_version: 36\n")
    assert yaml.safe_load(text) == {"alive": 2, "_config_version": 37}
    assert "config.yaml: dead: 1 -> (none)" in lines


def test_a_form_that_cannot_be_kept_is_the_agents_own(made: Any) -> None:
    # A key twice: the agent's reader takes the last, the one that keeps comments takes none.
    text, lines = made("a: 1 # once\na: 2\ndelegation: {children: 3}\n_config_version: 33\n")
    assert yaml.safe_load(text) == {"a": 2, "delegation": {"children": 10}, "_config_version": 37}
    assert lines[0] == "config.yaml: schema 33 to 37; in the agent's own form, without its comments"
    assert "config.yaml: delegation.children: 3 -> 10" in lines


def test_what_the_agent_refuses_stays_and_is_told_in_one_plain_line(made: Any) -> None:
    text, lines = made("_config_version: 9\na: 1\n")
    assert text is None
    (line,) = lines
    assert line.startswith(
        "warning: config.yaml in the home stays of schema 9, the agent knows 37: This config predates"
    )
    assert line.isprintable()


@pytest.mark.parametrize("broken", ["a: [1\n", "just words\n", "- a\n- b\n"])
def test_a_file_that_the_agent_fails_at_stays(made: Any, broken: str) -> None:
    text, lines = made(broken, before=33)
    assert text is None
    assert lines[0].startswith(
        "warning: config.yaml in the home was not migrated, the agent fails at it: the agent's own"
    )
    assert all(line.startswith(BAR) for line in lines[1:])
    assert "Error" in lines[-1] or "expected" in "".join(lines), "the reason, which comes last"


@pytest.mark.parametrize(
    ("present", "before", "due"),
    [
        ("_config_version: 33\na: 1\n", 37, True),
        ("a: 1\n_config_version: 33  # theirs\n", 37, True),
        ("_config_version: 37\na: 1\n", 33, False),
        ("_config_version: 45\na: 1\n", 37, False),
        ("a: 1\n", 33, True),
        ("a: 1\n", 37, False),
        ("a:\n  _config_version: 12\n", 37, False),
        ("", 33, False),
        ("_config_version: 33\n", 33, False),  # what was begun by home.py, which also goes on with it
        ("a: \ufffd\n", 33, False),
        ("a: " + "x" * migration.LONGEST, 33, False),
    ],
)
def test_when_a_migration_is_due(present: str, before: int, due: bool) -> None:
    assert is_due(present, 37, before) is due


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("a", True, "true"),
        ("a", 3, "3"),
        ("a", "concise", "concise"),
        ("a", "", '""'),
        ("a", None, "(none)"),
        ("a", "two words", "(not shown)"),
        ("a", "\x1b[31m", "(not shown)"),
        ("a", {"b": 1}, "(not shown)"),
        ("providers.x.api_key", "sk-short", "(not shown)"),
        ("telegram.bot_token", 12345, "(not shown)"),
    ],
)
def test_no_secret_and_no_control_character_is_shown(name: str, value: object, words: str) -> None:
    assert shown(name, value) == words


def test_a_key_of_odd_letters_is_not_repeated() -> None:
    changes = ([["a\x1b[2J"], 1, 2], "odd")
    found = Migrated(stated=1, reached=2, latest=2, text="", comments=True, changes=changes)
    assert told(found) == [
        "config.yaml: schema 1 to 2",
        "config.yaml: (a key): 1 -> 2",
        "config.yaml: (a key): (none) -> (none)",
    ]


def test_the_program_is_python_of_the_oldest_that_runs_it() -> None:
    compile(PROGRAM, "migration", "exec")
