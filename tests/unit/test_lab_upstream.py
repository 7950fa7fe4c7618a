"""Where the lab finds upstream's repository, and that what it serves is a verified copy."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lab.services import source as source_module
from lab.services.releases import Release, SourceError
from lab.services.source import Source, ensure_source
from lab.services.upstream import copy_releases, find_clone, missing, user_cache
from tests.repository import git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

NOWHERE = "https://upstream.invalid/hermes-agent.git"


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """A clone with a history, as a developer has it; the releases below are in the middle of it."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for version in ("0.1", "0.2", "0.3"):
        (folder / "version").write_text(version)
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", version)
    return folder


@pytest.fixture
def releases(theirs: Path) -> tuple[Release, ...]:
    return (
        Release("0.2", "v2", git(theirs, "rev-parse", "HEAD~1")),
        Release("0.1", "v1", git(theirs, "rev-parse", "HEAD~2")),
    )


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HERMES_LAB_UPSTREAM", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_copy_has_the_releases_alone_and_outlives_its_origin(
    theirs: Path, releases: tuple[Release, ...], tmp_path: Path
) -> None:
    copy = tmp_path / "copy.git"
    copy_releases(theirs, copy, releases)
    shutil.rmtree(theirs)
    assert [git(copy, "show", f"{name}:version") for name in ("v1", "v2", "main")] == ["0.1", "0.2", "0.2"]
    assert git(copy, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/tags/v1",
        "refs/tags/v2",
    ]
    assert git(copy, "rev-list", "--all", "--count") == "2", "the history was not asked for"
    assert not (copy / "objects" / "info" / "alternates").exists()
    assert {file.stat().st_nlink for file in (copy / "objects").rglob("*") if file.is_file()} == {1}


def test_a_copy_of_a_clone_that_lacks_a_release_is_refused(
    theirs: Path, releases: tuple[Release, ...], tmp_path: Path
) -> None:
    with pytest.raises(SourceError):
        copy_releases(theirs, tmp_path / "copy.git", (*releases, Release("9", "v9", "9" * 40)))


def test_a_damaged_clone_is_not_copied(theirs: Path, releases: tuple[Release, ...], tmp_path: Path) -> None:
    blob = git(theirs, "rev-parse", f"{releases[0].commit}:version")
    other = git(theirs, "rev-parse", f"{releases[1].commit}:version")
    objects = theirs / ".git" / "objects"
    damaged = objects / blob[:2] / blob[2:]
    damaged.chmod(0o600)
    damaged.write_bytes((objects / other[:2] / other[2:]).read_bytes())
    with pytest.raises(SourceError):
        copy_releases(theirs, tmp_path / "copy.git", releases)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs files of another user")
def test_a_clone_of_another_user_can_be_named(theirs: Path, releases: tuple[Release, ...], tmp_path: Path) -> None:
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 4711, 4711, follow_symlinks=False)
    assert not missing(theirs, releases)
    copy_releases(theirs, tmp_path / "copy.git", releases)


def test_the_variable_comes_first_and_its_mistakes_are_told(
    theirs: Path, releases: tuple[Release, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setenv("HERMES_LAB_UPSTREAM", str(theirs))
    assert find_clone(said.append, tmp_path, releases, NOWHERE) == theirs
    wanted = (releases[0], Release("9", "v9", "9" * 40))
    with pytest.raises(SourceError, match=r"lacks v9 .9{40}."):
        find_clone(said.append, tmp_path, wanted, NOWHERE)
    monkeypatch.setenv("HERMES_LAB_UPSTREAM", str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match="is no folder"):
        find_clone(said.append, tmp_path, releases, NOWHERE)
    assert said == []


def test_what_the_address_has_gets_into_the_users_cache_once(
    theirs: Path, releases: tuple[Release, ...], tmp_path: Path
) -> None:
    said: list[str] = []
    git(theirs, "config", "uploadpack.allowAnySHA1InWant", "true")
    address = theirs.as_uri()
    assert find_clone(said.append, tmp_path / "failures", releases[1:], address) == user_cache()
    assert [line.split()[0] for line in said] == ["fetching"]
    assert not missing(user_cache(), releases[1:])
    assert find_clone(said.append, tmp_path / "failures", releases[1:], NOWHERE) == user_cache(), "nobody was asked"
    # A later checkout pins one more.
    assert missing(user_cache(), releases) == [releases[0]]
    assert find_clone(said.append, tmp_path / "failures", releases, address) == user_cache()
    assert not missing(user_cache(), releases)
    assert [entry.name for entry in user_cache().parent.iterdir() if entry.name != ".lock"] == [user_cache().name]


def test_an_address_without_an_answer_is_asked_once_an_hour(releases: tuple[Release, ...], tmp_path: Path) -> None:
    said: list[str] = []
    assert find_clone(said.append, tmp_path / "failures", releases, NOWHERE) is None
    assert "upstream.invalid" in said[0]
    assert find_clone(said.append, tmp_path / "failures", releases, NOWHERE) is None
    assert "min ago" in said[1]
    assert not user_cache().exists()
    note = tmp_path / "failures" / "no-upstream"
    long_ago = time.time() - 3700
    os.utime(note, (long_ago, long_ago))
    assert find_clone(said.append, tmp_path / "failures", releases, NOWHERE) is None
    assert "min ago" not in said[2]


def test_the_lab_serves_upstream_or_says_that_it_does_not(
    theirs: Path, releases: tuple[Release, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def standin(_folder: Path, repository: Path) -> Release:
        repository.mkdir()
        return Release("0.0", "v0", "0" * 40)

    monkeypatch.setattr(source_module, "PINNED", releases)
    monkeypatch.setattr(source_module, "make_standin", standin)
    monkeypatch.setattr(source_module, "find_clone", lambda log, cache, pinned: find_clone(log, cache, pinned, NOWHERE))
    said: list[str] = []
    cache = tmp_path / "sources"

    without = ensure_source(cache, said.append)
    assert (without.kind, without.newest.version, without.previous) == ("stand-in", "0.0", None)
    assert "STAND-IN" in without.about()
    assert any("is not to be had" in line for line in said)

    monkeypatch.setenv("HERMES_LAB_UPSTREAM", str(theirs))
    true = ensure_source(cache, said.append)
    assert (true.kind, true.releases) == ("upstream", releases)
    assert true.about() == f"upstream's tree, 0.2 at {releases[0].commit[:8]}"

    # The copy lasts without its origin; the variable's mistakes and its "none" still hold.
    monkeypatch.delenv("HERMES_LAB_UPSTREAM")
    shutil.rmtree(theirs)
    assert ensure_source(cache, said.append) == true
    monkeypatch.setenv("HERMES_LAB_UPSTREAM", "none")
    assert ensure_source(cache, said.append) == replace(without)
    monkeypatch.setenv("HERMES_LAB_UPSTREAM", str(theirs))
    with pytest.raises(SourceError, match="is no folder"):
        ensure_source(cache, said.append)


def test_the_line_that_ends_a_test_run_says_why_it_is_a_standin(monkeypatch: pytest.MonkeyPatch) -> None:
    standin = Source(Path("x.git"), "stand-in", (Release("0.19.0", "v2026.7.20", "0" * 40),))
    assert standin.about() == "STAND-IN made of PyPI's 0.19.0: upstream's tree was not to be had"
    monkeypatch.setenv("HERMES_LAB_UPSTREAM", "none")
    assert standin.about() == "STAND-IN made of PyPI's 0.19.0: HERMES_LAB_UPSTREAM says so"
