"""The Proxmox: where its API is, and the way to root on the node. The API's rules: proxmox/connection.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import SecretStr

from proxmox.errors import Fault
from settings.kinds import SHOWS_HOST_KEY, LocalFile, Port, host_key_of, matches
from settings.section import Section, rule, setting


class ConnectionSettings(Section):
    """The keys that proxmox.connection.Connection reads. The environment wins over them, `destroy` included."""

    endpoint: str = setting(
        "endpoint", "", "The API's address, https://HOST:8006/. PROXMOX_VE_ENDPOINT in the environment wins."
    )
    api_token: SecretStr = setting(
        "apiToken", "", "The API token, USER@REALM!NAME=UUID. PROXMOX_VE_API_TOKEN in the environment wins."
    )
    ca_file: str = setting(
        "caFile",
        "",
        "A PEM file with the CA that signed the API's certificate. PROXMOX_VE_CA_FILE in the environment wins.",
    )
    fingerprint: str = setting(
        "fingerprint",
        "",
        "Instead of caFile: the SHA-256 of the API's certificate, AA:BB:... PROXMOX_VE_FINGERPRINT in the "
        "environment wins.",
    )
    insecure: bool = setting(
        "insecure",
        False,
        "True: do not verify the API's certificate at all. PROXMOX_VE_INSECURE in the environment wins.",
    )
    node: str = setting("node", "pve", "The Proxmox node of the guests. PROXMOX_VE_NODE in the environment wins.")


class NodeSshSettings(Section):
    """The way to root on the node; there is none while `host_key` is empty."""

    host_key: Annotated[str, host_key_of("the node")] = setting(
        "nodeSshHostKey",
        "",
        "The node's public SSH host key, TYPE BASE64. Empty: no access as root; the run prints the commands to paste.",
    )
    host: Annotated[
        str, matches(r"[A-Za-z0-9.:_-]*", "must be a host name or an address", "write it like 192.168.1.10")
    ] = setting("nodeSshHost", "", "The address of the node's SSH server. Empty: the endpoint's host.")
    port: Port = setting("nodeSshPort", 22, "The port of the node's SSH server.")
    user: Annotated[str, matches(r"[a-z_][a-z0-9_-]*", "must be a user's name", "set it to root")] = setting(
        "nodeSshUser", "root", "The user with uid 0 on the node."
    )
    key_file: LocalFile = setting("nodeSshKeyFile", "", "The private key of that user. Empty: sshPrivateKeyFile.")

    @rule
    def _pinned(self) -> Iterator[Fault]:
        """Whoever answers at a host whose key is not pinned would be given root's commands."""
        given = next(
            (key for key, value in (("nodeSshHost", self.host), ("nodeSshKeyFile", self.key_file)) if value), ""
        )
        if given and not self.host_key:
            text = f"must be set where {given} is: the node's key is pinned, never learnt"
            yield self.fault("host_key", text, f"it is shown on the node's console: {SHOWS_HOST_KEY}")
