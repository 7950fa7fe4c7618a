"""Notes and tags of a guest: the stack's own are put among somebody else's, which stay byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.container import ContainerSpec
from components.notes import cattle_notes, image_notes, pet_notes
from proxmox.notes import BEGIN, END, LONGEST, merged_notes, merged_tags, notes_block
from proxmox.ownership import parse_claim
from settings.version import version
from tests.settings import cattle, pet

CLAIM = "0b8f6a1e-58c3-4a6e-9d0b-0f6b1a2c3d4e"
EARLIER = "Owns the volumes of the cattle."
OLD = notes_block(f"{EARLIER}\n\nVersion 0.1.0", ["pet"], CLAIM)
NEW = notes_block(f"{EARLIER}\n\nVersion 0.2.0", ["pet"], CLAIM)
OF_AN_EARLIER_RELEASE = f"{EARLIER}\n\nclaim: {CLAIM}\n"


def test_the_block_is_marked_and_proves_whose_the_guest_is() -> None:
    assert NEW.startswith(BEGIN)
    assert NEW.endswith(f"{END}\n")
    assert parse_claim(NEW) == CLAIM


@pytest.mark.parametrize(
    ("there", "merged"),
    [
        pytest.param("", NEW, id="a new guest"),
        pytest.param(NEW, NEW, id="as it is to be"),
        pytest.param(OLD, NEW, id="another version"),
        pytest.param(f"Mine.\n\n{OLD}\nclaim: this!\n", f"Mine.\n\n{NEW}\nclaim: this!\n", id="between"),
        pytest.param(OF_AN_EARLIER_RELEASE, NEW, id="of an earlier release"),
        pytest.param(f"Mine.\n\n{OF_AN_EARLIER_RELEASE}", f"Mine.\n\n{NEW}", id="an earlier release's, and more"),
        pytest.param(f"Mine: {EARLIER}\n\nclaim: {CLAIM}\n", f"Mine: {EARLIER}\n\n{NEW}", id="in a sentence of theirs"),
        pytest.param("Imported.\n", f"Imported.\n\n{NEW}", id="imported"),
        pytest.param(f"Mine.\n\nclaim: {CLAIM}\n", f"Mine.\n\n{NEW}", id="block removed, claim added as we told"),
        pytest.param(f"{OLD}mine\n{OLD}", f"{NEW}mine\n", id="pasted twice"),
        pytest.param(OLD.replace(END, ""), f"{NEW}\n\n", id="its end removed"),
    ],
)
def test_what_is_somebody_elses_stays(there: str, merged: str) -> None:
    assert merged_notes(there, NEW, EARLIER) == merged
    assert merged_notes(merged, NEW, EARLIER) == merged, "a second run does nothing"
    assert parse_claim(merged) == CLAIM


def test_other_line_ends_are_no_difference() -> None:
    there = f"Mine.\r\n{NEW}".replace("\n", "\r\n")
    assert merged_notes(there, NEW, EARLIER) == there


def test_notes_that_would_be_too_long_stay_as_they_are_while_they_prove_whose_the_guest_is() -> None:
    long = "ü" * (LONGEST // 2 - 40)
    claimed = f"{long}\nclaim: {CLAIM}\n"
    assert merged_notes(claimed, NEW, EARLIER) == claimed
    assert parse_claim(merged_notes(long, NEW, EARLIER)) == CLAIM


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200), st.text("ab<!-\n", max_size=40))
def test_any_text_around_the_block_is_kept(before: str, after: str) -> None:
    # Proxmox keeps lines: a mark stands on its own.
    before, after = f"{before}\n", f"{after}\n"
    assert merged_notes(f"{before}{OLD}{after}", NEW, EARLIER) == f"{before}{NEW}{after}"


@pytest.mark.parametrize(
    ("there", "set_by_us", "declared", "merged"),
    [
        ("", [], ["pet", "pulumi"], ["pet", "pulumi"]),
        ("pet;pulumi", ["pet", "pulumi"], ["pet", "pulumi"], ["pet", "pulumi"]),
        ("mine;pet", ["pet", "pulumi"], ["pet", "pulumi"], ["mine", "pet", "pulumi"]),
        # A datacenter may keep the order in which tags were given, and capitals (facts proxmox: tag-style).
        ("pulumi;Mine;pet", ["pet", "pulumi"], ["pet", "pulumi"], ["pulumi", "Mine", "pet"]),
        # What the settings declare no more goes, and nothing else.
        ("mine;pet;pulumi", ["pet", "pulumi"], ["pet"], ["mine", "pet"]),
        ("pulumi;Mine;pet", ["pet", "pulumi"], ["pet"], ["Mine", "pet"]),
        ("mine;pet", ["pet"], [], ["mine"]),
        ("mine;pet", ["pet"], ["mine"], ["mine"]),
        # Nobody knows who has set them.
        ("mine;pet", None, ["pulumi"], ["mine", "pet", "pulumi"]),
        ("mine;pet", [], ["pulumi"], ["mine", "pet", "pulumi"]),
    ],
)
def test_tags_of_others_stay(there: str, set_by_us: list[str] | None, declared: list[str], merged: list[str]) -> None:
    block = OF_AN_EARLIER_RELEASE if set_by_us is None else notes_block("Runs it.", set_by_us, CLAIM)
    forged = "Tags of the stack: `mine`"
    assert merged_tags(there, f"{forged}\n{block}", declared) == merged


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (pet_notes(pet(docsUrl="https://example.org/docs")), "pet"),
        (cattle_notes(cattle(docsUrl="https://example.org/docs")), "cattle"),
        (image_notes(cattle(docsUrl="https://example.org/docs")), "cattle"),
    ],
)
def test_the_notes_say_whose_it_is_and_what_may_be_done(text: str, stack: str) -> None:
    for part in (
        *(f"Stack `{stack}`", f"hermes-homelab {version()}", f"pulumi up --stack {stack}"),
        *("[documentation](https://example.org/docs)", "**By hand, as you like:**", "**Never by hand:**"),
    ):
        assert part in text
    assert parse_claim(notes_block(text, [], CLAIM)) == CLAIM
    assert len(notes_block(text, [], CLAIM)) < LONGEST // 4, "there is room for somebody else's"


def test_a_container_made_again_takes_the_notes_and_tags_of_the_one_before_with_it() -> None:
    spec = ContainerSpec(
        105, "pve", "agent", EARLIER, "Version 0.2.0", "t", "s", 1, 1, 1, 1, ["agent"], golden=9000,
        there={"description": f"Mine.\n\n{OLD}", "tags": "agent;mine"},
    )  # fmt: skip
    assert spec.description(CLAIM) == f"Mine.\n\n{NEW}".replace("`pet`", "`agent`")
    assert spec.all_tags == ["agent", "mine"]
    assert spec.clone is not None
    assert spec.clone.options["tags"] == "agent;mine"
