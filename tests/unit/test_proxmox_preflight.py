"""Preflight: every fault that can be known before the first change, all of them in one list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from proxmox.client import Node, Permissions, Storage, Version
from proxmox.errors import Fault, Subject
from proxmox.facts import ClusterFacts, GuestFacts
from proxmox.hostmounts import HostMount, HostMountSpec
from proxmox.ownership import render_notes
from proxmox.planning import GIB, AttachSpec, RemovalSpec, VolumeSpec
from proxmox.preflight import (
    CattleCheck,
    GuestCheck,
    NodeFacts,
    Occupants,
    PetCheck,
    cards_of,
    cattle_faults,
    needed_cattle,
    needed_pet,
    pet_faults,
    preflight_cattle,
    preflight_pet,
    static_addresses,
)
from proxmox.rights import MANAGE, ROLE, grant_commands
from tests.unit.proxmox_http import Answer, Server, data, die
from tests.unit.proxmox_model import EIGHT, Guest, Model, cattle_with, pet_with

DISK = "local-lvm:vm-999-disk-1"
TEMPLATE = "local:vztmpl/debian-12.tar.zst"
CLAIM = "0b8f6a1e-58c3-4a6e-9d0b-0f6b1a2c3d4e"
TOKEN = "pulumi@pve!ci"
PET = PetCheck(
    GuestCheck(999, "pve", "local-lvm", 2, TEMPLATE, "vmbr0", claim=CLAIM),
    (VolumeSpec("hermes", 999, "local-lvm", 8, "/volumes/hermes"),),
)
CATTLE = CattleCheck(
    GuestCheck(105, "pve", "local-lvm", 20, TEMPLATE, "vmbr0", "192.0.2.5/24", claim=CLAIM),
    AttachSpec(105, "pve", DISK, "/home/hermes", 999),
)
# The role of facts proxmox 14, on its paths.
RIGHTS: dict[str, dict[str, bool]] = {
    "/vms": dict.fromkeys(
        [
            *("VM.Audit", "VM.Allocate", "VM.PowerMgmt"),
            *(f"VM.Config.{part}" for part in ("Disk", "CPU", "Memory", "Network", "Options")),
        ],
        True,
    ),
    "/storage/local-lvm": {"Datastore.AllocateSpace": True, "Datastore.Audit": True},
    "/storage/local": {"Datastore.Audit": True},
    "/sdn/zones/localnetwork/vmbr0": {"SDN.Use": True},
}
THIN = Storage("local-lvm", "lvmthin", frozenset({"rootdir", "images"}), True, True, False, 500 * GIB, 400 * GIB)
OWN = {"description": render_notes("ours", CLAIM)}


def ours(guest: Guest) -> Guest:
    """The guest with this stack's claim."""
    guest.config |= OWN
    return guest


def around(state: Model | None = None, **changes: Any) -> NodeFacts:
    """A cluster where everything is as it should be, but for `changes`."""
    found = state or Model({999: ours(pet_with(f"{DISK},mp=/volumes/hermes,backup=1"))}, {DISK: EIGHT})
    seen = NodeFacts(
        Version("9.2.11", "9.2", 9),
        (Node("pve", True), Node("pve2", False)),
        Permissions(RIGHTS),
        TOKEN,
        False,
        found.cluster(),
        (THIN,),
        frozenset({TEMPLATE}),
        {volid: volume for volid in found.volumes if (volume := found.volume(volid))},
        {"vmbr0": "bridge", "vmbr1": "OVSBridge"},
    )
    return replace(seen, **changes)


def empty(**changes: Any) -> NodeFacts:
    return around(Model(), **changes)


def test_nothing_stands_in_the_way_of_a_first_run() -> None:
    assert pet_faults(PET, empty()) == []
    assert cattle_faults(CATTLE, around()) == []


def test_nothing_stands_in_the_way_of_a_later_run() -> None:
    state = Model(
        {
            999: ours(pet_with(f"{DISK},mp=/volumes/hermes,backup=1")),
            105: ours(cattle_with(f"{DISK},mp=/home/hermes", running=True, net0="name=eth0,ip=192.0.2.5/24")),
        },
        {DISK: EIGHT},
    )
    assert pet_faults(PET, around(state, taken=True)) == []
    assert cattle_faults(CATTLE, around(state, taken=True)) == []


def without(path: str, privilege: str) -> Permissions:
    return Permissions(
        {
            place: {name: flag for name, flag in names.items() if (place, name) != (path, privilege)}
            for place, names in RIGHTS.items()
        }
    )


