"""What has to be done for host mounts and keyctl: tables of facts and wishes. Facts proxmox 2.2, 3, 8."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from typing import Any

import pytest

from proxmox.errors import GuestElsewhere, GuestLocked, HostFolderForeign, HostFolderUnusable, PathTaken
from proxmox.facts import GuestFacts
from proxmox.hostmounts import (
    FolderFacts,
    HostChange,
    HostMount,
    HostWish,
    MakeFolder,
    OwnFolder,
    Placed,
    SetHost,
    change_of,
    commands_to_paste,
    features_with,
    folder_refusals,
    plan_folder,
    plan_host_mounts,
)
from proxmox.planning import Shutdown, Start

DATA = HostMount("/mnt/pve/hdd/hermes", "/data", owner=10000)
FAST = HostMount("/media/2tb/hermes", "/fast", owner=10000)
FILMS = HostMount("/srv/films", "/films", read_only=True)
FOLDER = stat.S_IFDIR | 0o755
VOLUME = "local-lvm:vm-999-disk-1,mp=/home/hermes,size=2G"


def guest(running: bool = False, pending: Mapping[str, str | None] | None = None, **config: Any) -> GuestFacts:
    return GuestFacts(118, "pve2", running=running, config={"features": "nesting=1", **config}, pending=pending or {})


def wish(*mounts: HostMount, **changes: Any) -> HostWish:
    return HostWish(118, "pve2", mounts, **changes)


def folder(path: str, **changes: Any) -> FolderFacts:
    values: dict[str, Any] = {"real": path, "mode": FOLDER, "mounted_at": "/mnt/pve/hdd", **changes}
    return FolderFacts(path, **values)


def missing(mount: HostMount, at: str = "/media/2tb") -> FolderFacts:
    return FolderFacts(mount.source, mount.source, mounted_at=at)


@pytest.mark.parametrize(
    ("text", "keyctl", "expected"),
    [
        ("", False, "nesting=1"),
        ("nesting=1", True, "keyctl=1,nesting=1"),
        ("keyctl=1,nesting=1", False, "nesting=1"),
        # What somebody else has set is not ours to take away.
        ("fuse=1,mount=nfs;cifs,nesting=0", True, "fuse=1,keyctl=1,mount=nfs;cifs,nesting=1"),
    ],
)
def test_features(text: str, keyctl: bool, expected: str) -> None:
    assert features_with(text, keyctl=keyctl) == expected


def test_a_container_that_was_just_made_gets_all_in_one_command_and_is_left_stopped() -> None:
    """The seed's own example: node2, two disks, keyctl for Docker."""
    folders = {DATA.source: missing(DATA, "/mnt/pve/hdd"), FAST.source: missing(FAST)}
    steps = plan_host_mounts(guest(), folders, wish(DATA, FAST, keyctl=True))
    change = HostChange(
        {"mp1": "/mnt/pve/hdd/hermes,mp=/data", "mp2": "/media/2tb/hermes,mp=/fast", "features": "keyctl=1,nesting=1"}
    )
    assert steps == (
        MakeFolder(118, "pve2", DATA.source, "/mnt/pve/hdd"),
        OwnFolder(118, "pve2", DATA.source, 110000),
        MakeFolder(118, "pve2", FAST.source, "/media/2tb"),
        OwnFolder(118, "pve2", FAST.source, 110000),
        SetHost(118, "pve2", wish(DATA, FAST, keyctl=True), change),
    )
    assert change.command(118) == (
        "pct set 118 --features keyctl=1,nesting=1 --mp1 /mnt/pve/hdd/hermes,mp=/data --mp2 /media/2tb/hermes,mp=/fast"
    )


def test_one_that_runs_is_restarted_once() -> None:
    steps = plan_host_mounts(guest(running=True), {FILMS.source: folder(FILMS.source)}, wish(FILMS))
    assert [type(step) for step in steps] == [Shutdown, SetHost, Start]


@pytest.mark.parametrize("running", [True, False])
def test_a_plan_on_what_a_plan_has_left_is_empty(running: bool) -> None:
    done = guest(running, mp1="/mnt/pve/hdd/hermes,mp=/data", mp7="/srv/films,mp=/films,ro=1", mp0=VOLUME)
    folders = {DATA.source: folder(DATA.source, uid=110000, empty=False), FILMS.source: folder(FILMS.source)}
    assert plan_host_mounts(done, folders, wish(DATA, FILMS)) == ()
    assert commands_to_paste(done, wish(DATA, FILMS)) == ()


