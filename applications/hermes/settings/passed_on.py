"""Settings that reach the agent as they are. A mark in a field's type says where; no other place knows the field."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import SecretStr

from settings.section import Section


@dataclass(frozen=True)
class Variable:
    """Marks a setting that the agent reads as this variable of its environment. A list is joined with commas."""

    name: str


@dataclass(frozen=True)
class ConfigKey:
    """Marks a setting that is pinned at this path of the agent's config.yaml, like terminal.timeout.

    An empty text, list or object is not pinned: the key is the user's then. A number or a switch always is.
    """

    path: str


_Mark = TypeVar("_Mark", Variable, ConfigKey)


@dataclass(frozen=True)
class Passed:
    """A marked setting that is set: its section and field, where it goes (`name`), and its value."""

    section: Section
    field: str
    name: str
    value: Any


def variables_of(section: Section) -> Iterator[Passed]:
    """The variables of a section and of those in it, by their marks."""
    for inner, field, mark in _marked(section, Variable):
        value = getattr(inner, field)
        if value:
            given = value if isinstance(value, SecretStr) else ",".join(value) if isinstance(value, list) else value
            yield Passed(inner, field, mark.name, given)


def config_of(section: Section) -> dict[str, Any]:
    """What a section and those in it pin in the agent's config.yaml, by their marks."""
    tree: dict[str, Any] = {}
    for inner, field, mark in _marked(section, ConfigKey):
        value = getattr(inner, field)
        if value in ("", [], {}, None):
            continue
        *above, last = mark.path.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def _marked(section: Section, kind: type[_Mark]) -> Iterator[tuple[Section, str, _Mark]]:
    for field, found in type(section).model_fields.items():
        annotation = found.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _marked(getattr(section, field), kind)
        for mark in found.metadata:
            if isinstance(mark, kind):
                yield section, field, mark
