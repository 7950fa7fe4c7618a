"""What is left in the home, and how much room there is: what the configure phase decides from it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from applications.hermes.guest import leftovers, room
from provisioning.guest.common import Refusal

# proc(5), /proc/locks: a holder, one who waits for it, a lock of another kind on the same file, another file.
LOCKS = """\
1: FLOCK  ADVISORY  WRITE 4711 08:02:131 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 08:02:131 0 EOF
2: POSIX  ADVISORY  WRITE 4713 08:02:132 0 EOF
3: FLOCK  ADVISORY  WRITE 0 08:02:133 0 EOF
"""


@pytest.mark.parametrize(("inode", "holder"), [(131, 4711), (132, None), (133, None), (134, None)])
def test_the_holder_of_a_lock_is_found(inode: int, holder: int | None) -> None:
    assert leftovers.holder_of(LOCKS, os.makedev(8, 2), inode) == holder
    assert leftovers.holder_of(LOCKS, os.makedev(8, 3), inode) is None


def test_a_gateway_that_is_not_the_units_is_named(tmp_path: Path) -> None:
    lock = tmp_path / "gateway.lock"
    leftovers.refuse_another_gateway(str(tmp_path), 0)  # no file
    with lock.open("w") as held:
        leftovers.refuse_another_gateway(str(tmp_path), 0)  # nobody holds it
        fcntl.flock(held, fcntl.LOCK_EX)
        leftovers.refuse_another_gateway(str(tmp_path), os.getpid())  # the unit's own
        with pytest.raises(Refusal, match=rf"(?s)process {os.getpid()} holds .*itself '.*python.*kill {os.getpid()}"):
            leftovers.refuse_another_gateway(str(tmp_path), 1)


def test_room_is_measured(tmp_path: Path) -> None:
    assert room.lacking(str(tmp_path), megabytes=1, files=1) is None
    assert "100000000000 are needed at least" in str(room.lacking(str(tmp_path), megabytes=10**11, files=1))
    assert "more files" in str(room.lacking(str(tmp_path), megabytes=1, files=10**15))


def test_a_full_volume_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room.refuse_full_volume(str(tmp_path))
    monkeypatch.setattr(room, "VOLUME_MB", 10**11)
    with pytest.raises(Refusal, match=f"the disk at {tmp_path} is full: .* MB are free"):
        room.refuse_full_volume(str(tmp_path))
