"""How the model endpoint is asked before anything is changed: the settings' part of guest/model.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from applications.hermes.guest.inputs import Question
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import DockerAgent
from applications.hermes.settings.declaration import MODEL_API_KEY_VARIABLE, Provider
from provisioning.guest.typed import as_json
from provisioning.job import PayloadFile
from provisioning.plans import PhasePlan, guest_main, guest_package, text_of

GUEST = "applications.hermes.guest"
_PROXY = re.compile(r"(https?|all|no)_proxy", re.IGNORECASE)
_OTHER_PROTOCOL = re.compile(
    r"(^|\.)api\.openai\.com$|^api\.x\.ai$|^api\.actual\.inc$|^api\.anthropic\.com$|^api\.kimi\.com$", re.IGNORECASE
)
"""Hosts that the agent asks in another protocol (0.20.3, hermes_cli/runtime_provider.py, _detect_api_mode_for_url)."""


def question_of(stack: AgentStack) -> Question:
    """What to ask of which endpoint, and why it can't be asked where it can't."""
    model, declared = stack.agent.model, stack.agent.declared
    provider = declared.providers.get(model.provider)
    given = Question(
        stack=stack.name,
        url=model.url,
        model=model.name,
        key_variable=MODEL_API_KEY_VARIABLE if model.key else "",
        environment={name: value for name, value in stack.agent.environment.items() if _PROXY.fullmatch(name)},
        ca_certificates=model.authorities,
        falls_back=bool(declared.fallback_models),
    )
    if provider is not None:
        given = _of_provider(given, model.provider, provider, stack.agent.environment)
    return replace(given, skipped=_why_not(stack, given, provider))


def _of_provider(given: Question, name: str, provider: Provider, environment: Mapping[str, str]) -> Question:
    setting, variable = f"agentProviders.{name}", provider.key_env or ""
    headers = dict(provider.extra_headers or {})
    named = {found for value in headers.values() for found in re.findall(r"\$\{(\w+)\}", value)} | {variable}
    return replace(
        given,
        url=provider.base_url.rstrip("/"),
        key_variable=variable,
        headers=headers,
        environment={**given.environment, **{each: environment[each] for each in named & environment.keys()}},
        url_setting=f"{setting}.base_url",
        key_setting=f"agentSecretEnvironment.{variable}" if variable else f"{setting}.key_env",
    )


def _why_not(stack: AgentStack, given: Question, provider: Provider | None) -> str:
    """In words; empty where it can be asked."""
    model = stack.agent.model
    configured = stack.agent.declared.config.get("model")
    modes = [provider and provider.api_mode, isinstance(configured, Mapping) and configured.get("api_mode")]
    parts = urlsplit(given.url)
    host, path = parts.hostname or "", parts.path.rstrip("/")
    here = ("localhost", "127.0.0.1", "::1")
    reasons = {
        f"{model.provider} is known to the agent alone": provider is None and not model.provider.startswith("custom"),
        "it has no address in the settings": not given.url,
        "it speaks another protocol than chat completions (api_mode)": any(
            mode and mode != "chat_completions" for mode in modes
        ),
        f"{host} is asked in a protocol of its own": bool(_OTHER_PROTOCOL.search(host))
        or path.endswith(("/anthropic", "/anthropic/v1")),
        "it is in the agent's own container": isinstance(stack.agent, DockerAgent) and host in here,
    }
    return next((reason for reason, so in reasons.items() if so), "")


def asking_first(plan: PhasePlan, stack: AgentStack) -> PhasePlan:
    """The plan of the baseline, which asks the model before it does anything.

    What is asked is no property of the guest, so it joins after the digest was made: another model runs no baseline.
    """
    question = question_of(stack)
    ask = guest_main(f"{GUEST}.model")
    moved = [replace(file, path="baseline") if file.path == "main" else file for file in plan.files]
    files = (
        *moved,
        PayloadFile("main", text_of("applications/hermes/scripts/ask-first.sh").encode(), 0o700),
        PayloadFile("ask", ask.encode(), 0o700),
        PayloadFile("model.json", as_json(question).encode()),
        *guest_package(GUEST),
    )
    return replace(plan, files=files, secrets={**plan.secrets, **_secrets_of(question, stack)})


def _secrets_of(question: Question, stack: AgentStack) -> dict[str, str]:
    """What the question needs of the agent's secrets, and no other."""
    known = {**stack.agent.secret_environment, MODEL_API_KEY_VARIABLE: stack.agent.model.key}
    names = {question.key_variable, *re.findall(r"\$\{(\w+)\}", " ".join(question.headers.values()))}
    return {name: known[name].get_secret_value() for name in sorted(names & known.keys()) if known[name]}
