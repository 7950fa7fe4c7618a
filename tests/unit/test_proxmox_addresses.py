"""Which address of a container another machine can reach."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from proxmox.addresses import addresses_of, can_be_reached, leased
from proxmox.client import Address, Interface

MAC = "BC:24:11:00:00:01"


@pytest.mark.parametrize("address", ["10.0.0.5", "192.168.1.205", "100.64.0.9", "8.8.8.8", "fd00::5", "2001:db8::1"])
def test_reachable(address: str) -> None:
    assert can_be_reached(address)


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.7.3", "127.0.0.1", "127.8.0.1", str(IPv4Address(0)), "0.1.2.3", "224.0.0.251"),
        *("255.255.255.255", "240.0.0.1"),
        *("::1", "::", "fe80::be24:11ff:fe00:1", "fe80::1%eth0", "ff02::1", "", "dhcp", "10.0.0"),
    ],
)
def test_not_reachable(address: str) -> None:
    assert not can_be_reached(address)


def card(*addresses: tuple[str, str], mac: str = MAC.lower(), name: str = "eth0") -> Interface:
    return Interface(name, mac, tuple(Address(family, address, None) for family, address in addresses))


@pytest.mark.parametrize(
    ("interfaces", "found"),
    [
        ([], None),
        ([card(("inet", "10.0.0.5"))], "10.0.0.5"),
        ([card(("inet", "169.254.7.3"))], None),
        # DHCP has answered at last: both are on the card until the first one goes.
        ([card(("inet", "169.254.7.3"), ("inet6", "fe80::1"), ("inet", "10.0.0.5"))], "10.0.0.5"),
        ([card(("inet", "0.0.0.1"), ("inet", "127.0.0.1"))], None),
        # By IPv6 alone nobody gets there: cattleAddress is an IPv4 one.
        ([card(("inet6", "2001:db8::5"))], None),
        # Whatever the card is called in the container; Docker's bridge is not it.
        ([card(("inet", "172.17.0.1"), mac="02:42:00:00:00:01", name="docker0"), card(("inet", "10.0.0.5"), name="net"),
          ], "10.0.0.5"),
        ([card(("inet", "172.17.0.1"), mac="02:42:00:00:00:01", name="eth0")], None),
    ],
)  # fmt: skip
def test_the_address_of_the_card(interfaces: list[Interface], found: str | None) -> None:
    assert leased(addresses_of(interfaces, MAC)) == found
