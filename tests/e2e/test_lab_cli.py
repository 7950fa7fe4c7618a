"""``scripts/lab`` from a person's side: up, a crash, down, gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.instance import CACHE, CHECKOUT, Lab
from pvelab.network import NEEDED, SETTINGS
from pvelab.place import machine_lock

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")
NOBODY = 65534


def run(lab: Lab, *verb: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli", *verb],
        capture_output=True, text=True, timeout=900, check=False, cwd="/",
        env={**os.environ, "HERMES_LAB_DIR": str(lab.state_dir), "PYTHONPATH": str(CHECKOUT), **environment},
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def exports(text: str) -> dict[str, str]:
    """What a shell holds after it evaluated the output of ``env``."""
    done = subprocess.run(["sh", "-c", f"{text}\nexec env -0"], capture_output=True, check=True, timeout=20)
    return dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if "=" in entry)


def call(values: Mapping[str, str], method: str, path: str, **form: str) -> Any:
    """One API call as the stacks would make it, with the variables of ``env`` alone."""
    context = ssl.create_default_context(cafile=values["PROXMOX_VE_CA_FILE"])
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    body = urllib.parse.urlencode(form).encode() if form else None
    request = urllib.request.Request(  # noqa: S310 - https only
        f"{values['PROXMOX_VE_ENDPOINT']}api2/json{path}",
        data=body,
        method=method,
        headers={"Authorization": f"PVEAPIToken={values['PROXMOX_VE_API_TOKEN']}"},
    )
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)["data"]


def task(values: Mapping[str, str], method: str, path: str, **form: str) -> None:
    """A call that starts a task, and its end."""
    node = values["PROXMOX_VE_NODE"]
    upid = call(values, method, f"/nodes/{node}{path}", **form)
    end = time.monotonic() + 60
    while (status := call(values, "GET", f"/nodes/{node}/tasks/{upid}/status"))["status"] != "stopped":
        assert time.monotonic() < end, status
        time.sleep(0.05)
    log = call(values, "GET", f"/nodes/{node}/tasks/{upid}/log")
    assert status["exitstatus"] == "OK", log


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "my lab")
    yield lab
    if lab.exists():
        run(lab, "destroy")


def machine_settings() -> tuple[bool, list[str]]:
    """Whether no lab is up on this machine, and those of its settings that labs change."""
    with machine_lock():
        alone = not any(link.name.startswith("hlab") for link in Path("/sys/class/net").iterdir())
        return alone, [(SETTINGS / name).read_text() for name in NEEDED]


@NEEDS_ROOT
def test_a_lab_comes_up_survives_a_crash_and_goes_without_a_trace(lab: Lab) -> None:
    alone, settings = machine_settings()
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    assert values["HERMES_SSH_KEY_FILE"] == str(lab.ssh_key_file)
    template = values["HERMES_LAB_TEMPLATE"]
    assert template in [v["volid"] for v in call(values, "GET", "/nodes/pve/storage/local/content")]
    public = lab.ssh_key_file.with_suffix(".pub").read_text()
    create = {
        "vmid": "105", "ostemplate": template, "hostname": "hermes", "memory": "512", "rootfs": "local-lvm:2",
        "unprivileged": "1", "features": "nesting=1", "net0": "name=eth0,bridge=vmbr0,ip=dhcp",
        "ssh-public-keys": public, "onboot": "1",
    }  # fmt: skip
    task(values, "POST", "/lxc", **create)
    task(values, "POST", "/lxc/105/status/start")
    before = call(values, "GET", "/nodes/pve/lxc/105/status/current")
    assert before["status"] == "running"
    assert "105" in run(lab, "status").stdout

    pid = lab.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while lab.daemon_pid() is not None:
        assert time.monotonic() < end
        time.sleep(0.02)
    status = run(lab, "status", check=False)
    assert status.returncode == 3
    assert "not running" in status.stdout
    run(lab, "up")
    assert exports(run(lab, "env").stdout)["PROXMOX_VE_ENDPOINT"] == values["PROXMOX_VE_ENDPOINT"]
    after = call(values, "GET", "/nodes/pve/lxc/105/status/current")
    assert (after["status"], after["pid"]) == ("running", before["pid"])
    # Once more changes nothing.
    second = lab.daemon_pid()
    assert "already" in run(lab, "up").stderr
    assert lab.daemon_pid() == second

    run(lab, "down")
    place = lab.place
    assert lab.daemon_pid() is None
    assert not place.run_dir.exists()
    assert not Path(f"/sys/class/net/{place.bridge}").exists()
    assert str(place.run_dir) not in Path("/proc/self/mountinfo").read_text()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert place.table not in tables
    still_alone, settings_after = machine_settings()
    # The last lab gives them back, and others may be up (pvelab/tests/test_network.py).
    assert settings_after == settings or not (alone and still_alone)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(place.run_dir).encode() not in process.read_bytes()
        except OSError:
            continue

    # The state is still there: the same guest, and the same address of the API. The node starts what has onboot.
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    end = time.monotonic() + 60
    while call(values, "GET", "/nodes/pve/lxc/105/status/current")["status"] != "running":
        assert time.monotonic() < end, call(values, "GET", "/nodes/pve/tasks?source=all")
        time.sleep(0.05)
    run(lab, "destroy")
    assert not lab.state_dir.exists()
    assert not Path(f"/sys/class/net/{place.bridge}").exists()


def test_a_lab_without_containers_needs_no_root(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "light lab")
    lab.state_dir.mkdir()
    prefix: list[str] = []
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # An interpreter below /root is no other user's, nor is a checkout of root's a place for his Pulumi to write to:
    # then root has to do.
    usable = (
        "import os, subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True); "
        "sys.exit(not os.access(sys.argv[1], os.W_OK))"
    )
    probe = [sys.executable, "-c", usable, str(CACHE / "pulumi-home")]
    if os.geteuid() == 0 and subprocess.run([*as_nobody, *probe], capture_output=True, check=False).returncode == 0:
        prefix = as_nobody
        # pytest's folders are root's alone.
        home = Path("/tmp") / f"lab-of-nobody-{os.getpid()}"  # noqa: S108 - removed below
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
        lab = Lab(home / "light lab")
    try:
        _life_without_containers(lab, prefix)
    finally:
        if prefix:
            shutil.rmtree(lab.state_dir.parent)


def _life_without_containers(lab: Lab, prefix: list[str]) -> None:
    own = {"HERMES_LAB_DIR": lab.state_dir, "PYTHONPATH": CHECKOUT, "HOME": lab.state_dir.parent}
    environment = {**os.environ, **{k: str(v) for k, v in own.items()}, "PYTHONDONTWRITEBYTECODE": "1"}

    def light(*verb: str) -> subprocess.CompletedProcess[str]:
        command = [*prefix, sys.executable, "-m", "lab.cli", *verb]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, cwd="/", env=environment
        )
        assert done.returncode == 0, done.stderr
        return done

    try:
        # An up that fails may have started the daemon already.
        light("up", "--no-containers")
        values = exports(light("env").stdout)
        assert call(values, "GET", "/version")["version"].startswith("9.")
        assert "HERMES_LAB_GATEWAY" not in values
    finally:
        light("destroy")
    assert not lab.state_dir.exists()


def test_a_folder_that_is_no_lab_is_neither_used_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("irreplaceable")
    lab = Lab(tmp_path)
    done = run(lab, "up", "--no-containers", check=False)
    assert done.returncode == 1
    assert "HERMES_LAB_DIR" in done.stderr
    run(lab, "destroy")
    assert (tmp_path / "thesis.txt").exists()


def kill_daemon(lab: Lab) -> None:
    pid = lab.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def kill_monitor(lab: Lab) -> None:
    """End the process that watches over guest 105, as an out-of-memory kill would."""
    mark = f"[lxc monitor] {lab.place.lxc_path('pve')} {lab.place.container(105)}".encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if process.read_bytes().replace(b"\0", b" ").startswith(mark):
                os.kill(int(process.parent.name), signal.SIGKILL)
                return
        except OSError:
            continue
    pytest.fail("guest 105 has no monitor")


def kill_services(lab: Lab) -> None:
    for name in ("git.pid", "dnsmasq.pid"):
        os.kill(int((lab.place.run_dir / name).read_text()), signal.SIGKILL)


def remove_bridge(lab: Lab) -> None:
    subprocess.run(["ip", "link", "delete", lab.place.bridge], check=True, timeout=30)


def remove_rules(lab: Lab) -> None:
    subprocess.run(["nft", "delete", "table", "inet", lab.place.table], check=True, timeout=30)


def lose_ready_file(lab: Lab) -> None:
    (lab.state_dir / "ready.json").unlink()


CRASHES = {
    "daemon": (kill_daemon,),
    "all-processes": (kill_daemon, kill_monitor, kill_services),
    "bridge-and-rules": (kill_daemon, remove_bridge, remove_rules),
    "name-service-and-facts": (kill_services, kill_daemon, lose_ready_file),
}


def traces(lab: Lab) -> list[str]:
    """Whatever of a lab is still on this machine."""
    place = lab.place
    found = [str(p) for p in (lab.state_dir, place.run_dir, Path(f"/sys/class/net/{place.bridge}")) if p.exists()]
    found += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(place.run_dir) in line]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True, timeout=30).stdout
    found += [line for line in tables.splitlines() if place.table in line]
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = entry.read_text()
        except OSError:
            continue
        found += [text] if text.startswith(str(lab.state_dir)) else []
    found += [str(p) for p in Path("/run/lxc").glob(f"**/{place.identity}")]
    found += [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if f".{place.identity}-" in folder]
    marks = [str(place.run_dir).encode(), str(lab.state_dir).encode(), f"{place.identity}-105".encode()]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:
            continue
        found += [repr(command)] if any(mark in command for mark in marks) else []
    return found


def with_guest(lab: Lab) -> dict[str, str]:
    """A lab that is up, with guest 105 running on a volume of its own."""
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    form = {
        "vmid": "105", "ostemplate": values["HERMES_LAB_TEMPLATE"], "hostname": "hermes", "memory": "512",
        "rootfs": "local-lvm:2", "mp0": "local-lvm:1,mp=/data", "unprivileged": "1", "features": "nesting=1",
        "net0": "name=eth0,bridge=vmbr0,ip=dhcp",
    }  # fmt: skip
    task(values, "POST", "/lxc", **form)
    task(values, "POST", "/lxc/105/status/start")
    return values


def address_of(values: Mapping[str, str]) -> str:
    """The address that guest 105 has now, waited for."""
    end = time.monotonic() + 60
    while True:
        interfaces = call(values, "GET", "/nodes/pve/lxc/105/interfaces")
        for one in interfaces:
            if one["name"] == "eth0" and one.get("inet"):
                return str(one["inet"]).split("/")[0]
        assert time.monotonic() < end, interfaces
        time.sleep(0.1)


@NEEDS_ROOT
@pytest.mark.parametrize("crash", CRASHES)
def test_after_a_crash_up_repairs_all_and_destroy_leaves_no_trace(lab: Lab, crash: str) -> None:
    values = with_guest(lab)
    address = address_of(values)
    for step in CRASHES[crash]:
        step(lab)
    if kill_monitor in CRASHES[crash]:
        end = time.monotonic() + 30
        while lab.place.container(105) in Path("/proc/net/unix").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    status = call(values, "GET", "/nodes/pve/lxc/105/status/current")["status"]
    if kill_monitor in CRASHES[crash]:
        assert status == "stopped"
        task(values, "POST", "/lxc/105/status/start")
        address = address_of(values)
    assert call(values, "GET", "/nodes/pve/lxc/105/status/current")["status"] == "running"
    # The guest is on the network again.
    end = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection((address, 22), timeout=5) as connection:
                assert connection.recv(4) == b"SSH-"
            break
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.1)

    for step in CRASHES[crash]:
        step(lab)
    run(lab, "destroy")
    assert traces(lab) == []


@NEEDS_ROOT
def test_destroy_while_a_guest_is_made_leaves_no_trace(lab: Lab) -> None:
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    form = {"ostemplate": values["HERMES_LAB_TEMPLATE"], "rootfs": "local-lvm:2", "unprivileged": "1"}
    for vmid in range(105, 109):
        call(values, "POST", "/nodes/pve/lxc", vmid=str(vmid), **form)
    kill_daemon(lab)
    run(lab, "destroy")
    end = time.monotonic() + 20
    # A tool that was at work ends by itself.
    while found := traces(lab):
        assert time.monotonic() < end, found
        time.sleep(0.1)
