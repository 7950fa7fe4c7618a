"""Backups by hand: make one, list them, go back to one. Installed as /usr/local/lib/hermes-stack/backups, for root.

    backups make | list | restore NAME|latest

As a job of the stack (HP_JOB set) the result goes to result.json as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from provisioning.guest.common import FACTS, KEPT_FOLDER, Refusal, read_json
from provisioning.guest.update import RESTORE, Subject, ask_all, running_build, start_as_enabled, stop_services


def make(subject: Subject) -> dict[str, Any]:
    """A backup of now, then those too many are removed."""
    made = subject.state("make", "--version", version_now(), "--reason", "asked for")
    made["path"] = f"{subject.home}/{KEPT_FOLDER}/backups/{made['name']}"
    removed = subject.state("prune", str(subject.backups_kept))["removed"]
    print(f"backed up: {made['path']}\n  {made['files']} files, {made['bytes'] / 1e6:.1f} MB, {made['seconds']} s")
    if removed:
        print(f"  older ones removed: {', '.join(removed)}")
    return made


def listed(subject: Subject) -> dict[str, Any]:
    found = subject.state("list")
    for each in found["backups"]:
        print(f"{each['name']:<44} {each['files']:>6} files {each['bytes'] / 1e6:>9.1f} MB  {each['reason']}")
    if not found["backups"]:
        print("There are no backups yet.")
    return found


def restore(subject: Subject, name: str) -> dict[str, Any]:
    """Back to `name`, with a backup of now before; the services stand still meanwhile, and have to answer after."""
    every = subject.state("list")["backups"]
    whole = [each["name"] for each in every if not each["partial"]]
    if name == "latest" and whole:
        name = whole[0]
    if name not in [each["name"] for each in every]:
        known = "\n".join(f"  {each['name']}" for each in every) or "  (none)"
        raise Refusal(f"there is no backup {name}; nothing was changed. Those that are there:\n{known}")
    if subject.read_note("update") is not None:
        raise Refusal("an update was ended in the middle; run `pulumi up` first. Nothing was changed.")
    version = version_now()
    begun = (subject.read_note(RESTORE) or {}).get("safety")
    if begun in whole:
        print(f"restore: an earlier one was ended in the middle; the state from before it is {begun}")
        safety = str(begun)
    else:
        safety = str(subject.state("make", "--version", version, "--reason", f"before going back to {name}")["name"])
        print(f"restore: the present state is kept as {safety}")
    back = f"Back to the state from before: scripts/agent restore {safety}"
    try:
        stop_services()
        if safety != begun:
            subject.state("freshen", safety)
            # From here on what lies there is neither: a run that is ended now must not be taken for the present state.
            subject.write_note(RESTORE, {"safety": safety})
        written = subject.state("restore", name)["written"]
        subject.remove_note(RESTORE)
        print(f"restore: {written} files written")
    except (Refusal, OSError) as error:
        raise Refusal("\n".join([str(error), *_started_again(subject), f"It can be repeated. {back}"])) from None
    try:
        start_as_enabled(subject)
        ask_all(subject, version)
    except (Refusal, OSError) as fault:
        raise Refusal(f"{name} is restored, but the agent {version} does not work with it: {fault}\n{back}") from None
    print(f"restored: {name}; the agent {version} answers a prompt. The state from before is kept as {safety}")
    return {"restored": name, "safety": safety, "written": written}


def _started_again(subject: Subject) -> list[str]:
    """Have the services run, whatever became of the data; in words, when even that fails."""
    try:
        start_as_enabled(subject)
    except (Refusal, OSError) as error:
        return [f"The services were not started again: {error}"]
    return []


def subject_here() -> Subject:
    """As the configure phase has left it."""
    facts = read_json(FACTS)
    if not facts:
        raise Refusal("there is no agent in this container; pulumi up makes it.")
    return Subject(facts["user"], facts["home"], facts["hermes_home"], facts["backups_kept"], facts["probe"])


def version_now() -> str:
    found = running_build()
    if not found:
        raise Refusal("there is no agent in this container; pulumi up makes it.")
    return str(found["version"])


def main() -> int:
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(prog="backups", description="Back up the agent's data, and go back.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make", help="make one now")
    verbs.add_parser("list", help="those that there are, newest first")
    verbs.add_parser("restore", help="go back to one").add_argument("name", help="a name of the list, or latest")
    options = parser.parse_args()
    try:
        subject = subject_here()
        if options.verb == "restore":
            result = restore(subject, options.name)
        else:
            result = make(subject) if options.verb == "make" else listed(subject)
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if job := os.environ.get("HP_JOB"):
        (Path(job) / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
