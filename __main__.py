"""Settings -> pet or cattle -> exports."""

import pulumi

from components.program import run

try:
    for name, value in run().items():
        pulumi.export(name, value)
except Exception as error:
    from components.errors import PERSONAL_ERRORS

    if isinstance(error, PERSONAL_ERRORS):
        raise pulumi.RunError(str(error)) from None
    raise
