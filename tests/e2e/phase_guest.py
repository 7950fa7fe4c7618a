"""A lab with one container, driven by the phases directly, and a line to it that can be cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.phases import (
    EXTRAS,
    Built,
    own_uv,
    render_agent,
    render_backups,
    render_baseline,
    render_configure,
    render_verify,
)
from applications.hermes.settings import AgentStack
from lab.bench import Bench, a_bench
from lab.services.model import MODEL
from lab.services.releases import Release
from lab.services.source import SOURCE_CACHE, Source, ensure_source
from provisioning.errors import PhaseFailed
from provisioning.plans import PhasePlan, run_phase
from provisioning.ssh import SshTarget, connect, wait_for_ssh
from settings.cattle import CattleSettings
from settings.section import default_of
from tests.listening import end_listening
from tests.settings import cattle

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")

CHECKOUT = Path(__file__).resolve().parents[2]
MODEL_KEY = "sk-e2e-canary-5f2c9d"
HOME = default_of(CattleSettings, "mount_path")


@dataclass
class Guest(Bench):
    """A bench of the lab whose guest is driven by the phases."""

    source: Source = field(kw_only=True)
    declared: AgentStack | None = None
    """What `configure` was made of last, and `verify` looks for."""

    @property
    def repository_url(self) -> str:
        return self.git_url(self.source.repository)

    @property
    def agent_git_name(self) -> str:
        return f"{self.release.tag}-{self.release.commit[:8]}"

    @property
    def release(self) -> Release:
        """The release that is installed: the newest of the repository that is served."""
        return self.source.newest

    def target(self) -> SshTarget:
        key = wait_for_ssh(self.address, private_key_file=str(self.key), timeout_s=60, on_line=lambda _: None)
        return SshTarget(self.address, key, private_key_file=str(self.key))

    def shell(self, command: str, timeout_s: float = 60, stdin: bytes = b"") -> str:
        """What a command prints; it has to succeed."""
        with contextlib.closing(connect(self.target())) as connection:
            result = connection.run(command, timeout_s=timeout_s, stdin=stdin)
        said = result.stdout.decode(errors="replace")
        assert result.status == 0, said[-3000:] + result.stderr.decode(errors="replace")
        return said

    def started(self, plan: PhasePlan) -> int:
        """How often systemd started the job of this plan."""
        text = self.shell(f"journalctl --unit {plan.job.unit} --output cat --no-pager | grep -c '^Started' || true")
        return int(text)

    # -- the plans of the tests --------------------------------------------------------------------------------------

    def stack(self, **given: Any) -> AgentStack:
        """The settings of a stack with the lab's model and release; `given`: what differs, by its keys.

        With the API, by which a prompt takes a second instead of four. Without the dashboard, whose interface a
        checkout has only where it is built (agentWebUi). Without backups on schedule: a test may run at that time.
        """
        usual = {
            "agentModelUrl": self.model.base_url,
            "agentModel": MODEL,
            "agentModelKey": MODEL_KEY,
            "agentRepository": self.repository_url,
            "agentTag": self.release.tag,
            "agentCommit": self.release.commit,
            "agentVersion": self.release.version,
            "agentWebUi": "prebuilt",
            "agentDashboard": False,
            "agentApi": True,
            "agentBackupTimes": [],
            "cattleMountPath": self.home,
        }
        return cattle(**{**usual, **given})

    def baseline(self, **given: Any) -> PhasePlan:
        return render_baseline(self.stack(**given))

    def agent(self, extras: tuple[str, ...] = EXTRAS, **given: Any) -> PhasePlan:
        return render_agent(self.stack(**given).agent, own_uv(), extras)

    def configure(self, directory: str | None = None, unfinished_update: str | None = None, **given: Any) -> PhasePlan:
        return self.configured(self.stack(**given), Built(directory, unfinished_update))

    def configured(self, stack: AgentStack, built: Built | None = None) -> PhasePlan:
        """The plan of other settings; they are what `verify` looks for from now on."""
        self.declared = stack
        return render_configure(stack, built or Built())

    def proof(self, **asked: Any) -> PhasePlan:
        """The verify phase; `asked`: fields of its Probe."""
        return render_verify(self.declared or self.stack(), **asked)

    def run(self, plan: PhasePlan) -> dict[str, object]:
        return run_phase(self.target(), plan, on_line=lambda _: None, timeout_s=300).outputs

    def verify(self, **asked: Any) -> tuple[int, str, str]:
        """Exit status, the result as JSON, and what was said; 1 and no result when something is not as declared."""
        plan = self.proof(**asked)
        lines: list[str] = []
        try:
            result = run_phase(self.target(), plan, on_line=lines.append, timeout_s=240)
        except PhaseFailed as failed:
            return 1, "", f"{failed}"
        return 0, json.dumps(result.outputs), "\n".join(lines)


@contextlib.contextmanager
def a_guest(state: Path, home: str = HOME) -> Iterator[Guest]:
    """A lab in the folder `state`, its container running with the volume at `home`; ended with the block.

    What is installed in it is of the lab's repository: upstream's where that is there, its stand-in elsewhere.
    """
    source = ensure_source(SOURCE_CACHE, lambda _: None)
    make = partial(Guest, source=source)
    with a_bench(make, state, home, model_key=MODEL_KEY, repository=source.repository) as guest:
        yield guest


def made_of(
    shell: Callable[[str], str], build: str, name: str, edits: dict[str, tuple[str, str]], build_id: str = ""
) -> str:
    """A build of version `name` beside `build`, with other code: per file of the code what is replaced by what.

    Answers its folder. `build_id`: what the agent phase has to find to take it for its own.
    """
    folder = f"/opt/hermes/{name}"
    program = """
