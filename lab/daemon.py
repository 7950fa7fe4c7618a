"""The lab's one process: the API, and with containers the network and the services on the bridge.

It may be killed at any moment. Guests, the bridge, name service and git outlive
it; a new one finds them and goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from lab.image import AGENT_REPOSITORY, BASE_REPOSITORY, BASE_TAG, ImageRecipe, again, cached_images
from lab.instance import CACHE, Lab, Ready
from lab.services.model import MODEL, ModelEndpoint
from lab.services.registry import Registry
from lab.services.source import SOURCE_CACHE, GitDaemon, Source, ensure_source
from pvelab.certificates import ensure_certificates
from pvelab.config import LabConfig, storages_for
from pvelab.lxc import LxcRuntime
from pvelab.network import MODEL_PORT, REGISTRY_PORT, Network
from pvelab.nodeshell import NodeShell
from pvelab.runtime import Runtime
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime
from pvelab.template import NEWER, Template, cached_template, ensure_template

NODE = "pve"
TEMPLATE_CACHE = CACHE / "lab-template"
IMAGE_CACHE = CACHE / "lab-images"
PLACEHOLDER = "debian-12-standard_12.0-1_amd64.tar.zst"
"""What a lab without containers lists as its template; it is never unpacked."""


def say(line: str) -> None:
    """One line of the daemon's log."""
    sys.stdout.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n")
    sys.stdout.flush()


def run(lab: Lab, *, containers: bool) -> None:
    """Run until SIGTERM or SIGINT."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    with lab.being_the_daemon(), contextlib.ExitStack() as stack:
        if containers:
            _with_containers(lab, stack)
        else:
            _without_containers(lab, stack)
        say("ready")
        end.wait()
        say("stopping; guests go on running")


def _with_containers(lab: Lab, stack: contextlib.ExitStack) -> None:
    network = Network(lab.place)
    plan = network.up()
    say(f"bridge {lab.place.bridge} has {plan.subnet}")
    template = ensure_template(TEMPLATE_CACHE, say)
    source = ensure_source(SOURCE_CACHE, say)
    previous = source.previous
    model = _model(lab, str(plan.gateway), MODEL_PORT, stack)
    git = GitDaemon(lab.place, str(plan.gateway), source.repository.parent)
    git.start()
    server, config, shells = _server(lab, LxcRuntime(lab.place, network), stack, mtu=network.mtu)
    # One that nobody asked for is not built: it takes a minute or two.
    newer = cached_template(TEMPLATE_CACHE, NEWER)
    offer_templates(config, [template, newer] if newer else [template])
    ready = _common(server, shells, model, volid_of(template), containers=True)
    ready = replace(
        ready,
        template_newer=volid_of(newer) if newer else None,
        bridge=lab.place.bridge,
        gateway=str(plan.gateway),
        subnet=str(plan.subnet),
        source_kind=source.kind,
        source_url=git.url(source),
        source_version=source.newest.version,
        source_tag=source.newest.tag,
        source_commit=source.newest.commit,
        source_previous_version=previous.version if previous else None,
        source_previous_tag=previous.tag if previous else None,
        source_previous_commit=previous.commit if previous else None,
    )
    lab.say_ready(_serve_images(lab, ready, source, str(plan.gateway), stack))


def _serve_images(lab: Lab, ready: Ready, source: Source, address: str, stack: contextlib.ExitStack) -> Ready:
    """Start the registry and tell of it; unchanged where `lab up --images` never built anything to serve."""
    recipe = ImageRecipe.of(source)
    images = cached_images(IMAGE_CACHE, recipe)
    if images is None:
        return ready
    # A CA of its own: the API's is made anew whenever the API's names change.
    trust = ensure_certificates(lab.state_dir / "registry" / "ca", [address])
    registry = Registry(address, REGISTRY_PORT, images, trust.server_file)
    registry.start()
    stack.callback(registry.stop)
    say(f"the registry answers at {registry.address}")
    return replace(
        ready,
        registry=registry.address,
        registry_ca_file=str(trust.ca_file),
        image=registry.reference(AGENT_REPOSITORY, recipe.newest),
        image_next=registry.reference(AGENT_REPOSITORY, again(recipe.newest)),
        image_previous=registry.reference(AGENT_REPOSITORY, source.previous.tag) if source.previous else None,
        image_base=registry.reference(BASE_REPOSITORY, BASE_TAG),
    )


def _without_containers(lab: Lab, stack: contextlib.ExitStack) -> None:
    model = _model(lab, "127.0.0.1", 0, stack)
    server, config, shells = _server(lab, SimulatedRuntime(lab.state_dir / "simulated.json"), stack)
    for node in config.nodes:
        folder = config.template_dir(node)
        folder.mkdir(parents=True, exist_ok=True)
        placeholder = folder / PLACEHOLDER
        if not placeholder.exists():
            placeholder.write_text("This lab runs no containers, so its template is empty.\n")
    lab.say_ready(_common(server, shells, model, f"local:vztmpl/{PLACEHOLDER}", containers=False))


def _server(
    lab: Lab, runtime: Runtime, stack: contextlib.ExitStack, mtu: int = 1500
) -> tuple[LabServer, LabConfig, dict[str, NodeShell]]:
    config = LabConfig(
        state_dir=lab.state_dir,
        runtime=runtime,
        nodes=lab.nodes,
        storages=storages_for(lab.nodes),
        port=lab.last_port(),
        bridge_mtu=mtu,
    )
    server = LabServer(config)
    try:
        server.start()
    except OSError as error:
        # Somebody else took the port while the lab was down.
        config = replace(config, port=0)
        say(f"port {lab.last_port()} can't be had ({error}); taking another: evaluate scripts/lab env anew")
        server = LabServer(config)
        server.start()
    stack.callback(server.stop)
    server.seed_demo_access()
    shells = {node: _shell(lab, node, stack) for node in config.nodes}
    say(f"the API answers at {server.endpoint}")
    return server, config, shells


def _shell(lab: Lab, node: str, stack: contextlib.ExitStack) -> NodeShell:
    """A node's SSH server, at the port that it had last, if that can be had."""
    shell = NodeShell(lab.state_dir, lab.ssh_key_file.with_suffix(".pub"), node=node)
    try:
        shell.start(lab.last_ssh_port(node))
    except OSError:
        shell.start()
    stack.callback(shell.stop)
    return shell


def _model(lab: Lab, host: str, port: int, stack: contextlib.ExitStack) -> ModelEndpoint:
    model = ModelEndpoint(host, port, lab.model_key_file.read_text().strip(), lab.model_log)
    model.start()
    stack.callback(model.stop)
    say(f"the model answers at {model.base_url}")
    return model


def volid_of(template: Template) -> str:
    """How the API calls a template."""
    return f"local:vztmpl/{template.archive.name}"


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


def _common(
    server: LabServer, shells: dict[str, NodeShell], model: ModelEndpoint, volid: str, *, containers: bool
) -> Ready:
    return Ready(
        containers=containers,
        endpoint=server.endpoint,
        port=int(server.endpoint.rstrip("/").rpartition(":")[2]),
        ca_file=str(server.ca_file),
        node=NODE,
        template=volid,
        model_url=model.base_url,
        model=MODEL,
        node_ssh_port=shells[NODE].port,
        node_ssh_host_key=shells[NODE].host_key,
        node_ssh={node: {"port": shell.port, "host_key": shell.host_key} for node, shell in shells.items()},
    )
