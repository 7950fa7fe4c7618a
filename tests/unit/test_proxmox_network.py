"""What Proxmox takes for a card, and what becomes of a card that is there.

The patterns are upstream's: PVE/ParseUtils.pm and PVE/JSONSchema.pm of pve-common 9.2, PVE/LXC/Config.pm of
pve-container 6.1.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxmox.network import (
    Family,
    NetworkSpec,
    address_fault,
    card_changes,
    card_of,
    card_text,
    completed,
    gateway_fault,
    is_address_config,
    is_dns_name,
    is_hardware_address,
    is_ip,
    name_service_changes,
    network_of,
    plain_address,
    same_address,
    split_list,
    undeclared,
    unsendable,
)

# --- upstream's patterns, put together as ParseUtils.pm does ---

OCTET = "(?:25[0-5]|(?:2[0-4]|1[0-9]|[1-9])?[0-9])"
IPV4 = rf"(?:(?:{OCTET}\.){{3}}{OCTET})"
H16 = "(?:[0-9a-fA-F]{1,4})"
LS32 = f"(?:(?:{IPV4}|{H16}:{H16}))"
IPV6 = (
    "(?:"
    + "|".join(
        [
            f"(?:(?:(?:{H16}:){{6}}){LS32})",
            f"(?:(?:::(?:{H16}:){{5}}){LS32})",
            f"(?:(?:(?:{H16})?::(?:{H16}:){{4}}){LS32})",
            f"(?:(?:(?:(?:{H16}:){{0,1}}{H16})?::(?:{H16}:){{3}}){LS32})",
            f"(?:(?:(?:(?:{H16}:){{0,2}}{H16})?::(?:{H16}:){{2}}){LS32})",
            f"(?:(?:(?:(?:{H16}:){{0,3}}{H16})?::(?:{H16}:){{1}}){LS32})",
            f"(?:(?:(?:(?:{H16}:){{0,4}}{H16})?::){LS32})",
            f"(?:(?:(?:(?:{H16}:){{0,5}}{H16})?::){H16})",
            f"(?:(?:(?:(?:{H16}:){{0,6}}{H16})?::))",
        ]
    )
    + ")"
)
WORDS = {4: ("dhcp", "manual"), 6: ("auto", "dhcp", "manual")}


def upstream_takes(value: str, family: int) -> bool:
    """pve_verify_ipv4_config and pve_verify_ipv6_config."""
    found = re.fullmatch(rf"(?:{IPV4 if family == 4 else IPV6})/([0-9]+)", value)
    return value in WORDS[family] or (found is not None and 7 < int(found.group(1)) <= (32 if family == 4 else 128))


PLAIN = {4: st.ip_addresses(v=4).map(str), 6: st.ip_addresses(v=6).flatmap(
    lambda address: st.sampled_from([str(address), address.exploded, str(address).upper()])
)}  # fmt: skip
SPOILT = st.text(alphabet="0123456789abcdef:./%", max_size=24)


@pytest.mark.parametrize("family", [4, 6])
def test_addresses_are_upstream_s(family: Family) -> None:
    @given(PLAIN[family] | SPOILT, st.integers(0, 140).map(str) | st.sampled_from(["", "255.255.255.0", "0.0.0.255"]))
    def holds(address: str, prefix: str) -> None:
        for value in (address, f"{address}/{prefix}"):
            assert is_address_config(value, family) is upstream_takes(value, family), value
        assert is_ip(address, family) is bool(re.fullmatch(IPV4 if family == 4 else IPV6, address)), address

    holds()


@pytest.mark.parametrize(
    ("value", "family", "taken"),
    [
        ("dhcp", 4, True),
        ("manual", 4, True),
        ("auto", 4, False),
        ("auto", 6, True),
        ("10.0.0.5/255.255.255.0", 4, False),  # a mask
        ("10.0.0.5/0.0.0.255", 4, False),  # a host mask
        ("10.0.0.5/0", 4, False),
        ("10.0.0.5/7", 4, False),
        ("10.0.0.5/8", 4, True),
        ("203.0.113.5/32", 4, True),
        ("10.0.0.5/33", 4, False),
        ("10.0.0.5", 4, False),
        ("10.0.0.05/24", 4, False),
        ("2001:db8::5/64", 6, True),
        ("2001:db8::5/7", 6, False),
        ("fe80::1%eth0/64", 6, False),
        ("10.0.0.5/24", 6, False),
    ],
)
def test_what_a_card_may_have(value: str, family: Family, taken: bool) -> None:
    assert upstream_takes(value, family) is taken
    assert is_address_config(value, family) is taken


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("BC:24:11:00:00:01", True),
        ("bc:24:11:00:00:01", True),
        ("01:24:11:00:00:01", False),  # a group's: the lowest bit of the first byte
        ("BC:24:11:00:00", False),
        ("BC-24-11-00-00-01", False),
        ("", False),
    ],
)
def test_hardware_addresses(value: str, taken: bool) -> None:
    assert is_hardware_address(value) is taken


@pytest.mark.parametrize(("value", "taken"), [("home.example.org", True), ("lan", True), ("a_b", False), ("-a", False)])
def test_domains(value: str, taken: bool) -> None:
    assert is_dns_name(value) is taken


def test_lists_are_split_as_proxmox_splits_them() -> None:
    assert split_list(" 10.0.0.1, 10.0.0.2;10.0.0.3  10.0.0.4 ") == ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    assert split_list(" ") == ()


# --- which address a host can have ---


@pytest.mark.parametrize(
    ("value", "family", "part"),
    [
        ("192.168.1.205/24", 4, None),
        ("10.0.0.0/31", 4, None),  # RFC 3021: both are hosts
        ("10.0.0.1/31", 4, None),
        ("203.0.113.5/32", 4, None),
        ("dhcp", 4, None),
        ("192.168.1.0/24", 4, "is the network 192.168.1.0/24 itself"),
        ("192.168.1.255/24", 4, "is the broadcast address of 192.168.1.0/24"),
        ("127.0.0.5/8", 4, "no other machine can reach"),
        ("224.0.0.5/24", 4, "no other machine can reach"),
        ("2001:db8::5/64", 6, None),
        ("2001:db8::/127", 6, None),
        ("2001:db8::/64", 6, "is the network 2001:db8::/64 itself"),  # the routers' anycast address, RFC 4291 2.6.1
        ("2001:db8::ffff:ffff:ffff:ffff/64", 6, None),  # IPv6 has no broadcast
        ("fe80::5/64", 6, "no other machine can reach"),
        ("auto", 6, None),
    ],
)
def test_addresses_that_a_host_can_t_have(value: str, family: Family, part: str | None) -> None:
    told = address_fault(value, family)
    assert told == part if part is None else part in str(told)


@pytest.mark.parametrize(
    ("gateway", "address", "part"),
    [
        ("192.168.1.1", "192.168.1.205/24", None),
        ("192.168.1.205", "192.168.1.205/24", "own address"),
        ("192.168.2.1", "192.168.1.205/24", "outside of the network"),
        ("198.51.100.1", "203.0.113.5/32", None),  # a dedicated server's: Proxmox adds the route
        ("203.0.113.5", "203.0.113.5/32", "own address"),
        ("10.0.0.0", "10.0.0.1/31", None),
        ("2001:db8::1", "2001:db8::5/64", None),
        ("fe80::1", "2001:db8::5/64", None),  # every router has one
        ("2001:db8:1::1", "2001:db8::5/64", "outside of the network"),
        ("2001:db8:1::1", "2001:db8::5/128", None),
        ("2001:DB8:0::5", "2001:db8::5/64", "own address"),
    ],
)
def test_gateways(gateway: str, address: str, part: str | None) -> None:
    told = gateway_fault(gateway, address)
    assert told == part if part is None else part in str(told)


@given(st.ip_addresses(v=4), st.integers(8, 30))
def test_of_each_network_the_first_and_last_address_are_no_host_s(address: ipaddress.IPv4Address, prefix: int) -> None:
    network = ipaddress.ip_network(f"{address}/{prefix}", strict=False)
    for value in (network[0], network[-1]):
        assert address_fault(f"{value}/{prefix}", 4) is not None
    assert gateway_fault(str(network[1]), f"{network[2]}/{prefix}") is None
    assert gateway_fault(str(network[2]), f"{network[2]}/{prefix}") is not None


@given(st.ip_addresses(v=6))
def test_an_address_has_one_plain_form(address: ipaddress.IPv6Address) -> None:
    assert plain_address(f"{address.exploded.upper()}/64") == str(address)
    assert same_address(f"{address}/64", f"{address.exploded}/64")
    assert not same_address(f"{address}/64", f"{address}/65")
    assert not same_address(str(address), None)


# --- a card that is there ---

CONFIG = {
    "net0": "name=eth0,bridge=vmbr0,firewall=1,hwaddr=BC:24:11:00:00:01,ip=192.168.1.205/24,gw=192.168.1.1,mtu=1400,"
    "rate=5,tag=20,type=veth",
    "nameserver": "192.168.1.1 9.9.9.9",
    "searchdomain": "home.example.org",
}
SPEC = NetworkSpec(bridge="vmbr0", ip="192.168.1.205/24", gateway="192.168.1.1")


def test_what_nobody_declares_is_told_and_kept() -> None:
    assert undeclared(SPEC, CONFIG) == {
        "firewall": "1",
        "mtu": "1400",
        "rate": "5",
        "tag": "20",
        "nameserver": "192.168.1.1 9.9.9.9",
        "searchdomain": "home.example.org",
    }
    there = network_of(CONFIG)
    assert card_changes(SPEC, there) == []
    assert name_service_changes(SPEC, there) == []
    assert completed(replace(SPEC, mtu=1500), there) == NetworkSpec(
        bridge="vmbr0",
        ip="192.168.1.205/24",
        gateway="192.168.1.1",
        vlan=20,
        mtu=1500,
        firewall=True,
        hardware_address="BC:24:11:00:00:01",
        rate=5.0,
        name="eth0",
        nameservers=("192.168.1.1", "9.9.9.9"),
        search="home.example.org",
    )


@pytest.mark.parametrize(
    ("declared", "changed"),
    [
        ({"ip": "dhcp", "gateway": None}, ["ip", "gw"]),
        ({"gateway": "192.168.1.254"}, ["gw"]),
        ({"bridge": "vmbr1"}, ["bridge"]),
        ({"vlan": 20, "mtu": 1400, "firewall": True}, []),
        ({"vlan": 21}, ["tag"]),
        ({"mtu": 1500}, ["mtu"]),
        ({"firewall": False}, ["firewall"]),
        ({"hardware_address": "bc:24:11:00:00:01"}, []),
        ({"hardware_address": "BC:24:11:00:00:02"}, ["hwaddr"]),
        ({"ip6": "auto"}, ["ip6"]),
        ({"nameservers": ("192.168.1.1", "9.9.9.9")}, []),
        ({"nameservers": ("9.9.9.9", "192.168.1.1")}, ["nameserver"]),
        ({"search": "example.org"}, ["searchdomain"]),
    ],
)
def test_what_a_declaration_changes(declared: dict[str, object], changed: list[str]) -> None:
    spec = replace(SPEC, **declared)  # type: ignore[arg-type]
    there = network_of(CONFIG)
    assert [change.what for change in (*card_changes(spec, there), *name_service_changes(spec, there))] == changed


def test_a_gateway_goes_with_its_address() -> None:
    """From a static address to DHCP the old gateway must go, of either family."""
    there = network_of({"net0": "name=eth0,bridge=vmbr0,ip=10.0.0.5/24,gw=10.0.0.1,ip6=2001:db8::5/64,gw6=fe80::1"})
    made = completed(NetworkSpec(bridge="vmbr0", ip="dhcp"), there)
    assert (made.ip, made.gateway) == ("dhcp", None)
    assert (made.ip6, made.gateway6) == ("2001:db8::5/64", "fe80::1")
    made = completed(NetworkSpec(bridge="vmbr0", ip="dhcp", ip6="auto"), there)
    assert (made.ip6, made.gateway6) == ("auto", None)


def test_switches_that_are_off_are_nobody_s_setting() -> None:
    """The plugin writes them with each change."""
    config = {"net0": "name=eth0,bridge=vmbr0,ip=dhcp,firewall=0,host-managed=0,link_down=0,hwaddr=BC:24:11:00:00:01"}
    assert undeclared(NetworkSpec(bridge="vmbr0", ip="dhcp"), config) == {}
    assert unsendable(config) == {}
    assert (
        card_changes(
            NetworkSpec(bridge="vmbr0", ip="dhcp", firewall=False), network_of({"net0": "ip=dhcp,bridge=vmbr0"})
        )
        == []
    )


def test_what_the_plugin_can_t_send_is_known() -> None:
    config = {"net0": f"{CONFIG['net0']},trunks=2;3,link_down=1", "net1": "name=eth1,bridge=vmbr1"}
    assert unsendable(config) == {"trunks": "2;3", "link_down": "1", "net1": "name=eth1,bridge=vmbr1"}
    assert undeclared(None, config) == {"net0": config["net0"], "net1": "name=eth1,bridge=vmbr1"}


def test_the_line_to_paste_changes_what_is_declared_and_keeps_the_rest() -> None:
    config = {"net0": f"{CONFIG['net0']},trunks=2;3"}
    spec = replace(SPEC, vlan=21)
    pasted = {"net0": card_text(spec, config)}
    assert card_changes(spec, network_of(pasted)) == []
    assert card_of(pasted) == {**card_of(config), "tag": "21", "rate": "5.0"}
    # A card that is to have no address of its own loses its gateway.
    pasted = {"net0": card_text(NetworkSpec("vmbr0", "dhcp"), config)}
    assert {key: card_of(pasted).get(key) for key in ("ip", "gw", "trunks")} == {
        "ip": "dhcp",
        "gw": None,
        "trunks": "2;3",
    }


@given(st.data())
def test_nothing_changes_by_declaring_what_is_there(data: st.DataObject) -> None:
    there = network_of(CONFIG)
    chosen = data.draw(st.sets(st.sampled_from([each.name for each in fields(NetworkSpec)])))
    spec = replace(SPEC, **{name: getattr(there, name) for name in chosen})
    assert card_changes(spec, there) == name_service_changes(spec, there) == []
    assert completed(spec, there) == there
