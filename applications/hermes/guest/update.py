"""Another version of the agent: back up, switch, prove. When the proof fails, all is as it was, and the run fails.

The old version serves until the new one is built (by the agent phase), checked and the data is backed up. Offline is
only: stop, copy what changed since, rename files, start. Proved is by health, version, dashboard and a real prompt.

Two notes make a run that was ended at any moment (a reboot, a kill) harmless; both are gone when it is through:

- on the volume, `.hermes-stack/update.json`: which backup holds the data from before, and for which version the data
  may have been migrated since. The next run goes on when it wants the same version, else takes back first. It stays
  true when the container is thrown away meanwhile.
- in the container, `/var/lib/hermes-provision/update`: what /etc/hermes, the units or the compose project, and the
  build that ran, were.

A build is a folder of /opt/hermes or an image: an update may go from either to either, and back the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from applications.hermes.guest import compose, records, verify
from applications.hermes.guest.backend import ENGINE
from applications.hermes.guest.inputs import Facts, Installed
from applications.hermes.guest.journal import journal
from applications.hermes.guest.names import (
    CONTAINER_RECORD,
    CONTAINER_UNIT,
    CURRENT,
    DASHBOARD,
    FACTS,
    GATEWAY,
    IMAGE_CURRENT,
    KEPT_FOLDER,
    MANAGED,
    UPDATE_COPIES,
)
from applications.hermes.guest.services import STARTED, UNITS, enabling, is_active, units_present
from provisioning.guest.common import (
    LIBRARY,
    NO_JSON,
    CommandFailed,
    Refusal,
    answer_in,
    as_user,
    execute,
    install_file,
    read_home,
    read_json,
    run,
    write_home,
    write_json,
)
from provisioning.guest.typed import as_json, record
from provisioning.guest.words import command, lines_of, name, names, said, told

STATE_PROGRAM = LIBRARY / "applications" / "hermes" / "guest" / "state.py"
PREVIOUS = Path("/opt/hermes/previous")
WANTED = Path("/opt/hermes/wanted")
"""Links: what runs, what the last update came from, what the agent phase has built last."""
OWN_NOTES = UPDATE_COPIES.with_name("notes")
"""The container's copies of the notes on the volume: what root does on its own account follows from these."""
STATE_SECONDS = 1500
OURS, CHANGED, FOREIGN = "ours", "changed", "foreign"
"""A backup as it was made by the stack; one that was changed since; one that the stack did not make."""
VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,99}\Z")
RESTORE = "restore"
"""The note on the volume that backups.py is going back to a backup, and which one holds what was there before."""
STOPPING, STARTED_NEW = "stopping", "started"
# A failed phase shows the last fifteen lines of its log: the reason and the outcome must be among them.
SHOWN_LINES = 4
SHOWN_PATHS = 8


