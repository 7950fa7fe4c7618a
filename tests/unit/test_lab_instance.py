"""A lab's folder: what it may take over, who is its daemon, and what it tells a shell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.environment import environment
from lab.instance import Lab, LabError, Ready
from lab.stacks import stack_values


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "a lab")
    lab.prepare()
    return lab


def test_secrets_are_made_once_and_for_the_owner_alone(lab: Lab) -> None:
    files = (lab.model_key_file, lab.ssh_key_file)
    before = [file.read_text() for file in files]
    lab.prepare()
    assert [file.read_text() for file in files] == before
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert lab.state_dir.stat().st_mode & 0o777 == 0o700


def test_before_the_first_up_there_is_nothing_to_point_at(lab: Lab) -> None:
    assert lab.last_port() == 0
    with pytest.raises(LabError, match="scripts/lab up"):
        environment(lab)


def ready(lab: Lab) -> Ready:
    return Ready(
        containers=True,
        endpoint="https://127.0.0.1:8006/",
        port=8006,
        ca_file=str(lab.state_dir / "ca" / "ca.pem"),
        node="pve",
        template="local:vztmpl/debian-12-standard_12.0-1_amd64.tar.zst",
        model_url="http://10.64.5.1:8100/v1",
        model="lab-model",
    )


def test_the_shell_gets_what_the_daemon_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    lab.say_ready(ready(lab))
    lab.token_file.write_text("pulumi@pve!lab=1234\n")
    values = environment(lab)
    assert values["PROXMOX_VE_ENDPOINT"] == "https://127.0.0.1:8006/"
    assert values["PROXMOX_VE_API_TOKEN"] == "pulumi@pve!lab=1234"
    assert values["PATH"].endswith(":/usr/bin:/bin")
    assert "HERMES_LAB_GATEWAY" not in values
    assert lab.last_port() == 8006
    # A shell that already points at the lab does not collect it twice.
    monkeypatch.setenv("PATH", values["PATH"])
    assert environment(lab)["PATH"] == values["PATH"]


@pytest.mark.parametrize("kind", ["upstream", "stand-in"])
def test_the_stacks_install_the_newest_release_that_the_lab_serves(lab: Lab, kind: str) -> None:
    url = "git://10.64.5.1:9418/hermes-agent.git"
    said = replace(ready(lab), source_kind=kind, source_url=url, source_version="1.2")
    lab.say_ready(replace(said, source_tag="v1.2", source_commit="c" * 40))
    values = stack_values(lab)
    found = [values[key] for key in ("agentSource", "agentRepository", "agentVersion", "agentTag", "agentCommit")]
    assert found == ["git", url, "1.2", "v1.2", "c" * 40]


def test_the_stacks_of_a_lab_without_containers_name_the_products_release(lab: Lab) -> None:
    lab.say_ready(replace(ready(lab), containers=False))
    values = stack_values(lab)
    assert (values["agentSource"], values["agentVersion"]) == ("git", "0.20.3")
    assert "agentRepository" not in values
