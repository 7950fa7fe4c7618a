"""One container with a volume, without an API: for a test or a trial that needs a guest and no Proxmox around it."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from lab.instance import TEMPLATE_CACHE
from lab.ports import GIT_PORT, MODEL_PORT, SERVICE_PORTS
from lab.services.model import ModelEndpoint
from lab.services.source import GitDaemon
from pvelab.lxc import LxcRuntime
from pvelab.network import Network, Plan
from pvelab.place import Place
from pvelab.runtime import GuestSpec, Interface, Mount, Setup
from pvelab.template import ensure_template

NODE, VMID = "pve", 105
VOLUME_SIZE = 4 << 30
GUEST_ROOT = 100_000
"""Root of an unprivileged guest, as the machine numbers it."""

Log = Callable[[str], None]


@dataclass
class Bench:
    """The container, its volume (mounted at `home`), and what it meets: a model endpoint, a git server.

    `state`: the folder of all that lasts. `key`: the private SSH key that its root takes. `creation`: what the creation
    of the container said, line by line, as in the log of a task.
    """

    state: Path
    network: Network
    runtime: LxcRuntime
    plan: Plan
    spec: GuestSpec
    key: Path
    root: Path
    volume: Path
    model: ModelEndpoint
    home: str
    running: bool = False
    creation: list[str] = field(default_factory=list)

    def up(self, *, with_volume: bool = True) -> None:
        """Start the container; made of the template first where there is none."""
        if not self.root.exists():
            template = ensure_template(TEMPLATE_CACHE, _silent)
            self.runtime.format_volume(self.root, 20 << 30, root_owner=GUEST_ROOT, log=_silent)
            key = self.key.with_suffix(".pub").read_text().strip()
            self.creation = []
            self.runtime.unpack(self.spec, template.archive, Setup(ssh_public_keys=(key,)), self.creation.append)
        # As the stacks attach it.
        volume = Mount("mp0", self.home, self.volume, options=("nodev", "nosuid"))
        mounts = (*self.spec.mounts, volume) if with_volume else self.spec.mounts
        self.runtime.start(replace(self.spec, mounts=mounts), _silent)
        self.running = True

    def renew(self) -> None:
        """Throw the container away, keep the volume, make it again."""
        self.discard()
        self.up()

    def discard(self) -> None:
        if self.running:
            self.runtime.kill(self.spec)
            self.running = False
        if self.root.exists():
            self.runtime.remove_volume(self.root)

    @property
    def address(self) -> str:
        return str(self.plan.fixed(VMID).ip)

    def git_url(self, repository: Path) -> str:
        """The address at which the guest finds a bare repository that is served (:func:`serve`)."""
        return f"git://{self.plan.gateway}:{GIT_PORT}/{repository.name}"


def _silent(_line: str) -> None:
    """Nobody reads along."""


AnyBench = TypeVar("AnyBench", bound=Bench)


@contextlib.contextmanager
def a_bench(
    make: Callable[..., AnyBench],
    state: Path,
    home: str,
    *,
    model_key: str,
    repository: Path | None,
    volume_size: int = VOLUME_SIZE,
) -> Iterator[AnyBench]:
    """A bench in the folder `state`, its container running; ended with the block, whose files stay.

    `make`: Bench, or something that is one. `repository`: a bare one that is served to the guest. LabError or
    RuntimeFault when the machine does not let it.
    """
    place = Place.of(state)
    network = Network(place, SERVICE_PORTS)
    runtime = LxcRuntime(place, network)
    key = state / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
    )
    with contextlib.ExitStack() as stack:
        plan = network.up()
        stack.callback(network.down)
        stack.callback(runtime.end_all)
        model = ModelEndpoint(str(plan.gateway), MODEL_PORT, model_key, state / "model.log")
        model.start()
        stack.callback(model.stop)
        if repository is not None:
            git = GitDaemon(place, str(plan.gateway), repository.parent)
            git.start()
            stack.callback(git.stop)
        volume = state / "vm-999-disk-1.raw"
        runtime.format_volume(volume, volume_size, root_owner=GUEST_ROOT, log=_silent)
        root = state / "vm-105-disk-0.raw"
        spec = GuestSpec(
            NODE,
            VMID,
            "hermes",
            4096,
            512,
            (Mount("rootfs", "/", root),),
            (Interface("eth0", "vmbr0", "BC:24:11:00:00:05", str(plan.fixed(VMID)), str(plan.gateway)),),
            cores=2,
            nesting=True,
        )
        made = make(state, network, runtime, plan, spec, key, root, volume, model, home)
        made.up()
        yield made
        if made.running:
            runtime.kill(spec)


def clear(state: Path) -> None:
    """End what a bench that was killed has left of itself on the machine. Safe to repeat."""
    place = Place.of(state)
    network = Network(place)
    LxcRuntime(place, network).end_all()
    # Its own processes go by their recorded numbers.
    GitDaemon(place, "127.0.0.1", state).stop()
    network.down()
