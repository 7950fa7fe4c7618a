"""Hermes Agent in a cattle: the phases after SSH answers, each a resource with its own time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command
from pydantic import BaseModel

from components.access import Access
from components.explanation import differing_keys
from components.host_settings import host_mounts_of
from components.phase import Phase, PhaseName
from provisioning.guest.backend import ENGINE
from provisioning.guest.common import CONTAINER_UNIT, GATEWAY
from provisioning.guest.releases import ever_read_from_home
from provisioning.models import (
    AgentInputs,
    ApiServer,
    BaselineInputs,
    ConfigureInputs,
    ContainerInputs,
    Dashboard,
    DockerInputs,
    ModelEndpoint,
    NodeFolder,
    OidcClient,
    Service,
    VerifyInputs,
)
from provisioning.phases import (
    NOT_OF_THE_BUILD,
    overridden,
    pinned_config,
    probe_of,
    render_agent,
    render_configure,
)
from provisioning.ssh import private_key_text
from settings.agent import BareMetalAgent, DockerAgent
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
NEW_BUILD = "/opt/hermes/new-build"
_UV = Path(__file__).resolve().parents[1] / ".cache" / "uv" / "bin" / "uv"


def baseline_inputs(stack: AgentStack) -> BaselineInputs:
    agent = stack.agent
    # In Docker mode the guest's own Python edits the user's config.yaml, and the library for it is Debian's.
    edits = isinstance(agent, DockerAgent) and bool(
        agent.declared.fallback_models or ever_read_from_home() & agent.declared.config.keys()
    )
    editor = ("python3-ruamel.yaml",) if edits else ()
    return BaselineInputs(**account(stack), extra_packages=(*agent.service.extra_packages, *editor))


def account(stack: AgentStack) -> dict[str, Any]:
    """Who the agent is in the cattle, and where its data lies: the same for baseline and configure."""
    service = stack.agent.service
    return {
        "home": stack.home,
        "home_on_root": stack.cattle.home_on_root,
        "user": service.user,
        "group": service.group,
        "uid": service.uid,
        "gid": service.gid,
        "state_directory": service.state_directory or None,
        "working_directory": service.working_directory or None,
    }


def build_of(agent: BareMetalAgent | DockerAgent) -> tuple[PhaseName, BaseModel]:
    """What the agent phase makes, and the name of its kind."""
    if isinstance(agent, DockerAgent):
        return PhaseName.DOCKER, DockerInputs(
            backend=agent.container.backend,
            image=agent.container.image,
            version=agent.version,
            insecure_registries=tuple(agent.container.insecure_registries),
            registry_ca=agent.model.authorities or None,
        )
    return PhaseName.AGENT, agent_inputs(agent)


def agent_inputs(agent: BareMetalAgent) -> AgentInputs:
    return AgentInputs(
        source=agent.install.source,
        version=agent.version,
        git_url=agent.install.repository,
        git_tag=agent.install.tag,
        git_commit=agent.install.commit,
        web_ui="build" if agent.builds_web_ui else "prebuilt",
        python_mirror=agent.install.python_mirror,
        extra_python_packages=tuple(agent.service.extra_python_packages),
        user=agent.service.user,
        uv_binary=str(_UV) if _UV.exists() else None,
    )


def configure_inputs(stack: AgentStack, installed: Mapping[str, Any] | None = None) -> ConfigureInputs:
    """``installed``: what the agent phase reports; None before it has run."""
    found = installed or {}
    agent, declared, dashboard = stack.agent, stack.agent.declared, stack.agent.dashboard
    container = None
    if isinstance(agent, DockerAgent):
        container = ContainerInputs(
            backend=agent.container.backend,
            image=agent.container.image,
            volumes=stack.bind_mounts,
            options=agent.container.extra_options,
            published_ip=agent.container.published_ip,
        )
    return ConfigureInputs(
        **account(stack),
        container=container,
        writable=stack.writable,
        stack=stack.name,
        service=Service(
            args=tuple(agent.service.extra_args),
            restart=agent.service.restart,
            restart_seconds=agent.service.restart_seconds,
        ),
        ca_certificates=agent.model.authorities,
        # In Docker mode it is the image, which the guest knows.
        agent_directory=None if container else found.get("directory"),
        unfinished_update=found.get("unfinished_update"),
        backups_kept=agent.service.backups_kept,
        model=ModelEndpoint(
            provider=agent.model.provider,
            base_url=agent.model.url or None,
            name=agent.model.name,
            api_key=agent.model.key or None,
        ),
        settings=declared.config,
        managed=declared.managed,
        environment=agent.environment,
        secret_environment=agent.secret_environment,
        documents=declared.documents,
        auth_file=declared.auth_file or None,
        auth_file_overwrite=declared.auth_file_overwrite,
        api_server=ApiServer(
            enabled=agent.api.enabled, host=agent.api.host, port=agent.api.port, key=agent.api.key or None
        ),
        dashboard=Dashboard(
            enabled=dashboard.enabled,
            host=agent.dashboard_listens_on,
            port=dashboard.port,
            username=dashboard.user,
            password=dashboard.password or None,
            password_hash=dashboard.password_hash or None,
            oidc=OidcClient(
                issuer=dashboard.oidc_issuer,
                client_id=dashboard.oidc_client_id,
                client_secret=dashboard.oidc_client_secret or None,
                scopes=dashboard.oidc_scopes,
            )
            if dashboard.oidc_issuer
            else None,
            public_url=dashboard.public_url,
            trusted_proxies=tuple(dashboard.trusted_proxies),
        ),
    )


def warnings_of(stack: AgentStack) -> list[str]:
    """What is allowed and may not be meant: said in every preview."""
    configure = configure_inputs(stack)
    lost = overridden(configure.settings, pinned_config(configure))
    source = stack.agent.declared.config_key
    return [
        *stack.agent.warnings(),
        *(f"{source}.{key} has no effect: an option of its own sets it" for key in lost),
    ]


def verify_inputs(stack: AgentStack, configuration: str = "") -> VerifyInputs:
    folders = tuple(
        NodeFolder(path=mount.path, owner=mount.owner, read_only=mount.read_only) for mount in host_mounts_of(stack)
    )
    return probe_of(configure_inputs(stack)).model_copy(
        update={"configuration": configuration, "version": stack.agent.version, "folders": folders}
    )


def foreseen(stack: AgentStack, installed: Mapping[str, Any]) -> dict[str, tuple[PhaseName, BaseModel]]:
    """Each phase's inputs as far as they are known before any has run, by the end of its resource's name.

    ``installed``: the agent phase's outputs in the state. Where it is going to build, NEW_BUILD stands for the folder.
    """
    results: Mapping[str, Any] = installed.get("results") or {}
    name, build = build_of(stack.agent)
    if (
        isinstance(build, AgentInputs)
        and set(differing_keys(installed.get("declared") or {}, render_agent(build).declared)) - NOT_OF_THE_BUILD
    ):
        results = {"directory": NEW_BUILD}
    configure = configure_inputs(stack, results)
    digest = render_configure(configure).digest
    return {
        "baseline": (PhaseName.BASELINE, baseline_inputs(stack)),
        "agent": (name, build),
        "configure": (PhaseName.CONFIGURE, configure),
        "verify": (PhaseName.VERIFY, verify_inputs(stack, configuration=digest)),
    }


class HermesAgent(pulumi.ComponentResource):
    """baseline -> agent -> configure -> verify. Each runs again only when what it depends on changes."""

    version: pulumi.Output[str]
    state: pulumi.Output[str]
    """As systemd or Docker called it right after it was verified: active, or running."""
    seconds: dict[str, pulumi.Output[float]]

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

        known = before or {}
        inputs = foreseen(stack, known.get(f"{name}-agent") or {})

        def phase(which: str, *after: pulumi.Resource, given: pulumi.Output[BaseModel] | None = None) -> Phase:
            renders, known_inputs = inputs[which]
            return Phase(
                f"{name}-{which}",
                renders,
                pulumi.Output.from_input(known_inputs) if given is None else given,
                guest=guest,
                host=access.address,
                host_key=access.host_key,
                hardware_address=access.incarnation,
                private_key_file=stack.ssh_private_key_file,
                before=known.get(f"{name}-{which}"),
                foreseen=known_inputs,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[access, *after], replace_with=replace_with),
            )

        for text in warnings_of(stack):
            pulumi.log.warn(text, self)
        baseline = phase("baseline")
        install = phase("agent", baseline)
        configure = phase(
            "configure", install, given=install.results.apply(lambda found: configure_inputs(stack, found))
        )
        configure.results.apply(self._warn_of_unknown)
        verify = phase(
            "verify",
            configure,
            given=configure.digest.apply(lambda digest: verify_inputs(stack, configuration=digest)),
        )
        login = self._login(
            name,
            asks=STATE_OF_CONTAINER if isinstance(stack.agent, DockerAgent) else STATE_OF_SERVICE,
            access=access,
            private_key_file=stack.ssh_private_key_file,
            verified=verify,
            replace_with=replace_with,
        )
        self.version = verify.results.apply(lambda found: found["version"])
        self.state = login.stdout
        self.identity = configure.results.apply(lambda found: found.get("identity", ""))
        """Of the container that runs; empty in bare-metal mode."""
        self.backup = configure.results.apply(lambda found: found.get("newest_backup") or "")
        """The newest backup that the stack made; empty where there is none."""
        self.seconds = {
            "baseline": baseline.seconds,
            "agent": install.seconds,
            "configure": configure.seconds,
            "verify": verify.seconds,
        }
        self.register_outputs({"version": self.version, "state": self.state, "seconds": self.seconds})

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
        replace_with: list[pulumi.Resource],
    ) -> command.remote.Command:
        """Try the exported address, host key and login by other means than ours: Pulumi's own remote command.

        It takes a moment and changes nothing, so that a cut line costs nothing. No secret is in its text (field reports
        F4); the key is pinned (F6); the environment is not used, as sshd refuses it (F2). It is asked again after each
        verification, as that changes its text.
        """
        return command.remote.Command(
            f"{name}-login",
            connection=command.remote.ConnectionArgs(
                host=access.address,
                user="root",
                private_key=pulumi.Output.secret(private_key_text(private_key_file)),
                host_key=access.host_key,
                dial_error_limit=LOGIN_ATTEMPTS,
                per_dial_timeout=10,
            ),
            create=verified.digest.apply(lambda digest: f"{asks} # after {digest[:16]}"),
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[verified], replace_with=replace_with),
        )
