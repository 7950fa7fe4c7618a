"""The lab's container images: what decides which are built, and their outer contract by release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.image import ImageRecipe, again, agent_settings
from lab.services.releases import PINNED, Release
from lab.services.source import Source
from pvelab.template import Recipe

HOST = Recipe(None, None, (), (), "", ())


def of(kind: str, *releases: Release, monkeypatch: pytest.MonkeyPatch) -> ImageRecipe:
    monkeypatch.setattr("lab.image.recipe_of_host", lambda: HOST)
    return ImageRecipe.of(Source(Path("/r.git"), kind, releases))  # type: ignore[arg-type]


def test_they_are_made_of_the_tree_that_the_lab_serves_and_else_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    true = of("upstream", *PINNED, monkeypatch=monkeypatch)
    standin = of("stand-in", Release("0.19.0", "v2026.7.20", "c" * 40), monkeypatch=monkeypatch)
    assert (true.releases, true.newest) == (PINNED, PINNED[0].tag)
    assert (standin.releases, standin.newest) == ((), "v2026.7.20")
    assert true.digest() != standin.digest()


def test_another_commit_is_another_image(tmp_path: Path) -> None:
    one = ImageRecipe(HOST, releases=PINNED)
    other = ImageRecipe(HOST, releases=(replace(PINNED[0], commit="f" * 40), PINNED[1]))
    assert one.digest(tmp_path) != other.digest(tmp_path)
    assert one.digest(tmp_path) == ImageRecipe(HOST, releases=PINNED).digest(tmp_path)


@pytest.mark.parametrize(
    ("version", "entrypoint"),
    [
        ("0.19.0", ["/init", "/opt/hermes/docker/main-wrapper.sh"]),
        ("0.20.3", ["/opt/hermes/docker/entrypoint-dispatch.sh"]),
    ],
)
def test_the_entrypoint_is_the_releases_own(version: str, entrypoint: list[str]) -> None:
    """The last lines of the Dockerfile at each tag."""
    assert agent_settings(HOST, version)["Entrypoint"] == entrypoint


def test_the_same_agent_again_has_a_tag_of_its_own() -> None:
    tags = [release.tag for release in PINNED]
    assert len({*tags, *map(again, tags)}) == 2 * len(tags)
