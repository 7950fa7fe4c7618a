#!/usr/bin/python3 -I
"""State: copy the agent's data to a backup on the same volume, and give it back. As the agent's user, never as root.

    state.py HOME DATA make --version V --reason WORDS [--home]     the gateway may run
    state.py HOME DATA freshen NAME                        services stopped: what changed since `make`
    state.py HOME DATA undo NAME --version V               services stopped: give back what version V has migrated
    state.py HOME DATA restore NAME                        services stopped: the data as they were
    state.py HOME DATA list | prune KEEP KEEP_SCHEDULED
    state.py HOME DATA receive NAME --sum SUM --bytes N    a backup that was copied elsewhere, as tar on standard input

HOME is the account's home, DATA the agent's (HERMES_HOME); the backups are in HOME/.hermes-stack/backups. A backup is
a folder UTC-VERSION with manifest.json and `data`, the files as they were; with --home also `home`, the rest of the
home. It is made beside and renamed: what has another name than that is none. Files that did not change since the backup
before are hard links to it.

The last line of the standard output is JSON; errors go to the standard error, status 1. Each may be followed by
`--known JSON`: the SHA-256 of the manifests of the backups that are known to be ours, by name. What lies there besides
is listed, and given back when it is asked for by name, but nothing is built on it. Whoever can write here can forge all
of it: a manifest is read as an enemy's.

Why not `hermes backup` and `hermes import` (read in 0.19.0, hermes_cli/backup.py): the first ends with 0 also when it
is incomplete; the second writes over databases in place beside their old write-ahead log, which ruined databases until
upstream's pull request 95531, and leaves newer files where they are. How databases are copied is the same:
SQLite's online backup.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

FORMAT = 1
KEPT = ".hermes-stack"
NAME = re.compile(r"\d{8}T\d{6}Z-[A-Za-z0-9][A-Za-z0-9.+_-]{0,100}\Z")
MANIFEST_LIMIT = 256 << 20
"""Bytes of a manifest that are read: a million files have that many."""
FOREIGN_LIMIT = 16 << 20
"""Bytes of a manifest that is not one of ours: parsed, they can take twenty times as much of the memory."""
TEXT_LIMIT = 1000
"""Characters of each text about a backup: ours have some dozens."""
LARGEST = 1 << 60
"""Bytes that a file can have, or a backup. No number that is larger is put into a sentence."""
PATH_LIMIT = 3000
"""Bytes of a path: with the folder of a backup before it, it has to fit into the kernel's 4096."""
NAME_LIMIT = 255
DEEPEST = 200
"""Folders in each other: what walks a tree, walks it by calling itself."""
SAID_MOST = 200
FOREIGN_SHOWN = 200
"""Backups that are not ours, and are listed all the same: the newest."""
MAKING = ".making-"
RESERVE = 32 << 20
"""Bytes that stay free beside a backup: the agent goes on writing meanwhile."""
FRESHEN_LIMIT = 512 << 20
"""Bytes that are copied at most while the agent is offline; of larger changes the copy made before counts."""
DATABASE_SECONDS = 300.0
SHAPE_LIMIT = 16 << 20
"""Bytes of a configuration file that are read."""
SHAPE_DEPTH = 50
"""Levels of a JSON file that are looked at."""
SCHEMA_SECONDS = 60.0
ROW_LIMIT = 1 << 20
"""Bytes of a row that is read, and of all rows of a table that tell of a schema: they may be made of nothing at all."""

# What can be had again, or is worth nothing after the moment: upstream's own list (hermes_cli/backup.py), less `.git`,
# for a user's skills may be repositories.
EVERYWHERE = {
    "__pycache__", "node_modules", ".venv", "venv", "site-packages", ".cache", ".tox", ".nox", ".pytest_cache",
    ".mypy_cache", ".ruff_cache",
}  # fmt: skip
AT_THE_TOP = {"hermes-agent", "backups", "checkpoints", "logs", "state-snapshots"}
VOLATILE = {
    "gateway.pid", "gateway.lock", "gateway_state.json", "processes.json", "cron.pid", ".clean_shutdown",
    "gateway.heartbeat", "ticker_heartbeat", "ticker_last_success", "channel_directory.json", ".update_check",
}  # fmt: skip
SIDECARS = ("-wal", "-shm", "-journal")
SCHEDULED = "on schedule"
"""The reason of a backup that the timer made: these are counted by themselves."""
ASKED_FOR = "asked for"
# What a new version may rewrite at its start, and where a file that is gone was moved by it and not by its age.
CONFIGURATION = {"config.yaml", ".env", "auth.json", "cron/jobs.json"}
CONTENT = ("memories/", "sessions/", "skills/", "hooks/", "SOUL.md")

Manifest = dict[str, Any]
Known = Mapping[str, str] | None


