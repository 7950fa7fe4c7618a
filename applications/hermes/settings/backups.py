"""The backups that the cattle makes of the agent's data, on the volume."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from settings.kinds import matches, once
from settings.section import Section, setting

Time = Annotated[str, matches(r"([01]\d|2[0-3]):[0-5]\d", "must be a time of day", "write it like 03:30")]


class BackupSettings(Section):
    """An update and scripts/agent backup make backups, and so does a timer in the cattle."""

    times: Annotated[list[Time], AfterValidator(once)] = setting(
        "agentBackupTimes",
        ["03:30"],
        "The times of day at which the cattle makes a backup of the agent's data, in its own time zone (UTC unless you "
        "change it). []: none.",
    )
    scheduled_kept: Annotated[int, Field(ge=1, le=1000)] = setting(
        "agentScheduledBackupsKept", 7, "The number of those that stay on the volume."
    )
    kept: Annotated[int, Field(ge=1, le=1000)] = setting(
        "agentBackupsKept",
        5,
        "The number of other backups that stay on the volume. An update makes one, and so does scripts/agent backup.",
    )
    home: bool = setting(
        "agentBackupHome",
        True,
        "Whether these backups have the whole home, with the workspace. false: the agent's state directory only. The "
        "backup before an update never has more.",
    )
