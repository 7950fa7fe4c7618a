"""The user's config.yaml in the schema of the agent that is going to run, without the loss of a comment.

The agent migrates that file in `hermes update`, `hermes config migrate` and its image's boot, and never at a start of
the gateway (facts hermes 0.20, 5). None of those is how the stack updates; and what they write has lost the user's
comments and whatever the managed scope pins. So the agent's own code migrates a copy, with nothing pinned, and only
what differs is put into the user's text. The program that owns the home writes it (home.py), and keeps the file as it
was.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from applications.hermes.guest.home import Migration
from applications.hermes.guest.managed import Reader
from applications.hermes.guest.names import MANAGED
from provisioning.guest.common import Refusal, answer_in, as_user, install_file
from provisioning.guest.typed import of

LONGEST = 1 << 20
"""Bytes of a config.yaml that is looked at; a longer one is none that a person has written."""
STATED = re.compile(r"^_config_version:[ \t]*(\d{1,6})[ \t]*(?:#.*)?\r?$", re.MULTILINE)
SEED = re.compile(r"_config_version: \d+\n")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,40}\Z")
KEY = re.compile(r"[A-Za-z0-9_.-]{1,120}\Z")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)

PROGRAM = """
import contextlib, io, json, os, sys, tempfile
from dataclasses import dataclass
from pathlib import Path
import yaml
given = Path(sys.argv[1], "config.yaml").read_bytes().decode()
assumed = int(Path(sys.argv[1], "assumed").read_text())
old = yaml.safe_load(given) or {}
# Without a number it would count as of schema 0, and be treated for faults that its agent never had.
begun = given if "_config_version" in old else yaml.safe_dump({**old, "_config_version": assumed}, sort_keys=False)
with tempfile.TemporaryDirectory() as name:
    home, managed = Path(name, "home"), Path(name, "managed")
    home.mkdir(), managed.mkdir()
    (home / "config.yaml").write_bytes(begun.encode())
    os.environ |= {"HOME": name, "HERMES_HOME": str(home), "HERMES_MANAGED_DIR": str(managed)}
    os.environ.pop("HERMES_MANAGED", None)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        from hermes_cli import config as own
        stated, latest = own.check_config_version()
        warnings = own.migrate_config(interactive=False, quiet=True).get("warnings") or []
        reached, _ = own.check_config_version()
    made = (home / "config.yaml").read_bytes().decode()

new = yaml.safe_load(made) or {}
changes = []

def bring(target, before, after, above):
    for key in [key for key in before if key not in after]:
        changes.append([above + [str(key)], before[key], None])
        del target[key]
    for key in [*(key for key in before if key in after), *(key for key in after if key not in before)]:
        value = after[key]
        if key in before and before[key] == value and type(before[key]) is type(value):
            continue
        if isinstance(before.get(key), dict) and isinstance(value, dict):
            bring(target[key], before[key], value, above + [str(key)])
            continue
        changes.append([above + [str(key)], before.get(key), value])
        target[key] = value

def merged():
    from ruamel.yaml import YAML
    own_words = YAML()
    own_words.preserve_quotes, own_words.width = True, 4096
    data = own_words.load(given)
    data = {} if data is None else data
    bring(data, old, new, [])
    stream = io.StringIO()
    own_words.dump(data, stream)
    return stream.getvalue()

try:
    text = merged()
    kept = yaml.safe_load(text) == new
except Exception:
    kept = False
if not kept:  # in a form that can't be kept: the agent's own text
    changes.clear()
    bring(json.loads(json.dumps(old, default=str)), old, new, [])
    text = made
json.dump({"stated": stated, "reached": reached, "latest": latest, "text": text, "comments": kept,
           "changes": changes, "warnings": warnings}, sys.stdout, default=str)
"""


@dataclass(frozen=True)
class Migrated:
    """What the agent's own migration has made of a copy: schemas, the whole text, and what differs."""

    stated: int
    reached: int
    latest: int
    text: str
    comments: bool
    changes: tuple[Any, ...]
    warnings: tuple[Any, ...] | None = None


def migration_of(
    user: str, hermes_home: str, reader: Reader, *, gid: int, schema: int, before: int
) -> Migration | None:
    """What home.py has to do: `of` (the SHA-256 of the file that it is for) and `text`. None: nothing.

    `schema`: the number that the agent gives to its config.yaml. `before`: that of the agent which has read the file so
    far; a file without a number is taken to be of it. Says on the way what changes. A file that can't be migrated is
    told and stays: the agent reads it over its defaults whatever its number is.
    """
    present = as_user(user, "head", f"--bytes={LONGEST}", f"{hermes_home}/config.yaml", check=False)
    if not is_due(present, schema, before):
        return None
    try:
        found = asked(gid, present, before, reader)
    except Refusal as refusal:
        print(f"warning: config.yaml in the home was not migrated, the agent fails at it: {refusal}")
        return None
    for line in told(found):
        print(line)
    if found.reached != schema or found.text == present:
        return None
    return Migration(of=hashlib.sha256(present.encode()).hexdigest(), text=found.text)


def is_due(present: str, schema: int, before: int) -> bool:
    """Whether a config.yaml is of an older schema. What we began ourselves is home.py's business."""
    if not present.strip() or SEED.fullmatch(present) or "\ufffd" in present or len(present.encode()) >= LONGEST:
        return False
    stated = STATED.search(present)
    return (before if stated is None else int(stated[1])) < schema


def asked(gid: int, present: str, before: int, reader: Reader) -> Migrated:
    """What the agent makes of a copy. Refusal when it fails, or answers something else than was asked."""
    with tempfile.TemporaryDirectory(prefix=".migrate.", dir=MANAGED) as name:
        folder = Path(name)
        os.chown(folder, 0, gid)
        folder.chmod(0o750)
        install_file(folder / "config.yaml", present, mode=0o640, gid=gid)
        install_file(folder / "assumed", str(before), mode=0o640, gid=gid)
        found = answer_in(reader(PROGRAM, folder), "the agent's migration of config.yaml")
    try:
        return of(Migrated, found, "it", strict=False)
    except Refusal:
        raise Refusal("it answered something else than was asked") from None


def told(found: Migrated) -> list[str]:
    """In words: from which schema to which, and what changes; no secret, and no character that moves a cursor."""
    steps = f"schema {found.stated} to {found.reached}"
    if found.reached < found.latest:
        why = next((plain(str(each)) for each in found.warnings or () if each), "it does not say why")
        stays = f"stays of schema {found.stated}, the agent knows {found.latest}"
        return [f"warning: config.yaml in the home {stays}: {why}"]
    form = "" if found.comments else "; in the agent's own form, without its comments"
    lines = [f"config.yaml: {steps}{form}"]
    for change in found.changes:
        path, before, after = change if isinstance(change, list) and len(change) == 3 else ([], None, None)
        name = ".".join(map(str, path)) if isinstance(path, list) else ""
        if name == "_config_version":
            continue
        lines.append(
            f"config.yaml: {name if KEY.match(name) else '(a key)'}: {shown(name, before)} -> {shown(name, after)}"
        )
    return lines


def shown(name: str, value: Any) -> str:
    """A value, as far as it can be told: numbers, truth values and single words."""
    if value is None:
        return "(none)"
    if SECRET.search(name):
        return "(not shown)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float) or (isinstance(value, str) and WORD.match(value)):
        return str(value)
    return '""' if value == "" else "(not shown)"


def plain(text: str) -> str:
    """One line of printable text of somebody else's."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300].strip()
