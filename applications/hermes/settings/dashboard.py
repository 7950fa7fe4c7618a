"""The agent's dashboard: who reaches it, and how they log in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, SecretStr

from proxmox.errors import Fault
from settings.kinds import EnvSecret, EnvText, HostAddress, Port, is_loopback, matches, or_empty, secret
from settings.section import Section, refuse, rule, setting

PASSWORD_LENGTH = 12
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - where a dashboard takes any host name
SCRYPT_HASH = re.compile(r"scrypt\$16384\$8\$1\$(?:[A-Za-z0-9+/]{4}){4,}[A-Za-z0-9+/=]{0,4}\$[A-Za-z0-9+/]{43}=\Z")
"""A password as the dashboard keeps it: scrypt$N$r$p$salt$key, 16 bytes of salt or more, 32 of key, both in base64.

The agent would take other parameters too, but none that cost more memory than OpenSSL allows by default.
"""


def _issuer(value: str) -> str:
    """The agent takes nothing but https for a provider: codes and tokens pass through it."""
    if not re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d+)?(/[^\s'\"\\?#$]*)?", value):
        raise refuse(
            "must be an https URL without query", "write the issuer as the provider's openid-configuration tells it"
        )
    return value.rstrip("/")


def _public_url(value: str) -> str:
    if not re.fullmatch(r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d+)?/?", value):
        raise refuse(
            "must be http or https, a host name and perhaps a port, without a path",
            "write it like https://hermes.example.org",
        )
    return value.rstrip("/").lower()


def _proxy(value: str) -> str:
    try:
        network = ipaddress.ip_network(value)
    except ValueError:
        raise refuse(
            "must be an IP address, or a network as its first address and prefix", "write it like 192.168.1.5"
        ) from None
    if network.prefixlen == 0:
        raise refuse("must not be everybody", "name the proxy's address, or the network that only proxies are in")
    return value


def _scrypt_hash(value: str) -> str:
    if not SCRYPT_HASH.fullmatch(value):
        raise refuse("must be a hash as the dashboard makes it", "scripts/agent hash-password makes one")
    return value


def _password(value: str) -> str:
    if len(value) < PASSWORD_LENGTH:
        raise refuse(
            f"the dashboard's password must have {PASSWORD_LENGTH} characters or more",
            "pulumi config set --secret agentDashboardPassword",
        )
    return value


class DashboardSettings(Section):
    """What it does by itself on which address: facts hermes 1, "Dashboard"."""

    enabled: bool = setting(
        "agentDashboard",
        True,
        "Whether the dashboard runs. With agentSource git its web interface is built in the cattle.",
    )
    host: HostAddress = setting(
        "agentDashboardHost",
        "127.0.0.1",
        "The address that the dashboard listens on: loopback, or 0.0.0.0 with a password or OIDC. On a single"
        " other address it accepts only requests for that address.",
    )
    port: Port = setting("agentDashboardPort", 9119, "The dashboard's port.")
    user: Annotated[
        str, matches(r"[A-Za-z0-9._@-]+", "must be letters, digits and . _ @ - only", "name the user like admin")
    ] = setting("agentDashboardUser", "admin", "The dashboard's user, if it asks for a password.")
    password: Annotated[SecretStr, secret(_password)] = setting(
        "agentDashboardPassword", "", "The dashboard's password. Only its scrypt hash reaches the guest's files."
    )
    password_hash: Annotated[SecretStr, secret(_scrypt_hash)] = setting(
        "agentDashboardPasswordHash",
        "",
        "Instead of agentDashboardPassword: its hash. `scripts/agent hash-password` makes it.",
    )
    oidc_issuer: Annotated[str, or_empty(_issuer)] = setting(
        "agentDashboardOidcIssuer",
        "",
        "Log in by OpenID Connect: the provider's issuer, https://. With or without a password.",
    )
    oidc_client_id: EnvText = setting(
        "agentDashboardOidcClientId",
        "",
        "The dashboard's client id at the provider. Its redirect URI is agentDashboardPublicUrl/auth/callback.",
    )
    oidc_client_secret: EnvSecret = setting(
        "agentDashboardOidcClientSecret",
        "",
        "That client's secret. Empty for a public client (PKCE is used in both cases).",
    )
    oidc_scopes: Annotated[
        str,
        matches(
            r"([\x21\x23-\x5b\x5d-\x7e]+ )*openid( [\x21\x23-\x5b\x5d-\x7e]+)*",
            "must be scopes with single blanks between them, openid among them",
            "leave it at: openid profile email",
        ),
    ] = setting("agentDashboardOidcScopes", "openid profile email", "The scopes to ask for.")
    public_url: Annotated[str, or_empty(_public_url)] = setting(
        "agentDashboardPublicUrl",
        "",
        "Behind a proxy: the address that browsers use, https://NAME. Needs agentDashboardHost 0.0.0.0.",
    )
    trusted_proxies: list[Annotated[str, AfterValidator(_proxy)]] = setting(
        "agentDashboardTrustedProxies",
        [],
        "The addresses or networks of proxies. The dashboard believes what they say about the browser: its "
        "address, and whether it uses https.",
    )

    @property
    def has_password(self) -> bool:
        """Whether there is one, in clear or as its hash."""
        return bool(self.password or self.password_hash)

    @property
    def providers(self) -> tuple[str, ...]:
        """The ways to log in, as the agent's /api/status names them. On loopback it never asks."""
        return (*(("basic",) if self.has_password else ()), *(("self-hosted",) if self.oidc_issuer else ()))

    @rule
    def _provider_and_client(self) -> Iterator[Fault]:
        if self.oidc_issuer and not self.oidc_client_id:
            yield self.fault(
                "oidc_client_id",
                "agentDashboardOidcIssuer needs the client that the provider knows the dashboard by",
                "set agentDashboardOidcClientId, or leave both empty",
            )
        if self.oidc_client_id and not self.oidc_issuer:
            remedy = "set agentDashboardOidcIssuer, or leave both empty"
            yield self.fault("oidc_client_id", "a client needs its provider", remedy)
        elif self.oidc_client_secret and not self.oidc_issuer:
            yield self.fault(
                "oidc_client_secret",
                "a client's secret needs its provider",
                "set agentDashboardOidcIssuer, or: pulumi config rm agentDashboardOidcClientSecret",
            )

    @rule
    def _one_password(self) -> Iterator[Fault]:
        if self.password and self.password_hash:
            text = "agentDashboardPassword and agentDashboardPasswordHash are both set"
            yield self.fault("password", text, "pulumi config rm one of them")

    @rule
    def _guarded(self) -> Iterator[Fault]:
        """Hermes itself refuses to start otherwise (facts hermes 1, Dashboard)."""
        if self.enabled and not is_loopback(self.host) and not self.providers:
            yield self.fault(
                "password",
                f"a dashboard on {self.host} needs a password",
                "pulumi config set --secret agentDashboardPassword, or agentDashboardPasswordHash, or "
                "agentDashboardOidcIssuer, or agentDashboardHost 127.0.0.1",
            )

    @rule
    def _provider_leads_back(self) -> Iterator[Fault]:
        if self.enabled and self.oidc_issuer and not self.public_url:
            yield self.fault(
                "public_url",
                "with agentDashboardOidcIssuer the provider has to lead back to an address that it knows",
                "set the address that browsers use, and enter ADDRESS/auth/callback at the provider",
            )

    @rule
    def _https_is_believed(self) -> Iterator[Fault]:
        if self.enabled and self.public_url.startswith("https:") and not self.trusted_proxies:
            yield self.fault(
                "public_url",
                "the dashboard has to know whom to believe that browsers use https",
                "list the proxy's address in agentDashboardTrustedProxies",
            )
