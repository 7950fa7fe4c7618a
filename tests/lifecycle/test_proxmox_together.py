"""Several at once: two volumes on one pet, two stacks that want one volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from proxmox.client import Proxmox
from proxmox.errors import Refusal
from proxmox.operations import attach, ensure_power, ensure_volume
from proxmox.planning import AttachSpec, PowerSpec, VolumeSpec
from tests.lifecycle.proxmox_cuts import Lab

ROUNDS = 15


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


def together(lab: Lab, *acts: Callable[[Proxmox], object]) -> list[Refusal | None]:
    """Each act in a thread with a client of its own, all let go at the same moment; what each was refused with."""
    barrier = Barrier(len(acts))

    def run(act: Callable[[Proxmox], object]) -> Refusal | None:
        with lab.client() as client:
            barrier.wait(10)
            try:
                act(client)
            except Refusal as refusal:
                return refusal
            return None

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


def test_volumes_that_are_made_at_once_get_a_slot_each(lab: Lab) -> None:
    for _ in range(ROUNDS):
        pet = lab.numbers()
        lab.guest(pet, protection="1")

        def make(client: Proxmox, name: str, pet: int = pet) -> None:
            ensure_volume(client, VolumeSpec(name, pet, "local-lvm", 1, f"/volumes/{name}"))

        assert together(lab, *(lambda client, n=name: make(client, n) for name in "abcd")) == [None] * 4
        look = lab.look(pet)
        assert sorted(mount.path for mount in look.mounts().values()) == [f"/volumes/{name}" for name in "abcd"]
        assert len(lab.volumes(pet)) == 5
        assert look.protected
        assert not look.unused()


def test_two_that_want_one_volume_never_both_get_it_and_can_try_again(lab: Lab) -> None:
    for _ in range(ROUNDS):
        base = lab.numbers()
        volid = f"local-lvm:vm-{base + 9}-disk-1"
        lab.volume(volid)
        lab.guest(base + 9, protection="1", mp0=f"{volid},mp=/v,backup=1,size=8G")
        lab.guest(base)
        lab.guest(base + 1)

        def want(client: Proxmox, vmid: int, base: int = base, volid: str = volid) -> None:
            attach(client, AttachSpec(vmid, "pve", volid, "/home/hermes", base + 9))
            ensure_power(client, PowerSpec(vmid))

        told = together(lab, *(lambda client, v=vmid: want(client, v) for vmid in (base, base + 1)))
        holders = [vmid for vmid in (base, base + 1) if lab.look(vmid).references(volid)]
        assert len(holders) == told.count(None) <= 1
        if not holders:  # each saw the other, and took its own back: the next try is as good as the first
            with lab.client() as client:
                want(client, base)
        assert sum(lab.look(vmid).running is True for vmid in (base, base + 1)) == 1
