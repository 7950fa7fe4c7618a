"""vzdump's archives: a tar, compressed by zstd, that is read and written as it flows."""

from __future__ import annotations

import contextlib
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from pvelab.runtime import RuntimeFault

CONFIG = "etc/vzdump/pct.conf"
FIREWALL = "etc/vzdump/pct.fw"


@contextlib.contextmanager
def compressed(target: Path) -> Iterator[IO[bytes]]:
    """Where to write what is to be in ``target``. RuntimeFault when zstd fails."""
    with target.open("wb") as file, _zstd(["-q"], stdin=subprocess.PIPE, stdout=file) as child:
        if child.stdin is None:
            raise RuntimeError("it was asked for")
        with child.stdin:
            yield child.stdin
        if child.wait():
            raise RuntimeFault(f"command 'zstd' failed: exit code {child.returncode}")


@contextlib.contextmanager
def decompressed(archive: Path) -> Iterator[IO[bytes]]:
    """What is in an archive; nobody has to read it to its end. RuntimeFault for one that zstd can't read."""
    # Resolved: zstd passes over symbolic links.
    with _zstd(["-dcq", str(archive.resolve())], stdout=subprocess.PIPE) as child:
        if child.stdout is None:
            raise RuntimeError("it was asked for")
        yield child.stdout
        at_end = not child.stdout.read(1)
        child.stdout.close()
        if child.wait() and at_end:
            raise RuntimeFault(f"command 'zstd' failed: exit code {child.returncode}")


@contextlib.contextmanager
def packing(target: Path) -> Iterator[tarfile.TarFile]:
    with compressed(target) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        yield tar


@contextlib.contextmanager
def unpacking(archive: Path) -> Iterator[tarfile.TarFile]:
    with decompressed(archive) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        yield tar


def config_in(archive: Path) -> str:
    """The guest's configuration (PVE/LXC/Create.pm recover_config_from_tar). ValueError when there is none."""
    try:
        with unpacking(archive) as tar:
            for entry in tar:
                found = tar.extractfile(entry) if entry.name == f"./{CONFIG}" else None
                if found is not None:
                    return found.read().decode()
    except tarfile.TarError:
        pass
    raise ValueError(f"archive contains no configuration file '{CONFIG}'")


def _zstd(
    options: Sequence[str], *, stdin: int | None = None, stdout: int | IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(["zstd", *options], stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise RuntimeFault("command 'zstd' failed: No such file or directory; install the package zstd") from None
