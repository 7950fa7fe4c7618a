"""Mount point strings, volume names, sizes, claims and the texts of errors."""

from __future__ import annotations

import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxmox import errors
from proxmox.errors import AllocateSyntax, Fault, Faults, ProxmoxError, mask
from proxmox.facts import GuestFacts, Reference
from proxmox.mountpoint import (
    MountPoint,
    MountPointSyntaxError,
    format_size,
    is_allocation,
    is_slot,
    is_unused,
    normal_path,
    owner_in_name,
    owner_of,
    parse_size,
    path_means,
    paths_in,
    require_existing,
    slot_number,
    storage_of,
)
from proxmox.ownership import describe_guest, describe_holder, how_to_free, is_claimed, parse_claim, render_notes

DISK = "local-lvm:vm-999-disk-1"
CLAIM = "0b8f6a1e-58c3-4a6e-9d0b-0f6b1a2c3d4e"


# Mount points.


def test_a_mount_point_is_read_in_either_spelling() -> None:
    # facts proxmox 2.3 (normal form) and 15 (what the provider sends).
    normal = MountPoint.parse(f"{DISK},mp=/data,acl=0,backup=1,size=8G")
    assert normal == MountPoint(DISK, "/data", {"acl": "0", "backup": "1"}, "8G")
    assert MountPoint.parse(f"mp=/data,backup=1,size=8G,acl=0,volume={DISK}") == normal


def test_a_mount_point_is_written_in_normal_form_without_a_size() -> None:
    mount = MountPoint(DISK, "/data", {"ro": "0", "acl": "0", "replicate": "1", "backup": "1"}, "8G")
    assert mount.property_string() == f"{DISK},mp=/data,acl=0,backup=1,replicate=1,ro=0"


@pytest.mark.parametrize("text", ["", DISK, "mp=/data", f"{DISK},mp=/a,mp=/b", f"{DISK},volume={DISK},mp=/a"])
def test_what_is_no_mount_point_is_told(text: str) -> None:
    with pytest.raises(MountPointSyntaxError):
        MountPoint.parse(text)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (f"{DISK},mp=/data,backup=0", f"{DISK},backup=0,mp=/data,size=8G", True),  # field-reports A4
        (f"{DISK},mp=/data", f"{DISK},mp=/data,backup=0,ro=0,replicate=1,size=8G", True),
        (f"{DISK},mp=/data,ro=yes", f"{DISK},mp=/data,ro=1", True),
        (f"{DISK},mp=/data,ro=off", f"{DISK},mp=/data", True),
        (f"{DISK},mp=/data/", f"{DISK},mp=//data", True),
        (f"{DISK},mp=/data,mountoptions=noatime;nodev", f"{DISK},mp=/data,mountoptions=nodev;noatime", True),
        (f"{DISK},mp=/data", f"{DISK},mp=/data,backup=1", False),
        (f"{DISK},mp=/data", f"{DISK},mp=/data,ro=1", False),
        (f"{DISK},mp=/data", f"{DISK},mp=/data,acl=0", False),  # absent is the file system's own default
        (f"{DISK},mp=/data", f"{DISK},mp=/data,replicate=0", False),
        (f"{DISK},mp=/data", f"{DISK},mp=/data,mountoptions=noatime", False),
        (f"{DISK},mp=/data", f"{DISK},mp=/Data", False),
        (f"{DISK},mp=/data,idmap=u:0:1:1", f"{DISK},mp=/data,idmap=u:0:1:1", True),  # an option that we do not know
        (f"{DISK},mp=/data,idmap=u:0:1:1", f"{DISK},mp=/data", False),
        (f"{DISK},mp=/data", "local-lvm:vm-999-disk-2,mp=/data", False),
    ],
)
def test_mount_points_are_compared_by_what_they_do(ours: str, theirs: str, same: bool) -> None:
    assert MountPoint.parse(ours).same_mount(MountPoint.parse(theirs)) is same
    assert MountPoint.parse(theirs).same_mount(MountPoint.parse(ours)) is same


