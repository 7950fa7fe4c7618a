"""Random histories of a pet, two cattle and two volumes: runs cut off, hand edits, handing over; nothing is lost.

1,000 histories by default. `HISTORIES=20000` runs more, `HISTORY_SEED=123` replays the one that a failure names.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from proxmox.client import Proxmox
from proxmox.errors import Refusal
from proxmox.operations import attach, detach, ensure_power, ensure_volume
from proxmox.planning import AttachSpec, DetachSpec, PowerSpec, VolumeSpec
from tests.lifecycle.proxmox_cuts import KilledError, Lab

HISTORIES = int(os.environ.get("HISTORIES", "1000"))
BATCHES = 20
STEPS = 8
EDITS = ("stop", "unmount", "move", "unprotect", "destroy", "forget", "snapshot", "forget the snapshot")
CUTS = ("kill-before", "kill-after", "drop-before", "drop-after", "error-after", "lock", "", "")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


class History:
    """One history. `pet`, `cattle`: numbers; `known`: volume name -> the identity of its file system."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        base = lab.numbers()
        self.pet = base + 9
        self.cattle = (base, base + 1)
        self.known: dict[str, bytes] = {}
        self.sizes = {"one": 1, "two": 1}
        self.told: list[str] = []
        self.of_pet: set[Callable[[Proxmox], object]] = set()
        lab.guest(self.pet, protection="1")
        for vmid in self.cattle:
            lab.guest(vmid)

    # What a stack does.

    def wish(self, name: str) -> VolumeSpec:
        return VolumeSpec(name, self.pet, "local-lvm", self.sizes[name], f"/volumes/{name}")

    def allocate(self) -> Callable[[Proxmox], object]:
        name = self.random.choice(list(self.sizes))
        self.sizes[name] += self.random.choice([0, 0, 1])
        return self.pets(lambda cut: ensure_volume(cut, self.wish(name)))

    def attach(self) -> Callable[[Proxmox], object]:
        volumes = self.volumes()
        vmid, volid = self.random.choice(self.cattle), self.random.choice(volumes)
        path = self.random.choice(["/home/hermes", "/srv"])
        previous = self.random.choice([None, *volumes])
        takeover, start = self.random.random() < 0.3, self.random.random() < 0.8
        wish = AttachSpec(vmid, "pve", volid, path, self.pet, recorded=previous, takeover=takeover)

        def stack(cut: Proxmox) -> None:
            attach(cut, wish)
            ensure_power(cut, PowerSpec(vmid, start))

        return stack

    def detach(self) -> Callable[[Proxmox], object]:
        volumes = self.volumes()
        wish = DetachSpec(self.random.choice(self.cattle), self.random.choice(volumes))
        return lambda cut: detach(cut, wish)

    def power(self) -> Callable[[Proxmox], object]:
        running = self.random.random() < 0.5
        return lambda cut: ensure_power(cut, PowerSpec(self.pet, running))

    def pets(self, operation: Callable[[Proxmox], object]) -> Callable[[Proxmox], object]:
        self.of_pet.add(operation)
        return operation

    # What a person does on the node.

    def edit(self, client: Proxmox) -> None:
        vmid = self.random.choice(self.cattle)
        guest = self.lab.look(vmid)
        match self.random.choice(EDITS):
            case "stop" if guest.running:
                client.stop("pve", vmid)
            case "unmount" if "mp0" in guest.config:  # waits for the next stop when the container runs
                self.put(client, vmid, delete="mp0")
            case "move" if "mp0" in guest.config:  # as well
                self.put(client, vmid, mp0=f"{guest.mounts()['mp0'].volume},mp=/by-hand,ro=1")
            case "snapshot" if not self.lab.snapshots(vmid):
                client.wait_task(
                    client._send("POST", ("nodes", "pve", "lxc", vmid, "snapshot"), {"snapname": "before"})
                )
            case "forget the snapshot" if self.lab.snapshots(vmid):
                client.wait_task(client._send("DELETE", ("nodes", "pve", "lxc", vmid, "snapshot", "before")))
            case "forget" if "unused0" in guest.config:
                self.put(client, vmid, delete="unused0")
            case "unprotect":
                self.put(client, self.pet, protection="0")
            case "destroy":
                if guest.running:
                    client.stop("pve", vmid)
                client.wait_task(client._send("DELETE", ("nodes", "pve", "lxc", vmid)))
                self.lab.guest(vmid)

    def put(self, client: Proxmox, vmid: int, **values: str) -> None:
        client._send("PUT", ("nodes", "pve", "lxc", vmid, "config"), values)

    # The invariants.

    @staticmethod
    def identity(image: Path) -> bytes:
        """The first bytes of a volume, with the identity of its file system."""
        with image.open("rb") as file:
            return file.read(64)

    def volumes(self) -> list[str]:
        found = sorted(mount.volume for mount in self.lab.look(self.pet).mounts().values())
        return found or [f"local-lvm:vm-{self.pet}-disk-1"]

    def check(self) -> None:
        pet = self.lab.look(self.pet)
        found = {f"local-lvm:{name}": self.lab.image(f"local-lvm:{name}") for name in self.lab.volumes(self.pet)}
        identities = {volid: self.identity(image) for volid, image in found.items()}
        for volid, known in self.known.items():
            assert identities.get(volid) == known, f"{volid} was lost or formatted anew"
        self.known = identities
        assert len(found) <= 1 + len(self.sizes), "a volume was made twice"
        named = {mount.volume for mount in pet.mounts().values()}
        assert named | {f"local-lvm:vm-{self.pet}-disk-0"} == set(found), "the pet does not mount each of its volumes"
        guests = [pet, *map(self.lab.look, self.cattle)]
        for volid in found:
            writers = [
                guest.vmid
                for guest in guests
                if guest.running and any(mount.volume == volid for mount in guest.mounts().values())
            ]
            assert len(writers) <= 1, f"{writers} write to {volid}"

    def run(self, client: Proxmox) -> None:
        acts = (self.allocate, self.attach, self.attach, self.detach, self.power)
        if self.random.random() < 0.9:
            ensure_volume(client, self.wish("one"))
        for _ in range(STEPS):
            if self.random.random() < 0.2:
                self.told.append("edit")
                with self.lab.by_hand() as root:
                    self.edit(root)
            else:
                choice = self.random.choice(acts)
                self.told.append(choice.__name__)
                self.act(client, choice())
            self.check()
        for name in self.sizes:
            wish = self.wish(name)
            self.settle(client, partial(ensure_volume, spec=wish))
        self.check()

    def act(self, client: Proxmox, operation: Callable[[Proxmox], object]) -> None:
        """The operation, cut off somewhere or not; when it was, the same once more, which has to end."""
        writes = self.random.random() < 0.6
        at = self.random.randrange(4 if writes else 25)
        cut, cutter = self.lab.cut_client(at, self.random.choice(CUTS), writes=writes)
        self.told[-1] += f" ({cutter.what} at {'write' if writes else 'call'} {cutter.at})"
        try:
            operation(cut)
        except KilledError:
            self.check()
            self.settle(client, operation)
        except Refusal as refusal:
            self.told[-1] += f" refused: {type(refusal).__name__}"
        else:
            self.protected(operation)

    def settle(self, client: Proxmox, operation: Callable[[Proxmox], object]) -> None:
        """The operation without a cut, twice: refused both times, or done and then without a write."""
        try:
            operation(client)
        except Refusal:
            return
        self.protected(operation)
        again, cutter = self.lab.cut_client()
        operation(again)
        assert [call for call in cutter.calls if not call.startswith("GET")] == []

    def protected(self, operation: Callable[[Proxmox], object]) -> None:
        """After a run of the pet's stack its protection is on."""
        if operation in self.of_pet:
            assert self.lab.look(self.pet).protected, "protection is off"

    def remove(self, client: Proxmox) -> None:
        for vmid in (*self.cattle, self.pet):
            self.lab.remove(client, vmid)


def seeds(batch: int) -> range:
    if "HISTORY_SEED" in os.environ:
        seed = int(os.environ["HISTORY_SEED"])
        return range(seed, seed + 1) if batch == 0 else range(0)
    return range(batch, HISTORIES, BATCHES)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_nothing_is_lost_and_nobody_writes_beside_another(lab: Lab, batch: int) -> None:
    with lab.client() as client:
        for seed in seeds(batch):
            history = History(lab, seed)
            try:
                history.run(client)
            except Exception as error:
                steps = "\n  ".join(history.told)
                raise AssertionError(f"HISTORY_SEED={seed} replays it:\n  {steps}\n{error}") from error
            history.remove(client)
