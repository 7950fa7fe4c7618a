"""The network of a container: what Proxmox takes for net0 and for name service, and what a guest's card has.

The grammar is Proxmox's own: `netconf_desc` in PVE/LXC/Config.pm of pve-container 6.1, the formats `ipv4`, `ipv6`,
`CIDRv4`, `CIDRv6` and `mac-addr` in PVE/JSONSchema.pm of pve-common 9.2. What is refused beyond it says why.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

from proxmox.addresses import can_be_reached

Family = Literal[4, 6]
CARD = "net0"
WITHOUT_ADDRESS: Mapping[Family, frozenset[str]] = {
    4: frozenset({"dhcp", "manual"}),
    6: frozenset({"auto", "dhcp", "manual"}),
}
"""What stands in place of an address."""
MTU = range(64, 65536)
VLAN = range(1, 4095)

_LINK_LOCAL = ipaddress.IPv6Network("fe80::/10")
_MAC = re.compile(r"[a-f0-9][02468ace](:[a-f0-9]{2}){5}", re.IGNORECASE)
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DNS_NAME = re.compile(rf"({_LABEL}\.)*{_LABEL}")
_SWITCHES = ("firewall", "host-managed", "link_down")
_SENT = frozenset(
    {"name", "type", "bridge", "hwaddr", "mtu", "ip", "gw", "ip6", "gw6", "firewall", "tag", "rate", "host-managed"}
)
"""What bpg 0.111 sends of a card (CustomNetworkInterface.EncodeValues): it sends a card whole, so the rest is gone."""


# --- the grammar --------------------------------------------------------------------------------


def is_ip(value: str, family: Family) -> bool:
    """Whether a text is an address as Proxmox takes it: whole, without a zone."""
    try:
        (ipaddress.IPv4Address if family == 4 else ipaddress.IPv6Address)(value)
    except ValueError:
        return False
    return "%" not in value


def is_cidr(value: str, family: Family) -> bool:
    """Whether a text is an address with its prefix. Proxmox takes no mask, and no prefix below 8."""
    address, _, prefix = value.partition("/")
    longest = 32 if family == 4 else 128
    return is_ip(address, family) and bool(re.fullmatch(r"[0-9]+", prefix)) and 8 <= int(prefix) <= longest


def is_address_config(value: str, family: Family) -> bool:
    """Whether Proxmox takes a text for ip (4) or ip6 (6) of a card."""
    return value in WITHOUT_ADDRESS[family] or is_cidr(value, family)


def is_hardware_address(value: str) -> bool:
    """Whether Proxmox takes a text for hwaddr: of one card, not of a group."""
    return _MAC.fullmatch(value) is not None


def is_dns_name(value: str) -> bool:
    return _DNS_NAME.fullmatch(value) is not None


def split_list(value: str) -> tuple[str, ...]:
    """The items of a list in Proxmox's form: apart by white space, commas or semicolons."""
    return tuple(re.split(r"[\s,;]+", value.strip(" \t\n,;"))) if value.strip(" \t\n,;") else ()


# --- what is wrong with an address --------------------------------------------------------------


def address_fault(value: str, family: Family) -> str | None:
    """Why a card can't have this address, though Proxmox would take it; None: it can."""
    if value in WITHOUT_ADDRESS[family]:
        return None
    own = ipaddress.ip_interface(value)
    if not can_be_reached(str(own.ip)):
        return "is an address that no other machine can reach"
    if own.network.prefixlen < own.max_prefixlen - 1:
        if own.ip == own.network.network_address:
            return f"is the network {own.network} itself, no host's address"
        if own.version == 4 and own.ip == own.network.broadcast_address:
            return f"is the broadcast address of {own.network}, no host's"
    return None


