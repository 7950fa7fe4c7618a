"""The server of the dynamic resources: what it understands as the SDK's own does, and what it does not import."""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.empty_pb2 import Empty
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st
from pulumi.runtime import rpc
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from components import claim, image, parts, phase
from components.dynamic import Resource
from components.providers import guard, server, verb
from components.providers.base import CreateResult, DiffResult, Props, ReadResult
from components.providers.messages import UNKNOWN, props_of, struct_of
from proxmox.connection import ENVIRONMENT
from proxmox.errors import Fault, Faults, Refusal

ROOT = Path(__file__).resolve().parents[2]
URN = "urn:pulumi:pet::hermes-homelab::hermes-homelab:components:PetStorage$pulumi-python:dynamic/proxmox:Guard::pet-g"
CONNECTION = {
    "endpoint": "https://192.0.2.10:8006/",
    "apiToken": "pulumi@pve!lab=00000000-0000-4000-8000-000000000001",
    "node": "pve",
}
SECRET = {rpc._special_sig_key: rpc._special_secret_sig, "value": "s3cret"}

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=12,
)
PROPS = st.dictionaries(st.text(min_size=1), VALUES, max_size=5)


@given(PROPS)
def test_properties_are_read_as_the_sdk_reads_them(props: Props) -> None:
    struct = Struct()
    struct.update(props)
    assert props_of(struct) == rpc.deserialize_properties(struct)


@given(PROPS)
def test_properties_are_written_as_the_sdk_writes_them(props: Props) -> None:
    # Not asyncio.run, which leaves the thread without a loop: the tests of the graph have one.
    loop = asyncio.new_event_loop()
    assert struct_of(props) == loop.run_until_complete(rpc.serialize_properties(props, {}))
    loop.close()


def test_what_is_unknown_is_told_apart_where_it_matters_and_left_out_where_not() -> None:
    struct = struct_of({"guest": UNKNOWN, "parts": [UNKNOWN], "vmid": 105, "gone": None})
    assert struct["guest"] == rpc.UNKNOWN
    assert props_of(struct, unknowns=True) == {"guest": UNKNOWN, "parts": [UNKNOWN], "vmid": 105.0}
    assert props_of(struct) == rpc.deserialize_properties(struct) == {"parts": [None], "vmid": 105.0}


def test_a_secret_is_its_value_however_deep() -> None:
    struct = Struct()
    struct.update({"token": SECRET, "inner": {"token": SECRET}})
    assert props_of(struct) == {"token": "s3cret", "inner": {"token": "s3cret"}}


# --- the providers ----------------------------------------------------------------------------------


def test_each_resource_has_its_provider_and_each_provider_a_resource() -> None:
    declared = {
        kind.kind
        for module in (claim, image, parts, phase)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Resource) and hasattr(kind, "kind")
    }
    assert declared == set(server.PROVIDERS)
    for kind in declared:
        urn = f"urn:pulumi:cattle::hermes-homelab::a:b:C${server.TYPE}{kind}::name"
        assert type(server.Server("p").provider(urn)).__name__ == server.PROVIDERS[kind].split(":")[1]


def test_pulumi_finds_the_server_in_the_place_of_the_sdks_own() -> None:
    [plugin] = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["plugins"]["providers"]
    assert plugin["name"] == server.TYPE.partition(":")[0]
    program = ROOT / plugin["path"] / f"pulumi-resource-{plugin['name']}"
    assert program.stat().st_mode & 0o111 == 0o111


def test_a_look_at_the_inputs_imports_neither_the_sdk_nor_the_client() -> None:
    """What each run without changes pays for, twice."""
    code = """
import sys
from components.providers.server import PROVIDERS, Server
server = Server("p")
server.methods()
for kind in PROVIDERS:
    provider = server.provider(f"urn:pulumi:s::p::pulumi-python:dynamic/{kind}::n")
    props = {"vmid": 105.0, "guest": "105"}
    provider.diff("", props, props)
    provider.check(props, props)
print(*sorted({"pulumi", "dill", "requests", "proxmoxer", "paramiko", "jinja2"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []


# --- over the wire ----------------------------------------------------------------------------------


class Failing(guard.GuardProvider):
    """Stands for a provider that fails, in one of two ways."""

    def create(self, props: Props) -> CreateResult:
        if props["reason"] == "told":
            raise Faults([Fault("node", "pve9", "there is no such node", "set node to pve")])
        raise RuntimeError("a fault of our own")

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        return DiffResult(olds != news, sorted(olds.keys() ^ news.keys()))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[provider_pb2_grpc.ResourceProviderStub]:
    """The engine's side of a server whose guard fails."""
    monkeypatch.setattr(guard, "GuardProvider", Failing)
    served = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    handler = grpc.method_handlers_generic_handler(
        "pulumirpc.ResourceProvider", server.Server("hermes-homelab:").methods()
    )
    served.add_generic_rpc_handlers((handler,))
    port = served.add_insecure_port("127.0.0.1:0")
    served.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield provider_pb2_grpc.ResourceProviderStub(channel)
    served.stop(None).wait()


def details(call: Any, request: Any) -> str:
    with pytest.raises(grpc.RpcError) as error:
        call(request)
    return str(error.value.details())


def test_an_error_for_people_is_its_text_alone(engine: Any) -> None:
    told = details(engine.Create, provider_pb2.CreateRequest(urn=URN, properties=struct_of({"reason": "told"})))
    assert "there is no such node" in told
    assert "Traceback" not in told
    told = details(engine.Create, provider_pb2.CreateRequest(urn=URN, properties=struct_of({"reason": "other"})))
    assert told.startswith("Traceback")
    assert "RuntimeError: a fault of our own" in told


