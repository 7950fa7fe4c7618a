"""The second copy of the backups, in another place: pushed, thinned out, checked and brought back by restic.

A timer starts `backups copy` each hour, and each backup that was made starts it at once. What is done already is not
done again, and then nobody is asked.

Root follows no path of the home. A set is read by tar as the agent's user, and reaches restic through a pipe, as one
file; what comes back goes the same way. The password and the keys are in FOLDER, which is root's alone. restic gets
them, and the address, by files: no argument and no variable holds a secret. The agent can spoil what it is going to be
copied. What was copied it can neither read nor remove.

Each snapshot says in its tags which set it holds, and the sum of the set's manifest: so another container, which has
no record of it, knows it for one of ours. Only who has the password can write such a tag.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from applications.hermes.guest import records, schedule
from applications.hermes.guest.inputs import Copy
from applications.hermes.guest.names import KEPT_FOLDER
from applications.hermes.guest.schedule import FAILED, MADE, OFF, OVERDUE, WAITING, Standing, now_text
from applications.hermes.guest.state import ASKED_FOR, SCHEDULED
from applications.hermes.guest.update import OURS, Subject, volume_of
from provisioning.guest.common import (
    LIBRARY,
    Refusal,
    answer_in,
    execute,
    install_file,
    is_mounted,
    read_json,
    write_json,
)
from provisioning.guest.pipe import End, piped
from provisioning.guest.typed import as_json, record
from provisioning.guest.words import command, said, told

SERVICE = "agent-copy.service"
TIMER = "agent-copy.timer"
FOLDER = Path("/etc/hermes-stack/copy")
SETTINGS, REPOSITORY, PASSWORD, S3_KEYS, SSH_KEY, KNOWN_HOSTS = FILES = (
    "copy.json", "repository", "password", "s3-keys", "ssh-key", "known-hosts",
)  # fmt: skip
CACHE = Path("/var/cache/agent-copy")
RESTIC = "/usr/bin/restic"
TAG = "hermes-stack"
REASONS = (SCHEDULED, ASKED_FOR)
FILE_NAME = "set.tar"
"""What restic calls the one file of a snapshot."""
LONG_S, SHORT_S, WAIT_S = 12 * 3600.0, 600.0, 60.0
"""Seconds for what moves a set, for a question, and for another copy that is under way."""
BESIDE = 1 << 30
"""Bytes of a stream beyond the size of the volume: names and padding."""
PARTS = 10
"""In so many checks all data are read once."""
GRACE = timedelta(hours=26)
"""How late a copy may be: a set is large, a line slow, a server off for a night."""
CHECK_AGAIN = timedelta(days=1)
"""After one that found a fault."""
LOCKED, NO_REPOSITORY, WRONG_PASSWORD = 11, 10, 12
"""restic's exit codes since 0.17; Debian 12 has 0.14, which ends with 1 and says it in words."""
_WORDS = {
    NO_REPOSITORY: re.compile(
        "unable to open config file: "
        r".*(no such file|does not exist|NoSuchKey|NoSuchBucket|unexpected HTTP response \(404\))"
    ),
    LOCKED: re.compile("unable to create lock in backend: repository is already locked"),
    WRONG_PASSWORD: re.compile("wrong password or no key found"),
}
_ID = re.compile(r"[0-9a-f]{64}\Z")
_SHORT_ID = re.compile(r"[0-9a-f]{6,64}\Z")

UNITS = {
    SERVICE: f"""\
# Written by the stack; changes by hand are overwritten.
[Unit]
Description=Second copy of the newest backup of the agent's data
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart={LIBRARY}/backups copy
# The agent comes first.
Nice=10
IOSchedulingClass=idle
NoNewPrivileges=yes
PrivateTmp=yes
""",
    TIMER: """\
# Written by the stack; changes by hand are overwritten.
[Unit]
Description=When the second copy of the agent's backups is brought up to date

[Timer]
OnActiveSec=20min
OnUnitInactiveSec=1h

[Install]
WantedBy=timers.target
""",
}


# ---- what is installed ----------------------------------------------------------------------------------------------


