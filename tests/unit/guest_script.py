"""A phase's script, run here with programs that are played."""

from __future__ import annotations

import subprocess
from pathlib import Path


def run_main(job: Path, *interpreter: str, timeout_s: float = 120, **environment: str) -> str:
    """What the job's `main` prints, both ways; its exit status is the last line."""
    done = subprocess.run(
        [*(interpreter or ("bash",)), str(job / "main")],
        env={"HP_JOB": str(job), "PATH": "/usr/bin:/bin", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return f"{done.stdout}{done.returncode}"