def test_no_slot_of_anybody_else_is_taken() -> None:
    """mp0 is the volume's also before it is there; what stands elsewhere stays."""
    there = guest(mp1="local-lvm:vm-118-disk-1,mp=/other,size=1G", mp3="/srv/x,mp=/x")
    change = change_of(there, wish(DATA, FAST))
    assert change is not None
    assert set(change.options) == {"mp2", "mp4"}
    assert change.delete == ()


RECORDED = (Placed("mp1", DATA.source, "/data"), Placed("mp2", FAST.source, "/fast"))
BOTH = {"mp1": f"{DATA.source},mp=/data", "mp2": f"{FAST.source},mp=/fast"}


@pytest.mark.parametrize(
    ("found", "wished", "expected"),
    [
        # Another path, another folder, read-only: the slot stays.
        (BOTH, (HostMount(DATA.source, "/big"), FAST), HostChange({"mp1": f"{DATA.source},mp=/big"})),
        (BOTH, (HostMount("/srv/new", "/data"), FAST), HostChange({"mp1": "/srv/new,mp=/data"})),
        (
            BOTH,
            (HostMount(DATA.source, "/data", read_only=True), FAST),
            HostChange({"mp1": f"{DATA.source},mp=/data,ro=1"}),
        ),
        # One that left the settings.
        (BOTH, (FAST,), HostChange({}, ("mp1",))),
        # By hand: removed; another folder in our slot; ro.
        ({"mp2": BOTH["mp2"]}, (DATA, FAST), HostChange({"mp1": BOTH["mp1"]})),
        ({**BOTH, "mp1": "/srv/else,mp=/data"}, (DATA, FAST), HostChange({"mp1": BOTH["mp1"]})),
        ({**BOTH, "mp2": f"{FAST.source},mp=/fast,ro=1"}, (DATA, FAST), HostChange({"mp2": BOTH["mp2"]})),
        # By hand: a volume in our slot is not thrown out.
        ({**BOTH, "mp1": "local-lvm:vm-9-disk-0,mp=/v"}, (DATA, FAST), HostChange({"mp3": BOTH["mp1"]})),
        # Gone from the settings, and somebody else's now.
        ({**BOTH, "mp1": "/srv/else,mp=/else"}, (FAST,), None),
    ],
)
def test_changes_of_what_an_earlier_run_has_set(
    found: dict[str, Any], wished: tuple[HostMount, ...], expected: HostChange | None
) -> None:
    assert change_of(guest(**found), wish(*wished, recorded=RECORDED)) == expected


def test_pasted_with_other_slots_it_is_the_same() -> None:
    """The seed's own commands use mp0 and mp1."""
    there = guest(mp0=f"{DATA.source},mp=/data", mp1=f"{FAST.source}/,mp=/fast/", features="keyctl=1,nesting=1")
    assert change_of(there, wish(DATA, FAST, keyctl=True)) is None


def test_a_path_that_is_taken_is_refused() -> None:
    with pytest.raises(PathTaken, match="mp5 mounts /srv/x there"):
        change_of(guest(mp5="/srv/x,mp=/data/"), wish(DATA))


def test_a_change_that_waits_is_set_again_after_the_stop() -> None:
    there = guest(True, {"mp1": None}, mp1=BOTH["mp1"])
    steps = plan_host_mounts(there, {DATA.source: folder(DATA.source, uid=110000)}, wish(DATA, recorded=RECORDED[:1]))
    assert [type(step) for step in steps] == [Shutdown, SetHost, Start]


@pytest.mark.parametrize(
    ("facts", "mount", "expected"),
    [
        (missing(FAST), FAST, [MakeFolder, OwnFolder]),
        (folder(FAST.source, uid=0, empty=True), FAST, [OwnFolder]),
        (folder(FAST.source, uid=110000, empty=False), FAST, []),
        (folder(FAST.source, uid=110000, empty=True), FAST, []),
        # Whoever owns what is only read, that is the node's business.
        (folder(FILMS.source, uid=0, empty=False), FILMS, []),
        (missing(HostMount("/srv/hermes", "/data"), "/"), HostMount("/srv/hermes", "/data"), [MakeFolder, OwnFolder]),
    ],
)
def test_a_folder(facts: FolderFacts, mount: HostMount, expected: list[type]) -> None:
    assert [type(step) for step in plan_folder(facts, mount, wish(mount))] == expected