def files_of(copy: Copy, secrets: Mapping[str, str]) -> dict[str, str]:
    """The files of FOLDER, by name. `secrets`: by the names that the configure phase has for them."""
    files = {
        SETTINGS: as_json(copy),
        REPOSITORY: copy.repository,
        PASSWORD: f"{secrets['copy.password']}\n",
    }
    secret_key = secrets.get("copy.secret_key", "")
    if copy.repository.startswith("rest:") and copy.access_key:
        login = ":".join(urllib.parse.quote(word, safe="") for word in (copy.access_key, secret_key))
        files[REPOSITORY] = copy.repository.replace("://", f"://{login}@", 1)
    if copy.repository.startswith("s3:"):
        files[S3_KEYS] = f"[default]\naws_access_key_id = {copy.access_key}\naws_secret_access_key = {secret_key}\n"
    if copy.sftp:
        bracketed = copy.sftp.host if copy.sftp.port == 22 else f"[{copy.sftp.host}]:{copy.sftp.port}"
        files |= {SSH_KEY: secrets["copy.ssh_key"], KNOWN_HOSTS: f"{bracketed} {copy.sftp.host_key}\n"}
    return files


def install(copy: Copy | None, secrets: Mapping[str, str]) -> None:
    """Have the copy be made, or none. Safe to repeat; what is there with the same content stays."""
    if copy is None:
        if FOLDER.exists():
            schedule.remove_timer(TIMER, SERVICE)
            shutil.rmtree(FOLDER)
            shutil.rmtree(CACHE, ignore_errors=True)
            _record().unlink(missing_ok=True)
            print("copies: none of the backups any more; what was copied stays where it is")
        return
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    FOLDER.chmod(0o700)
    wanted = files_of(copy, secrets)
    for name in FILES:
        if name in wanted:
            install_file(FOLDER / name, wanted[name], mode=0o600, gid=0)
        else:
            (FOLDER / name).unlink(missing_ok=True)
    if schedule.install_timer(TIMER, UNITS):
        print(f"copies: of each backup, at {copy.repository}")


def declared() -> Copy | None:
    """The copy of this container; None where there is none."""
    return record(Copy, FOLDER / SETTINGS)


def begin() -> None:
    """Have the newest backup be copied, if there is a copy. The timer does, too, within an hour."""
    if declared() is not None:
        execute("systemctl", "start", "--no-block", SERVICE, timeout_s=20)


# ---- restic ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Snapshot:
    """A set in the copy. `sum`: of its manifest; `volume`: that it was made on; `time`: when it was copied."""

    id: str
    stack: str
    set: str
    sum: str
    bytes: int
    volume: str
    time: str

    @property
    def tags(self) -> str:
        """As `restic backup --tag` takes them."""
        return ",".join((TAG, *(f"{name}={getattr(self, name)}" for name in ("set", "sum", "bytes", "volume"))))


def snapshot_of(line: Any) -> Snapshot | None:
    """From a line of `restic snapshots --json`; None for one that is not ours."""
    if not isinstance(line, dict) or not isinstance(line.get("tags"), list):
        return None
    tags = dict(each.split("=", 1) for each in line["tags"] if isinstance(each, str) and "=" in each)
    found = {name: tags.get(name, "") for name in ("set", "sum", "volume")}
    number = str(line.get("id")), tags.get("bytes", "")
    if not (_ID.match(number[0]) and records.NAME.match(found["set"]) and records.SUM.match(found["sum"])):
        return None
    if not number[1].isdigit():
        return None
    words = {name: str(line.get(name, "")) for name in ("hostname", "time")}
    return Snapshot(number[0], words["hostname"], bytes=int(number[1]), time=words["time"], **found)


