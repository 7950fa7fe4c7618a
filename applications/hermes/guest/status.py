"""How the agent is: its services, its version, where its data and its backups are.

Asks systemd and the file system, not the agent. The program that lists the backups runs as the agent's user.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from applications.hermes.guest.backend import health_of
from applications.hermes.guest.drilled import last_drill
from applications.hermes.guest.inputs import Facts, Installed
from applications.hermes.guest.names import CONTAINER_UNIT, CURRENT, FACTS, IDENTITY_LABEL, IMAGE_CURRENT
from applications.hermes.guest.services import units_present
from applications.hermes.guest.verify import container, standing_of_backups
from provisioning.guest.common import Refusal, execute
from provisioning.guest.typed import record

GB = 1 << 30


def service_line(unit: str) -> str:
    """One line about a unit: how it is, since when, how often systemd had to start it anew."""
    names = "ActiveState,SubState,NRestarts,ActiveEnterTimestamp"
    text = execute("systemctl", "show", f"--property={names}", unit, timeout_s=20).stdout
    state = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    since = f" since {state['ActiveEnterTimestamp']}" if state.get("ActiveEnterTimestamp") else ""
    return f"{state.get('ActiveState')} ({state.get('SubState')}){since}, restarts {state.get('NRestarts')}"


def in_units() -> dict[str, str]:
    found = record(Installed, CURRENT / "install.json")
    return {
        **{unit.removesuffix(".service"): service_line(unit) for unit in units_present()},
        "version": f"{found.version if found else 'none'} in {os.path.realpath(CURRENT)}",
    }


def in_container() -> dict[str, str]:
    found, image = container() or {}, record(Installed, IMAGE_CURRENT)
    state: dict[str, Any] = found.get("State", {})
    health = health_of(found).get("Status", "no health check")
    return {
        "container": f"{state.get('Status', 'not there')} ({health})",
        CONTAINER_UNIT.removesuffix(".service"): service_line(CONTAINER_UNIT),
        "version": f"{image.version} in {image.directory}" if image else "none in no image",
        "identity": str((found.get("Config", {}).get("Labels") or {}).get(IDENTITY_LABEL, "none of the stack's")),
    }


def status() -> dict[str, str]:
    """What there is to know, in the order in which it is shown."""
    facts = record(Facts, FACTS)
    if facts is None:
        raise Refusal("there is no agent in this container; pulumi up makes it.")
    disk = shutil.disk_usage(facts.home)
    return {
        **(in_container() if facts.container else in_units()),
        **{what: str(standing) for what, standing in standing_of_backups().items()},
        "drill": last_drill(),
        "account": f"{facts.user} ({facts.uid})",
        "state": facts.hermes_home,
        "workspace": facts.working_directory,
        "api": facts.api_server.url or "off",
        "volume": f"{facts.home}, {disk.free / GB:.1f} of {disk.total / GB:.1f} GB free",
    }


def main() -> int:
    try:
        found = status()
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {value}")
    return 0