class StateError(Exception):
    """A reason to stop, in words for the operator."""


# ---- what is there --------------------------------------------------------------------------------------------------


def is_database(path: Path) -> bool:
    """By its first bytes: names differ, and a file that is only called .db is copied as it stands."""
    try:
        return content_of(path, 16, whole=False) == b"SQLite format 3\0"
    except OSError:
        return False


def content_of(path: Path, limit: int, *, whole: bool = True) -> bytes:
    """Of a plain file, at most `limit` bytes; OSError for anything else, and for a larger one that is wanted `whole`.

    A pipe is not waited for.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(22, "Not a plain file", str(path))
        content = stream.read(limit)
        if whole and stream.read(1):
            raise OSError(27, "Too large", str(path))
        return content


def sum_of(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Tree:
    """A folder that a backup holds. `field`: of the manifest; `folder`: of the backup; `leave`: no part of it."""

    field: str
    folder: str
    top: Path
    leave: Callable[[Path], bool]

    def scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """Files, links and folders that belong into a backup: path below `top`, and its lstat."""
        for folder, folders, names in os.walk(self.top):
            here = Path(folder)
            folders[:] = sorted(name for name in folders if name not in EVERYWHERE and not self.leave(here / name))
            if too_deep := [name for name in (*folders, *names) if not fits(self.below(here / name))]:
                say(f"{len(too_deep)} names at {self.below(here)[:100]!a}... lie too deep; they are in no backup")
                folders[:] = [name for name in folders if name not in too_deep]
                names[:] = [name for name in names if name not in too_deep]
            for name in sorted([*folders, *names]):
                path = here / name
                if self.leave(path):
                    continue
                if any(name.endswith(end) and is_database(path.with_name(name[: -len(end)])) for end in SIDECARS):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    found = path.lstat()
                    if stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode):
                        yield self.below(path), found

    def below(self, path: Path) -> str:
        """A path of this tree, from its top on."""
        return path.relative_to(self.top).as_posix()


def fits(path: str) -> bool:
    """Whether a path of a tree can be walked, and be copied into a backup."""
    return len(os.fsencode(path)) <= PATH_LIMIT and path.count("/") < DEEPEST


def tree_of_data(data: Path) -> Tree:
    """The agent's own data."""

    def leave(path: Path) -> bool:
        return path.name in VOLATILE or path.name.endswith(".lock") or (path.parent == data and path.name in AT_THE_TOP)

    return Tree("files", "data", data, leave)


def trees_of(home: Path, data: Path, manifest: Manifest) -> list[Tree]:
    """What a backup holds: the agent's data, and where it has that the rest of the home."""

    def leave(path: Path) -> bool:
        # The backups themselves, the stack's notes and its record; and what is the file system's own.
        return path == data or (path.parent == home and (path.name.startswith(KEPT) or path.name == "lost+found"))

    rest = [Tree("home", "home", home, leave)] if "home" in manifest and data != home else []
    return [tree_of_data(data), *rest]


def sidecars(path: Path, ends: Iterable[str] = SIDECARS) -> list[Path]:
    """What may lie beside a database; nothing has a name that is longer than a name can be."""
    return [path.with_name(f"{path.name}{end}") for end in ends if len(os.fsencode(f"{path.name}{end}")) <= NAME_LIMIT]


def part_of(target: Path) -> Path:
    """What a file is called while it is written; its own name may be as long as a name can be."""
    return target.with_name(f".{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:32]}.part")


def mark(path: Path) -> list[list[int]]:
    """Changes whenever the file's content does; of a database also its write-ahead log's."""
    marks = []
    for each in (path, *sidecars(path, ("-wal",))):
        with contextlib.suppress(FileNotFoundError):
            found = each.lstat()
            if each == path or found.st_size:
                marks.append([found.st_size, found.st_mtime_ns, found.st_ino])
    return marks


def open_readonly(path: Path, *, closed_for_good: bool = False) -> sqlite3.Connection:
    """A read-only connection. `closed_for_good`: nobody else has it, and no log belongs to it."""
    how = "immutable=1" if closed_for_good else "mode=ro"
    return sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?{how}", uri=True, timeout=30)


