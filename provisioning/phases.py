"""The phases, as pure functions: inputs in, a plan out. Nothing here touches the network.

A plan's digest covers scripts, templates and inputs: it is what decides whether a phase runs again. Secrets enter it
through scrypt only, because the digest is stored in clear.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from provisioning.compose import compose_file, container_parameters, identity, service
from provisioning.guest import inputs as guest
from provisioning.guest.common import CONTAINER, DASHBOARD, DASHBOARD_STOP_S, GATEWAY, LIBRARY, STOP_S
from provisioning.guest.home import Document
from provisioning.guest.inputs import ApiServer, Build, Configure, Container, Engine, Facts, Probe, as_json, of
from provisioning.guest.releases import ever_read_from_home
from provisioning.guest.services import wanted_state
from provisioning.job import Job, LargeFile, PayloadFile, run_job, sha256_of
from provisioning.models import (
    AgentInputs,
    BaselineInputs,
    ConfigureInputs,
    Dashboard,
    DockerInputs,
    VerifyInputs,
    document_place,
)
from provisioning.ssh import OnLine, SshTarget, connect
from settings.agent.declaration import MEMORIES, MODEL_API_KEY_VARIABLE, OIDC_SECRET_VARIABLE
from settings.kinds import USERS_GROUP
from settings.section import secrets as secrets_of
from settings.section import shown

READ_AT_START = "read_at_start"
"""The part of `declared` that tells which service would start anew."""

AUTH_FILE = "auth.json"
"""The name under which its content travels among the secrets; no variable can be called so."""

VARIABLES_OF_SECRETS = {
    "model.api_key": MODEL_API_KEY_VARIABLE,
    "api_server.key": "API_SERVER_KEY",
    "dashboard.oidc.client_secret": OIDC_SECRET_VARIABLE,
}
"""By its path in the inputs: the variable that the agent reads a secret from."""

BACKUPS_PATH = f"{LIBRARY}/backups"

# ripgrep and git: the agent's file and repository tools; python3: its interpreter, and that of our own later phases.
BASE_PACKAGES = ("ca-certificates", "git", "python3", "ripgrep")

BUILD_SCRIPTS = ("run.sh", "apt.sh", "uv.lock", "node.lock")
"""What guest/build.py reads beside itself."""

# Changes when a directory built by an older version of guest/build.py is no longer good enough.
BUILD_FORMAT = 3


NOT_OF_THE_BUILD = frozenset({"user", "python_mirror"})
"""What the agent phase declares and no other build comes of: who tries it, and where the same files are fetched."""


@dataclass(frozen=True)
class PhasePlan:
    """One phase, ready to run.

    `declared`: what the preview shows, without secrets. `digest`: 64 hex digits. `secrets`: by name, for the
    container's eyes only. `large_files` are no part of the digest: they are tools, not results. `fresh`: see Job.
    """

    name: str
    files: tuple[PayloadFile, ...]
    declared: Mapping[str, Any]
    digest: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    large_files: tuple[LargeFile, ...] = ()
    fresh: bool = False

    @property
    def job(self) -> Job:
        return Job(self.name, self.digest, self.files, self.secrets, self.large_files, self.fresh)


@dataclass(frozen=True)
class PhaseResult:
    """`seconds` of wall time; `outputs` as the phase's script reports them, without secrets."""

    seconds: float
    outputs: dict[str, Any]
    picked_up: bool = False


def render_baseline(inputs: BaselineInputs) -> PhasePlan:
    """Packages in one apt transaction, account, home and its folders."""
    variables = {
        "HOME_DIR": inputs.home,
        "HOME_ON_ROOT": "1" if inputs.home_on_root else "",
        "STATE_DIR": inputs.hermes_home,
        "WORK_DIR": inputs.workspace,
        "AGENT_USER": inputs.user,
        "AGENT_GROUP": inputs.group,
        "AGENT_UID": str(inputs.uid),
        "AGENT_GID": str(inputs.gid),
        "USERS_GROUP": USERS_GROUP,
        "PACKAGES": " ".join(sorted({*BASE_PACKAGES, *inputs.extra_packages})),
    }
    declared = inputs.model_dump(mode="json")
    return _plan("baseline", _text("scripts/baseline.sh"), variables, declared=declared, more=_scripts("run.sh"))


