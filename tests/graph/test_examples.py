"""The example of another stack, on the outputs that a cattle has."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks

PROGRAM = Path(__file__).parents[2] / "examples" / "other-stack" / "__main__.py"
CATTLE = "organization/hermes-homelab/cattle"
OUTPUTS = {
    "address": "192.0.2.5",
    "hostname": "hermes",
    "sshHostKey": "ssh-ed25519 AAAA",
    "sshKeyFile": "/home/a b/.ssh/id_ed25519",
}


class Engine(mocks.Mocks):
    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[Any, Any]]:
        assert (args.typ, args.name) == ("pulumi:pulumi:StackReference", CATTLE)
        return CATTLE, {**args.inputs, "outputs": OUTPUTS}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"nothing is to be asked of the engine here: {args.token}")


def test_the_other_stack_makes_an_ssh_configuration_of_the_cattle_s_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    exported: dict[str, pulumi.Output[str]] = {}
    monkeypatch.setattr(pulumi, "export", exported.__setitem__)
    pulumi.runtime.set_mocks(Engine(), project="hermes-ssh", stack="ssh", preview=False)
    pulumi.runtime.set_config("hermes-ssh:cattle", CATTLE)
    seen: list[Any] = []

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def run() -> Any:
        runpy.run_path(str(PROGRAM), run_name="__main__")
        return pulumi.Output.all(**exported).apply(seen.append)

    run()
    assert seen == [
        {
            "sshConfig": 'Host hermes\n  HostName 192.0.2.5\n  User root\n  IdentityFile "/home/a b/.ssh/id_ed25519"\n',
            "knownHosts": "192.0.2.5 ssh-ed25519 AAAA\n",
        }
    ]
