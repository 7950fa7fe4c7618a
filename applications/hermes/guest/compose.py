"""Docker mode's container: made again when its identity changes, restarted when what it reads has changed.

There is one gateway to a home: each mode's service, and each engine's container, is there only while no other is. What
ran before is gone before its successor is made; a run that was killed in between leaves none.
"""

from __future__ import annotations

import hashlib
import json
import pwd
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from applications.hermes.guest.backend import BACKENDS, Backend, choose
from applications.hermes.guest.engine import explain, in_image, wait_for_engine
from applications.hermes.guest.inputs import Configure, Container, ContainerRecord, Facts, Installed
from applications.hermes.guest.leftovers import clear
from applications.hermes.guest.managed import Reader
from applications.hermes.guest.names import (
    CONTAINER,
    CONTAINER_RECORD,
    CONTAINER_UNIT,
    FACTS,
    GATEWAY,
    IDENTITY_LABEL,
    IMAGE_RECORD,
    STOP_S,
)
from applications.hermes.guest.services import (
    STARTED,
    UNITS,
    bring_up,
    enabling,
    is_active,
    refuse_taken_port,
    units_present,
)
from applications.hermes.guest.supervise import prepare, unit_text
from applications.hermes.guest.walls import DATA_MOUNT, refuse_unsafe, sources_of, unbind_state
from provisioning.guest.common import (
    Refusal,
    answer_in,
    as_user,
    execute,
    failed,
    install_file,
    read_json,
    run,
    words_of,
)
from provisioning.guest.typed import as_json, record

FOLDER = IMAGE_RECORD.parent
FILE = FOLDER / "compose.yaml"


def installation() -> Installed:
    """What the agent phase has found out about the image."""
    if found := record(Installed, IMAGE_RECORD):
        return found
    raise Refusal(f"{IMAGE_RECORD} names no image; the agent phase has to run first.")


def read_with(backend: str, image: str, uid: int, gid: int) -> Reader:
    """The reader of an image: a container of its own that has the folder, and no network."""

    def read(program: str, folder: Path) -> str:
        return in_image(BACKENDS[backend], image, program, "/check", uid=uid, gid=gid, volumes=[f"{folder}:/check:ro"])

    return read


def inspect(backend: Backend) -> dict[str, Any] | None:
    """The container as an engine knows it; None where there is none. Refusal when the engine does not say."""
    if not run(*backend.command, "ps", "--all", "--quiet", "--filter", f"name=^/?{CONTAINER}$").strip():
        return None
    said = run(*backend.command, "container", "inspect", CONTAINER)
    found: list[dict[str, Any]] = answer_in(said, backend.title)
    return found[0]


def publishes(port: int) -> bool:
    """Whether the agent's container has this port of the guest, in whichever engine."""
    found = [container for backend in BACKENDS.values() if (container := _in_engine(backend)) is not None]
    bound = [each for container in found for each in (container["HostConfig"]["PortBindings"] or {}).values()]
    return any(binding["HostPort"] == str(port) for bindings in bound for binding in bindings or ())


def decide(present: dict[str, Any] | None, *, identity: str, started: str | None, reads: str, supervised: bool) -> str:
    """What has to happen: nothing, start, restart, or create.

    `present`: as the engine knows it. `started`: the digest of what it has read at its start. `reads`: of what it would
    read now. `supervised`: whether the unit runs that keeps it running.
    """
    if present is None or _identity_of(present) != identity:
        return "create"
    if started != reads:
        return "restart"
    return "nothing" if present["State"]["Running"] and supervised else "start"