def render_agent(inputs: AgentInputs) -> PhasePlan:
    """The agent's code below /opt/hermes. Reads `uv_binary` from this machine (for its SHA-256)."""
    others = {"uv_binary", *NOT_OF_THE_BUILD}
    declared: dict[str, Any] = {"format": BUILD_FORMAT, **inputs.model_dump(mode="json", exclude=others)}
    if inputs.source == "pypi":
        declared = {key: value for key, value in declared.items() if not key.startswith("git_")}
        declared["version"] = inputs.release
    build_id = _sha256(declared)
    declared |= inputs.model_dump(mode="json", include=set(NOT_OF_THE_BUILD))
    large: tuple[LargeFile, ...] = ()
    if inputs.uv_binary is not None:
        path = Path(inputs.uv_binary)
        large = (LargeFile(path, sha256_of(path)),)
    given = Build(
        source=inputs.source,
        version=inputs.release or "",
        directory=agent_directory_name(inputs),
        build_id=build_id,
        extras=inputs.extras,
        extra_python_packages=inputs.extra_python_packages,
        git_url=inputs.git_url,
        git_tag=inputs.git_tag,
        git_commit=inputs.git_commit,
        web_ui=inputs.web_ui,
        python_mirror=inputs.python_mirror,
        user=inputs.user,
    )
    more = (*guest_package(), *_scripts(*BUILD_SCRIPTS))
    plan = _plan("agent", guest_main("build"), {}, declared=declared, given=given, more=more)
    # Which uv does the work is no property of the result, so it joins after the digest was made.
    brought = _inputs_file(replace(given, uv_sha256=large[0].sha256 if large else ""))
    rest = tuple(file for file in plan.files if file.path != brought.path)
    return PhasePlan(plan.name, (*rest, brought), plan.declared, plan.digest, plan.secrets, large)


def render_docker(inputs: DockerInputs) -> PhasePlan:
    """The agent phase of Docker mode: engine, compose plugin, a first container, the image."""
    declared = inputs.model_dump(mode="json")
    more = (*guest_package(), *_scripts("run.sh", "apt.sh"))
    given = of(Engine, declared, "the agent phase")
    return _plan("agent", guest_main("engine"), {}, declared=declared, given=given, more=more)


def agent_directory_name(inputs: AgentInputs) -> str:
    """The folder below /opt/hermes: the release, or tag and commit; other packages than usual give another folder."""
    # A tag may have slashes and more; the commit behind it keeps two folders apart.
    tag = re.sub(r"[^A-Za-z0-9._-]", "-", inputs.git_tag)
    name = str(inputs.release) if inputs.source == "pypi" else f"{tag}-{inputs.git_commit[:8]}"
    defaults = AgentInputs()
    if inputs.extras != defaults.extras or inputs.extra_python_packages:
        name += "-" + _sha256([inputs.extras, inputs.extra_python_packages])[:8]
    return name


def render_configure(inputs: ConfigureInputs) -> PhasePlan:
    """The managed scope, the units, and starting what has to start."""
    hidden = {name_of_secret(path): value for path, value in secrets_of(inputs).items()}
    if not inputs.dashboard.enabled:
        hidden.pop(OIDC_SECRET_VARIABLE, None)
    config = managed_config(inputs)
    declared = configure_declared(inputs)
    more = list(guest_package())
    container: Container | None = None
    if inputs.container is not None:
        definition = service(inputs, inputs.container)
        # What the preview shows of it: a changed identity is a new container, and loses what was written inside.
        declared["container"] = {"identity": identity(definition), "service": definition}
        container = container_parameters(inputs, inputs.container, definition)
        more.append(PayloadFile("compose.yaml", compose_file(definition).encode()))
        declared[READ_AT_START] = {CONTAINER: _sha256([identity(definition), config, _shown_environment(inputs)])[:12]}
    else:
        context = unit_context(inputs)
        units = {name: _render(f"{name}.j2", context) for name in (GATEWAY, DASHBOARD)}
        more += [PayloadFile(f"units/{name}", text.encode()) for name, text in units.items()]
        declared[READ_AT_START] = _read_at_start(inputs, units)
    given = Configure(
        facts=facts_of(inputs),
        gid=inputs.gid,
        agent_directory=inputs.agent_directory,
        container=container,
        config=config,
        environment=managed_environment(inputs),
        secret_environment=tuple(
            sorted({*inputs.secret_environment, *({MODEL_API_KEY_VARIABLE, OIDC_SECRET_VARIABLE} & set(hidden))})
        ),
        ca_certificates=inputs.ca_certificates,
        dashboard=guest.Dashboard(
            enabled=inputs.dashboard.enabled,
            host=inputs.dashboard.host,
            port=inputs.dashboard.port,
            username=inputs.dashboard.username,
            has_password=inputs.dashboard.has_password,
            auth_required=inputs.dashboard.auth_required,
        ),
        documents=documents_of(inputs),
        overwrite_auth_file=inputs.auth_file_overwrite,
        user_config={key: config[key] for key in sorted(ever_read_from_home()) if key in config},
        unfinished_update=inputs.unfinished_update,
    )
    return _plan(
        "configure",
        guest_main("configure"),
        {},
        declared=declared,
        given=given,
        more=tuple(more),
        secrets=hidden,
    )


