"""verify, against a stand-in for the agent's two services: each thing that is wrong is found and named."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from applications.hermes.guest import journal, names, verify
from applications.hermes.guest.inputs import Probe
from applications.hermes.guest.schedule import FAILED, MADE, OVERDUE, Standing
from applications.hermes.phases import EXPECTED, PROMPT
from provisioning.guest import common
from provisioning.guest.typed import as_json, of
from provisioning.guest.words import BAR
from provisioning.job import LOG_TAIL_LINES

KEY = "canary0123456789abcdef0123456789abcdef"


def answers() -> dict[str, tuple[int, Any]]:
    """What a healthy 0.19.0 says (facts hermes 1, "Gateway" and "Dashboard")."""
    return {
        "/health": (200, {"status": "ok", "platform": "hermes-agent", "version": "0.19.0"}),
        "/health/detailed": (200, {"readiness": {"status": "ok", "checks": {}}}),
        "/v1/chat/completions": (
            200,
            {"choices": [{"message": {"content": "HERMES-OK"}, "finish_reason": "stop"}], "usage": {}},
        ),
        "/api/status": (
            200,
            {
                "version": "0.19.0",
                "gateway_running": True,
                "auth_required": False,
                "config_version": 33,
                "latest_config_version": 33,
            },
        ),
    }


def changed(path: str, **more: Any) -> tuple[int, Any]:
    status, body = answers()[path]
    return status, {**body, **more}


@dataclass
class Agent:
    """The services and the machine around them, healthy until told otherwise."""

    root: Path
    port: int
    home: Path
    answers: dict[str, tuple[int, Any]] = field(default_factory=answers)
    units: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None, Any]] = field(default_factory=list)

    def parameters(self, **more: Any) -> dict[str, Any]:
        probe = Probe(
            version="0.19.0",
            api_server=True,
            api_server_port=self.port,
            dashboard=True,
            dashboard_port=self.port,
            home=str(self.home),
            hermes_home=str(self.home),
            user=pwd.getpwuid(self.home.stat().st_uid).pw_name,
            uid=self.home.stat().st_uid,
            services_timeout_s=0.5,
            prompt_timeout_s=5,
            prompt=PROMPT,
            expect=EXPECTED,
        )
        return {**json.loads(as_json(probe)), **more}

    def probe(self, **more: Any) -> Probe:
        return of(Probe, self.parameters(**more), "the test's")

    def set_unit(self, name: str, **more: str) -> None:
        state = {"ActiveState": "active", "SubState": "running", "NRestarts": "0", "Result": "success", **more}
        (self.root / name).write_text("".join(f"{key}={value}\n" for key, value in state.items()))


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Any) -> None:
            made.requests.append((self.path, self.headers.get("Authorization"), body))
            status, answer = made.answers.get(self.path, (404, {}))
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            if status == 0:  # something else has the port
                self.wfile.write(data)
                return
            self.send_response(status)
            if isinstance(answer, dict) and "Location" in answer:
                self.send_header("Location", answer["Location"])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    home, programs, units = tmp_path / "home", tmp_path / "bin", tmp_path / "units"
    for folder in (home, programs, units):
        folder.mkdir()
    made = Agent(units, server.server_address[1], home)
    for unit in (names.GATEWAY, names.DASHBOARD):
        made.set_unit(unit)
    show = f'for unit; do :; done; cat "{units}/$unit"'
    # runuser --user NAME -- COMMAND ...: here nobody has to become anybody.
    become = 'shift 3\nexec "$@"'
    for name, script in (
        ("runuser", become),
        ("systemctl", show),
        ("journalctl", f"echo the last line, with {KEY} in it"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for module in (verify, journal):
        monkeypatch.setattr(module, "MANAGED_ENV", tmp_path / ".env")
    monkeypatch.setattr(verify, "CURRENT", tmp_path / "current")
    # Of this machine's own sshd, cron and accounts; what it looks for is in test_provisioning_account.py.
    monkeypatch.setattr(verify, "check_account", lambda *_: None)
    monkeypatch.setattr(verify, "standing_of_backups", lambda: {"backup": Standing(MADE, "made")})
    (tmp_path / ".env").write_text(f"# words\nAPI_SERVER_KEY='{KEY}'\nOTHER='x'\n")
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "install.json").write_text('{"version": "0.19.0"}')
    yield made
    server.shutdown()
    server.server_close()


def outcome(agent: Agent, monkeypatch: pytest.MonkeyPatch, **more: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(agent.parameters(**more))))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = verify.main()
    return status, out.getvalue(), err.getvalue()


def test_a_healthy_agent_passes_with_one_json_object(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = outcome(agent, monkeypatch)
    assert status == 0, err
    result = json.loads(out)
    assert result["version"] == "0.19.0"
    assert result["answer"] == "HERMES-OK"
    prompts = [body for path, key, body in agent.requests if path == "/v1/chat/completions" and key == f"Bearer {KEY}"]
    assert [prompt["messages"][-1]["content"] for prompt in prompts] == [agent.parameters()["prompt"]]


def test_a_backup_that_was_not_made_is_told_and_fails_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    standings = {"backup": Standing(OVERDUE, "one was due"), "copy": Standing(FAILED, "the server is off")}
    monkeypatch.setattr(verify, "standing_of_backups", lambda: standings)
    status, out, err = outcome(agent, monkeypatch)
    assert status == 0, err
    assert {key: json.loads(out)[key] for key in standings} == {"backup": OVERDUE, "copy": FAILED}
    assert "warning: backup: OVERDUE: one was due" in err
    assert "warning: copy: FAILED: the server is off" in err


def brings_skills(agent: Agent) -> Path:
    """The build has two skills; answers the list that the agent keeps of those that it has taken over."""
    record = {"version": "0.19.0", "shipped": {"skills": 2}}
    (agent.root.parent / "current" / "install.json").write_text(json.dumps(record))
    (agent.home / "skills").mkdir()
    return agent.home / "skills" / ".bundled_manifest"


def test_the_skills_of_the_running_agent_are_counted(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    brings_skills(agent).write_text("one:0a\ntwo:0b\n")
    agent.answers["/v1/skills"] = (
        200,
        {"object": "list", "data": [{"name": "one"}, {"name": "mine"}, {"name": "two"}]},
    )
    status, out, err = outcome(agent, monkeypatch)
    assert status == 0, err
    assert json.loads(out)["skills"] == 3


def test_an_agent_that_has_taken_over_no_skills_is_told(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    brings_skills(agent)
    status, _, err = outcome(agent, monkeypatch)
    assert status == 1
    assert "taken over none of the 2 skills that its build brings" in err
    # As `hermes skills opt-out` has it: the user's own wish.
    (agent.home / ".no-bundled-skills").touch()
    status, _, err = outcome(agent, monkeypatch)
    assert status == 0, err


def test_an_old_config_of_the_user_is_noted_and_left_alone(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.answers["/api/status"] = changed("/api/status", config_version=32)
    status, _, err = outcome(agent, monkeypatch)
    assert status == 0
    assert "config.yaml in the home is of schema 32, the agent knows 33" in err


PROVIDERS = ("basic", "self-hosted")
LOGIN = "/auth/login?provider=self-hosted"
PUBLIC = "https://hermes.example.org"
BACK = quote(f"{PUBLIC}/auth/callback", safe="")
AUTHORIZE = f"https://login.example.org/authorize?client_id=hermes&redirect_uri={BACK}"


def test_a_login_at_the_provider_is_begun(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.answers["/api/status"] = changed("/api/status", auth_required=True, auth_providers=["nous", *PROVIDERS])
    agent.answers[LOGIN] = (302, {"Location": AUTHORIZE})
    status, _, err = outcome(agent, monkeypatch, auth_required=True, auth_providers=list(PROVIDERS), public_url=PUBLIC)
    assert status == 0, err
    assert LOGIN in [path for path, _, _ in agent.requests]


@pytest.mark.parametrize(
    ("providers", "login", "words"),
    [
        (["basic"], (302, {"Location": AUTHORIZE}), "auth_providers lacks self-hosted"),
        (list(PROVIDERS), (503, {"detail": "Provider unreachable: certificate verify failed"}), "certificate verify"),
        (list(PROVIDERS), (200, {}), "can't begin a login"),
        (list(PROVIDERS), (302, {"Location": "/login"}), "can't begin a login"),
        (list(PROVIDERS), (302, {"Location": AUTHORIZE.replace("hermes.", "other.")}), "would lead back to"),
    ],
)
def test_a_login_that_can_not_work_is_told(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, providers: list[str], login: tuple[int, Any], words: str
) -> None:
    agent.answers["/api/status"] = changed("/api/status", auth_required=True, auth_providers=providers)
    agent.answers[LOGIN] = login
    status, _, err = outcome(agent, monkeypatch, auth_required=True, auth_providers=list(PROVIDERS), public_url=PUBLIC)
    assert status == 1
    assert words in err


def test_without_dashboard_none_is_asked(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.set_unit(names.DASHBOARD, ActiveState="inactive")
    status, _, err = outcome(agent, monkeypatch, dashboard=False)
    assert status == 0, err
    assert "/api/status" not in [path for path, _, _ in agent.requests]


FAILED_TURN = {
    "choices": [{"message": {"content": "API call failed after 3 retries"}, "finish_reason": "error"}],
    "hermes": {"failed": True},
}
STOPPED_BUT_FAILED = {**answers()["/v1/chat/completions"][1], "hermes": {"failed": True}}

WRONG: list[tuple[str, tuple[int, Any], str]] = [
    ("/health", changed("/health", version="0.18.2"), "running gateway is version '0.18.2'"),
    ("/health", changed("/health", status="degraded"), "/health says 'degraded'"),
    ("/health", (503, {}), "status 503"),
    ("/health", (200, b"<html>"), "no JSON"),
    ("/health", (200, b"[" * 100_000), "no JSON"),
    ("/health", (200, ["ok"]), "no JSON object"),
    ("/health", (0, b"220 mail.example ESMTP\r\n"), "no HTTP"),
    ("/health/detailed", (200, {"readiness": {"status": "fail", "checks": {"state_db": "locked"}}}), "locked"),
    ("/health/detailed", (200, {"readiness": ["locked"]}), "answered 200"),
    ("/health/detailed", (401, {"error": "no"}), "answered 401"),
    # facts hermes 1: a model that is down shows as HTTP 200
    ("/v1/chat/completions", (200, FAILED_TURN), "finish_reason 'error'"),
    ("/v1/chat/completions", (200, STOPPED_BUT_FAILED), "did not answer the prompt"),
    ("/v1/chat/completions", (500, {"error": "memories does not exist"}), "memories does not exist"),
    ("/v1/chat/completions", (200, {"choices": ["HERMES-OK"]}), "in a form that is not OpenAI's"),
    ("/v1/chat/completions", (200, {"choices": []}), "did not answer the prompt"),
    (
        "/v1/chat/completions",
        (200, {"choices": [{"message": {"content": "Hello!"}, "finish_reason": "stop"}]}),
        "without 'HERMES-OK'",
    ),
    ("/api/status", changed("/api/status", version="0.18.2"), "version is '0.18.2'"),
    ("/api/status", changed("/api/status", gateway_running=False), "gateway_running is False"),
    ("/api/status", changed("/api/status", auth_required=True), "auth_required is True"),
]


@pytest.mark.parametrize("by_api", [True, False])
def test_a_key_that_the_endpoint_repeats_is_not_repeated(
    quiet: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_api: bool
) -> None:
    """Neither in what has failed nor in an answer, which goes into the stack's state."""
    key = "sk-the-models-own-key"
    (tmp_path / ".env").write_text(f"API_SERVER_KEY='{KEY}'\nMODEL_API_KEY='{key}'\n")
    words = f"Incorrect API key provided: Bearer {key}"
    turn = {"choices": [{"message": {"content": words}, "finish_reason": "error"}]}
    quiet.answers["/v1/chat/completions"] = (200, turn)
    speaks(quiet, f"echo {words}", failed=True, completed=False)
    status, out, err = outcome(quiet, monkeypatch, api_server=by_api, dashboard=False)
    assert status == 1
    assert "Incorrect API key provided: Bearer [secret]" in err
    assert key not in out + err
    quiet.answers["/v1/chat/completions"] = (
        200,
        {"choices": [{"message": {"content": words}, "finish_reason": "stop"}]},
    )
    speaks(quiet, f"echo {words}")
    status, out, err = outcome(quiet, monkeypatch, api_server=by_api, dashboard=False, expect="Incorrect")
    assert status == 0, err
    assert json.loads(out)["answer"] == "Incorrect API key provided: Bearer [secret]"


