"""The golden template: what an image stack makes, and a cattle is cloned from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from settings.kinds import Vmid
from settings.section import Section, setting


class ImageSettings(Section):
    """Where golden templates are, and how many of them stay."""

    vmid: Vmid = setting(
        "imageVmid", 9000, "The lowest VMID of the golden templates: each new one takes the next free number from here."
    )
    kept: Annotated[int, Field(ge=0, le=50)] = setting(
        "imageKept",
        1,
        "How many older golden templates are kept beside the newest. One that a disk of another guest depends on is "
        "kept in any case.",
    )
