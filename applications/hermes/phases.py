"""Hermes's phases, in their order, as pure functions: settings in, a plan out. Nothing here touches the network."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from applications import PhaseSpec
from applications.hermes.asking import asking_first, question_of
from applications.hermes.compose import ca_digest, compose_file, container_parameters, identity, service
from applications.hermes.guest import inputs as guest
from applications.hermes.guest.home import Document
from applications.hermes.guest.inputs import ApiServer, Build, Configure, Container, Engine, Facts, Folder, Probe
from applications.hermes.guest.names import CONTAINER, DASHBOARD, DASHBOARD_STOP_S, GATEWAY, STOP_S
from applications.hermes.guest.releases import ever_read_from_home
from applications.hermes.guest.services import wanted_state
from applications.hermes.settings import AgentStack
from applications.hermes.settings.agent import BareMetalAgent, DockerAgent
from applications.hermes.settings.copies import CopySettings
from applications.hermes.settings.dashboard import DashboardSettings
from applications.hermes.settings.declaration import MEMORIES, MODEL_API_KEY_VARIABLE, OIDC_SECRET_VARIABLE, merge
from provisioning.baseline import Account, baseline
from provisioning.guest.common import LIBRARY
from provisioning.job import LargeFile, PayloadFile, sha256_of
from provisioning.plans import (
    READ_AT_START,
    ROOT,
    PhasePlan,
    as_declared,
    differing_keys,
    digest_of,
    guest_main,
    guest_package,
    inputs_file,
    own_file,
    plan_of,
    scripts,
    shown_secret,
    shown_text,
    text_of,
)
from settings.kinds import USERS_GROUP
from settings.section import secrets as secrets_of
from settings.section import shown

GUEST = "applications.hermes.guest"
"""The package that runs in the guest."""

AUTH_FILE = "auth.json"
"""The name under which its content travels among the secrets; no variable can be called so."""

EXTRAS = ("all", "messaging")
"""What is installed of the agent's optional dependencies."""

PROMPT, EXPECTED = "Reply with the word HERMES-OK and nothing else.", "HERMES-OK"
"""What verify asks the model, and what has to be in its answer."""

VARIABLES_OF_SECRETS = {
    "model.api_key": MODEL_API_KEY_VARIABLE,
    "api_server.key": "API_SERVER_KEY",
    "dashboard.oidc.client_secret": OIDC_SECRET_VARIABLE,
}
"""By its path in what is declared: the variable that the agent reads a secret from."""

NEW_BUILD = "/opt/hermes/new-build"
"""In a preview: the folder of a build that is going to be made."""

BACKUPS_PATH = f"{LIBRARY}/backups"

# ripgrep and git: the agent's file and repository tools; python3: its interpreter, and that of our own later phases.
BASE_PACKAGES = ("ca-certificates", "git", "python3", "ripgrep")

FOLDERS = ("memories", "sessions", "skills", "cron", "logs", "hooks")
"""Of HERMES_HOME: made before the agent runs, with the modes that they are to have."""

# Changes when a directory built by an older version of guest/build.py is no longer good enough.
BUILD_FORMAT = 3


NOT_OF_THE_BUILD = frozenset({"user", "python_mirror"})
"""What the agent phase declares and no other build comes of: who tries it, and where the same files are fetched."""


@dataclass(frozen=True)
class Built:
    """What only the agent phase knows, and configure needs.

    `directory`: of the build that the services run from; None: the one that was made last. `unfinished_update`: a mark
    of an update that was ended in the middle, so that it is cleared up also when the version is set back and nothing
    else differs.
    """

    directory: str | None = None
    unfinished_update: str | None = None

    @classmethod
    def of(cls, results: Mapping[str, Any]) -> Built:
        """From the agent phase's outputs."""
        return cls(results.get("directory"), results.get("unfinished_update"))