REMEDY = re.compile("Check |Start it again: |Its last lines are above; |Something else may listen there: |If it was ")


@pytest.mark.parametrize(("path", "answer", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_what_is_wrong_is_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, path: str, answer: tuple[int, Any], words: str
) -> None:
    agent.answers[path] = answer
    status, out, err = outcome(agent, monkeypatch)
    assert (status, out) == (1, "")
    assert words in err
    assert REMEDY.match(err.splitlines()[-1])
    assert "Last lines of hermes-gateway.service:\n  | the last line, with [secret] in it" in err
    assert KEY not in err


@pytest.mark.parametrize("unit", [names.GATEWAY, names.DASHBOARD])
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"NRestarts": "3"}, "hermes-{} was restarted by systemd 3 times"),
        ({"ActiveState": "failed"}, "hermes-{} is failed"),
        # 226: EXIT_NAMESPACE of systemd.exec(5)
        ({"ActiveState": "activating", "ExecMainStatus": "226", "NRestarts": "2"}, "needs the feature nesting=1"),
    ],
)
def test_a_service_that_does_not_run_well_is_named(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, unit: str, state: dict[str, str], words: str
) -> None:
    agent.set_unit(unit, **state)
    status, _, err = outcome(agent, monkeypatch)
    assert status == 1
    assert words.format(unit.removeprefix("hermes-")) in err
    assert REMEDY.match(err.splitlines()[-1]) or "nesting=1" in err.splitlines()[-1]


