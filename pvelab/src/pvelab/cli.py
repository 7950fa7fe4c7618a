"""``pvelab``: bring a Proxmox up on this machine, look at it, point a shell at it, have it fail, remove it."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from pvelab import pct
from pvelab.config import storages_for
from pvelab.control import ControlError, send
from pvelab.ending import end_with
from pvelab.environment import environment, export_lines
from pvelab.extension import Extension, Plain
from pvelab.faults import KINDS, FaultControl, Rule
from pvelab.instance import Lab, LabError, Ready
from pvelab.network import Network
from pvelab.release import DEFAULT, RELEASES
from pvelab.template import NEWER, debian_packages, ensure_template

UP_DEADLINE = 60.0
DOWN_DEADLINE = 30.0
RESET_DEADLINE = 120.0
TOOLS = ("dnsmasq", "ip", "losetup", "lxc-start", "lxc-usernsexec", "mkfs.ext4", "mmdebstrap", "nft", "openssl",
         "ssh-keygen", "zstd")  # fmt: skip


def say(line: str) -> None:
    print(f"lab: {line}", file=sys.stderr, flush=True)


def up(extension: Extension[Any], lab: Lab, options: argparse.Namespace) -> None:
    """Bring the lab up; returns when all of it answers. Repeating it is harmless, also after a crash."""
    containers, nodes = not options.no_containers, options.nodes
    if containers:
        _need_machine(extension)
    lab.prepare()
    with lab.changing():
        if lab.daemon_pid() is not None:
            ready = _wait_ready(lab, lab.daemon_pid)
            if lack := _lacks(extension, lab, ready, options):
                raise LabError(f"the lab is up {lack}: {lab.command} down first")
            say(f"is up already: {ready.endpoint}")
            return
        if nodes is not None:
            lab.set_node_count(nodes)
        if options.pve is not None:
            lab.set_release(options.pve)
        lab.add_storages(options.storage)
        if containers:
            # Here rather than in the daemon, so that one sees what takes time.
            ensure_template(lab.template_cache, say)
            if options.debian_13:
                ensure_template(lab.template_cache, say, NEWER)
            extension.build(lab, options, say)
        began = time.time()
        process = _spawn(extension, lab, containers=containers)
        ready = _wait_ready(lab, lambda: process.pid if process.poll() is None else None, since=began)
        extension.after_up(lab)
        say(f"is up: {ready.endpoint}")


def _lacks(extension: Extension[Any], lab: Lab, ready: Ready, options: argparse.Namespace) -> str | None:
    """How a lab that is up differs from what is asked for; None when it does not."""
    if ready.containers == options.no_containers:
        return "in its other form (with or without containers)"
    if options.nodes is not None and options.nodes != len(lab.nodes):
        return f"with {len(lab.nodes)} node(s)"
    if options.pve not in (None, lab.pve):
        return f"as Proxmox VE {lab.pve}"
    if lacking := [name for name, kind in options.storage if lab.more_storages.get(name) != kind]:
        return f"without storage {', '.join(lacking)}"
    if options.debian_13 and ready.template_newer is None:
        return "without the template of Debian 13"
    return f"without {missing}" if (missing := extension.missing(lab, options)) else None


def _need_machine(extension: Extension[Any]) -> None:
    if os.geteuid() != 0:
        raise LabError(f"real containers need root: use sudo, or {extension.program} up --no-containers")
    if missing := _missing_tools():
        raise LabError(
            f"this machine lacks {', '.join(missing)}.\n"
            f"On Debian or Ubuntu: apt-get install --no-install-recommends {debian_packages()}"
        )


def _missing_tools() -> list[str]:
    path = os.environ.get("PATH", "")
    return [tool for tool in TOOLS if not shutil.which(tool, path=f"{path}:/usr/sbin:/sbin")]


def _spawn(extension: Extension[Any], lab: Lab, *, containers: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", extension.module, "--dir", str(lab.state_dir), "daemon"]
    command += [] if containers else ["--no-containers"]
    # The module is imported as this process would.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
    with lab.log_file.open("ab") as log:
        # Its own session: it outlives the shell that started it.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment, cwd="/"
        )


def _wait_ready(lab: Lab, alive: Callable[[], int | None], since: float = 0.0) -> Ready:
    deadline = time.monotonic() + UP_DEADLINE
    while time.monotonic() < deadline:
        if alive() is None:
            raise LabError(
                f"the lab's daemon ended while it came up. The end of {lab.log_file}:\n{_tail(lab.log_file)}"
            )
        file = lab.state_dir / "ready.json"
        if lab.daemon_pid() and file.exists() and file.stat().st_mtime >= since - 1 and _answers(lab, lab.ready()):
            return lab.ready()
        time.sleep(0.05)
    raise LabError(
        f"the lab does not answer after {UP_DEADLINE:.0f} s. The end of {lab.log_file}:\n{_tail(lab.log_file)}"
    )


def _answers(lab: Lab, ready: Ready) -> bool:
    """True when the API knows its own token, over TLS with the lab's own certificate."""
    try:
        context = ssl.create_default_context(cafile=ready.ca_file)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        token = {"Authorization": f"PVEAPIToken={lab.token_file.read_text().strip()}"}
        address = f"{ready.endpoint.rstrip('/')}/api2/json/version"
        request = urllib.request.Request(address, headers=token)  # noqa: S310 - https, from our own ready.json
        opener.open(request, timeout=10).close()
    except OSError:
        return False
    return True


