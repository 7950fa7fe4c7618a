"""The power of a guest without a borrowed volume: the pet, or a cattle whose home is on its root file system.

Any other cattle's power is its attachment's (components/attachment.py).
"""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.dynamic import GONE, Props, Provider, changed, diff_of, say, unrecorded
from proxmox.facts import read_guest
from proxmox.operations import ensure_power
from proxmox.vmid import prove_still_ours


class _PowerProvider(Provider):
    def _ensure(self, props: Props) -> Props:
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props.get("node"))
            ensure_power(client, int(props["vmid"]), bool(props["running"]), report=say)
        kept = ("vmid", "node", "running", "guest", "claim", "stop_in_the_end")
        return {key: props.get(key) for key in kept}

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        updates = [*changed(olds, news, "running"), *unrecorded(olds, news, "claim", "node")]
        return diff_of(updates, changed(olds, news, "vmid", "guest"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/power", outs=self._ensure(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._ensure(news))

    def delete(self, _id: str, props: Props) -> None:
        """Whoever else changes the guest on its way down, host mounts for one, then finds it stopped."""
        if not props.get("stop_in_the_end"):
            return
        with self.proxmox() as client:
            vmid = int(props["vmid"])
            prove_still_ours(client, vmid, props.get("claim"), props.get("node"))
            if read_guest(client, vmid) is not None:
                ensure_power(client, vmid, running=False, report=say)

    def read(self, id_: str, props: Props) -> ReadResult:
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props.get("node"))
            guest = read_guest(client, int(props["vmid"]))
        if guest is None:
            return GONE
        outs = {**props, "running": guest.running}
        outs.pop("__provider", None)
        return ReadResult(id_=id_, outs=dict(outs), inputs=dict(outs))


class Power(Resource, module="proxmox", name="Power"):
    """Whether a guest runs. ``stop_in_the_end``: it is stopped when the resource is deleted.

    ``claim`` and ``node`` are proved before anything is done.
    """

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        vmid: int,
        node: str,
        running: bool,
        claim: pulumi.Input[str],
        stop_in_the_end: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "vmid": vmid,
            "node": node,
            "running": running,
            "claim": claim,
            "stop_in_the_end": stop_in_the_end,
        }
        super().__init__(_PowerProvider(), resource_name, props, opts)
