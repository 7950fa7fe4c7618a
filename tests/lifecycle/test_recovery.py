"""What is gone comes back: the pet, the node, the state, the passphrase, as docs/recovery.md says. Without containers.

The data of a volume are a few bytes here. That an agent remembers is proved in tests/e2e.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.instance import ACCOUNT, CHECKOUT
from pvelab.access import AclEntry
from pvelab.config import StorageConfig, storages_for
from pvelab.simulated import write_template
from tests.lifecycle.conftest import Deployed
from tests.lifecycle.homesite import CATTLE, NODE, PET, TEMPLATE, Site, assert_plain, copied, opened

WORDS = "what the agent wrote"
LATE = "and wrote after the backup"
VOLID = f"local-lvm:vm-{PET}-disk-1"


@pytest.fixture
def used(both_seed: Deployed, tmp_path: Path) -> Iterator[Site]:
    """Pet and cattle are up, and the agent has written something."""
    with opened(copied(both_seed.folder, tmp_path / "lab")) as made:
        made.write_data(VOLID, WORDS)
        yield made


def backed_up(site: Site, node: str = NODE) -> str:
    """The volid of a new backup of the pet."""
    site.node.call("POST", f"/nodes/{node}/vzdump", vmid=PET, storage="local", mode="snapshot")
    rows = site.node.call("GET", f"/nodes/{node}/storage/local/content", content="backup")
    return str(max(row["volid"] for row in rows))


def restored(site: Site, archive: str, storage: str = "local-lvm", node: str = NODE) -> None:
    """As `pct restore 999 ARCHIVE --storage STORAGE` does."""
    site.node.call("POST", f"/nodes/{node}/lxc", vmid=PET, ostemplate=archive, restore=1, storage=storage)


def lose_pet(site: Site) -> None:
    """As `pct set 999 --protection 0; pct destroy 999 --purge` by hand, with the cattle stopped."""
    site.node.stop(CATTLE)
    site.node.set(PET, protection=0)
    site.node.destroy(PET)


def told_by(site: Site, stack: str, verb: str = "up", *options: str) -> str:
    """The words of a run that is refused; nothing was changed."""
    run = site.pulumi(stack, verb, *(["--yes", "--skip-preview"] if verb == "up" else []), *options)
    assert not run.ok, run.explain()
    assert_plain(run)
    assert site.writes == []
    return run.explain()


def write_more(site: Site) -> None:
    """The agent goes on after the backup."""
    site.write_data(VOLID, f"{WORDS} {LATE}")


def has_the_words(site: Site) -> bool:
    """Whether the volume that the cattle mounts has the agent's words, but for those after the backup."""
    volid = site.node.config(CATTLE)["mp0"].partition(",")[0]
    return site.node.running(CATTLE) and lost_is_what_came_after(site.data(volid))


def lost_is_what_came_after(data: bytes) -> bool:
    return WORDS.encode() in data and LATE.encode() not in data


@pytest.mark.parametrize("taken", [False, True])
def test_a_pet_that_was_removed_comes_back_from_a_backup_with_other_numbers(used: Site, taken: bool) -> None:
    archive = backed_up(used)
    write_more(used)
    lose_pet(used)
    # Not again with empty volumes, as if nothing had been: the agent would have forgotten everything.
    told = told_by(used, "pet", "preview")
    for part in (
        f"petVmid = {PET}",
        "it would be made again with new, empty ones",
        "docs/recovery.md",
        "petStartEmpty",
    ):
        assert part in told
    if taken:
        # A number that is taken, as by a volume that could not be freed: the restored one gets another.
        for number in (0, 1):
            place = f"/nodes/{NODE}/storage/local-lvm/content"
            used.node.call("POST", place, vmid=PET, filename=f"vm-{PET}-disk-{number}", size="1G")
    restored(used, archive)
    used.refresh("pet")
    expected = f"local-lvm:vm-{PET}-disk-{3 if taken else 1}"
    assert used.node.config(PET)["mp0"].startswith(expected)
    if taken:
        told = told_by(used, "pet")
        assert f"CT {PET} has two volumes for 'hermes'" in told
        assert f"as the volume's volid: {expected} or {VOLID}" in told
        hermes = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes", "volid": expected}
        used.configure(petVolumes=[hermes])
    used.up("pet")
    assert used.outputs("pet")["volumes"]["hermes"]["volid"] == expected
    assert used.node.config(PET)["protection"] == 1
    used.up("cattle")
    assert has_the_words(used)
    for stack in ("pet", "cattle"):
        assert used.up(stack).changed == {}


