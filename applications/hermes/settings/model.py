"""The model that the agent talks to, and the agent's own API."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from settings.kinds import Certificates, EnvSecret, HostAddress, OptionalUrl, Port, matching, secret
from settings.section import Section, refuse, setting

API_KEY_LENGTH = 32


def _provider(value: str) -> str:
    """Hermes takes upper case for lower (hermes_cli/auth.py, resolve_provider)."""
    found = value.strip().lower()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.:_-]*", found):
        raise refuse("must be the name of a provider", "write it like custom, openrouter or a name of agentProviders")
    return found


_api_key = matching(
    rf"[A-Za-z0-9_-]{{{API_KEY_LENGTH},}}",
    f"the API's key must be {API_KEY_LENGTH} or more letters, digits, - and _",
    "openssl rand -hex 32 makes one; empty: one is made in the cattle and kept on the volume",
)


class ModelSettings(Section):
    """The main model: an endpoint of its own (facts hermes 1, form A), or of a provider that is named (form B)."""

    provider: Annotated[str, AfterValidator(_provider)] = setting(
        "agentModelProvider",
        "custom",
        "The provider's name in Hermes, or a name of agentProviders. custom is any endpoint that speaks "
        "OpenAI's protocol.",
    )
    url: Annotated[OptionalUrl, AfterValidator(lambda url: url.rstrip("/"))] = setting(
        "agentModelUrl",
        "",
        "The base URL of the model endpoint, http://HOST:PORT/v1. Empty if the provider has a fixed one.",
    )
    name: Annotated[str, Field(min_length=1)] = setting("agentModel", "", "The model's name at that endpoint.")
    key: EnvSecret = setting("agentModelKey", "", "The endpoint's API key. Empty if it needs none.")
    authorities: Certificates = setting(
        "agentCaFile",
        "",
        "A PEM file with certificate authorities that the cattle trusts beside Debian's: for the model "
        "endpoint, the OpenID Connect provider or, with agentMode docker, the image's registry.",
    )


class ApiSettings(Section):
    """The gateway's OpenAI-compatible server. Without it no port is open, and prompts go by the command line."""

    enabled: bool = setting(
        "agentApi", False, "Whether the gateway serves its OpenAI-compatible API. Otherwise no port is open for it."
    )
    host: HostAddress = setting(
        "agentApiHost", "127.0.0.1", "The address that the API listens on. It speaks plain HTTP."
    )
    key: Annotated[SecretStr, secret(_api_key)] = setting(
        "agentApiKey",
        "",
        "The API's key, 32 characters or more. Empty: the cattle generates one and keeps it on the volume.",
    )
    port: Port = setting("agentApiPort", 8642, "The port of the agent's API.")
