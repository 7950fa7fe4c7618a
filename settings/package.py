"""The components as a package for other programs: what each takes and gives, and the schema that languages read.

The inputs are the settings of a stack, by the same keys and with the same rules: so an error names what the other
program has written. How Proxmox is reached is the provider's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from applications import NAMES, declared
from proxmox.errors import Faults
from proxmox.mountpoint import is_slot
from settings.cattle import CattleSettings
from settings.connection import ConnectionSettings, NodeSshSettings
from settings.kinds import AbsolutePath, Claim, Vmid, Volid
from settings.network import NetworkSettings
from settings.outputs import PET, outputs_of
from settings.pet import PetSettings
from settings.section import (
    OrFile,
    Output,
    Reading,
    Section,
    broken_rules,
    is_secret,
    json_schemas,
    kind,
    own_settings,
    read_section,
    refuse,
    setting,
)
from settings.stack import CattleStack, Stack
from settings.version import version

NAME = "hermes-homelab"
ANYTHING = {"$ref": "pulumi.json#/Any"}
TYPES = {"VolumeSettings": "Volume", "HostMountSettings": "HostMount", "Provider": "ModelProvider"}
"""What the models are called in the package, where not as here. A provider is something else to Pulumi."""
SCALARS = frozenset({"string", "integer", "number", "boolean"})
VOLUME = "cattleVolume"
WHERE = "correct it in your program; docs/options.md describes the key"


def _slot(value: str) -> str:
    if not is_slot(value):
        raise refuse("must be mp0 to mp255", "leave it out: mp0")
    return value


class AttachmentSettings(Section):
    """A volume of a pet's in a container of another program."""

    vmid: Vmid = setting("vmid", ..., "The VMID of the container.")
    volume: Volid = setting("volume", ..., "The volid of the volume: `volumes.NAME.volid` of a PetStorage.")
    path: AbsolutePath = setting("path", ..., "Where it is mounted in the container.")
    slot: Annotated[str, AfterValidator(_slot)] = setting(
        "slot", "mp0", "The mount point of the container that it takes."
    )
    claim: Claim = setting(
        "claim", "", "The claim in the notes of the container, where they have one: another container is refused then."
    )
    take_over: bool = setting(
        "takeOver", False, "Whether the volume is taken from the guest that has it. That guest is stopped."
    )


@dataclass(frozen=True)
class Declaration:
    """A component: the sections that it takes, but for some keys, and what it gives."""

    description: str
    sections: tuple[type[Section], ...]
    outputs: Mapping[str, Output]
    without: frozenset[str] = frozenset()
    instead: Mapping[str, str] = field(default_factory=dict)
    """Another description of a key whose value means something else here."""
    told_in: str = ""
    """The heading of docs/outputs.md that describes the outputs; empty: none does."""

    @property
    def inputs(self) -> dict[str, FieldInfo]:
        """The settings by key."""
        found = {key: one for section in self.sections for key, one in own_settings(section).items()}
        return {key: one for key, one in found.items() if key not in self.without}

    def described(self, key: str) -> str:
        """What an input is."""
        return self.instead.get(key) or str(self.inputs[key].description)


_APPLICATIONS = tuple(section for name in NAMES for group in declared(name).groups for section in group.sections)
COMPONENTS: Mapping[str, Declaration] = {
    "PetStorage": Declaration(
        "A protected guest that owns volumes. `petDeleteVolumes` frees one; `pulumi destroy` is refused.",
        (Stack, PetSettings),
        PET,
        frozenset({"role", "sshPrivateKeyFile"}),
        told_in="Stack pet",
    ),
    "Cattle": Declaration(
        "A container that can be thrown away, with a volume of a PetStorage and the application in it.",
        (Stack, CattleStack, CattleSettings, NetworkSettings, NodeSshSettings, *_APPLICATIONS),
        {key: output for name in NAMES for key, output in outputs_of(name).items()},
        frozenset({"role", "petStack"}),
        {
            VOLUME: "The volid of the volume that the cattle mounts: `volumes.NAME.volid` of a PetStorage. Empty: "
            "none; the agent's data are on the cattle's root file system, and lost with it."
        },
        told_in="Stack cattle",
    ),
    "Attachment": Declaration(
        "A volume of a PetStorage in a container of your own. One container at a time can have it.",
        (AttachmentSettings,),
        {
            "volume": Output("string", "The volid of the volume."),
            "path": Output("string", "Where it is mounted in the container."),
        },
    ),
}


def read_attachment(config: Mapping[str, Any]) -> AttachmentSettings:
    """Read the inputs of an attachment. Raises Faults with every fault."""
    reading = Reading(WHERE)
    found = read_section(AttachmentSettings, config, reading)
    reading.faults += broken_rules(found)
    if reading.faults:
        raise Faults(reading.faults, what="The inputs of the component can't be used")
    return found


# --- the schema ---------------------------------------------------------------------------------