def phases_of(stack: AgentStack) -> tuple[PhaseSpec, ...]:
    """baseline -> agent -> configure -> verify. A plan is rendered once for the same outputs of an earlier phase.

    What the agent phase needs of this machine is sent while baseline waits for its packages.
    """
    configure, verify = cache(partial(render_configure, stack)), cache(partial(render_verify, stack))
    agent = cache(lambda: render_agent(stack.agent, own_uv()))

    def foresee(plan: PhasePlan, last: Mapping[str, Any]) -> Mapping[str, Any]:
        """Where it is going to build, NEW_BUILD stands for the folder."""
        changed = set(differing_keys(last.get("declared") or {}, plan.declared)) - NOT_OF_THE_BUILD
        builds = not isinstance(stack.agent, DockerAgent) and changed
        return {"directory": NEW_BUILD} if builds else last.get("results") or {}

    return (
        PhaseSpec(
            "baseline",
            lambda _: replace(render_baseline(stack), ahead=agent().large_files),
            baked=True,
            in_cattle=lambda plan: asking_first(plan, stack),
        ),
        PhaseSpec("agent", lambda _: agent(), foresee=foresee, baked=True),
        PhaseSpec("configure", lambda found: configure(Built.of(found)), needs="results", warnings=unknown_settings),
        PhaseSpec("verify", verify, needs="digest"),
    )


def unknown_settings(results: Mapping[str, Any]) -> Iterator[str]:
    """The installed agent said so when it read them; said again as long as they are declared."""
    for key in results.get("unknown_settings") or ():
        yield f"the installed agent knows no setting {key}: is it written right?"


def own_uv() -> Path | None:
    """The uv that set-up has put into this checkout, for the guest; None where there is none: the guest fetches one."""
    path = ROOT / ".cache" / "uv" / "bin" / "uv"
    return path if path.exists() else None


def account(stack: AgentStack) -> dict[str, Any]:
    """Who the agent is in the cattle, and where its data lies, as it is declared."""
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


def render_baseline(stack: AgentStack) -> PhasePlan:
    """Packages in one apt transaction, account, home and its folders."""
    agent, service, state = stack.agent, stack.agent.service, stack.state_directory
    # In Docker mode the guest's own Python edits the user's config.yaml, and the library for it is Debian's.
    edits = isinstance(agent, DockerAgent) and bool(
        agent.declared.fallback_models or ever_read_from_home() & agent.declared.config.keys()
    )
    copies = agent.copies.kind
    packages = [
        *service.extra_packages,
        *(["python3-ruamel.yaml"] if edits else []),
        *(["restic"] if copies else []),
        *(["openssh-client"] if copies == "sftp" else []),
    ]
    return baseline(
        Account(service.user, service.group, service.uid, service.gid, "Hermes Agent", "agentUid"),
        stack=stack.name,
        usage="Its command is hermes.",
        home=stack.home,
        home_on_root=stack.cattle.home_on_root,
        private=state,
        folders=(stack.working_directory, *(f"{state}/{name}" for name in FOLDERS)),
        packages=(*BASE_PACKAGES, *packages),
        users_group=USERS_GROUP,
        declared={**account(stack), "extra_packages": packages},
    )


def render_agent(
    agent: BareMetalAgent | DockerAgent, uv: Path | None = None, extras: tuple[str, ...] = EXTRAS
) -> PhasePlan:
    """The agent's code: below /opt/hermes, or the engine and the image in Docker mode.

    `uv`: one of this machine for the guest (it is read, for its SHA-256); None: PyPI's. No part of the digest.
    """
    return _render_engine(agent) if isinstance(agent, DockerAgent) else _render_build(agent, uv, extras)


def _render_build(agent: BareMetalAgent, uv: Path | None, extras: tuple[str, ...]) -> PhasePlan:
    install, service = agent.install, agent.service
    web_ui = "build" if agent.builds_web_ui else "prebuilt"
    build: dict[str, Any] = {
        "format": BUILD_FORMAT,
        "source": install.source,
        "version": agent.version,
        "extras": list(extras),
        "extra_python_packages": service.extra_python_packages,
        "web_ui": web_ui,
    }
    if install.source == "git":
        build |= {"git_url": install.repository, "git_tag": install.tag, "git_commit": install.commit}
    given = Build(
        source=install.source,
        version=agent.version,
        directory=agent_directory_name(agent, extras),
        build_id=digest_of(build),
        extras=extras,
        extra_python_packages=tuple(service.extra_python_packages),
        git_url=install.repository,
        git_tag=install.tag,
        git_commit=install.commit,
        web_ui=web_ui,
        python_mirror=install.python_mirror,
        user=service.user,
    )
    declared = {**build, "python_mirror": install.python_mirror, "user": service.user}
    node = own_file("node.lock", "applications/hermes/scripts/node.lock")
    more = (*guest_package(GUEST), *scripts("run.sh", "apt.sh", "uv.lock"), node)
    plan = plan_of("agent", guest_main(f"{GUEST}.build"), {}, declared=declared, given=given, more=more)
    if uv is None:
        return plan
    # Which uv does the work is no property of the result, so it joins after the digest was made.
    large = LargeFile(uv, sha256_of(uv))
    brought = inputs_file(replace(given, uv_sha256=large.sha256))
    rest = tuple(file for file in plan.files if file.path != brought.path)
    return replace(plan, files=(*rest, brought), large_files=(large,))


