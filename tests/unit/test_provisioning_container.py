"""The container in the guest: what is done to it, in which order, and that nothing else has the home meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioning.guest import compose, services
from provisioning.guest.backend import BACKENDS
from provisioning.guest.common import GATEWAY, Refusal

OLD, NEW = "0" * 64, "f" * 64
CONFIG: dict[str, Any] = {"model": {"default": "m"}}


class Engines:
    """A guest with both engines and systemd. Two gateways at a time end the test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.containers: dict[str, dict[str, Any]] = {}
        self.units: dict[str, bool] = {}
        self.done: list[str] = []
        self.lock_held = False
        (root / "units").mkdir()
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
            "install_file": lambda path, text, **_: path.write_text(text),
            "refuse_taken_port": lambda *port: self.done.append(f"port {port[1]}"),
        }.items():
            monkeypatch.setattr(compose, name, value)
        monkeypatch.setattr(services, "UNITS", root / "units")
        monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")

    def has(self, backend: str, identity: str, *, running: bool = True) -> None:
        self.containers[backend] = {
            "Config": {"Labels": {compose.IDENTITY_LABEL: identity}},
            "State": {"Running": running},
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

    def run(self, *command: str, **_: Any) -> str:
        if command[0] == "systemctl":
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
            if verb == "up":
                assert {"--force-recreate", "never", "--no-build"} <= set(command)
                self.has(backend.name, compose.FILE.read_text().split(": ")[1].strip(), running=False)
            self.containers[backend.name]["State"]["Running"] = True
            assert len(self.gateways()) == 1, self.gateways()
        return ""

    def start(self, backend: str = "docker", identity: str = OLD, env: Mapping[str, str] | None = None) -> str:
        container = {"backend": backend, "identity": identity, "sources": [], "reach": "127.0.0.1"}
        inputs = {
            "container": {**container, "ports": [("127.0.0.1", 8642, "API server")]},
            "user": "hermes",
            "hermes_home": "/home/hermes/.hermes",
            "api_server": {"port": 8642},
            "dashboard": {"enabled": False, "port": 9119},
        }
        text = f"  {compose.IDENTITY_LABEL}: {identity}\n"
        return str(compose.start(inputs, text, CONFIG, dict(env or {}))["container"])


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    return Engines(tmp_path, monkeypatch)


def test_a_first_container_is_made(engines: Engines) -> None:
    assert engines.start() == "create"
    assert engines.done[-3:] == ["engine is docker", "port 8642", "docker up"]
    engines.done.clear()
    assert engines.start() == "nothing"
    assert not [what for what in engines.done if what.startswith(("docker", "port"))]


def test_a_setting_stops_and_starts_the_same_container(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    assert engines.start(env={"A": "1"}) == "restart"
    assert [what for what in engines.done if what.startswith("docker")] == ["docker stop", "docker start"]


def test_another_identity_is_made_once_the_old_one_has_stopped(engines: Engines) -> None:
    engines.start()
    engines.done.clear()
    assert engines.start(identity=NEW) == "create"
    assert engines.done[-3:] == ["docker stop", "port 8642", "docker up"]


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


@pytest.mark.parametrize(("present", "verb"), [(OLD, "start"), (NEW, "up"), (None, "up")])
def test_going_back_starts_what_the_file_describes(present: str | None, verb: str, engines: Engines) -> None:
    """The one that is there, where it is that one; else an update has put another in its place."""
    compose.FILE.write_text(f"      {compose.IDENTITY_LABEL}: {OLD}\n")
    engines.has("podman", NEW)
    if present is not None:
        engines.has("docker", present, running=False)
    compose.start_again("docker", "hermes", "/home/hermes/.hermes")
    assert engines.done[-1] == f"docker {verb}"
    assert engines.gateways() == ["docker"]
    assert engines.containers["docker"]["Config"]["Labels"][compose.IDENTITY_LABEL] == OLD


def test_stopping_is_asked_of_both_engines_and_says_whether_one_ran(engines: Engines) -> None:
    assert compose.stop() is False
    engines.has("podman", OLD)
    assert compose.stop() is True
    assert compose.stop() is False
    assert engines.gateways() == []
