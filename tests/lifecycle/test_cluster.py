"""More than one node: what is on which, what is told when one is away, and states that follow (docs/cluster.md)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.instance import ACCOUNT
from pvelab.access import AclEntry
from pvelab.config import storages_for
from pvelab.faults import Rule
from pvelab.simulated import write_template
from tests.lifecycle.conftest import Deployed
from tests.lifecycle.homesite import CATTLE, NODE, PET, TEMPLATE, Site, assert_plain, copied, opened
from tests.lifecycle.test_recovery import adopt, only_refused_creates

OTHER = "pve2"
NODES = (NODE, OTHER)
SHARED = f"shared:{PET}/vm-{PET}-disk-0.raw"


@contextlib.contextmanager
def on_two_nodes(folder: Path) -> Iterator[Site]:
    with opened(folder, nodes=NODES, storages=storages_for(NODES)) as site:
        write_template(site.server.config.template_dir(OTHER), TEMPLATE)
        yield site


def go_to(site: Site, node: str) -> None:
    """What the settings say of the node; the endpoint is still the first node's, which answers for all."""
    site.overrides["PROXMOX_VE_NODE"] = node


def file_of(site: Site, vmid: int, node: str) -> Path:
    return site.server.cluster.conf_path(node, vmid)


def refused(site: Site, stack: str, verb: str) -> str:
    run = site.pulumi(stack, verb, *([] if verb == "preview" else ["--yes", "--skip-preview"]))
    assert not run.ok, run.explain()
    assert_plain(run)
    assert site.writes == []
    return run.explain()


@pytest.mark.parametrize("tried", [False, True], ids=["at once", "after runs that were refused"])
def test_states_follow_guests_that_were_moved(both_seed: Deployed, tmp_path: Path, tried: bool) -> None:
    """As `pct migrate` leaves them: a file and the volumes of its own on the other node, and the cattle started.

    Most see it by an `up` that is refused. Its refresh has the engine forget the containers.
    """
    with on_two_nodes(copied(both_seed.folder, tmp_path / "lab")) as site:
        site.node.stop(CATTLE)
        files = {vmid: file_of(site, vmid, NODE).read_text() for vmid in (PET, CATTLE)}
        config = site.server.config
        for vmid in files:
            file_of(site, vmid, NODE).rename(file_of(site, vmid, OTHER))
            for volume in config.storage_dir(NODE, "local-lvm").glob(f"vm-{vmid}-*"):
                volume.rename(config.storage_dir(OTHER, "local-lvm") / volume.name)
        site.node.call("POST", f"/nodes/{OTHER}/lxc/{CATTLE}/status/start")
        if tried:
            for stack, vmid in (("pet", PET), ("cattle", CATTLE)):
                assert f"CT {vmid} is on node {OTHER}, not on {NODE}" in refused(site, stack, "up")
        go_to(site, OTHER)
        if tried:
            for stack in ("pet", "cattle"):
                refused(site, stack, "up")
        done = adopt(site, "--moved", answer="yes\n")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"cattle: CT {CATTLE} 'hermes' on node {OTHER} (running); its state says node {NODE}" in done.stdout
        if tried:
            # The plugin asks Proxmox to make what the engine has forgotten, and is told that it is there.
            assert only_refused_creates(site, OTHER), site.writes
        else:
            # The engine's summaries, of the refreshes and of the runs.
            counted = re.findall(r"^ +[+~-]* ?(\d+) (\w+)", done.stdout, re.MULTILINE)
            assert {what for _, what in counted} == {"unchanged"}, done.stdout
            assert site.writes == []
        assert {vmid: file_of(site, vmid, OTHER).read_text() for vmid in files} == files
        assert site.node.call("GET", f"/nodes/{OTHER}/lxc/{CATTLE}/status/current")["status"] == "running"
        for stack in ("pet", "cattle"):
            assert site.preview(stack).changed == {}


def test_a_node_or_a_quorum_that_is_away_is_told_before_the_plugin_asks(both_seed: Deployed, tmp_path: Path) -> None:
    with on_two_nodes(copied(both_seed.folder, tmp_path / "lab")) as site:
        faults = site.server.faults
        faults.add(Rule("offline", node=OTHER))
        go_to(site, OTHER)
        told = refused(site, "cattle", "destroy")
        for part in (f"Node {OTHER} can't be used", "must be online", "docs/cluster.md"):
            assert part in told
        assert not any("/lxc/" in request.path for request in site.sent)
        go_to(site, NODE)
        faults.clear()
        faults.add(Rule("inquorate"))
        # As the document's line does it.
        access = site.server.cluster.access
        for kind, whose in (("user", ACCOUNT.user), ("token", ACCOUNT.token_id)):
            access.acl.append(AclEntry("/", kind, whose, "PVEAuditor", propagate=False))
        told = refused(site, "cattle", "up")
        assert "must have its quorum" in told
        assert "pvecm status" in told


def test_pet_and_cattle_on_two_nodes_of_which_one_dies(seed: Path, tmp_path: Path) -> None:
    """The volume is on a shared storage: the cattle's node dies, and another cattle goes on with it on the pet's."""
    with on_two_nodes(copied(seed, tmp_path / "lab")) as site:
        hermes = {"name": "hermes", "storage": "shared", "size": 2, "path": "/mnt/hermes"}
        site.configure(petVolumes=[hermes])
        site.up("pet")
        go_to(site, OTHER)
        site.up("cattle")
        assert f"mp0: {SHARED},mp=" in file_of(site, CATTLE, OTHER).read_text()
        site.write_data(SHARED, "what the agent wrote")
        data = site.data(SHARED)

        site.server.faults.add(Rule("offline", node=OTHER))
        file_of(site, CATTLE, OTHER).unlink()
        go_to(site, NODE)
        done = adopt(site, "--moved", answer="yes\n")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"cattle: there is no guest {CATTLE} any more; pulumi up makes it on node {NODE}" in done.stdout
        assert site.node.config(CATTLE)["mp0"].startswith(f"{SHARED},mp=")
        assert site.node.running(CATTLE)
        assert site.data(SHARED) == data
