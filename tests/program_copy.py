"""A copy of the program, with the example's application in it: a folder and a line more."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from applications import NAMES

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("applications", "components", "package", "proxmox", "provisioning", "settings")
FILES = (
    *("Pulumi.yaml", "__main__.py", "pyproject.toml", "toolchain.toml"),
    *("docs/options.md", "docs/outputs.md", "docs/package.md", "docs/stack.schema.json"),
)


def copy_with_webservice(target: Path) -> Path:
    """Copy the program into a new folder, and do there what docs/applications.md says, but for the generated files."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    (target / "docs").mkdir()
    for file in FILES:
        shutil.copy(ROOT / file, target / file)
    shutil.copytree(ROOT / "examples" / "webservice", target / "applications" / "webservice")
    place = target / "applications" / "__init__.py"
    last = f'    "{NAMES[-1]}",\n'
    assert place.read_text().count(last) == 1
    place.write_text(place.read_text().replace(last, f'{last}    "webservice",\n'))
    return target


def ran(tree: Path, *arguments: str) -> str:
    """What Python prints in a copy; it has to succeed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
