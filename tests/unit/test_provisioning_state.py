"""Backups of the agent's data: what is in them, what an undo gives back, what a restore leaves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import state


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home as the agent leaves it: a database with an open log, texts, a link, what is not worth keeping."""
    data = tmp_path / ".hermes"
    for folder in ("memories", "cron", "logs", "skills/one/__pycache__", "hooks"):
        (data / folder).mkdir(parents=True)
    (data / "memories" / "MEMORY.md").write_text("the cat is called Miez")
    (data / "config.yaml").write_text("# my words\n_config_version: 33\n")
    (data / "auth.json").write_text('{"openai": {"token": "old"}}')
    (data / ".env").write_text("A=1")
    (data / ".env").chmod(0o600)
    (data / "logs" / "agent.log").write_text("noise")
    (data / "gateway.pid").write_text("1")
    (data / "skills" / "one" / "__pycache__" / "x.pyc").write_text("noise")
    (data / "skills" / "link").symlink_to("one")
    write(data / "state.db", "PRAGMA journal_mode=WAL", "CREATE TABLE schema_version (version)", SESSIONS)
    write(data / "state.db", "INSERT INTO schema_version VALUES (22)", "INSERT INTO sessions VALUES ('first')")
    return tmp_path


SESSIONS = "CREATE TABLE sessions (id)"


