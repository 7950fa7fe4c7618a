"""Why ``pulumi destroy`` of the pet is refused before it changes anything.

The engine deletes what depends on a protected resource first and fails only when it comes
to the resource itself (pulumi#6191). This one depends on all others and is protected: it
is the first to be deleted, so the refusal comes before any call.
"""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource

from components.dynamic import Props, Provider, diff_of


class _GuardProvider(Provider):
    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=props["reason"], outs={"reason": props["reason"]})

    def diff(self, _id: str, _olds: Props, _news: Props) -> DiffResult:
        return diff_of([])


class Guard(Resource, module="proxmox", name="Guard"):
    """Protects all that it depends on from ``pulumi destroy``."""

    def __init__(self, name: str, *, reason: str, parent: pulumi.Resource, guarded: Sequence[pulumi.Resource]) -> None:
        opts = pulumi.ResourceOptions(parent=parent, protect=True, depends_on=list(guarded))
        super().__init__(_GuardProvider(), name, {"reason": reason}, opts)
