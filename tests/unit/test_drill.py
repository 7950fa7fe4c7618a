"""A drill: which settings it takes, what it may reach, when it passes, and what it removes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from applications.hermes import drill
from applications.hermes.commands import COMMANDS
from applications.hermes.drill import DrillError, Engine, Left
from applications.hermes.guest import drill as in_guest
from applications.hermes.guest import drilled
from applications.hermes.guest.copies import Snapshot
from applications.hermes.guest.inputs import Drill, DrillContainer, Place
from applications.hermes.held import Database, Held, agents_python
from applications.hermes.settings import AgentStack
from provisioning.console import PROJECT
from provisioning.guest.common import Refusal
from provisioning.ssh import CommandResult
from proxmox.ownership import render_notes
from settings.read import read_stack, usable_settings
from tests.settings import DOCKER, ENVIRONMENT, MODEL, cattle

NAME = "20261128T033000Z-0.20.3"
HELD = Held(
    sessions=frozenset({"a", "b"}),
    messages=8,
    memories={"SOUL.md": "1", "memories/MEMORY.md": "2"},
    cron=frozenset(),
    skills=frozenset(),
    databases={"state.db": Database("22", "wal", True)},
    config_version=33,
    unknown_keys=frozenset(),
)


def made(address: str | None = None, **config: Any) -> dict[str, Any]:
    """A drill's settings, by their keys, from those of a cattle."""
    given = {f"{PROJECT}:{key}": value for key, value in {**MODEL, **config}.items()}
    real = cattle(**usable_settings(drill.inward(given), PROJECT))
    content = {"encryptionsalt": "v1:x", "config": given}
    found = drill.settings_of(content, real, vmid=107, address=address, gigabytes=4)
    assert found["encryptionsalt"] == "v1:x"
    return {key.removeprefix(f"{PROJECT}:"): value for key, value in found["config"].items()}


def test_nothing_of_the_settings_leads_out_of_a_drill() -> None:
    secret = {"secure": "v1:abc"}
    found = made(
        cattleVolume="hermes",
        cattleHardwareAddress="BC:24:11:00:00:01",
        cattleHostMounts=[{"source": "/srv/a", "path": "/data"}],
        cattleHostname="h" * 63,
        claim="01234567-89ab-cdef-0123-456789abcdef",
        agentTelegramToken=secret,
        agentTelegramAllowedUsers=["1"],
        agentDashboard=True,
        agentDashboardPassword=secret,
        agentMcpServers={"files": {"command": "npx"}},
        agentExtraPackages=["tree"],
        agentModelKey=secret,
        agentCopyRepository="rest:https://192.0.2.30:8000/",
        agentCopyPassword=secret,
    )
    assert not {key for key in found if key.startswith(("agentCopy", "agentTelegram", "agentMcp", "cattleHost"))} - {
        "cattleHostname"
    }
    assert {key for key in found if key.startswith("agentDashboard")} == {"agentDashboard"}
    assert {key: found[key] for key in ("cattleVolume", "agentDashboard", "cattleStartOnBoot", "agentBackupTimes")} == {
        "cattleVolume": "",
        "agentDashboard": False,
        "cattleStartOnBoot": False,
        "agentBackupTimes": [],
    }
    assert found["cattleVmid"] == 107
    assert found["cattleHostname"] == "h" * 57 + "-drill"
    assert found["agentExtraPackages"] == ["tree", "nftables"]
    assert found["agentModelKey"] == secret
    assert "cattleHardwareAddress" not in found
    # As large as the cattle's, or so that a backup of 4 GB fits three times beside 8 GB of system and build.
    assert found["cattleDisk"] == 20
    # They are settings of a cattle whose home is its own.
    settings = usable_settings({f"{PROJECT}:{key}": value for key, value in found.items()}, PROJECT)
    stack = read_stack("drill-cattle", settings, ENVIRONMENT)
    assert isinstance(stack, AgentStack)
    assert stack.cattle.home_on_root
    assert not stack.agent.variables


