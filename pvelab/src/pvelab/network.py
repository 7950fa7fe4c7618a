"""The lab's own network: a bridge with addresses by DHCP, name service and NAT.

A guest sees what it would see on a home network behind ``vmbr0``: a gateway that
gives out addresses and answers names. The host's ports are shut to guests, except
the lab's services on the bridge's own address.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from pvelab.place import RUN, LabError, Place, leave, machine_lock

SETTINGS = Path("/proc/sys")
NEEDED = {
    "net/ipv4/ip_forward": 1,
    # Each service and each Docker container has a session key, and the same root in every guest (idmap.py) owns them
    # all: with the kernel's 200 of 20000 bytes, the third lab's containers fail with "disk quota exceeded".
    "kernel/keys/maxkeys": 10_000,
    "kernel/keys/maxbytes": 1_000_000,
}
"""The machine's settings that labs need, and their least values. They are the machine's: no lab has its own."""
FORWARD_TABLE = "pvelab_forward"
"""One for the machine, while labs are up and forwarding is on for them alone."""


class NetworkError(LabError):
    """The lab's network can't be set up; the text says why and what to do."""


@dataclass(frozen=True)
class Plan:
    """The addresses of one lab: ``.1`` is the bridge, 10 to 149 are for fixed addresses, 150 to 249 for DHCP."""

    subnet: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        return self.subnet[1]

    @property
    def dhcp_range(self) -> tuple[IPv4Address, IPv4Address]:
        return self.subnet[150], self.subnet[249]

    def fixed(self, number: int) -> IPv4Interface:
        """A fixed address, with the prefix length."""
        if not 10 <= number <= 149:
            raise ValueError(f"fixed addresses are numbered 10 to 149, not {number}")
        return IPv4Interface(f"{self.subnet[number]}/{self.subnet.prefixlen}")


def choose_subnet(identity: str, taken: Iterable[IPv4Network]) -> IPv4Network:
    """A /24 out of 10.64.0.0/10 that overlaps nothing in ``taken``, the same one each time where possible.

    ``identity`` is the lab's, in hexadecimal; it decides where the search starts, so that
    labs seldom want the same subnet.
    """
    busy = list(taken)
    start = int(identity, 16)
    for step in range(1 << 14):
        number = (start + step) % (1 << 14)
        candidate = IPv4Network(((10 << 24) + (64 << 16) + (number << 8), 24))
        if not any(candidate.overlaps(other) for other in busy):
            return candidate
    raise NetworkError("every /24 of 10.64.0.0/10 is in use on this machine; remove unused bridges or labs")


def networks_in_use(routes: str, addresses: str, resolv_conf: str) -> list[IPv4Network]:
    """The networks this machine knows: from ``ip -j route``, ``ip -j -4 address`` and resolv.conf."""
    found: list[IPv4Network] = []
    for route in json.loads(routes or "[]"):
        if route.get("dst", "default") != "default":
            found.append(IPv4Network(route["dst"], strict=False))
        if "gateway" in route and ":" not in route["gateway"]:
            found.append(IPv4Network(route["gateway"]))
    for link in json.loads(addresses or "[]"):
        for entry in link.get("addr_info", ()):
            if entry.get("family") == "inet":
                found.append(IPv4Network(f"{entry['local']}/{entry['prefixlen']}", strict=False))
    for server in re.findall(r"^nameserver\s+([0-9.]+)\s*$", resolv_conf, re.MULTILINE):
        found.append(IPv4Network(server))
    return found


def ruleset(table: str, bridge: str, plan: Plan, ports: Sequence[int] = (), *, closed: bool = False) -> str:
    """The lab's packet filter table, for ``nft -f``; replaces an earlier one of the same name in one step.

    ``ports``: of services on the bridge's address, which guests may reach by TCP. ``closed``: guests reach these and
    nothing else, no name server either; refused, so that nobody waits.
    """
    numbers = ", ".join(str(port) for port in ports)
    services = f"ip daddr {plan.gateway} tcp dport {{ {numbers} }} accept" if ports else ""
    names = f"ip daddr {plan.gateway} meta l4proto {{ tcp, udp }} th dport 53 {'reject' if closed else 'accept'}"
    elsewhere = "reject" if closed else 'oifname "hlab*" drop'
    between = f"""\
