"""Where the Proxmox API is, who we are there, and how we know that it is it.

The environment comes first, the configuration second: a rotated token or a moved endpoint then works for `up`,
`refresh` and `destroy` without a change of state (facts pulumi, "Dynamic resources in Python").
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import SecretStr

from proxmox.errors import Fault, Faults, mask

ENVIRONMENT = {
    "endpoint": "PROXMOX_VE_ENDPOINT",
    "apiToken": "PROXMOX_VE_API_TOKEN",
    "caFile": "PROXMOX_VE_CA_FILE",
    "fingerprint": "PROXMOX_VE_FINGERPRINT",
    "insecure": "PROXMOX_VE_INSECURE",
    "node": "PROXMOX_VE_NODE",
}
"""Configuration key -> environment variable that wins over it. Endpoint, token, insecure: the provider's names."""

DEFAULT_PORT = 8006
CONNECT_SECONDS = 10.0

TOKEN_ID = re.compile(r"(?!PVEAPIToken[= ])[^\s:/]+@[A-Za-z][A-Za-z0-9.\-_]+![A-Za-z][A-Za-z0-9.\-_]+")
"""USER@REALM!NAME in Proxmox's own grammar (PVE::Auth::Plugin, PVE::AccessControl).

A user of LDAP or OpenID may have an @ in the name. The exception is ours: the first word of a header that was pasted.
"""
_TOKEN = re.compile(
    rf"(?P<id>{TOKEN_ID.pattern})=(?P<secret>[0-9a-fA-F]{{8}}(?:-[0-9a-fA-F]{{4}}){{3}}-[0-9a-fA-F]{{12}})"
)
_FINGERPRINT = re.compile(r"^(?:[0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$|^[0-9A-Fa-f]{64}$")
_NODE = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?$")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True)
class Connection:
    """A checked connection. `endpoint` has no path; at most one of ca_file, fingerprint and insecure is in effect.

    fingerprint: SHA-256 of the server's certificate, 64 hex digits in lower case without colons.
    With none of the three the system's certificate store is used, as the provider plugin does.
    names: for each key of ENVIRONMENT the name under which its value was found, for texts about it.
    """

    endpoint: str
    token_id: str
    token_secret: SecretStr
    node: str
    ca_file: str | None = None
    fingerprint: str | None = None
    insecure: bool = False
    names: Mapping[str, str] = field(default_factory=lambda: {key: key for key in ENVIRONMENT}, compare=False)

    @property
    def host(self) -> str:
        """Host name or address; an IPv6 address without brackets."""
        return urlsplit(self.endpoint).hostname or ""

    @property
    def port(self) -> int:
        """TCP port."""
        return urlsplit(self.endpoint).port or DEFAULT_PORT

    @property
    def api_token(self) -> SecretStr:
        """The token in one piece, `USER@REALM!NAME=UUID`: what the provider's `api_token` takes."""
        return SecretStr(f"{self.token_id}={self.token_secret.get_secret_value()}")

    @classmethod
    def from_sources(cls, env: Mapping[str, str], config: Mapping[str, str | None]) -> Connection:
        """The connection that environment and configuration describe (ENVIRONMENT has the names).

        An empty value counts as not given. Raises Faults with every fault found.
        """
        return _Reader(env, config).connection()


