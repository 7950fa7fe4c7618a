"""A golden template as the program declares it: what is built in, and where. What is done: providers/image.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pulumi

from applications import PhaseSpec, application
from components.claim import Claim
from components.dynamic import Component, Resource
from components.network import network_spec
from components.notes import image_notes
from provisioning.golden import image_digest, seal
from provisioning.plans import PhasePlan
from proxmox.golden import ImageSpec
from proxmox.network import card_text
from settings.stack import ApplicationStack


def baked_phases(stack: ApplicationStack) -> list[PhaseSpec]:
    """The phases that a golden template has behind it."""
    return [spec for spec in application(stack.application).phases(stack) if spec.baked]


def build_stack(stack: ApplicationStack) -> ApplicationStack:
    """The settings of the container in which a template is built: it has no volume, and nothing of the node's."""
    return stack.model_copy(
        update={"cattle": stack.cattle.model_copy(update={"volume": "", "host_mounts": [], "keyctl": False})}
    )


def build_options(stack: ApplicationStack, keys: Sequence[str]) -> dict[str, str]:
    """What Proxmox gets to make that container, but for its number and notes."""
    cattle, network = stack.cattle, network_spec(stack.cattle.network)
    options = {
        "ostemplate": stack.template,
        "hostname": f"{cattle.hostname}-template",
        "unprivileged": "1",
        "features": "nesting=1",
        "rootfs": f"{cattle.storage}:{cattle.disk}",
        "cores": str(cattle.cores),
        "memory": str(cattle.memory),
        "swap": str(cattle.swap),
        "net0": card_text(network, {}),
        "ssh-public-keys": "\n".join(keys),
        "nameserver": " ".join(network.nameservers or ()),
        "searchdomain": network.search or "",
    }
    return {key: value for key, value in options.items() if value}


class Image(Resource, kind="guest:Image"):
    """``vmid`` and ``number``: of the template; ``results``: of each phase."""

    vmid: pulumi.Output[float]
    number: pulumi.Output[float]
    results: pulumi.Output[dict[str, Any]]

    def __init__(
        self,
        name: str,
        stack: ApplicationStack,
        *,
        keys: Sequence[str],
        claim: Claim,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        build = build_stack(stack)
        plans = [*(spec.render(None) for spec in baked_phases(build)), seal(stack.cattle.mount_path)]
        digest = image_digest(stack.template, stack.cattle.disk, [*keys, stack.cattle.storage], plans)
        spec = ImageSpec(stack.connection.node, digest, stack.image.vmid, stack.image.kept)
        props = {
            **spec.to_props(),
            "claim": claim.claim,
            "purpose": f"Golden template of stack {stack.name}: {stack.runs}. Cattle are cloned from it.\n\n"
            + image_notes(stack),
            "options": build_options(build, keys),
            "storage": stack.cattle.storage,
            "keys": list(keys),
            "declared": {plan.name: plan.declared for plan in plans},
            "plans": pulumi.Output.secret(json.dumps([PhasePlan.as_json(plan) for plan in plans])),
            "static_address": stack.cattle.network.static_ip,
            "private_key_file": stack.ssh_private_key_file,
            "vmid": None,
            "number": None,
            "results": None,
            "seconds": None,
        }
        super().__init__(name, props, opts)
        self.digest = digest


class GoldenTemplate(Component):
    """A claim and the template. ``exports``: the outputs."""

    exports: dict[str, pulumi.Input[Any]]

    def __init__(self, name: str, stack: ApplicationStack, keys: Sequence[str]) -> None:
        super().__init__("GoldenTemplate", name)
        claim = Claim(f"{name}-claim", vmid=None, opts=pulumi.ResourceOptions(parent=self))
        image = Image(f"{name}-template", stack, keys=keys, claim=claim, opts=pulumi.ResourceOptions(parent=self))
        self.exports = {
            "vmid": image.vmid.apply(int),
            "node": stack.connection.node,
            "storage": stack.cattle.storage,
            "digest": image.digest,
            "keys": list(keys),
        }
        self.register_outputs(self.exports)
