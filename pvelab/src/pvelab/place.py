"""Where a lab keeps what lasts only as long as the machine runs, and the names it uses on the machine.

Everything a lab makes outside its state folder (bridge, packet filter table,
container names, mount points) carries the lab's identity, which follows from the
state folder alone. So several labs live side by side, and a lab that was killed
finds its own things again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pvelab.idmap import HOST_BASE


class LabError(Exception):
    """The lab can't do what was asked; the text says why and what to do."""


RUN = Path("/run/pvelab")
"""Short, without blanks, and empty after a reboot of the machine, as are the mounts and bridges it speaks of."""


@dataclass(frozen=True)
class Place:
    """The names of one lab."""

    state_dir: Path
    identity: str
    run_dir: Path

    @classmethod
    def of(cls, state_dir: Path, run: Path = RUN) -> Place:
        real = state_dir.resolve()
        identity = hashlib.sha256(str(real).encode()).hexdigest()[:6]
        return cls(real, identity, run / identity)

    @property
    def bridge(self) -> str:
        """The bridge that the API calls vmbr0; at most 15 characters."""
        return f"hlab{self.identity}"

    @property
    def table(self) -> str:
        return f"pvelab_{self.identity}"

    def lxc_path(self, node: str) -> Path:
        return self.run_dir / "guests" / node

    def container(self, vmid: int) -> str:
        """The name that LXC knows a guest by; it names cgroups, so it has to differ between labs."""
        return f"{self.identity}-{vmid}"

    def guest_dir(self, node: str, vmid: int) -> Path:
        return self.lxc_path(node) / self.container(vmid)

    def make_run_dir(self) -> None:
        """Make the run folders; the guests' root has to pass through them, but may not list them."""
        while True:
            try:
                for folder in (self.run_dir.parent, self.run_dir, self.run_dir / "guests"):
                    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                    folder.chmod(0o711)
                if os.geteuid() == 0:
                    # Where the guests' trees are mounted: for them and for root, not for the machine's other users.
                    os.chown(self.run_dir / "guests", 0, HOST_BASE)
                    (self.run_dir / "guests").chmod(0o710)
            except (FileNotFoundError, FileExistsError):
                # The last other lab has just left, and removed the folder of all labs.
                continue
            return

    def remove_run_dir(self) -> None:
        """Remove what is below the run folder, unless something is still mounted there."""
        mounts = Path("/proc/self/mountinfo").read_text()
        if f" {self.run_dir}/" not in mounts:
            shutil.rmtree(self.run_dir, ignore_errors=True)


@contextlib.contextmanager
def machine_lock(run: Path = RUN) -> Iterator[None]:
    """Held while something is changed that all labs of the machine share; the kernel frees it when the holder dies."""
    while True:
        try:
            run.mkdir(mode=0o711, parents=True, exist_ok=True)
            handle = (run / "lock").open("w")
        except (FileNotFoundError, FileExistsError):
            # Another lab, the last one, removed the folder in this moment.
            continue
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # The last lab to leave removes the file: a lock on one that is gone excludes nobody.
            if _same(handle.fileno(), run / "lock"):
                yield
                return


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def leave(run: Path = RUN) -> None:
    """Remove the folder of all labs when there is no lab in it; to be called with the lock held."""
    if {entry.name for entry in run.iterdir()} <= {"lock"}:
        (run / "lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            run.rmdir()
