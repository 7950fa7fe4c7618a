"""Where a device is mounted, of a namespace's list."""

from __future__ import annotations

from pvelab.letgo import mounted

LIST = """\
25 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
40 25 7:3 / /run/pvelab/a/rootfs rw - ext4 /dev/loop3 rw
41 40 7:31 / /run/pvelab/b rw - ext4 /dev/loop31 rw
42 25 7:3 /sub /mnt/with\\040blank\\134and\\011more rw shared:7 - ext4 /dev/loop3 rw
"""


def test_the_newest_mount_comes_first_and_names_are_unescaped() -> None:
    assert mounted(LIST, "7:3") == ["/mnt/with blank\\and\tmore", "/run/pvelab/a/rootfs"]
    assert mounted(LIST, "7:4") == []
