"""A stack's agent on the command line: status, logs, prompt, dashboard, a shell, backups, and a password's hash.

provisioning.terminal filters everything that the guest says before it is shown. Only `ssh` gives the terminal away.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import getpass
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.managed import scrypt_hash
from applications.hermes.phases import render_backups
from applications.hermes.settings.dashboard import PASSWORD_LENGTH
from applications.hermes.talk import ask
from provisioning.errors import PhaseFailed, PhaseLost, ProvisioningError
from provisioning.guest.common import LIBRARY
from provisioning.plans import run_phase
from provisioning.ssh import Card, HostKey, SshTarget, connect
from provisioning.terminal import RAW_LIMIT, Lines, one_line
from scripts.lib.cli import pulumi_environment
from settings.kinds import is_loopback

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS_SECONDS = 60
BACKUP_SECONDS = 1800.0
STACK_TYPE = "pulumi:pulumi:Stack"
ACCESS_TYPE = "pulumi-python:dynamic/guest:Access"
ACCESS_OUTPUTS = {"address": "address", "sshHostKey": "host_key", "sshKeyFile": "private_key_file"}
STATUS = f"/usr/bin/python3 -IB {LIBRARY}/status.py"
IN_DOCKER = "docker"


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


def outputs_of(stack: str) -> dict[str, Any]:
    """The stack's outputs, from the CLI on PATH or the checkout's own. Raises AgentError if there are none.

    Address, host key and key file come from the state of the resource. The engine writes outputs at the end of an `up`
    only, and after a failed `up` people need to log in.
    """
    # The export keeps secrets encrypted, and needs no passphrase.
    argv = ["pulumi", "stack", "export", "--stack", stack, "--non-interactive"]
    done = subprocess.run(
        argv,
        cwd=ROOT,
        env=pulumi_environment(ROOT),
        capture_output=True,
        text=True,
        timeout=OUTPUTS_SECONDS,
        check=False,
    )
    if done.returncode:
        raise AgentError(f"the state of stack {stack} can't be read:\n{done.stderr.strip()}")
    outputs = known_of(json.loads(done.stdout))
    if not outputs.get("sshHostKey"):
        raise AgentError(f"stack {stack} has no agent: pulumi up --stack {stack}")
    return outputs


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


def log_command(*, in_docker: bool, lines: int, follow: bool) -> list[str]:
    """The command for the agent's log in the guest: the container's, or the journal of both units."""
    command = ["journalctl", "--no-pager", "-u", "hermes-gateway", "-u", "hermes-dashboard", "-n", str(lines)]
    if in_docker:
        command = [ENGINE, "logs", "--tail", str(lines)]
    return [*command, *(["-f"] if follow else []), *(["hermes"] if in_docker else [])]


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
        except BrokenPipeError:
            # The reader has gone, as `head` does. Nothing must be flushed to it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        finally:
            child.terminate()


def see_dashboard(target: SshTarget, address: str, port: int | None) -> None:
    """Print the dashboard's address. If it listens on loopback, become a tunnel to it."""
    place = urlsplit(address)
    if not place.hostname:
        raise AgentError("the stack has no dashboard: set agentDashboard to true, then pulumi up")
    if not is_loopback(place.hostname):
        print(address)
        return
    near = port or place.port
    print(f"http://127.0.0.1:{near}  (until Ctrl-C)", flush=True)
    tunnel = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{near}:127.0.0.1:{place.port}")
    hand_over(target, options=tunnel)


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


def backups(target: SshTarget, stack: str, verb: str, *arguments: str) -> None:
    """Run a verb as a job in the guest. The job continues if the connection breaks or this command ends.

    The same command picks a running job up again. After its end it is a new request.
    """
    with request_of(stack, verb, *arguments) as request:
        plan = render_backups(verb, *arguments, request=request)
        run_phase(target, plan, on_line=print, timeout_s=BACKUP_SECONDS)


def hash_password() -> str:
    """Ask twice without echo, or read one line if there is no terminal. Returns the hash for the dashboard."""
    if sys.stdin.isatty():
        password = getpass.getpass("password: ")
        if getpass.getpass("once more: ") != password:
            raise AgentError("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < PASSWORD_LENGTH:
        raise AgentError(f"the password must have {PASSWORD_LENGTH} characters or more")
    return scrypt_hash(password, secrets.token_bytes(16))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/agent", description="Talk to the agent of a stack.")
    parser.add_argument("--stack", default="cattle", help="the cattle stack (cattle)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("status", help="services, version, health")
    logs = verbs.add_parser("logs", help="the gateway's and the dashboard's journal")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=50)
    prompt = verbs.add_parser("prompt", help="send one prompt, print its answer")
    prompt.add_argument("text")
    dashboard = verbs.add_parser("dashboard", help="a tunnel to the dashboard, until Ctrl-C")
    dashboard.add_argument("-p", "--port", type=int, help="the tunnel's port on this machine (the dashboard's own)")
    # Everything after it goes to ssh, options included.
    ssh = verbs.add_parser("ssh", help="log in, or run a command there, as root", add_help=False, prefix_chars="\0")
    ssh.add_argument("words", nargs="*")
    verbs.add_parser("backup", help="make a backup of the agent's data now, and print its folder")
    verbs.add_parser("backups", help="list the backups, newest first")
    restore = verbs.add_parser("restore", help="restore a backup, after a backup of the present state")
    restore.add_argument("name", help="a name that `backups` lists, or latest: the newest that the stack made")
    restore.add_argument("--unknown", action="store_true", help="also one that the stack did not make")
    verbs.add_parser("hash-password", help="print the hash of a password, for agentDashboardPasswordHash")
    options = parser.parse_args()
    try:
        if options.verb == "hash-password":
            print(hash_password())
            return 0
        outputs = outputs_of(options.stack)
        target, in_docker = target_of(outputs), outputs.get("agentMode") == IN_DOCKER
        if options.verb == "status":
            print(run_in_guest(target, STATUS).rstrip("\n"))
        elif options.verb == "logs":
            return show(target, *log_command(in_docker=in_docker, lines=options.lines, follow=options.follow))
        elif options.verb == "dashboard":
            # An older version of this program exported the address on loopback as `dashboard`.
            see_dashboard(target, outputs.get("dashboard") or outputs.get("dashboardInGuest", ""), options.port)
        elif options.verb == "ssh":
            hand_over(target, *options.words)
        elif options.verb in {"backup", "backups"}:
            backups(target, options.stack, "make" if options.verb == "backup" else "list")
        elif options.verb == "restore":
            backups(target, options.stack, "restore", options.name, *(["--unknown"] if options.unknown else []))
        else:
            print(ask(target, options.text))
    except ProvisioningError as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
