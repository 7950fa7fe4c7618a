"""Which template is taken where none is named."""

from __future__ import annotations

import pytest

from proxmox.errors import Faults
from proxmox.templates import newest_debian, newest_on
from tests.unit.proxmox_http import Server, data

# As `pveam available --section system` has listed them.
OLD = "local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst"
TWELVE = "local:vztmpl/debian-12-standard_12.12-1_amd64.tar.zst"
THIRTEEN = "local:vztmpl/debian-13-standard_13.1-2_amd64.tar.zst"
OTHERS = [
    "local:vztmpl/debian-11-standard_11.7-1_amd64.tar.zst",
    "local:vztmpl/ubuntu-24.04-standard_24.04-2_amd64.tar.zst",
    "local:vztmpl/debian-13-turnkey-core_18.0-1_amd64.tar.gz",
    "local:vztmpl/debian-12-standard_12.12-1_arm64.tar.zst",
    "local:vztmpl/debian-14-standard_14.0-1_amd64.tar.zst",
]


@pytest.mark.parametrize(
    ("volids", "expected"),
    [
        ([], None),
        (OTHERS, None),
        ([*OTHERS, TWELVE], TWELVE),
        ([TWELVE, OLD], TWELVE),  # 12.12 is newer than 12.7
        ([TWELVE, THIRTEEN, OLD], THIRTEEN),
        ([THIRTEEN.replace("-2_", "-10_"), THIRTEEN], THIRTEEN.replace("-2_", "-10_")),
        ([TWELVE.replace("local", "nfs"), TWELVE], TWELVE),
    ],
)
def test_the_newest_debian_of_the_two_that_work_is_taken(volids: list[str], expected: str | None) -> None:
    assert newest_debian(volids) == newest_debian(reversed(volids)) == expected


def node(*volids: str) -> Server:
    storages = [
        {"storage": "local", "type": "dir", "content": "vztmpl,iso", "enabled": 1, "active": 1},
        {"storage": "local-lvm", "type": "lvmthin", "content": "rootdir", "enabled": 1, "active": 1},
        {"storage": "off", "type": "nfs", "content": "vztmpl", "enabled": 1, "active": 0},
    ]
    rows = [{"volid": volid, "content": "vztmpl", "format": "tzst", "size": 1} for volid in volids]
    return Server({"GET /nodes/pve/storage": data(storages), "GET /nodes/pve/storage/local/content": data(rows)})


def test_only_storages_that_have_templates_and_are_there_are_asked() -> None:
    assert newest_on(node(OLD, TWELVE).client(), "pve") == TWELVE


def test_without_any_the_error_says_what_there_is_and_how_to_get_one() -> None:
    with pytest.raises(Faults) as caught:
        newest_on(node(OTHERS[0]).client(), "pve")
    [fault] = caught.value.faults
    assert OTHERS[0] in fault.rule
    assert "pveam download STORAGE TEMPLATE" in fault.remedy
