"""A stack's claim on a VMID (components/claim.py): a random mark, made once."""

from __future__ import annotations

import uuid

from components.providers.base import CreateResult, DiffResult, Props, Provider, changed, diff_of
from proxmox.vmid import prove_none_left


class ClaimProvider(Provider):
    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of([], changed(olds, news, "vmid"))

    def create(self, props: Props) -> CreateResult:
        claim = str(props.get("adopted") or uuid.uuid4())
        return CreateResult(id_=claim, outs={"vmid": props.get("vmid"), "claim": claim})

    def delete(self, _id: str, props: Props) -> None:
        """The last deletion of all: whatever the engine believes, no guest that carries the claim may be left."""
        if props.get("vmid") is None:
            return
        with self.proxmox() as client:
            prove_none_left(client, int(props["vmid"]), props["claim"])
