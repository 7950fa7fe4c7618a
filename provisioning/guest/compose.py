"""Docker mode's container: made again when its identity changes, restarted when what it reads has changed.

There is one gateway to a home: each mode's service, and each engine's container, is there only while no other is. What
ran before is gone before its successor is made; a run that was killed in between leaves none.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from provisioning.guest.backend import BACKENDS, Backend
from provisioning.guest.common import (
    CONTAINER,
    DASHBOARD,
    GATEWAY,
    IMAGE_RECORD,
    Refusal,
    answer_in,
    as_user,
    bracket,
    install_file,
    read_json,
    run,
)
from provisioning.guest.engine import digest_reference, in_image
from provisioning.guest.managed import Reader
from provisioning.guest.services import STARTED, UNITS, refuse_taken_port

FOLDER = IMAGE_RECORD.parent
FILE = FOLDER / "compose.yaml"
IDENTITY_LABEL = "hermes-stack.identity"
STOP_S = 90


def installation() -> dict[str, Any]:
    """What the agent phase has found out about the image."""
    if found := read_json(IMAGE_RECORD):
        return found
    raise Refusal(f"{IMAGE_RECORD} names no image; the agent phase has to run first.")


def read_with(backend: str, image: str, uid: int, gid: int) -> Reader:
    """The reader of an image: a container of its own that has the folder, and no network."""

    def read(program: str, folder: Path) -> str:
        mounts = ((folder, "/check"),)
        reference = digest_reference(image)
        return in_image(BACKENDS[backend], reference, program, "/check", uid=uid, gid=gid, mounts=mounts)

    return read


def inspect(backend: Backend) -> dict[str, Any] | None:
    """The container as an engine knows it; None where there is none. Refusal when the engine does not say."""
    if not run(*backend.command, "ps", "--all", "--quiet", "--filter", f"name=^/?{CONTAINER}$").strip():
        return None
    said = run(*backend.command, "container", "inspect", CONTAINER)
    found: list[dict[str, Any]] = answer_in(said, backend.title)
    return found[0]


def decide(present: dict[str, Any] | None, *, identity: str, started: str | None, reads: str) -> str:
    """What has to happen: nothing, start, restart, or create.

    `present`: as the engine knows it. `started`: the digest of what it has read at its start. `reads`: of what it would
    read now.
    """
    if present is None or (present["Config"]["Labels"] or {}).get(IDENTITY_LABEL) != identity:
        return "create"
    if started != reads:
        return "restart"
    return "nothing" if present["State"]["Running"] else "start"


def start(inputs: dict[str, Any], compose_text: str, config: dict[str, Any], env: dict[str, str]) -> dict[str, Any]:
    """Bring the container to what is declared; answers what was done."""
    container = inputs["container"]
    _refuse_missing_sources(container["sources"])
    backend = BACKENDS[container["backend"]]
    removed = remove_units()
    for other in BACKENDS.values():
        if other is not backend:
            removed |= _remove_from(other, f"{backend.title} takes over")
            _switch_off(other)
    if removed:
        forget_process(inputs["user"], inputs["hermes_home"])
    FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    install_file(FILE, compose_text, mode=0o644, gid=0)
    reads = hashlib.sha256(json.dumps([config, env], sort_keys=True).encode()).hexdigest()
    present = inspect(backend)
    what = decide(present, identity=container["identity"], started=read_json(STARTED).get(CONTAINER), reads=reads)
    if what != "nothing":
        if present is None or not present["State"]["Running"]:
            for address, port, name in container["ports"]:
                refuse_taken_port(address, port, name)
        print(f"container: {what}", flush=True)
    if what == "create":
        # Whether it has to be made again is decided here: compose's own hash changes with its version, too.
        run(
            *(*backend.compose, "--file", str(FILE), "up", "--detach", "--force-recreate", "--no-build"),
            *("--pull", "never", "--remove-orphans"),
            timeout_s=STOP_S + 60,
        )
    elif what == "restart":
        # Mounted files are looked up anew at the start: replaced ones are read from here on. The writable layer stays.
        run(*backend.compose, "--file", str(FILE), "restart", timeout_s=STOP_S + 60)
    elif what == "start":
        run(*backend.compose, "--file", str(FILE), "start")
    install_file(STARTED, json.dumps({CONTAINER: reads}, indent=1), mode=0o644, gid=0)
    api, dashboard = inputs["api_server"], inputs["dashboard"]
    shown = bracket(container["reach"])
    return {
        "restarted": [] if what == "nothing" else [CONTAINER],
        "container": what,
        "identity": container["identity"],
        "api_url": f"http://127.0.0.1:{api['port']}/v1",
        "dashboard_url": f"http://{shown}:{dashboard['port']}/" if dashboard["enabled"] else None,
    }


def remove_units() -> bool:
    """End bare-metal mode: its units are stopped and taken away. False where there are none."""
    units = [unit for unit in (GATEWAY, DASHBOARD) if (UNITS / unit).exists()]
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
    found = [_remove_from(backend, "the services take over") for backend in BACKENDS.values()]
    if not any(found):
        return False
    FILE.unlink(missing_ok=True)
    forget_process(user, hermes_home)
    return True


def _remove_from(backend: Backend, then: str) -> bool:
    """Stop an engine's container and take it away; False where there is no such engine, or container."""
    if shutil.which(backend.program) is None:
        return False
    if backend.daemon:
        run("systemctl", "start", *backend.daemon)
    if inspect(backend) is None:
        return False
    run(*backend.command, "stop", "--time", str(STOP_S), CONTAINER, timeout_s=STOP_S + 60)
    run(*backend.command, "container", "rm", CONTAINER)
    print(f"container: {CONTAINER} of {backend.title} removed; {then}")
    return True


def _switch_off(backend: Backend) -> None:
    """An engine that is not in use any more; its packages and images stay."""
    if shutil.which(backend.program) is not None:
        run("systemctl", "disable", "--now", "--quiet", *backend.units)
        # podman-restart calls it a failure that there was nothing to stop.
        run("systemctl", "reset-failed", *backend.units, check=False)


def forget_process(user: str, hermes_home: str) -> None:
    """Remove the note of the process that was the gateway: its number means another process in the other mode."""
    as_user(user, "rm", "-f", f"{hermes_home}/gateway.pid")


def _refuse_missing_sources(sources: list[str]) -> None:
    missing = [source for source in sources if not Path(source).exists()]
    if missing:
        raise Refusal(
            f"the container is to see {', '.join(missing)}, and there is no such folder in the guest.\n"
            "Make it, or mount it into the guest, or correct agentExtraVolumes. The container was not touched."
        )