def facts_of(inputs: ConfigureInputs) -> Facts:
    """What the programs that stay in the guest have to know. No secret is in it: everybody there may read it."""
    return Facts(
        stack=inputs.stack,
        user=inputs.user,
        uid=inputs.uid,
        home=inputs.home,
        hermes_home=inputs.hermes_home,
        working_directory=inputs.workspace,
        users_group=USERS_GROUP,
        api_server=ApiServer(inputs.serves_api, inputs.api_server.host, inputs.api_server.port),
        backups_kept=inputs.backups_kept,
        probe=probe_in_guest(probe_of(inputs)),
        container=inputs.container is not None,
        home_on_root=inputs.home_on_root,
    )


def probe_in_guest(inputs: VerifyInputs) -> Probe:
    """The inputs of verify as the guest's programs have them."""
    return of(Probe, inputs.model_dump(mode="json"), "verify")


def unit_context(inputs: ConfigureInputs) -> dict[str, Any]:
    """What the units' templates are filled with."""
    return {
        "user": inputs.user,
        "group": inputs.group,
        "home": inputs.home,
        "home_on_root": inputs.home_on_root,
        "writable": inputs.writable,
        "hermes_home": inputs.hermes_home,
        "workspace": inputs.workspace,
        "service": inputs.service,
        "arguments": "".join(f" {systemd_quote(argument)}" for argument in inputs.service.args),
        "dashboard": inputs.dashboard,
        "ca_digest": inputs.ca_digest,
        "stop_s": STOP_S,
        "dashboard_stop_s": DASHBOARD_STOP_S,
    }


def probe_of(inputs: ConfigureInputs) -> VerifyInputs:
    """How the agent is asked once it is configured: after every run by verify, and before a new version is trusted."""
    dashboard, container = inputs.dashboard, inputs.container
    return VerifyInputs(
        version=None,
        api_server=inputs.serves_api,
        api_server_host=inputs.api_server.host,
        api_server_port=inputs.api_server.port,
        dashboard=dashboard.enabled,
        dashboard_host=dashboard.host if container is None else container.published_ip,
        dashboard_port=dashboard.port,
        auth_required=dashboard.auth_required,
        auth_providers=dashboard.providers if dashboard.auth_required else (),
        public_url=dashboard.public_url,
        home=inputs.home,
        hermes_home=inputs.hermes_home,
        user=inputs.user,
        uid=inputs.uid,
        container=container is not None,
    )


def render_backups(verb: str, *arguments: str, request: str) -> PhasePlan:
    """`make`, `list` or `restore NAME`, by the program that the configure phase has put into the container.

    `request`: tells one request from the next, for none of these is the same twice. The same again: the same request,
    which is taken up while it runs.
    """
    command = shlex.join([BACKUPS_PATH, verb, *arguments])
    script = f"#!/bin/sh\n# request {request}\nexec {command}\n"
    return replace(_plan("backups", script, {}, declared={"command": command}), fresh=True)


def guest_package() -> tuple[PayloadFile, ...]:
    """provisioning.guest as a payload: it is imported in the guest by the same names as here."""
    package = files("provisioning") / "guest"
    modules = sorted(entry.name for entry in package.iterdir() if entry.name.endswith(".py"))
    return (
        PayloadFile("provisioning/__init__.py", b""),
        *(PayloadFile(f"provisioning/guest/{name}", _text(f"guest/{name}").encode()) for name in modules),
    )


def guest_main(module: str) -> str:
    """The payload's `main` that runs a module of provisioning.guest. Isolated, so the job's folder is named."""
    return f"""#!/usr/bin/python3 -IB
import os, sys
sys.path.insert(0, os.environ["HP_JOB"])
from provisioning.guest.{module} import main
sys.exit(main())
"""


def name_shown(path: str) -> str:
    """What a secret is called where only its word is shown: a variable by its name, all else by its path."""
    return AUTH_FILE if path == "auth_file" else path.removeprefix("secret_environment.")


def name_of_secret(path: str) -> str:
    """What a secret is called in the guest."""
    return VARIABLES_OF_SECRETS.get(path) or name_shown(path)