OPTIONS = st.dictionaries(
    st.sampled_from(["acl", "backup", "quota", "ro", "shared", "replicate"]), st.sampled_from("01")
)


@given(OPTIONS, st.randoms(use_true_random=False))
def test_what_is_written_reads_back_the_same_in_any_order(options: dict[str, str], random: object) -> None:
    mount = MountPoint(DISK, "/data", options)
    parts = mount.property_string().split(",")
    random.shuffle(parts)  # type: ignore[attr-defined]
    back = MountPoint.parse(",".join(parts))
    assert back == mount
    assert hash(back) == hash(mount)
    assert back.same_mount(mount)


@pytest.mark.parametrize("path", ["/", "//", ""])
def test_the_root_is_a_path(path: str) -> None:
    assert normal_path(path) == "/"


@pytest.mark.parametrize(
    ("key", "yes"), [("mp0", True), ("mp255", True), ("mp256", False), ("mp01", False), ("mp", False)]
)
def test_slots(key: str, yes: bool) -> None:
    assert is_slot(key) is yes
    if yes:
        assert slot_number(key) == int(key[2:])
    else:
        with pytest.raises(ValueError, match="not a mount point key"):
            slot_number(key)


def test_unused_entries() -> None:
    assert is_unused("unused0")
    assert not is_unused("unused")


# Volumes.


@pytest.mark.parametrize(
    ("volid", "owner"),
    [
        (DISK, 999),
        ("local-lvm:vm-9105-pgdata", 9105),
        ("local-lvm:base-100-disk-0", 100),
        ("local:105/vm-105-disk-0.raw", 105),
        ("tank:subvol-105-disk-2", 105),
        ("tank:basevol-100-disk-0/subvol-105-disk-0", 105),
        ("ceph:base-100-disk-0/vm-105-disk-0", 105),
        ("local:105/subvol-105-disk-0.subvol", 105),
        ("local:100/base-100-disk-0.raw/105/vm-105-disk-0.qcow2", 105),
        # In a folder the folder's number counts (Plugin.pm, parse_volname).
        ("local:105/data.raw", 105),
        ("local:105/vm-999-disk-0.raw", 105),
        ("local:vm-105-disk-0.raw/x", None),
        ("local:105/vm-105-disk-0", None),
        ("local:backup/vzdump-lxc-105-2026_11_28-00_00_00.tar.zst", None),
        ("local:vztmpl/debian.tar.zst", None),
        ("local-lvm:data", None),
        ("/mnt/vm-1-x", None),
        ("local-lvm:vm-0105-disk-0", None),
    ],
)
def test_the_owner_of_a_volume_is_in_its_name(volid: str, owner: int | None) -> None:
    assert owner_of(volid) == owner


def test_the_owner_in_a_name_of_a_nodes_path() -> None:
    assert owner_in_name("vm-999-disk-1") == 999
    assert owner_in_name("data") is None


def test_the_storage_of_a_volume() -> None:
    assert storage_of(DISK) == "local-lvm"
    assert storage_of("/mnt/a:b") == ""


@pytest.mark.parametrize("volume", ["local-lvm:8", "local-lvm:0.5", "/mnt/data", "local-lvm:", ":x", "disk", ""])
def test_only_the_full_name_of_a_volume_is_taken(volume: str) -> None:
    # field-reports A6 and C2: <storage>:<number> allocates, a path is a bind mount.
    with pytest.raises(AllocateSyntax, match="is not the name of an existing volume"):
        require_existing(volume)


def test_a_full_name_is_no_allocation() -> None:
    assert require_existing(DISK) == DISK
    assert not is_allocation(DISK)
    assert is_allocation("fast:20")


