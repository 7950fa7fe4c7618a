"""The rules of the policy pack, as pure functions: one resource in, what is wrong with it out.

A rule sees a resource as the engine is asked for it: its type and its inputs, by their names on the wire. The settings
refuse most of this already, in better words. The rules hold where somebody changes the program, or uses its components
in a program of their own. No text holds a secret, or a value that was one. An input that is not known yet in a preview
raises the policy SDK's UnknownValueError, which the engine shows.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CONTAINER = "proxmoxve:index/containerLegacy:ContainerLegacy"
PLUGIN = "pulumi:providers:proxmoxve"
COMMAND = "command:remote:Command"
OURS = re.compile(r"(?:pulumi-python:dynamic/|hermes-homelab:)(?=(?:proxmox|guest):)")
"""What a resource's type begins with: in a stack of this program, and in a program that uses the package."""
GUARD = "proxmox:Guard"
PHASE = "guest:Phase"
ON_THE_NODE = ("proxmox:HostMounts", "proxmox:HostMountsProof")

PLUGINS_ENVIRONMENT = {"apiToken": "PROXMOX_VE_API_TOKEN", "username": "PROXMOX_VE_USERNAME"}
"""The plugin reads what is not among its inputs in these variables."""

PETS = re.compile(r"\bhermes-homelab:(?:components|index):Pet(?:Storage)?\$")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")
COMMIT = re.compile(r"[0-9a-f]{40}\Z")
VERSION = re.compile(r"\d+(\.\d+)+[0-9a-z.+]*\Z")
HOST_KEY = re.compile(r"(?:ssh|ecdsa|sk)-\S+ \S+")


@dataclass(frozen=True)
class Resource:
    """A resource that the engine is asked for. ``urn`` has the types of its parents; ``ignored``: its ignoreChanges."""

    type: str
    urn: str
    inputs: Mapping[str, Any]
    protect: bool = False
    ignored: Collection[str] = field(default_factory=tuple)

    @property
    def kind(self) -> str:
        """What it is, by whichever name the engine knows it."""
        return OURS.sub("", self.type, count=1)


@dataclass(frozen=True)
class Rule:
    """``name``: as the engine shows it; ``judge`` yields a text for each violation."""

    name: str
    description: str
    judge: Callable[[Resource], Iterator[str]]


def as_the_plugin_reads(kind: str, inputs: Mapping[str, Any], environment: Mapping[str, str]) -> Mapping[str, Any]:
    """The inputs of a resource; those of the plugin's provider with what it reads in the environment instead."""
    if kind != PLUGIN:
        return inputs
    given = {key: environment[name] for key, name in PLUGINS_ENVIRONMENT.items() if environment.get(name)}
    return {**given, **inputs}


def pet_protected(resource: Resource) -> Iterator[str]:
    """Proxmox refuses to destroy a protected guest. Pulumi refuses what has the option, the guard before all else."""
    if resource.type == CONTAINER and PETS.search(resource.urn):
        if resource.inputs.get("protection") is not True:
            yield "the pet's container needs protection: true, or anybody with the token can destroy it"
        if not resource.protect:
            yield "the pet's container needs the option protect, or a destroy deletes it"
    if resource.kind == GUARD and not resource.protect:
        yield "the pet's guard needs the option protect: a destroy has to fail before it deletes anything"


def agent_pinned(resource: Resource) -> Iterator[str]:
    """An image has its digest, a checkout its whole commit, a package its exact version."""
    declared = _declared(resource, "agent")
    if "image" in declared and not DIGEST.search(str(declared["image"])):
        yield "the agent's image needs its digest: NAME:TAG@sha256:..."
    if declared.get("source") == "git" and not COMMIT.match(str(declared.get("git_commit"))):
        yield "the agent's commit has to be whole, 40 characters: tags and branches can move"
    if declared.get("source") == "pypi" and not VERSION.match(str(declared.get("version"))):
        yield "the agent's package needs an exact version"
    image = _service(_declared(resource, "configure")).get("image")
    if image is not None and not DIGEST.search(str(image)):
        yield "the image of the agent's container needs its digest: NAME:TAG@sha256:..."


