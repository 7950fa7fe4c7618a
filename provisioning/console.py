"""A stack's guest on the command line: what the state knows of it, ssh, what a command there says, requests.

provisioning.terminal filters everything that the guest says before it is shown. Only `hand_over` gives the terminal
away.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from provisioning.errors import PhaseFailed, PhaseLost, ProvisioningError
from provisioning.ssh import Card, HostKey, SshTarget, connect
from provisioning.terminal import RAW_LIMIT, Lines, one_line

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "hermes-homelab"
PULUMI_SECONDS = 120
STACK_TYPE = "pulumi:pulumi:Stack"
ACCESS_TYPE = "pulumi-python:dynamic/guest:Access"
ACCESS_OUTPUTS = {"address": "address", "sshHostKey": "host_key", "sshKeyFile": "private_key_file"}
COMPONENTS = "hermes-homelab:components:"

# ssh does not read the user's own configuration (-F none). So no forwarded agent, display or port, no shared connection
# and no command in it reaches a guest. The options also override what a distribution may have built in.
SSH_OPTIONS = {
    "StrictHostKeyChecking": "yes",
    "GlobalKnownHostsFile": "/dev/null",
    "UpdateHostKeys": "no",
    "IdentitiesOnly": "yes",
    "BatchMode": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ControlMaster": "no",
    "ControlPath": "none",
    "PermitLocalCommand": "no",
    "ConnectTimeout": "15",
    "ServerAliveInterval": "15",  # after three of these without an answer the connection ends
    "SendEnv": "LANG LC_*",  # as distributions do
}


class AgentError(ProvisioningError):
    """The command can't run. The text says what to do."""


@dataclass(frozen=True)
class Guest:
    """The guest of a stack: what is known of it, and the way in. `component`: of its application, by the state."""

    stack: str
    component: str
    outputs: Mapping[str, Any]
    target: SshTarget


def pulumi_environment(root: Path) -> dict[str, str]:
    """With the checkout's own CLI before others on PATH; without what this program's own Python was started with."""
    found = {**os.environ}
    found["PATH"] = f"{root / '.cache' / 'pulumi-cli' / 'bin'}{os.pathsep}{found.get('PATH', '')}"
    found.setdefault("PULUMI_HOME", str(root / ".cache" / "pulumi-home"))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        found.pop(name, None)
    return found


