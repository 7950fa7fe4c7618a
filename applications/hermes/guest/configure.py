"""Configure: write the managed scope and the units (or the compose project), start or restart what reads something new.

HP_JOB is the job's folder, HP_SECRETS a JSON file. Safe to repeat. The agent's own code runs only as its user, and
only to check what it is going to read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from applications.hermes.guest import compose, copies, schedule
from applications.hermes.guest import home as home_program
from applications.hermes.guest.inputs import Configure, Installed, Port
from applications.hermes.guest.install import install_facts, install_programs, refuse_moved_state
from applications.hermes.guest.leftovers import clear
from applications.hermes.guest.managed import (
    dashboard_hash,
    persistent_secret,
    read_env,
    read_with,
    try_managed,
    write_managed,
)
from applications.hermes.guest.migration import migration_of
from applications.hermes.guest.model import NO_SETTINGS_DONE, ask_model
from applications.hermes.guest.names import API_SERVER, DASHBOARD, DASHBOARD_SERVER, GATEWAY, KEPT_FOLDER, MANAGED
from applications.hermes.guest.releases import release_of
from applications.hermes.guest.room import refuse_full_volume
from applications.hermes.guest.services import (
    refuse_new_ports,
    refuse_user_units,
    render_unit,
    start_services,
    wanted_state,
    write_units,
)
from applications.hermes.guest.update import WANTED, Subject, installed_at, newest_of, running_build, switching
from provisioning.guest.common import Refusal, answer_in, as_user, is_mounted, phase_main
from provisioning.guest.trust import trust
from provisioning.guest.typed import read
from provisioning.guest.words import said as quoted
from provisioning.guest.words import told

AUTH_FILE = "auth.json"
# Of Docker mode's guest, which has no agent outside of the container.
SYSTEM_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class UserFile:
    """What has to be of the user's config.yaml, as `home.Inputs` has it."""

    schema: int | None
    migration: home_program.Migration | None
    config: dict[str, Any]


def configure(job: Path, secrets_file: Path) -> dict[str, Any]:
    inputs = read(Configure, (job / "inputs.json").read_text())
    hidden: dict[str, str] = json.loads(secrets_file.read_text())
    facts = inputs.facts
    user, home = facts.user, facts.home
    if not is_mounted(home) and not facts.home_on_root:
        raise Refusal(
            f"nothing is mounted at {home}. Attach the volume and restart the container; nothing was changed."
        )
    refuse_full_volume(home)
    if inputs.container is not None:
        installed, python = compose.installation(), SYSTEM_PYTHON
        directory, backend = installed.image, inputs.container.backend
        reader = compose.read_with(backend, directory, facts.uid, inputs.gid)
    else:
        directory = inputs.agent_directory or os.path.realpath(WANTED)
        installed, python, backend = installation(directory), f"{directory}/venv/bin/python", None
        reader = read_with(python, user)
    if inputs.dashboard.enabled and not installed.dashboard_available:
        raise Refusal(
            f"the dashboard is asked for, but {directory} has no web UI: it was not built.\n"
            "Set agentDashboard to false, or agentWebUi to auto."
        )
    refuse_user_units(home, user)
    refuse_moved_state(user, home, facts.hermes_home, KEPT_FOLDER)
    container = inputs.container
    refuse_new_ports(ports_of(inputs).values() if container is None else container.ports, compose.publishes)
    ask_model(inputs.model, hidden, NO_SETTINGS_DONE)

    env = managed_values(inputs, hidden)

    unknown = try_managed(inputs.gid, reader, inputs.config, env)
    for key in unknown:
        print(f"warning: the agent {installed.version} knows no setting {key}")
    if trust(inputs.ca_certificates):
        print("certificates: the container's store was brought up to date")
    install_programs(job, inputs)
    known = {
        "unknown_settings": unknown,
        "agent_directory": directory,
        "agent_version": installed.version,
        "api_url": facts.api_server.url,
        "dashboard_url": inputs.dashboard.url,
        "auth_required": inputs.dashboard.auth_required,
    }
    subject = Subject(facts)
    # Worked out while the old version serves; written when it has stopped and the backup has the file as it was.
    schema, before = installed.config_version, schema_before(subject, installed)
    migration = migration_of(user, facts.hermes_home, reader, gid=inputs.gid, schema=schema, before=before)
    # The image of Docker mode brings a config.yaml for a new home, with more in it.
    user_file = UserFile(
        schema=schema if inputs.container is None else None,
        migration=migration,
        config=user_keys(inputs.user_config, installed.version),
    )
    with switching(subject, directory, installed.version, backend) as trial:
        read_at_start = put_in_place(inputs, hidden, python, env, user_file=user_file)
        if inputs.container is not None:
            known |= compose.start(inputs, inputs.container, (job / "compose.yaml").read_text(), read_at_start)
        else:
            compose.remove(user, facts.hermes_home)
            wait = trial.gateway_first
            known["restarted"] = bring_up_services(job, inputs, directory, read_at_start, gateway_first=wait)
    schedule.install(facts.backup_times)
    copies.install(inputs.copy, hidden)
    return known | trial.outputs | {"newest_backup": newest_of(subject.backups())}