def write(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def sessions(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [row[0] for row in database.execute("SELECT id FROM sessions")]


def make(home: Path) -> dict[str, Any]:
    return state.make(home, home / ".hermes", "0.19.0", "a test")


def kept(home: Path, name: str) -> Path:
    return home / ".hermes-stack" / "backups" / name


def texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.startswith("state.db")
    }


def test_a_backup_holds_what_counts_and_a_database_with_its_log(home: Path) -> None:
    # A writer that is in the middle of its work: what it has committed lies in the log alone.
    with contextlib.closing(sqlite3.connect(home / ".hermes" / "state.db")) as writer:
        writer.execute("INSERT INTO sessions VALUES ('second')")
        writer.commit()
        assert (home / ".hermes" / "state.db-wal").stat().st_size > 0
        writer.execute("INSERT INTO sessions VALUES ('not committed')")
        made = make(home)
    data = kept(home, made["name"]) / "data"
    assert sessions(data / "state.db") == ["first", "second"]
    assert set(texts(data)) == {"memories/MEMORY.md", "config.yaml", "auth.json", ".env"}
    assert made["files"]["skills/link"] == {"kind": "link", "to": "one"}
    assert (data / ".env").stat().st_mode & 0o777 == 0o600
    assert kept(home, ".").stat().st_mode & 0o777 == 0o700
    assert made["name"].endswith("Z-0.19.0")


def test_what_did_not_change_is_stored_once(home: Path) -> None:
    first = make(home)
    (home / ".hermes" / "config.yaml").write_text("changed: true\n")
    second = make(home)
    one, other = (kept(home, each["name"]) / "data" for each in (first, second))
    assert (one / "memories" / "MEMORY.md").stat().st_ino == (other / "memories" / "MEMORY.md").stat().st_ino
    assert (one / "config.yaml").read_text() == "# my words\n_config_version: 33\n"
    assert (other / "config.yaml").read_text() == "changed: true\n"


def test_freshened_it_holds_the_last_words(home: Path) -> None:
    name = make(home)["name"]
    data = home / ".hermes"
    write(data / "state.db", "INSERT INTO sessions VALUES ('late')")
    (data / "memories" / "NEW.md").write_text("late")
    (data / ".env").unlink()
    state.freshen(home, data, name)
    copy = kept(home, name) / "data"
    assert sessions(copy / "state.db") == ["first", "late"]
    assert set(texts(copy)) == {"memories/MEMORY.md", "memories/NEW.md", "config.yaml", "auth.json"}


def test_what_was_only_used_is_not_given_back(home: Path) -> None:
    name = make(home)["name"]
    data = home / ".hermes"
    write(data / "state.db", "INSERT INTO sessions VALUES ('meanwhile')")
    (data / "memories" / "MEMORY.md").write_text("the dog is called Rex")
    (data / "auth.json").write_text('{"openai": {"token": "renewed"}}')
    assert state.undo(home, data, name, "0.20.0") == {"restored": [], "set_aside": None}
    assert sessions(data / "state.db") == ["first", "meanwhile"]
    assert (data / "auth.json").read_text() == '{"openai": {"token": "renewed"}}'


@pytest.mark.parametrize(
    "migration",
    [
        ("UPDATE schema_version SET version = 23",),
        ("PRAGMA user_version = 7",),
        ("ALTER TABLE sessions ADD COLUMN title",),
        ("ALTER TABLE sessions RENAME TO sessions_23", SESSIONS),
    ],
)
def test_a_migrated_database_is_given_back_and_what_became_of_it_is_kept(
    home: Path, migration: tuple[str, ...]
) -> None:
    name = make(home)["name"]
    data = home / ".hermes"
    write(data / "state.db", *migration)
    (data / "config.yaml").write_text("_config_version: 99\n")
    write(data / "new.db", "CREATE TABLE things (id)")
    (data / "memories" / "MEMORY.md").write_text("the dog is called Rex")
    done = state.undo(home, data, name, "0.20.0")
    assert sorted(done["restored"]) == ["config.yaml", "new.db", "state.db"]
    assert sessions(data / "state.db") == ["first"]
    assert state.schema_of(data / "state.db") == state.manifest_of(kept(home, name))["files"]["state.db"]["schema"]  # type: ignore[index]
    assert (data / "config.yaml").read_text() == "# my words\n_config_version: 33\n"
    assert not (data / "new.db").exists()
    # Content is not a form: what was written meanwhile stays.
    assert (data / "memories" / "MEMORY.md").read_text() == "the dog is called Rex"
    aside = kept(home, done["set_aside"]) / "data"
    assert (aside / "config.yaml").read_text() == "_config_version: 99\n"
    assert (aside / "new.db").exists()
    assert state.schema_of(aside / "state.db") != state.schema_of(data / "state.db")
    # Done twice it does nothing more.
    assert state.undo(home, data, name, "0.20.0") == {"restored": [], "set_aside": None}


def test_a_log_of_the_new_database_is_not_played_into_the_old_one(home: Path) -> None:
    name = make(home)["name"]
    data = home / ".hermes"
    with contextlib.closing(sqlite3.connect(data / "state.db")) as killed:
        killed.execute("PRAGMA user_version = 99")
        killed.execute("INSERT INTO sessions VALUES ('of 99')")
        killed.commit()
        log = (data / "state.db-wal").read_bytes()
    (data / "state.db-wal").write_bytes(log)  # as a process that was killed leaves it
    assert state.undo(home, data, name, "0.99.0")["restored"] == ["state.db"]
    assert not (data / "state.db-wal").exists()
    assert sessions(data / "state.db") == ["first"]


def test_restored_the_data_are_what_they_were(home: Path) -> None:
    name = make(home)["name"]
    data = home / ".hermes"
    before = texts(data)
    write(data / "state.db", "DELETE FROM sessions")
    (data / "memories" / "MEMORY.md").write_text("another")
    (data / "memories" / "LATER.md").write_text("later")
    (data / "later" / "on").mkdir(parents=True)
    (data / "skills" / "link").unlink()
    (data / "logs" / "agent.log").write_text("noise")
    state.restore(home, data, name)
    assert texts(data) == before
    assert sessions(data / "state.db") == ["first"]
    assert (data / "skills" / "link").readlink() == Path("one")
    assert not (data / "later").exists()


def test_a_damaged_backup_is_refused_before_anything_is_changed(home: Path) -> None:
    name = make(home)["name"]
    (kept(home, name) / "data" / "config.yaml").unlink()
    (home / ".hermes" / "memories" / "MEMORY.md").write_text("now")
    with pytest.raises(state.StateError, match=r"has lost files, 'config\.yaml' the first"):
        state.restore(home, home / ".hermes", name)
    assert (home / ".hermes" / "memories" / "MEMORY.md").read_text() == "now"


def test_a_volume_without_room_is_refused_with_its_numbers_and_nothing_is_left(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "RESERVE", 1 << 60)
    with pytest.raises(state.StateError, match=r"a backup needs \d+ MB, but .* has \d+ MB free") as refused:
        make(home)
    assert "lower agentBackupsKept" in str(refused.value)
    assert list(state.all_backups(home)) == []


def test_a_volume_that_becomes_full_leaves_no_half_backup(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_manifest", full)
    with pytest.raises(state.StateError, match="became full during the backup"):
        make(home)
    assert [path.name for path in kept(home, ".").iterdir()] == [".lock"]


def test_what_a_killed_run_left_is_no_backup_and_goes(home: Path) -> None:
    half = kept(home, ".making-20260101T000000Z-0.19.0")
    (half / "data").mkdir(parents=True)
    foreign = kept(home, "20260101T000000Z-mine")
    foreign.mkdir()
    made = make(home)
    assert [each["name"] for each in state.all_backups(home)] == [made["name"]]
    assert not half.exists()
    assert foreign.exists()


def test_the_newest_are_kept(home: Path) -> None:
    names = [make(home)["name"] for _ in range(4)]
    removed = state.prune(home, 2, 1)
    assert sorted(removed) == sorted(names[:2])
    assert [each["name"] for each in state.all_backups(home)] == names[:1:-1]
    assert state.find(home, "latest")[1]["name"] == names[-1]
    with pytest.raises(state.StateError, match=f"there is no backup {names[0]}") as refused:
        state.find(home, names[0])
    assert names[-1] in str(refused.value)


def test_what_the_timer_made_is_counted_by_itself(home: Path) -> None:
    reasons = ["a test", state.SCHEDULED, state.SCHEDULED, "a test", state.SCHEDULED]
    names = [state.make(home, home / ".hermes", "0.19.0", reason)["name"] for reason in reasons]
    known = {each["name"]: each["sum"] for each in state.all_backups(home)}
    # One that the agent has made and calls so is counted with what is not ours.
    forged = state.make(home, home / ".hermes", "0.19.0", state.SCHEDULED)["name"]
    assert set(state.prune(home, 1, 2, known)) == {names[0], names[1]}
    assert {each["name"] for each in state.all_backups(home)} == {names[2], names[3], names[4], forged}


def workspace(home: Path) -> Path:
    """Beside the data: work with a lock file and a database that is in use, and what no backup has."""
    work = home / "workspace"
    (work / "node_modules").mkdir(parents=True)
    (work / "node_modules" / "noise").write_text("noise")
    (work / "uv.lock").write_text("of the work")
    (work / "plan.md").write_text("first")
    (work / "escape").symlink_to("/etc/shadow")
    write(work / "notes.db", "PRAGMA journal_mode=WAL", "CREATE TABLE sessions (id)")
    for name in (".hermes-stack-backups.json", "lost+found"):
        (home / name).write_text("not the agent's")
    return work


def test_with_the_rest_of_the_home_it_holds_the_work_and_gives_it_back(home: Path) -> None:
    work, data = workspace(home), home / ".hermes"
    with contextlib.closing(sqlite3.connect(work / "notes.db")) as writer:
        writer.execute("INSERT INTO sessions VALUES ('mine')")
        writer.commit()
        made = state.make(home, data, "0.19.0", "a test", rest=True)
    copy = kept(home, made["name"]) / "home"
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file() or path.is_symlink()} == {
        "workspace/uv.lock", "workspace/plan.md", "workspace/notes.db",
    }  # fmt: skip
    assert made["home"]["workspace/escape"] == {"kind": "link", "to": "/etc/shadow"}
    assert sessions(copy / "workspace" / "notes.db") == ["mine"]
    again = state.make(home, data, "0.19.0", "a test", rest=True)
    assert (copy / "workspace" / "plan.md").samefile(kept(home, again["name"]) / "home" / "workspace" / "plan.md")

    (work / "plan.md").unlink()
    (work / "later.md").write_text("later")
    (data / "memories" / "MEMORY.md").unlink()
    state.restore(home, data, made["name"])
    assert (work / "plan.md").read_text() == "first"
    assert not (work / "later.md").exists()
    assert (work / "node_modules" / "noise").exists()
    assert (work / "escape").readlink() == Path("/etc/shadow")
    assert (data / "memories" / "MEMORY.md").read_text() == "the cat is called Miez"
    assert (home / ".hermes-stack-backups.json").read_text() == "not the agent's"


def test_what_has_no_rest_of_the_home_leaves_it_as_it_is(home: Path) -> None:
    name = make(home)["name"]
    work = workspace(home)
    state.restore(home, home / ".hermes", name)
    assert (work / "plan.md").read_text() == "first"
    assert "home" not in state.find(home, name)[1]


@pytest.mark.parametrize("rest", [[], {"../../etc/passwd": {"kind": "file", "size": 1}}, {"a": {"kind": "pipe"}}])
def test_a_forged_rest_of_the_home_is_no_backup(home: Path, rest: Any) -> None:
    name = make(home)["name"]
    manifest = kept(home, name) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "home": rest}))
    assert list(state.all_backups(home)) == []


