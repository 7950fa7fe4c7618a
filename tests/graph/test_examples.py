"""The example of another repository, on the outputs that a cattle has."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks

from settings.outputs import outputs_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "other-stack"
CATTLE = "organization/hermes-homelab/cattle"
FOUND = {
    "address": "192.0.2.5",
    "hostname": "hermes",
    "sshHostKey": "ssh-ed25519 AAAA",
    "sshKeyFile": "/home/a b/.ssh/id_ed25519",
    "dashboard": "http://192.0.2.5:9119",
    "api": "http://192.0.2.5:8642/v1",
    "apiKey": "canary-of-the-key",
}
FILES = {
    "dnsmasq.conf": "host-record=hermes.lan,192.0.2.5\n",
    "Caddyfile": "hermes.lan {\n\treverse_proxy http://192.0.2.5:9119\n}\n",
    "ssh_config": 'Host hermes\n  HostName 192.0.2.5\n  User root\n  IdentityFile "/home/a b/.ssh/id_ed25519"\n',
    "known_hosts": "192.0.2.5 ssh-ed25519 AAAA\n",
    "api.env": "HERMES_API_URL=http://192.0.2.5:8642/v1\nHERMES_API_KEY=canary-of-the-key\n",
}


class Engine(mocks.Mocks):
    def __init__(self, outputs: dict[str, str]) -> None:
        self.outputs = outputs
        self.files: dict[str, dict[str, Any]] = {}

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[Any, Any]]:
        if args.typ == "command:local:Command":
            self.files[args.name] = args.inputs
            return args.name, args.inputs
        assert (args.typ, args.name) == ("pulumi:pulumi:StackReference", CATTLE)
        return CATTLE, {**args.inputs, "outputs": self.outputs, "secretOutputNames": ["apiKey"]}

    def call(self, args: pulumi.runtime.MockCallArgs) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"nothing is to be asked of the engine here: {args.token}")


def made(monkeypatch: pytest.MonkeyPatch, **outputs: str) -> Engine:
    """What the program declares, with these outputs of the cattle."""
    engine = Engine({**FOUND, **outputs})
    monkeypatch.setattr(pulumi, "export", lambda *_: None)
    pulumi.runtime.set_mocks(engine, project="hermes-consumer", stack="home", preview=False)
    for key, declared in yaml.safe_load((EXAMPLE / "Pulumi.yaml").read_text())["config"].items():
        pulumi.runtime.set_config(f"hermes-consumer:{key}", declared["default"])

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def run() -> None:
        runpy.run_path(str(EXAMPLE / "__main__.py"), run_name="__main__")

    run()
    return engine


def test_the_other_program_makes_files_of_the_cattle_s_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    files = made(monkeypatch).files
    assert files.keys() == FILES.keys()
    for title, text in FILES.items():
        stdin = files[title]["stdin"]
        # The key is a secret on the wire to the engine, and in no command line.
        assert (stdin["value"] if isinstance(stdin, dict) else stdin) == text
        assert isinstance(stdin, dict) is (title == "api.env")
        assert "canary" not in files[title]["create"]


def test_where_no_other_machine_reaches_the_dashboard_there_is_no_proxy_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, dashboard="").files["Caddyfile"]["stdin"] == "# the dashboard is off, or on loopback\n"


def test_the_examples_ask_for_outputs_that_are_promised() -> None:
    asked = re.findall(r'require_output\("(\w+)"\)', (EXAMPLE / "__main__.py").read_text())
    asked += re.findall(r'outputs\["(\w+)"\]', (EXAMPLE / "yaml" / "Pulumi.yaml").read_text())
    assert len(asked) > 8
    assert {name for name in asked if not outputs_of("hermes")[name].stable} == set()


def test_the_program_with_components_gives_them_inputs_that_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes are those of the schema; a secret is one on the wire, and a volume is what the pet has made."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sdk"))
    made: dict[str, dict[str, Any]] = {}

    class Components(Engine):
        def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[Any, Any]]:
            made[args.typ] = args.inputs
            volumes = {name: {"volid": f"local-lvm:{name}"} for name in ("agent", "files")}
            return args.name, {"volumes": volumes} if args.typ.endswith(":PetStorage") else {}

    monkeypatch.setattr(pulumi, "export", lambda *_: None)
    pulumi.runtime.set_mocks(Components({}), project="hermes-package", stack="home", preview=False)
    for key, value in {
        "agentMode": "none",
        "model": "m",
        "modelUrl": "u",
        "modelKey": "s3cret",
        "files": "200",
    }.items():
        pulumi.runtime.set_config(f"hermes-package:{key}", value)

    @pulumi.runtime.test  # type: ignore[untyped-decorator]
    def run() -> None:
        runpy.run_path(str(ROOT / "examples" / "package" / "__main__.py"), run_name="__main__")

    run()
    assert [token.rpartition(":")[2] for token in made] == ["PetStorage", "Cattle", "Attachment"]
    cattle, attachment = made["hermes-homelab:index:Cattle"], made["hermes-homelab:index:Attachment"]
    assert cattle["agentModelKey"]["value"] == "s3cret"
    assert cattle["cattleVolume"] == "local-lvm:agent"
    assert attachment == {"vmid": 200, "volume": "local-lvm:files", "path": "/srv/files"}


def test_its_packages_are_those_that_the_tests_ran_with() -> None:
    lock = "".join((ROOT / f"requirements{part}.lock").read_text() for part in ("", "-tests"))
    for example in (EXAMPLE, EXAMPLE.with_name("package")):
        for line in (example / "requirements.txt").read_text().splitlines():
            assert f"{line} " in lock
