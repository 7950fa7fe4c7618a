"""``pct`` on the lab's node: root's rights, over the same core as the API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab_harness import Lab

from pvelab import pct
from pvelab.control import ControlError, send
from pvelab.runtime import Completed


@pytest.fixture
def run(lab: Lab, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(lab, capsys)


class Runner:
    def __init__(self, lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
        self._lab, self._capsys = lab, capsys

    def __call__(self, *words: str, status: int = 0) -> str:
        """Output of a command that must end with ``status``; the error output for a failure."""
        ended = pct.main(["--lab", str(self._lab.config.state_dir), *words])
        output, errors = self._capsys.readouterr()
        assert ended == status, output + errors
        return errors if status else output


def test_bind_mount_and_keyctl_that_no_token_may_set(lab: Lab, run: Runner) -> None:
    """Facts proxmox 1, 2.2: only root@pam, and no token is that."""
    lab.guest(105)
    assert lab.call("PUT", "/nodes/pve/lxc/105/config", {"mp1": "/srv,mp=/srv"}, who="root-token").status_code == 403
    run("set", "105", "-mp1", "/srv,mp=/srv,ro=1", "--features=keyctl=1,nesting=1")
    assert lab.sections(105)[""]["mp1"] == "/srv,mp=/srv,ro=1"
    assert lab.sections(105)[""]["features"] == "keyctl=1,nesting=1"
    run("set", "105", "--delete", "mp1")
    assert "mp1" not in lab.sections(105)[""]


def test_power_and_destroy(lab: Lab, run: Runner) -> None:
    lab.guest(105)
    run("start", "105")
    assert run("status", "105") == "status: running\n"
    assert run("destroy", "105", status=255) == "unable to destroy CT 105 - container is running\n"
    run("shutdown", "105", "--timeout", "5", "--forceStop")
    assert run("status", "105") == "status: stopped\n"
    run("destroy", "105")
    assert not lab.exists(105)


def test_a_failed_start_says_why(lab: Lab, run: Runner) -> None:
    lab.guest(105, {"mp0": "local-lvm:vm-9105-disk-0,mp=/data"})
    assert run("start", "105", status=255) == "no such logical volume pve/vm-9105-disk-0\n"


def test_list_and_config(lab: Lab, run: Runner) -> None:
    assert run("list") == ""
    lab.guest(105, {"lock": "backup", "lxc.apparmor.profile": "unconfined"})
    assert run("list").splitlines() == [
        "VMID       Status     Lock         Name                ",
        "105        stopped    backup       guest1              ",
    ]
    lines = run("config", "105").splitlines()
    assert "rootfs: local-lvm:vm-105-disk-0,size=20G" in lines
    assert lines[-1] == "lxc.apparmor.profile: unconfined"


def test_unlock(lab: Lab, run: Runner) -> None:
    """Facts proxmox 2.3: only root's ``pct unlock`` clears what a crashed worker left."""
    lab.guest(105, {"lock": "create"})
    assert lab.call("PUT", "/nodes/pve/lxc/105/config", {"delete": "lock"}, who="root").status_code == 500
    run("unlock", "105")
    assert "lock" not in lab.sections(105)[""]


def test_parameter_errors_are_told(lab: Lab, run: Runner) -> None:
    lab.guest(105)
    told = run("set", "105", "--memory", "8", status=255)
    assert told == "400 Parameter verification failed.\nmemory: value must have a minimum value of 16\n"
    missing = run("config", "107", status=255)
    assert missing == "Configuration file 'nodes/pve/lxc/107.conf' does not exist\n"


def test_exec(lab: Lab, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.guest(105)
    monkeypatch.setattr("sys.stdin", None)
    assert "not running" in run("exec", "105", "--", "true", status=255)
    lab.boot(105)
    asked: list[list[str]] = []

    def execute(_spec: object, argv: list[str], _stdin: bytes) -> Completed:
        asked.append(argv)
        return Completed(3, b"out", b"err")

    monkeypatch.setattr(lab.runtime, "execute", execute)
    assert run("exec", "105", "--", "echo", "-n", "two words", status=3) == "err"
    assert asked == [["echo", "-n", "two words"]]


def test_as_a_program(lab: Lab) -> None:
    lab.guest(105)
    done = subprocess.run(
        [sys.executable, "-m", "pvelab.pct", "--lab", str(lab.config.state_dir), "status", "105"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "status: stopped\n", "")


def test_a_lab_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pct.main(["--lab", str(tmp_path), "unlock", "105"]) == 255
    assert "does not answer" in capsys.readouterr().err
    with pytest.raises(ControlError, match="does not answer"):
        send(tmp_path, "list")


def test_unknown_orders_are_refused(lab: Lab) -> None:
    with pytest.raises(ControlError, match="unknown operation 'reboot-the-world'"):
        send(lab.config.state_dir, "reboot-the-world")


def test_a_file_system_is_checked_as_pct_does(lab: Lab, run: Runner) -> None:
    """src/PVE/CLI/pct.pm fsck: only of a stopped guest, only of an image; whatever is not 0 is a failure."""
    lab.guest(999, {"mp0": "local-lvm:vm-999-disk-1,mp=/data,size=8G", "mp1": "/srv,mp=/srv"})
    assert run("fsck", "999", "--device", "mp0") == ""
    lab.runtime.check_volume = lambda data, *, force: Completed(1, b"repaired" if force else b"")  # type: ignore[method-assign]  # noqa: ARG005
    assert run("fsck", "999", "--force", status=255) == "command 'fsck -a -l -f' failed: exit code 1\n"
    assert run("fsck", "999", "--device", "mp7", status=255) == "cannot run command on non-existing mount point mp7\n"
    assert run("fsck", "999", "--device", "mp1", status=255) == "path '/srv' does not point to a block device\n"
    lab.guest(105)
    run("start", "105")
    assert run("fsck", "105", status=255) == "cannot run fsck when container is running\n"


def test_a_guest_is_restored_from_nothing_but_its_archive(lab: Lab, run: Runner) -> None:
    """src/PVE/VZDump/LXC.pm archive: a tar with the configuration first, then each volume's files below its path."""
    lab.guest(999, {"mp0": "local-lvm:vm-999-disk-1,mp=/mnt/data,backup=1,size=8G"})
    lab.do("POST", "/nodes/pve/vzdump", {"vmid": 999, "storage": "local"})
    dump = lab.config.storage_dir("pve", "local") / "dump"
    [archive] = dump.iterdir()
    listed = subprocess.run(
        ["tar", "--zstd", "-tf", str(archive)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert listed[:2] == ["./etc/vzdump/pct.conf", "./etc/vzdump/pct.fw"]
    assert [name for name in listed if name.startswith("./mnt/data/")]
    lab.do("DELETE", "/nodes/pve/lxc/999")
    run("restore", "999", f"local:backup/{archive.name}", "--storage", "local-lvm")
    assert lab.sections(999)[""]["mp0"] == "local-lvm:vm-999-disk-1,mp=/mnt/data,backup=1,size=8G"
    archive.write_bytes(b"no archive")
    told = run("restore", "998", f"local:backup/{archive.name}", "--storage", "local-lvm", status=255)
    assert told.startswith("unable to restore CT 998 - ")
