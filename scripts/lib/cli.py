"""The Pulumi CLI as the commands of this folder call it."""

from __future__ import annotations

import os
from pathlib import Path


def pulumi_environment(root: Path) -> dict[str, str]:
    """With the CLI on PATH, or else the checkout's own; without what this program's own Python was started with."""
    found = {**os.environ}
    found["PATH"] = f"{root / '.cache' / 'pulumi-cli' / 'bin'}{os.pathsep}{found.get('PATH', '')}"
    found.setdefault("PULUMI_HOME", str(root / ".cache" / "pulumi-home"))
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        found.pop(name, None)
    return found
