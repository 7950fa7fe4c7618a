"""scripts/agent: how it hands the terminal to ssh."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from applications.hermes import commands
from applications.hermes.phases import render_backups
from provisioning import console
from provisioning.errors import PhaseFailed, ProvisioningError, SshUnreachable
from provisioning.plans import PhasePlan
from provisioning.ssh import HostKey, SshTarget

ROOT = Path(__file__).parents[2]
HOST = "192.0.2.7"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
PATIENCE = 60
PROGRAM = """
import pathlib, signal, sys
from applications.hermes.commands import see_dashboard
from provisioning import console
from provisioning.ssh import HostKey, SshTarget
signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it
console.ROOT = pathlib.Path(sys.argv[1])
target = SshTarget(sys.argv[2], HostKey.parse(sys.argv[3]), private_key_file="/keys/id")
see_dashboard(target, "http://127.0.0.1:9119", 9000)
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_tunnel_s_command_ends_the_tunnel(end: signal.Signals, tmp_path: Path) -> None:
    """With nothing left behind: the command has become ssh, under its own number."""
    (tmp_path / ".cache").mkdir()
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$$ $@"\nexec sleep 600\n')
    ssh.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), HOST, KEY]
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with contextlib.closing(child.stdout) as said:
        try:
            assert said.readline() == "http://127.0.0.1:9000  (until Ctrl-C)\n"
            number, *arguments = shlex.split(said.readline())
            assert int(number) == child.pid
            child.send_signal(end)
            assert child.wait(timeout=PATIENCE) == -end
        finally:
            child.kill()
            child.wait(timeout=PATIENCE)
    assert arguments[-3:] == ["-i", "/keys/id", f"root@{HOST}"]
    assert "127.0.0.1:9000:127.0.0.1:9119" in arguments
    pinned = [word for word in arguments if word.startswith("-oUserKnownHostsFile=")]
    assert "-oStrictHostKeyChecking=yes" in arguments
    assert Path(shlex.split(pinned[0].partition("=")[2])[0]).read_text() == f"{HOST} {KEY}\n"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of the commands are below this folder."""
    (tmp_path / ".cache").mkdir()
    monkeypatch.setattr(console, "ROOT", tmp_path)
    return tmp_path


def exported(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"version": 3, "deployment": {"resources": list(resources)}}


OUTPUTS = {
    "type": "pulumi:pulumi:Stack",
    "outputs": {"address": "192.0.2.1", "sshHostKey": "old", "agentMode": "docker"},
}
AGENT = {"type": "hermes-homelab:components:HermesAgent"}
ACCESS = {
    "type": "pulumi-python:dynamic/guest:Access",
    "outputs": {"address": HOST, "host_key": KEY, "private_key_file": "/my keys/id", "seconds": 1.5},
}
WAY_IN = {"address": HOST, "sshHostKey": KEY, "sshKeyFile": "/my keys/id"}


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (exported({"type": "pulumi:pulumi:Stack"}, AGENT, ACCESS), WAY_IN),
        (
            exported(OUTPUTS, AGENT, {**ACCESS, "delete": True, "outputs": {}}, ACCESS),
            {"agentMode": "docker", **WAY_IN},
        ),
        (exported(AGENT, ACCESS, {**ACCESS, "delete": True, "outputs": {"host_key": "gone"}}), WAY_IN),
    ],
)
def test_the_way_in_is_known_before_the_first_up_has_come_to_its_end(
    state: dict[str, Any], wanted: dict[str, str], checkout: Path
) -> None:
    (checkout / "state.json").write_text(json.dumps(state))
    a_cli(checkout, f'[ "$1 $2 $3 $4" = "stack export --stack mine" ] && cat {checkout}/state.json')
    guest = console.guest_of("mine")
    assert (guest.outputs, guest.component, guest.target.host_key.line) == (wanted, "HermesAgent", KEY)


@pytest.mark.parametrize("state", [{"version": 3, "deployment": {}}, exported({"type": "pulumi:pulumi:Stack"}), {}])
def test_a_stack_without_a_container_has_no_way_in(state: dict[str, Any]) -> None:
    assert console.known_of(state) == {}


@pytest.mark.usefixtures("checkout")
def a_cli(checkout: Path, script: str) -> None:
    cli = checkout / ".cache" / "pulumi-cli" / "bin" / "pulumi"
    cli.parent.mkdir(parents=True)
    cli.write_text(f"#!/bin/sh\n{script}\n")
    cli.chmod(0o755)


def test_a_cli_that_is_not_there_or_does_not_end_is_told(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(checkout))
    with pytest.raises(console.AgentError, match="scripts/setup installs it"):
        console.pulumi("stack", "ls")
    a_cli(checkout, "exec /bin/sleep 600")
    monkeypatch.setattr(console, "PULUMI_SECONDS", 0.1)
    with pytest.raises(console.AgentError, match="pulumi stack ls did not end within"):
        console.pulumi("stack", "ls")


def test_a_command_of_the_cli_gets_the_shell_s_variables(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty passphrase is one."""
    a_cli(checkout, 'echo "${PULUMI_CONFIG_PASSPHRASE-unset} ${LEFT_OUT-unset} $PWD $*"')
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "")
    monkeypatch.setenv("LEFT_OUT", "yes")
    done = console.pulumi("whoami", without=["LEFT_OUT"])
    assert done.stdout == f" unset {checkout} whoami --non-interactive\n"


