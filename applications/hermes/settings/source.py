"""Which release of the agent, and from where it is installed in bare-metal mode."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from proxmox.errors import Fault
from settings.kinds import WHY_NO_LOGIN, matches, matching, or_empty
from settings.section import Section, refuse, rule, setting

# PEP 440, in the form in which a release calls itself.
Version = Annotated[
    str,
    matches(
        r"\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?", "must be a version", "write it like 0.20.3"
    ),
]


def _source_that_is(value: object) -> object:
    if value == "installer":
        raise refuse(
            "upstream's install.sh is no source any more: with a current uv it leaves upstream's lock aside, and git "
            "ends in the same files",
            "set it to git; agentTag and agentCommit stay as they are",
        )
    return value


def _repository(value: str) -> str:
    if not re.fullmatch(r"(https?|git|ssh)://[^\s@:/]+[^\s@]*|file:///[^\s]+", value) or not value.isprintable():
        raise refuse(
            "must be an https, http, git, ssh or file URL without user or password: the cattle has no key to log in "
            f"with, and {WHY_NO_LOGIN}",
            "write it like https://github.com/NousResearch/hermes-agent.git; mirror a private repository where the "
            "cattle may read it",
        )
    return value


def _tag(value: str) -> str:
    """git check-ref-format(1), for a tag."""
    parts = value.split("/")
    wrong = re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{", value) or value in ("", "@") or value.endswith(".")
    if (
        wrong
        or value.startswith("-")
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    ):
        raise refuse("must be the name of a tag, as git takes it", "write it like v2026.8.16.2")
    return value


_mirror = matching(
    r"(https?|file)://[^\s@]+",
    f"must be an http, https or file URL without user or password: {WHY_NO_LOGIN}",
    "write it like https://mirror.example.org/python-build-standalone, or leave it empty",
)


def prints_commit(repository: str, tag: str) -> str:
    """A command that prints the commit of a tag, and nothing else.

    An annotated tag is an object of its own: its commit has a line behind it, with ^{}, which a lightweight tag lacks.
    """
    names = shlex.join([repository, f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}"])
    return f"git ls-remote {names} | tail -n 1 | cut -f 1"


class SourceSettings(Section):
    """How bare-metal mode gets its agent."""

    source: Annotated[Literal["git", "pypi"], BeforeValidator(_source_that_is)] = setting(
        "agentSource",
        "git",
        "Where Hermes comes from: git (upstream's repository at a tag and commit, with the packages of its "
        "lock) or pypi (ends at 0.19.0).",
    )
    repository: Annotated[str, AfterValidator(_repository)] = setting(
        "agentRepository", "https://github.com/NousResearch/hermes-agent.git", "With agentSource git: the repository."
    )
    tag: Annotated[str, AfterValidator(_tag)] = setting(
        "agentTag", "v2026.8.16.2", "With agentSource git: the tag, for people to read. The commit decides."
    )
    commit: str = setting(
        "agentCommit",
        "7339f5f160db5c96657a3bab60151227cc61f66c",
        "With agentSource git: the full 40-character commit.",
    )
    web_ui: Literal["auto", "build", "prebuilt"] = setting(
        "agentWebUi",
        "auto",
        "With agentSource git, whether the web and terminal interfaces are built: auto (if agentDashboard is "
        "true), build (always) or prebuilt (never).",
    )
    python_mirror: Annotated[str, or_empty(_mirror)] = setting(
        "agentPythonMirror",
        "",
        "Where to fetch a Python that the release needs and the cattle does not have: an address with the "
        "files of uv's Python builds. Empty: upstream's.",
    )

    @rule
    def _whole_commit(self) -> Iterator[Fault]:
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            yield self.fault("commit", "must be a full commit", prints_commit(self.repository, self.tag))
