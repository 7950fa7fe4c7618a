"""The agent: what both modes share, and each mode's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from applications.hermes.settings.backups import BackupSettings
from applications.hermes.settings.copies import CopySettings
from applications.hermes.settings.dashboard import EVERYWHERE, DashboardSettings
from applications.hermes.settings.declaration import REFERENCE, DeclarationSettings, at, leaves, merge, references
from applications.hermes.settings.docker import ContainerSettings
from applications.hermes.settings.messengers import MessengerSettings
from applications.hermes.settings.model import ApiSettings, ModelSettings
from applications.hermes.settings.passed_on import Passed, config_of, variables_of
from applications.hermes.settings.service import ServiceSettings
from applications.hermes.settings.source import SourceSettings, Version
from proxmox.errors import Fault
from settings.kinds import is_loopback
from settings.section import Section, rule, setting

_SECRET_LIKE = re.compile(r"KEY|TOKEN|SECRET|PASSW|AUTHORIZATION|CREDENTIAL", re.IGNORECASE)
_WITHOUT_EFFECT = {
    "skills.disabled": "the agent reads it in the home's config.yaml alone",
    "skills.external_dirs": "the agent reads it in the home's config.yaml alone",
    "security.website_blocklist": "the agent reads it in the home's config.yaml alone, so it protects nobody",
    "secrets": "the agent reads it in the home's config.yaml alone",
}
"""What a managed configuration can't pin, in any release up to 0.20.3 (facts hermes 0.20, 5), and why."""


