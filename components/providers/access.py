"""The way into a cattle: its address, the SSH host key that every later contact is held to, and its network card."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import tenacity

from components.providers.base import (
    CreateResult,
    DiffResult,
    Props,
    Provider,
    ReadResult,
    UpdateResult,
    changed,
    diff_of,
    progress,
    warn,
)
from components.timing import stopwatch
from provisioning.errors import SshAuthError, SshUnreachable, WrongMachine
from provisioning.kept import KEPT
from provisioning.ssh import Card, HostKey, SshTarget, wait_for_ssh
from proxmox.addresses import addresses_of, leased
from proxmox.client import Address, Proxmox
from proxmox.errors import NoSuchGuest, ProxmoxError
from proxmox.hostkeys import made_host_keys, shown_host_key

ADDRESS_SECONDS = 60.0
SSH_SECONDS = 120.0
PROOF_SECONDS = 60.0
_INPUTS = (
    *("guest", "vmid", "node", "static_address", "private_key_file", "incarnation", "declared_key"),
    "authorized_keys",
    "card_declared",
)
_KEY_FILES = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}


def card_of(vmid: int | str, hardware_address: str | None) -> Card:
    """What the machine behind the address has to prove: that it has this network card."""
    if not hardware_address:
        raise WrongMachine(
            f"CT {vmid} has no hardware address in net0, so no machine can be proved to be it.\n"
            f"See: pct config {vmid}; give it one: pct set {vmid} --net0 ...,hwaddr=...; then: pulumi up"
        )
    return Card(f"CT {vmid}", hardware_address)


def _addresses(client: Proxmox, node: str, vmid: int, card: Card) -> tuple[Address, ...]:
    return addresses_of(client.interfaces(node, vmid), card.hardware_address)


def _told(addresses: tuple[Address, ...]) -> str:
    return ", ".join(address.address for address in addresses) or "none"


def _wait_for_address(client: Proxmox, node: str, vmid: int, card: Card) -> str:
    """Poll until DHCP has given the guest an IPv4 address that can be reached; SshUnreachable when it does not."""
    seen: tuple[Address, ...] = ()

    def look() -> str | None:
        nonlocal seen
        seen = _addresses(client, node, vmid, card)
        return leased(seen)

    looks = tenacity.Retrying(
        stop=tenacity.stop_after_delay(ADDRESS_SECONDS),
        wait=tenacity.wait_fixed(0.5),
        retry=tenacity.retry_if_result(lambda address: address is None),
        retry_error_callback=lambda _state: None,
    )
    address: str | None = looks(look)
    if address is None:
        raise SshUnreachable(
            f"CT {vmid} has had no IPv4 address that can be reached for {ADDRESS_SECONDS:.0f} seconds.\n"
            f"  why: cattleAddress is dhcp, and no DHCP server on the bridge has answered; on net0: {_told(seen)}\n"
            "  do:  look at the DHCP server, or set cattleAddress and cattleGateway"
        )
    return address


def _seen_by_proxmox(client: Proxmox, node: str, vmid: int, card: Card) -> str:
    """Where the container is to be found, by Proxmox: the address may be another one."""
    try:
        return f"Proxmox sees on net0 of CT {vmid}: {_told(_addresses(client, node, vmid, card))}."
    except ProxmoxError as error:
        return f"Proxmox does not tell the addresses of CT {vmid}: {error.what}."


def _at_first_contact(vmid: int, address: str, key: HostKey) -> str:
    file = f"/etc/ssh/ssh_host_{_KEY_FILES.get(key.type, 'ecdsa')}_key.pub"
    return (
        f"No log that the token may read tells the SSH host keys of CT {vmid}, so the one that {address} shows is "
        f"taken as it is: {key.fingerprint}. Compare it on the node: pct exec {vmid} -- ssh-keygen -lf {file}"
    )


def _wait_for_proof(client: Proxmox, node: str, vmid: int) -> frozenset[str]:
    """The host key that a clone shows once it has booted; empty where it does not."""
    looks = tenacity.Retrying(
        stop=tenacity.stop_after_delay(PROOF_SECONDS),
        wait=tenacity.wait_fixed(0.25),
        retry=tenacity.retry_if_result(lambda key: key is None),
        retry_error_callback=lambda _state: None,
    )
    key: str | None = looks(lambda: shown_host_key(client.interfaces(node, vmid)))
    return frozenset() if key is None else frozenset({key})


def _keys_of_clone(client: Proxmox, node: str, vmid: int) -> frozenset[str]:
    """As the clone shows them. A container that was made otherwise, by a run that was cut off, has a log instead."""
    found = _wait_for_proof(client, node, vmid) or made_host_keys(client, node, vmid)
    if not found:
        raise SshUnreachable(
            f"CT {vmid} does not show its SSH host key.\n"
            "  why: it was cloned from a golden template, and nothing else tells the key that it has made; its "
            f"loopback had no such addresses for {PROOF_SECONDS:.0f} seconds. Without IPv6 on the node it can't show "
            "them\n"
            f"  do:  on the node: pct exec {vmid} -- journalctl -u hermes-stack-host-key; or set cattleSshHostKey to: "
            f"pct exec {vmid} -- cat /etc/ssh/ssh_host_ed25519_key.pub"
        )
    return found


def _authorize(target: SshTarget, keys: Sequence[str]) -> None:
    """Let these keys in as root, and no others: a clone has those of its template."""
    file = "/root/.ssh/authorized_keys"
    command = f"umask 077 && mkdir -p /root/.ssh && cat >{file}.new && mv {file}.new {file}"
    with contextlib.closing(KEPT.connect(target)) as connection:
        done = connection.run(command, stdin="".join(f"{key}\n" for key in keys).encode())
    if done.status:
        raise SshAuthError(f"{file} can't be written in {target.host}: {done.words}\nRun pulumi up again.")


class AccessProvider(Provider):
    def reach(self, props: Props, pinned: str | None) -> Props:
        """Wait until somebody can log in, and answer how; ``pinned``: the host key that is known already."""
        vmid, node = int(props["vmid"]), props["node"]
        card = card_of(vmid, props["incarnation"])
        keys = props.get("authorized_keys")
        with stopwatch() as elapsed, self.proxmox() as client:
            # An input that is None is not there at all.
            address = props.get("static_address") or _wait_for_address(client, node, vmid, card)
            known = props.get("declared_key") or pinned
            made = frozenset[str]()
            if not known:
                made = made_host_keys(client, node, vmid) if keys is None else _keys_of_clone(client, node, vmid)
            try:
                key = wait_for_ssh(
                    address,
                    private_key_file=props["private_key_file"],
                    card=card,
                    key=HostKey.parse(known) if known else None,
                    made=made,
                    timeout_s=SSH_SECONDS,
                    on_line=progress,
                    # The phases go on with it.
                    opened=KEPT.connect,
                )
            except SshUnreachable as error:
                raise SshUnreachable(f"{error}\n{_seen_by_proxmox(client, node, vmid, card)}") from None
        if keys is not None and not known:
            _authorize(SshTarget(address, key, private_key_file=props["private_key_file"], card=card), keys)
        if not known and not made:
            warn(_at_first_contact(vmid, address, key))
        return {
            **{name: props.get(name) for name in _INPUTS},
            "address": address,
            "host_key": key.line,
            "fingerprint": key.fingerprint,
            "seconds": elapsed(),
        }

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        updates = changed(olds, news, "static_address", "incarnation", "declared_key", "card_declared")
        return diff_of(updates, changed(olds, news, "vmid", "node"))

    def create(self, props: Props) -> CreateResult:
        return CreateResult(id_=f"{int(props['vmid'])}/ssh", outs=self.reach(props, pinned=None))

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        # Of one that was declared and is not any more, the log of the creation is asked again.
        keeps = olds.get("incarnation") == news.get("incarnation") and not olds.get("declared_key")
        return UpdateResult(outs=self.reach(news, pinned=olds.get("host_key") if keeps else None))

    def read(self, id_: str, props: Props) -> ReadResult:
        """Looks at the lease again; opens no SSH connection.

        A container whose card is declared has the same one when it is made again. So its way in goes with it: else
        nothing would tell that the next one has another host key, and needs all phases.
        """
        outs = dict(props)
        vmid, leases, fixed = int(props["vmid"]), props.get("static_address") is None, props.get("card_declared")
        if props.get("incarnation") and (leases or fixed):
            # One that was moved is another resource's to tell (attachment.py, power.py).
            with self.proxmox() as client, contextlib.suppress(NoSuchGuest):
                if client.vmid_taken(vmid):
                    if leases:
                        found = addresses_of(client.interfaces(props["node"], vmid), props["incarnation"])
                        outs["address"] = leased(found) or outs.get("address")
                elif fixed:
                    return ReadResult(id_="", outs={})
        return ReadResult(id_=id_, outs=outs)