def test_a_drill_in_docker_has_the_image_and_nothing_of_the_guests_own() -> None:
    options = {"cpus": 2, "devices": ["/dev/dri"], "gpus": "all", "ports": ["9000:9000"]}
    found = made(
        **DOCKER,
        agentExtraVolumes=["/data:/data"],
        agentExtraOptions=options,
        agentPublishedBindIp="192.168.1.205",
        cattleKeyctl=True,
    )
    assert found["agentImage"] == DOCKER["agentImage"]
    assert found["agentExtraOptions"] == {"cpus": 2}
    assert not {"agentExtraVolumes", "agentPublishedBindIp", "cattleKeyctl"} & set(found)
    # Three times a backup of 4 GB, 6 GB of system, 8 GB for engine and image.
    assert found["cattleDisk"] == 26
    assert "agentExtraOptions" not in made()


@pytest.mark.parametrize(
    ("options", "hosts", "told"),
    [
        ({}, [], None),
        ({}, ["llm:192.0.2.9", "llm:fd00::9"], ["llm:192.0.2.9", "llm:fd00::9"]),
        ({"extra_hosts": ["a:192.0.2.1"]}, ["llm:192.0.2.9"], ["a:192.0.2.1", "llm:192.0.2.9"]),
        ({"extra_hosts": {"a": "192.0.2.1"}}, ["llm:192.0.2.9"], ["a:192.0.2.1", "llm:192.0.2.9"]),
    ],
)
def test_a_container_is_told_where_the_model_is(options: dict[str, Any], hosts: list[str], told: Any) -> None:
    key = f"{PROJECT}:agentExtraOptions"
    found = drill.with_hosts({"config": {key: options}}, hosts)
    assert found["config"][key].get("extra_hosts") == told
    # In bare-metal mode /etc/hosts is all that it takes.
    assert drill.with_hosts({"config": {}}, hosts) == {"config": {}}


def test_keyctl_is_roots_so_root_has_to_be_reached_for_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.cattle.yaml"
    monkeypatch.setattr(drill, "stack_file", lambda *_: file)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # With the dashboard, whose password is a secret that nobody reads here.
    given = {**MODEL, **DOCKER, "agentDashboard": True, "agentDashboardPassword": {"secure": "v1:abc"}}
    config = {f"{PROJECT}:{key}": value for key, value in given.items()}
    file.write_text(yaml.safe_dump({"config": config}))
    with pytest.raises(DrillError, match="only root on the node may set: set nodeSshHostKey"):
        drill.real_settings("cattle")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKRZWfLXhvRJ7JBR4HdTrMs0sFkRwLmZ6AhHTmpGKtiZ"
    file.write_text(yaml.safe_dump({"config": config | {f"{PROJECT}:nodeSshHostKey": key}}))
    assert drill.container_of(drill.real_settings("cattle")[1]) == DrillContainer(
        "docker", DOCKER["agentImage"], 10000, 8642
    )
    assert drill.container_of(cattle()) is None


@pytest.mark.parametrize("backend", ["docker", "podman"])
def test_in_docker_mode_the_images_python_reads_the_home(backend: str) -> None:
    command = agents_python(cattle(**DOCKER, agentBackend=backend), "/opt/hermes/wanted")
    program = command.index("run")
    assert command[program - 1] == backend
    options = {"--network=none", "--cap-drop=ALL", "--user=10000:10000", "--volume=/home/hermes:/home/hermes"}
    pairs = {f"{name}={value}" for name, value in itertools.pairwise(command)} | set(command)
    assert options <= pairs
    assert command[-2:] == ["docker.io/nousresearch/hermes-agent@sha256:" + "0123456789abcdef" * 4, "-"]
    assert agents_python(cattle(), "/opt/b")[-3:] == ["/opt/b/venv/bin/python", "-P", "-"]


STATIC = {"cattleAddress": "192.168.1.205/24", "cattleGateway": "192.168.1.1"}


