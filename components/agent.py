"""Hermes Agent in a cattle: the phases after SSH answers, each a resource with its own time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pulumi

from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.names import CONTAINER_UNIT, GATEWAY, MANAGED_ENV
from applications.hermes.phases import (
    NOT_OF_THE_BUILD,
    Built,
    overridden,
    pinned_config,
    render_agent,
    render_baseline,
    render_configure,
    render_verify,
)
from applications.hermes.settings import DockerAgent
from components.explanation import differing_keys
from components.parts import Access
from components.phase import Phase
from components.plugins import RemoteCommand
from provisioning.plans import PhasePlan
from provisioning.ssh import private_key_text
from settings.stack import AgentStack

LOGIN_ATTEMPTS = 70  # some five minutes of refused connections (field reports F1)


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
NEW_BUILD = "/opt/hermes/new-build"


def own_uv() -> Path | None:
    """The uv that set-up has put into this checkout, for the guest; None where there is none: the guest fetches one."""
    path = Path(__file__).resolve().parents[1] / ".cache" / "uv" / "bin" / "uv"
    return path if path.exists() else None


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


class Plans:
    """The phases' plans of a stack, each rendered once for the same outputs of an earlier phase."""

    def __init__(self, stack: AgentStack) -> None:
        self._in_docker = isinstance(stack.agent, DockerAgent)
        self.baseline = render_baseline(stack)
        self.agent = render_agent(stack.agent, own_uv())
        self.configure = cache(partial(render_configure, stack))
        self.verify = cache(partial(render_verify, stack))

    def foreseen(self, installed: Mapping[str, Any]) -> dict[str, PhasePlan]:
        """Each plan as far as it is known before any phase has run, by the end of its resource's name.

        ``installed``: the agent phase's outputs in the state. Where it is going to build, NEW_BUILD stands for the
        folder.
        """
        built = Built.of(installed.get("results") or {})
        if not self._in_docker and (
            set(differing_keys(installed.get("declared") or {}, self.agent.declared)) - NOT_OF_THE_BUILD
        ):
            built = Built(NEW_BUILD)
        configure = self.configure(built)
        verify = self.verify(configure.digest)
        return {"baseline": self.baseline, "agent": self.agent, "configure": configure, "verify": verify}


class HermesAgent(pulumi.ComponentResource):
    """baseline -> agent -> configure -> verify. Each runs again only when what it depends on changes."""

    version: pulumi.Output[str]
    state: pulumi.Output[str]
    """As systemd or Docker called it right after it was verified: active, or running."""
    api_key: pulumi.Output[str]
    """A secret; empty where the stack asks for no API."""

    def __init__(
        self,
        name: str,
        *,
        stack: AgentStack,
        guest: pulumi.Input[str],
        access: Access,
        replace_with: list[pulumi.Resource],
        before: Mapping[str, Mapping[str, Any]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``before``: the phases' outputs in the state, by the resource's name."""
        super().__init__("hermes-homelab:components:HermesAgent", name, {}, opts)

        known, plans = before or {}, Plans(stack)
        foreseen = plans.foreseen(known.get(f"{name}-agent") or {})

        def phase(which: str, *after: pulumi.Resource, plan: pulumi.Output[PhasePlan] | None = None) -> Phase:
            return Phase(
                f"{name}-{which}",
                foreseen[which] if plan is None else plan,
                guest=guest,
                host=access.address,
                host_key=access.host_key,
                hardware_address=access.incarnation,
                private_key_file=stack.ssh_private_key_file,
                before=known.get(f"{name}-{which}"),
                foreseen=foreseen[which],
                opts=pulumi.ResourceOptions(parent=self, depends_on=[access, *after], replace_with=replace_with),
            )

        for text in warnings_of(stack):
            pulumi.log.warn(text, self)
        baseline = phase("baseline")
        install = phase("agent", baseline)
        configure = phase(
            "configure", install, plan=install.results.apply(lambda found: plans.configure(Built.of(found)))
        )
        configure.results.apply(self._warn_of_unknown)
        verify = phase("verify", configure, plan=configure.digest.apply(plans.verify))
        login = self._login(
            name,
            asks=STATE_OF_CONTAINER if isinstance(stack.agent, DockerAgent) else STATE_OF_SERVICE,
            access=access,
            private_key_file=stack.ssh_private_key_file,
            verified=verify,
            tells_api_key=stack.agent.api.enabled and not stack.agent.api.key.get_secret_value(),
            replace_with=replace_with,
        )
        self.version = verify.results.apply(lambda found: found["version"])
        self.state = login.stdout.apply(_state_in)
        self.api_key = pulumi.Output.from_input("")
        if stack.agent.api.enabled:
            declared = stack.agent.api.key.get_secret_value()
            self.state = pulumi.Output.unsecret(self.state)
            self.api_key = pulumi.Output.secret(declared or login.stdout.apply(_api_key_in))
        self.identity = configure.results.apply(lambda found: found.get("identity", ""))
        """Of the container that runs; empty in bare-metal mode."""
        self.backup = configure.results.apply(lambda found: found.get("newest_backup") or "")
        """The newest backup that the stack made; empty where there is none."""
        self.backup_state = verify.results.apply(lambda found: found.get("backup") or "")
        """How it stood with the backups on schedule when the agent was verified."""
        self.register_outputs({"version": self.version, "state": self.state})

    def _warn_of_unknown(self, results: Mapping[str, Any]) -> None:
        """The installed agent said so when it read them; said again as long as they are declared."""
        for key in results.get("unknown_settings") or ():
            pulumi.log.warn(f"the installed agent knows no setting {key}: is it written right?", self)

    def _login(
        self,
        name: str,
        *,
        asks: str,
        access: Access,
        private_key_file: str,
        verified: Phase,
        tells_api_key: bool,
        replace_with: list[pulumi.Resource],
    ) -> RemoteCommand:
        """Try the exported address, host key and login by other means than ours: Pulumi's own remote command.

        It takes a moment and changes nothing, so that a cut line costs nothing. No secret is in its text (field reports
        F4); the key is pinned (F6); the environment is not used, as sshd refuses it (F2). It is asked again after each
        verification, as that changes its text.

        ``tells_api_key``: the cattle has made the API's key itself. It is the second line of what is read then: never
        logged, and encrypted in the state.
        """
        if tells_api_key:
            asks = f"{asks}; {PRINTS_API_KEY}"
        return RemoteCommand(
            f"{name}-login",
            connection={
                "host": access.address,
                "user": "root",
                "privateKey": pulumi.Output.secret(private_key_text(private_key_file)),
                "hostKey": access.host_key,
                "dialErrorLimit": LOGIN_ATTEMPTS,
                "perDialTimeout": 10,
            },
            create=verified.digest.apply(lambda digest: f"{asks} # after {digest[:16]}"),
            logging="stderr" if tells_api_key else None,
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[verified],
                replace_with=replace_with,
                additional_secret_outputs=["stdout"] if tells_api_key else None,
            ),
        )


def _state_in(said: str) -> str:
    """The agent's state in what the login read."""
    return said.partition("\n")[0].strip()


def _api_key_in(said: str) -> str:
    """The API's key in what the login read; empty where the cattle did not tell one."""
    return said.partition("\n")[2].strip()
