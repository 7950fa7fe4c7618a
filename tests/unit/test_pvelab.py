"""pvelab stands alone, with its tests (what its sources import: test_imports.py)."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PVELAB = ROOT / "pvelab"
FILES = [file for file in sorted(PVELAB.rglob("*")) if file.suffix in {".py", ".md", ".toml", ".yaml", ".txt"}]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PVELAB)))
def test_it_names_neither_the_product_nor_its_tools(file: Path) -> None:
    assert not re.search(r"hermes|pulumi", file.read_text(), re.IGNORECASE)


def test_its_tests_import_nothing_of_ours() -> None:
    ours = {folder.name for folder in ROOT.iterdir() if folder.is_dir() and folder != PVELAB}
    for file in (PVELAB / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & ours, file


def test_its_requirements_allow_what_is_tested_here() -> None:
    locks = "".join((ROOT / f"requirements{part}.lock").read_text() for part in ("", "-lab"))
    pinned = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", locks, re.MULTILINE))
    for text in tomllib.loads((PVELAB / "pyproject.toml").read_text())["project"]["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[requirement.name]), text
