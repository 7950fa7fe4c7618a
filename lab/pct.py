"""``python -m lab.pct``: a node's ``pct``, for the lab that ``HERMES_LAB_DIR`` names, or the checkout's own."""

import sys

from lab.instance import Lab
from pvelab.ending import end_with
from pvelab.pct import main

if __name__ == "__main__":
    end_with(lambda: main(["--lab", str(Lab.default().state_dir), *sys.argv[1:]]))
