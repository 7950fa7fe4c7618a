"""``scripts/lab`` from a person's side: up, a crash, down, gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
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

from lab.instance import CHECKOUT, Lab
from lab.network import FORWARDING

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")
NOBODY = 65534


def run(lab: Lab, *verb: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "lab.cli", *verb],
        capture_output=True, text=True, timeout=240, check=False, cwd="/",
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


@NEEDS_ROOT
def test_a_lab_comes_up_survives_a_crash_and_goes_without_a_trace(lab: Lab) -> None:
    forwarding = FORWARDING.read_text()
    others = [p.name for p in Path("/sys/class/net").iterdir() if p.name.startswith("hlab")]
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    assert values["HERMES_SSH_KEY_FILE"] == str(lab.ssh_key_file)
    template = values["HERMES_LAB_TEMPLATE"]
    assert template in [v["volid"] for v in call(values, "GET", "/nodes/pve/storage/local/content")]
    public = lab.ssh_key_file.with_suffix(".pub").read_text()
    create = {
        "vmid": "105", "ostemplate": template, "hostname": "hermes", "memory": "512", "rootfs": "local-lvm:2",
        "unprivileged": "1", "features": "nesting=1", "net0": "name=eth0,bridge=vmbr0,ip=dhcp",
        "ssh-public-keys": public,
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
    if not others:
        assert FORWARDING.read_text() == forwarding
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(place.run_dir).encode() not in process.read_bytes()
        except OSError:
            continue

    # The state is still there: the same guest, and the same address of the API.
    run(lab, "up")
    values = exports(run(lab, "env").stdout)
    assert call(values, "GET", "/nodes/pve/lxc/105/status/current")["status"] == "stopped"
    task(values, "POST", "/lxc/105/status/start")
    run(lab, "destroy")
    assert not lab.state_dir.exists()
    assert not Path(f"/sys/class/net/{place.bridge}").exists()


def test_a_lab_without_containers_needs_no_root(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "light lab")
    lab.state_dir.mkdir()
    prefix: list[str] = []
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # An interpreter below /root is no other user's: then root has to do.
    probe = [sys.executable, "-c", "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"]
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

    light("up", "--no-containers")
    try:
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
