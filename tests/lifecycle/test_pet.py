"""The pet's life: made, left alone, kept from destruction, its volumes changed one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pvelab.simulated import write_template
from settings import outputs
from tests.lifecycle import documented
from tests.lifecycle.homesite import PET, TEMPLATE, Site, assert_plain

if TYPE_CHECKING:
    from tests.lifecycle.conftest import Deployed

VOLID = f"local-lvm:vm-{PET}-disk-1"
HERMES = {"name": "hermes", "storage": "local-lvm", "size": 2, "path": "/mnt/hermes"}
OTHER = {"name": "other", "storage": "local-lvm", "size": 1, "path": "/mnt/other"}


def test_up_makes_what_is_declared(pet_seed: Deployed, with_pet: Site) -> None:
    config = with_pet.node.config(PET)
    assert {key: config[key] for key in ("hostname", "cores", "memory", "swap", "unprivileged", "protection")} == {
        "hostname": "pet-storage",
        "cores": 1,
        "memory": 256,
        "swap": 0,
        "unprivileged": 1,
        "protection": 1,
    }
    assert config["tags"] == "pet;pulumi"
    assert config["rootfs"] == f"local-lvm:vm-{PET}-disk-0,size=2G"
    assert config["mp0"] == f"{VOLID},mp=/mnt/hermes,backup=1,size=2G"
    assert "features" not in config
    assert not with_pet.node.running(PET)
    assert not [request for request in pet_seed.sent if request.power]
    # Proxmox makes and formats it; protection goes off for that one call only (facts proxmox 6, field reports A11).
    assert [str(request) for request in pet_seed.sent if request.method == "PUT"] == [
        f"PUT {PET}/config protection=0",
        f"PUT {PET}/config mp0=local-lvm:2,mp=/mnt/hermes,backup=1",
        f"PUT {PET}/config protection=1",
    ]
    assert with_pet.outputs("pet") == {
        "vmid": PET,
        "node": "pve",
        "volumes": {"hermes": {"volid": VOLID, "size": 2, "storage": "local-lvm", "path": "/mnt/hermes"}},
    }
    assert with_pet.outputs("pet").keys() == outputs.PET.keys()


def test_nothing_to_do_is_nothing_done(with_pet: Site) -> None:
    assert with_pet.up("pet").changed == {}
    assert with_pet.writes == []
    assert with_pet.refresh("pet").changed == {}
    assert with_pet.writes == []
    # A guest that is there keeps its template where none is named.
    newer = TEMPLATE.replace("12.12-1", "12.13-1")
    write_template(with_pet.server.config.template_dir("pve") / newer)
    with_pet.configure(template="")
    assert with_pet.preview("pet").changed == {}
    assert with_pet.writes == []


def test_destroy_is_refused_before_anything_happens(with_pet: Site) -> None:
    with_pet.node.call("POST", with_pet.node.guest(PET, "/status/start"))
    known = {name: (entry["urn"], entry.get("id")) for name, entry in with_pet.resources("pet").items()}
    for verb, *options in (["destroy", "--skip-preview"], ["down"]):
        run = with_pet.pulumi("pet", verb, "--yes", *options)
        assert not run.ok
        # Our words alone: the engine's own tell how to take the protection away.
        assert run.explain().splitlines()[0].endswith("The pet is not destroyed; nothing was changed")
        assert '"Remove everything for good"' in run.explain()
        assert "protect" not in run.explain()
        assert_plain(run)
        assert with_pet.writes == []
        # The refresh may note that the pet runs; nothing may be forgotten.
        kept = {name: (entry["urn"], entry.get("id")) for name, entry in with_pet.resources("pet").items()}
        assert kept == known
    assert with_pet.node.running(PET)

    # Another number is another guest: told in our words, for the engine's advise to take the protection away.
    with_pet.configure(petVmid=PET - 1)
    run = with_pet.pulumi("pet", "preview")
    assert not run.ok
    assert f"set it back to {PET}" in run.explain()
    assert "unprotect" not in run.explain()
    with_pet.configure(petVmid=None)

    # Without the refresh the engine comes first: its text has our words first and last.
    run = with_pet.pulumi("pet", "destroy", "--yes", "--refresh=false")
    assert not run.ok
    first, *_, last = [line for line in run.explain().splitlines() if "::" in line]
    assert "pet-owns-the-agents-data--to-remove-it-read-docs-operations-md" in first
    assert last.rstrip("`'").endswith("Remove-everything-for-good")
    with_pet.pulumi("pet", "destroy", "--yes", "--skip-preview", "--exclude-protected")
    assert with_pet.writes == []
    assert list(with_pet.node.volumes()) == [f"local-lvm:vm-{PET}-disk-0", VOLID]
    with_pet.up("pet")
    assert with_pet.writes == []
    assert list(with_pet.node.volumes()) == [f"local-lvm:vm-{PET}-disk-0", VOLID]
    assert with_pet.outputs("pet")["volumes"]["hermes"]["volid"] == VOLID


def test_each_volume_is_changed_for_itself(with_pet: Site) -> None:
    with_pet.write_data(VOLID, "what the agent wrote")
    bytes_before = with_pet.data(VOLID)

    # A second one.
    with_pet.configure(petVolumes=[HERMES, OTHER])
    run = with_pet.preview("pet")
    assert run.changed == {"create": 1}
    assert run.span("pet-volume-other", "create").op == "create"
    assert with_pet.writes == []
    with_pet.up("pet")
    assert with_pet.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 2, f"local-lvm:vm-{PET}-disk-2": 1}
    assert with_pet.data(VOLID) == bytes_before

    # The first one grows, in another order of the list.
    with_pet.configure(petVolumes=[OTHER, {**HERMES, "size": 3}])
    run = with_pet.up("pet")
    assert run.changed == {"update": 1}
    assert run.span("pet-volume-hermes", "update").op == "update"
    assert [write.split()[1] for write in with_pet.writes] == [f"{PET}/resize"]
    assert with_pet.node.volumes()[VOLID] == 3
    assert with_pet.data(VOLID) == bytes_before

    # Never smaller.
    with_pet.configure(petVolumes=[OTHER, HERMES])
    run = with_pet.pulumi("pet", "preview")
    assert not run.ok
    assert "hermes" in run.explain()
    assert "never made smaller" in run.explain()
    assert_plain(run)
    assert with_pet.writes == []

    # Another name for it: the same volume. The other leaves the list: it is kept, and that is said.
    with_pet.configure(petVolumes=[{**HERMES, "size": 3, "name": "home"}])
    run = with_pet.up("pet")
    assert with_pet.writes == []
    assert with_pet.node.volumes() == {f"local-lvm:vm-{PET}-disk-0": 2, VOLID: 3, f"local-lvm:vm-{PET}-disk-2": 1}
    assert with_pet.outputs("pet")["volumes"] == {
        "home": {"volid": VOLID, "size": 3, "storage": "local-lvm", "path": "/mnt/hermes"}
    }
    assert with_pet.node.config(PET)["protection"] == 1
    assert with_pet.data(VOLID) == bytes_before


def test_the_pet_is_started_and_stopped_as_declared_and_else_left_alone(with_pet: Site) -> None:
    start, stop = f"POST {PET}/status/start", f"POST {PET}/status/shutdown forceStop=1 timeout=60"
    with_pet.configure(petStarted=True)
    with_pet.up("pet")
    assert with_pet.writes == [start]
    with_pet.configure(petStarted=False)
    with_pet.up("pet")
    assert with_pet.writes == [stop]
    with_pet.node.call("POST", with_pet.node.guest(PET, "/status/start"))
    with_pet.up("pet")
    assert with_pet.writes == []
    assert with_pet.node.running(PET)


def test_a_volumes_other_path_is_previewed_as_it_is_done(with_pet: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is mounted again, and asks for no room: also where the storage has none."""
    with_pet.write_data(VOLID, "what the agent wrote")
    before = with_pet.data(VOLID)
    monkeypatch.setattr(with_pet.server.cluster.volumes, "space", lambda _node, _storage: (1 << 40, 1 << 40))
    with_pet.configure(petVolumes=[{**HERMES, "path": "/mnt/other"}])
    run = with_pet.preview("pet")
    told = "\n".join(run.messages)
    assert f"set mp0 to {VOLID},mp=/mnt/other" in told
    assert "allocate" not in told
    assert with_pet.writes == []
    with_pet.up("pet")
    assert with_pet.node.config(PET)["mp0"].startswith(f"{VOLID},mp=/mnt/other,")
    assert with_pet.data(VOLID) == before


