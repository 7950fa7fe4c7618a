"""The container in the guest: what is done to it, in which order, and that nothing else has the home meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from applications.hermes.guest import compose, services
from applications.hermes.guest.backend import BACKENDS
from applications.hermes.guest.inputs import ApiServer, Configure, Container, Dashboard, Facts, Port, Probe, Question
from applications.hermes.guest.names import CONTAINER_UNIT, GATEWAY, IDENTITY_LABEL
from applications.hermes.guest.walls import Account, Sources
from provisioning.guest.common import Refusal
from provisioning.guest.typed import as_json

OLD, NEW = "0" * 64, "f" * 64
CONFIG: dict[str, Any] = {"model": {"default": "m"}}
FACTS = Facts(
    stack="cattle",
    user="hermes",
    uid=10000,
    home="/home/hermes",
    hermes_home="/home/hermes/.hermes",
    working_directory="/home/hermes/workspace",
    users_group="hermes-users",
    api_server=ApiServer(enabled=True, host="127.0.0.1", port=8642),
    backups_kept=5,
    probe=Probe(),
    container=True,
)


class Engines:
    """A guest with both engines and systemd. Two gateways at a time end the test.

    `waiting`: the unit has failed, and systemd tries it again at any time, until it is stopped; `restarts`: how often
    it has, which a stop does not set back (systemd's service.c, service_stop and service_reset_failed).
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.containers: dict[str, dict[str, Any]] = {}
        self.units: dict[str, bool] = {}
        self.done: list[str] = []
        self.lock_held = False
        self.supervised = False
        self.waiting, self.restarts = False, 0
        self.unsafe = ""
        (root / "units").mkdir()
        monkeypatch.setattr(compose, "prepare", lambda: self.done.append("mount the state"))
        monkeypatch.setattr(compose, "unbind_state", lambda: self.done.append("unmount the state"))
        monkeypatch.setattr(compose, "refuse_unsafe", self.refuse_unsafe)
        monkeypatch.setattr(compose, "is_active", lambda _: self.supervised)
        self.record, self.unit = root / "container.json", root / "units" / CONTAINER_UNIT
        monkeypatch.setattr(compose, "CONTAINER_RECORD", self.record)
        for name, value in {
            "FILE": root / "compose.yaml",
            "FOLDER": root,
            "STARTED": root / "started.json",
            "UNITS": root / "units",
            "run": self.run,
            "as_user": lambda *_: "",
            "choose": lambda backend: self.done.append(f"engine is {backend.name}"),
            "clear": self.clear,
            "wait_for_engine": lambda _: None,
            "execute": self.execute,
            "install_file": lambda path, text, **_: path.write_text(text),
            "refuse_taken_port": lambda port: self.done.append(f"port {port.port}"),
        }.items():
            monkeypatch.setattr(compose, name, value)
        monkeypatch.setattr(services, "UNITS", root / "units")
        monkeypatch.setattr(services, "execute", self.execute)
        monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")

    def has(self, backend: str, identity: str, *, running: bool = True) -> None:
        self.containers[backend] = {
            "Config": {"Labels": {IDENTITY_LABEL: identity}},
            "State": {"Running": running},
            "HostConfig": {"PortBindings": {"8642/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8642"}], "1/tcp": None}},
        }

    def has_unit(self) -> None:
        (self.root / "units" / GATEWAY).write_text("")
        self.units[GATEWAY] = True

    def gateways(self) -> list[str]:
        found = [name for name, each in self.containers.items() if each["State"]["Running"]]
        return found + [unit for unit, running in self.units.items() if running]

    def clear(self, *_: str) -> None:
        assert not self.gateways(), "a gateway still runs"
        if self.lock_held:
            raise Refusal("another gateway runs on the home")

    def refuse_unsafe(self, sources: Sources) -> None:
        assert sources == Sources(Account(10000, 10000), "/home/hermes", "/home/hermes/.hermes", ("/data",))
        if self.unsafe:
            raise Refusal(self.unsafe)

    def execute(self, *command: str, **_: Any) -> CompletedProcess[str]:
        """The unit's start: it starts the container that its record names the engine of."""
        if command[0] != "systemctl":
            return CompletedProcess(command, 0, self.run(*command), "")
        assert command == ("systemctl", "start", CONTAINER_UNIT)
        backend = json.loads(self.record.read_text())["backend"]
        assert f"container of {BACKENDS[backend].title}" in self.unit.read_text()
        self.done.append(f"{backend} start")
        self.containers[backend]["State"]["Running"] = self.supervised = True
        assert len(self.gateways()) == 1, self.gateways()
        return CompletedProcess(command, 0, "", "")

    def run(self, *command: str, **_: Any) -> str:
        if command[0] == "systemctl":
            if "stop" in command and CONTAINER_UNIT in command:
                self.supervised = self.waiting = False
            elif command[1] == "reset-failed" and CONTAINER_UNIT in command:
                self.restarts = 0
            elif self.waiting:
                self.restarts += 1
            if "disable" in command:
                self.units |= dict.fromkeys(set(self.units) & set(command), False)
                self.done.append(f"disable {' '.join(word for word in command[2:] if not word.startswith('-'))}")
            return ""
        [backend] = [
            each
            for each in BACKENDS.values()
            if command[: len(each.command)] == each.command or (command[: len(each.compose)] == each.compose)
        ]
        words = (
            command[len(backend.compose) :]
            if command[: len(backend.compose)] == backend.compose
            else (command[len(backend.command) :])
        )
        verb = next(word for word in words if word in ("ps", "inspect", "stop", "rm", "start", "up"))
        if verb == "ps":
            return "id" if backend.name in self.containers else ""
        if verb == "inspect":
            return json.dumps([self.containers[backend.name]])
        self.done.append(f"{backend.name} {verb}")
        if verb == "stop":
            self.containers[backend.name]["State"]["Running"] = False
        elif verb == "rm":
            del self.containers[backend.name]
        else:
            assert verb == "up", "only the unit starts it"
            assert not self.waiting, "systemd starts what is made here before its time"
            assert self.done[-2] == "mount the state", "the engine looks for its mounts when it makes a container"
            assert {"--no-start", "--force-recreate", "never", "--no-build"} <= set(command)
            found = re.search(f"{IDENTITY_LABEL}: (.+)", compose.FILE.read_text())
            assert found is not None
            self.has(backend.name, found[1], running=False)
        return ""

    def start(self, backend: str = "docker", identity: str = OLD, env: Mapping[str, str] | None = None) -> str:
        container = Container(
            identity=identity,
            backend=backend,
            reach="127.0.0.1",
            ports=(Port("127.0.0.1", 8642, "API server"),),
            sources=("/data",),
            limit_memory=True,
        )
        inputs = Configure(
            facts=FACTS,
            gid=10000,
            agent_directory=None,
            container=container,
            config=CONFIG,
            environment={},
            secret_environment=(),
            ca_certificates="",
            dashboard=Dashboard(
                enabled=False, host="", port=9119, username="", has_password=False, auth_required=False
            ),
            documents=(),
            overwrite_auth_file=False,
            user_config={},
            unfinished_update=None,
            model=Question(stack="cattle"),
        )
        text = f"  {IDENTITY_LABEL}: {identity}\n"
        return str(compose.start(inputs, container, text, dict(env or {}))["container"])


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


