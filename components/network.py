"""The network of a container as the plugin is to have it: what is declared, and what somebody has set by hand."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from proxmox.errors import Fault
from proxmox.network import (
    CARD,
    Change,
    NetworkSpec,
    card_changes,
    card_text,
    completed,
    name_service_changes,
    network_of,
    split_list,
    undeclared,
    unsendable,
)
from settings.network import NetworkSettings

SETTINGS = {
    "ip": "cattleAddress",
    "gw": "cattleGateway",
    "ip6": "cattleAddress6",
    "gw6": "cattleGateway6",
    "bridge": "cattleBridge",
    "hwaddr": "cattleHardwareAddress",
    "firewall": "cattleFirewall",
    "tag": "cattleVlan",
    "mtu": "cattleMtu",
    "nameserver": "cattleNameserver",
    "searchdomain": "cattleSearchDomain",
}
"""The setting of each of Proxmox's names."""


@dataclass(frozen=True)
class NetworkPlan:
    """What is declared of a container's network, and what a run does to it.

    spec: None: no card is declared. there: the guest's configuration as it is; None: there is no guest yet. remade: the
    guest that is there is replaced by another.
    """

    spec: NetworkSpec | None
    there: Mapping[str, str] | None = None
    remade: bool = False

    @property
    def card(self) -> list[Change]:
        """What a run changes of net0."""
        return [] if self.spec is None or self.there is None else card_changes(self.spec, network_of(self.there))

    @property
    def name_service(self) -> list[Change]:
        """What a run changes of name service."""
        if self.spec is None or self.there is None:
            return []
        return name_service_changes(self.spec, network_of(self.there))

    @property
    def declared(self) -> NetworkSpec | None:
        """What the plugin gets: it sends a card as a whole, so what is there and not declared goes with it.

        A container that is made again gets another hardware address, unless one is declared.
        """
        if self.spec is None or self.there is None:
            return self.spec
        made = completed(self.spec, network_of(self.there))
        return replace(made, hardware_address=self.spec.hardware_address) if self.remade else made

    @property
    def ignored(self) -> list[str]:
        """The container's inputs that the engine leaves as they are, for there is nothing to do.

        What was set by hand is in the state after a refresh, and would be planned away otherwise.
        """
        if self.spec is None:
            return ["networkInterfaces"]
        if self.there is None or self.remade:
            return []
        card = [] if self.card else ["networkInterfaces", "initialization.ipConfigs"]
        return card + ([] if self.name_service else ["initialization.dns"])

    def faults(self, vmid: int, node: str) -> list[Fault]:
        """A change that would take away what only root can give back."""
        lost = {} if self.there is None or self.remade or not self.card else unsendable(self.there)
        if not lost or self.spec is None or self.there is None:
            return []
        first = self.card[0]
        command = f"pct set {vmid} --{CARD} {shlex.quote(card_text(self.spec, self.there))}"
        rule = f"CT {vmid} also has {_listed(lost)}, which the plugin would take away with this change"
        return [Fault(SETTINGS[first.what], first.then, rule, f"on node {node}: {command}; then pulumi up")]

    def warnings(self, vmid: int) -> list[str]:
        """What was set by hand and stays, and what a change does to a container that runs."""
        if self.there is None:
            return []
        found = []
        kept = undeclared(self.spec, self.there)
        if kept:
            known = sorted({SETTINGS[name] for name in kept if name in SETTINGS}) if self.spec is not None else []
            way = f" To declare it: {', '.join(known)}." if known else ""
            found.append(f"CT {vmid} has {_listed(kept)}, which no setting declares: it stays as it is.{way}")
        changes = [*self.card, *self.name_service]
        lost = unsendable(self.there)
        if changes and not self.remade:
            listed = "; ".join(map(str, changes))
            found.append(f"The network of CT {vmid} changes: {listed}. pulumi up reboots it, where it runs.")
        if lost and self.remade:
            found.append(f"CT {vmid} is made again, and {_listed(lost)} of it can't be: set it again by hand.")
        return found


def _listed(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def network_spec(settings: NetworkSettings) -> NetworkSpec:
    """What the settings declare of net0; empty ones declare nothing."""
    return NetworkSpec(
        bridge=settings.bridge,
        ip=settings.address,
        gateway=settings.gateway or None,
        ip6=settings.address6 or None,
        gateway6=settings.gateway6 or None,
        vlan=settings.vlan or None,
        mtu=settings.mtu or None,
        firewall={"true": True, "false": False}.get(settings.firewall),
        hardware_address=settings.hardware_address or None,
        nameservers=split_list(settings.nameserver) or None,
        search=settings.search_domain or None,
    )


def cards(spec: NetworkSpec | None) -> list[dict[str, Any]]:
    """net0 as the plugin has it. What is None is left out."""
    if spec is None:
        return []
    return [
        {
            "name": spec.name or "eth0",
            "bridge": spec.bridge,
            "vlanId": spec.vlan,
            "mtu": spec.mtu,
            "firewall": spec.firewall,
            "macAddress": spec.hardware_address,
            "rateLimit": spec.rate,
            "hostManaged": spec.host_managed,
        }
    ]


def ip_configs(spec: NetworkSpec | None) -> list[dict[str, Any]] | None:
    """The addresses of net0; None without a card."""
    if spec is None:
        return None
    # Empty, and not left out: what is left out the plugin takes from the state, so the old gateway would stay.
    four = {"address": spec.ip, "gateway": spec.gateway or ""}
    six = {"address": spec.ip6, "gateway": spec.gateway6 or ""} if spec.ip6 else None
    return [{"ipv4": four, "ipv6": six}]


def name_service(spec: NetworkSpec | None) -> dict[str, Any] | None:
    """Name servers and search domains; None where neither is declared."""
    if spec is None or not (spec.nameservers or spec.search):
        return None
    return {"servers": list(spec.nameservers) if spec.nameservers else None, "domain": spec.search or None}
