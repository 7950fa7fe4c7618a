"""The lab's own certificate authority: made once, kept, renewed before it ends."""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_RENEW_BEFORE = 7 * 24 * 3600


@dataclass(frozen=True)
class Certificates:
    """``ca_file`` stands alone in its folder (fit for SSL_CERT_DIR); ``server_file`` holds key and chain, 0600."""

    ca_file: Path
    server_file: Path
    fingerprint: str


def ensure_certificates(directory: Path, names: Sequence[str]) -> Certificates:
    """The CA of ``directory`` and a server certificate for ``names`` (host names and addresses).

    They are made when missing, when the names changed, or when they end within a week.
    """
    ca_file = directory / "ca.pem"
    server_file = directory.with_name("server.pem")
    names_file = directory.with_name("server.names")
    wanted = "\n".join(names)
    usable = (
        ca_file.exists()
        and server_file.exists()
        and names_file.exists()
        and names_file.read_text() == wanted
        and _ends(server_file) > time.time() + _RENEW_BEFORE
    )
    if not usable:
        _make(ca_file, server_file, names)
        names_file.write_text(wanted)
    return Certificates(ca_file, server_file, _fingerprint(server_file))


def _make(ca_file: Path, server_file: Path, names: Sequence[str]) -> None:
    import trustme  # noqa: PLC0415 - slow to import, needed once per lab

    authority = trustme.CA(organization_name="Proxmox lab")
    certificate = authority.issue_cert(*names)
    ca_file.parent.mkdir(parents=True, exist_ok=True)
    for link in ca_file.parent.glob("*.0"):
        link.unlink()
    authority.cert_pem.write_to_path(str(ca_file))
    descriptor = os.open(server_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.close(descriptor)
    certificate.private_key_and_cert_chain_pem.write_to_path(str(server_file))
    _link_by_hash(ca_file)


def _link_by_hash(ca_file: Path) -> None:
    """The name by which OpenSSL finds a CA in a folder; other readers of the folder take any file."""
    result = subprocess.run(
        ["openssl", "x509", "-noout", "-subject_hash", "-in", str(ca_file)], capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        link = ca_file.parent / f"{result.stdout.strip()}.0"
        if not link.is_symlink():
            link.symlink_to(ca_file.name)


def _first_certificate(server_file: Path) -> str:
    text = server_file.read_text()
    start = text.index("-----BEGIN CERTIFICATE-----")
    end = text.index("-----END CERTIFICATE-----", start) + len("-----END CERTIFICATE-----")
    return text[start:end]


def _fingerprint(server_file: Path) -> str:
    der = ssl.PEM_cert_to_DER_cert(_first_certificate(server_file))
    digest = hashlib.sha256(der).hexdigest().upper()
    return ":".join(digest[n : n + 2] for n in range(0, len(digest), 2))


def _ends(server_file: Path) -> float:
    from cryptography import x509  # noqa: PLC0415 - slow to import, and only when there is a certificate

    certificate = x509.load_pem_x509_certificate(_first_certificate(server_file).encode())
    return certificate.not_valid_after_utc.timestamp()
