"""The second copy of the backups: when restic is called and how, what is believed of it, and how it stands.

restic itself is in tests/e2e; here it is a table of what it has, and says what 0.14 or 0.18 say.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from applications.hermes.guest import backups, copies, records, schedule, state, update
from applications.hermes.guest.copies import Snapshot
from applications.hermes.guest.inputs import Copy, Sftp
from applications.hermes.guest.schedule import FAILED, MADE, OFF, OVERDUE, WAITING
from provisioning.guest.common import LIBRARY, Refusal, write_json
from provisioning.guest.pipe import End
from tests.unit.switching import OLD, World, with_a_backup

PASSWORD, SECRET = "canary of a password", "canary/of:a key"
SECRETS = {"copy.password": PASSWORD, "copy.secret_key": SECRET, "copy.ssh_key": "canary of an ssh key\n"}
COPY = Copy(
    repository="/mnt/c/hermes",
    access_key="",
    region="",
    sftp=None,
    mount="",
    kept={"last": 3, "daily": 7, "weekly": 0, "monthly": 6},
    check_days=7,
)
OTHERS = {
    "sftp": replace(
        COPY,
        repository="sftp://me@host.example:2222//srv/x",
        sftp=Sftp("me", "host.example", 2222, "ssh-ed25519 AAAA"),
    ),
    "s3": replace(COPY, repository="s3:https://s3.example/b", access_key="AKIA", region="eu-west-1"),
    "rest": replace(COPY, repository="rest:https://rest.example:8000/h", access_key="me"),
}
MISSING_014 = (1, "Fatal: unable to open config file: stat /x/config: no such file or directory\nIs there a repository")
MISSING_018 = (10, "Fatal: repository does not exist: unable to open config file: stat /x/config: no such file")
PASSWORD_014 = (1, "Fatal: wrong password or no key found")
PASSWORD_018 = (12, "Fatal: wrong password or no key found")
LOCKED_014 = (1, "unable to create lock in backend: repository is already locked by PID 9 on other by root")
UNREACHABLE = (1, 'Fatal: unable to open config file: Head "https://x/": dial tcp: connect: connection refused')

# As errors.Wrap of Go prints an error with its trace: functions, and files below them.
TRACED = """blob not removed, server response: 403 Forbidden
github.com/restic/restic/internal/backend/rest.(*Backend).Remove
\t/build/restic-0.14.0/internal/backend/rest/rest.go:345
runtime.goexit
\t/usr/lib/go-1.19/src/runtime/asm_amd64.s:1594"""


@dataclass
class Restic:
    """What is in the repository, and how each call ends. `broken`: by verb, exit status and words."""

    exists: bool = True
    missing: tuple[int, str] = MISSING_014
    broken: dict[str, tuple[int, str]] = field(default_factory=dict)
    there: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    calls: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    fail_at: int = 0

    def call(self, argv: list[str], env: dict[str, str]) -> tuple[list[str], tuple[int, str] | None]:
        """The words from the verb on, and how it fails."""
        self.calls.append((argv, env))
        words = argv[1:] if argv[1] != "-o" else argv[3:]
        self.verbs.append(words[0])
        if len(self.verbs) == self.fail_at:
            return words, UNREACHABLE
        if not self.exists and words[0] != "init":
            return words, self.missing
        return words, self.broken.get(words[0])

    def execute(self, *argv: str, env: dict[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        words, fault = self.call(list(argv), env)
        if fault:
            return subprocess.CompletedProcess(words, fault[0], "", fault[1])
        if words[0] == "init":
            self.exists = True
        out = json.dumps([line for line, _ in self.there] or None) if words[0] == "snapshots" else ""
        return subprocess.CompletedProcess(words, 0, out, "")

    def piped(self, source: End, target: End, *, limit: int, timeout_s: float) -> None:
        assert limit > 1 << 30
        assert timeout_s > 0
        if source.command[0] == copies.RESTIC:
            assert source.env is not None
            words, fault = self.call(list(source.command), dict(source.env))
            assert fault is None
            (content,) = [content for line, content in self.there if line["id"] == words[1]]
            assert target.command[:2] == ("runuser", "--user")
            self.received(target.command, content)
            return
        assert target.env is not None
        words, fault = self.call(list(target.command), dict(target.env))
        if fault:
            raise Refusal(fault[1])
        assert source.command[:4] == ("runuser", "--user", "hermes", "--")
        content = subprocess.run(source.command[4:], capture_output=True, check=True, timeout=60).stdout
        options = dict(itertools.pairwise(words))
        number = hashlib.sha256(f"{len(self.there)}".encode()).hexdigest()
        time = f"2026-11-28T03:30:{len(self.there):02}.5Z"
        tags = options["--tag"].split(",")
        line = {"id": number, "hostname": options["--host"], "time": time, "tags": tags}
        self.there.append((line, content))

    def received(self, command: Any, content: bytes) -> None:
        arguments = list(command[command.index(str(update.STATE_PROGRAM)) + 1 :])
        with pytest.MonkeyPatch.context() as patch, Path(arguments[0], "stream").open("w+b") as stream:
            stream.write(content)
            stream.seek(0)
            patch.setattr(sys, "stdin", type("Stdin", (), {"buffer": stream}))
            patch.setattr(sys, "argv", ["state.py", *arguments])
            patch.setattr(os, "geteuid", lambda: 10000)
            before = os.umask(0o022)
            try:
                if state.main():
                    raise Refusal("state.py says no")
            finally:
                os.umask(before)
                Path(arguments[0], "stream").unlink()


@pytest.fixture
def restic(monkeypatch: pytest.MonkeyPatch) -> Restic:
    made = Restic()
    monkeypatch.setattr(copies, "execute", made.execute)
    monkeypatch.setattr(copies, "piped", made.piped)
    return made


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """With one backup, and a copy that is declared."""
    made = with_a_backup(tmp_path, monkeypatch)
    monkeypatch.setattr(copies, "FOLDER", tmp_path / "copy")
    monkeypatch.setattr(copies, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(copies, "begin", lambda: None)
    monkeypatch.setattr(schedule, "UNITS", tmp_path / "units-of-timers")
    monkeypatch.setattr(schedule, "run", lambda *_: "")
    monkeypatch.setattr(schedule, "running_since", lambda _: datetime(2020, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(copies, "install_file", installed)
    monkeypatch.setattr(schedule, "install_file", installed)
    (tmp_path / "units-of-timers").mkdir()
    copies.install(COPY, SECRETS)
    return made


def installed(path: Path, text: str, *, mode: int, gid: int) -> bool:
    """As install_file, for who is not root."""
    assert gid == 0
    same = path.exists() and path.read_text() == text
    path.write_text(text)
    path.chmod(mode)
    return not same


def newest(world: World) -> str:
    return str(world.backups()[0]["name"])


def standing(world: World) -> schedule.Standing:
    return copies.standing_now(world.subject().backups())


# ---- push -----------------------------------------------------------------------------------------------------------


def test_it_is_pushed_once_thinned_out_and_checked(world: World, restic: Restic) -> None:
    assert standing(world).word == WAITING
    assert copies.push(world.subject())["pushed"] is True
    assert restic.verbs == ["unlock", "snapshots", "backup", "snapshots", "forget", "check"]
    words = [argv for argv, _ in restic.calls]
    assert words[4][1:] == [
        *("forget", "--tag", "hermes-stack", "--host", "cattle", "--group-by", "host,paths"),
        *("--keep-daily", "7", "--keep-last", "3", "--keep-monthly", "6", "--prune"),
    ]
    assert words[5][1:] == ["check", "--read-data-subset=1/10"]
    (each,) = copies.Repository(COPY).snapshots()
    known = records.known(str(world.home))
    assert (each.stack, each.set, each.sum) == ("cattle", newest(world), known[newest(world)])
    assert (standing(world).word, f"({newest(world)}), at /mnt/c/hermes, checked" in str(standing(world))) == (
        MADE,
        True,
    )
    # Neither by hand nor by the timer anybody is asked again.
    restic.verbs.clear()
    assert copies.push(world.subject())["pushed"] is False
    assert restic.verbs == []


def test_a_container_without_a_record_finds_what_is_there(world: World, restic: Restic) -> None:
    copies.push(world.subject())
    copies._record().unlink()
    assert copies.push(world.subject())["pushed"] is False
    assert "backup" not in restic.verbs[6:]
    assert len(restic.there) == 1


def test_another_place_is_another_copy(world: World, restic: Restic) -> None:
    copies.push(world.subject())
    copies.install(replace(COPY, repository="/mnt/c/other"), SECRETS)
    assert standing(world).word == WAITING
    restic.there.clear()
    assert copies.push(world.subject())["pushed"] is True


@pytest.mark.parametrize("kept", [{"last": 0, "daily": 0, "weekly": 0, "monthly": 0}, {}])
def test_where_all_stay_nothing_is_removed(world: World, restic: Restic, kept: dict[str, int]) -> None:
    copies.install(replace(COPY, kept=kept), SECRETS)
    copies.push(world.subject())
    assert "forget" not in restic.verbs


@pytest.mark.parametrize("number", range(1, 7))
def test_broken_at_any_step_it_is_seen_and_goes_on_from_there(world: World, restic: Restic, number: int) -> None:
    restic.fail_at = number
    with pytest.raises(Refusal, match="connection refused"):
        copies.push(world.subject())
    assert standing(world).word == FAILED
    assert "connection refused" in str(standing(world))
    restic.fail_at = 0
    noted = json.loads(copies._record().read_text())
    if number == 6:
        # A check that failed is not repeated each hour.
        write_json(copies._record(), noted | {"check_tried": "2026-01-01T00:00:00+00:00"})
    copies.push(world.subject())
    assert standing(world).word == MADE
    assert len(restic.there) == 1
    assert restic.verbs.count("backup") == (2 if number == 3 else 1)


def test_a_line_that_works_again_clears_what_was_noted(world: World, restic: Restic) -> None:
    restic.broken["check"] = (1, "Fatal: repository contains errors")
    with pytest.raises(Refusal, match="restic check failed on the copy at /mnt/c/hermes: Fatal: repository contains"):
        copies.push(world.subject())
    for _ in range(2):
        # In an hour nothing is to do; what was found stays told.
        copies.push(world.subject())
        assert "it was found damaged: Fatal: repository contains errors" in str(standing(world))
    assert restic.verbs.count("check") == 1
    restic.broken.clear()
    noted = json.loads(copies._record().read_text())
    write_json(copies._record(), noted | {"check_tried": "2026-01-01T00:00:00+00:00"})
    copies.push(world.subject())
    assert standing(world).word == MADE


def test_each_check_reads_another_part(world: World, restic: Restic) -> None:
    for _ in range(11):
        copies.push(world.subject())
        noted = json.loads(copies._record().read_text())
        write_json(copies._record(), noted | {"check_tried": "2026-01-01T00:00:00+00:00"})
    parts = [argv[-1].partition("=")[2] for argv, _ in restic.calls if "check" in argv]
    assert parts == [*(f"{part}/10" for part in range(1, 11)), "1/10"]


@pytest.mark.usefixtures("restic")
def test_only_sets_to_begin_with_are_copied(world: World) -> None:
    """The present state before a restore is kept on the volume. On another node nobody begins with it."""
    first = newest(world)
    backups.restore(world.subject(), first)
    assert newest(world) != first
    assert copies.push(world.subject())["set"] == first
    world.configure("2.0")
    assert copies.push(world.subject())["pushed"] is False


# ---- the repository -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [MISSING_014, MISSING_018])
def test_a_repository_is_made_by_the_word_of_a_person_alone(
    world: World, restic: Restic, missing: tuple[int, str]
) -> None:
    restic.exists, restic.missing = False, missing
    with pytest.raises(
        Refusal, match=r"(?s)there is no copy at /mnt/c/hermes yet.*For a new one: scripts/agent copy --init"
    ):
        copies.push(world.subject())
    assert "init" not in restic.verbs
    assert standing(world).word == FAILED
    assert copies.push(world.subject(), init=True)["pushed"] is True
    assert restic.verbs.count("init") == 1
    copies.push(world.subject(), init=True)
    assert restic.verbs.count("init") == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (PASSWORD_014, "made with another password. Nothing was changed there.\nSet agentCopyPassword to that one"),
        (PASSWORD_018, "made with another password. Nothing was changed there.\nSet agentCopyPassword to that one"),
        (LOCKED_014, "another program works on the copy"),
        ((11, "Fatal: x"), "another program works on the copy"),
        (UNREACHABLE, "connection refused\nIt is tried again in an hour; now: scripts/agent copy"),
        ((1, "Fatal: unable to open config file: Stat: access denied"), "access denied\nIt is tried again"),
        ((1, f"Fatal: {PASSWORD} and so on"), "Fatal: *** and so on"),
        ((1, TRACED), "blob not removed, server response: 403 Forbidden\nIt is tried again"),
    ],
)
def test_what_restic_says_is_told_with_a_remedy(
    world: World, restic: Restic, fault: tuple[int, str], told: str
) -> None:
    restic.broken["unlock"] = fault
    with pytest.raises(Refusal) as refused:
        copies.push(world.subject())
    assert told in str(refused.value)
    assert "canary" not in copies._record().read_text()


@pytest.mark.parametrize("fault", [PASSWORD_014, PASSWORD_018])
def test_nothing_is_made_over_a_copy_with_another_password(
    world: World, restic: Restic, fault: tuple[int, str]
) -> None:
    restic.broken["cat"] = fault
    with pytest.raises(Refusal, match="another password"):
        copies.push(world.subject(), init=True)
    assert "init" not in restic.verbs


def test_a_folder_whose_disk_is_not_mounted_is_no_new_place(world: World, restic: Restic, tmp_path: Path) -> None:
    copies.install(replace(COPY, mount=str(tmp_path)), SECRETS)
    with pytest.raises(Refusal, match="nothing is mounted at"):
        copies.push(world.subject(), init=True)
    assert restic.verbs == []


@pytest.mark.parametrize("kind", [*OTHERS, ""])
def test_no_secret_is_in_an_argument_or_in_the_environment(world: World, restic: Restic, kind: str) -> None:
    copy = OTHERS.get(kind, COPY)
    copies.install(copy, SECRETS)
    copies.push(world.subject(), init=True)
    copies.fetch(world.subject(), "latest")
    assert len(restic.calls) > 6
    for argv, env in restic.calls:
        assert "canary" not in json.dumps([argv, env])
        assert env["RESTIC_PASSWORD_FILE"] == str(copies.FOLDER / "password")
    files = {path.name: path for path in copies.FOLDER.iterdir()}
    assert {f"{path.stat().st_mode & 0o7777:o}" for path in files.values()} == {"600"}
    assert f"{copies.FOLDER.stat().st_mode & 0o7777:o}" == "700"
    assert "canary" in "".join(path.read_text() for path in files.values())


def test_ssh_takes_the_pinned_key_only(world: World, restic: Restic) -> None:
    copies.install(OTHERS["sftp"], SECRETS)
    copies.push(world.subject())
    command = restic.calls[0][0][2]
    assert command.startswith("sftp.command=ssh -F none -oBatchMode=yes")
    for option in ("StrictHostKeyChecking=yes", "UpdateHostKeys=no", "GlobalKnownHostsFile=/dev/null"):
        assert f"-o{option} " in command
    assert command.endswith("-p 2222 -l me host.example -s sftp")


@pytest.mark.parametrize(
    ("kind", "file", "content"),
    [
        ("rest", "repository", "rest:https://me:canary%2Fof%3Aa%20key@rest.example:8000/h"),
        ("s3", "repository", "s3:https://s3.example/b"),
        ("s3", "s3-keys", f"[default]\naws_access_key_id = AKIA\naws_secret_access_key = {SECRET}\n"),
        ("sftp", "known-hosts", "[host.example]:2222 ssh-ed25519 AAAA\n"),
        ("sftp", "ssh-key", "canary of an ssh key\n"),
    ],
)
def test_what_restic_and_ssh_read(kind: str, file: str, content: str) -> None:
    assert copies.files_of(OTHERS[kind], SECRETS)[file] == content


def test_what_is_declared_no_more_goes_and_the_copy_stays(world: World, restic: Restic) -> None:
    copies.push(world.subject())
    units = schedule.UNITS
    assert sorted(path.name for path in units.iterdir()) == ["agent-copy.service", "agent-copy.timer"]
    copies.install(OTHERS["s3"], SECRETS)
    assert (copies.FOLDER / "s3-keys").exists()
    copies.install(COPY, SECRETS)
    assert not (copies.FOLDER / "s3-keys").exists()
    copies.install(None, {})
    assert not copies.FOLDER.exists()
    assert list(units.iterdir()) == []
    assert standing(world).word == OFF
    assert len(restic.there) == 1
    with pytest.raises(Refusal, match="no second copy of the backups is declared"):
        copies.push(world.subject())


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for name, text in copies.UNITS.items():
        (tmp_path / name).write_text(text.replace(f"{LIBRARY}/backups copy", "/bin/true"))
    done = subprocess.run(
        ["/usr/bin/systemd-analyze", "verify", str(tmp_path / copies.TIMER)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# ---- another volume, and back ---------------------------------------------------------------------------------------


def lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new, empty volume and a new container: no backup, no record."""
    shutil.rmtree(world.home / ".hermes-stack")
    for path in (records.HERE, world.home / records.ON_VOLUME, copies._record()):
        path.unlink()
    (world.data / "state.db").unlink()
    subprocess.run(["touch", world.data / "MEMORY.md"], check=True)
    monkeypatch.setattr(copies, "volume_of", lambda _: "another")
    monkeypatch.setattr(update, "volume_of", lambda _: "another")


