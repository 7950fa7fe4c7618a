"""Backups: make one, list them, go back to one. Installed as /usr/local/lib/hermes-stack/backups, for root.

    backups make | list | restore NAME|latest [--unknown]
    backups copies | copy [--init] [--new-volume] | restore --from-copy ID|NAME|latest      the second copy: copies.py
    backups dump ID                                             prints one of the second copy, as a tar
    backups scheduled                                           by the timer: make one if it is due

A backup lies in the home, so the agent can change it or make one: what goes back by itself is one that the stack made,
as it was made (records.py). As a job of the stack (HP_JOB set) the result goes to result.json as well.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from applications.hermes.guest import copies, schedule
from applications.hermes.guest.inputs import Facts
from applications.hermes.guest.names import FACTS, KEPT_FOLDER
from applications.hermes.guest.state import ASKED_FOR, SCHEDULED
from applications.hermes.guest.update import (
    CHANGED,
    FOREIGN,
    OURS,
    RESTORE,
    Subject,
    ask_all,
    newest_of,
    note_of,
    running_build,
    start_as_enabled,
    stop_services,
)
from provisioning.guest.common import Refusal
from provisioning.guest.typed import record
from provisioning.guest.words import command, named, said
from provisioning.guest.words import name as shown

STANDING = {OURS: "", CHANGED: "changed since the stack made it, ", FOREIGN: "not one that the stack made, "}


def make(subject: Subject, reason: str = ASKED_FOR) -> dict[str, Any]:
    """A backup of now, then those too many are removed."""
    rest = ["--home"] if subject.facts.backup_home else []
    made = subject.state("make", "--version", version_now(), "--reason", reason, *rest)
    made["path"] = f"{subject.facts.home}/{KEPT_FOLDER}/backups/{made['name']}"
    removed = subject.prune()
    count = made["files"] + made.get("home", 0)
    print(f"backed up: {made['path']}\n  {count} files, {made['bytes'] / 1e6:.1f} MB, {made['seconds']} s")
    if removed:
        print(f"  older ones removed: {', '.join(removed)}")
    copies.begin()
    return made


def scheduled(subject: Subject) -> dict[str, Any]:
    """A backup if one is due. How it ended is noted down, for who asks how the agent is."""
    if not schedule.is_due(subject.facts.backup_times, newest_of(subject.backups()), datetime.now().astimezone()):
        print("backups: none is due")
        return {}
    try:
        refuse_in_between(subject)
        made = make(subject, SCHEDULED)
    except (Refusal, OSError) as error:
        schedule.note(str(error))
        raise
    schedule.note("")
    return made


def refuse_in_between(subject: Subject) -> None:
    """Refusal while an update or a restore is under way.

    By the container's own note alone: the agent can write the one on the volume, and would keep itself from being kept.
    """
    for own in ("update", RESTORE):
        if subject.own_note(own) is not None:
            raise Refusal(
                f"an update or a restore is under way or was ended in the middle ({subject.note_path(own)}): "
                "nothing is backed up before it is through. Run `pulumi up`, or the restore again."
            )


def list_backups(subject: Subject) -> dict[str, Any]:
    found = subject.backups()
    for each in found:
        size = f"{each['files'] + each.get('home', 0):>6} files {each['bytes'] / 1e6:>9.1f} MB"
        print(f"{each['name']:<44} {size}  {STANDING[each['standing']]}{said(each['reason'])}")
    if not found:
        print("There are no backups yet.")
    return {"backups": found}


def chosen(every: Sequence[Mapping[str, Any]], name: str, *, unknown: bool) -> str:
    """The name of the backup that is meant. Refusal unless it is there, and ours or asked for as `unknown`."""
    if name == "latest":
        newest = newest_of(every)
        if newest is None:
            raise Refusal(
                "there is no backup that the stack made and nobody changed since; nothing was changed.\n"
                f"Those that are there:\n{named(each['name'] for each in every)}\n"
                "One of them is gone back to by its name and --unknown."
            )
        return newest
    for each in every:
        if each["name"] == name:
            if each["standing"] != OURS and not unknown:
                raise Refusal(
                    f"the backup {name} is {STANDING[each['standing']]}so it may hold what the agent wrote into it. "
                    "Nothing was changed.\nTo go back to it all the same: "
                    f"{command('scripts/agent', 'restore', name, '--unknown')}"
                )
            return name
    listed = named(each["name"] for each in every)
    raise Refusal(f"there is no backup {shown(name)}; nothing was changed. Those that are there:\n{listed}")


def restore(subject: Subject, name: str, *, unknown: bool = False) -> dict[str, Any]:
    """Back to `name`, with a backup of now before; the services stand still meanwhile, and have to answer after."""
    every = subject.backups()
    whole = [each["name"] for each in every if not each["partial"] and each["standing"] == OURS]
    name = chosen(every, name, unknown=unknown)
    if note_of(subject) is not None:
        raise Refusal(
            f"an update was ended in the middle, says {subject.note_path('update')}; run `pulumi up` first. "
            "Nothing was changed."
        )
    version = version_now()
    # The agent's note of it is not asked: it could keep the present state from being backed up.
    begun = (subject.own_note(RESTORE) or {}).get("safety")
    if begun in whole:
        print(f"restore: an earlier one was ended in the middle; the state from before it is {begun}")
        safety = str(begun)
    else:
        # What goes back is kept, and no more: where it has not the rest of the home, that stays as it is.
        rest = ["--home"] if any(each["name"] == name and "home" in each for each in every) else []
        reason = f"before going back to {name}"
        safety = str(subject.state("make", "--version", version, "--reason", reason, *rest)["name"])
        print(f"restore: the present state is kept as {safety}")
    back = f"Back to the state from before: {command('scripts/agent', 'restore', safety)}"
    try:
        stop_services()
        if safety != begun:
            subject.state("freshen", safety)
            # From here on what lies there is neither: a run that is ended now must not be taken for the present state.
            subject.write_note(RESTORE, {"safety": safety})
        written = subject.state("restore", name, *(["--unknown"] if unknown else []))["written"]
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
    facts = record(Facts, FACTS)
    if facts is None:
        raise Refusal("there is no agent in this container; pulumi up makes it.")
    return Subject(facts)


def version_now() -> str:
    found = running_build()
    if found is None:
        raise Refusal("there is no agent in this container; pulumi up makes it.")
    return found.version


def carried_out(subject: Subject, options: argparse.Namespace) -> dict[str, Any]:
    """What the verb answers."""
    if options.verb == "restore":
        name = copies.fetch(subject, options.name) if options.from_copy else options.name
        return restore(subject, name, unknown=options.unknown)
    if options.verb == "copy":
        return copies.push(subject, init=options.init, new_volume=options.new_volume)
    if options.verb == "dump":
        return copies.dump(subject, options.id)
    verbs = {
        "make": make,
        "scheduled": scheduled,
        "list": list_backups,
        "copies": copies.list_copies,
        "unlock": copies.unlock,
    }
    return verbs[options.verb](subject)


def main() -> int:
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(prog="backups", description="Back up the agent's data, and go back.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make", help="make one now")
    verbs.add_parser("scheduled", help="make one if it is due")
    verbs.add_parser("list", help="those that there are, newest first")
    verb = verbs.add_parser("restore", help="go back to one")
    verb.add_argument("name", help="a name of the list, or latest: the newest whole one that the stack made")
    verb.add_argument("--unknown", action="store_true", help="also to one that the stack did not make")
    verb.add_argument("--from-copy", action="store_true", help="one of the second copy; the name may be an id of it")
    verbs.add_parser("copies", help="those in the second copy, newest first")
    verb = verbs.add_parser("dump", help="print one of the second copy, as a tar")
    verb.add_argument("id", help="a whole id of it")
    verbs.add_parser("unlock", help="remove all locks of the second copy")
    verb = verbs.add_parser("copy", help="bring the second copy up to date")
    verb.add_argument("--init", action="store_true", help="make it, where there is none")
    verb.add_argument("--new-volume", action="store_true", help="also where it has sets of another volume alone")
    options = parser.parse_args()
    try:
        result = carried_out(subject_here(), options)
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if job := os.environ.get("HP_JOB"):
        (Path(job) / "result.json").write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
