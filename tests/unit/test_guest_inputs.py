"""What goes into the guest: the host's text is read back as it was; else a field is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from applications.hermes.guest.inputs import Engine, Facts, Folder, Installed, Probe
from applications.hermes.guest.migration import Migrated
from applications.hermes.phases import facts_of, render_verify
from provisioning.guest.common import Refusal
from provisioning.guest.typed import as_json, of, read, record
from tests.settings import cattle, unchecked

PROBE = Probe(version="0.20.3", auth_providers=("basic",), folders=(Folder("/srv", 10000, read_only=True),))


@pytest.mark.parametrize("value", [PROBE, facts_of(cattle())], ids=lambda value: type(value).__name__)
def test_what_is_written_is_read_as_it_was(value: Any) -> None:
    assert read(type(value), as_json(value)) == value


ENGINE = {
    **{"backend": "docker", "image": "i", "version": None, "insecure_registries": ["a:1"], "registry_ca": None},
    **{"uid": 1, "gid": 2},
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": 3}, "inputs.json.image is int, expected str"),
        ({"uid": True}, "inputs.json.uid is bool, expected int"),
        ({"uid": "canary"}, "inputs.json.uid is str, expected int"),
        ({"insecure_registries": ["a", None]}, r"inputs.json.insecure_registries\[1\] is NoneType, expected str"),
        ({"version": ["1"]}, "inputs.json.version is list, expected str"),
        ({"canary": "canary"}, "inputs.json has no field canary"),
    ],
)
def test_another_form_is_refused_by_the_name_of_its_field(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        read(Engine, json.dumps({**ENGINE, **changes}))
    assert "'canary'" not in str(refused.value)


@pytest.mark.parametrize(("given", "read_back"), [(None, None), ([], ()), (["a", 1], ("a", 1))])
def test_a_list_that_may_be_missing(given: list[Any] | None, read_back: tuple[Any, ...] | None) -> None:
    answer = {"stated": 1, "reached": 2, "latest": 2, "text": "", "comments": True, "changes": []}
    assert of(Migrated, {**answer, "warnings": given}, "x").warnings == read_back


def test_what_is_missing_is_named_and_what_is_no_object_too() -> None:
    with pytest.raises(Refusal, match=r"inputs\.json lacks uid, gid"):
        read(Engine, json.dumps({key: value for key, value in ENGINE.items() if key not in ("uid", "gid")}))
    for text in ("[]", "null", '"x"'):
        with pytest.raises(Refusal, match="expected the fields of Engine"):
            read(Engine, text)
    with pytest.raises(Refusal, match=r"inputs\.json is no JSON"):
        read(Engine, "{")


def test_a_record_of_another_release_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "install.json"
    assert record(Installed, path) is None
    path.write_text(json.dumps({"version": "0.19.0", "new": [1], "shipped": {"skills": 80, "languages": None}}))
    assert record(Installed, path) == Installed("0.19.0", shipped={"skills": 80, "languages": None})
    for text in ("{", "[]", "{}", '{"version": 1}'):
        path.write_text(text)
        assert record(Installed, path) is None


def test_a_verification_reaches_the_guest_with_each_of_its_inputs() -> None:
    plan = render_verify(cattle(), prompt="Hello?", auth_providers=("basic",))
    (given,) = [file.content for file in plan.files if file.path == "inputs.json"]
    assert read(Probe, given.decode()).prompt == "Hello?"
    assert json.loads(given) == plan.declared


def test_a_question_of_another_release_is_understood() -> None:
    """Its host sends more, or less, than this release knows."""
    assert of(Probe, {"prompt": "hi", "later": 1}, "x", strict=False) == Probe(prompt="hi")


def test_the_facts_hold_no_secret() -> None:
    stack = unchecked(
        cattle(agentSecretEnvironment={"A_TOKEN": "canary"}, agentModelKey="canary"),
        agent__declared__auth_file=SecretStr("canary"),
    )
    assert isinstance(facts_of(stack), Facts)
    assert "canary" not in as_json(facts_of(stack))