WORDS = [f"a line of its output, the {number}." for number in range(40)]
REASON = "the true reason, in its own words"
TOOLS = [
    # The call that fails, and what it was for.
    ("systemctl show", "`systemctl show --property=ActiveState,"),
    ("find", "looking through HOME failed with 7"),
    ("runuser --user .* for unit in", "looking for units in HOME/.config/systemd/user failed with 7"),
    ("sshd -T", "asking sshd for its configuration failed with 7"),
    ("systemctl is-enabled", "systemctl is-enabled user@UID.service failed with 7"),
    ("engine container inspect", "asking the engine for the container failed with 7"),
]
CHECK_ACCOUNT = verify.check_account


@pytest.mark.parametrize(("fails", "what"), TOOLS, ids=[fails for fails, _ in TOOLS])
def test_a_tool_that_fails_is_told_with_its_own_last_words(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str, what: str
) -> None:
    """Read as a person would: the last lines of the log."""
    name, programs = fails.split(maxsplit=1)[0], tmp_path / "bin"
    (tmp_path / "words").write_text("\n".join([*WORDS, REASON]))
    was = programs / f"{name}.was"
    if (programs / name).exists():
        (programs / name).rename(was)
    else:
        was.symlink_to(shutil.which(name) or "/bin/true")
    (programs / name).write_text(
        f"#!/bin/bash\nfails='{fails}'\n"
        f'if [[ "{name} $*" =~ $fails ]]; then cat {tmp_path}/words >&2; exit 7; fi\nexec {was} "$@"\n'
    )
    (programs / name).chmod(0o755)
    if what.startswith(("asking sshd", "systemctl is-enabled")):
        monkeypatch.setattr(verify, "check_account", CHECK_ACCOUNT)
        monkeypatch.setattr(verify, "SSHD", str(programs / "sshd") if name == "sshd" else "/bin/true")
    monkeypatch.setattr(verify, "ENGINE", str(programs / "engine"))
    monkeypatch.setattr(journal, "ENGINE", str(programs / "engine"))
    monkeypatch.setattr(verify, "IMAGE_CURRENT", tmp_path / "current" / "install.json")
    agent.set_unit(names.CONTAINER_UNIT)
    status, _, err = outcome(agent, monkeypatch, container=name == "engine")
    assert status == 1
    shown = err.splitlines()[-LOG_TAIL_LINES:]
    [at] = (number for number, line in enumerate(shown) if line.startswith("verify failed: "))
    assert what.replace("HOME", str(agent.home)).replace("UID", str(agent.home.stat().st_uid)) in shown[at]
    last = shown.index(f"{BAR}{REASON}")
    assert [line.removeprefix(BAR) for line in shown[last - 5 : last]] == WORDS[-5:], "whole and in order"
    assert shown[last + 1 :] == [common.REPEAT]


