"""The cattle: the container that runs the agent, thrown away and made again at will."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pulumi

from components.access import Access
from components.agent import HermesAgent
from components.attachment import VolumeAttachment
from components.claim import Claim
from components.container import ContainerWish, Network, container, proxmox_provider
from components.settings import AgentSettings, CattleSettings, Settings

PURPOSE = "Runs Hermes Agent. Its data is on a volume of the pet; this guest itself can be thrown away."


class Cattle(pulumi.ComponentResource):
    """Container, attachment, SSH access, agent; ``exports`` are the stack's outputs."""

    exports: dict[str, pulumi.Input[Any]]

    def __init__(
        self,
        name: str,
        settings: Settings,
        cattle: CattleSettings,
        agent: AgentSettings,
        *,
        owner: int,
        volume: dict[str, Any],
        ssh_public_keys: list[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("hermes-homelab:components:Cattle", name, {}, opts)
        connection = settings.connection
        child = pulumi.ResourceOptions(parent=self)
        claim = Claim(f"{name}-claim", vmid=cattle.vmid, opts=child)
        guest = container(
            f"{name}-container",
            ContainerWish(
                vmid=cattle.vmid,
                node=connection.node,
                hostname=cattle.hostname,
                purpose=PURPOSE,
                template=settings.template,
                storage=cattle.storage,
                cores=cattle.cores,
                memory=cattle.memory,
                swap=cattle.swap,
                disk=cattle.disk,
                tags=cattle.tags,
                start_on_boot=cattle.start_on_boot,
                nesting=True,
                network=Network(
                    bridge=cattle.bridge,
                    address=cattle.address,
                    gateway=cattle.gateway or None,
                    nameserver=cattle.nameserver or None,
                ),
                ssh_public_keys=ssh_public_keys,
            ),
            claim,
            connection=connection,
            opts=pulumi.ResourceOptions(parent=self, provider=proxmox_provider(connection, dict(os.environ))),
        )
        attachment = VolumeAttachment(
            f"{name}-volume",
            guest=guest.id,
            vmid=cattle.vmid,
            node=connection.node,
            volid=volume["volid"],
            owner=owner,
            path=cattle.mount_path,
            opts=pulumi.ResourceOptions(parent=self, replace_with=[guest], delete_before_replace=True),
        )
        access = Access(
            f"{name}-ssh",
            guest=guest.id,
            vmid=cattle.vmid,
            node=connection.node,
            static_address=cattle.static_ip,
            private_key_file=str(settings.ssh_private_key_file),
            # A new network card is a new container, and brings a new host key.
            incarnation=guest.network_interfaces.apply(lambda found: (found or [{}])[0]["mac_address"]),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[attachment], replace_with=[guest]),
        )
        hermes = HermesAgent(
            f"{name}-agent",
            cattle=cattle,
            agent=agent,
            guest=guest.id,
            access=access,
            private_key_file=settings.ssh_private_key_file,
            replace_with=[guest],
            opts=child,
        )
        address = access.address
        self.exports = {
            "vmid": cattle.vmid,
            "node": connection.node,
            "hostname": cattle.hostname,
            "address": address,
            "sshHostKey": access.host_key,
            "sshHostKeyFingerprint": access.fingerprint,
            "ssh": address.apply(lambda host: _ssh_command(settings.ssh_private_key_file, host)),
            "dashboard": _dashboard_url(agent, address),
            "api": f"http://127.0.0.1:{agent.api_port}/v1",
            "agentVersion": hermes.version,
            "agentMode": "bare-metal",
            "volume": attachment.volid,
            "seconds": {"attach": attachment.seconds, "ssh": access.seconds, **hermes.seconds},
        }
        self.register_outputs(self.exports)


def _ssh_command(key: Path, host: str) -> str:
    return f"ssh -i {key} root@{host}"


def _dashboard_url(agent: AgentSettings, address: pulumi.Output[str]) -> pulumi.Output[str]:
    """As seen from the guest where it listens on loopback, else as seen from the network."""
    if agent.dashboard_is_local:
        return pulumi.Output.from_input(f"http://127.0.0.1:{agent.dashboard_port}")
    return address.apply(lambda host: f"http://{host}:{agent.dashboard_port}")
