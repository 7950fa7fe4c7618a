"""The engine's messages without the Pulumi SDK around them, and properties as they are written in them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from google.protobuf.struct_pb2 import Struct

_SDK = "pulumi.runtime.proto"
_APART = "pulumi_messages"


class _Unknown:
    """Stands for an input that has no value yet."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()
_UNKNOWN_TEXT = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
"""The engine's text for an unknown string; the SDK writes it for any value."""
_UNKNOWN_TEXTS = frozenset(
    {
        _UNKNOWN_TEXT,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)
"""Those for a string, a truth value, a number, a list, an object (pulumi/sdk 3.276, go/common/resource/sig/sig.go)."""
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - what marks one
_OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
"""Of an output: without a value it is not known; it may be secret."""


def provider_messages() -> Any:
    """The module of what the engine asks a provider, and is answered."""
    return _module("provider_pb2")


def engine_messages() -> Any:
    """The module of what the engine is told."""
    return _module("engine_pb2")


def _module(name: str) -> ModuleType:
    """One of the SDK's modules of messages; the SDK itself is not imported for it, as ``import`` would."""
    if _SDK in sys.modules:
        return importlib.import_module(f"{_SDK}.{name}")
    if _APART not in sys.modules:
        found = importlib.util.find_spec("pulumi")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("the package pulumi is not installed")
        package = ModuleType(_APART)
        package.__path__ = [str(Path(place) / "runtime" / "proto") for place in found.submodule_search_locations]
        sys.modules[_APART] = package
    return importlib.import_module(f"{_APART}.{name}")


def props_of(struct: Struct, *, unknowns: bool = False) -> dict[str, Any]:
    """A message's properties. What is null is not there at all, nor what is unknown, unless ``unknowns``.

    A number is a float.
    """
    found = {key: _value_of(value, unknowns=unknowns) for key, value in struct.fields.items()}
    return {key: value for key, value in found.items() if value is not None}


def _value_of(value: Any, *, unknowns: bool) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        fields = value.struct_value.fields
        if _SIGNATURE in fields:
            if fields[_SIGNATURE].string_value == _OUTPUT and "value" not in fields:
                return UNKNOWN if unknowns else None
            if fields[_SIGNATURE].string_value in (_SECRET, _OUTPUT):
                return _value_of(fields["value"], unknowns=unknowns)
            raise ValueError("an asset or a reference can't be a property here")
        return props_of(value.struct_value, unknowns=unknowns)
    if kind == "list_value":
        return [_value_of(item, unknowns=unknowns) for item in value.list_value.values]
    if kind == "string_value" and value.string_value in _UNKNOWN_TEXTS:
        return UNKNOWN if unknowns else None
    return None if kind in (None, "null_value") else getattr(value, kind)


def holds_secret(value: Any) -> bool:
    """Whether a message's value is a secret, or has one in it."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return any(map(holds_secret, value.list_value.values))
    if kind != "struct_value":
        return False
    fields = value.struct_value.fields
    mark = fields[_SIGNATURE].string_value if _SIGNATURE in fields else ""
    return (
        mark == _SECRET or (mark == _OUTPUT and fields["secret"].bool_value) or any(map(holds_secret, fields.values()))
    )


def sealed(struct: Struct, like: Sequence[Struct]) -> Struct:
    """The struct, with those of its values marked as secret that hold one in one of the others."""
    secret = {key for other in like for key, value in other.fields.items() if holds_secret(value)}
    for key in secret & set(struct.fields):
        inner = struct.fields[key].__class__()
        inner.CopyFrom(struct.fields[key])
        struct.fields[key].struct_value.fields[_SIGNATURE].string_value = _SECRET
        struct.fields[key].struct_value.fields["value"].CopyFrom(inner)
    return struct


def struct_of(props: Mapping[str, Any]) -> Struct:
    """The reverse."""
    from google.protobuf.struct_pb2 import Struct  # noqa: PLC0415 - the messages have imported it

    struct = Struct()
    struct.update({key: _plain(value) for key, value in props.items() if value is not None})
    return struct


def _plain(value: Any) -> Any:
    if value is UNKNOWN:
        return _UNKNOWN_TEXT
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return value
