"""A container's IP addresses: which of them another machine can reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxmox.client import Address, Interface

_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")


def can_be_reached(address: str) -> bool:
    """Whether an IPv4 or IPv6 address is one that a machine elsewhere on the network can have as its goal.

    Not so loopback, link-local (a card that no DHCP server has answered), multicast, unspecified and reserved ones.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    beyond = found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved
    return not beyond and not (isinstance(found, ipaddress.IPv4Address) and found in _THIS_NETWORK)


def addresses_of(interfaces: Iterable[Interface], hardware_address: str) -> tuple[Address, ...]:
    """All addresses on the network card with that hardware address."""
    wanted = hardware_address.lower()
    return tuple(
        address for interface in interfaces if interface.hwaddr.lower() == wanted for address in interface.addresses
    )


def leased(addresses: Iterable[Address]) -> str | None:
    """The IPv4 address that the guest is reached at; None while there is none that can be."""
    found = (address.address for address in addresses if address.family == "inet" and can_be_reached(address.address))
    return next(found, None)
