"""Another release of the agent in a real container: what it keeps, what it takes back; backups by hand.

Needs root on a machine where the lab can run containers (scripts/lab); it makes a lab of its own and removes it.

The tests tell one story, in this order: each finds the container as the one before has left it. The releases are
upstream's own, 0.19.0 and 0.20.3; where upstream's tree can't be had, 0.18.2 and 0.19.0 of the package index. The
broken ones are made of the newer one. One that does not start at all: test_stacks.py.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from provisioning.errors import PhaseFailed
from provisioning.plans import PhasePlan, run_phase
from tests.e2e.phase_guest import Guest, backups_plan, made_of, needs_root, run_cut
from tests.e2e.used_home import (
    BACKUPS,
    HOME,
    MIGRATED,
    SCHEMAS,
    assert_as_begun,
    assert_taken_along,
    backup_line,
    backups,
    begin,
    journal_mode,
    minute_without_backup,
    on_schedule,
    schema,
    sound,
    theirs,
)

pytestmark = needs_root


@dataclass(frozen=True)
class Pair:
    """Two releases: settings of the agent phase, versions, and the schemas of state.db."""

    old: dict[str, Any]
    new: dict[str, Any]
    versions: tuple[str, str]
    databases: tuple[int, int]
    migrated: dict[str, Any]
    """What becomes of THEIRS; nothing where it is not known."""

    @property
    def before(self) -> str:
        return self.versions[0]

    @property
    def after(self) -> str:
        return self.versions[1]


@pytest.fixture(scope="module")
def pair(guest: Guest) -> Pair:
    if guest.source.kind == "stand-in":
        # `hermes_state.py` of both: 19 and 22.
        first, second = ({"agentSource": "pypi", "agentVersion": version} for version in ("0.18.2", "0.19.0"))
        return Pair(first, second, ("0.18.2", "0.19.0"), (19, 22), {})
    newest, previous = guest.source.newest, guest.source.previous
    assert previous is not None
    old, new = (
        {"agentTag": each.tag, "agentCommit": each.commit, "agentVersion": each.version} for each in (previous, newest)
    )
    return Pair(old, new, (previous.version, newest.version), SCHEMAS, MIGRATED)


def ask(guest: Guest, path: str) -> Any:
    """What the agent's API says."""
    program = """
import json, re, sys, urllib.request
key = re.search("^API_SERVER_KEY='(.*)'$", open("/etc/hermes/.env").read(), re.M)[1]
asked = urllib.request.Request("http://127.0.0.1:8642" + sys.argv[1], headers={"Authorization": "Bearer " + key})
print(urllib.request.urlopen(asked, timeout=20).read().decode())
"""
    return json.loads(guest.shell(f"python3 -c {shlex.quote(program)} {shlex.quote(path)}"))


def health(guest: Guest) -> str:
    """The version that answers."""
    return str(ask(guest, "/health")["version"])


def sessions(guest: Guest) -> set[str]:
    """Ids of the conversations, as the agent tells them."""
    return {each["id"] for each in ask(guest, "/api/sessions?limit=100")["data"]}


def remembered(guest: Guest, version: str) -> str:
    status, out, err = guest.verify(version=version, prompt="what do you remember?", expect="")
    assert status == 0, err
    return str(json.loads(out)["answer"])


def remember(guest: Guest, version: str, what: str) -> None:
    status, _, err = guest.verify(version=version, prompt=f"remember: {what}", expect="Entry added")
    assert status == 0, err


def pids(guest: Guest) -> str:
    return guest.shell("systemctl show -p MainPID --value hermes-gateway.service hermes-dashboard.service")


def switch_to(guest: Guest, directory: str) -> PhasePlan:
    """Without the dashboard, whose interface would have to be built; no backup is removed before the story ends."""
    return guest.configure(directory, agentBackupsKept=20)


PROMPT = 'async def _handle_chat_completions(self, request: "web.Request") -> "web.Response":\n'
NO_ANSWER = f'{PROMPT}        return web.json_response({{"error": "no such luck"}}, status=500)\n'
# Starts, and brings the database and the configuration into a form that no release understands.
MIGRATES = """
import asyncio
import os, sqlite3
_home = os.environ["HERMES_HOME"]
with sqlite3.connect(os.path.join(_home, "state.db")) as _database:
    if _database.execute("SELECT version FROM schema_version").fetchone()[0] < 99:
        _database.execute("ALTER TABLE messages RENAME TO messages_of_99")
        _database.execute("UPDATE schema_version SET version = 99")
with open(os.path.join(_home, "config.yaml"), "w") as _stream:
    _stream.write("_config_version: 99\\n")
"""


