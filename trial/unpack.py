"""Unpacks a home from an archive. Runs in the guest, as the agent's user, with the standard library only.

Standard input: a tar or zip file with a HERMES_HOME, or with a backup of the stack (a folder with manifest.json and
`data`), at any depth. Argument: the home's path. Nothing is written outside of it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

DEPTH = 4
SIGNS = ("state.db", "config.yaml", "SOUL.md", "memories")


def inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def unpack(archive: BinaryIO, folder: Path) -> None:
    """Unpack files, folders, and links that stay inside."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for name in opened.namelist():
                if inside(name):
                    opened.extract(name, folder)
        return
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            linked = not member.issym() or inside(member.linkname)
            if inside(member.name) and linked and (member.isfile() or member.isdir() or member.issym()):
                member.mode = 0o700 if member.isdir() else (member.mode & 0o100) | 0o600
                tar.extract(member, folder, set_attrs=not member.issym())


def home_in(folder: Path) -> Path:
    """The HERMES_HOME nearest to the top. Raises ValueError if there is none."""
    level = [folder]
    for _ in range(DEPTH):
        for path in level:
            if (path / "manifest.json").is_file() and (path / "data").is_dir():
                return path / "data"
            if any((path / name).exists() for name in SIGNS):
                return path
        level = sorted(child for path in level for child in path.iterdir() if child.is_dir() and not child.is_symlink())
    raise ValueError(f"the archive holds no home of the agent: it has none of {', '.join(SIGNS)}")


def put(archive: BinaryIO, home: Path) -> int:
    """Put the archive's home in place. Returns the number of files."""
    home.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=home.parent) as name:
        unpack(archive, Path(name))
        for entry in home_in(Path(name)).iterdir():
            place = home / entry.name
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            entry.rename(place)
    return sum(len(names) for _, _, names in os.walk(home))


def main() -> int:
    os.umask(0o077)
    home = Path(sys.argv[1])
    with tempfile.TemporaryFile(dir=home.parent) as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.seek(0)
        try:
            count = put(copy, home)
        except (ValueError, OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
            # For a file of no known form Python gives one reason for each form. The first line is enough.
            why = str(error).partition("\n")[0].removesuffix(":")
            print(f"error: the copy of the home can't be used: {why}", file=sys.stderr)
            return 1
    print(f"home: {count} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
