"""The dashboard's settings: who reaches it, and how they log in. A part of the agent's."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from components.rules import SettingsModel, keys_with, list_from_json, matches, refuse
from provisioning.models import SCRYPT_HASH, unfit_for_env

SECRET_KEYS = frozenset({"agentDashboardPassword", "agentDashboardPasswordHash", "agentDashboardOidcClientSecret"})
PASSWORD_LENGTH = 12
LOOPBACK = "127.0.0.1"
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - where a dashboard takes any host name


def is_loopback(host: str) -> bool:
    """Whether only the container itself reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _issuer(value: str) -> str:
    """The agent takes nothing but https for a provider: codes and tokens pass through it."""
    if value and not re.fullmatch(r"https://[A-Za-z0-9.-]+(:\d+)?(/[^\s'\"\\?#$]*)?", value):
        raise refuse(
            "must be an https URL without query", "write the issuer as the provider's openid-configuration tells it"
        )
    return value.rstrip("/")


def _public_url(value: str) -> str:
    if value and not re.fullmatch(r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d+)?/?", value):
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


def _scrypt_hash(value: SecretStr) -> SecretStr:
    if value.get_secret_value() and not SCRYPT_HASH.fullmatch(value.get_secret_value()):
        raise refuse("must be a hash as the dashboard makes it", "scripts/agent hash-password makes one")
    return value


def _env_text(value: str) -> str:
    if (unfit := unfit_for_env(value)) is not None:
        raise refuse(unfit, "use letters, digits and - . _")
    return value


class DashboardSettings(SettingsModel):
    """The agent's dashboard: who reaches it, and how they log in.

    What it does by itself on which address: facts hermes 1, "Dashboard". The order of the fields is that of the rules:
    one that looks at others comes after them.
    """

    model_config = ConfigDict(alias_generator=keys_with("agent"))

    mode: Literal["bare-metal", "docker", "none"]
    dashboard: bool
    dashboard_host: Annotated[str, Field(min_length=1)]
    dashboard_port: Annotated[int, Field(ge=1, le=65535)]
    dashboard_user: Annotated[
        str,
        AfterValidator(
            matches(r"[A-Za-z0-9._@-]+", "must be letters, digits and . _ @ - only", "name the user like admin")
        ),
    ]
    dashboard_password_hash: Annotated[SecretStr, AfterValidator(_scrypt_hash)]
    dashboard_oidc_issuer: Annotated[str, AfterValidator(_issuer)]
    dashboard_oidc_client_id: Annotated[str, AfterValidator(_env_text)]
    dashboard_oidc_client_secret: SecretStr
    dashboard_oidc_scopes: Annotated[
        str,
        AfterValidator(
            matches(
                r"([\x21\x23-\x5b\x5d-\x7e]+ )*openid( [\x21\x23-\x5b\x5d-\x7e]+)*",
                "must be scopes with single blanks between them, openid among them",
                "leave it at: openid profile email",
            )
        ),
    ]
    dashboard_password: SecretStr
    dashboard_trusted_proxies: Annotated[list[Annotated[str, AfterValidator(_proxy)]], BeforeValidator(list_from_json)]
    dashboard_public_url: Annotated[str, AfterValidator(_public_url)]

    @property
    def dashboard_is_local(self) -> bool:
        """Whether the dashboard listens on loopback only."""
        return is_loopback(self.dashboard_host)

    @property
    def dashboard_asks(self) -> bool:
        """Whether there is a way to log in: on loopback it is not asked for."""
        secrets = (self.dashboard_password, self.dashboard_password_hash)
        return any(secret.get_secret_value() for secret in secrets) or bool(self.dashboard_oidc_issuer)

    @field_validator("dashboard_oidc_client_id")
    @classmethod
    def _client_goes_with_issuer(cls, client: str, info: ValidationInfo) -> str:
        issuer = info.data.get("dashboard_oidc_issuer")
        if issuer and not client:
            raise refuse(
                "agentDashboardOidcIssuer needs the client that the provider knows the dashboard by",
                "set agentDashboardOidcClientId, or leave both empty",
            )
        if issuer == "" and client:
            raise refuse("a client needs its provider", "set agentDashboardOidcIssuer, or leave both empty")
        return client

    @field_validator("dashboard_oidc_client_secret")
    @classmethod
    def _secret_goes_with_issuer(cls, secret: SecretStr, info: ValidationInfo) -> SecretStr:
        if (unfit := unfit_for_env(secret.get_secret_value())) is not None:
            raise refuse(unfit, "have the provider make another one, of letters and digits")
        if secret.get_secret_value() and info.data.get("dashboard_oidc_issuer") == "":
            raise refuse(
                "a client's secret needs its provider",
                "set agentDashboardOidcIssuer, or: pulumi config rm agentDashboardOidcClientSecret",
            )
        return secret

    @field_validator("dashboard_password")
    @classmethod
    def _dashboard_is_guarded(cls, password: SecretStr, info: ValidationInfo) -> SecretStr:
        # Hermes itself refuses to start otherwise (facts hermes 1, Dashboard).
        host = info.data.get("dashboard_host", LOOPBACK)
        length = len(password.get_secret_value())

        def set_or_at_fault(field: str) -> bool:
            value = info.data.get(field)
            return value is None or bool(value.get_secret_value() if isinstance(value, SecretStr) else value)

        others = [field for field in ("dashboard_password_hash", "dashboard_oidc_issuer") if set_or_at_fault(field)]
        if info.data.get("dashboard") and not is_loopback(host) and not length and not others:
            raise refuse(
                f"a dashboard on {host} needs a password",
                "pulumi config set --secret agentDashboardPassword, or agentDashboardPasswordHash, or "
                "agentDashboardOidcIssuer, or agentDashboardHost 127.0.0.1",
            )
        if 0 < length < PASSWORD_LENGTH:
            raise refuse(
                f"the dashboard's password must have {PASSWORD_LENGTH} characters or more",
                "pulumi config set --secret agentDashboardPassword",
            )
        if length and "dashboard_password_hash" in others:
            raise refuse(
                "agentDashboardPassword and agentDashboardPasswordHash are both set",
                "pulumi config rm one of them",
            )
        return password

    @field_validator("dashboard_public_url")
    @classmethod
    def _public_url_is_reached(cls, url: str, info: ValidationInfo) -> str:
        host, issuer = info.data.get("dashboard_host", ""), info.data.get("dashboard_oidc_issuer")
        if not info.data.get("dashboard"):
            return url
        if issuer and not url:
            raise refuse(
                "with agentDashboardOidcIssuer the provider has to lead back to an address that it knows",
                "set the address that browsers use, and enter ADDRESS/auth/callback at the provider",
            )
        if not url:
            return url
        # In a container it always listens on all addresses.
        if host and host not in _EVERYWHERE and info.data.get("mode") != "docker":
            raise refuse(
                f"a dashboard on {host} refuses requests that ask for another host name",
                "set agentDashboardHost to 0.0.0.0 where a proxy leads to it",
            )
        if url.startswith("https:") and info.data.get("dashboard_trusted_proxies") == []:
            raise refuse(
                "the dashboard has to know whom to believe that browsers use https",
                "list the proxy's address in agentDashboardTrustedProxies",
            )
        return url
