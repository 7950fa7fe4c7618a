"""``scripts/lab``: pvelab's command with a model endpoint, the agent's repository, images and the stacks."""

from __future__ import annotations

import contextlib
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from lab.environment import own_variables
from lab.instance import ACCOUNT, IMAGE_CACHE, Lab
from lab.ports import SERVICE_PORTS
from lab.services.source import SOURCE_CACHE, GitDaemon, ensure_source
from pvelab import cli
from pvelab.config import Account
from pvelab.ending import end_with
from pvelab.extension import Extension, Say
from pvelab.network import Network
from pvelab.place import Place
from pvelab.template import ensure_template

EARLIER_RUN = Path("/run/hermes-lab")
"""Where labs were before pvelab was a distribution of its own; a lab that was up then is ended there."""


class StacksLab(Extension[Lab]):
    """What the stacks meet in a lab."""

    program: ClassVar[str] = "scripts/lab"
    module: ClassVar[str] = "lab.cli"
    about: ClassVar[str] = "A Proxmox VE on this machine, to try the stacks on."
    ports: ClassVar[tuple[int, ...]] = SERVICE_PORTS
    account: ClassVar[Account] = ACCOUNT

    def lab(self, folder: Path | None) -> Lab:
        return Lab(folder) if folder else Lab.default()

    def add_arguments(self, up: ArgumentParser) -> None:
        up.add_argument("--images", action="store_true", help="build the container images, for agentMode docker")

    def build(self, lab: Lab, options: Namespace, say: Say) -> None:
        source = ensure_source(SOURCE_CACHE, say)
        if options.images:
            from lab.image import ensure_images  # noqa: PLC0415

            ensure_images(IMAGE_CACHE, ensure_template(lab.template_cache, say), source, say)

    def missing(self, lab: Lab, options: Namespace) -> str | None:
        return "its container images" if options.images and lab.ready().image is None else None

    def start(self, lab: Lab, address: str | None, stack: contextlib.ExitStack, say: Say) -> Mapping[str, Any]:
        from lab.services.all import start  # noqa: PLC0415 - loads all servers

        return start(lab, address, stack, say)

    def stop(self, lab: Lab) -> None:
        GitDaemon(lab.place, "127.0.0.1", lab.state_dir).stop()
        earlier = Place.of(lab.state_dir, run=EARLIER_RUN)
        if earlier.run_dir.exists():
            _end_earlier(earlier)

    def after_up(self, lab: Lab) -> None:
        from lab.stacks import prepare_stacks  # noqa: PLC0415

        prepare_stacks(lab)

    def environment(self, lab: Lab) -> Mapping[str, str | None]:
        return own_variables(lab)

    def status(self, lab: Lab) -> Iterable[tuple[str, str]]:
        ready = lab.ready()
        yield "model", f"{ready.model} at {ready.model_url}, log {lab.model_log}"
        if ready.containers:
            releases = [
                (ready.source_tag, ready.source_commit),
                (ready.source_previous_tag, ready.source_previous_commit),
            ]
            pinned = [f"{tag} = {commit}" for tag, commit in releases if tag]
            yield "source", "\n".join((f"{ready.source_kind}: {ready.source_url}", *pinned))
            if ready.image:
                yield "registry", f"{ready.registry}, CA {ready.registry_ca_file}"
                images = (ready.image, ready.image_previous, ready.image_next, ready.image_base)
                yield "images", "\n".join(filter(None, images))
            else:
                yield "images", f"none yet: {self.program} up --images"


def _end_earlier(place: Place) -> None:
    """End a lab that an earlier release brought up: it had other names for its run folder and its nftables tables."""
    from pvelab.lxc import LxcRuntime  # noqa: PLC0415 - other verbs need none of it

    network = Network(place)
    LxcRuntime(place, network).end_all()
    GitDaemon(place, "127.0.0.1", place.state_dir).stop()
    network.down()
    tables = [f"inet hermes_lab_{place.identity}"]
    if not EARLIER_RUN.exists():  # it was the last one
        tables.append("ip hermes_lab_forward")
    for table in tables:
        rules = f"table {table}\ndelete table {table}\n"
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, timeout=30)


def main(arguments: list[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    return cli.main(arguments, StacksLab())


if __name__ == "__main__":
    end_with(main)
