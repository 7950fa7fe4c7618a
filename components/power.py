"""The pet's power. A cattle's power is the attachment's (components/attachment.py)."""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.dynamic import GONE, Props, Provider, changed, diff_of, say
from proxmox.facts import read_guest
from proxmox.operations import ensure_power


class _PowerProvider(Provider):
    def _ensure(self, props: Props) -> Props:
        with self.proxmox() as client:
            ensure_power(client, int(props["vmid"]), bool(props["running"]), report=say)
        return {"vmid": props["vmid"], "running": props["running"], "guest": props.get("guest")}

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, "running"), changed(olds, news, "vmid"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/power", outs=self._ensure(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._ensure(news))

    def read(self, id_: str, props: Props) -> ReadResult:
        with self.proxmox() as client:
            guest = read_guest(client, int(props["vmid"]))
        if guest is None:
            return GONE
        outs = {**props, "running": guest.running}
        outs.pop("__provider", None)
        return ReadResult(id_=id_, outs=dict(outs), inputs=dict(outs))


class Power(Resource, module="proxmox", name="Power"):
    """Whether a guest runs."""

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        vmid: int,
        running: bool,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(_PowerProvider(), resource_name, {"guest": guest, "vmid": vmid, "running": running}, opts)
