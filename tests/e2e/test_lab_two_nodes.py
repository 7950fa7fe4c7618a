"""Two nodes with real containers, through the API and ``pct`` alone: no fake between core and kernel.

The pet and its cattle live on the second node; every request goes to the first.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests
import yaml

from lab.engine import Run, command, pulumi
from lab.environment import environment
from lab.instance import CHECKOUT, Lab
from lab.stacks import PROJECT, make_stack
from pvelab.hostfolders import HostFolders

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")

BASE = "/nodes/pve2/lxc"
TASK_DEADLINE = 60.0


@dataclass
class Client:
    """The API of the first node with the lab's own token, and ``pct``."""

    lab: Lab
    session: requests.Session

    def call(self, method: str, path: str, **params: Any) -> Any:
        """Data of a call that must succeed, its task included (a warning is a success)."""
        body = method in ("POST", "PUT")
        answer = self.session.request(
            method,
            f"{self.lab.ready().endpoint.rstrip('/')}/api2/json{path}",
            data=params if body else None,
            params=None if body else params,
            verify=self.lab.ready().ca_file,
            timeout=60,
        )
        assert answer.status_code == 200, f"{method} {path}: {answer.reason} {answer.text}"
        data = answer.json()["data"]
        if isinstance(data, str) and data.startswith("UPID:"):
            status = self._wait(data)
            assert status == "OK" or status.startswith("WARNINGS"), f"{method} {path}: {status}"
        return data

    def _wait(self, upid: str) -> str:
        path = f"/nodes/{upid.split(':')[1]}/tasks/{quote(upid, safe='')}/status"
        end = time.monotonic() + TASK_DEADLINE
        while time.monotonic() < end:
            state = self.call("GET", path)
            if state["status"] == "stopped":
                return str(state["exitstatus"])
            time.sleep(0.05)
        raise AssertionError(f"{upid} does not end")

    def pct(self, *words: str) -> str:
        done = run("-m", "pvelab.pct", "--lab", str(self.lab.state_dir), *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def sh(self, vmid: int, script: str) -> str:
        return self.pct("exec", str(vmid), "--", "sh", "-ec", script).strip()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder) / "lab")
        cli = ("-m", "lab.cli", "--dir", str(lab.state_dir))
        up = run(*cli, "up", "--nodes", "2", "--images")
        assert up.returncode == 0, up.stderr
        try:
            session = requests.Session()
            session.trust_env = False
            session.headers["Authorization"] = f"PVEAPIToken={lab.token_file.read_text().strip()}"
            with session:
                yield Client(lab, session)
        finally:
            gone = run(*cli, "destroy")
            assert gone.returncode == 0, gone.stderr
            assert not lab.state_dir.exists()


def test_both_nodes_have_an_address(client: Client) -> None:
    described = json.loads((client.lab.state_dir / "server.json").read_text())
    assert list(described["nodes"]) == ["pve", "pve2"]
    assert [node["node"] for node in client.call("GET", "/nodes")] == ["pve", "pve2"]


def test_a_volume_outlives_its_cattle(client: Client) -> None:
    ready = client.lab.ready()
    client.call("POST", BASE, vmid=999, ostemplate=ready.template, rootfs="local-lvm:2", hostname="pet")
    client.call("PUT", f"{BASE}/999/config", mp0="local-lvm:1,mp=/data,backup=1")
    client.call("PUT", f"{BASE}/999/config", protection=1)
    for _ in range(2):
        client.call("POST", BASE, vmid=105, ostemplate=ready.template, rootfs="local-lvm:4", features="nesting=1")
        client.call("PUT", f"{BASE}/105/config", mp0="local-lvm:vm-999-disk-1,mp=/home/hermes")
        client.call("POST", f"{BASE}/105/status/start")
        client.sh(105, "echo once >> /home/hermes/story; sync")
        client.call("POST", f"{BASE}/105/status/shutdown", timeout=30, forceStop=1)
        client.call("DELETE", f"{BASE}/105")
    client.call("POST", f"{BASE}/999/status/start")
    assert client.sh(999, "cat /data/story") == "once\nonce"
    client.call("POST", f"{BASE}/999/status/stop")


