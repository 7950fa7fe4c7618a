"""What `pulumi up` would do, for a reviewer: a table on top, faults open, each differing value folded.

The engine's events say which resources change; :mod:`components.explanation` says why a phase runs again. What differs
in each run (digests, files of the machine) is left out.
"""

from __future__ import annotations

import argparse
import difflib
import http.client
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from components.explanation import SAID
from provisioning.console import pulumi_environment
from provisioning.plans import differing_keys
from provisioning.terminal import visible
from scripts.lib.ending import end_with

ROOT = Path(__file__).resolve().parents[2]
MARKER = "<!-- hermes-homelab: preview -->"
LONGEST = 50_000  # of all values that differ; GitHub takes comments of 65536 characters
PREVIEW_SECONDS = 600
API_SECONDS = 30
UNKNOWN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NOISE = frozenset(
    {
        *("digest", "inputs", "private_key_file", "host", "host_key", "results", "seconds", "claim", "guest"),
        *("connection", "recorded", "started"),
    }
)
"""Inputs that differ from run to run or from machine to machine, or say nothing to a person."""
QUIET = ("read_at_start", "configuration", "identity")
"""Parts of a phase's inputs that are digests of the others."""
REBOOTS = ("initialization", "memory", "networkInterfaces", "operatingSystem", "console")
"""Inputs of a container for which the plugin reboots it where it runs (its container resource, `rebootRequired`)."""
OPS = {"create-replacement": "replace", "replace": "replace", "delete-replaced": "replace"}

NO_ONE, NOT = "nothing", "no"
SECONDS, REBOOT, WHOLE_RUN = "some seconds", "for a reboot, less than a minute", "until the run ends, about a minute"
UNTOUCHED, DELETED = "untouched", "**deleted for good, with all that is in the volume**"


class PreviewError(Exception):
    """The text can't be made or written. The error says why."""


@dataclass(frozen=True)
class Change:
    """One resource that changes. kind: the last part of its type; old, new: its inputs."""

    op: str
    kind: str
    name: str
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)
    urn: str = ""
    keys: tuple[str, ...] = ()

    @cached_property
    def trees(self) -> tuple[Any, Any]:
        """The inputs before and after, as far as they mean something."""
        return _meaning(self.old), _meaning(self.new)

    @property
    def differing(self) -> list[str]:
        """The inputs that differ and mean something, dotted."""
        keys = differing_keys(*self.trees)
        return sorted(key for key in keys if not UNKNOWN.fullmatch(str(at(self.trees[1], key))))

    @property
    def changed(self) -> str:
        return f"changed: {', '.join(self.differing)}"

    @property
    def vmid(self) -> str:
        found = self.new.get("vmId") or self.old.get("vmId") or self.new.get("vmid") or self.old.get("vmid")
        return f"CT {int(found)}" if found else "the container"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    why: str = ""
    restarts: str = NO_ONE
    offline: str = NOT
    data: str = UNTOUCHED


@dataclass
class Found:
    """What one preview found."""

    stack: str
    changes: list[Change] = field(default_factory=list)
    causes: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def new_guest(self) -> bool:
        """Whether the container itself is made: then what happens in it is no news."""
        return any(change.kind == "ContainerLegacy" and change.op in ("create", "replace") for change in self.changes)


