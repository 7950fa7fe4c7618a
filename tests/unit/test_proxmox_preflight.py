"""Preflight: every fault that can be known before the first change; most of them in tests/cases/preflight.yaml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from proxmox.client import Node, Permissions, Storage, Version
from proxmox.errors import Fault
from proxmox.facts import ClusterFacts, GuestFacts
from proxmox.host_mounts import HostMount, HostMountSpec
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
    node_warnings,
    pet_faults,
    preflight_cattle,
    preflight_pet,
    quorum_warnings,
    static_addresses,
)
from proxmox.rights import MANAGE, ROLE, grant_commands
from tests.tables import cases
from tests.unit.proxmox_http import Answer, Server, containers, data, die
from tests.unit.proxmox_model import EIGHT, Model, guest_of, model_of

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
NOTES = f"ours\n\nclaim: {CLAIM}\n"
MAC = "BC:24:11:3A:5F:01"


def around(state: Model | None = None, **changes: Any) -> NodeFacts:
    """A cluster where everything is as it should be, but for `changes`; without a state, with a pet and its volume."""
    pet = {"mp0": f"{DISK},mp=/volumes/hermes,backup=1", "description": NOTES}
    found = model_of({999: pet}, {DISK: EIGHT}) if state is None else state
    seen = NodeFacts(
        Version("9.2.11", "9.2", 9),
        (Node("pve", "online"), Node("pve2", "offline")),
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


def seen_of(case: dict[str, Any]) -> NodeFacts:
    """What a case says of the cluster and the node, in the words of the cases."""
    given = dict(case.get("seen", {}))
    if "storage" in given:
        changes: dict[str, Any] = {**given.pop("storage")}
        changes |= {key: int(changes[key] * GIB) for key in ("total", "available") if key in changes}
        changes["content"] = frozenset(changes.get("content", THIN.content))
        given["storages"] = (replace(THIN, **changes),)
    if "more_storages" in given:
        more = tuple(
            replace(THIN, **{**storage, "content": frozenset(storage.get("content", THIN.content))})
            for storage in given.pop("more_storages")
        )
        given["storages"] = (*given.get("storages", (THIN,)), *more)
    if "version" in given:
        given["version"] = Version(given["version"], given["version"], int(given["version"].partition(".")[0]))
    if "permissions" in given:
        given["permissions"] = Permissions(given["permissions"])
    if given.get("nodes"):
        given["nodes"] = tuple(Node(name, status) for name, status in given["nodes"].items())
    if given.get("templates") is not None:
        given["templates"] = frozenset(given["templates"])
    state = model_of(case["guests"], case.get("volumes", {DISK: EIGHT}))
    state.shared_storages = frozenset(case.get("shared", ()))
    who: dict[str, Any] = case.get("occupants", {})
    twins = {vmid: guest_of(vmid, twin) for vmid, twin in who.get("twins", {}).items()}
    leases: dict[int, list[str]] = who.get("leases", {})
    occupants = Occupants(
        frozenset(who.get("endpoint", ())),
        {vmid: frozenset(addresses) for vmid, addresses in leases.items()},
        who.get("answer"),
        Model(twins).cluster().guests,
    )
    return around(state, **given, occupants=occupants)


def faults_of(table: str, case: dict[str, Any]) -> list[Fault]:
    guest = case.get("check", {})
    if table == "cattle":
        assert CATTLE.attach is not None
        attach = replace(CATTLE.attach, **case.get("attach", {}))
        mounts = tuple(HostMount(**mount) for mount in case.get("host", ()))
        keyctl = case.get("keyctl", False)
        host = HostMountSpec(105, "pve", mounts, keyctl=keyctl) if mounts or keyctl else None
        check = CattleCheck(replace(CATTLE.guest, **guest), attach, host, root_access=case.get("root_access", False))
        return cattle_faults(check, seen_of(case))
    volume = case.get("volume", {})
    declared = () if volume is None else (replace(PET.volumes[0], **volume),)
    deletions = tuple(RemovalSpec(999, volid) for volid in case.get("deletions", ()))
    made = case.get("made", False)
    return pet_faults(PetCheck(replace(PET.guest, **guest), declared, deletions, made), seen_of(case))


KEYS = "guests shared volumes check attach host keyctl root_access volume deletions made seen occupants faults"


@pytest.mark.parametrize(("table", "case"), cases("preflight.yaml", "cattle", "pet", keys=KEYS))
def test_all_that_stands_in_the_way_is_told_and_nothing_else(table: str, case: dict[str, Any]) -> None:
    found = faults_of(table, case)
    expected = case.get("faults", {})
    assert sorted(fault.key for fault in found) == sorted(expected), found
    for key, parts in expected.items():
        told = "\n".join(str(fault) for fault in found if fault.key == key)
        for part in parts if isinstance(parts, list) else [parts]:
            assert part in told
    assert all(fault.rule and fault.remedy for fault in found)


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
    told = pet_faults(PET, around(Model(), permissions=permissions)) + cattle_faults(
        CATTLE, around(permissions=permissions)
    )
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


def test_addresses_are_read_from_containers_and_virtual_machines() -> None:
    assert static_addresses(
        {
            "net0": "name=eth0,ip=192.0.2.5/24,ip6=FE80::1/64",
            "net1": "name=eth1,ip=dhcp,ip6=auto",
            "ipconfig0": "ip=192.0.2.6/24,gw=192.0.2.1",
            "description": "ip=192.0.2.7",
        }
    ) == {"192.0.2.5", "fe80::1", "192.0.2.6"}


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

OWN_PET = {"mp0": f"{DISK},mp=/volumes/hermes", "description": NOTES}
ROUTES: dict[str, Answer] = {
    "GET /version": data({"version": "9.2.11", "release": "9.2"}),
    "GET /nodes": data([{"node": "pve", "status": "online"}]),
    "GET /access/permissions": data({path: dict.fromkeys(names, 1) for path, names in RIGHTS.items()}),
    "GET /cluster/nextid": data("105"),
    "GET /nodes/pve/storage": data(
        [
            {"storage": "local", "type": "dir", "content": "vztmpl", "total": 9, "avail": 9},
            {"storage": "local-lvm", "type": "lvmthin", "content": "rootdir", "total": 500 * GIB, "avail": 400 * GIB},
        ]
    ),
    "GET /nodes/pve/storage/local-lvm/content": data([{"volid": DISK, "size": EIGHT, "vmid": 999}]),
    "GET /nodes/pve/storage/local/content": data([{"volid": TEMPLATE, "size": 1}]),
    "GET /nodes/pve/network": data([{"iface": "vmbr0"}]),
    **containers({999: OWN_PET}),
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


@pytest.mark.parametrize("ask", [ask_pet, ask_cattle])
def test_a_node_without_statistics_is_read_as_any_other(ask: Callable[[Server], list[Fault]]) -> None:
    """Facts proxmox-9.2: its API does all else. Only what is offline can't be read."""
    faults, server = told_by({"GET /nodes": data([{"node": "pve", "status": "unknown"}])}, ask)
    assert faults == []
    assert [asked.path for asked in server.asked].count("/nodes") == 1
    assert "/nodes/pve/storage/local-lvm/content" in {asked.path for asked in server.asked}


