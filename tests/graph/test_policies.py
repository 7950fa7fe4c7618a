"""The policy pack's rules on what the stacks register: as it is, and with one thing changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from policies.rules import PLUGIN, RULES, Resource, as_the_plugin_reads
from tests.graph.conftest import Graph, Monitor, graph_of
from tests.graph.test_graph import (
    HOST_KEY,
    IN_DOCKER,
    MOUNTS,
    SECRET_SIGNATURE,
    cattle,
    pet,
)
from tests.tables import cases

ROOT = Path(__file__).parents[2]
OPEN = {"agentDashboard": True, "agentDashboardPassword": "a-password-of-22-marks"}
STACKS: dict[str, dict[str, Any]] = {
    "pet": {},
    "bare": {
        **OPEN,
        "agentSource": "git",
        "agentDashboardHost": "0.0.0.0",  # noqa: S104 - what the rule is about
        "cattleHostMounts": MOUNTS,
        "nodeSshHostKey": HOST_KEY,
    },
    "pypi": {},
    "docker": {**IN_DOCKER, **OPEN, "agentPublishedBindIp": "192.0.2.5"},
}
CASES = cases("policies.yaml", "changes", keys="stack resource set protect ignored violates")


def plain(value: Any) -> Any:
    """A value on the wire as the policy SDK tells it: a secret by its value."""
    if isinstance(value, dict):
        return plain(value["value"]) if SECRET_SIGNATURE in value else {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


@cache
def registered(stack: str) -> Mapping[str, Resource]:
    """What a stack registers, by name, as the engine tells it to a policy pack."""
    graph: Graph = (pet if stack == "pet" else cattle)(graph_of, **STACKS[stack])
    monitor = Monitor(graph)
    return {
        name: Resource(
            resource.type,
            monitor.make_urn(graph.options(name).parent, resource.type, name),
            plain(resource.inputs),
            protect=graph.options(name).protect,
            ignored=tuple(graph.options(name).ignoreChanges),
        )
        for name, resource in graph.resources.items()
    }


def violations(resource: Resource) -> dict[str, str]:
    """What each violated rule says of a resource."""
    return {rule.name: "\n".join(found) for rule in RULES if (found := list(rule.judge(resource)))}


def in_the_package(resource: Resource) -> Resource:
    """As a program that uses the package would register it."""
    types = (("pulumi-python:dynamic/", "hermes-homelab:"), ("hermes-homelab:components:", "hermes-homelab:index:"))
    type_, urn = resource.type, resource.urn
    for program, package in types:
        type_, urn = type_.replace(program, package), urn.replace(program, package)
    return replace(resource, type=type_, urn=urn)


def changed(resource: Resource, case: dict[str, Any]) -> Resource:
    inputs = deepcopy(dict(resource.inputs))
    for path, value in case.get("set", {}).items():
        *folders, key = path.split(".")
        place = inputs
        for folder in folders:
            place = place[folder]
        if value is None:
            del place[key]
        else:
            place[key] = value
    options = {key: case[key] for key in ("protect", "ignored") if key in case}
    return replace(resource, inputs=inputs, **options)


@pytest.mark.parametrize("stack", STACKS)
def test_the_stacks_as_they_are_violate_no_rule(stack: str) -> None:
    assert {name: found for name, resource in registered(stack).items() if (found := violations(resource))} == {}


@pytest.mark.parametrize(("_table", "case"), CASES)
def test_one_change_violates_one_rule(_table: str, case: dict[str, Any]) -> None:
    broken = changed(registered(case["stack"])[case["resource"]], case)
    found, expected = violations(broken), case.get("violates", {})
    assert found.keys() == expected.keys()
    assert violations(in_the_package(broken)) == found
    for rule, says in expected.items():
        assert says in found[rule]
        assert "\n" not in found[rule]


def test_each_rule_has_a_change_that_violates_it() -> None:
    assert {rule.name for rule in RULES} == {rule for row in CASES for rule in row.values[1].get("violates", {})}


def test_no_text_tells_a_secret() -> None:
    resource = registered("pet")["proxmox"]
    token = "root@pam!hands=00000000-1111-2222-3333-444444444444"
    [text] = violations(replace(resource, inputs={"apiToken": token})).values()
    assert "hands" not in text
    assert "0000" not in text


def test_what_the_plugin_reads_in_the_environment_is_judged_too() -> None:
    """The provider's inputs leave out what the environment has (components/container.py)."""
    environment = {"PROXMOX_VE_API_TOKEN": "root@pam!x=y", "PROXMOX_VE_USERNAME": "", "HOME": "/root"}
    assert as_the_plugin_reads(PLUGIN, {"insecure": "false"}, environment) == {
        "insecure": "false",
        "apiToken": "root@pam!x=y",
    }
    assert as_the_plugin_reads(PLUGIN, {"apiToken": "a"}, environment) == {"apiToken": "a"}
    assert as_the_plugin_reads("command:remote:Command", {}, environment) == {}


def test_the_pack_runs_on_the_sdk_of_the_stacks() -> None:
    def locked(file: str) -> str:
        return next(line for line in (ROOT / file).read_text().splitlines() if line.startswith("pulumi=="))

    assert locked("requirements-policies.lock") == locked("requirements.lock")


def test_the_documents_name_each_rule() -> None:
    told = (ROOT / "docs" / "policies.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", told, re.MULTILINE) == [rule.name for rule in RULES]
