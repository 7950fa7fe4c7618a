"""What a trial asks for and what it concludes, as pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import SecretStr

from applications.hermes.held import Database, Held
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import AgentSettings, BareMetalAgent, DockerAgent
from applications.hermes.settings.dashboard import DashboardSettings
from applications.hermes.settings.messengers import MessengerSettings
from applications.hermes.settings.source import SourceSettings, prints_commit
from settings.read import PLACEHOLDER

COMMIT = re.compile(r"[0-9a-f]{40}\Z")
TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
MESSENGERS = re.compile(r"(TELEGRAM|DISCORD|SLACK|SIGNAL|WHATSAPP|MATRIX)_")


def detached(stack: AgentStack, url: str, model: str, key: str) -> AgentStack:
    """A stack for a trial: its settings, bare-metal, without anything that leads out of the lab.

    The model is the lab's: `url`, `model`, `key`. Messengers, the login provider, folders of the node and all true
    secrets are left out. MCP servers are declared and not started.
    """
    agent, declared = bare_metal(stack.agent), stack.agent.declared
    servers = {name: server.model_copy(update={"enabled": False}) for name, server in declared.mcp_servers.items()}
    names = [name for name in agent.secret_environment if not MESSENGERS.match(name)]
    parts = {
        "model": agent.model.model_copy(
            update={"provider": "custom", "url": url, "name": model, "key": SecretStr(key)}
        ),
        "declared": declared.model_copy(
            update={
                "mcp_servers": servers,
                "fallback_models": [],
                "auxiliary_models": {},
                "environment": {
                    name: text for name, text in declared.environment.items() if not MESSENGERS.match(name)
                },
                "secret_environment": dict.fromkeys(names, SecretStr(PLACEHOLDER)),
                "environment_files": {},
                "auth_file": SecretStr(""),
                "auth_file_overwrite": False,
            }
        ),
        "messengers": MessengerSettings(),
        "api": agent.api.model_copy(update={"enabled": True, "host": "127.0.0.1", "key": SecretStr("")}),
        "dashboard": DashboardSettings().model_copy(
            update={"enabled": agent.dashboard.enabled, "port": agent.dashboard.port}
        ),
    }
    cattle = stack.cattle.model_copy(update={"volume": stack.cattle.volume or "home", "host_mounts": []})
    return stack.model_copy(update={"agent": agent.model_copy(update=parts), "cattle": cattle})


def bare_metal(agent: BareMetalAgent | DockerAgent) -> BareMetalAgent:
    """The same agent without a container; its own where it has none."""
    if isinstance(agent, BareMetalAgent):
        return agent
    shared = {name: getattr(agent, name) for name in AgentSettings.model_fields}
    return BareMetalAgent.model_construct(**shared, install=SourceSettings.model_construct())


def what_runs_in(image: str, repository: str) -> str:
    """Why a stack in Docker mode has to name the release that it runs, and how."""
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return (
        f"the stack runs the image {image}, which does not say what commit it is made of. Name the release that is in "
        f"it: --from {tag} COMMIT, if that is its tag. The commit: {prints_commit(repository, tag)}"
    )


def left_out(stack: AgentStack) -> list[str]:
    """The parts of a stack's configuration that a trial can't try."""
    agent = stack.agent
    found = ["your model endpoint (the lab's answered)", "the network, cut off after the installation"]
    if isinstance(agent, DockerAgent):
        found.append(
            "the image: the release's code was tried on the home without a container, so not the image's start-up "
            "hooks, Python and SQLite. The update proves it, and takes it back when it does not answer"
        )
        if stack.bind_mounts or agent.container.extra_options:
            found.append("agentExtraVolumes and agentExtraOptions")
    if servers := agent.declared.mcp_servers:
        found.append(f"MCP servers, declared and not started: {', '.join(sorted(servers))}")
    if any(MESSENGERS.match(name) for name in (*agent.environment, *agent.secret_environment)):
        found.append("messengers")
    if agent.dashboard_asks:
        found.append("the dashboard's login")
    if agent.declared.fallback_models or agent.declared.auxiliary_models:
        found.append("fallback and auxiliary models")
    if stack.writable:
        found.append("folders of the node")
    return found


# ---- what differs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A release that runs. `ports`: listening addresses. `megabytes`: the size of its installation."""

    version: str
    python: str
    ports: frozenset[str]
    megabytes: int
    schema: int
    unknown_settings: frozenset[str]
    dashboard_available: bool
    bundled_skills: int


