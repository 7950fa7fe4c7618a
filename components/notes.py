"""What a guest's notes in Proxmox tell a person: whose it is, and what may be done with it by hand."""

from __future__ import annotations

from settings.stack import CattleStack, PetStack, Stack
from settings.version import version

_BY_HAND = "**By hand, as you like:**"
_BY_SETTINGS = "**By the settings only:**"
_NEVER = "**Never by hand:**"


def pet_notes(stack: PetStack) -> str:
    """What may be done with a pet, in Markdown."""
    return _notes(
        stack,
        f"{_BY_HAND} start and stop it, unless `petStarted` is set; backup jobs (vzdump, Proxmox Backup Server); tags "
        "and notes of your own.",
        f"{_BY_SETTINGS} cores, memory, its volumes and their sizes. `pulumi up` sets back what differs.",
        f"{_NEVER} destroy it, unmount or move its volumes, take its protection away, change the line `claim`.",
    )


def cattle_notes(stack: CattleStack) -> str:
    """What may be done with a cattle, in Markdown."""
    never = "snapshots, migration" if stack.cattle.volume else "migration"
    return _notes(
        stack,
        f"{_BY_HAND} stop, start and reboot it (the next `pulumi up` starts it again), backup jobs, tags and notes of "
        "your own.",
        f"{_BY_SETTINGS} cores, memory, mounts, start on boot, all that is inside but the agent's home. `pulumi up` "
        "sets back what differs, and whatever is installed by hand is lost when the guest is made again.",
        f"{_NEVER} {never}, `pct destroy` (`pulumi destroy` does it), change the line `claim`.",
    )


def image_notes(stack: CattleStack) -> str:
    """What may be done with a golden template, in Markdown."""
    return _notes(
        stack,
        f"{_BY_HAND} look at it, clone it for a trial of your own.",
        f"{_NEVER} change it or its notes, destroy it: `pulumi up --stack {stack.name}` makes the next one and removes "
        "this one.",
    )


def _notes(stack: Stack, *rules: str) -> str:
    where = f"[documentation]({stack.docs_url})" if stack.docs_url else "documentation: `docs/operations.md`"
    head = (
        f"Stack `{stack.name}`, made by hermes-homelab {version()}: change the stack's settings, then "
        f"`pulumi up --stack {stack.name}`; {where}."
    )
    return "\n".join([head, "", *(f"- {rule}" for rule in rules)])