@pytest.mark.parametrize(
    ("facts", "mount", "error", "told"),
    [
        (
            folder(FAST.source, uid=0, empty=False),
            FAST,
            HostFolderForeign,
            "chown -h 110000:110000 -- /media/2tb/hermes",
        ),
        (folder(FAST.source, uid=100000, empty=False), FAST, HostFolderForeign, "declare its owner: 0"),
        (folder(FAST.source, real="/mnt/ssd/hermes"), FAST, HostFolderUnusable, "/mnt/ssd/hermes"),
        (folder(FAST.source, mode=stat.S_IFREG | 0o644), FAST, HostFolderUnusable, "is not a folder"),
        (missing(FILMS, "/"), FILMS, HostFolderUnusable, "does not exist on node pve2"),
        # /mnt/pve/hdd is a mount point's folder, and nothing is mounted on it.
        (missing(DATA, "/"), DATA, HostFolderUnusable, "nothing is mounted at /mnt/pve/hdd"),
        (
            folder(DATA.source, uid=110000, mounted_at="/"),
            DATA,
            HostFolderUnusable,
            "nothing is mounted at /mnt/pve/hdd",
        ),
    ],
)
def test_a_folder_that_is_refused(facts: FolderFacts, mount: HostMount, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as caught:
        plan_folder(facts, mount, wish(mount))
    assert told in str(caught.value)


def test_all_folders_are_judged_at_once() -> None:
    folders = {
        DATA.source: missing(DATA, "/"),
        FAST.source: folder(FAST.source, empty=False),
        FILMS.source: missing(FILMS),
    }
    assert len(folder_refusals(folders, wish(DATA, FAST, FILMS))) == 3


def test_a_folder_on_the_nodes_own_disk_is_told() -> None:
    assert "is the disk mounted?" in MakeFolder(118, "pve2", "/srv/x").describe()


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (
            None,
            [
                "mkdir -p -- /mnt/pve/hdd/hermes",
                "chown -h 110000:110000 -- /mnt/pve/hdd/hermes",
                (
                    "pct set 118 --features keyctl=1,nesting=1 --mp1 /mnt/pve/hdd/hermes,mp=/data "
                    "--mp2 /srv/films,mp=/films,ro=1"
                ),
            ],
        ),
        (
            guest(True, mp1=BOTH["mp1"], mp2="/srv/films,mp=/films,ro=1"),
            ["pct set 118 --features keyctl=1,nesting=1", "pct reboot 118"],
        ),
        # Set while it ran, and not restarted yet.
        (
            guest(True, {"features": "keyctl=1,nesting=1"}, mp1=BOTH["mp1"], mp2="/srv/films,mp=/films,ro=1"),
            ["pct reboot 118"],
        ),
        (guest(True, features="keyctl=1,nesting=1", mp1=BOTH["mp1"], mp2="/srv/films,mp=/films,ro=1"), []),
    ],
)
def test_the_commands_to_paste(there: GuestFacts | None, expected: list[str]) -> None:
    assert list(commands_to_paste(there, wish(DATA, FILMS, keyctl=True))) == expected


def test_words_are_quoted() -> None:
    mount = HostMount("/srv/my films; rm -rf ~", "/films")
    [make, own, setting] = commands_to_paste(None, wish(mount))
    assert make == "mkdir -p -- '/srv/my films; rm -rf ~'"
    assert own.endswith(" -- '/srv/my films; rm -rf ~'")
    assert setting == "pct set 118 --mp1 '/srv/my films; rm -rf ~,mp=/films'"


def test_a_container_that_cannot_be_worked_on_is_refused() -> None:
    with pytest.raises(GuestElsewhere):
        plan_host_mounts(GuestFacts(118, "pve"), {}, wish())
    with pytest.raises(GuestLocked):
        plan_host_mounts(guest(lock="backup"), {}, wish())