@pytest.mark.parametrize(("path", "privilege"), [(path, name) for path, names in RIGHTS.items() for name in names])
def test_each_privilege_that_is_taken_away_is_named_with_its_path_and_command(path: str, privilege: str) -> None:
    permissions = without(path, privilege)
    told = pet_faults(PET, empty(permissions=permissions)) + cattle_faults(CATTLE, around(permissions=permissions))
    assert any(privilege in fault.value and fault.key.startswith(path) for fault in told)
    assert all(
        f"--roles {ROLE} --users pulumi@pve --tokens '{TOKEN}'" in fault.remedy
        for fault in told
        if "lacks" in fault.value
    )
    assert any(f"pveum acl modify {path} " in fault.remedy for fault in told)


def test_an_entry_of_its_own_below_is_where_the_right_has_to_be_granted() -> None:
    # facts proxmox 1: the deepest entry replaces what is inherited.
    permissions = Permissions({**RIGHTS, "/vms/105": {"VM.Audit": True}})
    told = [fault for fault in cattle_faults(CATTLE, around(permissions=permissions)) if fault.key == "/vms/105"]
    assert len(told) == 1
    assert "VM.Allocate" in told[0].value
    assert "pveum acl modify /vms/105 " in told[0].remedy


def test_rights_needed_are_at_most_twelve_and_none_of_them_is_on_the_root_or_deletes_any_volume() -> None:
    rights = [*needed_pet(PET), *needed_cattle(CATTLE)]
    names = {name for right in rights for name in right.privileges}
    assert len(names) <= 12
    assert "Datastore.Allocate" not in names
    assert "/" not in {right.grant_at for right in rights}
    assert set(MANAGE) < names


def test_the_commands_grant_exactly_the_role_to_user_and_token() -> None:
    commands = grant_commands([*needed_pet(PET), *needed_cattle(CATTLE)], TOKEN)
    privileges = {name for names in RIGHTS.values() for name in names}
    assert commands[0] == f'pveum role add {ROLE} --privs "{" ".join(sorted(privileges))}"'
    assert commands[1] == "pveum user add pulumi@pve"
    assert commands.count("pveum user token add pulumi@pve ci --privsep 1") == 1
    for path in RIGHTS:
        assert f"pveum acl modify {path} --roles {ROLE} --users pulumi@pve" in commands
        assert f"pveum acl modify {path} --roles {ROLE} --tokens '{TOKEN}'" in commands


def test_without_template_bridge_and_volume_their_rights_are_not_needed() -> None:
    guest = replace(CATTLE.guest, template=None, bridge=None)
    paths = {right.path for right in needed_cattle(CattleCheck(guest))}
    assert paths == {"/vms/105", "/vms", "/storage/local-lvm"}


SNAPSHOT = ours(cattle_with(f"{DISK},mp=/home/hermes", running=True))
SNAPSHOT.snapshots["before"] = {"mp0": f"{DISK},mp=/home/hermes"}
STRANGER = cattle_with(net0="name=eth0,bridge=vmbr0,ip=192.0.2.5/24,type=veth", vmid=300)


def with_cattle(cattle: Guest, vmid: int = 105) -> Model:
    return Model({999: pet_with(f"{DISK},mp=/volumes/hermes"), vmid: cattle}, {DISK: EIGHT})


