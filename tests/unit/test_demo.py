"""The demo's checksum of a volume: of its data, wherever the holes are. And what it shows of its figures."""

from __future__ import annotations

import io
import os
from pathlib import Path

from rich.console import Console

from lab.engine import Run, Span
from lab.instance import Lab
from scripts.lib.demo import Demo
from scripts.lib.demo import data_checksum as checksum


def image(folder: Path, name: str, *pieces: tuple[int, bytes], size: int = 1 << 22) -> Path:
    path = folder / name
    with path.open("wb") as file:
        file.truncate(size)
        for place, data in pieces:
            file.seek(place)
            file.write(data)
        os.fsync(file.fileno())
    return path


def test_the_same_data_is_the_same_sum_and_one_byte_is_another(tmp_path: Path) -> None:
    block = os.urandom(4096)
    one = image(tmp_path, "one", (0, block), (1 << 21, block))
    assert checksum(one) == checksum(image(tmp_path, "two", (0, block), (1 << 21, block)))
    changed = bytes([block[0] ^ 1]) + block[1:]
    assert checksum(one) != checksum(image(tmp_path, "three", (0, block), (1 << 21, changed)))
    assert checksum(one) != checksum(image(tmp_path, "moved", (0, block), (1 << 20, block)))


def test_an_empty_volume_has_a_sum_too(tmp_path: Path) -> None:
    assert len(checksum(image(tmp_path, "empty"))) == 64


def test_a_hole_is_what_it_reads_as(tmp_path: Path) -> None:
    """Written zeros and a hole are the same content, wherever the file system puts the border between them."""
    block = os.urandom(4096)
    one = image(tmp_path, "one", (1 << 20, block), (3 << 20, block[:100]))
    filled = image(tmp_path, "filled", (0, bytes(2 << 20)), (1 << 20, block), (3 << 20, block[:100] + bytes(9000)))
    assert one.read_bytes() == filled.read_bytes()
    assert checksum(one) == checksum(filled)


def test_a_read_changes_no_sum(tmp_path: Path) -> None:
    """What is allocated and not written is a hole to SEEK_DATA until somebody has read it (ext4, XFS)."""
    one = image(tmp_path, "one", (1 << 20, os.urandom(4096)))
    with one.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
        os.fsync(file.fileno())
    before = checksum(one)
    one.read_bytes()
    assert checksum(one) == before


def test_no_line_over_the_figures_is_wrapped(tmp_path: Path) -> None:
    """A table's own title is, where the table is narrower."""
    shown = io.StringIO()
    demo = Demo(Lab(tmp_path), Console(file=shown, width=100))
    made = Run(seconds=20.0, spans=[Span("cattle-container", "", "create", 1.0, 3.5)])
    demo.measure(first=Run(seconds=30.0), second=made, ensure=Run(seconds=2.0), gone=Run(seconds=2.6))
    lines = [line.strip() for line in shown.getvalue().splitlines() if line.strip()]
    assert lines[0] == "Made again, with warm caches"
    assert lines[1][0] == "┏"