def gateway_fault(gateway: str, address: str) -> str | None:
    """Why a machine at `address` (with its prefix) can't have this gateway; None: it can.

    One outside of the network is what providers of dedicated servers give, and Proxmox adds the route to it. With any
    other prefix than that of a single address it is more often a slip, so that is refused.
    """
    own, way = ipaddress.ip_interface(address), ipaddress.ip_address(gateway)
    if way == own.ip:
        return "is the container's own address"
    alone = own.network.prefixlen == own.max_prefixlen
    if alone or way in own.network or (own.version == 6 and way in _LINK_LOCAL):
        return None
    return f"is outside of the network of {address}, where only an address with /{own.max_prefixlen} may have it"


def plain_address(value: str) -> str:
    """An address without its prefix, in the one form that compares: IPv6 has many."""
    address = value.partition("/")[0]
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def same_address(one: str | None, other: str | None) -> bool:
    """Whether two values of ip, ip6, gw or gw6 mean the same, however they are written."""
    (first, _, prefix), (second, _, other_prefix) = ((value or "").partition("/") for value in (one, other))
    return plain_address(first) == plain_address(second) and prefix == other_prefix


# --- a card -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkSpec:
    """net0 of a container, and its name service, as they are declared. None: not declared.

    `ip` and `ip6` as Proxmox writes them: an address with its prefix, dhcp, manual, or auto for IPv6. A gateway is
    declared with its address. `vlan` is the tag, `rate` in MB/s, `search` the search domains, apart by spaces.
    """

    bridge: str
    ip: str
    gateway: str | None = None
    ip6: str | None = None
    gateway6: str | None = None
    vlan: int | None = None
    mtu: int | None = None
    firewall: bool | None = None
    hardware_address: str | None = None
    rate: float | None = None
    host_managed: bool | None = None
    name: str | None = None
    nameservers: tuple[str, ...] | None = None
    search: str | None = None


def card_of(config: Mapping[str, str], key: str = CARD) -> dict[str, str]:
    """The properties of a card in a guest's configuration; empty where there is none."""
    parts = (part.partition("=") for part in config.get(key, "").split(","))
    return {name.strip(): value.strip() for name, _, value in parts if value}


def network_of(config: Mapping[str, str]) -> NetworkSpec:
    """What a guest has, as if it were declared; bridge and ip are empty where it has none."""
    card = card_of(config)
    return NetworkSpec(
        bridge=card.get("bridge", ""),
        ip=card.get("ip", ""),
        gateway=card.get("gw"),
        ip6=card.get("ip6"),
        gateway6=card.get("gw6"),
        vlan=int(card["tag"]) if "tag" in card else None,
        mtu=int(card["mtu"]) if "mtu" in card else None,
        firewall=card["firewall"] == "1" if "firewall" in card else None,
        hardware_address=card.get("hwaddr"),
        rate=float(card["rate"]) if "rate" in card else None,
        host_managed=card["host-managed"] == "1" if "host-managed" in card else None,
        name=card.get("name"),
        nameservers=split_list(config["nameserver"]) if "nameserver" in config else None,
        search=config.get("searchdomain"),
    )


def completed(spec: NetworkSpec, there: NetworkSpec) -> NetworkSpec:
    """The declared card with what the guest has where nothing is declared: the plugin sends a card as a whole."""
    kept = {
        each.name: getattr(there, each.name)
        for each in fields(NetworkSpec)
        if getattr(spec, each.name) is None and each.name not in ("gateway", "gateway6")
    }
    made = replace(spec, **kept)
    return replace(made, gateway6=there.gateway6) if spec.ip6 is None else made


@dataclass(frozen=True)
class Change:
    """One difference between what a guest has and what is declared; empty: nothing."""

    what: str
    now: str
    then: str

    def __str__(self) -> str:
        return f"{self.what} from {self.now or 'nothing'} to {self.then or 'nothing'}"


