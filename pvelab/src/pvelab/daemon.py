"""The lab's one process: the API, and with containers the network and the services on the bridge.

It may be killed at any moment. Guests, the bridge and the name service outlive it; a new one finds them and goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pvelab import startall
from pvelab.cluster import Cluster
from pvelab.config import LabConfig, storages_for
from pvelab.extension import Extension
from pvelab.instance import Lab
from pvelab.lxc import LxcRuntime
from pvelab.network import Network
from pvelab.nodeshell import NodeShell
from pvelab.runtime import Runtime
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime
from pvelab.template import NEWER, Template, cached_template, ensure_template, volid_of

PLACEHOLDER = "debian-12-standard_12.0-1_amd64.tar.zst"
"""What a lab without containers lists as its template; it is never unpacked."""


def say(line: str) -> None:
    """One line of the daemon's log."""
    sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n")
    sys.stdout.flush()


def run(lab: Lab, extension: Extension[Any], *, containers: bool) -> None:
    """Run until SIGTERM or SIGINT."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    with lab.being_the_daemon(), contextlib.ExitStack() as stack:
        cluster, facts = (_with_containers if containers else _without_containers)(lab, extension, stack)
        lab.say_ready(lab.ready_type(containers=containers, **facts))
        say("ready")
        if not lab.was_up():
            say("starting the guests with onboot")
            for node in lab.nodes:
                startall.start_at_boot(cluster, node)
            lab.note_up()
        end.wait()
        say("stopping; guests go on running")


def _with_containers(
    lab: Lab, extension: Extension[Any], stack: contextlib.ExitStack
) -> tuple[Cluster, dict[str, Any]]:
    network = Network(lab.place, extension.ports)
    plan = network.up()
    say(f"bridge {lab.place.bridge} has {plan.subnet}")
    template = ensure_template(lab.template_cache, say)
    services = extension.start(lab, str(plan.gateway), stack, say)
    cluster, facts = _serve(lab, extension, LxcRuntime(lab.place, network), stack, mtu=network.mtu)
    # One that nobody asked for is not built: it takes a minute or two.
    newer = cached_template(lab.template_cache, NEWER)
    offer_templates(cluster.config, [template, newer] if newer else [template])
    return cluster, {
        **facts,
        "template": volid_of(template),
        "template_newer": volid_of(newer) if newer else None,
        "bridge": lab.place.bridge,
        "gateway": str(plan.gateway),
        "subnet": str(plan.subnet),
        **services,
    }


def _without_containers(
    lab: Lab, extension: Extension[Any], stack: contextlib.ExitStack
) -> tuple[Cluster, dict[str, Any]]:
    services = extension.start(lab, None, stack, say)
    cluster, facts = _serve(lab, extension, SimulatedRuntime(lab.power_file), stack)
    for node in cluster.config.nodes:
        folder = cluster.config.template_dir(node)
        folder.mkdir(parents=True, exist_ok=True)
        placeholder = folder / PLACEHOLDER
        if not placeholder.exists():
            placeholder.write_text("This lab runs no containers, so its template is empty.\n")
    return cluster, {**facts, "template": f"local:vztmpl/{PLACEHOLDER}", **services}


def _serve(
    lab: Lab, extension: Extension[Any], runtime: Runtime, stack: contextlib.ExitStack, mtu: int = 1500
) -> tuple[Cluster, dict[str, Any]]:
    """Start the API and a way to root on each node; answers what Ready says about them."""
    config = LabConfig(
        state_dir=lab.state_dir,
        runtime=runtime,
        nodes=lab.nodes,
        pve=lab.pve,
        storages=storages_for(lab.nodes, lab.more_storages),
        port=lab.last_port(),
        bridge_mtu=mtu,
        account=extension.account.on_storages(lab.more_storages),
    )
    server = LabServer(config)
    try:
        server.start()
    except OSError as error:
        # Somebody else took the port while the lab was down.
        config = replace(config, port=0)
        say(f"port {lab.last_port()} can't be had ({error}); taking another: evaluate `{lab.command} env` again")
        server = LabServer(config)
        server.start()
    stack.callback(server.stop)
    server.seed_access()
    shells = {node: _shell(lab, node, stack) for node in config.nodes}
    say(f"the API answers at {server.endpoint}")
    first = config.nodes[0]
    return server.cluster, {
        "endpoint": server.endpoint,
        "port": server.port,
        "ca_file": str(server.ca_file),
        "node": first,
        "node_ssh_port": shells[first].port,
        "node_ssh_host_key": shells[first].host_key,
        "node_ssh": {node: {"port": shell.port, "host_key": shell.host_key} for node, shell in shells.items()},
    }


def _shell(lab: Lab, node: str, stack: contextlib.ExitStack) -> NodeShell:
    """A node's SSH server, at the port that it had last, if that can be had."""
    shell = NodeShell(lab.state_dir, lab.ssh_key_file.with_suffix(".pub"), node=node)
    try:
        shell.start(lab.last_ssh_port(node))
    except OSError:
        shell.start()
    stack.callback(shell.stop)
    return shell


def offer_templates(config: LabConfig, templates: Sequence[Template]) -> None:
    """List the templates in the storage ``local`` of every node, and no other that the lab has built."""
    wanted = {template.archive.name: template.archive for template in templates}
    for node in config.nodes:
        folder = config.template_dir(node)
        folder.mkdir(parents=True, exist_ok=True)
        for other in folder.glob("debian-*-standard_*"):
            if other.is_symlink() and other.name not in wanted:
                other.unlink()
        for name, archive in wanted.items():
            link = folder / name
            if not (link.is_symlink() and link.resolve() == archive.resolve()):
                link.unlink(missing_ok=True)
                link.symlink_to(archive)
