"""Real containers: what a guest sees, what survives it, and that nothing is left behind.

Needs root and the lab's packages. All guests here live in a lab of their own, which the last test finds gone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from container_bench import DEADLINE, GIB, NODE, PORTS, Bench, bench_in, ip_of, silent, until

from pvelab import lxc
from pvelab.lxc import LxcRuntime
from pvelab.network import NEEDED, SETTINGS
from pvelab.place import Place
from pvelab.runtime import Mount, RuntimeFault, Setup

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="real containers need root")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    memory = Path("/dev/shm")  # noqa: S108 - gigabytes of images that live for seconds: no work for a disk
    if memory.is_dir() and shutil.disk_usage(memory).free > 8 * GIB:
        with (
            tempfile.TemporaryDirectory(dir=memory, prefix="e2e-") as folder,
            bench_in(Path(folder) / "a lab") as bench,
        ):
            yield bench
    else:
        with bench_in(tmp_path_factory.mktemp("e2e") / "a lab") as bench:
            yield bench


@pytest.fixture
def bench(lab: Bench) -> Iterator[Bench]:
    lab.made.clear()
    yield lab
    for spec in lab.made:
        lab.remove(spec)


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {folder}" in line]


def loops_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            text = entry.read_text().strip()
        except OSError:
            continue
        if text.startswith(str(folder)):
            found.append(text)
    return found


def may_resize_online() -> bool:
    """Whether this process holds CAP_SYS_RESOURCE (24), without which the kernel does not grow what is mounted."""
    status = Path("/proc/self/status").read_text()
    held = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(held, 16) >> 24 & 1)


def digest(image: Path) -> str:
    return hashlib.sha256(image.read_bytes()).hexdigest()


def test_a_guest_boots_and_is_reached_by_ssh(bench: Bench) -> None:
    spec = bench.create(101)
    bench.runtime.start(spec, silent)
    options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    command = [
        "ssh",
        "-q",
        *options,
        "-i",
        str(bench.key),
        f"root@{ip_of(spec)}",
        "hostname; id -u; cat /proc/self/uid_map",
    ]
    result: list[str] = []

    def reached() -> bool:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        result[:] = done.stdout.split()
        return done.returncode == 0

    until("ssh as root", reached)
    assert result == ["guest101", "0", "0", "100000", "65536"]
    bench.booted(spec)
    assert bench.runtime.running(NODE) == {101}
    used = bench.runtime.usage(spec)
    assert used is not None
    assert used.pid > 1
    assert used.uptime < 60
    assert 0 < used.mem < 512 << 20
    names = {i.name: [a.address for a in i.addresses] for i in bench.runtime.interfaces(spec)}
    assert ip_of(spec) in names["eth0"]
    assert names["lo"][0] == "127.0.0.1"


def test_guests_are_told_apart_by_host_keys_and_machine_id(bench: Bench) -> None:
    seen = []
    for vmid in (102, 103):
        spec = bench.create(vmid)
        bench.runtime.start(spec, silent)
        seen.append(bench.sh(spec, "cat /etc/machine-id /etc/ssh/ssh_host_*_key.pub").splitlines())
    first, second = ({line.split()[1] if " " in line else line for line in lines} for lines in seen)
    # machine-id, ecdsa, ed25519, rsa
    assert len(first) == len(second) == 4
    assert not first & second


def test_dhcp_gives_an_address_and_names_resolve(bench: Bench) -> None:
    spec = bench.create(104, ip="dhcp")
    bench.runtime.start(spec, silent)
    low, high = bench.plan.dhcp_range
    got: list[str] = []

    def addressed() -> bool:
        eth0 = [i for i in bench.runtime.interfaces(spec) if i.name == "eth0"]
        got[:] = [a.address for i in eth0 for a in i.addresses if a.family == "inet"]
        return bool(got)

    until("an address", addressed)
    assert int(low) <= int.from_bytes(socket.inet_aton(got[0])) <= int(high)
    assert bench.sh(spec, "cat /etc/resolv.conf").split() == ["nameserver", str(bench.plan.gateway)]


def test_data_on_a_volume_outlives_its_guest(bench: Bench) -> None:
    volume = Mount("mp0", "/home/user", bench.volume("vm-999-disk-1"))
    spec = bench.create(105, volume)
    bench.runtime.start(spec, silent)
    bench.sh(spec, "install -d -o 10000 -g 10000 /home/user/.state; echo kept > /home/user/.state/note")
    # Ids are shifted as on Proxmox: 10000 in the guest is 110000 on the node.
    on_host = bench.place.guest_dir(NODE, 105) / "mp0" / ".state"
    assert on_host.stat().st_uid == 110000
    assert bench.runtime.shutdown(spec, 20)
    before = digest(bench.place.state_dir / "vm-999-disk-1.raw")
    bench.remove(spec)
    assert digest(bench.place.state_dir / "vm-999-disk-1.raw") == before
    again = bench.create(105, volume)
    bench.runtime.start(again, silent)
    assert bench.sh(again, "cat /home/user/.state/note; stat -c %u /home/user/.state") == "kept\n10000"


def test_a_copy_beside_a_writing_guest_is_whole(bench: Bench) -> None:
    """What a snapshot or a backup takes of a running guest: a clean file system, with all that was synced before."""
    image = bench.volume("vm-999-disk-1")
    spec = bench.create(105, Mount("mp0", "/data", image))
    bench.runtime.start(spec, silent)
    bench.sh(spec, "echo before > /data/note; sync; (while :; do date >> /data/log; done) >/dev/null 2>&1 &")
    copy = bench.place.state_dir / "copy.raw"
    bench.runtime.copy_volume(image, copy)
    # The guest writes on.
    size = int(bench.sh(spec, "stat -c %s /data/log"))
    until("it writes on", lambda: int(bench.sh(spec, "stat -c %s /data/log")) > size)
    bench.runtime.kill(spec)
    # A journal that is replayed is what a mount would do; beyond that there is nothing to repair.
    assert subprocess.run(["e2fsck", "-p", str(copy)], capture_output=True, check=False).returncode in (0, 1)
    assert subprocess.run(["e2fsck", "-fn", str(copy)], capture_output=True, check=False).returncode == 0
    note = subprocess.run(["debugfs", "-R", "cat /note", str(copy)], capture_output=True, text=True, check=True)
    assert note.stdout == "before\n"


def test_what_a_guest_mounts_can_not_be_removed(bench: Bench) -> None:
    image = bench.volume("vm-999-disk-2")
    spec = bench.create(106, Mount("mp0", "/data", image))
    bench.runtime.start(spec, silent)
    for used in (image, spec.mounts[0].image):
        assert used is not None
        with pytest.raises(RuntimeFault, match="in the storage's words"):
            bench.runtime.remove_volume(used, in_use="in the storage's words")
        assert used.exists()
    bench.runtime.kill(spec)
    bench.runtime.remove_volume(image)
    assert not image.exists()


def test_a_folder_is_a_volume_as_an_image_is(bench: Bench) -> None:
    """A subvol: bound with the options of a mount, refused while it is mounted, and moved to an image and back."""
    tree = bench.place.state_dir.resolve() / "subvol-999-disk-1" / "tree"
    tree.mkdir(parents=True)
    bench.runtime.own_folder(tree, 100000)
    shown = "/rpool/data/subvol-999-disk-1"
    mount = Mount("mp0", "/data", host_folder=tree, host_path=shown, options=("nodev", "nosuid"))
    spec = bench.create(125, mount)
    bench.runtime.start(spec, silent)
    bench.sh(spec, "echo hello >/data/word; chown 10000:10000 /data/word; ln -s /etc/shadow /data/link")
    assert bench.sh(spec, "stat -c %u /data") == "0"
    options = bench.sh(spec, "findmnt --noheadings --output OPTIONS --mountpoint /data").split(",")
    assert {"nodev", "nosuid"} <= set(options)
    with pytest.raises(RuntimeFault, match="dataset is busy"):
        bench.runtime.remove_volume(tree, in_use="dataset is busy")
    assert (tree / "word").exists()
    bench.runtime.kill(spec)

    image, again = bench.volume("vm-999-disk-12"), tree.parent / "again"
    again.mkdir()
    bench.runtime.fill_volume(tree, image)
    bench.runtime.fill_volume(image, again)
    assert (again / "word").read_text() == "hello\n"
    assert ((again / "word").stat().st_uid, (again / "link").readlink()) == (110000, Path("/etc/shadow"))
    bench.runtime.remove_volume(tree, in_use="dataset is busy")
    assert not tree.exists()
    assert mounts_below(bench.place.run_dir / "fill-") == []


WAIT_IN = "import os, time; os.chroot({root!r}); os.chdir('/'); print('made', flush=True); time.sleep(600)"


@pytest.mark.parametrize("root", ["/", "/usr/share"])
def test_a_copy_of_a_mount_in_somebodys_namespace_is_let_go_of(bench: Bench, root: str) -> None:
    image = bench.volume("vm-999-disk-8")
    spec = bench.create(117, Mount("mp0", "/data", image))
    bench.runtime.start(spec, silent)
    holder = ["unshare", "--mount", sys.executable, "-c", WAIT_IN.format(root=root)]
    with subprocess.Popen(holder, stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == b"made\n"
            # From another root, its own list of mounts does not tell.
            shown = str(bench.place.guest_dir(NODE, 117)) in Path(f"/proc/{one.pid}/mountinfo").read_text()
            assert shown == (root == "/")
            bench.runtime.kill(spec)
            bench.runtime.remove_volume(image)
            bench.remove(spec)
            # It was not asked, and goes on.
            assert one.poll() is None
        finally:
            one.kill()
    assert not image.exists()


@pytest.mark.parametrize(
    ("unshare", "command"),
    [
        # What is detached and open can't be taken from a process.
        ((), 'cd "$0" && echo made && exec sleep 600'),
        # Nor can a copy in a mount namespace that belongs to a user namespace of its own: the kernel locks it.
        (("--user", "--map-root-user"), "echo made && exec sleep 600"),
    ],
    ids=["open", "sandbox"],
)
def test_whoever_keeps_a_volume_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, unshare: tuple[str, ...], command: str
) -> None:
    """And is not ended."""
    monkeypatch.setattr(lxc, "SETTLE_DEADLINE", 3.0)
    image = bench.volume("vm-999-disk-9")
    spec = bench.create(118, Mount("mp0", "/data", image))
    bench.runtime.start(spec, silent)
    inside = bench.place.guest_dir(NODE, 118) / "mp0"
    with subprocess.Popen(["unshare", *unshare, "--mount", "sh", "-c", command, inside], stdout=subprocess.PIPE) as one:
        try:
            assert one.stdout is not None
            assert one.stdout.readline() == b"made\n"
            with pytest.raises(
                RuntimeFault, match=rf"is still in use by .*sleep \(pid {one.pid}\).* 3 s after CT 118 ended"
            ):
                bench.runtime.kill(spec)
            assert one.poll() is None
        finally:
            one.kill()
    bench.remove(spec)
    bench.runtime.remove_volume(image)


def test_a_killed_monitor_leaves_nothing_that_stops_the_next_start(bench: Bench) -> None:
    volume = Mount("mp0", "/data", bench.volume("vm-999-disk-3"))
    spec = bench.create(107, volume)
    bench.runtime.start(spec, silent)
    bench.sh(spec, "echo kept > /data/note; sync")
    used = bench.runtime.usage(spec)
    assert used is not None
    status = Path(f"/proc/{used.pid}/status").read_text()
    monitor = int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))
    assert b"lxc monitor" in Path(f"/proc/{monitor}/cmdline").read_bytes()
    os.kill(monitor, signal.SIGKILL)
    until("the guest is gone", lambda: not bench.runtime.running(NODE))
    # A new process, as after a crash of the lab.
    runtime = LxcRuntime(bench.place)
    until("its init is gone", lambda: not Path(f"/proc/{used.pid}").exists())
    runtime.recover([spec])
    assert not mounts_below(bench.place.guest_dir(NODE, 107))
    runtime.start(spec, silent)
    assert bench.sh(spec, "cat /data/note") == "kept"


def test_a_running_guest_is_found_by_a_new_process_and_left_alone(bench: Bench) -> None:
    spec = bench.create(108)
    bench.runtime.start(spec, silent)
    before = bench.runtime.usage(spec)
    runtime = LxcRuntime(Place.of(bench.place.state_dir))
    runtime.recover([spec])
    after = runtime.usage(spec)
    assert runtime.running(NODE) == {108}
    assert before is not None
    assert after is not None
    assert after.pid == before.pid


def test_a_volume_without_file_system_fails_the_start_and_releases_all(bench: Bench) -> None:
    raw = bench.place.state_dir / "vm-999-disk-4.raw"
    bench.runtime.allocate_raw(raw, GIB // 8)
    spec = bench.create(109, Mount("mp0", "/data", raw))
    with pytest.raises(RuntimeFault, match=r"^startup for container '109' failed$") as caught:
        bench.runtime.start(spec, silent)
    # mount's exit code, facts proxmox 7, failed start B.
    assert any("exited with status 32" in line for line in caught.value.log)
    assert not mounts_below(bench.place.guest_dir(NODE, 109))
    assert not loops_below(raw)
    assert bench.runtime.running(NODE) == frozenset()


def test_power_off_from_inside_releases_the_volumes(bench: Bench) -> None:
    spec = bench.create(110, Mount("mp0", "/data", bench.volume("vm-999-disk-5")))
    bench.runtime.start(spec, silent)
    bench.booted(spec)
    bench.runtime.execute(spec, ["systemctl", "poweroff", "--no-block"])
    until("powered off", lambda: not bench.runtime.running(NODE))
    until("unmounted", lambda: not mounts_below(bench.place.guest_dir(NODE, 110)))


def test_reboot_from_inside_keeps_volume_and_address(bench: Bench) -> None:
    spec = bench.create(111, Mount("mp0", "/data", bench.volume("vm-999-disk-6")))
    bench.runtime.start(spec, silent)
    bench.booted(spec)
    bench.sh(spec, "echo kept > /data/note")
    before = bench.runtime.usage(spec)
    assert before is not None
    bench.runtime.execute(spec, ["systemctl", "reboot", "--no-block"])

    def rebooted() -> bool:
        now = bench.runtime.usage(spec)
        return now is not None and now.pid != before.pid

    until("another init", rebooted)
    bench.booted(spec)
    assert bench.sh(spec, "cat /data/note; ip -4 -o addr show eth0").startswith("kept\n")
    assert ip_of(spec) in bench.sh(spec, "ip -4 -o addr show eth0")


def test_guests_reach_the_labs_services_and_nothing_else_of_the_host(bench: Bench) -> None:
    spec = bench.create(112)
    bench.runtime.start(spec, silent)
    bench.booted(spec)
    gateway, service = str(bench.plan.gateway), PORTS[0]
    with (
        socket.create_server((gateway, service)),
        socket.create_server(("0.0.0.0", 0)) as private,  # noqa: S104 - open to all, so that the rules alone decide
    ):
        port = private.getsockname()[1]
        private.settimeout(DEADLINE)
        probe = "timeout 5 bash -c '</dev/tcp/%s/%d' 2>/dev/null && echo open || echo shut"
        assert bench.sh(spec, probe % (gateway, service)) == "open"
        assert bench.sh(spec, probe % (gateway, port)) == "shut"
        # The same port is open to the host itself, and its caller is the first to arrive.
        with socket.create_connection((gateway, port), timeout=5):
            accepted, caller = private.accept()
            accepted.close()
        assert caller[0] == gateway


def test_memory_is_limited(bench: Bench) -> None:
    spec = bench.create(113)
    bench.runtime.start(spec, silent)
    done = bench.runtime.execute(spec, ["python3", "-c", "x = bytearray(900 << 20); print(len(x))"])
    # 512 MiB and 256 MiB of swap: the kernel ends the one program, the guest lives.
    assert done.returncode != 0
    assert bench.sh(spec, "echo alive") == "alive"


def test_a_volume_is_mounted_into_a_running_guest_and_grown(bench: Bench) -> None:
    spec = bench.create(114)
    bench.runtime.start(spec, silent)
    bench.booted(spec)
    image = bench.volume("vm-114-disk-1")
    mount = Mount("mp0", "/srv/new/data", image)
    bench.runtime.hot_mount(replace(spec, mounts=(*spec.mounts, mount)), mount, silent)
    assert bench.sh(spec, "echo x > /srv/new/data/file; stat -c %u /srv/new/data") == "0"
    size = "df --output=size -B1 /srv/new/data | tail -1"
    before = int(bench.sh(spec, size))
    log: list[str] = []
    bench.runtime.grow_volume(image, GIB, mounted=False, log=log.append)
    if may_resize_online():
        assert int(bench.sh(spec, size)) > 3 * before
    else:
        # As Proxmox does: the volume has grown, that its file system has not is a warning.
        assert "Failed to update the container's filesystem" in log[-1]
        assert int(bench.sh(spec, size)) == before
    bench.runtime.kill(spec)
    bench.runtime.grow_volume(image, 2 * GIB, mounted=False, log=silent)
    assert image.stat().st_size == 2 * GIB
    grown = subprocess.run(
        ["dumpe2fs", "-h", str(image)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    counts = dict(re.findall(r"^(Block count|Block size):\s+(\d+)$", grown, re.MULTILINE))
    assert int(counts["Block count"]) * int(counts["Block size"]) == 2 * GIB
    check = subprocess.run(["e2fsck", "-fn", str(image)], capture_output=True, text=True, check=False, timeout=60)
    assert check.returncode == 0, check.stdout
    assert not loops_below(image)


def test_a_link_in_the_guest_leads_the_host_nowhere(bench: Bench, tmp_path: Path) -> None:
    spec = bench.create(115)
    bench.runtime.start(spec, silent)
    elsewhere = tmp_path / "host"
    elsewhere.mkdir()
    bench.sh(spec, f"rm -rf /etc/network /srv; ln -s {elsewhere} /etc/network; ln -s {elsewhere} /srv")
    mount = Mount("mp0", "/srv/data", bench.volume("vm-115-disk-1"))
    with pytest.raises(RuntimeFault, match="symlink encountered at: /srv"):
        bench.runtime.hot_mount(replace(spec, mounts=(*spec.mounts, mount)), mount, silent)
    bench.runtime.kill(spec)
    # The network configuration is written at each start. In the guest's own tree the link leads nowhere.
    with pytest.raises(RuntimeFault, match="startup for container '115' failed"):
        bench.runtime.start(spec, silent)
    assert list(elsewhere.iterdir()) == []


def test_other_users_of_the_machine_stay_outside(bench: Bench) -> None:
    spec = bench.create(120)
    bench.runtime.start(spec, silent)
    tree = bench.place.guest_dir(NODE, 120) / "rootfs" / "etc" / "hostname"
    assert tree.read_text().strip() == "guest120"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    done = subprocess.run([*nobody, "cat", str(tree)], capture_output=True, text=True, check=False, timeout=10)
    assert "Permission denied" in done.stderr


def test_commands_have_input_output_and_a_code(bench: Bench) -> None:
    spec = bench.create(116)
    bench.runtime.start(spec, silent)
    done = bench.runtime.execute(spec, ["sh", "-c", "cat; echo wrong >&2; exit 7"], stdin=b"given")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"given", b"wrong\n")
    # Nothing of the host's environment leaks into the guest.
    names = {line.split("=")[0] for line in bench.sh(spec, "env").splitlines()}
    assert names <= {"PATH", "HOME", "PWD", "SHLVL", "_", "container", "TERM"}


def files_in(image: Path, at: Path, *, write: bool = False) -> dict[str, str]:
    """What is in an image that no guest has mounted; `write`: a few hundred files are made first."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", image, at], check=True, timeout=DEADLINE)
    try:
        for number in range(300 if write else 0):
            (at / f"{number % 7}").mkdir(exist_ok=True)
            (at / f"{number % 7}" / f"{number}.txt").write_text(f"{number} " * 500)
        return {
            str(file.relative_to(at)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(at.rglob("*"))
            if file.is_file()
        }
    finally:
        subprocess.run(["umount", at], check=True, timeout=DEADLINE)


def blocks_of(image: Path, what: str) -> range:
    """Where the first group has this, by dumpe2fs; in bytes."""
    told = subprocess.run(["dumpe2fs", image], capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    size = int(re.findall(r"^Block size: +(\d+)", told, re.MULTILINE)[0])
    first, last = re.findall(rf"{what} at (\d+)(?:-(\d+))?", told)[0]
    return range(int(first) * size, (int(last or first) + 1) * size)


def torn(image: Path, where: range) -> None:
    with image.open("r+b") as stream:
        stream.seek(where.start)
        stream.write(b"\xa5" * len(where))


def test_a_damaged_file_system_is_repaired(bench: Bench, tmp_path: Path) -> None:
    """What `pct fsck` finds without and with --force, and what is left to `e2fsck -fy`."""
    image = bench.volume("vm-999-disk-13")
    before = files_in(image, tmp_path / "at", write=True)
    assert len(before) == 300

    torn(image, blocks_of(image, "Block bitmap"))
    assert bench.runtime.check_volume(image, force=False).returncode == 0, "it looks no further than the superblock"
    # 1: errors were corrected (fsck(8)).
    assert bench.runtime.check_volume(image, force=True).returncode == 1
    assert bench.runtime.check_volume(image, force=True).returncode == 0
    assert files_in(image, tmp_path / "at") == before

    torn(image, blocks_of(image, "Group descriptors"))
    torn(image, range(1024, 2048))
    assert bench.runtime.check_volume(image, force=True).returncode > 1
    done = subprocess.run(["e2fsck", "-fy", image], capture_output=True, check=False, timeout=DEADLINE)
    assert done.returncode == 1, done.stdout + done.stderr
    assert files_in(image, tmp_path / "at") == before

    # A folder whose names are lost: what was in it is in lost+found, whole, by the numbers of its files.
    torn(image, folder_block(image, "/3"))
    assert bench.runtime.check_volume(image, force=True).returncode > 1
    done = subprocess.run(["e2fsck", "-fy", image], capture_output=True, check=False, timeout=DEADLINE)
    assert done.returncode == 1, done.stdout + done.stderr
    found = files_in(image, tmp_path / "at")
    gone = {name for name in before if name.startswith("3/")}
    assert before.keys() - found.keys() == gone
    brought = {name: digest for name, digest in found.items() if name.startswith("lost+found/")}
    assert sorted(brought.values()) == sorted(before[name] for name in gone)
    assert found.items() - brought.items() == before.items() - {(name, before[name]) for name in gone}
    bench.runtime.remove_volume(image)


def folder_block(image: Path, folder: str) -> range:
    """Where a small folder has its names, by debugfs; in bytes."""
    ask = ["debugfs", "-R", f"blocks {folder}", str(image)]
    told = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
    size = len(blocks_of(image, "Group descriptors"))
    [block] = map(int, told.split())
    return range(block * size, (block + 1) * size)


def test_unpacking_over_an_attached_volume_keeps_its_files(bench: Bench) -> None:
    """Proxmox mounts all volumes while it unpacks (facts proxmox 2.3): the template's files land in them too."""
    image = bench.volume("vm-999-disk-7", GIB)
    first = bench.create(117, Mount("mp0", "/var", image))
    bench.runtime.start(first, silent)
    bench.sh(first, "mkdir -p /var/lib/dpkg; echo mine > /var/lib/dpkg/arch; echo kept > /var/note")
    bench.remove(first)
    bare = bench.spec(117)
    whole = replace(bare, mounts=(*bare.mounts, Mount("mp0", "/var", image)))
    # The API names the template by a link in its storage.
    link = bench.place.state_dir / "template.tar.zst"
    link.symlink_to(bench.template.archive)
    bench.runtime.unpack(whole, link, Setup(), silent)
    bench.runtime.start(whole, silent)
    assert bench.sh(whole, "cat /var/lib/dpkg/arch /var/note; test -s /var/lib/dpkg/status") == "mine\nkept"


def test_set_up_of_password_keys_and_time_zone(bench: Bench) -> None:
    keys = ("ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two's")
    spec = bench.create(118, setup=Setup(password="c0rrect 'horse' $x", ssh_public_keys=keys, timezone="Europe/Berlin"))
    bench.runtime.start(spec, silent)
    assert bench.sh(spec, "cat /root/.ssh/authorized_keys").splitlines() == list(keys)
    assert bench.sh(spec, "stat -c %a /root/.ssh /root/.ssh/authorized_keys").split() == ["700", "600"]
    assert bench.sh(spec, "date +%Z; cat /etc/timezone").split()[1] == "Europe/Berlin"
    stored = bench.sh(spec, "getent shadow root").split(":")[1]
    salt = stored.split("$")[2]
    done = subprocess.run(
        ["openssl", "passwd", "-6", "-salt", salt, "-stdin"], input="c0rrect 'horse' $x\n", text=True,
        capture_output=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.strip() == stored


def test_two_labs_live_side_by_side_and_leave_nothing(bench: Bench, tmp_path: Path) -> None:
    spec = bench.create(119)
    bench.runtime.start(spec, silent)
    with bench_in(tmp_path / "other lab") as other:
        assert other.plan.subnet != bench.plan.subnet
        twin = other.create(119)
        other.runtime.start(twin, silent)
        assert other.runtime.running(NODE) == bench.runtime.running(NODE) == {119}
        other.runtime.kill(twin)
        assert bench.runtime.running(NODE) == {119}
    assert not mounts_below(other.place.run_dir)
    assert not loops_below(other.place.state_dir)
    assert not other.place.run_dir.exists()
    assert not Path(f"/sys/class/net/{other.place.bridge}").exists()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True, timeout=30).stdout
    assert other.place.table not in tables
    assert bench.place.table in tables
    # The first lab still needs them.
    assert all(int((SETTINGS / name).read_text()) >= least for name, least in NEEDED.items())
