"""Golden templates on a node's API: made, kept, followed by a newer one, used, and gone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lab.instance import ACCOUNT
from proxmox.client import Proxmox, Timings
from proxmox.connection import Connection
from proxmox.errors import PermissionDenied, Refusal, TemplateInUse, TemplateMissing
from proxmox.facts import read_cluster
from proxmox.golden import CloneSpec, Golden, ImageSpec, clone_golden, ensure_image, goldens, remove_images
from proxmox.network import NetworkSpec
from proxmox.ownership import render_notes
from proxmox.preflight import CattleCheck, GuestCheck, preflight_cattle
from pvelab.config import LabConfig, storages_for
from pvelab.server import LabServer
from pvelab.simulated import SimulatedRuntime

TEMPLATE = "local:vztmpl/debian-12.tar.zst"
QUICK = Timings(connect=5, read=20, retry=0.1, first_poll=0.01, poll=0.05, look=0.05)
CLAIM = "00000000-0000-4000-8000-000000000001"
OTHER = "00000000-0000-4000-8000-000000000002"
A, B, C = ("a" * 64, "b" * 64, "c" * 64)
CARD = NetworkSpec(bridge="vmbr0", ip="10.0.0.5/24", gateway="10.0.0.1", nameservers=("10.0.0.1",))
OPTIONS = {
    "hostname": "hermes",
    "cores": "4",
    "memory": "2048",
    "swap": "512",
    "tags": "agent;pulumi",
    "onboot": "1",
    "protection": "0",
    "features": "nesting=1",
    "nameserver": "10.0.0.1",
}
CLONE = CloneSpec(9000, 105, "pve", "local-lvm", 3, OPTIONS, CARD)


@dataclasses.dataclass
class Node:
    """A node, and a client of the stacks' token, with the twelfth privilege."""

    server: LabServer
    client: Proxmox
    baked: list[int] = dataclasses.field(default_factory=list)

    def bake(self, storage: str = "local-lvm") -> Callable[[int, Callable[[str], str]], str]:
        def made(vmid: int, notes: Callable[[str], str]) -> str:
            values = {"ostemplate": TEMPLATE, "rootfs": f"{storage}:2", "unprivileged": "1", "features": "nesting=1"}
            values |= {"net0": "name=eth0,bridge=vmbr0,ip=dhcp,tag=7", "description": notes("For tests.")}
            self.client.create("pve", vmid, values)
            self.baked.append(vmid)
            return f"baked {vmid}"

        return made

    def ensure(self, digest: str, kept: int = 1, storage: str = "local-lvm") -> Golden:
        spec = ImageSpec("pve", digest, 9000, kept)
        return ensure_image(self.client, spec, CLAIM, self.bake(storage))[0]

    @property
    def vmids(self) -> list[int]:
        return [guest.vmid for guest in self.client.guests()]


def connection(server: LabServer, token: str) -> Connection:
    env = {"PROXMOX_VE_ENDPOINT": server.endpoint, "PROXMOX_VE_API_TOKEN": token}
    return Connection.from_sources({**env, "PROXMOX_VE_CA_FILE": str(server.ca_file), "PROXMOX_VE_NODE": "pve"}, {})


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    more = {"tank": "zfspool", "folder": "dir"}
    account = ACCOUNT.on_storages(more)
    with_clone = {**account.roles, "LabGuests": (*account.roles["LabGuests"], "VM.Clone")}
    config = LabConfig(
        state_dir=tmp_path_factory.mktemp("lab"),
        runtime=SimulatedRuntime(),
        storages=storages_for(("pve",), more),
        auth_delay=0,
        broadcast_interval=0,
        account=dataclasses.replace(account, roles=with_clone),
    )
    config.template_dir("pve").mkdir(parents=True, exist_ok=True)
    (config.template_dir("pve") / "debian-12.tar.zst").write_bytes(b"template")
    with LabServer(config) as server, Proxmox(connection(server, server.seed_access().api_token), QUICK) as client:
        yield Node(server, client)