def schema_of(path: Path, *, closed_for_good: bool = False) -> str | None:
    """A text that a migration changes and writing does not: tables, their versions. None: it can't be read.

    Not `application_id`: newer agents stamp a random mark there (upstream's pull request 99753).
    """
    try:
        with contextlib.closing(open_readonly(path, closed_for_good=closed_for_good)) as database:
            # The agent may have made it: a column can be computed, and as large as a row may be.
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, ROW_LIMIT)
            deadline = time.monotonic() + SCHEMA_SECONDS
            database.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            parts: list[Any] = [database.execute("PRAGMA user_version").fetchone()[0]]
            tables = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
            parts.append([row for row in tables if not row[1].startswith("sqlite_")])
            for kind, name, sql in tables:
                if kind != "table" or not str(sql).upper().startswith("CREATE TABLE"):
                    continue
                quoted = '"' + name.replace('"', '""') + '"'
                columns = {row[1].lower() for row in database.execute(f"PRAGMA table_info({quoted})")}
                if re.search("version|migration", name.lower()):
                    rows = database.execute(f"SELECT * FROM {quoted} LIMIT 1000")  # noqa: S608 - quoted
                elif {"key", "value"} <= columns:
                    rows = database.execute(
                        f"SELECT key, value FROM {quoted} WHERE key LIKE '%version%' LIMIT 1000"  # noqa: S608 - quoted
                    )
                else:
                    continue
                parts.append([name, sorted(_within(map(repr, rows), ROW_LIMIT))])
            return json.dumps(parts, default=repr)
    except sqlite3.Error:
        return None


def _within(texts: Iterable[str], most: int) -> Iterator[str]:
    """The first of them, with at most so many characters."""
    for text in texts:
        most -= len(text)
        if most < 0:
            return
        yield text


def shape_of(path: Path) -> str:
    """Of a JSON file its keys, for its values change while it is used (tokens, times); of any other its content.

    One that is no configuration (too large, a pipe) has a shape that no other has.
    """
    try:
        content = content_of(path, SHAPE_LIMIT)
    except OSError as error:
        return str(error.strerror)
    if path.suffix == ".json":
        with contextlib.suppress(ValueError, RecursionError):
            return repr(_shape(json.loads(content)))
    return repr(content)


def _shape(value: Any, depth: int = SHAPE_DEPTH) -> Any:
    # Not as text: each quotation mark of what lies inside would double with each level.
    if isinstance(value, dict) and depth:
        return {key: _shape(value[key], depth - 1) for key in sorted(value)}
    if isinstance(value, list) and depth:
        found = {repr(shape): shape for shape in (_shape(item, depth - 1) for item in value)}
        return [found[text] for text in sorted(found)]
    return ""


