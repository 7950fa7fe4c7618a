"""What is declared in the agent's home: documents, auth.json, and keys that the agent reads nowhere else.

Runs in the guest **as the agent's user**, with the agent's Python, as one program by itself (standard input: its
inputs as JSON, standard output: its result as JSON): so it imports nothing of this package. In a folder that the
agent owns root would follow the links that are planted there.

Nothing of a user's or the agent's is ever lost: what is replaced and was not written by us is kept before, in
``~/.hermes-stack/replaced``, under its name and the begin of its SHA-256, so that a second run keeps nothing twice.
``~/.hermes-stack/declared.json`` remembers what was written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STACK_FOLDER = ".hermes-stack"
MANIFEST = "declared.json"
REPLACED = "replaced"
LARGEST = 64 << 20
SEED = re.compile(rb"_config_version: \d+\n")


@dataclass(frozen=True)
class Document:
    """A text for the home. `place`: hermes or working; `path`: below it.

    With `ours` the text is put back whatever has become of it; without, it is put there when it is new or missing, and
    what the agent has added to it since stays.
    """

    place: str
    path: str
    text: str
    ours: bool


@dataclass(frozen=True)
class Auth:
    """auth.json: seeded where there is none, because the agent renews its tokens in that file.

    `text`: None: nothing is declared. With `overwrite` it is replaced, once for each content: or the next run would put
    tokens back that are long used up.
    """

    text: str | None
    overwrite: bool


@dataclass(frozen=True)
class Migration:
    """The user's config.yaml in another schema: `text`, made `of` the one with that SHA-256."""

    of: str
    text: str


@dataclass(frozen=True)
class Inputs:
    """`home`, `hermes`, `working`: absolute paths. `config`: top-level keys that have to be in the user's config.yaml.

    `schema`: the number that the installed agent gives to its config.yaml; None: the file is not our business.
    """

    home: str
    hermes: str
    working: str
    documents: tuple[Document, ...]
    auth: Auth
    schema: int | None
    migration: Migration | None
    config: dict[str, Any]


class Home:
    """The folders, what an earlier run wrote there, and the lines to tell."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.stack = Path(inputs.home, STACK_FOLDER)
        self.places = {"hermes": Path(inputs.hermes), "working": Path(inputs.working)}
        self.lines: list[str] = []
        self.written: dict[str, Any] = self._remembered()

    def _remembered(self) -> dict[str, Any]:
        """The agent may have written it: what has not the form that we give it was never written by us."""
        try:
            found = json.loads(read(self.stack / MANIFEST) or b"{}")
        except (ValueError, RecursionError):
            found = {}
        known = found if isinstance(found, dict) else {}
        parts = ("documents", "auth", "config")
        written = {key: known[key] if isinstance(known.get(key), dict) else {} for key in parts}
        written["documents"] = {key: total for key, total in written["documents"].items() if self._proper(key, total)}
        return written

    def _proper(self, key: str, total: Any) -> bool:
        place, _, path = key.partition(":")
        below = "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
        return place in self.places and below and isinstance(total, str)

    def remember(self) -> None:
        text = json.dumps(self.written, indent=1, sort_keys=True).encode()
        if read(self.stack / MANIFEST) != text and (any(self.written.values()) or (self.stack / MANIFEST).exists()):
            write(self.stack / MANIFEST, text)

    def keep(self, name: str, content: bytes) -> None:
        """Keep a copy of what is about to be replaced."""
        copy = self.stack / REPLACED / f"{name.replace('/', '_')}.{digest(content)[:12]}"
        if not copy.exists():
            write(copy, content)
        self.lines.append(f"{name}: what was there is kept in {copy}")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(path: Path) -> bytes | None:
    """None when there is no such file. TypeError for anything but a plain file of a sound size. No pipe is awaited."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise TypeError(f"{path} is no plain file: look what it is, and remove it")
    with os.fdopen(handle, "rb") as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise TypeError(f"{path} has more than {LARGEST >> 20} MB, as no file of its kind: look at it, and remove it")
    return content


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, for its owner's eyes only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).rename(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def put_documents(home: Home) -> None:
    """Put each document in its place, and take away what is no longer declared."""
    before, after = home.written["documents"], {}
    for document in home.inputs.documents:
        key, path = f"{document.place}:{document.path}", home.places[document.place] / document.path
        text = document.text.encode()
        present, after[key] = read(path), digest(text)
        if present == text:
            continue
        if present is not None and not document.ours and before.get(key) == after[key]:
            home.lines.append(f"{document.path}: declared as before, what the agent has made of it stays")
            continue
        if present is not None and digest(present) != before.get(key):
            home.keep(document.path, present)
        write(path, text)
        home.lines.append(f"{document.path}: written to {path}")
    for key in sorted(before.keys() - after.keys()):
        _give_up(home, key, before[key])
    home.written["documents"] = after


def _give_up(home: Home, key: str, ours: str) -> None:
    """A document that is no longer declared: our text goes (a copy is kept), anything else stays."""
    place, _, name = key.partition(":")
    path = home.places[place] / name
    present = read(path)
    if present is None:
        return
    if digest(present) != ours:
        home.lines.append(f"{name}: no longer declared, changed since it was written: left at {path}")
        return
    home.keep(name, present)
    path.unlink()
    home.lines.append(f"{name}: no longer declared, removed from {path}")


