"""The agent's verbs of scripts/agent: status, logs, prompt, dashboard, backups, and a password's hash."""

from __future__ import annotations

import argparse
import getpass
import secrets
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from applications import Command
from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.managed import scrypt_hash
from applications.hermes.noted import note_backup, time_in, told_in
from applications.hermes.phases import render_backups
from applications.hermes.settings.dashboard import PASSWORD_LENGTH
from applications.hermes.talk import ask
from provisioning.console import AgentError, Guest, hand_over, request_of, run_in_guest, show
from provisioning.errors import PhaseFailed
from provisioning.guest.common import LIBRARY
from provisioning.plans import run_phase
from provisioning.ssh import SshTarget
from settings.kinds import is_loopback

BACKUP_SECONDS = 1800.0
COPY_SECONDS = 13 * 3600.0
"""A line to another place may be slow, and the first copy has all data."""
STATUS = f"/usr/bin/python3 -IB {LIBRARY}/status.py"
IN_DOCKER = "docker"
DRILL_PROMPT = "what do you remember?"
FROM_COPY = "--from-copy"


def log_command(*, in_docker: bool, lines: int, follow: bool) -> list[str]:
    """The command for the agent's log in the guest: the container's, or the journal of both units."""
    command = ["journalctl", "--no-pager", "-u", "hermes-gateway", "-u", "hermes-dashboard", "-n", str(lines)]
    if in_docker:
        command = [ENGINE, "logs", "--tail", str(lines)]
    return [*command, *(["-f"] if follow else []), *(["hermes"] if in_docker else [])]


def see_dashboard(target: SshTarget, address: str, port: int | None) -> None:
    """Print the dashboard's address. If it listens on loopback, become a tunnel to it."""
    place = urlsplit(address)
    if not place.hostname:
        raise AgentError("the stack has no dashboard: set agentDashboard to true, then pulumi up")
    if not is_loopback(place.hostname):
        print(address)
        return
    near = port or place.port or 0
    _refuse_taken(near)
    print(f"http://127.0.0.1:{near}  (until Ctrl-C)", flush=True)
    tunnel = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{near}:127.0.0.1:{place.port}")
    hand_over(target, options=tunnel)


