"""An update to an image, from one, and between two: the same switch as of folders, by the same rules.

The container of these tests ends a test at once that has two gateways at a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from applications.hermes.guest import backups
from provisioning.guest.common import Refusal
from tests.unit.switching import NEW, OLD, Killed, World, broken, killed, made, migrate

KINDS = {"to an image": {NEW}, "from an image": {OLD}, "between images": {OLD, NEW}}


def running(root: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> World:
    """The old version runs."""
    world = made(root, monkeypatch)
    world.images = KINDS[kind]
    world.configure(OLD)
    world.done.clear()
    return world


def as_before(world: World) -> None:
    world.serves(OLD)
    assert (world.schema(), world.words()) == (22, ["first"])
    assert (world.data / "config.yaml").read_text() == "# my words\n"


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_backed_up_switched_and_proved(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(tmp_path, monkeypatch, kind)
    outputs = world.configure(NEW)
    world.serves(NEW)
    (backup,) = world.backups()
    assert (outputs["backup"], outputs["from_version"]) == (backup["name"], OLD)
    assert outputs["offline_seconds"] >= 0
    # The same again has nothing to do.
    before = len(world.done)
    assert world.configure(NEW) == {}
    assert {"engine stop", "engine up", "systemctl stop", "systemctl start"}.isdisjoint(world.done[before:])


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_fails_is_taken_back(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(tmp_path, monkeypatch, kind)
    world.answers -= {NEW}
    world.at_start[NEW] = migrate
    with pytest.raises(Refusal) as refused:
        world.configure(NEW)
    as_before(world)
    name = f"{NEW} in hermes-agent:{NEW}" if NEW in world.images else NEW
    for words in (f"the update to {name} was taken back", "no such luck", "its last words", f"{OLD} runs again"):
        assert words in str(refused.value)


def test_the_same_image_with_another_engine_is_proved_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(tmp_path, monkeypatch, "from an image")
    text = world.image_record.read_text()
    world.image_record.write_text(text.replace("docker", "podman"))
    assert world.configure(OLD)["from_version"] == OLD


def test_the_first_image_is_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made(tmp_path, monkeypatch)
    world.images = {OLD}
    assert world.configure(OLD) == {}
    world.serves(OLD)
    assert world.backups() == []


@pytest.mark.parametrize("failure", [killed, broken], ids=lambda failure: failure.__name__)
def test_at_any_step_of_a_bad_one_the_old_one_can_be_had_again(failure: object, tmp_path: Path) -> None:
    number, through = 0, set[str]()
    while len(through) < len(KINDS):
        number += 1
        # Each kind at each third step: what differs between them are the services, not the steps.
        kind = list(KINDS)[number % len(KINDS)]
        with pytest.MonkeyPatch.context() as patch:
            world = running(tmp_path / str(number), patch, kind)
            world.answers -= {NEW}
            world.at_start[NEW] = migrate
            world.fail_at, world.failure = number, failure  # type: ignore[assignment]
            with pytest.raises((Refusal, Killed)):
                world.configure(NEW)
            if len(world.done) < number:
                through.add(kind)
            world.fail_at = 0
            world.configure(OLD)
            as_before(world)


def test_back_to_a_backup_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(tmp_path, monkeypatch, "from an image")
    name = backups.make(world.subject())["name"]
    world.done.clear()
    assert backups.restore(world.subject(), "latest")["restored"] == name
    world.serves(OLD)
    assert world.done.index("engine stop") < world.done.index("state restore") < world.done.index("engine up")