class _Types:
    """The types that properties refer to, by name, as they are found. `definitions`: of the settings' JSON schema."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self.made: dict[str, Any] = {}

    def of(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A type in Pulumi's schema, from one in JSON's."""
        if "$ref" in schema:
            return self._named(schema["$ref"].rpartition("/")[2])
        if "anyOf" in schema:
            return self.of(next(one for one in schema["anyOf"] if one.get("type") != "null"))
        match schema.get("type"):
            case str(scalar) if scalar in SCALARS:
                return {"type": scalar}
            case "array":
                return {"type": "array", "items": self.of(schema["items"])}
            case "object" if isinstance(schema.get("additionalProperties"), dict):
                return {"type": "object", "additionalProperties": self.of(schema["additionalProperties"])}
        return {"type": "object", "additionalProperties": ANYTHING}

    def _named(self, model: str) -> dict[str, Any]:
        name = f"{NAME}:index:{TYPES.get(model, model)}"
        if name not in self.made:
            schema = self._definitions[model]
            self.made[name] = {
                "description": schema["description"],
                "type": "object",
                "properties": {key: self.of(one) for key, one in schema["properties"].items()},
                "required": schema.get("required", []),
            }
        return {"type": "object", "$ref": f"#/types/{name}"}


def _input(found: FieldInfo, description: str, schema: Mapping[str, Any], types: _Types) -> dict[str, Any]:
    if kind(found) == "array" and schema.get("type") != "array":
        # Read from files: the input is their paths.
        made: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    elif any(isinstance(each, OrFile) for each in found.metadata):
        made = {"type": "object", "additionalProperties": ANYTHING}
    else:
        made = {"type": "string"} if kind(found) == "string" else types.of(schema)
    return {**made, "description": description, **({"secret": True} if is_secret(found) else {})}


def _with_default(found: FieldInfo, description: str) -> str:
    if found.is_required() or found.default in ("", [], {}):
        return description
    return f"{description} Default: `{found.default if isinstance(found.default, str) else json.dumps(found.default)}`."


def _output(name: str, output: Output) -> dict[str, Any]:
    made: dict[str, Any] = {"type": output.kind}
    if name == "volumes":
        made["additionalProperties"] = {"type": "object", "$ref": f"#/types/{NAME}:index:MadeVolume"}
    elif output.kind == "object":
        made["additionalProperties"] = {"type": "string"}
    return {**made, "description": output.description, **({"secret": True} if output.secret else {})}


def _resource(one: Declaration, types: _Types, schemas: Mapping[str, Any]) -> dict[str, Any]:
    inputs = {}
    for key, found in one.inputs.items():
        told = one.described(key) if key in one.instead else _with_default(found, one.described(key))
        inputs[key] = _input(found, told, schemas[key], types)
    return {
        "isComponent": True,
        "description": one.description,
        "inputProperties": inputs,
        "requiredInputs": [key for key, found in one.inputs.items() if found.is_required()],
        "properties": {key: _output(key, output) for key, output in one.outputs.items()},
        "required": list(one.outputs),
    }


def package_schema() -> dict[str, Any]:
    """The schema of the package, as Pulumi's languages read it."""
    sections = [section for one in COMPONENTS.values() for section in one.sections]
    schemas, definitions = json_schemas([ConnectionSettings, *sections])
    types = _Types(definitions)
    connection = {
        key: _input(found, str(found.description), schemas[key], types)
        for key, found in own_settings(ConnectionSettings).items()
    }
    resources = {f"{NAME}:index:{kind_}": _resource(one, types, schemas) for kind_, one in COMPONENTS.items()}
    types.made[f"{NAME}:index:MadeVolume"] = {
        "description": "A volume that a pet owns.",
        "type": "object",
        "properties": {
            "volid": {"type": "string", "description": "Its name in Proxmox."},
            "size": {"type": "integer", "description": "In GB."},
            "storage": {"type": "string"},
            "path": {"type": "string", "description": "On the pet."},
        },
        "required": ["volid", "size", "storage", "path"],
    }
    return {
        "name": NAME,
        "displayName": "Hermes homelab",
        "version": version(),
        "description": "Hermes Agent on Proxmox VE: a pet that keeps the data, cattle that can be thrown away.",
        "keywords": ["pulumi", "category/infrastructure", "kind/component", "proxmox"],
        "license": "MIT",
        "config": {"variables": connection},
        "provider": {"description": "How the Proxmox API is reached.", "inputProperties": connection},
        "types": dict(sorted(types.made.items())),
        "resources": resources,
        "language": {
            "python": {"respectSchemaVersion": True, "pyproject": {"enabled": True}},
            "nodejs": {"respectSchemaVersion": True},
        },
    }


def schema_file() -> str:
    """The schema as a file's text."""
    return json.dumps(package_schema(), indent=1, ensure_ascii=False) + "\n"
