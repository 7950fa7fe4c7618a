"""The command, as a person types it: a lab without containers from up to destroy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from pvelab.instance import Lab

SOURCES = Path(__file__).resolve().parents[1] / "src"


def pvelab(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PVELAB_DIR": str(folder), "PYTHONPATH": str(SOURCES)}
    return subprocess.run(
        [sys.executable, "-m", "pvelab", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("command") / "a lab"
    done = pvelab(made, "up", "--no-containers", "--storage", "tank=zfspool")
    assert done.returncode == 0, done.stderr
    yield made
    assert pvelab(made, "destroy").returncode == 0
    assert not made.exists()


def ask(folder: Path, path: str) -> requests.Response:
    """Asked with nothing but what `env` says."""
    script = pvelab(folder, "env").stdout + "env -0"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True, timeout=10).stdout
    known = dict(line.split("=", 1) for line in said.split("\0") if "=" in line)
    headers = {"Authorization": f"PVEAPIToken={known['PROXMOX_VE_API_TOKEN']}"}
    address = f"{known['PROXMOX_VE_ENDPOINT']}api2/json{path}"
    return requests.get(address, headers=headers, verify=known["PROXMOX_VE_CA_FILE"], timeout=10)


def test_up_can_be_repeated_and_env_is_all_that_a_client_needs(folder: Path) -> None:
    assert ask(folder, "/version").status_code == 200
    again = pvelab(folder, "up", "--no-containers")
    assert (again.returncode, "is up already" in again.stderr) == (0, True)
    assert pvelab(folder, "status").returncode == 0


def test_a_storage_is_added_by_name_and_type(folder: Path) -> None:
    rows = {row["storage"]: row["type"] for row in ask(folder, "/nodes/pve/storage").json()["data"]}
    assert rows == {"local": "dir", "local-lvm": "lvmthin", "tank": "zfspool"}
    for given, told in (
        ("hdd=floppy", "storage hdd has the unknown type 'floppy'; known: btrfs, cifs, dir"),
        ("local=dir", "'local' is no name for one more storage"),
        ("hdd=dir", "lab: the lab is up without storage hdd: pvelab down first"),
    ):
        done = pvelab(folder, "up", "--no-containers", "--storage", given)
        assert done.returncode != 0
        assert told in done.stderr


def test_a_lab_in_another_form_is_told(folder: Path) -> None:
    done = pvelab(folder, "up", "--no-containers", "--nodes", "3")
    assert done.returncode == 1
    assert done.stderr == "lab: the lab is up with 1 node(s): pvelab down first\n"


def test_a_release_is_chosen_when_the_lab_is_made(folder: Path, tmp_path: Path) -> None:
    assert ask(folder, "/version").json()["data"]["release"] == "9.2"
    assert pvelab(folder, "up", "--no-containers", "--pve", "8").stderr == (
        "lab: the lab is up as Proxmox VE 9: pvelab down first\n"
    )
    old = tmp_path / "old"
    assert pvelab(old, "up", "--no-containers", "--pve", "8").returncode == 0
    try:
        assert ask(old, "/version").json()["data"]["release"] == "8.4"
        assert pvelab(old, "down").returncode == 0
        other = pvelab(old, "up", "--no-containers", "--pve", "9")
        assert (other.returncode, other.stderr) == (
            1,
            "lab: the lab was made as Proxmox VE 8 (pvelab destroy removes it)\n",
        )
        assert pvelab(old, "up", "--no-containers").returncode == 0
        assert ask(old, "/version").json()["data"]["release"] == "8.4"
    finally:
        assert pvelab(old, "destroy").returncode == 0


def test_faults_are_set_listed_and_cleared(folder: Path) -> None:
    rule = ("error", "--path", "/version$", "--status", "596", "--text", "Connection timed out", "--count", "0")
    assert pvelab(folder, "faults", "add", *rule).stdout.strip().isdigit()
    for _ in range(2):
        assert (ask(folder, "/version").status_code, ask(folder, "/version").reason) == (596, "Connection timed out")
    [listed] = [json.loads(line) for line in pvelab(folder, "faults", "list").stdout.splitlines()]
    assert (listed["kind"], listed["count"], listed["fired"]) == ("error", None, 4)
    assert len(pvelab(folder, "faults", "fired").stdout.splitlines()) == 4
    assert pvelab(folder, "faults", "clear").returncode == 0
    assert ask(folder, "/version").status_code == 200


def test_a_fault_that_can_not_be_is_refused(folder: Path) -> None:
    done = pvelab(folder, "faults", "add", "error", "--path", "(")
    assert done.returncode == 1
    assert "unterminated subpattern" in done.stderr
    assert "Traceback" not in done.stderr


def test_reset_clears_faults_and_keeps_the_address(folder: Path) -> None:
    before = pvelab(folder, "env").stdout
    pvelab(folder, "faults", "add", "error", "--path", "/version$")
    assert pvelab(folder, "reset").returncode == 0
    assert pvelab(folder, "env").stdout == before
    assert ask(folder, "/version").status_code == 200
    assert pvelab(folder, "pct", "list").stdout == ""


def _guests(folder: Path, options: dict[int, str]) -> None:
    """Guests without volumes, written as a node's own files have them."""
    for vmid, text in options.items():
        (folder / "nodes" / "pve" / "lxc" / f"{vmid}.conf").write_text(f"memory: 64\nunprivileged: 1\n{text}")


