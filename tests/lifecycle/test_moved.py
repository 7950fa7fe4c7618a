"""A guest that somebody moved to another node is not gone: it is named, and nothing is done in its name.

The plugin looks on the node of the state alone, and forgets what it does not find there. And a pet whose stack has
another name is the same pet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pvelab.config import storages_for
from tests.lifecycle import documented
from tests.lifecycle.conftest import Deployed
from tests.lifecycle.homesite import CATTLE, NODE, PET, Site, assert_plain, copied, opened

NODES = (NODE, "pve2")
VOLID = f"local-lvm:vm-{PET}-disk-1"


@pytest.fixture
def two_nodes(both_seed: Deployed, tmp_path: Path) -> Iterator[Site]:
    """Pet and cattle are up, on the first of two nodes."""
    folder = copied(both_seed.folder, tmp_path / "lab")
    with opened(folder, nodes=NODES, storages=storages_for(NODES)) as made:
        yield made


def move(site: Site, vmid: int, source: str, target: str) -> None:
    """As by hand after a node has died: the configuration file goes to another node's folder."""
    cluster = site.server.cluster
    cluster.conf_path(source, vmid).rename(cluster.conf_path(target, vmid))


def refused(site: Site, stack: str, verb: str, *more: str) -> str:
    run = site.pulumi(stack, verb, *(["--yes", "--skip-preview"] if verb != "preview" else []), *more)
    told = run.explain()
    assert not run.ok, told
    assert_plain(run)
    assert site.writes == []
    return told


def test_a_moved_cattle_is_neither_gone_nor_left_behind(two_nodes: Site) -> None:
    site = two_nodes
    site.node.stop(CATTLE)
    before, data = site.node.config(CATTLE), site.data(VOLID)
    move(site, CATTLE, NODE, "pve2")
    for verb, more in (
        ("destroy", ("--refresh=false",)),
        ("refresh", ()),
        ("preview", ()),
        ("up", ()),
        ("destroy", ()),
    ):
        told = refused(site, "cattle", verb, *more)
        assert f"CT {CATTLE} is on node pve2, not on {NODE}" in told, (verb, more, told)
        assert f"pct migrate {CATTLE} {NODE}" in told
        assert "scripts/adopt --moved" in told
        assert "cattle-volume" in site.resources("cattle")
    move(site, CATTLE, "pve2", NODE)
    assert site.node.config(CATTLE) == before
    # The plugin's refresh has made the engine forget the container meanwhile, so a destroy would not delete it.
    run = site.pulumi("cattle", "destroy", "--yes", "--skip-preview")
    assert not run.ok
    assert "is still there, and this stack's" in run.explain()
    assert_plain(run)
    site.up("cattle")
    assert site.node.running(CATTLE)
    site.destroy("cattle")
    assert site.node.vmids() == [PET]
    assert site.data(VOLID) == data


def test_a_moved_pet_keeps_its_volumes_in_the_state_and_no_cattle_gets_what_it_left(two_nodes: Site) -> None:
    """What has the volume's name on the first node belongs to nobody now. The pet's own is on the second."""
    site = two_nodes
    moved = "/nodes/pve2/storage/local-lvm/content"
    site.node.call("POST", moved, vmid=PET, filename=VOLID.partition(":")[2], size="2G", format="raw")
    move(site, PET, NODE, "pve2")
    data = site.data(VOLID)
    told = refused(site, "cattle", "up")
    assert f"{VOLID} is on node pve2, with CT {PET}, and CT {CATTLE} is on {NODE}" in told
    assert f"pct migrate {PET} {NODE}" in told
    for verb in ("refresh", "up"):
        assert f"CT {PET} is on node pve2, not on {NODE}" in refused(site, "pet", verb)
        assert "pet-volume-hermes" in site.resources("pet")
    # A cattle that has mounted it is let go of, with nothing lost on either node.
    site.destroy("cattle")
    assert site.node.vmids() == []
    assert VOLID in site.node.volumes()
    assert [row["volid"] for row in site.node.call("GET", moved)] == [VOLID]
    assert site.data(VOLID) == data


def test_a_pet_whose_stack_was_renamed_is_named_and_found_again(with_both: Site, tmp_path: Path) -> None:
    with_both.write_data(VOLID, "what the agent wrote")
    before, data = with_both.node.config(CATTLE), with_both.data(VOLID)
    with_both.rename("pet", "pet-attic")
    for verb in ("preview", "up"):
        told = refused(with_both, "cattle", verb)
        for part in ("petStack", "pet", "there is no stack of that name", "set petStack to the new name"):
            assert part in told, (verb, told)
        assert "Traceback" not in told
    # Neither asks the pet for anything, so neither is in its way.
    assert with_both.refresh("cattle").changed == {}

    # As the documents say, from the beginning.
    with_both.rename("pet-attic", "pet")
    with_both.forget()
    documented.run(with_both, documented.block("docs/operations.md", "pulumi stack rename pet-attic"), tmp_path / "one")
    assert with_both.writes == []
    # The notes name the stack, and nothing else changes.
    run = with_both.up("pet-attic")
    assert run.changed == {"update": 1}
    assert run.span("pet-container", "update").details == ("description",)
    assert len(with_both.writes) == 1
    assert "Stack `pet-attic`" in with_both.node.config(PET)["description"]
    with_both.rename("pet-attic", "pet")
    with_both.destroy("cattle")
    with_both.configure(petStack="pet")
    with_both.up("cattle")
    assert with_both.node.config(CATTLE)["mp0"] == before["mp0"]
    assert with_both.data(VOLID) == data
    # "Remove everything for good", as far as Pulumi does it: settings, pet and data are there to the last line.
    remove = documented.block("docs/operations.md", "pulumi destroy --stack cattle && pulumi stack rm")
    script, on_the_node = remove.rstrip().rsplit("\n", 1)
    documented.run(with_both, script, tmp_path / "two")
    assert with_both.node.vmids() == [PET]
    assert with_both.data(VOLID) == data
    assert with_both.lab.stack_config_file.exists()
    assert on_the_node.startswith(f"node# pct set {PET} --protection 0 && pct destroy {PET} ")
