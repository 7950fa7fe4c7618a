"""What stands in the way is said before anything happens: what, why, what to do, and no traceback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import Literal

import pytest

from lab.engine import Run
from lab.instance import CHECKOUT
from pvelab.faults import Rule
from tests.comments import as_comment, is_as_in
from tests.lifecycle.homesite import CATTLE, NODE, PET, STACK_USER, TEMPLATE, Site, assert_plain, good

VOLID = f"local-lvm:vm-{PET}-disk-1"


def refused(site: Site, stack: str, verb: str, *words: str) -> Run:
    """The run fails in a few lines that hold these words, and has written nothing."""
    run = site.pulumi(stack, verb, *(["--yes", "--skip-preview"] if verb == "up" else []))
    told = run.explain()
    assert not run.ok
    assert_plain(run)
    if "can't be brought up" in told:
        # The program has told all of it. Our server would tell some of it once more.
        assert not re.search(r"^ *why: ", told, re.MULTILINE), told
    for word in words:
        assert re.search(word, told), f"{word!r} is not in:\n{told}"
    assert site.writes == []
    return run


def test_a_cattle_needs_a_pet(site: Site) -> None:
    """Field reports E16."""
    refused(site, "cattle", "preview", "petStack = pet", "has no outputs", "pulumi up --stack pet")
    site.configure(petStack="no-such-pet")
    refused(site, "cattle", "preview", "petStack = no-such-pet", "there is no stack of that name")


def test_an_unknown_volume_lists_the_known_ones(with_pet: Site) -> None:
    with_pet.configure(cattleVolume="herrmes")
    refused(with_pet, "cattle", "preview", "cattleVolume = herrmes", "hermes", "petVolumes")


def test_another_passphrase_is_told_as_such(with_pet: Site) -> None:
    """Field reports E15."""
    with_pet.overrides |= {"PULUMI_CONFIG_PASSPHRASE_FILE": None, "PULUMI_CONFIG_PASSPHRASE": "another one"}
    run = with_pet.pulumi("cattle", "preview")
    assert not run.ok
    assert "passphrase" in run.explain()
    assert_plain(run)


@pytest.mark.parametrize(("stack", "vmid"), [("cattle", CATTLE), ("pet", PET)])
def test_a_stranger_keeps_its_number(request: pytest.FixtureRequest, stack: str, vmid: int) -> None:
    """The plugin alone would take it over, and delete it later (facts proxmox 15, HAZARD)."""
    site: Site = request.getfixturevalue("with_pet" if stack == "cattle" else "site")
    site.node.make_stranger(vmid)
    before = site.node.config(vmid)
    for verb in ("preview", "up"):
        refused(site, stack, verb, str(vmid), "stranger", "claim")
    assert site.node.config(vmid) == before


def _held(site: Site) -> None:
    site.node.make_stranger(200)
    site.node.set(200, mp0=f"{VOLID},mp=/data")


def _missing(site: Site) -> None:
    site.image(VOLID).unlink()


def _no_template(site: Site) -> None:
    site.configure(template="local:vztmpl/debian-13-standard_13.1-1_amd64.tar.zst")


def _no_storage(site: Site) -> None:
    site.configure(cattleStorage="fast-lvm")


def _no_privilege(site: Site) -> None:
    access = site.server.cluster.access
    access.roles["LabGuests"] -= {"VM.Config.Network"}
    access.save()


def _no_node(site: Site) -> None:
    site.overrides["PROXMOX_VE_NODE"] = "pve2"


def _no_key(site: Site) -> None:
    site.overrides["HERMES_SSH_KEY_FILE"] = "/nowhere/id_ed25519"


def _leased(site: Site) -> None:
    """Another guest has by DHCP what is to be the cattle's: who answers there takes the same key, perhaps."""
    site.node.make_stranger(300, net0="name=eth0,bridge=vmbr0,ip=dhcp", start=1)
    rows = site.node.call("GET", site.node.guest(300, "/interfaces"))
    address = next(row["inet"] for row in rows if row["name"] == "eth0")
    gateway = f"{address.rpartition('.')[0]}.254"
    site.configure(cattleAddress=address, cattleGateway=gateway)


def _pet_runs(site: Site) -> None:
    site.node.call("POST", site.node.guest(PET, "/status/start"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(_held, [re.escape(VOLID), "guest 200", "mp0", "pct shutdown 200|pct set 200"], id="held"),
        pytest.param(_missing, [re.escape(VOLID), "does not exist", "pvesm list"], id="volume missing"),
        pytest.param(_no_template, ["debian-13", re.escape(TEMPLATE), "pveam download"], id="template missing"),
        pytest.param(_no_storage, ["fast-lvm", "local-lvm"], id="storage missing"),
        pytest.param(_no_privilege, ["VM.Config.Network", "/vms", "pveum acl modify", STACK_USER], id="right missing"),
        pytest.param(_no_node, ["pve2", NODE], id="node missing"),
        pytest.param(_leased, ["cattleAddress = 10", "CT 300 'stranger'", "has it now"], id="address of another"),
        pytest.param(_pet_runs, [f"CT {PET} runs", "pct shutdown 999"], id="pet runs"),
    ],
)
def test_what_a_cattle_lacks_is_told_in_preview(
    with_pet: Site, spoil: Callable[[Site], None], words: list[str]
) -> None:
    spoil(with_pet)
    refused(with_pet, "cattle", "preview", *words)
    assert CATTLE not in with_pet.node.vmids()