def test_a_new_volume_takes_no_place_of_the_lost_one_and_goes_on_from_its_copy(
    world: World, restic: Restic, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.push(world.subject())
    (kept,) = copies.Repository(COPY).snapshots()
    lost(world, monkeypatch)
    backups.make(world.subject())
    with pytest.raises(Refusal, match=rf"(?s)all of another volume; the newest is {kept.set}.*--from-copy latest"):
        copies.push(world.subject())
    assert standing(world).word == FAILED
    assert len(restic.there) == 1

    name = copies.fetch(world.subject(), "latest")
    assert name == kept.set
    assert backups.restore(world.subject(), name)["restored"] == kept.set
    assert world.words() == ["first"]
    # What was made of the empty volume is no state to begin with.
    assert copies.push(world.subject())["pushed"] is False
    assert standing(world).word == MADE


def test_a_new_volume_may_begin_anew_by_the_word_of_a_person(
    world: World, restic: Restic, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies.push(world.subject())
    lost(world, monkeypatch)
    made = backups.make(world.subject())
    assert copies.push(world.subject(), new_volume=True)["set"] == made["name"]
    copies._record().unlink()
    assert copies.push(world.subject())["pushed"] is False
    assert len(restic.there) == 2


@pytest.mark.usefixtures("restic")
def test_a_set_that_the_agent_has_changed_on_its_way_is_given_back_by_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.home / ".hermes-stack" / "backups" / newest(world)
    (folder / "data" / "config.yaml").write_text("# not what was there\n")
    copies.push(world.subject())
    lost(world, monkeypatch)
    with pytest.raises(Refusal):
        copies.fetch(world.subject(), "latest")
    assert world.backups() == []
    assert records.known(str(world.home)) == {}


@pytest.mark.usefixtures("restic")
def test_one_of_that_name_that_was_changed_since_is_set_aside(world: World) -> None:
    name = newest(world)
    copies.push(world.subject())
    manifest = world.home / ".hermes-stack" / "backups" / name / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "reason": "mine"}))
    copies.fetch(world.subject(), name)
    (each,) = world.subject().backups()
    assert (each["name"], each["standing"], each["reason"]) == (name, "ours", "asked for")
    (aside,) = (world.home / ".hermes-stack").glob("*-set-aside")
    assert json.loads((aside / "manifest.json").read_text())["reason"] == "mine"