def _tail(file: Path, lines: int = 15) -> str:
    text = file.read_text(errors="replace").splitlines() if file.exists() else []
    return "\n".join(f"  {line}" for line in text[-lines:])


def down(extension: Extension[Any], lab: Lab) -> None:
    """Stop guests and daemon, remove bridge, rules and mounts; the state stays."""
    with lab.changing():
        _stop_daemon(lab)
        lab.note_down()
        if os.geteuid() != 0:
            return
        there, network = lab.place.run_dir.exists(), Network(lab.place)
        if there:
            from pvelab.lxc import LxcRuntime  # noqa: PLC0415 - other verbs need none of it

            LxcRuntime(lab.place, network).end_all()
        extension.stop(lab)
        if there:
            network.down()


def _stop_daemon(lab: Lab) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + DOWN_DEADLINE
        asked = False
        while (pid := lab.daemon_pid()) is not None and time.monotonic() < deadline:
            if not asked:
                os.kill(pid, number)
                asked = True
            time.sleep(0.02)


def destroy(extension: Extension[Any], lab: Lab) -> None:
    """``down``, and delete the lab's state: guests, volumes, keys, logs."""
    if not lab.exists():
        say("there is no lab")
        return
    down(extension, lab)
    mounts = Path("/proc/self/mounts").read_text().replace("\\040", " ")
    if f" {lab.state_dir}/" in mounts:
        raise LabError(f"something is still mounted below {lab.state_dir}; unmount it, then try again")
    shutil.rmtree(lab.state_dir)
    say("is gone")


def status(extension: Extension[Any], lab: Lab) -> int:
    """Show what there is; exit code 3 when the lab is not up."""
    from rich.console import Console  # noqa: PLC0415 - slow to load, and only needed here
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    if not lab.exists():
        console.print(f"There is no lab. To bring one up: {lab.command} up")
        return 3
    pid = lab.daemon_pid()
    facts = Table("lab", str(lab.state_dir), title_justify="left")
    facts.add_row("daemon", f"pid {pid}, log {lab.log_file}" if pid else f"[red]not running[/red]: {lab.command} up")
    running: frozenset[int] = frozenset()
    try:
        ready = lab.ready()
    except LabError:
        ready = None
    if ready:
        facts.add_row("API", ready.endpoint + ("" if pid and _answers(lab, ready) else " [red](does not answer)[/red]"))
        facts.add_row("CA", ready.ca_file)
        newer = ready.template_newer or f"[dim]Debian 13: {lab.command} up --debian-13[/dim]"
        facts.add_row("templates", f"{ready.template}\n{newer}" if ready.containers else ready.template)
        if ready.containers:
            facts.add_row("network", f"bridge {ready.bridge} (vmbr0), {ready.subnet}, gateway {ready.gateway}")
            from pvelab.lxc import LxcRuntime  # noqa: PLC0415

            running = LxcRuntime(lab.place).running(ready.node)
        for name, text in extension.status(lab):
            facts.add_row(name, text)
    console.print(facts)
    guests = Table("vmid", "name", "state", "address", "volumes")
    for guest in lab.guests():
        values = dict(re.findall(r"^(\w+):\s*(.*)$", guest["config"].split("\n[")[0], re.MULTILINE))
        address = re.search(r"\bip=([^,]+)", values.get("net0", ""))
        volumes = [f"{k}: {v.split(',')[0]}" for k, v in values.items() if re.fullmatch(r"rootfs|(mp|unused)\d+", k)]
        state = "" if ready is None or not ready.containers else "running" if guest["vmid"] in running else "stopped"
        guests.add_row(
            str(guest["vmid"]),
            values.get("hostname", ""),
            state,
            address.group(1) if address else "",
            "\n".join(volumes),
        )
    console.print(guests)
    return 0 if pid else 3


