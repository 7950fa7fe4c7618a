"""The unmodified proxmoxve plugin against the lab: create, read, update, import, replace, destroy of one container.

This is about the lab, not about the product: a small program of its own declares every field that the stacks use, as a
token with the minimal role of facts proxmox 14.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.instance import ACCOUNT, CHECKOUT
from pvelab.config import LabConfig
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@x"
PROGRAM = """
import json, os
import pulumi
import pulumi_proxmoxve as pve
wish = json.loads(os.environ["WISH"])
provider = pve.Provider("p", endpoint=os.environ["PROXMOX_VE_ENDPOINT"], api_token=os.environ["PROXMOX_VE_API_TOKEN"])
pve.ContainerLegacy(
    "ct", node_name="pve", vm_id=wish["vmid"], unprivileged=True, started=wish["started"], start_on_boot=True,
    description=wish["description"], tags=["a", "b"], protection=wish["protection"],
    cpu={"cores": wish["cores"]}, memory={"dedicated": wish["memory"], "swap": 512},
    disk={"datastore_id": "local-lvm", "size": wish["disk"]}, features={"nesting": True},
    network_interfaces=[{"name": "eth0", "bridge": "vmbr0"}],
    initialization={
        "hostname": wish["hostname"], "user_account": {"keys": [os.environ["KEY"]], "password": "secret-one"},
        "ip_configs": [{"ipv4": {"address": "10.9.0.5/24", "gateway": "10.9.0.1"}}],
    },
    operating_system={"template_file_id": os.environ["TEMPLATE"], "type": "debian"},
    opts=pulumi.ResourceOptions(provider=provider, delete_before_replace=True),
)
"""
WISH: dict[str, Any] = {
    "vmid": 105,
    "started": True,
    "description": "50% of a pet:\nline two\n",
    "protection": False,
    "cores": 2,
    "memory": 1024,
    "disk": 8,
    "hostname": "hermes",
}


@dataclass
class Project:
    server: LabServer
    folder: Path
    env: dict[str, str]
    seen: int = 0

    def run(self, *argv: str, **changes: Any) -> subprocess.CompletedProcess[str]:
        env = {**self.env, "WISH": json.dumps({**WISH, **changes})}
        return subprocess.run(
            ["pulumi", *argv, "--non-interactive"],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def up(self, **changes: Any) -> None:
        result = self.run("up", "--yes", "--skip-preview", **changes)
        assert result.returncode == 0, result.stdout + result.stderr

    def writes(self) -> list[str]:
        """What changed something since the last look: method and path."""
        lines = self.server.access_log.read_text().splitlines()
        new, self.seen = lines[self.seen :], len(lines)
        entries = [json.loads(line) for line in new]
        assert all(entry["status"] != 501 for entry in entries), "the plugin asks for what the lab does not model"
        base = "/api2/json/nodes/pve/lxc"
        return [f"{e['method']} {e['path'].removeprefix(base)}" for e in entries if e["write"]]

    def config(self, vmid: int = 105) -> dict[str, str]:
        text = (self.server.config.guest_dir("pve") / f"{vmid}.conf").read_text()
        return dict(line.partition(": ")[::2] for line in text.splitlines() if not line.startswith("#"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    config = LabConfig(tmp_path / "lab", SimulatedRuntime(), auth_delay=0, account=ACCOUNT)
    with LabServer(config) as server:
        template = write_template(config.template_dir("pve"))
        folder, backend = tmp_path / "program", tmp_path / "backend"
        folder.mkdir()
        backend.mkdir()
        (folder / "__main__.py").write_text(PROGRAM)
        venv = json.dumps(str(CHECKOUT / ".cache/venv"))
        (folder / "Pulumi.yaml").write_text(
            f"name: plugin\nruntime:\n  name: python\n  options:\n    virtualenv: {venv}\n"
        )
        env = {
            **os.environ,
            "PATH": f"{CHECKOUT / '.cache/pulumi-cli/bin'}:{os.environ['PATH']}",
            "PULUMI_HOME": str(CHECKOUT / ".cache/pulumi-home"),
            "PULUMI_BACKEND_URL": backend.as_uri(),
            "PULUMI_CONFIG_PASSPHRASE": "of-a-test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PROXMOX_VE_ENDPOINT": server.endpoint,
            "PROXMOX_VE_API_TOKEN": server.seed_access().api_token,
            "SSL_CERT_DIR": f"/etc/ssl/certs:{server.ca_file.parent}",
            "TEMPLATE": f"local:vztmpl/{template.name}",
            "KEY": KEY,
        }
        made = Project(server, folder, env)
        result = made.run("stack", "init", "lab")
        assert result.returncode == 0, result.stderr
        yield made


def test_a_life(project: Project) -> None:
    project.up()
    assert project.writes() == ["POST "]
    made = project.config()
    assert (made["hostname"], made["cores"], made["memory"], made["tags"]) == ("hermes", "2", "1024", "a;b")
    assert made["rootfs"] == "local-lvm:vm-105-disk-0,size=8G"
    assert project.server.cluster.is_running("pve", 105)

    same = project.run("preview", "--refresh", "--expect-no-changes")
    assert same.returncode == 0, same.stdout
    assert project.writes() == []

    project.up(cores=3, memory=2048, disk=9, description="new\n")
    assert project.writes() == ["PUT /105/resize", "PUT /105/config", "POST /105/status/reboot"]
    changed = project.config()
    assert (changed["cores"], changed["memory"]) == ("3", "2048")
    assert changed["rootfs"].endswith("size=9G")

    project.up(vmid=106, cores=3, memory=2048, disk=9, description="new\n")
    assert project.writes() == ["POST /105/status/shutdown", "DELETE /105", "POST "]
    assert not project.server.cluster.conf_path("pve", 105).exists()

    gone = project.run("destroy", "--yes", "--skip-preview")
    assert gone.returncode == 0, gone.stdout
    assert project.writes() == ["POST /106/status/shutdown", "DELETE /106"]
    assert list(project.server.config.storage_dir("pve", "local-lvm").glob("*.raw")) == []


def test_a_taken_number_is_adopted(project: Project) -> None:
    """The hazard of facts proxmox 15, which the product guards against: the lab must be as dangerous as a node."""
    stranger = project.server.config.guest_dir("pve") / "105.conf"
    stranger.write_text("arch: amd64\nhostname: stranger\nmemory: 64\nrootfs: local-lvm:vm-105-disk-0,size=1G\n")
    project.server.config.runtime.format_volume(
        project.server.config.storage_dir("pve", "local-lvm") / "vm-105-disk-0.raw",
        1 << 30,
        root_owner=100000,
        log=lambda _text: None,
    )
    result = project.run("up", "--yes", "--skip-preview")
    assert project.writes()[:2] == ["POST ", "POST "], "one refused attempt and one retry"
    assert result.returncode == 0, result.stdout
    assert "hostname: stranger" in stranger.read_text()


def test_import(project: Project) -> None:
    project.up()
    assert project.run("state", "delete", "--yes", "--all").returncode == 0
    project.writes()
    result = project.run(
        *("import", "--yes", "--generate-code=false", "--protect=false"),
        *("proxmoxve:index/containerLegacy:ContainerLegacy", "ct", "pve/105"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert project.writes() == []
    state = json.loads(project.run("stack", "export").stdout)
    [imported] = [r for r in state["deployment"]["resources"] if r["type"].endswith(":ContainerLegacy")]
    assert imported["id"] == "105"
    assert imported["outputs"]["initialization"]["hostname"] == "hermes"


def test_protection_stops_a_destroy(project: Project) -> None:
    """Facts pulumi: the provider shuts the container down before Proxmox refuses."""
    project.up(protection=True)
    project.writes()
    result = project.run("destroy", "--yes", "--skip-preview", protection=True)
    assert result.returncode != 0
    assert "protection mode enabled" in result.stdout + result.stderr
    assert project.writes()[0] == "POST /105/status/shutdown"
    assert project.config()["protection"] == "1"
