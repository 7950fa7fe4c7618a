"""What the settings are made of: sections with fields and rules, and the walks over them."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from proxmox.errors import Fault

Kind = Literal["string", "integer", "boolean", "array", "object"]
"""What Pulumi calls the type of a key."""

HIDDEN = "(hidden)"
LONGEST_SHOWN = 80
_LOGIN = re.compile(r"//([^/@\s:]*):[^/@\s]*@")
"""Somebody may put one into a URL that takes none: the fault about it shows the URL."""
UNREAD = object()
"""In place of a value that could not be read."""


class NotRead(Exception):  # noqa: N818 - no fault of its own
    """A rule has asked for a setting that is at fault itself: the rule says nothing then."""


@dataclass(frozen=True)
class OfFile:
    """Marks a type that is read from files of this machine: the setting is a path, or a list of paths.

    A path is no secret, whatever the file holds.
    """

    kind: Kind = "string"


@dataclass(frozen=True)
class OrFile:
    """Marks an object whose values are texts, each of which may be {file: path on this machine} instead."""


def refuse(rule: str, remedy: str) -> PydanticCustomError:
    """A fault: which rule is broken, and what to do about it."""
    # Braces would be taken for a format field.
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "remedy": remedy})


def setting(key: str, default: Any, description: str) -> Any:
    """A field: its flat key, its default as a stack's file would have it, its description in whole sentences."""
    return Field(default=default, alias=key, description=description)


_Rule = TypeVar("_Rule", bound=Callable[[Any], Iterable[Fault]])


def rule(function: _Rule) -> _Rule:
    """Mark a method of a section that yields the faults between its settings.

    It runs whatever else is wrong. Where it reads a setting that is at fault itself, it ends there.
    """
    function.is_rule = True  # type: ignore[attr-defined]
    return function


class Part(BaseModel):
    """Keys and values inside of one setting, an item of a list for one."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


@dataclass
class Reading:
    """One reading of a configuration. `faults` grows; `remedy`: for what has none of its own."""

    remedy: str
    faults: list[Fault] = field(default_factory=list)


class Section(BaseModel):
    """Settings that belong together. A field is a setting (made by `setting`) or a section.

    Read with a `Reading` as context, a value at fault is noted there, and its field stays empty (see `NotRead`).
    `for_secrets`: where a secret goes that somebody has put into a setting which is shown.
    """

    for_secrets: ClassVar[str] = "leave it out here"

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, arbitrary_types_allowed=True
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _noted(cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        found = cls.model_fields[str(info.field_name)]
        if value is UNREAD:
            return value
        if not isinstance(info.context, Reading):
            return handler(_decoded(value, found))
        try:
            return handler(_decoded(value, found))
        except ValidationError as error:
            info.context.faults += _faults_of(error, found, info.context.remedy)
        except PydanticCustomError as error:
            shown = HIDDEN if is_secret(found) else _shown(value)
            info.context.faults.append(Fault(str(found.alias), shown, *_words(error.context or {})))
        return UNREAD

    def model_post_init(self, _context: Any, /) -> None:
        for name in [name for name, value in self.__dict__.items() if value is UNREAD]:
            del self.__dict__[name]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in type(self).model_fields:
                raise NotRead(name)
            return super().__getattr__(name)

    def fault(self, name: str, rule: str, remedy: str, value: object = None) -> Fault:
        """A fault of the field `name`. `value`: what to show in place of the field's."""
        found = type(self).model_fields[name]
        shown = getattr(self, name) if value is None else value
        hidden = HIDDEN if shown else ""
        return Fault(str(found.alias), _shown(hidden if is_secret(found) else shown), rule, remedy)


@dataclass(frozen=True)
class Output:
    """One output of a stack.

    since: the first version that has it; stable: no later version changes its meaning or its type.
    """

    kind: Kind
    description: str
    since: str = "0.1.0"
    stable: bool = True
    secret: bool = False

    @property
    def empty(self) -> Any:
        """What is told where there is nothing to tell."""
        return {} if self.kind == "object" else ""


# --- reading ------------------------------------------------------------------------------------

_Section = TypeVar("_Section", bound=Section)


def read_section(model: type[_Section], config: Mapping[str, Any], reading: Reading, **given: Any) -> _Section:
    """Read a section, those in it included, and note each value that is at fault alone.

    `given`: fields that are no settings; a class, for a field with a choice of sections.
    """
    values: dict[str, Any] = {}
    for name, found in model.model_fields.items():
        chosen = given.get(name, found.annotation)
        if isinstance(chosen, type) and issubclass(chosen, Section):
            values[name] = read_section(chosen, config, reading)
        elif name in given:
            values[name] = chosen
        elif found.alias and found.alias in config:
            values[found.alias] = config[found.alias]
    return model.model_validate(values, context=reading)


