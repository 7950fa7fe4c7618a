"""Figures of an update: how long the agent is offline, and for what. No test: a figure depends on the machine.

    .cache/venv/bin/python -m tests.e2e.measure_updates [TIMES]

Switches TIMES (4) between two builds of the same code in a container of the lab, and prints each stage's seconds,
counted from the moment at which the services were told to stop.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

from provisioning import BaselineInputs, render_baseline
from tests.e2e.phase_guest import Guest, a_guest, made_of

BUILD = "/opt/hermes/0.19.0"
COMPILE = "-I -X pycache_prefix=/var/cache/hermes/pycache -m compileall -q -j 0"
# What systemd and the services say, and which stage it ends.
STAGES = {
    "dashboard stopped": r"systemd.*Stopped hermes-dashboard",
    "gateway stopped": r"systemd.*Stopped hermes-gateway",
    "gateway started": r"systemd.*Started hermes-gateway",
    "dashboard started": r"systemd.*Started hermes-dashboard",
    "dashboard answers": r"HERMES_DASHBOARD_READY",
}


def stages(journal: str) -> dict[str, float]:
    """Seconds from the first order to stop to the last line of each stage, of a journal with `short-unix` times."""
    lines = [(float(line.split()[0]), line) for line in journal.splitlines() if re.match(r"\d+\.\d+ ", line)]
    began = next(at for at, line in lines if re.search(r"systemd.*Stopping hermes-", line))
    found = {name: [at for at, line in lines if re.search(pattern, line)] for name, pattern in STAGES.items()}
    return {name: round(times[-1] - began, 1) for name, times in found.items() if times}


def switch(guest: Guest, directory: str) -> None:
    now = guest.shell("date +%s").strip()
    outputs = guest.run(guest.configure(agent_directory=directory))
    journal = guest.shell(
        f"journalctl --since @{now} --unit 'hermes-gateway' --unit 'hermes-dashboard' --output short-unix --no-pager"
    )
    load = os.getloadavg()[0]
    told = ", ".join(f"{name} {seconds}" for name, seconds in stages(journal).items())
    sys.stdout.write(f"offline {outputs['offline_seconds']} s (load {load:.1f} on {os.cpu_count()} cores): {told}\n")
    sys.stdout.flush()


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with tempfile.TemporaryDirectory(prefix="measure-updates-") as folder, a_guest(Path(folder)) as guest:
        guest.run(render_baseline(BaselineInputs()))
        guest.run(guest.agent())
        guest.run(guest.configure())
        other = made_of(guest.shell, BUILD, "0.19.5", {})
        # As agent.sh does with a new build.
        guest.shell(f"runuser -u hermes -- {other}/venv/bin/python {COMPILE} {other}/venv/lib", timeout_s=900)
        for number in range(times):
            switch(guest, BUILD if number % 2 else other)


if __name__ == "__main__":
    main()
