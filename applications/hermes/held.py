"""What a home holds, or a copy of one: how it is asked, and what is lost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from applications.hermes.guest.backend import BACKENDS
from applications.hermes.guest.engine import python_in_image
from applications.hermes.guest.layout import python_of
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from provisioning.errors import ProvisioningError
from provisioning.plans import text_of
from provisioning.ssh import SshTarget, connect
from provisioning.terminal import visible_value

LOOK_SECONDS = 600.0


class UnreadableError(ProvisioningError):
    """What a home holds can't be told."""


@dataclass(frozen=True)
class Database:
    """`schema`: from its own table or `user_version`. `sound`: SQLite's check found no fault."""

    schema: str
    mode: str
    sound: bool


@dataclass(frozen=True)
class Held:
    """The content of a home that must not be lost. `memories`: SHA-256 by path. `messages`: a number."""

    sessions: frozenset[str]
    messages: int
    memories: Mapping[str, str]
    cron: frozenset[str]
    skills: frozenset[str]
    databases: Mapping[str, Database]
    config_version: int | None
    unknown_keys: frozenset[str]
    """Top-level keys of the user's config.yaml that the agent which runs does not know."""


def held_of(text: str) -> Held:
    """Read the output of look.py, which the agent can forge. No name in it has control characters afterwards.

    Raises pydantic's ValidationError.
    """
    adapter = TypeAdapter(Held)
    adapter.validate_json(text, strict=True)
    return adapter.validate_json(json.dumps(visible_value(json.loads(text))), strict=True)


def lost(before: Held, after: Held) -> list[str]:
    """What is gone or damaged. Each entry is a reason to say no."""
    found = []
    for what in ("sessions", "cron"):
        if gone := getattr(before, what) - getattr(after, what):
            named = {"cron": "cron jobs"}.get(what, what)
            found.append(f"{len(gone)} of {len(getattr(before, what))} {named} are gone")
    if after.messages < before.messages:
        found.append(f"{before.messages - after.messages} of {before.messages} messages are gone")
    if changed := sorted(path for path, digest in before.memories.items() if after.memories.get(path) != digest):
        found.append(f"changed: {', '.join(changed)}")
    if gone := sorted(before.databases.keys() - after.databases.keys()):
        found.append(f"databases are gone: {', '.join(gone)}")
    found += [f"{path} is damaged" for path, each in sorted(after.databases.items()) if not each.sound]
    return found


def agents_python(stack: AgentStack, directory: str) -> list[str]:
    """The command that runs a Python program of its standard input, whose arguments follow, beside the agent's code.

    As the agent's user, for its code runs: that of the build in `directory`, or of the image in Docker mode, without a
    network there. It sees the home.
    """
    service, home = stack.agent.service, stack.home
    if isinstance(stack.agent, DockerAgent):
        container = stack.agent.container
        backend = BACKENDS[container.backend]
        # The path of the home is root's; what lies below it no engine looks up.
        return python_in_image(backend, container.image, uid=service.uid, gid=service.gid, volumes=[f"{home}:{home}"])
    environment = (f"HOME={home}", "HERMES_HOME=/nonexistent", "PATH=/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE=1")
    return ["runuser", "--user", service.user, "--", "env", "-i", *environment, python_of(directory), "-P", "-"]


def look(target: SshTarget, stack: AgentStack, directory: str, home: str) -> Held:
    """What a home holds, or a copy of one below the agent's, as the agent's code reads it (`agents_python`).

    UnreadableError, or an SSH error.
    """
    command = f"cd / && {shlex.join([*agents_python(stack, directory), home])}"
    with closing(connect(target)) as connection:
        program = text_of("applications/hermes/guest/look.py").encode()
        done = connection.run(command, stdin=program, timeout_s=LOOK_SECONDS)
    if done.status != 0:
        raise UnreadableError(f"what {home} holds can't be read: {done.words}")
    try:
        return held_of(done.stdout.decode("utf-8", "replace").strip().rpartition("\n")[2])
    except ValidationError as error:
        raise UnreadableError(f"what {home} holds can't be read: {error.errors()[0]['msg']}") from None