def test_one_that_is_on_the_volume_is_not_brought_again(world: World, restic: Restic) -> None:
    copies.push(world.subject())
    copies.fetch(world.subject(), "latest")
    assert "dump" not in restic.verbs


SUM = "a" * 64


def snapshot(number: int, stack: str = "cattle", name: str = "20261128T033107Z-0.20.3") -> Snapshot:
    return Snapshot(f"{number:064x}", stack, name, SUM, 9, "v", f"2026-11-28T03:31:0{number}Z")


@pytest.mark.parametrize(
    ("which", "number"),
    [
        ("latest", 2),
        (f"{1:064x}", 1),
        ("20261128T033107Z-0.20.3", 2),
        ("20261127T033107Z-0.20.3", 3),
        ("0" * 20, None),  # of several
        ("fedcba98", None),
        ("2026", None),
        ("../x", None),
    ],
)
def test_which_one_is_meant(which: str, number: int | None) -> None:
    found = [snapshot(3, "other", "20261127T033107Z-0.20.3"), snapshot(2), snapshot(1)]
    if number is None:
        with pytest.raises(Refusal, match=r"(?s)there is no copy .*; nothing was changed.*00000000  2026"):
            copies.chosen(found, "cattle", which)
    else:
        assert copies.chosen(found, "cattle", which) == snapshot(number, *(("other", which) if number == 3 else ()))