def test_a_template_is_made_once(node: Node) -> None:
    spec = ImageSpec("pve", A, 9000, 1)
    assert ensure_image(node.client, spec, CLAIM, node.bake()) == (
        Golden(9000, "pve", 1, A, finished=True),
        "baked 9000",
    )
    config = node.client.guest_config("pve", 9000)
    assert (config["template"], config["rootfs"]) == ("1", "local-lvm:base-9000-disk-0,size=2G")
    # Again, and from another number on: it is there already.
    for same in (spec, dataclasses.replace(spec, first=9100)):
        assert ensure_image(node.client, same, CLAIM, node.bake()) == (Golden(9000, "pve", 1, A, finished=True), None)
    assert node.baked == [9000]


def test_a_changed_digest_makes_another_and_the_oldest_goes(node: Node) -> None:
    assert node.ensure(A).vmid == 9000
    assert node.ensure(B) == Golden(9001, "pve", 2, B, finished=True)
    assert node.vmids == [9000, 9001]
    assert node.ensure(C) == Golden(9002, "pve", 3, C, finished=True)
    assert node.vmids == [9001, 9002]
    # Set back: what is still there is not made again. And one only is wanted.
    assert node.ensure(B) == Golden(9001, "pve", 2, B, finished=True)
    assert node.vmids == [9001, 9002]
    assert node.ensure(B, kept=0).vmid == 9001
    assert node.vmids == [9001]
    assert node.baked == [9000, 9001, 9002]


def test_numbers_of_others_are_left_alone(node: Node) -> None:
    stranger = {"ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "unprivileged": "1", "description": "somebody's"}
    node.client.create("pve", 9000, stranger)
    forged = {**stranger, "description": render_notes(f"golden template 9: {B}", OTHER)}
    node.client.create("pve", 9001, forged)
    assert node.ensure(A).vmid == 9002
    assert node.ensure(B, kept=0).vmid == 9003
    remove_images(node.client, CLAIM)
    assert node.vmids == [9000, 9001]


@pytest.mark.parametrize("running", [False, True])
def test_what_a_cut_off_run_has_begun_is_made_from_nothing(node: Node, *, running: bool) -> None:
    def cut_off(vmid: int, notes: Callable[[str], str]) -> str:
        node.bake()(vmid, notes)
        if running:
            node.client.start("pve", vmid)
        raise KeyboardInterrupt

    node.ensure(A)
    with pytest.raises(KeyboardInterrupt):
        ensure_image(node.client, ImageSpec("pve", B, 9000, 1), CLAIM, cut_off)
    assert [one.finished for one in goldens(read_cluster(node.client), CLAIM)] == [False, True]
    assert node.ensure(B) == Golden(9001, "pve", 3, B, finished=True)
    assert node.baked == [9000, 9001, 9001]


def test_a_failure_costs_no_template(node: Node) -> None:
    def fails(_vmid: int, _notes: Callable[[str], str]) -> str:
        raise Refusal("no")

    node.ensure(A)
    with pytest.raises(Refusal):
        ensure_image(node.client, ImageSpec("pve", B, 9000, 0), CLAIM, fails)
    assert node.vmids == [9000]


def test_a_clone_is_as_declared_and_made_once(node: Node) -> None:
    node.ensure(A)
    notes = render_notes("Runs it.", OTHER)
    told: list[str] = []
    for _ in range(2):
        clone_golden(node.client, CLONE, notes, told.append)
    assert told == ["CT 105: linked clone of CT 9000", "CT 105: root file system from 2G to 3G"]
    config = node.client.guest_config("pve", 105)
    assert {key: config[key] for key in OPTIONS} == OPTIONS
    assert config["description"] == notes
    assert config["rootfs"] == "local-lvm:vm-105-disk-0,size=3G"
    # Nothing of the template's card is left, and it has a hardware address of its own.
    own = config["net0"].partition("hwaddr=")[2].partition(",")[0]
    assert own not in node.client.guest_config("pve", 9000)["net0"]
    assert config["net0"] == f"name=eth0,bridge=vmbr0,gw=10.0.0.1,hwaddr={own},ip=10.0.0.5/24,type=veth"


@pytest.mark.parametrize("cut", ["clone", "config", "resize"])
def test_a_cut_off_clone_is_gone_on_with(node: Node, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    node.ensure(A)
    notes = render_notes("Runs it.", OTHER)
    name = {"clone": "clone", "config": "set_config", "resize": "resize"}[cut]
    real = getattr(Proxmox, name)

    def and_cut(*given: Any, **more: Any) -> None:
        real(*given, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Proxmox, name, and_cut)
        with pytest.raises(KeyboardInterrupt):
            clone_golden(node.client, CLONE, notes)
    clone_golden(node.client, CLONE, notes)
    config = node.client.guest_config("pve", 105)
    assert (config["cores"], config["rootfs"]) == ("4", "local-lvm:vm-105-disk-0,size=3G")


@pytest.mark.parametrize(
    ("of", "to", "kind"), [("folder", "folder", "full"), ("local-lvm", "folder", "full"), ("tank", "tank", "linked")]
)
def test_it_is_linked_where_the_storage_can(node: Node, of: str, to: str, kind: str) -> None:
    node.ensure(A, storage=of)
    told: list[str] = []
    clone_golden(node.client, dataclasses.replace(CLONE, storage=to), render_notes("", OTHER), told.append)
    assert told[0] == f"CT 105: {kind} clone of CT 9000"
    assert node.client.guest_config("pve", 105)["rootfs"].startswith(f"{to}:")


def test_several_at_once_wait_for_each_other(node: Node) -> None:
    """Proxmox locks the template while it is cloned, and refuses a second clone (API2/LXC.pm, clone_vm)."""
    node.ensure(A)
    conn = node.client.connection

    def one(vmid: int) -> None:
        with Proxmox(conn, QUICK) as client:
            clone_golden(client, dataclasses.replace(CLONE, vmid=vmid, card=None), render_notes("", OTHER))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(110, 118)))
    assert node.vmids == [*range(110, 118), 9000]


