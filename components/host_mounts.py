"""Folders of the node in a cattle, and keyctl: what Proxmox leaves to root@pam, and nothing else.

Set on the stopped container, before the attachment's first start; a container that runs is restarted once and left as
it was found: its power stays another one's (components/attachment.py). The folders themselves, and all that is in
them, outlive the resource. Without a way to root the run stops with the commands to paste, and goes on when they have
been.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CheckResult, CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.attachment import SLOT
from components.dynamic import GONE, Props, Provider, changed, diff_of, known, say
from components.node_shell import NodeSsh, node_shell
from proxmox.hostmounts import HostMount, HostWish, Placed
from proxmox.hostshell import (
    HostState,
    ensure_host_mounts,
    preview_host_mounts,
    prove_host_mounts,
    read_host_mounts,
    remove_host_mounts,
)
from proxmox.vmid import prove_still_ours

_WISH = ("vmid", "node", "mounts", "keyctl", "nesting", "pending", "folders")
_INPUTS = (*_WISH, "guest", "claim", "ssh")
RESERVED = frozenset({SLOT})


def mount_props(mounts: Sequence[HostMount]) -> list[dict[str, Any]]:
    """Host mounts as a resource keeps them."""
    return [
        {"source": mount.source, "path": mount.path, "readOnly": mount.read_only, "owner": mount.owner}
        for mount in mounts
    ]


def recorded_of(props: Props) -> tuple[Placed, ...]:
    """The slots that an earlier run has filled."""
    return tuple(
        Placed(placed["slot"], placed["source"], placed["path"], bool(placed["readOnly"]))
        for placed in props.get("placed") or ()
    )


def _wish(props: Props, recorded: tuple[Placed, ...] = ()) -> HostWish:
    return HostWish(
        vmid=int(props["vmid"]),  # numbers arrive as floats
        node=props["node"],
        mounts=tuple(
            HostMount(mount["source"], mount["path"], int(mount["owner"]), bool(mount["readOnly"]))
            for mount in props["mounts"]
        ),
        keyctl=bool(props["keyctl"]),
        recorded=recorded,
        reserved=RESERVED,
    )


def _outputs(props: Props, state: HostState) -> Props:
    """The inputs as they are on the node: a mount that is not there is left out, one that was changed shows it."""
    found = [
        {"source": placed.source, "path": placed.path, "readOnly": placed.read_only, "owner": mount.owner}
        for mount, placed in state.placed.items()
    ]
    order = {mount["path"]: number for number, mount in enumerate(props["mounts"])}
    return {
        **{key: props.get(key) for key in _INPUTS},
        "mounts": sorted(found, key=lambda mount: order.get(mount["path"], len(order))),
        "keyctl": state.keyctl,
        "nesting": state.nesting,
        "pending": state.pending,
        "folders": [],
        "placed": [
            {"slot": placed.slot, "source": placed.source, "path": placed.path, "readOnly": placed.read_only}
            for placed in state.placed.values()
        ],
    }


class _HostMountsProvider(Provider):
    def check(self, olds: Props, news: Props) -> CheckResult:
        """Refused in preview what can be known there; a guest that is not made yet can't be."""
        if olds and known(news, *_WISH, "guest") and any(olds.get(key) != news.get(key) for key in _WISH):
            with self.proxmox() as client, node_shell(NodeSsh.from_props(news.get("ssh"))) as shell:
                for line in preview_host_mounts(client, shell, _wish(news, recorded_of(olds))):
                    say(f"guest {int(news['vmid'])}: {line}")
        return CheckResult(news, [])

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, *_WISH[2:], "ssh"), changed(olds, news, "vmid", "node", "guest"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/host", outs=self._ensure(props, ()))

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._ensure(news, recorded_of(olds)))

    def _ensure(self, props: Props, recorded: tuple[Placed, ...]) -> Props:
        with self.proxmox() as client, node_shell(NodeSsh.from_props(props.get("ssh"))) as shell:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            return _outputs(props, ensure_host_mounts(client, shell, _wish(props, recorded), report=say))

    def read(self, id_: str, props: Props) -> ReadResult:
        """By the API alone: no SSH connection."""
        recorded = recorded_of(props)
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            state = read_host_mounts(client, _wish(props, recorded))
        if state is None:
            return GONE
        outs = _outputs(props, state)
        # What was removed by hand is still known to be ours: whatever comes into its slot is judged by that.
        outs["placed"] = props.get("placed")
        outs["folders"] = props.get("folders")
        return ReadResult(id_=id_, outs=outs, inputs={key: outs[key] for key in _INPUTS})

    def delete(self, _id: str, props: Props) -> None:
        """Needs no root. keyctl, which does, goes with the container; where that goes on running, it is told."""
        recorded = recorded_of(props)
        with self.proxmox() as client:
            prove_still_ours(client, int(props["vmid"]), props.get("claim"), props["node"])
            goes_on = remove_host_mounts(client, _wish(props, recorded), recorded, report=say)
        if goes_on and props.get("keyctl"):
            vmid = int(props["vmid"])
            say(
                f"guest {vmid} keeps keyctl until it is made anew, or root on the node takes it away: "
                f"pct set {vmid} --features nesting=1 && pct reboot {vmid}"
            )
        for placed in recorded:
            say(f"{placed.source} on node {props['node']} stays as it is, with all that is in it")


class HostMounts(Resource, module="proxmox", name="HostMounts"):
    """``placed``: slot, source, path and readOnly of each mount. ``ssh`` None: nobody here is root on the node.

    ``folders``: what is to be done to the folders themselves, as preflight has found them; none once it is done.
    """

    placed: pulumi.Output[list[dict[str, Any]]]

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        claim: pulumi.Input[str],
        vmid: int,
        node: str,
        mounts: Sequence[HostMount],
        keyctl: bool,
        folders: Sequence[str],
        ssh: NodeSsh | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "claim": claim,
            "vmid": vmid,
            "node": node,
            "mounts": mount_props(mounts),
            "keyctl": keyctl,
            # Fixed, so that a hand that takes it away, or a change that waits, is seen by a refresh.
            "nesting": True,
            "pending": False,
            "folders": list(folders),
            "ssh": None if ssh is None else ssh.as_props(),
            "placed": None,
        }
        super().__init__(_HostMountsProvider(), resource_name, props, opts)


class _ProofProvider(Provider):
    def _prove(self, props: Props) -> Props:
        with self.proxmox() as client, node_shell(NodeSsh.from_props(props["ssh"])) as shell:
            if shell is not None:
                prove_host_mounts(client, shell, _wish({**props, "keyctl": False}), report=say)
        return {key: props.get(key) for key in ("guest", "vmid", "node", "mounts", "ssh")} | {"folders": []}

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, "mounts", "folders"), changed(olds, news, "vmid", "node"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/host-proof", outs=self._prove(props))

    def update(self, _id: str, _olds: Props, news: Props) -> UpdateResult:
        return UpdateResult(outs=self._prove(news))


class HostMountsProof(Resource, module="proxmox", name="HostMountsProof"):
    """A write to each mount from inside the running container, as the user that the folder belongs to."""

    def __init__(
        self,
        resource_name: str,
        *,
        guest: pulumi.Input[str],
        vmid: int,
        node: str,
        mounts: Sequence[HostMount],
        folders: Sequence[str],
        ssh: NodeSsh,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "vmid": vmid,
            "node": node,
            "mounts": mount_props(mounts),
            "folders": list(folders),
            "ssh": ssh.as_props(),
        }
        super().__init__(_ProofProvider(), resource_name, props, opts)
