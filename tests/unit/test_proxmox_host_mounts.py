"""What has to be done for host mounts and keyctl: tables of facts and wishes. Facts proxmox 2.2, 3, 8."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from proxmox.errors import GuestElsewhere, GuestLocked, HostFolderUnusable
from proxmox.facts import GuestFacts
from proxmox.host_mounts import (
    FolderFacts,
    HostChange,
    HostMount,
    HostMountSpec,
    MakeFolder,
    OwnFolder,
    Placed,
    SetHost,
    change_of,
    commands_to_paste,
    features_with,
    judge_folders,
    paste,
    plan_folder,
    plan_host_mounts,
)
from proxmox.idmap import STANDARD, id_map_of
from proxmox.planning import Shutdown, Start
from tests.tables import cases, is_refused
from tests.unit.proxmox_model import words

DATA = HostMount("/mnt/pve/hdd/hermes", "/data", owner=10000)
FAST = HostMount("/media/2tb/hermes", "/fast", owner=10000)
FILMS = HostMount("/srv/films", "/films", read_only=True)
FOLDER = stat.S_IFDIR | 0o755
VOLUME = "local-lvm:vm-999-disk-1,mp=/home/hermes,size=2G"


def guest(running: bool = False, pending: Mapping[str, str | None] | None = None, **config: Any) -> GuestFacts:
    return GuestFacts(118, "pve2", running=running, config={"features": "nesting=1", **config}, pending=pending or {})


def wish(*mounts: HostMount, **changes: Any) -> HostMountSpec:
    return HostMountSpec(118, "pve2", mounts, **changes)


def folder(path: str, **changes: Any) -> FolderFacts:
    values: dict[str, Any] = {"real": path, "mode": FOLDER, "mounted_at": "/mnt/pve/hdd", **changes}
    return FolderFacts(path, **values)


def missing(mount: HostMount, mounted_at: str = "/media/2tb", **changes: Any) -> FolderFacts:
    return FolderFacts(mount.source, mount.source, mounted_at=mounted_at, **changes)


@pytest.mark.parametrize(
    ("_", "case"), cases("host_mounts.yaml", "change", keys="config mounts recorded keyctl change delete refused says")
)
def test_a_change(_: str, case: dict[str, Any]) -> None:
    recorded = tuple(Placed(*placed) for placed in case.get("recorded", ()))
    mounts = (HostMount(**mount) for mount in case["mounts"])
    spec = wish(*mounts, recorded=recorded, keyctl=case.get("keyctl", False))
    if not is_refused(case, lambda: change_of(guest(**case["config"]), spec)):
        expected = case["change"]
        change = None if expected is None else HostChange(expected, tuple(case.get("delete", ())))
        assert change_of(guest(**case["config"]), spec) == change


@pytest.mark.parametrize(("_", "case"), cases("host_mounts.yaml", "folder", keys="mount folder steps refused says"))
def test_a_folder(_: str, case: dict[str, Any]) -> None:
    mount = HostMount(**case["mount"])
    found = {**case["folder"], "fstab": tuple(case["folder"].get("fstab", ()))}
    facts = missing(mount, **found) if found.pop("missing", False) else folder(mount.source, **found)
    if not is_refused(case, lambda: plan_folder(facts, mount, wish(mount))):
        assert [words(step) for step in plan_folder(facts, mount, wish(mount))] == case["steps"]


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
        OwnFolder(118, "pve2", DATA.source, (110000, 110000), 10000),
        MakeFolder(118, "pve2", FAST.source, "/media/2tb"),
        OwnFolder(118, "pve2", FAST.source, (110000, 110000), 10000),
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


RECORDED = (Placed("mp1", DATA.source, "/data"), Placed("mp2", FAST.source, "/fast"))
BOTH = {"mp1": f"{DATA.source},mp=/data", "mp2": f"{FAST.source},mp=/fast"}


def test_a_change_that_waits_is_set_again_after_the_stop() -> None:
    there = guest(True, {"mp1": None}, mp1=BOTH["mp1"])
    steps = plan_host_mounts(there, {DATA.source: folder(DATA.source, uid=110000)}, wish(DATA, recorded=RECORDED[:1]))
    assert [type(step) for step in steps] == [Shutdown, SetHost, Start]


def test_all_folders_are_judged_at_once() -> None:
    folders = {
        DATA.source: missing(DATA, "/"),
        FAST.source: folder(FAST.source, empty=False),
        FILMS.source: missing(FILMS),
    }
    refusals, steps = judge_folders(folders, wish(DATA, FAST, FILMS))
    assert (len(refusals), steps) == (3, [])


def test_a_folder_that_was_removed_is_made_and_the_container_that_still_has_it_is_restarted() -> None:
    done = guest(True, mp1=f"{FAST.source},mp=/fast")
    steps = plan_host_mounts(done, {FAST.source: missing(FAST)}, wish(FAST))
    assert [type(step) for step in steps] == [MakeFolder, OwnFolder, Shutdown, Start]
    # Given to somebody else: given back, without a restart.
    steps = plan_host_mounts(done, {FAST.source: folder(FAST.source, uid=0)}, wish(FAST))
    assert steps == (OwnFolder(118, "pve2", FAST.source, (110000, 110000), 10000),)


MAPS = {
    "an unprivileged container's own": (STANDARD, (110000, 110000)),
    # One user of the node handed in, as the wiki of Proxmox shows it: the rest lies around it.
    "a user handed in": (
        id_map_of(
            {
                "unprivileged": "1",
                "lxc": "lxc.idmap: u 0 100000 10000\nlxc.idmap: u 10000 1005 1\n"
                "lxc.idmap: g 0 100000 10000\nlxc.idmap: g 10000 1006 1\nlxc.apparmor.profile: unconfined",
            }
        ),
        (1005, 1006),
    ),
    "another range for both": (id_map_of({"unprivileged": "1", "lxc": "lxc.idmap: b 0 300000 65536"}), (310000,) * 2),
    "none": (id_map_of({"unprivileged": "0"}), (10000, 10000)),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_owner_is_the_one_that_the_container_maps(name: str) -> None:
    ids, owner = MAPS[name]
    mapped = wish(FAST, ids=ids)
    steps = plan_folder(folder(FAST.source, uid=0, empty=True), FAST, mapped)
    assert steps == (OwnFolder(118, "pve2", FAST.source, owner, 10000),)
    assert plan_folder(folder(FAST.source, uid=owner[0], empty=False), FAST, mapped) == ()
    assert f"chown -h {owner[0]}:{owner[1]} -- {FAST.source}" in commands_to_paste(None, mapped)


def test_a_user_that_is_not_mapped_can_own_nothing() -> None:
    ids = id_map_of({"unprivileged": "1", "lxc": "lxc.idmap: u 0 100000 1000\nlxc.idmap: g 0 100000 65536"})
    with pytest.raises(HostFolderUnusable, match="user 10000 of CT 118 has no number on node pve2"):
        plan_folder(folder(FAST.source), FAST, wish(FAST, ids=ids))


def test_a_folder_on_the_nodes_own_disk_is_told() -> None:
    assert "is the disk mounted?" in MakeFolder(118, "pve2", "/srv/x").describe()


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (
            None,
            [
                "mountpoint /mnt/pve/hdd",
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
    """A real shell takes the pasted lines for the words that they were made of, and stops at the first that fails."""
    source = """/mnt/pve/my disk/it's; "$(reboot)" `x` && rm -rf ~ #"""
    commands = commands_to_paste(None, wish(HostMount(source, "/films")))
    said = run_in_a_shell(paste(commands, indent=9))
    assert said == [
        ["mountpoint", "/mnt/pve/my disk"],
        ["mkdir", "-p", "--", source],
        ["chown", "-h", "100000:100000", "--", source],
        ["pct", "set", "118", "--mp1", f"{source},mp=/films"],
    ]
    assert [words[0] for words in run_in_a_shell(paste(commands, indent=9), failing="mountpoint")] == ["mountpoint"]


def run_in_a_shell(text: str, failing: str = "") -> list[list[str]]:
    """The words of each program that bash calls; the programs are functions that only tell them."""
    names = ("mountpoint", "mkdir", "chown", "pct")
    tell = 'printf \'%s\\0\' "${FUNCNAME[0]}" "$@" \'\' ; [ "${FUNCNAME[0]}" != "$FAILING" ];'
    head = "PATH=\n" + "".join(f"{name}() {{ {tell} }}\n" for name in names)
    done = subprocess.run(
        ["/bin/bash", "-c", head + text],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
        env={"FAILING": failing},
    )
    assert done.stderr == ""
    return [call.split("\0") for call in done.stdout.split("\0\0") if call]


def test_a_container_that_cannot_be_worked_on_is_refused() -> None:
    with pytest.raises(GuestElsewhere):
        plan_host_mounts(GuestFacts(118, "pve"), {}, wish())
    with pytest.raises(GuestLocked):
        plan_host_mounts(guest(lock="backup"), {}, wish())
