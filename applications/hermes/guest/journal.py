"""The last that a service or the container has said, to explain an error; without secrets."""

from __future__ import annotations

import re

from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.names import CONTAINER, MANAGED_ENV
from provisioning.guest.common import Refusal, execute
from provisioning.guest.words import BAR, lines_of, redact

JOURNAL_LINES = 15


def journal(unit: str, *since: str) -> list[str]:
    """The last that a service has said, without secrets. `since`: options of journalctl. No error: it explains one."""
    command = ("journalctl", "--unit", unit, *since, "--lines", str(JOURNAL_LINES), "--no-pager", "--output", "cat")
    if unit == CONTAINER:
        command = (ENGINE, "logs", "--tail", str(JOURNAL_LINES), CONTAINER)
    try:
        done = execute(*command, timeout_s=20)
    except (Refusal, OSError):
        return [f"{BAR}(its log can't be read)"]
    return lines_of(without_secrets(done.stdout + done.stderr)) or [f"{BAR}(nothing)"]


def without_secrets(text: str) -> str:
    """What the agent or its model says: an endpoint repeats the key that it refuses."""
    return redact(text, secrets_of_env())


def secrets_of_env() -> set[str]:
    """Values whose names say that they are secret: they must not leave through a log line."""
    try:
        text = MANAGED_ENV.read_text(encoding="utf-8")
    except OSError:
        return set()
    return set(re.findall(r"^[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD|HASH)[A-Z0-9_]*='([^'\n]+)'$", text, re.MULTILINE))