def refused(guest: Guest, plan: PhasePlan) -> str:
    with pytest.raises(PhaseFailed) as failed:
        guest.run(plan)
    return str(failed.value)


@pytest.fixture(scope="module")
def built(guest: Guest, pair: Pair) -> tuple[str, str]:
    """The folders of both: the old one in use, with sessions, a memory, a cron job and a config.yaml of the user's."""
    guest.run(guest.baseline())
    old = str(guest.run(guest.agent(**pair.old))["directory"])
    guest.run(switch_to(guest, old))
    remember(guest, pair.before, "the cat is called Miez")
    begin(guest)
    assert schema(guest) == pair.databases[0]
    # Built beside: nothing of the old one stops for it.
    running = pids(guest)
    new = str(guest.run(guest.agent(**pair.new))["directory"])
    assert pids(guest) == running
    assert health(guest) == pair.before
    return old, new


def test_a_release_that_fails_its_proof_is_taken_back_with_the_old_data(
    guest: Guest, pair: Pair, built: tuple[str, str]
) -> None:
    before = sessions(guest)
    assert before
    # The true release, with all its migrations; it only can't answer.
    edits = {"gateway/platforms/api_server.py": (PROMPT, NO_ANSWER)}
    told = refused(guest, switch_to(guest, made_of(guest.shell, built[1], "0.99.1", edits)))
    assert "no such luck" in told
    assert "Taken back from the backup: " in told
    assert "state.db" in told
    assert health(guest) == pair.before
    assert schema(guest) == pair.databases[0]
    assert sessions(guest) >= before
    assert_as_begun(guest)
    assert "Miez" in remembered(guest, pair.before)
    aside = next(each for each in backups(guest) if each["partial"])
    assert aside["name"] in told
    assert schema(guest, f"{BACKUPS}/{aside['name']}/data/state.db") == pair.databases[1]
    assert guest.shell("readlink /opt/hermes/current").strip() == built[0]


def test_an_update_takes_everything_along(guest: Guest, pair: Pair, built: tuple[str, str]) -> None:
    before, mode = sessions(guest), journal_mode(guest)
    outputs = run_cut(guest, switch_to(guest, built[1]), "update: backed up", "services: ")
    assert health(guest) == pair.after
    assert outputs["restarted"] == ["hermes-gateway.service"]
    assert isinstance(outputs["offline_seconds"], float)
    assert sessions(guest) >= before
    assert "Miez" in remembered(guest, pair.after)
    assert schema(guest) == pair.databases[1]
    # Its databases were WAL, and stay so; no release changes that of a database that is there (facts hermes 0.20, 6).
    assert journal_mode(guest) == mode == "2"
    assert_taken_along(guest, pair.migrated)

    # The backup holds what was before, for its owner alone.
    made = next(each for each in backups(guest) if not each["partial"])
    assert made["version"] == pair.before
    assert schema(guest, f"{BACKUPS}/{made['name']}/data/state.db") == pair.databases[0]
    assert guest.shell(f"stat -c %U:%a {BACKUPS} {BACKUPS}/{made['name']}").split() == ["hermes:700", "hermes:700"]
    assert guest.shell("readlink /opt/hermes/current /opt/hermes/previous").split() == [built[1], built[0]]
    assert guest.run(switch_to(guest, built[1]))["restarted"] == []


def test_a_reboot_in_the_middle_is_cleared_up_when_the_version_is_set_back(
    guest: Guest, pair: Pair, built: tuple[str, str]
) -> None:
    before, mine = sessions(guest), theirs(guest)
    broken = made_of(guest.shell, built[1], "0.99.2", {"gateway/run.py": ("\nimport asyncio\n", MIGRATES)})

    def die(line: str) -> None:
        if line.startswith(("services:", "home:")):
            raise ConnectionAbortedError(line)

    with pytest.raises(ConnectionAbortedError):
        run_phase(guest.target(), switch_to(guest, broken), on_line=die, timeout_s=300)
    guest.runtime.kill(guest.spec)
    guest.up()
    # The state that the engine has still tells of the release before; what tells is the agent phase, which runs anew.
    installed = guest.run(guest.agent(**pair.new))
    assert installed["directory"] == built[1]
    assert isinstance(installed["unfinished_update"], str)
    guest.run(guest.configure(built[1], installed["unfinished_update"], agentBackupsKept=20))
    assert "Miez" in remembered(guest, pair.after)
    assert health(guest) == pair.after
    assert schema(guest) == pair.databases[1]
    assert sessions(guest) >= before
    assert theirs(guest) == mine
    assert guest.shell("readlink /opt/hermes/current").strip() == built[1]
    notes = f"{HOME}/.hermes-stack/update.json /var/lib/hermes-provision/update"
    assert guest.shell(f"ls -d {notes} 2>/dev/null || true") == ""
    assert "unfinished_update" not in guest.run(guest.agent(**pair.new))