def shell(extension: Extension[Any], lab: Lab) -> int:
    """A subshell that points at the lab."""
    values = {**os.environ, **environment(lab, extension)}
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        values.pop(name, None)
    say("this shell points at the lab; leave it with exit")
    return subprocess.run([os.environ.get("SHELL") or "/bin/sh"], env=values, check=False).returncode


def doctor() -> int:
    """Say what this machine can run; exit code 1 when not all of it."""
    missing = _missing_tools()
    checks = [
        ("the API and its volumes (up --no-containers)", shutil.which("ssh-keygen") is not None, "ssh-keygen"),
        ("root, for containers", os.geteuid() == 0, "root: use sudo"),
        ("programs for containers", not missing, f"{', '.join(missing)}: apt-get install {debian_packages()}"),
        ("control groups", any(Path("/sys/fs/cgroup").iterdir()), "a mounted /sys/fs/cgroup"),
        ("loop devices", Path("/dev/loop-control").exists(), "/dev/loop-control: modprobe loop"),
        ("user namespaces", Path("/proc/self/ns/user").exists(), "a kernel with CONFIG_USER_NS"),
    ]
    for what, good, needed in checks:
        print(f"{'ok     ' if good else 'missing'} {what}" + ("" if good else f": needs {needed}"))
    return 0 if all(good for _, good, _ in checks) else 1


def faults(lab: Lab, options: argparse.Namespace) -> int:
    """Set, list and clear faults in a lab that is up; what fired, as JSON lines."""
    control = FaultControl(lab.state_dir)
    if options.order == "add":
        rule = {name: value for name, value in vars(options).items() if name in _RULE and value is not None}
        if rule.get("count") == 0:
            rule["count"] = None
        print(control.add(**rule))
    elif options.order == "clear":
        control.clear()
    elif options.order == "seed":
        control.seed(options.number)
    else:
        for entry in control.rules() if options.order == "list" else control.fired():
            print(json.dumps(entry))
    return 0


def passwd(lab: Lab) -> int:
    """Give root@pam a password, as pveum does on a node; LabError for one that Proxmox would refuse."""
    password = getpass.getpass("Password of root@pam: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not 8 <= len(password) <= 64:
        raise LabError("a password has 8 to 64 characters")
    send(lab.state_dir, "password", password=password)
    return 0


_RULE = {entry.name for entry in fields(Rule)}


def _add_fault_arguments(parser: argparse.ArgumentParser) -> None:
    orders = parser.add_subparsers(dest="order", required=True, metavar="ORDER")
    add = orders.add_parser("add", help="one more rule; prints its number")
    add.add_argument("kind", choices=KINDS)
    for name, about in (
        ("method", "regular expression for the whole method"),
        ("path", "regular expression, found in the path below /api2/json"),
        ("task", "regular expression for the task's type, as vzstart"),
        ("storage", "regular expression for the storage's name (full)"),
        ("node", "regular expression for the node's name (unknown, hung, started, offline)"),
        ("text", "what an error or a failed task says"),
    ):
        add.add_argument(f"--{name}", help=about)
    add.add_argument("--status", type=int, help="of an error (default: 500)")
    add.add_argument("--seconds", type=float, help="how long: delay, lock, a slow task, hung, started")
    add.add_argument("--vmid", type=int, help="whose lock, or whose tasks")
    add.add_argument("--when", choices=("before", "after"), help="before the effect (default), or after it")
    add.add_argument("--result", choices=("fail", "warn", "slow", "endless"), help="of a task (default: fail)")
    add.add_argument("--count", type=int, help="how often it fires; 0: always (default: 1)")
    add.add_argument("--skip", type=int, help="how many matches pass first")
    add.add_argument("--probability", type=float, help="0 to 1 (default: 1)")
    orders.add_parser("list", help="the rules")
    orders.add_parser("fired", help="what has fired, oldest first")
    orders.add_parser("clear", help="remove all rules")
    orders.add_parser("seed", help="make probabilities repeat").add_argument("number", type=int)


def _storage(text: str) -> tuple[str, str]:
    from pvelab.storages import type_of  # noqa: PLC0415 - other verbs need none of it

    name, _, kind = text.partition("=")
    taken = {storage.name for storage in storages_for(("pve", "pve2"))}
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]", name) or name in taken:
        raise argparse.ArgumentTypeError(f"{name!r} is no name for one more storage")
    try:
        for storage in storages_for(("pve",), {name: kind}):
            type_of(storage)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name, kind