iifname "{bridge}" oifname != "{bridge}" {elsewhere}
    oifname "{bridge}" iifname != "{bridge}" ct state != {{ established, related }} drop"""
    return f"""\
table inet {table}
delete table inet {table}
table inet {table} {{
  chain out {{
    type nat hook postrouting priority srcnat;
    ip saddr {plan.subnet} ip daddr != {plan.subnet} masquerade
  }}
  chain host {{
    type filter hook input priority filter;
    iifname != "{bridge}" return
    ct state established,related accept
    udp dport 67 accept
    ip daddr {plan.gateway} icmp type echo-request accept
    {names}
    {services}
    meta l4proto tcp reject with tcp reset
    drop
  }}
  chain between {{
    type filter hook forward priority filter;
    {between}
  }}
}}
"""


def forward_ruleset(interfaces: Sequence[str], bridges: Collection[str] = ()) -> str:
    """The packet filter table that keeps a machine from becoming a router for its neighbours, for ``nft -f``.

    ``interfaces``: whose packets were not forwarded before the lab switched that on. They reach the labs' bridges, by
    the rules of each; all else of them is dropped, but answers, and what the machine itself redirects: ports that a
    Docker publishes that was started since. Frames within one of ``bridges`` come by here, too, and pass.
    """
    closed = "\n    ".join(
        f'iifname "{name}" {f"""oifname != "{name}" """ if name in bridges else ""}drop' for name in interfaces
    )
    return f"""\
table ip {FORWARD_TABLE}
delete table ip {FORWARD_TABLE}
table ip {FORWARD_TABLE} {{
  chain forward {{
    type filter hook forward priority filter;
    oifname "hlab*" accept
    ct state established,related accept
    ct status dnat accept
    {closed}
  }}
}}
"""


def guarded_interfaces(default_routes: str, links: Path = Path("/sys/class/net")) -> tuple[list[str], list[str]]:
    """The interfaces to close by `forward_ruleset`, and which of them are bridges.

    Other bridges than the uplink's are left out: they are a Docker's, or a host's of virtual machines, with rules of
    their own. ``default_routes``: as of ``ip -j -4 route show default``.
    """
    uplinks = {str(route.get("dev")) for route in json.loads(default_routes or "[]")}
    names = sorted(link.name for link in links.iterdir() if link.is_dir())
    bridges = [name for name in names if (links / name / "bridge").exists()]
    ports = {name for name in names if (links / name / "brport").exists()}
    others = ports | (set(bridges) - uplinks) | {"lo"}
    return [name for name in names if name not in others and not name.startswith("hlab")], bridges


def dnsmasq_configuration(bridge: str, plan: Plan, mtu: int, run_dir: Path) -> str:
    """The name and address service on the bridge; forwards names to the host's own resolvers."""
    first, last = plan.dhcp_range
    return f"""\
interface={bridge}
bind-interfaces
except-interface=lo
no-hosts
dhcp-authoritative
no-ping
dhcp-range={first},{last},{plan.subnet.netmask},12h
dhcp-option=option:router,{plan.gateway}
dhcp-option=option:dns-server,{plan.gateway}
dhcp-option=option:mtu,{mtu}
dhcp-leasefile={run_dir}/dnsmasq.leases
pid-file={run_dir}/dnsmasq.pid
"""