# ---- copying --------------------------------------------------------------------------------------------------------


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy, whoever writes meanwhile. sqlite3.Error when it is none or is damaged beyond reading."""
    deadline = time.monotonic() + DATABASE_SECONDS

    def patience(_status: int, _remaining: int, _total: int) -> None:
        # The library tries for ever while somebody holds the database.
        if time.monotonic() > deadline:
            raise StateError(f"{source} is held by another process for {DATABASE_SECONDS:g} s; it can't be copied.")

    target.unlink(missing_ok=True)
    with contextlib.closing(open_readonly(source)) as live, contextlib.closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA synchronous=OFF")  # the whole folder is synced at the end
        live.backup(copy, progress=patience)
    shutil.copystat(source, target)


def copy_into(tree: Tree, backup: Path, path: str, found: os.stat_result) -> Manifest | None:
    """Copy one entry; its line of the manifest, or None when it has gone meanwhile."""
    source, target = tree.top / path, backup / tree.folder / path
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(found.st_mode):
        target.mkdir(parents=True, exist_ok=True)
        return {"kind": "folder", "mode": mode}
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = part_of(target)
    try:
        if stat.S_ISLNK(found.st_mode):
            return {"kind": "link", "to": str(source.readlink())}
        marks = mark(source)
        if is_database(source):
            try:
                copy_database(source, aside)
                aside.replace(target)
                return {
                    "kind": "database",
                    "mode": mode,
                    "size": target.stat().st_size,
                    "sha256": sum_of(target),
                    "marks": marks,
                    "schema": schema_of(target, closed_for_good=True),
                }
            except sqlite3.Error as error:
                if "disk" in str(error) and "full" in str(error):
                    raise OSError(28, "No space left on device") from None
                say(f"{path} can't be read as a database ({error}); it is copied as it stands")
                for each, beside in zip(sidecars(source), sidecars(target), strict=True):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copy2(each, beside)
        shutil.copy2(source, aside, follow_symlinks=False)
        aside.replace(target)
    except FileNotFoundError:
        aside.unlink(missing_ok=True)
        return None
    except PermissionError as error:
        if tree.field == "files":
            raise
        # Somebody else's, or closed on purpose. The rest is worth more than this one.
        say(f"{path} can't be read ({error.strerror}); it is in no backup")
        return None
    size = target.stat().st_size
    return {"kind": "file", "mode": mode, "size": size, "sha256": sum_of(target), "marks": marks}


_said = itertools.count(1)


def say(text: str) -> None:
    """A line for the operator; no more than SAID_MOST, for the agent can give cause for any number."""
    number = next(_said)
    if number <= SAID_MOST:
        print(
            f"backup: {text if number < SAID_MOST else 'there is more, which is not shown'}",
            file=sys.stderr,
            flush=True,
        )


def sync(folder: Path) -> None:
    """Onto the disk: one call for the file system instead of one a file."""
    subprocess.run(["/usr/bin/sync", "--file-system", str(folder)], check=True, timeout=600)


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def need_room(folder: Path, needed: int, what: str) -> None:
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free < needed + RESERVE:
        raise StateError(
            f"{what} needs {megabytes(needed + RESERVE)}, but {folder} has {megabytes(free)} free. "
            "Nothing was changed.\n"
            "Make room: remove old backups there, lower agentBackupsKept, or grow the volume."
        )


# ---- backups --------------------------------------------------------------------------------------------------------


def folder_of(home: Path) -> Path:
    folder = home / KEPT / "backups"
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)
    return folder


@contextlib.contextmanager
def exclusive(home: Path) -> Iterator[Path]:
    """The folder of the backups, with nobody else at work in it and without leftovers of a run that was killed."""
    folder = folder_of(home)
    # For reading as well: so a pipe that somebody has put there is not waited for.
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(lock, "r+b", buffering=0):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StateError("another backup or restore is at work. Wait for its end.") from None
        for leftover in folder.glob(f"{MAKING}*"):
            # One that can't be removed is in nobody's way: no backup has its name.
            with contextlib.suppress(OSError):
                remove_tree(leftover)
        yield folder


def remove_tree(path: Path) -> None:
    """Remove a folder, or whatever is in its place. OSError where that fails.

    By `rm`, which walks a tree of any depth. A folder that the agent has closed to its own account is opened first.
    """
    if path.is_dir() and not path.is_symlink():
        subprocess.run(["/usr/bin/chmod", "-R", "u+rwX", "--", str(path)], check=False, capture_output=True)
    done = subprocess.run(["/usr/bin/rm", "-rf", "--", str(path)], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(39, done.stderr.strip()[-300:] or "It can't be removed", str(path))


FIELDS: dict[str, type] = {
    "format": int,
    "name": str,
    "version": str,
    "reason": str,
    "partial": bool,
    "created": str,
    "bytes": int,
    "files": dict,
}


def manifest_of(folder: Path, known: Known = None) -> Manifest | None:
    """With `sum`, the SHA-256 of its file; None when it is no backup of this format."""
    try:
        content = content_of(folder / "manifest.json", MANIFEST_LIMIT)
        total = hashlib.sha256(content).hexdigest()
        if len(content) > FOREIGN_LIMIT and known is not None and known.get(folder.name) != total:
            say(f"{folder.name} is left out: its manifest is not ours, and has more than {megabytes(FOREIGN_LIMIT)}")
            return None
        manifest: Manifest = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None
    if fault := fault_of(manifest, folder.name):
        say(f"{folder.name} is left out: {fault}")
        return None
    return fields_of(manifest) | {"sum": total}


def fields_of(manifest: Manifest) -> Manifest:
    """What the file of a manifest holds."""
    return {field: manifest[field] for field in (*FIELDS, "home") if field in manifest}


def size_of(manifest: Manifest) -> int:
    """Bytes of all files of a backup."""
    return sum(line.get("size", 0) for field in ("files", "home") for line in manifest.get(field, {}).values())


def fault_of(manifest: Any, name: str) -> str | None:
    """What keeps a parsed manifest from being one, in words; None when nothing does."""
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return "its manifest is of another format"
    kinds = FIELDS | ({"home": dict} if "home" in manifest else {})
    wrong = [
        field
        for field, kind in kinds.items()
        if type(manifest.get(field)) is not kind or (kind is str and len(manifest[field]) > TEXT_LIMIT)
    ]
    if wrong:
        return f"its manifest has no proper {', '.join(wrong)}"
    if manifest["name"] != name or not NAME.match(name):
        return "its manifest has another name"
    rest = manifest.get("home", {})
    if not 0 <= manifest["bytes"] <= LARGEST or not all(proper_path(path) for path in (*manifest["files"], *rest)):
        return "its manifest names a file that can't be one of the agent's data"
    if not all(proper_line(line) for line in (*manifest["files"].values(), *rest.values())):
        return "its manifest tells something of a file that can't be"
    return None


def proper_path(path: str) -> bool:
    """Whether a path stays below the folder that it is in."""
    return is_text(path) and fits(path) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def is_text(path: str) -> bool:
    """Whether the system takes it: JSON has halves of characters, too."""
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def proper_line(line: Any) -> bool:
    """Whether it tells of a file, in the form in which `copy_into` does."""
    if not isinstance(line, dict):
        return False
    kind, mode, size = line.get("kind"), line.get("mode", 0o600), line.get("size")
    if kind == "link":
        return isinstance(line.get("to"), str) and "\0" not in line["to"] and is_text(line["to"])
    if type(mode) is not int or not 0 <= mode <= 0o7777:
        return False
    if kind == "folder":
        return True
    total, schema = line.get("sha256", ""), line.get("schema")
    plain = (
        type(size) is int
        and 0 <= size <= LARGEST
        and isinstance(total, str)
        and isinstance(line.get("marks", []), list)
    )
    return plain and (kind == "file" or (kind == "database" and (schema is None or isinstance(schema, str))))


def all_backups(home: Path, known: Known = None) -> Iterator[Manifest]:
    """Newest first; one after the other, for there may be any number of any size."""
    folder = home / KEPT / "backups"
    for name in sorted((path.name for path in folder.glob("*") if NAME.match(path.name)), reverse=True):
        manifest = manifest_of(folder / name, known)
        if manifest is not None:
            yield manifest


def is_known(manifest: Manifest, known: Known) -> bool:
    """Whether it is one of ours, as we made it. Where nothing is noted down at all, each is."""
    return known is None or known.get(manifest["name"]) == manifest["sum"]


def find(home: Path, name: str, known: Known = None) -> tuple[Path, Manifest]:
    """By name, or `latest`: the newest whole one. StateError when there is none, or it was noted with another sum."""
    there = []
    for manifest in all_backups(home, known):
        there.append(f"  {manifest['name']}")
        if manifest["name"] == name or (name == "latest" and not manifest["partial"]):
            if known is not None and known.get(manifest["name"], manifest["sum"]) != manifest["sum"]:
                raise StateError(f"the backup {manifest['name']} has been changed since it was made.")
            return home / KEPT / "backups" / str(manifest["name"]), manifest
    listed = "\n".join(there[:FOREIGN_SHOWN]) or "  (none)"
    raise StateError(f"there is no backup {name}. Those that are there:\n{listed}")


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Answers its SHA-256."""
    part = folder / ".manifest.part"
    content = json.dumps(fields_of(manifest)).encode()
    part.write_bytes(content)
    part.replace(folder / "manifest.json")
    return hashlib.sha256(content).hexdigest()