def test_a_gateway_that_never_listens_is_told_with_its_address(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = outcome(agent, monkeypatch, api_server_port=1)
    assert status == 1
    assert "the API server does not answer at http://127.0.0.1:1/health" in err


def test_another_installed_version_is_told(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, err = outcome(agent, monkeypatch, version="0.20.0")
    assert status == 1
    assert "the installed version is 0.19.0, declared is 0.20.0" in err


def test_files_of_others_in_the_home_are_listed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    (agent.home / "lost+found").mkdir()
    (agent.home / "config.yaml").touch()
    other = agent.home.stat().st_uid + 1
    status, _, err = outcome(agent, monkeypatch, uid=other)
    assert status == 1
    assert f"belong to others than uid {other}" in err
    assert f"{agent.home}/config.yaml" in err
    assert f"uid {agent.home.stat().st_uid} {agent.home}/lost+found" not in err


def test_a_missing_key_is_told(agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OTHER='x'\n")
    status, _, err = outcome(agent, monkeypatch)
    assert status == 1
    assert "holds no API_SERVER_KEY" in err


# --- without the API ----------------------------------------------------------------------------


@pytest.fixture
def quiet(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """The agent without its API: its state file, a process that runs the installed code, its command line."""
    programs = agent.root.parent / "bin"
    monkeypatch.setattr(verify, "RUNUSER", str(programs / "runuser"))
    monkeypatch.setattr(verify, "COMMAND", str(programs / "hermes"))
    installed = agent.root.parent / "current"
    monkeypatch.setattr(verify, "started_from", lambda _pid: f"{installed}/venv/bin/python")
    agent.set_unit(names.GATEWAY, MainPID=str(os.getpid()))
    says(agent)
    speaks(agent, "echo HERMES-OK")
    return agent


def says(agent: Agent, **more: Any) -> None:
    """What the gateway writes (facts hermes 1, "Gateway")."""
    state = {"pid": os.getpid(), "kind": "hermes-gateway", "gateway_state": "running", **more}
    (agent.home / "gateway_state.json").write_text(json.dumps(state))


def speaks(agent: Agent, script: str, **usage: Any) -> None:
    """What `hermes -z PROMPT --usage-file FILE` does: the script, and its report (facts hermes 1, "One-shot")."""
    report = json.dumps({"completed": True, "failed": False, **usage})
    command = agent.root.parent / "bin" / "hermes"
    command.write_text(f"#!/bin/sh\nprintf '%s' '{report}' >\"$4\"\necho \"$2\" >{agent.root}/prompt\n{script}\n")
    command.chmod(0o755)


def test_without_the_api_the_prompt_goes_by_the_command_line(quiet: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = outcome(quiet, monkeypatch, api_server=False, prompt="$(reboot) 'x'", dashboard=False)
    assert status == 0, err
    assert json.loads(out)["answer"] == "HERMES-OK"
    assert (quiet.root / "prompt").read_text() == "$(reboot) 'x'\n"
    assert quiet.requests == []


@pytest.mark.parametrize(
    ("script", "usage", "words"),
    [
        # 0.19.0 ends with 0 after a failure: only the report tells
        (
            "echo API call failed after 3 retries",
            {"failed": True, "completed": False},
            "API call failed after 3 retries",
        ),
        ("echo half", {"completed": False}, "did not answer the prompt: half"),
        ("echo no provider >&2; exit 1", {"completed": None}, "did not answer the prompt: no provider"),
        ("echo Hello", {}, "without 'HERMES-OK'"),
        ("sleep 100 & wait", {}, "no answer within 0.5 s"),
    ],
)
def test_a_prompt_that_fails_is_told(
    quiet: Agent, monkeypatch: pytest.MonkeyPatch, script: str, usage: dict[str, Any], words: str
) -> None:
    speaks(quiet, script, **usage)
    more = {"prompt_timeout_s": 0.5} if "within" in words else {}
    status, out, err = outcome(quiet, monkeypatch, api_server=False, dashboard=False, **more)
    assert (status, out) == (1, "")
    assert words in err


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"gateway_state": "starting"}, "it says 'starting'"),
        ({"gateway_state": "degraded"}, "it says 'degraded'"),
        # facts hermes 1: a gateway that was killed leaves "running" behind
        ({"pid": 1}, "as process 1, its process is "),
    ],
)
def test_a_state_file_alone_is_no_proof(
    quiet: Agent, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], words: str
) -> None:
    says(quiet, **state)
    status, _, err = outcome(quiet, monkeypatch, api_server=False, dashboard=False)
    assert status == 1
    assert "the gateway does not get ready" in err
    assert words in err