class Network:
    """The network of one lab. Every method may be repeated; ``up`` after a crash repairs what is missing.

    ``ports``: of services on the bridge's address, which guests may reach by TCP.
    """

    def __init__(self, place: Place, ports: Sequence[int] = ()) -> None:
        self.place = place
        self.ports = tuple(ports)
        self._saved = place.state_dir / "network.json"

    @property
    def plan(self) -> Plan:
        """The saved plan; NetworkError before the first ``up``."""
        try:
            return Plan(IPv4Network(json.loads(self._saved.read_text())["subnet"]))
        except FileNotFoundError:
            raise NetworkError("this lab has no network yet: bring it up first") from None

    @property
    def mtu(self) -> int:
        """The MTU of the way out: a guest whose packets are larger than it loses connections silently."""
        return _uplink_mtu(_output(["ip", "-j", "-4", "route", "show", "default"]))

    def up(self) -> Plan:
        """Make bridge, rules and services; returns the plan."""
        self.place.make_run_dir()
        bridge = self.place.bridge
        with machine_lock(self.place.run_dir.parent):
            plan = self._decide()
            mtu = self.mtu
            fresh = not _link_exists(bridge)
            if fresh:
                _call(["ip", "link", "add", bridge, "type", "bridge", "forward_delay", "0"])
            _call(["ip", "link", "set", bridge, "mtu", str(mtu), "up"])
            _call(["ip", "address", "replace", f"{plan.gateway}/{plan.subnet.prefixlen}", "dev", bridge])
            _call(["nft", "-f", "-"], stdin=ruleset(self.place.table, bridge, plan, self.ports))
            if forwards_for_labs_alone(self.place.run_dir.parent):
                routes = _output(["ip", "-j", "-4", "route", "show", "default"])
                _call(["nft", "-f", "-"], stdin=forward_ruleset(*guarded_interfaces(routes)))
            raise_settings(self.place.run_dir.parent)
        if fresh:
            # One that was left from before is tied to the bridge that is gone.
            stop_recorded(self.place.run_dir / "dnsmasq.pid", str(self.place.run_dir))
        self._serve(plan, mtu)
        return plan

    def close(self) -> None:
        """Cut guests off from all but the lab's services, connections that are open too; until the next ``up``."""
        with machine_lock(self.place.run_dir.parent):
            rules = ruleset(self.place.table, self.place.bridge, self.plan, self.ports, closed=True)
            _call(["nft", "-f", "-"], stdin=rules)

    def down(self) -> None:
        """Remove bridge, rules, services and, once no guest is left, the run folder; the addresses stay saved."""
        stop_recorded(self.place.run_dir / "dnsmasq.pid", str(self.place.run_dir))
        with machine_lock(self.place.run_dir.parent):
            _call(["nft", "-f", "-"], stdin=f"table inet {self.place.table}\ndelete table inet {self.place.table}\n")
            if _link_exists(self.place.bridge):
                _call(["ip", "link", "delete", self.place.bridge])
            if not any(link.name.startswith("hlab") for link in Path("/sys/class/net").iterdir()):
                restore_settings(self.place.run_dir.parent)
                _call(["nft", "-f", "-"], stdin=f"table ip {FORWARD_TABLE}\ndelete table ip {FORWARD_TABLE}\n")
            self.place.remove_run_dir()
            leave(self.place.run_dir.parent)

    def _decide(self) -> Plan:
        """The saved subnet, unless another network took it meanwhile; a free one for a new lab."""
        addresses = json.loads(_output(["ip", "-j", "-4", "address"]) or "[]")
        others = json.dumps([link for link in addresses if link.get("ifname") != self.place.bridge])
        routes = json.loads(_output(["ip", "-j", "-4", "route"]) or "[]")
        foreign = json.dumps([route for route in routes if route.get("dev") != self.place.bridge])
        taken = networks_in_use(foreign, others, Path("/etc/resolv.conf").read_text())
        if self._saved.exists():
            plan = self.plan
            if clash := [n for n in taken if n.overlaps(plan.subnet)]:
                raise NetworkError(
                    f"this lab's network {plan.subnet} is now used by another network of this machine ({clash[0]}).\n"
                    f"Free it, or delete {self._saved} to let the lab choose another (fixed addresses change then)."
                )
            return plan
        subnet = choose_subnet(self.place.identity, taken)
        self._saved.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._saved.with_suffix(".new")
        temporary.write_text(json.dumps({"subnet": str(subnet), "bridge": self.place.bridge}) + "\n")
        temporary.replace(self._saved)
        return Plan(subnet)

    def _serve(self, plan: Plan, mtu: int) -> None:
        run_dir = self.place.run_dir
        configuration = run_dir / "dnsmasq.conf"
        text = dnsmasq_configuration(self.place.bridge, plan, mtu, run_dir)
        same = configuration.exists() and configuration.read_text() == text
        if same and recorded_process(run_dir / "dnsmasq.pid", str(run_dir)):
            return
        stop_recorded(run_dir / "dnsmasq.pid", str(run_dir))
        configuration.write_text(text)
        # Goes to the background by itself once it listens.
        _call(["dnsmasq", f"--conf-file={configuration}"])


