"""Imports go one way: docs/architecture.md, "The map"."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sys.stdlib_module_names

# Folder: what its files may import besides the standard library and the folder itself.
ALLOWED: dict[str, set[str]] = {
    "settings": {"proxmox", "applications", "pydantic", "pydantic_core", "yaml"},
    "proxmox": {"proxmoxer", "pydantic", "requests", "tenacity", "urllib3"},
    "provisioning": {"cryptography", "paramiko"},
    "applications": {"settings", "proxmox", "provisioning", "dotenv", "jinja2", "pydantic", "yaml"},
    "components": {
        *("settings", "proxmox", "provisioning", "applications"),
        *("google", "grpc", "pulumi", "pydantic", "tenacity", "yaml"),
    },
    # Started by the engine with packages of its own.
    "policies": {"pulumi_policy"},
    # What runs while an image is built, with the guest's programs beside it.
    "docker": {"applications", "provisioning"},
    # A distribution of its own: its pyproject.toml declares the same.
    "pvelab/src/pvelab": {"aiohttp", "cryptography", "paramiko", "rich", "trustme", "yaml"},
    "lab": {"pvelab", "aiohttp", "pip", "requests", "yaml"},
    # These two use the product and its lab together.
    "trial": {"settings", "proxmox", "provisioning", "applications", "lab", "pvelab", "pydantic", "yaml"},
    "benchmarks": {"lab", "scripts", "yaml"},
    "scripts": {
        "settings",
        "proxmox",
        "provisioning",
        "applications",
        "components",
        "lab",
        "dotenv",
        "rich",
        "yaml",
    },
}
# Programs that others start: what their Python brings, the agent's or pytest's.
ELSEWHERE = {
    "pvelab/src/pvelab/testing.py": {"pytest"},
    "scripts/lib/site.py": {"mkdocs"},
    "applications/hermes/guest/look.py": {"hermes_cli", "yaml"},
    "applications/hermes/guest/home.py": {"ruamel"},
}
# Tests, examples, and a source tree that a build system reads in the lab.
OUTSIDE = ("tests", "examples", "lab/services/standin_tree", ".cache", "pvelab/tests")


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The full names of all imported modules, also of those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def files_below(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    return [file for file in found if not file.relative_to(ROOT).as_posix().startswith(OUTSIDE)]


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_what_it_may_and_no_less(folder: str) -> None:
    found, used = [], set()
    for file in files_below(folder):
        name = file.relative_to(ROOT).as_posix()
        allowed = {*LIBRARY, Path(folder).name, *ALLOWED[folder], *ELSEWHERE.get(name, ())}
        for module in imports_of(ast.parse(file.read_text())):
            used.add(module.partition(".")[0])
            if module.partition(".")[0] not in allowed:
                found.append(f"{name} imports {module}")
    assert found == []
    assert ALLOWED[folder] - used == set(), "nothing imports it any more"


# The demo shows the agent.
OF_AN_APPLICATION = {"scripts/lib/demo.py"}


@pytest.mark.parametrize("folder", ["settings", "components", "provisioning", "proxmox", "scripts"])
def test_only_an_application_itself_names_what_is_its_own(folder: str) -> None:
    """The rest of the program knows the protocol (applications/__init__.py) and nothing below it."""
    protocol = {path.name for path in (ROOT / "applications").iterdir() if path.is_dir()}
    found = []
    for file in files_below(folder):
        name = file.relative_to(ROOT).as_posix()
        for module in imports_of(ast.parse(file.read_text())):
            below = module.removeprefix("applications.").partition(".")[0]
            if module.startswith("applications.") and below in protocol and name not in OF_AN_APPLICATION:
                found.append(f"{name} imports {module}")
    assert found == []


def test_each_folder_with_python_has_a_rule() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [Path(name) for name in tracked.stdout.splitlines() if not name.startswith(OUTSIDE)]
    assert len(files) > 100
    without = [str(file) for file in files if not any(file.is_relative_to(folder) for folder in ALLOWED)]
    assert without == ["__main__.py"]


def test_the_program_looks_for_no_garbage_while_it_imports() -> None:
    """Imports leave none, and a tenth of the CPU of a run without changes went into looking for it."""
    code = "import contextlib, gc, runpy\nwith contextlib.suppress(BaseException): runpy.run_path('__main__.py')\n"
    told = "import sys; print('components.program' in sys.modules, gc.get_stats()[2]['collections'])"
    done = subprocess.run([sys.executable, "-c", code + told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0"]


def test_the_simulator_declares_what_it_imports() -> None:
    project = tomllib.loads((ROOT / "pvelab" / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in project["dependencies"]}
    # A distribution's name, and its package's.
    assert {name.replace("pyyaml", "yaml") for name in declared} == ALLOWED["pvelab/src/pvelab"]


DISTRIBUTIONS = {
    **{"dotenv": "python-dotenv", "yaml": "pyyaml", "grpc": "grpcio", "google": "protobuf"},
    "pydantic_core": "pydantic-core",
}
"""A module that is called otherwise than what brings it."""


def test_a_stack_declares_what_it_imports() -> None:
    """What only another package brings may go with that one's next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=~!\[ ]", requirement)[0] for requirement in project["dependencies"]}
    ours = {"settings", "proxmox", "provisioning", "applications", "components"}
    imported = set().union(*(ALLOWED[folder] for folder in ours)) - ours
    # Pulumi's own host asks for pip.
    assert declared - {"pip"} == {DISTRIBUTIONS.get(name, name) for name in imported}


def test_the_program_in_the_guest_needs_the_standard_library_only() -> None:
    """The guest has Debian's Python and nothing else."""
    found = []
    for file in [*files_below("provisioning/guest"), *files_below("applications/hermes/guest")]:
        name = file.relative_to(ROOT).as_posix()
        for module in imports_of(ast.parse(file.read_text())):
            top = module.partition(".")[0]
            ours = module.startswith(("provisioning.guest", "applications.hermes.guest"))
            if top not in {*LIBRARY, *ELSEWHERE.get(name, ())} and not ours:
                found.append(f"{name} imports {module}")
    assert found == []


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("proxmox.planning", {"pulumi", "paramiko", "components", "provisioning"}),
        ("settings.read", {"pulumi", "proxmoxer", "requests", "paramiko", "components", "provisioning"}),
        ("provisioning", {"pulumi", "proxmoxer", "requests", "paramiko", "components"}),
        ("pvelab.server", {"pulumi", "proxmoxer", "components", "proxmox", "provisioning", "lab"}),
    ],
)
def test_a_module_does_not_load_what_lies_above_it(module: str, absent: set[str]) -> None:
    """Also not by a detour, and not what costs each run half a second."""
    code = f"import sys, {module}; print(*sorted({absent!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
