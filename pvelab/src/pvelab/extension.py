"""The seam: what another project adds to a lab, and how its command is named.

A project with services of its own on the lab's network, or with an account of its own, derives a class and hands an
object of it to :func:`pvelab.cli.main`::

    class WithRegistry(Plain):
        program, module, ports = "my-lab", "mine.lab", (5000,)

        def start(self, lab, address, stack, say):
            registry = Registry(address or "127.0.0.1", 5000)
            registry.start()
            stack.callback(registry.stop)
            return {}

    if __name__ == "__main__":      # mine/lab.py
        end_with(lambda: pvelab.cli.main(extension=WithRegistry()))

One that keeps more in the state folder, or says more about itself, has a :class:`pvelab.instance.Lab` of its own, too:
then it derives from ``Extension[ThatLab]``.
"""

# ruff: noqa: ARG002 - the defaults use none of what they are given

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pvelab.config import Account
from pvelab.instance import Lab, default_folder

Say = Callable[[str], None]
AnyLab = TypeVar("AnyLab", bound=Lab)


class Extension(Generic[AnyLab]):
    """Each part but :meth:`lab` has a default that adds nothing. A LabError is shown by its text alone."""

    program: ClassVar[str] = "pvelab"
    """What a person types."""
    module: ClassVar[str] = "pvelab"
    """``python -m MODULE`` is the same command: the daemon's process is started by it."""
    about: ClassVar[str] = "A Proxmox VE on this machine, to test against."
    ports: ClassVar[tuple[int, ...]] = ()
    """TCP ports on the bridge's address that guests may reach."""
    account: ClassVar[Account] = Account()

    def lab(self, folder: Path | None) -> AnyLab:
        """The lab in a folder; None: where it lies when nobody says."""
        raise NotImplementedError

    def add_arguments(self, up: ArgumentParser) -> None:
        """Options of ``up``."""

    def build(self, lab: AnyLab, options: Namespace, say: Say) -> None:
        """Make what is needed before the daemon starts; in the foreground, so that one sees what takes time."""

    def missing(self, lab: AnyLab, options: Namespace) -> str | None:
        """What the options ask for and the lab, which is up, does not have, as a noun; None when it has all."""
        return None

    def start(self, lab: AnyLab, address: str | None, stack: contextlib.ExitStack, say: Say) -> Mapping[str, Any]:
        """Start the services, in the daemon's process, and have ``stack`` stop them. Answers fields of the lab's Ready.

        ``address``: the bridge's; None in a lab without containers.
        """
        return {}

    def stop(self, lab: AnyLab) -> None:
        """End what outlives the daemon; as root, after the guests. There may be nothing to end."""

    def after_up(self, lab: AnyLab) -> None:
        """For what needs a lab that answers."""

    def environment(self, lab: AnyLab) -> Mapping[str, str | None]:
        """Variables beside pvelab's own; None: not there."""
        return {}

    def status(self, lab: AnyLab) -> Iterable[tuple[str, str]]:
        """Rows for ``status``: what, and how it is."""
        return ()


class Plain(Extension[Lab]):
    """pvelab as it is."""

    def lab(self, folder: Path | None) -> Lab:
        return Lab(folder or default_folder())