def dashboard_asks(resource: Resource) -> Iterator[str]:
    """A dashboard that other machines reach asks for a password, or for a login at a provider."""
    declared = _declared(resource, "configure")
    dashboard = declared.get("dashboard") or {}
    if not dashboard.get("enabled") or any(dashboard.get(key) for key in ("password", "password_hash", "oidc")):
        return
    for host in _reached_at(declared, dashboard):
        if not _is_loopback(host):
            yield f"the dashboard listens on {host} and asks nobody who they are: it needs a password or OIDC"


def host_keys_pinned(resource: Resource) -> Iterator[str]:
    """Whoever logs in by SSH names the key that the server has to show."""
    if resource.type == COMMAND and not _is_host_key((resource.inputs.get("connection") or {}).get("hostKey")):
        yield "the connection needs hostKey: without it the server's key is not checked at all"
    if resource.kind == PHASE and not _is_host_key(resource.inputs.get("host_key")):
        yield "the phase needs host_key, the key of the guest's sshd"
    if resource.kind in ON_THE_NODE:
        ssh = resource.inputs.get("ssh")
        if ssh is not None and not _is_host_key(ssh.get("hostKey")):
            yield "SSH to the node needs hostKey, the key of the node's sshd"


def no_root_token(resource: Resource) -> Iterator[str]:
    """root@pam may do all on the node. The token of a user with a role of its own may not."""
    if resource.type != PLUGIN:
        return
    for key in PLUGINS_ENVIRONMENT:
        if str(resource.inputs.get(key) or "").startswith("root@"):
            yield f"{key} is root's: make a user, a role and a token as in docs/setup.md"


def no_mounts_in_the_container(resource: Resource) -> Iterator[str]:
    """To the plugin another list of mount points is another container: it would delete the old one."""
    if resource.type != CONTAINER:
        return
    if resource.inputs.get("mountPoints"):
        yield "a mount point in the container resource: declare a volume, or attach one, with a resource of its own"
    if "mountPoints" not in resource.ignored:
        yield "the container needs mountPoints in ignoreChanges: a refresh reads them, and then plans a new container"


RULES = (
    Rule("pet-protected", "The pet is protected in Proxmox and in Pulumi.", pet_protected),
    Rule("agent-pinned", "No image, commit or version of the agent is unpinned.", agent_pinned),
    Rule("dashboard-asks", "No dashboard is open to other machines without a login.", dashboard_asks),
    Rule("host-keys-pinned", "No SSH connection accepts any host key.", host_keys_pinned),
    Rule("no-root-token", "No stack uses root's rights on the API.", no_root_token),
    Rule("no-mounts-in-the-container", "No container resource has mount points.", no_mounts_in_the_container),
)


def _declared(resource: Resource, phase: str) -> Mapping[str, Any]:
    """What a phase of the agent declares; empty where the resource is another one."""
    if resource.kind != PHASE or resource.inputs.get("phase") != phase:
        return {}
    found: Mapping[str, Any] = resource.inputs["declared"]
    return found


def _service(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The compose service of Docker mode; empty in bare-metal mode."""
    found: Mapping[str, Any] = (declared.get("container") or {}).get("service") or {}
    return found


def _reached_at(declared: Mapping[str, Any], dashboard: Mapping[str, Any]) -> Iterator[str]:
    """The addresses that lead to the dashboard: in Docker mode those that its port is published on."""
    if declared.get("container"):
        for port in _service(declared).get("ports") or ():
            if int(port["target"]) == int(dashboard["port"]):
                yield str(port.get("host_ip") or "0.0.0.0")  # noqa: S104 - compose's default, which is the finding
    else:
        yield str(dashboard["host"])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_host_key(key: object) -> bool:
    return isinstance(key, str) and HOST_KEY.match(key) is not None
