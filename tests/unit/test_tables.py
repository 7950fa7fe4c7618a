"""The tables of cases lose nothing in silence: a key that is there twice, an unknown one, a name that is taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests import tables


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("t: [{case: a, guests: {105: {}, 105: {x: 1}}}]", "105 twice"),
        ("t: [{case: a}]\nt: [{case: b}]", "t twice"),
        ("t: [{case: a, guest: {}}]", "{'guest'}"),
        ("t: [{case: a}, {case: a}]", "two cases have one name"),
    ],
)
def test_a_slip_in_a_table_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    monkeypatch.setattr(tables, "CASES", tmp_path)
    with pytest.raises((AssertionError, yaml.YAMLError), match=words):
        tables.cases("x.yaml", "t", keys="guests")


def test_what_is_usual_is_added_to() -> None:
    usual, case = {"guests": {999: {}, 105: {}}, "steps": []}, {"case": "a", "guests": {105: None}}
    assert tables._beside(usual, case) == {"case": "a", "guests": {999: {}, 105: None}, "steps": []}