def start(inputs: Configure, container: Container, compose_text: str, env: dict[str, str]) -> dict[str, Any]:
    """Bring the container to what is declared; answers what was done."""
    noted = record_of(inputs, container)
    refuse_unsafe(sources_of(noted))
    backend, facts = BACKENDS[container.backend], inputs.facts
    if remove_units() | _remove_others(backend):
        forget_process(facts.user, facts.hermes_home)
    choose(backend)
    FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(FILE, compose_text, mode=0o644, gid=0)
    install_file(CONTAINER_RECORD, as_json(noted), mode=0o644, gid=0)
    _install_unit(backend)
    reads = hashlib.sha256(json.dumps([inputs.config, env], sort_keys=True).encode()).hexdigest()
    present = inspect(backend)
    what = decide(
        present,
        identity=container.identity,
        started=read_json(STARTED).get(CONTAINER),
        reads=reads,
        supervised=is_active(CONTAINER_UNIT),
    )
    if what == "nothing":
        _forget_restarts()
    else:
        print(f"container: {what}", flush=True)
        _stop_in(backend, present)
        for port in container.ports:
            refuse_taken_port(port)
        # Mounted files are looked up anew at the start: replaced ones are read from here on. The writable layer stays.
        _bring_up(backend, facts.user, facts.hermes_home, anew=what == "create")
    install_file(STARTED, json.dumps({CONTAINER: reads}, indent=1), mode=0o644, gid=0)
    return {
        "restarted": [] if what == "nothing" else [CONTAINER],
        "container": what,
        "identity": container.identity,
        "api_url": f"http://127.0.0.1:{facts.api_server.port}/v1",
        "dashboard_url": replace(inputs.dashboard, host=container.reach).url,
    }


def record_of(inputs: Configure, container: Container) -> ContainerRecord:
    """What the unit has to know of the container, from the phase's inputs."""
    facts = inputs.facts
    return ContainerRecord(
        uid=facts.uid,
        gid=inputs.gid,
        home=facts.home,
        hermes_home=facts.hermes_home,
        backend=container.backend,
        limit_memory=container.limit_memory,
        folders=container.sources,
    )


def _install_unit(backend: Backend) -> None:
    if install_file(UNITS / CONTAINER_UNIT, unit_text(backend), mode=0o644, gid=0):
        run("systemctl", "daemon-reload")
    run(*enabling(CONTAINER_UNIT))


def start_again(name: str, user: str, hermes_home: str) -> None:
    """Have the container run that compose.yaml describes, with the engine of this name: the one that is there, or,
    when an update has made another of it, one that is made again."""
    backend = BACKENDS[name]
    _remove_others(backend)
    run("systemctl", "enable", "--now", "--quiet", *backend.units)
    wait_for_engine(backend)
    _install_unit(backend)
    present, known = inspect(backend), CONTAINER_RECORD.exists()
    if not known:
        _take_up_older(backend)
    described = re.search(rf"{re.escape(IDENTITY_LABEL)}: '?([0-9a-f]{{64}})", FILE.read_text(encoding="utf-8"))
    same = known and present is not None and described is not None and _identity_of(present) == described[1]
    _stop_in(backend, present)
    _bring_up(backend, user, hermes_home, anew=not same)


def _take_up_older(backend: Backend) -> None:
    """Bring a compose.yaml from before there was the unit to what the unit starts.

    The engine restarted the container by itself then, and found the state directory by its name.
    """
    facts, text = record(Facts, FACTS), FILE.read_text(encoding="utf-8")
    if facts is None:
        raise Refusal(f"{FACTS} is missing: the configure phase has to run first.")
    state = facts.hermes_home
    sources = [word.strip("'\"") for word in re.findall(r"^ *source: (.+)$", text, re.MULTILINE)]
    noted = ContainerRecord(
        uid=facts.uid,
        gid=pwd.getpwuid(facts.uid).pw_gid,
        home=facts.home,
        hermes_home=state,
        backend=backend.name,
        limit_memory=False,
        folders=tuple(source for source in sources if source not in (state, facts.home)),
    )
    text = re.sub(rf"^( *source: ){re.escape(state)}$", rf"\g<1>{DATA_MOUNT}", text, flags=re.MULTILINE)
    text = re.sub(r"^( *restart: ).+$", r"\g<1>'no'", text, flags=re.MULTILINE)
    install_file(FILE, text, mode=0o644, gid=0)
    install_file(CONTAINER_RECORD, as_json(noted), mode=0o644, gid=0)


def _identity_of(container: dict[str, Any]) -> str | None:
    found: str | None = (container["Config"]["Labels"] or {}).get(IDENTITY_LABEL)
    return found


def _bring_up(backend: Backend, user: str, hermes_home: str, *, anew: bool) -> None:
    """Start the container, which does not run, or make it first. Refusal while something else has the home."""
    clear(user, hermes_home, GATEWAY)
    if anew:
        prepare()
        # Whether it has to be made again is decided here: compose's own hash changes with its version, too.
        made = execute(
            *(*backend.compose, "--file", str(FILE), "up", "--no-start", "--force-recreate", "--no-build"),
            *("--pull", "never", "--remove-orphans"),
            timeout_s=STOP_S + 60,
            told_as="compose",
        )
        if made.returncode != 0:
            words = words_of(made)
            raise failed("the container can't be made", words, explain(words, backend))
    bring_up("start", CONTAINER_UNIT, timeout_s=STOP_S + 120)


