"""Docker mode's engine phase with its tools under control: each step fails once, read as a person would.

The tools are played: an engine that is not there yet is installed, started and asked, as Debian's is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from applications.hermes.guest import backend, engine
from applications.hermes.phases import render_agent
from provisioning.guest import common
from provisioning.guest.words import BAR
from provisioning.job import LOG_TAIL_LINES
from tests.settings import DOCKER, cattle

WORDS = [f"a line of its output, the {number}." for number in range(40)]
REASON = "the true reason, in its own words"
IMAGE = "registry.example.org/hermes-agent:v1@sha256:" + "0123456789abcdef" * 4
# Where the words in the file `fails` are among those of the call, it fails; else it does what the rest says.
TOOL = """#!/bin/bash
call="{name} $*"
printf '%s\\n' "$call" >>{root}/calls
fails=$(cat {root}/fails)
if [ -n "$fails" ] && [[ $call =~ $fails ]]; then
  cat {root}/words >&2
  exit "$(cat {root}/status)"
fi
there() {{ [ -e {root}/"$1" ]; }}
here() {{ : >{root}/"$1"; }}
{action}
"""
ANSWER = json.dumps({"version": "0.20.3", "config_version": 37, "dashboard_available": True})
# What the engine's journal holds is the tool's reason, too: systemctl itself only points there.
TOOLS = {
    "ip": """case "$*" in *link) echo '[{"ifname": "eth0", "mtu": 1500}]';; esac""",
    "dpkg": 'case "$*" in --audit) cat {root}/half;; esac',
    "dpkg-query": "exit 1",
    "apt-get": 'case "$*" in *docker-compose*) here compose;; *docker.io*|*podman*) here installed;; esac',
    "apt-cache": "echo '  Candidate: 2.26.1-4'",
    "systemctl": 'case "$*" in "enable --now"*|start*) there installed && here runs || exit 1;; esac',
    "systemd-tmpfiles": "",
    "journalctl": "cat {root}/words",
    "docker": """case "$*" in
  version*) there runs || exit 1; echo 20.10.24;;
  "compose version"*) there compose || exit 1; echo 2.26.1;;
  run*smoke-ok*) echo smoke-ok;;
  run*) printf '%s\\n' '{answer}';;
  info*) echo overlay2;;
  "network ls"*|"image inspect"*) ;;
