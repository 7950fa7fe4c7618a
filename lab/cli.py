"""``scripts/lab``: bring a local Proxmox up, look at it, point a shell at it, remove it."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lab.environment import environment, export_lines
from lab.instance import CHECKOUT, Lab, LabError, Ready
from pvelab.network import Network

UP_DEADLINE = 60.0
DOWN_DEADLINE = 30.0
TOOLS = ("dnsmasq", "git", "ip", "losetup", "lxc-start", "lxc-usernsexec", "mkfs.ext4", "mmdebstrap", "nft", "openssl",
         "ssh-keygen", "zstd")  # fmt: skip


def say(line: str) -> None:
    print(f"lab: {line}", file=sys.stderr, flush=True)


def up(lab: Lab, *, containers: bool, nodes: int | None = None, images: bool = False, newer: bool = False) -> None:
    """Bring the lab up; returns when all of it answers. Repeating it is harmless, also after a crash.

    ``nodes`` is how many it has; None leaves that as it was made. ``images``: build the container images if need be;
    once built, they are served always. ``newer``: the template of Debian 13 as well, likewise.
    """
    if containers:
        _need_machine()
    lab.prepare()
    with lab.changing():
        if lab.daemon_pid() is not None:
            ready = _wait_ready(lab, lab.daemon_pid)
            if ready.containers != containers:
                raise LabError("the lab is up in its other form (with or without containers): scripts/lab down first")
            if nodes is not None and nodes != len(lab.nodes):
                raise LabError(f"the lab is up with {len(lab.nodes)} node(s): scripts/lab down first")
            if images and ready.image is None:
                raise LabError("the lab is up without its container images: scripts/lab down first")
            if newer and ready.template_newer is None:
                raise LabError("the lab is up without the template of Debian 13: scripts/lab down first")
            say(f"is up already: {ready.endpoint}")
            return
        if nodes is not None:
            lab.set_node_count(nodes)
        if containers:
            # Here rather than in the daemon, so that one sees what takes time.
            from lab.daemon import IMAGE_CACHE, TEMPLATE_CACHE  # noqa: PLC0415 - loads the whole API
            from lab.image import ensure_images  # noqa: PLC0415
            from lab.services.source import SOURCE_CACHE, ensure_source  # noqa: PLC0415
            from pvelab.template import NEWER, ensure_template  # noqa: PLC0415

            template = ensure_template(TEMPLATE_CACHE, say)
            if newer:
                ensure_template(TEMPLATE_CACHE, say, NEWER)
            source = ensure_source(SOURCE_CACHE, say)
            if images:
                ensure_images(IMAGE_CACHE, template, source, say)
        began = time.time()
        process = _spawn(lab, containers=containers)
        ready = _wait_ready(lab, lambda: process.pid if process.poll() is None else None, since=began)
        from lab.stacks import prepare_stacks  # noqa: PLC0415

        prepare_stacks(lab)
        say(f"is up: {ready.endpoint}")


def _need_machine() -> None:
    if os.geteuid() != 0:
        raise LabError("real containers need root: use sudo, or scripts/lab up --no-containers")
    path = os.environ.get("PATH", "")
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=f"{path}:/usr/sbin:/sbin")]
    if missing:
        packages = " ".join((CHECKOUT / "lab" / "debian-packages.txt").read_text().split())
        raise LabError(
            f"this machine lacks {', '.join(missing)}.\n"
            f"On Debian or Ubuntu: apt-get install --no-install-recommends {packages}"
        )


def _spawn(lab: Lab, *, containers: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lab.cli", "--dir", str(lab.state_dir), "daemon"]
    command += [] if containers else ["--no-containers"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONSAFEPATH": "1"}
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


def down(lab: Lab) -> None:
    """Stop guests and daemon, remove bridge, rules and mounts; the state stays."""
    with lab.changing():
        _stop_daemon(lab)
        if os.geteuid() == 0 and lab.place.run_dir.exists():
            from pvelab.lxc import LxcRuntime  # noqa: PLC0415 - other verbs need none of it
            from pvelab.network import stop_recorded  # noqa: PLC0415

            network = Network(lab.place)
            LxcRuntime(lab.place, network).end_all()
            stop_recorded(lab.place.run_dir / "git.pid", str(lab.place.run_dir))
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


def destroy(lab: Lab) -> None:
    """``down``, and delete the lab's state: guests, volumes, and the stacks' state."""
    if not lab.exists():
        say("there is no lab")
        return
    down(lab)
    mounts = Path("/proc/self/mounts").read_text().replace("\\040", " ")
    if f" {lab.state_dir}/" in mounts:
        raise LabError(f"something is still mounted below {lab.state_dir}; unmount it, then try again")
    shutil.rmtree(lab.state_dir)
    say("is gone")


def status(lab: Lab) -> int:
    """Show what there is; exit code 3 when the lab is not up."""
    from rich.console import Console  # noqa: PLC0415 - slow to load, and only needed here
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    if not lab.exists():
        console.print("There is no lab. To bring one up: scripts/lab up")
        return 3
    pid = lab.daemon_pid()
    facts = Table("lab", str(lab.state_dir), title_justify="left")
    facts.add_row("daemon", f"pid {pid}, log {lab.log_file}" if pid else "[red]not running[/red]: scripts/lab up")
    running: frozenset[int] = frozenset()
    try:
        ready = lab.ready()
    except LabError:
        ready = None
    if ready:
        facts.add_row("API", ready.endpoint + ("" if pid and _answers(lab, ready) else " [red](does not answer)[/red]"))
        facts.add_row("CA", ready.ca_file)
        newer = ready.template_newer or "[dim]Debian 13: scripts/lab up --debian-13[/dim]"
        facts.add_row("templates", f"{ready.template}\n{newer}" if ready.containers else ready.template)
        facts.add_row("model", f"{ready.model} at {ready.model_url}, log {lab.model_log}")
        if ready.containers:
            facts.add_row("network", f"bridge {ready.bridge} (vmbr0), {ready.subnet}, gateway {ready.gateway}")
            releases = [
                (ready.source_tag, ready.source_commit),
                (ready.source_previous_tag, ready.source_previous_commit),
            ]
            pinned = [f"{tag} = {commit}" for tag, commit in releases if tag]
            facts.add_row("source", "\n".join((f"{ready.source_kind}: {ready.source_url}", *pinned)))
            if ready.image:
                facts.add_row("registry", f"{ready.registry}, CA {ready.registry_ca_file}")
                images = (ready.image, ready.image_previous, ready.image_next, ready.image_base)
                facts.add_row("images", "\n".join(filter(None, images)))
            else:
                facts.add_row("images", "none yet: scripts/lab up --images")
            from pvelab.lxc import LxcRuntime  # noqa: PLC0415

            running = LxcRuntime(lab.place).running(ready.node)
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


def shell(lab: Lab) -> int:
    """A subshell that points at the lab."""
    values = {**os.environ, **environment(lab)}
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        values.pop(name, None)
    say("this shell points at the lab; leave it with exit")
    return subprocess.run([os.environ.get("SHELL") or "/bin/sh"], env=values, check=False).returncode


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/lab", description="A Proxmox VE on this machine, to try the stacks on."
    )
    parser.add_argument("--dir", type=Path, help="the lab's folder (default: $HERMES_LAB_DIR, or .cache/lab)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    about = {
        "up": "bring the lab up",
        "down": "stop guests and lab, remove its network and mounts, keep its state",
        "destroy": "down, and delete its state",
        "status": "show the lab, its guests and volumes",
        "env": 'print what points a shell at the lab: eval "$(scripts/lab env)"',
        "shell": "open a shell that points at the lab",
    }
    made = {name: verbs.add_parser(name, help=text) for name, text in about.items()}
    # What "up" starts; not for people, so without a help line.
    made["daemon"] = verbs.add_parser("daemon")
    for name in ("up", "daemon"):
        made[name].add_argument(
            "--no-containers", action="store_true", help="the API and its volumes only, without root"
        )
    made["up"].add_argument(
        "--nodes", type=int, choices=range(1, 6), metavar="N", help="how many nodes it has (default: as it was made, 1)"
    )
    made["up"].add_argument("--images", action="store_true", help="build the container images, for agentMode docker")
    made["up"].add_argument("--debian-13", action="store_true", help="build the template of Debian 13 as well")
    chosen = parser.parse_args(arguments)
    lab = Lab(chosen.dir.expanduser().absolute()) if chosen.dir else Lab.default()
    try:
        if chosen.verb == "up":
            up(
                lab,
                containers=not chosen.no_containers,
                nodes=chosen.nodes,
                images=chosen.images,
                newer=chosen.debian_13,
            )
            return 0
        return _run(lab, chosen.verb, containers=not getattr(chosen, "no_containers", False))
    except LabError as error:
        say(str(error))
        return 1


def _run(lab: Lab, verb: str, *, containers: bool) -> int:
    if verb == "daemon":
        from lab.daemon import run  # noqa: PLC0415

        run(lab, containers=containers)
    elif verb == "down":
        if lab.exists():
            down(lab)
            say("is down; its state stays (scripts/lab destroy removes it)")
        else:
            say("there is no lab")
    elif verb == "destroy":
        destroy(lab)
    elif verb == "status":
        return status(lab)
    elif verb == "env":
        print(export_lines(environment(lab)), end="")
    else:
        return shell(lab)
    return 0


if __name__ == "__main__":
    sys.exit(main())