def test_a_static_address_is_not_taken_twice() -> None:
    with pytest.raises(DrillError, match=r"the cattle's address is static, 192\.168\.1\.205/24"):
        made(**STATIC)
    found = made("192.168.1.206/24", **STATIC)
    assert (found["cattleAddress"], found["cattleGateway"]) == ("192.168.1.206/24", "192.168.1.1")
    assert made("dhcp", **STATIC)["cattleGateway"] == ""
    assert made(cattleAddress="dhcp")["cattleAddress"] == "dhcp"


@pytest.mark.parametrize(
    ("config", "allow", "places"),
    [
        ({}, (), ["192.0.2.20:4000"]),
        ({"agentModelUrl": "https://llm.example/v1"}, (), ["llm.example:443"]),
        ({"agentModelUrl": "http://[fd00::9]/v1"}, (), ["[fd00::9]:80"]),
        ({"agentModelUrl": "", "agentModelProvider": "openrouter"}, ("openrouter.ai:443",), ["openrouter.ai:443"]),
        (
            {
                "agentModelUrl": "",
                "agentModelProvider": "own",
                "agentProviders": {"own": {"base_url": "http://a:1"}},
                "agentFallbackModels": [{"provider": "custom", "model": "m", "base_url": "http://b:2/v1"}],
                "agentAuxiliaryModels": {"vision": {"base_url": "${WHERE}", "model": "m"}},
            },
            (),
            ["a:1", "b:2"],
        ),
    ],
)
def test_only_the_models_are_let_through(config: dict[str, Any], allow: tuple[str, ...], places: list[str]) -> None:
    assert [str(place) for place in drill.model_places(cattle(**config), allow)] == places


def test_a_model_that_no_setting_names_has_to_be_named() -> None:
    stack = cattle(agentModelUrl="", agentModelProvider="openrouter")
    with pytest.raises(DrillError, match="where the model of openrouter is"):
        drill.model_places(stack)
    for wrong in ("openrouter.ai", ":443", "a:b", "a:99999"):
        with pytest.raises(DrillError, match="has to be a host and a port"):
            drill.model_places(stack, [wrong])


def test_a_number_that_no_guest_has() -> None:
    assert drill.free_number(lambda vmid: vmid in (106, 107), 105) == 108
    with pytest.raises(DrillError, match="no VMID from 106 to 205 is free"):
        drill.free_number(lambda _: True, 105)


def test_the_newest_backup_that_is_the_stacks_own() -> None:
    rows = [
        {"name": "20261130T000000Z-1", "standing": "foreign", "partial": False},
        {"name": "20261129T000000Z-1", "standing": "ours", "partial": True},
        {"name": NAME, "standing": "ours", "partial": False, "sum": "0" * 64},
    ]
    assert drill.newest(rows, "cattle")["name"] == NAME
    with pytest.raises(DrillError, match="scripts/agent --stack cattle-b backup"):
        drill.newest(rows[:2], "cattle-b")


def test_a_damaged_backup_is_told_by_its_databases() -> None:
    assert drill.damaged(NAME, HELD, ["state.db"]) == []
    torn = replace(HELD, databases={"state.db": Database("", "", sound=False)})
    assert drill.damaged(NAME, torn, ["state.db", "kanban.db"]) == [
        f"kanban.db, a database of the backup {NAME}, is none",
        f"the backup {NAME} has a damaged database: state.db",
    ]
    assert drill.counted(HELD) == "sessions 2, messages 8, memories 1, databases 1"


# ---- a backup of this machine ---------------------------------------------------------------------------------------


