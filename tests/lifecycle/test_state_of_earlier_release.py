"""The stacks that an earlier release brought up go on: nothing of theirs is replaced, deleted or made a second time.

``tests/fixtures/stacks_of_597cc88`` holds what commit 597cc88 left after pet and cattle were up, the agent included:
the state, the settings, the guests' configurations. Secrets in it belong to a lab that is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.stacks import PROJECT
from tests.lifecycle.homesite import CATTLE, NODE, PET, Site, opened

FIXTURE = Path(__file__).parents[1] / "fixtures" / "stacks_of_597cc88"
FORMATTED = b"ext4:00000000-0000-4000-8000-000000000000:100000\n"
"""How the runtime without containers knows a formatted volume."""
REFERENCE = "organization/hermes-homelab/pet"
VOLID = "local-lvm:vm-999-disk-1"
GIB = {"vm-999-disk-0": 2, "vm-999-disk-1": 10, "vm-105-disk-0": 20}


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[Site]:
    """A lab whose guests and stacks are those of the fixture."""
    folder = tmp_path / "lab"
    guests = folder / "nodes" / NODE / "lxc"
    volumes = folder / "nodes" / NODE / "storage" / "local-lvm"
    stacks = folder / "pulumi" / ".pulumi" / "stacks" / PROJECT
    for made in (guests, volumes, stacks, folder / "ssh"):
        made.mkdir(parents=True)
    (folder / "THIS-IS-A-LAB").touch()
    (folder / "simulated.json").write_text(f'[["{NODE}", {CATTLE}]]')
    for vmid in (PET, CATTLE):
        shutil.copy(FIXTURE / f"{vmid}.conf", guests)
    for name, size in GIB.items():
        with (volumes / f"{name}.raw").open("wb") as image:
            image.write(FORMATTED)
            image.truncate(size << 30)
    for stack in ("pet", "cattle"):
        (stacks / f"{stack}.json").write_text(_of_lab(FIXTURE / f"{stack}.json", folder))
    (folder / "pulumi" / ".pulumi" / "meta.yaml").write_text("version: 1\n")
    for name in ("passphrase", "ssh/id_ed25519", "ssh/id_ed25519.pub"):
        shutil.copy(FIXTURE / Path(name).name, folder / name)
        (folder / name).chmod(0o600)
    settings = _of_lab(FIXTURE / "settings.yaml", folder)
    (folder / "Pulumi.lab.yaml").write_text(settings)
    with opened(folder) as site:
        # The lab's own defaults are of today.
        site.lab.stack_config_file.write_text(settings)
        template = yaml.safe_load(settings)["config"][f"{PROJECT}:template"].rpartition("/")[2]
        (site.server.config.template_dir(NODE) / template).write_bytes(b"not a real archive\n")
        yield site


def _of_lab(file: Path, folder: Path) -> str:
    return file.read_text().replace("@LAB@", str(folder))


def test_nothing_of_an_earlier_release_is_replaced(earlier: Site) -> None:
    pet = earlier.preview("pet")
    assert set(pet.changed) <= {"update"}, pet.changed
    cattle = earlier.preview("cattle")
    ends = [span for span in cattle.spans if "delete" in span.op or "replace" in span.op]
    assert not ends, ends
    for name in ("cattle-container", "cattle-volume"):
        cattle.span(name, "same", "update")
    # Power was the attachment's.
    assert [span.name for span in cattle.spans if span.op == "create"] == ["cattle-power"]
    # Another way to know the machine is no reason to wait for it again.
    cattle.span("cattle-ssh", "same")
    # Each run would refresh it before ours is asked; the engine forgets it, and the pet's stack stays as it is.
    cattle.span(REFERENCE, "read-discard", "discard")
    assert earlier.writes == []


def test_a_pet_renamed_before_the_update_costs_one_run_without_refresh(earlier: Site) -> None:
    """The reference that the earlier release declared is refreshed by the engine before any of our code runs."""
    earlier.rename("pet", "pet-attic")
    earlier.configure(petStack="pet-attic")
    blocked = earlier.pulumi("cattle", "preview")
    assert "unknown stack" in blocked.explain()
    run = earlier.preview("cattle", "--refresh=false")
    run.span(REFERENCE, "read-discard", "discard")
    assert not [span for span in run.spans if "replace" in span.op or span.op == "delete"]
    assert earlier.writes == []


def test_the_power_gets_its_resource_without_a_restart(earlier: Site) -> None:
    """The states' providers, which are names of classes, are read on the way, and those that are written now."""
    urns = {name: entry["urn"] for name, entry in earlier.resources("cattle").items()}
    power = urns["cattle-volume"].replace("proxmox:VolumeAttachment", "proxmox:Power")
    power = power.replace("::cattle-volume", "::cattle-power")
    # As the releases between left it: else its options would be the update, and a restart.
    conf = earlier.lab.state_dir / "nodes" / NODE / "lxc" / f"{CATTLE}.conf"
    conf.write_text(conf.read_text().replace("mp=/home/hermes", "mp=/home/hermes,mountoptions=nodev;nosuid"))
    earlier.refresh("cattle")
    run = earlier.up("cattle", "--refresh=false", "--target", urns["cattle-volume"], "--target", power)
    assert run.span("cattle-power", "create").op == "create"
    assert earlier.writes == []
    assert earlier.node.running(CATTLE)
    before = earlier.data(VOLID)
    assert_goes(earlier)
    assert earlier.data(VOLID) == before


def test_a_stack_without_a_power_of_its_own_stops_and_goes(earlier: Site) -> None:
    assert_goes(earlier)


def assert_goes(site: Site) -> None:
    site.destroy("cattle")
    assert site.writes == [
        f"POST {CATTLE}/status/shutdown forceStop=1 timeout=60",
        f"PUT {CATTLE}/config delete=mp0",
        f"PUT {CATTLE}/config delete=unused0",
        f"DELETE {CATTLE}",
    ]
    assert VOLID in site.node.volumes()