def _meaning(value: Any, depth: int = 0) -> Any:
    """An inputs' tree without what says nothing to a person. The items of a list of objects are counted from 0."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        value = {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, Mapping):
        return value
    left_out = NOISE | {"__provider"} if depth == 0 else frozenset(QUIET)
    return {
        key: _meaning(part, depth + 1)
        for key, part in value.items()
        if key not in left_out and not key.startswith("__") and not key.startswith("timeout")
    }


def at(tree: Any, path: str) -> Any:
    """The value at a dotted key; None where there is none. A key may have dots itself (SOUL.md)."""
    if not isinstance(tree, Mapping) or not path:
        return tree if not path else None
    if path in tree:
        return tree[path]
    for end in range(len(path)):
        if path[end] == "." and path[:end] in tree:
            return at(tree[path[:end]], path[end + 1 :])
    return None


# --- the rows -----------------------------------------------------------------------------------


def _container(change: Change) -> Row | None:
    who, keys = change.vmid, change.differing
    match change.op:
        case "create":
            return Row(f"{who} is made", "it is new", offline="until the run ends")
        case "delete":
            return Row(f"{who} is destroyed", "it left the settings", offline="from then on")
        case "replace":
            why = f"changed: {', '.join(change.keys or keys)}"
            return Row(f"{who} is destroyed and made again", why, "everything", WHOLE_RUN, "kept on the volume")
    if keys == ["description"]:
        return Row(f"the stack's lines in the notes of {who} change", change.changed)
    # They follow: of another change they say what that says.
    why = f"changed: {', '.join(key for key in keys if key != 'description')}"
    if any(key.partition(".")[0] in REBOOTS for key in keys):
        return Row(f"{who} changes", why, who, REBOOT)
    return Row(f"{who} changes", why)


def _volume(change: Change) -> Row | None:
    new, old = change.new, change.old
    name = new.get("name") or old.get("name")
    match change.op:
        case "create" if new.get("volid"):
            return Row(f"volume {name}: {new['volid']} is adopted", "it is new in petVolumes", data="kept")
        case "create":
            what = f"volume {name} of {new.get('size'):g} GB is made"
            return Row(what, "it is new in petVolumes", data="a new, empty volume")
        case "delete":
            return Row(f"volume {name} leaves the stack", "it left petVolumes", data="kept on the pet")
    if at(old, "size") != at(new, "size"):
        what = f"volume {name} grows from {old.get('size'):g} to {new.get('size'):g} GB"
        return Row(what, "changed: size", data="kept")
    return (
        Row(f"volume {name} changes", f"changed: {', '.join(change.differing)}", data="kept")
        if change.differing
        else None
    )


def _attachment(change: Change) -> Row | None:
    new, old = change.new, change.old
    match change.op:
        case "create":
            return Row(f"{new.get('volid')} is mounted at {new.get('path')}", "it is new", change.vmid, REBOOT, "kept")
        case "delete":
            return Row(f"{old.get('volid')} is unmounted", "it left the settings", change.vmid, REBOOT, "kept")
    if not change.differing:
        return None
    what = f"the mount of {new.get('volid')} changes"
    if old.get("volid") != new.get("volid"):
        what = f"{new.get('volid')} is mounted in the place of {old.get('volid')}"
    return Row(what, change.changed, change.vmid, REBOOT, "kept")


def _host_mounts(change: Change) -> Row | None:
    if change.op == "update" and not change.differing:
        return None
    why = {"create": "it is new", "delete": "it left the settings"}.get(change.op, change.changed)
    return Row(f"folders of the node in {change.vmid}", why, change.vmid, REBOOT)


def _removal(change: Change) -> Row | None:
    if change.op not in ("create", "replace"):
        return None
    what = f"{change.new.get('volid')} is deleted"
    return Row(what, "it is named in petDeleteVolumes", data=DELETED)


def _power(change: Change) -> Row | None:
    match change.op:
        case "create":
            return Row(f"{change.vmid} is started", "it is to run")
        case "delete":
            return Row(f"{change.vmid} is stopped", "it left the settings", change.vmid, "from then on")
    return Row(f"{change.vmid} is started", "it does not run") if change.differing else None


WHAT = {
    "baseline": "packages and account in the cattle",
    "agent": "the agent is installed",
    "docker": "the agent's image",
    "configure": "the agent's settings",
}


def _phase(change: Change, cause: str) -> Row | None:
    which = str(change.new.get("phase") or change.old.get("phase") or "")
    if which not in WHAT:
        return None
    if change.op != "update":
        why = "it left the settings" if change.op == "delete" else "it is new"
        return Row(WHAT[which], why)
    said = SAID.search(cause)
    why, then = (said["why"], said["then"] or "") if said else (change.changed, "")
    row = Row(WHAT[which], why)
    was, wanted = (at(tree, "declared.version") for tree in (change.old, change.new))
    if which in ("agent", "docker"):
        if was != wanted and isinstance(wanted, str) and not UNKNOWN.fullmatch(wanted):
            row = replace(row, what=f"the agent goes from {was} to {wanted}")
        return row
    if which == "baseline":
        return row
    if "another container" in then:
        row = replace(row, restarts="the agent's container, made again", offline=SECONDS)
    elif then and "restarts no service" not in then:
        row = replace(row, restarts=re.sub(r"\.service\b|^restarts ", "", then), offline=SECONDS)
    if re.search(r"\bagent_directory\b|\bcontainer\.image\b", why):
        return replace(row, offline=SECONDS, data="a backup first, then migrated")
    return row


RULES: Mapping[str, Callable[[Change], Row | None]] = {
    "ContainerLegacy": _container,
    "Volume": _volume,
    "VolumeAttachment": _attachment,
    "HostMounts": _host_mounts,
    "VolumeRemoval": _removal,
    "Power": _power,
}
PART_OF_A_NEW_GUEST = frozenset({"VolumeAttachment", "HostMounts", "Power", "Phase"})


def rows(found: Found) -> list[Row]:
    """The table of one stack. What is only bookkeeping has no row."""
    made = []
    for change in found.changes:
        if found.new_guest and change.kind in PART_OF_A_NEW_GUEST:
            continue
        if change.kind == "Phase":
            row = _phase(change, found.causes.get(change.urn, ""))
        else:
            rule = RULES.get(change.kind)
            row = rule(change) if rule else None
        if row is not None:
            made.append(row)
    return made


# --- what takes two steps -----------------------------------------------------------------------

FAULT = re.compile(r"^(?P<key>\S.*?) = (?P<value>.*)\n  rule: (?P<rule>.*)\n  do:   ", re.MULTILINE)


def two_steps(found: Found, all_found: Sequence[Found]) -> list[str]:
    """How to get there in two steps, where nothing but that is wrong with a stack; empty where more is."""
    ways = []
    for error in found.errors:
        faults = list(FAULT.finditer(error))
        told = sum(int(number) for number in re.findall(r": (\d+) faults?\n", error))
        here = [way for fault in faults if (way := _way(fault, all_found))]
        if not (len(here) == len(faults) == told > 0):
            return []
        ways += here
    return ways


def _way(fault: re.Match[str], all_found: Sequence[Found]) -> str:
    grows = re.fullmatch(r"Volume '(.+)' \((.+)\) cannot grow now", fault["value"])
    holder = re.match(r"CT (\d+)", fault["rule"])
    if fault["key"] == "petVolumes" and grows and holder:
        return (
            f"Volume `{grows[1]}` grows while no guest has it mounted: `pct shutdown {holder[1]}` on the node, "
            f"`pulumi up`, then `pct start {holder[1]}`. The agent is offline from the first to the last of them; its "
            "data are kept."
        )
    if fault["key"] == "cattleVolume" and fault["rule"].startswith("must be a volume of stack "):
        makes = [
            one.stack
            for one in all_found
            for change in one.changes
            if change.kind == "Volume" and change.op == "create" and change.new.get("name") == fault["value"]
        ]
        owner = fault["rule"].removeprefix("must be a volume of stack ").partition(",")[0]
        if any(one.stack == owner and two_steps(one, ()) for one in all_found):
            return f"Stack {owner} has a step to take first. What this one does can be previewed after that."
        if makes:
            return (
                f"Volume `{fault['value']}` is made first, by `pulumi up --stack {makes[0]}`. What this stack does "
                "with it can be previewed after that."
            )
    return ""


# --- the text -----------------------------------------------------------------------------------


def cell(text: str) -> str:
    """A text as a table's cell holds it."""
    return re.sub(r"\s+", " ", visible(text)).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def fenced(text: str, info: str = "") -> str:
    """A block with a fence that nothing in it ends."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{info}\n{text}\n{fence}"


def value_of(value: Any) -> str:
    """A value in the folded part. Secrets are the engine's `[secret]` already."""
    if isinstance(value, str) and UNKNOWN.fullmatch(value):
        return "(known after the run)"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