def test_hot_mount_pending_detach_and_reboot(client: Client) -> None:
    """Facts proxmox 3.2, on a kernel: an empty slot is mounted at once, a detach waits for the end."""
    ready = client.lab.ready()
    client.call("POST", BASE, vmid=106, ostemplate=ready.template, rootfs="local-lvm:4", features="nesting=1", start=1)
    end = time.monotonic() + TASK_DEADLINE
    while client.call("GET", f"{BASE}/106/status/current")["status"] != "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    client.call("PUT", f"{BASE}/106/config", mp0="local-lvm:1,mp=/srv/deep/inside")
    assert client.sh(106, "findmnt -no FSTYPE /srv/deep/inside") == "ext4"
    client.call("PUT", f"{BASE}/106/config", delete="mp0")
    pending = {entry["key"]: entry for entry in client.call("GET", f"{BASE}/106/pending")}
    assert pending["mp0"]["delete"] == 1
    assert client.sh(106, "findmnt -no FSTYPE /srv/deep/inside") == "ext4"
    client.call("POST", f"{BASE}/106/status/reboot")
    assert client.call("GET", f"{BASE}/106/config")["unused0"] == "local-lvm:vm-106-disk-1"
    assert client.sh(106, "findmnt -no FSTYPE /srv/deep/inside || echo gone") == "gone"
    client.call("DELETE", f"{BASE}/106", force=1)
    assert client.call("GET", "/nodes/pve2/storage/local-lvm/content", vmid=106) == []


def test_a_bind_mount_by_root_on_the_node(client: Client) -> None:
    """Facts proxmox 2.2: no token may, ``pct`` as root does."""
    folder = HostFolders(client.lab.state_dir / "nodes" / "pve2" / "host").on_machine("/srv/some folder")
    folder.mkdir(parents=True)
    (folder / "note").write_text("from the host\n")
    ready = client.lab.ready()
    client.call("POST", BASE, vmid=107, ostemplate=ready.template, rootfs="local-lvm:4", features="nesting=1")
    client.pct("set", "107", "-mp0", "/srv/some folder,mp=/shared,ro=1")
    client.pct("start", "107")
    assert client.sh(107, "cat /shared/note; findmnt -no OPTIONS /shared | cut -d, -f1") == "from the host\nro"
    client.pct("stop", "107")
    client.pct("destroy", "107")
    assert (folder / "note").read_text() == "from the host\n"


# --- the example: a cattle on the second node, with its disks and no pet --------------------------

EXAMPLE = CHECKOUT / "examples" / "docker-on-another-node" / "Pulumi.cattle-118.yaml"
STACK = "cattle-118"
COPIES = {"source": "/srv/copies", "path": "/mnt/copies", "owner": 0}


def deploy(client: Client, verb: str, **changes: object) -> Run:
    """One run of the engine with the example's settings, its surroundings exchanged for the lab's."""
    lab, ready = client.lab, client.lab.ready()
    assert ready.node_ssh is not None
    content = yaml.safe_load(lab.stack_config_file.read_text())
    # The lab's address is static, the example's by DHCP.
    content["config"] = {key: value for key, value in content["config"].items() if ":cattle" not in key}
    surroundings = {
        "node": "pve2",
        "agentModelUrl": ready.model_url,
        "agentModel": ready.model,
        "agentImage": ready.image,
        "agentCaFile": ready.registry_ca_file,
        "nodeSshPort": ready.node_ssh["pve2"]["port"],
        "nodeSshHostKey": ready.node_ssh["pve2"]["host_key"],
        "agentCopyRepository": f"{COPIES['path']}/hermes",
        **changes,
    }
    example = yaml.safe_load(EXAMPLE.read_text())["config"]
    example[f"{PROJECT}:cattleHostMounts"].append(COPIES)
    content["config"] |= example
    content["config"] |= {f"{PROJECT}:{key}": value for key, value in surroundings.items()}
    lab.stack_config_file.write_text(yaml.safe_dump(content, sort_keys=False))
    yes = [] if verb == "preview" else ["--yes", "--skip-preview"]
    return pulumi([verb, "--stack", STACK, *yes], cwd=CHECKOUT, env=surrounded(lab))


def surrounded(lab: Lab) -> dict[str, str]:
    return {**os.environ, **environment(lab), "PROXMOX_VE_NODE": "pve2"}


