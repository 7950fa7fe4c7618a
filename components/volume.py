"""A volume that the pet owns, as a resource of its own.

Made by the pet's own mount point, so that Proxmox formats it; taken over when it is
there already; grown in place; never shrunk, never freed: removing the resource leaves
the volume where it is (facts proxmox 18, field reports A1, A6).
"""

from __future__ import annotations

import pulumi
from pulumi.dynamic import CheckResult, CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.dynamic import GONE, Props, Provider, changed, diff_of, known, say, unrecorded
from proxmox.client import Proxmox
from proxmox.facts import read_guest, read_volume
from proxmox.operations import VolumeState, ensure_volume, preview_volume, read_volume_state
from proxmox.planning import VolumeWish
from proxmox.vmid import prove_still_ours

_INPUTS = ("name", "vmid", "storage", "size", "path", "volid")
_PROOF = ("claim", "node")
"""By what the pet is known. A state of before they were kept gets them by an update that does nothing else."""


def _wish(props: Props, recorded: str | None = None) -> VolumeWish:
    return VolumeWish(
        name=props["name"],
        vmid=int(props["vmid"]),  # numbers arrive as floats
        storage=props["storage"],
        size_gb=props["size"],
        path=props["path"],
        volid=props.get("volid") or recorded,
    )


def _outputs(props: Props, state: VolumeState) -> Props:
    declared = {key: props.get(key) for key in (*_INPUTS, *_PROOF)}
    return {**declared, "size": state.size_gb, "path": state.path, "ref": state.volid}


def _prove_ours(client: Proxmox, props: Props) -> None:
    prove_still_ours(client, int(props["vmid"]), props.get("claim"), props.get("node"))


def _is_kept(client: Proxmox, vmid: int, volid: str) -> bool:
    """Whether a volume that the pet does not mount is there all the same.

    Then it is not gone but has no path: to be mounted again, never to be made anew, which would be an empty one.
    """
    pet = read_guest(client, vmid)
    return pet is not None and read_volume(client, pet.node, volid) is not None


class _VolumeProvider(Provider):
    def check(self, _olds: Props, news: Props) -> CheckResult:
        """The plan is made in preview, so that what Proxmox can't or we won't do is refused there."""
        unmounted = bool(_olds) and _olds.get("path") is None
        if known(news, *_INPUTS, "guest") and not unmounted and any(_olds.get(key) != news.get(key) for key in _INPUTS):
            with self.proxmox() as client:
                for step in preview_volume(client, _wish(news)).steps:
                    say(f"volume {news['name']}: {step.describe()}")
        return CheckResult(news, [])

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of([*changed(olds, news, *_INPUTS), *unrecorded(olds, news, *_PROOF)])

    def create(self, props: Props) -> CreateResult:
        with self.proxmox() as client:
            _prove_ours(client, props)
            state = ensure_volume(client, _wish(props), report=say)
        return CreateResult(id_=state.volid, outs=_outputs(props, state))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        with self.proxmox() as client:
            _prove_ours(client, news)
            state = ensure_volume(client, _wish(news, recorded=_id), report=say)
        return UpdateResult(outs=_outputs(news, state))

    def read(self, id_: str, props: Props) -> ReadResult:
        """A pet that is not ours, or was moved, is no reason to forget which volumes are."""
        vmid = int(props["vmid"])
        with self.proxmox() as client:
            _prove_ours(client, props)
            state = read_volume_state(client, vmid, id_)
            if state is None and not _is_kept(client, vmid, id_):
                return GONE
        unmounted = {**{key: props.get(key) for key in (*_INPUTS, *_PROOF)}, "path": None, "ref": id_}
        outs = unmounted if state is None else _outputs(props, state)
        return ReadResult(
            id_=id_, outs=outs, inputs={key: outs[key] for key in (*_INPUTS, *_PROOF)} | {"guest": props.get("guest")}
        )

    def delete(self, _id: str, props: Props) -> None:
        say(f"volume {props['name']}: {_id} is kept on guest {int(props['vmid'])}; nothing was freed")


class Volume(Resource, module="proxmox", name="Volume"):
    """``ref`` is the volid as Proxmox has it (read back, never made up: field reports A5); ``size`` in GB."""

    ref: pulumi.Output[str]
    size: pulumi.Output[float]
    storage: pulumi.Output[str]
    path: pulumi.Output[str]

    def __init__(
        self,
        resource_name: str,
        *,
        name: str,
        guest: pulumi.Input[str],
        claim: pulumi.Input[str],
        vmid: int,
        node: str,
        storage: str,
        size: int,
        path: str,
        volid: str | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "name": name,
            "guest": guest,
            "claim": claim,
            "vmid": vmid,
            "node": node,
            "storage": storage,
            "size": size,
            "path": path,
            "volid": volid,
            "ref": None,
        }
        super().__init__(_VolumeProvider(), resource_name, props, opts)
