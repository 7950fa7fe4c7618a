"""The parts of a guest as the program declares them, each a resource of its own; what they do: components/providers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi

from components.dynamic import Owned, Resource, SpecResource
from components.node_shell import NodeSpec
from proxmox.mountpoint import owner_of
from proxmox.planning import AttachSpec, PowerSpec, RemovalSpec, VolumeSpec


class Guard(Resource, kind="proxmox:Guard"):
    """Protects all that it depends on from ``pulumi destroy``: components/providers/guard.py says how."""

    def __init__(
        self, name: str, *, reason: str, parent: pulumi.Resource, guarded: Sequence[pulumi.Resource], before: str
    ) -> None:
        """``before``: the name that an earlier version gave it."""
        opts = pulumi.ResourceOptions(
            parent=parent, protect=True, depends_on=list(guarded), aliases=[pulumi.Alias(name=before)]
        )
        super().__init__(name, {"reason": reason}, opts)


class Volume(SpecResource, kind="proxmox:Volume"):
    """``ref`` is the volid as Proxmox has it (read back, never made up: field reports A5); ``size`` in GB."""

    ref: pulumi.Output[str]
    size: pulumi.Output[float]
    storage: pulumi.Output[str]
    path: pulumi.Output[str]

    def __init__(self, name: str, spec: VolumeSpec, owned: Owned, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, spec, owned, outputs=["ref"], opts=opts)


class VolumeAttachment(SpecResource, kind="proxmox:VolumeAttachment"):
    """``volid``: what is in the slot; ``attached``: what this stack has put there; ``seconds``: how long it took."""

    fixed = {"pending": False}  # noqa: RUF012 - never changed
    volid: pulumi.Output[str]
    path: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        spec: AttachSpec,
        owned: Owned,
        opts: pulumi.ResourceOptions | None = None,
        *,
        volid: pulumi.Input[str] | None = None,
    ) -> None:
        """``volid``: the spec's, and with it its owner, while it is not known."""
        later = {} if volid is None else {"volid": volid, "owner": pulumi.Output.from_input(volid).apply(owner_of)}
        super().__init__(name, spec, owned, outputs=["attached"], later=later, opts=opts)


class Power(SpecResource, kind="proxmox:Power"):
    """Whether a guest runs. Where the resource goes, the guest is stopped. ``seconds``: how long the start took."""

    def __init__(self, name: str, spec: PowerSpec, owned: Owned, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, spec, owned, opts=opts)


class VolumeRemoval(SpecResource, kind="proxmox:VolumeRemoval"):
    """The fact that a volume was deleted on purpose. Taking it out of the settings again does nothing."""

    def __init__(self, name: str, spec: RemovalSpec, owned: Owned, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, spec, owned, opts=opts)


class HostMounts(SpecResource, kind="proxmox:HostMounts"):
    """``placed``: slot, source, path and readOnly of each mount."""

    fixed = {"nesting": True, "pending": False}  # noqa: RUF012 - never changed
    placed: pulumi.Output[list[dict[str, Any]]]

    def __init__(self, name: str, spec: NodeSpec, owned: Owned, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, spec, owned, outputs=["placed"], opts=opts)


class HostMountsProof(SpecResource, kind="proxmox:HostMountsProof"):
    """A write to each mount from inside the running container, as the user that the folder belongs to."""

    def __init__(self, name: str, spec: NodeSpec, owned: Owned, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, spec, owned, opts=opts)


class Access(Resource, kind="guest:Access"):
    """``host_key`` is one line, as in known_hosts without the name; ``fingerprint`` begins with SHA256:.

    ``declared_key``: the host key as the settings have it, None where Proxmox's log is to tell it. ``incarnation``: the
    hardware address of net0, which tells one container under a number from the next. ``authorized_keys``: who may log
    in to a clone, which shows its host key itself; None: Proxmox has written them, and made the key. ``card_declared``:
    the settings have the hardware address, so the next container has the same.
    """

    address: pulumi.Output[str]
    incarnation: pulumi.Output[str]
    host_key: pulumi.Output[str]
    fingerprint: pulumi.Output[str]
    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        vmid: int,
        node: str,
        static_address: str | None,
        private_key_file: str,
        incarnation: pulumi.Input[str],
        declared_key: str | None = None,
        authorized_keys: Sequence[str] | None = None,
        card_declared: bool = False,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "vmid": vmid,
            "node": node,
            "static_address": static_address,
            "private_key_file": private_key_file,
            "incarnation": incarnation,
            "declared_key": declared_key,
            **({} if authorized_keys is None else {"authorized_keys": list(authorized_keys)}),
            **({"card_declared": True} if card_declared else {}),
            "address": None,
            "host_key": None,
            "fingerprint": None,
            "seconds": None,
        }
        super().__init__(resource_name, props, opts)