def test_a_file_that_nobody_may_read_does_not_keep_the_rest_from_being_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workspace(home)
    copy = shutil.copy2

    def refused(source: Any, target: Any, **how: Any) -> Any:
        if Path(source).name == "plan.md":
            raise PermissionError(13, "Permission denied", str(source))
        return copy(source, target, **how)

    monkeypatch.setattr(shutil, "copy2", refused)
    made = state.make(home, home / ".hermes", "0.19.0", "a test", rest=True)
    assert "workspace/plan.md" not in made["home"]
    assert "workspace/uv.lock" in made["home"]
    assert "workspace/plan.md can't be read (Permission denied)" in capsys.readouterr().err


def test_two_at_a_time_are_refused(home: Path) -> None:
    with state.exclusive(home), pytest.raises(state.StateError, match="another backup or restore is at work"):
        make(home)


def journal_mode(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return str(database.execute("PRAGMA journal_mode").fetchone()[0])


def left_open(path: Path, *statements: str) -> None:
    """Write in a process that is killed before it can close the database: its log stays."""
    program = (
        "import os, sqlite3, sys\n"
        "database = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for statement in sys.argv[2:]: database.execute(statement).fetchall()\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path), *statements], check=True, timeout=60)


def sidecars(data: Path) -> list[str]:
    return sorted(path.name for path in data.iterdir() if path.name.startswith("state.db-"))


@pytest.mark.parametrize("way", ["restore", "undo"])
@pytest.mark.parametrize(("before", "after"), [("wal", "delete"), ("delete", "wal"), ("wal", "wal")])
def test_a_database_comes_back_in_its_mode_without_the_logs_of_another(
    home: Path, before: str, after: str, way: str
) -> None:
    # 0.19.0 makes WAL; 0.20.3 on Debian's SQLite makes DELETE and leaves what is WAL (facts hermes 0.20, 6). Frames of
    # a newer log beside an older database are replayed into it.
    data = home / ".hermes"
    path = data / "state.db"
    write(path, f"PRAGMA journal_mode={before}")
    name = make(home)["name"]
    write(path, f"PRAGMA journal_mode={after}", "CREATE TABLE of_the_new_version (x)")
    left_open(path, "INSERT INTO sessions VALUES ('of the new version')")
    if after == "delete":
        # One that ended in the middle of a write: a journal that would be rolled back into whatever lies beside it.
        left_open(path, "PRAGMA cache_size=1", "BEGIN", *["INSERT INTO sessions VALUES (randomblob(5000))"] * 50)
    assert sidecars(data)
    if way == "restore":
        state.restore(home, data, name)
    else:
        assert state.undo(home, data, name, "0.20.3")["restored"] == ["state.db"]
    assert sidecars(data) == []
    assert journal_mode(path) == before
    assert sessions(path) == ["first"]
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.fixture
def bottomless(home: Path) -> Iterator[Path]:
    """A home that goes with all that is in it: Python's own removal of a tree ends at a depth, and pytest with it."""
    yield home
    os.chdir(Path(__file__).parent)
    subprocess.run(["rm", "-rf", "--", home], check=True)


def test_what_lies_too_deep_or_has_the_longest_name_keeps_nothing_from_being_backed_up(
    bottomless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tree deeper than Python's calls may nest, a path that fits where it is and in no folder of a backup."""
    home = bottomless
    data = home / ".hermes"
    there = Path.cwd()
    for top, name, count in (("deep", "d", 1500), ("long", "l" * 250, 15), (".making-deep", "d", 1500)):
        place = data if not top.startswith(".") else kept(home, ".")
        place.mkdir(parents=True, exist_ok=True)
        os.chdir(place)
        for each in (top, *[name] * count):
            Path(each).mkdir()
            os.chdir(each)
        Path("file").write_text("x")
        os.chdir(there)
    longest = data / ("n" * 255)
    longest.write_text("x")
    made = make(home)
    assert longest.name in made["files"]
    assert "they are in no backup" in capsys.readouterr().err
    longest.unlink()
    state.freshen(home, data, made["name"])
    longest.mkdir()
    state.remove_tree(data / "deep")
    state.restore(home, data, made["name"])
    assert not (kept(home, ".") / ".making-deep").exists()
    state.prune(home, 0, 0)
    for each in ("long", "deep"):
        state.remove_tree(data / each)


@pytest.mark.parametrize("kind", ["file", "link", "closed"])
def test_what_the_agent_puts_in_the_place_of_a_leftover_is_in_nobodys_way(home: Path, kind: str) -> None:
    leftover = kept(home, ".making-x")
    leftover.parent.mkdir(parents=True)
    if kind == "file":
        leftover.write_text("x")
    elif kind == "link":
        leftover.symlink_to(home)
    else:
        (leftover / "closed").mkdir(parents=True)
        (leftover / "closed" / "file").write_text("x")
        (leftover / "closed").chmod(0)
    name = make(home)["name"]
    assert not os.path.lexists(leftover)
    assert (home / ".hermes" / "config.yaml").exists()
    # A folder that it has closed in a backup does not keep that one for ever.
    (kept(home, name) / "data" / "memories").chmod(0)
    assert state.prune(home, 0, 0) == [name]
    assert not list(kept(home, ".").glob(f"*{name}"))


@pytest.mark.parametrize(
    "bomb",
    [
        '{"a": ' + "[" * 22 + '"x"' + "]" * 22 + "}",
        "[" * 600 + "]" * 600,
        "[" * 100_000,
        " " * (state.SHAPE_LIMIT + 1),
    ],
)
def test_a_file_made_to_take_all_memory_is_given_back_like_any_other(home: Path, bomb: str) -> None:
    """Each level of lists doubled the text of what was in it; a deep one ended the program, a large one was refused."""
    name = make(home)["name"]
    auth = home / ".hermes" / "auth.json"
    before = auth.read_text()
    auth.write_text(bomb)
    assert len(state.shape_of(auth)) <= 2 * len(bomb)
    assert state.undo(home, home / ".hermes", name, "0.20.0")["restored"] == ["auth.json"]
    assert auth.read_text() == before


def test_the_shape_of_a_file_is_its_keys_and_not_their_order_or_number(home: Path) -> None:
    shapes = []
    for number, text in enumerate(
        (
            '{"a": [{"b": 1, "c": 2}], "d": "x"}',
            '{"d": "y", "a": [{"c": 7, "b": 8}, {"b": 3, "c": 4}]}',
            '{"a": [{"b": 1}]}',
        )
    ):
        (home / f"{number}.json").write_text(text)
        shapes.append(state.shape_of(home / f"{number}.json"))
    assert shapes[0] == shapes[1] != shapes[2]


def test_rows_that_are_computed_and_endless_take_no_memory(home: Path) -> None:
    data = home / ".hermes"
    with contextlib.closing(sqlite3.connect(data / "bomb.db")) as database:
        database.execute("CREATE TABLE version (a, b AS (zeroblob(900000000)))")
        database.execute("CREATE TABLE version_2 (a, b AS (hex(zeroblob(400000))))")
        numbers = [(number,) for number in range(1000)]
        database.executemany("INSERT INTO version (a) VALUES (?)", numbers)
        database.executemany("INSERT INTO version_2 (a) VALUES (?)", numbers)
        database.commit()
    tracemalloc.start()
    make(home)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
