"""How a build in /opt/hermes is started: one answer for units, command line, verify and whoever else asks.

A build of source git is upstream's checkout, CHECKOUT in the build's folder, with an environment `venv` beside it. It
is started as upstream's own launcher does (scripts/install.sh, setup_path): its code comes first on sys.path, and
never the folder that somebody works in. A build of source pypi has the agent among the packages of `venv`.
"""

from __future__ import annotations

from pathlib import Path

CHECKOUT = "hermes-agent"


def python_of(directory: str) -> str:
    """The interpreter of a build."""
    return f"{directory}/venv/bin/python"


def argv(directory: str) -> list[str]:
    """The agent's command line in the build `directory`, to which its arguments are added."""
    launcher = Path(directory, CHECKOUT, "hermes")
    if launcher.is_file():
        return [python_of(directory), str(launcher)]
    # -P: `-m` alone would put the working folder first.
    return [python_of(directory), "-P", "-m", "hermes_cli.main"]


def environment(directory: str) -> dict[str, str]:
    """What the agent needs to know of the build that it runs from."""
    return {
        "VIRTUAL_ENV": f"{directory}/venv",
        # The command line of ours comes first. Node is there where the web interfaces are built.
        "PATH": f"/usr/local/bin:{directory}/venv/bin:{directory}/node/bin:/usr/bin:/bin",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        # It would fetch a Node into the home for its terminal interface.
        "HERMES_SKIP_NODE_BOOTSTRAP": "1",
        # All of it was compiled by root, and nothing of the agent's own may ever count as compiled code.
        "PYTHONDONTWRITEBYTECODE": "1",
        **_skills_beside(directory),
    }


def _skills_beside(directory: str) -> dict[str, str]:
    """For a build that was made when the agent was a wheel, of a checkout `src` beside it."""
    names = (("HERMES_BUNDLED_SKILLS", "skills"), ("HERMES_OPTIONAL_SKILLS", "optional-skills"))
    return {name: f"{directory}/src/{folder}" for name, folder in names if Path(directory, "src", folder).is_dir()}