def test_a_file_is_a_folder_or_a_tar_of_one_backup(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    (folder / "data").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    place = tmp_path / "place"
    place.mkdir()
    found = drill.from_file(folder, place)
    assert (found.name, found.total) == (NAME, "")
    with tarfile.open(found.archive) as tar:
        assert {member.name for member in tar} == {NAME, f"{NAME}/data", f"{NAME}/manifest.json"}
    assert drill.from_file(found.archive, place).archive == found.archive
    two = tmp_path / "two.tar"
    with tarfile.open(two, "w") as tar:
        tar.add(folder, arcname=NAME)
        tar.add(folder, arcname="other")
    for wrong in (two, tmp_path / "none", folder / "data", folder / "manifest.json"):
        with pytest.raises(DrillError, match="is no backup: name a folder"):
            drill.from_file(wrong, place)


def snapshot(number: int, stack: str = "cattle") -> dict[str, Any]:
    """A line of `backups copies`."""
    made = Snapshot(f"{number:064x}", stack, f"2026112{number}T033000Z-0.20.3", f"{number}" * 64, 9, "v", "")
    return asdict(made)


@pytest.mark.parametrize(
    ("which", "number"),
    [("latest", 8), (f"{7:064x}", 7), ("20261127T033000Z-0.20.3", 7), ("20261129T033000Z-0.20.3", 9)],
)
def test_a_set_of_the_copy_is_read_where_the_keys_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, which: str, number: int
) -> None:
    asked: list[Any] = []
    lines = [snapshot(9, "other"), snapshot(8), snapshot(7)]
    monkeypatch.setattr(drill, "request_of", lambda *_: contextlib.nullcontext("r"))
    monkeypatch.setattr(drill, "run_phase", lambda *_a, **_k: argparse.Namespace(outputs={"copies": lines}))
    monkeypatch.setattr(drill, "fetch", lambda *given: asked.append(given))
    guest = argparse.Namespace(stack="cattle", target="there")
    found = drill.from_copy(guest, which, tmp_path)  # type: ignore[arg-type]
    assert found == drill.Backup(f"2026112{number}T033000Z-0.20.3", tmp_path / "backup.tar", f"{number}" * 64)
    command = f"/usr/local/lib/hermes-stack/backups dump {number:064x}"
    assert asked == [("there", command, tmp_path / "backup.tar", 9 + (1 << 30))]


def test_a_copy_that_is_not_there_is_told_with_those_that_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [snapshot(8, "other")]
    monkeypatch.setattr(drill, "request_of", lambda *_: contextlib.nullcontext("r"))
    monkeypatch.setattr(drill, "run_phase", lambda *_a, **_k: argparse.Namespace(outputs={"copies": lines}))
    guest = argparse.Namespace(stack="cattle", target="there")
    for which in ("latest", "abcdef"):
        with pytest.raises(DrillError, match=r"(?s)there is no copy .*00000000  20261128T033000Z-0\.20\.3  'other'"):
            drill.from_copy(guest, which, tmp_path)  # type: ignore[arg-type]


# ---- what is removed ------------------------------------------------------------------------------------------------

CLAIM, OTHERS = "01234567-89ab-cdef-0123-456789abcdef", "fedcba98-89ab-cdef-0123-456789abcdef"


def exported(*, claim: str | None = CLAIM, made: bool = True) -> dict[str, Any]:
    resources = []
    if claim:
        resources.append({"type": drill.CLAIM_TYPE, "inputs": {"vmid": 106}, "outputs": {"claim": claim}})
    if made:
        resources.append({"type": drill.CONTAINER_TYPE, "outputs": {}})
    return {"deployment": {"resources": resources}}


def test_what_a_state_tells_of_the_guest() -> None:
    assert drill.left_of(exported()) == Left(CLAIM, 106, True)
    assert drill.left_of(exported(made=False)) == Left(CLAIM, 106, False)
    assert drill.left_of({"deployment": None}) == Left(None, None, False)


