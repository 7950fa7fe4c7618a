"""``python -m pvelab.conformance``: the same as ``pvelab conformance``."""

from pvelab.conformance.command import main
from pvelab.ending import end_with

if __name__ == "__main__":
    end_with(main)