def put_auth(home: Home) -> None:
    """Seed or replace auth.json, as `Auth` says."""
    auth, path = home.inputs.auth, home.places["hermes"] / "auth.json"
    if auth.text is None:
        home.written["auth"] = {}
        return
    text, before = auth.text.encode(), home.written["auth"]
    present, mine = read(path), digest(text)
    forced = auth.overwrite and not (before.get("forced") and before.get("declared") == mine)
    if present is None or (forced and present != text):
        if present is not None:
            home.keep("auth.json", present)
        write(path, text)
        home.lines.append("auth.json: written")
        home.written["auth"] = {"written": mine}
    else:
        home.written["auth"] = {key: before[key] for key in ("written",) if key in before}
        if present != text:
            home.lines.append("auth.json: there already, left as it is")
    home.written["auth"] |= {"declared": mine, "forced": auth.overwrite}


def seed_config(home: Home) -> None:
    """Begin a config.yaml where there is none.

    Parts of the agent (gateway/config.py, hermes_time.py, cron/jobs.py; of 0.20.3 hermes_logging.py, too) lay what is
    pinned over the home's config.yaml, and over nothing where that is missing or holds no key. So one without a key
    gets the schema alone, behind whatever comments are in it; one with anything else in it is the user's.
    """
    schema, path = home.inputs.schema, home.places["hermes"] / "config.yaml"
    if schema is None:
        return
    present, seed = read(path) or b"", f"_config_version: {schema}\n".encode()
    if SEED.fullmatch(present):
        present = b""
    if any(line.strip() and not line.lstrip().startswith(b"#") for line in present.splitlines()):
        return
    comments = present.rstrip()
    text = comments + b"\n" + seed if comments else seed
    if read(path) != text:
        write(path, text)
        home.lines.append(f"config.yaml: begun in {path}, so that what is declared has its effect")


def put_migrated(home: Home) -> None:
    """Write the migrated config.yaml, if that which it was made of is still there."""
    migration, path = home.inputs.migration, home.places["hermes"] / "config.yaml"
    if migration is None:
        return
    present = read(path)
    if present is None or digest(present) != migration.of:
        home.lines.append("config.yaml: changed a moment ago and left as it is; the next run migrates it")
        return
    home.keep("config.yaml", present)
    write(path, migration.text.encode())
    home.lines.append(f"config.yaml: migrated in {path}")


def put_config(home: Home) -> None:
    """Set the declared keys in the user's own config.yaml; its other keys and comments stay."""
    wanted, before = home.inputs.config, home.written["config"]
    if not wanted and not before:
        return
    try:
        from ruamel.yaml import YAML  # noqa: PLC0415 - the agent brings it; only needed here
        from ruamel.yaml.error import YAMLError  # noqa: PLC0415
    except ImportError:
        # In Docker mode it comes with what is wanted; a new guest where nothing is wanted any more has none.
        if wanted:
            raise
        home.lines.append(f"config.yaml: {', '.join(sorted(before))} was declared once and is left as it is")
        home.written["config"] = {}
        return

    path = home.places["hermes"] / "config.yaml"
    present = read(path)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    try:
        data = yaml.load(present) if present else None
    except YAMLError as error:
        raise TypeError(f"{path} is no YAML, correct or remove it: {str(error).splitlines()[0]}") from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise TypeError(f"{path} holds no keys and values, correct or remove it")
    changed = [key for key in wanted if data.get(key) != wanted[key]]
    gone = [key for key in before.keys() - wanted.keys() if data.get(key) == before[key]]
    if present is not None and any(key in data and data[key] != before.get(key) for key in changed):
        home.keep("config.yaml", present)
    for key in changed:
        data[key] = wanted[key]
    for key in gone:
        del data[key]
    if changed or gone:
        stream = io.BytesIO()
        yaml.dump(data, stream)
        write(path, stream.getvalue())
        home.lines.append(f"config.yaml: {', '.join(sorted([*changed, *gone]))} set in {path}")
    home.written["config"] = dict(wanted)


def inputs_from(given: dict[str, Any]) -> Inputs:
    """What configure.py has sent, which makes it by `asdict`."""
    migration = given["migration"]
    return Inputs(
        **given
        | {
            "documents": tuple(Document(**each) for each in given["documents"]),
            "auth": Auth(**given["auth"]),
            "migration": None if migration is None else Migration(**migration),
        }
    )


def put(inputs: Inputs) -> dict[str, Any]:
    """Bring the home to what is declared. ``auth``: what to tell a change of auth.json by; ``lines``: what was done."""
    home = Home(inputs)
    put_documents(home)
    put_auth(home)
    put_migrated(home)
    seed_config(home)
    put_config(home)
    home.remember()
    return {"lines": home.lines, "auth": home.written["auth"].get("written", "")}


def main() -> int:
    os.umask(0o077)
    try:
        result = put(inputs_from(json.load(sys.stdin)))
    except (OSError, TypeError, ImportError) as error:
        print(f"{error}", file=sys.stderr)
        return 1
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