def broken_rules(section: Section) -> Iterator[Fault]:
    """The faults between settings: of the sections inside first."""
    for value in section.__dict__.values():
        if isinstance(value, Section):
            yield from broken_rules(value)
    members = ((name, member) for base in reversed(type(section).__mro__) for name, member in vars(base).items())
    for name in dict.fromkeys(name for name, member in members if getattr(member, "is_rule", False)):
        with contextlib.suppress(NotRead):
            yield from getattr(section, name)()


def _decoded(value: Any, found: FieldInfo) -> Any:
    """Pulumi hands lists and objects over as JSON text."""
    wanted = kind(found) if found.alias else "string"
    if wanted not in ("array", "object"):
        return value
    which, remedy = {
        "array": ("a list", "write it as a YAML list, one item a line"),
        "object": ("an object", "write it as YAML keys and values, one a line"),
    }[wanted]
    decoded = value
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            decoded = json.loads(value)
    if not isinstance(decoded, list if wanted == "array" else dict):
        raise refuse(f"must be {which}", remedy)
    return decoded


def _faults_of(error: ValidationError, found: FieldInfo, remedy: str) -> Iterator[Fault]:
    """Pydantic's findings in this project's words, without the value of a secret."""
    for each in error.errors(include_url=False):
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in each["loc"])
        context = each.get("ctx", {})
        said, do = _words(context) if each["type"] == "rule" else (_plain(each["msg"]), remedy)
        # A key that is not known may hold anything, a secret too: an API key beside a provider's address.
        hidden = is_secret(found) or each["type"] == "extra_forbidden"
        yield Fault(f"{found.alias}{place}", HIDDEN if hidden else _shown(each["input"]), said, do)


def _words(context: Mapping[str, Any]) -> tuple[str, str]:
    return str(context["rule"]), str(context["remedy"])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "(several keys)"
    text = "(empty)" if value in ("", None) else _LOGIN.sub(r"//\1:***@", str(value))
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _plain(message: str) -> str:
    return (
        message.replace("Input should be", "must be")
        .replace("Field required", "is missing")
        .replace("String should have at least 1 character", "must not be empty")
    )


# --- what is known of a field -------------------------------------------------------------------


def of_file(found: FieldInfo) -> OfFile | None:
    """The mark of a setting that is read from files; None where it is not."""
    return next((each for each in found.metadata if isinstance(each, OfFile)), None)


def kind(found: FieldInfo) -> Kind:
    """What Pulumi calls the type of a setting."""
    if (marked := of_file(found)) is not None:
        return marked.kind
    annotation = found.annotation
    origin = get_origin(annotation) or annotation
    kinds: dict[Any, Kind] = {bool: "boolean", int: "integer", list: "array", dict: "object"}
    return kinds.get(origin, "string")


def is_secret(found: FieldInfo) -> bool:
    """Whether a setting is stored with --secret: what holds a SecretStr, unless it is read from a file."""
    return of_file(found) is None and _holds_secret(found.annotation)


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_holds_secret, get_args(annotation)))


def default_of(model: type[Section], name: str) -> Any:
    """The default of a section's setting."""
    return model.model_fields[name].default


def is_tree(found: FieldInfo) -> bool:
    """Whether there are keys inside of a setting's value."""
    inner = get_args(found.annotation)
    return kind(found) == "object" or any(isinstance(each, type) and issubclass(each, Part) for each in inner)


def own_settings(model: type[Section]) -> dict[str, FieldInfo]:
    """The settings of a section by key, without those of a base or of sections inside."""
    own = (found for name, found in model.model_fields.items() if name in inspect.get_annotations(model))
    return {found.alias: found for found in own if found.alias}


def json_schemas(sections: Iterable[type[Section]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of each setting of these sections by its key, and the definitions that they refer to."""
    found: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for section in sections:
        made = section.model_json_schema(ref_template="#/definitions/{model}")
        definitions |= made.get("$defs", {})
        found |= {key: made["properties"][key] for key in own_settings(section)}
    return found, definitions


# --- secrets ------------------------------------------------------------------------------------


def shown(tree: object, word: Callable[[str, str], str], path: str = "") -> Any:
    """A tree as JSON has it, with a word in place of each secret.

    `word`: makes one of a secret's path (the key, and what is below it) and its value. None: not set.
    """
    if isinstance(tree, SecretStr):
        return word(path, tree.get_secret_value()) if tree else None
    if isinstance(tree, Mapping):
        return {key: shown(item, word, f"{path}.{key}" if path else key) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return [shown(item, word, f"{path}.{number}") for number, item in enumerate(tree)]
    return tree


def secrets(tree: object) -> dict[str, str]:
    """Every secret of a tree that is set, by its path."""
    found: dict[str, str] = {}
    shown(tree, found.setdefault)
    return found