def test_a_gateway_of_the_old_code_is_told(quiet: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "started_from", lambda _pid: "/opt/hermes/0.18.2/venv/bin/python")
    status, _, err = outcome(quiet, monkeypatch, api_server=False, dashboard=False)
    assert status == 1
    assert "the gateway runs '/opt/hermes/0.18.2/venv/bin/python'" in err


def test_a_question_asks_the_container_how_it_is_reached(
    quiet: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts: dict[str, Any] = {
        **{"stack": "cattle", "uid": 10000, "working_directory": "/", "users_group": "u", "backups_kept": 5},
        **{"user": quiet.parameters()["user"], "home": "/", "hermes_home": str(quiet.home), "probe": {}},
    }
    monkeypatch.setattr(verify, "FACTS", tmp_path / "agent.json")
    asked = {"only": "prompt", "expect": "", "services_timeout_s": 1, "prompt_timeout_s": 5, "dashboard": False}
    for enabled, port in ((False, 1), (True, quiet.port)):
        facts["api_server"] = {"enabled": enabled, "host": "127.0.0.1", "port": port}
        (tmp_path / "agent.json").write_text(json.dumps(facts))
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**asked, "prompt": "hello"})))
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            assert verify.main() == 0
        assert json.loads(out.getvalue()) == {"answer": "HERMES-OK"}
    assert "/v1/chat/completions" in [path for path, _, _ in quiet.requests]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes the folder's owner, as in the guest")
