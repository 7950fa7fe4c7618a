"""A type of storage is one class: pvelab's own, and one that somebody else registers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from pvelab import storages
from pvelab.config import DEFAULT_STORAGES, StorageConfig
from pvelab.storages import Directory, Volume, register, type_of
from pvelab.testing import SimulatedLab, simulated_lab

CONTENT = frozenset({"rootdir", "images"})


class Share(Directory):
    """A folder of another machine; it can do what no folder can, so that one sees who decides."""

    name = "share"
    can_snapshot = True

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"server": "files.example", "export": f"/export/{storage.name}"}

    def freed(self, volume: Volume) -> list[str]:
        return [f"gone from the server: {volume.name}"]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedLab]:
    monkeypatch.setattr(storages, "_types", dict(storages._types))
    register(Share())
    with simulated_lab(tmp_path, storages=(*DEFAULT_STORAGES, StorageConfig("nas", "share", CONTENT))) as lab:
        yield lab


def ask(lab: SimulatedLab, verb: str, path: str, **data: object) -> requests.Response:
    address = f"{lab.endpoint}api2/json{path}"
    return requests.request(verb, address, data=data, headers=lab.headers, verify=str(lab.ca_file), timeout=20)


def test_a_registered_type_holds_a_guest_through_its_life(lab: SimulatedLab) -> None:
    [entry] = [found for found in ask(lab, "GET", "/storage").json()["data"] if found["storage"] == "nas"]
    assert (entry["type"], entry["server"], entry["export"]) == ("share", "files.example", "/export/nas")
    given = {"vmid": 105, "ostemplate": lab.template, "rootfs": "nas:4", "unprivileged": 1}
    assert ask(lab, "POST", "/nodes/pve/lxc", **given).status_code == 200
    lab.wait_idle()
    config = ask(lab, "GET", "/nodes/pve/lxc/105/config").json()["data"]
    assert config["rootfs"] == "nas:105/vm-105-disk-0.raw,size=4G"
    assert ask(lab, "POST", "/nodes/pve/lxc/105/snapshot", snapname="s1").status_code == 200
    lab.wait_idle()
    assert "s1" in [found["name"] for found in ask(lab, "GET", "/nodes/pve/lxc/105/snapshot").json()["data"]]
    upid = ask(lab, "DELETE", "/nodes/pve/lxc/105").json()["data"]
    lab.wait_idle()
    log = ask(lab, "GET", f"/nodes/pve/tasks/{upid}/log").json()["data"]
    assert "gone from the server: 105/vm-105-disk-0.raw" in [line["t"] for line in log]
    assert ask(lab, "GET", "/nodes/pve/storage/nas/content").json()["data"] == []


def test_a_type_that_nobody_knows_is_told_at_once(tmp_path: Path) -> None:
    unknown = StorageConfig("tank", "zfspool", CONTENT)
    with (
        pytest.raises(ValueError, match="storage tank has the unknown type 'zfspool'; known: dir, lvmthin"),
        simulated_lab(tmp_path, storages=(*DEFAULT_STORAGES, unknown)),
    ):
        pass


@pytest.mark.parametrize("storage", DEFAULT_STORAGES, ids=lambda storage: storage.type)
def test_a_name_that_a_type_makes_is_one_that_it_reads(storage: StorageConfig) -> None:
    kind = type_of(storage)
    for disk in ("vm-105-disk-0", "base-105-disk-3"):
        name = kind.disk(105, disk)
        volume = kind.parse(storage, f"{storage.name}:{name}", name)
        assert (volume.owner, volume.content, volume.name) == (105, "images", name)
        assert kind.file(Path("/x"), volume).name == f"{disk}.raw"