import glob, json, os, sys
folder, name, build_id, edits = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
path = os.path.join(folder, "install.json")
told = json.load(open(path))
os.unlink(path)  # the other build has it, too
json.dump({**told, "version": name, "directory": folder, "build_id": build_id}, open(path, "w"))
def new_text(path, old, new):
    text = open(path).read()
    assert old in text, (path, old)
    mode = os.stat(path).st_mode
    os.unlink(path)
    open(path, "w").write(text.replace(old, new))
    os.chmod(path, mode)
(site,) = glob.glob(os.path.join(folder, "venv/lib/python3*/site-packages"))
code = os.path.join(folder, "hermes-agent")
version = {"hermes_cli/__init__.py": (f'__version__ = "{told["version"]}"', f'__version__ = "{name}"')}
if os.path.isdir(code):
    for path in (os.path.join(site, "hermes-agent.pth"), os.path.join(folder, "venv/bin/hermes")):
        new_text(path, told["directory"], folder)
else:
    code = site
    version[f"hermes_agent-{told['version']}.dist-info/METADATA"] = (f"Version: {told['version']}", f"Version: {name}")
for path, (old, new) in {**version, **edits}.items():
    new_text(os.path.join(code, path), old, new)
"""
    shell(f"rm -rf {folder} && cp -al {build} {folder}")
    arguments = " ".join(map(shlex.quote, (folder, name, build_id or name, json.dumps(edits))))
    shell(f"python3 -c {shlex.quote(program)} {arguments}")
    return folder


def follow_the_remedy_for_a_stop(guest: Guest, asks_state: str, unit: str) -> None:
    """A service is stopped by hand: the last step of an `up` fails, and what its text says to do makes it pass."""
    guest.shell(f"systemctl stop {unit}", 200)
    said = guest.shell(f"sh -c {shlex.quote(asks_state)} 2>&1; echo status $?")
    assert said.endswith("status 1\n")
    found = re.search(r"Start it: scripts/agent ssh ([^;]+);", said)
    assert found is not None, said
    guest.shell(found[1], 200)
    said = guest.shell(f"sh -c {shlex.quote(asks_state)} 2>&1; echo status $?")
    assert said.endswith("status 0\n"), said


@dataclass
class Proxy:
    """A TCP relay in front of sshd whose connections can be cut, or left to rot."""

    host: str
    port: int = 22
    stalled: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    def __post_init__(self) -> None:
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.connections += 1
                far = socket.create_connection((self.host, self.port), timeout=10)
                far.settimeout(None)
                self._pairs.append((near, far))
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._relay, args=(one, other), daemon=True).start()

    def _relay(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                if self.stalled.is_set():
                    continue  # lost on the way, as by a broken switch
                other.sendall(data)

    def cut(self) -> None:
        """Reset every connection, as a restarted firewall does."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        end_listening(self._server, self._thread)
        self.cut()


def backups_plan(*words: str) -> PhasePlan:
    """As `scripts/agent` asks for it: a request of its own."""
    return render_backups(*words, request=uuid.uuid4().hex)


def run_cut(guest: Guest, plan: PhasePlan, *cues: str) -> dict[str, object]:
    """Run a phase whose line is cut whenever it says one of these for the first time.

    It has to be carried out once, and every line be heard once; its outcome is the phase's.
    """
    started, lines, left = guest.started(plan), [], set(cues)
    proxy = Proxy(guest.address)

    def hear(line: str) -> None:
        lines.append(line)
        if found := {cue for cue in left if line.startswith(cue)}:
            left.difference_update(found)
            proxy.cut()

    try:
        return run_phase(through(proxy, guest.target()), plan, on_line=hear, timeout_s=300).outputs
    finally:
        proxy.close()
        assert not left, lines
        assert any("connecting again" in line for line in lines), lines
        assert guest.started(plan) == started + 1
        heard = [line for line in lines if line.startswith(cues)]
        assert len(heard) == len(set(heard)), lines


def through(proxy: Proxy, target: SshTarget) -> SshTarget:
    return replace(target, host=proxy.address[0], port=proxy.address[1])
