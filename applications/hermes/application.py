"""Hermes as an application: what its stack warns of, and its outputs. Its phases: phases.py."""

from __future__ import annotations

from applications import Answer, Application
from applications.hermes.commands import COMMANDS
from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.names import CONTAINER_UNIT, GATEWAY, MANAGED_ENV
from applications.hermes.phases import (
    overridden,
    phases_of,
    pinned_config,
)
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import AgentSettings, DockerAgent
from applications.hermes.settings.dashboard import EVERYWHERE
from provisioning.guest.common import bracket
from settings.kinds import is_loopback


def asks_state(ask: str, expected: str, start: str) -> str:
    """A shell command that prints what `ask` says of the agent, and fails with a remedy unless that is `expected`."""
    return (
        f'state=$({ask}); echo "$state"; [ "$state" = {expected} ] || '
        f'{{ echo "the agent was stopped, or could not go on, after it was verified: it is $state. Start it: {start}; '
        'why: scripts/agent logs; then pulumi up again" >&2; exit 1; }'
    )


STATE_OF_SERVICE = asks_state(
    f"systemctl is-active {GATEWAY}",
    "active",
    "scripts/agent ssh systemctl start hermes-gateway",
)
STATE_OF_CONTAINER = asks_state(
    f"{ENGINE} container inspect --format '{{{{.State.Status}}}}' hermes",
    "running",
    f"scripts/agent ssh systemctl start {CONTAINER_UNIT}",
)
PRINTS_API_KEY = rf"""sed -n "s/^API_SERVER_KEY='\([A-Za-z0-9_-]*\)'\$/\1/p" {MANAGED_ENV}"""


def warnings_of(stack: AgentStack) -> list[str]:
    """What is allowed and may not be meant: said in every preview."""
    declared = stack.agent.declared
    return [
        *stack.agent.warnings(),
        *(
            f"{declared.config_key}.{key} has no effect: an option of its own sets it"
            for key in overridden(declared.config, pinned_config(stack))
        ),
    ]


# --- outputs ------------------------------------------------------------------------------------


def outputs_of(stack: AgentStack) -> dict[str, Answer]:
    """What settings/__init__.py promises (OUTPUTS), beside the mode."""
    agent = stack.agent
    return {
        "dashboard": Answer("address", lambda host: dashboard_url(agent, host)),
        "dashboardInGuest": Answer("", lambda _: dashboard_in_guest(agent)),
        "api": Answer("address", lambda host: api_url(agent, host)),
        "apiInGuest": Answer("", lambda _: api_in_guest(agent)),
        "apiKey": _api_key(agent),
        "agentVersion": Answer("verify", lambda found: found["version"]),
        "agentIdentity": Answer("configure", lambda found: found.get("identity", "")),
        "agentState": Answer("state"),
        "backup": Answer("configure", lambda found: found.get("newest_backup") or ""),
        "backupState": Answer("verify", lambda found: found.get("backup") or ""),
        "copyState": Answer("verify", lambda found: found.get("copy") or ""),
    }


def _makes_api_key(agent: AgentSettings) -> bool:
    """Whether the cattle makes the API's key itself."""
    return agent.api.enabled and not agent.api.key.get_secret_value()


def _api_key(agent: AgentSettings) -> Answer:
    if _makes_api_key(agent):
        return Answer("secret", secret=True)
    return Answer("", lambda _: agent.api.key.get_secret_value() if agent.api.enabled else "", secret=agent.api.enabled)


def dashboard_url(agent: AgentSettings, address: str) -> str:
    """Where browsers of other machines reach it; empty where they can't. `address`: the cattle's."""
    if not agent.dashboard.enabled:
        return ""
    return agent.dashboard.public_url or _from_elsewhere(agent.dashboard_reached_at, agent.dashboard.port, address)


def dashboard_in_guest(agent: AgentSettings) -> str:
    """Where it is reached inside the cattle; empty where there is none."""
    return _in_guest(agent.dashboard_reached_at, agent.dashboard.port) if agent.dashboard.enabled else ""


def api_url(agent: AgentSettings, address: str) -> str:
    """The base URL of the agent's API for other machines; empty where they can't reach it."""
    url = _from_elsewhere(agent.api_reached_at, agent.api.port, address) if agent.serves_api else ""
    return f"{url}/v1" if url else ""


def api_in_guest(agent: AgentSettings) -> str:
    """The base URL inside the cattle; empty without an API."""
    return f"{_in_guest(agent.api_reached_at, agent.api.port)}/v1" if agent.serves_api else ""


def _from_elsewhere(host: str, port: int, address: str) -> str:
    return "" if is_loopback(host) else _url(address if host in EVERYWHERE else host, port)


def _in_guest(host: str, port: int) -> str:
    return _url("127.0.0.1" if host in EVERYWHERE else host, port)


def _url(host: str, port: int) -> str:
    return f"http://{bracket(host)}:{port}"


APPLICATION = Application(
    component="HermesAgent",
    resource="agent",
    phases=phases_of,
    asks=lambda stack: STATE_OF_CONTAINER if isinstance(stack.agent, DockerAgent) else STATE_OF_SERVICE,
    asks_secret=lambda stack: PRINTS_API_KEY if _makes_api_key(stack.agent) else "",
    outputs=outputs_of,
    warnings=warnings_of,
    commands=COMMANDS,
)
