"""Settings -> pet or cattle -> exports."""

# ruff: noqa: E402 - imports are most of what a run without changes does
import gc

# They leave nothing to collect, and looking for it took a tenth of the program's CPU.
gc.disable()

import sys

import pulumi

from components.program import run

TOLD = 32
"""The exit status by which Pulumi's Python host knows that the error has been shown, and adds no line of its own."""

try:
    for name, value in run().items():
        pulumi.export(name, value)
except Exception as error:
    from components.errors import PERSONAL_ERRORS
    from provisioning.terminal import visible
    from settings.subjects import explained

    if isinstance(error, PERSONAL_ERRORS):
        pulumi.log.error(visible(explained(error)))
        sys.exit(TOLD)
    raise