def _refuse_taken(port: int) -> None:
    """ssh would say so too, in words of its own, after the address was printed."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise AgentError(
                f"port {port} of this machine can't be used ({error.strerror}): choose another with --port, "
                f"as in scripts/agent dashboard --port {port + 1 if port < 65535 else 9119}"
            ) from None


def backups(target: SshTarget, stack: str, verb: str, *arguments: str) -> dict[str, Any]:
    """Run a verb as a job in the guest, and show what it says; its results.

    The job continues if the connection breaks or this command ends.

    The same command picks a running job up again. After its end it is a new request.
    """
    said: list[str] = []

    def show_line(line: str) -> None:
        said.append(line)
        print(line)

    try:
        with request_of(stack, verb, *arguments) as request:
            plan = render_backups(verb, *arguments, request=request)
            limit = COPY_SECONDS if verb == "copy" or FROM_COPY in arguments else BACKUP_SECONDS
            return run_phase(target, plan, on_line=show_line, timeout_s=limit).outputs
    except PhaseFailed as failed:
        # What it ends with is on the screen already.
        shown = failed.log_tail.splitlines()
        if not shown or said[-len(shown) :] != shown or not str(failed).endswith(f"  {shown[-1]}"):
            raise
        raise AgentError(f"{verb} failed in the container: see above") from None


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


# --- the verbs ----------------------------------------------------------------------------------


def _status(guest: Guest, _options: argparse.Namespace) -> int:
    text = run_in_guest(guest.target, STATUS)
    print(text.rstrip("\n"), flush=True)
    tells, made = told_in(text)
    if tells:
        note_backup(guest, made)
    return 0


def _logs(guest: Guest, options: argparse.Namespace) -> int:
    in_docker = guest.outputs.get("agentMode") == IN_DOCKER
    return show(guest.target, *log_command(in_docker=in_docker, lines=options.lines, follow=options.follow))


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true")
    parser.add_argument("-n", "--lines", type=int, default=50)


def _prompt(guest: Guest, options: argparse.Namespace) -> int:
    print(ask(guest.target, options.text))
    return 0


def _dashboard(guest: Guest, options: argparse.Namespace) -> int:
    # An older version of this program exported the address on loopback as `dashboard`.
    address = guest.outputs.get("dashboard") or guest.outputs.get("dashboardInGuest", "")
    see_dashboard(guest.target, address, options.port)
    return 0


def _dashboard_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-p", "--port", type=int, help="the tunnel's port on this machine (the dashboard's own)")


def _backup(guest: Guest, _options: argparse.Namespace) -> int:
    made = time_in(backups(guest.target, guest.stack, "make").get("name"))
    if made is not None:
        note_backup(guest, made)
    return 0


def _backups(guest: Guest, _options: argparse.Namespace) -> int:
    backups(guest.target, guest.stack, "list")
    return 0


def _restore(guest: Guest, options: argparse.Namespace) -> int:
    given = {"--unknown": options.unknown, FROM_COPY: options.from_copy}
    backups(guest.target, guest.stack, "restore", options.name, *(word for word, is_so in given.items() if is_so))
    return 0


def _restore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a name that `backups` lists, or latest: the newest that the stack made")
    parser.add_argument("--unknown", action="store_true", help="also one that the stack did not make")
    parser.add_argument(FROM_COPY, action="store_true", help="one that `copies` lists, by its id or name, or latest")


def _copies(guest: Guest, _options: argparse.Namespace) -> int:
    backups(guest.target, guest.stack, "copies")
    return 0


def _copy(guest: Guest, options: argparse.Namespace) -> int:
    given = {"--init": options.init, "--new-volume": options.new_volume}
    backups(guest.target, guest.stack, "copy", *(word for word, is_so in given.items() if is_so))
    return 0


def _copy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--init", action="store_true", help="make the place for the copies, where there is none")
    parser.add_argument("--new-volume", action="store_true", help="also where it has the sets of another volume alone")


def _drill(guest: Guest, options: argparse.Namespace) -> int:
    from applications.hermes.drill import command  # noqa: PLC0415 - it needs the client of Proxmox, half a second

    return command(guest, options)


def _drill_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vmid", type=int, help="the drill's VMID (the first free one after the cattle's)")
    parser.add_argument("--address", help="its IPv4 address with the prefix, or dhcp; needed if the cattle's is static")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--file", type=Path, help="a backup on this machine, a folder or a tar, instead of the newest")
    source.add_argument(
        FROM_COPY, nargs="?", const="latest", metavar="ID", help="one that `copies` lists, by its id or name (latest)"
    )
    parser.add_argument(
        "--allow", action="append", default=[], metavar="HOST:PORT", help="the model's, where no setting has it"
    )
    parser.add_argument("--prompt", default=DRILL_PROMPT, help=f"what the agent is asked ({DRILL_PROMPT})")
    parser.add_argument("--clean-up", action="store_true", help="only remove what another drill has left")


def _hash_password(_guest: None, _options: argparse.Namespace) -> int:
    print(hash_password())
    return 0


COMMANDS = {
    "status": Command("services, version, health", _status),
    "logs": Command("the gateway's and the dashboard's journal", _logs, _logs_arguments),
    "prompt": Command("send one prompt, print its answer", _prompt, lambda parser: parser.add_argument("text")),
    "dashboard": Command("a tunnel to the dashboard, until Ctrl-C", _dashboard, _dashboard_arguments),
    "backup": Command("make a backup of the agent's data now, and print its folder", _backup),
    "backups": Command("list the backups, newest first", _backups),
    "restore": Command("restore a backup, after a backup of the present state", _restore, _restore_arguments),
    "drill": Command("restore the newest backup beside the cattle, and ask the agent there", _drill, _drill_arguments),
    "copy": Command("bring the second copy of the backups up to date now", _copy, _copy_arguments),
    "copies": Command("list the backups in the second copy, newest first", _copies),
    "hash-password": Command(
        "print the hash of a password, for agentDashboardPasswordHash", _hash_password, alone=True
    ),
}
