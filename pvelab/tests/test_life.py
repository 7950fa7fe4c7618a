"""What a list of cases cannot say: time, tasks, locks, crashes, restarts, secrets."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote as urlquote

import pytest
import requests
from lab_harness import TEMPLATE, Lab
from proxmoxer import ProxmoxAPI, ResourceException

from pvelab.cluster import Broadcast
from pvelab.config import LabConfig
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template


def quote(upid: str) -> str:
    return urlquote(upid, safe="")


def test_a_whole_life_is_quick(lab: Lab) -> None:
    """Pet and cattle, attach, start, detach, destroy, make again: well under a second of API (issue 4)."""
    began = time.process_time()
    for _ in range(2):
        if not lab.exists(999):
            lab.do("POST", "/nodes/pve/lxc", {"vmid": 999, "ostemplate": TEMPLATE, "rootfs": "local-lvm:2"})
            lab.do("PUT", "/nodes/pve/lxc/999/config", {"mp0": "local-lvm:8,mp=/data,backup=1"})
            lab.do("PUT", "/nodes/pve/lxc/999/config", {"protection": 1})
        lab.do(
            "POST",
            "/nodes/pve/lxc",
            {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:20", "features": "nesting=1"},
        )
        lab.do("PUT", "/nodes/pve/lxc/105/config", {"mp0": "local-lvm:vm-999-disk-1,mp=/home/user,backup=0"})
        lab.do("POST", "/nodes/pve/lxc/105/status/start")
        lab.do("POST", "/nodes/pve/lxc/105/status/shutdown", {"timeout": 5, "forceStop": 1})
        lab.do("PUT", "/nodes/pve/lxc/105/config", {"delete": "mp0"})
        lab.do("PUT", "/nodes/pve/lxc/105/config", {"delete": "unused0"})
        lab.do("DELETE", "/nodes/pve/lxc/105")
    assert time.process_time() - began < 2.0
    assert lab.has_volume("local-lvm:vm-999-disk-1")


def test_shutdown_holds_the_lock_until_its_timeout(lab: Lab) -> None:
    """Facts proxmox 7: a parallel PUT meets the lock."""
    lab.guest(105)
    lab.boot(105)
    lab.runtime.stubborn.add(105)
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/shutdown", {"timeout": 60}).json()["data"]
    answer = lab.call("PUT", "/nodes/pve/lxc/105/config", {"cores": 1})
    assert answer.reason == "can't lock file '/run/lock/lxc/pve-config-105.lock' - got timeout"
    stop = lab.call("POST", "/nodes/pve/lxc/105/status/stop", {"overrule-shutdown": 1}).json()["data"]
    assert lab.wait(stop) == "OK"
    assert lab.wait(upid) == "received interrupt"
    assert 105 not in lab.runtime.running("pve")


def test_shutdown_times_out(lab: Lab) -> None:
    lab.guest(105)
    lab.boot(105)
    lab.runtime.stubborn.add(105)
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/shutdown", {"timeout": 0}).json()["data"]
    assert lab.wait(upid) == "container did not stop"
    assert 105 in lab.runtime.running("pve")


def test_shutdown_with_force_kills(lab: Lab) -> None:
    lab.guest(105)
    lab.boot(105)
    lab.runtime.stubborn.add(105)
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/shutdown", {"timeout": 0, "forceStop": 1}).json()["data"]
    assert lab.wait(upid) == "OK"
    assert 105 not in lab.runtime.running("pve")


def test_poweroff_inside_applies_what_was_pending(lab: Lab) -> None:
    """Facts proxmox 3.2: the post-stop hook, also when nobody asked the API."""
    lab.guest(999)
    lab.guest(105, {"mp0": "local-lvm:vm-999-disk-1,mp=/data,size=8G"})
    lab.boot(105)
    lab.do("PUT", "/nodes/pve/lxc/105/config", {"delete": "mp0"})
    lab.runtime.power_off_from_inside("pve", 105)
    assert lab.call("GET", "/nodes/pve/lxc/105/status/current").json()["data"]["status"] == "stopped"
    assert lab.sections(105)[""]["unused0"] == "local-lvm:vm-999-disk-1"
    assert "pve:pending" not in lab.sections(105)


def test_two_creates_of_one_number(lab: Lab) -> None:
    """Facts proxmox 2.1, step 13: whoever comes second is told so, and frees nothing of the first."""
    answers: list[requests.Response] = []
    lab.headers("demo")

    def create() -> None:
        data = {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"}
        headers = lab.headers("demo")
        answers.append(
            requests.post(
                lab.base + "/nodes/pve/lxc", data=data, headers=headers, verify=str(lab.server.ca_file), timeout=20
            )
        )

    threads = [threading.Thread(target=create) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lab.cluster.tasks.wait_idle(10)
    assert sorted(answer.status_code for answer in answers) == [200, 500, 500, 500, 500, 500]
    assert all("already exists" in answer.reason for answer in answers if answer.status_code == 500)
    assert lab.sections(105)[""]["rootfs"] == "local-lvm:vm-105-disk-0,size=4G"
    assert lab.has_volume("local-lvm:vm-105-disk-0")


def test_disk_numbers_of_parallel_allocations_differ(lab: Lab) -> None:
    for vmid in (105, 106):
        lab.guest(vmid)
    lab.headers("root")

    def allocate() -> None:
        lab.cluster.volumes.allocate("pve", "local-lvm", 105, 1 << 30, lambda _text: None, root_owner=None)

    threads = [threading.Thread(target=allocate) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(lab.has_volume(f"local-lvm:vm-105-disk-{n}") for n in range(9))


def test_the_task_of_a_token_is_its_own(lab: Lab) -> None:
    lab.guest(105)
    upid = lab.call("POST", "/nodes/pve/lxc/105/status/start", who="demo").json()["data"]
    lab.wait(upid)
    seen = lab.call("GET", f"/nodes/pve/tasks/{quote(upid)}/status", who="demo").json()["data"]
    assert (seen["user"], seen["tokenid"], seen["exitstatus"]) == ("tester@pve", "lab", "OK")
    assert lab.call("GET", f"/nodes/pve/tasks/{quote(upid)}/status", who="nobody").status_code == 403
    assert [t["upid"] for t in lab.call("GET", "/nodes/pve/tasks", who="demo").json()["data"]] == [upid]


def test_task_log_pages(lab: Lab) -> None:
    upid = lab.do("POST", "/nodes/pve/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"})
    whole = lab.call("GET", f"/nodes/pve/tasks/{quote(upid)}/log", {"limit": 0}, who="root").json()
    assert whole["total"] == len(whole["data"])
    assert [line["n"] for line in whole["data"]] == list(range(1, whole["total"] + 1))
    page = lab.call("GET", f"/nodes/pve/tasks/{quote(upid)}/log", {"start": 2, "limit": 1}, who="root").json()
    assert page["data"] == [whole["data"][2]]
    assert page["total"] == whole["total"]


def test_digest_is_the_hash_of_the_file(lab: Lab) -> None:
    lab.guest(105)
    digest = lab.call("GET", "/nodes/pve/lxc/105/config").json()["data"]["digest"]
    raw = (lab.config.guest_dir("pve") / "105.conf").read_bytes()
    assert digest == hashlib.sha1(raw).hexdigest()  # noqa: S324
    assert lab.call("PUT", "/nodes/pve/lxc/105/config", {"cores": 3, "digest": digest}).status_code == 200
    assert lab.call("PUT", "/nodes/pve/lxc/105/config", {"cores": 4, "digest": digest}).status_code == 500


def test_a_backup_comes_back_as_new_volumes(lab: Lab) -> None:
    """Facts proxmox 10: the restored guest owns what was in the backup; the foreign volume stays what it was."""
    lab.guest(999)
    lab.guest(105, {"mp0": "local-lvm:vm-999-disk-1,mp=/data,backup=1,size=8G"})
    lab.do("POST", "/nodes/pve/vzdump", {"vmid": 105, "storage": "local", "mode": "stop"})
    [archive] = lab.call("GET", "/nodes/pve/storage/local/content", {"content": "backup"}, who="root").json()["data"]
    data = {"vmid": 107, "ostemplate": archive["volid"], "restore": 1, "storage": "local-lvm"}
    lab.do("POST", "/nodes/pve/lxc", data)
    restored = lab.sections(107)[""]
    assert restored["rootfs"] == "local-lvm:vm-107-disk-0,size=20G"
    assert restored["mp0"] == "local-lvm:vm-107-disk-1,mp=/data,backup=1,size=8G"
    assert lab.has_volume("local-lvm:vm-999-disk-1")
    again = lab.call("POST", "/nodes/pve/lxc", data, who="root")
    assert again.reason == "CT 107 already exists on node 'pve'"
    lab.do("PUT", "/nodes/pve/lxc/107/config", {"protection": 1})
    forced = lab.call("POST", "/nodes/pve/lxc", {**data, "force": 1}, who="root")
    assert forced.reason == "unable to restore CT 107 - protection mode enabled"


def test_what_a_backup_takes_of_an_owner_and_of_who_mounts_its_volume(lab: Lab) -> None:
    """PVE/VZDump.pm exec_backup_task, src/PVE/VZDump/LXC.pm prepare, assemble: mode, what is excluded, the lock."""
    lab.guest(999, {"mp0": "local-lvm:vm-999-disk-1,mp=/mnt/data,backup=1,size=8G"})
    lab.guest(105, {"mp0": "local-lvm:vm-999-disk-1,mp=/data,size=8G"})
    lab.do("POST", "/nodes/pve/lxc/105/status/start")
    seen: list[str | None] = []
    archive = lab.runtime.archive

    def watched(*given: Any) -> None:
        seen.append(lab.sections(999)[""].get("lock"))
        archive(*given)

    lab.runtime.archive = watched  # type: ignore[assignment, method-assign]
    try:
        told = lab.log(lab.do("POST", "/nodes/pve/vzdump", {"vmid": 999, "storage": "local", "mode": "snapshot"}))
    finally:
        lab.runtime.archive = archive  # type: ignore[method-assign]
    assert seen == ["backup"]
    assert "lock" not in lab.sections(999)[""]
    # A guest that does not run is always backed up in mode stop.
    assert "INFO: status = stopped" in told
    assert "INFO: backup mode: stop" in told
    assert "INFO: including mount point mp0 ('/mnt/data') in backup" in told
    told = lab.log(lab.do("POST", "/nodes/pve/vzdump", {"vmid": 105, "storage": "local", "mode": "snapshot"}))
    assert "INFO: backup mode: snapshot" in told
    assert "INFO: excluding volume mount point mp0 ('/data') from backup (disabled)" in told
    assert lab.call("GET", "/nodes/pve/lxc/105/status/current", who="root").json()["data"]["status"] == "running"


def test_a_restored_guest_has_what_was_excluded_as_an_empty_volume_of_its_own(lab: Lab) -> None:
    """src/PVE/API2/LXC.pm create_vm: every mount point of the backed-up configuration is made, in it or not."""
    lab.guest(999)
    lab.guest(105, {"mp0": "local-lvm:vm-999-disk-1,mp=/data,size=8G"})
    lab.do("POST", "/nodes/pve/vzdump", {"vmid": 105, "storage": "local", "mode": "stop"})
    [archive] = lab.call("GET", "/nodes/pve/storage/local/content", {"content": "backup"}, who="root").json()["data"]
    lab.do("DELETE", "/nodes/pve/lxc/105")
    restore = {"vmid": 105, "ostemplate": archive["volid"], "restore": 1, "storage": "local-lvm"}
    lab.do("POST", "/nodes/pve/lxc", restore)
    assert lab.sections(105)[""]["mp0"].startswith("local-lvm:vm-105-disk-1,mp=/data")
    assert lab.has_volume("local-lvm:vm-999-disk-1")


def test_401_is_held_back(tmp_path: Path) -> None:
    """Facts proxmox 0: the answer is delayed, and only that one."""
    with LabServer(LabConfig(tmp_path / "lab", SimulatedRuntime(), auth_delay=0.4)) as server:
        began = time.monotonic()
        answer = requests.get(server.endpoint + "api2/json/version", verify=str(server.ca_file), timeout=10)
        assert time.monotonic() - began >= 0.4
        assert answer.status_code == 401


def test_restart_keeps_all(tmp_path: Path) -> None:
    config = LabConfig(tmp_path / "lab", SimulatedRuntime(tmp_path / "power.json"), auth_delay=0)
    write_template(config.template_dir("pve"))
    with LabServer(config) as server:
        token = server.seed_access()
        headers = {"Authorization": f"PVEAPIToken={token.api_token}"}
        base, verify = server.endpoint + "api2/json", str(server.ca_file)
        data = {"vmid": "105", "ostemplate": TEMPLATE, "rootfs": "local-lvm:4", "start": "1", "features": "nesting=1"}
        upid = requests.post(base + "/nodes/pve/lxc", data=data, headers=headers, verify=verify, timeout=10).json()[
            "data"
        ]
        assert server.cluster.tasks.wait_idle(10)
        first_ca = server.ca_file.read_bytes()
    second = LabConfig(tmp_path / "lab", SimulatedRuntime(tmp_path / "power.json"), auth_delay=0)
    with LabServer(second) as server:
        assert server.ca_file.read_bytes() == first_ca
        assert server.seed_access().secret == token.secret
        base = server.endpoint + "api2/json"

        def get(path: str) -> object:
            return requests.get(base + path, headers=headers, verify=verify, timeout=10).json()["data"]

        assert get("/nodes/pve/lxc/105/status/current")["status"] == "running"  # type: ignore[index]
        assert get(f"/nodes/pve/tasks/{quote(upid)}/status")["exitstatus"] == "OK"  # type: ignore[index]


_CRASH = """
import os, sys, time
from pathlib import Path
from typing import Any
from pvelab.config import LabConfig
from pvelab.faults import Rule
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template
import requests
state = Path(sys.argv[1])
config = LabConfig(state, SimulatedRuntime(), auth_delay=0)
server = LabServer(config)
server.start()
write_template(config.template_dir("pve"))
token = server.seed_access()
server.cluster.runtime.unpack = lambda *args, **named: time.sleep(60)
headers = {"Authorization": "PVEAPIToken=" + token.api_token}
data = {"vmid": 105, "ostemplate": "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst", "rootfs": "local-lvm:4"}
upid = requests.post(server.endpoint + "api2/json/nodes/pve/lxc", data=data, headers=headers,
                     verify=str(server.ca_file), timeout=10).json()["data"]
