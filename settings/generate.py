"""Write what is made of the models: Pulumi.yaml's config block, tables of the documents, schemas.

`python -m settings.generate` writes, `--check` says which file is not up to date.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from settings.outputs import OUTPUTS
from settings.package import COMPONENTS, schema_file
from settings.read import GROUPS, SECRETS, SETTINGS
from settings.section import OrFile, is_secret, json_schemas, kind, of_file, own_settings
from settings.stack import Stack

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "hermes-homelab"
BEGIN = "<!-- made by python -m settings.generate, from here -->"
END = "<!-- to here -->"


def description(found: FieldInfo) -> str:
    return f"{'Secret. ' if is_secret(found) else ''}{found.description}"


def items_of(key: str) -> str:
    """The type of an array's items."""
    items = schema_of_settings()[0][key].get("items", {})
    return "object" if "$ref" in items else str(items.get("type", "string"))


# --- Pulumi.yaml --------------------------------------------------------------------------------


def config_block() -> Iterator[str]:
    """The lines below `config:`."""
    for group in GROUPS:
        heading = f"  # --- {group.title[0].lower()}{group.title[1:]} "
        yield f"{heading:-<100}"
        for section in group.sections:
            for key, found in own_settings(section).items():
                yield f"  {key}:"
                yield f"    type: {kind(found)}"
                if kind(found) == "array":
                    yield "    items:"
                    yield f"      type: {items_of(key)}"
                yield f"    default: {flow(found.default)}"
                yield f"    description: {json.dumps(description(found), ensure_ascii=False)}"


def flow(value: Any) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("...\n")
    return '""' if value == "" else text.strip()


def project_file(text: str) -> str:
    head, found, _ = text.partition("\nconfig:\n")
    return f"{head}{found}" + "".join(f"{line}\n" for line in config_block())


# --- docs/options.md ----------------------------------------------------------------------------


def tables() -> Iterator[str]:
    for group in GROUPS:
        yield f"## {group.title}\n"
        if group.note:
            yield f"{group.note}\n"
        yield "| key | type | default | |\n|---|---|---|---|"
        for section in group.sections:
            for key, found in own_settings(section).items():
                default = found.default
                shown = "" if default == "" else f"`{default if isinstance(default, str) else json.dumps(default)}`"
                # An asterisk would begin emphasis.
                described = description(found).replace("*", r"\*")
                yield f"| `{key}` | {kind(found)} | {shown} | {described} |"
        yield ""
    yield f"Secrets: {', '.join(f'`{key}`' for key in SETTINGS if key in SECRETS)}.\n"


def between_marks(text: str, lines: Iterable[str]) -> str:
    """A document with these lines between its marks."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    _, _, after = rest.partition(f"{END}\n")
    return f"{before}{BEGIN}\n\n" + "".join(f"{line}\n" for line in lines) + f"{END}\n{after}"


# --- docs/outputs.md ----------------------------------------------------------------------------


def output_tables() -> Iterator[str]:
    for heading, outputs in OUTPUTS.items():
        yield f"## {heading}\n"
        yield "| name | type | since | stable | |\n|---|---|---|---|---|"
        for key, output in outputs.items():
            told = f"{'Secret. ' if output.secret else ''}{output.description}"
            yield f"| `{key}` | {output.kind} | {output.since} | {'yes' if output.stable else 'no'} | {told} |"
        yield ""


# --- docs/package.md ----------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def component_tables() -> Iterator[str]:
    """What is in no other table: the inputs that are no settings of a stack, and the outputs that no stack has."""
    for kind_, one in COMPONENTS.items():
        yield f"## {kind_}\n"
        yield f"{one.description}\n"
        own = {key: found for key, found in one.inputs.items() if SETTINGS.get(key) is not found or key in one.instead}
        groups = [group for group in GROUPS if set(one.sections) & set(group.sections)]
        if groups:
            # Of the first group, the Proxmox, the connection is the provider's.
            words = [f"`{key}`" for key in one.inputs if key in own_settings(Stack)]
            words += [f"[{group.title}](options.md#{anchor(group.title)})" for group in groups[1:]]
            without = sorted(one.without - set(own_settings(Stack)))
            except_for = f", but for {', '.join(f'`{key}`' for key in without)}" if without else ""
            yield f"Inputs: {', '.join(words)}: each key is there{except_for}.\n"
        if own:
            yield "| input | type | required | |\n|---|---|---|---|"
            for key, found in own.items():
                needed = "yes" if found.is_required() else "no"
                yield f"| `{key}` | {kind(found)} | {needed} | {one.described(key)} |"
            yield ""
        if one.told_in:
            yield f"Outputs: those of [{one.told_in}](outputs.md#{anchor(one.told_in)}).\n"
            continue
        yield "| output | type | |\n|---|---|---|"
        for key, output in one.outputs.items():
            yield f"| `{key}` | {output.kind} | {output.description} |"
        yield ""


# --- the schema ---------------------------------------------------------------------------------


def schema_of_settings() -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON schema of each setting by its key, and the definitions that they refer to."""
    return json_schemas(section for group in GROUPS for section in group.sections)