@dataclass
class Surroundings:
    """A backend and a node: what is there, and what was done."""

    state: dict[str, Any] | None
    guest: str | None
    """The claim in the notes of CT 106."""
    done: list[str] = field(default_factory=list)

    def said(self, *words: str) -> str:
        if words[:2] == ("stack", "export"):
            return json.dumps(self.state)
        if words[:2] == ("stack", "rm"):
            self.state = None
        self.done.append(" ".join(words[:2]).removesuffix(" --yes"))
        return ""

    def run(self, verb: str, *_options: str, quiet: bool = False) -> None:
        del quiet
        self.done.append(verb)
        if verb == "up":
            self.state = exported()
        elif self.state == exported() and self.guest == CLAIM:
            self.guest = None

    def read_guest(self, _client: object, vmid: int) -> Any:
        assert vmid == 106
        notes = render_notes("words", self.guest) if self.guest else ""
        return argparse.Namespace(config={"description": notes}) if self.guest is not None else None


@pytest.fixture
def surrounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[Surroundings], Surroundings]:
    def put(around: Surroundings) -> Surroundings:
        monkeypatch.setattr(drill, "said", around.said)
        monkeypatch.setattr(drill, "read_guest", around.read_guest)
        monkeypatch.setattr(drill, "known_stacks", lambda: {"drill-cattle"} if around.state else set())
        monkeypatch.setattr(Engine, "run", lambda _self, *words, **how: around.run(*words, **how))
        return around

    return put


@pytest.mark.parametrize(
    ("state", "guest", "done"),
    [
        (exported(), CLAIM, ["cancel", "destroy", "stack rm"]),
        # Killed while Proxmox made the container: the state does not know it, and its notes do.
        (exported(made=False), CLAIM, ["cancel", "up", "destroy", "stack rm"]),
        # Killed before; somebody else's guest has the number.
        (exported(made=False), OTHERS, ["cancel", "destroy", "stack rm"]),
        (exported(claim=None, made=False), None, ["cancel", "destroy", "stack rm"]),
    ],
)
def test_only_the_drills_own_guest_is_removed(
    surrounded: Callable[[Surroundings], Surroundings], tmp_path: Path, state: Any, guest: str | None, done: list[str]
) -> None:
    around = surrounded(Surroundings(state, guest))
    engine = Engine("drill-cattle", tmp_path / "cattle", 0)
    engine.folder.mkdir()
    assert drill.clear(engine, {}, argparse.Namespace(), anyhow=False)  # type: ignore[arg-type]
    assert around.done == done
    assert around.guest == (OTHERS if guest == OTHERS else None)
    assert not engine.folder.exists()
    assert not drill.clear(engine, {}, argparse.Namespace(), anyhow=False)  # type: ignore[arg-type]


def test_a_drill_of_another_machine_is_left_alone(
    surrounded: Callable[[Surroundings], Surroundings], tmp_path: Path
) -> None:
    around = surrounded(Surroundings(exported(), CLAIM))
    engine = Engine("drill-cattle", tmp_path / "cattle", 0)
    with pytest.raises(DrillError, match="--clean-up"):
        drill.clear(engine, {}, argparse.Namespace(), anyhow=False)  # type: ignore[arg-type]
    assert (around.done, around.guest) == ([], CLAIM)
    assert drill.clear(engine, {}, argparse.Namespace(), anyhow=True)  # type: ignore[arg-type]
    assert around.guest is None


def test_one_drill_of_a_stack_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drill, "PLACE", tmp_path)
    with drill.a_place("cattle"):
        with drill.a_place("cattle-b"):
            pass
        with pytest.raises(DrillError, match="another drill of cattle is at work"), drill.a_place("cattle"):
            pass


def test_an_engine_that_outlives_its_drill_keeps_the_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drill, "PLACE", tmp_path)
    with drill.a_place("cattle") as (_, lock):
        outlives = subprocess.Popen(["sleep", "60"], pass_fds=(lock,))
    try:
        with pytest.raises(DrillError, match="what a killed one has started"), drill.a_place("cattle"):
            pass
    finally:
        outlives.kill()
        outlives.wait()
    with drill.a_place("cattle"):
        pass