def new_name(folder: Path, version: str, end: str = "") -> str:
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{re.sub('[^A-Za-z0-9.+_-]', '-', version)[:60]}{end}"
    name, count = stem, 1
    while (folder / name).exists():
        count += 1
        name = f"{stem}-{count}"
    return name


def make(home: Path, data: Path, version: str, reason: str, known: Known = None, *, rest: bool = False) -> Manifest:
    """A backup of the data as it is, with `rest` of the whole home. StateError when there is no room; then nothing is
    left of it."""
    with exclusive(home) as folder:
        whole = [each for each in all_backups(home, known) if not each["partial"] and is_known(each, known)]
        name = new_name(folder, version)
        manifest: Manifest = {
            "format": FORMAT,
            "name": name,
            "version": version,
            "reason": reason,
            "partial": False,
            "created": "",
            "bytes": 0,
            "files": {},
            **({"home": {}} if rest else {}),
        }
        copies = [Copy.begun(tree, folder, whole) for tree in trees_of(home, data, manifest)]
        need_room(folder, sum(copy.needed for copy in copies), "a backup")
        making = folder / f"{MAKING}{name}"
        making.mkdir(mode=0o700)
        try:
            for copy in copies:
                manifest[copy.tree.field] = copy.carried_out(making)
            manifest |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "bytes": size_of(manifest)}
            manifest["sum"] = write_manifest(making, manifest)
            sync(making)
            making.rename(folder / name)
            sync(folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                remove_tree(making)
            if error.errno == 28:
                raise StateError(
                    f"the volume became full during the backup ({error}); nothing of it was left."
                ) from None
            raise
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(making)
            raise
        return manifest


def receive(home: Path, name: str, total: str, size: int, stream: IO[bytes]) -> None:
    """A backup of that name, from a stream as tar has packed its folder. `total`: its manifest's SHA-256.

    One of that name that is there, and is another, is set aside. StateError when what comes is not what was named.
    """
    with exclusive(home) as folder:
        if not NAME.match(name):
            raise StateError(f"{name!a} is no name of a backup")
        need_room(folder, size, "the backup from the copy")
        making = folder / f"{MAKING}{name}"
        making.mkdir(mode=0o700)
        try:
            unpack = ("/usr/bin/tar", "--extract", "--file=-", "--no-same-owner", "--preserve-permissions")
            subprocess.run([*unpack, f"--directory={making}"], check=True, stdin=stream)
            manifest = manifest_of(making / name)
            if manifest is None or manifest["sum"] != total:
                raise StateError(f"what came is not the backup {name} as it was copied; nothing of it was left.")
            refuse_damaged(making / name, manifest)
            if os.path.lexists(folder / name):
                aside = folder.parent / new_name(folder.parent, "set-aside")
                (folder / name).rename(aside)
                say(f"another one of the name {name} is kept as {aside}")
            sync(making)
            (making / name).rename(folder / name)
            sync(folder)
        finally:
            with contextlib.suppress(OSError):
                remove_tree(making)


def refuse_damaged(folder: Path, manifest: Manifest) -> None:
    """StateError when a file of a backup is not what its manifest says."""
    for field, tree in (("files", "data"), ("home", "home")):
        refuse_changed(folder / tree, manifest.get(field, {}))


@dataclass(frozen=True)
class Copy:
    """A tree that is about to be copied. `before`: what the last backup has of it, in `linkable`, by path."""

    tree: Tree
    entries: list[tuple[str, os.stat_result]]
    before: Path
    linkable: Manifest

    @classmethod
    def begun(cls, tree: Tree, folder: Path, whole: list[Manifest]) -> Copy:
        """Of the backups that are there, newest first, the newest that has this tree counts."""
        last = next((each for each in whole if tree.field in each), None)
        before = folder / str(last["name"]) / tree.folder if last else folder
        return cls(tree, list(tree.scan()), before, last[tree.field] if last else {})

    def same(self, path: str, found: os.stat_result) -> bool:
        """Whether a file is what the last backup has."""
        old = self.linkable.get(path, {})
        return (
            stat.S_ISREG(found.st_mode)
            and old.get("kind") == "file"
            and old.get("mode") == stat.S_IMODE(found.st_mode)
            and old.get("marks") == mark(self.tree.top / path)
        )

    @property
    def needed(self) -> int:
        """Bytes that have to be copied."""
        return sum(
            found.st_size for path, found in self.entries if stat.S_ISREG(found.st_mode) and not self.same(path, found)
        )

    def carried_out(self, making: Path) -> Manifest:
        """The lines of the manifest, by path."""
        lines: Manifest = {}
        (making / self.tree.folder).mkdir()
        for path, found in self.entries:
            if self.same(path, found):
                target = making / self.tree.folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):
                    os.link(self.before / path, target)
                    lines[path] = self.linkable[path]
                    continue
            line = copy_into(self.tree, making, path, found)
            if line is not None:
                lines[path] = line
        return lines


