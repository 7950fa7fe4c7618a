"""By which names the engine knows what is declared: the program's own, or those of the package for other programs.

A stack of this program has the names from before, so that it goes on. The package (components/package.py) is one
plugin with one name, and its resources have to be called by it, or the engine would not ask that plugin for them.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKAGE_NAME = "hermes-homelab"


GUARD_SAYS = "owns-the-agents-data--to-remove-it-read-docs-operations-md-Remove-everything-for-good"
"""The end of the guard's name: the one word of ours in the engine's refusal of a destroy without a refresh."""


@dataclass(frozen=True)
class Naming:
    """What stands before the kind of a component, and before that of a resource."""

    component: str
    resource: str


PROGRAM = Naming(f"{PACKAGE_NAME}:components:", "pulumi-python:dynamic/")
PACKAGE = Naming(f"{PACKAGE_NAME}:index:", f"{PACKAGE_NAME}:")


def kind_of(type_: str) -> str:
    """A resource's kind, FOLDER:NAME, from its type; any other type is answered as it is."""
    for prefix in (PROGRAM.resource, PACKAGE.resource):
        if type_.startswith(prefix):
            return type_.removeprefix(prefix)
    return type_