LOOKED_UP = """
import json, sys
from agent.skill_utils import get_disabled_skill_names, get_external_skills_dirs
from hermes_cli.config import load_config
from tools.website_policy import load_website_blocklist
pinned = load_config()
json.dump({"timezone": pinned.get("timezone"), "disabled": sorted(get_disabled_skill_names()),
           "dirs": list(map(str, get_external_skills_dirs())), "blocked": load_website_blocklist().get("enabled"),
           "number": pinned.get("_config_version")}, sys.stdout)
"""
NOT_PINNED = {
    "timezone": "Europe/Berlin",
    "skills": {"disabled": ["dogfood"], "external_dirs": [f"{HOME}/workspace"]},
    "security": {"website_blocklist": {"enabled": True, "domains": ["example.org"]}},
}


def test_what_the_release_does_of_its_own_accord_is_met(guest: Guest, pair: Pair, built: tuple[str, str]) -> None:
    if guest.source.kind == "stand-in":
        pytest.skip("these are ways of 0.20.3, of which the stand-in has nothing")
    # A key alone opens its API, ENABLED counts for nothing, and both are the agent's to write (facts hermes 0.20, 3).
    theirs_on = "API_SERVER_ENABLED=true\nAPI_SERVER_KEY=0123456789abcdef0123456789abcdef\n"
    guest.shell(f"runuser -u hermes -- sh -c 'cat >{HOME}/.hermes/.env'", stdin=theirs_on.encode())
    closed = guest.configure(built[1], agentApi=False, agentBackupsKept=20, agentSettings=NOT_PINNED)
    guest.run(closed)
    status, _, err = guest.verify(version=pair.after, prompt="reply with the word heron", expect="heron")
    assert status == 0, err
    listening = guest.shell("ss --no-header --listening --tcp --numeric | awk '{print $4}'").split()
    assert not [address for address in listening if address.endswith(":8642")]

    # What WITHOUT_EFFECT of components/declaration.py says. A release that honours one of them ends up here.
    python = f"{built[1]}/venv/bin/python"
    as_agent = f"cd / && runuser -u hermes -- env HERMES_HOME={HOME}/.hermes PYTHONDONTWRITEBYTECODE=1"
    found = json.loads(guest.shell(f"{as_agent} {python} -P -c {shlex.quote(LOOKED_UP)}").strip().rpartition("\n")[2])
    assert found == {"timezone": "Europe/Berlin", "disabled": [], "dirs": [], "blocked": False, "number": 37}

    # A first start by root would delete all compiled code of a checkout with its .git (facts hermes 0.20, 1).
    count = f"find {built[1]}/hermes-agent -name __pycache__ | wc -l"
    compiled = int(guest.shell(count))
    assert compiled > 100
    guest.shell("cd / && hermes sessions list")
    assert int(guest.shell(count)) == compiled
    assert guest.shell(f"ls -d {built[1]}/hermes-agent/.git 2>/dev/null || true") == ""

    # A new home's databases are in another mode than an old one's.
    script = 'set -e; export HERMES_HOME=$(mktemp -d); "$@" >&2; head -c 20 "$HERMES_HOME/state.db" | od -An -tu1'
    hermes = f"{python} {built[1]}/hermes-agent/hermes sessions list"
    header = guest.shell(f"cd / && runuser -u hermes -- sh -c {shlex.quote(script)} sh {hermes}")
    assert header.split()[18] == "1"

    # `import` and `setup` start a user's gateway unasked (facts hermes 0.20, 6).
    for command in ("import /nowhere.zip", "setup --non-interactive"):
        said = guest.shell(f"cd / && hermes {command} 2>&1; echo status $?")
        assert "belongs to the stack" in said
        assert said.endswith("status 1\n")
    units = f"{HOME}/.config/systemd/user"
    guest.shell(f"runuser -u hermes -- sh -c 'mkdir -p {units} && echo [Service] >{units}/hermes-gateway.service'")
    assert "the home holds 1 units of its own" in refused(guest, closed)
    guest.shell(f"runuser -u hermes -- rm -r {HOME}/.config/systemd {HOME}/.hermes/.env")
    guest.run(switch_to(guest, built[1]))


