"""The cattle's network card: where it is on the network."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from proxmox.addresses import can_be_reached
from proxmox.errors import Fault
from settings.kinds import matches, or_empty
from settings.section import Section, refuse, rule, setting


def _address(value: str) -> str:
    if value == "dhcp":
        return value
    try:
        interface = ipaddress.IPv4Interface(value)
    except ValueError:
        raise refuse("must be dhcp or an IPv4 address with its prefix", "write it like 192.168.1.205/24") from None
    if "/" not in value or interface.network.prefixlen == 32 or interface.ip == interface.network.network_address:
        raise refuse("must name a host and its network's prefix", "write it like 192.168.1.205/24")
    if not can_be_reached(str(interface.ip)):
        raise refuse("is an address that no other machine can reach", "choose one of the bridge's network")
    if interface.network.prefixlen < 31 and interface.ip == interface.network.broadcast_address:
        raise refuse(f"is the broadcast address of {interface.network}, no host's", "choose another")
    return value


def _ip(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        raise refuse("must be an IP address", "write it like 192.168.1.1, or leave it empty") from None
    return value


class NetworkSettings(Section):
    """net0 of the cattle, eth0 inside."""

    bridge: Annotated[str, matches(r"[A-Za-z][A-Za-z0-9_]{0,14}", "must be a bridge's name", "write it like vmbr0")] = (
        setting("cattleBridge", "vmbr0", "The bridge of the cattle's eth0.")
    )
    address: Annotated[str, AfterValidator(_address)] = setting(
        "cattleAddress", "dhcp", "The cattle's IPv4 address with its prefix, 192.168.1.205/24, or dhcp."
    )
    gateway: Annotated[str, or_empty(_ip)] = setting("cattleGateway", "", "The gateway, with a static address.")
    nameserver: Annotated[str, or_empty(_ip)] = setting(
        "cattleNameserver", "", "The name server, with a static address. Empty: the node's."
    )

    @property
    def static_ip(self) -> str | None:
        """The address without its prefix; None with DHCP."""
        return None if self.address == "dhcp" else self.address.split("/")[0]

    @rule
    def _gateway_fits(self) -> Iterator[Fault]:
        if self.address == "dhcp":
            if self.gateway:
                rule = "a gateway goes with a static address only"
                yield self.fault("gateway", rule, "set cattleAddress, or leave cattleGateway empty")
            return
        interface = ipaddress.IPv4Interface(self.address)
        if not self.gateway:
            yield self.fault("gateway", "a static address needs a gateway", "set cattleGateway")
        elif ipaddress.ip_address(self.gateway) not in interface.network:
            rule = f"the gateway is outside the network of {self.address}"
            yield self.fault("gateway", rule, "correct cattleAddress or cattleGateway")
        elif ipaddress.ip_address(self.gateway) == interface.ip:
            remedy = "set cattleGateway to the router's, or choose another address"
            yield self.fault("gateway", "is the cattle's own address", remedy)

    @rule
    def _nameserver_is_another(self) -> Iterator[Fault]:
        if (
            self.nameserver
            and self.static_ip
            and ipaddress.ip_address(self.nameserver) == ipaddress.ip_address(self.static_ip)
        ):
            remedy = "set cattleNameserver to the server's, or choose another"
            yield self.fault("nameserver", "is the cattle's own address", remedy)
