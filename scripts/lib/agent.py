"""What runs in a stack's guest, on the command line: a login, and the verbs of the stack's application."""

from __future__ import annotations

import argparse
import contextlib
import sys

from applications import NAMES, Application, application
from provisioning.console import Guest, guest_of, hand_over
from provisioning.errors import ProvisioningError
from scripts.lib.ending import end_with


def application_of(guest: Guest | None) -> Application:
    """That of the stack; the first one, where there is no stack to ask or one of an earlier release."""
    every = [application(name) for name in NAMES]
    return next((one for one in every if guest and one.component == guest.component), every[0])


def parser_of(made: Application) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/agent", description="Talk to the agent of a stack.")
    parser.add_argument("--stack", default="cattle", help="the cattle stack (cattle)")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, command in made.commands.items():
        command.arguments(verbs.add_parser(name, help=command.help))
    # Everything after it goes to ssh, options included.
    ssh = verbs.add_parser("ssh", help="log in, or run a command there, as root", add_help=False, prefix_chars="\0")
    ssh.add_argument("words", nargs="*")
    return parser


def stack_in(arguments: list[str]) -> str:
    """The stack that is named, before it is known which verbs there are."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--stack", default="cattle")
    return str(parser.parse_known_args(arguments)[0].stack)


def guest_for_verbs(arguments: list[str]) -> Guest | None:
    """The guest, where the verbs depend on it. What can't be read is said where it is needed."""
    if len(NAMES) > 1:
        with contextlib.suppress(ProvisioningError):
            return guest_of(stack_in(arguments))
    return None


def main() -> int:
    guest = guest_for_verbs(sys.argv[1:])
    made = application_of(guest)
    options = parser_of(made).parse_args()
    try:
        command = made.commands.get(options.verb)
        if command is not None and command.alone:
            return command.run(None, options)
        guest = guest or guest_of(options.stack)
        if command is not None:
            return command.run(guest, options)
        hand_over(guest.target, *options.words)
    except ProvisioningError as error:
        print(f"agent: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    end_with(main)
