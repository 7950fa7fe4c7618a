"""Settings -> pet or cattle -> exports."""

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
