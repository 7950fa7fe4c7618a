"""Hermes Agent in a cattle: the phases after SSH answers, each a resource with its own time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import pulumi_command as command
from pydantic import BaseModel, SecretStr

from components.access import Access
from components.declaration import AuxiliaryModel
from components.docker import DockerSettings, docker_inputs, docker_warnings, in_docker
from components.explanation import changed
from components.phase import Phase, PhaseName
from components.service import warnings_of as service_warnings
from components.settings import DOCKER, AgentSettings, CattleSettings, certificates_of
from provisioning.guest.backend import ENGINE
from provisioning.guest.releases import ever_read_from_home
from provisioning.models import (
    AgentInputs,
    ApiServer,
    BaselineInputs,
    ConfigureInputs,
    Dashboard,
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

LOGIN_ATTEMPTS = 70  # some five minutes of refused connections (field reports F1)


def asks_state(ask: str, expected: str, start: str) -> str:
    """A shell command that prints what `ask` says of the agent, and fails with a remedy unless that is `expected`."""
    return (
        f'state=$({ask}); echo "$state"; [ "$state" = {expected} ] || '
        f'{{ echo "the agent was stopped, or could not go on, after it was verified: it is $state. Start it: {start}; '
        'why: scripts/agent logs; then pulumi up again" >&2; exit 1; }'
    )


STATE_OF_SERVICE = asks_state(
    "systemctl is-active hermes-gateway.service",
    "active",
    "scripts/agent ssh systemctl start hermes-gateway",
)
STATE_OF_CONTAINER = asks_state(
    f"{ENGINE} container inspect --format '{{{{.State.Status}}}}' hermes",
    "running",
    f"scripts/agent ssh {ENGINE} start hermes",
)
NEW_BUILD = "/opt/hermes/new-build"
_UV = Path(__file__).resolve().parents[1] / ".cache" / "uv" / "bin" / "uv"


def baseline_inputs(cattle: CattleSettings, agent: AgentSettings) -> BaselineInputs:
    # In Docker mode the guest's own Python edits the user's config.yaml, and the library for it is Debian's.
    edits = agent.mode == DOCKER and bool(agent.fallback_models or ever_read_from_home() & agent.declared_config.keys())
    editor = ("python3-ruamel.yaml",) if edits else ()
    return BaselineInputs(**account(cattle, agent), extra_packages=(*agent.extra_packages, *editor))


def account(cattle: CattleSettings, agent: AgentSettings) -> dict[str, Any]:
    """Who the agent is in the cattle, and where its data lies: the same for baseline and configure."""
    return {
        "home": cattle.mount_path,
        "home_on_root": cattle.home_on_root,
        "user": agent.user,
        "group": agent.group,
        "uid": agent.uid,
        "gid": agent.gid,
        "state_directory": agent.state_directory or None,
        "working_directory": agent.working_directory or None,
    }


def agent_inputs(agent: AgentSettings) -> AgentInputs:
    return AgentInputs(
        source=agent.source,
        version=agent.version,
        git_url=agent.repository,
        git_tag=agent.tag,
        git_commit=agent.commit,
        web_ui="build" if agent.builds_web_ui else "prebuilt",
        python_mirror=agent.python_mirror,
        extra_python_packages=tuple(agent.extra_python_packages),
        user=agent.user,
        uv_binary=str(_UV) if _UV.exists() else None,
    )


def configure_inputs(
    cattle: CattleSettings, agent: AgentSettings, installed: Mapping[str, Any] | None = None, *, stack: str = "cattle"
) -> ConfigureInputs:
    """``installed``: what the agent phase reports; None before it has run."""
    found = installed or {}

    def filled(secret: SecretStr) -> SecretStr | None:
        return secret if secret.get_secret_value() else None

    return ConfigureInputs(
        **account(cattle, agent),
        writable=tuple(mount.path for mount in cattle.lent if not mount.read_only),
        stack=stack,
        service=Service(args=tuple(agent.extra_args), restart=agent.restart, restart_seconds=agent.restart_seconds),
        ca_certificates=certificates_of(agent.ca_file) if agent.ca_file else "",
        # In Docker mode it is the image, which the guest knows.
        agent_directory=None if agent.mode == DOCKER else found.get("directory"),
        unfinished_update=found.get("unfinished_update"),
        backups_kept=agent.backups_kept,
        model=ModelEndpoint(
            provider=agent.model_provider,
            base_url=agent.model_url or None,
            name=agent.model,
            api_key=filled(agent.model_key),
        ),
        settings=agent.declared_config,
        providers={name: _given(provider) for name, provider in agent.providers.items()},
        fallback_models=tuple(_given(model) for model in agent.fallback_models),
        auxiliary_models={name: _auxiliary(model) for name, model in agent.auxiliary_models.items()},
        mcp_servers={name: _given(server) for name, server in agent.mcp_servers.items()},
        environment={**agent.environment, **agent.messenger_environment},
        secret_environment={**agent.all_secrets, **agent.messenger_secrets},
        documents=agent.documents,
        auth_file=filled(agent.auth_file),
        auth_file_overwrite=agent.auth_file_overwrite,
        api_server=ApiServer(enabled=agent.api, host=agent.api_host, port=agent.api_port, key=filled(agent.api_key)),
        dashboard=Dashboard(
            enabled=agent.dashboard,
            host=agent.dashboard_host,
            port=agent.dashboard_port,
            username=agent.dashboard_user,
            password=filled(agent.dashboard_password),
            password_hash=filled(agent.dashboard_password_hash),
            oidc=OidcClient(
                issuer=agent.dashboard_oidc_issuer,
                client_id=agent.dashboard_oidc_client_id,
                client_secret=filled(agent.dashboard_oidc_client_secret),
                scopes=agent.dashboard_oidc_scopes,
            )
            if agent.dashboard_oidc_issuer
            else None,
            public_url=agent.dashboard_public_url,
            trusted_proxies=tuple(agent.dashboard_trusted_proxies),
        ),
    )


def _given(model: BaseModel) -> dict[str, Any]:
    """What the operator has written, and no default: those are the agent's."""
    return model.model_dump(exclude_none=True)


