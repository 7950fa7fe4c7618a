"""A clone tells the network who has its address, in network namespaces of their own."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

SCRIPT = Path(__file__).resolve().parents[2] / "provisioning" / "scripts" / "announce.sh"
GUEST, GATEWAY = "10.201.7.20", "10.201.7.1"
BEFORE, NOW = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
MARK = f"announce{os.getpid()}"
MACHINES = {"gateway": GATEWAY, "workstation": "10.201.7.9", "guest": GUEST}
"""A person's computer, the router and the container, on one bridge."""


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def inside(name: str, *words: str) -> str:
    return run("ip", "netns", "exec", f"{MARK}-{name}", *words)


@pytest.fixture
def network() -> Iterator[None]:
    try:
        for name in ("bridge", *MACHINES):
            run("ip", "netns", "add", f"{MARK}-{name}")
        inside("bridge", "ip", "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        inside("bridge", "ip", "link", "set", "bridge", "up")
        for name, address in MACHINES.items():
            inside("bridge", "ip", "link", "add", name, "type", "veth", "peer", "eth0", "netns", f"{MARK}-{name}")
            inside("bridge", "ip", "link", "set", name, "master", "bridge", "up")
            inside(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        inside("guest", "ip", "link", "set", "eth0", "address", NOW)
        for name in MACHINES:
            inside(name, "ip", "link", "set", "eth0", "up")
        inside("guest", "ip", "route", "add", "default", "via", GATEWAY)
        yield
    finally:
        for name in ("bridge", *MACHINES):
            subprocess.run(["ip", "netns", "delete", f"{MARK}-{name}"], check=False, capture_output=True, timeout=30)


def card_known_to(name: str) -> str:
    """Where a machine sends what is for the guest."""
    [entry] = json.loads(inside(name, "ip", "-j", "neighbour", "show", GUEST))
    return str(entry["lladdr"])


@pytest.mark.usefixtures("network")
def test_who_spoke_with_the_container_before_finds_the_new_one_at_once() -> None:
    knowing = ("workstation", "gateway")
    for name in knowing:
        # A kernel takes nothing else for a second after it has learned something (arp(7), locktime). Here it has just.
        inside(name, "sysctl", "-qw", "net.ipv4.neigh.eth0.locktime=0")
        # As it is right after a connection: held for true, and not asked again for half a minute.
        inside(name, "ip", "neighbour", "replace", GUEST, "lladdr", BEFORE, "dev", "eth0", "nud", "reachable")
    assert [card_known_to(name) for name in knowing] == [BEFORE, BEFORE]
    inside("guest", "bash", str(SCRIPT))
    deadline = time.monotonic() + 10
    while [card_known_to(name) for name in knowing] != [NOW, NOW]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("network")
def test_a_container_without_a_gateway_starts_all_the_same() -> None:
    inside("guest", "ip", "route", "delete", "default")
    inside("guest", "bash", str(SCRIPT))
