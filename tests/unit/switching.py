"""A container for the unit tests of updates and restores: folders for its disks, a table for its systemd.

The data, the backups and the notes are real files, and what works on them is the real code. Every step that changes
something is counted; at one of them the world can break or end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from applications.hermes.guest import backups, records, services, state, update, verify
from applications.hermes.guest.inputs import ApiServer, Facts, Probe
from applications.hermes.guest.names import CONTAINER, DASHBOARD, GATEWAY
from applications.hermes.guest.update import Subject, switching
from provisioning.guest.common import Refusal, read_json
from provisioning.guest.typed import as_json

OLD, NEW, OTHER = "1.0", "2.0", "3.0"


class Killed(BaseException):
    """As by SIGKILL: nothing of the run comes after it."""


def broken(step: str) -> Exception:
    return Refusal(f"{step} broke")


def killed(_step: str) -> BaseException:
    return Killed()


@dataclass
class World:
    """`fail_at`: the step at which `failure` happens, once. `at_start`: what a version does to the data when it starts.

    `answers`: versions that answer a prompt. `starts`: versions that live.
    """

    root: Path
    fail_at: int = 0
    failure: Callable[[str], BaseException] = killed
    done: list[str] = field(default_factory=list)
    """The steps so far."""
    running: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys((GATEWAY, DASHBOARD)))
    enabled: bool = False
    answers: set[str] = field(default_factory=lambda: {OLD, NEW, OTHER})
    starts: set[str] = field(default_factory=lambda: {OLD, NEW, OTHER})
    at_start: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    images: set[str] = field(default_factory=set)
    """Versions that are images, not folders."""
    container: str | None = None
    """Of which version the engine's container is, if there is one."""
    container_runs: bool = False
    odd: Exception | None = None
    """What asking the new version's health ends with, as by an answer that nobody has thought of."""

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def data(self) -> Path:
        return self.home / ".hermes"

    @property
    def current(self) -> Path:
        return self.root / "opt" / "current"

    @property
    def started(self) -> Path:
        return self.root / "started.json"

    @property
    def image_record(self) -> Path:
        return self.root / "current.json"

    def directory(self, version: str) -> str:
        return f"hermes-agent:{version}@sha256:aa" if version in self.images else str(self.root / "opt" / version)

    def subject(self, version: str = OLD) -> Subject:
        container = version in self.images
        return Subject(
            Facts(
                stack="cattle",
                user="hermes",
                uid=10000,
                home=str(self.home),
                hermes_home=str(self.data),
                working_directory=str(self.home),
                users_group="hermes-users",
                api_server=ApiServer(enabled=False, host="127.0.0.1", port=8642),
                backups_kept=3,
                probe=Probe(services_timeout_s=1, dashboard=True, container=container),
                container=container,
            )
        )

    # ---- how a step is done, or is not ----

    def change(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) == self.fail_at:
            raise self.failure(what)

    def systemctl(self, *command: str, **_: Any) -> str:
        if command[0] == "sync":
            return ""
        assert command[0] == "systemctl", command
        verb, units = command[1], [word for word in command[2:] if not word.startswith("-")]
        if verb == "show":
            return "active" if self.running[units[0]] else "inactive"
        if verb in ("daemon-reload", "reset-failed"):
            return ""
        self.change(f"systemctl {verb}")
        for unit in units:
            if verb in ("stop", "restart"):
                self.running[unit] = None
            if verb in ("start", "restart"):
                self._start(unit)
        self.enabled = {"enable": True, "disable": False}.get(verb, self.enabled)
        return ""

    def _start(self, unit: str) -> None:
        if self.running[unit]:
            return
        assert not self.container_runs, "two gateways on one home"
        version = (self.root / "units" / unit).read_text()
        if unit == GATEWAY and version in self.at_start:
            self.at_start[version](self.data)
        self.running[unit] = version if version in self.starts else None

    # ---- the engine ----

    @property
    def FILE(self) -> Path:  # noqa: N802 - as the module has it
        return self.root / "compose.yaml"

    def stop(self) -> bool:
        was = self.container_runs
        if self.container is not None:
            self.change("engine stop")
            self.container_runs = False
        return was

    def start_again(self, backend: str, _user: str, _data: str) -> None:
        assert backend == "docker"
        self.change("engine up")
        assert not any(self.running.values()), "two gateways on one home"
        self.container = version = self.FILE.read_text()
        if version in self.at_start:
            self.at_start[version](self.data)
        self.container_runs = version in self.starts

    def remove_containers(self, _why: str) -> bool:
        was = self.container is not None
        if was:
            self.change("engine rm")
        self.container, self.container_runs = None, False
        self.FILE.unlink(missing_ok=True)
        return was

    # ---- the rest ----

    def as_user(self, _user: str, *command: str) -> str:
        """A note is removed. A hundred programs that only read or write one would take most of these tests' time."""
        assert command[:2] == ("rm", "-rf"), command
        self.change("a note")
        Path(command[2]).unlink(missing_ok=True)
        return ""

    def read_home(self, _user: str, path: str) -> str | None:
        return Path(path).read_text() if Path(path).exists() else None

    def write_home(self, _user: str, path: str, text: str) -> None:
        self.change("a note")
        Path(path).parent.mkdir(mode=0o700, exist_ok=True)
        Path(path).write_text(text)

    def state(self, *command: str, **_: Any) -> subprocess.CompletedProcess[str]:
        arguments = command[command.index(str(update.STATE_PROGRAM)) + 1 :]
        if arguments[2] != "list":
            self.change(f"state {arguments[2]}")
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "argv", ["state.py", *arguments])
            patch.setattr(os, "geteuid", lambda: 10000)
            before = os.umask(0o022)
            try:
                status = state.main()
            finally:
                os.umask(before)
        return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())

    def asked(self, probe: Probe) -> str | None:
        """The version that is where the probe looks."""
        if probe.container:
            return self.container if self.container_runs else None
        return self.running[GATEWAY]

    def check_gateway(self, probe: Probe, version: str, _deadline: float) -> None:
        if self.odd is not None and version != OLD:
            raise self.odd
        if self.asked(probe) != version:
            raise verify.Unproven(f"{self.asked(probe)} runs")

    def prompt(self, probe: Probe) -> str:
        if self.asked(probe) not in self.answers:
            raise verify.Unproven("no such luck")
        return "yes"

    # ---- what the configure phase does ----

    def configure(self, version: str) -> dict[str, Any]:
        """Bring the agent to a version, as configure.py does; answers the outputs."""
        subject, backend = self.subject(version), "docker" if version in self.images else None
        with switching(subject, self.directory(version), version, backend) as trial:
            wanted = dict.fromkeys((GATEWAY, DASHBOARD), version)
            for folder in ("managed", "units"):
                (self.root / folder).mkdir(exist_ok=True)
            (self.root / "facts.json").write_text(as_json(subject.facts))
            self.change("the managed scope")
            (self.root / "managed" / ".env").write_text(version)
            if backend is not None:
                self._compose(version)
                return trial.outputs
            self.remove_containers("")
            self.change("the units")
            for unit in wanted:
                (self.root / "units" / unit).write_text(version)
            started = read_json(self.started)
            stale = [unit for unit in wanted if not self.running[unit] or started.get(unit) != version]
            if GATEWAY in stale:
                self.systemctl("systemctl", "restart", GATEWAY)
                if trial.gateway_first is not None:
                    trial.gateway_first()
            if stale:
                self.systemctl("systemctl", "restart", *[unit for unit in stale if unit != GATEWAY])
            self.systemctl("systemctl", "enable", *wanted)
            self.started.write_text(json.dumps(wanted))
        return trial.outputs

    def _compose(self, version: str) -> None:
        units = list((self.root / "units").iterdir())
        if units:
            self.systemctl("systemctl", "disable", *[unit.name for unit in units])
        for unit in units:
            self.running[unit.name] = None
            unit.unlink()
        self.FILE.write_text(version)
        if self.container != version or not self.container_runs:
            self.start_again("docker", "", "")
        self.started.write_text(json.dumps({CONTAINER: version}))

    # ---- what is there ----

    def runs(self) -> list[str | None]:
        """The versions of all that runs."""
        return [*filter(None, self.running.values()), *([self.container] if self.container_runs else [])]

    def serves(self, version: str) -> None:
        """All of the container is this version's, and nothing tells of another."""
        if version in self.images:
            assert self.runs() == [version]
            assert not self.enabled
            assert not list((self.root / "units").iterdir())
            assert self.FILE.read_text() == version
            assert read_json(self.image_record)["directory"] == self.directory(version)
            assert read_json(self.started) == {CONTAINER: version}
        else:
            assert self.runs() == [version, version]
            assert self.container is None
            assert self.enabled
            assert str(self.current.readlink()) == self.directory(version)
            assert not self.image_record.exists()
            assert read_json(self.started) == {GATEWAY: version, DASHBOARD: version}
        texts = [path.read_text() for path in (*(self.root / "units").iterdir(), *(self.root / "managed").iterdir())]
        assert set(texts) == {version}
        assert not (self.root / "saved").exists()
        assert self.subject().read_note("update") is None
        assert self.subject().own_note("update") is None

    def words(self) -> list[str]:
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/state.db?mode=ro", uri=True)) as database:
            return [row[0] for row in database.execute("SELECT word FROM words ORDER BY word")]

    def schema(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.data}/state.db?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT version FROM schema_version").fetchone()[0])

    def backups(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.subject().state("list")["backups"]
        return found


def tell(data: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(data / "state.db")) as database, database:
        database.execute("PRAGMA synchronous=OFF")
        for statement in statements:
            database.execute(statement)


def migrate(data: Path) -> None:
    """As a new version does: the database in another form, which the old one does not read."""
    with contextlib.suppress(sqlite3.Error):
        tell(data, "ALTER TABLE words RENAME TO words_of_2", "UPDATE schema_version SET version = 99")
    (data / "config.yaml").write_text("_config_version: 99\n")


def made(root: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A container on which nothing runs yet, with the builds of three versions."""
    world = World(root)
    for version in (OLD, NEW, OTHER):
        folder = Path(world.directory(version))
        folder.mkdir(parents=True)
        (folder / "install.json").write_text(json.dumps({"version": version}))
    world.data.mkdir(parents=True)
    (world.data / "config.yaml").write_text("# my words\n")
    tell(world.data, "CREATE TABLE schema_version (version)", "INSERT INTO schema_version VALUES (22)")
    tell(world.data, "CREATE TABLE words (word)", "INSERT INTO words VALUES ('first')")
    for module in (update, services):
        monkeypatch.setattr(module, "run", world.systemctl)
        monkeypatch.setattr(module, "UNITS", root / "units")
        monkeypatch.setattr(module, "STARTED", world.started)
    for name, value in {
        "as_user": world.as_user,
        "read_home": world.read_home,
        "write_home": world.write_home,
        "execute": world.state,
        "CURRENT": world.current,
        "PREVIOUS": root / "opt" / "previous",
        "UPDATE_COPIES": root / "saved",
        "OWN_NOTES": root / "notes",
        "MANAGED": root / "managed",
        "FACTS": root / "facts.json",
        "IMAGE_CURRENT": world.image_record,
        "ENGINE": str(root / "engine"),
        "compose": world,
        "journal": lambda *_: ["  its last words"],
        "shutil": SimpleNamespace(copy2=counted(world, shutil.copy2), rmtree=counted(world, shutil.rmtree)),
        "point": counted(world, update.point),
    }.items():
        monkeypatch.setattr(update, name, value)
    for name, value in {
        "check_gateway": world.check_gateway,
        "prompt": world.prompt,
        "check_dashboard": lambda *_: None,
        "check_unit": lambda *_: None,
    }.items():
        monkeypatch.setattr(verify, name, value)
    monkeypatch.setattr(state, "sync", lambda _: None)
    monkeypatch.setattr(records, "HERE", root / "records.json")
    monkeypatch.setattr(records, "OWNER", os.geteuid())
    return world


def with_a_backup(root: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The agent runs, has a backup of its first word, and has learned a second one since."""
    world = made(root, monkeypatch)
    world.configure(OLD)
    backups.make(world.subject())
    tell(world.data, "INSERT INTO words VALUES ('second')")
    world.done.clear()
    return world


def counted(world: World, work: Callable[..., Any]) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        world.change(work.__name__)
        return work(*arguments, **options)

    return step
