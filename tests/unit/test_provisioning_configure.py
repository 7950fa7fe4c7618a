"""The parts of the configure phase that decide: hashes, files, what has to be restarted."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from applications.hermes.guest import configure, managed, names, services
from applications.hermes.guest.inputs import Port
from applications.hermes.phases import facts_of, render_configure
from provisioning.guest import common
from provisioning.guest.typed import as_json
from tests.settings import cattle, unchecked

PASSWORD = "canary horse battery"


def is_hash_of(text: str, password: str) -> bool:
    """facts hermes 1, "Dashboard": scrypt$16384$8$1$<b64 salt of 16>$<b64 key of 32>."""
    name, n, r, p, salt, key = text.split("$")
    salt_bytes, key_bytes = base64.b64decode(salt), base64.b64decode(key)
    assert (name, n, r, p, len(salt_bytes), len(key_bytes)) == ("scrypt", "16384", "8", "1", 16, 32)
    return hashlib.scrypt(password.encode(), salt=salt_bytes, n=2**14, r=8, p=1, dklen=32) == key_bytes


def test_a_password_is_hashed_with_a_salt_of_its_own_and_its_hash_is_kept() -> None:
    one, other = managed.dashboard_hash(PASSWORD, ""), managed.dashboard_hash(PASSWORD, "")
    assert is_hash_of(one, PASSWORD)
    assert one != other
    assert managed.dashboard_hash(PASSWORD, one) == one


@pytest.mark.parametrize("present", ["", "scrypt$1$2$3$x$y", "scrypt$16384$8$1$!!$!!", "nothing"])
def test_a_hash_that_is_none_is_replaced(present: str) -> None:
    assert is_hash_of(managed.dashboard_hash(PASSWORD, present), PASSWORD)


def test_a_changed_password_is_a_changed_hash() -> None:
    present = managed.dashboard_hash(PASSWORD, "")
    assert is_hash_of(managed.dashboard_hash("another long password", present), "another long password")


def test_the_env_file_reads_back() -> None:
    values = {"B": "scrypt$16384$8$1$AA==$BB==", "A": 'x # y "z" = 1', "C": ""}
    path_text = managed.render_env(values)
    assert [line.split("=")[0] for line in path_text.splitlines()[1:]] == ["A", "B", "C"]
    done = subprocess.run(
        ["bash", "-c", f'{path_text}\nprintf \'%s\\n\' "$A" "$B" "$C"'], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:3] == [values["A"], values["B"], values["C"]]


def test_read_env_reads_what_render_env_writes(tmp_path: Path) -> None:
    values = {"A": "x=y", "B": "ü"}
    (tmp_path / ".env").write_text(managed.render_env(values))
    assert managed.read_env(tmp_path / ".env") == values
    assert managed.read_env(tmp_path / "none") == {}


def test_the_config_is_yaml_with_the_same_values() -> None:
    config = {"a": {"b": "on", "c": "1.0", "d": [True, None, 1.5]}, "e": "${KEY}", "f": "ü: # -", "_config_version": 33}
    assert yaml.safe_load(managed.render_config(config)) == config


def test_a_file_is_replaced_whole_with_its_mode_and_only_when_it_differs(tmp_path: Path) -> None:
    path, gid = tmp_path / "file", os.getgid()
    assert common.install_file(path, "one", mode=0o640, gid=gid)
    first = path.stat()
    assert stat.S_IMODE(first.st_mode) == 0o640
    assert not common.install_file(path, "one", mode=0o640, gid=gid)
    assert path.stat().st_ino == first.st_ino
    path.chmod(0o666)
    assert common.install_file(path, "one", mode=0o640, gid=gid)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert common.install_file(path, "two", mode=0o640, gid=gid)
    assert path.read_text() == "two"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / "file"
    target.write_text("theirs")
    path.symlink_to(target)
    assert common.install_file(path, "ours", mode=0o640, gid=os.getgid())
    assert not path.is_symlink()
    assert target.read_text() == "theirs"


BASE = (
    "unit g",
    "unit d",
    {"model": {"default": "m"}, "dashboard": {"theme": "x"}},
    {"A": "1", "HERMES_DASHBOARD_X": "1", "FORWARDED_ALLOW_IPS": "1"},
)


@pytest.mark.parametrize(
    ("now", "gateway", "dashboard"),
    [
        (BASE, False, False),
        (("unit G", *BASE[1:]), True, False),
        (("unit g", "unit D", *BASE[2:]), False, True),
        ((*BASE[:2], {**BASE[2], "model": {"default": "n"}}, BASE[3]), True, True),
        ((*BASE[:2], {**BASE[2], "dashboard": {"theme": "y"}}, BASE[3]), False, True),
        ((*BASE[:3], {**BASE[3], "A": "2"}), True, True),
        ((*BASE[:3], {**BASE[3], "HERMES_DASHBOARD_X": "2"}), False, True),
        ((*BASE[:3], {**BASE[3], "FORWARDED_ALLOW_IPS": "2"}), False, True),
    ],
)
def test_what_a_change_restarts(
    now: tuple[str, str, dict[str, object], dict[str, str]], gateway: bool, dashboard: bool
) -> None:
    before, after = services.wanted_state(*BASE), services.wanted_state(*now)
    assert (before[names.GATEWAY] != after[names.GATEWAY]) is gateway
    assert (before[names.DASHBOARD] != after[names.DASHBOARD]) is dashboard


def test_what_is_not_restarted_forgets_its_earlier_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a new password for the dashboard would fail at a restart that the gateway had a week ago."""
    said: list[tuple[str, ...]] = []

    def run(*command: str, **_: object) -> str:
        said.append(command)
        return "active"

    def execute(*command: str, **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, run(*command), "")

    monkeypatch.setattr(services, "run", run)
    monkeypatch.setattr(services, "execute", execute)
    monkeypatch.setattr(services, "STARTED", tmp_path / "started.json")
    monkeypatch.setattr(services, "install_file", lambda *_, **__: True)
    (tmp_path / "started.json").write_text(json.dumps({names.GATEWAY: "same", names.DASHBOARD: "old"}))
    wanted = {names.GATEWAY: "same", names.DASHBOARD: "new"}
    assert services.start_services(wanted, {}) == [names.DASHBOARD]
    changes = [command[1:] for command in said if command[1] != "show"]
    assert changes == [
        ("reset-failed", names.GATEWAY, names.DASHBOARD),
        ("restart", names.DASHBOARD),
        # The units are read before the restart, and not once more while the services come up.
        ("enable", names.GATEWAY, names.DASHBOARD, "--quiet", "--no-reload"),
    ]


