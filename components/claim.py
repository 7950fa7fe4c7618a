"""Whose guest it is: a random mark, made once per stack, written into the guest's notes.

The proxmoxve plugin adopts a guest that it finds under its VMID, and a later destroy
deletes it (facts proxmox 15, HAZARD). So the VMID is proved free before the engine
creates the container, in preview too, and a guest that is there already is ours only
if it carries this stack's claim.
"""

from __future__ import annotations

import os

import pulumi
from pulumi.output import Unknown

from components.dynamic import Resource
from proxmox.client import Proxmox
from proxmox.connection import Connection
from proxmox.errors import Refusal
from proxmox.golden import CloneSpec, clone_golden, prove_golden
from proxmox.ownership import parse_claim
from proxmox.vmid import prove_vmid_usable
from settings.subjects import explained


class Claim(Resource, kind="proxmox:Claim"):
    """A stack's claim on a VMID. Another VMID is another claim. ``vmid`` None: on no one number.

    ``adopted``: that of a guest which the state has forgotten; empty: a new one is made.
    """

    claim: pulumi.Output[str]

    def __init__(
        self, name: str, *, vmid: int | None, adopted: str = "", opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(name, {"vmid": vmid, "claim": None, **({"adopted": adopted} if adopted else {})}, opts)
        self.adopted_claim = adopted or None
        """Known in preview, too."""


def vmid_proof(
    connection: Connection, vmid: int, node: str, adopted: str | None, clone: CloneSpec | None = None
) -> pulumi.ResourceHook:
    """A hook that refuses the creation of a container whose VMID is somebody else's.

    It runs in preview and again right before the create. In the preview of a replacement the
    old guest is still there: then its claim is ours, and the engine deletes it before it creates.
    ``adopted``: the claim while the engine does not know it yet. ``clone``: the container is cloned here, and the
    plugin takes it over as it takes over one that a cut-off run has made: its own clone gives up where another one of
    the same template is under way, and leaves the root file system small (bpg 0.111, containerCreateClone).
    """

    def prove(args: pulumi.ResourceHookArgs) -> None:
        notes = (args.new_inputs or {}).get("description")
        claim = adopted if notes is None or isinstance(notes, Unknown) else parse_claim(str(notes))
        try:
            with Proxmox(connection) as client:
                prove_vmid_usable(client, vmid, node=node, claim=claim, planning=pulumi.runtime.is_dry_run())
                if clone is not None and pulumi.runtime.is_dry_run():
                    prove_golden(client, clone.node, clone.source)
                elif clone is not None:
                    clone_golden(client, clone, str(notes), pulumi.log.info)
        except Refusal as refusal:
            raise Refusal(explained(refusal)) from None

    return pulumi.ResourceHook(
        f"vmid-{vmid}-is-free-{os.getpid()}", prove, opts=pulumi.ResourceHookOptions(on_dry_run=True)
    )