@pytest.mark.parametrize("ask", [ask_pet, ask_cattle])
def test_an_offline_node_is_one_fault(ask: Callable[[Server], list[Fault]]) -> None:
    faults, server = told_by({"GET /nodes": data([{"node": "pve", "status": "offline"}])}, ask)
    assert [(fault.key, fault.rule) for fault in faults] == [("node", "must be online")]
    # Another node would answer 595 for it, and the client ask again for half a minute.
    assert not [asked.path for asked in server.asked if asked.path.startswith("/nodes/pve/")]


@pytest.mark.parametrize(
    "preflight", [partial(preflight_pet, check=PET), partial(preflight_cattle, check=CATTLE, answer=nobody)]
)
@pytest.mark.parametrize(
    ("changes", "reached"),
    [
        ({}, True),
        # What else is wrong does not keep a node from answering.
        ({"GET /nodes/pve/network": data([])}, True),
        ({"GET /nodes": data([{"node": "pve", "status": "offline"}])}, False),
        ({"GET /nodes": data([{"node": "pve2", "status": "online"}])}, False),
        ({"GET /version": die("authentication failure", 401)}, False),
    ],
)
def test_a_node_is_reached_before_it_is_asked_or_not_at_all(
    preflight: Callable[..., list[Fault]], changes: dict[str, Answer], reached: bool
) -> None:
    """Who is told so talks with the node, too: what is wrong with it is told once."""
    server = Server({**ROUTES, **changes})
    before: list[int] = []
    preflight(
        server.client(),
        reached=lambda: before.append(len([one for one in server.asked if one.path.startswith("/nodes/pve/")])),
    )
    assert before == ([0] if reached else [])


