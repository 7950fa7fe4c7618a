"""Types of storages: what each makes of the same orders (cases/storages.yaml), and one that somebody else registers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from pvelab import storages
from pvelab.config import DEFAULT_STORAGES, StorageConfig
from pvelab.errors import ApiError
from pvelab.simulated import CONTENT as CONTENT_FILE
from pvelab.simulated import CONTENT_OFFSET
from pvelab.storages import Directory, Volume, register, type_of
from pvelab.testing import SimulatedLab, simulated_lab

CONTENT = frozenset({"rootdir", "images"})
TYPES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "cases/storages.yaml").read_text())
GIB = 1 << 30
SESSION = requests.Session()
SESSION.trust_env = False


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SimulatedLab]]:
    """One lab for each type, its storage ``tank`` beside the standard ones."""
    with contextlib.ExitStack() as stack:
        yield {
            kind: stack.enter_context(
                simulated_lab(
                    tmp_path_factory.mktemp(kind), storages=(*DEFAULT_STORAGES, StorageConfig("tank", kind, CONTENT))
                )
            )
            for kind in TYPES
        }


@pytest.fixture(params=TYPES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lab(labs: dict[str, SimulatedLab], kind: str) -> SimulatedLab:
    labs[kind].reset()
    return labs[kind]


def ask(lab: SimulatedLab, verb: str, path: str, **data: object) -> requests.Response:
    address = f"{lab.endpoint}api2/json{path}"
    given = {name.replace("_", "-"): value for name, value in data.items()}
    how: dict[str, Any] = {"params" if verb == "GET" else "data": given}
    return SESSION.request(verb, address, **how, headers=lab.headers, verify=str(lab.ca_file), timeout=20)


def do(lab: SimulatedLab, verb: str, path: str, **data: object) -> str:
    """OK, or why not: the answer's text, or the exit text of its task."""
    answer = ask(lab, verb, path, **data)
    if answer.status_code != 200:
        errors = answer.json().get("errors") if answer.content else None
        return "".join(errors.values()).strip() if errors else answer.reason
    value = answer.json()["data"]
    if not (isinstance(value, str) and value.startswith("UPID:")):
        return "OK"
    lab.wait_idle()
    told = ask(lab, "GET", f"/nodes/pve/tasks/{value}/status").json()["data"]["exitstatus"]
    return "OK" if told.startswith("WARNINGS") else str(told)


def config(lab: SimulatedLab, vmid: int) -> dict[str, Any]:
    lab.wait_idle()
    found: dict[str, Any] = ask(lab, "GET", f"/nodes/pve/lxc/{vmid}/config").json()["data"]
    return found


def create(lab: SimulatedLab, vmid: int, rootfs: str) -> None:
    given = {"vmid": vmid, "ostemplate": lab.template, "rootfs": rootfs, "unprivileged": 1}
    assert do(lab, "POST", "/nodes/pve/lxc", **given) == "OK"


def with_disk(lab: SimulatedLab) -> None:
    create(lab, 105, "tank:4")
    assert do(lab, "PUT", "/nodes/pve/lxc/105/config", mp0="tank:1,mp=/data") == "OK"


def data_of(lab: SimulatedLab, volid: str) -> Path:
    volumes = lab.server.cluster.volumes
    return volumes.path("pve", volumes.parse(volid))


def write(lab: SimulatedLab, volid: str, text: bytes) -> None:
    data = data_of(lab, volid)
    if data.is_dir():
        (data / CONTENT_FILE).write_bytes(text)
        return
    with data.open("r+b") as handle:
        handle.seek(CONTENT_OFFSET)
        handle.write(text)


def content(lab: SimulatedLab, volid: str) -> bytes:
    data = data_of(lab, volid)
    if data.is_dir():
        return (data / CONTENT_FILE).read_bytes()
    with data.open("rb") as handle:
        handle.seek(CONTENT_OFFSET)
        return handle.read(100).rstrip(b"\0")


def volids(lab: SimulatedLab, storage: str = "tank") -> list[str]:
    return [row["volid"] for row in ask(lab, "GET", f"/nodes/pve/storage/{storage}/content").json()["data"]]


