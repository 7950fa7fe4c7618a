"""The cattle: the container that runs an application, thrown away and made again at will."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from applications import application
from components.application import Application
from components.claim import Claim
from components.container import ContainerSpec, container, proxmox_provider
from components.dynamic import Component, Owned
from components.network import NetworkPlan, network_spec
from components.node_shell import NodeSpec
from components.notes import cattle_notes
from components.parts import Access, HostMounts, HostMountsProof, Power, VolumeAttachment
from components.plugins import ContainerLegacy
from proxmox.planning import AttachSpec, PowerSpec
from settings.outputs import outputs_of
from settings.stack import ApplicationStack, CattleStack

PURPOSE = "Its data is on a volume of the pet; this guest itself can be thrown away."
PURPOSE_ON_ROOT = "Its data is on its own root file system, and goes with this guest."


class Cattle(Component):
    """Container, host mounts, attachment, power and, where the stack has one, SSH access and the application.

    ``attach`` None: the home is not on a volume. ``host`` None: nothing is asked of root.
    ``network`` None: there is no container yet. ``golden``: the template that it is cloned from where it is made.
    ``volid``: the volume, where it is not known yet; ``after``: whose volumes they are; ``among_others``: as of a
    pet. ``exports``: the outputs.
    """

    exports: dict[str, pulumi.Input[Any]]

    def __init__(
        self,
        name: str,
        stack: CattleStack,
        *,
        attach: AttachSpec | None,
        host: NodeSpec | None = None,
        ssh_public_keys: list[str],
        phases: Mapping[str, Mapping[str, Any]] | None = None,
        network: NetworkPlan | None = None,
        golden: int | None = None,
        volid: pulumi.Input[str] | None = None,
        after: Sequence[pulumi.Resource] = (),
        among_others: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("Cattle", name, opts)
        connection, cattle = stack.connection, stack.cattle
        opts = pulumi.ResourceOptions(parent=self)
        claim = Claim(f"{name}-claim", vmid=cattle.vmid, adopted=stack.claim, opts=opts)
        where = PURPOSE_ON_ROOT if cattle.home_on_root else PURPOSE
        guest = container(
            f"{name}-container",
            ContainerSpec(
                vmid=cattle.vmid,
                node=connection.node,
                hostname=cattle.hostname,
                purpose=f"Runs {stack.runs}. {where}" if stack.runs else where,
                notes=cattle_notes(stack),
                there=network.there if network else None,
                template=stack.template,
                storage=cattle.storage,
                cores=cattle.cores,
                memory=cattle.memory,
                swap=cattle.swap,
                disk=cattle.disk,
                tags=cattle.tags,
                start_on_boot=cattle.start_on_boot,
                nesting=True,
                network=network or NetworkPlan(network_spec(cattle.network)),
                ssh_public_keys=ssh_public_keys,
                golden=golden,
            ),
            claim,
            connection=connection,
            # Set by HostMounts where they are more than nesting: the plugin would send them all, and be refused
            # (facts proxmox 15).
            also_ignore=["features"],
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=proxmox_provider(connection, dict(os.environ), among_others=self if among_others else None),
            ),
        )
        owned = Owned(guest.id, claim.claim, connection.node)
        # Each has to be undone before the one that it depends on: power, volume, host mounts, container. So none has
        # `replace_with`, whose deletions come in any order: another `guest` replaces them in the order of dependencies.
        parts: list[pulumi.Resource] = [*after]

        def next_part() -> pulumi.ResourceOptions:
            return pulumi.ResourceOptions(parent=self, depends_on=list(parts), delete_before_replace=True)

        if host is not None:
            parts.append(HostMounts(f"{name}-host-mounts", host, owned, next_part()))
        attachment = None
        if attach is not None:
            attachment = VolumeAttachment(f"{name}-volume", attach, owned, next_part(), volid=volid)
            parts.append(attachment)
        power = Power(f"{name}-power", PowerSpec(cattle.vmid), owned, next_part())
        parts.append(power)
        if host is not None and host.ssh is not None and host.mounts:
            opts = pulumi.ResourceOptions(parent=self, depends_on=list(parts), replace_with=[guest])
            parts.append(HostMountsProof(f"{name}-host-mounts-proof", host, owned, opts))
        self.exports = {
            **{key: output.empty for key, output in outputs_of(stack.application).items()},
            "vmid": cattle.vmid,
            "node": connection.node,
            "hostname": cattle.hostname,
            "volume": attachment.volid if attachment is not None else "",
            "hostMounts": {mount.path: mount.source for mount in cattle.host_mounts},
            **stack.outputs,
        }
        if isinstance(stack, ApplicationStack):
            keys = None if golden is None else ssh_public_keys
            self.exports |= self._application(name, stack=stack, guest=guest, ready=parts, phases=phases, keys=keys)
        self.register_outputs(self.exports)

    def _application(
        self,
        name: str,
        *,
        stack: ApplicationStack,
        guest: ContainerLegacy,
        ready: list[pulumi.Resource],
        phases: Mapping[str, Mapping[str, Any]] | None,
        keys: Sequence[str] | None,
    ) -> dict[str, pulumi.Input[Any]]:
        """SSH access and the application's phases; answers the outputs that they add. ``keys``: see Access."""
        access = Access(
            f"{name}-ssh",
            guest=guest.id,
            vmid=stack.cattle.vmid,
            node=stack.connection.node,
            static_address=stack.cattle.network.static_ip,
            private_key_file=stack.ssh_private_key_file,
            # A new network card is a new container, and brings a new host key.
            incarnation=guest.network_interfaces.apply(_card_address),
            declared_key=stack.cattle.ssh_host_key or None,
            authorized_keys=keys,
            card_declared=bool(stack.cattle.network.hardware_address),
            opts=pulumi.ResourceOptions(parent=self, depends_on=ready, replace_with=[guest]),
        )
        made = Application(
            f"{name}-{application(stack.application).resource}",
            stack=stack,
            guest=guest.id,
            access=access,
            replace_with=[guest],
            before=phases,
            opts=pulumi.ResourceOptions(parent=self),
        )
        return {
            "address": access.address,
            "sshKeyFile": stack.ssh_private_key_file,
            "hardwareAddress": access.incarnation,
            "sshHostKey": access.host_key,
            "sshHostKeyFingerprint": access.fingerprint,
            "ssh": access.address.apply(lambda host: _ssh_command(stack.ssh_private_key_file, host)),
            **made.exports,
        }


def _card_address(cards: Sequence[Any] | None) -> str:
    """The hardware address of the first network card; empty where there is none."""
    return str(cards[0]["macAddress"]) if cards else ""


def _ssh_command(key: str, host: str) -> str:
    return f"ssh -i {shlex.quote(key)} root@{host}"
