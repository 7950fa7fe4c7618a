"""Guests as real unprivileged systemd containers, volumes as real ext4 images.

Everything a running guest needs lies below the lab's run folder, everything that
lasts in the image files. The state of a guest is what the kernel says it is: its
monitor's control socket, as in Proxmox itself. So this class keeps nothing in
memory that matters, and a new process picks up where a killed one left off.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pvelab import hostkeys
from pvelab.archives import compressed, decompressed
from pvelab.idmap import HOST_BASE, in_user_namespace
from pvelab.letgo import mounted
from pvelab.lxc_config import (
    HostTraits,
    lxc_config,
    mount_point,
    mount_script,
    start_files,
    umount_script,
    write_script,
)
from pvelab.network import Network
from pvelab.place import Place
from pvelab.runtime import (
    Address,
    Completed,
    GuestInterface,
    GuestSpec,
    Log,
    Mount,
    RuntimeFault,
    Setup,
    Usage,
    failed_hot_mount,
)
from pvelab.template import architecture

GONE = "gone"
"""The folder of the state folder for what is freed and yet to be removed."""
START_DEADLINE = 60.0
COMMAND_DEADLINE = 120.0
ASK_AGAIN = 3.0
"""Seconds after which a guest that still runs is asked again to power off."""
SETTLE_PATIENCE = 1.0
SETTLE_DEADLINE = 120.0
"""A disk with much else to do may take long to write a file system back."""
UNPACK_DEADLINE = 600.0
TAR_FLAGS = ("--one-file-system", "--sparse", "--numeric-owner", "--acls", "--xattrs", "--xattrs-include=user.*")
"""Of PVE::Storage::Plugin's COMMON_TAR_FLAGS, without what needs more than the lab's containers have."""
HOST_KEYS: dict[str, tuple[str, ...]] = {"rsa": ("-b", "2048"), "ecdsa": (), "ed25519": ()}
"""Kinds of SSH host keys, with ssh-keygen's options: the default RSA size takes up to two seconds of processor time."""

EMPTY_MACHINE_ID = """set -eu
[ -L /var/lib/dbus/machine-id ] || rm -f /var/lib/dbus/machine-id
[ ! -e /etc/machine-id ] || [ "$(head -n 1 /etc/machine-id)" = uninitialized ] || echo >/etc/machine-id
"""
"""As sub clear_machine_id of PVE::LXC::Setup::Base does it for a clone that has systemd."""


