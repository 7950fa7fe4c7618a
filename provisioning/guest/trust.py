"""Authorities that the container trusts beside Debian's: a homelab's own, for its identity provider or its model."""

from __future__ import annotations

from pathlib import Path

from provisioning.guest.common import install_file, run

ADDED = Path("/usr/local/share/ca-certificates/hermes-stack.crt")
# What is still in the store; a run that is killed while it takes them out finds it again.
LEAVING = ADDED.with_suffix(".leaving")
STORE = Path("/etc/ssl/certs/ca-certificates.crt")


def trust(certificates: str) -> bool:
    """Make the store hold these certificates (PEM text) beside Debian's, and no others of ours; False when it did."""
    if certificates:
        written = install_file(ADDED, certificates, mode=0o644, gid=0)
        if not written and certificates.strip() in STORE.read_text(encoding="utf-8"):
            return False
        run("update-ca-certificates")
        return True
    if ADDED.exists():
        ADDED.rename(LEAVING)
    if not LEAVING.exists():
        return False
    run("update-ca-certificates", "--fresh")
    LEAVING.unlink()
    return True
