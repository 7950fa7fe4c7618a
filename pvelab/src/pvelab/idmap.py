"""The id range of unprivileged guests: as on Proxmox, a guest's root is the host's 100000."""

from __future__ import annotations

from collections.abc import Sequence

HOST_BASE = 100000
COUNT = 65536


def in_user_namespace(command: Sequence[str]) -> list[str]:
    """``command`` as the root of the guests' id range, so that files it makes have the owners a guest expects."""
    return ["lxc-usernsexec", "-m", f"b:0:{HOST_BASE}:{COUNT}", "--", *command]
