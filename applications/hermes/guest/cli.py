"""`hermes` for people who log in: becomes the agent's account, then hands on to the agent's own command line.

Nothing of the agent runs as root, whoever calls. What would change the installation is refused in words that name the
stack; so is a key that the stack pins. Every other key is the user's (the agent's own lock, HERMES_MANAGED, would lock
them all). Inside the services the same command is found first: there it is the agent's account already.
"""

from __future__ import annotations

import ctypes
import grp
import json
import os
import pwd
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from applications.hermes.guest import layout
from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.inputs import Facts
from applications.hermes.guest.names import CONTAINER, CURRENT, FACTS, MANAGED
from applications.hermes.guest.releases import VALUE_OPTIONS
from provisioning.guest.common import Refusal, is_mounted
from provisioning.guest.typed import record

COMMAND = "/usr/local/bin/hermes"
SUDO = "/usr/bin/sudo"

KEPT_VARIABLES = ("TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ", "EDITOR", "VISUAL", "COLUMNS", "LINES")

VERSIONS = "The version is declared: change agentVersion, agentTag and agentCommit"
SERVICES = "The services are declared"
# What belongs to the stack, and what to do instead. {stack} is its name.
REFUSED: dict[tuple[str, ...], str] = {
    ("update",): f"{VERSIONS} in Pulumi.{{stack}}.yaml, then: pulumi up --stack {{stack}}",
    ("uninstall",): "To remove the container and keep the data: pulumi destroy --stack {stack}",
    ("setup",): "Change Pulumi.{stack}.yaml, then: pulumi up --stack {stack}. Other keys: hermes config set KEY VALUE",
    (
        "postinstall",
    ): "Packages are declared: agentExtraPackages in Pulumi.{stack}.yaml, then: pulumi up --stack {stack}",
    # It writes over databases beside their old logs, and starts a user's gateway unit unasked (facts hermes 0.20, 6).
    ("import",): "Of the stack's backups: scripts/agent restore NAME. Of a file of hermes backup: docs/operations.md",
    ("gateway", "install"): f"{SERVICES}: pulumi up --stack {{stack}} writes and starts them",
    ("gateway", "uninstall"): f"{SERVICES}: pulumi destroy --stack {{stack}} ends them together with the container",
    ("gateway", "setup"): "Change Pulumi.{stack}.yaml, then: pulumi up --stack {stack}",
    ("gateway", "migrate-legacy"): f"{SERVICES}: pulumi up --stack {{stack}} writes and starts them",
    ("gateway", "run"): "It runs already, as hermes-gateway.service; a second one would spoil its data",
    ("gateway", "start"): "As root: systemctl start hermes-gateway",
    ("gateway", "stop"): "As root: systemctl stop hermes-gateway",
    ("gateway", "restart"): "As root: systemctl restart hermes-gateway",
}


def facts_here() -> Facts:
    """Refusal when the configure phase has not run."""
    found = record(Facts, FACTS)
    if found is None:
        raise Refusal(f"{FACTS} is missing: the stack has not been brought up yet")
    return found


def command_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command and what follows it, without the options before it."""
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--" or not argument.startswith("-"):
            return tuple(arguments[index:])
        index += 2 if argument in VALUE_OPTIONS else 1
    return ()


def leaves(config: Mapping[str, Any], prefix: str = "") -> set[str]:
    """The dotted keys that a managed configuration pins."""
    found: set[str] = set()
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        found |= leaves(value, f"{dotted}.") if isinstance(value, dict) and value else {dotted}
    return found


def refuse_declared(arguments: Sequence[str], stack: str, pinned: Callable[[], tuple[set[str], set[str]]]) -> None:
    """Refusal when these arguments would change what is the stack's. `pinned`: its keys and environment variables."""
    command = command_of(arguments)
    words = tuple(word for word in command if not word.startswith("-"))
    if any(word in ("-h", "--help") for word in command):
        return
    for refused, remedy in REFUSED.items():
        if words[: len(refused)] == refused:
            raise Refusal(_text(" ".join(refused), "belongs to the stack", stack, remedy.format(stack=stack)))
    if words[:2] in (("config", "set"), ("config", "unset")) and len(words) > 2:
        keys, environment = pinned()
        key = words[2]
        held = {leaf for leaf in keys if leaf == key or leaf.startswith(f"{key}.") or key.startswith(f"{leaf}.")}
        if held or key.upper() in environment:
            remedy = (
                f"Change it in Pulumi.{stack}.yaml (a secret: pulumi config set --stack {stack} --secret ...), "
                f"then: pulumi up --stack {stack}"
            )
            raise Refusal(_text(" ".join(words[:3]), "is declared by the stack", stack, remedy))