def _render_engine(agent: DockerAgent) -> PhasePlan:
    """Engine, compose plugin, a first container as proof, the image."""
    given = Engine(
        backend=agent.container.backend,
        image=agent.container.image,
        version=agent.version,
        insecure_registries=tuple(agent.container.insecure_registries),
        registry_ca=agent.model.authorities or None,
        uid=agent.service.uid,
        gid=agent.service.gid,
    )
    more = (*guest_package(GUEST), *scripts("run.sh", "apt.sh"))
    return plan_of("agent", guest_main(f"{GUEST}.engine"), {}, declared=as_declared(given), given=given, more=more)


def agent_directory_name(agent: BareMetalAgent, extras: tuple[str, ...] = EXTRAS) -> str:
    """The folder below /opt/hermes: the release, or tag and commit; other packages than usual give another folder."""
    install, packages = agent.install, agent.service.extra_python_packages
    # A tag may have slashes and more; the commit behind it keeps two folders apart.
    tag = re.sub(r"[^A-Za-z0-9._-]", "-", install.tag)
    name = agent.version if install.source == "pypi" else f"{tag}-{install.commit[:8]}"
    return f"{name}-{digest_of([extras, packages])[:8]}" if packages or extras != EXTRAS else name


def render_configure(stack: AgentStack, built: Built = Built()) -> PhasePlan:
    """The managed scope, the units, and starting what has to start."""
    agent, dashboard = stack.agent, stack.agent.dashboard
    tree = configured(stack, built)
    hidden = {name_of_secret(path): value for path, value in secrets_of(tree).items()}
    if not dashboard.enabled:
        hidden.pop(OIDC_SECRET_VARIABLE, None)
    config, declared = managed_config(stack), shown_of(tree)
    environment = _shown_environment(stack, tree, declared)
    more = list(guest_package(GUEST))
    container: Container | None = None
    if isinstance(agent, DockerAgent):
        definition = service(stack, agent)
        # What the preview shows of it: a changed identity is a new container, and loses what was written inside.
        declared["container"] = {"identity": identity(definition), "service": definition}
        container = container_parameters(stack, agent, definition)
        more.append(PayloadFile("compose.yaml", compose_file(definition).encode()))
        declared[READ_AT_START] = {CONTAINER: digest_of([identity(definition), config, environment])[:12]}
    else:
        context = unit_context(stack)
        units = {name: _render(f"{name}.j2", context) for name in (GATEWAY, DASHBOARD)}
        more += [PayloadFile(f"units/{name}", text.encode()) for name, text in units.items()]
        # As the guest makes them: another word, a restart. The guest restarts a service besides where it does not
        # run, or where auth.json was missing.
        gateway, web = (f"{units[name]}\n{built.directory}" for name in (GATEWAY, DASHBOARD))
        words = wanted_state(gateway, web, config, environment)
        declared[READ_AT_START] = {
            unit: word[:12] for unit, word in words.items() if unit != DASHBOARD or dashboard.enabled
        }
    given = Configure(
        facts=facts_of(stack),
        gid=agent.service.gid,
        agent_directory=tree["agent_directory"],
        container=container,
        config=config,
        environment=managed_environment(agent),
        secret_environment=tuple(
            sorted({*agent.secret_environment, *({MODEL_API_KEY_VARIABLE, OIDC_SECRET_VARIABLE} & set(hidden))})
        ),
        ca_certificates=agent.model.authorities,
        dashboard=guest.Dashboard(
            enabled=dashboard.enabled,
            host=agent.dashboard_listens_on,
            port=dashboard.port,
            username=dashboard.user,
            has_password=dashboard.has_password,
            auth_required=agent.dashboard_asks,
        ),
        documents=documents_of(agent.declared.documents),
        overwrite_auth_file=agent.declared.auth_file_overwrite,
        user_config={key: config[key] for key in sorted(ever_read_from_home()) if key in config},
        unfinished_update=built.unfinished_update,
        copy=copy_of(stack),
        model=question_of(stack),
    )
    return plan_of(
        "configure",
        guest_main(f"{GUEST}.configure"),
        {},
        declared=declared,
        given=given,
        more=tuple(more),
        secrets=hidden,
    )


