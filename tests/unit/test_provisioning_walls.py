"""What an engine is given of the guest: no path that the agent could make lead elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from applications.hermes.guest import supervise, walls
from applications.hermes.guest.backend import BACKENDS
from applications.hermes.guest.walls import Account, Sources, Unsafe, open_owned, refuse_unsafe
from provisioning.guest.common import Refusal

AGENT = Account(10000, 10001)
ROOTS = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others, and mounts")
pytestmark = ROOTS


@pytest.fixture
def guest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder with the agent's home in it, as baseline leaves them."""
    monkeypatch.setattr(walls, "ROOT", str(tmp_path))
    tmp_path.chmod(0o755)
    home = tmp_path / "home" / "hermes"
    for folder in (home / ".hermes", home / "deep" / "state", tmp_path / "data", tmp_path / "media" / "films"):
        folder.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "file").write_text("")
    for folder in (home, home / ".hermes", home / "deep", home / "deep" / "state", tmp_path / "data"):
        os.chown(folder, AGENT.uid, AGENT.gid)
    return tmp_path


def sources(hermes_home: str = "/home/hermes/.hermes", *folders: str) -> Sources:
    return Sources(AGENT, "/home/hermes", hermes_home, folders)


def refused(*folders: str, hermes_home: str = "/home/hermes/.hermes") -> str:
    with pytest.raises(Refusal) as found:
        refuse_unsafe(sources(hermes_home, *folders))
    return str(found.value)


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.usefixtures("guest")
def test_what_baseline_makes_and_folders_of_roots_are_fine() -> None:
    refuse_unsafe(sources("/home/hermes/deep/state", "/data", "/media/films", "/etc/file"))


@pytest.mark.parametrize("state", ["/home/hermes/.hermes", "/home/hermes/deep/state"])
@pytest.mark.parametrize("part", [1, 2])
def test_a_link_in_place_of_the_state_directory_is_refused(guest: Path, state: str, part: int) -> None:
    """The attack: its owner renames it, and puts a link to root's files there. In place of any part of its path."""
    place = guest.joinpath("home", "hermes", *state.split("/")[3 : 3 + part])
    if place.is_dir() and not place.is_symlink():
        place.rename(guest / "home" / "hermes" / "aside")
        place.symlink_to(guest / "etc")
    assert "is a symbolic link" in refused(hermes_home=state)


@pytest.mark.parametrize(
    ("owner", "what"), [(0, "belongs to user 0"), (10002, "belongs to user 10002"), (AGENT.gid, "belongs to user")]
)
def test_a_state_directory_of_somebody_elses_is_refused(guest: Path, owner: int, what: str) -> None:
    os.chown(guest / "home" / "hermes" / ".hermes", owner, AGENT.gid)
    assert what in refused()


def test_a_file_in_its_place_is_refused(guest: Path) -> None:
    place = guest / "home" / "hermes" / ".hermes"
    place.rmdir()
    place.write_text("")
    os.chown(place, AGENT.uid, AGENT.gid)
    assert "has to be a folder" in refused()


@pytest.mark.parametrize(
    ("owner", "group", "mode", "fine"),
    [
        (0, 0, 0o755, True),
        (0, AGENT.gid, 0o755, True),
        (0, AGENT.gid, 0o775, False),
        (0, 0, 0o775, True),
        (0, 0, 0o757, False),
        (0, 0, 0o1777, False),
        (AGENT.uid, 0, 0o555, False),
        (1234, 0, 0o755, True),
    ],
)
def test_a_folder_that_the_agent_can_write_is_no_way_to_another(
    guest: Path, owner: int, group: int, mode: int, fine: bool
) -> None:
    """Who owns a folder can give itself the right to write there (chmod(2))."""
    os.chown(guest / "media", owner, group)
    (guest / "media").chmod(mode)
    if fine:
        refuse_unsafe(sources("/home/hermes/.hermes", "/media/films"))
    else:
        assert "/media can be written by the agent, which could make a link of films" in refused("/media/films")


def test_what_is_missing_and_links_are_told_at_once(guest: Path) -> None:
    (guest / "link").symlink_to(guest / "media")
    (guest / "home" / "hermes" / ".hermes").rmdir()
    said = refused("/fast", "/link/films", "/etc/file/x", "/home/hermes/.hermes")
    for words in (
        "/fast: there is no such folder",
        "/link is a symbolic link",
        "/etc/file/x: there is no such folder",
        "/home/hermes can be written by the agent",
        "/home/hermes/.hermes: there is no such folder",
    ):
        assert words in said


def test_what_was_opened_counts_and_not_its_name(guest: Path) -> None:
    """A rename after the check leads the mount nowhere else: it is made of the descriptor."""
    place = guest / "home" / "hermes" / ".hermes"
    handle = walls._state_directory(sources())
    try:
        place.rename(guest / "home" / "hermes" / "aside")
        place.symlink_to(guest / "etc")
        assert os.path.samestat(os.fstat(handle), (guest / "home" / "hermes" / "aside").stat())
    finally:
        os.close(handle)
    with pytest.raises(Unsafe):
        open_owned("/home/hermes/.hermes", AGENT)


def test_a_daemons_unit_goes_and_comes_with_it() -> None:
    assert "Requires=docker.service\n" in supervise.unit_text(BACKENDS["docker"])
    podman = supervise.unit_text(BACKENDS["podman"])
    assert "Requires=" not in podman
    for text in (podman, supervise.unit_text(BACKENDS["docker"])):
        assert "Restart=always\n" in text
        # A path that was made to lead elsewhere does not get better by itself.
        assert "RestartPreventExitStatus=78\n" in text


@pytest.mark.parametrize("total", [512, 1024, 2048, 4096, 65536])
def test_the_container_leaves_the_guest_memory_to_be_logged_in_to(total: int) -> None:
    limit = supervise.memory_limit(total << 20) >> 20
    assert total / 2 <= limit <= total * 0.9
    assert total <= 512 or total - limit >= 256


@pytest.mark.parametrize(
    ("told", "group", "found"),
    [(4000000, "max\n", 4000000 << 10), (4000000, "1073741824\n", 1 << 30), (4000000, None, 4000000 << 10)],
)
def test_the_guests_memory_is_the_lowest_that_is_told(
    told: int, group: str | None, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/meminfo is the node's where nothing in the guest shows its own (lxcfs)."""
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text(f"MemTotal:        {told} kB\nMemFree:          1 kB\n")
    if group is not None:
        limit.write_text(group)
    monkeypatch.setattr(supervise, "MEMORY", meminfo)
    monkeypatch.setattr(supervise, "LIMITS", (limit,))
    assert supervise.memory_of_guest() == found