@pytest.mark.parametrize(
    ("text", "size"),
    [("8G", 8 << 30), ("1536M", 1536 << 20), ("1T", 1 << 40), ("0.5G", 1 << 29), ("4K", 4096), ("7", 7)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "8GB", "G", "-1G"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"), [(20 << 30, "20G"), (1 << 40, "1T"), (1536 << 20, "1536M"), (7, "7"), (0, "0")]
)
def test_sizes_are_written_in_the_largest_exact_unit(size: int, text: str) -> None:
    assert format_size(size) == text
    assert parse_size(text) == size


# Claims.


def test_a_claim_is_found_in_the_notes_as_proxmox_gives_them_back() -> None:
    notes = render_notes("The pet.\nKeep it.", CLAIM)
    assert notes == f"The pet.\nKeep it.\n\nclaim: {CLAIM}\n"
    assert parse_claim(notes + "\n") == CLAIM
    assert parse_claim(notes.replace("\n", "\r\n")) == CLAIM
    assert render_notes("", CLAIM) == f"claim: {CLAIM}\n"


@pytest.mark.parametrize(
    "notes", ["", "claim: x", f"no claim: {CLAIM}", f"claim: {CLAIM} x", f"claim: {CLAIM.upper()}"]
)
def test_no_claim_and_a_broken_one_prove_nothing(notes: str) -> None:
    assert parse_claim(notes) is None


def test_two_claims_prove_nothing() -> None:
    other = CLAIM.replace("0b8f6a1e", "11111111")
    assert parse_claim(f"claim: {CLAIM}\nclaim: {other}\n") is None
    with pytest.raises(ValueError, match="claim line of its own"):
        render_notes(f"claim: {other}", CLAIM)


@pytest.mark.parametrize("claim", ["", "x", CLAIM.upper(), f"{CLAIM}\nclaim: y"])
def test_a_claim_is_a_uuid(claim: str) -> None:
    with pytest.raises(ValueError, match="not a uuid"):
        render_notes("text", claim)


def test_a_guest_with_another_claim_is_not_ours() -> None:
    guest = GuestFacts(105, "pve", config={"description": render_notes("x", CLAIM)})
    assert is_claimed(guest, CLAIM)
    assert not is_claimed(guest, CLAIM.replace("0", "1"))
    assert not is_claimed(GuestFacts(105, "pve"), CLAIM)


def test_guests_are_named_as_people_name_them() -> None:
    assert describe_guest(GuestFacts(105, "pve", running=None)) == "CT 105 on node pve"
    vm = GuestFacts(200, "pve2", "qemu", running=True, config={"name": "win"})
    assert describe_guest(vm) == "VM 200 'win' on node pve2 (running)"


def test_a_virtual_machines_snapshot_is_freed_with_its_own_tool() -> None:
    assert how_to_free(Reference(200, "qemu", "pve", "snapshot s", "scsi0", None)) == "qm delsnapshot 200 s"


# Errors.


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    told = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    classes = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, ProxmoxError)}
    assert set(told) | {"ProxmoxError"} == classes
    assert len(told) == len(set(told))


def test_an_error_is_what_why_and_what_to_do() -> None:
    assert str(ProxmoxError("It broke", "for a reason", "mend it")) == "It broke\n  why: for a reason\n  do:  mend it"
    assert str(ProxmoxError("It broke")) == "It broke"


def test_faults_are_told_together() -> None:
    faults = [Fault("endpoint", "x", "must be y", "set it"), Fault("node", "", "is needed", "set it")]
    told = str(Faults(faults, "No"))
    assert told.splitlines() == [
        "No: 2 faults",
        "endpoint = x",
        "  rule: must be y",
        "  do:   set it",
        "node",
        "  rule: is needed",
        "  do:   set it",
    ]
    assert "1 fault\n" in str(Faults(faults[:1]))


@pytest.mark.parametrize(
    "text",
    [
        "PVEAPIToken=root@pam!ci=12345678-aaaa-bbbb-cccc-1234567890ab",
        "token 'a@pve!x-y_z.1=12345678-aaaa-bbbb-cccc-1234567890ab' is wrong",
        "a@pve!ci=not-even-a-uuid-but-secret-12345678-aaaa-bbbb-cccc-1234567890ab",
    ],
)
def test_a_token_is_masked_wherever_it_stands(text: str) -> None:
    assert "1234567890ab" not in mask(text)
    assert "********" in mask(text)
    error = ProxmoxError(text, text, text)
    assert "1234567890ab" not in str(error) + repr(error)