@dataclass(frozen=True)
class Subject:
    """Whose data, and how its agent is asked."""

    facts: Facts

    def state(self, *arguments: str) -> dict[str, Any]:
        """Run state.py as the agent's user; what it says on the way is seen, its refusal becomes ours."""
        what = f"{STATE_PROGRAM.name} {arguments[0]}"
        with records.one_at_a_time(STATE_SECONDS) if arguments[0] != "list" else contextlib.nullcontext():
            done = execute(*self.command(*arguments), timeout_s=STATE_SECONDS, told_as=what)
        if done.returncode != 0:
            # It is ours, but ran as the agent, which may have had its hands in it: so are its words.
            raise CommandFailed(
                f"{what}, as {self.facts.user}, says: {told(done.stderr.strip().removeprefix('error: '))}"
            )
        for line in lines_of(done.stderr):
            print(line)
        answer = answer_of(arguments[0], answer_in(done.stdout, what))
        self._note_down(arguments, answer)
        return answer

    def command(self, *arguments: str) -> tuple[str, ...]:
        """A call of state.py, as the agent's user."""
        python = ("runuser", "--user", self.facts.user, "--", "/usr/bin/python3", "-IB", str(STATE_PROGRAM))
        known = ("--known", json.dumps(records.known(self.facts.home)))
        return (*python, self.facts.home, self.facts.hermes_home, *arguments, *known)

    def _note_down(self, arguments: Sequence[str], answer: Mapping[str, Any]) -> None:
        """Which backups are ours now."""
        verb = arguments[0]
        if verb in ("make", "freshen"):
            records.remember(self.facts.home, answer["name"] if verb == "make" else arguments[1], answer["sum"])
        try:
            if verb == "prune":
                records.forget(self.facts.home, answer["removed"])
            elif verb == "undo" and answer["set_aside"]:
                records.remember(self.facts.home, answer["set_aside"], answer["sum"])
        except (Refusal, OSError) as trouble:
            # Nothing hangs on it: one name too many, or one that has to be asked for as one that is not ours.
            print(f"warning: {trouble}")

    def backups(self) -> list[dict[str, Any]]:
        """Those that are there, newest first, each with its `standing`: OURS, CHANGED or FOREIGN."""
        known = records.known(self.facts.home)
        return [each | {"standing": standing_of(each, known)} for each in self.state("list")["backups"]]

    def prune(self) -> list[str]:
        """Remove the backups beyond those that are to stay; their names."""
        kept = (self.facts.backups_kept, self.facts.scheduled_backups_kept)
        return list(map(str, self.state("prune", *map(str, kept))["removed"]))

    def own_note(self, name: str) -> dict[str, str] | None:
        """The container's own copy of a note, if it is of this volume. Only root writes it."""
        found = read_json(OWN_NOTES / f"{name}.json")
        note: dict[str, str] | None = found.get("note")
        return note if found.get("volume") == volume_of(self.facts.home) else None

    def read_note(self, name: str) -> dict[str, Any] | None:
        """A JSON note beside the data, or None. It is the agent's to write, so nothing that root does follows from it
        but calls of state.py, as the agent's user. Refusal where something else than a file lies."""
        with contextlib.suppress(*NO_JSON):
            found = json.loads(read_home(self.facts.user, self._note(name)) or "")
            if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
                return found
        return None

    def write_note(self, name: str, content: dict[str, str]) -> None:
        """On the volume, for a container that comes after this one, and in this one, where the agent can't write."""
        OWN_NOTES.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(OWN_NOTES / f"{name}.json", {"volume": volume_of(self.facts.home), "note": content})
        write_home(self.facts.user, self._note(name), json.dumps(content))

    def remove_note(self, name: str) -> None:
        as_user(self.facts.user, "rm", "-rf", self._note(name))
        (OWN_NOTES / f"{name}.json").unlink(missing_ok=True)

    def note_path(self, name: str) -> str:
        return self._note(name)

    def _note(self, name: str) -> str:
        return f"{self.facts.home}/{KEPT_FOLDER}/{name}.json"


def answer_of(verb: str, answer: Any) -> dict[str, Any]:
    """What state.py has answered, if it has the form that its answers have: it ran as the agent's user.

    Of a list, the lines that have theirs.
    """
    fields: dict[str, dict[str, type | tuple[type, ...]]] = {
        "list": {"backups": list},
        "make": {"name": str, "sum": str, "files": int, "bytes": int, "seconds": (int, float), "home": int},
        "freshen": {"sum": str},
        "undo": {"restored": list, "set_aside": (str, NoneType)},
        "restore": {"written": int},
        "prune": {"removed": list},
    }
    found: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if verb == "make":
        found = {"home": 0, **found}
    names = [
        name for name in (found.get("name"), found.get("set_aside"), *found.get("removed", ())) if name is not None
    ]
    proper = (
        all(isinstance(found.get(field), kind) for field, kind in fields[verb].items())
        and all(records.NAME.match(str(name)) for name in names)
        and records.SUM.match(str(found.get("sum", "0" * 64)))
    )
    if not proper:
        raise Refusal(f"state.py {verb} answered with something else than was asked for: {said(answer)}")
    if verb == "list":
        return found | {"backups": [each for each in found["backups"] if proper_backup(each)]}
    return found


def proper_backup(each: Any) -> bool:
    """Whether it is a line of state.py's list."""
    kinds = {"name": str, "sum": str, "version": str, "reason": str, "partial": bool, "files": int, "bytes": int}
    return (
        isinstance(each, dict)
        and all(type(each.get(field)) is kind for field, kind in kinds.items())
        and type(each.get("home", 0)) is int
        and records.NAME.match(each["name"]) is not None
    )


