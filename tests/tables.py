"""Cases of tests as data: YAML files in tests/cases, a list of cases for each table, each with a name of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxmox.errors import Refusal, VolumeHeld

CASES = Path(__file__).parent / "cases"


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, which YAML would take in silence: a case or a fact would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} twice", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((CASES / file).read_text(), _Loader)  # noqa: S506 - it is safe
    return found


def _compact(given: dict[str, Any]) -> str:
    return ", ".join(f"{key}={json.dumps(value)}" for key, value in given.items())


def _beside(usual: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    parts = {key: {**value, **case.get(key, {})} for key, value in usual.items() if isinstance(value, dict)}
    return {**usual, **case, **parts}


def cases(file: str, *tables: str, keys: str) -> list[Any]:
    """Parameters for a test, (table, case) each, named by both; a case without a name is named by what is given.

    `keys`: what a case may have; another one is a slip.
    Under `usual` a table has what its cases have unless they say otherwise; what is a mapping there is added to.
    """
    found = _read(file)
    usual: dict[str, Any] = found.get("usual", {})
    rows = [(table, _beside(usual.get(table, {}), case)) for table in tables for case in found[table]]
    for table, case in rows:
        unknown = case.keys() - {"case", "source", *keys.split()}
        assert not unknown, f"{file}: {table}: {case.get('case')}: {unknown}"
    names = [f"{table}: {case.get('case') or _compact(case['given'])}" for table, case in rows]
    assert len(names) == len(set(names)), f"{file}: two cases have one name"
    return [pytest.param(table, case, id=name) for name, (table, case) in zip(names, rows, strict=True)]


def is_refused(case: dict[str, Any], planned: Callable[[], object]) -> bool:
    """Whether a case is a refusal, which then is the one that it tells: `refused`, says, why, remedy and holders."""
    if "refused" not in case:
        return False
    with pytest.raises(Refusal) as caught:
        planned()
    refused = caught.value
    assert type(refused).__name__ == case["refused"]
    assert case.get("says", "") in str(refused)
    assert refused.why
    assert case.get("why", "") in refused.why
    assert refused.remedy
    assert case.get("remedy", "") in refused.remedy
    if "holders" in case:
        assert isinstance(refused, VolumeHeld)
        assert refused.holders == tuple(case["holders"])
    return True


def names_of(file: str) -> set[str]:
    """The names of all cases of a file: those of the tables, without what stands beside them (`words`, `usual`)."""
    tables = (rows for key, rows in _read(file).items() if key not in ("words", "usual"))
    return {case["case"] for rows in tables for case in rows if "case" in case}