class _Reader:
    """One reading of the settings; collects faults as it goes."""

    def __init__(self, env: Mapping[str, str], config: Mapping[str, str | None]) -> None:
        self.env = env
        self.config = config
        self.faults: list[Fault] = []

    def text(self, key: str) -> tuple[str, str]:
        """The value of a key and the name under which it was found (or should have been)."""
        variable = ENVIRONMENT[key]
        value = (self.env.get(variable) or "").strip()
        if value:
            return value, variable
        return (self.config.get(key) or "").strip(), key

    def fault(self, key: str, value: str, rule: str, remedy: str) -> None:
        self.faults.append(Fault(key, mask(value), rule, remedy))

    def connection(self) -> Connection:
        endpoint = self.endpoint()
        token_id, secret = self.token()
        node = self.node()
        insecure = self.insecure()
        ca_file, fingerprint = self.identity(insecure)
        if self.faults:
            raise Faults(self.faults, "The connection to Proxmox cannot be used")
        names = {key: self.text(key)[1] for key in ENVIRONMENT}
        return Connection(endpoint, token_id, SecretStr(secret), node, ca_file, fingerprint, insecure, names)

    def endpoint(self) -> str:
        value, name = self.text("endpoint")
        example = "for example: export PROXMOX_VE_ENDPOINT=https://192.168.1.10:8006"
        if not value:
            self.fault(name, "", "the address of the Proxmox API is needed", example)
            return ""
        parts = urlsplit(value)
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            port = 0
        plain_path = parts.path.rstrip("/") in ("", "/api2/json")
        if parts.scheme != "https" or not parts.hostname or not port or not plain_path or parts.query or parts.fragment:
            self.fault(name, _without_login(value), "must be https://HOST:PORT, without a path", example)
            return ""
        if parts.username or parts.password:
            self.fault(name, _without_login(value), "must not carry a user or password", "the token goes into apiToken")
            return ""
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return f"https://{host}:{port}"

    def token(self) -> tuple[str, str]:
        value, name = self.text("apiToken")
        match = _TOKEN.fullmatch(value)
        if match:
            return match["id"], match["secret"]
        remedy = (
            "make one with: pveum user token add USER@REALM NAME; "
            "then: export PROXMOX_VE_API_TOKEN='USER@REALM!NAME=UUID'"
        )
        if not value:
            self.fault(name, "", "an API token is needed", remedy)
        else:
            # The value may be a secret in any wrong shape (facts field-reports C4): nothing of it is shown.
            self.fault(name, f"({len(value)} characters, not shown)", "must have the form USER@REALM!NAME=UUID", remedy)
        return "", ""

    def node(self) -> str:
        value, name = self.text("node")
        if not _NODE.match(value):
            rule = "must be a node's name (letters, digits, hyphens)" if value else "the node's name is needed"
            self.fault(name, value, rule, "`hostname` on the node tells it, and the web interface at the left")
        return value

    def insecure(self) -> bool:
        value, name = self.text("insecure")
        if value.lower() not in _TRUE | _FALSE:
            self.fault(name, value, "must be true or false", "leave it out to have the server's certificate verified")
        return value.lower() in _TRUE

    def identity(self, insecure: bool) -> tuple[str | None, str | None]:
        """CA file and fingerprint. With both, or with `insecure` beside them, the settings contradict each other."""
        ca_file, ca_name = self.text("caFile")
        fingerprint, print_name = self.text("fingerprint")
        given = [name for name, value in ((ca_name, ca_file), (print_name, fingerprint)) if value]
        if insecure and given:
            rule = "contradicts insecure, which asks not to verify"
            self.fault(" and ".join(given), ca_file or fingerprint, rule, "remove insecure, or remove the other")
        elif len(given) == 2:
            rule = "only one way to verify the server can be used"
            remedy = "keep the CA file: the provider plugin can use it too"
            self.fault(" and ".join(given), f"{ca_file}, {fingerprint}", rule, remedy)
        path = self.ca_path(ca_name, ca_file) if ca_file else None
        if fingerprint and not _FINGERPRINT.match(fingerprint):
            rule = "must be a SHA-256 fingerprint: 32 pairs of hex digits with colons"
            self.fault(print_name, fingerprint, rule, "`pvenode cert info` on the node shows it")
        return path, fingerprint.replace(":", "").lower() or None

    def ca_path(self, name: str, file: str) -> str | None:
        """The whole path of a CA's file; None where it can't be used."""
        try:
            path = str(Path(file).expanduser().absolute())
        except RuntimeError:
            rule = f"this machine knows no home folder for {file.split('/', maxsplit=1)[0]}"
            self.fault(name, file, rule, "write the whole path, from / on")
            return None
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or type(error).__name__
            rule = f"must be a readable file of PEM certificates ({reason})"
            self.fault(name, path, rule, "copy /etc/pve/pve-root-ca.pem from the node")
        return path


