"""The time of the last backup in the guest's notes: written by who has the token, from where the commands are run.

The cattle has no token, and a run of the stack that has nothing to do does nothing. So `scripts/agent status` and
`scripts/agent backup` write it, in a shell that has endpoint and token. What the guest says is taken as a time, and
nothing of its text gets on. What fails here fails no command: one line says so.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from provisioning.console import Guest
from provisioning.terminal import one_line
from proxmox.connection import ENVIRONMENT, Connection
from proxmox.errors import ProxmoxError
from proxmox.network import card_of
from proxmox.notes import with_last_backup

_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z(?=-)")
_TOLD = re.compile(rf"the last one is of [0-9: -]{{16}} UTC \((?P<stamp>{_STAMP.pattern})|there is none yet")


def time_in(name: object) -> datetime | None:
    """When a backup of that name was made, in UTC; None where it is no such name."""
    found = _STAMP.match(name) if isinstance(name, str) else None
    try:
        return datetime.strptime(found.group(), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) if found else None
    except ValueError:
        return None


def told_in(status: str) -> tuple[bool, datetime | None]:
    """Whether the guest's status tells of the last backup, and when it was made; None: there is none."""
    line = next((line for line in status.splitlines() if line.startswith("backup ")), "")
    found = _TOLD.search(line)
    made = time_in(f"{found['stamp']}-") if found and found["stamp"] else None
    return found is not None and (made is not None) == bool(found["stamp"]), made


def note_backup(guest: Guest, made: datetime | None, environment: Mapping[str, str] = os.environ) -> None:
    """Have the guest's notes tell when its last backup was made, where this shell may ask Proxmox. Raises nothing."""
    if not all(environment.get(ENVIRONMENT[key]) for key in ("endpoint", "apiToken")):
        return
    try:
        connection = Connection.from_sources(environment, {"node": str(guest.outputs.get("node") or "")})
        _write(connection, guest.outputs, made, datetime.now(UTC))
    except (ProxmoxError, OSError) as error:
        reason = one_line(str(error).splitlines()[0])
        said = f"agent: the guest's notes don't tell of the last backup: {reason} (scripts/env check says more)"
        sys.stderr.write(f"{said}\n")


def _write(connection: Connection, outputs: Mapping[str, Any], made: datetime | None, now: datetime) -> None:
    from proxmox.client import Proxmox, Timings  # noqa: PLC0415 - its import takes longer than the rest of a command

    if not (outputs.get("vmid") and outputs.get("node") and outputs.get("hardwareAddress")):
        return  # the last `up` did not come to its end
    node, vmid = str(outputs["node"]), int(outputs["vmid"])
    # Somebody waits for the command, and not for this.
    with Proxmox(connection, Timings(connect=3, read=5, retry=1.5, lock=3)) as client:
        config = client.guest_config(node, vmid)
        # Another guest may have the number by now.
        if card_of(config).get("hwaddr", "").lower() != str(outputs["hardwareAddress"]).lower():
            return
        there = config.get("description", "")
        text = with_last_backup(there, made, now)
        if text == there:
            return

        def done() -> bool:
            return client.guest_config(node, vmid).get("description", "").strip() == text.strip()

        # With the digest: what somebody writes there at this moment is not overwritten.
        client.set_config(node, vmid, {"description": text}, done=done, digest=config.get("digest"))
