"""The container resource, of the plugin's class.

``ContainerLegacy`` was ``ct.Container`` before version 8 of the plugin, without an alias
(field reports D1). Three rules of the facts live here: it never declares mount points and
ignores those it reads (they are force-new), it leaves power to others, and it is made stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pulumi

from components.claim import Claim, vmid_proof
from components.dynamic import Component
from components.network import NetworkPlan, cards, ip_configs, name_service
from components.plugins import ContainerLegacy, ProxmoxProvider
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.golden import CloneSpec
from proxmox.notes import merged_notes, merged_tags, notes_block


@dataclass(frozen=True)
class ContainerSpec:
    """A container as a stack declares it. Memory and swap in MB, disk in GB. golden: the template to clone it from.

    purpose: one sentence, the first of the notes; notes: what else they say, in Markdown. there: the configuration of
    the guest that is there, whose other notes and tags stay; None: there is none.
    """

    vmid: int
    node: str
    hostname: str
    purpose: str
    notes: str
    template: str
    storage: str
    cores: int
    memory: int
    swap: int
    disk: int
    tags: Sequence[str]
    start_on_boot: bool = False
    protection: bool = False
    nesting: bool = False
    network: NetworkPlan = field(default_factory=partial(NetworkPlan, None))
    ssh_public_keys: Sequence[str] = ()
    golden: int | None = None
    there: Mapping[str, str] | None = None

    @property
    def all_tags(self) -> list[str]:
        """The declared tags, and those that somebody has given the guest."""
        there = self.there or {}
        return merged_tags(there.get("tags", ""), there.get("description", ""), self.tags)

    def description(self, claim: str) -> str:
        """The guest's notes: the stack's own in those that are there."""
        block = notes_block(f"{self.purpose}\n\n{self.notes}", self.tags, claim)
        return merged_notes((self.there or {}).get("description", ""), block, self.purpose)

    @property
    def clone(self) -> CloneSpec | None:
        """How it is cloned from its golden template; None where it has none."""
        card = self.network.declared
        if self.golden is None:
            return None
        options = {
            "hostname": self.hostname,
            "cores": str(self.cores),
            "memory": str(self.memory),
            "swap": str(self.swap),
            "tags": ";".join(self.all_tags),
            "onboot": str(int(self.start_on_boot)),
            "protection": str(int(self.protection)),
            "features": "nesting=1" if self.nesting else "",
            "nameserver": " ".join((card and card.nameservers) or ()),
            "searchdomain": (card and card.search) or "",
        }
        given = {key: value for key, value in options.items() if value}
        return CloneSpec(self.golden, self.vmid, self.node, self.storage, self.disk, given, card)


def proxmox_provider(
    connection: Connection, environment: dict[str, str], among_others: Component | None = None
) -> ProxmoxProvider:
    """The plugin's provider. ``among_others``: the component that it is for, in a stack that has more of them.

    What the environment says, the plugin reads there itself at each run, ``destroy`` included: a
    rotated token then needs no ``up`` first (pulumi#4512). Only what comes from the configuration
    is passed on. The plugin has no option for a CA; PROXMOX_VE_CA_FILE reaches it as SSL_CERT_FILE.
    """

    def unless_in_environment(key: str, value: pulumi.Input[str]) -> pulumi.Input[str] | None:
        return None if environment.get(ENVIRONMENT[key]) else value

    name = "proxmox" if among_others is None else f"{among_others._name}-proxmox"
    return ProxmoxProvider(
        name,
        endpoint=unless_in_environment("endpoint", connection.endpoint),
        api_token=unless_in_environment("apiToken", pulumi.Output.secret(connection.api_token.get_secret_value())),
        insecure=None if environment.get(ENVIRONMENT["insecure"]) else connection.insecure,
        opts=pulumi.ResourceOptions(parent=among_others, env_var_mappings={ENVIRONMENT["caFile"]: "SSL_CERT_FILE"}),
    )


def container(
    name: str,
    spec: ContainerSpec,
    claim: Claim,
    *,
    connection: Connection,
    opts: pulumi.ResourceOptions,
    also_ignore: Sequence[str] = (),
) -> ContainerLegacy:
    """Declare a container, stopped, with its VMID proved free first."""
    network = spec.network.declared
    proof = vmid_proof(connection, spec.vmid, spec.node, claim.adopted_claim, spec.clone)
    return ContainerLegacy(
        name,
        {
            "vmId": spec.vmid,
            "nodeName": spec.node,
            "description": claim.claim.apply(spec.description),
            "tags": spec.all_tags,
            "unprivileged": True,
            "protection": spec.protection,
            "started": False,
            "startOnBoot": spec.start_on_boot,
            "operatingSystem": {"templateFileId": spec.template, "type": "debian"},
            "cpu": {"cores": spec.cores},
            "memory": {"dedicated": spec.memory, "swap": spec.swap},
            "disk": {"datastoreId": spec.storage, "size": spec.disk},
            # nesting and nothing else: any other feature is refused for every token (facts proxmox 2.2)
            "features": {"nesting": True} if spec.nesting else None,
            "networkInterfaces": cards(network),
            "initialization": {
                "hostname": spec.hostname,
                "ipConfigs": ip_configs(network),
                "dns": name_service(network),
                "userAccount": {"keys": list(spec.ssh_public_keys)} if spec.ssh_public_keys else None,
            },
        },
        pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                ignore_changes=["mountPoints", "started", *spec.network.ignored, *also_ignore],
                delete_before_replace=True,
                hooks=pulumi.ResourceHookBinding(before_create=[proof]),
            ),
        ),
    )
