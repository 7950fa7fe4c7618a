"""The version of this program: pyproject.toml has it, and nothing else."""

from __future__ import annotations

import tomllib
from pathlib import Path

_FILE = Path(__file__).resolve().parents[1] / "pyproject.toml"


def version() -> str:
    """As pyproject.toml has it."""
    found: str = tomllib.loads(_FILE.read_text(encoding="utf-8"))["project"]["version"]
    return found