class AgentSettings(Section):
    """Which agent, with what model, how it is reached, and what is declared about it."""

    version: Version = setting(
        "agentVersion",
        "0.20.3",
        "The version that the agent must report. The folder in /opt/hermes has its name, and verify compares it.",
    )
    model: ModelSettings
    service: ServiceSettings
    backups: BackupSettings
    copies: CopySettings
    dashboard: DashboardSettings
    api: ApiSettings
    declared: DeclarationSettings
    messengers: MessengerSettings

    @property
    def dashboard_listens_on(self) -> str:
        """The address that the dashboard itself listens on."""
        raise NotImplementedError

    @property
    def dashboard_reached_at(self) -> str:
        """The cattle's address on which the dashboard answers; 0.0.0.0 or :: for each."""
        raise NotImplementedError

    @property
    def api_listens_on(self) -> str:
        """The address that the API itself listens on."""
        raise NotImplementedError

    @property
    def api_reached_at(self) -> str:
        """The cattle's address on which the API answers; 0.0.0.0 or :: for each."""
        raise NotImplementedError

    @property
    def serves_api(self) -> bool:
        """Whether the API runs."""
        return self.api.enabled

    @property
    def dashboard_asks(self) -> bool:
        """What its /api/status has to say: on loopback it never asks, password or not."""
        return self.dashboard.enabled and bool(self.dashboard.providers) and not is_loopback(self.dashboard_listens_on)

    @property
    def variables(self) -> tuple[Passed, ...]:
        """The settings that reach the agent as a variable of its environment."""
        return tuple(variables_of(self))

    @property
    def environment(self) -> dict[str, str]:
        """What is declared of the agent's environment in clear."""
        clear = {each.name: each.value for each in self.variables if not isinstance(each.value, SecretStr)}
        return {**self.declared.environment, **clear}

    @property
    def secret_environment(self) -> dict[str, SecretStr]:
        """What is declared of the agent's environment as secrets."""
        hidden = {each.name: each.value for each in self.variables if isinstance(each.value, SecretStr)}
        return {**self.declared.all_secrets, **hidden}

    @property
    def managed(self) -> dict[str, Any]:
        """What settings of their own pin in the agent's config.yaml."""
        return merge(self.declared.managed, config_of(self))

    # --- rules ---

    @rule
    def _ports_differ(self) -> Iterator[Fault]:
        if self.api.port == self.dashboard.port:
            yield self.api.fault("port", "agentDashboardPort and agentApiPort are the same", "change one of them")

    @rule
    def _model_has_one_address(self) -> Iterator[Fault]:
        provider, url = self.model.provider, self.model.url
        if provider == "custom" and not url:
            yield self.model.fault(
                "url", "the provider custom needs a URL", "write it like http://192.168.1.10:4000/v1"
            )
        if provider in self.declared.providers and url:
            text = f"agentProviders.{provider} has the address of the model"
            yield self.model.fault("url", text, "leave agentModelUrl empty, or change the provider")

    @rule
    def _model_has_one_key(self) -> Iterator[Fault]:
        provider = self.model.provider
        if self.model.key and provider in self.declared.providers:
            text = f"agentProviders.{provider} takes its key from the variable in key_env"
            yield self.model.fault("key", text, "leave agentModelKey empty, and set agentSecretEnvironment")

    @rule
    def _variables_are_given_once(self) -> Iterator[Fault]:
        declared = {**self.declared.environment, **self.declared.all_secrets}
        for each in self.variables:
            if each.name in declared:
                text = f"{each.name} is in the agent's environment, too"
                yield each.section.fault(each.field, text, "keep it in one place")

    # --- what is allowed and may not be meant ---

    def warnings(self) -> Iterator[str]:
        """In words for every preview."""
        if self.model.key and not self.model.provider.startswith("custom"):
            # hermes_cli/runtime_provider.py: the key in `model` goes to the address in `model`, with custom only.
            yield (
                f"agentModelKey is not sent to {self.model.provider}: it takes its key from a variable of its own, "
                "OPENROUTER_API_KEY for one, which agentSecretEnvironment can hold"
            )
        names = {*self.environment, *self.secret_environment}
        for which in ("Telegram", "Discord", "Slack"):
            token, users = (f"{which.upper()}_{what}" in names for what in ("BOT_TOKEN", "ALLOWED_USERS"))
            if token and not users:
                # gateway/run.py denies unknown senders by default; a pairing code is all that they get.
                yield (
                    f"{which} has a token and no agent{which}AllowedUsers: the agent answers nobody there "
                    "until it knows who may talk to it"
                )
            elif users and not token:
                yield f"agent{which}AllowedUsers is set, and there is no token for {which}"
        if self.copies.repository.startswith("rest:http:") and self.copies.access_key:
            yield (
                "agentCopyRepository is rest:http: the login can be read on the way. The copy itself is encrypted. "
                "https keeps both"
            )
        yield from self._shown_secrets()
        yield from self._without_effect()
        yield from self._unknown_references(names)

    def _shown_secrets(self) -> Iterator[str]:
        servers = {
            name: {"env": server.env, "headers": server.headers} for name, server in self.declared.mcp_servers.items()
        }
        for key, tree in {"agentEnvironment": self.declared.environment, "agentMcpServers": servers}.items():
            for path, item in leaves(tree):
                if item and _SECRET_LIKE.search(path.rpartition(".")[2]) and not REFERENCE.search(str(item)):
                    yield (
                        f"{key}.{path} looks like a secret, and is shown in the preview and stored in clear: "
                        "agentSecretEnvironment keeps one, and ${NAME} refers to it"
                    )

    def _without_effect(self) -> Iterator[str]:
        source, config = self.declared.config_key, self.declared.config
        for key, why in _WITHOUT_EFFECT.items():
            if at(config, key) is not None:
                yield (
                    f"{source}.{key} has no effect: {why}. There it can be set: scripts/agent ssh hermes config "
                    f"set {key} VALUE"
                )
        if "_config_version" in self.declared.settings:
            yield (
                "agentSettings._config_version is left out: it is the number of the user's own config.yaml, which "
                "would lose it and never be migrated again"
            )
        if at(config, "database.journal_mode") == "wal":
            yield (
                f"{source}.database.journal_mode: wal has no effect on new databases before SQLite 3.51.3, which "
                "Debian 12 and 13 have not: the agent makes them in the mode delete"
            )

    def _unknown_references(self, names: set[str]) -> Iterator[str]:
        trees = {
            self.declared.config_key: self.declared.config,
            "agentMcpServers": self.declared.managed.get("mcp_servers", {}),
            "agentProviders": self.declared.managed.get("providers", {}),
        }
        for key, tree in trees.items():
            for path, name in references(tree):
                if name not in names:
                    yield (
                        f"{key}.{path} refers to ${{{name}}}, which no option declares: unless the home's own "
                        ".env has it, the agent takes it as it is written"
                    )


