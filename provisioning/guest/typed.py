"""What goes into the guest, and what its programs write down for each other: the same types on both sides.

The host makes them and sends `as_json` of them; a program in the guest reads them back with `read` (its inputs, where
each fault is an error) or `record` (a file of an earlier run, perhaps of another version of this program, where what
is missing has its default and what is not known is left out). Standard library only, as all of this package.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from provisioning.guest.common import NO_JSON, Refusal

T = TypeVar("T")


def as_json(value: Any) -> str:
    """The JSON text that `read` and `record` take."""
    return json.dumps(asdict(value), indent=1, sort_keys=True)


def read(kind: type[T], text: str, where: str = "inputs.json") -> T:
    """What `as_json` has written. Refusal for anything else: it names the field, and never a value."""
    try:
        data = json.loads(text)
    except ValueError:
        raise Refusal(f"{where} is no JSON") from None
    return of(kind, data, where)


def record(kind: type[T], path: Path) -> T | None:
    """A record that this program keeps; None where there is none, or none that can be read."""
    try:
        return of(kind, json.loads(path.read_text(encoding="utf-8")), str(path), strict=False)
    except (OSError, *NO_JSON, Refusal):
        return None


def of(kind: type[T], data: object, where: str, *, strict: bool = True) -> T:
    """A dataclass from what JSON makes of it. Refusal for another form, and where it is `strict` for unknown fields."""
    if not isinstance(data, Mapping):
        raise Refusal(f"{where} is {type(data).__name__}, expected the fields of {kind.__name__}")
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    if strict and (more := sorted(map(str, data.keys() - known.keys()))):
        raise Refusal(f"{where} has no field {', '.join(more)}")
    needed = [name for name, each in known.items() if each.default is MISSING and each.default_factory is MISSING]
    if missing := [name for name in needed if name not in data]:
        raise Refusal(f"{where} lacks {', '.join(missing)}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], data[name], f"{where}.{name}", strict) for name in known if name in data})


def _value(kind: Any, data: object, where: str, strict: bool) -> Any:
    if get_origin(kind) is types.UnionType:
        if data is None and types.NoneType in get_args(kind):
            return None
        kind = next(each for each in get_args(kind) if each is not types.NoneType)
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return of(kind, data, where, strict=strict)
    if origin is tuple and isinstance(data, list | tuple):
        return tuple(_value(arguments[0], each, f"{where}[{at}]", strict) for at, each in enumerate(data))
    if origin is dict and isinstance(data, dict):
        return {str(key): _value(arguments[1], each, f"{where}.{key}", strict) for key, each in data.items()}
    if kind is Any or type(data) is kind or (kind is float and type(data) is int):
        return data
    raise Refusal(f"{where} is {type(data).__name__}, expected {getattr(kind, '__name__', kind)}")
