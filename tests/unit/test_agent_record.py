"""What a build of the agent says of itself, and when that is taken."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import build
from applications.hermes.guest.inputs import Build, Installed
from provisioning.guest.common import Refusal

ASK = Path(build.__file__).with_name("ask.py")


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
    program = f"import runpy, sys; sys.path.insert(0, {str(folder)!r}); runpy.run_path({str(ASK)!r}, None, '__main__')"
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


INPUTS = Build(
    source="git",
    version="",
    directory="x",
    build_id="b" * 64,
    extras=(),
    extra_python_packages=(),
    git_url="",
    git_tag="",
    git_commit="c" * 40,
    web_ui="prebuilt",
    python_mirror="",
    user="hermes",
)


def proved(*, version: str = "", source: str = "git", **shipped: int | None) -> Installed:
    told = {"version": "0.20.3", "config_version": 37, "shipped": {"skills": 82, **shipped}, "later": []}
    return build.proved(told, replace(INPUTS, version=version, source=source), Path("/opt/x"))


def test_a_build_is_written_down_with_what_it_says() -> None:
    found = proved(version="0.20.3")
    assert (found.directory, found.commit, found.build_id) == ("/opt/x", "c" * 40, "b" * 64)
    assert (found.version, found.config_version) == ("0.20.3", 37)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"version": "0.20.4"}, "calls itself 0.20.3, but 0.20.4 is declared"),
        ({"plugins": 0, "languages": 0}, "finds no plugins and no languages of those that come with it"),
    ],
)
def test_a_build_that_is_not_what_was_declared_is_none(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        proved(**given)


def test_what_a_package_of_the_index_lacks_is_no_fault_of_its() -> None:
    assert proved(source="pypi", skills=0).commit == ""
    assert proved(plugins=None).shipped["plugins"] is None


@pytest.mark.parametrize("answer", [{}, {"version": 3}, {"version": "1", "shipped": "\nerror: x"}])
def test_an_answer_in_another_form_is_refused(answer: dict[str, Any]) -> None:
    """It is the agent's own code that answers."""
    with pytest.raises(Refusal, match="the new installation's answer"):
        build.proved(answer, INPUTS, Path("/opt/x"))
