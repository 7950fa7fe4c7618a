"""The cattle's network card: where it is on the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator

from proxmox.errors import Fault
from proxmox.network import (
    MTU,
    VLAN,
    WITHOUT_ADDRESS,
    Family,
    address_fault,
    gateway_fault,
    is_address_config,
    is_dns_name,
    is_hardware_address,
    is_ip,
    same_address,
    split_list,
)
from settings.kinds import matches, or_empty
from settings.section import Section, refuse, rule, setting

_EXAMPLE: dict[Family, str] = {4: "192.168.1.205/24", 6: "2001:db8::205/64"}
_ROUTER: dict[Family, str] = {4: "192.168.1.1", 6: "fe80::1"}
_LONGEST: dict[Family, int] = {4: 32, 6: 128}


def _address(value: str, family: Family) -> str:
    if not is_address_config(value, family):
        words = ", ".join(sorted(WITHOUT_ADDRESS[family]))
        rule = f"must be {words} or an IPv{family} address with its prefix, 8 to {_LONGEST[family]}"
        raise refuse(rule, f"write it like {_EXAMPLE[family]}")
    fault = address_fault(value, family)
    if fault:
        raise refuse(fault, "choose one of the bridge's network")
    return value


def _router(value: str, family: Family) -> str:
    if not is_ip(value, family):
        raise refuse(f"must be an IPv{family} address", f"write it like {_ROUTER[family]}, or leave it empty")
    return value


def _name_servers(value: str) -> str:
    servers = split_list(value)
    if not all(is_ip(server, 4) or is_ip(server, 6) for server in servers):
        raise refuse("must be IP addresses, apart by spaces", "write it like 192.168.1.1 9.9.9.9, or leave it empty")
    return " ".join(servers)


def _search_domains(value: str) -> str:
    domains = split_list(value)
    if not all(map(is_dns_name, domains)):
        raise refuse("must be domains, apart by spaces", "write it like home.example.org, or leave it empty")
    return " ".join(domains)


def _hardware_address(value: str) -> str:
    if not is_hardware_address(value):
        rule = "must be the hardware address of one card, whose first byte is even"
        raise refuse(rule, "write it like BC:24:11:00:00:01, or leave it empty")
    return value.upper()


def _zero_or(values: range) -> Callable[[int], int]:
    def check(value: int) -> int:
        if value and value not in values:
            raise refuse(f"must be {values.start} to {values.stop - 1}, or 0: not set", "correct it, or leave it out")
        return value

    return check


class NetworkSettings(Section):
    """net0 of the cattle, eth0 inside. What is empty is not declared: what the container has there stays."""

    # Proxmox takes these letters, the kernel 15 of them.
    bridge: Annotated[str, matches(r"[-_.A-Za-z0-9]{1,15}", "must be a bridge's name", "write it like vmbr0")] = (
        setting("cattleBridge", "vmbr0", "The bridge of the cattle's eth0.")
    )
    address: Annotated[str, AfterValidator(partial(_address, family=4))] = setting(
        "cattleAddress",
        "dhcp",
        "The cattle's IPv4 address with its prefix, 192.168.1.205/24, or dhcp; or manual, where the guest sees to it.",
    )
    gateway: Annotated[str, or_empty(partial(_router, family=4))] = setting(
        "cattleGateway",
        "",
        "The IPv4 gateway, with a static address. With /32 it may lie anywhere, as on dedicated servers.",
    )
    address6: Annotated[str, or_empty(partial(_address, family=6))] = setting(
        "cattleAddress6",
        "",
        "The cattle's IPv6 address with its prefix, 2001:db8::205/64, or auto (SLAAC), dhcp or manual. Empty: not set.",
    )
    gateway6: Annotated[str, or_empty(partial(_router, family=6))] = setting(
        "cattleGateway6", "", "The IPv6 gateway, with a static IPv6 address."
    )
    nameserver: Annotated[str, AfterValidator(_name_servers)] = setting(
        "cattleNameserver",
        "",
        "The name servers, apart by spaces, in the order in which they are asked. Empty: not set; the node's at first.",
    )
    search_domain: Annotated[str, AfterValidator(_search_domains)] = setting(
        "cattleSearchDomain",
        "",
        "The search domains of name service, apart by spaces. Empty: not set; the node's at first.",
    )
    vlan: Annotated[int, AfterValidator(_zero_or(VLAN))] = setting(
        "cattleVlan", 0, "The VLAN tag of the cattle's eth0, 1 to 4094. 0: not set."
    )
    mtu: Annotated[int, AfterValidator(_zero_or(MTU))] = setting(
        "cattleMtu", 0, "The MTU of the cattle's eth0, not above the bridge's. 0: not set."
    )
    firewall: Literal["", "true", "false"] = setting(
        "cattleFirewall",
        "",
        "Whether Proxmox's firewall rules apply to the cattle's eth0: true or false. Empty: not set.",
    )
    hardware_address: Annotated[str, or_empty(_hardware_address)] = setting(
        "cattleHardwareAddress",
        "",
        "The hardware address of the cattle's eth0. Empty: not set; Proxmox chooses one for each new container.",
    )

    @property
    def static_ip(self) -> str | None:
        """The IPv4 address without its prefix; None where the settings do not tell it."""
        return self.address.partition("/")[0] if "/" in self.address else None

    @rule
    def _gateway_fits(self) -> Iterator[Fault]:
        yield from self._gateway_faults("gateway", self.gateway, self.address)
        if self.static_ip and not self.gateway:
            yield self.fault("gateway", "a static address needs a gateway: the agent goes by it", "set cattleGateway")

    @rule
    def _gateway6_fits(self) -> Iterator[Fault]:
        yield from self._gateway_faults("gateway6", self.gateway6, self.address6)

    def _gateway_faults(self, name: str, gateway: str, address: str) -> Iterator[Fault]:
        key, own = ("cattleGateway6", "cattleAddress6") if name == "gateway6" else ("cattleGateway", "cattleAddress")
        if gateway and "/" not in address:
            yield self.fault(name, "a gateway goes with a static address only", f"set {own}, or leave {key} empty")
        elif gateway:
            fault = gateway_fault(gateway, address)
            if fault:
                yield self.fault(name, fault, f"correct {key} or {own}")

    @rule
    def _name_servers_are_others(self) -> Iterator[Fault]:
        own = [address.partition("/")[0] for address in (self.address, self.address6) if "/" in address]
        if any(same_address(server, address) for server in split_list(self.nameserver) for address in own):
            remedy = "set cattleNameserver to the server's, or choose another"
            yield self.fault("nameserver", "is the cattle's own address", remedy)