esac""",
}


class Machine:
    """A guest without an engine, whose folders and tools are below `root`."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        for name in ("bin", "job"):
            (root / name).mkdir()
        (root / "half").touch()
        for name, action in {**TOOLS, "podman": TOOLS["docker"]}.items():
            played = action.replace("{root}", str(root)).replace("{answer}", ANSWER)
            path = root / "bin" / name
            path.write_text(TOOL.format(name=name, root=root, action=played))
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
        monkeypatch.setenv("HP_JOB", str(root / "job"))
        self._move(monkeypatch)

    def _move(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def put(path: Path, text: str, **_: object) -> bool:
            path.write_text(text)
            return True

        def away(url: str, **_: object) -> bytes:
            raise OSError(f"{url}: {REASON}")

        places = {"DAEMON": "daemon.json", "REGISTRIES": "registries.conf", "IMAGE_RECORD": "image.json"}
        for name, file in {**places, "PLUGIN": "plugin", "BUSYBOX": "half", "DOCKER_SOURCE": "docker.sources"}.items():
            monkeypatch.setattr(engine, name, self.root / file)
        podman = replace(backend.PODMAN, compose=("docker", "compose"))
        monkeypatch.setattr(engine, "PODMAN", podman)
        monkeypatch.setattr(engine, "BACKENDS", {"docker": backend.DOCKER, "podman": podman})
        monkeypatch.setattr(engine, "podman_files", lambda: {self.root / "drop-in.conf": ""})
        monkeypatch.setattr(engine, "install_file", put)
        monkeypatch.setattr(engine, "fetch", away)
        monkeypatch.setattr(engine, "INDEX_PAUSES_S", ())
        monkeypatch.setattr(engine, "START_S", 0.0)

    def run(
        self, fails: str = "", *, words: list[str], status: int = 7, name: str = "docker", **given: Any
    ) -> list[str]:
        """What the phase says; its exit status is the last line."""
        (self.root / "fails").write_text(fails)
        (self.root / "words").write_text("".join(f"{line}\n" for line in words))
        (self.root / "status").write_text(str(status))
        usual = {**DOCKER, "agentBackend": name, "agentImage": IMAGE}
        plan = render_agent(cattle(**usual, **given).agent)
        for file in plan.files:
            path = self.root / "job" / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
        (self.root / "calls").write_text("")
        ended = engine.main()
        said = self._capsys.readouterr()
        return [*said.out.splitlines(), *said.err.splitlines(), str(ended)]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    return Machine(tmp_path, monkeypatch, capsys)


def test_nothing_fails(machine: Machine) -> None:
    said = machine.run(words=[])
    assert said[-2:] == [f"image: Hermes 0.20.3 in {IMAGE}", "0"], said
    assert json.loads((machine.root / "job" / "result.json").read_text())["engine"] == "20.10.24"


@pytest.mark.parametrize(
    ("given", "user"), [({}, "10000:10000"), ({"agentUid": 12000, "agentGid": 13000}, "12000:13000")], ids=str
)
def test_the_image_is_asked_as_the_agents_user(given: dict[str, Any], user: str, machine: Machine) -> None:
    machine.run(words=[], **given)
    [asked] = [call for call in (machine.root / "calls").read_text().splitlines() if "--entrypoint python" in call]
    assert f" --user {user} " in asked


class Step(NamedTuple):
    """The call that fails, what it was for, and what to do. `half`: packages of an earlier run are half configured."""

    fails: str
    what: str
    remedy: str
    backend: str = "docker"
    half: bool = False


STEPS = [
    Step("ip -json link", "`ip -json link` failed with 7", common.REPEAT),
    Step("dpkg --audit", "`dpkg --audit` failed with 7", common.REPEAT),
    Step(
        "dpkg --configure",
        "dpkg can't finish what an earlier run",
        "run: dpkg --configure -a",
        half=True,
    ),
    Step("apt-get .*update", "apt-get update failed", "Mend what is named above"),
    Step("apt-get .*install .*docker.io", "apt-get install failed", "Mend what is named above"),
    Step("apt-get .*install docker-compose", "apt-get install failed", "Mend what is named above"),
    Step("apt-get .*install busybox", "apt-get install failed", "Mend what is named above"),
    Step("systemctl enable", "Docker is installed, but does not start", "nesting=1,keyctl=1"),
    Step("systemctl start", "Docker is installed, but does not start", "nesting=1,keyctl=1"),
    Step("docker version", "the Docker engine does not answer 0 s after", "nesting=1,keyctl=1"),
    Step("docker import", "Docker is installed, but can't make a first image", "nesting=1,keyctl=1"),
    Step("docker run .*smoke", "but a first container does not start", "nesting=1,keyctl=1"),
    Step("docker info", "`docker info --format {{.Driver}}` failed with 7", common.REPEAT),
    Step("docker pull", f"the image {IMAGE} can't be pulled", "Check the guest's network"),
    Step("docker run .*python", "its agent does not start", "has to keep upstream's contract"),
    Step("systemctl daemon-reload", "`systemctl daemon-reload` failed with 7", common.REPEAT, "podman"),
    Step("systemd-tmpfiles", "failed with 7", common.REPEAT, "podman"),
    Step("podman network ls", "failed with 7", common.REPEAT, "podman"),
    Step("podman network create", "network hermes-stack can't be made", "nesting=1,keyctl=1", "podman"),
]


@pytest.mark.parametrize("step", STEPS, ids=[step.fails for step in STEPS])
def test_a_step_that_fails_ends_with_the_tools_own_last_words(machine: Machine, step: Step) -> None:
    if step.half:
        (machine.root / "half").write_text("The following packages are only half configured\n")
    if step.backend == "podman":
        (machine.root / "compose").touch()
    said = machine.run(step.fails, words=[*WORDS, REASON], name=step.backend)
    assert said[-1] == "1", said
    # What a person gets to see: the last lines of the log.
    shown = said[:-1][-LOG_TAIL_LINES:]
    assert step.remedy in shown[-1]
    assert shown[-7:-1] == [f"{BAR}{line}" for line in [*WORDS[-5:], REASON]], "its last lines, whole and in order"
    [head] = [line for line in shown if line.startswith("error: ")]
    assert step.what in head
    assert not (machine.root / "image.json").exists()


CAUSES = [
    # What the engine says (moby#51405 and moby's own texts), and what to do about that.
    ("docker import", "open /var/lib/docker/tmp/x: no space left on device", "raise cattleDisk"),
    ("systemctl start", "failed to start daemon: mkdir /var/lib/docker: no space left on device", "raise cattleDisk"),
    ("docker run .*smoke", "open sysctl net.ipv4.ip_unprivileged_port_start file: permission denied", "moby#51405"),
    ("docker run .*smoke", 'error mounting "proc" to rootfs: operation not permitted', "nesting=1,keyctl=1"),
    ("docker run .*smoke", "unable to create session key: disk quota exceeded", "kernel.keys.maxkeys"),
    ("docker run .*python", "unable to create session key: disk quota exceeded", "kernel.keys.maxkeys"),
    ("docker pull", "toomanyrequests: You have reached your unauthenticated pull rate limit.", "run again later"),
    ("docker pull", "x509: certificate has expired or is not yet valid: current time 1970", "the guest's clock"),
    ("docker pull", "x509: certificate signed by unknown authority", "agentCaFile"),
    ("docker pull", "failed to register layer: lchown /x: invalid argument", "take another agentImage"),
    ("docker pull", "open /var/lib/docker/x: permission denied", "is not allowed to do that"),
    ("docker pull", "denied: requested access to the resource is denied", "wants a login"),
    ("docker pull", "dial tcp: lookup registry.example.org: no such host", "Check the guest's network"),
]


@pytest.mark.parametrize(("fails", "words", "remedy"), CAUSES, ids=[f"{call}: {remedy}" for call, _, remedy in CAUSES])
def test_the_remedy_follows_from_the_cause(machine: Machine, fails: str, words: str, remedy: str) -> None:
    # 125: the engine's own failure, not that of what it was to start (docker-run(1)).
    said = machine.run(fails, words=[words], status=125)
    assert remedy in " ".join(said[-10:]), said
    assert words in " ".join(said)
    assert "upstream's contract" not in " ".join(said)


def test_a_pull_that_may_come_right_is_tried_again_and_another_not(machine: Machine) -> None:
    machine.run("docker pull", words=["dial tcp: i/o timeout"])
    assert (machine.root / "calls").read_text().count("docker pull") == engine.PULL_ATTEMPTS
    machine.run("docker pull", words=["manifest unknown: manifest unknown"])
    assert (machine.root / "calls").read_text().count("docker pull") == 1


def test_a_compose_that_can_not_be_had_or_does_not_run_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.root / "bin" / "apt-cache").write_text("#!/bin/sh\necho '  Candidate: (none)'\n")
    said = machine.run(words=[])
    assert "the compose plugin can't be fetched from" in " ".join(said)
    assert REASON in " ".join(said)
    monkeypatch.setattr(engine, "fetch_from_index", lambda: b"archive")
    monkeypatch.setattr(engine, "COMPOSE_SHA256", "f1a9c2")
    assert "expected f1a9c2. It was not installed." in " ".join(machine.run(words=[]))
    monkeypatch.setattr(engine, "COMPOSE_SHA256", hashlib.sha256(b"archive").hexdigest())
    monkeypatch.setattr(engine, "member_of", lambda *_: b"elf")
    said = machine.run("compose version", words=[*WORDS, REASON])
    assert said[-3] == f"{BAR}{REASON}", said
    assert "compose does not run although" in " ".join(said)
    assert said[-2].startswith(f"Remove {machine.root}/plugin and run again")