def facts_of(stack: AgentStack) -> Facts:
    """What the programs that stay in the guest have to know. No secret is in it: everybody there may read it."""
    agent = stack.agent
    return Facts(
        stack=stack.name,
        user=agent.service.user,
        uid=agent.service.uid,
        home=stack.home,
        hermes_home=stack.state_directory,
        working_directory=stack.working_directory,
        users_group=USERS_GROUP,
        api_server=ApiServer(agent.serves_api, agent.api.host, agent.api.port),
        backups_kept=agent.backups.kept,
        backup_times=tuple(agent.backups.times),
        scheduled_backups_kept=agent.backups.scheduled_kept,
        backup_home=agent.backups.home,
        probe=probe_of(stack),
        container=isinstance(agent, DockerAgent),
        home_on_root=stack.cattle.home_on_root,
    )


def copy_of(stack: AgentStack) -> guest.Copy | None:
    """The second copy of the backups, for the guest; its secrets go among the others."""
    copies, mount = stack.agent.copies, stack.copy_mount
    if copies.kind is None:
        return None
    login = copies.login
    return guest.Copy(
        repository=copies.repository,
        access_key=copies.access_key,
        region=copies.region,
        sftp=guest.Sftp(login.user, login.host, login.port, copies.ssh_host_key) if login else None,
        mount=mount.path if mount else "",
        kept={
            "last": copies.kept_last,
            "daily": copies.kept_days,
            "weekly": copies.kept_weeks,
            "monthly": copies.kept_months,
        },
        check_days=copies.check_days,
    )


def unit_context(stack: AgentStack) -> dict[str, Any]:
    """What the units' templates are filled with."""
    service = stack.agent.service
    return {
        "stack": stack,
        "service": service,
        "arguments": "".join(f" {systemd_quote(argument)}" for argument in service.extra_args),
        "dashboard": stack.agent.dashboard,
        "ca_digest": ca_digest(stack.agent.model.authorities),
        "stop_s": STOP_S,
        "dashboard_stop_s": DASHBOARD_STOP_S,
    }


def probe_of(stack: AgentStack) -> Probe:
    """How the agent is asked once it is configured: after every run by verify, and before a new version is trusted."""
    agent = stack.agent
    return Probe(
        api_server=agent.serves_api,
        api_server_host=agent.api.host,
        api_server_port=agent.api.port,
        dashboard=agent.dashboard.enabled,
        dashboard_host=agent.dashboard_reached_at,
        dashboard_port=agent.dashboard.port,
        auth_required=agent.dashboard_asks,
        auth_providers=agent.dashboard.providers if agent.dashboard_asks else (),
        public_url=agent.dashboard.public_url,
        prompt=PROMPT,
        expect=EXPECTED,
        home=stack.home,
        hermes_home=stack.state_directory,
        user=agent.service.user,
        uid=agent.service.uid,
        container=isinstance(agent, DockerAgent),
    )


def render_backups(verb: str, *arguments: str, request: str) -> PhasePlan:
    """`make`, `list` or `restore NAME`, by the program that the configure phase has put into the container.

    `request`: tells one request from the next, for none of these is the same twice. The same again: the same request,
    which is taken up while it runs.
    """
    command = shlex.join([BACKUPS_PATH, verb, *arguments])
    script = f"#!/bin/sh\n# request {request}\nexec {command}\n"
    return replace(plan_of("backups", script, {}, declared={"command": command}), fresh=True)


def name_shown(path: str) -> str:
    """What a secret is called where only its word is shown: a variable by its name, all else by its path."""
    return AUTH_FILE if path == "auth_file" else path.removeprefix("secret_environment.")


def name_of_secret(path: str) -> str:
    """What a secret is called in the guest."""
    return VARIABLES_OF_SECRETS.get(path) or name_shown(path)


