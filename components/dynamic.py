"""The ground that this project's dynamic resources stand on, as the program declares them.

What they do is in components/providers, which the engine starts by itself. Of the SDK's own dynamic resources they keep
the names of the types, so that a stack from before goes on; the SDK would store a pickled provider with each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi

from components.naming import PROGRAM
from proxmox.spec import Spec

Props = dict[str, Any]


class Component(pulumi.ComponentResource):
    """A component of our own, by its kind."""

    prefix: ClassVar[str] = PROGRAM.component

    def __init__(self, kind: str, name: str, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"{self.prefix}{kind}", name, {}, opts)


class Resource(pulumi.CustomResource):
    """A resource of a provider of our own; ``kind``: FOLDER:NAME, as components/providers/server.py lists them."""

    prefix: ClassVar[str] = PROGRAM.resource
    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind = kind

    def __init__(self, resource_name: str, props: Props, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(f"{self.prefix}{self.kind}", resource_name, props, opts)


@dataclass(frozen=True)
class Owned:
    """The guest that a resource is about: its id in the graph, this stack's mark on it if it has one, and its node."""

    guest: pulumi.Input[str]
    claim: pulumi.Input[str] | None
    node: str


class SpecResource(Resource):
    """A resource whose inputs are a spec and the guest that it is about. ``outputs``: the names of what comes of it.

    ``fixed``: what can be read and has one right value, so that a refresh finds another one.
    """

    fixed: ClassVar[Props] = {}
    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        spec: Spec,
        owned: Owned,
        *,
        outputs: Iterable[str] = (),
        later: Mapping[str, pulumi.Input[Any]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``later``: fields of the spec that are not known yet."""
        whose = {"guest": owned.guest, "claim": owned.claim, "node": owned.node}
        made = dict.fromkeys((*outputs, "seconds"))
        super().__init__(resource_name, {**spec.to_props(), **self.fixed, **(later or {}), **whose, **made}, opts)
