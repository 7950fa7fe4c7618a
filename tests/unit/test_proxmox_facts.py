"""Reading facts: what is, what waits, who names a volume, and what cannot be known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from proxmox import errors
from proxmox.facts import GuestFacts, Reference, locate, read_cluster, read_guest, read_volume
from tests.tables import cases
from tests.unit.proxmox_http import Answer, Server, containers, data, die, entries, power

DISK = "local-lvm:vm-999-disk-1"
FREE = data("105")
TAKEN = die("Parameter verification failed.", 400, {"vmid": "VM 105 already exists"})
GONE = die("Configuration file 'nodes/pve/lxc/105.conf' does not exist")


def rows(*listed: tuple[int, str, str]) -> Answer:
    return data([{"vmid": vmid, "type": kind, "node": node, "status": "unknown"} for vmid, kind, node in listed])


def cluster_server(more: Mapping[str, Answer | Sequence[Answer]], *, permissions: Mapping[str, Any]) -> Server:
    routes: dict[str, Answer | Sequence[Answer]] = {
        "GET /nodes": data(
            [
                {"node": "pve", "status": "online"},
                {"node": "pve2", "status": "offline"},
                {"node": "pve3", "status": "unknown"},
            ]
        ),
        "GET /nodes/pve/storage": data([{"storage": "nfs", "shared": 1}, {"storage": "local-lvm", "shared": 0}]),
        "GET /access/permissions": data(permissions),
    }
    return Server({**routes, **more})


SEES_ALL = {"/vms": {"VM.Audit": 1}}


def test_a_guest_is_read_with_what_waits_and_its_power() -> None:
    listed = [
        {"key": "hostname", "value": "hermes"},
        {"key": "mp0", "value": f"{DISK},mp=/data", "delete": 1},
        {"key": "mp1", "pending": f"{DISK},mp=/new"},
        {"key": "digest", "value": "f7"},
        {"key": "protection", "value": 1},
        {"key": "lock", "value": "backup"},
        {"key": "template", "value": 1},
        {"key": "unused0", "value": "local-lvm:vm-999-disk-2"},
    ]
    server = Server(
        {
            "GET /cluster/resources": rows((105, "lxc", "pve")),
            "GET /nodes/pve/lxc/105/pending": data(listed),
            "GET /nodes/pve/lxc/105/status/current": power(True),
        }
    )
    guest = read_guest(server.client(), 105)
    assert guest is not None
    assert (guest.name, guest.node, guest.running, guest.digest) == ("hermes", "pve", True, "f7")
    assert (guest.protected, guest.lock, guest.template) == (True, "backup", True)
    assert list(guest.mounts()) == ["mp0"]
    pending = guest.pending_mounts()
    assert pending["mp0"] is None
    assert pending["mp1"] is not None
    assert guest.unused() == {"unused0": "local-lvm:vm-999-disk-2"}
    assert server.count("PUT") + server.count("POST") == 0


def test_a_free_number_has_no_guest() -> None:
    server = Server({"GET /cluster/resources": rows(), "GET /cluster/nextid": FREE})
    assert read_guest(server.client(), 105) is None


def test_a_guest_that_goes_away_while_it_is_read_is_gone() -> None:
    server = Server({"GET /cluster/resources": rows((105, "lxc", "pve")), "GET /nodes/pve/lxc/105/pending": GONE})
    assert read_guest(server.client(), 105) is None


def test_a_guest_that_the_token_may_not_see_is_not_taken_for_a_free_number() -> None:
    # facts proxmox 12: nextid tells of guests that the token cannot audit.
    server = Server({"GET /cluster/resources": rows(), "GET /cluster/nextid": TAKEN})
    with pytest.raises(errors.GuestMissing, match="may not see it"):
        locate(server.client(), 105)


def test_the_cluster_is_read_whole_and_what_cannot_be_read_is_kept_apart() -> None:
    server = cluster_server(
        {
            "GET /cluster/resources": rows(
                (999, "lxc", "pve"),
                (105, "lxc", "pve"),
                (106, "lxc", "pve"),
                (200, "qemu", "pve"),
                (300, "lxc", "pve2"),
                (301, "lxc", "pve3"),
            ),
            "GET /nodes/pve3/lxc/301/pending": entries(hostname="there"),
            "GET /nodes/pve3/lxc/301/snapshot": data([{"name": "current"}]),
            "GET /nodes/pve/lxc/999/pending": entries(mp0=f"{DISK},mp=/v"),
            "GET /nodes/pve/lxc/999/snapshot": data([{"name": "s"}, {"name": "current"}]),
            "GET /nodes/pve/lxc/999/snapshot/s/config": data({"mp0": f"{DISK},mp=/old"}),
            "GET /nodes/pve/lxc/999/status/current": power(False),
            "GET /nodes/pve/lxc/105/pending": GONE,
            "GET /nodes/pve/lxc/106/pending": die("Permission check failed (/vms/106, VM.Audit)", 403),
            "GET /nodes/pve/qemu/200/pending": entries(scsi0=f"{DISK},size=8G", name="win"),
            "GET /nodes/pve/qemu/200/snapshot": die("Method not implemented", 501),
        },
        permissions=SEES_ALL,
    )
    cluster = read_cluster(server.client(), 999)
    assert [guest.vmid for guest in cluster.guests] == [200, 301, 999]
    assert {guest.vmid: reason for guest, reason in cluster.unreadable} == {
        300: "node pve2 is offline",
        106: "Permission check failed (/vms/106, VM.Audit)",
    }
    assert cluster.sees_all
    assert cluster.shared_storages == {"nfs"}
    pet = cluster.guest(999)
    assert pet is not None
    assert pet.running is False  # read because it names a volume of 999's
    assert [reference.where for _, reference in cluster.holders(DISK)] == ["config", "config", "snapshot s"]
    assert {vmid: cluster.node_of(vmid) for vmid in (301, 300, 404)} == {301: "pve3", 300: "pve2", 404: None}
    assert [guest.vmid for guest, _ in cluster.holders(DISK, besides=[999])] == [200]
    assert cluster.guest(105) is None


def test_many_guests_are_read_side_by_side_in_their_order() -> None:
    numbers = range(100, 120)
    server = cluster_server(containers({vmid: {"hostname": f"h{vmid}"} for vmid in numbers}), permissions=SEES_ALL)
    assert [guest.name for guest in read_cluster(server.client(), 999).guests] == [f"h{vmid}" for vmid in numbers]


@pytest.mark.parametrize(
    "permissions", [{}, {"/vms": {"VM.Audit": 0}}, {"/vms/105": {"VM.Audit": 1}}, {"/vms": {"VM.Allocate": 1}}]
)
def test_a_token_that_does_not_see_all_guests_is_known_as_such(permissions: dict[str, Any]) -> None:
    server = cluster_server({"GET /cluster/resources": rows()}, permissions=permissions)
    assert not read_cluster(server.client(), 999).sees_all


def test_the_power_of_the_guests_asked_for_is_read() -> None:
    server = cluster_server(containers({105: {}, 106: {}}, running={105}), permissions=SEES_ALL)
    cluster = read_cluster(server.client(), 999, power_of=[105])
    assert {guest.vmid: guest.running for guest in cluster.guests} == {105: True, 106: None}


def test_a_volume_is_found_in_its_storages_list() -> None:
    listed = data([{"volid": DISK, "size": 8 << 30, "format": "raw", "vmid": 999, "content": "rootdir"}])
    server = Server({"GET /nodes/pve/storage/local-lvm/content": listed})
    volume = read_volume(server.client(), "pve", DISK)
    assert volume is not None
    assert (volume.size, volume.owner, volume.storage) == (8 << 30, 999, "local-lvm")
    # facts proxmox 11: content=rootdir would hide the volume of an owner without a guest.
    assert server.asked[0].values == {"vmid": "999"}
    assert read_volume(server.client(), "pve", "local-lvm:vm-999-disk-2") is None


@pytest.mark.parametrize(
    ("_", "case"), cases("references.yaml", "names", keys="kind config pending snapshots found none")
)
def test_every_place_that_names_a_volume_is_found(_: str, case: dict[str, Any]) -> None:
    parts: dict[str, Any] = {key: case[key] for key in ("kind", "config", "pending", "snapshots") if key in case}
    guest = GuestFacts(1, "pve", **parts)
    found = [[place.where, place.key, place.path] for place in guest.references(DISK)]
    assert found == ([case["found"]] if "found" in case else [])
    if "snapshots" not in case:
        assert guest.names_volume_of(999) is not case.get("none", False)
    assert not guest.names_volume_of(99)
    assert not guest.names_volume_of(None)


def test_a_raw_line_has_the_folder_that_is_asked_for() -> None:
    guest = GuestFacts(1, "pve", config={"lxc": "lxc.mount.entry: /mnt/pve/hdd/agents\\040home/ home none bind"})
    assert [reference.key for reference in guest.references("/mnt/pve/hdd/agents home")] == ["lxc.mount.entry"]
    assert guest.references("/mnt/pve/hdd/agents") == ()


def test_a_reference_tells_where_it_is() -> None:
    guest = GuestFacts(1, "pve", "qemu", config={"scsi0": DISK})
    assert guest.references(DISK) == (Reference(1, "qemu", "pve", "config", "scsi0", None),)


def test_a_mount_point_that_cannot_be_read_stops_whoever_needs_it() -> None:
    for guest in (GuestFacts(105, "pve", config={"mp0": DISK}), GuestFacts(105, "pve", pending={"mp0": DISK})):
        with pytest.raises(errors.SlotTaken, match="mp0 of CT 105 cannot be read"):
            _ = guest.mounts() or guest.pending_mounts()
