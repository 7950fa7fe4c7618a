"""The command line for people: what is handed on, what is refused and in which words, who becomes whom."""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import cli, install
from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.inputs import Facts
from provisioning.guest.common import Refusal
from provisioning.guest.typed import of

PINNED = ({"model.default", "model.base_url", "security.tirith_enabled", "timezone"}, {"API_SERVER_KEY"})
FACTS = {
    "stack": "cattle-b",
    "user": "hermes",
    "uid": 10000,
    "home": "/home/hermes",
    "hermes_home": "/home/hermes/.hermes",
    "working_directory": "/home/hermes/workspace",
    "users_group": "hermes-users",
    "container": False,
    "home_on_root": False,
    "api_server": {"enabled": False, "host": "127.0.0.1", "port": 8642},
    "backups_kept": 5,
    "probe": {"version": None},
}


def refused(line: str) -> str | None:
    try:
        cli.refuse_declared(line.split(), "cattle-b", lambda: PINNED)
    except Refusal as refusal:
        return str(refusal)
    return None


@pytest.mark.parametrize(
    "line",
    [
        "update",
        "update --yes",
        "-p work update",
        "--profile work update --check",
        "setup",
        "setup --non-interactive",
        "uninstall",
        "postinstall",
        "import backup.zip",
        "import --force backup.zip",
        "gateway install --system",
        "gateway run --replace",
        "gateway restart",
        "gateway setup",
        "config set model.default other",
        "config set --force model.default other",
        "config unset model.base_url",
        "config set model other",
        "config set model.default.deeper other",
        "config set API_SERVER_KEY x",
        "config set api_server_key x",
    ],
)
def test_what_is_the_stacks_is_refused_and_the_stack_is_named(line: str) -> None:
    text = refused(line)
    assert text is not None
    assert "cattle-b" in text
    assert text.startswith("hermes ")
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--version",
        "sessions list",
        "-z update",
        "--oneshot setup",
        "chat -q update",
        "--continue update chat",
        "update --help",
        "gateway",
        "gateway status",
        "gateway list",
        "skills update",
        "profile update work",
        "config show",
        "config get model.default",
        "config edit",
        "config set agent.max_turns 9",
        "config set models.default x",
        "config set model_catalog.url x",
        "config set OPENROUTER_API_KEY x",
        "memory setup",
    ],
)
def test_everything_else_is_handed_on(line: str) -> None:
    assert refused(line) is None


def test_a_refusal_says_where_to_change_it() -> None:
    text = refused("config set model.default other")
    assert text is not None
    assert "Pulumi.cattle-b.yaml" in text
    assert "pulumi up --stack cattle-b" in text
    assert "agentVersion" in str(refused("update"))


def test_the_pinned_keys_are_those_of_the_agents_own_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # hermes 0.19.0, managed_scope: the leaves of the mapping; an empty mapping and a list are leaves
    from applications.hermes.guest.managed import render_config, render_env  # noqa: PLC0415

    config: dict[str, Any] = {"a": {"b": 1, "c": {"d": [1, {"e": 2}]}}, "f": {}, "g": "# no comment"}
    (tmp_path / "config.yaml").write_text(render_config(config))
    (tmp_path / ".env").write_text(render_env({"X": "a=b", "Y": ""}))
    monkeypatch.setattr(cli, "MANAGED", tmp_path)
    assert cli.pinned_keys() == ({"a.b", "a.c.d", "f", "g"}, {"X", "Y"})


def facts(**more: Any) -> Facts:
    return of(Facts, {**FACTS, **more}, "the test's")


def test_the_facts_are_those_of_the_configure_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.json"
    monkeypatch.setattr(cli, "FACTS", path)
    with pytest.raises(Refusal, match="has not been brought up yet"):
        cli.facts_here()
    # As the release before this one has written it.
    path.write_text(json.dumps({**FACTS, "probe": {"version": None, "folders": [], "configuration": ""}, "gone": 1}))
    assert cli.facts_here() == facts()


