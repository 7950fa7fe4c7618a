"""Trusts a Proxmox by its fingerprint. The plugin can't compare fingerprints, but it can trust a certificate file."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import ssl
import sys
from pathlib import Path
from urllib.parse import urlsplit

from provisioning.terminal import visible
from proxmox.connection import DEFAULT_PORT
from scripts.lib.ending import end_with

TIMEOUT = 10.0


class TrustError(Exception):
    """The address is none, there is no certificate, or it has another fingerprint."""


def endpoint_of(text: str) -> str:
    """``https://HOST:PORT`` of a host, a host with a port, or an address. Raises TrustError."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    try:
        port = parts.port or DEFAULT_PORT
    except ValueError:
        port = 0
    if parts.scheme != "https" or not parts.hostname or not port or parts.username:
        raise TrustError(f"{text} is no address of a Proxmox API: write it like https://192.168.1.10:8006")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"https://{host}:{port}"


def certificate_of(host: str, port: int) -> str:
    """The server's certificate as PEM, not verified. The fingerprint verifies it."""
    try:
        return ssl.get_server_certificate((host, port), timeout=TIMEOUT)
    except OSError as error:
        remedy = "see whether the node is up; write the address as the browser has it for Proxmox: https://NODE:8006"
        raise TrustError(f"{host}:{port} sends no certificate: {error}\n  do:   {remedy}") from None


def fingerprint_of(pem: str) -> str:
    """SHA-256 of a certificate as Proxmox shows it: 32 pairs of hex digits with colons."""
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest().upper()
    return ":".join(digest[place : place + 2] for place in range(0, len(digest), 2))


def save(pem: str, wanted: str, file: Path) -> None:
    """Write the certificate if it has the fingerprint. Raises TrustError otherwise."""
    found = fingerprint_of(pem)
    if found.replace(":", "") != wanted.replace(":", "").upper():
        raise TrustError(
            f"the server's certificate has another fingerprint. Nothing was saved.\n"
            f"  wanted: {wanted}\n  found:  {found}\n"
            "If somebody renewed the node's certificate, `pvenode cert info` on the node shows the new fingerprint.\n"
            "Otherwise another machine answers at that address."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(pem)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/trust", description="Trust a Proxmox by its fingerprint.")
    parser.add_argument("address", metavar="HOST[:PORT]")
    parser.add_argument("fingerprint", nargs="?", help="SHA-256, as `pvenode cert info` shows it")
    options = parser.parse_args()
    try:
        place = urlsplit(endpoint_of(options.address))
        host = place.hostname or ""
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        file = base / "hermes-homelab" / f"{host}.pem"
        pem = certificate_of(host, place.port or DEFAULT_PORT)
        if options.fingerprint is None:
            print(f"The certificate of {host} has the SHA-256 fingerprint\n  {fingerprint_of(pem)}")
            print("Compare it with what `pvenode cert info` shows on the node, then:")
            print(f"  scripts/trust {options.address} FINGERPRINT")
            return 0
        save(pem, options.fingerprint, file)
    except (TrustError, OSError, ValueError, RuntimeError) as error:
        print(f"trust: {visible(str(error))}", file=sys.stderr)
        return 1
    print(f"export PROXMOX_VE_CA_FILE={shlex.quote(str(file))}")
    return 0


if __name__ == "__main__":
    end_with(main)