class LxcRuntime:
    """Implements :class:`pvelab.runtime.Runtime` on this machine. Needs root and the packages of the lab."""

    def __init__(self, place: Place, network: Network | None = None) -> None:
        self.place = place
        self.network = network or Network(place)
        self._cpu: dict[int, tuple[float, float]] = {}
        self._guard = threading.Lock()

    # Volumes

    def format_volume(self, image: Path, size: int, *, root_owner: int, log: Log) -> None:
        temporary = _beside(image)
        try:
            with temporary.open("wb") as handle:
                handle.truncate(size)
            owner = f"root_owner={root_owner}:{root_owner},nodiscard"
            done = _run([*_lazily(), "mkfs.ext4", "-F", "-m", "0", "-E", owner, str(temporary)])
            for line in done.stdout.decode().splitlines():
                if line.startswith(("Creating filesystem", "Filesystem UUID", "Superblock backups", "\t")):
                    log(line)
            temporary.replace(image)
        finally:
            temporary.unlink(missing_ok=True)

    def allocate_raw(self, image: Path, size: int) -> None:
        temporary = _beside(image)
        with temporary.open("wb") as handle:
            handle.truncate(size)
        temporary.replace(image)

    def grow_volume(self, image: Path, size: int, *, mounted: bool, log: Log) -> None:
        os.truncate(image, size)
        loops = _loops_of(image)
        for loop in loops:
            _run(["losetup", "--set-capacity", loop])
        if mounted:
            log("Failed to update the container's filesystem: it is mounted by another container")
            return
        if loops:
            # Online, which the kernel allows to holders of CAP_SYS_RESOURCE; as in Proxmox, a refusal is a warning.
            online = _try(["resize2fs", loops[0]])
            text = (online.stdout + online.stderr).decode(errors="replace") if online else "got timeout"
            for line in text.splitlines():
                log(line)
            if online is None or online.returncode:
                log("Failed to update the container's filesystem: it stays as it is while it is mounted")
            return
        # resize2fs wants a file system that was checked after its last mount.
        check = _run(["e2fsck", "-f", "-y", str(image)], good=(0, 1, 2))
        for line in check.stdout.decode().splitlines():
            log(line)
        done = _run(["resize2fs", str(image)])
        for line in done.stdout.decode().splitlines():
            log(line)

    def own_folder(self, folder: Path, root_owner: int) -> None:
        os.chown(folder, root_owner, root_owner)

    def copy_volume(self, source: Path, target: Path) -> None:
        temporary = _beside(target)
        if source.is_dir():
            try:
                _copy_tree(source, temporary)
                shutil.rmtree(target, ignore_errors=True)
                temporary.rename(target)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            return
        with contextlib.ExitStack() as thaw:
            thaw.callback(temporary.unlink, missing_ok=True)
            # What is mounted is copied as it is at one moment; recover() thaws what a crash in between left frozen.
            for at in [at for loop in _loops_of(source) for at in _mounted_at(loop)][:1]:
                _run(["fsfreeze", "--freeze", at])
                thaw.callback(_try, ["fsfreeze", "--unfreeze", at])
            _run(["cp", "--sparse=always", "--reflink=auto", str(source), str(temporary)], deadline=UNPACK_DEADLINE)
            temporary.replace(target)

    def fill_volume(self, source: Path, target: Path) -> None:
        self.place.make_run_dir()
        image, options = (target, "loop") if source.is_dir() else (source, "loop,ro")
        at = Path(tempfile.mkdtemp(prefix="fill-", dir=self.place.run_dir))
        try:
            _run(["mount", "-t", "ext4", "-o", options, str(image), str(at)])
            _copy_tree(*((source, at) if source.is_dir() else (at, target)))
        finally:
            _try(["umount", str(at)])
            at.rmdir()

    def archive(self, volumes: Sequence[tuple[str, Path]], notes: Mapping[str, bytes], target: Path, log: Log) -> None:
        self.place.make_run_dir()
        base = Path(tempfile.mkdtemp(prefix="archive-", dir=self.place.run_dir))
        told, tree = base / "notes", base / "tree"
        copies: list[Path] = []
        try:
            for folder in (base, told, tree):
                folder.mkdir(mode=0o755, exist_ok=True)
                folder.chmod(0o755)
            for name, text in notes.items():
                (told / name).parent.mkdir(parents=True, exist_ok=True)
                (told / name).write_bytes(text)
            for path, data in volumes:
                at = tree / path.lstrip("/")
                at.mkdir(parents=True, exist_ok=True)
                if data.is_dir():
                    _run(["mount", "--bind", str(data), str(at)])
                else:
                    # An image that is mounted already is not mounted again: it would have two file systems at work.
                    copies.append(_beside(target))
                    self.copy_volume(data, copies[-1])
                    _run(["mount", "-t", "ext4", "-o", "loop", str(copies[-1]), str(at)])
            sources = [f".{path}" for path, _ in volumes]
            command = [
                "tar",
                "cpf",
                "-",
                "--totals",
                *TAR_FLAGS,
                f"--directory={told}",
                *(f"./{name}" for name in notes),
            ]
            command += [f"--directory={tree}", "--no-anchored", "--exclude=lost+found", "--anchored", *sources]
            with compressed(target) as stream:
                done = subprocess.run(
                    in_user_namespace(command),
                    stdout=stream,
                    stderr=subprocess.PIPE,
                    timeout=UNPACK_DEADLINE,
                    check=False,
                )
            said = done.stderr.decode(errors="replace").splitlines()
            if done.returncode:
                raise RuntimeFault(f"command 'tar cpf -' failed: exit code {done.returncode}", said)
            for line in said:
                log(f"INFO: {line}")
        finally:
            for path, _ in reversed(volumes):
                _try(["umount", str(tree / path.lstrip("/"))])
            for copy in copies:
                copy.unlink(missing_ok=True)
            if not [at for at in _mounts() if at.startswith(f"{base}/")]:
                shutil.rmtree(base)

    def restore(self, spec: GuestSpec, archive: Path, log: Log) -> None:
        self._need_unprivileged(spec)
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        self._prepare_folder(spec, guest_dir)
        try:
            self._mount(guest_dir)
            self._bind_all(spec, guest_dir)
            log(f"extracting archive '{archive}'")
            self._extract(archive, guest_dir / "rootfs", log)
            # As restore_configuration_from_etc_vzdump does: the guest does not keep what it was made from.
            self._in_tree(guest_dir, "rm -rf /etc/vzdump\n")
        finally:
            self._release(guest_dir)

    def check_volume(self, data: Path, *, force: bool) -> Completed:
        [loop] = _loops_of(data)[:1] or [_run(["losetup", "--find", "--show", str(data)]).stdout.decode().strip()]
        try:
            # A device that is mounted e2fsck itself refuses.
            done = _try(["fsck", "-a", "-l", *(["-f"] if force else []), loop], deadline=UNPACK_DEADLINE)
        finally:
            if not _mounted_at(loop):
                _try(["losetup", "--detach", loop])
        if done is None:
            raise RuntimeFault(f"command 'fsck -a -l {loop}' failed: got timeout")
        return Completed(done.returncode, done.stdout, done.stderr)

    def remove_volume(self, data: Path, *, in_use: str | None = None) -> None:
        for at in self._held_at(data):
            folder = self._guest_dir_above(at)
            if folder is not None and not self._is_running(folder):
                self._release(folder)
        if in_use is not None and (_loops_of(data) or self._held_at(data)):
            raise RuntimeFault(in_use)
        if data.is_dir():
            # As ZFS does it: gone at once, its room given back afterwards. A root file system has tens of thousands of
            # files, and clients wait a minute for the end of a destroy.
            (self.place.state_dir / GONE).mkdir(exist_ok=True)
            gone = data.rename(self.place.state_dir / GONE / uuid.uuid4().hex)
            self._sweep(gone)
        else:
            data.unlink(missing_ok=True)

    @staticmethod
    def _sweep(gone: Path) -> None:
        threading.Thread(target=shutil.rmtree, args=(gone,), kwargs={"ignore_errors": True}, daemon=True).start()

    def _held_at(self, data: Path) -> list[str]:
        """Where a volume is mounted: an image by its loop device, a folder by its guests' bind mounts."""
        if not data.is_dir():
            return [at for loop in _loops_of(data) for at in _mounted_at(loop)]
        return [at for at in _mounts() if self._guest_dir_above(at) is not None and _same(data, at)]

    # Creation

    def unpack(self, spec: GuestSpec, template: Path, setup: Setup, log: Log) -> None:
        self._need_unprivileged(spec)
        root = spec.mounts[0]
        self.place.make_run_dir()
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        self._prepare_folder(spec, guest_dir)
        prepared = template.resolve().parent / "rootfs.img"
        with ThreadPoolExecutor(1) as beside:
            # The keys take processor time, the copy disk time.
            making = beside.submit(_make_host_keys, self.place.state_dir, hostkeys.comment(spec.hostname))
            try:
                log(f"extracting archive '{template}'")
                if len(spec.mounts) == 1 and root.image is not None and _fits(prepared, root.image):
                    self._fill_from_image(prepared, root.image)
                    self._mount(guest_dir)
                else:
                    self._mount(guest_dir)
                    self._bind_all(spec, guest_dir)
                    self._extract(template, guest_dir / "rootfs", log)
                log(f"Detected container architecture: {architecture()}")
                keys = making.result()
                for kind in HOST_KEYS:
                    hostkeys.tell(log, kind, hostkeys.fingerprint(keys[f"ssh_host_{kind}_key.pub"]), spec.hostname)
                files, modes = _setup_files(setup, keys)
                self._in_tree(guest_dir, write_script(files, modes) + _setup_commands(setup))
                self._write_start_files(spec, guest_dir)
            finally:
                self._release(guest_dir)

    def _fill_from_image(self, prepared: Path, rootfs: Path) -> None:
        """Put the prepared tree in place of the empty file system, keeping the volume's size."""
        size = rootfs.stat().st_size
        temporary = _beside(rootfs)
        try:
            _run(["cp", "--sparse=always", "--reflink=auto", str(prepared), str(temporary)], deadline=UNPACK_DEADLINE)
            os.truncate(temporary, size)
            _run([*_lazily(), "resize2fs", str(temporary)])
            _run([*_lazily(), "tune2fs", "-U", "random", str(temporary)])
            # Not renamed over the old file: ext4 takes that for a document being saved and writes all of it at once.
            rootfs.unlink()
            temporary.rename(rootfs)
        finally:
            temporary.unlink(missing_ok=True)

    def _bind_all(self, spec: GuestSpec, guest_dir: Path) -> None:
        """Mount the guest's volumes into its tree, as Proxmox does while it unpacks."""
        root = guest_dir / "rootfs"
        for mount in spec.mounts[1:]:
            source = mount_point(guest_dir, mount)
            target = _inside(root, mount.path)
            self._in_tree(guest_dir, f"mkdir -p {_quoted(mount.path)}\n", shell_from_host=True)
            _run(["mount", "--bind", str(source), str(target)])

    def _extract(self, template: Path, root: Path, log: Log) -> None:
        command = in_user_namespace(
            [
                "tar",
                "-xpf",
                "-",
                "--totals",
                *TAR_FLAGS,
                "--skip-old-files",
                "--anchored",
                "--exclude=./dev/*",
                "-C",
                str(root),
            ]
        )
        with decompressed(template) as source:
            done = subprocess.run(command, stdin=source, capture_output=True, timeout=UNPACK_DEADLINE, check=False)
        text = done.stderr.decode(errors="replace").strip()
        if done.returncode:
            raise RuntimeFault(f"command 'tar xpf -' failed: exit code {done.returncode}", [text])
        for line in text.splitlines():
            log(line)

    def new_identity(self, spec: GuestSpec, log: Log) -> None:  # noqa: ARG002 - the protocol's; Proxmox says nothing
        self._need_unprivileged(spec)
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        self._prepare_folder(spec, guest_dir)
        try:
            self._mount(guest_dir)
            self._in_tree(guest_dir, EMPTY_MACHINE_ID)
        finally:
            self._release(guest_dir)

    # Power

    def start(self, spec: GuestSpec, log: Log) -> None:  # noqa: ARG002 - the protocol's; success is silent here
        self._need_unprivileged(spec)
        failed = f"startup for container '{spec.vmid}' failed"
        if not Path(f"/sys/class/net/{self.place.bridge}").exists():
            raise RuntimeFault("bridge 'vmbr0' does not exist")
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        self._release(guest_dir)
        self._prepare_folder(spec, guest_dir)
        started = False
        try:
            self._mount(guest_dir)
            self._write_start_files(spec, guest_dir)
            started = self._lxc_start(spec, guest_dir)
        except RuntimeFault as fault:
            lines = [*fault.log, str(fault)]
            raise RuntimeFault(failed, _lxc_words(spec.vmid, lines)) from None
        finally:
            if not started:
                self._lxc(spec, "lxc-stop", "-k")
                self._release(guest_dir)
        if not started:
            raise RuntimeFault(failed, _tail(guest_dir / "lxc.log"))

    def _lxc_start(self, spec: GuestSpec, guest_dir: Path) -> bool:
        log_file = guest_dir / "lxc.log"
        log_file.unlink(missing_ok=True)
        command = self._command(spec, "lxc-start", "-d", "-o", str(log_file), "-l", "WARN")
        # The monitor outlives this process: it must not hold its pipes, nor die with its terminal.
        with (guest_dir / "console.log").open("wb") as output:
            process = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=START_DEADLINE,
                start_new_session=True, check=False, cwd="/",
            )  # fmt: skip
        return process.returncode == 0

    def shutdown(self, spec: GuestSpec, timeout: float) -> bool:
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        if not self._is_running(guest_dir):
            self._release(guest_dir)
            return True
        deadline = time.monotonic() + timeout
        while True:
            # Asked again and again: an init that has only just begun loses the signal.
            left = max(1, round(min(ASK_AGAIN, deadline - time.monotonic())))
            done = self._lxc(spec, "lxc-stop", "--nokill", "--timeout", str(left), deadline=left + 30)
            if done.returncode == 0 or not self._is_running(guest_dir):
                break
            if time.monotonic() >= deadline:
                return False
        # The control socket goes last, after the post-stop hook.
        if not self._wait_gone(guest_dir, 10.0):
            return False
        self._release(guest_dir)
        self._settle(spec)
        return True

    def kill(self, spec: GuestSpec) -> None:
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        if self._is_running(guest_dir):
            self._lxc(spec, "lxc-stop", "-k", deadline=30)
            if not self._wait_gone(guest_dir, 10.0):
                raise RuntimeFault(f"container {spec.vmid} did not end when it was killed")
        self._release(guest_dir)
        self._settle(spec)

    def running(self, node: str) -> frozenset[int]:
        prefix = f"@{self.place.lxc_path(node)}/{self.place.identity}-"
        found = re.findall(re.escape(prefix) + r"(\d+)/command$", _unix_sockets(), re.MULTILINE)
        return frozenset(int(vmid) for vmid in found)

    def recover(self, specs: Sequence[GuestSpec]) -> None:  # noqa: ARG002 - leftovers are found on the machine
        self.place.make_run_dir()
        for left in (self.place.state_dir / GONE).glob("*"):
            self._sweep(left)
        for folder in sorted((self.place.run_dir / "guests").glob("*/*")):
            _thaw(folder)
            if folder.is_dir() and not self._is_running(folder):
                self._release(folder)
                remove_groups(folder.name)
            elif folder.is_dir():
                self._plug_in(folder)

    def _plug_in(self, guest_dir: Path) -> None:
        """Put a running guest's cables into the bridge, which may be a new one."""
        done = _try(["lxc-info", "-n", guest_dir.name, "-P", str(guest_dir.parent)])
        for link in re.findall(r"^Link:\s+(\S+)$", done.stdout.decode() if done else "", re.MULTILINE):
            _try(["ip", "link", "set", link, "master", self.place.bridge, "up"])

    def end_all(self, timeout: float = 20.0) -> None:
        """Stop every guest of this lab, known to the API or not, and release all mounts."""
        folders = [f for f in sorted((self.place.run_dir / "guests").glob("*/*")) if f.is_dir()]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda folder: self._end(folder, timeout), folders))
        # What LXC itself leaves: a killed monitor's control groups, and the folders of its locks.
        remove_groups(f"{self.place.identity}-")
        shutil.rmtree(f"/run/lxc/lock{self.place.run_dir}", ignore_errors=True)

    def _end(self, guest_dir: Path, timeout: float) -> None:
        _thaw(guest_dir)
        name = ["-n", guest_dir.name, "-P", str(guest_dir.parent)]
        if self._is_running(guest_dir):
            _try(["lxc-stop", *name, "--timeout", str(round(timeout))], deadline=timeout + 15)
        if not self._wait_gone(guest_dir, 5.0):
            _try(["lxc-stop", *name, "-k"], deadline=30)
            self._wait_gone(guest_dir, 10.0)
        self._release(guest_dir)
        shutil.rmtree(guest_dir, ignore_errors=True)

    # Looking at guests

    def usage(self, spec: GuestSpec) -> Usage | None:
        pid = self._init_pid(spec)
        if pid is None:
            return None
        try:
            started = _start_time(pid)
            groups = _cgroups(Path(f"/proc/{pid}/cgroup").read_text())
            netin, netout = _traffic(Path(f"/proc/{pid}/net/dev").read_text())
        except OSError:
            return None
        disk = 0
        with contextlib.suppress(OSError):
            found = os.statvfs(self.place.guest_dir(spec.node, spec.vmid) / "rootfs")
            disk = (found.f_blocks - found.f_bfree) * found.f_frsize
        mem, swap = _memory(groups)
        return Usage(
            pid=pid,
            uptime=max(0, int(time.clock_gettime(time.CLOCK_BOOTTIME) - started)),
            cpu=self._cpu_share(spec.vmid, _cpu_seconds(groups)),
            mem=mem,
            swap=swap,
            disk=disk,
            netin=netin,
            netout=netout,
        )

    def interfaces(self, spec: GuestSpec) -> tuple[GuestInterface, ...]:
        pid = self._init_pid(spec)
        if pid is None:
            return ()
        done = _try(["nsenter", "-t", str(pid), "-n", "--", "ip", "-j", "address"])
        if done is None or done.returncode:
            return ()
        return parse_addresses(done.stdout.decode())

    def execute(self, spec: GuestSpec, argv: Sequence[str], stdin: bytes = b"") -> Completed:
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        command = self._command(spec, "lxc-attach", "--clear-env", "-v", path, "-v", "HOME=/root", "--", *argv)
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=UNPACK_DEADLINE, check=False, cwd="/")
        return Completed(done.returncode, done.stdout, done.stderr)

    def hot_mount(self, spec: GuestSpec, mount: Mount, log: Log) -> None:
        pid = self._init_pid(spec)
        if pid is None:
            raise RuntimeFault(f"container {spec.vmid} does not run")
        guest_dir = self.place.guest_dir(spec.node, spec.vmid)
        # The scripts of the next start have to know the mount too.
        self._prepare_folder(spec, guest_dir)
        try:
            self._mount(guest_dir)
        except RuntimeFault:
            raise failed_hot_mount(mount) from None
        source = mount_point(guest_dir, mount)
        mode = "ro" if mount.read_only else "rw"
        done = _program("pvelab.hotmount", str(pid), str(source), mount.path, mode, str(HOST_BASE))
        if done.returncode:
            text = done.stderr.decode(errors="replace").strip()
            _try(["umount", str(source)])
            raise RuntimeFault(text.splitlines()[-1] if text else "the mount was refused")
        log(f"mounted {mount.key} at {mount.path}")

    # Helpers

    def _need_unprivileged(self, spec: GuestSpec) -> None:
        if not spec.unprivileged:
            raise RuntimeFault("the lab runs unprivileged containers only (unprivileged=1)")

    def _prepare_folder(self, spec: GuestSpec, guest_dir: Path) -> None:
        self.place.make_run_dir()
        for folder in (guest_dir.parent, guest_dir):
            folder.mkdir(mode=0o711, exist_ok=True)
            folder.chmod(0o711)
        traits = host_traits(self.network.mtu)
        _write(guest_dir / "config", lxc_config(spec, guest_dir, self.place.bridge, traits))
        _write(guest_dir / "mount.sh", mount_script(spec, guest_dir))
        _write(guest_dir / "umount.sh", umount_script(guest_dir))

    def _mount(self, guest_dir: Path) -> None:
        done = _try(["sh", str(guest_dir / "mount.sh")])
        if done is None or done.returncode:
            text = done.stderr.decode(errors="replace").strip() if done else "mounting took too long"
            raise RuntimeFault(f"Script exited with status {done.returncode if done else 110}", text.splitlines())

    def _release(self, guest_dir: Path) -> None:
        """Unmount all below a stopped guest's folder; what then still is mounted raises RuntimeFault."""
        _try(["sh", "-c", umount_script(guest_dir)])
        if left := [at for at in _mounts() if at.startswith(f"{guest_dir}/")]:
            raise RuntimeFault(f"can't unmount {left[0]}")

    def _settle(self, spec: GuestSpec) -> None:
        """Wait until the kernel has let go of the guest's images.

        The guest's own mount namespace ends a moment after its processes, and only then is a file system that was
        unmounted here written back. Mounted again before that, one image would have two file systems at work on it.
        """
        images = [mount.image for mount in spec.mounts if mount.image is not None]
        began = time.monotonic()
        pause = 0.02
        while held := [loop for image in images for loop in _loops_of(image) if not _mounted_at(loop)]:
            waited = time.monotonic() - began
            if waited > SETTLE_DEADLINE:
                by = f" by {', '.join(holders)}" if (holders := _holders(held[0])) else ""
                raise RuntimeFault(f"{held[0]} is still in use{by} {SETTLE_DEADLINE:.0f} s after CT {spec.vmid} ended")
            if waited > SETTLE_PATIENCE:
                pause = 0.5
                for loop in held:
                    _unmount_copies(loop)
            time.sleep(pause)

    def _in_tree(self, guest_dir: Path, script: str, *, shell_from_host: bool = False) -> None:
        """Run a shell script in the guest's tree as the guest's root: links it planted lead nowhere else."""
        root = str(guest_dir / "rootfs")
        inner = ["chroot", root, "/bin/sh", "-s"]
        if shell_from_host:
            # The tree is still empty; it holds nothing yet that could mislead.
            inner, script = (
                ["sh", "-s"],
                script.replace("mkdir -p /", f"mkdir -p {root}/").replace("mkdir -p '/", f"mkdir -p '{root}/"),
            )
        done = subprocess.run(
            in_user_namespace(inner), input=script, text=True, capture_output=True, timeout=COMMAND_DEADLINE,
            check=False, cwd="/", env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        if done.returncode:
            # The script holds secrets; what failed is told by its error output alone.
            raise RuntimeFault(
                f"setting up the container failed with exit code {done.returncode}", [done.stderr[-500:]]
            )

    def _write_start_files(self, spec: GuestSpec, guest_dir: Path) -> None:
        self._in_tree(guest_dir, write_script(start_files(spec, str(self.network.plan.gateway))))

    def _command(self, spec: GuestSpec, tool: str, *arguments: str) -> list[str]:
        return [tool, "-n", self.place.container(spec.vmid), "-P", str(self.place.lxc_path(spec.node)), *arguments]

    def _lxc(
        self, spec: GuestSpec, tool: str, *arguments: str, deadline: float = COMMAND_DEADLINE
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._command(spec, tool, *arguments), capture_output=True, timeout=deadline, check=False, cwd="/"
        )

    def _init_pid(self, spec: GuestSpec) -> int | None:
        if not self._is_running(self.place.guest_dir(spec.node, spec.vmid)):
            return None
        text = self._lxc(spec, "lxc-info", "-p", "-H").stdout.decode().strip()
        return int(text) if text.isdigit() else None

    def _is_running(self, guest_dir: Path) -> bool:
        return f"@{guest_dir}/command\n" in _unix_sockets()

    def _wait_gone(self, guest_dir: Path, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._is_running(guest_dir):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _guest_dir_above(self, at: str) -> Path | None:
        base = self.place.run_dir / "guests"
        parts = Path(at).parts[len(base.parts) :] if at.startswith(f"{base}/") else ()
        return base / parts[0] / parts[1] if len(parts) >= 3 else None

    def _cpu_share(self, vmid: int, used: float) -> float:
        now = time.monotonic()
        with self._guard:
            before = self._cpu.get(vmid)
            self._cpu[vmid] = (now, used)
        if before is None or now <= before[0] or used < before[1]:
            return 0.0
        return (used - before[1]) / (now - before[0]) / (os.cpu_count() or 1)


def remove_groups(container: str, base: Path = Path("/sys/fs/cgroup")) -> None:
    """Remove the empty control groups of containers whose name begins with ``container``."""
    mark = re.compile(rf"^lxc\.(payload|monitor)\.{re.escape(container)}")
    for folder, below, _ in os.walk(base):
        for name in [name for name in below if mark.match(name)]:
            below.remove(name)
            for group, _, _ in os.walk(Path(folder) / name, topdown=False):
                # One that still holds processes is refused by the kernel.
                with contextlib.suppress(OSError):
                    Path(group).rmdir()


def host_traits(mtu: int) -> HostTraits:
    """What this machine is like."""
    enabled = Path("/sys/module/apparmor/parameters/enabled")
    memory = Path("/sys/fs/cgroup/memory")
    return HostTraits(
        unified_cgroups=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        apparmor=enabled.exists() and enabled.read_text().strip() == "Y",
        cpus=os.cpu_count() or 1,
        mtu=mtu,
        swap_accounting=(memory / "memory.memsw.limit_in_bytes").exists(),
        architecture=architecture(),
    )


def parse_addresses(text: str) -> tuple[GuestInterface, ...]:
    """The interfaces in the output of ``ip -j address``."""
    found = []
    for link in json.loads(text or "[]"):
        addresses = tuple(
            Address(entry["local"], int(entry["prefixlen"]), entry["family"])
            for entry in link.get("addr_info", ())
            if entry.get("family") in {"inet", "inet6"}
        )
        found.append(GuestInterface(link["ifname"], link.get("address", "00:00:00:00:00:00"), addresses))
    return tuple(found)


def _setup_files(setup: Setup, keys: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    files = {"/etc/machine-id": uuid.uuid4().hex + "\n"}
    modes = {"/etc/machine-id": "444"}
    for name, text in keys.items():
        files[f"/etc/ssh/{name}"] = text
        modes[f"/etc/ssh/{name}"] = "644" if name.endswith(".pub") else "600"
    if setup.ssh_public_keys:
        files["/root/.ssh/authorized_keys"] = "\n".join(setup.ssh_public_keys) + "\n"
        modes["/root/.ssh/authorized_keys"] = "600"
    return files, modes


def _setup_commands(setup: Setup) -> str:
    lines = ["[ ! -d /root/.ssh ] || chmod 700 /root/.ssh"]
    if setup.timezone:
        zone = setup.timezone if setup.timezone != "host" else _host_timezone()
        where = _quoted(f"/usr/share/zoneinfo/{zone}")
        lines.append(f"[ ! -e {where} ] || {{ ln -sfn {where} /etc/localtime; echo {_quoted(zone)} > /etc/timezone; }}")
    if setup.password:
        done = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=setup.password + "\n", text=True, capture_output=True,
            timeout=COMMAND_DEADLINE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeFault("the root password could not be hashed: openssl failed")
        lines.append(f"printf 'root:%s\\n' {_quoted(done.stdout.strip())} | chpasswd -e")
    return "\n".join(lines) + "\n"


def _host_timezone() -> str:
    zone = Path("/etc/timezone")
    return zone.read_text().strip() if zone.exists() else "Etc/UTC"


def _make_host_keys(beside: Path, comment: str) -> dict[str, str]:
    """A fresh set of SSH host keys, by file name; made in the lab's own folder: a kill leaves none elsewhere."""
    with tempfile.TemporaryDirectory(prefix=".hostkeys-", dir=beside) as folder:
        processes = [
            subprocess.Popen(
                [
                    "ssh-keygen",
                    "-q",
                    "-t",
                    kind,
                    *bits,
                    "-N",
                    "",
                    "-C",
                    comment,
                    "-f",
                    f"{folder}/ssh_host_{kind}_key",
                ],
                stdin=subprocess.DEVNULL,
            )
            for kind, bits in HOST_KEYS.items()
        ]
        codes = [process.wait(COMMAND_DEADLINE) for process in processes]
        if any(codes):
            raise RuntimeFault("ssh-keygen failed; is openssh-client installed?")
        return {path.name: path.read_text() for path in sorted(Path(folder).iterdir())}


def _copy_tree(source: Path, target: Path) -> None:
    """What is in a folder, with owners, times, links and attributes, into another."""
    target.mkdir(exist_ok=True)
    _run(["cp", "-a", "--reflink=auto", "--sparse=auto", f"{source}/.", str(target)], deadline=UNPACK_DEADLINE)


def _same(folder: Path, at: str) -> bool:
    with contextlib.suppress(OSError):
        return folder.samefile(at)
    return False


def _fits(prepared: Path, rootfs: Path) -> bool:
    return prepared.exists() and rootfs.stat().st_size >= prepared.stat().st_size


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _lxc_words(vmid: int, lines: Sequence[str]) -> list[str]:
    """A failed pre-start step in the words of LXC's own log (facts proxmox 7, failed start B)."""
    return [
        *(line for line in lines if line),
        f'Failed to run lxc.hook.pre-start for container "{vmid}"',
        f'Failed to initialize container "{vmid}"',
    ]


def _lazily() -> list[str]:
    """In front of tools that end with an fsync of a fresh image: that can be left to the kernel here."""
    return ["eatmydata"] if shutil.which("eatmydata") else []


def _beside(image: Path) -> Path:
    """A temporary name in the same folder; leftovers of a kill are recognised by the leading dot."""
    image.parent.mkdir(parents=True, exist_ok=True)
    return image.with_name(f".{image.name}.{uuid.uuid4().hex[:8]}")


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text)
    temporary.replace(path)


def _run(
    command: Sequence[str], *, good: Sequence[int] = (0,), deadline: float = COMMAND_DEADLINE
) -> subprocess.CompletedProcess[bytes]:
    done = _try(command, deadline=deadline)
    if done is None:
        raise RuntimeFault(f"command '{' '.join(command)}' failed: got timeout")
    if done.returncode not in good:
        text = done.stderr.decode(errors="replace").strip()
        raise RuntimeFault(f"command '{' '.join(command)}' failed: exit code {done.returncode}", text.splitlines())
    return done


def _try(command: Sequence[str], *, deadline: float = COMMAND_DEADLINE) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(command, capture_output=True, timeout=deadline, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return None


def _unix_sockets() -> str:
    return Path("/proc/net/unix").read_text()


def _mounts() -> list[str]:
    return [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def _thaw(guest_dir: Path) -> None:
    """Let writes to the guest's volumes go on; harmless where nothing is frozen."""
    for at in _mounts():
        if at.startswith(f"{guest_dir}/"):
            _try(["fsfreeze", "--unfreeze", at])


def _mounted_at(device: str) -> list[str]:
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return [fields[1] for fields in lines if fields[0] == device]


def _device_number(device: str) -> str:
    """``7:3`` for ``/dev/loop3``."""
    return Path(f"/sys/block/{Path(device).name}/dev").read_text().strip()


def _unmount_copies(device: str) -> None:
    """Unmount a device that nobody has mounted here where it was copied to: into other processes' mount namespaces.

    Whoever makes a namespace (``unshare``, a sandbox, another lab's build) gets a copy of every mount of that moment. A
    guest's are passed over, it has a user namespace of its own: its copies are what it runs on. The processes go on.
    """
    with contextlib.suppress(OSError):
        number = _device_number(device)
        here, users = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("mnt", "user"))
        seen = {here}
        for process in Path("/proc").glob("[0-9]*"):
            # Each may end meanwhile.
            with contextlib.suppress(OSError):
                space = (process / "ns/mnt").readlink()
                if space not in seen and (process / "ns/user").readlink() == users:
                    seen.add(space)
                    _program("pvelab.letgo", process.name, number)


def _holders(device: str) -> list[str]:
    """Processes that have something of a device open, stand in it, or have it mounted: ``bash (pid 123)``."""
    with contextlib.suppress(OSError, ValueError):
        number = _device_number(device)
        return [
            f"{(process / 'comm').read_text().strip()} (pid {process.name})"
            for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda found: int(found.name))
            if _holds(process, number)
        ]
    return []


def _holds(process: Path, number: str) -> bool:
    with contextlib.suppress(OSError):
        # A process in a user namespace of its own, which has a copy of the mount that nobody can take from it.
        if mounted((process / "mountinfo").read_text(), number):
            return True
    major, minor = map(int, number.split(":"))
    links = [process / "cwd", process / "root"]
    with contextlib.suppress(OSError):
        links += (process / "fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            if link.stat().st_dev == os.makedev(major, minor):
                return True
    return False


def _program(module: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run one of our own programs that want a process with one thread."""
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parent.parent), "PATH": os.environ.get("PATH", "")}
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(command, capture_output=True, timeout=COMMAND_DEADLINE, check=False, env=environment)


def _loops_of(image: Path) -> list[str]:
    """The loop devices that hold ``image`` open."""
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if entry.read_text().rstrip("\n") == str(image.resolve()):
                found.append(f"/dev/{entry.parent.parent.name}")
    return found


def _tail(log_file: Path, lines: int = 8) -> list[str]:
    if not log_file.exists():
        return []
    text = log_file.read_text(errors="replace").splitlines()[-lines:]
    return [re.sub(r"^lxc-start \S+ \S+ (ERROR|WARN)\s+", "", line) for line in text]


def _start_time(pid: int) -> float:
    """When a process began, in seconds of the boot clock."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _cgroups(text: str) -> dict[str, Path]:
    """The folder of each controller (v1), and of the unified tree under the name ""."""
    base = Path("/sys/fs/cgroup")
    found: dict[str, Path] = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        # Init sits in a group of its own below the container's.
        path = path.removesuffix("/init.scope").lstrip("/")
        for name in names.split(","):
            if name == "" and (base / "cgroup.controllers").exists():
                found[""] = base / path
            elif name:
                found[name] = base / name.removeprefix("name=") / path
    return found


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _memory(groups: dict[str, Path]) -> tuple[int, int]:
    if "memory" in groups:
        folder = groups["memory"]
        used = _number(folder / "memory.usage_in_bytes")
        cache = 0
        with contextlib.suppress(OSError):
            found = re.search(r"^total_inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            cache = int(found.group(1)) if found else 0
        with_swap = _number(folder / "memory.memsw.usage_in_bytes")
        return max(0, used - cache), max(0, with_swap - used)
    folder = groups.get("", Path("/nonexistent"))
    return _number(folder / "memory.current"), _number(folder / "memory.swap.current")


def _cpu_seconds(groups: dict[str, Path]) -> float:
    if "cpuacct" in groups:
        return _number(groups["cpuacct"] / "cpuacct.usage") / 1e9
    try:
        found = re.search(r"^usage_usec (\d+)$", (groups[""] / "cpu.stat").read_text(), re.MULTILINE)
    except (OSError, KeyError):
        return 0.0
    return int(found.group(1)) / 1e6 if found else 0.0


def _traffic(text: str) -> tuple[int, int]:
    """Bytes in and out over all interfaces but lo, from a process's ``net/dev``."""
    received = sent = 0
    for line in text.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            fields = numbers.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent
