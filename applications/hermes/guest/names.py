"""The names in the guest that the host and the programs there share."""

from __future__ import annotations

import contextlib
from pathlib import Path

from provisioning.guest.common import LIBRARY, STATE

FACTS = LIBRARY / "agent.json"
MANAGED = Path("/etc/hermes")
MANAGED_ENV = MANAGED / ".env"
CURRENT = Path("/opt/hermes/current")
"""The link to the build that runs."""
IMAGE_RECORD = Path("/etc/hermes-stack/image.json")
"""What the agent phase has found out about Docker mode's image: what the configure phase is to run."""
IMAGE_CURRENT = Path("/etc/hermes-stack/current.json")
"""The image that runs, with its version and engine; there in Docker mode only."""
CONTAINER_RECORD = Path("/etc/hermes-stack/container.json")
"""What the container is given, for the service that starts it; there in Docker mode only."""
UPDATE_COPIES = STATE / "update"
"""There while the configure phase switches versions, and after that was ended in the middle."""
KEPT_FOLDER = ".hermes-stack"
"""On the volume, so that it outlives the container: backups, notes, what clients and browsers hold against us."""
GATEWAY = "hermes-gateway.service"
DASHBOARD = "hermes-dashboard.service"
API_SERVER, DASHBOARD_SERVER = "API server", "dashboard"
"""What answers at a port, in words."""
CONTAINER = "hermes"
CONTAINER_UNIT = "hermes-container.service"
"""What starts the container, and what it is started by alone."""
IDENTITY_LABEL = "hermes-stack.identity"
"""Of the container: the hash over its service."""
STOP_S = 90
"""Seconds that the gateway has to end, as a unit or as a container (facts hermes 3, issue 31981)."""
DASHBOARD_STOP_S = 30


def unfinished_update() -> dict[str, str]:
    """What the agent phase says of an update that was ended in the middle: another value each time.

    So configure runs, and clears up, also when the version is set back and nothing else differs.
    """
    with contextlib.suppress(FileNotFoundError):
        found = (UPDATE_COPIES / "from.json").stat()
        return {"unfinished_update": f"{found.st_ino}-{int(found.st_mtime)}"}
    return {}