def test_the_latest_is_none_of_another_stack() -> None:
    with pytest.raises(Refusal, match="there is no copy 'latest' of the stack cattle"):
        copies.chosen([snapshot(1, "other")], "cattle", "latest")


TAGS = ["hermes-stack", "set=20261128T033107Z-0.20.3", f"sum={SUM}", "bytes=9", "volume=v"]
LINE = {"id": "b" * 64, "hostname": "cattle", "time": "2026-11-28T03:31:00Z", "tags": TAGS}


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "b"}, {"id": "-" * 64}, {"tags": None}, {"tags": []}, {"tags": [1, *TAGS[:2]]},
        {"tags": [*TAGS[:1], "set=../../etc", *TAGS[2:]]}, {"tags": [*TAGS[:2], "sum=x", *TAGS[3:]]},
        {"tags": [*TAGS[:3], "bytes=-1"]},
    ],
)  # fmt: skip
def test_a_line_of_another_form_is_none_of_ours(wrong: dict[str, Any]) -> None:
    assert copies.snapshot_of(LINE) == Snapshot("b" * 64, "cattle", TAGS[1][4:], SUM, 9, "v", LINE["time"])  # type: ignore[arg-type]
    assert copies.snapshot_of({**LINE, **wrong}) is None
    assert copies.snapshot_of([LINE]) is None


