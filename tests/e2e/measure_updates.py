"""Figures of an update: how long the agent is offline, and for what. No test: a figure depends on the machine.

    .cache/venv/bin/python -m tests.e2e.measure_updates [TIMES]

Switches TIMES (4) between upstream's two releases in a container of the lab (two builds of one where upstream's tree
can't be had), and prints each stage's seconds, counted from the moment at which the services were told to stop.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.lib.ending import end_with
from tests.e2e.phase_guest import Guest, a_guest, made_of

# What systemd and the services say, and which stage it ends.
STAGES = {
    "gateway stopped": r"systemd.*Stopped hermes-gateway",
    "gateway started": r"systemd.*Started hermes-gateway",
}


def stages(journal: str) -> dict[str, float]:
    """Seconds from the first order to stop to the last line of each stage, of a journal with `short-unix` times."""
    lines = [(float(line.split()[0]), line) for line in journal.splitlines() if re.match(r"\d+\.\d+ ", line)]
    began = next(at for at, line in lines if re.search(r"systemd.*Stopping hermes-", line))
    found = {name: [at for at, line in lines if re.search(pattern, line)] for name, pattern in STAGES.items()}
    return {name: round(times[-1] - began, 1) for name, times in found.items() if times}


def switch(guest: Guest, directory: str, version: str) -> None:
    now = guest.shell("date +%s").strip()
    outputs = guest.run(guest.configure(directory))
    journal = guest.shell(f"journalctl --since @{now} --unit 'hermes-gateway' --output short-unix --no-pager")
    load = os.getloadavg()[0]
    told = ", ".join(f"{name} {seconds}" for name, seconds in stages(journal).items())
    sys.stdout.write(
        f"to {version}: offline {outputs['offline_seconds']} s (load {load:.1f} on {os.cpu_count()} cores): {told}\n"
    )
    sys.stdout.flush()


def two_builds(guest: Guest) -> tuple[tuple[str, str], tuple[str, str]]:
    """Folder and version of the build that runs and of another: upstream's two releases, or one of them twice."""
    source = guest.source
    releases = (source.previous, source.newest) if source.previous is not None else (source.newest,)
    found = []
    for release in releases:
        given: dict[str, Any] = {
            "agentTag": release.tag,
            "agentCommit": release.commit,
            "agentVersion": release.version,
        }
        directory = str(guest.run(guest.agent(**given))["directory"])
        found.append((directory, release.version))
        if len(found) == 1:
            guest.run(guest.configure(directory))
    if len(found) == 1:
        found.append((made_of(guest.shell, found[0][0], "0.19.5", {}), "0.19.5"))
    return found[0], found[1]


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with (
        tempfile.TemporaryDirectory(prefix="measure-updates-") as folder,
        a_guest(Path(folder)) as guest,
    ):
        guest.run(guest.baseline())
        first, second = two_builds(guest)
        for number in range(times):
            switch(guest, *(first if number % 2 else second))
    return 0


if __name__ == "__main__":
    end_with(main)
