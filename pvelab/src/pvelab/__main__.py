"""``python -m pvelab``: the command."""

import sys

from pvelab.cli import main

if __name__ == "__main__":
    sys.exit(main())
