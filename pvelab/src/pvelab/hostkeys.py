"""SSH host keys as the log of a create task tells them (PVE::LXC::Setup, rewrite_ssh_host_keys)."""

from __future__ import annotations

import base64
import hashlib

from pvelab.runtime import Log


def comment(hostname: str) -> str:
    """What a host key is marked with."""
    return f"root@{hostname.partition('.')[0]}"


def fingerprint(public: str) -> str:
    """`SHA256:...` of a line of a .pub file, as ssh-keygen prints it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def tell(log: Log, kind: str, found: str, hostname: str) -> None:
    """The two lines for one key. kind: ecdsa, ed25519 or rsa; found: its fingerprint."""
    log(f"Creating SSH host key 'ssh_host_{kind}_key' - this may take some time ...")
    log(f"done: {found} {comment(hostname)}")
