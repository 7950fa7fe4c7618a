"""What stacks know already: the outputs of the pet, and what the own state holds, read before anything is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pulumi
import tenacity

from components.naming import GUARD_SAYS, kind_of
from proxmox.planning import AttachSpec, VolumeSpec

READ_SECONDS = 10.0
_STACK = "pulumi:pulumi:Stack"
_CLAIM = "proxmox:Claim"
_VOLUME = "proxmox:Volume"
_ATTACHMENT = "proxmox:VolumeAttachment"
_POWER = "proxmox:Power"
_HOST_MOUNTS = "proxmox:HostMounts"
_GUARD = "proxmox:Guard"
_PHASE = "guest:Phase"
_CONTAINER = "proxmoxve:index/containerLegacy:ContainerLegacy"
_ONE_OF_A_KIND = {
    _CLAIM: "claim",
    _CONTAINER: "container",
    _ATTACHMENT: "volume",
    _POWER: "power",
    _HOST_MOUNTS: "host-mounts",
    _GUARD: GUARD_SAYS,
}
"""By its kind: what the name of a component's only resource of that kind has behind the component's."""


@dataclass(frozen=True)
class OwnState:
    """``claim``: this stack's mark, once made; ``vmid``: of the container in the state, None when there is none.

    ``volumes``: the volids of the pet's volumes by the name that the settings give them; ``home``: where a cattle has
    its home, on a ``volume``, the one of ``volid``, or on its ``root`` file system; ``container``: what the plugin last
    told of the container; ``placed``: the host mounts of an earlier run, as the resource keeps them, None when there
    was no such resource; ``phases``: the outputs of the agent's phases, by the resource's name; ``complete``: whether a
    pet was made to its end.
    """

    claim: str | None = None
    vmid: int | None = None
    volumes: Mapping[str, str] = field(default_factory=dict)
    home: str | None = None
    volid: str | None = None
    container: Mapping[str, Any] = field(default_factory=dict)
    placed: tuple[Mapping[str, Any], ...] | None = None
    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    complete: bool = False


def own_state_of(resources: Mapping[str, Mapping[str, Any]]) -> OwnState:
    """The state's resources by URN, each with ``type`` and ``outputs``."""
    claim: str | None = None
    vmid: int | None = None
    volumes: dict[str, str] = {}
    home: str | None = None
    volid: str | None = None
    container: Mapping[str, Any] = {}
    placed: tuple[Mapping[str, Any], ...] | None = None
    phases: dict[str, Mapping[str, Any]] = {}
    complete = False
    for urn, resource in resources.items():
        kind = kind_of(resource["type"])
        if kind == _CLAIM:
            claim = resource["outputs"].get("claim")
        elif kind == _CONTAINER:
            container = resource["outputs"]
            # An import leaves vmId empty; the id is the VMID, too.
            vmid = int(container.get("vmId") or container["id"])
        elif kind == _VOLUME:
            volumes[resource["outputs"]["name"]] = VolumeSpec.recorded_in(resource["outputs"])
        elif kind == _ATTACHMENT:
            home, volid = "volume", AttachSpec.recorded_in(resource["outputs"])
        elif kind == _POWER:
            home = home or "root"
        elif kind == _HOST_MOUNTS:
            placed = tuple(resource["outputs"].get("placed") or ())
        elif kind == _PHASE:
            phases[urn.rsplit("::", 1)[1]] = resource["outputs"]
        elif kind == _GUARD:
            complete = True
    return OwnState(claim, vmid, volumes, home, volid, container, placed, phases, complete)


@dataclass(frozen=True)
class Place:
    """Where a component is in its stack: the types of its parents and its own, as a URN has them, and its name."""

    types: str
    name: str

    @classmethod
    def of(cls, parent: str, type_: str, name: str) -> Place:
        """``parent``: a URN; one of a stack's, or an empty one, counts as none."""
        above = parent.split("::")[2] if parent else _STACK
        return cls(type_ if above == _STACK else f"{above}${type_}", name)


def parts_of(resources: Mapping[str, Mapping[str, Any]], place: Place) -> dict[str, Mapping[str, Any]]:
    """The resources of one component. A name may begin with that of another component."""
    found: dict[str, Mapping[str, Any]] = {}
    claim: str | None = None
    for urn, resource in resources.items():
        _, _, types, name = urn.split("::", 3)
        if types.startswith(f"{place.types}$") and name.startswith(f"{place.name}-"):
            rest, kind = name.removeprefix(f"{place.name}-"), kind_of(resource["type"])
            if kind in _ONE_OF_A_KIND and rest != _ONE_OF_A_KIND[kind]:
                continue
            if kind == _CLAIM:
                claim = resource["outputs"].get("claim")
            found[urn] = resource
    # Only volumes have names of the user's own; all that is done for a guest carries its claim.
    return {urn: one for urn, one in found.items() if claim is None or one["outputs"].get("claim") in (None, claim)}


def read_own_state(adopted: str = "", place: Place | None = None) -> OwnState:
    """This stack's state as the last run left it.

    ``adopted``: the claim while the state has none; ``place``: of the one component that is asked for; None: of all.
    """
    name = qualified(pulumi.get_stack())
    answer = _ask("pulumi:pulumi:readStackResourceOutputs", {"stackName": name})
    resources = answer["outputs"]
    found = own_state_of(resources if place is None else parts_of(resources, place))
    return found if found.claim else replace(found, claim=adopted or None)


def read_outputs(stack: str) -> Mapping[str, Any]:
    """Another stack's outputs. Raises the engine's error: see `why_unreadable`."""
    answer = _ask("pulumi:pulumi:readStackOutputs", {"name": qualified(stack)})
    outputs: Mapping[str, Any] = answer["outputs"]
    return outputs


def why_unreadable(error: Exception) -> Literal["unknown", "sealed", ""]:
    """Why `read_outputs` failed: no stack of that name, or encrypted otherwise than this one.

    The engine says it in words alone.
    """
    if "unknown stack" in str(error):
        return "unknown"
    return "sealed" if "passphrase" in str(error) else ""


def _ask(function: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
    """Ask the engine, and again while it is just writing the state that it is to read: that fails with an EOF."""
    ask = tenacity.Retrying(
        stop=tenacity.stop_after_delay(READ_SECONDS),
        wait=tenacity.wait_fixed(0.1),
        retry=tenacity.retry_if_exception(lambda error: "failed to load checkpoint" in str(error)),
        reraise=True,
    )
    answer: Mapping[str, Any] = ask(pulumi.runtime.invoke, function, arguments).value
    return answer


def qualified(stack: str) -> str:
    """A stack's full name; one without a project is of this project."""
    return stack if "/" in stack else f"{pulumi.get_organization()}/{pulumi.get_project()}/{stack}"
