"""The demo's checksum of a volume: of its data, wherever the holes are."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Checksum = Callable[[Path], str]


@pytest.fixture(scope="module")
def checksum() -> Checksum:
    spec = importlib.util.spec_from_file_location("demo", Path(__file__).parents[2] / "scripts" / "lib" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Checksum = module.data_checksum
    return found


def image(folder: Path, name: str, *pieces: tuple[int, bytes], size: int = 1 << 22) -> Path:
    path = folder / name
    with path.open("wb") as file:
        file.truncate(size)
        for place, data in pieces:
            file.seek(place)
            file.write(data)
        os.fsync(file.fileno())
    return path


def test_the_same_data_is_the_same_sum_and_one_byte_is_another(checksum: Checksum, tmp_path: Path) -> None:
    block = os.urandom(4096)
    one = image(tmp_path, "one", (0, block), (1 << 21, block))
    assert checksum(one) == checksum(image(tmp_path, "two", (0, block), (1 << 21, block)))
    changed = bytes([block[0] ^ 1]) + block[1:]
    assert checksum(one) != checksum(image(tmp_path, "three", (0, block), (1 << 21, changed)))
    assert checksum(one) != checksum(image(tmp_path, "moved", (0, block), (1 << 20, block)))


def test_an_empty_volume_has_a_sum_too(checksum: Checksum, tmp_path: Path) -> None:
    assert len(checksum(image(tmp_path, "empty"))) == 64


def test_a_hole_is_what_it_reads_as(checksum: Checksum, tmp_path: Path) -> None:
    """Written zeros and a hole are the same content, wherever the file system puts the border between them."""
    block = os.urandom(4096)
    one = image(tmp_path, "one", (1 << 20, block), (3 << 20, block[:100]))
    filled = image(tmp_path, "filled", (0, bytes(2 << 20)), (1 << 20, block), (3 << 20, block[:100] + bytes(9000)))
    assert one.read_bytes() == filled.read_bytes()
    assert checksum(one) == checksum(filled)


def test_a_read_changes_no_sum(checksum: Checksum, tmp_path: Path) -> None:
    """What is allocated and not written is a hole to SEEK_DATA until somebody has read it (ext4, XFS)."""
    one = image(tmp_path, "one", (1 << 20, os.urandom(4096)))
    with one.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
        os.fsync(file.fileno())
    before = checksum(one)
    one.read_bytes()
    assert checksum(one) == before