def test_a_stranger_that_got_the_pets_number_gets_no_volume(with_pet: Site) -> None:
    """The pet was removed by hand, another guest was made with its number: nothing is done to that."""
    with_pet.node.set(PET, protection=0)
    with_pet.node.destroy(PET)
    with_pet.node.make_stranger(PET)
    before, volumes = with_pet.node.config(PET), with_pet.node.volumes()
    with_pet.configure(petVolumes=[HERMES, OTHER], petStarted=True)
    up = ["--yes", "--skip-preview"]
    for verb, more in (("preview", []), ("up", up), ("up", [*up, "--refresh=false"])):
        run = with_pet.pulumi("pet", verb, *more)
        assert not run.ok
        assert "claim" in run.explain()
        assert_plain(run)
        assert with_pet.writes == []
    assert (with_pet.node.config(PET), with_pet.node.volumes()) == (before, volumes)
    assert "pet-volume-hermes" in with_pet.resources("pet")


def test_a_guest_made_by_hand_is_taken_over_as_the_documents_say(site: Site, tmp_path: Path) -> None:
    """Each line of the block, as a person pastes it."""
    site.node.make_stranger(PET, mp0="local-lvm:2,mp=/mnt/hermes,backup=1", rootfs="local-lvm:2", memory=256, cores=1)
    site.write_data(VOLID, "what was there before")
    before = site.data(VOLID)
    site.configure(petHostname="stranger", petVolumes=[HERMES])
    told = documented.run(site, documented.block("docs/operations.md", "cat > import.json"), tmp_path / "checkout")
    assert "pet-container" in told
    assert site.data(VOLID) == before
    config = site.node.config(PET)
    assert config["protection"] == 1
    assert "claim: " in config["description"]
    assert site.outputs("pet")["volumes"]["hermes"]["volid"] == VOLID
    # From now on without the variable.
    assert site.up("pet").changed == {}