SIGN = {"create": "+", "delete": "-", "replace": "!", "update": "~"}


def details(change: Change) -> Iterator[str]:
    """A resource and its values that differ, as lines of a diff."""
    # A command looks at the agent again after whatever has changed: only that is news.
    if change.op == "update" and (not change.differing or change.kind == "Command"):
        return
    yield f"{SIGN.get(change.op, '~')} {change.name}"
    if change.op not in ("update", "replace"):
        return
    for key in change.differing:
        if key == "description":
            yield from _changed_lines(key, *(str(at(tree, key) or "") for tree in change.trees))
            continue
        for sign, tree in zip("-+", change.trees, strict=True):
            value = at(tree, key)
            if value is not None:
                lines = visible(value_of(value)).splitlines() or [""]
                yield f"{sign}   {key}: {lines[0]}"
                yield from (f"{sign}     {line}" for line in lines[1:])


def _changed_lines(key: str, old: str, new: str) -> Iterator[str]:
    """The lines of a long text that differ. The others are somebody else's."""
    for line in difflib.ndiff(visible(old).splitlines(), visible(new).splitlines()):
        if line[0] in "-+" and line[2:].strip():
            yield f"{line[0]}   {key}: {line[2:]}"


def comment(all_found: Sequence[Found]) -> tuple[str, bool]:
    """The whole text, and whether every preview succeeded; a change that takes two steps is no failure."""
    good = True
    table = ["| stack | what changes | why | restarts | agent offline | data |", "|---|---|---|---|---|---|"]
    open_parts: list[str] = []
    folded: list[str] = []
    nothing: list[str] = []
    for found in all_found:
        ways = two_steps(found, all_found)
        if ways:
            open_parts += [f"**{found.stack}: in two steps.** {way}" for way in ways]
        elif found.errors:
            good = False
            block = fenced("\n\n".join(found.errors))
            open_parts.append(f"**{found.stack}: the preview failed**\n\n{block}")
        made = rows(found)
        for row in made:
            cells = (found.stack, row.what, row.why, row.restarts, row.offline, row.data)
            table.append(f"| {' | '.join(map(cell, cells))} |")
        if not (made or found.errors):
            nothing.append(found.stack)
        # In a fence, as errors are: it may name what another token or the agent has named, and Markdown has links.
        open_parts += [f"**{found.stack}: a warning**\n\n{fenced(warning)}" for warning in found.warnings]
        # The engine tells what does not depend on each other in any order.
        lines = [line for change in sorted(found.changes, key=lambda one: one.name) for line in details(change)]
        if lines:
            text = "\n".join(lines)
            most = LONGEST // len(all_found)
            text = text if len(text) <= most else f"{text[:most]}\n... cut here"
            block = fenced(text, "diff")
            folded.append(f"<details><summary>{found.stack}: the values that differ</summary>\n\n{block}\n\n</details>")
    parts = ["\n".join(table)] if len(table) > 2 else []
    if nothing:
        parts.append(f"No changes: {', '.join(nothing)}.")
    return "\n\n".join([MARKER, "### What `pulumi up` would do", *parts, *open_parts, *folded]) + "\n", good