def freshen(home: Path, data: Path, name: str, known: Known = None) -> Manifest:
    """Bring a backup to the state of now; the services are stopped. Returns the bytes that were copied, and its sum."""
    with exclusive(home):
        folder, manifest = find(home, name, known)
        copied = 0
        for tree in trees_of(home, data, manifest):
            copied += freshen_tree(tree, folder, manifest[tree.field], FRESHEN_LIMIT - copied)
        manifest["bytes"] = size_of(manifest)
        total = write_manifest(folder, manifest)
        sync(folder)
        return {"bytes": copied, "sum": total}


def freshen_tree(tree: Tree, folder: Path, files: Manifest, most: int) -> int:
    """Bring one tree of a backup to the state of now, and its lines; at most so many bytes. Returns how many."""
    entries = dict(tree.scan())
    changed = {
        path: found
        for path, found in entries.items()
        if path not in files
        or (stat.S_ISREG(found.st_mode) and files[path].get("marks") != mark(tree.top / path))
        or (stat.S_ISLNK(found.st_mode) and files[path].get("to") != str((tree.top / path).readlink()))
    }
    copied = 0
    for path, found in sorted(changed.items(), key=lambda item: item[1].st_size):
        if copied + found.st_size > most and path in files:
            say(f"{path} is large and has changed during the backup: the copy made a moment before counts")
            continue
        line = copy_into(tree, folder, path, found)
        if line is not None:
            files[path] = line
            copied += found.st_size if stat.S_ISREG(found.st_mode) else 0
    for path in [path for path in files if path not in entries]:
        line = files.pop(path)
        if line["kind"] in ("file", "database"):
            (folder / tree.folder / path).unlink(missing_ok=True)
    return copied


def migrated(data: Path, folder: Path, manifest: Manifest) -> list[str]:
    """The files that another version has brought into another form, moved, or (databases) made anew."""
    files = manifest["files"]
    found = []
    for path, line in files.items():
        now = data / path
        if os.path.lexists(now) and line["kind"] in ("file", "database") and not stat.S_ISREG(now.lstat().st_mode):
            if line["kind"] == "database" or path in CONFIGURATION:
                found.append(path)
        elif not os.path.lexists(now):
            if line["kind"] == "database" or path in CONFIGURATION or path.startswith(CONTENT):
                found.append(path)
        elif line["kind"] == "database":
            if line.get("schema") is not None and schema_of(now) != line["schema"]:
                found.append(path)
        elif (
            (path in CONFIGURATION or re.fullmatch(r"profiles/[^/]+/(config\.yaml|\.env|auth\.json)", path))
            and line["kind"] == "file"
            and shape_of(now) != shape_of(folder / "data" / path)
        ):
            found.append(path)
    for path, status in tree_of_data(data).scan():
        fresh = path not in files and stat.S_ISREG(status.st_mode)
        if fresh and (is_database(data / path) or path in CONFIGURATION):
            found.append(path)
    return found