CATTLE_FAULTS: dict[str, tuple[CattleCheck, NodeFacts, str, str]] = {
    "old version": (CATTLE, around(version=Version("7.4", "7.4", 7)), "version", "Proxmox VE 8 or newer"),
    "no such node": (
        replace(CATTLE, guest=replace(CATTLE.guest, node="nope")),
        around(),
        "node",
        "must be a node of the cluster: pve, pve2",
    ),
    "no nodes": (CATTLE, around(nodes=()), "node", "none that the token may see"),
    "node is off": (replace(CATTLE, guest=replace(CATTLE.guest, node="pve2")), around(), "node", "must be online"),
    "no such storage": (
        replace(CATTLE, guest=replace(CATTLE.guest, root_storage="fast")),
        around(),
        "storage",
        "which sees: local-lvm",
    ),
    "no such storage, and so no rights on it": (
        replace(CATTLE, guest=replace(CATTLE.guest, root_storage="fast")),
        around(),
        "storage",
        "correct the name; if it is right, on a node: pveum",
    ),
    "no storage": (CATTLE, around(storages=()), "storage", "which sees: none"),
    "storage disabled": (CATTLE, around(storages=(replace(THIN, enabled=False),)), "storage", "--disable 0"),
    "storage not active": (CATTLE, around(storages=(replace(THIN, active=False),)), "storage", "not active"),
    "content": (
        CATTLE,
        around(storages=(replace(THIN, content=frozenset({"iso"})),)),
        "storage",
        "pvesm set local-lvm --content iso,rootdir",
    ),
    "thin pool is full": (
        CATTLE,
        around(storages=(replace(THIN, available=GIB // 2),)),
        "storage",
        "20G are asked for",
    ),
    "larger than the pool": (
        CATTLE,
        around(storages=(replace(THIN, total=10 * GIB),)),
        "storage",
        "20G are asked for",
    ),
    "thick storage has no room": (
        CATTLE,
        around(storages=(replace(THIN, kind="lvm", available=19 * GIB),)),
        "storage",
        "19G of 500G are free",
    ),
    "no template": (
        CATTLE,
        around(templates=frozenset({"local:vztmpl/other.tar.zst"})),
        "template",
        "pveam download local debian-12.tar.zst",
    ),
    "no templates at all": (CATTLE, around(templates=frozenset()), "template", "there: none"),
    "no such bridge": (
        replace(CATTLE, guest=replace(CATTLE.guest, bridge="vmbr9")),
        around(),
        "bridge",
        "vmbr0, vmbr1",
    ),
    "number taken by one that is not seen": (CATTLE, around(taken=True), "vmid", "may not see"),
    "number taken by a stranger": (
        CATTLE,
        around(with_cattle(cattle_with())),
        "vmid",
        "CT 105 'hermes' on node pve (stopped) has it without this stack's claim",
    ),
    "number taken by a virtual machine": (
        replace(CATTLE, guest=replace(CATTLE.guest, ours=True)),
        around(with_cattle(Guest({"name": "win"}, kind="qemu"))),
        "vmid",
        "VM 105 'win'",
    ),
    "on another node": (
        CATTLE,
        around(with_cattle(replace(ours(cattle_with()), node="pve2"))),
        "vmid",
        "pct migrate 105 pve",
    ),
    "locked": (CATTLE, around(with_cattle(ours(cattle_with(lock="create")))), "vmid", "pct unlock 105"),
    "address in use": (CATTLE, around(with_cattle(STRANGER, 300)), "address", "CT 300"),
    "a smaller root file system": (
        replace(CATTLE, guest=replace(CATTLE.guest, root_gb=19)),
        around(with_cattle(ours(cattle_with()))),
        "disk",
        "CT 105 has a root file system of 20G",
    ),
    "volume missing": (CATTLE, around(volumes={}), "volume", "does not exist"),
    "volumes not read": (CATTLE, around(volumes=None), "volume", "does not exist"),
    "volume held": (
        CATTLE,
        around(with_cattle(cattle_with(f"{DISK},mp=/d", vmid=106), 106)),
        "volume",
        "held by guest 106",
    ),
    "pet runs": (
        CATTLE,
        around(Model({999: pet_with(f"{DISK},mp=/v", running=True)}, {DISK: EIGHT})),
        "volume",
        "CT 999 runs",
    ),
    "snapshot would carry the volume along": (
        CATTLE,
        around(with_cattle(SNAPSHOT)),
        "volume",
        "pct delsnapshot 105 before",
    ),
}


@pytest.mark.parametrize("case", CATTLE_FAULTS)
def test_each_fault_of_a_cattle_is_told(case: str) -> None:
    check, seen, key, text = CATTLE_FAULTS[case]
    told = [fault for fault in cattle_faults(check, seen) if fault.key == key]
    assert any(text in str(fault) for fault in told), cattle_faults(check, seen)
    assert all(fault.rule and fault.remedy for fault in told)


def test_many_faults_are_told_in_one_go() -> None:
    guest = replace(CATTLE.guest, bridge="nope", template="local:vztmpl/nope")
    seen = around(with_cattle(STRANGER, 300), permissions=Permissions({}), volumes={}, taken=True)
    keys = {fault.key for fault in cattle_faults(replace(CATTLE, guest=guest), seen)}
    assert keys >= {
        "/vms",
        "/storage/local-lvm",
        "vmid",
        "template",
        "bridge",
        "address",
        "volume",
    }


def test_a_guest_that_the_state_knows_needs_no_claim() -> None:
    seen = around(with_cattle(cattle_with()), taken=True)
    assert cattle_faults(replace(CATTLE, guest=replace(CATTLE.guest, ours=True)), seen) == []


def test_what_exists_already_needs_no_room_and_no_template() -> None:
    seen = around(with_cattle(ours(cattle_with())), storages=(replace(THIN, available=0),), templates=frozenset())
    assert cattle_faults(CATTLE, seen) == []


def test_what_is_made_anew_is_proved_before_the_old_one_goes() -> None:
    """The engine deletes first: a template or storage that is missing would be told when the container is gone."""
    there = ours(cattle_with(rootfs="local-lvm:vm-105-disk-0,size=20G"))
    check = replace(CATTLE, guest=replace(CATTLE.guest, remade=True))
    seen = around(with_cattle(there), templates=frozenset())
    assert [fault.key for fault in cattle_faults(check, seen)] == ["template"]
    full = around(with_cattle(there), storages=(replace(THIN, available=0),))
    assert cattle_faults(check, full) == []  # the room of the one that goes
    moved = ours(cattle_with(rootfs="ssd:vm-105-disk-0,size=20G"))
    full = around(with_cattle(moved), storages=(replace(THIN, available=0),))
    assert [fault.key for fault in cattle_faults(check, full)] == ["storage"]


def test_a_vnet_is_used_by_the_rights_of_its_zone() -> None:
    """Listed to those who have them (facts proxmox 2.2); its zone is not told, and localnetwork is another one."""
    check = replace(CATTLE, guest=replace(CATTLE.guest, bridge="intra01"))
    assert cattle_faults(check, around(bridges={"vmbr0": "bridge", "intra01": "vnet"})) == []
    # One that is not listed: a wrong name, or a right that is missing; in one fault.
    [fault] = cattle_faults(check, around())
    assert fault.value == "intra01"
    assert "with its zone in place of localnetwork" in fault.remedy
    assert "pveum acl modify /sdn/zones/localnetwork/intra01" in fault.remedy


def test_a_home_on_a_folder_of_the_node_has_one_agent() -> None:
    home = "/mnt/pve/nas/home"
    check = replace(CATTLE, attach=None, home=home)
    other = GuestFacts(106, "pve", config={"mp1": f"{home},mp=/home/hermes"})
    elsewhere = replace(other, node="pve2")

    def told(*guests: GuestFacts, **more: Any) -> list[Fault]:
        return cattle_faults(check, around(cluster=ClusterFacts((GuestFacts(105, "pve"), *guests), **more)))

    before = told()
    assert told(elsewhere) == before
    for found in (told(other), told(elsewhere, shared_storages=frozenset({"nas"}))):
        [fault] = [fault for fault in found if fault not in before]
        assert (fault.key, fault.value) == ("host mount", home)
        assert "guest 106" in fault.rule or "CT 106" in fault.rule
        assert "two agents must not have one home" in fault.rule


def test_a_storage_that_is_away_is_seen_without_root() -> None:
    host = HostMountSpec(105, "pve", (HostMount("/mnt/pve/hdd/hermes", "/data"), HostMount("/srv/x", "/x")))
    check = replace(CATTLE, host=host, root_access=True)
    hdd = Storage("hdd", "dir", frozenset({"images"}), True, True, False, 10 * GIB, 5 * GIB)
    there = (*around().storages, hdd)
    assert cattle_faults(check, around(storages=there)) == []
    [fault] = cattle_faults(check, around(storages=(*around().storages, replace(hdd, active=False))))
    assert (fault.key, fault.value) == ("host mount", "/mnt/pve/hdd/hermes")
    assert "storage hdd is not active on node pve" in fault.rule


@pytest.mark.parametrize("unknown", [{"templates": None}, {"bridges": None}, {"bridges": {}}])
def test_what_cannot_be_known_is_no_fault(unknown: dict[str, Any]) -> None:
    assert cattle_faults(CATTLE, around(**unknown)) == []


@pytest.mark.parametrize("address", [None, "", "dhcp"])
def test_without_a_fixed_address_none_is_compared(address: str | None) -> None:
    check = replace(CATTLE, guest=replace(CATTLE.guest, address=address))
    assert cattle_faults(check, around(with_cattle(STRANGER, 300))) == []


def test_addresses_are_read_from_containers_and_virtual_machines() -> None:
    assert static_addresses(
        {
            "net0": "name=eth0,ip=192.0.2.5/24,ip6=FE80::1/64",
            "net1": "name=eth1,ip=dhcp,ip6=auto",
            "ipconfig0": "ip=192.0.2.6/24,gw=192.0.2.1",
            "description": "ip=192.0.2.7",
        }
    ) == {"192.0.2.5", "fe80::1", "192.0.2.6"}


PET_FAULTS: dict[str, tuple[PetCheck, NodeFacts, str, str]] = {
    "smaller": (
        replace(PET, volumes=(replace(PET.volumes[0], size_gb=4),)),
        around(),
        "volume",
        "set its size to 8 GB",
    ),
    "a root file system that is to grow under protection": (
        replace(PET, guest=replace(PET.guest, root_gb=4)),
        around(),
        "disk",
        "pct resize 999 rootfs 4G",
    ),
    "explicit volume on a pet that is to be made": (
        replace(PET, volumes=(replace(PET.volumes[0], volid=DISK),)),
        empty(),
        "volume",
        "cannot have a volume yet",
    ),
    "explicit volume that is gone": (
        replace(PET, volumes=(replace(PET.volumes[0], volid="local-lvm:vm-999-disk-7"),)),
        around(),
        "volume",
        "does not exist",
    ),
    "a declared volume that is to be deleted": (
        replace(PET, deletions=(RemovalSpec(999, DISK),)),
        around(),
        "deletion",
        "take out the volume hermes, or its deletion",
    ),
    "one that is declared by what an earlier run has recorded": (
        replace(
            PET,
            volumes=(replace(PET.volumes[0], path="/volumes/new", recorded=DISK),),
            deletions=(RemovalSpec(999, DISK),),
        ),
        around(),
        "deletion",
        "a declared volume is not deleted",
    ),
    "a volume of another guest that is to be deleted": (
        replace(PET, deletions=(RemovalSpec(999, "local-lvm:vm-200-disk-0"),)),
        around(),
        "deletion",
        "does not belong to guest 999",
    ),
    "a volume that another guest has, and that is to be deleted": (
        replace(PET, volumes=(), deletions=(RemovalSpec(999, DISK),)),
        around(
            Model({999: ours(pet_with(f"{DISK},mp=/v")), 105: cattle_with(f"{DISK},mp=/home/hermes")}, {DISK: EIGHT})
        ),
        "deletion",
        "cannot be deleted",
    ),
    "no room for root file system and volumes together": (
        PET,
        empty(storages=(replace(THIN, kind="lvm", available=9 * GIB),)),
        "storage and volume",
        "10G are asked for",
    ),
    "volumes on a storage that is not there": (
        replace(PET, volumes=(replace(PET.volumes[0], storage="fast"),)),
        empty(),
        "volume",
        "must exist on node pve",
    ),
}


def test_a_volume_that_left_the_settings_may_be_deleted() -> None:
    check = replace(PET, volumes=(), deletions=(RemovalSpec(999, DISK),))
    assert not [fault for fault in pet_faults(check, around()) if fault.key == "deletion"]


def test_another_path_of_a_recorded_volume_asks_for_no_room() -> None:
    full = (replace(THIN, kind="lvm", available=0),)
    moved = replace(PET, volumes=(replace(PET.volumes[0], path="/volumes/new", recorded=DISK),))
    assert pet_faults(moved, around(storages=full)) == []
    [fault] = pet_faults(replace(PET, volumes=(replace(PET.volumes[0], path="/volumes/new"),)), around(storages=full))
    assert "8G are asked for" in fault.rule


@pytest.mark.parametrize(("recorded", "refused"), [(None, True), ("local-lvm:vm-999-disk-7", False)])
def test_what_an_earlier_run_has_mounted_may_be_replaced_by_another_volume(recorded: str | None, refused: bool) -> None:
    state = with_cattle(ours(cattle_with("local-lvm:vm-999-disk-7,mp=/home/hermes", running=True)))
    assert CATTLE.attach is not None
    faults = cattle_faults(replace(CATTLE, attach=replace(CATTLE.attach, recorded=recorded)), around(state))
    assert [fault.key for fault in faults] == ["volume"] * refused


def test_a_cattles_root_file_system_may_grow() -> None:
    check = replace(CATTLE, guest=replace(CATTLE.guest, root_gb=40))
    assert not [
        fault for fault in cattle_faults(check, around(with_cattle(ours(cattle_with())))) if fault.key == "disk"
    ]


@pytest.mark.parametrize("case", PET_FAULTS)
def test_each_fault_of_a_pet_is_told(case: str) -> None:
    check, seen, key, text = PET_FAULTS[case]
    told = [fault for fault in pet_faults(check, seen) if fault.key == key]
    assert any(text in str(fault) for fault in told), pet_faults(check, seen)


def test_a_strangers_number_is_one_fault_and_its_volumes_are_not_judged() -> None:
    stranger = Model({999: pet_with()}, {})
    check = replace(PET, volumes=(replace(PET.volumes[0], volid=DISK),))
    assert {fault.key for fault in pet_faults(check, around(stranger, taken=True))} == {"vmid"}
    assert {fault.key for fault in pet_faults(check, empty(taken=True))} == {"vmid"}


# Who has the address, and the card.

WANTED = "192.0.2.5"
MAC = "BC:24:11:3A:5F:01"
ALICE = {"hostname": "alice", "net0": "name=eth0,hwaddr=BC:24:11:00:00:06"}
NEIGHBOUR = GuestFacts(106, "pve", running=None, config=ALICE)


def addressed(occupants: Occupants, *others: GuestFacts, address: str | None = f"{WANTED}/24") -> list[str]:
    """The faults of the address, each in one text."""
    seen = around()
    guests = (*seen.cluster.guests, *others)
    seen = replace(seen, cluster=replace(seen.cluster, guests=guests), occupants=occupants)
    check = replace(CATTLE, guest=replace(CATTLE.guest, address=address))
    return [str(fault) for fault in cattle_faults(check, seen) if fault.key == "address"]


def test_the_address_of_proxmox_itself_is_refused() -> None:
    [told] = addressed(Occupants(endpoint=frozenset({"192.0.2.1", WANTED}), answer="answers on port 8006"))
    assert "the address at which Proxmox itself is asked" in told
    assert "choose another" in told


def test_an_address_that_a_running_container_has_by_dhcp_is_refused() -> None:
    """The trespass: alice would have been provisioned in the place of the new container."""
    leases = {106: frozenset({WANTED}), 105: frozenset[str]()}
    [told] = addressed(Occupants(leases=leases, answer="answers on port 22"), NEIGHBOUR)
    assert "CT 106 'alice'" in told


def test_an_ipv6_address_of_another_guest_is_refused_however_it_is_written() -> None:
    other = replace(NEIGHBOUR, config={**ALICE, "net0": "name=eth0,ip6=2001:DB8:0:0::5/64"})
    seen = around()
    seen = replace(seen, cluster=replace(seen.cluster, guests=(*seen.cluster.guests, other)))
    for address6, told in (("2001:db8::5/64", [Subject.ADDRESS6]), ("2001:db8::6/64", []), ("auto", [])):
        check = replace(CATTLE, guest=replace(CATTLE.guest, address=None, address6=address6))
        assert [fault.key for fault in cattle_faults(check, seen)] == told


def test_an_address_that_a_machine_outside_of_proxmox_has_is_refused() -> None:
    [told] = addressed(Occupants(answer="answers on port 22"))
    assert "the machine that has it answers on port 22" in told


@pytest.mark.parametrize("address", [None, "dhcp", "192.0.2.55/24"])
def test_another_address_is_none_of_theirs(address: str | None) -> None:
    occupants = Occupants(frozenset({WANTED}), {106: frozenset({WANTED})})
    assert addressed(occupants, NEIGHBOUR, address=address) == []


def test_a_declared_address_is_told_once_where_it_is_on_the_card_too() -> None:
    fixed = replace(NEIGHBOUR, config={"hostname": "alice", "net0": f"name=eth0,ip={WANTED}/24"})
    assert len(addressed(Occupants(leases={106: frozenset({WANTED})}, answer="answers on port 22"), fixed)) == 1


def test_a_copy_of_the_cattle_that_runs_is_refused() -> None:
    twin = GuestFacts(205, "pve2", "qemu", None, {"name": "copy", "net0": f"virtio={MAC},bridge=vmbr0"})
    state = with_cattle(ours(cattle_with(f"{DISK},mp=/home/hermes", running=True, net0=f"name=eth0,hwaddr={MAC}")))
    seen = around(state, taken=True, occupants=Occupants(twins=(twin,)))
    [told] = [str(fault) for fault in cattle_faults(CATTLE, seen)]
    for part in ("vmid = 105", "VM 205 'copy'", "same hardware address", "qm set 205"):
        assert part in told


def test_hardware_addresses_are_read_from_containers_and_virtual_machines() -> None:
    assert cards_of(
        {
            "net0": "name=eth0,bridge=vmbr0,hwaddr=BC:24:11:3A:5F:01,ip=dhcp,type=veth",
            "net1": "virtio=bc:24:11:00:00:02,bridge=vmbr0",
            "netplan": "BC:24:11:00:00:03",
            "description": "net0 BC:24:11:00:00:04",
        }
    ) == {"bc:24:11:3a:5f:01", "bc:24:11:00:00:02"}


# Reading for it.

ROUTES: dict[str, Answer] = {
    "GET /version": data({"version": "9.2.11", "release": "9.2"}),
    "GET /nodes": data([{"node": "pve", "status": "online"}]),
    "GET /access/permissions": data({path: dict.fromkeys(names, 1) for path, names in RIGHTS.items()}),
    "GET /cluster/nextid": data("105"),
    "GET /cluster/resources": data([{"vmid": 999, "type": "lxc", "node": "pve"}]),
    "GET /nodes/pve/storage": data(
        [
            {"storage": "local", "type": "dir", "content": "vztmpl", "total": 9, "avail": 9},
            {"storage": "local-lvm", "type": "lvmthin", "content": "rootdir", "total": 500 * GIB, "avail": 400 * GIB},
        ]
    ),
    "GET /nodes/pve/storage/local-lvm/content": data([{"volid": DISK, "size": EIGHT, "vmid": 999}]),
    "GET /nodes/pve/storage/local/content": data([{"volid": TEMPLATE, "size": 1}]),
    "GET /nodes/pve/network": data([{"iface": "vmbr0"}]),
    "GET /nodes/pve/lxc/999/pending": data(
        [{"key": "mp0", "value": f"{DISK},mp=/volumes/hermes"}, {"key": "description", "value": OWN["description"]}]
    ),
    "GET /nodes/pve/lxc/999/snapshot": data([]),
    "GET /nodes/pve/lxc/999/status/current": data({"status": "stopped"}),
}


def told_by(changes: dict[str, Answer], ask: Callable[[Server], list[Fault]]) -> tuple[list[Fault], Server]:
    server = Server({**ROUTES, **changes})
    faults = ask(server)
    assert {asked.method for asked in server.asked} == {"GET"}
    return faults, server


def ask_pet(server: Server) -> list[Fault]:
    return preflight_pet(server.client(), PET)


def ask_cattle(server: Server) -> list[Fault]:
    return preflight_cattle(server.client(), CATTLE, answer=nobody)


def nobody(_address: str) -> str | None:
    return None


def test_preflight_reads_all_that_it_judges_and_writes_nothing() -> None:
    assert told_by({}, ask_pet)[0] == []
    assert told_by({}, ask_cattle)[0] == []


def test_a_cattle_without_a_volume_is_judged_without_one() -> None:
    server = Server(ROUTES)
    check = CattleCheck(replace(CATTLE.guest, template=None, bridge=None))
    assert preflight_cattle(server.client(), check, answer=nobody) == []
    assert not any("content" in asked.path or "network" in asked.path for asked in server.asked)


CARD = [{"name": "eth0", "hwaddr": MAC.lower(), "inet": "192.0.2.5/24"}]


def cluster_of(*guests: tuple[int, str, str], **more: Answer) -> dict[str, Answer]:
    """Routes of containers: number, net0, and whether they run."""
    vmids = (999, *(vmid for vmid, _, _ in guests))
    routes: dict[str, Answer] = {
        "GET /cluster/resources": data([{"vmid": vmid, "type": "lxc", "node": "pve"} for vmid in vmids])
    }
    for vmid, net, power in guests:
        rows = [{"key": "net0", "value": net}, {"key": "description", "value": OWN["description"]}]
        routes |= {
            f"GET /nodes/pve/lxc/{vmid}/pending": data(rows),
            f"GET /nodes/pve/lxc/{vmid}/snapshot": data([]),
            f"GET /nodes/pve/lxc/{vmid}/status/current": data({"status": power}),
            f"GET /nodes/pve/lxc/{vmid}/interfaces": data(CARD if power == "running" else None),
        }
    return routes | more


STATIC_NET = f"name=eth0,hwaddr={MAC},ip=192.0.2.5/24"
DHCP_NET = f"name=eth0,hwaddr={MAC},ip=dhcp"
OTHER_NET = "name=eth0,hwaddr=BC:24:11:00:00:06,ip=dhcp"


def asked_for(*guests: tuple[int, str, str]) -> tuple[list[str], list[str], Server]:
    """The rules of the faults about address and number, the addresses that were knocked at, and the server."""
    knocked: list[str] = []

    def answer(address: str) -> str | None:
        knocked.append(address)
        return "answers on port 22"

    taken = die("Parameter verification failed.", 400, {"vmid": "VM 105 already exists"})
    own = {"GET /cluster/nextid": taken} if any(guest[0] == 105 for guest in guests) else {}
    server = Server({**ROUTES, **cluster_of(*guests), **own})
    faults = preflight_cattle(server.client(), CATTLE, answer=answer)
    return [fault.rule for fault in faults if fault.key in ("address", "vmid")], knocked, server


def test_before_a_container_is_made_its_address_is_looked_for() -> None:
    rules, knocked, _ = asked_for()
    assert knocked == ["192.0.2.5"]
    assert rules == ["must be free, and the machine that has it answers on port 22"]


def test_before_a_container_is_made_the_leases_of_those_that_run_are_read() -> None:
    rules, _, _ = asked_for((106, OTHER_NET, "running"), (107, OTHER_NET, "stopped"))
    assert [rule for rule in rules if "CT 106" in rule] == rules


@pytest.mark.parametrize("net", [STATIC_NET, DHCP_NET], ids=["declared", "by a lease"])
def test_a_container_that_runs_with_its_address_is_not_asked_about(net: str) -> None:
    rules, knocked, server = asked_for((105, net, "running"), (106, OTHER_NET, "running"))
    assert (rules, knocked) == ([], [])
    assert not any(asked.path.endswith("/106/interfaces") for asked in server.asked)


@pytest.mark.parametrize(
    ("net", "power"), [(STATIC_NET, "stopped"), (STATIC_NET.replace("2.5/", "2.77/").replace(MAC, "x"), "running")]
)
def test_a_container_that_is_off_or_elsewhere_is_as_a_new_one(net: str, power: str) -> None:
    taken = [{"name": "eth0", "hwaddr": MAC.lower(), "inet": "192.0.2.77/24"}]
    server = Server({**ROUTES, **cluster_of((105, net, power)), "GET /nodes/pve/lxc/105/interfaces": data(taken)})
    faults = preflight_cattle(server.client(), CATTLE, answer=lambda _: "answers on port 22")
    assert [fault.rule for fault in faults if fault.key == "address"] == [
        "must be free, and the machine that has it answers on port 22"
    ]


@pytest.mark.parametrize(("power", "count"), [("running", 1), ("stopped", 0)])
def test_a_copy_is_asked_whether_it_runs(power: str, count: int) -> None:
    rules, _, _ = asked_for((105, STATIC_NET, "running"), (205, DHCP_NET, power))
    assert len([rule for rule in rules if "CT 205" in rule and "same hardware address" in rule]) == count == len(rules)


def test_a_neighbour_that_does_not_tell_its_addresses_is_no_fault() -> None:
    routes = cluster_of((106, OTHER_NET, "running")) | {"GET /nodes/pve/lxc/106/interfaces": die("no", 403)}
    assert told_by(routes, ask_cattle)[0] == []


def test_a_bad_token_is_one_fault() -> None:
    faults, server = told_by({"GET /version": Answer(401, "Authentication failed!", "")}, ask_cattle)
    assert [(fault.key, fault.value) for fault in faults] == [("apiToken", TOKEN)]
    assert "pveum user token list" in faults[0].remedy
    assert len(server.asked) == 1


def test_who_else_has_to_be_let_in_is_asked_once_the_api_answers() -> None:
    plugin = Fault("SSL_CERT_FILE", "", "the plugin must trust the server", "export SSL_CERT_FILE=...")
    server = Server({**ROUTES, "GET /version": Answer(401, "Authentication failed!", "")})
    assert [fault.key for fault in preflight_pet(server.client(), PET, lambda: [plugin])] == ["apiToken"]
    assert preflight_pet(Server(ROUTES).client(), PET, lambda: [plugin]) == [plugin]


def test_what_cannot_be_read_is_a_fault_beside_the_others() -> None:
    denied = die("Permission check failed", 403)
    taken = die("Parameter verification failed.", 400)
    changes = {"GET /cluster/resources": denied, "GET /nodes/pve/network": denied, "GET /cluster/nextid": taken}
    faults, _ = told_by(changes, ask_cattle)
    assert "guests" in {fault.key for fault in faults}
    assert "bridge" not in {fault.key for fault in faults}


def test_on_a_node_that_is_not_there_nothing_is_read() -> None:
    faults, server = told_by({"GET /nodes": data([{"node": "pve3", "status": "online"}])}, ask_cattle)
    assert [fault.key for fault in faults] == ["node"]
    assert not any("content" in asked.path for asked in server.asked)


def test_all_that_has_to_be_granted_at_one_place_is_one_fault_with_one_line_to_paste() -> None:
    told = [fault for fault in cattle_faults(CATTLE, around(permissions=Permissions({}))) if "lacks" in fault.value]
    assert [fault.key for fault in told] == list(RIGHTS_BY_PLACE)
    assert told[0].remedy == (
        f'on a node: pveum role add {ROLE}; pveum role modify {ROLE} --append 1 --privs "{" ".join(MANAGE)}"; '
        f"pveum acl modify /vms --roles {ROLE} --users pulumi@pve --tokens '{TOKEN}'"
    )


RIGHTS_BY_PLACE = ("/vms", "/storage/local", "/sdn/zones/localnetwork/vmbr0", "/storage/local-lvm")
