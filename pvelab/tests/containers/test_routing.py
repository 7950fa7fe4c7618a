"""A machine with a lab is no router for its neighbours: the rules, in network namespaces of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from pvelab.network import Plan, forward_ruleset, ruleset

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

PLAN = Plan(IPv4Network("10.201.3.0/24"))
BRIDGE = "hlabtest"
# What is behind each interface of the machine: its address there, and the machine's own.
BEHIND = {
    "neighbour": ("up0", "10.201.1.2", "10.201.1.1"),
    "beyond": ("up1", "10.201.2.2", "10.201.2.1"),
    "guest": ("port0", "10.201.3.20", "10.201.3.1"),
    "docker": ("docker0", "10.201.4.2", "10.201.4.1"),
}


KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=1)
except ConnectionRefusedError:
    sys.exit(0)
except OSError:
    sys.exit(1)
"""


def run(*words: str, stdin: str = "") -> bool:
    return subprocess.run(words, input=stdin, text=True, capture_output=True, check=False, timeout=30).returncode == 0


class Machine:
    """The machine and what is around it, each a namespace."""

    def __init__(self) -> None:
        self.mark = f"lab{os.getpid()}"

    def space(self, name: str) -> str:
        return f"{self.mark}-{name}"

    def inside(self, name: str, *words: str, stdin: str = "") -> None:
        assert run("ip", "netns", "exec", self.space(name), *words, stdin=stdin), (name, words)

    def make(self) -> None:
        assert run("ip", "netns", "add", self.space("machine"))
        self.inside("machine", "ip", "link", "add", BRIDGE, "type", "bridge", "forward_delay", "0")
        self.inside("machine", "ip", "link", "set", BRIDGE, "up")
        self.inside("machine", "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for name, (interface, address, gateway) in BEHIND.items():
            assert run("ip", "netns", "add", self.space(name))
            peer = ("peer", "name", "eth0", "netns", self.space(name))
            self.inside("machine", "ip", "link", "add", interface, "type", "veth", *peer)
            on = BRIDGE if name == "guest" else interface
            if name == "guest":
                self.inside("machine", "ip", "link", "set", interface, "master", BRIDGE)
            self.inside("machine", "ip", "address", "add", f"{gateway}/24", "dev", on)
            self.inside("machine", "ip", "link", "set", interface, "up")
            self.inside(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.inside(name, "ip", "link", "set", "eth0", "up")
            self.inside(name, "ip", "route", "add", "default", "via", gateway)

    def remove(self) -> None:
        for name in ("machine", *BEHIND):
            run("ip", "netns", "delete", self.space(name))

    def reaches(self, source: str, target: str) -> bool:
        """Whether a port that nobody listens on is refused by its machine: what is dropped gets no answer."""
        program = (sys.executable, "-I", "-c", KNOCK, BEHIND[target][1])
        return run("ip", "netns", "exec", self.space(source), *program)


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def test_neighbours_get_no_way_through_the_machine_or_to_its_guests(machine: Machine) -> None:
    assert machine.reaches("neighbour", "beyond")  # what net.ipv4.ip_forward alone does
    assert machine.reaches("neighbour", "guest")
    machine.inside("machine", "nft", "-f", "-", stdin=ruleset("lab", BRIDGE, PLAN))
    assert not machine.reaches("neighbour", "guest")
    # One that forwarded before the lab goes on doing so; else the table of the machine is there, too.
    assert machine.reaches("neighbour", "beyond")
    machine.inside("machine", "nft", "-f", "-", stdin=forward_ruleset(["up0", "up1"]))
    for source, target in (("neighbour", "beyond"), ("beyond", "neighbour"), ("neighbour", "docker")):
        assert not machine.reaches(source, target), (source, target)
    assert not machine.reaches("neighbour", "guest")
    # The guests' own way out, and a Docker's, whose bridge is not in the list.
    for source in ("guest", "docker"):
        for target in ("neighbour", "beyond"):
            assert machine.reaches(source, target), (source, target)
