"""Another version of the agent: what is switched, proved, taken back; broken and killed at every step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from applications.hermes.guest import update
from applications.hermes.guest.names import DASHBOARD, GATEWAY
from provisioning.guest.common import Refusal
from tests.unit.switching import NEW, OLD, OTHER, Killed, World, broken, killed, made, migrate, tell


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The old version runs."""
    return running(tmp_path, monkeypatch)


def running(root: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = made(root, monkeypatch)
    world.configure(OLD)
    world.done.clear()
    return world


def as_before(world: World) -> None:
    """The old version serves, and the data are what they were."""
    world.serves(OLD)
    assert world.words() == ["first"]
    assert world.schema() == 22
    assert (world.data / "config.yaml").read_text() == "# my words\n"


def test_a_first_installation_is_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made(tmp_path, monkeypatch)
    assert world.configure(OLD) == {}
    as_before(world)
    assert world.backups() == []


def test_the_same_version_again_stops_nothing(world: World) -> None:
    assert world.configure(OLD) == {}
    as_before(world)
    assert world.backups() == []


def test_an_update_backs_up_switches_and_proves(world: World) -> None:
    outputs = world.configure(NEW)
    world.serves(NEW)
    assert world.words() == ["first"]
    assert str((world.root / "opt" / "previous").readlink()) == world.directory(OLD)
    (backup,) = world.backups()
    assert (outputs["backup"], outputs["from_version"]) == (backup["name"], OLD)
    assert outputs["offline_seconds"] >= 0
    assert backup["version"] == OLD


def test_the_newest_backups_stay_and_no_more(world: World) -> None:
    for version in (NEW, OLD, NEW, OTHER, NEW):
        world.configure(version)
    assert len(world.backups()) == 3


def no_start(world: World) -> None:
    world.starts -= {NEW}


def no_answer(world: World) -> None:
    world.answers -= {NEW}


def migrates(world: World) -> None:
    world.answers -= {NEW}
    world.at_start[NEW] = migrate


def answers_oddly(world: World) -> None:
    world.odd = AttributeError("'list' object has no attribute 'get'")


BAD: dict[Callable[[World], None], str] = {
    no_start: "None runs",
    no_answer: "no such luck",
    migrates: "Taken back from the backup: config.yaml, state.db.",
    answers_oddly: "AttributeError",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_a_broken_version_is_taken_back_and_the_reason_is_told(world: World, bad: Callable[[World], None]) -> None:
    bad(world)
    with pytest.raises(Refusal) as refused:
        world.configure(NEW)
    as_before(world)
    for words in (f"the update to {NEW} was taken back", BAD[bad], "its last words", f"{OLD} runs again"):
        assert words in str(refused.value)
    aside = [each["name"] for each in world.backups() if each["partial"]]
    assert len(aside) == (bad is migrates)
    assert all(name in str(refused.value) for name in aside)
    # Tried again it fails again; the old one again is a run with nothing to do.
    with pytest.raises(Refusal, match=BAD[bad].split()[0]):
        world.configure(NEW)
    before = len(world.done)
    assert world.configure(OLD) == {}
    assert not [what for what in world.done[before:] if what in ("systemctl stop", "systemctl start")]
    as_before(world)


def test_what_was_said_until_the_stop_is_in_what_is_given_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backup is made while the old version serves; what it learned after that must not be lost with the new one."""
    migrates(world)
    real = update._write_down

    def later(trial: update.Trial) -> None:
        tell(world.data, "INSERT INTO words VALUES ('second')")
        real(trial)

    monkeypatch.setattr(update, "_write_down", later)
    with pytest.raises(Refusal):
        world.configure(NEW)
    world.serves(OLD)
    assert world.words() == ["first", "second"]


def test_a_container_without_an_older_build_stays_stopped(world: World) -> None:
    """Its own was thrown away with the old container; the volume knows which version the data are of."""
    world.current.unlink()
    world.running = dict.fromkeys(world.running)
    migrates(world)
    with pytest.raises(Refusal, match="There is no older build in this container to go back to") as refused:
        world.configure(NEW)
    assert "Taken back from the backup" in str(refused.value)
    assert world.running == {GATEWAY: None, DASHBOARD: None}
    assert not world.enabled
    assert (world.schema(), world.words()) == (22, ["first"])
    world.configure(OLD)
    as_before(world)


def test_data_that_are_half_given_back_are_not_updated(world: World) -> None:
    safety = world.subject().state("make", "--version", OLD, "--reason", "for the test")["name"]
    world.subject().write_note(update.RESTORE, {"safety": safety})
    with pytest.raises(Refusal, match=rf"before: scripts/agent restore {re.escape(safety)}$"):
        world.configure(NEW)
    world.subject().remove_note(update.RESTORE)
    as_before(world)


def test_old_backups_that_do_not_go_fail_no_update(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    failing = "state prune"
    world.change = lambda what: (_ for _ in ()).throw(broken(what)) if what == failing else None  # type: ignore[method-assign]
    world.configure(NEW)
    world.serves(NEW)
    assert "state prune broke" in capsys.readouterr().out


# ---- at every step --------------------------------------------------------------------------------------------------


def each_step(
    tmp_path: Path, failure: Callable[[str], BaseException], prepare: Callable[[World], None] = lambda _: None
) -> Iterator[tuple[World, BaseException | None]]:
    """For each step of an update to NEW a world in which it failed there, and with what the run ended."""
    number = 0
    while True:
        number += 1
        with pytest.MonkeyPatch.context() as patch:
            world = running(tmp_path / str(number), patch)
            prepare(world)
            world.fail_at, world.failure = number, failure
            ended: BaseException | None = None
            try:
                world.configure(NEW)
            except (Exception, Killed) as error:
                ended = error
            if len(world.done) < number:
                return
            world.fail_at = 0
            yield world, ended


def test_killed_at_any_step_the_next_run_goes_on(tmp_path: Path) -> None:
    count = 0
    for world, ended in each_step(tmp_path, killed):
        assert isinstance(ended, Killed)
        world.configure(NEW)
        world.serves(NEW)
        assert world.words() == ["first"]
        count += 1
    assert count > 20


def test_killed_at_any_step_of_a_bad_version_or_its_end_another_can_be_set(tmp_path: Path) -> None:
    for number, (world, ended) in enumerate(each_step(tmp_path, killed, migrates)):
        assert isinstance(ended, Killed)
        version = (OLD, OTHER)[number % 2]
        world.configure(version)
        world.serves(version)
        assert (world.schema(), world.words()) == (22, ["first"])


def test_broken_at_any_step_the_old_version_serves_or_the_update_is_through(tmp_path: Path) -> None:
    for world, ended in each_step(tmp_path, broken):
        if ended is None:  # what failed was the tidying up afterwards
            world.serves(NEW)
            continue
        assert isinstance(ended, Refusal)
        assert world.running == {GATEWAY: OLD, DASHBOARD: OLD}
        assert world.words() == ["first"]
        world.configure(NEW)
        world.serves(NEW)


def test_broken_at_any_step_of_a_bad_version_the_old_one_can_be_had_again(tmp_path: Path) -> None:
    for world, ended in each_step(tmp_path, broken, migrates):
        assert isinstance(ended, Refusal)
        serves = world.running == {GATEWAY: OLD, DASHBOARD: OLD}
        assert serves or "Going back was not completed" in str(ended)
        world.configure(OLD)
        as_before(world)


def test_of_many_files_that_were_given_back_the_first_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # As 0.20.3 does, which gives up some of 0.19.0's skills: a line of all of them would be cut before its end.
    paths = [f"skills/gone/{number}/SKILL.md" for number in range(300)] + ["config.yaml", "state.db"]
    answer = {"restored": paths, "set_aside": "20260101T000000Z-0.20.3-set-aside"}
    monkeypatch.setattr(update.Subject, "state", lambda *_: answer)
    words = update._give_back_data(world.subject(), "B", "0.20.3")
    assert words.startswith("Taken back from the backup: config.yaml, state.db, skills/gone/0/SKILL.md")
    assert " and 294 more. What had become of it is kept as 20260101T000000Z-0.20.3-set-aside." in words
    assert len(words) < 400
