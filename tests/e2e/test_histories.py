"""Random histories of a pet and two cattle in real containers: what was written to a volume is there at each step.

24 histories by default. `REAL_HISTORIES=500` runs more, `HISTORY_SEED=123` replays the one that a failure names.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from container_bench import Bench, bench_in

from proxmox.facts import GuestFacts
from pvelab.runtime import GuestSpec, Mount, Setup
from tests.lifecycle.proxmox_cuts import Lab
from tests.lifecycle.test_proxmox_histories import History

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")

HISTORIES = int(os.environ.get("REAL_HISTORIES", "24"))
JOURNAL = "journal"
UUID_AT = 1024 + 0x68  # of ext4's superblock


class RealLab(Lab):
    """A lab whose guests are real: made from the template, booted, with ext4 on their volumes."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.place.state_dir, bench.runtime)
        self.bench = bench

    def spec(self, vmid: int) -> GuestSpec:
        root = self.image(f"local-lvm:vm-{vmid}-disk-0")
        return GuestSpec("pve", vmid, f"ct{vmid}", 256, 0, (Mount("rootfs", "/", root),), (), nesting=True)

    def guest(self, vmid: int, **options: str) -> None:
        super().guest(vmid, **options)
        spec = self.spec(vmid)
        self.bench.runtime.unpack(spec, self.bench.template.archive, Setup(), lambda _line: None)

    def sh(self, vmid: int, script: str) -> str:
        return self.bench.sh(self.spec(vmid), script)


class RealHistory(History):
    """A history whose volumes carry a journal: one more line at each step that finds the volume mounted."""

    lab: RealLab

    def __init__(self, lab: RealLab, seed: int) -> None:
        super().__init__(lab, seed)
        self.written: dict[str, list[str]] = {}

    @staticmethod
    def identity(image: Path) -> bytes:
        with image.open("rb") as file:
            file.seek(UUID_AT)
            return file.read(16)

    def check(self) -> None:
        super().check()
        guests = [self.lab.look(vmid) for vmid in (self.pet, *self.cattle)]
        for volid in (f"local-lvm:{name}" for name in self.lab.volumes(self.pet)):
            if volid.endswith(f"-{self.pet}-disk-0"):
                continue
            expected = list(self.written.setdefault(volid, []))
            assert self.read(volid, guests) == expected, f"what was written to {volid} is not what is there"

    def read(self, volid: str, guests: list[GuestFacts]) -> list[str]:
        """The journal as a guest sees it that has the volume mounted; from the image where none does."""
        for guest in guests:
            for mount in guest.mounts().values():
                if guest.running and mount.volume == volid:
                    if not self.lab.sh(guest.vmid, f"findmnt -n {mount.path} || true"):
                        continue  # named since the guest was started: it waits for the next start
                    found = self.lab.sh(guest.vmid, f"cat {mount.path}/{JOURNAL} 2>/dev/null || true").splitlines()
                    if "ro" not in mount.options:
                        line = f"{len(found)} by {guest.vmid} {self.random.random()}"
                        self.lab.sh(guest.vmid, f"echo '{line}' >> {mount.path}/{JOURNAL}; sync {mount.path}/{JOURNAL}")
                        self.written[volid].append(line)
                    return found
        image = self.lab.image(volid)
        done = subprocess.run(
            ["debugfs", "-R", f"cat /{JOURNAL}", str(image)], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout.splitlines()


@pytest.fixture(scope="module")
def lab() -> Iterator[RealLab]:
    shm = Path("/dev/shm")  # noqa: S108 - images that live for seconds: no work for a disk
    with (
        tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None, prefix="histories-") as folder,
        bench_in(Path(folder) / "lab") as bench,
    ):
        found = RealLab(bench)
        yield found
        found.close()


def seeds() -> range:
    if "HISTORY_SEED" in os.environ:
        seed = int(os.environ["HISTORY_SEED"])
        return range(seed, seed + 1)
    return range(HISTORIES)


@pytest.mark.parametrize("seed", seeds())
def test_what_was_written_is_there_at_each_step(lab: RealLab, seed: int) -> None:
    with lab.client() as client:
        history = RealHistory(lab, seed)
        try:
            history.run(client)
        except Exception as error:
            steps = "\n  ".join(history.told)
            raise AssertionError(f"HISTORY_SEED={seed} replays it:\n  {steps}\n{error}") from error
        finally:
            history.remove(client)