def _without_login(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//********@", url)


# Where Go's crypto/x509 looks on Linux, in its order: the first file that can be read, then all directories.
_GO_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_GO_DIRECTORIES = ("/etc/ssl/certs", "/etc/pki/tls/certs")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def plugin_certificates(env: Mapping[str, str]) -> str:
    """PEM text of all certificates that the provider plugin trusts in this environment.

    The plugin is a Go program: SSL_CERT_FILE replaces the system's bundle, SSL_CERT_DIR (several, separated by colons)
    replaces the system's directories, and in a directory every file counts, whatever its name.
    """
    texts = [plugin_bundle(env)]
    directories = env.get("SSL_CERT_DIR", "")
    for name in directories.split(":") if directories else _GO_DIRECTORIES:
        try:
            files = sorted(Path(name).iterdir())
        except OSError:
            continue
        texts.extend(_read(file) for file in files)
    found = dict.fromkeys(block for text in texts for block in _PEM.findall(text))
    return "\n".join(found)


def plugin_bundle(env: Mapping[str, str]) -> str:
    """PEM text of the certificates in the one file that the plugin reads first; empty where there is none."""
    override = env.get("SSL_CERT_FILE", "")
    texts = (_read(Path(name)) for name in ((override,) if override else _GO_FILES))
    return "\n".join(_PEM.findall(next(filter(None, texts), "")))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="ignore")
    except OSError:
        return ""


def _handshake(host: str, port: int, context: ssl.SSLContext) -> None:
    with (
        socket.create_connection((host, port), timeout=CONNECT_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host),
    ):
        pass


def check_plugin_trust(
    connection: Connection,
    env: Mapping[str, str],
    handshake: Callable[[str, int, ssl.SSLContext], None] = _handshake,
) -> tuple[Fault, ...]:
    """Whether the provider plugin, a program of its own without an option for a CA, would trust this server.

    Makes a TLS connection with the certificates that the plugin would use: with those of its bundle, and where they do
    not do, with all. (To read the hundreds of the system's directories takes longer than all else that is asked here,
    and who is trusted by some is trusted by more.) A server that cannot be reached is no fault here: the client tells
    that better. Empty when `insecure` is set, which the plugin is told too.
    """
    if connection.insecure:
        return ()
    refused: ssl.SSLCertVerificationError | None = None
    for certificates in (plugin_bundle, plugin_certificates):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Go accepts any certificate of its store as an anchor, a server's own included.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            if text := certificates(env):
                context.load_verify_locations(cadata=text)
            handshake(connection.host, connection.port, context)
        except ssl.SSLCertVerificationError as error:
            refused = error
        except (OSError, ssl.SSLError):
            return ()
        else:
            return ()
    return () if refused is None else (_trust_fault(connection, env, refused.verify_message),)


def _trust_fault(connection: Connection, env: Mapping[str, str], reason: str) -> Fault:
    rule = f"the Proxmox provider plugin must trust the server too, and would not: {reason}"
    if "mismatch" in reason.lower():
        remedy = "use an address that the server's certificate names (pvenode cert info shows them)"
    elif connection.ca_file and env.get("SSL_CERT_FILE"):
        directory = Path(connection.ca_file).parent
        others = env.get("SSL_CERT_DIR") or "/etc/ssl/certs"
        remedy = f"export SSL_CERT_DIR='{others}:{directory}'"
    elif connection.ca_file:
        remedy = f"export SSL_CERT_FILE='{connection.ca_file}'   (the system's directories stay in use)"
    else:
        remedy = (
            f"the plugin cannot compare fingerprints: scripts/trust {connection.endpoint} FINGERPRINT "
            "saves the certificate that has it and prints the line to export; leave the fingerprint out then"
        )
    return Fault("SSL_CERT_FILE", env.get("SSL_CERT_FILE", ""), rule, remedy)