# ---- how it stands --------------------------------------------------------------------------------------------------

NOON = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
TONIGHT, LAST_NIGHT, BEFORE = (f"202611{day}T033107Z-0.20.3" for day in (28, 27, 25))


@pytest.mark.parametrize(
    ("noted", "given", "word", "text"),
    [
        ({}, {"copy": None}, OFF, "none is declared"),
        ({"set": TONIGHT}, {}, MADE, f"of 2026-11-28 03:31 UTC ({TONIGHT}), at /mnt/c/hermes"),
        ({"set": TONIGHT, "checked": "2026-11-25T04:00:00+00:00"}, {}, MADE, "/mnt/c/hermes, checked 2026-11-25"),
        ({}, {}, WAITING, f"there is none yet, at /mnt/c/hermes; {TONIGHT} is to come"),
        ({}, {"newest": None}, WAITING, "there is none yet"),
        ({"set": LAST_NIGHT}, {}, MADE, f"{TONIGHT} is to come"),
        (
            {"set": BEFORE},
            {"newest": LAST_NIGHT},
            OVERDUE,
            f"{LAST_NIGHT} is not there. Look: journalctl -u agent-copy",
        ),
        # It was just declared.
        ({}, {"newest": LAST_NIGHT, "since": NOON - timedelta(hours=1)}, WAITING, "is to come"),
        ({"set": TONIGHT}, {"since": None}, FAILED, "the timer does not run"),
        ({"set": TONIGHT, "fault": "no way"}, {}, FAILED, "the last try failed: no way"),
        ({"set": TONIGHT, "check_fault": "bad pack"}, {}, FAILED, "it was found damaged: bad pack"),
        ({"set": "../x", "fault": ["x"], "checked": 1}, {"newest": None}, MADE, "there is none yet"),
    ],
)
def test_how_it_stands(noted: dict[str, Any], given: dict[str, Any], word: str, text: str) -> None:
    known: dict[str, Any] = {"copy": COPY, "newest": TONIGHT, "since": NOON - timedelta(days=9), "now": NOON, **given}
    look: Callable[..., schedule.Standing] = copies.standing
    found = look(known.pop("copy"), known.pop("newest"), noted, **known)
    assert found.word == word, found
    assert text in found.text


