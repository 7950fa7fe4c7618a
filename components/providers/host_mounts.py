"""Folders of the node in a cattle, and keyctl: what Proxmox leaves to root@pam, and nothing else.

Set on the stopped container, before its first start; a container that runs is restarted once and left as it was found:
its power is another resource's (components/providers/power.py). The folders themselves, and all that is in
them, outlive the resource. Without a way to root the run stops with the commands to paste, and goes on when they have
been.
"""

from __future__ import annotations

from collections.abc import Iterable

from components.node_shell import NodeSpec, node_shell
from components.providers.base import PartProvider, Props, SpecProvider, say
from proxmox.client import Proxmox
from proxmox.hostshell import (
    HostState,
    ensure_host_mounts,
    preview_host_mounts,
    prove_host_mounts,
    read_host_mounts,
    remove_host_mounts,
)


def _outputs(spec: NodeSpec, state: HostState) -> Props:
    """The mounts as they are on the node: one that is not there is left out, one that was changed shows it."""
    found = [
        {"source": placed.source, "path": placed.path, "readOnly": placed.read_only, "owner": mount.owner}
        for mount, placed in state.placed.items()
    ]
    order = {mount.path: number for number, mount in enumerate(spec.mounts)}
    return {
        "mounts": sorted(found, key=lambda mount: order.get(str(mount["path"]), len(order))),
        "keyctl": state.keyctl,
        "nesting": state.nesting,
        "pending": state.pending,
    }


class HostMountsProvider(PartProvider[NodeSpec]):
    kind = NodeSpec
    id_format = "{vmid}/host"
    updates = ("mounts", "keyctl", "nesting", "pending", "folders", "ssh")
    replaces = ("vmid", "node", "guest")

    def plan(self, client: Proxmox, spec: NodeSpec) -> Iterable[str]:
        with node_shell(spec.ssh) as shell:
            return [f"guest {spec.vmid}: {line}" for line in preview_host_mounts(client, shell, spec)]

    def ensure(self, client: Proxmox, spec: NodeSpec) -> Props:
        with node_shell(spec.ssh) as shell:
            state = ensure_host_mounts(client, shell, spec, report=say)
        placed = [
            {"slot": placed.slot, "source": placed.source, "path": placed.path, "readOnly": placed.read_only}
            for placed in state.placed.values()
        ]
        return {**_outputs(spec, state), "folders": [], "placed": placed}

    def find(self, client: Proxmox, props: Props) -> Props | None:
        """By the API alone. What was removed by hand is still known to be ours: whatever is in its slot then is judged
        by that.
        """
        spec = self._recorded(props)
        state = read_host_mounts(client, spec)
        return None if state is None else _outputs(spec, state)

    def remove(self, client: Proxmox, props: Props) -> None:
        """Root is not needed, but to clear keyctl: where the container goes on running with it, that is said."""
        spec = self._recorded(props)
        goes_on = remove_host_mounts(client, spec, report=say)
        if goes_on and spec.keyctl:
            say(
                f"guest {spec.vmid} keeps keyctl until it is made again, or root on the node takes it away: "
                f"pct set {spec.vmid} --features nesting=1 && pct reboot {spec.vmid}"
            )
        for placed in spec.recorded:
            say(f"{placed.source} on node {spec.node} stays as it is, with all that is in it")

    def _recorded(self, props: Props) -> NodeSpec:
        return self.spec(props, NodeSpec.recorded_in(props))


class ProofProvider(SpecProvider[NodeSpec]):
    kind = NodeSpec
    id_format = "{vmid}/host-proof"
    updates = ("mounts", "folders")
    replaces = ("vmid", "node")

    def ensure(self, client: Proxmox, spec: NodeSpec) -> Props:
        with node_shell(spec.ssh) as shell:
            if shell is not None:
                prove_host_mounts(client, shell, spec, report=say)
        return {"folders": []}