def undo(home: Path, data: Path, name: str, version: str, known: Known = None) -> Manifest:
    """Give back what `version` has migrated since backup `name`; what it made of it is set aside, not lost.

    Repeatable after a crash at any point: at each moment a file is there, as it was or as it became.
    """
    with exclusive(home) as backups:
        folder, manifest = find(home, name, known)
        paths = migrated(data, folder, manifest)
        if not paths:
            return {"restored": [], "set_aside": None}
        refuse_changed(folder / "data", {path: manifest["files"][path] for path in paths if path in manifest["files"]})
        aside_name = new_name(backups, version, "-set-aside")
        aside = backups / aside_name
        kept: dict[str, Any] = {}
        total: Manifest = {}
        for path in paths:
            now = data / path
            for each in (now, *sidecars(now)):
                if each.is_file() and not each.is_symlink():
                    target = aside / "data" / each.relative_to(data)
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    os.link(each, target)
                    size, content = each.stat().st_size, sum_of(target)
                    kept[each.relative_to(data).as_posix()] = {"kind": "file", "size": size, "sha256": content}
        if kept:
            aside.chmod(0o700)
            total["sum"] = write_manifest(
                aside,
                {
                    "format": FORMAT,
                    "name": aside_name,
                    "version": version,
                    "reason": f"what {version} had made of the data when it was taken back",
                    "partial": True,
                    "created": datetime.now(UTC).isoformat(timespec="seconds"),
                    "bytes": sum(line["size"] for line in kept.values()),
                    "files": kept,
                },
            )
            sync(aside)
        for path in paths:
            if path in manifest["files"]:
                give_back(folder / "data" / path, data / path, manifest["files"][path])
            else:
                remove(data / path)
        sync(data)
        return {"restored": paths, "set_aside": aside_name if kept else None, **total}


def refuse_changed(folder: Path, files: Manifest) -> None:
    """StateError when a file of a backup is not what it was when it was made. Those of older programs have no sums.

    `folder`: the backup's, of one tree.
    """
    name = folder.parent.name
    lost = [path for path, line in files.items() if "size" in line and not (folder / path).is_file()]
    if lost:
        raise StateError(f"the backup {name} has lost files, {lost[0]!a} the first of {len(lost)}. Use another.")
    sums = {path: line["sha256"] for path, line in files.items() if line.get("sha256")}
    wrong = [path for path, noted in sums.items() if sum_of(folder / path) != noted]
    if wrong:
        raise StateError(
            f"the backup {name} has been changed since it was made: {wrong[0]!a} is the first of {len(wrong)} "
            "files. Use another."
        )


def remove(path: Path) -> None:
    for each in (path, *sidecars(path)):
        each.unlink(missing_ok=True)


def give_back(source: Path, target: Path, line: Manifest) -> None:
    """One entry as it was. A database's logs belong to what is replaced, and go first: they would be played into it."""
    if line["kind"] == "folder":
        if os.path.lexists(target) and (target.is_symlink() or not target.is_dir()):
            target.unlink()
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(line["mode"])
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        remove_tree(target)
    part = part_of(target)
    part.unlink(missing_ok=True)
    if line["kind"] == "link":
        part.symlink_to(line["to"])
    else:
        shutil.copy2(source, part)
        part.chmod(line.get("mode", 0o600))
    if line["kind"] == "database":
        for each in sidecars(target):
            each.unlink(missing_ok=True)
    part.replace(target)


def restore(home: Path, data: Path, name: str, known: Known = None) -> int:
    """The data as it was at backup `name`; the services are stopped. Returns how many files were written.

    What came later goes, unless `name` is a set-aside part; a backup of now has to be made before. Repeatable.
    """
    with exclusive(home):
        folder, manifest = find(home, name, known)
        trees = trees_of(home, data, manifest)
        for tree in trees:
            refuse_changed(folder / tree.folder, manifest[tree.field])

        def same(tree: Tree, path: str, line: Manifest) -> bool:
            return line["kind"] == "file" and line.get("marks") == mark(tree.top / path)

        changed = [
            (tree, path, line)
            for tree in trees
            for path, line in manifest[tree.field].items()
            if not same(tree, path, line)
        ]
        need_room(data, sum(line.get("size", 0) for _, _, line in changed), "the restore")
        for tree, path, line in changed:
            give_back(folder / tree.folder / path, tree.top / path, line)
        for tree in trees if not manifest["partial"] else ():
            remove_later(tree, manifest[tree.field])
        sync(data)
        return sum(line["kind"] != "folder" for _, _, line in changed)