def pulumi(
    *arguments: str, folder: Path | None = None, without: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """A command of the CLI, as it ended. `folder`: the project's, if not this one; `without`: variables to leave out.

    Raises AgentError if there is no CLI, or if it does not end.
    """
    environment = {name: value for name, value in pulumi_environment(ROOT).items() if name not in without}
    try:
        return subprocess.run(
            ["pulumi", *arguments, "--non-interactive"],
            cwd=folder or ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PULUMI_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise AgentError("there is no pulumi: scripts/setup installs it") from None
    except subprocess.TimeoutExpired:
        what = f"pulumi {' '.join(arguments[:2])} did not end within {PULUMI_SECONDS} s"
        raise AgentError(
            f"{what}: see whether the backend can be reached (pulumi whoami -v), then run it again"
        ) from None


def said(*arguments: str, folder: Path | None = None, without: Sequence[str] = ()) -> str:
    """What a command of the CLI prints. AgentError with its own words; `folder`, `without`: as for `pulumi`."""
    done = pulumi(*arguments, folder=folder, without=without)
    if done.returncode:
        raise AgentError(f"pulumi {' '.join(arguments[:2])} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def known_stacks() -> set[str]:
    """Those that the backend has."""
    return {row["name"].rpartition("/")[2] for row in json.loads(said("stack", "ls", "--json"))}


def init_stack(stack: str, text: str, without: Sequence[str]) -> str:
    """Have the backend know a stack, encrypted with the passphrase that its file has been, or with a new one.

    `text`: of its file. Returns what that becomes. In a folder of its own: `stack init` rewrites the file, and takes no
    other than Pulumi.STACK.yaml; `without`: the variables that name another to the CLI.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "Pulumi.yaml").write_text(f"name: {PROJECT}\nruntime: python\n")
        copy = folder / f"Pulumi.{stack}.yaml"
        copy.write_text(text, encoding="utf-8")
        said("stack", "init", "--no-select", stack, folder=folder, without=without)
        return copy.read_text(encoding="utf-8")


def guest_of(stack: str) -> Guest:
    """The stack's guest. Raises AgentError if there is none.

    Address, host key and key file come from the state of the resource. The engine writes outputs at the end of an `up`
    only, and after a failed `up` people need to log in.
    """
    # The export keeps secrets encrypted, and needs no passphrase.
    done = pulumi("stack", "export", "--stack", stack)
    if done.returncode:
        raise AgentError(f"the state of stack {stack} can't be read:\n{done.stderr.strip()}")
    exported = json.loads(done.stdout)
    outputs = known_of(exported)
    if not outputs.get("sshHostKey"):
        raise AgentError(f"stack {stack} has no agent: pulumi up --stack {stack}")
    return Guest(stack, component_of(exported), outputs, target_of(outputs))


def component_of(exported: dict[str, Any]) -> str:
    """What the application's component is called in an exported state; empty without one."""
    types = [each["type"] for each in (exported.get("deployment") or {}).get("resources") or ()]
    names = {name.removeprefix(COMPONENTS) for name in types if name.startswith(COMPONENTS)}
    return next(iter(names - {"Cattle"}), "")


def known_of(exported: dict[str, Any]) -> dict[str, Any]:
    """The outputs in an exported state. Those of the access resource win over the stack's."""
    found: dict[str, dict[str, Any]] = {}
    for resource in (exported.get("deployment") or {}).get("resources") or ():
        # A replaced resource waits for its deletion.
        if not resource.get("delete"):
            found[resource["type"]] = resource.get("outputs") or {}
    access = found.get(ACCESS_TYPE) or {}
    way_in = {name: access[key] for name, key in ACCESS_OUTPUTS.items() if access.get(key)}
    return {**found.get(STACK_TYPE, {}), **way_in}


def target_of(outputs: dict[str, Any]) -> SshTarget:
    # An older version of this program did not export it.
    address = outputs.get("hardwareAddress")
    return SshTarget(
        outputs["address"],
        HostKey.parse(outputs["sshHostKey"]),
        private_key_file=outputs["sshKeyFile"],
        card=Card(f"CT {outputs['vmid']}", address) if address else None,
    )


def run_in_guest(target: SshTarget, script: str) -> str:
    connection = connect(target)
    try:
        done = connection.run(script)
    finally:
        connection.close()
    if done.status:
        raise AgentError(done.words)
    return done.text


def ssh_command(target: SshTarget, *command: str, options: Sequence[str] = ()) -> list[str]:
    """The arguments of ssh. A file pins the host key."""
    pinned = ROOT / ".cache" / f"known_hosts.{target.host}"
    pinned.write_text(f"{target.host} {target.host_key.line}\n")
    kept = {"UserKnownHostsFile": f'"{pinned}"', **SSH_OPTIONS}
    own = [f"-o{key}={value}" for key, value in kept.items()]
    login = ("-i", target.private_key_file, f"{target.user}@{target.host}")
    return ["ssh", "-F", "none", *own, *options, *login, *command]


def hand_over(target: SshTarget, *command: str, options: Sequence[str] = ()) -> NoReturn:
    """Become ssh: a signal to this command then ends the connection. The guest gets the terminal."""
    os.execvp("ssh", ssh_command(target, *command, options=options))  # noqa: S606 - no shell is wanted


def show(target: SshTarget, *command: str) -> int:
    """Show the output of a command in the guest, line by line. Returns its status. A signal ends both."""

    def end(number: int, _frame: object) -> NoReturn:
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    argv = ssh_command(target, *command, options=("-T",))
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
        lines, said = Lines(), child.stdout.fileno() if child.stdout else -1
        try:
            while chunk := os.read(said, RAW_LIMIT):
                for line in lines.feed(chunk):
                    print(one_line(line), flush=True)
            for line in lines.end():
                print(one_line(line), flush=True)
            return child.wait()
        finally:
            child.terminate()


@contextlib.contextmanager
def request_of(*words: str) -> Iterator[str]:
    """An id for a request with these words: a new one, or that of the same request if it was interrupted.

    The request ends when the guest has answered, also with a failure. Two at the same time get two ids.
    """
    folder = ROOT / ".cache" / "requests"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield secrets.token_hex(8)
            return
        file.seek(0)
        identity = file.read().strip() or secrets.token_hex(8)
        file.truncate(0)
        file.write(identity)
        file.flush()
        try:
            yield identity
        except (PhaseFailed, PhaseLost):
            file.truncate(0)
            raise
        file.truncate(0)