def test_each_request_has_an_identity_and_one_that_was_cut_off_keeps_it() -> None:
    request_of = console.request_of
    words = ("cattle", "make")
    with request_of(*words) as first:
        pass
    with request_of(*words) as second:
        with request_of(*words) as beside:
            pass
        with request_of("cattle", "restore", "latest") as other:
            pass
    assert len({first, second, beside, other}) == 4
    with pytest.raises(KeyboardInterrupt), request_of(*words) as cut:
        raise KeyboardInterrupt
    with pytest.raises(SshUnreachable), request_of(*words) as still_cut:
        raise SshUnreachable("no way")
    with pytest.raises(PhaseFailed), request_of(*words) as failed:
        raise PhaseFailed("no room", phase="backups")
    assert cut == still_cut == failed
    with request_of(*words) as after:
        assert after not in (cut, first, second)


@pytest.mark.parametrize("words", [("make",), ("list",), ("restore", "latest")])
def test_no_two_requests_are_the_same_job(words: tuple[str, ...]) -> None:
    first, second = (render_backups(*words, request=request).job for request in ("a1", "b2"))
    assert first.name != second.name
    assert first.fresh
    assert render_backups(*words, request="a1").job.name == first.name


LOGIN = """
import json, pathlib, runpy, sys
from provisioning import console
agent = runpy.run_path("scripts/lib/agent.py", run_name="agent")
outputs = {"vmid": 105, "address": sys.argv[2], "sshHostKey": sys.argv[3], "sshKeyFile": "/my keys/id"}
console.ROOT = pathlib.Path(sys.argv[1])
guest = console.Guest("cattle", "HermesAgent", outputs, console.target_of(outputs))
agent["main"].__globals__.update(guest_of=lambda stack: guest)
sys.argv[1:] = json.loads(sys.argv[4])
agent["main"]()
"""


@pytest.mark.parametrize(
    "words", [[], ["-t", "hermes"], ["-N", "-L", "9119:127.0.0.1:9119"], ["ls", "--help", "-h"], ["df -h; ls"]]
)
def test_ssh_logs_in_with_the_pinned_key_and_hands_every_word_on(words: list[str], tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor word; do printf "%s\\0" "$word"; done\n')
    ssh.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    arguments = json.dumps(["--stack", "cattle", "ssh", *words])
    command = [sys.executable, "-c", LOGIN, str(tmp_path), HOST, KEY, arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    handed = done.stdout.split("\0")[:-1]
    assert handed[-3 - len(words) :] == ["-i", "/my keys/id", f"root@{HOST}", *words]
    assert "-oStrictHostKeyChecking=yes" in handed


def test_nothing_of_the_user_s_own_ssh_configuration_reaches_a_guest(tmp_path: Path) -> None:
    """None is read; and were one read, as OpenSSH itself says, the options would win over what it gives away."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / "config").write_text(
        "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  ControlMaster auto\n  ControlPath /tmp/%C\n"
        "  PermitLocalCommand yes\n  LocalCommand id\n  IdentitiesOnly no\n  StrictHostKeyChecking no\n"
    )
    ssh = tmp_path / "ssh"
    # -G: print what would be done, and do nothing.
    ssh.write_text(f'#!/bin/sh\necho "read $1 $2"; shift 2; exec /usr/bin/ssh -G -F {tmp_path}/config "$@"\n')
    ssh.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-c", LOGIN, str(tmp_path), HOST, KEY, json.dumps(["ssh"])]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    pairs = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    assert pairs[0] == ("read", "-F none")
    found = dict(pairs)
    assert {name: found[name] for name in ("forwardagent", "forwardx11", "identitiesonly", "permitlocalcommand")} == {
        "forwardagent": "no",
        "forwardx11": "no",
        "identitiesonly": "yes",
        "permitlocalcommand": "no",
    }
    assert found["controlmaster"] == "false"
    assert found["globalknownhostsfile"] == "/dev/null"
    assert found["stricthostkeychecking"] in ("true", "yes")
    assert found.get("controlpath", "none") == "none"


TARGET = SshTarget(HOST, HostKey.parse(KEY), private_key_file="/keys/id")


@pytest.mark.parametrize(
    ("tail", "full", "repeated"),
    [
        ("error: there is no backup nope\nThose that are there: x", "", False),
        # What is known only in the end is told, with what belongs to it.
        ("error: No space left on device", "\nA disk is full: /", True),
        ("", "", True),
    ],
)
@pytest.mark.usefixtures("checkout")
def test_what_a_job_has_said_is_not_said_twice(
    tail: str, full: str, repeated: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = "\n".join(f"  {line}" for line in tail.splitlines()) or "  (it printed nothing)"

    def fails(_target: object, plan: PhasePlan, *, on_line: Callable[[str], None], timeout_s: float) -> None:
        del timeout_s
        for line in ("looking", *tail.splitlines()):
            on_line(line)
        text = f"{plan.name} failed in the container: exit status 1. Its last lines:\n  looking\n{shown}{full}"
        raise PhaseFailed(text, phase=plan.name, log_tail=f"looking\n{tail}".strip() if tail else "")

    monkeypatch.setattr(commands, "run_phase", fails)
    with pytest.raises(ProvisioningError) as failed:
        commands.backups(TARGET, "mine", "restore", "nope")
    words = f"{capsys.readouterr().out}{failed.value}"
    for line in tail.splitlines():
        assert words.count(line) == (2 if repeated else 1)
    assert full in words
    assert "failed in the container" in words


def test_a_port_that_is_taken_is_told_before_the_address_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(console.AgentError, match=rf"port {port} of this machine .*--port"):
            commands.see_dashboard(TARGET, f"http://127.0.0.1:{port}", None)
    assert capsys.readouterr().out == ""