def test_a_base_with_linked_clones_stays(node: Node) -> None:
    """On ZFS the clone's volume depends on its template's, and Proxmox refuses to free that one."""
    node.ensure(A, storage="tank")
    clone_golden(node.client, dataclasses.replace(CLONE, storage="tank"), render_notes("", OTHER))
    assert node.ensure(B, kept=0, storage="tank").vmid == 9001
    assert node.vmids == [105, 9000, 9001]
    with pytest.raises(TemplateInUse, match="The golden templates are not destroyed") as refused:
        remove_images(node.client, CLAIM)
    assert refused.value.why == "disks of other guests are linked clones, which depend on CT 9000: guest 105"
    assert node.vmids == [105, 9000, 9001]
    node.client.destroy("pve", 105)
    assert node.ensure(B, kept=0, storage="tank").vmid == 9001
    assert node.vmids == [9001]
    remove_images(node.client, CLAIM)
    assert node.vmids == []


def test_on_lvm_thin_a_clone_needs_its_base_no_more(node: Node) -> None:
    node.ensure(A)
    clone_golden(node.client, CLONE, render_notes("", OTHER))
    remove_images(node.client, CLAIM)
    node.client.start("pve", 105)
    assert node.vmids == [105]


def test_a_template_that_is_gone_is_told(node: Node) -> None:
    with pytest.raises(TemplateMissing, match="CT 9000 on node pve is no template"):
        clone_golden(node.client, CLONE, render_notes("", OTHER))
    values = {"ostemplate": TEMPLATE, "rootfs": "local-lvm:1", "unprivileged": "1", "description": "no template"}
    node.client.create("pve", 9000, values)
    with pytest.raises(TemplateMissing, match="CT 9000 on node pve is no template"):
        clone_golden(node.client, CLONE, render_notes("", OTHER))
    assert node.vmids == [9000]


def test_the_twelfth_privilege_is_asked_for_where_a_template_is_used(node: Node) -> None:
    """With the eleven a template is made, and not cloned; the preflight says so, with the command."""
    plain = GuestCheck(105, "pve", "local-lvm", 2, TEMPLATE, "vmbr0")
    cloned = dataclasses.replace(plain, golden=9000)
    assert preflight_cattle(node.client, CattleCheck(cloned)) == []
    roles = node.server.cluster.access.roles
    roles["LabGuests"] -= {"VM.Clone"}
    node.ensure(A)
    with pytest.raises(PermissionDenied, match=r"VM\.Clone"):
        clone_golden(node.client, CLONE, render_notes("", OTHER))
    assert preflight_cattle(node.client, CattleCheck(plain)) == []
    (fault,) = preflight_cattle(node.client, CattleCheck(cloned))
    assert (fault.key, fault.value) == ("/vms", "the token lacks VM.Clone")
    assert fault.rule == "needed to clone the golden template CT 9000"
    assert '--append 1 --privs "VM.Clone"' in fault.remedy