class Bomb:
    """A pickle that does something when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.folder,)


def test_a_pickle_in_the_state_is_not_loaded(engine: Any, tmp_path: Path) -> None:
    """As the SDK's own resources have one. It is neither used nor a difference: who can write a state runs no code."""
    folder = tmp_path / "loaded"
    olds = struct_of({"reason": "x", "__provider": base64.b64encode(pickle.dumps(Bomb(folder))).decode()})
    request = provider_pb2.DiffRequest(urn=URN, id="x", olds=olds, news=struct_of({"reason": "x"}))
    answer = engine.Diff(request)
    assert (answer.changes, list(answer.replaces)) == (provider_pb2.DiffResponse.DIFF_NONE, [])
    read = engine.Read(provider_pb2.ReadRequest(urn=URN, id="x", properties=olds))
    assert (read.id, props_of(read.properties)) == ("x", {"reason": "x"})
    engine.Delete(provider_pb2.DeleteRequest(urn=URN, id="x", properties=olds))
    assert not folder.exists()


def test_the_settings_of_another_package_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin has keys of the same names, as in test_permissions.py."""
    for name in ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)
    ours = {f"hermes-homelab:{key}": value for key, value in CONNECTION.items()}
    theirs = {"proxmoxve:endpoint": "https://192.0.2.99:8006/", "proxmoxve:insecure": "true", "other:node": "elsewhere"}
    for told in ({**ours, **theirs}, {**theirs, **ours}):
        served = server.Server("hermes-homelab:")
        monkeypatch.setattr(server, "prove", lambda _connection: None)
        served.configure(provider_pb2.ConfigureRequest(args=struct_of(told)))
        found = served.provider(URN).connection()
        assert (found.endpoint, found.node, found.insecure) == ("https://192.0.2.10:8006", "pve", False)


def test_a_way_that_leads_nowhere_is_told_before_anything_is_asked(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line of its own, for the engine puts one before it."""
    for name in ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)
    told = details(engine.Configure, provider_pb2.ConfigureRequest(args=struct_of({"hermes-homelab:node": "pve"})))
    assert told.startswith("\nThe connection to Proxmox cannot be used: 2 faults\n")
    assert "an API token is needed" in told
    assert "Traceback" not in told


def test_the_engine_is_told_what_it_asks_first(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "prove", lambda _connection: None)
    monkeypatch.setenv("PROXMOX_VE_ENDPOINT", CONNECTION["endpoint"])
    monkeypatch.setenv("PROXMOX_VE_API_TOKEN", CONNECTION["apiToken"])
    assert engine.GetPluginInfo(Empty()).version == "0.1.0"
    answer = engine.Configure(provider_pb2.ConfigureRequest(args=struct_of({"hermes-homelab:node": "pve"})))
    # Without them: the engine gives values, and keeps to itself which of them are secret.
    assert not answer.acceptSecrets
    assert "no resource of the type" in details(
        engine.Create, provider_pb2.CreateRequest(urn=URN.replace("Guard", "Other"))
    )


# --- the guard --------------------------------------------------------------------------------------


def test_of_what_is_read_only_what_was_declared_becomes_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the engine shows what came of an operation as a difference, in each refresh."""
    declared = {"size": 1.0, "name": "a", "recorded": "x"}
    outs = {"size": 2.0, "name": "a", "seconds": 3.0}

    class Reads:
        def read(self, id_: str, props: Props) -> ReadResult:
            assert props == outs
            return ReadResult(id_, props, inputs=props)

    served = server.Server("hermes-homelab")
    monkeypatch.setattr(served, "provider", lambda _urn: Reads())

    def inputs_of(given: Props) -> Props:
        request = provider_pb2.ReadRequest(urn=URN, id="x", properties=struct_of(outs), inputs=struct_of(given))
        return props_of(served.read(request).inputs)

    assert inputs_of(declared) == {"size": 2.0, "name": "a", "recorded": "x"}
    # Of an import nothing is declared yet.
    assert inputs_of({}) == outs


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        ("pulumi destroy --stack pet", "destroy"),
        ("/opt/pulumi/bin/pulumi -C down --color never up --stack destroy", "up"),
        ("pulumi --non-interactive dn -y", "dn"),
        ("pulumi --cwd=/x preview", "preview"),
        ("pulumi", ""),
        ("", ""),
    ],
)
def test_the_engines_command_is_found_among_its_words(argv: str, found: str) -> None:
    assert verb.verb_in(argv.split()) == found


@pytest.mark.parametrize("proc", ["/proc", "/nowhere"])
def test_the_command_is_asked_of_the_process_that_has_started_this_one(proc: str, tmp_path: Path) -> None:
    """By /proc, or by ps where there is none."""
    ask = (
        "from pathlib import Path; from components.providers import verb; "
        f"verb.Path = lambda path: Path(path.replace('/proc', '{proc}')); print(verb.verb_in(verb.engine_words()))"
    )
    (tmp_path / "destroy").write_text(f'"{sys.executable}" -c "{ask}"\ntrue\n')
    done = subprocess.run(
        ["sh", "destroy"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == "destroy"


@pytest.mark.parametrize(
    "command", ["destroy", "down", "dn", "up", "refresh", "preview", "", "destroy --yes --exclude-protected"]
)
def test_the_guard_is_not_read_for_a_destroy(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "engine_words", lambda: ["pulumi", *command.split()])
    if command in ("destroy", "down", "dn"):
        with pytest.raises(Refusal, match="Remove everything for good"):
            guard.GuardProvider().read("why", {"reason": "why"})
    else:
        assert guard.GuardProvider().read("why", {"reason": "why"}).outs == {"reason": "why"}