def test_a_folder_of_the_node_is_mounted_and_its_owner_can_use_it(agent: Agent) -> None:
    def folder(path: str, **more: Any) -> dict[str, Any]:
        return {"path": path, "owner": 10000, "read_only": False, **more}

    shared = Path("/dev/shm")  # noqa: S108 - a mount point that everybody may write to
    verify.verify(agent.probe(folders=[folder(str(shared)), folder("/proc", read_only=True)]))
    assert list(shared.glob(".write-test-*")) == []
    for broken, words in (
        (folder(str(agent.home)), f"no folder of the node is mounted at {agent.home}"),
        (folder("/proc"), "user 10000 can't write to /proc"),
    ):
        with pytest.raises(verify.Unproven, match=words):
            verify.verify(agent.probe(folders=[broken]))


def test_a_long_wait_says_now_and_then_what_it_waits_for_and_how_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that a test moves: a sign every four seconds at most, and never less than no time left."""
    moments = iter([0.0, 3.9, 4.0, 7.9, 8.5, 200.0])
    monkeypatch.setattr("applications.hermes.guest.verify.time.monotonic", lambda: next(moments))
    signs = verify.Signs("gateway", 180.0)
    for last in ("a", "b", "c", "d", "e"):
        signs.of(last)
    assert capsys.readouterr().err.splitlines() == [
        "verify: waiting for the gateway, at most 176 s more: b",
        "verify: waiting for the gateway, at most 172 s more: d",
        "verify: waiting for the gateway, at most 0 s more: e",
    ]


def test_a_unit_of_the_users_own_is_found(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    # As `hermes import` and `hermes setup` leave one (facts hermes 0.20, 6); also as a link into nowhere.
    folder = agent.home / ".config" / "systemd" / "user"
    folder.mkdir(parents=True)
    (folder / "hermes-gateway.service").write_text("[Service]\n")
    (folder / "hermes-gateway-\x1b[31mwork.service").symlink_to("/nowhere")
    status, _, err = outcome(agent, monkeypatch)
    assert status == 1
    assert "holds 2 units of its own" in err
    assert "\x1b" not in err