def test_a_pet_comes_back_on_another_storage(both_seed: Deployed, tmp_path: Path) -> None:
    folder = copied(both_seed.folder, tmp_path / "lab")
    spare = StorageConfig("spare", "lvmthin", frozenset(("rootdir", "images")))
    with opened(folder, storages=(*storages_for((NODE,)), spare)) as site:
        site.write_data(VOLID, WORDS)
        archive = backed_up(site)
        write_more(site)
        lose_pet(site)
        restored(site, archive, "spare")
        hermes = {"name": "hermes", "storage": "spare", "size": 2, "path": "/mnt/hermes"}
        site.configure(petVolumes=[hermes], petStorage="spare")
        for kind, whose in (("user", ACCOUNT.user), ("token", ACCOUNT.token_id)):
            site.server.cluster.access.acl.append(AclEntry("/storage/spare", kind, whose, "LabVolumes"))
        site.refresh("pet")
        site.up("pet")
        site.up("cattle")
        assert site.node.config(CATTLE)["mp0"].startswith(f"spare:vm-{PET}-disk-1,")
        assert has_the_words(site)


def test_a_pet_that_is_lost_for_good_is_made_again_where_that_is_said(used: Site) -> None:
    lose_pet(used)
    used.configure(petStartEmpty=True)
    used.up("pet")
    assert WORDS.encode() not in used.data(VOLID)
    used.configure(petStartEmpty=None)
    assert used.up("pet").changed == {}


def test_a_backup_that_is_under_way_stops_no_cattle_and_is_named_to_the_pet(used: Site) -> None:
    """vzdump has the pet's lock; in mode snapshot also a snapshot of that name (VZDump/LXC.pm)."""
    cluster = used.server.cluster
    before = cluster.conf_path(NODE, PET).read_text()
    own = "".join(f"{line}\n" for line in before.splitlines() if line and not line.startswith("#"))
    cluster.conf_path(NODE, PET).write_text(
        f"{before}lock: backup\nparent: vzdump\n\n[vzdump]\n{own}snaptime: 1796000000\n"
    )
    assert used.up("cattle").changed == {}
    used.destroy("cattle")
    used.up("cattle")
    assert has_the_words(used)
    assert "must not be locked (backup): an operation is at work on it" in told_by(used, "pet")
    cluster.conf_path(NODE, PET).write_text(before)
    assert used.up("pet").changed == {}


# ---- the state, the passphrase ---------------------------------------------------------------------------------------