def test_all_faults_are_told_at_once(with_pet: Site) -> None:
    for spoil in (_held, _no_template, _no_storage, _no_privilege, _no_key):
        spoil(with_pet)
    run = refused(with_pet, "cattle", "up", "guest 200", "debian-13", "fast-lvm", "VM.Config.Network", "ssh-keygen")
    assert "sshPrivateKeyFile = /nowhere/id_ed25519" in run.explain()
    assert "exit code" not in run.explain()


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        pytest.param({}, "petStack = pet", id="no pet yet"),
        pytest.param({"petStack": "no-such-pet"}, "petStack = no-such-pet", id="no such stack"),
    ],
)
def test_a_missing_pet_hides_no_other_fault(site: Site, setting: dict[str, str], word: str) -> None:
    site.configure(**setting)
    for spoil in (_no_template, _no_storage, _no_key):
        spoil(site)
    refused(site, "cattle", "preview", "4 faults", word, "debian-13", "fast-lvm", "ssh-keygen")


def test_an_unknown_volume_hides_no_other_fault(with_pet: Site) -> None:
    with_pet.configure(cattleVolume="herrmes")
    for spoil in (_no_template, _no_storage, _no_key):
        spoil(with_pet)
    refused(with_pet, "cattle", "up", "4 faults", "cattleVolume = herrmes", "debian-13", "fast-lvm", "ssh-keygen")


def test_a_fault_of_the_settings_hides_none_of_the_surroundings(with_both: Site) -> None:
    """What root on the node is needed for, among others: nobody has to try again to be told."""
    films = {"source": "/mnt/pve/hdd/films", "path": "/films"}
    with_both.configure(cattleHostMounts=[films], cattleVmdi=7)
    _no_privilege(with_both)
    words = ["cattleVmdi = 7", "cattleHostMounts", "root@pam alone", f"pct set {CATTLE} --mp", "VM.Config.Network"]
    for verb in ("preview", "up"):
        refused(with_both, "cattle", verb, *words)
    # Nothing can be said of what depends on a value that can't be read.
    with_both.configure(cattleHostMounts=[{**films, "path": "films"}])
    told = refused(with_both, "cattle", "preview", "cattleVmdi = 7", r"cattleHostMounts\[0\].path").explain()
    assert "VM.Config.Network" not in told


@pytest.mark.parametrize("stack", ["pet", "cattle"])
def test_a_fault_of_the_settings_hides_no_node_that_can_not_be_reached(with_pet: Site, stack: str) -> None:
    with_pet.configure(cattleVmdi=7, petVmdi=7, template="")
    with_pet.overrides["PROXMOX_VE_ENDPOINT"] = "https://127.0.0.1:1"
    run = with_pet.pulumi(stack, "preview", "--refresh=false")
    told = run.explain()
    assert not run.ok
    assert_plain(run)
    assert "Vmdi = 7" in told
    assert "127.0.0.1:1" in told


@pytest.mark.parametrize("stack", ["pet", "cattle"])
def test_a_token_that_may_see_no_guest_any_more_is_told_what_it_lacks(with_both: Site, stack: str) -> None:
    """Each run refreshes first, so the plugin's own words come before the checks; ours stand beside them."""
    access = with_both.server.cluster.access
    access.roles["LabGuests"] -= {"VM.Audit"}
    access.save()
    vmid = PET if stack == "pet" else CATTLE
    refused(with_both, stack, "preview", f"VM.Audit on /vms/{vmid} is missing", "grant VM.Audit on /vms")
    assert with_both.node.vmids() == [CATTLE, PET]


@pytest.mark.parametrize("kind", ["unknown", "hung", "started"])
def test_a_node_without_statistics_is_warned_of_and_refused_nothing(
    with_pet: Site, kind: Literal["unknown", "hung", "started"]
) -> None:
    """Facts proxmox-9.2: the node's API does all else while its pvestatd tells nothing."""
    faults = with_pet.server.faults
    faults.add(Rule(kind, seconds={"unknown": 0.0, "hung": 1e-9, "started": 3600.0}[kind]))
    run = good(with_pet.preview("cattle"))
    assert run.changed
    [warning] = [text for text in run.messages if "no statistics of node pve" in text]
    assert "systemctl restart pvestatd" in warning
    assert {entry["kind"] for entry in faults.fired()} == {kind}


def test_the_policy_pack_refuses_before_anything_is_made(with_pet: Site) -> None:
    """As docs/policies.md says it: by the script, and in an `up` by the variable."""

    def policy(stack: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["scripts/policy", stack], cwd=CHECKOUT, env=with_pet.env, capture_output=True, text=True, check=False
        )

    fine = policy("cattle")
    assert fine.returncode == 0, fine.stdout + fine.stderr
    assert re.search(r"Policies:\n +\S+ hermes-homelab@v\d", fine.stdout)

    secret = with_pet.server.cluster.access.add_token("root@pam", "everything", privsep=False)
    with_pet.overrides |= {
        "PROXMOX_VE_API_TOKEN": f"root@pam!everything={secret}",
        "PULUMI_OPTION_POLICY_PACK": "policies",
    }
    refused = policy("pet")
    assert refused.returncode != 0
    assert re.search(r"\[mandatory\] +no-root-token .*\n.*\n +apiToken is root's", refused.stdout), refused.stdout
    is_as_in("a_policy_is_broken.md", as_comment(with_pet.env, "cattle", good=False))
    assert not with_pet.pulumi("cattle", "up", "--yes", "--skip-preview").ok
    log = with_pet.raw_log.read_text()
    assert '"policyName":"no-root-token"' in log
    assert with_pet.node.vmids() == [PET]
    assert secret not in refused.stdout + refused.stderr + log
