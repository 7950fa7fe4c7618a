"""The command that holds a node against the contract, over HTTPS, against labs that agree and labs that do not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pvelab.access import ROOT, Pool
from pvelab.config import DEFAULT_STORAGES, StorageConfig
from pvelab.conformance import contract, world
from pvelab.conformance.command import DIFFERENT, PASSWORD_VARIABLE, REFUSED, SAME, UNFINISHED, main
from pvelab.conformance.names import VMIDS, Names
from pvelab.conformance.run import UNLOCKED
from pvelab.conformance.scope import Scope
from pvelab.simulated import write_template
from pvelab.testing import SimulatedLab, simulated_lab

PASSWORD = "the-password-of-this-root"
BOTH = frozenset({"rootdir", "images"})


@pytest.fixture(scope="module")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedLab]:
    """A node with other names than the cases have."""
    storages = (
        DEFAULT_STORAGES[0],
        StorageConfig("thin", "lvmthin", BOTH),
        StorageConfig("shared", "dir", frozenset({*BOTH, "vztmpl", "iso", "backup"}), shared=True),
        StorageConfig("off", "lvmthin", BOTH, enabled=False),
        StorageConfig("away", "lvmthin", BOTH, nodes=frozenset({"elsewhere"})),
    )
    with simulated_lab(tmp_path_factory.mktemp("node"), nodes=("alpha",), storages=storages, lock_timeout=0.3) as lab:
        yield lab


@pytest.fixture
def node(_node: SimulatedLab, monkeypatch: pytest.MonkeyPatch) -> SimulatedLab:
    _node.reset()
    _node.server.cluster.access.set_password(ROOT, PASSWORD)
    _node.server.cluster.access.pools[UNLOCKED] = Pool()
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    return _node


def arguments(node: SimulatedLab, *more: str) -> list[str]:
    given = {"--endpoint": node.endpoint, "--node": "alpha", "--unlock": "alpha", "--vmids": "700-719"}
    given |= {
        "--storage": "thin",
        **({} if {"--ca-file", "--fingerprint"} & set(more) else {"--ca-file": str(node.ca_file)}),
    }
    return [text for pair in given.items() for text in pair] + list(more)


def run(node: SimulatedLab, *more: str) -> int:
    return main(arguments(node, *more))


def report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "conformance.json").read_text())
    return found


def things(node: SimulatedLab) -> dict[str, object]:
    """What the node has, read without the API."""
    access, folder = node.server.cluster.access, node.server.config.state_dir
    return {
        "files": sorted(
            str(file.relative_to(folder))
            for file in folder.rglob("*")
            if file.is_file() and "700" <= _number(file) <= "719"
        ),
        "users": sorted(access.users),
        "tokens": sorted(f"{user}!{token}" for user, entry in access.users.items() for token in entry.tokens),
        "roles": sorted(access.roles),
        "groups": sorted(access.groups),
        "pools": sorted(access.pools),
        "rights": sorted((entry.path, entry.ugid, entry.role) for entry in access.acl),
    }


def _number(file: Path) -> str:
    found = [part for part in file.stem.split("-") if part.isdigit()]
    return found[0] if found and "tasks" not in file.parts else ""


def test_the_lab_answers_as_the_contract_says(node: SimulatedLab, tmp_path: Path) -> None:
    before = things(node)
    code = run(node, "--report", str(tmp_path))
    found = report(tmp_path)
    assert [result for result in found["results"] if result["outcome"] == "different"] == []
    assert (found["left"], found["changed"], found["interrupted"]) == ([], [], "")
    assert code == SAME
    assert things(node) == before
    outcomes = [result["outcome"] for result in found["results"]]
    assert len(outcomes) == len(contract.cases(""))
    # More than nine of ten can be run where the node has all storages, and is not to be switched off.
    assert outcomes.count("same") >= 0.85 * sum("faults" not in case for case in contract.cases(""))
    assert all(result["reason"] for result in found["results"] if result["outcome"] == "not run")


def test_an_answer_that_differs_is_found(
    node: SimulatedLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node.fail(kind="error", method="PUT", path="/lxc/703/resize$", status=500, text="no room", count=None)
    node.fail(kind="task", task="vzdestroy", result="fail", text="got signal 9", when="after")
    cases = ("version", "resize-own", "destroy", "resize-shrink")
    assert run(node, *(text for case in cases for text in ("--case", case)), "--report", str(tmp_path)) == DIFFERENT
    results = {result["id"]: result for result in report(tmp_path)["results"]}
    assert {name: result["outcome"] for name, result in results.items()} == {
        "version": "same",
        "destroy": "different",
        "resize-own": "different",
        "resize-shrink": "different",
    }
    resize = results["resize-own"]
    assert resize["differences"] == ["status: expected 200, got '500 no room'"]
    assert resize["request"] == {
        "method": "PUT",
        "path": "/nodes/alpha/lxc/703/resize",
        "as": "demo",
        "parameters": {"disk": "rootfs", "size": "21G"},
    }
    assert (resize["answer"]["status"], json.loads(resize["answer"]["body"])["message"]) == (500, "no room\n")
    assert results["destroy"]["differences"][0] == "end of the task: expected 'OK', got 'got signal 9'"
    shown = capsys.readouterr().out
    assert '  request: PUT /nodes/alpha/lxc/703/resize {"disk": "rootfs", "size": "21G"} by demo\n' in shown
    assert (tmp_path / "conformance.txt").read_text() == shown


def test_no_secret_reaches_the_report(
    node: SimulatedLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = "POST /access/users userid=a@pve&password=only-for-this-case"
    login = {"username": "a@pve", "password": "only-for-this-case"}
    cases: list[dict[str, Any]] = [
        {"as": "nothing", "before": [make], "call": "POST /access/ticket", "with": login},
        {"as": "root", "before": [make], "call": "POST /access/users/a@pve/token/ci"},
        {"as": "root-token", "call": "GET /version"},
    ]
    table = [{"id": str(number), "facts": "1", "data": "x", **case} for number, case in enumerate(cases)]
    monkeypatch.setattr(contract, "cases", lambda _template, _pve="9": table)
    told: list[str] = []
    add, log_in = node.server.cluster.access.add_token, node.server.cluster.access.login

    def add_token(*given: Any, **more: Any) -> str:
        told.append(add(*given, **more))
        return told[-1]

    def login_told(*given: Any, **more: Any) -> tuple[str, str]:
        found = log_in(*given, **more)
        told.extend(found)
        return found

    monkeypatch.setattr(node.server.cluster.access, "add_token", add_token)
    monkeypatch.setattr(node.server.cluster.access, "login", login_told)
    assert run(node, "--report", str(tmp_path)) == DIFFERENT
    written = "".join(file.read_text() for file in tmp_path.iterdir()) + "".join(capsys.readouterr())
    assert written.count('"outcome": "different"') == 3
    assert len(told) == 6  # two logins, each with a ticket and its CSRF token; two tokens
    for secret in (*told, PASSWORD, "only-for-this-case"):
        assert secret not in written


def _until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _held(node: SimulatedLab, folder: Path) -> subprocess.Popen[bytes]:
    """A run in a process of its own, which waits for the answer to a guest's start."""
    node.fail(kind="delay", path="/lxc/703/status/start$", seconds=300)
    command = [sys.executable, "-m", "pvelab.conformance", *arguments(node, "--report", str(folder), "--case", "start")]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    _until(lambda: node.faults.fired() or process.poll() is not None)
    assert (node.server.config.guest_dir("alpha") / "703.conf").exists()
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(node: SimulatedLab, tmp_path: Path, number: signal.Signals) -> None:
    before = things(node)
    process = _held(node, tmp_path)
    process.send_signal(number)
    assert process.wait(60) == UNFINISHED
    assert things(node) == before
    found = report(tmp_path)
    assert (found["interrupted"], found["left"]) == (number.name, [])
    assert [result["reason"] for result in found["results"]] == ["the run ended before it"]


