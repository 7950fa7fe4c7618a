"""``python -m pvelab``: the command."""

from pvelab.cli import command

if __name__ == "__main__":
    command()