# --- the previews -------------------------------------------------------------------------------


def read_events(stack: str, lines: Iterable[str]) -> Found:
    """What the engine's stream of events says."""
    found = Found(stack)
    changes: dict[tuple[str, str], Change] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        if step := event.get("resourcePreEvent"):
            change = _change(step["metadata"])
            if change is None:
                continue
            # A replacement is told in three steps. That of the deletion comes first, and knows the old one only.
            known = changes.get((change.op, change.urn))
            if known is None or (change.new and not known.new):
                changes[change.op, change.urn] = change
        elif told := event.get("diagnosticEvent"):
            text = visible(str(told["message"])).strip()
            match told.get("severity"):
                case "error":
                    found.errors.append(text)
                case "warning":
                    found.warnings.append(text)
                case "info" | "info#err" if SAID.search(text):
                    found.causes[told.get("urn", "")] = text
        elif broken := event.get("policyEvent"):
            text = f"policy {broken['policyName']}: {visible(str(broken['message'])).strip()}"
            (found.errors if broken.get("enforcementLevel") == "mandatory" else found.warnings).append(text)
    found.changes += changes.values()
    if any(error.startswith("policy ") for error in found.errors):
        found.errors = [error for error in found.errors if error != "preview failed"]
    return found


def _change(step: Mapping[str, Any]) -> Change | None:
    op = OPS.get(step["op"], step["op"])
    if op not in SIGN:
        return None
    old, new = ((step.get(which) or {}).get("inputs") or {} for which in ("old", "new"))
    urn = step["urn"]
    return Change(
        op, step["type"].rsplit(":", 1)[1], urn.rsplit("::", 1)[1], old, new, urn, tuple(step.get("keys") or ())
    )


