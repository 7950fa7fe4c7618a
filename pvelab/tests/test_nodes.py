"""Two nodes on one machine: an address each, volumes of their own, one storage between them (issue 4)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from lab_harness import TEMPLATE, Lab

from pvelab.config import LabConfig, storages_for
from pvelab.faults import Rule
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime, write_template

NODES = ("pve", "pve2")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Lab]:
    runtime = SimulatedRuntime()
    config = LabConfig(
        tmp_path / "lab", runtime, nodes=NODES, storages=storages_for(NODES), auth_delay=0, broadcast_interval=0
    )
    with LabServer(config) as server:
        for node in NODES:
            write_template(config.template_dir(node))
        lab = Lab(server, runtime)
        yield lab
        lab.close()


def ask(lab: Lab, through: str, path: str) -> Any:
    """A GET at one node's own address."""
    answer = requests.get(
        lab.server.endpoints[through] + "api2/json" + path,
        headers=lab.headers("root"),
        verify=str(lab.server.ca_file),
        timeout=10,
    )
    assert answer.status_code == 200, answer.reason
    return answer.json()["data"]


def test_each_node_answers_for_both(two: Lab) -> None:
    assert len(set(two.server.endpoints.values())) == 2
    two.do("POST", "/nodes/pve2/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"})
    for through in NODES:
        assert ask(two, through, "/nodes/pve2/lxc/105/config")["hostname"] == "CT105"
        [guest] = ask(two, through, "/cluster/resources?type=vm")
        assert (guest["vmid"], guest["node"]) == (105, "pve2")
    assert [entry["vmid"] for entry in ask(two, "pve2", "/nodes/localhost/lxc")] == [105]
    assert ask(two, "pve", "/nodes/localhost/lxc") == []


def test_the_node_that_was_asked_is_the_local_one(two: Lab) -> None:
    for through in NODES:
        local = {
            entry["name"]: entry["local"] for entry in ask(two, through, "/cluster/status") if entry["type"] == "node"
        }
        assert local == {node: int(node == through) for node in NODES}


def test_volumes_of_one_name_on_two_nodes(two: Lab) -> None:
    """``local-lvm`` is a pool per node: the same volid names two volumes."""
    for node in NODES:
        two.do(
            "POST",
            f"/nodes/{node}/storage/local-lvm/content",
            {"vmid": 9105, "filename": "vm-9105-disk-0", "size": "1G"},
        )
    two.do("DELETE", "/nodes/pve2/storage/local-lvm/content/vm-9105-disk-0")
    assert [entry["volid"] for entry in ask(two, "pve", "/nodes/pve/storage/local-lvm/content")] == [
        "local-lvm:vm-9105-disk-0"
    ]
    assert ask(two, "pve", "/nodes/pve2/storage/local-lvm/content") == []


def test_a_number_is_taken_in_the_whole_cluster(two: Lab) -> None:
    """Facts proxmox 2.1, step 4."""
    two.do("POST", "/nodes/pve2/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"})
    answer = two.call(
        "POST", "/nodes/pve/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "local-lvm:4"}, who="root"
    )
    assert answer.reason == "CT 105 already exists on node 'pve2'"


def test_a_guest_on_shared_storage_moves(two: Lab) -> None:
    two.do(
        "POST", "/nodes/pve/lxc", {"vmid": 105, "ostemplate": TEMPLATE, "rootfs": "shared:4", "features": "nesting=1"}
    )
    two.do("POST", "/nodes/pve/lxc/105/migrate", {"target": "pve2"})
    two.do("POST", "/nodes/pve2/lxc/105/status/start")
    assert ask(two, "pve", "/nodes/pve2/lxc/105/status/current")["status"] == "running"
    answer = two.call("GET", "/nodes/pve/lxc/105/config", who="root")
    assert answer.reason == "Configuration file 'nodes/pve/lxc/105.conf' does not exist"
    for node in NODES:
        shared = ask(two, "pve", f"/nodes/{node}/storage/shared/content?content=rootdir")
        assert [entry["volid"] for entry in shared] == ["shared:105/vm-105-disk-0.raw"]


def test_a_node_that_is_down_does_not_answer_at_its_own_address(two: Lab) -> None:
    two.server.faults.add(Rule("offline", node="pve2"))
    assert {row["node"]: row["status"] for row in ask(two, "pve", "/nodes")} == {"pve": "online", "pve2": "offline"}
    with pytest.raises(requests.ConnectionError):
        ask(two, "pve2", "/version")
    assert [entry["kind"] for entry in two.server.faults.fired()] == ["offline"]
    two.server.faults.clear()
    assert {row["node"] for row in ask(two, "pve2", "/nodes")} == {"pve", "pve2"}


def test_one_node_has_no_shared_storage() -> None:
    assert [entry.name for entry in storages_for(("pve",))] == ["local", "local-lvm"]
    assert [entry.name for entry in storages_for(NODES)] == ["local", "local-lvm", "shared"]


def test_one_node_without_a_cluster(tmp_path: Path) -> None:
    """Facts proxmox-9.2, row 28: no name of a cluster in a ticket, no cluster in the status, no number of the node."""
    config = LabConfig(tmp_path / "lab", SimulatedRuntime(), auth_delay=0)
    with LabServer(config) as server:
        lab = Lab(server, SimulatedRuntime())
        lab.do("POST", "/access/users", {"userid": "a@pve", "password": "long-enough"})
        login = lab.do("POST", "/access/ticket", {"username": "a@pve", "password": "long-enough"}, who="nothing")
        rows = ask(lab, "pve", "/cluster/status")
        lab.close()
    assert "clustername" not in login
    assert set(login["cap"]) == {"access", "dc", "mapping", "nodes", "sdn", "storage", "vms"}
    assert [(row["type"], row["nodeid"], row["online"]) for row in rows] == [("node", 0, 1)]