# ---- printed for who asks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("printf 'a\\0tar'", ""),
        (f"echo '{PASSWORD_014[1]}' >&2; exit 1", "was made with another password"),
        (f"printf part; echo 'Fatal: {PASSWORD}' >&2; exit 1", "restic dump failed on the copy at"),
    ],
)
def test_a_set_is_printed_by_its_whole_id(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ends: str, told: str
) -> None:
    program = world.root / "restic"
    program.write_text(f'#!/bin/sh\necho "$*" >"$0.asked"\n{ends}\n')
    program.chmod(0o755)
    monkeypatch.setattr(copies, "RESTIC", str(program))
    monkeypatch.setattr(backups, "subject_here", world.subject)
    monkeypatch.setattr(sys, "argv", ["backups", "dump", "b" * 64])
    assert backups.main() == (1 if told else 0)
    said = capfd.readouterr()
    assert program.with_name("restic.asked").read_text() == f"dump --no-lock {'b' * 64} /set.tar\n"
    assert told in said.err
    assert PASSWORD not in said.err
    assert told or said.out == "a\0tar"


@pytest.mark.parametrize("which", ["b" * 63, "latest", "--help", ""])
def test_nothing_but_a_whole_id_reaches_restic(world: World, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(copies, "RESTIC", "/nonexistent")
    with pytest.raises(Refusal, match="is no whole id of a copy"):
        copies.dump(world.subject(), which)


# ---- as a program ---------------------------------------------------------------------------------------------------


def test_the_verbs_of_the_program(world: World, restic: Restic, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(backups, "subject_here", world.subject)
    assert world.running
    restic.exists = False
    for words, status in (
        (["copies"], 1),
        (["copy"], 1),
        (["copy", "--init"], 0),
        (["copies"], 0),
        (["restore", "latest", "--from-copy"], 0),
        (["restore", "20200101T000000Z-1", "--from-copy"], 1),
        (["unlock"], 0),
    ):
        monkeypatch.setattr(sys, "argv", ["backups", *words])
        assert backups.main() == status, words
    said = capsys.readouterr()
    assert "restored: " in said.out
    assert restic.calls[-1][0][1:] == ["unlock", "--remove-all"]
    assert world.words() == ["first"]
    assert OLD in said.out