def test_a_note_that_the_cattle_does_not_take_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def run(self, *_: object, **__: object) -> CommandResult:
            return CommandResult(1, b"", b"no space left")

        def close(self) -> None: ...

    monkeypatch.setattr(drill, "connect", lambda _target: Full())
    nothing: Any = argparse.Namespace(target=None)
    attempt = drill.Attempt(nothing, nothing, {}, nothing, nothing)
    attempt.backup = NAME
    attempt.note("")
    assert "can't be noted down in the cattle: no space left" in capsys.readouterr().err


# ---- in the guest ---------------------------------------------------------------------------------------------------


def test_the_rules_let_the_model_through_and_nothing_else() -> None:
    text = in_guest.rules({Place("llm", 443): ["10.0.0.9", "fd00::9"]})
    assert text.count("policy drop;") == 3
    ways = [line for line in text.splitlines() if line.endswith("accept")]
    assert [line for line in ways if "icmpv6" not in line and '"lo"' not in line] == [
        "tcp dport 22 accept",
        "ip saddr 10.0.0.9 tcp sport 443 accept",
        "ip6 saddr fd00::9 tcp sport 443 accept",
        "tcp sport 22 tcp flags & (syn | ack) != syn accept",
        "ip daddr 10.0.0.9 tcp dport 443 accept",
        "ip6 daddr fd00::9 tcp dport 443 accept",
    ]
    # No state is kept: what comes in opens no way out.
    assert "ct state" not in text
    # The engine's tables stay: without them no container has a network.
    assert "flush" not in text


def test_a_container_reaches_the_model_and_the_guest_its_api() -> None:
    text = in_guest.rules({Place("llm", 443): ["10.0.0.9"]}, in_guest.Bridge("docker0", 8642))
    assert [line for line in text.splitlines() if "docker0" in line] == [
        'iifname "docker0" tcp sport 8642 tcp flags & (syn | ack) != syn accept',
        'oifname "docker0" tcp dport 8642 accept',
        'oifname "docker0" icmp type destination-unreachable accept',
        'iifname "docker0" ip daddr 10.0.0.9 tcp dport 443 accept',
        'oifname "docker0" ip saddr 10.0.0.9 tcp sport 443 accept',
    ]
    forward = text[text.index("chain forward") :]
    assert forward.index("saddr 10.0.0.9") < forward.index("reject")


@pytest.mark.parametrize(("backend", "network"), [("docker", "bridge"), ("podman", "hermes-stack")])
def test_the_engine_tells_which_bridge_is_the_containers(
    monkeypatch: pytest.MonkeyPatch, backend: str, network: str
) -> None:
    said = ["cni-podman1\n"]
    calls: list[tuple[str, ...]] = []

    def run(*words: str) -> str:
        calls.append(words)
        return said[0]

    monkeypatch.setattr(in_guest, "run", run)
    container = DrillContainer(backend, "i", 10000, 8642)
    assert in_guest.bridge_of(container) == in_guest.Bridge("cni-podman1", 8642)
    assert calls[0][-1] == network
    for said[0] in ("", "<no value>\n", 'a" accept', "a\nb"):
        with pytest.raises(Refusal, match="does not say which interface"):
            in_guest.bridge_of(container)


MODELS, OTHERS_PLACE = [["192.0.2.9", 4000]], [["192.0.2.5", 22]]
OPEN = "the walls do not hold: the agent would reach '192.0.2.5:22'. It was not started."
SILENT = "the model's endpoint 192.0.2.9:4000 does not answer here. The agent was not started."
IN_DOCKER = DrillContainer("docker", "i@sha256:0", 10000, 8642)