def raise_settings(saved: Path, settings: Path = SETTINGS) -> None:
    """Give the machine's settings the values that labs need; what they were is noted in the folder ``saved``, once."""
    for name, least in NEEDED.items():
        file, note = settings / name, saved / Path(name).name
        if int(file.read_text()) < least:
            if not note.exists():
                note.write_text(file.read_text())
            file.write_text(f"{least}\n")


def forwards_for_labs_alone(saved: Path, settings: Path = SETTINGS) -> bool:
    """Whether the machine forwards no packets without a lab: it does not now, or did not before the first one."""
    name = "net/ipv4/ip_forward"
    note = saved / Path(name).name
    return int((note if note.exists() else settings / name).read_text()) == 0


def restore_settings(saved: Path, settings: Path = SETTINGS) -> None:
    """Give them back the values that they had before the first lab; for the last one to go."""
    for name in NEEDED:
        note = saved / Path(name).name
        if note.exists():
            (settings / name).write_text(note.read_text())
            note.unlink()


def recorded_process(pid_file: Path, mark: str) -> int | None:
    """The pid in ``pid_file`` when that process still runs and has ``mark`` in its command line (pids are re-used)."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if mark.encode() in command else None


def stop_recorded(pid_file: Path, mark: str, timeout: float = 5.0) -> None:
    """End the recorded process: asked first, killed after ``timeout`` seconds.

    It is waited for by a pidfd. A process has no command line any more while it still has its sockets, and a new one
    could not listen where the old one does.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int(pid_file.read_text())
        process = os.pidfd_open(pid)
        ended = select.poll()
        ended.register(process, select.POLLIN)
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # Without a command line it ends already.
            signals = (signal.SIGTERM, signal.SIGKILL) if mark.encode() in command else () if command else (0,)
            for number in signals:
                signal.pidfd_send_signal(process, number)
                if ended.poll(timeout * 1000):
                    break
        finally:
            os.close(process)
    pid_file.unlink(missing_ok=True)


def _uplink_mtu(default_routes: str) -> int:
    for route in json.loads(default_routes or "[]"):
        try:
            return int(Path(f"/sys/class/net/{route['dev']}/mtu").read_text())
        except (OSError, KeyError):
            continue
    return 1500


def _link_exists(name: str) -> bool:
    return Path(f"/sys/class/net/{name}").exists()


def _output(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if result.returncode:
        raise NetworkError(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout


def _call(command: Sequence[str], stdin: str | None = None) -> None:
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if result.returncode:
        raise NetworkError(f"{' '.join(command)} failed: {result.stderr.strip()}")


__all__ = [
    "RUN",
    "Network",
    "NetworkError",
    "Plan",
    "choose_subnet",
    "dnsmasq_configuration",
    "forward_ruleset",
    "forwards_for_labs_alone",
    "guarded_interfaces",
    "networks_in_use",
    "raise_settings",
    "recorded_process",
    "restore_settings",
    "ruleset",
    "stop_recorded",
]
