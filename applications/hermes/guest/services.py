"""The services: own systemd units, started or restarted exactly when what they read has changed."""

from __future__ import annotations

import errno
import hashlib
import json
import re
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from applications.hermes.guest import layout
from applications.hermes.guest.inputs import Facts, Port
from applications.hermes.guest.journal import journal
from applications.hermes.guest.names import API_SERVER, DASHBOARD, DASHBOARD_SERVER, FACTS, GATEWAY
from provisioning.guest.common import (
    STATE,
    CommandFailed,
    Refusal,
    as_user,
    execute,
    how_it_failed,
    install_file,
    read_json,
    run,
)
from provisioning.guest.typed import record
from provisioning.guest.words import quote, told

UNITS = Path("/etc/systemd/system")
SHOWN_LINES = 6
"""Of systemctl and of the service each, so that all of it is within job.LOG_TAIL_LINES."""
STARTED = STATE / "started.json"
NO_HOLDER = "No process is shown for it: the address may not be one of this container."
PORTS = {API_SERVER: ("agentApiPort", GATEWAY), DASHBOARD_SERVER: ("agentDashboardPort", DASHBOARD)}
"""By what answers there: the setting, and the unit that listens in bare-metal mode."""
PROXY_VARIABLE = "FORWARDED_ALLOW_IPS"
"""Only the dashboard's web server reads it: the gateway's does not."""


def enabling(*units: str) -> tuple[str, ...]:
    """The command that has units start at each boot.

    What is up has its unit already: systemd need not read all of them once more. The options come last: an error shows
    the first words of a command.
    """
    return ("systemctl", "enable", *units, "--quiet", "--no-reload")


def render_unit(template: str, directory: str) -> str:
    """Fill in the real folder, not the `current` link: a running service must not load code of two versions."""
    environment = " ".join(f"{name}={value}" for name, value in layout.environment(directory).items())
    return template.replace("@AGENT@", " ".join(layout.argv(directory))).replace("@AGENT_ENVIRONMENT@", environment)


def units_present() -> list[str]:
    return [unit for unit in (GATEWAY, DASHBOARD) if (UNITS / unit).exists()]


def is_active(unit: str) -> bool:
    return run("systemctl", "show", "--property=ActiveState", "--value", unit).strip() in (
        "active",
        "activating",
        "reloading",
    )


def bring_up(verb: str, *units: str, timeout_s: float = 120) -> None:
    """`systemctl start` or `restart`; Refusal with the last lines of the units that do not run."""
    begun = time.time()
    done = execute("systemctl", verb, *units, timeout_s=timeout_s)
    if done.returncode == 0:
        return
    dead = [unit for unit in units if not is_active(unit)] or units
    words = [line for unit in dead for line in journal(unit, "--since", f"@{begun:.0f}")]
    shown = "\n".join([f"The last lines of {' and '.join(dead)}:", *words[-SHOWN_LINES + 1 :]])
    raise CommandFailed(f"{how_it_failed(f'systemctl {verb}', done, SHOWN_LINES)}\n{shown}")


def listeners(port: int) -> str:
    """What ss(8) says of who listens on a TCP port here."""
    return run("ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes", f"sport = :{port}", check=False)