TWO_NODES = data([{"node": "pve", "status": "online"}, {"node": "pve2", "status": "offline"}])
AUDITOR = data({**{path: dict.fromkeys(names, 1) for path, names in RIGHTS.items()}, "/": {"Sys.Audit": 0}})


@pytest.mark.parametrize("ask", [ask_pet, ask_cattle])
@pytest.mark.parametrize("quorate", [0, 1])
def test_a_lost_quorum_is_told_where_the_token_may_know_it(ask: Callable[[Server], list[Fault]], quorate: int) -> None:
    rows = data([{"type": "cluster", "quorate": quorate}, {"type": "node", "name": "pve", "online": 1}])
    more = {"GET /nodes": TWO_NODES, "GET /access/permissions": AUDITOR, "GET /cluster/status": rows}
    faults, _ = told_by(more, ask)
    assert [fault.key for fault in faults] == ([] if quorate else ["the cluster"])


def test_half_of_the_nodes_away_is_warned_of_where_the_token_may_not_know_the_quorum() -> None:
    """Asked without the right (PVE::API2::Cluster, get_status: Sys.Audit on /), Proxmox would answer 403."""
    server = Server({**ROUTES, "GET /nodes": TWO_NODES})
    told: list[str] = []
    assert preflight_pet(server.client(), PET, warn=told.extend) == []
    assert "/cluster/status" not in {asked.path for asked in server.asked}
    [warning] = told
    assert "1 of 2 nodes are offline (pve2)" in warning
    up, away = Node("a", "online"), Node("b", "offline")
    assert quorum_warnings((up, replace(up, name="c"), away), None) == []
    assert quorum_warnings((up, away), True) == quorum_warnings((up, away), False) == []
    assert quorum_warnings((up,), None) == []


def test_an_unknown_node_is_warned_of_once_and_no_other() -> None:
    server = Server({**ROUTES, "GET /nodes": data([{"node": "pve", "status": "unknown"}])})
    told: list[str] = []
    assert preflight_pet(server.client(), PET, warn=told.extend) == []
    assert len(told) == 1
    nodes = (Node("pve", "online"), Node("pve2", "unknown"), Node("pve3", "offline"))
    [warning] = node_warnings(nodes, "pve2")
    assert "no statistics of node pve2" in warning
    assert "systemctl restart pvestatd" in warning
    assert node_warnings(nodes, "pve") == node_warnings(nodes, "pve3") == []


def test_a_cattle_without_a_volume_is_judged_without_one() -> None:
    server = Server(ROUTES)
    check = CattleCheck(replace(CATTLE.guest, template=None, bridge=None))
    assert preflight_cattle(server.client(), check, answer=nobody) == []
    assert not any("content" in asked.path or "network" in asked.path for asked in server.asked)


CARD = [{"name": "eth0", "hwaddr": MAC.lower(), "inet": "192.0.2.5/24"}]


def cluster_of(*guests: tuple[int, str, str]) -> dict[str, Answer]:
    """Routes of the pet and of containers: number, net0, and whether they run."""
    running = [vmid for vmid, _, power in guests if power == "running"]
    found = {vmid: {"net0": net, "description": NOTES} for vmid, net, _ in guests}
    cards = {f"GET /nodes/pve/lxc/{vmid}/interfaces": data(CARD if vmid in running else None) for vmid in found}
    return containers({999: OWN_PET, **found}, running) | cards


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