def test_root_becomes_the_agents_account_and_hands_no_environment_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    theirs = {"TERM": "xterm", "LC_ALL": "C.UTF-8", "AWS_SECRET_ACCESS_KEY": "canary", "PYTHONPATH": "/root/evil"}
    monkeypatch.setattr(os, "environ", theirs)
    monkeypatch.setattr(cli, "_has_terminal", lambda: False)
    program, command, environment = cli.become(facts(), ["sessions", "list"])
    assert program == command[0] == "/usr/sbin/runuser"
    assert command[1:] == ["--user", "hermes", "--", "/usr/local/bin/hermes", "sessions", "list"]
    assert environment == {"TERM": "xterm", "LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("whole", "begin"),
    [
        (True, ["/usr/sbin/runuser", "--pty", "--user", "hermes", "--"]),
        # Only a part of it, as in `hermes sessions list | less`.
        (False, ["/usr/bin/setsid", "--wait", "/usr/sbin/runuser", "--user", "hermes", "--"]),
    ],
)
def test_what_runs_has_no_hold_on_roots_terminal(
    monkeypatch: pytest.MonkeyPatch, whole: bool, begin: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cli, "_has_terminal", lambda: True)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(isatty=lambda: whole))
    program, command, _ = cli.become(facts(), ["--version"])
    assert program == begin[0]
    assert command == [*begin, "/usr/local/bin/hermes", "--version"]


def test_in_docker_mode_root_goes_into_the_container_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "pinned_keys", lambda: PINNED)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    _, command, _ = cli.become(facts(container=True), ["sessions", "list"])
    assert command == [ENGINE, "exec", "--interactive", "hermes", "hermes", "sessions", "list"]
    with pytest.raises(Refusal, match="belongs to the stack cattle-b"):
        cli.become(facts(container=True), ["update"])
    monkeypatch.setattr(os, "geteuid", lambda: 10000)
    with pytest.raises(Refusal, match="log in as root"):
        cli.become(facts(container=True), ["sessions", "list"])


def test_another_user_needs_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    monkeypatch.setattr(cli, "_member", lambda _group: False)
    with pytest.raises(Refusal, match="usermod --append --groups hermes-users"):
        cli.become(facts(), ["--version"])
    monkeypatch.setattr(cli, "_member", lambda _group: True)
    monkeypatch.setattr(cli, "SUDO", "/bin/sh")
    program, command, _ = cli.become(facts(), ["--version"])
    assert (program, command[1:]) == (
        "/bin/sh",
        ["--non-interactive", "--user=hermes", "--", "/usr/local/bin/hermes", "--version"],
    )


def test_the_agents_own_command_runs_the_current_code_on_the_services_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "1.0" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "1.0" / "src" / "skills").mkdir(parents=True)
    (tmp_path / "current").symlink_to("1.0")
    monkeypatch.setattr(cli, "CURRENT", tmp_path / "current")
    monkeypatch.setattr(cli, "is_mounted", lambda path: path == "/home/hermes")
    monkeypatch.delenv("HERMES_HOME", raising=False)
    program, command, environment = cli.hand_on(facts(), ["-z", "hello"])
    assert program == str(python)
    assert command == [str(python), "-P", "-m", "hermes_cli.main", "-z", "hello"]
    assert environment["HERMES_HOME"] == "/home/hermes/.hermes"
    assert environment["HOME"] == "/home/hermes"
    assert environment["HERMES_BUNDLED_SKILLS"] == str(tmp_path / "1.0" / "src" / "skills")
    # It would lock the user's own keys, too.
    assert "HERMES_MANAGED" not in environment
    with pytest.raises(Refusal, match="nothing is mounted at /srv/other"):
        cli.hand_on(facts(home="/srv/other"), [])
    assert cli.hand_on(facts(home="/srv/other", home_on_root=True), [])[0] == str(python)


def test_members_of_the_group_become_the_agent_for_its_command_line_only() -> None:
    lines = install.sudoers("agent", "hermes-users").splitlines()
    assert "%hermes-users ALL=(agent) NOPASSWD: /usr/local/bin/hermes" in lines
    assert not [line for line in lines if "ALL=(ALL" in line or "root" in line]