def test_what_a_killed_run_left_is_removed(
    node: SimulatedLab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = things(node)
    process = _held(node, tmp_path)
    process.kill()
    process.wait(60)
    assert things(node) != before
    node.server.faults.clear()
    assert run(node, "--case", "version") == REFUSED
    told = capsys.readouterr().err
    assert "there is guest 703, " in told
    assert "within the bounds: first run --clean-up" in told
    assert run(node, "--clean-up") == SAME
    assert things(node) == before
    assert run(node, "--case", "start") == SAME


def test_a_guest_that_no_run_made_is_never_removed(node: SimulatedLab, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where its owner names bounds that have it in them."""
    file = node.server.config.guest_dir("alpha") / "703.conf"
    file.write_text("hostname: mine\n")
    assert run(node, "--case", "version") == REFUSED
    assert (
        "there is guest 703 within the bounds: it is of no earlier run; choose other bounds" in capsys.readouterr().err
    )
    assert run(node, "--clean-up") == REFUSED
    assert "no run with these bounds began here: guest 703 is not its own" in capsys.readouterr().err
    assert file.read_text() == "hostname: mine\n"
    # A run with other bounds gives no leave for these.
    node.server.cluster.access.pools["conformance-run"] = Pool(comment="guests 800 to 819")
    assert run(node, "--clean-up") == REFUSED
    assert file.exists()
    file.unlink()
    del node.server.cluster.access.pools["conformance-run"]
    assert run(node, "--clean-up") == SAME


def test_what_cannot_be_removed_is_told(node: SimulatedLab, capsys: pytest.CaptureFixture[str]) -> None:
    node.fail(kind="error", method="DELETE", path="/lxc/703$", status=500, text="no", count=None)
    assert run(node, "--case", "config") == UNFINISHED
    assert "Left on the node:\n  guest 703\n" in capsys.readouterr().out


@pytest.mark.parametrize(("pve", "version"), [("8", "8.4."), ("9", "9.2.")])
def test_the_cases_are_those_of_the_nodes_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pve: str, version: str
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    storages = (DEFAULT_STORAGES[0], StorageConfig("thin", "lvmthin", BOTH))
    with simulated_lab(tmp_path / "lab", nodes=("alpha",), storages=storages, pve=pve) as lab:
        lab.server.cluster.access.set_password(ROOT, PASSWORD)
        lab.server.cluster.access.pools[UNLOCKED] = Pool()
        cases = ("--case", "version", "--case", "create-defaults", "--report", str(tmp_path))
        assert run(lab, *cases) == SAME
    found = report(tmp_path)
    assert found["contract"].startswith(version)
    assert [result["outcome"] for result in found["results"]] == ["same", "same"]


def test_a_long_run_logs_in_again(node: SimulatedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "TICKET_SECONDS", 0.0)
    begun = len(node.server.access_log.read_text().splitlines())
    assert run(node, "--case", "version", "--case", "plain-die") == SAME
    rows = [json.loads(line) for line in node.server.access_log.read_text().splitlines()[begun:]]
    # At the start, before each case and before the cleaning.
    assert [row["path"] for row in rows].count("/api2/json/access/ticket") == 4


def test_the_deadline_ends_the_cases(node: SimulatedLab, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(node, "--deadline", "0", "--case", "version") == UNFINISHED
    assert "The run ended early: the deadline of 0 s is over" in capsys.readouterr().out


def _guest(node: SimulatedLab) -> None:
    (node.server.config.guest_dir("alpha") / "9105.conf").write_text("hostname: mine\n")


def _lock(node: SimulatedLab) -> None:
    del node.server.cluster.access.pools[UNLOCKED]


def _no_proxmox(node: SimulatedLab) -> None:
    node.fail(kind="error", path="/access/ticket$", status=200, text="hello")


def _no_template(node: SimulatedLab) -> None:
    for file in node.server.config.template_dir("alpha").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("change", "more", "text"),
    [
        (_lock, (), f"the node is locked. Its owner unlocks it by a pool: pvesh create /pools --poolid {UNLOCKED}"),
        (_guest, (), "the node is not empty: it has the guests 9105"),
        (_no_template, (), "the cases need a template of Debian 12"),
        (None, ("--node", "beta", "--unlock", "beta"), "there is no node 'beta'"),
        (None, ("--storage", "local"), "the cases need LVM-thin; --storage local is none"),
        (None, ("--bridge", "vmbr7"), "there is no bridge 'vmbr7'"),
        (None, ("--fingerprint", "00" * 32), "the certificate's fingerprint is "),
        (None, ("--fingerprint", "0011"), "a fingerprint is the SHA-256 of the certificate: 64 hex digits"),
        (None, ("--endpoint", "http://127.0.0.1"), "'http://127.0.0.1' is not an address as https://HOST:8006"),
        (None, ("--endpoint", "https://127.0.0.1:1"), "no answer to POST /access/ticket"),
        (None, ("--ca-file", "/nowhere"), "/nowhere: No such file or directory"),
        (None, ("--password-file", "/dev/null"), "root@pam is refused"),
        (_no_proxmox, (), "what answers there is no Proxmox VE"),
    ],
)
def test_it_refuses(
    node: SimulatedLab,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[SimulatedLab], None] | None,
    more: tuple[str, ...],
    text: str,
) -> None:
    if change:
        change(node)
    before = things(node)
    try:
        assert run(node, "--case", "config", *more) == REFUSED
    finally:
        write_template(node.server.config.template_dir("alpha"))
    assert f"pvelab conformance: {text}" in capsys.readouterr().err
    assert things(node) == before


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--unlock", "pve"), "--unlock pve is not the node alpha"),
        (("--vmids", "700-703"), "FIRST-LAST with at least 8 numbers"),
        (("--prefix", "a"), "4 to 16 lower case letters"),
        (("--case", "nonsense"), "no such case: nonsense"),
    ],
)
def test_arguments_that_do_not_fit(
    node: SimulatedLab, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], text: str
) -> None:
    with pytest.raises(SystemExit):
        run(node, *more)
    assert text in capsys.readouterr().err


def test_the_fingerprint_is_enough(node: SimulatedLab) -> None:
    fingerprint = node.server.cluster.fingerprint
    assert run(node, "--fingerprint", fingerprint, "--case", "version") == SAME


INSIDE = [
    ("GET", "/nodes/beta/lxc/5/config", {}),
    ("POST", "/access/ticket", {"username": "root@pam"}),
    ("POST", "/nodes/alpha/lxc", {"vmid": 700, "rootfs": "thin:4", "mp0": "mp=/d,volume=thin:vm-719-disk-0"}),
    ("PUT", "/nodes/alpha/lxc/719/config", {"unused0": "shared:700/vm-700-disk-1.raw"}),
    ("PUT", "/nodes/alpha/lxc/700/config?delete=mp0&delete=swap", {}),
    ("POST", "/nodes/alpha/lxc/700/clone", {"newid": 701}),
    ("POST", "/nodes/alpha/vzdump", {"vmid": 700}),
    ("POST", "/nodes/alpha/storage/thin/content", {"vmid": 700, "filename": "vm-700-disk-0"}),
    ("DELETE", "/nodes/alpha/storage/thin/content/thin:vm-700-disk-0", {}),
    ("DELETE", "/nodes/alpha/storage/local/content/local:backup/vzdump-lxc-700-2026_11_28-10_00_00.tar.zst", {}),
    ("DELETE", "/nodes/alpha/tasks/UPID:own:", {}),
    ("POST", "/access/users", {"userid": "mine-a@pve", "groups": "mine-g"}),
    ("POST", "/access/users/mine-a@pve/token/x", {}),
    ("POST", "/access/users/root@pam/token/mine-t", {}),
    ("DELETE", "/access/roles/mine-r", {}),
    ("PUT", "/access/password", {"userid": "mine-a@pve"}),
    ("PUT", "/access/acl", {"path": "/", "roles": "PVEAdmin", "users": "mine-a@pve", "tokens": "mine-a@pve!x"}),
    ("PUT", "/pools", {"poolid": "mine-p", "vms": "700,701"}),
    ("DELETE", "/pools/mine-p", {}),
]
OUTSIDE = [
    ("POST", "/nodes/beta/lxc", {"vmid": 700}),
    ("POST", "/nodes/alpha/lxc", {"vmid": 720}),
    ("POST", "/nodes/alpha/lxc", {}),
    ("POST", "/nodes/alpha/lxc", {"vmid": "700;5"}),
    ("PUT", "/nodes/alpha/lxc/699/config", {"cores": 1}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"lock": "backup"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"mp0": "thin:vm-105-disk-0,mp=/d"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"mp0": "thin:4,volume=thin:vm-105-disk-0,mp=/d"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"mp0": "/srv,mp=/d"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"mp0": "mp=/d,volume=/srv"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"dev0": "/dev/sda"}),
    ("PUT", "/nodes/alpha/lxc/700/config", {"rootfs": "thin:data"}),
    ("PUT", "/nodes/alpha/qemu/700/config", {"cores": 1}),
    ("POST", "/nodes/alpha/lxc/700/clone", {"newid": 105}),
    ("POST", "/nodes/alpha/lxc/700/move_volume", {"target-vmid": 105}),
    ("POST", "/nodes/alpha/lxc/700/migrate", {"target": "beta"}),
    ("POST", "/nodes/alpha/vzdump", {"all": 1}),
    ("POST", "/nodes/alpha/status", {"command": "reboot"}),
    ("POST", "/nodes/alpha/storage/thin/content", {"vmid": 700, "filename": "vm-105-disk-0"}),
    ("DELETE", "/nodes/alpha/storage/thin/content/vm-7000-disk-0", {}),
    ("DELETE", "/nodes/alpha/storage/local/content/local:vztmpl/debian.tar.zst", {}),
    ("DELETE", "/nodes/alpha/tasks/UPID:foreign:", {}),
    ("POST", "/access/users", {"userid": "a@pve"}),
    ("PUT", "/access/users/mine-a@pve", {"groups": "admins"}),
    ("POST", "/access/users/root@pam/token/t", {}),
    ("DELETE", "/access/users/root@pam", {}),
    ("DELETE", "/access/roles/Administrator", {}),
    ("PUT", "/access/password", {"userid": "root@pam"}),
    ("PUT", "/access/acl", {"path": "/", "roles": "PVEAdmin", "users": "mine-a@pve,root@pam"}),
    ("PUT", "/access/acl", {"path": "/", "roles": "PVEAdmin"}),
    ("PUT", "/access/acl?tokens=root@pam!x", {"path": "/", "roles": "PVEAdmin", "users": "mine-a@pve"}),
    ("DELETE", "/pools/production", {}),
    ("PUT", "/pools/mine-p", {"vms": "105"}),
    ("POST", "/storage", {"storage": "mine-s"}),
    ("PUT", "/cluster/options", {}),
]


@pytest.fixture
def scope() -> Scope:
    found = Scope("alpha", 700, 719, "mine-")
    found.tasks.add("UPID:own:")
    return found


@pytest.mark.parametrize(("method", "path", "given"), INSIDE)
def test_what_is_within_the_bounds_is_sent(scope: Scope, method: str, path: str, given: dict[str, Any]) -> None:
    assert scope.outside(method, path, given) is None


@pytest.mark.parametrize(("method", "path", "given"), OUTSIDE)
def test_what_reaches_outside_is_never_sent(scope: Scope, method: str, path: str, given: dict[str, Any]) -> None:
    assert scope.outside(method, path, given)


def test_a_case_in_the_names_of_a_node() -> None:
    names = Names("alpha", range(700, 700 + len(VMIDS)), "mine-", "thin", "vg0", "pool0", "br1", "local:vztmpl/t.zst")
    case = {
        "id": "x-105",
        "guests": {105: {"mp0": "local-lvm:vm-999-disk-1,mp=/data"}, 999: None},
        "pools": {"herd": [105]},
        "before": ["PUT /access/acl path=/vms/105&roles=Lab&users=a@pve&tokens=x@pve!ci", "PUT /nodes/pve/lxc/9105"],
        "with": {"vmid": 105, "memory": 105, "target-vmid": 106, "userid": "custom@pve"},
        "reason": "lvremove 'pve/vm-999-disk-1' error: CT 105 on node 'pve', '/etc/pve/nodes/pve/lxc/105.conf'",
        "has": [{"id": "lxc/105", "vmid": 105, "node": "pve", "realm-type": "pve"}, {"/vms/105": {"VM.Audit": 1}}],
        "task": "UPID:pve:.*:move_volume:999-mp0>106-mp3:root@pam:",
        "after": {105: {"net0": "bridge=vmbr0,hwaddr=BC:24:11:3A:5F:01,ip=10.9.0.5/24"}},
        "gone": [105, 9105],
    }
    made = names.case(case)
    guests = made.pop("guests")
    assert guests[703]["mp0"] == "thin:vm-706-disk-1,mp=/data"
    assert guests[703]["rootfs"] == "thin:vm-703-disk-0,size=20G"
    assert guests[706]["mp0"] == "thin:vm-706-disk-1,mp=/data,backup=1,size=8G"
    assert made == {
        "id": "x-105",
        "pools": {"mine-herd": [703]},
        "before": [
            "PUT /access/acl path=/vms/703&roles=mine-Lab&users=mine-a@pve&tokens=mine-x@pve!ci",
            "PUT /nodes/alpha/lxc/707",
        ],
        "with": {"vmid": 703, "memory": 105, "target-vmid": 704, "userid": "mine-custom@pve"},
        "reason": "lvremove 'vg0/vm-706-disk-1' error: CT 703 on node 'alpha', '/etc/pve/nodes/alpha/lxc/703.conf'",
        "has": [{"id": "lxc/703", "vmid": 703, "node": "alpha", "realm-type": "pve"}, {"/vms/703": {"VM.Audit": 1}}],
        "task": "UPID:alpha:.*:move_volume:706-mp0>704-mp3:root@pam:",
        "after": {703: {"net0": "bridge=br1,hwaddr=BC:24:11:3A:5F:01,ip=10.9.0.5/24"}},
        "gone": [703, 707],
    }
