"""Settings for tests: a stack's, by what differs from the defaults."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from provisioning.models import ConfigureInputs, ModelEndpoint
from proxmox.errors import Faults
from settings.stack import AgentStack, CattleStack, PetStack, read_stack

ENVIRONMENT = {
    "PROXMOX_VE_ENDPOINT": "https://192.0.2.10:8006",
    "PROXMOX_VE_API_TOKEN": "pulumi@pve!ci=00000000-1111-2222-3333-444444444444",
}
MODEL: dict[str, Any] = {"agentModelUrl": "http://192.0.2.20:4000/v1", "agentModel": "m"}
DOCKER: dict[str, Any] = {
    "agentMode": "docker",
    "agentDashboard": False,
    "agentImage": "nousresearch/hermes-agent:v2026.7.20@sha256:" + "0123456789abcdef" * 4,
}
OIDC: dict[str, Any] = {
    "agentDashboardHost": "0.0.0.0",  # noqa: S104 - a value
    "agentDashboardOidcIssuer": "https://login.example.org/application/o/hermes/",
    "agentDashboardOidcClientId": "hermes",
    "agentDashboardOidcClientSecret": "oidc-canary-1",
    "agentDashboardPublicUrl": "https://Hermes.example.org/",
    "agentDashboardTrustedProxies": ["192.0.2.5", "198.51.100.0/24"],
}


ENDPOINT = ModelEndpoint(base_url="http://192.0.2.1:4000/v1", name="m", api_key=SecretStr("sk-canary-1"))


def read(
    stack: str,
    *,
    in_clear: frozenset[str] = frozenset(),
    with_secrets: frozenset[str] = frozenset(),
    environment: dict[str, str] | None = None,
    **given: Any,
) -> PetStack | CattleStack:
    where = ENVIRONMENT if environment is None else environment
    return read_stack(stack, given, where, in_clear=in_clear, with_secrets=with_secrets)


def pet(**given: Any) -> PetStack:
    found = read("pet", **given)
    assert isinstance(found, PetStack)
    return found


def cattle(stack: str = "cattle", **given: Any) -> AgentStack:
    """A cattle with an agent, and with a model unless another one is given."""
    found = read(stack, **{**MODEL, **given})
    assert isinstance(found, AgentStack)
    return found


def faults(stack: str, **given: Any) -> dict[str, tuple[str, str, str]]:
    """Value, rule and remedy of each fault, by key; the stack "cattle" has a model unless another one is given."""
    with pytest.raises(Faults) as caught:
        read(stack, **({**MODEL, **given} if stack == "cattle" else given))
    return {fault.key: (fault.value, fault.rule, fault.remedy) for fault in caught.value.faults}


def configuration(**more: Any) -> ConfigureInputs:
    """The inputs of the configure phase, with a model at `ENDPOINT` unless another one is given."""
    return ConfigureInputs.model_validate({"model": ENDPOINT, **more})