def test_a_first_container_is_made(engines: Engines) -> None:
    assert engines.start() == "create"
    assert engines.done[-5:] == ["engine is docker", "port 8642", "mount the state", "docker up", "docker start"]
    engines.done.clear()
    assert engines.start() == "nothing"
    assert not [what for what in engines.done if what.startswith(("docker", "port", "mount"))]


def test_what_the_agent_could_lead_elsewhere_is_refused_before_anything_is_touched(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    engines.unsafe = "/data is a symbolic link"
    with pytest.raises(Refusal, match="symbolic link"):
        engines.start(identity=NEW)
    assert engines.done == []
    assert engines.gateways() == ["docker"]


def test_one_that_runs_without_its_unit_gets_it(engines: Engines) -> None:
    """As by `docker start`: nobody would start it again, and nobody check what it is given."""
    engines.start()
    engines.supervised = False
    assert engines.start() == "start"
    assert engines.supervised


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_the_ports_of_the_container_are_known(backend: str, engines: Engines) -> None:
    assert not compose.publishes(8642)
    engines.has(backend, OLD)
    assert compose.publishes(8642)
    assert not compose.publishes(9119)


def test_a_setting_stops_and_starts_the_same_container(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    assert engines.start(env={"A": "1"}) == "restart"
    assert [what for what in engines.done if what.startswith("docker")] == ["docker stop", "docker start"]


def test_another_identity_is_made_once_the_old_one_has_stopped(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    assert engines.start(identity=NEW) == "create"
    assert engines.done[-5:] == ["docker stop", "port 8642", "mount the state", "docker up", "docker start"]


def test_one_that_was_stopped_is_started(engines: Engines) -> None:
    engines.start()
    engines.run("docker", "stop", "hermes")
    assert engines.start() == "start"
    assert engines.gateways() == ["docker"]


@pytest.mark.parametrize(("there", "wanted"), [("podman", "docker"), ("docker", "podman")])
def test_the_other_engines_container_goes_first_and_its_engine_stays_off(
    there: str, wanted: str, engines: Engines
) -> None:
    engines.has(there, OLD)
    assert engines.start(wanted) == "create"
    assert engines.gateways() == [wanted]
    assert list(engines.containers) == [wanted]
    assert engines.done.index(f"{there} rm") < engines.done.index(f"{wanted} up")
    assert f"disable {' '.join(BACKENDS[there].units)}" in engines.done


@pytest.mark.parametrize("back", [False, True])
def test_a_unit_that_looks_for_a_container_that_is_gone_is_stopped_first(back: bool, engines: Engines) -> None:
    """As after a reboot between the end of one engine's container and the making of the other's."""
    engines.start("podman")
    del engines.containers["podman"]
    engines.supervised, engines.waiting, engines.restarts = False, True, 7
    if back:
        compose.start_again("podman", "hermes", "/home/hermes/.hermes")
    else:
        assert engines.start("docker") == "create"
    assert engines.gateways() == ["podman" if back else "docker"]
    assert (engines.waiting, engines.restarts) == (False, 0)


def test_the_units_go_first(engines: Engines) -> None:
    engines.has_unit()
    assert engines.start() == "create"
    assert engines.gateways() == ["docker"]
    assert not (engines.root / "units" / GATEWAY).exists()


def test_a_gateway_that_somebody_else_has_started_is_told_and_no_second_one_is(engines: Engines) -> None:
    engines.lock_held = True
    with pytest.raises(Refusal, match="another gateway"):
        engines.start()
    assert engines.gateways() == []


@pytest.mark.parametrize(("present", "verbs"), [(OLD, ["start"]), (NEW, ["up", "start"]), (None, ["up", "start"])])
def test_going_back_starts_what_the_file_describes(present: str | None, verbs: list[str], engines: Engines) -> None:
    """The one that is there, where it is that one; else an update has put another in its place."""
    compose.FILE.write_text(f"      {IDENTITY_LABEL}: {OLD}\n")
    engines.record.write_text('{"backend": "docker"}')
    engines.has("podman", NEW)
    if present is not None:
        engines.has("docker", present, running=False)
    compose.start_again("docker", "hermes", "/home/hermes/.hermes")
    assert engines.done[-1] == "docker start"
    assert [f"docker {verb}" for verb in verbs] == [
        what for what in engines.done if what in ("docker up", "docker start")
    ]
    assert engines.gateways() == ["docker"]
    assert engines.containers["docker"]["Config"]["Labels"][IDENTITY_LABEL] == OLD


OLDER = f"""# Written by the stack; changes by hand are overwritten.
name: hermes
services:
  hermes:
    restart: unless-stopped
    volumes:
    - type: bind
      source: /home/hermes/.hermes
      target: /opt/data
    - type: bind
      source: /home/hermes
      target: /home/hermes
    - type: bind
      source: /etc/hermes/.env
      target: /etc/hermes/.env
    - type: bind
      source: '/data'
      target: /data
    labels:
      {IDENTITY_LABEL}: {OLD}
"""
"""As the program before there was the unit has written it."""


def test_going_back_to_a_container_of_before_brings_it_into_the_present_form(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine restarted it by itself, and found the state directory by a name that the agent can change."""
    compose.FILE.write_text(OLDER)
    facts = engines.root / "agent.json"
    facts.write_text(as_json(replace(FACTS, uid=0)))
    monkeypatch.setattr(compose, "FACTS", facts)
    engines.has("docker", OLD, running=False)
    compose.start_again("docker", "hermes", "/home/hermes/.hermes")
    assert engines.done[-3:] == ["mount the state", "docker up", "docker start"]
    text = compose.FILE.read_text()
    assert "restart: 'no'" in text
    assert "source: /run/hermes-stack/data\n      target: /opt/data" in text
    assert "/home/hermes/.hermes" not in text
    told = json.loads(engines.record.read_text())
    assert told == {
        "backend": "docker",
        "limit_memory": False,
        "uid": 0,
        "gid": 0,
        "home": "/home/hermes",
        "hermes_home": "/home/hermes/.hermes",
        "folders": ["/etc/hermes/.env", "/data"],
    }


def test_the_end_of_docker_mode_leaves_no_unit_and_no_mount(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    assert compose.remove("hermes", "/home/hermes/.hermes")
    assert f"disable {CONTAINER_UNIT}" in engines.done
    assert engines.done[-1] == "unmount the state"
    assert not engines.unit.exists()
    assert not engines.record.exists()
    assert not compose.FILE.exists()


def test_stopping_is_asked_of_both_engines_and_says_whether_one_ran(engines: Engines) -> None:
    assert compose.stop() is False
    engines.has("podman", OLD)
    assert compose.stop() is True
    assert compose.stop() is False
    assert engines.gateways() == []
