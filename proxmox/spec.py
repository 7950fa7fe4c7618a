"""Desired state as a value: made once, judged by preflight, shown by preview, kept by a resource, carried out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self, get_type_hints

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo


class Spec:
    """Base of frozen dataclasses that a resource keeps as its properties.

    A field's alias is its name there. `Field(exclude=True)`: a fact or a constant, which is not kept. A field
    `recorded` holds what an earlier run made; RECORDED_AS: the resource's outputs that tell it, the first one that is
    there.
    """

    RECORDED_AS: ClassVar[tuple[str, ...]] = ()

    def to_props(self) -> dict[str, Any]:
        """The fields as JSON values."""
        props: dict[str, Any] = _adapter(type(self)).dump_python(self, mode="json", by_alias=True)
        return props

    @classmethod
    def from_props(cls, props: Mapping[str, Any]) -> Self:
        """The reverse: what is no field is left out, 105.0 is 105. ValidationError where one is missing."""
        spec: Self = _adapter(cls).validate_python({key: value for key, value in props.items() if value is not None})
        return spec

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """What its properties are called; without `recorded`, which nobody declares."""
        hints = get_type_hints(cls, include_extras=True)
        found = {field.name: _in_props(hints[field.name]) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        found.pop("recorded", None)
        return tuple(alias or name for name, alias in found.items() if alias is not None)

    @classmethod
    def recorded_in(cls, outputs: Mapping[str, Any]) -> Any:
        """What a resource's outputs record; None where they record nothing."""
        return next((outputs[key] for key in cls.RECORDED_AS if outputs.get(key) is not None), None)


def _in_props(annotation: Any) -> str | None:
    """A field's alias; empty where it has none, None where the field is not kept."""
    told = [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, FieldInfo)]
    if any(part.exclude for part in told):
        return None
    return next((part.alias for part in told if part.alias), "")


_ADAPTERS: dict[type[Spec], TypeAdapter[Any]] = {}


def _adapter(kind: type[Spec]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
