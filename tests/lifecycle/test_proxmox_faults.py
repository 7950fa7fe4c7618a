"""Tasks that fail, warn or never end, and a storage that is full: told as what they are, and the next run ends well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from proxmox import errors
from proxmox.client import Proxmox
from proxmox.operations import attach, detach, ensure_power, ensure_volume
from proxmox.planning import GIB, AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from pvelab.faults import Rule
from tests.lifecycle.proxmox_cuts import Lab

Act = Callable[[Proxmox, Callable[[str], None]], object]


@pytest.fixture(scope="module", name="everything")
def run_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


@pytest.fixture(name="lab")
def clear_faults(everything: Lab) -> Iterator[Lab]:
    yield everything
    everything.server.faults.clear()


class Scene:
    """A pet with a volume of 1 GiB, and a cattle that mounts it or not."""

    def __init__(self, lab: Lab, *, attached: bool) -> None:
        self.lab = lab
        self.cattle = lab.numbers()
        self.pet = self.cattle + 9
        self.disk = f"local-lvm:vm-{self.pet}-disk-1"
        lab.volume(self.disk, GIB)
        lab.guest(self.pet, protection="1", mp0=f"{self.disk},mp=/v,backup=1,size=1G")
        lab.guest(self.cattle, **({"mp0": f"{self.disk},mp=/home/hermes,size=1G"} if attached else {}))
        self.wish = AttachSpec(self.cattle, "pve", self.disk, "/home/hermes", self.pet, options="")

    def attach(self, client: Proxmox, report: Callable[[str], None]) -> object:
        attach(client, self.wish, report)
        ensure_power(client, PowerSpec(self.cattle), report)
        return None

    def detach(self, client: Proxmox, report: Callable[[str], None]) -> object:
        detach(client, DetachSpec(self.cattle, self.disk), report)
        return None

    def grow(self, client: Proxmox, report: Callable[[str], None]) -> object:
        return ensure_volume(client, VolumeSpec("v", self.pet, "local-lvm", 2, "/v"), report)

    def more(self, client: Proxmox, report: Callable[[str], None]) -> object:
        return ensure_volume(client, VolumeSpec("w", self.pet, "local-lvm", 2, "/w"), report)


CASES: dict[str, tuple[bool, str, str]] = {
    "start": (False, "vzstart", "attach"),
    "shut down": (True, "vzshutdown", "detach"),
    "grow": (False, "resize", "grow"),
}
RESULTS: dict[Literal["fail", "warn", "slow", "endless"], type[errors.ProxmoxError] | None] = {
    "fail": errors.TaskFailed,
    "endless": errors.TaskTimeout,
    "slow": None,
    "warn": None,
}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("case", CASES)
def test_a_task_that_does_not_end_well(
    lab: Lab, case: str, result: Literal["fail", "warn", "slow", "endless"], monkeypatch: pytest.MonkeyPatch
) -> None:
    attached, task, name = CASES[case]
    scene = Scene(lab, attached=attached)
    act: Act = getattr(scene, name)
    lines: list[str] = []
    with lab.client(**({"task": 0.5, "lock": 0.5} if result == "endless" else {})) as client:
        # A shutdown brings a deadline of its own, of a minute: as long as the guest may take.
        shut_down = client.shutdown
        monkeypatch.setattr(client, "shutdown", lambda node, vmid, _timeout: shut_down(node, vmid, 1))
        if attached:
            client.start("pve", scene.cattle)
        text = "no such logical volume pve/vm-1-disk-1" if result == "fail" else "WARN: beware"
        lab.server.faults.add(Rule("task", task=task, result=result, text=text, seconds=0.3))
        kind = RESULTS[result]
        if kind is None:
            act(client, lines.append)
        else:
            with pytest.raises(kind) as told:
                act(client, lines.append)
            assert task in str(told.value)
            assert result != "fail" or text in str(told.value)
        assert lab.look(scene.pet).protected
        assert (result == "warn") == any("warning of Proxmox" in line for line in lines)
        lab.server.faults.clear()
    with lab.client() as client:
        act(client, lines.append)
        assert lab.look(scene.pet).protected
        running = lab.look(scene.cattle).running
        assert running is (name == "attach")
        ensure_power(client, PowerSpec(scene.cattle, running=False))


def test_a_full_storage_leaves_no_half_made_volume_and_protection_on(lab: Lab) -> None:
    scene = Scene(lab, attached=False)
    lab.server.faults.add(Rule("full", storage="local-lvm", count=None))
    with lab.client() as client:
        with pytest.raises(errors.ApiError) as told:
            scene.more(client, print)
        assert told.value.reason
        assert lab.look(scene.pet).protected
        assert len(lab.volumes(scene.pet)) == 2
        lab.server.faults.clear()
        scene.more(client, print)
        assert len(lab.volumes(scene.pet)) == 3