def as_a_stack_file_has_it(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A value may stand as YAML has it, as a text, or encrypted."""
    found = SETTINGS[key]
    inner = {name: value for name, value in schema.items() if name not in ("title", "default", "description", "alias")}
    encrypted = {"$ref": "#/definitions/encrypted"}
    texts = {"integer": r"^-?\d+$", "boolean": "^(true|false)$"}
    choices: list[dict[str, Any]]
    match kind(found):
        case "string" if is_secret(found):
            choices = [encrypted, {"const": ""}]
        case "object" if is_secret(found):
            choices = [{"type": "object", "additionalProperties": encrypted}]
        case "array" if of_file(found):
            choices = [{"type": "array", "items": {"type": "string"}}, encrypted]
        case "string" if of_file(found):
            choices = [{"type": "string"}, encrypted]
        case "object" if any(isinstance(each, OrFile) for each in found.metadata):
            file = {"type": "object", "required": ["file"], "properties": {"file": {"type": "string"}}}
            choices = [{"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, file]}}]
        case "integer" | "boolean" as which:
            choices = [inner, {"type": "string", "pattern": texts[which]}, encrypted]
        case _:
            choices = [inner, encrypted]
    return {"description": description(found), "default": found.default, "anyOf": choices}


def schema() -> str:
    settings, definitions = schema_of_settings()
    properties = {f"{PROJECT}:{key}": as_a_stack_file_has_it(key, each) for key, each in settings.items()}
    used: dict[str, Any] = {
        "encrypted": {"type": "object", "required": ["secure"], "properties": {"secure": {"type": "string"}}}
    }
    pending: list[Any] = [properties]
    while pending:
        for name in re.findall(r'"#/definitions/(\w+)"', json.dumps(pending.pop())):
            if name not in used:
                used[name] = definitions[name]
                pending.append(definitions[name])
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A stack of hermes-homelab",
        "type": "object",
        "properties": {
            "config": {
                "type": ["object", "null"],
                "properties": properties,
                # Other projects' keys, the plugin's and Pulumi's own, may be there, too.
                "patternProperties": {f"^(?!{PROJECT}:)": {}},
                "additionalProperties": False,
            }
        },
        "definitions": dict(sorted(used.items())),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


# --- the program --------------------------------------------------------------------------------


def made() -> dict[Path, str]:
    """Every file, as it should be."""
    project, options, outputs = ROOT / "Pulumi.yaml", ROOT / "docs" / "options.md", ROOT / "docs" / "outputs.md"
    package = ROOT / "docs" / "package.md"
    return {
        package: between_marks(package.read_text(encoding="utf-8"), component_tables()),
        ROOT / "package" / "schema.json": schema_file(),
        project: project_file(project.read_text(encoding="utf-8")),
        options: between_marks(options.read_text(encoding="utf-8"), tables()),
        outputs: between_marks(outputs.read_text(encoding="utf-8"), output_tables()),
        ROOT / "docs" / "stack.schema.json": schema(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m settings.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail where a file is not up to date")
    check = parser.parse_args().check
    behind = [file for file, text in made().items() if not file.exists() or file.read_text(encoding="utf-8") != text]
    for file in behind:
        if check:
            print(f"{file.relative_to(ROOT)} is not up to date: python -m settings.generate", file=sys.stderr)
        else:
            file.write_text(made()[file], encoding="utf-8")
    return 1 if check and behind else 0


if __name__ == "__main__":
    sys.exit(main())