def configured(stack: AgentStack, built: Built) -> dict[str, Any]:
    """All that configure depends on, secrets included: `secrets_of` and `shown_of` part what is hidden from the rest.

    The keys are those of users' states: by them the preview names what has changed.
    """
    agent, declared, dashboard, service = stack.agent, stack.agent.declared, stack.agent.dashboard, stack.agent.service
    oidc = {
        "issuer": dashboard.oidc_issuer,
        "client_id": dashboard.oidc_client_id,
        "client_secret": dashboard.oidc_client_secret,
        "scopes": dashboard.oidc_scopes,
    }
    return {
        **account(stack),
        "stack": stack.name,
        "writable": stack.writable,
        # In Docker mode it is the image, which the guest knows.
        "agent_directory": None if isinstance(agent, DockerAgent) else built.directory,
        "unfinished_update": built.unfinished_update,
        "container": None,
        "backups_kept": agent.backups.kept,
        "backup_times": agent.backups.times,
        "scheduled_backups_kept": agent.backups.scheduled_kept,
        "backup_home": agent.backups.home,
        "copy": {name: getattr(agent.copies, name) for name in CopySettings.model_fields}
        if agent.copies.kind
        else None,
        "service": {
            "args": service.extra_args,
            "restart": service.restart,
            "restart_seconds": service.restart_seconds,
        },
        "model": {
            "provider": agent.model.provider,
            "base_url": agent.model.url or None,
            "name": agent.model.name,
            "api_key": agent.model.key,
        },
        "ca_certificates": agent.model.authorities,
        "settings": declared.config,
        "managed": agent.managed,
        "environment": agent.environment,
        "secret_environment": agent.secret_environment,
        "documents": declared.documents,
        "auth_file": declared.auth_file,
        "auth_file_overwrite": declared.auth_file_overwrite,
        "api_server": {name: getattr(agent.api, name) for name in type(agent.api).model_fields},
        "dashboard": {
            "enabled": dashboard.enabled,
            "host": agent.dashboard_listens_on,
            "port": dashboard.port,
            "username": dashboard.user,
            "password": dashboard.password,
            "password_hash": dashboard.password_hash,
            "oidc": oidc if dashboard.oidc_issuer else None,
            "public_url": dashboard.public_url,
            "trusted_proxies": dashboard.trusted_proxies,
        },
    }