@dataclass(frozen=True)
class Repository:
    """Where the copy is, by restic."""

    copy: Copy

    def argv(self, *arguments: str) -> list[str]:
        sftp = self.copy.sftp
        options = []
        if sftp:
            kept = {
                "BatchMode": "yes",
                "IdentitiesOnly": "yes",
                "IdentityFile": FOLDER / SSH_KEY,
                "UserKnownHostsFile": FOLDER / KNOWN_HOSTS,
                "GlobalKnownHostsFile": "/dev/null",
                "StrictHostKeyChecking": "yes",
                "UpdateHostKeys": "no",
                "ConnectTimeout": 30,
                "ServerAliveInterval": 15,
                "ServerAliveCountMax": 8,
            }
            ssh = ["ssh", "-F", "none", *(f"-o{name}={value}" for name, value in kept.items())]
            words = [*ssh, "-p", str(sftp.port), "-l", sftp.user, sftp.host, "-s", "sftp"]
            options = ["-o", f"sftp.command={shlex.join(words)}"]
        return [RESTIC, *options, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Without a secret: each is in a file that is named here."""
        found = {
            "PATH": "/usr/bin:/bin",
            "HOME": "/root",
            "LC_ALL": "C.UTF-8",
            "RESTIC_REPOSITORY_FILE": str(FOLDER / REPOSITORY),
            "RESTIC_PASSWORD_FILE": str(FOLDER / PASSWORD),
            "RESTIC_CACHE_DIR": str(CACHE),
        }
        if self.copy.repository.startswith("s3:"):
            found["AWS_SHARED_CREDENTIALS_FILE"] = str(FOLDER / S3_KEYS)
        if self.copy.region:
            found["AWS_DEFAULT_REGION"] = self.copy.region
        return found

    def run(self, *arguments: str, timeout_s: float = SHORT_S) -> str:
        """What restic prints; Refusal with a remedy where it fails."""
        done = self.asked(*arguments, timeout_s=timeout_s)
        if done.returncode != 0:
            raise self.refusal(arguments[0], done)
        return done.stdout

    def refuse_unmounted(self) -> None:
        """Refusal where the folder that the copy is in is not there."""
        if self.copy.mount and not is_mounted(self.copy.mount):
            raise Refusal(
                f"nothing is mounted at {self.copy.mount}, where the copy is. Stop and start the container; if that "
                "does not help, `pct config` on the node has to name the folder."
            )

    def asked(self, *arguments: str, timeout_s: float = SHORT_S) -> subprocess.CompletedProcess[str]:
        self.refuse_unmounted()
        what = f"restic {arguments[0]}"
        return execute(*self.argv(*arguments), timeout_s=timeout_s, env=self.environment, told_as=what)

    def refusal(self, verb: str, done: subprocess.CompletedProcess[str]) -> Refusal:
        where, why = self.copy.repository, why_of(done)
        words = told(self.without_login(without_trace(done.stderr.strip() or done.stdout or "")))
        if why == NO_REPOSITORY:
            return Refusal(
                f"there is no copy at {where} yet, says restic: {words}\n"
                "If there was one, find out where it is gone. For a new one: scripts/agent copy --init"
            )
        if why == WRONG_PASSWORD:
            return Refusal(
                f"the copy at {where} was made with another password. Nothing was changed there.\n"
                "Set agentCopyPassword to that one, then pulumi up; or use another place."
            )
        if why == LOCKED:
            return Refusal(
                f"another program works on the copy at {where}: {words}\n"
                "It is tried again in an hour. If there is none any more: scripts/agent ssh "
                f"{command(LIBRARY / 'backups', 'unlock')}"
            )
        return Refusal(
            f"restic {verb} failed on the copy at {where}: {words}\n"
            "It is tried again in an hour; now: scripts/agent copy"
        )

    def without_login(self, text: str) -> str:
        """restic stars a password in what it says; this is for what it forgets."""
        secrets = [(FOLDER / name).read_text() for name in (PASSWORD,) if (FOLDER / name).exists()]
        address = (FOLDER / REPOSITORY).read_text() if (FOLDER / REPOSITORY).exists() else ""
        login = urllib.parse.urlsplit(address.removeprefix("rest:")).password if address.startswith("rest:") else None
        for secret in filter(None, [*(each.strip() for each in secrets), login]):
            text = text.replace(secret, "***")
        return text

    def snapshots(self) -> list[Snapshot]:
        """All of ours, of whatever stack; newest first."""
        lines = answer_in(self.run("snapshots", "--json", "--no-lock", "--tag", TAG), "restic snapshots") or []
        found = [each for each in map(snapshot_of, lines) if each is not None]
        return sorted(found, key=lambda each: each.time, reverse=True)

    def begin(self) -> None:
        """Make the repository, where there is none. restic itself writes over none, nor where it can't reach one."""
        done = self.asked("cat", "config", "--no-lock")
        if done.returncode == 0:
            print(f"copies: {self.copy.repository} is there already")
            return
        if why_of(done) == WRONG_PASSWORD:
            raise self.refusal("init", done)
        self.run("init")
        print(f"copies: {self.copy.repository} is made, and encrypted with agentCopyPassword: keep that elsewhere, too")


def without_trace(text: str) -> str:
    """What restic says, without where in its source that is: a line for a function, and below it one for the file."""
    lines = text.splitlines()
    files = {number for number, line in enumerate(lines) if line.startswith("\t/")}
    return "\n".join(line for number, line in enumerate(lines) if not files & {number, number + 1})


def why_of(done: subprocess.CompletedProcess[str]) -> int | None:
    """NO_REPOSITORY, LOCKED, WRONG_PASSWORD, or None for anything else."""
    if done.returncode in _WORDS:
        return done.returncode
    return next((why for why, words in _WORDS.items() if words.search(done.stderr)), None)


# ---- push -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _noted(copy: Copy) -> Iterator[dict[str, Any]]:
    """Root's own record of the copy, written back however this ends; a fault is in it, or none."""
    with records.alone(_record().with_suffix(".lock"), WAIT_S, "another copy"):
        found = record_of(copy)
        fault = ""
        try:
            yield found
        except (Refusal, OSError) as error:
            fault = " ".join(str(error).split())[: schedule.FAULT_LIMIT]
            raise
        finally:
            found |= {"repository": copy.repository, "fault": fault, "time": now_text()}
            write_json(_record(), found)


def record_of(copy: Copy) -> dict[str, Any]:
    """What is noted of this copy; nothing where another one was declared before."""
    found = read_json(_record())
    return found if found.get("repository") == copy.repository else {}


def _record() -> Path:
    return records.HERE.with_name("copy.json")


def wanted_set(backups: Iterable[Mapping[str, Any]], noted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The newest set that is to be elsewhere, of a list with the newest first: of those on schedule or asked for.

    Those of before an update or a restore are no state to begin with on another node. Nor are those from before a
    set was brought back from the copy: of a volume that was new.
    """
    since = schedule.when_was(str(noted.get("since", "")))
    for each in backups:
        if each["standing"] == OURS and each["reason"] in REASONS and schedule.time_of(each["name"]) > since:
            return each
    return None


def check_is_due(copy: Copy, noted: Mapping[str, Any], now: datetime) -> bool:
    """Not before anything was copied."""
    if not copy.check_days or not noted.get("set"):
        return False
    last = schedule.when_was(str(noted.get("check_tried", "")))
    return now - last >= (CHECK_AGAIN if noted.get("check_fault") else timedelta(days=copy.check_days))


def push(subject: Subject, *, init: bool = False, new_volume: bool = False) -> dict[str, Any]:
    """Bring the copy up to date: the newest set, then what is too many, then a check that is due.

    `init`: make the repository first. `new_volume`: also where it has sets of this stack from another volume alone.
    """
    copy = _copy_here()
    with _noted(copy) as noted:
        repository = Repository(copy)
        if init:
            repository.begin()
        found = wanted_set(subject.backups(), noted)
        name = str(found["name"]) if found else ""
        missing = found is not None and noted.get("set") != name
        thins = bool(name) and any(copy.kept.values()) and noted.get("thinned") != name
        checks = check_is_due(copy, noted, datetime.now(UTC))
        if not (missing or thins or checks):
            print("copies: nothing to do" if found else "copies: there is no backup yet that could be copied")
            return {"set": noted.get("set"), "pushed": False}
        # Of a run that was killed; one of a program that is at work stays.
        repository.run("unlock")
        pushed = False
        if missing and found:
            pushed = _push_set(subject, repository, found, new_volume=new_volume)
            noted |= {"set": name, "copied": now_text()}
        if thins:
            _thin(repository, subject.facts.stack)
            noted["thinned"] = name
        if check_is_due(copy, noted, datetime.now(UTC)):
            _check(repository, noted)
        return {"set": noted.get("set"), "pushed": pushed}


def _copy_here() -> Copy:
    copy = declared()
    if copy is None:
        raise Refusal("no second copy of the backups is declared: set agentCopyRepository, then pulumi up.")
    return copy


def _push_set(subject: Subject, repository: Repository, found: Mapping[str, Any], *, new_volume: bool) -> bool:
    """Whether it was not there yet."""
    facts, name = subject.facts, str(found["name"])
    mine = [each for each in repository.snapshots() if each.stack == facts.stack]
    if (name, found["sum"]) in {(each.set, each.sum) for each in mine}:
        print(f"copies: {name} is there already")
        return False
    volume = volume_of(facts.home)
    if not new_volume:
        refuse_another_volume(mine, volume, records.known(facts.home))
    line = Snapshot("", facts.stack, name, str(found["sum"]), int(found["bytes"]), volume, "")
    folder = f"{facts.home}/{KEPT_FOLDER}/backups"
    tar = ("/usr/bin/tar", "--create", "--file=-", "--sort=name", "--numeric-owner", f"--directory={folder}", name)
    words = ("backup", "--quiet", "--stdin", "--stdin-filename", FILE_NAME, "--host", facts.stack, "--tag", line.tags)
    piped(
        End(f"tar, as {facts.user},", ("runuser", "--user", facts.user, "--", *tar)),
        End("restic backup", repository.argv(*words), repository.environment),
        limit=_limit(facts.home),
        timeout_s=LONG_S,
    )
    if (name, line.sum) not in {(each.set, each.sum) for each in repository.snapshots()}:
        raise Refusal(f"restic has copied {name}, and does not list it: look at {repository.copy.repository}.")
    print(f"copies: {name} is at {repository.copy.repository}")
    return True


def _limit(home: str) -> int:
    """Bytes of a stream: no set is larger than its volume. Who writes it may be the agent, without an end."""
    size = os.statvfs(home)
    return size.f_blocks * size.f_frsize + BESIDE


def refuse_another_volume(mine: Sequence[Snapshot], volume: str, known: Mapping[str, str]) -> None:
    """A new, empty volume must not push out what the lost one has left: not before somebody has decided."""
    if not mine or any(each.volume == volume or known.get(each.set) == each.sum for each in mine):
        return
    raise Refusal(
        f"the copy has {len(mine)} sets of the stack {mine[0].stack}, all of another volume; the newest is "
        f"{mine[0].set}. Nothing was copied.\n"
        "If this volume is to go on from there: scripts/agent restore --from-copy latest\n"
        "If it begins anew, beside them: scripts/agent copy --new-volume"
    )


def _thin(repository: Repository, stack: str) -> None:
    kept = [word for name, count in repository.copy.kept.items() if count for word in (f"--keep-{name}", str(count))]
    which = ("--tag", TAG, "--host", stack, "--group-by", "host,paths")
    repository.run("forget", *which, *kept, "--prune", timeout_s=LONG_S)


def _check(repository: Repository, noted: dict[str, Any]) -> None:
    part = int(noted.get("check_part") or 0) % PARTS + 1
    noted |= {"check_tried": now_text(), "check_part": part}
    print(f"copies: checking, with part {part} of {PARTS} of the data")
    done = repository.asked("check", f"--read-data-subset={part}/{PARTS}", timeout_s=LONG_S)
    noted["check_fault"] = "" if done.returncode == 0 else " ".join(done.stderr.split())[: schedule.FAULT_LIMIT]
    if done.returncode != 0:
        raise repository.refusal("check", done)
    noted["checked"] = now_text()


# ---- list and fetch -------------------------------------------------------------------------------------------------


def list_copies(_subject: Subject) -> dict[str, Any]:
    found = Repository(_copy_here()).snapshots()
    for each in found:
        print(f"{each.id[:8]}  {each.set:<44} {each.bytes / 1e6:>9.1f} MB  {said(each.stack)}")
    if not found:
        print("There are no copies yet.")
    return {"copies": [asdict(each) for each in found]}


def chosen(found: Sequence[Snapshot], stack: str, which: str) -> Snapshot:
    """By `latest` (the newest of this stack), by the begin of an id, or by a set's name. Refusal where none is."""
    mine = [each for each in found if each.stack == stack]
    if which == "latest":
        fitting = mine[:1]
    elif _SHORT_ID.match(which):
        fitting = [each for each in found if each.id.startswith(which)]
    else:
        fitting = [each for each in (*mine, *found) if each.set == which][:1]
    if len(fitting) == 1:
        return fitting[0]
    listed = "\n".join(f"  {each.id[:8]}  {each.set}  {said(each.stack)}" for each in found) or "  (none)"
    of = f" of the stack {stack}" if which == "latest" else ""
    raise Refusal(f"there is no copy {said(which)}{of}; nothing was changed. Those that are there:\n{listed}")


def fetch(subject: Subject, which: str) -> str:
    """Bring a set back into the backups of the volume. Answers its name."""
    copy, facts = _copy_here(), subject.facts
    repository = Repository(copy)
    wanted = chosen(repository.snapshots(), facts.stack, which)
    if any(each["name"] == wanted.set and each["sum"] == wanted.sum for each in subject.backups()):
        print(f"copies: {wanted.set} is on the volume already")
    else:
        verb = ("receive", wanted.set, "--bytes", str(wanted.bytes), "--sum", wanted.sum)
        with records.one_at_a_time(LONG_S):
            piped(
                End("restic dump", repository.argv("dump", wanted.id, f"/{FILE_NAME}"), repository.environment),
                End(f"state.py receive, as {facts.user},", subject.command(*verb)),
                limit=_limit(facts.home),
                timeout_s=LONG_S,
            )
        print(f"copies: {wanted.set} is back on the volume")
    records.remember(facts.home, wanted.set, wanted.sum)
    write_json(_record(), record_of(copy) | {"repository": copy.repository, "set": wanted.set, "since": now_text()})
    return wanted.set


def dump(_subject: Subject, which: str) -> dict[str, Any]:
    """Print the set with this whole id, as it was copied. Nothing is written here, and no lock made there."""
    if not _ID.match(which):
        raise Refusal(f"{said(which)} is no whole id of a copy: list them with {command('scripts/agent', 'copies')}")
    repository = Repository(_copy_here())
    repository.refuse_unmounted()
    argv = repository.argv("dump", "--no-lock", which, f"/{FILE_NAME}")
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=repository.environment, timeout=LONG_S,
            check=False, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refusal(f"restic dump did not end within {LONG_S:g} s.") from None
    if done.returncode != 0:
        raise repository.refusal("dump", done)
    return {}


def unlock(_subject: Subject) -> dict[str, Any]:
    """For a person who knows that no other program works on the copy."""
    Repository(_copy_here()).run("unlock", "--remove-all")
    print("copies: no lock is left")
    return {}


# ---- how it stands --------------------------------------------------------------------------------------------------


def standing(
    copy: Copy | None, newest: str | None, noted: Mapping[str, Any], *, since: datetime | None, now: datetime
) -> Standing:
    """`newest`: the set that should be there. `noted`: `record_of`. `since`: see schedule.standing."""
    if copy is None:
        return Standing(OFF, "none is declared")
    there, checked = noted.get("set"), noted.get("checked")
    last = "there is none yet"
    if isinstance(there, str) and records.NAME.match(there):
        last = f"the last one is of {schedule.time_of(there):%Y-%m-%d %H:%M} UTC ({there})"
    text = f"{last}, at {copy.repository}"
    if isinstance(checked, str):
        text += f", checked {schedule.when_was(checked):%Y-%m-%d}"
    if since is None:
        return Standing(FAILED, f"the timer does not run; {text}. Start it: {command('systemctl', 'start', TIMER)}")
    for fault, what in (
        (noted.get("fault"), "the last try failed"),
        (noted.get("check_fault"), "it was found damaged"),
    ):
        if isinstance(fault, str) and fault:
            return Standing(FAILED, f"{text}; {what}: {fault}")
    if newest is None or newest == there:
        return Standing(MADE if there else WAITING, text)
    if now - max(schedule.time_of(newest), since) > GRACE:
        return Standing(OVERDUE, f"{text}; {newest} is not there. Look: journalctl -u {SERVICE}")
    return Standing(MADE if there else WAITING, f"{text}; {newest} is to come")


def standing_now(backups: Iterable[Mapping[str, Any]]) -> Standing:
    """As it is in this container."""
    copy = declared()
    if copy is None:
        return standing(None, None, {}, since=None, now=datetime.now(UTC))
    noted = record_of(copy)
    found = wanted_set(backups, noted)
    newest = str(found["name"]) if found else None
    return standing(copy, newest, noted, since=schedule.running_since(TIMER), now=datetime.now(UTC))
