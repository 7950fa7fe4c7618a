"""What is started in the guest imports nothing from the folder that it stands in."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from applications.hermes.guest.cli import hand_on
from applications.hermes.guest.inputs import ApiServer, Facts, Probe
from applications.hermes.guest.layout import CHECKOUT
from applications.hermes.guest.services import render_unit
from applications.hermes.phases import render_configure
from tests.settings import cattle

ROOT = Path(__file__).resolve().parents[2]


MAIN = """
import email.parser, json, logging, queue, random, sys
import hermes_bootstrap
print("started", sys.argv[1:])
"""


@pytest.fixture(params=["packages", "checkout"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An installation whose command prints what it was given, once it has imported what the agent does, too."""
    folder = tmp_path / "build"
    venv.create(folder / "venv", symlinks=True)
    [place] = (folder / "venv/lib").glob("python3*/site-packages")
    if request.param == "checkout":
        place = folder / CHECKOUT
    (place / "hermes_cli").mkdir(parents=True)
    (place / "hermes_cli/__init__.py").touch()
    (place / "hermes_cli/main.py").write_text(MAIN)
    (place / "hermes_bootstrap.py").touch()
    if request.param == "checkout":
        (place / "hermes").write_text("import hermes_cli.main\n")
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """With a file named like each module of the standard library and of the build."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, "hermes_cli", "hermes_bootstrap", "sitecustomize", "usercustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from the workspace: ' + __file__)\n")
    return folder


def command_of(unit: str, build: Path, workspace: Path) -> list[str]:
    payload = {file.path: file.content.decode() for file in render_configure(cattle()).files}
    text = render_unit(payload[f"units/{unit}.service"], str(build))
    [start] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert str(workspace) not in start
    return shlex.split(start)


def started(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("unit", ["hermes-gateway", "hermes-dashboard"])
def test_a_unit_starts_whatever_lies_in_its_working_directory(unit: str, build: Path, workspace: Path) -> None:
    command = command_of(unit, build, workspace)
    done = started(command, workspace, {"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("started ['")


def test_the_command_line_does_too(
    build: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "current").symlink_to(build)
    monkeypatch.setattr("applications.hermes.guest.cli.CURRENT", tmp_path / "current")
    facts = Facts(
        stack="cattle",
        user="hermes",
        uid=10000,
        home=str(tmp_path),
        hermes_home=str(tmp_path / ".hermes"),
        working_directory=str(workspace),
        users_group="u",
        api_server=ApiServer(enabled=False, host="127.0.0.1", port=8642),
        backups_kept=5,
        probe=Probe(),
        home_on_root=True,
    )
    program, command, environment = hand_on(facts, ["sessions", "list"])
    done = started([program, *command[1:]], workspace, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started ['sessions', 'list']\n"


PYTHON = re.compile(r"""[\s"'/(,]python3?["']?[,\s]+["']?-(?P<options>[A-Za-z]+)\b""")


def test_no_python_in_the_guest_is_started_without_a_look_at_its_path() -> None:
    """-I leaves out the folder, the environment and the user's packages, -P the folder.

    What uv or pip are told of an interpreter is no start; the build's own folder is root's, and nothing lies beside it.
    """
    loose = []
    for path in sorted(file for folder in ("applications", "provisioning") for file in (ROOT / folder).rglob("*")):
        if path.suffix not in (".py", ".sh", ".j2"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith(("#", '"""')):
                continue
            for found in PYTHON.finditer(line):
                if not set(found["options"]) & {"I", "P"}:
                    loose.append(f"{path.name}:{number}: {line.strip()}")
    assert loose == []