def test_any_secret_can_be_masked() -> None:
    assert mask("pass hunter2 end", "hunter2", "") == "pass ******** end"


LVM, ZFS, FILE = DISK, "tank:subvol-999-disk-1", "hdd:999/vm-999-disk-1.raw"
PATHS = [
    ("/dev/pve/vm-999-disk-1", LVM, True),
    ("/dev//pve/vm-999-disk-1/", LVM, True),
    ("/dev/mapper/pve-vm--999--disk--1", LVM, True),
    ("/dev/mapper/my--vg-vm--999--disk--1", LVM, True),
    ("/dev/disk/by-id/dm-name-pve-vm--999--disk--1", LVM, True),
    ("/dev/mapper/pve-vm--999--disk--11", LVM, False),
    ("/dev/mapper/pve-vm--9991--disk--1", LVM, False),
    ("/dev/pve/snap_vm-999-disk-1_before", LVM, False),
    ("/tank/subvol-999-disk-1", ZFS, True),
    ("/tank/subvol-999-disk-1/agent/files", ZFS, True),
    ("/tank/subvol-999-disk-10", ZFS, False),
    ("/dev/zvol/tank/vm-999-disk-1-part1", "tank:vm-999-disk-1", True),
    ("/mnt/pve/hdd/images/999/vm-999-disk-1.raw", FILE, True),
    # The storage is in the path: another one's file of the same name is another volume.
    ("/mnt/pve/ssd/images/999/vm-999-disk-1.raw", FILE, False),
    ("/var/lib/vz/images/999/vm-999-disk-1.raw", "local:999/vm-999-disk-1.raw", True),
    ("/mnt/pve/hdd/images/999/subvol-999-disk-1.subvol", "hdd:999/subvol-999-disk-1.subvol", True),
    # BTRFSPlugin.pm, filesystem_path.
    ("/srv/tank/images/999/vm-999-disk-1/disk.raw", "tank:999/vm-999-disk-1.raw", True),
    ("/rpool/data/subvol-999-disk-1", "local-zfs:basevol-100-disk-0/subvol-999-disk-1", True),
    ("/dev/rbd/pool/vm-999-disk-1", "ceph:vm-999-disk-1", True),
    # No name tells.
    ("/dev/dm-3", LVM, False),
    ("/tank", ZFS, False),
    ("vm-999-disk-1", LVM, False),
]


@pytest.mark.parametrize(("path", "volid", "means"), PATHS)
def test_a_path_of_the_node_is_known_for_the_volume_that_it_leads_to(path: str, volid: str, means: bool) -> None:
    """LVM's names: lvm(8), "VG and LV names in /dev/mapper", hyphens doubled; the others: facts proxmox 2.3, 11."""
    assert path_means(path, volid) is means
    assert paths_in(f"{path} data none bind,create=dir 0 0") == ((path,) if path.startswith("/") else ())


def test_a_path_is_no_folder_and_no_volume_of_another_kind() -> None:
    assert not path_means("/mnt/pve/hdd/agents", "/mnt/pve/hdd/agents")
    assert paths_in("overlay x overlay lowerdir=/a:/b\\040c,upperdir=/d") == ("/a", "/b c", "/d")


def test_a_line_that_root_wrote_by_hand_is_freed_in_its_file() -> None:
    reference = Reference(106, "lxc", "pve", "config", "lxc.mount.entry", None, "/dev/pve/vm-999-disk-1")
    assert how_to_free(reference).endswith("take the line lxc.mount.entry out of /etc/pve/lxc/106.conf")
    assert describe_holder(GuestFacts(106, "pve"), reference).endswith("in lxc.mount.entry as /dev/pve/vm-999-disk-1")