@pytest.mark.parametrize(
    ("container", "outside", "inside", "words"),
    [
        (None, [*MODELS, *OTHERS_PLACE], [], OPEN),
        (None, [], [], SILENT),
        (None, MODELS, [], None),
        # The guest's walls hold, and a container's packets are forwarded past them; or it reaches nothing at all.
        (IN_DOCKER, MODELS, [*MODELS, *OTHERS_PLACE], OPEN),
        (IN_DOCKER, MODELS, [], SILENT),
        (IN_DOCKER, [*MODELS, *OTHERS_PLACE], MODELS, OPEN),
        (IN_DOCKER, MODELS, MODELS, None),
    ],
)
def test_no_agent_starts_behind_walls_that_were_not_proved(
    monkeypatch: pytest.MonkeyPatch, container: Any, outside: list[Any], inside: list[Any], words: str | None
) -> None:
    """`outside`, `inside`: what a process of the guest reaches, and one in a container, once the network is closed."""
    closed: list[Any] = []

    def asked(reached: list[Any], given: str) -> str:
        return json.dumps([place for place in json.loads(given) if place in reached or not closed])

    def in_image(*words: Any, network: str, **_: Any) -> str:
        # Nothing of the image runs with an open network.
        assert closed
        assert network == "bridge"
        return asked(inside, words[3])

    monkeypatch.setattr(in_guest, "bridge_of", lambda _: in_guest.Bridge("docker0", 8642))
    monkeypatch.setattr(in_guest, "close_network", lambda *given: closed.append(given))
    monkeypatch.setattr(in_guest, "as_user", lambda *command, **_: asked(outside, command[5]))
    monkeypatch.setattr(in_guest, "in_image", in_image)
    facts = argparse.Namespace(user="hermes", uid=10000)
    given = Drill(facts, NAME, "", "", (Place("192.0.2.9", 4000),), (Place("192.0.2.5", 22),), container)  # type: ignore[arg-type]
    if words is None:
        assert in_guest.wall_off(given) == in_guest.Walls(["192.0.2.5:22"], [])
        return
    with pytest.raises(Refusal) as refused:
        in_guest.wall_off(given)
    assert str(refused.value) == words


def test_names_of_the_model_are_told_and_addresses_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = (Place("llm.example", 443), Place("192.0.2.9", 4000))
    found = {model[0]: ["192.0.2.7", "fd00::7"], model[1]: ["192.0.2.9"]}
    monkeypatch.setattr(in_guest, "addresses_of", lambda _: found)
    monkeypatch.setattr(in_guest, "close_network", lambda *_: None)
    monkeypatch.setattr(in_guest, "reached", lambda _given, places, *_ways, **_how: places)
    facts = argparse.Namespace(user="hermes")
    walls = in_guest.wall_off(Drill(facts, NAME, "", "", model, ()))  # type: ignore[arg-type]
    assert walls.hosts == ["llm.example:192.0.2.7", "llm.example:fd00::7"]


def test_what_is_tried_is_another_machine() -> None:
    assert in_guest._resolved(Place("127.0.0.1", 8006)) == []
    assert in_guest._resolved(Place("no-such-name.invalid", 8006)) == []
    assert in_guest._resolved(Place("192.0.2.5", 22)) == ["192.0.2.5"]


def test_how_the_last_drill_went_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(drilled, "HERE", tmp_path / "backups.json")
    assert drilled.last_drill() == "none yet: scripts/agent drill"
    when = datetime(2026, 11, 28, 4, 5, tzinfo=UTC)
    drilled.noted_path().write_text(drilled.note_line(when, NAME, ""))
    assert drilled.last_drill() == f"passed: 2026-11-28 04:05 UTC, {NAME}"
    drilled.noted_path().write_text(drilled.note_line(when, NAME, "it is\n torn"))
    assert drilled.last_drill() == f"FAILED: 2026-11-28 04:05 UTC, {NAME}: it is torn"


def test_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    COMMANDS["drill"].arguments(parser)
    found = parser.parse_args(["--vmid", "110", "--allow", "a:1", "--allow", "b:2"])
    assert (found.vmid, found.allow, found.clean_up) == (110, ["a:1", "b:2"], False)
    assert found.from_copy is None
    assert parser.parse_args(["--from-copy"]).from_copy == "latest"
    assert parser.parse_args(["--from-copy", "0123abcd"]).from_copy == "0123abcd"
    with pytest.raises(SystemExit):
        parser.parse_args(["--from-copy", "--file", "home.tar"])