def shown_of(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What the preview shows of configure: every value but the secrets, of which it shows that they changed.

    A document is shown by its size and digest.
    """
    declared: dict[str, Any] = shown(tree, lambda path, secret: shown_secret(name_shown(path), secret))
    declared["documents"] = {name: shown_text(text) for name, text in tree["documents"].items()}
    return declared


def _shown_environment(stack: AgentStack, tree: Mapping[str, Any], declared: Mapping[str, Any]) -> dict[str, str]:
    """The managed environment with words for the secrets. auth.json counts where it is put over another."""
    words = {
        name: shown_secret(name, secret)
        for name, secret in ((name_of_secret(path), secret) for path, secret in secrets_of(tree).items())
        if not name.startswith(("copy.", "dashboard.")) and name != OIDC_SECRET_VARIABLE
    }
    if AUTH_FILE in words and not stack.agent.declared.auth_file_overwrite:
        words[AUTH_FILE] = "declared"
    # All of the dashboard's own, by a name that counts as the dashboard's.
    words["HERMES_DASHBOARD_DECLARED"] = json.dumps(declared["dashboard"], sort_keys=True)
    return {**managed_environment(stack.agent), **words}


def documents_of(documents: Mapping[str, str]) -> tuple[Document, ...]:
    """The documents for the guest."""
    return tuple(
        Document(place, path, text, ours=name not in MEMORIES)
        for name, text in sorted(documents.items())
        for place, path in [document_place(name)]
    )


def document_place(name: str) -> tuple[Literal["hermes", "working"], str]:
    """Where a document lies: in HERMES_HOME or in the working directory, and its path there.

    Hermes (0.19.0, 0.20.3) reads SOUL.md from HERMES_HOME alone (agent/prompt_builder.py, load_soul_md) and the two
    memories from HERMES_HOME/memories (tools/memory_tool.py); AGENTS.md and whatever else from the working directory.
    """
    if name == "SOUL.md":
        return "hermes", name
    if name in MEMORIES:
        return "hermes", f"memories/{name}"
    return "working", name


def managed_config(stack: AgentStack) -> dict[str, Any]:
    """The managed config.yaml as data, without `_config_version` (the installed agent says it)."""
    return merge(stack.agent.declared.config, pinned_config(stack))


def pinned_config(stack: AgentStack) -> dict[str, Any]:
    """What other settings than agentSettings say; it wins over them."""
    agent, model = stack.agent, stack.agent.model
    ours: dict[str, Any] = {
        "model": {"provider": model.provider, "default": model.name},
        # No pip, no download behind the operator's back; both also cost seconds at the first prompt.
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
        "model_catalog": {"enabled": False},
        "terminal": {"cwd": stack.working_directory},
    }
    if model.url:
        ours["model"]["base_url"] = model.url
    if not agent.serves_api:
        # The user's own configuration could open the port otherwise.
        ours["platforms"] = {"api_server": {"enabled": False}}
    if model.key:
        # Form A of facts hermes 1: with provider custom only an inline api_key is sent; key_env would be ignored.
        ours["model"]["api_key"] = f"${{{MODEL_API_KEY_VARIABLE}}}"
    ours = merge(ours, agent.managed)
    if agent.dashboard.enabled and agent.dashboard.trusted_proxies:
        # Read by none of RELEASES yet, but by newer ones; what all read is in managed_environment.
        ours = merge(ours, {"dashboard": {"trusted_proxies": agent.dashboard.trusted_proxies}})
    return ours


def managed_environment(agent: BareMetalAgent | DockerAgent) -> dict[str, str]:
    """The managed .env without its secrets. It wins over the user's .env and the units' environment."""
    if not agent.serves_api:
        # A key that is there starts the server whatever ENABLED says (facts hermes 3, issue 87856); one in the user's
        # .env is there until an empty one is pinned.
        api = {"API_SERVER_ENABLED": "false", "API_SERVER_KEY": ""}
    else:
        api = {
            "API_SERVER_ENABLED": "true",
            "API_SERVER_HOST": agent.api_listens_on,
            "API_SERVER_PORT": str(agent.api.port),
        }
    return {**agent.environment, **api, **dashboard_environment(agent.dashboard)}


def dashboard_environment(dashboard: DashboardSettings) -> dict[str, str]:
    """What the dashboard reads about logging in and about its proxy, without secrets (facts hermes 1, "Dashboard")."""
    if not dashboard.enabled:
        return {}
    found: dict[str, str] = {}
    if dashboard.oidc_issuer:
        found["HERMES_DASHBOARD_OIDC_ISSUER"] = dashboard.oidc_issuer
        found["HERMES_DASHBOARD_OIDC_CLIENT_ID"] = dashboard.oidc_client_id
        found["HERMES_DASHBOARD_OIDC_SCOPES"] = dashboard.oidc_scopes
    if dashboard.public_url:
        found["HERMES_DASHBOARD_PUBLIC_URL"] = dashboard.public_url
    if dashboard.trusted_proxies:
        # The web server's own variable; it replaces the default, which is the first of these.
        found["FORWARDED_ALLOW_IPS"] = ",".join(("127.0.0.1", *dashboard.trusted_proxies))
    return found


def overridden(low: Mapping[str, Any], high: Mapping[str, Any], above: str = "") -> list[str]:
    """The dotted keys of `low` that a merge with `high` would lose."""
    found: list[str] = []
    for key in low.keys() & high.keys():
        mine, theirs, name = low[key], high[key], f"{above}{key}"
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            found += overridden(mine, theirs, f"{name}.")
        elif mine != theirs:
            found.append(name)
    return sorted(found)


def systemd_quote(argument: str) -> str:
    """One argument of an ExecStart= line: no specifier, no variable, no second word comes of it (systemd.syntax(7))."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


def render_verify(stack: AgentStack, configuration: str = "", **asked: Any) -> PhasePlan:
    """The proof that the agent works, one real prompt included. Without secrets: the guest has the API key.

    `configuration`: the configure phase's digest. `asked`: other fields of the Probe.
    """
    folders = tuple(Folder(each.path, stack.owner_of(each), each.read_only) for each in stack.cattle.host_mounts)
    usual = replace(probe_of(stack), configuration=configuration, version=stack.agent.version, folders=folders)
    given = replace(usual, **asked)
    main, declared = guest_main(f"{GUEST}.verify"), as_declared(given)
    plan = plan_of("verify", main, {}, declared=declared, given=given, more=guest_package(GUEST))
    # A proof of how it is now: that of a run which was cut off an hour ago is none.
    return replace(plan, fresh=True)


def _render(name: str, context: Mapping[str, Any]) -> str:
    import jinja2  # noqa: PLC0415 - 0.1 s that only the configure phase needs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda item: text_of(f"applications/hermes/templates/{item}")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 - unit files, not HTML
    )
    return environment.get_template(name).render(context)