def standing_of(backup: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """By what is noted of it."""
    noted = known.get(backup["name"])
    if noted is None:
        return FOREIGN
    return OURS if noted == backup["sum"] else CHANGED


def newest_of(backups: Iterable[Mapping[str, Any]]) -> str | None:
    """The newest whole one that is ours, of a list with the newest first."""
    return next((each["name"] for each in backups if not each["partial"] and each["standing"] == OURS), None)


def volume_of(home: str) -> str:
    """Tells one file system from another, by what it calls itself; with ext4 that hangs on its UUID."""
    return str(os.statvfs(home).f_fsid)


def installed_at(directory: str) -> Installed | None:
    """What the agent phase says about a build; None when there is none."""
    return record(Installed, Path(directory, "install.json"))


def running_build() -> Installed | None:
    """What runs, or was stopped; None when there is none."""
    if image := record(Installed, IMAGE_CURRENT):
        return image
    directory = os.path.realpath(CURRENT)
    found = installed_at(directory)
    return replace(found, directory=directory) if found else None


def name_of(directory: str) -> str:
    """How people call a build: by its folder's name, or by the image's name and tag."""
    return Path(directory).name.partition("@")[0]


def point(link: Path, directory: str) -> None:
    """Atomically."""
    if link.is_symlink() and str(link.readlink()) == directory:
        return
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(directory)
    aside.replace(link)


# ---- services -------------------------------------------------------------------------------------------------------


def stop_services() -> bool:
    """True when the gateway was running. Stopping is asked of all that there is: none of it may write any more."""
    was = is_active(GATEWAY)
    if units := units_present():
        run("systemctl", "stop", *units)
    return compose.stop() or was


def start_as_enabled(subject: Subject) -> None:
    """What the files tell of: the units, or the container."""
    if units := units_present():
        run("systemctl", "reset-failed", *units, check=False)
        run("systemctl", "start", *units)
    if image := record(Installed, IMAGE_CURRENT):
        compose.start_again(str(image.backend), subject.facts.user, subject.facts.hermes_home)


def ask_health(subject: Subject, version: str) -> None:
    """verify.Unproven unless the gateway is ready and of this version."""
    verify.check_gateway(subject.facts.probe, version, time.monotonic() + subject.facts.probe.services_timeout_s)


def ask_all(subject: Subject, version: str) -> None:
    """verify.Unproven unless all answer: the gateway, a real prompt, the dashboard."""
    ask_health(subject, version)
    verify.prompt(subject.facts.probe)
    if subject.facts.probe.dashboard:
        verify.check_dashboard(subject.facts.probe, version, time.monotonic() + subject.facts.probe.services_timeout_s)
    for service in verify.services_of(subject.facts.probe):
        verify.check_unit(service)


# ---- what the container had before -----------------------------------------------------------------------------------


def own_files() -> list[Path]:
    """What a version's configuration consists of, outside the home."""
    units = [path for unit in (GATEWAY, DASHBOARD, CONTAINER_UNIT) for path in UNITS.glob(f"{unit}*")]
    project = (compose.FILE, CONTAINER_RECORD, IMAGE_CURRENT, Path(ENGINE))
    every = (*MANAGED.glob("*"), *MANAGED.glob(".env"), *units, *project, STARTED, FACTS)
    return sorted(path for path in every if path.is_file())


def save_files(build: Installed) -> None:
    """Copies of them, whole or not at all; root's alone, for there are secrets among them."""
    making = UPDATE_COPIES.with_name(".update.part")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700, parents=True)
    for path in own_files():
        target = making / "files" / path.relative_to("/")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy2(path, target)
        found = path.stat()
        os.chown(target, found.st_uid, found.st_gid)
    (making / "from.json").write_text(as_json(build))
    run("sync", "--file-system", str(making))
    shutil.rmtree(UPDATE_COPIES, ignore_errors=True)
    making.rename(UPDATE_COPIES)


def saved_build() -> Installed | None:
    """Which build the copies belong to; None where there are none."""
    return record(Installed, UPDATE_COPIES / "from.json")


def put_back_files(build: Installed) -> None:
    """The copies, which belong to this build. Repeatable: they stay until the run is through."""
    kept = [path for path in (UPDATE_COPIES / "files").rglob("*") if path.is_file()]
    wanted = {Path("/") / path.relative_to(UPDATE_COPIES / "files"): path for path in kept}
    if gone := [unit for unit in units_present() if UNITS / unit not in wanted]:
        run("systemctl", "disable", "--quiet", *gone)
    if build.backend is None:
        compose.remove_containers("going back to the services")
    for path in own_files():
        if path not in wanted:
            path.unlink()
    for path, source in wanted.items():
        found = source.stat()
        aside = path.with_name(f".{path.name}.back")
        shutil.copy2(source, aside)
        os.chown(aside, found.st_uid, found.st_gid)
        aside.replace(path)
    if build.backend is None:
        point(CURRENT, build.directory)
    run("systemctl", "daemon-reload")
    if units := units_present():
        run(*enabling(*units))