def units_of(pid: int) -> set[str]:
    """Which of our services a process is of, by its control group: it can't leave that by itself."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return set()
    return {GATEWAY, DASHBOARD} & {name for line in groups.splitlines() for name in line.rpartition(":")[2].split("/")}


def refuse_taken_port(wanted: Port, ours: Callable[[Port], bool] = lambda _: False) -> None:
    """A port that somebody else holds makes the service start and die for ever; the holder is named instead.

    `ours`: whether the holder is what is going to be restarted.
    """
    host, port = wanted.host, wanted.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if host == "localhost" else host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and ours(wanted):
                return
            key, _ = PORTS[wanted.what]
            holder = listeners(port)
            raise Refusal(
                f"{key} {port}: the {wanted.what} can't listen on {host} port {port}: {error.strerror}.\n"
                f"{told(holder) if holder.strip() else NO_HOLDER}\n"
                f"Set {key} to a free port or choose another address, or end the process that holds it."
            ) from None


def noted_ports() -> set[int]:
    """The ports of our own that FACTS notes."""
    noted = record(Facts, FACTS)
    if noted is None:
        return set()
    api, probe = noted.api_server, noted.probe
    found = ((api.enabled, api.port), (probe.dashboard, probe.dashboard_port))
    return {port for enabled, port in found if enabled}


def refuse_new_ports(wanted: Iterable[Port], published: Callable[[int], bool]) -> None:
    """Refuse a port that is new to us and taken, while all that runs still runs as it did.

    A run that was ended in the middle may have noted other ports than those that we have. So a holder of our own does
    not count either: the service that listens there, or the container, of which `published` knows.
    """

    def ours(port: Port) -> bool:
        _, unit = PORTS[port.what]
        own = any(unit in units_of(int(pid)) for pid in re.findall(r"\bpid=(\d+)", listeners(port.port)))
        return own or published(port.port)

    known = noted_ports()
    for port in wanted:
        if port.port not in known:
            refuse_taken_port(port, ours)


def refuse_user_units(home: str, user: str) -> None:
    """A second gateway on the same home, as a user's unit, and ours would end each other (facts hermes 3).

    `hermes import` and `hermes setup` write and start one unasked (facts hermes 0.20, 6). Their names are not repeated:
    whoever owns the folder chooses them.
    """
    folder = f"{home}/.config/systemd/user"
    script = 'for unit in "$1"/hermes-*.service; do [ ! -e "$unit" ] && [ ! -L "$unit" ] || echo found; done'
    told_as = f"looking for units in {folder}"
    count = as_user(user, "sh", "-c", script, "sh", folder, told_as=told_as).count("found")
    if count:
        raise Refusal(
            f"the home holds {count} units of its own for the agent (hermes-*.service in {folder}), which would run a "
            "second gateway on the same data.\n"
            f"Remove them; the services are the stack's business: rm {quote(folder)}/hermes-*.service"
        )


def wanted_state(gateway_text: str, dashboard_text: str, config: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """Per unit a digest of all that it reads at its start. The dashboard's own settings are none of the gateway's."""

    def digest(*parts: Any) -> str:
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    others = {key: value for key, value in config.items() if key != "dashboard"}
    env_others = {
        key: value for key, value in env.items() if not key.startswith("HERMES_DASHBOARD_") and key != PROXY_VARIABLE
    }
    return {GATEWAY: digest(gateway_text, others, env_others), DASHBOARD: digest(dashboard_text, config, env)}


def write_units(texts: dict[str, str]) -> None:
    """Put the wanted units in place; a unit of ours that is wanted no more is stopped and removed."""
    changed = False
    for unit in {GATEWAY, DASHBOARD} - set(texts):
        if (UNITS / unit).exists():
            run("systemctl", "disable", "--now", "--quiet", unit)
            (UNITS / unit).unlink()
            changed = True
            print(f"services: {unit} removed")
    for unit, text in texts.items():
        if install_file(UNITS / unit, text, mode=0o644, gid=0):
            changed = True
            print(f"services: {UNITS / unit} written")
    if changed:
        run("systemctl", "daemon-reload")


def start_services(
    wanted: dict[str, str], ports: dict[str, Port], gateway_first: Callable[[], None] | None = None
) -> list[str]:
    """Start what does not run, restart what runs with something older. Returns the units that were touched.

    `gateway_first`: returns when the gateway answers. The others are started after that, so that they take nothing
    from it while somebody waits for it; without it all start at once, which is faster for the whole.
    """
    started = read_json(STARTED)
    stale = [unit for unit in wanted if not is_active(unit) or started.get(unit) != wanted[unit]]
    for unit in stale:
        if unit in ports and not is_active(unit):
            refuse_taken_port(ports[unit])
    if wanted:
        # A restart of last week is no news: verify wants to hear of those from here on (systemctl(1), reset-failed).
        run("systemctl", "reset-failed", *wanted, check=False)
    if stale:
        if gateway_first is not None and GATEWAY in stale:
            bring_up("restart", GATEWAY)
            gateway_first()
        rest = [unit for unit in stale if gateway_first is None or unit != GATEWAY]
        if rest:
            bring_up("restart", *rest)
    if wanted:
        # After the start: nobody has to wait for it.
        run(*enabling(*wanted))
    install_file(STARTED, json.dumps(wanted, indent=1), mode=0o644, gid=0)
    return stale