class BareMetalAgent(AgentSettings):
    """The agent under systemd, in the cattle itself."""

    mode: Literal["bare-metal"] = "bare-metal"
    install: SourceSettings

    @property
    def builds_web_ui(self) -> bool:
        """Whether a checkout's web interface is made: PyPI's package brings one."""
        wanted = self.install.web_ui == "build" or (self.install.web_ui == "auto" and self.dashboard.enabled)
        return self.install.source == "git" and wanted

    @property
    def dashboard_listens_on(self) -> str:
        return self.dashboard.host

    @property
    def dashboard_reached_at(self) -> str:
        return self.dashboard.host

    @property
    def api_listens_on(self) -> str:
        return self.api.host

    @property
    def api_reached_at(self) -> str:
        return self.api.host

    @rule
    def _takes_other_names(self) -> Iterator[Fault]:
        host, dashboard = self.dashboard.host, self.dashboard
        if dashboard.enabled and dashboard.public_url and host not in EVERYWHERE:
            yield dashboard.fault(
                "public_url",
                f"a dashboard on {host} refuses requests that ask for another host name",
                "set agentDashboardHost to 0.0.0.0 where a proxy leads to it",
            )

    def warnings(self) -> Iterator[str]:
        if self.service.restart not in ("always", "on-success"):
            # facts hermes 3, issue 11258
            yield (
                f"agentRestart is {self.service.restart}: the agent ends itself with success when it wants to be "
                "started again (after /restart, say), and then stays down. always is what upstream runs it with."
            )
        if self.api.enabled and not is_loopback(self.api.host):
            yield (
                f"agentApiHost is {self.api.host}: the API speaks plain HTTP, so its key and all prompts can be "
                "read on the way. On 127.0.0.1 it is reached through SSH."
            )
        yield from super().warnings()
        if self.install.source == "pypi":
            yield (
                "agentSource is pypi: upstream gave that up, it ends at 0.19.0. The package has no bundled skills, and "
                "what it depends on is whatever the index has, without hashes. git installs what upstream ships"
            )


class DockerAgent(AgentSettings):
    """The agent in upstream's image, as a compose project in the cattle."""

    mode: Literal["docker"] = "docker"
    container: ContainerSettings

    @property
    def dashboard_listens_on(self) -> str:
        """Inside the container; the published ports say who gets there."""
        return EVERYWHERE[0]

    @property
    def dashboard_reached_at(self) -> str:
        return self.container.published_ip

    @property
    def api_listens_on(self) -> str:
        """Inside the container; the published ports say who gets there."""
        return EVERYWHERE[0]

    @property
    def api_reached_at(self) -> str:
        return self.container.published_ip

    @property
    def serves_api(self) -> bool:
        """Always, inside the container: its health check is there, and so is the way in."""
        return True

    @rule
    def _asks(self) -> Iterator[Fault]:
        if self.dashboard.enabled and not self.dashboard.providers:
            yield self.dashboard.fault(
                "password",
                "in a container the dashboard listens beyond loopback, and then it needs a password",
                "pulumi config set --secret agentDashboardPassword (or agentDashboardPasswordHash, or set "
                "agentDashboardOidcIssuer), or agentDashboard false",
            )

    @rule
    def _published_instead(self) -> Iterator[Fault]:
        text = "is for bare-metal mode: in Docker mode the ports are published on agentPublishedBindIp"
        for section, key in ((self.dashboard, "agentDashboardHost"), (self.api, "agentApiHost")):
            if not is_loopback(section.host):
                remedy = f"agentPublishedBindIp {section.host}, and leave {key} out"
                yield section.fault("host", text, remedy)

    @rule
    def _no_arguments(self) -> Iterator[Fault]:
        if self.service.extra_args:
            text = "is for bare-metal mode: in Docker mode the image starts the gateway"
            yield self.service.fault("extra_args", text, "leave it out", " ".join(self.service.extra_args))

    @rule
    def _model_is_elsewhere(self) -> Iterator[Fault]:
        host = urlsplit(self.model.url).hostname or ""
        if host in ("localhost", "127.0.0.1", "::1"):
            text = "loopback is the container's own there: the guest's is out of its reach"
            yield self.model.fault("url", text, "use an address of the machine that the model runs on")

    def warnings(self) -> Iterator[str]:
        yield from super().warnings()
        if self.service.extra_packages:
            yield "agentExtraPackages are installed in the guest: the agent in its container does not see them"
        if self.service.extra_python_packages:
            yield "agentExtraPythonPackages have no effect with agentMode docker: the image is as it is"