def _text(what: str, why: str, stack: str, remedy: str) -> str:
    return f"hermes {what}: refused, this {why} {stack} (managed by Pulumi).\n{remedy}"


def pinned_keys() -> tuple[set[str], set[str]]:
    """What /etc/hermes pins; its files are written by the stack: JSON behind a comment, NAME='value' lines."""
    try:
        lines = (MANAGED / "config.yaml").read_text(encoding="utf-8").splitlines()
        config = json.loads("\n".join(line for line in lines if not line.startswith("#")))
        env = (MANAGED / ".env").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        raise Refusal(f"{MANAGED} can't be read: pulumi up writes it again") from None
    return leaves(config), {line.partition("=")[0] for line in env if "=" in line and not line.startswith("#")}


def become(facts: Facts, arguments: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """How a caller who is not the agent's account becomes it: program, arguments, environment.

    On a terminal through a pseudo-terminal of its own, or without any: what runs there could type into root's shell.
    """
    kept = {name: os.environ[name] for name in os.environ if name in KEPT_VARIABLES or name.startswith("LC_")}
    kept["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    if os.geteuid() == 0 and facts.container:
        # The image's own command becomes the agent's account by itself (facts hermes 2, "Docker image").
        refuse_declared(arguments, facts.stack, pinned_keys)
        terminal = ["--interactive", *(["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else [])]
        command = [ENGINE, "exec", *terminal, CONTAINER, "hermes", *arguments]
        return command[0], command, kept
    if facts.container:
        raise Refusal("the agent is in a container, and only root reaches it: log in as root")
    if os.geteuid() == 0:
        runuser = ["/usr/sbin/runuser", "--user", facts.user]
        if sys.stdin.isatty() and sys.stdout.isatty():
            runuser.insert(1, "--pty")
        elif _has_terminal():  # as in `hermes sessions list | less`
            runuser = ["/usr/bin/setsid", "--wait", *runuser]
        return runuser[0], [*runuser, "--", COMMAND, *arguments], kept
    if not _member(facts.users_group) or not Path(SUDO).exists():
        name = pwd.getpwuid(os.getuid()).pw_name
        raise Refusal(
            f"the agent runs as {facts.user}, and {name} may not become {facts.user}.\n"
            "Log in as root, or let root allow it: apt-get install sudo; "
            f"usermod --append --groups {facts.users_group} {name} (then log in again)."
        )
    command = [SUDO, "--non-interactive", f"--user={facts.user}", "--", COMMAND, *arguments]
    return command[0], command, kept


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _member(group: str) -> bool:
    try:
        return grp.getgrnam(group).gr_gid in os.getgroups()
    except KeyError:
        return False


def hand_on(facts: Facts, arguments: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """The agent's own command as its account runs it: program, arguments, environment."""
    directory = os.path.realpath(CURRENT)
    program, *begin = layout.argv(directory)
    if not Path(program).exists():
        raise Refusal(f"{CURRENT} leads to no installation: pulumi up makes one")
    if not (facts.home_on_root or is_mounted(facts.home)):
        raise Refusal(f"nothing is mounted at {facts.home}: the agent's data is not there")
    environment = {
        **os.environ,
        "HOME": facts.home,
        "USER": facts.user,
        "LOGNAME": facts.user,
        "SHELL": "/bin/bash",
        "HERMES_HOME": os.environ.get("HERMES_HOME") or facts.hermes_home,
        **layout.environment(directory),
    }
    return program, [program, *begin, *arguments], environment


def gain_nothing() -> None:
    """Setuid programs are out of reach: nothing that this process starts gets more rights than it has."""
    no_new_privs = 38  # PR_SET_NO_NEW_PRIVS of linux/prctl.h
    if ctypes.CDLL(None, use_errno=True).prctl(no_new_privs, 1, 0, 0, 0) != 0:
        raise Refusal(f"the kernel refuses no_new_privs: {os.strerror(ctypes.get_errno())}")


def main() -> NoReturn:
    arguments = sys.argv[1:]
    try:
        facts = facts_here()
        if os.geteuid() != facts.uid or facts.container:
            program, command, environment = become(facts, arguments)
        else:
            refuse_declared(arguments, facts.stack, pinned_keys)
            program, command, environment = hand_on(facts, arguments)
            os.umask(0o077)
            gain_nothing()
            if not os.access(".", os.R_OK | os.X_OK):
                os.chdir(facts.working_directory if Path(facts.working_directory).is_dir() else facts.home)
    except Refusal as found:
        print(found if str(found).startswith("hermes ") else f"hermes: {found}", file=sys.stderr)
        sys.exit(1)
    os.execve(program, command, environment)  # noqa: S606 - handing on is what this is for