def test_volumes_have_the_names_of_their_type(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    expected = TYPES[kind]
    found = config(lab, 105)
    assert found["rootfs"] == f"{expected['root']},size=4G"
    assert found["mp0"] == f"{expected['disk']},mp=/data,size=1G"
    rows = ask(lab, "GET", "/nodes/pve/storage/tank/content").json()["data"]
    assert sorted(row["volid"] for row in rows) == [expected["root"], expected["disk"]]
    [row] = [row for row in rows if row["volid"] == expected["disk"]]
    assert row.items() >= {**expected["row"], "vmid": 105, "content": "rootdir"}.items()
    shown = ask(lab, "GET", f"/nodes/pve/storage/tank/content/{expected['disk']}").json()["data"]
    assert (shown["path"], shown["size"]) == (expected["path"], GIB)
    [entry] = [found for found in ask(lab, "GET", "/storage").json()["data"] if found["storage"] == "tank"]
    assert (entry["type"], entry.get("shared", 0)) == (kind, int(kind in ("nfs", "rbd")))
    # All of it goes with the guest, and the numbers are free again.
    assert do(lab, "DELETE", "/nodes/pve/lxc/105") == "OK"
    assert volids(lab) == []
    create(lab, 105, "tank:4")
    assert volids(lab) == [expected["root"]]


@pytest.mark.parametrize("kind", [kind for kind, expected in TYPES.items() if "none" in expected])
def test_a_volume_of_size_0_is_a_folder_without_a_limit(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    assert do(lab, "PUT", "/nodes/pve/lxc/105/config", mp1="tank:0,mp=/more") == "OK"
    volid = TYPES[kind]["none"]
    # PVE::JSONSchema::format_size of 0.
    assert config(lab, 105)["mp1"] == f"{volid},mp=/more,size=0T"
    grown = do(lab, "PUT", "/nodes/pve/lxc/105/resize", disk="mp1", size="1G")
    assert grown == {
        "dir": "can't resize this image format",
        "btrfs": "cannot resize subvolume - btrfs quotas are currently not supported",
        "zfspool": "OK",
    }.get(kind)
    assert do(lab, "POST", "/nodes/pve/lxc/105/status/start") == "OK"


def test_it_grows(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    assert do(lab, "PUT", "/nodes/pve/lxc/105/resize", disk="mp0", size="2G") == TYPES[kind]["grow"]
    assert config(lab, 105)["mp0"].endswith(",size=2G")
    [row] = [
        row
        for row in ask(lab, "GET", "/nodes/pve/storage/tank/content").json()["data"]
        if row["volid"] == TYPES[kind]["disk"]
    ]
    assert row["size"] == 2 * GIB
    assert do(lab, "PUT", "/nodes/pve/lxc/105/resize", disk="mp0", size="1G") == "unable to shrink disk size"


def test_it_goes_back_to_a_snapshot_where_the_type_has_them(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    disk = TYPES[kind]["disk"]
    for name, text in (("s1", b"first"), ("s2", b"second")):
        write(lab, disk, text)
        assert do(lab, "POST", "/nodes/pve/lxc/105/snapshot", snapname=name) == TYPES[kind]["snapshot"]
    if TYPES[kind]["snapshot"] != "OK":
        return
    write(lab, disk, b"third")
    assert do(lab, "POST", "/nodes/pve/lxc/105/snapshot/s2/rollback") == "OK"
    assert content(lab, disk) == b"second"
    assert do(lab, "POST", "/nodes/pve/lxc/105/snapshot/s1/rollback") == TYPES[kind]["older"]
    assert content(lab, disk) == (b"first" if TYPES[kind]["older"] == "OK" else b"second")
    assert "lock" not in config(lab, 105)
    # They are no volumes, and go with theirs.
    assert sorted(volids(lab)) == [TYPES[kind]["root"], disk]
    for name in ("s2", "s1"):
        assert do(lab, "DELETE", f"/nodes/pve/lxc/105/snapshot/{name}") == "OK"
    assert do(lab, "DELETE", "/nodes/pve/lxc/105") == "OK"
    assert [path.name for path in lab.server.config.storage_dir("pve", "tank").rglob("*") if path.is_file()] == []


def test_it_is_given_to_another_guest(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    create(lab, 106, "local-lvm:1")
    write(lab, TYPES[kind]["disk"], b"a word")
    order = {"volume": "mp0", "target-vmid": 106, "target-volume": "mp3"}
    assert do(lab, "POST", "/nodes/pve/lxc/105/move_volume", **order) == "OK"
    assert "mp0" not in config(lab, 105)
    assert config(lab, 106)["mp3"] == f"{TYPES[kind]['give']},mp=/data,size=1G"
    assert content(lab, TYPES[kind]["give"]) == b"a word"


def test_another_guest_mounts_it_and_never_frees_it(lab: SimulatedLab, kind: str) -> None:
    """An image has one superblock, so rw and ro don't mix (facts proxmox-9.2, row 1); a folder is bound twice."""
    with_disk(lab)
    create(lab, 106, "local-lvm:1")
    disk = TYPES[kind]["disk"]
    assert do(lab, "PUT", "/nodes/pve/lxc/106/config", mp1=f"{disk},mp=/theirs,ro=1") == "OK"
    assert config(lab, 106)["mp1"] == f"{disk},mp=/theirs,ro=1,size=1G"
    told = do(lab, "PUT", "/nodes/pve/lxc/106/resize", disk="mp1", size="2G")
    assert told.startswith("can't resize mount point owned by another container (105)")
    assert do(lab, "POST", "/nodes/pve/lxc/105/status/start") == "OK"
    started = do(lab, "POST", "/nodes/pve/lxc/106/status/start")
    assert started == ("OK" if kind == "zfspool" else "startup for container '106' failed")
    if started == "OK":
        assert do(lab, "POST", "/nodes/pve/lxc/106/status/stop") == "OK"
    assert do(lab, "DELETE", "/nodes/pve/lxc/106") == "OK"
    assert disk in volids(lab)


@pytest.mark.parametrize("there", ["tank", "local-lvm"])
def test_it_moves_to_another_type_with_what_is_on_it(lab: SimulatedLab, kind: str, there: str) -> None:
    here = {"tank": "local-lvm", "local-lvm": "tank"}[there]
    create(lab, 105, f"{here}:4")
    assert do(lab, "PUT", "/nodes/pve/lxc/105/config", mp0=f"{here}:1,mp=/data") == "OK"
    write(lab, config(lab, 105)["mp0"].partition(",")[0], b"a word")
    assert do(lab, "POST", "/nodes/pve/lxc/105/move_volume", volume="mp0", storage=there, delete=1) == "OK"
    volid = config(lab, 105)["mp0"].partition(",")[0]
    made = TYPES[kind if there == "tank" else "lvmthin"]["root"].replace("tank:", f"{there}:")
    assert config(lab, 105)["mp0"] == f"{made},mp=/data,size=1G"
    assert content(lab, volid) == b"a word"
    assert do(lab, "POST", "/nodes/pve/lxc/105/status/start") == "OK"


def test_a_template_and_what_is_cloned_of_it(lab: SimulatedLab, kind: str) -> None:
    create(lab, 105, "tank:4")
    expected = TYPES[kind]
    write(lab, expected["root"], b"a word")
    told = do(lab, "POST", "/nodes/pve/lxc/105/template")
    lab.wait_idle()
    rootfs = config(lab, 105)["rootfs"].partition(",")[0]
    if not expected["base"].startswith("tank:"):
        assert rootfs == expected["root"]
        assert "template" not in config(lab, 105)
        return
    assert told == "OK"
    assert rootfs == expected["base"]
    linked = do(lab, "POST", "/nodes/pve/lxc/105/clone", newid=107)
    if not expected["clone"].startswith("tank:"):
        assert linked == expected["clone"]
    else:
        assert linked == "OK"
        assert config(lab, 107)["rootfs"] == f"{expected['clone']},size=4G"
        assert content(lab, expected["clone"]) == b"a word"
        assert sorted(volids(lab)) == sorted([expected["base"], expected["clone"]])
        assert do(lab, "DELETE", "/nodes/pve/lxc/105") == expected["parent"]
        assert do(lab, "DELETE", "/nodes/pve/lxc/107") == "OK"
    if 105 in lab.server.cluster.guests():
        assert do(lab, "POST", "/nodes/pve/lxc/105/clone", newid=107, full=1) == "OK"
        copied = config(lab, 107)["rootfs"].partition(",")[0]
        assert copied == expected["root"].replace("105", "107")
        assert content(lab, copied) == b"a word"
        assert do(lab, "DELETE", "/nodes/pve/lxc/105") == "OK"
        assert volids(lab) == [copied]


def test_what_is_wrong_is_told_in_the_types_words(lab: SimulatedLab, kind: str) -> None:
    with_disk(lab)
    expected = TYPES[kind]
    disk = expected["disk"]
    form = expected["row"]["format"]
    if "taken" in expected:
        order = {"vmid": 105, "filename": disk.partition(":")[2].rpartition("/")[2], "size": "1G", "format": form}
        assert do(lab, "POST", "/nodes/pve/storage/tank/content", **order) == expected["taken"]
    assert do(lab, "POST", "/nodes/pve/lxc/105/status/start") == "OK"
    if "mounted" in expected:
        told = do(lab, "DELETE", f"/nodes/pve/storage/tank/content/{disk}")
        assert " ".join(told.split()) == " ".join(expected["mounted"].split())
        assert (disk in volids(lab)) == (expected["mounted"] != "OK")
    assert do(lab, "POST", "/nodes/pve/lxc/105/status/stop") == "OK"
    if "missing" in expected:
        if disk in volids(lab):
            assert do(lab, "DELETE", f"/nodes/pve/storage/tank/content/{disk}") == "OK"
        told = do(lab, "POST", "/nodes/pve/lxc/105/status/start")
        assert " ".join(told.split()) == " ".join(expected["missing"].split())
    # A fault on demand: the next volume finds no room.
    lab.fail(kind="full", storage="tank", count=None)
    assert do(lab, "PUT", "/nodes/pve/lxc/105/config", mp5="tank:1,mp=/e") != "OK"
    assert "mp5" not in config(lab, 105)


def test_a_backup_of_one_type_is_restored_on_another(lab: SimulatedLab, kind: str) -> None:
    create(lab, 105, "tank:4")
    write(lab, TYPES[kind]["root"], b"a word")
    assert do(lab, "POST", "/nodes/pve/vzdump", vmid=105, storage="local", mode="stop") == "OK"
    [archive] = [volid for volid in volids(lab, "local") if ":backup/" in volid]
    for vmid, storage in ((106, "local-lvm"), (107, "tank")):
        order = {"vmid": vmid, "ostemplate": archive, "restore": 1, "storage": storage}
        assert do(lab, "POST", "/nodes/pve/lxc", **order) == "OK"
        volid = config(lab, vmid)["rootfs"].partition(",")[0]
        assert volid.startswith(f"{storage}:")
        assert content(lab, volid) == b"a word"


def test_a_volume_group_gives_no_more_than_it_has(tmp_path: Path) -> None:
    """Thick LVM: each volume takes its whole size."""
    small = StorageConfig("tank", "lvm", CONTENT, capacity=6 * GIB)
    with simulated_lab(tmp_path, storages=(*DEFAULT_STORAGES, small)) as lab:
        with_disk(lab)
        told = do(lab, "PUT", "/nodes/pve/lxc/105/config", mp1="tank:2,mp=/more")
        assert "insufficient free space" in told
        shown = ask(lab, "GET", "/nodes/pve/storage/tank/status").json()["data"]
        assert (shown["total"], shown["used"]) == (6 * GIB, 5 * GIB)


class Share(Directory):
    """A folder of another machine; it can do what no folder can, so that one sees who decides."""

    name = "share"
    features = {**Directory.features, "snapshot": {"current": ["raw"]}}  # noqa: RUF012 - as the class that it is of

    def settings(self, storage: StorageConfig) -> dict[str, object]:
        return {"server": "files.example", "export": f"/export/{storage.name}"}

    def freed(self, volume: Volume) -> list[str]:
        return [f"gone from the server: {volume.name}"]


@pytest.fixture
def own_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "_types", dict(storages._types))
    register(Share())


@pytest.mark.usefixtures("own_types")
def test_a_registered_type_holds_a_guest_through_its_life(tmp_path: Path) -> None:
    with simulated_lab(tmp_path, storages=(*DEFAULT_STORAGES, StorageConfig("nas", "share", CONTENT))) as lab:
        [entry] = [found for found in ask(lab, "GET", "/storage").json()["data"] if found["storage"] == "nas"]
        assert (entry["type"], entry["server"], entry["export"]) == ("share", "files.example", "/export/nas")
        create(lab, 105, "nas:4")
        assert config(lab, 105)["rootfs"] == "nas:105/vm-105-disk-0.raw,size=4G"
        assert do(lab, "POST", "/nodes/pve/lxc/105/snapshot", snapname="s1") == "OK"
        assert "s1" in [found["name"] for found in ask(lab, "GET", "/nodes/pve/lxc/105/snapshot").json()["data"]]
        upid = ask(lab, "DELETE", "/nodes/pve/lxc/105").json()["data"]
        lab.wait_idle()
        log = ask(lab, "GET", f"/nodes/pve/tasks/{upid}/log").json()["data"]
        assert "gone from the server: 105/vm-105-disk-0.raw" in [line["t"] for line in log]
        assert volids(lab, "nas") == []


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            StorageConfig("tank", "drbd", CONTENT),
            "storage tank has the unknown type 'drbd'; known: btrfs, cifs, dir, lvm, lvmthin, nfs, rbd, zfspool",
        ),
        (
            StorageConfig("tank", "zfspool", frozenset({"rootdir", "iso"})),
            "storage tank: a storage of type zfspool can't hold iso",
        ),
    ],
    ids=["type", "content"],
)
def test_what_no_storage_can_be_is_told_at_once(tmp_path: Path, entry: StorageConfig, told: str) -> None:
    with pytest.raises(ValueError, match=told), simulated_lab(tmp_path, storages=(*DEFAULT_STORAGES, entry)):
        pass


FEATURES = {
    # Sub volume_has_feature of each plugin: where a feature is to be had. A linked clone of an image in a folder
    # would be qcow2, which PVE::LXC::Config, has_feature, does not take.
    ("lvmthin", "raw"): "snapshot:current clone:base,snap template:current copy:base,current,snap rename:current",
    ("lvm", "raw"): "copy:base,current rename:current",
    ("dir", "raw"): "template:current copy:base,current rename:current",
    ("dir", "subvol"): "template:current",
    ("nfs", "raw"): "template:current copy:base,current rename:current",
    ("btrfs", "raw"): "snapshot:current,snap clone:base,current,snap template:current copy:base,current,snap "
    "rename:current",
    ("btrfs", "subvol"): "snapshot:current,snap clone:base template:current copy:base,current,snap",
    ("zfspool", "subvol"): "snapshot:current,snap clone:base template:current copy:base,current rename:current",
    ("zfspool", "raw"): "snapshot:current,snap clone:base template:current copy:base,current rename:current",
    ("rbd", "raw"): "snapshot:current,snap clone:base,snap template:current copy:base,current,snap rename:current",
}


@pytest.mark.parametrize(("kind", "form"), FEATURES)
def test_a_type_can_do_what_its_plugin_can(kind: str, form: str) -> None:
    storage = StorageConfig("tank", kind, CONTENT)
    volume = Volume("tank:x", storage, "x", "images", 105, form)
    found = []
    for feature in ("snapshot", "clone", "template", "copy", "rename"):
        states = {
            "base": type_of(storage).has_feature(feature, replace(volume, is_base=True)),
            "current": type_of(storage).has_feature(feature, volume),
            "snap": type_of(storage).has_feature(feature, volume, of_snapshot=True),
        }
        if any(states.values()):
            found.append(f"{feature}:{','.join(state for state, can in states.items() if can)}")
    assert " ".join(found) == FEATURES[kind, form]


NAMES: list[tuple[str, str, tuple[int, str, bool, str | None] | None]] = [
    # Sub parse_volname of each plugin: owner, format, whether it is a base, and the base it was cloned of.
    ("dir", "105/vm-105-disk-0.raw", (105, "raw", False, None)),
    ("dir", "105/base-105-disk-0.raw", (105, "raw", True, None)),
    ("dir", "105/subvol-105-disk-0.subvol", (105, "subvol", False, None)),
    ("dir", "105/anything.qcow2", (105, "qcow2", False, None)),
    # Whose folder it is counts, not what the file is called.
    ("dir", "105/vm-999-disk-0.raw", (105, "raw", False, None)),
    ("dir", "100/base-100-disk-0.raw/105/vm-105-disk-0.qcow2", (105, "qcow2", False, "100/base-100-disk-0.raw")),
    ("dir", "105/vm-105-disk-0", None),
    ("dir", "vm-105-disk-0.raw", None),
    ("zfspool", "subvol-105-disk-0", (105, "subvol", False, None)),
    ("zfspool", "vm-105-disk-0", (105, "raw", False, None)),
    ("zfspool", "basevol-100-disk-0/subvol-105-disk-0", (105, "subvol", False, "basevol-100-disk-0")),
    ("zfspool", "105/subvol-105-disk-0.subvol", None),
    ("lvm", "vm-105-disk-0", (105, "raw", False, None)),
    ("lvm", "base-105-disk-0", None),
    ("lvm", "subvol-105-disk-0", None),
    ("lvmthin", "base-105-disk-0", (105, "raw", True, None)),
    ("rbd", "base-100-disk-0/vm-105-disk-0", (105, "raw", False, "base-100-disk-0")),
    ("rbd", "subvol-105-disk-0", None),
]


@pytest.mark.parametrize(("kind", "name", "read"), NAMES)
def test_a_name_is_read_as_the_plugin_reads_it(
    kind: str, name: str, read: tuple[int, str, bool, str | None] | None
) -> None:
    storage = StorageConfig("tank", kind, CONTENT)
    if read is None:
        with pytest.raises(ApiError, match="unable to parse"):
            type_of(storage).parse(storage, f"tank:{name}", name)
        return
    volume = type_of(storage).parse(storage, f"tank:{name}", name)
    assert (volume.owner, volume.format, volume.is_base, volume.parent) == read