def remove_later(tree: Tree, files: Manifest) -> None:
    """Remove what is in a tree and not in its backup."""
    extra = [path for path, _ in tree.scan() if path not in files]
    for path in sorted(extra, reverse=True):
        now = tree.top / path
        if now.is_dir() and not now.is_symlink():
            with contextlib.suppress(OSError):  # not empty: it holds what no backup holds
                now.rmdir()
        else:
            remove(now)


def prune(home: Path, keep: int, scheduled: int, known: Known = None) -> list[str]:
    """Remove old backups of ours: all but the newest `keep`, and of those that the timer made but the newest
    `scheduled`. Of those set aside, and of those that are not known, the newest `keep` stay."""
    with exclusive(home) as folder:
        gone = []
        kinds: dict[tuple[bool, bool, bool], list[Manifest]] = {}
        for each in all_backups(home, known):
            ours = is_known(each, known)
            kinds.setdefault((each["partial"], ours, ours and each["reason"] == SCHEDULED), []).append(summary(each))
        for (_, _, on_schedule), found in kinds.items():
            for manifest in found[scheduled if on_schedule else keep :]:
                name = str(manifest["name"])
                # Under another name first: half removed it would still be taken for one.
                (folder / name).rename(folder / f"{MAKING}{name}")
                remove_tree(folder / f"{MAKING}{name}")
                gone.append(name)
        return gone


def summary(manifest: Manifest) -> Manifest:
    """With numbers in the place of the files; `home` is there where the backup has the rest of the home."""
    return {key: len(value) if key in ("files", "home") else value for key, value in manifest.items()}


def listed(home: Path, known: Known = None) -> list[Manifest]:
    """All that are ours, and of those that are not the newest; newest first."""
    found, foreign = [], 0
    for each in all_backups(home, known):
        foreign += not is_known(each, known)
        if is_known(each, known) or foreign <= FOREIGN_SHOWN:
            found.append(summary(each))
    if foreign > FOREIGN_SHOWN:
        say(f"{foreign - FOREIGN_SHOWN} more that are not the stack's are left out")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Back up the agent's data and give it back.")
    parser.add_argument("home", type=Path)
    parser.add_argument("data", type=Path)
    verbs = parser.add_subparsers(dest="verb", required=True)
    every = argparse.ArgumentParser(add_help=False)
    every.add_argument("--known", type=json.loads)
    verb = verbs.add_parser("make", parents=[every])
    verb.add_argument("--version", required=True)
    verb.add_argument("--reason", required=True)
    verb.add_argument("--home", dest="rest", action="store_true", help="with the rest of the home")
    verbs.add_parser("freshen", parents=[every]).add_argument("name")
    verb = verbs.add_parser("undo", parents=[every])
    verb.add_argument("name")
    verb.add_argument("--version", required=True)
    verb = verbs.add_parser("restore", parents=[every])
    verb.add_argument("name")
    verb.add_argument("--unknown", action="store_true", help="also when it was changed since it was made")
    verbs.add_parser("list", parents=[every])
    verb = verbs.add_parser("receive", parents=[every])
    verb.add_argument("name")
    verb.add_argument("--sum", required=True)
    verb.add_argument("--bytes", type=int, required=True)
    verb = verbs.add_parser("prune", parents=[every])
    verb.add_argument("keep", type=int)
    verb.add_argument("scheduled", type=int)
    return parser.parse_args()


def main() -> int:
    if os.geteuid() == 0:
        print("error: this works in the agent's home and must not run as root", file=sys.stderr)
        return 1
    os.umask(0o077)
    options = arguments()
    began = time.monotonic()
    try:
        if options.verb == "make":
            made = make(options.home, options.data, options.version, options.reason, options.known, rest=options.rest)
            result: Any = summary(made)
        elif options.verb == "freshen":
            result = freshen(options.home, options.data, options.name, options.known)
        elif options.verb == "undo":
            result = undo(options.home, options.data, options.name, options.version, options.known)
        elif options.verb == "restore":
            known = None if options.unknown else options.known
            result = {"written": restore(options.home, options.data, options.name, known)}
        elif options.verb == "receive":
            receive(options.home, options.name, options.sum, options.bytes, sys.stdin.buffer)
            result = {"name": options.name}
        elif options.verb == "list":
            result = {"backups": listed(options.home, options.known)}
        else:
            result = {"removed": prune(options.home, options.keep, options.scheduled, options.known)}
    except StateError as refusal:
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    except (OSError, sqlite3.Error, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**result, "seconds": round(time.monotonic() - began, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
