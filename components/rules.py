"""What the settings' rules are made of: refusals with a remedy, the engine's texts as values, one base model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


def refuse(rule: str, remedy: str) -> PydanticCustomError:
    """A fault: which rule is broken, and what to do about it."""
    # Braces would be taken for a format field.
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "remedy": remedy})


def matches(pattern: str, rule: str, remedy: str) -> Callable[[str], str]:
    """A validator: the whole text has to match."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise refuse(rule, remedy)
        return value

    return check


def absolute_path(value: str) -> str:
    """A validator: a path in a guest or on a node, in its plain form."""
    path = PurePosixPath(value)
    if not path.is_absolute() or ".." in path.parts or "," in value or str(path) != value or value == "/":
        raise refuse(
            "must be an absolute path below /, without .., a comma or a slash at its end", "write it like /mnt/hermes"
        )
    return value


def list_from_json(value: object) -> object:
    """Pulumi hands arrays over as JSON text."""
    return _from_json(value, list, "must be a list", "write it as a YAML list, one item a line")


def object_from_json(value: object) -> object:
    """Pulumi hands objects over as JSON text."""
    return _from_json(value, dict, "must be an object", "write it as YAML keys and values, one a line")


def _from_json(value: object, kind: type, rule: str, remedy: str) -> object:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise refuse(rule, remedy) from None
        if not isinstance(value, kind):
            raise refuse(rule, remedy)
    return value


def keys_with(prefix: str) -> Callable[[str], str]:
    """The alias generator of a model whose keys begin with ``prefix``: ``agent``, ``model_url`` -> agentModelUrl."""

    def key(field: str) -> str:
        first, *rest = field.split("_")
        words = (
            [first, *(word.capitalize() for word in rest)]
            if not prefix
            else [word.capitalize() for word in [first, *rest]]
        )
        return prefix + "".join(words)

    return key


class SettingsModel(BaseModel):
    """Base of all settings: frozen, and no key that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False, hide_input_in_errors=True)