def previewed(stack: str) -> Found:
    """Run the preview of a stack."""
    # Without the variable a preview prints one document and no events.
    environment = {**pulumi_environment(ROOT), "PULUMI_ENABLE_STREAMING_JSON_PREVIEW": "true"}
    # The program runs before the refresh: what is wrong with the connection is told in its words, not the plugin's.
    argv = ["pulumi", "preview", "--stack", stack, "--run-program", "--json", "--non-interactive", "--color", "never"]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PREVIEW_SECONDS, check=False
        )
    except FileNotFoundError:
        raise PreviewError("there is no pulumi: scripts/setup installs it") from None
    except subprocess.TimeoutExpired:
        return Found(stack, errors=[f"the preview did not end within {PREVIEW_SECONDS} s"])
    found = read_events(stack, done.stdout.splitlines())
    if done.returncode and not found.errors:
        found.errors.append(visible(done.stderr.strip() or f"pulumi ended with {done.returncode}"))
    return found


# --- the comment of a pull request --------------------------------------------------------------


def ask(method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
    """One request to the API of GitHub, Gitea or Forgejo. Raises PreviewError."""
    try:
        base, token = os.environ["GITHUB_API_URL"].rstrip("/"), os.environ["GITHUB_TOKEN"]
        repository = os.environ["GITHUB_REPOSITORY"]
    except KeyError as missing:
        raise PreviewError(f"{missing.args[0]} is not set: a workflow sets it") from None
    request = urllib.request.Request(  # noqa: S310 - the address is the workflow's
        f"{base}/repos/{repository}{path}",
        method=method,
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": f"token {token}", "Content-Type": "application/json", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=API_SECONDS) as answer:  # noqa: S310 - as above
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 403 and method == "PATCH":
            return None
        raise PreviewError(f"{method} {path} was refused: {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise PreviewError(f"{method} {path}: {getattr(error, 'reason', error)}") from None


def write_comment(number: int, text: str) -> None:
    """Update the comment with our marker, or write one. Somebody else's with the same words is left alone."""
    ours = [one["id"] for one in comments(number) if str(one.get("body", "")).startswith(MARKER)]
    for identity in reversed(ours):
        if ask("PATCH", f"/issues/comments/{identity}", {"body": text}) is not None:
            return
    ask("POST", f"/issues/{number}/comments", {"body": text})


def comments(number: int) -> Iterator[Mapping[str, Any]]:
    """All comments of a pull request, oldest first. An API without pages answers the same again."""
    seen: set[int] = set()
    page = 1
    while found := list(ask("GET", f"/issues/{number}/comments?per_page=100&limit=100&page={page}")):
        new = [one for one in found if one["id"] not in seen]
        if not new:
            return
        seen |= {one["id"] for one in new}
        yield from new
        page += 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/preview", description="What pulumi up would do, for a reviewer.")
    parser.add_argument("--comment", nargs=2, metavar=("NUMBER", "FILE"), help="write FILE as a pull request's comment")
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="default: pet cattle")
    options = parser.parse_args()
    try:
        if options.comment:
            number, file = options.comment
            write_comment(int(number), Path(file).read_text(encoding="utf-8"))
            return 0
        text, good = comment([previewed(stack) for stack in options.stacks or ("pet", "cattle")])
    except (PreviewError, OSError, ValueError) as error:
        print(f"preview: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0 if good else 1


if __name__ == "__main__":
    end_with(main)