def configure_declared(inputs: ConfigureInputs) -> dict[str, Any]:
    """What the preview shows of configure: every value but the secrets, of which it shows that they changed.

    A document is shown by its size and digest.
    """
    declared: dict[str, Any] = shown(inputs, lambda path, secret: _shown_secret(name_shown(path), secret))
    declared["documents"] = {name: _shown_text(text) for name, text in inputs.documents.items()}
    return declared


def _read_at_start(inputs: ConfigureInputs, units: Mapping[str, str]) -> dict[str, str]:
    """Per service a word for all that it reads at its start, made as the guest makes it: another word, a restart.

    The guest restarts a service besides where it does not run, or where auth.json was missing.
    """
    gateway, dashboard = (f"{text}\n{inputs.agent_directory}" for text in (units[GATEWAY], units[DASHBOARD]))
    words = wanted_state(gateway, dashboard, managed_config(inputs), _shown_environment(inputs))
    return {unit: word[:12] for unit, word in words.items() if unit != DASHBOARD or inputs.dashboard.enabled}


def _shown_environment(inputs: ConfigureInputs) -> dict[str, str]:
    """The managed environment with words for the secrets. auth.json counts where it is put over another."""
    words = {
        name: _shown_secret(name, secret)
        for name, secret in ((name_of_secret(path), secret) for path, secret in secrets_of(inputs).items())
        if not name.startswith("dashboard.") and name != OIDC_SECRET_VARIABLE
    }
    if AUTH_FILE in words and not inputs.auth_file_overwrite:
        words[AUTH_FILE] = "declared"
    # All of the dashboard's own, by a name that counts as the dashboard's.
    words["HERMES_DASHBOARD_DECLARED"] = json.dumps(configure_declared(inputs)["dashboard"], sort_keys=True)
    return {**managed_environment(inputs), **words}


def documents_of(inputs: ConfigureInputs) -> tuple[Document, ...]:
    """The documents for the guest."""
    return tuple(
        Document(place, path, text, ours=name not in MEMORIES)
        for name, text in sorted(inputs.documents.items())
        for place, path in [document_place(name)]
    )


def managed_config(inputs: ConfigureInputs) -> dict[str, Any]:
    """The managed config.yaml as data, without `_config_version` (the installed agent says it)."""
    return merge(inputs.settings, pinned_config(inputs))


def pinned_config(inputs: ConfigureInputs) -> dict[str, Any]:
    """What other inputs than `settings` say; it wins over them."""
    ours: dict[str, Any] = {
        "model": {"provider": inputs.model.provider, "default": inputs.model.name},
        # No pip, no download behind the operator's back; both also cost seconds at the first prompt.
        "security": {"allow_lazy_installs": False, "tirith_enabled": False},
        "model_catalog": {"enabled": False},
        "terminal": {"cwd": inputs.workspace},
    }
    if inputs.model.base_url is not None:
        ours["model"]["base_url"] = inputs.model.base_url
    if not inputs.serves_api:
        # The user's own configuration could open the port otherwise.
        ours["platforms"] = {"api_server": {"enabled": False}}
    if inputs.model.api_key is not None:
        # Form A of facts hermes 1: with provider custom only an inline api_key is sent; key_env would be ignored.
        ours["model"]["api_key"] = f"${{{MODEL_API_KEY_VARIABLE}}}"
    ours |= inputs.managed
    if inputs.dashboard.enabled and inputs.dashboard.trusted_proxies:
        # Read by none of RELEASES yet, but by newer ones; what all read is in managed_environment.
        ours["dashboard"] = {"trusted_proxies": list(inputs.dashboard.trusted_proxies)}
    return ours


def managed_environment(inputs: ConfigureInputs) -> dict[str, str]:
    """The managed .env without its secrets. It wins over the user's .env and the units' environment."""
    if not inputs.serves_api:
        # A key that is there starts the server whatever ENABLED says (facts hermes 3, issue 87856); one in the user's
        # .env is there until an empty one is pinned.
        closed = {"API_SERVER_ENABLED": "false", "API_SERVER_KEY": ""}
        return {**inputs.environment, **closed, **dashboard_environment(inputs.dashboard)}
    return {
        **inputs.environment,
        "API_SERVER_ENABLED": "true",
        # In a container loopback is the container's own; which address of the guest has it, the published ports say.
        "API_SERVER_HOST": inputs.api_server.host if inputs.container is None else "0.0.0.0",  # noqa: S104
        "API_SERVER_PORT": str(inputs.api_server.port),
        **dashboard_environment(inputs.dashboard),
    }


