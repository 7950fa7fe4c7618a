"""A lab without its API: containers for the tests of the runtime."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pvelab.instance import template_cache
from pvelab.lxc import LxcRuntime
from pvelab.network import Network, Plan
from pvelab.place import Place
from pvelab.runtime import GuestSpec, Interface, Mount, Setup
from pvelab.template import Template, ensure_template

NODE = "pve"
GIB = 1 << 30
DEADLINE = 30.0
PORTS = (8100,)
"""Of services that guests may reach."""


def until(what: str, condition: Callable[[], bool], deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not condition():
        assert time.monotonic() < end, f"not after {deadline:.0f} s: {what}"
        time.sleep(0.05)


def silent(_: str) -> None:
    pass


@dataclass
class Bench:
    """A lab without its API: runtime, network, template, and the guests that a test made."""

    place: Place
    network: Network
    plan: Plan
    runtime: LxcRuntime
    template: Template
    key: Path
    made: list[GuestSpec] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def volume(self, name: str, size: int = GIB // 16) -> Path:
        image = self.place.state_dir / f"{name}.raw"
        self.runtime.format_volume(image, size, root_owner=100000, log=silent)
        return image

    def spec(self, vmid: int, *mounts: Mount, ip: str | None = None, root_size: int = 2 * GIB) -> GuestSpec:
        number = vmid % 100 + 20
        address = ip or str(self.plan.fixed(number))
        gateway = None if address == "dhcp" else str(self.plan.gateway)
        interface = Interface("eth0", "vmbr0", f"BC:24:11:00:01:{number:02X}", address, gateway)
        root = self.place.state_dir / f"vm-{vmid}-disk-0.raw"
        spec = GuestSpec(
            NODE, vmid, f"guest{vmid}", 512, 256, (Mount("rootfs", "/", root), *mounts), (interface,), nesting=True
        )
        if not root.exists():
            self.runtime.format_volume(root, root_size, root_owner=100000, log=silent)
        self.made.append(spec)
        return spec

    def create(self, vmid: int, *mounts: Mount, ip: str | None = None, setup: Setup | None = None) -> GuestSpec:
        """A new guest, its volumes attached after it was unpacked, as the stacks do it."""
        bare = self.spec(vmid, ip=ip)
        keys = (self.key.with_suffix(".pub").read_text().strip(),)
        self.runtime.unpack(bare, self.template.archive, setup or Setup(ssh_public_keys=keys), silent)
        return replace(bare, mounts=(*bare.mounts, *mounts))

    def sh(self, spec: GuestSpec, script: str) -> str:
        done = self.runtime.execute(spec, ["sh", "-ec", script])
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def booted(self, spec: GuestSpec) -> None:
        """Wait until the guest's services are up; none of them may have failed."""
        state = ""

        def settled() -> bool:
            # Early on, systemd does not even answer.
            nonlocal state
            state = self.runtime.execute(spec, ["systemctl", "is-system-running", "--wait"]).stdout.decode().strip()
            return state in {"running", "degraded"}

        until("booted", settled)
        assert state == "running", self.runtime.execute(spec, ["systemctl", "--failed"]).stdout.decode()

    def remove(self, spec: GuestSpec) -> None:
        self.runtime.kill(spec)
        root = spec.mounts[0].image
        assert root is not None
        self.runtime.remove_volume(root)


def ip_of(spec: GuestSpec) -> str:
    return str(spec.interfaces[0].ip).split("/")[0]


@contextmanager
def bench_in(state_dir: Path) -> Iterator[Bench]:
    template = ensure_template(template_cache(), silent)
    state_dir.mkdir(parents=True)
    place = Place.of(state_dir)
    network = Network(place, PORTS)
    key = state_dir / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    runtime = LxcRuntime(place, network)
    try:
        yield Bench(place, network, network.up(), runtime, template, key)
    finally:
        runtime.end_all(timeout=5.0)
        network.down()