def agent(client: Client, *words: str) -> str:
    """What `scripts/agent` says of the cattle."""
    argv = [str(CHECKOUT / "scripts" / "agent"), "--stack", STACK, *words]
    env = surrounded(client.lab)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def a_drill_in_docker_reads_the_second_copy(client: Client) -> None:
    """The copy is all that is left of the backups. The agent's container works on, and nothing of the drill stays."""
    agent(client, "prompt", "remember: the cat is called Miez")
    name = agent(client, "backup").partition("backups/")[2].split()[0]
    agent(client, "copy", "--init")
    client.sh(118, "rm -r /home/hermes/.hermes-stack/backups")

    def real() -> str:
        return client.sh(118, "docker inspect --format '{{.Id}} {{.State.Pid}} {{.State.StartedAt}}' hermes")

    before = real()
    address = client.sh(118, "hostname -I").split()[0]
    said = agent(client, "drill", "--vmid", "119", "--from-copy")
    assert f"drill: {address}:22 answered before, and does not any more" in said
    assert "Miez" in said
    assert f"drill: passed. {name}, from the copy: files " in said
    assert real() == before
    assert [row["vmid"] for row in client.call("GET", BASE) if int(row["vmid"]) == 119] == []
    stacks = json.loads(command("stack", "ls", "--json", cwd=CHECKOUT, env=surrounded(client.lab)))
    assert not [row["name"] for row in stacks if "drill" in row["name"]]
    assert re.search(rf"^drill +passed: .* {name}, from the copy$", agent(client, "status"), re.MULTILINE)


@pytest.mark.timeout(900)
def test_the_example_with_big_disks_on_another_node(client: Client) -> None:
    """The design's verification list, then its rollback: destroy, and the folders stay."""
    make_stack(client.lab, STACK)
    secret = ("config", "set", "--secret", "--stack", STACK, "agentCopyPassword")
    command(*secret, cwd=CHECKOUT, env=surrounded(client.lab), stdin="correct horse battery")
    folders = HostFolders(client.lab.state_dir / "nodes" / "pve2" / "host")
    data, fast = folders.on_machine("/mnt/pve/hdd/hermes"), folders.on_machine("/media/2tb/hermes")
    # The first node's shell is another node's: told before anything is made.
    first = client.lab.ready()
    wrong = deploy(
        client,
        "preview",
        nodeSshPort=first.node_ssh_port,
        nodeSshHostKey=first.node_ssh_host_key,
    )
    assert not wrong.ok
    assert "is that of node pve, not of pve2" in wrong.explain()

    # The container, its features and mounts, the agent, and its answer to a prompt by the model: verify.
    up = deploy(client, "up")
    assert up.ok, up.explain()
    config = client.call("GET", f"{BASE}/118/config")
    assert config["features"] == "keyctl=1,nesting=1"
    assert (config["mp1"], config["mp2"]) == ("/mnt/pve/hdd/hermes,mp=/data", "/media/2tb/hermes,mp=/fast")
    assert (config["cores"], config["memory"], config["swap"], config["onboot"]) == (2, 4096, 512, 1)
    assert config["tags"] == "agent;ai;pulumi"
    assert "size=24G" in config["rootfs"]
    assert (data.stat().st_uid, fast.stat().st_uid) == (110000, 110000)

    assert client.sh(118, "docker inspect --format '{{.State.Health.Status}}' hermes") == "healthy"
    # What the agent writes from inside Docker is on the node's disk; root of the guest may write there, too.
    client.sh(118, "docker exec --user 10000 hermes touch /data/agent")
    client.sh(118, "touch /fast/root")
    assert (data / "agent").stat().st_uid == 110000
    assert (fast / "root").stat().st_uid == 100000

    a_drill_in_docker_reads_the_second_copy(client)

    # A restart of the container from inside brings them back.
    client.pct("reboot", "118")
    assert client.sh(118, "findmnt -no OPTIONS /data | cut -d, -f1") == "rw"
    again = deploy(client, "up")
    assert again.ok, again.explain()
    assert again.changed == {}

    down = deploy(client, "destroy")
    assert down.ok, down.explain()
    assert 118 not in [int(guest["vmid"]) for guest in client.call("GET", BASE)]
    assert (data / "agent").exists()
    assert (fast / "root").exists()