while not (state / "nodes/pve/storage/local-lvm/vm-105-disk-0.raw").exists():
    time.sleep(0.01)
print(upid, flush=True)
os._exit(9)
"""


def test_a_killed_lab_leaves_what_a_killed_worker_leaves(tmp_path: Path) -> None:
    """Facts proxmox 2.3, 13: ``lock: create`` stays, the task says ``unexpected status``, no volume is lost."""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", _CRASH, str(tmp_path / "lab")],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 9, result.stderr
    upid = result.stdout.strip()
    with LabServer(LabConfig(tmp_path / "lab", SimulatedRuntime(), auth_delay=0)) as server:
        headers = {"Authorization": f"PVEAPIToken={server.seed_access().api_token}"}
        base, verify = server.endpoint + "api2/json", str(server.ca_file)

        def ask(method: str, path: str) -> requests.Response:
            return requests.request(method, base + path, headers=headers, verify=verify, timeout=10)

        assert ask("GET", "/nodes/pve/lxc/105/config").json()["data"]["lock"] == "create"
        assert ask("GET", f"/nodes/pve/tasks/{quote(upid)}/status").json()["data"]["exitstatus"] == "unexpected status"
        assert ask("DELETE", "/nodes/pve/lxc/105").reason == "CT is locked (create)"
        assert (tmp_path / "lab/nodes/pve/storage/local-lvm/vm-105-disk-0.raw").exists()


def test_secrets_stay_where_only_root_reads(lab: Lab) -> None:
    token = lab.server.seed_access()
    state = lab.config.state_dir
    assert token.token_file.stat().st_mode & 0o777 == 0o600
    assert (state / "access.json").stat().st_mode & 0o777 == 0o600
    assert (state / "server.pem").stat().st_mode & 0o777 == 0o600
    assert token.secret not in (state / "access.json").read_text()
    assert token.secret not in (state / "access.log").read_text()
    assert token.secret not in repr(token)
    password = "a-password-of-a-guest"
    lab.do(
        "POST", "/nodes/pve/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4", "password": password}
    )
    for path in state.rglob("*"):
        if path.is_file():
            with path.open("rb") as handle:  # the volumes are large and sparse
                assert password.encode() not in handle.read(100_000), path


def test_access_log_tells_reads_from_writes(lab: Lab) -> None:
    lab.guest(105)
    lab.headers("demo")
    before = len(lab.server.access_log.read_text().splitlines())
    lab.call("GET", "/nodes/pve/lxc/105/config")
    lab.call("PUT", "/nodes/pve/lxc/105/config", {"cores": 1})
    entries = [json.loads(line) for line in lab.server.access_log.read_text().splitlines()[before:]]
    assert [(e["method"], e["path"], e["status"], e["authid"], e["write"]) for e in entries] == [
        ("GET", "/api2/json/nodes/pve/lxc/105/config", 200, "tester@pve!lab", False),
        ("PUT", "/api2/json/nodes/pve/lxc/105/config", 200, "tester@pve!lab", True),
    ]


def test_proxmoxer_drives_it(lab: Lab) -> None:
    """The library that the product uses, unmodified."""
    token = lab.server.seed_access()
    name, _, secret = token.api_token.partition("=")
    user, _, tokenid = name.partition("!")
    api = ProxmoxAPI(
        "127.0.0.1",
        port=lab.server.port,
        user=user,
        token_name=tokenid,
        token_value=secret,
        verify_ssl=str(lab.server.ca_file),
        timeout=20,
    )
    upid = api.nodes("pve").lxc.post(
        vmid=105, ostemplate=TEMPLATE, rootfs="local-lvm:4", tags="b;a", features="nesting=1"
    )
    assert lab.wait(upid) == "OK"
    assert api.nodes("pve").lxc(105).config.get()["tags"] == "a;b"
    api.nodes("pve").lxc(105).config.put(cores=2, delete="tags")
    assert api.nodes("pve").tasks(upid).status.get()["exitstatus"] == "OK"
    assert [entry["volid"] for entry in api.nodes("pve").storage("local-lvm").content.get()] == [
        "local-lvm:vm-105-disk-0"
    ]
    with pytest.raises(ResourceException) as caught:
        api.nodes("pve").lxc.post(vmid=105, ostemplate=TEMPLATE)
    assert caught.value.status_code == 500
    assert caught.value.content == "CT 105 already exists on node 'pve'"


def test_states_of_the_cluster_are_as_old_as_the_last_broadcast(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts proxmox 12: a fresh guest is ``unknown`` and without a name, a stopped one may still look alive."""
    monkeypatch.setattr(lab.cluster, "broadcast", Broadcast(3600))

    def seen() -> dict[int, dict[str, object]]:
        rows = lab.call("GET", "/cluster/resources", {"type": "vm"}).json()["data"]
        return {row["vmid"]: row for row in rows}

    lab.guest(105)
    lab.boot(105)
    assert seen()[105]["status"] == "running"
    lab.do("POST", "/nodes/pve/lxc/105/status/stop")
    lab.guest(106)
    lab.do("PUT", "/nodes/pve/lxc/105/config", {"tags": "new"})
    assert (seen()[105]["status"], seen()[105]["tags"]) == ("running", "new")
    assert seen()[106] == {"id": "lxc/106", "type": "lxc", "vmid": 106, "node": "pve", "status": "unknown"}
    assert lab.call("GET", "/nodes/pve/lxc/105/status/current").json()["data"]["status"] == "stopped"
    lab.cluster.broadcast.forget()
    assert seen()[105]["status"] == "stopped"
    assert seen()[106]["name"] == "other"


def test_nothing_but_loopback(lab: Lab) -> None:
    assert lab.config.host == "127.0.0.1"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if int(port, 16) == lab.server.port:
            assert address in ("0100007F",), "the lab listens beyond loopback"