def test_a_unit_runs_from_the_real_folder_and_knows_its_skills(tmp_path: Path) -> None:
    template = "ExecStart=@AGENT@ gateway run\nEnvironment=@AGENT_ENVIRONMENT@\n"
    python = f"{tmp_path}/venv/bin/python"
    text = services.render_unit(template, str(tmp_path))
    assert f"ExecStart={python} -P -m hermes_cli.main gateway run\n" in text
    assert "HERMES_BUNDLED_SKILLS" not in text
    # A build of an earlier version of this program: a wheel, and the checkout that it was made of beside it.
    (tmp_path / "src" / "skills").mkdir(parents=True)
    assert f" HERMES_BUNDLED_SKILLS={tmp_path}/src/skills\n" in services.render_unit(template, str(tmp_path))
    # A checkout is started by its own launcher.
    (tmp_path / "hermes-agent").mkdir()
    (tmp_path / "hermes-agent" / "hermes").touch()
    assert f"ExecStart={python} {tmp_path}/hermes-agent/hermes gateway run\n" in services.render_unit(
        template, str(tmp_path)
    )


SERVERS = [("API server", "agentApiPort"), ("dashboard", "agentDashboardPort")]


@pytest.mark.parametrize(("what", "key"), SERVERS)
def test_a_taken_port_is_refused_and_a_free_one_is_not(what: str, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        wanted = Port("127.0.0.1", port, what)
        with pytest.raises(common.Refusal) as refused:
            services.refuse_taken_port(wanted)
        first, *_, last = str(refused.value).splitlines()
        assert first == f"{key} {port}: the {what} can't listen on 127.0.0.1 port {port}: Address already in use."
        assert last.startswith(f"Set {key} to a free port")
    services.refuse_taken_port(wanted)


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(common.Refusal, match="may not be one of this container"):
        services.refuse_taken_port(Port("192.0.2.1", 9119, "dashboard"), lambda _: True)


class Holder(NamedTuple):
    """Who has the port that is wanted for the dashboard."""

    unit: str = ""
    noted: bool = False
    published: bool = False


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        (Holder(), True),
        (Holder(noted=True), False),
        (Holder(unit=names.DASHBOARD), False),
        # The agent's own tools may listen, in the group of a service that is not restarted.
        (Holder(unit=names.GATEWAY), True),
        (Holder(published=True), False),
    ],
)
def test_a_port_is_not_taken_by_what_is_to_be_restarted(
    holder: Holder, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        facts = facts_of(cattle(agentDashboardPort=port if holder.noted else 9119))
        (tmp_path / "agent.json").write_text(as_json(facts))
        monkeypatch.setattr(services, "FACTS", tmp_path / "agent.json")
        line = f'LISTEN 0 5 127.0.0.1:{port} 0.0.0.0:* users:(("python",pid=4711,fd=4))\n'
        monkeypatch.setattr(services, "run", lambda *_, **__: line)
        monkeypatch.setattr(services, "units_of", lambda pid: {holder.unit} if pid == 4711 else set())
        expected = pytest.raises(common.Refusal, match="agentDashboardPort") if refused else contextlib.nullcontext()
        with expected:
            services.refuse_new_ports([Port("127.0.0.1", port, "dashboard")], lambda _: holder.published)


def test_a_refusal_ends_the_phase_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack = unchecked(cattle(), cattle__mount_path=str(tmp_path / "home"))
    [text] = [file.content for file in render_configure(stack).files if file.path == "inputs.json"]
    (tmp_path / "home").mkdir()
    (tmp_path / "inputs.json").write_bytes(text)
    (tmp_path / "secrets.json").write_text("{}")
    monkeypatch.setenv("HP_JOB", str(tmp_path))
    monkeypatch.setenv("HP_SECRETS", str(tmp_path / "secrets.json"))
    assert configure.main() == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: nothing is mounted at")
    assert "Traceback" not in captured.err


def test_the_payload_runs_by_itself(tmp_path: Path) -> None:
    """Isolated, and from no other folder than its own: nothing of the checkout is on its path."""
    stack = unchecked(cattle(), cattle__mount_path=str(tmp_path))
    for file in render_configure(stack).files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(file.content)
        (tmp_path / file.path).chmod(file.mode)
    (tmp_path / "secrets.json").write_text("{}")
    environment = {"HP_JOB": str(tmp_path), "HP_SECRETS": str(tmp_path / "secrets.json"), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-IB", str(tmp_path / "main")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: nothing is mounted at {tmp_path}.")
    assert list(tmp_path.rglob("__pycache__")) == []


def test_a_command_that_hangs_is_a_refusal_that_names_it() -> None:
    with pytest.raises(common.Refusal, match=r"`sleep 60` did not end within 0\.1 s\. Log in and look what hangs"):
        common.run("sleep", "60", timeout_s=0.1)
