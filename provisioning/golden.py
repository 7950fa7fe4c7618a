"""The last phase of a golden template: it takes out what is one machine's alone (scripts/seal.sh)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provisioning.plans import PhasePlan, digest_of, plan_of, scripts, text_of

FORMAT = 1
"""Another number is another template, though nothing else has changed."""


def seal(home: str) -> PhasePlan:
    """What is done last. `home`: the application's, whose content is no part of a template."""
    script = text_of("provisioning/scripts/seal.sh")
    more = scripts("run.sh", "host-key.sh", "announce.sh")
    return plan_of("seal", script, {"HOME_DIR": home}, declared={"home": home}, more=more)


def image_digest(template: str, disk: int, keys: Sequence[str], plans: Iterable[PhasePlan]) -> str:
    """Of all that goes into a golden template: the container template, the size of the disk in GB, who may log in, and
    the phases with their scripts.
    """
    phases = [[plan.name, plan.digest] for plan in plans]
    return digest_of({"format": FORMAT, "template": template, "disk": disk, "keys": sorted(keys), "phases": phases})