def adopt(site: Site, *arguments: str, answer: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """scripts/adopt, without its set-up."""
    env = {**site.env, **environment, "PYTHONPATH": str(CHECKOUT), "PYTHONSAFEPATH": "1"}
    argv = [sys.executable, str(CHECKOUT / "scripts" / "lib" / "adopt.py"), *arguments]
    site.forget()
    return subprocess.run(
        argv, cwd=CHECKOUT, env=env, input=answer, capture_output=True, text=True, timeout=180, check=False
    )


def forget_state(site: Site) -> None:
    """As when the folder with the state is lost; the settings are there."""
    for file in site.state_files:
        file.unlink()


def only_refused_creates(site: Site, node: str = NODE) -> bool:
    """The plugin asks for the guest, and is told that it is there: no other request changes anything."""
    sent = [request for request in site.sent if request.write]
    return all((each.method, each.path, each.status) == ("POST", f"/nodes/{node}/lxc", 500) for each in sent)


def test_a_lost_state_is_made_again_without_a_change_to_any_guest(used: Site) -> None:
    before = {vmid: used.node.config(vmid) for vmid in (PET, CATTLE)}
    forget_state(used)
    done = adopt(used, answer="no\n")
    assert done.returncode == 1
    assert f"pet: CT {PET} 'pet-storage' on node {NODE} (stopped), claim " in done.stdout
    assert f"  mp0: {VOLID} at /mnt/hermes" in done.stdout
    assert f"cattle: CT {CATTLE} 'hermes' on node {NODE} (running), claim " in done.stdout
    assert done.stdout.endswith("Nothing was changed.\n")
    assert used.writes == []

    done = adopt(used, answer="yes\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert only_refused_creates(used), used.writes
    assert {vmid: used.node.config(vmid) for vmid in (PET, CATTLE)} == before
    assert has_the_words(used)
    for stack in ("pet", "cattle"):
        assert used.up(stack).changed == {}
    assert adopt(used).stdout.count("nothing to adopt") == 2
    # They are the stacks' own again.
    assert "The pet is not destroyed" in used.pulumi("pet", "destroy", "--yes", "--skip-preview").explain()
    used.destroy("cattle")
    used.up("cattle")
    assert has_the_words(used)


def test_a_lost_passphrase_costs_the_secrets_alone(used: Site, tmp_path: Path) -> None:
    used.set_secret("cattle", "agentModelKey", "sk-lost")
    used.set_secret("cattle", "agentSecretEnvironment.A_NAME", "lost")
    new = tmp_path / "new"
    new.mkdir()
    used.overrides |= {
        "PULUMI_BACKEND_URL": f"file://{new}",
        "PULUMI_CONFIG_PASSPHRASE": "another",
        "PULUMI_CONFIG_PASSPHRASE_FILE": None,
    }
    done = adopt(used, "--new-passphrase")
    assert done.returncode == 0, done.stdout + done.stderr
    for key in ("agentModelKey", "--path agentSecretEnvironment.A_NAME"):
        assert f"pulumi config set --stack cattle --secret {key}\n" in done.stdout
    used.set_secret("cattle", "agentModelKey", "sk-new")
    done = adopt(used, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert only_refused_creates(used), used.writes
    assert has_the_words(used)
    assert "sk-lost" not in used.lab.stack_config_file.read_text()


def test_what_can_not_be_adopted_is_named(used: Site) -> None:
    forget_state(used)
    claimed = str(used.node.config(PET)["description"])
    used.node.set(PET, description="mine")
    assert f"CT {PET} 'pet-storage' on node {NODE} (stopped) has no claim in its notes" in adopt(used).stderr
    used.node.set(PET, description=claimed)
    used.configure(node="pve9")
    assert "the settings say node pve9: correct it" in adopt(used, **{"PROXMOX_VE_NODE": "pve9"}).stderr
    used.configure(node=NODE, petVmid=998)
    assert "pet: there is no guest 998: restore it first: docs/recovery.md" in adopt(used).stderr
    assert used.writes == []


# ---- the node --------------------------------------------------------------------------------------------------------


def test_on_another_node_the_archive_and_the_settings_are_enough(both_seed: Deployed, tmp_path: Path) -> None:
    """Node, guests and state are gone; what is left is an archive of vzdump, and the repository with the settings."""
    nodes = (NODE, "pve2")
    folder = copied(both_seed.folder, tmp_path / "lab")
    with opened(folder, nodes=nodes, storages=storages_for(nodes)) as site:
        site.write_data(VOLID, WORDS)
        archive = backed_up(site)
        write_more(site)
        cluster = site.server.cluster
        for vmid in (PET, CATTLE):
            cluster.conf_path(NODE, vmid).unlink()
        forget_state(site)
        dumps = {node: cluster.volumes.directory(node, cluster.volumes.storage("local")) / "dump" for node in nodes}
        dumps[NODE].rename(dumps["pve2"])
        write_template(site.server.config.template_dir("pve2"), TEMPLATE)
        restored(site, archive, node="pve2")
        site.configure(node="pve2", cattleVmid=106)
        site.overrides["PROXMOX_VE_NODE"] = "pve2"
        done = adopt(site, "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "cattle: there is no guest 106: pulumi up --stack cattle makes it" in done.stdout
        site.configure(claim=None)
        site.up("cattle")
        assert site.node.call("GET", "/nodes/pve2/lxc/106/status/current")["status"] == "running"
        data = site.server.config.storage_dir("pve2", "local-lvm") / f"vm-{PET}-disk-1.raw"
        assert lost_is_what_came_after(data.read_bytes()[:4096])


# ---- what a container is made from -----------------------------------------------------------------------------------


def test_a_template_that_is_gone_stops_only_what_has_to_be_made(used: Site) -> None:
    """The file is removed, and a newer one is there. What is up needs neither; a new cattle is told what to choose."""
    folder = used.server.config.template_dir(NODE)
    (folder / TEMPLATE).unlink()
    newer = TEMPLATE.replace("12.12-1", "12.13-1")
    write_template(folder, newer)
    for stack in ("pet", "cattle"):
        assert used.up(stack).changed == {}
        assert used.writes == []
    used.destroy("cattle")
    for run in (["preview"], ["up"], ["up", "--refresh=false"]):
        told = told_by(used, "cattle", *run)
        assert f"local:vztmpl/{TEMPLATE}" in told
        assert f"local:vztmpl/{newer}" in told
        assert used.node.vmids() == [PET]
    used.configure(template=f"local:vztmpl/{newer}")
    used.up("cattle")
    assert has_the_words(used)
    # To the pet the changed name is no change.
    assert used.up("pet").changed == {}
