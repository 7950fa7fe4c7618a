"""``python -m pvelab.conformance``: the same as ``pvelab conformance``."""

import sys

from pvelab.conformance.command import main

if __name__ == "__main__":
    sys.exit(main())
