"""The folders of a lab's node: coreutils' answers, and no way out of the state folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pvelab.hostfolders import HostFolders, is_plain_folder


@pytest.fixture
def folders(tmp_path: Path) -> HostFolders:
    made = HostFolders(tmp_path / "node" / "host")
    made.prepare()
    return made


def test_a_folder_is_made_and_given_away(folders: HostFolders) -> None:
    assert folders.run("mkdir", ["-p", "--", "/mnt/pve/hdd/a b/c"]) == (0, "", "")
    assert folders.run("chown", ["-h", "110000:110000", "--", "/mnt/pve/hdd/a b"]) == (0, "", "")
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/mnt/pve/hdd/a b"])[1].endswith(
        " 110000 110000 /mnt/pve/hdd\n"
    )
    # The folder alone.
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/mnt/pve/hdd/a b/c"])[1].split()[1] != "110000"
    assert folders.run("find", ["/mnt/pve/hdd/a b", "-mindepth", "1", "-maxdepth", "1", "-print", "-quit"]) == (
        0,
        "/mnt/pve/hdd/a b/c\n",
        "",
    )
    assert folders.run("find", ["/mnt/pve/hdd/a b/c", "-mindepth", "1", "-maxdepth", "1", "-print", "-quit"]) == (
        0,
        "",
        "",
    )


def test_what_is_on_no_disk_is_on_the_root_file_system(folders: HostFolders) -> None:
    folders.run("mkdir", ["-p", "--", "/srv/x"])
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/srv/x"])[1].split()[3] == "/"
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/media/2tb"])[1].split()[3] == "/media/2tb"


def test_a_disk_that_is_not_mounted_leaves_an_empty_folder(folders: HostFolders) -> None:
    folders.run("mkdir", ["-p", "--", "/media/2tb/x"])
    assert folders.run("mountpoint", ["/media/2tb"])[0] == 0
    assert folders.run("umount", ["/media/2tb"]) == (0, "", "")
    assert folders.run("umount", ["/media/2tb"])[0] == 32
    assert folders.run("mountpoint", ["/media/2tb"])[0] == 32
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/media/2tb/x"])[0] == 1
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/media/2tb"])[1].split()[3] == "/"
    assert "/media/2tb\n" in folders.run("findmnt", ["--fstab", "--noheadings", "--raw", "--output", "TARGET"])[1]
    assert folders.run("mount", ["/media/2tb"]) == (0, "", "")
    assert folders.run("mount", ["/media/2tb"])[0] == 32
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/media/2tb/x"])[1].split()[3] == "/media/2tb"


@pytest.mark.parametrize(
    "words",
    [
        ["stat", "-c", "%f %u %g %m", "--", "/nowhere/at/all"],
        ["find", "/nowhere", "-mindepth", "1", "-maxdepth", "1", "-print", "-quit"],
        ["chown", "-h", "1:1", "--", "/nowhere"],
    ],
)
def test_what_is_missing_is_told_as_the_real_programs_tell_it(folders: HostFolders, words: list[str]) -> None:
    real = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=10, env={"LC_ALL": "C", "PATH": os.environ["PATH"]}
    )
    status, output, errors = folders.run(words[0], words[1:])
    assert (status, output) == (real.returncode, real.stdout)
    # GNU quotes paths in more ways than one, from release to release.
    assert errors.replace("'", "") == real.stderr.replace("'", "").replace("\u2018", "").replace("\u2019", "")


def test_links_are_resolved_within_the_node_and_never_followed(folders: HostFolders, tmp_path: Path) -> None:
    """A guest's root may plant them in what is mounted in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    folders.run("mkdir", ["-p", "--", "/srv/real"])
    folders.on_machine("/srv/inner").symlink_to("real")
    folders.on_machine("/srv/outer").symlink_to(outside)
    folders.on_machine("/srv/upwards").symlink_to("../../../../../..")
    folders.on_machine("/srv/loop").symlink_to("loop")
    assert folders.run("realpath", ["-m", "--", "/srv/inner/x"]) == (0, "/srv/real/x\n", "")
    # As seen on the node: an absolute link begins at its root, and above that there is nothing.
    assert folders.run("realpath", ["-m", "--", "/srv/outer"]) == (0, f"{outside}\n", "")
    assert folders.run("realpath", ["-m", "--", "/srv/upwards/y"]) == (0, "/y\n", "")
    assert folders.run("realpath", ["-m", "--", "/srv/loop"])[0] == 1
    for link in ("inner", "outer", "upwards"):
        assert folders.run("mkdir", ["-p", "--", f"/srv/{link}/new"])[0] == 1
        assert folders.run("chown", ["-h", "1:1", "--", f"/srv/{link}/new"])[0] == 1
    assert list(outside.iterdir()) == []
    assert not is_plain_folder(folders.on_machine("/srv/inner"))
    assert is_plain_folder(folders.on_machine("/srv/real"))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("mkdir", ["-p", "--", "/../../x"]),
        ("mkdir", ["-p", "--", "relative"]),
        ("chown", ["-R", "1:1", "--", "/srv"]),
        ("chown", ["-h", "root:root", "--", "/srv"]),
        ("find", ["/srv", "-delete"]),
        ("id", []),
        ("stat", ["/srv"]),
    ],
)
def test_all_else_is_refused(folders: HostFolders, program: str, words: list[str]) -> None:
    status, output, errors = folders.run(program, words)
    assert (status, output) == (1, "")
    assert errors.startswith(f"{program}: ")


def test_without_root_it_is_remembered_who_would_own_a_folder(
    folders: HostFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    folders.run("mkdir", ["-p", "--", "/srv/x"])
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/srv/x"])[1].split()[1:3] == ["0", "0"]
    assert folders.run("chown", ["-h", "110000:110000", "--", "/srv/x"]) == (0, "", "")
    assert folders.run("stat", ["-c", "%f %u %g %m", "--", "/srv/x"])[1].split()[1:3] == ["110000", "110000"]
