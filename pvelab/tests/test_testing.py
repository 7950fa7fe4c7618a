"""What the distribution offers to other projects' tests: the fixture, and a lab that is as new after a reset."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import requests

from pvelab.faults import FaultControl
from pvelab.runtime import RuntimeFault
from pvelab.testing import SimulatedLab, simulated_lab


def ask(lab: SimulatedLab, verb: str, path: str, **data: object) -> requests.Response:
    return requests.request(
        verb, f"{lab.endpoint}api2/json{path}", data=data, headers=lab.headers, verify=str(lab.ca_file), timeout=20
    )


def create(lab: SimulatedLab, vmid: int) -> None:
    answer = ask(
        lab, "POST", "/nodes/pve/lxc", vmid=vmid, ostemplate=lab.template, rootfs="local-lvm:4", unprivileged=1, start=1
    )
    assert answer.status_code == 200, answer.reason
    lab.wait_idle()


@pytest.mark.parametrize("time_of_use", ["first", "second"])
def test_each_test_gets_an_empty_lab_with_the_same_token(pvelab: SimulatedLab, time_of_use: str) -> None:
    assert ask(pvelab, "GET", "/nodes/pve/lxc").json()["data"] == [], time_of_use
    create(pvelab, 105)
    assert ask(pvelab, "GET", "/nodes/pve/lxc/105/status/current").json()["data"]["status"] == "running"


def test_a_reset_takes_all_but_address_token_and_templates(tmp_path: Path) -> None:
    with simulated_lab(tmp_path / "lab") as lab:
        before = (lab.endpoint, lab.api_token)
        templates = ask(lab, "GET", "/nodes/pve/storage/local/content").json()["data"]
        create(lab, 105)
        assert ask(lab, "POST", "/nodes/pve/vzdump", vmid=105, storage="local").status_code == 200
        lab.wait_idle()
        assert ask(lab, "POST", "/access/users", userid="more@pve").status_code == 200
        assert ask(lab, "POST", "/pools", poolid="herd").status_code == 200
        lab.fail(kind="error", path="/version$", count=None)
        lab.fail(kind="task", task="vzcreate", result="endless")
        ask(lab, "POST", "/nodes/pve/lxc", vmid=106, ostemplate=lab.template, rootfs="local-lvm:4", unprivileged=1)
        lab.reset()
        assert (lab.endpoint, lab.api_token) == before
        assert ask(lab, "GET", "/version").status_code == 200
        assert ask(lab, "GET", "/nodes/pve/lxc").json()["data"] == []
        assert ask(lab, "GET", "/nodes/pve/storage/local-lvm/content").json()["data"] == []
        assert ask(lab, "GET", "/nodes/pve/storage/local/content").json()["data"] == templates
        assert ask(lab, "GET", "/nodes/pve/tasks").json()["data"] == []
        assert ask(lab, "GET", "/pools").json()["data"] == []
        users = {user["userid"] for user in ask(lab, "GET", "/access/users").json()["data"]}
        assert users == {"root@pam", "tester@pve"}
        create(lab, 105)  # and it works as before


def test_a_reset_says_what_can_not_be_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_lab(tmp_path / "lab") as lab:
        create(lab, 105)

        def busy(_data: Path, *, in_use: str | None) -> None:  # noqa: ARG001
            raise RuntimeFault("lvremove 'pve/vm-105-disk-0' error: contains a filesystem in use.")

        with monkeypatch.context() as patch:
            patch.setattr(lab.server.config.runtime, "remove_volume", busy)
            with pytest.raises(RuntimeFault, match="in use"):
                lab.reset()
        lab.reset()
        assert ask(lab, "GET", "/nodes/pve/storage/local-lvm/content").json()["data"] == []


def test_a_fault_is_set_from_the_test_and_from_another_process_alike(pvelab: SimulatedLab) -> None:
    pvelab.fail(kind="error", path="/version$", status=596, text="Connection timed out")
    answer = ask(pvelab, "GET", "/version")
    assert (answer.status_code, answer.reason) == (596, "Connection timed out")
    control = FaultControl(pvelab.server.config.state_dir)
    control.add(kind="delay", path="/version$", seconds=0.2)
    began = time.monotonic()
    assert ask(pvelab, "GET", "/version").status_code == 200
    assert time.monotonic() - began >= 0.2