# ---- the update -----------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """A switch that is under way. `backup`: of the data from before; empty: nothing is switched, nothing to prove."""

    subject: Subject
    to_directory: str
    to_version: str
    backend: str | None = None
    """The engine, when it is to an image."""
    backup: str = ""
    from_version: str | None = None
    began: float = field(default_factory=time.time)
    stopped_at: float | None = None
    outputs: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """In words."""
        return self.to_version if self.backend is None else f"{self.to_version} in {name_of(self.to_directory)}"

    @property
    def gateway_first(self) -> Callable[[], None] | None:
        """For services.start_services: while something is switched, people wait for the gateway."""
        return self.wait_for_gateway if self.backup else None

    def as_note(self, stage: str) -> dict[str, str]:
        return {"backup": self.backup, "from": str(self.from_version), "to": self.to_directory, "stage": stage}

    def note(self, stage: str) -> None:
        self.subject.write_note("update", self.as_note(stage))

    def wait_for_gateway(self) -> None:
        ask_health(self.subject, self.to_version)
        if self.stopped_at is not None and "offline_seconds" not in self.outputs:
            self.outputs["offline_seconds"] = round(time.monotonic() - self.stopped_at, 1)
            print(f"update: {self.name} answers; offline for {self.outputs['offline_seconds']} s")


@contextlib.contextmanager
def switching(subject: Subject, directory: str, version: str, backend: str | None = None) -> Iterator[Trial]:
    """Around everything that makes the agent run from `directory`, or as an image by the engine `backend`.

    Refusal when that failed and was taken back.
    """
    trial = Trial(subject, directory, version, backend)
    _clear_up_after_others(trial)
    if not trial.backup and not _needs_proof(trial):
        yield trial
        _switch(trial)
        _remember(trial)
        return
    if not trial.backup:
        _back_up(trial)
    _write_down(trial)
    try:
        _go_offline(trial)
        yield trial
        _prove(trial)
        _commit(trial)
    except Exception as error:
        # Whatever it is, a new version's odd answer or a fault of ours: the old one has to serve again.
        raise _take_back(trial, error) from None
    _prune(trial)


def note_of(subject: Subject) -> dict[str, str] | None:
    """What a run that was ended in the middle has noted down; None when the last one was through.

    The container's own word counts. The volume's is that of a container which is gone, or the agent's.
    """
    note = subject.own_note("update") or subject.read_note("update")
    return note if note is not None and {"backup", "from", "to"} <= set(note) else None


def data_may_be_migrated(note: Mapping[str, str]) -> bool:
    """Whether the data may be the new version's: from its start on, and not while the old one is stopped for it."""
    return note.get("stage") != STOPPING


def _clear_up_after_others(trial: Trial) -> None:
    """A run that was ended in the middle: go on with it when it wanted the same, else take it back.

    A note of the volume alone is taken for the agent's: it may lead to giving back data of a backup of ours, no more.
    """
    subject = trial.subject
    note = note_of(subject)
    if note is None:
        shutil.rmtree(UPDATE_COPIES, ignore_errors=True)
        return
    # An update that the program before this one has begun left copies and no own note.
    sound = records.NAME.match(note["backup"]) and VERSION.match(note["from"])
    own = bool(subject.own_note("update") or (saved_build() and sound))
    if not own:
        _refuse_forged(subject, note)
    if note["to"] == trial.to_directory:
        print(f"update: going on with the one that was ended in the middle; the backup is {name(note['backup'])}")
        trial.backup, trial.from_version = note["backup"], note["from"]
        return
    print(f"update: an earlier one, to {said(name_of(note['to']))}, was ended in the middle; taking it back first")
    try:
        lines = _go_back(subject, note) if own else _give_back_alone(subject, note)
    except (Refusal, OSError) as trouble:
        raise Refusal(f"taking it back was not completed: {trouble}\n{_way_out(subject)}") from None
    for line in lines:
        print(f"update: {line}")


