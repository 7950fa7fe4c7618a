"""Deleting a volume on purpose: the one way by which data is lost, so it has to be named twice.

Once by taking the volume out of ``petVolumes``, and once by its volid in ``petDeleteVolumes``.
Refused, in preview too, while any guest of the cluster refers to it, in its configuration, its
pending changes or a snapshot.
"""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CheckResult, CreateResult, DiffResult, Resource

from components.dynamic import Props, Provider, changed, diff_of, say
from proxmox.operations import preview_removal, remove_volume
from proxmox.vmid import prove_still_ours


class _RemovalProvider(Provider):
    def check(self, olds: Props, news: Props) -> CheckResult:
        if not olds:
            with self.proxmox() as client:
                for step in preview_removal(client, int(news["vmid"]), news["volid"], news["volid"]):
                    say(step.describe())
        return CheckResult(news, [])

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of([], changed(olds, news, "vmid", "volid"))

    def create(self, props: Props) -> CreateResult:
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props["claim"], props["node"])
            remove_volume(client, int(props["vmid"]), props["volid"], props["volid"], report=say)
        return CreateResult(id_=f"removed {props['volid']}", outs={"vmid": props["vmid"], "volid": props["volid"]})


class VolumeRemoval(Resource, module="proxmox", name="VolumeRemoval"):
    """The fact that a volume was deleted on purpose. Taking it out of the settings again does nothing."""

    def __init__(
        self, name: str, *, claim: pulumi.Input[str], vmid: int, node: str, volid: str, opts: pulumi.ResourceOptions
    ) -> None:
        props = {"claim": claim, "vmid": vmid, "node": node, "volid": volid}
        super().__init__(_RemovalProvider(), name, props, opts)