def stop() -> bool:
    """Stop the agent's container in each engine; True where one ran. It is kept."""
    ran = False
    for backend in BACKENDS.values():
        if (found := _in_engine(backend)) is not None:
            ran |= bool(found["State"]["Running"])
            _stop_in(backend, found)
    return ran


def _stop_in(backend: Backend, present: dict[str, Any] | None) -> None:
    """First what would start it again, and then the container, which may run without it.

    The unit is stopped also where no container is `present`: after a reboot in the middle of a change of engines it
    tries, again and again, to start the one that is gone, and would start the next one before its time.
    """
    run("systemctl", "stop", CONTAINER_UNIT, check=False, timeout_s=STOP_S + 90)
    _forget_restarts()
    if present is not None:
        run(*backend.command, "stop", "--time", str(STOP_S), CONTAINER, timeout_s=STOP_S + 60)


def _forget_restarts() -> None:
    """A restart of last week is no news: verify wants to hear of those from here on (systemctl(1), reset-failed).

    Of a unit that waited for its next try, a stop alone does not set the number back.
    """
    run("systemctl", "reset-failed", CONTAINER_UNIT, check=False)


def remove_units() -> bool:
    """End bare-metal mode: its units are stopped and taken away. False where there are none."""
    units = units_present()
    if not units:
        return False
    run("systemctl", "disable", "--now", "--quiet", *units, timeout_s=STOP_S + 60)
    for unit in units:
        (UNITS / unit).unlink()
    run("systemctl", "daemon-reload")
    print(f"services: {' and '.join(units)} removed; the container takes over")
    return True


def remove(user: str, hermes_home: str) -> bool:
    """End Docker mode: the container is stopped and taken away, its image and the data stay. False where there is none.

    Refusal when that can't be found out: a container that the engine would start later is a second gateway.
    """
    if not remove_containers("the services take over"):
        return False
    forget_process(user, hermes_home)
    return True


def remove_containers(why: str) -> bool:
    """Stop the agent's container in each engine and take it away; False where there is none."""
    found = [_remove_from(backend, why) for backend in BACKENDS.values()]
    for path in (FILE, CONTAINER_RECORD):
        path.unlink(missing_ok=True)
    if (UNITS / CONTAINER_UNIT).exists():
        run("systemctl", "disable", "--now", "--quiet", CONTAINER_UNIT, timeout_s=STOP_S + 90)
        (UNITS / CONTAINER_UNIT).unlink()
        run("systemctl", "daemon-reload")
    unbind_state()
    return any(found)


def _in_engine(backend: Backend) -> dict[str, Any] | None:
    """The agent's container in an engine; None where there is no such engine, or container."""
    if shutil.which(backend.program) is None:
        return None
    if backend.daemon:
        run("systemctl", "start", *backend.daemon)
    return inspect(backend)


def _remove_from(backend: Backend, why: str) -> bool:
    if (found := _in_engine(backend)) is None:
        return False
    _stop_in(backend, found)
    run(*backend.command, "container", "rm", CONTAINER)
    print(f"container: {CONTAINER} of {backend.title} removed; {why}")
    return True


def _remove_others(backend: Backend) -> bool:
    """End what another engine has of ours; True where there was a container."""
    removed = False
    for other in BACKENDS.values():
        if other is not backend:
            removed |= _remove_from(other, f"{backend.title} takes over")
            _switch_off(other)
    return removed


def _switch_off(backend: Backend) -> None:
    """An engine that is not in use any more; its packages and images stay."""
    if shutil.which(backend.program) is not None:
        run("systemctl", "disable", "--now", "--quiet", *backend.units)
        # podman-restart calls it a failure that there was nothing to stop.
        run("systemctl", "reset-failed", *backend.units, check=False)


def forget_process(user: str, hermes_home: str) -> None:
    """Remove the note of the process that was the gateway: its number means another process in the other mode."""
    as_user(user, "rm", "-rf", f"{hermes_home}/gateway.pid")
