"""Every modelled method agrees with the schema that Proxmox publishes, as fakepve carries it.

What the lab leaves out of a method is a 400 there (never a made-up success) and listed here as nothing at all; what it
has must be there, with the same types, bounds and enumerations.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pvelab.api import build_router
from pvelab.routing import Method
from pvelab.schema import Prop, PropertyFormat

# Where the lab asks for less than Proxmox on purpose.
NARROWER = {
    ("POST", "/nodes/{node}/vzdump", "vmid"): "one container per backup, so it is required and a number",
    ("GET", "/nodes/{node}/network", "type"): "the lab has bridges only",
    ("GET", "/storage", "type"): "any text matches no storage",
}


@functools.cache
def published() -> dict[str, Any]:
    data = importlib.resources.files("fakepve").joinpath("data/pve-api.json.gz").read_bytes()
    paths: dict[str, Any] = json.loads(gzip.decompress(data))["paths"]
    return {re.sub(r"{\w+}", "{}", path): methods for path, methods in paths.items()}


def methods() -> list[Method]:
    return sorted(build_router().methods(), key=lambda method: (method.template, method.verb))


def bounds(where: str, ours: Prop, theirs: dict[str, Any]) -> Iterator[str]:
    limits = [("minLength", ours.min_length), ("maxLength", ours.max_length)]
    # Proxmox states the range of a VMID and its format; the format says it first, and it is enough.
    if not where.endswith(("vmid", "newid")):
        limits += [("minimum", ours.minimum), ("maximum", ours.maximum)]  # type: ignore[list-item]
    for name, limit in limits:
        expected = float(theirs[name]) if name in theirs else None
        if limit != expected:
            yield f"{where}: {name} {limit}, published {expected}"


def compare(where: str, ours: Prop, theirs: dict[str, Any]) -> Iterator[str]:
    if theirs.get("type", "string") not in (ours.type, "array"):
        yield f"{where}: type {ours.type}, published {theirs.get('type')}"
    if ours.required == bool(theirs.get("optional")):
        yield f"{where}: required {ours.required}, published optional {theirs.get('optional')}"
    if set(ours.enum) != set(theirs.get("enum", ())):
        yield f"{where}: enum {ours.enum}, published {theirs.get('enum')}"
    if ours.requires != theirs.get("requires"):
        yield f"{where}: requires {ours.requires}, published {theirs.get('requires')}"
    yield from bounds(where, ours, theirs)
    if isinstance(ours.format, PropertyFormat):
        keys = {key: entry for key, entry in theirs["format"].items() if not entry.get("alias")}
        if set(keys) != set(ours.format.keys):
            yield f"{where}: keys {sorted(ours.format.keys)}, published {sorted(keys)}"
        for key in set(keys) & set(ours.format.keys):
            yield from compare(f"{where}.{key}", ours.format.keys[key], keys[key])


@pytest.mark.parametrize("method", methods(), ids=lambda method: f"{method.verb} {method.template}")
def test_schema(method: Method) -> None:
    theirs = published().get(re.sub(r"{\w+}", "{}", method.template), {}).get(method.verb)
    assert theirs is not None, "Proxmox has no such method"
    assert method.allow_token == bool(theirs.get("allowtoken"))
    properties = theirs["parameters"].get("properties", {})
    faults: list[str] = []
    for name, prop in method.schema.items():
        published_name = re.sub(r"^(net|mp|unused|dev)\d+$", r"\1[n]", name)
        if (method.verb, method.template, name) in NARROWER or f"{{{name}}}" in method.template:
            continue
        if published_name not in properties:
            faults.append(f"{name}: Proxmox has no such parameter")
        else:
            faults += compare(name, prop, properties[published_name])
    assert faults == []


def test_every_guest_option_is_known() -> None:
    """A token that sets any of Proxmox's options must meet Proxmox's answer, not a lab that knows less."""
    create = published()["/nodes/{}/lxc"]["POST"]["parameters"]["properties"]
    update = published()["/nodes/{}/lxc/{}/config"]["PUT"]["parameters"]["properties"]
    ours = {(m.verb, m.template): set(m.schema) for m in methods()}
    for key, theirs in (
        (("POST", "/nodes/{node}/lxc"), create),
        (("PUT", "/nodes/{node}/lxc/{vmid}/config"), update),
    ):
        names = {re.sub(r"^(net|mp|unused|dev)\d+$", r"\1[n]", name) for name in ours[key]}
        assert set(theirs) - names == set()
