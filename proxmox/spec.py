"""Desired state as a value: made once, judged by preflight, shown by preview, kept by a resource, carried out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import TypeAdapter


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
    def recorded_in(cls, outputs: Mapping[str, Any]) -> Any:
        """What a resource's outputs record; None where they record nothing."""
        return next((outputs[key] for key in cls.RECORDED_AS if outputs.get(key) is not None), None)


_ADAPTERS: dict[type[Spec], TypeAdapter[Any]] = {}


def _adapter(kind: type[Spec]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