def card_changes(spec: NetworkSpec, there: NetworkSpec) -> list[Change]:
    """The declared properties of net0 that the guest has otherwise."""
    found = [
        Change(what, now or "", then or "")
        for what, now, then in (
            ("ip", there.ip, spec.ip),
            ("gw", there.gateway, spec.gateway),
            ("ip6", there.ip6, there.ip6 if spec.ip6 is None else spec.ip6),
            ("gw6", there.gateway6, there.gateway6 if spec.ip6 is None else spec.gateway6),
        )
        if not same_address(now, then)
    ]
    if spec.bridge != there.bridge:
        found.append(Change("bridge", there.bridge, spec.bridge))
    if spec.hardware_address and spec.hardware_address.lower() != (there.hardware_address or "").lower():
        found.append(Change("hwaddr", there.hardware_address or "", spec.hardware_address))
    if spec.firewall is not None and spec.firewall != bool(there.firewall):
        found.append(Change("firewall", str(int(bool(there.firewall))), str(int(spec.firewall))))
    for what, wanted, has in (("tag", spec.vlan, there.vlan), ("mtu", spec.mtu, there.mtu)):
        if wanted is not None and wanted != has:
            found.append(Change(what, str(has or ""), str(wanted)))
    return found


def name_service_changes(spec: NetworkSpec, there: NetworkSpec) -> list[Change]:
    """The same of name service. The order of name servers is the order in which they are asked."""
    found = []
    if spec.nameservers is not None and spec.nameservers != (there.nameservers or ()):
        found.append(Change("nameserver", " ".join(there.nameservers or ()), " ".join(spec.nameservers)))
    if spec.search is not None and split_list(spec.search) != split_list(there.search or ""):
        found.append(Change("searchdomain", there.search or "", spec.search))
    return found


def undeclared(spec: NetworkSpec | None, config: Mapping[str, str]) -> dict[str, str]:
    """What a guest's network has and nothing declares, by Proxmox's own names; of other cards the whole card.

    `spec` None: the guest is declared without a card. A hardware address is Proxmox's own choice, and a switch that is
    off is no setting of anybody's.
    """
    others = {key: config[key] for key in sorted(other_cards(config))}
    if spec is None:
        return {key: config[key] for key in (CARD,) if key in config} | others
    declared = {"type", "bridge", "hwaddr", "ip", "gw"}
    declared |= {"ip6", "gw6"} if spec.ip6 is not None else set()
    pairs = (("mtu", spec.mtu), ("tag", spec.vlan), ("firewall", spec.firewall))
    declared |= {name for name, value in pairs if value is not None}
    found = {
        name: value
        for name, value in card_of(config).items()
        if name not in declared and not (name in _SWITCHES and value == "0") and (name, value) != ("name", "eth0")
    }
    service = (("nameserver", spec.nameservers), ("searchdomain", spec.search))
    return found | {name: config[name] for name, value in service if value is None and name in config} | others


def other_cards(config: Mapping[str, str]) -> set[str]:
    """The guest's cards beside net0."""
    return {key for key in config if re.fullmatch(r"net[0-9]+", key) and key != CARD}


def unsendable(config: Mapping[str, str]) -> dict[str, str]:
    """What the plugin would take away with any change of net0: properties that it does not know, and other cards."""
    card = card_of(config)
    found = {
        name: value for name, value in card.items() if name not in _SENT and not (name in _SWITCHES and value == "0")
    }
    return found | {key: config[key] for key in sorted(other_cards(config))}


def card_text(spec: NetworkSpec, config: Mapping[str, str]) -> str:
    """net0 as `pct set` takes it: the declared card, with all else that the guest's card has."""
    card = card_of(config)
    spec = completed(spec, network_of(config))
    made = {
        "name": spec.name or "eth0",
        "bridge": spec.bridge,
        "hwaddr": spec.hardware_address,
        "ip": spec.ip,
        "gw": spec.gateway,
        "ip6": spec.ip6,
        "gw6": spec.gateway6,
        "tag": spec.vlan,
        "mtu": spec.mtu,
        "firewall": None if spec.firewall is None else int(spec.firewall),
        "rate": spec.rate,
        "host-managed": None if spec.host_managed is None else int(spec.host_managed),
    }
    rest = {name: value for name, value in card.items() if name not in made}
    return ",".join(f"{name}={value}" for name, value in {**made, **rest}.items() if value not in (None, ""))
