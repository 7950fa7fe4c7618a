"""The package: its schema says what the settings say, and what reaches it on the wire is read as it is meant."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import tomllib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.struct_pb2 import Struct
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2

from components.naming import GUARD_SAYS, PACKAGE, PROGRAM, kind_of
from components.package import COMPONENTS as MAKERS
from components.package import Package, asked_by, has_unknown, owner_in, plain, prove_known
from components.providers.messages import UNKNOWN, holds_secret, props_of, sealed, struct_of
from components.state import Place, own_state_of, parts_of
from proxmox.connection import ENVIRONMENT
from proxmox.errors import Faults
from settings.package import COMPONENTS, NAME, read_attachment
from settings.read import SECRETS, SETTINGS

ROOT = Path(__file__).resolve().parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "package" / "schema.json").read_text())
RESOURCES: dict[str, Any] = SCHEMA["resources"]
SECRET = {rpc._special_sig_key: rpc._special_secret_sig, "value": "s3cret"}
OUTPUT = {rpc._special_sig_key: rpc._special_output_value_sig}


# --- the schema ---------------------------------------------------------------------------------


def test_the_plugin_makes_what_the_schema_declares() -> None:
    assert {token.rpartition(":")[2] for token in RESOURCES} == set(COMPONENTS) == set(MAKERS)
    assert {token.rpartition(":")[0] for token in RESOURCES} == {"hermes-homelab:index"}
    assert (ROOT / "package" / f"pulumi-resource-{NAME}").stat().st_mode & 0o111 == 0o111


def test_the_plugin_takes_no_module_of_the_program_that_it_serves(tmp_path: Path) -> None:
    """The engine starts it in that program's folder, and most programs have a settings.py."""
    for name in ("settings", "components", "yaml", "json"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the program's own {name}')\n".replace("m's", "m\\'s"))
    plugin = ROOT / "package" / f"pulumi-resource-{NAME}"
    with subprocess.Popen([plugin, "127.0.0.1:1"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline().strip().isdecimal()
        finally:
            child.terminate()


def test_every_setting_of_a_stack_is_an_input_or_of_another_stack() -> None:
    """One that is in no component could not be set; `role` and `petStack` have no meaning there."""
    given = {key for resource in RESOURCES.values() for key in resource["inputProperties"]}
    given |= set(SCHEMA["config"]["variables"])
    image = {key for key in SETTINGS if key.startswith("image")}
    assert set(SETTINGS) - given == {"role", "petStack", *image}


def test_a_secret_is_one_in_the_schema_too() -> None:
    """So the generated classes encrypt it, also where a program passes it in clear."""
    places = [*(resource["inputProperties"] for resource in RESOURCES.values()), SCHEMA["provider"]["inputProperties"]]
    secret = {key for place in places for key, declared in place.items() if declared.get("secret")}
    assert secret == SECRETS
    assert RESOURCES["hermes-homelab:index:Cattle"]["properties"]["apiKey"]["secret"] is True


def test_each_type_that_is_named_is_there() -> None:
    named = set(re.findall(r'"#/types/([\w:-]+)"', json.dumps(SCHEMA)))
    assert named == set(SCHEMA["types"])


def test_the_keys_inside_of_an_input_are_typed() -> None:
    volume = SCHEMA["types"]["hermes-homelab:index:Volume"]
    assert {key: one["type"] for key, one in volume["properties"].items()} == {
        "name": "string",
        "storage": "string",
        "size": "integer",
        "path": "string",
        "volid": "string",
    }
    assert volume["required"] == ["name", "storage", "size", "path"]
    cattle = RESOURCES["hermes-homelab:index:Cattle"]["inputProperties"]
    # Files are named by their paths; a document may be named so, or written down.
    assert cattle["agentEnvironmentFiles"]["items"] == {"type": "string"}
    assert cattle["agentDocuments"]["additionalProperties"] == {"$ref": "pulumi.json#/Any"}
    assert cattle["agentMcpServers"]["additionalProperties"]["$ref"] == "#/types/hermes-homelab:index:McpServer"


def test_the_example_in_yaml_has_inputs_and_outputs_of_the_schema() -> None:
    example = yaml.safe_load((ROOT / "examples" / "package" / "yaml" / "Pulumi.yaml").read_text())
    tokens = {}
    for name, resource in example["resources"].items():
        tokens[name] = resource["type"].replace(f"{NAME}:", f"{NAME}:index:")
        assert set(resource["properties"]) <= set(RESOURCES[tokens[name]]["inputProperties"])
    read = re.findall(r"\$\{(\w+)\.(\w+)", json.dumps(example))
    assert len(read) >= 4
    assert [(name, key) for name, key in read if key not in RESOURCES[tokens[name]]["properties"]] == []
    [plugin] = example["plugins"]["providers"]
    assert (ROOT / "examples/package/yaml" / plugin["path"] / f"pulumi-resource-{plugin['name']}").is_file()


# --- what the engine asks for -------------------------------------------------------------------


def test_a_number_is_whole_again() -> None:
    found = plain({"size": 2.0, "parts": [1.0, 0.5], "on": True})
    assert repr(found) == repr({"size": 2, "parts": [1, 0.5], "on": True})


def test_what_is_not_known_is_refused_but_for_a_volume() -> None:
    prove_known("Cattle", "agent", {"cattleVolume": UNKNOWN, "cattleVmid": 106})
    assert has_unknown({"a": [UNKNOWN]})
    with pytest.raises(Faults) as error:
        prove_known("Cattle", "agent", {"agentModelUrl": UNKNOWN, "agentSettings": {"a": [UNKNOWN]}})
    assert [fault.key for fault in error.value.faults] == ["agentModelUrl", "agentSettings"]
    assert "must be known in a preview" in str(error.value)


def test_a_volume_of_nobody_is_refused() -> None:
    assert owner_in("local-lvm:vm-998-disk-1") == 998
    with pytest.raises(Faults) as error:
        owner_in("local-lvm:notes")
    assert [(fault.key, fault.value) for fault in error.value.faults] == [("cattleVolume", "local-lvm:notes")]


def test_a_request_is_read_with_its_secrets_and_dependencies() -> None:
    request = provider_pb2.ConstructRequest(type="hermes-homelab:index:Cattle", name="agent")
    request.inputs.update(
        {
            "cattleVmid": 106,
            "agentModelKey": SECRET,
            "agentSettings": {"inner": [{**OUTPUT, "value": "x", "secret": True}]},
            "cattleVolume": {**OUTPUT, "secret": False},
        }
    )
    asked = asked_by(request, {"endpoint": "https://192.0.2.1:8006"}, None)  # type: ignore[arg-type]
    assert asked.config == {
        "endpoint": "https://192.0.2.1:8006",
        "cattleVmid": 106,
        "agentModelKey": "s3cret",
        "agentSettings": {"inner": ["x"]},
        "cattleVolume": UNKNOWN,
    }
    assert asked.secret == {"agentModelKey", "agentSettings"}


def test_what_was_secret_is_secret_again_in_the_answer() -> None:
    asked, answer = Struct(), struct_of({"plan": {"text": "s3cret"}, "vmid": 106})
    asked.update({"plan": {"text": SECRET}, "vmid": 106, "other": SECRET})
    sealed(answer, [asked])
    assert {key: holds_secret(value) for key, value in answer.fields.items()} == {"plan": True, "vmid": False}
    assert props_of(answer) == {"plan": {"text": "s3cret"}, "vmid": 106.0}


@pytest.mark.parametrize(
    ("key", "value"), [("volume", "local-lvm"), ("path", "srv"), ("slot", "mp256"), ("slot", "rootfs"), ("vmid", 99)]
)
def test_a_fault_of_an_attachment_names_its_input(key: str, value: object) -> None:
    good = {"vmid": 200, "volume": "local-lvm:vm-998-disk-2", "path": "/srv/files"}
    assert read_attachment(good).slot == "mp0"
    with pytest.raises(Faults) as error:
        read_attachment({**good, key: value})
    assert [fault.key for fault in error.value.faults] == [key]


# --- names, and what a state holds --------------------------------------------------------------


def test_a_kind_is_known_by_both_names() -> None:
    kinds = [kind_of(f"{naming.resource}proxmox:Claim") for naming in (PROGRAM, PACKAGE)]
    assert kinds == ["proxmox:Claim"] * 2
    assert kind_of("proxmoxve:index/containerLegacy:ContainerLegacy").startswith("proxmoxve:")


def test_a_component_finds_its_own_parts_among_those_of_others() -> None:
    """Names that begin alike, two kinds with one name, a component inside of another one."""

    def pet(name: str, claim: str, vmid: int, *, above: str = "", volume: str = "notes") -> dict[str, Any]:
        urn = f"urn:pulumi:home::mine::{above}hermes-homelab:index:PetStorage"
        resource = f"{urn}$hermes-homelab:proxmox"
        container = "proxmoxve:index/containerLegacy:ContainerLegacy"
        return {
            f"{urn}::{name}": {"type": "hermes-homelab:index:PetStorage", "outputs": {}},
            f"{resource}:Claim::{name}-claim": {"type": "hermes-homelab:proxmox:Claim", "outputs": {"claim": claim}},
            f"{urn}${container}::{name}-container": {"type": container, "outputs": {"id": str(vmid), "vmId": vmid}},
            f"{resource}:Volume::{name}-volume-{volume}": {
                "type": "hermes-homelab:proxmox:Volume",
                "outputs": {"name": volume, "ref": f"local:vm-{vmid}-disk-1", "claim": claim},
            },
            f"{resource}:Guard::{name}-{GUARD_SAYS}": {"type": "hermes-homelab:proxmox:Guard", "outputs": {}},
        }

    type_ = "hermes-homelab:index:PetStorage"
    stack = "urn:pulumi:home::mine::pulumi:pulumi:Stack::mine-home"
    others = {**pet("pet-volume", "other", 901), **pet("pet-2", "second", 902)}
    others |= pet("pet", "inner", 903, above="own:X$")
    assert own_state_of(parts_of(others, Place.of(stack, type_, "pet"))).vmid is None
    assert own_state_of(parts_of(others, Place.of(stack, type_, "pet"))).complete is False
    everything = {**others, **pet("pet", "first", 900)}
    for place, claim, vmid in [
        (Place.of(stack, type_, "pet"), "first", 900),
        (Place.of("", type_, "pet-2"), "second", 902),
        (Place.of("urn:pulumi:home::mine::own:X::x", type_, "pet"), "inner", 903),
    ]:
        found = own_state_of(parts_of(everything, place))
        assert (found.claim, found.vmid, found.complete) == (claim, vmid, True)
        assert found.volumes == {"notes": f"local:vm-{vmid}-disk-1"}


# --- the plugin ---------------------------------------------------------------------------------


class Aborted(Exception):  # noqa: N818 - what gRPC raises
    pass


class Context:
    async def abort(self, _code: object, details: str) -> None:
        raise Aborted(details)


def answered(ask: Callable[[Package], Coroutine[Any, Any, Any]]) -> Any:
    # Not asyncio.run, which leaves the thread without a loop: the tests of the graph have one.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(ask(Package("127.0.0.1:9")))
    finally:
        loop.close()


def test_the_plugin_answers_for_its_resources_and_keeps_their_secrets() -> None:
    urn = "urn:pulumi:home::mine::hermes-homelab:index:PetStorage$hermes-homelab:proxmox:Guard::pet-guard"
    asked = Struct()
    asked.update({"reason": SECRET})
    made = answered(lambda plugin: plugin.Create(provider_pb2.CreateRequest(urn=urn, properties=asked), Context()))
    assert made.id == "s3cret"
    assert holds_secret(made.properties.fields["reason"])
    checked = answered(lambda plugin: plugin.Check(provider_pb2.CheckRequest(urn=urn, news=asked), Context()))
    assert holds_secret(checked.inputs.fields["reason"])


def test_the_plugin_tells_the_engine_its_schema_and_version() -> None:
    told = answered(lambda plugin: plugin.GetSchema(provider_pb2.GetSchemaRequest(), Context()))
    assert json.loads(told.schema) == SCHEMA
    version = answered(lambda plugin: plugin.GetPluginInfo(None, Context())).version
    assert version == SCHEMA["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_an_error_for_people_is_told_without_a_traceback() -> None:
    def configured(plugin: Package) -> Coroutine[Any, Any, Any]:
        args = struct_of({"endpoint": "http://192.0.2.1"})
        return plugin.Configure(provider_pb2.ConfigureRequest(args=args), Context())

    with pytest.MonkeyPatch.context() as patch:
        for name in ENVIRONMENT.values():
            patch.delenv(name, raising=False)
        with pytest.raises(Aborted) as error:
            answered(configured)
    assert "must be https://HOST:PORT" in str(error.value)
    assert "Traceback" not in str(error.value)