def _auxiliary(model: AuxiliaryModel) -> dict[str, Any]:
    """`auxiliary` knows no key_env, only a key that may be a reference (facts hermes 1, "config.yaml keys")."""
    given = _given(model)
    if name := given.pop("key_env", None):
        given["api_key"] = f"${{{name}}}"
    return given


def warnings_of(agent: AgentSettings, configure: ConfigureInputs) -> list[str]:
    """What is allowed and may not be meant: said in every preview."""
    lost = overridden(configure.settings, pinned_config(configure))
    source = "agentSettings" if agent.settings else "agentConfigFile"
    found = agent.warnings()
    if configure.model.api_key is not None and not configure.model.provider.startswith("custom"):
        # hermes_cli/runtime_provider.py: the key in `model` goes to the address in `model`, with provider custom only.
        found.append(
            f"agentModelKey is not sent to {configure.model.provider}: it takes its key from a variable of its own, "
            "OPENROUTER_API_KEY for one, which agentSecretEnvironment can hold"
        )
    if agent.source == "pypi" and agent.mode != DOCKER:
        found.append(
            "agentSource is pypi: upstream gave that up, it ends at 0.19.0. The package has no bundled skills, and "
            "what it depends on is whatever the index has, without hashes. git installs what upstream ships"
        )
    return [
        *found,
        *(f"{source}.{key} has no effect: an option of its own sets it" for key in lost),
    ]


def verify_inputs(
    cattle: CattleSettings, agent: AgentSettings, configure: ConfigureInputs, configuration: str = ""
) -> VerifyInputs:
    mounts = cattle.mounts_for(agent.uid)
    folders = tuple(NodeFolder(path=mount.path, owner=mount.owner, read_only=mount.read_only) for mount in mounts)
    return probe_of(configure).model_copy(
        update={"configuration": configuration, "version": agent.version, "folders": folders}
    )


