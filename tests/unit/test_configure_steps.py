"""The configure phase with its tools under control: each step fails once, and is read as a person would.

The phase is the real one, as it is delivered: only its folders are below the test's own. The tools are played; the
agent that reads what is declared is a package of a few lines with the names that the phase asks for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from applications.hermes.guest.names import GATEWAY
from applications.hermes.phases import render_configure
from provisioning.guest.common import REPEAT
from provisioning.guest.words import BAR
from provisioning.job import LOG_TAIL_LINES
from tests.endpoint import WORKS, Endpoint, an_endpoint
from tests.listening import free_port
from tests.settings import cattle, unchecked

PYTHON = Path("/usr/bin/python3")
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="the phase takes Debian's own Python"),
    pytest.mark.skipif(os.geteuid() != 0, reason="what the phase writes is root's"),
]

WORDS = [f"a line of its output, the {number}." for number in range(40)]
REASON = "the true reason, in its own words"
KEY = "canary0123456789abcdef0123456789abcdef"
VERSION = "0.20.3"

# Where the words in the file `fails` are among those of the call, it fails; else it does what the rest says.
TOOL = """#!/bin/bash
call="{name} $*"
printf '%s\\n' "$call" >>{root}/calls
fails=$(cat {root}/fails)
if [ -n "$fails" ] && [[ $call =~ $fails ]]; then
  cat {root}/words >&2
  exit 7
