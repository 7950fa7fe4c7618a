"""Backups by hand: what is made, listed, gone back to; what a restore that was broken or ended leaves."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import backups, records, state, update
from applications.hermes.guest.names import DASHBOARD, GATEWAY
from applications.hermes.guest.update import Subject
from provisioning.guest.common import Refusal
from provisioning.guest.typed import as_json
from tests.unit.switching import NEW, OLD, Killed, World, broken, killed, made, with_a_backup


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return with_a_backup(tmp_path, monkeypatch)


def test_a_backup_is_made_told_and_listed(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    made = backups.make(world.subject())
    assert Path(made["path"]).is_dir()
    assert made["path"] in capsys.readouterr().out
    assert backups.list_backups(world.subject())["backups"][0]["name"] == made["name"]
    assert "asked for" in capsys.readouterr().out
    # Nothing was stopped for it.
    assert not [step for step in world.done if step.startswith("systemctl")]
    for _ in range(3):
        backups.make(world.subject())
    assert len(world.backups()) == 3


def test_no_backup_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    world = made(tmp_path, monkeypatch)
    assert backups.list_backups(world.subject()) == {"backups": []}
    assert "There are no backups yet." in capsys.readouterr().out
    world.configure(OLD)
    with pytest.raises(Refusal, match=r"there is no backup that the stack made .*nothing was changed"):
        backups.restore(world.subject(), "latest")


def test_back_to_the_latest_and_to_what_there_was_before(world: World) -> None:
    done = backups.restore(world.subject(), "latest")
    assert world.words() == ["first"]
    assert world.running == {GATEWAY: OLD, DASHBOARD: OLD}
    assert backups.restore(world.subject(), done["safety"])["restored"] == done["safety"]
    assert world.words() == ["first", "second"]


def test_another_name_changes_nothing(world: World) -> None:
    (known,) = [each["name"] for each in world.backups()]
    with pytest.raises(Refusal) as refused:
        backups.restore(world.subject(), "2020")
    assert "there is no backup 2020; nothing was changed" in str(refused.value)
    assert known in str(refused.value)
    assert world.done == []


def test_an_update_that_is_under_way_comes_first(world: World) -> None:
    world.subject().write_note("update", {"backup": "b", "from": OLD, "to": world.directory(NEW), "stage": "started"})
    before = len(world.done)
    with pytest.raises(Refusal, match="run `pulumi up` first"):
        backups.restore(world.subject(), "latest")
    assert len(world.done) == before


def test_a_state_that_the_agent_does_not_work_with_can_be_left_again(world: World) -> None:
    world.answers.clear()
    with pytest.raises(Refusal) as refused:
        backups.restore(world.subject(), "latest")
    way_back = str(refused.value).splitlines()[-1].removeprefix("Back to the state from before: scripts/agent restore ")
    world.answers = {OLD}
    backups.restore(world.subject(), way_back)
    assert world.words() == ["first", "second"]


@pytest.mark.parametrize("failure", [killed, broken])
def test_killed_or_broken_at_any_step_it_can_be_repeated_and_gone_back_from(tmp_path: Path, failure: Any) -> None:
    number = 0
    while True:
        number += 1
        with pytest.MonkeyPatch.context() as patch:
            world = with_a_backup(tmp_path / str(number), patch)
            (name,) = [each["name"] for each in world.backups()]
            world.fail_at, world.failure = number, failure
            told = ""
            try:
                backups.restore(world.subject(), name)
            except (Killed, Refusal) as ended:
                told = str(ended)
            # Whatever broke: the agent runs, or the words say that it does not.
            runs = world.running == {GATEWAY: OLD, DASHBOARD: OLD}
            assert runs or failure is killed or "were not started again" in told or "does not work with it" in told
            if len(world.done) < number:
                break
            world.fail_at = 0
            done = backups.restore(world.subject(), name)
            assert world.words() == ["first"]
            assert world.running == {GATEWAY: OLD, DASHBOARD: OLD}
            assert world.subject().read_note(update.RESTORE) is None
            if failure is killed:
                # What there was before the first attempt is there to go back to: once it had been begun, as its safety.
                held = {each["name"]: each for each in world.backups()}
                assert done["safety"] in held
                backups.restore(world.subject(), sorted(held)[1])
                assert world.words() == ["first", "second"]
    assert number >= 8


# ---- on schedule ----------------------------------------------------------------------------------------------------


def timed(world: World, *times: str) -> Subject:
    return Subject(replace(world.subject().facts, backup_times=times))


def noted(world: World) -> dict[str, str]:
    found: dict[str, str] = json.loads((world.root / "scheduled-backup.json").read_text())
    return found


def test_one_that_is_due_is_made_and_no_second(world: World) -> None:
    every_minute = timed(world, *(f"{hour:02}:{minute:02}" for hour in range(24) for minute in range(60)))
    (known,) = world.backups()
    age(world, known["name"], "20200101T000000Z-1.0")
    made = backups.scheduled(every_minute)
    assert made["reason"] == "on schedule"
    assert noted(world)["fault"] == ""
    # Due again it is in a minute at the earliest; by then this one is older than a time of day.
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).astimezone()
    assert backups.scheduled(timed(world, f"{in_an_hour:%H:%M}")) == {}
    assert len(world.backups()) == 2


def age(world: World, name: str, older: str) -> None:
    """Have a backup of ours be older than it is."""
    folder = world.home / ".hermes-stack" / "backups"
    (folder / name).rename(folder / older)
    manifest = json.loads((folder / older / "manifest.json").read_text())
    total = state.write_manifest(folder / older, {**manifest, "name": older})
    records.forget(str(world.home), [name])
    records.remember(str(world.home), older, total)


@pytest.mark.parametrize("own", ["update", update.RESTORE])
def test_none_is_made_of_data_that_are_in_between_and_that_is_noted(world: World, own: str) -> None:
    world.subject().write_note(own, {"safety": "x"})
    age(world, world.backups()[0]["name"], "20200101T000000Z-1.0")
    with pytest.raises(Refusal, match="nothing is backed up before it is through"):
        backups.scheduled(timed(world, "00:00"))
    assert "ended in the middle" in noted(world)["fault"]
    assert len(world.backups()) == 1


def test_a_note_that_the_agent_has_planted_keeps_no_backup_from_being_made(world: World) -> None:
    world.subject().write_note("update", {"backup": "b", "from": OLD, "to": "x", "stage": "started"})
    (world.root / "notes" / "update.json").unlink()
    age(world, world.backups()[0]["name"], "20200101T000000Z-1.0")
    assert backups.scheduled(timed(world, "00:00"))["reason"] == "on schedule"


def test_a_full_volume_is_noted_and_the_next_one_that_is_made_clears_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(world, world.backups()[0]["name"], "20200101T000000Z-1.0")
    with monkeypatch.context() as patch:
        patch.setattr(state, "RESERVE", 1 << 60)
        with pytest.raises(Refusal, match="needs"):
            backups.scheduled(timed(world, "00:00"))
    assert "lower agentBackupsKept, or grow the volume" in noted(world)["fault"]
    assert "\n" not in noted(world)["fault"]
    backups.scheduled(timed(world, "00:00"))
    assert noted(world)["fault"] == ""


# ---- as a program ---------------------------------------------------------------------------------------------------


def program(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["backups", *arguments])
    return backups.main()


def test_the_result_of_a_job_is_left_for_who_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(backups, "FACTS", world.root / "facts.json")
    (world.root / "facts.json").write_text(as_json(world.subject().facts))
    monkeypatch.setenv("HP_JOB", str(tmp_path))
    assert program(monkeypatch, "restore", "latest") == 0
    assert json.loads((tmp_path / "result.json").read_text())["restored"] == world.backups()[-1]["name"]
    assert world.words() == ["first"]


def test_where_there_is_nothing_to_back_up_that_is_said(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(backups, "FACTS", world.root / "facts.json")
    (world.root / "facts.json").write_text("{}")
    assert program(monkeypatch, "make") == 1
    assert "error: there is no agent in this container; pulumi up makes it." in capsys.readouterr().err


def test_a_disk_error_ends_in_words(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def failing(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(backups, "subject_here", failing)
    assert program(monkeypatch, "list") == 1
    assert capsys.readouterr().err == "error: [Errno 5] Input/output error\n"
