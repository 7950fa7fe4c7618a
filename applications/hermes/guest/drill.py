"""A drill's part in the guest, before the agent has ever run there: walls, then a backup into the empty home.

The walls are root's, in the kernel: the agent has no right to change them. They hold also after a restart. Only sshd
answers, and only the model can be reached. Its names are resolved before, and kept in /etc/hosts; a container of Docker
mode gets them by its definition. What comes from there is forwarded, so there are walls as well; what they let through
besides is the guest's own way to the agent's API.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from applications.hermes.guest import records
from applications.hermes.guest.backend import BACKENDS
from applications.hermes.guest.engine import in_image
from applications.hermes.guest.inputs import Drill, DrillContainer, Place
from applications.hermes.guest.install import install_packages
from applications.hermes.guest.names import CONTAINER_RECORD, KEPT_FOLDER
from applications.hermes.guest.services import enabling, units_present
from applications.hermes.guest.update import Subject
from provisioning.guest.common import (
    LIBRARY,
    Refusal,
    answer_in,
    as_user,
    install_file,
    phase_main,
    run,
)
from provisioning.guest.typed import read
from provisioning.guest.words import names as named
from provisioning.guest.words import said

RULES = Path("/etc/nftables.conf")
"""Debian's service loads it at each start."""
HOSTS = Path("/etc/hosts")
MARK = "# of a drill"
UNPACK_SECONDS = 1800
SSH = 22
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}\Z")

