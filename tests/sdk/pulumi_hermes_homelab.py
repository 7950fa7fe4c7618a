"""Stands for what ``pulumi package add`` generates of the package, where the CLI's Python host can't generate.

The classes of package/schema.json, with inputs and outputs in Python's spelling, registered as generated ones are.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import pulumi

SCHEMA: dict[str, Any] = json.loads((Path(__file__).parents[2] / "package" / "schema.json").read_text())


def pythons(key: str) -> str:
    """A property's name as Python has it."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


class Component(pulumi.ComponentResource):
    """A component of the package; ``token``: its type."""

    token: ClassVar[str]

    def __init__(self, resource_name: str, opts: pulumi.ResourceOptions | None = None, **given: Any) -> None:
        declared = SCHEMA["resources"][self.token]
        keys = {pythons(key): key for key in declared["inputProperties"]}
        for name in [name for name in given if name not in keys]:
            raise TypeError(f"{type(self).__name__} has no input {name}")
        props: dict[str, Any] = dict.fromkeys(declared["properties"])
        for name, value in given.items():
            secret = value is not None and declared["inputProperties"][keys[name]].get("secret")
            props[keys[name]] = pulumi.Output.secret(value) if secret else value
        opts = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(version=SCHEMA["version"]))
        super().__init__(self.token, resource_name, props, opts, remote=True)

    def __getattr__(self, name: str) -> Any:
        for key in SCHEMA["resources"][self.token]["properties"]:
            if pythons(key) == name and key in self.__dict__:
                return self.__dict__[key]
        raise AttributeError(name)


class PetStorage(Component):
    token = "hermes-homelab:index:PetStorage"


class Cattle(Component):
    token = "hermes-homelab:index:Cattle"


class Attachment(Component):
    token = "hermes-homelab:index:Attachment"