def test_the_cattle_backs_up_by_itself_and_what_keeps_it_from_that_is_seen(
    guest: Guest, pair: Pair, built: tuple[str, str]
) -> None:
    work = f"{HOME}/workspace/plan.md"
    guest.shell(f"runuser -u hermes -- sh -c 'echo first >{work}'")
    due = minute_without_backup(guest)
    running = pids(guest)
    guest.run(guest.configure(built[1], agentBackupsKept=20, agentBackupTimes=[due]))
    assert guest.shell("systemctl is-active agent-backup.timer").strip() == "active"
    start = "systemctl start agent-backup.service"
    guest.shell(start)
    (name,) = on_schedule(guest)
    assert f"({name}); each day at {due}" in backup_line(guest)
    guest.shell(start)
    assert on_schedule(guest) == [name]
    assert guest.shell(f"cat {BACKUPS}/{name}/home/workspace/plan.md").strip() == "first"
    assert pids(guest) == running

    # The agent removes it, and holds the lock: both is its to do, and is seen.
    hold = f"exec 9>>{BACKUPS}/.lock; flock 9; rm -rf {BACKUPS}/{name}; touch /tmp/held; exec sleep 600"
    guest.shell(f"systemd-run --quiet --unit=holds-the-lock --uid=hermes sh -c {shlex.quote(hold)}")
    guest.shell("until [ -e /tmp/held ]; do sleep 0.1; done")
    assert "failed" in guest.shell(f"{start} 2>/dev/null || echo failed")
    assert "FAILED" in backup_line(guest)
    assert "another backup or restore is at work" in backup_line(guest)
    status, out, err = guest.verify(version=pair.after)
    assert (status, json.loads(out)["backup"]) == (0, "failed")
    assert "warning: backup: FAILED" in err
    guest.shell(f"systemctl stop holds-the-lock; {start}")
    (again,) = on_schedule(guest)
    assert f"({again}); each day at {due}" in backup_line(guest)

    # Files that the agent has deleted come back, beside its data.
    remember(guest, pair.after, "the fish is called Wanda")
    guest.shell(f"runuser -u hermes -- rm {work}")
    guest.run(backups_plan("restore", again))
    assert guest.shell(f"cat {work}").strip() == "first"
    assert "Wanda" not in remembered(guest, pair.after)
    guest.run(switch_to(guest, built[1]))
    assert "agent-backup" not in guest.shell("ls /etc/systemd/system")


def test_back_to_a_backup_by_hand(guest: Guest, pair: Pair) -> None:
    made = run_cut(guest, backups_plan("make"), "backed up: ")
    assert str(made["path"]).startswith(f"{BACKUPS}/")
    remember(guest, pair.after, "the dog is called Rex")
    done = run_cut(guest, backups_plan("restore", "latest"), "restore: the present state is kept")
    assert done["restored"] == made["name"]
    now = remembered(guest, pair.after)
    assert "Miez" in now
    assert "Rex" not in now
    # The state from before the restore is a backup, too.
    guest.run(backups_plan("restore", str(done["safety"])))
    assert "Rex" in remembered(guest, pair.after)
    with pytest.raises(PhaseFailed, match=r"there is no backup 2020; nothing was changed"):
        guest.run(backups_plan("restore", "2020"))


def test_back_to_the_release_before_with_the_data_of_then(guest: Guest, pair: Pair, built: tuple[str, str]) -> None:
    then = next(each for each in backups(guest) if each["version"] == pair.before and not each["partial"])
    # The agent phase keeps what the last update came from.
    assert guest.run(guest.agent(**pair.old))["directory"] == built[0]
    guest.run(switch_to(guest, built[0]))
    guest.run(backups_plan("restore", str(then["name"])))
    assert health(guest) == pair.before
    assert schema(guest) == pair.databases[0]
    assert_as_begun(guest)
    now = remembered(guest, pair.before)
    assert "Miez" in now
    assert "Rex" not in now
    assert sound(guest)
