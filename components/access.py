"""The way into a cattle: its address, and the SSH host key that every later contact is held to."""

from __future__ import annotations

import pulumi
import tenacity
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from components.dynamic import Props, Provider, changed, diff_of, progress
from components.timing import stopwatch
from provisioning.errors import SshUnreachable
from provisioning.ssh import HostKey, wait_for_ssh
from proxmox.client import Proxmox

ADDRESS_SECONDS = 60.0
SSH_SECONDS = 120.0
_INPUTS = ("guest", "vmid", "node", "static_address", "private_key_file", "incarnation")


def _leased_address(client: Proxmox, node: str, vmid: int) -> str | None:
    for interface in client.interfaces(node, vmid):
        if interface.name == "eth0":
            for address in interface.addresses:
                if address.family == "inet":
                    return address.address
    return None


def _wait_for_address(client: Proxmox, node: str, vmid: int) -> str:
    """Poll until DHCP has given the guest an IPv4 address; SshUnreachable when it does not."""
    look = tenacity.Retrying(
        stop=tenacity.stop_after_delay(ADDRESS_SECONDS),
        wait=tenacity.wait_fixed(0.5),
        retry=tenacity.retry_if_result(lambda address: address is None),
        retry_error_callback=lambda _state: None,
    )
    address: str | None = look(_leased_address, client, node, vmid)
    if address is None:
        raise SshUnreachable(
            f"CT {vmid} has had no IPv4 address on eth0 for {ADDRESS_SECONDS:.0f} seconds.\n"
            "  why: cattleAddress is dhcp, and no DHCP server on the bridge has answered\n"
            "  do:  look at the DHCP server, or set cattleAddress and cattleGateway"
        )
    return address


class _AccessProvider(Provider):
    def _reach(self, props: Props, pinned: str | None) -> Props:
        vmid, node = int(props["vmid"]), props["node"]
        with stopwatch() as elapsed:
            # An input that is None is not there at all.
            address = props.get("static_address")
            if address is None:
                with self.proxmox() as client:
                    address = _wait_for_address(client, node, vmid)
            key = wait_for_ssh(
                address, private_key_file=props["private_key_file"], timeout_s=SSH_SECONDS, on_line=progress
            )
            if pinned is not None and key.line != pinned:
                old = HostKey.parse(pinned).fingerprint
                raise SshUnreachable(
                    f"The SSH host key of {address} is not the one that was pinned.\n"
                    f"  why: pinned {old}, found {key.fingerprint}, and the container was not made anew\n"
                    "  do:  if you changed the key yourself: "
                    "pulumi up --target-replace '**cattle-ssh' --target-dependents;\n"
                    "       if not, find out who answers at that address before you go on"
                )
        return {
            **{name: props.get(name) for name in _INPUTS},
            "address": address,
            "host_key": key.line,
            "fingerprint": key.fingerprint,
            "seconds": elapsed(),
        }

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return diff_of(changed(olds, news, "static_address", "incarnation"), changed(olds, news, "vmid", "node"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/ssh", outs=self._reach(props, pinned=None))

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        same_guest = olds.get("incarnation") == news.get("incarnation")
        return UpdateResult(outs=self._reach(news, pinned=olds.get("host_key") if same_guest else None))

    def read(self, id_: str, props: Props) -> ReadResult:
        """Looks at the lease again; opens no SSH connection."""
        outs = {key: value for key, value in props.items() if key != "__provider"}
        if props.get("static_address") is None:
            with self.proxmox() as client:
                if client.vmid_taken(int(props["vmid"])):
                    outs["address"] = _leased_address(client, props["node"], int(props["vmid"])) or outs.get("address")
        return ReadResult(id_=id_, outs=outs)


class Access(Resource, module="guest", name="Access"):
    """``host_key`` is one line, as in known_hosts without the name; ``fingerprint`` begins with SHA256:."""

    address: pulumi.Output[str]
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
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {
            "guest": guest,
            "vmid": vmid,
            "node": node,
            "static_address": static_address,
            "private_key_file": private_key_file,
            "incarnation": incarnation,
            "address": None,
            "host_key": None,
            "fingerprint": None,
            "seconds": None,
        }
        super().__init__(_AccessProvider(), resource_name, props, opts)