def _way_out(subject: Subject) -> str:
    """For a backup that is lost or was changed since."""
    notes = (OWN_NOTES / "update.json", subject.note_path("update"))
    return f"If it never can, have the data left as they are, as root in the container: {command('rm', '-f', *notes)}"


def _refuse_forged(subject: Subject, note: Mapping[str, str]) -> None:
    """A note that no container of ours can have left; nothing was changed yet, and nothing was stopped."""
    ours = [each["name"] for each in subject.backups() if each["standing"] == OURS]
    if note["backup"] in ours and VERSION.match(note["from"]):
        return
    path = subject.note_path("update")
    raise Refusal(
        f"{path} says that an update was ended in the middle, by a container that is gone, and names a backup that the "
        f"stack did not make, or that was changed since: {said(note['backup'])}. Nothing was changed.\n"
        "The agent can write there. If there was such an update, go back to a backup before you go on: "
        "`scripts/agent backups` lists them.\n"
        "Then, or if there was none, remove the note:\n"
        f"  {command('runuser', '-u', subject.facts.user, '--', 'rm', path)}"
    )


def _give_back_alone(subject: Subject, note: Mapping[str, str]) -> list[str]:
    """The data as they were before an update of which only the volume tells. Whatever comes of it, what ran runs."""
    ran = stop_services()
    try:
        lines = [_give_back_data(subject, note["backup"], "an update")] if data_may_be_migrated(note) else []
        subject.remove_note("update")
    finally:
        if ran:
            start_as_enabled(subject)
    return lines


def _needs_proof(trial: Trial) -> bool:
    """Whether the data has been another build's: the container's own, or that of a container which is gone."""
    if old := running_build():
        trial.from_version = old.version
        return (old.directory, old.backend) != (trial.to_directory, trial.backend)
    note = trial.subject.read_note("version")
    if note and "version" in note:
        # It is the agent's to write, and goes into names and texts.
        trial.from_version = note["version"] if VERSION.match(note["version"]) else "unknown"
    return trial.from_version not in (None, trial.to_version)


def _back_up(trial: Trial) -> None:
    refuse_half_restored(trial.subject)
    was = str(trial.from_version)
    made = trial.subject.state("make", "--version", was, "--reason", f"before the update to {trial.name}")
    trial.backup = str(made["name"])
    print(
        f"update: backed up as {trial.backup}: {made['files']} files, {made['bytes'] / 1e6:.1f} MB, {made['seconds']} s"
    )


def _write_down(trial: Trial) -> None:
    """Both notes, before anything is touched: when this fails, the old version goes on as if nothing had been."""
    if (build := running_build()) and not saved_build():
        save_files(build)
    if trial.subject.own_note("update") is None:
        # Of a container that is gone the stage is taken over: its version may have had the data.
        before = note_of(trial.subject)
        trial.note(STARTED_NEW if before is not None and data_may_be_migrated(before) else STOPPING)


def _go_offline(trial: Trial) -> None:
    trial.began, began = time.time(), time.monotonic()
    if stop_services():
        trial.stopped_at = began
    note = trial.subject.own_note("update")
    if note is None or not data_may_be_migrated(note):
        # From here on the new version may touch the data: the backup is what they were at this moment.
        trial.subject.state("freshen", trial.backup)
        trial.note(STARTED_NEW)
    _switch(trial)


def _switch(trial: Trial) -> None:
    """What runs from here on."""
    if trial.backend is None:
        point(CURRENT, trial.to_directory)
        IMAGE_CURRENT.unlink(missing_ok=True)
    else:
        image = Installed(trial.to_version, trial.to_directory, trial.backend)
        IMAGE_CURRENT.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        install_file(IMAGE_CURRENT, as_json(image), mode=0o644, gid=0)


def _prove(trial: Trial) -> None:
    trial.wait_for_gateway()
    ask_all(trial.subject, trial.to_version)
    print(f"update: {trial.name} has answered a prompt")


def _commit(trial: Trial) -> None:
    _remember(trial)
    before = saved_build()
    if before and before.backend is None and before.directory != trial.to_directory:
        point(PREVIOUS, before.directory)
    trial.subject.remove_note("update")
    shutil.rmtree(UPDATE_COPIES, ignore_errors=True)
    trial.outputs |= {"backup": trial.backup, "from_version": trial.from_version}


