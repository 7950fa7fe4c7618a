"""What the program declares of the two plugins, by the names of their own schemas.

The plugins' Python packages say the same with types, and take a third of a second to import in each run
(facts pulumi, "Cost"). The tests declare both, and hold that the engine is asked for the same
(tests/graph/test_plugins.py). So a stack needs neither of them: toolchain.toml has the versions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pulumi
from pulumi.runtime.proto.resource_pb2 import ResourceInvokeRequest
from pulumi.runtime.settings import get_monitor

from components.naming import PROGRAM

Props = dict[str, Any]

PROXMOXVE_URL = "github://api.github.com/muhlba91/pulumi-proxmoxve"


@cache
def _pins() -> dict[str, Any]:
    """The plugins of toolchain.toml, by name: those that scripts/setup has installed."""
    text = (Path(__file__).parents[1] / "toolchain.toml").read_text(encoding="utf-8")
    plugins: dict[str, Any] = tomllib.loads(text)["plugins"]
    return plugins


def _defaults(plugin: str, url: str | None = None) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions(version=_pins()[plugin]["version"], plugin_download_url=url)


class ProxmoxProvider(pulumi.ProviderResource):
    """The proxmoxve plugin, and how it reaches Proxmox. What is None, it reads in its environment."""

    def __init__(
        self,
        name: str,
        *,
        endpoint: pulumi.Input[str] | None,
        api_token: pulumi.Input[str] | None,
        insecure: bool | None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        props: Props = {
            "endpoint": endpoint,
            "apiToken": None if api_token is None else pulumi.Output.secret(api_token),
            # A provider's inputs are texts.
            "insecure": None if insecure is None else pulumi.runtime.to_json(insecure),
        }
        secret = ["apiToken", "authTicket", "csrfPreventionToken", "password"]
        ours = pulumi.ResourceOptions.merge(_defaults("proxmoxve", PROXMOXVE_URL), opts)
        more = pulumi.ResourceOptions(additional_secret_outputs=secret)
        super().__init__("proxmoxve", name, props, pulumi.ResourceOptions.merge(ours, more))


class ContainerLegacy(pulumi.CustomResource):
    """A container of the proxmoxve plugin. ``props``: by the schema's names."""

    def __init__(self, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        given = {"networkInterfaces": None, **props}
        ours = pulumi.ResourceOptions.merge(_defaults("proxmoxve", PROXMOXVE_URL), opts)
        super().__init__("proxmoxve:index/containerLegacy:ContainerLegacy", name, given, ours)

    @property
    def network_interfaces(self) -> pulumi.Output[Sequence[Mapping[str, Any]] | None]:
        """The network cards, each by the schema's names."""
        found: pulumi.Output[Sequence[Mapping[str, Any]] | None] = self.__dict__["networkInterfaces"]
        return found


class RemoteCommand(pulumi.CustomResource):
    """A command of the command plugin, on a machine that is reached by SSH.

    ``connection``: by the schema's names; ``logging``: which of its streams is logged, both where it is None.
    """

    stdout: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        *,
        connection: Mapping[str, Any],
        create: pulumi.Input[str],
        logging: Literal["stderr"] | None = None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        props: Props = {
            "addPreviousOutputInEnv": False,
            "connection": pulumi.Output.secret({"port": 22, **connection}),
            "create": create,
            "logging": logging,
            "stdout": None,
        }
        ours = pulumi.ResourceOptions.merge(_defaults("command"), opts)
        more = pulumi.ResourceOptions(additional_secret_outputs=["connection"], replace_on_changes=["triggers[*]"])
        super().__init__("command:remote:Command", name, props, pulumi.ResourceOptions.merge(ours, more))


_asked: list[Any] = []
"""A question that nobody holds is taken back."""


def start_ahead() -> None:
    """Have the engine start the server of our own resources now, as it would at the first of them.

    It comes up while the program goes on. Nothing in the protocol means "start": so a function is asked for that it
    does not have. Its refusal is nobody's business, since what is wrong with the server, the first resource tells.
    """
    monitor = get_monitor()
    if monitor is not None and not _asked:
        ours = PROGRAM.resource.partition("/")[0]
        _asked.append(monitor.Invoke.future(ResourceInvokeRequest(tok=f"{ours}:startAhead")))
