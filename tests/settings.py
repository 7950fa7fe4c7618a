"""Settings for tests: a stack's, by what differs from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from applications.hermes.phases import phases_of
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import BareMetalAgent
from components.application import foresee
from provisioning.plans import PhasePlan
from proxmox.errors import Faults
from settings.read import read_stack
from settings.section import Section
from settings.stack import CattleStack, PetStack

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


def bare_metal(**given: Any) -> BareMetalAgent:
    """The agent of such a cattle."""
    found = cattle(**given).agent
    assert isinstance(found, BareMetalAgent)
    return found


def foreseen(stack: AgentStack, installed: Mapping[str, Any] | None = None) -> dict[str, PhasePlan]:
    """Every phase's plan before any has run. `installed`: the agent phase's outputs in the state."""
    return foresee(phases_of(stack), {"agent": installed or {}})


_Section = TypeVar("_Section", bound=Section)


def unchecked(section: _Section, **fields: Any) -> _Section:
    """The same with values that no rule has seen, a home in a test's folder for one: cattle__mount_path=..."""
    for path, value in fields.items():
        name, _, below = path.partition("__")
        found = unchecked(getattr(section, name), **{below: value}) if below else value
        section = section.model_copy(update={name: found})
    return section


def faults(stack: str, **given: Any) -> dict[str, tuple[str, str, str]]:
    """Value, rule and remedy of each fault, by key; the stack "cattle" has a model unless another one is given."""
    with pytest.raises(Faults) as caught:
        read(stack, **({**MODEL, **given} if stack == "cattle" else given))
    return {fault.key: (fault.value, fault.rule, fault.remedy) for fault in caught.value.faults}