def main(arguments: Sequence[str] | None = None, extension: Extension[Any] | None = None) -> int:
    """Run one verb; returns the exit code."""
    extension = extension or Plain()
    name = extension.program
    parser = argparse.ArgumentParser(prog=name, description=extension.about)
    parser.add_argument("--dir", type=Path, help=f"the lab's folder (default: {extension.lab(None).state_dir})")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = {
        "up": "bring the lab up",
        "down": "stop guests and lab, remove its network and mounts, keep its state",
        "destroy": "down, and delete its state",
        "reset": "remove guests, volumes, tasks, users and faults from a lab that is up",
        "status": "show the lab, its guests and volumes",
        "env": f'print what points a shell at the lab: eval "$({name} env)"',
        "shell": "open a shell that points at the lab",
        "faults": "have requests and tasks fail",
        "passwd": "set the password of root@pam: a line of standard input",
        "doctor": "say what this machine can run",
    }
    made = {verb: verbs.add_parser(verb, help=text) for verb, text in about.items()}
    # What "up" starts; not for people, so without a help line. And root's pct on the node, which reads its own options.
    made["daemon"] = verbs.add_parser("daemon")
    for verb in ("up", "daemon"):
        made[verb].add_argument(
            "--no-containers", action="store_true", help="the API and its volumes only, without root"
        )
    made["up"].add_argument(
        "--nodes", type=int, choices=range(1, 6), metavar="N", help="how many nodes it has (default: as it was made, 1)"
    )
    made["up"].add_argument(
        "--pve", choices=sorted(RELEASES), help=f"the release of Proxmox VE (default: as it was made, {DEFAULT})"
    )
    made["up"].add_argument("--debian-13", action="store_true", help="build the template of Debian 13 as well")
    made["up"].add_argument(
        *("--storage", "-s"), type=_storage, action="append", default=[], metavar="NAME=TYPE",
        help="one more storage for guests, as tank=zfspool; may be repeated, and is kept",
    )  # fmt: skip
    extension.add_arguments(made["up"])
    _add_fault_arguments(made["faults"])
    verbs.add_parser("pct", help="root's pct on a node: pct VERB VMID [OPTIONS]", add_help=False)
    verbs.add_parser("conformance", help="hold a Proxmox of your own against the contract", add_help=False)
    options, rest = parser.parse_known_args(arguments)
    if options.verb == "conformance":
        from pvelab.conformance.command import main as conformance  # noqa: PLC0415 - only needed here

        return conformance(rest)
    if rest and options.verb != "pct":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    lab = extension.lab(options.dir.expanduser().absolute() if options.dir else None)
    try:
        return _run(extension, lab, options, rest)
    except (LabError, ControlError) as error:
        say(str(error))
        return 1


def _run(extension: Extension[Any], lab: Lab, options: argparse.Namespace, rest: list[str]) -> int:
    verb = options.verb
    if verb in ("status", "shell", "doctor", "faults", "passwd", "pct"):
        shown: dict[str, Callable[[], int]] = {
            "status": lambda: status(extension, lab),
            "shell": lambda: shell(extension, lab),
            "doctor": doctor,
            "faults": lambda: faults(lab, options),
            "passwd": lambda: passwd(lab),
            "pct": lambda: pct.main(["--lab", str(lab.state_dir), *rest]),
        }
        return shown[verb]()
    if verb == "up":
        up(extension, lab, options)
    elif verb == "daemon":
        from pvelab.daemon import run  # noqa: PLC0415 - loads the whole API

        run(lab, extension, containers=not options.no_containers)
    elif verb == "down":
        if lab.exists():
            down(extension, lab)
            say(f"is down; its state stays ({lab.command} destroy removes it)")
        else:
            say("there is no lab")
    elif verb == "destroy":
        destroy(extension, lab)
    elif verb == "reset":
        send(lab.state_dir, "reset", RESET_DEADLINE)
        say("is as new")
    else:
        print(export_lines(environment(lab, extension)), end="")
    return 0


def command() -> NoReturn:
    """What is installed as ``pvelab``."""
    end_with(main)
