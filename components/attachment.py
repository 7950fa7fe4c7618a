"""A volume of the pet's, mounted in a cattle, and that cattle's power.

This is the one piece of code that starts and stops a cattle. Attached on the stopped
guest, read back, then started: one start and no stop on the way up. On the way down:
stop, detach, remove the ``unused`` entry that Proxmox leaves; the volume stays with
its owner (facts proxmox 18).
"""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CheckResult, CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.dynamic import GONE, Props, Provider, changed, diff_of, known, say
from components.timing import stopwatch
from proxmox.mountpoint import MountPoint
from proxmox.operations import AttachmentState, attach, detach, preview_attach, read_attachment
from proxmox.planning import AttachWish, DetachWish
from proxmox.vmid import prove_still_ours

SLOT = "mp0"
OPTIONS = {"mountoptions": "nodev;nosuid"}
"""What is left on the volume with a set-user-ID bit, by the root of one container, means nothing in the next one."""
_INPUTS = ("vmid", "node", "slot", "volid", "path", "options", "pending", "owner", "running")
"""What is declared. ``take_over`` is no property of an attachment: it only says how far one may go to get there."""


def _wish(props: Props, previous_volid: str | None = None) -> AttachWish:
    return AttachWish(
        vmid=int(props["vmid"]),
        node=props["node"],
        volid=props["volid"],
        path=props["path"],
        owner=int(props["owner"]),
        slot=props["slot"],
        # Neither size= nor backup= for a volume that exists (seed 002; facts proxmox 3.1).
        options=OPTIONS,
        start=bool(props["running"]),
        previous_volid=previous_volid,
        takeover=props.get("take_over") == props["volid"],
    )


def _outputs(props: Props, state: AttachmentState, seconds: float | None = None) -> Props:
    return {
        **{key: props.get(key) for key in _INPUTS},
        "guest": props.get("guest"),
        "take_over": props.get("take_over"),
        "claim": props.get("claim"),
        "volid": state.volid,
        "path": state.path,
        "options": _options(state),
        "pending": state.pending,
        "running": state.running,
        "seconds": props.get("seconds") if seconds is None else seconds,
    }


def _options(state: AttachmentState) -> str:
    """What a mount point says beyond volume and path; what Proxmox adds by itself counts as nothing."""
    _, _, told = MountPoint(state.volid, state.path, state.options).meaning()
    return ",".join(f"{key}={value}" for key, value in told)


class _AttachmentProvider(Provider):
    def check(self, olds: Props, news: Props) -> CheckResult:
        """Refused in preview what can be known there; a guest that is not made yet can't be."""
        if olds and known(news, *_INPUTS, "guest") and any(olds.get(key) != news.get(key) for key in _INPUTS):
            with self.proxmox() as client:
                for step in preview_attach(client, _wish(news, previous_volid=olds.get("volid"))):
                    say(f"guest {int(news['vmid'])}: {step.describe()}")
        return CheckResult(news, [])

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(
            changed(olds, news, "volid", "path", "options", "pending", "owner", "running"),
            changed(olds, news, "vmid", "node", "slot", "guest"),
        )

    def create(self, props: Props) -> CreateResult:
        with stopwatch() as elapsed, self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            state = attach(client, _wish(props), report=say)
        return CreateResult(id_=f"{state.vmid}/{state.slot}", outs=_outputs(props, state, elapsed()))

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        with stopwatch() as elapsed, self.proxmox() as client:
            prove_still_ours(client, int(news["vmid"]), news.get("claim"), news["node"])
            state = attach(client, _wish(news, previous_volid=olds.get("volid")), report=say)
        return UpdateResult(outs=_outputs(news, state, elapsed()))

    def read(self, id_: str, props: Props) -> ReadResult:
        """A guest that is not ours, or was moved, is no reason to forget the attachment, whose deletion guards it."""
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            state = read_attachment(client, int(props["vmid"]), props["slot"])
        if state is None:
            return GONE
        outs = _outputs(props, state)
        inputs = {key: outs[key] for key in (*_INPUTS, "guest", "claim", "take_over")}
        return ReadResult(id_=id_, outs=outs, inputs=inputs)

    def delete(self, _id: str, props: Props) -> None:
        """Comes before the container's own deletion, so what is refused here saves the guest from that, too."""
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            detach(client, DetachWish(vmid=int(props["vmid"]), volid=props["volid"], slot=props["slot"]), report=say)


class VolumeAttachment(Resource, module="proxmox", name="VolumeAttachment"):
    """``seconds``: how long attaching and starting took, the last time it was done."""

    volid: pulumi.Output[str]
    path: pulumi.Output[str]
    seconds: pulumi.Output[float]

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        claim: pulumi.Input[str],
        vmid: int,
        node: str,
        volid: pulumi.Input[str],
        owner: pulumi.Input[int],
        path: str,
        take_over: str = "",
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "claim": claim,
            "vmid": vmid,
            "node": node,
            "slot": SLOT,
            "volid": volid,
            "owner": owner,
            "path": path,
            # These, and no change that waits: so a hand that adds ro=1 is seen by a refresh.
            "options": ",".join(f"{key}={value}" for key, value in OPTIONS.items()),
            "pending": False,
            "take_over": take_over,
            "running": True,
            "seconds": None,
        }
        super().__init__(_AttachmentProvider(), resource_name, props, opts)