def _ended(folder: Path, kind: str) -> list[dict[str, str]]:
    """The tasks of a type, the oldest first, once none runs."""
    deadline = time.monotonic() + 60
    while ask(folder, "/nodes/pve/tasks?source=active").json()["data"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    rows: list[dict[str, str]] = ask(folder, f"/nodes/pve/tasks?typefilter={kind}").json()["data"]
    return rows[::-1]


def _states(folder: Path) -> dict[int, str]:
    return {row["vmid"]: row["status"] for row in ask(folder, "/nodes/pve/lxc").json()["data"]}


def test_guests_come_up_with_the_node_where_onboot_says_so(folder: Path) -> None:
    onboot = "onboot: 1\n"
    _guests(folder, {101: onboot, 102: onboot + "startup: order=2\n", 103: "", 104: onboot + "startup: 1\n"})
    _guests(folder, {105: onboot + "template: 1\n", 106: onboot + "startup: order=3\nlock: disk\n"})
    _guests(folder, {107: onboot + "lock: backup\n"})
    assert pvelab(folder, "down").returncode == 0
    assert pvelab(folder, "up", "--no-containers").returncode == 0
    [all_of_them] = _ended(folder, "startall")
    assert (all_of_them["user"], all_of_them["status"]) == ("root@pam", "OK")
    assert [row["id"] for row in _ended(folder, "vzstart")] == ["104", "102", "106", "101", "107"]
    up = {vmid for vmid, state in _states(folder).items() if state == "running"}
    assert up == {101, 102, 104, 107}
    log = ask(folder, f"/nodes/pve/tasks/{quote(all_of_them['upid'], safe='')}/log").json()["data"]
    lines = [line["t"] for line in log]
    assert "Starting CT 106 failed: CT is locked (disk)" in lines
    assert "removed left over backup lock from '107'!" in lines


def test_a_new_daemon_is_no_restart_of_the_node(folder: Path) -> None:
    """What was stopped by hand stays stopped, and what runs goes on running, when the lab's process is killed."""
    assert pvelab(folder, "reset").returncode == 0
    _guests(folder, {101: "onboot: 1\n", 103: ""})
    assert pvelab(folder, "pct", "start", "103").returncode == 0
    before = len(_ended(folder, "startall"))
    daemon = Lab(folder).daemon_pid()
    assert daemon is not None
    os.kill(daemon, signal.SIGKILL)
    assert pvelab(folder, "up", "--no-containers").returncode == 0
    assert _states(folder) == {101: "stopped", 103: "running"}
    assert len(_ended(folder, "startall")) == before
    # The node's own restart ends what has no onboot.
    assert pvelab(folder, "down").returncode == 0
    assert pvelab(folder, "up", "--no-containers").returncode == 0
    assert len(_ended(folder, "startall")) == before + 1
    assert _states(folder) == {101: "running", 103: "stopped"}


def test_without_a_lab_each_verb_says_what_to_do(tmp_path: Path) -> None:
    for verb in ("env", "shell"):
        done = pvelab(tmp_path / "none", verb)
        assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, "lab: the lab is not up: pvelab up")
    assert pvelab(tmp_path / "none", "status").returncode == 3
    reset = pvelab(tmp_path / "none", "reset")
    assert reset.returncode == 1
    assert "Traceback" not in reset.stderr
    assert pvelab(tmp_path / "none", "destroy").returncode == 0