fi
{action}
"""
BECOME = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
TOOLS = {
    "runuser": BECOME,
    "systemctl": 'case "$*" in *MainPID*) echo 0;; show*) echo inactive;; esac',
    "journalctl": "cat {root}/words",
    "ss": "",
    "sync": "",
    "update-ca-certificates": "",
}
AGENT = {
    "hermes_cli/__init__.py": "",
    "hermes_cli/config.py": 'DEFAULT_CONFIG = {"model": {}, "terminal": {}, "platforms": {}}\n',
    "hermes_cli/env_loader.py": (
        "import os\n"
        "def _load_dotenv_with_fallback(path, override):\n"
        "    for line in path.read_text().splitlines()[1:]:\n"
        "        name, _, value = line.partition('=')\n"
        '        os.environ[name] = value.strip("\'")\n'
    ),
    "hermes_cli/managed_scope.py": (
        "import json, os\n"
        "from pathlib import Path\n"
        "def _text(name): return Path(os.environ['HERMES_MANAGED_DIR'], name).read_text().partition('\\n')[2]\n"
        "def load_managed_config(): return json.loads(_text('config.yaml'))\n"
        "def load_managed_env():\n"
        "    pairs = (line.partition('=') for line in _text('.env').splitlines())\n"
        '    return {name: value.strip("\'") for name, _, value in pairs}\n'
    ),
}


@dataclass
class Machine:
    """A guest in which the agent phase has run; its folders and tools are below `root`."""

    root: Path
    model: Endpoint

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def tool(self, name: str, action: str) -> None:
        path = self.root / "bin" / name
        path.write_text(TOOL.format(name=name, root=self.root, action=action.replace("{root}", str(self.root))))
        path.chmod(0o755)

    def install(self) -> None:
        build = self.place("/opt/hermes/v1")
        for name, text in AGENT.items():
            (build / "code" / name).parent.mkdir(parents=True, exist_ok=True)
            (build / "code" / name).write_text(text)
        python = build / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nPYTHONPATH={build}/code exec {PYTHON} "$@"\n')
        python.chmod(0o755)
        told = {"version": VERSION, "directory": str(build), "config_version": 37, "dashboard_available": True}
        (build / "install.json").write_text(json.dumps(told))
        (self.place("/opt/hermes/wanted")).symlink_to(build)

    def run(
        self, fails: str = "", *, ca: str = "", dashboard: bool = False, user: str = "root", **given: Any
    ) -> list[str]:
        """What the phase says; its exit status is the last line."""
        (self.root / "fails").write_text(fails)
        (self.root / "words").write_text("".join(f"{line}\n" for line in [*WORDS, REASON]))
        (self.root / "calls").write_text("")
        stack = unchecked(
            cattle(
                **{
                    **{"agentModelUrl": self.model.url, "agentModelKey": KEY, "cattleVolume": ""},
                    **{"agentDashboard": dashboard, "agentApi": True, **given},
                }
            ),
            agent__model__authorities=ca,
            agent__service__user=user,
            cattle__mount_path=str(self.root / "home"),
        )
        plan, job = render_configure(stack), self.root / "job"
        shutil.rmtree(job, ignore_errors=True)
        for file in plan.files:
            (job / file.path).parent.mkdir(parents=True, exist_ok=True)
            (job / file.path).write_text(self._here(file.path, file.content.decode()))
        secrets = self.root / "secrets"
        secrets.write_text(json.dumps(dict(plan.secrets)))
        done = subprocess.run(
            [PYTHON, "-IB", job / "main"],
            env={"HP_JOB": str(job), "HP_SECRETS": str(secrets), "PATH": f"{self.root}/bin:/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return [*done.stdout.splitlines(), str(done.returncode)]

    def files(self) -> dict[str, bytes]:
        """What the phase writes: the configuration, the home, the programs."""
        folders = (self.place(path) for path in ("/etc", "/home", "/usr", "/var"))
        found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    def _here(self, path: str, text: str) -> str:
        """The programs with other folders; state.py works as any other account than root's."""
        if not path.endswith(".py"):
            return text
        text = re.sub(r'"/(etc|opt|var/lib|usr/local)/', rf'"{self.root}/\1/', text)
        return text.replace("os.geteuid() == 0", "False")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with an_endpoint() as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path, endpoint: Endpoint) -> Machine:
    endpoint.answers["/v1/chat/completions"] = WORKS
    made = Machine(tmp_path, endpoint)
    for folder in ("bin", "home/.hermes", "home/workspace", "etc/systemd/system", "etc/ssl/certs", "usr/local/bin"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("usr/local/share/ca-certificates", "var/lib/hermes-provision"):
        (tmp_path / folder).mkdir(parents=True)
    made.place("/etc/ssl/certs/ca-certificates.crt").touch()
    for name, action in TOOLS.items():
        made.tool(name, action)
    made.install()
    return made


def test_nothing_fails(machine: Machine) -> None:
    said = machine.run(ca="a certificate\n")
    assert said[-1] == "0", "\n".join(said)
    assert "systemctl restart hermes-gateway.service" in (machine.root / "calls").read_text()
    assert json.loads((machine.root / "job" / "result.json").read_text())["restarted"] == [GATEWAY]


class Step(NamedTuple):
    """The call that fails, and what it was for. `before`: what makes the phase come to it."""

    fails: str
    what: str
    before: Callable[[Machine], object] = lambda _: None


def with_a_dashboard(machine: Machine) -> None:
    assert machine.run(dashboard=True)[-1] == "0"


def with_an_authority(machine: Machine) -> None:
    assert machine.run(ca="a certificate\n")[-1] == "0"


STEPS = [
    Step("runuser .*for unit in", "looking for units in ROOT/home/.config/systemd/user failed with 7"),
    Step("runuser .*echo moved", "looking for the agent's data in ROOT/home failed with 7"),
    Step("runuser .*cat >.*api-server-key", "writing ROOT/home/.hermes-stack/api-server-key failed with 7"),
    Step("runuser .*managed_scope", "the agent's own code, as root, with ROOT/opt/hermes/v1/venv/bin/python, failed"),
    Step("update-ca-certificates", "`update-ca-certificates --fresh` failed with 7", with_an_authority),
    Step("runuser .*state.py .* list", "state.py list, as root, says"),
    Step("runuser .*put_documents", "writing to the home failed with 7"),
    Step("systemctl show", "`systemctl show --property=MainPID --value` failed with 7"),
    Step("runuser .*rm -rf .*echo", "clearing up in ROOT/home/.hermes failed with 7"),
    Step("systemctl disable", "`systemctl disable --now --quiet` failed with 7", with_a_dashboard),
    Step("systemctl daemon-reload", "`systemctl daemon-reload` failed with 7"),
    Step("systemctl restart", "systemctl restart failed with 7"),
    Step("systemctl enable", "`systemctl enable hermes-gateway.service --quiet` failed with 7"),
]


@pytest.mark.parametrize("step", STEPS, ids=[step.fails for step in STEPS])
def test_a_step_that_fails_ends_with_the_tools_own_last_words(machine: Machine, step: Step) -> None:
    step.before(machine)
    said = machine.run(step.fails)
    assert said[-1] == "1", said
    assert "Traceback" not in "\n".join(said)
    # What a person gets to see: the last lines of the log.
    shown = said[:-1][-LOG_TAIL_LINES:]
    [at] = (number for number, line in enumerate(shown) if line.startswith("error: "))
    assert step.what.replace("ROOT", str(machine.root)) in shown[at]
    last = shown.index(f"{BAR}{REASON}")
    assert [line.removeprefix(BAR) for line in shown[last - 5 : last]] == WORDS[-5:], "whole and in order"
    assert shown[-1] == REPEAT
    assert KEY not in "\n".join(said)
    assert not (machine.root / "job" / "result.json").exists()
    # Nothing of it stays: the next run goes through.
    assert machine.run()[-1] == "0"


def test_a_service_that_does_not_start_is_told_with_its_own_last_lines(machine: Machine) -> None:
    """systemctl itself only points at them."""
    machine.tool("journalctl", "echo what the gateway says itself")
    shown = machine.run("systemctl restart")[:-1][-LOG_TAIL_LINES:]
    at = shown.index("The last lines of hermes-gateway.service:")
    assert shown[at + 1 :] == [f"{BAR}what the gateway says itself", REPEAT]


@pytest.mark.parametrize("key", ["agentApiPort", "agentDashboardPort"])
def test_a_running_service_keeps_its_port_when_the_new_one_is_taken(machine: Machine, key: str) -> None:
    def run(port: int) -> list[str]:
        given: dict[str, Any] = {key: port}
        return machine.run(dashboard=True, **given)

    machine.tool("systemctl", 'case "$*" in *MainPID*) echo 0;; show*) echo active;; esac')
    assert run(free_port())[-1] == "0"
    before = machine.files()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run(port)
        assert said[-1] == "1"
        assert any(line.startswith(f"error: {key} {port}: the ") for line in said), said
        assert "systemctl" not in (machine.root / "calls").read_text()
        assert machine.files() == before
    assert run(port)[-1] == "0"


def test_a_running_service_has_its_own_port(machine: Machine) -> None:
    machine.tool("systemctl", 'case "$*" in *MainPID*) echo 0;; show*) echo active;; esac')
    port = free_port()
    assert machine.run(agentApiPort=port)[-1] == "0"
    with socket.create_server(("127.0.0.1", port)):
        assert machine.run(agentApiPort=port, ca="a certificate\n")[-1] == "0"


def test_an_account_that_is_not_there_is_told(machine: Machine) -> None:
    said = machine.run(user="nobody-knows")
    assert said[-2:] == ["error: the container has no account nobody-knows: the baseline phase has to run first", "1"]


@pytest.mark.parametrize(
    ("answer", "given", "fault"),
    [
        ((401, {"error": {"message": "Incorrect API key provided"}}), {}, "error: agentModelKey = (hidden)"),
        (
            (404, {"error": {"message": "model 'other' not found"}}),
            {"agentModel": "other"},
            "error: agentModel = other",
        ),
        ((404, "404 page not found"), {}, "error: agentModelUrl = http://127.0.0.1:"),
    ],
)
def test_a_model_that_can_not_work_changes_nothing_that_runs(
    machine: Machine, answer: tuple[int, Any], given: dict[str, Any], fault: str
) -> None:
    assert machine.run()[-1] == "0"
    before = machine.files()
    machine.model.answers["/v1/chat/completions"] = answer
    said = machine.run(agentDocuments={"SOUL.md": "another text"}, **given)
    assert said[-1] == "1"
    assert next(line for line in said if line.startswith("error: ")).startswith(fault), said
    assert KEY not in "\n".join(said)
    assert "systemctl" not in (machine.root / "calls").read_text()
    assert machine.files() == before