def _prune(trial: Trial) -> None:
    try:
        removed = trial.subject.prune()
    except Refusal as refusal:
        print(f"warning: the update is through, but older backups were not removed: {refusal}")
        removed = []
    if removed:
        print(f"update: older backups removed: {', '.join(removed)}")


def _remember(trial: Trial) -> None:
    wanted = {"version": trial.to_version}
    if trial.subject.read_note("version") != wanted:
        trial.subject.write_note("version", wanted)


def refuse_half_restored(subject: Subject) -> None:
    """Refuse while the data are neither the old nor the new."""
    own = subject.own_note(RESTORE)
    half = own or subject.read_note(RESTORE)
    if half is None:
        return
    path = subject.note_path(RESTORE)
    safety = str(half.get("safety"))
    before = "one of those that `scripts/agent backups` lists"
    if records.NAME.match(safety) and safety in records.known(subject.facts.home):
        before = command("scripts/agent", "restore", safety)
    remove = command("runuser", "-u", subject.facts.user, "--", "rm", path)
    doubt = "" if own else f"\nThe agent can write that note. If nobody went back to a backup, remove it:\n  {remove}"
    raise Refusal(
        f"going back to a backup was ended in the middle, says {path}: the data are neither the old nor the new. "
        "Nothing was changed.\n"
        f"Go back again: scripts/agent restore NAME, or to what there was before: {before}{doubt}"
    )


def _go_back(subject: Subject, note: Mapping[str, str]) -> list[str]:
    """Everything as it was before the update of this note; in words, how it stands now. Repeatable to its end."""
    stop_services()
    lines = []
    if data_may_be_migrated(note):
        lines.append(_give_back_data(subject, note["backup"], name_of(note["to"])))
    before = saved_build()
    if before:
        put_back_files(before)
        # How its agent is asked is among what was put back.
        subject = Subject(record(Facts, FACTS) or subject.facts)
        start_as_enabled(subject)
        began = time.monotonic()
        try:
            ask_health(subject, before.version)
            lines.append(f"{before.version} runs again, {time.monotonic() - began:.1f} s after it was started.")
        except (Refusal, OSError) as fault:
            lines.append(f"{before.version} was started again, but does not answer either: {fault}")
    else:
        run("systemctl", "disable", "--quiet", GATEWAY, DASHBOARD, check=False)
        compose.remove_containers("it has failed")
        lines.append("There is no older build in this container to go back to; the services are stopped.")
    subject.remove_note("update")
    shutil.rmtree(UPDATE_COPIES, ignore_errors=True)
    return lines


def _give_back_data(subject: Subject, backup: str, version: str) -> str:
    """In words, what was done."""
    done = subject.state("undo", backup, "--version", version)
    if not done["restored"]:
        return "The data had not been migrated and stayed as it is."
    # What lies at the top first: a release that gives up some of its skills moves a hundred files of them.
    restored = sorted(map(str, done["restored"]), key=lambda path: path.count("/"))
    more = f" and {len(restored) - SHOWN_PATHS} more" if len(restored) > SHOWN_PATHS else ""
    words = f"Taken back from the backup: {names(restored[:SHOWN_PATHS])}{more}."
    if done["set_aside"]:
        words += f" What had become of it is kept as {done['set_aside']}."
    return words


def _take_back(trial: Trial, error: Exception) -> Refusal:
    """Everything as it was; the text of the refusal tells why, and how it stands now."""
    why = str(error)
    if not isinstance(error, Refusal | OSError):
        why = repr(error)
        traceback.print_exception(error, file=sys.stdout)
    lines = [f"the update to {trial.name} was taken back: {why}"]
    for service in verify.services_of(trial.subject.facts.probe):
        words = journal(service, "--since", f"@{trial.began:.0f}")
        print("\n".join([f"update: the last lines of {service}:", *words]))
        if service != DASHBOARD:
            lines += ["Its last lines (more above):", *words[-SHOWN_LINES:]]
    print(f"update: {trial.name} failed; switching back")
    try:
        lines += _go_back(trial.subject, trial.subject.own_note("update") or trial.as_note(STARTED_NEW))
    except (Refusal, OSError) as trouble:
        # The notes stay: the next run takes it up from here.
        lines.append(
            f"Going back was not completed: {trouble}\nRun again: it goes on from here. {_way_out(trial.subject)}"
        )
    lines.append(f"The backup from before is {trial.backup}. The next run tries again; or set the old version.")
    return Refusal("\n".join(lines))