# Arguments: places as JSON, ways. Prints those that can be reached. A datagram that the kernel refuses to send is
# EPERM; one that it refuses to forward is told of by ICMP, at once. Where nobody answers, it may have arrived.
_REACHED = """
import errno, json, socket, sys

def tcp(place):
    try:
        socket.create_connection(place, 3).close()
    except OSError:
        return False
    return True

def udp(place):
    try:
        family = socket.getaddrinfo(*place, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.settimeout(1)
            one.connect(place)
            for _ in range(2):
                one.send(b"")
                try:
                    one.recv(1)
                except TimeoutError:
                    pass
    except PermissionError:
        return False
    except OSError as error:
        return error.errno not in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    return True

ways = {"tcp": tcp, "udp": udp}
print(json.dumps([place for place in json.loads(sys.argv[1]) if any(ways[way](tuple(place)) for way in sys.argv[2:])]))
"""
# Arguments: where our packages are, and the backup's folder. Prints the paths of its databases.
_DATABASES = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from applications.hermes.guest.state import manifest_of
lines = (manifest_of(Path(sys.argv[2])) or {"files": {}})["files"]
print(json.dumps(sorted(path for path, line in lines.items() if line["kind"] == "database")))
"""


def addresses_of(places: Iterable[Place]) -> dict[Place, list[str]]:
    """The IP addresses of each place, as they are now. Refusal for a name that has none."""
    found: dict[Place, list[str]] = {}
    for place in places:
        try:
            rows = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Refusal(f"{place}, the model's endpoint, has no address: {error}") from None
        found[place] = sorted({str(row[4][0]).partition("%")[0] for row in rows})
    return found


@dataclass(frozen=True)
class Bridge:
    """Of the container's network: its interface in the guest, and the port of the agent's API."""

    name: str
    port: int


def bridge_of(container: DrillContainer) -> Bridge:
    """As the engine tells it. Refusal when it does not."""
    backend = BACKENDS[container.backend]
    inspect = (*backend.command, "network", "inspect", "--format", backend.bridge_template, backend.network)
    name = run(*inspect).strip()
    if not INTERFACE.match(name):
        raise Refusal(f"{backend.title} does not say which interface its network {backend.network} has: {said(name)}")
    return Bridge(name, container.port)


def rules(allowed: Mapping[Place, Sequence[str]], bridge: Bridge | None = None) -> str:
    """nftables' rules: nothing passes but loopback, what IPv6 needs of its neighbours, sshd's answers, and `allowed`.

    They keep no connections in mind, so that nobody who comes from outside opens a way out: only sshd has port 22.
    From a container nothing passes but to `allowed`, and answers of the API to the guest itself. A packet has to pass
    every table, so what an engine lets through in its own stays closed.
    """
    ends = sorted({(address, place.port) for place, addresses in allowed.items() for address in addresses})
    families = [
        (f"ip{'6' if ipaddress.ip_address(address).version == 6 else ''}", address, port) for address, port in ends
    ]
    neighbours = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert } accept"
    refuse = "reject with icmpx type admin-prohibited"
    answers = "tcp flags & (syn | ack) != syn accept"
    inside: dict[str, list[str]] = {"input": [], "output": [], "forward": []}
    if bridge is not None:
        inside = {
            "input": [f'iifname "{bridge.name}" tcp sport {bridge.port} {answers}'],
            "output": [
                f'oifname "{bridge.name}" tcp dport {bridge.port} accept',
                # What the forward chain answers with.
                f'oifname "{bridge.name}" icmp type destination-unreachable accept',
            ],
            "forward": [
                *(
                    line
                    for family, address, port in families
                    for line in (
                        f'iifname "{bridge.name}" {family} daddr {address} tcp dport {port} accept',
                        f'oifname "{bridge.name}" {family} saddr {address} tcp sport {port} accept',
                    )
                ),
                refuse,
            ],
        }
    chains = {
        "input": [
            'iifname "lo" accept',
            f"tcp dport {SSH} accept",
            neighbours,
            *(f"{family} saddr {address} tcp sport {port} accept" for family, address, port in families),
            *inside["input"],
        ],
        "output": [
            'oifname "lo" accept',
            f"tcp sport {SSH} {answers}",
            neighbours,
            *(f"{family} daddr {address} tcp dport {port} accept" for family, address, port in families),
            *inside["output"],
            refuse,
        ],
        "forward": inside["forward"],
    }
    # Only this table is made anew: the engine has its own, without which no container has a network.
    lines = [f"#!/usr/sbin/nft -f\n{MARK}\ntable inet drill\ndelete table inet drill\ntable inet drill {{"]
    for chain, its in chains.items():
        lines += [f"chain {chain} {{", f"type filter hook {chain} priority 0; policy drop;", *its, "}"]
    return "\n".join([*lines, "}", ""])


def close_network(allowed: Mapping[Place, Sequence[str]], bridge: Bridge | None) -> None:
    """Have the walls stand, and the model's names lead to the addresses that are let through."""
    kept = [line for line in HOSTS.read_text(encoding="utf-8").splitlines() if not line.endswith(MARK)]
    kept += [f"{address} {place.host} {MARK}" for place, found in allowed.items() for address in found]
    install_file(HOSTS, "\n".join([*kept, ""]), mode=0o644, gid=0)
    install_file(RULES, rules(allowed, bridge), mode=0o644, gid=0)
    run(*enabling("nftables.service"))
    # Its stop would take away the engine's tables as well.
    run("systemctl", "reload-or-restart", "nftables.service")


def reached(given: Drill, places: Sequence[Place], *ways: str, inside: bool = False) -> list[Place]:
    """Those that a process of the agent's user reaches; `inside`: in a container, where the agent's will be."""
    arguments = (json.dumps([[place.host, place.port] for place in places]), *ways)
    told, container = "trying the network", given.container
    if inside and container is not None:
        backend, uid, gid = BACKENDS[container.backend], given.facts.uid, container.gid
        network = backend.network
        answer = in_image(backend, container.image, _REACHED, *arguments, uid=uid, gid=gid, network=network)
    else:
        answer = as_user(given.facts.user, "/usr/bin/python3", "-I", "-c", _REACHED, *arguments, told_as=told)
    return [Place(str(host), int(port)) for host, port in answer_in(answer, told)]


