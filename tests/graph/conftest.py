"""The resource graph without an engine: what is registered, with which inputs and options."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime import mocks

MAC = "BC:24:11:00:00:01"


@dataclass
class Registered:
    """One resource as the engine was told of it."""

    name: str
    type: str
    inputs: dict[str, Any]


@dataclass
class Graph(mocks.Mocks):
    """Stands for the plugins: answers inputs as outputs, and what Proxmox would have made up."""

    resources: dict[str, Registered] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        self.resources[args.name] = Registered(args.name, args.typ, dict(args.inputs))
        outputs = dict(args.inputs)
        if args.typ.endswith(":ContainerLegacy"):
            outputs["networkInterfaces"] = [
                {**card, "macAddress": MAC} for card in args.inputs.get("networkInterfaces") or []
            ]
        made_up: dict[str, Any] = {
            "Claim": {"claim": "00000000-0000-4000-8000-000000000001"},
            "Volume": {"ref": "local-lvm:vm-999-disk-1"},
            "VolumeAttachment": {"seconds": 1.0},
            "Power": {"seconds": 1.0},
            "Access": {
                "address": "192.0.2.5",
                "host_key": "ssh-ed25519 AAAA",
                "fingerprint": "SHA256:x",
                "seconds": 1.0,
            },
            "Phase": {
                "results": {"directory": "/opt/hermes/0.19.0", "version": "0.19.0", "identity": "0123abcd"},
                "seconds": 1.0,
            },
            "Command": {"stdout": "active\n"},
            "Image": {"vmid": 9000.0, "number": 1.0, "results": {}, "seconds": 1.0},
        }
        outputs |= made_up.get(args.typ.rsplit(":", 1)[1], {})
        return f"{args.name}-id", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"nothing is to be asked of the engine here: {args.token}")

    def options(self, name: str) -> Any:
        """The registration request of a resource: its options as the engine got them."""
        return self.requests[name]


class Monitor(mocks.MockMonitor):
    """Keeps each registration request, options included."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.graph = graph

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802 - gRPC's name
        self.graph.requests[request.name] = request
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]

    def RegisterResourceHook(self, _request: Any) -> Any:  # noqa: N802
        return empty_pb2.Empty()


Declare = Callable[[Callable[[], Any]], Graph]


def graph_of(program: Callable[[], Any]) -> Graph:
    """Run a function that declares resources, and answer the graph of what it declared."""
    graph = Graph()
    pulumi.runtime.set_mocks(graph, project="hermes-homelab", stack="test", preview=False, monitor=Monitor(graph))

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def declared() -> Any:
        program()

    declared()
    return graph


@pytest.fixture(autouse=True, scope="session")
def login_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key that logs in to the cattle, named by the environment."""
    file = tmp_path_factory.mktemp("login") / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True, timeout=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_SSH_KEY_FILE", str(file))
        yield


@pytest.fixture
def declare() -> Declare:
    return graph_of