def changes(old: Running, new: Running, before: Held, after: Held) -> list[str]:
    """What differs for a user with the same settings and the same home."""
    found = []
    if old.python != new.python:
        found.append(f"Python {old.python} -> {new.python}")
    if old.schema != new.schema:
        found.append(f"schema of config.yaml {old.schema} -> {new.schema}")
    if opened := sorted(new.ports - old.ports):
        found.append(f"listens on {', '.join(opened)}, new")
    if closed := sorted(old.ports - new.ports):
        found.append(f"does not listen on {', '.join(closed)} any more")
    if unknown := sorted(new.unknown_settings - old.unknown_settings):
        found.append(f"unknown keys of agentSettings: {', '.join(unknown)}")
    if known := sorted(old.unknown_settings - new.unknown_settings):
        found.append(f"keys of agentSettings that it now knows: {', '.join(known)}")
    if unknown := sorted(after.unknown_keys - before.unknown_keys):
        found.append(f"unknown keys of the home's config.yaml: {', '.join(unknown)}")
    if old.dashboard_available != new.dashboard_available:
        found.append("it has a web interface" if new.dashboard_available else "it has no web interface")
    if added := len(after.skills - before.skills):
        found.append(f"{added} more skills in the home")
    if removed := sorted(before.skills - after.skills):
        found.append(f"skills missing in the home: {', '.join(removed)}")
    if old.bundled_skills != new.bundled_skills:
        found.append(f"bundled skills {old.bundled_skills} -> {new.bundled_skills}")
    for path in sorted(before.databases.keys() | after.databases.keys()):
        found += _database_changes(path, before.databases.get(path), after.databases.get(path))
    return found


def _database_changes(path: str, was: Database | None, now: Database | None) -> list[str]:
    if was is None and now is not None:
        return [f"{path} is new (journal mode {now.mode})"]
    if was is None or now is None or was == now:
        return []
    found = []
    if was.schema != now.schema:
        found.append(f"{path}: schema {was.schema} -> {now.schema}")
    if was.mode != now.mode:
        found.append(f"{path}: journal mode {was.mode} -> {now.mode}")
    return found


# ---- the verdict ----------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """`answer`: None if the trial can't judge. `reasons`: why the answer is not yes. `changes`: what differs."""

    release: str
    over: str
    home: str
    answer: bool | None = None
    reasons: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    proved: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> int:
        return {True: 0, False: 1, None: 2}[self.answer]

    def text(self) -> str:
        """For people."""
        word = {True: "YES", False: "NO", None: "NO JUDGEMENT"}[self.answer]
        lines = [f"{word}: {self.release} over {self.over}, {self.home}"]
        for title, entries in (
            ("why", self.reasons),
            ("proved", self.proved),
            ("what changes", self.changes),
            ("not tried", self.left_out),
            ("figures", [f"{name}: {value:g}" for name, value in self.figures.items()]),
        ):
            if entries:
                lines += [f"  {title}:", *(_indented(entry) for entry in entries)]
        return "\n".join(lines)

    def as_json(self) -> str:
        return json.dumps({**vars(self), "status": self.status}, indent=2) + "\n"


def _indented(entry: str) -> str:
    first, *rest = entry.splitlines() or [""]
    return "\n".join([f"    - {first}", *(f"      {line}" for line in rest)])


def faults_of_arguments(tag: str, commit: str, over: Sequence[str] | None, repository: str) -> list[str]:
    """What is wrong with a command line, each with its remedy."""
    pairs: Iterable[tuple[str, str]] = [(tag, commit), *([(over[0], over[1])] if over else [])]
    found = []
    for a_tag, a_commit in pairs:
        if not TAG.match(a_tag):
            found.append(f"TAG {a_tag!r} is not the name of a tag: write it like v2026.8.16.2")
        if not COMMIT.match(a_commit):
            found.append(f"COMMIT {a_commit!r} is no full commit: {prints_commit(repository, a_tag)}")
    return found


def agent_notes(lines: Iterable[str]) -> list[str]:
    """The lines of a configure phase's log about the user's settings."""
    starts = ("config.yaml: schema", "config.yaml: ", "warning: ")
    return [line for line in lines if line.startswith(starts) and "kept in" not in line and "migrated in" not in line]
