"""Why a phase runs again, in words (components/explanation.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from applications.hermes.phases import Built, render_baseline, render_configure, render_verify
from components.explanation import explain
from components.state import own_state_of
from provisioning.plans import PhasePlan, differing_keys
from tests.settings import cattle, unchecked

GATEWAY, DASHBOARD = "hermes-gateway.service", "hermes-dashboard.service"
CANARY = "canary-0c9e"


def configure(directory: str | None = None, **more: Any) -> PhasePlan:
    return render_configure(cattle(**more), Built(directory))


def with_auth(text: str, *, overwrite: bool) -> PhasePlan:
    fields = {"agent__declared__auth_file": SecretStr(text), "agent__declared__auth_file_overwrite": overwrite}
    return render_configure(unchecked(cattle(), **fields))


def told(before: PhasePlan, after: PhasePlan) -> str | None:
    return explain("configure", {"declared": before.declared, "digest": before.digest}, after.declared, after.digest)


def test_without_a_change_nothing_is_told() -> None:
    assert told(configure(), configure()) is None


# What restarts: facts of guest/services.py (wanted_state) - documents are read when a session begins.
CASES: list[tuple[Callable[[], PhasePlan], Callable[[], PhasePlan], str, set[str]]] = [
    (
        lambda: configure(agentDocuments={"SOUL.md": "a", "X.md": "x"}),
        lambda: configure(agentDocuments={"SOUL.md": "b", "X.md": "x"}),
        "documents.SOUL.md",
        set(),
    ),
    (configure, lambda: configure(agentDocuments={"SOUL.md": "b"}), "documents.SOUL.md", set()),
    (configure, lambda: configure(agentSettings={"timezone": "UTC"}), "settings.timezone", {GATEWAY, DASHBOARD}),
    (configure, lambda: configure(agentSettings={"dashboard": {"theme": "x"}}), "settings.dashboard", {DASHBOARD}),
    (
        lambda: configure(agentSecretEnvironment={"A": "one"}),
        lambda: configure(agentSecretEnvironment={"A": CANARY}),
        "secret_environment.A",
        {GATEWAY, DASHBOARD},
    ),
    (configure, lambda: configure(agentDashboardPort=9200), "dashboard.port", {DASHBOARD}),
    (configure, lambda: configure("/opt/hermes/x"), "agent_directory", {GATEWAY, DASHBOARD}),
    (
        lambda: with_auth("{}", overwrite=False),
        lambda: with_auth('{"a": 1}', overwrite=False),
        "auth_file",
        set(),
    ),
    (
        lambda: with_auth("{}", overwrite=True),
        lambda: with_auth('{"a": 1}', overwrite=True),
        "auth_file",
        {GATEWAY, DASHBOARD},
    ),
]


@pytest.mark.parametrize(("before", "after", "key", "units"), CASES, ids=[key for _, _, key, _ in CASES])
def test_the_cause_and_what_restarts(
    before: Callable[[], PhasePlan], after: Callable[[], PhasePlan], key: str, units: set[str]
) -> None:
    text = told(before(), after())
    assert text is not None
    cause, _, restarts = text.partition("; ")
    assert cause == f"configure runs again (changed: {key})"
    assert {unit for unit in (GATEWAY, DASHBOARD) if unit in restarts} == units
    assert ("restarts no service" in restarts) is not bool(units)
    assert CANARY not in text


def test_a_dashboard_that_goes_is_told() -> None:
    text = told(configure(), configure(agentDashboard=False))
    assert text == f"configure runs again (changed: dashboard.enabled); ends {DASHBOARD}"


DOCKER: dict[str, Any] = {
    "agentMode": "docker",
    "agentImage": "nousresearch/hermes-agent:v2026.7.20@sha256:" + "0123456789abcdef" * 4,
    "agentDashboard": False,
}


@pytest.mark.parametrize(
    ("more", "told_of_it"),
    [
        ({"agentModel": "other"}, "restarts hermes"),
        ({"agentExtraOptions": {"cpus": 1}}, "makes another container"),
        ({"agentPublishedBindIp": "192.0.2.7"}, "makes another container"),
    ],
)
def test_a_new_container_is_told_from_a_restart(more: dict[str, Any], told_of_it: str) -> None:
    text = told(configure(**DOCKER), configure(**DOCKER, **more))
    assert text is not None
    assert f"; {told_of_it}" in text


def test_verify_of_a_container_tells_its_cause() -> None:
    before, after = (render_verify(cattle(**DOCKER), word) for word in "ab")
    text = explain("verify", {"declared": before.declared, "digest": before.digest}, after.declared, after.digest)
    assert text == "verify runs again (changed: configuration)"


def test_a_phase_without_services_tells_its_cause_only() -> None:
    before, after = (render_baseline(cattle(agentExtraPackages=packages)) for packages in ([], ["ffmpeg"]))
    text = explain("baseline", {"declared": before.declared, "digest": before.digest}, after.declared, after.digest)
    assert text == "baseline runs again (changed: extra_packages)"


def test_a_newer_program_is_a_cause_too() -> None:
    plan = configure()
    text = explain("configure", {"declared": plan.declared, "digest": "older"}, plan.declared, plan.digest)
    assert text == "configure runs again (this program's own part of it has changed); restarts no service"


def test_what_the_engine_drops_or_turns_into_another_number_is_no_change() -> None:
    assert list(differing_keys({"a": 1, "b": [1, 2]}, {"a": 1.0, "b": [1.0, 2.0], "c": None})) == []
    assert list(differing_keys({"a": 1, "old": {}, "gone": []}, {"a": 1, "new": {}})) == []
    assert list(differing_keys({"a": 0}, {})) == ["a"]
    assert list(differing_keys({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}})) in (["a.b", "a.c"], ["a.c", "a.b"])


def test_the_phases_are_found_in_the_state() -> None:
    outputs = {"phase": "configure", "declared": {}, "digest": "x"}
    urn = "urn:pulumi:cattle::hermes-homelab::a$b::cattle-agent-configure"
    state = own_state_of({urn: {"type": "pulumi-python:dynamic/guest:Phase", "outputs": outputs}})
    assert state.phases == {"cattle-agent-configure": outputs}