@dataclass(frozen=True)
class Walls:
    """`closed`: what answered before and does not any more, in words. `hosts`: HOST:ADDRESS of the model's names."""

    closed: list[str]
    hosts: list[str]


def wall_off(given: Drill) -> Walls:
    """Close the network, and prove it as the agent's user.

    Refusal when anything else can be reached, or the model can't.
    """
    allowed, container = addresses_of(given.model), given.container
    elsewhere = [Place(one, place.port) for place in given.elsewhere for one in _resolved(place)]
    before = reached(given, elsewhere, "tcp")
    close_network(allowed, bridge_of(container) if container else None)
    model = [Place(address, place.port) for place, found in allowed.items() for address in found]
    for inside in (False, True) if container else (False,):
        if open_ways := reached(given, elsewhere, "udp", "tcp", inside=inside):
            ways = named(map(str, open_ways))
            raise Refusal(f"the walls do not hold: the agent would reach {ways}. It was not started.")
        answering = reached(given, model, "tcp", inside=inside)
        for place, found in allowed.items():
            if not any(Place(address, place.port) in answering for address in found):
                raise Refusal(f"the model's endpoint {place} does not answer here. The agent was not started.")
    pairs = [(place.host, address) for place, found in allowed.items() for address in found]
    return Walls([str(place) for place in before], [f"{host}:{address}" for host, address in pairs if host != address])


def _resolved(place: Place) -> list[str]:
    """The addresses of other machines. What has none can't be reached either."""
    with contextlib.suppress(Refusal):
        return [each for each in addresses_of([place])[place] if not ipaddress.ip_address(each).is_loopback]
    return []


def restore(given: Drill) -> dict[str, Any]:
    """The backup as the home. All that reads it runs as the agent's user, for the agent may have written it.

    Answers how many files were written, and the paths of its databases.
    """
    facts, name = given.facts, given.backup
    folder = f"{facts.home}/{KEPT_FOLDER}/backups"
    as_user(facts.user, "sh", "-c", 'umask 077; mkdir -p "$1" && rm -rf "$1/$2"', "sh", folder, name)
    # Root opens the archive, which is in a folder of its own; tar gets it open.
    script = 'exec runuser --user "$1" -- /usr/bin/tar --extract --no-same-owner --directory "$2" --file - <"$3"'
    what = "unpacking the backup"
    run("sh", "-c", script, "sh", facts.user, folder, given.archive, timeout_s=UNPACK_SECONDS, told_as=what)
    subject = Subject(facts)
    if given.total:
        records.remember(facts.home, name, given.total)
    written = subject.state("restore", name, *([] if given.total else ["--unknown"]))["written"]
    told = "reading the backup's manifest"
    command = ("/usr/bin/python3", "-IB", "-c", _DATABASES, str(LIBRARY), f"{folder}/{name}")
    return {
        "written": written,
        "databases": [str(path) for path in answer_in(as_user(facts.user, *command, told_as=told), told)],
    }


def silence_cron(given: Drill) -> None:
    """No job of the real agent's runs a second time here."""
    script = (
        'cd "$1" && for file in cron/jobs.json profiles/*/cron/jobs.json; do '
        'if [ -e "$file" ]; then mv -T "$file" "$file.of-the-backup"; fi; done'
    )
    as_user(given.facts.user, "sh", "-c", script, "sh", given.facts.hermes_home, told_as="setting cron jobs aside")


def drill(job: Path) -> dict[str, Any]:
    given = read(Drill, (job / "inputs.json").read_text())
    if units_present() or CONTAINER_RECORD.exists():
        raise Refusal("the agent has been started here already: a drill begins in a new container")
    walls = wall_off(given)
    print(f"drill: nothing is reached but {named(map(str, given.model))}")
    install_packages(job)
    found = restore(given)
    print(f"drill: {found['written']} files of {given.backup} are restored")
    silence_cron(given)
    return {**found, **asdict(walls)}


def main() -> int:
    return phase_main(drill)