def wanted_configure(
    cattle: CattleSettings,
    agent: AgentSettings,
    docker: DockerSettings | None,
    installed: Mapping[str, Any] | None,
    *,
    stack: str,
) -> ConfigureInputs:
    """``installed``: what the agent phase reports; None before it has run."""
    inputs = configure_inputs(cattle, agent, installed, stack=stack)
    return inputs if docker is None else in_docker(inputs, docker, cattle.lent)


def foreseen(
    cattle: CattleSettings,
    agent: AgentSettings,
    docker: DockerSettings | None,
    installed: Mapping[str, Any],
    *,
    stack: str,
) -> dict[str, tuple[PhaseName, BaseModel]]:
    """Each phase's inputs as far as they are known before any has run, by the end of its resource's name.

    ``installed``: the agent phase's outputs in the state. Where it is going to build, NEW_BUILD stands for the folder.
    """
    results: Mapping[str, Any] = installed.get("results") or {}
    given = agent_inputs(agent)
    if (
        docker is None
        and set(changed(installed.get("declared") or {}, render_agent(given).declared)) - NOT_OF_THE_BUILD
    ):
        results = {"directory": NEW_BUILD}
    configure = wanted_configure(cattle, agent, docker, results, stack=stack)
    build: tuple[PhaseName, BaseModel] = (PhaseName.AGENT, given)
    if docker is not None:
        build = PhaseName.DOCKER, docker_inputs(agent, docker, configure.ca_certificates)
    digest = render_configure(configure).digest
    return {
        "baseline": (PhaseName.BASELINE, baseline_inputs(cattle, agent)),
        "agent": build,
        "configure": (PhaseName.CONFIGURE, configure),
        "verify": (PhaseName.VERIFY, verify_inputs(cattle, agent, configure, configuration=digest)),
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
        stack: str,
        cattle: CattleSettings,
        agent: AgentSettings,
        docker: DockerSettings | None,
        guest: pulumi.Input[str],
        access: Access,
        private_key_file: Path,
        replace_with: list[pulumi.Resource],
        before: Mapping[str, Mapping[str, Any]] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """``before``: the phases' outputs in the state, by the resource's name."""
        super().__init__("hermes-homelab:components:HermesAgent", name, {}, opts)

        def wanted(installed: Mapping[str, Any] | None) -> ConfigureInputs:
            return wanted_configure(cattle, agent, docker, installed, stack=stack)

        known = before or {}
        inputs = foreseen(cattle, agent, docker, known.get(f"{name}-agent") or {}, stack=stack)
        wish = wanted(None)

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
                private_key_file=str(private_key_file),
                before=known.get(f"{name}-{which}"),
                foreseen=known_inputs,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[access, *after], replace_with=replace_with),
            )

        for text in (*service_warnings(agent), *warnings_of(agent, wish), *(docker_warnings(agent) if docker else ())):
            pulumi.log.warn(text, self)
        baseline = phase("baseline")
        install = phase("agent", baseline)
        configure = phase("configure", install, given=install.results.apply(wanted))
        configure.results.apply(self._warn_of_unknown)
        verify = phase(
            "verify",
            configure,
            given=configure.digest.apply(lambda digest: verify_inputs(cattle, agent, wish, configuration=digest)),
        )
        login = self._login(
            name,
            asks=STATE_OF_SERVICE if docker is None else STATE_OF_CONTAINER,
            access=access,
            private_key_file=private_key_file,
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
        private_key_file: Path,
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
                private_key=pulumi.Output.secret(private_key_text(str(private_key_file))),
                host_key=access.host_key,
                dial_error_limit=LOGIN_ATTEMPTS,
                per_dial_timeout=10,
            ),
            create=verified.digest.apply(lambda digest: f"{asks} # after {digest[:16]}"),
            add_previous_output_in_env=False,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[verified], replace_with=replace_with),
        )
