"""What a gateway that is gone has left in the agent's home, and what one that should not be there holds."""

from __future__ import annotations

import os
from pathlib import Path

from applications.hermes.guest.services import units_of, units_present
from provisioning.guest.common import Refusal, as_user, run
from provisioning.guest.words import said

LOCKS = Path("/proc/locks")
# Its breaker against a storm of restarts counts these, and sleeps up to five minutes after six of them within two
# (facts hermes 1, "Gateway"): starts that the operator asked for are no storm.
START_LEDGER = "gateway-starts.log"


def holder_of(locks: str, device: int, inode: int) -> int | None:
    """Who holds the flock on a file, from the text of /proc/locks; None when nobody does that this container sees."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks.splitlines():
        words = line.split()
        # "1: FLOCK ADVISORY WRITE 1234 08:02:131 0 EOF"; who waits for it has an arrow in the second place.
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == wanted:
            return int(words[4]) or None
    return None


def refuse_another_gateway(state: str, main_pid: int) -> None:
    """Refuse when a gateway that is not our unit's, whose process is `main_pid`, holds the lock.

    Two gateways on one home ruin its databases (facts hermes 3, issue 35240).
    """
    lock = Path(state, "gateway.lock")
    try:
        found = lock.stat()
    except OSError:
        return
    holder = holder_of(LOCKS.read_text(), found.st_dev, found.st_ino)
    if holder in (None, main_pid):
        return
    if units_of(holder):
        # A child of our own services, not another gateway: it ends with them. They are started afterwards.
        run("systemctl", "stop", *units_present())
        refuse_another_gateway(state, 0)
        return
    try:
        words = Path(f"/proc/{holder}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        words = "ended meanwhile: run again"
    raise Refusal(
        f"another gateway runs on {state}: process {holder} holds {lock}.\n"
        f"It calls itself {said(words)}.\n"
        f"Two gateways on one home ruin its data. End it (kill {holder}), then run again."
    )


def clear(user: str, state: str, unit: str) -> None:
    """Before the gateway is started on purpose: take away what would make it believe that it runs already, or loops.

    `state`: the agent's HERMES_HOME; `unit`: the gateway's. Of a gateway that runs nothing is touched but the ledger.
    """
    main_pid = int(run("systemctl", "show", "--property=MainPID", "--value", unit).strip() or 0)
    refuse_another_gateway(state, main_pid)
    names = [START_LEDGER] if main_pid else [START_LEDGER, "gateway.pid", "gateway.lock"]
    # As its user: root would follow links that the agent has planted.
    remove = 'for name; do [ ! -e "$name" ] && [ ! -L "$name" ] || { rm -rf "$name"; echo "$name"; }; done'
    script = f'set -eu; cd "$1" 2>/dev/null || exit 0; shift; {remove}'
    removed = as_user(user, "sh", "-c", script, "sh", state, *names, told_as=f"clearing up in {state}").split()
    if stale := [name for name in names if name in removed and name != START_LEDGER]:
        print(f"home: removed what a gateway that is gone has left: {', '.join(stale)}")
