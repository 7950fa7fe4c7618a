"""What a build of the agent says of itself, and when that is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "provisioning" / "scripts"


def tree(folder: Path, **files: str) -> Path:
    """A tree of the agent's modules, by their names with underscores for the path."""
    modules = {
        "hermes_cli/__init__.py": '__version__ = "0.20.3"',
        "hermes_cli/config.py": 'DEFAULT_CONFIG = {"_config_version": 37}\nprint("a library says something")',
        **files,
    }
    for name, text in modules.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def ask(folder: Path) -> dict[str, Any]:
    program = f"import sys; sys.path.insert(0, {str(folder)!r})\n{(SCRIPTS / 'ask.py').read_text()}"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_a_build_is_asked_where_its_own_code_looks(tmp_path: Path) -> None:
    skills = tmp_path / "skills"
    for name in ("a/one", "two"):
        (skills / name).mkdir(parents=True)
        (skills / name / "SKILL.md").touch()
    code = tree(
        tmp_path / "code",
        **{
            "tools/__init__.py": "",
            "tools/skills_sync.py": f"def _get_bundled_dir(): return {str(skills)!r}",
            "agent/__init__.py": "",
            "agent/i18n.py": f"def _locales_dir(): return {str(tmp_path / 'none')!r}",
        },
    )
    told = ask(code)
    assert (told["version"], told["config_version"]) == ("0.20.3", 37)
    assert (told["dashboard_available"], told["terminal_available"]) == (False, False)
    # null: a release that has no such function is asked in another way.
    assert told["shipped"] == {"skills": 2, "plugins": None, "languages": 0, "MCP servers": None}
    (code / "hermes_cli" / "web_dist").mkdir()
    (code / "hermes_cli" / "web_dist" / "index.html").touch()
    assert ask(code)["dashboard_available"] is True


def record(tmp_path: Path, *, version: str = "", source: str = "git", **shipped: int | None) -> tuple[int, str, Path]:
    answer, target = tmp_path / "answer", tmp_path / "install.json"
    told = {"version": "0.20.3", "config_version": 37, "shipped": {"skills": 82, **shipped}}
    answer.write_text(json.dumps(told))
    environment = {
        "SOURCE": source,
        "VERSION": version,
        "BUILD_ID": "b" * 64,
        "GIT_COMMIT": "c" * 40,
        "FINAL": "/opt/x",
    }
    done = subprocess.run(
        [sys.executable, "-I", str(SCRIPTS / "record.py"), str(answer), str(target)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr, target


def test_a_build_is_written_down_with_what_it_says(tmp_path: Path) -> None:
    status, _, target = record(tmp_path, version="0.20.3")
    assert status == 0
    text = target.read_text()
    assert json.loads(text)["directory"] == "/opt/x"
    assert json.loads(text)["commit"] == "c" * 40
    # As agent.sh looks for them.
    assert f'"build_id": "{"b" * 64}"' in text
    assert text.endswith("}")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": "0.20.4"}, "calls itself 0.20.3, but 0.20.4 is declared"),
        ({"plugins": 0, "languages": 0}, "finds no plugins and no languages of those that come with it"),
    ],
)
def test_a_build_that_is_not_what_was_declared_is_none(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    status, told, target = record(tmp_path, **given)
    assert status == 1
    assert words in told
    assert not target.exists()


def test_what_a_package_of_the_index_lacks_is_no_fault_of_its(tmp_path: Path) -> None:
    assert record(tmp_path, source="pypi", skills=0)[0] == 0
    assert record(tmp_path, plugins=None)[0] == 0
