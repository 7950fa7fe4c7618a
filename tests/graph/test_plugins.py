"""What the program declares of the plugins is what the plugins' own Python packages would declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pulumi
import pulumi_command as command
import pulumi_proxmoxve as proxmoxve
import pytest
from google.protobuf.json_format import MessageToDict

from components import plugins
from components.claim import Claim
from components.plugins import ContainerLegacy, ProxmoxProvider, RemoteCommand, start_ahead

if TYPE_CHECKING:
    from tests.graph.conftest import Declare

PLACES = {"sourcePosition", "stackTrace"}
"""Where in the program a resource is declared."""

CONTAINER: dict[str, Any] = {
    "vmId": 105,
    "nodeName": "pve",
    "description": "notes",
    "tags": ["agent"],
    "unprivileged": True,
    "protection": False,
    "started": False,
    "startOnBoot": True,
    "operatingSystem": {"templateFileId": "local:vztmpl/x", "type": "debian"},
    "cpu": {"cores": 2},
    "memory": {"dedicated": 4096, "swap": 512},
    "disk": {"datastoreId": "local-lvm", "size": 20},
    "features": {"nesting": True},
    "networkInterfaces": [
        {
            **{"name": "eth0", "bridge": "vmbr0", "vlanId": 7, "mtu": 1400, "firewall": True},
            **{"macAddress": "BC:24:11:00:00:01", "rateLimit": 2.5, "hostManaged": False},
        }
    ],
    "initialization": {
        "hostname": "hermes",
        "ipConfigs": [{"ipv4": {"address": "dhcp", "gateway": ""}, "ipv6": {"address": "auto", "gateway": ""}}],
        "dns": {"servers": ["192.0.2.1"], "domain": "lan"},
        "userAccount": {"keys": ["ssh-ed25519 AAAA"]},
    },
}
NESTED = {
    "operatingSystem": "OperatingSystem",
    "cpu": "Cpu",
    "memory": "Memory",
    "disk": "Disk",
    "features": "Features",
    "networkInterfaces": "NetworkInterface",
    "initialization": "Initialization",
    "ipConfigs": "InitializationIpConfig",
    "ipv4": "InitializationIpConfigIpv4",
    "ipv6": "InitializationIpConfigIpv6",
    "dns": "InitializationDns",
    "userAccount": "InitializationUserAccount",
}
CONNECTION: dict[str, Any] = {
    **{"host": "192.0.2.5", "user": "root", "privateKey": "key", "hostKey": "ssh-ed25519 AAAA"},
    **{"dialErrorLimit": 70, "perDialTimeout": 10},
}


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def typed(props: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the package's own classes; one that they do not know is an error."""

    def made(key: str, value: Any) -> Any:
        if isinstance(value, list):
            return [made(key, item) for item in value]
        if isinstance(value, dict):
            return getattr(proxmoxve, f"ContainerLegacy{NESTED[key]}Args")(**typed(value))
        return value

    return {snake(key): made(key, value) for key, value in props.items()}


def opts() -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions(ignore_changes=["started"], delete_before_replace=True)


def asked(declare: Declare, program: Any) -> dict[str, Any]:
    """What the engine was asked for, where it was asked from left out."""
    request = declare(program).requests["it"]
    return {key: value for key, value in MessageToDict(request).items() if key not in PLACES}


@pytest.mark.parametrize("network", [True, False])
def test_the_container(declare: Declare, network: bool) -> None:
    props = CONTAINER if network else {**CONTAINER, "networkInterfaces": [], "features": None}
    ours = asked(declare, lambda: ContainerLegacy("it", props, opts()))
    theirs = asked(declare, lambda: proxmoxve.ContainerLegacy("it", **typed(props), opts=opts()))
    assert ours == theirs


@pytest.mark.parametrize("insecure", [None, True, False])
@pytest.mark.parametrize("given", [None, "https://192.0.2.1:8006/"])
def test_the_provider(declare: Declare, insecure: bool | None, given: str | None) -> None:
    def mapped() -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(env_var_mappings={"PROXMOX_VE_CA_FILE": "SSL_CERT_FILE"})

    token = None if given is None else "x@pve!y=z"
    made: dict[str, Any] = {"endpoint": given, "api_token": token, "insecure": insecure}
    ours = asked(declare, lambda: ProxmoxProvider("it", **made, opts=mapped()))
    theirs = asked(declare, lambda: proxmoxve.Provider("it", **made, opts=mapped()))
    assert ours == theirs


@pytest.mark.parametrize("logging", [None, "stderr"])
def test_the_command(declare: Declare, logging: Literal["stderr"] | None) -> None:
    def told() -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(additional_secret_outputs=["stdout"] if logging else None)

    ours = asked(
        declare,
        lambda: RemoteCommand("it", connection=CONNECTION, create="true", logging=logging, opts=told()),
    )
    connection = command.remote.ConnectionArgs(**{snake(key): value for key, value in CONNECTION.items()})
    theirs = asked(
        declare,
        lambda: command.remote.Command(
            "it",
            connection=connection,
            create="true",
            add_previous_output_in_env=False,
            logging=None if logging is None else command.remote.Logging.STDERR,
            opts=told(),
        ),
    )
    assert ours == theirs


# --- the server of our own resources ---


class Monitor:
    """Stands for the engine: what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.Invoke = self

    def future(self, request: Any) -> object:
        self.asked.append(request)
        return object()


def test_our_server_is_started_once_and_is_the_one_of_the_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine takes the package from a type, and a provider of its own for each version that is asked for."""
    monitor = Monitor()
    monkeypatch.setattr(plugins, "_asked", [])
    monkeypatch.setattr(plugins, "get_monitor", lambda: monitor)
    start_ahead()
    start_ahead()
    (request,) = monitor.asked
    assert request.tok.split(":")[0] == Claim.prefix.split(":")[0]
    assert (request.version, request.provider, request.pluginDownloadURL) == ("", "", "")


def test_without_an_engine_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_asked", [])
    monkeypatch.setattr(plugins, "get_monitor", lambda: None)
    start_ahead()
    assert plugins._asked == []