def dashboard_environment(dashboard: Dashboard) -> dict[str, str]:
    """What the dashboard reads about logging in and about its proxy, without secrets (facts hermes 1, "Dashboard")."""
    if not dashboard.enabled:
        return {}
    found: dict[str, str] = {}
    if dashboard.oidc is not None:
        found["HERMES_DASHBOARD_OIDC_ISSUER"] = dashboard.oidc.issuer
        found["HERMES_DASHBOARD_OIDC_CLIENT_ID"] = dashboard.oidc.client_id
        found["HERMES_DASHBOARD_OIDC_SCOPES"] = dashboard.oidc.scopes
    if dashboard.public_url:
        found["HERMES_DASHBOARD_PUBLIC_URL"] = dashboard.public_url
    if dashboard.trusted_proxies:
        # The web server's own variable; it replaces the default, which is the first of these.
        found["FORWARDED_ALLOW_IPS"] = ",".join(("127.0.0.1", *dashboard.trusted_proxies))
    return found


def merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; `high` wins, lists and scalars are replaced whole."""
    result = dict(low)
    for key, value in high.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


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


def render_verify(inputs: VerifyInputs) -> PhasePlan:
    """The proof that the agent works, one real prompt included. Without secrets: the guest has the API key."""
    declared, given = inputs.model_dump(mode="json"), probe_in_guest(inputs)
    plan = _plan("verify", guest_main("verify"), {}, declared=declared, given=given, more=guest_package())
    # A proof of how it is now: that of a run which was cut off an hour ago is none.
    return replace(plan, fresh=True)


def run_phase(target: SshTarget, plan: PhasePlan, *, on_line: OnLine, timeout_s: float = 900.0) -> PhaseResult:
    """Run a plan in the container at `target`, or pick up the run of the same digest that is under way there.

    Blocks, calls `on_line` at least every few seconds. Errors: see provisioning.errors.
    """
    began = time.monotonic()
    result = run_job(lambda: connect(target), plan.job, on_line=on_line, timeout_s=timeout_s)
    return PhaseResult(round(time.monotonic() - began, 2), result.outputs, result.picked_up)


# -- building a plan ---------------------------------------------------------------------------------------------------


def _plan(
    name: str,
    script: str,
    variables: Mapping[str, str],
    *,
    declared: Mapping[str, Any],
    given: Any = None,
    more: tuple[PayloadFile, ...] = (),
    secrets: Mapping[str, str] | None = None,
) -> PhasePlan:
    payload = [PayloadFile("main", script.encode(), 0o700), *more]
    if variables:
        payload.append(_env_file(variables))
    if given is not None:
        payload.append(_inputs_file(given))
    digest = _sha256(
        {
            "files": {file.path: hashlib.sha256(file.content).hexdigest() for file in payload},
            "secrets": _seal(secrets or {}),
        }
    )
    return PhasePlan(name, tuple(payload), declared, digest, dict(secrets or {}))


def _inputs_file(given: Any) -> PayloadFile:
    return PayloadFile("inputs.json", as_json(given).encode())


def _env_file(variables: Mapping[str, str]) -> PayloadFile:
    """Shell assignments, each value quoted."""
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
    return PayloadFile("inputs.env", "".join(lines).encode())


def _seal(secrets: Mapping[str, str]) -> str:
    """A fingerprint of secrets that is costly to guess from: it ends up in a digest that is no secret."""
    if not secrets:
        return ""
    text = json.dumps(dict(secrets), sort_keys=True).encode()
    return hashlib.scrypt(text, salt=b"provisioning phase digest", n=2**14, r=8, p=1, dklen=32).hex()


@cache
def _shown_secret(name: str, secret: str) -> str:
    """A word for a secret that changes with it: 24 bits of scrypt, far too few to find the secret by."""
    salt = f"provisioning shown secret {name}".encode()
    return f"[secret {hashlib.scrypt(secret.encode(), salt=salt, n=2**14, r=8, p=1, dklen=3).hex()}]"


def _shown_text(text: str) -> str:
    """A text by its size in bytes and the begin of its SHA-256."""
    content = text.encode()
    return f"{len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()[:12]}"


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _scripts(*names: str) -> tuple[PayloadFile, ...]:
    """What a phase's script reads beside itself."""
    return tuple(PayloadFile(name, _text(f"scripts/{name}").encode()) for name in names)


@cache
def _text(name: str) -> str:
    return (files("provisioning") / name).read_text(encoding="utf-8")


def _render(name: str, context: Mapping[str, Any]) -> str:
    import jinja2  # noqa: PLC0415 - 0.1 s that only the configure phase needs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda item: _text(f"templates/{item}")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 - unit files, not HTML
    )
    return environment.get_template(name).render(context)