def put_in_place(
    inputs: Configure,
    hidden: dict[str, str],
    python: str,
    env: dict[str, str],
    *,
    user_file: UserFile,
) -> dict[str, str]:
    """Write the managed scope, and what is declared in the home. Answers, beside `env`, what is read at a start."""
    install_facts(inputs)
    write_managed(inputs.gid, inputs.config, env)
    in_home = put_home(inputs, hidden, python, user_file)
    for line in in_home["lines"]:
        print(f"home: {line}")
    # Documents are read when a session begins. Of auth.json that is not certain, so a new one is a reason to restart.
    return {**env, AUTH_FILE: in_home["auth"]} if in_home["auth"] else env


def ports_of(inputs: Configure) -> dict[str, Port]:
    """Where the services listen in bare-metal mode."""
    api, dashboard = inputs.facts.api_server, inputs.dashboard
    found = {}
    if api.enabled:
        found[GATEWAY] = Port(api.host, api.port, API_SERVER)
    if dashboard.enabled:
        found[DASHBOARD] = Port(dashboard.host, dashboard.port, DASHBOARD_SERVER)
    return found


def bring_up_services(
    job: Path,
    inputs: Configure,
    directory: str,
    env: dict[str, str],
    *,
    gateway_first: Callable[[], None] | None,
) -> list[str]:
    """Bare-metal mode: write the units and start or restart them; answers those that were touched."""
    dashboard, facts = inputs.dashboard, inputs.facts
    texts = {unit: render_unit((job / "units" / unit).read_text(), directory) for unit in (GATEWAY, DASHBOARD)}
    wanted = wanted_state(texts[GATEWAY], texts[DASHBOARD], inputs.config, env)
    if not dashboard.enabled:
        del wanted[DASHBOARD]
    write_units({unit: texts[unit] for unit in wanted})
    clear(facts.user, facts.hermes_home, GATEWAY)
    restarted = start_services(wanted, ports_of(inputs), gateway_first)
    print(f"services: {'restarted ' + ', '.join(restarted) if restarted else 'nothing to restart'}")
    return restarted


def user_keys(declared: dict[str, Any], version: str) -> dict[str, Any]:
    """Of the keys that some release reads from the user's config.yaml alone, those of this one.

    What the managed scope pins the agent takes out of that file whenever it saves it: the rest would come and go.
    """
    wanted = release_of(version).read_from_home
    return {key: value for key, value in declared.items() if key in wanted}


def installation(directory: str) -> Installed:
    """What the agent phase has built in a folder of /opt/hermes."""
    if found := installed_at(directory):
        return found
    raise Refusal(f"{directory} is no complete installation; the agent phase has to run first.")


def managed_values(inputs: Configure, hidden: dict[str, str]) -> dict[str, str]:
    """The managed .env: what is declared, and what is made once and kept on the volume."""
    user, home, dashboard = inputs.facts.user, inputs.facts.home, inputs.dashboard
    env = dict(inputs.environment)
    env |= {name: hidden[name] for name in inputs.secret_environment}
    if inputs.facts.api_server.enabled:
        env["API_SERVER_KEY"] = persistent_secret(user, home, "api-server-key", preferred=hidden.get("API_SERVER_KEY"))
    if dashboard.enabled and dashboard.has_password:
        present = read_env(MANAGED / ".env").get("HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH", "")
        env["HERMES_DASHBOARD_BASIC_AUTH_USERNAME"] = dashboard.username
        env["HERMES_DASHBOARD_BASIC_AUTH_PASSWORD_HASH"] = hidden.get("dashboard.password_hash") or dashboard_hash(
            hidden["dashboard.password"], present
        )
        env["HERMES_DASHBOARD_BASIC_AUTH_SECRET"] = persistent_secret(user, home, "dashboard-session-key")
    return env


def schema_before(subject: Subject, installed: Installed) -> int:
    """The schema of the agent that has read the user's config.yaml last; with none before, of the one to come."""
    known = running_build()
    was = known.version if known else (subject.read_note("version") or {}).get("version")
    if was in (None, installed.version):
        return installed.config_version
    return (known.config_version if known else 0) or release_of(str(was)).config_schema


def put_home(inputs: Configure, hidden: dict[str, str], python: str, user_file: UserFile) -> dict[str, Any]:
    """Documents, auth.json and the user's config.yaml: by a program that runs as the agent's user."""
    facts = inputs.facts
    wanted = home_program.Inputs(
        home=facts.home,
        hermes=facts.hermes_home,
        working=facts.working_directory,
        documents=inputs.documents,
        auth=home_program.Auth(hidden.get(AUTH_FILE), inputs.overwrite_auth_file),
        schema=user_file.schema,
        migration=user_file.migration,
        config=user_file.config,
    )
    program = Path(home_program.__file__).read_text(encoding="utf-8")
    what = "writing to the home"
    said = as_user(facts.user, python, "-IB", "-c", program, stdin=json.dumps(asdict(wanted)), told_as=what)
    done = answer_in(said, what)
    lines = done.get("lines") if isinstance(done, dict) else None
    if not isinstance(lines, list) or not isinstance(done.get("auth"), str):
        # It is ours, but ran as the agent, which may have had its hands in it.
        raise Refusal(f"{what} answered with something else than was asked for: {quoted(done)}")
    return {**done, "lines": [told(str(line)) for line in lines]}


def main() -> int:
    return phase_main(lambda job: configure(job, Path(os.environ["HP_SECRETS"])))


if __name__ == "__main__":
    sys.exit(main())
