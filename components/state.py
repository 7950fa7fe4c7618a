"""What stacks know already: the outputs of the pet, and what the own state holds, read before anything is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pulumi
import tenacity

from proxmox.planning import AttachSpec, VolumeSpec

READ_SECONDS = 10.0
_CLAIM_TYPE = "pulumi-python:dynamic/proxmox:Claim"
_VOLUME_TYPE = "pulumi-python:dynamic/proxmox:Volume"
_ATTACHMENT_TYPE = "pulumi-python:dynamic/proxmox:VolumeAttachment"
_POWER_TYPE = "pulumi-python:dynamic/proxmox:Power"
_HOST_MOUNTS_TYPE = "pulumi-python:dynamic/proxmox:HostMounts"
_GUARD_TYPE = "pulumi-python:dynamic/proxmox:Guard"
_PHASE_TYPE = "pulumi-python:dynamic/guest:Phase"
_CONTAINER_TYPE = "proxmoxve:index/containerLegacy:ContainerLegacy"


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
    for urn, resource in resources.items():
        if resource["type"] == _CLAIM_TYPE:
            claim = resource["outputs"].get("claim")
        elif resource["type"] == _CONTAINER_TYPE:
            container = resource["outputs"]
            # An import leaves vmId empty; the id is the VMID, too.
            vmid = int(container.get("vmId") or container["id"])
        elif resource["type"] == _VOLUME_TYPE:
            volumes[resource["outputs"]["name"]] = VolumeSpec.recorded_in(resource["outputs"])
        elif resource["type"] == _ATTACHMENT_TYPE:
            home, volid = "volume", AttachSpec.recorded_in(resource["outputs"])
        elif resource["type"] == _POWER_TYPE:
            home = home or "root"
        elif resource["type"] == _HOST_MOUNTS_TYPE:
            placed = tuple(resource["outputs"].get("placed") or ())
        elif resource["type"] == _PHASE_TYPE:
            phases[urn.rsplit("::", 1)[1]] = resource["outputs"]
    complete = any(resource["type"] == _GUARD_TYPE for resource in resources.values())
    return OwnState(claim, vmid, volumes, home, volid, container, placed, phases, complete)


def read_own_state(adopted: str = "") -> OwnState:
    """This stack's state as the last run left it. ``adopted``: the claim while the state has none."""
    name = qualified(pulumi.get_stack())
    answer = _ask("pulumi:pulumi:readStackResourceOutputs", {"stackName": name})
    found = own_state_of(answer["outputs"])
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
